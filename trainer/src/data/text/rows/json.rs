//! Rows of JSON: an object a line, as JSON Lines has it, a list of objects, or objects over several lines one after another.
//!
//! Only the wanted column is read: whatever else a row has is passed over, as long as it can be seen where it ends. Python writes
//! `NaN`, and a million columns have a broken character somewhere.

use std::borrow::Cow;
use std::io::{BufRead, BufReader, Cursor, Read};
use std::path::Path;

use serde::de::IgnoredAny;

use super::{DEFAULT, LONGEST_ROW, Table};
use crate::data::DataError;
use crate::data::text::documents::{Findings, Reading, Visit};
use crate::data::text::source::{Source, failed};
use crate::settings::OnBadRow;

/// Columns of the widest row.
const MOST_COLUMNS: usize = 10_000;
/// The byte-order mark of UTF-8.
const MARK: &[u8] = "\u{feff}".as_bytes();

type Content = BufReader<Box<dyn Read>>;

/// Lines, or values wherever they begin and end: the first of them tells.
pub fn json(path: &Path, source: Source, reading: &Reading<'_>, visit: &mut Visit<'_>) -> Result<Findings, DataError> {
    // Where bad rows are left out, a first row without the usual column is one of them, and decides nothing for those after it.
    let is_open = reading.column.is_none() && reading.on_bad_row == OnBadRow::Skip;
    let column = if is_open && has_usual_column(path, reading) { Some(DEFAULT) } else { reading.column };
    rows(path, source, &Reading { column, ..*reading }, visit)
}

/// Whether some row has a text in the usual column. As a rule the first has, and no other is read.
fn has_usual_column(path: &Path, reading: &Reading<'_>) -> bool {
    let Ok(source) = Source::open(path) else { return false };
    let mut is_found = false;
    let usual = Reading { column: Some(DEFAULT), ..*reading };
    // An error comes again when the rows are read.
    let _ended = rows(path, source, &usual, &mut |_| {
        is_found = true;
        Err(DataError::Changed { path: path.to_owned() })
    });
    is_found
}

fn rows(path: &Path, source: Source, reading: &Reading<'_>, visit: &mut Visit<'_>) -> Result<Findings, DataError> {
    let mut table = Table::new(path, reading);
    let mut content = BufReader::with_capacity(1 << 20, source.content);
    let mark = if source.beginning.starts_with(MARK) { MARK.len() } else { 0 };
    content.by_ref().read_exact(&mut vec![0; mark]).map_err(|error| failed(path, &error))?;
    if source.beginning[mark..].trim_ascii_start().starts_with(b"[") {
        values(&mut table, Values { content, is_list: true, line: 1 }, visit)?;
    } else {
        lines(&mut table, content, visit)?;
    }
    table.finish()
}

/// Lines, each an object; empty lines are skipped.
fn lines(table: &mut Table<'_>, mut content: Content, visit: &mut Visit<'_>) -> Result<(), DataError> {
    let path = table.path;
    let mut line = Vec::new();
    for number in 1_u64.. {
        line.clear();
        let mut rest = content.by_ref().take(LONGEST_ROW as u64 + 1);
        if rest.read_until(b'\n', &mut line).map_err(|error| failed(path, &error))? == 0 {
            break;
        }
        let place = || format!("line {number}");
        if line.len() > LONGEST_ROW {
            table.bad(table.too_long(place()))?;
            content.skip_until(b'\n').map_err(|error| failed(path, &error))?;
            continue;
        }
        let row = line.trim_ascii();
        if row.is_empty() {
            continue;
        }
        if table.kept == 0 && table.left_out == 0 && goes_on(row) {
            let following = following(&mut content).map_err(|error| failed(path, &error))?;
            if !stands_alone(&following) {
                let content = before([line, following].concat(), content);
                return values(table, Values { content, is_list: false, line: number }, visit);
            }
            // This line was cut, and each of the others is a row.
            content = before(following, content);
        }
        let text = text_of(table, row, &place());
        // Looked for where one object was not found: as a rule there is one.
        let rows = if text.is_err() { several(row) } else { None };
        match rows {
            None => table.row(text, place, visit)?,
            Some(rows) => {
                for row in rows {
                    let text = text_of(table, row, &place());
                    table.row(text, place, visit)?;
                }
            }
        }
    }
    Ok(())
}

