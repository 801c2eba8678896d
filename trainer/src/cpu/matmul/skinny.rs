//! Products of a few rows with a large matrix in `f32`, as generation makes them for every token. With up to eight or twelve rows
//! the time is that of reading the matrix from main memory once, so it is read as it lies, in long pieces; with more it is that of
//! computing, and the first group of rows leaves a copy of some columns in the nearest cache for those that follow. A general
//! product copies in any case, and for fewer rows than it is made for.
//!
//! For AVX-512 and AVX2; elsewhere, and for sizes that do not fill a tile, the caller's general product serves. Each element is
//! summed in one fixed order, whatever the number of threads and of rows.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{__m256, __m512};

#[cfg(target_arch = "x86_64")]
use super::skinny_kernels::Register;

/// Rows of the left factor at most.
pub(crate) const MOST: usize = 96;

/// `x [M, K]` · `w [K, N]` added to `y [M, N]`, all without gaps. False: this is a case for the general product, and nothing was
/// done.
pub(crate) fn add_product(x: &[f32], w: &[f32], y: &mut [f32], sizes: [usize; 3]) -> bool {
    #[cfg(target_arch = "x86_64")]
    return panels::add_product::<__m512>(x, w, y, sizes) || panels::add_product::<__m256>(x, w, y, sizes);
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = (x, w, y, sizes);
        false
    }
}

/// `x [M, K]` · `wᵀ` for `w [N, K]` into `y [M, N]`; otherwise as [`add_product`].
pub(crate) fn product_transposed(x: &[f32], w: &[f32], y: &mut [f32], sizes: [usize; 3]) -> bool {
    #[cfg(target_arch = "x86_64")]
    return panels::product_transposed::<__m512>(x, w, y, sizes) || panels::product_transposed::<__m256>(x, w, y, sizes);
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = (x, w, y, sizes);
        false
    }
}

/// Whether this processor has one of the registers, so that only sizes are left for the general product.
pub(crate) fn is_available() -> bool {
    #[cfg(target_arch = "x86_64")]
    return <__m512 as Register>::is_available() || <__m256 as Register>::is_available();
    #[cfg(not(target_arch = "x86_64"))]
    false
}

#[cfg(target_arch = "x86_64")]
mod panels {
    use std::ops::Range;

    use super::MOST;
    use crate::cpu::matmul::Write;
    use crate::cpu::matmul::packed_f32::Place;
    use crate::cpu::matmul::skinny_kernels::{Ahead, EIGHT, LINE, Pass, Register};
    use crate::cpu::parallel::{self, threads};
    use crate::cpu::simd::add;

    /// Columns that one thread computes before it asks for more, at most, where the matrix is read as it lies: 8 KiB of each of its
    /// rows.
    const STREAMED: usize = 2048;

