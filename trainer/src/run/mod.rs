//! Opens a run: from its newest checkpoint, or from the beginning.

mod best;
pub mod checkpoint;
mod ending;
pub mod evaluation;
mod reporting;
pub mod train;

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use safetensors::SafeTensorError;
use sha2::{Digest, Sha256};
use tch::Device;

use crate::cpu::matmul::amx;
use crate::data::error::{Class, DataError};
use crate::data::sampler::Sampler;
use crate::data::shard::{Dataset, Split};
use crate::data::tokenizer::Tokenizer;
use crate::device;
use crate::error::Failure;
use crate::files;
use crate::journal::trace;
use crate::journal::{Journal, grouped, say};
use crate::model::shape::OWN_TOKENIZER;
use crate::model::weights::parameters::ModelError;
use crate::model::weights::tensor_file::{FileError, TensorFile};
use crate::model::{Adapters, Dropout, Gpt2, Parameters, Shape, TrainingMemory};
use crate::offload::Place;
use crate::optimizer::Optimizer;
use crate::progress::Event;
use crate::settings::lora::{LinearMap, Lora};
use crate::settings::micro_batch::{self, available_memory};
use crate::settings::validate;
use crate::settings::{Compat, Offload, Precision, TrainConfig, TrainSettings, Variant};
use crate::state::guard::Guard;
use crate::state::loss_scale::LossScale;
use crate::state::{self, Identity, State};
use best::Best;
use checkpoint::Checkpoints;
use checkpoint::writing::Writing;

/// Threads for each core of the machine, at most: some are of use where others share it.
const THREADS_PER_CORE: usize = 8;

/// What the optimizer remembers, in a checkpoint.
pub const OPTIMIZER_FILE: &str = "optimizer.safetensors";

/// A run under way.
pub struct Run {
    /// With a number for the micro-batch.
    pub(crate) config: TrainConfig,
    pub(crate) dataset: Dataset,
    pub(crate) sampler: Sampler,
    pub(crate) model: Gpt2,
    pub(crate) optimizer: Optimizer,
    pub(crate) state: State,
    pub(crate) journal: Journal,
    pub(crate) checkpoints: Checkpoints,
    pub(crate) best: Best,
    /// Step of the newest checkpoint, which may still be under way.
    pub(crate) saved: Option<u64>,
    pub(crate) writing: Option<Writing>,
    /// Time that training has waited for checkpoints.
    pub(crate) blocked: Duration,
    pub(crate) pace: Pace,
    /// Held until the process ends, however it ends.
    _lock: File,
}

impl Run {
    /// Resumes the run in `config.output`, or starts one there.
    pub fn open(config: &TrainConfig) -> Result<Self, Failure> {
        validate::all_hold(validate::config(config)).map_err(Failure::input)?;
        let chosen = device::prepare(&config.train)?;
        fs::create_dir_all(&config.output).map_err(|error| Failure::io("create", &config.output, &error))?;
        let lock = lock(&config.output)?;
        if config.train.profile {
            trace::start(&config.output)?;
        }
        let dataset = Dataset::open(&config.data)?;
        let sampler = sampler(&dataset, &config.train)?;
        let shape = shape(config, dataset.vocabulary())?;
        let checkpoints = Checkpoints::open(&config.output)?;
        let checkpoint = checkpoints.newest(|warning| eprintln!("warning: {warning}"))?;
        if checkpoint.is_none() {
            check_threads(&config.train)?;
            check_validation(&config.train, &dataset)?;
            config.initial_weights.as_deref().map_or(Ok(()), |weights| check_tokenizer(weights, &dataset))?;
        }
        let fresh = fresh_state(config, &dataset, &sampler, &shape)?;
        let resumed = checkpoint.as_deref().map(|checkpoint| resumed_state(checkpoint, &fresh, &config.train)).transpose()?;
        let mut state = resumed.unwrap_or(fresh);
        let mut config = config.clone();
        let fit = |settings: &TrainSettings| has_room(&shape, settings, chosen.device);
        config.train = micro_batch::resolve(&config.train, fit, state.micro_batch, config.micro_batch_limit);
        state.micro_batch = Some(config.train.micro_batch.sequences());
        tch::set_num_threads(state.threads as i32);
        let away = device::away(chosen.device, &config.train);
        let weights_place = if away != Offload::None {
            Place::Locked(chosen.device)
        } else if device::uses_libtorch(chosen.device, config.train.engine) {
            Place::Memory
        } else {
            Place::of_model(config.train.offload, &config.output)
        };
        let parameters = match checkpoint.as_ref() {
            // A checkpoint has the weights with the adapters in them.
            Some(checkpoint) if config.train.lora.is_none() => loaded(&weights_place, checkpoint, damaged)?,
            _ => initial_weights(&weights_place, &config, &shape)?,
        };
        let mut model = Gpt2::with_masters(shape, &parameters, chosen.device, away).with_engine(config.train.engine);
        if let Some(lora) = &config.train.lora {
            model = model.with_adapters(&adapters(lora, &shape, config.train.seed, checkpoint.as_deref())?);
        }
        let rows = config.train.micro_batch.sequences() * config.train.block_size;
        let mut model = model
            .with_offload(config.train.precision, &weights_place)?
            .with_recompute(config.train.recompute, rows, &Place::of_activations(chosen.device, &config.output))?
            .with_dropout(dropout(&config.train));
        if config.train.document_mask {
            model = model.with_document_mask(dataset.end_of_text());
        }
        drop(parameters);
        let optimizer = optimizer(&model, &config, checkpoint.as_deref(), state.updates())?;
        let mut journal = Journal::open(&config.output, checkpoint.as_deref())?;
        if config.train.compat == Some(Compat::Fairseq) {
            journal = journal.in_bits();
        }
        let best = Best::open(&config.output, checkpoint.as_deref())?;
        let pace = Pace::new(&shape, &config.train, chosen.device, state.seconds);
        let saved = checkpoint.map(|_| state.step);
        let (writing, blocked) = (None, Duration::ZERO);
        let mut run = Self {
            config,
            dataset,
            sampler,
            model,
            optimizer,
            state,
            journal,
            checkpoints,
            best,
            saved,
            writing,
            blocked,
            pace,
            _lock: lock,
        };
        run.announce(&chosen.reason)?;
        Ok(run)
    }

