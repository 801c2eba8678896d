//! The rules for a configuration besides the types of its values: one list for job files, trainer configurations and the flags of
//! `ftctl prepare`, so that a value is refused for the same reason wherever it is written.

use std::fmt::Display;

use super::length::Length;
use super::lora::Lora;
use super::{
    DataConfig, DataFormat, ModelConfig, OnBadRow, Preset, SampleConfig, Schedule, TokenizerConfig, TokenizerKind, TrainConfig,
    TrainSettings, Variant,
};
use crate::data::tokenizer::SMALLEST;
use crate::model::shape::{MOST, MOST_LAYERS, MOST_TOKENS, PUBLISHED_CONTEXT, least_width};

/// fairseq's files have queries, keys and values apart, and so would peft's adapters of them.
pub const LORA_VARIANT: &str = "adapters are for GPT-2's own variant, not for fairseq's";

/// One thing that must hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// Where it is written, `train.block_size`.
    pub key: &'static str,
    pub holds: bool,
    /// The error when the rule is broken.
    pub message: String,
}

/// The first rule that a configuration breaks.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {message}")]
pub struct Broken {
    pub key: &'static str,
    pub message: String,
}

pub fn rule(key: &'static str, holds: bool, message: impl Into<String>) -> Rule {
    Rule { key, holds, message: message.into() }
}

/// Fails with the first broken rule.
pub fn all_hold(rules: impl IntoIterator<Item = Rule>) -> Result<(), Broken> {
    let broken = rules.into_iter().find(|rule| !rule.holds);
    broken.map_or(Ok(()), |Rule { key, message, .. }| Err(Broken { key, message }))
}

/// Most tokens that go through a model together, so that the bytes of the largest one's activations can be counted.
const MOST_AT_ONCE: usize = 1 << 24;
/// The range of [`below_one`].
const BELOW_ONE: &str = "at least 0 and below 1";

/// The rules of a trainer configuration. Those of the model's shape wait for the weights: see [`crate::model::shape::ShapeError`].
pub fn config(config: &TrainConfig) -> Vec<Rule> {
    train(&config.train).into_iter().chain(config.sample.iter().flat_map(sample)).collect()
}

/// The rules of a `[data]` table.
pub fn data(data: &DataConfig) -> Vec<Rule> {
    let size = data.tokenizer.vocabulary;
    let learnt = data.tokenizer.kind == TokenizerKind::Train;
    let key = "data.tokenizer.vocabulary";
    let is_text = data.format == DataFormat::Text;
    let only_text = |key, given: bool| rule(key, is_text || !given, format!("{} is for text; these files hold tokens", last(key)));
    let nothing = "[data] names no text: add train = [\"FILE\", ...] or source";
    let lists = [("data.train", &data.train), ("data.validation", &data.validation)];
    let elsewhere = lists.into_iter().flat_map(|(key, list)| list.iter().filter_map(move |text| Some((key, no_path(text)?))));
    let tokenizer = data.tokenizer.directory.as_deref().and_then(no_path).map(|why| ("data.tokenizer.directory", why));
    let mut rules = vec![
        rule("data", !data.train.is_empty() || data.source.is_some(), nothing),
        rule("data.source", data.train.is_empty() || data.source.is_none(), "[data] has either `train` or `source`, not both"),
        rule("data.train", !data.train.iter().any(String::is_empty), "data.train has an empty path"),
        rule("data.validation", !data.validation.iter().any(String::is_empty), "data.validation has an empty path"),
        only_text("data.source", data.source.is_some()),
        only_text("data.limit_bytes", data.limit_bytes.is_some()),
        only_text("data.column", data.column.is_some()),
        only_text("data.on_bad_row", data.on_bad_row != OnBadRow::Fail),
        only_text("data.end_of_text", data.end_of_text.is_some()),
        only_text("data.tokenizer", data.tokenizer != TokenizerConfig::default()),
        within("data.validation_fraction", data.validation_fraction, 0.0, 0.5),
        at_least("data.limit_bytes", data.limit_bytes, 1),
        rule(
            key,
            size.is_none_or(|size| size >= SMALLEST),
            format!("the vocabulary has at least {SMALLEST} tokens: the 256 bytes and end-of-text"),
        ),
        at_most(key, size, MOST_TOKENS),
        rule(
            key,
            learnt || size.is_none(),
            "vocabulary needs kind = \"train\"; set that, or remove vocabulary: GPT-2's own has 50,257 tokens",
        ),
        rule(key, !learnt || size.is_some(), "kind = \"train\" needs the size of the vocabulary to learn"),
        rule(
            "data.tokenizer.directory",
            (data.tokenizer.kind == TokenizerKind::Files) == data.tokenizer.directory.is_some(),
            "kind = \"files\" and directory = \"DIR\", where the files are, go together",
        ),
    ];
    rules.extend(elsewhere.chain(tokenizer).map(|(key, why)| rule(key, false, why)));
    rules
}

