//! Matrix products in `f32` with AVX-512 and AVX2, of numbers that become `f32` where they are copied. Some hundred rows of one
//! factor, as many terms of each as are summed at once, are copied so that they stay in a core's second cache; one strip of the
//! other factor after the other passes by them, copied into the first cache, and what comes next is asked for meanwhile (Goto, van
//! de Geijn: "Anatomy of High-Performance Matrix Multiplication", 2008). Each element is summed in one order, whatever the number
//! of threads.

use std::arch::x86_64::{
    __m256, __m512, _MM_HINT_T0, _MM_HINT_T1, _mm_loadu_ps, _mm_movehl_ps, _mm_movelh_ps, _mm_prefetch, _mm_storeu_ps,
    _mm_unpackhi_ps, _mm_unpacklo_ps,
};

use super::skinny_kernels::Register;
use super::{DEPTH, Matrix, Workers, Write, fits};
use crate::cpu::parallel::{self, threads};
use crate::cpu::simd::Element;

/// Bytes that come from memory together.
const LINE: usize = 64;
/// Fewest columns for which copying the rows pays.
const NARROWEST: usize = 128;
/// Rows and columns that are transposed at once.
pub(crate) const FOUR: usize = 4;

/// The operations of one kind of register. A tile has two of them in each row: with AVX-512 sixteen of thirty-two registers hold
/// its sums, with AVX2 twelve of sixteen.
struct Kind<I: Copy> {
    is_available: fn() -> bool,
    tile: Tile,
    multiply: unsafe fn(Matrix<'_, I>, Matrix<'_, I>, Place<f32>, Write),
}

/// Rows and columns that a kernel sums in registers.
#[derive(Clone, Copy)]
pub(crate) struct Tile {
    pub rows: usize,
    pub columns: usize,
    /// Rows of a copy: in `f32` it fits into the second cache, which has 1 MiB at least with AVX-512 (a Skylake server's) and 256
    /// KiB with AVX2.
    pub block: usize,
}

const WIDE: Tile = Tile { rows: 8, columns: <__m512 as Register>::TILE, block: 512 };
const NARROW: Tile = Tile { rows: 6, columns: <__m256 as Register>::TILE, block: 192 };

fn kinds<I: Element>() -> [Kind<I>; 2] {
    [
        Kind { is_available: <__m512 as Register>::is_available, tile: WIDE, multiply: wide },
        Kind { is_available: <__m256 as Register>::is_available, tile: NARROW, multiply: narrow },
    ]
}

/// # Safety
/// Those of [`multiply_part`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn wide<I: Element>(left: Matrix<'_, I>, right: Matrix<'_, I>, place: Place<f32>, write: Write) {
    // SAFETY: the caller promised what is asked for.
    unsafe { multiply_part::<I, __m512, { WIDE.rows }, { WIDE.columns }>(left, right, place, write) }
}

/// # Safety
/// Those of [`multiply_part`].
#[target_feature(enable = "avx2,fma")]
unsafe fn narrow<I: Element>(left: Matrix<'_, I>, right: Matrix<'_, I>, place: Place<f32>, write: Write) {
    // SAFETY: as above.
    unsafe { multiply_part::<I, __m256, { NARROW.rows }, { NARROW.columns }>(left, right, place, write) }
}

/// A result, or some of its rows and columns: threads write different ones of the same rows.
#[derive(Clone, Copy)]
pub(crate) struct Place<E> {
    pub first: *mut E,
    pub pitch: usize,
}

// SAFETY: the code that makes one sees to it that nothing else writes there.
unsafe impl<E: Send> Send for Place<E> {}

/// `left [M, K] · right [K, N]` into `result`, `[M, N]` with rows `pitch` apart. False: this is a case for another product, and
/// nothing was done.
pub fn multiply<I: Element>(
    left: Matrix<'_, I>,
    right: Matrix<'_, I>,
    result: &mut [f32],
    pitch: usize,
    write: Write,
    workers: Workers,
) -> bool {
    let serves = |tile: Tile| left.size[0] >= tile.rows && right.size[1] >= tile.columns && left.size[1] > 0;
    let kind = kinds().into_iter().find(|kind| (kind.is_available)()).filter(|kind| serves(kind.tile));
    kind.map(|kind| multiply_with(&kind, left, right, (result, pitch), write, workers)).is_some()
}

fn multiply_with<I: Element>(
    kind: &Kind<I>,
    left: Matrix<'_, I>,
    right: Matrix<'_, I>,
    result: (&mut [f32], usize),
    write: Write,
    workers: Workers,
) {
    // SAFETY: the processor has the registers; the parts are apart and inside the result.
    in_parts(kind.tile, left, right, result, workers, |left, right, place| unsafe { (kind.multiply)(left, right, place, write) });
}

