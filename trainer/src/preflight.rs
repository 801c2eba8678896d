//! Checks of a run's weights, tokenizer, shape, data and prompt before it begins: on the machine that trains, and before that
//! where a job is planned. Only the headers of weights are read.

use std::path::Path;

use crate::data::sampler::Sampler;
use crate::data::shard::{Dataset, Description};
use crate::data::tokenizer::Tokenizer;
use crate::error::Failure;
use crate::model::shape::OWN_TOKENIZER;
use crate::model::weights::model_files::ModelFiles;
use crate::model::{PUBLISHED_VOCABULARY, Shape};
use crate::settings::{ModelConfig, SampleConfig, TrainConfig, TrainSettings, Variant, length, validate};

/// The settings of a run that are checked.
#[derive(Debug, Clone, Copy)]
pub struct Asked<'a> {
    pub model: &'a ModelConfig,
    pub train: &'a TrainSettings,
    /// A Hugging Face directory.
    pub initial_weights: Option<&'a Path>,
    /// The text at the end.
    pub sample: Option<&'a SampleConfig>,
}

impl<'a> From<&'a TrainConfig> for Asked<'a> {
    fn from(config: &'a TrainConfig) -> Self {
        let TrainConfig { model, train, sample, initial_weights, .. } = config;
        Self { model, train, initial_weights: initial_weights.as_deref(), sample: sample.as_ref() }
    }
}

impl Asked<'_> {
    /// Checks the initial weights, whatever the data: their configuration, and that their files are complete and fit it.
    pub fn check_weights(&self) -> Result<(), Failure> {
        let Some(directory) = self.initial_weights else { return Ok(()) };
        let shape = ModelFiles::open(directory).map_err(Failure::input)?.shape;
        shape.agrees_with(self.model, shape.vocabulary, self.train.block_size).map_err(Failure::input)?;
        self.check_adapters(&shape)
    }

    /// Checks a tokenizer against the weights, and the sample's prompt with it.
    pub fn check_tokenizer(&self, tokenizer: &Tokenizer) -> Result<(), Failure> {
        self.shape(tokenizer.vocabulary())?;
        self.initial_weights.map_or(Ok(()), |weights| check_tokenizer(weights, tokenizer))?;
        self.check_prompt(tokenizer)
    }

    /// [`Asked::check_tokenizer`] with GPT-2's, which is made only where it is needed.
    pub fn check_published_tokenizer(&self) -> Result<(), Failure> {
        self.shape(PUBLISHED_VOCABULARY)?;
        let is_needed = self.sample.is_some() || self.initial_weights.is_some_and(Tokenizer::lies_in);
        if is_needed { self.check_tokenizer(&Tokenizer::gpt2()?) } else { Ok(()) }
    }

    /// Checks the sample's prompt with a dataset's tokenizer.
    pub fn check_sample(&self, dataset: &Dataset) -> Result<(), Failure> {
        self.sample.map_or(Ok(()), |_| self.check_prompt(&dataset.tokenizer()?))
    }

    /// Checks the sample's prompt.
    pub fn check_prompt(&self, tokenizer: &Tokenizer) -> Result<(), Failure> {
        let Some(sample) = self.sample else { return Ok(()) };
        let shape = self.shape(tokenizer.vocabulary())?;
        let checked = check_prompt(&tokenizer.encode_prompt(&sample.prompt), &shape);
        checked.map_err(|failure| Failure::input(format!("sample.prompt: {failure}")))
    }

    /// Checks how much text there is, by the description of the dataset.
    pub fn check_data(&self, data: &Description) -> Result<(), Failure> {
        self.check_adapters(&self.shape(data.vocabulary)?)?;
        let sampler = sampler(data.train.tokens, self.train)?;
        check_validation(self.train, data)?;
        in_steps(self.train, sampler.blocks()).map(drop)
    }

    /// The shape that is asked for, which is that of the initial weights when there are any.
    pub fn shape(&self, vocabulary: usize) -> Result<Shape, Failure> {
        let block_size = self.train.block_size;
        let Some(directory) = self.initial_weights else {
            return Shape::resolve(self.model, vocabulary, block_size).map_err(Failure::input);
        };
        let shape = Shape::read(directory).map_err(Failure::input)?;
        shape.agrees_with(self.model, vocabulary, block_size).map_err(Failure::input)?;
        Ok(shape)
    }

    fn check_adapters(&self, shape: &Shape) -> Result<(), Failure> {
        if self.train.lora.is_none() || shape.variant == Variant::Gpt2 {
            return Ok(());
        }
        Err(Failure::input(format!("train.lora: {}", validate::LORA_VARIANT)))
    }
}

