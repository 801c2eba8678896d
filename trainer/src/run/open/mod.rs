//! Opens a run: from its newest checkpoint, or from the beginning.

mod model;
mod optimizer;
mod state;

use std::fs::{self, File, TryLockError};
use std::path::Path;

use sha2::{Digest, Sha256};
use tch::Device;

use super::Run;
use super::checkpoint::Checkpoints;
use super::checkpoint::saving::Saving;
use super::recorder::{Files, Pace, Recorder};
use crate::data::shard::{Dataset, Split};
use crate::device;
use crate::error::Failure;
use crate::journal::trace;
use crate::model::{Shape, TrainingMemory};
use crate::preflight::{self, Asked, check_dataset, check_validation};
use crate::settings::micro_batch::{self, available_memory};
use crate::settings::{TrainConfig, TrainSettings, validate};
use crate::shares::Shares;
use crate::state::{Identity, State};
use crate::world::{Shards, World};

/// The point that a run goes on from. The leader alone reads it, and tells the others: they share nothing but the network.
struct Origin<'a> {
    world: &'a World,
    /// From a checkpoint.
    resumes: bool,
    /// The leader's.
    checkpoint: Option<&'a Path>,
    /// The run names initial weights.
    has_weights: bool,
}

impl Run {
    /// Resumes the run in `config.output`, or starts one there.
    pub fn open(config: &TrainConfig, world: World) -> Result<Self, Failure> {
        validate::all_hold(validate::config(config)).map_err(Failure::input)?;
        let chosen = device::prepare(&config.train, world.local())?;
        check_devices(chosen.device, &world)?;
        let world = world.on(chosen.device)?;
        fs::create_dir_all(&config.output).map_err(|error| Failure::io("create", &config.output, &error))?;
        let lock = world.leads().then(|| lock(&config.output)).transpose()?;
        if config.train.profile && world.leads() {
            trace::start(&config.output)?;
        }
        let dataset = Dataset::open(&config.data)?;
        check_same(config, &dataset, &world)?;
        let sampler = preflight::sampler(dataset.split(Split::Train).len(), &config.train)?;
        let shape: Shape = world.told(|| {
            let asked = Asked::from(config);
            let shape = asked.shape(dataset.vocabulary())?;
            asked.check_sample(&dataset).map(|()| shape)
        })?;
        let checkpoints = world.leads().then(|| Checkpoints::open(&config.output)).transpose()?;
        let newest = |checkpoints: &Checkpoints| checkpoints.newest(|warning| eprintln!("warning: {warning}"));
        let checkpoint = checkpoints.as_ref().map_or(Ok(None), newest)?;
        let checkpoint = checkpoint.as_deref();
        let find = || {
            if checkpoint.is_none() {
                check_beginning(config, &dataset)?;
            }
            let state = state::open(config, &dataset, &sampler, &shape, &world, checkpoint)?;
            Ok((state, checkpoint.is_some(), config.initial_weights.is_some()))
        };
        let (mut state, resumes, has_weights): (State, _, _) = world.told(find)?;
        let origin = Origin { world: &world, resumes, checkpoint, has_weights };
        let mut config = config.clone();
        (config.train, _) = preflight::in_steps(&config.train, sampler.blocks())?;
        config.train.leaves = Some(state.leaves);
        check_leaves(&config.train, &world)?;
        let fit = |settings: &TrainSettings, most| has_room(&shape, settings, most, chosen.device, &world);
        let own = micro_batch::resolve(&config.train, fit, state.micro_batch, config.micro_batch_limit);
        let least = world.gather(&[own.micro_batch.sequences()], |_| 1)?.into_iter().min();
        config.train = micro_batch::resolve(&config.train, |_, _| true, state.micro_batch, least);
        let sequences = config.train.micro_batch.sequences();
        if let Some(began) = state.micro_batch.replace(sequences).filter(|began| *began != sequences && world.leads()) {
            eprintln!(
                "warning: a micro-batch of {began} sequences does not fit on this machine; with {sequences}, the last digits of the results differ"
            );
        }
        tch::set_num_threads(state.threads as i32);
        let model = model::open(&config, shape, &dataset, chosen.device, &origin)?;
        let shares = Shares::new(world.size(), &model.trained().specs(), config.train.optimizer);
        let optimizer = optimizer::open(&model, &config, &shares, &origin, state.updates())?;
        let shard = config.train.sheds_gradients(world.size()).then(|| Shards::zeros(model.trained(), &shares, world.rank()));
        let flops_per_token = shape.flops_per_token(config.train.block_size, config.train.lora.as_deref());
        let files = world.leads().then(|| Files::open(&config, checkpoint)).transpose()?;
        let saving = Saving::open(&world, &config.output)?;
        let (device, kind, engine) = (chosen.device, config.train.precision.kind(), config.train.engine);
        let peak = if world.leads() { device::measured_rate(device, kind, engine) } else { 0.0 };
        let pace = Pace::new(flops_per_token, peak * world.size() as f64, state.seconds);
        let recorder = Recorder::new(files, saving, resumes.then_some(state.step), pace);
        let mut run =
            Self { world, config, dataset, sampler, model, optimizer, shares, shard, arriving: None, state, recorder, _lock: lock };
        run.announce(&chosen.reason)?;
        // A process that runs out of memory in the first step ends all: by then it is said with how many sequences they began.
        run.world.any(false)?;
        Ok(run)
    }
}

