//! `ftctl show`: one job whole. `ftctl compare`: several beside each other.

use std::time::Duration;

use clap::Args;
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::{
    App,
    bill::{self, Settled},
    completion,
    status::silence,
};
use crate::{
    exit::Failure,
    job::{difference, order::GpuUse, record::Record, units::Money, wording},
    lifecycle::{results::Sample, status},
    output::{Cell, Show as Shown, Table, format},
};

/// Show everything about a job: results, machine, data, settings
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  ftctl show quickstart\n  ftctl show quickstart -o json")]
pub struct Show {
    /// Id or name of the job
    #[arg(add = completion::jobs())]
    job: String,
}

/// Compare jobs: what came of each, and the settings that differ
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  ftctl compare night-1 night-2\n  ftctl compare night-1 night-2 night-3 -o json")]
pub struct Compare {
    /// Ids or names of the jobs
    #[arg(add = completion::jobs(), required = true, num_args = 2.., value_name = "JOB")]
    jobs: Vec<String>,
}

impl Show {
    pub fn run(self, app: &mut App<'_>) -> Result<(), Failure> {
        let whole = Whole::read(app, &self.job)?;
        app.output.show(&whole)
    }
}

impl Compare {
    pub fn run(self, app: &mut App<'_>) -> Result<(), Failure> {
        let jobs = self.jobs.iter().map(|job| Whole::read(app, job)).collect::<Result<_, _>>()?;
        app.output.show(&Compared(jobs))
    }
}

/// A job, and what came of it.
struct Whole {
    record: Record,
    settled: Settled,
    /// The use of its GPUs now.
    gpus: Vec<GpuUse>,
    /// The last sign of its machine, where that is long ago.
    silent_since: Option<Timestamp>,
}

impl Whole {
    fn read(app: &App<'_>, job: &str) -> Result<Self, Failure> {
        let (world, record) = app.block_on(app.job(job))?;
        let settled = app.block_on(bill::settled(&world, &record))?;
        let last = app.block_on(async { Ok(status::heartbeat(world.store.as_ref(), &record, record.attempt).await) })?;
        let silent_since = last.as_ref().and_then(|last| status::silent_since(&record, last, world.clock.now()));
        let gpus = last.filter(|_| silent_since.is_none()).map_or_else(Vec::new, |last| last.gpus);
        Ok(Self { record, settled, gpus, silent_since })
    }

    /// The word of its machine on its GPUs, or that there is none.
    fn signs(&self) -> String {
        if let Some(since) = self.silent_since {
            return format!("\n\nThere is {}", silence(&self.record.id, since));
        }
        let one = |GpuUse { busy_percent, memory_used_bytes, memory_bytes }: &GpuUse| {
            format!("\n  {busy_percent} %, {} of {}", format::bytes(*memory_used_bytes), format::bytes(*memory_bytes))
        };
        let lines: String = self.gpus.iter().map(one).collect();
        if lines.is_empty() { lines } else { format!("\n\nIts GPUs now{lines}") }
    }

    /// The newest is told with the results.
    fn earlier_samples(&self) -> String {
        let earlier = self.settled.results.samples.iter().rev().skip(1);
        earlier.fold(String::new(), |told, Sample { step, text }| {
            told + &format!("\n\nAfter step {step} it wrote:\n{}", bill::indent(text))
        })
    }

    /// The results beside those of other jobs.
    fn results(&self) -> Vec<(&'static str, String)> {
        let Settled { receipt, results } = &self.settled;
        let number = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.2}"));
        vec![
            ("state", receipt.state.clone()),
            ("steps", format::number(results.step)),
            ("perplexity before", number(results.first_perplexity)),
            ("perplexity after", number(results.last_perplexity)),
            ("time on a machine", format::duration(Duration::from_secs(receipt.machine_seconds))),
            ("cost", receipt.cost.to_string()),
            ("steps repeated", format::number(receipt.lost_steps)),
        ]
    }
}

impl Shown for Whole {
    fn schema(&self) -> &'static str {
        "ftctl.job/1"
    }

    fn json(&self) -> Value {
        let mut value = self.settled.json();
        value["created"] = json!(self.record.created);
        value["dataset"] = json!(self.record.dataset);
        value["plan"] = json!(self.record.plan);
        if !self.gpus.is_empty() {
            value["gpus"] = json!(self.gpus);
        }
        if let Some(since) = self.silent_since {
            value["silent_since"] = json!(since);
        }
        value
    }

    fn text(&self) -> String {
        let mut table = Table::default();
        if let Some(dataset) = &self.record.dataset {
            table.pair("dataset", dataset.to_string());
        }
        for (key, value) in difference::settings(&self.record.plan) {
            table.pair(&key, said(&value));
        }
        format!("{}{}{}\n\nSettings\n{}", self.settled.text(), self.signs(), self.earlier_samples(), table.render())
    }

    fn names(&self) -> Vec<String> {
        vec![self.record.id.to_string()]
    }
}

/// A setting, with money as a receipt writes it.
fn said(value: &Value) -> String {
    let money = value.as_str().and_then(|text| text.parse::<Money>().ok());
    money.map_or_else(|| wording::value(value), |money| format!("{money:#}"))
}

struct Compared(Vec<Whole>);

impl Compared {
    /// The settings that are not the same in all jobs, each with its value in each job.
    fn differences(&self) -> impl Iterator<Item = (String, Vec<Option<Value>>)> {
        let settings: Vec<_> = self.0.iter().map(|job| difference::settings(&job.record.plan)).collect();
        difference::of(&settings).into_iter().filter(|(key, _)| key != "name")
    }

    /// Whether all have the same data: the same path may have had other text.
    fn have_same_data(&self) -> bool {
        self.0.windows(2).all(|two| two[0].record.dataset == two[1].record.dataset)
    }
}

impl Shown for Compared {
    fn schema(&self) -> &'static str {
        "ftctl.compared/1"
    }

    fn json(&self) -> Value {
        let differences: Map<String, Value> = self.differences().map(|(key, values)| (key, json!(values))).collect();
        let jobs: Vec<Value> = self.0.iter().map(|job| job.settled.json()).collect();
        json!({ "jobs": jobs, "settings": differences, "same_data": self.have_same_data() })
    }

    fn text(&self) -> String {
        let mut table = Table::default();
        let row =
            |name: &str, values: Vec<String>| std::iter::once(name.to_owned()).chain(values).map(Cell::text).collect::<Vec<_>>();
        table.row(row("job", self.names()));
        let results: Vec<_> = self.0.iter().map(Whole::results).collect();
        for (at, (name, _)) in results[0].iter().enumerate() {
            table.row(row(name, results.iter().map(|job| job[at].1.clone()).collect()));
        }
        if !self.have_same_data() {
            let short = |job: &Whole| job.record.dataset.as_ref().map_or("-", |dataset| &dataset.as_str()[..12]).to_owned();
            table.row(row("dataset", self.0.iter().map(short).collect()));
        }
        for (key, values) in self.differences() {
            let cell = |value: Option<Value>| value.as_ref().map_or_else(|| "-".to_owned(), said);
            table.row(row(&key, values.into_iter().map(cell).collect()));
        }
        let other = if self.have_same_data() {
            ""
        } else {
            "\n\nThe jobs have different data: their losses and perplexities do not compare."
        };
        table.render() + other
    }

    fn names(&self) -> Vec<String> {
        self.0.iter().map(|job| job.record.id.to_string()).collect()
    }
}
