//! GPT-2's published vocabulary, taken from the crate `tiktoken-rs` and checked against the digest of the original file.

use base64::Engine;
use rustc_hash::FxHashMap;
use sha2::{Digest, Sha256};

use super::merge::{Merge, Merger, Merges};
use crate::data::DataError;
use crate::data::shard::hex;

/// Tokens that are bytes or merges; `<|endoftext|>` is the next id.
const RANKS: u32 = 50_256;
/// SHA-256 of OpenAI's `r50k_base.tiktoken`, as `tiktoken` itself pins it.
const PUBLISHED: &str = "306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930";

/// The bytes of each token by id, without end-of-text.
pub fn tokens() -> Result<Vec<Vec<u8>>, DataError> {
    let refuse = |found| DataError::Vocabulary { found, expected: PUBLISHED };
    let ranks = tiktoken_rs::r50k_base().map_err(|error| refuse(error.to_string()))?;
    let tokens: Result<Vec<_>, _> = (0..RANKS).map(|rank| ranks.decode_bytes(&[rank])).collect();
    let tokens = tokens.map_err(|error| refuse(error.to_string()))?;
    let found = rank_file_digest(&tokens);
    if found == PUBLISHED { Ok(tokens) } else { Err(refuse(found)) }
}

/// Digest of the rank file that holds these tokens: one line `base64(token) rank` each.
fn rank_file_digest(tokens: &[Vec<u8>]) -> String {
    let mut digest = Sha256::new();
    for (rank, token) in tokens.iter().enumerate() {
        digest.update(format!("{} {rank}\n", base64::engine::general_purpose::STANDARD.encode(token)));
    }
    hex(&digest.finalize())
}

/// The merges behind a ranked vocabulary, lowest rank first: a token's parts are what its bytes become under the merges of
/// lower rank.
pub fn merges(tokens: &[Vec<u8>]) -> Vec<(u32, u32)> {
    let ids: FxHashMap<&[u8], u32> = tokens.iter().zip(0..).map(|(token, id)| (token.as_slice(), id)).collect();
    let mut merges = Merges::default();
    let mut pairs = Vec::with_capacity(tokens.len());
    let mut encoder = Merger::default();
    let mut parts = Vec::new();
    for (id, token) in (0..).zip(tokens).filter(|(_, token)| token.len() > 1) {
        parts.clear();
        encoder.run(&merges, token.iter().map(|byte| ids[[*byte].as_slice()]), &mut parts);
        if let [left, right] = parts[..] {
            merges.insert((left, right), Merge { rank: pairs.len() as u32, id });
            pairs.push((left, right));
        }
    }
    pairs
}
