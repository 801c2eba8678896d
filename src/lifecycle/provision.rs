//! A machine for the next attempt.

use std::time::Duration;

use jiff::Timestamp;

use super::{Next, Result, STAGES, World, attempt, decide, image, journal::Journal, shrink};
use crate::{
    exit::{Exit, Failure},
    job::{
        clock::{after, between},
        event::EventKind,
        id::AttemptId,
        record::{Record, Waiting},
        state::{Outcome, State},
    },
    provider::{Class, ProviderError},
};

pub(super) async fn step(world: &World, job: &mut Journal) -> Result<Next> {
    if let Some(wait) = remaining_wait(&job.record, world.clock.now()) {
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

/// How long the job still has to wait before the provider is asked again. Where the clock has been set back since that was written
/// down, it is not known, and the provider is asked: it says when it is too early.
fn remaining_wait(record: &Record, now: Timestamp) -> Option<Duration> {
    let until = record.retry_at.filter(|_| now >= record.updated)?;
    Some(between(now, until)).filter(|wait| !wait.is_zero())
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::provider::conformance;

    #[test]
    fn a_wait_ends_with_its_time_or_with_the_clock_that_it_was_written_by() {
        let (noon, pause) = (Timestamp::UNIX_EPOCH, Duration::from_secs(60));
        let mut record = Record::new(conformance::attempt("waits").job, conformance::plan(), noon);
        assert_eq!(remaining_wait(&record, noon), None, "there is no wait");
        record.retry_at = Some(noon + pause);
        assert_eq!(remaining_wait(&record, noon), Some(pause));
        assert_eq!(remaining_wait(&record, noon + pause / 2), Some(pause / 2));
        assert_eq!(remaining_wait(&record, noon + pause), None);
        assert_eq!(remaining_wait(&record, noon - 23 * 60 * pause), None, "the clock was a day ahead");
    }
}
