//! Reading any object, and appending to logs.
//!
//! A log is an append blob. The service takes 50,000 appends to one blob, which a log may reach within hours, so a log goes on in
//! further blobs: the first has the log's path, the next ones `<path>~<offset of their first byte>`. A blob that has had [`FULL`]
//! appends is never appended to again; that, and its length, say where the next one is. A writer appends only under the condition
//! that it knows the blob's latest version, and so its number of appends: two writers always agree on where a log goes on.

use std::{
    collections::{BTreeSet, HashMap},
    num::NonZero,
    sync::{Mutex, PoisonError},
};

use azure_core::{http::headers::Headers, time::parse_rfc7231};
use azure_storage_blob::models::{AppendBlobClientAppendBlockOptions, AppendBlobClientCreateOptions, BlobClientDownloadOptions};
use bytes::{Bytes, BytesMut};
use jiff::Timestamp;

use super::{
    super::{Object, Result, StoreError, check_size},
    Marked,
    client::{Client, nonsense},
    sums::md5,
    transport::{Load, header},
    wire::timestamp,
};

/// Appends to one blob; the service's limit is 50,000.
pub(super) const FULL: u64 = 45_000;

/// Most bytes of one request: the service checks no more with an MD5 on their way out, and takes no more in one append.
const PIECE: u64 = 4 << 20;

/// Parts the path of a log from the offset at which a further blob begins.
pub(super) const PART: char = '~';

pub(super) fn segment(path: &str, start: u64) -> String {
    if start == 0 { path.to_owned() } else { format!("{path}{PART}{start:020}") }
}

/// The reverse of [`segment`].
pub(super) fn part(name: &str) -> (&str, u64) {
    let parsed = name.rsplit_once(PART).and_then(|(path, start)| Some((path, start.parse().ok()?)));
    parsed.unwrap_or((name, 0))
}

/// A blob's present state.
#[derive(Debug, Clone)]
pub(super) struct Properties {
    pub length: u64,
    etag: String,
    pub modified: Timestamp,
    /// Number of appends; 0 for a blob that is no log.
    appends: u64,
    /// The marks of the writes that led to it; see `super::Marked`.
    marks: String,
}

impl Properties {
    fn of(headers: &Headers, length: u64) -> Self {
        let text = |name| header(headers, name).unwrap_or_default();
        Self {
            length,
            etag: text("etag").to_owned(),
            modified: timestamp(parse_rfc7231(text("last-modified")).ok()),
            appends: text("x-ms-blob-committed-block-count").parse().unwrap_or_default(),
            marks: text("x-ms-meta-ftctlwrites").to_owned(),
        }
    }

    pub fn version(&self) -> Marked {
        Marked { etag: self.etag.clone(), marks: self.marks.clone() }
    }
}

/// The last blob of a log, as this process last saw it.
#[derive(Debug, Clone)]
pub(super) struct Tail {
    start: u64,
    pub last: Properties,
}

impl Tail {
    pub fn end(&self) -> u64 {
        self.start + self.last.length
    }
}

/// Where logs go on: known from earlier requests, so that a reader and a writer need one request each time.
#[derive(Default)]
pub(super) struct Known {
    tails: Mutex<HashMap<String, Tail>>,
    starts: Mutex<HashMap<String, BTreeSet<u64>>>,
}

impl Known {
    fn tail(&self, path: &str) -> Option<Tail> {
        self.tails.lock().unwrap_or_else(PoisonError::into_inner).get(path).cloned()
    }
    fn set_tail(&self, path: &str, tail: Option<Tail>) {
        let mut tails = self.tails.lock().unwrap_or_else(PoisonError::into_inner);
        match tail {
            Some(tail) => drop(tails.insert(path.to_owned(), tail)),
            None => drop(tails.remove(path)),
        }
    }
    /// The beginning of the blob that has byte `offset`, as far as is known.
    fn start(&self, path: &str, offset: u64) -> u64 {
        let starts = self.starts.lock().unwrap_or_else(PoisonError::into_inner);
        starts.get(path).and_then(|starts| starts.range(..=offset).next_back().copied()).unwrap_or_default()
    }
    fn add_start(&self, path: &str, start: u64) {
        if start > 0 {
            self.starts.lock().unwrap_or_else(PoisonError::into_inner).entry(path.to_owned()).or_default().insert(start);
        }
    }
    pub fn forget(&self, path: &str) {
        self.set_tail(path, None);
        self.starts.lock().unwrap_or_else(PoisonError::into_inner).remove(path);
    }
}

/// Reads and appends. Borrowed from the store for one operation.
pub(super) struct Segments<'a> {
    pub client: &'a Client,
    pub known: &'a Known,
    pub full: u64,
}

/// The result of a request for a range.
struct Piece {
    bytes: Bytes,
    of: Properties,
}

