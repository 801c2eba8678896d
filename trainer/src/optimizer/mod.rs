//! From gradients to new weights: every parameter has its own [`Rule`], which remembers what it needs of earlier steps.
//!
//! ```text
//! groups.rs      which rule and which weight decay each parameter gets, and how that is told
//! adamw.rs, adafactor.rs, muon.rs      one rule each
//! norm.rs        the global norm of the gradients, and clipping by it
//! ```

mod adafactor;
mod adamw;
mod groups;
mod muon;
mod norm;

use std::fmt::Debug;

use tch::Tensor;
use thiserror::Error;

pub use groups::Group;
pub use norm::{clip_factor, global_norm};

use crate::error::Failure;
use crate::model::Parameters;
use crate::model::weights::parameters::Parameter;
use crate::model::weights::tensor_file::FileError;
use crate::offload::{Place, release};
use crate::settings::TrainSettings;

/// A saved optimizer state that does not belong to the model.
#[derive(Debug, Error)]
pub enum StateError {
    #[error("the optimizer state has no tensor {0}; the checkpoint is incomplete or belongs to another model")]
    Missing(String),
    #[error("tensor {name} of the optimizer state has dimensions {found:?}, the model calls for {expected:?}")]
    Dimensions { name: String, expected: Vec<i64>, found: Vec<i64> },
    #[error(transparent)]
    File(#[from] FileError),
}

/// The numbers of one update, the same for every parameter.
#[derive(Debug, Clone, Copy)]
pub struct Update {
    /// Which update it is, from 1.
    pub number: u64,
    pub learning_rate: f64,
    /// The factor of the gradients, from clipping.
    pub gradient_scale: f64,
    /// Decoupled: the weights are multiplied with `1 − learning_rate · weight_decay`.
    pub weight_decay: f64,
}

/// The update of one tensor, and its state.
pub(crate) trait Rule: Debug {
    /// The rule's name for people.
    fn name(&self) -> &'static str;

    /// Changes `parameter` as `gradient` says. Both have the dimensions, dtype and device that the rule was made for.
    fn update(&mut self, parameter: &mut Tensor, gradient: &Tensor, update: &Update);

    /// Its state, by name.
    fn state(&self) -> Vec<(&'static str, &Tensor)>;

    /// [`Rule::state`], to be overwritten with the state of a checkpoint.
    fn state_mut(&mut self) -> Vec<(&'static str, &mut Tensor)>;
}

/// One parameter's part of the optimizer.
#[derive(Debug)]
struct Slot {
    parameter: String,
    /// Numbers in the parameter.
    elements: u64,
    rule: Box<dyn Rule>,
    weight_decay: f64,
}

/// The optimizer of a whole model.
#[derive(Debug)]
pub struct Optimizer {
    updates: u64,
    slots: Vec<Slot>,
}

impl Optimizer {
    /// An optimizer by `train.optimizer` and the settings beside it, with an empty state.
    pub fn new(parameters: &Parameters, settings: &TrainSettings) -> Self {
        Self::new_in(&Place::Memory, parameters, settings).expect("main memory needs no file")
    }

    /// [`Optimizer::new`] with state as large as the model in `place`.
    pub fn new_in(place: &Place, parameters: &Parameters, settings: &TrainSettings) -> Result<Self, Failure> {
        let slot = |parameter: &Parameter| {
            Ok(Slot {
                parameter: parameter.name.clone(),
                elements: parameter.tensor.numel() as u64,
                rule: groups::rule(parameter, settings, place)?,
                weight_decay: groups::weight_decay(parameter, settings),
            })
        };
        Ok(Self { updates: 0, slots: parameters.iter().map(slot).collect::<Result<_, Failure>>()? })
    }

    /// Updates made so far. Skipped steps make none.
    pub fn updates(&self) -> u64 {
        self.updates
    }

    /// One update with `gradients · gradient_scale` (the clipping factor). Tells `changed` the number and the tensor of each
    /// parameter that is done.
    pub fn step(
        &mut self,
        parameters: &mut Parameters,
        gradients: &Parameters,
        [learning_rate, gradient_scale]: [f64; 2],
        changed: &mut dyn FnMut(usize, &Tensor),
    ) {
        self.updates += 1;
        for (index, ((slot, parameter), gradient)) in self.slots.iter_mut().zip(parameters).zip(gradients).enumerate() {
            let update = Update { number: self.updates, learning_rate, gradient_scale, weight_decay: slot.weight_decay };
            slot.rule.update(&mut parameter.tensor, &gradient.tensor, &update);
            let remembered = slot.rule.state().into_iter().map(|(_, tensor)| tensor);
            release(remembered.chain([&gradient.tensor]));
            changed(index, &parameter.tensor);
            release([&parameter.tensor]);
        }
    }

    /// Everything remembered, each tensor as `<what>.<parameter>`: `exp_avg.transformer.wte.weight`.
    pub fn state(&self) -> impl Iterator<Item = (String, &Tensor)> {
        self.slots
            .iter()
            .flat_map(|slot| slot.rule.state().into_iter().map(|(what, tensor)| (format!("{what}.{}", slot.parameter), tensor)))
    }

    /// Goes on after so many updates; what is remembered of them comes by [`Optimizer::load_state`].
    pub fn go_on_after(&mut self, updates: u64) {
        self.updates = updates;
    }

    /// Takes over what [`Optimizer::state`] gave, one tensor at a time by its name.
    pub fn load_state(&mut self, mut saved: impl FnMut(&str) -> Result<Option<Tensor>, FileError>) -> Result<(), StateError> {
        for slot in &mut self.slots {
            for (what, tensor) in slot.rule.state_mut() {
                let name = format!("{what}.{}", slot.parameter);
                let Some(saved) = saved(&name)? else { return Err(StateError::Missing(name)) };
                let expected = tensor.size();
                if saved.size() != expected {
                    return Err(StateError::Dimensions { name, expected, found: saved.size() });
                }
                tensor.copy_(&saved);
                release([&*tensor]);
            }
        }
        Ok(())
    }
}
