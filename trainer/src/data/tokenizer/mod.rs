//! Byte-level BPE as GPT-2 has it: its published vocabulary, or one learnt from the user's text.
//!
//! ```text
//! text ─ pieces → piece ─ bytes → ids of the bytes ─ merge → ids
//! ```
//! Every text has an encoding, and decoding gives it back, unless a vocabulary lacks tokens for some bytes: those leave nothing, as
//! in transformers. Encoding recognises no special token: a document that contains the characters `<|endoftext|>` does not end
//! there. [`Specials`] cuts a text at such tokens.

mod files;
mod gpt2;
mod learn;
mod load;
mod merge;
mod named;
mod pieces;
mod special;

use std::{path::Path, sync::OnceLock};

use rayon::prelude::*;
use rustc_hash::{FxHashMap, FxHashSet};

use super::DataError;
pub use learn::PieceCounts;
use merge::{Merge, Merger, Merges};
pub use pieces::{cut, last_cut, parts};
pub use special::{Segment, Special, Specials};

/// The text of the token between documents.
pub const END_OF_TEXT: &str = "<|endoftext|>";
/// The smallest vocabulary: the 256 bytes and end-of-text.
pub const SMALLEST: usize = 257;

/// A longer piece is encoded in slices of this many bytes, which bounds memory. It takes a megabyte without white space, or of
/// nothing else, to get there; only the ids at the seams differ from those of other programs.
const LONGEST_PIECE: usize = 1 << 20;

/// The id of a byte that a vocabulary has no token for: one that was learnt elsewhere may know only the bytes of its text.
const NO_TOKEN: u32 = u32::MAX;

/// A byte-level BPE vocabulary.
#[derive(Debug, Clone)]
pub struct Tokenizer {
    /// The bytes of each token by id.
    tokens: Vec<Vec<u8>>,
    /// The id of each single byte, or [`NO_TOKEN`].
    bytes: [u32; 256],
    /// Whether some bytes have no token.
    lacks_bytes: bool,
    /// Joined pairs of ids, lowest rank first.
    pairs: Vec<(u32, u32)>,
    merges: Merges,
    end_of_text: u32,
    specials: Specials,
}

impl Tokenizer {
    /// The files that [`Tokenizer::save`] writes.
    pub const FILES: [&str; 4] = files::NAMES;

    /// All that [`Tokenizer::load`] reads, as far as they are there.
    pub const READ: [&str; 7] = load::READ;
    /// Files that have a tokenizer which is not read, and what they are.
    pub const OTHERS: [(&str, &str); 9] = load::OTHERS;

    /// Tokens that `transformers` puts before and after each text with the tokenizer of a directory. Here nothing does.
    pub fn around_each_text(directory: &Path) -> Result<Vec<String>, DataError> {
        named::around_each_text(directory)
    }

    /// GPT-2's 50,257 tokens. Costs some tens of milliseconds the first time, and those of a copy after that.
    pub fn gpt2() -> Result<Self, DataError> {
        static PUBLISHED: OnceLock<Tokenizer> = OnceLock::new();
        if let Some(known) = PUBLISHED.get() {
            return Ok(known.clone());
        }
        let tokens = gpt2::tokens()?;
        let pairs = gpt2::merges(&tokens);
        let made = Self::with_usual_end(tokens, pairs);
        let made = made.unwrap_or_else(|reason| unreachable!("the digest was right, but {reason}"));
        Ok(PUBLISHED.get_or_init(|| made).clone())
    }

    /// Learns a vocabulary of at most `vocabulary` tokens (fewer when the text has no more repeated pairs): the bytes in
    /// GPT-2's order, the merges, end-of-text. `progress` gets the number of tokens so far.
    pub fn learn(pieces: &PieceCounts, vocabulary: usize, progress: &mut dyn FnMut(u64)) -> Result<Self, DataError> {
        if vocabulary < SMALLEST {
            return Err(too_small(vocabulary));
        }
        let bytes: Vec<Vec<u8>> = files::byte_order().map(|byte| vec![byte]).collect();
        let ids = byte_ids(&bytes.iter().map(Vec::as_slice).zip(0..).collect());
        let learnt = learn::learn(pieces, bytes, &ids, vocabulary - 1, &mut |tokens| progress(tokens + 1));
        let made = Self::with_usual_end(learnt.tokens, learnt.pairs);
        Ok(made.unwrap_or_else(|reason| unreachable!("every merge made a token, but {reason}")))
    }

