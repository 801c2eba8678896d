//! The gradients of a step, from those of its leaves.

use std::borrow::Cow;
use std::ops::Range;

use super::World;
use super::shards::{BUCKET, Bucket, Shards, rounds};
use super::tree::{self, Tree};
use crate::error::Failure;
use crate::journal::trace::span;
use crate::model::Parameters;
use crate::offload::release;
use crate::shares::Shares;

/// Bytes that an exchange takes at its peak: the numbers of a bucket or two sums, what is sent and what arrives.
pub(super) const BUFFERS: u64 = 8 * size_of::<f32>() as u64 * BUCKET as u64;

/// Sums of the gradients of a process's leaves, as far as they join.
pub type Gradients = Tree<Parameters>;

impl Gradients {
    /// Takes the gradients of the next leaf.
    pub fn add(&mut self, leaf: usize, gradients: &Parameters) {
        let copied = |gradients: &Parameters| {
            let mut copied = gradients.zeros_like();
            copied.iter_mut().zip(gradients).for_each(|(place, entry)| place.tensor.copy_(&entry.tensor));
            copied
        };
        self.push(leaf..leaf + 1, gradients, copied, add_parameters);
    }
}

impl World {
    /// Turns the gradients of this process's last leaf into those of the whole step: its share of them, or `all` of them. `before`:
    /// those of its leaves before that.
    pub fn reduce(
        &self,
        shares: &Shares,
        leaves: usize,
        mut before: Gradients,
        gradients: &mut Parameters,
        all: bool,
    ) -> Result<(), Failure> {
        if self.size == 1 {
            before.finish(gradients, add_parameters);
            return Ok(());
        }
        let last = self.share(leaves).end - 1;
        before.join(last..last + 1, gradients, add_parameters);
        let sums: Vec<Shards> = before.sums().chain([&*gradients]).map(Shards::of).collect();
        self.reduce_to(&Shards::of(gradients), shares, shares.tensors(), leaves, &sums, all)
    }

    /// Adds up some tensors, of which this process has the `sums` of its nodes, a bucket at a time. Each process adds up its share;
    /// where `all` is asked for it gives that to all.
    pub fn reduce_to(
        &self,
        to: &Shards,
        shares: &Shares,
        tensors: Range<usize>,
        leaves: usize,
        sums: &[Shards],
        all: bool,
    ) -> Result<(), Failure> {
        let _span = span("reduction");
        for buckets in rounds(shares, &tensors) {
            let own = self.add_up(leaves, &buckets, sums)?;
            if all {
                self.give(&own, &buckets, to)?;
            } else {
                buckets[self.rank].fill(to, &mut own.as_slice());
            }
        }
        Ok(())
    }

    /// The sum of this process's bucket, in the order of the tree, from its own and what the others send.
    fn add_up(&self, leaves: usize, buckets: &[Bucket], sums: &[Shards]) -> Result<Vec<f32>, Failure> {
        let own = buckets[self.rank].len();
        let to_each = self.of_others(|rank| sums.len() * buckets[rank].len());
        let mut sent = Vec::with_capacity(to_each.iter().sum());
        for (_, bucket) in buckets.iter().enumerate().filter(|(rank, _)| *rank != self.rank) {
            for sum in sums {
                bucket.append_to(&mut sent, sum);
            }
        }
        let nodes: Vec<Vec<Range<usize>>> = (0..self.size).map(|rank| tree::nodes(self.share_of(rank, leaves))).collect();
        let arrived = self.exchange(&sent, &to_each, &self.of_others(|rank| nodes[rank].len() * own))?;
        if own == 0 {
            return Ok(Vec::new());
        }
        let of_own: Vec<Vec<f32>> = sums.iter().map(|sum| buckets[self.rank].numbers(sum)).collect();
        let (mut of_own, mut arrived) = (of_own.iter().map(Vec::as_slice), arrived.chunks_exact(own));
        let mut tree = Tree::<Vec<f32>>::default();
        for (rank, nodes) in nodes.into_iter().enumerate() {
            let count = nodes.len();
            let sums = if rank == self.rank {
                of_own.by_ref().take(count).collect()
            } else {
                arrived.by_ref().take(count).collect::<Vec<_>>()
            };
            for (node, sum) in nodes.into_iter().zip(sums) {
                tree.push(node, sum, <[f32]>::to_vec, |sum, other| add_numbers(sum, other));
            }
        }
        Ok(tree.sum(|sum, other| add_numbers(sum, other)).unwrap_or_default())
    }

