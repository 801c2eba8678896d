//! From the attempt's folder to the store: log, progress and checkpoints.

use std::{io, path::PathBuf, sync::Arc};

use tokio::sync::watch;

use super::folder::Folder;
use crate::{
    job::id::{JobId, path},
    store::{Result, Store, StoreError, artifacts, checkpoint, lease::Lease, log::append_all},
};

/// One file that grows, and how much of it is in the store.
pub(super) struct GrowingFile {
    local: PathBuf,
    path: String,
    offset: u64,
}

impl GrowingFile {
    /// The log and the progress lines of an attempt. Where the store stands is learnt from its first answer.
    pub fn of(job: &JobId, folder: &Folder) -> [Self; 2] {
        let new = |local, path| Self { local, path, offset: 0 };
        [new(folder.log(), path::log(job, folder.attempt)), new(folder.progress(), path::progress(job, folder.attempt))]
    }

    /// Sends what was written since.
    pub async fn ship(&mut self, store: &dyn Store) -> Result<()> {
        self.offset = append_all(store, &self.path, &self.local, self.offset).await?;
        Ok(())
    }
}

/// The checkpoints of one attempt's folder on their way to the store.
pub(super) struct CheckpointShipper<'a> {
    pub store: &'a Arc<dyn Store>,
    pub job: &'a JobId,
    pub folder: &'a Folder,
    /// Checkpoints up to this step are in the store, or came from there.
    pub after: u64,
    pub keep: usize,
}

impl CheckpointShipper<'_> {
    /// Commits what is complete, in the order of steps; [`StoreError::Conflict`]: another attempt holds the job.
    pub async fn ship(&mut self, lease: &mut Lease) -> Result<()> {
        let failed = |source: io::Error| local_failure(self.folder, source);
        self.folder.secure_checkpoints(self.after).map_err(failed)?;
        for step in self.folder.unshipped().map_err(failed)? {
            if step > self.after {
                let local = self.folder.shipping(step);
                checkpoint::commit(self.store, self.job, lease, self.folder.attempt, step, &local).await?;
                self.after = step;
                checkpoint::retain(self.store.as_ref(), self.job, lease, self.keep).await?;
            }
            self.folder.forget_shipped(step).map_err(|source| local_failure(self.folder, source))?;
        }
        Ok(())
    }
}

/// Sends what the trainer left beside its checkpoints, once it is over.
pub(super) async fn ship_artifacts(store: &Arc<dyn Store>, job: &JobId, folder: &Folder, lease: &mut Lease) -> Result<()> {
    match folder.gather_artifacts().map_err(|source| local_failure(folder, source))? {
        Some(gathered) => artifacts::commit(store, job, lease, folder.attempt, &gathered).await,
        None => Ok(()),
    }
}

pub(super) fn local_failure(folder: &Folder, source: io::Error) -> StoreError {
    StoreError::Io { action: "use", path: folder.path().display().to_string(), source }
}

/// Whether the trainer is over, for those who ship beside it: their next round is the last.
pub(super) type Over = watch::Receiver<bool>;
