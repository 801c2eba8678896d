//! File trees by content, for datasets and checkpoints. A file is kept in chunks, each an object named by its SHA-256 and shared
//! between everything that has the same bytes; a manifest gives them their names.
//!
//! A tree is read once: each chunk is read, hashed on a thread, and sent from memory if the store lacks it. The sent bytes are
//! therefore the hashed ones, and an interrupted upload has lost the chunks that were on their way, nothing else.

use std::{
    collections::{HashMap, HashSet},
    fs::{self, File, Metadata},
    future::Future,
    io,
    ops::Range,
    os::unix::fs::{FileExt as _, MetadataExt as _},
    path::{Path, PathBuf},
    slice,
    sync::{
        Arc, LazyLock, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use tokio::{
    sync::Semaphore,
    task::{JoinError, JoinSet},
};

use super::{Condition, Result, Store, StoreError, get_json, names};
use crate::job::{
    digest::Digest,
    id::path,
    report::{Report, Silent, Unit},
};

/// Bytes of a chunk; the last one of a file is shorter. Nodes send whole ones. A part of the format: another size needs another
/// schema.
pub(super) const CHUNK: u64 = ft_trainer::files::ranges::CHUNK;

/// Memory of all chunks on their way, in KiB.
const MEMORY_KIB: usize = 48 << 10;

/// One file of a dataset or a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct FileEntry {
    /// Relative, separated by `/`.
    pub path: String,
    pub size: u64,
    /// Digest of the bytes; for a file in several chunks, of their digests, 32 bytes each, in order.
    pub sha256: Digest,
    /// Digest of each 4 MiB; absent when there is only one, and in manifests of versions before this one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub chunks: Vec<Digest>,
}

impl FileEntry {
    /// From the digests of its chunks. One without bytes has one, too.
    pub(super) fn new(path: String, size: u64, mut chunks: Vec<[u8; 32]>) -> Self {
        if let [only] = chunks[..] {
            chunks.clear();
            return Self { path, size, sha256: only.into(), chunks: Vec::new() };
        }
        let sha256 = Digest::of(chunks.as_flattened());
        Self { path, size, sha256, chunks: chunks.into_iter().map(Digest::from).collect() }
    }

    /// A file that is one object.
    pub fn of_bytes(path: String, bytes: &[u8]) -> Self {
        Self { path, size: bytes.len() as u64, sha256: Digest::of(bytes), chunks: Vec::new() }
    }

    /// The digests of the objects that hold its bytes, in order.
    pub(super) fn contents(&self) -> &[Digest] {
        if self.chunks.is_empty() { slice::from_ref(&self.sha256) } else { &self.chunks }
    }

    /// Versions before this one stored files of any size as one object.
    pub(super) fn is_one_large_object(&self) -> bool {
        self.chunks.is_empty() && self.size > CHUNK
    }

    fn check(&self) -> Result<()> {
        let (found, size) = (self.chunks.len(), self.size);
        let wrong = if found > 0 && found as u64 != size.div_ceil(CHUNK) {
            format!("has {found} chunks for the {size} bytes of")
        } else if found > 0 && self.sha256 != digest_of_all(&self.chunks) {
            "names chunks that are not those of the digest of".to_owned()
        } else if size == 0 && self.sha256 != Digest::of(b"") {
            "has a digest for the empty file".to_owned()
        } else {
            return Ok(());
        };
        Err(StoreError::Unreadable(format!("the manifest {wrong} `{}`; it is damaged", self.path.escape_debug())))
    }
}

/// The digest that stands for a file in several chunks.
fn digest_of_all(chunks: &[Digest]) -> Digest {
    let mut hasher = Sha256::new();
    for chunk in chunks {
        // A digest is hexadecimal.
        hasher.update(hex::decode(chunk.as_str()).unwrap_or_default());
    }
    <[u8; 32]>::from(hasher.finalize()).into()
}

/// Refuses the files of a manifest that contradict themselves or each other, before anything of them is done. Answers their size.
pub(super) fn check(files: &[FileEntry]) -> Result<u64> {
    if let Some(why) = names::why_not(files.iter().map(|file| file.path.as_str())) {
        return Err(StoreError::Unreadable(format!("the manifest's {why}; it is refused")));
    }
    files.iter().try_for_each(FileEntry::check)?;
    let total = files.iter().try_fold(0_u64, |total, file| total.checked_add(file.size));
    // Half of what fits, so that a sum with another manifest's does, too.
    total
        .filter(|total| *total <= u64::MAX / 2)
        .ok_or_else(|| StoreError::Unreadable("the manifest's files have more bytes than can be counted; it is damaged".to_owned()))
}

/// The result of sending a tree.
#[derive(Debug, Default)]
pub(super) struct Sent {
    /// Sorted by path.
    pub files: Vec<FileEntry>,
    /// How many of them had something that was not in the store.
    pub new_files: u64,
    pub new_bytes: u64,
    /// The digests that were in the store already.
    pub relied: HashSet<Digest>,
}

/// The files that are sent.
#[derive(Debug, Clone, Copy)]
pub enum Source<'a> {
    /// A directory with all that is in it, or a single file.
    Tree(&'a Path),
    /// Some files of a directory.
    Files { directory: &'a Path, files: &'a [PathBuf] },
}

impl<'a, P: AsRef<Path> + ?Sized> From<&'a P> for Source<'a> {
    fn from(path: &'a P) -> Self {
        Self::Tree(path.as_ref())
    }
}

