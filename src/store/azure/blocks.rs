//! Sending a file: in one request when it is small, else in blocks, several at a time.
//!
//! A block's id is its number and the MD5 of its bytes. What an interrupted upload staged is therefore recognised block by block and
//! not sent again, also when the file has changed in other places since.

use std::{
    collections::HashSet,
    fs::File,
    io::Read,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use bytes::Bytes;
use reqwest::Method;
use sha2::{Digest, Sha256};
use tokio::{sync::OwnedSemaphorePermit, task::JoinSet};

use super::{
    super::{
        Condition, ETag, Result, StoreError,
        content::{joined, on_thread},
    },
    AzureStore, Client, Request, md5, nonsense, wire,
};

/// Bytes of a block, and of the largest file that is sent in one request.
pub(super) const BLOCK: u64 = 4 << 20;
/// The service takes so many blocks of one file.
const MOST_BLOCKS: u64 = 50_000;
/// What all files together may hold in memory, in KiB.
pub(super) const MEMORY_KIB: usize = 48 << 10;

/// A local file on its way, hashed as it is read.
struct Source {
    file: File,
    path: PathBuf,
    length: u64,
    hasher: Option<Sha256>,
}

impl Source {
    fn open(path: &Path, hashed: bool) -> Result<Self> {
        let opened = File::open(path).and_then(|file| file.metadata().map(|metadata| (file, metadata.len())));
        let (file, length) = opened.map_err(|error| unreadable(path, error))?;
        Ok(Self { file, path: path.to_owned(), length, hasher: hashed.then(Sha256::new) })
    }

    fn read(&mut self, length: u64) -> Result<Bytes> {
        let mut bytes = Vec::with_capacity(length as usize);
        self.file.by_ref().take(length).read_to_end(&mut bytes).map_err(|error| unreadable(&self.path, error))?;
        if let Some(hasher) = &mut self.hasher {
            hasher.update(&bytes);
        }
        Ok(bytes.into())
    }

    /// Fails when what was read is not what was expected: the file has changed.
    fn check(self, expected: Option<&str>) -> Result<()> {
        let found = self.hasher.map(|hasher| hex::encode(hasher.finalize()));
        match (found, expected) {
            (Some(found), Some(expected)) if found != expected => {
                Err(StoreError::Damaged { path: self.path.display().to_string(), expected: expected.to_owned(), found })
            }
            _ => Ok(()),
        }
    }
}

fn unreadable(path: &Path, source: std::io::Error) -> StoreError {
    StoreError::Io { action: "read", path: path.display().to_string(), source }
}

impl AzureStore {
    pub(super) async fn send_file(
        &self,
        path: &str,
        local: &Path,
        sha256: Option<&str>,
        condition: &Condition,
        sent: &Arc<AtomicU64>,
    ) -> Result<ETag> {
        let source = Source::open(local, sha256.is_some())?;
        if source.length > BLOCK {
            return self.send_blocks(path, source, sha256, condition, sent).await;
        }
        let _room = self.room(source.length).await;
        let expected = sha256.map(str::to_owned);
        let (bytes, sum) = on_thread(move || {
            let mut source = source;
            // One byte more shows a file that has grown.
            let bytes = source.read(BLOCK + 1)?;
            source.check(expected.as_deref())?;
            let sum = md5(&bytes);
            Ok((bytes, sum))
        })
        .await?;
        let length = bytes.len() as u64;
        let request = Request::new(Method::PUT, path).header("x-ms-blob-type", "BlockBlob").body(bytes, sum);
        let etag = self.commit(path, request, condition).await?;
        sent.fetch_add(length, Ordering::Relaxed);
        Ok(etag)
    }

    async fn room(&self, bytes: u64) -> Option<OwnedSemaphorePermit> {
        let kib = (bytes >> 10).clamp(1, MEMORY_KIB as u64) as u32;
        // Never closed.
        Arc::clone(&self.memory).acquire_many_owned(kib).await.ok()
    }

    async fn send_blocks(
        &self,
        path: &str,
        mut source: Source,
        sha256: Option<&str>,
        condition: &Condition,
        sent: &Arc<AtomicU64>,
    ) -> Result<ETag> {
        let block = BLOCK.max(source.length.div_ceil(MOST_BLOCKS));
        let staged = Arc::new(self.staged(path).await?);
        let mut ids = vec![String::new(); source.length.div_ceil(block) as usize];
        let mut sending = JoinSet::new();
        for number in 0..ids.len() {
            let room = self.room(block).await;
            let bytes;
            (source, bytes) = on_thread(move || source.read(block).map(|bytes| (source, bytes))).await?;
            let (client, path, staged, sent) = (Arc::clone(&self.client), path.to_owned(), Arc::clone(&staged), Arc::clone(sent));
            sending.spawn(async move {
                let _room = room;
                let length = bytes.len() as u64;
                let id = send_block(&client, &path, number, bytes, &staged).await?;
                sent.fetch_add(length, Ordering::Relaxed);
                Ok((number, id))
            });
            while let Some(done) = sending.try_join_next() {
                let (number, id): (usize, String) = joined(done)?;
                ids[number] = id;
            }
        }
        while let Some(done) = sending.join_next().await {
            let (number, id) = joined(done)?;
            ids[number] = id;
        }
        source.check(sha256)?;
        let list = Bytes::from(wire::block_list(&ids));
        let sum = md5(&list);
        self.commit(path, Request::new(Method::PUT, path).query("comp", "blocklist").body(list, sum), condition).await
    }

    /// The blocks that an earlier upload left.
    pub(super) async fn staged(&self, path: &str) -> Result<HashSet<String>> {
        let request = Request::new(Method::GET, path).query("comp", "blocklist").query("blocklisttype", "uncommitted");
        let reply = self.client.send("read", &request).await?;
        if reply.status == 404 {
            return Ok(HashSet::new());
        }
        if !reply.is_success() {
            return Err(self.client.refused("read", path, &reply));
        }
        let blocks = reply.text().and_then(wire::uncommitted).map_err(|why| nonsense("read", path, why))?;
        Ok(blocks.into_iter().map(|block| block.id).collect())
    }
}

/// Stages a block, unless it is there, and gives its id.
pub(super) async fn send_block(
    client: &Client,
    path: &str,
    number: usize,
    bytes: Bytes,
    staged: &HashSet<String>,
) -> Result<String> {
    let (bytes, sum) = on_thread(move || {
        let sum = md5(&bytes);
        Ok((bytes, sum))
    })
    .await?;
    let id = BASE64_STANDARD.encode([&(number as u32).to_be_bytes()[..], &sum].concat());
    if staged.contains(&id) {
        return Ok(id);
    }
    let request = Request::new(Method::PUT, path).query("comp", "block").query("blockid", &id).body(bytes, sum);
    let reply = super::write(client, "write", request).await?;
    if reply.is_success() { Ok(id) } else { Err(client.refused("write", path, &reply)) }
}
