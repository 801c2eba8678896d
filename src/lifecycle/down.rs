//! The end of everything a job has outside the store, whatever its state.

use std::{collections::BTreeSet, time::Duration};

use super::{Result, World, cancel, journal, teardown};
use crate::{job::id::JobId, store::Store};

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

/// The jobs that own something at the provider.
pub async fn owners(world: &World) -> Result<Vec<JobId>> {
    Ok(world.provider.list().await?.into_iter().map(|resource| resource.attempt.job).collect())
}

/// The jobs of this store that are not finished. An unreadable record counts: it is no reason to leave a machine behind.
pub async fn unfinished(store: &dyn Store) -> Result<Vec<JobId>> {
    let all = journal::all(store).await?.into_iter();
    Ok(all.filter(|(_, record)| record.as_ref().map_or(true, |record| !record.state.is_finished())).map(|(id, _)| id).collect())
}

/// The backends of the jobs of this store that are not finished.
pub async fn backends(store: &dyn Store) -> Result<BTreeSet<String>> {
    let records = journal::all(store).await?.into_iter().filter_map(|(_, record)| record.ok());
    Ok(records.filter(|record| !record.state.is_finished()).map(|record| record.plan.backend).collect())
}

/// Removes what belongs to no job, unless `only_look`, and names it.
pub async fn tidy(world: &World, only_look: bool) -> Result<Vec<String>> {
    Ok(world.provider.tidy(only_look).await?)
}
