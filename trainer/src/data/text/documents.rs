//! The documents inside a file: a text file is one, a row of a csv, JSON or parquet file is one.

use std::io::Read;
use std::path::Path;

use serde::de::IgnoredAny;

use super::rows;
use super::source::{Kind, Source, failed, is_called_tokens};
use crate::data::DataError;
use crate::data::tokenizer::{Specials, last_cut};
use crate::settings::OnBadRow;

/// A text file is handed on in parts of about this many bytes.
const BLOCK: usize = 4 << 20;
/// Told of a file without text whose name ends so, as those of nanoGPT and fairseq do.
const TOKENS: &str = "called .bin, as files of tokens are";
const TOKENS_FIX: &str = "if it holds tokens, set data.format (ftctl prepare: --format) to the program that wrote it (\"nanogpt\", \"fairseq\", \"llm-c\")";

/// A stretch of a document. Parts are cut where no token can cross, so they can be encoded one by one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part<'a> {
    pub text: &'a str,
    /// Whether the document ends here.
    pub last: bool,
}

/// The receiver of the parts, in order.
pub type Visit<'a> = dyn FnMut(Part<'_>) -> Result<(), DataError> + 'a;

/// How documents are read.
#[derive(Debug, Clone, Copy, Default)]
pub struct Reading<'a> {
    /// Names the column of csv, JSON and parquet rows; without it `text` is taken, else the only one.
    pub column: Option<&'a str>,
    pub on_bad_row: OnBadRow,
    /// Tokens that are looked for in the text: an end of text ends a document.
    pub split: Option<&'a Specials>,
}

/// Facts about a file that its reader should know.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Findings {
    /// Rows that were left out because nothing can be made of them, and the error of the first.
    pub left_out: u64,
    pub first: Option<String>,
    /// Rows of csv with fewer fields than the header, and a text.
    pub short: u64,
    /// Rows whose text is null, which are no documents.
    pub nulls: u64,
    /// The column of a table that the text was taken from.
    pub column: Option<String>,
    /// A text file that is JSON, as far as was looked.
    pub is_json: bool,
    /// A text file whose lines end with CR and LF, as far as was looked.
    pub has_carriage_returns: bool,
}

/// Reads the documents of a file in order. Memory does not grow with a text file, except by the longest stretch without white
/// space. Empty documents are left out; where the text itself has ends of text, those between two of them are not.
pub fn documents(path: &Path, reading: &Reading<'_>, visit: &mut Visit<'_>) -> Result<Findings, DataError> {
    let source = Source::open(path)?;
    let Some(specials) = reading.split else { return read(path, source, reading, visit) };
    let mut is_open = false;
    read(path, source, reading, &mut |part| split(part, specials, &mut is_open, visit))
}

fn read(path: &Path, source: Source, reading: &Reading<'_>, visit: &mut Visit<'_>) -> Result<Findings, DataError> {
    match source.kind {
        Kind::Csv(delimiter) => rows::csv(path, source.content, delimiter, reading, visit),
        Kind::Json => rows::json(path, source, reading, visit),
        Kind::Parquet => rows::parquet(path, reading, visit),
        Kind::Text => text(path, source.content, reading.split, visit),
    }
}

/// Hands on a part in as many as it has ends of text. `is_open`: whether something of the document was handed on before.
fn split(part: Part<'_>, specials: &Specials, is_open: &mut bool, visit: &mut Visit<'_>) -> Result<(), DataError> {
    let (mut start, mut at) = (0, 0);
    for segment in specials.segments(part.text) {
        let end = at + segment.text.len();
        if segment.token == Some(specials.end_of_text()) {
            visit(Part { text: &part.text[start..at], last: true })?;
            (start, *is_open) = (end, false);
        }
        at = end;
    }
    let rest = &part.text[start..];
    if rest.is_empty() && !(part.last && *is_open) {
        return Ok(());
    }
    *is_open = !part.last;
    visit(Part { text: rest, last: part.last })
}

