//! Contents become files again: several at once, in pieces read ahead, verified, continued where an interrupted fetch ended.

use std::{
    collections::{HashSet, VecDeque},
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, Read as _, Seek, SeekFrom, Write},
    os::unix::fs::MetadataExt,
    path::{Component, Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use bytes::Bytes;
use sha2::{Digest as _, Sha256};
use tokio::{
    sync::{Semaphore, mpsc},
    task::JoinHandle,
};

use super::{
    FileEntry, Result, Store, StoreError,
    content::{CHUNK, compute, concurrently, joined, on_thread, watched},
    directory,
};
use crate::job::{
    digest::Digest,
    id::path,
    report::{Report, Unit},
};

/// Chunks of one file on their way while the one before them is written.
const AHEAD: usize = 8;

/// What all pieces together may hold in memory, in KiB.
const MEMORY_KIB: usize = 48 << 10;

/// Beginning of the names of files that are not complete yet; the digest of the content follows.
const PARTIAL: &str = ".ftctl-partial-";

/// Puts the files of a manifest below `to`, verified, each under its name only when complete. A file that is there already and has
/// the right digest is not fetched again, and one that an interrupted fetch began is continued. Nothing below `to` changes any more
/// when this returns, also when it failed.
pub(super) async fn fetch(
    store: &Arc<dyn Store>,
    contents: &str,
    files: &[FileEntry],
    to: &Path,
    report: &dyn Report,
) -> Result<()> {
    for file in files {
        check_relative(&file.path)?;
        file.check()?;
    }
    on_thread({
        let (to, files) = (to.to_owned(), files.to_vec());
        move || make_folders(&to, &files).map_err(|error| cannot_write(&to, error))
    })
    .await?;
    let total = files.iter().map(|file| file.size).sum();
    let counter = Arc::new(AtomicU64::new(0));
    let source = Source::new(store, contents);
    let (writing, mut written) = mpsc::channel(1);
    let fetching = concurrently(store.jobs(), files.to_vec(), |file| {
        let (source, local, counter, writing) = (source.clone(), to.join(&file.path), Arc::clone(&counter), writing.clone());
        async move { fetch_one(&source, &file, &local, &counter, &writing).await }
    });
    let fetched =
        watched(fetching, &counter, |done| report.progress("Fetching files", done.min(total), Some(total), Unit::Bytes)).await;
    // The first error ends the others at once, except for what they have on threads.
    drop(writing);
    written.recv().await;
    fetched?;
    let (to, files) = (to.to_owned(), files.to_vec());
    on_thread(move || {
        let finished = folders(&to, &files).iter().try_for_each(|folder| {
            // A fetch that failed just before this one may have held a file that was then begun under another name.
            remove_abandoned(folder, &HashSet::new())?;
            File::open(folder)?.sync_all()
        });
        finished.map_err(|error| cannot_write(&to, error))
    })
    .await
}

/// Reads the contents of `files` back and compares them with their digests.
pub(super) async fn verify(store: &Arc<dyn Store>, contents: &str, files: &[FileEntry], report: &dyn Report) -> Result<()> {
    let total = files.iter().map(|file| file.size).sum();
    let counter = Arc::new(AtomicU64::new(0));
    let source = Source::new(store, contents);
    let reading = concurrently(store.jobs(), files.to_vec(), |file| {
        let (source, counter) = (source.clone(), Arc::clone(&counter));
        async move {
            file.check()?;
            source.pull(&file, 0, &counter, |_| Ok(())).await
        }
    });
    watched(reading, &counter, |done| report.progress("Verifying files", done, Some(total), Unit::Bytes)).await?;
    Ok(())
}

/// Where contents come from, and the memory they share on their way.
#[derive(Clone)]
struct Source {
    store: Arc<dyn Store>,
    contents: String,
    memory: Arc<Semaphore>,
}

impl Source {
    fn new(store: &Arc<dyn Store>, contents: &str) -> Self {
        let memory = Arc::new(Semaphore::new(MEMORY_KIB));
        Self { store: Arc::clone(store), contents: contents.to_owned(), memory }
    }

    /// Hands the bytes of a file from `begin` on, in order and verified. Only of what an older version stored as one large object
    /// the digest shows at the end that they were right.
    async fn pull(
        &self,
        file: &FileEntry,
        begin: u64,
        counter: &AtomicU64,
        mut take: impl FnMut(&Bytes) -> Result<()>,
    ) -> Result<()> {
        let mut whole = (begin == 0 && file.is_one_large_object()).then(Sha256::new);
        let mut ahead = VecDeque::new();
        let mut next = begin;
        loop {
            while next < file.size && ahead.len() < AHEAD {
                // Only who waits for nothing may wait for memory: so it always comes free again.
                let Some(chunk) = self.chunk(file, next, ahead.is_empty()).await else { break };
                ahead.push_back(chunk);
                next += CHUNK;
            }
            let Some(chunk) = ahead.pop_front() else { break };
            let bytes = joined(chunk.await)?;
            if let Some(hasher) = &mut whole {
                hasher.update(&bytes);
            }
            take(&bytes)?;
            counter.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        }
        whole.map_or(Ok(()), |hasher| right(&path::content(&self.contents, &file.sha256), &file.sha256, hasher))
    }

    /// Starts to read the chunk that begins at `at`; `None`: there is no memory for it now.
    async fn chunk(&self, file: &FileEntry, at: u64, wait: bool) -> Option<JoinHandle<Result<Bytes>>> {
        let length = CHUNK.min(file.size - at);
        let kib = length.div_ceil(1024) as u32;
        let memory = Arc::clone(&self.memory);
        let room = if wait { memory.acquire_many_owned(kib).await.ok() } else { memory.try_acquire_many_owned(kib).ok() }?;
        let (digest, begin) = match file.contents().get((at / CHUNK) as usize) {
            Some(digest) if !file.is_one_large_object() => (digest.clone(), 0),
            _ => (file.sha256.clone(), at),
        };
        let is_whole = begin == 0 && !file.is_one_large_object();
        let (store, name) = (Arc::clone(&self.store), path::content(&self.contents, &digest));
        Some(tokio::spawn(async move {
            let bytes = store.get_range(&name, begin..begin + length).await?;
            let bytes = if is_whole {
                compute(move || right(&name, &digest, Sha256::new_with_prefix(&bytes)).map(|()| bytes)).await
            } else {
                Ok(bytes)
            };
            drop(room);
            bytes
        }))
    }
}

/// Fails when what was hashed is not what `name` should be.
fn right(name: &str, expected: &Digest, hasher: Sha256) -> Result<()> {
    let found = Digest::from(<[u8; 32]>::from(hasher.finalize()));
    if found == *expected {
        return Ok(());
    }
    Err(StoreError::Damaged { path: name.to_owned(), expected: expected.to_string(), found: found.to_string() })
}

/// Runs `work` as [`on_thread`] does; `writing` has one more sender until its result, and every file in it, is dropped or handed over.
async fn write<T: Send + 'static>(writing: &mpsc::Sender<()>, work: impl FnOnce() -> T + Send + 'static) -> T {
    let writing = writing.clone();
    on_thread(move || (work(), writing)).await.0
}

