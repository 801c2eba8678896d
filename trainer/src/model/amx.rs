//! Matrix products of bf16 numbers on the tile registers (AMX) of Intel's servers from Sapphire Rapids on, in place as those of
//! [`super::product`], summed in `f32`. libtorch's allocate a result that is then added in a pass of its own, and pack weights in one more.
//!
//! One factor, the one with fewer rows or columns in the result, is packed a part at a time that stays in a core's second cache; strips of
//! the other pass by it, each packed by the thread that multiplies with it, in parts that stay in the first cache. The order of each sum
//! depends on the sizes alone, not on the number of threads.

use super::product::{Matrix, Write};
use crate::simd::{Bf16, Element};

/// `left [M, K] · right [K, N]` into the upper left `[M, N]` of `result`, whose rows are `pitch` elements apart. Each element is rounded once.
///
/// # Panics
/// Where [`is_available`] says no.
pub(super) fn multiply<E: Element>(left: Matrix<'_, Bf16>, right: Matrix<'_, Bf16>, result: &mut [E], pitch: usize, write: Write) {
    #[cfg(target_arch = "x86_64")]
    tiles::multiply(left, right, result, pitch, write);
    #[cfg(not(target_arch = "x86_64"))]
    unreachable!("{:?} {:?} {} {pitch} {}", left.size, right.size, result.len(), write == Write::Onto);
}

/// Whether this processor has tiles and the operating system lets the process use them.
pub(super) fn is_available() -> bool {
    #[cfg(target_arch = "x86_64")]
    return tiles::is_available();
    #[cfg(not(target_arch = "x86_64"))]
    return false;
}

#[cfg(target_arch = "x86_64")]
mod tiles {
    use std::arch::asm;
    #[allow(clippy::wildcard_imports)]
    use std::arch::x86_64::*;
    use std::cell::RefCell;
    use std::sync::LazyLock;

    use tch::{Device, Kind, Tensor};

    use super::{Bf16, Element, Matrix, Write};
    use crate::model::parameters::{elements, elements_mut, floats_mut};
    use crate::parallel;
    use crate::vectorise::{has_avx512, vectorised};

    /// Rows of a tile, which are as many columns of the result, and what is summed over in one: pairs of numbers in 16 columns.
    const SIDE: usize = 16;
    const DEPTH: usize = 32;
    /// Numbers of a packed tile.
    const TILE: usize = SIDE * DEPTH;
    /// Rows and columns of the result that four tiles hold at once.
    const BLOCK: usize = 2 * SIDE;
    /// At most so many rows or columns of the result, and terms of its sums, are packed at once: 1.5 MiB of the 2 of a second cache.
    const RESIDENT: usize = 768;
    const LONG: usize = 1024;
    /// Terms of a strip that is multiplied at once, 24 KiB of the 48 of a first cache; two threads may share one.
    const SHORT: usize = 384;
    /// Rows or columns that are packed at once: memory is slow where less than some lines of it follow each other.
    const WIDE: usize = 4 * BLOCK;
    /// Rows or columns of the result whose sums wait in memory for the next [`LONG`] terms.
    const WAITING: usize = 4096;

    static AVAILABLE: LazyLock<bool> = LazyLock::new(|| {
        const REQUEST_PERMISSION: i64 = 0x1023;
        const TILE_DATA: i64 = 18;
        // SAFETY: `cpuid` exists on every x86-64 processor.
        let features = __cpuid_count(7, 0).edx;
        let has_tiles = features & 1 << 24 != 0 && features & 1 << 22 != 0;
        // SAFETY: asks Linux for this process's permission to use the registers; other numbers change nothing.
        has_tiles && has_avx512() && unsafe { libc::syscall(libc::SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) } == 0
    });

    pub fn is_available() -> bool {
        cfg!(target_os = "linux") && *AVAILABLE
    }

