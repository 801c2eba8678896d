//! One attempt's directory on the machine. It outlives the agent, and holds everything that may not have reached the store yet.

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, Read as _, Write as _},
    path::{Path, PathBuf},
};

/// `<work>/<attempt>/`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Folder {
    pub attempt: u32,
    path: PathBuf,
}

/// Under which name this machine's agent of an attempt holds leases: the same one after a crash or a restart, for one process at a
/// time.
#[derive(Debug)]
pub(super) struct Identity {
    pub name: String,
    _lock: File,
}

impl Folder {
    pub fn new(work: &Path, attempt: u32) -> Self {
        Self { attempt, path: work.join(attempt.to_string()) }
    }

    /// The folders that attempts up to `last` left on this machine, in rising order.
    pub fn left_behind(work: &Path, last: u32) -> io::Result<Vec<Self>> {
        let mut attempts: Vec<u32> =
            names(work)?.iter().filter_map(|name| name.parse().ok()).filter(|&attempt| attempt <= last).collect();
        attempts.sort_unstable();
        Ok(attempts.into_iter().map(|attempt| Self::new(work, attempt)).collect())
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
    /// Everything the trainer said.
    pub fn log(&self) -> PathBuf {
        self.path.join("log")
    }
    /// The output of one rank.
    pub fn log_of(&self, rank: usize) -> PathBuf {
        if rank == 0 { self.log() } else { self.path.join(format!("rank-{rank}.log")) }
    }
    pub fn config(&self) -> PathBuf {
        self.path.join("config.json")
    }
    pub fn output(&self) -> PathBuf {
        self.path.join("output")
    }
    pub fn progress(&self) -> PathBuf {
        self.output().join("progress.jsonl")
    }
    pub fn checkpoint(&self, step: u64) -> PathBuf {
        self.output().join("checkpoints").join(checkpoint_name(step))
    }
    /// The trainer's complete checkpoints, rising.
    pub fn steps(&self) -> io::Result<Vec<u64>> {
        steps(&self.output().join("checkpoints"))
    }
    pub fn newest_checkpoint(&self) -> io::Result<Option<PathBuf>> {
        Ok(self.steps()?.last().map(|step| self.checkpoint(*step)))
    }
    /// A checkpoint on its way to the store, out of the trainer's reach.
    pub fn shipping(&self, step: u64) -> PathBuf {
        self.path.join("shipping").join(checkpoint_name(step))
    }

    /// Moves the newest checkpoint's ranges, which this node sends, out of the trainer's reach, and removes older ones. If there
    /// are none, returns those that it moved earlier and that are not sent yet.
    pub fn take_ranges(&self) -> io::Result<Option<PathBuf>> {
        let (ranges, taken) = (self.output().join(".ranges"), self.path.join("ranges"));
        let steps = steps(&ranges)?;
        if let Some((newest, older)) = steps.split_last() {
            older.iter().try_for_each(|step| remove(&ranges.join(checkpoint_name(*step))))?;
            remove(&taken)?;
            match fs::rename(ranges.join(checkpoint_name(*newest)), &taken) {
                // The trainer has removed it: there is a newer one.
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
                renamed => renamed?,
            }
        }
        // Empty where a model has fewer chunks than there are nodes.
        Ok((!names(&taken)?.is_empty()).then_some(taken))
    }

    pub fn forget_ranges(&self) -> io::Result<()> {
        remove(&self.path.join("ranges"))
    }

    /// `None` while another process has it.
    pub fn identity(&self) -> io::Result<Option<Identity>> {
        fs::create_dir_all(&self.path)?;
        let mut file = OpenOptions::new().read(true).append(true).create(true).open(self.path.join("identity"))?;
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => return Ok(None),
            locked => locked?,
        }
        let mut name = String::new();
        file.read_to_string(&mut name)?;
        if name.is_empty() {
            name = fs::read_to_string("/proc/sys/kernel/random/uuid")?;
            file.write_all(name.as_bytes())?;
        }
        Ok(Some(Identity { name: name.trim().to_owned(), _lock: file }))
    }

    pub fn create(&self) -> io::Result<()> {
        fs::create_dir_all(self.output().join("checkpoints"))
    }

