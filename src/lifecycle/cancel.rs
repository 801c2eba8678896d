//! The user's wish to end a job: written to the store, where the agent and every supervisor see it.

use std::time::Duration;

use super::{
    Result, World,
    drive::{Until, drive},
    journal,
};
use crate::{
    job::{
        id::{JobId, path},
        order::{CANCEL_SCHEMA, CancelRequest},
        record::Record,
    },
    store::{Condition, write_json},
};

/// Asks the job to stop within `grace` and waits until nothing of it is left. A finished job stays as it is. Anyone may: of another
/// user's job nothing but the end is carried out.
pub async fn cancel(world: &World, id: &JobId, grace: Duration) -> Result<Record> {
    ask(world, id, grace).await?;
    drive(world, id, Until::Ended).await
}

/// Asks the job to stop within `grace`, unless it is finished, and waits for nothing.
pub async fn ask(world: &World, id: &JobId, grace: Duration) -> Result<()> {
    if journal::read(world.store.as_ref(), id).await?.0.state.is_finished() {
        return Ok(());
    }
    let request = CancelRequest { schema: CANCEL_SCHEMA.to_owned(), time: world.clock.now(), grace_seconds: grace.as_secs() };
    Ok(write_json(world.store.as_ref(), &path::cancel(id), &request, Condition::Always).await.map(drop)?)
}
