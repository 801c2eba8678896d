//! Which process of a run has which numbers of its tensors: of each block of the model an equal part, in whole blocks of numbers.
//!
//! Norms are summed block by block, and a rule of the optimizer looks at numbers one by one or at whole matrices. So the bits do
//! not depend on which process has which part.

use std::ops::Range;

use crate::model::role::TensorSpec;
use crate::settings::OptimizerKind;

/// Numbers of a block, from the beginning of each tensor.
pub const BLOCK: usize = 1 << 16;
/// Numbers that are exchanged at once. More take more memory, fewer take more of the time that an exchange needs to begin.
pub const BUCKET: usize = 1 << 20;
/// Bytes that exchanges take at their peak: what arrives of two buckets, of as many sums of each process, or copies from a device.
pub const BUFFERS: u64 = 8 * size_of::<f32>() as u64 * 2 * BUCKET as u64;

/// The parts of all processes in all tensors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shares {
    size: usize,
    /// Where the parts of each tensor begin, and its end.
    borders: Vec<Vec<usize>>,
}

impl Shares {
    /// Those of `size` processes. A rule that looks at whole matrices leaves them whole; then not each block of the model has equal
    /// parts, but all of it.
    pub fn new(size: usize, tensors: &[TensorSpec], optimizer: OptimizerKind) -> Self {
        let is_whole = |tensor: &TensorSpec| match optimizer {
            OptimizerKind::Adamw => false,
            OptimizerKind::Muon => tensor.role.is_matrix(),
            OptimizerKind::Adafactor => true,
        };
        let together = |left: &TensorSpec, right: &TensorSpec| optimizer != OptimizerKind::Adamw || left.block == right.block;
        let mut borders = Vec::new();
        for group in tensors.chunk_by(together) {
            let (all, mut before) = (group.iter().map(numbers).sum::<usize>(), 0);
            for tensor in group {
                let numbers = numbers(tensor);
                let step = if is_whole(tensor) { numbers.max(1) } else { BLOCK };
                let border = |rank: usize| {
                    let ideal = (all as u128 * rank as u128).div_ceil(size as u128) as usize;
                    ideal.saturating_sub(before).next_multiple_of(step).min(numbers)
                };
                borders.push((0..=size).map(border).collect());
                before += numbers;
            }
        }
        Self { size, borders }
    }

    pub fn size(&self) -> usize {
        self.size
    }

    pub fn tensors(&self) -> Range<usize> {
        0..self.borders.len()
    }

    /// The part of a tensor that a process has.
    pub fn part(&self, rank: usize, tensor: usize) -> Range<usize> {
        self.borders[tensor][rank]..self.borders[tensor][rank + 1]
    }

    /// Its part of each tensor.
    pub fn parts(&self, rank: usize) -> impl Iterator<Item = Range<usize>> {
        self.tensors().map(move |tensor| self.part(rank, tensor))
    }

    /// The blocks that it has, among those of all tensors.
    pub fn blocks(&self, rank: usize) -> Vec<usize> {
        let mut first = 0;
        let of = |tensor: usize| {
            let (part, before) = (self.part(rank, tensor), first);
            first += self.borders[tensor][self.size].div_ceil(BLOCK);
            (part.start.div_ceil(BLOCK)..part.end.div_ceil(BLOCK)).map(move |block| before + block)
        };
        self.tensors().flat_map(of).collect()
    }
}

fn numbers(tensor: &TensorSpec) -> usize {
    tensor.numbers() as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Shape;
    use crate::settings::{ModelConfig, Preset};

    const KINDS: [OptimizerKind; 3] = [OptimizerKind::Adamw, OptimizerKind::Muon, OptimizerKind::Adafactor];

    fn small() -> Vec<TensorSpec> {
        let model = ModelConfig { preset: Some(Preset::Gpt2), ..ModelConfig::default() };
        Shape::resolve(&model, 50_257, 1024).unwrap().tensors()
    }

    #[test]
    fn parts_are_all_numbers_and_end_where_blocks_do() {
        for (optimizer, size) in KINDS.into_iter().flat_map(|optimizer| [1, 2, 3, 8].map(|size| (optimizer, size))) {
            let (tensors, mut blocks) = (small(), Vec::new());
            let shares = Shares::new(size, &tensors, optimizer);
            for (index, tensor) in tensors.iter().enumerate() {
                let parts: Vec<_> = (0..size).map(|rank| shares.part(rank, index)).collect();
                assert_eq!((parts[0].start, parts[size - 1].end as u64), (0, tensor.numbers()), "{}", tensor.name);
                assert!(parts.windows(2).all(|parts| parts[0].end == parts[1].start), "{}", tensor.name);
                assert!(parts.iter().all(|part| part.is_empty() || part.start.is_multiple_of(BLOCK)), "{}", tensor.name);
                let owners = parts.iter().filter(|part| !part.is_empty()).count();
                assert!(owners == 1 || optimizer != OptimizerKind::Adafactor, "{}", tensor.name);
            }
            blocks.extend((0..size).flat_map(|rank| shares.blocks(rank)));
            blocks.sort_unstable();
            assert!(blocks.into_iter().eq(0..tensors.iter().map(|tensor| (tensor.numbers() as usize).div_ceil(BLOCK)).sum()));
        }
    }

    #[test]
    fn parts_are_equal_but_for_some_blocks() {
        let tensors = small();
        for size in [2, 4, 8] {
            let shares = Shares::new(size, &tensors, OptimizerKind::Adamw);
            let equal = tensors.iter().map(|tensor| tensor.numbers() as usize).sum::<usize>() / size;
            for rank in 0..size {
                let own: usize = shares.parts(rank).map(|part| part.len()).sum();
                assert!(own.abs_diff(equal) <= 14 * 2 * BLOCK, "{own} of {equal}");
            }
        }
    }
}
