//! Verbs that ask the trainer on this machine for one answer.

use std::ffi::OsString;

use super::App;
use crate::{
    exit::{Exit, Failure},
    image::trainer,
};

/// Builds the trainer when it must, runs it, and prints what it answered. Its own talk goes to stderr as it comes.
pub fn answer(app: &mut App<'_>, arguments: &[OsString]) -> Result<(), Failure> {
    let cache = app.settings.directories.cache()?;
    let answer = app.block_on(async { Ok(trainer::ask(cache, arguments, app.output.report().as_ref()).await?) })?;
    match answer.code {
        Some(0) => app.output.data(&answer.stdout),
        // The trainer uses the numbers of ftctl for what both know.
        code => {
            let exit = code.and_then(|code| u8::try_from(code).ok()).and_then(Exit::from_code).unwrap_or(Exit::Failure);
            Err(Failure::new(exit, answer.error))
        }
    }
}
