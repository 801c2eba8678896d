//! While the job runs: observe, decide, act. The decision is a pure function of what was observed.

use std::time::Duration;

use super::{Next, Result, World, attempt, by_itself, console, journal::Journal, vigil};
use crate::{
    exit::Exit,
    job::{
        clock::after,
        id::{AttemptId, path},
        order::{CancelRequest, ExitReason, ExitRecord},
        plan::RetryPlan,
        record::Record,
        spec::RetryCause,
        state::{Outcome, State},
    },
    provider::Sighting,
    store::{Store, find_json},
};

/// How often a running job is looked at.
const POLL: Duration = Duration::from_millis(500);

/// How often an attempt is looked at that waits in a service's queue.
const LOOK: Duration = Duration::from_secs(10);

/// How long after its grace a cancelled job may still be writing its last checkpoint before its machine is destroyed.
const PATIENCE: Duration = Duration::from_secs(15);

/// What is known of the current attempt.
struct Observation {
    /// What the agent wrote when it ended.
    exit: Option<ExitRecord>,
    sighting: Sighting,
    /// The user's wish to end the job, and whether its time is over.
    cancel: Option<Overdue>,
    /// The deadline has passed and the agent, which stops at it by itself, has not.
    past_deadline: bool,
    /// The job has waited for its machines for as long as it may.
    out_of_patience: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Overdue(bool);

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Decision {
    Wait,
    /// It waits in a service's queue.
    WaitInQueue,
    /// The machine is there, its agent was never started: a crash fell between the two.
    Launch,
    Collect,
    /// This attempt is over; the job is not.
    TryAgain {
        why: String,
    },
    End {
        outcome: Outcome,
        exit: Exit,
        reason: String,
    },
}

impl Decision {
    /// The same for somebody else's job: what would begin something is its end.
    fn or_the_end(self) -> Self {
        match self {
            Decision::Launch | Decision::TryAgain { .. } | Decision::WaitInQueue => cancelled("cancelled"),
            decided => decided,
        }
    }
}

pub(super) async fn step(world: &World, job: &mut Journal) -> Result<Next> {
    if by_itself::catch_up(world, job).await? {
        return Ok(Next::Now);
    }
    let observation = match observe(world, &job.record).await {
        Ok(observation) => observation,
        // Out of sight is not dead: nothing is decided until the provider answers again.
        Err(failure) if failure.exit == Exit::Network => {
            if !std::mem::replace(&mut job.out_of_sight, true) {
                world
                    .report
                    .warn(&format!("cannot see {}: {}; looking again until it can be seen", job.record.id, failure.message));
            }
            return Ok(Next::After(job.record.plan.retry.pause(1)));
        }
        Err(failure) => return Err(failure),
    };
    if std::mem::take(&mut job.out_of_sight) {
        world.report.line(&format!("{} can be seen again", job.record.id));
    }
    if attempt::see(world, job, &observation.sighting).await? {
        job.save().await?;
    }
    let mut decision = decide(&job.record, observation);
    if decision == Decision::Wait
        && let Some(given_up) = vigil::keep(world, job).await?
    {
        decision = given_up;
    }
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
            attempt::finish(world, job, "succeeded").await?;
            job.enter(State::Collecting).await?;
        }
        Decision::TryAgain { why } => next_attempt(world, job, &why).await?,
        Decision::End { outcome, exit, reason } => {
            attempt::finish(world, job, &reason).await?;
            job.end(outcome, exit, reason).await?;
        }
    }
    Ok(Next::Now)
}

async fn observe(world: &World, record: &Record) -> Result<Observation> {
    let attempt = AttemptId::new(&record.id, record.attempt);
    let now = world.clock.now();
    // In this order: an agent that ends between the two looks leaves its exit record before it dies, so a death without one is real
    // only if the record is missing *after* the death was seen.
    let sighting = world.provider.observe(&attempt).await?;
    let exit = read_exit(world.store.as_ref(), record).await?;
    let cancel = read_cancel(world.store.as_ref(), record)
        .await?
        .map(|request| Overdue(now > after(request.time, Duration::from_secs(request.grace_seconds) + PATIENCE)));
    let deadline = record.attempts.last().and_then(|attempt| attempt.deadline);
    let past_deadline = deadline.is_some_and(|deadline| now > after(deadline, PATIENCE));
    let out_of_patience = record.waited(now) >= record.plan.patience();
    Ok(Observation { exit, sighting, cancel, past_deadline, out_of_patience })
}

