//! A store in a directory: every object is a plain file of that path, so that a person can look inside with `ls` and `cat`.
//!
//! Writers in any number of processes are kept apart by advisory locks in `.ftctl/locks`; readers take none, because an object
//! changes by a rename and a log only grows. A crash leaves a temporary file in `.ftctl/temporary`, which is never listed and which
//! a later writer removes.
//!
//! Others may write to the directory, too, or it came with a repository: every operation opens it once and reaches the rest beneath
//! that handle (see [`beneath`]). A symbolic link, a pipe or a device in it is no object.
//!
//! Long, because its tests play other processes: they stand beside what they race.

use std::{
    collections::hash_map::RandomState,
    fs::{self, DirBuilder, File, TryLockError},
    hash::{BuildHasher as _, Hasher as _},
    io::{self, Read, Seek, SeekFrom, Write},
    ops::Range,
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
    thread,
    time::{Duration, Instant, SystemTime},
};

use async_trait::async_trait;
use bytes::Bytes;
use cap_std::fs::{Dir, MetadataExt as _, OpenOptions, OpenOptionsExt as _};
use jiff::Timestamp;
use rustix::fs::{Stat, fstat};
use sha2::{Digest, Sha256};

use super::{
    Condition, ETag, EXPOSURE, Meta, Object, Result, Store, StoreError,
    beneath::{self, is_absent, is_file, split},
    check_path, check_prefix, check_size, identity,
};
use crate::job::{digest, finding::Finding};

/// The one name in the directory that holds no objects.
pub(super) const PRIVATE: &str = ".ftctl";

const LOCKS: &str = ".ftctl/locks";
const TEMPORARY: &str = ".ftctl/temporary";

/// Below [`PRIVATE`]: the text that no other store has.
const ID: &str = "id";
const LONGEST_ID: u64 = 4_096;

/// Locks are shared by the paths with the same first byte of digest: a fixed number of files however many objects there are.
const LOCK_BYTES: usize = 1;

/// A writer holds a lock for a rename, or for the lines that it appends. Others who may write to the directory can hold one for
/// ever.
const LONGEST_LOCK: Duration = Duration::from_secs(30);
const LOCK_POLL: Duration = Duration::from_millis(1);

/// A temporary file this old belongs to a writer that died.
const ABANDONED: Duration = Duration::from_secs(86_400);

pub struct DirectoryStore {
    root: Arc<Root>,
    url: String,
}

impl DirectoryStore {
    /// Opens the store at `path`, which need not exist: the first write creates it, for its owner alone, and reading an absent
    /// store finds nothing. Its owner does not matter: nothing in it leads elsewhere, and on a shared disk colleagues write to one
    /// store.
    pub fn open(path: &Path) -> Result<Self> {
        let failed = |source| StoreError::Io { action: "open", path: path.display().to_string(), source };
        let path = std::path::absolute(path).map_err(failed)?;
        match fs::metadata(&path) {
            Ok(metadata) if !metadata.is_dir() => {
                return Err(StoreError::Invalid(format!("the store {} is not a directory; choose another place", path.display())));
            }
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
            _ => {}
        }
        let url = path.display().to_string();
        Ok(Self { root: Arc::new(Root { path, drawn: OnceLock::new() }), url })
    }

    /// Writes wait for locks and for the disk: they run on threads of their own. Reads of a local file are over sooner than the way
    /// to another thread and back.
    async fn elsewhere<T: Send + 'static>(&self, work: impl FnOnce(&Root) -> Result<T> + Send + 'static) -> Result<T> {
        let root = Arc::clone(&self.root);
        match tokio::task::spawn_blocking(move || work(&root)).await {
            Ok(result) => result,
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    }
}

#[async_trait]
impl Store for DirectoryStore {
    fn url(&self) -> &str {
        &self.url
    }

    async fn identity(&self) -> Result<digest::Digest> {
        self.root.identity()
    }

    fn exposure(&self) -> Option<Finding> {
        let what =
            "the store is a directory: with control of one job's machine, an attacker could read, change and delete all of it";
        let fix = "name a blob container with --store; with an account's key each job has a container of its own";
        Some(Finding::notice(EXPOSURE, what, fix))
    }

    async fn get_limited(&self, path: &str, most: u64) -> Result<Object> {
        let (file, stat) = self.root.read(path)?;
        check_size(path, length(&stat), most)?;
        let mut bytes = Vec::with_capacity(length(&stat) as usize);
        // The length is the one that the version names, even when a log grows meanwhile.
        file.take(length(&stat)).read_to_end(&mut bytes).map_err(|error| self.root.failed("read", path, error))?;
        Ok(Object { bytes: bytes.into(), etag: version(&stat) })
    }

