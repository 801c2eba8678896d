//! The processes that train one model together, as each of them sees them. Today a process trains alone: every exchange gives back
//! what it gets.
//!
//! A step has one order of its micro-batches and of the sums over them, whatever process carries which. What is decided from
//! numbers is decided from those that all have, and what comes from outside (a wish, free memory) is the leader's word.

use std::ops::Range;

use crate::model::{Loss, Parameters};

/// The processes of a run, and which of them this one is.
#[derive(Debug, Clone, Copy)]
pub struct World {
    /// From 0.
    rank: usize,
    size: usize,
}

impl World {
    /// One process.
    pub fn alone() -> Self {
        Self { rank: 0, size: 1 }
    }

    pub fn rank(&self) -> usize {
        self.rank
    }

    /// How many there are.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Whether this one writes what the run leaves, and is listened to.
    pub fn leads(&self) -> bool {
        self.rank == 0
    }

    /// This one's part of `count` things; the parts of all follow each other.
    pub fn share(&self, count: usize) -> Range<usize> {
        count * self.rank / self.size..count * (self.rank + 1) / self.size
    }

    /// The numbers of all, in the order of the ranks.
    #[must_use]
    pub fn gather(&self, own: Vec<f64>) -> Vec<f64> {
        own
    }

    /// [`World::gather`] of losses.
    #[must_use]
    pub fn gather_losses(&self, own: &[Loss]) -> Vec<Loss> {
        let numbers = self.gather(own.iter().flat_map(|loss| [loss.sum, loss.weight]).collect());
        numbers.chunks_exact(2).map(|loss| Loss { sum: loss[0], weight: loss[1] }).collect()
    }

    /// What the leader says.
    #[must_use]
    pub fn agree(&self, own: bool) -> bool {
        self.gather(vec![f64::from(u8::from(own))])[0] > 0.0
    }

    /// Turns the gradients of each one's part of a step into those of the step.
    pub fn reduce(&self, _gradients: &mut Parameters) {}

    /// Turns everyone's tensors into the leader's.
    pub fn broadcast(&self, _parameters: &mut Parameters) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_all_follow_each_other_and_are_everything() {
        for (size, count) in [(1, 5), (2, 5), (3, 8), (4, 4), (4, 2), (5, 0)] {
            let parts = (0..size).map(|rank| World { rank, size }.share(count));
            assert!(parts.clone().flatten().eq(0..count), "{count} among {size}");
            assert!(parts.map(|part| part.len()).all(|length| length.abs_diff(count / size) <= 1), "{count} among {size}");
        }
    }

    #[test]
    fn one_process_has_everything_and_the_say() {
        let (world, loss) = (World::alone(), Loss { sum: 0.1, weight: 3.0 });
        assert!(world.leads() && world.share(7) == (0..7));
        assert_eq!(world.gather_losses(&[loss, Loss::default()]), [loss, Loss::default()]);
        assert!(world.agree(true) && !world.agree(false));
    }
}
