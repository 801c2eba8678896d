//! `fairseq-train` on language models.

mod flags;

use flags::{FLAGS, OF_ITS_OWN, OF_THE_MODEL, OF_THE_SCHEDULE};

use super::{
    BLOCK_SIZE, CHECKPOINT_EVERY, CONTEXT, EVAL_EVERY, Job, LOG_EVERY, MICRO_BATCH, Program, STEPS,
    Setting::{self, Number as N, Whole as I, Word as W},
    as_number,
};

pub(super) const TRAIN: Program = Program {
    names: &["fairseq-train"],
    told_by: None,
    defaults: &[&[
        ("train.compat", W("fairseq")),
        ("train.weight_decay_on", W("all")),
        ("train.weight_decay", N(0.0)),
        ("train.seed", I(1)),
        ("train.schedule", W("constant")),
        ("train.clip_norm", N(0.0)),
        ("train.dropout", N(0.1)),
        ("train.attention_dropout", N(0.1)),
        (LOG_EVERY, I(100)),
        // fairseq validates and saves after each epoch.
        (VALIDATE_EPOCHS, N(1.0)),
        (SAVE_EPOCHS, N(1.0)),
        ("data.format", W("fairseq")),
    ]],
    positional: Some(data),
    abbreviates: false,
    flags: &[FLAGS, OF_THE_MODEL, OF_THE_SCHEDULE, OF_ITS_OWN],
    finish: Some(finish),
    ways: &[
        ("documents", "the </s> that fairseq puts after each line becomes an end of text"),
        ("blocks", "fairseq also trains on the last block of the text, which is not full; here it is left out"),
        (
            "accumulation",
            "the last update of an epoch has what is left in fairseq; here updates run on from epoch to epoch and are all of one size",
        ),
    ],
    instead: None,
};

pub(super) const TRAIN_SCRIPT: Program = Program { names: &["train.py"], told_by: Some("task"), ..TRAIN };

const ONE_PERIOD: &str = "a cosine has one period here, from the end of the warm-up to the last update";
const UNSHRUNK: &str = "no schedule here lowers the learning rate from one period or epoch to the next: a cosine has one period";

const INITIAL_SCALE: &str = "train.loss_scaling.initial";
const LEAST_SCALE: &str = "train.loss_scaling.minimum";

// What stands in a job only until all flags are known: no settings.
const DATA: &str = "directory";
/// Directories of which each is an epoch of fairseq's.
const SHARDS: &str = "shards";
const TRAIN_SUBSET: &str = "train_subset";
const VALID_SUBSET: &str = "valid_subset";
const UNVALIDATED: &str = "unvalidated";
const UNSAVED: &str = "unsaved";
const MAX_TOKENS: &str = "max_tokens";
const MULTIPLE: &str = "multiple";
const VALIDATE_EPOCHS: &str = "validate_epochs";
const SAVE_EPOCHS: &str = "save_epochs";
const NETWORK: &str = "network";
const INPUT: &str = "input";
const OUTPUT: &str = "output";
const SHARED: &str = "shared";
const PERIOD: &str = "period";
const TOTAL: &str = "total";

/// Sizes of the one kind that exists here: a norm before each half, GELU, sinusoidal positions, a network of four widths.
const ARCHITECTURES: [(&str, &[(&str, Setting)]); 6] = [
    ("transformer_lm_gpt", &[("model.preset", W("gpt2"))]),
    ("transformer_lm_gpt2_small", &[("model.preset", W("gpt2-medium"))]),
    ("transformer_lm_gpt2_medium", &[("model.preset", W("gpt2-large"))]),
    ("transformer_lm_gpt2_big", &[("model.preset", W("gpt2-xl"))]),
    ("transformer_lm_gpt2_big_wide", &[("model.layers", I(24)), ("model.heads", I(32)), ("model.width", I(2048))]),
    ("transformer_lm_gpt2_bigger", &[("model.layers", I(48)), ("model.heads", I(32)), ("model.width", I(2048))]),
];

