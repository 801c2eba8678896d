//! The elements, sums and exponentials that vectorised kernels ([`super::vectorise`]) are made of. Sums are kept in a fixed number
//! of lanes, so that their bits do not depend on which registers there were.

#![expect(clippy::inline_always, reason = "what a kernel calls is compiled for its registers only when it is inlined into it")]

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};

use tch::Kind;

use super::vectorise::vectorised;

/// Running sums kept side by side, as many as fill the widest vector register.
pub(crate) const LANES: usize = 16;

/// Asks memory for the data at `place` that is soon read; `place` may be anywhere.
#[inline(always)]
pub(crate) fn ask_for(place: *const f32) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: nothing is read from the address.
    unsafe {
        _mm_prefetch::<_MM_HINT_T0>(place.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = place;
}

/// How a number is stored; arithmetic is always in `f32`.
pub(crate) trait Element: Copy + Send + Sync + Default {
    const KIND: Kind;
    fn get(self) -> f32;
    fn put(value: f32) -> Self;
}

/// Chooses by dtype: `$own`, with the elements of `$kind` as the type `$E`, where this crate computes with those and `$when` holds
/// of them; else `$other`.
macro_rules! by_dtype {
    ($kind:expr, $E:ident if $when:expr => $own:expr, _ => $other:expr) => {{
        use $crate::cpu::simd::{Bf16, F16};
        match $kind {
            tch::Kind::Float if $crate::cpu::simd::by_dtype!($E = f32, $when) => $crate::cpu::simd::by_dtype!($E = f32, $own),
            tch::Kind::BFloat16 if $crate::cpu::simd::by_dtype!($E = Bf16, $when) => $crate::cpu::simd::by_dtype!($E = Bf16, $own),
            tch::Kind::Half if $crate::cpu::simd::by_dtype!($E = F16, $when) => $crate::cpu::simd::by_dtype!($E = F16, $own),
            _ => $other,
        }
    }};
    ($E:ident = $element:ident, $value:expr) => {{
        #[allow(dead_code, reason = "a condition may be the same for all elements")]
        type $E = $element;
        $value
    }};
}

pub(crate) use by_dtype;

impl Element for f32 {
    const KIND: Kind = Kind::Float;

    #[inline(always)]
    fn get(self) -> f32 {
        self
    }

    #[inline(always)]
    fn put(value: f32) -> Self {
        value
    }
}

/// The upper half of an `f32`.
#[derive(Clone, Copy, Default)]
#[repr(transparent)]
pub(crate) struct Bf16(u16);

impl Element for Bf16 {
    const KIND: Kind = Kind::BFloat16;

    #[inline(always)]
    fn get(self) -> f32 {
        f32::from_bits(u32::from(self.0) << 16)
    }

    /// Rounds to the nearest, halves to the even one. A NaN whose mark lies in the lower half is kept a NaN.
    #[inline(always)]
    fn put(value: f32) -> Self {
        let bits = value.to_bits();
        let rounded = bits.wrapping_add(0x7FFF + ((bits >> 16) & 1)) >> 16;
        Self(if value.is_nan() { 0x7FC0 } else { rounded as u16 })
    }
}

/// IEEE's `binary16`: 5 bits of exponent, 10 of mantissa.
#[derive(Clone, Copy, Default)]
#[repr(transparent)]
pub(crate) struct F16(u16);

impl Element for F16 {
    const KIND: Kind = Kind::Half;

    /// The exponent's bits in the place of an `f32`'s stand for a number 2¹¹² times smaller; the product is exact, also below 2⁻¹⁴.
    #[inline(always)]
    fn get(self) -> f32 {
        const SCALE: f32 = f32::from_bits((127 + 112) << 23);
        let magnitude = f32::from_bits(u32::from(self.0 & 0x7FFF) << 13) * SCALE;
        let special = if magnitude >= 65536.0 { 0x7F80_0000 } else { 0 };
        f32::from_bits(magnitude.to_bits() | special | u32::from(self.0 & 0x8000) << 16)
    }

    /// Rounds to the nearest, halves to the even one; a number that is too large becomes infinite.
    #[inline(always)]
    fn put(value: f32) -> Self {
        const INFINITY: u32 = 0x7C00;
        let magnitude = value.abs();
        let bits = magnitude.to_bits();
        let normal = bits.wrapping_sub(112 << 23).wrapping_add(0xFFF + ((bits >> 13) & 1)) >> 13;
        let subnormal = (magnitude + 0.5).to_bits().wrapping_sub(0.5_f32.to_bits()); // steps of 2⁻²⁴, rounded by the sum
        let rounded = if magnitude < f32::from_bits((127 - 14) << 23) { subnormal } else { normal };
        let rounded = if magnitude >= 65520.0 { INFINITY } else { rounded };
        let rounded = if value.is_nan() { INFINITY | 0x200 } else { rounded };
        Self((rounded | (value.to_bits() >> 31) << 15) as u16)
    }
}

/// Whole numbers, to the nearest, halves to the even one; a number that is too large becomes the largest.
macro_rules! whole_numbers {
    ($($number:ty as $kind:ident),*) => { $(
        impl Element for $number {
            const KIND: Kind = Kind::$kind;

            #[inline(always)]
            fn get(self) -> f32 {
                self.into()
            }

            #[inline(always)]
            fn put(value: f32) -> Self {
                value.round_ties_even() as Self
            }
        }
    )* };
}

whole_numbers!(i8 as Int8, i16 as Int16);

/// `eˣ` to about one unit in the last place, after the polynomial of Cephes' `expf` (Moshier 1989). Below −87 it stays at the
/// smallest normal number.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    const ROUND: f32 = 12_582_912.0; // 1.5 · 2²³: what is added to it is rounded to a whole number
    let x = x.clamp(-87.3, 88.3);
    let shifted = x * std::f32::consts::LOG2_E + ROUND;
    let power = shifted - ROUND;
    let rest = (x - power * 0.693_359_4) + power * 2.121_944_4e-4; // ln 2 in two parts, the first exact in few bits
    let series = 1.987_569_1e-4;
    let series = series * rest + 1.398_199_9e-3;
    let series = series * rest + 8.333_452e-3;
    let series = series * rest + 4.166_579_6e-2;
    let series = series * rest + 1.666_666_5e-1;
    let series = series * rest + 0.5;
    let mantissa = series * (rest * rest) + rest + 1.0;
    let exponent = shifted.to_bits().wrapping_sub(ROUND.to_bits()).wrapping_add(127) << 23;
    mantissa * f32::from_bits(exponent)
}

