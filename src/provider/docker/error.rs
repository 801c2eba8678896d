//! The meaning of an engine's refusals for a job.

use bollard::errors::Error;

use crate::{
    docker::{self, EngineError},
    provider::{Class, ProviderError},
};

impl From<EngineError> for ProviderError {
    fn from(error: EngineError) -> Self {
        let class = match error {
            EngineError::Setting { .. } | EngineError::TooOld { .. } => Class::Invalid,
            EngineError::Absent { .. } => Class::Network,
            EngineError::Denied { .. } => Class::Denied,
        };
        Self::new(class, error.to_string()).fix(error.fix())
    }
}

/// Words of the engine, with fixes.
const KNOWN: [(&str, &str); 4] = [
    (
        "could not select device driver",
        "install the NVIDIA Container Toolkit where the engine runs, or set compute.docker.gpus = \"none\"",
    ),
    ("nvidia-container-cli", "look at the GPU's driver where the engine runs: nvidia-smi must work there"),
    (
        "bind source path does not exist",
        "a mount's source is a directory of the engine's machine; make it there, or correct compute.docker.mounts",
    ),
    ("executable file not found", "the image has no ftctl in its PATH; correct compute.docker.image"),
];

/// `act` is the attempted act, such as "start the container x".
pub fn failed(act: &str, error: &Error) -> ProviderError {
    let words = docker::words(error);
    let full = docker::is_full_disk(&words);
    let class = match error {
        error if full || docker::is_line(error) => Class::Network,
        Error::DockerResponseServerError { status_code: 400 | 404, .. } => Class::Invalid,
        Error::DockerResponseServerError { status_code: 401 | 403, .. } => Class::Denied,
        Error::DockerResponseServerError { status_code: 409, .. } => Class::Conflict,
        _ => Class::Internal,
    };
    let failed = ProviderError::new(class, format!("cannot {act}: {words}"));
    match KNOWN.iter().find(|(known, _)| words.contains(known)) {
        _ if full => failed.fix(docker::FULL_DISK),
        Some((_, fix)) => failed.fix(*fix),
        None if class == Class::Network => failed.fix("start the engine again, or wait until it answers"),
        None => failed,
    }
}

/// Whether the engine says that there is no such thing.
fn is_missing(error: &Error) -> bool {
    matches!(error, Error::DockerResponseServerError { status_code: 404, .. })
}

/// The answer about a named thing: `None` when there is none.
pub fn found<T>(act: &str, answer: Result<T, Error>) -> Result<Option<T>, ProviderError> {
    match answer {
        Err(error) if is_missing(&error) => Ok(None),
        answer => answer.map(Some).map_err(|error| failed(act, &error)),
    }
}

/// The answer to an act that may have been done before, or by another process.
pub fn done(act: &str, answer: Result<(), Error>) -> Result<(), ProviderError> {
    match answer {
        Err(error) if is_settled(&error) => Ok(()),
        answer => answer.map_err(|error| failed(act, &error)),
    }
}

/// Whether it says that things are no longer, or already, as they would have to be.
fn is_settled(error: &Error) -> bool {
    matches!(error, Error::DockerResponseServerError { status_code: 304 | 404 | 409, .. })
}
