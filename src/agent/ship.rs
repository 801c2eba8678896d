//! From the attempt's folder to the store: log, progress and checkpoints.

use std::{
    fs,
    io::{self, Write as _},
    ops::Range,
    path::{Path, PathBuf},
    sync::Arc,
};

use ft_trainer::files::ranges::of_node;
use tempfile::NamedTempFile;
use tokio::sync::{Mutex, watch};

use super::folder::Folder;
use crate::{
    job::{
        id::{JobId, path},
        order::RunOrder,
    },
    store::{
        Result, Store, StoreError, artifacts, checkpoint,
        lease::Lease,
        log::{LogReader, append_all, append_up_to, length},
    },
};

/// One file that grows, and how much of it is in the store.
pub(super) struct GrowingFile {
    local: PathBuf,
    path: String,
    offset: u64,
    /// Most bytes of it in the store, if there is a limit.
    most: Option<u64>,
}

/// The growing files of an attempt, for the tasks that send them.
pub(super) type Lines = Mutex<Vec<GrowingFile>>;

/// Sends what was written to all of them since.
pub(super) async fn ship_lines(lines: &Lines, store: &dyn Store) -> Result<()> {
    let mut sent = Ok(());
    for file in lines.lock().await.iter_mut() {
        // What is wrong with one is not the others' trouble.
        sent = sent.and(file.ship(store).await);
    }
    sent
}

/// Most bytes that are sent of another rank than the first: its log is for the case that something goes wrong.
const MOST_OF_RANK: u64 = 16 << 20;
/// An earlier machine's part that is longer is not brought here, and so not continued.
const MOST_BEFORE: u64 = 1 << 30;

impl GrowingFile {
    /// The files of a node in an attempt's folder: the log and the progress lines, which the first node has, and what other ranks
    /// say. Where the store stands is learnt from its first answer.
    pub fn of(order: &RunOrder, node: usize, folder: &Folder) -> Vec<Self> {
        let (job, attempt, ranks) = (&order.job, folder.attempt, order.ranks(node));
        let new = |local, path, most| Self { local, path, offset: 0, most };
        let first = (node == 0).then(|| {
            [new(folder.log(), path::log(job, attempt), None), new(folder.progress(), path::progress(job, attempt), None)]
        });
        let others = Range { start: ranks.start.max(1), ..ranks };
        let others = others.map(|rank| new(folder.log_of(rank), path::rank_log(job, attempt, node, rank), Some(MOST_OF_RANK)));
        first.into_iter().flatten().chain(others).collect()
    }

    /// Brings what the attempt sent from a machine that is gone: a service may start it again on another. What is said here follows
    /// it, on a line of its own.
    pub async fn restore(&self, store: &Arc<dyn Store>) -> Result<()> {
        if self.local.exists() || !(1..=MOST_BEFORE).contains(&length(store.as_ref(), &self.path).await?) {
            return Ok(());
        }
        let failed = |source| StoreError::Io { action: "write", path: self.local.display().to_string(), source };
        let folder = self.local.parent().unwrap_or(Path::new("."));
        let partial = fs::create_dir_all(folder).and_then(|()| NamedTempFile::new_in(folder));
        let (mut partial, mut reader) = (partial.map_err(failed)?, LogReader::new(Arc::clone(store), self.path.clone(), 0));
        let mut last = b'\n';
        while reader.offset() < MOST_BEFORE
            && let bytes = reader.read().await?
            && let Some(end) = bytes.last()
        {
            last = *end;
            partial.write_all(&bytes).map_err(failed)?;
        }
        let ended = if last == b'\n' { Ok(()) } else { partial.write_all(b"\n") };
        ended.and_then(|()| partial.persist(&self.local).map(drop).map_err(|error| error.error)).map_err(failed)
    }

    /// Sends what was written since.
    pub async fn ship(&mut self, store: &dyn Store) -> Result<()> {
        self.offset = match self.most {
            Some(most) => append_up_to(store, &self.path, &self.local, self.offset, most).await?,
            None => append_all(store, &self.path, &self.local, self.offset).await?,
        };
        Ok(())
    }
}

/// The checkpoints of one attempt's folder on their way to the store, the newest first: a preemption costs the way from there.
/// Where the store is slower than the trainer an older one goes only while no newer one waits, and never when as many newer ones as
/// are kept are there.
pub(super) struct CheckpointShipper<'a> {
    store: &'a Arc<dyn Store>,
    job: &'a JobId,
    folder: &'a Folder,
    keep: usize,
    /// How many nodes send them. This one commits them.
    nodes: usize,
    /// Checkpoints up to this step are in the store, or came from there.
    after: u64,
    /// Those up to this step are out of the trainer's reach, or were.
    secured: u64,
    sent: Vec<u64>,
}

