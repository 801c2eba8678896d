//! From a factor to tiles.

#[allow(clippy::wildcard_imports)]
use std::arch::x86_64::*;

use super::block::Tiles;
use super::tiles::{BLOCK, DEPTH, Part, SIDE, TILE};
use super::{Element, Matrix};
use crate::cpu::simd::Bf16;

/// Which factor a matrix is. Its tiles are `[16 rows, 32 terms]` of a left one, `[16 pairs of terms, 16 columns, 2]` of a right
/// one.
#[derive(Clone, Copy, PartialEq)]
pub enum Side {
    Left,
    Right,
}

/// A factor: rows of the left, columns of the right, which have their place in the result, by terms of its sums.
#[derive(Clone, Copy)]
pub struct Factor<'a, S> {
    values: &'a [S],
    pub side: Side,
    /// Rows or columns, and terms.
    pub size: [usize; 2],
    steps: [usize; 2],
}

/// A number that is the sum of [`Split::PARTS`] bf16 numbers.
pub trait Split: Element {
    const PARTS: usize;
    /// Most rows or columns of the result, and (`LONG`) most terms of its sums, that are packed at once: 1.1 to 1.5 MiB of the 2 of
    /// a second cache.
    const RESIDENT: usize;
    const LONG: usize;
    /// How often [`Split::multiply`] multiplies four pairs of tiles.
    const PIECES: usize;

    /// The parts of [`DEPTH`] terms from `from` on, one after the other.
    ///
    /// # Safety
    /// The processor has AVX-512, and the mask's elements can be read.
    unsafe fn terms(from: *const Self, mask: u32) -> [__m512i; 3];

    /// The parts of two terms of [`SIDE`] rows or columns, of which the first lie at `from`, those of one row or column side by
    /// side.
    ///
    /// # Safety
    /// The processor has AVX-512, and the masks' elements can be read.
    unsafe fn pairs(from: [*const Self; 2], masks: [u16; 2]) -> [__m512i; 3];

    /// The products of all parts of two packed tiles with those of two.
    ///
    /// # Safety
    /// The processor has AVX-512, and all four can be read.
    unsafe fn multiply(tiles: &Tiles, left: [*const Bf16; 2], right: [*const Bf16; 2], meanwhile: &mut impl FnMut(usize));
}

impl Split for Bf16 {
    const PARTS: usize = 1;
    const RESIDENT: usize = 768;
    const LONG: usize = 1024;
    const PIECES: usize = 1;

    #[inline]
    #[target_feature(enable = "avx512bf16,avx512vl")]
    unsafe fn terms(from: *const Self, mask: u32) -> [__m512i; 3] {
        // SAFETY: the caller's promise.
        [unsafe { _mm512_maskz_loadu_epi16(mask, from.cast()) }, _mm512_setzero_si512(), _mm512_setzero_si512()]
    }

    #[inline]
    #[target_feature(enable = "avx512bf16,avx512vl")]
    unsafe fn pairs(from: [*const Self; 2], masks: [u16; 2]) -> [__m512i; 3] {
        // SAFETY: the caller's promise.
        let [even, odd] =
            [0, 1].map(|term| unsafe { _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(masks[term], from[term].cast())) });
        [_mm512_or_si512(even, _mm512_slli_epi32::<16>(odd)), _mm512_setzero_si512(), _mm512_setzero_si512()]
    }

    #[inline]
    #[target_feature(enable = "avx512bf16,avx512vl")]
    unsafe fn multiply(tiles: &Tiles, left: [*const Bf16; 2], right: [*const Bf16; 2], meanwhile: &mut impl FnMut(usize)) {
        // SAFETY: the caller's promise.
        unsafe {
            tiles.load_left(left, 0);
            tiles.load_right(right, 0);
        }
        tiles.multiply_loaded();
        meanwhile(0);
    }
}

impl Split for f32 {
    const PARTS: usize = 3;
    const RESIDENT: usize = 256;
    const LONG: usize = 768;
    const PIECES: usize = 6;

