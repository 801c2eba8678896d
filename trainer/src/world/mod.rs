//! The processes that train one model together, as each of them sees them.
//!
//! A step has leaves: runs of neighbouring micro-batches, as many as `train.leaves` says, whatever process carries which. Their
//! gradients join in one fixed tree (`crate::tree`), so that any number of processes, up to as many as there are leaves, gives the
//! same bits. Other sums are made of what all have of it, in order. What is decided from numbers is decided from those that all
//! have, and what comes from outside (a wish, free memory) is known to all before anybody acts on it.

mod addresses;
mod channels;
mod environment;
mod gpus;
mod processes;
mod reduction;
mod shards;
mod sharing;
mod sums;

use std::fmt::Debug;
use std::ops::Range;
use std::sync::Arc;

use bytemuck::{Pod, cast_slice, cast_slice_mut};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tch::{Device, Kind, Tensor};

use crate::cpu::slices::{floats, floats_mut};
use crate::error::Failure;
use crate::model::Loss;
pub use addresses::interface;
pub use reduction::{Gradients, Reduction};
pub use shards::{Shards, view};
pub use sharing::{Arrival, Wish};

/// The way to the other processes. One kind of exchange is enough for all that they tell each other.
trait Link: Debug + Send + Sync {
    /// Gives other ranks parts of memory, and fills parts with what they give: the n-th for a rank is the n-th that arrives there
    /// from this one, and as long. All call it, in the same order.
    fn exchange(&self, sent: &[(usize, &[u8])], arrived: &mut [(usize, &mut [u8])]) -> Result<(), Failure>;

    /// Turns the numbers of each into the sum of those of all, in whatever order. All call it, in the same order as exchanges.
    fn sum(&self, numbers: &mut [f32]) -> Result<(), Failure>;

    /// [`Link::exchange`] of contiguous tensors of `f32`, wherever they are: those of a GPU go through main memory. They stay of
    /// the caller, who has them all on one device.
    fn exchange_tensors(&self, sent: &[(usize, Tensor)], arrived: &[(usize, Tensor)]) -> Result<(), Failure> {
        let from: Vec<_> = sent.iter().map(|(rank, part)| (*rank, part.to_device(Device::Cpu))).collect();
        let mut to: Vec<_> = arrived.iter().map(|(rank, part)| (*rank, place_in_main_memory(part))).collect();
        let from: Vec<_> = from.iter().map(|(rank, part)| (*rank, cast_slice(floats(part)))).collect();
        let mut places: Vec<_> = to.iter_mut().map(|(rank, part)| (*rank, cast_slice_mut(floats_mut(part)))).collect();
        self.exchange(&from, &mut places)?;
        arrived.iter().zip(&to).for_each(|((_, place), (_, part))| take(place, part));
        Ok(())
    }

    /// [`Link::sum`] of a contiguous tensor of `f32`.
    fn sum_tensor(&self, numbers: &Tensor) -> Result<(), Failure> {
        let mut here = numbers.to_device(Device::Cpu);
        self.sum(floats_mut(&mut here))?;
        take(numbers, &here);
        Ok(())
    }

    /// Tells the others that an exchange has failed, because one of them is gone: why all end.
    fn lost(&self, error: &str) -> Failure {
        Failure::Lost(error.to_owned())
    }

    /// Tells the others that this one has failed, or has lost one of them: why it ends, which is the first cause of all.
    fn failed(&self, failure: Failure) -> Failure {
        failure
    }

    /// Ends the process and the others: one of its threads waits, and does not come back.
    fn end(&self, _why: &str) {}

    /// All are through: none misses another from now on.
    fn through(&self) {}
}

/// The processes of a run, and which of them this one is.
///
/// An exchange fails with [`Failure::Lost`] when another process is gone.
#[derive(Debug, Clone)]
pub struct World {
    /// From 0.
    rank: usize,
    size: usize,
    /// How many of them share this machine.
    beside: usize,
    /// Its number among those.
    local: usize,
    /// This machine's number, where each machine has an agent that sends what is written there.
    node: Option<usize>,
    /// Where there are others.
    link: Option<Arc<dyn Link>>,
    /// Other ways to them: see [`Aside`].
    aside: [Option<Arc<dyn Link>>; 3],
}

/// Exchanges of other threads than the training's. Each kind has an order of its own.
#[derive(Debug, Clone, Copy)]
pub enum Aside {
    /// Gradients and weights, while others are computed.
    Tensors,
    /// Every other bucket of gradients, beside the one before it.
    Between,
    /// The optimizer's state, for files.
    Checkpoints,
}

