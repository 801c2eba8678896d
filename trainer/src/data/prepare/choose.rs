//! Which documents are used, and for what: a function of their text alone, so that paths and order do not matter.

use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::Remarks;
use crate::data::DataError;
use crate::data::shard::Split;
use crate::data::text::{Part, Reading, documents};
use crate::data::tokenizer::{Specials, cut};

/// A document as the first reading sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Surveyed {
    /// Bytes 0..8 of the text's SHA-256: its place when only part of the text is wanted.
    order: u64,
    /// Bytes 8..16: its place in the draw for the held-out part.
    draw: u64,
    /// Length of the text.
    pub bytes: u64,
}

/// The fate of a document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    Skip,
    Train,
    Validation,
    /// Held out from this byte on (or the next place where it can be cut), because it is the only document.
    DividedAt(u64),
}

/// Reads and checks all documents. `report` gets the bytes of files read so far, counted on in `done`; `remarks` what a reader
/// should know, such as how often one of the `specials` stands in the text.
pub fn survey(
    files: &[PathBuf],
    reading: &Reading<'_>,
    specials: Option<&Specials>,
    remarks: &mut Remarks,
    course: &mut Course,
    report: &mut dyn FnMut(u64),
) -> Result<Vec<Surveyed>, DataError> {
    let mut found = Vec::new();
    for path in files {
        let mut digest = Sha256::new();
        let (mut bytes, mut read) = (0, 0);
        let length = path.metadata().map_or(u64::MAX, |metadata| metadata.len());
        let findings = documents(path, reading, &mut |part: Part<'_>| {
            digest.update(part.text);
            bytes += part.text.len() as u64;
            read += part.text.len() as u64;
            // A packed file has fewer bytes than its text.
            report(course.done + read.min(length));
            if let Some(specials) = specials {
                specials.count(part.text, &mut remarks.literal);
            }
            if part.last {
                found.push(surveyed(&std::mem::take(&mut digest).finalize(), std::mem::take(&mut bytes)));
            }
            Ok(())
        })?;
        course.agree(path, findings.column, reading)?;
        remarks.rows_left_out += findings.left_out;
        remarks.short_rows += findings.short;
        remarks.nulls += findings.nulls;
        if findings.is_json {
            remarks.json.get_or_insert_with(|| path.display().to_string());
        }
        if findings.has_carriage_returns {
            remarks.carriage_returns.get_or_insert_with(|| path.display().to_string());
        }
        remarks.first_row = remarks.first_row.take().or(findings.first);
        course.done += if length == u64::MAX { read } else { length };
        report(course.done);
    }
    Ok(found)
}

/// The way through lists of files that are surveyed one after the other.
#[derive(Debug, Default)]
pub struct Course {
    /// Bytes of the files that were read.
    done: u64,
    /// The first table, and its column of text.
    column: Option<(PathBuf, String)>,
}

impl Course {
    /// Refuses a table whose text is in a column of another name, which nobody asked for: the only one may be a number of the row.
    fn agree(&mut self, path: &Path, column: Option<String>, reading: &Reading<'_>) -> Result<(), DataError> {
        let Some(other) = column.filter(|_| reading.column.is_none()) else { return Ok(()) };
        let (first, column) = self.column.get_or_insert_with(|| (path.to_owned(), other.clone()));
        if *column == other {
            return Ok(());
        }
        Err(DataError::FilesDiffer { path: path.to_owned(), other, first: first.clone(), column: column.clone() })
    }
}

fn surveyed(digest: &[u8], bytes: u64) -> Surveyed {
    let (words, _) = digest.as_chunks();
    Surveyed { order: u64::from_be_bytes(words[0]), draw: u64::from_be_bytes(words[1]), bytes }
}

/// Decides over each document: at most `limit` bytes in a pseudo-random order (but one document at least), of which
/// the share `fraction`, at least one document and never all, is held out. Equal documents share their fate. Those without text,
/// between two ends of text, are not held out.
pub fn choose(documents: &[Surveyed], limit: Option<u64>, fraction: f64) -> Vec<Fate> {
    let kept = within(documents, limit.unwrap_or(u64::MAX));
    let candidates = documents.iter().filter(|document| document.order <= kept && document.bytes > 0);
    let mut draws: Vec<u64> = candidates.map(|document| document.draw).collect();
    draws.sort_unstable();
    draws.dedup();
    let held_out = match draws.len() {
        count if fraction > 0.0 && count > 1 => ((count as f64 * fraction).round() as usize).clamp(1, count - 1),
        _ => 0,
    };
    let divide = fraction > 0.0 && draws.len() == 1;
    let fate = |document: &Surveyed| match () {
        () if document.order > kept => Fate::Skip,
        () if document.bytes == 0 => Fate::Train,
        () if divide => Fate::DividedAt((document.bytes as f64 * (1.0 - fraction)) as u64),
        () if held_out > 0 && document.draw <= draws[held_out - 1] => Fate::Validation,
        () => Fate::Train,
    };
    documents.iter().map(fate).collect()
}

