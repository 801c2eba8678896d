//! Token shards: the stored form of a dataset, and how a training run reads it.
//!
//! A dataset is a directory: `dataset.json` (schema `ft.dataset/1`), the tokenizer's files, and for each split numbered token
//! files. A token file is a 64-byte header (magic `FTTOKENS`, `u32` format version, `u32` bytes per token, `u64` number of
//! tokens, zeros) followed by the tokens; every number is little-endian. Tokens take 2 bytes when the vocabulary allows it.
//! Nothing in the directory depends on the time or the machine, so the same text gives the same bytes.

use std::fs::File;
use std::io::{BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use memmap2::{Mmap, UncheckedAdvice};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

pub use super::error::DataError;
use super::tokenizer::Tokenizer;
use crate::files;
pub(crate) use crate::files::hex;
use crate::model::shape::MOST_TOKENS;

/// Name of the description inside a dataset's directory.
pub const DESCRIPTION: &str = "dataset.json";
/// Version of the stored form.
pub const SCHEMA: &str = "ft.dataset/1";
/// Tokens in a full shard: 200 MB at 2 bytes a token.
pub const SHARD_TOKENS: u64 = 100_000_000;

/// Bytes of the longest description: thirty thousand shards of it are three trillion tokens.
const LONGEST: u64 = 4 << 20;

const MAGIC: &[u8; 8] = b"FTTOKENS";
const VERSION: u32 = 1;
const HEADER: usize = 64;

/// The two parts of a dataset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Split {
    Train,
    Validation,
}

impl Split {
    pub fn name(self) -> &'static str {
        match self {
            Self::Train => "train",
            Self::Validation => "validation",
        }
    }
}

/// How a token is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Dtype {
    U16,
    U32,
}

impl Dtype {
    /// The narrowest type that holds every id of a vocabulary.
    pub fn for_vocabulary(vocabulary: usize) -> Self {
        if vocabulary <= 1 << 16 { Self::U16 } else { Self::U32 }
    }

    pub fn bytes(self) -> usize {
        match self {
            Self::U16 => 2,
            Self::U32 => 4,
        }
    }
}

/// `dataset.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Description {
    pub schema: String,
    pub tokenizer: TokenizerFiles,
    /// Number of token ids.
    pub vocabulary: usize,
    /// The id that separates documents.
    pub end_of_text: u32,
    pub dtype: Dtype,
    pub train: SplitDescription,
    pub validation: SplitDescription,
}

