//! What is left over: found from the provider's own truth, whatever the records say.

use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;

use super::{Result, World, journal, teardown};
use crate::{
    exit::Exit,
    job::{id::JobId, plan::DataPlan, state::State},
    provider::Resource,
    store::{
        self, dataset,
        sweep::{Needed, Unneeded},
    },
};

/// Nothing younger is taken for unneeded.
const DAY: Duration = Duration::from_secs(86_400);

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
        Err(failure) if failure.exit == Exit::NotFound => Ok(match &resource.store {
            // It may be training: who looks into that store knows.
            Some(store) if store != world.store.url() => {
                world
                    .report
                    .line(&format!("{} is left alone until its time is over: its job is in the store {store}", resource.name));
                None
            }
            _ => Some("no record of its job in this store".to_owned()),
        }),
        Err(failure) => Err(failure),
    }
}

/// What is in the store for no job and no name, and is older than a day by this machine's clock. A record that cannot be read is an
/// error: what it needs could not be kept.
pub async fn find_data(world: &World, now: Timestamp) -> Result<Unneeded> {
    let mut needed = Needed::default();
    for (id, record) in journal::all(world.store.as_ref()).await? {
        let record = record?;
        if let DataPlan::Digest(digest) = record.plan.data {
            needed.datasets.insert(digest);
        }
        needed.datasets.extend(record.dataset.into_iter().chain(record.initial_weights));
        needed.jobs.insert(id);
    }
    needed.datasets.extend(dataset::all_named(world.store.as_ref()).await?);
    Ok(store::sweep::find(&world.store, &needed, now, DAY).await?)
}

/// Removes it, and says what an upload at the same time has to send again.
pub async fn remove_data(world: &World, unneeded: &Unneeded) -> Result<()> {
    for digest in store::sweep::remove(&world.store, unneeded).await? {
        world.report.warn(&format!("the dataset {digest} was uploaded meanwhile and is incomplete now; upload it again"));
    }
    Ok(())
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
