//! `run_clm.py` of transformers, `run_clm_no_trainer.py`, which has a loop of its own, and `run_language_modeling.py`, which was
//! the name of the first until 2020.

mod flags;

use flags::{COMMON, FLAGS, NO_TRAINER_FLAGS, OLD_FLAGS};
use ft_trainer::{
    model::Shape,
    settings::{Variant, length::Length as Steps},
};

use super::{
    BLOCK_SIZE, CHECKPOINT_EVERY, CONFIG, CONTEXT, EVAL_EVERY, Flag, HALF, Job, LOG_EVERY, MICRO_BATCH,
    Meaning::*,
    PRECISION, Program, STEPS,
    Setting::{self, Number as N, Whole as I, Word as W, Yes},
    TOKENIZER, WEIGHTS, ZERO, as_number, number, whole,
};
use crate::job::{
    hub::{self, HubName},
    wording::suggest,
};

pub(super) const RUN_CLM: Program = Program {
    names: &["run_clm.py"],
    told_by: None,
    defaults: &[DEFAULTS, OF_THE_TRAINER],
    positional: None,
    abbreviates: true,
    flags: &[COMMON, FLAGS, OLD_FLAGS],
    finish: Some(finish),
    ways: &[
        BLOCKS,
        UPDATES,
        (
            "documents",
            "the program puts nothing between rows, and drops what is left of every 1,000 of them; here an end of text ends each, and \
             only the last block of all is dropped",
        ),
        (
            "lines",
            "the program takes each line of a txt file for a row, and took its end away until September 2021; here a txt file is \
             one document, as it is",
        ),
        ("evaluation", "the program leaves out the last block when it is not full; here every token counts"),
    ],
    instead: None,
};

pub(super) const RUN_LANGUAGE_MODELING: Program = Program {
    names: &["run_language_modeling.py"],
    defaults: &[DEFAULTS, OF_THE_TRAINER, &[("train.compat", W("transformers-2020"))]],
    ways: &[
        BLOCKS,
        UPDATES,
        (
            "train.compat",
            "keeps that layer norms decay and that AdamW's epsilon is added before the bias correction; take it out for neither",
        ),
        (
            "evaluation",
            "the program's perplexity is that of the mean of its batches' means, however small the last, without the last block when it \
             is not full; here every token counts alike",
        ),
    ],
    ..RUN_CLM
};

/// It has neither a limit of the gradient's norm nor a log of its own, and evaluates after each epoch.
pub(super) const NO_TRAINER: Program = Program {
    names: &["run_clm_no_trainer.py"],
    defaults: &[DEFAULTS, &[("train.clip_norm", N(0.0)), (EVAL_STRATEGY, W("epoch"))]],
    flags: &[COMMON, NO_TRAINER_FLAGS],
    finish: Some(settle),
    ..RUN_CLM
};

const BLOCKS: (&str, &str) =
    ("blocks", "the first token of a block is never predicted by the program; here the last token of the block before predicts it");
const UPDATES: (&str, &str) = (
    "accumulation",
    "an epoch may end with an incomplete step: old versions of the program join it to the next epoch, new ones take a smaller step; \
     here all steps have one size and continue across epochs",
);

const DEFAULTS: &[(&str, Setting)] = &[
    ("train.weight_decay", N(0.0)),
    ("train.schedule", W("linear")),
    ("train.epochs", N(3.0)),
    // Its tokenizer makes the token of what is called like one.
    ("data.end_of_text", W("split")),
    // As torch's GradScaler and apex do it.
    ("train.loss_scaling.growth_interval", I(2000)),
    ("train.loss_scaling.hysteresis", I(1)),
];

const OF_THE_TRAINER: &[(&str, Setting)] = &[(LOG_EVERY, I(500)), (CHECKPOINT_EVERY, I(500))];

const WARMUP: &str = "train.warmup_steps";
const LEAST_RATE: &str = "train.min_learning_rate";
const PRECISION_OF_JOB: &str = "train.precision";
const PRESET: &str = "model.preset";