/// Calls `multiply` for parts of a product into `result`, whose rows are so far apart: as many as fill all threads, of rows alone
/// where that comes out even, else of columns, too.
pub(crate) fn in_parts<I: Copy + Sync, E: Send>(
    tile: Tile,
    left: Matrix<'_, I>,
    right: Matrix<'_, I>,
    (result, pitch): (&mut [E], usize),
    workers: Workers,
    multiply: impl Fn(Matrix<'_, I>, Matrix<'_, I>, Place<E>) + Sync,
) {
    let ([rows, depth], columns) = (left.size, right.size[1]);
    assert!(depth == right.size[0] && fits(result.len(), [rows, columns], pitch));
    if rows == 0 || columns == 0 {
        return;
    }
    let threads = if workers == Workers::All { threads() } else { 1 };
    let down = rows.div_ceil(tile.block);
    let across = if down.is_multiple_of(threads) { 1 } else { threads.min(columns.div_ceil(NARROWEST)) };
    let down = (down * across).next_multiple_of(threads).div_ceil(across).min(rows.div_ceil(tile.rows));
    let height = rows.div_ceil(down).next_multiple_of(tile.rows);
    let width = columns.div_ceil(across).next_multiple_of(tile.columns);
    let parts = |all: usize, size: usize| (0..all).step_by(size).map(move |first| (first, size.min(all - first)));
    let first = result.as_mut_ptr();
    let part = |(row, rows), (column, columns)| {
        let (left, right) = (left.part([row, 0], [rows, depth]), right.part([0, column], [depth, columns]));
        (left, right, Place { first: first.wrapping_add(row * pitch + column), pitch })
    };
    let work: Vec<_> = parts(rows, height).flat_map(|rows| parts(columns, width).map(move |columns| part(rows, columns))).collect();
    let multiply = |(left, right, place)| multiply(left, right, place);
    if threads > 1 { parallel::run(work, multiply) } else { work.into_iter().for_each(multiply) }
}

/// # Safety
/// The processor has the register, of which `COLUMNS` are two; `place` is `[M, N]`, this thread's alone.
#[expect(clippy::inline_always, reason = "compiled for the register only when it is inlined into what names its features")]
#[inline(always)]
unsafe fn multiply_part<I: Element, R: Register, const ROWS: usize, const COLUMNS: usize>(
    left: Matrix<'_, I>,
    right: Matrix<'_, I>,
    place: Place<f32>,
    write: Write,
) {
    let ([rows, depth], columns) = (left.size, right.size[1]);
    let block = DEPTH.min(depth);
    let (mut lefts, mut strip) = (vec![0.0; rows.next_multiple_of(ROWS) * block], Vec::new());
    let strip = aligned(&mut strip, block * COLUMNS);
    for k in (0..depth).step_by(DEPTH) {
        let block = DEPTH.min(depth - k);
        for (row, panel) in (0..rows).step_by(ROWS).zip(lefts.chunks_mut(block * ROWS)) {
            pack::<I, ROWS>(left.part([row, k], [ROWS.min(rows - row), block]).t(), panel);
        }
        let write = if k == 0 { write } else { Write::Onto };
        for column in (0..columns).step_by(COLUMNS) {
            let width = COLUMNS.min(columns - column);
            pack::<I, COLUMNS>(right.part([k, column], [block, width]), strip);
            let next = column + width;
            let ahead = (next < columns).then(|| right.part([k, next], [block, COLUMNS.min(columns - next)]));
            for (row, panel) in (0..rows).step_by(ROWS).zip(lefts.chunks(block * ROWS)) {
                let ask = |share: usize| {
                    if let Some(ahead) = ahead {
                        ask_for(ahead, row + share, rows.next_multiple_of(ROWS));
                    }
                };
                let place = Place { first: place.first.wrapping_add(row * place.pitch + column), ..place };
                let size = [ROWS.min(rows - row), width];
                // SAFETY: this many rows and columns of the place are left.
                unsafe { multiply_tile::<R, ROWS, COLUMNS>(panel, &strip[..block * COLUMNS], place, size, write, ask) }
            }
        }
    }
}

/// Zeros from the beginning of a line on: registers are loaded from one line each.
pub(crate) fn aligned<E: Copy + Default>(memory: &mut Vec<E>, count: usize) -> &mut [E] {
    memory.resize(count + LINE / size_of::<E>(), E::default());
    let first = memory.as_ptr().align_offset(LINE);
    &mut memory[first..][..count]
}

