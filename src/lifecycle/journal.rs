//! A job's record in the store, with the version that was read: a write succeeds only without another one in between.

use std::sync::Arc;

use bytes::Bytes;

use super::{Result, World, adoption::Adoption, observe::Waits};
use crate::{
    exit::{Exit, Failure},
    job::{
        clock::Clock,
        event::EventKind,
        id::{JobId, path},
        record::{RECORD_SCHEMA, Record},
        state::{Outcome, State},
    },
    provider::registry,
    store::{self, Condition, ETag, Object, Store, StoreError},
};

pub struct Journal {
    pub record: Record,
    /// Nothing is begun for the job any more: it is another user's, and goes straight to its end.
    pub only_ends: bool,
    /// The moments that this invocation waits for.
    pub(super) waits: Waits,
    kept: State,
    etag: ETag,
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    adoption: Adoption,
}

impl Journal {
    /// Writes the first record of a job. An existing job of this id is taken as it is: that makes an interrupted or repeated
    /// submission with the same idempotency key one job.
    pub async fn create(world: &World, record: Record) -> Result<Self> {
        match world.store.put(&path::record(&record.id), encode(&record), Condition::IfAbsent).await {
            Ok(etag) => {
                world.adoption.note(&record, true);
                Ok(Self::of(world, record, etag))
            }
            Err(StoreError::Conflict { .. }) => Self::load(world, &record.id).await,
            Err(error) => Err(error.into()),
        }
    }

    pub async fn load(world: &World, id: &JobId) -> Result<Self> {
        let (record, etag) = read(world.store.as_ref(), id).await?;
        Ok(Self::of(world, record, etag))
    }

    fn of(world: &World, record: Record, etag: ETag) -> Self {
        let (store, clock, adoption) = (world.store.clone(), world.clock.clone(), world.adoption.clone());
        Self { kept: record.state, record, only_ends: false, waits: Waits::default(), etag, store, clock, adoption }
    }

    /// Reads the record again, whatever this invocation thought. Its plan never changes: a record with another plan is not this
    /// invocation's job.
    pub async fn reload(&mut self) -> Result<()> {
        let (record, etag) = read(self.store.as_ref(), &self.record.id).await?;
        if record.plan != self.record.plan {
            return Err(damaged(&record.id, "its plan was changed meanwhile, which no ftctl does"));
        }
        if self.adoption.is_own(&self.record) && !self.adoption.is_own(&record) {
            return Err(damaged(&record.id, "it has come less far than it had, which no ftctl writes"));
        }
        (self.kept, self.record, self.etag) = (record.state, record, etag);
        Ok(())
    }

    /// Writes the record; [`Exit::Conflict`] when another invocation was faster.
    pub async fn save(&mut self) -> Result<()> {
        let condition = Condition::IfMatch(self.etag.clone());
        self.etag = self.store.put(&path::record(&self.record.id), encode(&self.record), condition).await?;
        self.kept = self.record.state;
        self.adoption.note(&self.record, false);
        Ok(())
    }

    /// The state that is written down: another one was entered in vain where that could not be.
    pub fn state_kept(&self) -> State {
        self.kept
    }

    pub fn note(&mut self, kind: EventKind) {
        self.record.note(kind, self.clock.now());
    }

    /// Enters a state and writes it down.
    pub async fn enter(&mut self, state: State) -> Result<()> {
        self.record.enter(state, self.clock.now());
        self.save().await
    }

    /// Decides how the job ends and begins the tear-down. The first decision stays.
    pub async fn end(&mut self, outcome: Outcome, exit: Exit, reason: impl Into<String>) -> Result<()> {
        if self.record.outcome.is_none() {
            self.record.outcome = Some(outcome);
            self.record.exit = Some(exit as u8);
            self.record.reason = Some(reason.into());
        }
        (self.record.waiting, self.record.retry_at) = (None, None);
        self.enter(State::TearingDown).await
    }

    /// Ends the job with a failure. Its fix is part of the reason: a later reader of the record has nothing else.
    pub async fn fail(&mut self, failure: &Failure) -> Result<()> {
        let Failure { exit, message, fix, .. } = failure;
        let reason = fix.as_ref().map_or_else(|| message.clone(), |fix| format!("{message}; {fix}"));
        self.end(Outcome::Failed, *exit, reason).await
    }
}

fn encode(record: &Record) -> Bytes {
    // A record is made of strings, numbers and maps with string keys, for which serde_json cannot fail.
    Bytes::from(serde_json::to_vec(record).unwrap_or_default())
}

/// The record of a job, or [`Exit::NotFound`].
pub async fn read(store: &dyn Store, id: &JobId) -> Result<(Record, ETag)> {
    let object = stored(store, id).await?;
    Ok((decode(id, &object.bytes)?, object.etag))
}

