//! Checkpoints as directories that exist completely or not at all.
//!
//! A checkpoint is written into a hidden sibling, every file and the directory are brought to the disk, and only then it is renamed
//! to `step-0000000100`. Its `manifest.json` lists size and SHA-256 of every other file, so that a reader can prove what it loads.
//! Killing the process at any instant leaves either the old set of checkpoints or the new one, and at most a hidden directory,
//! which the next run removes.

pub mod manifest;
pub(crate) mod saving;
mod writers;
pub(crate) mod writing;

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use crate::error::Failure;
use crate::files;
use manifest::MANIFEST;

const DIRECTORY: &str = "checkpoints";
/// On a machine other than the leader's: the ranges of checkpoints that its agent sends.
const RANGES: &str = ".ranges";
/// Prefix of a checkpoint that is being written, or was when the process died.
const UNFINISHED: &str = ".unfinished-";
/// Prefix of a checkpoint whose bytes are not what was written; kept for a human, never read again.
const DAMAGED: &str = "damaged-";

/// Name of the checkpoint after `step` steps. Names sort as steps do.
pub fn name(step: u64) -> String {
    format!("step-{step:010}")
}

/// The step of a checkpoint's name; `None` for anything else found beside it.
pub fn step_of(name: &str) -> Option<u64> {
    name.strip_prefix("step-").filter(|digits| digits.len() >= 10 && digits.bytes().all(|byte| byte.is_ascii_digit()))?.parse().ok()
}

/// The checkpoints of one run.
#[derive(Debug, Clone)]
pub struct Checkpoints {
    directory: PathBuf,
}

impl Checkpoints {
    /// Opens `output/checkpoints`, creating it, and clears away the unfinished files of a killed process. The caller holds the
    /// run's lock: no other process is writing here.
    pub fn open(output: &Path) -> Result<Self, Failure> {
        let directory = output.join(DIRECTORY);
        fs::create_dir_all(&directory).map_err(|error| Failure::io("create", &directory, &error))?;
        let checkpoints = Self { directory };
        for left in checkpoints.names()?.iter().filter(|name| name.starts_with(UNFINISHED)) {
            checkpoints.remove(left)?;
        }
        Ok(checkpoints)
    }

    /// Those that another process has opened.
    fn of(output: &Path) -> Self {
        Self { directory: output.join(DIRECTORY) }
    }

    /// Opens `output/.ranges`, creating it, without what an earlier process left there.
    fn open_ranges(output: &Path) -> Result<Self, Failure> {
        let ranges = Self::of_ranges(output);
        let absent = |error: &io::Error| error.kind() == ErrorKind::NotFound;
        let emptied = fs::remove_dir_all(&ranges.directory).or_else(|error| if absent(&error) { Ok(()) } else { Err(error) });
        let made = emptied.and_then(|()| fs::create_dir_all(&ranges.directory));
        made.map(|()| ranges.clone()).map_err(|error| Failure::io("create", &ranges.directory, &error))
    }

    fn of_ranges(output: &Path) -> Self {
        Self { directory: output.join(RANGES) }
    }

    /// Steps of the checkpoints present, newest first. They are not verified.
    pub fn steps(&self) -> Result<Vec<u64>, Failure> {
        let mut steps: Vec<u64> = self.names()?.iter().filter_map(|name| step_of(name)).collect();
        steps.sort_unstable_by(|a, b| b.cmp(a));
        Ok(steps)
    }

    pub fn path(&self, step: u64) -> PathBuf {
        self.directory.join(name(step))
    }

    /// The newest checkpoint whose every byte is as written. A damaged one is reported through `warn`, set aside under another name
    /// and the one before it is tried; when none is left although there were some, the run must not silently start over.
    pub fn newest(&self, mut warn: impl FnMut(&str)) -> Result<Option<PathBuf>, Failure> {
        let steps = self.steps()?;
        for &step in &steps {
            let Err(damage) = manifest::verify(&self.path(step)) else {
                // Else they would be counted among those to keep.
                let newer = steps.iter().filter(|newer| **newer > step);
                newer.for_each(|damaged| drop(self.set_aside(*damaged)));
                return Ok(Some(self.path(step)));
            };
            warn(&format!("checkpoint {} is damaged ({damage}); falling back to the one before it", name(step)));
        }
        if steps.is_empty() {
            return Ok(None);
        }
        Err(Failure::Integrity(format!(
            "none of the {} checkpoints in {} is intact. Restore one from elsewhere, or remove the directory to train from the beginning",
            steps.len(),
            self.directory.display()
        )))
    }

