//! GELU in its tanh form (Hendrycks & Gimpel 2016), forward and backward.
//!
//! `x/2 · (1 + tanh u)` with `u = √(2/π) · (x + 0.044715 x³)` is `x · σ(2u)`, which loses nothing where tanh is near −1.

use tch::{Device, Kind, Tensor};

use super::parameters::{elements, elements_mut, holds};
use crate::parallel;
use crate::simd::{Bf16, Element, exp};
use crate::vectorise::vectorised;

const APPROXIMATION: &str = "tanh";
/// Elements one thread works on at a time.
const CHUNK: usize = 1 << 14;
/// `2 · √(2/π)`.
const SLOPE: f32 = 1.595_769;
const CUBIC: f32 = 0.044_715;

pub(super) fn forward(x: &Tensor) -> Tensor {
    match x.kind() {
        Kind::Float if holds::<f32>(x) => forward_plain::<f32>(x),
        Kind::BFloat16 if holds::<Bf16>(x) => forward_plain::<Bf16>(x),
        _ => x.gelu(APPROXIMATION),
    }
}

/// `x` as given to [`forward`]; turns `dy` into the gradient of `x`.
pub(super) fn backward(x: &Tensor, mut dy: Tensor) -> Tensor {
    match x.kind() {
        Kind::Float if x.device() == Device::Cpu => backward_plain::<f32>(x, &mut dy),
        Kind::BFloat16 if x.device() == Device::Cpu => backward_plain::<Bf16>(x, &mut dy),
        _ => return x.gelu_backward(&dy, APPROXIMATION),
    }
    dy
}

fn forward_plain<E: Element>(x: &Tensor) -> Tensor {
    let mut y = x.empty_like();
    let work = elements::<E>(x).chunks(CHUNK).zip(elements_mut::<E>(&mut y).chunks_mut(CHUNK));
    parallel::run(work.collect(), |(x, y)| forward_slice(x, y));
    y
}

fn backward_plain<E: Element>(x: &Tensor, dy: &mut Tensor) {
    let work = elements::<E>(x).chunks(CHUNK).zip(elements_mut::<E>(dy).chunks_mut(CHUNK));
    parallel::run(work.collect(), |(x, dy)| backward_slice(x, dy));
}

vectorised! {
    fn forward_slice<E: Element>(x: &[E], y: &mut [E]) {
        for (x, y) in x.iter().zip(y) {
            let x = x.get();
            *y = E::put(x * sigmoid(SLOPE * (x + CUBIC * x * x * x)));
        }
    }
}

vectorised! {
    fn backward_slice<E: Element>(x: &[E], dy: &mut [E]) {
        for (x, dy) in x.iter().zip(dy) {
            let x = x.get();
            let share = sigmoid(SLOPE * (x + CUBIC * x * x * x));
            let slope = SLOPE * (1.0 + 3.0 * CUBIC * x * x);
            *dy = E::put(dy.get() * (share + x * share * (1.0 - share) * slope));
        }
    }
}

#[expect(clippy::inline_always, reason = "vectorised with its callers")]
#[inline(always)]
fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}