    #[inline]
    #[target_feature(enable = "avx512bf16,avx512vl")]
    unsafe fn terms(from: *const Self, mask: u32) -> [__m512i; 3] {
        let masks = [mask as u16, (mask >> 16) as u16];
        // SAFETY: the caller's promise.
        let [first, second] =
            [0, 1].map(|half| split(unsafe { _mm512_maskz_loadu_ps(masks[half], from.wrapping_add(SIDE * half)) }));
        std::array::from_fn(|part| {
            let rounded = _mm512_cvtne2ps_pbh(second[part], first[part]);
            // SAFETY: the same bits.
            unsafe { std::mem::transmute::<__m512bh, __m512i>(rounded) }
        })
    }

    #[inline]
    #[target_feature(enable = "avx512bf16,avx512vl")]
    unsafe fn pairs(from: [*const Self; 2], masks: [u16; 2]) -> [__m512i; 3] {
        // SAFETY: the caller's promise.
        let [even, odd] = [0, 1].map(|term| split(unsafe { _mm512_maskz_loadu_ps(masks[term], from[term]) }));
        std::array::from_fn(|part| {
            let [even, odd] = [even[part], odd[part]].map(|part| _mm512_castps_si512(part));
            _mm512_mask_blend_epi16(0xAAAA_AAAA, _mm512_srli_epi32::<16>(even), odd)
        })
    }

    /// Products of small parts come first: their sum is not lost in a large one.
    #[inline]
    #[target_feature(enable = "avx512bf16,avx512vl")]
    unsafe fn multiply(tiles: &Tiles, left: [*const Bf16; 2], right: [*const Bf16; 2], meanwhile: &mut impl FnMut(usize)) {
        let mut go_on = |piece| {
            tiles.multiply_loaded();
            meanwhile(piece);
        };
        // SAFETY: the caller's promise.
        unsafe {
            tiles.load_left(left, 0);
            tiles.load_right(right, 2);
            go_on(0);
            tiles.load_right(right, 1);
            go_on(1);
            tiles.load_left(left, 1);
            go_on(2);
            tiles.load_right(right, 0);
            go_on(3);
            tiles.load_left(left, 2);
            go_on(4);
            tiles.load_left(left, 0);
            go_on(5);
        }
    }
}

/// Numbers as bf16 numbers that add up to them, in the upper halves: no part has more than 8 bits, so that nothing is below them.
/// The last part of a number that is not finite is NaN.
#[inline]
#[target_feature(enable = "avx512f")]
fn split(x: __m512) -> [__m512; 3] {
    let first = upper(x);
    let rest = _mm512_sub_ps(x, first);
    let second = upper(rest);
    [first, second, _mm512_sub_ps(rest, second)]
}

/// Rounded to bf16, halves away from zero.
#[inline]
#[target_feature(enable = "avx512f")]
fn upper(x: __m512) -> __m512 {
    let rounded = _mm512_add_epi32(_mm512_castps_si512(x), _mm512_set1_epi32(0x8000));
    _mm512_castsi512_ps(_mm512_and_si512(rounded, _mm512_set1_epi32(!0xFFFF)))
}

/// How much of some work is done after each piece of a step of a product, so that all of it is done when the steps are.
#[derive(Clone, Copy, Default)]
pub struct Pace([usize; 6]);

impl Pace {
    pub fn new<S: Split>(work: usize, steps: usize) -> Self {
        let pace = work.div_ceil(steps);
        Self(std::array::from_fn(|piece| pace * (piece + 1) / S::PIECES - pace * piece / S::PIECES))
    }

    #[inline]
    pub fn at(self, piece: usize) -> usize {
        self.0[piece]
    }
}

impl<'a, S: Split> Factor<'a, S> {
    /// `matrix` has the terms in its columns.
    pub fn new(matrix: Matrix<'a, S>, side: Side) -> Self {
        Self { values: matrix.values, side, size: matrix.size, steps: matrix.steps }
    }

