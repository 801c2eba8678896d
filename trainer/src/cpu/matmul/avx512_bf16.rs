//! Matrix products of bf16 numbers with the instruction of AVX-512 that multiplies pairs of them and adds both products to an
//! `f32`, on AMD's processors from Zen 4 on. Intel's that have it take as long for one as for four sums of products of `f32`: there
//! they are multiplied as such, or on tiles ([`super::amx`]). In place as those of [`crate::cpu::matmul`] and arranged as those of
//! [`super::packed_f32`]: a copy of some rows of one factor, which strips of the other pass by. libtorch's products are as fast,
//! but allocate a result that is then added in a pass of its own, rounded, and are not for a thread alone. Subnormal numbers are
//! zero.

use std::arch::x86_64::{
    __cpuid, __m512, __m512bh, _mm512_add_ps, _mm512_dpbf16_ps, _mm512_loadu_ps, _mm512_set1_epi32, _mm512_setzero_ps,
    _mm512_storeu_ps,
};

use super::amx;
use super::packed_f32::{FOUR, Place, Tile, aligned, ask_for, in_parts, transpose};
use super::{DEPTH, Matrix, Workers, Write};
use crate::cpu::simd::{Bf16, Element};
use crate::cpu::vectorise::has_avx512;

/// Two numbers that follow each other along the sum, the first in the lower half.
type Pair = u32;

const TILE: Tile = Tile { rows: 8, columns: 32, block: 512 };
/// Terms of which all rows of a part have a copy at once.
const DEEP: usize = 1024;
/// Columns whose sums wait for the next copy where there are more terms: with all rows of a part 2 MiB.
const WAITING: usize = 1024;

/// Sums of a tile.
type Rows = [[f32; TILE.columns]; TILE.rows];

pub fn is_available() -> bool {
    has_instruction() && is_by(b"AuthenticAMD") && !amx::is_available()
}

fn has_instruction() -> bool {
    has_avx512() && is_x86_feature_detected!("avx512bf16")
}

/// Whether the processor names this maker.
fn is_by(maker: &[u8; 12]) -> bool {
    let said = __cpuid(0);
    maker.as_chunks::<4>().0.iter().zip([said.ebx, said.edx, said.ecx]).all(|(letters, word)| *letters == word.to_le_bytes())
}

/// `left [M, K] · right [K, N]` into the upper left `[M, N]` of `result`, whose rows are `pitch` elements apart. Each element is
/// rounded once, and summed in one order, whatever the number of threads.
///
/// # Panics
/// Where the processor has no such instruction.
pub fn multiply<E: Element>(
    left: Matrix<'_, Bf16>,
    right: Matrix<'_, Bf16>,
    result: &mut [E],
    pitch: usize,
    write: Write,
    workers: Workers,
) {
    assert!(has_instruction(), "this processor does not multiply pairs");
    let [depth, columns] = right.size;
    assert!(depth > 0, "a product of {:?} and {:?}", left.size, right.size);
    let most = if depth <= DEEP { columns } else { WAITING };
    in_parts(TILE, left, right, (result, pitch), workers, |left, right, place| {
        for column in (0..right.size[1]).step_by(most) {
            let right = right.part([0, column], [depth, most.min(right.size[1] - column)]);
            // SAFETY: the processor has the instructions; the parts are apart and inside the result.
            unsafe { multiply_part(left, right, Place { first: place.first.wrapping_add(column), ..place }, write) }
        }
    });
}

