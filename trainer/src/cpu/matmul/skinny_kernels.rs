//! The kernels of [`super::skinny`], written once and compiled for each kind of register.

use std::arch::x86_64::{
    __m256, __m512, _MM_HINT_T1, _mm_prefetch, _mm256_add_ps, _mm256_fmadd_ps, _mm256_loadu_ps, _mm256_set1_ps, _mm256_setzero_ps,
    _mm256_storeu_ps, _mm512_add_ps, _mm512_castps512_ps256, _mm512_fmadd_ps, _mm512_loadu_ps, _mm512_permute_ps,
    _mm512_permutexvar_ps, _mm512_set1_ps, _mm512_setr_epi32, _mm512_setzero_ps, _mm512_shuffle_f32x4, _mm512_shuffle_ps,
    _mm512_storeu_ps,
};
use std::hint::black_box;

use crate::cpu::vectorise::has_avx512;

/// Rows of the matrix that [`Pass`]es use at once, as they lie.
pub const EIGHT: usize = 8;
/// `f32`s that come from memory together.
pub const LINE: usize = 16;
/// Sums that a kernel of dot products has at once, at most.
const DOTS: usize = 24;

/// `x` and its pitch, some rows of the matrix from one column on and its pitch, and the sums, as many columns as these are.
pub type Pass = unsafe fn(&[f32], usize, &[f32], usize, &mut [f32]);
/// `x` and its pitch, a tile of the matrix as it lies and its pitch, the tile's copy, the sums from the tile's first on, and their
/// pitch.
pub type Tile = unsafe fn(&[f32], usize, (&[f32], usize), &mut [f32], (&mut [f32], usize), &mut Ahead);
/// `x`, the rows of the transposed matrix, the depth of both, the sums and their pitch.
pub type Dots = unsafe fn(&[f32], &[f32], usize, &mut [f32], usize, &mut Ahead);

/// By the number of rows less one.
pub struct Kernels {
    /// For as many rows as the matrix is read in place for: with more, passing over the sums for each eight rows of it costs more
    /// than a copy.
    pub eights: &'static [Pass],
    pub singles: &'static [Pass],
    /// Tiles of as many rows as registers hold sums of, two for each row, with some left. The first make the copy that the others
    /// read.
    pub copying_tiles: &'static [Tile],
    pub tiles: &'static [Tile],
    /// With the number of columns at once: as many as most of the registers hold sums of.
    pub dots: &'static [(usize, Dots)],
}

/// A vector register of `f32`s. Its functions are inlined into kernels that are compiled for processors that have it.
pub trait Register: Copy {
    const LANES: usize;
    /// Columns of a tile.
    const TILE: usize = 2 * Self::LANES;
    /// Columns that one thread computes before it asks for more, at most.
    const PANEL: usize = 512;
    /// Rows of the matrix in a copy: those of a panel and what comes next fit into the second cache with the sums.
    const BLOCK: usize = 64;
    /// Rows of a transposed matrix that stay in the second cache while one group of rows after the other meets them.
    const SHARE: usize = 4 * Self::LANES;
    const KERNELS: Kernels;

    /// Whether the processor has it.
    fn is_available() -> bool;

    /// # Safety
    /// This and what follows: the processor has the register, and there are [`Register::LANES`] elements at `place`.
    unsafe fn load(place: *const f32) -> Self;
    unsafe fn store(self, place: *mut f32);
    unsafe fn zero() -> Self;
    unsafe fn all(value: f32) -> Self;
    unsafe fn multiply_add(self, factor: Self, term: Self) -> Self;
    unsafe fn add(self, term: Self) -> Self;
    /// The sum of each of the registers that `lanes` are, one after the other, in one order.
    ///
    /// # Safety
    /// The processor has the register.
    unsafe fn sums(lanes: &[f32; DOTS * LINE], sums: &mut [f32; DOTS]);
}

