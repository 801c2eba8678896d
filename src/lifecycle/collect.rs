//! The work is done: make sure that what the user wants is in the store before anything is destroyed.

use super::{Next, Result, STAGES, World, journal::Journal};
use crate::{exit::Exit, job::state::Outcome, store::checkpoint};

pub(super) async fn step(world: &World, job: &mut Journal) -> Result<Next> {
    world.report.stage(6, STAGES, "Collecting");
    let Some(manifest) = checkpoint::latest(world.store.as_ref(), &job.record.id).await? else {
        let reason = "the trainer reported success, but no checkpoint reached the store";
        job.end(Outcome::Failed, Exit::Integrity, reason).await?;
        return Ok(Next::Now);
    };
    job.end(Outcome::Succeeded, Exit::Done, format!("finished at step {}", manifest.step)).await?;
    Ok(Next::Now)
}
