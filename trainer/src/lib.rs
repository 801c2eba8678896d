//! `ft-trainer`: trains GPT-2 from a configuration file and a directory of token shards.
//!
//! It reads and writes directories only and knows no cloud: its caller (the `ftctl` agent, or a person) puts the data in place
//! before and takes the checkpoints away after.
//!
//! Without the feature `torch` the crate is what `ftctl` itself needs: the configuration types, the progress lines and the
//! preparation of data. With it, the model and the training loop join.

#[cfg(feature = "torch")]
mod aten;
#[cfg(feature = "torch")]
pub mod cli;
#[cfg(feature = "torch")]
mod cpu;
pub mod data;
#[cfg(feature = "torch")]
pub mod device;
pub mod error;
pub mod files;
#[cfg(feature = "torch")]
pub mod generation;
pub mod journal;
pub mod model;
#[cfg(feature = "torch")]
pub mod offload;
pub mod openmp;
#[cfg(feature = "torch")]
pub mod optimizer;
pub mod preflight;
#[cfg(feature = "torch")]
pub mod process;
pub mod progress;
pub mod random;
#[cfg(feature = "torch")]
pub mod run;
pub mod schedule;
pub mod settings;
pub mod shares;
pub mod state;
pub mod tree;
#[cfg(feature = "torch")]
pub mod world;
