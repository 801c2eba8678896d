//! Attempts that the backend began by itself, with nobody there (`Plan::mends_itself`), are written down before anything else is decided.

use super::{
    Result, World,
    journal::Journal,
    status,
    supervise::{close_attempt, read_exit, tell_of_the_next},
};
use crate::{job::record::Attempt, store::checkpoint};

/// Answers whether there were any. An attempt ends with its exit record, which its successor writes where it had no time to, and the next
/// begins then.
pub(super) async fn catch_up(world: &World, job: &mut Journal) -> Result<bool> {
    let store = world.store.as_ref();
    let latest = status::latest_attempt(store, &job.record).await?;
    if latest == job.record.attempt {
        return Ok(false);
    }
    while job.record.attempt < latest {
        let exit = read_exit(store, &job.record).await?;
        let (finished, why) =
            exit.map_or_else(|| (world.clock.now(), "its machine is gone".to_owned()), |exit| (exit.finished, exit.message));
        let (id, number) = (job.record.id.clone(), job.record.attempt + 1);
        let resumes_from = match status::first_step(store, &id, number).await? {
            Some(step) => step,
            None => checkpoint::latest(store, &id).await?.map_or(0, |manifest| manifest.step),
        };
        // Two clocks: no attempt ends before it began.
        let started = job.record.attempts.last().map_or(finished, |attempt| finished.max(attempt.started));
        close_attempt(world, job, started, resumes_from, &why).await?;
        tell_of_the_next(world, &job.record, &why);
        job.record.attempt = number;
        job.record.attempts.push(Attempt {
            attempt: number,
            started,
            ended: None,
            reason: None,
            first_step: resumes_from,
            last_step: resumes_from,
            lost_steps: 0,
            price_per_hour: job.record.plan.price_per_hour,
        });
    }
    job.save().await?;
    Ok(true)
}
