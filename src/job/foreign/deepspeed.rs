//! `ds_config.json`, which the flag `--deepspeed` of transformers names. `"auto"` leaves a value to the flags.

use serde_json::Value;

use super::{
    Flag, Job,
    Meaning::{self, *},
    Setting::{self, Word as W},
};
use crate::job::wording;

const WARMUP: &str = "WarmupLR";
const LINEAR: &str = "linear";
const MAPPED: &str = "what lies in files is mapped into memory, in the run's own directory";
const ALL_PARTITIONS: &str = "there is one process, which has all partitions";

const KEYS: &[Flag] = &[
    Flag { names: &["fp16.enabled"], meaning: Choice(&[("true", &[("train.precision", W("fp16"))]), ("false", &[])]) },
    Flag { names: &["bf16.enabled"], meaning: Choice(&[("true", &[("train.precision", W("bf16"))]), ("false", &[])]) },
    Flag { names: &["fp16.loss_scale"], meaning: Special(loss_scale) },
    Flag { names: &["fp16.loss_scale_window"], meaning: Whole("train.loss_scaling.growth_interval") },
    Flag { names: &["fp16.hysteresis"], meaning: Whole("train.loss_scaling.hysteresis") },
    Flag { names: &["fp16.min_loss_scale"], meaning: Special(least_scale) },
    Flag { names: &["fp16.initial_scale_power"], meaning: Special(initial_scale) },
    Flag { names: &["zero_optimization.cpu_offload"], meaning: Choice(&[("true", OPTIMIZER), ("false", &[])]) },
    Flag {
        names: &["zero_optimization.offload_optimizer.device"],
        meaning: Choice(&[("cpu", OPTIMIZER), ("nvme", OPTIMIZER), ("none", &[])]),
    },
    Flag {
        names: &["zero_optimization.offload_param.device"],
        meaning: Choice(&[("cpu", &[]), ("nvme", &[]), ("none", &[])]), // See `settle`.
    },
    Flag {
        names: &[
            "zero_optimization.stage",
            "zero_optimization.allgather_partitions",
            "zero_optimization.allgather_bucket_size",
            "zero_optimization.overlap_comm",
            "zero_optimization.reduce_scatter",
            "zero_optimization.reduce_bucket_size",
            "zero_optimization.contiguous_gradients",
            "zero_optimization.offload_optimizer.pin_memory",
            "zero_optimization.offload_param.pin_memory",
            "zero_optimization.sub_group_size",
            "zero_optimization.stage3_max_live_parameters",
            "zero_optimization.stage3_max_reuse_distance",
            "zero_optimization.stage3_prefetch_bucket_size",
            "zero_optimization.stage3_param_persistence_threshold",
            "zero_optimization.stage3_gather_16bit_weights_on_model_save",
            "zero_optimization.stage3_gather_fp16_weights_on_model_save",
        ],
        meaning: Nothing(ALL_PARTITIONS),
    },
    Flag {
        names: &[
            "zero_optimization.offload_optimizer.nvme_path",
            "zero_optimization.offload_optimizer.buffer_count",
            "zero_optimization.offload_optimizer.fast_init",
            "zero_optimization.offload_param.nvme_path",
            "zero_optimization.offload_param.buffer_count",
            "zero_optimization.offload_param.buffer_size",
            "zero_optimization.offload_param.max_in_cpu",
            "aio.block_size",
            "aio.queue_depth",
            "aio.thread_count",
            "aio.single_submit",
            "aio.overlap_events",
        ],
        meaning: Nothing(MAPPED),
    },
    Flag { names: &["optimizer.type"], meaning: Choice(&[("AdamW", &[])]) },
    Flag { names: &["optimizer.params.lr", "scheduler.params.warmup_max_lr"], meaning: Number("train.learning_rate") },
    Flag { names: &["optimizer.params.betas.0"], meaning: Beta(0) },
    Flag { names: &["optimizer.params.betas.1"], meaning: Beta(1) },
    Flag { names: &["optimizer.params.eps"], meaning: Number("train.epsilon") },
    Flag { names: &["optimizer.params.weight_decay"], meaning: Number("train.weight_decay") },
    Flag { names: &["scheduler.type"], meaning: Choice(&[(WARMUP, &[("train.schedule", W("warmup-lr"))])]) },
    Flag { names: &["scheduler.params.warmup_type"], meaning: Choice(&[("log", &[]), (LINEAR, &[])]) },
    Flag { names: &["scheduler.params.warmup_min_lr"], meaning: Number("train.warmup_learning_rate") },
    Flag { names: &["scheduler.params.warmup_num_steps"], meaning: Whole("train.warmup_steps") },
    Flag { names: &["gradient_accumulation_steps"], meaning: Whole("train.gradient_accumulation") },
    Flag { names: &["train_micro_batch_size_per_gpu"], meaning: Whole("train.micro_batch") },
    Flag { names: &["gradient_clipping"], meaning: Number("train.clip_norm") },
    Flag { names: &["train_batch_size"], meaning: Nothing("it is micro-batch times accumulation") },
    Flag {
        names: &["steps_per_print", "wall_clock_breakdown", "zero_allow_untested_optimizer"],
        meaning: Nothing("the trainer has its own log"),
    },
];

/// Scales the loss itself: the program's own scaling without it does not count.
pub(super) fn apply(job: &mut Job) {
    let Some(config) = job.deepspeed.clone() else { return };
    job.remove_table("train.loss_scaling.");
    let flags = Job { values: job.values.clone(), ..Job::default() };
    walk(job, &flags, "", &config);
    settle(job, &config);
}