// What stands in a job only until all flags are known: no settings.
const TRAINS: &str = "do_train";
const EVALUATES: &str = "do_eval";
const EVAL_STRATEGY: &str = "eval_strategy";
const SAVE_STRATEGY: &str = "save_strategy";
const LOG_STRATEGY: &str = "logging_strategy";
const DATA_SEED: &str = "data_seed";
/// Either that flags of the program turned on.
/// A type that is named as a size.
const TYPE: &str = "type";
/// A published tokenizer, which is the usual one here.
const PUBLISHED_TOKENIZER: &str = "tokenizer";
const WARMUP_RATIO: &str = "warmup_ratio";
const WITHOUT_WARMUP: &str = "without_warmup";
/// The last learning rate as a part of the first, and whether the schedule needs one.
const LEAST_PART: &str = "least_part";
const NEEDS_LEAST: &str = "needs_least";
const LINEAR_DECAY: &str = "linear_decay";
/// How often a cosine falls, in periods; with restarts each time over half of one.
const CYCLES: &str = "cycles";
const RESTARTS: &str = "restarts";

const SIZES: [&str; 4] = ["gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl"];

/// Names of datasets from before their owners were part of them, and whether there is text for validation.
const OLD_DATASETS: [(&str, &str, bool); 8] = [
    ("wikitext", "Salesforce/wikitext", true),
    ("openwebtext", "Skylion007/openwebtext", false),
    ("bookcorpus", "bookcorpus/bookcorpus", false),
    ("ptb_text_only", "ptb-text-only/ptb_text_only", true),
    ("c4", "allenai/c4", true),
    ("imdb", "stanfordnlp/imdb", false),
    ("ag_news", "fancyzhx/ag_news", false),
    ("lambada", "cimec/lambada", true),
];

// What stands in a job only until all flags are known, too.
const DATASET: &str = "dataset_name";
const DATASET_CONFIG: &str = "dataset_config_name";
const OVERRIDES: &str = "config_overrides";

/// The size that a name on the hub stands for.
fn published(name: &str) -> Option<&'static str> {
    let plain = name.strip_prefix(hub::PREFIX).unwrap_or(name);
    let plain = plain.strip_prefix("openai-community/").unwrap_or(plain);
    SIZES.into_iter().find(|size| *size == plain)
}

#[allow(clippy::unnecessary_wraps)] // One of many that may fail.
fn model(job: &mut Job, name: &str) -> Result<(), String> {
    job.set(WEIGHTS, name);
    Ok(())
}

/// The splits that the program reads of a dataset of the hub: without one for validation it holds a part of the other out.
fn dataset(job: &mut Job) {
    let (name, config) = (job.take_word(DATASET), job.take_word(DATASET_CONFIG));
    let Some(typed) = name else {
        if config.is_some() {
            job.problems.push("--dataset_config_name: it is one of a dataset's; give --dataset_name, too".to_owned());
        }
        return;
    };
    if job.values.contains_key("data.train") {
        return job.problems.push("--dataset_name: the program reads it in the place of --train_file; give one of them".to_owned());
    }
    let known = OLD_DATASETS.iter().find(|(old, ..)| *old == typed);
    let (name, validates) = known.map_or((typed.as_str(), true), |(_, name, validates)| (name, *validates));
    let split = |split: &str| match &config {
        Some(config) => format!("{}{name}/{config}/{split}", hub::PREFIX),
        None => format!("{}{name}/{split}", hub::PREFIX),
    };
    if typed.starts_with(['.', '/']) {
        return job
            .problems
            .push(format!("--dataset_name: {typed} is a directory; name its files in --train_file and --validation_file"));
    }
    if let Some(Err(problem)) = HubName::of_data(&split("train")) {
        return job.problems.push(format!("--dataset_name: {problem}"));
    }
    job.set("data.train", vec![toml::Value::from(split("train"))]);
    if validates {
        job.set("data.validation", vec![toml::Value::from(split("validation"))]);
    }
    if known.is_none() {
        job.note("--dataset_name", VALIDATION);
    }
}