    /// The log, for the trainer and its children to write to; locked until the last of them is gone. A killed one may be writing
    /// for as long as the kernel takes, and a child of its lives on. [`io::ErrorKind::WouldBlock`] while one of an earlier agent
    /// does.
    pub fn open_log(&self) -> io::Result<File> {
        lock(OpenOptions::new().create(true).append(true).open(self.log())?)
    }

    /// [`io::ErrorKind::WouldBlock`] while a process may still write to the folder.
    pub fn at_rest(&self) -> io::Result<()> {
        match File::open(self.log()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            log => lock(log?).map(drop),
        }
    }

    /// Gives every complete checkpoint after `step` a second name where the trainer's retention does not reach it. Links take no
    /// space; the name appears only when the copy is complete.
    pub fn secure_checkpoints(&self, after: u64) -> io::Result<()> {
        let partial = self.path.join("securing");
        for step in self.steps()?.into_iter().filter(|&step| step > after) {
            let (checkpoint, target) = (self.checkpoint(step), self.shipping(step));
            if target.exists() {
                continue;
            }
            remove(&partial)?;
            let secured = link(&checkpoint, &partial)
                // The trainer takes a checkpoint's name away before its files. A listing of a directory that is being emptied ends
                // early and without an error.
                .and_then(|()| checkpoint.metadata())
                .and_then(|_| fs::create_dir_all(self.path.join("shipping")))
                .and_then(|()| fs::rename(&partial, &target));
            match secured {
                // The trainer has removed it: there are newer ones.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                done => done?,
            }
        }
        remove(&partial)
    }

    /// Checkpoints that are secured but not in the store yet, rising.
    pub fn unshipped(&self) -> io::Result<Vec<u64>> {
        steps(&self.path.join("shipping"))
    }

    pub fn forget_shipped(&self, step: u64) -> io::Result<()> {
        remove(&self.shipping(step))
    }

    /// A directory with everything in the trainer's output that has no way of its own to the store; `None` when there is nothing.
    pub fn gather_artifacts(&self) -> io::Result<Option<PathBuf>> {
        let gathered = self.path.join("artifacts");
        remove(&gathered)?;
        let shipped_otherwise = |name: &String| name.starts_with('.') || ["checkpoints", "progress.jsonl"].contains(&name.as_str());
        let names: Vec<String> = names(&self.output())?.into_iter().filter(|name| !shipped_otherwise(name)).collect();
        for name in &names {
            link(&self.output().join(name), &gathered.join(name))?;
        }
        Ok((!names.is_empty()).then_some(gathered))
    }

    pub fn remove(&self) -> io::Result<()> {
        remove(&self.path)
    }
}

fn lock(log: File) -> io::Result<File> {
    match log.try_lock() {
        Err(TryLockError::WouldBlock) => {
            Err(io::Error::new(io::ErrorKind::WouldBlock, "a process of the trainer that was at work there still runs"))
        }
        locked => Ok(locked.map(|()| log)?),
    }
}

/// The checkpoint's name, as the trainer writes it.
fn checkpoint_name(step: u64) -> String {
    format!("step-{step:010}")
}

fn steps(directory: &Path) -> io::Result<Vec<u64>> {
    let step = |name: &String| name.strip_prefix("step-")?.parse().ok().filter(|&step| checkpoint_name(step) == *name);
    let mut steps: Vec<u64> = names(directory)?.iter().filter_map(step).collect();
    steps.sort_unstable();
    Ok(steps)
}

/// Names in a directory that need not exist.
fn names(directory: &Path) -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    entries.filter_map(|entry| entry.map(|entry| entry.file_name().into_string().ok()).transpose()).collect()
}

/// A second name for a file, or for every file of a directory.
fn link(from: &Path, to: &Path) -> io::Result<()> {
    if !from.symlink_metadata()?.is_dir() {
        fs::create_dir_all(to.parent().unwrap_or(to))?;
        return fs::hard_link(from, to);
    }
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        link(&entry.path(), &to.join(entry.file_name()))?;
    }
    Ok(())
}

