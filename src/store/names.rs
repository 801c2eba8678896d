//! The permitted names of a tree's files. A manifest may be another user's work, and the files land on any system: a name must
//! stay below the folder, must not be an order to the terminal that shows it, and must not be another file's name on a system that
//! knows no difference. The same holds when a tree is sent, so that whatever is in the store can be fetched.

use std::collections::HashMap;

/// Beginning of the names of files that are not complete yet.
pub(super) const PARTIAL: &str = ".ftctl-partial-";

/// Most files of a tree: each takes some hundred bytes of memory in every program that reads the manifest.
const MOST: usize = 250_000;

/// Why one of these names, or two of them together, cannot be kept; `None`: all is well.
pub(super) fn why_not<'n>(names: impl Iterator<Item = &'n str> + Clone) -> Option<String> {
    if names.clone().nth(MOST).is_some() {
        return Some(format!("files are more than {MOST}"));
    }
    let wrong = |name: &str| wrong(name).map(|why| format!("`{}` {why}", name.escape_debug()));
    names.clone().find_map(wrong).or_else(|| clash(names))
}

fn wrong(name: &str) -> Option<&'static str> {
    if name.chars().any(|c| c.is_control() || is_bidi(c)) {
        return Some("contains a control character or one that changes the direction of text");
    }
    if name.contains('\\') {
        return Some("has a backslash, which parts folders on other systems");
    }
    if matches!(name.as_bytes(), [letter, b':', ..] if letter.is_ascii_alphabetic()) {
        return Some("begins as a drive of another system does");
    }
    name.split('/').find_map(|part| match part {
        "" | "." | ".." => Some("is not a relative path"),
        part if part.starts_with(PARTIAL) => Some("has a name that ftctl keeps for unfinished downloads"),
        part if is_device(part) => Some("is a device on other systems"),
        _ => None,
    })
}

/// Turns the direction of the text after it, so that a name looks like another.
fn is_bidi(c: char) -> bool {
    matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Whatever follows the first dot.
fn is_device(part: &str) -> bool {
    let stem = part.split('.').next().unwrap_or_default().trim_end().to_ascii_uppercase();
    let numbered = |name: &str| stem.strip_prefix(name).is_some_and(|rest| matches!(rest.as_bytes(), [b'1'..=b'9']));
    matches!(stem.as_str(), "CON" | "PRN" | "AUX" | "NUL") || numbered("COM") || numbered("LPT")
}

/// The name as systems see it that know no upper case, no dots and no spaces at the end.
fn folded(name: &str) -> String {
    let parts: Vec<String> = name.split('/').map(|part| part.trim_end_matches(['.', ' ']).to_lowercase()).collect();
    parts.join("/")
}

/// Two names that are one file, or a file and the folder of another.
fn clash<'n>(names: impl Iterator<Item = &'n str> + Clone) -> Option<String> {
    let mut files = HashMap::new();
    for name in names.clone() {
        if let Some(other) = files.insert(folded(name), name) {
            return Some(both(other, name, "are one file, at least on some systems"));
        }
    }
    names.into_iter().find_map(|name| {
        let whole = folded(name);
        let mut folders = whole.match_indices('/').map(|(end, _)| &whole[..end]);
        folders.find_map(|folder| files.get(folder)).map(|file| both(file, name, "make the same name a file and a folder"))
    })
}

fn both(one: &str, other: &str, what: &str) -> String {
    format!("`{}` and `{}` {what}", one.escape_debug(), other.escape_debug())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_files_than_fit_into_memory_are_refused() {
        let names: Vec<String> = (0..=MOST).map(|number| number.to_string()).collect();
        let of = |count: usize| why_not(names[..count].iter().map(String::as_str));
        assert_eq!((of(MOST), of(MOST + 1)), (None, Some("files are more than 250000".to_owned())));
    }

    #[test]
    fn usual_names_are_kept() {
        let names = [
            ".hidden",
            "model.safetensors",
            "train/0.bin",
            "train/1.bin",
            "train.bin",
            "a b/ü.txt",
            "12:30 log",
            "company",
            "nuls",
            "com10",
        ];
        assert_eq!(why_not(names.into_iter()), None);
    }

    #[test]
    fn what_leads_away_or_is_seen_as_something_else_is_not() {
        let wrong = [
            "",
            "/a",
            "a/",
            "a//b",
            "..",
            "../a",
            "a/../b",
            "./a",
            "a\\b",
            "C:a",
            "c:/a",
            "a\u{1b}[2J",
            "a\nb",
            "a\u{9b}",
            "a\u{202e}b",
            "nul",
            "a/Con.txt",
            "lpt1 .x",
            ".ftctl-partial-a",
            "a/.ftctl-partial-/x",
        ];
        for name in wrong {
            let why = why_not([name].into_iter()).unwrap_or_else(|| panic!("{name:?} is taken"));
            assert!(!why.contains(|c: char| c.is_control()), "{why:?}");
        }
        for pair in [["a", "a"], ["a", "A"], ["a", "a."], ["b/a ", "B/a"], ["a", "a/b"], ["a/b/c", "A/B"]] {
            assert!(why_not(pair.into_iter()).is_some_and(|why| why.contains(pair[1])), "{pair:?}");
        }
    }
}