impl<'a> CheckpointShipper<'a> {
    /// For checkpoints newer than step `after`; as many at most are to be in the store as the order says.
    pub fn new(store: &'a Arc<dyn Store>, order: &'a RunOrder, folder: &'a Folder, after: u64) -> Self {
        let (keep, nodes) = (order.train.keep_checkpoints, order.nodes);
        Self { store, job: &order.job, folder, keep, nodes, after, secured: after, sent: Vec::new() }
    }

    /// Commits what is complete; [`StoreError::Conflict`]: another attempt holds the job. The `lines` go first: a machine may
    /// vanish at any instant, and the next attempt does not repeat the steps before a checkpoint. An old checkpoint that cannot be
    /// removed, or a directory that can never be sent, keeps no other from the store.
    pub async fn ship(&mut self, lease: &mut Lease, lines: &Lines) -> Result<()> {
        let failed = |source: io::Error| local_failure(self.folder, source);
        let mut shipped = Ok(());
        while let Some(step) = self.next().map_err(failed)? {
            let local = self.folder.shipping(step);
            // The task that sends them all the time says why that fails.
            let _ = ship_lines(lines, self.store.as_ref()).await;
            let own = |bytes| of_node(0, self.nodes, bytes);
            let committing = checkpoint::commit(self.store, self.job, lease, self.folder.attempt, step, &local, &own);
            let done = match Box::pin(committing).await {
                Err(invalid @ StoreError::Invalid(_)) => Err(invalid),
                committed => {
                    committed?;
                    self.sent.push(step);
                    checkpoint::retain(self.store.as_ref(), self.job, lease, self.keep).await
                }
            };
            self.folder.forget_shipped(step).map_err(failed)?;
            if matches!(done, Err(StoreError::Conflict { .. })) {
                return done;
            }
            shipped = shipped.and(done);
        }
        shipped
    }

    /// The newest checkpoint of the trainer, if it is not in the store.
    pub fn unsent(&self) -> io::Result<Option<u64>> {
        let known = self.sent.iter().fold(self.after, |newest, step| newest.max(*step));
        let newest = self.folder.steps()?.into_iter().chain(self.folder.unshipped()?).max();
        Ok(newest.filter(|step| *step > known))
    }

    /// The one to send now. Those that would not be kept are forgotten.
    fn next(&mut self) -> io::Result<Option<u64>> {
        self.folder.secure_checkpoints(self.secured)?;
        let waiting = self.folder.unshipped()?;
        self.secured = waiting.last().map_or(self.secured, |newest| self.secured.max(*newest));
        let newer = |step: u64| self.sent.iter().chain(&waiting).filter(|other| **other > step).count();
        let (kept, others): (Vec<u64>, Vec<u64>) =
            waiting.iter().partition(|step| **step > self.after && newer(**step) < self.keep.max(1));
        others.into_iter().try_for_each(|step| self.folder.forget_shipped(step))?;
        Ok(kept.last().copied())
    }
}

/// Sends this node's ranges of the newest checkpoint, if there are any. What does not arrive, node 0 sends.
pub(super) async fn ship_ranges(store: &Arc<dyn Store>, order: &RunOrder, node: usize, folder: &Folder) -> Result<()> {
    let failed = |source: io::Error| local_failure(folder, source);
    let Some(taken) = folder.take_ranges().map_err(failed)? else { return Ok(()) };
    checkpoint::send_share(store, &order.job, &taken, &|bytes| of_node(node, order.nodes, bytes)).await?;
    folder.forget_ranges().map_err(failed)
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

/// Whether the trainer is over, for the tasks that ship beside it: their next round is the last.
pub(super) type Over = watch::Receiver<bool>;

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::store::memory::MemoryStore;

    #[test]
    fn the_newest_checkpoint_goes_first_and_none_that_nobody_keeps() {
        let (work, store) = (tempfile::tempdir().unwrap(), Arc::new(MemoryStore::new()) as Arc<dyn Store>);
        let folder = Folder::new(work.path(), 1);
        let mut order: RunOrder = serde_json::from_str(include_str!("../job/fixtures/order.json")).unwrap();
        order.train.keep_checkpoints = 3;
        let make = |steps: &[u64]| steps.iter().for_each(|step| fs::create_dir_all(folder.checkpoint(*step)).unwrap());
        let mut shipper = CheckpointShipper::new(&store, &order, &folder, 10);
        let mut send = |made: &[u64]| {
            make(made);
            let step = shipper.next().unwrap();
            if let Some(step) = step {
                folder.forget_shipped(step).unwrap();
                shipper.sent.push(step);
            }
            (step, folder.unshipped().unwrap())
        };
        assert_eq!(send(&[10]), (None, vec![]), "it came from the store");
        assert_eq!(send(&[20, 30, 40, 50]), (Some(50), vec![30, 40]), "20 would not be kept");
        assert_eq!(send(&[60]), (Some(60), vec![40]));
        assert_eq!(send(&[]), (Some(40), vec![]), "the third that is kept");
        assert_eq!(send(&[70, 80]), (Some(80), vec![70]));
        assert_eq!(send(&[]), (Some(70), vec![]));
        assert_eq!(send(&[]), (None, vec![]));
    }
}
