//! `ftctl up`: data, image and machine are made ready; the job is not handed over yet.

use clap::Args;

use super::{App, Budget, JobFile, Place, follow, submit::Submitted};
use crate::{
    exit::Failure,
    lifecycle::{
        drive::{Until, drive},
        plan,
    },
};

/// Make everything ready for a job: data, trainer, machine
///
/// Running it again finds what is there. `ftctl submit` with the same file goes on from here, `ftctl down` undoes it.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  ftctl up job.toml --ttl 2h --max-cost 5USD")]
pub struct Arguments {
    #[command(flatten)]
    file: JobFile,
    #[command(flatten)]
    pub place: Place,
    #[command(flatten)]
    pub budget: Budget,
}

impl Arguments {
    pub fn run(self, app: &mut App<'_>) -> Result<(), Failure> {
        let plan = self.file.plan(app)?;
        let submitted = app.block_on(async {
            let plan = super::plan::priced(app, plan).await?;
            let world = app.world_of_plan(&plan)?;
            let job = plan::open(&world, plan, None, false).await?;
            let id = job.record.id.clone();
            let record = follow::or_roll_back(&world, &id, Box::pin(drive(&world, &id, Until::Provisioned))).await?;
            follow::verdict(&record).map(|()| Submitted::of(&record))
        })?;
        app.output.show(&submitted)
    }
}
