//! `ds_config.json`, which the flag `--deepspeed` of transformers names. `"auto"` leaves a value to the flags.

mod keys;

use ft_trainer::settings::LossScaling;
use keys::KEYS;
use serde_json::Value;

use super::{
    ACCUMULATION, Flag, HALF, Job, MICRO_BATCH,
    Meaning::{self, *},
    Setting::{self, Word as W},
    launchers,
};
use crate::job::wording;

const WARMUP: &str = "WarmupLR";
const DECAY: &str = "WarmupDecayLR";
const LINEAR: &str = "linear";
const PEAK: &str = "train.learning_rate";
const INITIAL: &str = "train.loss_scaling.initial";
const LEAST: &str = "train.loss_scaling.minimum";
const MOST: &str = "train.loss_scaling.maximum";
// What stands in a job only until all keys are known: no settings.
const POWER: &str = "scale_power";
const LEAST_RATE: &str = "train.min_learning_rate";
const TOTAL: &str = "total_steps";
const COUPLED: &str = "coupled_decay";

/// Settings that scale the loss as apex does.
const APEX: &[(&str, Setting)] = &[
    ("train.precision", W("fp16")),
    ("train.loss_scaling.growth_interval", Setting::Whole(2000)),
    ("train.loss_scaling.hysteresis", Setting::Whole(1)),
];

/// Scales the loss itself: the program's own scaling without it does not count.
pub(super) fn apply(job: &mut Job) {
    let Some(config) = job.deepspeed.clone() else { return };
    job.remove_table("train.loss_scaling.");
    let flags = Job { values: job.values.clone(), ..Job::default() };
    walk(job, &flags, "", &config);
    fill(job, &flags, &config);
    settle(job, &config);
}

/// The values that DeepSpeed takes where a section is there and lacks a key; the flags do not count then. Its own AdamW and Adam
/// have one default of weight decay. `WarmupLR` has no peak of its own and takes the optimizer's.
const ABSENT: [(&str, &str, f64); 8] = [
    ("/optimizer", "optimizer.params.lr", 1e-3),
    ("/optimizer", "optimizer.params.betas.0", 0.9),
    ("/optimizer", "optimizer.params.betas.1", 0.999),
    ("/optimizer", "optimizer.params.eps", 1e-8),
    ("/optimizer", "optimizer.params.weight_decay", 0.0),
    ("/scheduler", "scheduler.params.warmup_max_lr", 1e-3),
    ("/scheduler", "scheduler.params.warmup_min_lr", 0.0),
    ("", "gradient_clipping", 1.0),
];
/// The weight decay of torch's own AdamW, which `torch_adam` asks for.
const TORCH_DECAY: f64 = 0.01;

fn fill(job: &mut Job, flags: &Job, config: &Value) {
    let param = |name: &str| config.pointer(&format!("/optimizer/params/{name}"));
    let is_adamw = config["optimizer"]["type"].as_str().is_some_and(|kind| kind.eq_ignore_ascii_case("AdamW"));
    let is_torchs =
        param("torch_adam") == Some(&Value::Bool(true)) && (is_adamw || param("adam_w_mode") != Some(&Value::Bool(false)));
    let is_there = |pointer: &str| config.pointer(pointer).is_some_and(|value| !value.is_null());
    let has_optimizers_peak = is(config, "/scheduler/type", WARMUP) && !is_there("/scheduler/params/warmup_max_lr");
    for (section, path, usual) in ABSENT {
        let whole = format!("/{}", path.trim_end_matches(".0").trim_end_matches(".1").replace('.', "/"));
        let is_overwritten = match path {
            // The scheduler writes its rate over the optimizer's.
            "optimizer.params.lr" => is_there("/scheduler") && !has_optimizers_peak,
            "scheduler.params.warmup_max_lr" => has_optimizers_peak,
            _ => false,
        };
        if !is_there(section) || is_there(&whole) || is_overwritten {
            continue;
        }
        let Some(key) = find(path) else { continue };
        let number = if is_torchs && path.ends_with("weight_decay") { TORCH_DECAY } else { usual };
        let shown = format!("ds_config {path}");
        if let Err(problem) = job.apply(&shown, &key.meaning, &number.to_string()) {
            job.problems.push(format!("{shown}: {problem}"));
        } else if path == "gradient_clipping" {
            let why = "not set, so DeepSpeed takes 1 since version 0.19.3; before that it did not clip (clip_norm = 0)";
            job.note(&shown, why);
        } else if let Some(said) = without_config(flags, &key.meaning).filter(|said| said.to_bits() != number.to_bits()) {
            job.note(&shown, &format!("not set, so DeepSpeed takes {number} and not {said}, as the flags or their defaults say"));
        }
    }
    if has_optimizers_peak {
        let why = "not set, so DeepSpeed takes the optimizer's lr; versions before 0.17.2 took 0.001";
        job.note("ds_config scheduler.params.warmup_max_lr", why);
    }
}

