//! The weights of the evaluation with the lowest loss, kept beside the run until it ends with them.
//!
//! They are in every checkpoint from then on, as a second name of the same file, so that a run resumes with them wherever it goes
//! on.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use crate::error::Failure;
use crate::model::Parameters;
use crate::model::weights::parameters::ModelError;

/// Name in a checkpoint; the tensors have GPT-2's names in every variant.
pub const FILE: &str = "best.safetensors";

/// The best weights of one run.
#[derive(Debug, Clone)]
pub struct Best {
    path: PathBuf,
}

impl Best {
    /// Opens the best weights of the checkpoint that the run resumes from; none when it begins.
    pub fn open(output: &Path, checkpoint: Option<&Path>) -> Result<Self, Failure> {
        let best = Self { path: output.join(format!(".{FILE}")) };
        let kept = checkpoint.map(|checkpoint| checkpoint.join(FILE)).filter(|path| path.exists());
        let taken = absent(fs::remove_file(&best.path)).and_then(|()| kept.map_or(Ok(()), |kept| fs::hard_link(kept, &best.path)));
        taken.map(|()| best).map_err(|error| Failure::io("write", &output.join(FILE), &error))
    }

    /// These weights are better than all before. Checkpoints keep the file that they have linked, and must have linked it by now.
    pub fn replace(&self, parameters: &Parameters) -> Result<(), Failure> {
        let unfinished = self.path.with_extension("unfinished");
        parameters.write_entries(&unfinished).map_err(|error| super::unwritten(error.into()))?;
        fs::rename(&unfinished, &self.path).map_err(|error| Failure::io("write", &self.path, &error))
    }

    /// Adds them to a checkpoint in the making.
    pub fn keep(&self, checkpoint: &Path) -> Result<(), Failure> {
        fs::hard_link(&self.path, checkpoint.join(FILE)).map_err(|error| Failure::io("keep", &self.path, &error))
    }

    /// Writes them over `parameters`, one tensor at a time in memory.
    pub fn restore(&self, parameters: &mut Parameters) -> Result<(), ModelError> {
        parameters.restore(&self.path)
    }
}

/// Accepts that the file does not exist.
fn absent(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        result => result,
    }
}
