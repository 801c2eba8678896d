//! `run_clm.py` of transformers, and `run_language_modeling.py`, which was its name until 2020.

use super::{
    ALL_CORES, Flag, Job,
    Meaning::*,
    NAMED_BY_JOB, ONE_PROCESS, PRECISION, Program,
    Setting::{self, Number as N, Whole as I, Word as W},
    WEIGHTS, as_number,
};
use crate::job::wording::suggest;

pub(super) const RUN_CLM: Program = Program {
    names: &["run_clm.py"],
    told_by: None,
    defaults: &[DEFAULTS],
    positional: None,
    flags: &[FLAGS],
    finish: Some(finish),
    ways: &[
        BLOCKS,
        ACCUMULATION,
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
    defaults: &[DEFAULTS, &[("train.compat", W("transformers-2020"))]],
    ways: &[
        BLOCKS,
        ACCUMULATION,
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

const BLOCKS: (&str, &str) =
    ("blocks", "the first token of a block is never predicted by the program; here the last token of the block before predicts it");
const ACCUMULATION: (&str, &str) = (
    "accumulation",
    "what is left of an epoch and fills no step goes into the next epoch's first step in old versions of the program, and is a \
     smaller step in new versions; here steps continue across epochs, and all have one size",
);

const DEFAULTS: &[(&str, Setting)] = &[
    ("train.weight_decay", N(0.0)),
    ("train.schedule", W("linear")),
    ("train.epochs", N(3.0)),
    ("train.micro_batch", I(8)),
    ("train.log_every", I(500)),
    // Its tokenizer makes the token of what is called like one.
    ("data.end_of_text", W("split")),
    ("train.checkpoint_every", I(500)),
    // As torch's GradScaler and apex do it.
    ("train.loss_scaling.growth_interval", I(2000)),
    ("train.loss_scaling.hysteresis", I(1)),
];

const GPT2_ONLY: &str = "only GPT-2 can be trained here";
const RUNS_ALWAYS: &str = "a job always does both";
const OWN_STORE: &str = "a dataset is prepared again only when its text changes";
const TOKEN_WEIGHTED: &str = "evaluation reads as many sequences at once as training; the perplexity here does not depend on it";
const OWN_ENGINE: &str = "the trainer has its own engine";
const NO_HUB: &str = "nothing is fetched from a hub; name files";

const FLAGS: &[Flag] = &[
    Flag { names: &["model_name_or_path"], meaning: Special(model) },
    Flag { names: &["config_name"], meaning: Special(preset) },
    Flag { names: &["model_type"], meaning: Special(model_type) },
    Flag {
        names: &["tokenizer_name"],
        meaning: Choice(&[("gpt2", &[]), ("gpt2-medium", &[]), ("gpt2-large", &[]), ("gpt2-xl", &[])]),
    },
    Flag { names: &["train_file", "train_data_file"], meaning: Path("data.train") },
    Flag { names: &["validation_file", "eval_data_file"], meaning: Path("data.validation") },
    Flag { names: &["validation_split_percentage"], meaning: Special(percentage) },
    Flag { names: &["do_train", "do_eval"], meaning: Switch(RUNS_ALWAYS) },
    Flag { names: &["evaluate_during_training"], meaning: SwitchTo(&[(STRATEGY, W("steps"))]) },
    Flag { names: &["output_dir", "logging_dir", "cache_dir", "run_name"], meaning: Nothing(NAMED_BY_JOB) },
    Flag { names: &["overwrite_output_dir", "should_continue"], meaning: Switch(NAMED_BY_JOB) },
    Flag { names: &["overwrite_cache"], meaning: Switch(OWN_STORE) },
    Flag { names: &["per_device_train_batch_size", "per_gpu_train_batch_size"], meaning: Whole("train.micro_batch") },
    Flag {
        names: &["per_device_eval_batch_size", "per_gpu_eval_batch_size", "eval_accumulation_steps"],
        meaning: Nothing(TOKEN_WEIGHTED),
    },
    Flag { names: &["gradient_accumulation_steps"], meaning: Whole("train.gradient_accumulation") },
    Flag { names: &["block_size"], meaning: Special(block_size) },
    Flag { names: &["learning_rate"], meaning: Number("train.learning_rate") },
    Flag { names: &["weight_decay"], meaning: Number("train.weight_decay") },
    Flag { names: &["adam_beta1"], meaning: Beta(0) },
    Flag { names: &["adam_beta2"], meaning: Beta(1) },
    Flag { names: &["adam_epsilon"], meaning: Number("train.epsilon") },
    Flag { names: &["max_grad_norm"], meaning: Number("train.clip_norm") },
    Flag { names: &["num_train_epochs"], meaning: Number("train.epochs") },
    Flag { names: &["max_steps"], meaning: Special(max_steps) },
    Flag { names: &["warmup_steps"], meaning: Whole("train.warmup_steps") },
    Flag { names: &["warmup_ratio"], meaning: Refused("a warm-up has a number of steps here; give --warmup_steps") },
    Flag {
        names: &["lr_scheduler_type"],
        meaning: Choice(&[
            ("linear", &[("train.schedule", W("linear"))]),
            ("cosine", &[("train.schedule", W("cosine"))]),
            ("polynomial", &[("train.schedule", W("polynomial")), ("train.min_learning_rate", N(1e-7))]),
            ("constant", &[("train.schedule", W("constant"))]),
            ("constant_with_warmup", &[("train.schedule", W("constant"))]),
        ]),
    },
    Flag {
        names: &["optim"],
        meaning: Choice(&[
            ("adamw_torch", &[]),
            ("adamw_torch_fused", &[]),
            ("adamw_hf", &[]),
            ("adafactor", &[("train.optimizer", W("adafactor"))]),
        ]),
    },
    Flag { names: &["adafactor"], meaning: NoSwitch("write --optim adafactor") },
    Flag { names: &["seed"], meaning: Whole("train.seed") },
    Flag { names: &["data_seed"], meaning: Refused("one seed is for weights and order here; give --seed") },
    Flag { names: &["logging_steps"], meaning: Whole("train.log_every") },
    Flag { names: &["save_steps"], meaning: Whole("train.checkpoint_every") },
    Flag { names: &["save_total_limit"], meaning: Special(super::keep) },
    Flag { names: &["eval_steps"], meaning: Special(eval_steps) },
    Flag {
        names: &["evaluation_strategy", "eval_strategy"],
        meaning: Choice(&[("steps", &[(STRATEGY, W("steps"))]), ("no", &[(STRATEGY, W("no"))])]),
    },
    Flag { names: &["logging_strategy", "save_strategy"], meaning: Choice(&[("steps", &[])]) },
    Flag { names: &["logging_first_step"], meaning: Switch("the first step is always logged") },
    Flag { names: &["max_eval_samples"], meaning: Whole("train.eval_sequences") },
    Flag { names: &["max_train_samples"], meaning: Refused("give data.limit_bytes in the job file instead") },
    Flag { names: &["bf16"], meaning: SwitchTo(&[("train.precision", W("bf16"))]) },
    Flag { names: &["fp16"], meaning: SwitchTo(&[("train.precision", W("fp16"))]) },
    Flag { names: &["fp16_full_eval", "bf16_full_eval"], meaning: NoSwitch(PRECISION) },
    Flag { names: &["fp16_opt_level"], meaning: Choice(&[("O1", &[])]) },
    Flag {
        names: &["fp16_backend", "half_precision_backend"],
        meaning: Choice(&[("auto", &[]), ("amp", &[]), ("cuda_amp", &[]), ("apex", &[])]),
    },
    Flag { names: &["torch_dtype", "dtype"], meaning: Refused(PRECISION) },
    Flag { names: &["tf32"], meaning: Choice(&[("true", &[("train.tf32", Setting::Yes)]), ("false", &[])]) },
    Flag { names: &["gradient_checkpointing"], meaning: SwitchTo(&[("train.recompute", W("full"))]) },
    Flag { names: &["deepspeed"], meaning: Special(|_, _| Ok(())) },
    Flag { names: &["dataset_name", "dataset_config_name"], meaning: Refused(NO_HUB) },
    Flag { names: &["streaming"], meaning: Switch("a dataset is always read from disk as it is needed") },
    Flag { names: &["preprocessing_num_workers", "dataloader_num_workers"], meaning: Nothing(ALL_CORES) },
    Flag { names: &["report_to"], meaning: Nothing("event files for TensorBoard are always written") },
    Flag { names: &["ort_trainer", "use_ort"], meaning: SpecialSwitch(onnx_runtime) },
    Flag { names: &["torch_compile", "do_eval_in_torch"], meaning: Switch(OWN_ENGINE) },
    Flag { names: &["local_rank", "ddp_timeout", "ddp_find_unused_parameters"], meaning: Nothing(ONE_PROCESS) },
    Flag { names: &["line_by_line"], meaning: NoSwitch("lines are not cut to blocks of their own here; text is one stream") },
    Flag { names: &["mlm"], meaning: NoSwitch(GPT2_ONLY) },
    Flag { names: &["mlm_probability"], meaning: Nothing("only masked models have one") },
    Flag { names: &["config_overrides"], meaning: Special(overrides) },
    Flag { names: &["keep_linebreaks"], meaning: Choice(&[("true", &[])]) },
    Flag { names: &["load_best_model_at_end"], meaning: SwitchTo(&[("train.keep_best", Setting::Yes)]) },
    Flag { names: &["metric_for_best_model"], meaning: Choice(&[("loss", &[]), ("eval_loss", &[])]) },
    Flag { names: &["greater_is_better"], meaning: NoSwitch("the best weights are those of the lowest loss") },
    Flag { names: &["push_to_hub"], meaning: NoSwitch(NO_HUB) },
    Flag { names: &["low_cpu_mem_usage", "disable_tqdm", "trust_remote_code", "use_fast_tokenizer"], meaning: Switch(OWN_ENGINE) },
];

/// Not a setting: it is taken out again.
const STRATEGY: &str = "strategy";
/// A type that is named as a size; taken out again.
const TYPE: &str = "type";
const EVAL_EVERY: &str = "train.eval_every";
const STEPS: &str = "train.steps";
const PRESET: &str = "model.preset";

const SIZES: [&str; 4] = ["gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl"];

#[allow(clippy::unnecessary_wraps)] // One of many that may fail.
fn model(job: &mut Job, name: &str) -> Result<(), String> {
    if SIZES.contains(&name) {
        job.note("--model_name_or_path", &format!("{NO_HUB}: put the published weights into the directory {name}"));
    }
    job.set(WEIGHTS, name);
    Ok(())
}

/// The preset of a model that begins with random weights; beside existing weights it says nothing new.
fn preset(job: &mut Job, name: &str) -> Result<(), String> {
    if !SIZES.contains(&name) {
        return Err(format!("`{name}` is not a published GPT-2; write the numbers into [model] of the job file"));
    }
    job.set(PRESET, name);
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

fn percentage(job: &mut Job, value: &str) -> Result<(), String> {
    job.set("data.validation_fraction", super::number(value)? / 100.0);
    Ok(())
}

/// `-1` stands for the model's own context, which is our default for GPT-2.
fn block_size(job: &mut Job, value: &str) -> Result<(), String> {
    let size = super::whole(value)?;
    if size > 0 {
        job.set("train.block_size", size);
    }
    Ok(())
}

/// `-1` leaves it to the epochs.
fn max_steps(job: &mut Job, value: &str) -> Result<(), String> {
    job.set_if_positive(STEPS, super::whole(value)?);
    Ok(())
}

/// `0` leaves it to `--logging_steps`.
fn eval_steps(job: &mut Job, value: &str) -> Result<(), String> {
    job.set_if_positive(EVAL_EVERY, super::whole(value)?);
    Ok(())
}

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
    [("n_embd", "model.width"), ("n_layer", "model.layers"), ("n_head", "model.heads"), ("n_positions", "model.context")];

/// `n_layer=6,resid_pdrop=0`.
fn overrides(job: &mut Job, value: &str) -> Result<(), String> {
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

fn finish(job: &mut Job) {
    if job.values.contains_key(STEPS) {
        job.values.remove("train.epochs");
    }
    let has_size = [WEIGHTS, PRESET].iter().any(|key| job.values.contains_key(*key));
    if let Some(kind) = job.values.remove(TYPE).filter(|_| !has_size) {
        let problem = format!("--model_type: {kind} is not a size without --model_name_or_path or --config_name; give one of them");
        job.problems.push(problem);
    }
    evaluations(job);
    dropout(job);
    loss_scaling(job);
    let is_large = job.values.get(WEIGHTS).and_then(toml::Value::as_str) == Some("gpt2-xl");
    if is_large && !job.values.contains_key("train.recompute") {
        job.note("--gradient_checkpointing", "with it, or with train.recompute = \"full\", GPT-2 XL needs half the memory");
    }
    job.note_checkpoints("--save_total_limit");
}

/// The program evaluates on its way only when told to, and then as often as it logs unless told how often.
fn evaluations(job: &mut Job) {
    if job.values.remove(STRATEGY) == Some("steps".into()) {
        if let Some(every) = job.values.get(EVAL_EVERY).or(job.values.get("train.log_every")).cloned() {
            job.set(EVAL_EVERY, every);
        }
        return;
    }
    if job.values.remove(EVAL_EVERY).is_some() {
        job.note("--eval_steps", "without --eval_strategy steps the program evaluates at its end alone");
    }
    if job.values.contains_key("train.keep_best") {
        job.problems.push("--load_best_model_at_end: it needs evaluations on the way; give --eval_strategy steps".to_owned());
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
    if job.values.get("train.precision").and_then(toml::Value::as_str) != Some("fp16") {
        job.remove_table("train.loss_scaling.");
    } else if job.deepspeed.is_none() {
        job.note("train.loss_scaling", "as in the program, but between 1 and 16,777,216");
    }
}
