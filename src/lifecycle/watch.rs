//! Somebody else's job, seen by a user who may only watch it.

use std::time::Duration;

use jiff::Timestamp;

use super::World;
use crate::{
    job::{id::path, record::Record},
    store::{ETag, Result, Store, StoreError},
};

/// Longer than a supervisor's lease lives, and than an agent is silent.
const STILL: Duration = Duration::from_secs(30);
/// How often its signs of life are looked at.
const EVERY: Duration = Duration::from_secs(2);

#[derive(Default)]
pub(super) struct Watch {
    looked: Option<Timestamp>,
    /// Tags of the supervisor's lease and of the agent's heartbeat, and since when they are the same.
    signs: Option<([Option<ETag>; 2], Timestamp)>,
    told: bool,
}

impl Watch {
    /// Says once who can go on with the job, when neither a supervisor nor an agent has moved for a while. Signs that cannot be
    /// read now are read later.
    pub async fn look(&mut self, world: &World, record: &Record) {
        let now = world.clock.now();
        let since = |then: Timestamp| Duration::try_from(now.duration_since(then)).unwrap_or_default();
        if self.told || self.looked.is_some_and(|looked| since(looked) < EVERY) {
            return;
        }
        self.looked = Some(now);
        let (store, id) = (world.store.as_ref(), &record.id);
        let (lease, heartbeat) = (path::supervisor_lease(id), path::heartbeat(id, record.attempt));
        let (Ok(driven), Ok(alive)) = (version(store, &lease).await, version(store, &heartbeat).await) else { return };
        let signs = [driven, alive];
        match &self.signs {
            Some((before, then)) if *before == signs => {
                if since(*then) >= STILL {
                    self.told = true;
                    world.report.warn(&neglected(record));
                }
            }
            _ => self.signs = Some((signs, now)),
        }
    }
}

async fn version(store: &dyn Store, path: &str) -> Result<Option<ETag>> {
    match store.get(path).await {
        Ok(object) => Ok(Some(object.etag)),
        Err(StoreError::NotFound { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

fn neglected(record: &Record) -> String {
    let id = &record.id;
    format!(
        "the job {id} is {}, and no ftctl drives it: run `ftctl logs -f {id}` on the machine where it was submitted, or `ftctl logs -f {id} --adopt` \
         here, which first shows what would be started",
        record.state.label(record.outcome)
    )
}
