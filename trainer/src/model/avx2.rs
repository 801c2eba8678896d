//! Matrix products of `f32` with AVX2, for the processors whose widest registers these are. Some hundred rows of one factor, as many terms of
//! each as are summed at once, are copied so that they stay in a core's second cache; one strip of the other factor after the other passes by
//! them, copied into the first cache, and what comes next is asked for meanwhile (Goto, van de Geijn: "Anatomy of High-Performance Matrix
//! Multiplication", 2008). Each element is summed in one order, whatever the number of threads.

use std::arch::x86_64::{
    __m256, _MM_HINT_T0, _MM_HINT_T1, _mm_prefetch, _mm256_add_ps, _mm256_fmadd_ps, _mm256_loadu_ps, _mm256_permute2f128_ps,
    _mm256_set1_ps, _mm256_setzero_ps, _mm256_shuffle_ps, _mm256_storeu_ps, _mm256_unpackhi_ps, _mm256_unpacklo_ps,
};

use super::product::{DEPTH, Matrix, Workers, Write, fits};
use crate::parallel::{self, threads};
use crate::vectorise::has_avx512;

/// Numbers in a register.
const LANES: usize = 8;
/// Rows and columns of the result that twelve registers hold: with two for the columns of one factor and one for a number of the other.
const ROWS: usize = 6;
const COLUMNS: usize = 2 * LANES;
/// Rows of a copy, 192 KiB: it fits into the smallest second cache that such a processor has, of 256 KiB.
const BLOCK: usize = 192;
/// Numbers that come from memory together.
const LINE: usize = 16;
/// Columns for which a copy of [`BLOCK`] rows pays, at least.
const WIDTH: usize = 128;

/// Whether a product of these sizes is for this module.
pub(super) fn serves([rows, depth, columns]: [usize; 3]) -> bool {
    rows >= ROWS
        && depth > 0
        && columns >= COLUMNS
        && is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && !has_avx512()
}

/// A result, or some of its rows and columns: threads write different ones of the same rows.
#[derive(Clone, Copy)]
struct Place {
    first: *mut f32,
    pitch: usize,
}

// SAFETY: whoever makes one sees to it that nothing else writes there.
unsafe impl Send for Place {}

/// `left [M, K] · right [K, N]` into `result`, `[M, N]` with rows `pitch` apart. Only where [`serves`] says so.
pub(super) fn multiply(left: Matrix<'_>, right: Matrix<'_>, result: &mut [f32], pitch: usize, write: Write, workers: Workers) {
    let (rows, columns) = (left.size[0], right.size[1]);
    assert!(serves([rows, left.size[1], columns]) && fits(result.len(), [rows, columns], pitch));
    let threads = if workers == Workers::All { threads() } else { 1 };
    let down = rows.div_ceil(BLOCK);
    // All threads get as many parts: by rows alone, or of columns, too.
    let across = if down.is_multiple_of(threads) { 1 } else { threads.min(columns.div_ceil(WIDTH)) };
    let (height, width) = (rows.div_ceil(down).next_multiple_of(ROWS), columns.div_ceil(across).next_multiple_of(COLUMNS));
    let parts = |all: usize, size: usize| (0..all).step_by(size).map(move |first| (first, size.min(all - first)));
    let first = result.as_mut_ptr();
    let part = |(row, rows), (column, columns)| {
        let (left, right) = (left.part([row, 0], [rows, left.size[1]]), right.part([0, column], [right.size[0], columns]));
        (left, right, Place { first: first.wrapping_add(row * pitch + column), pitch })
    };
    let work: Vec<_> = parts(rows, height).flat_map(|rows| parts(columns, width).map(move |columns| part(rows, columns))).collect();
    // SAFETY: `serves` saw to the features; the parts are apart and inside the result.
    let multiply = |(left, right, place)| unsafe { multiply_part(left, right, place, write) };
    if threads > 1 { parallel::run(work, multiply) } else { work.into_iter().for_each(multiply) }
}