    async fn get_range(&self, path: &str, range: Range<u64>) -> Result<Bytes> {
        let (mut file, stat) = self.root.read(path)?;
        let wanted = range.end.min(length(&stat)).saturating_sub(range.start);
        let mut bytes = Vec::with_capacity(wanted as usize);
        if wanted > 0 {
            file.seek(SeekFrom::Start(range.start))
                .and_then(|_| file.take(wanted).read_to_end(&mut bytes))
                .map_err(|error| self.root.failed("read", path, error))?;
        }
        Ok(bytes.into())
    }

    async fn head(&self, path: &str) -> Result<Option<Meta>> {
        Ok(self.root.stat(path)?.map(|stat| meta(path.to_owned(), &stat)))
    }

    async fn put(&self, path: &str, bytes: Bytes, condition: Condition) -> Result<ETag> {
        let path = path.to_owned();
        self.elsewhere(move |root| {
            root.write(&path, &condition, |file| file.write_all(&bytes).map_err(|error| root.failed("write", &path, error)))
        })
        .await
    }

    async fn append(&self, path: &str, offset: u64, bytes: Bytes) -> Result<u64> {
        let path = path.to_owned();
        self.elsewhere(move |root| root.append(&path, offset, &bytes)).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<Meta>> {
        check_prefix(prefix)?;
        let mut found = Vec::new();
        self.root.look(prefix, |folder| walk(folder, prefix, &mut found))?;
        found.sort_unstable_by(|a, b| a.path.cmp(&b.path));
        Ok(found)
    }

    async fn children(&self, prefix: &str) -> Result<Vec<String>> {
        check_prefix(prefix)?;
        let mut names = Vec::new();
        self.root.look(prefix, |folder| {
            names = entries(folder, prefix)?.into_iter().map(|(name, _)| name).collect();
            Ok(())
        })?;
        names.sort_unstable();
        Ok(names)
    }

    async fn delete(&self, path: &str) -> Result<()> {
        let path = path.to_owned();
        self.elsewhere(move |root| root.delete(&path)).await
    }
}

struct Root {
    path: PathBuf,
    /// The id of a store that has none yet.
    drawn: OnceLock<String>,
}

/// The directory opened for a write.
struct Opened {
    dir: Dir,
    /// Mode of the contents, as open to others as the directory itself: a folder that a group shares stays one, and a careless
    /// `umask` opens nothing.
    mode: u32,
}

impl Opened {
    /// A folder that is made if need be, so that it survives a power failure.
    fn folder(&self, path: &str) -> io::Result<Dir> {
        beneath::make(&self.dir, path, self.mode | 0o700, beneath::sync)
    }

    fn options(&self) -> OpenOptions {
        OpenOptions::new().mode((self.mode | 0o600) & 0o666).clone()
    }

    /// Keeps every other writer of `path` out, in this process and in others, until dropped or until this process dies.
    fn lock(&self, path: &str) -> io::Result<File> {
        let name = hex::encode(&Sha256::digest(path)[..LOCK_BYTES]);
        let file = beneath::open(&self.folder(LOCKS)?, &name, self.options().write(true).create(true))?;
        locked(&file, LONGEST_LOCK)?;
        Ok(file)
    }
}

/// Waits for the lock on a file, but no longer than `longest`.
fn locked(file: &File, longest: Duration) -> io::Result<()> {
    let begun = Instant::now();
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(()),
            Err(TryLockError::Error(error)) => return Err(error),
            Err(TryLockError::WouldBlock) if begun.elapsed() < longest => thread::sleep(LOCK_POLL),
            Err(TryLockError::WouldBlock) => {
                let why = format!("another process has held a file in {LOCKS} for {} s", begun.elapsed().as_secs());
                return Err(io::Error::new(io::ErrorKind::TimedOut, why));
            }
        }
    }
}

impl Root {
    fn open(&self) -> io::Result<Opened> {
        let dir = beneath::named(&self.path)?;
        let mode = dir.dir_metadata()?.mode() & 0o777;
        Ok(Opened { dir, mode })
    }

