//! The model of a run: from its checkpoint, from the initial weights that it names, or random.

use std::path::Path;

use tch::Device;

use super::{Origin, damaged};
use crate::data::shard::Dataset;
use crate::device;
use crate::error::Failure;
use crate::model::weights::parameters::ModelError;
use crate::model::{Adapters, Dropout, Gpt2, Model, Parameters, Setup, Shape};
use crate::offload::Place;
use crate::settings::lora::Lora;
use crate::settings::{Offload, TrainConfig, TrainSettings, Variant, validate};

/// The model, with gradients, on `device` or where `config` lets its parts lie.
pub(super) fn open(
    config: &TrainConfig,
    shape: Shape,
    dataset: &Dataset,
    device: Device,
    origin: &Origin<'_>,
) -> Result<Model, Failure> {
    let (settings, away) = (&config.train, device::away(device, &config.train));
    let place = if away != Offload::None {
        Place::Locked(device)
    } else if device::uses_libtorch(device, settings.engine) {
        Place::Memory
    } else {
        Place::of_model(settings.offload, &config.output)
    };
    let parameters = weights(&place, config, &shape, origin)?;
    let adapters = settings.lora.as_deref().map(|lora| adapters(lora, &shape, settings.seed, origin)).transpose()?;
    let setup = Setup {
        engine: settings.engine,
        precision: settings.precision,
        adapters: adapters.as_ref(),
        dropout: dropout(settings),
        begins_document: settings.document_mask.then(|| dataset.end_of_text()),
        away,
        place,
        recompute: settings.recompute,
        sheds_gradients: settings.sheds_gradients(origin.world.size()),
        rows: settings.micro_batch.sequences() * settings.block_size,
        place_of_activations: Place::of_activations(device, &config.output),
    };
    Gpt2::for_training(shape, &parameters, device, &setup).map(Model::Gpt2)
}

/// Those of the checkpoint, or the first. A checkpoint has the weights with the adapters in them.
fn weights(place: &Place, config: &TrainConfig, shape: &Shape, origin: &Origin<'_>) -> Result<Parameters, Failure> {
    let resumes = origin.resumes && config.train.lora.is_none();
    if !resumes && !origin.has_weights {
        return Parameters::random_in(place, shape, config.train.seed);
    }
    let weights = match (origin.checkpoint.filter(|_| resumes), &config.initial_weights) {
        _ if !origin.world.leads() => Parameters::blank_in(place, shape)?,
        (Some(checkpoint), _) => loaded(place, checkpoint, damaged)?,
        (None, Some(directory)) => loaded(place, directory, Failure::input)?,
        (None, None) => unreachable!("the leader has read them"),
    };
    origin.world.broadcast(weights.tensors())?;
    Ok(weights)
}

/// Those of the checkpoint, or the first.
fn adapters(lora: &Lora, shape: &Shape, seed: u64, origin: &Origin<'_>) -> Result<Adapters, Failure> {
    if shape.variant != Variant::Gpt2 {
        return Err(Failure::input(format!("train.lora: {}", validate::LORA_VARIANT)));
    }
    if !origin.resumes {
        return Ok(Adapters::random(lora, shape, seed));
    }
    let load = |checkpoint| Adapters::load(lora, shape, checkpoint).map_err(damaged);
    let adapters = origin.checkpoint.map_or_else(|| Ok(Adapters::zeros(lora, shape)), load)?;
    origin.world.broadcast(adapters.parameters().tensors())?;
    Ok(adapters)
}

fn loaded(place: &Place, directory: &Path, failed: impl FnOnce(ModelError) -> Failure) -> Result<Parameters, Failure> {
    match Parameters::load_in(place, directory) {
        Ok((_, parameters)) => Ok(parameters),
        Err(ModelError::Place(failure)) => Err(failure),
        Err(error) => Err(failed(error)),
    }
}

/// Masks have the run's seed and no generator: they follow from the number of the sequence.
fn dropout(settings: &TrainSettings) -> Dropout {
    let adapter = settings.lora.as_ref().map_or(0.0, |lora| lora.dropout);
    Dropout { seed: settings.seed, residual: settings.dropout, attention: settings.attention_dropout, adapter }
}
