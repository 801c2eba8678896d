//! Special tokens that a configuration names, and what a tokenizer puts around each text elsewhere.
//!
//! `transformers` makes a token of every name that the tokenizer does not have yet (`TokenizersBackend.__init__` in
//! `tokenization_utils_tokenizers.py`, `_from_pretrained` in `tokenization_utils_base.py`).

use std::path::Path;

use serde_json::{Map, Value};

use super::files::{CONFIG, TOKENIZER};
use super::load::{NAMES_OF_SPECIALS, Name, optional};
use super::special::Special;
use crate::data::DataError;

/// In the order in which new ones get their numbers.
const SINGLE: [&str; 7] = ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];
/// Lists of them, or objects whose values they are; where the first is there, the second is not read.
const SEVERAL: [&str; 2] = ["extra_special_tokens", "additional_special_tokens"];

/// The files that name tokens, the one that counts first. Beside a list of added tokens, which newer versions of the library write
/// into its configuration, that alone counts.
pub fn naming_files(directory: &Path) -> Result<Vec<&'static str>, DataError> {
    let config = optional::<Map<String, Value>>(&directory.join(CONFIG))?.unwrap_or_default();
    Ok(if config.contains_key("added_tokens_decoder") { vec![CONFIG] } else { vec![NAMES_OF_SPECIALS, CONFIG] })
}

/// The tokens that the files of a directory name, without their numbers. A value that is no token is passed over: a configuration
/// may hold anything.
pub fn named(directory: &Path) -> Result<Vec<Special>, DataError> {
    let read = |file: &&str| optional::<Map<String, Value>>(&directory.join(file)).map(Option::unwrap_or_default);
    let files = naming_files(directory)?.iter().map(read).collect::<Result<Vec<_>, _>>()?;
    let value = |key: &str| files.iter().find_map(|file| file.get(key).filter(|value| !value.is_null()));
    let several = match SEVERAL.iter().find_map(|key| value(key)) {
        Some(Value::Array(values)) => values.iter().filter_map(token).collect(),
        Some(Value::Object(values)) => values.values().filter_map(token).collect(),
        _ => Vec::new(),
    };
    let single = SINGLE.iter().filter_map(|key| token(value(key)?));
    Ok(single.chain(several).filter(|token| !token.content.is_empty()).collect())
}

fn token(value: &Value) -> Option<Special> {
    serde_json::from_value::<Name>(value.clone()).ok().map(Name::into_token)
}

/// The tokens that `transformers` puts before and after each text with the tokenizer of a directory: the template of its
/// `tokenizer.json`, and without that file the switches of its configuration.
pub fn around_each_text(directory: &Path) -> Result<Vec<String>, DataError> {
    let mut found = Vec::new();
    if let Some(library) = optional::<Map<String, Value>>(&directory.join(TOKENIZER))? {
        let step = &library.get("post_processor").cloned().unwrap_or_default();
        let steps = step["processors"].as_array().map_or(std::slice::from_ref(step), Vec::as_slice);
        for step in steps {
            let pieces = step["single"].as_array().into_iter().flatten().map(|piece| &piece["SpecialToken"]["id"]);
            // Those of RoBERTa and BERT have no template.
            let names = pieces.chain([&step["cls"][0], &step["sep"][0]]);
            found.extend(names.filter_map(|name| name.as_str().map(str::to_owned)));
        }
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
