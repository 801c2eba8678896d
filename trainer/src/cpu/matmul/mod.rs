//! Matrix products of `f32`, and through it of 16-bit numbers, in main memory, in place: into any rows and columns of a buffer that
//! exists already, on top of what is there or instead of it. libtorch's own products allocate their results, and add to a buffer
//! only in a second pass. Where the processor has tiles, large ones are theirs ([`amx`]); with AVX-512 or AVX2 most others are
//! `packed_f32`'s, with AVX512-BF16 those of bf16 numbers `avx512_bf16`'s, and the rest are the crate `gemm`'s.

pub mod amx;
#[cfg(target_arch = "x86_64")]
mod avx512_bf16;
#[cfg(target_arch = "x86_64")]
mod packed_f32;
pub mod skinny;
#[cfg(target_arch = "x86_64")]
mod skinny_kernels;

use gemm_common::Parallelism;

use super::engine;
use super::parallel::{self, threads};
use super::simd::{Bf16, Element, F16, add, load, store};
use super::vectorise::vectorised;

/// A matrix inside a slice: element `(i, j)` lies at `i · steps[0] + j · steps[1]`.
#[derive(Clone, Copy)]
pub(crate) struct Matrix<'a, E = f32> {
    pub values: &'a [E],
    pub size: [usize; 2],
    pub steps: [usize; 2],
}

impl<'a, E: Copy> Matrix<'a, E> {
    /// `size` rows and columns, the rows `pitch` elements apart.
    pub fn new(values: &'a [E], size: [usize; 2], pitch: usize) -> Self {
        assert!(fits(values.len(), size, pitch), "{size:?} rows and columns at {pitch} do not fit {} elements", values.len());
        Self { values, size, steps: [pitch, 1] }
    }

    #[cfg(test)]
    pub fn at(&self, row: usize, column: usize) -> E {
        self.values[row * self.steps[0] + column * self.steps[1]]
    }

    /// `size` rows and columns from row and column `first` on.
    pub fn part(self, first: [usize; 2], size: [usize; 2]) -> Self {
        let from = first[0] * self.steps[0] + first[1] * self.steps[1];
        Self { values: &self.values[from..], size, ..self }
    }

    /// The transposed matrix, in the same memory.
    pub fn t(self) -> Self {
        let flip = |[rows, columns]: [usize; 2]| [columns, rows];
        Self { size: flip(self.size), steps: flip(self.steps), ..self }
    }
}

impl<E: Element> Matrix<'_, E> {
    /// A copy in `f32`.
    fn widened(self, copy: &mut Vec<f32>) -> Matrix<'_> {
        if self.steps[1] != 1 {
            return self.t().widened(copy).t();
        }
        let columns = self.size[1];
        copy.resize(self.size[0] * columns, 0.0);
        parallel::for_each_chunk(copy, columns, |first, row| load(&self.values[first / columns * self.steps[0]..][..columns], row));
        Matrix::new(copy, self.size, columns)
    }
}

pub(crate) fn fits(length: usize, [rows, columns]: [usize; 2], pitch: usize) -> bool {
    rows == 0 || (rows == 1 || columns <= pitch) && (rows - 1) * pitch + columns <= length
}

/// Whether a product replaces what the result held or is added to it.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Write {
    Over,
    Onto,
}

/// Which threads work on a product: all, or only the one that asks, which is one of several at work already.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Workers {
    All,
    Caller,
}

/// Terms of an element that are summed in a register before they meet what is in memory. A sum's error grows with the root of what
/// follows each other: with the 512 and more that the kernels would take, logits at width 1,024 were 1.02e-6 from float64, now
/// 8.4e-7.
pub(crate) const DEPTH: usize = 256;

/// Rows of a product at a time: of [`DEPTH`] terms of these the kernels make a copy, which of all rows of an embedding's gradient
/// is as large as the processor's last cache.
const STRIP: usize = 4096;

/// Rows, columns and terms from which on a product fills tiles.
const TILED: usize = 16;

/// `left [M, K] · right [K, N]` into the upper left `[M, N]` of `result`, whose rows are `pitch` elements apart. Each element is
/// summed in the same order whatever the number of threads. [`Workers::Caller`] has small matrices, for which tiles do not pay.
pub(crate) fn multiply(left: Matrix<'_>, right: Matrix<'_>, result: &mut [f32], pitch: usize, write: Write, workers: Workers) {
    let ([rows, depth], [_, columns]) = (left.size, right.size);
    if workers == Workers::All && rows.min(columns).min(depth) >= TILED && amx::is_available() {
        amx::multiply(left, right, result, pitch, write);
    } else {
        multiply_plainly(left, right, result, pitch, write, workers);
    }
}

