//! File trees by content: what datasets and checkpoints have in common. The bytes of a file are an object named by their SHA-256,
//! shared between everything that holds the same file; a manifest gives them their names.

use std::{
    collections::{HashMap, HashSet},
    fs::{self, File},
    future::Future,
    io::{self, Read, Write},
    os::unix::fs::MetadataExt,
    path::{Component, Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tempfile::NamedTempFile;
use tokio::task::{JoinError, JoinSet};

use super::{Condition, Meta, Result, Store, StoreError, checkpoint, dataset, directory, sha256};
use crate::job::{
    id::{JobId, path},
    report::{Report, Unit},
};

/// Requests under way at once: enough to hide the latency of a far store, few enough to leave its memory bounded.
const CONCURRENCY: usize = 8;

/// Bytes of a file held in memory while it is fetched.
const CHUNK: u64 = 8 << 20;

/// Beginning of the names of files that are not complete yet.
const PARTIAL: &str = ".ftctl-partial-";

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

    /// What `store` lacks of it below `contents`, each content once.
    pub async fn missing(&self, store: &Arc<dyn Store>, contents: &str) -> Result<Vec<FileEntry>> {
        let mut seen = HashSet::new();
        let distinct: Vec<FileEntry> = self.files.iter().filter(|file| seen.insert(file.sha256.clone())).cloned().collect();
        let missing = concurrently(CONCURRENCY, distinct, |file| {
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
        let sending = concurrently(CONCURRENCY, missing, |file| {
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

fn hash_reader(reader: &mut impl Read, mut count_bytes: impl FnMut(u64)) -> io::Result<(u64, String)> {
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    let mut size = 0;
    loop {
        let count = reader.read(&mut buffer)?;
        if count == 0 {
            return Ok((size, hex::encode(hasher.finalize())));
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

/// Puts the files of a manifest below `to`, verified, each under its name only when complete. A file that is there already and has
/// the right digest is not fetched again.
pub(super) async fn fetch(
    store: &Arc<dyn Store>,
    contents: &str,
    files: &[FileEntry],
    to: &Path,
    report: &dyn Report,
) -> Result<()> {
    for file in files {
        check_relative(&file.path)?;
    }
    on_thread({
        let (to, files) = (to.to_owned(), files.to_vec());
        move || make_folders(&to, &files).map_err(|error| cannot_write(&to, error))
    })
    .await?;
    let total = files.iter().map(|file| file.size).sum();
    let counter = Arc::new(AtomicU64::new(0));
    let fetching = concurrently(CONCURRENCY.min(4), files.to_vec(), |file| {
        let (store, local, counter) = (Arc::clone(store), to.join(&file.path), Arc::clone(&counter));
        let name = path::content(contents, &file.sha256);
        async move { fetch_one(store.as_ref(), &name, &file, &local, &counter).await }
    });
    watched(fetching, &counter, |done| report.progress("Fetching files", done, Some(total), Unit::Bytes)).await?;
    let (to, files) = (to.to_owned(), files.to_vec());
    on_thread(move || {
        let synced = folders(&to, &files).iter().try_for_each(|folder| File::open(folder)?.sync_all());
        synced.map_err(|error| cannot_write(&to, error))
    })
    .await
}

/// `to` and every folder that the files need.
fn folders(to: &Path, files: &[FileEntry]) -> HashSet<PathBuf> {
    let parents = files.iter().filter_map(|file| to.join(&file.path).parent().map(Path::to_owned));
    parents.chain([to.to_owned()]).collect()
}

/// Reads the contents of `files` back and compares them with their digests.
pub(super) async fn verify(store: &Arc<dyn Store>, contents: &str, files: &[FileEntry], report: &dyn Report) -> Result<()> {
    let total = files.iter().map(|file| file.size).sum();
    let counter = Arc::new(AtomicU64::new(0));
    let reading = concurrently(CONCURRENCY.min(4), files.to_vec(), |file| {
        let (store, counter) = (Arc::clone(store), Arc::clone(&counter));
        let name = path::content(contents, &file.sha256);
        async move { read_verified(store.as_ref(), &name, &file, &counter, |_| Ok(())).await }
    });
    watched(reading, &counter, |done| report.progress("Verifying files", done, Some(total), Unit::Bytes)).await?;
    Ok(())
}

/// Hands the content of a file on in pieces, and fails at its end when it is not what its digest says.
async fn read_verified(
    store: &dyn Store,
    name: &str,
    file: &FileEntry,
    counter: &AtomicU64,
    mut take: impl FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    let mut hasher = Sha256::new();
    let mut offset = 0;
    while offset < file.size {
        let bytes = store.get_range(name, offset..(offset + CHUNK).min(file.size)).await?;
        if bytes.is_empty() {
            break;
        }
        hasher.update(&bytes);
        take(&bytes)?;
        offset += bytes.len() as u64;
        counter.fetch_add(bytes.len() as u64, Ordering::Relaxed);
    }
    let found = hex::encode(hasher.finalize());
    if found == file.sha256 {
        Ok(())
    } else {
        Err(StoreError::Damaged { path: name.to_owned(), expected: file.sha256.clone(), found })
    }
}

/// Creates the folders and removes what an interrupted fetch left in them.
fn make_folders(to: &Path, files: &[FileEntry]) -> io::Result<()> {
    for folder in folders(to, files) {
        fs::create_dir_all(&folder)?;
        for entry in fs::read_dir(&folder)?.flatten() {
            if entry.file_name().to_string_lossy().starts_with(PARTIAL) {
                remove_if_abandoned(&entry.path());
            }
        }
    }
    Ok(())
}

/// A living fetch holds its file's lock until the file has its name. The file goes while we hold the lock, so that whoever made it
/// and waits for the lock finds out.
fn remove_if_abandoned(path: &Path) {
    if let Ok(file) = File::open(path)
        && file.try_lock().is_ok()
    {
        let _ = fs::remove_file(path);
    }
}

/// A file that other fetches leave alone for as long as it is open.
fn partial_in(folder: &Path) -> io::Result<NamedTempFile> {
    loop {
        let file = tempfile::Builder::new().prefix(PARTIAL).permissions(directory::readable()).tempfile_in(folder)?;
        file.as_file().lock()?;
        // Between its creation and its lock another fetch may have taken it for abandoned.
        if file.as_file().metadata()?.nlink() > 0 {
            return Ok(file);
        }
    }
}

/// Removes from `folder` every file that a manifest does not name: what an interrupted fetch of something else left.
pub(super) fn keep_only(folder: &Path, files: &[FileEntry]) -> io::Result<()> {
    fn prune(folder: &Path, named: &HashSet<PathBuf>) -> io::Result<()> {
        let entries = match fs::read_dir(folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            entries => entries?,
        };
        for entry in entries {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                prune(&entry.path(), named)?;
                // Stays unless it is empty now.
                let _ = fs::remove_dir(entry.path());
            } else if !named.contains(&entry.path()) {
                fs::remove_file(entry.path())?;
            }
        }
        Ok(())
    }
    prune(folder, &files.iter().map(|file| folder.join(&file.path)).collect())
}

async fn fetch_one(store: &dyn Store, name: &str, file: &FileEntry, local: &Path, counter: &Arc<AtomicU64>) -> Result<()> {
    let present = on_thread({
        let (local, file) = (local.to_owned(), file.clone());
        move || Ok(is_present(&local, &file))
    });
    if present.await? {
        counter.fetch_add(file.size, Ordering::Relaxed);
        return Ok(());
    }
    let failed = |error| cannot_write(local, error);
    let folder = local.parent().unwrap_or(Path::new(""));
    let mut temporary = partial_in(folder).map_err(failed)?;
    read_verified(store, name, file, counter, |bytes| temporary.write_all(bytes).map_err(failed)).await?;
    let local = local.to_owned();
    on_thread(move || {
        let done = temporary.as_file().sync_all().and_then(|()| temporary.persist(&local).map_err(|error| error.error));
        done.map(drop).map_err(|error| cannot_write(&local, error))
    })
    .await
}

fn is_present(local: &Path, file: &FileEntry) -> bool {
    let same_size = fs::symlink_metadata(local).is_ok_and(|metadata| metadata.is_file() && metadata.len() == file.size);
    same_size
        && File::open(local).and_then(|mut opened| hash_reader(&mut opened, |_| {})).is_ok_and(|(_, found)| found == file.sha256)
}

fn cannot_write(local: &Path, source: io::Error) -> StoreError {
    StoreError::Io { action: "write", path: local.display().to_string(), source }
}

/// A manifest comes from outside: its names must stay below the directory they are put in.
fn check_relative(name: &str) -> Result<()> {
    let plain = !name.is_empty() && Path::new(name).components().all(|part| matches!(part, Component::Normal(_)));
    if plain {
        Ok(())
    } else {
        Err(StoreError::Invalid(format!("the manifest names `{name}`, which is no relative path; it is refused")))
    }
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

/// What a sweep removed, or would remove.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Swept {
    pub objects: u64,
    pub bytes: u64,
}

/// Removes contents that no dataset and no checkpoint names any more. Whoever sends files sends contents before the manifest that
/// names them, so contents younger than `min_age` stay; `now` is the clock of whoever asks, and `min_age` should be far above its
/// error and the time of an upload. A manifest that cannot be read stops the sweep before it removes anything.
pub async fn sweep_contents(store: &Arc<dyn Store>, now: Timestamp, min_age: Duration, dry_run: bool) -> Result<Swept> {
    let limit = jiff::SignedDuration::try_from(min_age).unwrap_or(jiff::SignedDuration::MAX);
    let mut unnamed = unnamed(store, &path::contents(), dataset::all_files(store.as_ref())).await?;
    for job in store.children(&path::jobs()).await?.iter().filter_map(|name| JobId::parse(name)) {
        unnamed.extend(self::unnamed(store, &path::job_contents(&job), checkpoint::all_files(store.as_ref(), &job)).await?);
    }
    unnamed.retain(|content| now.duration_since(content.modified) > limit);
    let swept = Swept { objects: unnamed.len() as u64, bytes: unnamed.iter().map(|content| content.size).sum() };
    if !dry_run {
        concurrently(CONCURRENCY, unnamed, |content| {
            let store = Arc::clone(store);
            async move { store.delete(&content.path).await }
        })
        .await?;
    }
    Ok(swept)
}

/// The objects below `contents` that none of the files has. The contents are listed first: what is sent after that is not judged.
async fn unnamed(store: &Arc<dyn Store>, contents: &str, files: impl Future<Output = Result<Vec<FileEntry>>>) -> Result<Vec<Meta>> {
    let mut present = store.list(contents).await?;
    let named: HashSet<String> = files.await?.iter().map(|file| path::content(contents, &file.sha256)).collect();
    present.retain(|content| !named.contains(&content.path));
    Ok(present)
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
async fn watched<T>(work: impl Future<Output = Result<T>>, counter: &AtomicU64, report: impl Fn(u64)) -> Result<T> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fetch_at_work_is_not_taken_for_an_abandoned_one() {
        let folder = tempfile::tempdir().unwrap();
        let to = folder.path().to_owned();
        let over = Arc::new(AtomicU64::new(0));
        let cleaner = std::thread::spawn({
            let (to, over) = (to.clone(), Arc::clone(&over));
            move || {
                while over.load(Ordering::SeqCst) == 0 {
                    make_folders(&to, &[]).unwrap();
                }
            }
        });
        for _ in 0..3_000 {
            partial_in(&to).unwrap().persist(to.join("whole")).unwrap();
        }
        over.store(1, Ordering::SeqCst);
        cleaner.join().unwrap();
        fs::write(to.join(format!("{PARTIAL}killed")), "").unwrap();
        make_folders(&to, &[]).unwrap();
        assert_eq!(fs::read_dir(&to).unwrap().count(), 1, "what a killed one left goes");
    }
}
