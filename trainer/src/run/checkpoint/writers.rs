//! Which process writes which bytes of a checkpoint's large files.
//!
//! The processes that see the leader's directory write one set of files together. On any other machine processes write nothing,
//! unless an agent there sends a range of each file. Then they write that range, into files of the same names on their own disk.

use std::fs::File;
use std::ops::Range;
use std::path::Path;

use super::UNFINISHED;
use crate::error::Failure;
use crate::files::ranges;
use crate::world::World;

/// A process's part of a file begins at a multiple of this, as writing past the page cache asks.
const PAGE: u64 = 4096;
/// Stands for no set, where processes tell each other theirs.
const NONE: u64 = u64::MAX;

/// The set of files that each process writes to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Writers {
    rank: usize,
    /// Set 0 is the leader's and has all bytes; every other has the number of its node. None: the process writes nothing.
    sets: Vec<Option<usize>>,
}

impl Writers {
    /// Called by all, when the leader's `directory` exists.
    pub fn find(world: &World, directory: &Path) -> Result<Self, Failure> {
        let rank = world.rank();
        if world.size() == 1 {
            return Ok(Self { rank, sets: vec![Some(0)] });
        }
        let mut met = None;
        let name: String = world.told(|| {
            let made = tempfile::Builder::new().prefix(UNFINISHED).tempdir_in(directory);
            let made = made.map_err(|error| Failure::io("create a directory in", directory, &error))?;
            let name = made.path().file_name().unwrap_or_default().to_string_lossy().into_owned();
            met = Some(made);
            Ok(name)
        })?;
        let path = directory.join(name);
        let is_seen = File::create_new(path.join(rank.to_string())).is_ok() || world.leads();
        let own = if is_seen { 0 } else { world.node().filter(|node| *node > 0).map_or(NONE, |node| node as u64) };
        let sets = world.gather(&[own], |_| 1)?;
        // What a network's file system keeps there is removed when the run is opened again.
        drop(met);
        Ok(Self { rank, sets: sets.into_iter().map(|set| (set != NONE).then_some(set as usize)).collect() })
    }

    /// The set that this process writes to.
    pub fn set(&self) -> Option<usize> {
        self.sets[self.rank]
    }

    /// Whether this process makes the directory of its set, and gives it its name.
    pub fn leads(&self) -> bool {
        self.set().is_some() && self.sets.iter().position(|set| *set == self.set()) == Some(self.rank)
    }

    /// How many write to the set of this process, itself among them.
    pub fn together(&self) -> u32 {
        self.sets.iter().filter(|set| **set == self.set()).count() as u32
    }

    /// This process's part of a file of so many bytes.
    pub fn part(&self, bytes: u64) -> Range<u64> {
        self.part_of(self.rank, bytes)
    }

    pub fn part_of(&self, rank: usize, bytes: u64) -> Range<u64> {
        let Some(set) = self.sets[rank] else { return 0..0 };
        let of_set = |ranks: &[Option<usize>]| ranks.iter().filter(|other| **other == Some(set)).count() as u64;
        let (number, count) = (of_set(&self.sets[..rank]), of_set(&self.sets));
        let nodes = self.sets.iter().flatten().max().map_or(1, |last| last + 1);
        let all = if set == 0 { 0..bytes } else { ranges::of_node(set, nodes, bytes) };
        let border = |number: u64| match (all.end - all.start) * number / count {
            _ if number == count => all.end,
            length => all.start + length / PAGE * PAGE,
        };
        border(number)..border(number + 1)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn those_of_a_set_write_all_of_it_and_each_node_its_range() {
        let sets = [Some(0), None, Some(0), Some(1), Some(2), Some(2), Some(2), None];
        let of = |rank| Writers { rank, sets: sets.to_vec() };
        let found: Vec<_> = (0..8).map(|rank| (of(rank).set(), of(rank).leads())).collect();
        let leaders = [true, false, false, true, true, false, false, false];
        assert_eq!(found, sets.into_iter().zip(leaders).collect::<Vec<_>>());
        for bytes in [0, 1, 5000, 3 << 22, (100 << 22) + 77] {
            let part = |rank: usize| of(rank).part(bytes);
            let range = |node| ranges::of_node(node, 3, bytes);
            assert!(part(1).is_empty() && part(7).is_empty());
            assert_eq!((part(0).start, part(0).end, part(2).end), (0, part(2).start, bytes));
            assert_eq!(part(3), range(1));
            assert_eq!(
                (part(4).start, part(4).end, part(5).end, part(6).end),
                (range(2).start, part(5).start, part(6).start, range(2).end)
            );
            assert!((0..8).all(|rank| part(rank).start.is_multiple_of(4096) || part(rank).is_empty()));
        }
    }

    #[test]
    fn processes_that_see_the_leaders_directory_write_together() {
        let shared = tempfile::tempdir().unwrap();
        let find = |world: World| {
            // The third has a disk of its own.
            let own = tempfile::tempdir().unwrap();
            Writers::find(&world, if world.rank() == 2 { own.path() } else { shared.path() }).unwrap()
        };
        let found: Vec<Writers> = std::thread::scope(|threads| {
            let started: Vec<_> = World::of_threads(3).into_iter().map(|world| threads.spawn(|| find(world))).collect();
            started.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(found[2].sets, [Some(0), Some(0), None]);
        assert!(found.iter().all(|writers| writers.sets == found[2].sets));
        assert_eq!(fs::read_dir(shared.path()).unwrap().count(), 0);
    }
}
