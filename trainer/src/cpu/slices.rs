//! Tensors in main memory as slices of their elements.

use tch::{Device, Tensor};

use super::engine;
use super::simd::Element;

/// [`holds`] for `f32`.
pub(crate) fn is_plain(tensor: &Tensor) -> bool {
    holds::<f32>(tensor)
}

/// Whether the elements of `tensor` can be reached as one `&[E]`, and this crate's kernels are wanted.
pub(crate) fn holds<E: Element>(tensor: &Tensor) -> bool {
    engine::is_own() && is_slice::<E>(tensor)
}

fn is_slice<E: Element>(tensor: &Tensor) -> bool {
    tensor.device() == Device::Cpu && tensor.kind() == E::KIND && tensor.is_contiguous()
}

/// The elements of a contiguous `f32` tensor in main memory; panics as [`elements`].
pub(crate) fn floats(tensor: &Tensor) -> &[f32] {
    elements(tensor)
}

/// [`floats`], writable.
pub(crate) fn floats_mut(tensor: &mut Tensor) -> &mut [f32] {
    elements_mut(tensor)
}

/// The elements of a contiguous tensor in main memory.
///
/// # Panics
/// When the tensor is anything else: a mistake in the caller, who checks with [`holds`] where it may happen.
pub(crate) fn elements<E: Element>(tensor: &Tensor) -> &[E] {
    assert!(is_slice::<E>(tensor), "the elements of {tensor:?} are not one slice of {:?}", E::KIND);
    if tensor.numel() == 0 {
        return &[]; // Its `data_ptr` is null.
    }
    // SAFETY: libtorch owns `numel` contiguous elements at `data_ptr` for as long as the tensor lives; the borrow keeps it alive,
    // and nothing writes to it from another thread while this crate reads.
    unsafe { std::slice::from_raw_parts(tensor.data_ptr().cast_const().cast(), tensor.numel()) }
}

/// [`elements`], writable.
///
/// # Panics
/// Those of [`elements`].
pub(crate) fn elements_mut<E: Element>(tensor: &mut Tensor) -> &mut [E] {
    assert!(is_slice::<E>(tensor), "the elements of {tensor:?} are not one slice of {:?}", E::KIND);
    if tensor.numel() == 0 {
        return &mut [];
    }
    // SAFETY: as in `elements`; the exclusive borrow stands for exclusive access, since tensors that share memory are only made
    // and used inside one call of the model.
    unsafe { std::slice::from_raw_parts_mut(tensor.data_ptr().cast(), tensor.numel()) }
}
