//! The refusals of Azure, and their meaning for the job.

use std::{fmt::Display, time::Duration};

use serde_json::Value;

use super::super::{Class, ProviderError};

/// How to ask for more of a quota.
pub const MORE: &str =
    "ask for more in the studio (https://ml.azure.com/quota), or with `az quota`, or take another size or region";

#[derive(Debug, Clone)]
pub struct Refusal {
    /// `None` when there was no answer, and for what an operation ended with.
    pub status: Option<u16>,
    /// Azure's word: `ClusterCoreQuotaReached`, `UserError`, …
    pub code: String,
    pub message: String,
    pub retry_after: Option<Duration>,
    /// There was no answer that could be read.
    lost: bool,
    /// An error that is not the service's, as it is.
    other: Option<Box<ProviderError>>,
}

impl Refusal {
    fn new(status: Option<u16>, message: String) -> Self {
        Self { status, code: String::new(), message, retry_after: None, lost: false, other: None }
    }

    pub fn lost(what: &str, why: &impl Display) -> Self {
        Self { lost: true, ..Self::new(None, format!("no answer from Azure to {what}: {why}")) }
    }

    pub fn answered(what: &str, status: u16, body: &Value, retry_after: Option<Duration>) -> Self {
        let error = detail(body);
        let message = error.message.unwrap_or_else(|| format!("{what} was answered with {status}"));
        Self { code: error.code, retry_after, ..Self::new(Some(status), message) }
    }

    /// The refusal that a long-running operation ended with.
    pub fn ended(what: &str, body: &Value) -> Self {
        let error = detail(body);
        let status = body["status"].as_str().unwrap_or_default();
        let message = error.message.unwrap_or_else(|| format!("{what} ended as {status}, and Azure does not say why"));
        Self { code: error.code, ..Self::new(None, message) }
    }

    /// Whether the same request may be answered otherwise in a moment.
    pub fn is_passing(&self) -> bool {
        match (&self.other, self.status) {
            (Some(other), _) => other.class == Class::Network,
            (None, Some(status)) => matches!(status, 408 | 429 | 500 | 502 | 503 | 504),
            (None, None) => self.lost,
        }
    }

    pub fn is_absent(&self) -> bool {
        self.status == Some(404)
    }

    fn class(&self) -> Class {
        match self.status {
            _ if is_quota(&self.code, &self.message) => Class::Quota,
            _ if is_shortage(&self.code) => Class::Capacity,
            _ if self.is_passing() => Class::Network,
            Some(401 | 403) => Class::Denied,
            Some(400 | 404) => Class::Invalid,
            Some(409 | 412) => Class::Conflict,
            _ => Class::Internal,
        }
    }
}

struct Detail {
    code: String,
    message: Option<String>,
}

/// The error in an answer. Run history packs it into another.
fn detail(body: &Value) -> Detail {
    let outer = &body["error"];
    let error = if outer["error"].is_object() { &outer["error"] } else { outer };
    let text = |key: &str| error[key].as_str().filter(|text| !text.is_empty());
    Detail { code: text("code").map(plain).unwrap_or_default(), message: text("message").map(plain) }
}

/// A text of the service's on one line, and no longer than a person reads.
pub fn plain(text: &str) -> String {
    const MOST: usize = 1_000;
    let words: Vec<&str> = text.split(|c: char| c.is_whitespace() || c.is_control()).filter(|word| !word.is_empty()).collect();
    let line = words.join(" ");
    if line.chars().count() <= MOST { line } else { line.chars().take(MOST).chain(['…']).collect() }
}

/// The code and the message of an error, `None` where there is none.
pub fn told(body: &Value) -> Option<(String, String)> {
    let error = detail(body);
    let message = error.message.or_else(|| Some(error.code.clone()).filter(|code| !code.is_empty()))?;
    Some((error.code, message))
}

/// Codes that say no more than that something was refused: the message says which thing.
const VAGUE: [&str; 7] = ["", "usererror", "badrequest", "badargument", "invalidrequest", "validationerror", "operationnotallowed"];

/// Whether an error says that a quota is used up; it comes as an answer, as an operation's end, and beside a cluster's state.
pub fn is_quota(code: &str, message: &str) -> bool {
    let quota = |text: &str| text.to_ascii_lowercase().contains("quota");
    quota(code) || (VAGUE.contains(&code.to_ascii_lowercase().as_str()) && quota(message))
}

