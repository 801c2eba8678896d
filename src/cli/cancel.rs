//! `ftctl cancel`: the end of a job, gracefully and then by force.

use std::time::Duration;

use clap::Args;

use super::{App, completion, intent::Intent, submit::Submitted};
use crate::{exit::Failure, job::units::Span, lifecycle};

/// End a job: it writes a checkpoint, stops, and its machine is destroyed
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  ftctl cancel quickstart\n  ftctl cancel quickstart --now")]
pub struct Arguments {
    /// Id or name of the job
    #[arg(add = completion::jobs())]
    job: String,
    /// Time to write a checkpoint before it is stopped by force
    #[arg(long, value_name = "DURATION", default_value = "30s")]
    grace: Span,
    /// Stop at once, without a checkpoint
    #[arg(long, conflicts_with = "grace")]
    now: bool,
}

impl Arguments {
    pub fn run(self, app: &mut App<'_>) -> Result<(), Failure> {
        let (world, record) = app.block_on(app.job(&self.job))?;
        if app.dry_run {
            let finished = record.state.is_finished();
            let acts = if finished { Vec::new() } else { app.block_on(lifecycle::down::preview(&world, &record.id))? };
            return app.output.show(&Intent(acts));
        }
        if record.state.is_finished() {
            world.report.line(&format!("the job {} was over before: {}", record.id, record.state.label(record.outcome)));
        }
        let grace = if self.now { Duration::ZERO } else { self.grace.0 };
        let ended = app.block_on(lifecycle::cancel::cancel(&world, &record.id, grace))?;
        app.output.show(&Submitted::of(&ended))
    }
}