    fn announce(&mut self, reason: &str) -> Result<(), Failure> {
        let (threads, peak) = (self.state.threads, self.pace.peak / 1e9);
        let device = self.model.device();
        let computes = match device {
            Device::Cuda(index) => format!("GPU {index}, {peak:.0} GFLOP/s measured"),
            _ => format!("CPU, {threads} threads, {peak:.0} GFLOP/s measured"),
        };
        let event = Event::Start {
            step: self.state.step,
            steps: self.state.steps,
            parameters: self.model.shape().parameters(),
            tokens_per_step: self.config.train.tokens_per_step(),
            flops_per_token: self.pace.flops_per_token,
            device: computes,
            micro_batch: Some(self.config.train.micro_batch.sequences()),
        };
        self.journal.tell(event)?;
        say(&format!("device: {}, because {reason}", if device.is_cuda() { "the GPU" } else { "the CPU" }));
        if device::uses_libtorch(device, self.config.train.engine) {
            say(&format!("kernels: libtorch's, attention: {}", self.model.fused().name()));
        }
        self.config.train.arithmetic(device.is_cuda()).iter().for_each(|line| say(line));
        if let Some(scaling) = &self.state.loss_scale {
            say(&scaling.rule(&self.config.train.loss_scaling));
        }
        if !device::uses_libtorch(device, self.config.train.engine)
            && self.config.train.precision == Precision::Fp32
            && amx::is_available()
        {
            say("products: on the processor's tiles (AMX), each fp32 number as three bf16 numbers that add up to it");
        }
        let (shape, settings) = (self.model.shape(), &self.config.train);
        let mib = |bytes: u64| grouped(bytes >> 20);
        if device.is_cuda() {
            let (gpu, beside) =
                (TrainingMemory::on_device(shape, settings).total(), TrainingMemory::beside_device(shape, settings));
            say(&format!("memory: about {} MiB of the GPU at the peak, and {} MiB of main memory besides", mib(gpu), mib(beside)));
        } else {
            say(&format!("memory: about {} MiB at the peak", mib(TrainingMemory::estimate(shape, settings).total())));
        }
        let (sequences, parts) = (settings.micro_batch.sequences(), settings.gradient_accumulation);
        let less =
            self.config.micro_batch_limit.map_or(String::new(), |limit| format!(", because memory ran out with {}", limit + 1));
        say(&format!("a step is {parts} x {sequences} sequences{less}"));
        if settings.lora.is_some() && self.config.initial_weights.is_none() {
            say("adapters are trained beside random weights, because the run names no initial_weights");
        }
        if let Some(lora) = &settings.lora {
            let (rank, alpha, trained) = (lora.rank, lora.alpha, grouped(lora.parameters(shape)));
            let maps: Vec<&str> = lora.maps().map(LinearMap::name).collect();
            let maps = maps.join(", ");
            say(&format!(
                "trains adapters of rank {rank}, alpha {alpha}, beside {maps}: {trained} numbers; F has 4 for its first 6"
            ));
        }
        self.optimizer.groups().iter().for_each(|group| say(&group.to_string()));
        Ok(())
    }
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

fn initial_weights(place: &Place, config: &TrainConfig, shape: &Shape) -> Result<Parameters, Failure> {
    let Some(directory) = &config.initial_weights else { return Parameters::random_in(place, shape, config.train.seed) };
    loaded(place, directory, Failure::input)
}

fn check_validation(settings: &TrainSettings, dataset: &Dataset) -> Result<(), Failure> {
    if !settings.keeps_best() || dataset.description().validation.tokens > 1 {
        return Ok(());
    }
    let key = if settings.keep_best { "train.keep_best" } else { "train.early_stopping_patience" };
    Err(Failure::input(format!("{key} needs a validation loss, and the dataset has no validation text; add some, or remove {key}")))
}

/// Refuses data whose numbers stand for other tokens than those that the weights were trained on. Weights may lie there without a tokenizer.
pub(crate) fn check_tokenizer(weights: &Path, dataset: &Dataset) -> Result<(), Failure> {
    let Ok(known) = Tokenizer::load(weights) else { return Ok(()) };
    let Some((id, known, found)) = known.difference(&dataset.tokenizer()?) else { return Ok(()) };
    Err(Failure::input(format!("token {id} is {known} for the weights and {found} in the dataset; {OWN_TOKENIZER}")))
}

/// Those of the checkpoint, or the first.
fn adapters(lora: &Lora, shape: &Shape, seed: u64, checkpoint: Option<&Path>) -> Result<Adapters, Failure> {
    if shape.variant != Variant::Gpt2 {
        return Err(Failure::input(format!("train.lora: {}", validate::LORA_VARIANT)));
    }
    match checkpoint {
        Some(checkpoint) => Adapters::load(lora, shape, checkpoint).map_err(damaged),
        None => Ok(Adapters::random(lora, shape, seed)),
    }
}

fn loaded(place: &Place, directory: &Path, failed: impl FnOnce(ModelError) -> Failure) -> Result<Parameters, Failure> {
    match Parameters::load_in(place, directory) {
        Ok((_, parameters)) => Ok(parameters),
        Err(ModelError::Place(failure)) => Err(failure),
        Err(error) => Err(failed(error)),
    }
}

/// Position 0 of the run that the configuration describes.
fn fresh_state(config: &TrainConfig, dataset: &Dataset, sampler: &Sampler, shape: &Shape) -> Result<State, Failure> {
    let settings = &config.train;
    let steps = steps(settings, sampler.blocks());
    validate::all_hold(validate::fits(settings, steps)).map_err(Failure::input)?;
    let weights = config.initial_weights.as_deref().map(weights_digest).transpose()?;
    Ok(State {
        schema: state::SCHEMA.to_owned(),
        step: 0,
        steps,
        tokens: 0,
        skipped: 0,
        guard: Guard::default(),
        loss_scale: (settings.precision == Precision::Fp16).then(|| LossScale::new(&settings.loss_scaling)),
        threads: settings.threads.unwrap_or_else(cores),
        micro_batch: None,
        log_bytes: 0,
        evaluated: None,
        best_step: None,
        first_validation_loss: None,
        last_validation_loss: None,
        seconds: 0.0,
        identity: Identity::new(dataset.digest().to_owned(), weights, shape.config_json(None), settings)?,
    })
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// More threads than [`THREADS_PER_CORE`] for each core wait for each other; thousands never end a step. A run that is resumed has the threads
/// that it began with, on any machine.
fn check_threads(settings: &TrainSettings) -> Result<(), Failure> {
    let (threads, most) = (settings.threads.unwrap_or(1), THREADS_PER_CORE * cores());
    if threads <= most {
        return Ok(());
    }
    Err(Failure::input(format!(
        "train.threads: {threads} threads on a machine with {} cores wait for each other; set at most {most}, or leave it out for {}",
        cores(),
        cores()
    )))
}

/// Steps in all: as set, or as many whole steps as the epochs hold, at least one.
fn steps(settings: &TrainSettings, blocks: u64) -> u64 {
    let sequences = settings.epochs.unwrap_or(1.0) * blocks as f64;
    settings.steps.unwrap_or_else(|| ((sequences / settings.sequences_per_step() as f64) as u64).max(1))
}

/// The saved position, if the configuration still describes the same run.
fn resumed_state(checkpoint: &Path, fresh: &State, settings: &TrainSettings) -> Result<State, Failure> {
    let saved = State::read(checkpoint)?;
    let mut differences = fresh.identity.differences(&saved.identity);
    // Without a number in the configuration the run keeps the one it began with, on whatever machine it goes on.
    if settings.threads.is_some_and(|threads| threads != saved.threads) {
        differences.push(format!("train.threads: {} in the checkpoint, {} now", saved.threads, fresh.threads));
    }
    if differences.is_empty() {
        // What a run once had to take it keeps, until something else is asked for.
        let micro_batch = saved.micro_batch.filter(|_| fresh.identity.divides_as(&saved.identity));
        return Ok(State { micro_batch, identity: fresh.identity.clone(), ..saved });
    }
    Err(Failure::input(format!(
        "{} belongs to a run with another configuration:\n  {}\nrestore the configuration to resume, or train into another output directory",
        checkpoint.display(),
        differences.join("\n  ")
    )))
}

/// SHA-256 over the names and contents of a Hugging Face directory's configuration and weights.
fn weights_digest(directory: &Path) -> Result<String, Failure> {
    let unreadable =
        |error: io::Error| Failure::input(format!("cannot read the initial weights in {}: {error}", directory.display()));
    let files =
        fs::read_dir(directory).and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<PathBuf>>>());
    let mut files = files.map_err(unreadable)?;
    files.retain(|path| path.extension().is_some_and(|extension| extension == "safetensors") || path.ends_with("config.json"));
    files.sort();
    let mut hasher = Sha256::new();
    for path in files {
        hasher.update(path.file_name().unwrap_or_default().as_encoded_bytes());
        let bytes = files::hash(&path, &mut hasher).map_err(unreadable)?;
        hasher.update(bytes.to_le_bytes());
    }
    Ok(files::hex(&hasher.finalize()))
}

fn optimizer(model: &Gpt2, config: &TrainConfig, checkpoint: Option<&Path>, updates: u64) -> Result<Optimizer, Failure> {
    let place = if device::uses_libtorch(model.device(), config.train.engine) {
        Place::Memory
    } else {
        Place::of_optimizer(config.train.offload, &config.output)
    };
    let mut optimizer = Optimizer::new_in(&place, model.trained(), &config.train)?;
    if let Some(checkpoint) = checkpoint {
        let state = TensorFile::open(&checkpoint.join(OPTIMIZER_FILE)).map_err(damaged)?;
        let saved = |name: &str| if state.has(name) { state.tensor(name).map(Some) } else { Ok(None) };
        optimizer.load_state(saved, updates).map_err(damaged)?;
    }
    Ok(optimizer)
}

/// Masks have the run's seed and no generator: what is dropped follows from the number of the sequence.
fn dropout(settings: &TrainSettings) -> Dropout {
    let adapter = settings.lora.as_ref().map_or(0.0, |lora| lora.dropout);
    Dropout { seed: settings.seed, residual: settings.dropout, attention: settings.attention_dropout, adapter }
}

/// A checkpoint whose digests are right and which still does not fit: written by another program.
fn damaged(error: impl std::fmt::Display) -> Failure {
    Failure::Integrity(format!("cannot resume: {error}"))
}

/// Weights that could not be written.
pub(crate) fn unwritten(error: ModelError) -> Failure {
    match error {
        ModelError::File(FileError::Write { path, source: SafeTensorError::IoError(error) }) => Failure::io("write", &path, &error),
        error => Failure::other(error),
    }
}

impl From<DataError> for Failure {
    fn from(error: DataError) -> Self {
        match error.class() {
            Class::Input => Self::Input(error.to_string()),
            Class::Integrity => Self::Integrity(error.to_string()),
            Class::System => Self::Other(error.to_string()),
        }
    }
}

/// How fast the run goes.
#[derive(Debug)]
pub struct Pace {
    /// Measured matmul rate of the device, in FLOP per second.
    pub peak: f64,
    pub flops_per_token: f64,
    started: Instant,
    /// Of earlier processes.
    seconds_before: f64,
    /// Since the last report, in training steps only.
    busy: Duration,
    tokens: u64,
}

impl Pace {
    fn new(shape: &Shape, settings: &TrainSettings, device: Device, seconds_before: f64) -> Self {
        let flops_per_token = shape.flops_per_token(settings.block_size, settings.lora.as_deref());
        let started = Instant::now();
        let peak = device::measured_rate(device, settings.precision.kind(), settings.engine);
        Self { peak, flops_per_token, started, seconds_before, busy: Duration::ZERO, tokens: 0 }
    }

    pub(crate) fn add(&mut self, tokens: u64, busy: Duration) {
        self.tokens += tokens;
        self.busy += busy;
    }

    /// The rate since the last call.
    pub(crate) fn take_tokens_per_second(&mut self) -> f64 {
        let rate = self.tokens as f64 / self.busy.as_secs_f64().max(1e-9);
        (self.tokens, self.busy) = (0, Duration::ZERO);
        rate
    }

    /// Model FLOP utilisation: the share of the measured matmul rate.
    pub(crate) fn utilisation(&self, tokens_per_second: f64) -> f64 {
        tokens_per_second * self.flops_per_token / self.peak
    }

    /// Time spent in all processes so far.
    pub(crate) fn seconds(&self) -> f64 {
        self.seconds_before + self.started.elapsed().as_secs_f64()
    }
}
