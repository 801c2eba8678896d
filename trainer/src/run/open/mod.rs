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
use crate::data::sampler::Sampler;
use crate::data::shard::{Dataset, Split};
use crate::data::tokenizer::Tokenizer;
use crate::device;
use crate::error::Failure;
use crate::journal::trace;
use crate::model::shape::OWN_TOKENIZER;
use crate::model::{Shape, TrainingMemory};
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
        let sampler = sampler(&dataset, &config.train)?;
        let shape = shape(config, dataset.vocabulary())?;
        let checkpoints = Checkpoints::open(&config.output)?;
        let checkpoint = checkpoints.newest(|warning| eprintln!("warning: {warning}"))?;
        let checkpoint = checkpoint.as_deref();
        if checkpoint.is_none() {
            check_beginning(config, &dataset)?;
        }
        let mut state = state::open(config, &dataset, &sampler, &shape, checkpoint)?;
        let mut config = config.clone();
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
    check_validation(&config.train, dataset)?;
    config.initial_weights.as_deref().map_or(Ok(()), |weights| check_tokenizer(weights, dataset))
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

/// Refuses data that cannot fill one step: repeating blocks within a step is never what was meant.
fn sampler(dataset: &Dataset, settings: &TrainSettings) -> Result<Sampler, Failure> {
    let (tokens, block_size) = (dataset.split(Split::Train).len(), settings.block_size as u64);
    let Some(sampler) = Sampler::new(settings.seed, tokens, block_size) else {
        return Err(Failure::input(format!(
            "the training split has {tokens} tokens, which is less than one block of {block_size} and the token after it; \
             add text or lower `train.block_size`"
        )));
    };
    let (blocks, needed) = (sampler.blocks(), settings.sequences_per_step());
    if blocks < needed {
        return Err(Failure::input(format!(
            "the training split has {blocks} blocks of {block_size} tokens, but one step reads {needed} (micro_batch × gradient_accumulation); \
             add text or lower `train.micro_batch`, `train.gradient_accumulation` or `train.block_size`"
        )));
    }
    Ok(sampler)
}

/// The shape that the configuration asks for, which is that of the initial weights when there are any.
fn shape(config: &TrainConfig, vocabulary: usize) -> Result<Shape, Failure> {
    let block_size = config.train.block_size;
    let Some(directory) = &config.initial_weights else {
        return Shape::resolve(&config.model, vocabulary, block_size).map_err(Failure::input);
    };
    let shape = Shape::read(directory).map_err(Failure::input)?;
    shape.agrees_with(&config.model, vocabulary, block_size).map_err(Failure::input)?;
    Ok(shape)
}

fn check_validation(settings: &TrainSettings, dataset: &Dataset) -> Result<(), Failure> {
    if !settings.keeps_best() || dataset.description().validation.tokens > 1 {
        return Ok(());
    }
    let key = if settings.keep_best { "train.keep_best" } else { "train.early_stopping_patience" };
    Err(Failure::input(format!("{key} needs a validation loss, and the dataset has no validation text; add some, or remove {key}")))
}

/// Refuses data whose numbers stand for other tokens than those that the weights were trained on. Weights may lie there without a
/// tokenizer.
pub(crate) fn check_tokenizer(weights: &Path, dataset: &Dataset) -> Result<(), Failure> {
    let Ok(known) = Tokenizer::load(weights) else { return Ok(()) };
    let Some((id, known, found)) = known.difference(&dataset.tokenizer()?) else { return Ok(()) };
    Err(Failure::input(format!("token {id} is {known} for the weights and {found} in the dataset; {OWN_TOKENIZER}")))
}

/// A checkpoint whose digests are right and which still does not fit: written by another program.
fn damaged(error: impl std::fmt::Display) -> Failure {
    Failure::Integrity(format!("cannot resume: {error}"))
}