/// Whether this word stands in the configuration.
fn is(config: &Value, pointer: &str, word: &str) -> bool {
    config.pointer(pointer).and_then(Value::as_str).is_some_and(|found| found.eq_ignore_ascii_case(word))
}

/// DeepSpeed refuses two number formats at once, and transformers a flag that the configuration contradicts.
fn agree_on_precision(job: &mut Job, config: &Value) {
    let said = |sections: &[&str]| sections.iter().find_map(|section| config.pointer(&format!("/{section}/enabled"))?.as_bool());
    let (fp16, bf16) = (said(&["fp16"]), said(&["bf16", "bfloat16"]));
    let of_flags = job.values.get(HALF).and_then(|precision| precision.as_str());
    let is_other = match of_flags {
        Some("fp16") => fp16 == Some(false) || bf16 == Some(true),
        Some(_) => bf16 == Some(false) || fp16 == Some(true),
        None => false,
    };
    let problem = if (fp16, bf16) == (Some(true), Some(true)) {
        "DeepSpeed takes one of them; turn the other off".to_owned()
    } else if let Some(precision) = of_flags.filter(|_| is_other) {
        format!("the flags say --{precision}; make both say the same")
    } else {
        let alone = [("fp16", fp16), ("bf16", bf16)].into_iter().find(|(_, enabled)| *enabled == Some(true));
        if let Some((flag, _)) = alone.filter(|_| of_flags.is_none()) {
            let why = format!("no --{flag} stands beside it: it is taken; newer versions of transformers refuse that");
            job.note(&format!("ds_config {flag}.enabled"), &why);
        }
        return;
    };
    job.problems.push(format!("ds_config fp16.enabled, bf16.enabled: {problem}"));
}

