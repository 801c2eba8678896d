//! The first lines of a run: device, arithmetic, memory, and how a step is made.

use tch::Device;

use super::Run;
use crate::cpu::matmul::amx;
use crate::device;
use crate::error::Failure;
use crate::journal::{FLOPS_FORMULA, grouped, say};
use crate::progress::Event;
use crate::settings::Precision;
use crate::settings::lora::LinearMap;

impl Run {
    /// Tells what begins, and says on which device, in which numbers and in how much memory. `reason`: why this device.
    pub(crate) fn announce(&mut self, reason: &str) -> Result<(), Failure> {
        if !self.world.leads() {
            return Ok(());
        }
        let device = self.model.device();
        let start = self.start();
        self.recorder.tell(start)?;
        say(&format!("device: {}, because {reason}", if device.is_cuda() { "the GPU" } else { "the CPU" }));
        self.say_kernels();
        say(&self.memory());
        let (settings, limit) = (&self.config.train, self.config.micro_batch_limit);
        let less = limit.map_or(String::new(), |limit| format!(", because memory ran out with {}", limit + 1));
        let (sequences, parts) = (settings.micro_batch.sequences(), settings.gradient_accumulation);
        say(&format!("a step is {parts} x {sequences} sequences{less}{}", self.division()));
        self.say_adapters();
        self.optimizer.groups().iter().for_each(|group| say(&group.to_string()));
        Ok(())
    }

    /// Says how the step is divided, where it has several leaves.
    fn division(&self) -> String {
        match (self.config.train.leaves(), self.world.size()) {
            (1, _) => String::new(),
            (leaves, 1) => format!(", in {leaves} leaves"),
            (leaves, size) => format!(", in {leaves} leaves on {size} processes{}{}", self.sharing(), self.dependence()),
        }
    }

    /// Says that the results depend on the number of processes, where they do.
    fn dependence(&self) -> &'static str {
        if !self.config.train.depends_on_processes(self.world.size()) {
            return "";
        }
        "; train.reduction = \"fast\": the last digits of the results depend on the number of processes"
    }

    /// Says which things each process has a share of.
    fn sharing(&self) -> &'static str {
        match self.config.train.zero {
            0 => "",
            1 => "; each has a share of the optimizer's state",
            _ if self.shard.is_some() => "; each has a share of the optimizer's state and of the gradients",
            _ => {
                "; each has a share of the optimizer's state, and whole gradients of its several micro-batches, adapters or offloaded model"
            }
        }
    }

    fn start(&self) -> Event {
        let (threads, peak) = (self.state.threads, self.recorder.pace.peak / 1e9);
        let computes = match self.model.device() {
            Device::Cuda(index) => format!("GPU {index}, {peak:.0} GFLOP/s measured"),
            _ => format!("CPU, {threads} threads, {peak:.0} GFLOP/s measured"),
        };
        Event::Start {
            step: self.state.step,
            steps: self.state.steps,
            parameters: self.model.size(),
            tokens_per_step: self.config.train.tokens_per_step(),
            flops_per_token: self.recorder.pace.flops_per_token,
            device: computes,
            micro_batch: Some(self.config.train.micro_batch.sequences()),
        }
    }

    fn say_kernels(&self) {
        let (device, settings) = (self.model.device(), &self.config.train);
        let uses_libtorch = device::uses_libtorch(device, settings.engine);
        if uses_libtorch {
            say(&format!("kernels: libtorch's, attention: {}", self.model.fused().name()));
        }
        settings.arithmetic(device.is_cuda()).iter().for_each(|line| say(line));
        if let Some(scaling) = &self.state.loss_scale {
            say(&scaling.rule(&settings.loss_scaling));
        }
        if !uses_libtorch && settings.precision == Precision::Fp32 && amx::is_available() {
            say("products: on the processor's tiles (AMX), each fp32 number as three bf16 numbers that add up to it");
        }
    }

    fn memory(&self) -> String {
        let [on_device, beside] = self.model.memory(&self.config.train, self.world.size());
        let [on_device, beside] = [on_device, beside].map(|bytes| grouped(bytes >> 20));
        if self.model.device().is_cuda() {
            return format!("memory: about {on_device} MiB of the GPU at the peak, and {beside} MiB of main memory besides");
        }
        format!("memory: about {on_device} MiB at the peak")
    }

    fn say_adapters(&self) {
        let Some(lora) = &self.config.train.lora else { return };
        if self.config.initial_weights.is_none() {
            say("adapters are trained beside random weights, because the run names no initial_weights");
        }
        let numbers = self.model.trained().iter().map(|entry| entry.tensor.numel() as u64).sum();
        let (rank, alpha, trained) = (lora.rank, lora.alpha, grouped(numbers));
        let maps: Vec<&str> = lora.maps().map(LinearMap::name).collect();
        let maps = maps.join(", ");
        say(&format!("trains adapters of rank {rank}, alpha {alpha}, beside {maps}: {trained} numbers"));
        let fewer = FLOPS_FORMULA.replacen('6', "4", 1);
        say(&format!("operations per token: {fewer} instead of {FLOPS_FORMULA}, because frozen weights need no gradients"));
    }
}
