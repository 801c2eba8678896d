//! Datasets (and any other tree of files) by content: the name of a dataset is the digest of its manifest, so the same files are
//! the same dataset, sending it again sends nothing, and one changed file re-sends itself only.

use std::{path::Path, sync::Arc};

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::{
    Condition, FileEntry, MOST_MANIFEST, Result, Store, StoreError, check_format,
    content::{self, Sent, Source},
    fetch, find_json,
    memory::MemoryStore,
    parse_json, read_json, to_json, write_json,
};
use crate::job::{
    digest::Digest,
    id::{MAX_NAME, path, valid_name},
    report::Report,
};

pub const DATASET_SCHEMA: &str = "ftctl.dataset/2";
/// The one before this one had no chunks.
const READABLE: &[&str] = &["ftctl.dataset/1", DATASET_SCHEMA];

/// `manifest.json` of a dataset: the digest of these bytes is its name. Files are sorted by path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DatasetManifest {
    pub schema: String,
    pub files: Vec<FileEntry>,
}

const NAME_SCHEMA: &str = "ftctl.dataset-name/1";

/// `dataset-names/<name>.json`: the newest dataset of that name.
#[derive(Debug, Serialize, Deserialize)]
struct NameEntry {
    schema: String,
    digest: Digest,
}

/// The result of an upload, done or planned.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Uploaded {
    /// Digest of the manifest: the dataset's name.
    pub digest: Digest,
    pub files: u64,
    pub bytes: u64,
    /// Files of which the store did not have everything.
    pub sent_files: u64,
    pub sent_bytes: u64,
}

/// Sends a directory or a single file. Hidden files are part of it, links to files are followed, empty directories are not kept.
/// The manifest is written last: until then there is no dataset, and the next try does not send the same bytes again.
pub async fn upload<'a>(store: &Arc<dyn Store>, source: impl Into<Source<'a>>, report: &dyn Report) -> Result<Uploaded> {
    let source = source.into();
    let mut sent = content::send(store, &path::contents(), source, false, report).await?;
    let manifest = manifest_bytes(&sent)?;
    let digest = Digest::of(&manifest);
    match store.put(&path::dataset_manifest(&digest), manifest, Condition::IfAbsent).await {
        Ok(_) | Err(StoreError::Conflict { .. }) => {}
        Err(error) => return Err(error),
    }
    // Until the manifest named it, `prune` may have removed what was there already.
    if !sent.relied.is_empty() && content::lacks_any(store, &path::contents(), std::mem::take(&mut sent.relied)).await? {
        let again = content::send(store, &path::contents(), source, false, report).await?;
        if again.files != sent.files {
            let path = source.path().display();
            return Err(StoreError::Invalid(format!("{path} changed while it was being sent; send it again")));
        }
        sent.new_files += again.new_files;
        sent.new_bytes += again.new_bytes;
    }
    Ok(uploaded(digest, &sent))
}

/// The result that [`upload`] would have, without doing it.
pub async fn plan_upload(store: &Arc<dyn Store>, source: &Path, report: &dyn Report) -> Result<Uploaded> {
    let sent = content::send(store, &path::contents(), source.into(), true, report).await?;
    Ok(uploaded(Digest::of(&manifest_bytes(&sent)?), &sent))
}

/// The files of this machine, and the digest that they have as a dataset. No store is asked.
pub async fn here(source: Source<'_>, report: &dyn Report) -> Result<(Digest, Vec<FileEntry>)> {
    let nothing: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let sent = content::send(&nothing, &path::contents(), source, true, report).await?;
    Ok((Digest::of(&manifest_bytes(&sent)?), sent.files))
}

fn uploaded(digest: Digest, sent: &Sent) -> Uploaded {
    let bytes = sent.files.iter().map(|file| file.size).sum();
    Uploaded { digest, files: sent.files.len() as u64, bytes, sent_files: sent.new_files, sent_bytes: sent.new_bytes }
}

