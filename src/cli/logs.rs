//! `ftctl logs`: the output of a job.

use std::{
    io,
    mem::{replace, take},
    str::FromStr,
};

use async_trait::async_trait;
use clap::Args;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::{App, adopt::Adopt, completion, follow};
use crate::{
    exit::{Exit, Failure},
    job::{id::JobId, report::Format, units::Span},
    lifecycle::{
        World,
        logs::{self, Options, Sink},
        ranks,
    },
    output::{Output, Show},
};

/// Show the log of a job: all attempts, oldest first
///
/// The log is the same, byte for byte, after a lost connection, a preemption and the end of the job. With --follow, ftctl also
/// recovers a preempted job if no other ftctl does: a job that was submitted on this machine, or any job with --adopt. With
/// `-o jsonl` each line is an object with its time, attempt and text; with `-o json` all of them are one value.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  ftctl logs quickstart -f\n  ftctl logs quickstart --attempt 2 --tail 50")]
pub struct Arguments {
    /// Id or name of the job
    #[arg(add = completion::jobs())]
    job: String,
    /// Go on until the job is over; the exit code is the job's
    #[arg(short, long)]
    follow: bool,
    /// Only lines of the last 90s, 45m, 2h, ...
    #[arg(long, value_name = "DURATION")]
    since: Option<Span>,
    /// Only the last lines (of the last attempt, unless --attempt says which)
    #[arg(long, value_name = "LINES")]
    tail: Option<usize>,
    /// Only this attempt, counted from 1
    #[arg(long, value_name = "N")]
    attempt: Option<u32>,
    /// Keep the time in front of each line
    #[arg(long)]
    timestamps: bool,
    /// What the process of this rank wrote, or all; rank 0 writes the log
    #[arg(long, value_name = "N|all", conflicts_with_all = ["since", "tail", "timestamps"])]
    rank: Option<Rank>,
    #[command(flatten)]
    adopt: Adopt,
}

#[derive(Debug, Clone, Copy)]
enum Rank {
    All,
    One(u32),
}

impl FromStr for Rank {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "all" => Ok(Self::All),
            rank => rank.parse().map(Self::One).map_err(|_| "write a rank, counted from 0, or `all`".to_owned()),
        }
    }
}

impl Arguments {
    pub fn run(self, app: &mut App<'_>) -> Result<(), Failure> {
        if self.adopt.adopt && !self.follow {
            return Err(Failure::new(Exit::Usage, "--adopt is for a job that is followed").fix("add -f"));
        }
        let (mut world, record) = app.block_on(app.job(&self.job))?;
        self.adopt.ask(app, &mut world, &record)?;
        match app.output.format() {
            Format::Table | Format::Name => self.read(&world, &record.id, &mut Stdout(app.output)),
            Format::Jsonl => {
                let mut sink = Lines::new(Some(app.output));
                let read = self.read(&world, &record.id, &mut sink);
                let last = Batch(sink.finish());
                read.and(app.output.show(&last))
            }
            Format::Json => {
                let mut sink = Lines::new(None);
                let read = self.read(&world, &record.id, &mut sink);
                app.output.conclude(&Batch(sink.finish()), read)
            }
        }
    }

    fn read(&self, world: &World, id: &JobId, sink: &mut dyn Sink) -> Result<(), Failure> {
        if let Some(rank) = self.rank {
            let rank = if let Rank::One(rank) = rank { Some(rank) } else { None };
            let options = ranks::Options { rank, follow: self.follow, attempt: self.attempt };
            let log = Box::pin(ranks::show(world, id, &options, sink));
            return follow_or_show(world, id, self.follow, log);
        }
        let options = Options {
            follow: self.follow,
            attempt: self.attempt,
            tail: self.tail,
            since: self.since.map(|span| before_now(world.clock.now(), span)).transpose()?,
            timestamps: self.timestamps || sink.wants_times(),
        };
        let log = Box::pin(logs::show(world, id, &options, sink));
        follow_or_show(world, id, self.follow, log)
    }
}

fn follow_or_show(world: &World, id: &JobId, follow: bool, log: impl Future<Output = Result<(), Failure>>) -> Result<(), Failure> {
    super::block_on(async {
        if !follow {
            return log.await;
        }
        let ended = follow::to_the_end(world, id, None, log).await?;
        follow::verdict(&ended)
    })
}

/// Lines as JSON: each as soon as it is whole, or all of them at the end.
struct Lines<'o> {
    output: Option<&'o mut Output>,
    attempt: u32,
    /// The beginning of a line.
    pending: Vec<u8>,
    kept: Vec<Value>,
}

impl<'o> Lines<'o> {
    fn new(output: Option<&'o mut Output>) -> Self {
        Self { output, attempt: 0, pending: Vec::new(), kept: Vec::new() }
    }

    fn keep(&mut self, line: &[u8]) {
        let time = logs::stamp(line);
        let text = String::from_utf8_lossy(if time.is_some() { &line[logs::STAMP..] } else { line });
        let mut value = json!({ "attempt": self.attempt, "text": text });
        if let Some(time) = time {
            value["time"] = json!(time);
        }
        self.kept.push(value);
    }

    /// Keeps a line that has no end.
    fn end_line(&mut self) {
        let rest = take(&mut self.pending);
        if !rest.is_empty() {
            self.keep(&rest);
        }
    }

    /// What was not shown yet.
    fn finish(mut self) -> Vec<Value> {
        self.end_line();
        self.kept
    }
}

#[async_trait]
impl Sink for Lines<'_> {
    async fn take(&mut self, bytes: Vec<u8>) -> io::Result<()> {
        self.pending.extend_from_slice(&bytes);
        let whole = self.pending.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        let rest = self.pending.split_off(whole);
        let lines = replace(&mut self.pending, rest);
        lines.split_inclusive(|byte| *byte == b'\n').for_each(|line| self.keep(line.strip_suffix(b"\n").unwrap_or(line)));
        let Some(output) = self.output.as_mut().filter(|_| !self.kept.is_empty()) else { return Ok(()) };
        let text = output.text_of(&Batch(take(&mut self.kept)));
        output.write_apart(text.into_bytes()).await
    }

    fn begin(&mut self, attempt: u32) {
        self.end_line();
        self.attempt = attempt;
    }

    fn wants_times(&self) -> bool {
        true
    }
}

struct Batch(Vec<Value>);

impl Show for Batch {
    fn schema(&self) -> &'static str {
        "ftctl.log/1"
    }

    fn json(&self) -> Value {
        json!({ "lines": self.0 })
    }

    fn lines(&self) -> Vec<Value> {
        self.0.clone()
    }

    fn text(&self) -> String {
        self.0.iter().filter_map(|line| line["text"].as_str()).collect::<Vec<_>>().join("\n")
    }

    fn names(&self) -> Vec<String> {
        Vec::new()
    }
}

struct Stdout<'o>(&'o mut Output);

#[async_trait]
impl Sink for Stdout<'_> {
    async fn take(&mut self, bytes: Vec<u8>) -> io::Result<()> {
        self.0.write_apart(bytes).await
    }
}

fn before_now(now: Timestamp, span: Span) -> Result<Timestamp, Failure> {
    now.checked_sub(span.0).map_err(|_| Failure::new(Exit::Usage, format!("--since {span} is before all time")))
}