/// The tokenizer beside the shards.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TokenizerFiles {
    pub kind: crate::settings::TokenizerKind,
    pub files: Vec<FileDigest>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FileDigest {
    pub file: String,
    pub sha256: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct SplitDescription {
    /// Tokens with the end-of-text after each document.
    pub tokens: u64,
    pub documents: u64,
    /// Bytes of UTF-8 text.
    pub bytes: u64,
    pub shards: Vec<Shard>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Shard {
    pub file: String,
    pub tokens: u64,
    pub sha256: String,
}

/// A prepared dataset, opened for reading.
#[derive(Debug)]
pub struct Dataset {
    directory: PathBuf,
    description: Description,
    digest: String,
    train: TokenStream,
    validation: TokenStream,
}

impl Dataset {
    /// Opens a directory that [`super::prepare::prepare`] wrote: checks sizes and headers, maps the shards, reads no token.
    pub fn open(directory: &Path) -> Result<Self, DataError> {
        let text = read_description(directory)?;
        let description = parse_description(directory, &text)?;
        Ok(Self {
            train: TokenStream::open(directory, &description, &description.train)?,
            validation: TokenStream::open(directory, &description, &description.validation)?,
            digest: hex(&Sha256::digest(&text)),
            directory: directory.to_owned(),
            description,
        })
    }

    pub fn description(&self) -> &Description {
        &self.description
    }

    /// Number of token ids.
    pub fn vocabulary(&self) -> usize {
        self.description.vocabulary
    }

    /// The id that separates documents.
    pub fn end_of_text(&self) -> u32 {
        self.description.end_of_text
    }

    /// SHA-256 of `dataset.json` in hex. It names the digests of all other files, so it identifies the whole dataset.
    pub fn digest(&self) -> &str {
        &self.digest
    }

    pub fn split(&self, split: Split) -> &TokenStream {
        match split {
            Split::Train => &self.train,
            Split::Validation => &self.validation,
        }
    }

    /// The tokenizer that made the tokens.
    pub fn tokenizer(&self) -> Result<Tokenizer, DataError> {
        Tokenizer::load(&self.directory)
    }

    /// Reads every file and compares its digest with `dataset.json`.
    pub fn verify(&self) -> Result<(), DataError> {
        let tokenizer = self.description.tokenizer.files.iter().map(|file| (&file.file, &file.sha256));
        let splits = [&self.description.train, &self.description.validation];
        let shards = splits.into_iter().flat_map(|split| &split.shards).map(|shard| (&shard.file, &shard.sha256));
        tokenizer.chain(shards).try_for_each(|(file, expected)| check_digest(&self.directory.join(file), expected))
    }
}

fn read_description(directory: &Path) -> Result<Vec<u8>, DataError> {
    if !directory.exists() {
        return Err(DataError::NotADataset { path: directory.to_owned(), reason: "it does not exist".into() });
    }
    let path = directory.join(DESCRIPTION);
    files::read_at_most(&path, LONGEST).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory => {
            DataError::NotADataset { path: directory.to_owned(), reason: format!("it has no {DESCRIPTION}") }
        }
        _ => DataError::Unreadable { path, source: error },
    })
}

/// Reads and checks the description of a dataset in `directory`.
pub fn parse_description(directory: &Path, text: &[u8]) -> Result<Description, DataError> {
    let refuse = |reason: String| DataError::NotADataset { path: directory.join(DESCRIPTION), reason };
    let value: serde_json::Value = serde_json::from_slice(text).map_err(|error| refuse(error.to_string()))?;
    match value.get("schema").and_then(serde_json::Value::as_str) {
        Some(SCHEMA) => {}
        Some(other) => return Err(refuse(format!("its schema is `{other}`, this program reads `{SCHEMA}`"))),
        None => return Err(refuse("it names no schema".into())),
    }
    let description: Description = serde_json::from_value(value).map_err(|error| refuse(error.to_string()))?;
    description.check().map_err(refuse)?;
    Ok(description)
}

impl Description {
    /// Checks the rules that hold whichever program wrote it.
    fn check(&self) -> Result<(), String> {
        if !(1..=MOST_TOKENS).contains(&self.vocabulary) {
            return Err(format!("its vocabulary has {} tokens, and it may have 1 to {MOST_TOKENS}", self.vocabulary));
        }
        if self.end_of_text as usize >= self.vocabulary {
            return Err(format!("its end-of-text {} is none of its {} tokens", self.end_of_text, self.vocabulary));
        }
        let shards = [&self.train, &self.validation].into_iter().flat_map(|split| &split.shards).map(|shard| &shard.file);
        let mut names = self.tokenizer.files.iter().map(|file| &file.file).chain(shards);
        match names.find(|name| Path::new(name).file_name().is_none_or(|file| file != name.as_str())) {
            Some(outside) => Err(format!("`{outside}` is no name of a file beside it")),
            None => Ok(()),
        }
    }
}

fn check_digest(path: &Path, expected: &str) -> Result<(), DataError> {
    let found = file_digest(path).map_err(|error| DataError::reading(path, error))?;
    if found == expected {
        return Ok(());
    }
    Err(DataError::Damaged { path: path.to_owned(), reason: format!("its SHA-256 is {found}, {DESCRIPTION} says {expected}") })
}

/// The tokens of one split as one long sequence, over any number of shards.
#[derive(Debug)]
pub struct TokenStream {
    dtype: Dtype,
    vocabulary: usize,
    shards: Vec<MappedShard>,
    tokens: u64,
}

