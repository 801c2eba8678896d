//! `ftctl down`: machines are destroyed, and the backend is asked whether that is true.

use std::collections::{BTreeMap, BTreeSet};

use clap::Args;
use serde_json::{Value, json};

use super::{
    App, Place, completion,
    intent::Intent,
    machines::{self, Machine},
};
use crate::{
    exit::{Exit, Failure},
    job::id::JobId,
    lifecycle::{World, down, journal, open},
    output::{Show, format},
    provider::registry::names,
};

/// Destroy a job's machines and prove that they are gone
///
/// It also works when the machines were only partly created, and when you run it again. If the job's record is lost, name its
/// backend with --backend. Logs, checkpoints and data stay in the store.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  ftctl down quickstart -y\n  ftctl down first second -y\n  ftctl down --all -y")]
pub struct Arguments {
    /// Ids or names of the jobs
    #[arg(add = completion::jobs(), value_name = "JOB")]
    jobs: Vec<String>,
    /// End all jobs in this store, destroy your machines of this store on the backend, and remove build leftovers; without
    /// `--backend`, also on every other backend that costs nothing
    #[arg(long, conflicts_with = "jobs")]
    all: bool,
    /// Machines of other users and stores as well: shows whose they are, and asks
    #[arg(long)]
    everybody: bool,
    /// End a job of a simulated cloud that has ended, without asking that cloud
    #[arg(long, requires = "jobs", conflicts_with_all = ["all", "everybody"])]
    cloud_is_gone: bool,
    #[command(flatten)]
    pub place: Place,
}

impl Arguments {
    pub fn run(self, app: &mut App<'_>) -> Result<(), Failure> {
        if self.cloud_is_gone {
            return forget(app, &self.jobs);
        }
        if self.jobs.is_empty() && !self.all {
            let failure = Failure::new(Exit::Usage, "`ftctl down` does not say which job");
            return Err(failure.fix("name a job, or add --all for every job of this store"));
        }
        let places = self.places(app)?;
        let (Meant { jobs, machines }, mut rest) =
            app.block_on(async { Ok((self.meant(app, &places).await?, self.rest(&places, true).await?)) })?;
        if self.everybody && !machines.is_empty() {
            machines::show(&places[0].1, &machines);
        }
        if app.dry_run {
            let acts = app.block_on(preview(&jobs))?;
            return app.output.show(&Intent(acts.into_iter().chain(rest.iter().map(|what| format!("remove {what}"))).collect()));
        }
        if !jobs.is_empty() || !rest.is_empty() {
            app.output.confirm(&question(&jobs, &machines, rest.len()), app.yes)?;
        }
        let mut unknown = BTreeSet::new();
        app.block_on(async {
            unknown = unknown_to(&jobs).await?;
            destroy(&jobs).await?;
            // A build that was cut off may have ended meanwhile, and left more.
            rest = self.rest(&places, false).await?;
            Ok(())
        })?;
        app.output.show(&Gone { jobs: jobs.into_keys().collect(), unknown, machines, rest })
    }

    /// The backend of the settings; with `--all` and no backend named beside it, those that cost nothing to ask as well.
    fn places(&self, app: &App<'_>) -> Result<Vec<(String, World)>, Failure> {
        let open = |name: &str| app.world_of(name, self.everybody).map(|world| (name.to_owned(), world));
        let mut places = vec![open(&app.settings.backend.value)?];
        if self.all && self.place.backend.is_none() {
            let others = names().into_iter().filter(|name| *name != app.settings.backend.value);
            places.extend(others.filter_map(|name| open(name).ok()).filter(|(_, world)| !world.provider.capabilities().bills));
        }
        Ok(places)
    }

    /// Every job that is meant, and the machines that were found when all are.
    async fn meant(&self, app: &App<'_>, places: &[(String, World)]) -> Result<Meant, Failure> {
        let (_, first) = &places[0];
        let mut meant = Meant::default();
        for text in &self.jobs {
            meant.jobs.insert(id_of(first, text).await?, first.clone());
        }
        if self.all {
            let mut of_others = BTreeSet::new();
            for (backend, world) in places {
                let found = self.answered(world, down::find(world).await)?;
                of_others.extend(found.of_others);
                meant.jobs.extend(found.meant.iter().map(|resource| (resource.attempt.job.clone(), world.clone())));
                meant.machines.extend(found.meant.into_iter().map(|resource| Machine { backend: backend.clone(), resource }));
            }
            let unfinished = down::unfinished(first.store.as_ref()).await?;
            for id in unfinished.into_iter().filter(|id| !of_others.contains(id)) {
                meant.jobs.entry(id).or_insert_with(|| first.clone());
            }
        }
        for (id, world) in &mut meant.jobs {
            *world = self.backend_of(app, world, id).await?;
        }
        Ok(meant)
    }

    /// The backend that the job's record names, else the one of the settings.
    async fn backend_of(&self, app: &App<'_>, fallback: &World, id: &JobId) -> Result<World, Failure> {
        if let Ok((record, _)) = journal::read(fallback.store.as_ref(), id).await {
            return app.world_of(record.plan.backend(), self.everybody);
        }
        if self.place.backend.is_none() {
            let asked = &app.settings.backend.value;
            let what = format!("there is no record of {id} to read, so only {asked} is asked for its machines");
            fallback.report.warn(&format!("{what}; if it ran elsewhere, name its backend with --backend"));
        }
        Ok(fallback.clone())
    }