    /// Which factor a matrix is. Its tiles are `[16 rows, 32 terms]` of a left one, `[16 pairs of terms, 16 columns, 2]` of a right one.
    #[derive(Clone, Copy, PartialEq)]
    enum Side {
        Left,
        Right,
    }

    /// A factor: rows of the left, columns of the right, which have their place in the result, by terms of its sums.
    #[derive(Clone, Copy)]
    struct Factor<'a> {
        values: &'a [Bf16],
        side: Side,
        /// Rows or columns, and terms.
        size: [usize; 2],
        steps: [usize; 2],
    }

    /// Consecutive rows or columns of the result, or terms of its sums.
    #[derive(Clone, Copy)]
    struct Part {
        from: usize,
        count: usize,
    }

    impl Part {
        fn padded(self, unit: usize) -> usize {
            self.count.next_multiple_of(unit)
        }
    }

    /// Parts of nearly the same size, at most `most`, each a multiple of `unit`.
    fn parts(whole: Part, most: usize, unit: usize) -> impl Iterator<Item = Part> + Clone {
        let size = whole.count.div_ceil(whole.count.div_ceil(most).max(1)).next_multiple_of(unit);
        let end = whole.from + whole.count;
        (whole.from..end).step_by(size).map(move |from| Part { from, count: size.min(end - from) })
    }

    pub fn multiply<E: Element>(left: Matrix<'_, Bf16>, right: Matrix<'_, Bf16>, result: &mut [E], pitch: usize, write: Write) {
        let ([rows, depth], [right_depth, columns]) = (left.size, right.size);
        assert!(is_available(), "this processor has no tiles of bf16");
        assert!(depth == right_depth && depth > 0, "a product of {:?} and {:?}", left.size, right.size);
        assert!(super::super::product::fits(result.len(), [rows, columns], pitch), "no room for [{rows}, {columns}] at {pitch}");
        let right = right.t();
        let left = Factor { values: left.values, side: Side::Left, size: left.size, steps: left.steps };
        let right = Factor { values: right.values, side: Side::Right, size: right.size, steps: right.steps };
        let (resident, streamed) = if rows <= columns { (left, right) } else { (right, left) };
        let place = Place { first: result.as_mut_ptr(), pitch, size: [rows, columns], write };
        let whole = |count| Part { from: 0, count };
        let at_once = if depth > LONG { WAITING } else { usize::MAX };
        for chunk in parts(whole(streamed.size[0]), at_once, BLOCK) {
            for held in parts(whole(resident.size[0]), RESIDENT, BLOCK) {
                add_parts(resident, held, streamed, chunk, place);
            }
        }
    }

    /// The product of some rows or columns of one factor with some of the other.
    fn add_parts<E: Element>(resident: Factor<'_>, held: Part, streamed: Factor<'_>, chunk: Part, place: Place<E>) {
        let depth = resident.size[1];
        let wide = (chunk.count / parallel::threads()).clamp(BLOCK, WIDE) / BLOCK * BLOCK;
        let strips: Vec<Part> = parts(chunk, wide, BLOCK).collect();
        let terms = parts(Part { from: 0, count: depth }, LONG, DEPTH);
        let longest = terms.clone().map(|terms| terms.padded(DEPTH)).max().unwrap_or(0);
        let mut packed = Tensor::empty([(held.padded(BLOCK) * longest) as i64], (Kind::BFloat16, Device::Cpu));
        let waiting = if depth > LONG { chunk.padded(BLOCK) * held.padded(BLOCK) } else { 0 };
        let mut waiting = Tensor::empty([waiting as i64], (Kind::Float, Device::Cpu));
        for terms in terms {
            let room = &mut elements_mut::<Bf16>(&mut packed)[..held.padded(BLOCK) * terms.padded(DEPTH)];
            let groups = parts(held, wide, BLOCK);
            let panels = cut(room, groups.clone().map(|part| part.padded(BLOCK) * terms.padded(DEPTH)));
            // SAFETY: tiles come with AVX-512.
            parallel::run(groups.zip(panels).collect(), |(part, panels)| unsafe { resident.pack(part, terms, panels) });
            let packed = &elements::<Bf16>(&packed)[..held.padded(BLOCK) * terms.padded(DEPTH)];
            let work = Strip { resident, held, streamed, packed, terms, place };
            let lengths = strips.iter().map(|strip| if depth > LONG { strip.padded(BLOCK) * held.padded(BLOCK) } else { 0 });
            let sums = cut(floats_mut(&mut waiting), lengths);
            parallel::run(strips.iter().copied().zip(sums).collect(), |(strip, sums)| {
                SCRATCH.with_borrow_mut(|scratch| {
                    let Scratch { sums: own, panels } = &mut **scratch;
                    let own = &mut own[..strip.padded(BLOCK) * held.padded(BLOCK)];
                    work.multiply(strip, if sums.is_empty() { own } else { sums }, panels);
                });
            });
        }
    }

    fn cut<T>(mut room: &mut [T], lengths: impl Iterator<Item = usize>) -> Vec<&mut [T]> {
        lengths.map(|length| room.split_off_mut(..length).expect("there is room for every part")).collect()
    }

    /// What a thread needs for a strip.
    #[repr(align(64))]
    struct Scratch {
        sums: [f32; RESIDENT * WIDE],
        panels: [Bf16; WIDE * SHORT],
    }

    thread_local! {
        static SCRATCH: RefCell<Box<Scratch>> =
            RefCell::new(Box::new(Scratch { sums: [0.0; RESIDENT * WIDE], panels: [Bf16::default(); WIDE * SHORT] }));
    }

    /// Where the result goes.
    struct Place<E> {
        first: *mut E,
        pitch: usize,
        size: [usize; 2],
        write: Write,
    }

    impl<E> Clone for Place<E> {
        fn clone(&self) -> Self {
            *self
        }
    }
    impl<E> Copy for Place<E> {}
    // SAFETY: each thread writes to blocks of its own, and the pointer's slice is borrowed meanwhile.
    unsafe impl<E: Send> Send for Place<E> {}
    // SAFETY: as above.
    unsafe impl<E: Send> Sync for Place<E> {}

    impl<E: Element> Place<E> {
        /// Asks for the memory of a block ahead of [`Place::finish`].
        fn bring_near(self, [row, column]: [usize; 2]) {
            let rows = (self.size[0] - row).min(BLOCK);
            for place in (0..rows).map(|number| self.first.wrapping_add((row + number) * self.pitch + column)) {
                for line in (0..BLOCK * size_of::<E>()).step_by(64) {
                    // SAFETY: nothing is read from the address.
                    unsafe { _mm_prefetch::<_MM_HINT_T0>(place.cast::<i8>().wrapping_add(line)) }
                }
            }
        }

        /// Brings the sums of a block to where they belong.
        fn finish(self, [row, column]: [usize; 2], sums: &[f32]) {
            let [rows, columns] = [self.size[0] - row, self.size[1] - column].map(|left| left.min(BLOCK));
            for (number, sums) in sums.chunks_exact(BLOCK).take(rows).enumerate() {
                // SAFETY: these elements lie inside the result, and in this block alone.
                let place = unsafe { self.first.add((row + number) * self.pitch + column) };
                let place = unsafe { std::slice::from_raw_parts_mut(place, columns) };
                write_row(place, sums, self.write == Write::Onto);
            }
        }
    }

    vectorised! {
        fn write_row<E: Element>(place: &mut [E], sums: &[f32], onto: bool) {
            // A number that the compiler knows, or it makes a loop for many more.
            if let (Ok(place), Ok(sums)) = (<&mut [E; BLOCK]>::try_from(&mut *place), <&[f32; BLOCK]>::try_from(sums)) {
                for (place, sum) in place.iter_mut().zip(sums) {
                    *place = E::put(if onto { place.get() + sum } else { *sum });
                }
                return;
            }
            for (place, sum) in place.iter_mut().zip(sums) {
                *place = E::put(if onto { place.get() + sum } else { *sum });
            }
        }
    }

    /// What all strips meet.
    struct Strip<'a, E> {
        resident: Factor<'a>,
        held: Part,
        streamed: Factor<'a>,
        /// Of the resident factor, `[panels, tiles, TILE]`.
        packed: &'a [Bf16],
        terms: Part,
        place: Place<E>,
    }

    impl<E: Element> Strip<'_, E> {
        /// `sums` has `[BLOCK, BLOCK]` for each block of the strip with each of the resident part; it goes on where earlier terms ended.
        fn multiply(&self, strip: Part, sums: &mut [f32], panels: &mut [Bf16]) {
            let _tiles = Tiles::configure();
            let blocks = self.held.count.div_ceil(BLOCK);
            let panel = SIDE * self.terms.padded(DEPTH);
            for terms in parts(self.terms, SHORT, DEPTH) {
                let length = SIDE * terms.padded(DEPTH);
                let panels = &mut panels[..strip.padded(BLOCK) * terms.padded(DEPTH)];
                // SAFETY: tiles come with AVX-512.
                unsafe { self.streamed.pack(strip, terms, panels) }
                let first = (terms.from - self.terms.from) * SIDE;
                let is_last = terms.from + terms.count == self.resident.size[1];
                for (number, sums) in sums.chunks_exact_mut(BLOCK * BLOCK).enumerate() {
                    let (ours, theirs) = (number / blocks, number % blocks);
                    let resident = [0, 1].map(|half| &self.packed[(2 * theirs + half) * panel + first..][..length]);
                    let streamed = [0, 1].map(|half| &panels[(2 * ours + half) * length..][..length]);
                    let (held, passing) = (self.held.from + theirs * BLOCK, strip.from + ours * BLOCK);
                    let (left, right, at) = match self.resident.side {
                        Side::Left => (resident, streamed, [held, passing]),
                        Side::Right => (streamed, resident, [passing, held]),
                    };
                    if is_last {
                        self.place.bring_near(at);
                    }
                    // SAFETY: this thread's tiles are configured.
                    unsafe { multiply_block(left, right, sums, terms.from > 0) }
                    if is_last {
                        self.place.finish(at, sums);
                    }
                }
            }
        }
    }

    /// The tile registers of a thread, which the operating system saves at each change of thread until they are released.
    struct Tiles;

    /// As `ldtilecfg` reads it.
    #[repr(C, align(64))]
    struct Configuration {
        palette: u8,
        start_row: u8,
        reserved: [u8; 14],
        bytes_per_row: [u16; 16],
        rows: [u8; 16],
    }

    impl Tiles {
        fn configure() -> Self {
            static ALL: Configuration = Configuration {
                palette: 1,
                start_row: 0,
                reserved: [0; 14],
                bytes_per_row: [64, 64, 64, 64, 64, 64, 64, 64, 0, 0, 0, 0, 0, 0, 0, 0],
                rows: [16, 16, 16, 16, 16, 16, 16, 16, 0, 0, 0, 0, 0, 0, 0, 0],
            };
            // SAFETY: the processor has tiles, the process has the permission, and the configuration is what the manual calls for.
            unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const ALL, options(nostack, readonly)) };
            Self
        }
    }

    impl Drop for Tiles {
        fn drop(&mut self) {
            // SAFETY: no tile is in use.
            unsafe { asm!("tilerelease", options(nostack, nomem)) };
        }
    }

    /// The product of two panels with two, `[BLOCK, BLOCK]`, onto `sums` or over them.
    ///
    /// # Safety
    /// The thread's tiles are configured, all four panels have the same number of whole tiles.
    unsafe fn multiply_block(left: [&[Bf16]; 2], right: [&[Bf16]; 2], sums: &mut [f32], onto: bool) {
        const ROW: usize = BLOCK * size_of::<f32>();
        assert!(sums.len() == BLOCK * BLOCK);
        let sums = sums.as_mut_ptr();
        // SAFETY: the sums are two by two tiles of rows `ROW` bytes apart; a packed tile has rows of 64 bytes.
        unsafe {
            asm!(
                "test {onto}, {onto}",
                "jz 3f",
                "tileloadd tmm0, [{sums} + {row}*1]",
                "tileloadd tmm1, [{sums} + {row}*1 + 64]",
                "tileloadd tmm2, [{sums} + {row}*1 + 16 * 128]",
                "tileloadd tmm3, [{sums} + {row}*1 + 16 * 128 + 64]",
                "jmp 2f",
                "3:",
                "tilezero tmm0",
                "tilezero tmm1",
                "tilezero tmm2",
                "tilezero tmm3",
                "2:",
                "tileloadd tmm4, [{left_0} + {step}*1]",
                "tileloadd tmm6, [{right_0} + {step}*1]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloadd tmm7, [{right_1} + {step}*1]",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tileloadd tmm5, [{left_1} + {step}*1]",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "add {left_0}, 1024",
                "add {left_1}, 1024",
                "add {right_0}, 1024",
                "add {right_1}, 1024",
                "dec {tiles}",
                "jnz 2b",
                "tilestored [{sums} + {row}*1], tmm0",
                "tilestored [{sums} + {row}*1 + 64], tmm1",
                "tilestored [{sums} + {row}*1 + 16 * 128], tmm2",
                "tilestored [{sums} + {row}*1 + 16 * 128 + 64], tmm3",
                left_0 = inout(reg) left[0].as_ptr() => _,
                left_1 = inout(reg) left[1].as_ptr() => _,
                right_0 = inout(reg) right[0].as_ptr() => _,
                right_1 = inout(reg) right[1].as_ptr() => _,
                tiles = inout(reg) left[0].len() / TILE => _,
                onto = in(reg) usize::from(onto),
                step = in(reg) 64_usize,
                sums = in(reg) sums,
                row = in(reg) ROW,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack)
            );
        }
    }

    impl Factor<'_> {
        /// Packs rows or columns into `panels`, `[panels, tiles, TILE]`, zeros where the factor has none.
        ///
        /// # Safety
        /// The processor has AVX-512.
        #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
        unsafe fn pack(&self, part: Part, terms: Part, panels: &mut [Bf16]) {
            assert!(panels.len() == part.padded(BLOCK) * terms.padded(DEPTH));
            assert!(terms.from + terms.count <= self.size[1] && part.from + part.count <= self.size[0]);
            for number in 0..terms.count.div_ceil(DEPTH) {
                let from = terms.from + number * DEPTH;
                let count = DEPTH.min(terms.from + terms.count - from);
                for (panel, tiles) in panels.chunks_exact_mut(SIDE * terms.padded(DEPTH)).enumerate() {
                    let first = part.from + panel * SIDE;
                    let there = (part.from + part.count).saturating_sub(first).min(SIDE);
                    // SAFETY: this tile has so many rows or columns, and terms.
                    let rows = unsafe { self.rows_of_tile([first, from], [there, count]) };
                    for (place, row) in tiles[number * TILE..][..TILE].chunks_exact_mut(DEPTH).zip(rows) {
                        // SAFETY: the place has the 64 bytes of a register.
                        unsafe { _mm512_storeu_si512(place.as_mut_ptr().cast(), row) }
                    }
                }
            }
        }

        /// # Safety
        /// The processor has AVX-512, and the factor `count` rows or columns and terms from `first` on.
        #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
        unsafe fn rows_of_tile(&self, first: [usize; 2], [there, count]: [usize; 2]) -> [__m512i; SIDE] {
            let [step, term_step] = self.steps;
            let start = self.values.as_ptr().wrapping_add(first[0] * step + first[1] * term_step).cast::<i16>();
            // SAFETY: what a mask leaves out is not read; the rest lies inside the factor. A prefetch reads nothing.
            let rows = if term_step == 1 {
                let mask = u32::MAX >> (DEPTH - count);
                std::array::from_fn(|row| unsafe {
                    _mm_prefetch::<_MM_HINT_T0>(start.wrapping_add(row * step + DEPTH).cast());
                    _mm512_maskz_loadu_epi16(if row < there { mask } else { 0 }, start.wrapping_add(row * step))
                })
            } else {
                let mask = (u32::from(u16::MAX) >> (SIDE - there)) as u16;
                let load = |term: usize| unsafe {
                    _mm_prefetch::<_MM_HINT_T0>(start.wrapping_add((term + DEPTH) * term_step).cast());
                    let mask = if term < count { mask } else { 0 };
                    _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, start.wrapping_add(term * term_step)))
                };
                std::array::from_fn(|pair| _mm512_or_si512(load(2 * pair), _mm512_slli_epi32::<16>(load(2 * pair + 1))))
            };
            let is_turned = (term_step == 1) == (self.side == Side::Right);
            if is_turned { transpose(&rows) } else { rows }
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
}

