//! `ftctl logs`: the output of a job.

use std::{io, str::FromStr};

use async_trait::async_trait;
use clap::Args;
use jiff::Timestamp;

use super::{App, adopt::Adopt, completion, follow};
use crate::{
    exit::{Exit, Failure},
    job::{id::JobId, units::Span},
    lifecycle::{
        World,
        logs::{self, Options},
        ranks,
    },
    output::Output,
};

/// Show the log of a job: all attempts, oldest first
///
/// The log is the same, byte for byte, after a lost connection, a preemption and the end of the job. With --follow, ftctl also
/// recovers a preempted job if no other ftctl does: a job that was submitted on this machine, or any job with --adopt.
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
        let mut sink = Stdout(app.output);
        if let Some(rank) = self.rank {
            let rank = if let Rank::One(rank) = rank { Some(rank) } else { None };
            let options = ranks::Options { rank, follow: self.follow, attempt: self.attempt };
            let log = Box::pin(ranks::show(&world, &record.id, &options, &mut sink));
            return follow_or_show(&world, &record.id, self.follow, log);
        }
        let options = Options {
            follow: self.follow,
            attempt: self.attempt,
            tail: self.tail,
            since: self.since.map(|span| before_now(world.clock.now(), span)).transpose()?,
            timestamps: self.timestamps,
        };
        let log = Box::pin(logs::show(&world, &record.id, &options, &mut sink));
        follow_or_show(&world, &record.id, self.follow, log)
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

struct Stdout<'o>(&'o mut Output);

#[async_trait]
impl logs::Sink for Stdout<'_> {
    async fn take(&mut self, bytes: Vec<u8>) -> io::Result<()> {
        self.0.write_apart(bytes).await
    }
}

fn before_now(now: Timestamp, span: Span) -> Result<Timestamp, Failure> {
    now.checked_sub(span.0).map_err(|_| Failure::new(Exit::Usage, format!("--since {span} is before all time")))
}
