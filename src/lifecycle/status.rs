//! Where jobs stand: what a table row or a JSON value says. Reads only.

use std::{collections::BTreeSet, time::Duration};

use ft_trainer::progress::{Event, Line};
use jiff::Timestamp;
use serde::Serialize;

use super::{Result, World, journal, supervise};
use crate::{
    exit::Exit,
    job::{
        id::{AttemptId, JobId, path},
        record::{Attempt, Record},
        state::State,
        units::Money,
    },
    provider::Sighting,
    store::Store,
};

pub const STATUS_SCHEMA: &str = "ftctl.status/1";

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct JobStatus {
    pub schema: &'static str,
    pub id: JobId,
    pub backend: String,
    pub state: String,
    pub attempt: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steps: Option<u64>,
    /// Mean cross-entropy in nats.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss: Option<f64>,
    /// On the validation split.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub perplexity: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens_per_second: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eta_seconds: Option<f64>,
    /// So far.
    pub cost: Money,
    pub created: Timestamp,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// One job, with its latest progress.
pub async fn one(store: &dyn Store, id: &JobId, now: &mut dyn FnMut(&str) -> Timestamp) -> Result<JobStatus> {
    let (record, _) = journal::read(store, id).await?;
    describe(store, &record, now(record.plan.backend())).await
}

/// Every job of the store, newest first; finished ones only when asked for or younger than a day. A job that cannot be read, or only
/// with other rights, is named in the second list instead of hiding the others. `now` is the time of a backend: a rehearsed job lives by a clock of its own.
pub async fn all(
    store: &dyn Store,
    now: &mut dyn FnMut(&str) -> Timestamp,
    finished: bool,
) -> Result<(Vec<JobStatus>, Vec<String>)> {
    let mut found = Vec::new();
    let mut unreadable = Vec::new();
    for (_, record) in journal::all(store).await? {
        let now = record.as_ref().map_or(Timestamp::MIN, |record| now(record.plan.backend()));
        match record {
            Ok(record) if finished || !record.state.is_finished() || age(record.updated, now) < DAY => {
                match describe(store, &record, now).await {
                    Ok(status) => found.push(status),
                    Err(failure) if matches!(failure.exit, Exit::Integrity | Exit::Denied) => {
                        unreadable.push(format!("{}: {}", record.id, failure.message));
                    }
                    Err(failure) => return Err(failure),
                }
            }
            Ok(_) => {}
            Err(failure) => unreadable.push(failure.message),
        }
    }
    found.sort_by_key(|status| std::cmp::Reverse(status.created));
    Ok((found, unreadable))
}

const DAY: Duration = Duration::from_secs(86_400);

fn age(then: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(now.duration_since(then)).unwrap_or_default()
}

async fn describe(store: &dyn Store, record: &Record, now: Timestamp) -> Result<JobStatus> {
    let attempt = latest_attempt(store, record).await?;
    let mut status = JobStatus {
        schema: STATUS_SCHEMA,
        id: record.id.clone(),
        backend: record.plan.backend().to_owned(),
        state: record.state.label(record.outcome).to_owned(),
        attempt,
        step: record.attempts.last().map(|attempt| attempt.last_step).filter(|_| record.state.is_finished()),
        steps: None,
        loss: None,
        perplexity: None,
        tokens_per_second: None,
        eta_seconds: None,
        cost: cost(record, now),
        created: record.created,
        reason: record.reason.clone(),
    };
    if !record.state.is_finished() && record.attempt > 0 {
        for line in latest_progress(store, &record.id, attempt).await? {
            apply(&mut status, &line.event);
        }
        if record.state == State::Running
            && attempt == record.attempt
            && let Some(exit) = supervise::read_exit(store, record).await?
        {
            status.reason = Some(format!("attempt {} ended: {}", record.attempt, exit.message));
        }
    }
    Ok(status)
}

/// The attempt that runs. Where the backend begins attempts by itself, no supervisor may have written it down yet.
pub(super) async fn latest_attempt(store: &dyn Store, record: &Record) -> Result<u32> {
    if record.last_attempt() == record.attempt || record.state != State::Running {
        return Ok(record.attempt);
    }
    let names = store.children(&path::attempts(&record.id)).await?;
    let begun: BTreeSet<u32> = names.iter().filter_map(|name| name.parse().ok()).collect();
    let following = (record.attempt + 1..=record.last_attempt()).take_while(|attempt| begun.contains(attempt));
    Ok(following.last().unwrap_or(record.attempt))
}

fn apply(status: &mut JobStatus, event: &Event) {
    match *event {
        Event::Start { step, steps, .. } => (status.step, status.steps) = (Some(step), Some(steps)),
        Event::Step { step, steps, loss, tokens_per_second, eta_seconds, .. } => {
            (status.step, status.steps, status.loss) = (Some(step), Some(steps), Some(loss));
            (status.tokens_per_second, status.eta_seconds) = (Some(tokens_per_second), Some(eta_seconds));
        }
        Event::Eval { step, perplexity, .. } => (status.step, status.perplexity) = (Some(step), Some(perplexity)),
        Event::Skipped { step, .. } | Event::Checkpoint { step, .. } | Event::Sample { step, .. } | Event::Done { step, .. } => {
            status.step = Some(step);
        }
        Event::Unknown => {}
    }
}

/// What the job's machines have cost until now. None lives longer than the job may: that is the cloud's own affair.
pub fn cost(record: &Record, now: Timestamp) -> Money {
    record.attempts.iter().map(|attempt| cost_of(record, attempt, now)).sum()
}

/// What the machine of one of its attempts has cost.
pub(super) fn cost_of(record: &Record, attempt: &Attempt, now: Timestamp) -> Money {
    let time = age(attempt.started, attempt.ended.unwrap_or(now)).min(record.plan.lifetime());
    attempt.price_per_hour.for_time(time)
}

/// What the provider says of the machine of the job's current attempt.
pub async fn machine(world: &World, id: &JobId) -> Result<String> {
    let record = journal::read(world.store.as_ref(), id).await?.0;
    if record.attempt == 0 {
        return Ok("none yet".to_owned());
    }
    Ok(match world.provider.observe(&AttemptId::new(id, record.attempt)).await? {
        Sighting::Alive { agent: true } => "alive".to_owned(),
        Sighting::Alive { agent: false } => "alive, without an agent".to_owned(),
        Sighting::Dead { why } | Sighting::Unfit { why } => format!("dead: {why}"),
        Sighting::Gone => "gone".to_owned(),
    })
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

/// Where an attempt's training began; `None` before it did.
pub(super) async fn first_step(store: &dyn Store, id: &JobId, attempt: u32) -> Result<Option<u64>> {
    const WINDOW: u64 = 4 * 1024;
    let path = path::progress(id, attempt);
    let Some(meta) = store.head(&path).await? else { return Ok(None) };
    let bytes = store.get_range(&path, 0..meta.size.min(WINDOW)).await?;
    let text = String::from_utf8_lossy(&bytes);
    let mut lines = text.lines().filter_map(|line| serde_json::from_str::<Line>(line).ok());
    Ok(lines.find_map(|line| match line.event {
        Event::Start { step, .. } => Some(step),
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
