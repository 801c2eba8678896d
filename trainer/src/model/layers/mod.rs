//! The layers that a transformer is made of, each with its forward and its backward pass.

pub mod attention;
pub mod documents;
pub mod dropout;
pub mod fused;
pub mod gelu;
pub mod head;
pub mod layout;
pub mod linear;
pub mod mask;
pub mod norm;
