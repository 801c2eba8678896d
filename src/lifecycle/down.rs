//! The end of everything a job has outside the store, whatever its state.

use std::time::Duration;

use super::{Result, World, cancel, journal, teardown};
use crate::{
    exit::Exit,
    job::id::{JobId, path},
};

/// Destroys the machines of a job and proves it. A job that is not finished is cancelled first, so that nobody starts it again; one
/// whose record is lost or unreadable is destroyed by its id alone.
pub async fn down(world: &World, id: &JobId) -> Result<()> {
    let unfinished = journal::read(world.store.as_ref(), id).await.is_ok_and(|(record, _)| !record.state.is_finished());
    if unfinished {
        cancel::cancel(world, id, Duration::ZERO).await?;
    }
    teardown::destroy(world, id).await
}

/// The jobs of this store that are not finished, and those that own something at the provider.
pub async fn everything(world: &World) -> Result<Vec<JobId>> {
    let mut jobs: Vec<JobId> = world.provider.list().await?.into_iter().map(|resource| resource.attempt.job).collect();
    for id in world.store.children(&path::jobs()).await?.iter().filter_map(|name| JobId::parse(name)) {
        match journal::read(world.store.as_ref(), &id).await {
            Ok((record, _)) if !record.state.is_finished() => jobs.push(id),
            // An unreadable record is no reason to leave a machine behind.
            Err(failure) if failure.exit != Exit::NotFound => jobs.push(id),
            _ => {}
        }
    }
    jobs.sort();
    jobs.dedup();
    Ok(jobs)
}
