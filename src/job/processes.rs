//! Processes that share the steps of a job.

use ft_trainer::settings::{
    DeviceChoice, TrainSettings,
    validate::{Rule, rule},
};

use super::spec::JobSpec;

/// The number in plans and orders that do not say one, such as earlier ones.
pub(super) fn one() -> usize {
    1
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde asks like this")]
pub(super) fn is_one(processes: &usize) -> bool {
    *processes == 1
}

/// How many each machine has: where nothing else is said one for each of its GPUs, as far as those are known, or one.
pub(super) fn on_each_node(spec: &JobSpec, gpus: Option<u32>) -> usize {
    let of_gpus = gpus.filter(|_| spec.train.device != DeviceChoice::Cpu).unwrap_or(1).max(1);
    spec.compute.processes_per_node.unwrap_or(of_gpus as usize)
}

/// The settings of a step of which each of so many processes does what `train` says of one.
pub(super) fn shared(train: &TrainSettings, processes: usize) -> TrainSettings {
    let gradient_accumulation = train.gradient_accumulation.saturating_mul(processes);
    let leaves = train.leaves.or((processes > 1).then_some(processes));
    TrainSettings { gradient_accumulation, leaves, ..train.clone() }
}

/// An agent listens to each of them.
pub(super) const MOST_NODES: usize = 256;

/// A step has no more micro-batches, of which each process has one or more.
pub(super) const MOST: usize = 1 << 20;

/// The rules for processes that share the steps of `train`, on so many nodes.
pub(super) fn rules(processes: usize, nodes: usize, train: &TrainSettings) -> [Rule; 3] {
    let number = format!("nodes must be 1 to {MOST_NODES}, but is {nodes}");
    let uneven = format!("{processes} processes cannot be divided evenly among {nodes} nodes");
    let leaves = train.leaves();
    let has_work = format!("{processes} processes cannot share a step of {leaves} leaves (train.leaves); each needs one");
    [
        rule("compute.nodes", (1..=MOST_NODES).contains(&nodes), number),
        rule("compute.nodes", processes.is_multiple_of(nodes), uneven),
        rule("compute.processes_per_node", (1..=leaves).contains(&processes), has_work),
    ]
}
