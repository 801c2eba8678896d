//! From gradients to new weights: every parameter has its own [`Rule`], which remembers what it needs of earlier steps.
//!
//! ```text
//! groups.rs      which rule and which weight decay each parameter gets, and how that is told
//! adamw.rs, adafactor.rs, muon.rs      one rule each
//! norm.rs        the global norm of the gradients, and clipping by it
//! remembered.rs  the state, between processes and files
//! ```

mod adafactor;
mod adamw;
mod groups;
mod muon;
mod norm;
mod remembered;

use std::fmt::Debug;
use std::ops::Range;

use tch::Tensor;
use thiserror::Error;

pub use groups::Group;
pub use norm::{clip_factor, global_norm, norm};
pub use remembered::Remembered;

use crate::error::Failure;
use crate::model::Parameters;
use crate::model::weights::parameters::Parameter;
use crate::model::weights::tensor_file::FileError;
use crate::offload::{Place, release};
use crate::settings::TrainSettings;
use crate::shares::Shares;
use crate::world::{Shards, view};

/// A saved optimizer state that does not belong to the model.
#[derive(Debug, Error)]
pub enum StateError {
    #[error("the optimizer state has no tensor {0}; the checkpoint is incomplete or belongs to another model")]
    Missing(String),
    #[error("tensor {name} of the optimizer state has dimensions {found:?}, the model calls for {expected:?}")]
    Dimensions { name: String, expected: Vec<i64>, found: Vec<i64> },
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Told(#[from] Failure),
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
}

/// One parameter's part of the optimizer.
#[derive(Debug)]
struct Slot {
    parameter: String,
    /// Numbers in the parameter.
    elements: u64,
    /// Those that this process updates.
    part: Range<usize>,
    rule: Box<dyn Rule>,
    weight_decay: f64,
    /// Names and dimensions of what is remembered of all of them.
    remembered: Vec<(&'static str, Vec<i64>)>,
}

/// The optimizer of a whole model, or of a process's share of it.
#[derive(Debug)]
pub struct Optimizer {
    updates: u64,
    slots: Vec<Slot>,
    /// Where each process has its share.
    shares: Option<Shares>,
}

impl Optimizer {
    /// An optimizer by `train.optimizer` and the settings beside it, with an empty state.
    pub fn new(parameters: &Parameters, settings: &TrainSettings) -> Self {
        Self::new_in(&Place::Memory, parameters, settings, None).expect("main memory needs no file")
    }

    /// [`Optimizer::new`] with its state in `place`; that of one process alone, where `shares` say who it is and what it has.
    pub fn new_in(
        place: &Place,
        parameters: &Parameters,
        settings: &TrainSettings,
        shares: Option<(usize, Shares)>,
    ) -> Result<Self, Failure> {
        let slot = |(index, parameter): (usize, &Parameter)| {
            let all = 0..parameter.tensor.numel();
            let part = shares.as_ref().map_or(all, |(rank, shares)| shares.part(*rank, index));
            Ok(Slot {
                parameter: parameter.name.clone(),
                elements: parameter.tensor.numel() as u64,
                rule: groups::rule(parameter, &view(&parameter.tensor, &part), settings, place)?,
                weight_decay: groups::weight_decay(parameter, settings),
                remembered: groups::remembered(parameter, settings),
                part,
            })
        };
        let slots = parameters.iter().enumerate().map(slot).collect::<Result<_, Failure>>()?;
        Ok(Self { updates: 0, slots, shares: shares.map(|(_, shares)| shares) })
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
        gradients: &Shards,
        [learning_rate, gradient_scale]: [f64; 2],
        changed: &mut dyn FnMut(usize, &Tensor),
    ) {
        self.updates += 1;
        for (index, (slot, parameter)) in self.slots.iter_mut().zip(parameters).enumerate() {
            let update = Update { number: self.updates, learning_rate, gradient_scale, weight_decay: slot.weight_decay };
            if !slot.part.is_empty() {
                let gradient = gradients.part(index, &slot.part);
                slot.rule.update(&mut view(&parameter.tensor, &slot.part), &gradient, &update);
                release(slot.rule.state().into_iter().map(|(_, tensor)| tensor));
                gradients.release(index);
            }
            changed(index, &parameter.tensor);
            release([&parameter.tensor]);
        }
    }
}
