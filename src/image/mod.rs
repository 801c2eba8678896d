//! What runs a job: today the trainer as a program built on this machine from the embedded sources.

pub mod libtorch;
pub mod sources;
pub mod trainer;

use std::{
    path::{Path, PathBuf},
    process::{Output, Stdio},
};

use tokio::process::Command;

/// Why the trainer could not be built.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        action: &'static str,
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("{program} is needed to {purpose}, and cannot be started: {source}")]
    Missing {
        program: &'static str,
        purpose: &'static str,
        #[source]
        source: std::io::Error,
    },
    /// A program that was started failed; the log has everything it said.
    #[error("{purpose} failed:\n{tail}\nThe whole log is {}", log.display())]
    Failed { purpose: &'static str, tail: String, log: PathBuf },
    #[error("{0}")]
    Unusable(String),
}

pub type Result<T, E = ImageError> = std::result::Result<T, E>;

fn io_error(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> ImageError {
    move |source| ImageError::Io { action, path: path.to_owned(), source }
}

/// Runs a short program to its end and takes what it said.
async fn output(program: &'static str, args: &[&str], purpose: &'static str) -> Result<Output> {
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null()).kill_on_drop(true);
    command.output().await.map_err(|source| ImageError::Missing { program, purpose, source })
}

/// The last lines of a log: enough to see the cause, not a wall.
fn tail(log: &Path) -> String {
    let text = std::fs::read(log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(15)..].join("\n")
}
