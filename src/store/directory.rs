//! A store in a directory: every object is a plain file of that path, so that a person can look inside with `ls` and `cat`.
//!
//! Writers in any number of processes are kept apart by advisory locks in `.ftctl/locks`; readers take none, because an object
//! changes by a rename and a log only grows. What a crash leaves behind is a temporary file in `.ftctl/temporary`, which nobody
//! lists and which a later writer removes.

use std::{
    fs::{self, File, Metadata, OpenOptions},
    io::{self, Read, Seek, SeekFrom, Write},
    ops::Range,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use async_trait::async_trait;
use bytes::Bytes;
use jiff::Timestamp;
use sha2::{Digest, Sha256};
use tempfile::NamedTempFile;

use super::{Condition, ETag, EXPOSURE, Meta, Object, Result, Store, StoreError, check_path, check_prefix};
use crate::job::finding::Finding;

/// The one name in the directory that holds no objects.
pub(super) const PRIVATE: &str = ".ftctl";

/// Locks are shared by the paths with the same first byte of digest: a fixed number of files however many objects there are.
const LOCK_BYTES: usize = 1;

/// A temporary file this old belongs to a writer that died.
const ABANDONED: Duration = Duration::from_secs(86_400);

pub struct DirectoryStore {
    root: Arc<Root>,
    url: String,
}

impl DirectoryStore {
    /// Opens the store at `path`, which need not exist: the first write creates it, and reading an absent store finds nothing.
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
        Ok(Self { root: Arc::new(Root { path }), url })
    }

    /// Writes wait for locks and for the disk: they run where they hold nobody up. Reads of a local file are over sooner than
    /// the way to another thread and back.
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

    fn exposure(&self) -> Option<Finding> {
        let what = "a machine that is broken into could read, change and delete all of the store, which is a directory that it writes to: \
                    other jobs, names and datasets, too";
        let fix = "name a blob container with --store; with an account's key each job has a container of its own";
        Some(Finding::notice(EXPOSURE, what, fix))
    }

    async fn get(&self, path: &str) -> Result<Object> {
        let (file, metadata) = self.root.open(path)?;
        let mut bytes = Vec::with_capacity(metadata.len() as usize);
        // The length is the one that the version names, even when a log grows meanwhile.
        file.take(metadata.len()).read_to_end(&mut bytes).map_err(|error| self.root.failed("read", path, error))?;
        Ok(Object { bytes: bytes.into(), etag: version(&metadata) })
    }

    async fn get_range(&self, path: &str, range: Range<u64>) -> Result<Bytes> {
        let (mut file, metadata) = self.root.open(path)?;
        let length = range.end.min(metadata.len()).saturating_sub(range.start);
        let mut bytes = Vec::with_capacity(length as usize);
        file.seek(SeekFrom::Start(range.start))
            .and_then(|_| file.take(length).read_to_end(&mut bytes))
            .map_err(|error| self.root.failed("read", path, error))?;
        Ok(bytes.into())
    }

    async fn head(&self, path: &str) -> Result<Option<Meta>> {
        Ok(self.root.metadata(path)?.map(|metadata| meta(path.to_owned(), &metadata)))
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
        self.root.walk(prefix, &mut found)?;
        found.sort_unstable_by(|a, b| a.path.cmp(&b.path));
        Ok(found)
    }

    async fn children(&self, prefix: &str) -> Result<Vec<String>> {
        check_prefix(prefix)?;
        let mut names: Vec<String> = self.root.entries(prefix)?.into_iter().map(|(name, _)| name).collect();
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
}

impl Root {
    fn locate(&self, path: &str) -> Result<PathBuf> {
        check_path(path)?;
        Ok(self.path.join(path))
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

    fn metadata(&self, path: &str) -> Result<Option<Metadata>> {
        match fs::metadata(self.locate(path)?) {
            Ok(metadata) => Ok(metadata.is_file().then_some(metadata)),
            Err(error) if is_absent(&error) => Ok(None),
            Err(error) => Err(self.failed("read", path, error)),
        }
    }

    fn open(&self, path: &str) -> Result<(File, Metadata)> {
        let opened = File::open(self.locate(path)?).and_then(|file| file.metadata().map(|metadata| (file, metadata)));
        match opened {
            Ok((file, metadata)) if metadata.is_file() => Ok((file, metadata)),
            Err(error) if !is_absent(&error) => Err(self.failed("read", path, error)),
            _ => Err(StoreError::NotFound { store: self.path.display().to_string(), path: path.to_owned() }),
        }
    }

    /// Keeps every other writer of `path` out, in this process and in others, until dropped or until this process dies.
    fn lock(&self, path: &str) -> Result<File> {
        let name = hex::encode(&Sha256::digest(path)[..LOCK_BYTES]);
        let directory = self.path.join(PRIVATE).join("locks");
        let open = || OpenOptions::new().write(true).create(true).truncate(false).open(directory.join(&name));
        open()
            .or_else(|_| fs::create_dir_all(&directory).and_then(|()| open()))
            .and_then(|file| file.lock().map(|()| file))
            .map_err(|error| self.failed("lock", path, error))
    }

    fn temporary(&self) -> io::Result<NamedTempFile> {
        let directory = self.path.join(PRIVATE).join("temporary");
        fs::create_dir_all(&directory)?;
        for entry in fs::read_dir(&directory)?.flatten() {
            let age = entry.metadata().and_then(|metadata| metadata.modified()).map(|time| time.elapsed().unwrap_or_default());
            if age.is_ok_and(|age| age > ABANDONED) {
                // Another writer may have been quicker.
                let _ = fs::remove_file(entry.path());
            }
        }
        tempfile::Builder::new().permissions(readable()).tempfile_in(directory)
    }

    /// Replaces an object by what `fill` writes, when `condition` holds. The bytes are on the disk before the object has its name.
    fn write(&self, path: &str, condition: &Condition, fill: impl FnOnce(&mut File) -> Result<()>) -> Result<ETag> {
        let failed = |error| self.failed("write", path, error);
        let target = self.locate(path)?;
        // Asked twice: here to spare the copy of a file that is in the store already, below to be sure.
        allowed(path, condition, self.metadata(path)?.as_ref())?;
        let mut temporary = self.temporary().map_err(failed)?;
        fill(temporary.as_file_mut())?;
        temporary.as_file().sync_all().map_err(failed)?;
        let _lock = self.lock(path)?;
        let present = self.metadata(path)?;
        allowed(path, condition, present.as_ref())?;
        let etag = stamp(temporary.as_file(), present.as_ref()).map_err(failed)?;
        rename(temporary, &target).map_err(failed)?;
        sync_parent(&target).map_err(failed)?;
        Ok(etag)
    }

    /// No `fsync`: the writer keeps what it sent until the end of the job, so that a power failure costs a repetition, not a line.
    fn append(&self, path: &str, offset: u64, bytes: &[u8]) -> Result<u64> {
        let failed = |error| self.failed("append to", path, error);
        let target = self.locate(path)?;
        let _lock = self.lock(path)?;
        let wrong = |length| StoreError::WrongOffset { path: path.to_owned(), expected: offset, length };
        let mut options = OpenOptions::new();
        options.append(true).create(offset == 0);
        let mut file = match in_existing_parent(&target, || options.open(&target)) {
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
        let target = self.locate(path)?;
        let _lock = self.lock(path)?;
        match fs::remove_file(&target) {
            Err(error) if !is_absent(&error) => return Err(self.failed("delete", path, error)),
            _ => {}
        }
        // Folders are no objects: the empty ones go, up to the first that is not empty.
        let mut folders = target.ancestors().skip(1);
        let standing = folders.find(|folder| *folder == self.path || fs::remove_dir(folder).is_err()).unwrap_or(&self.path);
        // What is deleted next (contents after the manifest that named them) must not be gone before this is.
        match File::open(standing).and_then(|folder| folder.sync_all()) {
            Err(error) if !is_absent(&error) => Err(self.failed("delete", path, error)),
            _ => Ok(()),
        }
    }

    /// The names in the folder `prefix` and whether each is a folder; none when there is no such folder.
    fn entries(&self, prefix: &str) -> Result<Vec<(String, bool)>> {
        let read = || -> io::Result<Vec<(String, bool)>> {
            let mut names = Vec::new();
            for entry in fs::read_dir(self.path.join(prefix))? {
                let entry = entry?;
                // A name that is no UTF-8 was not written through a store.
                if let Ok(name) = entry.file_name().into_string()
                    && name != PRIVATE
                {
                    names.push((name, entry.file_type()?.is_dir()));
                }
            }
            Ok(names)
        };
        match read() {
            Err(error) if is_absent(&error) => Ok(Vec::new()),
            names => names.map_err(|error| self.failed("list", prefix, error)),
        }
    }

    fn walk(&self, prefix: &str, found: &mut Vec<Meta>) -> Result<()> {
        for (name, is_folder) in self.entries(prefix)? {
            let path = if prefix.is_empty() { name } else { format!("{prefix}/{name}") };
            if is_folder {
                self.walk(&path, found)?;
            } else if let Some(metadata) = self.metadata(&path)? {
                found.push(meta(path, &metadata));
            }
        }
        Ok(())
    }
}

fn meta(path: String, metadata: &Metadata) -> Meta {
    let modified = metadata.modified().ok().and_then(|time| Timestamp::try_from(time).ok()).unwrap_or_default();
    Meta { path, size: metadata.len(), modified }
}

/// Time, inode and length. [`stamp`] makes the time rise with every write of a path whatever the clock does, so that no two
/// versions share it, and no content has to be read to know the version.
fn version(metadata: &Metadata) -> ETag {
    ETag(format!("{:x}.{:09}-{:x}-{:x}", metadata.mtime(), metadata.mtime_nsec(), metadata.ino(), metadata.len()))
}

/// Gives a file its time: now, or just after the one it replaces.
fn stamp(file: &File, present: Option<&Metadata>) -> io::Result<ETag> {
    let now = SystemTime::now();
    let time = match present {
        Some(present) => now.max(present.modified()? + Duration::from_nanos(1)),
        None => now,
    };
    file.set_modified(time)?;
    file.metadata().map(|metadata| version(&metadata))
}

fn allowed(path: &str, condition: &Condition, present: Option<&Metadata>) -> Result<()> {
    let holds = match condition {
        Condition::Always => true,
        Condition::IfAbsent => present.is_none(),
        Condition::IfMatch(etag) => present.is_some_and(|metadata| version(metadata) == *etag),
    };
    if holds { Ok(()) } else { Err(StoreError::Conflict { path: path.to_owned() }) }
}

fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

fn rename(temporary: NamedTempFile, target: &Path) -> io::Result<()> {
    let temporary = temporary.into_temp_path();
    in_existing_parent(target, || fs::rename(&temporary, target))?;
    // It has another name now; there is nothing to clean up.
    temporary.keep().map(drop).or(Ok(()))
}

/// Does something in a folder that may not exist yet, and that the deletion of its last other object may take away meanwhile.
fn in_existing_parent<T>(target: &Path, act: impl Fn() -> io::Result<T>) -> io::Result<T> {
    let parent = target.parent().unwrap_or(Path::new("/"));
    let mut tries = 0;
    loop {
        match act() {
            Err(error) if error.kind() == io::ErrorKind::NotFound && tries < 10 && !parent.exists() => {
                make_folder(parent)?;
                tries += 1;
            }
            done => return done,
        }
    }
}

/// Creates a folder and those above it that are missing, each so that it survives a power failure.
fn make_folder(folder: &Path) -> io::Result<()> {
    match (fs::create_dir(folder), folder.parent()) {
        (Ok(()), _) => sync_parent(folder),
        (Err(error), _) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        (Err(error), Some(parent)) if error.kind() == io::ErrorKind::NotFound => {
            make_folder(parent)?;
            make_folder(folder)
        }
        (failed, _) => failed,
    }
}

/// What `umask` leaves of "everybody may read and write": temporary files are for their owner alone, objects and downloads are not.
pub(super) fn readable() -> fs::Permissions {
    fs::Permissions::from_mode(0o666)
}

/// Makes a rename survive a power failure.
pub(super) fn sync_parent(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), |parent| File::open(parent)?.sync_all())
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};

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
        conformance::passes(Arc::new(store)).await;
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
        // What a killed writer leaves goes with a later write.
        let left = temporary.join("left");
        File::create(&left).unwrap().set_modified(SystemTime::now() - 2 * ABANDONED).unwrap();
        store.put("a", "whole".into(), Condition::Always).await.unwrap();
        assert!(!left.exists());
    }

    /// A store on a shared disk is for the group that the folder is for.
    #[tokio::test]
    async fn objects_and_downloads_are_as_readable_as_other_new_files() {
        let (directory, store) = fresh();
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
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
        let (_directory, store) = fresh();
        let etag = store.put("a", "1".into(), Condition::Always).await.unwrap();
        let object = File::open(store.root.locate("a").unwrap()).unwrap();
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
        // Nobody, not even root, may create folders here.
        let store = DirectoryStore::open(Path::new("/proc/self/store")).unwrap();
        let error = store.put("a", "x".into(), Condition::Always).await.unwrap_err();
        assert!(matches!(&error, StoreError::Io { action: "write", path, .. } if path == "a"), "{error}");
        assert!(error.to_string().contains("/proc/self/store"), "{error}");
    }

    #[test]
    fn errors_name_the_store_and_what_to_do() {
        let root = Root { path: std::env::temp_dir() };
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
