//! Contents become files again: several at once, in pieces read ahead, verified, continued where an interrupted fetch ended.
//!
//! Long for its tests: each way in which a fetch can be interrupted is one.

use std::{
    collections::{HashSet, VecDeque, hash_map::RandomState},
    ffi::OsString,
    fs::{self, File, TryLockError},
    hash::{BuildHasher as _, Hasher as _},
    io::{self, ErrorKind, Read as _, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use bytes::Bytes;
use cap_fs_ext::DirExt as _;
use cap_std::fs::{Dir, OpenOptions};
use sha2::{Digest as _, Sha256};
use tokio::{
    sync::{Semaphore, mpsc},
    task::JoinHandle,
};

use super::{
    FileEntry, Result, Store, StoreError,
    beneath::{self, split},
    content::{CHUNK, check, compute, concurrently, joined, on_thread, watched},
    names::PARTIAL,
};
use crate::job::{
    digest::Digest,
    id::path,
    report::{Report, Unit},
};

/// Chunks of one file on their way while the one before them is written.
const AHEAD: usize = 8;

/// Memory of all pieces together, in KiB.
const MEMORY_KIB: usize = 48 << 10;

/// The mode, less what the `umask` takes.
const USUAL: u32 = 0o777;

/// A folder that files are put in, and nowhere else.
#[derive(Clone)]
pub(super) struct Target {
    dir: Arc<Dir>,
    /// For messages.
    path: PathBuf,
}

impl Target {
    /// The directory that the user named, made if need be.
    pub async fn make(path: &Path) -> Result<Self> {
        let path = path.to_owned();
        on_thread(move || {
            let made = fs::create_dir_all(&path).and_then(|()| beneath::named(&path));
            made.map_err(|error| cannot_write(&path, error)).map(|dir| Self { dir: Arc::new(dir), path })
        })
        .await
    }

    /// The folder of a file, and the file's name in it.
    fn place<'f>(&self, file: &'f FileEntry) -> io::Result<(Dir, &'f str)> {
        let (folder, name) = split(&file.path);
        Ok((beneath::folder(&self.dir, folder)?, name))
    }

    fn failed(&self, file: &FileEntry, error: io::Error) -> StoreError {
        cannot_write(&self.path.join(&file.path), error)
    }
}

/// Puts the files of a manifest below `to`, verified, each under its name only when complete. A file that is there already and has
/// the right digest is not fetched again, and one that an interrupted fetch began is continued. Nothing below `to` changes any more
/// when this returns, also when it failed.
pub(super) async fn fetch(
    store: &Arc<dyn Store>,
    contents: &str,
    files: &[FileEntry],
    to: &Target,
    report: &dyn Report,
) -> Result<()> {
    let total = check(files)?;
    let files: Arc<[FileEntry]> = files.into();
    on_thread({
        let (to, files) = (to.clone(), Arc::clone(&files));
        move || make_folders(&to.dir, &files).map_err(|error| cannot_write(&to.path, error))
    })
    .await?;
    let counter = Arc::new(AtomicU64::new(0));
    let source = Source::new(store, contents);
    let (writing, mut written) = mpsc::channel(1);
    let fetching = concurrently(store.jobs(), (0..files.len()).collect(), |at| {
        let (source, to, files) = (source.clone(), to.clone(), Arc::clone(&files));
        let (counter, writing) = (Arc::clone(&counter), writing.clone());
        async move { fetch_one(&source, &files[at], &to, &counter, &writing).await }
    });
    let fetched =
        watched(fetching, &counter, |done| report.progress("Fetching files", done.min(total), Some(total), Unit::Bytes)).await;
    // The first error ends the others at once, except for what they have on threads.
    drop(writing);
    written.recv().await;
    fetched?;
    let to = to.clone();
    on_thread(move || {
        let finished = folders(&files).into_iter().try_for_each(|folder| {
            let folder = beneath::folder(&to.dir, folder)?;
            // A fetch that failed just before this one may have held a file that was then begun under another name.
            remove_abandoned(&folder, &HashSet::new())?;
            beneath::sync(&folder)
        });
        finished.map_err(|error| cannot_write(&to.path, error))
    })
    .await
}

/// Reads the contents of `files` back and compares them with their digests.
pub(super) async fn verify(store: &Arc<dyn Store>, contents: &str, files: &[FileEntry], report: &dyn Report) -> Result<()> {
    let total = check(files)?;
    let counter = Arc::new(AtomicU64::new(0));
    let source = Source::new(store, contents);
    let files: Arc<[FileEntry]> = files.into();
    let reading = concurrently(store.jobs(), (0..files.len()).collect(), |at| {
        let (source, counter, files) = (source.clone(), Arc::clone(&counter), Arc::clone(&files));
        async move { source.pull(&files[at], 0, &counter, |_| Ok(())).await }
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

    /// Hands the bytes of a file from `begin` on, in order and verified. Only for a file that an older version stored as one large
    /// object does the digest show at the end that they were right.
    async fn pull(
        &self,
        file: &FileEntry,
        begin: u64,
        counter: &AtomicU64,
        mut take: impl FnMut(&Bytes) -> Result<()>,
    ) -> Result<()> {
        if file.is_one_large_object() {
            let name = path::content(&self.contents, &file.sha256);
            let found = self.store.head(&name).await?;
            found.map_or(Ok(()), |found| full(&name, file.size, found.size))?;
        }
        let mut whole = (begin == 0 && file.is_one_large_object()).then(Sha256::new);
        let mut ahead = VecDeque::new();
        let mut next = begin;
        loop {
            while next < file.size && ahead.len() < AHEAD {
                // Only a task that waits for nothing else may wait for memory: so it always comes free again.
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
            let found = bytes.len() as u64;
            let bytes = if is_whole {
                let name = name.clone();
                compute(move || right(&name, &digest, Sha256::new_with_prefix(&bytes)).map(|()| bytes)).await
            } else {
                Ok(bytes)
            };
            drop(room);
            bytes.and_then(|bytes| full(&name, length, found).map(|()| bytes))
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

/// Fails when an object is not as long as the manifest says: the right digest shows only that its bytes are those that it names.
fn full(name: &str, expected: u64, found: u64) -> Result<()> {
    if found == expected {
        return Ok(());
    }
    Err(StoreError::Unreadable(format!("{name} has {found} bytes, and its manifest says {expected}; one of them is damaged")))
}

/// Runs `work` as [`on_thread`] does; `writing` has one more sender until its result, and every file in it, is dropped or handed
/// over.
async fn write<T: Send + 'static>(writing: &mpsc::Sender<()>, work: impl FnOnce() -> T + Send + 'static) -> T {
    let writing = writing.clone();
    on_thread(move || (work(), writing)).await.0
}

async fn fetch_one(source: &Source, file: &FileEntry, to: &Target, counter: &AtomicU64, writing: &mpsc::Sender<()>) -> Result<()> {
    let present = on_thread({
        let (to, file) = (to.clone(), file.clone());
        move || is_present(&to.dir, &file)
    });
    if present.await {
        counter.fetch_add(file.size, Ordering::Relaxed);
        return Ok(());
    }
    let (mut partial, begin) = write(writing, {
        let (to, file) = (to.clone(), file.clone());
        move || Partial::begin(&to, &file).map_err(|error| to.failed(&file, error))
    })
    .await?;
    counter.fetch_add(begin, Ordering::Relaxed);
    let failed = |error| to.failed(file, error);
    let pulled = source.pull(file, begin, counter, |bytes| partial.file.write_all(bytes).map_err(failed)).await;
    if let Err(error) = pulled {
        if file.is_one_large_object() {
            let _ = partial.folder.remove_file(&partial.name);
        }
        return Err(error);
    }
    let (to, file) = (to.clone(), file.clone());
    write(writing, move || {
        let (_, name) = split(&file.path);
        let named = partial.file.sync_all().and_then(|()| partial.folder.rename(&partial.name, &partial.folder, name));
        named.map_err(|error| to.failed(&file, error))
    })
    .await
}

/// The entries below `to` that have the name of one of these files and are something else: a fetch would replace them.
pub async fn in_the_way(files: &[FileEntry], to: &Path) -> Vec<PathBuf> {
    let (to, files) = (to.to_owned(), files.to_vec());
    on_thread(move || {
        let Ok(dir) = beneath::named(&to) else { return Vec::new() };
        let others = files.iter().filter(|file| is_there(&dir, file) && !is_present(&dir, file));
        others.map(|file| to.join(&file.path)).collect()
    })
    .await
}

/// Whether anything has the name of a file.
fn is_there(to: &Dir, file: &FileEntry) -> bool {
    let (folder, name) = split(&file.path);
    beneath::folder(to, folder).and_then(|folder| beneath::stat(&folder, name)).is_ok_and(|found| found.is_some())
}

fn is_present(to: &Dir, file: &FileEntry) -> bool {
    let (folder, name) = split(&file.path);
    let opened = beneath::folder(to, folder).and_then(|folder| beneath::open(&folder, name, OpenOptions::new().read(true)));
    let same_size = |opened: &File| opened.metadata().is_ok_and(|metadata| metadata.len() == file.size);
    opened.is_ok_and(|opened| same_size(&opened) && leading(&opened, file).is_ok_and(|right| right == file.size))
}

/// How many of the first bytes of `local` are those of `file`: whole objects.
fn leading(local: &File, file: &FileEntry) -> io::Result<u64> {
    let longest = if file.is_one_large_object() { file.size } else { CHUNK };
    let mut buffer = vec![0; 1 << 20];
    let mut right = 0;
    for digest in file.contents() {
        let length = longest.min(file.size - right);
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
        if count != length || Digest::from(<[u8; 32]>::from(hasher.finalize())) != *digest {
            break;
        }
        right += count;
    }
    Ok(right)
}

/// A file on its way. Other fetches leave it alone for as long as it is open: it is locked.
struct Partial {
    file: File,
    folder: Dir,
    name: String,
}

impl Partial {
    /// Answers the length of the right bytes that an interrupted fetch left of the same content; the bytes after them are cut off.
    fn begin(to: &Target, file: &FileEntry) -> io::Result<(Self, u64)> {
        let (folder, _) = to.place(file)?;
        let mut partial = Self::open(folder, partial_name(file))?;
        let begin = leading(&partial.file, file)?;
        partial.file.set_len(begin)?;
        partial.file.seek(SeekFrom::Start(begin))?;
        Ok((partial, begin))
    }

    fn open(folder: Dir, name: String) -> io::Result<Self> {
        let options = OpenOptions::new().read(true).write(true).create(true).clone();
        loop {
            let file = beneath::open(&folder, &name, &options)?;
            match file.try_lock() {
                Err(TryLockError::WouldBlock) => return Self::open_another(folder, &name),
                Err(TryLockError::Error(error)) => return Err(error),
                // Between its opening and its lock another fetch may have completed or removed it.
                Ok(()) if beneath::is_at(&file, &folder, &name)? => return Ok(Self { file, folder, name }),
                Ok(()) => {}
            }
        }
    }

    /// For a fetch to a folder that another one is fetching the same file to.
    fn open_another(folder: Dir, name: &str) -> io::Result<Self> {
        loop {
            let name = format!("{name}-{:016x}", RandomState::new().build_hasher().finish());
            let file = match beneath::create(&folder, &name, &OpenOptions::new()) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => continue,
                created => created?,
            };
            file.lock()?;
            if beneath::is_at(&file, &folder, &name)? {
                return Ok(Self { file, folder, name });
            }
        }
    }
}

/// Named by what the file shall be, in our own words: nothing of a manifest's text is in it.
pub(super) fn partial_name(file: &FileEntry) -> String {
    format!("{PARTIAL}{}", Digest::of(format!("{}\0{}\0{}", file.sha256, file.size, file.path).as_bytes()))
}

/// The hidden folder beside a directory that is not there yet, in which it is put together; for one fetch at a time.
pub(super) struct Claim {
    /// Where both are.
    above: Dir,
    hidden: String,
    name: OsString,
    target: Target,
    _lock: File,
}

impl Claim {
    /// Waits while another fetch has it.
    pub fn on(to: &Path) -> io::Result<Self> {
        let parent = to.parent().filter(|parent| *parent != Path::new("")).unwrap_or(Path::new("."));
        let name = to.file_name().unwrap_or_default().to_owned();
        fs::create_dir_all(parent)?;
        let above = beneath::named(parent)?;
        let hidden = format!(".{}.partial", name.to_string_lossy());
        loop {
            let dir = beneath::again(|| beneath::make(&above, &hidden, USUAL, |_| Ok(())))?;
            let lock = beneath::as_file(&dir)?;
            lock.lock()?;
            // The fetch that had the claim before may have given the folder its name.
            if beneath::is_at(&lock, &above, &hidden)? {
                let target = Target { dir: Arc::new(dir), path: parent.join(&hidden) };
                return Ok(Self { above, hidden, name, target, _lock: lock });
            }
        }
    }

    pub fn target(&self) -> &Target {
        &self.target
    }

    /// Removes every file that a manifest does not name: the remains of an interrupted fetch of something else.
    pub fn keep_only(&self, files: &[FileEntry]) -> io::Result<()> {
        let paths = files.iter().map(|file| file.path.clone());
        let partials = files.iter().map(|file| beside(&file.path, &partial_name(file)));
        prune(&self.target.dir, "", &paths.chain(partials).collect())
    }

    /// Gives the directory its name, now that it is complete.
    pub fn name(&self) -> io::Result<()> {
        self.above.rename(&self.hidden, &self.above, &self.name)?;
        beneath::sync(&self.above)
    }

    /// For the fetch that found the directory complete.
    pub fn drop_empty(&self) {
        let _ = self.above.remove_dir(&self.hidden);
    }
}

/// The path of `name` in the folder of `path`.
fn beside(path: &str, name: &str) -> String {
    match split(path) {
        ("", _) => name.to_owned(),
        (folder, _) => format!("{folder}/{name}"),
    }
}

fn prune(folder: &Dir, prefix: &str, named: &HashSet<String>) -> io::Result<()> {
    for entry in folder.entries()? {
        let entry = entry?;
        let name = entry.file_name();
        // A name that is no UTF-8 is in no manifest.
        let path = name.to_str().map(|name| format!("{prefix}{name}"));
        match (path, entry.file_type()?.is_dir()) {
            (Some(path), true) => {
                prune(&folder.open_dir_nofollow(&name)?, &format!("{path}/"), named)?;
                // Stays unless it is empty now.
                let _ = folder.remove_dir(&name);
            }
            (None, true) => folder.remove_dir_all(&name)?,
            (Some(path), false) if named.contains(&path) => {}
            (_, false) => folder.remove_file(&name)?,
        }
    }
    Ok(())
}

/// Every folder that the files need, the one that all are in among them.
fn folders(files: &[FileEntry]) -> HashSet<&str> {
    files.iter().map(|file| split(&file.path).0).chain([""]).collect()
}

/// Creates the folders and removes what interrupted fetches of something else left in them.
fn make_folders(to: &Dir, files: &[FileEntry]) -> io::Result<()> {
    let wanted = files.iter().map(partial_name).collect();
    for folder in folders(files) {
        let folder = beneath::again(|| beneath::make(to, folder, USUAL, |_| Ok(())))?;
        remove_abandoned(&folder, &wanted)?;
    }
    Ok(())
}

fn remove_abandoned(folder: &Dir, wanted: &HashSet<String>) -> io::Result<()> {
    for entry in folder.entries()?.flatten() {
        let name = entry.file_name();
        if let Some(name) = name.to_str().filter(|name| name.starts_with(PARTIAL) && !wanted.contains(*name)) {
            remove_if_abandoned(folder, name);
        }
    }
    Ok(())
}

/// A living fetch holds its file's lock until the file has its name. The file goes while we hold the lock, so that its maker, who
/// waits for the lock, finds out. Between our opening and our lock the file may have got its name and another fetch begun a file
/// here.
fn remove_if_abandoned(folder: &Dir, name: &str) {
    if let Ok(file) = beneath::open(folder, name, OpenOptions::new().read(true))
        && file.try_lock().is_ok()
        && beneath::is_at(&file, folder, name).unwrap_or(false)
    {
        let _ = folder.remove_file(name);
    }
}

fn cannot_write(local: &Path, source: io::Error) -> StoreError {
    StoreError::Io { action: "write", path: local.display().to_string(), source }
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
        // Work on this runtime's only thread would be done after the fetch has returned.
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
            let to = Target::make(folder.path()).await.unwrap();
            let error = fetch(&store, "contents", &files, &to, &Silent).await.unwrap_err();
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
        let to = beneath::named(folder.path()).unwrap();
        let over = Arc::new(AtomicU64::new(0));
        let cleaner = std::thread::spawn({
            let (to, over) = (to.try_clone().unwrap(), Arc::clone(&over));
            move || {
                while over.load(Ordering::SeqCst) == 0 {
                    make_folders(&to, &[]).unwrap();
                }
            }
        });
        let name = partial_name(&FileEntry::of_bytes("whole".to_owned(), b"whole"));
        for round in 0..3_000 {
            let folder = to.try_clone().unwrap();
            let partial =
                if round % 2 == 0 { Partial::open(folder, name.clone()) } else { Partial::open_another(folder, &name) }.unwrap();
            partial.folder.rename(&partial.name, &to, "whole").unwrap();
        }
        over.store(1, Ordering::SeqCst);
        cleaner.join().unwrap();
        fs::write(folder.path().join(format!("{PARTIAL}killed")), "").unwrap();
        make_folders(&to, &[]).unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "what a killed one left goes");
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
        fs::write(to.path().join("in").join(partial_name(file)), left).unwrap();
        verify(&store, "contents", slice::from_ref(file), &Silent).await.unwrap();
        let target = Target::make(to.path()).await.unwrap();
        fetch(&store, "contents", slice::from_ref(file), &target, &Silent).await.unwrap();
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
        fs::write(to.path().join("in").join(partial_name(&file)), &bytes[..9 << 20]).unwrap();
        let target = Target::make(to.path()).await.unwrap();
        fetch(&store, "contents", slice::from_ref(&file), &target, &Silent).await.unwrap();
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
        let target = Target::make(to.path()).await.unwrap();
        let error = fetch(&store, "contents", slice::from_ref(&old), &target, &Silent).await.unwrap_err();
        assert!(matches!(&error, StoreError::Damaged { path, .. } if *path == object), "{error}");
        assert!(!to.path().join("in/file").exists());
    }
}
