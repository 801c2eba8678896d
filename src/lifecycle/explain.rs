//! Why a job is where it is: its events in words, and when something is tried next.

use jiff::Timestamp;
use serde::Serialize;

use crate::job::{
    event::{Event, EventKind},
    id::JobId,
    record::Record,
    state::State,
};

pub const EXPLANATION_SCHEMA: &str = "ftctl.explanation/1";

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Explanation {
    pub schema: &'static str,
    pub id: JobId,
    pub state: String,
    /// What the job waits for, or how it ended.
    pub now: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_at: Option<Timestamp>,
    pub events: Vec<Told>,
}

/// One event in words.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Told {
    pub time: Timestamp,
    pub attempt: u32,
    pub text: String,
}

pub fn explain(record: &Record, now: Timestamp) -> Explanation {
    let retry_at = record.retry_at.filter(|at| *at > now && !record.state.is_finished());
    Explanation {
        schema: EXPLANATION_SCHEMA,
        id: record.id.clone(),
        state: record.state.label(record.outcome).to_owned(),
        now: situation(record, retry_at),
        retry_at,
        events: record.events.iter().map(told).collect(),
    }
}

fn situation(record: &Record, retry_at: Option<Timestamp>) -> String {
    let reason = record.reason.as_deref().unwrap_or("no reason is known");
    match (record.state, retry_at) {
        (State::Finished, _) => format!("it is over: {reason}"),
        (State::TearingDown, _) => format!("its machine is being destroyed: {reason}"),
        (_, Some(at)) => format!("it waits until {at:.0} before it asks for a machine again"),
        (State::Planned | State::Uploading, _) => "its data is being prepared and uploaded".to_owned(),
        (State::Imaging, _) => "its trainer is being built".to_owned(),
        (State::Provisioning, _) => "it asks for a machine".to_owned(),
        (State::Submitting, _) if !record.submitted => "everything is ready; `ftctl submit` starts it".to_owned(),
        (State::Submitting, _) => "its agent is being started".to_owned(),
        (State::Running, _) => format!("attempt {} of at most {} runs", record.attempt, record.plan.retry.attempts),
        (State::Collecting, _) => "its results are being collected".to_owned(),
    }
}

fn told(event: &Event) -> Told {
    let text = match &event.kind {
        EventKind::Entered { state } => format!("entered {}", state.label(None)),
        EventKind::Refused { class, message, retry_at } => {
            let next = retry_at.map(|at| format!("; next try at {at:.0}")).unwrap_or_default();
            format!("refused ({class}): {message}{next}")
        }
        EventKind::AttemptEnded { reason, last_step, resumes_from, lost_steps } => {
            format!(
                "the attempt ended at step {last_step}: {reason}; the next resumes from step {resumes_from} ({lost_steps} done again)"
            )
        }
        EventKind::CancelRequested => "a user asked for the end".to_owned(),
        EventKind::Note { message } => message.clone(),
        EventKind::Unknown => "something that a newer ftctl knows".to_owned(),
    };
    Told { time: event.time, attempt: event.attempt, text }
}
