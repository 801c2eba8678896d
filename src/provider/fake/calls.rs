//! Every outbound call of a rehearsal, to the cloud and to the store, passes one counter: it is written down, and the process can
//! be killed before or after it.

use std::{
    collections::BTreeMap,
    fs::{File, OpenOptions},
    future::Future,
    io::{self, Write},
    ops::Range,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use async_trait::async_trait;
use bytes::Bytes;
use rustix::process::{Signal, getpid, kill_process};
use serde::{Deserialize, Serialize};

use super::script::{CrashAt, When};
use crate::{
    job::{digest::Digest, finding::Finding, id::JobId},
    store::{Condition, ETag, Meta, Object, Result, Store},
};

/// One line of `calls.jsonl`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallLine {
    /// The process.
    pub run: u32,
    /// Counts from 1 in each process.
    pub call: u64,
    pub name: String,
    /// The machine, the job or the object that it concerns.
    pub target: String,
}

pub struct Calls {
    log: File,
    made: Arc<AtomicU64>,
    crash_at: Option<CrashAt>,
}

/// How many calls this process has made, by log: a verb that opens the cloud twice goes on counting.
static MADE: Mutex<BTreeMap<PathBuf, Arc<AtomicU64>>> = Mutex::new(BTreeMap::new());

impl Calls {
    pub fn open(log: &Path, crash_at: Option<CrashAt>) -> io::Result<Self> {
        let made = MADE.lock().unwrap_or_else(PoisonError::into_inner).entry(log.to_owned()).or_default().clone();
        let log = OpenOptions::new().create(true).append(true).open(log)?;
        Ok(Self { log, made, crash_at })
    }

    /// Makes one call.
    pub async fn make<T>(&self, name: &str, target: &str, call: impl Future<Output = T>) -> T {
        let number = self.made.fetch_add(1, Ordering::Relaxed) + 1;
        self.write_down(number, name, target);
        self.crash(number, When::Before);
        let answer = call.await;
        self.crash(number, When::After);
        answer
    }

    fn write_down(&self, call: u64, name: &str, target: &str) {
        let line = CallLine { run: std::process::id(), call, name: name.to_owned(), target: target.to_owned() };
        let line = serde_json::to_string(&line).unwrap_or_default();
        // The cloud's own file is on the same disk and will say what is wrong with it.
        let _ = (&self.log).write_all(format!("{line}\n").as_bytes());
    }

    fn crash(&self, call: u64, when: When) {
        if self.crash_at == Some(CrashAt { call, when }) {
            let _ = kill_process(getpid(), Signal::KILL);
        }
    }
}

/// A store whose every call is counted.
pub struct CrashingStore {
    store: Arc<dyn Store>,
    calls: Arc<Calls>,
}

impl CrashingStore {
    pub fn new(store: Arc<dyn Store>, calls: Arc<Calls>) -> Self {
        Self { store, calls }
    }
}

#[async_trait]
impl Store for CrashingStore {
    fn url(&self) -> &str {
        self.store.url()
    }

    async fn identity(&self) -> Result<Digest> {
        self.store.identity().await
    }

    fn jobs(&self) -> usize {
        self.store.jobs()
    }

    async fn get_limited(&self, path: &str, most: u64) -> Result<Object> {
        self.calls.make("get", path, self.store.get_limited(path, most)).await
    }

    async fn get_range(&self, path: &str, range: Range<u64>) -> Result<Bytes> {
        self.calls.make("get_range", path, self.store.get_range(path, range)).await
    }

    async fn head(&self, path: &str) -> Result<Option<Meta>> {
        self.calls.make("head", path, self.store.head(path)).await
    }

    async fn put(&self, path: &str, bytes: Bytes, condition: Condition) -> Result<ETag> {
        self.calls.make("put", path, self.store.put(path, bytes, condition)).await
    }

    async fn append(&self, path: &str, offset: u64, bytes: Bytes) -> Result<u64> {
        self.calls.make("append", path, self.store.append(path, offset, bytes)).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<Meta>> {
        self.calls.make("list", prefix, self.store.list(prefix)).await
    }

    async fn children(&self, prefix: &str) -> Result<Vec<String>> {
        self.calls.make("children", prefix, self.store.children(prefix)).await
    }

    async fn delete(&self, path: &str) -> Result<()> {
        self.calls.make("delete", path, self.store.delete(path)).await
    }

    async fn delete_all(&self, paths: &[String]) -> Result<()> {
        let Some(first) = paths.first() else { return Ok(()) };
        self.calls.make("delete_all", first, self.store.delete_all(paths)).await
    }

    async fn delete_job(&self, job: &JobId) -> Result<()> {
        self.calls.make("delete_job", job.as_str(), self.store.delete_job(job)).await
    }

    fn exposure(&self) -> Option<Finding> {
        self.store.exposure()
    }
}
