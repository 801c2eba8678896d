//! Values that have the right type and still make no sense.

use ft_trainer::config::{
    DataConfig, DataFormat, ModelConfig, Preset, SampleConfig, Schedule, TokenizerConfig, TokenizerKind, TrainSettings,
};

use super::{
    document::{DocumentError, Located},
    id::{MAX_NAME, valid_name},
    spec::JobSpec,
};

/// One thing that must hold, and what to say at `key` when it does not.
struct Rule {
    key: &'static str,
    holds: bool,
    message: String,
}

fn rule(key: &'static str, holds: bool, message: impl Into<String>) -> Rule {
    Rule { key, holds, message: message.into() }
}

/// The first broken rule in the order of the file.
pub(super) fn check(spec: &JobSpec, typed: &Located<'_>) -> Result<(), DocumentError> {
    let data = spec.data.iter().flat_map(data);
    let sample = spec.sample.iter().flat_map(sample);
    let rules =
        job(spec).into_iter().chain(data).chain(model(spec)).chain(train(&spec.train)).chain(sample).chain(retry_and_limits(spec));
    let broken = rules.filter(|rule| !rule.holds).map(|rule| typed.error(rule.key, rule.message));
    broken.min_by_key(|error| (error.line, error.column)).map_or(Ok(()), Err)
}

/// What is wrong with a `[data]` table that nobody typed as TOML.
pub fn data_problem(config: &DataConfig) -> Option<String> {
    data(config).into_iter().find(|rule| !rule.holds).map(|rule| rule.message)
}

fn job(spec: &JobSpec) -> Vec<Rule> {
    let name = format!(
        "`{}` is no job name: it starts with a letter and has lower-case letters, digits and single hyphens, at most {MAX_NAME}",
        spec.name
    );
    let both = "a job has either `data` (text to prepare) or `dataset` (prepared already), not both";
    let empty = |text: &Option<String>| text.as_deref() != Some("");
    vec![
        rule("name", valid_name(&spec.name), name),
        rule("dataset", !(spec.data.is_some() && spec.dataset.is_some()), both),
        rule("", spec.data.is_some() || spec.dataset.is_some(), "the job has nothing to train on: add [data] or dataset = \"...\""),
        rule("dataset", empty(&spec.dataset), "dataset is empty; give a digest or a directory, or leave it out"),
        rule("dataset", dataset_name(spec.dataset.as_deref()).is_none_or(valid_name), "what follows the @ is no name of a dataset"),
        rule("store", empty(&spec.store), "store is empty; give a URL or a directory, or leave it out"),
        rule("initial_weights", empty(&spec.initial_weights), "initial_weights is empty; give a directory, or leave it out"),
        rule("compute.backend", empty(&spec.compute.backend), "compute.backend is empty; name one, or leave it out"),
    ]
}

/// `@NAME`: a dataset of the store by its name.
fn dataset_name(dataset: Option<&str>) -> Option<&str> {
    dataset?.strip_prefix('@')
}

fn data(data: &DataConfig) -> Vec<Rule> {
    let vocabulary = data.tokenizer.vocabulary;
    let text = data.format == DataFormat::Text;
    let only_text =
        |key, given: bool| rule(key, text || !given, format!("{} is for text; these files hold GPT-2's tokens", last(key)));
    let (given, trained) = (vocabulary.is_some(), data.tokenizer.kind == TokenizerKind::Train);
    vec![
        rule(
            "data",
            !data.train.is_empty() || data.source.is_some(),
            "[data] names no text: add train = [\"FILE\", ...] or source",
        ),
        rule("data.source", data.train.is_empty() || data.source.is_none(), "[data] has either `train` or `source`, not both"),
        rule("data.train", !data.train.iter().any(String::is_empty), "data.train has an empty path"),
        rule("data.validation", !data.validation.iter().any(String::is_empty), "data.validation has an empty path"),
        only_text("data.source", data.source.is_some()),
        only_text("data.limit_bytes", data.limit_bytes.is_some()),
        only_text("data.column", data.column.is_some()),
        only_text("data.tokenizer", data.tokenizer != TokenizerConfig::default()),
        within("data.validation_fraction", data.validation_fraction, 0.0, 0.5),
        optional_at_least_one("data.limit_bytes", data.limit_bytes),
        rule(
            "data.tokenizer.vocabulary",
            vocabulary.is_none_or(|size| size >= 257),
            "the vocabulary has at least 257 tokens: the 256 bytes and end-of-text",
        ),
        rule(
            "data.tokenizer.vocabulary",
            trained || !given,
            "vocabulary goes with kind = \"train\"; GPT-2's own has 50,257 tokens",
        ),
    ]
}

fn model(spec: &JobSpec) -> Vec<Rule> {
    let ModelConfig { preset, layers, heads, width, context } = &spec.model;
    let published = preset.map(published);
    let heads_in_force = heads.or(published.map(|(heads, _)| heads));
    let width_in_force = width.or(published.map(|(_, width)| width));
    let context_in_force = context.or(published.map(|_| PUBLISHED_CONTEXT));
    let divides = match (heads_in_force, width_in_force) {
        (Some(heads), Some(width)) => heads == 0 || width.is_multiple_of(heads),
        _ => true,
    };
    let typed = if heads.is_some() { "model.heads" } else { "model.width" };
    let block = spec.train.block_size;
    let block_typed = block != TrainSettings::default().block_size;
    vec![
        optional_at_least_one("model.layers", layers.map(|n| n as u64)),
        optional_at_least_one("model.heads", heads.map(|n| n as u64)),
        optional_at_least_one("model.width", width.map(|n| n as u64)),
        optional_at_least_one("model.context", context.map(|n| n as u64)),
        rule(
            typed,
            divides,
            format!("{} heads do not divide a width of {}", heads_in_force.unwrap_or(0), width_in_force.unwrap_or(0)),
        ),
        rule(
            if block_typed { "train.block_size" } else { "model.context" },
            context_in_force.is_none_or(|context| block <= context),
            format!("a block of {block} tokens is longer than the model's context of {}", context_in_force.unwrap_or(0)),
        ),
    ]
}

