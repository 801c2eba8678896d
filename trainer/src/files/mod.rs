//! Files written whole: digests, JSON, and replacing what is there in one step.

#[cfg(feature = "torch")]
pub(crate) mod direct;
pub mod ranges;

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Write};
use std::path::Path;

use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::error::Failure;

/// Bytes read at a time.
const BLOCK: usize = 1 << 20;

/// Opens a file of a directory that another person may have made: a pipe there would be waited for.
pub fn open(path: &Path) -> io::Result<File> {
    let found = fs::metadata(path)?;
    if found.is_file() || found.is_dir() {
        return File::open(path);
    }
    Err(io::Error::new(ErrorKind::InvalidInput, "it is a pipe, a device or a socket, and no file"))
}

/// Feeds a file to a hash; returns its size in bytes.
pub fn hash(path: &Path, hasher: &mut Sha256) -> io::Result<u64> {
    let mut file = open(path)?;
    let mut block = vec![0; BLOCK];
    let mut bytes = 0;
    loop {
        match file.read(&mut block) {
            Ok(0) => return Ok(bytes),
            Ok(read) => {
                hasher.update(&block[..read]);
                bytes += read as u64;
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Reads a file that is small by its nature: one that has more than `most` bytes is something else, and memory is not filled with
/// it.
pub fn read_at_most(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    open(path)?.take(most + 1).read_to_end(&mut content)?;
    if content.len() as u64 <= most {
        return Ok(content);
    }
    Err(io::Error::new(ErrorKind::FileTooLarge, format!("it has more than {most} bytes, and no file of its kind is so large")))
}

/// [`read_at_most`] for a file that people edit, without the byte-order mark that editors on Windows put before it.
pub fn read_text(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut text = read_at_most(path, most)?;
    let mark = mark(&text).map_err(|reason| io::Error::new(ErrorKind::InvalidData, reason))?;
    text.drain(..mark);
    Ok(text)
}

/// The content of such a file as text.
pub fn text(mut content: Vec<u8>) -> Result<String, &'static str> {
    content.drain(..mark(&content)?);
    String::from_utf8(content).map_err(|_| "it is not UTF-8 text; `iconv -f ENCODING -t UTF-8` converts it")
}

/// Bytes of the byte-order mark before a text. Text of 16 or 32 bits a character is refused.
pub fn mark(text: &[u8]) -> Result<usize, &'static str> {
    match wide(text) {
        Some("UTF-16") => Err("it is UTF-16 text; `iconv -f UTF-16 -t UTF-8` converts it"),
        Some("UTF-16LE") => Err("it is UTF-16LE text; `iconv -f UTF-16LE -t UTF-8` converts it"),
        Some("UTF-16BE") => Err("it is UTF-16BE text; `iconv -f UTF-16BE -t UTF-8` converts it"),
        Some("UTF-32LE") => Err("it is UTF-32LE text; `iconv -f UTF-32LE -t UTF-8` converts it"),
        Some("UTF-32BE") => Err("it is UTF-32BE text; `iconv -f UTF-32BE -t UTF-8` converts it"),
        Some(_) => Err("it is UTF-32 text; `iconv -f UTF-32 -t UTF-8` converts it"),
        None => Ok(if text.starts_with(b"\xef\xbb\xbf") { 3 } else { 0 }),
    }
}

/// The encoding of text of 16 or 32 bits a character, as iconv calls it: a mark tells it, or the zeros beside the first letter.
/// Without a mark iconv would guess which of a letter's bytes is the first.
pub fn wide(text: &[u8]) -> Option<&'static str> {
    let is_letter = |byte: u8| byte.is_ascii_graphic() || byte.is_ascii_whitespace();
    match *text {
        [0xff, 0xfe, 0, 0, ..] | [0, 0, 0xfe, 0xff, ..] => Some("UTF-32"),
        [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => Some("UTF-16"),
        [letter, 0, 0, 0, ..] if is_letter(letter) => Some("UTF-32LE"),
        [0, 0, 0, letter, ..] if is_letter(letter) => Some("UTF-32BE"),
        [letter, 0, ..] if is_letter(letter) => Some("UTF-16LE"),
        [0, letter, ..] if is_letter(letter) => Some("UTF-16BE"),
        _ => None,
    }
}

/// Whether a file that begins so is what git-lfs puts in the place of a large one.
pub fn is_lfs_pointer(beginning: &[u8]) -> bool {
    beginning.starts_with(b"version https://git-lfs.github.com/spec/")
}

/// The names in a directory, sorted.
pub fn names(directory: &Path) -> Result<Vec<String>, Failure> {
    let name = |entry: io::Result<fs::DirEntry>| Ok(entry?.file_name().to_string_lossy().into_owned());
    let read = || fs::read_dir(directory)?.map(name).collect::<io::Result<_>>();
    let mut names: Vec<String> = read().map_err(|error| Failure::io("read", directory, &error))?;
    names.sort_unstable();
    Ok(names)
}

/// Lower-case hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Replaces whatever is at `path` by `content`: a reader, or a run after a power loss, sees the old bytes or the new ones.
pub fn replace(path: &Path, content: &[u8]) -> Result<(), Failure> {
    let temporary = path.with_extension("unfinished");
    let write = || {
        let mut file = File::create(&temporary)?;
        file.write_all(content)?;
        file.sync_all()?;
        fs::rename(&temporary, path)
    };
    write().map_err(|error| {
        let _ = fs::remove_file(&temporary);
        Failure::io("write", path, &error)
    })
}

/// Writes pretty JSON with a final newline, as [`replace`] does.
pub fn write_json(path: &Path, value: &impl Serialize) -> Result<(), Failure> {
    let mut text = serde_json::to_vec_pretty(value).map_err(Failure::other)?;
    text.push(b'\n');
    replace(path, &text)
}