#[derive(Debug)]
struct MappedShard {
    path: PathBuf,
    /// Position of the first token in the whole split.
    start: u64,
    tokens: u64,
    map: Mmap,
}

impl TokenStream {
    fn open(directory: &Path, description: &Description, split: &SplitDescription) -> Result<Self, DataError> {
        let Description { dtype, vocabulary, .. } = *description;
        let mut stream = Self { dtype, vocabulary, shards: Vec::new(), tokens: 0 };
        let damaged = |reason| DataError::Damaged { path: directory.join(DESCRIPTION), reason };
        for shard in &split.shards {
            let path = directory.join(&shard.file);
            let map = map_shard(&path, dtype, shard.tokens)?;
            let end = stream.tokens.checked_add(shard.tokens);
            stream.shards.push(MappedShard { path, start: stream.tokens, tokens: shard.tokens, map });
            stream.tokens = end.ok_or_else(|| damaged("its shards have more tokens than can be counted".to_owned()))?;
        }
        if stream.tokens != split.tokens {
            return Err(damaged(format!("it says {} tokens, its shards have {}", split.tokens, stream.tokens)));
        }
        Ok(stream)
    }

    /// Number of tokens.
    pub fn len(&self) -> u64 {
        self.tokens
    }

    pub fn is_empty(&self) -> bool {
        self.tokens == 0
    }

    /// Fills `out` with the tokens from position `start` on, across shard borders.
    ///
    /// # Errors
    /// [`DataError::Damaged`] where a token is beyond the vocabulary: no embedding has a row for it.
    ///
    /// # Panics
    /// Those of indexing a slice, when `start + out.len()` exceeds [`TokenStream::len`].
    pub fn read(&self, start: u64, out: &mut [i64]) -> Result<(), DataError> {
        let end = start + out.len() as u64;
        assert!(end <= self.tokens, "tokens {start}..{end} of {}", self.tokens);
        let mut shard = self.shards.partition_point(|shard| shard.start + shard.tokens <= start);
        let mut filled = 0;
        while filled < out.len() {
            let (from, part) = (start + filled as u64, &mut out[filled..]);
            let count = self.shards[shard].copy(self.dtype, from, part);
            let within = from - self.shards[shard].start;
            if let Some(place) = part[..count].iter().position(|token| *token >= self.vocabulary as i64) {
                let (token, place) = (part[place], within + place as u64);
                let reason = format!("its token {place} is {token}, and the vocabulary has {}", self.vocabulary);
                return Err(DataError::Damaged { path: self.shards[shard].path.clone(), reason });
            }
            filled += count;
            shard += 1;
        }
        Ok(())
    }
}

impl MappedShard {
    /// Copies what this shard has of `out.len()` tokens from global position `start`; returns how many.
    fn copy(&self, dtype: Dtype, start: u64, out: &mut [i64]) -> usize {
        let first = (start - self.start) as usize;
        let count = out.len().min(self.tokens as usize - first);
        let width = dtype.bytes();
        let (from, length) = (HEADER + first * width, count * width);
        let bytes = &self.map[from..from + length];
        match dtype {
            Dtype::U16 => {
                let tokens = bytes.as_chunks().0.iter().map(|token| i64::from(u16::from_le_bytes(*token)));
                out.iter_mut().zip(tokens).for_each(|(slot, token)| *slot = token);
            }
            Dtype::U32 => {
                let tokens = bytes.as_chunks().0.iter().map(|token| i64::from(u32::from_le_bytes(*token)));
                out.iter_mut().zip(tokens).for_each(|(slot, token)| *slot = token);
            }
        }
        // SAFETY: pages of a file that is mapped to be read come back when they are touched. Without this a shard would count as
        // the process's memory as far as it was read, and no longer where the system took it back: the peak of a run could not be
        // told.
        let _ = unsafe { self.map.unchecked_advise_range(UncheckedAdvice::DontNeed, from, length) };
        count
    }
}