const LINE_ENDS: &str = "a text file is one document here, with the ends of its lines; take them out of the file";

/// The program takes the ends of lines out of text files alone.
fn line_ends(job: &mut Job) {
    let lists = ["data.train", "data.validation"].iter().filter_map(|key| job.values.get(*key)?.as_array());
    let paths: Vec<&str> = lists.flatten().filter_map(toml::Value::as_str).collect();
    let is_rows = |path: &&str| path.starts_with(hub::PREFIX) || ROWS.iter().any(|end| path.to_ascii_lowercase().ends_with(end));
    let found = job.problems.iter().position(|problem| problem.ends_with(LINE_ENDS));
    if let Some(at) = found.filter(|_| !paths.is_empty() && paths.iter().all(is_rows)) {
        let flag = job.problems.remove(at).split(':').next().unwrap_or_default().to_owned();
        job.note(&flag, "it is for text files, and without an effect on rows");
    }
}

/// Ends of the names of files with rows.
const ROWS: [&str; 4] = [".csv", ".json", ".jsonl", ".parquet"];

const VALIDATION: &str = "`ftctl plan` says whether it has text for validation; where it has none, the program holds out a part of the rest: \
    take out data.validation, and data.validation_fraction holds as much out";

/// The preset of a model that begins with random weights, beside existing weights nothing new; or the directory of a `config.json`.
#[allow(clippy::unnecessary_wraps)] // One of many that may fail.
fn config(job: &mut Job, name: &str) -> Result<(), String> {
    match published(name) {
        Some(size) => job.set(PRESET, size),
        None => job.set(CONFIG, name),
    }
    Ok(())
}

/// Some name a size as the type; the program takes the size from elsewhere.
fn model_type(job: &mut Job, name: &str) -> Result<(), String> {
    if !SIZES.contains(&name) {
        return Err(format!("`{name}` does not exist here; {}", suggest(name, &SIZES, "values")));
    }
    if name != SIZES[0] {
        job.set(TYPE, name);
    }
    Ok(())
}

/// All published sizes have one tokenizer.
#[allow(clippy::unnecessary_wraps)] // One of many that may fail.
fn tokenizer(job: &mut Job, name: &str) -> Result<(), String> {
    match published(name) {
        Some(_) => job.set(PUBLISHED_TOKENIZER, true),
        None => job.set(TOKENIZER, name),
    }
    Ok(())
}

fn percentage(job: &mut Job, value: &str) -> Result<(), String> {
    let percent = super::number(value)?;
    if !(0.0..=50.0).contains(&percent) {
        return Err("at most half of the text is held out here; give 0 to 50".to_owned());
    }
    job.set("data.validation_fraction", percent / 100.0);
    Ok(())
}

/// `-1` stands for the model's own context.
fn block_size(job: &mut Job, value: &str) -> Result<(), String> {
    job.set_if_positive(BLOCK_SIZE, super::whole(value)?);
    Ok(())
}

/// `-1` leaves it to the epochs.
fn max_steps(job: &mut Job, value: &str) -> Result<(), String> {
    job.set_if_positive(STEPS, super::whole(value)?);
    Ok(())
}

/// `0` leaves it to `--logging_steps`.
fn eval_steps(job: &mut Job, value: &str) -> Result<(), String> {
    match super::length(value)? {
        toml::Value::Integer(0) => drop(job.values.remove(EVAL_EVERY)),
        steps => job.set(EVAL_EVERY, steps),
    }
    Ok(())
}

fn logging_steps(job: &mut Job, value: &str) -> Result<(), String> {
    match super::length(value)? {
        toml::Value::Integer(0) => job.note("--logging_steps", ALWAYS_LOGGED),
        steps => job.set(LOG_EVERY, steps),
    }
    Ok(())
}

const ALWAYS_LOGGED: &str = "a run always has a log; train.log_every says how often it has a line";