/// Refuses processes that would compute different things. Weights are the leader's.
fn check_same(config: &TrainConfig, dataset: &Dataset, world: &World) -> Result<(), Failure> {
    let model = serde_json::to_value(&config.model).map_err(Failure::other)?;
    let identity = Identity::new(dataset.digest().to_owned(), None, model, &config.train)?;
    // How the work is shared decides no number, and all must share it alike.
    let text = serde_json::to_vec(&(identity, config.train.zero, config.train.reduction)).map_err(Failure::other)?;
    let digests = world.gather(&[<[u8; 32]>::from(Sha256::digest(text))], |_| 1)?;
    let other = digests.iter().position(|digest| *digest != digests[0]);
    let message =
        |rank| Failure::input(format!("rank {rank} has other settings or other data than rank 0; start all with the same"));
    other.map_or(Ok(()), |rank| Err(message(rank)))
}

/// Refuses that some compute on GPUs and the others wait for those that do not.
fn check_devices(device: Device, world: &World) -> Result<(), Failure> {
    let are_gpus = world.gather(&[u8::from(device.is_cuda())], |_| 1)?;
    let without = are_gpus.iter().position(|is_gpu| *is_gpu == 0).filter(|_| are_gpus.contains(&1));
    let advice = "start as many processes as there are GPUs, or set train.device = \"cpu\"";
    let message = |rank| Failure::input(format!("rank {rank} finds no GPU of its own, and others have one; {advice}"));
    without.map_or(Ok(()), |rank| Err(message(rank)))
}

/// Refuses leaves that a step cannot have, and more processes than have something to do.
fn check_leaves(settings: &TrainSettings, world: &World) -> Result<(), Failure> {
    let (leaves, size) = (settings.leaves(), world.size());
    if size > leaves {
        let advice = format!("start at most {leaves}, or set train.leaves in a new run");
        return Err(Failure::input(format!(
            "{size} processes cannot share the steps of a run with train.leaves = {leaves}; {advice}"
        )));
    }
    validate::all_hold([validate::leaves(settings)]).map_err(Failure::input)
}

/// Refuses what a run may not begin with; one that is resumed has begun.
fn check_beginning(config: &TrainConfig, dataset: &Dataset) -> Result<(), Failure> {
    state::check_threads(&config.train)?;
    check_validation(&config.train, dataset.description())?;
    config.initial_weights.as_deref().map_or(Ok(()), |weights| check_dataset(weights, dataset))
}

/// Whether there is memory for a run, on the device and beside it: for all processes of this machine.
fn has_room(shape: &Shape, settings: &TrainSettings, most: f64, device: Device, world: &World) -> bool {
    let needed = TrainingMemory::of(shape, settings, world.size(), device.is_cuda()).total();
    let main_memory = |needed| micro_batch::fits(needed * world.beside() as u64, available_memory(), most);
    match device::free_memory(device) {
        Some(free) => {
            micro_batch::fits(needed, free, most) && main_memory(TrainingMemory::beside_device(shape, settings, world.size()))
        }
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
