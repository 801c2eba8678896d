//! `ftctl cancel`: the end of a job, gracefully and then by force.

use std::time::Duration;

use clap::Args;

use super::{App, completion, intent::Intent, submit::Submitted, wait::Ended};
use crate::{
    exit::Failure,
    job::{record::Record, units::Span},
    lifecycle::{
        World, cancel, down,
        drive::{Until, drive},
    },
};

/// End jobs: each writes a checkpoint, stops, and its machine is destroyed
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  ftctl cancel quickstart\n  ftctl cancel first second --now")]
pub struct Arguments {
    /// Ids or names of the jobs
    #[arg(add = completion::jobs(), required = true, value_name = "JOB")]
    jobs: Vec<String>,
    /// Time to write a checkpoint before the job is killed
    #[arg(long, value_name = "DURATION", default_value = "30s")]
    grace: Span,
    /// Stop at once, without a checkpoint
    #[arg(long, conflicts_with = "grace")]
    now: bool,
}

impl Arguments {
    pub fn run(self, app: &mut App<'_>) -> Result<(), Failure> {
        let mut found: Vec<(World, Record)> = Vec::new();
        for job in &self.jobs {
            let (world, record) = app.block_on(app.job(job))?;
            // It may be named twice: by its id and its name.
            if !found.iter().any(|(_, other)| other.id == record.id) {
                found.push((world, record));
            }
        }
        if app.dry_run {
            let mut acts = Vec::new();
            for (world, record) in found.iter().filter(|(_, record)| !record.state.is_finished()) {
                acts.extend(app.block_on(down::preview(world, &record.id))?);
            }
            return app.output.show(&Intent(acts));
        }
        let grace = if self.now { Duration::ZERO } else { self.grace.0 };
        // All are asked before one is waited for, so that they write their checkpoints at the same time.
        for (world, record) in &found {
            app.block_on(cancel::ask(world, &record.id, grace))?;
        }
        let mut ended = Ended(Vec::new());
        let mut verdict = Ok(());
        for (world, record) in &found {
            if record.state.is_finished() {
                world.report.line(&format!("the job {} was over before: {}", record.id, record.state.label(record.outcome)));
            }
            match app.block_on(Box::pin(drive(world, &record.id, Until::Ended))) {
                Ok(record) => ended.0.push(Submitted::of(&record)),
                // The others are ended all the same.
                Err(failure) if verdict.is_ok() => verdict = Err(failure),
                Err(failure) => world.report.warn(&failure.to_string()),
            }
        }
        app.output.conclude(&ended, verdict)
    }
}
