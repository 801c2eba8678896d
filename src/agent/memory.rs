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

/// Counted by the kernel in the control group of this process, which is its trainer's too. What is killed in another group, as in
/// another container of this machine, says nothing about this trainer.
fn kills() -> Option<u64> {
    kills_in(Path::new("/"))
}

/// `root`: where `proc` and `sys` lie. Linux counts a kill in the group that the killed process belonged to, also when the whole
/// machine has run out (`Documentation/admin-guide/cgroup-v2.rst` and `cgroup-v1/memory.rst`). Without a group, as at the root of
/// version 2, the machine's own number is all that there is.
fn kills_in(root: &Path) -> Option<u64> {
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let counts = groups.lines().filter_map(|line| {
        let (controllers, group) = line.split_once(':')?.1.split_once(':')?;
        match controllers {
            "" => Some(("sys/fs/cgroup", group, &["memory.events.local", "memory.events"][..])),
            _ if controllers.split(',').any(|name| name == "memory") => {
                Some(("sys/fs/cgroup/memory", group, &["memory.oom_control"]))
            }
            _ => None,
        }
    });
    // A container may see its own group as the root, under the name that it has outside.
    let files = counts.flat_map(|(at, group, names)| {
        let at = root.join(at);
        [at.join(group.trim_start_matches('/')), at].into_iter().flat_map(|at| names.iter().map(move |name| at.join(name)))
    });
    files.chain([root.join("proc/vmstat")]).find_map(|file| {
        let text = fs::read_to_string(file).ok()?;
        text.lines().find_map(|line| line.strip_prefix("oom_kill "))?.trim().parse().ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The answer of [`kills_in`] where these files lie.
    fn with(files: &[(&str, &str)]) -> Option<u64> {
        let root = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = root.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        kills_in(root.path())
    }

    #[test]
    fn kills_are_those_of_the_own_control_group() {
        let machine = ("proc/vmstat", "pgfault 12\noom_kill 70\n");
        let first = ("proc/self/cgroup", "5:cpu,cpuacct:/cpu\n4:memory:/job/a\n0::/\n");
        let second = ("proc/self/cgroup", "0::/user.slice/a.scope\n");
        let control = "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n";
        let events = "low 0\noom 9\noom_kill 4\noom_group_kill 0\n";

        assert_eq!(with(&[machine, first, ("sys/fs/cgroup/memory/job/a/memory.oom_control", control)]), Some(3));
        assert_eq!(with(&[machine, first, ("sys/fs/cgroup/memory/memory.oom_control", control)]), Some(3), "in a container");
        assert_eq!(with(&[machine, second, ("sys/fs/cgroup/user.slice/a.scope/memory.events.local", events)]), Some(4));
        assert_eq!(
            with(&[machine, second, ("sys/fs/cgroup/user.slice/a.scope/memory.events", events)]),
            Some(4),
            "before Linux 5.2"
        );
        assert_eq!(with(&[machine, ("proc/self/cgroup", "0::/\n")]), Some(70), "no group");
        assert_eq!(with(&[machine]), Some(70));
        assert_eq!(with(&[]), None);
    }
}