/// Maps a file that does not change into memory. If it is truncated meanwhile, this process gets SIGBUS, as with every
/// memory-mapped reader.
pub(super) fn map(path: &Path) -> Result<Mmap, DataError> {
    let file = File::open(path).map_err(|error| DataError::reading(path, error))?;
    // SAFETY: a dataset is written once, under another name, and never changed after its rename; other programs' token files are as
    // old.
    unsafe { Mmap::map(&file) }.map_err(|error| DataError::reading(path, error))
}

fn map_shard(path: &Path, dtype: Dtype, tokens: u64) -> Result<Mmap, DataError> {
    let damaged = |reason: String| DataError::Damaged { path: path.to_owned(), reason };
    let map = map(path)?;
    // No file is as long as where this ends.
    let expected = tokens.saturating_mul(dtype.bytes() as u64).saturating_add(HEADER as u64);
    if map.len() as u64 != expected {
        return Err(damaged(format!("it has {} bytes, {DESCRIPTION} says {expected}", map.len())));
    }
    if map[..HEADER] != header(dtype, tokens) {
        return Err(damaged("its header is not that of a token shard of this format, type and length".into()));
    }
    Ok(map)
}

fn header(dtype: Dtype, tokens: u64) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    header[..8].copy_from_slice(MAGIC);
    header[8..12].copy_from_slice(&VERSION.to_le_bytes());
    header[12..16].copy_from_slice(&(dtype.bytes() as u32).to_le_bytes());
    header[16..24].copy_from_slice(&tokens.to_le_bytes());
    header
}

/// Writes one split as numbered shards.
pub struct Writer {
    directory: PathBuf,
    split: Split,
    dtype: Dtype,
    shard_tokens: u64,
    open: Option<OpenShard>,
    done: Vec<Shard>,
}

struct OpenShard {
    path: PathBuf,
    out: BufWriter<File>,
    tokens: u64,
}

impl Writer {
    /// Shards of at most `shard_tokens` tokens in `directory`.
    pub fn new(directory: &Path, split: Split, dtype: Dtype, shard_tokens: u64) -> Self {
        Self { directory: directory.to_owned(), split, dtype, shard_tokens, open: None, done: Vec::new() }
    }

    /// Appends tokens; each must fit the type.
    pub fn push(&mut self, mut tokens: &[u32]) -> Result<(), DataError> {
        while !tokens.is_empty() {
            let shard = match &mut self.open {
                Some(shard) => shard,
                closed => closed.insert(OpenShard::create(&self.directory, self.split, self.done.len())?),
            };
            let (now, later) = tokens.split_at(tokens.len().min((self.shard_tokens - shard.tokens) as usize));
            write_tokens(&mut shard.out, self.dtype, now).map_err(DataError::writing(&shard.path))?;
            shard.tokens += now.len() as u64;
            if shard.tokens == self.shard_tokens {
                self.close()?;
            }
            tokens = later;
        }
        Ok(())
    }

    /// Completes the last shard and describes all of them.
    pub fn finish(mut self) -> Result<Vec<Shard>, DataError> {
        self.close()?;
        Ok(self.done)
    }

    fn close(&mut self) -> Result<(), DataError> {
        let Some(shard) = self.open.take() else { return Ok(()) };
        let path = shard.path.clone();
        self.done.push(shard.complete(self.dtype).map_err(DataError::writing(&path))?);
        Ok(())
    }
}

impl OpenShard {
    /// A file with room for the header, which needs the count of tokens.
    fn create(directory: &Path, split: Split, number: usize) -> Result<Self, DataError> {
        let path = directory.join(format!("{}-{number:05}.tokens", split.name()));
        let file = File::create(&path).map_err(DataError::writing(&path))?;
        let mut out = BufWriter::with_capacity(1 << 20, file);
        out.write_all(&[0; HEADER]).map_err(DataError::writing(&path))?;
        Ok(Self { path, out, tokens: 0 })
    }