/// Single numbers override it, wherever they stand.
fn arch(job: &mut Job, name: &str) -> Result<(), String> {
    let Some((_, numbers)) = ARCHITECTURES.iter().find(|(known, _)| *known == name) else {
        let known = ARCHITECTURES.map(|(known, _)| known).join(", ");
        return Err(format!(
            "`{name}` does not exist here: blocks have GELU, sinusoidal positions and a network of four widths, as those of {known}"
        ));
    };
    job.set("model.variant", "fairseq");
    for (key, number) in *numbers {
        job.values.entry((*key).to_owned()).or_insert_with(|| (*number).into());
    }
    Ok(())
}

/// The directory that `fairseq-preprocess` wrote.
fn data(job: &mut Job, directory: &str) -> Result<(), String> {
    if let Some(first) = job.values.get(DATA).and_then(toml::Value::as_str) {
        return Err(format!(
            "fairseq has one word without a flag, its data, and that is {first}; of several directories write {first}:{directory}"
        ));
    }
    job.set(DATA, directory);
    Ok(())
}

/// One number, alone or as a list, as newer versions write it; there may be one for each epoch.
fn one<'v>(value: &'v str, of_epochs: &str) -> Result<&'v str, String> {
    let value = value.trim_matches(['[', ']']);
    if value.contains(',') { Err(format!("{of_epochs} is the same in all epochs here; give one number")) } else { Ok(value) }
}

fn update_freq(job: &mut Job, value: &str) -> Result<(), String> {
    job.set(super::ACCUMULATION, super::whole(one(value, "the accumulation")?)?);
    Ok(())
}

fn rate(job: &mut Job, value: &str) -> Result<(), String> {
    job.set("train.learning_rate", super::number(one(value, "the peak of the learning rate")?)?);
    Ok(())
}

/// 0 leaves it to the epochs, here and below.
fn save_updates(job: &mut Job, value: &str) -> Result<(), String> {
    job.set_if_positive(CHECKPOINT_EVERY, super::whole(value)?);
    Ok(())
}

fn validate_updates(job: &mut Job, value: &str) -> Result<(), String> {
    job.set_if_positive(EVAL_EVERY, super::whole(value)?);
    Ok(())
}

/// `(0.9, 0.95)`.
fn betas(job: &mut Job, value: &str) -> Result<(), String> {
    let numbers = value.trim_matches(['(', ')', '[', ']']).split(',').map(|part| super::number(part.trim()));
    match numbers.collect::<Result<Vec<f64>, String>>()?[..] {
        [first, second] => (job.set_beta(0, first), job.set_beta(1, second)),
        _ => return Err(format!("`{value}` is not a pair of numbers")),
    };
    Ok(())
}

/// The best of one run's weights are kept; nothing, or less, stands for none.
fn keep_best(job: &mut Job, value: &str) -> Result<(), String> {
    match super::whole(value)? {
        1 => job.set("train.keep_best", true),
        ..=0 => {}
        _ => return Err("the weights of one evaluation, the best, are kept here; give 1".to_owned()),
    }
    Ok(())
}

/// Nothing, or less, stands for a run that never stops early.
fn patience(job: &mut Job, value: &str) -> Result<(), String> {
    let evaluations = super::whole(value)?;
    if evaluations > 0 {
        job.set("train.early_stopping_patience", evaluations);
        job.note("--patience", "a run that stops early ends with the weights of its best evaluation");
    }
    Ok(())
}

/// 0 stands for no end, here and below.
fn max_update(job: &mut Job, value: &str) -> Result<(), String> {
    job.set_if_positive("train.steps", super::whole(value)?);
    Ok(())
}

fn max_epoch(job: &mut Job, value: &str) -> Result<(), String> {
    job.set_if_positive("train.epochs", super::number(value)?);
    Ok(())
}

