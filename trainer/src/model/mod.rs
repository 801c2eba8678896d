//! GPT-2 with a hand-written backward pass.

pub mod hugging_face;
pub mod memory;
pub mod shape;
mod xglm;

#[cfg(feature = "torch")]
mod adapters;
#[cfg(feature = "torch")]
mod amx;
#[cfg(feature = "torch")]
mod attention;
#[cfg(feature = "torch")]
mod block;
#[cfg(feature = "torch")]
mod cache;
#[cfg(feature = "torch")]
mod documents;
#[cfg(feature = "torch")]
mod draft;
#[cfg(feature = "torch")]
mod dropout;
#[cfg(feature = "torch")]
mod embed;
#[cfg(feature = "torch")]
mod few;
#[cfg(all(feature = "torch", target_arch = "x86_64"))]
mod few_kernels;
#[cfg(feature = "torch")]
mod fused;
#[cfg(feature = "torch")]
mod gelu;
#[cfg(feature = "torch")]
mod gpt2;
#[cfg(feature = "torch")]
mod head;
#[cfg(feature = "torch")]
mod initial;
#[cfg(feature = "torch")]
pub(crate) mod kernels;
#[cfg(feature = "torch")]
mod linear;
#[cfg(feature = "torch")]
mod load;
#[cfg(all(feature = "torch", target_arch = "x86_64"))]
mod many;
#[cfg(feature = "torch")]
mod norm;
#[cfg(all(feature = "torch", target_arch = "x86_64"))]
mod pairs;
#[cfg(feature = "torch")]
pub mod parameters;
#[cfg(feature = "torch")]
mod product;
#[cfg(feature = "torch")]
mod sinusoids;
#[cfg(feature = "torch")]
mod stream;
#[cfg(feature = "torch")]
pub mod tensor_file;

#[cfg(feature = "torch")]
pub use adapters::Adapters;
#[cfg(feature = "torch")]
pub(crate) use amx::is_available as has_tiles;
#[cfg(feature = "torch")]
pub use cache::KvCache;
#[cfg(feature = "torch")]
pub use draft::Draft;
#[cfg(feature = "torch")]
pub use dropout::Dropout;
#[cfg(feature = "torch")]
pub use fused::Fused;
#[cfg(feature = "torch")]
pub use gpt2::Gpt2;
#[cfg(feature = "torch")]
pub use head::IGNORED;
#[cfg(feature = "torch")]
pub(crate) use linear::product;
pub use memory::TrainingMemory;
#[cfg(feature = "torch")]
pub use parameters::{ModelError, Parameter, Parameters};
pub use shape::{PUBLISHED_VOCABULARY, Shape, ShapeError};

/// Rows (tokens) whose logits exist at once in training and evaluation.
const HEAD_CHUNK: usize = 512;
