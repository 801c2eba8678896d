//! Documents that are rows of a table: csv, jsonl and parquet.

use std::cell::Cell;
use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Seek, SeekFrom};
use std::path::Path;

use parquet::basic::Type;
use parquet::column::reader::ColumnReaderImpl;
use parquet::data_type::{ByteArray, ByteArrayType};
use parquet::errors::ParquetError;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::schema::types::ColumnDescPtr;
use serde::de::{DeserializeSeed, Error as _, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::delta::Checked;
use super::documents::{Part, Visit};
use super::pages;
use crate::data::DataError;

/// The column to take when none is named.
const DEFAULT: &str = "text";
/// Bytes of the longest row. A row is held in memory, several times; longer texts are files of their own.
const LONGEST_ROW: usize = 32 << 20;
/// Columns of the widest row of a jsonl file.
const MOST_COLUMNS: usize = 10_000;
/// A byte of a parquet file stands for so many rows and bytes of text at most, ...
const ROWS_A_BYTE: u64 = 16;
const TEXT_A_BYTE: u64 = 1_000;
/// ... on top of so many.
const MANY: u64 = 1 << 20;

/// A table's file and the column that the user wants of it.
struct Table<'a> {
    path: &'a Path,
    column: Option<&'a str>,
}

impl Table<'_> {
    /// Index of the column among those that the table has.
    fn choose(&self, columns: &[String]) -> Result<usize, DataError> {
        let path = self.path.to_owned();
        match (self.column, columns.iter().position(|name| name == self.column.unwrap_or(DEFAULT))) {
            (_, Some(index)) => Ok(index),
            (Some(column), None) => Err(DataError::UnknownColumn { path, column: column.to_owned(), columns: columns.to_vec() }),
            (None, None) if columns.len() == 1 => Ok(0),
            (None, None) => Err(DataError::AmbiguousColumn { path, columns: columns.to_vec() }),
        }
    }

    fn malformed(&self, place: String, reason: &dyn std::fmt::Display) -> DataError {
        DataError::Malformed { path: self.path.to_owned(), place, reason: reason.to_string() }
    }

    fn not_text(&self, column: &str, place: String) -> DataError {
        DataError::NotText { path: self.path.to_owned(), column: column.to_owned(), place }
    }

    /// Hands one row's text on; an empty one is no document.
    fn document(&self, text: &str, place: impl FnOnce() -> String, visit: &mut Visit<'_>) -> Result<(), DataError> {
        if text.contains('\0') {
            return Err(DataError::NulByteRow { path: self.path.to_owned(), place: place() });
        }
        if text.len() > LONGEST_ROW {
            return Err(self.too_long(place()));
        }
        if text.is_empty() { Ok(()) } else { visit(Part { text, last: true }) }
    }

    fn too_long(&self, place: String) -> DataError {
        self.malformed(place, &format!("a row has {} MiB at most; put a longer text into a file of its own", LONGEST_ROW >> 20))
    }
}

/// Rows of a csv file with a header line; a field may be quoted and hold line ends.
pub fn csv(path: &Path, file: File, column: Option<&str>, visit: &mut Visit<'_>) -> Result<(), DataError> {
    let table = Table { path, column };
    let since = Cell::new(0);
    let mut reader = csv::Reader::from_reader(Metered { file: BufReader::with_capacity(1 << 20, file), since: &since });
    let columns: Vec<String> = match reader.headers() {
        Ok(headers) => headers.iter().map(str::to_owned).collect(),
        Err(error) => return Err(csv_error(&table, &error, None)),
    };
    if columns.is_empty() {
        return Ok(());
    }
    let index = table.choose(&columns)?;
    let mut last = csv::Position::new();
    for record in reader.records() {
        let record = record.map_err(|error| csv_error(&table, &error, Some(&last)))?;
        if let Some(position) = record.position() {
            last = position.clone();
        }
        since.set(0);
        table.document(&record[index], || format!("line {}", last.line()), visit)?;
    }
    check_quotes(&table, reader.into_inner().file.into_inner(), &last)
}

/// A csv file of which a row may have [`LONGEST_ROW`] bytes: a quotation mark that is never closed makes the rest of the file one.
struct Metered<'a> {
    file: BufReader<File>,
    /// Bytes since the last row ended.
    since: &'a Cell<usize>,
}

impl Read for Metered<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read(buffer)?;
        self.since.set(self.since.get() + read);
        if self.since.get() > LONGEST_ROW { Err(ErrorKind::FileTooLarge.into()) } else { Ok(read) }
    }
}

