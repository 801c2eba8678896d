//! The gradients of a step, from those of its leaves.

use std::ops::Range;
use std::panic::resume_unwind;
use std::sync::mpsc::{self, Receiver};
use std::thread;

use tch::Device;

use super::shards::{Shards, rounds};
use super::{Aside, World};
use crate::aten::nccl::{Moment, Stream};
use crate::error::Failure;
use crate::journal::trace::span_of_exchange;
use crate::model::Parameters;
use crate::offload::release;
use crate::settings;
use crate::shares::Shares;
use crate::tree::Tree;

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

fn add_tensors(sum: &Parameters, other: &Parameters, tensors: Range<usize>) {
    for index in tensors {
        let mut sum = sum.tensor(index);
        sum += &other.tensor(index);
        release([&sum]);
    }
}