/// `epoch`, or a number of steps.
fn checkpointing(job: &mut Job, value: &str) -> Result<(), String> {
    let every = if value == "epoch" { super::epochs(1.0) } else { super::length(value)? };
    job.set(CHECKPOINT_EVERY, every);
    Ok(())
}

/// Counts where no number of steps is given.
fn warmup_ratio(job: &mut Job, value: &str) -> Result<(), String> {
    let ratio = super::number(value)?;
    if !(0.0..=1.0).contains(&ratio) {
        return Err(format!("{value} is no share of the run; give 0 to 1"));
    }
    job.set(WARMUP_RATIO, ratio);
    Ok(())
}

/// The shards of PyTorch's FSDP, and of fairscale in earlier versions: some words, of which one says what is shared.
fn shards(job: &mut Job, value: &str) -> Result<(), String> {
    for word in value.split([' ', ',']).filter(|word| !word.is_empty()) {
        match word.to_ascii_lowercase().as_str() {
            "no_shard" | "false" | "auto_wrap" => {}
            "simple" | "zero_dp_2" | "shard_grad_op" | "hybrid_shard_zero2" => job.set(ZERO, 2),
            "zero_dp_3" | "full_shard" | "hybrid_shard" | "true" => {
                job.set(ZERO, 2);
                job.note(ZERO, "every process has whole weights here; gradients and the optimizer's state are in shards");
            }
            "offload" => job.note("offload", "train.offload = \"optimizer\" keeps the optimizer's state in main memory"),
            _ => return Err(format!("`{word}` is no way of sharding that is known here")),
        }
    }
    Ok(())
}

#[allow(clippy::unnecessary_wraps)] // One of many that may fail.
fn resume(job: &mut Job, checkpoint: &str) -> Result<(), String> {
    let by_itself = "a job goes on from its own newest checkpoint by itself";
    let is_directory = !["true", "false"].contains(&checkpoint.to_ascii_lowercase().as_str());
    let from = format!(
        "; optimizer and step of {checkpoint} are not read: to begin with its weights, give --model_name_or_path {checkpoint}"
    );
    job.note("--resume_from_checkpoint", &format!("{by_itself}{}", if is_directory { &from } else { "" }));
    Ok(())
}

/// Settings of a schedule, as JSON.
fn scheduler_settings(job: &mut Job, value: &str) -> Result<(), String> {
    let settings: serde_json::Map<String, serde_json::Value> =
        serde_json::from_str(value).map_err(|error| format!("`{value}` is not a JSON object: {error}"))?;
    for (name, value) in &settings {
        let known = || SCHEDULER_SETTINGS.iter().flat_map(|flag| flag.names).copied().collect::<Vec<_>>();
        let flag = SCHEDULER_SETTINGS.iter().find(|flag| flag.names.contains(&name.as_str()));
        let flag = flag.ok_or_else(|| format!("{name}: ftctl does not know this name; {}", suggest(name, &known(), "names")))?;
        job.apply(&format!("--lr_scheduler_kwargs {name}"), &flag.meaning, &crate::job::wording::value(value))
            .map_err(|problem| format!("{name}: {problem}"))?;
    }
    Ok(())
}

const SCHEDULER_SETTINGS: &[Flag] = &[
    Flag { names: &["lr_end", "min_lr"], meaning: Number(LEAST_RATE) },
    Flag { names: &["min_lr_rate", "min_lr_ratio"], meaning: Number(LEAST_PART) },
    Flag { names: &["power"], meaning: Number("train.power") },
    Flag { names: &["num_cycles"], meaning: Number(CYCLES) },
    Flag { names: &["num_decay_steps"], meaning: Whole("train.decay_steps") },
    Flag {
        names: &["num_stable_steps"],
        meaning: Refused("the rate is stable between warm-up and decay here; give num_decay_steps alone"),
    },
    Flag { names: &["decay_type"], meaning: Choice(&[("linear", &[(LINEAR_DECAY, Yes)])]) },
    Flag { names: &["warmup_type"], meaning: Only(&["linear"], "the warm-up is linear here") },
];

