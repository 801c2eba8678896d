//! Models with a hand-written backward pass: `family.rs` has what a run asks of each.

pub mod hugging_face;
pub mod memory_estimate;
pub mod role;
pub mod shape;
mod xglm;

#[cfg(feature = "torch")]
mod family;
#[cfg(feature = "torch")]
mod gpt2;
#[cfg(feature = "torch")]
pub(crate) mod layers;
#[cfg(feature = "torch")]
mod loss;
#[cfg(feature = "torch")]
mod stored;
pub mod weights;

#[cfg(feature = "torch")]
pub use family::{Beside, Model};
#[cfg(feature = "torch")]
pub use gpt2::{
    Gpt2, Setup,
    adapters::Adapters,
    batch::{Batch, covering},
    draft::Draft,
    kv_cache::KvCache,
};
#[cfg(feature = "torch")]
pub use layers::{dropout::Dropout, fused::Fused, head::IGNORED};
#[cfg(feature = "torch")]
pub use loss::Loss;
pub use memory_estimate::TrainingMemory;
pub use shape::{PUBLISHED_VOCABULARY, Shape, ShapeError};
#[cfg(feature = "torch")]
pub use stored::Stored;
#[cfg(feature = "torch")]
pub use weights::parameters::{ModelError, Parameter, Parameters};

/// Rows (tokens) whose logits exist at once in training and evaluation.
const HEAD_CHUNK: usize = 512;