/// # Safety
/// The processor has the features; `place` is `[M, N]`, this thread's alone.
#[target_feature(enable = "avx2,fma")]
unsafe fn multiply_part(left: Matrix<'_>, right: Matrix<'_>, place: Place, write: Write) {
    let ([rows, depth], columns) = (left.size, right.size[1]);
    let block = DEPTH.min(depth);
    let (mut lefts, mut strip) = (vec![0.0; rows.next_multiple_of(ROWS) * block], vec![0.0; block * COLUMNS]);
    for k in (0..depth).step_by(DEPTH) {
        let block = DEPTH.min(depth - k);
        for (row, panel) in (0..rows).step_by(ROWS).zip(lefts.chunks_mut(block * ROWS)) {
            pack::<ROWS>(left.part([row, k], [ROWS.min(rows - row), block]).t(), panel);
        }
        let write = if k == 0 { write } else { Write::Onto };
        for column in (0..columns).step_by(COLUMNS) {
            let width = COLUMNS.min(columns - column);
            pack::<COLUMNS>(right.part([k, column], [block, width]), &mut strip);
            let next = column + width;
            let ahead = (next < columns).then(|| right.part([k, next], [block, COLUMNS.min(columns - next)]));
            for (row, panel) in (0..rows).step_by(ROWS).zip(lefts.chunks(block * ROWS)) {
                if let Some(ahead) = ahead {
                    ask_for(ahead, row / ROWS, rows.div_ceil(ROWS));
                }
                let place = Place { first: place.first.wrapping_add(row * place.pitch + column), ..place };
                // SAFETY: this many rows and columns of the place are left.
                unsafe { multiply_tile(panel, &strip[..block * COLUMNS], place, [ROWS.min(rows - row), width], write) }
            }
        }
    }
}

/// `[depth, width]` as rows of `WIDTH` numbers, zeros after those that there are.
#[target_feature(enable = "avx2,fma")]
fn pack<const WIDTH: usize>(matrix: Matrix<'_>, packed: &mut [f32]) {
    let ([depth, width], [down, across]) = (matrix.size, matrix.steps);
    let (packed, _) = packed[..depth * WIDTH].as_chunks_mut::<WIDTH>();
    if width < WIDTH {
        packed.fill([0.0; WIDTH]);
    }
    if across == 1 {
        for (k, packed) in packed.iter_mut().enumerate() {
            let from = &matrix.values[k * down..][..width];
            if width == WIDTH { packed.copy_from_slice(from) } else { packed[..width].copy_from_slice(from) }
        }
        return;
    }
    assert!(down == 1, "rows or columns lie together");
    // Eight by eight numbers at once, where there are so many.
    let (eights, whole) = (width / LANES * LANES, depth / LANES * LANES);
    for column in (0..eights).step_by(LANES) {
        for (block, packed) in packed.chunks_exact_mut(LANES).enumerate() {
            let mut rows = [_mm256_setzero_ps(); LANES];
            for (row, register) in rows.iter_mut().enumerate() {
                let from = &matrix.values[(column + row) * across + block * LANES..][..LANES];
                // SAFETY: as many as the slice has.
                *register = unsafe { _mm256_loadu_ps(from.as_ptr()) };
            }
            for (register, packed) in transposed(rows).into_iter().zip(packed) {
                // SAFETY: as above.
                unsafe { _mm256_storeu_ps(packed[column..column + LANES].as_mut_ptr(), register) }
            }
        }
    }
    for column in 0..width {
        let done = if column < eights { whole } else { 0 };
        let from = &matrix.values[column * across..][done..depth];
        for (packed, value) in packed[done..].iter_mut().zip(from) {
            packed[column] = *value;
        }
    }
}

