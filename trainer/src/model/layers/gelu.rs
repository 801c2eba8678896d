//! GELU (Hendrycks & Gimpel 2016), forward and backward: `x · Φ(x)`, with Φ of the normal distribution by its error function, or
//! nearly so.
//!
//! The tanh form, `x/2 · (1 + tanh u)` with `u = √(2/π) · (x + 0.044715 x³)`, is `x · σ(2u)`, which loses nothing where tanh is
//! near −1.

use tch::Tensor;

use crate::cpu::parallel;
use crate::cpu::simd::{Element, by_dtype, exp};
use crate::cpu::slices::{elements, elements_mut, holds};
use crate::cpu::vectorise::vectorised;

/// Which of the two forms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Gelu {
    /// GPT-2's.
    Tanh,
    /// fairseq's.
    Exact,
}

impl Gelu {
    /// Writes the function of each element of `x` to `y`.
    pub(crate) fn apply<E: Element>(self, x: &[E], y: &mut [E]) {
        match self {
            Self::Tanh => forward_slice(x, y),
            Self::Exact => forward_exact(x, y),
        }
    }

    /// The approximation's name in libtorch.
    fn approximation(self) -> &'static str {
        match self {
            Self::Tanh => "tanh",
            Self::Exact => "none",
        }
    }
}

/// Elements one thread works on at a time.
const CHUNK: usize = 1 << 14;
/// `2 · √(2/π)`.
const SLOPE: f32 = 1.595_769;
const CUBIC: f32 = 0.044_715;

pub(crate) fn forward(x: &Tensor, form: Gelu) -> Tensor {
    by_dtype!(x.kind(), E if holds::<E>(x) => forward_plain::<E>(x, form), _ => x.gelu(form.approximation()))
}

/// `x` as given to [`forward`]; turns `dy` into the gradient of `x`.
pub(crate) fn backward(x: &Tensor, mut dy: Tensor, form: Gelu) -> Tensor {
    by_dtype!(
        x.kind(),
        E if holds::<E>(x) => backward_plain::<E>(x, &mut dy, form),
        _ => return x.gelu_backward(&dy, form.approximation())
    );
    dy
}

fn forward_plain<E: Element>(x: &Tensor, form: Gelu) -> Tensor {
    let mut y = x.empty_like();
    let work = elements::<E>(x).chunks(CHUNK).zip(elements_mut::<E>(&mut y).chunks_mut(CHUNK));
    parallel::run(work.collect(), |(x, y)| form.apply(x, y));
    y
}

fn backward_plain<E: Element>(x: &Tensor, dy: &mut Tensor, form: Gelu) {
    let work = elements::<E>(x).chunks(CHUNK).zip(elements_mut::<E>(dy).chunks_mut(CHUNK));
    parallel::run(work.collect(), |(x, dy)| match form {
        Gelu::Tanh => backward_slice(x, dy),
        Gelu::Exact => backward_exact(x, dy),
    });
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

vectorised! {
    fn forward_exact<E: Element>(x: &[E], y: &mut [E]) {
        for (x, y) in x.iter().zip(y) {
            let x = x.get();
            *y = E::put(x * normal_share(x));
        }
    }
}

vectorised! {
    fn backward_exact<E: Element>(x: &[E], dy: &mut [E]) {
        for (x, dy) in x.iter().zip(dy) {
            let x = x.get();
            let density = exp(-0.5 * x * x) * DENSITY_AT_ZERO;
            *dy = E::put(dy.get() * (normal_share(x) + x * density));
        }
    }
}

/// `1 / √(2π)`.
const DENSITY_AT_ZERO: f32 = 0.398_942_3;

/// Φ(x), by Chebyshev's series of the complementary error function (Press et al. 1992, "Numerical Recipes", section 6.2), whose
/// relative error is below 1.2e-7 everywhere.
#[inline(always)]
fn normal_share(x: f32) -> f32 {
    const SERIES: [f32; 9] = [
        0.170_872_77,
        -0.822_152_23,
        1.488_515_9,
        -1.135_204,
        0.278_868_07,
        -0.186_288_06,
        0.096_784_18,
        0.374_091_96,
        1.000_023_7,
    ];
    let z = x.abs() * std::f32::consts::FRAC_1_SQRT_2;
    let t = 1.0 / (1.0 + 0.5 * z);
    let series = SERIES.into_iter().fold(0.0, |sum, coefficient| sum * t + coefficient);
    let tail = 0.5 * t * exp(series * t - 1.265_512_2 - z * z);
    if x < 0.0 { tail } else { 1.0 - tail }
}

#[cfg(test)]
mod tests {
    use tch::Device;

    use tch::Kind;

    use super::*;

    #[test]
    fn both_forms_equal_libtorchs_in_double_precision() {
        let x = Tensor::linspace(-9.0, 9.0, 180_001, (Kind::Float, Device::Cpu));
        let exact = x.to_kind(Kind::Double);
        let ones = exact.ones_like();
        for (form, bar) in [(Gelu::Tanh, 3e-6), (Gelu::Exact, 6e-7)] {
            let error = (forward(&x, form) - forward(&exact, form)).abs().max().double_value(&[]);
            assert!(error < bar, "{form:?}: {error:.1e}");
            let error = (backward(&x, x.ones_like(), form) - backward(&exact, ones.copy(), form)).abs().max().double_value(&[]);
            assert!(error < bar, "{form:?}: gradient {error:.1e}");
        }
    }
}
