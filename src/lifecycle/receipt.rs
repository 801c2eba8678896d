//! What a job took: time, money and steps, attempt by attempt.

use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;

use super::status;
use crate::job::{
    id::JobId,
    record::{Attempt, Record},
    units::Money,
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
    /// Steps done more than once because of preemption.
    pub lost_steps: u64,
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
        lost_steps: record.attempts.iter().map(|attempt| attempt.lost_steps).sum(),
    }
}
