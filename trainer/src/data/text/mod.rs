//! Where text comes from: files found by path or pattern, the documents inside them, and named sources.

mod cargo;
mod delta;
mod documents;
mod files;
mod pages;
mod rows;
mod source;
mod thrift;

pub use cargo::{cargo_dependencies, cargo_dependencies_here, cargo_program};
pub use documents::{Findings, Part, Reading, documents};
pub use files::{about_the_data, find, repeated};
pub(crate) use source::refuse_other_content;

#[cfg(test)]
mod tests;
