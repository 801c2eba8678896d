//! Byte-level BPE as GPT-2 has it: its published vocabulary, or one learnt from the user's text.
//!
//! ```text
//! text ─ pieces → piece ─ bytes → ids of the bytes ─ merge → ids
//! ```
//! Every text has an encoding, and decoding gives it back. Special tokens are never recognised in text: a document that
//! contains the characters `<|endoftext|>` does not end there.

mod files;
mod gpt2;
mod learn;
mod merge;
mod pieces;

use rayon::prelude::*;
use rustc_hash::FxHashMap;

use super::DataError;
pub use learn::PieceCounts;
use merge::{Merge, Merger, Merges};
pub use pieces::{cut, last_cut, parts};

/// The text of the token between documents.
pub const END_OF_TEXT: &str = "<|endoftext|>";
/// The smallest vocabulary: the 256 bytes and end-of-text.
pub const SMALLEST: usize = 257;

/// A longer piece is encoded in slices of this many bytes, which bounds memory. It takes a megabyte without white space, or of
/// nothing else, to get there; only the ids at the seams differ from those of other programs.
const LONGEST_PIECE: usize = 1 << 20;

/// A byte-level BPE vocabulary.
#[derive(Debug, Clone)]
pub struct Tokenizer {
    /// The bytes of each token by id.
    tokens: Vec<Vec<u8>>,
    /// The id of each single byte.
    bytes: [u32; 256],
    /// Joined pairs of ids, lowest rank first.
    pairs: Vec<(u32, u32)>,
    merges: Merges,
    end_of_text: u32,
}

impl Tokenizer {
    /// The files that [`Tokenizer::save`] writes.
    pub const FILES: [&str; 4] = files::NAMES;

    /// GPT-2's 50,257 tokens. Costs some tens of milliseconds.
    pub fn gpt2() -> Result<Self, DataError> {
        let mut tokens = gpt2::tokens()?;
        let pairs = gpt2::merges(&tokens);
        tokens.push(END_OF_TEXT.into());
        Ok(Self::assemble(tokens, pairs).unwrap_or_else(|reason| unreachable!("the digest was right, but {reason}")))
    }

    /// Learns a vocabulary of at most `vocabulary` tokens (fewer when the text has no more repeated pairs): the bytes in
    /// GPT-2's order, the merges, end-of-text. `progress` gets the number of tokens so far.
    pub fn learn(pieces: &PieceCounts, vocabulary: usize, progress: &mut dyn FnMut(u64)) -> Result<Self, DataError> {
        if vocabulary < SMALLEST {
            return Err(too_small(vocabulary));
        }
        let bytes: Vec<Vec<u8>> = files::byte_order().map(|byte| vec![byte]).collect();
        let ids = byte_ids(&bytes).unwrap_or_else(|reason| unreachable!("all bytes are listed, but {reason}"));
        let mut learnt = learn::learn(pieces, bytes, &ids, vocabulary - 1, &mut |tokens| progress(tokens + 1));
        learnt.tokens.push(END_OF_TEXT.into());
        let made = Self::assemble(learnt.tokens, learnt.pairs);
        Ok(made.unwrap_or_else(|reason| unreachable!("every merge made a token, but {reason}")))
    }

    /// Number of token ids.
    pub fn vocabulary(&self) -> usize {
        self.tokens.len()
    }

    /// The id that separates documents.
    pub fn end_of_text(&self) -> u32 {
        self.end_of_text
    }

    /// The ids of a text.
    pub fn encode(&self, text: &str) -> Vec<u32> {
        let mut ids = Vec::with_capacity(text.len() / 3);
        self.encoder().encode(text, &mut ids);
        ids
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

    /// What a token stands for; the end of text for no byte.
    ///
    /// # Panics
    /// When the id is outside the vocabulary.
    pub fn bytes_of(&self, id: u32) -> &[u8] {
        if id == self.end_of_text { &[] } else { &self.tokens[id as usize] }
    }

    fn encoder(&self) -> Encoder<'_> {
        Encoder { tokenizer: self, merger: Merger::default(), known: FxHashMap::default(), ids: Vec::new() }
    }

