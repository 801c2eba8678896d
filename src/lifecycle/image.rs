//! The trainer or the image that attempts run: built or named by the provider.

use super::{Next, Result, STAGES, World, attempt, journal::Journal};
use crate::job::{order::TrainerImage, plan::Plan, record::Record};

pub(super) async fn step(world: &World, job: &mut Journal) -> Result<Next> {
    let build = world.provider.build(&job.record.plan);
    let title = build.map_or_else(|| "Nothing to build".to_owned(), |build| format!("Building {}", build.what));
    world.report.stage(2, STAGES, &title);
    job.record.trainer = Some(of(world, &job.record).await?);
    attempt::request(world, job, job.record.plan.nodes).await?;
    Ok(Next::Now)
}

/// Finds or builds what runs an attempt. A program that the record names counts where this machine has it; an image only if it is
/// proven that it was built here.
pub(super) async fn of(world: &World, record: &Record) -> Result<TrainerImage> {
    let program = record.trainer.clone().filter(|trainer| matches!(trainer, TrainerImage::Program { .. }));
    let before = program.or_else(|| world.adoption.made(record));
    let image = world.provider.image(&record.plan, before.as_ref(), world.report.as_ref()).await?;
    let is_built = matches!(image, TrainerImage::Image { .. }) && world.provider.build(&record.plan).is_some();
    if is_built && before.as_ref() != Some(&image) && world.adoption.is_own(record) {
        world.adoption.prove(&record.id, &record.plan, Some(&image))?;
    }
    Ok(image)
}

/// The path that a build of the job's image reads on this machine.
pub(super) fn local_path<'p>(world: &World, plan: &'p Plan) -> Option<&'p str> {
    world.provider.build(plan)?.reads
}

/// Refuses a job whose machines start an image and that names none: before its data is sent.
pub fn check(world: &World, plan: &Plan) -> Result<()> {
    Ok(world.provider.admit_image(plan)?)
}