/// Implements [`Register`].
macro_rules! register {
    ($register:ty, $lanes:literal, if $available:expr, $features:literal,
     $load:ident, $store:ident, $zero:ident, $all:ident, $multiply_add:ident, $add:ident, $sums:expr,
     rows [$($rows:literal),*], tiles [$($tiles:literal),*], dots [$($dots:literal by $columns:literal),*]) => {
        impl Register for $register {
            const LANES: usize = $lanes;
            const KERNELS: Kernels = {
                #[target_feature(enable = $features)]
                unsafe fn pass<const ROWS: usize, const DEPTH: usize>(
                    x: &[f32],
                    depth: usize,
                    w: &[f32],
                    pitch: usize,
                    sums: &mut [f32],
                ) {
                    // SAFETY: the caller promised what is asked for.
                    unsafe { stream_rows::<$register, ROWS, DEPTH>(x, depth, w, pitch, sums) }
                }
                #[target_feature(enable = $features)]
                unsafe fn tile<const ROWS: usize, const COPY: bool>(
                    x: &[f32],
                    depth: usize,
                    w: (&[f32], usize),
                    copy: &mut [f32],
                    sums: (&mut [f32], usize),
                    ahead: &mut Ahead,
                ) {
                    // SAFETY: as above.
                    unsafe { tile_rows::<$register, ROWS, COPY>(x, depth, w, copy, sums, ahead) }
                }
                #[target_feature(enable = $features)]
                unsafe fn dots<const ROWS: usize, const COLUMNS: usize>(
                    x: &[f32],
                    w: &[f32],
                    depth: usize,
                    sums: &mut [f32],
                    width: usize,
                    ahead: &mut Ahead,
                ) {
                    // SAFETY: as above.
                    unsafe { dot_rows::<$register, ROWS, COLUMNS>(x, w, depth, sums, width, ahead) }
                }
                Kernels {
                    eights: &[$(pass::<$rows, EIGHT>),*],
                    singles: &[$(pass::<$rows, 1>),*],
                    copying_tiles: &[$(tile::<$tiles, true>),*],
                    tiles: &[$(tile::<$tiles, false>),*],
                    dots: &[$(($columns, dots::<$dots, $columns>)),*],
                }
            };

            fn is_available() -> bool {
                $available
            }

            #[inline(always)]
            unsafe fn load(place: *const f32) -> Self {
                // SAFETY: here and below, the caller promised what the instruction asks for.
                unsafe { $load(place) }
            }

            #[inline(always)]
            unsafe fn store(self, place: *mut f32) {
                unsafe { $store(place, self) }
            }

            #[inline(always)]
            unsafe fn zero() -> Self {
                unsafe { $zero() }
            }

            #[inline(always)]
            unsafe fn all(value: f32) -> Self {
                unsafe { $all(value) }
            }

            #[inline(always)]
            unsafe fn multiply_add(self, factor: Self, term: Self) -> Self {
                unsafe { $multiply_add(self, factor, term) }
            }

            #[inline(always)]
            unsafe fn add(self, term: Self) -> Self {
                unsafe { $add(self, term) }
            }

            #[inline(always)]
            unsafe fn sums(lanes: &[f32; DOTS * LINE], sums: &mut [f32; DOTS]) {
                unsafe { $sums(lanes, sums) }
            }
        }
    };
}

register!(
    __m512, 16, if has_avx512(), "avx512f",
    _mm512_loadu_ps, _mm512_storeu_ps, _mm512_setzero_ps, _mm512_set1_ps, _mm512_fmadd_ps, _mm512_add_ps, sums_of_sixteen_lanes,
    rows [1, 2, 3, 4, 5, 6, 7, 8],
    tiles [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12],
    dots [1 by 8, 2 by 8, 3 by 8, 4 by 4, 5 by 4, 6 by 4]
);
register!(
    __m256, 8, if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma"), "avx2,fma",
    _mm256_loadu_ps, _mm256_storeu_ps, _mm256_setzero_ps, _mm256_set1_ps, _mm256_fmadd_ps, _mm256_add_ps, sums_of_eight_lanes,
    rows [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12],
    tiles [1, 2, 3, 4, 5, 6],
    dots [1 by 8, 2 by 4, 3 by 4, 4 by 2, 5 by 2, 6 by 2]
);

