//! The processes of a machine: a session of their own, which is ended as a whole.

use std::io;

use rustix::process::Pid;
use tokio::process::{Child, Command};

/// Starts a program that leads a session, and says the group of its processes.
pub fn start(command: &mut Command) -> io::Result<(Child, Pid)> {
    // SAFETY: between fork and exec only one system call is made, which takes no lock and allocates nothing.
    unsafe { command.pre_exec(|| Ok(rustix::process::setsid().map(drop)?)) };
    let child = command.spawn()?;
    let group = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
    Ok((child, group.ok_or_else(|| io::Error::other("the process ended while it started"))?))
}