impl Source<'_> {
    pub fn path(&self) -> &Path {
        let (Self::Tree(path) | Self::Files { directory: path, .. }) = self;
        path
    }
}

/// One sender's range of a file, which begins with a chunk, from the file's size in bytes.
pub(super) type Share<'a> = &'a (dyn Fn(u64) -> Range<u64> + Sync);

/// Reads a directory, or a single file, and sends what is not below `contents`; when `dry` only counts it. Hidden files belong to
/// it; a symbolic link to a file counts as that file; anything that is neither file nor folder is refused, and so is a tree without
/// files. A file that changes meanwhile is an error; no manifest names the chunks that were sent of it.
pub(super) async fn send(
    store: &Arc<dyn Store>,
    contents: &str,
    source: Source<'_>,
    dry: bool,
    report: &dyn Report,
) -> Result<Sent> {
    let files = Arc::new(LocalFile::find(source)?);
    let pass = Arc::new(Pass::new(store, contents, dry).await?);
    let passed = pass.over(&files, chunks(&files).collect(), report).await?;
    Ok(Sent::of(&files, passed))
}

/// [`send`] while others send parts of the same files. It sends its own share first. Then it goes through the rest, from the end,
/// and sends what the store lacks. So everything is there whatever became of the others, and little was sent twice.
pub(super) async fn send_with_others(store: &Arc<dyn Store>, contents: &str, directory: &Path, own: Share<'_>) -> Result<Sent> {
    let files = Arc::new(LocalFile::find(directory.into())?);
    let (own, mut rest): (Vec<_>, Vec<_>) = chunks(&files).partition(|chunk| is_in(own, &files, *chunk));
    rest.reverse();
    let pass = Arc::new(Pass::new(store, contents, false).await?);
    let mut passed = pass.over(&files, own, &Silent).await?;
    if !rest.is_empty() {
        passed.extend(Arc::new(pass.after_others().await?).over(&files, rest, &Silent).await?);
        passed.sort_unstable_by_key(|(chunk, _)| *chunk);
    }
    Ok(Sent::of(&files, passed))
}

/// Sends only a share of a directory's files. The node that commits sends what is missing: [`send_with_others`].
pub(super) async fn send_share(store: &Arc<dyn Store>, contents: &str, directory: &Path, own: Share<'_>) -> Result<()> {
    let files = Arc::new(LocalFile::find(directory.into())?);
    let own = chunks(&files).filter(|chunk| is_in(own, &files, *chunk)).collect();
    Arc::new(Pass::new(store, contents, false).await?).over(&files, own, &Silent).await.map(drop)
}

/// A chunk of a tree: the number of its file, and where it begins there.
type Chunk = (usize, u64);

fn chunks(files: &[LocalFile]) -> impl Iterator<Item = Chunk> {
    files.iter().enumerate().flat_map(|(index, file)| file.chunks().map(move |at| (index, at)))
}

fn is_in(share: Share<'_>, files: &[LocalFile], (index, at): Chunk) -> bool {
    // An empty file has a chunk without bytes.
    share(files[index].stamp.size.max(1)).contains(&at)
}

impl Sent {
    /// From all chunks of the files, in their order.
    fn of(files: &[LocalFile], passed: Vec<(Chunk, ([u8; 32], Was))>) -> Self {
        let mut sent = Self::default();
        let mut passed = passed.into_iter().peekable();
        for (index, file) in files.iter().enumerate() {
            let (mut digests, mut missing) = (Vec::new(), 0);
            while let Some(((_, at), (digest, was))) = passed.next_if(|((of, _), _)| *of == index) {
                match was {
                    Was::Missing => missing += 1,
                    Was::Present => drop(sent.relied.insert(digest.into())),
                    Was::Seen => {}
                }
                sent.new_bytes += if was == Was::Missing { file.length(at) } else { 0 };
                digests.push(digest);
            }
            sent.new_files += u64::from(missing > 0);
            sent.files.push(FileEntry::new(file.name.clone(), file.stamp.size, digests));
        }
        sent
    }
}

