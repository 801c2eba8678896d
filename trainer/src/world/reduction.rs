//! The gradients of a step, from those of its leaves.

use std::ops::Range;
use std::panic::resume_unwind;
use std::sync::mpsc::{self, Receiver};
use std::thread;

use tch::{Device, Kind, Tensor};

use super::shards::{Bucket, Shards, buckets, rounds};
use super::{Aside, World};
use crate::aten::nccl::{Moment, Stream};
use crate::cpu::simd::add_all;
use crate::cpu::slices::{floats, floats_mut};
use crate::error::Failure;
use crate::journal::trace::span_of_exchange;
use crate::model::Parameters;
use crate::offload::release;
use crate::settings;
use crate::shares::{BUCKET, Shares};
use crate::tree::{self, Tree};

/// Threads that exchange buckets in turns: one adds up while the other waits for what arrives.
const LANES: [Aside; 2] = [Aside::Tensors, Aside::Between];

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
        let all = 0..gradients.iter().len();
        self.push(leaf..leaf + 1, gradients, copied, |sum, other| add_tensors(sum, other, all.clone()));
    }
}

/// How gradients of this process's last leaf turn into those of the whole step, while others are still computed.
#[derive(Debug)]
pub struct Reduction<'a> {
    pub world: World,
    pub shares: &'a Shares,
    /// Number of the step's leaves.
    pub leaves: usize,
    /// Each process gets all of the sum, or its share alone.
    pub all: bool,
    /// By the tree of the leaves, or as the library likes.
    pub order: settings::Reduction,
    /// Where the gradients are.
    pub device: Device,
    /// Where this process's share goes, if not to the place of the gradients: these change as soon as two more tellings are done.
    pub to: Option<Shards>,
}

/// Tensors that are exchanged next.
struct Told {
    tensors: Range<usize>,
    /// Those of this process's nodes, the last leaf's the last.
    sums: Vec<Shards>,
    /// They are there from then on.
    when: Moment,
}

impl Reduction<'_> {
    /// Does `work`, which computes the gradients of the last leaf and tells of those that are there, each once and all in the same
    /// order everywhere. Threads exchange them meanwhile, in that order. `before`: the gradients of this process's other leaves.
    pub fn beside<T>(
        self,
        mut before: Gradients,
        work: impl FnOnce(&mut dyn FnMut(&Parameters, Range<usize>)) -> T,
    ) -> Result<T, Failure> {
        let last = self.world.share(self.leaves).end - 1;
        let mut joining = before.siblings(last..last + 1);
        if self.world.size == 1 {
            joining.extend(before.into_sums().rev());
            return Ok(work(&mut |gradients, tensors| joining.iter().for_each(|sum| add_tensors(gradients, sum, tensors.clone()))));
        }
        let others: Vec<Parameters> = before.into_sums().collect();
        // A telling waits for the one before it to be exchanged where gradients change soon.
        let waiting = if self.to.is_some() { 0 } else { self.shares.tensors().len() };
        let lanes = if self.order == settings::Reduction::Fast || self.device.is_cuda() { 1 } else { LANES.len() };
        thread::scope(|threads| {
            let (tell, exchanging): (Vec<_>, Vec<_>) = (0..lanes)
                .map(|lane| {
                    let (tell, told) = mpsc::sync_channel(waiting);
                    let reduction = self.of_lane(lane);
                    (tell, threads.spawn(move || reduction.sum_up_what_is([lane, lanes], told)))
                })
                .unzip();
            let done = work(&mut |gradients, tensors| {
                for sum in &joining {
                    add_tensors(gradients, sum, tensors.clone());
                }
                for tell in &tell {
                    let sums: Vec<Shards> = others.iter().chain([gradients]).map(Shards::of).collect();
                    // No thread listens after a failure, which is found when the thread has ended.
                    let _ = tell.send(Told { tensors: tensors.clone(), sums, when: Moment::now(self.device) });
                }
            });
            drop(tell);
            let ended = exchanging.into_iter().map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic)));
            // All are waited for, whichever fails.
            ended.collect::<Vec<_>>().into_iter().collect::<Result<(), _>>().map(|()| done)
        })
    }

    fn of_lane(&self, lane: usize) -> Self {
        Self { world: self.world.aside(LANES[lane]), to: self.to.as_ref().map(Shards::shared), ..*self }
    }

    /// Adds up tensors, of which this process has the sums of its nodes, a bucket at a time, each process its share. Every lane, of
    /// so many, has buckets of its own.
    fn sum_up_what_is(&self, [lane, lanes]: [usize; 2], told: Receiver<Told>) -> Result<(), Failure> {
        let (world, stream, mut turns) = (&self.world, Stream::enter(self.device), (0..lanes).cycle());
        let mut room = Vec::new();
        for Told { tensors, sums, when } in told {
            let _span = span_of_exchange("reduction", lane);
            when.follow();
            let gradients = sums.last().expect("the sum with the last leaf");
            if self.order == settings::Reduction::Fast {
                world.sum_fast(&tensors, &sums)?;
                self.to.iter().for_each(|to| to.take_from(gradients, self.shares, world.rank, &tensors));
                stream.settle();
                continue;
            }
            for buckets in rounds(self.shares, &tensors).filter(|_| turns.next() == Some(lane)) {
                let own = world.add_up(self.leaves, &buckets, &sums, &mut room)?;
                buckets[world.rank].put(self.to.as_ref().unwrap_or(gradients), &own);
                if self.all {
                    world.give(&own, &buckets, gradients)?;
                }
                for (bucket, sum) in buckets.iter().flat_map(|bucket| sums.iter().map(move |sum| (bucket, sum))) {
                    bucket.release(sum);
                }
            }
            stream.settle();
        }
        Ok(())
    }
}

impl World {
    /// Turns the last of the sums into that of all sums of all processes, in the order that the library takes.
    fn sum_fast(&self, tensors: &Range<usize>, sums: &[Shards]) -> Result<(), Failure> {
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
    fn add_up(&self, leaves: usize, buckets: &[Bucket], sums: &[Shards], room: &mut Vec<f32>) -> Result<Vec<Tensor>, Failure> {
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

    /// Gives all what this process has of each round's buckets.
    pub(super) fn give(&self, own: &[Tensor], buckets: &[Bucket], to: &Shards) -> Result<(), Failure> {
        let others = || buckets.iter().enumerate().filter(|(rank, _)| *rank != self.rank);
        let places = others().flat_map(|(rank, bucket)| bucket.of(to).into_iter().map(move |part| (rank, part)));
        self.swap_tensors(self.to_all(own), places)?;
        others().for_each(|(_, bucket)| bucket.release(to));
        Ok(())
    }

    /// To each process.
    pub(super) fn to_all<'a>(&self, tensors: &'a [Tensor]) -> impl Iterator<Item = (usize, Tensor)> + use<'a> {
        (0..self.size).flat_map(|rank| tensors.iter().map(move |tensor| (rank, tensor.shallow_clone())))
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

fn add_tensors(sum: &Parameters, other: &Parameters, tensors: Range<usize>) {
    for index in tensors {
        let mut sum = sum.tensor(index);
        sum += &other.tensor(index);
        release([&sum]);
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::together;
    use super::*;
    use crate::model::role::{Role, TensorSpec};
    use crate::model::weights::parameters::Parameter;
    use crate::settings::OptimizerKind;
    use crate::settings::Reduction::{Exact, Fast};

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
