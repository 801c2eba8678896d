//! The job's numbers for a server of experiments: that of `[tracking]` in its job file, else the service that runs the agent as a
//! job of its own, where they go into that job's run. They come from the progress lines in the store, of all attempts in their
//! order: what could not be sent by an attempt that was taken away is sent by the next. The server says up to which step it has
//! each number, so that each step is there once. Nothing that the server does, or does not do, holds the training up.

mod server;
#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, convert::Infallible, sync::Arc, time::Duration};

use ft_trainer::progress::{Event, Line};
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use self::server::{Refusal, Server};
use super::{Agent, BACKOFF, azureml};
use crate::{
    identity::Variables,
    job::{
        id::path,
        order::{ExitReason, RunOrder},
        report::Report,
    },
    store::{Store, log::LogReader},
};

/// The experiment in which all of ftctl's runs are.
const EXPERIMENT: &str = "ftctl";
const EVERY: Duration = Duration::from_secs(5);
/// Longest wait before a server that is away is tried again; the first is as for a store.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// Longest that the end of an attempt waits for the server.
const FAREWELL: Duration = Duration::from_secs(10);
/// The most that MLflow takes in one request.
const MOST_METRICS: usize = 1_000;
const MOST_PARAMETERS: usize = 100;
/// The longest that every version of MLflow takes.
const LONGEST_VALUE: usize = 250;

/// One number of one step.
#[derive(Debug, Clone, PartialEq)]
struct Metric {
    key: &'static str,
    value: f64,
    /// Milliseconds since 1970.
    time: i64,
    step: u64,
}

/// The numbers in a line of progress that a server can hold.
fn metrics(line: &Line) -> Vec<Metric> {
    let (step, numbers) = match &line.event {
        Event::Step { step, loss, learning_rate, tokens_per_second, peak_memory_bytes, .. } => {
            let memory = peak_memory_bytes.map(|bytes| ("memory", bytes as f64));
            let always = [("loss", *loss), ("learning_rate", *learning_rate), ("tokens_per_second", *tokens_per_second)];
            (*step, always.into_iter().chain(memory).collect())
        }
        Event::Eval { step, perplexity, .. } => (*step, vec![("perplexity", *perplexity)]),
        _ => (0, Vec::new()),
    };
    let time = (line.time * 1e3) as i64;
    numbers.into_iter().filter(|(_, value)| value.is_finite()).map(|(key, value)| Metric { key, value, time, step }).collect()
}

/// The lines of all attempts up to this one, as they come.
struct Lines {
    store: Arc<dyn Store>,
    order: RunOrder,
    attempt: u32,
    reader: LogReader,
    /// The beginning of a line whose end is not there yet.
    rest: Vec<u8>,
}

impl Lines {
    fn new(store: &Arc<dyn Store>, order: &RunOrder) -> Self {
        let reader = LogReader::new(Arc::clone(store), path::progress(&order.job, 1), 0);
        Self { store: Arc::clone(store), order: order.clone(), attempt: 1, reader, rest: Vec::new() }
    }

    /// At most as many as are in 1 MiB. `None` when there are no more yet.
    async fn next(&mut self) -> Result<Option<Vec<Line>>, String> {
        loop {
            let bytes = self.reader.read().await.map_err(|error| error.to_string())?;
            if !bytes.is_empty() {
                self.rest.extend_from_slice(&bytes);
                let whole = self.rest.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
                let rest = self.rest.split_off(whole);
                let lines = std::mem::replace(&mut self.rest, rest);
                // No line of a trainer is so long.
                if self.rest.len() > LONGEST_LINE {
                    self.rest.clear();
                }
                return Ok(Some(lines.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok()).collect()));
            }
            if self.attempt >= self.order.attempt {
                return Ok(None);
            }
            self.attempt += 1;
            self.rest.clear();
            self.reader = LogReader::new(Arc::clone(&self.store), path::progress(&self.order.job, self.attempt), 0);
        }
    }
}

const LONGEST_LINE: usize = 1 << 20;
/// Where a job of Azure ML finds its workspace's server.
const ADDRESS: &str = "MLFLOW_TRACKING_URI";

/// A run at the server, and up to which step it has each number.
struct Run {
    id: String,
    known: BTreeMap<String, u64>,
}

pub(super) struct Tracker<'a> {
    server: Server,
    /// Its name, for a person.
    name: String,
    /// The service's own run of this attempt, which the service itself begins and ends.
    own: Option<String>,
    order: &'a RunOrder,
    report: &'a dyn Report,
    lines: Lines,
    /// Read, and not known to be at the server.
    waiting: Vec<Metric>,
    /// `None` before the server was reached, and when it is not known what it has.
    run: Option<Run>,
    failing: bool,
}

impl<'a> Tracker<'a> {
    /// `None` where the job has no such server, or it cannot be one, which is told.
    pub fn of(agent: &'a Agent<'_>, variables: Variables<'_>) -> Option<Self> {
        let tracking = &agent.order.tracking;
        let own = azureml::own_run(&agent.order.job, variables).filter(|_| tracking.mlflow.is_none());
        let (address, name) = match tracking.server() {
            Some(address) => (address.to_owned(), address.to_owned()),
            None => (own.as_ref().and_then(|_| variables(ADDRESS))?, "Azure ML".to_owned()),
        };
        let server =
            Server::at(&address, variables).inspect_err(|why| agent.report.warn(&format!("no numbers are tracked: {why}")));
        Some(Self {
            server: server.ok()?,
            name,
            own,
            order: agent.order,
            report: agent.report,
            lines: Lines::new(&agent.store, agent.order),
            waiting: Vec::new(),
            run: None,
            failing: false,
        })
    }

