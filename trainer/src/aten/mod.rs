//! Operators of libtorch that tch does not pass on: `shim.cpp`, with tensors for pointers.

pub(crate) mod c10d;
pub(crate) mod nccl;

use std::ffi::{CStr, c_char, c_int};
use std::ptr::null_mut;

use tch::{Device, Tensor};
use torch_sys::C_tensor;

type Error = *mut c_char;

unsafe extern "C" {
    fn ft_layer_norm_backward(
        gradients: *mut *mut C_tensor,
        dy: *const C_tensor,
        x: *const C_tensor,
        mean: *const C_tensor,
        reciprocal_deviation: *const C_tensor,
        gain: *const C_tensor,
        shift: *const C_tensor,
    ) -> Error;
    fn ft_attention(
        results: *mut *mut C_tensor,
        q: *const C_tensor,
        k: *const C_tensor,
        v: *const C_tensor,
        causal: bool,
        rate: f64,
        seed: u64,
        flash: bool,
    ) -> Error;
    fn ft_attention_backward(
        gradients: *mut *mut C_tensor,
        doutput: *const C_tensor,
        q: *const C_tensor,
        k: *const C_tensor,
        v: *const C_tensor,
        kept: *const *const C_tensor,
        causal: bool,
        rate: f64,
        flash: bool,
    ) -> Error;
    fn ft_fused_adamw(
        parameter: *const C_tensor,
        gradient: *const C_tensor,
        first: *const C_tensor,
        second: *const C_tensor,
        step: *const C_tensor,
        numbers: *const f64,
    ) -> Error;
    fn ft_send_home(home: *const C_tensor, tensor: *const C_tensor) -> Error;
    fn ft_await_home(device: c_int) -> Error;
    fn ft_send_out(place: *const C_tensor, tensor: *const C_tensor) -> Error;
    fn ft_await_arrival(device: c_int) -> Error;
    fn ft_set_precision(tf32: bool, deterministic: bool) -> Error;
    #[cfg(target_os = "linux")]
    fn ft_use_arena();
    fn ft_peak_memory(bytes: *mut u64, device: c_int) -> Error;
    fn ft_free_memory(bytes: *mut u64, device: c_int) -> Error;
}

/// Gradients of input, gain and shift of a layer norm over the last dimension, all of one dtype.
pub(crate) fn layer_norm_backward(
    dy: &Tensor,
    x: &Tensor,
    [mean, reciprocal_deviation]: [&Tensor; 2],
    [gain, shift]: [&Tensor; 2],
) -> [Tensor; 3] {
    // SAFETY: as for `tensors`.
    made(|gradients| unsafe {
        ft_layer_norm_backward(
            gradients,
            dy.as_ptr(),
            x.as_ptr(),
            mean.as_ptr(),
            reciprocal_deviation.as_ptr(),
            gain.as_ptr(),
            shift.as_ptr(),
        )
    })
}

/// Attention on a GPU, over earlier rows alone where it is `causal`, `[B, H, T, C]` each, by the flash kernels or by the
/// memory-efficient ones: the output, the log-sum-exp as those kernels keep it, and two tensors that only the backward pass reads.
/// A share of the weights is `dropped`, where anything is, by the device's generator from this seed on.
pub(crate) fn attention(
    [q, k, v]: [&Tensor; 3],
    causal: bool,
    dropped: Option<(f64, u64)>,
    flash: bool,
) -> Result<[Tensor; 4], String> {
    let (rate, seed) = dropped.unwrap_or_default();
    // SAFETY: as for `tensors`.
    tensors(|results| unsafe { ft_attention(results, q.as_ptr(), k.as_ptr(), v.as_ptr(), causal, rate, seed, flash) })
}

/// Gradients of queries, keys and values; `kept` is the result of [`attention`], with the same share dropped.
pub(crate) fn attention_backward(
    doutput: &Tensor,
    [q, k, v]: [&Tensor; 3],
    kept: [&Tensor; 4],
    causal: bool,
    rate: f64,
    flash: bool,
) -> [Tensor; 3] {
    let kept = kept.map(Tensor::as_ptr);
    // SAFETY: as for `tensors`; `kept` has the four pointers that are read.
    made(|gradients| unsafe {
        ft_attention_backward(gradients, doutput.as_ptr(), q.as_ptr(), k.as_ptr(), v.as_ptr(), kept.as_ptr(), causal, rate, flash)
    })
}

