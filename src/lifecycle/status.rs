//! Where jobs stand: what a table row or a JSON value says. Reads only.

use std::time::Duration;

use ft_trainer::progress::Event;
use jiff::Timestamp;
use serde::Serialize;

use super::{
    Result, World, attempt, journal,
    observe::{self, latest_attempt, latest_progress, read_exit},
    results,
};
use crate::{
    exit::Exit,
    job::{
        id::{AttemptId, JobId, path},
        order::{GpuUse, Heartbeat},
        record::{Record, Waiting},
        state::State,
        units::Money,
    },
    provider::Sighting,
    store::{Result as StoreResult, Store, find_json},
};

pub const STATUS_SCHEMA: &str = "ftctl.status/1";

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct JobStatus {
    pub schema: &'static str,
    pub id: JobId,
    pub backend: String,
    /// Its machines and money are not real.
    pub simulated: bool,
    pub state: String,
    pub attempt: u32,
    /// On how many machines that runs, of how many that the plan has, where it has to do with fewer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nodes: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub planned_nodes: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steps: Option<u64>,
    /// Mean cross-entropy in nats, of the last step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss: Option<f64>,
    /// The same on the validation split, as measured last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub validation_loss: Option<f64>,
    /// On the validation split.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub perplexity: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens_per_second: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eta_seconds: Option<f64>,
    /// The use of its first machine's GPUs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<GpuUse>,
    /// The last sign of its agent, where that is long ago: its pace is not known then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub silent_since: Option<Timestamp>,
    /// So far.
    pub cost: Money,
    pub created: Timestamp,
    /// Why it has no machine yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiting: Option<Waiting>,
    /// When a machine is asked for again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_try: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// One job, with its latest progress.
pub async fn one(store: &dyn Store, id: &JobId, now: &mut dyn FnMut(&str) -> Timestamp) -> Result<JobStatus> {
    let (mut record, _) = journal::read(store, id).await?;
    // Records of before do not have it.
    if record.state.is_finished() && record.measures.is_none() {
        record.measures = Some((&results::of(store, &record).await?).into());
    }
    let now = now(record.plan.backend());
    Box::pin(describe(store, record, now)).await
}

/// Every job of the store, newest first; finished ones only when asked for or younger than a day. A job that cannot be read, or
/// only with other rights, is named in the second list instead of hiding the others. `now` is the time of a backend: a rehearsed
/// job lives by a clock of its own.
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
                let id = record.id.clone();
                match Box::pin(describe(store, record, now)).await {
                    Ok(status) => found.push(status),
                    Err(failure) if matches!(failure.exit, Exit::Integrity | Exit::Denied) => {
                        unreadable.push(format!("{id}: {}", failure.message));
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
/// Many beats of an agent, and more than two clocks differ.
const SILENCE: Duration = Duration::from_secs(600);

fn age(then: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(now.duration_since(then)).unwrap_or_default()
}

async fn describe(store: &dyn Store, record: Record, now: Timestamp) -> Result<JobStatus> {
    let record = &observe::as_it_stands(store, record, now).await?;
    let latest = latest_attempt(store, record).await?;
    let heartbeat = heartbeat(store, record, latest).await;
    let (measures, shrunk) = (record.measures.unwrap_or_default(), record.shrunk(latest));
    let mut status = JobStatus {
        schema: STATUS_SCHEMA,
        id: record.id.clone(),
        backend: record.plan.backend().to_owned(),
        simulated: record.simulated,
        state: record.label().to_owned(),
        attempt: latest,
        nodes: shrunk.map(|(has, _)| has),
        planned_nodes: shrunk.map(|(_, all)| all),
        step: record.attempts.last().map(|attempt| attempt.last_step).filter(|_| record.state.is_finished()),
        steps: None,
        loss: measures.loss,
        validation_loss: measures.validation_loss,
        perplexity: measures.perplexity,
        tokens_per_second: None,
        eta_seconds: None,
        silent_since: heartbeat.as_ref().and_then(|beat| silent_since(record, beat, now)),
        gpus: heartbeat.map_or_else(Vec::new, |beat| beat.gpus),
        cost: attempt::cost(record, now),
        waiting: record.waiting.clone(),
        next_try: record.retry_at.filter(|_| record.waiting.is_some()),
        created: record.created,
        reason: record.reason.clone(),
    };
    if !record.state.is_finished() && record.attempt > 0 {
        for line in latest_progress(store, &record.id, latest).await? {
            apply(&mut status, &line.event);
        }
        if status.silent_since.is_some() {
            (status.tokens_per_second, status.eta_seconds) = (None, None);
        }
        if record.state == State::Running
            && latest == record.attempt
            && let Some(exit) = read_exit(store, record).await?
        {
            status.reason = Some(format!("attempt {} ended: {}", record.attempt, exit.message));
            status.silent_since = None;
        }
    }
    Ok(status)
}

/// When an agent gave this sign, where that is long ago. A simulated cloud has a clock of its own, and its agents have the
/// machine's.
pub fn silent_since(record: &Record, last: &Heartbeat, now: Timestamp) -> Option<Timestamp> {
    Some(last.time).filter(|time| !record.simulated && age(*time, now) > SILENCE)
}

/// The last sign of an attempt's agent; `None` where the job does not run, or it is not known.
pub async fn heartbeat(store: &dyn Store, record: &Record, attempt: u32) -> Option<Heartbeat> {
    if record.state != State::Running {
        return None;
    }
    let found: StoreResult<Option<(Heartbeat, _)>> = find_json(store, &path::heartbeat(&record.id, attempt)).await;
    found.ok().flatten().map(|(heartbeat, _)| heartbeat)
}

fn apply(status: &mut JobStatus, event: &Event) {
    match *event {
        Event::Start { step, steps, .. } => (status.step, status.steps) = (Some(step), Some(steps)),
        Event::Step { step, steps, loss, tokens_per_second, eta_seconds, .. } => {
            (status.step, status.steps, status.loss) = (Some(step), Some(steps), Some(loss));
            (status.tokens_per_second, status.eta_seconds) = (Some(tokens_per_second), Some(eta_seconds));
        }
        Event::Eval { step, loss, perplexity } => {
            (status.step, status.validation_loss, status.perplexity) = (Some(step), Some(loss), Some(perplexity));
        }
        Event::Skipped { step, .. } | Event::Checkpoint { step, .. } | Event::Sample { step, .. } | Event::Done { step, .. } => {
            status.step = Some(step);
        }
        Event::Unknown => {}
    }
}

/// The provider's word on the machine of the job's current attempt.
pub async fn machine(world: &World, id: &JobId) -> Result<String> {
    let record = journal::read(world.store.as_ref(), id).await?.0;
    if record.attempt == 0 {
        return Ok("none yet".to_owned());
    }
    world.admits(&record)?;
    Ok(match world.provider.observe(&AttemptId::new(id, record.attempt)).await? {
        Sighting::Queued { why, .. } => format!("queued: {why}"),
        Sighting::Alive { agent: true } => "alive".to_owned(),
        Sighting::Alive { agent: false } => "alive, without an agent".to_owned(),
        Sighting::Dead { why } | Sighting::Unfit { why } | Sighting::Cancelled { why } => format!("dead: {why}"),
        Sighting::Gone => "gone".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{Condition, memory::MemoryStore};

    /// Nobody followed while a service's queue gave it its machine.
    #[tokio::test]
    async fn an_agent_in_the_store_is_no_longer_waited_for() {
        let store = MemoryStore::new();
        let id = JobId::parse("quickstart-bcdfgh").expect("an id");
        let mut record: serde_json::Value = serde_json::from_str(include_str!("fixtures/running.json")).expect("a record");
        record["waiting"] = serde_json::json!({ "since": "2026-01-01T00:00:00Z", "why": "NotStarted" });
        record["attempts"][0]["requested"] = "2026-01-01T00:00:00Z".into();
        record["attempts"][0].as_object_mut().expect("an attempt").remove("started");
        let put = async |path: &str, text: String| store.put(path, text.into(), Condition::Always).await.expect("written");
        put(&path::record(&id), record.to_string()).await;
        let now: Timestamp = "2026-01-01T02:00:00Z".parse().expect("a time");
        let status = async || one(&store, &id, &mut |_| now).await.expect("a job");
        let before = status().await;
        assert_eq!((before.state.as_str(), before.cost), ("waiting", Money::ZERO));
        let beat = r#"{"schema":"ftctl.heartbeat/1","beat":7,"time":"2026-01-01T01:59:00Z","started":"2026-01-01T01:00:00Z","phase":"training"}"#;
        put(&path::heartbeat(&id, 1), beat.to_owned()).await;
        let after = status().await;
        assert_eq!((after.state.as_str(), after.waiting), ("running", None));
        assert!(after.cost > Money::ZERO, "{:?}", after.cost);
    }

    #[tokio::test]
    async fn the_pace_of_an_agent_that_is_silent_for_long_is_not_told() {
        let store = MemoryStore::new();
        let id = JobId::parse("quickstart-bcdfgh").expect("an id");
        let step = r#"{"v":1,"time":0.0,"event":"step","step":3,"steps":10,"loss":2.0,"learning_rate":0.1,"gradient_norm":1.0,
            "tokens_per_second":5.0,"mfu":0.5,"eta_seconds":9.0}"#
            .replace('\n', "");
        let beat = r#"{"schema":"ftctl.heartbeat/1","beat":7,"time":"2026-01-01T01:00:00Z","phase":"training"}"#;
        for (path, text) in [
            (path::record(&id), include_str!("fixtures/running.json")),
            (path::progress(&id, 1), step.as_str()),
            (path::heartbeat(&id, 1), beat),
        ] {
            store.put(&path, text.as_bytes().to_vec().into(), Condition::Always).await.expect("written");
        }
        let at = async |minute: &str| {
            let now: Timestamp = format!("2026-01-01T01:{minute}:00Z").parse().expect("a time");
            let status = one(&store, &id, &mut |_| now).await.expect("a job");
            (status.step, status.tokens_per_second, status.eta_seconds, status.silent_since.map(|time| time.to_string()))
        };
        assert_eq!(at("09").await, (Some(3), Some(5.0), Some(9.0), None));
        assert_eq!(at("11").await, (Some(3), None, None, Some("2026-01-01T01:00:00Z".to_owned())));
    }
}