/// The same with the processor's products of `f32`.
pub(crate) fn multiply_plainly(
    left: Matrix<'_>,
    right: Matrix<'_>,
    result: &mut [f32],
    pitch: usize,
    write: Write,
    workers: Workers,
) {
    let ([rows, depth], [right_rows, columns]) = (left.size, right.size);
    assert!(depth == right_rows && fits(result.len(), [rows, columns], pitch), "a product of {:?} and {:?}", left.size, right.size);
    #[cfg(target_arch = "x86_64")]
    if packed_f32::multiply(left, right, result, pitch, write, workers) {
        return;
    }
    let threads = if workers == Workers::All { threads() } else { 1 };
    let parallelism = if threads > 1 { Parallelism::Rayon(threads) } else { Parallelism::None };
    let [left_steps, right_steps] = [left.steps, right.steps].map(|steps| steps.map(|step| step as isize));
    // It likes its result by columns, and so makes the transpose of ours of the transposes of the factors.
    let multiply = gemm_f32::gemm::f32::get_gemm_fn();
    for (row, from) in (0..rows).step_by(STRIP).flat_map(|row| (0..depth.max(1)).step_by(DEPTH).map(move |from| (row, from))) {
        let onto = from > 0 || write == Write::Onto;
        // SAFETY: the three matrices lie inside their slices: `Matrix::new` and the assertion above saw to it.
        unsafe {
            multiply(
                columns,
                STRIP.min(rows - row),
                DEPTH.min(depth - from),
                result.as_mut_ptr().wrapping_add(row * pitch),
                pitch as isize,
                1,
                onto,
                right.values.as_ptr().wrapping_add(from * right.steps[0]),
                right_steps[0],
                right_steps[1],
                left.values.as_ptr().wrapping_add(row * left.steps[0] + from * left.steps[1]),
                left_steps[0],
                left_steps[1],
                if onto { 1.0 } else { 0.0 },
                1.0,
                false,
                false,
                false,
                parallelism,
            );
        }
    }
}

/// Rows, columns and terms of which [`multiply_widened`] holds sums or copies at once: three of them fit into a shared cache.
const WIDENED: usize = 1024;

/// The same for numbers of 16 bits that the processor does not multiply itself, into `f32`.
fn multiply_widened_to_f32<I: Element>(left: Matrix<'_, I>, right: Matrix<'_, I>, result: &mut [f32], pitch: usize, write: Write) {
    #[cfg(target_arch = "x86_64")]
    if packed_f32::multiply(left, right, result, pitch, write, Workers::All) {
        return;
    }
    multiply_widened(left, right, result, pitch, write);
}

/// The same a piece at a time, each element of which is rounded once.
fn multiply_widened<I: Element, E: Element>(
    left: Matrix<'_, I>,
    right: Matrix<'_, I>,
    result: &mut [E],
    pitch: usize,
    write: Write,
) {
    let ([rows, depth], [right_rows, columns]) = (left.size, right.size);
    assert!(depth == right_rows && fits(result.len(), [rows, columns], pitch), "a product of {:?} and {:?}", left.size, right.size);
    let (mut copies, mut sums) = (Default::default(), Vec::new());
    for ((row, rows), (column, columns)) in pieces(rows).flat_map(|row| pieces(columns).map(move |column| (row, column))) {
        sums.resize(rows * columns, 0.0);
        if depth > 0 {
            sum_widened(left.part([row, 0], [rows, depth]), right.part([0, column], [depth, columns]), &mut sums, &mut copies);
        }
        let places = sums.chunks_mut(columns).zip(result[row * pitch..].chunks_mut(pitch));
        parallel::run(places.collect(), |(sums, place): (&mut [f32], &mut [E])| {
            let place = &mut place[column..column + columns];
            if write == Write::Onto {
                add_terms(sums, place);
            }
            store(sums, place);
        });
    }
}

fn pieces(size: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..size).step_by(WIDENED).map(move |first| (first, WIDENED.min(size - first)))
}

/// One piece into `sums`, of `copies` of its factors where no kernel reads them itself.
fn sum_widened<I: Element>(left: Matrix<'_, I>, right: Matrix<'_, I>, sums: &mut [f32], copies: &mut [Vec<f32>; 2]) {
    let ([rows, depth], columns) = (left.size, right.size[1]);
    #[cfg(target_arch = "x86_64")]
    if packed_f32::multiply(left, right, sums, columns, Write::Over, Workers::All) {
        return;
    }
    sums.fill(0.0);
    let [left_copy, right_copy] = copies;
    for (k, depth) in pieces(depth) {
        let left = left.part([0, k], [rows, depth]).widened(left_copy);
        let right = right.part([k, 0], [depth, columns]).widened(right_copy);
        multiply_plainly(left, right, sums, columns, Write::Onto, Workers::All);
    }
}

