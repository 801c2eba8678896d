//! Calls that do not go as they should.

use std::collections::HashMap;

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
    /// `times` and `skip` count for each call's name apart, so that `*` means each call so often.
    #[serde(default)]
    pub each: bool,
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

/// How often the calls of a script's faults were made: by the fault's place, and the call's name where it counts each apart.
pub type Met = HashMap<(usize, String), u32>;

/// The fault that this call meets.
pub fn meet<'f>(faults: &'f [Fault], met: &mut Met, call: &str, zone: &str) -> Option<&'f Fault> {
    let fits = |fault: &Fault| (fault.call == "*" || fault.call == call) && fault.zone.as_ref().is_none_or(|at| at == zone);
    for (place, fault) in faults.iter().enumerate().filter(|(_, fault)| fits(fault)) {
        let made = met.entry((place, if fault.each { call.to_owned() } else { String::new() })).or_default();
        *made = made.saturating_add(1);
        if (fault.skip..fault.skip.saturating_add(fault.times)).contains(&(*made - 1)) {
            return Some(fault);
        }
    }
    None
}
