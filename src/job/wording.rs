//! serde's and toml's messages in the words of a person who edits a file.

use serde_json::Value;

use super::document::Place;

#[derive(Debug, Default)]
pub(super) struct Wording {
    pub message: String,
    /// The likely right spelling, when it can be guessed.
    pub hint: Option<String>,
    pub unknown_key: Option<String>,
}

/// `message` for the user.
pub(super) fn reword(message: &str, place: &Place) -> Wording {
    let quoted = quoted(message);
    let (unknown, known) = quoted.split_first().map_or(("", &[][..]), |(first, rest)| (*first, rest));
    let plain = |message: String| Wording { message, ..Wording::default() };
    let about = |text: &str| place.dotted().map_or_else(|| text.to_owned(), |key| format!("{key}: {text}"));
    if message.starts_with("unknown field") {
        let message = format!("unknown key `{unknown}` {}", place.table());
        return Wording { message, hint: Some(suggest(unknown, known, "keys here")), unknown_key: Some(unknown.to_owned()) };
    }
    if message.starts_with("unknown variant") {
        let message = about(&format!("`{unknown}` is not one of its values"));
        return Wording { hint: Some(suggest(unknown, known, "values")), ..plain(message) };
    }
    if let Some(rest) = message.strip_prefix("missing field") {
        return plain(format!("the key{rest} is missing"));
    }
    let mismatch = message.strip_prefix("invalid type: ").or(message.strip_prefix("invalid value: "));
    match mismatch.and_then(|rest| rest.split_once(", expected ")) {
        Some((found, expected)) => {
            // A type that is written as text says how.
            let (expected, how) = expected.split_at(expected.find("; ").unwrap_or(expected.len()));
            plain(about(&format!("expected {}, found {found}{how}", kind(expected))))
        }
        None => plain(about(message)),
    }
}

/// A JSON value as a person writes it: a text without its quotes.
pub fn value(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// The nearest of `known`, or all of them when none is near.
pub fn suggest(typed: &str, known: &[&str], what: &str) -> String {
    match nearest(typed, known) {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("{what}: {}", known.join(", ")),
    }
}

/// The word that was probably meant.
pub fn nearest<'k>(typed: &str, known: &[&'k str]) -> Option<&'k str> {
    near(typed, known).first().copied()
}

/// Other programs' words for keys of a job file.
const SYNONYMS: [(&str, &str); 5] = [
    ("lr", "learning_rate"),
    ("batch_size", "micro_batch"),
    ("per_device_train_batch_size", "micro_batch"),
    ("max_steps", "steps"),
    ("num_train_epochs", "epochs"),
];

/// The words that were probably meant: another program's word for them, at most a third of them is wrong, what was typed is a part
/// of them, or they are its beginning. There are two only where both are as near.
pub fn near<'k>(typed: &str, known: &[&'k str]) -> Vec<&'k str> {
    let plain = |word: &str| word.to_ascii_lowercase().replace('-', "_");
    let typed = plain(typed);
    // In halves of a letter: a word that begins what was typed comes after one typing error, and before two.
    let distance = |word: &str| match strsim::damerau_levenshtein(&typed, &plain(word)) {
        _ if SYNONYMS.contains(&(&typed, word)) => 0,
        far if far > 1 && word.len() > 3 && typed.starts_with(&plain(word)) => 3,
        far if far > 2 && typed.len() > 5 && plain(word).contains(&typed) => 4,
        distance => 2 * distance,
    };
    let mut near: Vec<(usize, &str)> = known.iter().map(|word| (distance(word), *word)).collect();
    near.sort_by_key(|(distance, _)| *distance);
    let least = near.first().map_or(0, |(distance, _)| *distance);
    near.retain(|(distance, _)| *distance == least && least <= 2 * (typed.chars().count() / 3).max(1));
    near.into_iter().map(|(_, word)| word).take(2).collect()
}

/// The next step after an unknown word of another program, of which those that are `near` were perhaps meant.
pub fn or_without(near: &[impl AsRef<str>]) -> String {
    let near: Vec<&str> = near.iter().map(AsRef::as_ref).collect();
    if near.is_empty() { "take it out to go on without it".to_owned() } else { format!("did you mean {}?", near.join(" or ")) }
}

/// One word for a shell, whatever is in it.
pub fn shell_word(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

fn quoted(message: &str) -> Vec<&str> {
    message.split('`').skip(1).step_by(2).collect()
}

/// Rust's type names as a person calls them.
fn kind(expected: &str) -> &str {
    match expected {
        "usize" | "u64" | "u32" => "a whole number, 0 or more",
        "f64" => "a number",
        "a boolean" => "true or false",
        "a sequence" => "a list",
        other if other.starts_with("struct ") => "a table",
        other => other,
    }
}
/// The steps that a preemption cost.
pub fn lost(steps: u64) -> String {
    match steps {
        0 => "no steps lost".to_owned(),
        1 => "1 step is repeated".to_owned(),
        steps => format!("{steps} steps are repeated"),
    }
}
