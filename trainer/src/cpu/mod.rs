//! This crate's own kernels for the CPU: threads, registers, memory and the matrix product.

#[cfg(target_os = "linux")]
pub mod arena;
pub mod engine;
pub mod matmul;
pub mod parallel;
pub mod simd;
pub mod slices;
pub mod vectorise;