fn manifest_bytes(sent: &Sent) -> Result<Bytes> {
    let manifest = to_json("the manifest", &DatasetManifest { schema: DATASET_SCHEMA.to_owned(), files: sent.files.clone() })?;
    if manifest.len() as u64 > MOST_MANIFEST {
        let (files, bytes) = (sent.files.len(), manifest.len());
        return Err(StoreError::Invalid(format!(
            "the manifest of {files} files would have {bytes} bytes, and no ftctl reads more than {MOST_MANIFEST}; pack small files together"
        )));
    }
    Ok(manifest)
}

/// Whether `digest` names a dataset that is completely in the store.
pub async fn exists(store: &dyn Store, digest: &Digest) -> Result<bool> {
    Ok(store.head(&path::dataset_manifest(digest)).await?.is_some())
}

/// Lets `name` stand for a dataset from now on.
pub async fn set_name(store: &dyn Store, name: &str, digest: &Digest) -> Result<()> {
    check_name(name)?;
    let entry = NameEntry { schema: NAME_SCHEMA.to_owned(), digest: digest.clone() };
    write_json(store, &path::dataset_name(name), &entry, Condition::Always).await.map(drop)
}

/// The digest of the dataset that has this name at present.
pub async fn named(store: &dyn Store, name: &str) -> Result<Digest> {
    check_name(name)?;
    let path = path::dataset_name(name);
    let (entry, _): (NameEntry, _) = read_json(store, &path).await?;
    check_format(&path, &entry.schema, &[NAME_SCHEMA])?;
    Ok(entry.digest)
}

/// Refuses what cannot be the name of a dataset.
pub fn check_name(name: &str) -> Result<()> {
    if valid_name(name) {
        return Ok(());
    }
    let rule = "it starts with a letter and has lower-case letters, digits and single hyphens, at most";
    Err(StoreError::Invalid(format!("`{name}` is not a name for a dataset: {rule} {MAX_NAME}")))
}

/// The manifest, verified against its digest; its files can be put into a folder.
pub async fn manifest(store: &dyn Store, digest: &Digest) -> Result<DatasetManifest> {
    let manifest = stored(store, digest).await?;
    content::check(&manifest.files)?;
    Ok(manifest)
}

/// [`manifest`] for a caller that only asks which contents are named.
async fn stored(store: &dyn Store, digest: &Digest) -> Result<DatasetManifest> {
    let name = path::dataset_manifest(digest);
    let manifest: DatasetManifest = parse_json(&name, &content::verified(store, &name, digest).await?)?;
    check_format(&name, &manifest.schema, READABLE)?;
    Ok(manifest)
}

/// Puts a dataset's files below `to`, every byte verified. Files that are there already with the right content are not fetched
/// again; a file has its name only when it is complete, so an interrupted download is continued by repeating it.
pub async fn download(store: &Arc<dyn Store>, digest: &Digest, to: &Path, report: &dyn Report) -> Result<DatasetManifest> {
    let manifest = manifest(store.as_ref(), digest).await?;
    fetch::fetch(store, &path::contents(), &manifest.files, &fetch::Target::make(to).await?, report).await?;
    Ok(manifest)
}

/// A small file of a dataset; `None` where there is none of this name, and for one of more than 4 MiB.
pub async fn small_file(store: &dyn Store, digest: &Digest, name: &str) -> Result<Option<Bytes>> {
    let manifest = manifest(store, digest).await?;
    match manifest.files.iter().find(|file| file.path == name).map(FileEntry::contents) {
        Some([only]) => content::verified(store, &path::content(&path::contents(), only), only).await.map(Some),
        _ => Ok(None),
    }
}

/// Reads every byte of a dataset back and compares it with its digests.
pub async fn verify(store: &Arc<dyn Store>, digest: &Digest, report: &dyn Report) -> Result<()> {
    let manifest = manifest(store.as_ref(), digest).await?;
    fetch::verify(store, &path::contents(), &manifest.files, report).await
}

/// The files of a dataset; none when it is gone.
pub(super) async fn files(store: &dyn Store, digest: &Digest) -> Result<Vec<FileEntry>> {
    match stored(store, digest).await {
        Err(StoreError::NotFound { .. }) => Ok(Vec::new()),
        found => Ok(found?.files),
    }
}