/// Why a text cannot be the path of anything on this machine; `None` for what may be one. What follows a question mark may be a
/// signature, and is not repeated.
pub fn no_path(text: &str) -> Option<String> {
    if text == "~" || text.starts_with("~/") {
        return Some(format!("`{text}`: only a shell knows what ~ is; write the whole path"));
    }
    let (scheme, rest) = text.split('?').next()?.split_once("://")?;
    let of_hub = ["huggingface.co/", "hf.co/"].iter().any(|host| rest.starts_with(host));
    let instead = match scheme {
        "file" => "write the path alone",
        _ if of_hub => "write what the hub has as hf:OWNER/NAME, for text with /SPLIT or /CONFIGURATION/SPLIT behind it",
        _ => "files of this machine are read, and what the hub has as hf:OWNER/NAME; fetch it first",
    };
    Some(format!("`{scheme}://{rest}` is an address: {instead}"))
}

/// The rules of a `[model]` table and of the block that its model reads. With `initial_weights` only the numbers that are written
/// count: the others are those of the weights.
pub fn model(model: &ModelConfig, initial_weights: bool, train: &TrainSettings) -> Vec<Rule> {
    let ModelConfig { variant, preset, layers, heads, width, context } = *model;
    let published = if initial_weights { preset } else { Some(preset.unwrap_or(Preset::Gpt2)) };
    let heads_in_force = heads.or(published.map(|preset| preset.dimensions().1));
    let width_in_force = width.or(published.map(|preset| preset.dimensions().2));
    let context_in_force = context.or(published.map(|_| PUBLISHED_CONTEXT));
    let divides = heads_in_force.zip(width_in_force).is_none_or(|(heads, width)| heads == 0 || width.is_multiple_of(heads));
    let can_adapt = train.lora.is_none() || variant.unwrap_or_default() == Variant::Gpt2;
    let block = train.block_size;
    let block_is_written = block != TrainSettings::default().block_size;
    vec![
        at_least("model.layers", layers, 1),
        at_least("model.heads", heads, 1),
        at_least("model.width", width, least_width(variant.unwrap_or_default()) as u64),
        at_least("model.context", context, 1),
        at_most("model.layers", layers, MOST_LAYERS),
        at_most("model.heads", heads, MOST),
        at_most("model.width", width, MOST),
        at_most("model.context", context, MOST),
        rule("train.lora", can_adapt, LORA_VARIANT),
        rule(
            if heads.is_some() { "model.heads" } else { "model.width" },
            divides,
            format!("{} heads do not divide a width of {}", heads_in_force.unwrap_or(0), width_in_force.unwrap_or(0)),
        ),
        rule(
            if block_is_written { "train.block_size" } else { "model.context" },
            context_in_force.is_none_or(|context| block <= context),
            format!(
                "a block of {block} tokens is longer than the model's context of {}{}",
                context_in_force.unwrap_or(0),
                if block_is_written { "" } else { "; set train.block_size, too" }
            ),
        ),
    ]
}

/// Leaves are as large as each other.
pub fn leaves(train: &TrainSettings) -> Rule {
    let (leaves, step) = (train.leaves(), train.gradient_accumulation);
    let divides = step.is_multiple_of(leaves);
    rule("train.leaves", divides, format!("{leaves} leaves do not divide train.gradient_accumulation = {step}"))
}

