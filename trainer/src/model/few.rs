//! Products of a few rows with a large matrix in `f32`, as generation makes them for every token. With up to a dozen rows the time is that
//! of reading the matrix from main memory once, so it is read as it lies, in long pieces; with more it is that of computing, and a
//! thread copies a part of the matrix into its nearest caches before it uses it for one dozen rows after the other. A general product
//! copies in any case, and for fewer rows than it is made for.
//!
//! Only for AVX-512; elsewhere, and for sizes that do not fill a panel, the caller's general product serves. Each element is summed in
//! one fixed order, whatever the number of threads and of rows.

/// Rows of the left factor at most.
pub(super) const MOST: usize = 96;

/// `x [M, K]` · `w [K, N]` added to `y [M, N]`, all without gaps. False: this is a case for the general product, and nothing was done.
pub(super) fn add_product(x: &[f32], w: &[f32], y: &mut [f32], [rows, depth, columns]: [usize; 3]) -> bool {
    #[cfg(target_arch = "x86_64")]
    if avx512::serves(rows) {
        assert!(x.len() == rows * depth && w.len() == depth * columns && y.len() == rows * columns);
        if rows <= avx512::GROUP {
            return avx512::stream(x, w, y, [rows, depth, columns]);
        }
        return avx512::in_panels([rows, columns], y, |panel, sums| {
            let w = avx512::Strip { w: &w[panel.start..], pitch: columns, width: panel.len() };
            avx512::pack_and_multiply(x, depth, w, sums);
        });
    }
    let _ = (x, w, y, rows, depth, columns);
    false
}

/// `x [M, K]` · `wᵀ` for `w [N, K]` added to `y [M, N]`; otherwise as [`add_product`].
pub(super) fn add_product_transposed(x: &[f32], w: &[f32], y: &mut [f32], [rows, depth, columns]: [usize; 3]) -> bool {
    #[cfg(target_arch = "x86_64")]
    if avx512::serves(rows) && depth.is_multiple_of(avx512::LANES) {
        assert!(x.len() == rows * depth && w.len() == depth * columns && y.len() == rows * columns);
        return avx512::in_panels([rows, columns], y, |panel, sums| {
            avx512::multiply_transposed(x, depth, &w[panel.start * depth..panel.end * depth], sums);
        });
    }
    let _ = (x, w, y, rows, depth, columns);
    false
}

#[cfg(target_arch = "x86_64")]
mod avx512 {
    use std::{
        arch::x86_64::{
            __m512, _MM_HINT_T1, _mm_prefetch, _mm512_fmadd_ps, _mm512_loadu_ps, _mm512_reduce_add_ps, _mm512_set1_ps,
            _mm512_setzero_ps, _mm512_storeu_ps,
        },
        ops::Range,
    };

    use super::MOST;
    use crate::{
        parallel::{self, threads},
        simd::add,
        vectorise::has_avx512,
    };

    /// A kernel for each number of rows in a group.
    macro_rules! each_number_of_rows {
        ($kernel:ident $(, $depth:expr)?) => {
            [
                $kernel::<1 $(, { $depth })?>,
                $kernel::<2 $(, { $depth })?>,
                $kernel::<3 $(, { $depth })?>,
                $kernel::<4 $(, { $depth })?>,
                $kernel::<5 $(, { $depth })?>,
                $kernel::<6 $(, { $depth })?>,
                $kernel::<7 $(, { $depth })?>,
                $kernel::<8 $(, { $depth })?>,
                $kernel::<9 $(, { $depth })?>,
                $kernel::<10 $(, { $depth })?>,
                $kernel::<11 $(, { $depth })?>,
                $kernel::<12 $(, { $depth })?>,
            ]
        };
    }

    /// `f32`s in a register.
    pub const LANES: usize = 16;
    /// Rows whose sums the registers hold at once, for a tile of columns.
    pub const GROUP: usize = 12;
    /// Columns of a tile: two registers.
    const TILE: usize = 2 * LANES;
    /// Columns that one thread computes before it asks for more, at most: 4 KiB of each of the matrix's rows.
    const PANEL: usize = 1024;
    /// Parts of a matrix whose products are added up at the end, so that the sum's order does not depend on the number of threads.
    const PARTS: usize = 16;
    /// Rows of the matrix that are used at once: as they lie, and as a copy that fits into the second cache with what comes next.
    const EIGHT: usize = 8;
    const BLOCK: usize = 128;
    /// Rows of a transposed matrix that stay in the second cache while one group of rows after the other meets them.
    const SHARE: usize = 64;

