//! A job's record in the store, with the version that was read: a write succeeds only if nobody else wrote in between.

use std::sync::Arc;

use bytes::Bytes;

use super::{Result, World, vigil::Vigil};
use crate::{
    exit::{Exit, Failure},
    job::{
        clock::Clock,
        event::EventKind,
        id::{JobId, path},
        record::{RECORD_SCHEMA, Record},
        state::{Outcome, State},
    },
    store::{self, Condition, ETag, Store, StoreError},
};

pub struct Journal {
    pub record: Record,
    /// The provider did not answer when it was last asked how the machine is; only this invocation knows.
    pub out_of_sight: bool,
    /// What this invocation has heard of the running attempt.
    pub vigil: Vigil,
    kept: State,
    etag: ETag,
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
}

impl Journal {
    /// Writes the first record of a job. A job of this id that exists already is taken as it is: that is what makes an interrupted
    /// or repeated submission with the same idempotency key one job.
    pub async fn create(world: &World, record: Record) -> Result<Self> {
        match world.store.put(&path::record(&record.id), encode(&record), Condition::IfAbsent).await {
            Ok(etag) => Ok(Self::of(world, record, etag)),
            Err(StoreError::Conflict { .. }) => Self::load(world, &record.id).await,
            Err(error) => Err(error.into()),
        }
    }

    pub async fn load(world: &World, id: &JobId) -> Result<Self> {
        let (record, etag) = read(world.store.as_ref(), id).await?;
        Ok(Self::of(world, record, etag))
    }

    fn of(world: &World, record: Record, etag: ETag) -> Self {
        let (kept, store, clock) = (record.state, world.store.clone(), world.clock.clone());
        Self { record, out_of_sight: false, vigil: Vigil::default(), kept, etag, store, clock }
    }

    /// Reads the record again, whatever this invocation thought.
    pub async fn reload(&mut self) -> Result<()> {
        (self.record, self.etag) = read(self.store.as_ref(), &self.record.id).await?;
        self.kept = self.record.state;
        Ok(())
    }

    /// Writes the record; [`Exit::Conflict`] when another invocation was faster.
    pub async fn save(&mut self) -> Result<()> {
        let condition = Condition::IfMatch(self.etag.clone());
        self.etag = self.store.put(&path::record(&self.record.id), encode(&self.record), condition).await?;
        self.kept = self.record.state;
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
        self.enter(State::TearingDown).await
    }
}

fn encode(record: &Record) -> Bytes {
    // A record is made of strings, numbers and maps with string keys, for which serde_json cannot fail.
    Bytes::from(serde_json::to_vec(record).unwrap_or_default())
}

/// The record of a job, or [`Exit::NotFound`].
pub async fn read(store: &dyn Store, id: &JobId) -> Result<(Record, ETag)> {
    let object = store::get_json(store, &path::record(id)).await.map_err(|error| match error {
        StoreError::NotFound { store, .. } => Failure::new(Exit::NotFound, format!("there is no job {id} in the store {store}"))
            .fix("`ftctl status --all` lists the jobs of this store"),
        other => other.into(),
    })?;
    Ok((decode(id, &object.bytes)?, object.etag))
}

/// Every job of the store with its record, or why that cannot be read. A job that has only a name yet is left out.
pub async fn all(store: &dyn Store) -> Result<Vec<(JobId, Result<Record>)>> {
    let mut found = Vec::new();
    for id in store.children(&path::jobs()).await?.iter().filter_map(|name| JobId::parse(name)) {
        match read(store, &id).await {
            Err(failure) if failure.exit == Exit::NotFound => {}
            read => found.push((id, read.map(|(record, _)| record))),
        }
    }
    Ok(found)
}

/// Reads a record of this or an older version.
pub fn decode(id: &JobId, bytes: &[u8]) -> Result<Record> {
    let record: Record = serde_json::from_slice(bytes).map_err(|error| {
        Failure::new(Exit::Integrity, format!("the record of job {id} cannot be read: {error}"))
            .fix(format!("`ftctl down {id}` destroys what the job may have left running; it does not need the record"))
    })?;
    if record.schema != RECORD_SCHEMA {
        return Err(Failure::new(
            Exit::Failure,
            format!("the record of job {id} has the schema `{}`, and this ftctl reads `{RECORD_SCHEMA}`", record.schema),
        )
        .fix("use the ftctl that wrote it, or a newer one"));
    }
    Ok(record)
}