/// Whether a message reports the end of the job's own process. The rest of it may then be that process's words, which say nothing
/// about the service.
pub fn reports_process(message: &str) -> bool {
    let said = message.to_ascii_lowercase();
    ["user process", "exited with status code", "exited with code"].iter().any(|words| said.contains(words))
}

/// Whether an error says that there is no machine now.
pub fn is_shortage(code: &str) -> bool {
    let code = code.to_ascii_lowercase();
    ["allocationfail", "allocationtimedout", "skunotavailable", "outofcapacity"].iter().any(|word| code.contains(word))
}

/// Sign-in fails with a provider's error; on its way through the client it is carried along.
impl From<ProviderError> for Refusal {
    fn from(error: ProviderError) -> Self {
        Self { other: Some(Box::new(error.clone())), ..Self::new(None, error.message) }
    }
}

impl From<Refusal> for ProviderError {
    fn from(refusal: Refusal) -> Self {
        let class = refusal.class();
        if let Some(other) = refusal.other {
            return *other;
        }
        let error = ProviderError { retry_after: refusal.retry_after, ..ProviderError::new(class, refusal.message) };
        match class {
            Class::Quota => error.fix(MORE),
            Class::Capacity => error.fix("wait, or take another size or region"),
            Class::Denied => error.fix(
                "the account needs the role AzureML Data Scientist in the workspace, and AzureML Compute Operator for clusters",
            ),
            _ => error,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn recorded(name: &str) -> Value {
        let path = format!("{}/tests/recordings/azureml/{name}.json", env!("CARGO_MANIFEST_DIR"));
        let recording: Value = serde_json::from_str(&std::fs::read_to_string(path).expect("a recording")).expect("JSON");
        recording["calls"].as_array().and_then(|calls| calls.last().cloned()).expect("a call")
    }

    #[test]
    fn refusals_are_understood_in_every_form() {
        let answer = |name| {
            let call = recorded(name);
            Refusal::answered("ask", call["status"].as_u64().expect("a status") as u16, &call["response"], None)
        };
        let ended =
            |code: &str| Refusal::ended("make", &json!({ "status": "Failed", "error": { "code": code, "message": "why" } }));
        let refused = |code: &str, message: &str| {
            Refusal::answered("make", 400, &json!({ "error": { "code": code, "message": message } }), None)
        };
        for (refusal, class) in [
            (answer("compute-create-quota-400"), Class::Quota),
            (answer("compute-get-404"), Class::Invalid),
            (answer("job-get-404"), Class::Invalid),
            (ended("ClusterCoreQuotaReached"), Class::Quota),
            (refused("UserError", "The subscription has a LowPriority quota of 0 and cannot"), Class::Quota),
            (refused("badRequest", "not enough quota"), Class::Quota),
            (refused("UserError", "The environment was not found"), Class::Invalid),
            (refused("ResourceNotFound", "no quota-1 here"), Class::Invalid),
            (ended("AllocationFailed"), Class::Capacity),
            (ended("InternalServerError"), Class::Internal),
            (Refusal::ended("make", &json!({ "status": "Canceled" })), Class::Internal),
            (Refusal::answered("x", 429, &Value::Null, None), Class::Network),
            (Refusal::answered("x", 503, &Value::Null, None), Class::Network),
            (Refusal::answered("x", 403, &Value::Null, None), Class::Denied),
            (Refusal::lost("x", &"silence"), Class::Network),
        ] {
            assert!(!refusal.is_passing() || class == Class::Network, "{refusal:?}");
            assert_eq!(ProviderError::from(refusal.clone()).class, class, "{refusal:?}");
        }
        let quota = ProviderError::from(answer("compute-create-quota-400"));
        assert!(quota.message.contains("LowPriority quota of 0") && quota.fix.is_some(), "{quota:?}");
    }

    #[test]
    fn what_the_service_says_fits_on_a_line() {
        assert_eq!(plain("a\r\n\tb\u{1b}[31mc"), "a b [31mc");
        assert_eq!(plain(&"x".repeat(9_999)).chars().count(), 1_001);
        let nested = json!({ "error": { "error": { "code": "UserError", "message": "no\nsuch image" } } });
        assert_eq!(told(&nested), Some(("UserError".to_owned(), "no such image".to_owned())));
        assert_eq!(told(&Value::Null), None);
    }
}
