//! Sums of what processes send each other: in the order of the tree, or in that of the library.

use std::ops::Range;

use tch::{Device, Kind, Tensor};

use super::World;
use super::shards::{Bucket, Shards, buckets};
use crate::cpu::simd::add_all;
use crate::cpu::slices::{floats, floats_mut};
use crate::error::Failure;
use crate::shares::BUCKET;
use crate::tree::{self, Tree};

impl World {
    /// Turns the last of the sums into that of all sums of all processes, in the order that the library takes.
    pub(super) fn sum_fast(&self, tensors: &Range<usize>, sums: &[Shards]) -> Result<(), Failure> {
        let Some((link, (gradients, others))) = self.link.as_ref().zip(sums.split_last()) else { return Ok(()) };
        for bucket in buckets(tensors.clone().map(|tensor| (tensor, 0..gradients.numbers(tensor))), BUCKET) {
            let flat = |sum: &Shards| Tensor::cat(&bucket.of(sum).iter().map(|part| part.view([-1])).collect::<Vec<_>>(), 0);
            let mut sum = flat(gradients);
            for other in others {
                sum += &flat(other);
            }
            link.sum_tensor(&sum)?;
            let lengths: Vec<i64> = bucket.lengths().map(|length| length as i64).collect();
            bucket.put(gradients, &sum.split_with_sizes(lengths, 0));
        }
        Ok(())
    }

    /// Adds up this process's bucket in the order of the tree, of what the others send and its own sums: in place of the last of
    /// these, or of its copy.
    pub(super) fn add_up(
        &self,
        leaves: usize,
        buckets: &[Bucket],
        sums: &[Shards],
        room: &mut Vec<f32>,
    ) -> Result<Vec<Tensor>, Failure> {
        let own = &buckets[self.rank];
        let of = |rank: usize| tree::nodes(self.share_of(rank, leaves)).into_iter().map(move |node| (rank, node));
        let nodes: Vec<(usize, Range<usize>)> = (0..self.size).flat_map(of).collect();
        let senders: Vec<usize> = nodes.iter().map(|(rank, _)| *rank).filter(|rank| *rank != self.rank).collect();
        let lengths: Vec<i64> = senders.iter().flat_map(|_| own.lengths()).map(|length| length as i64).collect();
        let device = sums.last().map_or(Device::Cpu, Shards::device);
        let arrived = room_of(lengths.iter().sum(), device, room).split_with_sizes(lengths, 0);
        let of_sums = |rank: usize| sums.iter().flat_map(move |sum| buckets[rank].of(sum)).map(move |tensor| (rank, tensor));
        let from = senders.iter().flat_map(|rank| own.lengths().map(|_| *rank));
        self.swap_tensors((0..self.size).flat_map(of_sums), from.zip(arrived.iter().map(Tensor::shallow_clone)))?;
        let (count, mut arrived) = (own.lengths().count(), arrived.into_iter());
        let mut own_sums = sums.iter().map(|sum| own.of(sum));
        let (mut tree, mut waits) = (Tree::default(), sums.len());
        for (rank, node) in nodes {
            let sum = if rank == self.rank {
                waits -= 1;
                Sum { parts: own_sums.next().unwrap_or_default(), stays: waits == 0 }
            } else {
                Sum { parts: arrived.by_ref().take(count).collect(), stays: false }
            };
            tree.join(node, sum, Sum::joined);
        }
        tree.sum(Sum::joined);
        Ok(sums.last().map(|sum| own.of(sum)).unwrap_or_default())
    }
}

/// A place for what arrives, on a device; in main memory it is `memory`. There large tensors lie where the thread that computes
/// wants them (`cpu/arena.rs`), and others would come between at any time.
fn room_of(count: i64, device: Device, memory: &mut Vec<f32>) -> Tensor {
    if device != Device::Cpu {
        return Tensor::empty([count], (Kind::Float, device));
    }
    memory.resize(memory.len().max(count as usize), 0.0);
    // SAFETY: the vector outlives the call of its caller, who keeps no tensor of it, and does not grow before the next.
    unsafe { Tensor::from_blob(memory.as_mut_ptr().cast(), &[count], &[1], Kind::Float, Device::Cpu) }
}