/// The objects of a line that has more than one and nothing else: some programs write no line feed after an object.
fn several(line: &[u8]) -> Option<Vec<&[u8]>> {
    let (mut scan, mut found) = (Scan::new(line), Vec::new());
    while scan.rest.trim_ascii_start().starts_with(b"{") {
        found.push(scan.taken(|scan| scan.value().then_some(()))?);
    }
    (found.len() > 1 && scan.rest.trim_ascii().is_empty()).then_some(found)
}

/// The next line that is not empty, with the empty ones before it.
fn following(content: &mut Content) -> std::io::Result<Vec<u8>> {
    let mut lines = Vec::new();
    let mut rest = content.by_ref().take(LONGEST_ROW as u64 + 1);
    while lines.trim_ascii().is_empty() && rest.read_until(b'\n', &mut lines)? > 0 {}
    Ok(lines)
}

/// The bytes that were read already, and the rest.
fn before(read: Vec<u8>, rest: Content) -> Content {
    BufReader::with_capacity(1 << 20, Box::new(Cursor::new(read).chain(rest)))
}

/// Values of a list, or one after another.
fn values(table: &mut Table<'_>, mut values: Values, visit: &mut Visit<'_>) -> Result<(), DataError> {
    let mut row = Vec::new();
    for number in 1_u64.. {
        let line = values.line;
        let found = values.next(number == 1, &mut row).map_err(|fault| match fault {
            Fault::Reading(error) => failed(table.path, &error),
            Fault::TooLong => table.too_long(format!("row {number}")),
            Fault::Structure(reason) => table.malformed(format!("line {}", values.line.max(line)), &reason),
        })?;
        if !found {
            break;
        }
        let place = || format!("row {number}");
        let text = text_of(table, &row, &place());
        table.row(text, place, visit)?;
    }
    Ok(())
}

/// The text in the wanted column of a row.
fn text_of<'r>(table: &mut Table<'_>, row: &'r [u8], place: &str) -> Result<Cow<'r, str>, DataError> {
    // A list of texts alone has one column.
    let columns = if row.starts_with(b"\"") { Ok(vec![(Cow::Borrowed(DEFAULT), row)]) } else { columns(row) };
    let columns = columns.map_err(|reason| table.malformed(place.to_owned(), &reason))?;
    if columns.is_empty() {
        return Err(table.malformed(place.to_owned(), &"it has no columns"));
    }
    let names: Vec<Cow<'_, str>> = columns.iter().map(|(name, _)| name.clone()).collect();
    let is_first = table.kept == 0 && table.left_out == 0;
    let wrapped = |table: &Table<'_>| list_of_rows(&columns, table.reading.column).filter(|_| is_first);
    let index = match (table.choose(&names), wrapped(table)) {
        (Ok(index), _) => index,
        (Err(_), Some(column)) => return Err(DataError::WrappedRows { path: table.path.to_owned(), column }),
        (Err(error), None) => return Err(in_line(error, place)),
    };
    // The last of several of one name.
    let value = columns.iter().rfind(|(name, _)| *name == names[index]).map_or(&b"null"[..], |(_, value)| *value);
    if value == b"null" {
        table.nulls += 1;
        return Ok(Cow::Borrowed(""));
    }
    if !value.starts_with(b"\"") {
        if let Some(column) = wrapped(table) {
            return Err(DataError::WrappedRows { path: table.path.to_owned(), column });
        }
        return Err(table.not_text(&names[index], place.to_owned()));
    }
    let value = std::str::from_utf8(value).map_err(|_| table.not_utf8(place.to_owned()))?;
    decoded(value).map_err(|error| table.malformed(place.to_owned(), &plain(&error)))
}

/// The column of an object that has all rows, as `{"data": [{"text": …}]}`. The turns of a conversation are a list in a row, too.
fn list_of_rows(columns: &Columns<'_>, wanted: Option<&str>) -> Option<String> {
    let has_rows = |name: &str, value: &[u8]| {
        let mut scan = Scan::new(value);
        let first = scan.byte(b'[').and_then(|()| scan.taken(|scan| scan.value().then_some(())));
        let row = first.and_then(|first| self::columns(first).ok()).unwrap_or_default();
        row.iter().any(|(inner, _)| name == "data" || inner == wanted.unwrap_or(DEFAULT))
    };
    columns.iter().find(|(name, value)| has_rows(name, value)).map(|(name, _)| name.to_string())
}

/// A string of JSON without its quotation marks and escapes.
fn decoded(string: &str) -> serde_json::Result<Cow<'_, str>> {
    let inner = string.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
    match inner.filter(|inner| inner.bytes().all(|byte| !matches!(byte, b'\\' | b'"') && byte >= b' ')) {
        Some(inner) => Ok(Cow::Borrowed(inner)),
        None => serde_json::from_str::<String>(string).map(Cow::Owned),
    }
}

