//! The refusals of Compute Engine, and their meaning for the job.

use std::{fmt::Display, time::Duration};

use serde_json::Value;

use super::super::{Class, ProviderError};

#[derive(Debug, Clone)]
pub struct Refusal {
    /// `None` when there was no answer.
    pub status: Option<u16>,
    /// Google's word: `quotaExceeded`, `ZONE_RESOURCE_POOL_EXHAUSTED`, …
    pub reason: String,
    pub message: String,
    pub retry_after: Option<Duration>,
    /// An error that is not the service's, as it is.
    other: Option<Box<ProviderError>>,
}

impl Refusal {
    pub fn lost(what: &str, why: &impl Display) -> Self {
        let message = format!("no answer from Compute Engine to {what}: {why}");
        Self { status: None, reason: String::new(), message, retry_after: None, other: None }
    }

    pub fn answered(what: &str, status: u16, body: &Value, retry_after: Option<Duration>) -> Self {
        let error = &body["error"];
        let reason = error["errors"][0]["reason"].as_str().unwrap_or_default().to_owned();
        let message = error["message"].as_str().map_or_else(|| format!("{what} was answered with {status}"), str::to_owned);
        Self { status: Some(status), reason, message, retry_after, other: None }
    }

    /// Whether the same request may be answered otherwise in a moment.
    pub fn is_passing(&self) -> bool {
        let limited = ["rateLimitExceeded", "userRateLimitExceeded", "RESOURCE_OPERATION_RATE_EXCEEDED"];
        let busy = self.status.is_none_or(|status| matches!(status, 408 | 429 | 500 | 502 | 503 | 504));
        self.other
            .as_ref()
            .map_or(busy && !self.is_stock_out() || limited.contains(&self.reason.as_str()), |other| other.class == Class::Network)
    }

    pub fn is_stock_out(&self) -> bool {
        // A machine may be preempted while it is made.
        self.reason.starts_with("ZONE_RESOURCE_POOL_EXHAUSTED") || self.reason == "UNSUPPORTED_OPERATION"
    }

    pub fn is_quota(&self) -> bool {
        ["quotaExceeded", "QUOTA_EXCEEDED"].contains(&self.reason.as_str())
    }

    /// A limit on the whole project: another region would not help.
    pub fn is_global_quota(&self) -> bool {
        self.is_quota() && (self.message.contains("GPUS_ALL_REGIONS") || self.message.contains("globally"))
    }

    /// Whether its object is being changed, or is still in use by another that is.
    pub fn is_under_way(&self) -> bool {
        ["resourceNotReady", "resourceInUseByAnotherResource", "RESOURCE_IN_USE_BY_ANOTHER_RESOURCE"]
            .contains(&self.reason.as_str())
    }

    /// Not allowed, and not merely too often.
    pub fn is_denied(&self) -> bool {
        self.status == Some(403) && !self.is_passing() && !self.is_quota()
    }

    pub fn is_absent(&self) -> bool {
        self.status == Some(404) || self.reason == "RESOURCE_NOT_FOUND"
    }
}

/// The error that an operation ended with.
pub fn operation_error(operation: &Value) -> Option<Refusal> {
    let error = operation["error"]["errors"].get(0)?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    Some(Refusal {
        status: operation["httpErrorStatusCode"].as_u64().and_then(|status| u16::try_from(status).ok()),
        reason: text(&error["code"]),
        message: text(&error["message"]),
        retry_after: None,
        other: None,
    })
}

/// Sign-in fails with a provider's error; on its way through the client it is carried along.
impl From<ProviderError> for Refusal {
    fn from(error: ProviderError) -> Self {
        Self {
            status: None,
            reason: String::new(),
            message: error.message.clone(),
            retry_after: None,
            other: Some(Box::new(error)),
        }
    }
}

impl From<Refusal> for ProviderError {
    fn from(refusal: Refusal) -> Self {
        if let Some(other) = refusal.other {
            return *other;
        }
        let class = match refusal.status {
            _ if refusal.is_stock_out() => Class::Capacity,
            _ if refusal.is_quota() => Class::Quota,
            _ if refusal.is_passing() => Class::Network,
            Some(401 | 403) => Class::Denied,
            Some(400 | 404) => Class::Invalid,
            Some(409 | 412) => Class::Conflict,
            _ => Class::Internal,
        };
        let error = ProviderError { retry_after: refusal.retry_after, ..ProviderError::new(class, refusal.message) };
        match class {
            Class::Quota => error.fix("ask for more at https://console.cloud.google.com/iam-admin/quotas, or name other zones"),
            Class::Denied => error.fix("the account needs the role roles/compute.instanceAdmin.v1 in this project"),
            _ => error,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recorded(name: &str) -> Value {
        let path = format!("{}/tests/recordings/gce/{name}.json", env!("CARGO_MANIFEST_DIR"));
        let recording: Value = serde_json::from_str(&std::fs::read_to_string(path).expect("a recording")).expect("JSON");
        recording["calls"].as_array().and_then(|calls| calls.last().cloned()).expect("a call")
    }

    #[test]
    fn refusals_are_understood_in_both_forms() {
        let operation = |name| operation_error(&recorded(name)["response"]).expect("an error");
        let answer = |name| {
            let call = recorded(name);
            Refusal::answered("insert", call["status"].as_u64().expect("a status") as u16, &call["response"], None)
        };
        for (refusal, class, global) in [
            (operation("instances-create-stockout"), Class::Capacity, false),
            (operation("instances-create-quota-op-error"), Class::Quota, false),
            (answer("instances-create-quota-403"), Class::Quota, true),
            (answer("instances-create-exists-409"), Class::Conflict, false),
            (answer("instances-delete-404"), Class::Invalid, false),
            (Refusal::answered("x", 503, &Value::Null, None), Class::Network, false),
            (Refusal::answered("x", 403, &Value::Null, None), Class::Denied, false),
        ] {
            assert_eq!(refusal.is_global_quota(), global, "{refusal:?}");
            assert!(!refusal.is_passing() || class == Class::Network, "{refusal:?}");
            assert_eq!(ProviderError::from(refusal.clone()).class, class, "{refusal:?}");
        }
    }
}
