//! The unneeded data of a store: datasets that no job and no name stands for, remains of jobs that have no record, and contents
//! that no manifest names.
//!
//! An upload sends contents before the manifest that names them, so nothing young is judged: `min_age` should be far above the time
//! of an upload and the error of the clocks. An upload may also find an old content and rely on it while `prune` removes it.
//! Therefore the upload looks once more after it has written its manifest, and `prune` after it has removed contents: one of the
//! two finds out. A checkpoint may rely on old contents as well, so those of a job that may write are left, and what a user has
//! agreed to is looked for again before it goes.

use std::{collections::HashSet, sync::Arc, time::Duration};

use jiff::{SignedDuration, Timestamp};
use serde::Serialize;

use super::{FileEntry, Meta, Result, Store, checkpoint, dataset};
use crate::job::{
    digest::Digest,
    id::{JobId, path},
};

/// The data that records and names stand for.
#[derive(Debug, Default)]
pub struct Needed {
    pub datasets: HashSet<Digest>,
    pub jobs: HashSet<JobId>,
    /// Those of the jobs that are not finished.
    pub unfinished: HashSet<JobId>,
}

/// The data that may go.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Unneeded {
    pub datasets: Vec<Digest>,
    /// Those without a record.
    pub jobs: Vec<JobId>,
    /// Contents of files, also those of the datasets above.
    pub objects: u64,
    pub bytes: u64,
    #[serde(skip)]
    contents: Vec<Meta>,
}

impl Unneeded {
    pub fn is_empty(&self) -> bool {
        self.datasets.is_empty() && self.jobs.is_empty() && self.contents.is_empty()
    }

    /// Keeps what another look has found as well. Its figures stay those of the first look.
    pub fn keep_those_of(&mut self, other: &Self) {
        self.datasets.retain(|digest| other.datasets.contains(digest));
        self.jobs.retain(|job| other.jobs.contains(job));
        let others: HashSet<&str> = other.contents.iter().map(|content| content.path.as_str()).collect();
        self.contents.retain(|content| others.contains(content.path.as_str()));
    }
}

/// Looks for what is older than `min_age` by the clock that says `now`. A manifest that cannot be read is an error: what it names
/// could not be kept.
pub async fn find(store: &Arc<dyn Store>, needed: &Needed, now: Timestamp, min_age: Duration) -> Result<Unneeded> {
    let limit = SignedDuration::try_from(min_age).unwrap_or(SignedDuration::MAX);
    let is_old = |meta: &Meta| now.duration_since(meta.modified) > limit;
    let mut found = Unneeded::default();
    // Listed before the manifests are read: later uploads are not judged.
    let contents = store.list(&path::contents()).await?;
    let mut named = Vec::new();
    for manifest in store.list(&path::datasets()).await? {
        let Some(digest) = manifest.path.rsplit('/').nth(1).and_then(Digest::parse) else { continue };
        if is_old(&manifest) && !needed.datasets.contains(&digest) {
            found.datasets.push(digest);
        } else {
            named.extend(dataset::files(store.as_ref(), &digest).await?);
        }
    }
    found.contents = unnamed(contents, &path::contents(), &named);
    let mut remnants = Vec::new();
    for job in store.children(&path::jobs()).await?.iter().filter_map(|name| JobId::parse(name)) {
        if needed.unfinished.contains(&job) {
            continue;
        }
        if needed.jobs.contains(&job) {
            let contents = store.list(&path::job_contents(&job)).await?;
            let named = checkpoint::all_files(store.as_ref(), &job).await?;
            found.contents.extend(unnamed(contents, &path::job_contents(&job), &named));
            continue;
        }
        let remains = store.list(&path::job(&job)).await?;
        if remains.iter().all(is_old) {
            found.jobs.push(job);
            remnants.extend(remains);
        }
    }
    found.contents.retain(is_old);
    found.objects = (found.contents.len() + remnants.len()) as u64;
    found.bytes = found.contents.iter().chain(&remnants).fold(0, |total, meta| total.saturating_add(meta.size));
    Ok(found)
}

/// The objects below `contents` that none of the files has.
fn unnamed(mut present: Vec<Meta>, contents: &str, files: &[FileEntry]) -> Vec<Meta> {
    let named: HashSet<String> = files.iter().flat_map(FileEntry::contents).map(|digest| path::content(contents, digest)).collect();
    present.retain(|content| !named.contains(&content.path));
    present
}

