//! File trees by content: what datasets and checkpoints have in common. The bytes of a file are an object named by their SHA-256,
//! shared between everything that holds the same file; a manifest gives them their names.

use std::{
    collections::{HashMap, HashSet},
    fs::{self, File},
    future::Future,
    io::{self, Read},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio::task::{JoinError, JoinSet};

use super::{Condition, Result, Store, StoreError, sha256};
use crate::job::{
    id::path,
    report::{Report, Unit},
};

/// One file of a dataset or a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct FileEntry {
    /// Relative, separated by `/`.
    pub path: String,
    pub size: u64,
    /// Hexadecimal SHA-256 of the bytes.
    pub sha256: String,
}

/// What sending a tree came to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Sent {
    pub files: u64,
    pub bytes: u64,
}

/// A tree on this machine, with the digest of every file as it was when it was hashed.
pub(super) struct LocalTree {
    root: PathBuf,
    pub files: Vec<FileEntry>,
}

impl LocalTree {
    /// Hashes a directory, or a single file, on all cores. Hidden files belong to it; a symbolic link to a file counts as that
    /// file; anything that is neither file nor folder is refused, and so is a tree without files.
    pub async fn hash(source: &Path, report: &dyn Report) -> Result<Self> {
        let root = if source.is_file() { source.parent().unwrap_or(Path::new("")).to_owned() } else { source.to_owned() };
        let mut found = Vec::new();
        if source.is_file() {
            found.push(source.to_owned());
        } else {
            walk(source, &mut found)?;
        }
        if found.is_empty() {
            return Err(StoreError::Invalid(format!("{} holds no files", source.display())));
        }
        let total = found.iter().filter_map(|path| path.metadata().ok()).map(|metadata| metadata.len()).sum();
        let counter = Arc::new(AtomicU64::new(0));
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let hashed = concurrently(threads, found, |path| {
            let (root, counter) = (root.clone(), Arc::clone(&counter));
            async move { on_thread(move || hash_one(&root, &path, &counter)).await }
        });
        let mut files = watched(hashed, &counter, |done| report.progress("Hashing files", done, Some(total), Unit::Bytes)).await?;
        files.sort_unstable();
        Ok(Self { root, files })
    }

    /// One file of each content.
    pub fn distinct(&self) -> Vec<FileEntry> {
        let mut seen = HashSet::new();
        self.files.iter().filter(|file| seen.insert(&file.sha256)).cloned().collect()
    }

    /// What `store` lacks of it below `contents`, each content once.
    pub async fn missing(&self, store: &Arc<dyn Store>, contents: &str) -> Result<Vec<FileEntry>> {
        let mut distinct = self.distinct();
        if let Some(present) = store.list_some(contents).await? {
            let present: HashSet<String> = present.into_iter().map(|meta| meta.path).collect();
            distinct.retain(|file| !present.contains(&path::content(contents, &file.sha256)));
            return Ok(distinct);
        }
        let missing = concurrently(store.jobs(), distinct, |file| {
            let (store, name) = (Arc::clone(store), path::content(contents, &file.sha256));
            async move { Ok(store.head(&name).await?.is_none().then_some(file)) }
        });
        Ok(missing.await?.into_iter().flatten().collect())
    }

    /// Sends what `store` lacks. A file that changed since it was hashed is an error, and its content is not stored.
    pub async fn send(&self, store: &Arc<dyn Store>, contents: &str, report: &dyn Report) -> Result<Sent> {
        let missing = self.missing(store, contents).await?;
        let sent = Sent { files: missing.len() as u64, bytes: missing.iter().map(|file| file.size).sum() };
        let counter = Arc::new(AtomicU64::new(0));
        let sending = concurrently(store.jobs(), missing, |file| {
            let (store, local, counter) = (Arc::clone(store), self.root.join(&file.path), Arc::clone(&counter));
            let name = path::content(contents, &file.sha256);
            async move { send_one(store.as_ref(), &name, &local, &file, &counter).await }
        });
        if sent.bytes == 0 {
            sending.await?;
        } else {
            watched(sending, &counter, |done| {
                report.progress("Sending files", done.min(sent.bytes), Some(sent.bytes), Unit::Bytes);
            })
            .await?;
        }
        Ok(sent)
    }
}

async fn send_one(store: &dyn Store, name: &str, local: &Path, file: &FileEntry, sent: &Arc<AtomicU64>) -> Result<()> {
    match store.put_file(name, local, Some(&file.sha256), Condition::IfAbsent, sent).await {
        Ok(_) => Ok(()),
        // Somebody else sent the same bytes meanwhile.
        Err(StoreError::Conflict { .. }) => {
            sent.fetch_add(file.size, Ordering::Relaxed);
            Ok(())
        }
        Err(StoreError::Damaged { path, .. }) => Err(changed(Path::new(&path))),
        Err(error) => Err(error),
    }
}

fn changed(path: &Path) -> StoreError {
    StoreError::Invalid(format!(
        "{} changed while it was being read; nothing was committed; try again when it is complete",
        path.display()
    ))
}