async fn fetch_one(source: &Source, file: &FileEntry, local: &Path, counter: &AtomicU64, writing: &mpsc::Sender<()>) -> Result<()> {
    let present = on_thread({
        let (local, file) = (local.to_owned(), file.clone());
        move || is_present(&local, &file)
    });
    if present.await {
        counter.fetch_add(file.size, Ordering::Relaxed);
        return Ok(());
    }
    let failed = |error| cannot_write(local, error);
    let (mut partial, begin) = write(writing, {
        let (local, file) = (local.to_owned(), file.clone());
        move || Partial::begin(&local, &file).map_err(|error| cannot_write(&local, error))
    })
    .await?;
    counter.fetch_add(begin, Ordering::Relaxed);
    let pulled = source.pull(file, begin, counter, |bytes| partial.file.write_all(bytes).map_err(failed)).await;
    if let Err(error) = pulled {
        if file.is_one_large_object() {
            let _ = fs::remove_file(&partial.path);
        }
        return Err(error);
    }
    let local = local.to_owned();
    write(writing, move || {
        let named = partial.file.sync_all().and_then(|()| fs::rename(&partial.path, &local));
        named.map_err(|error| cannot_write(&local, error))
    })
    .await
}

/// What is below `to` under the name of one of these files and is something else: a fetch would replace it.
pub async fn in_the_way(files: &[FileEntry], to: &Path) -> Vec<PathBuf> {
    let (to, files) = (to.to_owned(), files.to_vec());
    let is_other = |local: &Path, file: &FileEntry| fs::symlink_metadata(local).is_ok() && !is_present(local, file);
    on_thread(move || {
        let all = files.iter().map(|file| (to.join(&file.path), file));
        all.filter(|(local, file)| is_other(local, file)).map(|(local, _)| local).collect()
    })
    .await
}

