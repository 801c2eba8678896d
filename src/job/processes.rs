//! Processes that share the steps of a job.

use ft_trainer::settings::{
    DeviceChoice, TrainSettings,
    validate::{Rule, at_least, rule},
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

/// The rules for processes that share the steps of `train`, on so many nodes. A job file says what each of them does of a step, and
/// `train` what all do: what is wrong is told in the words of the file.
pub(super) fn rules(processes: usize, nodes: usize, train: &TrainSettings) -> [Rule; 7] {
    let number = format!("nodes must be 1 to {MOST_NODES}, but is {nodes}");
    let uneven = format!("{processes} processes cannot be divided evenly among {nodes} nodes");
    let (leaves, step) = (train.leaves(), train.gradient_accumulation);
    let groups = if leaves == 1 { "1 leaf".to_owned() } else { format!("{leaves} leaves") };
    let has_work = format!("{processes} processes cannot share a step of {groups} (train.leaves); each needs one");
    let each = step / processes.max(1);
    let undivided =
        format!("{groups} do not divide a step of train.gradient_accumulation = {each} for each of {processes} processes");
    let too_many = format!(
        "a step has at most {MOST} micro-batches, and each of {processes} processes has train.gradient_accumulation of them"
    );
    let larger = if processes > MOST { "compute.processes_per_node" } else { "train.gradient_accumulation" };
    let is_shared = processes > 1;
    [
        rule("compute.nodes", (1..=MOST_NODES).contains(&nodes), number),
        rule("compute.nodes", processes.is_multiple_of(nodes), uneven),
        at_least("compute.processes_per_node", Some(processes), 1),
        rule("compute.processes_per_node", processes <= leaves, has_work),
        rule(larger, !is_shared || step <= MOST, too_many),
        at_least("train.leaves", train.leaves, 1),
        rule("train.leaves", !is_shared || step.is_multiple_of(leaves), undivided),
    ]
}
