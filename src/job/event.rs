//! The events of a job, in order: the material of `explain` and of the receipt.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{id::attempt_number, state::State};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Event {
    pub time: Timestamp,
    #[serde(deserialize_with = "attempt_number")]
    pub attempt: u32,
    #[serde(flatten)]
    pub kind: EventKind,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum EventKind {
    /// The job entered a state.
    Entered { state: State },
    /// The provider refused or could not; `retry_at` is when it is asked again.
    Refused {
        class: String,
        message: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        retry_at: Option<Timestamp>,
    },
    /// The attempt ended; `resumes_from` is the checkpoint the next one starts at, `lost_steps` what has to be done again.
    AttemptEnded { reason: String, last_step: u64, resumes_from: u64, lost_steps: u64 },
    /// Free text, for what has no kind of its own yet (and for events of a newer version).
    Note { message: String },
    /// An event of a newer version, or one that no version makes any more.
    #[serde(other)]
    Unknown,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_that_no_version_makes_any_more_is_read() {
        let before = serde_json::json!({ "time": "2026-01-01T00:00:00Z", "attempt": 1, "kind": "cancel_requested" });
        assert_eq!(serde_json::from_value::<Event>(before).unwrap().kind, EventKind::Unknown);
    }
}