vectorised! {
    fn add_terms<E: Element>(sums: &mut [f32], terms: &[E]) {
        add(sums, terms);
    }
}

/// Numbers that this crate multiplies, into numbers like them or into `f32`.
pub(crate) trait Factor: Element {
    /// Whether it does so on this processor, or libtorch does it better.
    fn is_multiplied() -> bool;
    fn multiply(left: Matrix<'_, Self>, right: Matrix<'_, Self>, result: &mut [Self], pitch: usize, write: Write);
    fn multiply_to_f32(left: Matrix<'_, Self>, right: Matrix<'_, Self>, result: &mut [f32], pitch: usize, write: Write);
}

impl Factor for f32 {
    fn is_multiplied() -> bool {
        true
    }

    fn multiply(left: Matrix<'_, Self>, right: Matrix<'_, Self>, result: &mut [Self], pitch: usize, write: Write) {
        multiply(left, right, result, pitch, write, Workers::All);
    }

    fn multiply_to_f32(left: Matrix<'_, Self>, right: Matrix<'_, Self>, result: &mut [f32], pitch: usize, write: Write) {
        multiply(left, right, result, pitch, write, Workers::All);
    }
}

impl Factor for Bf16 {
    fn is_multiplied() -> bool {
        // oneDNN's are slower than those through `f32` where the processor has neither tiles nor a fast instruction for pairs.
        cfg!(target_arch = "x86_64") || !engine::has_onednn_products(Self::KIND)
    }

    fn multiply(left: Matrix<'_, Self>, right: Matrix<'_, Self>, result: &mut [Self], pitch: usize, write: Write) {
        if !multiply_bf16(left, right, result, pitch, write) {
            multiply_widened(left, right, result, pitch, write);
        }
    }

    fn multiply_to_f32(left: Matrix<'_, Self>, right: Matrix<'_, Self>, result: &mut [f32], pitch: usize, write: Write) {
        if !multiply_bf16(left, right, result, pitch, write) {
            multiply_widened_to_f32(left, right, result, pitch, write);
        }
    }
}

impl Factor for F16 {
    fn is_multiplied() -> bool {
        !engine::has_onednn_products(Self::KIND)
    }

    fn multiply(left: Matrix<'_, Self>, right: Matrix<'_, Self>, result: &mut [Self], pitch: usize, write: Write) {
        multiply_widened(left, right, result, pitch, write);
    }

    fn multiply_to_f32(left: Matrix<'_, Self>, right: Matrix<'_, Self>, result: &mut [f32], pitch: usize, write: Write) {
        multiply_widened_to_f32(left, right, result, pitch, write);
    }
}

/// With the processor's tiles or pairs of bf16 numbers. False: it has neither, and nothing was done.
fn multiply_bf16<E: Element>(
    left: Matrix<'_, Bf16>,
    right: Matrix<'_, Bf16>,
    result: &mut [E],
    pitch: usize,
    write: Write,
) -> bool {
    if amx::is_available() {
        amx::multiply(left, right, result, pitch, write);
        return true;
    }
    if are_pairs_multiplied() {
        multiply_pairs(left, right, result, pitch, write, Workers::All);
        return true;
    }
    false
}

