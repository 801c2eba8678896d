//! The removal of a finished job from the store: its record, logs, checkpoints and results. Its data stays, as other jobs may need
//! it: `prune --data` finds what none of them does.

use super::{Result, World, debt, journal, open};
use crate::{
    exit::{Exit, Failure},
    job::id::JobId,
};

/// Refuses a job that is not over, or that may still have a machine: nothing would remember that.
pub async fn may_go(world: &World, id: &JobId) -> Result<()> {
    let record = journal::read(world.store.as_ref(), id).await?.0;
    if !record.state.is_finished() {
        let message = format!("the job {id} is not over: it is {}", record.label());
        return Err(Failure::new(Exit::Conflict, message).fix(format!("end it first: ftctl cancel {id}")));
    }
    if debt::all(world.store.as_ref()).await?.0.iter().any(|debt| debt.id == *id) {
        let message = format!("the job {id} may still have a machine that could not be destroyed");
        return Err(Failure::new(Exit::MayBill, message).fix(format!("ftctl down {id}")));
    }
    Ok(())
}

/// Removes it. The name goes first: a job without a name is found by its id, and can be removed again.
pub async fn remove(world: &World, id: &JobId) -> Result<()> {
    may_go(world, id).await?;
    open::release(world.store.as_ref(), id).await?;
    world.store.delete_job(id).await?;
    world.adoption.forget(id)
}