    /// [`Root::open`] that makes a missing directory, for its owner alone.
    fn make(&self) -> io::Result<Opened> {
        match self.open() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let missing: Vec<&Path> = self.path.ancestors().take_while(|path| !path.exists()).collect();
                missing.into_iter().rev().try_for_each(|path| match DirBuilder::new().mode(0o700).create(path) {
                    Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
                    made => made.and_then(|()| sync_parent(path)),
                })?;
                self.open()
            }
            opened => opened,
        }
    }

    /// The error as the user needs it: which store, and for a full disk how full.
    #[allow(clippy::needless_pass_by_value)] // It takes the place of the error in `map_err`.
    fn failed(&self, action: &'static str, path: &str, error: io::Error) -> StoreError {
        let root = self.path.display();
        let why = match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                format!("the disk of {root} is full ({}); free some space, or use another store", self.free())
            }
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                format!("{root} may not be written to or read from: {error}; change its permissions, or use another store")
            }
            _ => format!("{error} (in {root})"),
        };
        StoreError::Io { action, path: path.to_owned(), source: io::Error::new(error.kind(), why) }
    }

    fn free(&self) -> String {
        let standing = self.path.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/"));
        match rustix::fs::statvfs(standing) {
            Ok(disk) => format!("{} MB are free", disk.f_bavail * disk.f_frsize / 1_000_000),
            Err(_) => "its free space is unknown".to_owned(),
        }
    }

    fn stat(&self, path: &str) -> Result<Option<Stat>> {
        check_path(path)?;
        let (folder, name) = split(path);
        let found = beneath::named(&self.path)
            .and_then(|root| beneath::folder(&root, folder))
            .and_then(|folder| beneath::stat(&folder, name));
        match found {
            Err(error) if is_absent(&error) => Ok(None),
            found => Ok(found.map_err(|error| self.failed("read", path, error))?.filter(is_file)),
        }
    }

    fn read(&self, path: &str) -> Result<(File, Stat)> {
        check_path(path)?;
        let (folder, name) = split(path);
        let opened = beneath::named(&self.path)
            .and_then(|root| beneath::folder(&root, folder))
            .and_then(|folder| beneath::open(&folder, name, OpenOptions::new().read(true)))
            .and_then(|file| Ok((fstat(&file)?, file)));
        match opened {
            Ok((stat, file)) => Ok((file, stat)),
            Err(error) if is_absent(&error) => {
                Err(StoreError::NotFound { store: self.path.display().to_string(), path: path.to_owned() })
            }
            Err(error) => Err(self.failed("read", path, error)),
        }
    }

    /// Looks into a folder, if there is one.
    fn look(&self, prefix: &str, see: impl FnOnce(&Dir) -> io::Result<()>) -> Result<()> {
        match beneath::named(&self.path).and_then(|root| beneath::folder(&root, prefix)).and_then(|folder| see(&folder)) {
            Err(error) if is_absent(&error) => Ok(()),
            seen => seen.map_err(|error| self.failed("list", prefix, error)),
        }
    }

    /// That of the id in `.ftctl/id`; before there is one, of the id that this process's first write gives the store.
    fn identity(&self) -> Result<crate::job::digest::Digest> {
        let opened = beneath::named(&self.path)
            .and_then(|root| beneath::folder(&root, PRIVATE))
            .and_then(|folder| beneath::open(&folder, ID, OpenOptions::new().read(true)));
        let mut id = Vec::new();
        match opened.and_then(|file| file.take(LONGEST_ID).read_to_end(&mut id)) {
            Ok(_) if identity::is_drawn(&id) => Ok(identity::of(id)),
            Ok(_) => {
                let why = "it is not the id of a store: restore the file from a copy of the store; or remove it, and ftctl draws another and \
                           no longer knows the machines of this store's jobs as its own";
                Err(StoreError::Unreadable(format!("{}: {why}", self.path.join(PRIVATE).join(ID).display())))
            }
            Err(error) if is_absent(&error) => Ok(identity::of(self.drawn.get_or_init(identity::draw))),
            Err(error) => Err(self.failed("read", ".ftctl/id", error)),
        }
    }

    /// Gives the store its id, unless it has one.
    fn name(&self, root: &Opened) -> io::Result<()> {
        let folder = root.folder(PRIVATE)?;
        if beneath::stat(&folder, ID)?.is_some() {
            return Ok(());
        }
        let mut temporary = Temporary::new(root)?;
        temporary.file.write_all(self.drawn.get_or_init(identity::draw).as_bytes())?;
        temporary.file.sync_all()?;
        let _lock = root.lock(ID)?;
        if beneath::stat(&folder, ID)?.is_none() {
            temporary.folder.rename(&temporary.name, &folder, ID)?;
        }
        beneath::sync(&folder)
    }

    /// Replaces an object by what `fill` writes, when `condition` holds. The bytes are on the disk before the object has its name.
    fn write(&self, path: &str, condition: &Condition, fill: impl FnOnce(&mut File) -> Result<()>) -> Result<ETag> {
        let failed = |error| self.failed("write", path, error);
        // Asked twice: here to spare the copy of a file that is in the store already, below to be sure.
        allowed(path, condition, self.stat(path)?.as_ref())?;
        let root = self.make().map_err(failed)?;
        self.name(&root).map_err(failed)?;
        let mut temporary = Temporary::new(&root).map_err(failed)?;
        fill(&mut temporary.file)?;
        temporary.file.sync_all().map_err(failed)?;
        let _lock = root.lock(path).map_err(|error| self.failed("lock", path, error))?;
        let present = self.stat(path)?;
        allowed(path, condition, present.as_ref())?;
        let etag = stamp(&temporary.file, present.as_ref()).map_err(failed)?;
        let (folder, name) = split(path);
        let named = beneath::again(|| {
            let folder = root.folder(folder)?;
            temporary.folder.rename(&temporary.name, &folder, name)?;
            Ok(folder)
        });
        named.and_then(|folder| beneath::sync(&folder)).map_err(failed)?;
        Ok(etag)
    }

    /// No `fsync`: the writer keeps what it sent until the end of the job, so that a power failure costs a repetition, not a line.
    fn append(&self, path: &str, offset: u64, bytes: &[u8]) -> Result<u64> {
        let failed = |error| self.failed("append to", path, error);
        check_path(path)?;
        let root = self.make().map_err(failed)?;
        let _lock = root.lock(path).map_err(|error| self.failed("lock", path, error))?;
        let wrong = |length| StoreError::WrongOffset { path: path.to_owned(), expected: offset, length };
        let (folder, name) = split(path);
        let mut options = root.options();
        options.append(true).create(offset == 0);
        let opened = match offset {
            0 => beneath::again(|| beneath::open(&root.folder(folder)?, name, &options)),
            _ => beneath::folder(&root.dir, folder).and_then(|folder| beneath::open(&folder, name, &options)),
        };
        let mut file = match opened {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(wrong(0)),
            opened => opened.map_err(failed)?,
        };
        let length = file.metadata().map_err(failed)?.len();
        if length != offset {
            return Err(wrong(length));
        }
        if let Err(error) = file.write_all(bytes) {
            // A full disk may have taken a part.
            file.set_len(offset).map_err(failed)?;
            return Err(failed(error));
        }
        Ok(offset + bytes.len() as u64)
    }

    fn delete(&self, path: &str) -> Result<()> {
        let failed = |error| self.failed("delete", path, error);
        check_path(path)?;
        let root = match self.open() {
            Err(error) if is_absent(&error) => return Ok(()),
            opened => opened.map_err(failed)?,
        };
        let _lock = root.lock(path).map_err(|error| self.failed("lock", path, error))?;
        remove(root.dir, path).map_err(failed)
    }
}