    /// Some columns of a matrix: row `k` begins at `w[k · pitch]`.
    #[derive(Clone, Copy)]
    pub struct Strip<'a> {
        pub w: &'a [f32],
        pub pitch: usize,
        pub width: usize,
    }

    pub fn serves(rows: usize) -> bool {
        (1..=MOST).contains(&rows) && has_avx512()
    }

    /// Calls `compute` for panels that cover all columns, the last moved back so that it ends with them, with room for the panel's sums,
    /// `[M, width]` of zeros; adds them to `y [M, N]`. A panel's width is a multiple of a tile's. False: there are too few columns.
    pub fn in_panels([rows, columns]: [usize; 2], y: &mut [f32], compute: impl Fn(Range<usize>, &mut [f32]) + Sync) -> bool {
        let shares = threads() * columns.div_ceil(threads() * PANEL);
        let width = columns.div_ceil(shares).next_multiple_of(TILE);
        if columns < width {
            return false;
        }
        let first = |panel: usize| (panel * width).min(columns - width);
        let mut sums = vec![0.0; columns.div_ceil(width) * rows * width];
        let work = sums.chunks_mut(rows * width).enumerate();
        parallel::run(work.collect(), |(panel, sums)| compute(first(panel)..first(panel) + width, sums));
        parallel::run(y.chunks_mut(columns).enumerate().collect(), |(row, y)| {
            for (panel, sums) in sums.chunks(rows * width).enumerate() {
                let (own, first) = (panel * width, first(panel));
                add(&mut y[own..first + width], &sums[row * width + own - first..(row + 1) * width]);
            }
        });
        true
    }

    /// `x [M, K]` · `w [K, N]` added to `y [M, N]` for up to [`GROUP`] rows, by threads that each read a part of the matrix from its
    /// beginning to its end. False: rows of the matrix do not fill registers.
    pub fn stream(x: &[f32], w: &[f32], y: &mut [f32], [rows, depth, columns]: [usize; 3]) -> bool {
        const EIGHTS: [Pass; GROUP] = each_number_of_rows!(stream_rows, EIGHT);
        const SINGLES: [Pass; GROUP] = each_number_of_rows!(stream_rows, 1);
        if !columns.is_multiple_of(LANES) {
            return false;
        }
        let part = depth.div_ceil(PARTS).next_multiple_of(EIGHT);
        let mut sums = vec![0.0; depth.div_ceil(part) * rows * columns];
        parallel::run(
            sums.chunks_mut(rows * columns).zip(w.chunks(part * columns)).enumerate().collect(),
            |(number, (sums, w))| {
                let x = &x[number * part..];
                let (eights, rest) = w.split_at(w.len() - w.len() % (EIGHT * columns));
                for (k, w) in eights.chunks(EIGHT * columns).enumerate() {
                    // SAFETY: the processor has AVX-512, or nothing would have come here; the caller saw to the sizes.
                    unsafe { EIGHTS[rows - 1](&x[k * EIGHT..], depth, w, sums) }
                }
                for (k, w) in rest.chunks(columns).enumerate() {
                    // SAFETY: as above.
                    unsafe { SINGLES[rows - 1](&x[eights.len() / columns + k..], depth, w, sums) }
                }
            },
        );
        parallel::run(y.chunks_mut(PANEL).enumerate().collect(), |(piece, y)| {
            for sums in sums.chunks(rows * columns) {
                add(y, &sums[piece * PANEL..][..y.len()]);
            }
        });
        true
    }

    /// The product of any number of rows `x [M, K]` with the strip, added to `sums [M, width]`.
    pub fn pack_and_multiply(x: &[f32], depth: usize, strip: Strip<'_>, sums: &mut [f32]) {
        const TILES: [Tile; GROUP] = each_number_of_rows!(tile_rows);
        let (rows, width) = (x.len() / depth, strip.width);
        check(rows, depth, strip, sums);
        let mut packed = vec![0.0; (BLOCK.min(depth) * TILE + TILE) * width / TILE];
        for k in (0..depth).step_by(BLOCK) {
            let block = BLOCK.min(depth - k);
            pack(&strip.w[k * strip.pitch..], strip.pitch, [block, width], &mut packed);
            let next = BLOCK.min(depth - k - block);
            let mut ahead = Ahead::new(
                strip.w.as_ptr().wrapping_add((k + block) * strip.pitch),
                strip.pitch,
                [next, width],
                groups(rows).count(),
            );
            for (tile, packed) in packed.chunks(block * TILE + TILE).take(width / TILE).enumerate() {
                let packed = &packed[..block * TILE];
                for group in groups(rows) {
                    let (x, sums) = (&x[group.start * depth + k..], &mut sums[group.start * width + tile * TILE..]);
                    // SAFETY: as in `stream`; `groups` covers `rows`, and a tile has `TILE` columns of the width.
                    unsafe { TILES[group.len() - 1](x, depth, packed, sums, width, &mut ahead) }
                }
            }
        }
    }

    /// `x [M, K]` · `wᵀ` for `w [width, K]`, into `sums [M, width]`.
    pub fn multiply_transposed(x: &[f32], depth: usize, w: &[f32], sums: &mut [f32]) {
        let (rows, width) = (x.len() / depth, w.len() / depth);
        assert!(depth.is_multiple_of(LANES) && width.is_multiple_of(TILE) && sums.len() == rows * width);
        for share in (0..width).step_by(SHARE) {
            let next = &w[(share + SHARE).min(width) * depth..(share + 2 * SHARE).min(width) * depth];
            let mut ahead = Ahead::new(next.as_ptr(), depth, [next.len() / depth, depth], groups(rows).count());
            for group in groups(rows) {
                let (at_once, dots) = DOTS[group.len() - 1];
                let x = &x[group.start * depth..group.end * depth];
                for column in (share..width.min(share + SHARE)).step_by(at_once) {
                    // SAFETY: as in `stream`; `at_once` divides a tile, so that many rows of `w` and columns of `sums` are left.
                    unsafe { dots(x, &w[column * depth..], depth, &mut sums[group.start * width + column..], width, &mut ahead) }
                }
            }
        }
    }

    fn check(rows: usize, depth: usize, strip: Strip<'_>, sums: &[f32]) {
        assert!(strip.width.is_multiple_of(TILE) && sums.len() == rows * strip.width && strip.width <= strip.pitch);
        assert!(depth > 0 && (depth - 1) * strip.pitch + strip.width <= strip.w.len());
    }

    /// Rows in groups of nearly the same size.
    fn groups(rows: usize) -> impl Iterator<Item = Range<usize>> {
        let count = rows.div_ceil(GROUP);
        (0..count).map(move |group| group * rows / count..(group + 1) * rows / count)
    }

    /// What is read next, `[rows, width]`: a line of it is brought nearer with each step of the computation before. All at once would
    /// have to wait for memory.
    struct Ahead {
        line: *const f32,
        left_in_row: usize,
        lines_of_row: usize,
        rows: usize,
        /// From the last line of a row to the first of the next.
        gap: usize,
        /// Since the last line, and for a line.
        steps: usize,
        pace: usize,
    }

    impl Ahead {
        /// All of it is there when `groups` of rows have met as much of the matrix: a step is one group's work with two lines of that.
        fn new(first: *const f32, pitch: usize, [rows, width]: [usize; 2], groups: usize) -> Self {
            let lines = width.div_ceil(LANES);
            Self {
                line: first,
                left_in_row: lines,
                lines_of_row: lines,
                rows,
                gap: pitch - lines * LANES,
                steps: 0,
                pace: groups.div_ceil(2),
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
            self.line = self.line.wrapping_add(LANES);
            self.left_in_row -= 1;
            if self.left_in_row == 0 {
                (self.left_in_row, self.rows) = (self.lines_of_row, self.rows - 1);
                self.line = self.line.wrapping_add(self.gap);
            }
        }
    }

    /// `w [block, width]`, rows `pitch` apart, as `[width / TILE, block, TILE]` without gaps. The matrix is read row by row.
    fn pack(w: &[f32], pitch: usize, [block, width]: [usize; 2], packed: &mut [f32]) {
        for k in 0..block {
            for (tile, from) in w[k * pitch..k * pitch + width].chunks_exact(TILE).enumerate() {
                packed[(tile * (block + 1) + k) * TILE..][..TILE].copy_from_slice(from);
            }
        }
    }

    /// `x`, its pitch, some rows of the matrix and the sums.
    type Pass = unsafe fn(&[f32], usize, &[f32], &mut [f32]);
    /// `x`, its pitch, a packed tile, the sums from the tile's first on, and their pitch.
    type Tile = unsafe fn(&[f32], usize, &[f32], &mut [f32], usize, &mut Ahead);
    /// `x`, the rows of the transposed matrix, the depth of both, the sums and their pitch.
    type Dots = unsafe fn(&[f32], &[f32], usize, &mut [f32], usize, &mut Ahead);

    /// By the number of rows: as many columns at once as 24 of the 32 registers hold sums of.
    const DOTS: [(usize, Dots); GROUP] = [
        (8, dot_rows::<1, 8>),
        (8, dot_rows::<2, 8>),
        (8, dot_rows::<3, 8>),
        (4, dot_rows::<4, 4>),
        (4, dot_rows::<5, 4>),
        (4, dot_rows::<6, 4>),
        (2, dot_rows::<7, 2>),
        (2, dot_rows::<8, 2>),
        (2, dot_rows::<9, 2>),
        (2, dot_rows::<10, 2>),
        (2, dot_rows::<11, 2>),
        (2, dot_rows::<12, 2>),
    ];

    /// # Safety
    /// The processor has AVX-512; `x` has `ROWS` rows `pitch` apart with `DEPTH` elements in each, `w` is `[DEPTH, N]` and `sums`
    /// `[ROWS, N]`, and `N` is a multiple of `LANES`.
    #[target_feature(enable = "avx512f")]
    unsafe fn stream_rows<const ROWS: usize, const DEPTH: usize>(x: &[f32], pitch: usize, w: &[f32], sums: &mut [f32]) {
        let columns = w.len() / DEPTH;
        // SAFETY: these are the elements that the caller promised.
        let factors: [[__m512; DEPTH]; ROWS] =
            std::array::from_fn(|row| std::array::from_fn(|k| _mm512_set1_ps(unsafe { *x.get_unchecked(row * pitch + k) })));
        for column in (0..columns).step_by(LANES) {
            // SAFETY: `LANES` elements from here on are inside row `k` of the matrix.
            let weights: [__m512; DEPTH] =
                std::array::from_fn(|k| unsafe { _mm512_loadu_ps(w.as_ptr().add(k * columns + column)) });
            for (row, factors) in factors.iter().enumerate() {
                // SAFETY: `LANES` elements from here on are inside row `row` of the sums.
                let place = unsafe { sums.as_mut_ptr().add(row * columns + column) };
                let mut sum = unsafe { _mm512_loadu_ps(place) };
                for (factor, weight) in factors.iter().zip(weights) {
                    sum = _mm512_fmadd_ps(*factor, weight, sum);
                }
                unsafe { _mm512_storeu_ps(place, sum) };
            }
        }
    }

    /// # Safety
    /// The processor has AVX-512; `packed` is `[block, TILE]`, `x` has `ROWS` rows `pitch` apart with `block` elements in each, and
    /// `sums` as many rows `width` apart with `TILE` elements in each.
    #[target_feature(enable = "avx512f")]
    unsafe fn tile_rows<const ROWS: usize>(
        x: &[f32],
        pitch: usize,
        packed: &[f32],
        sums: &mut [f32],
        width: usize,
        ahead: &mut Ahead,
    ) {
        let place = sums.as_mut_ptr();
        let mut held: [[__m512; 2]; ROWS] = std::array::from_fn(|row| {
            // SAFETY: the caller promised two registers' elements in each row.
            std::array::from_fn(|half| unsafe { _mm512_loadu_ps(place.add(row * width + half * LANES)) })
        });
        for (k, weights) in packed.chunks_exact(TILE).enumerate() {
            ahead.step();
            // SAFETY: a chunk is two registers' elements.
            let weights: [__m512; 2] = std::array::from_fn(|half| unsafe { _mm512_loadu_ps(weights.as_ptr().add(half * LANES)) });
            for (row, held) in held.iter_mut().enumerate() {
                // SAFETY: the caller promised `block` elements in each row, and there are as many chunks.
                let factor = _mm512_set1_ps(unsafe { *x.get_unchecked(row * pitch + k) });
                for (held, weight) in held.iter_mut().zip(weights) {
                    *held = _mm512_fmadd_ps(factor, weight, *held);
                }
            }
        }
        for (row, held) in held.iter().enumerate() {
            for (half, held) in held.iter().enumerate() {
                // SAFETY: as where they were read.
                unsafe { _mm512_storeu_ps(place.add(row * width + half * LANES), *held) };
            }
        }
    }

    /// # Safety
    /// The processor has AVX-512; `depth` is a multiple of `LANES`, `x` has `ROWS · depth` elements, `w` at least `COLUMNS · depth`, and
    /// `sums` `ROWS` rows `width` apart with `COLUMNS` elements in each.
    #[target_feature(enable = "avx512f")]
    unsafe fn dot_rows<const ROWS: usize, const COLUMNS: usize>(
        x: &[f32],
        w: &[f32],
        depth: usize,
        sums: &mut [f32],
        width: usize,
        ahead: &mut Ahead,
    ) {
        let mut held = [[_mm512_setzero_ps(); COLUMNS]; ROWS];
        for k in (0..depth).step_by(LANES) {
            ahead.step();
            // SAFETY: `LANES` elements from `k` on are inside each row of both factors.
            let load = |matrix: &[f32], row: usize| unsafe { _mm512_loadu_ps(matrix.as_ptr().add(row * depth + k)) };
            let weights: [__m512; COLUMNS] = std::array::from_fn(|column| load(w, column));
            for (row, held) in held.iter_mut().enumerate() {
                let factor = load(x, row);
                for (held, weight) in held.iter_mut().zip(weights) {
                    *held = _mm512_fmadd_ps(factor, weight, *held);
                }
            }
        }
        for (sums, held) in sums.chunks_mut(width).zip(held) {
            for (place, held) in sums.iter_mut().zip(held) {
                *place = _mm512_reduce_add_ps(held);
            }
        }
    }
}

