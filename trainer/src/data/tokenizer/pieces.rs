//! GPT-2's pre-tokenizer: cuts text into pieces that no token crosses.
//!
//! The published rule (`encoder.py` of the GPT-2 release) is the pattern
//! `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`.
//! It is written out here by hand, so that a line of any length takes linear time and no memory.

use std::sync::LazyLock;

use regex_syntax::hir::{Class, HirKind};

/// The kinds of characters that the pattern distinguishes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Kind {
    /// None of the others: punctuation, symbols, marks, control characters.
    Other = 0,
    Letter,
    Number,
    Space,
}

/// No later character is white space.
const LAST_SPACE: char = '\u{3000}';

/// The kind of every code point: 1.1 MB of which only the pages with letters are ever touched.
static KINDS: LazyLock<Vec<Kind>> = LazyLock::new(|| {
    let mut kinds = vec![Kind::Other; char::MAX as usize + 1];
    for (pattern, kind) in [(r"\p{L}", Kind::Letter), (r"\p{N}", Kind::Number)] {
        for (first, last) in ranges(pattern) {
            kinds[first as usize..=last as usize].fill(kind);
        }
    }
    (char::MIN..=LAST_SPACE).filter(|c| c.is_whitespace()).for_each(|c| kinds[c as usize] = Kind::Space);
    kinds
});

/// The code points of a character class, from the tables of the regex library.
fn ranges(class: &str) -> Vec<(char, char)> {
    match regex_syntax::parse(class).map(regex_syntax::hir::Hir::into_kind) {
        Ok(HirKind::Class(Class::Unicode(class))) => class.iter().map(|range| (range.start(), range.end())).collect(),
        other => unreachable!("`{class}` is a Unicode class: {other:?}"),
    }
}

/// The pieces of a text in order; together they are the text.
pub struct Pieces<'a> {
    rest: &'a str,
    kinds: &'static [Kind],
}

/// Cuts a text into pieces.
pub fn pieces(text: &str) -> Pieces<'_> {
    Pieces { rest: text, kinds: &KINDS }
}

impl<'a> Iterator for Pieces<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        let first = self.rest.chars().next()?;
        let (piece, rest) = self.rest.split_at(self.length(first));
        self.rest = rest;
        Some(piece)
    }
}

impl Pieces<'_> {
    /// Bytes of the piece that begins with `first`.
    fn length(&self, first: char) -> usize {
        if first == '\''
            && let Some(length) = contraction(self.rest.as_bytes())
        {
            return length;
        }
        let kind = self.kind(first);
        if kind != Kind::Space {
            return self.run(kind, 0);
        }
        let run = self.run(Kind::Space, 0);
        match self.rest[run..].chars().next() {
            // A single blank belongs to the word after it.
            Some(next) if run == 1 && first == ' ' => self.run(self.kind(next), 1),
            // The last character of a longer run is left to the next piece.
            Some(_) => self.all_but_last(run),
            None => run,
        }
    }

    /// End of the characters of one kind from byte `start` on.
    fn run(&self, kind: Kind, start: usize) -> usize {
        let rest = &self.rest[start..];
        start + rest.char_indices().find(|(_, c)| self.kind(*c) != kind).map_or(rest.len(), |(at, _)| at)
    }

    /// The run without its last character, or the run when it has only one.
    fn all_but_last(&self, run: usize) -> usize {
        match self.rest[..run].char_indices().next_back() {
            Some((at, _)) if at > 0 => at,
            _ => run,
        }
    }

    fn kind(&self, c: char) -> Kind {
        self.kinds[c as usize]
    }
}

/// Length of `'s`, `'t`, `'m`, `'d`, `'re`, `'ve` or `'ll` at the start of the text.
fn contraction(text: &[u8]) -> Option<usize> {
    match text.get(1..)? {
        [b's' | b't' | b'm' | b'd', ..] => Some(2),
        [b'r' | b'v', b'e', ..] | [b'l', b'l', ..] => Some(3),
        _ => None,
    }
}

/// The first place at or after byte `from` where the text can be cut without changing its pieces, if there is one before the end.
///
/// Such a place lies between a character that is not white space and one that is: white space occurs in a piece only
/// together with white space, or as the one blank that begins it. So the piece before ends there whatever follows, and the
/// rest is cut as it would be alone.
pub fn cut(text: &str, from: usize) -> Option<usize> {
    let start = text.floor_char_boundary(from.saturating_sub(1));
    let mut solid = false;
    text[start..].char_indices().find_map(|(at, c)| {
        let space = c.is_whitespace();
        let found = solid && space && start + at >= from;
        solid = !space;
        found.then_some(start + at)
    })
}

/// The last such place.
pub fn last_cut(text: &str) -> Option<usize> {
    let mut space = None;
    text.char_indices().rev().find_map(|(at, c)| {
        let found = space.filter(|_| !c.is_whitespace());
        space = c.is_whitespace().then_some(at);
        found
    })
}

/// Cuts a text into parts of about `size` bytes (more where there is no white space) whose pieces are those of the whole.
pub fn parts(mut text: &str, size: usize) -> impl Iterator<Item = &str> {
    std::iter::from_fn(move || {
        if text.is_empty() {
            return None;
        }
        let (part, rest) = text.split_at(cut(text, size).unwrap_or(text.len()));
        text = rest;
        Some(part)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_those_of_the_published_pattern() {
        let cases: [(&str, &[&str]); 9] = [
            ("Hello world", &["Hello", " world"]),
            ("I'll don't 's ''s", &["I", "'ll", " don", "'t", " '", "s", " ''", "s"]),
            ("a  b", &["a", " ", " b"]),
            ("a\n\n  b\n", &["a", "\n\n ", " b", "\n"]),
            ("a\n\tb", &["a", "\n", "\t", "b"]),
            ("x=12,3", &["x", "=", "12", ",", "3"]),
            ("   ", &["   "]),
            ("\u{a0} é½!", &["\u{a0}", " é", "½", "!"]),
            ("", &[]),
        ];
        for (text, expected) in cases {
            assert_eq!(pieces(text).collect::<Vec<_>>(), expected, "{text:?}");
        }
    }

    #[test]
    fn parts_have_the_pieces_of_the_whole() {
        let text = "fn main() {\n\n\n    let x = \"a  b\u{3000}\u{3000}c\";\r\n\t\t// don't\n}\n \n";
        for size in 1..text.len() {
            let cut: Vec<_> = parts(text, size).flat_map(pieces).collect();
            assert_eq!(cut, pieces(text).collect::<Vec<_>>(), "size {size}");
        }
        let all: Vec<_> = parts(text, 1).scan(0, |at, part| Some(std::mem::replace(at, *at + part.len()))).collect();
        assert!(all.len() > 5);
        assert_eq!(last_cut(text), all.last().copied());
        assert_eq!(last_cut(&text[..=all[3]]), Some(all[3]));
        assert_eq!((last_cut("  word"), last_cut("")), (None, None));
    }
}
