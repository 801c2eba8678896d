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
/// Blocks that a device squares at once, 64 MiB of `f64`.
const AT_ONCE: usize = 128;

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
    if is_plain(tensor) { sums_of_squares(tensor) } else { sums_anywhere(&[tensor.shallow_clone()]) }
}

/// Those of parts that begin with a block, in their order.
fn sums_of_blocks(gradients: &Shards, parts: impl Iterator<Item = Range<usize>>) -> Vec<f64> {
    let parts = parts.enumerate().filter(|(_, part)| !part.is_empty()).map(|(index, part)| (index, gradients.part(index, &part)));
    if gradients.device().is_cuda() {
        return sums_anywhere(&parts.map(|(_, part)| part).collect::<Vec<_>>());
    }
    let of = |(index, part): (usize, Tensor)| {
        let sums = sums(&part);
        gradients.release(index);
        sums
    };
    parts.flat_map(of).collect()
}

/// In libtorch's operations, for any device and dtype: halves are added to each other, so that the order of a block's sum does not
/// depend on how many there are. Blocks of many tensors are added at once, and the caller waits for the device once: two dozen
/// operations and a wait for each tensor would leave a GPU idle between them.
fn sums_anywhere(tensors: &[Tensor]) -> Vec<f64> {
    let split = |tensor: &Tensor| tensor.view([-1_i64]).split((BLOCK * AT_ONCE) as i64, 0);
    let mut groups: Vec<(usize, Vec<Tensor>)> = Vec::new();
    for part in tensors.iter().flat_map(split) {
        let blocks = part.numel().div_ceil(BLOCK);
        match groups.last_mut() {
            Some((taken, parts)) if *taken + blocks <= AT_ONCE => {
                *taken += blocks;
                parts.push(part);
            }
            _ => groups.push((blocks, vec![part])),
        }
    }
    let sums: Vec<Tensor> = groups.into_iter().map(|(blocks, parts)| sums_of_group(blocks, &parts)).collect();
    Vec::try_from(Tensor::cat(&sums, 0).to_device(Device::Cpu)).expect("numbers of f64")
}

/// `parts`, each of which begins with a block, of so many blocks together → `[blocks]`.
fn sums_of_group(blocks: usize, parts: &[Tensor]) -> Tensor {
    let mut squares = Tensor::zeros([(blocks * BLOCK) as i64], (Kind::Double, parts[0].device()));
    let mut start = 0;
    for part in parts {
        squares.narrow(0, start, part.numel() as i64).copy_(part);
        start += part.numel().next_multiple_of(BLOCK) as i64;
    }
    let _ = squares.square_();
    let (squares, mut width) = (squares.view([blocks as i64, BLOCK as i64]), BLOCK as i64);
    while width > 1 {
        width /= 2;
        let _ = squares.narrow(1, 0, width).g_add_(&squares.narrow(1, width, width));
    }
    squares.select(1, 0).copy()
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
        let whole = [sums_of_squares(&tensor), sums_anywhere(&[tensor.shallow_clone()])];
        for (left, right) in whole[0].iter().zip(&whole[1]) {
            assert!((left / right - 1.0).abs() < 1e-12, "{left} and {right}");
        }
        let part = tensor.narrow(0, BLOCK as i64, BLOCK as i64);
        assert_eq!([sums_of_squares(&part), sums_anywhere(&[part])], [vec![whole[0][1]], vec![whole[1][1]]]);
    }

    /// However many tensors it comes with, and where a tensor's blocks are more than are added at once.
    #[test]
    fn a_block_has_one_sum_in_any_company() {
        tch::manual_seed(6);
        let sizes = [3, BLOCK + 1, (AT_ONCE + 2) * BLOCK + 5, 1, 2 * BLOCK];
        let tensors = sizes.map(|size| Tensor::randn([size as i64], (Kind::BFloat16, Device::Cpu)));
        let alone: Vec<f64> = tensors.iter().flat_map(|tensor| sums_anywhere(std::slice::from_ref(tensor))).collect();
        assert_eq!(alone.len(), sizes.iter().map(|size| size.div_ceil(BLOCK)).sum::<usize>());
        assert_eq!(sums_anywhere(&tensors), alone);
    }

    #[test]
    fn gradients_are_clipped_as_torch_clips() {
        let close = |factor: f64, expected: f64| assert!((factor - expected).abs() < 1e-6, "{factor} instead of {expected}");
        close(clip_factor(0.5, 1.0), 1.0);
        close(clip_factor(4.0, 1.0), 0.25);
        close(clip_factor(4.0, 0.0), 1.0);
    }
}