/// One half of eight registers is added to the other until one number of each is left; registers that are half used share one.
///
/// # Safety
/// The processor has the register.
#[target_feature(enable = "avx512f")]
unsafe fn sums_of_sixteen_lanes(lanes: &[f32; DOTS * LINE], sums: &mut [f32; DOTS]) {
    /// Two registers' halves, quarters or neighbours, by the places that are shuffled.
    macro_rules! folded {
        ($shuffle:ident, $these:literal + $those:literal, $first:expr, $second:expr) => {{
            let (first, second) = ($first, $second);
            _mm512_add_ps($shuffle::<$these>(first, second), $shuffle::<$those>(first, second))
        }};
    }
    let in_order = _mm512_setr_epi32(0, 4, 8, 12, 2, 6, 10, 14, 0, 0, 0, 0, 0, 0, 0, 0);
    for (lanes, sums) in lanes.as_chunks::<{ EIGHT * LINE }>().0.iter().zip(sums.as_chunks_mut::<EIGHT>().0) {
        // SAFETY: eight registers' lanes lie there, and there is room for eight sums.
        unsafe {
            let registers: [__m512; EIGHT] = std::array::from_fn(|number| _mm512_loadu_ps(lanes.as_ptr().add(number * LINE)));
            macro_rules! quarters {
                ($number:literal) => {{
                    let [one, two, three, four] = [0, 1, 2, 3].map(|next| registers[$number + next]);
                    let low = folded!(_mm512_shuffle_f32x4, 0x44 + 0xEE, one, two);
                    let high = folded!(_mm512_shuffle_f32x4, 0x44 + 0xEE, three, four);
                    folded!(_mm512_shuffle_f32x4, 0x88 + 0xDD, low, high)
                }};
            }
            let pairs = folded!(_mm512_shuffle_ps, 0x44 + 0xEE, quarters!(0), quarters!(4));
            let twice = _mm512_add_ps(pairs, _mm512_permute_ps::<0xB1>(pairs));
            _mm256_storeu_ps(sums.as_mut_ptr(), _mm512_castps512_ps256(_mm512_permutexvar_ps(in_order, twice)));
        }
    }
}

/// # Safety
/// None is asked for; it is called as the other.
unsafe fn sums_of_eight_lanes(lanes: &[f32; DOTS * LINE], sums: &mut [f32; DOTS]) {
    for (lanes, sum) in lanes.chunks(<__m256 as Register>::LANES).zip(sums) {
        *sum = lanes.iter().sum();
    }
}

/// The data that is read next, `[rows, width]`: a line of it is brought nearer with each step of the computation before. All at
/// once would have to wait for memory.
pub struct Ahead {
    line: *const f32,
    left_in_row: usize,
    lines_of_row: usize,
    rows: usize,
    /// From the last line of a row to the first of the next, modulo the size of the address space: a row may end inside its last
    /// line.
    gap: usize,
    /// Since the last line, and for a line.
    steps: usize,
    pace: usize,
}

impl Ahead {
    /// All of it is there when `groups` of rows have met as much of the matrix, if a step is one group's work with so many `lines`
    /// of that.
    pub fn new(first: *const f32, pitch: usize, [rows, width]: [usize; 2], groups: usize, lines: usize) -> Self {
        let lines_of_row = width.div_ceil(LINE);
        Self {
            line: first,
            left_in_row: lines_of_row,
            lines_of_row,
            rows,
            gap: pitch.wrapping_sub(lines_of_row * LINE),
            steps: 0,
            pace: (groups / lines).max(1),
        }
    }

    #[expect(clippy::inline_always, reason = "called in the innermost loop, with registers of the caller's")]
    #[inline(always)]
    fn step(&mut self) {
        self.steps += 1;
        if self.steps < self.pace || self.rows == 0 {
            return;
        }
        self.steps = 0;
        // SAFETY: nothing is read from the address.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(self.line.cast()) }
        self.line = self.line.wrapping_add(LINE);
        self.left_in_row -= 1;
        if self.left_in_row == 0 {
            (self.left_in_row, self.rows) = (self.lines_of_row, self.rows - 1);
            self.line = self.line.wrapping_add(self.gap);
        }
    }
}

/// # Safety
/// The processor has the register; `sums` is `[ROWS, columns]`, `columns` a multiple of the register's lanes; `x` has `ROWS` rows
/// `depth` apart with `DEPTH` elements in each, `w` has `DEPTH` rows `pitch` apart with `columns`.
#[expect(clippy::inline_always, reason = "compiled for the register only when it is inlined into what names its features")]
#[inline(always)]
unsafe fn stream_rows<R: Register, const ROWS: usize, const DEPTH: usize>(
    x: &[f32],
    depth: usize,
    w: &[f32],
    pitch: usize,
    sums: &mut [f32],
) {
    let columns = sums.len() / ROWS;
    // SAFETY: these are the elements that the caller promised, and `R::LANES` from each column on are inside a row.
    unsafe {
        let mut factors = [[R::zero(); DEPTH]; ROWS];
        for (row, factors) in factors.iter_mut().enumerate() {
            for (k, factor) in factors.iter_mut().enumerate() {
                *factor = R::all(*x.get_unchecked(row * depth + k));
            }
        }
        for column in (0..columns).step_by(R::LANES) {
            let mut weights = [R::zero(); DEPTH];
            for (k, weight) in weights.iter_mut().enumerate() {
                *weight = R::load(w.as_ptr().add(k * pitch + column));
            }
            for (row, factors) in factors.iter().enumerate() {
                let place = sums.as_mut_ptr().add(row * columns + column);
                let mut sum = R::load(place);
                for (factor, weight) in factors.iter().zip(weights) {
                    sum = factor.multiply_add(weight, sum);
                }
                sum.store(place);
            }
        }
    }
}