/// Removes an object and the folders that are empty then, up to the first that is not: folders are no objects.
fn remove(root: Dir, path: &str) -> io::Result<()> {
    let (folder, name) = split(path);
    let names: Vec<&str> = beneath::parts(folder).collect();
    let mut way = vec![root];
    for name in &names {
        match beneath::enter(&way[way.len() - 1], name) {
            Err(error) if is_absent(&error) => break,
            entered => way.push(entered?),
        }
    }
    if way.len() > names.len() {
        match way[names.len()].remove_file(name) {
            Err(error) if !is_absent(&error) => return Err(error),
            _ => {}
        }
    }
    while let [.., above, _] = &way[..]
        && above.remove_dir(names[way.len() - 2]).is_ok()
    {
        way.pop();
    }
    // The next deletion (contents after the manifest that named them) must not reach the disk before this one.
    beneath::sync(&way[way.len() - 1])
}

/// The names in a folder that may be those of objects or their folders, and whether each is a folder. Entries that no store wrote
/// are left out: links, pipes, names that no store takes.
fn entries(folder: &Dir, prefix: &str) -> io::Result<Vec<(String, bool)>> {
    let mut found = Vec::new();
    for entry in folder.entries()? {
        let entry = entry?;
        let kind = match entry.file_type() {
            // Gone since it was listed.
            Err(error) if is_absent(&error) => continue,
            kind => kind?,
        };
        if let Ok(name) = entry.file_name().into_string()
            && (kind.is_dir() || kind.is_file())
            && check_path(&below(prefix, &name)).is_ok()
        {
            found.push((name, kind.is_dir()));
        }
    }
    Ok(found)
}

