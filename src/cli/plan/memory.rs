//! The memory that a job needs at its peak, and what its machine has.

use ft_trainer::{
    model::{Shape, TrainingMemory},
    settings::{DeviceChoice, Engine, Offload, Recompute, TrainSettings, micro_batch::MicroBatch},
};

use crate::{job::plan::Plan, output::format, provider::registry};

/// The memory that training needs at its peak, in bytes.
#[derive(Debug, Clone, Copy)]
pub struct Memory {
    on_gpu: bool,
    /// Bytes needed in the memory that computes, and in main memory beside a GPU: as the plan says, and with one sequence at a
    /// time.
    pub needed: [u64; 2],
    least: [u64; 2],
}

impl Memory {
    pub fn of(plan: &Plan, shape: &Shape) -> Self {
        let on_gpu = match plan.train.device {
            DeviceChoice::Cpu => false,
            DeviceChoice::Cuda => true,
            DeviceChoice::Auto => registry::size(&plan.compute).has_gpu,
        };
        let of = |train: &TrainSettings| {
            let each = TrainingMemory::of(shape, train, plan.processes, on_gpu).total();
            // The nodes of a rehearsal are one machine.
            let beside = if plan.compute.is_here() { plan.processes } else { plan.processes_per_node() };
            let all = |bytes| bytes * beside as u64;
            // Each process has a GPU of its own.
            if on_gpu { [each, all(TrainingMemory::beside_device(shape, train, plan.processes))] } else { [all(each), 0] }
        };
        let one = TrainSettings { micro_batch: MicroBatch::Sequences(1), ..plan.train.clone() };
        Self { on_gpu, needed: of(&plan.train), least: of(&one) }
    }

    pub fn text(&self, plan: &Plan) -> String {
        let of_what = if self.on_gpu { " of the GPU" } else { "" };
        let [needed, beside] = self.needed.map(|bytes| bytes >> 20);
        let beside = if beside > 0 { format!(", and {beside} MiB of main memory besides") } else { String::new() };
        let more = if plan.train.micro_batch == MicroBatch::Auto { ", more where there is more" } else { "" };
        let holds_all = plan.train.zero_among(plan.processes) == 2 && !plan.train.sheds_gradients(plan.processes);
        let whole = if holds_all { ", whole gradients in each process" } else { "" };
        format!("about {needed} MiB{of_what}{more}{whole}{beside}")
    }

    /// The most that a job needs which goes on with fewer nodes, down to one: its processes carry more leaves.
    pub fn of_fewer(plan: &Plan, shape: &Shape) -> Option<Self> {
        let fewer = (1..plan.nodes).filter(|_| plan.retry.shrink);
        fewer.map(|nodes| Self::of(&plan.on(nodes), shape)).max_by_key(|memory| memory.needed)
    }

    /// The same, and what a process of a single node keeps.
    pub fn text_of_fewer(&self, plan: &Plan) -> String {
        let alone = plan.on(1);
        let of_what = if self.on_gpu { " of the GPU" } else { "" };
        let leaves = plan.train.leaves().div_ceil(alone.processes);
        let sums = TrainingMemory::waiting_sums(&alone.train, alone.processes);
        let [needed, beside] = self.needed.map(|bytes| bytes >> 20);
        let beside = if beside > 0 { format!(", and {beside} MiB of main memory besides") } else { String::new() };
        let sums = format::of(sums, "more gradient");
        format!(
            "at most about {needed} MiB{of_what}{beside}; on 1 node a process computes {leaves} groups of a step (train.leaves) and keeps {sums}"
        )
    }

    /// The memory that is too small for even one sequence at a time. With more of them, a run that runs out of memory goes on with
    /// fewer.
    pub fn lack(&self, plan: &Plan) -> Option<String> {
        let (size, [computes, beside]) = (registry::size(&plan.compute), self.least);
        let (memory, more_memory) = (size.memory?, format!("more {}", size.memory_key));
        let savings = savings(&plan.train, self.on_gpu).join(", ");
        let (needed, there, helps) = match (self.on_gpu, size.gpu_memory) {
            (false, _) => (computes, memory, savings),
            (true, Some(_)) if beside > memory.bytes => (beside, memory, more_memory),
            (true, Some(of_gpu)) => (computes, of_gpu, savings),
            (true, None) => return None,
        };
        (needed > there.bytes).then(|| {
            let [needed, bytes] = [needed, there.bytes].map(|bytes| bytes >> 20);
            format!(
                "it needs about {needed} MiB of memory even for one sequence at a time, and {} {bytes} MiB; what helps: {helps}",
                there.whose
            )
        })
    }
}

/// The settings that would make the computing memory smaller.
fn savings(train: &TrainSettings, on_gpu: bool) -> Vec<&'static str> {
    // With libtorch's kernels on the CPU nothing lies in files: offloaded tensors are there twice.
    let may_offload = on_gpu || train.engine != Engine::Libtorch;
    let settings = [
        (matches!(train.recompute, Recompute::None | Recompute::Selective), "train.recompute = \"full\""),
        (train.recompute == Recompute::Full, "train.recompute = \"host\""),
        (may_offload && train.offload == Offload::None, "train.offload = \"optimizer\""),
        (may_offload && train.offload != Offload::Model, "train.offload = \"model\""),
        (true, "a smaller train.block_size"),
        (true, "a larger machine"),
    ];
    settings.into_iter().filter_map(|(helps, what)| helps.then_some(what)).collect()
}