/// Whether the store has lost one of the contents with these digests.
pub(super) async fn lacks_any(store: &Arc<dyn Store>, contents: &str, digests: HashSet<Digest>) -> Result<bool> {
    let present = present(store, contents).await?;
    let asked = concurrently(store.jobs(), digests.into_iter().collect(), |digest| {
        let (store, name) = (Arc::clone(store), path::content(contents, &digest));
        let listed = present.as_ref().map(|present| present.contains(&name));
        async move {
            match listed {
                Some(listed) => Ok(listed),
                None => Ok(store.head(&name).await?.is_some()),
            }
        }
    });
    Ok(asked.await?.contains(&false))
}

/// The objects below `contents`, where one request tells.
async fn present(store: &Arc<dyn Store>, contents: &str) -> Result<Option<HashSet<String>>> {
    Ok(store.list_some(contents).await?.map(|found| found.into_iter().map(|meta| meta.path).collect()))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Was {
    Missing,
    /// In the store.
    Present,
    /// The tree had the same bytes in another place.
    Seen,
}

/// One way through a tree.
struct Pass {
    store: Arc<dyn Store>,
    contents: String,
    dry: bool,
    present: Option<HashSet<String>>,
    /// Whether others send the same files.
    has_others: bool,
    seen: Mutex<HashSet<[u8; 32]>>,
    memory: Semaphore,
    buffers: Arc<Buffers>,
    /// Bytes.
    done: AtomicU64,
}

/// Memory of whole chunks, used again: getting it from the kernel each time would cost about a tenth of the time of sending.
#[derive(Default)]
struct Buffers(Mutex<Vec<Vec<u8>>>);

/// A chunk in such memory.
struct Lent {
    buffer: Vec<u8>,
    to: Arc<Buffers>,
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        &self.buffer
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.to.0.lock().unwrap_or_else(PoisonError::into_inner).push(std::mem::take(&mut self.buffer));
    }
}

impl Buffers {
    /// The bytes that `fill` writes.
    fn fill(self: &Arc<Self>, length: u64, fill: impl FnOnce(&mut [u8]) -> io::Result<()>) -> io::Result<Bytes> {
        let taken = (length == CHUNK).then(|| self.0.lock().unwrap_or_else(PoisonError::into_inner).pop()).flatten();
        let mut buffer = taken.unwrap_or_else(|| vec![0; length as usize]);
        fill(&mut buffer)?;
        if length < CHUNK {
            return Ok(buffer.into());
        }
        Ok(Bytes::from_owner(Lent { buffer, to: Arc::clone(self) }))
    }
}

impl Pass {
    async fn new(store: &Arc<dyn Store>, contents: &str, dry: bool) -> Result<Self> {
        Ok(Self {
            store: Arc::clone(store),
            contents: contents.to_owned(),
            dry,
            present: present(store, contents).await?,
            has_others: false,
            seen: Mutex::default(),
            memory: Semaphore::new(MEMORY_KIB),
            buffers: Arc::default(),
            done: AtomicU64::default(),
        })
    }

    /// A second pass through the same tree, after others have sent something of it.
    async fn after_others(&self) -> Result<Self> {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Ok(Self { has_others: true, seen: Mutex::new(seen), ..Self::new(&self.store, &self.contents, self.dry).await? })
    }

    /// Some chunks in this order, each with its digest and where it was.
    async fn over(
        self: &Arc<Self>,
        files: &Arc<Vec<LocalFile>>,
        chunks: Vec<Chunk>,
        report: &dyn Report,
    ) -> Result<Vec<(Chunk, ([u8; 32], Was))>> {
        let total = chunks.iter().map(|(index, at)| files[*index].length(*at)).sum();
        let passing = concurrently(self.store.jobs(), chunks.clone(), |(index, at)| {
            let (pass, files) = (Arc::clone(self), Arc::clone(files));
            async move { pass.chunk(&files, index, at).await }
        });
        let what = if self.dry { "Hashing files" } else { "Hashing and sending files" };
        let tell = |done: u64| report.progress(what, done.min(total), Some(total), Unit::Bytes);
        Ok(chunks.into_iter().zip(watched(passing, &self.done, tell).await?).collect())
    }