/// Its loss scale begins higher.
#[allow(clippy::unnecessary_wraps)] // One of many that may fail.
fn onnx_runtime(job: &mut Job, _: &str) -> Result<(), String> {
    job.note(
        "--ort_trainer",
        "the trainer has its own engine, whose checkpoints hold the optimizer, and which skips no batch that is not full",
    );
    job.set("train.loss_scaling.initial", 20.0_f64.exp2());
    Ok(())
}

/// Names in a model's `config.json` of what is dropped from embeddings, from what each half of a block adds, and from attention
/// weights.
const DROPOUT: [&str; 3] = ["embd_pdrop", "resid_pdrop", "attn_pdrop"];
/// Where such a file has none.
const USUAL_DROPOUT: f64 = 0.1;

const SHAPE: [(&str, &str); 4] =
    [("n_embd", "model.width"), ("n_layer", "model.layers"), ("n_head", "model.heads"), ("n_positions", CONTEXT)];

/// `n_layer=6,resid_pdrop=0`.
fn overrides(job: &mut Job, value: &str) -> Result<(), String> {
    job.set(OVERRIDES, true);
    for pair in value.split(',') {
        let (name, value) = pair.split_once('=').ok_or_else(|| format!("`{pair}` is not NAME=VALUE"))?;
        if let Some((_, key)) = SHAPE.iter().find(|(known, _)| *known == name) {
            job.set(key, super::whole(value)?);
        } else if DROPOUT.contains(&name) {
            job.set(name, super::number(value)?);
        } else {
            let known: Vec<&str> = SHAPE.iter().map(|(name, _)| *name).chain(DROPOUT).collect();
            return Err(format!("`{name}` is not known here; {}", suggest(name, &known, "names")));
        }
    }
    Ok(())
}

/// A part of the work that the program does only when it is told to, and a job always.
#[allow(clippy::unnecessary_wraps)] // One of many that may fail.
pub(super) fn runs(job: &mut Job, part: &str) -> Result<(), String> {
    job.set(part, true);
    job.note(&format!("--{part}"), "a job always trains, and evaluates where there is text for it");
    Ok(())
}

fn finish(job: &mut Job) {
    match [TRAINS, EVALUATES].map(|part| job.values.remove(part).is_some()) {
        [true, _] => {}
        [false, true] => {
            job.problems.push(format!("--{EVALUATES}: without --{TRAINS} nothing is trained; `ftctl eval` evaluates a model"));
        }
        [false, false] => job.note(&format!("--{TRAINS}"), "without it the program trains nothing, and the job trains"),
    }
    settle(job);
    job.note_checkpoints("--save_total_limit");
}

fn settle(job: &mut Job) {
    dataset(job);
    line_ends(job);
    if !job.values.contains_key("data.train") && job.problems.is_empty() {
        job.problems.push("the command names no text to train on: give --train_file (--train_data_file of run_language_modeling.py) or --dataset_name".to_owned());
    }
    seeds(job);
    job.values.remove(HALF);
    if job.values.contains_key(STEPS) {
        job.values.remove("train.epochs");
    }
    let has_size = [WEIGHTS, PRESET, CONFIG].iter().any(|key| job.values.contains_key(*key));
    if job.values.remove(OVERRIDES).is_some() && has_size {
        let problem =
            "--config_overrides: the program refuses it beside --model_name_or_path and --config_name; take it out, or them";
        job.problems.push(problem.to_owned());
    }
    if let Some(kind) = job.values.remove(TYPE).filter(|_| !has_size) {
        let problem = format!("--model_type: {kind} is not a size without --model_name_or_path or --config_name; give one of them");
        job.problems.push(problem);
    }
    job.values.entry(MICRO_BATCH.to_owned()).or_insert_with(|| 8.into());
    shape(job);
    own_tokenizer(job);
    rates(job);
    evaluations(job);
    checkpoints(job);
    dropout(job);
    loss_scaling(job);
    let is_large = job.values.get(WEIGHTS).and_then(toml::Value::as_str).and_then(published) == Some("gpt2-xl");
    if is_large && !job.values.contains_key("train.recompute") {
        job.note("--gradient_checkpointing", "with it, or with train.recompute = \"full\", GPT-2 XL needs half the memory");
    }
}