    /// Sends for ever.
    pub async fn keep_sending(&mut self) -> Infallible {
        let mut pause = BACKOFF[0];
        loop {
            let behind = self.catch_up().await.is_err();
            sleep(if behind { pause } else { EVERY }).await;
            pause = if behind { LONGEST_PAUSE.min(2 * pause) } else { BACKOFF[0] };
        }
    }

    /// The rest, and how the job ended. If another attempt follows, all that is left to it, which goes on in the same run.
    pub async fn finish(mut self, reason: ExitReason) {
        let status = match reason {
            ExitReason::Succeeded => "FINISHED",
            ExitReason::Failed => "FAILED",
            ExitReason::Cancelled | ExitReason::Deadline => "KILLED",
            ExitReason::Preempted | ExitReason::LostLease => return,
        };
        // What was being sent when the trainer ended may have come.
        self.run = None;
        let ended = async {
            self.catch_up().await.ok()?;
            if self.own.is_some() {
                return Some(());
            }
            let end =
                json!({ "run_id": self.run.as_ref()?.id, "status": status, "end_time": jiff::Timestamp::now().as_millisecond() });
            self.server.post("runs/update", &end).await.ok().map(drop)
        };
        if timeout(FAREWELL, ended).await.ok().flatten().is_none() {
            let name = &self.name;
            self.report.warn(&format!("{name} did not receive all numbers of the run, or not its end; they are in the store"));
        }
    }

    /// Everything that is in the store now. A failure is told once, until the server is back.
    async fn catch_up(&mut self) -> Result<(), ()> {
        let sent = self.send_all().await;
        let name = &self.name;
        match &sent {
            Err(refusal) if !self.failing => {
                self.report
                    .warn(&format!("{name} does not accept numbers: {}; training continues, and they are sent later", refusal.why));
            }
            Ok(()) if self.failing => self.report.line(&format!("{name} accepts numbers again")),
            _ => {}
        }
        self.failing = sent.is_err();
        if self.failing {
            // An answer may be lost, and its request have been done.
            self.run = None;
        }
        sent.map_err(drop)
    }

    async fn send_all(&mut self) -> Result<(), Refusal> {
        if self.run.is_none() {
            self.run = Some(self.open().await?);
        }
        loop {
            while !self.waiting.is_empty() {
                self.send().await?;
            }
            match self.lines.next().await? {
                Some(lines) => self.waiting = lines.iter().flat_map(metrics).collect(),
                None => return Ok(()),
            }
        }
    }

    /// One request, and only with what the server does not have.
    async fn send(&mut self) -> Result<(), Refusal> {
        let Some(run) = &mut self.run else { return Ok(()) };
        let count = self.waiting.len().min(MOST_METRICS);
        let mut known = run.known.clone();
        let mut fresh = Vec::new();
        for Metric { key, value, time, step } in &self.waiting[..count] {
            if known.get(*key).is_none_or(|last| step > last) {
                known.insert((*key).to_owned(), *step);
                fresh.push(json!({ "key": key, "value": value, "timestamp": time, "step": step }));
            }
        }
        if !fresh.is_empty() {
            self.server.post("runs/log-batch", &json!({ "run_id": run.id, "metrics": fresh })).await?;
        }
        run.known = known;
        self.waiting.drain(..count);
        Ok(())
    }

    /// The job's run, with its parameters and tags.
    async fn open(&self) -> Result<Run, Refusal> {
        let job = self.order.job.as_str();
        let id = match &self.own {
            Some(id) => id.clone(),
            None => self.server.run(EXPERIMENT, job).await?,
        };
        let tags = [(server::JOB_TAG, job.to_owned()), ("ftctl.attempt", self.order.attempt.to_string())];
        let tags = tags.map(|(key, value)| json!({ "key": key, "value": value }));
        self.server.post("runs/log-batch", &json!({ "run_id": id, "tags": tags })).await?;
        for some in parameters(self.order).chunks(MOST_PARAMETERS) {
            match self.server.post("runs/log-batch", &json!({ "run_id": id, "params": some })).await {
                // One that it has with another value, or that its version does not take: the numbers count more.
                Err(refusal) if refusal.status == 400 => {}
                logged => drop(logged?),
            }
        }
        let run = self.server.get("runs/get", &[("run_id", &id)]).await?;
        let newest = run["run"]["data"]["metrics"].as_array().into_iter().flatten();
        let known = newest.filter_map(|metric| Some((metric["key"].as_str()?.to_owned(), whole(&metric["step"])?)));
        let known = known.collect();
        Ok(Run { id, known })
    }
}

/// A number, or the text of one, as a 64-bit number is in the JSON of some servers.
fn whole(value: &Value) -> Option<u64> {
    value.as_u64().or_else(|| value.as_str()?.parse().ok())
}

/// The dataset, and the job file's settings of model and training, by the names of their keys.
fn parameters(order: &RunOrder) -> Vec<Value> {
    let mut found = vec![("dataset".to_owned(), order.dataset.to_string())];
    flatten("model", &json!(order.model), &mut found);
    flatten("train", &json!(order.train), &mut found);
    let cut = |value: String| value.chars().take(LONGEST_VALUE).collect::<String>();
    found.into_iter().map(|(key, value)| json!({ "key": key, "value": cut(value) })).collect()
}

fn flatten(name: &str, value: &Value, into: &mut Vec<(String, String)>) {
    match value {
        Value::Object(table) => table.iter().for_each(|(key, value)| flatten(&format!("{name}.{key}"), value, into)),
        Value::Null => {}
        Value::String(text) => into.push((name.to_owned(), text.clone())),
        other => into.push((name.to_owned(), other.to_string())),
    }
}
