//! The schedule of a product: the order of its parts, and their threads.

use std::cell::RefCell;

use tch::{Device, Kind, Tensor};

use super::block::{self, Tiles};
use super::finishing::{Finishing, Place};
use super::packing::{Factor, Side, Split};
use super::{Element, Matrix, Write};
use crate::cpu::matmul::fits;
use crate::cpu::parallel;
use crate::cpu::simd::Bf16;
use crate::cpu::slices::{elements, elements_mut, floats_mut};

/// Rows of a tile, which are as many columns of the result, and what is summed over in one: pairs of numbers in 16 columns.
pub const SIDE: usize = 16;
pub const DEPTH: usize = 32;
/// Numbers of a packed tile.
pub const TILE: usize = SIDE * DEPTH;
/// Rows and columns of the result that four tiles hold at once.
pub const BLOCK: usize = 2 * SIDE;
/// The most of [`Split::RESIDENT`].
const MOST_RESIDENT: usize = 768;
/// Terms of a strip, times the parts of a number, that are multiplied at once: 24 KiB of the 48 of a first cache; two threads may
/// share one.
const SHORT: usize = 384;
/// Rows or columns that are packed at once: memory is slow where less than some lines of it follow each other.
const WIDE: usize = 4 * BLOCK;
/// Rows or columns of the result whose sums wait in memory for the next [`Split::LONG`] terms.
const WAITING: usize = 4096;

/// Consecutive rows or columns of the result, or terms of its sums.
#[derive(Clone, Copy, Default)]
pub struct Part {
    pub from: usize,
    pub count: usize,
}

impl Part {
    pub fn padded(self, unit: usize) -> usize {
        self.count.next_multiple_of(unit)
    }

    pub fn end(self) -> usize {
        self.from + self.count
    }
}

/// Parts of nearly the same size, at most `most`, each a multiple of `unit`.
fn parts(whole: Part, most: usize, unit: usize) -> impl Iterator<Item = Part> + Clone {
    let size = whole.count.div_ceil(whole.count.div_ceil(most).max(1)).next_multiple_of(unit).max(unit);
    (whole.from..whole.end()).step_by(size).map(move |from| Part { from, count: size.min(whole.end() - from) })
}

pub fn multiply<S: Split, E: Element>(left: Matrix<'_, S>, right: Matrix<'_, S>, result: &mut [E], pitch: usize, write: Write) {
    let ([rows, depth], [right_depth, columns]) = (left.size, right.size);
    assert!(block::is_available(), "this processor has no tiles");
    assert!(depth == right_depth && depth > 0, "a product of {:?} and {:?}", left.size, right.size);
    assert!(fits(result.len(), [rows, columns], pitch), "no room for [{rows}, {columns}] at {pitch}");
    let (left, right) = (Factor::new(left, Side::Left), Factor::new(right.t(), Side::Right));
    let (resident, streamed) = if rows <= columns { (left, right) } else { (right, left) };
    let place = Place { first: result.as_mut_ptr(), pitch, write };
    let whole = |factor: Factor<'_, S>| Part { from: 0, count: factor.size[0] };
    let at_once = if depth > S::LONG { WAITING } else { usize::MAX };
    for chunk in parts(whole(streamed), at_once, BLOCK) {
        for held in parts(whole(resident), S::RESIDENT, BLOCK) {
            multiply_parts(resident, held, streamed, chunk, place);
        }
    }
}

/// The product of some rows or columns of one factor with some of the other.
fn multiply_parts<S: Split, E: Element>(
    resident: Factor<'_, S>,
    held: Part,
    streamed: Factor<'_, S>,
    chunk: Part,
    place: Place<E>,
) {
    let depth = resident.size[1];
    let wide = (chunk.count / parallel::threads()).clamp(BLOCK, WIDE) / BLOCK * BLOCK;
    let strips: Vec<Part> = parts(chunk, wide, BLOCK).collect();
    let share = strips.len().div_ceil(parallel::threads());
    let terms = parts(Part { from: 0, count: depth }, S::LONG, DEPTH);
    let longest = terms.clone().next().map_or(0, |terms| S::PARTS * terms.padded(DEPTH));
    let mut packed = Tensor::empty([(held.padded(BLOCK) * longest) as i64], (Kind::BFloat16, Device::Cpu));
    let height = if depth > S::LONG { held.padded(BLOCK) } else { 0 };
    let mut waiting = Tensor::empty([(chunk.padded(BLOCK) * height) as i64], (Kind::Float, Device::Cpu));
    for terms in terms {
        let length = S::PARTS * terms.padded(DEPTH);
        let room = &mut elements_mut::<Bf16>(&mut packed)[..held.padded(BLOCK) * length];
        let groups = parts(held, wide, BLOCK);
        let panels = cut(room, groups.clone().map(|group| group.padded(BLOCK) * length));
        // SAFETY: the processor has tiles.
        parallel::run(groups.zip(panels).collect(), |(group, panels)| unsafe { resident.pack(group, terms, panels, 1).all() });
        let packed = &elements::<Bf16>(&packed)[..held.padded(BLOCK) * length];
        let work = Strips { resident, held, streamed, packed, terms, place };
        let sums = cut(floats_mut(&mut waiting), strips.iter().map(|strip| strip.padded(BLOCK) * height));
        let mut strips: Vec<_> = strips.iter().copied().zip(sums).collect();
        parallel::run(strips.chunks_mut(share).collect(), |strips| {
            // SAFETY: the processor has tiles.
            SCRATCH.with_borrow_mut(|scratch| unsafe { work.multiply(strips, scratch) });
        });
    }
}

