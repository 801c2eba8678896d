//! The whole program on a tiny model.

#![cfg(feature = "torch")]
#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up has failed")]

mod bad_input;
mod engines;
mod fixture;
mod generation;
mod lengths;
mod memory;
mod parallel;
mod processes;
mod resume;
