//! The store: the shared truth of every job. One interface, several implementations: `directory` (the embedded default),
//! `memory` (tests), and a blob container.
//!
//! Paths are relative, separated by `/`, without `.` and `..`. Every operation is atomic: a reader sees the old object or the new
//! one, never a part.

use std::{ops::Range, path::PathBuf, sync::Arc};

use async_trait::async_trait;
use bytes::Bytes;
use jiff::Timestamp;
use serde::{Serialize, de::DeserializeOwned};

use crate::job::{
    address::{self, MEMORY},
    digest::Digest,
    finding::Finding,
    id::{JobId, path},
};

pub mod artifacts;
pub mod azure;
#[cfg(test)]
#[path = "../../tests/common/azurite.rs"]
pub(crate) mod azurite;
mod beneath;
pub mod checkpoint;
#[cfg(test)]
mod conformance;
mod content;
pub mod dataset;
pub mod directory;
#[cfg(test)]
pub(crate) mod faulty;
mod fetch;
mod identity;
pub mod lease;
pub mod log;
pub mod memory;
mod names;
pub mod prune;
#[cfg(test)]
#[path = "../../tests/common/secrets.rs"]
pub(crate) mod secrets;

pub use content::{FileEntry, Source, refuse_private};
pub use fetch::in_the_way;

/// The version of an object: changes with every write, means nothing else.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ETag(pub String);

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Object {
    pub bytes: Bytes,
    pub etag: ETag,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Meta {
    pub path: String,
    pub size: u64,
    pub modified: Timestamp,
}

/// When a write may happen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Condition {
    Always,
    /// Only when there is no such object.
    IfAbsent,
    /// Only when the object is still this version.
    IfMatch(ETag),
}

/// Why the store could not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("{path} is not in the store {store}")]
    NotFound { store: String, path: String },
    /// Another writer was first.
    #[error("{path} was changed by another program")]
    Conflict { path: String },
    /// An append found another length than expected: the caller's cursor is stale.
    #[error("{path} is {length} bytes long, not {expected}")]
    WrongOffset { path: String, expected: u64, length: u64 },
    #[error("{path} is damaged: its digest is {found}, not {expected}")]
    Damaged { path: String, expected: String, found: String },
    #[error("cannot {action} {path}: {source}")]
    Io {
        action: &'static str,
        path: String,
        #[source]
        source: std::io::Error,
    },
    /// The store does not know the caller, or does not let them in.
    #[error("cannot {action} {path} in the store: {why}")]
    Denied { action: &'static str, path: String, why: String },
    /// There is nothing to sign in with, or it cannot be used.
    #[error("{0}")]
    SignIn(String),
    /// The stored object is not one that ftctl writes: JSON that cannot be read, a manifest that contradicts itself.
    #[error("{0}")]
    Unreadable(String),
    /// Another version wrote it.
    #[error("{0}")]
    OtherFormat(String),
    /// The request itself is wrong: a malformed path, a tree that cannot be sent.
    #[error("{0}")]
    Invalid(String),
}

/// The subject of [`Store::exposure`].
const EXPOSURE: &str = "exposure";

pub type Result<T, E = StoreError> = std::result::Result<T, E>;

/// The operations of every store. All methods are idempotent as far as their conditions allow.
#[async_trait]
pub trait Store: Send + Sync {
    /// The user's spelling of the URL, for messages and for the agent's order.
    fn url(&self) -> &str;

    /// Which store this is, wherever it is seen from: the same however its URL is spelled, and never that of another one.
    async fn identity(&self) -> Result<Digest>;

    /// How many requests at once hide the store's latency.
    fn jobs(&self) -> usize {
        8
    }

    /// The environment variables with which the agent of `job` uses the store until `expires`, in the place of the secrets with
    /// which it was opened. `None` takes a variable away.
    async fn agent_environment(&self, _job: &JobId, _expires: Timestamp) -> Result<Vec<(&'static str, Option<String>)>> {
        Ok(Vec::new())
    }

    /// The damage that an intruder on a machine could do to the store beyond its own job, and what would limit it.
    fn exposure(&self) -> Option<Finding> {
        None
    }

    /// A whole object, unless it is longer than `most` bytes: [`StoreError::Unreadable`], before it is read. Another user may have
    /// written it, and its length must not decide how much memory this process takes.
    async fn get_limited(&self, path: &str, most: u64) -> Result<Object>;

    /// [`Store::get_limited`] with the limit for objects that have no more fitting one.
    async fn get(&self, path: &str) -> Result<Object> {
        self.get_limited(path, MOST).await
    }

    /// The bytes of `range` that exist; empty when it begins at or behind the end. Fails when the object does not exist.
    async fn get_range(&self, path: &str, range: Range<u64>) -> Result<Bytes>;

