//! Whose kernels compute on the CPU: this crate's, or libtorch's, as on a GPU. Like libtorch's own modes (`no_grad`) it is a
//! property of the thread that calls them, set around a whole pass; every kernel asks once, where it looks at the dtype and the
//! device of its input.

use std::cell::Cell;

use tch::Kind;

use crate::settings::Engine;

thread_local! {
    static ENGINE: Cell<Engine> = const { Cell::new(Engine::Own) };
}

/// Calls `work` with the kernels of `engine`.
pub(crate) fn with<T>(engine: Engine, work: impl FnOnce() -> T) -> T {
    let before = ENGINE.replace(engine);
    let result = work();
    ENGINE.set(before);
    result
}

/// Whether tensors in main memory go to this crate's kernels, where it has one for their dtype.
pub(crate) fn is_own() -> bool {
    ENGINE.get() == Engine::Own
}

/// Whether oneDNN multiplies numbers of bf16 by way of copies in `f32` on this processor: one with AVX-512, and without its
/// instructions for bf16.
pub(crate) fn copies_bf16() -> bool {
    #[cfg(target_arch = "x86_64")]
    return super::vectorise::has_avx512() && !is_x86_feature_detected!("avx512bf16");
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// Whether libtorch's products of `kind` are oneDNN's on this processor. Those of 16-bit numbers are plain loops where oneDNN has
/// none: before AVX-512, for fp16 before its extension for it. A step of GPT-2 small takes minutes with them.
pub(crate) fn has_onednn_products(kind: Kind) -> bool {
    match kind {
        #[cfg(target_arch = "x86_64")]
        Kind::BFloat16 => super::vectorise::has_avx512(),
        #[cfg(target_arch = "x86_64")]
        Kind::Half => is_x86_feature_detected!("avx512fp16"),
        _ => true,
    }
}