/// `[depth, width]` as rows of `WIDTH` numbers, zeros after those that there are.
#[expect(clippy::inline_always, reason = "compiled for the register only when it is inlined into what names its features")]
#[inline(always)]
fn pack<I: Element, const WIDTH: usize>(matrix: Matrix<'_, I>, packed: &mut [f32]) {
    let ([depth, width], [down, across]) = (matrix.size, matrix.steps);
    let (packed, _) = packed[..depth * WIDTH].as_chunks_mut::<WIDTH>();
    if width < WIDTH {
        packed.fill([0.0; WIDTH]);
    }
    if across == 1 {
        for (k, packed) in packed.iter_mut().enumerate() {
            let from = &matrix.values[k * down..][..width];
            match <&[I; WIDTH]>::try_from(from) {
                Ok(from) => *packed = from.map(I::get),
                Err(_) => packed.iter_mut().zip(from).for_each(|(packed, value)| *packed = value.get()),
            }
        }
        return;
    }
    assert!(down == 1, "rows or columns lie together");
    let whole = if width < FOUR { 0 } else { depth / FOUR * FOUR };
    for column in (0..width).step_by(FOUR).take_while(|_| whole > 0) {
        // The last ones may have been among those before: they are the same again.
        let column = column.min(width - FOUR);
        let rows = [0, 1, 2, 3].map(|row| matrix.values[(column + row) * across..][..whole].as_chunks::<FOUR>().0);
        for (block, packed) in packed.as_chunks_mut::<FOUR>().0.iter_mut().enumerate() {
            let block = rows.map(|row| row[block].map(I::get));
            let places = packed.each_mut().map(|row| row[column..column + FOUR].as_mut_ptr());
            // SAFETY: that many numbers lie there, and there is room for as many.
            unsafe { transpose(block.each_ref().map(|row| row.as_ptr()), places) }
        }
    }
    for (column, from) in (0..width).map(|column| (column, &matrix.values[column * across..][whole..depth])) {
        for (packed, value) in packed[whole..].iter_mut().zip(from) {
            packed[column] = value.get();
        }
    }
}

/// Four rows of four numbers, as columns.
///
/// # Safety
/// Each of the pointers has four.
#[expect(clippy::inline_always, reason = "a dozen instructions, thousands of times")]
#[inline(always)]
pub(crate) unsafe fn transpose(rows: [*const f32; FOUR], places: [*mut f32; FOUR]) {
    // SAFETY: every processor of this kind has these instructions; the caller promised the numbers.
    unsafe {
        let [a, b, c, d] = rows.map(|row| _mm_loadu_ps(row));
        let (low, high) = ([_mm_unpacklo_ps(a, b), _mm_unpacklo_ps(c, d)], [_mm_unpackhi_ps(a, b), _mm_unpackhi_ps(c, d)]);
        let turned = [
            _mm_movelh_ps(low[0], low[1]),
            _mm_movehl_ps(low[1], low[0]),
            _mm_movelh_ps(high[0], high[1]),
            _mm_movehl_ps(high[1], high[0]),
        ];
        for (place, column) in places.into_iter().zip(turned) {
            _mm_storeu_ps(place, column);
        }
    }
}

/// Asks memory for one of `count` shares of the data that is copied next.
#[expect(clippy::inline_always, reason = "a call would put the sums that are in registers into memory")]
#[inline(always)]
pub(crate) fn ask_for<E: Copy>(next: Matrix<'_, E>, share: usize, count: usize) {
    let turned = if next.steps[1] == 1 { next } else { next.t() };
    let lines = turned.size[1].div_ceil(LINE / size_of::<E>());
    for line in (share..turned.size[0] * lines).step_by(count) {
        let place = line / lines * turned.steps[0] + line % lines * (LINE / size_of::<E>());
        // SAFETY: nothing is read from the address.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(turned.values.as_ptr().wrapping_add(place).cast()) }
    }
}