    /// Packs rows or columns into `panels`, `[panels, tiles, PARTS, TILE]`, zeros where the factor has none, during `steps`
    /// steps of a product.
    pub fn pack<'b>(&'b self, part: Part, terms: Part, panels: &'b mut [Bf16], steps: usize) -> Packing<'b, S> {
        assert!(panels.len() >= part.padded(BLOCK) * S::PARTS * terms.padded(DEPTH));
        assert!(terms.end() <= self.size[1] && part.end() <= self.size[0]);
        let pieces = if self.is_turned() { SIDE + S::PARTS } else { SIDE };
        let whole = [part.padded(BLOCK) / SIDE, terms.padded(DEPTH) / DEPTH];
        let pace = Pace::new::<S>(whole[0] * whole[1] * pieces, steps);
        Packing { factor: self, part, terms, panels, whole, now: [0, 0], piece: 0, pieces, pace }
    }

    /// Whether registers are filled with elements that lie side by side in a tile of the other side.
    fn is_turned(&self) -> bool {
        (self.steps[1] == 1) == (self.side == Side::Right)
    }
}

/// Packs panels a piece at a time: a row of a tile in all its parts, or the turning of one part.
pub struct Packing<'a, S> {
    factor: &'a Factor<'a, S>,
    part: Part,
    terms: Part,
    panels: &'a mut [Bf16],
    /// Panels, and tiles of each.
    whole: [usize; 2],
    now: [usize; 2],
    piece: usize,
    pieces: usize,
    pace: Pace,
}

impl<S: Split> Packing<'_, S> {
    #[inline]
    #[target_feature(enable = "avx512bf16,avx512vl")]
    pub fn go_on(&mut self, piece: usize) {
        for _ in 0..self.pace.at(piece) {
            if !self.is_done() {
                self.piece();
            }
        }
    }

    #[target_feature(enable = "avx512bf16,avx512vl")]
    pub fn all(&mut self) {
        while !self.is_done() {
            self.piece();
        }
    }

    #[inline]
    fn is_done(&self) -> bool {
        self.now[0] >= self.whole[0] || self.now[1] >= self.whole[1]
    }

    /// Apart: inlined six times into a product's loop it takes 5 % longer.
    #[inline(never)]
    #[target_feature(enable = "avx512bf16,avx512vl")]
    fn piece(&mut self) {
        let [panel, tile] = self.now;
        let tiles = &mut self.panels[(panel * self.whole[1] + tile) * S::PARTS * TILE..][..S::PARTS * TILE];
        if self.piece < SIDE {
            let (first, from) = (self.part.from + panel * SIDE, self.terms.from + tile * DEPTH);
            let there = [self.part.end().saturating_sub(first).min(SIDE), (self.terms.end() - from).min(DEPTH)];
            // SAFETY: this tile has so many rows or columns, and terms.
            unsafe { self.factor.pack_row([first, from], there, self.piece, tiles) }
        } else {
            transpose_tile(&mut tiles[(self.piece - SIDE) * TILE..][..TILE]);
        }
        self.piece += 1;
        if self.piece == self.pieces {
            self.piece = 0;
            // First along what lies side by side in memory.
            let [outer, inner] = if self.factor.steps[1] == 1 { [0, 1] } else { [1, 0] };
            self.now[inner] += 1;
            if self.now[inner] == self.whole[inner] {
                self.now[inner] = 0;
                self.now[outer] += 1;
            }
        }
    }
}