    /// Joins the parts, or says what is wrong with them.
    fn assemble(tokens: Vec<Vec<u8>>, pairs: Vec<(u32, u32)>) -> Result<Self, String> {
        let ids: FxHashMap<&[u8], u32> = tokens.iter().zip(0..).map(|(token, id)| (token.as_slice(), id)).collect();
        let end_of_text = *ids.get(END_OF_TEXT.as_bytes()).ok_or_else(|| format!("it has no token {END_OF_TEXT}"))?;
        let mut merges = Merges::default();
        for ((left, right), rank) in pairs.iter().zip(0..) {
            let token = [tokens[*left as usize].as_slice(), &tokens[*right as usize]].concat();
            let id = *ids.get(token.as_slice()).ok_or_else(|| format!("the result of merge {rank} is no token"))?;
            merges.insert((*left, *right), Merge { rank, id });
        }
        Ok(Self { bytes: byte_ids(&tokens)?, tokens, pairs, merges, end_of_text })
    }
}

fn too_small(vocabulary: usize) -> DataError {
    DataError::Setting(format!(
        "a byte-level vocabulary has at least {SMALLEST} tokens (the 256 bytes and {END_OF_TEXT}), not {vocabulary}"
    ))
}

fn byte_ids(tokens: &[Vec<u8>]) -> Result<[u32; 256], String> {
    let mut ids = [None; 256];
    for (token, id) in tokens.iter().zip(0..) {
        if let [byte] = token[..] {
            ids[byte as usize] = Some(id);
        }
    }
    match ids.iter().position(Option::is_none) {
        Some(byte) => Err(format!("it has no token for the byte {byte}")),
        None => Ok(ids.map(Option::unwrap_or_default)),
    }
}

/// Encodes texts one after another and remembers the pieces it has seen: in real text nearly all come again.
struct Encoder<'a> {
    tokenizer: &'a Tokenizer,
    merger: Merger,
    /// Where in `ids` the encoding of a piece is: (start, length).
    known: FxHashMap<Box<[u8]>, (u32, u32)>,
    ids: Vec<u32>,
}

impl Encoder<'_> {
    /// Pieces up to this many bytes are remembered.
    const SHORT: usize = 32;
    /// The memory is cleared when it holds this many ids: about 30 MB a thread at most.
    const FULL: usize = 1 << 20;

    /// Appends the ids of a text.
    fn encode(&mut self, text: &str, out: &mut Vec<u32>) {
        for piece in pieces::pieces(text) {
            let piece = piece.as_bytes();
            if piece.len() > Self::SHORT {
                piece.chunks(LONGEST_PIECE).for_each(|slice| self.merge(slice, out));
                continue;
            }
            let (start, length) = match self.known.get(piece) {
                Some(place) => *place,
                None => self.learn(piece),
            };
            out.extend_from_slice(&self.ids[start as usize..(start + length) as usize]);
        }
    }

    /// Encodes a piece and remembers it.
    fn learn(&mut self, piece: &[u8]) -> (u32, u32) {
        if self.ids.len() > Self::FULL {
            self.known.clear();
            self.ids.clear();
        }
        let start = self.ids.len();
        let mut ids = std::mem::take(&mut self.ids);
        self.merge(piece, &mut ids);
        self.ids = ids;
        let place = (start as u32, (self.ids.len() - start) as u32);
        self.known.insert(piece.into(), place);
        place
    }

    fn merge(&mut self, piece: &[u8], out: &mut Vec<u32>) {
        let tokenizer = self.tokenizer;
        self.merger.run(&tokenizer.merges, piece.iter().map(|byte| tokenizer.bytes[*byte as usize]), out);
    }
}

#[cfg(test)]
mod tests;
