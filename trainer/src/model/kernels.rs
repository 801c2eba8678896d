//! Whose kernels compute on the CPU: this crate's, or libtorch's, as on a GPU. Like libtorch's own modes (`no_grad`) it is a property of the thread
//! that calls them, set around a whole pass; every kernel asks once, where it looks at the dtype and the device of its input.

use std::cell::Cell;

use tch::Kind;

use super::{amx, product};
use crate::config::Engine;

thread_local! {
    static ENGINE: Cell<Engine> = const { Cell::new(Engine::Own) };
}

/// Calls `work` with the kernels of `engine`.
pub(crate) fn of<T>(engine: Engine, work: impl FnOnce() -> T) -> T {
    let before = ENGINE.replace(engine);
    let result = work();
    ENGINE.set(before);
    result
}

/// Whether tensors in main memory go to this crate's kernels, where it has one for their dtype.
pub(crate) fn are_own() -> bool {
    ENGINE.get() == Engine::Own
}

/// Whether libtorch's products of `kind` take no longer on this processor than those of the same numbers in `f32`. Where oneDNN has none for 16 bits
/// they are plain loops, with which a step of GPT-2 small takes minutes: before AVX-512, for fp16 before its extension for it. For bf16 it takes
/// twice as long as for `f32` where the processor has neither tiles nor a fast instruction for pairs.
pub(crate) fn has_fast_products(kind: Kind) -> bool {
    match kind {
        #[cfg(target_arch = "x86_64")]
        Kind::BFloat16 => amx::is_available() || product::are_pairs_multiplied(),
        #[cfg(target_arch = "x86_64")]
        Kind::Half => is_x86_feature_detected!("avx512fp16"),
        _ => true,
    }
}
