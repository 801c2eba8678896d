//! Documents that are rows of a table: csv, JSON and parquet.

mod csv;
mod json;
mod parquet;

use std::borrow::Cow;
use std::path::Path;

use super::documents::{Findings, Part, Reading, Visit};
use crate::data::DataError;
use crate::settings::OnBadRow;

pub use csv::csv;
pub use json::json;
pub use parquet::parquet;

/// The column to take when none is named.
const DEFAULT: &str = "text";
/// Bytes of the longest row. A row is held in memory, several times; longer texts are files of their own.
const LONGEST_ROW: usize = 32 << 20;

/// A table's file, and its rows until now.
struct Table<'a> {
    path: &'a Path,
    reading: &'a Reading<'a>,
    /// The column of the whole file, once a row had one.
    column: Option<String>,
    /// Rows of which something could be made.
    kept: u64,
    left_out: u64,
    /// Rows with fewer fields than the header.
    short: u64,
    /// Rows whose text is null.
    nulls: u64,
    /// The error of the first row that was left out.
    first: Option<DataError>,
}

impl<'a> Table<'a> {
    fn new(path: &'a Path, reading: &'a Reading<'a>) -> Self {
        Self { path, reading, column: None, kept: 0, left_out: 0, short: 0, nulls: 0, first: None }
    }

    /// Index of the column among those that the table, or one row of it, has: the same column in every row.
    fn choose(&mut self, columns: &[Cow<'_, str>]) -> Result<usize, DataError> {
        let index_of = |wanted: &str| columns.iter().position(|name| name == wanted);
        let path = || self.path.to_owned();
        let names = || columns.iter().map(|name| (*name).to_string()).collect();
        let wanted = self.reading.column.or(self.column.as_deref());
        let index = match (wanted, wanted.or(Some(DEFAULT)).and_then(index_of)) {
            // The only column was taken for the text until one came that is called so.
            (Some(taken), _) if self.reading.column.is_none() && taken != DEFAULT && index_of(DEFAULT).is_some() => {
                return Err(DataError::ColumnsDiffer { path: path(), column: taken.to_owned(), columns: names() });
            }
            (_, Some(index)) => index,
            (Some(column), None) => {
                return Err(DataError::UnknownColumn { path: path(), column: column.to_owned(), columns: names() });
            }
            (None, None) if columns.len() == 1 => 0,
            (None, None) => return Err(DataError::AmbiguousColumn { path: path(), columns: names() }),
        };
        if self.column.is_none() {
            self.column = Some(columns[index].to_string());
        }
        Ok(index)
    }

    fn malformed(&self, place: String, reason: &dyn std::fmt::Display) -> DataError {
        DataError::Malformed { path: self.path.to_owned(), place, reason: reason.to_string() }
    }

    fn not_text(&self, column: &str, place: String) -> DataError {
        DataError::NotText { path: self.path.to_owned(), column: column.to_owned(), place }
    }

    fn not_utf8(&self, place: String) -> DataError {
        DataError::InvalidUtf8Row { path: self.path.to_owned(), place }
    }

    fn too_long(&self, place: String) -> DataError {
        self.malformed(place, &format!("a row has {} MiB at most; put a longer text into a file of its own", LONGEST_ROW >> 20))
    }

    /// Hands one row's text on; an empty one is no document.
    fn row(
        &mut self,
        text: Result<Cow<'_, str>, DataError>,
        place: impl FnOnce() -> String,
        visit: &mut Visit<'_>,
    ) -> Result<(), DataError> {
        match text.and_then(|text| self.usable(text, place)) {
            Ok(text) => {
                self.kept += 1;
                if text.is_empty() { Ok(()) } else { visit(Part { text: &text, last: true }) }
            }
            Err(error) => self.bad(error),
        }
    }

    fn usable<'t>(&self, text: Cow<'t, str>, place: impl FnOnce() -> String) -> Result<Cow<'t, str>, DataError> {
        if text.contains('\0') {
            return Err(DataError::NulByteRow { path: self.path.to_owned(), place: place() });
        }
        if text.len() > LONGEST_ROW { Err(self.too_long(place())) } else { Ok(text) }
    }

    /// A row of which nothing can be made.
    fn bad(&mut self, error: DataError) -> Result<(), DataError> {
        if self.reading.on_bad_row == OnBadRow::Fail {
            // A first row without the wanted text has the form of all: to leave such rows out leaves none.
            let is_form =
                matches!(error, DataError::AmbiguousColumn { .. } | DataError::NotText { .. } | DataError::WrappedRows { .. });
            return Err(if is_form && self.kept == 0 { error } else { DataError::BadRow(Box::new(error)) });
        }
        self.left_out += 1;
        self.first.get_or_insert(error);
        Ok(())
    }

    /// A file of which most rows are bad is none with a few of them.
    fn finish(self) -> Result<Findings, DataError> {
        let first = self.first.map(|error| error.to_string());
        if let Some(first) = first.clone().filter(|_| self.left_out > self.kept) {
            let rows = self.left_out + self.kept;
            return Err(DataError::MostRowsBad { path: self.path.to_owned(), left_out: self.left_out, rows, first });
        }
        Ok(Findings {
            left_out: self.left_out,
            first,
            short: self.short,
            nulls: self.nulls,
            column: self.column,
            ..Findings::default()
        })
    }
}
