//! The end of everything a job has outside the store, whatever its state.

use std::{collections::BTreeSet, time::Duration};

use super::{
    Resource, Result, World, cancel, debt,
    journal::{self, Journal},
    teardown,
};
use crate::{
    exit::{Exit, Failure},
    job::{
        id::JobId,
        record::Record,
        state::{Outcome, State},
    },
    provider::Whose,
    store::Store,
};

/// Destroys the machines of a job and proves it. A job that is not finished is cancelled first, so that it does not start again;
/// one whose record is lost or unreadable is destroyed by its id alone.
///
/// # Errors
/// [`Exit::Conflict`] when this store knows no such job, and another one has machines of it. [`Exit::Usage`] when the record says
/// that its machines are in another account. Somebody else may have written that, so those that are here are destroyed first, and
/// the job is asked to stop wherever it runs; its record and its debt stay.
pub async fn down(world: &World, id: &JobId) -> Result<()> {
    let read = journal::read(world.store.as_ref(), id).await;
    if let Ok((record, _)) = &read
        && let Err(elsewhere) = world.admits(record)
    {
        cancel::ask(world, id, Duration::ZERO).await?;
        world.provider.destroy(id).await?;
        return Err(elsewhere);
    }
    if read.as_ref().is_ok_and(|(record, _)| !record.state.is_finished()) {
        Box::pin(cancel::cancel(world, id, Duration::ZERO)).await?;
    }
    teardown::destroy(world, id).await?;
    match read {
        Err(failure) if failure.exit == Exit::NotFound => none_elsewhere(world, id).await,
        _ => Ok(()),
    }
}

async fn none_elsewhere(world: &World, id: &JobId) -> Result<()> {
    let all = world.provider.list().await?;
    let Some(left) = all.iter().find(|resource| resource.attempt.job == *id && !world.reaches(resource)) else { return Ok(()) };
    let message = format!("{} is left alone: {}", left.name, left.belongs.apart());
    Err(Failure::new(Exit::Conflict, message)
        .for_good()
        .fix(format!("name that store with --store, or add --everybody: `ftctl down {id} --everybody`")))
}

/// Ends a job of a simulated cloud that has ended, without asking it: its machines ended with it.
///
/// # Errors
/// [`Exit::Usage`] for a job of a real cloud, whose machines cost money until they are destroyed.
pub async fn forget(world: &World, id: &JobId) -> Result<()> {
    let mut job = Journal::load(world, id).await?;
    admit_forgetting(&job.record)?;
    if !job.record.state.is_finished() {
        job.end(Outcome::Cancelled, Exit::JobCancelled, "its simulated cloud has ended").await?;
        let now = world.clock.now();
        job.record.attempts.iter_mut().filter(|attempt| attempt.ended.is_none()).for_each(|attempt| attempt.ended = Some(now));
        job.enter(State::Finished).await?;
    }
    debt::paid(world, id).await
}

/// See [`forget`].
pub fn admit_forgetting(record: &Record) -> Result<()> {
    if record.simulated {
        return Ok(());
    }
    let (id, backend) = (&record.id, record.plan.backend());
    let message = format!("{id} is a job of {backend}, which is no simulated cloud; its machines exist until they are destroyed");
    Err(Failure::new(Exit::Usage, message).fix(format!("ftctl down {id}")))
}

/// The acts of [`down`], one a line.
pub async fn preview(world: &World, id: &JobId) -> Result<Vec<String>> {
    let record = journal::read(world.store.as_ref(), id).await.ok().map(|(record, _)| record);
    let cancel = record.filter(|record| !record.state.is_finished()).map(|_| format!("cancel {id}"));
    let machines = teardown::remaining(world, id).await?;
    let destroy = |machine: Resource| match machine.belongs.apart() {
        why if why.is_empty() => format!("destroy {}", machine.name),
        why => format!("destroy {} ({why})", machine.name),
    };
    Ok(cancel.into_iter().chain(machines.into_iter().map(destroy)).collect())
}

/// The resources that a verb without a job finds at a backend.
#[derive(Default)]
pub struct Found {
    /// This user's machines of this store, or everybody's where the world means them.
    pub meant: Vec<Resource>,
    /// Jobs with machines of another user, which this store has as well.
    pub of_others: BTreeSet<JobId>,
}

/// Looks at every machine of the backend, and names those that it leaves alone.
pub async fn find(world: &World) -> Result<Found> {
    let (meant, others): (Vec<_>, Vec<_>) = world.provider.list().await?.into_iter().partition(|resource| world.owns(resource));
    for resource in &others {
        world.leave_alone(resource);
    }
    let theirs = others.into_iter().filter(|resource| resource.belongs.whose == Whose::OtherOwner);
    let of_others: BTreeSet<JobId> = theirs.map(|resource| resource.attempt.job).collect();
    // With a machine its whole job goes.
    let meant = meant.into_iter().filter(|resource| !of_others.contains(&resource.attempt.job)).collect();
    Ok(Found { meant, of_others })
}

/// The jobs of this store that are not finished. An unreadable record counts: it is no reason to leave a machine behind.
pub async fn unfinished(store: &dyn Store) -> Result<Vec<JobId>> {
    let all = journal::all(store).await?.into_iter();
    Ok(all.filter(|(_, record)| record.as_ref().map_or(true, |record| !record.state.is_finished())).map(|(id, _)| id).collect())
}

/// The backends of the jobs of this store that are not finished.
pub async fn backends(store: &dyn Store) -> Result<BTreeSet<String>> {
    let records = journal::all(store).await?.into_iter().filter_map(|(_, record)| record.ok());
    Ok(records.filter(|record| !record.state.is_finished()).map(|record| record.plan.backend().to_owned()).collect())
}

/// Removes what belongs to no job, unless `only_look`, and names it.
pub async fn tidy(world: &World, only_look: bool) -> Result<Vec<String>> {
    Ok(world.provider.tidy(only_look).await?)
}