impl World {
    /// One process.
    pub fn alone() -> Self {
        Self { rank: 0, size: 1, beside: 1, local: 0, node: None, link: None, aside: [None, None, None] }
    }

    pub fn rank(&self) -> usize {
        self.rank
    }

    /// How many there are.
    pub fn size(&self) -> usize {
        self.size
    }

    /// How many there are on this machine.
    pub fn beside(&self) -> usize {
        self.beside
    }

    /// Its number among those on this machine, from 0.
    pub fn local(&self) -> usize {
        self.local
    }

    /// This machine's number, where each machine has an agent that sends what is written there.
    pub fn node(&self) -> Option<usize> {
        self.node
    }

    /// The same processes, for exchanges of another thread.
    #[must_use]
    pub fn aside(&self, of: Aside) -> Self {
        Self { link: self.aside[of as usize].clone(), ..self.clone() }
    }

    /// Whether this one writes what the run leaves.
    pub fn leads(&self) -> bool {
        self.rank == 0
    }

    /// This one's part of `count` things; the parts of all follow each other.
    pub fn share(&self, count: usize) -> Range<usize> {
        self.share_of(self.rank, count)
    }

    /// The part of another.
    pub fn share_of(&self, rank: usize, count: usize) -> Range<usize> {
        count * rank / self.size..count * (rank + 1) / self.size
    }

    /// The numbers of all, in the order of the ranks; a rank has `count` of them.
    pub fn gather<T: Pod>(&self, own: &[T], count: impl Fn(usize) -> usize) -> Result<Vec<T>, Failure> {
        let from_each: Vec<usize> = (0..self.size).map(count).collect();
        self.exchange(&vec![own; self.size], &from_each)
    }

    /// [`World::gather`] of losses.
    pub fn gather_losses(&self, own: &[Loss], count: impl Fn(usize) -> usize) -> Result<Vec<Loss>, Failure> {
        let numbers: Vec<f64> = own.iter().flat_map(|loss| [loss.sum, loss.weight]).collect();
        let numbers = self.gather(&numbers, |rank| 2 * count(rank))?;
        Ok(numbers.chunks_exact(2).map(|loss| Loss { sum: loss[0], weight: loss[1] }).collect())
    }

    /// Whether it is so for any of them.
    pub fn any(&self, own: bool) -> Result<bool, Failure> {
        Ok(self.gather(&[u8::from(own)], |_| 1)?.contains(&1))
    }

    /// Gives all processes the finding of the leader. The others do not look: they have no part in its files.
    pub fn told<T: Serialize + DeserializeOwned>(&self, find: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
        let own = if self.leads() { Some(find()?) } else { None };
        if self.size == 1 {
            return own.ok_or_else(|| unreachable!("one process leads"));
        }
        let text = own.map_or_else(|| Ok(Vec::new()), |found| serde_json::to_vec(&found)).map_err(Failure::other)?;
        let length = self.gather(&[text.len() as u64], |_| 1)?[0] as usize;
        let text = self.gather(&text, |rank| if rank == 0 { length } else { 0 })?;
        serde_json::from_slice(&text).map_err(Failure::other)
    }

    /// Lets no process end before all are through, and all end when one of them has failed.
    pub fn part<T>(&self, outcome: Result<T, Failure>) -> Result<T, Failure> {
        let Some(link) = &self.link else { return outcome };
        let outcome = outcome.and_then(|done| self.any(false).map(|_| done));
        if outcome.is_ok() {
            link.through();
        }
        outcome.map_err(|failure| link.failed(failure))
    }

    /// Gives each rank a part; the parts that all give to this one, of as many numbers as `from_each` says.
    fn exchange<T: Pod>(&self, to_each: &[&[T]], from_each: &[usize]) -> Result<Vec<T>, Failure> {
        let mut arrived = vec![T::zeroed(); from_each.iter().sum()];
        let mut places = slices(&mut arrived, from_each.iter().copied());
        places[self.rank].copy_from_slice(to_each[self.rank]);
        self.swap(to_each.iter().copied().enumerate(), places.into_iter().enumerate())?;
        Ok(arrived)
    }

