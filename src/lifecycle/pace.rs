//! How fast a job will train: as an earlier one did on such a machine, else as the data sheet of its GPU lets one reckon.

use std::{cmp::Reverse, time::Duration};

use ft_trainer::{
    model::Shape,
    progress::{Event, Line},
    settings::{DeviceChoice, Offload, Recompute, TrainSettings},
};
use tokio::time::timeout;

use super::{Result, World, journal, observe};
use crate::{
    job::{
        plan::{DataPlan, Plan},
        record::Record,
    },
    provider::registry,
};

/// So long is waited for a store's word on earlier jobs.
const PATIENCE: Duration = Duration::from_secs(3);
/// The number of newest fitting jobs that are looked into, at four requests each.
const JOBS: usize = 8;
/// No machine of today trains faster, in tokens or operations per second. A store may say anything.
const FASTEST: f64 = 1e18;

/// Seconds of a GPU for a layer, forward and backward. A processor needs a part of it to begin the hundred or so kernels, at 5 to
/// 10 µs each.
const LEAST_WORK: f64 = 1e-3;

/// Seconds of a processor for a number of a dropout mask, for which its GPU waits. One core of an EPYC took 4 ns to draw it and 4
/// more to round and store it. A machine with a GPU has four vCPUs or more; the way to the GPU takes another nanosecond at most.
const DRAW: f64 = 3e-9;

#[derive(Debug, Clone, PartialEq)]
pub struct Pace {
    pub tokens_per_second: f64,
    /// A job has shown it. Otherwise it is reckoned.
    pub is_measured: bool,
    /// Where it is known from, for a person.
    pub source: String,
}

/// The pace of a job of this plan, or why nothing is known of it.
pub async fn of(world: &World, plan: &Plan, shape: Option<&Shape>) -> Result<Pace, String> {
    if !plan.compute.trains() {
        return Err("a rehearsal trains nothing".to_owned());
    }
    let Some(shape) = shape else { return Err(no_size(plan).to_owned()) };
    let operations = shape.flops_per_token(plan.train.block_size, plan.train.lora.as_deref());
    let why = match timeout(PATIENCE, earlier(world, plan, operations)).await {
        Ok(Ok(Some(pace))) => return Ok(pace),
        Ok(Ok(None)) => "no earlier job with these settings on such a machine".to_owned(),
        Ok(Err(failure)) => format!("the store does not tell of earlier jobs: {}", failure.message),
        Err(_) => format!("the store does not tell of earlier jobs within {} s", PATIENCE.as_secs()),
    };
    reckoned(plan, shape, operations).map_err(|besides| format!("{why}, and {besides}"))
}

fn no_size(plan: &Plan) -> &'static str {
    match (&plan.initial_weights, &plan.data) {
        (Some(_), _) => "the size of the model is not known: its initial weights cannot be read",
        (None, DataPlan::Text(_)) => "the size of the model is not known before the text is prepared",
        (None, _) => "the size of the model is not known: its vocabulary is that of a dataset which cannot be read here",
    }
}

/// The rate of an attempt.
#[derive(Debug, Clone, Copy)]
struct Shown {
    operations_per_token: f64,
    tokens_per_second: f64,
}

/// The pace of the newest job like this one; of one with another model where there is none, for as many operations.
async fn earlier(world: &World, plan: &Plan, operations: f64) -> Result<Option<Pace>> {
    let records = journal::all(world.store.as_ref()).await?.into_iter().filter_map(|(_, record)| record.ok());
    let mut alike: Vec<Record> = records.filter(|record| is_alike(world, plan, record)).collect();
    alike.sort_by_key(|record| Reverse(record.created));
    let mut of_another = None;
    for record in alike.into_iter().take(JOBS) {
        let Some(shown) = shown(world, &record).await? else { continue };
        let is_same = (shown.operations_per_token / operations - 1.0).abs() < 1e-9;
        let scaled = if is_same { "" } else { ", scaled by the operations for a token" };
        let pace = Pace {
            tokens_per_second: shown.tokens_per_second * shown.operations_per_token / operations,
            is_measured: true,
            source: format!("as {} trained{scaled}", record.id),
        };
        if is_same {
            return Ok(Some(pace));
        }
        of_another.get_or_insert(pace);
    }
    Ok(of_another)
}

