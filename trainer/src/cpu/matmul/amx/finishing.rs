//! From sums to the result.

use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};

use super::packing::{Pace, Side, Split};
use super::tiles::{BLOCK, Part};
use super::{Element, Write};

/// Pieces whose memory is asked for before they are written.
const AHEAD: usize = 8;

/// Where the result goes.
pub struct Place<E> {
    pub first: *mut E,
    pub pitch: usize,
    pub write: Write,
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

/// Brings the sums of a strip to where they belong: a piece is one row of one block.
pub struct Finishing<E> {
    place: Place<E>,
    /// Rows and columns of the result.
    area: [Part; 2],
    /// Blocks from one row of blocks, and one column of them, to the next.
    steps: [usize; 2],
    sums: *const f32,
    /// Row, and block of columns; and those whose memory is asked for.
    now: [usize; 2],
    ahead: [usize; 2],
    pace: Pace,
}

impl<E: Element> Finishing<E> {
    pub fn nothing(place: Place<E>) -> Self {
        let (area, sums) = ([Part::default(); 2], std::ptr::null());
        Self { place, area, steps: [0, 0], sums, now: [0, 0], ahead: [0, 0], pace: Pace::default() }
    }

    /// `sums` are those of a strip, `[strip, held, BLOCK, BLOCK]` in blocks.
    ///
    /// # Safety
    /// They stay as they are until this is done, and no other thread is at that area of the result.
    pub unsafe fn new(place: Place<E>, held_side: Side, [held, strip]: [Part; 2], sums: &[f32]) -> Self {
        let blocks = held.count.div_ceil(BLOCK);
        assert!(sums.len() == strip.count.div_ceil(BLOCK) * blocks * BLOCK * BLOCK);
        let (area, steps) = match held_side {
            Side::Left => ([held, strip], [1, blocks]),
            Side::Right => ([strip, held], [blocks, 1]),
        };
        let mut new = Self { area, steps, sums: sums.as_ptr(), ..Self::nothing(place) };
        (0..AHEAD).for_each(|_| new.bring_near());
        new
    }

    /// Spreads the pieces over `steps` steps of a product.
    pub fn spread<S: Split>(&mut self, steps: usize) {
        self.pace = Pace::new::<S>(self.area[0].count * self.area[1].count.div_ceil(BLOCK), steps);
    }

    #[inline]
    #[target_feature(enable = "avx512bf16,avx512vl")]
    pub fn go_on(&mut self, piece: usize) {
        for _ in 0..self.pace.at(piece) {
            if self.now[0] < self.area[0].count {
                self.piece();
            }
        }
    }

    #[target_feature(enable = "avx512bf16,avx512vl")]
    pub fn all(&mut self) {
        while self.now[0] < self.area[0].count {
            self.piece();
        }
    }

    /// Apart: inlined six times into a product's loop it takes 5 % longer.
    #[inline(never)]
    #[target_feature(enable = "avx512bf16,avx512vl")]
    fn piece(&mut self) {
        self.bring_near();
        let [row, block] = self.now;
        let count = (self.area[1].count - block * BLOCK).min(BLOCK);
        let sums = (row / BLOCK * self.steps[0] + block * self.steps[1]) * BLOCK * BLOCK + row % BLOCK * BLOCK;
        // SAFETY: the row is inside this area of the result, and inside these sums, by the promise of `new`.
        let (place, sums) = unsafe {
            (std::slice::from_raw_parts_mut(self.at(self.now), count), std::slice::from_raw_parts(self.sums.add(sums), BLOCK))
        };
        // A number that the compiler knows, or it makes a loop for many more.
        match <&mut [E; BLOCK]>::try_from(&mut *place) {
            Ok(place) => write_row(place, sums, self.place.write),
            Err(_) => write_row(place, sums, self.place.write),
        }
        self.now = self.next(self.now);
    }

    #[inline]
    fn bring_near(&mut self) {
        if self.ahead[0] < self.area[0].count {
            for line in (0..BLOCK * size_of::<E>()).step_by(64) {
                // SAFETY: nothing is read from the address.
                unsafe { _mm_prefetch::<_MM_HINT_T0>(self.at(self.ahead).cast::<i8>().wrapping_add(line)) }
            }
            self.ahead = self.next(self.ahead);
        }
    }

    #[inline]
    fn at(&self, [row, block]: [usize; 2]) -> *mut E {
        self.place.first.wrapping_add((self.area[0].from + row) * self.place.pitch + self.area[1].from + block * BLOCK)
    }

    #[inline]
    fn next(&self, [row, block]: [usize; 2]) -> [usize; 2] {
        if (block + 1) * BLOCK < self.area[1].count { [row, block + 1] } else { [row + 1, 0] }
    }
}

#[inline]
#[target_feature(enable = "avx512bf16,avx512vl")]
fn write_row<E: Element>(place: &mut [E], sums: &[f32], write: Write) {
    for (place, sum) in place.iter_mut().zip(sums) {
        *place = E::put(if write == Write::Onto { place.get() + sum } else { *sum });
    }
}