#[target_feature(enable = "avx2")]
fn transposed(rows: [__m256; LANES]) -> [__m256; LANES] {
    let (mut twos, mut fours, mut eights) = (rows, rows, rows);
    for row in [0, 2, 4, 6] {
        twos[row] = _mm256_unpacklo_ps(rows[row], rows[row + 1]);
        twos[row + 1] = _mm256_unpackhi_ps(rows[row], rows[row + 1]);
    }
    for (row, from) in [(0, 0), (2, 1), (4, 4), (6, 5)] {
        fours[row] = _mm256_shuffle_ps::<0x44>(twos[from], twos[from + 2]);
        fours[row + 1] = _mm256_shuffle_ps::<0xEE>(twos[from], twos[from + 2]);
    }
    for row in 0..4 {
        eights[row] = _mm256_permute2f128_ps::<0x20>(fours[row], fours[row + 4]);
        eights[row + 4] = _mm256_permute2f128_ps::<0x31>(fours[row], fours[row + 4]);
    }
    eights
}

/// Asks memory for one of `count` shares of what is copied next.
fn ask_for(next: Matrix<'_>, share: usize, count: usize) {
    let turned = if next.steps[1] == 1 { next } else { next.t() };
    for row in (share..turned.size[0]).step_by(count) {
        for column in (0..turned.size[1]).step_by(LINE) {
            // SAFETY: nothing is read from the address.
            unsafe { _mm_prefetch::<_MM_HINT_T1>(turned.values.as_ptr().wrapping_add(row * turned.steps[0] + column).cast()) }
        }
    }
}

/// `left [K, 6]ᵀ · right [K, 16]` into the upper left of the place, as many rows and columns as `size` says.
///
/// # Safety
/// The processor has the features; the place has these rows and columns.
#[target_feature(enable = "avx2,fma")]
unsafe fn multiply_tile(left: &[f32], right: &[f32], place: Place, [rows, columns]: [usize; 2], write: Write) {
    let whole = [rows, columns] == [ROWS, COLUMNS];
    if whole {
        for row in 0..ROWS {
            _mm_prefetch::<_MM_HINT_T0>(place.first.wrapping_add(row * place.pitch).cast());
        }
    }
    let mut sums = [[_mm256_setzero_ps(); 2]; ROWS];
    for (factors, right) in left.as_chunks::<ROWS>().0.iter().zip(right.as_chunks::<COLUMNS>().0) {
        // SAFETY: a chunk has two registers' numbers.
        let right = unsafe { [_mm256_loadu_ps(right.as_ptr()), _mm256_loadu_ps(right.as_ptr().add(LANES))] };
        for (factor, sums) in factors.iter().zip(&mut sums) {
            let factor = _mm256_set1_ps(*factor);
            for (sum, right) in sums.iter_mut().zip(right) {
                *sum = _mm256_fmadd_ps(factor, right, *sum);
            }
        }
    }
    // SAFETY: the caller promised the rows and columns, and those of `edge` are its own.
    unsafe {
        if whole {
            return keep(&sums, place, write);
        }
        let mut edge = [0.0; ROWS * COLUMNS];
        keep(&sums, Place { first: edge.as_mut_ptr(), pitch: COLUMNS }, Write::Over);
        for (row, edge) in edge.as_chunks::<COLUMNS>().0.iter().enumerate().take(rows) {
            let place = std::slice::from_raw_parts_mut(place.first.add(row * place.pitch), columns);
            for (place, sum) in place.iter_mut().zip(edge) {
                *place = if write == Write::Onto { *place + sum } else { *sum };
            }
        }
    }
}

/// # Safety
/// The processor has the features; the place has six rows of sixteen numbers.
#[target_feature(enable = "avx2,fma")]
unsafe fn keep(sums: &[[__m256; 2]; ROWS], place: Place, write: Write) {
    for (row, sums) in sums.iter().enumerate() {
        for (half, &sum) in sums.iter().enumerate() {
            // SAFETY: the caller promised them.
            unsafe {
                let place = place.first.add(row * place.pitch + half * LANES);
                let sum = if write == Write::Onto { _mm256_add_ps(sum, _mm256_loadu_ps(place)) } else { sum };
                _mm256_storeu_ps(place, sum);
            }
        }
    }
}
