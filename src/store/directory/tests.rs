//! The directory store: what other processes, crashes and links do to it.

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
    // A process that another test starts has the file open, too, until it becomes its program.
    locked(file.as_file(), Duration::from_secs(60)).unwrap();
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