    /// Removes what builds of images left, or with `only_look` names it.
    async fn rest(&self, places: &[(String, World)], only_look: bool) -> Result<Vec<String>, Failure> {
        let mut rest = Vec::new();
        for (_, world) in places.iter().filter(|_| self.all) {
            rest.extend(self.answered(world, down::tidy(world, only_look).await)?);
        }
        Ok(rest)
    }

    /// A backend that cannot be asked is an error where money or the user's word is at stake. Elsewhere nothing of ours is known to
    /// be on it: jobs that have a record fail by themselves.
    fn answered<T: Default>(&self, world: &World, answer: Result<T, Failure>) -> Result<T, Failure> {
        match answer {
            Err(failure) if self.place.backend.is_none() && !world.provider.capabilities().bills => {
                world.report.detail(&format!("not asked for what is left: {failure}"));
                Ok(T::default())
            }
            answer => answer,
        }
    }
}

/// One that cannot be destroyed leaves the others no reason to go on billing.
async fn destroy(jobs: &BTreeMap<JobId, World>) -> Result<(), Failure> {
    let mut worst: Option<Failure> = None;
    for (id, world) in jobs {
        let Err(failure) = Box::pin(down::down(world, id)).await else { continue };
        let is_worse = worst.as_ref().is_none_or(|worst| worst.exit != Exit::MayBill && failure.exit == Exit::MayBill);
        if let Some(failure) = if is_worse { worst.replace(failure) } else { Some(failure) } {
            world.report.warn(&failure.to_string());
        }
    }
    worst.map_or(Ok(()), Err)
}

fn forget(app: &mut App<'_>, jobs: &[String]) -> Result<(), Failure> {
    let mut found = BTreeMap::new();
    for job in jobs {
        let (world, record) = app.block_on(app.job(job))?;
        down::admit_forgetting(&record)?;
        found.insert(record.id.clone(), (world, record));
    }
    if app.dry_run {
        let acts = found.values().map(|(_, record)| format!("end {} without asking {}", record.id, record.plan.backend()));
        return app.output.show(&Intent(acts.collect()));
    }
    for (id, (world, _)) in &found {
        app.block_on(down::forget(world, id))?;
    }
    let jobs = found.into_keys().collect();
    app.output.show(&Gone { jobs, unknown: BTreeSet::new(), machines: Vec::new(), rest: Vec::new() })
}

fn question(jobs: &BTreeMap<JobId, World>, machines: &[Machine], rest: usize) -> String {
    let names: Vec<&str> = jobs.keys().map(JobId::as_str).collect();
    let others = machines::of_others(machines.iter().map(|machine| &machine.resource));
    let destroy = (!names.is_empty()).then(|| format!("Destroy the machines of {}?", names.join(", ")));
    let rest = (rest > 0).then(|| format!("Remove {} that builds of images left?", format::of(rest as u64, "thing")));
    others + &destroy.into_iter().chain(rest).collect::<Vec<_>>().join(" ")
}

async fn preview(jobs: &BTreeMap<JobId, World>) -> Result<Vec<String>, Failure> {
    let mut acts = Vec::new();
    for (id, world) in jobs {
        acts.extend(down::preview(world, id).await?);
    }
    Ok(acts)
}

/// The jobs that the user means.
#[derive(Default)]
struct Meant {
    /// With the world of each one's backend.
    jobs: BTreeMap<JobId, World>,
    machines: Vec<Machine>,
}

/// The record may be lost; the machines are found by the id alone.
async fn id_of(world: &World, text: &str) -> Result<JobId, Failure> {
    match (open::find(world.store.as_ref(), text).await, JobId::parse(text)) {
        (Err(failure), Some(id)) if failure.exit == Exit::NotFound => Ok(id),
        (found, _) => found,
    }
}

/// The jobs without a record, and without a machine where one was looked for: they may be a misspelling.
async fn unknown_to(jobs: &BTreeMap<JobId, World>) -> Result<BTreeSet<JobId>, Failure> {
    let mut unknown = BTreeSet::new();
    for (id, world) in jobs {
        let read = journal::read(world.store.as_ref(), id).await;
        if read.is_err_and(|failure| failure.exit == Exit::NotFound) && down::preview(world, id).await?.is_empty() {
            unknown.insert(id.clone());
        }
    }
    Ok(unknown)
}

struct Gone {
    jobs: Vec<JobId>,
    /// Those of them that nothing is known of.
    unknown: BTreeSet<JobId>,
    /// With `--all` those that were found.
    machines: Vec<Machine>,
    /// Resources of no job.
    rest: Vec<String>,
}

impl Show for Gone {
    fn schema(&self) -> &'static str {
        "ftctl.down/1"
    }

    fn json(&self) -> Value {
        json!({ "gone": self.jobs, "unknown": self.unknown, "machines": self.machines, "removed": self.rest })
    }

    fn text(&self) -> String {
        if self.jobs.is_empty() && self.rest.is_empty() {
            return "there is nothing to destroy".to_owned();
        }
        let is = |id| if self.unknown.contains(id) { "no machine, and no record" } else { "gone" };
        let jobs = self.jobs.iter().map(|id| format!("{id}: {}", is(id)));
        jobs.chain(self.rest.iter().map(|what| format!("{what}: gone"))).collect::<Vec<_>>().join("\n")
    }

    fn names(&self) -> Vec<String> {
        self.jobs.iter().map(JobId::to_string).collect()
    }
}
