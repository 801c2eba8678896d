//! What will run: the trainer built on this machine, where the provider wants it so.

use super::{Next, Result, STAGES, World, journal::Journal, provision};
use crate::{image::trainer, job::order::TrainerImage, provider::TrainerFrom};

pub(super) async fn step(world: &World, job: &mut Journal) -> Result<Next> {
    world.report.stage(2, STAGES, "Building the trainer");
    job.record.trainer = Some(match world.provider.capabilities().trainer {
        TrainerFrom::Build => trainer::ensure(&world.cache, world.report.as_ref()).await?,
        TrainerFrom::Nowhere => TrainerImage::None,
    });
    provision::begin_attempt(world, job).await?;
    Ok(Next::Now)
}
