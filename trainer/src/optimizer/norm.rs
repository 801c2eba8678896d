//! The global norm of the gradients, the same bits for any number of threads and processes, and clipping by it.

use std::ops::Range;

use tch::{Device, Kind, Tensor};

use crate::cpu::parallel;
use crate::cpu::slices::{floats, is_plain};
use crate::cpu::vectorise::vectorised;
use crate::error::Failure;
use crate::model::Parameters;
use crate::shares::{BLOCK, Shares};
use crate::world::{Shards, World};

/// Running sums side by side.
const LANES: usize = 16;
/// Blocks that a device squares at once.
const AT_ONCE: usize = 64;

/// Euclidean norm over all tensors, of which each process of `world` has its share of the sums: squares are summed in `f64` block
/// by block, and the blocks in their order. Fails when another process is gone.
pub fn global_norm(gradients: &Shards, shares: &Shares, world: &World) -> Result<f64, Failure> {
    let own = sums_of_blocks(gradients, shares.parts(world.rank()));
    let of_all = world.gather(&own, |rank| shares.blocks(rank).len())?;
    let mut sums = vec![0.0; of_all.len()];
    for (block, sum) in (0..world.size()).flat_map(|rank| shares.blocks(rank)).zip(of_all) {
        sums[block] = sum;
    }
    Ok(sums.into_iter().sum::<f64>().sqrt())
}

/// [`global_norm`] of one process.
pub fn norm(gradients: &Parameters) -> f64 {
    let parts = gradients.iter().map(|entry| 0..entry.tensor.numel());
    sums_of_blocks(&Shards::of(gradients), parts).into_iter().sum::<f64>().sqrt()
}

/// [`norm`] of one tensor.
pub(super) fn of(tensor: &Tensor) -> f64 {
    sums(tensor).into_iter().sum::<f64>().sqrt()
}

fn sums(tensor: &Tensor) -> Vec<f64> {
    if is_plain(tensor) { sums_of_squares(tensor) } else { sums_anywhere(tensor) }
}

/// Those of parts that begin with a block.
fn sums_of_blocks(gradients: &Shards, parts: impl Iterator<Item = Range<usize>>) -> Vec<f64> {
    let of = |(index, part): (usize, Range<usize>)| {
        let sums = sums(&gradients.part(index, &part));
        gradients.release(index);
        sums
    };
    parts.enumerate().filter(|(_, part)| !part.is_empty()).flat_map(of).collect()
}

/// In libtorch's operations, for any device and dtype: halves are added to each other, so that the order of a block's sum does not
/// depend on how many there are.
fn sums_anywhere(tensor: &Tensor) -> Vec<f64> {
    let (numbers, block) = (tensor.view([-1_i64]), BLOCK as i64);
    let sums = |part: Tensor| {
        let missing = part.numel().next_multiple_of(BLOCK) - part.numel();
        let mut sums = part.to_kind(Kind::Double).square().constant_pad_nd([0, missing as i64]).view([-1, block]);
        while sums.size()[1] > 1 {
            let [left, right] = sums.chunk(2, 1).try_into().expect("two halves");
            sums = left + right;
        }
        sums.view([-1_i64])
    };
    let parts: Vec<Tensor> = numbers.split(block * AT_ONCE as i64, 0).into_iter().map(sums).collect();
    Vec::try_from(Tensor::cat(&parts, 0).to_device(Device::Cpu)).expect("numbers of f64")
}

/// Each block by itself: the same bits for any number of threads.
fn sums_of_squares(tensor: &Tensor) -> Vec<f64> {
    let blocks = floats(tensor).chunks(BLOCK);
    let mut sums = vec![0.0; blocks.len()];
    let work = sums.iter_mut().zip(blocks);
    parallel::run(work.collect(), |(sum, block): (&mut f64, &[f32])| *sum = sum_of_lanes(block));
    sums
}

vectorised! {
    /// Running sums side by side, so that the compiler can use vector registers without reordering anything.
    fn sum_of_lanes(block: &[f32]) -> f64 {
        let (full, rest) = block.as_chunks::<LANES>();
        let mut lanes = [0.0_f64; LANES];
        for part in full {
            for (lane, value) in lanes.iter_mut().zip(part) {
                *lane += f64::from(*value) * f64::from(*value);
            }
        }
        lanes.iter().sum::<f64>() + rest.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>()
    }
}

/// The factor of gradients, as in `torch.nn.utils.clip_grad_norm_`; a largest norm of 0 means no clipping.
pub fn clip_factor(norm: f64, largest: f64) -> f64 {
    if largest > 0.0 { (largest / (norm + 1e-6)).min(1.0) } else { 1.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In plain memory and elsewhere, whole and in parts.
    #[test]
    fn a_block_has_one_sum() {
        tch::manual_seed(5);
        let tensor = Tensor::randn([3 * BLOCK as i64 + 7], (Kind::Float, Device::Cpu));
        let whole = [sums_of_squares(&tensor), sums_anywhere(&tensor)];
        for (left, right) in whole[0].iter().zip(&whole[1]) {
            assert!((left / right - 1.0).abs() < 1e-12, "{left} and {right}");
        }
        let part = tensor.narrow(0, BLOCK as i64, BLOCK as i64);
        assert_eq!([sums_of_squares(&part), sums_anywhere(&part)], [vec![whole[0][1]], vec![whole[1][1]]]);
    }

    #[test]
    fn gradients_are_clipped_as_torch_clips() {
        let close = |factor: f64, expected: f64| assert!((factor - expected).abs() < 1e-6, "{factor} instead of {expected}");
        close(clip_factor(0.5, 1.0), 1.0);
        close(clip_factor(4.0, 1.0), 0.25);
        close(clip_factor(4.0, 0.0), 1.0);
    }
}
