//! Verbs that ask the trainer on this machine for one answer.

use std::{ffi::OsString, path::Path};

use super::App;
use crate::{
    exit::{Exit, Failure},
    image::trainer,
};

/// A directory that the trainer is about to read. A missing one is an error before anything is installed for it.
pub fn directory(app: &App<'_>, path: &Path, fix: &str) -> Result<OsString, Failure> {
    let path = app.working_directory.join(path);
    if path.is_dir() {
        return Ok(path.into_os_string());
    }
    Err(Failure::new(Exit::NotFound, format!("there is no directory {}", path.display())).fix(fix))
}

/// Builds the trainer when it must, runs it, and prints what it answered. Its own talk goes to stderr as it comes.
pub fn answer(app: &mut App<'_>, arguments: &[OsString]) -> Result<(), Failure> {
    let cache = app.settings.directories.cache()?;
    let answer = app.block_on(async { Ok(trainer::ask(cache, arguments, app.output.report().as_ref()).await?) })?;
    match answer.code {
        Some(0) => app.output.data(&answer.stdout),
        // The trainer uses ftctl's numbers for the failures that both know.
        code => {
            let exit = code.and_then(|code| u8::try_from(code).ok()).and_then(Exit::from_code).unwrap_or(Exit::Failure);
            Err(Failure::new(exit, answer.error))
        }
    }
}
