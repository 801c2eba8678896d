//! The operations of a machine, which the cloud remembers for weeks: the only witness of one that is gone.

use jiff::Timestamp;
use serde_json::Value;

use super::{Gce, NOTICE, equal, last, refusal::Refusal};
use crate::job::{clock::after, id::AttemptId};

const PREEMPTED: &str = "compute.instances.preempted";

impl Gce {
    /// Whether the attempt had a machine that is gone.
    pub(super) async fn has_lived(&self, attempt: &AttemptId) -> Result<bool, Refusal> {
        let is_proof = |operation: &Value| ["insert", PREEMPTED].iter().any(|kind| operation["operationType"] == *kind);
        Ok(self.operations(attempt).await?.iter().any(is_proof))
    }

    pub(super) async fn was_preempted(&self, attempt: &AttemptId) -> Result<bool, Refusal> {
        Ok(self.operations(attempt).await?.iter().any(|operation| operation["operationType"] == PREEMPTED))
    }

    pub(super) async fn beginning_of(&self, attempt: &AttemptId) -> Result<Option<Timestamp>, Refusal> {
        let made = |operation: &Value| time(operation, "insert", "insertTime");
        Ok(self.operations(attempt).await?.iter().filter_map(made).min())
    }

    /// When it was taken away, or somebody deleted it. What the kill switch does has no name that is known.
    pub(super) async fn end_of(&self, attempt: &AttemptId) -> Result<Option<Timestamp>, Refusal> {
        let taken = |operation: &Value| time(operation, PREEMPTED, "endTime").map(|taken| after(taken, NOTICE));
        let end = |operation: &Value| taken(operation).or_else(|| time(operation, "delete", "endTime"));
        Ok(self.operations(attempt).await?.iter().filter_map(end).max())
    }

    /// All that was done with the attempt's machine.
    async fn operations(&self, attempt: &AttemptId) -> Result<Vec<Value>, Refusal> {
        let name = attempt.machine_name();
        // As gcloud asks for `targetLink:NAME`.
        let mut found = self.client.everywhere("operations", &format!(r#"targetLink eq ".*\b{name}\b.*""#)).await?;
        let is_done = |operation: &Value| operation["status"] == "DONE" && operation["error"].is_null();
        found.retain(|operation| last(&operation["targetLink"]) == name && is_done(operation));
        Ok(found)
    }

    /// Every machine that the cloud took away.
    pub(super) async fn preemptions(&self) -> Result<Vec<Value>, Refusal> {
        let mut found = self.client.everywhere("operations", &equal("operationType", PREEMPTED)).await?;
        found.retain(|operation| operation["operationType"] == PREEMPTED);
        Ok(found)
    }
}

/// A time of an operation of this kind.
fn time(operation: &Value, kind: &str, of: &str) -> Option<Timestamp> {
    operation[of].as_str().filter(|_| operation["operationType"] == kind)?.parse().ok()
}
