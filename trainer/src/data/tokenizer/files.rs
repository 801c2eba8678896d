//! The tokenizer's files, as `transformers` and `tokenizers` read them.
//!
//! `vocab.json` and `merges.txt` are the form of the GPT-2 release; `tokenizer.json` is the same in the form of the `tokenizers`
//! library, with its rules for text, and is what we read back;
//! `tokenizer_config.json` names the class. In all of them a byte is written as a printable character (`bytes_to_unicode` of
//! GPT-2's `encoder.py`).

use std::path::Path;

use serde_json::{Map, Value, json};

use super::Tokenizer;
use super::special::Special;
use crate::data::DataError;

pub const TOKENIZER: &str = "tokenizer.json";
pub const VOCABULARY: &str = "vocab.json";
pub const MERGES: &str = "merges.txt";
pub const CONFIG: &str = "tokenizer_config.json";
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
pub fn characters() -> [char; 256] {
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
        // A token that was added and is not written as it is called has its place among the added ones alone, and so have those
        // after it: `tokenizers` numbers them from the end of the vocabulary, whatever id the file gives them.
        let added = || self.specials.tokens().iter();
        let first = added().filter(|token| names[token.id as usize] != token.content).map(|token| token.id).min();
        let apart: Vec<u32> = added().map(|token| token.id).filter(|id| first.is_some_and(|first| *id >= first)).collect();
        let listed = names.iter().zip(0_u32..).filter(|(_, id)| !apart.contains(id));
        let vocabulary: Map<String, Value> = listed.map(|(name, id)| (name.clone(), json!(id))).collect();
        let merges: Vec<(&str, &str)> =
            self.pairs.iter().map(|(left, right)| (names[*left as usize].as_str(), names[*right as usize].as_str())).collect();
        let lines: Vec<String> = merges.iter().map(|(left, right)| format!("{left} {right}\n")).collect();
        let contents = [
            self.library_form(&vocabulary, &merges).to_string(),
            Value::Object(vocabulary).to_string(),
            format!("#version: 0.2\n{}", lines.concat()),
            config(&String::from_utf8_lossy(&self.tokens[self.end_of_text as usize])).to_string(),
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
            "added_tokens": self.specials.tokens().iter().map(added).collect::<Vec<_>>(),
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
}

fn added(token: &Special) -> Value {
    json!({
        "id": token.id, "content": token.content, "single_word": token.single_word, "lstrip": token.lstrip, "rstrip": token.rstrip,
        "normalized": token.normalized, "special": token.special,
    })
}

fn config(end_of_text: &str) -> Value {
    json!({
        "tokenizer_class": "GPT2Tokenizer",
        "add_prefix_space": false,
        "clean_up_tokenization_spaces": false,
        "bos_token": end_of_text,
        "eos_token": end_of_text,
        "unk_token": end_of_text,
    })
}