#[cfg(test)]
#[expect(clippy::float_cmp, reason = "these values are exact")]
mod tests {
    use super::*;

    type Product = fn(&[f32], &[f32], &mut [f32], [usize; 3]) -> bool;

    /// Every number of rows there is a kernel for, some that take several, one too many, and sizes that fill tiles exactly, in part,
    /// and not at all.
    #[test]
    fn equals_the_definition_or_declines() {
        let numbers: Vec<f32> = (0..40_000).map(|n| ((n * 37 % 101) as f32 - 50.0) / 16.0).collect();
        let mut done = 0;
        for (rows, depth, columns) in (1..=15)
            .chain([24, 25, 50, MOST, MOST + 1])
            .flat_map(|m| [16, 48, 50].map(|k| (m, k)))
            .flat_map(|(m, k)| [1, 8, 33, 128, 200].map(|n| (m, k, n)))
        {
            let (x, w) = (&numbers[..rows * depth], &numbers[7..7 + depth * columns]);
            let products: [(Product, [usize; 2]); 2] = [(add_product, [columns, 1]), (add_product_transposed, [1, depth])];
            for (product, steps) in products {
                let mut y = vec![1.0; rows * columns];
                if !product(x, w, &mut y, [rows, depth, columns]) {
                    assert!(y.iter().all(|y| *y == 1.0), "nothing was done");
                    continue;
                }
                done += 1;
                for (place, y) in y.iter().enumerate() {
                    let (row, column) = (place / columns, place % columns);
                    let terms = (0..depth).map(|k| f64::from(x[row * depth + k]) * f64::from(w[k * steps[0] + column * steps[1]]));
                    let expected = 1.0 + terms.sum::<f64>();
                    assert!((f64::from(*y) - expected).abs() < 1e-3, "[{rows}, {depth}, {columns}] {place}: {y}, not {expected}");
                }
            }
        }
        #[cfg(target_arch = "x86_64")]
        assert!(done > 100 || !crate::vectorise::has_avx512(), "{done} products");
    }
}