/// The numbers of a `config.json` that is not the weights' own, and a block that fits the model.
fn shape(job: &mut Job) {
    let found = job.model_config.as_ref().map(numbers);
    if let (Some(name), Some(found)) = (job.take_word(CONFIG), found) {
        match found {
            Ok(numbers) => numbers.into_iter().for_each(|(key, value)| job.set(key, value)),
            Err(problem) => job.problems.push(format!("--config_name: {name}: {problem}")),
        }
    }
    block(job);
}

/// Without a length the program takes the tokenizer's `model_max_length`, unless the model's context is shorter: then that, and
/// 1024 tokens at most. With one it takes no more than the tokenizer's (`block_size` in run_clm.py).
fn block(job: &mut Job) {
    let weights = job.values.get(WEIGHTS).and_then(toml::Value::as_str);
    let is_published = weights.is_some_and(|weights| published(weights).is_some());
    let usual =
        || (is_published && !job.values.contains_key(TOKENIZER) || job.values.contains_key(PUBLISHED_TOKENIZER)).then_some(1024.0);
    let of_weights = || job.model_config.as_ref().and_then(|config| Some(Shape::of_config(config).ok()?.context as f64));
    let (longest, context) = (job.longest_text.or_else(usual), job.number(CONTEXT).or_else(of_weights));
    let asked = job.number(BLOCK_SIZE);
    let taken = match (asked, longest, context) {
        (Some(asked), Some(longest), _) => asked.min(longest),
        (None, Some(longest), _) if longest <= context.unwrap_or(USUAL_BLOCK) => longest,
        (None, _, _) => context.unwrap_or(USUAL_BLOCK).min(USUAL_BLOCK),
        (Some(asked), None, _) => asked,
    };
    if asked.or(longest).or(context).is_none() {
        job.note(
            "--block_size",
            "the program takes the tokenizer's model_max_length, which is not known here; 1024 tokens are written",
        );
    }
    if asked.is_some_and(|asked| asked > taken) {
        let why = format!("the program takes no block that is longer than the tokenizer's model_max_length of {taken}");
        job.note("--block_size", &why);
    }
    if asked.unwrap_or(USUAL_BLOCK).to_bits() != taken.to_bits() {
        job.set(BLOCK_SIZE, taken as i64);
    }
    if let (Some(block), Some(context)) = (job.number(BLOCK_SIZE), context)
        && block > context
    {
        job.problems.push(format!("--block_size: a block of {block} tokens is longer than the model's context of {context}"));
    }
}

/// That of a job file that says none.
const USUAL_BLOCK: f64 = 1024.0;

/// That of every published size.
const USUAL_EPSILON: f64 = 1e-5;

fn numbers(config: &serde_json::Value) -> Result<Vec<(&'static str, toml::Value)>, String> {
    let shape = Shape::of_config(config)?;
    if (shape.layer_norm_epsilon - USUAL_EPSILON).abs() > f64::EPSILON {
        let found = shape.layer_norm_epsilon;
        return Err(format!("layer_norm_epsilon = {found}: a model that begins with random weights has {USUAL_EPSILON} here"));
    }
    let numbers =
        [("model.layers", shape.layers), ("model.heads", shape.heads), ("model.width", shape.width), (CONTEXT, shape.context)];
    let numbers = numbers.into_iter().map(|(key, number)| (key, toml::Value::from(number as i64)));
    let variant = (shape.variant == Variant::Fairseq).then(|| ("model.variant", "fairseq".into()));
    Ok(numbers.chain(variant).collect())
}

