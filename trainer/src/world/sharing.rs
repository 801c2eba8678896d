//! Numbers that one process has and others need.

use std::iter;
use std::ops::Range;
use std::panic::resume_unwind;
use std::sync::mpsc::{self, Receiver};
use std::thread::{self, JoinHandle};

use tch::{Device, Tensor};

use super::shards::{Bucket, Shards, buckets, rounds, view};
use super::{Aside, World};
use crate::aten::nccl::{Moment, Stream};
use crate::cpu::slices::floats;
use crate::error::Failure;
use crate::journal::trace::span_of_exchange;
use crate::shares::{BUCKET, Shares};

/// Tensors on their way to all, beside the training.
#[derive(Debug)]
pub struct Arrival {
    arrived: Receiver<Range<usize>>,
    giving: JoinHandle<Result<(), Failure>>,
}

impl Arrival {
    /// Waits for the next tensors. None after the last, and after a failure.
    pub fn next(&self) -> Option<Range<usize>> {
        self.arrived.recv().ok()
    }

    /// Fails when another process was gone before all had arrived.
    pub fn end(self) -> Result<(), Failure> {
        self.giving.join().unwrap_or_else(|panic| resume_unwind(panic))
    }
}

/// Some neighbouring numbers of a tensor that lies at several processes.
#[derive(Debug, Clone)]
pub struct Wish<'a> {
    /// This process's part of it.
    pub own: &'a Tensor,
    /// The part of each.
    pub parts: &'a [Range<usize>],
    pub numbers: Range<usize>,
}

impl World {
    /// Begins to give all the share of each, by a thread of its own: some tensors after the others, as `order` says.
    pub fn give_beside(&self, shares: &Shares, order: Vec<Range<usize>>, weights: Shards) -> Arrival {
        let (world, shares, (tell, arrived)) = (self.aside(Aside::Tensors), shares.clone(), mpsc::channel());
        let (device, told) = (weights.device(), Moment::now(weights.device()));
        let give = move |stream: &Stream, some: Range<usize>| {
            world.give_shares(&shares, &some, &weights)?;
            stream.settle();
            // No thread waits for it where the run has failed meanwhile.
            let _ = tell.send(some);
            Ok(())
        };
        let giving = thread::spawn(move || {
            let stream = Stream::enter(device);
            told.follow();
            order.into_iter().try_for_each(|some| give(&stream, some))
        });
        Arrival { arrived, giving }
    }

    /// Gives all the share of each in some tensors.
    pub fn give_shares(&self, shares: &Shares, some: &Range<usize>, tensors: &Shards) -> Result<(), Failure> {
        let _span = span_of_exchange("weights", 0);
        rounds(shares, some).try_for_each(|buckets| self.give(&buckets[self.rank].of(tensors), &buckets, tensors))
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
    fn to_all<'a>(&self, tensors: &'a [Tensor]) -> impl Iterator<Item = (usize, Tensor)> + use<'a> {
        (0..self.size).flat_map(|rank| tensors.iter().map(move |tensor| (rank, tensor.shallow_clone())))
    }

    /// Turns everyone's tensors into the leader's.
    pub fn broadcast(&self, tensors: Vec<Tensor>) -> Result<(), Failure> {
        if self.size == 1 {
            return Ok(());
        }
        let parts: Vec<_> = tensors.iter().map(|tensor| 0..tensor.numel()).enumerate().collect();
        let tensors = Shards::whole(tensors);
        for bucket in buckets(parts.into_iter(), BUCKET) {
            let numbers = bucket.of(&tensors);
            if self.leads() {
                self.swap_tensors(self.to_all(&numbers), iter::empty())?;
            } else {
                self.swap_tensors(iter::empty(), numbers.into_iter().map(|tensor| (0, tensor)))?;
            }
            bucket.release(&tensors);
        }
        Ok(())
    }

    /// All call it with the same list: `wants[rank]` is what that rank needs. Returns what this one wanted.
    pub fn bring<'a>(&self, wants: &[Option<Wish<'a>>]) -> Result<Vec<f32>, Failure> {
        let of =
            |wish: &Option<Wish<'a>>, rank: usize| wish.as_ref().map_or(0..0, |wish| overlap(&wish.parts[rank], &wish.numbers));
        let to_each = wants.iter().map(|wish| {
            let numbers = of(wish, self.rank);
            wish.as_ref().map_or_else(Vec::new, |wish| plain(wish.own, &wish.parts[self.rank], &numbers))
        });
        let to_each: Vec<Vec<f32>> = to_each.collect();
        let from_each: Vec<usize> = (0..self.size).map(|rank| of(&wants[self.rank], rank).len()).collect();
        self.exchange(&to_each.iter().map(Vec::as_slice).collect::<Vec<_>>(), &from_each)
    }

    /// Gives each process what it has of the leader's `whole` tensor.
    pub fn hand_out(
        &self,
        whole: Option<&Tensor>,
        own: &Tensor,
        part: impl Fn(usize) -> Range<usize>,
        numbers: &Range<usize>,
    ) -> Result<(), Failure> {
        let of = |rank: usize| overlap(&part(rank), numbers);
        let parts: Vec<Vec<f32>> = whole.map_or_else(
            || vec![Vec::new(); self.size],
            |whole| (0..self.size).map(|rank| plain(whole, &(0..whole.numel()), &of(rank))).collect(),
        );
        let to_each: Vec<&[f32]> = parts.iter().map(Vec::as_slice).collect();
        let mut from_each = vec![0; self.size];
        from_each[0] = of(self.rank).len();
        let arrived = self.exchange(&to_each, &from_each)?;
        let (place, start) = (of(self.rank), part(self.rank).start);
        if !place.is_empty() {
            let mut place = view(own, &(place.start - start..place.end - start));
            place.copy_(&Tensor::from_slice(&arrived).view_as(&place));
        }
        Ok(())
    }
}

/// Some numbers of a tensor that begins with the first of `there`.
fn plain(tensor: &Tensor, there: &Range<usize>, numbers: &Range<usize>) -> Vec<f32> {
    if numbers.is_empty() {
        return Vec::new();
    }
    let part = view(tensor, &(numbers.start - there.start..numbers.end - there.start));
    floats(&part.to_device(Device::Cpu)).to_vec()
}

fn overlap(left: &Range<usize>, right: &Range<usize>) -> Range<usize> {
    let start = left.start.max(right.start);
    start..left.end.min(right.end).max(start)
}
