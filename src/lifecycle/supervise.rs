//! While the job runs: observe, decide, act.

use std::time::Duration;

use jiff::Timestamp;

use super::{
    Next, Result, World, attempt, by_itself, console,
    decide::{Decision, decide},
    journal::Journal,
    observe::{Observation, observe, read_cancel},
    vigil::{self, Vigil},
};
use crate::{
    exit::{Exit, Failure},
    job::{
        id::{AttemptId, JobId},
        record::Record,
        state::{Outcome, State},
    },
};

/// How often a running job is looked at.
const POLL: Duration = Duration::from_millis(500);
/// How often an attempt is looked at that waits in a service's queue.
const LOOK: Duration = Duration::from_secs(10);

pub(super) async fn step(world: &World, job: &mut Journal, vigil: &mut Vigil) -> Result<Next> {
    if by_itself::catch_up(world, job).await? {
        return Ok(Next::Now);
    }
    let Some(observation) = look(world, job, vigil).await? else { return Ok(Next::After(job.record.plan.retry.pause(1))) };
    let over = observation.over;
    let mut decision = decide(&job.record, observation);
    let given_up = match decision {
        Decision::Wait => vigil::keep(world, job, vigil).await?,
        Decision::WaitInQueue => vigil::queue(world, &job.record, vigil).await?,
        _ => None,
    };
    if let Some(Decision::TryAgain { why, .. }) = &given_up {
        attempt::give_up(job, why).await?;
    }
    decision = given_up.unwrap_or(decision);
    if job.only_ends {
        decision = decision.or_the_end();
    }
    if matches!(decision, Decision::TryAgain { .. } | Decision::End { .. }) {
        console::keep(world, &job.record).await?;
    }
    match decision {
        Decision::Wait => return Ok(Next::After(POLL)),
        Decision::WaitInQueue => return Ok(Next::After(LOOK)),
        Decision::Launch => job.enter(State::Submitting).await?,
        Decision::Collect => {
            settle(world, job).await;
            attempt::finish(world, job, over, "succeeded").await?;
            job.enter(State::Collecting).await?;
        }
        Decision::TryAgain { why, nodes } => next_attempt(world, job, over, &why, nodes).await?,
        Decision::End { outcome, exit, reason } => {
            attempt::finish(world, job, over, &reason).await?;
            job.end(outcome, exit, reason).await?;
        }
    }
    Ok(Next::Now)
}

/// Observes, and notes what is news of the attempt's machine. Out of sight is not dead: `None` until the provider answers again.
async fn look(world: &World, job: &mut Journal, vigil: &mut Vigil) -> Result<Option<Observation>> {
    let id = job.record.id.clone();
    let looked = async {
        let observation = observe(world, &job.record, &mut job.waits).await?;
        if attempt::see(world, job, &observation.sighting).await? {
            job.save().await?;
        }
        Ok::<_, Failure>(observation)
    };
    match looked.await {
        Err(failure) if failure.exit == Exit::Network => {
            if !std::mem::replace(&mut vigil.out_of_sight, true) {
                world.report.warn(&format!("cannot reach the machine of {id}: {}; ftctl keeps trying", failure.message));
                if job.record.simulated {
                    world.report.line(&gone(&id));
                }
            }
            Ok(None)
        }
        Err(failure) => Err(failure),
        Ok(observation) => {
            if std::mem::take(&mut vigil.out_of_sight) {
                world.report.line(&format!("{id} answers again"));
            }
            Ok(Some(observation))
        }
    }
}

/// The way out where nothing can answer any more.
pub(super) fn gone(id: &JobId) -> String {
    format!("Where its simulated cloud has ended: `ftctl down {id} --cloud-is-gone`")
}

/// Before the machine of a job that has succeeded is taken away, its service may finish; a user who wants an end has it at once.
/// The work is in the store, so no failure matters. The machine's time is the attempt's, and has the attempt's limits.
async fn settle(world: &World, job: &Journal) {
    let Some(service) = world.provider.service().filter(|_| !job.only_ends) else { return };
    let attempt = AttemptId::new(&job.record.id, job.record.attempt);
    tokio::select! {
        biased;
        settled = service.settle(&attempt) => {
            if let Err(error) = settled {
                world.report.warn(&format!("the backend was not waited for: {}", error.message));
            }
        }
        () = wish_to_end(world, &job.record) => {}
    }
}

/// Returns when somebody wants the job's end.
async fn wish_to_end(world: &World, record: &Record) {
    loop {
        world.clock.sleep(POLL).await;
        if read_cancel(world.store.as_ref(), record).await.is_ok_and(|wish| wish.is_some()) {
            return;
        }
    }
}

/// Closes the books of the dead attempt and opens the next. The rest of the old machine is destroyed first (which also sends the
/// last bytes of its log), so two attempts of a job never live side by side.
async fn next_attempt(world: &World, job: &mut Journal, over: Option<Timestamp>, why: &str, nodes: usize) -> Result<()> {
    match world.provider.service() {
        Some(service) => service.clear(&job.record.id).await?,
        None => world.provider.destroy(&job.record.id).await?,
    }
    // Since the last look, which may be long ago where this machine slept, a queue may have given it a machine.
    attempt::see_the_last(world, job).await;
    attempt::finish(world, job, over, why).await?;
    attempt::tell_of_the_next(world, &job.record, why);
    job.record.retry_at = Some(world.clock.now() + job.record.plan.retry.pause(fruitless_attempts(&job.record)));
    attempt::request(world, job, nodes).await
}

/// How many attempts in a row ended without a new checkpoint: the back-off grows with these only, so that a job which is preempted
/// every hour but gets on is not made to wait.
fn fruitless_attempts(record: &Record) -> u32 {
    let fruitless = record.attempts.iter().rev().take_while(|attempt| attempt.last_step - attempt.lost_steps <= attempt.first_step);
    fruitless.count().max(1) as u32
}

/// Fulfils a wish to cancel before there is an agent that could hear it. An invocation that only ends jobs begins nothing. Answers
/// whether the state changed.
pub(super) async fn ended_before_launch(world: &World, job: &mut Journal) -> Result<bool> {
    let early =
        matches!(job.record.state, State::Planned | State::Uploading | State::Imaging | State::Provisioning | State::Submitting);
    if !early || !(job.only_ends || read_cancel(world.store.as_ref(), &job.record).await?.is_some()) {
        return Ok(false);
    }
    job.end(Outcome::Cancelled, Exit::JobCancelled, "cancelled before it ran").await?;
    Ok(true)
}