/// Refuses data that cannot fill one step: repeating blocks within a step is never what was meant.
pub fn sampler(tokens: u64, settings: &TrainSettings) -> Result<Sampler, Failure> {
    let block_size = settings.block_size as u64;
    let Some(sampler) = Sampler::new(settings.seed, tokens, block_size) else {
        return Err(Failure::input(format!(
            "the training split has {tokens} tokens, which is less than one block of {block_size} and the token after it; \
             add text or lower `train.block_size`"
        )));
    };
    let (blocks, needed) = (sampler.blocks(), settings.sequences_per_step());
    if blocks < needed {
        // The settings have a step of all processes, of which a job file tells that of each.
        let (processes, number) = match settings.leaves {
            Some(2..) => ("processes × ", ", or compute.processes_per_node"),
            _ => ("", ""),
        };
        return Err(Failure::input(format!(
            "the training split has {blocks} blocks of {block_size} tokens, but one step reads {needed} ({processes}micro_batch × \
             gradient_accumulation); add text, or lower train.micro_batch, train.gradient_accumulation or train.block_size{number}"
        )));
    }
    Ok(sampler)
}

/// Steps in all: as set, or as many whole steps as the epochs hold, at least one.
pub fn steps(settings: &TrainSettings, blocks: u64) -> u64 {
    let sequences = settings.epochs.unwrap_or(1.0) * blocks as f64;
    settings.steps.unwrap_or_else(|| ((sequences / settings.sequences_per_step() as f64) as u64).max(1))
}

/// `settings` with every length in steps, and the steps in all. Refuses a warm-up and a decay that are longer than the run.
pub fn in_steps(settings: &TrainSettings, blocks: u64) -> Result<(TrainSettings, u64), Failure> {
    let steps = steps(settings, blocks);
    let epoch = blocks as f64 / settings.sequences_per_step() as f64;
    let settings = length::resolve(settings, epoch, steps);
    validate::all_hold(validate::fits(&settings, steps)).map_err(Failure::input)?;
    Ok((settings, steps))
}

pub fn check_validation(settings: &TrainSettings, data: &Description) -> Result<(), Failure> {
    if !settings.keeps_best() || data.validation.tokens > 1 {
        return Ok(());
    }
    let key = if settings.keep_best { "train.keep_best" } else { "train.early_stopping_patience" };
    Err(Failure::input(format!("{key} needs a validation loss, and the dataset has no validation text; add some, or remove {key}")))
}

/// Refuses a prompt that a model of this shape cannot continue.
pub fn check_prompt(prompt: &[u32], shape: &Shape) -> Result<(), Failure> {
    let (length, context) = (prompt.len(), shape.context);
    if prompt.is_empty() {
        return Err(Failure::input("a prompt without tokens cannot be continued"));
    }
    if length >= context {
        return Err(Failure::input(format!(
            "a prompt of {length} tokens leaves no room in the model's context of {context}; shorten it"
        )));
    }
    match prompt.iter().find(|token| **token as usize >= shape.vocabulary) {
        Some(token) => Err(Failure::input(format!(
            "the prompt has token {token}, but the model knows only {}; use the tokenizer that the model was trained with",
            shape.vocabulary
        ))),
        None => Ok(()),
    }
}

/// Refuses data whose numbers stand for other tokens than those that the weights were trained on. Weights may lie there without a
/// tokenizer, and know more tokens than the data has.
pub fn check_tokenizer(weights: &Path, tokenizer: &Tokenizer) -> Result<(), Failure> {
    if !Tokenizer::lies_in(weights) {
        return Ok(());
    }
    let Some((id, known, found)) = Tokenizer::load(weights)?.contradiction(tokenizer) else { return Ok(()) };
    Err(Failure::input(format!("token {id} is {known} for the weights and {found} in the dataset; {OWN_TOKENIZER}")))
}

/// [`check_tokenizer`] with the one of a dataset.
pub fn check_dataset(weights: &Path, dataset: &Dataset) -> Result<(), Failure> {
    if Tokenizer::lies_in(weights) { check_tokenizer(weights, &dataset.tokenizer()?) } else { Ok(()) }
}
