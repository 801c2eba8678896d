//! `ftctl status`: where jobs stand.

use std::{cmp::Ordering, collections::BTreeMap, sync::Arc, time::Duration};

use clap::{Args, ValueEnum};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::{App, completion, follow};
use crate::{
    exit::{Exit, Failure},
    job::{
        clock::Clock,
        id::JobId,
        record::Waiting,
        report::Format,
        state::{LABELS, Outcome, State},
    },
    lifecycle::status::{self, JobStatus},
    output::{Cell, Show, Table, format},
};

/// Show where jobs stand
///
/// Without JOB: the jobs that are not finished, and those that ended within a day.
#[allow(clippy::struct_excessive_bools)] // Switches of their own, not the states of one thing.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  ftctl status\n  ftctl status quickstart -w\n  ftctl status first second\n  ftctl status --all --failed\n  ftctl status --all --sort perplexity -o jsonl"
)]
pub struct Arguments {
    /// Ids or names of jobs
    #[arg(add = completion::jobs(), value_name = "JOB")]
    jobs: Vec<String>,
    /// Look again every two seconds, until all jobs that are shown are over
    #[arg(short, long)]
    watch: bool,
    /// Also jobs that ended long ago
    #[arg(long, conflicts_with = "jobs")]
    all: bool,
    /// Only jobs in these states, such as running, succeeded, or finished for every end
    #[arg(long, value_name = "STATE", value_delimiter = ',', value_parser = LABELS, hide_possible_values = true, conflicts_with = "jobs")]
    state: Vec<String>,
    /// Only jobs that failed
    #[arg(long, conflicts_with_all = ["jobs", "state"])]
    failed: bool,
    /// Sort by this key, smallest first [default: newest first]
    #[arg(long, value_name = "KEY", value_enum, conflicts_with = "jobs")]
    sort: Option<Key>,
    /// Also ask the backend whether each machine is there
    #[arg(long)]
    refresh: bool,
}

/// The key that jobs are ordered by. Jobs without it come last.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum Key {
    Name,
    State,
    Step,
    Loss,
    Perplexity,
    Cost,
    Created,
}

impl Key {
    fn compare(self, one: &JobStatus, other: &JobStatus) -> Ordering {
        let least_first = |of: fn(&JobStatus) -> Option<f64>| {
            let [one, other] = [one, other].map(|job| of(job).unwrap_or(f64::INFINITY));
            one.total_cmp(&other)
        };
        match self {
            Self::Name => one.id.cmp(&other.id),
            Self::State => one.state.cmp(&other.state),
            Self::Step => least_first(|job| job.step.map(|step| step as f64)),
            Self::Loss => least_first(|job| job.loss),
            Self::Perplexity => least_first(|job| job.perplexity),
            Self::Cost => one.cost.cmp(&other.cost),
            Self::Created => one.created.cmp(&other.created),
        }
    }
}

const EVERY: Duration = Duration::from_secs(2);

impl Arguments {
    pub fn run(self, app: &mut App<'_>) -> Result<(), Failure> {
        if self.watch && app.output.format() == Format::Json {
            return Err(Failure::new(Exit::Usage, "-w prints repeatedly, and -o json is one value").fix("use -o jsonl"));
        }
        let mut shown = None;
        loop {
            let found = app.block_on(self.look(app))?;
            let over = found.jobs.iter().all(|row| is_over(&row.status));
            if shown.as_ref() != Some(&found) {
                app.output.show_again(&found, self.watch)?;
            }
            if !self.watch || over {
                return Ok(());
            }
            shown = Some(found);
            let stop = app.block_on(async {
                tokio::select! {
                    () = tokio::time::sleep(EVERY) => Ok(false),
                    () = follow::ctrl_c() => Ok(true),
                }
            })?;
            if stop {
                return Ok(());
            }
        }
    }

