//! Simulated clouds on loopback, in the program: a rehearsal of everything that costs money, at no cost. They know nothing of the
//! providers that are rehearsed against them, only what the real services do.

pub mod azureml;
mod clock;
mod faults;
pub mod gce;
pub(crate) mod http;
mod key;
mod session;
mod tls;

use std::{collections::BTreeMap, time::Duration};

use serde::Serialize;
use serde_json::Value;

use self::{faults::FaultKind, http::Reply};

/// How often time is looked at between requests.
const TICK: Duration = Duration::from_millis(20);
/// A call that hangs is let go after so long.
const HANG: Duration = Duration::from_secs(3_600);

/// One line of `/devcloud/calls`.
#[derive(Debug, Clone, Serialize)]
struct Call {
    #[serde(rename = "call")]
    method: &'static str,
    /// Empty where the cloud has none.
    zone: String,
    name: String,
    query: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Value::is_null")]
    body: Value,
    /// 0 when there was no answer.
    status: u16,
    /// The rule of the service's own description that it breaks, where that is known here.
    #[serde(skip_serializing_if = "Option::is_none")]
    wrong: Option<String>,
}

/// The answer, as far as it reaches the client.
async fn deliver(fault: Option<FaultKind>, reply: Option<Reply>) -> Option<Reply> {
    match fault {
        Some(FaultKind::Hang | FaultKind::DoneHang) => {
            tokio::time::sleep(HANG).await;
            None
        }
        Some(FaultKind::LostAnswer) => None,
        _ => reply,
    }
}
