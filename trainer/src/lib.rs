//! `ft-trainer`: trains GPT-2 from a configuration file and a directory of token shards.
//!
//! It reads and writes directories only and knows no cloud: whoever starts it (the `ftctl` agent, or a person) puts the
//! data in place before and takes the checkpoints away after.
//!
//! Without the feature `torch` the crate is what `ftctl` itself needs: the configuration types, the progress lines and the
//! preparation of data. With it, the model and the training loop join.

#[cfg(all(feature = "torch", target_os = "linux"))]
mod arena;
mod arithmetic;
#[cfg(feature = "torch")]
mod aten;
#[cfg(feature = "torch")]
pub mod best;
#[cfg(feature = "torch")]
pub mod blocks;
#[cfg(feature = "torch")]
pub mod checkpoint;
#[cfg(feature = "torch")]
pub mod cli;
pub mod config;
pub mod config_file;
pub mod data;
#[cfg(feature = "torch")]
pub mod device;
#[cfg(feature = "torch")]
mod direct;
#[cfg(feature = "torch")]
pub mod ending;
pub mod error;
#[cfg(feature = "torch")]
pub mod eval;
pub mod files;
#[cfg(feature = "torch")]
pub mod generate;
pub mod guard;
pub mod journal;
pub mod lora;
pub mod loss_scale;
#[cfg(feature = "torch")]
pub mod manifest;
pub mod micro_batch;
pub mod model;
#[cfg(feature = "torch")]
pub mod offload;
#[cfg(feature = "torch")]
pub mod optimizer;
#[cfg(feature = "torch")]
pub mod oracle;
#[cfg(feature = "torch")]
mod parallel;
#[cfg(feature = "torch")]
pub mod process;
pub mod progress;
pub mod random;
#[cfg(feature = "torch")]
mod reporting;
#[cfg(feature = "torch")]
pub mod run;
pub mod sampler;
#[cfg(feature = "torch")]
pub mod sampling;
#[cfg(feature = "torch")]
mod saving;
pub mod schedule;
#[cfg(feature = "torch")]
mod simd;
pub mod state;
pub mod tensorboard;
pub mod trace;
#[cfg(feature = "torch")]
pub mod train;
pub mod validate;
#[cfg(feature = "torch")]
mod validation;
#[cfg(feature = "torch")]
mod vectorise;
pub mod waiting;
#[cfg(feature = "torch")]
pub mod writing;
