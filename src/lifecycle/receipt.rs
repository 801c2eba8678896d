//! What a job took: time, money and steps, attempt by attempt.

use std::{cmp::Reverse, time::Duration};

use jiff::Timestamp;
use serde::Serialize;

use super::{Result, journal, status};
use crate::{
    job::{
        id::JobId,
        record::{Attempt, Record},
        units::Money,
    },
    store::Store,
};

pub const RECEIPT_SCHEMA: &str = "ftctl.receipt/1";

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Receipt {
    pub schema: &'static str,
    pub id: JobId,
    pub backend: String,
    pub state: String,
    pub attempts: Vec<Attempt>,
    /// From the job's creation to its end.
    pub seconds: u64,
    /// Of which a machine existed.
    pub machine_seconds: u64,
    pub cost: Money,
    /// A machine of it may still exist: the cost is that until now.
    pub may_still_bill: bool,
    /// Steps done more than once because of preemption.
    pub lost_steps: u64,
}

/// What the jobs cost of which a machine existed since then, newest first: only the part of their lives after `since`. A record that
/// cannot be read is named in the second list instead of hiding the others.
pub async fn since(store: &dyn Store, since: Timestamp, now: Timestamp) -> Result<(Vec<Receipt>, Vec<String>)> {
    let (mut receipts, mut unreadable) = (Vec::new(), Vec::new());
    for (_, record) in journal::all(store).await? {
        match record {
            Ok(record) => receipts.extend(clipped(record, since, now).map(|record| receipt(&record, now))),
            Err(failure) => unreadable.push(failure.message),
        }
    }
    receipts.sort_by_key(|receipt| Reverse(receipt.attempts.first().map(|attempt| attempt.started)));
    Ok((receipts, unreadable))
}

/// The job as if its attempts had begun at `since` at the earliest; `None` when none lived after it.
fn clipped(mut record: Record, since: Timestamp, now: Timestamp) -> Option<Record> {
    record.attempts.retain(|attempt| attempt.ended.unwrap_or(now) > since);
    for attempt in &mut record.attempts {
        attempt.started = attempt.started.max(since);
    }
    (!record.attempts.is_empty()).then_some(record)
}

pub fn receipt(record: &Record, now: Timestamp) -> Receipt {
    let seconds = |from: Timestamp, to: Timestamp| Duration::try_from(to.duration_since(from)).unwrap_or_default().as_secs();
    let end = if record.state.is_finished() { record.updated } else { now };
    Receipt {
        schema: RECEIPT_SCHEMA,
        id: record.id.clone(),
        backend: record.plan.backend.clone(),
        state: record.state.label(record.outcome).to_owned(),
        attempts: record.attempts.clone(),
        seconds: seconds(record.created, end),
        machine_seconds: record.attempts.iter().map(|attempt| seconds(attempt.started, attempt.ended.unwrap_or(now))).sum(),
        cost: status::cost(record, now),
        may_still_bill: record.attempts.iter().any(|attempt| attempt.ended.is_none()) && status::cost(record, now) > Money::ZERO,
        lost_steps: record.attempts.iter().map(|attempt| attempt.lost_steps).sum(),
    }
}
