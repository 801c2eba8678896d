//! `ftctl submit`: the job is handed over; its id is the answer.

use clap::Args;
use serde_json::{Value, json};

use super::{
    App, JobFile,
    adopt::Adopt,
    follow,
    plan::{Planned, has_no_patience},
};
use crate::{
    exit::{Exit, Failure},
    job::{plan::Plan, record::Record, report::Format},
    lifecycle::{
        World,
        drive::{self, drive},
        journal, open,
    },
    output::Show,
};

/// Submit a job, and print only its id
///
/// Without --wait or --follow the command returns when the job runs. After a preemption something must restart the job: keep
/// `ftctl logs -f` running, or repeat `submit --wait` with the same key. On another machine, add --adopt.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  id=$(ftctl submit job.toml)\n  ftctl submit job.toml --wait --idempotency-key \"$CI_PIPELINE_ID\""
)]
pub struct Arguments {
    #[command(flatten)]
    pub file: JobFile,
    #[command(flatten)]
    opening: Opening,
    #[command(flatten)]
    until: Until,
    #[command(flatten)]
    adopt: Adopt,
}

impl Arguments {
    pub fn run(mut self, app: &mut App<'_>) -> Result<(), Failure> {
        self.until.check()?;
        let (mut world, plan) = app.block_on(self.file.open(app))?;
        if app.dry_run {
            return app.block_on(async { Ok(Planned::of(plan, &world, None).await) })?.tell(app);
        }
        let record = app.block_on(async {
            let record = self.opening.open(app, self.adopt, &world, plan, &mut self.until.waiting).await?;
            self.adopt.ask(app, &mut world, &record)?;
            Ok(record)
        })?;
        self.until.carry(app, &world, &record)
    }
}

/// How long a job that is handed over is waited for.
#[derive(Debug, Args)]
pub struct Until {
    /// Wait for the end; the exit code is the job's
    #[arg(long)]
    wait: bool,
    /// Wait for the end and show the log on stderr meanwhile
    #[arg(long)]
    follow: bool,
    /// End when the job runs (the default)
    #[arg(long, conflicts_with_all = ["wait", "follow"])]
    detach: bool,
    #[command(flatten)]
    waiting: follow::Waiting,
}

impl Until {
    pub fn check(&self) -> Result<(), Failure> {
        if (self.waiting.timeout.is_some() || self.waiting.cancel_on_interrupt) && !self.wait && !self.follow {
            let message = "--timeout and --cancel-on-interrupt end a wait, and there is none";
            return Err(Failure::new(Exit::Usage, message).fix("add --wait or --follow"));
        }
        Ok(())
    }

    /// Carries the job on until it runs, or to its end, and prints its id.
    pub fn carry(mut self, app: &mut App<'_>, world: &World, job: &Record) -> Result<(), Failure> {
        let id = &job.id;
        let running = async { follow::or_roll_back(world, job, Box::pin(drive(world, id, drive::Until::Running))).await };
        let record = app.block_on(self.waiting.until_it_runs(world, id, running))?;
        if !self.wait && !self.follow {
            let shown = app.output.show(&Submitted::of(&record));
            return follow::verdict(&record).and(shown);
        }
        let log = async { if self.follow { follow::log_to_stderr(world, id).await } else { Ok(()) } };
        let end = Box::pin(self.waiting.until_the_end(world, id, log));
        // As JSON there is one value, which has the end.
        if matches!(app.output.format(), Format::Json | Format::Jsonl) {
            let ended = super::block_on(async { Ok(end.await) })?;
            let (last, verdict) = match ended {
                Ok(ended) => (Submitted::of(&ended), follow::verdict(&ended)),
                // It may have been cancelled meanwhile, by this command.
                Err(failure) => {
                    let last = super::block_on(async { Ok(journal::read(world.store.as_ref(), id).await) })?;
                    (last.map_or_else(|_| Submitted::of(&record), |(last, _)| Submitted::of(&last)), Err(failure))
                }
            };
            return app.output.conclude(&last, verdict);
        }
        let submitted = Submitted::of(&record);
        // The job's end counts, also when its id has no reader.
        let (shown, ended) = super::block_on(async { Ok(tokio::join!(app.output.show_apart(&submitted), end)) })?;
        follow::verdict(&ended?).and(shown)
    }
}

/// Which job a submission is.
#[derive(Debug, Args)]
pub struct Opening {
    /// A second submission with the same key and name refers to the same job
    #[arg(long, value_name = "KEY")]
    idempotency_key: Option<String>,
    /// Wait until no other job has the name, instead of refusing
    #[arg(long)]
    queue: bool,
}

impl Opening {
    /// `waiting`: how long the user waits, for the name too.
    pub async fn open(
        &self,
        app: &App<'_>,
        adopt: Adopt,
        world: &World,
        plan: Plan,
        waiting: &mut follow::Waiting,
    ) -> Result<Record, Failure> {
        let key = self.idempotency_key.as_deref();
        if key.is_some_and(|key| key.trim().is_empty()) {
            let message = "--idempotency-key is empty: all such submissions would be one job";
            return Err(Failure::new(Exit::Usage, message).fix("set the variable that it is taken from, or leave the flag out"));
        }
        if let Some(why) = has_no_patience(&plan) {
            world.report.warn(&why);
        }
        loop {
            if self.queue {
                // In this store, whichever the record of the other names.
                let world_of = |other: &Plan| app.world_of_plan(&Plan { store: plan.store.clone(), ..other.clone() });
                waiting.spend_at_most(Box::pin(open::wait_for_name(world, &plan.name, key, world_of))).await?;
            }
            match adopt.opened(app, Box::pin(open::open(world, plan.clone(), key, true))).await {
                // Of several that waited, another was faster.
                Err(failure) if self.queue && failure.exit == Exit::Conflict && failure.retryable() => {}
                opened => return Ok(opened?.record),
            }
        }
    }
}

/// A job that was accepted.
pub struct Submitted {
    pub id: String,
    pub state: &'static str,
}

impl Submitted {
    pub fn of(record: &Record) -> Self {
        Self { id: record.id.to_string(), state: record.label() }
    }
}

impl Show for Submitted {
    fn schema(&self) -> &'static str {
        "ftctl.submitted/1"
    }

    fn json(&self) -> Value {
        json!({ "id": self.id, "state": self.state })
    }

    fn text(&self) -> String {
        self.id.clone()
    }

    fn names(&self) -> Vec<String> {
        vec![self.id.clone()]
    }
}
