//! A machine for the next attempt.

use std::time::Duration;

use super::{Next, Result, STAGES, World, image, journal::Journal};
use crate::{
    exit::{Exit, Failure},
    job::{
        event::EventKind,
        id::AttemptId,
        record::Attempt,
        spec::RetryCause,
        state::{Outcome, State},
    },
    provider::{Class, ProviderError},
    store::checkpoint,
};

/// Writes the intent down before anything is created: the attempt's number names the machine, so whoever continues after a crash finds
/// the same one.
pub(super) async fn begin_attempt(world: &World, job: &mut Journal) -> Result<()> {
    let first_step = checkpoint::latest(world.store.as_ref(), &job.record.id).await?.map_or(0, |manifest| manifest.step);
    let started = world.clock.now();
    job.record.attempt += 1;
    job.record.attempts.push(Attempt {
        attempt: job.record.attempt,
        started,
        ended: None,
        reason: None,
        first_step,
        last_step: first_step,
        lost_steps: 0,
        price_per_hour: job.record.plan.price_per_hour,
    });
    job.enter(State::Provisioning).await
}

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
    let now = world.clock.now();
    let earlier = job.record.attempts.iter().filter(|earlier| earlier.attempt < attempt.attempt);
    let earlier: Vec<_> = earlier.map(|earlier| (earlier.started, earlier.ended.unwrap_or(now))).collect();
    let Some(plan) = job.record.plan.left(&earlier, now) else {
        job.end(Outcome::Failed, Exit::Deadline, "its time to live is over").await?;
        return Ok(Next::Now);
    };
    match world.provider.provision(&attempt, &plan, &image).await {
        Ok(()) => {
            job.record.retry_at = None;
            for message in world.provider.refused() {
                world.report.line(&message);
                job.note(EventKind::Refused { class: "capacity".to_owned(), message, retry_at: None });
            }
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

/// A refusal that time may cure is written down with the next try; any other ends the job.
async fn refused(world: &World, job: &mut Journal, error: ProviderError) -> Result<Next> {
    let now = world.clock.now();
    let plan = &job.record.plan;
    let curable = match error.class {
        Class::Capacity | Class::Quota => plan.retry.on.contains(&RetryCause::Capacity),
        // The call may have happened: asking again finds out, because the name is the same.
        Class::Network => true,
        Class::Denied | Class::Conflict | Class::Invalid | Class::Internal => false,
    };
    let waited = Duration::try_from(now.duration_since(job.record.created)).unwrap_or_default();
    let retry_at = (curable && waited < plan.ttl.0).then(|| {
        let refusals = job.record.events.iter().rev().take_while(|event| matches!(event.kind, EventKind::Refused { .. })).count();
        let pause = error.retry_after.unwrap_or_else(|| plan.retry.pause(refusals as u32 + 1));
        now + pause
    });
    job.note(EventKind::Refused { class: error.class.label().to_owned(), message: error.message.clone(), retry_at });
    let Some(retry_at) = retry_at else {
        let failure = Failure::from(error);
        job.end(Outcome::Failed, failure.exit, failure.message).await?;
        return Ok(Next::Now);
    };
    world.report.warn(&format!("{} ({}); next try at {retry_at:.0}", error.message, error.class.label()));
    job.record.retry_at = Some(retry_at);
    job.save().await?;
    Ok(Next::Now)
}
