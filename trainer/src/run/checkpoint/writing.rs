//! A checkpoint that a thread writes while training goes on.

use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, JoinHandle};

use super::name;
use crate::error::Failure;
use crate::journal::trace::span_beside;

/// A checkpoint that a thread is writing.
#[derive(Debug)]
pub struct Writing {
    pub step: u64,
    copied: Receiver<()>,
    is_copied: bool,
    /// Taken when it is waited for.
    thread: Option<JoinHandle<Result<(), Failure>>>,
}

impl Writing {
    /// Begins this process's work for a checkpoint, on a thread of its own.
    pub fn begin(step: u64, write: impl FnOnce(Sender<()>) -> Result<(), Failure> + Send + 'static) -> Self {
        let (copying, copied) = mpsc::channel();
        let thread = thread::spawn(move || {
            let _span = span_beside("checkpoint");
            write(copying)
        });
        Self { step, copied, is_copied: false, thread: Some(thread) }
    }

    /// Waits until what it saves may change, and says whether it does: it never may where the thread has failed.
    pub fn is_copied(&mut self) -> bool {
        self.is_copied = self.is_copied || self.copied.recv().is_ok();
        self.is_copied
    }

    pub fn is_finished(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Waits until the checkpoint is on the disk, or could not be written.
    pub fn finish(mut self) -> Result<(), Failure> {
        let died = |_| Err(Failure::other(format!("writing checkpoint {} ended unexpectedly", name(self.step))));
        self.thread.take().map_or(Ok(()), |thread| thread.join().unwrap_or_else(died))
    }
}

impl Drop for Writing {
    /// No other thread may write to the directory before.
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;
    use crate::run::checkpoint::Checkpoints;

    fn begin(
        checkpoints: &Checkpoints,
        step: u64,
        write: impl FnOnce(&Path, Sender<()>) -> Result<(), Failure> + Send + 'static,
    ) -> Writing {
        let checkpoints = checkpoints.clone();
        Writing::begin(step, move |copying| checkpoints.commit(step, |directory| write(directory, copying)))
    }

    #[test]
    fn what_is_saved_may_change_before_it_is_on_the_disk() {
        let output = tempfile::tempdir().unwrap();
        let checkpoints = Checkpoints::open(output.path()).unwrap();
        let (go_on, blocked) = mpsc::channel::<()>();
        let slow = move |directory: &Path, copying: Sender<()>| {
            fs::write(directory.join("model.safetensors"), "weights").unwrap();
            copying.send(()).unwrap();
            let _ = blocked.recv();
            Ok(())
        };
        let mut writing = begin(&checkpoints, 1, slow);
        assert!(writing.is_copied() && writing.is_copied());
        assert!(!writing.is_finished() && checkpoints.steps().unwrap().is_empty());
        drop(go_on);
        writing.finish().unwrap();
        assert_eq!(checkpoints.steps().unwrap(), [1]);
        let mut failing = begin(&checkpoints, 2, |_, _| Err(Failure::other("disk full")));
        assert!(!failing.is_copied());
        assert_eq!(failing.finish().unwrap_err().to_string(), "disk full");
        drop(begin(&checkpoints, 3, |_, _| panic!("a defect")));
        assert_eq!(fs::read_dir(output.path().join("checkpoints")).unwrap().count(), 2, "one checkpoint, one unfinished");
    }
}
