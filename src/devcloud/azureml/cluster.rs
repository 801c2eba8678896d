//! A cluster: what was asked for, and its nodes.

use std::{collections::BTreeMap, time::Duration};

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    api::{Refusal, duration, time},
    script::Script,
    service::Receipt,
    sizes::Size,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Provisioning {
    Creating,
    /// Its jobs go on meanwhile.
    Updating,
    Succeeded,
    Failed,
    Deleting,
}

pub struct Cluster {
    pub name: String,
    /// The request for it, unchanged.
    pub body: Value,
    pub size: &'static Size,
    pub low_priority: bool,
    pub limits: Limits,
    pub created: Timestamp,
    pub provisioning: Provisioning,
    /// The request and the limits before the change that is under way: they hold again where that fails.
    pub before: Option<(Value, Limits)>,
    /// The last operation on it: a creation, a change or a deletion.
    pub operation: String,
    pub nodes: BTreeMap<String, Node>,
    /// When the change of its nodes' number that is under way ends.
    pub allocation: Option<Timestamp>,
    pub transition: Timestamp,
    /// Nodes that were not given are asked for again then.
    pub patience: Option<Timestamp>,
    pub errors: Vec<Value>,
    /// The machines of one job without a cluster of its user's: never shown.
    pub serverless: bool,
}

/// The `scaleSettings`.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    pub min: usize,
    pub max: usize,
    pub idle: Duration,
}

impl Limits {
    /// `None`: not a range, or no duration.
    pub fn read(settings: &Value) -> Option<Self> {
        let number = |name: &str| settings[name].as_u64().and_then(|number| usize::try_from(number).ok());
        let idle = settings["nodeIdleTimeBeforeScaleDown"].as_str().map_or(Some(Duration::from_secs(120)), duration)?;
        let limits = Self { min: number("minNodeCount").unwrap_or(0), max: number("maxNodeCount")?, idle };
        (limits.min <= limits.max).then_some(limits)
    }
}

pub struct Node {
    pub created: Timestamp,
    pub phase: NodePhase,
    /// It is to be taken away.
    pub notice: Option<Notice>,
}

#[derive(Debug, Clone, PartialEq)]
pub enum NodePhase {
    Preparing {
        ready: Timestamp,
    },
    Idle {
        since: Timestamp,
    },
    Running {
        job: String,
    },
    Leaving {
        gone: Timestamp,
    },
    /// It is no more, and was not replaced yet.
    Preempted,
}

impl NodePhase {
    fn name(&self) -> &'static str {
        match self {
            Self::Preparing { .. } => "preparing",
            Self::Idle { .. } => "idle",
            Self::Running { .. } => "running",
            Self::Leaving { .. } => "leaving",
            Self::Preempted => "preempted",
        }
    }
}

/// A scheduled event of the node.
#[derive(Debug, Clone)]
pub struct Notice {
    pub id: String,
    pub not_before: Timestamp,
    /// It is withdrawn then.
    pub withdrawn: Option<Timestamp>,
    pub restarts: bool,
}

impl Cluster {
    /// The cluster that a body asks for.
    pub fn new(name: &str, body: Value, now: Timestamp) -> Result<Self, Refusal> {
        let wanted = &body["properties"]["properties"];
        let vm = wanted["vmSize"].as_str().unwrap_or_default();
        let unsupported = || Refusal::new(400, "InvalidPropertyValue", format!("'{vm}' is not a supported VM size."));
        let size =
            Size::named(vm).filter(|size| size.retired.is_none_or(|day| time(now).as_str() < day)).ok_or_else(unsupported)?;
        let low_priority = wanted["vmPriority"] == "LowPriority";
        if size.price_per_hour(low_priority, 1.0).is_none() {
            let why =
                format!("The VM size {vm} is not allowed for LowPriority. Please convert to Dedicated or use a different VM size.");
            return Err(Refusal::new(400, "VmSizeNotAllowedForLowPriority", why));
        }
        let limits = Limits::read(&wanted["scaleSettings"]);
        let limits = limits.ok_or_else(|| Refusal::invalid("The scale settings need minNodeCount <= maxNodeCount."))?;
        Ok(Self {
            name: name.to_owned(),
            size,
            low_priority,
            limits,
            created: now,
            provisioning: Provisioning::Creating,
            before: None,
            operation: String::new(),
            nodes: BTreeMap::new(),
            allocation: None,
            transition: now,
            patience: None,
            errors: Vec::new(),
            serverless: false,
            body,
        })
    }

