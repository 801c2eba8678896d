//! The books of an attempt. It has a number from when its machine is asked for, and a start when that exists. The time before is a
//! wait, which costs nothing and has a bound of its own.

use std::time::Duration;

use jiff::Timestamp;

use super::{Result, World, journal::Journal, observe};
use crate::{
    job::{
        clock::after,
        event::EventKind,
        id::AttemptId,
        record::{Attempt, Record, Waiting},
        state::State,
        units::Money,
        wording,
    },
    provider::{Resource, Sighting},
    store::checkpoint,
};

/// Writes the intent down before anything is created: the attempt's number names the machine, so that after a crash the same one is
/// found.
pub(super) async fn request(world: &World, job: &mut Journal, nodes: usize) -> Result<()> {
    let first_step = checkpoint::latest(world.store.as_ref(), &job.record.id).await?.map_or(0, |manifest| manifest.step);
    let record = &mut job.record;
    record.attempt += 1;
    let attempt = Attempt::new(record.attempt, first_step, record.plan.price_per_hour);
    record.attempts.push(Attempt { requested: Some(world.clock.now()), ..attempt });
    ask_for(world, job, nodes);
    job.enter(State::Provisioning).await
}

/// Has the current attempt, which has no machine yet, asked for with so many.
pub(super) fn ask_for(world: &World, job: &mut Journal, nodes: usize) {
    let Record { plan, attempts, attempt: number, .. } = &mut job.record;
    let (asked, number, has_several) = (plan.on(nodes), *number, plan.nodes > 1);
    if let Some(attempt) = attempts.last_mut() {
        (attempt.nodes, attempt.price_per_hour) = (has_several.then_some(asked.nodes), asked.price_per_hour);
    }
    if let Some((has, all)) = job.record.shrunk(number) {
        tell(world, job, &format!("is asked for with {has} of its {all} nodes (retry.shrink)"));
    }
}

/// Notes what a look at the current attempt shows: that it waits in a service's queue, or that it has a machine. Answers whether
/// that is news.
pub(super) async fn see(world: &World, job: &mut Journal, sighting: &Sighting) -> Result<bool> {
    let started = job.record.attempts.last().is_none_or(|attempt| attempt.started.is_some());
    match sighting {
        _ if started => return Ok(false),
        Sighting::Queued { since, why } => {
            if let Some(since) = paid(world, &job.record).await? {
                // The machine may have come after the look, whose words would say that there is none.
                let attempt = AttemptId::new(&job.record.id, job.record.attempt);
                let why = match world.provider.observe(&attempt).await? {
                    Sighting::Queued { why, .. } => format!(": {why}"),
                    _ => String::new(),
                };
                tell(world, job, &format!("has a machine, which is being prepared{why}"));
                start(job, since, world.clock.now());
                return Ok(true);
            }
            let waiting = Some(Waiting { since: *since, why: why.clone() });
            if job.record.waiting == waiting {
                return Ok(false);
            }
            let place = if job.record.plan.replaces_machines() { "for its instance group to make it" } else { "in a queue" };
            tell(world, job, &format!("waits {place}: {why}"));
            job.record.waiting = waiting;
        }
        Sighting::Alive { .. } | Sighting::Dead { .. } | Sighting::Unfit { .. } | Sighting::Cancelled { .. } | Sighting::Gone => {
            let Some(since) = since(world, &job.record, sighting).await? else { return Ok(false) };
            // The machines that a backend makes by itself share one kill switch, whose time began before the first of them.
            let left = if job.record.plan.replaces_machines() { observe::time_left(world, &job.record).await? } else { None };
            let now = world.clock.now();
            start(job, since, now);
            if let Some((attempt, left)) = job.record.attempts.last_mut().zip(left) {
                attempt.deadline = attempt.deadline.min(Some(after(now, left)));
            }
        }
    }
    Ok(true)
}

/// Notes, before the books are closed, a machine that is unknown because the answer to its request was lost, or that came since the
/// last look: it has cost its time. Best effort: a cloud that cannot be asked does not delay the end.
pub(super) async fn see_the_last(world: &World, job: &mut Journal) {
    let attempt = AttemptId::new(&job.record.id, job.record.attempt);
    if job.record.attempts.last().is_some_and(|attempt| attempt.started.is_none())
        && let Ok(seen) = world.provider.observe(&attempt).await
        && !matches!(seen, Sighting::Queued { .. })
        && let Ok(Some(since)) = last_known(world, &job.record).await
    {
        start(job, since, world.clock.now());
    }
}

/// Says something of the current attempt's machine, and writes it down.
fn tell(world: &World, job: &mut Journal, what: &str) {
    let message = format!("{} {what}", AttemptId::new(&job.record.id, job.record.attempt).machine_name());
    world.report.line(&message);
    job.note(EventKind::Note { message });
}

/// Since when the current attempt's machine exists. One that is gone again existed since it was asked for. One that left a queue,
/// or that a backend makes by itself, may never have existed: only what its agent left is proof.
async fn since(world: &World, record: &Record, sighting: &Sighting) -> Result<Option<Timestamp>> {
    if let Some(known) = last_known(world, record).await? {
        return Ok(Some(known));
    }
    let earliest = observe::earliest(record, world.clock.now());
    let by_itself = record.plan.replaces_machines();
    if record.waiting.is_none() && !by_itself {
        return Ok(Some(earliest));
    }
    let sign = observe::first_sign(world, record).await?;
    // What is gone without a sign of an agent may have had a machine that never came so far.
    let is_gone = by_itself && record.waiting.is_none() && !matches!(sighting, Sighting::Alive { .. });
    Ok(sign.or(is_gone.then_some(earliest)))
}

