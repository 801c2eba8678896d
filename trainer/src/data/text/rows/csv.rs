//! Rows of a csv file with a header line; a field may be quoted and hold line ends.

use std::borrow::Cow;
use std::cell::Cell;
use std::io::{self, BufRead, BufReader, ErrorKind, Read};
use std::path::Path;

use super::{LONGEST_ROW, Table};
use crate::data::DataError;
use crate::data::text::documents::{Findings, Reading, Visit};
use crate::data::text::source::failed;

/// Only the wanted column has to be text.
pub fn csv(
    path: &Path,
    content: Box<dyn Read>,
    delimiter: u8,
    reading: &Reading<'_>,
    visit: &mut Visit<'_>,
) -> Result<Findings, DataError> {
    let mut table = Table::new(path, reading);
    let since = Cell::new(0);
    let mut content = BufReader::with_capacity(1 << 20, content);
    let told = told_delimiter(&mut content).map_err(|error| failed(path, &error))?;
    let (delimiter, above) = told.map_or((delimiter, 0), |told| (told, 1));
    let metered = Metered { content, since: &since, quotes: Quotes::new(delimiter) };
    let mut reader = ::csv::ReaderBuilder::new().delimiter(delimiter).flexible(true).from_reader(metered);
    let columns: Vec<String> = match reader.byte_headers() {
        Ok(headers) => headers.iter().map(|name| String::from_utf8_lossy(name).into_owned()).collect(),
        Err(error) => return Err(csv_error(&table, &error, None)),
    };
    if columns.is_empty() {
        return Ok(Findings::default());
    }
    let index = table.choose(&columns.iter().map(Cow::from).collect::<Vec<_>>())?;
    let (mut last, mut record) = (::csv::Position::new(), ::csv::ByteRecord::new());
    loop {
        if !reader.read_byte_record(&mut record).map_err(|error| csv_error(&table, &error, Some(&last)))? {
            break;
        }
        if let Some(position) = record.position() {
            last = position.clone();
        }
        since.set(0);
        // A line of white space alone is an empty one, which the library passes over.
        if record.len() == 1 && record[0].iter().all(|byte| matches!(byte, b' ' | b'\t')) {
            continue;
        }
        let place = || format!("line {}", last.line() + above);
        // As pandas reads them, fields that a row lacks are empty, and what has no name is too much. Only the text has to be there.
        let is_short = record.len() < columns.len();
        let Some(text) = record.get(index).filter(|_| record.len() <= columns.len()) else {
            let reason = format!("it has {} fields, the header has {}", record.len(), columns.len());
            table.bad(table.malformed(place(), &reason))?;
            continue;
        };
        table.short += u64::from(is_short);
        let text = std::str::from_utf8(text).map_err(|_| table.not_utf8(place()));
        table.row(text.map(Cow::Borrowed), place, visit)?;
    }
    if reader.into_inner().quotes.is_open {
        return Err(table.malformed(format!("line {}", last.line() + above), &"a quotation mark is never closed"));
    }
    table.finish()
}

/// The delimiter of a first line `sep=;`, which Excel reads and writes; that line is passed over.
fn told_delimiter(content: &mut impl BufRead) -> io::Result<Option<u8>> {
    const MARK: &[u8] = "\u{feff}".as_bytes();
    let seen = content.fill_buf()?;
    let mark = if seen.starts_with(MARK) { MARK.len() } else { 0 };
    let line = seen[mark..].split_inclusive(|byte| *byte == b'\n').next().unwrap_or_default();
    let line_end = line.strip_suffix(b"\n").map(|rest| rest.strip_suffix(b"\r").unwrap_or(rest));
    let Some([b's', b'e', b'p', b'=', delimiter]) = line_end else { return Ok(None) };
    let delimiter = *delimiter;
    let bytes = mark + line.len();
    content.consume(bytes);
    Ok(Some(delimiter))
}

/// A csv file of which a row may have [`LONGEST_ROW`] bytes: a quotation mark that is never closed makes the rest of the file one.
struct Metered<'a> {
    content: BufReader<Box<dyn Read>>,
    /// Bytes since the last row ended.
    since: &'a Cell<usize>,
    quotes: Quotes,
}

impl Read for Metered<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.content.read(buffer)?;
        self.quotes.pass(&buffer[..read]);
        self.since.set(self.since.get() + read);
        if self.since.get() > LONGEST_ROW { Err(ErrorKind::FileTooLarge.into()) } else { Ok(read) }
    }
}

/// Whether the text until now ends inside quotation marks. The library takes the rest of such a file for one field.
struct Quotes {
    delimiter: u8,
    is_open: bool,
    /// The byte before; a quotation mark opens after one of those that end a field, or closes and opens again.
    before: u8,
}

impl Quotes {
    fn new(delimiter: u8) -> Self {
        Self { delimiter, is_open: false, before: b'\n' }
    }

    fn pass(&mut self, bytes: &[u8]) {
        // Whether the byte before is a quotation mark that has just closed.
        let mut closed_at = None;
        for at in bytes.iter().enumerate().filter_map(|(at, byte)| (*byte == b'"').then_some(at)) {
            let before = if at == 0 { self.before } else { bytes[at - 1] };
            if self.is_open {
                (self.is_open, closed_at) = (false, Some(at));
            } else {
                let reopens = before == b'"' && (at == 0 || closed_at == Some(at - 1));
                self.is_open = reopens || before == self.delimiter || matches!(before, b'\n' | b'\r');
            }
        }
        self.before = match bytes.last() {
            // One that did not close is as any other character.
            Some(b'"') if closed_at != Some(bytes.len() - 1) => b'x',
            Some(byte) => *byte,
            None => self.before,
        };
    }
}

fn csv_error(table: &Table<'_>, error: &::csv::Error, last: Option<&::csv::Position>) -> DataError {
    let line = |position: &Option<::csv::Position>| format!("line {}", position.as_ref().map_or(1, ::csv::Position::line));
    match error.kind() {
        ::csv::ErrorKind::Io(source) if source.kind() == ErrorKind::FileTooLarge => table.too_long(line(&last.cloned())),
        ::csv::ErrorKind::Io(source) => failed(table.path, source),
        _ => table.malformed(line(&error.position().cloned()), error),
    }
}
