//! Opens a file of text: packed by gzip or Zstandard it is read as a stream, and what holds no text is named.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Cursor, ErrorKind, Read, Seek};
use std::path::Path;

use flate2::bufread::GzDecoder;

use crate::data::DataError;
use crate::files::{is_lfs_pointer, wide};

/// Bytes that show what a file is; tar's mark ends at 262.
const BEGINNING: u64 = 512;
/// A packed byte stands for so many of text at most, on top of so many: deflate packs no better, and what does repeats itself.
const TEXT_A_BYTE: u64 = 1_100;
const MANY: u64 = 64 << 20;
/// Bytes with which a member of a gzip file begins.
const GZIP: [u8; 2] = [0x1f, 0x8b];
/// Memory of a Zstandard stream as a power of two: what `zstd --long` asks of a reader without more words.
const WINDOW_LOG: u32 = 27;

/// The format that rows and documents lie in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Text,
    /// With what parts its fields.
    Csv(u8),
    Json,
    Parquet,
}

/// A file that is open, unpacked.
pub struct Source {
    pub kind: Kind,
    pub content: Box<dyn Read>,
    /// The first bytes of `content`.
    pub beginning: Vec<u8>,
}

/// Beginnings of files that hold no text as it is: where, what, its name, and what to do.
const NO_TEXT: [(usize, &[u8], &str, &str); 31] = [
    // A zip archive names its first file there.
    (30, b"[Content_Types].xml", "an Office document", OFFICE),
    (30, b"docProps/", "an Office document", OFFICE),
    (30, b"_rels/.rels", "an Office document", OFFICE),
    (30, b"xl/", "a workbook", OFFICE),
    (30, b"word/", "an Office document", OFFICE),
    (30, b"mimetypeapplication/", "an e-book or an OpenDocument file", OFFICE),
    (0, b"PK\x03\x04", "a zip archive", UNPACK),
    (0, b"PK\x05\x06", "an empty zip archive", LEAVE),
    (0, b"\xfd7zXZ\0", "packed by xz", "unpack it (xz -d)"),
    (0, b"BZh", "packed by bzip2", "unpack it (bzip2 -d)"),
    (0, b"7z\xbc\xaf\x27\x1c", "a 7z archive", UNPACK),
    (0, b"Rar!\x1a\x07", "a rar archive", UNPACK),
    (257, b"ustar", "a tar archive", "unpack it (tar -x)"),
    (0, b"\x04\x22\x4d\x18", "packed by lz4", "unpack it (lz4 -d)"),
    (0, b"\x1f\x9d", "packed by compress", "unpack it (uncompress)"),
    (0, b"%PDF-", "a PDF", "take its text out (pdftotext)"),
    (0, b"ARROW1", "an Arrow file", ARROW),
    (0, b"FEA1\0", "a Feather file", ARROW),
    (0, b"LITPKDS", "a token file of lit-gpt", "write its tokens without its header (numpy: tofile)"),
    (4, b"\0\0\0\0{\"", "a file of weights (safetensors)", LEAVE),
    (0, b"\xff\xff\xff\xff", "an Arrow stream", ARROW),
    (0, b"\x93NUMPY", "an array of numpy", LEAVE),
    (0, b"Obj\x01", "an Avro file", "write its rows as JSON Lines"),
    (0, b"\x80\x04\x95", "a pickle of Python", "write its rows as JSON Lines"),
    (0, b"\x80\x05\x95", "a pickle of Python", "write its rows as JSON Lines"),
    (0, b"SQLite format 3\0", "a database of SQLite", "write its rows as JSON Lines"),
    (0, b"\x89HDF\r\n", "an HDF5 file", "write its rows as JSON Lines"),
    (0, b"\x88\xd8\x34\x01", "a token file of llm.c", "say data.format = \"llm-c\""),
    (0, b"MMIDIDX\0\0", "an index of fairseq", "name the .bin beside it, and say data.format = \"fairseq\""),
    (0, b"\x89PNG", "a picture", LEAVE),
    (0, b"\xff\xd8\xff", "a picture", LEAVE),
];
const OFFICE: &str = "export it as plain text, a table as csv";
const UNPACK: &str = "unpack it, and name the files that were in it";
const LEAVE: &str = "leave it out";
const ARROW: &str = "write it as parquet (datasets: Dataset.to_parquet)";

