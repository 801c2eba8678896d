//! The record: what ftctl knows about a job, in `record.json`. Written with a condition on the version read, so that two
//! invocations never overwrite each other.

use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{
    clock::{after, between},
    digest::Digest,
    event::{Event, EventKind},
    id::{JobId, MAX_ATTEMPTS, attempt_number},
    order::TrainerImage,
    plan::{Life, Plan},
    processes,
    spec::RetryCause,
    state::{Outcome, State},
    units::{Money, Span},
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
    /// The last measures of its training. They are written when it is over, so that a list of jobs reads nothing else.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measures: Option<Measures>,
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
    /// Why the current attempt has no machine yet, while it waits for one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting: Option<Waiting>,
    /// Next time the provider is asked again after a refusal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_at: Option<Timestamp>,
    /// On a cloud to rehearse with, whose machines and money are not real.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub simulated: bool,
    /// The account at the backend that its machines are in, by its name there. Absent where the backend has but one, and in records
    /// of before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account: Option<String>,
    /// Whether the user handed the job over; `up` alone stops before that.
    pub submitted: bool,
    /// With what key it was handed over: the same command again means this job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<String>,
    /// Its removal has begun, and cannot be taken back: parts of it may be gone.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub removing: bool,
    pub events: Vec<Event>,
}

/// The last measures of a training. A measure that it did not take is absent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Measures {
    /// Mean cross-entropy of a step's tokens, in nats.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<f64>,
    /// The same on the validation split.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub validation_loss: Option<f64>,
    /// On the validation split.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub perplexity: Option<f64>,
}

/// A wait for a machine, which costs nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waiting {
    pub since: Timestamp,
    /// The refusal and its place; or a service's word on its queue.
    pub why: String,
}

/// One attempt as the receipt shows it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Attempt {
    #[serde(deserialize_with = "attempt_number")]
    pub attempt: u32,
    /// When a machine was first asked for. Absent in records of before, which counted an attempt from there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requested: Option<Timestamp>,
    /// Since when its machine exists, by the provider's word; absent while there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<Timestamp>,
    /// When its agent is told to stop.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Timestamp>,
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
    /// How many machines it was asked for. Absent: as many as the plan has, which are one, or in records of before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<usize>,
    /// How many processes each machine has. Absent: as many as in the plan, or in records of before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processes_per_node: Option<usize>,
}

/// The processes of an attempt, each a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ranks {
    pub all: usize,
    pub on_node: usize,
}

/// Events kept in the record; older ones are folded away so that a job which waits for capacity for days stays small.
const MAX_EVENTS: usize = 200;

impl Attempt {
    /// An attempt without a machine yet, that resumes from `first_step`.
    pub fn new(attempt: u32, first_step: u64, price_per_hour: Money) -> Self {
        Self {
            attempt,
            requested: None,
            started: None,
            ended: None,
            deadline: None,
            reason: None,
            first_step,
            last_step: first_step,
            lost_steps: 0,
            price_per_hour,
            nodes: None,
            processes_per_node: None,
        }
    }

    /// How long its machine existed until `now`.
    pub fn lived(&self, now: Timestamp) -> Duration {
        self.started.map_or(Duration::ZERO, |started| between(started, self.ended.unwrap_or(now)))
    }

