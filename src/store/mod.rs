//! The store: the shared truth of every job. One interface, several implementations: `directory` (the embedded default),
//! `memory` (tests), and a blob container.
//!
//! Paths are relative, separated by `/`, without `.` and `..`. Every operation is atomic: a reader sees the old object or the new
//! one, never a part.

use std::{ops::Range, path::Path};

use async_trait::async_trait;
use bytes::Bytes;
use jiff::Timestamp;

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

#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("{path} is not in the store {store}")]
    NotFound { store: String, path: String },
    /// Somebody else wrote first.
    #[error("{path} was changed by somebody else")]
    Conflict { path: String },
    /// An append found another length than expected: the caller's cursor is stale.
    #[error("{path} is {length} bytes long, not {expected}")]
    WrongOffset { path: String, expected: u64, length: u64 },
    #[error("{path} is damaged: its digest is {found}, not {expected}")]
    Damaged { path: String, expected: String, found: String },
    #[error("cannot {action} {path} in the store: {source}")]
    Io {
        action: &'static str,
        path: String,
        #[source]
        source: std::io::Error,
    },
    /// The request itself is wrong: a malformed path, an unreadable manifest.
    #[error("{0}")]
    Invalid(String),
}

pub type Result<T, E = StoreError> = std::result::Result<T, E>;

/// What every store can do. All methods are idempotent as far as their conditions allow.
#[async_trait]
pub trait Store: Send + Sync {
    /// As the user named it, for messages and for the agent's order.
    fn url(&self) -> &str;

    async fn get(&self, path: &str) -> Result<Object>;

    /// The bytes of `range` that exist; empty when it begins at or behind the end. Fails when the object does not exist.
    async fn get_range(&self, path: &str, range: Range<u64>) -> Result<Bytes>;

    /// `None` when there is no such object.
    async fn head(&self, path: &str) -> Result<Option<Meta>>;

    async fn put(&self, path: &str, bytes: Bytes, condition: Condition) -> Result<ETag>;

    /// Writes a local file of any size with bounded memory.
    async fn put_file(&self, path: &str, file: &Path, condition: Condition) -> Result<ETag>;

    /// Appends to a log (created by its first append at offset 0) and returns its new length. `offset` must be the present length:
    /// that makes an append that is sent twice land once.
    async fn append(&self, path: &str, offset: u64, bytes: Bytes) -> Result<u64>;

    /// Every object below `prefix/`, sorted by path.
    async fn list(&self, prefix: &str) -> Result<Vec<Meta>>;

    /// The names directly below `prefix/`, sorted; cheap when each holds many objects.
    async fn children(&self, prefix: &str) -> Result<Vec<String>>;

    /// Deletes one object; none is fine.
    async fn delete(&self, path: &str) -> Result<()>;
}