fn below(prefix: &str, name: &str) -> String {
    if prefix.is_empty() { name.to_owned() } else { format!("{prefix}/{name}") }
}

fn walk(folder: &Dir, prefix: &str, found: &mut Vec<Meta>) -> io::Result<()> {
    for (name, is_folder) in entries(folder, prefix)? {
        let path = below(prefix, &name);
        if !is_folder {
            found.extend(beneath::stat(folder, &name)?.filter(is_file).map(|stat| meta(path, &stat)));
            continue;
        }
        match beneath::enter(folder, &name).and_then(|folder| walk(&folder, &path, found)) {
            // Gone since it was listed.
            Err(error) if is_absent(&error) => {}
            walked => walked?,
        }
    }
    Ok(())
}

/// A new file without an object's name; removed when dropped, unless it has got one.
struct Temporary {
    folder: Dir,
    name: String,
    file: File,
}

impl Temporary {
    fn new(root: &Opened) -> io::Result<Self> {
        let folder = root.folder(TEMPORARY)?;
        remove_abandoned(&folder)?;
        loop {
            let name = format!("{MADE}{:016x}", RandomState::new().build_hasher().finish());
            match beneath::create(&folder, &name, &root.options()) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                created => return created.map(|file| Self { folder, name, file }),
            }
        }
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        // An object by now, as a rule.
        let _ = self.folder.remove_file(&self.name);
    }
}

/// Begins the names of temporary files; at least six letters or digits follow.
const MADE: &str = ".tmp";

fn remove_abandoned(folder: &Dir) -> io::Result<()> {
    for entry in folder.entries()?.flatten() {
        let Ok(name) = entry.file_name().into_string() else { continue };
        let random = name.strip_prefix(MADE).unwrap_or_default();
        let is_ours = random.len() >= 6 && random.bytes().all(|byte| byte.is_ascii_alphanumeric());
        if is_ours
            && let Some(stat) = beneath::stat(folder, &name)?.filter(is_file)
            && modified(&stat).elapsed().is_ok_and(|age| age > ABANDONED)
        {
            // Another writer may have been quicker.
            let _ = folder.remove_file(&name);
        }
    }
    Ok(())
}

fn length(stat: &Stat) -> u64 {
    stat.st_size as u64
}

#[allow(clippy::unnecessary_cast, reason = "macOS counts nanoseconds with a sign")]
fn modified(stat: &Stat) -> SystemTime {
    let (seconds, nanoseconds) = (stat.st_mtime, Duration::from_nanos(stat.st_mtime_nsec as u64));
    let since = Duration::from_secs(seconds.unsigned_abs());
    let whole = if seconds < 0 { SystemTime::UNIX_EPOCH.checked_sub(since) } else { SystemTime::UNIX_EPOCH.checked_add(since) };
    whole.and_then(|whole| whole.checked_add(nanoseconds)).unwrap_or(SystemTime::UNIX_EPOCH)
}

fn meta(path: String, stat: &Stat) -> Meta {
    Meta { path, size: length(stat), modified: Timestamp::try_from(modified(stat)).unwrap_or_default() }
}

/// Time, inode and length. [`stamp`] makes the time rise with every write of a path whatever the clock does, so that no two
/// versions share it, and no content has to be read to know the version.
fn version(stat: &Stat) -> ETag {
    ETag(format!("{:x}.{:09}-{:x}-{:x}", stat.st_mtime, stat.st_mtime_nsec, stat.st_ino, stat.st_size))
}

/// Gives a file its time: now, or just after the one it replaces.
fn stamp(file: &File, present: Option<&Stat>) -> io::Result<ETag> {
    let after = |present| modified(present).checked_add(Duration::from_nanos(1));
    let now = SystemTime::now();
    file.set_modified(present.and_then(after).map_or(now, |after| now.max(after)))?;
    Ok(version(&fstat(file)?))
}

fn allowed(path: &str, condition: &Condition, present: Option<&Stat>) -> Result<()> {
    let holds = match condition {
        Condition::Always => true,
        Condition::IfAbsent => present.is_none(),
        Condition::IfMatch(etag) => present.is_some_and(|stat| version(stat) == *etag),
    };
    if holds { Ok(()) } else { Err(StoreError::Conflict { path: path.to_owned() }) }
}

/// Makes a rename survive a power failure.
fn sync_parent(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), |parent| File::open(parent)?.sync_all())
}

#[cfg(test)]
mod tests {
    use std::{
        os::unix::fs::{MetadataExt as _, PermissionsExt as _},
        process::{Child, Command, Stdio},
    };