/// Settles what two keys say together, in either order.
fn settle(job: &mut Job, config: &Value) {
    let is =
        |path: &str, word: &str| config.pointer(path).and_then(Value::as_str).is_some_and(|found| found.eq_ignore_ascii_case(word));
    if ["cpu", "nvme"].iter().any(|place| is("/zero_optimization/offload_param/device", place)) {
        job.set("train.offload", "model");
    }
    check_batch(job, config);
    if !is("/scheduler/type", WARMUP) {
        return;
    }
    if is("/scheduler/params/warmup_type", LINEAR) {
        job.set("train.schedule", "warmup-lr-linear");
    }
    // The scheduler writes its rate over the optimizer's.
    if let Some(peak) = config.pointer("/scheduler/params/warmup_max_lr").and_then(Value::as_f64) {
        job.set("train.learning_rate", peak);
    }
    if config.pointer("/scheduler/params/warmup_num_steps").is_none() {
        if job.number("train.steps").is_some_and(|steps| steps < 1000.0) {
            let problem = "without warmup_num_steps DeepSpeed takes 1000, more than the run has; give it";
            job.problems.push(format!("ds_config scheduler.params: {problem}"));
        }
        job.set("train.warmup_steps", 1000);
        job.note("ds_config scheduler.params", "without warmup_num_steps DeepSpeed takes 1000");
    }
}

/// DeepSpeed refuses a batch that its parts do not multiply to.
fn check_batch(job: &mut Job, config: &Value) {
    let parts = ["train.micro_batch", super::ACCUMULATION].map(|key| in_force(job, key).unwrap_or(1.0));
    let processes = job.processes.max(1);
    let batch = config.get("train_batch_size").and_then(Value::as_f64);
    if let Some(batch) = batch.filter(|batch| (batch - parts[0] * parts[1] * f64::from(processes)).abs() > 0.5) {
        let whose = if processes == 1 { "one process".to_owned() } else { format!("{processes} processes") };
        job.problems.push(format!(
            "ds_config train_batch_size: {batch} is not the micro-batch of {} times the accumulation of {}, which DeepSpeed refuses in \
             {whose}; make them agree, or leave it \"auto\"",
            parts[0], parts[1]
        ));
    }
}

fn walk(job: &mut Job, flags: &Job, path: &str, value: &Value) {
    let below = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
    match value {
        Value::Object(table) => table.iter().for_each(|(name, value)| walk(job, flags, &below(name), value)),
        Value::Array(list) => {
            for (index, value) in list.iter().enumerate() {
                walk(job, flags, &below(&index.to_string()), value);
            }
        }
        Value::String(auto) if auto == "auto" => {}
        value => leaf(job, flags, path, &wording::value(value)),
    }
}

fn leaf(job: &mut Job, flags: &Job, path: &str, value: &str) {
    let shown = format!("ds_config {path}");
    let Some(key) = KEYS.iter().find(|key| key.names.contains(&path)) else {
        let known: Vec<&str> = KEYS.iter().flat_map(|key| key.names).copied().collect();
        job.problems.push(format!("{shown}: not known here; {}", super::suggest(path, &known, "known keys")));
        return;
    };
    let before = without_config(flags, &key.meaning);
    if let Err(problem) = job.apply(&shown, &key.meaning, value) {
        job.problems.push(format!("{shown}: {problem}"));
    } else if let Some((before, number)) =
        before.zip(value.parse::<f64>().ok()).filter(|(before, number)| before.to_bits() != number.to_bits())
    {
        let without =
            format!("the flags, or the defaults of transformers, say {before}; newer versions of transformers refuse that");
        job.note(&shown, &format!("{number} is taken; {without}"));
    }
}

/// The defaults of transformers where no flag is given.
const USUAL: [(&str, f64); 5] = [
    ("train.learning_rate", 5e-5),
    ("train.epsilon", 1e-8),
    ("train.clip_norm", 1.0),
    ("train.gradient_accumulation", 1.0),
    ("train.warmup_steps", 0.0),
];

/// The value of a number by the flags alone.
fn without_config(flags: &Job, meaning: &Meaning) -> Option<f64> {
    match meaning {
        Number(key) | Whole(key) => in_force(flags, key),
        Beta(index) => Some(flags.betas()[*index]),
        _ => None,
    }
}

fn in_force(job: &Job, key: &str) -> Option<f64> {
    job.number(key).or_else(|| USUAL.iter().find(|(usual, _)| *usual == key).map(|(_, value)| *value))
}

const OPTIMIZER: &[(&str, Setting)] = &[("train.offload", W("optimizer"))];

/// 0 stands for a scale that moves, any other number for itself.
fn loss_scale(job: &mut Job, value: &str) -> Result<(), String> {
    let scale = super::number(value)?;
    if scale != 0.0 {
        for bound in ["initial", "minimum", "maximum"] {
            job.set(&format!("train.loss_scaling.{bound}"), scale);
        }
    }
    Ok(())
}

fn initial_scale(job: &mut Job, power: &str) -> Result<(), String> {
    set_unless_fixed(job, "train.loss_scaling.initial", super::number(power)?.exp2());
    Ok(())
}

fn least_scale(job: &mut Job, value: &str) -> Result<(), String> {
    set_unless_fixed(job, "train.loss_scaling.minimum", super::number(value)?);
    Ok(())
}

/// The keys come in the order of the file: a scale that does not move may have been read before. Only such a one has a largest
/// value.
fn set_unless_fixed(job: &mut Job, key: &str, value: f64) {
    if !job.values.contains_key("train.loss_scaling.maximum") {
        job.set(key, value);
    }
}
