//! Numbers of a run's tensors as a process has them, and as they are exchanged.

use std::ops::Range;

use tch::{Device, Tensor};

use super::take;
use crate::model::Parameters;
use crate::offload::release;
use crate::shares::{BUCKET, Shares};

/// Some numbers of each tensor: all, or this process's part.
#[derive(Debug)]
pub struct Shards {
    tensors: Vec<Tensor>,
    /// The first that is there, of each.
    starts: Vec<usize>,
}

impl Shards {
    /// All of them, sharing memory with `tensors`.
    pub fn whole(tensors: impl IntoIterator<Item = Tensor>) -> Self {
        let tensors: Vec<Tensor> = tensors.into_iter().collect();
        Self { starts: vec![0; tensors.len()], tensors }
    }

    /// The same numbers, for another thread.
    #[must_use]
    pub fn shared(&self) -> Self {
        Self { tensors: self.tensors.iter().map(Tensor::shallow_clone).collect(), starts: self.starts.clone() }
    }

    /// [`Shards::whole`] of these.
    pub fn of(parameters: &Parameters) -> Self {
        Self::whole(parameters.tensors())
    }

    /// Zeros for the part of one process.
    pub fn zeros(parameters: &Parameters, shares: &Shares, rank: usize) -> Self {
        let parts: Vec<_> = shares.parts(rank).collect();
        let zeros = |(entry, part): (Tensor, &Range<usize>)| {
            // Views of nothing take no memory; whole tensors keep their dimensions.
            if part.len() == entry.numel() { entry.zeros_like() } else { view(&entry, &(0..part.len())).zeros_like() }
        };
        let tensors = parameters.tensors().into_iter().zip(&parts).map(zeros).collect();
        Self { tensors, starts: parts.into_iter().map(|part| part.start).collect() }
    }

    /// Some of a tensor's numbers, which must be there; all of them with their dimensions.
    pub fn part(&self, tensor: usize, part: &Range<usize>) -> Tensor {
        let start = self.starts[tensor];
        view(&self.tensors[tensor], &(part.start - start..part.end - start))
    }

    /// Where they are.
    pub fn device(&self) -> Device {
        self.tensors.first().map_or(Device::Cpu, Tensor::device)
    }

    /// How many there are of a tensor.
    pub fn numbers(&self, tensor: usize) -> usize {
        self.tensors[tensor].numel()
    }

    /// Takes a process's part of some tensors from whole ones.
    pub fn take_from(&self, whole: &Self, shares: &Shares, rank: usize, tensors: &Range<usize>) {
        for (tensor, part) in tensors.clone().map(|tensor| (tensor, shares.part(rank, tensor))) {
            self.part(tensor, &part).copy_(&whole.part(tensor, &part));
        }
    }

    /// See [`release`].
    pub fn release(&self, tensor: usize) {
        release([&self.tensors[tensor]]);
    }
}

/// Neighbouring numbers of a tensor, which shares them; all of them are the tensor itself.
pub fn view(tensor: &Tensor, part: &Range<usize>) -> Tensor {
    if part.len() == tensor.numel() {
        return tensor.shallow_clone();
    }
    tensor.view([-1_i64]).narrow(0, part.start as i64, part.len() as i64)
}

/// Numbers of neighbouring tensors: each tensor's number, and which of its own.
#[derive(Debug, Clone, Default)]
pub(super) struct Bucket(Vec<(usize, Range<usize>)>);

impl Bucket {
    /// How many of each tensor.
    pub fn lengths(&self) -> impl Iterator<Item = usize> {
        self.0.iter().map(|(_, part)| part.len())
    }

    /// The numbers of each tensor, which share its memory.
    pub fn of(&self, shards: &Shards) -> Vec<Tensor> {
        self.0.iter().map(|(index, part)| shards.part(*index, part)).collect()
    }

    /// Fills its place in `shards` with such numbers, of these or of others.
    pub fn put(&self, shards: &Shards, numbers: &[Tensor]) {
        self.of(shards).iter().zip(numbers).for_each(|(place, part)| take(place, part));
        self.release(shards);
    }

    /// See [`Shards::release`].
    pub fn release(&self, shards: &Shards) {
        self.0.iter().for_each(|(index, _)| shards.release(*index));
    }
}

/// Parts of tensors in buckets of `room` numbers.
pub(super) fn buckets(parts: impl Iterator<Item = (usize, Range<usize>)>, room: usize) -> Vec<Bucket> {
    let (mut buckets, mut left) = (Vec::<Bucket>::new(), 0);
    for (index, part) in parts {
        let mut start = part.start;
        while start < part.end {
            if left == 0 {
                buckets.push(Bucket::default());
                left = room;
            }
            let end = part.end.min(start + left);
            buckets.last_mut().expect("the one with room").0.push((index, start..end));
            (left, start) = (left - (end - start), end);
        }
    }
    buckets
}

/// The buckets of all processes of some tensors, as many numbers at once: of each process one, where it has more.
pub(super) fn rounds(shares: &Shares, tensors: &Range<usize>) -> impl Iterator<Item = Vec<Bucket>> {
    let room = (BUCKET / shares.size()).max(1);
    let of = |rank: usize| buckets(tensors.clone().map(|tensor| (tensor, shares.part(rank, tensor))), room);
    let of_ranks: Vec<Vec<Bucket>> = (0..shares.size()).map(of).collect();
    let most = of_ranks.iter().map(Vec::len).max().unwrap_or(0);
    (0..most).map(move |round| of_ranks.iter().map(|buckets| buckets.get(round).cloned().unwrap_or_default()).collect())
}