/// `left [K, ROWS]ᵀ · right [K, COLUMNS]` into the upper left of the place, as many rows and columns as `size` says. The next data,
/// of the place and whatever `ask` asks for, is asked for over the whole sum: a core waits for some dozen lines at a time, and many
/// at once would keep the factors waiting behind them.
///
/// # Safety
/// The processor has the register, of which `COLUMNS` are two; the place has these rows and columns.
#[expect(clippy::inline_always, reason = "as above")]
#[inline(always)]
unsafe fn multiply_tile<R: Register, const ROWS: usize, const COLUMNS: usize>(
    left: &[f32],
    right: &[f32],
    place: Place<f32>,
    [rows, columns]: [usize; 2],
    write: Write,
    ask: impl Fn(usize),
) {
    let whole = [rows, columns] == [ROWS, COLUMNS];
    // SAFETY: a chunk has two registers' numbers; the caller promised the rows and columns, and those of `edge` are its own.
    unsafe {
        let mut sums = [[R::zero(); 2]; ROWS];
        let share = (left.len() / ROWS).div_ceil(ROWS);
        for (row, (left, right)) in left.chunks(share * ROWS).zip(right.chunks(share * COLUMNS)).enumerate() {
            ask(row);
            for column in (0..COLUMNS).step_by(LINE / size_of::<f32>()).take_while(|_| row < rows) {
                _mm_prefetch::<_MM_HINT_T0>(place.first.wrapping_add(row * place.pitch + column).cast());
            }
            for (factors, right) in left.as_chunks::<ROWS>().0.iter().zip(right.as_chunks::<COLUMNS>().0) {
                let right = [R::load(right.as_ptr()), R::load(right.as_ptr().add(R::LANES))];
                for (factor, sums) in factors.iter().zip(&mut sums) {
                    let factor = R::all(*factor);
                    for (sum, right) in sums.iter_mut().zip(right) {
                        *sum = factor.multiply_add(right, *sum);
                    }
                }
            }
        }
        if whole {
            return keep(&sums, place, write);
        }
        let mut edge = [[0.0; COLUMNS]; ROWS];
        keep(&sums, Place { first: edge.as_mut_ptr().cast(), pitch: COLUMNS }, Write::Over);
        for (row, edge) in edge.iter().enumerate().take(rows) {
            let place = std::slice::from_raw_parts_mut(place.first.add(row * place.pitch), columns);
            for (place, sum) in place.iter_mut().zip(edge) {
                *place = if write == Write::Onto { *place + sum } else { *sum };
            }
        }
    }
}

/// # Safety
/// The processor has the register; the place has as many rows, of two registers' numbers.
#[expect(clippy::inline_always, reason = "as above")]
#[inline(always)]
unsafe fn keep<R: Register, const ROWS: usize>(sums: &[[R; 2]; ROWS], place: Place<f32>, write: Write) {
    for (row, sums) in sums.iter().enumerate() {
        for (half, &sum) in sums.iter().enumerate() {
            // SAFETY: the caller promised them.
            unsafe {
                let place = place.first.add(row * place.pitch + half * R::LANES);
                let sum = if write == Write::Onto { R::load(place).add(sum) } else { sum };
                sum.store(place);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::matmul::tests::equals_the_definition;
    use crate::cpu::simd::{Bf16, F16};

    fn equals_the_definition_with_every_kind<I: Element>() {
        for kind in kinds::<I>().iter().filter(|kind| (kind.is_available)()) {
            for size in [[200, 267, 140], [610, 40, 57], [40, 13, 610], [193, 8, 270], [6, 300, 16], [3, 1, 5]] {
                equals_the_definition::<I, f32>(size, |left, right, result, pitch, write| {
                    multiply_with(kind, left, right, (result, pitch), write, Workers::All);
                });
            }
        }
    }

    /// Sizes of which one thread and three make different parts, with rests along each dimension.
    #[test]
    fn every_kind_equals_the_definition_with_any_number_of_threads() {
        let before = tch::get_num_threads();
        for threads in [1, 3] {
            tch::set_num_threads(threads);
            equals_the_definition_with_every_kind::<f32>();
            equals_the_definition_with_every_kind::<Bf16>();
            equals_the_definition_with_every_kind::<F16>();
        }
        tch::set_num_threads(before);
    }

    /// Numbers whose sums are rounded: another order would show in the bits.
    #[test]
    fn any_number_of_threads_gives_the_same_bits() {
        let numbers: Vec<f32> = (0..610 * 600).map(|n| 3.0 * (n as f32).sin()).collect();
        let before = tch::get_num_threads();
        for [rows, depth, columns] in [[610, 600, 140], [40, 600, 610]] {
            let (left, right) = (Matrix::new(&numbers, [rows, depth], depth), Matrix::new(&numbers, [columns, depth], depth).t());
            for kind in kinds().iter().filter(|kind| (kind.is_available)()) {
                let found = [1, 3].map(|threads| {
                    tch::set_num_threads(threads);
                    let mut result = vec![1.0; rows * columns];
                    multiply_with(kind, left, right, (&mut result, columns), Write::Onto, Workers::All);
                    result.into_iter().map(f32::to_bits).collect::<Vec<_>>()
                });
                assert!(found[0] == found[1], "[{rows}, {depth}, {columns}], tiles of {} rows", kind.tile.rows);
            }
        }
        tch::set_num_threads(before);
    }
}
