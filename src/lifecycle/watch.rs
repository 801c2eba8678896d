//! Another user's job, seen by one who may only watch it.

use std::time::Duration;

use jiff::Timestamp;

use super::World;
use crate::{
    job::{id::path, record::Record},
    store::{ETag, Store, StoreError, lease},
};

/// Longer than a supervisor's lease lives, and than an agent is silent.
const STILL: Duration = Duration::from_secs(30);
/// Longer than between two signs of life of an agent: enough where no supervisor holds the lease.
const ALONE: Duration = Duration::from_secs(6);
/// How often its signs of life are looked at.
const EVERY: Duration = Duration::from_secs(2);

#[derive(Default)]
pub(super) struct Watch {
    looked: Option<Timestamp>,
    /// The supervisor's lease and the agent's heartbeat, and since when they are the same.
    signs: Option<([Sign; 2], Timestamp)>,
    told: bool,
}

impl Watch {
    /// Says once who can go on with the job, when neither a supervisor nor an agent has moved for a while.
    pub async fn look(&mut self, world: &World, record: &Record) {
        let now = world.clock.now();
        let since = |then: Timestamp| Duration::try_from(now.duration_since(then)).unwrap_or_default();
        if self.told || self.looked.is_some_and(|looked| since(looked) < EVERY) {
            return;
        }
        self.looked = Some(now);
        let (store, id) = (world.store.as_ref(), &record.id);
        let (held, heartbeat) = (path::supervisor_lease(id), path::heartbeat(id, record.attempt));
        let signs = [sign(store, &held).await, sign(store, &heartbeat).await];
        match &self.signs {
            Some((before, then)) if *before == signs => {
                // A lease that was given back has no holder; what cannot be read is no lease.
                let is_held = matches!(lease::holder(store, &held).await, Ok(Some(_)));
                if since(*then) >= if is_held { STILL } else { ALONE } {
                    self.told = true;
                    world.report.warn(&neglected(record, world.adoption.changed(record)));
                }
            }
            _ => self.signs = Some((signs, now)),
        }
    }
}

#[derive(PartialEq, Eq)]
enum Sign {
    Absent,
    Version(ETag),
    /// No one can read what lies there, so no one writes it either: a pipe in a directory.
    Unreadable,
}

async fn sign(store: &dyn Store, path: &str) -> Sign {
    match store.get(path).await {
        Ok(object) => Sign::Version(object.etag),
        Err(StoreError::NotFound { .. }) => Sign::Absent,
        Err(_) => Sign::Unreadable,
    }
}

fn neglected(record: &Record, changed: Option<&str>) -> String {
    let id = &record.id;
    if let Some(changed) = changed {
        return format!(
            "the job {id} is {}, and no ftctl drives it, because somebody has changed it: {changed}; `ftctl down {id}` ends it, and `ftctl logs -f \
             {id} --adopt` shows what would be started",
            record.state.label(record.outcome)
        );
    }
    format!(
        "the job {id} is {}, and no ftctl drives it: run `ftctl logs -f {id}` on the machine where it was submitted, or `ftctl logs -f {id} --adopt` \
         here, which first shows what would be started",
        record.state.label(record.outcome)
    )
}
