//! The states of a job's life.

use serde::{Deserialize, Serialize};

/// Where a job stands. Preemption is an event that leads back to [`State::Provisioning`] with the next attempt; a failure
/// anywhere goes to [`State::TearingDown`] with the reason kept in the record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    Planned,
    Provisioning,
    Uploading,
    Imaging,
    Submitting,
    Running,
    Collecting,
    TearingDown,
    Finished,
}

/// How a job ended, known from the moment it is decided, which is before the machine is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    Succeeded,
    Failed,
    Cancelled,
}

impl State {
    /// The state's word in the status table.
    pub fn label(self, outcome: Option<Outcome>) -> &'static str {
        match (self, outcome) {
            (State::Finished, Some(Outcome::Succeeded)) => "succeeded",
            (State::Finished, Some(Outcome::Failed)) => "failed",
            (State::Finished, Some(Outcome::Cancelled)) => "cancelled",
            (State::Finished, None) => "finished",
            (State::Planned, _) => "planned",
            (State::Provisioning, _) => "provisioning",
            (State::Uploading, _) => "uploading",
            (State::Imaging, _) => "building",
            (State::Submitting, _) => "submitting",
            (State::Running, _) => "running",
            (State::Collecting, _) => "collecting",
            (State::TearingDown, _) => "tearing-down",
        }
    }

    pub fn is_finished(self) -> bool {
        self == State::Finished
    }
}