/// # Safety
/// The processor has the features; `place` is `[M, N]`, this thread's alone.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
unsafe fn multiply_part<E: Element>(left: Matrix<'_, Bf16>, right: Matrix<'_, Bf16>, place: Place<E>, write: Write) {
    let ([rows, depth], columns) = (left.size, right.size[1]);
    let tiles = rows.div_ceil(TILE.rows);
    let mut lefts = vec![0; tiles * TILE.rows * DEEP.min(depth).div_ceil(2)];
    let mut strip = Vec::new();
    let strip = aligned(&mut strip, TILE.columns * DEPTH.min(depth).div_ceil(2));
    // Of one strip, which is done with once all its terms have a copy, or of all.
    let strips = if depth <= DEEP { 1 } else { columns.div_ceil(TILE.columns) };
    let mut sums = vec![Rows::default(); strips * tiles];
    for k in (0..depth).step_by(DEEP) {
        let deep = k..depth.min(k + DEEP);
        pack_left(left.part([0, k], [rows, deep.len()]), &mut lefts);
        for (number, column) in (0..columns).step_by(TILE.columns).enumerate() {
            let width = TILE.columns.min(columns - column);
            let sums = &mut sums[number % strips * tiles..][..tiles];
            let mut panels = lefts.as_slice();
            for from in deep.clone().step_by(DEPTH) {
                let block = DEPTH.min(deep.end - from);
                pack::<{ TILE.columns }>(right.part([from, column], [block, width]), strip);
                let next = if from + block < deep.end { [from + block, column] } else { [k, column + width] };
                let ahead = (next[1] < columns)
                    .then(|| right.part(next, [DEPTH.min(deep.end - next[0]), TILE.columns.min(columns - next[1])]));
                let panel = block.div_ceil(2) * TILE.rows;
                for (tile, (sums, panel)) in sums.iter_mut().zip(panels.chunks(panel)).enumerate() {
                    if let Some(ahead) = ahead {
                        ask_for(ahead, tile, tiles);
                    }
                    multiply_tile(panel, &strip[..block.div_ceil(2) * TILE.columns], sums, from == 0);
                }
                panels = &panels[tiles * panel..];
            }
            if deep.end == depth {
                for (row, sums) in sums.as_flattened().iter().enumerate().take(rows) {
                    // SAFETY: the place has this row and these columns.
                    let place = unsafe { std::slice::from_raw_parts_mut(place.first.add(row * place.pitch + column), width) };
                    for (place, sum) in place.iter_mut().zip(sums) {
                        *place = E::put(if write == Write::Onto { place.get() + sum } else { *sum });
                    }
                }
            }
        }
    }
}

/// `[rows, depth]` as panels of a tile's rows, all of the first [`DEPTH`] terms before those of the next.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn pack_left(left: Matrix<'_, Bf16>, mut panels: &mut [Pair]) {
    let [rows, depth] = left.size;
    for k in (0..depth).step_by(DEPTH) {
        let block = DEPTH.min(depth - k);
        for row in (0..rows).step_by(TILE.rows) {
            let (panel, rest) = panels.split_at_mut(block.div_ceil(2) * TILE.rows);
            pack::<{ TILE.rows }>(left.part([row, k], [TILE.rows.min(rows - row), block]).t(), panel);
            panels = rest;
        }
    }
}

/// `[depth, width]` as rows of `WIDTH` pairs, zeros after those that there are.
#[expect(clippy::inline_always, reason = "compiled for the widest registers only when it is inlined into what names them")]
#[inline(always)]
fn pack<const WIDTH: usize>(matrix: Matrix<'_, Bf16>, packed: &mut [Pair]) {
    let ([depth, width], [down, across]) = (matrix.size, matrix.steps);
    let (packed, _) = packed[..depth.div_ceil(2) * WIDTH].as_chunks_mut::<WIDTH>();
    if width < WIDTH {
        packed.fill([0; WIDTH]);
    }
    let pair = |low: Bf16, high: Bf16| low.get().to_bits() >> 16 | high.get().to_bits();
    if across == 1 {
        for (k, packed) in packed.iter_mut().enumerate() {
            let row = |k: usize| &matrix.values[k * down..][..width];
            let (low, high) = (row(2 * k), if 2 * k + 1 < depth { row(2 * k + 1) } else { &[] });
            match (<&[Bf16; WIDTH]>::try_from(low), <&[Bf16; WIDTH]>::try_from(high)) {
                (Ok(low), Ok(high)) => {
                    for ((packed, low), high) in packed.iter_mut().zip(low).zip(high) {
                        *packed = pair(*low, *high);
                    }
                }
                _ => {
                    for (column, packed) in packed.iter_mut().enumerate().take(width) {
                        *packed = pair(low[column], high.get(column).copied().unwrap_or_default());
                    }
                }
            }
        }
        return;
    }
    assert!(down == 1, "rows or columns lie together");
    let whole = if width < FOUR { 0 } else { depth / 2 / FOUR * FOUR };
    for column in (0..width).step_by(FOUR).take_while(|_| whole > 0) {
        // The last ones may have been among those before: they are the same again.
        let column = column.min(width - FOUR);
        let rows = [0, 1, 2, 3].map(|row| &matrix.values[(column + row) * across..][..2 * whole]);
        for (block, packed) in packed[..whole].as_chunks_mut::<FOUR>().0.iter_mut().enumerate() {
            let block = rows.map(|row| row[block * 2 * FOUR..][..2 * FOUR].as_ptr().cast());
            let places = packed.each_mut().map(|row| row[column..column + FOUR].as_mut_ptr().cast());
            // SAFETY: a pair is as long as an `f32`, and the instructions change none of its bits; there are four of them.
            unsafe { transpose(block, places) }
        }
    }
    for (column, from) in (0..width).map(|column| (column, &matrix.values[column * across..][2 * whole..depth])) {
        for (packed, terms) in packed[whole..].iter_mut().zip(from.chunks(2)) {
            packed[column] = pair(terms[0], terms.get(1).copied().unwrap_or_default());
        }
    }
}

