//! Checkpoints in the store: contents by digest, so that unchanged files are not sent again, and a manifest that is written last by
//! the holder of the attempt's lease. A checkpoint without its manifest does not exist.

use std::{collections::HashSet, path::Path, sync::Arc};

use serde::{Deserialize, Serialize};

use super::{
    Condition, FileEntry, Result, Store, StoreError, artifacts, check_format,
    content::{self, Share},
    fetch, find_json,
    lease::Lease,
    read_json, write_json,
};
use crate::job::{
    digest::Digest,
    id::{JobId, attempt_number, path},
    report::Report,
};

pub const CHECKPOINT_SCHEMA: &str = "ftctl.checkpoint/2";
/// The one before this one had no chunks.
const READABLE: &[&str] = &["ftctl.checkpoint/1", CHECKPOINT_SCHEMA];

/// `manifest.json` of a checkpoint. Files are sorted by path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointManifest {
    pub schema: String,
    /// Optimizer steps completed.
    pub step: u64,
    /// The attempt that wrote it.
    #[serde(deserialize_with = "attempt_number")]
    pub attempt: u32,
    pub files: Vec<FileEntry>,
}

impl CheckpointManifest {
    pub fn bytes(&self) -> u64 {
        self.files.iter().fold(0, |total, file| total.saturating_add(file.size))
    }

    /// The digest of its list of files, which is the same for the same checkpoint of another attempt.
    pub fn digest(&self) -> Digest {
        // Made of strings and numbers, for which serde_json cannot fail.
        Digest::of(&serde_json::to_vec(&self.files).unwrap_or_default())
    }
}

fn manifest_path(job: &JobId, step: u64) -> String {
    format!("{}/manifest.json", path::checkpoint(job, step))
}

/// Sends a node's share of the files in `local`, and commits nothing.
pub async fn send_share(store: &Arc<dyn Store>, job: &JobId, local: &Path, own: Share<'_>) -> Result<()> {
    content::send_share(store, &path::job_contents(job), local, own).await
}

/// Makes the directory `local` the checkpoint of `step`. Others may send all but its `own` bytes of each file. The lease is renewed
/// between the contents and the manifest: an attempt that has been replaced fails there with [`StoreError::Conflict`] and commits
/// nothing. Committing the same files again is fine.
pub async fn commit(
    store: &Arc<dyn Store>,
    job: &JobId,
    lease: &mut Lease,
    attempt: u32,
    step: u64,
    local: &Path,
    own: Share<'_>,
) -> Result<CheckpointManifest> {
    let sent = content::send_with_others(store, &path::job_contents(job), local, own).await?;
    let name = manifest_path(job, step);
    let present: Option<(CheckpointManifest, _)> = find_json(store.as_ref(), &name).await?;
    if let Some((found, _)) = &present
        && found.files == sent.files
    {
        return Ok(found.clone());
    }
    lease.renew().await?;
    let manifest = CheckpointManifest { schema: CHECKPOINT_SCHEMA.to_owned(), step, attempt, files: sent.files };
    // The lease's holder is the truth: the same step done again, with other bits, replaces the one before.
    let condition = present.map_or(Condition::IfAbsent, |(_, etag)| Condition::IfMatch(etag));
    match write_json(store.as_ref(), &name, &manifest, condition).await {
        Err(conflict @ StoreError::Conflict { .. }) => settle(store.as_ref(), &name, manifest, conflict).await,
        written => written.map(|_| manifest),
    }
}

/// After a conflict: fine when the present object is the one to be written (the answer was lost).
async fn settle(store: &dyn Store, name: &str, manifest: CheckpointManifest, conflict: StoreError) -> Result<CheckpointManifest> {
    let found: Option<(CheckpointManifest, _)> = find_json(store, name).await?;
    if found.is_some_and(|(found, _)| found.files == manifest.files) { Ok(manifest) } else { Err(conflict) }
}

/// The steps that have a complete checkpoint, rising.
pub async fn list(store: &dyn Store, job: &JobId) -> Result<Vec<u64>> {
    let mut steps = Vec::new();
    for name in store.children(&path::checkpoints(job)).await? {
        if let Ok(step) = name.parse()
            && path::checkpoint(job, step).ends_with(&format!("/{name}"))
            && store.head(&manifest_path(job, step)).await?.is_some()
        {
            steps.push(step);
        }
    }
    steps.sort_unstable();
    Ok(steps)
}

