//! Opens a run: from its newest checkpoint, or from the beginning.

mod model;
mod optimizer;
mod state;

use std::fs::{self, File, TryLockError};
use std::path::Path;

use tch::Device;

use super::Run;
use super::checkpoint::Checkpoints;
use super::recorder::{Files, Pace, Recorder};
use crate::data::shard::{Dataset, Split};
use crate::device;
use crate::error::Failure;
use crate::journal::trace;
use crate::model::{Shape, TrainingMemory};
use crate::preflight::{self, Asked, check_dataset, check_validation};
use crate::settings::micro_batch::{self, available_memory};
use crate::settings::{TrainConfig, TrainSettings, validate};
use crate::world::World;

impl Run {
    /// Resumes the run in `config.output`, or starts one there.
    pub fn open(config: &TrainConfig, world: World) -> Result<Self, Failure> {
        validate::all_hold(validate::config(config)).map_err(Failure::input)?;
        let chosen = device::prepare(&config.train)?;
        fs::create_dir_all(&config.output).map_err(|error| Failure::io("create", &config.output, &error))?;
        let lock = world.leads().then(|| lock(&config.output)).transpose()?;
        if config.train.profile {
            trace::start(&config.output)?;
        }
        let dataset = Dataset::open(&config.data)?;
        let sampler = preflight::sampler(dataset.split(Split::Train).len(), &config.train)?;
        let shape = Asked::from(config).shape(dataset.vocabulary())?;
        let checkpoints = Checkpoints::open(&config.output)?;
        let checkpoint = checkpoints.newest(|warning| eprintln!("warning: {warning}"))?;
        let checkpoint = checkpoint.as_deref();
        if checkpoint.is_none() {
            check_beginning(config, &dataset)?;
        }
        let mut state = state::open(config, &dataset, &sampler, &shape, checkpoint)?;
        let mut config = config.clone();
        (config.train, _) = preflight::in_steps(&config.train, sampler.blocks())?;
        let fit = |settings: &TrainSettings| world.agree(has_room(&shape, settings, chosen.device));
        config.train = micro_batch::resolve(&config.train, fit, state.micro_batch, config.micro_batch_limit);
        state.micro_batch = Some(config.train.micro_batch.sequences());
        tch::set_num_threads(state.threads as i32);
        let model = model::open(&config, shape, &dataset, chosen.device, checkpoint)?;
        let optimizer = optimizer::open(&model, &config, checkpoint, state.updates())?;
        let flops_per_token = shape.flops_per_token(config.train.block_size, config.train.lora.as_deref());
        let files = world.leads().then(|| Files::open(&config, checkpoints, checkpoint)).transpose()?;
        let pace = Pace::new(flops_per_token, &config.train, chosen.device, state.seconds);
        let recorder = Recorder::new(files, checkpoint.map(|_| state.step), pace);
        let mut run = Self { world, config, dataset, sampler, model, optimizer, state, recorder, _lock: lock };
        run.announce(&chosen.reason)?;
        Ok(run)
    }
}

/// Refuses what a run may not begin with; one that is resumed has begun.
fn check_beginning(config: &TrainConfig, dataset: &Dataset) -> Result<(), Failure> {
    state::check_threads(&config.train)?;
    check_validation(&config.train, dataset.description())?;
    config.initial_weights.as_deref().map_or(Ok(()), |weights| check_dataset(weights, dataset))
}

/// Whether there is memory for a run, on the device and beside it.
fn has_room(shape: &Shape, settings: &TrainSettings, device: Device) -> bool {
    let needed = TrainingMemory::of(shape, settings, device.is_cuda()).total();
    let main_memory = |needed| micro_batch::fits(needed, available_memory());
    match device::free_memory(device) {
        Some(free) => micro_batch::fits(needed, free) && main_memory(TrainingMemory::beside_device(shape, settings)),
        None => main_memory(needed),
    }
}

/// Two processes in one output directory would overwrite each other's checkpoints.
fn lock(output: &Path) -> Result<File, Failure> {
    let path = output.join(".lock");
    let file = File::create(&path).map_err(|error| Failure::io("create", &path, &error))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(Failure::other(format!(
            "another process is training in {}; wait for it or choose another output directory",
            output.display()
        ))),
        Err(TryLockError::Error(error)) => Err(Failure::io("lock", &path, &error)),
    }
}

/// A checkpoint whose digests are right and which still does not fit: written by another program.
fn damaged(error: impl std::fmt::Display) -> Failure {
    Failure::Integrity(format!("cannot resume: {error}"))
}
