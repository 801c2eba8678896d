//! How a command of `ft-trainer` fails: a sentence for the user and an exit code.

use std::fmt::Display;
use std::path::Path;

/// Exit code of a run that stopped on request after writing a checkpoint, or because another of its processes is gone (BSD's
/// `EX_TEMPFAIL`: run the same command again).
pub const STOPPED: u8 = 75;

/// Exit code of a run that ran out of memory (BSD's `EX_OSERR`): with fewer sequences at a time it may go on.
pub const OUT_OF_MEMORY: u8 = 71;

/// Whether a message is about memory that could not be had: of libtorch, on the CPU and on a GPU, of the operating system, or of
/// Rust, which ends the process with SIGABRT after it.
pub fn tells_of_no_memory(message: &str) -> bool {
    const WORDS: [&str; 4] = ["out of memory", "can't allocate memory", "Cannot allocate memory", "memory allocation of"];
    WORDS.iter().any(|words| message.contains(words))
}

/// Why a command ended without doing its work. The text says what happened, to what, why, and what to do next.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The configuration, the data or the weights are wrong and the user can correct them. Exit code 2.
    #[error("{0}")]
    Input(String),
    /// Stored bytes are not what was written. Exit code 9.
    #[error("{0}")]
    Integrity(String),
    /// Another process of the run is gone; the run can be resumed. Exit code [`STOPPED`].
    #[error("{0}")]
    Lost(String),
    /// Anything else: the disk is full, the loss is not a number. Exit code 1, or [`OUT_OF_MEMORY`].
    #[error("{0}")]
    Other(String),
}

impl Failure {
    pub fn input(message: impl Display) -> Self {
        Self::Input(message.to_string())
    }

    pub fn other(message: impl Display) -> Self {
        Self::Other(message.to_string())
    }

    /// A file or directory could not be read or written. `action` reads as in "cannot `action` `path`".
    pub fn io(action: &str, path: &Path, error: &std::io::Error) -> Self {
        use std::io::ErrorKind::{FileTooLarge, QuotaExceeded, ReadOnlyFilesystem, StorageFull};
        let advice = match error.kind() {
            StorageFull | QuotaExceeded => ". Free some space: a run into the same output directory resumes",
            FileTooLarge => ". Raise the limit on the size of files (`ulimit -f`): a run into the same output directory resumes",
            ReadOnlyFilesystem => ". Choose an output directory that can be written",
            _ => "",
        };
        Self::Other(format!("cannot {action} {}: {error}{advice}", path.display()))
    }

    /// The process's exit code.
    pub fn code(&self) -> u8 {
        match self {
            Self::Input(_) => 2,
            Self::Integrity(_) => 9,
            Self::Lost(_) => STOPPED,
            Self::Other(message) if tells_of_no_memory(message) => OUT_OF_MEMORY,
            Self::Other(_) => 1,
        }
    }
}