    fn count(&self, fits: impl Fn(&NodePhase) -> bool) -> usize {
        self.nodes.values().filter(|node| fits(&node.phase)).count()
    }

    /// The nodes that it has and keeps.
    pub fn current(&self) -> usize {
        self.count(|phase| !matches!(phase, NodePhase::Leaving { .. } | NodePhase::Preempted))
    }

    pub fn busy(&self) -> usize {
        self.count(|phase| matches!(phase, NodePhase::Running { .. }))
    }

    /// Names of the nodes that a job can have at once.
    pub fn idle(&self) -> Vec<String> {
        let idle = self.nodes.iter().filter(|(_, node)| matches!(node.phase, NodePhase::Idle { .. }) && node.notice.is_none());
        idle.map(|(name, _)| name.clone()).collect()
    }

    /// The vCPUs that it holds of its quota.
    pub fn cpus(&self) -> u32 {
        self.size.cpus.saturating_mul(u32::try_from(self.limits.max).unwrap_or(u32::MAX))
    }

    /// The quota that it counts against.
    pub fn quota(&self) -> &'static str {
        if self.low_priority { LOW_PRIORITY } else { self.size.family }
    }

    pub fn receipt(&self, node: &str, until: Timestamp, script: &Script, exists: bool) -> Option<Receipt> {
        let price_per_hour = self.size.price_per_hour(self.low_priority, script.price_factor)?;
        let time = Duration::try_from(until.duration_since(self.nodes.get(node)?.created)).unwrap_or_default();
        let running_seconds = time.as_secs_f64().ceil() as u64;
        let cost = price_per_hour.for_time(Duration::from_secs(running_seconds));
        Some(Receipt { node: node.to_owned(), cluster: self.name.clone(), running_seconds, price_per_hour, cost, exists })
    }

    /// The cluster as `Compute_Get` shows it; `target` is how many nodes it shall have.
    pub fn show(&self, id: &str, location: &str, target: usize) -> Value {
        let mut shown = self.body.clone();
        let ready = self.provisioning != Provisioning::Creating;
        let state = if self.allocation.is_some() || self.current() != target { "Resizing" } else { "Steady" };
        let of = |name: &str| self.count(|phase| phase.name() == name);
        let counts = json!({
            "idleNodeCount": of("idle"), "runningNodeCount": of("running"), "preparingNodeCount": of("preparing"), "unusableNodeCount": 0,
            "leavingNodeCount": of("leaving"), "preemptedNodeCount": of("preempted"),
        });
        let inner = &mut shown["properties"]["properties"];
        inner["allocationState"] = if ready { json!(state) } else { Value::Null };
        inner["currentNodeCount"] = if ready { json!(self.current()) } else { Value::Null };
        inner["targetNodeCount"] = if ready { json!(target) } else { Value::Null };
        inner["nodeStateCounts"] = if ready { counts } else { Value::Null };
        inner["errors"] = if self.errors.is_empty() { Value::Null } else { json!(self.errors) };
        if ready {
            inner["allocationStateTransitionTime"] = json!(time(self.transition));
        }
        let outer = &mut shown["properties"];
        outer["provisioningState"] = json!(format!("{:?}", self.provisioning));
        outer["computeLocation"] = json!(location);
        outer["createdOn"] = json!(time(self.created));
        outer["isAttachedCompute"] = json!(false);
        (shown["id"], shown["name"], shown["location"]) = (json!(id), json!(self.name), json!(location));
        shown["type"] = json!("Microsoft.MachineLearningServices/workspaces/computes");
        shown["systemData"] = super::api::system_data(self.created);
        if let Some(identity) = shown.get_mut("identity").filter(|identity| identity["type"] != "None") {
            (identity["principalId"], identity["tenantId"]) = (json!(super::metadata::CLIENT), json!(super::tokens::TENANT));
        }
        shown
    }

    pub fn show_nodes(&self) -> Value {
        let one = |(index, (name, node)): (usize, (&String, &Node))| {
            let run = match &node.phase {
                NodePhase::Running { job } => json!(job),
                _ => Value::Null,
            };
            json!({
                "nodeId": name, "privateIpAddress": format!("10.0.0.{}", index + 4), "publicIpAddress": null, "port": 50_000 + index,
                "nodeState": node.phase.name(), "runId": run,
            })
        };
        json!({ "nodes": self.nodes.iter().enumerate().map(one).collect::<Vec<_>>() })
    }
}

/// One for all families.
pub const LOW_PRIORITY: &str = "TotalLowPriorityCores";