/// The rules of a `[train]` table.
pub fn train(train: &TrainSettings) -> Vec<Rule> {
    let at_once = train.micro_batch.sequences().saturating_mul(train.block_size);
    let counts = [
        at_least("train.block_size", Some(train.block_size), 2),
        at_least("train.micro_batch", Some(train.micro_batch.sequences()), 1),
        at_least("train.gradient_accumulation", Some(train.gradient_accumulation), 1),
        at_least("train.keep_checkpoints", Some(train.keep_checkpoints), 1),
        rule("train.log_every", train.log_every != Length::NONE, "log_every must be at least 1, but is 0"),
        at_least("train.steps", train.steps, 1),
        at_least("train.eval_sequences", train.eval_sequences, 1),
        at_least("train.threads", train.threads, 1),
        at_least("train.early_stopping_patience", train.early_stopping_patience, 1),
        at_most("train.block_size", Some(train.block_size), MOST),
        at_most("train.micro_batch", Some(train.micro_batch.sequences()), MOST),
        rule(
            "train.micro_batch",
            at_once <= MOST_AT_ONCE,
            format!("{at_once} tokens go through the model at once; {MOST_AT_ONCE} are the most"),
        ),
        at_most("train.gradient_accumulation", Some(train.gradient_accumulation), MOST),
        at_least("train.leaves", train.leaves, 1),
        leaves(train),
        rule("train.zero", train.zero <= 2, "zero must be 0, 1 or 2; stage 3 is not supported"),
        bound("train.epochs", train.epochs.unwrap_or(1.0), |epochs| epochs <= 1e6, "at most 1000000"),
        rule(
            "train.early_stopping_patience",
            train.early_stopping_patience.is_none() || train.eval_every != Length::NONE,
            "early stopping counts evaluations; set train.eval_every",
        ),
        rule(
            "train.keep_best",
            !train.keep_best || train.eval_every != Length::NONE,
            "the best is one of several evaluations; set train.eval_every",
        ),
    ];
    let peak = train.learning_rate.max(0.0);
    let numbers = [
        above_zero("train.learning_rate", train.learning_rate),
        above_zero("train.power", train.power),
        above_zero("train.epsilon", train.epsilon),
        above_zero("train.epochs", train.epochs.unwrap_or(1.0)),
        within("train.warmup_learning_rate", train.warmup_learning_rate, 0.0, peak),
        within("train.min_learning_rate", train.min_learning_rate, 0.0, peak),
        within("train.weight_decay", train.weight_decay, 0.0, f64::MAX),
        within("train.clip_norm", train.clip_norm, 0.0, f64::MAX),
        within("train.skip_spikes", train.skip_spikes, 0.0, f64::MAX),
        above_zero("train.loss_scaling.minimum", train.loss_scaling.minimum),
        within("train.loss_scaling.initial", train.loss_scaling.initial, train.loss_scaling.minimum, train.loss_scaling.maximum),
        above_zero("train.loss_scaling.maximum", train.loss_scaling.maximum),
        bound(
            "train.loss_scaling.factor",
            train.loss_scaling.factor,
            |factor| factor > 1.0 && factor.is_finite(),
            "a finite number above 1",
        ),
        at_least("train.loss_scaling.growth_interval", Some(train.loss_scaling.growth_interval), 1),
        at_least("train.loss_scaling.hysteresis", Some(train.loss_scaling.hysteresis), 1),
        share("train.dropout", train.dropout),
        share("train.attention_dropout", train.attention_dropout),
        share("train.momentum", train.momentum),
        rule(
            "train.betas",
            train.betas.into_iter().all(below_one),
            format!("both betas must be {BELOW_ONE}, but are {:?}", train.betas),
        ),
    ];
    let wsd = train.schedule == Schedule::Wsd;
    let schedule = [
        rule("train.epochs", train.steps.is_none() || train.epochs.is_none(), "a run has either `steps` or `epochs`, not both"),
        rule("train.schedule", !wsd || train.decay_steps.is_some(), "the schedule wsd needs train.decay_steps"),
        rule(
            "train.decay_steps",
            wsd || train.decay_steps.is_none(),
            "decay_steps needs schedule = \"wsd\"; set that, or remove decay_steps",
        ),
    ];
    let adapters = train.lora.as_deref().into_iter().flat_map(lora);
    let length = train.steps.into_iter().flat_map(|steps| fits(train, steps));
    counts.into_iter().chain(numbers).chain(schedule).chain(adapters).chain(length).collect()
}

fn lora(lora: &Lora) -> [Rule; 6] {
    let maps = &lora.target_modules;
    let repeated = maps.iter().enumerate().any(|(place, map)| maps[..place].contains(map));
    [
        at_least("train.lora.rank", Some(lora.rank), 1),
        at_most("train.lora.rank", Some(lora.rank), MOST),
        above_zero("train.lora.alpha", lora.alpha),
        share("train.lora.dropout", lora.dropout),
        rule("train.lora.target_modules", !maps.is_empty(), "adapters need a map to adapt: attn.c_attn is peft's choice"),
        rule("train.lora.target_modules", !repeated, "a map is named twice; each has one adapter"),
    ]
}

/// Warm-up and decay fit into a run of `steps` steps: known only with the data when a length is given in epochs.
pub fn fits(train: &TrainSettings, steps: u64) -> [Rule; 2] {
    let known = |length: Length| length.of_run(steps).unwrap_or(0);
    let (warmup, decay) = (known(train.warmup_steps), train.decay_steps.map_or(0, known));
    [
        rule("train.warmup_steps", warmup <= steps, format!("the warm-up of {warmup} steps is longer than the run of {steps}")),
        rule(
            "train.decay_steps",
            decay <= steps.saturating_sub(warmup),
            format!("warm-up and decay together are longer than the run of {steps} steps"),
        ),
    ]
}