/// A quotation mark that is never closed makes the rest of the file one field, which the library takes as it is.
fn check_quotes(table: &Table<'_>, mut file: File, last: &csv::Position) -> Result<(), DataError> {
    let mut record = Vec::new();
    let read = file.seek(SeekFrom::Start(last.byte())).and_then(|_| file.read_to_end(&mut record));
    read.map_err(|error| DataError::reading(table.path, error))?;
    let (mut quoted, mut opens) = (false, true);
    for byte in record {
        match (quoted, byte) {
            (true, b'"') => (quoted, opens) = (false, true),
            (false, b'"') if opens => quoted = true,
            (false, _) => opens = matches!(byte, b',' | b'\n' | b'\r'),
            (true, _) => {}
        }
    }
    if quoted { Err(table.malformed(format!("line {}", last.line()), &"a quotation mark is never closed")) } else { Ok(()) }
}

fn csv_error(table: &Table<'_>, error: &csv::Error, last: Option<&csv::Position>) -> DataError {
    let line = |position: &Option<csv::Position>| format!("line {}", position.as_ref().map_or(1, csv::Position::line));
    match error.kind() {
        csv::ErrorKind::Io(source) if source.kind() == ErrorKind::FileTooLarge => table.too_long(line(&last.cloned())),
        csv::ErrorKind::Io(source) => DataError::reading(table.path, std::io::Error::from(source.kind())),
        csv::ErrorKind::Utf8 { pos, .. } => DataError::InvalidUtf8Row { path: table.path.to_owned(), place: line(pos) },
        csv::ErrorKind::UnequalLengths { pos, expected_len, len } => {
            table.malformed(line(pos), &format!("it has {len} fields, the header has {expected_len}"))
        }
        _ => table.malformed(line(&error.position().cloned()), error),
    }
}

/// Lines of a jsonl file, each an object; empty lines are skipped.
pub fn jsonl(path: &Path, file: File, column: Option<&str>, visit: &mut Visit<'_>) -> Result<(), DataError> {
    let table = Table { path, column };
    let mut reader = BufReader::with_capacity(1 << 20, file);
    let mut line = Vec::new();
    for number in 1_u64.. {
        line.clear();
        let mut rest = reader.by_ref().take(LONGEST_ROW as u64 + 1);
        if rest.read_until(b'\n', &mut line).map_err(|error| DataError::reading(path, error))? == 0 {
            break;
        }
        let place = || format!("line {number}");
        if line.len() > LONGEST_ROW {
            return Err(table.too_long(place()));
        }
        if !line.trim_ascii().is_empty() {
            let text = jsonl_text(&table, &line, &place())?;
            table.document(&text, place, visit)?;
        }
    }
    Ok(())
}

fn jsonl_text(table: &Table<'_>, line: &[u8], place: &str) -> Result<String, DataError> {
    let Ok(text) = std::str::from_utf8(line) else {
        return Err(DataError::InvalidUtf8Row { path: table.path.to_owned(), place: place.to_owned() });
    };
    // The library counts lines from this one.
    let reason = |error: serde_json::Error| error.to_string().replace(" at line 1 column", " at column");
    let text = text.trim_end();
    let Columns(columns) = serde_json::from_str(text).map_err(|error| table.malformed(place.to_owned(), &reason(error)))?;
    let column = table.choose(&columns).map(|index| &columns[index]).map_err(|error| in_line(error, place))?;
    let value = Value(column).deserialize(&mut serde_json::Deserializer::from_str(text));
    value.map_err(|_| table.not_text(column, place.to_owned()))
}

/// The names of a row's columns. The contents of unwanted columns may be large, and are passed over.
struct Columns(Vec<String>);

impl<'de> Deserialize<'de> for Columns {
    fn deserialize<D: Deserializer<'de>>(row: D) -> Result<Self, D::Error> {
        row.deserialize_map(Self(Vec::new()))
    }
}

impl<'de> Visitor<'de> for Columns {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map")
    }

    fn visit_map<M: MapAccess<'de>>(mut self, mut row: M) -> Result<Self, M::Error> {
        while let Some((name, IgnoredAny)) = row.next_entry()? {
            if self.0.len() == MOST_COLUMNS {
                return Err(M::Error::custom(format_args!("it has more than {MOST_COLUMNS} columns")));
            }
            self.0.push(name);
        }
        Ok(self)
    }
}

/// The text in the column of this name, the last if there are several; a null is an empty text.
struct Value<'a>(&'a str);

