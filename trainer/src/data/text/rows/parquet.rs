//! Rows of a parquet file.

use std::borrow::Cow;
use std::fs::File;
use std::path::Path;

use parquet::basic::{Compression, ConvertedType, Type};
use parquet::column::reader::ColumnReaderImpl;
use parquet::data_type::{ByteArray, ByteArrayType};
use parquet::errors::ParquetError;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::schema::types::ColumnDescPtr;

use super::Table;
use crate::data::DataError;
use crate::data::text::delta::Checked;
use crate::data::text::documents::{Findings, Reading, Visit};
use crate::data::text::pages;

/// A byte of a parquet file stands for so many rows and bytes of text at most, ...
const ROWS_A_BYTE: u64 = 16;
const TEXT_A_BYTE: u64 = 1_000;
/// ... on top of so many.
const MANY: u64 = 1 << 20;

/// One row at a time is in memory.
pub fn parquet(path: &Path, reading: &Reading<'_>, visit: &mut Visit<'_>) -> Result<Findings, DataError> {
    let mut table = Table::new(path, reading);
    let structure = |reason: &dyn std::fmt::Display| malformed(path, "its structure".into(), reason);
    let broken = |error: ParquetError| structure(&plain(&error));
    let reading = |error| DataError::reading(path, error);
    let file = File::open(path).map_err(reading)?;
    let (length, pages) = (file.metadata().map_err(reading)?.len(), file.try_clone().map_err(reading)?);
    pages::check_footer(&pages).map_err(|reason| structure(&reason))?;
    let reader = SerializedFileReader::new(file).map_err(broken)?;
    let schema = reader.metadata().file_metadata().schema_descr();
    let columns: Vec<String> = schema.root_schema().get_fields().iter().map(|field| field.name().to_owned()).collect();
    let index = table.choose(&columns.iter().map(Cow::from).collect::<Vec<_>>())?;
    let not_text = || table.not_text(&columns[index], "row 1".to_owned());
    let is_chosen = |column: &ColumnDescPtr| column.path().parts() == [columns[index].as_str()] && column.max_rep_level() == 0;
    let leaf = schema.columns().iter().position(is_chosen).ok_or_else(not_text)?;
    let descriptor = schema.column(leaf);
    if descriptor.physical_type() != Type::BYTE_ARRAY {
        return Err(not_text());
    }
    let is_text = descriptor.converted_type() != ConvertedType::NONE || descriptor.logical_type_ref().is_some();
    let mut rows = Rows { table: &mut table, column: &columns[index], is_text, number: 0, bytes: 0, length };
    for group in 0..reader.num_row_groups() {
        let chunk = reader.metadata().row_group(group).column(leaf);
        if let Some(packer) = unknown_packer(chunk.compression()) {
            let what = format!("a parquet file whose pages are packed by {packer}");
            return Err(DataError::OtherContent { path: path.to_owned(), what, fix: "write it with zstd" });
        }
        pages::check(&pages, chunk).map_err(|reason| structure(&reason))?;
        let pages = reader.get_row_group(group).and_then(|group| group.get_column_page_reader(leaf)).map_err(broken)?;
        let pages = Checked { pages, has_levels: descriptor.max_def_level() > 0, has_dictionary: false };
        rows.read(ColumnReaderImpl::new(descriptor.clone(), Box::new(pages)), visit)?;
    }
    table.finish()
}

fn malformed(path: &Path, place: String, reason: &dyn std::fmt::Display) -> DataError {
    DataError::Malformed { path: path.to_owned(), place, reason: reason.to_string() }
}

/// The packer that is compiled into no ftctl, because hardly a program packs with it.
fn unknown_packer(compression: Compression) -> Option<&'static str> {
    match compression {
        Compression::BROTLI(_) => Some("Brotli"),
        Compression::LZO => Some("LZO"),
        _ => None,
    }
}

/// The rows of a parquet file as they are read.
struct Rows<'a, 'b> {
    table: &'a mut Table<'b>,
    column: &'a str,
    /// Whether the file says that its bytes are text.
    is_text: bool,
    /// Number of the row.
    number: u64,
    /// Bytes of text until now, and of the file.
    bytes: u64,
    length: u64,
}

impl Rows<'_, '_> {
    /// One row at a time: a value may be as long as a page, and a page have any number of them.
    fn read(&mut self, mut column: ColumnReaderImpl<ByteArrayType>, visit: &mut Visit<'_>) -> Result<(), DataError> {
        let (mut values, mut levels) = (Vec::new(), Vec::new());
        loop {
            values.clear();
            levels.clear();
            self.number += 1;
            let number = self.number;
            let place = || format!("row {number}");
            let read = column.read_records(1, Some(&mut levels), None, &mut values);
            let (rows, ..) = read.map_err(|error| self.table.malformed(place(), &plain(&error)))?;
            if rows == 0 {
                self.number -= 1;
                return Ok(());
            }
            // A null is an empty text.
            self.table.nulls += u64::from(values.is_empty());
            let value = values.first().map_or(&[][..], ByteArray::data);
            self.bytes += value.len() as u64;
            if self.number > MANY + self.length.saturating_mul(ROWS_A_BYTE)
                || self.bytes > MANY + self.length.saturating_mul(TEXT_A_BYTE)
            {
                let reason = format!("{} bytes cannot be so much text; it repeats itself to fill the memory", self.length);
                return Err(self.table.malformed(place(), &reason));
            }
            let (table, column) = (&self.table, self.column);
            let not_text = |_| if self.is_text { table.not_utf8(place()) } else { table.not_text(column, place()) };
            let text = std::str::from_utf8(value).map_err(not_text);
            self.table.row(text.map(Cow::Borrowed), place, visit)?;
        }
    }
}

fn plain(error: &ParquetError) -> String {
    match error {
        ParquetError::General(reason) | ParquetError::NYI(reason) | ParquetError::EOF(reason) => reason.clone(),
        other => other.to_string(),
    }
}
