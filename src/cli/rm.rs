//! `ftctl rm`: jobs that no one wants to see any more.

use clap::Args;
use serde_json::{Value, json};

use super::{App, completion, intent::Intent};
use crate::{exit::Failure, job::id::JobId, lifecycle::remove, output::Show};

/// Remove finished jobs from the store: records, logs, checkpoints and results
///
/// Datasets stay, because other jobs may need them; `ftctl prune --data` removes those that no job needs.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  ftctl rm quickstart\n  ftctl rm first second -y")]
pub struct Arguments {
    /// Ids or names of the jobs
    #[arg(add = completion::jobs(), required = true, value_name = "JOB")]
    jobs: Vec<String>,
}

impl Arguments {
    pub fn run(self, app: &mut App<'_>) -> Result<(), Failure> {
        let mut found = Vec::new();
        for job in &self.jobs {
            let store = app.store()?;
            let id = app.block_on(remove::find(store.as_ref(), job))?;
            let (world, record) = app.block_on(app.job(id.as_str()))?;
            app.block_on(remove::may_go(&world, &id))?;
            if record.removing {
                world.report.line(&format!("the removal of {id} was interrupted: this command ends it"));
            }
            // It may be named twice: by its id and its name.
            if !found.iter().any(|(_, id)| *id == record.id) {
                found.push((world, record.id));
            }
        }
        let names = found.iter().map(|(_, id)| id.to_string()).collect::<Vec<_>>();
        if app.dry_run {
            return app.output.show(&Intent(names.iter().map(|id| format!("remove the job {id}")).collect()));
        }
        let question = format!("Remove {} with logs, checkpoints and results?", names.join(", "));
        app.output.confirm(&question, app.yes)?;
        for (world, id) in &found {
            app.block_on(remove::remove(world, id))?;
        }
        app.output.show(&Removed(found.into_iter().map(|(_, id)| id).collect()))
    }
}

struct Removed(Vec<JobId>);

impl Show for Removed {
    fn schema(&self) -> &'static str {
        "ftctl.removed/1"
    }

    fn json(&self) -> Value {
        json!({ "jobs": self.0 })
    }

    fn text(&self) -> String {
        self.0.iter().map(|id| format!("{id}: removed")).collect::<Vec<_>>().join("\n")
    }

    fn names(&self) -> Vec<String> {
        self.0.iter().map(ToString::to_string).collect()
    }
}