    /// [`Link::exchange_tensors`]. What a process gives itself is left out.
    fn swap_tensors(
        &self,
        sent: impl Iterator<Item = (usize, Tensor)>,
        arrived: impl Iterator<Item = (usize, Tensor)>,
    ) -> Result<(), Failure> {
        let Some(link) = &self.link else { return Ok(()) };
        let counts = |(rank, part): &(usize, Tensor)| *rank != self.rank && part.numel() > 0;
        link.exchange_tensors(&sent.filter(counts).collect::<Vec<_>>(), &arrived.filter(counts).collect::<Vec<_>>())
    }

    /// [`Link::exchange`] of numbers, where they lie. What a process gives itself is left out.
    fn swap<'a, 'b, T: Pod>(
        &self,
        sent: impl Iterator<Item = (usize, &'a [T])>,
        arrived: impl Iterator<Item = (usize, &'b mut [T])>,
    ) -> Result<(), Failure> {
        let Some(link) = &self.link else { return Ok(()) };
        let counts = |rank: usize, numbers: &[T]| rank != self.rank && !numbers.is_empty();
        let sent = sent.filter(|(rank, part)| counts(*rank, part)).map(|(rank, part)| (rank, cast_slice(part)));
        let arrived = arrived.filter(|(rank, part)| counts(*rank, part)).map(|(rank, part)| (rank, cast_slice_mut(part)));
        link.exchange(&sent.collect::<Vec<_>>(), &mut arrived.collect::<Vec<_>>())
    }
}

/// The part itself where it is there already.
fn place_in_main_memory(part: &Tensor) -> Tensor {
    if part.device() == Device::Cpu { part.shallow_clone() } else { Tensor::empty(part.size(), (Kind::Float, Device::Cpu)) }
}

/// Fills `place` with the numbers of a part that may be its own memory.
fn take(place: &Tensor, part: &Tensor) {
    if place.data_ptr() != part.data_ptr() {
        place.shallow_clone().copy_(&part.view_as(place));
    }
}

/// Neighbouring parts of `numbers`, so long.
fn slices<T>(mut numbers: &mut [T], lengths: impl Iterator<Item = usize>) -> Vec<&mut [T]> {
    lengths.map(|length| numbers.split_off_mut(..length).unwrap_or_default()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The findings of several threads, one each.
    pub(super) fn together<T: Send>(size: usize, work: impl Fn(&World) -> T + Sync) -> Vec<T> {
        let work = &work;
        std::thread::scope(|threads| {
            let started: Vec<_> = World::of_threads(size).into_iter().map(|world| threads.spawn(move || work(&world))).collect();
            started.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }

    #[test]
    fn the_parts_of_all_follow_each_other_and_are_everything() {
        for (size, count) in [(1, 5), (2, 5), (3, 8), (4, 4), (4, 2), (5, 0)] {
            let worlds = World::of_threads(size);
            let parts = worlds.iter().map(|world| world.share(count));
            assert!(parts.clone().flatten().eq(0..count), "{count} among {size}");
            assert!(parts.into_iter().all(|part| part.len().abs_diff(count / size) <= 1), "{count} among {size}");
        }
    }

    #[test]
    fn one_process_has_everything_and_the_say() {
        let (world, losses) = (World::alone(), [Loss { sum: 0.1, weight: 3.0 }, Loss::default()]);
        assert!(world.leads() && world.share(7) == (0..7));
        assert_eq!(world.gather_losses(&losses, |_| 2).unwrap(), losses);
        assert!(world.any(true).unwrap() && !world.any(false).unwrap());
        assert_eq!(world.told(|| Ok("a word".to_owned())).unwrap(), "a word");
    }

    #[test]
    fn all_have_the_numbers_of_all_and_the_leaders_word() {
        let found = together(3, |world| {
            let own = vec![world.rank() as f64; world.rank()];
            let gathered = world.gather(&own, |rank| rank).unwrap();
            let (some, none) = (world.any(world.rank() == 2).unwrap(), world.any(false).unwrap());
            let look = || if world.leads() { Ok(Some(0.1)) } else { Err(Failure::other("not its own")) };
            (gathered, some, none, world.told(look).unwrap())
        });
        assert_eq!(found, vec![(vec![1.0, 2.0, 2.0], true, false, Some(0.1)); 3]);
    }

    #[test]
    fn who_waits_for_one_that_is_gone_is_told() {
        let found = together(3, |world| if world.rank() == 1 { Ok(true) } else { world.any(false) });
        assert!(found[1].is_ok());
        assert!([&found[0], &found[2]].iter().all(|found| matches!(found, Err(Failure::Lost(_)))), "{found:?}");
    }
}