impl Source {
    /// Opens a file. Its content tells its kind, and its name only where the content may be any text.
    pub fn open(path: &Path) -> Result<Self, DataError> {
        let reading = |error| DataError::reading(path, error);
        let mut file = File::open(path).map_err(reading)?;
        let mut first = Vec::new();
        file.by_ref().take(BEGINNING).read_to_end(&mut first).map_err(reading)?;
        let length = file.metadata().map_err(reading)?.len();
        let (mut content, packer): (Box<dyn Read>, _) = match &first[..] {
            [0x1f, 0x8b, ..] => {
                file.rewind().map_err(reading)?;
                (Box::new(Unpacked::new(Members::new(BufReader::new(file)), length, "gzip")), Some("gzip"))
            }
            // A frame, or one that is to be skipped, as pzstd writes first.
            [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => {
                file.rewind().map_err(reading)?;
                let mut decoder = zstd::stream::read::Decoder::new(file).map_err(reading)?;
                decoder.window_log_max(WINDOW_LOG).map_err(reading)?;
                (Box::new(Unpacked::new(decoder, length, "Zstandard")), Some("Zstandard"))
            }
            _ => (Box::new(Cursor::new(first).chain(file)), None),
        };
        let mut beginning = Vec::new();
        content.by_ref().take(BEGINNING).read_to_end(&mut beginning).map_err(|error| failed(path, &error))?;
        refuse_other_content(path, &beginning)?;
        // Tokens of 16 or 32 bits look like such text.
        if let Some(encoding) = wide(&beginning).filter(|_| !is_called_tokens(path)) {
            return Err(DataError::Wide { path: path.to_owned(), encoding });
        }
        let kind = kind(path, packer.is_some(), &beginning);
        let inner = match &beginning[..] {
            [0x1f, 0x8b, ..] | [0x28, 0xb5, 0x2f, 0xfd, ..] => Some("a packed file"),
            _ => (kind == Kind::Parquet).then_some("a parquet file"),
        };
        if let (Some(packer), Some(inner)) = (packer, inner) {
            let what = format!("{inner}, packed by {packer} once more");
            return Err(DataError::OtherContent { path: path.to_owned(), what, fix: "unpack it" });
        }
        Ok(Self { kind, content: Box::new(Cursor::new(beginning.clone()).chain(content)), beginning })
    }
}

/// Whether a file is called as those of tokens are.
pub fn is_called_tokens(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "bin")
}

/// Refuses a file of which the beginning is that of something else.
pub fn refuse_other_content(path: &Path, beginning: &[u8]) -> Result<(), DataError> {
    if is_lfs_pointer(beginning) {
        return Err(DataError::Pointer { path: path.to_owned() });
    }
    let is_it = |(at, mark, ..): &&(usize, &[u8], _, _)| beginning.get(*at..).is_some_and(|bytes| bytes.starts_with(mark));
    // Text may begin with three letters; bzip2 goes on with a digit and pi.
    let found = NO_TEXT.iter().filter(|entry| entry.1 != b"BZh" || beginning.get(4..6) == Some(b"1A")).find(is_it);
    found.map_or(Ok(()), |(.., what, fix)| Err(DataError::OtherContent { path: path.to_owned(), what: (*what).to_owned(), fix }))
}

/// By the extension, without that of the packer.
fn kind(path: &Path, is_packed: bool, beginning: &[u8]) -> Kind {
    let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
    let name =
        [".gz", ".gzip", ".zst", ".zstd"].iter().find_map(|end| name.strip_suffix(end).filter(|_| is_packed)).unwrap_or(&name);
    match Path::new(name).extension().and_then(|extension| extension.to_str()) {
        Some("csv") => Kind::Csv(delimiter(beginning)),
        Some("tsv") => Kind::Csv(b'\t'),
        Some("json" | "jsonl" | "ndjson") => Kind::Json,
        Some("parquet") => Kind::Parquet,
        // The cache of Hugging Face's hub has files without extension.
        _ if beginning.starts_with(b"PAR1") => Kind::Parquet,
        _ => Kind::Text,
    }
}