impl<'de> DeserializeSeed<'de> for Value<'_> {
    type Value = String;

    fn deserialize<D: Deserializer<'de>>(self, row: D) -> Result<String, D::Error> {
        row.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Value<'_> {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut row: M) -> Result<String, M::Error> {
        let mut text = String::new();
        while let Some(name) = row.next_key::<String>()? {
            if name == self.0 {
                text = row.next_value::<Option<String>>()?.unwrap_or_default();
            } else {
                row.next_value::<IgnoredAny>()?;
            }
        }
        Ok(text)
    }
}

/// In a jsonl file each row has its own columns, so an error about them names the line.
fn in_line(error: DataError, place: &str) -> DataError {
    match error {
        DataError::UnknownColumn { path, column, columns } => {
            DataError::MissingColumn { path, column, place: place.to_owned(), columns }
        }
        other => other,
    }
}

/// Rows of a parquet file.
pub fn parquet(path: &Path, file: File, column: Option<&str>, visit: &mut Visit<'_>) -> Result<(), DataError> {
    let table = Table { path, column };
    let structure = |reason: &dyn std::fmt::Display| table.malformed("its structure".into(), reason);
    let broken = |error: ParquetError| structure(&plain(&error));
    let reading = |error| DataError::reading(path, error);
    let (length, pages) = (file.metadata().map_err(reading)?.len(), file.try_clone().map_err(reading)?);
    let reader = SerializedFileReader::new(file).map_err(broken)?;
    let schema = reader.metadata().file_metadata().schema_descr();
    let columns: Vec<String> = schema.root_schema().get_fields().iter().map(|field| field.name().to_owned()).collect();
    let index = table.choose(&columns)?;
    let not_text = || table.not_text(&columns[index], "row 1".to_owned());
    let is_chosen = |column: &ColumnDescPtr| column.path().parts() == [columns[index].as_str()] && column.max_rep_level() == 0;
    let leaf = schema.columns().iter().position(is_chosen).ok_or_else(not_text)?;
    let descriptor = schema.column(leaf);
    if descriptor.physical_type() != Type::BYTE_ARRAY {
        return Err(not_text());
    }
    let mut rows = Rows { table: &table, column: &columns[index], number: 0, bytes: 0, length };
    for group in 0..reader.num_row_groups() {
        pages::check(&pages, reader.metadata().row_group(group).column(leaf)).map_err(|reason| structure(&reason))?;
        let pages = reader.get_row_group(group).and_then(|group| group.get_column_page_reader(leaf)).map_err(broken)?;
        let pages = Checked { pages, has_levels: descriptor.max_def_level() > 0 };
        rows.read(ColumnReaderImpl::new(descriptor.clone(), Box::new(pages)), visit)?;
    }
    Ok(())
}

/// The rows of a parquet file as they are read.
struct Rows<'a> {
    table: &'a Table<'a>,
    column: &'a str,
    /// Number of the row.
    number: u64,
    /// Bytes of text until now, and of the file.
    bytes: u64,
    length: u64,
}

impl Rows<'_> {
    /// One row at a time: a value may be as long as a page, and a page have any number of them.
    fn read(&mut self, mut column: ColumnReaderImpl<ByteArrayType>, visit: &mut Visit<'_>) -> Result<(), DataError> {
        let (mut values, mut levels) = (Vec::new(), Vec::new());
        loop {
            values.clear();
            levels.clear();
            self.number += 1;
            let place = || format!("row {}", self.number);
            let read = column.read_records(1, Some(&mut levels), None, &mut values);
            let (rows, ..) = read.map_err(|error| self.table.malformed(place(), &plain(&error)))?;
            if rows == 0 {
                self.number -= 1;
                return Ok(());
            }
            // A null is an empty text.
            let value = values.first().map_or(&[][..], ByteArray::data);
            let text = std::str::from_utf8(value).map_err(|_| self.table.not_text(self.column, place()))?;
            self.bytes += text.len() as u64;
            if self.number > MANY + self.length.saturating_mul(ROWS_A_BYTE)
                || self.bytes > MANY + self.length.saturating_mul(TEXT_A_BYTE)
            {
                let reason = format!("{} bytes cannot be so much text; it repeats itself to fill the memory", self.length);
                return Err(self.table.malformed(place(), &reason));
            }
            self.table.document(text, place, visit)?;
        }
    }
}

fn plain(error: &ParquetError) -> String {
    match error {
        ParquetError::General(reason) | ParquetError::NYI(reason) | ParquetError::EOF(reason) => reason.clone(),
        other => other.to_string(),
    }
}
