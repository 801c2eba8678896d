//! Matrix products of `f32` in main memory, in place: into any rows and columns of a buffer that exists already, on top of what is
//! there or instead of it. libtorch's own products allocate their results, and add to a buffer only in a second pass. Where the processor has
//! tiles, large ones are theirs ([`super::amx`]).

use std::time::Instant;

use gemm::Parallelism;

use super::amx;
use crate::parallel::threads;

/// A matrix inside a slice: element `(i, j)` lies at `i · steps[0] + j · steps[1]`.
#[derive(Clone, Copy)]
pub(super) struct Matrix<'a, E = f32> {
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

    /// The transposed matrix, in the same memory.
    pub fn t(self) -> Self {
        let flip = |[rows, columns]: [usize; 2]| [columns, rows];
        Self { size: flip(self.size), steps: flip(self.steps), ..self }
    }
}

pub(super) fn fits(length: usize, [rows, columns]: [usize; 2], pitch: usize) -> bool {
    rows == 0 || (rows == 1 || columns <= pitch) && (rows - 1) * pitch + columns <= length
}

/// Whether a product replaces what the result held or is added to it.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Write {
    Over,
    Onto,
}

/// Which threads work on a product: all, or only the one that asks, which is one of several at work already.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Workers {
    All,
    Caller,
}

/// Terms of an element that are summed in a register before they meet what is in memory. A sum's error grows with the root of what
/// follows each other: with the 512 and more that the kernels would take, logits at width 1,024 were 1.02e-6 from float64, now 8.4e-7.
const DEPTH: usize = 256;

/// Rows, columns and terms from which on a product fills tiles.
const TILED: usize = 16;

/// `left [M, K] · right [K, N]` into the upper left `[M, N]` of `result`, whose rows are `pitch` elements apart. Each element is summed
/// in the same order whatever the number of threads. [`Workers::Caller`] has small matrices, for which tiles do not pay.
pub(super) fn multiply(left: Matrix<'_>, right: Matrix<'_>, result: &mut [f32], pitch: usize, write: Write, workers: Workers) {
    let ([rows, depth], [_, columns]) = (left.size, right.size);
    if workers == Workers::All && rows.min(columns).min(depth) >= TILED && amx::is_available() {
        amx::multiply(left, right, result, pitch, write);
    } else {
        multiply_plainly(left, right, result, pitch, write, workers);
    }
}

/// The same with the processor's products of `f32`.
pub(super) fn multiply_plainly(
    left: Matrix<'_>,
    right: Matrix<'_>,
    result: &mut [f32],
    pitch: usize,
    write: Write,
    workers: Workers,
) {
    let ([rows, depth], [right_rows, columns]) = (left.size, right.size);
    assert!(depth == right_rows && fits(result.len(), [rows, columns], pitch), "a product of {:?} and {:?}", left.size, right.size);
    let threads = if workers == Workers::All { threads() } else { 1 };
    let parallelism = if threads > 1 { Parallelism::Rayon(threads) } else { Parallelism::None };
    let [left_steps, right_steps] = [left.steps, right.steps].map(|steps| steps.map(|step| step as isize));
    let mut onto = write == Write::Onto;
    for from in (0..depth.max(1)).step_by(DEPTH) {
        // SAFETY: the three matrices lie inside their slices: `Matrix::new` and the assertion above saw to it.
        unsafe {
            gemm::gemm(
                rows,
                columns,
                DEPTH.min(depth - from),
                result.as_mut_ptr(),
                1,
                pitch as isize,
                onto,
                left.values.as_ptr().wrapping_add(from * left.steps[1]),
                left_steps[1],
                left_steps[0],
                right.values.as_ptr().wrapping_add(from * right.steps[0]),
                right_steps[1],
                right_steps[0],
                if onto { 1.0 } else { 0.0 },
                1.0,
                false,
                false,
                false,
                parallelism,
            );
        }
        onto = true;
    }
}

/// FLOP per second of a 768³ product, the best of 20: some milliseconds each, short enough to find a moment in which all threads run
/// even on a machine that does other things.
pub(crate) fn measured_rate() -> f64 {
    const SIZE: usize = 768;
    let (ones, mut result) = (vec![1.0; SIZE * SIZE], vec![0.0; SIZE * SIZE]);
    let operand = Matrix::new(&ones, [SIZE, SIZE], SIZE);
    let mut product = || {
        let started = Instant::now();
        multiply(operand, operand, &mut result, SIZE, Write::Over, Workers::All);
        started.elapsed().as_secs_f64()
    };
    product();
    let best = (0..20).map(|_| product()).fold(f64::INFINITY, f64::min);
    2.0 * (SIZE as f64).powi(3) / best
}

#[cfg(test)]
mod tests {
    use super::*;

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
                let matrix = |turned, [rows, columns]: [usize; 2]| {
                    if turned {
                        Matrix::new(&numbers, [columns, rows], rows + 3).t()
                    } else {
                        Matrix::new(&numbers, [rows, columns], columns + 3)
                    }
                };
                let (left, right) = (matrix(left_turned, [rows, depth]), matrix(right_turned, [depth, columns]));
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