    /// Where another tokenizer has another token, with the two: `None` when both have the same tokens.
    pub fn difference(&self, other: &Self) -> Option<(usize, String, String)> {
        self.difference_below(self.tokens.len().max(other.tokens.len()), other)
    }

    /// [`Tokenizer::difference`] among the tokens of the other: more tokens than it has are no difference.
    pub fn contradiction(&self, other: &Self) -> Option<(usize, String, String)> {
        self.difference_below(other.tokens.len(), other)
    }

    fn difference_below(&self, end: usize, other: &Self) -> Option<(usize, String, String)> {
        let shown = |tokens: &[Vec<u8>], id: usize| {
            tokens.get(id).map_or("nothing".to_owned(), |token| format!("{:?}", String::from_utf8_lossy(token)))
        };
        let id = (0..end).find(|id| self.tokens.get(*id) != other.tokens.get(*id))?;
        Some((id, shown(&self.tokens, id), shown(&other.tokens, id)))
    }

    /// Number of token ids.
    pub fn vocabulary(&self) -> usize {
        self.tokens.len()
    }

    /// The id that separates documents.
    pub fn end_of_text(&self) -> u32 {
        self.end_of_text
    }

    /// The tokens that are not those of merges, and the end of text among them.
    pub fn specials(&self) -> &Specials {
        &self.specials
    }

    /// The ids of a text.
    pub fn encode(&self, text: &str) -> Vec<u32> {
        let mut ids = Vec::with_capacity(text.len() / 3);
        self.encoder().encode(text, &mut ids);
        ids
    }

    /// The ids of a prompt, with its special tokens, as transformers reads one. An empty one begins a new document.
    pub fn encode_prompt(&self, prompt: &str) -> Vec<u32> {
        let ids = |segment: Segment<'_>| segment.token.map_or_else(|| self.encode(segment.text), |token| vec![token]);
        let tokens: Vec<u32> = self.specials.segments(prompt).into_iter().flat_map(ids).collect();
        if tokens.is_empty() { vec![self.end_of_text] } else { tokens }
    }

    /// How many bytes of a text have no token.
    pub fn without_token(&self, text: &str) -> u64 {
        if !self.lacks_bytes {
            return 0;
        }
        text.bytes().filter(|byte| self.bytes[usize::from(*byte)] == NO_TOKEN).count() as u64
    }

    /// The ids of each text, on all cores.
    pub fn encode_batch(&self, texts: &[&str]) -> Vec<Vec<u32>> {
        let encode = |encoder: &mut Encoder<'_>, text: &&str| {
            let mut ids = Vec::with_capacity(text.len() / 3);
            encoder.encode(text, &mut ids);
            ids
        };
        texts.par_iter().map_init(|| self.encoder(), encode).collect()
    }

    /// The text of ids. Bytes that are not UTF-8 (a generated text may end inside a character) and ids outside the vocabulary
    /// become U+FFFD.
    pub fn decode(&self, ids: &[u32]) -> String {
        let token = |id: &u32| self.tokens.get(*id as usize).map_or("\u{fffd}".as_bytes(), Vec::as_slice);
        let bytes: Vec<u8> = ids.iter().flat_map(token).copied().collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The bytes that a token stands for; the end of text stands for none.
    ///
    /// # Panics
    /// When the id is outside the vocabulary.
    pub fn bytes_of(&self, id: u32) -> &[u8] {
        if id == self.end_of_text { &[] } else { &self.tokens[id as usize] }
    }

    fn encoder(&self) -> Encoder<'_> {
        Encoder { tokenizer: self, merger: Merger::default(), known: vec![Known::default(); 1 << Known::BITS] }
    }

    /// With the usual end of text as its last token.
    fn with_usual_end(mut tokens: Vec<Vec<u8>>, pairs: Vec<(u32, u32)>) -> Result<Self, String> {
        let end_of_text = tokens.len() as u32;
        tokens.push(END_OF_TEXT.into());
        Self::assemble(tokens, pairs, &[end_of_text], usual_specials(end_of_text)?)
    }

    /// Joins the parts, or says what is wrong with them. No merge ends in one of the `extras`.
    fn assemble(tokens: Vec<Vec<u8>>, pairs: Vec<(u32, u32)>, extras: &[u32], specials: Specials) -> Result<Self, String> {
        let extras: FxHashSet<u32> = extras.iter().copied().collect();
        let mut ids: FxHashMap<&[u8], u32> = FxHashMap::default();
        for (token, id) in tokens.iter().zip(0..).filter(|(_, id)| !extras.contains(id)) {
            ids.entry(token).or_insert(id);
        }
        let mut merges = Merges::default();
        for ((left, right), rank) in pairs.iter().zip(0..) {
            let token = [tokens[*left as usize].as_slice(), &tokens[*right as usize]].concat();
            let id = *ids.get(token.as_slice()).ok_or_else(|| format!("the result of merge {rank} is no token"))?;
            merges.insert((*left, *right), Merge { rank, id });
        }
        let end_of_text = specials.end_of_text();
        let bytes = byte_ids(&ids);
        Ok(Self { bytes, lacks_bytes: bytes.contains(&NO_TOKEN), tokens, pairs, merges, end_of_text, specials })
    }
}