/// A comma, unless the header has none, and one of what stands for it where commas are in numbers.
fn delimiter(beginning: &[u8]) -> u8 {
    let mut lines = beginning.split(|byte| matches!(byte, b'\n' | b'\r'));
    let header = lines.find(|line| !line.trim_ascii().is_empty()).unwrap_or_default();
    let mut is_quoted = false;
    let plain: Vec<u8> = header
        .iter()
        .copied()
        .filter(|byte| {
            is_quoted ^= *byte == b'"';
            !is_quoted
        })
        .collect();
    *[b',', b';', b'\t', b'|'].iter().find(|byte| plain.contains(byte)).unwrap_or(&b',')
}

/// The members of a gzip file, one after another. Zeros may follow the last, as tapes and some servers pad a file; gzip passes over
/// them, too.
struct Members<R>(Option<GzDecoder<R>>);

impl<R: BufRead> Members<R> {
    fn new(file: R) -> Self {
        Self(Some(GzDecoder::new(file)))
    }
}

impl<R: BufRead> Read for Members<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while let Some(mut member) = self.0.take() {
            let read = member.read(buffer);
            if !matches!(read, Ok(0)) || buffer.is_empty() {
                // Also where the system was interrupted: then it is asked again.
                self.0 = Some(member);
                return read;
            }
            let mut rest = member.into_inner();
            let is_member = has_more(&mut rest)?;
            if is_member && !rest.fill_buf()?.starts_with(&GZIP[..1]) {
                return Err(io::Error::new(
                    ErrorKind::InvalidData,
                    "something else follows where it ends, which gzip -dc leaves out",
                ));
            }
            self.0 = is_member.then(|| GzDecoder::new(rest));
        }
        Ok(0)
    }
}

/// Whether something else than zeros is left; it is what is read next.
fn has_more(rest: &mut impl BufRead) -> io::Result<bool> {
    loop {
        let bytes = match rest.fill_buf() {
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            bytes => bytes?,
        };
        let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
        let (is_end, is_found) = (bytes.is_empty(), zeros < bytes.len());
        rest.consume(zeros);
        if is_end || is_found {
            return Ok(is_found);
        }
    }
}

/// A packed stream that ends before it fills a disk, and whose errors say that they are its own.
struct Unpacked<R> {
    stream: R,
    left: u64,
    packer: &'static str,
}

/// Said by Zstandard of a stream that needs more memory than it may have.
const TOO_WIDE: &str = "too much memory";

/// The error of a packed stream.
#[derive(Debug, thiserror::Error)]
#[error("{reason}")]
struct Broken {
    packer: &'static str,
    reason: String,
}

impl<R> Unpacked<R> {
    fn new(stream: R, length: u64, packer: &'static str) -> Self {
        Self { stream, left: MANY.saturating_add(length.saturating_mul(TEXT_A_BYTE)), packer }
    }

    fn broken(&self, reason: String) -> io::Error {
        io::Error::new(ErrorKind::InvalidData, Broken { packer: self.packer, reason })
    }
}

impl<R: Read> Read for Unpacked<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.stream.read(buffer).map_err(|error| match error.kind() {
            ErrorKind::Interrupted => error,
            ErrorKind::UnexpectedEof => self.broken("it ends too early".to_owned()),
            _ => self.broken(error.to_string()),
        })?;
        match self.left.checked_sub(read as u64) {
            Some(left) => self.left = left,
            None => return Err(self.broken("so few bytes cannot be so much text; it repeats itself to fill the disk".to_owned())),
        }
        Ok(read)
    }
}

/// An error of reading a [`Source`].
pub fn failed(path: &Path, error: &io::Error) -> DataError {
    let path = path.to_owned();
    match error.get_ref().and_then(|inner| inner.downcast_ref::<Broken>()) {
        Some(Broken { packer, reason }) if reason.contains(TOO_WIDE) => {
            let what = format!("packed by {packer} with a window of more than {} MiB", 1 << (WINDOW_LOG - 20));
            DataError::OtherContent { path, what, fix: "unpack it (zstd -d --long=31)" }
        }
        Some(Broken { packer, reason }) => {
            DataError::Malformed { path, place: format!("its {packer} stream"), reason: reason.clone() }
        }
        // The kind alone: one error may be looked at twice.
        None => DataError::reading(&path, error.raw_os_error().map_or_else(|| error.kind().into(), io::Error::from_raw_os_error)),
    }
}