fn text(path: &Path, mut file: Box<dyn Read>, specials: Option<&Specials>, visit: &mut Visit<'_>) -> Result<Findings, DataError> {
    let (mut buffer, mut findings) = (Vec::new(), Findings::default());
    // Bytes of the file before the buffer.
    let mut offset = 0;
    loop {
        // A stretch without white space is read by doubling, so that it is scanned a bounded number of times.
        let wanted = BLOCK.max(buffer.len()) as u64;
        let read = file.by_ref().take(wanted).read_to_end(&mut buffer).map_err(|error| failed(path, &error))?;
        let end_of_file = (read as u64) < wanted;
        if offset == 0 && buffer.starts_with("\u{feff}".as_bytes()) {
            buffer.drain(..3);
            offset = 3;
        }
        let valid = valid_text(path, offset, &buffer, end_of_file)?;
        if offset <= 3 {
            findings.is_json = is_json(valid, end_of_file);
            findings.has_carriage_returns = valid.contains("\r\n");
        }
        if end_of_file {
            if offset + (valid.len() as u64) > 0 {
                visit(Part { text: valid, last: true })?;
            }
            return Ok(findings);
        }
        let Some(end) = last_cut_beside(valid, specials) else { continue };
        visit(Part { text: &valid[..end], last: false })?;
        buffer.drain(..end);
        offset += end as u64;
    }
}

/// Whether the beginning of a text is one JSON object, several, or a list of them. Prose after an object makes it a text that
/// quotes one.
fn is_json(text: &str, is_whole: bool) -> bool {
    let begins_object = |text: &str| text.trim_start().strip_prefix('{').is_some_and(|rest| rest.trim_start().starts_with('"'));
    let seen = &text[..text.floor_char_boundary(BLOCK)];
    let is_list = seen.trim_start().strip_prefix('[').is_some_and(begins_object);
    if !is_list && !begins_object(seen) {
        return false;
    }
    let is_cut = |error: &serde_json::Error| error.is_eof() && !(is_whole && seen.len() == text.len());
    let mut values = serde_json::Deserializer::from_str(seen).into_iter::<IgnoredAny>();
    if let Some(Err(error)) = values.next() {
        return is_cut(&error);
    }
    let rest = &seen[values.byte_offset()..];
    match values.next() {
        None => true,
        Some(Ok(_)) => begins_object(rest),
        Some(Err(error)) => begins_object(rest) && is_cut(&error),
    }
}

/// The last place where the text can be cut beside its special tokens, which may have white space in them, and take that after
/// them.
fn last_cut_beside(text: &str, specials: Option<&Specials>) -> Option<usize> {
    // The last token may not be all there yet.
    let seen = text.len().checked_sub(specials.map_or(0, Specials::longest))?;
    let mut end = last_cut(&text[..text.floor_char_boundary(seen)])?;
    while specials.is_some_and(|specials| specials.touch(text, end)) {
        end = last_cut(&text[..end])?;
    }
    Some(end)
}

/// The buffer as text; before the end of the file, without a character that is not complete yet.
fn valid_text<'a>(path: &Path, offset: u64, buffer: &'a [u8], end_of_file: bool) -> Result<&'a str, DataError> {
    let is_tokens = || is_called_tokens(path);
    let tokens = || DataError::OtherContent { path: path.to_owned(), what: TOKENS.to_owned(), fix: TOKENS_FIX };
    if let Some(at) = buffer.iter().position(|byte| *byte == 0) {
        if is_tokens() {
            return Err(tokens());
        }
        return Err(DataError::NulByte { path: path.to_owned(), offset: offset + at as u64 });
    }
    let error = match std::str::from_utf8(buffer) {
        Ok(text) => return Ok(text),
        Err(error) => error,
    };
    if error.error_len().is_none() && !end_of_file {
        return Ok(std::str::from_utf8(&buffer[..error.valid_up_to()]).unwrap_or_default());
    }
    if is_tokens() {
        return Err(tokens());
    }
    Err(DataError::InvalidUtf8 { path: path.to_owned(), offset: offset + error.valid_up_to() as u64 })
}
