//! The refusals of Compute Engine, and their meaning for the job.

use std::{fmt::Display, time::Duration};

use serde_json::Value;

use super::super::{Class, ProviderError};

const ROLE: &str = "the account needs the role roles/compute.instanceAdmin.v1 in this project";
const EXCEPTION: &str = "ask the organization's administrators for an exception to that constraint";
/// Words in a refusal by a policy, and the way out.
const POLICIES: [(&[&str], &str); 2] = [
    (
        &["compute.vmExternalIpAccess"],
        "set compute.gce.external_address = false, with a subnetwork that reaches the store by Cloud NAT",
    ),
    (&["gcp.resourceLocations"], "name zones that the organization allows in compute.gce.zones"),
];
/// Words in a denial, and the way out where it is not [`ROLE`].
const DENIALS: [(&[&str], &str); 4] = [
    (
        &["compute.subnetworks.use", "compute.networks.use"],
        "the account needs the role roles/compute.networkUser on the subnetwork, or in the host project",
    ),
    (&["iam.serviceAccounts.actAs"], "the account needs the role roles/iam.serviceAccountUser on that service account"),
    (&["billing"], "link the project to a billing account: https://console.cloud.google.com/billing/linkedaccount"),
    (
        &["Request is prohibited by organization's policy", "vpcServiceControls"],
        "this machine is outside the project's VPC Service Controls perimeter: work inside it, or ask its administrators for access",
    ),
];

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

    /// An answer that is not what the service gives; `to` has the request and the status.
    pub fn strange(to: &str, why: &impl Display) -> Self {
        let message = format!("unexpected answer from Google to {to}: {why}");
        Self { message, ..Self::lost(to, why) }
    }

    pub fn answered(what: &str, status: u16, body: &Value, retry_after: Option<Duration>) -> Self {
        let error = &body["error"];
        // Newer services name theirs among the details.
        let told = error["details"].as_array().into_iter().flatten().find_map(|detail| detail["reason"].as_str());
        let reason = told.or(error["errors"][0]["reason"].as_str()).unwrap_or_default().to_owned();
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

    /// The zone does not have what was asked for, or is none: another zone may have it.
    pub fn is_elsewhere(&self) -> bool {
        let lacks =
            ["not found", "cannot be found", "does not exist", "not available", "not supported", "unavailable", "unknown zone"];
        let message = self.message.to_lowercase();
        // A missing image or network has no zone in its path, and a subnetwork is that of a region.
        let is_local = message.contains("zone") || (message.contains("/regions/") && message.contains("/subnetworks/"));
        let is_missing = matches!(self.status, Some(400 | 404)) && lacks.iter().any(|word| message.contains(word));
        (is_local && is_missing) || (self.is_against_policy() && message.contains("gcp.resourcelocations"))
    }

    /// Not allowed by a policy of the organization, Google's (constraints/...) or its own (customConstraints/...): it stays so,
    /// whatever is tried.
    fn is_against_policy(&self) -> bool {
        matches!(self.status, Some(400 | 403 | 412)) && self.message.to_lowercase().contains("constraints/")
    }

    /// The project has never used this service.
    fn is_not_enabled(&self) -> bool {
        self.status == Some(403) && ["accessNotConfigured", "SERVICE_DISABLED"].contains(&self.reason.as_str())
    }

    /// The way out, for a person.
    fn fix(&self, class: Class) -> Option<&'static str> {
        let of_word = |(words, _): &&(&[&str], &str)| words.iter().any(|word| self.message.contains(word));
        match class {
            _ if self.is_not_enabled() => {
                Some("gcloud services enable compute.googleapis.com, in this project; it counts after some minutes")
            }
            _ if self.is_against_policy() => Some(POLICIES.iter().find(of_word).map_or(EXCEPTION, |(_, fix)| fix)),
            Class::Quota => Some("ask for more at https://console.cloud.google.com/iam-admin/quotas, or name other zones"),
            Class::Denied if self.status == Some(401) => Some("gcloud auth application-default login"),
            Class::Denied => Some(DENIALS.iter().find(of_word).map_or(ROLE, |(_, fix)| fix)),
            Class::Invalid if self.message.contains("/networks/") || self.message.contains("/subnetworks/") => Some(
                "name one that there is in compute.gce.network or compute.gce.subnetwork, and its project in compute.gce.host_project",
            ),
            _ => None,
        }
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
            _ if refusal.is_against_policy() => Class::Denied,
            Some(401 | 403) => Class::Denied,
            Some(400 | 404) => Class::Invalid,
            Some(409 | 412) => Class::Conflict,
            _ => Class::Internal,
        };
        let fix = refusal.fix(class);
        let error = ProviderError { retry_after: refusal.retry_after, ..ProviderError::new(class, refusal.message) };
        fix.into_iter().fold(error, ProviderError::fix)
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
            (Refusal::answered("x", 412, &Value::Null, None), Class::Conflict, false),
        ] {
            assert_eq!(refusal.is_global_quota(), global, "{refusal:?}");
            assert!(!refusal.is_passing() || class == Class::Network, "{refusal:?}");
            assert_eq!(ProviderError::from(refusal.clone()).class, class, "{refusal:?}");
        }
    }

    #[test]
    fn what_a_company_forbids_and_what_a_zone_lacks_is_told_with_the_way_out() {
        let refusal = |status: u16, reason: &str, message: &str| {
            let error = serde_json::json!({ "errors": [{ "reason": reason, "message": message }], "message": message });
            Refusal::answered("insert", status, &serde_json::json!({ "error": error }), None)
        };
        let address = "Constraint constraints/compute.vmExternalIpAccess violated for project 7. Add instance projects/p/zones/us-central1-a/instances/x to the constraint to use external IP with it.";
        let shielded =
            "Constraint constraints/compute.requireShieldedVm violated for project projects/p. Secure Boot is not enabled.";
        let own = "Operation denied by custom org policies: [\"customConstraints/custom.onlySmall\": \"Small machines only.\"]";
        let locations =
            "Location ZONE:us-central1-a violates constraint constraints/gcp.resourceLocations on the resource projects/p.";
        let disabled = "Compute Engine API has not been used in project 7 before or it is disabled.";
        for (refusal, class, fix) in [
            (refusal(412, "conditionNotMet", address), Class::Denied, "external_address = false"),
            (refusal(412, "conditionNotMet", shielded), Class::Denied, "administrators"),
            (refusal(412, "conditionNotMet", own), Class::Denied, "administrators"),
            (refusal(403, "accessNotConfigured", disabled), Class::Denied, "gcloud services enable compute.googleapis.com"),
            (refusal(403, "forbidden", "Required 'compute.instances.create' permission"), Class::Denied, "instanceAdmin"),
            (refusal(403, "forbidden", "Required 'compute.subnetworks.use' permission for 'x'"), Class::Denied, "networkUser"),
            (
                refusal(403, "forbidden", "The user does not have access: iam.serviceAccounts.actAs"),
                Class::Denied,
                "serviceAccountUser",
            ),
            (refusal(403, "forbidden", "This API method requires billing to be enabled."), Class::Denied, "billing/linkedaccount"),
            (refusal(403, "forbidden", "Request is prohibited by organization's policy."), Class::Denied, "perimeter"),
            (refusal(401, "required", "Login Required."), Class::Denied, "gcloud auth"),
            (refusal(412, "conditionNotMet", locations), Class::Denied, "name zones that the organization allows"),
            (
                refusal(404, "notFound", "The resource 'projects/p/global/networks/default' was not found"),
                Class::Invalid,
                "host_project",
            ),
        ] {
            let message = refusal.message.clone();
            let error = ProviderError::from(refusal);
            assert!(error.class == class && error.fix.as_deref().is_some_and(|said| said.contains(fix)), "{message}: {error:?}");
        }
        let details = serde_json::json!([{ "@type": "x" }, { "reason": "SERVICE_DISABLED" }]);
        let error = serde_json::json!({ "errors": [{ "reason": "forbidden" }], "message": disabled, "details": details });
        assert!(Refusal::answered("insert", 403, &serde_json::json!({ "error": error }), None).is_not_enabled());
        for (status, message, elsewhere) in [
            (404, "The resource 'projects/p/zones/us-central1-b/machineTypes/a2-highgpu-1g' was not found", true),
            (
                400,
                "Invalid value for field 'resource.guestAccelerators[0].acceleratorType': 'https://x/projects/p/zones/us-west1-a/acceleratorTypes/nvidia-tesla-v100'. The referenced resource does not exist.",
                true,
            ),
            (400, "Machine type with name 'a2-highgpu-1g' does not exist in zone 'us-central1-b'.", true),
            (400, "Invalid value for field 'zone': 'us-central9-a'. Unknown zone.", true),
            (404, "The resource 'projects/x/global/images/family/none' was not found", false),
            (404, "The resource 'projects/p/global/networks/none' was not found", false),
            (403, "Permission denied on zone us-central1-a (or it may not exist)", false),
            (400, "The resource 'projects/p/regions/us-west1/subnetworks/ml' cannot be found.", true),
            (412, locations, true),
        ] {
            assert_eq!(refusal(status, "invalid", message).is_elsewhere(), elsewhere, "{message}");
        }
    }
}
