//! The work is done: make sure that what the user wants is in the store before anything is destroyed.

use super::{Next, Result, STAGES, World, journal::Journal, observe};
use crate::{exit::Exit, job::state::Outcome, store::checkpoint};

pub(super) async fn step(world: &World, job: &mut Journal) -> Result<Next> {
    world.report.stage(6, STAGES, "Collecting");
    let (store, record) = (world.store.as_ref(), &job.record);
    let trained = observe::last_step(store, &record.id, record.attempt).await?.unwrap_or(0);
    let (outcome, exit, reason) = match checkpoint::latest(store, &record.id).await? {
        Some(newest) if newest.step >= trained => (Outcome::Succeeded, Exit::Done, format!("finished at step {}", newest.step)),
        Some(newest) => {
            let reached = format!("the training reached step {trained}, but the newest checkpoint in the store is of step");
            (Outcome::Failed, Exit::Integrity, format!("{reached} {}; `ftctl resume` goes on from there", newest.step))
        }
        None => {
            let reason = "the trainer reported success, but no checkpoint reached the store".to_owned();
            (Outcome::Failed, Exit::Integrity, reason)
        }
    };
    job.end(outcome, exit, reason).await?;
    Ok(Next::Now)
}