    /// Gives all what this process has of each round's buckets.
    pub(super) fn give(&self, own: &[f32], buckets: &[Bucket], to: &Shards) -> Result<(), Failure> {
        let (one, counts) = (own.len(), self.of_others(|rank| buckets[rank].len()));
        let sent = if self.size == 2 { Cow::from(own) } else { Cow::from(own.repeat(self.size - 1)) };
        let numbers = self.exchange(&sent, &self.of_others(|_| one), &counts)?;
        let (mut numbers, mut own) = (numbers.as_slice(), own);
        for (rank, bucket) in buckets.iter().enumerate() {
            bucket.fill(to, if rank == self.rank { &mut own } else { &mut numbers });
        }
        Ok(())
    }

    /// How much each of the others has or gets; a process sends itself nothing.
    fn of_others(&self, count: impl Fn(usize) -> usize) -> Vec<usize> {
        (0..self.size).map(|rank| if rank == self.rank { 0 } else { count(rank) }).collect()
    }
}

fn add_parameters(sum: &mut Parameters, other: &Parameters) {
    for (sum, other) in sum.iter_mut().zip(other) {
        sum.tensor += &other.tensor;
        release([&sum.tensor]);
    }
}

fn add_numbers(sum: &mut [f32], other: &[f32]) {
    sum.iter_mut().zip(other).for_each(|(sum, other)| *sum += other);
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind, Tensor};

    use super::super::tests::together;
    use super::*;
    use crate::cpu::slices::floats;
    use crate::model::role::{Role, TensorSpec};
    use crate::settings::OptimizerKind;

    /// Numbers of many sizes, so that another order of the sum would have other bits.
    fn number(leaf: usize, place: usize) -> f32 {
        (crate::random::uniform(&[leaf as u64, place as u64]) - 0.5) as f32 * 10.0_f32.powi((leaf % 5) as i32)
    }

    fn sums(size: usize, leaves: usize, count: usize) -> Vec<Vec<u32>> {
        let spec = TensorSpec { name: "weight".to_owned(), role: Role::TokenEmbedding, dimensions: vec![count] };
        let shares = Shares::new(size, &[spec], OptimizerKind::Adamw);
        together(size, |world| {
            let mut own = Tree::<Vec<f32>>::default();
            for leaf in world.share(leaves) {
                let numbers: Vec<f32> = (0..count).map(|place| number(leaf, place)).collect();
                own.push(leaf..leaf + 1, numbers.as_slice(), <[f32]>::to_vec, |sum, other| add_numbers(sum, other));
            }
            let nodes: Vec<Shards> = own.sums().map(|sum| Shards::whole([Tensor::from_slice(sum)])).collect();
            let sum = Tensor::zeros([count as i64], (Kind::Float, Device::Cpu));
            world.reduce_to(&Shards::whole([sum.shallow_clone()]), &shares, 0..1, leaves, &nodes, true).unwrap();
            floats(&sum).iter().map(|number| number.to_bits()).collect()
        })
    }

    #[test]
    fn any_number_of_processes_sums_to_the_same_bits() {
        for (leaves, count) in [(1, 5), (4, 1), (4, 140_000), (6, 33), (7, 70_000)] {
            let expected = &sums(1, leaves, count)[0];
            for size in 2..=leaves {
                assert!(sums(size, leaves, count).iter().all(|sum| sum == expected), "{size} processes, {leaves} leaves");
            }
        }
        let in_a_row = (0..7).map(|leaf| number(leaf, 0)).fold(0.0, |sum, number| sum + number);
        assert_ne!(sums(1, 7, 100)[0][0], in_a_row.to_bits(), "numbers whose order does not matter show nothing");
    }
}