/// Removes it. Answers the datasets that were uploaded meanwhile and relied on something that is gone now: they have been
/// withdrawn, and another upload repairs them.
pub async fn remove(store: &Arc<dyn Store>, unneeded: &Unneeded) -> Result<Vec<Digest>> {
    store.delete_all(&unneeded.datasets.iter().map(path::dataset_manifest).collect::<Vec<_>>()).await?;
    for job in &unneeded.jobs {
        // Submitted again since it was looked at, under the same id.
        if store.head(&path::record(job)).await?.is_none() {
            store.delete_job(job).await?;
        }
    }
    let gone: Vec<String> = unneeded.contents.iter().map(|meta| meta.path.clone()).collect();
    store.delete_all(&gone).await?;
    let gone: HashSet<String> = gone.into_iter().collect();
    let mut withdrawn = Vec::new();
    for digest in store.children(&path::datasets()).await?.iter().filter_map(|name| Digest::parse(name)) {
        let files = dataset::files(store.as_ref(), &digest).await?;
        let mut relied = files.iter().flat_map(FileEntry::contents).map(|digest| path::content(&path::contents(), digest));
        if let Some(lost) = relied.find(|path| gone.contains(path))
            && store.head(&lost).await?.is_none()
        {
            store.delete(&path::dataset_manifest(&digest)).await?;
            withdrawn.push(digest);
        }
    }
    Ok(withdrawn)
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;
    use crate::{
        job::report::Silent,
        store::{Condition, memory::MemoryStore},
    };

    const DAY: Duration = Duration::from_secs(86_400);

    fn later() -> Timestamp {
        Timestamp::now() + SignedDuration::from_hours(48)
    }

    async fn upload(store: &Arc<dyn Store>, folder: &Path, files: &[(&str, &str)]) -> Digest {
        let source = tempfile::tempdir_in(folder).unwrap();
        for (name, text) in files {
            fs::write(source.path().join(name), text).unwrap();
        }
        dataset::upload(store, source.path(), &Silent).await.unwrap().digest
    }

    #[tokio::test]
    async fn what_is_old_and_nobody_needs_goes() {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
        let folder = tempfile::tempdir().unwrap();
        let kept = upload(&store, folder.path(), &[("a", "shared"), ("b", "kept")]).await;
        let gone = upload(&store, folder.path(), &[("a", "shared"), ("c", "gone!")]).await;
        let (with, without) = (JobId::derive("with", "1"), JobId::derive("without", "1"));
        for (job, name) in [(&with, "record.json"), (&with, "contents/00/left"), (&without, "attempt.lease")] {
            store.put(&format!("{}/{name}", path::job(job)), "four".into(), Condition::Always).await.unwrap();
        }
        let mut needed = Needed { datasets: [kept.clone()].into(), jobs: [with.clone()].into(), ..Needed::default() };
        assert!(find(&store, &needed, Timestamp::now(), DAY).await.unwrap().is_empty(), "nothing is old enough");
        let found = find(&store, &needed, later(), DAY).await.unwrap();
        assert_eq!((&found.datasets, &found.jobs, found.objects, found.bytes), (&vec![gone.clone()], &vec![without], 3, 13));
        needed.unfinished.insert(with.clone());
        let later_look = find(&store, &needed, later(), DAY).await.unwrap();
        assert_eq!(later_look.objects, 2, "a job that may write keeps what it has");
        let mut both = found.clone();
        both.keep_those_of(&later_look);
        assert_eq!((both.contents.len(), found.contents.len()), (1, 2));
        assert_eq!(remove(&store, &found).await.unwrap(), Vec::<Digest>::new());
        assert!(find(&store, &needed, later(), DAY).await.unwrap().is_empty());
        dataset::verify(&store, &kept, &Silent).await.unwrap();
        assert!(!dataset::exists(&*store, &gone).await.unwrap());
        assert!(store.head(&path::record(&with)).await.unwrap().is_some());
    }

    #[tokio::test]
    async fn a_dataset_that_came_meanwhile_and_lost_something_is_withdrawn() {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
        let folder = tempfile::tempdir().unwrap();
        let old = upload(&store, folder.path(), &[("a", "shared")]).await;
        let found = find(&store, &Needed::default(), later(), DAY).await.unwrap();
        let new = upload(&store, folder.path(), &[("a", "shared"), ("b", "new")]).await;
        assert_eq!(remove(&store, &found).await.unwrap(), std::slice::from_ref(&new));
        assert!(!dataset::exists(&*store, &old).await.unwrap() && !dataset::exists(&*store, &new).await.unwrap());
        assert_eq!(upload(&store, folder.path(), &[("a", "shared"), ("b", "new")]).await, new);
        dataset::verify(&store, &new, &Silent).await.unwrap();
    }
}
