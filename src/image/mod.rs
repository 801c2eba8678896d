//! The trainer that runs a job, made from the embedded sources: a program of this machine, or a container image with agent and
//! trainer.

pub mod container;
mod context;
mod installer;
pub mod libtorch;
pub mod needs;
pub mod push;
pub mod sources;
mod steps;
pub mod trainer;

use std::{
    fs::File,
    path::{Path, PathBuf},
    process::{Output, Stdio},
};

use tokio::process::Command;

use crate::{
    docker::{self, Endpoint, registry},
    job::report::Report,
};

/// Why the trainer or the image could not be made.
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
    #[error("{what} {why}; ftctl builds the trainer with it")]
    NoTool { what: &'static str, why: String },
    #[error("{why}; libtorch is installed by pip or uv")]
    NoInstaller { why: String, fix: &'static str },
    /// A program that was started failed; the log has everything it said.
    #[error("{purpose} failed:\n{tail}\nThe whole log is {}. {advice}", log.display())]
    Failed { purpose: &'static str, tail: String, log: PathBuf, advice: &'static str },
    #[error("{0}")]
    Unusable(String),
    /// A value that the user gave.
    #[error("{0}")]
    Invalid(String),
    /// The output of the step that failed, less its beginning.
    #[error("building the image failed at {step}: {why}\n{tail}\nThe whole log is {}", log.display())]
    Step { step: String, why: String, tail: String, log: PathBuf },
    #[error("the container engine at {endpoint} does not {action}: {why}")]
    Refused { endpoint: Endpoint, action: String, why: String },
    #[error("{repository} does not take the image: {why}")]
    Registry { repository: String, class: registry::Class, why: String },
    /// An image that another begins with.
    #[error("cannot fetch the image {image}: {why}")]
    Source { image: String, class: registry::Class, why: String },
    #[error("the connection to the container engine at {endpoint} broke: {why}")]
    Line { endpoint: Endpoint, why: String },
}

impl ImageError {
    /// Whether another try may end better.
    fn is_network(&self) -> bool {
        matches!(self, Self::Line { .. } | Self::Registry { class: registry::Class::Network, .. })
    }

    /// Sorts an error of the engine by whether it was the line.
    fn of_engine(endpoint: &Endpoint, action: &str, error: &bollard::errors::Error) -> Self {
        let (endpoint, why) = (endpoint.clone(), docker::words(error));
        if docker::is_line(error) {
            return Self::Line { endpoint, why };
        }
        Self::Refused { endpoint, action: action.to_owned(), why }
    }
}

pub type Result<T, E = ImageError> = std::result::Result<T, E>;

fn io_error(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> ImageError {
    move |source| ImageError::Io { action, path: path.to_owned(), source }
}

/// Keeps every other ftctl out until the file is dropped. Another may take minutes: the user hears what is `awaited`, and the wait
/// is another thread's, so that a lease is renewed and Ctrl-C heard meanwhile.
async fn lock(path: &Path, awaited: &str, report: &dyn Report) -> Result<File> {
    let file = File::create(path).map_err(io_error("create", path))?;
    if file.try_lock().is_ok() {
        return Ok(file);
    }
    report.line(&format!("waiting for another ftctl that is {awaited}"));
    let waiting = tokio::task::spawn_blocking(move || file.lock().map(|()| file));
    waiting.await.unwrap_or_else(|panic| Err(panic.into())).map_err(io_error("lock", path))
}

/// Runs a short program to its end and takes what it said.
async fn output(program: &'static str, args: &[&str], purpose: &'static str) -> Result<Output> {
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null()).kill_on_drop(true);
    command.output().await.map_err(|source| ImageError::Missing { program, purpose, source })
}

/// The last lines of a log: enough to see the cause, not a wall.
fn tail(log: &Path) -> String {
    let text = text_of(log);
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(15)..].join("\n")
}

/// The first line of a log that tells of an error. Backtraces and what fails because of it come later.
fn first_error(log: &Path) -> Option<String> {
    text_of(log).lines().find(|line| line.starts_with("error")).map(str::to_owned)
}

fn text_of(log: &Path) -> String {
    std::fs::read(log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
}
