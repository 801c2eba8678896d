//! `ftctl down`: machines are destroyed, and the backend is asked whether that is true.

use clap::Args;
use serde_json::{Value, json};

use super::{App, Place, intent::Intent};
use crate::{
    exit::{Exit, Failure},
    job::id::JobId,
    lifecycle::{World, down, plan},
    output::Show,
};

/// Destroy a job's machines and prove that they are gone
///
/// Works with a lost record, twice, and on half-made things. Logs, checkpoints and data stay in the store.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  ftctl down quickstart -y\n  ftctl down --all -y")]
pub struct Arguments {
    /// Id or name of the job
    #[arg(required_unless_present = "all")]
    job: Option<String>,
    /// Every job of this store, and every machine of the backend
    #[arg(long, conflicts_with = "job")]
    all: bool,
    #[command(flatten)]
    pub place: Place,
}

impl Arguments {
    pub fn run(self, app: &mut App<'_>) -> Result<(), Failure> {
        let fallback = app.world(&app.settings.backend.value)?;
        let jobs = app.block_on(self.jobs(&fallback))?;
        if app.dry_run {
            let acts = app.block_on(preview(app, &fallback, &jobs))?;
            return app.output.show(&Intent(acts));
        }
        if jobs.is_empty() {
            return app.output.show(&Gone { jobs });
        }
        let names: Vec<&str> = jobs.iter().map(JobId::as_str).collect();
        app.output.confirm(&format!("Destroy the machines of {}?", names.join(", ")), app.yes)?;
        app.block_on(async {
            for id in &jobs {
                let world = backend_of(app, &fallback, id).await?;
                down::down(&world, id).await?;
            }
            Ok(())
        })?;
        app.output.show(&Gone { jobs })
    }

    async fn jobs(&self, world: &World) -> Result<Vec<JobId>, Failure> {
        let Some(text) = &self.job else { return down::everything(world).await };
        match (plan::find(world.store.as_ref(), text).await, JobId::parse(text)) {
            (Ok(id), _) => Ok(vec![id]),
            // The record may be lost; the machines are found by the id alone.
            (Err(failure), Some(id)) if failure.exit == Exit::NotFound => Ok(vec![id]),
            (Err(failure), _) => Err(failure),
        }
    }
}

async fn preview(app: &App<'_>, fallback: &World, jobs: &[JobId]) -> Result<Vec<String>, Failure> {
    let mut acts = Vec::new();
    for id in jobs {
        acts.extend(down::preview(&backend_of(app, fallback, id).await?, id).await?);
    }
    Ok(acts)
}

/// The backend that the job's record names, else the one of the settings.
async fn backend_of(app: &App<'_>, fallback: &World, id: &JobId) -> Result<World, Failure> {
    match crate::lifecycle::journal::read(fallback.store.as_ref(), id).await {
        Ok((record, _)) => app.world(&record.plan.backend),
        Err(_) => Ok(fallback.clone()),
    }
}

struct Gone {
    jobs: Vec<JobId>,
}

impl Show for Gone {
    fn schema(&self) -> &'static str {
        "ftctl.down/1"
    }

    fn json(&self) -> Value {
        json!({ "gone": self.jobs })
    }

    fn text(&self) -> String {
        if self.jobs.is_empty() {
            return "there is nothing to destroy".to_owned();
        }
        self.jobs.iter().map(|id| format!("{id}: gone")).collect::<Vec<_>>().join("\n")
    }

    fn names(&self) -> Vec<String> {
        self.jobs.iter().map(JobId::to_string).collect()
    }
}
