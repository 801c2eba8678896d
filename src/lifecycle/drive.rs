//! Carries a job on from its current state. There is no daemon: the holder of the job's supervisor lease drives, everyone else
//! watches, and the next one takes over when the holder is gone.

use std::{future::Future, mem, pin::pin, time::Duration};

use tokio::time::Instant;

use super::{
    Next, Result, World, debt, image, journal,
    journal::Journal,
    notify::{self, News},
    step, supervise, upload,
    vigil::Vigil,
    watch::Watch,
};
use crate::{
    exit::{Exit, Failure},
    job::{
        id::{JobId, path},
        record::Record,
        state::State,
    },
    store::{
        StoreError,
        lease::{Acquired, Contender, Lease},
    },
};

/// How far to carry it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Until {
    /// Its machine is there. A job service gives one to the command that it runs, so there all but the machine is ready: an agent
    /// without an order would be paid for, and does not wait for long.
    Provisioned,
    /// Its agent was started.
    Running,
    Finished,
    /// The same, and anybody may carry it there: nothing is begun on the way.
    Ended,
}

impl Until {
    fn reached(self, record: &Record) -> bool {
        let state = record.state;
        match self {
            Until::Provisioned if state == State::Imaging && record.plan.compute.queues() => true,
            Until::Provisioned => matches!(state, State::Submitting | State::Running | State::Collecting | State::Finished),
            Until::Running => matches!(state, State::Running | State::Collecting | State::Finished),
            Until::Finished | Until::Ended => state == State::Finished,
        }
    }
}

/// The longest time without a driver, when the last one has vanished.
const LEASE: Duration = Duration::from_secs(15);
/// Leaves two more tries before it lapses.
const RENEW: Duration = Duration::from_secs(3);
/// How often a watcher looks, and the longest it waits for a store that fails.
const WATCH: Duration = Duration::from_millis(500);
const LONGEST: Duration = Duration::from_secs(30);
/// Without a renewal for so long, a supervisor no longer drives: after three quarters of the lease's life another may take it.
const UNRENEWED: Duration = Duration::from_secs(9);
/// Errors in a row that might have passed, after which a person should look.
const MAX_FAILURES: u32 = 8;
/// Tear-downs in a row that failed at once.
const MAX_TEAR_DOWNS: u32 = 3;
/// A tear-down that has failed for so long is not tried again by the same command: its debt is not forgotten. A wait of this length
/// is explained.
const LONG: Duration = Duration::from_secs(5);

/// Drives the job, or watches another invocation drive it, until `until` holds. Answers the last record.
///
/// Here it is decided whether this invocation drives: a job that was submitted here, or that its user adopted. Anybody else's is
/// watched, and no more than its end is carried out.
pub async fn drive(world: &World, id: &JobId, until: Until) -> Result<Record> {
    let mut contender = Contender::new(world.store.clone(), path::supervisor_lease(id), world.supervisor.clone(), LEASE);
    let mut watch = Watch::default();
    let mut elsewhere = Elsewhere::default();
    // The first look at the store must succeed.
    let mut failures = MAX_FAILURES;
    loop {
        let asked = Instant::now();
        match take(world, id, until, &mut contender).await {
            Ok(Taken::Over(record)) => return Ok(*record),
            // A driver that was held up for longer than the lease lives (a laptop that slept) goes on as a watcher.
            Ok(Taken::Held(lease)) => {
                failures = 0;
                if let Some(record) = drive_with(world, id, until, lease, asked).await? {
                    return Ok(record);
                }
            }
            Ok(Taken::Elsewhere) => {
                failures = 0;
                elsewhere.tell(world, id, until, &contender);
                world.clock.sleep(WATCH.min(contender.lapses_in())).await;
            }
            Ok(Taken::Foreign(record)) => {
                failures = 0;
                watch.look(world, &record).await;
                world.clock.sleep(WATCH).await;
            }
            // The store was there a moment ago.
            Err(failure) if matches!(failure.exit, Exit::Network | Exit::Failure) && failures < MAX_FAILURES => {
                if failures == 0 {
                    world.report.warn(&format!("{}; trying again", failure.message));
                }
                world.clock.sleep((WATCH * (1 << failures)).min(LONGEST)).await;
                failures += 1;
            }
            Err(failure) => return Err(failure),
        }
    }
}

/// The wait for another ftctl, which may have vanished.
#[derive(Default)]
struct Elsewhere {
    since: Option<Instant>,
    told: bool,
}

