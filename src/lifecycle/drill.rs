//! A rehearsed preemption: the cost of a real one.

use std::time::{Duration, Instant};

use serde::Serialize;

use super::{
    Result, World,
    drive::{Until, drive},
    journal, observe, session,
};
use crate::{
    exit::{Exit, Failure},
    job::{
        id::{JobId, path},
        record::Record,
        units::Money,
    },
    provider::Class,
    store::{Condition, write_json},
};

pub const DRILL_SCHEMA: &str = "ftctl.drill/1";
const MARK_SCHEMA: &str = "ftctl.drill-mark/1";

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Drill {
    pub schema: &'static str,
    pub id: JobId,
    /// The attempt that was taken away.
    pub attempt: u32,
    /// From the preemption to the first step of the next attempt.
    pub recovery_seconds: f64,
    pub lost_steps: u64,
    /// The machine's cost for the recovery and for the steps done again.
    pub wasted: Money,
}

const POLL: Duration = Duration::from_millis(200);

/// Takes the job's machine away, recovers the job, and measures.
pub async fn preempt(world: &World, id: &JobId) -> Result<Drill> {
    let before = journal::read(world.store.as_ref(), id).await?.0;
    if !world.adoption.may_drive(&before) {
        let message = format!("somebody else submitted the job {id}, and a drill would have to recover it");
        return Err(Failure::new(Exit::Conflict, message).fix(format!("ftctl drill preempt {id} --adopt")));
    }
    let target = session::machine(&before)?;
    let start = Instant::now();
    let mark = serde_json::json!({ "schema": MARK_SCHEMA, "time": world.clock.now() });
    write_json(world.store.as_ref(), &path::drill(id, target.attempt), &mark, Condition::Always).await?;
    if let Err(error) = world.provider.preempt(&target).await {
        // Without an answer it may have been taken away. Otherwise a later end is somebody else's wish.
        if error.class != Class::Network {
            world.store.delete(&path::drill(id, target.attempt)).await?;
        }
        return Err(error.into());
    }
    // Both at once: the job needs a driver for its recovery, and there may be no other.
    tokio::select! {
        record = drive(world, id, Until::Finished) => finished(&record?, before.attempt, start),
        after = recovered(world, id, before.attempt) => Ok(measure(&after?, before.attempt, start)),
    }
}

/// Waits until the next attempt trains.
async fn recovered(world: &World, id: &JobId, attempt: u32) -> Result<Record> {
    loop {
        let record = journal::read(world.store.as_ref(), id).await?.0;
        if record.attempt > attempt && observe::last_step(world.store.as_ref(), id, record.attempt).await?.is_some() {
            return Ok(record);
        }
        world.clock.sleep(POLL).await;
    }
}

/// The job may end before its next attempt is seen training; without a next attempt nothing was recovered.
fn finished(record: &Record, attempt: u32, start: Instant) -> Result<Drill> {
    if record.attempt > attempt {
        return Ok(measure(record, attempt, start));
    }
    let reason = record.reason.clone().unwrap_or_default();
    Err(Failure::new(Exit::Preempted, format!("job {} ended with the drill and was not recovered: {reason}", record.id)))
}

fn measure(record: &Record, attempt: u32, start: Instant) -> Drill {
    let ended = record.attempts.iter().find(|ended| ended.attempt == attempt);
    let (lost_steps, price) = ended.map_or((0, Money::ZERO), |ended| (ended.lost_steps, ended.price_per_hour));
    // Steps of the attempt cost alike, so the steps done again take their share of its time.
    let repeated = ended.map_or(Duration::ZERO, |ended| {
        let lived = ended.ended.map_or(Duration::ZERO, |end| ended.lived(end));
        let steps = (ended.last_step - ended.first_step).max(1);
        lived.mul_f64((lost_steps as f64 / steps as f64).min(1.0))
    });
    Drill {
        schema: DRILL_SCHEMA,
        id: record.id.clone(),
        attempt,
        recovery_seconds: start.elapsed().as_secs_f64(),
        lost_steps,
        wasted: price.for_time(start.elapsed() + repeated),
    }
}