/// Settles what two keys say together, in either order.
fn settle(job: &mut Job, config: &Value) {
    let is = |pointer: &str, word: &str| is(config, pointer, word);
    agree_on_precision(job, config);
    loss_scales(job);
    // DeepSpeed's AdamW is that with `adam_w_mode` off, too.
    let is_coupled = job.values.remove(COUPLED).is_some() && !is("/optimizer/type", "AdamW");
    if is_coupled && job.number("train.weight_decay").is_none_or(|decay| decay != 0.0) {
        let problem = "weights decay apart from the gradient here; give true, or no weight_decay, where both are one";
        job.problems.push(format!("ds_config optimizer.params.adam_w_mode: {problem}"));
    }
    if ["cpu", "nvme"].iter().any(|place| is("/zero_optimization/offload_param/device", place)) {
        job.set("train.offload", "model");
    }
    if config.pointer("/torch_autocast/enabled") == Some(&Value::Bool(true)) && config.pointer("/torch_autocast/dtype").is_none() {
        let problem = "without dtype torch takes float16 on a GPU, and bfloat16 on a processor; give dtype";
        job.problems.push(format!("ds_config torch_autocast: {problem}"));
    }
    batch(job, config);
    let total = job.values.remove(TOTAL).as_ref().and_then(super::as_number);
    let (warms, decays) = (is("/scheduler/type", WARMUP), is("/scheduler/type", DECAY));
    if !warms && !decays {
        return;
    }
    let is_linear = is("/scheduler/params/warmup_type", LINEAR);
    if warms && is_linear {
        job.set("train.schedule", "warmup-lr-linear");
    }
    if decays {
        decay(job, config, total);
    }
    // The scheduler writes its rate over the optimizer's.
    if let Some(peak) = config.pointer("/scheduler/params/warmup_max_lr").and_then(Value::as_f64) {
        job.set(PEAK, peak);
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

/// WarmupDecayLR is the linear schedule, when its warm-up is linear and its end that of the run. It falls to where it began, and a
/// warm-up is at least 2.
fn decay(job: &mut Job, config: &Value, total: Option<f64>) {
    const SHOWN: &str = "ds_config scheduler.params";
    if !is(config, "/scheduler/params/warmup_type", LINEAR) {
        let problem = "its warm-up rises with the logarithm of the step, and no schedule here does that and falls afterwards; give \
                       \"linear\", or take the scheduler out and give --lr_scheduler_type linear";
        job.problems.push(format!("{SHOWN}.warmup_type: {problem}"));
    }
    if let Some(start) = config.pointer("/scheduler/params/warmup_min_lr").and_then(Value::as_f64) {
        job.set_if_positive(LEAST_RATE, start);
    }
    if matches!(job.number("train.warmup_steps"), Some(1.0..2.0)) {
        job.set("train.warmup_steps", 2);
    }
    match (total, job.number("train.steps")) {
        (Some(total), Some(steps)) if (total - steps).abs() > 0.5 => {
            job.problems
                .push(format!("{SHOWN}.total_num_steps: {total} is not the run's {steps}, at whose end the rate has fallen here"));
        }
        (Some(_), None) => {
            job.note(&format!("{SHOWN}.total_num_steps"), "the rate has fallen at the end of the run, however long that is");
        }
        _ => {}
    }
    job.note("ds_config scheduler", "DeepSpeed's rates come one step later, because its counter moves after the optimizer");
}

/// DeepSpeed makes what is missing of the batch of the others, and refuses a batch that its parts do not multiply to.
fn batch(job: &mut Job, config: &Value) {
    let Some(batch) = config.get("train_batch_size").and_then(Value::as_f64) else { return };
    let parts = [MICRO_BATCH, ACCUMULATION].map(|key| job.number(key));
    launchers::settle_gpus(job, batch, parts);
    let processes = job.processes.all();
    let [micro_batch, accumulation] = parts.map(|part| part.unwrap_or(1.0));
    let rest = batch / (micro_batch * accumulation * f64::from(processes));
    // Without both, the sequences go through the model at once.
    let missing = [MICRO_BATCH, ACCUMULATION].into_iter().find(|key| !job.values.contains_key(*key));
    match missing.filter(|_| rest >= 1.0 && rest.fract() == 0.0) {
        Some(key) => {
            if in_force(job, key) != Some(rest) {
                let why =
                    format!("{key} is {rest}, from {batch} sequences a step; newer versions of transformers want a flag for it");
                job.note("ds_config train_batch_size", &why);
            }
            job.set(key, rest as i64);
        }
        None if (rest - 1.0).abs() > 1e-9 => {
            let whose = if processes == 1 { "one process".to_owned() } else { format!("{processes} processes") };
            job.problems.push(format!(
                "ds_config train_batch_size: {batch} is not the micro-batch of {micro_batch} times the accumulation of {accumulation}, which \
                 DeepSpeed refuses in {whose}; make them agree, or leave it \"auto\""
            ));
        }
        None => {}
    }
}

/// The first scale, within the bounds. Only a scale that does not move has a largest one already.
fn loss_scales(job: &mut Job) {
    let power = job.values.remove(POWER).as_ref().and_then(super::as_number);
    if job.values.contains_key(MOST) {
        for key in [INITIAL, LEAST] {
            job.values.insert(key.to_owned(), job.values[MOST].clone());
        }
        return;
    }
    let usual = LossScaling::default();
    let initial = power.map_or(usual.initial, f64::exp2);
    if !initial.is_finite() || initial == 0.0 {
        job.problems.push(format!("ds_config fp16.initial_scale_power: 2 to the power of {} is no scale", power.unwrap_or(0.0)));
        return;
    }
    let least = job.number(LEAST).unwrap_or(usual.minimum);
    if power.is_some() || least > initial {
        job.set(INITIAL, initial.max(least));
    }
    if initial.max(least) > usual.maximum {
        job.set(MOST, initial.max(least));
    }
}

fn walk(job: &mut Job, flags: &Job, path: &str, value: &Value) {
    let below = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
    let section = format!("{path}.");
    match value {
        Value::Object(table) if table.get("enabled") == Some(&Value::Bool(false)) => {}
        Value::Object(_) | Value::Array(_) if find(&section).is_some() => leaf(job, flags, &section, ""),
        Value::Object(table) => table.iter().for_each(|(name, value)| walk(job, flags, &below(name), value)),
        Value::Array(list) => {
            for (index, value) in list.iter().enumerate() {
                walk(job, flags, &below(&index.to_string()), value);
            }
        }
        Value::Null => {}
        Value::String(auto) if auto == "auto" => {}
        // A section may be turned off, or named, by a single word.
        Value::Bool(false) if find(&section).is_some() => {}
        _ if find(&section).is_some() && find(path).is_none() => leaf(job, flags, &section, ""),
        value => leaf(job, flags, path, &wording::value(value)),
    }
}

pub(super) fn find(path: &str) -> Option<&'static Flag> {
    KEYS.iter().find(|key| key.names.contains(&path))
}

fn leaf(job: &mut Job, flags: &Job, path: &str, value: &str) {
    let shown = format!("ds_config {}", path.trim_end_matches('.'));
    let Some(key) = find(path) else {
        let known: Vec<&str> = KEYS.iter().flat_map(|key| key.names).copied().collect();
        let section = format!("{path}.");
        let inside = known.iter().find(|name| name.starts_with(&section));
        let next = || wording::or_without(&wording::near(path, &known));
        job.problems.push(inside.map_or_else(
            || format!("{shown}: ftctl does not know this key; {}", next()),
            |name| format!("{shown}: {value} stands where an object belongs, with keys such as {}", &name[section.len()..]),
        ));
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
const USUAL: [(&str, f64); 6] = [
    (PEAK, 5e-5),
    (MICRO_BATCH, 8.0),
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
    match super::number(value)? {
        0.0 => {}
        scale if scale > 0.0 => job.set(MOST, scale),
        _ => return Err("a scale is above 0".to_owned()),
    }
    Ok(())
}

fn least_scale(job: &mut Job, value: &str) -> Result<(), String> {
    let scale = super::number(value)?;
    if scale <= 0.0 {
        return Err("a scale is above 0 here; give 1, DeepSpeed's own".to_owned());
    }
    job.set(LEAST, scale);
    Ok(())
}

/// `true` is what the first versions called stage 1.
fn stage(job: &mut Job, value: &str) -> Result<(), String> {
    let stage = match value {
        "true" => 1,
        "false" | "0" => return Ok(()),
        "1" | "2" => super::whole(value)?,
        "3" => {
            job.note(
                "ds_config zero_optimization.stage",
                "every process has whole weights here; gradients and moments are in shards, as in stage 2",
            );
            2
        }
        _ => return Err(format!("`{value}` is not a stage from 0 to 3")),
    };
    job.set(super::ZERO, stage);
    Ok(())
}
