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
mod tests;