    /// Makes the checkpoint of `step` from the files that `write` puts into its directory. On an error nothing of it remains.
    pub fn commit(&self, step: u64, write: impl FnOnce(&Path) -> Result<(), Failure>) -> Result<(), Failure> {
        self.leave(step, |unfinished| {
            write(unfinished)?;
            manifest::write(unfinished, step)?;
            publish_files(unfinished).map_err(|error| Failure::io("write checkpoint", unfinished, &error))
        })
    }

    /// [`Checkpoints::commit`] without a manifest, and of files that need not be on the disk: for ranges, which end with their
    /// machine.
    fn leave(&self, step: u64, write: impl FnOnce(&Path) -> Result<(), Failure>) -> Result<(), Failure> {
        let unfinished = self.unfinished(step);
        let failed = |what, error| Failure::io(what, &unfinished, &error);
        let made = fs::create_dir(&unfinished).map_err(|error| failed("create", error));
        let written = made.and_then(|()| write(&unfinished));
        let result = written.and_then(|()| self.publish(&unfinished, step).map_err(|error| failed("write checkpoint", error)));
        if result.is_err() {
            // Frees a full disk for the next writer. The first error is the one worth telling.
            let _ = fs::remove_dir_all(&unfinished);
        }
        result
    }

    /// Where the checkpoint of `step` is in the making.
    fn unfinished(&self, step: u64) -> PathBuf {
        self.directory.join(format!("{UNFINISHED}{}", name(step)))
    }

    fn publish(&self, unfinished: &Path, step: u64) -> io::Result<()> {
        let path = self.path(step);
        // Only a damaged checkpoint, which the run fell back from and could not set aside, can be in the way: a run never makes the
        // same one twice.
        if path.exists() {
            self.set_aside(step)?;
        }
        fs::rename(unfinished, &path)?;
        File::open(&self.directory)?.sync_all()
    }

    /// Gives a damaged checkpoint another name.
    fn set_aside(&self, step: u64) -> io::Result<()> {
        let aside = self.directory.join(format!("{DAMAGED}{}", name(step)));
        if aside.exists() {
            fs::remove_dir_all(&aside)?;
        }
        fs::rename(self.path(step), &aside)
    }

    /// Removes all but the `keep` newest checkpoints. Called after a newer one is durable.
    pub fn retain(&self, keep: usize) -> Result<(), Failure> {
        self.steps()?.into_iter().skip(keep.max(1)).try_for_each(|step| self.remove(&name(step)))
    }

    /// Renames first, so that a half-removed checkpoint is never taken for a damaged one.
    fn remove(&self, name: &str) -> Result<(), Failure> {
        let path = self.directory.join(name);
        let doomed = self.directory.join(format!("{UNFINISHED}{}", name.trim_start_matches(UNFINISHED)));
        match fs::rename(&path, &doomed).and_then(|()| fs::remove_dir_all(&doomed)) {
            // An agent takes ranges away.
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            removed => removed.map_err(|error| Failure::io("remove", &path, &error)),
        }
    }

    fn names(&self) -> Result<Vec<String>, Failure> {
        files::names(&self.directory)
    }
}