/// The tokenizer is that of the weights unless another one is named.
fn own_tokenizer(job: &mut Job) {
    let is_published = job.values.remove(PUBLISHED_TOKENIZER).is_some();
    let weights = job.values.get(WEIGHTS).and_then(toml::Value::as_str).filter(|weights| published(weights).is_none());
    if let Some(weights) = weights.filter(|_| !is_published && !job.values.contains_key(TOKENIZER)).map(str::to_owned) {
        job.set(TOKENIZER, weights);
    }
    if job.values.contains_key(TOKENIZER) {
        job.set("data.tokenizer.kind", "files");
    }
}

/// Sets the warm-up and the lowest rate once the schedule is known, and names the keys that the schedule lacks.
fn rates(job: &mut Job) {
    let [ratio, part] = [WARMUP_RATIO, LEAST_PART].map(|key| job.values.remove(key).as_ref().and_then(as_number));
    let [constant, needs_least, linear, restarts] =
        [WITHOUT_WARMUP, NEEDS_LEAST, LINEAR_DECAY, RESTARTS].map(|key| job.values.remove(key).is_some());
    let once = if restarts { 1.0 } else { 0.5 };
    let cycles = job.values.remove(CYCLES).as_ref().and_then(as_number);
    if cycles.is_some_and(|cycles| (cycles - once).abs() > f64::EPSILON) {
        job.problems.push(format!("--lr_scheduler_kwargs: num_cycles: a cosine falls once here; give {once}"));
    }
    let has_warmup = |job: &Job| job.values.get(WARMUP).is_some_and(|warmup| warmup.as_integer() != Some(0));
    if let Some(ratio) = ratio.filter(|ratio| *ratio > 0.0 && !has_warmup(job)) {
        job.set(WARMUP, if ratio < 1.0 { super::share(ratio) } else { Steps::Percent(100.0).to_string().into() });
    }
    let schedule = job.values.get("train.schedule").and_then(toml::Value::as_str).unwrap_or_default().to_owned();
    if constant && schedule == "constant" && has_warmup(job) {
        job.values.remove(WARMUP);
        job.note("--lr_scheduler_type", "constant has no warm-up, whatever else says so; with one it is constant_with_warmup");
    }
    if let Some(part) = part {
        job.set(LEAST_RATE, part * job.number("train.learning_rate").unwrap_or(5e-5));
    }
    if needs_least && schedule == "cosine" && !job.values.contains_key(LEAST_RATE) {
        job.problems
            .push("--lr_scheduler_type: cosine_with_min_lr needs min_lr or min_lr_rate in --lr_scheduler_kwargs".to_owned());
    }
    if schedule == "wsd" && !(linear && job.values.contains_key("train.decay_steps")) {
        job.problems.push(
            "--lr_scheduler_type: warmup_stable_decay falls along a cosine unless told otherwise, and linearly here; give \
             --lr_scheduler_kwargs with \"decay_type\": \"linear\" and num_decay_steps"
                .to_owned(),
        );
    }
}

fn dtype(job: &mut Job, value: &str) -> Result<(), String> {
    match value {
        "float32" => {}
        "auto" => job.note("--dtype", "weights are kept in float32 here, whatever type their file has"),
        _ => return Err(PRECISION.to_owned()),
    }
    Ok(())
}

/// The program clips where the number is above 0.
fn clip_norm(job: &mut Job, value: &str) -> Result<(), String> {
    job.set("train.clip_norm", number(value)?.max(0.0));
    Ok(())
}

fn data_seed(job: &mut Job, value: &str) -> Result<(), String> {
    job.set(DATA_SEED, whole(value)?);
    Ok(())
}

/// The program refuses both. Its flag counts before one of its launcher.
fn half(job: &mut Job, precision: &str) -> Result<(), String> {
    if job.values.get(HALF).is_some_and(|other| other.as_str() != Some(precision)) {
        return Err("the program takes one of fp16 and bf16; leave the other out".to_owned());
    }
    for key in [HALF, PRECISION_OF_JOB] {
        job.set(key, precision);
    }
    Ok(())
}