    use super::*;
    use crate::{
        job::report::Silent,
        store::{conformance, dataset, log},
    };

    fn fresh() -> (tempfile::TempDir, DirectoryStore) {
        let directory = tempfile::tempdir().unwrap();
        let store = DirectoryStore::open(&directory.path().join("store")).unwrap();
        (directory, store)
    }

    #[tokio::test]
    async fn conforms() {
        let (_directory, store) = fresh();
        conformance::passes(Arc::new(store), 1_000).await;
    }

    /// This test program again, as the other process `name`.
    fn other_process(name: &str, store: &DirectoryStore, argument: &str) -> Child {
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", &format!("store::directory::tests::{name}"), "--ignored", "--nocapture"])
            .env("FTCTL_TEST_STORE", store.url())
            .env("FTCTL_TEST_ARGUMENT", argument)
            .stdout(Stdio::null())
            .spawn()
            .unwrap()
    }

    fn from_parent() -> (DirectoryStore, String) {
        let store = std::env::var("FTCTL_TEST_STORE").expect("this is the other process of a test, not a test");
        (DirectoryStore::open(Path::new(&store)).unwrap(), std::env::var("FTCTL_TEST_ARGUMENT").unwrap())
    }

    #[tokio::test]
    #[ignore = "the other process of processes_do_not_lose_each_others_writes"]
    async fn writer_process() {
        let (store, writer) = from_parent();
        conformance::count(&store, 40).await;
        conformance::append_lines(&store, &writer, 40).await;
    }

    #[tokio::test]
    async fn processes_do_not_lose_each_others_writes() {
        let (_directory, store) = fresh();
        let children: Vec<Child> = (0..3).map(|writer| other_process("writer_process", &store, &writer.to_string())).collect();
        for mut child in children {
            assert!(child.wait().unwrap().success());
        }
        assert_eq!(store.get("counter").await.unwrap().bytes, "120");
        conformance::assert_lines(&store, 3, 40).await;
    }

    /// Bytes that show where they belong.
    fn pattern(length: u64) -> Vec<u8> {
        (0..length.div_ceil(8)).flat_map(u64::to_le_bytes).take(length as usize).collect()
    }

    const SPOOL: u64 = 32 << 20;

    #[tokio::test]
    #[ignore = "the other process of a_killed_shipper_is_continued_without_gap_or_repetition"]
    async fn shipper_process() {
        let (store, spool) = from_parent();
        log::append_all(&store, "log", Path::new(&spool), 0).await.unwrap();
    }

    #[tokio::test]
    async fn a_killed_shipper_is_continued_without_gap_or_repetition() {
        let (directory, store) = fresh();
        let spool = directory.path().join("spool");
        std::fs::write(&spool, pattern(SPOOL)).unwrap();
        let mut stops = 0;
        for _ in 0..10 {
            let before = log::length(&store, "log").await.unwrap();
            let mut child = other_process("shipper_process", &store, spool.to_str().unwrap());
            while log::length(&store, "log").await.unwrap() <= before && child.try_wait().unwrap().is_none() {
                std::thread::yield_now();
            }
            child.kill().unwrap();
            child.wait().unwrap();
            let length = log::length(&store, "log").await.unwrap();
            stops += usize::from(length > 0 && length < SPOOL);
            if length == SPOOL {
                break;
            }
        }
        assert!(stops > 0, "no kill fell into the middle");
        log::append_all(&store, "log", &spool, 0).await.unwrap();
        assert!(store.get("log").await.unwrap().bytes == pattern(SPOOL), "the log is not the spool");
    }

    #[tokio::test]
    async fn nothing_is_created_by_looking() {
        let (directory, store) = fresh();
        assert_eq!(store.list("").await.unwrap(), []);
        assert_eq!(store.children("jobs").await.unwrap(), Vec::<String>::new());
        store.get("a").await.unwrap_err();
        assert!(!directory.path().join("store").exists());
    }

    #[tokio::test]
    async fn a_half_written_object_is_never_seen_and_does_not_stay() {
        let (directory, store) = fresh();
        let root = &store.root;
        root.write("a", &Condition::Always, |file| {
            file.write_all(b"half").unwrap();
            Err(StoreError::Invalid("the writer dies".into()))
        })
        .unwrap_err();
        assert_eq!(store.list("").await.unwrap(), []);
        let temporary = directory.path().join("store").join(PRIVATE).join("temporary");
        assert_eq!(fs::read_dir(&temporary).unwrap().count(), 0);
        // The remains of a killed writer of this or an earlier version go with a later write. Nothing else does.
        let old = |name: &str| {
            let path = temporary.join(name);
            File::create(&path).unwrap().set_modified(SystemTime::now() - 2 * ABANDONED).unwrap();
            path
        };
        let (left, earlier, other) = (old(".tmp0123456789abcdef"), old(".tmpaB3xYz"), old("thesis.tex"));
        store.put("a", "whole".into(), Condition::Always).await.unwrap();
        assert!(!left.exists() && !earlier.exists() && other.exists());
    }