impl<S: Split> Factor<'_, S> {
    /// # Safety
    /// The processor has tiles, and the factor `count` rows or columns and terms from `first` on.
    #[inline]
    #[target_feature(enable = "avx512bf16,avx512vl")]
    unsafe fn pack_row(&self, first: [usize; 2], [there, count]: [usize; 2], row: usize, tiles: &mut [Bf16]) {
        let [step, term_step] = self.steps;
        let start = self.values.as_ptr().wrapping_add(first[0] * step + first[1] * term_step);
        let (terms_mask, rows_mask) = (u32::MAX >> (DEPTH - count), (u32::from(u16::MAX) >> (SIDE - there)) as u16);
        // SAFETY: elements outside a mask are not read; the rest lies inside the factor. A prefetch reads nothing.
        let parts = unsafe {
            if term_step == 1 {
                let from = start.wrapping_add(row * step);
                for line in (0..DEPTH * size_of::<S>()).step_by(64) {
                    _mm_prefetch::<_MM_HINT_T1>(from.wrapping_add(SIDE * step).cast::<i8>().wrapping_add(line));
                }
                S::terms(from, if row < there { terms_mask } else { 0 })
            } else {
                let from = [2 * row, 2 * row + 1].map(|term| start.wrapping_add(term * term_step));
                for from in from {
                    _mm_prefetch::<_MM_HINT_T1>(from.wrapping_add(DEPTH * term_step).cast());
                }
                S::pairs(from, [2 * row, 2 * row + 1].map(|term| if term < count { rows_mask } else { 0 }))
            }
        };
        for (tile, part) in tiles.chunks_exact_mut(TILE).zip(parts) {
            // SAFETY: the place has the 64 bytes of a register.
            unsafe { _mm512_storeu_si512(tile[row * DEPTH..][..DEPTH].as_mut_ptr().cast(), part) }
        }
    }
}

#[target_feature(enable = "avx512f")]
fn transpose_tile(tile: &mut [Bf16]) {
    assert!(tile.len() == TILE);
    let place = tile.as_mut_ptr();
    // SAFETY: a tile has 16 rows of 64 bytes.
    let rows = std::array::from_fn(|row| unsafe { _mm512_loadu_si512(place.add(row * DEPTH).cast()) });
    for (row, turned) in transpose(&rows).into_iter().enumerate() {
        // SAFETY: as above.
        unsafe { _mm512_storeu_si512(place.add(row * DEPTH).cast(), turned) }
    }
}

/// 16 rows of 16 pairs.
#[target_feature(enable = "avx512f")]
fn transpose(rows: &[__m512i; SIDE]) -> [__m512i; SIDE] {
    let pairs: [__m512i; SIDE] = std::array::from_fn(|i| {
        let (left, right) = (rows[i / 2 * 2], rows[i / 2 * 2 + 1]);
        if i % 2 == 0 { _mm512_unpacklo_epi32(left, right) } else { _mm512_unpackhi_epi32(left, right) }
    });
    // Column `4 · lane + i % 4` of rows `4 · (i / 4)` to three more.
    let fours: [__m512i; SIDE] = std::array::from_fn(|i| {
        let (four, column) = (i / 4 * 4, i % 4);
        let (left, right) = (pairs[four + column / 2], pairs[four + 2 + column / 2]);
        if column % 2 == 0 { _mm512_unpacklo_epi64(left, right) } else { _mm512_unpackhi_epi64(left, right) }
    });
    let halves: [__m512i; SIDE] = std::array::from_fn(|i| {
        let (column, which) = (i % 4, i / 4);
        let (left, right) = (fours[which / 2 * 8 + column], fours[which / 2 * 8 + 4 + column]);
        // Lanes 0 and 2, or 1 and 3, of both.
        if which % 2 == 0 { _mm512_shuffle_i32x4::<0x88>(left, right) } else { _mm512_shuffle_i32x4::<0xDD>(left, right) }
    });
    // `halves[4 · which + column]`: rows 0 to 7 for which 0 and 1, 8 to 15 for 2 and 3; lanes of even or of odd number.
    std::array::from_fn(|i| {
        let (lane, column) = (i / 4, i % 4);
        let (left, right) = (halves[lane % 2 * 4 + column], halves[8 + lane % 2 * 4 + column]);
        // Each has [lane a of rows 0-3, lane a + 2 of rows 0-3, lane a of rows 4-7, lane a + 2 of rows 4-7].
        if lane < 2 { _mm512_shuffle_i32x4::<0x88>(left, right) } else { _mm512_shuffle_i32x4::<0xDD>(left, right) }
    })
}
