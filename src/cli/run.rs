//! `ftctl run`: the whole life of a job.

use clap::Args;
use jiff::Timestamp;

use super::{App, JobFile, adopt::Adopt, bill::Settled, follow, plan::Planned};
use crate::{
    exit::Failure,
    lifecycle::{
        drive::{Until, drive},
        open, receipt, results,
    },
};

/// Run a job from start to finish: data, trainer, machine, training, results, clean-up
///
/// The log goes to stderr, the receipt to stdout. Before the job runs, Ctrl-C or SIGTERM undoes everything. After that, it only
/// detaches and the job goes on.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  ftctl run job.toml\n  ftctl run job.toml --set train.steps=50 --ttl 30m")]
pub struct Arguments {
    #[command(flatten)]
    pub file: JobFile,
    /// A second run with the same key and name refers to the same job
    #[arg(long, value_name = "KEY")]
    idempotency_key: Option<String>,
    /// Wait until no other job has the name, instead of refusing
    #[arg(long)]
    queue: bool,
    #[command(flatten)]
    waiting: follow::Waiting,
    #[command(flatten)]
    adopt: Adopt,
}

impl Arguments {
    pub fn run(self, app: &mut App<'_>) -> Result<(), Failure> {
        let (mut world, plan) = app.block_on(self.file.open(app))?;
        if app.dry_run {
            return app.output.show(&Planned::of(plan, &world));
        }
        let (record, settled) = app.block_on(async {
            let key = self.idempotency_key.as_deref();
            if self.queue {
                open::wait_for_name(&world, &plan.name, key).await?;
            }
            let record = Box::pin(open::open(&world, plan, key, true)).await?.record;
            self.adopt.ask(app, &mut world, &record)?;
            let id = record.id;
            world.report.line(&format!("job {id}"));
            follow::or_roll_back(&world, &id, Box::pin(drive(&world, &id, Until::Running))).await?;
            let record = self.waiting.to_the_end(&world, &id, Box::pin(follow::log_to_stderr(&world, &id))).await?;
            let results = results::of(world.store.as_ref(), &record).await?;
            let settled = Settled { receipt: receipt::receipt(&record, Timestamp::now()), results };
            Ok((record, settled))
        })?;
        app.output.conclude(&settled, follow::verdict(&record))
    }
}
