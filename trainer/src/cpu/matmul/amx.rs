//! Matrix products on the tile registers (AMX) of Intel's servers from Sapphire Rapids on, in place as those of
//! [`crate::cpu::matmul`]. Tiles multiply bf16 numbers and sum in `f32`. libtorch's products allocate a result that is then added
//! in a pass of its own, and pack weights in one more.
//!
//! An `f32` has 24 bits, a bf16 number 8, so that three of them add up to it: `x = x₀ + x₁ + x₂`, each at most 2⁻⁸ of the one
//! before. Of the nine products of two such numbers the three smallest are left out, which together are at most 2⁻²³·⁴ of the
//! whole; the others are exact. What is left is the rounding of sums, as in any product of `f32`. Six products on tiles take less
//! time than one without them (Henry, Tang, Heinecke: "Leveraging the bfloat16 Artificial Intelligence Datatype For
//! Higher-Precision Computations", 2019). Tiles know no subnormal numbers: below 2⁻¹⁰³ an `f32` loses its last bits, below 2⁻¹²⁶
//! all. A number that is not finite, or rounds to one that is not, becomes NaN wherever it is a term.
//!
//! One factor, the one with fewer rows or columns in the result, is packed a part at a time that stays in a core's second cache
//! ([`tiles`]); strips of the other pass by it, each packed by the thread that multiplies with it ([`packing`]), in parts that stay
//! in the first cache. While the tile unit ([`block`]) is busy with one strip, the core packs the next and brings the sums of the
//! one before to their place ([`finishing`]), some tens of instructions after every four products of tiles: it looks ahead far
//! enough to overlap that, and not much further. The order of each sum depends on the sizes alone, not on the number of threads.

use super::{Matrix, Write};
use crate::cpu::simd::Element;

#[cfg(target_arch = "x86_64")]
mod block;
#[cfg(target_arch = "x86_64")]
mod finishing;
#[cfg(target_arch = "x86_64")]
mod packing;
#[cfg(target_arch = "x86_64")]
mod tiles;

#[cfg(not(target_arch = "x86_64"))]
pub(crate) use crate::cpu::simd::Element as Split;
/// The element types that this module multiplies: numbers that are the sum of a few bf16 numbers.
#[cfg(target_arch = "x86_64")]
pub(crate) use packing::Split;

/// `left [M, K] · right [K, N]` into the upper left `[M, N]` of `result`, whose rows are `pitch` elements apart. Each element is
/// rounded once.
///
/// # Panics
/// Where [`is_available`] says no.
pub(crate) fn multiply<S: Split, E: Element>(
    left: Matrix<'_, S>,
    right: Matrix<'_, S>,
    result: &mut [E],
    pitch: usize,
    write: Write,
) {
    #[cfg(target_arch = "x86_64")]
    tiles::multiply(left, right, result, pitch, write);
    #[cfg(not(target_arch = "x86_64"))]
    unreachable!("{:?} {:?} {} {pitch} {}", left.size, right.size, result.len(), write == Write::Onto);
}

/// Whether this processor has tiles and the operating system lets the process use them.
pub(crate) fn is_available() -> bool {
    #[cfg(target_arch = "x86_64")]
    return block::is_available();
    #[cfg(not(target_arch = "x86_64"))]
    return false;
}

#[cfg(test)]
#[expect(clippy::float_cmp, reason = "these values are exact")]
mod tests {
    use super::*;
    use crate::cpu::matmul::{Workers, multiply_plainly};
    use crate::cpu::simd::Bf16;

    /// Every layout, with sizes on both sides of tiles, blocks and what is packed at once. The numbers are small and whole, so that
    /// every sum is exact; where the result is `f32` nothing is rounded.
    fn equals_the_definition_in_every_layout<S: Split>() {
        let numbers: Vec<S> = (0..5_000_000).map(|n| S::put(((n * 37 % 11) as f32 - 5.0) / 4.0)).collect();
        for [rows, depth, columns] in [
            [1, 1, 1],
            [2, 33, 3],
            [16, 32, 16],
            [17, 31, 40],
            [33, 260, 65],
            [50, 1100, 20],
            [9, 2100, 70],
            [800, 5, 790],
            [810, 1030, 5],
            [300, 130, 600],
            [800, 1030, 790],
            [4200, 1030, 3],
        ] {
            for (left_turned, right_turned, write) in
                [(false, false, Write::Onto), (false, true, Write::Over), (true, false, Write::Onto), (true, true, Write::Over)]
            {
                let matrix = |turned, [rows, columns]: [usize; 2]| {
                    let [height, width] = if turned { [columns, rows] } else { [rows, columns] };
                    let matrix = Matrix::new(&numbers[7 * width..], [height, width], width + 3);
                    if turned { matrix.t() } else { matrix }
                };
                let (left, right) = (matrix(left_turned, [rows, depth]), matrix(right_turned, [depth, columns]));
                let pitch = columns + 2;
                let [mut result, mut rounded] = [vec![1.0; rows * pitch], vec![1.0; rows * pitch]];
                multiply(left, right, &mut result, pitch, write);
                let mut halves = vec![Bf16::put(1.0); rows * pitch];
                multiply(left, right, &mut halves, pitch, write);
                rounded.iter_mut().zip(&halves).for_each(|(place, half)| *place = half.get());
                for (place, (found, rounded)) in result.iter().zip(&rounded).enumerate() {
                    let (row, column) = (place / pitch, place % pitch);
                    let terms = (0..depth).map(|k| left.at(row, k).get() * right.at(k, column).get());
                    let sum = if column < columns { terms.sum::<f32>() } else { 0.0 };
                    let expected = if column >= columns || write == Write::Onto { 1.0 + sum } else { sum };
                    let what = format!("[{rows}, {depth}] · [{depth}, {columns}], {left_turned} {right_turned}, {row} {column}");
                    assert_eq!(*found, expected, "{what}");
                    assert_eq!(*rounded, Bf16::put(expected).get(), "{what}, rounded");
                }
            }
        }
    }

