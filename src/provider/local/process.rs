//! The processes of a machine, found by a mark in their environment.
//!
//! The mark is inherited by everything that the agent starts, in any group or session, and needs no record that a crash could lose.
//! Signals go through a handle that is taken before the mark is read, so a process number that the kernel gives to another process
//! in between is never hit.

use std::{
    ffi::OsStr,
    fs, io,
    os::{fd::OwnedFd, unix::ffi::OsStrExt},
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, PidfdFlags, Signal, getsid, pidfd_open, pidfd_send_signal},
};

pub use crate::job::environment::MARK;

pub(super) struct Process {
    pid: Pid,
    handle: OwnedFd,
}

/// Kills everything that carries the mark. A process that forks while it is being killed is found in the next round; `deadline`
/// ends a wait for the unkillable.
pub fn kill(mark: &OsStr, deadline: Instant) -> io::Result<()> {
    loop {
        let members = members(mark)?;
        if members.is_empty() || Instant::now() > deadline {
            return Ok(());
        }
        for process in &members {
            process.signal(Signal::KILL);
        }
        wait(&members, deadline)?;
    }
}

/// Asks the agent to end and waits until everything has, at most for `notice`.
pub fn terminate(mark: &OsStr, notice: Duration) -> io::Result<()> {
    let (members, deadline) = (members(mark)?, Instant::now() + notice);
    members.iter().filter(|process| process.leads()).for_each(|process| process.signal(Signal::TERM));
    wait(&members, deadline)
}

/// Every living process of ours with this mark. A zombie has no environment, so it does not count.
pub(super) fn members(mark: &OsStr) -> io::Result<Vec<Process>> {
    let marked = [MARK.as_bytes(), b"=", mark.as_bytes()].concat();
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let pid = name.to_str().and_then(|name| name.parse().ok()).and_then(Pid::from_raw);
        found.extend(pid.and_then(|pid| Process::with_mark(pid, &marked)));
    }
    Ok(found)
}

/// Returns when all have ended, or at the deadline.
fn wait(processes: &[Process], deadline: Instant) -> io::Result<()> {
    for process in processes {
        let left = deadline.saturating_duration_since(Instant::now());
        let limit = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        match poll(&mut [PollFd::new(&process.handle, PollFlags::IN)], Some(&limit)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

impl Process {
    /// `None` for one that ended, belongs to another user, or has not the mark.
    fn with_mark(pid: Pid, marked: &[u8]) -> Option<Self> {
        let handle = pidfd_open(pid, PidfdFlags::empty()).ok()?;
        let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
        environment.split(|byte| *byte == 0).any(|variable| variable == marked).then_some(Self { pid, handle })
    }

    /// One that has ended meanwhile needs no signal.
    pub fn signal(&self, signal: Signal) {
        let _ = pidfd_send_signal(&self.handle, signal);
    }

    /// Whether this is the agent, which leads the machine's session.
    pub fn leads(&self) -> bool {
        getsid(Some(self.pid)) == Ok(self.pid)
    }
}