/// # Safety
/// The processor has the register; `copy` is `[block, tile]`, `x` has `ROWS` rows `depth` apart with `block` elements in each, and
/// the sums have as many rows `width` apart with a tile's elements, two registers, in each. To be copied, the matrix has `block`
/// rows `pitch` apart with as many.
#[expect(clippy::inline_always, reason = "as above")]
#[inline(always)]
unsafe fn tile_rows<R: Register, const ROWS: usize, const COPY: bool>(
    x: &[f32],
    depth: usize,
    (w, pitch): (&[f32], usize),
    copy: &mut [f32],
    (sums, width): (&mut [f32], usize),
    ahead: &mut Ahead,
) {
    let place = sums.as_mut_ptr();
    // SAFETY: the caller promised two registers' elements in each row of the sums, and `block` in each row of `x`: there are as
    // many chunks.
    unsafe {
        let mut held = [[R::zero(); 2]; ROWS];
        for (row, held) in held.iter_mut().enumerate() {
            for (half, held) in held.iter_mut().enumerate() {
                *held = R::load(place.add(row * width + half * R::LANES));
            }
        }
        for (k, copy) in copy.chunks_exact_mut(R::TILE).enumerate() {
            ahead.step();
            let from = if COPY { w.as_ptr().add(k * pitch) } else { copy.as_ptr() };
            let weights = [R::load(from), R::load(from.add(R::LANES))];
            if COPY {
                weights[0].store(copy.as_mut_ptr());
                weights[1].store(copy.as_mut_ptr().add(R::LANES));
            }
            for (row, held) in held.iter_mut().enumerate() {
                let factor = R::all(*x.get_unchecked(row * depth + k));
                for (held, weight) in held.iter_mut().zip(weights) {
                    *held = factor.multiply_add(weight, *held);
                }
            }
        }
        for (row, held) in held.iter().enumerate() {
            for (half, held) in held.iter().enumerate() {
                held.store(place.add(row * width + half * R::LANES));
            }
        }
    }
}

/// # Safety
/// The processor has the register; `depth` is a multiple of its lanes, `x` has `ROWS · depth` elements, `w` at least `COLUMNS ·
/// depth`, and `sums` `ROWS` rows `width` apart with `COLUMNS` elements in each.
#[expect(clippy::inline_always, reason = "as above")]
#[inline(always)]
unsafe fn dot_rows<R: Register, const ROWS: usize, const COLUMNS: usize>(
    x: &[f32],
    w: &[f32],
    depth: usize,
    sums: &mut [f32],
    width: usize,
    ahead: &mut Ahead,
) {
    const { assert!(ROWS * COLUMNS <= DOTS && R::LANES <= LINE) }
    let (mut lanes, mut dots) = ([0.0; DOTS * LINE], [0.0; DOTS]);
    // SAFETY: a register's elements from `k` on are inside each row of both factors.
    unsafe {
        let mut held = [[R::zero(); COLUMNS]; ROWS];
        for k in (0..depth).step_by(R::LANES) {
            ahead.step();
            let mut weights = [R::zero(); COLUMNS];
            for (column, weight) in weights.iter_mut().enumerate() {
                *weight = R::load(w.as_ptr().add(column * depth + k));
            }
            for (row, held) in held.iter_mut().enumerate() {
                let factor = R::load(x.as_ptr().add(row * depth + k));
                for (held, weight) in held.iter_mut().zip(weights) {
                    *held = factor.multiply_add(weight, *held);
                }
            }
        }
        for (held, lanes) in held.as_flattened().iter().zip(lanes.chunks_exact_mut(R::LANES)) {
            held.store(lanes.as_mut_ptr());
        }
        // From memory: what adds up lanes can only be said of sixteen of AVX-512's registers, and to have the sums among those the
        // compiler would keep the rest of them in memory during the loop above, at a third of its time.
        R::sums(black_box(&lanes), &mut dots);
    }
    for (sums, dots) in sums.chunks_mut(width).zip(dots.chunks_exact(COLUMNS)).take(ROWS) {
        sums[..COLUMNS].copy_from_slice(dots);
    }
}
