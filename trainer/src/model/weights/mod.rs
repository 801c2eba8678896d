//! The weights of a model: their first values, and how they are kept in memory and in files.

pub mod initial;
mod load;
pub mod parameters;
pub mod tensor_file;