    /// `path`, an old file outside of the store, and its bytes.
    fn outside(directory: &Path, name: &str) -> PathBuf {
        let path = directory.join("outside").join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, "mine").unwrap();
        File::open(&path).unwrap().set_modified(SystemTime::now() - 2 * ABANDONED).unwrap();
        path
    }

    #[tokio::test]
    async fn a_link_in_the_store_leads_nowhere() {
        let (directory, store) = fresh();
        let theirs = outside(directory.path(), ".tmpabcdef");
        let link = |target: &str, path: &str| {
            let path = directory.path().join("store").join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::os::unix::fs::symlink(target, path).unwrap();
        };
        link("../../outside", "jobs/folder");
        link("../../outside/.tmpabcdef", "jobs/file");
        link("../../outside/new", "jobs/log");
        store.put("jobs/real", "x".into(), Condition::Always).await.unwrap();
        let names: Vec<String> = store.list("").await.unwrap().into_iter().map(|meta| meta.path).collect();
        assert_eq!(names, ["jobs/real"]);
        assert_eq!(store.children("jobs").await.unwrap(), ["real"]);
        for path in ["jobs/file", "jobs/folder/.tmpabcdef", "jobs/log"] {
            let errors = [
                store.get(path).await.unwrap_err(),
                store.get_range(path, 0..1).await.unwrap_err(),
                store.append(path, 0, "theirs".into()).await.unwrap_err(),
            ];
            assert!(
                errors.iter().all(|error| error.to_string().contains("is a symbolic link, which ftctl does not open")),
                "{errors:?}"
            );
        }
        let errors = [
            store.put("jobs/folder/new", "theirs".into(), Condition::Always).await.unwrap_err(),
            store.delete("jobs/folder/.tmpabcdef").await.unwrap_err(),
            store.list("jobs/folder").await.unwrap_err(),
            store.children("jobs/folder").await.unwrap_err(),
            store.head("jobs/folder/.tmpabcdef").await.unwrap_err(),
        ];
        assert!(errors.iter().all(|error| error.to_string().contains("`folder` is a symbolic link")), "{errors:?}");
        assert_eq!(store.head("jobs/file").await.unwrap(), None);
        // A write takes a link's place, as it takes that of any object.
        store.put("jobs/file", "whole".into(), Condition::IfAbsent).await.unwrap();
        assert_eq!(store.get("jobs/file").await.unwrap().bytes, "whole");
        store.delete("jobs/file").await.unwrap();
        for private in ["temporary", "locks"] {
            let (directory, store) = fresh();
            let theirs = outside(directory.path(), ".tmpabcdef");
            let path = directory.path().join("store").join(PRIVATE);
            fs::create_dir_all(&path).unwrap();
            std::os::unix::fs::symlink("../../outside", path.join(private)).unwrap();
            let error = store.put("a", "x".into(), Condition::Always).await.unwrap_err().to_string();
            assert!(error.contains("is a symbolic link"), "{error}");
            assert_eq!(fs::read_dir(theirs.parent().unwrap()).unwrap().count(), 1);
        }
        assert_eq!(fs::read(&theirs).unwrap(), b"mine");
        assert_eq!(fs::read_dir(theirs.parent().unwrap()).unwrap().count(), 1);
    }

    #[tokio::test]
    async fn what_is_no_object_neither_waits_nor_fills_the_memory() {
        let (directory, store) = fresh();
        store.put("jobs/real", "x".into(), Condition::Always).await.unwrap();
        let at = |name: &str| directory.path().join("store/jobs").join(name);
        rustix::fs::mknodat(rustix::fs::CWD, at("pipe"), rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        fs::write(at("no\nname"), "").unwrap();
        File::create(at("large.json")).unwrap().set_len(1 << 40).unwrap();
        assert!(store.get("jobs/pipe").await.unwrap_err().to_string().contains("`pipe` is not a plain file"));
        assert!(matches!(store.get("jobs").await, Err(StoreError::NotFound { .. })));
        assert!(store.append("jobs/pipe", 0, "x".into()).await.is_err());
        let error = super::super::get_json(&store, "jobs/large.json").await.unwrap_err();
        assert!(matches!(&error, StoreError::Unreadable(why) if why.contains("1099511627776 bytes")), "{error}");
        assert!(matches!(store.get("jobs/large.json").await, Err(StoreError::Unreadable(_))));
        assert_eq!(store.children("jobs").await.unwrap(), ["large.json", "real"]);
        assert_eq!(store.list("").await.unwrap().len(), 2);
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o777
    }

    #[tokio::test]
    async fn a_new_store_is_its_owners_alone() {
        let directory = tempfile::tempdir().unwrap();
        let store = DirectoryStore::open(&directory.path().join("state/ftctl/store")).unwrap();
        store.put("a/b", "x".into(), Condition::Always).await.unwrap();
        for folder in ["state", "state/ftctl", "state/ftctl/store", "state/ftctl/store/.ftctl", "state/ftctl/store/a"] {
            assert_eq!(mode(&directory.path().join(folder)), 0o700, "{folder}");
        }
        assert_eq!(mode(&directory.path().join("state/ftctl/store/a/b")), 0o600);
    }

    /// A store on a shared disk is for the group that the folder is for.
    #[tokio::test]
    async fn objects_and_downloads_are_as_readable_as_other_new_files() {
        let (directory, store) = fresh();
        fs::create_dir(directory.path().join("store")).unwrap();
        fs::set_permissions(directory.path().join("store"), fs::Permissions::from_mode(0o755)).unwrap();
        let usual = directory.path().join("usual");
        std::fs::write(&usual, "tokens").unwrap();
        store.put("a/b", "x".into(), Condition::Always).await.unwrap();
        store.append("a/log", 0, "x".into()).await.unwrap();
        let store: Arc<dyn Store> = Arc::new(store);
        let digest = dataset::upload(&store, &usual, &Silent).await.unwrap().digest;
        let to = directory.path().join("to");
        dataset::download(&store, &digest, &to, &Silent).await.unwrap();
        for path in ["store/a/b", "store/a/log", "to/usual"] {
            assert_eq!(mode(&directory.path().join(path)), mode(&usual), "{path}");
        }
    }

    #[tokio::test]
    async fn the_clock_may_go_back() {
        let (directory, store) = fresh();
        let etag = store.put("a", "1".into(), Condition::Always).await.unwrap();
        let object = File::open(directory.path().join("store/a")).unwrap();
        object.set_modified(SystemTime::now() + Duration::from_secs(8 * 3_600)).unwrap();
        let ahead = store.get("a").await.unwrap().etag;
        let next = store.put("a", "1".into(), Condition::IfMatch(ahead.clone())).await.unwrap();
        assert!(next != ahead && next != etag);
        assert!(store.head("a").await.unwrap().unwrap().modified > Timestamp::now());
    }

    #[tokio::test]
    async fn places_that_cannot_be_a_store_say_why() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file");
        std::fs::write(&file, "").unwrap();
        let error = DirectoryStore::open(&file).err().unwrap().to_string();
        assert!(error.contains("is not a directory; choose another place"), "{error}");
        // Not even root may create folders here.
        let store = DirectoryStore::open(Path::new("/proc/self/store")).unwrap();
        let error = store.put("a", "x".into(), Condition::Always).await.unwrap_err();
        assert!(matches!(&error, StoreError::Io { action: "write", path, .. } if path == "a"), "{error}");
        assert!(error.to_string().contains("/proc/self/store"), "{error}");
    }

    #[test]
    fn a_lock_that_another_keeps_is_not_waited_for_without_end() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let other = File::open(file.path()).unwrap();
        other.lock().unwrap();
        let refused = locked(file.as_file(), Duration::from_millis(5)).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::TimedOut);
        drop(other);
        locked(file.as_file(), Duration::ZERO).unwrap();
    }

    #[test]
    fn errors_name_the_store_and_what_to_do() {
        let root = Root { path: std::env::temp_dir(), drawn: OnceLock::new() };
        for (number, expected) in [
            (rustix::io::Errno::NOSPC, "MB are free); free some space"),
            (rustix::io::Errno::DQUOT, "MB are free); free some space"),
            (rustix::io::Errno::ROFS, "change its permissions, or use another store"),
            (rustix::io::Errno::ACCESS, "change its permissions, or use another store"),
        ] {
            let text = root.failed("write", "a", number.into()).to_string();
            assert!(text.contains(expected) && text.starts_with("cannot write a: "), "{text}");
        }
    }
}
