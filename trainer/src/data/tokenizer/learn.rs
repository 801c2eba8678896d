//! Learning a byte-pair vocabulary from text (Sennrich, Haddow & Birch 2016): join the most frequent pair of neighbouring
//! tokens, again and again. Ties go to the pair with the lower ids, so the result is a function of the text alone.

use std::collections::BinaryHeap;

use rayon::prelude::*;
use rustc_hash::{FxHashMap, FxHashSet};

use super::pieces::pieces;

/// Longer pieces (base64, tables of digits) are counted in slices of this many bytes: they teach nothing, and one of a
/// megabyte would be walked again at each of its thousand merges.
const LONGEST: usize = 128;
/// A pair seen once is no pattern.
const LEAST: i64 = 2;

/// Ids of neighbouring tokens.
pub type Pair = (u32, u32);
type Counts = FxHashMap<Box<[u8]>, u64>;

/// How often each piece occurs: all that learning needs to know of the text.
#[derive(Default)]
pub struct PieceCounts(Counts);

impl PieceCounts {
    /// Counts the pieces of a batch of texts, on all cores.
    pub fn add(&mut self, texts: &[&str]) {
        let counted = texts.par_iter().fold(Counts::default, count).reduce(Counts::default, merge_counts);
        self.0 = merge_counts(std::mem::take(&mut self.0), counted);
    }
}

fn count(mut counts: Counts, text: &&str) -> Counts {
    for slice in pieces(text).flat_map(|piece| piece.as_bytes().chunks(LONGEST)) {
        match counts.get_mut(slice) {
            Some(count) => *count += 1,
            None => drop(counts.insert(slice.into(), 1)),
        }
    }
    counts
}

fn merge_counts(left: Counts, right: Counts) -> Counts {
    let (mut large, small) = if left.len() < right.len() { (right, left) } else { (left, right) };
    for (piece, count) in small {
        *large.entry(piece).or_default() += count;
    }
    large
}

/// A distinct piece and how often it occurs.
struct Word {
    tokens: Vec<u32>,
    count: i64,
}

struct Learner {
    words: Vec<Word>,
    counts: FxHashMap<Pair, i64>,
    /// Words that held the pair at some time; a superset of those that do.
    places: FxHashMap<Pair, FxHashSet<u32>>,
    /// Candidates by count, then lower ids. An entry whose count is out of date is put back corrected.
    queue: BinaryHeap<(i64, std::cmp::Reverse<Pair>)>,
}

/// The learnt vocabulary: the bytes of each token by id, and the joined pairs in order.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Learnt {
    pub tokens: Vec<Vec<u8>>,
    pub pairs: Vec<Pair>,
}

/// Adds tokens to those of the 256 bytes until there are `size`, or no pair repeats. `progress` gets the number of tokens.
pub fn learn(
    pieces: &PieceCounts,
    bytes: Vec<Vec<u8>>,
    byte_ids: &[u32; 256],
    size: usize,
    progress: &mut dyn FnMut(u64),
) -> Learnt {
    let mut learner = Learner::new(pieces, byte_ids);
    let mut ids: FxHashMap<Vec<u8>, u32> = bytes.iter().cloned().zip(0..).collect();
    let mut learnt = Learnt { tokens: bytes, pairs: Vec::new() };
    while learnt.tokens.len() < size
        && let Some(pair) = learner.most_frequent()
    {
        let joined = [learnt.tokens[pair.0 as usize].as_slice(), &learnt.tokens[pair.1 as usize]].concat();
        // Two pairs can spell the same token (ab + c, a + bc): it keeps one id.
        let id = *ids.entry(joined).or_insert_with_key(|joined| {
            learnt.tokens.push(joined.clone());
            learnt.tokens.len() as u32 - 1
        });
        learner.join(pair, id);
        learnt.pairs.push(pair);
        progress(learnt.tokens.len() as u64);
    }
    learnt
}

impl Learner {
    fn new(pieces: &PieceCounts, byte_ids: &[u32; 256]) -> Self {
        let mut learner = Self {
            words: Vec::with_capacity(pieces.0.len()),
            counts: FxHashMap::default(),
            places: FxHashMap::default(),
            queue: BinaryHeap::new(),
        };
        for (piece, count) in &pieces.0 {
            let tokens = piece.iter().map(|byte| byte_ids[*byte as usize]).collect();
            learner.words.push(Word { tokens, count: *count as i64 });
            learner.enter(learner.words.len() - 1);
        }
        learner.queue = learner.counts.iter().map(|(pair, count)| (*count, std::cmp::Reverse(*pair))).collect();
        learner
    }

    /// Adds a word's pairs to the counts.
    fn enter(&mut self, word: usize) {
        let Word { tokens, count } = &self.words[word];
        for pair in tokens.windows(2).map(|pair| (pair[0], pair[1])) {
            *self.counts.entry(pair).or_default() += count;
            self.places.entry(pair).or_default().insert(word as u32);
        }
    }

