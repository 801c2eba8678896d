//! The removal of a finished job from the store: its record, logs, checkpoints and results. Its data stays, as other jobs may need
//! it: `prune --data` finds what none of them does.

use super::{
    Result, World, debt,
    journal::{self, Journal},
    open,
};
use crate::{
    exit::{Exit, Failure},
    job::id::{JobId, path},
    store::Store,
};

/// The job that is meant. Of a name, one whose removal was interrupted comes first: the name may be another's by then.
pub async fn find(store: &dyn Store, text: &str) -> Result<JobId> {
    let all = store.children(&path::jobs()).await?;
    for id in all.iter().filter_map(|name| JobId::parse(name)).filter(|id| id.name() == text) {
        match journal::read(store, &id).await {
            Ok((record, _)) if record.removing => return Ok(id),
            Err(failure) if !matches!(failure.exit, Exit::NotFound | Exit::Integrity) => return Err(failure),
            _ => {}
        }
    }
    open::find(store, text).await
}

/// Refuses a job that is not over, or that may still have a machine: nothing would remember that.
pub async fn may_go(world: &World, id: &JobId) -> Result<Journal> {
    let job = Journal::load(world, id).await?;
    if !job.record.state.is_finished() {
        let message = format!("the job {id} is not over: it is {}", job.record.label());
        return Err(Failure::new(Exit::Conflict, message).fix(format!("end it first: ftctl cancel {id}")));
    }
    if debt::all(world.store.as_ref()).await?.0.iter().any(|debt| debt.id == *id) {
        let message = format!("the job {id} may still have a machine that could not be destroyed");
        return Err(Failure::new(Exit::MayBill, message).fix(format!("ftctl down {id}")));
    }
    Ok(job)
}

/// Removes it. The mark in its record goes first: it is written only over the record that was looked at, so a job that goes on
/// meanwhile stays, and one that is marked does not go on. The record goes last: until then an interrupted removal is found.
pub async fn remove(world: &World, id: &JobId) -> Result<()> {
    let mut job = may_go(world, id).await?;
    if !job.record.removing {
        job.record.removing = true;
        job.save().await?;
    }
    let store = world.store.as_ref();
    open::release(store, id).await?;
    store.delete_job(id).await?;
    world.adoption.forget(id)?;
    Ok(store.delete(&path::record(id)).await?)
}