    /// How long it waited for one until `now`.
    pub fn waited(&self, now: Timestamp) -> Duration {
        let until = self.started.or(self.ended).unwrap_or(now);
        self.requested.map_or(Duration::ZERO, |requested| between(requested, until))
    }
}

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
            measures: None,
            attempt: 0,
            attempts: Vec::new(),
            plan,
            dataset: None,
            initial_weights: None,
            trainer: None,
            waiting: None,
            retry_at: None,
            simulated: false,
            account: None,
            submitted: false,
            idempotency_key: None,
            removing: false,
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
            if attempt.nodes.is_some_and(|nodes| !(1..=processes::MOST_NODES).contains(&nodes)) {
                return Err(format!("attempt {number} has no number of machines that a job can have"));
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
        let by_itself = self.plan.replaces_machines() && retry.on.contains(&RetryCause::Preempt);
        if by_itself { retry.attempts.max(self.attempt) } else { self.attempt }
    }

    /// The number of its last attempt, when all go wrong. One that had no machine, and after which fewer were asked for, is not
    /// counted. (Each halves the machines, so few follow each other.)
    pub fn most_attempts(&self) -> u32 {
        let nodes = |attempt: &Attempt| attempt.nodes.unwrap_or(self.plan.nodes);
        let left = self.attempts.windows(2).filter(|two| two[0].started.is_none() && nodes(&two[1]) < nodes(&two[0])).count();
        self.plan.retry.attempts.saturating_add(u32::try_from(left).unwrap_or(u32::MAX)).min(MAX_ATTEMPTS)
    }

    /// The plan for the current attempt's machine: what earlier ones have left of it. `None` when that is not worth starting one.
    pub fn left(&self, now: Timestamp) -> Option<Plan> {
        let left = self.plan.left(&self.lives(now, |earlier| earlier.attempt < self.attempt), self.nodes())?;
        let max_wait = Span(self.plan.max_wait.0.saturating_sub(self.waited(now)));
        Some(Plan { max_wait, ..left })
    }

    /// Those of the machines of the attempts that are meant.
    pub fn lives(&self, now: Timestamp, is_meant: impl Fn(&Attempt) -> bool) -> Vec<Life> {
        let meant = self.attempts.iter().filter(|attempt| attempt.started.is_some() && is_meant(attempt));
        meant.map(|attempt| Life { time: attempt.lived(now), nodes: attempt.nodes.unwrap_or(self.plan.nodes) }).collect()
    }

    /// How many machines the current attempt has, or asks for.
    pub fn nodes(&self) -> usize {
        self.attempts.last().map_or(self.plan.nodes, |attempt| self.plan_of(attempt).nodes)
    }

    /// The plan with the machines that an attempt has.
    pub fn plan_of(&self, attempt: &Attempt) -> Plan {
        self.plan.on(attempt.nodes.unwrap_or(self.plan.nodes))
    }

    /// The ranks of an attempt. The numbers of a job that is over are held to no rule before, and there is a log for each rank.
    pub fn ranks(&self, attempt: u32) -> Ranks {
        let has = self.attempts.iter().find(|one| one.attempt == attempt);
        let nodes = has.and_then(|has| has.nodes).unwrap_or(self.plan.nodes);
        let on_node = has.and_then(|has| has.processes_per_node).unwrap_or_else(|| self.plan.processes_per_node()).max(1);
        Ranks { all: nodes.saturating_mul(on_node).clamp(1, processes::MOST), on_node }
    }

    /// How many machines an attempt has of how many, where they are fewer than the plan's.
    pub fn shrunk(&self, attempt: u32) -> Option<(usize, usize)> {
        let attempt = self.attempts.iter().find(|one| one.attempt == attempt)?;
        let (has, all) = (self.plan_of(attempt).nodes, self.plan.nodes);
        (has < all).then_some((has, all))
    }

    /// The same in words that follow others; nothing where it has all.
    pub fn shrunk_to(&self, attempt: u32) -> String {
        self.shrunk(attempt).map(|(has, all)| format!(" on {has} of {all} nodes")).unwrap_or_default()
    }

    /// How long the job has waited for its machines in all.
    pub fn waited(&self, now: Timestamp) -> Duration {
        self.attempts.iter().map(|attempt| attempt.waited(now)).fold(Duration::ZERO, Duration::saturating_add)
    }

    /// The state as a user is shown it.
    pub fn label(&self) -> &'static str {
        match () {
            () if self.waiting.is_some() => "waiting",
            () if self.is_ready() => "ready",
            () => self.state.label(self.outcome),
        }
    }

    /// Whether all is done but what `submit` does, which on a job service brings the machine.
    pub fn is_ready(&self) -> bool {
        let last = if self.plan.compute.queues() { State::Imaging } else { State::Submitting };
        !self.submitted && self.state == last
    }

    /// Translates a record of an older ftctl, which counted an attempt from when its machine was asked for, and had one deadline
    /// for all.
    #[must_use]
    pub fn renewed(mut self) -> Self {
        let lifetime = self.plan.lifetime();
        let first = self.attempts.first().and_then(|first| first.started);
        let Some(current) = self.attempts.last_mut().filter(|attempt| attempt.requested.is_none()) else { return self };
        if self.state == State::Provisioning {
            current.requested = current.started.take();
        } else if current.deadline.is_none() {
            current.deadline = first.map(|first| after(first, lifetime));
        }
        self
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