/// In a JSON file each row has its own columns, so an error about them names the line.
fn in_line(error: DataError, place: &str) -> DataError {
    match error {
        DataError::UnknownColumn { path, column, columns } => {
            DataError::MissingColumn { path, column, place: place.to_owned(), columns }
        }
        other => other,
    }
}

/// The library counts lines from this one, and means half of a surrogate pair by an escape that ends or is alone.
fn plain(error: &serde_json::Error) -> String {
    const HALF: &str = "half of a surrogate pair, which is no character,";
    let said = error.to_string().replace(" at line 1 column", " at column");
    ["unexpected end of hex escape", "lone leading surrogate in hex escape"].iter().fold(said, |said, odd| said.replace(odd, HALF))
}

/// Whether a line is the beginning of an object that ends in another. A string ends in its own.
fn goes_on(row: &[u8]) -> bool {
    let is_part = || serde_json::from_slice::<IgnoredAny>(row).is_err_and(|error| error.is_eof());
    row.starts_with(b"{") && !Scan::new(row).value() && is_part() && !ends_in_string(row)
}

fn ends_in_string(row: &[u8]) -> bool {
    let (mut is_string, mut is_escaped) = (false, false);
    for byte in row {
        is_string ^= *byte == b'"' && !is_escaped;
        is_escaped = *byte == b'\\' && !is_escaped;
    }
    is_string
}

/// Whether a line is an object by itself.
fn stands_alone(line: &[u8]) -> bool {
    Scan::new(line.trim_ascii()).members().is_some()
}

/// Names, and values as they stand there.
type Columns<'r> = Vec<(Cow<'r, str>, &'r [u8])>;

/// The names of a row's columns and what is in them, as they are written.
fn columns(row: &[u8]) -> Result<Columns<'_>, String> {
    let mut scan = Scan::new(row);
    match scan.members() {
        Some(found) if found.len() > MOST_COLUMNS => Err(format!("it has more than {MOST_COLUMNS} columns")),
        Some(found) => Ok(found),
        // The library says better what is wrong.
        None => Err(match serde_json::from_slice::<serde_json::Map<String, serde_json::Value>>(row) {
            Err(error) => plain(&error),
            Ok(_) => "it is not an object".to_owned(),
        }),
    }
}

/// A look over one value that is in memory, without recursion.
struct Scan<'a> {
    rest: &'a [u8],
}

impl<'a> Scan<'a> {
    fn new(rest: &'a [u8]) -> Self {
        Self { rest }
    }

    /// The members of an object that takes all of the row, one more than are allowed at most; `None` when it is none.
    fn members(&mut self) -> Option<Vec<(Cow<'a, str>, &'a [u8])>> {
        let mut found = Vec::new();
        self.byte(b'{')?;
        if self.byte(b'}').is_none() {
            loop {
                let name = self.taken(Self::string)?;
                self.byte(b':')?;
                let value = self.taken(|scan| scan.value().then_some(()))?;
                let name = match std::str::from_utf8(name).ok().and_then(|name| decoded(name).ok()) {
                    Some(name) => name,
                    None => String::from_utf8_lossy(name),
                };
                found.push((name, value));
                if found.len() > MOST_COLUMNS {
                    return Some(found);
                }
                if self.byte(b',').is_none() {
                    break;
                }
            }
            self.byte(b'}')?;
        }
        self.rest.trim_ascii().is_empty().then_some(found)
    }

    fn byte(&mut self, wanted: u8) -> Option<()> {
        self.rest = self.rest.trim_ascii_start().strip_prefix(&[wanted])?;
        Some(())
    }