/// `left [K / 2, ROWS]ᵀ · right [K / 2, COLUMNS]` over the sums if these terms are the `first`, else on top of them.
#[target_feature(enable = "avx512f,avx512bf16")]
fn multiply_tile(left: &[Pair], right: &[Pair], sums: &mut Rows, first: bool) {
    const LANES: usize = 16;
    // SAFETY: half a row of a tile is a register's numbers; pairs of bf16 numbers are what the instruction takes.
    unsafe {
        let pairs = |numbers: __m512| std::mem::transmute::<__m512, __m512bh>(numbers);
        let mut registers = [[_mm512_setzero_ps(); 2]; TILE.rows];
        for (factors, right) in left.as_chunks::<{ TILE.rows }>().0.iter().zip(right.as_chunks::<{ TILE.columns }>().0) {
            let right = [0, LANES].map(|half| pairs(_mm512_loadu_ps(right.as_ptr().add(half).cast())));
            for (factor, registers) in factors.iter().zip(&mut registers) {
                let factor = std::mem::transmute::<std::arch::x86_64::__m512i, __m512bh>(_mm512_set1_epi32(factor.cast_signed()));
                for (sum, right) in registers.iter_mut().zip(right) {
                    *sum = _mm512_dpbf16_ps(*sum, factor, right);
                }
            }
        }
        for (sums, registers) in sums.iter_mut().zip(registers) {
            for (half, sum) in [0, LANES].into_iter().zip(registers) {
                let place = sums.as_mut_ptr().add(half);
                _mm512_storeu_ps(place, if first { sum } else { _mm512_add_ps(_mm512_loadu_ps(place), sum) });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::matmul::tests::equals_the_definition;

    /// Rests along each dimension, odd depths, and depths of several copies, with any number of threads.
    #[test]
    fn equals_the_definition_with_any_number_of_threads() {
        if !has_instruction() {
            return;
        }
        let before = tch::get_num_threads();
        for threads in [1, 3] {
            tch::set_num_threads(threads);
            for size in [
                [200, 267, 140],
                [610, 40, 57],
                [40, 15, 610],
                [9, 2305, 70],
                [8, 4096, 32],
                [3, 1, 5],
                [1, 2, 1],
                [0, 5, 3],
                [3, 5, 0],
            ] {
                equals_the_definition::<Bf16, Bf16>(size, |left, right, result, pitch, write| {
                    multiply(left, right, result, pitch, write, Workers::All);
                });
                equals_the_definition::<Bf16, f32>(size, |left, right, result, pitch, write| {
                    multiply(left, right, result, pitch, write, Workers::Caller);
                });
            }
        }
        tch::set_num_threads(before);
    }

    /// Sums that are rounded: their order must not depend on who makes which part. Terms and columns of several copies.
    #[test]
    fn any_number_of_threads_gives_the_same_bits() {
        if !has_instruction() {
            return;
        }
        let [rows, depth, columns] = [70, 2100, 2200];
        let numbers: Vec<Bf16> = (0..depth * columns).map(|n| Bf16::put((n as f32).sin())).collect();
        let (left, right) = (Matrix::new(&numbers[7..], [rows, depth], depth), Matrix::new(&numbers, [depth, columns], columns));
        let before = tch::get_num_threads();
        let [one, three] = [1, 3].map(|threads| {
            tch::set_num_threads(threads);
            let mut result = vec![1.0_f32; rows * columns];
            multiply(left, right, &mut result, columns, Write::Onto, Workers::All);
            result
        });
        tch::set_num_threads(before);
        assert!(one == three);
    }
}