fn finish(job: &mut Job) {
    let is_refused = |problem: &String| ["--arch:", "--a:"].iter().any(|flag| problem.starts_with(flag));
    if !job.values.contains_key("model.variant") && !job.problems.iter().any(is_refused) {
        job.problems.push("--arch: fairseq needs it; give transformer_lm_gpt".to_owned());
    }
    if job.values.contains_key(STEPS) && job.values.contains_key("train.epochs") {
        job.problems.push("--max-epoch: a run ends by updates or by epochs here; give --max-update or --max-epoch".to_owned());
    }
    files(job);
    model(job);
    sequences(job);
    defaults(job);
    schedule(job);
    intervals(job);
    if job.values.contains_key("train.precision") {
        job.values.entry(INITIAL_SCALE.to_owned()).or_insert_with(|| 128.0.into());
        job.values.entry(LEAST_SCALE.to_owned()).or_insert_with(|| 1e-4.into());
    } else {
        job.remove_table("train.loss_scaling.");
    }
    job.note_checkpoints("--keep-interval-updates");
}

/// Those of fairseq's `dataclass/configs.py` that a person would not expect.
fn defaults(job: &mut Job) {
    if !job.values.contains_key("train.learning_rate") {
        job.set("train.learning_rate", 0.25);
        job.note("--lr", "without it fairseq trains at 0.25, which is far too much for most models");
    }
    if !job.values.contains_key(STEPS) && !job.values.contains_key("train.epochs") {
        job.note("--max-update", "without it and --max-epoch fairseq trains until it is stopped; here a run has one epoch");
    }
}

fn files(job: &mut Job) {
    let [train, valid] = [(TRAIN_SUBSET, "train"), (VALID_SUBSET, "valid")]
        .map(|(key, usual)| job.take_word(key).unwrap_or_else(|| usual.to_owned()));
    let is_validated = job.values.remove(UNVALIDATED).is_none();
    if valid.contains(',') {
        job.problems.push(format!("--valid-subset: {valid} are evaluated one by one there, and one split is here; give one"));
    }
    let Some(data) = job.take_word(DATA) else {
        job.problems.push("the command names no data: give the directory that fairseq-preprocess made".to_owned());
        return;
    };
    let shards: Vec<&str> = data.split(':').filter(|shard| !shard.is_empty()).map(|shard| shard.trim_end_matches('/')).collect();
    let file = |shard: &&str, name: &str| toml::Value::from(format!("{shard}/{name}.bin"));
    job.set("data.train", shards.iter().map(|shard| file(shard, &train)).collect::<Vec<_>>());
    if is_validated {
        job.set("data.validation", shards.iter().take(1).map(|shard| file(shard, &valid)).collect::<Vec<_>>());
    }
    if shards.len() > 1 {
        let number = shards.len() as f64;
        if let Some(epochs) = job.number("train.epochs") {
            job.set("train.epochs", epochs / number);
        }
        job.set(SHARDS, number);
        let note = format!(
            "an epoch here is {number} of fairseq's, which reads one of the directories in each: epochs are divided by {number}"
        );
        job.note("data", &note);
    }
}

/// The shape has the relations that it has here, and a context for the block: fairseq takes the block for one.
fn model(job: &mut Job) {
    let [network, input, output] = [NETWORK, INPUT, OUTPUT].map(|key| job.values.remove(key).as_ref().and_then(as_number));
    let of_preset = [("gpt2", 768.0), ("gpt2-medium", 1024.0), ("gpt2-large", 1280.0), ("gpt2-xl", 1600.0)];
    let preset = job.values.get("model.preset").and_then(toml::Value::as_str);
    let width = job.number("model.width").or(of_preset.iter().find(|(name, _)| Some(*name) == preset).map(|(_, width)| *width));
    for (flag, found, times) in
        [("--decoder-ffn-embed-dim", network, 4.0), ("--decoder-input-dim", input, 1.0), ("--decoder-output-dim", output, 1.0)]
    {
        let Some((found, width)) = found.zip(width).filter(|(found, width)| (found - times * width).abs() > 0.5) else { continue };
        job.problems.push(format!("{flag}: {found} is not {times} times the width of {width}, as it is here"));
    }
    if job.values.remove(SHARED).is_none() {
        job.note("--share-decoder-input-output-embed", "without it fairseq learns an output head; here it is the token embedding");
    }
    if let Some(block) = job.number(BLOCK_SIZE).filter(|block| *block > 1024.0 && !job.values.contains_key(CONTEXT)) {
        job.set(CONTEXT, block as i64);
    }
}