/// The manifest of one step; its files can be put into a folder.
pub async fn manifest(store: &dyn Store, job: &JobId, step: u64) -> Result<CheckpointManifest> {
    let manifest = stored(store, job, step).await?;
    content::check(&manifest.files)?;
    Ok(manifest)
}

/// [`manifest`] for a caller that only asks which contents are named.
async fn stored(store: &dyn Store, job: &JobId, step: u64) -> Result<CheckpointManifest> {
    let name = manifest_path(job, step);
    let (manifest, _): (CheckpointManifest, _) = read_json(store, &name).await?;
    check_format(&name, &manifest.schema, READABLE)?;
    if manifest.step != step {
        return Err(StoreError::Unreadable(format!("{name} says that it is of step {}; it is damaged", manifest.step)));
    }
    Ok(manifest)
}

/// The newest checkpoint; `None` before the first.
pub async fn latest(store: &dyn Store, job: &JobId) -> Result<Option<CheckpointManifest>> {
    for step in list(store, job).await?.into_iter().rev() {
        match manifest(store, job, step).await {
            // Retention removed it since it was listed.
            Err(StoreError::NotFound { .. }) => {}
            found => return found.map(Some),
        }
    }
    Ok(None)
}

/// Puts the checkpoint of `step` at `to`, every byte verified. The directory has its name only when it is complete; one that is
/// there already is verified and repaired.
pub async fn fetch(store: &Arc<dyn Store>, job: &JobId, step: u64, to: &Path, report: &dyn Report) -> Result<CheckpointManifest> {
    let manifest = manifest(store.as_ref(), job, step).await?;
    fetch_files(store, job, manifest, to, report).await
}

/// [`fetch`] of the files that this manifest names, which may be some of a checkpoint's.
pub async fn fetch_files(
    store: &Arc<dyn Store>,
    job: &JobId,
    manifest: CheckpointManifest,
    to: &Path,
    report: &dyn Report,
) -> Result<CheckpointManifest> {
    let contents = path::job_contents(job);
    if !to.is_dir() {
        let failed = |source| StoreError::Io { action: "write", path: to.display().to_string(), source };
        let claim = content::on_thread({
            let to = to.to_owned();
            move || fetch::Claim::on(&to)
        });
        let claim = claim.await.map_err(failed)?;
        if !to.is_dir() {
            // The remains of an interrupted fetch are used, unless they belong to another checkpoint.
            claim.keep_only(&manifest.files).map_err(failed)?;
            fetch::fetch(store, &contents, &manifest.files, claim.target(), report).await?;
            claim.name().map_err(failed)?;
            return Ok(manifest);
        }
        // Another fetch had the claim before, and has done it.
        claim.drop_empty();
    }
    fetch::fetch(store, &contents, &manifest.files, &fetch::Target::make(to).await?, report).await?;
    Ok(manifest)
}

/// Removes all but the newest `keep` checkpoints (at least one stays) and the contents that only those had. An attempt that has
/// been replaced fails with [`StoreError::Conflict`] and removes nothing: its view of what is newest is stale. The remains of a
/// crash in the middle go with the next [`super::prune`].
pub async fn retain(store: &dyn Store, job: &JobId, lease: &mut Lease, keep: usize) -> Result<()> {
    let steps = list(store, job).await?;
    let (old, kept) = steps.split_at(steps.len().saturating_sub(keep.max(1)));
    if old.is_empty() {
        return Ok(());
    }
    lease.renew().await?;
    let named = |files: Vec<FileEntry>| files.iter().flat_map(FileEntry::contents).cloned().collect::<HashSet<Digest>>();
    let old_contents = named(files_of(store, job, old).await?);
    let mut kept_contents = named(files_of(store, job, kept).await?);
    kept_contents.extend(named(artifacts::stored(store, job).await?));
    // In this order: contents that are named are there.
    store.delete_all(&old.iter().map(|step| manifest_path(job, *step)).collect::<Vec<_>>()).await?;
    let contents = path::job_contents(job);
    store
        .delete_all(&old_contents.difference(&kept_contents).map(|digest| path::content(&contents, digest)).collect::<Vec<_>>())
        .await
}

