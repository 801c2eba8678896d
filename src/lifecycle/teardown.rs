//! Everything of the job is destroyed, and the provider is asked whether that is true.

use super::{Next, Result, STAGES, World, attempt, debt, journal::Journal, publish, results};
use crate::{
    exit::{Exit, Failure},
    job::{
        id::JobId,
        record::Measures,
        state::{Outcome, State},
    },
    provider::Resource,
};

pub(super) async fn step(world: &World, job: &mut Journal) -> Result<Next> {
    world.report.stage(7, STAGES, "Tearing down");
    attempt::see_the_last(world, job).await;
    if let Err(failure) = destroy(world, &job.record.id).await {
        // A machine that the cloud did not take back costs until it does: the receipt goes on counting.
        if failure.exit == Exit::MayBill
            && let Some(attempt) = job.record.attempts.last_mut()
            && attempt.ended.take().is_some()
        {
            job.save().await?;
        }
        return Err(failure);
    }
    if job.record.outcome.is_none() {
        job.record.outcome = Some(Outcome::Cancelled);
        job.record.exit = Some(Exit::JobCancelled as u8);
    }
    let now = world.clock.now();
    for attempt in job.record.attempts.iter_mut().filter(|attempt| attempt.ended.is_none()) {
        attempt.ended = Some(now);
    }
    // Best effort: the numbers are in the store, wherever they are not in the record.
    let results = results::of(world.store.as_ref(), &job.record).await.ok();
    job.record.measures = results.as_ref().map(Measures::from).filter(|measures| *measures != Measures::default());
    if job.record.outcome == Some(Outcome::Succeeded) && world.adoption.may_drive(&job.record) {
        publish::model(world, &job.record).await;
    }
    job.enter(State::Finished).await?;
    Ok(Next::Now)
}

/// Destroys a job's machines and proves it; needs nothing but the id. [`Exit::MayBill`] when something may be left, which is then
/// written down as a debt.
pub async fn destroy(world: &World, id: &JobId) -> Result<()> {
    let done = try_to_destroy(world, id).await;
    match &done {
        Ok(()) if world.provider.capabilities().bills => debt::paid(world, id).await?,
        Err(failure) if failure.exit == Exit::MayBill => debt::note(world, id, &failure.message).await?,
        _ => {}
    }
    done
}

async fn try_to_destroy(world: &World, id: &JobId) -> Result<()> {
    let bills = world.provider.capabilities().bills;
    if let Err(error) = world.provider.destroy(id).await {
        let failure = Failure::from(error);
        return Err(if bills { may_bill(id, &failure.message) } else { failure });
    }
    let left = remaining(world, id).await?;
    if left.is_empty() {
        return Ok(());
    }
    let names: Vec<&str> = left.iter().map(|resource| resource.name.as_str()).collect();
    Err(may_bill(id, &format!("still there: {}", names.join(", "))))
}

/// The resources of a job that the provider still shows.
pub async fn remaining(world: &World, id: &JobId) -> Result<Vec<Resource>> {
    let all = world.provider.list().await?;
    Ok(all.into_iter().filter(|resource| resource.attempt.job == *id && world.reaches(resource)).collect())
}

fn may_bill(id: &JobId, why: &str) -> Failure {
    Failure::new(Exit::MayBill, format!("the machines of {id} may still exist: {why}")).fix(format!("ftctl down {id}"))
}
