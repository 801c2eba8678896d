//! Leases: who may act, decided by conditional writes alone.
//!
//! No clock is compared with another. A contender takes a lease that is free, that a lower attempt holds (fencing: attempts only
//! rise), whose holder was a process of this machine and is gone, or that has lapsed: that has not *changed* for three quarters of
//! its time to live by the contender's own monotonic clock. The last quarter is for the contender's looks and requests, so that a
//! lease is without a holder for its time to live at most. The loser finds out at its next renewal.

use std::{fs, sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::{Condition, ETag, Result, Store, StoreError, check_format, find_json, write_json};
use crate::job::id::attempt_number;

pub const LEASE_SCHEMA: &str = "ftctl.lease/1";

/// The holder of a lease.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    pub host: String,
    /// The kernel's boot id and the namespace in which `pid` means something: only there can a contender look for the process.
    pub realm: String,
    pub pid: u32,
    /// The process's start in clock ticks since boot: tells it from a later process with the same number.
    pub started: u64,
    /// A higher attempt takes the lease from a lower one, never the reverse. Supervisors are all 0.
    #[serde(deserialize_with = "attempt_number")]
    pub attempt: u32,
    /// Differs between two holders that are alike in everything else.
    pub nonce: String,
}

impl Holder {
    /// This process, for an attempt; 0 for a supervisor.
    pub fn this_process(attempt: u32) -> Self {
        let pid = std::process::id();
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default().trim().to_owned();
        let namespace = fs::read_link("/proc/self/ns/pid").unwrap_or_default();
        Self {
            host: read("/proc/sys/kernel/hostname"),
            realm: format!("{} {}", read("/proc/sys/kernel/random/boot_id"), namespace.display()),
            pid,
            started: process_start(pid).unwrap_or_default(),
            attempt,
            nonce: read("/proc/sys/kernel/random/uuid"),
        }
    }

    /// Proof of death: the process ran where `here` runs, and is no more.
    pub fn is_gone(&self, here: &Holder) -> bool {
        self.host == here.host && self.realm == here.realm && !process_lives(self.pid, self.started)
    }
}

/// Whether the process that had this number and this start still runs. A zombie does not; a process that may not be looked at does.
pub fn process_lives(pid: u32, started: u64) -> bool {
    match process_stat(pid) {
        Some((state, start)) => start == started && !matches!(state, 'Z' | 'X'),
        None => exists(pid),
    }
}

fn exists(pid: u32) -> bool {
    let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw);
    pid.is_some_and(|pid| rustix::process::test_kill_process(pid) != Err(rustix::io::Errno::SRCH))
}

/// When the process `pid` started, in clock ticks since boot.
pub fn process_start(pid: u32) -> Option<u64> {
    process_stat(pid).map(|(_, start)| start)
}

/// State and start of a process: fields 3 and 22 of `/proc/PID/stat`, proc_pid_stat(5). The name in parentheses may hold anything.
fn process_stat(pid: u32) -> Option<(char, u64)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?.chars().next()?;
    Some((state, fields.nth(18)?.parse().ok()?))
}

/// The object: present but without a holder after a release.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Body {
    schema: String,
    holder: Option<Holder>,
    /// Rises with every renewal.
    beat: u64,
}

/// The result of an attempt to take a lease.
#[derive(Debug)]
pub enum Acquired {
    Held(Lease),
    HeldBy(Holder),
}

/// A contender for a lease, which remembers since when it has not changed.
pub struct Contender {
    store: Arc<dyn Store>,
    path: String,
    holder: Holder,
    ttl: Duration,
    seen: Option<(ETag, Instant)>,
}

impl Contender {
    pub fn new(store: Arc<dyn Store>, path: String, holder: Holder, ttl: Duration) -> Self {
        Self { store, path, holder, ttl, seen: None }
    }

