//! `fairseq-train` on language models.

use super::{
    Flag, Job,
    Meaning::*,
    NAMED_BY_JOB, ONE_PROCESS, PRECISION, Program,
    Setting::{Number as N, Whole as I, Word as W},
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
        ("train.log_every", I(100)),
        ("data.format", W("fairseq")),
    ]],
    positional: Some(data),
    flags: &[FLAGS],
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

const ACTIVATION_DROPOUT: &str = "nothing is dropped inside the network of a block here; give 0";
const ONE_PERIOD: &str = "a cosine has one period here, from the end of the warm-up to the last update";

const FLAGS: &[Flag] = &[
    Flag { names: &["task"], meaning: Choice(&[("language_modeling", &[])]) },
    Flag {
        names: &["arch", "a"],
        meaning: Choice(&[("transformer_lm_gpt", &[("model.variant", W("fairseq")), ("model.preset", W("gpt2"))])]),
    },
    Flag { names: &["criterion"], meaning: Choice(&[("cross_entropy", &[])]) },
    Flag { names: &["batch_size", "max_sentences"], meaning: Whole("train.micro_batch") },
    Flag { names: &["max_tokens"], meaning: Refused("a micro-batch has a number of sequences here; give --batch-size") },
    Flag { names: &["update_freq"], meaning: Whole("train.gradient_accumulation") },
    Flag { names: &["tokens_per_sample"], meaning: Whole("train.block_size") },
    Flag { names: &["sample_break_mode"], meaning: Choice(&[("none", &[])]) },
    Flag { names: &["max_update"], meaning: Special(max_update) },
    Flag { names: &["max_epoch"], meaning: Special(max_epoch) },
    Flag { names: &["optimizer"], meaning: Choice(&[("adam", &[])]) },
    Flag { names: &["adam_betas"], meaning: Special(betas) },
    Flag { names: &["adam_eps"], meaning: Number("train.epsilon") },
    Flag { names: &["weight_decay"], meaning: Number("train.weight_decay") },
    Flag { names: &["clip_norm"], meaning: Number("train.clip_norm") },
    Flag { names: &["lr"], meaning: Number("train.learning_rate") },
    Flag {
        names: &["lr_scheduler"],
        meaning: Choice(&[("cosine", &[("train.schedule", W("cosine"))]), ("fixed", &[("train.schedule", W("constant"))])]),
    },
    Flag { names: &["warmup_updates"], meaning: Whole("train.warmup_steps") },
    Flag { names: &["warmup_init_lr"], meaning: Number("train.warmup_learning_rate") },
    Flag { names: &["min_lr"], meaning: Number("train.min_learning_rate") },
    Flag { names: &["stop_min_lr"], meaning: Refused("a run ends by its number of updates here") },
    Flag { names: &["lr_period_updates"], meaning: Special(period) },
    Flag { names: &["lr_shrink"], meaning: Nothing(ONE_PERIOD) },
    Flag { names: &["t_mult"], meaning: Must(1.0, ONE_PERIOD) },
    Flag { names: &["dropout"], meaning: Number("train.dropout") },
    Flag { names: &["attention_dropout"], meaning: Number("train.attention_dropout") },
    Flag { names: &["activation_dropout"], meaning: Must(0.0, ACTIVATION_DROPOUT) },
    Flag { names: &["seed"], meaning: Whole("train.seed") },
    Flag { names: &["save_interval_updates"], meaning: Whole("train.checkpoint_every") },
    Flag { names: &["keep_interval_updates"], meaning: Special(super::keep) },
    Flag { names: &["keep_best_checkpoints"], meaning: Special(keep_best) },
    Flag { names: &["best_checkpoint_metric"], meaning: Choice(&[("loss", &[]), ("ppl", &[])]) },
    Flag { names: &["maximize_best_checkpoint_metric"], meaning: NoSwitch("the best weights are those of the lowest loss") },
    Flag { names: &["patience"], meaning: Special(patience) },
    Flag { names: &["validate_interval_updates"], meaning: Whole("train.eval_every") },
    Flag { names: &["log_interval"], meaning: Whole("train.log_every") },
    Flag { names: &["log_format", "save_interval", "keep_last_epochs"], meaning: Nothing("log and checkpoints count steps here") },
    Flag { names: &["save_dir", "tensorboard_logdir"], meaning: Nothing(NAMED_BY_JOB) },
    Flag { names: &["no_epoch_checkpoints", "no_progress_bar"], meaning: Switch("log and checkpoints count steps here") },
    Flag { names: &["num_workers"], meaning: Nothing("no batch is waited for") },
    Flag { names: &["ddp_backend"], meaning: Nothing(ONE_PROCESS) },
    Flag { names: &["distributed_world_size"], meaning: Must(1.0, super::ONE_DEVICE) },
    Flag { names: &["zero_sharding"], meaning: Refused("partitioned optimizer states (ZeRO) do not exist here yet") },
    Flag { names: &["checkpoint_activations"], meaning: SwitchTo(&[("train.recompute", W("full"))]) },
    Flag { names: &["share_decoder_input_output_embed"], meaning: Switch("GPT-2's output head is always its token embedding") },
    Flag { names: &["hpu"], meaning: NoSwitch("Gaudi accelerators are not known here") },
    Flag { names: &["fp16", "bf16", "memory_efficient_fp16"], meaning: NoSwitch(PRECISION) },
];