    #[test]
    fn bf16_numbers_equal_the_definition_in_every_layout() {
        if is_available() {
            equals_the_definition_in_every_layout::<Bf16>();
        }
    }

    #[test]
    fn f32_numbers_equal_the_definition_in_every_layout() {
        if is_available() {
            equals_the_definition_in_every_layout::<f32>();
        }
    }

    /// The distance of each element from the same product in `f64`, as part of the sum of its terms' magnitudes: its mean square's
    /// root, and the largest.
    fn errors(left: Matrix<'_>, right: Matrix<'_>, result: &[f32]) -> [f64; 2] {
        let ([rows, depth], columns) = (left.size, right.size[1]);
        let (mut squares, mut largest) = (0.0, 0.0_f64);
        for (place, found) in result.iter().enumerate() {
            let terms = || (0..depth).map(|k| f64::from(left.at(place / columns, k)) * f64::from(right.at(k, place % columns)));
            let error = (f64::from(*found) - terms().sum::<f64>()).abs() / terms().map(f64::abs).sum::<f64>();
            squares += error * error;
            largest = largest.max(error);
        }
        [(squares / (rows * columns) as f64).sqrt(), largest]
    }

    /// Numbers of one size, numbers of sizes that differ by up to 2⁶⁰ inside a sum, and sums whose terms cancel each other.
    #[test]
    fn products_of_f32_are_about_as_near_as_the_processors_own() {
        const SIZE: [usize; 3] = [96, 768, 96];
        if !is_available() {
            return;
        }
        let [rows, depth, columns] = SIZE;
        let mut state = 7_u64;
        let mut uniform = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / (1_u64 << 23) as f32 - 1.0
        };
        let mut numbers = |range: f32| (0..rows * depth).map(|_| uniform() * (uniform() * range).exp2()).collect::<Vec<f32>>();
        let cancelling = |numbers: Vec<f32>| {
            let pairs = numbers.chunks(2).flat_map(|pair| [pair[0], -pair[0] * (1.0 + pair[1] / 1024.0)]);
            pairs.collect::<Vec<f32>>()
        };
        let same = vec![1.0; depth * columns];
        for (what, left, right) in [
            ("one size", numbers(0.0), numbers(0.0)),
            ("all sizes", numbers(30.0), numbers(30.0)),
            ("cancelling", cancelling(numbers(0.0)), same),
        ] {
            let (left, right) = (Matrix::new(&left, [rows, depth], depth), Matrix::new(&right, [columns, depth], depth).t());
            let [mut ours, mut plain] = [vec![0.0; rows * columns], vec![0.0; rows * columns]];
            multiply(left, right, &mut ours, columns, Write::Over);
            multiply_plainly(left, right, &mut plain, columns, Write::Over, Workers::All);
            let [ours, plain] = [&ours, &plain].map(|result| errors(left, right, result));
            eprintln!("{what}: {ours:?} of the sum of magnitudes, plainly {plain:?}");
            assert!(ours[0] <= 1.7 * plain[0] && ours[1] <= 1e-6, "{what}: {ours:?}, plainly {plain:?}");
        }
    }

    /// Wherever a term is not finite, so is the sum, and only there, in whichever factor and layout it is.
    #[test]
    fn what_is_not_finite_is_seen() {
        const SIDE: usize = 40;
        if !is_available() {
            return;
        }
        let not_a_number = [0x7FFF_FFFF, 0x7FC0_0000, 0xFFFF_FFFF].map(f32::from_bits);
        for number in [f32::INFINITY, f32::NEG_INFINITY].into_iter().chain(not_a_number) {
            for (turned, is_left) in [(false, false), (false, true), (true, false), (true, true)] {
                let ones = vec![1.0; SIDE * SIDE];
                let mut bad = ones.clone();
                bad[3 * SIDE + 3] = number;
                let [bad, ones] = [&bad, &ones].map(|numbers| Matrix::new(numbers, [SIDE, SIDE], SIDE));
                let bad = if turned { bad.t() } else { bad };
                let (left, right) = if is_left { (bad, ones) } else { (ones, bad) };
                let mut result = vec![0.0; SIDE * SIDE];
                multiply(left, right, &mut result, SIDE, Write::Over);
                for (place, sum) in result.iter().enumerate() {
                    let is_bad = if is_left { place / SIDE == 3 } else { place % SIDE == 3 };
                    let is_right = if is_bad { !sum.is_finite() } else { *sum == SIDE as f32 };
                    assert!(is_right, "{number} {:x}, turned: {turned}, left: {is_left}: {sum} at {place}", number.to_bits());
                }
            }
        }
    }
}
