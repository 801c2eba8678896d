//! What will run: the trainer built on this machine, or the image that the machine starts, as the provider wants it.

use super::{Next, Result, STAGES, World, journal::Journal, provision};
use crate::{
    docker,
    exit::{Exit, Failure},
    image::{container, trainer},
    job::{order::TrainerImage, plan::Plan},
    provider::TrainerFrom,
};

pub(super) async fn step(world: &World, job: &mut Journal) -> Result<Next> {
    let trainer = match world.provider.capabilities().trainer {
        TrainerFrom::Build => {
            world.report.stage(2, STAGES, "Building the trainer");
            trainer::ensure(&world.cache, world.report.as_ref()).await?
        }
        TrainerFrom::Engine => TrainerImage::Image { reference: Box::pin(on_engine(world, &job.record.plan)).await? },
        TrainerFrom::Image => TrainerImage::Image { reference: job.record.plan.image().ok_or_else(no_image)?.to_owned() },
        TrainerFrom::Nowhere => TrainerImage::None,
    };
    job.record.trainer = Some(trainer);
    provision::begin_attempt(world, job).await?;
    Ok(Next::Now)
}

/// The image that the plan names, or the one that the engine builds from what this ftctl carries, by its content.
async fn on_engine(world: &World, plan: &Plan) -> Result<String> {
    if let Some(named) = plan.image() {
        return Ok(named.to_owned());
    }
    world.report.stage(2, STAGES, "Building the image");
    let engine = docker::connect(world.report.as_ref()).await?;
    Ok(container::ensure(&engine, &plan.image, &world.cache, world.report.as_ref()).await?.id)
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
