//! `ftctl run`: the whole life of a job.

use clap::Args;

use super::{App, JobFile, adopt::Adopt, bill, follow, plan::Planned, submit::Opening};
use crate::{
    exit::Failure,
    lifecycle::drive::{Until, drive},
};

/// Run a job from start to finish: data, trainer, machine, training, results, clean-up
///
/// The log goes to stderr, the receipt to stdout. Before the job runs, Ctrl-C, SIGTERM or SIGHUP undoes everything. After that,
/// it only detaches and the job goes on.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  ftctl run job.toml\n  ftctl run job.toml --set train.steps=50 --ttl 30m")]
pub struct Arguments {
    #[command(flatten)]
    pub file: JobFile,
    #[command(flatten)]
    opening: Opening,
    #[command(flatten)]
    waiting: follow::Waiting,
    #[command(flatten)]
    adopt: Adopt,
}

impl Arguments {
    pub fn run(mut self, app: &mut App<'_>) -> Result<(), Failure> {
        let (mut world, plan) = app.block_on(self.file.open(app))?;
        if app.dry_run {
            return app.block_on(async { Ok(Planned::of(plan, &world, None).await) })?.tell(app);
        }
        let (record, settled) = app.block_on(async {
            let record = self.opening.open(app, self.adopt, &world, plan, &mut self.waiting).await?;
            self.adopt.ask(app, &mut world, &record)?;
            let id = record.id.clone();
            world.report.line(&format!("job {id}"));
            let running = follow::or_roll_back(&world, &record, Box::pin(drive(&world, &id, Until::Running)));
            self.waiting.until_it_runs(&world, &id, running).await?;
            let record = self.waiting.until_the_end(&world, &id, Box::pin(follow::log_to_stderr(&world, &id))).await?;
            let settled = bill::settled(&world, &record).await?;
            Ok((record, settled))
        })?;
        app.output.conclude(&settled, follow::verdict(&record))
    }
}
