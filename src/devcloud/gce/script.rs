//! What shall go wrong. Every key has a default, so `{}` is a cloud in which nothing does.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::job::units::Span;

pub const SCRIPT_SCHEMA: &str = "ftctl.devcloud-script/1";

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Script {
    pub schema: String,
    /// From the insert to the first line of the startup script.
    pub boot: Span,
    /// Seconds on the wall between the power button and the end of power.
    pub notice: Span,
    /// Tried in this order for every call; the first that fits and is not used up happens.
    pub faults: Vec<Fault>,
    /// Zones without a machine to be had.
    pub stock_outs: Vec<String>,
    /// Limits other than the generous ones, by metric: `GPUS_ALL_REGIONS`, `PREEMPTIBLE_NVIDIA_V100_GPUS`, …
    pub quotas: BTreeMap<String, u32>,
    /// A quota is refused in the operation, not in the answer to the insert.
    pub quota_in_operation: bool,
    pub preemptions: Vec<Preemption>,
}

impl Default for Script {
    fn default() -> Self {
        let seconds = |seconds| Span(std::time::Duration::from_secs(seconds));
        Self {
            schema: SCRIPT_SCHEMA.to_owned(),
            boot: seconds(10),
            notice: seconds(30),
            faults: Vec::new(),
            stock_outs: Vec::new(),
            quotas: BTreeMap::new(),
            quota_in_operation: false,
            preemptions: Vec::new(),
        }
    }
}

/// One call that does not go as it should.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    /// As Google's discovery document names it: `compute.instances.insert`; `*` is every call.
    pub call: String,
    #[serde(default)]
    pub zone: Option<String>,
    pub kind: FaultKind,
    #[serde(default = "once")]
    pub times: u32,
    /// The pause that the service asks for.
    #[serde(default)]
    pub retry_after: Option<Span>,
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
}

/// A machine that is taken away.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Preemption {
    /// The end of its name: `-a1` is the first attempt of any job.
    pub instance: String,
    /// Since its creation.
    pub after: Span,
}

impl Script {
    /// The fault that this call meets; `used` counts how often each has happened.
    pub fn meet<'s>(&'s self, used: &mut Vec<u32>, call: &str, zone: &str) -> Option<&'s Fault> {
        used.resize(self.faults.len().max(used.len()), 0);
        let fits = |fault: &Fault| (fault.call == "*" || fault.call == call) && fault.zone.as_ref().is_none_or(|at| at == zone);
        let (fault, used) = self.faults.iter().zip(used).find(|(fault, used)| fits(fault) && **used < fault.times)?;
        *used += 1;
        Some(fault)
    }
}