    async fn chunk(&self, files: &Arc<Vec<LocalFile>>, index: usize, at: u64) -> Result<([u8; 32], Was)> {
        let length = files[index].length(at);
        let _room = self.memory.acquire_many((length >> 10).max(1) as u32).await;
        let (files, buffers) = (Arc::clone(files), Arc::clone(&self.buffers));
        let read = compute(move || {
            let bytes = files[index].read(at, &buffers)?;
            let digest: [u8; 32] = Sha256::digest(&bytes).into();
            Ok((bytes, digest))
        });
        let (bytes, digest) = read.await?;
        let was = self.store_once(bytes, digest).await?;
        self.done.fetch_add(length, Ordering::Relaxed);
        Ok((digest, was))
    }

    async fn store_once(&self, bytes: Bytes, digest: [u8; 32]) -> Result<Was> {
        if !self.seen.lock().unwrap_or_else(PoisonError::into_inner).insert(digest) {
            return Ok(Was::Seen);
        }
        let name = path::content(&self.contents, &digest.into());
        let present = match &self.present {
            Some(present) if present.contains(&name) => true,
            Some(_) if !self.has_others => false,
            _ => self.store.head(&name).await?.is_some(),
        };
        if present {
            return Ok(Was::Present);
        }
        if self.dry {
            return Ok(Was::Missing);
        }
        match self.store.put(&name, bytes, Condition::IfAbsent).await {
            // Or another program sent the same bytes meanwhile.
            Ok(_) | Err(StoreError::Conflict { .. }) => Ok(Was::Missing),
            Err(error) => Err(error),
        }
    }
}

/// The attributes of a file that change with its bytes. The time of its inode's change does so too often: also when another of its
/// names goes, as when the trainer removes an old checkpoint that is on its way to the store under a name of the agent's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    size: u64,
    inode: (u64, u64),
    modified: (i64, i64),
}

impl Stamp {
    fn of(file: &Metadata) -> Self {
        Self { size: file.len(), inode: (file.dev(), file.ino()), modified: (file.mtime(), file.mtime_nsec()) }
    }
}

/// A file of the tree as it was when the tree was looked through.
struct LocalFile {
    path: PathBuf,
    /// Relative, separated by `/`.
    name: String,
    stamp: Stamp,
}

impl LocalFile {
    /// Every file of `source`, sorted by name.
    fn find(wanted: Source<'_>) -> Result<Vec<Self>> {
        let (source, mut found) = (wanted.path(), Vec::new());
        let metadata = fs::metadata(source).map_err(|error| unreadable(source, error))?;
        if let Source::Files { directory, files } = wanted {
            for path in files {
                let stamp = Stamp::of(&fs::metadata(path).map_err(|error| unreadable(path, error))?);
                found.push(Self { path: path.clone(), name: relative_name(directory, path)?, stamp });
            }
        } else if metadata.is_file() {
            let root = source.parent().unwrap_or(Path::new(""));
            found.push(Self { path: source.to_owned(), name: relative_name(root, source)?, stamp: Stamp::of(&metadata) });
        } else if metadata.is_dir() {
            walk(source, source, &mut found)?;
        } else {
            return Err(special(source, &metadata));
        }
        if found.is_empty() {
            return Err(StoreError::Invalid(format!("{} holds no files", source.display())));
        }
        found.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        if let Some(why) = names::why_not(found.iter().map(|file| file.name.as_str())) {
            return Err(StoreError::Invalid(format!("in {} {why}; give it another name", source.display())));
        }
        Ok(found)
    }

    /// Where its chunks begin; an empty file has one.
    fn chunks(&self) -> impl Iterator<Item = u64> + use<> {
        (0..self.stamp.size.max(1)).step_by(CHUNK as usize)
    }

    fn length(&self, at: u64) -> u64 {
        CHUNK.min(self.stamp.size - at)
    }

    /// The chunk that begins at `at`, if the file is still what it was.
    fn read(&self, at: u64, buffers: &Arc<Buffers>) -> Result<Bytes> {
        let failed = |error: io::Error| match error.kind() {
            io::ErrorKind::UnexpectedEof => self.changed(),
            _ => unreadable(&self.path, error),
        };
        let file = File::open(&self.path).map_err(failed)?;
        let bytes = buffers.fill(self.length(at), |buffer| file.read_exact_at(buffer, at)).map_err(failed)?;
        // Some files say that they are empty and are not.
        let more = at + self.length(at) == self.stamp.size && file.read_at(&mut [0], self.stamp.size).map_err(failed)? > 0;
        if more || Stamp::of(&file.metadata().map_err(failed)?) != self.stamp {
            return Err(self.changed());
        }
        Ok(bytes)
    }

