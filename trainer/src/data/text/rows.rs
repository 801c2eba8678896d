//! Documents that are rows of a table: csv, jsonl and parquet.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::Path;

use parquet::errors::ParquetError;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::{Field, Row};
use parquet::schema::types::Type;
use serde_json::{Map, Value};

use super::documents::{Part, Visit};
use crate::data::DataError;

/// The column to take when none is named.
const DEFAULT: &str = "text";

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
        if text.is_empty() { Ok(()) } else { visit(Part { text, last: true }) }
    }
}

/// Rows of a csv file with a header line; a field may be quoted and hold line ends.
pub fn csv(path: &Path, file: File, column: Option<&str>, visit: &mut Visit<'_>) -> Result<(), DataError> {
    let table = Table { path, column };
    let mut reader = csv::Reader::from_reader(BufReader::with_capacity(1 << 20, file));
    let columns: Vec<String> = match reader.headers() {
        Ok(headers) => headers.iter().map(str::to_owned).collect(),
        Err(error) => return Err(csv_error(&table, &error)),
    };
    if columns.is_empty() {
        return Ok(());
    }
    let index = table.choose(&columns)?;
    let mut last = csv::Position::new();
    for record in reader.records() {
        let record = record.map_err(|error| csv_error(&table, &error))?;
        if let Some(position) = record.position() {
            last = position.clone();
        }
        table.document(&record[index], || format!("line {}", last.line()), visit)?;
    }
    check_quotes(&table, reader.into_inner().into_inner(), &last)
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

fn csv_error(table: &Table<'_>, error: &csv::Error) -> DataError {
    let line = |position: &Option<csv::Position>| format!("line {}", position.as_ref().map_or(1, csv::Position::line));
    match error.kind() {
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
        if reader.read_until(b'\n', &mut line).map_err(|error| DataError::reading(path, error))? == 0 {
            break;
        }
        let place = || format!("line {number}");
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
    let mut row: Map<String, Value> =
        serde_json::from_str(text.trim_end()).map_err(|error| table.malformed(place.to_owned(), &reason(error)))?;
    let columns: Vec<String> = row.keys().cloned().collect();
    let column = table.choose(&columns).map(|index| &columns[index]).map_err(|error| in_line(error, place))?;
    match row.remove(column) {
        Some(Value::String(text)) => Ok(text),
        Some(Value::Null) => Ok(String::new()),
        _ => Err(table.not_text(column, place.to_owned())),
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
    let broken = |error: ParquetError| table.malformed("its structure".into(), &plain(&error));
    let reader = SerializedFileReader::new(file).map_err(broken)?;
    let schema = reader.metadata().file_metadata().schema();
    let columns: Vec<String> = schema.get_fields().iter().map(|field| field.name().to_owned()).collect();
    let index = table.choose(&columns)?;
    let only = Type::group_type_builder(schema.name()).with_fields(vec![schema.get_fields()[index].clone()]).build();
    let rows = reader.get_row_iter(Some(only.map_err(broken)?)).map_err(broken)?;
    for (row, number) in rows.zip(1_u64..) {
        let place = || format!("row {number}");
        let row = row.map_err(|error| table.malformed(place(), &plain(&error)))?;
        let text = parquet_text(&row).ok_or_else(|| table.not_text(&columns[index], place()))?;
        table.document(text, place, visit)?;
    }
    Ok(())
}

/// The text of a row with one column; a null is an empty text.
fn parquet_text(row: &Row) -> Option<&str> {
    match row.get_column_iter().next()?.1 {
        Field::Str(text) => Some(text),
        Field::Bytes(bytes) => std::str::from_utf8(bytes.data()).ok(),
        Field::Null => Some(""),
        _ => None,
    }
}

fn plain(error: &ParquetError) -> String {
    match error {
        ParquetError::General(reason) | ParquetError::NYI(reason) | ParquetError::EOF(reason) => reason.clone(),
        other => other.to_string(),
    }
}