/// The files of these checkpoints; one that is gone has none.
async fn files_of(store: &dyn Store, job: &JobId, steps: &[u64]) -> Result<Vec<FileEntry>> {
    let mut files = Vec::new();
    for step in steps {
        match stored(store, job, *step).await {
            Err(StoreError::NotFound { .. }) => {}
            found => files.extend(found?.files),
        }
    }
    Ok(files)
}

/// The files of a job: those of every checkpoint, and its artefacts.
pub(super) async fn all_files(store: &dyn Store, job: &JobId) -> Result<Vec<FileEntry>> {
    let mut files = files_of(store, job, &list(store, job).await?).await?;
    files.extend(artifacts::stored(store, job).await?);
    Ok(files)
}

#[cfg(test)]
mod tests {
    use std::{fs, time::Duration};

    use super::*;
    use crate::job::report::Silent;
    use crate::store::{
        faulty::FaultyStore,
        lease::{Acquired, Holder},
        memory::MemoryStore,
    };

    struct Bench {
        directory: tempfile::TempDir,
        counting: Arc<FaultyStore>,
        store: Arc<dyn Store>,
        job: JobId,
    }

    fn bench() -> Bench {
        let counting = FaultyStore::new(Arc::new(MemoryStore::new()));
        let store: Arc<dyn Store> = Arc::clone(&counting) as _;
        Bench { directory: tempfile::tempdir().unwrap(), counting, store, job: JobId::derive("test", "1") }
    }

    impl Bench {
        async fn lease(&self, attempt: u32) -> Lease {
            let path = path::attempt_lease(&self.job);
            match Lease::acquire(&self.store, path, Holder::this_process(attempt), Duration::from_secs(30)).await.unwrap() {
                Acquired::Held(lease) => lease,
                Acquired::HeldBy(holder) => panic!("held by {holder:?}"),
            }
        }

        fn local(&self, files: &[(&str, &str)]) -> std::path::PathBuf {
            let local = self.directory.path().join("local");
            let _ = fs::remove_dir_all(&local);
            fs::create_dir(&local).unwrap();
            for (name, text) in files {
                fs::write(local.join(name), text).unwrap();
            }
            local
        }

        async fn commit(&self, lease: &mut Lease, step: u64, files: &[(&str, &str)]) -> Result<CheckpointManifest> {
            commit(&self.store, &self.job, lease, 1, step, &self.local(files), &|bytes| 0..bytes).await
        }
    }

    #[tokio::test]
    async fn unchanged_files_are_not_sent_again() {
        let bench = bench();
        let mut lease = bench.lease(1).await;
        bench.commit(&mut lease, 10, &[("config.json", "{}"), ("model.safetensors", "weights 10")]).await.unwrap();
        bench.counting.take_written();
        let files = [("config.json", "{}"), ("model.safetensors", "weights 20")];
        let manifest = bench.commit(&mut lease, 20, &files).await.unwrap();
        assert_eq!((manifest.step, manifest.bytes()), (20, 12));
        let written = bench.counting.take_written();
        let weights = path::content(&path::job_contents(&bench.job), &Digest::of(b"weights 20"));
        assert_eq!(written, [weights, path::attempt_lease(&bench.job), manifest_path(&bench.job, 20)]);
        assert_eq!(bench.commit(&mut lease, 20, &files).await.unwrap(), manifest);
        assert_eq!(bench.counting.take_written(), Vec::<String>::new());
    }

    #[tokio::test]
    async fn nodes_send_their_shares_and_the_one_that_commits_what_does_not_come() {
        const CHUNK: usize = content::CHUNK as usize;
        let bench = bench();
        let mut lease = bench.lease(1).await;
        let bytes: Vec<u8> = (0..3 * CHUNK + 5).map(|at| (at / CHUNK) as u8).collect();
        let digests: Vec<Digest> = bytes.chunks(CHUNK).map(Digest::of).collect();
        let local = bench.local(&[("config.json", "{}")]);
        fs::write(local.join("weights"), &bytes).unwrap();
        let contents = path::job_contents(&bench.job);
        let sent = || {
            let written = bench.counting.take_written();
            digests.iter().map(|digest| written.contains(&path::content(&contents, digest))).collect::<Vec<_>>()
        };
        let half = |half: u64| move |bytes: u64| (bytes * half / 2).next_multiple_of(CHUNK as u64)..bytes * (half + 1) / 2;
        // Another node has its ranges of the file, and nothing else.
        let ranges = bench.directory.path().join("ranges");
        fs::create_dir(&ranges).unwrap();
        fs::write(ranges.join("weights"), [&vec![0; 2 * CHUNK], &bytes[2 * CHUNK..]].concat()).unwrap();
        send_share(&bench.store, &bench.job, &ranges, &half(1)).await.unwrap();
        assert_eq!(sent(), [false, false, true, true]);
        bench.store.delete(&path::content(&contents, &digests[2])).await.unwrap();
        let manifest = commit(&bench.store, &bench.job, &mut lease, 1, 10, &local, &half(0)).await.unwrap();
        assert_eq!(sent(), [true, true, true, false], "the last one came from the other node");
        assert_eq!(manifest.files[1].chunks, digests);
        let to = bench.directory.path().join("to");
        fetch(&bench.store, &bench.job, 10, &to, &Silent).await.unwrap();
        assert!(fs::read(to.join("weights")).unwrap() == bytes);
    }

