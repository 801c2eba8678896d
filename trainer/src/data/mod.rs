//! From text to token shards: reading, the tokenizer, and the dataset that a training run maps into memory.
//!
//! ```text
//! text (files, rows) → tokenizer (pieces → merges → ids) → shard (dataset.json + token files)
//!                        prepare drives all three, with bounded memory
//! ```

pub mod error;
pub mod prepare;
pub mod sampler;
pub mod shard;
pub mod text;
pub mod tokenizer;

pub use error::DataError;
