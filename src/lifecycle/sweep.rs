//! What is left over: found from the provider's own truth, whatever the records say.

use serde::Serialize;

use super::{Result, World, journal, teardown};
use crate::{
    exit::Exit,
    job::{id::JobId, state::State},
    provider::Resource,
};

pub const SWEEP_SCHEMA: &str = "ftctl.sweep/1";

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Leftover {
    pub resource: Resource,
    /// Why nobody needs it.
    pub why: String,
}

/// Machines past their expiry, and (unless `expired_only`) machines whose job is finished or unknown to this store.
pub async fn find(world: &World, expired_only: bool) -> Result<Vec<Leftover>> {
    let now = world.clock.now();
    let mut leftovers = Vec::new();
    for resource in world.provider.list().await? {
        let why = match resource.expires.filter(|expires| *expires <= now) {
            Some(expires) => Some(format!("expired {expires:.0}")),
            None if expired_only => None,
            None => unneeded(world, &resource).await?,
        };
        if let Some(why) = why {
            leftovers.push(Leftover { resource, why });
        }
    }
    Ok(leftovers)
}

async fn unneeded(world: &World, resource: &Resource) -> Result<Option<String>> {
    match journal::read(world.store.as_ref(), &resource.attempt.job).await {
        Ok((record, _)) if record.state == State::Finished => Ok(Some("its job is finished".to_owned())),
        Ok(_) => Ok(None),
        Err(failure) if failure.exit == Exit::NotFound => Ok(Some("no record of its job in this store".to_owned())),
        Err(failure) => Err(failure),
    }
}

/// Destroys what was found.
pub async fn reap(world: &World, leftovers: &[Leftover]) -> Result<()> {
    let mut jobs: Vec<&JobId> = leftovers.iter().map(|leftover| &leftover.resource.attempt.job).collect();
    jobs.sort();
    jobs.dedup();
    for job in jobs {
        teardown::destroy(world, job).await?;
    }
    Ok(())
}
