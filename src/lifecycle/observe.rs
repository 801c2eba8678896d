//! The observation of a job's attempts: at the provider, and in the store, where their agents write. It changes nothing.

use std::{collections::BTreeSet, time::Duration};

use ft_trainer::progress::{Event, Line};
use jiff::Timestamp;

use super::{Result, World};
use crate::{
    job::{
        clock::{after, between},
        event::EventKind,
        id::{AttemptId, JobId, path},
        order::{CancelRequest, ExitRecord, Heartbeat},
        record::Record,
        state::State,
    },
    provider::{Resource, Sighting},
    store::{Store, find_json},
};

/// How long after its grace a cancelled job may still be writing its last checkpoint before its machine is destroyed.
const PATIENCE: Duration = Duration::from_secs(15);

/// The known facts of the current attempt.
#[derive(Debug)]
pub(super) struct Observation {
    /// The agent's record of its end.
    pub exit: Option<ExitRecord>,
    pub sighting: Sighting,
    /// When the machine came to its end; `None` while it is not known to have.
    pub over: Option<Timestamp>,
    /// The user's wish to end the job, and whether its time is over.
    pub cancel: Option<Overdue>,
    /// The deadline has passed and the agent, which stops at it by itself, has not.
    pub past_deadline: bool,
    /// The job has waited for its machines for as long as it may.
    pub out_of_patience: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Overdue(pub bool);

/// The moments that one invocation waits for.
#[derive(Debug, Default)]
pub(super) struct Waits {
    cancel: Due<CancelRequest>,
    deadline: Due<Timestamp>,
}

impl Waits {
    /// Whether a machine that lives has outlived its agent's patience: by the clock, which may have been set, and by steady time
    /// since the deadline was first seen.
    fn has_passed(&mut self, deadline: Timestamp, now: Timestamp, steady: Duration) -> bool {
        let left = between(now, deadline).saturating_add(PATIENCE);
        self.deadline.has_come(deadline, left, steady) && now > after(deadline, PATIENCE)
    }
}

/// A moment that comes by steady time, from when it was first seen: neither another machine's clock nor a setting of this one's
/// brings it nearer.
#[derive(Debug)]
struct Due<T>(Option<(T, Duration)>);

impl<T> Default for Due<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T: PartialEq> Due<T> {
    /// Whether the moment of `what` has come. It was `left` off if this is its first sight.
    fn has_come(&mut self, what: T, left: Duration, steady: Duration) -> bool {
        let known = self.0.take().filter(|(known, _)| *known == what);
        let (_, due) = self.0.insert(known.unwrap_or((what, steady.saturating_add(left))));
        steady >= *due
    }
}

pub(super) async fn observe(world: &World, record: &Record, waits: &mut Waits) -> Result<Observation> {
    let attempt = AttemptId::new(&record.id, record.attempt);
    let now = world.clock.now();
    // An agent leaves its exit record before it dies: a death without one is real only if the record is missing *after* the death
    // was seen. A record is judged with what was seen after it: why a service sent the agent away shows before the agent is gone.
    let mut exit = read_exit(world.store.as_ref(), record).await?;
    let mut sighting = world.provider.observe(&attempt).await?;
    if exit.is_none() && !matches!(sighting, Sighting::Alive { .. }) {
        exit = read_exit(world.store.as_ref(), record).await?;
    }
    let mut is_late = false;
    if record.plan.replaces_machines() && matches!(sighting, Sighting::Queued { .. }) {
        let started = record.attempts.last().and_then(|attempt| attempt.started);
        if started.is_some() || first_sign(world, record).await?.is_some() {
            // Between two of its machines such a job is no less alive.
            sighting = Sighting::Alive { agent: true };
        } else {
            is_late = time_left(world, record).await?.is_some_and(|left| left.is_zero());
        }
    }
    let was_cancelled = matches!(sighting, Sighting::Cancelled { .. });
    if was_cancelled && let Some(why) = ended_by_ftctl(world, record).await? {
        sighting = Sighting::Dead { why };
    }
    let cancel = read_cancel(world.store.as_ref(), record).await?.map(|request| {
        let left = Duration::from_secs(request.grace_seconds) + PATIENCE;
        Overdue(waits.cancel.has_come(request, left, world.clock.steady()))
    });
    let deadline = record.attempts.last().and_then(|attempt| attempt.deadline);
    let over = over(world, record, exit.as_ref(), &sighting).await?;
    let past_deadline = is_late
        || match (deadline, &sighting) {
            (None, _) => false,
            (Some(deadline), Sighting::Alive { .. } | Sighting::Queued { .. }) => outlives(world, deadline, waits).await,
            // A service may cancel it at the limit of its time, and then no agent is waited for.
            (Some(deadline), _) if was_cancelled => now > deadline,
            (Some(deadline), _) => over.unwrap_or(now) > after(deadline, PATIENCE),
        };
    let out_of_patience = record.waited(now) >= record.plan.patience();
    Ok(Observation { exit, sighting, over, cancel, past_deadline, out_of_patience })
}

/// Whether a machine that lives has outlived its agent's patience. The backend's own clock has to agree where it is known: a driver
/// that begins with a wrong clock ends nobody's work.
async fn outlives(world: &World, deadline: Timestamp, waits: &mut Waits) -> bool {
    waits.has_passed(deadline, world.clock.now(), world.clock.steady())
        && world.provider.now().await.is_none_or(|there| there > after(deadline, PATIENCE))
}

/// When the attempt's machine came to its end, which may have been long ago, while nobody looked. A machine that is paid for is not
/// believed about its end: without the cloud's word it lives until its attempt is closed.
async fn over(world: &World, record: &Record, exit: Option<&ExitRecord>, sighting: &Sighting) -> Result<Option<Timestamp>> {
    if matches!(sighting, Sighting::Alive { .. } | Sighting::Queued { .. }) {
        return Ok(None);
    }
    let attempt = AttemptId::new(&record.id, record.attempt);
    if let Some(ended) = world.provider.ended(&attempt).await? {
        return Ok(Some(here(world, record, ended).await));
    }
    if world.provider.capabilities().bills {
        return Ok(None);
    }
    let heard = heartbeat(world.store.as_ref(), record).await?.map(|beat| beat.time);
    Ok(exit.map(|exit| exit.finished).or(heard))
}

async fn heartbeat(store: &dyn Store, record: &Record) -> Result<Option<Heartbeat>> {
    Ok(find_json(store, &path::heartbeat(&record.id, record.attempt)).await?.map(|(beat, _)| beat))
}

/// When an agent of the attempt began, by what it left in the store: the earliest of that, because a successor may have signed for
/// one that had no time to. Its machine's clock is another: it is between the attempt's request and now.
pub(super) async fn first_sign(world: &World, record: &Record) -> Result<Option<Timestamp>> {
    sign(world.store.as_ref(), record, world.clock.now()).await
}

async fn sign(store: &dyn Store, record: &Record, now: Timestamp) -> Result<Option<Timestamp>> {
    let exit = read_exit(store, record).await?.map(|exit| exit.started);
    let beat = heartbeat(store, record).await?.map(|beat| beat.started.unwrap_or(beat.time));
    Ok(exit.into_iter().chain(beat).min().map(|sign| sign.max(earliest(record, now)).min(now)))
}

/// The record as a user is shown it. A service's queue gives a job its machines while nobody follows it, and then only the signs of
/// its agent tell.
pub async fn as_it_stands(store: &dyn Store, mut record: Record, now: Timestamp) -> Result<Record> {
    let waits = !record.state.is_finished() && record.waiting.is_some();
    if waits && record.attempts.last().is_some_and(|attempt| attempt.started.is_none()) {
        let since = sign(store, &record, now).await?;
        if let (Some(_), Some(attempt)) = (since, record.attempts.last_mut()) {
            (attempt.started, record.waiting) = (since, None);
        }
    }
    Ok(record)
}

/// How long it is until the backend ends, by itself, the job's machines and what makes them.
pub(super) async fn time_left(world: &World, record: &Record) -> Result<Option<Duration>> {
    let ours = |resource: &Resource| resource.attempt.job == record.id && world.reaches(resource);
    let expires = world.provider.list().await?.into_iter().filter(ours).filter_map(|resource| resource.expires).min();
    let Some(expires) = expires else { return Ok(None) };
    let now = world.provider.now().await.unwrap_or_else(|| world.clock.now());
    Ok(Some(between(now, expires)))
}

/// A time of the provider's clock on this side's: not before the attempt can have had a machine.
pub(super) async fn here(world: &World, record: &Record, since: Timestamp) -> Timestamp {
    let now = world.clock.now();
    let age = between(since, world.provider.now().await.unwrap_or(now));
    now.checked_sub(age).unwrap_or(Timestamp::MIN).max(earliest(record, now))
}

/// The current attempt had no machine before: when it was asked for first, or refused last for sure.
pub(super) fn earliest(record: &Record, now: Timestamp) -> Timestamp {
    let events = record.events.iter().rev().take_while(|event| event.attempt == record.attempt);
    let refused = events.filter_map(|event| match &event.kind {
        EventKind::Refused { class, retry_at: Some(_), .. } if class != "network" => Some(event.time),
        _ => None,
    });
    let requested = record.attempts.last().and_then(|attempt| attempt.requested);
    refused.chain(requested).max().unwrap_or(now).min(now)
}

/// Why ftctl itself took the attempt's machine away, if it did: another attempt follows.
async fn ended_by_ftctl(world: &World, record: &Record) -> Result<Option<String>> {
    if let Some(why) = record.attempts.last().and_then(|attempt| attempt.reason.clone()) {
        return Ok(Some(why));
    }
    let mark = world.store.head(&path::drill(&record.id, record.attempt)).await?;
    Ok(mark.map(|_| "preempted in a drill".to_owned()))
}

pub(super) async fn read_exit(store: &dyn Store, record: &Record) -> Result<Option<ExitRecord>> {
    Ok(find_json(store, &path::exit(&record.id, record.attempt)).await?.map(|(exit, _)| exit))
}

pub(super) async fn read_cancel(store: &dyn Store, record: &Record) -> Result<Option<CancelRequest>> {
    Ok(find_json(store, &path::cancel(&record.id)).await?.map(|(request, _)| request))
}

/// The attempt that runs. Where the backend begins attempts by itself, no supervisor may have written it down yet.
pub(super) async fn latest_attempt(store: &dyn Store, record: &Record) -> Result<u32> {
    if record.last_attempt() == record.attempt || record.state != State::Running {
        return Ok(record.attempt);
    }
    let begun = begun(store, &record.id).await?;
    let following = (record.attempt + 1..=record.last_attempt()).take_while(|attempt| begun.contains(attempt));
    Ok(following.last().unwrap_or(record.attempt))
}

/// The attempts that left something in the store.
pub(super) async fn begun(store: &dyn Store, id: &JobId) -> Result<BTreeSet<u32>> {
    let names = store.children(&path::attempts(id)).await?;
    Ok(names.iter().filter_map(|name| name.parse().ok()).collect())
}

/// The step that an attempt reported last.
pub async fn last_step(store: &dyn Store, id: &JobId, attempt: u32) -> Result<Option<u64>> {
    let lines = latest_progress(store, id, attempt).await?;
    Ok(lines
        .iter()
        .filter_map(|line| match line.event {
            Event::Start { step, .. }
            | Event::Step { step, .. }
            | Event::Skipped { step, .. }
            | Event::Eval { step, .. }
            | Event::Checkpoint { step, .. } => Some(step),
            _ => None,
        })
        .max())
}

/// How an attempt's training began.
#[derive(Debug, Clone, Copy)]
pub(super) struct Beginning {
    pub step: u64,
    pub flops_per_token: f64,
}

/// `None` before it did.
pub(super) async fn beginning(store: &dyn Store, id: &JobId, attempt: u32) -> Result<Option<Beginning>> {
    const WINDOW: u64 = 4 * 1024;
    let path = path::progress(id, attempt);
    let Some(meta) = store.head(&path).await? else { return Ok(None) };
    let bytes = store.get_range(&path, 0..meta.size.min(WINDOW)).await?;
    let text = String::from_utf8_lossy(&bytes);
    let mut lines = text.lines().filter_map(|line| serde_json::from_str::<Line>(line).ok());
    Ok(lines.find_map(|line| match line.event {
        Event::Start { step, flops_per_token, .. } => Some(Beginning { step, flops_per_token }),
        _ => None,
    }))
}

/// The newest progress lines of an attempt: the end of the file, without the line that the cut went through.
pub async fn latest_progress(store: &dyn Store, id: &JobId, attempt: u32) -> Result<Vec<Line>> {
    const WINDOW: u64 = 16 * 1024;
    let path = path::progress(id, attempt);
    let Some(meta) = store.head(&path).await? else { return Ok(Vec::new()) };
    let start = meta.size.saturating_sub(WINDOW);
    let bytes = store.get_range(&path, start..meta.size).await?;
    let text = String::from_utf8_lossy(&bytes);
    let whole_lines = text.lines().skip(usize::from(start > 0));
    Ok(whole_lines.filter_map(|line| serde_json::from_str(line).ok()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wish_is_overdue_by_the_time_since_it_was_seen() {
        let wish = |time, grace_seconds| CancelRequest { schema: String::new(), time, grace_seconds };
        let mut due = Due::default();
        let mut overdue = |wish: &CancelRequest, at| {
            let left = Duration::from_secs(wish.grace_seconds) + PATIENCE;
            due.has_come(wish.clone(), left, Duration::from_secs(at))
        };
        // By whatever clock it was written.
        for time in [Timestamp::MIN, Timestamp::UNIX_EPOCH, Timestamp::MAX] {
            let wish = wish(time, 30);
            assert_eq!([100, 144, 145].map(|at| overdue(&wish, at)), [false, false, true], "{time}");
        }
        // Another wish has its own grace.
        let sooner = wish(Timestamp::UNIX_EPOCH, 0);
        assert_eq!([145, 159, 160].map(|at| overdue(&sooner, at)), [false, false, true]);
    }

    #[test]
    fn a_clock_that_is_set_ends_no_machine() {
        let (start, hour) = (Timestamp::UNIX_EPOCH, Duration::from_secs(3600));
        let deadline = start + 2 * hour;
        let outlived = |looks: &[(Duration, Duration)]| {
            let mut waits = Waits::default();
            looks.iter().map(|&(clock, steady)| waits.has_passed(deadline, start + clock, steady)).last()
        };
        let zero = Duration::ZERO;
        assert_eq!(outlived(&[(zero, zero), (2 * hour, 2 * hour)]), Some(false), "its agent stops by itself");
        assert_eq!(outlived(&[(zero, zero), (2 * hour + 2 * PATIENCE, 2 * hour + 2 * PATIENCE)]), Some(true));
        assert_eq!(outlived(&[(zero, zero), (3 * hour, PATIENCE)]), Some(false), "the clock went ahead");
        assert_eq!(outlived(&[(zero, zero), (hour, 3 * hour)]), Some(false), "the clock went back");
        // A driver that comes later.
        assert_eq!(outlived(&[(3 * hour, zero)]), Some(false));
        assert_eq!(outlived(&[(3 * hour, zero), (3 * hour + PATIENCE, PATIENCE)]), Some(true));
    }
}