fn cut<T>(mut room: &mut [T], lengths: impl Iterator<Item = usize>) -> Vec<&mut [T]> {
    lengths.map(|length| room.split_off_mut(..length).expect("there is room for every part")).collect()
}

/// A thread's buffers for a strip, and for the one before or after it.
#[repr(align(64))]
struct Scratch {
    sums: [[f32; MOST_RESIDENT * WIDE]; 2],
    panels: [[Bf16; WIDE * SHORT]; 2],
}

thread_local! {
    static SCRATCH: RefCell<Box<Scratch>> =
        // SAFETY: these numbers may be zero.
        RefCell::new(unsafe { Box::new_zeroed().assume_init() });
}

/// The data that all strips share.
struct Strips<'a, S, E> {
    resident: Factor<'a, S>,
    held: Part,
    streamed: Factor<'a, S>,
    /// Tiles of the resident factor, `[panels, tiles, PARTS, TILE]`.
    packed: &'a [Bf16],
    terms: Part,
    place: Place<E>,
}

impl<S: Split, E: Element> Strips<'_, S, E> {
    /// Each strip's sums, `[BLOCK, BLOCK]` for each of its blocks with each of the resident part, go on where earlier terms ended.
    /// Where all terms come at once it has none, and takes those of `scratch`.
    ///
    /// # Safety
    /// The processor has tiles.
    #[target_feature(enable = "avx512bf16,avx512vl")]
    unsafe fn multiply(&self, strips: &mut [(Part, &mut [f32])], scratch: &mut Scratch) {
        let tiles = Tiles::configure();
        let Scratch { sums: own, panels: [panels, next_panels] } = scratch;
        let (mut panels, mut next_panels) = (panels, next_panels);
        let stages: Vec<Part> = parts(self.terms, SHORT / S::PARTS, DEPTH).collect();
        let mut finishing = Finishing::nothing(self.place);
        self.streamed.pack(strips[0].0, stages[0], panels, 1).all();
        for number in 0..strips.len() {
            let next_strip = strips.get(number + 1).map(|next| (next.0, stages[0]));
            let (strip, ref mut waiting) = strips[number];
            let length = strip.padded(BLOCK) * self.held.padded(BLOCK);
            let sums = if waiting.is_empty() { &mut own[number % 2][..length] } else { &mut **waiting };
            let steps = |terms: Part| length / (BLOCK * BLOCK) * terms.count.div_ceil(DEPTH);
            finishing.spread::<S>(steps(self.terms));
            for (stage, terms) in stages.iter().enumerate() {
                let next = stages.get(stage + 1).map(|terms| (strip, *terms)).or(next_strip);
                let (next_part, next_terms) = next.unwrap_or_default();
                let mut packing = self.streamed.pack(next_part, next_terms, next_panels, steps(*terms));
                self.multiply_stage(&tiles, *terms, &panels[..], sums, |piece| {
                    packing.go_on(piece);
                    finishing.go_on(piece);
                });
                packing.all();
                std::mem::swap(&mut panels, &mut next_panels);
            }
            finishing.all();
            if self.terms.end() == self.resident.size[1] {
                // SAFETY: the sums are not written to before the next strip but one, or the next terms, by when they are where they
                // belong.
                finishing = unsafe { Finishing::new(self.place, self.resident.side, [self.held, strip], sums) };
            }
        }
        finishing.all();
    }

    /// The products of a strip's `panels` with the resident ones for some `terms`. Calls `meanwhile` after every four products of
    /// tiles.
    #[inline]
    #[target_feature(enable = "avx512bf16,avx512vl")]
    fn multiply_stage(&self, tiles: &Tiles, terms: Part, panels: &[Bf16], sums: &mut [f32], mut meanwhile: impl FnMut(usize)) {
        let resident_panel = SIDE * S::PARTS * self.terms.padded(DEPTH);
        let panel = SIDE * S::PARTS * terms.padded(DEPTH);
        let first = (terms.from - self.terms.from) * S::PARTS * SIDE;
        let blocks = self.packed.len() / (2 * resident_panel);
        let rows_of_blocks = panels.chunks_exact(2 * panel).zip(sums.chunks_exact_mut(blocks * BLOCK * BLOCK));
        for (streamed, sums) in rows_of_blocks {
            for (held, sums) in self.packed.chunks_exact(2 * resident_panel).zip(sums.chunks_exact_mut(BLOCK * BLOCK)) {
                let held = [held[first..].as_ptr(), held[resident_panel + first..].as_ptr()];
                let streamed = [streamed.as_ptr(), streamed[panel..].as_ptr()];
                let (left, right) = if self.resident.side == Side::Left { (held, streamed) } else { (streamed, held) };
                // SAFETY: each of the four panels has so many tiles from there on.
                unsafe { tiles.multiply::<S>(left, right, terms.count.div_ceil(DEPTH), sums, terms.from > 0, &mut meanwhile) }
            }
        }
    }
}