    async fn look(&self, app: &App<'_>) -> Result<Found, Failure> {
        let store = app.store()?;
        let mut clocks: BTreeMap<String, Arc<dyn Clock>> = BTreeMap::new();
        let mut now = |backend: &str| clocks.entry(backend.to_owned()).or_insert_with(|| app.clock(backend)).now();
        let mut statuses = Vec::new();
        for job in &self.jobs {
            let status = status::one(store.as_ref(), &app.stored_job(job).await?.1, &mut now).await?;
            // It may be named twice: by its id and its name.
            if !statuses.iter().any(|other: &JobStatus| other.id == status.id) {
                statuses.push(status);
            }
        }
        if self.jobs.is_empty() {
            let (found, unreadable) = status::all(store.as_ref(), &mut now, self.all).await?;
            for message in unreadable {
                app.output.report().warn(&message);
            }
            statuses = self.chosen(found);
        }
        let mut jobs = Vec::new();
        for status in statuses {
            let machine = if self.refresh { Some(status::machine(&app.world(&status.backend)?, &status.id).await?) } else { None };
            let now = now(&status.backend);
            jobs.push(Row { status, machine, now });
        }
        Ok(Found { jobs, one: self.jobs.len() == 1, some: self.failed || !self.state.is_empty(), all: self.all })
    }
}

impl Arguments {
    /// The jobs that are asked for, in the order that is.
    fn chosen(&self, mut found: Vec<JobStatus>) -> Vec<JobStatus> {
        let failed = State::Finished.label(Some(Outcome::Failed));
        let is_in = |asked: &String, job: &JobStatus| *asked == job.state || asked == State::Finished.label(None) && is_over(job);
        let is_asked = |job: &JobStatus| self.state.is_empty() || self.state.iter().any(|asked| is_in(asked, job));
        found.retain(|job| if self.failed { job.state == failed } else { is_asked(job) });
        if let Some(key) = self.sort {
            found.sort_by(|one, other| key.compare(one, other));
        }
        found
    }
}

fn is_over(job: &JobStatus) -> bool {
    matches!(job.state.as_str(), "succeeded" | "failed" | "cancelled" | "finished")
}

struct Row {
    status: JobStatus,
    machine: Option<String>,
    /// By the clock that the job lives by.
    now: Timestamp,
}

impl PartialEq for Row {
    /// That time has passed is no news.
    fn eq(&self, other: &Self) -> bool {
        (&self.status, &self.machine) == (&other.status, &other.machine)
    }
}

impl Row {
    fn json(&self) -> Value {
        let mut value = json!(self.status);
        if let Some(machine) = &self.machine {
            value["machine"] = json!(machine);
        }
        value
    }
}

#[derive(PartialEq)]
struct Found {
    jobs: Vec<Row>,
    /// One job was asked for, so the answer is that job and no list.
    one: bool,
    /// Only some were asked for.
    some: bool,
    /// However long ago they ended.
    all: bool,
}

impl Show for Found {
    fn schema(&self) -> &'static str {
        if self.one { status::STATUS_SCHEMA } else { "ftctl.jobs/1" }
    }

    fn json(&self) -> Value {
        match self.jobs.as_slice() {
            [job] if self.one => job.json(),
            jobs => json!({ "jobs": jobs.iter().map(Row::json).collect::<Vec<_>>() }),
        }
    }

    fn lines(&self) -> Vec<Value> {
        self.jobs.iter().map(Row::json).collect()
    }

    fn text(&self) -> String {
        match self.jobs.as_slice() {
            [job] if self.one => details(job),
            [] if self.all => "no such job".to_owned(),
            [] if self.some => "no such job is under way, and none ended within a day (--all shows older ones)".to_owned(),
            [] => "no job is under way, and none ended within a day (--all shows older ones)".to_owned(),
            jobs => table(jobs),
        }
    }

    fn names(&self) -> Vec<String> {
        self.jobs.iter().map(|job| job.status.id.to_string()).collect()
    }
}