    /// Writes the header now that the count is known, makes the file durable and takes its digest.
    fn complete(mut self, dtype: Dtype) -> std::io::Result<Shard> {
        self.out.seek(SeekFrom::Start(0))?;
        self.out.write_all(&header(dtype, self.tokens))?;
        self.out.into_inner().map_err(std::io::IntoInnerError::into_error)?.sync_all()?;
        let file = self.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok(Shard { file, tokens: self.tokens, sha256: file_digest(&self.path)? })
    }
}

fn write_tokens(out: &mut impl Write, dtype: Dtype, tokens: &[u32]) -> std::io::Result<()> {
    tokens.iter().try_for_each(|token| match dtype {
        Dtype::U16 => out.write_all(&(*token as u16).to_le_bytes()),
        Dtype::U32 => out.write_all(&token.to_le_bytes()),
    })
}

/// SHA-256 of a file's content in hex, read in blocks.
pub fn file_digest(path: &Path) -> std::io::Result<String> {
    let mut digest = Sha256::new();
    files::hash(path, &mut digest)?;
    Ok(hex(&digest.finalize()))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// A dataset of three tokens, its description changed.
    fn open(change: impl FnOnce(&mut Value)) -> Result<u64, DataError> {
        let directory = tempfile::tempdir().unwrap();
        let mut writer = Writer::new(directory.path(), Split::Train, Dtype::U16, 2);
        writer.push(&[1, 2, 3]).unwrap();
        let shards = writer.finish().unwrap();
        let mut description = json!({
            "schema": SCHEMA,
            "tokenizer": { "kind": "gpt2", "files": [] },
            "vocabulary": 4,
            "end_of_text": 3,
            "dtype": "u16",
            "train": { "tokens": 3, "documents": 1, "bytes": 3, "shards": shards },
            "validation": { "tokens": 0, "documents": 0, "bytes": 0, "shards": [] },
        });
        change(&mut description);
        std::fs::write(directory.path().join(DESCRIPTION), description.to_string()).unwrap();
        let dataset = Dataset::open(directory.path())?;
        let train = dataset.split(Split::Train);
        let mut tokens = vec![0; train.len() as usize];
        train.read(0, &mut tokens)?;
        Ok(train.len())
    }

    #[test]
    fn a_description_that_is_not_so_is_refused() {
        assert_eq!(open(|_| ()).unwrap(), 3);
        let set =
            |pointer: &'static str, value: Value| move |description: &mut Value| *description.pointer_mut(pointer).unwrap() = value;
        let refused = |pointer, value| open(set(pointer, value)).expect_err(pointer).to_string();
        for tokens in [1_u64, 3, 1 << 31, 1 << 62, 1 << 63, u64::MAX] {
            let reason = refused("/train/shards/0/tokens", json!(tokens));
            assert!(reason.contains("it has 68 bytes, dataset.json says "), "{reason}");
        }
        for tokens in [0, 2, 1_u64 << 63] {
            assert!(refused("/train/tokens", json!(tokens)).contains("its shards have 3"));
        }
        for vocabulary in [0_u64, (1 << 24) + 1, 1 << 63, u64::MAX] {
            assert!(refused("/vocabulary", json!(vocabulary)).contains("its vocabulary has"));
        }
        assert!(refused("/end_of_text", json!(4)).contains("its end-of-text 4 is none of its 4 tokens"));
        assert!(refused("/vocabulary", json!(3)).contains("its end-of-text 3"));
        for outside in ["/etc/passwd", "../x", "a/b", "", ".", ".."] {
            assert!(refused("/train/shards/0/file", json!(outside)).contains("is no name of a file beside it"), "{outside}");
        }
        let long = open(|description| description["more"] = "x".repeat(LONGEST as usize).into()).expect_err("too long").to_string();
        assert!(long.contains("more than 4194304 bytes"), "{long}");
    }
}