    #[tokio::test]
    async fn who_has_lost_the_lease_commits_nothing() {
        let bench = bench();
        let mut first = bench.lease(1).await;
        let mut second = bench.lease(2).await;
        let error = bench.commit(&mut first, 10, &[("a", "first")]).await.unwrap_err();
        assert!(matches!(error, StoreError::Conflict { .. }));
        assert_eq!(latest(&*bench.store, &bench.job).await.unwrap(), None);
        bench.commit(&mut second, 10, &[("a", "second")]).await.unwrap();
        // The holder may replace what a step was, for instance after a run with other bits.
        let replaced = bench.commit(&mut second, 10, &[("a", "again")]).await.unwrap();
        assert_eq!(latest(&*bench.store, &bench.job).await.unwrap(), Some(replaced));
    }

    #[tokio::test]
    async fn a_manifest_is_of_the_step_under_which_it_lies() {
        let bench = bench();
        let mut lease = bench.lease(1).await;
        bench.commit(&mut lease, 10, &[("a", "one")]).await.unwrap();
        let object = bench.store.get(&manifest_path(&bench.job, 10)).await.unwrap();
        bench.store.put(&manifest_path(&bench.job, 99), object.bytes.clone(), Condition::Always).await.unwrap();
        for name in ["10", "+10", "00000000010"] {
            let other = format!("{}/{name}/manifest.json", path::checkpoints(&bench.job));
            bench.store.put(&other, object.bytes.clone(), Condition::Always).await.unwrap();
        }
        assert_eq!(list(&*bench.store, &bench.job).await.unwrap(), [10, 99]);
        let error = latest(&*bench.store, &bench.job).await.unwrap_err();
        assert!(matches!(&error, StoreError::Unreadable(why) if why.contains("says that it is of step 10")), "{error}");
    }

    #[tokio::test]
    async fn the_hidden_folder_is_not_entered_through_a_link() {
        let bench = bench();
        let mut lease = bench.lease(1).await;
        bench.commit(&mut lease, 10, &[("a", "one")]).await.unwrap();
        let outside = bench.directory.path().join("outside");
        fs::create_dir_all(outside.join("thesis")).unwrap();
        fs::write(outside.join("thesis/text"), "mine").unwrap();
        let to = bench.directory.path().join("to");
        std::os::unix::fs::symlink(&outside, bench.directory.path().join(".to.partial")).unwrap();
        let error = fetch(&bench.store, &bench.job, 10, &to, &Silent).await.unwrap_err().to_string();
        assert!(error.contains("`.to.partial` is a symbolic link"), "{error}");
        fs::remove_file(bench.directory.path().join(".to.partial")).unwrap();
        fs::create_dir(bench.directory.path().join(".to.partial")).unwrap();
        std::os::unix::fs::symlink(&outside, bench.directory.path().join(".to.partial/b")).unwrap();
        fetch(&bench.store, &bench.job, 10, &to, &Silent).await.unwrap();
        assert_eq!(fs::read_dir(&to).unwrap().count(), 1);
        assert_eq!(fs::read(outside.join("thesis/text")).unwrap(), b"mine");
    }

