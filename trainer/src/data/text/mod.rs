//! Where text comes from: files found by path or pattern, the documents inside them, and named sources.

mod cargo;
mod delta;
mod documents;
mod files;
mod pages;
mod rows;

pub use cargo::cargo_dependencies;
pub use documents::{Part, documents};
pub use files::find;

#[cfg(test)]
mod tests;
