//! A TOML text with positions: whatever is wrong with it is shown at its line and column, with the nearest right word.
//!
//! Job files and settings files are both read through here. Single values set on the command line (`--set train.steps=5`) are
//! laid over the file before it is judged, and are judged in the same way.

use std::{fmt::Write as _, ops::Range};

use ft_trainer::files;
use serde::de::DeserializeOwned;
use toml::{
    Spanned,
    de::{DeTable, DeValue, Deserializer},
};

use super::printable;

/// Something is wrong at one place of the text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{file}:{line}:{column}: {message}\n{excerpt}")]
pub struct DocumentError {
    pub file: String,
    /// Counts from 1.
    pub line: usize,
    /// Counts characters from 1.
    pub column: usize,
    pub message: String,
    /// The line in question with a caret below the place.
    pub excerpt: String,
    /// The likely right spelling, when it can be guessed.
    pub hint: Option<String>,
    /// The unknown key, when that is the error.
    pub unknown_key: Option<String>,
}

/// The text of a file, and of every value laid over it.
///
/// All pieces share one range of byte positions, so that a position alone tells which piece it is in.
#[derive(Debug, Clone)]
pub struct Document {
    pieces: Vec<Piece>,
}

#[derive(Debug, Clone)]
struct Piece {
    /// The document's name in messages: a path, or `--set train.steps`.
    name: String,
    /// Begins with as many spaces as the pieces before it are long, so that the parser's positions are right as they are.
    text: String,
    /// Where the visible text begins.
    start: usize,
    /// Its key is taken out of the text below, instead of getting its value.
    removes: bool,
}

/// The length of a run is one of these.
const EITHER: [&str; 2] = ["train.steps", "train.epochs"];

impl Document {
    /// Takes the bytes of a file as they are; `name` is its name in messages.
    pub fn new(name: impl Into<String>, mut bytes: Vec<u8>) -> Result<Self, DocumentError> {
        let name = name.into();
        let mark = files::mark(&bytes);
        bytes.drain(..mark.unwrap_or_default());
        let (text, wrong) = match (mark, String::from_utf8(bytes)) {
            // Nothing of it could be shown.
            (Err(reason), _) => (String::new(), Some((0, reason))),
            (Ok(_), Ok(text)) => {
                let nul = text.find('\0');
                (text, nul.map(|at| (at, "a NUL byte; a TOML file is text")))
            }
            (Ok(_), Err(error)) => {
                let at = error.utf8_error().valid_up_to();
                (String::from_utf8_lossy(error.as_bytes()).into_owned(), Some((at, "not valid UTF-8 from here on")))
            }
        };
        let document = Self { pieces: vec![Piece { name, text, start: 0, removes: false }] };
        match wrong {
            Some((at, message)) => Err(document.error(&(at..at + 1), message)),
            None => Ok(document),
        }
    }

    /// Lays `key.path=value` over the text. The value is TOML; any other text (`2h`, `my-job`) is taken as a string. Without a
    /// value (`key.path=`) the key is as if it were not there; an empty text is written `key.path=""`.
    /// Setting one of `train.steps` and `train.epochs` removes the other, unless that was set like this, too.
    pub fn set(&mut self, assignment: &str) -> Result<(), DocumentError> {
        let (key, value) = assignment.split_once('=').unwrap_or((assignment, ""));
        let named = |key: &str| EITHER.iter().position(|one| *one == key);
        if let Some(one) = named(key.trim()).filter(|_| !value.trim().is_empty()) {
            let other = EITHER[1 - one];
            if !self.pieces.iter().any(|piece| piece.name == format!("--set {other}")) {
                self.set(&format!("{other}="))?;
            }
        }
        let name = format!("--set {}", key.trim());
        let start = self.pieces.iter().map(|piece| piece.text.len() - piece.start + 1).sum();
        let value = value.trim();
        let removes = value.is_empty();
        let value = match DeValue::parse(value) {
            Ok(_) => value.to_owned(),
            Err(_) => toml::Value::from(value).to_string(),
        };
        let text = format!("{}{} = {value}", " ".repeat(start), key.trim());
        self.pieces.push(Piece { name, text, start, removes });
        if !assignment.contains('=') || assignment.contains('\n') || key.trim().is_empty() {
            return Err(self.error(&(start..start + key.trim().len()), "a setting is written key=value, on one line"));
        }
        Ok(())
    }

    /// Reads a `T` and keeps the positions for the checks that follow.
    pub fn parse<T: DeserializeOwned>(&self) -> Result<(T, Located<'_>), DocumentError> {
        let mut root = Spanned::new(0..0, DeTable::default());
        for piece in &self.pieces {
            let layer = DeTable::parse(&piece.text).map_err(|error| self.translate(&error, None))?;
            if piece.removes {
                self.check_key::<T>(&root, layer.get_ref())?;
                remove(root.get_mut(), layer.get_ref());
            } else {
                overlay(root.get_mut(), layer.into_inner());
            }
        }
        let value =
            T::deserialize(Deserializer::from(root.clone())).map_err(|error| self.translate(&error, Some(root.get_ref())))?;
        Ok((value, Located { document: self, root: root.into_inner() }))
    }