    #[tokio::test]
    async fn a_checkpoint_comes_back_whole_or_not_at_all() {
        let bench = bench();
        let mut lease = bench.lease(1).await;
        bench.commit(&mut lease, 10, &[("a", "one"), ("manifest.json", "two")]).await.unwrap();
        let to = bench.directory.path().join("step-10");
        let content = path::content(&path::job_contents(&bench.job), &Digest::of(b"two"));
        let good = bench.store.get(&content).await.unwrap().bytes;
        bench.store.put(&content, "twx".into(), Condition::Always).await.unwrap();
        let error = fetch(&bench.store, &bench.job, 10, &to, &Silent).await.unwrap_err();
        assert!(matches!(error, StoreError::Damaged { .. }));
        assert!(!to.exists());
        bench.store.put(&content, good, Condition::Always).await.unwrap();
        fetch(&bench.store, &bench.job, 10, &to, &Silent).await.unwrap();
        assert_eq!(fs::read_to_string(to.join("manifest.json")).unwrap(), "two");
        assert_eq!(fs::read_dir(&to).unwrap().count(), 2);
        fs::write(to.join("a"), "bad").unwrap();
        fetch(&bench.store, &bench.job, 10, &to, &Silent).await.unwrap();
        assert_eq!(fs::read_to_string(to.join("a")).unwrap(), "one");
    }

    #[tokio::test]
    async fn what_another_fetch_left_does_not_get_into_a_checkpoint() {
        let bench = bench();
        let mut lease = bench.lease(1).await;
        // An interrupted fetch of another checkpoint to the same place.
        let left = bench.directory.path().join(".model.partial/folder");
        fs::create_dir_all(&left).unwrap();
        for name in ["folder/model-1-of-2", "model-2-of-2", "config.json"] {
            fs::write(left.with_file_name(name), "another").unwrap();
        }
        bench.commit(&mut lease, 20, &[("config.json", "{}"), ("model", "ab")]).await.unwrap();
        let to = bench.directory.path().join("model");
        fetch(&bench.store, &bench.job, 20, &to, &Silent).await.unwrap();
        assert_eq!(fs::read_to_string(to.join("config.json")).unwrap(), "{}");
        let mut names: Vec<_> = fs::read_dir(&to).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["config.json", "model"]);
    }

    #[tokio::test]
    async fn two_fetches_to_one_place_both_succeed() {
        let bench = bench();
        let mut lease = bench.lease(1).await;
        let files: Vec<(String, String)> = (0..20).map(|i| (format!("file {i}"), format!("content {i}"))).collect();
        let files: Vec<(&str, &str)> = files.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
        bench.commit(&mut lease, 10, &files).await.unwrap();
        for round in 0..20 {
            let to = bench.directory.path().join(format!("to-{round}"));
            let one = fetch(&bench.store, &bench.job, 10, &to, &Silent);
            let other = fetch(&bench.store, &bench.job, 10, &to, &Silent);
            let (one, other) = tokio::join!(one, other);
            assert_eq!(one.unwrap(), other.unwrap());
            assert_eq!(fs::read_dir(&to).unwrap().count(), 20);
        }
    }

    #[tokio::test]
    async fn who_has_lost_the_lease_removes_nothing() {
        let bench = bench();
        let mut first = bench.lease(1).await;
        for step in [10, 20] {
            bench.commit(&mut first, step, &[("a", &step.to_string())]).await.unwrap();
        }
        let _second = bench.lease(2).await;
        let error = retain(&*bench.store, &bench.job, &mut first, 1).await.unwrap_err();
        assert!(matches!(error, StoreError::Conflict { .. }));
        assert_eq!(list(&*bench.store, &bench.job).await.unwrap(), [10, 20]);
    }

    #[tokio::test]
    async fn the_newest_stay() {
        let bench = bench();
        let mut lease = bench.lease(1).await;
        for step in [5, 10, 100, 1_000] {
            bench.commit(&mut lease, step, &[("a", &step.to_string())]).await.unwrap();
        }
        retain(&*bench.store, &bench.job, &mut lease, 2).await.unwrap();
        assert_eq!(list(&*bench.store, &bench.job).await.unwrap(), [100, 1_000]);
        retain(&*bench.store, &bench.job, &mut lease, 0).await.unwrap();
        assert_eq!(latest(&*bench.store, &bench.job).await.unwrap().unwrap().step, 1_000);
        let contents = path::job_contents(&bench.job);
        assert_eq!(bench.store.list(&contents).await.unwrap().len(), 1, "contents go with the last checkpoint that names them");
        fetch(&bench.store, &bench.job, 1_000, &bench.directory.path().join("to"), &Silent).await.unwrap();
    }
}