    /// Takes a word's pairs out of the counts.
    fn leave(&mut self, word: usize) {
        let Word { tokens, count } = &self.words[word];
        for pair in tokens.windows(2).map(|pair| (pair[0], pair[1])) {
            *self.counts.entry(pair).or_default() -= count;
        }
    }

    fn most_frequent(&mut self) -> Option<Pair> {
        while let Some((count, std::cmp::Reverse(pair))) = self.queue.pop() {
            let current = self.counts.get(&pair).copied().unwrap_or_default();
            if current < LEAST {
                continue;
            }
            if current == count {
                return Some(pair);
            }
            self.queue.push((current, std::cmp::Reverse(pair)));
        }
        None
    }

    /// Replaces a pair by a new token in every word that holds it.
    fn join(&mut self, pair: Pair, token: u32) {
        let mut grown = FxHashSet::default();
        for word in self.places.remove(&pair).unwrap_or_default() {
            let word = word as usize;
            self.leave(word);
            replace(&mut self.words[word].tokens, pair, token);
            self.enter(word);
            let tokens = &self.words[word].tokens;
            grown.extend(tokens.windows(2).filter(|pair| pair.contains(&token)).map(|pair| (pair[0], pair[1])));
        }
        self.queue.extend(grown.into_iter().map(|pair| (self.counts[&pair], std::cmp::Reverse(pair))));
    }
}

/// Replaces each occurrence of the pair, from the left, in place.
fn replace(tokens: &mut Vec<u32>, pair: Pair, token: u32) {
    let mut kept = 0;
    let mut at = 0;
    while at < tokens.len() {
        let found = at + 1 < tokens.len() && (tokens[at], tokens[at + 1]) == pair;
        tokens[kept] = if found { token } else { tokens[at] };
        at += if found { 2 } else { 1 };
        kept += 1;
    }
    tokens.truncate(kept);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes() -> (Vec<Vec<u8>>, [u32; 256]) {
        ((0..=u8::MAX).map(|byte| vec![byte]).collect(), std::array::from_fn(|byte| byte as u32))
    }

    /// The definition, recounting everything at each step.
    fn plainly(text: &str, size: usize) -> Learnt {
        let mut words: Vec<Vec<u32>> = pieces(text).map(|piece| piece.bytes().map(u32::from).collect()).collect();
        let mut learnt = Learnt { tokens: bytes().0, pairs: Vec::new() };
        while learnt.tokens.len() < size {
            let mut counts = std::collections::BTreeMap::<Pair, i64>::new();
            for pair in words.iter().flat_map(|word| word.windows(2)) {
                *counts.entry((pair[0], pair[1])).or_default() += 1;
            }
            let best = counts.into_iter().max_by_key(|(pair, count)| (*count, std::cmp::Reverse(*pair)));
            let Some((pair, _)) = best.filter(|(_, count)| *count > 1) else { break };
            let joined = [learnt.tokens[pair.0 as usize].clone(), learnt.tokens[pair.1 as usize].clone()].concat();
            let known = learnt.tokens.iter().position(|token| *token == joined);
            if known.is_none() {
                learnt.tokens.push(joined);
            }
            let id = known.unwrap_or(learnt.tokens.len() - 1) as u32;
            for word in &mut words {
                replace(word, pair, id);
            }
            learnt.pairs.push(pair);
        }
        learnt
    }

    fn quickly(texts: &[&str], size: usize) -> Learnt {
        let mut counts = PieceCounts::default();
        for text in texts {
            counts.add(&[text]);
        }
        let (tokens, ids) = bytes();
        learn(&counts, tokens, &ids, size, &mut |_| ())
    }

    #[test]
    fn learns_what_recounting_at_each_step_learns() {
        let text = include_str!("learn.rs");
        let expected = plainly(text, 556);
        let (first, second) = text.split_at(crate::data::tokenizer::pieces::cut(text, text.len() / 2).unwrap());
        assert_eq!(quickly(&[first, second], 556), expected);
        assert!(expected.tokens.len() > 456, "the text gives {} tokens", expected.tokens.len());
    }

    #[test]
    fn agrees_with_recounting_where_pairs_overlap() {
        let mut state = 1_u32;
        for _ in 0..40 {
            let text: String = (0..400)
                .map(|_| {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    ['a', 'b', 'a', 'c', ' ', 'a', '\'', 's'][(state >> 29) as usize]
                })
                .collect();
            assert_eq!(quickly(&[&text], 320), plainly(&text, 320), "{text}");
        }
    }

    #[test]
    fn stops_when_no_pair_repeats() {
        assert_eq!(quickly(&["abab ab"], 400).pairs, [(97, 98)]);
    }
}