/// The same by the provider's word: of a machine that there is, or by its history.
async fn last_known(world: &World, record: &Record) -> Result<Option<Timestamp>> {
    // What a backend makes machines by is listed beside them, and costs nothing.
    let there = if record.plan.replaces_machines() { paid(world, record).await? } else { listed(world, record, |_| true).await? };
    match there {
        None => Ok(match world.provider.began(&AttemptId::new(&record.id, record.attempt)).await? {
            Some(since) => Some(observe::here(world, record, since).await),
            None => None,
        }),
        there => Ok(there),
    }
}

/// The same, of a machine that there is and that `fits`; `None` when the provider lists no such machine.
async fn listed(world: &World, record: &Record, fits: fn(&Resource) -> bool) -> Result<Option<Timestamp>> {
    let attempt = AttemptId::new(&record.id, record.attempt);
    let ours = |resource: &&Resource| resource.attempt == attempt && world.reaches(resource) && fits(resource);
    match world.provider.list().await?.iter().filter(ours).map(|resource| resource.since).min() {
        Some(since) => Ok(Some(observe::here(world, record, since).await)),
        None => Ok(None),
    }
}

/// The same, of a machine that is paid for, as one is that is prepared.
async fn paid(world: &World, record: &Record) -> Result<Option<Timestamp>> {
    listed(world, record, |resource| resource.price_per_hour > Money::ZERO).await
}

/// Whether the current attempt has a machine that is paid for.
pub(super) async fn is_paid(world: &World, record: &Record) -> Result<bool> {
    Ok(paid(world, record).await?.is_some())
}

/// Notes when a machine began that nobody saw, by what its agent left.
pub(super) async fn lived_unseen(world: &World, job: &mut Journal) -> Result<()> {
    if job.record.attempts.last().is_some_and(|attempt| attempt.started.is_none()) {
        let (now, sign) = (world.clock.now(), observe::first_sign(world, &job.record).await?);
        let since = sign.unwrap_or_else(|| observe::earliest(&job.record, now));
        start(job, since, now);
    }
    Ok(())
}

fn start(job: &mut Journal, since: Timestamp, now: Timestamp) {
    let record = &mut job.record;
    let lifetime = record.left(now).map_or(Duration::ZERO, |plan| plan.lifetime());
    record.waiting = None;
    if let Some(attempt) = record.attempts.last_mut() {
        (attempt.started, attempt.deadline) = (Some(since), Some(after(since, lifetime)));
    }
}

/// Writes down, before its machine is destroyed, why ftctl gives up an attempt that still has one. A service shows it as cancelled
/// from then on, which is otherwise somebody's wish to end the job.
pub(super) async fn give_up(job: &mut Journal, why: &str) -> Result<()> {
    if let Some(attempt) = job.record.attempts.last_mut() {
        attempt.reason = Some(why.to_owned());
    }
    job.save().await
}

/// Notes that the attempt's machine was `over` then, or is now, how far it came, and what that cost in steps.
pub(super) async fn finish(world: &World, job: &mut Journal, over: Option<Timestamp>, reason: &str) -> Result<()> {
    let resumes_from = checkpoint::latest(world.store.as_ref(), &job.record.id).await?.map_or(0, |manifest| manifest.step);
    // Two clocks: no attempt ends before it began.
    let (now, begun) = (world.clock.now(), job.record.attempts.last().and_then(|attempt| attempt.started));
    let over = over.map_or(now, |over| over.max(begun.unwrap_or(over)).min(now));
    close(world, job, over, resumes_from, reason).await
}

pub(super) async fn close(world: &World, job: &mut Journal, now: Timestamp, resumes_from: u64, reason: &str) -> Result<()> {
    let record = &mut job.record;
    let seen = observe::last_step(world.store.as_ref(), &record.id, record.attempt).await?;
    let Some(attempt) = record.attempts.last_mut().filter(|attempt| attempt.ended.is_none()) else { return Ok(()) };
    attempt.ended = Some(now);
    attempt.reason = Some(reason.to_owned());
    attempt.last_step = seen.unwrap_or(0).max(attempt.first_step).max(resumes_from);
    attempt.lost_steps = attempt.last_step - resumes_from;
    let (last_step, lost_steps) = (attempt.last_step, attempt.lost_steps);
    job.note(EventKind::AttemptEnded { reason: reason.to_owned(), last_step, resumes_from, lost_steps });
    Ok(())
}

/// How the user hears that an attempt ended and another follows.
pub(super) fn tell_of_the_next(world: &World, record: &Record, why: &str) {
    if let Some(ended) = record.attempts.last() {
        world.report.warn(&format!(
            "attempt {} ended: {why}; attempt {} resumes from step {}, {}",
            ended.attempt,
            ended.attempt + 1,
            ended.last_step - ended.lost_steps,
            wording::lost(ended.lost_steps)
        ));
    }
}

/// Cost of the job's machines until now. None lives longer than the job may: that is the cloud's own affair.
pub fn cost(record: &Record, now: Timestamp) -> Money {
    record.attempts.iter().map(|attempt| cost_of(record, attempt, now)).sum()
}

/// Cost of the machine of one of its attempts.
pub(super) fn cost_of(record: &Record, attempt: &Attempt, now: Timestamp) -> Money {
    attempt.price_per_hour.for_time(attempt.lived(now).min(record.plan_of(attempt).lifetime()))
}