impl Elsewhere {
    /// Says once what is waited for: by a command that ends the job when it takes a while, by one that watches when the other is
    /// silent.
    fn tell(&mut self, world: &World, id: &JobId, until: Until, contender: &Contender) {
        let waited = self.since.get_or_insert_with(Instant::now).elapsed();
        let (silent, left) = (contender.unchanged(), contender.lapses_in().as_secs() + 1);
        let long = if until == Until::Ended { waited } else { silent };
        if long < LONG || mem::replace(&mut self.told, true) {
            return;
        }
        let said = if until == Until::Ended {
            format!("waiting until it has ended the job, or for {} seconds without a sign of it", LEASE.as_secs())
        } else {
            format!("it has been silent for {} seconds; if it stays silent, this one takes over in {left}", silent.as_secs())
        };
        world.report.line(&format!("another ftctl drives {id}: {said}"));
    }
}

enum Taken {
    Over(Box<Record>),
    Held(Lease),
    Elsewhere,
    /// This invocation may only watch.
    Foreign(Box<Record>),
}

/// Whether this invocation may take the job's lease. Everybody may end it: a machine costs money until it is gone.
fn may_take(world: &World, record: &Record, until: Until) -> bool {
    until == Until::Ended || record.state == State::TearingDown || world.adoption.may_drive(record)
}

async fn take(world: &World, id: &JobId, until: Until, contender: &mut Contender) -> Result<Taken> {
    let record = journal::read(world.store.as_ref(), id).await?.0;
    if until.reached(&record) {
        return Ok(Taken::Over(Box::new(record)));
    }
    if !may_take(world, &record, until) {
        return Ok(Taken::Foreign(Box::new(record)));
    }
    world.admits(&record)?;
    Ok(match contender.acquire().await? {
        Acquired::Held(lease) => Taken::Held(lease),
        Acquired::HeldBy(_) => Taken::Elsewhere,
    })
}

/// `None` when another driver has, or may have, taken the lease meanwhile.
async fn drive_with(world: &World, id: &JobId, until: Until, mut lease: Lease, taken: Instant) -> Result<Option<Record>> {
    let result = held(&mut lease, taken, carry(world, id, until)).await;
    // Best effort: a lease that stays lapses by itself, and at once when this process ends.
    let _ = lease.release().await;
    Ok(result?.flatten())
}

