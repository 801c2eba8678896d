//! The documents inside a file: a text file is one, a row of a csv, jsonl or parquet file is one.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use super::rows;
use crate::data::DataError;
use crate::data::tokenizer::last_cut;

/// A text file is handed on in parts of about this many bytes.
const BLOCK: usize = 4 << 20;

/// A stretch of a document. Parts are cut where no token can cross, so they can be encoded one by one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part<'a> {
    pub text: &'a str,
    /// Whether the document ends here.
    pub last: bool,
}

/// The receiver of the parts, in order.
pub type Visit<'a> = dyn FnMut(Part<'_>) -> Result<(), DataError> + 'a;

/// Reads the documents of a file in order. Memory does not grow with a text file, except by the longest stretch without white
/// space. Empty documents are left out.
///
/// `column` names the column of csv, jsonl and parquet rows; without it `text` is taken, else the only one.
pub fn documents(path: &Path, column: Option<&str>, visit: &mut Visit<'_>) -> Result<(), DataError> {
    let file = File::open(path).map_err(|error| DataError::reading(path, error))?;
    let extension = path.extension().map(|extension| extension.to_string_lossy().to_lowercase());
    match extension.as_deref() {
        Some("csv") => rows::csv(path, file, column, visit),
        Some("jsonl" | "ndjson") => rows::jsonl(path, file, column, visit),
        Some("parquet") => rows::parquet(path, file, column, visit),
        _ => text(path, file, visit),
    }
}

fn text(path: &Path, mut file: File, visit: &mut Visit<'_>) -> Result<(), DataError> {
    let mut buffer = Vec::new();
    // Bytes of the file before the buffer.
    let mut offset = 0;
    loop {
        // A stretch without white space is read by doubling, so that it is scanned a bounded number of times.
        let wanted = BLOCK.max(buffer.len()) as u64;
        let read = file.by_ref().take(wanted).read_to_end(&mut buffer).map_err(|error| DataError::reading(path, error))?;
        let end_of_file = (read as u64) < wanted;
        if offset == 0 && buffer.starts_with("\u{feff}".as_bytes()) {
            buffer.drain(..3);
            offset = 3;
        }
        let valid = valid_text(path, offset, &buffer, end_of_file)?;
        if end_of_file {
            return if offset + (valid.len() as u64) == 0 { Ok(()) } else { visit(Part { text: valid, last: true }) };
        }
        let Some(end) = last_cut(valid) else { continue };
        visit(Part { text: &valid[..end], last: false })?;
        buffer.drain(..end);
        offset += end as u64;
    }
}

/// The buffer as text; before the end of the file, without a character that is not complete yet.
fn valid_text<'a>(path: &Path, offset: u64, buffer: &'a [u8], end_of_file: bool) -> Result<&'a str, DataError> {
    if let Some(at) = buffer.iter().position(|byte| *byte == 0) {
        return Err(DataError::NulByte { path: path.to_owned(), offset: offset + at as u64 });
    }
    let error = match std::str::from_utf8(buffer) {
        Ok(text) => return Ok(text),
        Err(error) => error,
    };
    if error.error_len().is_none() && !end_of_file {
        return Ok(std::str::from_utf8(&buffer[..error.valid_up_to()]).unwrap_or_default());
    }
    Err(DataError::InvalidUtf8 { path: path.to_owned(), offset: offset + error.valid_up_to() as u64 })
}
