//! The outlook on a job before it runs: how much text, which model, how long, for how much.

use std::{path::Path, time::Duration};

use ft_trainer::{
    data::{shard::Description, tokenizer::Tokenizer},
    model::{PUBLISHED_VOCABULARY, Shape},
    preflight,
};

use super::{
    Result, World,
    pace::{self, Pace},
    upload::{self, Uncounted},
};
use crate::job::{
    plan::{DataPlan, Plan},
    units::Money,
};

/// The numbers of a job. What is absent is not known before its text is prepared.
#[derive(Debug, Clone)]
pub struct Outlook {
    pub data: Option<Description>,
    /// The text without a description. Its passes, and the steps where they are not set, are estimated.
    pub text: Option<Uncounted>,
    pub shape: Option<Shape>,
    pub steps: Option<u64>,
    /// Passes over the training split.
    pub epochs: Option<f64>,
    /// Or why nothing is known of it.
    pub pace: Result<Pace, String>,
}

impl Outlook {
    /// The outlook of a job whose text or dataset is described by `data`.
    pub async fn of(world: &World, plan: &Plan, data: Option<Description>) -> Self {
        let train = &plan.train;
        let shape = shape(plan, data.as_ref());
        let text = match &plan.data {
            DataPlan::Text(config) if data.is_none() => Uncounted::of(config, &world.cache),
            _ => None,
        };
        let tokens = data.as_ref().map(|data| data.train.tokens).or(text.as_ref().map(Uncounted::training_tokens));
        let sampler = tokens.and_then(|tokens| preflight::sampler(tokens, train).ok());
        let steps = sampler.as_ref().map(|sampler| preflight::steps(train, sampler.blocks())).or(train.steps);
        let epochs =
            sampler.zip(steps).map(|(sampler, steps)| steps as f64 * train.sequences_per_step() as f64 / sampler.blocks() as f64);
        let pace = pace::of(world, plan, shape.as_ref()).await;
        Self { data, text, shape, steps, epochs, pace }
    }

    /// Whether the steps are those of an estimate.
    pub fn estimates_steps(&self, plan: &Plan) -> bool {
        self.text.is_some() && plan.train.steps.is_none()
    }

    /// How long the steps take, without the start of the machine, validation and checkpoints.
    pub fn time(&self, plan: &Plan) -> Option<Duration> {
        let tokens = self.steps? as f64 * plan.train.tokens_per_step() as f64;
        Duration::try_from_secs_f64(tokens / self.pace.as_ref().ok()?.tokens_per_second).ok()
    }

    /// The cost of the steps on one machine.
    pub fn cost(&self, plan: &Plan) -> Option<Money> {
        self.time(plan).map(|time| plan.cost_of(time))
    }
}

/// The shape of the model; before the text is prepared with the vocabulary that was asked for.
fn shape(plan: &Plan, data: Option<&Description>) -> Option<Shape> {
    if let Some(directory) = &plan.initial_weights {
        return Shape::read(Path::new(directory)).ok();
    }
    let vocabulary = match (data, &plan.data) {
        (Some(data), _) => data.vocabulary,
        (None, DataPlan::Text(text)) => match &text.tokenizer.directory {
            Some(directory) => Tokenizer::load(Path::new(directory)).ok()?.vocabulary(),
            None => text.tokenizer.vocabulary.unwrap_or(PUBLISHED_VOCABULARY),
        },
        (None, _) => return None,
    };
    upload::asked(plan).shape(vocabulary).ok()
}
