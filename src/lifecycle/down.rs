//! The end of everything a job has outside the store, whatever its state.

use std::time::Duration;

use super::{Result, World, cancel, journal, teardown};
use crate::job::{id::JobId, record::Record};

/// Destroys the machines of a job and proves it. A job that is not finished is cancelled first, so that nobody starts it again; one
/// whose record is lost or unreadable is destroyed by its id alone.
pub async fn down(world: &World, id: &JobId) -> Result<()> {
    let unfinished = journal::read(world.store.as_ref(), id).await.is_ok_and(|(record, _)| !record.state.is_finished());
    if unfinished {
        cancel::cancel(world, id, Duration::ZERO).await?;
    }
    teardown::destroy(world, id).await
}

/// What [`down`] would do, one act a line.
pub async fn preview(world: &World, id: &JobId) -> Result<Vec<String>> {
    let record = journal::read(world.store.as_ref(), id).await.ok().map(|(record, _)| record);
    let cancel = record.filter(|record| !record.state.is_finished()).map(|_| format!("cancel {id}"));
    let machines = teardown::remaining(world, id).await?;
    Ok(cancel.into_iter().chain(machines.into_iter().map(|machine| format!("destroy {}", machine.name))).collect())
}

/// The jobs of this store that are not finished, and those that own something at the provider.
pub async fn everything(world: &World) -> Result<Vec<JobId>> {
    let mut jobs: Vec<JobId> = world.provider.list().await?.into_iter().map(|resource| resource.attempt.job).collect();
    // An unreadable record is no reason to leave a machine behind.
    let unfinished = |record: &Result<Record>| record.as_ref().map_or(true, |record| !record.state.is_finished());
    jobs.extend(journal::all(world.store.as_ref()).await?.into_iter().filter(|(_, record)| unfinished(record)).map(|(id, _)| id));
    jobs.sort();
    jobs.dedup();
    Ok(jobs)
}