/// Whether [`multiply_pairs`] serves on this processor.
pub(crate) fn are_pairs_multiplied() -> bool {
    #[cfg(target_arch = "x86_64")]
    return avx512_bf16::is_available();
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// [`multiply`] for bf16 numbers where [`are_pairs_multiplied`].
pub(crate) fn multiply_pairs<E: Element>(
    left: Matrix<'_, Bf16>,
    right: Matrix<'_, Bf16>,
    result: &mut [E],
    pitch: usize,
    write: Write,
    workers: Workers,
) {
    #[cfg(target_arch = "x86_64")]
    avx512_bf16::multiply(left, right, result, pitch, write, workers);
    #[cfg(not(target_arch = "x86_64"))]
    unreachable!("{:?} {:?} {} {pitch} {}", left.size, right.size, result.len(), write == Write::Onto && workers == Workers::All);
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// `size` rows and columns with gaps between them.
    fn laid_out<E: Copy>(numbers: &[E], turned: bool, [rows, columns]: [usize; 2]) -> Matrix<'_, E> {
        if turned {
            Matrix::new(numbers, [columns, rows], rows + 3).t()
        } else {
            Matrix::new(numbers, [rows, columns], columns + 3)
        }
    }

    /// Pieces that are whole and that are not, along each dimension.
    fn widened_equals_the_definition<I: Element, E: Element>() {
        for size in [[3, 5, 7], [1030, 5, 3], [2, 1030, 4], [1030, 2, 1030], [1, 0, 2]] {
            equals_the_definition::<I, E>(size, multiply_widened);
        }
    }

    /// Holds `product` to the definition in every layout; whole numbers, so that every sum is exact.
    #[expect(clippy::float_cmp, reason = "these values are exact")]
    pub fn equals_the_definition<I: Element, E: Element>(
        [rows, depth, columns]: [usize; 3],
        product: impl Fn(Matrix<'_, I>, Matrix<'_, I>, &mut [E], usize, Write),
    ) {
        let count = (depth + 3) * (rows.max(columns) + 3) + rows * (columns + 3);
        let numbers: Vec<I> = (0..count).map(|n| I::put((n * 37 % 13) as f32 - 6.0)).collect();
        for (left_turned, right_turned, write) in
            [(false, true, Write::Over), (true, false, Write::Onto), (false, false, Write::Onto), (true, true, Write::Over)]
        {
            let (left, right) =
                (laid_out(&numbers, left_turned, [rows, depth]), laid_out(&numbers, right_turned, [depth, columns]));
            let mut result = vec![E::put(2.0); rows * (columns + 2)];
            product(left, right, &mut result, columns + 2, write);
            for (place, found) in result.iter().enumerate() {
                let (row, column) = (place / (columns + 2), place % (columns + 2));
                let before = if write == Write::Onto || column >= columns { 2.0 } else { 0.0 };
                let terms = if column < columns { 0..depth } else { 0..0 };
                let sum: f32 = terms.map(|k| left.at(row, k).get() * right.at(k, column).get()).sum();
                assert_eq!(
                    found.get(),
                    E::put(before + sum).get(),
                    "[{rows}, {depth}, {columns}] {row} {column}, {} threads",
                    threads()
                );
            }
        }
    }

    /// A strip and one row or some rows more.
    #[test]
    fn rows_beyond_a_strip_are_multiplied_as_those_before() {
        for size in [[4097, 260, 3], [4100, 260, 1], [4097, 1, 1], [4100, 0, 3], [8193, 5, 17]] {
            equals_the_definition::<f32, f32>(size, |left, right, result, pitch, write| {
                multiply_plainly(left, right, result, pitch, write, Workers::All);
            });
        }
    }

    #[test]
    fn numbers_of_16_bits_are_multiplied_through_f32() {
        widened_equals_the_definition::<Bf16, Bf16>();
        widened_equals_the_definition::<Bf16, f32>();
        widened_equals_the_definition::<F16, F16>();
        widened_equals_the_definition::<F16, f32>();
        for size in [[3, 5, 7], [40, 300, 70], [2, 0, 3]] {
            equals_the_definition::<Bf16, f32>(size, multiply_widened_to_f32);
            equals_the_definition::<F16, f32>(size, multiply_widened_to_f32);
        }
    }

    /// Every way that the products of this crate are laid out, with sizes on both sides of what the kernels handle at once.
    #[test]
    fn equals_the_definition_in_every_layout() {
        const SIZES: [usize; 8] = [1, 2, 3, 5, 16, 17, 65, 260];
        let numbers: Vec<f32> = (0..263 * 263).map(|n| ((n * 37 % 101) as f32 - 50.0) / 16.0).collect();
        for (rows, depth, columns) in
            SIZES.iter().flat_map(|m| SIZES.iter().flat_map(move |k| SIZES.iter().map(move |n| (*m, *k, *n))))
        {
            for (left_turned, right_turned, write) in
                [(false, false, Write::Onto), (false, true, Write::Over), (true, false, Write::Onto), (true, true, Write::Over)]
            {
                let (left, right) =
                    (laid_out(&numbers, left_turned, [rows, depth]), laid_out(&numbers, right_turned, [depth, columns]));
                let mut result = vec![1.0; rows * (columns + 2)];
                multiply(left, right, &mut result, columns + 2, write, Workers::Caller);
                let before = if write == Write::Onto { 1.0 } else { 0.0 };
                for (row, found) in result.chunks(columns + 2).enumerate() {
                    for (column, found) in found.iter().enumerate() {
                        let terms = (0..depth).map(|k| f64::from(left.at(row, k)) * f64::from(right.at(k, column)));
                        let expected = if column < columns { before + terms.sum::<f64>() } else { 1.0 };
                        let what = format!(
                            "[{rows}, {depth}] · [{depth}, {columns}], {left_turned} {right_turned}, element {row} {column}"
                        );
                        assert!((f64::from(*found) - expected).abs() < 1e-3, "{what}: {found}, not {expected}");
                    }
                }
            }
        }
    }
}
