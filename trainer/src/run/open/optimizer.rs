//! The optimizer of a run.

use super::{Origin, damaged};
use crate::device;
use crate::error::Failure;
use crate::model::Model;
use crate::model::weights::tensor_file::TensorFile;
use crate::offload::Place;
use crate::optimizer::{Optimizer, StateError};
use crate::settings::TrainConfig;
use crate::shares::Shares;
use crate::state::OPTIMIZER_FILE;

/// The optimizer of `model`, as its origin has it after `updates`.
pub(super) fn open(
    model: &Model,
    config: &TrainConfig,
    shares: &Shares,
    origin: &Origin<'_>,
    updates: u64,
) -> Result<Optimizer, Failure> {
    let place = if device::uses_libtorch(model.device(), config.train.engine) {
        Place::Memory
    } else {
        Place::of_optimizer(config.train.offload, &config.output)
    };
    let shares = (config.train.zero_among(origin.world.size()) > 0).then(|| (origin.world.rank(), shares.clone()));
    let mut optimizer = Optimizer::new_in(&place, model.trained(), &config.train, shares)?;
    if origin.resumes {
        let path = origin.checkpoint.map(|checkpoint| checkpoint.join(OPTIMIZER_FILE));
        let state = path.map(|path| TensorFile::open(&path)).transpose().map_err(damaged)?;
        let saved = |name: &str| state.as_ref().filter(|state| state.has(name)).map(|state| state.tensor(name)).transpose();
        optimizer.load_state(origin.world, saved, updates).map_err(|error| match error {
            StateError::Told(failure) => failure,
            error => damaged(error),
        })?;
    }
    Ok(optimizer)
}