    /// Takes the lease if it may. Call it again to outlast a holder that has vanished: several times in a quarter of the time to
    /// live, and at the latest after [`Contender::lapses_in`].
    pub async fn acquire(&mut self) -> Result<Acquired> {
        loop {
            let found = find(self.store.as_ref(), &self.path).await?;
            let (beat, condition) = match found {
                None => (0, Condition::IfAbsent),
                Some((body, etag)) => match body.holder {
                    Some(other) if other.nonce != self.holder.nonce && !self.may_take(&other, &etag) => {
                        return Ok(Acquired::HeldBy(other));
                    }
                    _ => (body.beat.saturating_add(1), Condition::IfMatch(etag)),
                },
            };
            let mut lease =
                Lease { store: Arc::clone(&self.store), path: self.path.clone(), holder: self.holder.clone(), beat, etag: None };
            match lease.write(condition).await {
                // Another contender was quicker: look again.
                Err(StoreError::Conflict { .. }) => {}
                written => return written.map(|()| Acquired::Held(lease)),
            }
        }
    }

    fn may_take(&mut self, other: &Holder, etag: &ETag) -> bool {
        if other.attempt != self.holder.attempt {
            return other.attempt < self.holder.attempt;
        }
        // Counted from the end of the first look that showed this version: the holder wrote it before.
        if self.seen.as_ref().is_none_or(|(seen, _)| seen != etag) {
            self.seen = Some((etag.clone(), Instant::now()));
        }
        other.is_gone(&self.holder) || self.lapses_in().is_zero()
    }

    /// When the version that was seen last lapses, unless it changes.
    pub fn lapses_in(&self) -> Duration {
        (self.ttl * 3 / 4).saturating_sub(self.unchanged())
    }

    /// How long the version that was seen last has been the same.
    pub fn unchanged(&self) -> Duration {
        self.seen.as_ref().map_or(Duration::ZERO, |(_, since)| since.elapsed())
    }
}

/// A lease that was held when last heard of. Every write fails with [`StoreError::Conflict`] once another holder has taken it.
pub struct Lease {
    store: Arc<dyn Store>,
    path: String,
    holder: Holder,
    beat: u64,
    etag: Option<ETag>,
}

impl std::fmt::Debug for Lease {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lease").field("path", &self.path).field("beat", &self.beat).finish_non_exhaustive()
    }
}

impl Lease {
    /// One attempt to take a lease; see [`Contender`] for the patient form.
    pub async fn acquire(store: &Arc<dyn Store>, path: String, holder: Holder, ttl: Duration) -> Result<Acquired> {
        Contender::new(Arc::clone(store), path, holder, ttl).acquire().await
    }

    /// Shows that the holder lives, and proves that it still holds: the fence before whatever must not happen twice.
    pub async fn renew(&mut self) -> Result<()> {
        self.beat = self.beat.saturating_add(1);
        let condition = self.etag.clone().map_or(Condition::IfAbsent, Condition::IfMatch);
        self.write(condition).await
    }

    /// A witness, which asks beside the lease's work whether it is still held.
    pub fn witness(&self) -> Witness {
        Witness { store: Arc::clone(&self.store), path: self.path.clone(), holder: self.holder.clone() }
    }

    /// Gives the lease back, so that any holder may take it. A lease that was lost is another's by now, which is no error. An
    /// attempt's lease is never given back, or else an earlier attempt could take it.
    pub async fn release(self) -> Result<()> {
        let Some(mut etag) = self.etag else { return Ok(()) };
        let mut beat = self.beat;
        loop {
            let body = Body { schema: LEASE_SCHEMA.to_owned(), holder: None, beat: beat.saturating_add(1) };
            match write_json(self.store.as_ref(), &self.path, &body, Condition::IfMatch(etag)).await {
                Err(StoreError::Conflict { .. }) => match find(self.store.as_ref(), &self.path).await? {
                    // The answer to the last renewal was lost: it is still ours, in another version.
                    Some((found, newer)) if found.holder.as_ref() == Some(&self.holder) => (etag, beat) = (newer, found.beat),
                    _ => return Ok(()),
                },
                written => return written.map(drop),
            }
        }
    }