/// The rules of a `[sample]` table.
pub fn sample(sample: &SampleConfig) -> Vec<Rule> {
    vec![
        at_least("sample.tokens", Some(sample.tokens), 1),
        within("sample.temperature", sample.temperature, 0.0, f64::MAX),
        bound("sample.top_p", sample.top_p, |share| share > 0.0 && share <= 1.0, "above 0 and at most 1"),
    ]
}

/// A number that may be left out.
pub fn at_least<N: TryInto<u64>>(key: &'static str, value: Option<N>, least: u64) -> Rule {
    let value = value.map_or(least, |value| value.try_into().unwrap_or(u64::MAX));
    bound(key, value, |value| value >= least, &format!("at least {least}"))
}

/// A bound above all that is of use, so that sizes can be multiplied.
fn at_most(key: &'static str, value: Option<usize>, most: usize) -> Rule {
    bound(key, value.unwrap_or(most), |value| value <= most, &format!("at most {most}"))
}

fn above_zero(key: &'static str, value: f64) -> Rule {
    bound(key, value, |value| value > 0.0 && value.is_finite(), "a finite number above 0")
}

fn within(key: &'static str, value: f64, low: f64, high: f64) -> Rule {
    let range = if high >= f64::MAX { format!("a finite number, {low} or more") } else { format!("between {low} and {high}") };
    bound(key, value, |value| (low..=high).contains(&value), &range)
}

fn share(key: &'static str, value: f64) -> Rule {
    bound(key, value, below_one, BELOW_ONE)
}

/// The rule that a value is within `range`, which says in words what `holds` decides.
fn bound<N: Display + Copy>(key: &'static str, value: N, holds: impl FnOnce(N) -> bool, range: &str) -> Rule {
    rule(key, holds(value), format!("{} must be {range}, but is {value}", last(key)))
}

fn below_one(value: f64) -> bool {
    (0.0..1.0).contains(&value)
}

fn last(key: &str) -> &str {
    key.rsplit('.').next().unwrap_or(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(change: impl FnOnce(&mut TrainSettings)) -> String {
        let mut settings = TrainSettings::default();
        change(&mut settings);
        all_hold(train(&settings)).map_or_else(|error| error.to_string(), |()| "accepted".to_owned())
    }

    #[test]
    fn the_defaults_are_possible() {
        assert_eq!(message(|_| ()), "accepted");
    }

    #[test]
    fn impossible_values_name_their_key() {
        assert_eq!(message(|train| train.block_size = 0), "train.block_size: block_size must be at least 2, but is 0");
        assert_eq!(
            message(|train| train.learning_rate = f64::NAN),
            "train.learning_rate: learning_rate must be a finite number above 0, but is NaN"
        );
        assert_eq!(
            message(|train| train.betas = [0.9, 1.0]),
            "train.betas: both betas must be at least 0 and below 1, but are [0.9, 1.0]"
        );
        assert_eq!(message(|train| train.threads = Some(0)), "train.threads: threads must be at least 1, but is 0");
        assert_eq!(
            message(|train| train.gradient_accumulation = 1 << 62),
            format!("train.gradient_accumulation: gradient_accumulation must be at most 1048576, but is {}", 1_u64 << 62)
        );
        let parted = message(|train| (train.gradient_accumulation, train.leaves) = (6, Some(4)));
        assert_eq!(parted, "train.leaves: 4 leaves do not divide train.gradient_accumulation = 6");
        assert!(message(|train| train.leaves = Some(0)).starts_with("train.leaves: "));
        assert!(message(|train| train.zero = 3).starts_with("train.zero: zero must be 0, 1 or 2"));
        let both = message(|train| (train.steps, train.epochs) = (Some(5), Some(1.0)));
        assert_eq!(both, "train.epochs: a run has either `steps` or `epochs`, not both");
        let warmup = message(|train| (train.steps, train.warmup_steps) = (Some(5), 6.into()));
        assert_eq!(warmup, "train.warmup_steps: the warm-up of 6 steps is longer than the run of 5");
    }

    #[test]
    fn a_shape_that_nobody_wrote_is_the_smallest_gpt2() {
        let holds = |model: ModelConfig, block_size: usize, initial_weights: bool| {
            let train = TrainSettings { block_size, ..TrainSettings::default() };
            all_hold(self::model(&model, initial_weights, &train)).is_ok()
        };
        assert!(holds(ModelConfig::default(), 1024, false) && !holds(ModelConfig::default(), 1025, false));
        assert!(holds(ModelConfig::default(), 1025, true), "the weights may know more positions");
        assert!(!holds(ModelConfig { heads: Some(7), ..ModelConfig::default() }, 64, false), "7 heads do not divide 768");
    }
}
