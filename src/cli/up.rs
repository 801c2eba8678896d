//! `ftctl up`: data, image and machine are made ready; the job is not handed over yet.

use clap::Args;

use super::{App, JobFile, adopt::Adopt, follow, plan::Planned, submit::Submitted};
use crate::{
    exit::Failure,
    job::state::State,
    lifecycle::{
        drive::{Until, drive},
        open,
    },
};

/// Make everything ready for a job: data, trainer, machine
///
/// Running it again reuses what is ready. `ftctl submit` with the same file continues from here; `ftctl down` undoes it. On Azure
/// ML the machine comes with `ftctl submit`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  ftctl up job.toml --ttl 2h --max-cost 5USD")]
pub struct Arguments {
    #[command(flatten)]
    pub file: JobFile,
    #[command(flatten)]
    pub adopt: Adopt,
}

impl Arguments {
    pub fn run(self, app: &mut App<'_>) -> Result<(), Failure> {
        let (mut world, plan) = app.block_on(self.file.open(app))?;
        if app.dry_run {
            return app.block_on(async { Ok(Planned::of(plan, &world, None).await) })?.tell(app);
        }
        let submitted = app.block_on(async {
            let record = self.adopt.opened(app, Box::pin(open::open(&world, plan, None, false))).await?.record;
            self.adopt.ask(app, &mut world, &record)?;
            let up = Box::pin(drive(&world, &record.id, Until::Provisioned));
            let record = follow::or_roll_back(&world, &record, up).await?;
            if record.state == State::Imaging {
                world.report.line("The service gives the job a node after `ftctl submit`. Nothing is billed until then.");
            }
            follow::verdict(&record).map(|()| Submitted::of(&record))
        })?;
        app.output.show(&submitted)
    }
}
