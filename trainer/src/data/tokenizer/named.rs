//! Special tokens that a configuration names, and what a tokenizer puts around each text elsewhere.
//!
//! `transformers` makes a token of every name that the tokenizer does not have yet (`TokenizersBackend.__init__` in
//! `tokenization_utils_tokenizers.py`).

use std::path::Path;

use serde_json::{Map, Value};

use super::files::{CONFIG, TOKENIZER};
use super::load::{NAMES_OF_SPECIALS, Name, optional};
use super::special::Special;
use crate::data::DataError;

/// In the order in which new ones get their numbers.
const SINGLE: [&str; 7] = ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];
/// Lists of them, or objects whose values they are.
const SEVERAL: [&str; 2] = ["additional_special_tokens", "extra_special_tokens"];

/// The tokens that the files of a directory name, without their numbers. A value that is no token is passed over: a configuration
/// may hold anything.
pub fn named(directory: &Path) -> Result<Vec<Special>, DataError> {
    let config = optional::<Map<String, Value>>(&directory.join(CONFIG))?.unwrap_or_default();
    // A version of the library that writes this list writes no other file of names, and reads none.
    let names = if config.contains_key("added_tokens_decoder") { None } else { optional(&directory.join(NAMES_OF_SPECIALS))? };
    let files: [Map<String, Value>; 2] = [config, names.unwrap_or_default()];
    let single = SINGLE.iter().filter_map(|key| files.iter().find_map(|file| token(file.get(*key)?)));
    let several = SEVERAL.iter().filter_map(|key| files.iter().find_map(|file| file.get(*key)));
    let several = several.flat_map(|value| match value {
        Value::Array(values) => values.iter().filter_map(token).collect(),
        Value::Object(values) => values.values().filter_map(token).collect(),
        _ => Vec::new(),
    });
    Ok(single.chain(several).filter(|token| !token.content.is_empty()).collect())
}

fn token(value: &Value) -> Option<Special> {
    Some(match serde_json::from_value(value.clone()).ok()? {
        Name::Plain(content) => Special::plain(0, &content),
        Name::Rules(token) => Special { special: true, ..token.with_id(0) },
    })
}

/// The tokens that `transformers` puts before and after each text with the tokenizer of a directory: the template of its
/// `tokenizer.json`, and without that file the switches of its configuration.
pub fn around_each_text(directory: &Path) -> Result<Vec<String>, DataError> {
    let mut found = Vec::new();
    if let Some(library) = optional::<Map<String, Value>>(&directory.join(TOKENIZER))? {
        let step = &library.get("post_processor").cloned().unwrap_or_default();
        let steps = step["processors"].as_array().map_or(std::slice::from_ref(step), Vec::as_slice);
        let pieces = steps.iter().filter_map(|step| step["single"].as_array()).flatten();
        found.extend(pieces.filter_map(|piece| piece["SpecialToken"]["id"].as_str().map(str::to_owned)));
    } else if let Some(config) = optional::<Map<String, Value>>(&directory.join(CONFIG))? {
        for (switch, key) in [("add_bos_token", "bos_token"), ("add_eos_token", "eos_token")] {
            if config.get(switch) == Some(&Value::Bool(true)) {
                found.push(config.get(key).and_then(token).map_or_else(|| super::END_OF_TEXT.to_owned(), |token| token.content));
            }
        }
    }
    found.dedup();
    Ok(found)
}
