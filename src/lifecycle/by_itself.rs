//! Attempts that the backend began by itself, without ftctl (`Plan::replaces_machines`), are written down before anything else is
//! decided.

use super::{Result, World, attempt, journal::Journal, observe};
use crate::{job::record::Attempt, store::checkpoint};

/// Answers whether there were any. An attempt ends with its exit record, which its successor writes where it had no time to, and
/// the next begins then.
pub(super) async fn catch_up(world: &World, job: &mut Journal) -> Result<bool> {
    let store = world.store.as_ref();
    let latest = observe::latest_attempt(store, &job.record).await?;
    if latest == job.record.attempt {
        return Ok(false);
    }
    while job.record.attempt < latest {
        let exit = observe::read_exit(store, &job.record).await?;
        attempt::lived_unseen(world, job).await?;
        let (finished, why) =
            exit.map_or_else(|| (world.clock.now(), "its machine is gone".to_owned()), |exit| (exit.finished, exit.message));
        let (id, number) = (job.record.id.clone(), job.record.attempt + 1);
        let resumes_from = match observe::beginning(store, &id, number).await? {
            Some(beginning) => beginning.step,
            None => checkpoint::latest(store, &id).await?.map_or(0, |manifest| manifest.step),
        };
        // Two clocks: no attempt ends before it began.
        let before = job.record.attempts.last();
        let started = before.and_then(|attempt| attempt.started).map_or(finished, |begun| finished.max(begun));
        // They share one order, and the time that its template names.
        let deadline = before.and_then(|attempt| attempt.deadline);
        attempt::close(world, job, started, resumes_from, &why).await?;
        attempt::tell_of_the_next(world, &job.record, &why);
        job.record.attempt = number;
        let attempt = Attempt::new(number, resumes_from, job.record.plan.price_per_hour);
        job.record.attempts.push(Attempt { requested: Some(started), started: Some(started), deadline, ..attempt });
    }
    job.save().await?;
    Ok(true)
}