fn is_present(local: &Path, file: &FileEntry) -> bool {
    let same_size = fs::symlink_metadata(local).is_ok_and(|metadata| metadata.is_file() && metadata.len() == file.size);
    same_size && File::open(local).and_then(|opened| leading(&opened, file)).is_ok_and(|right| right == file.size)
}

/// How many of the first bytes of `local` are those of `file`: whole objects.
fn leading(local: &File, file: &FileEntry) -> io::Result<u64> {
    let length = if file.is_one_large_object() { file.size } else { CHUNK };
    let mut buffer = vec![0; 1 << 20];
    let mut right = 0;
    for digest in file.contents() {
        let mut hasher = Sha256::new();
        let mut object = local.take(length);
        let mut count = 0;
        loop {
            let read = object.read(&mut buffer)?;
            if read == 0 {
                break;
            }
            hasher.update(&buffer[..read]);
            count += read as u64;
        }
        if Digest::from(<[u8; 32]>::from(hasher.finalize())) != *digest {
            break;
        }
        right += count;
    }
    Ok(right)
}

/// A file on its way. Other fetches leave it alone for as long as it is open: it is locked.
struct Partial {
    file: File,
    path: PathBuf,
}

impl Partial {
    /// With the length of what an interrupted fetch left of the same content and is right; what follows it is cut off.
    fn begin(local: &Path, file: &FileEntry) -> io::Result<(Self, u64)> {
        let folder = local.parent().unwrap_or(Path::new(""));
        let mut partial = Self::open(folder, &file.sha256)?;
        let begin = leading(&partial.file, file)?;
        partial.file.set_len(begin)?;
        partial.file.seek(SeekFrom::Start(begin))?;
        Ok((partial, begin))
    }

    fn open(folder: &Path, digest: &Digest) -> io::Result<Self> {
        let path = folder.join(format!("{PARTIAL}{digest}"));
        loop {
            let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path)?;
            match file.try_lock() {
                Err(TryLockError::WouldBlock) => return Self::open_another(folder, digest),
                Err(TryLockError::Error(error)) => return Err(error),
                // Between its opening and its lock another fetch may have completed or removed it.
                Ok(()) if is_at(&file, &path)? => return Ok(Self { file, path }),
                Ok(()) => {}
            }
        }
    }

    /// For who fetches what somebody else is fetching to the same folder.
    fn open_another(folder: &Path, digest: &Digest) -> io::Result<Self> {
        loop {
            let prefix = format!("{PARTIAL}{digest}-");
            let made = tempfile::Builder::new().prefix(&prefix).permissions(directory::readable()).tempfile_in(folder)?;
            made.as_file().lock()?;
            if is_at(made.as_file(), made.path())? {
                let (file, path) = made.keep().map_err(|error| error.error)?;
                return Ok(Self { file, path });
            }
        }
    }
}

/// Makes a folder and keeps others who want to fill it waiting until the result is dropped.
pub(super) fn claim_folder(path: &Path) -> io::Result<File> {
    loop {
        fs::create_dir_all(path)?;
        let folder = File::open(path)?;
        folder.lock()?;
        // Whoever had the claim before may have given the folder its name.
        if is_at(&folder, path)? {
            return Ok(folder);
        }
    }
}