/// Those of GPT-2, and of a vocabulary that is learnt.
pub fn usual_specials(end_of_text: u32) -> Result<Specials, String> {
    Specials::new(vec![Special::plain(end_of_text, END_OF_TEXT)], end_of_text)
}

fn too_small(vocabulary: usize) -> DataError {
    DataError::Setting(format!(
        "a byte-level vocabulary has at least {SMALLEST} tokens (the 256 bytes and {END_OF_TEXT}), not {vocabulary}"
    ))
}

fn byte_ids(ids: &FxHashMap<&[u8], u32>) -> [u32; 256] {
    std::array::from_fn(|byte| ids.get(&[byte as u8][..]).copied().unwrap_or(NO_TOKEN))
}

/// Encodes texts one after another and remembers pieces it has seen: in real text nearly all come again.
struct Encoder<'a> {
    tokenizer: &'a Tokenizer,
    merger: Merger,
    /// By the hash of the piece; a later one takes the place of an earlier.
    known: Vec<Known>,
}

/// A piece of up to 30 bytes and up to 8 ids, in one line of the cache.
#[derive(Debug, Clone, Copy, Default)]
struct Known {
    piece: Short,
    count: u8,
    ids: [u32; 8],
}

/// Bytes, zeros, and in the last place how many bytes there are; none when nothing is known.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Short([u8; 31]);

impl Short {
    fn new(piece: &[u8]) -> Option<Self> {
        let mut short = Self::default();
        if piece.len() >= short.0.len() {
            return None;
        }
        short.0[..piece.len()].copy_from_slice(piece);
        short.0[30] = piece.len() as u8;
        Some(short)
    }

    /// Where it is kept.
    fn place(&self) -> usize {
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| self.0[at + byte]));
        let mix = |hash: u64, word: u64| (hash.rotate_left(23) ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let hash = [8, 16, 23].into_iter().map(word).fold(mix(0, word(0)), mix);
        (hash >> (64 - Known::BITS)) as usize
    }
}

impl Known {
    /// Half a megabyte of them: they stay in a core's own cache.
    const BITS: u32 = 13;
}

impl Encoder<'_> {
    /// Appends the ids of a text.
    fn encode(&mut self, text: &str, out: &mut Vec<u32>) {
        for piece in pieces::pieces(text) {
            let piece = piece.as_bytes();
            let Some(short) = Short::new(piece) else {
                piece.chunks(LONGEST_PIECE).for_each(|slice| self.merge(slice, out));
                continue;
            };
            let known = &self.known[short.place()];
            if known.piece == short {
                out.extend_from_slice(&known.ids[..usize::from(known.count)]);
            } else {
                self.learn(piece, short, out);
            }
        }
    }

    /// Encodes a piece and remembers it, if it has not too many ids.
    fn learn(&mut self, piece: &[u8], short: Short, out: &mut Vec<u32>) {
        let start = out.len();
        self.merge(piece, out);
        let (ids, known) = (&out[start..], &mut self.known[short.place()]);
        if ids.len() <= known.ids.len() {
            (known.piece, known.count) = (short, ids.len() as u8);
            known.ids[..ids.len()].copy_from_slice(ids);
        }
    }

    fn merge(&mut self, piece: &[u8], out: &mut Vec<u32>) {
        let tokenizer = self.tokenizer;
        let ids = piece.iter().map(|byte| tokenizer.bytes[*byte as usize]);
        if tokenizer.lacks_bytes {
            let known: Vec<u32> = ids.filter(|id| *id != NO_TOKEN).collect();
            self.merger.run(&tokenizer.merges, known.into_iter(), out);
        } else {
            self.merger.run(&tokenizer.merges, ids, out);
        }
    }
}

#[cfg(test)]
mod kinds;
#[cfg(test)]
mod tests;
