//! The optimizer of a run.

use super::{Origin, damaged};
use tch::Tensor;

use crate::device;
use crate::error::Failure;
use crate::model::Model;
use crate::model::weights::tensor_file::TensorFile;
use crate::offload::Place;
use crate::optimizer::Optimizer;
use crate::settings::TrainConfig;
use crate::state::OPTIMIZER_FILE;

/// The optimizer of `model`, as its origin has it after `updates`.
pub(super) fn open(model: &Model, config: &TrainConfig, origin: &Origin<'_>, updates: u64) -> Result<Optimizer, Failure> {
    let place = if device::uses_libtorch(model.device(), config.train.engine) {
        Place::Memory
    } else {
        Place::of_optimizer(config.train.offload, &config.output)
    };
    let mut optimizer = Optimizer::new_in(&place, model.trained(), &config.train)?;
    if let Some(checkpoint) = origin.checkpoint {
        let state = TensorFile::open(&checkpoint.join(OPTIMIZER_FILE)).map_err(damaged)?;
        let saved = |name: &str| if state.has(name) { state.tensor(name).map(Some) } else { Ok(None) };
        optimizer.load_state(saved).map_err(damaged)?;
    }
    if origin.resumes {
        let state: Vec<Tensor> = optimizer.state().map(|(_, tensor)| tensor.shallow_clone()).collect();
        origin.world.broadcast(&state)?;
        optimizer.go_on_after(updates);
    }
    Ok(optimizer)
}
