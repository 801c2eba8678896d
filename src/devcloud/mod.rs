//! Simulated clouds on loopback, in the program: a rehearsal of everything that costs money, at no cost. They know nothing of the
//! providers that are rehearsed against them, only what the real services do.

pub mod gce;
pub(crate) mod http;
