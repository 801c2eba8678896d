//! The state of an optimizer, tensor by tensor: whole in a file, and in memory shared out among processes.

use std::ops::Range;

use tch::{Device, Kind, Tensor};

use super::{Optimizer, Slot, StateError};
use crate::error::Failure;
use crate::model::weights::tensor_file::FileError;
use crate::offload::release;
use crate::shares::BUCKET;
use crate::world::{Wish, World, view};

/// A tensor that is remembered.
#[derive(Debug)]
pub struct Remembered {
    /// `<what>.<parameter>`: `exp_avg.transformer.wte.weight`.
    pub name: String,
    /// All of its dimensions.
    pub size: Vec<i64>,
    /// This process's part of it, which shares memory with the optimizer's.
    pub own: Tensor,
    /// The part of it that each process has. None: each has all.
    parts: Option<Vec<Range<usize>>>,
}

impl Remembered {
    fn numbers(&self) -> usize {
        self.size.iter().product::<i64>() as usize
    }

    /// Its numbers in buckets.
    fn buckets(&self) -> impl Iterator<Item = Range<usize>> {
        let numbers = self.numbers();
        (0..numbers).step_by(BUCKET).map(move |first| first..numbers.min(first + BUCKET))
    }

    /// The part of a process, where not all have all.
    fn part(&self, rank: usize) -> Range<usize> {
        self.parts.as_ref().map_or(0..self.numbers(), |parts| parts[rank].clone())
    }

    /// Whether each process has a part of it alone, as of all that is remembered with it.
    pub fn is_shared(&self) -> bool {
        self.parts.is_some()
    }

    /// Some of its numbers, for [`World::bring`]; none where each process has all of them.
    pub fn wish(&self, numbers: &Range<usize>) -> Option<Wish<'_>> {
        self.parts.as_ref().map(|parts| Wish { own: &self.own, parts, numbers: numbers.clone() })
    }

    /// Some of its numbers, where each process has all of them.
    pub fn some(&self, numbers: &Range<usize>) -> Tensor {
        view(&self.own, numbers)
    }

    /// Takes over this process's part of what the leader has.
    fn take(&self, world: &World, whole: Option<&Tensor>) -> Result<(), Failure> {
        match whole {
            Some(whole) if world.size() == 1 => self.own.shallow_clone().copy_(whole),
            _ => self.buckets().try_for_each(|bucket| world.hand_out(whole, &self.own, |rank| self.part(rank), &bucket))?,
        }
        release([&self.own]);
        Ok(())
    }
}

impl Optimizer {
    /// Everything remembered, in the order of the names.
    pub fn remembered(&self) -> Vec<Remembered> {
        let mut all: Vec<Remembered> =
            self.slots.iter().enumerate().flat_map(|(index, slot)| slot.remembered_of(self.parts(index).as_deref())).collect();
        all.sort_by(|left, right| left.name.cmp(&right.name));
        all
    }

    /// The part of a parameter that each process has, where they have shares.
    fn parts(&self, index: usize) -> Option<Vec<Range<usize>>> {
        self.shares.as_ref().map(|shares| (0..shares.size()).map(|rank| shares.part(rank, index)).collect())
    }

    /// Takes over what was remembered after so many updates, one tensor at a time by its name. The leader alone is asked for it.
    pub fn load_state(
        &mut self,
        world: &World,
        mut saved: impl FnMut(&str) -> Result<Option<Tensor>, FileError>,
        updates: u64,
    ) -> Result<(), StateError> {
        for remembered in self.remembered() {
            let whole = if world.leads() { Some(whole(&remembered, saved(&remembered.name)?)?) } else { None };
            remembered.take(world, whole.as_ref())?;
        }
        self.updates = updates;
        Ok(())
    }
}

impl Slot {
    fn remembered_of(&self, parts: Option<&[Range<usize>]>) -> Vec<Remembered> {
        let mut own = self.rule.state().into_iter().map(|(_, tensor)| tensor.shallow_clone());
        let of = |(what, size): &(&str, Vec<i64>)| {
            let numbers = size.iter().product::<i64>() as usize;
            // Rows and columns are fewer numbers than their matrix, and where all of that is.
            let part = |part: &Range<usize>| if part.len() as u64 == self.elements { 0..numbers } else { part.clone() };
            Remembered {
                name: format!("{what}.{}", self.parameter),
                size: size.clone(),
                // Of no numbers a rule may remember fewer things.
                own: own.next().unwrap_or_else(|| Tensor::zeros([0], (Kind::Float, Device::Cpu))),
                parts: parts.map(|parts| parts.iter().map(part).collect()),
            }
        };
        self.remembered.iter().map(of).collect()
    }
}

fn whole(remembered: &Remembered, saved: Option<Tensor>) -> Result<Tensor, StateError> {
    let (name, expected) = (remembered.name.clone(), remembered.size.clone());
    let Some(saved) = saved else { return Err(StateError::Missing(name)) };
    if saved.size() == expected { Ok(saved) } else { Err(StateError::Dimensions { name, expected, found: saved.size() }) }
}