/// Whether `path` still is the name of the open file.
fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    let open = file.metadata()?;
    match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        named => named.map(|named| (named.dev(), named.ino()) == (open.dev(), open.ino())),
    }
}

/// `to` and every folder that the files need.
fn folders(to: &Path, files: &[FileEntry]) -> HashSet<PathBuf> {
    let parents = files.iter().filter_map(|file| to.join(&file.path).parent().map(Path::to_owned));
    parents.chain([to.to_owned()]).collect()
}

/// Where each file is while it is on its way.
fn partials(to: &Path, files: &[FileEntry]) -> HashSet<PathBuf> {
    files.iter().map(|file| to.join(&file.path).with_file_name(format!("{PARTIAL}{}", file.sha256))).collect()
}

/// Creates the folders and removes what interrupted fetches of something else left in them.
fn make_folders(to: &Path, files: &[FileEntry]) -> io::Result<()> {
    let wanted = partials(to, files);
    for folder in folders(to, files) {
        fs::create_dir_all(&folder)?;
        remove_abandoned(&folder, &wanted)?;
    }
    Ok(())
}

fn remove_abandoned(folder: &Path, wanted: &HashSet<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)?.flatten() {
        if entry.file_name().to_string_lossy().starts_with(PARTIAL) && !wanted.contains(&entry.path()) {
            remove_if_abandoned(&entry.path());
        }
    }
    Ok(())
}

/// A living fetch holds its file's lock until the file has its name. The file goes while we hold the lock, so that whoever made it
/// and waits for the lock finds out. Between our opening and our lock the file may have got its name and another fetch begun a file here.
fn remove_if_abandoned(path: &Path) {
    if let Ok(file) = File::open(path)
        && file.try_lock().is_ok()
        && is_at(&file, path).unwrap_or(false)
    {
        let _ = fs::remove_file(path);
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
    let mut named = partials(folder, files);
    named.extend(files.iter().map(|file| folder.join(&file.path)));
    prune(folder, &named)
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
        Err(StoreError::Unreadable(format!("the manifest names `{name}`, which is no relative path; it is refused")))
    }
}

#[cfg(test)]
mod tests {
    use std::slice;

    use super::*;
    use crate::{
        job::report::Silent,
        store::{Condition, memory::MemoryStore},
    };

