//! Products of a few rows with a large matrix in `f32`, as generation makes them for every token: the matrix goes through the processor
//! once, and that is all the time there is. A general product first copies the matrix into blocks, which takes longer than using it once.
//!
//! Only for AVX-512; elsewhere, and for sizes that do not fill a tile, the caller's general product serves. Each element is summed in
//! one fixed order, whatever the number of threads.

/// Rows of the left factor at most.
pub(super) const MOST: usize = 12;

/// `x [M, K]` · `w [K, N]` added to `y [M, N]`, all without gaps. False: this is a case for the general product, and nothing was done.
pub(super) fn add_product(x: &[f32], w: &[f32], y: &mut [f32], [rows, depth, columns]: [usize; 3]) -> bool {
    #[cfg(target_arch = "x86_64")]
    if let Some(kernel) = avx512::kernel(&avx512::MAPS, rows)
        && columns >= kernel.width
    {
        assert!(x.len() == rows * depth && w.len() == depth * columns && y.len() == rows * columns);
        kernel.run([rows, columns], y, |first, tile| {
            // SAFETY: the processor has AVX-512; `kernel.width` columns from `first` on are inside `w`, and the lengths are those asserted.
            unsafe { (kernel.tile)(x, &w[first..], [depth, columns], tile) }
        });
        return true;
    }
    let _ = (x, w, y, rows, depth, columns);
    false
}

/// `x [M, K]` · `wᵀ` for `w [N, K]` added to `y [M, N]`; otherwise as [`add_product`].
pub(super) fn add_product_transposed(x: &[f32], w: &[f32], y: &mut [f32], [rows, depth, columns]: [usize; 3]) -> bool {
    #[cfg(target_arch = "x86_64")]
    if let Some(kernel) = avx512::kernel(&avx512::DOTS, rows)
        && columns >= kernel.width
        && depth.is_multiple_of(avx512::LANES)
    {
        assert!(x.len() == rows * depth && w.len() == depth * columns && y.len() == rows * columns);
        kernel.run([rows, columns], y, |first, tile| {
            // SAFETY: the processor has AVX-512; `kernel.width` rows from `first` on are inside `w`, and the lengths are those asserted.
            unsafe { (kernel.tile)(x, &w[first * depth..], [depth, columns], tile) }
        });
        return true;
    }
    let _ = (x, w, y, rows, depth, columns);
    false
}

#[cfg(target_arch = "x86_64")]
mod avx512 {
    use std::arch::x86_64::{
        __m512, _MM_HINT_T0, _mm_prefetch, _mm512_fmadd_ps, _mm512_loadu_ps, _mm512_reduce_add_ps, _mm512_set1_ps,
        _mm512_setzero_ps, _mm512_storeu_ps,
    };

    use super::MOST;
    use crate::parallel;
    use crate::vectorise::has_avx512;

    /// `f32`s in a register.
    pub const LANES: usize = 16;
    /// Rows of the right factor that are fetched ahead.
    const AHEAD: usize = 16;
    /// Columns of the result that one thread computes before it asks for more, about.
    const SHARE: usize = 128;

    /// `x [M, K]`, the right factor from the tile's first column on, `[K, N]`, and the tile `[M, width]` to write.
    type Tile = unsafe fn(&[f32], &[f32], [usize; 2], &mut [f32]);

    /// Computes some columns of the result for a certain number of rows.
    #[derive(Clone, Copy)]
    pub struct Kernel {
        pub width: usize,
        pub tile: Tile,
    }

    impl Kernel {
        /// Calls `compute` for tiles that cover all columns, the last moved back so that it ends with them, and adds them to `y`.
        pub fn run(self, [rows, columns]: [usize; 2], y: &mut [f32], compute: impl Fn(usize, &mut [f32]) + Sync) {
            let (width, count) = (self.width, columns.div_ceil(self.width));
            let first = |tile: usize| (tile * width).min(columns - width);
            let mut tiles = vec![0.0; count * rows * width];
            let share = (SHARE / width).max(1);
            let work = tiles.chunks_mut(share * rows * width).enumerate();
            parallel::run(work.collect(), |(chunk, tiles)| {
                for (tile, sums) in tiles.chunks_mut(rows * width).enumerate() {
                    compute(first(chunk * share + tile), sums);
                }
            });
            for (tile, sums) in tiles.chunks(rows * width).enumerate() {
                let (own, first) = (tile * width, first(tile));
                for (y, sums) in y.chunks_mut(columns).zip(sums.chunks(width)) {
                    crate::simd::add(&mut y[own..first + width], &sums[own - first..]);
                }
            }
        }
    }

    /// The kernel for so many rows, if this processor can run it.
    pub fn kernel(kernels: &[Kernel; MOST], rows: usize) -> Option<Kernel> {
        kernels.get(rows.wrapping_sub(1)).copied().filter(|_| has_avx512())
    }

    const fn map<const ROWS: usize, const REGISTERS: usize>() -> Kernel {
        Kernel { width: REGISTERS * LANES, tile: map_tile::<ROWS, REGISTERS> }
    }