/// Runs `work` while renewing the lease, which was `taken` then at the earliest. A stage may take minutes (a build, an upload); the
/// lease lives seconds, so that a crash is noticed soon. `None` when it was lost, or could not be renewed for so long that it may
/// be.
async fn held<T>(lease: &mut Lease, taken: Instant, work: impl Future<Output = Result<T>>) -> Result<Option<T>> {
    let mut work = pin!(work);
    let mut renewed = taken;
    loop {
        let asked = tokio::select! {
            result = &mut work => return result.map(Some),
            () = tokio::time::sleep(RENEW.min(UNRENEWED.saturating_sub(renewed.elapsed()))) => Instant::now(),
        };
        match lease.renew().await {
            Ok(()) => renewed = asked,
            Err(StoreError::Conflict { .. }) => return Ok(None),
            Err(_) if renewed.elapsed() >= UNRENEWED => return Ok(None),
            // A disk that is full for a moment, a line that is away.
            Err(StoreError::Io { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// `None` when the record has become one that is not driven here, between two looks at it.
async fn carry(world: &World, id: &JobId, until: Until) -> Result<Option<Record>> {
    let mut job = Journal::load(world, id).await?;
    if !may_take(world, &job.record, until) {
        return Ok(None);
    }
    job.only_ends = !world.adoption.may_drive(&job.record);
    let (mut vigil, mut failures) = (Vigil::default(), 0);
    while !until.reached(&job.record) {
        if let Some(path) = local_path(world, &job) {
            world.adoption.may_read(&job.record, path)?;
        }
        let begun = Instant::now();
        let (state, attempt) = (job.record.state, job.record.attempt);
        match step(world, &mut job, &mut vigil).await {
            Ok(next) => {
                failures = 0;
                if let Some(news) = notify::news(state, attempt, &job.record) {
                    notify::tell(world, &job.record, &news).await;
                }
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
                let last_try = failures >= most;
                if last_try && failure.exit == Exit::MayBill {
                    notify::tell(world, &job.record, &News::MayBill(failure.message.clone())).await;
                }
                recover(world, &mut job, failure, last_try, failures).await?;
            }
        }
    }
    Ok(Some(job.record))
}

/// The path that the next step reads on the machine on which the job was submitted.
fn local_path<'j>(world: &World, job: &'j Journal) -> Option<&'j str> {
    match job.record.state {
        _ if job.only_ends => None,
        State::Planned | State::Uploading => upload::local_path(&job.record.plan),
        State::Imaging | State::Provisioning | State::Submitting => image::local_path(world, &job.record.plan),
        State::Running | State::Collecting | State::TearingDown | State::Finished => None,
    }
}

/// The meaning of a step's error for the job.
async fn recover(world: &World, job: &mut Journal, failure: Failure, last_try: bool, failures: u32) -> Result<()> {
    match failure.exit {
        // Another process wrote the record (a cancel, a second supervisor): read it and go on from there.
        Exit::Conflict if !last_try => reload(world, job).await,
        exit if !last_try && may_pass(exit, job) => {
            world.report.warn(&format!("{}; trying again", failure.message));
            if job.record.simulated && exit != Exit::Failure && failures == 1 {
                world.report.line(&supervise::gone(&job.record.id));
            }
            world.clock.sleep(job.record.plan.retry.pause(failures)).await;
            reload(world, job).await
        }
        Exit::Conflict | Exit::Network | Exit::MayBill => Err(failure),
        _ if job.state_kept() == State::TearingDown => Err(failure),
        // Credentials that ended are the user's affair, and no reason to take a machine from a job that trains.
        Exit::Denied if job.state_kept() == State::Running => {
            let id = &job.record.id;
            Err(Failure { message: format!("{}; the job {id} goes on by itself", failure.message), ..failure }
                .fix(format!("sign in again, then `ftctl logs -f {id}`")))
        }
        // The stage can never succeed: end the job, so that nothing is left behind, and keep the reason.
        _ => match job.fail(&failure).await {
            Ok(()) => Ok(()),
            Err(_) => Err(failure),
        },
    }
}

/// Where the record is gone, nothing else names the job's machines.
async fn reload(world: &World, job: &mut Journal) -> Result<()> {
    let (id, has_machines) = (job.record.id.clone(), job.record.attempt > 0 && world.provider.capabilities().bills);
    match job.reload().await {
        Err(failure) if failure.exit == Exit::NotFound && has_machines => {
            let message = format!("the record of the job {id} is gone, and its machines may still exist");
            // Best effort: the store may be gone as well.
            let _ = debt::note(world, &id, &message).await;
            Err(Failure::new(Exit::MayBill, message).fix(format!("ftctl down {id}")))
        }
        reloaded => reloaded,
    }
}

/// Whether another try may cure the error. A disk that is full for a moment does not end a job that trains or has trained.
fn may_pass(exit: Exit, job: &Journal) -> bool {
    match (exit, job.state_kept()) {
        (Exit::Network | Exit::MayBill, _) | (Exit::Failure, State::Running | State::Collecting | State::TearingDown) => true,
        (Exit::Failure, State::Provisioning | State::Submitting) => job.record.attempt > 1,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::{
        future::pending,
        sync::{Arc, atomic::Ordering},
    };

    use super::*;
    use crate::store::{Store, faulty::FaultyStore, lease::Holder, memory::MemoryStore};

    async fn take(store: &Arc<dyn Store>, attempt: u32) -> Lease {
        match Lease::acquire(store, "lease".to_owned(), Holder::this_process(attempt), LEASE).await {
            Ok(Acquired::Held(lease)) => lease,
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn work_ends_with_its_lease_and_without_a_failure() {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
        let mut lease = take(&store, 0).await;
        assert!(matches!(held(&mut lease, Instant::now(), async { Ok(7) }).await, Ok(Some(7))));
        // A higher attempt stands for the supervisor who found it lapsed.
        take(&store, 1).await;
        assert!(matches!(held(&mut lease, Instant::now(), pending::<Result<()>>()).await, Ok(None)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_that_is_away_ends_work_only_when_another_may_take_the_lease() {
        let faulty = FaultyStore::new(Arc::new(MemoryStore::new()));
        let store: Arc<dyn Store> = faulty.clone();
        let mut lease = take(&store, 0).await;
        faulty.down.store(true, Ordering::SeqCst);
        let work = async {
            tokio::time::sleep(2 * RENEW + Duration::from_secs(1)).await;
            faulty.down.store(false, Ordering::SeqCst);
            tokio::time::sleep(2 * LEASE).await;
            Ok(7)
        };
        assert!(matches!(held(&mut lease, Instant::now(), work).await, Ok(Some(7))));
        faulty.down.store(true, Ordering::SeqCst);
        let begun = Instant::now();
        assert!(matches!(held(&mut lease, begun, pending::<Result<()>>()).await, Ok(None)));
        assert!(begun.elapsed() < LEASE * 3 / 4, "{:?}", begun.elapsed());
    }
}
