//! The global norm of the gradients, the same bits for any number of threads, and clipping by it.

use std::ops::Range;

use tch::{Kind, Tensor};

use super::adamw::CHUNK;
use crate::cpu::parallel;
use crate::cpu::slices::{floats, is_plain};
use crate::cpu::vectorise::vectorised;
use crate::error::Failure;
use crate::model::{Parameter, Parameters};
use crate::offload::release;
use crate::world::World;

/// Running sums side by side.
const LANES: usize = 16;

/// Euclidean norm over all tensors, which every process of `world` has alike, summed in `f64` in one fixed order: chunks of a
/// tensor, then tensors. Each process looks at a part of the chunks. Fails when another process is gone.
pub fn global_norm(gradients: &Parameters, world: &World) -> Result<f64, Failure> {
    if gradients.iter().any(|entry| !is_plain(&entry.tensor)) {
        return Ok(norm_anywhere(gradients));
    }
    let chunks = gradients.iter().map(|entry| chunks_of(&entry.tensor)).sum();
    let own = world.share(chunks);
    let (mut first, mut sums) = (0, Vec::with_capacity(own.len()));
    for entry in gradients {
        let next = first + chunks_of(&entry.tensor);
        let [start, end] = [own.start, own.end].map(|chunk| chunk.clamp(first, next) - first);
        sums.extend(sums_of_squares(&entry.tensor, start..end));
        release([&entry.tensor]);
        first = next;
    }
    let sums = world.gather(&sums, |rank| world.share_of(rank, chunks).len())?;
    let mut rest = &sums[..];
    let of_tensor = |tensor| rest.split_off(..chunks_of(tensor)).unwrap_or_default().iter().sum::<f64>();
    Ok(gradients.iter().map(|entry| &entry.tensor).map(of_tensor).sum::<f64>().sqrt())
}

fn chunks_of(tensor: &Tensor) -> usize {
    tensor.numel().div_ceil(CHUNK)
}

/// In libtorch's operations, for any device and dtype; a device is asked for one number, not for one a tensor.
fn norm_anywhere(gradients: &Parameters) -> f64 {
    let norm = |entry: &Parameter| entry.tensor.norm_scalaropt_dtype(2.0, Kind::Double);
    Tensor::stack(&gradients.iter().map(norm).collect::<Vec<_>>(), 0).square().sum(Kind::Double).sqrt().double_value(&[])
}

/// Those of some chunks, each by itself: the same bits for any number of threads.
fn sums_of_squares(tensor: &Tensor, chunks: Range<usize>) -> Vec<f64> {
    let mut sums = vec![0.0; chunks.len()];
    let work = sums.iter_mut().zip(floats(tensor).chunks(CHUNK).skip(chunks.start));
    parallel::run(work.collect(), |(sum, chunk): (&mut f64, &[f32])| *sum = sum_of_lanes(chunk));
    sums
}

vectorised! {
    /// Running sums side by side, so that the compiler can use vector registers without reordering anything.
    fn sum_of_lanes(chunk: &[f32]) -> f64 {
        let (full, rest) = chunk.as_chunks::<LANES>();
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

    #[test]
    fn gradients_are_clipped_as_torch_clips() {
        let close = |factor: f64, expected: f64| assert!((factor - expected).abs() < 1e-6, "{factor} instead of {expected}");
        close(clip_factor(0.5, 1.0), 1.0);
        close(clip_factor(4.0, 1.0), 0.25);
        close(clip_factor(4.0, 0.0), 1.0);
    }
}