    /// Some columns of a matrix: row `k` begins at `w[k · pitch]`.
    #[derive(Clone, Copy)]
    struct Strip<'a> {
        w: &'a [f32],
        pitch: usize,
        width: usize,
    }

    /// Lines of the matrix that a step of a tile's kernel meets.
    const OF_TILE: usize = 2;

    type Multiply = fn(&[f32], usize, Strip<'_>, &mut [f32]);

    pub fn add_product<R: Register>(x: &[f32], w: &[f32], y: &mut [f32], [rows, depth, columns]: [usize; 3]) -> bool {
        if !serves::<R>(rows) {
            return false;
        }
        assert!(x.len() == rows * depth && w.len() == depth * columns && y.len() == rows * columns);
        let is_streamed = rows <= R::KERNELS.eights.len();
        let (multiply, most): (Multiply, _) =
            if is_streamed { (stream::<R>, STREAMED) } else { (copy_and_multiply::<R>, R::PANEL) };
        in_panels::<R>(most, [rows, columns], y, Write::Onto, |panel, sums| {
            multiply(x, depth, Strip { w: &w[panel.start..], pitch: columns, width: panel.len() }, sums);
        })
    }

    pub fn product_transposed<R: Register>(x: &[f32], w: &[f32], y: &mut [f32], [rows, depth, columns]: [usize; 3]) -> bool {
        if !serves::<R>(rows) || !depth.is_multiple_of(R::LANES) {
            return false;
        }
        assert!(x.len() == rows * depth && w.len() == depth * columns && y.len() == rows * columns);
        in_panels::<R>(R::PANEL, [rows, columns], y, Write::Over, |panel, sums| {
            multiply_transposed::<R>(x, depth, &w[panel.start * depth..], sums);
        })
    }

    fn serves<R: Register>(rows: usize) -> bool {
        (1..=MOST).contains(&rows) && R::is_available()
    }

    /// Calls `compute` for panels that cover all columns, the last moved back so that it ends with them, with room for the panel's
    /// sums, `[M, width]` of zeros, which go to `y [M, N]`. A panel's width is a multiple of a tile's. False: there are fewer
    /// columns than in a tile, whatever the number of threads.
    fn in_panels<R: Register>(
        most: usize,
        [rows, columns]: [usize; 2],
        y: &mut [f32],
        write: Write,
        compute: impl Fn(Range<usize>, &mut [f32]) + Sync,
    ) -> bool {
        if columns < R::TILE {
            return false;
        }
        assert!(y.len() == rows * columns);
        let shares = threads() * columns.div_ceil(threads() * most);
        let width = |shares| columns.div_ceil(shares).next_multiple_of(R::TILE);
        // One panel may be wider than what there is; one of two never is.
        let width = if width(shares) <= columns { width(shares) } else { width(2) };
        let y = y.as_mut_ptr();
        let panels = (0..columns).step_by(width).map(|own| (own, Place { first: y.wrapping_add(own), pitch: columns }));
        parallel::run(panels.collect(), |(own, place)| {
            let first = own.min(columns - width);
            let mut sums = vec![0.0; rows * width];
            compute(first..first + width, &mut sums);
            for (row, sums) in sums.chunks(width).enumerate() {
                let sums = &sums[own - first..];
                // SAFETY: these columns of `y` are this panel's alone.
                let y = unsafe { std::slice::from_raw_parts_mut(place.first.add(row * place.pitch), sums.len()) };
                if write == Write::Onto { add(y, sums) } else { y.copy_from_slice(sums) }
            }
        });
        true
    }

    /// The product of as few rows `x [M, K]` as there are kernels for with the strip, added to `sums [M, width]`.
    fn stream<R: Register>(x: &[f32], depth: usize, strip: Strip<'_>, sums: &mut [f32]) {
        let rows = x.len() / depth;
        check::<R>(rows, depth, strip, sums);
        let mut pass = |kernel: Pass, k: usize| {
            // SAFETY: the processor has the register, or nothing would have come here; `check` saw to the sizes.
            unsafe { kernel(&x[k..], depth, &strip.w[k * strip.pitch..], strip.pitch, sums) }
        };
        let eights = depth - depth % EIGHT;
        (0..eights).step_by(EIGHT).for_each(|k| pass(R::KERNELS.eights[rows - 1], k));
        (eights..depth).for_each(|k| pass(R::KERNELS.singles[rows - 1], k));
    }

    /// The product of any number of rows `x [M, K]` with the strip, added to `sums [M, width]`.
    fn copy_and_multiply<R: Register>(x: &[f32], depth: usize, strip: Strip<'_>, sums: &mut [f32]) {
        let (rows, width) = (x.len() / depth, strip.width);
        check::<R>(rows, depth, strip, sums);
        let groups = || groups(rows, R::KERNELS.tiles.len());
        let block = R::BLOCK.min(depth);
        // Rows of `x` as they lie may be a power of two apart, and then only a few of them have a place in the nearest cache at
        // once.
        let (mut copy, mut near) = (vec![0.0; block * R::TILE], vec![0.0; block * rows]);
        for k in (0..depth).step_by(block) {
            let block = block.min(depth - k);
            let next = &strip.w[((k + block) * strip.pitch).min(strip.w.len())..];
            let next_block = R::BLOCK.min(depth - k - block);
            let mut ahead = Ahead::new(next.as_ptr(), strip.pitch, [next_block, width], groups().count(), OF_TILE);
            let copy = &mut copy[..block * R::TILE];
            near.chunks_mut(block).zip(x.chunks(depth)).for_each(|(near, x)| near.copy_from_slice(&x[k..k + block]));
            for column in (0..width).step_by(R::TILE) {
                let w = &strip.w[k * strip.pitch + column..];
                for group in groups() {
                    let kernels = if group.start == 0 { R::KERNELS.copying_tiles } else { R::KERNELS.tiles };
                    let (x, sums) = (&near[group.start * block..], &mut sums[group.start * width + column..]);
                    // SAFETY: as in `stream`; `groups` covers `rows`, and the width is made of tiles.
                    unsafe { kernels[group.len() - 1](x, block, (w, strip.pitch), copy, (sums, width), &mut ahead) }
                }
            }
        }
    }

    /// `x [M, K]` · `wᵀ` for the first rows of `w [at least width, K]`, into `sums [M, width]`.
    fn multiply_transposed<R: Register>(x: &[f32], depth: usize, w: &[f32], sums: &mut [f32]) {
        let rows = x.len() / depth;
        let (width, all) = (sums.len() / rows, w.len() / depth);
        assert!(depth.is_multiple_of(R::LANES) && width.is_multiple_of(R::TILE) && width <= all && sums.len() == rows * width);
        for share in (0..width).step_by(R::SHARE) {
            // Behind the panel's rows, too: the same thread likely goes on there.
            let next = &w[(share + R::SHARE).min(all) * depth..(share + 2 * R::SHARE).min(all) * depth];
            let groups = || groups(rows, R::KERNELS.dots.len());
            let at_once = groups().map(|group| R::KERNELS.dots[group.len() - 1].0).max().unwrap_or(1);
            let lines = (at_once * R::LANES / LINE).max(OF_TILE);
            let mut ahead = Ahead::new(next.as_ptr(), depth, [next.len() / depth, depth], groups().count(), lines);
            for group in groups() {
                let (at_once, dots) = R::KERNELS.dots[group.len() - 1];
                let x = &x[group.start * depth..group.end * depth];
                for column in (share..width.min(share + R::SHARE)).step_by(at_once) {
                    // SAFETY: as in `stream`; `at_once` divides a tile, so that many rows of `w` and columns of `sums` are left.
                    unsafe { dots(x, &w[column * depth..], depth, &mut sums[group.start * width + column..], width, &mut ahead) }
                }
            }
        }
    }

    fn check<R: Register>(rows: usize, depth: usize, strip: Strip<'_>, sums: &[f32]) {
        assert!(strip.width.is_multiple_of(R::TILE) && sums.len() == rows * strip.width && strip.width <= strip.pitch);
        assert!(depth > 0 && (depth - 1) * strip.pitch + strip.width <= strip.w.len());
    }

    /// Rows in groups of nearly the same size, of `most` at most.
    fn groups(rows: usize, most: usize) -> impl Iterator<Item = Range<usize>> {
        let count = rows.div_ceil(most);
        (0..count).map(move |group| group * rows / count..(group + 1) * rows / count)
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
#[expect(clippy::float_cmp, reason = "the bits are compared")]
mod tests {
    use super::*;

    type Product = fn(&[f32], &[f32], &mut [f32], [usize; 3]) -> bool;

    /// With the distances between elements of the right factor along its depth and its columns.
    fn products([_, depth, columns]: [usize; 3]) -> [(Product, [usize; 2]); 6] {
        let (plain, transposed) = ([columns, 1], [1, depth]);
        [
            (add_product, plain),
            (panels::add_product::<__m256>, plain),
            (panels::add_product::<__m512>, plain),
            (product_transposed, transposed),
            (panels::product_transposed::<__m256>, transposed),
            (panels::product_transposed::<__m512>, transposed),
        ]
    }

    /// Every number of rows there is a kernel for, some that take several, one too many; depths of several copies and of parts of
    /// them; columns that fill tiles exactly, in part, and not at all, and those of several panels.
    #[test]
    fn equals_the_definition_or_declines() {
        let numbers: Vec<f32> = (0..90_000).map(|n| 3.0 * (n as f32).sin()).collect();
        let rows = (1..=15).chain([24, 25, 50, MOST, MOST + 1]);
        let sizes = rows.flat_map(|m| [16, 40, 50, 300].map(|k| (m, k))).flat_map(|(m, k)| [1, 8, 33, 128, 200].map(|n| [m, k, n]));
        let mut done = 0;
        for sizes in sizes.chain([[1, 16, 5000], [7, 16, 5000], [30, 16, 5000]]) {
            for (number, (product, steps)) in products(sizes).into_iter().enumerate() {
                done += usize::from(equals_the_definition(product, &numbers, sizes, steps, number));
            }
        }
        assert!(done > 500 || !is_available(), "{done} products");
    }

    /// False: it declined.
    fn equals_the_definition(product: Product, numbers: &[f32], sizes: [usize; 3], steps: [usize; 2], number: usize) -> bool {
        let [rows, depth, columns] = sizes;
        let (x, w) = (&numbers[..rows * depth], &numbers[7..7 + depth * columns]);
        let mut y = vec![1.0; rows * columns];
        if !product(x, w, &mut y, sizes) {
            assert!(y.iter().all(|y| *y == 1.0), "nothing was done");
            return false;
        }
        let mut alone = vec![1.0; columns];
        assert!(product(&x[..depth], w, &mut alone, [1, depth, columns]));
        assert_eq!(y[..columns], alone, "product {number}, {sizes:?}: the first row, and alone");
        let before = if steps[1] == 1 { 1.0 } else { 0.0 };
        for (place, y) in y.iter().enumerate() {
            let (row, column) = (place / columns, place % columns);
            let terms = (0..depth).map(|k| f64::from(x[row * depth + k]) * f64::from(w[k * steps[0] + column * steps[1]]));
            let expected = before + terms.sum::<f64>();
            assert!((f64::from(*y) - expected).abs() < 1e-3, "product {number}, {sizes:?} {place}: {y}, not {expected}");
        }
        true
    }

    /// Neither the bits nor whether anything is done depend on the number of threads.
    #[test]
    fn any_number_of_threads_gives_the_same_bits() {
        let numbers: Vec<f32> = (0..90_000).map(|n| 3.0 * (n as f32).sin()).collect();
        let before = tch::get_num_threads();
        for sizes in [[5, 288, 72], [30, 288, 72], [5, 72, 1000], [30, 72, 1000], [3, 40, 48], [3, 40, 20]] {
            for (number, (product, _)) in products(sizes).into_iter().enumerate() {
                let found = [1, 3].map(|threads| {
                    tch::set_num_threads(threads);
                    let mut y = vec![1.0; sizes[0] * sizes[2]];
                    (product(&numbers[..sizes[0] * sizes[1]], &numbers[7..7 + sizes[1] * sizes[2]], &mut y, sizes), y)
                });
                assert_eq!(found[0], found[1], "product {number}, {sizes:?}");
            }
        }
        tch::set_num_threads(before);
    }
}