/// The directory that `fairseq-preprocess` wrote.
#[allow(clippy::unnecessary_wraps)] // One of many that may fail.
fn data(job: &mut Job, directory: &str) -> Result<(), String> {
    let file = |name| vec![toml::Value::from(format!("{}/{name}.bin", directory.trim_end_matches('/')))];
    job.set("data.train", file("train"));
    job.set("data.validation", file("valid"));
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

/// Judged when warm-up and length are known.
fn period(job: &mut Job, value: &str) -> Result<(), String> {
    job.set(PERIOD, super::number(value)?);
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

/// Not a setting: it is taken out again.
const PERIOD: &str = "period";

fn finish(job: &mut Job) {
    let is_refused = |problem: &String| ["--arch:", "--a:"].iter().any(|flag| problem.starts_with(flag));
    if !job.values.contains_key("model.variant") && !job.problems.iter().any(is_refused) {
        job.problems.push("--arch: fairseq needs it; give transformer_lm_gpt".to_owned());
    }
    if job.values.contains_key("train.steps") && job.values.contains_key("train.epochs") {
        job.problems.push("--max-epoch: a run ends by updates or by epochs here; give --max-update or --max-epoch".to_owned());
    }
    judge_period(job);
    validate_with_checkpoints(job);
    job.note_checkpoints("--keep-interval-updates");
}

fn judge_period(job: &mut Job) {
    let Some(period) = job.values.remove(PERIOD).and_then(|period| period.as_float()) else { return };
    let number = |key: &str| job.number(key).unwrap_or(0.0);
    if (number("train.steps") - number("train.warmup_steps") - period).abs() > 0.5 {
        job.problems.push(format!("--lr-period-updates: {ONE_PERIOD}; give max-update less warmup-updates"));
    }
}

/// fairseq validates whenever it saves.
fn validate_with_checkpoints(job: &mut Job) {
    const EVERY: &str = "train.eval_every";
    if let Some(every) = job.values.get("train.checkpoint_every").filter(|_| !job.values.contains_key(EVERY)).cloned() {
        job.set(EVERY, every);
    }
    for (flag, key) in [("--patience", "train.early_stopping_patience"), ("--keep-best-checkpoints", "train.keep_best")] {
        if job.values.contains_key(key) && !job.values.contains_key(EVERY) {
            job.problems.push(format!("{flag}: evaluations count updates here; give --validate-interval-updates"));
        }
    }
}
