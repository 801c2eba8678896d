//! The whole program on a tiny model.

mod bad_input;
mod fixture;
mod generation;
mod resume;