    /// `None` when there is no such object.
    async fn head(&self, path: &str) -> Result<Option<Meta>>;

    async fn put(&self, path: &str, bytes: Bytes, condition: Condition) -> Result<ETag>;

    /// Appends to a log (created by its first append at offset 0) and returns its new length. `offset` must be the present length:
    /// that makes an append that is sent twice land once. A crash in the middle may leave the first part of `bytes`, never more;
    /// the length in [`StoreError::WrongOffset`] then says where to go on.
    async fn append(&self, path: &str, offset: u64, bytes: Bytes) -> Result<u64>;

    /// Every object below `prefix/`, sorted by path.
    async fn list(&self, prefix: &str) -> Result<Vec<Meta>>;

    /// [`Store::list`] where that takes one request; `None` when there is more, or when asking for single objects is as cheap.
    async fn list_some(&self, _prefix: &str) -> Result<Option<Vec<Meta>>> {
        Ok(None)
    }

    /// The names directly below `prefix/`, sorted; cheap when each holds many objects.
    async fn children(&self, prefix: &str) -> Result<Vec<String>>;

    /// Deletes one object; none is fine.
    async fn delete(&self, path: &str) -> Result<()>;

    /// Deletes these objects, in any order. Some of them may be gone when it fails.
    async fn delete_all(&self, paths: &[String]) -> Result<()> {
        for path in paths {
            self.delete(path).await?;
        }
        Ok(())
    }

    /// Deletes all of a job but its record: as long as that is there, an interrupted deletion can be found again.
    async fn delete_job(&self, job: &JobId) -> Result<()> {
        let (all, record) = (self.list(&path::job(job)).await?, path::record(job));
        let all: Vec<String> = all.into_iter().map(|meta| meta.path).filter(|path| *path != record).collect();
        self.delete_all(&all).await
    }
}

/// How much of the line to a far store may be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Requests under way at once.
    pub jobs: usize,
    /// On average, as sent; `None`: all there is.
    pub bytes_per_second: Option<u64>,
}

impl Default for Limits {
    fn default() -> Self {
        Self { jobs: 48, bytes_per_second: None }
    }
}

/// The source of a store's URL. A sign-in goes to any host that the user names; on another's word, such as that of a job file, of
/// an order or of a record, only to the cloud's own hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WordOf {
    User,
    Another,
}

/// [`open_with`] on another's word than the user's, with the usual limits.
pub fn open(url: &str) -> Result<Arc<dyn Store>> {
    open_with(url, Limits::default(), WordOf::Another)
}

/// Opens the store that `url` names: a blob container, a directory, `file:///…`, or `memory:` (gone with the process).
pub fn open_with(url: &str, limits: Limits, word_of: WordOf) -> Result<Arc<dyn Store>> {
    if azure::is_container(url) {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        return Ok(Arc::new(azure::open(url, &variable, limits, word_of)?));
    }
    if url == MEMORY {
        return Ok(Arc::new(memory::MemoryStore::new()));
    }
    Ok(Arc::new(self::directory::DirectoryStore::open(&directory_of(url)?)?))
}

/// Refuses a URL of no kind of store that [`open_with`] opens.
pub fn known(url: &str) -> Result<()> {
    if azure::is_container(url) || url == MEMORY { Ok(()) } else { directory_of(url).map(drop) }
}

/// The directory that the URL of a store names.
fn directory_of(url: &str) -> Result<PathBuf> {
    if let Some(rest) = url.strip_prefix("file://") {
        let path = rest.strip_prefix("localhost").unwrap_or(rest);
        if !path.starts_with('/') {
            return Err(StoreError::Invalid(format!(
                "the store `{url}` names no absolute path; write it as file:///path/to/store"
            )));
        }
        return Ok(percent_decode(path).into());
    }
    match address::mistaken(url) {
        Some(why) => Err(StoreError::Invalid(why)),
        None => Ok(url.into()),
    }
}

/// The directory of a store that is one.
pub fn directory(url: &str) -> Option<PathBuf> {
    let is_one = !azure::is_container(url) && url != MEMORY;
    is_one.then(|| directory_of(url).ok()).flatten()
}

/// Whether the store would be a directory that does not exist yet: the first write makes it.
pub fn is_yet_to_be_made(url: &str) -> bool {
    directory(url).is_some_and(|path| matches!(path.try_exists(), Ok(false)))
}

/// `%20` and its like; anything that is no such sequence stays as it is.
fn percent_decode(text: &str) -> String {
    let mut decoded = Vec::new();
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        let digits = tail.get(..2).filter(|_| *first == b'%').and_then(|pair| std::str::from_utf8(pair).ok());
        if let Some(byte) = digits.and_then(|pair| u8::from_str_radix(pair, 16).ok()) {
            decoded.push(byte);
            rest = &tail[2..];
        } else {
            decoded.push(*first);
            rest = tail;
        }
    }
    String::from_utf8_lossy(&decoded).into_owned()
}