    async fn write(&mut self, condition: Condition) -> Result<()> {
        let body = Body { schema: LEASE_SCHEMA.to_owned(), holder: Some(self.holder.clone()), beat: self.beat };
        self.etag = match write_json(self.store.as_ref(), &self.path, &body, condition).await {
            // The answer of an earlier try may have been lost: then what is there is ours.
            Err(conflict @ StoreError::Conflict { .. }) => match find(self.store.as_ref(), &self.path).await? {
                Some((found, etag)) if found.holder.as_ref() == Some(&self.holder) => {
                    self.beat = found.beat;
                    Some(etag)
                }
                _ => return Err(conflict),
            },
            written => Some(written?),
        };
        Ok(())
    }
}

/// The holder of the lease at `path`, or the last one, if it vanished without a release.
pub async fn holder(store: &dyn Store, path: &str) -> Result<Option<Holder>> {
    Ok(find(store, path).await?.and_then(|(body, _)| body.holder))
}

async fn find(store: &dyn Store, path: &str) -> Result<Option<(Body, ETag)>> {
    let found: Option<(Body, ETag)> = find_json(store, path).await?;
    found.as_ref().map_or(Ok(()), |(body, _)| check_format(path, &body.schema, &[LEASE_SCHEMA]))?;
    Ok(found)
}

/// See [`Lease::witness`].
pub struct Witness {
    store: Arc<dyn Store>,
    path: String,
    holder: Holder,
}

impl Witness {
    /// Whether the store still names the holder. Writes nothing.
    pub async fn still_held(&self) -> Result<bool> {
        Ok(holder(self.store.as_ref(), &self.path).await?.is_some_and(|holder| holder == self.holder))
    }
}

#[cfg(test)]
mod tests {
    use std::{process::Command, sync::atomic::Ordering};

    use super::*;
    use crate::store::{faulty::FaultyStore, memory::MemoryStore};

    const TTL: Duration = Duration::from_secs(30);

    fn memory() -> Arc<dyn Store> {
        Arc::new(MemoryStore::new())
    }

    /// A process of a machine that this one cannot look into.
    fn elsewhere(attempt: u32) -> Holder {
        Holder { host: "elsewhere".to_owned(), ..Holder::this_process(attempt) }
    }

    fn contender(store: &Arc<dyn Store>, holder: Holder) -> Contender {
        Contender::new(Arc::clone(store), "lease".to_owned(), holder, TTL)
    }

    fn held(acquired: Acquired) -> Lease {
        match acquired {
            Acquired::Held(lease) => lease,
            Acquired::HeldBy(holder) => panic!("held by {holder:?}"),
        }
    }

    async fn is_refused(contender: &mut Contender) -> bool {
        matches!(contender.acquire().await.unwrap(), Acquired::HeldBy(_))
    }

    #[tokio::test]
    async fn one_of_two_holds_it_until_it_is_released() {
        let store = memory();
        let (mut one, mut two) = (contender(&store, Holder::this_process(0)), contender(&store, Holder::this_process(0)));
        let mut lease = held(one.acquire().await.unwrap());
        assert!(is_refused(&mut two).await);
        lease.renew().await.unwrap();
        assert!(lease.witness().still_held().await.unwrap());
        lease.release().await.unwrap();
        let second = held(two.acquire().await.unwrap());
        assert!(is_refused(&mut one).await);
        drop(second);
        // A lease dropped without a release is still held: the process lives.
        assert!(is_refused(&mut one).await);
    }

    #[tokio::test(start_paused = true)]
    async fn only_an_unchanged_lease_expires() {
        let store = memory();
        let mut lease = held(contender(&store, elsewhere(0)).acquire().await.unwrap());
        let mut waiting = contender(&store, Holder::this_process(0));
        for _ in 0..5 {
            assert!(is_refused(&mut waiting).await);
            tokio::time::advance(TTL / 2).await;
            lease.renew().await.unwrap();
        }
        assert!(is_refused(&mut waiting).await);
        tokio::time::advance(TTL).await;
        // A contender that has just come has seen nothing yet.
        assert!(is_refused(&mut contender(&store, Holder::this_process(0))).await);
        let taken = held(waiting.acquire().await.unwrap());
        assert!(matches!(lease.renew().await, Err(StoreError::Conflict { .. })));
        assert!(!lease.witness().still_held().await.unwrap());
        lease.release().await.unwrap();
        assert!(taken.witness().still_held().await.unwrap(), "a late release takes nothing from the new holder");
    }

