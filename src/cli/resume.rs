//! `ftctl resume`: a job that is over goes on.

use std::path::Path;

use clap::Args;

use super::{App, Budget, adopt::Adopt, completion, follow, plan::Planned, submit::Until};
use crate::{
    exit::{Exit, Failure},
    job::{
        document::Document,
        plan::{Choices, Plan},
        record::Record,
        spec::JobSpec,
    },
    lifecycle::{hub, image, resume},
    provider::registry,
};

/// Continue a cancelled or failed job from its last checkpoint, or extend a finished one
///
/// It is the same job with one more attempt: weights, optimizer, schedule and position in the data are as they were. Time and cost
/// of all attempts count together: raise --ttl or --max-cost if it ran out.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  ftctl resume quickstart\n  ftctl resume quickstart --ttl 4h --max-cost 5USD --wait\n  ftctl resume quickstart --set train.steps=2000"
)]
pub struct Arguments {
    /// Id or name of the job
    #[arg(add = completion::jobs())]
    job: String,
    /// Change one setting, such as train.steps=2000; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE", add = completion::keys())]
    set: Vec<String>,
    #[command(flatten)]
    budget: Budget,
    #[command(flatten)]
    until: Until,
    #[command(flatten)]
    adopt: Adopt,
}

impl Arguments {
    pub fn run(self, app: &mut App<'_>) -> Result<(), Failure> {
        self.until.check()?;
        let (_, before) = app.block_on(app.job(&self.job))?;
        let plan = app.block_on(async { hub::pinned(&app.hub()?, self.changed(&before)?).await })?;
        let mut world = app.world_of_record(&plan)?;
        let plan = app.block_on(async {
            let plan = resume::priced(&world, &before, plan).await?;
            image::check(&world, &plan)?;
            world.provider.answers().await?;
            Ok(plan)
        })?;
        self.adopt.ask(app, &mut world, &Record { plan: plan.clone(), ..before.clone() })?;
        if app.dry_run {
            app.block_on(resume::may_go_on(&world, &before, &plan))?;
            let planned = app.block_on(async { Ok(Planned::of(plan, &world, None).await) })?;
            return app.output.show(&planned);
        }
        if resume::goes_on(&before, &plan) {
            world.report.line(&format!("the job {} went on with these settings already: {}", before.id, before.label()));
            return self.until.carry(app, &world, &before);
        }
        let record = app.block_on(follow::opened(resume::resume(&world, &before, plan)))?;
        world.report.line(&format!("the job {} goes on with attempt {}", record.id, record.attempt + 1));
        self.until.carry(app, &world, &record)
    }

    /// The job's plan with what the user changes of it. The rules are those of a job file.
    fn changed(&self, before: &Record) -> Result<Plan, Failure> {
        let plan = &before.plan;
        let assignments = self.assignments();
        if assignments.is_empty() {
            return Ok(plan.clone());
        }
        let cannot =
            |error| Failure::new(Exit::Failure, format!("cannot write the settings of {} as a job file: {error}", before.id));
        let text = toml::to_string(&plan.job_file()).map_err(cannot)?;
        let mut document = Document::new(format!("the settings of {}", before.id), text.into_bytes())?;
        assignments.iter().try_for_each(|assignment| document.set(assignment))?;
        let spec = JobSpec::read(&document, registry::rules)?;
        let choices = Choices {
            backend: spec.compute.backend.clone().unwrap_or_default(),
            image: spec.image.clone(),
            store: spec.store.clone().unwrap_or_default(),
            ttl: spec.limits.ttl.unwrap_or(plan.ttl),
            max_cost: spec.limits.max_cost,
            max_wait: spec.limits.max_wait.unwrap_or(plan.max_wait),
        };
        let compute = registry::compute(&choices.backend, &spec.compute)?;
        // What it named of the hub is still the same.
        Ok(Plan { hub: plan.hub.clone(), ..Plan::resolve(&spec, compute, choices, Path::new("/"))? })
    }

    fn assignments(&self) -> Vec<String> {
        let Budget { ttl, max_cost, max_wait } = &self.budget;
        let limits = [
            ttl.map(|ttl| format!("limits.ttl=\"{ttl}\"")),
            max_cost.map(|money| format!("limits.max_cost=\"{}\"", String::from(money))),
            max_wait.map(|wait| format!("limits.max_wait=\"{wait}\"")),
        ];
        self.set.iter().cloned().chain(limits.into_iter().flatten()).collect()
    }
}