/// Every file below `folder`.
fn walk(folder: &Path, found: &mut Vec<PathBuf>) -> Result<()> {
    let unreadable = |path: &Path, source| StoreError::Io { action: "read", path: path.display().to_string(), source };
    for entry in fs::read_dir(folder).map_err(|error| unreadable(folder, error))? {
        let entry = entry.map_err(|error| unreadable(folder, error))?;
        let path = entry.path();
        let linked = fs::metadata(&path).map_err(|error| unreadable(&path, error))?;
        if linked.is_file() {
            found.push(path);
        } else if linked.is_dir() && !path.is_symlink() {
            walk(&path, found)?;
        } else {
            let kind = if linked.is_dir() { "a link to a directory" } else { "neither a file nor a directory" };
            return Err(StoreError::Invalid(format!("{} is {kind}; take it out, or put a copy in its place", path.display())));
        }
    }
    Ok(())
}

fn hash_one(root: &Path, path: &Path, counter: &AtomicU64) -> Result<FileEntry> {
    let unreadable = |source| StoreError::Io { action: "read", path: path.display().to_string(), source };
    let mut file = File::open(path).map_err(unreadable)?;
    let before = file.metadata().map_err(unreadable)?;
    let (size, sha256) = hash_reader(&mut file, |count| {
        counter.fetch_add(count, Ordering::Relaxed);
    })
    .map_err(unreadable)?;
    let after = file.metadata().map_err(unreadable)?;
    if size != before.len() || after.len() != before.len() || after.modified().ok() != before.modified().ok() {
        return Err(changed(path));
    }
    Ok(FileEntry { path: relative_name(root, path)?, size, sha256 })
}

pub(super) fn hash_reader(reader: &mut impl Read, count_bytes: impl FnMut(u64)) -> io::Result<(u64, String)> {
    let mut hasher = Sha256::new();
    let size = hash_into(&mut hasher, reader, count_bytes)?;
    Ok((size, hex::encode(hasher.finalize())))
}

/// Reads to the end; answers how many bytes that were.
pub(super) fn hash_into(hasher: &mut Sha256, reader: &mut impl Read, mut count_bytes: impl FnMut(u64)) -> io::Result<u64> {
    let mut buffer = vec![0; 1 << 20];
    let mut size = 0;
    loop {
        let count = reader.read(&mut buffer)?;
        if count == 0 {
            return Ok(size);
        }
        hasher.update(&buffer[..count]);
        size += count as u64;
        count_bytes(count as u64);
    }
}

fn relative_name(root: &Path, path: &Path) -> Result<String> {
    let relative = path.strip_prefix(root).unwrap_or(path);
    let name =
        relative.to_str().ok_or_else(|| StoreError::Invalid(format!("the name {} is not UTF-8; rename it", path.display())))?;
    Ok(name.to_owned())
}

/// Reads a manifest and checks its digest before anything in it is believed.
pub(super) async fn verified(store: &dyn Store, path: &str, digest: &str) -> Result<bytes::Bytes> {
    let object = store.get(path).await?;
    let found = sha256(&object.bytes);
    if found == digest {
        Ok(object.bytes)
    } else {
        Err(StoreError::Damaged { path: path.to_owned(), expected: digest.to_owned(), found })
    }
}

/// Does `act` for every item, at most `limit` at a time, and answers in the order of the items; the first error ends it.
pub(super) async fn concurrently<I, T, F>(limit: usize, items: Vec<I>, act: impl Fn(I) -> F) -> Result<Vec<T>>
where
    T: Send + 'static,
    F: Future<Output = Result<T>> + Send + 'static,
{
    let mut waiting = items.into_iter().enumerate();
    let mut running = JoinSet::new();
    let mut done = HashMap::new();
    loop {
        while running.len() < limit
            && let Some((index, item)) = waiting.next()
        {
            let work = act(item);
            running.spawn(async move { (index, work.await) });
        }
        match running.join_next().await {
            None => break,
            Some(finished) => {
                let (index, result) = joined(finished.map(Ok))?;
                done.insert(index, result?);
            }
        }
    }
    let mut done: Vec<(usize, T)> = done.into_iter().collect();
    done.sort_unstable_by_key(|(index, _)| *index);
    Ok(done.into_iter().map(|(_, result)| result).collect())
}

/// Runs `work` and reports `counter` while it goes on and when it ends well.
pub(super) async fn watched<T>(work: impl Future<Output = Result<T>>, counter: &AtomicU64, report: impl Fn(u64)) -> Result<T> {
    tokio::pin!(work);
    loop {
        tokio::select! {
            done = &mut work => {
                if done.is_ok() {
                    report(counter.load(Ordering::Relaxed));
                }
                return done;
            }
            () = tokio::time::sleep(Duration::from_millis(100)) => report(counter.load(Ordering::Relaxed)),
        }
    }
}

pub(super) async fn on_thread<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    joined(tokio::task::spawn_blocking(work).await)
}

/// The result of a task, which nobody aborts.
pub(super) fn joined<T>(finished: Result<Result<T>, JoinError>) -> Result<T> {
    finished.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))
}
