//! `ftctl down`: machines are destroyed, and the backend is asked whether that is true.

use std::collections::BTreeMap;

use clap::Args;
use serde_json::{Value, json};

use super::{App, Place, intent::Intent};
use crate::{
    exit::{Exit, Failure},
    job::id::JobId,
    lifecycle::{World, down, plan},
    output::{Show, format},
    provider::registry::NAMES,
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
    /// Every job of this store, every machine of the backend, and what builds of images left; without `--backend` every backend that
    /// costs nothing to ask
    #[arg(long, conflicts_with = "job")]
    all: bool,
    #[command(flatten)]
    pub place: Place,
}

impl Arguments {
    pub fn run(self, app: &mut App<'_>) -> Result<(), Failure> {
        let worlds = self.worlds(app)?;
        let (jobs, mut rest) = app.block_on(async { Ok((self.jobs(app, &worlds).await?, self.rest(&worlds, true).await?)) })?;
        if app.dry_run {
            let acts = app.block_on(preview(&jobs))?;
            return app.output.show(&Intent(acts.into_iter().chain(rest.iter().map(|what| format!("remove {what}"))).collect()));
        }
        if !jobs.is_empty() || !rest.is_empty() {
            app.output.confirm(&question(&jobs, rest.len()), app.yes)?;
        }
        app.block_on(async {
            for (id, world) in &jobs {
                down::down(world, id).await?;
            }
            // A build that was cut off may have ended meanwhile, and left more.
            rest = self.rest(&worlds, false).await?;
            Ok(())
        })?;
        app.output.show(&Gone { jobs: jobs.into_keys().collect(), rest })
    }

    /// The backend of the settings; with `--all` and no backend named beside it, those that cost nothing to ask as well.
    fn worlds(&self, app: &App<'_>) -> Result<Vec<World>, Failure> {
        let mut worlds = vec![app.world(&app.settings.backend.value)?];
        if self.all && self.place.backend.is_none() {
            let others = NAMES.into_iter().filter(|name| *name != app.settings.backend.value);
            worlds.extend(others.filter_map(|name| app.world(name).ok()).filter(|world| !world.provider.capabilities().bills));
        }
        Ok(worlds)
    }

    /// Every job that is meant, with the world of its backend.
    async fn jobs(&self, app: &App<'_>, worlds: &[World]) -> Result<BTreeMap<JobId, World>, Failure> {
        let first = &worlds[0];
        let mut jobs = BTreeMap::new();
        if let Some(text) = &self.job {
            let id = match (plan::find(first.store.as_ref(), text).await, JobId::parse(text)) {
                (Ok(id), _) => id,
                // The record may be lost; the machines are found by the id alone.
                (Err(failure), Some(id)) if failure.exit == Exit::NotFound => id,
                (Err(failure), _) => return Err(failure),
            };
            jobs.insert(id, first.clone());
        } else {
            for world in worlds {
                let owners = self.answered(world, down::owners(world).await)?;
                jobs.extend(owners.into_iter().map(|id| (id, world.clone())));
            }
            for id in down::unfinished(first.store.as_ref()).await? {
                jobs.entry(id).or_insert_with(|| first.clone());
            }
        }
        for (id, world) in &mut jobs {
            *world = backend_of(app, world, id).await?;
        }
        Ok(jobs)
    }

    /// Removes what builds of images left, or with `only_look` names it.
    async fn rest(&self, worlds: &[World], only_look: bool) -> Result<Vec<String>, Failure> {
        let mut rest = Vec::new();
        for world in worlds.iter().filter(|_| self.all) {
            rest.extend(self.answered(world, down::tidy(world, only_look).await)?);
        }
        Ok(rest)
    }

    /// A backend that cannot be asked is an error where money or the user's word is at stake. Elsewhere nothing of ours is known to be on
    /// it: jobs that have a record fail by themselves.
    fn answered<T>(&self, world: &World, answer: Result<Vec<T>, Failure>) -> Result<Vec<T>, Failure> {
        match answer {
            Err(failure) if self.place.backend.is_none() && !world.provider.capabilities().bills => {
                world.report.detail(&format!("not asked for what is left: {failure}"));
                Ok(Vec::new())
            }
            answer => answer,
        }
    }
}

fn question(jobs: &BTreeMap<JobId, World>, rest: usize) -> String {
    let names: Vec<&str> = jobs.keys().map(JobId::as_str).collect();
    let machines = (!names.is_empty()).then(|| format!("Destroy the machines of {}?", names.join(", ")));
    let rest = (rest > 0).then(|| format!("Remove {} that builds of images left?", format::of(rest as u64, "thing")));
    machines.into_iter().chain(rest).collect::<Vec<_>>().join(" ")
}

async fn preview(jobs: &BTreeMap<JobId, World>) -> Result<Vec<String>, Failure> {
    let mut acts = Vec::new();
    for (id, world) in jobs {
        acts.extend(down::preview(world, id).await?);
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
    /// Of no job.
    rest: Vec<String>,
}

impl Show for Gone {
    fn schema(&self) -> &'static str {
        "ftctl.down/1"
    }

    fn json(&self) -> Value {
        json!({ "gone": self.jobs, "removed": self.rest })
    }

    fn text(&self) -> String {
        if self.jobs.is_empty() && self.rest.is_empty() {
            return "there is nothing to destroy".to_owned();
        }
        let jobs = self.jobs.iter().map(|id| format!("{id}: gone"));
        jobs.chain(self.rest.iter().map(|what| format!("{what}: gone"))).collect::<Vec<_>>().join("\n")
    }

    fn names(&self) -> Vec<String> {
        self.jobs.iter().map(JobId::to_string).collect()
    }
}