/// The digests that names stand for at present.
pub async fn all_named(store: &dyn Store) -> Result<Vec<Digest>> {
    let mut digests = Vec::new();
    for entry in store.list(&path::dataset_names()).await? {
        let found: Option<(NameEntry, _)> = find_json(store, &entry.path).await?;
        if let Some((found, _)) = found {
            check_format(&entry.path, &found.schema, &[NAME_SCHEMA])?;
            digests.push(found.digest);
        }
    }
    Ok(digests)
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink, sync::atomic::Ordering};

    use bytes::Bytes;
    use serde_json::json;

    use super::*;
    use crate::{
        job::report::Silent,
        store::{content::CHUNK, faulty::FaultyStore},
    };

    fn content_of(bytes: &[u8]) -> String {
        path::content(&path::contents(), &Digest::of(bytes))
    }

    struct Bench {
        directory: tempfile::TempDir,
        counting: Arc<FaultyStore>,
        store: Arc<dyn Store>,
    }

    /// A source of four files, two of them alike and one of them hidden, and a store that counts.
    fn bench() -> Bench {
        let directory = tempfile::tempdir().unwrap();
        let source = directory.path().join("source");
        fs::create_dir_all(source.join("train")).unwrap();
        fs::create_dir(source.join("empty")).unwrap();
        for (name, text) in [("dataset.json", "{}"), ("train/0.bin", "tokens"), ("train/1.bin", "tokens"), (".hidden", "")] {
            fs::write(source.join(name), text).unwrap();
        }
        let counting = FaultyStore::new(Arc::new(MemoryStore::new()));
        let store: Arc<dyn Store> = Arc::clone(&counting) as _;
        Bench { directory, counting, store }
    }

    impl Bench {
        fn path(&self, name: &str) -> std::path::PathBuf {
            self.directory.path().join(name)
        }
        async fn upload(&self) -> Result<Uploaded> {
            upload(&self.store, &self.path("source"), &Silent).await
        }
    }

    #[tokio::test]
    async fn one_changed_file_resends_one_file() {
        let bench = bench();
        let planned = plan_upload(&bench.store, &bench.path("source"), &Silent).await.unwrap();
        assert_eq!(bench.counting.take_written(), Vec::<String>::new());
        let first = bench.upload().await.unwrap();
        assert_eq!(planned, first);
        assert_eq!((first.files, first.bytes, first.sent_files, first.sent_bytes), (4, 14, 3, 8));
        assert_eq!(bench.counting.take_written().last(), Some(&path::dataset_manifest(&first.digest)));

        let again = bench.upload().await.unwrap();
        assert_eq!((again.sent_files, again.sent_bytes, &again.digest), (0, 0, &first.digest));
        assert_eq!(bench.counting.take_written(), Vec::<String>::new());

        fs::write(bench.path("source/train/1.bin"), "other tokens").unwrap();
        let changed = bench.upload().await.unwrap();
        assert_ne!(changed.digest, first.digest);
        assert_eq!((changed.sent_files, changed.sent_bytes), (1, 12));
        assert_eq!(bench.counting.take_written(), [content_of(b"other tokens"), path::dataset_manifest(&changed.digest)]);
    }

    #[tokio::test]
    async fn a_name_stands_for_the_newest_dataset_of_that_name() {
        let bench = bench();
        assert!(matches!(named(&*bench.store, "texts").await, Err(StoreError::NotFound { .. })));
        for digest in [Digest::of(b"first"), Digest::of(b"second")] {
            set_name(&*bench.store, "texts", &digest).await.unwrap();
            assert_eq!(named(&*bench.store, "texts").await.unwrap(), digest);
        }
        let error = set_name(&*bench.store, "../datasets", &Digest::of(b"third")).await.unwrap_err();
        assert!(matches!(error, StoreError::Invalid(_)), "{error}");
    }

    #[tokio::test]
    async fn what_comes_back_is_what_was_sent() {
        let bench = bench();
        let target = bench.path("source/linked.bin");
        symlink(bench.path("source/train/0.bin"), &target).unwrap();
        let digest = bench.upload().await.unwrap().digest;
        assert!(exists(&*bench.store, &digest).await.unwrap());
        let to = bench.path("to");
        let manifest = download(&bench.store, &digest, &to, &Silent).await.unwrap();
        let names: Vec<&str> = manifest.files.iter().map(|file| file.path.as_str()).collect();
        assert_eq!(names, [".hidden", "dataset.json", "linked.bin", "train/0.bin", "train/1.bin"]);
        for name in names {
            assert_eq!(fs::read(to.join(name)).unwrap(), fs::read(bench.path("source").join(name)).unwrap(), "{name}");
        }
        // The copy is the same dataset.
        assert_eq!(upload(&bench.store, &to, &Silent).await.unwrap().digest, digest);
    }

    #[tokio::test]
    async fn an_interrupted_download_is_continued() {
        let bench = bench();
        let digest = bench.upload().await.unwrap().digest;
        let to = bench.path("to");
        fs::create_dir_all(to.join("train")).unwrap();
        fs::write(to.join("train/.ftctl-partial-killed"), "tok").unwrap();
        fs::write(to.join("train/1.bin"), "wrong!").unwrap();
        fs::write(to.join("dataset.json"), "{}").unwrap();
        let before = fs::metadata(to.join("dataset.json")).unwrap().modified().unwrap();
        download(&bench.store, &digest, &to, &Silent).await.unwrap();
        assert_eq!(fs::read(to.join("train/1.bin")).unwrap(), b"tokens");
        assert_eq!(fs::read_dir(to.join("train")).unwrap().count(), 2, "nothing unfinished stays");
        assert_eq!(
            fs::metadata(to.join("dataset.json")).unwrap().modified().unwrap(),
            before,
            "what is right is not fetched again"
        );
    }

    #[tokio::test]
    async fn damage_is_found_and_nothing_wrong_gets_a_name() {
        let bench = bench();
        let digest = bench.upload().await.unwrap().digest;
        verify(&bench.store, &digest, &Silent).await.unwrap();
        let content = content_of(b"tokens");
        for damaged in ["tokenz", "token", ""] {
            bench.store.put(&content, damaged.into(), Condition::Always).await.unwrap();
            let error = download(&bench.store, &digest, &bench.path("to"), &Silent).await.unwrap_err();
            assert!(matches!(&error, StoreError::Damaged { path, .. } if *path == content), "{error}");
            let error = verify(&bench.store, &digest, &Silent).await.unwrap_err();
            assert!(matches!(&error, StoreError::Damaged { path, .. } if *path == content), "{error}");
            assert!(!bench.path("to/train/0.bin").exists());
        }
        let manifest = path::dataset_manifest(&digest);
        bench.store.put(&manifest, "{}".into(), Condition::Always).await.unwrap();
        let error = download(&bench.store, &digest, &bench.path("to"), &Silent).await.unwrap_err();
        assert!(matches!(&error, StoreError::Damaged { path, .. } if *path == manifest), "{error}");
    }

    #[tokio::test]
    async fn sources_that_cannot_be_kept_are_refused() {
        let bench = bench();
        let refused = async |name: &str| upload(&bench.store, &bench.path(name), &Silent).await.unwrap_err().to_string();
        assert!(refused("source/empty").await.contains("holds no files"));
        assert!(refused("none").await.contains("No such file"));
        fs::create_dir(bench.path("links")).unwrap();
        symlink(bench.path("source"), bench.path("links/train")).unwrap();
        assert!(refused("links").await.contains("a link to a directory"));
        fs::create_dir(bench.path("sockets")).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(bench.path("sockets/socket")).unwrap();
        assert!(refused("sockets").await.contains("neither a file nor a directory"));
        assert_eq!(bench.counting.take_written(), Vec::<String>::new());
    }

    /// A file that grows, and one whose bytes change in place: both while the tree is on its way.
    #[tokio::test]
    async fn a_file_that_changes_on_the_way_commits_nothing() {
        use std::io::{Seek as _, Write as _};
        for grows in [true, false] {
            let bench = bench();
            let large = bench.path("source/large");
            fs::write(&large, vec![1; 60 << 20]).unwrap();
            let mut file = fs::OpenOptions::new().write(true).append(grows).open(&large).unwrap();
            bench.counting.after_writes(1, move || {
                file.rewind().unwrap();
                file.write_all(b"changed").unwrap();
            });
            let error = bench.upload().await.unwrap_err().to_string();
            assert!(error.contains("source/large changed while it was being read"), "{error}");
            assert_eq!(bench.store.children(&path::datasets()).await.unwrap(), Vec::<String>::new());
        }
    }

    /// The case of a checkpoint that the trainer removes while the agent sends it under a name of its own.
    #[tokio::test]
    async fn a_file_may_lose_another_name_on_the_way() {
        let bench = bench();
        let other = bench.path("other");
        fs::write(bench.path("source/large"), vec![1; 60 << 20]).unwrap();
        fs::hard_link(bench.path("source/large"), &other).unwrap();
        bench.counting.after_writes(1, move || fs::remove_file(other).unwrap());
        bench.upload().await.unwrap();
    }

    #[tokio::test]
    async fn one_changed_chunk_of_a_file_resends_one_chunk() {
        let bench = bench();
        let large = bench.path("source/large");
        let mut bytes: Vec<u8> = (0..3_000_000_u32).flat_map(u32::to_le_bytes).collect();
        fs::write(&large, &bytes).unwrap();
        let first = bench.upload().await.unwrap();
        assert_eq!((first.sent_files, first.sent_bytes), (4, 12_000_008));
        bytes[5_000_000] ^= 1;
        fs::write(&large, &bytes).unwrap();
        let changed = bench.upload().await.unwrap();
        assert_eq!((changed.sent_files, changed.sent_bytes), (1, 4 << 20));
        let to = bench.path("to");
        download(&bench.store, &changed.digest, &to, &Silent).await.unwrap();
        assert!(fs::read(to.join("large")).unwrap() == bytes);
        // The digest of the file is that of its chunks' digests.
        let manifest = manifest(&*bench.store, &changed.digest).await.unwrap();
        let entry = manifest.files.iter().find(|file| file.path == "large").unwrap();
        let digests: Vec<u8> = bytes.chunks(4 << 20).flat_map(|chunk| hex::decode(Digest::of(chunk).as_str()).unwrap()).collect();
        assert_eq!((&entry.sha256, entry.chunks.len()), (&Digest::of(&digests), 3));
    }

    #[tokio::test]
    async fn manifests_of_the_first_format_are_read() {
        let bench = bench();
        bench.store.put(&content_of(b"tokens"), "tokens".into(), Condition::Always).await.unwrap();
        let text = format!(
            r#"{{"schema": "ftctl.dataset/1", "files": [{{"path": "train.bin", "size": 6, "sha256": "{}"}}]}}"#,
            Digest::of(b"tokens")
        );
        let digest = Digest::of(text.as_bytes());
        bench.store.put(&path::dataset_manifest(&digest), text.into(), Condition::Always).await.unwrap();
        let to = bench.path("to");
        download(&bench.store, &digest, &to, &Silent).await.unwrap();
        assert_eq!(fs::read(to.join("train.bin")).unwrap(), b"tokens");
        let newer = r#"{"schema": "ftctl.dataset/9", "files": []}"#;
        let digest = Digest::of(newer.as_bytes());
        bench.store.put(&path::dataset_manifest(&digest), newer.into(), Condition::Always).await.unwrap();
        let error = download(&bench.store, &digest, &to, &Silent).await.unwrap_err().to_string();
        assert!(error.contains("of the format `ftctl.dataset/9`") && error.contains("newer ftctl"), "{error}");
    }

    #[tokio::test]
    async fn lost_answers_and_a_store_that_is_down_only_delay() {
        let bench = bench();
        bench.counting.loses_answers.store(true, Ordering::SeqCst);
        bench.upload().await.unwrap_err();
        bench.counting.loses_answers.store(false, Ordering::SeqCst);
        bench.counting.down.store(true, Ordering::SeqCst);
        bench.upload().await.unwrap_err();
        bench.counting.down.store(false, Ordering::SeqCst);
        let uploaded = bench.upload().await.unwrap();
        assert!(uploaded.sent_files < 3, "what arrived is not sent again");
        download(&bench.store, &uploaded.digest, &bench.path("to"), &Silent).await.unwrap();
    }

    #[tokio::test]
    async fn what_prune_takes_away_meanwhile_is_sent_again() {
        let bench = bench();
        bench.upload().await.unwrap();
        fs::write(bench.path("source/new"), "new").unwrap();
        *bench.counting.takes_away.lock().unwrap() = Some((path::datasets(), content_of(b"tokens")));
        let uploaded = bench.upload().await.unwrap();
        assert_eq!((uploaded.sent_files, uploaded.sent_bytes), (2, 9));
        verify(&bench.store, &uploaded.digest, &Silent).await.unwrap();
    }

    /// Stores a manifest that says `files`, and fetches it to `to`.
    async fn fetch_of(bench: &Bench, files: serde_json::Value, to: &str) -> Result<DatasetManifest> {
        let text = serde_json::json!({ "schema": DATASET_SCHEMA, "files": files }).to_string();
        let digest = Digest::of(text.as_bytes());
        bench.store.put(&path::dataset_manifest(&digest), text.into(), Condition::Always).await.unwrap();
        download(&bench.store, &digest, &bench.path(to), &Silent).await
    }

    fn entry(path: &str, size: u64, bytes: &[u8]) -> serde_json::Value {
        serde_json::json!({ "path": path, "size": size, "sha256": Digest::of(bytes) })
    }

    #[tokio::test]
    async fn a_manifest_that_contradicts_itself_writes_nothing() {
        let bench = bench();
        for bytes in [&b"tokens"[..], b"other", b""] {
            bench.store.put(&content_of(bytes), Bytes::copy_from_slice(bytes), Condition::Always).await.unwrap();
        }
        let good = entry("a", 6, b"tokens");
        let digest = Digest::of(b"tokens");
        let chunked =
            |sha256: &Digest, size: u64| json!({ "path": "b", "size": size, "sha256": sha256, "chunks": [digest, digest] });
        let of_chunks = Digest::of(&hex::decode(digest.as_str().repeat(2)).unwrap());
        let cases = [
            (json!([entry("../outside", 6, b"tokens")]), "`../outside` is not a relative path"),
            (json!([entry("/outside", 6, b"tokens")]), "is not a relative path"),
            (json!([entry(".ftctl-partial-/x", 6, b"tokens")]), "has a name that ftctl keeps for unfinished downloads"),
            (json!([entry("a\u{1b}]52;c;x\u{7}", 6, b"tokens")]), "contains a control character"),
            (json!([good, entry("a", 5, b"other")]), "are one file"),
            (json!([good, entry("A.", 5, b"other")]), "are one file"),
            (json!([good, entry("a/b", 5, b"other")]), "a file and a folder"),
            (json!([good, chunked(&digest, CHUNK + 1)]), "names chunks that are not those"),
            (json!([good, chunked(&of_chunks, 6)]), "has 2 chunks for the 6 bytes"),
            (json!([good, chunked(&of_chunks, u64::MAX)]), "has 2 chunks for"),
            (json!([good, entry("b", 0, b"other")]), "has a digest for the empty file"),
            (json!([good, entry("b", u64::MAX, b"other"), entry("c", u64::MAX, b"other")]), "more bytes than can be counted"),
            (json!([{ "path": "b", "size": 6, "sha256": "/../../outside" }]), "is not a digest"),
        ];
        for (number, (files, why)) in cases.into_iter().enumerate() {
            let error = fetch_of(&bench, files, &format!("to-{number}")).await.unwrap_err();
            assert!(matches!(&error, StoreError::Unreadable(text) if text.contains(why)), "{error}");
            assert!(!error.to_string().contains(|c: char| c.is_control()), "{error:?}");
            assert!(!bench.path(&format!("to-{number}")).exists(), "{error}");
        }
    }

    /// The digest of the received bytes is right, and yet they are not those of the manifest.
    #[tokio::test]
    async fn a_length_that_is_not_the_objects_is_damage() {
        let bench = bench();
        let large: Vec<u8> = vec![7; CHUNK as usize];
        for bytes in [&b"tokens"[..], &large] {
            bench.store.put(&content_of(bytes), Bytes::copy_from_slice(bytes), Condition::Always).await.unwrap();
        }
        let (whole, last) = (Digest::of(&large), Digest::of(b"tokens"));
        let both = Digest::of(&hex::decode(format!("{whole}{last}")).unwrap());
        let chunked = json!({ "path": "b", "size": CHUNK + 100, "sha256": both, "chunks": [whole, last] });
        for file in
            [entry("b", 4_000_000, b"tokens"), entry("b", 5_000_000, b"tokens"), entry("b", u64::MAX / 2, b"tokens"), chunked]
        {
            for _ in 0..2 {
                let error = fetch_of(&bench, json!([file]), "to").await.unwrap_err();
                assert!(matches!(&error, StoreError::Unreadable(why) if why.contains("has 6 bytes")), "{error}");
                assert!(!bench.path("to/b").exists());
            }
        }
        assert!(fetch_of(&bench, json!([entry("b", 5, b"tokens")]), "to").await.is_err(), "longer than it should be");
    }

    #[tokio::test]
    async fn what_was_planted_in_the_target_is_not_followed() {
        let bench = bench();
        bench.store.put(&content_of(b"tokens"), "tokens".into(), Condition::Always).await.unwrap();
        let outside = bench.path("outside");
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("keys"), "mine").unwrap();
        fs::write(outside.join(".ftctl-partial-mine"), "mine").unwrap();
        fs::create_dir(bench.path("to")).unwrap();
        symlink(&outside, bench.path("to/folder")).unwrap();
        symlink(outside.join("keys"), bench.path("to/keys")).unwrap();
        symlink(outside.join(".ftctl-partial-mine"), bench.path("to/.ftctl-partial-link")).unwrap();
        let error = fetch_of(&bench, json!([entry("folder/keys", 6, b"tokens")]), "to").await.unwrap_err().to_string();
        assert!(error.contains("`folder` is a symbolic link"), "{error}");
        let file = FileEntry::of_bytes("keys".to_owned(), b"tokens");
        assert_eq!(crate::store::in_the_way(std::slice::from_ref(&file), &bench.path("to")).await, [bench.path("to/keys")]);
        // Replaced, and not written through; the partial file is named by us, so a link may wait for it.
        let partial = crate::store::fetch::partial_name(&file);
        symlink(outside.join("keys"), bench.path("to").join(&partial)).unwrap();
        let error = fetch_of(&bench, json!([file]), "to").await.unwrap_err().to_string();
        assert!(error.contains("is a symbolic link"), "{error}");
        fs::remove_file(bench.path("to").join(&partial)).unwrap();
        fetch_of(&bench, json!([file]), "to").await.unwrap();
        assert!(fs::symlink_metadata(bench.path("to/keys")).unwrap().is_file());
        assert_eq!(fs::read(outside.join("keys")).unwrap(), b"mine");
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 2);
        // The target itself is what the user typed.
        symlink(bench.path("to"), bench.path("typed")).unwrap();
        fetch_of(&bench, json!([file]), "typed").await.unwrap();
    }

    #[tokio::test]
    async fn names_that_cannot_come_back_are_not_sent() {
        for (name, why) in
            [("a\nb", "a control character"), (".ftctl-partial-left", "unfinished downloads"), ("Train/0.BIN", "are one file")]
        {
            let bench = bench();
            let path = bench.path("source").join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "x").unwrap();
            let error = bench.upload().await.unwrap_err();
            assert!(matches!(&error, StoreError::Invalid(text) if text.contains(why) && !text.contains('\n')), "{error}");
            assert_eq!(bench.counting.take_written(), Vec::<String>::new());
        }
    }
}
