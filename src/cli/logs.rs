//! `ftctl logs`: the output of a job.

use std::{io, mem::take, str::FromStr, time::Duration};

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
        lines::Lines,
        logs::{self, Options, Sink},
        ranks,
    },
    output::{List, Output},
};

/// Show the log of a job: all attempts, oldest first
///
/// The log is the same, byte for byte, after a lost connection, a preemption and the end of the job. With --follow, ftctl also
/// recovers a preempted job if no other ftctl does: a job that was submitted on this machine, or any job with --adopt. With
/// `-o jsonl` each line is an object with its time, attempt and text; with `-o json` all of them are one value. A line
/// of more than 1 MiB comes in parts; all but its first are "continued".
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
    /// Show the output of this rank, or `all`; default: rank 0
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
            Format::Jsonl | Format::Json => {
                let mut sink = Values::new(app.output);
                let read = self.read(&world, &record.id, &mut sink);
                sink.conclude(read)
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
        let ended = follow::to_the_end(world, id, (None, Duration::ZERO), log).await?;
        follow::verdict(&ended)
    })
}

const SCHEMA: &str = "ftctl.log/1";

/// Lines as JSON, each as soon as it is whole: an object for each, or one value that has them all. No log is too long for either.
struct Values<'o> {
    output: &'o mut Output,
    attempt: u32,
    lines: Lines,
    list: List,
    /// Not printed yet.
    text: String,
}

impl<'o> Values<'o> {
    fn new(output: &'o mut Output) -> Self {
        let list = List::new(SCHEMA, "lines", output.format());
        Self { output, attempt: 0, lines: Lines::default(), list, text: String::new() }
    }

    /// Takes the last line, which has no end.
    fn end_line(&mut self) {
        self.lines.finish(|line, goes_on| self.text += &self.list.item(value(self.attempt, line, goes_on)));
    }

    /// Prints the end of the one value, with the verdict if it is a failure.
    fn conclude(mut self, verdict: Result<(), Failure>) -> Result<(), Failure> {
        self.end_line();
        self.text += &self.list.end(&verdict);
        verdict.and(self.output.raw(self.text.as_bytes()))
    }
}

/// A line of an attempt. Of a line that is longer than 1 MiB all but the first part are `continued`.
fn value(attempt: u32, line: &[u8], goes_on: bool) -> Value {
    let time = if goes_on { None } else { logs::stamp(line) };
    let text = String::from_utf8_lossy(if time.is_some() { &line[logs::STAMP..] } else { line });
    let mut value = json!({ "attempt": attempt, "text": text });
    if let Some(time) = time {
        value["time"] = json!(time);
    }
    if goes_on {
        value["continued"] = json!(true);
    }
    value
}

#[async_trait]
impl Sink for Values<'_> {
    async fn take(&mut self, bytes: Vec<u8>) -> io::Result<()> {
        self.lines.take(&bytes, |line, goes_on| self.text += &self.list.item(value(self.attempt, line, goes_on)));
        let text = take(&mut self.text);
        if text.is_empty() { Ok(()) } else { self.output.write_apart(text.into_bytes()).await }
    }

    fn begin(&mut self, attempt: u32) {
        self.end_line();
        self.attempt = attempt;
    }

    fn wants_times(&self) -> bool {
        true
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
