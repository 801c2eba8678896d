//! Carries a job on from wherever it stands. There is no daemon: whoever holds the job's supervisor lease drives, everyone else
//! watches, and the next one takes over when the holder is gone.

use std::{
    future::Future,
    pin::pin,
    time::{Duration, Instant},
};

use super::{Next, Result, World, journal::Journal, step};
use crate::{
    exit::{Exit, Failure},
    job::{
        id::{JobId, path},
        record::Record,
        state::{Outcome, State},
    },
    store::{
        StoreError,
        lease::{Acquired, Contender, Lease},
    },
};

/// How far to carry it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Until {
    /// Its machine is there.
    Provisioned,
    /// Its agent was started.
    Running,
    Finished,
}

impl Until {
    fn reached(self, record: &Record) -> bool {
        let state = record.state;
        let over = matches!(state, State::TearingDown | State::Finished);
        match self {
            Until::Provisioned => matches!(state, State::Submitting | State::Running | State::Collecting | State::Finished),
            Until::Running => matches!(state, State::Running | State::Collecting) || (over && state == State::Finished),
            Until::Finished => state == State::Finished,
        }
    }
}

/// Nobody drives a job for this long at most, when whoever did has vanished.
const LEASE: Duration = Duration::from_secs(15);
/// Leaves two more tries before it lapses.
const RENEW: Duration = Duration::from_secs(3);
/// How often a watcher looks.
const WATCH: Duration = Duration::from_millis(500);
/// Network errors in a row after which a person should look.
const MAX_FAILURES: u32 = 8;
/// Tear-downs in a row that failed at once.
const MAX_TEAR_DOWNS: u32 = 3;
/// A tear-down that has failed for so long is not tried again by the same command: what it owes is not forgotten.
const LONG: Duration = Duration::from_secs(5);

/// Drives the job, or watches another invocation drive it, until `until` holds. Answers the last record.
pub async fn drive(world: &World, id: &JobId, until: Until) -> Result<Record> {
    let mut contender = Contender::new(world.store.clone(), path::supervisor_lease(id), world.supervisor.clone(), LEASE);
    loop {
        let record = super::journal::read(world.store.as_ref(), id).await?.0;
        if until.reached(&record) {
            return Ok(record);
        }
        match contender.acquire().await? {
            // Whoever was held up for longer than the lease lives (a laptop that slept) goes on as a watcher.
            Acquired::Held(lease) => {
                if let Some(record) = drive_with(world, id, until, lease).await? {
                    return Ok(record);
                }
            }
            Acquired::HeldBy(_) => world.clock.sleep(WATCH.min(contender.lapses_in())).await,
        }
    }
}

/// `None` when somebody else has taken the lease meanwhile.
async fn drive_with(world: &World, id: &JobId, until: Until, mut lease: Lease) -> Result<Option<Record>> {
    let result = held(&mut lease, carry(world, id, until)).await;
    // Best effort: a lease that stays lapses by itself, and at once when this process ends.
    let _ = lease.release().await;
    result
}

/// Runs `work` while renewing the lease. A stage may take minutes (a build, an upload); the lease lives seconds, so that a crash is
/// noticed soon. `None` when it was lost.
async fn held<T>(lease: &mut Lease, work: impl Future<Output = Result<T>>) -> Result<Option<T>> {
    let mut work = pin!(work);
    loop {
        tokio::select! {
            result = &mut work => return result.map(Some),
            () = tokio::time::sleep(RENEW) => match lease.renew().await {
                Err(StoreError::Conflict { .. }) => return Ok(None),
                renewed => renewed?,
            },
        }
    }
}

async fn carry(world: &World, id: &JobId, until: Until) -> Result<Record> {
    let mut job = Journal::load(world, id).await?;
    let mut failures = 0;
    while !until.reached(&job.record) {
        let begun = Instant::now();
        match step(world, &mut job).await {
            Ok(next) => {
                failures = 0;
                match next {
                    Next::Now => {}
                    Next::After(pause) => world.clock.sleep(pause).await,
                    Next::Done => break,
                }
            }
            Err(failure) => {
                failures += 1;
                let most = match failure.exit {
                    Exit::MayBill if begun.elapsed() > LONG => 1,
                    Exit::MayBill => MAX_TEAR_DOWNS,
                    _ => MAX_FAILURES,
                };
                recover(world, &mut job, failure, failures >= most, failures).await?;
            }
        }
    }
    Ok(job.record)
}

/// What an error in a step means for the job.
async fn recover(world: &World, job: &mut Journal, failure: Failure, last_try: bool, failures: u32) -> Result<()> {
    match failure.exit {
        // Somebody else wrote the record (a cancel, a second supervisor): read it and go on from there.
        Exit::Conflict if !last_try => job.reload().await,
        Exit::Network | Exit::MayBill if !last_try => {
            world.report.warn(&format!("{}; trying again", failure.message));
            world.clock.sleep(job.record.plan.retry.pause(failures)).await;
            job.reload().await
        }
        Exit::Conflict | Exit::Network | Exit::MayBill => Err(failure),
        _ if job.record.state == State::TearingDown => Err(failure),
        // Credentials that ended are the user's affair, and no reason to take a machine from a job that trains.
        Exit::Denied if job.record.state == State::Running => {
            let id = &job.record.id;
            Err(Failure { message: format!("{}; the job {id} goes on by itself", failure.message), ..failure }
                .fix(format!("sign in again, then `ftctl logs -f {id}`")))
        }
        // The stage can never succeed: end the job, so that nothing is left behind, and keep the reason.
        _ => match job.end(Outcome::Failed, failure.exit, failure_text(&failure)).await {
            Ok(()) => Ok(()),
            Err(_) => Err(failure),
        },
    }
}

fn failure_text(failure: &Failure) -> String {
    match &failure.fix {
        Some(fix) => format!("{}\n{fix}", failure.message),
        None => failure.message.clone(),
    }
}

#[cfg(test)]
mod tests {
    use std::{future::pending, sync::Arc};

    use super::*;
    use crate::store::{Store, lease::Holder, memory::MemoryStore};

    #[tokio::test(start_paused = true)]
    async fn work_ends_with_its_lease_and_without_a_failure() {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
        let take = async |attempt| match Lease::acquire(&store, "lease".to_owned(), Holder::this_process(attempt), LEASE).await {
            Ok(Acquired::Held(lease)) => lease,
            other => panic!("{other:?}"),
        };
        let mut lease = take(0).await;
        assert!(matches!(held(&mut lease, async { Ok(7) }).await, Ok(Some(7))));
        // A higher attempt stands for the supervisor who found it lapsed.
        take(1).await;
        assert!(matches!(held(&mut lease, pending::<Result<()>>()).await, Ok(None)));
    }
}
