//! Stores, clouds, projects and machines that mean harm (docs/security.md): each test is a stranger who may write to one of them,
//! and a user who runs an everyday verb.

#![allow(clippy::unwrap_used)]

mod certificate;
#[path = "../common/mod.rs"]
mod common;
mod containers;
mod corpora;
mod devcloud;
mod engine;
mod environment;
mod files;
mod inputs;
mod listener;
mod machines;
mod parsers;
mod project;
#[path = "../common/terminal.rs"]
mod pty;
mod random;
mod records;
mod sign_in;
mod state;
mod terminal;
mod trust;