impl Segments<'_> {
    /// `None`: there is no such blob.
    pub async fn properties(&self, name: &str) -> Result<Option<Properties>> {
        let blob = self.client.blob(name);
        match self.client.ask("read", name, blob.get_properties(None)).await? {
            Ok(found) => {
                let length = header(found.headers(), "content-length").and_then(|length| length.parse().ok());
                Ok(Some(Properties::of(found.headers(), length.unwrap_or_default())))
            }
            Err(refusal) if refusal.status == 404 => Ok(None),
            Err(refusal) => Err(self.client.refused("read", name, &refusal)),
        }
    }

    /// The bytes `from..to` of one blob that exist, at most [`PIECE`].
    async fn piece(&self, name: &str, from: u64, to: u64) -> Result<Option<Piece>> {
        // The byte before exists whenever the reader stands at the end, so that nothing new is no error and needs no second
        // request.
        let back = u64::from(from > 0);
        let to = to.min(from - back + PIECE);
        let options = BlobClientDownloadOptions {
            range: Some((from - back..to).into()),
            // In one request.
            partition_size: Some(NonZero::<usize>::MAX),
            // Nothing else would show that bytes were damaged on their way.
            range_get_content_md5: (!self.client.is_encrypted()).then_some(true),
            method_options: Load { expected: to - from, ..Load::default() }.options(),
            ..BlobClientDownloadOptions::default()
        };
        let blob = self.client.blob(name);
        let asked = async {
            let found = blob.download(Some(options)).await?;
            Ok((found.headers, found.body.collect().await?))
        };
        match self.client.ask("read", name, asked).await? {
            Ok((headers, bytes)) => {
                let total = header(&headers, "content-range").and_then(|range| range.rsplit_once('/')?.1.parse().ok());
                let of = Properties::of(&headers, total.unwrap_or(bytes.len() as u64));
                let expected = to.min(of.length).saturating_sub(from - back);
                // Of a blob that was empty a moment ago more may come than was asked for.
                if (bytes.len() as u64) < expected {
                    let why = format!("{} bytes came instead of {expected}", bytes.len());
                    return Err(nonsense("read", name, why));
                }
                Ok(Some(Piece { bytes: bytes.slice(back as usize..expected as usize), of }))
            }
            Err(refusal) if refusal.status == 404 => Ok(None),
            Err(refusal) if refusal.status == 416 => {
                let properties = self.properties(name).await?;
                Ok(properties.map(|of| Piece { bytes: Bytes::new(), of }))
            }
            Err(refusal) => Err(self.client.refused("read", name, &refusal)),
        }
    }

    /// The bytes of `from..to` that exist; `None` when there is no such object.
    pub async fn range(&self, path: &str, from: u64, to: u64) -> Result<Option<Bytes>> {
        let mut start = self.known.start(path, from);
        let mut read = Read::new(from);
        while read.at < to {
            match self.piece(&segment(path, start), read.at - start, to - start).await? {
                None if start == 0 => return Ok(None),
                // The next blob has not been begun; or one that was known is gone, and with it all of the log.
                None if read.at == start => break,
                None => {
                    self.known.forget(path);
                    start = 0;
                }
                Some(piece) => {
                    self.known.add_start(path, start);
                    let end = start + piece.of.length;
                    read.take(piece.bytes);
                    if read.at < end {
                        continue;
                    }
                    if piece.of.appends < self.full {
                        break;
                    }
                    start = end;
                }
            }
        }
        if from >= to && self.properties(path).await?.is_none() {
            return Ok(None);
        }
        Ok(Some(read.bytes()))
    }

    /// The whole of an object of at most `most` bytes, all of one version.
    pub async fn whole(&self, path: &str, most: u64) -> Result<Option<Object>> {
        loop {
            // The answer to a request for the first bytes says how many there are.
            let Some(first) = self.piece(path, 0, PIECE.min(most.saturating_add(1))).await? else { return Ok(None) };
            check_size(path, first.of.length, most)?;
            let etag = first.of.version().into_etag();
            if first.bytes.len() as u64 == first.of.length && first.of.appends < self.full {
                return Ok(Some(Object { bytes: first.bytes, etag }));
            }
            let Some(bytes) = self.range(path, 0, most.saturating_add(1)).await? else { return Ok(None) };
            check_size(path, bytes.len() as u64, most)?;
            let Some(tail) = self.find_tail(path, 0).await? else { return Ok(None) };
            // A log only grows; anything else must not have changed meanwhile.
            if tail.last.appends > 0 || tail.last.version().into_etag() == etag {
                let seen = bytes.slice(..bytes.len().min(tail.end() as usize));
                return Ok(Some(Object { bytes: seen, etag: tail.last.version().into_etag() }));
            }
        }
    }

    /// Looks for the last blob, from the one that begins at `start`. `None`: there is not even a first.
    pub async fn find_tail(&self, path: &str, mut start: u64) -> Result<Option<Tail>> {
        let mut found = None;
        while let Some(last) = self.properties(&segment(path, start)).await? {
            self.known.add_start(path, start);
            let tail = Tail { start, last };
            let (full, end) = (tail.last.appends >= self.full, tail.end());
            found = Some(tail);
            if !full {
                break;
            }
            start = end;
        }
        Ok(found)
    }

    /// The blobs of an object, those of a log in their order. The last one need not exist.
    pub async fn names(&self, path: &str) -> Result<Vec<String>> {
        let mut names = vec![path.to_owned()];
        let mut start = 0;
        while let Some(blob) = self.properties(&segment(path, start)).await?
            && blob.appends >= self.full
        {
            start += blob.length;
            names.push(segment(path, start));
        }
        Ok(names)
    }

    /// See `Store::append`.
    pub async fn append(&self, path: &str, offset: u64, bytes: &Bytes) -> Result<u64> {
        let mut at = offset;
        for first in (0..bytes.len()).step_by(PIECE as usize) {
            let piece = bytes.slice(first..bytes.len().min(first + PIECE as usize));
            at = self.append_piece(path, at, piece).await?;
        }
        Ok(at)
    }

    async fn append_piece(&self, path: &str, offset: u64, bytes: Bytes) -> Result<u64> {
        let end = offset + bytes.len() as u64;
        let sum = md5(&bytes).await;
        let mut known = self.known.tail(path).filter(|tail| tail.end() == offset);
        // Whether an append of ours was refused: perhaps because it had landed before, without an answer.
        let mut refused = false;
        loop {
            let found = match known.take() {
                Some(tail) => Some(tail),
                None => self.find_tail(path, 0).await?,
            };
            let tail = match found {
                None if offset == 0 => self.create(path, 0).await?,
                None => return Err(wrong(path, offset, 0)),
                Some(tail) if refused && tail.end() >= end && self.range(path, offset, end).await?.as_ref() == Some(&bytes) => {
                    self.known.set_tail(path, Some(tail));
                    return Ok(end);
                }
                Some(tail) if tail.end() != offset => return Err(wrong(path, offset, tail.end())),
                Some(tail) if tail.last.appends >= self.full => self.create(path, offset).await?,
                Some(tail) => Some(tail),
            };
            let Some(mut tail) = tail else { continue };
            let blob = self.client.blob(&segment(path, tail.start)).append_blob_client();
            let options = AppendBlobClientAppendBlockOptions {
                append_position: Some(tail.last.length as i64),
                if_match: Some(tail.last.etag.clone().into()),
                transactional_content_md5: Some(sum.to_vec()),
                ..AppendBlobClientAppendBlockOptions::default()
            };
            let appended = blob.append_block(bytes.clone().into(), bytes.len() as u64, Some(options));
            match self.client.ask("append to", path, appended).await? {
                Ok(appended) => {
                    let modified = tail.last.modified;
                    tail.last = Properties { modified, ..Properties::of(appended.headers(), end - tail.start) };
                    self.known.set_tail(path, Some(tail));
                    return Ok(end);
                }
                // Another program appended, or we did; or the log is gone.
                Err(refusal) if matches!(refusal.status, 404 | 412) => {
                    self.known.forget(path);
                    refused = true;
                }
                Err(refusal) => return Err(self.client.refused("append to", path, &refusal)),
            }
        }
    }

    /// Begins the blob that has byte `offset` first. `None`: another writer did.
    async fn create(&self, path: &str, offset: u64) -> Result<Option<Tail>> {
        let blob = self.client.blob(&segment(path, offset)).append_blob_client();
        let created = || blob.create(Some(AppendBlobClientCreateOptions::default().if_not_exists()));
        match self.client.write("append to", path, created).await? {
            Ok(begun) => Ok(Some(Tail { start: offset, last: Properties::of(begun.headers(), 0) })),
            Err(refusal) if refusal.is_conflict() => Ok(None),
            Err(refusal) => Err(self.client.refused("append to", path, &refusal)),
        }
    }
}

fn wrong(path: &str, expected: u64, length: u64) -> StoreError {
    StoreError::WrongOffset { path: path.to_owned(), expected, length }
}

/// Bytes that come in pieces; one piece is not copied.
struct Read {
    at: u64,
    pieces: Vec<Bytes>,
}

impl Read {
    fn new(at: u64) -> Self {
        Self { at, pieces: Vec::new() }
    }
    fn take(&mut self, bytes: Bytes) {
        self.at += bytes.len() as u64;
        self.pieces.push(bytes);
    }
    fn bytes(mut self) -> Bytes {
        if self.pieces.len() == 1 {
            return self.pieces.remove(0);
        }
        let mut all = BytesMut::with_capacity(self.pieces.iter().map(Bytes::len).sum());
        self.pieces.iter().for_each(|piece| all.extend_from_slice(piece));
        all.freeze()
    }
}
