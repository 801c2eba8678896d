//! A store for tests that counts what it is asked and fails when told to: a far store that is down for a while, or whose answers
//! are lost.

use std::{
    ops::Range,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;

use super::{Condition, ETag, Meta, Object, Result, Store, StoreError};
use crate::job::digest::Digest;

pub struct FaultyStore {
    inner: Arc<dyn Store>,
    /// Every call fails before it does anything.
    pub down: AtomicBool,
    /// Every call for a path below this fails; the empty prefix means none.
    pub unreachable: Mutex<String>,
    /// Every write is done, and then reported as failed.
    pub loses_answers: AtomicBool,
    /// Once, after the first write below the former path, another user deletes the latter.
    pub takes_away: Mutex<Option<(String, String)>>,
    /// Every request for an object takes so long, a write as long again until it is answered.
    pub delay: Mutex<Duration>,
    /// The paths written, in order.
    pub written: Mutex<Vec<String>>,
    /// Done once, after this many more writes.
    then: Mutex<Option<(usize, Act)>>,
}

type Act = Box<dyn FnOnce() + Send>;

impl FaultyStore {
    pub fn new(inner: Arc<dyn Store>) -> Arc<Self> {
        Arc::new(Self {
            inner,
            down: AtomicBool::new(false),
            unreachable: Mutex::default(),
            loses_answers: AtomicBool::new(false),
            takes_away: Mutex::default(),
            delay: Mutex::default(),
            written: Mutex::default(),
            then: Mutex::default(),
        })
    }

    /// Lets something happen in the middle of a writer's work: once, after `number` writes from now.
    pub fn after_writes(&self, number: usize, act: impl FnOnce() + Send + 'static) {
        *self.then.lock().unwrap() = Some((self.written.lock().unwrap().len() + number, Box::new(act)));
    }

    /// The paths written since the last call.
    pub fn take_written(&self) -> Vec<String> {
        std::mem::take(&mut self.written.lock().unwrap())
    }

    async fn travel(&self) {
        let delay = *self.delay.lock().unwrap();
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
    }

    async fn before(&self, path: &str) -> Result<()> {
        self.travel().await;
        let unreachable = self.unreachable.lock().unwrap();
        let fails = self.down.load(Ordering::SeqCst) || (!unreachable.is_empty() && path.starts_with(unreachable.as_str()));
        if fails { Err(failed("reach", path)) } else { Ok(()) }
    }

    async fn after<T>(&self, path: &str, result: Result<T>) -> Result<T> {
        self.travel().await;
        let taken = self.takes_away.lock().unwrap().take_if(|(below, _)| path.starts_with(below.as_str()));
        if let Some((_, victim)) = taken {
            self.inner.delete(&victim).await?;
        }
        if result.is_ok() {
            let mut written = self.written.lock().unwrap();
            written.push(path.to_owned());
            if let Some((_, act)) = self.then.lock().unwrap().take_if(|(number, _)| *number <= written.len()) {
                act();
            }
        }
        if self.loses_answers.load(Ordering::SeqCst) { Err(failed("hear from", path)) } else { result }
    }
}

fn failed(action: &'static str, path: &str) -> StoreError {
    StoreError::Io { action, path: path.to_owned(), source: std::io::ErrorKind::ConnectionReset.into() }
}

#[async_trait]
impl Store for FaultyStore {
    fn url(&self) -> &str {
        self.inner.url()
    }

    async fn identity(&self) -> Result<Digest> {
        self.inner.identity().await
    }

    async fn get_limited(&self, path: &str, most: u64) -> Result<Object> {
        self.before(path).await?;
        self.inner.get_limited(path, most).await
    }
    async fn get_range(&self, path: &str, range: Range<u64>) -> Result<Bytes> {
        self.before(path).await?;
        self.inner.get_range(path, range).await
    }
    async fn head(&self, path: &str) -> Result<Option<Meta>> {
        self.before(path).await?;
        self.inner.head(path).await
    }
    async fn put(&self, path: &str, bytes: Bytes, condition: Condition) -> Result<ETag> {
        self.before(path).await?;
        self.after(path, self.inner.put(path, bytes, condition).await).await
    }
    async fn append(&self, path: &str, offset: u64, bytes: Bytes) -> Result<u64> {
        self.before(path).await?;
        self.after(path, self.inner.append(path, offset, bytes).await).await
    }
    async fn list(&self, prefix: &str) -> Result<Vec<Meta>> {
        self.before(prefix).await?;
        self.inner.list(prefix).await
    }
    async fn children(&self, prefix: &str) -> Result<Vec<String>> {
        self.before(prefix).await?;
        self.inner.children(prefix).await
    }
    async fn delete(&self, path: &str) -> Result<()> {
        self.before(path).await?;
        self.inner.delete(path).await
    }
}
