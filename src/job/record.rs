//! The record: what ftctl knows about a job, in `record.json`. Written with a condition on the version read, so that two
//! invocations never overwrite each other.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{
    digest::Digest,
    event::{Event, EventKind},
    id::{JobId, attempt_number},
    order::TrainerImage,
    plan::Plan,
    spec::RetryCause,
    state::{Outcome, State},
    units::Money,
};

pub const RECORD_SCHEMA: &str = "ftctl.record/1";

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    pub schema: String,
    pub id: JobId,
    pub created: Timestamp,
    pub updated: Timestamp,
    pub state: State,
    /// Decided before the tear-down begins, so that a crash in between does not forget it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Outcome>,
    /// Why the outcome is what it is; one sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The exit code that `--wait` gives for this end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit: Option<u8>,
    /// The current attempt; counts from 1 and only rises. 0: none yet.
    #[serde(deserialize_with = "attempt_number")]
    pub attempt: u32,
    pub attempts: Vec<Attempt>,
    pub plan: Plan,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dataset: Option<Digest>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initial_weights: Option<Digest>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trainer: Option<TrainerImage>,
    /// Next time the provider is asked again after a refusal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_at: Option<Timestamp>,
    /// Whether the user handed the job over; `up` alone stops before that.
    pub submitted: bool,
    /// With what key it was handed over: the same command again means this job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<String>,
    pub events: Vec<Event>,
}

/// One attempt as the receipt shows it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Attempt {
    #[serde(deserialize_with = "attempt_number")]
    pub attempt: u32,
    pub started: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<Timestamp>,
    /// Why it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The checkpoint it began from; 0: from the start.
    pub first_step: u64,
    /// Last step it reported.
    pub last_step: u64,
    /// Steps that the next attempt has to do again.
    pub lost_steps: u64,
    pub price_per_hour: Money,
}

/// Events kept in the record; older ones are folded away so that a job which waits for capacity for days stays small.
const MAX_EVENTS: usize = 200;

impl Record {
    pub fn new(id: JobId, plan: Plan, now: Timestamp) -> Self {
        let mut record = Self {
            schema: RECORD_SCHEMA.to_owned(),
            id,
            created: now,
            updated: now,
            state: State::Planned,
            outcome: None,
            reason: None,
            exit: None,
            attempt: 0,
            attempts: Vec::new(),
            plan,
            dataset: None,
            initial_weights: None,
            trainer: None,
            retry_at: None,
            submitted: false,
            idempotency_key: None,
            events: Vec::new(),
        };
        record.enter(State::Planned, now);
        record
    }

    /// Whether it is what a ftctl writes, or why not: its attempts are counted from 1 without a gap. Its plan is judged by
    /// the registry of providers.
    pub fn check(&self) -> Result<(), String> {
        if self.plan.name != self.id.name() {
            return Err(format!("its plan is that of `{}`", self.plan.name));
        }
        for (number, attempt) in (1..).zip(&self.attempts) {
            if attempt.attempt != number {
                return Err(format!("attempt {} stands in the place of {number}", attempt.attempt));
            }
            if attempt.last_step < attempt.first_step.max(attempt.lost_steps) {
                return Err(format!("attempt {number} contradicts itself"));
            }
        }
        let known = self.attempts.len();
        if known != self.attempt as usize {
            return Err(format!("it has {known} attempt{} and counts {}", if known == 1 { "" } else { "s" }, self.attempt));
        }
        Ok(())
    }

    /// The last attempt that its machines may begin by themselves: the current one where only a supervisor begins any.
    pub fn last_attempt(&self) -> u32 {
        let retry = &self.plan.retry;
        let by_itself = self.plan.mends_itself() && retry.on.contains(&RetryCause::Preempt);
        if by_itself { retry.attempts.max(self.attempt) } else { self.attempt }
    }

    /// Moves to a state and remembers when.
    pub fn enter(&mut self, state: State, now: Timestamp) {
        self.state = state;
        self.note(EventKind::Entered { state }, now);
    }

    pub fn note(&mut self, kind: EventKind, now: Timestamp) {
        self.updated = now;
        if self.events.len() >= MAX_EVENTS {
            self.events.remove(1);
        }
        self.events.push(Event { time: now, attempt: self.attempt, kind });
    }
}
