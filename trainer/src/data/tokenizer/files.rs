//! The tokenizer's files, as `transformers` and `tokenizers` read them.
//!
//! `vocab.json` and `merges.txt` are the form of the GPT-2 release and are what we read back; `tokenizer.json` is the same in
//! the form of the `tokenizers` library; `tokenizer_config.json` names the class. In all of them a byte is written as a
//! printable character (`bytes_to_unicode` of GPT-2's `encoder.py`).

use std::path::Path;

use rustc_hash::FxHashMap;
use serde_json::{Map, Value, json};

use super::{END_OF_TEXT, Tokenizer};
use crate::data::DataError;
use crate::files::read_at_most;

const TOKENIZER: &str = "tokenizer.json";
const VOCABULARY: &str = "vocab.json";
const MERGES: &str = "merges.txt";
const CONFIG: &str = "tokenizer_config.json";
/// Bytes of the longest file that is read: GPT-2's have one million, those of a million tokens some thirty.
const LONGEST: u64 = 64 << 20;
pub const READ: [&str; 2] = [VOCABULARY, MERGES];
pub const NAMES: [&str; 4] = [TOKENIZER, VOCABULARY, MERGES, CONFIG];

/// Bytes that stand for themselves.
fn printable(byte: u8) -> bool {
    matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff)
}

/// All bytes in the order of GPT-2's ids: the printable ones, then the others.
pub fn byte_order() -> impl Iterator<Item = u8> {
    let printables = (0..=u8::MAX).filter(|byte| printable(*byte));
    printables.chain((0..=u8::MAX).filter(|byte| !printable(*byte)))
}

/// The character that each byte is written as: itself, or the next from U+0100 on.
fn characters() -> [char; 256] {
    let mut characters = ['\0'; 256];
    let mut next = (0x100..).filter_map(char::from_u32);
    for byte in byte_order() {
        characters[byte as usize] = if printable(byte) { byte as char } else { next.next().unwrap_or_default() };
    }
    characters
}

fn written(token: &[u8], characters: &[char; 256]) -> String {
    token.iter().map(|byte| characters[*byte as usize]).collect()
}

impl Tokenizer {
    /// Writes [`Tokenizer::FILES`] into a directory.
    pub fn save(&self, directory: &Path) -> Result<(), DataError> {
        let characters = characters();
        let names: Vec<String> = self.tokens.iter().map(|token| written(token, &characters)).collect();
        let vocabulary: Map<String, Value> = names.iter().zip(0..).map(|(name, id)| (name.clone(), json!(id))).collect();
        let merges: Vec<(&str, &str)> =
            self.pairs.iter().map(|(left, right)| (names[*left as usize].as_str(), names[*right as usize].as_str())).collect();
        let lines: Vec<String> = merges.iter().map(|(left, right)| format!("{left} {right}\n")).collect();
        let contents = [
            self.library_form(&vocabulary, &merges).to_string(),
            Value::Object(vocabulary).to_string(),
            format!("#version: 0.2\n{}", lines.concat()),
            config().to_string(),
        ];
        NAMES.iter().zip(contents).try_for_each(|(name, content)| {
            let path = directory.join(name);
            std::fs::write(&path, content).map_err(DataError::writing(&path))
        })
    }

    fn library_form(&self, vocabulary: &Map<String, Value>, merges: &[(&str, &str)]) -> Value {
        let bytes = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
        json!({
            "version": "1.0",
            "truncation": null,
            "padding": null,
            "added_tokens": [{
                "id": self.end_of_text, "content": END_OF_TEXT, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": true,
            }],
            "normalizer": null,
            "pre_tokenizer": bytes,
            "post_processor": bytes,
            "decoder": bytes,
            "model": {
                "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": "", "end_of_word_suffix": "",
                "fuse_unk": false, "byte_fallback": false, "ignore_merges": false, "vocab": vocabulary, "merges": merges,
            },
        })
    }

    /// Reads `vocab.json` and `merges.txt`, ours or those of a published GPT-2.
    pub fn load(directory: &Path) -> Result<Self, DataError> {
        let names = read_vocabulary(&directory.join(VOCABULARY))?;
        let pairs = read_merges(&directory.join(MERGES), &names)?;
        let values: FxHashMap<char, u8> = characters().into_iter().zip(0..=u8::MAX).collect();
        let bytes = |name: &String| name.chars().map(|c| values.get(&c).copied()).collect::<Option<Vec<u8>>>();
        let refuse = |reason| DataError::Tokenizer { path: directory.join(VOCABULARY), reason };
        let tokens = names.iter().map(|name| bytes(name).ok_or_else(|| refuse(format!("`{name}` is not in byte-level form"))));
        Self::assemble(tokens.collect::<Result<_, _>>()?, pairs).map_err(refuse)
    }
}

fn config() -> Value {
    json!({
        "tokenizer_class": "GPT2Tokenizer",
        "add_prefix_space": false,
        "clean_up_tokenization_spaces": false,
        "bos_token": END_OF_TEXT,
        "eos_token": END_OF_TEXT,
        "unk_token": END_OF_TEXT,
    })
}

/// The names of the tokens by id.
fn read_vocabulary(path: &Path) -> Result<Vec<String>, DataError> {
    let refuse = |reason: String| DataError::Tokenizer { path: path.to_owned(), reason };
    let text = read_at_most(path, LONGEST).map_err(|error| DataError::reading(path, error))?;
    let ids: FxHashMap<String, usize> = serde_json::from_slice(&text).map_err(|error| refuse(error.to_string()))?;
    let mut names = vec![None; ids.len()];
    for (name, id) in ids {
        let count = names.len();
        let slot = names.get_mut(id).ok_or_else(|| refuse(format!("the id of `{name}` is {id}, but it has {count} tokens")))?;
        *slot = Some(name);
    }
    let missing = |id| refuse(format!("no token has the id {id}"));
    names.into_iter().enumerate().map(|(id, name)| name.ok_or_else(|| missing(id))).collect()
}

/// The pairs of ids that `merges.txt` joins, in its order.
fn read_merges(path: &Path, names: &[String]) -> Result<Vec<(u32, u32)>, DataError> {
    let text = read_at_most(path, LONGEST).map_err(|error| DataError::reading(path, error))?;
    let no_text = |_| DataError::Tokenizer { path: path.to_owned(), reason: "it is not UTF-8 text".to_owned() };
    let text = String::from_utf8(text).map_err(no_text)?;
    let ids: FxHashMap<&str, u32> = names.iter().zip(0..).map(|(name, id)| (name.as_str(), id)).collect();
    let merge = |(number, line): (usize, &str)| {
        let pair = line.split_once(' ').and_then(|(left, right)| Some((*ids.get(left)?, *ids.get(right)?)));
        let reason = || format!("line {}: `{line}` is not a pair of tokens", number + 1);
        pair.ok_or_else(|| DataError::Tokenizer { path: path.to_owned(), reason: reason() })
    };
    // A merge line may itself begin with `#`; only the first line is a comment.
    let comment = |(number, line): &(usize, &str)| !(line.is_empty() || *number == 0 && line.starts_with("#version"));
    text.lines().enumerate().filter(comment).map(merge).collect()
}
