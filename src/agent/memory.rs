//! The agent's answer to a trainer that ran out of memory: it starts it again with fewer sequences at a time. The same sequences
//! make a step, each token with the same weight; a checkpoint remembers the smaller number.

use std::{
    collections::BTreeMap,
    fs,
    io::{Read as _, Seek as _, SeekFrom},
    ops::Range,
    path::Path,
};

use ft_trainer::{
    error::{OUT_OF_MEMORY, tells_of_no_memory},
    progress::{Event, Line},
};
use rustix::process::Signal;

use super::{
    folder::Folder,
    trainer::{End, Ended, Log},
};
use crate::job::{meeting::RankEnd, order::ExitReason};

/// How things stood before the trainer was started.
pub(super) struct Before<'a> {
    folder: &'a Folder,
    /// Processes that the system has killed for want of memory.
    kills: Option<u64>,
    /// Bytes of progress lines.
    progress: u64,
    /// Bytes of the log of each rank that has one.
    logs: BTreeMap<usize, u64>,
}

impl<'a> Before<'a> {
    /// `ranks`: those of this machine.
    pub fn of(folder: &'a Folder, ranks: Range<usize>) -> Self {
        let length = |path: &Path| fs::metadata(path).map_or(0, |file| file.len());
        let logs = ranks.map(|rank| (rank, length(&folder.log_of(rank)))).collect();
        Self { folder, kills: kills(), progress: length(&folder.progress()), logs }
    }

    /// How a process of the trainer ended, for the agents of all nodes.
    pub fn told(&self, ended: Ended) -> RankEnd {
        let log = Log { path: self.folder.log_of(ended.rank), from: self.logs.get(&ended.rank).copied().unwrap_or(0) };
        ended.told(&log, self.ran_out_of_memory(ended, &log))
    }

    /// Whether the process of the trainer that has ended like this said that there was no memory, or was killed while the system
    /// killed for memory.
    fn ran_out_of_memory(&self, Ended { code, signal, .. }: Ended, log: &Log) -> bool {
        code == Some(i32::from(OUT_OF_MEMORY))
            || (signal == Some(Signal::ABORT.as_raw()) && tells_of_no_memory(&log.last_line()))
            || (signal == Some(Signal::KILL.as_raw()) && kills() > self.kills)
    }

    /// Sequences that a trainer may take at once which is to take fewer than this one; the end of the attempt when there are none.
    pub fn fewer(&self, end: &RankEnd) -> Result<usize, End> {
        let message = match self.micro_batch() {
            Some(sequences) if sequences > 1 => return Ok(sequences - 1),
            Some(_) => {
                "out of memory with one sequence at a time; set train.recompute = \"full\" or \"host\", or train.offload, lower train.block_size, or take a \
                 machine with more memory"
            }
            None => {
                "out of memory before the training began: the model does not fit; set train.offload, or take a machine with more memory"
            }
        };
        Err(End { code: end.code, signal: end.signal, ..End::new(ExitReason::Failed, message) })
    }

    /// With how many at a time the trainer began, if it did.
    fn micro_batch(&self) -> Option<usize> {
        let mut text = String::new();
        let mut file = fs::File::open(self.folder.progress()).ok()?;
        file.seek(SeekFrom::Start(self.progress)).ok()?;
        file.read_to_string(&mut text).ok()?;
        let events = text.lines().filter_map(|line| serde_json::from_str(line).ok());
        events.map(|line: Line| line.event).find_map(|event| match event {
            Event::Start { micro_batch, .. } => micro_batch,
            _ => None,
        })
    }
}

/// Counted by the kernel since it started, in control groups as well (`Documentation/admin-guide/cgroup-v2.rst`).
fn kills() -> Option<u64> {
    let text = fs::read_to_string("/proc/vmstat").ok()?;
    text.lines().find_map(|line| line.strip_prefix("oom_kill "))?.trim().parse().ok()
}
