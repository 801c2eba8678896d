//! The gradients of a step, from those of its leaves.

use std::mem::take;
use std::ops::Range;

use tch::{Device, Tensor};

use super::World;
use super::tree::{self, Tree};
use crate::cpu::slices::{floats, floats_mut};
use crate::error::Failure;
use crate::journal::trace::span;
use crate::model::Parameters;
use crate::offload::release;

/// Numbers of a gradient that are exchanged at once. Larger ones take more memory, smaller ones more of the time that an exchange
/// needs to begin.
const BUCKET: usize = 1 << 20;
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
    /// Turns the gradients of this process's last leaf into those of the whole step, the same for all. `before`: those of its
    /// leaves before that.
    pub fn reduce(&self, leaves: usize, mut before: Gradients, gradients: &mut Parameters) -> Result<(), Failure> {
        if self.size == 1 {
            before.finish(gradients, add_parameters);
            return Ok(());
        }
        let (last, _span) = (self.share(leaves).end - 1, span("reduction"));
        before.join(last..last + 1, gradients, add_parameters);
        let sums: Vec<Vec<Tensor>> = before.sums().chain([&*gradients]).map(Parameters::tensors).collect();
        let whole = gradients.tensors();
        for bucket in buckets(&whole) {
            let sums: Vec<Vec<f32>> = sums.iter().map(|sum| bucket.numbers(sum)).collect();
            bucket.fill(&whole, &self.reduce_numbers(leaves, &sums)?);
        }
        Ok(())
    }

    /// Each adds up its share of the numbers, in the order of the tree, and then gives the sum to all. `sums`: those of this
    /// process's nodes.
    fn reduce_numbers(&self, leaves: usize, sums: &[Vec<f32>]) -> Result<Vec<f32>, Failure> {
        let (count, own) = (sums[0].len(), self.share(sums[0].len()).len());
        let (mut sent, mut to_each) = (Vec::with_capacity(sums.len() * count), Vec::new());
        for rank in 0..self.size {
            let share = self.share_of(rank, count);
            for sum in sums {
                sent.extend_from_slice(&sum[share.clone()]);
            }
            to_each.push(sums.len() * share.len());
        }
        let nodes: Vec<Vec<Range<usize>>> = (0..self.size).map(|rank| tree::nodes(self.share_of(rank, leaves))).collect();
        let from_each: Vec<usize> = nodes.iter().map(|nodes| nodes.len() * own).collect();
        let arrived = self.exchange(&sent, &to_each, &from_each)?;
        let mut tree = Tree::default();
        for (node, sum) in nodes.into_iter().flatten().zip(arrived.chunks_exact(own.max(1))) {
            tree.push(node, sum, <[f32]>::to_vec, |sum, other| add_numbers(sum, other));
        }
        let sum: Vec<f32> = tree.sum(|sum, other| add_numbers(sum, other)).unwrap_or_default();
        self.gather(&sum, |rank| self.share_of(rank, count).len())
    }

    /// Turns everyone's tensors into the leader's, a bucket at a time.
    pub fn broadcast(&self, tensors: &[Tensor]) -> Result<(), Failure> {
        if self.size == 1 {
            return Ok(());
        }
        for bucket in buckets(tensors) {
            let own = if self.leads() { bucket.numbers(tensors) } else { Vec::new() };
            bucket.fill(tensors, &self.gather(&own, |rank| if rank == 0 { bucket.len() } else { 0 })?);
        }
        Ok(())
    }
}

/// Numbers that lie in neighbouring tensors: the tensor's number, and which of its own.
#[derive(Debug, Default)]
struct Bucket(Vec<(usize, Range<usize>)>);

impl Bucket {
    fn len(&self) -> usize {
        self.0.iter().map(|(_, part)| part.len()).sum()
    }

    /// From wherever the tensors are.
    fn numbers(&self, tensors: &[Tensor]) -> Vec<f32> {
        let mut numbers = Vec::with_capacity(self.len());
        for (index, part) in &self.0 {
            numbers.extend_from_slice(floats(&view(&tensors[*index], part).to_device(Device::Cpu)));
        }
        numbers
    }

    fn fill(&self, tensors: &[Tensor], mut numbers: &[f32]) {
        for (index, part) in &self.0 {
            let numbers = numbers.split_off(..part.len()).unwrap_or_default();
            let mut place = view(&tensors[*index], part);
            if place.device() == Device::Cpu {
                floats_mut(&mut place).copy_from_slice(numbers);
            } else {
                place.copy_(&Tensor::from_slice(numbers));
            }
            release([&tensors[*index]]);
        }
    }
}

/// Neighbouring elements of a tensor, which they share.
fn view(tensor: &Tensor, part: &Range<usize>) -> Tensor {
    tensor.view([-1i64]).narrow(0, part.start as i64, part.len() as i64)
}

fn buckets(tensors: &[Tensor]) -> Vec<Bucket> {
    let (mut buckets, mut bucket, mut room) = (Vec::new(), Bucket::default(), BUCKET);
    for (index, tensor) in tensors.iter().enumerate() {
        let (mut start, end) = (0, tensor.numel());
        while start < end {
            let next = end.min(start + room);
            bucket.0.push((index, start..next));
            (start, room) = (next, room - (next - start));
            if room == 0 {
                buckets.push(take(&mut bucket));
                room = BUCKET;
            }
        }
    }
    buckets.push(bucket);
    buckets
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
    use super::super::tests::together;
    use super::*;

    /// Numbers of many sizes, so that another order of the sum would have other bits.
    fn number(leaf: usize, place: usize) -> f32 {
        (crate::random::uniform(&[leaf as u64, place as u64]) - 0.5) as f32 * 10.0_f32.powi((leaf % 5) as i32)
    }

    fn sums(size: usize, leaves: usize, count: usize) -> Vec<Vec<u32>> {
        together(size, |world| {
            let mut own = Tree::<Vec<f32>>::default();
            for leaf in world.share(leaves) {
                let numbers: Vec<f32> = (0..count).map(|place| number(leaf, place)).collect();
                own.push(leaf..leaf + 1, numbers.as_slice(), <[f32]>::to_vec, |sum, other| add_numbers(sum, other));
            }
            let nodes: Vec<Vec<f32>> = own.sums().cloned().collect();
            world.reduce_numbers(leaves, &nodes).unwrap().into_iter().map(f32::to_bits).collect()
        })
    }

    #[test]
    fn any_number_of_processes_sums_to_the_same_bits() {
        for (leaves, count) in [(1, 5), (4, 1), (4, 1000), (6, 33), (7, 100)] {
            let expected = &sums(1, leaves, count)[0];
            for size in 2..=leaves {
                assert!(sums(size, leaves, count).iter().all(|sum| sum == expected), "{size} processes, {leaves} leaves");
            }
        }
        let in_a_row = (0..7).map(|leaf| number(leaf, 0)).fold(0.0, |sum, number| sum + number);
        assert_ne!(sums(1, 7, 100)[0][0], in_a_row.to_bits(), "numbers whose order does not matter show nothing");
    }
}
