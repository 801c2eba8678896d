//! The arguments and the first steps that are common to every verb that reads a job file.

use std::path::{Path, PathBuf};

use clap::Args;

use super::{App, Budget, Place, completion, model};
use crate::{
    exit::Failure,
    job::{plan::Plan, spec::JobSpec},
    lifecycle::{World, image},
    provider::registry,
    settings::{self, OpenError},
};

#[derive(Debug, Args)]
pub struct JobFile {
    /// The job file
    #[arg(value_name = "FILE")]
    pub path: PathBuf,
    /// Set one value of the job file, such as train.steps=500; `train.steps=` unsets it; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE", add = completion::keys())]
    set: Vec<String>,
    /// Causes that lead to another attempt, or `none`
    #[arg(long, value_name = "CAUSES", value_delimiter = ',', value_parser = ["preempt", "capacity", "failure", "none"])]
    retry_on: Vec<String>,
    #[command(flatten)]
    pub place: Place,
    #[command(flatten)]
    pub budget: Budget,
}

impl JobFile {
    /// A file without anything laid over it.
    pub fn new(path: PathBuf) -> Self {
        Self { path, set: Vec::new(), retry_on: Vec::new(), place: Place::default(), budget: Budget::default() }
    }

    /// The checked job.
    pub fn read(&self) -> Result<JobSpec, Failure> {
        let mut document = settings::open(&self.path).map_err(|error| match error {
            OpenError::Directory(ref path) => {
                let fix = format!("name a job file, such as {}", path.join("job.toml").display());
                Failure::from(error).fix(fix)
            }
            error => error.into(),
        })?;
        for assignment in &self.set {
            document.set(assignment)?;
        }
        if !self.retry_on.is_empty() {
            let causes: Vec<&String> = self.retry_on.iter().filter(|cause| *cause != "none").collect();
            document.set(&format!("retry.on = {causes:?}"))?;
        }
        Ok(JobSpec::read(&document, registry::rules)?)
    }

    /// Opens the job's world, and plans the job there with the price of its backend, which must answer.
    pub async fn open(&self, app: &App<'_>) -> Result<(World, Plan), Failure> {
        let (world, plan) = self.priced(app).await?;
        image::check(&world, &plan)?;
        world.provider.answers().await?;
        if let Some(list) = plan.price_list() {
            world.report.warn(&format!("costs are counted by the {list}: today's price may be another, and the bill with it"));
        }
        Ok((world, plan))
    }

    /// [`JobFile::open`] with a backend that may be out of reach.
    pub async fn priced(&self, app: &App<'_>) -> Result<(World, Plan), Failure> {
        let plan = model::resolve(app, self.plan(app)?).await?;
        let world = app.world_of_plan(&plan)?;
        world.provider.admit_store(&plan.store)?;
        let price = world.provider.price(&plan).await?;
        Ok((world, plan.priced(price)?))
    }

    /// Whether the command line says where jobs run in the file's place.
    fn sets(&self, place: &str) -> bool {
        let key = if place == "backend" { "compute.backend" } else { place };
        let typed = |assignment: &String| assignment.split('=').next().is_some_and(|typed| typed.trim() == key);
        self.set.iter().any(typed)
    }

    /// The job's plan here; its price is still open.
    pub fn plan(&self, app: &App<'_>) -> Result<Plan, Failure> {
        let spec = self.read()?;
        let file = app.working_directory.join(&self.path);
        let mut claims = app.settings.claims(&spec, file.clone())?;
        claims.places.retain(|key, _| !self.sets(key));
        app.admit(&claims)?;
        let directory = file.parent().unwrap_or(Path::new("/"));
        let choices = app.settings.choices(&spec, directory)?;
        let compute = registry::compute(&choices.backend, &spec.compute)?;
        Ok(Plan::resolve(&spec, compute, choices, directory)?)
    }
}
