//! Calls that do not go as they should.

use serde::{Deserialize, Serialize};

use crate::job::units::Span;

/// One call that does not go as it should.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    /// The call, by the name that its cloud's description has for it: `compute.instances.insert`, `Jobs_Get`; `*` is every call.
    pub call: String,
    /// Only calls for this zone, where the cloud has zones.
    #[serde(default)]
    pub zone: Option<String>,
    pub kind: FaultKind,
    #[serde(default = "once")]
    pub times: u32,
    /// Number of matching calls that pass before.
    #[serde(default)]
    pub skip: u32,
    /// The pause that the service asks for.
    #[serde(default)]
    pub retry_after: Option<Span>,
    /// The service's code and words for a status; absent: the usual ones.
    #[serde(default)]
    pub words: Option<(String, String)>,
}

fn once() -> u32 {
    1
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FaultKind {
    /// Answered with this status instead.
    Status(u16),
    /// Done, and the connection closed before the answer.
    LostAnswer,
    /// Neither done nor answered.
    Hang,
    /// Done, and not answered.
    DoneHang,
}

/// The fault that this call meets; `used` counts how often each was met.
pub fn meet<'f>(faults: &'f [Fault], used: &mut Vec<u32>, call: &str, zone: &str) -> Option<&'f Fault> {
    used.resize(faults.len().max(used.len()), 0);
    let fits = |fault: &Fault| (fault.call == "*" || fault.call == call) && fault.zone.as_ref().is_none_or(|at| at == zone);
    for (fault, used) in faults.iter().zip(used).filter(|(fault, _)| fits(fault)) {
        *used = used.saturating_add(1);
        if (fault.skip..fault.skip.saturating_add(fault.times)).contains(&(*used - 1)) {
            return Some(fault);
        }
    }
    None
}
