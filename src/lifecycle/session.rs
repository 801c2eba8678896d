//! A command on the machine where a job runs.

pub use crate::provider::session::{Control, Piece, Remote, Session};

use super::{Result, World};
use crate::{
    exit::{Exit, Failure},
    job::{id::AttemptId, record::Record, state::State},
    provider::no_commands,
};

/// The machine of the job's current attempt.
pub fn machine(record: &Record) -> Result<AttemptId> {
    if record.attempt > 0 && record.state == State::Running {
        return Ok(AttemptId::new(&record.id, record.attempt));
    }
    let message = format!("the job {} is not running; its state is {}", record.id, record.state.label(record.outcome));
    Err(Failure::new(Exit::NotFound, message).fix("`ftctl status` shows which jobs run"))
}

/// The machine on which a command would run, or why none would.
pub fn intended(world: &World, record: &Record) -> Result<AttemptId> {
    let attempt = machine(record)?;
    if world.provider.capabilities().commands { Ok(attempt) } else { Err(no_commands(&attempt).into()) }
}

pub async fn open(world: &World, record: &Record, command: &[String], terminal: bool) -> Result<Session> {
    Ok(world.provider.session(&machine(record)?, command, terminal).await?)
}
