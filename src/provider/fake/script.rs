//! `script.json`: the script of a rehearsal. Every key has a default, so `{}` is a cloud in which nothing goes wrong.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{
    job::{
        id::AttemptId,
        units::{Money, Span},
    },
    provider::{Class, ProviderError},
};

pub const SCRIPT_SCHEMA: &str = "ftctl.fake-script/1";

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Script {
    pub schema: String,
    /// Where the virtual clock begins; fixed, so that two rehearsals of one script are alike to the byte.
    pub start: Timestamp,
    pub price_per_hour: Money,
    pub job: Work,
    /// Tried in this order for every call; the first that fits and is not used up happens.
    pub faults: Vec<Fault>,
    pub preemptions: Vec<Preemption>,
    pub queues: Vec<Queue>,
    pub out_of_sight: Vec<OutOfSight>,
    pub crash_at: Option<CrashAt>,
}

impl Default for Script {
    fn default() -> Self {
        Self {
            schema: SCRIPT_SCHEMA.to_owned(),
            start: Timestamp::constant(1_767_225_600, 0),
            price_per_hour: Money { micros: 740_000 },
            job: Work::default(),
            faults: Vec::new(),
            preemptions: Vec::new(),
            queues: Vec::new(),
            out_of_sight: Vec::new(),
            crash_at: None,
        }
    }
}

/// The work that the agents pretend to do.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Work {
    /// From the agent's start to the first step.
    pub staging: Span,
    /// All steps of the job, when nothing interrupts them.
    pub duration: Span,
    /// The trainer fails with this message when its steps are done.
    pub fails: Option<String>,
}

impl Default for Work {
    fn default() -> Self {
        let seconds = |seconds| Span(std::time::Duration::from_secs(seconds));
        Self { staging: seconds(30), duration: seconds(600), fails: None }
    }
}

/// One call that does not go as it should.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    pub call: Call,
    /// Only for this attempt; absent: for every one, and for calls that concern none.
    #[serde(default)]
    pub attempt: Option<u32>,
    pub kind: FaultKind,
    #[serde(default = "once")]
    pub times: u32,
    /// Virtual time that passes before the answer.
    #[serde(default)]
    pub delay: Option<Span>,
    /// The pause that the service asks for.
    #[serde(default)]
    pub retry_after: Option<Span>,
}

fn once() -> u32 {
    1
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Call {
    Price,
    Provision,
    Launch,
    Observe,
    Preempt,
    Destroy,
    List,
}

impl Call {
    pub fn name(self) -> &'static str {
        match self {
            Call::Price => "price",
            Call::Provision => "provision",
            Call::Launch => "launch",
            Call::Observe => "observe",
            Call::Preempt => "preempt",
            Call::Destroy => "destroy",
            Call::List => "list",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FaultKind {
    /// No machine of the kind is free.
    StockOut,
    /// The account may not have another.
    Quota,
    Denied,
    /// The service answers with an error of its own, and did nothing.
    Broken,
    /// The request is lost on its way: nothing happened, and the caller cannot know.
    Unreachable,
    /// The answer is lost on its way: it happened, and the caller cannot know.
    LostAnswer,
    /// The answer is right, only late.
    Slow,
}

impl Fault {
    /// The caller's error; `None` when it gets the true answer.
    pub fn error(&self) -> Option<ProviderError> {
        let (class, text) = match self.kind {
            FaultKind::StockOut => {
                (Class::Capacity, "ZONE_RESOURCE_POOL_EXHAUSTED: the zone does not have enough resources for the request")
            }
            FaultKind::Quota => (Class::Quota, "QUOTA_EXCEEDED: quota PREEMPTIBLE_NVIDIA_V100_GPUS exceeded, limit 1"),
            FaultKind::Denied => (Class::Denied, "PERMISSION_DENIED: the account may not do this"),
            FaultKind::Broken => (Class::Internal, "INTERNAL_ERROR: please try again later"),
            FaultKind::Unreachable | FaultKind::LostAnswer => (Class::Network, "no answer within 60 s"),
            FaultKind::Slow => return None,
        };
        let mut error = ProviderError::new(class, format!("the fake cloud's {}: {text}", self.call.name()));
        error.retry_after = self.retry_after.map(|span| span.0);
        Some(error)
    }

    pub fn fits(&self, call: Call, attempt: Option<&AttemptId>) -> bool {
        self.call == call && (self.attempt.is_none() || self.attempt == attempt.map(|id| id.attempt))
    }
}

/// The cloud takes the machine of an attempt away.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Preemption {
    pub attempt: u32,
    /// Since the machine was made; before its agent starts when that takes longer.
    pub after: Span,
    /// The agent hears of it in time to write its last checkpoint and its exit record.
    #[serde(default)]
    pub notice: bool,
    /// The machine is deleted, not stopped.
    #[serde(default)]
    pub vanishes: bool,
    /// After so long the cloud starts the attempt again by itself, as a managed service may: on another machine, once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub again: Option<Span>,
}

/// The cloud takes an attempt into a queue, as a managed service does, and makes its machine later.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Queue {
    pub attempt: u32,
    /// Until there is a machine.
    pub lasting: Span,
    #[serde(default = "no_node")]
    pub why: String,
}

fn no_node() -> String {
    "no node of the cluster is free".to_owned()
}

/// The cloud cannot say how a machine is, which meanwhile is well.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OutOfSight {
    pub attempt: u32,
    /// Since the machine was made.
    pub after: Span,
    pub lasting: Span,
}

/// The process that makes the call is killed (SIGKILL), so that recovery from a crash can be rehearsed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CrashAt {
    /// Counts the calls of each process from 1, as `calls.jsonl` shows them.
    pub call: u64,
    pub when: When,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum When {
    /// Nothing of the call has happened.
    Before,
    /// All of it has, but the answer is lost.
    After,
}
