//! Matrix products of `f32` in main memory, in place: into any rows and columns of a buffer that exists already, on top of what is
//! there or instead of it. libtorch's own products allocate their results, and add to a buffer only in a second pass.

use std::time::Instant;

use gemm::Parallelism;

use crate::parallel::threads;

/// A matrix inside a slice: element `(i, j)` lies at `i · steps[0] + j · steps[1]`.
#[derive(Clone, Copy)]
pub(super) struct Matrix<'a> {
    values: &'a [f32],
    size: [usize; 2],
    steps: [usize; 2],
}

impl<'a> Matrix<'a> {
    /// `size` rows and columns, the rows `pitch` elements apart.
    pub fn new(values: &'a [f32], size: [usize; 2], pitch: usize) -> Self {
        assert!(fits(values.len(), size, pitch), "{size:?} rows and columns at {pitch} do not fit {} elements", values.len());
        Self { values, size, steps: [pitch, 1] }
    }

    /// The transposed matrix, in the same memory.
    pub fn t(self) -> Self {
        let flip = |[rows, columns]: [usize; 2]| [columns, rows];
        Self { size: flip(self.size), steps: flip(self.steps), ..self }
    }
}

fn fits(length: usize, [rows, columns]: [usize; 2], pitch: usize) -> bool {
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

/// `left [M, K] · right [K, N]` into the upper left `[M, N]` of `result`, whose rows are `pitch` elements apart. Each element is summed
/// in the same order whatever the number of threads.
pub(super) fn multiply(left: Matrix<'_>, right: Matrix<'_>, result: &mut [f32], pitch: usize, write: Write, workers: Workers) {
    let ([rows, depth], [right_rows, columns]) = (left.size, right.size);
    assert!(depth == right_rows && fits(result.len(), [rows, columns], pitch), "a product of {:?} and {:?}", left.size, right.size);
    let threads = if workers == Workers::All { threads() } else { 1 };
    let parallelism = if threads > 1 { Parallelism::Rayon(threads) } else { Parallelism::None };
    let add = write == Write::Onto;
    let kept = if add { 1.0 } else { 0.0 };
    let [left_steps, right_steps] = [left.steps, right.steps].map(|steps| steps.map(|step| step as isize));
    // SAFETY: the three matrices lie inside their slices: `Matrix::new` and the assertion above saw to it.
    unsafe {
        gemm::gemm(
            rows,
            columns,
            depth,
            result.as_mut_ptr(),
            1,
            pitch as isize,
            add,
            left.values.as_ptr(),
            left_steps[1],
            left_steps[0],
            right.values.as_ptr(),
            right_steps[1],
            right_steps[0],
            kept,
            1.0,
            false,
            false,
            false,
            parallelism,
        );
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

    /// `[3, 5]`, its rows 7 apart, times the transpose of `[4, 5]`, into the left of rows 6 apart.
    #[test]
    fn pitches_and_transposes() {
        let (left, right): (Vec<f32>, Vec<f32>) = ((0..21).map(|n| n as f32).collect(), (0..20).map(|n| (n % 6) as f32).collect());
        let mut result = vec![1.0; 18];
        let (x, w) = (Matrix::new(&left, [3, 5], 7), Matrix::new(&right, [4, 5], 5).t());
        multiply(x, w, &mut result, 6, Write::Over, Workers::Caller);
        multiply(x, w, &mut result, 6, Write::Onto, Workers::Caller);
        for (row, values) in result.chunks(6).enumerate() {
            let sum = |column: usize| (0..5).map(|k| left[row * 7 + k] * right[column * 5 + k]).sum::<f32>();
            assert_eq!(values, [2.0 * sum(0), 2.0 * sum(1), 2.0 * sum(2), 2.0 * sum(3), 1.0, 1.0]);
        }
    }
}
