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

/// The words of [`State::label`], and what a job may be called meanwhile: `waiting`, `ready`.
pub const LABELS: [&str; 14] = [
    "planned",
    "uploading",
    "building",
    "waiting",
    "provisioning",
    "ready",
    "submitting",
    "running",
    "collecting",
    "tearing-down",
    "succeeded",
    "failed",
    "cancelled",
    "finished",
];

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_label_is_listed() {
        let states = [
            State::Planned,
            State::Provisioning,
            State::Uploading,
            State::Imaging,
            State::Submitting,
            State::Running,
            State::Collecting,
            State::TearingDown,
            State::Finished,
        ];
        let outcomes = [None, Some(Outcome::Succeeded), Some(Outcome::Failed), Some(Outcome::Cancelled)];
        for (state, outcome) in states.into_iter().flat_map(|state| outcomes.map(|outcome| (state, outcome))) {
            assert!(LABELS.contains(&state.label(outcome)), "{state:?} {outcome:?}");
        }
    }
}