    #[tokio::test(start_paused = true)]
    async fn a_vanished_holder_is_replaced_within_the_time_to_live_and_not_before_it_lapses() {
        let (look, request) = (TTL / 30, TTL / 60);
        for phase in 0..40 {
            let far = FaultyStore::new(memory());
            *far.delay.lock().unwrap() = request;
            let store: Arc<dyn Store> = far;
            let mut lease = held(contender(&store, elsewhere(0)).acquire().await.unwrap());
            let mut waiting = contender(&store, Holder::this_process(0));
            let taking = tokio::spawn(async move {
                while is_refused(&mut waiting).await {
                    tokio::time::sleep(look.min(waiting.lapses_in())).await;
                }
                Instant::now()
            });
            for _ in 0..3 {
                tokio::time::sleep(TTL / 3 + phase * look / 20).await;
                lease.renew().await.unwrap();
            }
            let written = Instant::now() - request;
            let none = taking.await.unwrap() - written;
            assert!((TTL * 3 / 4..=TTL).contains(&none), "it was free for {none:?}");
        }
    }

    #[tokio::test]
    async fn a_holder_of_this_machine_that_is_gone_is_dead_at_once() {
        let store = memory();
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let pid = child.id();
        let holder = Holder { pid, started: process_start(pid).unwrap(), ..Holder::this_process(0) };
        held(contender(&store, holder.clone()).acquire().await.unwrap());
        assert!(is_refused(&mut contender(&store, Holder::this_process(0))).await);
        child.kill().unwrap();
        // Killed but not reaped is dead, too; the kernel needs a moment for the former.
        while process_lives(pid, holder.started) {
            std::thread::yield_now();
        }
        let mut lease = held(contender(&store, Holder::this_process(0)).acquire().await.unwrap());
        lease.renew().await.unwrap();
        child.wait().unwrap();
        assert!(!process_lives(pid, holder.started));
        assert!(!process_lives(std::process::id(), 1), "another process got the number");
    }

    #[tokio::test]
    async fn the_dead_of_other_machines_are_not_judged() {
        let store = memory();
        held(contender(&store, Holder { pid: u32::MAX, ..elsewhere(0) }).acquire().await.unwrap());
        assert!(is_refused(&mut contender(&store, Holder::this_process(0))).await);
    }

    #[tokio::test]
    async fn attempts_only_rise() {
        let store = memory();
        let mut first = held(contender(&store, elsewhere(1)).acquire().await.unwrap());
        let mut second = held(contender(&store, elsewhere(2)).acquire().await.unwrap());
        assert!(matches!(first.renew().await, Err(StoreError::Conflict { .. })));
        assert!(is_refused(&mut contender(&store, elsewhere(1))).await);
        second.renew().await.unwrap();
        // Not even when the later one is known to be dead.
        held(contender(&store, Holder { pid: u32::MAX, ..Holder::this_process(3) }).acquire().await.unwrap());
        assert!(is_refused(&mut contender(&store, Holder::this_process(2))).await);
    }

    #[tokio::test]
    async fn a_lost_answer_loses_no_lease() {
        let faulty = FaultyStore::new(memory());
        let store: Arc<dyn Store> = Arc::clone(&faulty) as _;
        let mut lease = held(contender(&store, elsewhere(1)).acquire().await.unwrap());
        faulty.loses_answers.store(true, Ordering::SeqCst);
        lease.renew().await.unwrap_err();
        faulty.loses_answers.store(false, Ordering::SeqCst);
        lease.renew().await.unwrap();
        lease.renew().await.unwrap();
        // Nor does it keep one that is given back.
        faulty.loses_answers.store(true, Ordering::SeqCst);
        lease.renew().await.unwrap_err();
        faulty.loses_answers.store(false, Ordering::SeqCst);
        lease.release().await.unwrap();
        held(contender(&store, elsewhere(1)).acquire().await.unwrap());
    }
}
