//! The position of a run: that of its checkpoint, or the beginning.

use std::path::{Path, PathBuf};
use std::{fs, io};

use sha2::{Digest, Sha256};

use crate::data::sampler::Sampler;
use crate::data::shard::Dataset;
use crate::error::Failure;
use crate::files;
use crate::model::Shape;
use crate::preflight;
use crate::settings::{Engine, Precision, TrainConfig, TrainSettings};
use crate::state::guard::Guard;
use crate::state::loss_scale::LossScale;
use crate::state::{self, Identity, State};
use crate::world::World;

/// Threads for each core of the machine, at most: some are of use where others share it.
const THREADS_PER_CORE: usize = 8;

/// The position in `checkpoint`, if the configuration still describes the same run; without a checkpoint, the beginning.
pub(super) fn open(
    config: &TrainConfig,
    dataset: &Dataset,
    sampler: &Sampler,
    shape: &Shape,
    world: &World,
    checkpoint: Option<&Path>,
) -> Result<State, Failure> {
    let fresh = fresh(config, dataset, sampler, shape, world)?;
    match checkpoint {
        Some(checkpoint) => resumed(checkpoint, &fresh, &config.train),
        None => Ok(fresh),
    }
}

/// Position 0 of the run that the configuration describes.
fn fresh(config: &TrainConfig, dataset: &Dataset, sampler: &Sampler, shape: &Shape, world: &World) -> Result<State, Failure> {
    let settings = &config.train;
    let (_, steps) = preflight::in_steps(settings, sampler.blocks())?;
    let weights = config.initial_weights.as_deref().map(weights_digest).transpose()?;
    Ok(State {
        schema: state::SCHEMA.to_owned(),
        step: 0,
        steps,
        tokens: 0,
        skipped: 0,
        guard: Guard::default(),
        loss_scale: (settings.precision == Precision::Fp16).then(|| LossScale::new(&settings.loss_scaling)),
        threads: settings.threads.unwrap_or_else(|| (cores() / world.beside()).max(1)),
        micro_batch: None,
        leaves: settings.leaves.unwrap_or(world.size()),
        log_bytes: 0,
        evaluated: None,
        best_step: None,
        first_validation_loss: None,
        last_validation_loss: None,
        seconds: 0.0,
        identity: Identity::new(dataset.digest().to_owned(), weights, shape.config_json(None), settings)?,
    })
}

/// The saved position, if the configuration still describes the same run.
fn resumed(checkpoint: &Path, fresh: &State, settings: &TrainSettings) -> Result<State, Failure> {
    let saved = State::read(checkpoint)?;
    let is_longer = fresh.steps > saved.steps;
    let mut differences = fresh.identity.differences(&saved.identity, is_longer);
    // The bits of the CPU's own kernels do not depend on it, and this machine may have other cores, or more processes on them.
    let is_free = settings.engine == Engine::Own;
    if !is_free && settings.threads.is_some_and(|threads| threads != saved.threads) {
        differences.push(format!("train.threads: {} in the checkpoint, {} now", saved.threads, fresh.threads));
    }
    if settings.leaves.is_some_and(|leaves| leaves != saved.leaves) {
        differences.push(format!("train.leaves: {} in the checkpoint, {} now", saved.leaves, fresh.leaves));
    }
    if differences.is_empty() {
        // A run keeps the number that it once had to take, until another one is asked for.
        let micro_batch = saved.micro_batch.filter(|_| fresh.identity.divides_as(&saved.identity));
        if is_longer {
            check_end(&saved)?;
            eprintln!(
                "the run has {} steps now, and had {}: the learning rate follows the longer schedule",
                fresh.steps, saved.steps
            );
        }
        let threads = if is_free { fresh.threads } else { saved.threads };
        return Ok(State { micro_batch, threads, identity: fresh.identity.clone(), steps: fresh.steps, ..saved });
    }
    Err(Failure::input(format!(
        "{} belongs to a run with another configuration:\n  {}\nrestore the configuration to resume, or train into another output directory",
        checkpoint.display(),
        differences.join("\n  ")
    )))
}

/// Refuses to make a run longer whose end replaced the last weights by the best ones: optimizer and position are of others.
fn check_end(saved: &State) -> Result<(), Failure> {
    match saved.best_step.filter(|best| saved.step == saved.steps && *best != saved.step) {
        None => Ok(()),
        Some(best) => Err(Failure::input(format!(
            "the run is over, and its last checkpoint holds the best weights, of step {best}: it cannot be made longer from step {}; \
             begin another run with initial_weights = that checkpoint",
            saved.step
        ))),
    }
}

/// SHA-256 over the names and contents of a Hugging Face directory's configuration and weights.
fn weights_digest(directory: &Path) -> Result<String, Failure> {
    let unreadable =
        |error: io::Error| Failure::input(format!("cannot read the initial weights in {}: {error}", directory.display()));
    let files =
        fs::read_dir(directory).and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<PathBuf>>>());
    let mut files = files.map_err(unreadable)?;
    let has = |path: &Path, kind: &str| path.extension().is_some_and(|extension| extension == kind);
    // A pickle counts only where it is what is read.
    let kind = if files.iter().any(|path| has(path, "safetensors")) { "safetensors" } else { "bin" };
    files.retain(|path| has(path, kind) || path.ends_with("config.json"));
    files.sort();
    let mut hasher = Sha256::new();
    for path in files {
        hasher.update(path.file_name().unwrap_or_default().as_encoded_bytes());
        let bytes = files::hash(&path, &mut hasher).map_err(unreadable)?;
        hasher.update(bytes.to_le_bytes());
    }
    Ok(files::hex(&hasher.finalize()))
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// More threads than [`THREADS_PER_CORE`] for each core wait for each other; thousands never end a step.
pub(super) fn check_threads(settings: &TrainSettings) -> Result<(), Failure> {
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