vectorised! {
    pub(crate) fn load<E: Element>(values: &[E], place: &mut [f32]) {
        for (value, place) in values.iter().zip(place) {
            *place = value.get();
        }
    }
}

vectorised! {
    pub(crate) fn store<E: Element>(values: &[f32], place: &mut [E]) {
        for (value, place) in values.iter().zip(place) {
            *place = E::put(*value);
        }
    }
}

vectorised! {
    pub(crate) fn add_all<E: Element>(terms: &[E], sum: &mut [f32]) {
        add(sum, terms);
    }
}

#[inline(always)]
pub(crate) fn add<E: Element>(sum: &mut [f32], terms: &[E]) {
    for (sum, term) in sum.iter_mut().zip(terms) {
        *sum += term.get();
    }
}

/// `Σ f(xᵢ)` in lanes.
#[inline(always)]
pub(crate) fn sum_of<E: Element>(values: &[E], f: impl Fn(f32) -> f32) -> f32 {
    let (full, rest) = values.as_chunks::<LANES>();
    let mut lanes = [0.0; LANES];
    for chunk in full {
        for (lane, value) in lanes.iter_mut().zip(chunk) {
            *lane += f(value.get());
        }
    }
    lanes.iter().sum::<f32>() + rest.iter().map(|value| f(value.get())).sum::<f32>()
}