/// Whether an earlier job says how fast this one will be, but for the size of its model. A machine without a bill is this one, so
/// only what was submitted here counts.
fn is_alike(world: &World, plan: &Plan, earlier: &Record) -> bool {
    // The rate is that of its last attempt.
    let ran = earlier.plan.on(earlier.nodes());
    earlier.attempt > 0
        && registry::are_alike(&plan.compute, &earlier.plan.compute)
        && (plan.processes, plan.nodes) == (ran.processes, ran.nodes)
        && of_speed(&plan.train) == of_speed(&earlier.plan.train)
        && (world.provider.capabilities().bills || world.adoption.is_own(earlier))
}

/// The settings that decide how fast a model of some size trains.
fn of_speed(train: &TrainSettings) -> impl PartialEq {
    let masks = (train.dropout > 0.0, train.attention_dropout > 0.0, train.document_mask);
    let numbers = (train.precision, train.tf32, train.deterministic, train.lora.is_some());
    (train.device, train.engine, train.threads, train.micro_batch, train.recompute, train.offload, masks, numbers)
}

async fn shown(world: &World, record: &Record) -> Result<Option<Shown>> {
    let (store, id) = (world.store.as_ref(), &record.id);
    let begun = observe::begun(store, id).await?;
    let Some(last) = begun.into_iter().filter(|attempt| *attempt <= record.attempt).max() else { return Ok(None) };
    let Some(beginning) = observe::beginning(store, id, last).await? else { return Ok(None) };
    let tokens_per_second = usual(&observe::latest_progress(store, id, last).await?);
    let is_possible = |rate: f64| rate > 0.0 && rate < FASTEST;
    let shown =
        tokens_per_second.map(|tokens_per_second| Shown { operations_per_token: beginning.flops_per_token, tokens_per_second });
    Ok(shown.filter(|shown| is_possible(shown.tokens_per_second) && is_possible(shown.operations_per_token)))
}

/// The median of the rates that were told, without that of the first step, in which a machine warms up.
fn usual(lines: &[Line]) -> Option<f64> {
    let told = lines.iter().filter_map(|line| match line.event {
        Event::Step { step, tokens_per_second, .. } if step > 1 => Some(tokens_per_second),
        _ => None,
    });
    let mut rates: Vec<f64> = told.collect();
    rates.sort_by(f64::total_cmp);
    rates.get(rates.len() / 2).copied()
}

/// The pace by the data sheet of the machines' GPUs and the dropout masks that they wait for, or why there is none: main memory is
/// read and written in each step, or the processor has hardly begun the work when the GPU is done.
fn reckoned(plan: &Plan, shape: &Shape, operations: f64) -> Result<Pace, &'static str> {
    let train = &plan.train;
    if train.offload != Offload::None || train.recompute == Recompute::Host {
        return Err(
            "with train.offload or train.recompute = \"host\" the speed depends on main memory, for which there are no figures",
        );
    }
    let sheet = if train.device == DeviceChoice::Cpu { None } else { registry::reckoned_rate(&plan.compute, train) };
    let (rate, how) = sheet.ok_or("no figures say how fast it computes in this number format")?;
    // The forward pass is computed twice: a third of the operations once more.
    let again = if train.recompute == Recompute::Full { 4.0 / 3.0 } else { 1.0 };
    let computes = operations * again / rate;
    let at_once = (train.micro_batch.sequences() * train.block_size) as f64;
    if at_once * computes < LEAST_WORK * shape.layers as f64 {
        return Err("a micro-batch of so few tokens leaves its GPU waiting for the processor");
    }
    let draws = DRAW * shape.drawn_per_token(train);
    let masks = format!(" and {:.0} ns of the processor for each number of a dropout mask", DRAW * 1e9);
    let masks = if draws > 0.0 { masks } else { String::new() };
    let together = match plan.processes {
        0 | 1 => String::new(),
        gpus => format!(", on {gpus} GPUs that take no time to add up their gradients"),
    };
    Ok(Pace {
        tokens_per_second: plan.processes as f64 / (computes + draws),
        is_measured: false,
        source: format!("an estimate, with {how}{masks}{together}; nothing was measured"),
    })
}
