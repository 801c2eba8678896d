//! Byte-pair encoding of one piece: merge the pair of lowest rank, leftmost first, until no pair has one
//! (Sennrich, Haddow & Birch 2016, algorithm 1, on bytes).

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use rustc_hash::FxHashMap;

/// What two neighbouring tokens become.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Merge {
    /// Lower ranks merge first.
    pub rank: u32,
    /// The token that replaces the pair.
    pub id: u32,
}

/// Merges by the pair that they join.
pub type Merges = FxHashMap<(u32, u32), Merge>;

const NONE: u32 = u32::MAX;

/// A token of the piece in a doubly linked list; a merged-away one has the id `NONE`.
struct Link {
    id: u32,
    previous: u32,
    next: u32,
}

/// Working memory of [`Merger::run`], kept between pieces.
#[derive(Default)]
pub struct Merger {
    links: Vec<Link>,
    /// (rank, position of the left token) of possible merges. Entries go stale when a neighbour changes, and are then skipped.
    queue: BinaryHeap<Reverse<(u32, u32)>>,
}

impl Merger {
    /// Encodes a piece whose bytes have the given ids, in O(n log n) time and about 28 bytes of memory per byte.
    pub fn run(&mut self, merges: &Merges, bytes: impl ExactSizeIterator<Item = u32>, out: &mut Vec<u32>) {
        self.links.clear();
        self.links.extend(bytes.enumerate().map(|(at, id)| {
            let at = at as u32;
            Link { id, previous: at.wrapping_sub(1), next: at + 1 }
        }));
        if let Some(last) = self.links.last_mut() {
            last.next = NONE;
        }
        (0..self.links.len() as u32).for_each(|at| self.consider(merges, at));
        while let Some(Reverse((rank, at))) = self.queue.pop() {
            self.apply(merges, rank, at);
        }
        out.extend(self.links.iter().map(|link| link.id).filter(|id| *id != NONE));
    }

    /// The merge of the token at `at` with its right neighbour.
    fn merge_at(&self, merges: &Merges, at: u32) -> Option<Merge> {
        let left = self.links.get(at as usize)?;
        let right = self.links.get(left.next as usize)?;
        merges.get(&(left.id, right.id)).copied()
    }

    fn consider(&mut self, merges: &Merges, at: u32) {
        if let Some(merge) = self.merge_at(merges, at) {
            self.queue.push(Reverse((merge.rank, at)));
        }
    }

    /// Joins the pair at `at` if it still is the pair that was queued.
    fn apply(&mut self, merges: &Merges, rank: u32, at: u32) {
        let Some(merge) = self.merge_at(merges, at).filter(|merge| merge.rank == rank) else { return };
        let right = self.links[at as usize].next as usize;
        let after = self.links[right].next;
        self.links[right].id = NONE;
        self.links[right].next = NONE;
        let left = &mut self.links[at as usize];
        (left.id, left.next) = (merge.id, after);
        let before = left.previous;
        if let Some(after) = self.links.get_mut(after as usize) {
            after.previous = at;
        }
        self.consider(merges, before);
        self.consider(merges, at);
    }
}