#[inline(always)]
pub(crate) fn dot<E: Element>(left: &[E], right: &[E]) -> f32 {
    let ((left, left_rest), (right, right_rest)) = (left.as_chunks::<LANES>(), right.as_chunks::<LANES>());
    let mut lanes = [0.0; LANES];
    for (left, right) in left.iter().zip(right) {
        for ((lane, left), right) in lanes.iter_mut().zip(left).zip(right) {
            *lane += left.get() * right.get();
        }
    }
    lanes.iter().sum::<f32>() + left_rest.iter().zip(right_rest).map(|(left, right)| left.get() * right.get()).sum::<f32>()
}

/// The largest value, NaN when there is one.
#[inline(always)]
pub(crate) fn largest<E: Element>(values: &[E]) -> f32 {
    let greater = |left: f32, right: f32| if left >= right || left.is_nan() { left } else { right };
    let (full, rest) = values.as_chunks::<LANES>();
    let mut lanes = [f32::NEG_INFINITY; LANES];
    for chunk in full {
        for (lane, value) in lanes.iter_mut().zip(chunk) {
            *lane = greater(*lane, value.get());
        }
    }
    lanes.into_iter().chain(rest.iter().map(|value| value.get())).fold(f32::NEG_INFINITY, greater)
}

#[cfg(test)]
#[expect(clippy::float_cmp, reason = "these values are exact")]
mod tests {
    use super::*;

    #[test]
    fn exponential_is_exact_to_two_units_in_the_last_place() {
        for step in -87_000..=88_000 {
            let x = step as f32 * 1e-3;
            let expected = f64::from(x).exp();
            let error = (f64::from(exp(x)) / expected - 1.0).abs();
            assert!(error < 2.4e-7, "exp({x}): relative error {error:.1e}");
        }
        assert_eq!(exp(0.0), 1.0);
        assert!(exp(f32::NAN).is_nan());
        assert!(exp(-1e9) < 1e-37);
    }

    #[test]
    fn bf16_rounds_to_the_nearest_even() {
        let rounded = |value: f32| Bf16::put(value).get();
        assert_eq!(rounded(1.0 + 1.0 / 256.0), 1.0);
        assert_eq!(rounded(1.0 + 3.0 / 256.0), 1.0 + 4.0 / 256.0);
        assert_eq!(rounded(1.0 + 1.1 / 256.0), 1.0 + 2.0 / 256.0);
        assert_eq!(rounded(-f32::MAX), f32::NEG_INFINITY);
        assert!(rounded(f32::from_bits(0x7F80_0001)).is_nan());
    }

    #[test]
    fn f16_is_what_libtorch_makes_of_it() {
        let every = (0..=u16::MAX).map(|bits| F16(bits).get()).collect::<Vec<_>>();
        for (bits, value) in (0..=u16::MAX).zip(&every) {
            assert!(value.is_nan() || F16::put(*value).0 == bits, "{bits:#x} is {value}");
        }
        let between = every.iter().flat_map(|value| [-8, -4, -1, 0, 1, 4, 8].map(|part| value * (1.0 + part as f32 / 16384.0)));
        let mut values: Vec<f32> = between.chain([65519.9, 65520.0, 1e30, f32::MIN_POSITIVE, 3e-8, 2.9e-8]).collect();
        values.extend((0..4096).map(|n| n as f32 * 7.450_581e-9)); // eighths of the smallest step
        let theirs: Vec<f32> = tch::Tensor::from_slice(&values).to_kind(Kind::Half).to_kind(Kind::Float).try_into().unwrap();
        for (value, theirs) in values.iter().zip(theirs) {
            let ours = F16::put(*value).get();
            assert!(
                ours.to_bits() == theirs.to_bits() || ours.is_nan() && theirs.is_nan(),
                "{value:e}: {ours:e}, libtorch {theirs:e}"
            );
        }
    }

    #[test]
    fn reductions_see_every_element_once() {
        let values: Vec<f32> = (0..37).map(|n| n as f32).collect();
        assert_eq!(sum_of(&values, |value| value), 666.0);
        assert_eq!(dot(&values, &values), values.iter().map(|value| value * value).sum::<f32>());
        assert_eq!(largest(&values), 36.0);
        assert!(largest(&[0.0, f32::NAN, 1.0]).is_nan());
    }
}
