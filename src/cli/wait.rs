//! `ftctl wait`: the end of jobs, without their logs.

use clap::Args;
use serde_json::{Value, json};

use super::{App, adopt::Adopt, completion, follow, submit::Submitted};
use crate::{exit::Failure, job::state::State, output::Show};

/// Wait for the end of jobs, one after the other; the exit code is that of the first job that failed
///
/// As `ftctl logs -f`, it also recovers a preempted job if no other ftctl does: a job that was submitted on this machine, or any
/// job with --adopt.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  ftctl wait quickstart\n  ftctl wait first second --timeout 2h -o json")]
pub struct Arguments {
    /// Ids or names of the jobs
    #[arg(add = completion::jobs(), required = true)]
    jobs: Vec<String>,
    #[command(flatten)]
    waiting: follow::Waiting,
    #[command(flatten)]
    adopt: Adopt,
}

impl Arguments {
    pub fn run(mut self, app: &mut App<'_>) -> Result<(), Failure> {
        let mut meant = Vec::new();
        for job in &self.jobs {
            let (mut world, record) = app.block_on(app.job(job))?;
            self.adopt.ask(app, &mut world, &record)?;
            meant.push((world, record));
        }
        let mut ended = Ended(Vec::new());
        let mut verdict = Ok(());
        let (mut meant, mut interrupted) = (meant.into_iter(), None);
        for (world, record) in meant.by_ref() {
            if record.state != State::Finished {
                app.output.report().line(&format!("Waiting for the end of {}", record.id));
            }
            match app.block_on(Box::pin(self.waiting.until_the_end(&world, &record.id, async { Ok(()) }))) {
                Ok(record) => {
                    verdict = verdict.and(follow::verdict(&record));
                    ended.0.push(Submitted::of(&record));
                }
                Err(failure) => {
                    interrupted = Some(failure.exit);
                    verdict = verdict.and(Err(failure));
                    break;
                }
            }
        }
        // The wait for the others is over as well.
        let others = meant.filter(|(_, record)| record.state != State::Finished);
        for (world, record) in others.filter(|_| interrupted.is_some_and(|exit| self.waiting.cancels(exit))) {
            app.block_on(Box::pin(follow::cancel(&world, &record.id)))?;
        }
        app.output.conclude(&ended, verdict)
    }
}

/// Jobs that were waited for, and their ends.
pub struct Ended(pub Vec<Submitted>);

impl Show for Ended {
    fn schema(&self) -> &'static str {
        "ftctl.ended/1"
    }

    fn json(&self) -> Value {
        json!({ "jobs": self.lines() })
    }

    fn text(&self) -> String {
        self.0.iter().map(|job| format!("{}: {}", job.id, job.state)).collect::<Vec<_>>().join("\n")
    }

    fn names(&self) -> Vec<String> {
        self.0.iter().map(|job| job.id.clone()).collect()
    }

    fn lines(&self) -> Vec<Value> {
        self.0.iter().map(Show::json).collect()
    }
}