    #[test]
    fn a_fetch_that_failed_writes_nothing_any_more() {
        // What waits for this runtime's only thread would be done after the fetch has returned.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(1).build().unwrap();
        runtime.block_on(async {
            let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
            let files: Vec<FileEntry> =
                (0..40).map(|i| FileEntry::of_bytes(format!("{i}"), format!("file {i}").as_bytes())).collect();
            for (i, file) in files.iter().enumerate() {
                let text = if i == 9 { "damaged".to_owned() } else { format!("file {i}") };
                store.put(&path::content("contents", &file.sha256), text.into(), Condition::Always).await.unwrap();
            }
            let folder = tempfile::tempdir().unwrap();
            let error = fetch(&store, "contents", &files, folder.path(), &Silent).await.unwrap_err();
            assert!(matches!(error, StoreError::Damaged { .. }), "{error}");
            let names = || {
                let entries = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path());
                entries.map(|path| (File::open(&path).unwrap().try_lock().is_ok(), path)).collect::<HashSet<_>>()
            };
            let there = names();
            assert!(there.iter().all(|(unlocked, _)| *unlocked), "{there:?}");
            on_thread(|| ()).await;
            assert_eq!(names(), there);
        });
    }

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
        let digest = Digest::of(b"whole");
        for round in 0..3_000 {
            let partial = if round % 2 == 0 { Partial::open(&to, &digest) } else { Partial::open_another(&to, &digest) }.unwrap();
            fs::rename(&partial.path, to.join("whole")).unwrap();
        }
        over.store(1, Ordering::SeqCst);
        cleaner.join().unwrap();
        fs::write(to.join(format!("{PARTIAL}killed")), "").unwrap();
        make_folders(&to, &[]).unwrap();
        assert_eq!(fs::read_dir(&to).unwrap().count(), 1, "what a killed one left goes");
    }

    /// Fetches what is stored in `objects` under the digests of `file`'s, with `left` here from an interrupted fetch.
    async fn continues(file: &FileEntry, bytes: &[u8], left: &[u8], objects: &[(&Digest, &[u8])]) {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
        for (digest, bytes) in objects {
            let object = path::content("contents", digest);
            store.put(&object, Bytes::copy_from_slice(bytes), Condition::Always).await.unwrap();
        }
        let to = tempfile::tempdir().unwrap();
        fs::create_dir(to.path().join("in")).unwrap();
        for partial in partials(to.path(), slice::from_ref(file)) {
            fs::write(partial, left).unwrap();
        }
        verify(&store, "contents", slice::from_ref(file), &Silent).await.unwrap();
        fetch(&store, "contents", slice::from_ref(file), to.path(), &Silent).await.unwrap();
        assert!(fs::read(to.path().join("in/file")).unwrap() == bytes);
        assert_eq!(fs::read_dir(to.path().join("in")).unwrap().count(), 1);
    }

    fn twelve_megabytes() -> (Vec<u8>, FileEntry) {
        let bytes: Vec<u8> = (0..3_000_000_u32).flat_map(u32::to_le_bytes).collect();
        let digests = bytes.chunks(CHUNK as usize).map(|chunk| Sha256::digest(chunk).into()).collect();
        let file = FileEntry::new("in/file".to_owned(), bytes.len() as u64, digests);
        (bytes, file)
    }

    #[tokio::test]
    async fn an_interrupted_file_is_continued_where_it_ended() {
        let (bytes, file) = twelve_megabytes();
        assert_eq!(file.chunks.len(), 3);
        let objects: Vec<(&Digest, &[u8])> = file.chunks.iter().zip(bytes.chunks(CHUNK as usize)).collect();
        let wrong = [&vec![7; 5 << 20], &bytes[5 << 20..]].concat();
        for left in [&bytes[..0], &bytes[..1], &bytes[..5 << 20], &bytes, &wrong, &vec![7; 13_000_000]] {
            continues(&file, &bytes, left, &objects).await;
        }
    }

    #[tokio::test]
    async fn chunks_that_are_here_are_not_asked_for() {
        let (bytes, file) = twelve_megabytes();
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
        let last = path::content("contents", &file.chunks[2]);
        store.put(&last, Bytes::copy_from_slice(&bytes[2 * CHUNK as usize..]), Condition::Always).await.unwrap();
        let to = tempfile::tempdir().unwrap();
        fs::create_dir(to.path().join("in")).unwrap();
        for partial in partials(to.path(), slice::from_ref(&file)) {
            fs::write(partial, &bytes[..9 << 20]).unwrap();
        }
        fetch(&store, "contents", slice::from_ref(&file), to.path(), &Silent).await.unwrap();
        assert!(fs::read(to.path().join("in/file")).unwrap() == bytes);
    }

    #[tokio::test]
    async fn large_objects_of_older_versions_are_read() {
        let (bytes, file) = twelve_megabytes();
        let old = FileEntry { sha256: Digest::of(&bytes), chunks: Vec::new(), ..file };
        for left in [&bytes[..5 << 20], &bytes] {
            continues(&old, &bytes, left, &[(&old.sha256, &bytes)]).await;
        }
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
        let object = path::content("contents", &old.sha256);
        store.put(&object, [&bytes[1..], &[0]].concat().into(), Condition::Always).await.unwrap();
        let to = tempfile::tempdir().unwrap();
        let error = fetch(&store, "contents", slice::from_ref(&old), to.path(), &Silent).await.unwrap_err();
        assert!(matches!(&error, StoreError::Damaged { path, .. } if *path == object), "{error}");
        assert!(!to.path().join("in/file").exists());
    }
}
