//! Which rule and which weight decay each parameter gets.

use std::fmt;

use tch::Tensor;

use super::adafactor::Adafactor;
use super::adamw::{AdamW, Epsilon};
use super::muon::Muon;
use super::{Optimizer, Rule};
use crate::error::Failure;
use crate::journal::grouped;
use crate::model::weights::parameters::Parameter;
use crate::offload::Place;
use crate::settings::{Compat, OptimizerKind, TrainSettings, WeightDecayOn};

/// Parameters that are updated alike.
#[derive(Debug, Clone, PartialEq)]
pub struct Group {
    pub rule: &'static str,
    pub weight_decay: f64,
    pub tensors: usize,
    /// Numbers in all of the tensors.
    pub elements: u64,
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rule, weight_decay, tensors, elements } = self;
        write!(f, "{rule}, weight decay {weight_decay}: {tensors} tensors, {} parameters", grouped(*elements))
    }
}

impl Optimizer {
    /// The groups in the order of their first parameters.
    pub fn groups(&self) -> Vec<Group> {
        let mut groups: Vec<Group> = Vec::new();
        for slot in &self.slots {
            let (rule, weight_decay) = (slot.rule.name(), slot.weight_decay);
            let same = |group: &&mut Group| group.rule == rule && group.weight_decay.to_bits() == weight_decay.to_bits();
            if let Some(group) = groups.iter_mut().find(same) {
                group.tensors += 1;
                group.elements += slot.elements;
            } else {
                groups.push(Group { rule, weight_decay, tensors: 1, elements: slot.elements });
            }
        }
        groups
    }
}

/// The rule of `tensor`, a part of the parameter.
pub(super) fn rule(
    parameter: &Parameter,
    tensor: &Tensor,
    settings: &TrainSettings,
    place: &Place,
) -> Result<Box<dyn Rule>, Failure> {
    let zeros = || if tensor.numel() == 0 { Ok(tensor.zeros_like()) } else { place.zeros_like(tensor) };
    Ok(match settings.optimizer {
        OptimizerKind::Adafactor => Box::new(Adafactor::new(tensor)),
        OptimizerKind::Muon if parameter.role.is_matrix() => Box::new(Muon::new(settings.momentum, zeros()?)),
        OptimizerKind::Muon | OptimizerKind::Adamw => {
            let epsilon = if settings.compat.is_some() { Epsilon::Uncorrected } else { Epsilon::Corrected };
            Box::new(AdamW::new(settings.betas, (settings.epsilon, epsilon), [zeros()?, zeros()?]))
        }
    })
}

/// Names and dimensions of the tensors that the [`rule`] of a whole parameter remembers.
pub(super) fn remembered(parameter: &Parameter, settings: &TrainSettings) -> Vec<(&'static str, Vec<i64>)> {
    let size = parameter.tensor.size();
    match (settings.optimizer, &size[..]) {
        (OptimizerKind::Adafactor, &[rows, columns]) => vec![("exp_avg_sq_row", vec![rows]), ("exp_avg_sq_col", vec![columns])],
        (OptimizerKind::Adafactor, _) => vec![("exp_avg_sq", size)],
        (OptimizerKind::Muon, _) if parameter.role.is_matrix() => vec![("momentum", size)],
        _ => vec![("exp_avg", size.clone()), ("exp_avg_sq", size)],
    }
}

pub(super) fn weight_decay(parameter: &Parameter, settings: &TrainSettings) -> f64 {
    let decays = match (settings.compat, settings.weight_decay_on) {
        // `no_decay = ["bias", "LayerNorm.weight"]` was written for BERT's names; GPT-2 calls its layer norms `ln_1`.
        (Some(Compat::Transformers2020), _) => !parameter.role.is_bias(),
        (_, WeightDecayOn::All) => true,
        (_, WeightDecayOn::Matrices) => parameter.decays(),
    };
    if decays { settings.weight_decay } else { 0.0 }
}