/// One AdamW update of one tensor in a single pass; `numbers` are learning rate, β₁, β₂, weight decay and ε, `step` counts from 1.
pub(crate) fn fused_adamw(
    parameter: &mut Tensor,
    gradient: &Tensor,
    [first, second]: [&mut Tensor; 2],
    step: u64,
    numbers: [f64; 5],
) {
    let step = Tensor::full([1_i64; 0], step as f64, (tch::Kind::Float, parameter.device()));
    // SAFETY: as for `tensors`; `numbers` has the five that are read.
    done(unsafe {
        ft_fused_adamw(parameter.as_ptr(), gradient.as_ptr(), first.as_ptr(), second.as_ptr(), step.as_ptr(), numbers.as_ptr())
    });
}

/// Copies a device's tensor to locked main memory while the device goes on computing: its reader there calls [`await_home`] first.
pub(crate) fn send_home(home: &Tensor, tensor: &Tensor) {
    // SAFETY: as for `tensors`.
    done(unsafe { ft_send_home(home.as_ptr(), tensor.as_ptr()) });
}

/// Waits until all is there that was sent from `device`. The CPU's own tensors are there already.
pub(crate) fn await_home(device: Device) {
    if let Device::Cuda(index) = device {
        // SAFETY: takes no pointer.
        done(unsafe { ft_await_home(index as c_int) });
    }
}

/// Copies a tensor in locked main memory to `place`, on a device, when that has done what it was asked until now, and while it does
/// what it is asked next: a caller that lets it read the copy calls [`await_arrival`] first.
pub(crate) fn send_out(place: &Tensor, tensor: &Tensor) {
    // SAFETY: as for `tensors`.
    done(unsafe { ft_send_out(place.as_ptr(), tensor.as_ptr()) });
}

/// Lets `device`, not the caller, wait until all is there that was sent out to it.
pub(crate) fn await_arrival(device: Device) {
    if let Device::Cuda(index) = device {
        // SAFETY: takes no pointer.
        done(unsafe { ft_await_arrival(index as c_int) });
    }
}

/// Lets large tensors in main memory lie where `cpu/arena.rs` puts them, from now on.
#[cfg(target_os = "linux")]
pub(crate) fn use_arena() {
    // SAFETY: takes no pointer; memory allocated before is freed as it was.
    unsafe { ft_use_arena() };
}

/// Sets the precision of products on a GPU: whether `f32` may be rounded to TF32, and whether every kernel has to give the same
/// bits each time.
pub(crate) fn set_precision(tf32: bool, deterministic: bool) {
    // SAFETY: takes no pointer.
    done(unsafe { ft_set_precision(tf32, deterministic) });
}

/// Most memory of a GPU that this process's tensors took at once, in bytes.
///
/// # Panics
/// Where no GPU has been initialised.
pub(crate) fn peak_memory(device: usize) -> u64 {
    let mut bytes = 0;
    // SAFETY: one number is written.
    done(unsafe { ft_peak_memory(&raw mut bytes, device as c_int) });
    bytes
}

/// Memory of a GPU that no process has taken, in bytes.
///
/// # Panics
/// Those of [`peak_memory`].
pub(crate) fn free_memory(device: usize) -> u64 {
    let mut bytes = 0;
    // SAFETY: one number is written.
    done(unsafe { ft_free_memory(&raw mut bytes, device as c_int) });
    bytes
}

/// The tensors that `work` makes. Every pointer that it hands on comes from a [`Tensor`] that lives until it returns; libtorch
/// reads them and keeps none.
fn tensors<const N: usize>(work: impl FnOnce(*mut *mut C_tensor) -> Error) -> Result<[Tensor; N], String> {
    let mut made = [null_mut(); N];
    failed(work(made.as_mut_ptr()))?;
    // SAFETY: the shim has made all of them, each of its own, or none and failed.
    Ok(made.map(|tensor| unsafe { Tensor::from_ptr(tensor) }))
}

fn made<const N: usize>(work: impl FnOnce(*mut *mut C_tensor) -> Error) -> [Tensor; N] {
    tensors(work).unwrap_or_else(|error| panic!("{error}"))
}

/// Panics as tch does: an error of libtorch in the middle of a step is a mistake of this program, or missing memory.
fn done(error: Error) {
    failed(error).unwrap_or_else(|error| panic!("{error}"));
}

fn failed(error: Error) -> Result<(), String> {
    if error.is_null() {
        return Ok(());
    }
    // SAFETY: the shim's errors end with a zero and were made by `strdup`.
    Err(unsafe { text(error) })
}

/// Takes a text over that ends with a zero and was made by `strdup`.
unsafe fn text(made: *mut c_char) -> String {
    // SAFETY: the caller has said so, and gives it away.
    unsafe {
        let text = CStr::from_ptr(made).to_string_lossy().into_owned();
        libc::free(made.cast());
        text
    }
}
