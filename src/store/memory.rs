//! A store in memory, gone with the process: for tests and rehearsals.

use std::{
    collections::BTreeMap,
    ops::Range,
    sync::{Mutex, MutexGuard, OnceLock, PoisonError},
};

use async_trait::async_trait;
use bytes::Bytes;
use jiff::Timestamp;

use super::{Condition, ETag, Meta, Object, Result, Store, StoreError, check_path, check_prefix, check_size, identity};
use crate::job::digest::Digest;

const URL: &str = "memory:";

#[derive(Default)]
pub struct MemoryStore {
    objects: Mutex<Objects>,
    identity: OnceLock<Digest>,
}

#[derive(Default)]
struct Objects {
    by_path: BTreeMap<String, Stored>,
    /// Number of writes: the version of the last one.
    writes: u64,
}

struct Stored {
    bytes: Vec<u8>,
    version: u64,
    modified: Timestamp,
}

impl MemoryStore {
    pub fn new() -> Self {
        Self::default()
    }

    /// No method panics while it holds the lock, so what a poisoned one guards is whole.
    fn objects(&self) -> MutexGuard<'_, Objects> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Objects {
    fn find(&self, path: &str) -> Result<&Stored> {
        check_path(path)?;
        self.by_path.get(path).ok_or_else(|| StoreError::NotFound { store: URL.to_owned(), path: path.to_owned() })
    }

    fn write(&mut self, path: &str, bytes: Vec<u8>) -> ETag {
        self.writes += 1;
        self.by_path.insert(path.to_owned(), Stored { bytes, version: self.writes, modified: Timestamp::now() });
        etag(self.writes)
    }
}

fn etag(version: u64) -> ETag {
    ETag(version.to_string())
}

fn meta(path: &str, stored: &Stored) -> Meta {
    Meta { path: path.to_owned(), size: stored.bytes.len() as u64, modified: stored.modified }
}

/// The part of `path` below `prefix/`; `None` when it is not below.
fn below<'a>(path: &'a str, prefix: &str) -> Option<&'a str> {
    if prefix.is_empty() { Some(path) } else { path.strip_prefix(prefix)?.strip_prefix('/') }
}

#[async_trait]
impl Store for MemoryStore {
    fn url(&self) -> &'static str {
        URL
    }

    async fn identity(&self) -> Result<Digest> {
        Ok(self.identity.get_or_init(|| identity::of(identity::draw())).clone())
    }

    async fn get_limited(&self, path: &str, most: u64) -> Result<Object> {
        let objects = self.objects();
        let stored = objects.find(path)?;
        check_size(path, stored.bytes.len() as u64, most)?;
        Ok(Object { bytes: Bytes::copy_from_slice(&stored.bytes), etag: etag(stored.version) })
    }

    async fn get_range(&self, path: &str, range: Range<u64>) -> Result<Bytes> {
        let objects = self.objects();
        let bytes = &objects.find(path)?.bytes;
        let end = bytes.len().min(range.end as usize);
        Ok(Bytes::copy_from_slice(bytes.get(range.start as usize..end).unwrap_or_default()))
    }

    async fn head(&self, path: &str) -> Result<Option<Meta>> {
        check_path(path)?;
        Ok(self.objects().by_path.get(path).map(|stored| meta(path, stored)))
    }

    async fn put(&self, path: &str, bytes: Bytes, condition: Condition) -> Result<ETag> {
        check_path(path)?;
        let mut objects = self.objects();
        let present = objects.by_path.get(path).map(|stored| etag(stored.version));
        let holds = match condition {
            Condition::Always => true,
            Condition::IfAbsent => present.is_none(),
            Condition::IfMatch(expected) => present == Some(expected),
        };
        if holds { Ok(objects.write(path, bytes.into())) } else { Err(StoreError::Conflict { path: path.to_owned() }) }
    }

    async fn append(&self, path: &str, offset: u64, bytes: Bytes) -> Result<u64> {
        check_path(path)?;
        let mut objects = self.objects();
        let length = objects.by_path.get(path).map_or(0, |stored| stored.bytes.len() as u64);
        if length != offset {
            return Err(StoreError::WrongOffset { path: path.to_owned(), expected: offset, length });
        }
        let mut grown = objects.by_path.remove(path).map(|stored| stored.bytes).unwrap_or_default();
        grown.extend_from_slice(&bytes);
        objects.write(path, grown);
        Ok(length + bytes.len() as u64)
    }

    async fn list(&self, prefix: &str) -> Result<Vec<Meta>> {
        check_prefix(prefix)?;
        let objects = self.objects();
        Ok(objects
            .by_path
            .iter()
            .filter(|(path, _)| below(path, prefix).is_some())
            .map(|(path, stored)| meta(path, stored))
            .collect())
    }

    async fn children(&self, prefix: &str) -> Result<Vec<String>> {
        check_prefix(prefix)?;
        let objects = self.objects();
        let mut names: Vec<String> =
            objects.by_path.keys().filter_map(|path| below(path, prefix)?.split('/').next()).map(str::to_owned).collect();
        names.sort_unstable();
        names.dedup();
        Ok(names)
    }

    async fn delete(&self, path: &str) -> Result<()> {
        check_path(path)?;
        self.objects().by_path.remove(path);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[tokio::test]
    async fn conforms() {
        crate::store::conformance::passes(Arc::new(MemoryStore::new()), 1_000).await;
    }
}