    /// Refuses a key that no document has: taking it out would change nothing in silence.
    fn check_key<'d, T: DeserializeOwned>(&'d self, below: &Spanned<DeTable<'d>>, key: &DeTable<'d>) -> Result<(), DocumentError> {
        let mut with = below.clone();
        overlay(with.get_mut(), key.clone());
        match T::deserialize(Deserializer::from(with.clone())) {
            Err(error) => match self.translate(&error, Some(with.get_ref())) {
                error if error.unknown_key.is_some() => Err(error),
                _ => Ok(()),
            },
            Ok(_) => Ok(()),
        }
    }

    fn translate(&self, error: &toml::de::Error, root: Option<&DeTable<'_>>) -> DocumentError {
        let span = error.span().unwrap_or(0..0);
        let place = root.and_then(|root| place_of(root, &span)).unwrap_or_default();
        let wording = super::wording::reword(error.message(), &place);
        DocumentError { hint: wording.hint, unknown_key: wording.unknown_key, ..self.error(&span, wording.message) }
    }

    fn error(&self, span: &Range<usize>, message: impl Into<String>) -> DocumentError {
        let piece = self.pieces.iter().rev().find(|piece| piece.start <= span.start).unwrap_or(&self.pieces[0]);
        let visible = &piece.text[piece.start..];
        let at = floor_boundary(visible, span.start - piece.start);
        let before = &visible[..at];
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        let line = before.matches('\n').count() + 1;
        let column = visible[line_start..at].chars().count() + 1;
        let text = visible[line_start..].lines().next().unwrap_or_default();
        let width =
            visible[at..floor_boundary(visible, (span.end - piece.start).max(at))].lines().next().map_or(1, |s| s.chars().count());
        DocumentError {
            file: piece.name.clone(),
            line,
            column,
            message: message.into(),
            excerpt: excerpt(line, text, column, width.max(1)),
            hint: None,
            unknown_key: None,
        }
    }
}

/// The text with the place of every key.
pub struct Located<'d> {
    document: &'d Document,
    root: DeTable<'d>,
}

impl Located<'_> {
    /// An error at the value of `key` (dotted). When the key was not typed: at its nearest parent that was, else at the top.
    pub fn error(&self, key: &str, message: impl Into<String>) -> DocumentError {
        self.document.error(&self.span_of(key), message)
    }

    fn span_of(&self, key: &str) -> Range<usize> {
        let mut span = 0..0;
        let mut table = Some(&self.root);
        for part in key.split('.') {
            let Some((name, value)) = table.and_then(|table| table.get_key_value(part)) else { break };
            let inner = value.get_ref().as_table();
            // The span of a [table] is its header, that of `key = value` is the value.
            span = if inner.is_some() { name.span() } else { value.span() };
            table = inner;
        }
        span
    }
}

/// Later values win; tables are merged.
fn overlay<'d>(below: &mut DeTable<'d>, above: DeTable<'d>) {
    for (key, value) in above {
        match below.get_mut(key.get_ref().as_ref()).map(Spanned::get_mut) {
            Some(DeValue::Table(table)) if value.get_ref().is_table() => {
                if let DeValue::Table(inner) = value.into_inner() {
                    overlay(table, inner);
                }
            }
            _ => {
                // A map keeps the old key, and with it the old place, unless it is removed first.
                below.remove(key.get_ref().as_ref());
                below.insert(key, value);
            }
        }
    }
}

/// Takes a key out.
fn remove(below: &mut DeTable<'_>, key: &DeTable<'_>) {
    for (name, value) in key {
        match (value.get_ref().as_table(), below.get_mut(name.get_ref().as_ref()).map(Spanned::get_mut)) {
            (Some(inner), Some(DeValue::Table(table))) => remove(table, inner),
            _ => drop(below.remove(name.get_ref().as_ref())),
        }
    }
}

/// Where in the tree of keys a position is.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Place {
    /// The dotted name of the table around it; empty at the top.
    pub table: String,
    /// The key itself, or the key whose value it is.
    pub key: Option<String>,
}

impl Place {
    /// `train.steps`.
    pub fn dotted(&self) -> Option<String> {
        let key = self.key.as_ref()?;
        Some(if self.table.is_empty() { key.clone() } else { format!("{}.{key}", self.table) })
    }

    /// `in [train]`.
    pub fn table(&self) -> String {
        if self.table.is_empty() { "at the top of the file".to_owned() } else { format!("in [{}]", self.table) }
    }
}

fn place_of(table: &DeTable<'_>, span: &Range<usize>) -> Option<Place> {
    let within = |outer: Range<usize>| outer.start <= span.start && span.end <= outer.end && !outer.is_empty();
    table.iter().find_map(|(name, value)| {
        let inner = value.get_ref().as_table();
        let deeper = inner.and_then(|inner| place_of(inner, span)).map(|place| {
            let table =
                if place.table.is_empty() { name.get_ref().to_string() } else { format!("{}.{}", name.get_ref(), place.table) };
            Place { table, ..place }
        });
        let here = || within(name.span()) || (inner.is_none() && within(value.span()));
        deeper.or_else(|| here().then(|| Place { table: String::new(), key: Some(name.get_ref().to_string()) }))
    })
}

/// Characters shown of a long line, around the place.
const EXCERPT: usize = 100;

fn excerpt(line: usize, text: &str, column: usize, width: usize) -> String {
    let skipped = column.saturating_sub(EXCERPT / 2);
    let shown: Vec<char> = text.chars().skip(skipped).take(EXCERPT).collect();
    let column = column - skipped;
    let printable = shown.iter().collect::<String>();
    let printable = printable::text(&printable);
    let padding: String = (0..column - 1).map(|i| if shown.get(i) == Some(&'\t') { '\t' } else { ' ' }).collect();
    let carets = "^".repeat(width.min(shown.len().saturating_sub(column - 1)).max(1));
    let margin = " ".repeat(line.to_string().len());
    let mut out = String::new();
    let _ = write!(out, "{margin} |\n{line} | {printable}\n{margin} | {padding}{carets}");
    out
}

fn floor_boundary(text: &str, at: usize) -> usize {
    (0..=at.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0)
}
