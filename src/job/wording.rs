//! serde's and toml's messages in the words of a person who edits a file.

use super::document::Place;

/// The message for the user, and what to write instead when that can be guessed.
pub(super) fn reword(message: &str, place: &Place) -> (String, Option<String>) {
    let quoted = quoted(message);
    if message.starts_with("unknown field") {
        let table = if place.table.is_empty() { "at the top of the file".to_owned() } else { format!("in [{}]", place.table) };
        let (unknown, known) = quoted.split_first().map_or(("", &[][..]), |(first, rest)| (*first, rest));
        return (format!("unknown key `{unknown}` {table}"), Some(suggest(unknown, known, "keys here")));
    }
    let subject = place.key.as_ref().map(|key| if place.table.is_empty() { key.clone() } else { format!("{}.{key}", place.table) });
    let about = |text: String| subject.as_ref().map_or(text.clone(), |subject| format!("{subject}: {text}"));
    if message.starts_with("unknown variant") {
        let (unknown, known) = quoted.split_first().map_or(("", &[][..]), |(first, rest)| (*first, rest));
        return (about(format!("`{unknown}` is not one of its values")), Some(suggest(unknown, known, "values")));
    }
    if let Some(rest) = message.strip_prefix("missing field") {
        return (format!("the key{rest} is missing"), None);
    }
    if let Some((found, expected)) = message
        .strip_prefix("invalid type: ")
        .or(message.strip_prefix("invalid value: "))
        .and_then(|rest| rest.split_once(", expected "))
    {
        return (about(format!("expected {}, found {found}", kind(expected))), None);
    }
    (about(message.to_owned()), None)
}

/// The nearest of `known`, or all of them when none is near.
pub fn suggest(typed: &str, known: &[&str], what: &str) -> String {
    match nearest(typed, known) {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("{what}: {}", known.join(", ")),
    }
}

/// The word that was probably meant: at most a third of it is wrong.
pub fn nearest<'k>(typed: &str, known: &[&'k str]) -> Option<&'k str> {
    let plain = |word: &str| word.to_ascii_lowercase().replace('-', "_");
    let distance = |word: &str| strsim::damerau_levenshtein(&plain(typed), &plain(word));
    let near = known.iter().map(|word| (distance(word), *word)).min_by_key(|(distance, _)| *distance)?;
    (near.0 <= (typed.chars().count() / 3).max(1)).then_some(near.1)
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