fn decide(record: &Record, seen: Observation) -> Decision {
    if let Some(exit) = &seen.exit
        && !is_mending(record, exit, &seen.sighting)
    {
        return decide_exit(record, exit, seen.cancel.is_some());
    }
    if seen.cancel == Some(Overdue(true)) {
        return cancelled("cancelled; it did not stop by itself in time");
    }
    if seen.past_deadline {
        return Decision::End { outcome: Outcome::Failed, exit: Exit::Deadline, reason: "its time to live is over".to_owned() };
    }
    match seen.sighting {
        Sighting::Queued { .. } if seen.cancel.is_some() => cancelled("cancelled"),
        Sighting::Queued { why, .. } if seen.out_of_patience => {
            Decision::End { outcome: Outcome::Failed, exit: Exit::Capacity, reason: attempt::gave_up(record, &why) }
        }
        Sighting::Queued { .. } => Decision::WaitInQueue,
        Sighting::Alive { agent: true } => Decision::Wait,
        Sighting::Alive { agent: false } => Decision::Launch,
        Sighting::Dead { .. } | Sighting::Unfit { .. } | Sighting::Gone if seen.cancel.is_some() => cancelled("cancelled"),
        Sighting::Dead { why } => preempted(record, why),
        Sighting::Unfit { why } => Decision::End { outcome: Outcome::Failed, exit: Exit::JobFailed, reason: why },
        Sighting::Gone => preempted(record, "the machine is gone".to_owned()),
    }
}

/// Whether the backend makes the next machine, whose agent begins the next attempt.
fn is_mending(record: &Record, exit: &ExitRecord, sighting: &Sighting) -> bool {
    record.plan.mends_itself()
        && exit.reason.is_followed()
        && may_retry(&record.plan.retry, RetryCause::Preempt, record.attempt)
        && matches!(sighting, Sighting::Alive { .. })
}

fn decide_exit(record: &Record, exit: &ExitRecord, cancel: bool) -> Decision {
    match exit.reason {
        ExitReason::Succeeded => Decision::Collect,
        ExitReason::Cancelled => cancelled("cancelled"),
        _ if cancel => cancelled("cancelled"),
        ExitReason::Deadline => {
            Decision::End { outcome: Outcome::Failed, exit: Exit::Deadline, reason: "its time to live is over".to_owned() }
        }
        ExitReason::Preempted | ExitReason::LostLease => preempted(record, exit.message.clone()),
        ExitReason::Failed if may_retry(&record.plan.retry, RetryCause::Failure, record.attempt) => {
            Decision::TryAgain { why: exit.message.clone() }
        }
        ExitReason::Failed => Decision::End { outcome: Outcome::Failed, exit: Exit::JobFailed, reason: exit.message.clone() },
    }
}

fn cancelled(reason: &str) -> Decision {
    Decision::End { outcome: Outcome::Cancelled, exit: Exit::JobCancelled, reason: reason.to_owned() }
}

pub(super) fn preempted(record: &Record, why: String) -> Decision {
    if may_retry(&record.plan.retry, RetryCause::Preempt, record.attempt) {
        return Decision::TryAgain { why };
    }
    let reason = format!("preempted in attempt {} of {}: {why}", record.attempt, record.plan.retry.attempts);
    Decision::End { outcome: Outcome::Failed, exit: Exit::Preempted, reason }
}

fn may_retry(retry: &RetryPlan, cause: RetryCause, attempt: u32) -> bool {
    retry.on.contains(&cause) && attempt < retry.attempts
}

/// Closes the books of the dead attempt and opens the next. What is left of the old machine is destroyed first (which also sends the
/// last bytes of its log), so two attempts of a job never live side by side.
async fn next_attempt(world: &World, job: &mut Journal, why: &str) -> Result<()> {
    world.provider.destroy(&job.record.id).await?;
    attempt::finish(world, job, why).await?;
    attempt::tell_of_the_next(world, &job.record, why);
    job.record.retry_at = Some(world.clock.now() + job.record.plan.retry.pause(fruitless_attempts(&job.record)));
    attempt::request(world, job).await
}

/// How many attempts in a row ended without a new checkpoint: the back-off grows with these only, so that a job which is preempted
/// every hour but gets on is not made to wait.
fn fruitless_attempts(record: &Record) -> u32 {
    let fruitless = record.attempts.iter().rev().take_while(|attempt| attempt.last_step - attempt.lost_steps <= attempt.first_step);
    fruitless.count().max(1) as u32
}

/// Before there is an agent that could hear it, a wish to cancel is the supervisor's to fulfil, and whoever only ends jobs begins nothing. Answers
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

pub(super) async fn read_exit(store: &dyn Store, record: &Record) -> Result<Option<ExitRecord>> {
    Ok(find_json(store, &path::exit(&record.id, record.attempt)).await?.map(|(exit, _)| exit))
}

pub(super) async fn read_cancel(store: &dyn Store, record: &Record) -> Result<Option<CancelRequest>> {
    Ok(find_json(store, &path::cancel(&record.id)).await?.map(|(request, _)| request))
}
