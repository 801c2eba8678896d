//! Which store is which. Where a store has no name of its own in the world, it is what somebody drew for it once.

use crate::job::digest::Digest;

/// What nobody else draws.
pub(super) fn draw() -> String {
    let mut bytes = [0; 32];
    // It reads the system's generator, which fails on no system that ftctl runs on; two stores of the same identity would be one to a cloud.
    aws_lc_rs::rand::fill(&mut bytes).expect("the system has random numbers");
    hex::encode(bytes)
}

/// The identity of a store with this text. Labels of machines show the identity, and from it nobody finds the text.
pub(super) fn of(text: impl AsRef<[u8]>) -> Digest {
    Digest::of(text.as_ref())
}
