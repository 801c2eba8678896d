//! What will run: the trainer built on this machine, or the image that the machine starts, as the provider wants it.

use super::{Next, Result, STAGES, World, journal::Journal, provision};
use crate::{
    exit::{Exit, Failure},
    image::trainer,
    job::order::TrainerImage,
    provider::TrainerFrom,
};

pub(super) async fn step(world: &World, job: &mut Journal) -> Result<Next> {
    world.report.stage(2, STAGES, "Building the trainer");
    job.record.trainer = Some(match world.provider.capabilities().trainer {
        TrainerFrom::Build => trainer::ensure(&world.cache, world.report.as_ref()).await?,
        TrainerFrom::Image => TrainerImage::Image { reference: job.record.plan.image().ok_or_else(no_image)?.to_owned() },
        TrainerFrom::Nowhere => TrainerImage::None,
    });
    provision::begin_attempt(world, job).await?;
    Ok(Next::Now)
}

fn no_image() -> Failure {
    Failure::new(Exit::Usage, "the job names no container image")
        .fix("add image = \"...\" to the table of its backend below [compute]")
}