fn seeds(job: &mut Job) {
    let Some(order) = job.values.remove(DATA_SEED) else { return };
    let seed = job.values.get("train.seed").cloned().unwrap_or_else(|| 42.into());
    if order != seed {
        job.problems.push(format!(
            "--data_seed: {order} is not the seed {seed}: one seed (--seed) decides weights and order here; leave it out, or give both the same"
        ));
    }
}

/// The program evaluates on its way only when told to, and then as often as it logs unless told how often.
fn evaluations(job: &mut Job) {
    match job.take_word(EVAL_STRATEGY).as_deref() {
        Some("epoch") => return job.set(EVAL_EVERY, super::epochs(1.0)),
        Some("steps") => {
            if let Some(every) = job.values.get(EVAL_EVERY).or(job.values.get(LOG_EVERY)).cloned() {
                job.set(EVAL_EVERY, every);
            }
            return;
        }
        _ => {}
    }
    if job.values.remove(EVAL_EVERY).is_some() {
        job.note("--eval_steps", "without --eval_strategy steps the program evaluates at its end alone");
    }
    if job.values.contains_key("train.keep_best") {
        job.problems
            .push("--load_best_model_at_end: it needs evaluations on the way; give --eval_strategy steps or epoch".to_owned());
    }
}

/// How often checkpoints are made, and lines of the log.
fn checkpoints(job: &mut Job) {
    match job.take_word(SAVE_STRATEGY).as_deref() {
        Some("epoch") => job.set(CHECKPOINT_EVERY, super::epochs(1.0)),
        Some("no") => {
            job.set(CHECKPOINT_EVERY, 0);
            job.note(
                "--save_strategy",
                "a run always leaves a checkpoint of its end; one whose machine is lost begins from its start",
            );
        }
        Some("best") => match job.values.get(EVAL_EVERY).cloned() {
            Some(every) => {
                job.set(CHECKPOINT_EVERY, every);
                job.set("train.keep_best", true);
                job.note("--save_strategy", "there is a checkpoint for each evaluation, and the run ends with the best weights");
            }
            None => job.problems.push("--save_strategy: best needs evaluations on the way; give --eval_strategy".to_owned()),
        },
        _ => {}
    }
    match job.take_word(LOG_STRATEGY).as_deref() {
        Some("epoch") => job.set(LOG_EVERY, super::epochs(1.0)),
        Some("no") => job.note("--logging_strategy", ALWAYS_LOGGED),
        _ => {}
    }
}

/// The program trains with the rates of the model's configuration.
fn dropout(job: &mut Job) {
    let [embeddings, halves, attention] = DROPOUT.map(|name| {
        let overridden = job.values.remove(name).as_ref().and_then(as_number);
        let written = job.model_config.as_ref().and_then(|config| config[name].as_f64());
        overridden.or(written).unwrap_or(USUAL_DROPOUT)
    });
    if embeddings.to_bits() != halves.to_bits() {
        job.problems.push(format!(
            "embd_pdrop {embeddings} and resid_pdrop {halves}: one rate, train.dropout, is for both here; give --config_overrides for both"
        ));
    }
    job.set("train.dropout", halves);
    job.set("train.attention_dropout", attention);
    if halves > 0.0 || attention > 0.0 {
        job.note(
            "dropout",
            "the program drops what the model's config.json says (embd_pdrop, resid_pdrop, attn_pdrop), 0.1 when that is not here or does \
             not say; for none set train.dropout and train.attention_dropout to 0",
        );
    }
}

fn loss_scaling(job: &mut Job) {
    if job.values.get(PRECISION_OF_JOB).and_then(toml::Value::as_str) != Some("fp16") {
        job.remove_table("train.loss_scaling.");
    } else if job.deepspeed.is_none() {
        job.note("train.loss_scaling", "as in the program, but between 1 and 16,777,216");
    }
}