    fn changed(&self) -> StoreError {
        StoreError::Invalid(format!(
            "{} changed while it was being read; nothing was committed; try again when it is complete",
            self.path.display()
        ))
    }
}

fn unreadable(path: &Path, source: io::Error) -> StoreError {
    StoreError::Io { action: "read", path: path.display().to_string(), source }
}

/// Every file below `folder`, which is in `root`.
fn walk(root: &Path, folder: &Path, found: &mut Vec<LocalFile>) -> Result<()> {
    for entry in fs::read_dir(folder).map_err(|error| unreadable(folder, error))? {
        let path = entry.map_err(|error| unreadable(folder, error))?.path();
        let linked = fs::metadata(&path).map_err(|error| unreadable(&path, error))?;
        if linked.is_file() {
            refuse_private(root, &path)?;
            found.push(LocalFile { name: relative_name(root, &path)?, stamp: Stamp::of(&linked), path });
        } else if linked.is_dir() && !path.is_symlink() {
            walk(root, &path, found)?;
        } else {
            return Err(special(&path, &linked));
        }
    }
    Ok(())
}

/// Refuses a link out of `root` to a file that only its owner may read: git keeps links, so a directory that another person made
/// may have one to a key.
pub fn refuse_private(root: &Path, path: &Path) -> Result<()> {
    let failed = |error| unreadable(path, error);
    let takes = path.is_symlink() && is_private(&fs::metadata(path).map_err(failed)?) && leads_out(root, path).map_err(failed)?;
    if takes { Err(private(path)) } else { Ok(()) }
}

/// Whether nobody but its owner may read it, as keys and sign-ins are kept.
fn is_private(file: &fs::Metadata) -> bool {
    const OTHERS: u32 = 0o077;
    file.mode() & OTHERS == 0
}

fn leads_out(root: &Path, link: &Path) -> io::Result<bool> {
    Ok(!fs::canonicalize(link)?.starts_with(fs::canonicalize(root)?))
}

fn private(link: &Path) -> StoreError {
    let target = fs::canonicalize(link).unwrap_or_default();
    StoreError::Invalid(format!(
        "{} links to {}, outside this folder, which only its owner may read; to send it, put a copy in place of the link",
        link.display(),
        target.display()
    ))
}

fn special(path: &Path, linked: &fs::Metadata) -> StoreError {
    let kind = if linked.is_dir() { "a link to a directory" } else { "neither a file nor a directory" };
    StoreError::Invalid(format!("{} is {kind}; take it out, or put a copy in its place", path.display()))
}

fn relative_name(root: &Path, path: &Path) -> Result<String> {
    let relative = path.strip_prefix(root).unwrap_or(path);
    let name =
        relative.to_str().ok_or_else(|| StoreError::Invalid(format!("the name {} is not UTF-8; rename it", path.display())))?;
    Ok(name.to_owned())
}

/// Reads a manifest and checks its digest before anything in it is believed.
pub(super) async fn verified(store: &dyn Store, path: &str, digest: &Digest) -> Result<Bytes> {
    let object = get_json(store, path).await?;
    let found = Digest::of(&object.bytes);
    if found == *digest {
        Ok(object.bytes)
    } else {
        Err(StoreError::Damaged { path: path.to_owned(), expected: digest.to_string(), found: found.to_string() })
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
                let (index, result) = joined(finished);
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
    let mut told = None;
    let mut tell = || {
        let done = counter.load(Ordering::Relaxed);
        // The end is said once, though work goes on for a moment after its last byte.
        if told.replace(done) != Some(done) {
            report(done);
        }
    };
    loop {
        tokio::select! {
            done = &mut work => {
                if done.is_ok() {
                    tell();
                }
                return done;
            }
            () = tokio::time::sleep(Duration::from_millis(100)) => tell(),
        }
    }
}

/// Runs `work` as [`on_thread`] does, for work that keeps a core busy: as many at a time as there are cores, so that sending is not
/// kept waiting.
pub(super) async fn compute<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    static CORES: LazyLock<Semaphore> =
        LazyLock::new(|| Semaphore::new(std::thread::available_parallelism().map_or(1, usize::from)));
    // Never closed.
    let _core = CORES.acquire().await;
    on_thread(work).await
}

pub(super) async fn on_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    joined(tokio::task::spawn_blocking(work).await)
}

/// The result of a task, which is never aborted.
pub(super) fn joined<T>(finished: Result<T, JoinError>) -> T {
    finished.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))
}
