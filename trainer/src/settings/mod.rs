//! A run's settings: the types of its configuration, how they are read, and the rules for their values.

mod arithmetic;
mod config;
pub mod file;
pub mod length;
pub mod lora;
pub mod micro_batch;
pub mod validate;

pub use config::*;