async fn stored(store: &dyn Store, id: &JobId) -> Result<Object> {
    store::get_json(store, &path::record(id)).await.map_err(|error| match error {
        StoreError::NotFound { store, .. } => Failure::new(Exit::NotFound, format!("there is no job {id} in the store {store}"))
            .fix("`ftctl status --all` lists the jobs of this store"),
        other => other.into(),
    })
}

/// A record that is larger counts towards [`MOST_OF_LARGE`]: that of twenty attempts is not.
const LARGE: usize = 16 << 10;
/// Most bytes of all large records together that are kept at once: one of 10,000 attempts has a tenth.
const MOST_OF_LARGE: usize = 32 << 20;

/// Every job of the store with its record, or why that cannot be read. A job that has only a name yet is left out.
pub async fn all(store: &dyn Store) -> Result<Vec<(JobId, Result<Record>)>> {
    let (mut found, mut large) = (Vec::new(), 0);
    for id in store.children(&path::jobs()).await?.iter().filter_map(|name| JobId::parse(name)) {
        let record = match stored(store, &id).await {
            Err(failure) if failure.exit == Exit::NotFound => continue,
            Err(failure) => Err(failure),
            Ok(object) if object.bytes.len() <= LARGE => decode(&id, &object.bytes),
            Ok(object) if large + object.bytes.len() > MOST_OF_LARGE => Err(too_much(&id, object.bytes.len())),
            Ok(object) => {
                large += object.bytes.len();
                decode(&id, &object.bytes)
            }
        };
        found.push((id, record));
    }
    Ok(found)
}

fn too_much(id: &JobId, bytes: usize) -> Failure {
    let why =
        format!("it has {bytes} bytes, and together the large records have more than {MOST_OF_LARGE}, which ftctl never writes");
    Failure::new(Exit::Integrity, format!("the record of job {id} is not read among all: {why}"))
        .fix(format!("`ftctl status {id}` reads it alone; `ftctl down {id}` destroys what the job may have left running"))
}

/// Reads a record of this or an older version.
///
/// # Errors [`Exit::Integrity`] when it is not what a ftctl writes for this job: it cannot be parsed, is of another job,
/// contradicts itself, or has a plan that no job file means. A finished job commands nothing any more: its plan may be one that an
/// older version took.
pub fn decode(id: &JobId, bytes: &[u8]) -> Result<Record> {
    let record: Record = serde_json::from_slice(bytes).map_err(|error| damaged(id, &error.to_string()))?;
    if record.schema != RECORD_SCHEMA {
        return Err(Failure::new(
            Exit::Failure,
            format!("the record of job {id} has the schema `{}`, and this ftctl reads `{RECORD_SCHEMA}`", record.schema),
        )
        .fix("use the ftctl that wrote it, or a newer one"));
    }
    if record.id != *id {
        return Err(damaged(id, &format!("it is that of {}", record.id)));
    }
    record.check().map_err(|why| damaged(id, &why))?;
    if !record.state.is_finished() {
        registry::check(&record.plan).map_err(|why| damaged(id, &why))?;
    }
    Ok(record.renewed())
}

