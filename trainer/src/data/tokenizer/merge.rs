//! Byte-pair encoding of one piece: merge the pair of lowest rank, leftmost first, until no pair has one
//! (Sennrich, Haddow & Birch 2016, algorithm 1, on bytes).

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use rustc_hash::FxHashMap;

/// The token that two neighbours become.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Merge {
    /// Lower ranks merge first.
    pub rank: u32,
    /// The token that replaces the pair.
    pub id: u32,
}

/// Merges by the pair that they join.
#[derive(Debug, Clone)]
pub struct Merges {
    by_pair: FxHashMap<(u32, u32), Merge>,
    /// A bit for every pair that may be there (Bloom 1970, with one hash): most pairs of unusual text are not, and the bits that
    /// say so stay in the cache.
    possible: Vec<u64>,
}

/// Bits of [`Merges::possible`] as a power of two: ten for each merge of GPT-2, 64 KB.
const BITS: u32 = 19;

impl Default for Merges {
    fn default() -> Self {
        Self { by_pair: FxHashMap::default(), possible: vec![0; 1 << (BITS - 6)] }
    }
}

impl Merges {
    /// Word and bit of a pair, by multiplicative hashing with 2⁶⁴ / φ.
    fn place((left, right): (u32, u32)) -> (usize, u64) {
        let hash = (u64::from(left) << 32 | u64::from(right)).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (64 - BITS);
        ((hash >> 6) as usize, 1 << (hash & 63))
    }

    pub fn insert(&mut self, pair: (u32, u32), merge: Merge) {
        let (word, bit) = Self::place(pair);
        self.possible[word] |= bit;
        self.by_pair.insert(pair, merge);
    }

    pub fn get(&self, pair: (u32, u32)) -> Option<Merge> {
        let (word, bit) = Self::place(pair);
        if self.possible[word] & bit == 0 { None } else { self.by_pair.get(&pair).copied() }
    }
}

const NONE: u32 = u32::MAX;
/// A shorter piece is searched for its lowest rank again after every merge; a longer one has a queue.
const SHORT: usize = 64;

/// A token of the piece in a doubly linked list; a merged-away one has the id `NONE`.
struct Link {
    id: u32,
    previous: u32,
    next: u32,
}

/// Working memory of [`Merger::run`], kept between pieces.
#[derive(Default)]
pub struct Merger {
    /// The tokens of a short piece, with rank and result of the merge of each with the next, `NONE` where there is none.
    tokens: Vec<u32>,
    ranks: Vec<u32>,
    joined: Vec<u32>,
    /// The tokens of a long piece.
    links: Vec<Link>,
    /// Ranks of which there are places, lowest first.
    queue: BinaryHeap<Reverse<u32>>,
    /// Where the left token of a pair of that rank was seen. A place goes stale when a neighbour changes, and is then skipped.
    places: FxHashMap<u32, Vec<u32>>,
}

impl Merger {
    /// Encodes a piece whose bytes have the given ids, in O(n log n) time and about 24 bytes of memory per byte.
    pub fn run(&mut self, merges: &Merges, bytes: impl ExactSizeIterator<Item = u32>, out: &mut Vec<u32>) {
        if bytes.len() <= SHORT { self.run_short(merges, bytes, out) } else { self.run_long(merges, bytes, out) }
    }

    fn run_short(&mut self, merges: &Merges, bytes: impl ExactSizeIterator<Item = u32>, out: &mut Vec<u32>) {
        let Self { tokens, ranks, joined, .. } = self;
        let of_pair = |pair| merges.get(pair).map_or((NONE, NONE), |merge| (merge.rank, merge.id));
        tokens.clear();
        tokens.extend(bytes);
        ranks.clear();
        joined.clear();
        for pair in tokens.windows(2) {
            let (rank, id) = of_pair((pair[0], pair[1]));
            ranks.push(rank);
            joined.push(id);
        }
        loop {
            let lowest = ranks.iter().copied().min().unwrap_or(NONE);
            let Some(at) = ranks.iter().position(|rank| *rank == lowest).filter(|_| lowest != NONE) else { break };
            tokens[at] = joined[at];
            tokens.remove(at + 1);
            ranks.remove(at);
            joined.remove(at);
            if at > 0 {
                (ranks[at - 1], joined[at - 1]) = of_pair((tokens[at - 1], tokens[at]));
            }
            if at < ranks.len() {
                (ranks[at], joined[at]) = of_pair((tokens[at], tokens[at + 1]));
            }
        }
        out.extend_from_slice(tokens);
    }

    fn run_long(&mut self, merges: &Merges, bytes: impl ExactSizeIterator<Item = u32>, out: &mut Vec<u32>) {
        self.links.clear();
        self.links.extend(bytes.enumerate().map(|(at, id)| {
            let at = at as u32;
            Link { id, previous: at.wrapping_sub(1), next: at + 1 }
        }));
        if let Some(last) = self.links.last_mut() {
            last.next = NONE;
        }
        (0..self.links.len() as u32).for_each(|at| self.consider(merges, at));
        while let Some(Reverse(rank)) = self.queue.pop() {
            // Leftmost first, as pairs may overlap. No merge makes another pair of its own rank, so these are all of them.
            let mut places = self.places.remove(&rank).unwrap_or_default();
            places.sort_unstable();
            let mut left = places.as_slice();
            while let Some((at, rest)) = left.split_first() {
                self.apply(merges, rank, *at);
                left = rest;
                // Where two pairs make one token, a merge of the later one may make a pair of lower rank.
                if self.queue.peek().is_some_and(|Reverse(next)| *next < rank) && !left.is_empty() {
                    self.places.insert(rank, left.to_vec());
                    self.queue.push(Reverse(rank));
                    break;
                }
            }
        }
        out.extend(self.links.iter().map(|link| link.id).filter(|id| *id != NONE));
    }

    /// The merge of the token at `at` with its right neighbour.
    fn merge_at(&self, merges: &Merges, at: u32) -> Option<Merge> {
        let left = self.links.get(at as usize)?;
        let right = self.links.get(left.next as usize)?;
        merges.get((left.id, right.id))
    }

    fn consider(&mut self, merges: &Merges, at: u32) {
        if let Some(merge) = self.merge_at(merges, at) {
            let places = self.places.entry(merge.rank).or_default();
            if places.is_empty() {
                self.queue.push(Reverse(merge.rank));
            }
            places.push(at);
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
