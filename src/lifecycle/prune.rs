//! Leftovers: found by asking the provider, whatever the records say.

use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;

use super::{Result, World, down, journal, teardown};
use crate::{
    exit::Exit,
    job::{id::JobId, plan::DataPlan, state::State},
    provider::Resource,
    store::{
        self, dataset,
        prune::{Needed, Unneeded},
    },
};

/// Nothing younger is taken for unneeded.
const DAY: Duration = Duration::from_secs(86_400);
/// Clocks that are further apart are no ground to end what may be at work.
const SKEW: Duration = Duration::from_secs(300);

pub const PRUNE_SCHEMA: &str = "ftctl.prune/1";

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Leftover {
    pub resource: Resource,
    /// Why it is not needed.
    pub why: String,
}

/// Machines past their expiry, and (unless `expired_only`) machines whose job is finished or unknown to this store: those of this
/// user and this store, or everybody's where the world means them.
pub async fn find(world: &World, expired_only: bool) -> Result<Vec<Leftover>> {
    let meant = down::find(world).await?.meant;
    // By the cloud's own clock, not by the caller's: where it is not known, nothing has expired.
    let now = world.provider.now().await;
    let mut leftovers = Vec::new();
    for resource in meant {
        let why = unneeded(world, &resource, now, expired_only).await?;
        leftovers.extend(why.map(|why| Leftover { resource, why }));
    }
    Ok(leftovers)
}

async fn unneeded(world: &World, resource: &Resource, now: Option<Timestamp>, expired_only: bool) -> Result<Option<String>> {
    let without_job = without_job(world, resource).await;
    match (time_of(resource.expires, now, world.clock.now()), without_job) {
        (Time::Left, _) if expired_only => Ok(None),
        (Time::Left, without_job) => without_job,
        (_, Err(failure)) if matches!(failure.exit, Exit::Network | Exit::Denied) => Err(failure),
        (Time::Doubtful { over, now }, Ok(None)) => {
            world.report.warn(&format!(
                "{} is left alone: it expired {over:.0} and its backend's clock says {now:.0}, but this machine's clock differs and its job is \
                 not finished; correct this machine's clock, or end the job with `ftctl down {}`",
                resource.name, resource.attempt.job
            ));
            Ok(None)
        }
        (Time::Doubtful { over, .. } | Time::Over(over), _) => Ok(Some(format!("expired {over:.0}"))),
    }
}

/// How a machine's time stands.
#[derive(Debug, PartialEq, Eq)]
enum Time {
    Left,
    Over(Timestamp),
    /// Over by its backend's clock, which is far from ours.
    Doubtful {
        over: Timestamp,
        now: Timestamp,
    },
}

/// By the backend's clock, `now`, and not by ours, `here`: a laptop that is a day ahead has not outlived anybody.
fn time_of(expires: Option<Timestamp>, now: Option<Timestamp>, here: Timestamp) -> Time {
    match expires.zip(now).filter(|(expires, now)| expires <= now) {
        None => Time::Left,
        Some((over, now)) if here.duration_since(now).unsigned_abs() > SKEW => Time::Doubtful { over, now },
        Some((over, _)) => Time::Over(over),
    }
}

/// Why no job needs the machine, as far as this store knows; `None` while one may.
async fn without_job(world: &World, resource: &Resource) -> Result<Option<String>> {
    if !resource.belongs.goes_with_its_job() {
        return Ok(Some(resource.belongs.apart()));
    }
    match journal::read(world.store.as_ref(), &resource.attempt.job).await {
        Ok((record, _)) => Ok((record.state == State::Finished).then(|| "its job is finished".to_owned())),
        Err(failure) if failure.exit == Exit::NotFound => Ok(Some("no record of its job in this store".to_owned())),
        Err(failure) => Err(failure),
    }
}

/// Data in the store that no job and no name needs, and that is older than a day by this machine's clock. A record that cannot be
/// read is an error: the data that it needs could not be kept.
pub async fn find_data(world: &World, now: Timestamp) -> Result<Unneeded> {
    let mut needed = Needed::default();
    for (id, record) in journal::all(world.store.as_ref()).await? {
        let record = record?;
        if let DataPlan::Digest(digest) = record.plan.data {
            needed.datasets.insert(digest);
        }
        needed.datasets.extend(record.dataset.into_iter().chain(record.initial_weights));
        if record.state != State::Finished {
            needed.unfinished.insert(id.clone());
        }
        needed.jobs.insert(id);
    }
    needed.datasets.extend(dataset::all_named(world.store.as_ref()).await?);
    Ok(store::prune::find(&world.store, &needed, now, DAY).await?)
}

/// Removes what is still unneeded of it, and says what an upload at the same time has to send again. A user may take minutes to
/// agree.
pub async fn remove_data(world: &World, unneeded: &Unneeded) -> Result<()> {
    let mut still = unneeded.clone();
    still.keep_those_of(&find_data(world, Timestamp::now()).await?);
    for digest in store::prune::remove(&world.store, &still).await? {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_backends_clock_says_what_has_expired() {
        let at = |hours: i64| Timestamp::from_second(hours * 3_600).unwrap();
        let (noon, one) = (at(12), at(13));
        assert_eq!(time_of(Some(one), Some(noon), noon), Time::Left);
        assert_eq!(time_of(Some(noon), Some(one), one), Time::Over(noon));
        // The caller's clock is a day ahead, or a day behind.
        assert_eq!(time_of(Some(one), Some(noon), at(36)), Time::Left);
        assert_eq!(time_of(Some(noon), Some(one), at(-11)), Time::Doubtful { over: noon, now: one });
        assert_eq!(time_of(Some(noon), Some(one), at(36)), Time::Doubtful { over: noon, now: one });
        // The end is unknown, or there is none.
        assert_eq!(time_of(Some(noon), None, one), Time::Left);
        assert_eq!(time_of(None, Some(one), one), Time::Left);
    }
}