#[cfg(test)]
#[expect(clippy::float_cmp, reason = "these values are exact")]
mod tests {
    use super::*;

    /// Every layout, with sizes on both sides of tiles, blocks and what is packed at once. The numbers are small and whole, so that every sum is
    /// exact; where the result is `f32` nothing is rounded.
    #[test]
    fn equals_the_definition_in_every_layout() {
        if !is_available() {
            return eprintln!("this processor has no tiles of bf16");
        }
        let numbers: Vec<Bf16> = (0..1_000_000).map(|n| Bf16::put(((n * 37 % 11) as f32 - 5.0) / 4.0)).collect();
        for [rows, depth, columns] in [
            [1, 1, 1],
            [2, 33, 3],
            [16, 32, 16],
            [17, 31, 40],
            [33, 260, 65],
            [50, 1100, 20],
            [9, 2100, 70],
            [800, 5, 790],
            [810, 1030, 5],
        ] {
            for (left_turned, right_turned, write) in
                [(false, false, Write::Onto), (false, true, Write::Over), (true, false, Write::Onto), (true, true, Write::Over)]
            {
                let matrix = |turned, [rows, columns]: [usize; 2]| {
                    let [height, width] = if turned { [columns, rows] } else { [rows, columns] };
                    let matrix = Matrix::new(&numbers[7 * width..], [height, width], width + 3);
                    if turned { matrix.t() } else { matrix }
                };
                let (left, right) = (matrix(left_turned, [rows, depth]), matrix(right_turned, [depth, columns]));
                let pitch = columns + 2;
                let [mut result, mut rounded] = [vec![1.0; rows * pitch], vec![1.0; rows * pitch]];
                multiply(left, right, &mut result, pitch, write);
                let mut halves = vec![Bf16::put(1.0); rows * pitch];
                multiply(left, right, &mut halves, pitch, write);
                rounded.iter_mut().zip(&halves).for_each(|(place, half)| *place = half.get());
                for (place, (found, rounded)) in result.iter().zip(&rounded).enumerate() {
                    let (row, column) = (place / pitch, place % pitch);
                    let terms = (0..depth).map(|k| left.at(row, k).get() * right.at(k, column).get());
                    let sum = if column < columns { terms.sum::<f32>() } else { 0.0 };
                    let expected = if column >= columns || write == Write::Onto { 1.0 + sum } else { sum };
                    let what = format!("[{rows}, {depth}] · [{depth}, {columns}], {left_turned} {right_turned}, {row} {column}");
                    assert_eq!(*found, expected, "{what}");
                    assert_eq!(*rounded, Bf16::put(expected).get(), "{what}, rounded");
                }
            }
        }
    }
}