fn remove(directory: &Path) -> io::Result<()> {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secured_checkpoint_survives_the_trainers_retention() {
        let work = tempfile::tempdir().unwrap();
        let folder = Folder::new(work.path(), 3);
        folder.create().unwrap();
        for step in [5, 10] {
            fs::create_dir_all(folder.checkpoint(step).join("inner")).unwrap();
            fs::write(folder.checkpoint(step).join("inner/weights"), step.to_string()).unwrap();
        }
        for other in ["step-7", "step-00000000x8", ".unfinished-step-0000000012", "damaged-step-0000000011"] {
            fs::create_dir(folder.output().join("checkpoints").join(other)).unwrap();
        }
        // The remains of a kill in the middle of linking.
        fs::create_dir_all(folder.path().join("securing/inner")).unwrap();
        folder.secure_checkpoints(5).unwrap();
        fs::remove_dir_all(folder.checkpoint(10)).unwrap();
        folder.secure_checkpoints(5).unwrap();
        assert_eq!(folder.unshipped().unwrap(), [10]);
        assert_eq!(fs::read_to_string(folder.shipping(10).join("inner/weights")).unwrap(), "10");
        folder.forget_shipped(10).unwrap();
        assert_eq!(folder.unshipped().unwrap(), Vec::<u64>::new());
    }

    #[test]
    fn what_the_trainer_removes_meanwhile_is_secured_whole_or_not_at_all() {
        let work = tempfile::tempdir().unwrap();
        let folder = Folder::new(work.path(), 3);
        folder.create().unwrap();
        let checkpoints = folder.output().join("checkpoints");
        let trainer = std::thread::spawn({
            let folder = folder.clone();
            move || {
                for step in 1..=3000 {
                    let (unfinished, doomed) = (checkpoints.join(".unfinished"), checkpoints.join(".doomed"));
                    fs::create_dir(&unfinished).unwrap();
                    (0..3).for_each(|file| fs::write(unfinished.join(file.to_string()), "weights").unwrap());
                    fs::rename(&unfinished, folder.checkpoint(step)).unwrap();
                    fs::rename(folder.checkpoint(step), &doomed).unwrap();
                    fs::remove_dir_all(&doomed).unwrap();
                }
            }
        });
        let mut secured = 0;
        while !trainer.is_finished() {
            folder.secure_checkpoints(0).unwrap();
            for step in folder.unshipped().unwrap() {
                assert_eq!(names(&folder.shipping(step)).unwrap().len(), 3, "step {step}");
                folder.forget_shipped(step).unwrap();
                secured += 1;
            }
        }
        println!("{secured} secured");
        assert_eq!(names(&folder.path().join("shipping")).unwrap(), [""; 0]);
        assert!(!folder.path().join("securing").exists());
    }

    #[test]
    fn the_newest_ranges_are_taken_and_kept_until_they_are_sent() {
        let work = tempfile::tempdir().unwrap();
        let folder = Folder::new(work.path(), 3);
        folder.create().unwrap();
        let leave = |step: u64, file: &str| {
            let ranges = folder.output().join(".ranges").join(checkpoint_name(step));
            fs::create_dir_all(&ranges).unwrap();
            fs::write(ranges.join(file), step.to_string()).unwrap();
        };
        let taken = || folder.take_ranges().unwrap().map(|taken| fs::read_to_string(taken.join("weights")).unwrap());
        assert_eq!(taken(), None);
        leave(5, "weights");
        leave(10, "weights");
        fs::create_dir(folder.output().join(".ranges/.unfinished-step-0000000015")).unwrap();
        assert_eq!([taken(), taken()], [Some("10".into()), Some("10".into())], "nothing newer is there");
        leave(20, "weights");
        assert_eq!(taken(), Some("20".into()));
        folder.forget_ranges().unwrap();
        assert_eq!(taken(), None);
        assert_eq!(folder.gather_artifacts().unwrap(), None);
    }

    #[test]
    fn attempts_are_found_in_order() {
        let work = tempfile::tempdir().unwrap();
        assert_eq!(Folder::left_behind(&work.path().join("none"), 5).unwrap(), []);
        for name in ["10", "9", "2", "11", "lost+found"] {
            fs::create_dir(work.path().join(name)).unwrap();
        }
        let found: Vec<u32> = Folder::left_behind(work.path(), 10).unwrap().iter().map(|folder| folder.attempt).collect();
        assert_eq!(found, [2, 9, 10]);
    }
}