    const fn dot<const ROWS: usize, const COLUMNS: usize>() -> Kernel {
        Kernel { width: COLUMNS, tile: dot_tile::<ROWS, COLUMNS> }
    }

    /// By the number of rows: as many columns as 24 of the 32 registers hold sums of.
    pub const MAPS: [Kernel; MOST] = [
        map::<1, 8>(),
        map::<2, 8>(),
        map::<3, 8>(),
        map::<4, 4>(),
        map::<5, 4>(),
        map::<6, 4>(),
        map::<7, 2>(),
        map::<8, 2>(),
        map::<9, 2>(),
        map::<10, 2>(),
        map::<11, 2>(),
        map::<12, 2>(),
    ];

    /// The same for the transposed product.
    pub const DOTS: [Kernel; MOST] = [
        dot::<1, 8>(),
        dot::<2, 8>(),
        dot::<3, 8>(),
        dot::<4, 4>(),
        dot::<5, 4>(),
        dot::<6, 4>(),
        dot::<7, 2>(),
        dot::<8, 2>(),
        dot::<9, 2>(),
        dot::<10, 2>(),
        dot::<11, 2>(),
        dot::<12, 2>(),
    ];

    /// # Safety
    /// The processor has AVX-512; `x` has `ROWS · depth` elements, `tile` `ROWS · REGISTERS · LANES`, and `w` reaches to the end of the
    /// tile in its last row, `pitch` elements after the one before.
    #[target_feature(enable = "avx512f")]
    unsafe fn map_tile<const ROWS: usize, const REGISTERS: usize>(
        x: &[f32],
        w: &[f32],
        [depth, pitch]: [usize; 2],
        tile: &mut [f32],
    ) {
        let mut sums = [[_mm512_setzero_ps(); REGISTERS]; ROWS];
        for k in 0..depth {
            // SAFETY: row `k` of the tile is inside `w`; fetching ahead may point anywhere.
            let row = unsafe { w.as_ptr().add(k * pitch) };
            let weights: [__m512; REGISTERS] = std::array::from_fn(|register| {
                _mm_prefetch::<_MM_HINT_T0>(row.wrapping_add(AHEAD * pitch + register * LANES).cast());
                // SAFETY: as above.
                unsafe { _mm512_loadu_ps(row.add(register * LANES)) }
            });
            for (row, sums) in sums.iter_mut().enumerate() {
                // SAFETY: `x` has `ROWS` rows of `depth` elements.
                let factor = _mm512_set1_ps(unsafe { *x.get_unchecked(row * depth + k) });
                for (sum, weight) in sums.iter_mut().zip(weights) {
                    *sum = _mm512_fmadd_ps(factor, weight, *sum);
                }
            }
        }
        for (register, sum) in sums.as_flattened().iter().enumerate() {
            // SAFETY: the tile has room for all sums, row after row.
            unsafe { _mm512_storeu_ps(tile.as_mut_ptr().add(register * LANES), *sum) };
        }
    }

    /// # Safety
    /// The processor has AVX-512; `depth` is a multiple of `LANES`, `x` has `ROWS · depth` elements, `w` at least `COLUMNS · depth`.
    #[target_feature(enable = "avx512f")]
    unsafe fn dot_tile<const ROWS: usize, const COLUMNS: usize>(x: &[f32], w: &[f32], [depth, _]: [usize; 2], tile: &mut [f32]) {
        let mut sums = [[_mm512_setzero_ps(); COLUMNS]; ROWS];
        for k in (0..depth).step_by(LANES) {
            // SAFETY: `LANES` elements from `k` on are inside each row of both factors.
            let load = |matrix: &[f32], row: usize| unsafe { _mm512_loadu_ps(matrix.as_ptr().add(row * depth + k)) };
            let weights: [__m512; COLUMNS] = std::array::from_fn(|column| load(w, column));
            for (row, sums) in sums.iter_mut().enumerate() {
                let factor = load(x, row);
                for (sum, weight) in sums.iter_mut().zip(weights) {
                    *sum = _mm512_fmadd_ps(factor, weight, *sum);
                }
            }
        }
        for (place, sum) in tile.iter_mut().zip(sums.as_flattened()) {
            *place = _mm512_reduce_add_ps(*sum);
        }
    }
}

#[cfg(test)]
#[expect(clippy::float_cmp, reason = "these values are exact")]
mod tests {
    use super::*;

    type Product = fn(&[f32], &[f32], &mut [f32], [usize; 3]) -> bool;

    /// Every number of rows there is a kernel for, one more, and sizes that fill tiles exactly, in part, and not at all.
    #[test]
    fn equals_the_definition_or_declines() {
        let numbers: Vec<f32> = (0..40_000).map(|n| ((n * 37 % 101) as f32 - 50.0) / 16.0).collect();
        let mut done = 0;
        for (rows, depth, columns) in
            (1..=13).flat_map(|m| [16, 48, 50].map(|k| (m, k))).flat_map(|(m, k)| [1, 8, 33, 128, 200].map(|n| (m, k, n)))
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
