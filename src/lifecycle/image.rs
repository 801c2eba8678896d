//! What will run: the trainer built on this machine, or the image that the machine starts, as the provider wants it.

use super::{Next, Result, STAGES, World, attempt, journal::Journal};
use crate::{
    docker,
    exit::{Exit, Failure},
    image::{container, trainer},
    job::{
        order::{TrainerImage, program},
        plan::Plan,
        record::Record,
    },
    provider::TrainerFrom,
};

pub(super) async fn step(world: &World, job: &mut Journal) -> Result<Next> {
    match world.provider.capabilities().trainer {
        TrainerFrom::Build => world.report.stage(2, STAGES, "Building the trainer"),
        TrainerFrom::Engine if job.record.plan.image().is_none() => world.report.stage(2, STAGES, "Building the image"),
        TrainerFrom::Engine | TrainerFrom::Image | TrainerFrom::Nowhere => {}
    }
    job.record.trainer = Some(of(world, &job.record).await?);
    attempt::request(world, job).await?;
    Ok(Next::Now)
}

/// What runs an attempt: by the plan and what is on this side. What a record remembers of it names at most a program that this machine has
/// built, and whatever it has not built it builds.
pub(super) async fn of(world: &World, record: &Record) -> Result<TrainerImage> {
    Ok(match (world.provider.capabilities().trainer, &record.trainer) {
        (TrainerFrom::Build, Some(TrainerImage::Program { digest })) if program(&world.cache, digest).is_file() => {
            TrainerImage::Program { digest: digest.clone() }
        }
        (TrainerFrom::Build, _) => TrainerImage::Program { digest: trainer::ensure(&world.cache, world.report.as_ref()).await? },
        (TrainerFrom::Engine, _) => on_engine(world, record).await?,
        (TrainerFrom::Image, _) => TrainerImage::Image { reference: record.plan.image().ok_or_else(no_image)?.to_owned() },
        (TrainerFrom::Nowhere, _) => TrainerImage::None,
    })
}

/// The image that the plan names, or the one that the engine builds from what this ftctl carries: once for a job that was submitted here.
async fn on_engine(world: &World, record: &Record) -> Result<TrainerImage> {
    let plan = &record.plan;
    if let Some(named) = plan.image() {
        return Ok(TrainerImage::Image { reference: named.to_owned() });
    }
    if let Some(made) = world.adoption.made(record) {
        return Ok(made);
    }
    let engine = docker::connect(world.report.as_ref()).await?;
    let made = Box::pin(container::ensure(&engine, &plan.image, &world.cache, world.report.as_ref())).await?;
    let image = TrainerImage::Image { reference: made.id };
    if world.adoption.is_own(record) {
        world.adoption.prove(&record.id, plan, Some(&image))?;
    }
    Ok(image)
}

/// What a build of the job's image reads of this machine.
pub(super) fn local_path<'p>(world: &World, plan: &'p Plan) -> Option<&'p str> {
    let builds = world.provider.capabilities().trainer == TrainerFrom::Engine && plan.image().is_none();
    plan.image.prebuilt.as_deref().or(plan.image.ca_bundle.as_deref()).filter(|_| builds)
}

/// Refuses a job whose machines start an image and that names none: before its data is sent.
pub fn check(world: &World, plan: &Plan) -> Result<()> {
    match (world.provider.capabilities().trainer, plan.image()) {
        (TrainerFrom::Image, None) => Err(no_image()),
        _ => Ok(()),
    }
}

fn no_image() -> Failure {
    Failure::new(Exit::Usage, "the job names no container image")
        .fix("add image = \"...\" to the table of its backend below [compute]")
}