    /// The bytes that `step` goes over.
    fn taken(&mut self, step: impl FnOnce(&mut Self) -> Option<()>) -> Option<&'a [u8]> {
        let start = self.rest.trim_ascii_start();
        self.rest = start;
        step(self)?;
        start.get(..start.len() - self.rest.len())
    }

    fn string(&mut self) -> Option<()> {
        self.rest = self.rest.strip_prefix(b"\"")?;
        loop {
            let at = self.rest.iter().position(|byte| matches!(byte, b'"' | b'\\') || *byte < b' ')?;
            let (byte, rest) = self.rest[at..].split_first()?;
            self.rest = rest;
            match byte {
                b'"' => return Some(()),
                b'\\' => self.rest = self.rest.get(1..)?,
                _ => return None,
            }
        }
    }

    /// Goes over a value, of which the brackets have to fit and nothing more.
    fn value(&mut self) -> bool {
        let mut open = Vec::new();
        loop {
            self.rest = self.rest.trim_ascii_start();
            let is_passed = match self.rest.first() {
                Some(b'"') => self.string(),
                Some(bracket @ (b'{' | b'[')) => {
                    open.push(if *bracket == b'{' { b'}' } else { b']' });
                    self.byte(*bracket)
                }
                Some(bracket @ (b'}' | b']')) if open.last() == Some(bracket) => {
                    open.pop();
                    self.byte(*bracket)
                }
                Some(mark @ (b',' | b':')) if !open.is_empty() => self.byte(*mark),
                _ => self.word(),
            };
            if is_passed.is_none() || open.is_empty() {
                return is_passed.is_some();
            }
        }
    }

    /// A number, a truth value, nothing, or what Python writes for the numbers that are none.
    fn word(&mut self) -> Option<()> {
        let end = self.rest.iter().position(|byte| !(byte.is_ascii_alphanumeric() || b"+-.".contains(byte)));
        let (word, rest) = self.rest.split_at(end.unwrap_or(self.rest.len()));
        self.rest = rest;
        let is_known = matches!(word, b"NaN" | b"Infinity" | b"-Infinity");
        (is_known || serde_json::from_slice::<IgnoredAny>(word).is_ok()).then_some(())
    }
}

/// The values of a stream.
struct Values {
    content: Content,
    is_list: bool,
    line: u64,
}

/// Why there is no next value.
enum Fault {
    Reading(std::io::Error),
    TooLong,
    Structure(&'static str),
}

impl Values {
    /// The next value; `false` after the last.
    fn next(&mut self, is_first: bool, value: &mut Vec<u8>) -> Result<bool, Fault> {
        value.clear();
        if self.is_list {
            let mut mark = self.solid()?;
            if is_first {
                self.content.consume(1);
                mark = self.solid()?;
            }
            match mark {
                Some(b']') => return self.end(),
                Some(b',') if !is_first => self.content.consume(1),
                Some(_) if is_first => {}
                Some(_) => return Err(Fault::Structure("there is no comma between two rows")),
                None => return Err(Fault::Structure("the list never ends")),
            }
        }
        match self.solid()? {
            None if self.is_list => Err(Fault::Structure("the list never ends")),
            None => Ok(false),
            Some(_) => self.take(value).map(|()| true),
        }
    }

    /// After a list there is nothing.
    fn end(&mut self) -> Result<bool, Fault> {
        self.content.consume(1);
        if self.solid()?.is_none() { Ok(false) } else { Err(Fault::Structure("there is more after the list")) }
    }

    fn peek(&mut self) -> Result<Option<u8>, Fault> {
        Ok(self.content.fill_buf().map_err(Fault::Reading)?.first().copied())
    }

    /// The next byte that is no white space, which is not consumed.
    fn solid(&mut self) -> Result<Option<u8>, Fault> {
        while let Some(byte) = self.peek()? {
            if !byte.is_ascii_whitespace() {
                return Ok(Some(byte));
            }
            self.line += u64::from(byte == b'\n');
            self.content.consume(1);
        }
        Ok(None)
    }

    /// Takes bytes until all brackets and quotation marks are closed.
    fn take(&mut self, value: &mut Vec<u8>) -> Result<(), Fault> {
        let (mut depth, mut is_string, mut is_escaped) = (0_usize, false, false);
        while let Some(byte) = self.peek()? {
            let ends_word =
                depth == 0 && !is_string && !value.is_empty() && (byte.is_ascii_whitespace() || matches!(byte, b',' | b']' | b'}'));
            if ends_word {
                return Ok(());
            }
            if value.len() == LONGEST_ROW {
                return Err(Fault::TooLong);
            }
            self.content.consume(1);
            self.line += u64::from(byte == b'\n');
            value.push(byte);
            match byte {
                _ if is_escaped => is_escaped = false,
                b'\\' if is_string => is_escaped = true,
                b'"' => is_string = !is_string,
                b'{' | b'[' if !is_string => depth += 1,
                b'}' | b']' if !is_string => {
                    depth = depth
                        .checked_sub(1)
                        .ok_or(Fault::Structure("a bracket closes where a row should begin, as after a comma too many"))?;
                }
                _ => {}
            }
            if depth == 0 && !is_string && matches!(byte, b'"' | b'}' | b']') {
                return Ok(());
            }
        }
        if depth == 0 && !is_string { Ok(()) } else { Err(Fault::Structure("the file ends inside a row")) }
    }
}
