//! A run: training from its first step, or from a checkpoint, to the files that it leaves.

mod announce;
mod best;
pub mod checkpoint;
mod ending;
pub mod evaluation;
mod open;
mod recorder;
mod reporting;
pub mod train;

use std::fs::File;

use safetensors::SafeTensorError;

use crate::data::sampler::Sampler;
use crate::data::shard::Dataset;
use crate::error::Failure;
use crate::model::Model;
use crate::model::weights::parameters::ModelError;
use crate::model::weights::tensor_file::FileError;
use crate::optimizer::Optimizer;
use crate::settings::TrainConfig;
use crate::shares::Shares;
use crate::state::State;
use crate::world::{Arrival, Shards, World};
use recorder::Recorder;

/// A run under way.
pub struct Run {
    pub(crate) world: World,
    /// With a number for the micro-batch.
    pub(crate) config: TrainConfig,
    pub(crate) dataset: Dataset,
    pub(crate) sampler: Sampler,
    pub(crate) model: Model,
    pub(crate) optimizer: Optimizer,
    /// Each process's share of the gradients to add up, and of the optimizer's state where that is shared.
    pub(crate) shares: Shares,
    /// This process's share of the gradients, where it has no more of them than that and one block's.
    pub(crate) shard: Option<Shards>,
    /// Weights that the others have updated and are not there yet: only a step reads weights before [`Run::settle`].
    arriving: Option<Arrival>,
    pub(crate) state: State,
    pub(crate) recorder: Recorder,
    /// The leader's, held until the process ends, however it ends.
    _lock: Option<File>,
}

/// Weights that could not be written.
pub(crate) fn unwritten(error: ModelError) -> Failure {
    match error {
        ModelError::File(FileError::Write { path, source: SafeTensorError::IoError(error) }) => Failure::io("write", &path, &error),
        ModelError::Place(failure) => failure,
        error => Failure::other(error),
    }
}