fn damaged(id: &JobId, why: &str) -> Failure {
    Failure::new(Exit::Integrity, format!("the record of job {id} cannot be read: {why}"))
        .fix(format!("`ftctl down {id}` destroys what the job may have left running; it does not need the record"))
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use serde_json::{Value, json};

    use super::*;
    use crate::{
        job::{compute::Compute, docker::DockerPlan, units::Money},
        provider::conformance,
    };

    /// Records of an older ftctl, from before records were checked.
    const OF_BEFORE: &[(&str, &str)] = &[
        ("quickstart-bcdfgh", include_str!("fixtures/running.json")),
        ("quickstart-tyjwbw", include_str!("fixtures/finished.json")),
    ];

    fn id() -> JobId {
        JobId::derive("tiny", "1")
    }

    /// A record that was written by hand.
    fn decoded(change: impl FnOnce(&mut Value)) -> Result<Record> {
        let mut plan = conformance::plan();
        *plan.compute = Compute::Docker(DockerPlan::default());
        let mut record = json!(Record::new(id(), plan, Timestamp::UNIX_EPOCH));
        change(&mut record);
        decode(&id(), &serde_json::to_vec(&record).expect("JSON"))
    }

    fn attempt(number: u32, steps: [u64; 3]) -> Value {
        json!({ "attempt": number, "started": "2026-01-01T00:00:00Z", "first_step": steps[0], "last_step": steps[1],
            "lost_steps": steps[2], "price_per_hour": Money::ZERO })
    }

    #[tokio::test]
    async fn large_records_together_take_no_more_memory_than_a_few() {
        let store = crate::store::memory::MemoryStore::new();
        let names = ["a", "b", "c", "d"].map(|name| JobId::derive(name, "1"));
        for id in &names {
            let mut plan = conformance::plan();
            (plan.name, *plan.compute) = (id.name().to_owned(), Compute::Docker(DockerPlan::default()));
            let mut record = Record::new(id.clone(), plan, Timestamp::UNIX_EPOCH);
            record.reason = Some("x".repeat(if id.name() == "d" { 9 } else { 15 << 20 }));
            store.put(&path::record(id), encode(&record), Condition::Always).await.expect("written");
        }
        let read = all(&store).await.expect("read");
        let told: Vec<bool> = read.iter().map(|(_, record)| record.is_ok()).collect();
        assert_eq!(told, [true, true, false, true], "the last is small");
        let failure = read[2].1.as_ref().expect_err("refused");
        assert!(failure.exit == Exit::Integrity && failure.message.contains("not read among all"), "{}", failure.message);
    }

    #[test]
    fn records_of_before_are_read() {
        for (id, text) in OF_BEFORE {
            let id = JobId::parse(id).expect("an id");
            let record = decode(&id, text.as_bytes()).expect(text);
            assert!(record.attempt == 1 && record.trainer.is_some());
        }
    }

    #[test]
    fn a_job_of_before_that_waits_has_no_machine_yet() {
        let id = JobId::parse("waiting-sd4vfp").expect("an id");
        let record = decode(&id, include_bytes!("fixtures/waiting.json")).expect("a record");
        let (attempt, now) = (&record.attempts[0], record.updated);
        assert_eq!((attempt.started, attempt.requested), (None, Some(record.created)));
        assert_eq!((record.waited(now).as_secs(), attempt.lived(now).as_secs()), (300, 0));
    }

    #[test]
    fn the_digest_of_a_plan_lasts() {
        let (id, text) = OF_BEFORE[0];
        let plan = decode(&JobId::parse(id).expect("an id"), text.as_bytes()).expect("a record").plan;
        // Another one makes every job that runs another user's: see `Plan::digest`.
        assert_eq!(plan.digest().as_str(), "0e0334a40526651044e2e1b6bd8705a6379dbb4e6bfdb890b38583f2a30c0a8d");
    }

    #[test]
    fn what_no_ftctl_writes_is_refused() {
        assert!(decoded(|_| ()).is_ok());
        let both = |record: &mut Value| {
            record["attempt"] = json!(2);
            record["attempts"] = json!([attempt(1, [0, 20, 5]), attempt(2, [15, 15, 0])]);
        };
        assert!(decoded(both).is_ok());
        let refused = |change: &dyn Fn(&mut Value)| {
            let failure = decoded(change).expect_err("refused");
            assert_eq!(failure.exit, Exit::Integrity, "{}", failure.message);
            failure.message
        };
        let other = JobId::derive("tiny", "2");
        for (key, value, message) in [
            ("/id", json!(other), format!("it is that of {other}")),
            ("/id", json!("/etc"), "is not the id of a job".to_owned()),
            ("/attempt", json!(u32::MAX), "beyond the most".to_owned()),
            ("/attempt", json!(1), "has 0 attempts and counts 1".to_owned()),
            ("/attempts", json!([attempt(1, [0, 1, 0])]), "has 1 attempt and counts 0".to_owned()),
            ("/plan/name", json!("other"), "its plan is that of `other`".to_owned()),
            ("/plan/backend", json!("moon"), "there is no backend `moon`".to_owned()),
            ("/plan/docker/mounts", json!(["etc:/etc"]), "compute.docker.mounts: ".to_owned()),
            ("/plan/train/block_size", json!(0), "train.block_size: ".to_owned()),
            ("/plan/ttl", json!("99999999d"), "is longer than".to_owned()),
        ] {
            let told = refused(&|record| *record.pointer_mut(key).expect(key) = value.clone());
            assert!(told.contains(&message), "{told}");
        }
        for (first, last, lost) in [(9, 3, 0), (0, 3, 9)] {
            let told = refused(&|record| {
                both(record);
                record["attempts"][0] = attempt(1, [first, last, lost]);
            });
            assert!(told.contains("attempt 1 contradicts itself"), "{told}");
        }
        for nodes in [0, 257] {
            let told = refused(&|record| {
                both(record);
                record["attempts"][1]["nodes"] = json!(nodes);
            });
            assert!(told.contains("attempt 2 has no number of machines"), "{told}");
        }
        let told = refused(&|record| {
            both(record);
            record["attempts"][1]["attempt"] = json!(3);
        });
        assert!(told.contains("attempt 3 stands in the place of 2"), "{told}");
    }

    #[test]
    fn what_is_over_may_have_a_plan_that_nobody_takes_today() {
        let over = |record: &mut Value| {
            record["state"] = json!("finished");
            record["plan"]["backend"] = json!("moon");
            record["plan"]["train"]["block_size"] = json!(0);
        };
        assert!(decoded(over).is_ok());
    }
}