/// Brings a flat directory and its files to the disk, readable for whom the manifest is: libraries that write through temporary
/// files leave them readable for their owner only.
fn publish_files(directory: &Path) -> io::Result<()> {
    let permissions = fs::metadata(directory.join(MANIFEST))?.permissions();
    for entry in fs::read_dir(directory)? {
        let file = File::open(entry?.path())?;
        file.set_permissions(permissions.clone())?;
        file.sync_all()?;
    }
    File::open(directory)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn save(checkpoints: &Checkpoints, step: u64) {
        let write = |directory: &Path| {
            fs::write(directory.join("model.safetensors"), format!("weights after {step}")).unwrap();
            Ok(())
        };
        checkpoints.commit(step, write).unwrap();
    }

    fn directory() -> (tempfile::TempDir, Checkpoints) {
        let output = tempfile::tempdir().unwrap();
        let checkpoints = Checkpoints::open(output.path()).unwrap();
        (output, checkpoints)
    }

    #[test]
    fn names_carry_their_step() {
        assert_eq!(name(100), "step-0000000100");
        assert_eq!(step_of("step-0000000100"), Some(100));
        for other in ["step-100", "step-00000001x0", ".unfinished-step-0000000100", "damaged-step-0000000100"] {
            assert_eq!(step_of(other), None, "{other}");
        }
    }

    #[test]
    fn a_manifest_lists_every_file() {
        let (_output, checkpoints) = directory();
        save(&checkpoints, 7);
        let manifest = manifest::verify(&checkpoints.path(7)).unwrap();
        let sha256 = "fbab53a5f0ba91d9ec3916a78304a8a0f3ffb7960afe6e8e5e636bf338976de4".to_owned();
        assert_eq!(manifest.step, 7);
        assert_eq!(manifest.files, [manifest::Entry { name: "model.safetensors".to_owned(), bytes: 15, sha256 }]);
    }

    #[test]
    fn the_oldest_go_when_a_newer_one_is_there() {
        let (_output, checkpoints) = directory();
        (1..=4).for_each(|step| save(&checkpoints, step));
        checkpoints.retain(2).unwrap();
        assert_eq!(checkpoints.steps().unwrap(), [4, 3]);
        checkpoints.retain(0).unwrap();
        assert_eq!(checkpoints.steps().unwrap(), [4]);
    }

    #[test]
    fn a_damaged_checkpoint_is_passed_over_and_replaced() {
        let (_output, checkpoints) = directory();
        (1..=2).for_each(|step| save(&checkpoints, step));
        fs::write(checkpoints.path(2).join("model.safetensors"), "weights").unwrap();
        let mut warnings = Vec::new();
        let newest = checkpoints.newest(|warning| warnings.push(warning.to_owned())).unwrap();
        assert_eq!(newest, Some(checkpoints.path(1)));
        let expected = "checkpoint step-0000000002 is damaged (model.safetensors: 7 bytes, the manifest says 15); falling back to the one before it";
        assert_eq!(warnings, [expected]);
        save(&checkpoints, 2);
        assert_eq!(checkpoints.newest(|warning| panic!("{warning}")).unwrap(), Some(checkpoints.path(2)));
    }

    #[test]
    fn a_damaged_checkpoint_is_none_of_those_to_keep() {
        let (_output, checkpoints) = directory();
        for step in [5, 10] {
            save(&checkpoints, step);
        }
        fs::write(checkpoints.path(10).join("model.safetensors"), "weights").unwrap();
        assert_eq!(checkpoints.newest(|_| ()).unwrap(), Some(checkpoints.path(5)));
        save(&checkpoints, 7);
        checkpoints.retain(1).unwrap();
        assert_eq!(checkpoints.steps().unwrap(), [7]);
    }

    #[test]
    fn when_none_is_intact_the_run_does_not_start_over_silently() {
        let (_output, checkpoints) = directory();
        assert!(checkpoints.newest(|_| ()).unwrap().is_none());
        save(&checkpoints, 1);
        fs::write(checkpoints.path(1).join(MANIFEST), "{").unwrap();
        assert_eq!(checkpoints.newest(|_| ()).unwrap_err().code(), 9);
    }

    #[test]
    fn a_failed_write_leaves_nothing() {
        let (output, checkpoints) = directory();
        save(&checkpoints, 1);
        checkpoints.commit(2, |_| Err(Failure::other("disk full"))).unwrap_err();
        assert_eq!(checkpoints.names().unwrap(), ["step-0000000001"]);
        fs::create_dir(output.path().join("checkpoints/.unfinished-step-0000000002")).unwrap();
        Checkpoints::open(output.path()).unwrap();
        assert_eq!(checkpoints.names().unwrap(), ["step-0000000001"]);
    }
}