/// The largest `order` of the documents that fit into `limit` bytes.
fn within(documents: &[Surveyed], limit: u64) -> u64 {
    let mut sorted: Vec<(u64, u64)> = documents.iter().map(|document| (document.order, document.bytes)).collect();
    sorted.sort_unstable();
    let mut bytes = 0;
    let fitting = sorted.iter().take_while(|(_, length)| {
        bytes += length;
        bytes <= limit
    });
    let last = fitting.last().or(sorted.first());
    last.map_or(0, |(order, _)| *order)
}

/// Reads the documents again and hands on the chosen text: its split, a part, and whether a document ends there.
pub fn visit(
    files: &[PathBuf],
    reading: &Reading<'_>,
    fates: &[Fate],
    visit: &mut dyn FnMut(Split, &str, bool) -> Result<(), DataError>,
) -> Result<(), DataError> {
    let mut fates = fates.iter();
    for path in files {
        let mut current = None;
        documents(path, reading, &mut |part: Part<'_>| {
            let changed = || DataError::Changed { path: path.clone() };
            let mut fate = current.take().or_else(|| fates.next().copied()).ok_or_else(changed)?;
            hand_on(&mut fate, part, visit)?;
            current = (!part.last).then_some(fate);
            Ok(())
        })?;
    }
    Ok(())
}

/// Hands on one part and moves a divided document's fate along.
fn hand_on(
    fate: &mut Fate,
    Part { text, last }: Part<'_>,
    visit: &mut dyn FnMut(Split, &str, bool) -> Result<(), DataError>,
) -> Result<(), DataError> {
    match *fate {
        Fate::Skip => Ok(()),
        Fate::Train => visit(Split::Train, text, last),
        Fate::Validation => visit(Split::Validation, text, last),
        Fate::DividedAt(at) if at > text.len() as u64 => {
            *fate = Fate::DividedAt(at - text.len() as u64);
            visit(Split::Train, text, last)
        }
        Fate::DividedAt(at) => {
            *fate = Fate::Validation;
            let end = cut(text, at as usize).unwrap_or(text.len());
            visit(Split::Train, &text[..end], true)?;
            if end < text.len() { visit(Split::Validation, &text[end..], last) } else { Ok(()) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sized(lengths: &[u64]) -> Vec<Surveyed> {
        let document = |(number, bytes): (usize, &u64)| Surveyed { bytes: *bytes, ..surveyed(&Sha256::digest([number as u8]), 0) };
        lengths.iter().enumerate().map(document).collect()
    }

    fn count(fates: &[Fate], wanted: Fate) -> usize {
        fates.iter().filter(|fate| **fate == wanted).count()
    }

    #[test]
    fn the_held_out_share_is_exact_and_never_all_or_nothing() {
        for (documents, fraction, expected) in
            [(100, 0.05, 5), (100, 0.001, 1), (2, 0.99, 1), (2, 0.01, 1), (50, 0.0, 0), (1, 0.0, 0)]
        {
            let fates = choose(&sized(&vec![10; documents]), None, fraction);
            assert_eq!(count(&fates, Fate::Validation), expected, "{documents} × {fraction}");
            assert_eq!(count(&fates, Fate::Train), documents - expected, "{documents} × {fraction}");
        }
    }

    #[test]
    fn a_limit_takes_whole_documents_from_everywhere() {
        let documents = sized(&[10; 200]);
        let fates = choose(&documents, Some(1_005), 0.0);
        assert_eq!(count(&fates, Fate::Train), 100);
        assert!((20..80).contains(&count(&fates[..100], Fate::Train)), "not the first hundred");
        assert_eq!(count(&choose(&documents, Some(1), 0.0), Fate::Train), 1, "one document at least");
    }

    #[test]
    fn a_single_document_is_divided() {
        assert_eq!(choose(&sized(&[1_000]), None, 0.25), [Fate::DividedAt(750)]);
        let mut handed = Vec::new();
        let mut fate = Fate::DividedAt(12);
        let parts = [("first words", false), (" and some more", false), (" the end", true)];
        for (text, last) in parts {
            let mut record = |split: Split, text: &str, last| {
                handed.push((split, text.to_owned(), last));
                Ok(())
            };
            hand_on(&mut fate, Part { text, last }, &mut record).unwrap();
        }
        let expected = [
            (Split::Train, "first words", false),
            (Split::Train, " and", true),
            (Split::Validation, " some more", false),
            (Split::Validation, " the end", true),
        ];
        assert_eq!(handed, expected.map(|(split, text, last)| (split, text.to_owned(), last)));
    }
}
