//! The weights of a model: their first values, and how they are kept in memory and in files.

mod file;
#[cfg(feature = "torch")]
pub mod initial;
#[cfg(feature = "torch")]
mod load;
pub mod model_files;
mod names;
#[cfg(feature = "torch")]
pub mod parameters;
mod pickle;
#[cfg(feature = "torch")]
pub mod tensor_file;
mod zip;

pub use file::TensorFile;

#[cfg(test)]
mod tests;