fn table(jobs: &[Row]) -> String {
    let header = [
        "JOB",
        "BACKEND",
        "STATE",
        "ATTEMPT",
        "STEP",
        "LOSS",
        "VALIDATION",
        "PERPLEXITY",
        "TOKENS/S",
        "ETA",
        "COST",
        "AGE",
        "MACHINE",
    ];
    let refreshed = jobs.iter().any(|job| job.machine.is_some());
    let mut table = Table::new(if refreshed { &header } else { &header[..header.len() - 1] });
    for Row { status, machine, now } in jobs {
        let cells = [
            Cell::text(status.id.to_string()),
            Cell::text(format::backend(&status.backend, status.simulated)),
            Cell::text(&status.state),
            Cell::number(status.attempt.to_string()),
            Cell::number(step(status)),
            Cell::number(optional(status.loss, |loss| format!("{loss:.3}"))),
            Cell::number(optional(status.validation_loss, |loss| format!("{loss:.3}"))),
            Cell::number(optional(status.perplexity, |perplexity| format!("{perplexity:.2}"))),
            Cell::number(optional(status.tokens_per_second, |rate| format::number(rate.round() as u64))),
            Cell::number(optional(status.eta_seconds, seconds)),
            Cell::number(status.cost.to_string()),
            Cell::number(format::age(status.created, *now)),
        ];
        table.row(cells.into_iter().chain(machine.as_ref().map(Cell::text)));
    }
    table.render()
}

fn details(Row { status, machine, .. }: &Row) -> String {
    let mut table = Table::default();
    table.pair("job", status.id.to_string());
    table.pair("backend", format::backend(&status.backend, status.simulated));
    table.pair("state", &status.state);
    let pairs = [
        ("reason", status.reason.clone()),
        ("waiting", waiting(status)),
        ("silent", silent(status)),
        ("attempt", Some(attempt(status))),
        ("step", Some(step(status))),
        ("loss", status.loss.map(|loss| format!("{loss:.4}"))),
        ("validation loss", status.validation_loss.map(|loss| format!("{loss:.4}"))),
        ("perplexity", status.perplexity.map(|perplexity| format!("{perplexity:.2}"))),
        ("tokens/s", status.tokens_per_second.map(|rate| format::number(rate.round() as u64))),
        ("time left", status.eta_seconds.map(seconds)),
        ("cost so far", Some(status.cost.to_string())),
        ("created", Some(format!("{:.0}", status.created))),
        ("machine", machine.clone()),
    ];
    for (name, value) in pairs.into_iter().filter_map(|(name, value)| Some((name, value?))) {
        table.pair(name, value);
    }
    table.render()
}

fn attempt(status: &JobStatus) -> String {
    match (status.nodes, status.planned_nodes) {
        (Some(nodes), Some(planned)) => format!("{}, on {nodes} of {planned} nodes", status.attempt),
        _ => status.attempt.to_string(),
    }
}

fn waiting(status: &JobStatus) -> Option<String> {
    let Waiting { since, why } = status.waiting.as_ref()?;
    let next = status.next_try.map(|at| format!("; next try at {at:.0}")).unwrap_or_default();
    Some(format!("since {since:.0}: {why}{next}"))
}

fn silent(status: &JobStatus) -> Option<String> {
    status.silent_since.map(|since| silence(&status.id, since))
}

/// The word on a job whose agent gave its last sign long ago.
pub fn silence(id: &JobId, since: Timestamp) -> String {
    format!("no sign of its machine since {since:.0}; `ftctl logs -f {id}` finds out why and continues the job")
}

fn step(status: &JobStatus) -> String {
    match (status.step, status.steps) {
        (Some(step), Some(steps)) => format!("{step}/{steps}"),
        (Some(step), None) => step.to_string(),
        _ => "-".to_owned(),
    }
}

fn seconds(seconds: f64) -> String {
    format::duration(Duration::try_from_secs_f64(seconds.round()).unwrap_or_default())
}

fn optional<T>(value: Option<T>, show: impl Fn(T) -> String) -> String {
    value.map_or_else(|| "-".to_owned(), show)
}
