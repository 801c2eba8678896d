//! A machine for the next attempt.

use std::time::Duration;

use super::{Next, Result, STAGES, World, attempt, decide, image, journal::Journal, shrink};
use crate::{
    exit::{Exit, Failure},
    job::{
        clock::after,
        event::EventKind,
        id::AttemptId,
        record::Waiting,
        state::{Outcome, State},
    },
    provider::{Class, ProviderError},
};

pub(super) async fn step(world: &World, job: &mut Journal) -> Result<Next> {
    if let Some(wait) = remaining_wait(world, job) {
        return Ok(Next::After(wait));
    }
    if job.record.attempt == 1 && job.record.retry_at.is_none() {
        world.report.stage(3, STAGES, "Provisioning");
    }
    let attempt = AttemptId::new(&job.record.id, job.record.attempt);
    let image = image::of(world, &job.record).await?;
    job.record.trainer = Some(image.clone());
    let Some(plan) = job.record.left(world.clock.now()) else {
        let why = decide::over(&job.record);
        job.end(Outcome::Failed, Exit::Deadline, &why).await?;
        return Ok(Next::Now);
    };
    match world.provider.provision(&attempt, &plan, &image).await {
        Ok(refused) => {
            for message in refused {
                world.report.line(&message);
                job.note(EventKind::Refused { class: "capacity".to_owned(), message, retry_at: None });
            }
            (job.record.retry_at, job.record.waiting) = (None, None);
            let sighting = world.provider.observe(&attempt).await?;
            attempt::see(world, job, &sighting).await?;
            job.enter(State::Submitting).await?;
            Ok(Next::Now)
        }
        Err(error) => refused(world, job, error).await,
    }
}

/// How long the job still has to wait before the provider is asked again.
fn remaining_wait(world: &World, job: &Journal) -> Option<Duration> {
    let until = job.record.retry_at?;
    Duration::try_from(until.duration_since(world.clock.now())).ok().filter(|wait| !wait.is_zero())
}

/// A refusal that time may cure is written down with the next try, the last of which is when the job has waited for as long as it
/// may; any other ends the job.
async fn refused(world: &World, job: &mut Journal, error: ProviderError) -> Result<Next> {
    let now = world.clock.now();
    let plan = &job.record.plan;
    let patience = match error.class {
        Class::Capacity | Class::Quota => plan.patience(),
        // The call may have happened: asking again finds out, because the name is the same.
        Class::Network => plan.max_wait.0,
        Class::Denied | Class::Conflict | Class::Invalid | Class::Internal => Duration::ZERO,
    };
    let left = patience.saturating_sub(job.record.waited(now));
    let retry_at = (!left.is_zero()).then(|| {
        let refusals = job.record.events.iter().rev().take_while(|event| matches!(event.kind, EventKind::Refused { .. })).count();
        let pause = error.retry_after.unwrap_or_else(|| plan.retry.pause(refusals as u32 + 1));
        after(now, pause.min(left))
    });
    job.note(EventKind::Refused { class: error.class.label().to_owned(), message: error.message.clone(), retry_at });
    let Some(retry_at) = retry_at else {
        let failure = if patience.is_zero() {
            Failure::from(error)
        } else {
            Failure::new(Exit::Capacity, decide::gave_up(&job.record, &error.message))
        };
        job.fail(&failure).await?;
        return Ok(Next::Now);
    };
    world.report.warn(&format!("{} ({}); next try at {retry_at:.0}", error.message, error.class.label()));
    let since = job.record.attempts.last().and_then(|attempt| attempt.requested).unwrap_or(now);
    job.record.waiting = Some(Waiting { since, why: error.message });
    job.record.retry_at = Some(retry_at);
    if let Some(fewer) = shrink::of_refused(&job.record).filter(|_| matches!(error.class, Class::Capacity | Class::Quota)) {
        attempt::ask_for(world, job, fewer);
    }
    job.save().await?;
    Ok(Next::Now)
}