/// Most bytes of an object that is read as a whole: the progress of a million steps has fewer.
const MOST: u64 = 128 << 20;

/// Most bytes of a JSON object: a record of 10,000 attempts has fewer.
const MOST_JSON: u64 = 16 << 20;

/// Most bytes of a manifest, which has 80 bytes for each 4 MiB of a file: that of 3 TB has fewer.
const MOST_MANIFEST: u64 = 64 << 20;

/// Reads an object that holds JSON, if it is no longer than such ever are.
pub async fn get_json(store: &dyn Store, path: &str) -> Result<Object> {
    let most = if path.ends_with("/manifest.json") { MOST_MANIFEST } else { MOST_JSON };
    store.get_limited(path, most).await
}

/// Refuses what has more bytes than objects of its kind ever have.
fn check_size(path: &str, length: u64, most: u64) -> Result<()> {
    if length <= most {
        return Ok(());
    }
    Err(StoreError::Unreadable(format!(
        "{path} in the store has {length} bytes, and no more than {most} are read; it is not ftctl's work"
    )))
}

/// Reads a JSON object together with the version a conditional write needs.
pub async fn read_json<T: DeserializeOwned>(store: &dyn Store, path: &str) -> Result<(T, ETag)> {
    let object = get_json(store, path).await?;
    Ok((parse_json(path, &object.bytes)?, object.etag))
}

/// [`read_json`]; `None` when there is no such object.
pub async fn find_json<T: DeserializeOwned>(store: &dyn Store, path: &str) -> Result<Option<(T, ETag)>> {
    match read_json(store, path).await {
        Err(StoreError::NotFound { .. }) => Ok(None),
        found => found.map(Some),
    }
}

/// Writes a value as indented JSON, so that a person can read the store.
pub async fn write_json<T: Serialize>(store: &dyn Store, path: &str, value: &T, condition: Condition) -> Result<ETag> {
    store.put(path, to_json(path, value)?, condition).await
}

fn parse_json<T: DeserializeOwned>(path: &str, bytes: &[u8]) -> Result<T> {
    serde_json::from_slice(bytes).map_err(|error| StoreError::Unreadable(format!("{path} in the store cannot be read: {error}")))
}

/// Refuses a stored value of a format that this version does not read.
fn check_format(path: &str, found: &str, known: &[&str]) -> Result<()> {
    if known.contains(&found) {
        return Ok(());
    }
    let known = known.join("`, `");
    let found = found.escape_debug();
    Err(StoreError::OtherFormat(format!("{path} is of the format `{found}`, this version reads `{known}`; use a newer ftctl")))
}

fn to_json<T: Serialize>(path: &str, value: &T) -> Result<Bytes> {
    let mut text =
        serde_json::to_vec_pretty(value).map_err(|error| StoreError::Invalid(format!("{path} cannot be written: {error}")))?;
    text.push(b'\n');
    Ok(text.into())
}

/// Refuses a path that some store would take for another object, or for something outside.
fn check_path(path: &str) -> Result<()> {
    let wrong = |why: &str| Err(StoreError::Invalid(format!("`{}` cannot be a path in a store: {why}", path.escape_debug())));
    if path.len() > 1_000 {
        return wrong("it is longer than 1,000 bytes");
    }
    if path.chars().any(|c| c.is_control() || c == '\\') {
        return wrong("it has a control character or a backslash");
    }
    match path.split('/').find(|part| matches!(*part, "" | "." | ".." | directory::PRIVATE)) {
        Some("") => wrong("it is empty, begins or ends with `/`, or has `//`"),
        Some(part) => wrong(&format!("it has a part `{part}`")),
        None => Ok(()),
    }
}

/// [`check_path`] that allows the empty prefix, which is the whole store.
fn check_prefix(prefix: &str) -> Result<()> {
    if prefix.is_empty() { Ok(()) } else { check_path(prefix) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn urls_name_stores() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("with space");
        let url = format!("file://{}", path.display()).replace(' ', "%20");
        for url in [url, path.display().to_string()] {
            assert_eq!(open(&url).unwrap().url(), path.display().to_string());
        }
        assert_eq!(open("memory:").unwrap().url(), "memory:");
        let error = open("abfss://box@acc.dfs.core.windows.net/team/").map(|_| ()).unwrap_err().to_string();
        assert!(error.contains("write it as https://acc.blob.core.windows.net/box/team"), "{error}");
        for url in ["", "s3://bucket", "file://host/path", "file://relative"] {
            let error = open(url).err().unwrap().to_string();
            assert!(error.contains(url) && error.contains("file:///"), "{error}");
        }
        assert_eq!(percent_decode("/a%2Fb%zz%4"), "/a/b%zz%4");
    }
}