/// Positions of every published GPT-2.
const PUBLISHED_CONTEXT: usize = 1024;

/// Heads and width.
fn published(preset: Preset) -> (usize, usize) {
    match preset {
        Preset::Gpt2 => (12, 768),
        Preset::Gpt2Medium => (16, 1024),
        Preset::Gpt2Large => (20, 1280),
        Preset::Gpt2Xl => (25, 1600),
    }
}

fn train(train: &TrainSettings) -> Vec<Rule> {
    let counts = [
        at_least_one("train.block_size", train.block_size as u64),
        at_least_one("train.micro_batch", train.micro_batch as u64),
        at_least_one("train.gradient_accumulation", train.gradient_accumulation as u64),
        at_least_one("train.keep_checkpoints", train.keep_checkpoints as u64),
        at_least_one("train.log_every", train.log_every),
        optional_at_least_one("train.steps", train.steps),
        optional_at_least_one("train.eval_sequences", train.eval_sequences.map(|n| n as u64)),
        optional_at_least_one("train.early_stopping_patience", train.early_stopping_patience),
        rule(
            "train.early_stopping_patience",
            train.early_stopping_patience.is_none() || train.eval_every > 0,
            "early stopping counts evaluations; set train.eval_every",
        ),
        optional_at_least_one("train.threads", train.threads.map(|n| n as u64)),
    ];
    let numbers = [
        above_zero("train.learning_rate", train.learning_rate),
        above_zero("train.power", train.power),
        above_zero("train.epsilon", train.epsilon),
        above_zero("train.epochs", train.epochs.unwrap_or(1.0)),
        within("train.warmup_learning_rate", train.warmup_learning_rate, 0.0, train.learning_rate.max(0.0)),
        rule(
            "train.momentum",
            (0.0..1.0).contains(&train.momentum),
            format!("momentum is at least 0 and below 1, not {}", train.momentum),
        ),
        within("train.weight_decay", train.weight_decay, 0.0, f64::MAX),
        within("train.clip_norm", train.clip_norm, 0.0, f64::MAX),
        within("train.skip_spikes", train.skip_spikes, 0.0, f64::MAX),
        within("train.min_learning_rate", train.min_learning_rate, 0.0, train.learning_rate.max(0.0)),
        rule(
            "train.betas",
            train.betas.iter().all(|beta| (0.0..1.0).contains(beta)),
            format!("both betas are at least 0 and below 1, not {:?}", train.betas),
        ),
    ];
    counts.into_iter().chain(numbers).chain(schedule(train)).collect()
}

fn schedule(train: &TrainSettings) -> Vec<Rule> {
    let steps = train.steps.unwrap_or(u64::MAX);
    let (wsd, decay) = (train.schedule == Schedule::Wsd, train.decay_steps.unwrap_or(0));
    vec![
        rule("train.epochs", train.steps.is_none() || train.epochs.is_none(), "a run has either `steps` or `epochs`, not both"),
        rule(
            "train.warmup_steps",
            train.warmup_steps <= steps,
            format!("the warm-up of {} steps is longer than the run of {steps}", train.warmup_steps),
        ),
        rule("train.schedule", !wsd || train.decay_steps.is_some(), "the schedule wsd needs train.decay_steps"),
        rule("train.decay_steps", wsd || train.decay_steps.is_none(), "decay_steps goes with schedule = \"wsd\""),
        rule(
            "train.decay_steps",
            decay <= steps.saturating_sub(train.warmup_steps),
            format!("warm-up and decay together are longer than the run of {steps} steps"),
        ),
    ]
}

fn sample(sample: &SampleConfig) -> Vec<Rule> {
    vec![
        at_least_one("sample.tokens", sample.tokens as u64),
        within("sample.temperature", sample.temperature, 0.0, f64::MAX),
        rule(
            "sample.top_p",
            sample.top_p > 0.0 && sample.top_p <= 1.0,
            format!("top_p is above 0 and at most 1, not {}", sample.top_p),
        ),
    ]
}

fn retry_and_limits(spec: &JobSpec) -> Vec<Rule> {
    let zero = |span: Option<super::units::Span>| span.is_some_and(|span| span.0.is_zero());
    vec![
        optional_at_least_one("retry.attempts", spec.retry.attempts.map(u64::from)),
        rule("limits.ttl", !zero(spec.limits.ttl), "a time to live of 0s leaves no time to train"),
    ]
}

fn at_least_one(key: &'static str, value: u64) -> Rule {
    rule(key, value >= 1, format!("{} is at least 1, not {value}", last(key)))
}

fn optional_at_least_one(key: &'static str, value: Option<u64>) -> Rule {
    at_least_one(key, value.unwrap_or(1))
}

fn above_zero(key: &'static str, value: f64) -> Rule {
    rule(key, value > 0.0 && value.is_finite(), format!("{} is a finite number above 0, not {value}", last(key)))
}

fn within(key: &'static str, value: f64, low: f64, high: f64) -> Rule {
    let range = if high >= f64::MAX { format!("a finite number, {low} or more") } else { format!("between {low} and {high}") };
    rule(key, (low..=high).contains(&value), format!("{} is {range}, not {value}", last(key)))
}

fn last(key: &str) -> &str {
    key.rsplit('.').next().unwrap_or(key)
}