/// The sum of some leaves, in parts of tensors.
struct Sum {
    parts: Vec<Tensor>,
    /// The sum of all is wanted in this memory.
    stays: bool,
}

impl Sum {
    /// (Two numbers have the same sum whichever comes first.)
    fn joined(left: Self, right: Self) -> Self {
        let (mut sum, other) = if right.stays { (right, left) } else { (left, right) };
        sum.parts.iter_mut().zip(&other.parts).for_each(|(sum, other)| add(sum, other));
        sum
    }
}

/// One addition for each number, rounded as everywhere: libtorch's kernels on a GPU give the same bits.
fn add(sum: &mut Tensor, other: &Tensor) {
    if sum.device() == Device::Cpu {
        add_all(floats(other), floats_mut(sum));
    } else {
        *sum += other.view_as(sum);
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::together;
    use super::super::{Gradients, Reduction};
    use super::*;
    use crate::model::Parameters;
    use crate::model::role::{Role, TensorSpec};
    use crate::model::weights::parameters::Parameter;
    use crate::settings::Reduction::{Exact, Fast};
    use crate::settings::{self, OptimizerKind};
    use crate::shares::Shares;

    /// Numbers of many sizes, so that another order of the sum would have other bits.
    fn number(leaf: usize, place: usize) -> f32 {
        (crate::random::uniform(&[leaf as u64, place as u64]) - 0.5) as f32 * 10.0_f32.powi((leaf % 5) as i32)
    }

    fn sums(size: usize, leaves: usize, count: usize, order: settings::Reduction) -> Vec<Vec<f32>> {
        let spec = TensorSpec { name: "weight".to_owned(), role: Role::TokenEmbedding, block: None, dimensions: vec![count] };
        let shares = Shares::new(size, std::slice::from_ref(&spec), OptimizerKind::Adamw);
        together(size, |world| {
            let of = |leaf: usize| {
                let numbers: Vec<f32> = (0..count).map(|place| number(leaf, place)).collect();
                Parameters::from_entries(vec![Parameter::new(spec.clone(), Tensor::from_slice(&numbers))])
            };
            let (own, mut before) = (world.share(leaves), Gradients::default());
            (own.start..own.end - 1).for_each(|leaf| before.add(leaf, &of(leaf)));
            let (last, reduction) = (
                of(own.end - 1),
                Reduction { world: world.clone(), shares: &shares, leaves, all: true, order, device: Device::Cpu, to: None },
            );
            reduction.beside(before, |done| done(&last, 0..1)).unwrap();
            floats(&last.tensor(0)).to_vec()
        })
    }

    fn bits(numbers: &[f32]) -> Vec<u32> {
        numbers.iter().map(|number| number.to_bits()).collect()
    }

    #[test]
    fn any_number_of_processes_sums_to_the_same_bits() {
        for (leaves, count) in [(1, 5), (4, 1), (4, 140_000), (6, 33), (7, 70_000)] {
            let expected = &sums(1, leaves, count, Exact)[0];
            for size in 2..=leaves {
                assert!(
                    sums(size, leaves, count, Exact).iter().all(|sum| bits(sum) == bits(expected)),
                    "{size} processes, {leaves} leaves"
                );
            }
        }
        let in_a_row = (0..7).map(|leaf| number(leaf, 0)).fold(0.0, |sum, number| sum + number);
        assert_ne!(sums(1, 7, 100, Exact)[0][0].to_bits(), in_a_row.to_bits(), "numbers whose order does not matter show nothing");
    }

    #[test]
    fn the_librarys_order_gives_all_the_same_sum_but_for_its_last_digits() {
        let expected = &sums(1, 7, 70_000, Exact)[0];
        assert_eq!(bits(&sums(1, 7, 70_000, Fast)[0]), bits(expected), "one process has one order");
        for found in sums(4, 7, 70_000, Fast) {
            let largest = found.iter().zip(expected).map(|(found, expected)| (found - expected).abs()).fold(0.0, f32::max);
            assert!(largest > 0.0 && largest < 0.01, "{largest} of numbers up to 50,000");
        }
    }
}