/// How many sequences so many tokens are: fairseq takes a multiple of eight, or less than eight.
fn sequences(job: &mut Job) {
    let [tokens, multiple] = [MAX_TOKENS, MULTIPLE].map(|key| job.values.remove(key).and_then(|value| value.as_integer()));
    let Some(tokens) = tokens else { return };
    let block = job.number(BLOCK_SIZE).unwrap_or(1024.0) as i64;
    let multiple = multiple.unwrap_or(8).max(1);
    let fit = tokens / block.max(1);
    let fit = (fit / multiple * multiple).max(fit % multiple);
    if fit == 0 {
        job.problems.push(format!("--max-tokens: {tokens} are less than one block of {block}"));
        return;
    }
    let most = job.number(MICRO_BATCH).map_or(fit, |most| fit.min(most as i64));
    job.set(MICRO_BATCH, most);
    job.note("--max-tokens", &format!("{tokens} tokens at once are {most} blocks of {block}"));
}

fn schedule(job: &mut Job) {
    let [period, total] = [PERIOD, TOTAL].map(|key| job.values.remove(key).as_ref().and_then(as_number));
    let number = |key: &str| job.number(key).unwrap_or(0.0);
    let (steps, warmup) = (number(STEPS), number("train.warmup_steps"));
    if period.is_some_and(|period| period > 0.0 && (steps - warmup - period).abs() > 0.5) {
        job.problems.push(format!("--lr-period-updates: {ONE_PERIOD}; give max-update less warmup-updates"));
    }
    if let Some(total) = total.filter(|total| (steps - total).abs() > 0.5) {
        job.problems.push(format!("--total-num-update: the rate falls until the last update here; give max-update, not {total}"));
    }
    // Some give -1, fairseq's own default.
    if job.number("train.warmup_learning_rate").is_some_and(|rate| rate < 0.0) {
        job.values.remove("train.warmup_learning_rate");
    }
}

/// fairseq validates and saves after so many epochs, and after so many updates, and validates whenever it saves. Here there is one
/// interval for each.
fn intervals(job: &mut Job) {
    let [validate, save] = [VALIDATE_EPOCHS, SAVE_EPOCHS].map(|key| job.values.remove(key).as_ref().and_then(as_number));
    let shards = job.values.remove(SHARDS).as_ref().and_then(as_number).unwrap_or(1.0);
    let after = |number: Option<f64>| number.filter(|number| *number >= 1.0).map(|number| super::epochs(number / shards));
    if job.values.remove(UNSAVED).is_some() {
        job.set(CHECKPOINT_EVERY, 0);
        job.note("--no-save", "a run always leaves a checkpoint of its end; one whose machine is lost begins from its start");
    }
    let by_updates = job.values.get(CHECKPOINT_EVERY).filter(|every| every.as_integer() != Some(0)).cloned();
    let chosen = job.values.get(EVAL_EVERY).cloned().or(by_updates).or(after(validate));
    if let Some(every) = chosen {
        job.set(EVAL_EVERY, every);
    }
    if let Some(every) = after(save).filter(|_| !job.values.contains_key(CHECKPOINT_EVERY)) {
        job.set(CHECKPOINT_EVERY, every);
    }
    if !job.values.contains_key("data.validation") {
        job.values.remove(EVAL_EVERY);
    }
    for (flag, key) in [("--patience", "train.early_stopping_patience"), ("--keep-best-checkpoints", "train.keep_best")] {
        if job.values.contains_key(key) && !job.values.contains_key(EVAL_EVERY) {
            job.problems.push(format!("{flag}: it needs validations on the way"));
        }
    }
}
