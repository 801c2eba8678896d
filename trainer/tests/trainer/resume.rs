//! A run that is killed, stopped or damaged and then resumed gives the same bytes as a run that was left alone.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use ft_trainer::random::uniform;

use crate::fixture::{Fixture, last_checkpoint, program, stderr, succeed};

/// Wide enough that the optimizer's file has blocks that pass the page cache.
const WIDE: [&str; 3] = ["train.threads=2", "model.width=144", "sample.every_evaluation=true"];
const EVERY_MAP: &str = r#"train.lora.target_modules=["attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"]"#;
const LAST_ONLY: [&str; 1] = ["train.checkpoint_every=0"];
/// Steps that are accumulation from end to end, and tell in the trace how far they are.
const MANY_PARTS: [&str; 4] = ["train.micro_batch=1", "train.gradient_accumulation=48", "train.threads=2", "train.profile=true"];
const PARTS: usize = 48;

/// Number of kills; `FT_KILLS` asks for more.
fn kills_wanted() -> u64 {
    std::env::var("FT_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(5)
}

/// The files that must not depend on how often a run was interrupted.
fn result(output: &Path) -> Vec<(String, Vec<u8>)> {
    let checkpoint = last_checkpoint(output);
    let files = [
        checkpoint.join("model.safetensors"),
        checkpoint.join("optimizer.safetensors"),
        checkpoint.join("steps.jsonl"),
        output.join("steps.jsonl"),
        output.join("sample.txt"),
    ];
    files.map(|path| (path.display().to_string(), fs::read(&path).unwrap())).to_vec()
}

fn assert_same(expected: &[(String, Vec<u8>)], output: &Path) {
    for ((_, expected), (path, found)) in expected.iter().zip(result(output)) {
        assert!(expected == &found, "{path} differs from the undisturbed run's");
    }
}

/// Complete checkpoints, newest first.
fn checkpoints(output: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(output.join("checkpoints")).into_iter().flatten();
    let mut found: Vec<PathBuf> =
        entries.map(|entry| entry.unwrap().path()).filter(|path| path.join("manifest.json").exists()).collect();
    found.retain(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("step-")));
    found.sort();
    found.reverse();
    found
}

/// Waits; true when the process ended by itself.
fn ends_within(child: &mut Child, time: Duration) -> bool {
    let deadline = Instant::now() + time;
    while Instant::now() < deadline {
        if let Some(status) = child.try_wait().unwrap() {
            assert!(status.success(), "{status}");
            return true;
        }
        sleep(Duration::from_millis(1));
    }
    false
}

/// Waits until something is true of a process's output; false when it ended by itself before.
fn comes_to(child: &mut Child, mut is_there: impl FnMut() -> bool) -> bool {
    while !is_there() {
        if let Some(status) = child.try_wait().unwrap() {
            assert!(status.success(), "{status}");
            return false;
        }
        sleep(Duration::from_micros(100));
    }
    true
}

/// Damages the newest file as a power loss can, as far as a directory lets us imitate it.
fn damage_newest(output: &Path, choice: u64) {
    let checkpoints = checkpoints(output);
    if checkpoints.len() < 2 {
        return;
    }
    let file = checkpoints[0]
        .join(["model.safetensors", "optimizer.safetensors", "trainer_state.json", "manifest.json"][choice as usize % 4]);
    let length = fs::metadata(&file).unwrap().len();
    fs::File::options().write(true).open(&file).unwrap().set_len(length / 2).unwrap();
}

#[test]
fn killed_at_any_instant_it_gives_the_same_bytes() {
    let fixture = Fixture::new();
    let started = Instant::now();
    let expected = result(&fixture.trained("undisturbed", &WIDE));
    let whole = started.elapsed().as_secs_f64();
    let (mut kills, mut round) = (0, 0);
    while kills < kills_wanted() {
        round += 1;
        let name = format!("killed-{round}");
        let config = fixture.config(&name);
        loop {
            let mut child = fixture.train(&config, &WIDE).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
            let patience = if kills < kills_wanted() { uniform(&[round, kills]) * whole } else { 600.0 };
            if ends_within(&mut child, Duration::from_secs_f64(patience)) {
                break;
            }
            child.kill().unwrap();
            child.wait().unwrap();
            kills += 1;
            if kills % 3 == 0 {
                damage_newest(&fixture.path(&name), kills / 3);
            }
        }
        assert_same(&expected, &fixture.path(&name));
    }
}

/// Files of a checkpoint in the order in which they are begun; first the directory itself.
const STAGES: [&str; 4] = ["", "model.safetensors", "optimizer.safetensors", "steps.jsonl"];

/// Where a kill is to land.
#[derive(Debug, Clone, Copy)]
enum Aim {
    /// While a checkpoint is being written, before its manifest.
    Checkpoint,
    /// Between two parts of a step, or in one: gradients are there, and weights that they have not changed yet.
    Accumulation,
}

impl Aim {
    /// Waits until a kill would land there. The `number`-th waits for a stage of the checkpoint of its own.
    fn comes(self, child: &mut Child, output: &Path, number: usize) -> bool {
        match self {
            Self::Checkpoint => {
                let stage = STAGES[number % STAGES.len()];
                comes_to(child, || unfinished(output).is_some_and(|directory| directory.join(stage).exists()))
            }
            Self::Accumulation => {
                let length = || fs::metadata(output.join("trace.json")).map_or(0, |file| file.len());
                let before = length();
                comes_to(child, || length() > before && (1..PARTS / 2).contains(&open_step(output).1))
            }
        }
    }

    /// Whether it did land there, as what a killed process that began after `told` steps has left shows.
    fn was_met(self, output: &Path, told: usize) -> bool {
        match self {
            Self::Checkpoint => unfinished(output).is_some_and(|directory| !directory.join("manifest.json").exists()),
            Self::Accumulation => {
                let (complete, parts) = open_step(output);
                steps_told(output) - told == complete && (1..PARTS).contains(&parts)
            }
        }
    }
}

/// The directory of a checkpoint that is being written. (One that is being removed has such a name too, and is an older one's.)
pub fn unfinished(output: &Path) -> Option<PathBuf> {
    let complete = checkpoints(output).first().and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned()));
    let entries = fs::read_dir(output.join("checkpoints")).into_iter().flatten().flatten().map(|entry| entry.path());
    entries.into_iter().find(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.strip_prefix(".unfinished-").is_some_and(|step| complete.as_deref().is_none_or(|complete| step > complete))
    })
}

/// The end of the trace so far: complete steps, and how many parts the one after them has read. It is written 8 KiB at a time,
/// which is more than once a step.
fn open_step(output: &Path) -> (usize, usize) {
    const STEP: &str = "\"name\":\"step\"";
    let trace = fs::read_to_string(output.join("trace.json")).unwrap_or_default();
    let open = trace.rsplit_once(STEP).map_or(trace.as_str(), |(_, open)| open);
    (trace.matches(STEP).count(), open.matches("\"name\":\"data\"").count())
}

/// Steps that all processes have said to be complete.
fn steps_told(output: &Path) -> usize {
    fs::read_to_string(output.join("progress.jsonl")).unwrap_or_default().matches("\"event\":\"step\"").count()
}

/// Each kill is looked at afterwards: those that have missed are made and do not count.
#[test]
fn killed_inside_a_checkpoint_and_inside_a_step_it_gives_the_same_bytes() {
    let fixture = Fixture::new();
    let expected = result(&fixture.trained("undisturbed", &MANY_PARTS));
    let (aims, wanted) = ([Aim::Checkpoint, Aim::Accumulation], kills_wanted().div_ceil(2).max(STAGES.len() as u64) as usize);
    let (mut hits, mut kills, mut round) = ([0; 2], 0, 0);
    while hits != [wanted; 2] {
        round += 1;
        assert!(round <= 50 * wanted as u64, "{hits:?} of {wanted} kills landed at {aims:?}");
        let name = format!("aimed-{round}");
        let (config, output) = (fixture.config(&name), fixture.path(&name));
        while hits != [wanted; 2] {
            let aim = usize::from(hits[0] > hits[1]);
            let told = steps_told(&output);
            let due = told + 1 + (10.0 * uniform(&[round, kills])) as usize;
            let mut child = fixture.train(&config, &MANY_PARTS).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
            if !comes_to(&mut child, || steps_told(&output) >= due) || !aims[aim].comes(&mut child, &output, hits[aim]) {
                break;
            }
            child.kill().unwrap();
            child.wait().unwrap();
            kills += 1;
            hits[aim] += usize::from(aims[aim].was_met(&output, told));
            assert!(kills <= 50 * wanted as u64, "{kills} kills, of which {hits:?} landed at {aims:?}");
        }
        succeed(&mut fixture.train(&config, &MANY_PARTS));
        assert_same(&expected, &output);
    }
    println!("{kills} kills in {round} runs, of which {hits:?} landed at {aims:?}");
}

/// A step has the same sequences in both, and dropout masks belong to them: only the order of sums changes with how many go through
/// the model at once.
#[test]
fn a_step_that_is_divided_otherwise_reads_the_same_tokens() {
    let fixture = Fixture::new();
    let values = ["train.dropout=0.1", "train.checkpoint_every=10"];
    let losses = |output: &Path| -> Vec<f64> {
        let log = fs::read_to_string(output.join("steps.jsonl")).unwrap();
        log.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()["loss"].as_f64()).collect()
    };
    let expected = losses(&fixture.trained("two-by-two", &values));
    let (output, config) = (fixture.trained("divided", &values), fixture.path("divided.toml"));
    for (from, micro_batch, parts, said) in [(20, "4", 1, "1 x 4"), (30, "1", 4, "4 x 1"), (20, "\"auto\"", 4, "1 x 4")] {
        for step in (from + 10..=40).step_by(10) {
            let checkpoint = output.join(format!("checkpoints/step-{step:010}"));
            if checkpoint.exists() {
                fs::remove_dir_all(checkpoint).unwrap();
            }
        }
        let division = [format!("train.micro_batch={micro_batch}"), format!("train.gradient_accumulation={parts}")];
        let values: Vec<&str> = values.iter().copied().chain(division.iter().map(String::as_str)).collect();
        let text = succeed(&mut fixture.train(&config, &values));
        assert!(text.contains(&format!("a step is {said} sequences")), "{text}");
        let found = losses(&output);
        let worst = expected.iter().zip(&found).map(|(expected, found)| (found / expected - 1.0).abs()).fold(0.0, f64::max);
        assert!(found.len() == 40 && worst < 1e-5, "{said}: {} steps, {worst:.1e}", found.len());
    }
    let refused = fixture.train(&config, &["train.dropout=0.1", "train.micro_batch=4"]).output().unwrap();
    assert_eq!(refused.status.code(), Some(2));
    assert!(stderr(&refused).contains("train.micro_batch: \"auto\" in the checkpoint, 4 now"), "{}", stderr(&refused));
}

/// In fp16, with a scale that is too large at first and grows too fast: each step has the learning rate of the updates before it,
/// also where the run was taken up again.
#[test]
fn a_skipped_step_does_not_move_the_schedule() {
    let fixture = Fixture::new();
    let values = [
        "train.precision=fp16",
        "train.loss_scaling.initial=1073741824.0",
        "train.loss_scaling.maximum=1073741824.0",
        "train.loss_scaling.hysteresis=1",
        "train.loss_scaling.growth_interval=4",
    ];
    let output = fixture.trained("fp16", &values);
    let config = fixture.path("fp16.toml");
    let parsed = |text: &str| -> Vec<serde_json::Value> { text.lines().map(|line| serde_json::from_str(line).unwrap()).collect() };
    let planned = parsed(&succeed(program().arg("schedule").arg(&config)));
    let log = parsed(&fs::read_to_string(output.join("steps.jsonl")).unwrap());
    let (mut updates, mut skipped) = (0, Vec::new());
    for step in log.iter().filter(|line| line["loss"].is_number()) {
        assert_eq!(step["learning_rate"], planned[updates]["learning_rate"], "{step} after {updates} updates");
        if step["skipped"].is_null() {
            updates += 1;
        } else {
            skipped.push(step["step"].as_u64().unwrap());
        }
    }
    assert!(skipped.contains(&1) && skipped.iter().any(|step| (6..35).contains(step)), "{skipped:?}");
    let expected = result(&output);
    fs::remove_dir_all(last_checkpoint(&output)).unwrap();
    succeed(&mut fixture.train(&config, &values));
    assert_same(&expected, &output);
}

/// After a first update to weights that fp16 cannot hold, the scale falls as far as it may, and only then the run ends.
#[test]
fn a_loss_that_overflows_is_skipped_until_its_scale_cannot_fall() {
    let fixture = Fixture::new();
    let values = [
        "train.precision=fp16",
        "train.learning_rate=1e30",
        "train.warmup_steps=0",
        "train.eval_every=0",
        "train.loss_scaling.initial=4.0",
        "train.loss_scaling.minimum=1.0",
        "train.loss_scaling.hysteresis=1",
    ];
    let ended = fixture.train(&fixture.config("overflowing"), &values).output().unwrap();
    assert!(ended.status.code() == Some(1) && stderr(&ended).contains("step 4 diverged: loss NaN"), "{}", stderr(&ended));
    let log = fs::read_to_string(fixture.path("overflowing").join("steps.jsonl")).unwrap();
    assert_eq!(log.matches("the loss overflows fp16").count(), 2, "{log}");
}

/// Also when it changes how much it computes again, or what lies in files, in the middle of a run; what is dropped is drawn again,
/// and is the same.
fn saving_memory_changes_no_byte(fixture: &Fixture, ways: &[(&str, &[&str])]) {
    for (way, values) in ways {
        let values = &[values, &["train.checkpoint_every=20"][..]].concat()[..];
        let name = |recompute: &str| format!("{way}-{recompute}");
        let expected = result(&fixture.trained(&name("none"), values));
        let savings = [
            ("selective", "none"),
            ("full", "none"),
            ("host", "none"),
            ("none", "optimizer"),
            ("selective", "model"),
            ("full", "model"),
            ("host", "model"),
        ];
        for (recompute, offload) in savings {
            let how = [format!("train.recompute={recompute}"), format!("train.offload={offload}")];
            let values = values.iter().copied().chain(how.iter().map(String::as_str)).collect::<Vec<_>>();
            assert_same(&expected, &fixture.trained(&name(&format!("{recompute}-{offload}")), &values));
        }
        let output = fixture.path(&name("full-model"));
        fs::remove_dir_all(last_checkpoint(&output)).unwrap();
        let config = fixture.path(&format!("{}.toml", name("full-model")));
        succeed(&mut fixture.train(&config, &[values, &["train.recompute=selective", "train.offload=optimizer"]].concat()));
        assert_same(&expected, &output);
    }
}

#[test]
fn saving_memory_changes_no_byte_at_any_precision() {
    saving_memory_changes_no_byte(
        &Fixture::new(),
        &[
            ("fp32", &["train.precision=fp32"]),
            ("bf16", &["train.precision=bf16"]),
            ("fp16", &["train.precision=fp16", "train.loss_scaling.growth_interval=3"]),
        ],
    );
}

#[test]
fn saving_memory_changes_no_byte_with_dropout_and_every_optimizer() {
    saving_memory_changes_no_byte(
        &Fixture::new(),
        &[
            ("dropout", &["train.dropout=0.1", "train.attention_dropout=0.1"]),
            ("muon", &["train.optimizer=muon", "train.dropout=0.1"]),
            ("adafactor", &["train.optimizer=adafactor", "train.dropout=0.1"]),
        ],
    );
}

#[test]
fn saving_memory_changes_no_byte_of_adapters_and_other_variants() {
    saving_memory_changes_no_byte(
        &Fixture::new(),
        &[
            ("lora", &["train.lora.rank=4", "train.lora.dropout=0.1", EVERY_MAP]),
            ("lora-bf16", &["train.lora.rank=4", "train.precision=bf16", "train.optimizer=muon", EVERY_MAP]),
            ("fairseq", &["model.variant=fairseq", "train.dropout=0.1", "train.attention_dropout=0.1", "train.compat=fairseq"]),
        ],
    );
}

#[test]
fn saving_memory_changes_no_byte_of_the_best_weights() {
    let strangers = Fixture::validated_by_strangers();
    saving_memory_changes_no_byte(&strangers, &[("best", &["train.keep_best=true", "train.eval_every=5", "train.precision=fp16"])]);
    let end: serde_json::Value = serde_json::from_slice(&fs::read(strangers.path("best-none/summary.json")).unwrap()).unwrap();
    ends_with_its_best(&strangers.path("best-none"), &end);
}

/// Everything that remembers more than weights: Muon, the spike guard, patience. The run of 400 steps ends early, after some skips.
#[test]
fn what_the_guard_remembers_survives_a_kill() {
    let fixture = Fixture::new();
    let values = [
        "train.steps=400",
        "train.optimizer=muon",
        "train.learning_rate=3e-2",
        "train.skip_spikes=0.8",
        "train.non_finite=skip",
        "train.early_stopping_patience=3",
        "train.eval_every=20",
        "train.checkpoint_every=7",
    ]; // fmt: skip
    let summary =
        |output: &Path| -> serde_json::Value { serde_json::from_slice(&fs::read(output.join("summary.json")).unwrap()).unwrap() };
    let files = |output: &Path| {
        let checkpoint = output.join("checkpoints").join(summary(output)["checkpoint"].as_str().unwrap());
        ["model.safetensors", "optimizer.safetensors", "steps.jsonl"].map(|name| fs::read(checkpoint.join(name)).unwrap())
    };
    let undisturbed = fixture.trained("undisturbed", &values);
    let end = summary(&undisturbed);
    assert!(end["stopped_early"] == true && end["steps"].as_u64() < Some(400), "{end}");
    assert!(end["skipped"].as_u64() > Some(0), "{end}");
    ends_with_its_best(&undisturbed, &end);
    let config = fixture.config("killed");
    for step in [33, 66, 99, 132] {
        let mut child = fixture.train(&config, &values).stdout(Stdio::null()).spawn().unwrap();
        let log = fixture.path("killed/steps.jsonl");
        while child.try_wait().unwrap().is_none() && fs::read_to_string(&log).unwrap_or_default().lines().count() < step {
            sleep(Duration::from_millis(1));
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
    let killed = fixture.trained("killed", &values);
    stop_at_every_evaluation(&fixture, &values);
    for interrupted in [killed, fixture.path("stopped")] {
        assert!(files(&undisturbed) == files(&interrupted), "{} differs", interrupted.display());
        assert_eq!(fs::read(undisturbed.join("steps.jsonl")).unwrap(), fs::read(interrupted.join("steps.jsonl")).unwrap());
    }
}

/// Also at the one that ends the run, which then has to choose its weights.
fn stop_at_every_evaluation(fixture: &Fixture, values: &[&str]) {
    let (config, log) = (fixture.config("stopped"), fixture.path("stopped/steps.jsonl"));
    let lines = || fs::read_to_string(&log).unwrap_or_default().lines().count();
    loop {
        // A line for each of 20 steps and for the evaluation before them.
        let due = (lines() / 21 + 1) * 21;
        let mut child = fixture.train(&config, values).stdout(Stdio::null()).spawn().unwrap();
        while lines() < due {
            if let Some(status) = child.try_wait().unwrap() {
                assert!(status.success(), "{status}");
                return;
            }
            sleep(Duration::from_millis(1));
        }
        terminate(&child);
        match child.wait().unwrap().code() {
            Some(0) => return,
            code => assert_eq!(code, Some(75)),
        }
    }
}

fn terminate(child: &Child) {
    signal(child, rustix::process::Signal::TERM);
}

/// A child that was not waited for keeps its number.
fn signal(child: &Child, signal: rustix::process::Signal) {
    rustix::process::kill_process(rustix::process::Pid::from_child(child), signal).unwrap();
}

/// The last checkpoint has the weights of the evaluation with the lowest loss, which is not the last.
fn ends_with_its_best(output: &Path, summary: &serde_json::Value) {
    let log = fs::read_to_string(output.join("steps.jsonl")).unwrap();
    let lines: Vec<serde_json::Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let evaluations = lines.iter().filter_map(|line| Some((line["validation_loss"].as_f64()?, line["step"].as_u64()?)));
    let (lowest, step) = evaluations.reduce(|best, next| if next.0 < best.0 { next } else { best }).unwrap();
    assert_eq!((summary["best_step"].as_u64(), summary["perplexity_after"].as_f64()), (Some(step), Some(lowest.exp())));
    assert!(step < summary["steps"].as_u64().unwrap(), "{summary}");
    let checkpoint = output.join("checkpoints").join(summary["checkpoint"].as_str().unwrap());
    assert!(!checkpoint.join("best.safetensors").exists(), "the last checkpoint is the best");
    let data = output.with_file_name("data");
    let text = succeed(program().arg("eval").arg("--model").arg(checkpoint).arg("--data").arg(data).args(["--block-size", "32"]));
    let found: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert!((found["loss"].as_f64().unwrap() / lowest - 1.0).abs() < 1e-5, "{found}, not {lowest}");
}

#[test]
fn stopped_on_request_it_saves_and_resumes() {
    let fixture = Fixture::new();
    let expected = result(&fixture.trained("undisturbed", &LAST_ONLY));
    let config = fixture.config("stopped");
    let mut child = fixture.train(&config, &LAST_ONLY).stdout(Stdio::null()).spawn().unwrap();
    let progress = fixture.path("stopped/progress.jsonl");
    while !fs::read_to_string(&progress).unwrap_or_default().contains("\"event\":\"step\"") {
        assert!(child.try_wait().unwrap().is_none(), "it ended before its first step");
        sleep(Duration::from_millis(1));
    }
    terminate(&child);
    assert_eq!(child.wait().unwrap().code(), Some(75));
    assert_eq!(checkpoints(&fixture.path("stopped")).len(), 1);
    succeed(&mut fixture.train(&config, &LAST_ONLY));
    assert_same(&expected, &fixture.path("stopped"));
}

/// At whatever step the wish comes, also after one that is saved anyway, or evaluated.
#[test]
fn asked_to_save_it_does_and_goes_on_with_the_same_bytes() {
    let fixture = Fixture::new();
    let values = ["train.checkpoint_every=8", "train.keep_checkpoints=40"];
    let expected = result(&fixture.trained("undisturbed", &values));
    let (config, output) = (fixture.config("saved"), fixture.path("saved"));
    let mut child = fixture.train(&config, &values).stdout(Stdio::null()).spawn().unwrap();
    let mut seen = 0;
    while child.try_wait().unwrap().is_none() {
        let steps = steps_told(&output);
        if steps > seen {
            seen = steps;
            signal(&child, rustix::process::Signal::URG);
        }
        sleep(Duration::from_micros(200));
    }
    assert!(child.wait().unwrap().success());
    assert_same(&expected, &output);
    let unscheduled = |path: &PathBuf| !path.file_name().unwrap().to_string_lossy()[5..].parse::<u64>().unwrap().is_multiple_of(8);
    let saved: Vec<PathBuf> = checkpoints(&output).into_iter().filter(unscheduled).collect();
    assert!(!saved.is_empty(), "{:?}", checkpoints(&output));
    // From the newest of them, as after a death.
    let newest = &saved[0];
    for path in checkpoints(&output).into_iter().take_while(|path| path != newest) {
        fs::remove_dir_all(path).unwrap();
    }
    succeed(&mut fixture.train(&config, &values));
    assert_same(&expected, &output);
}

#[test]
fn a_finished_run_is_not_trained_again() {
    let fixture = Fixture::new();
    let output = fixture.trained("done", &[]);
    let (before, checkpoint) = (result(&output), last_checkpoint(&output));
    let written = fs::metadata(checkpoint.join("model.safetensors")).unwrap().modified().unwrap();
    succeed(&mut fixture.train(&fixture.path("done.toml"), &[]));
    assert_same(&before, &output);
    assert_eq!(fs::metadata(checkpoint.join("model.safetensors")).unwrap().modified().unwrap(), written);
}

#[test]
fn another_configuration_is_refused_with_what_differs() {
    let fixture = Fixture::new();
    let output = fixture.trained("done", &[]);
    let config = fixture.path("done.toml");
    let refused = fixture.train(&config, &["train.seed=7", "model.heads=4"]).output().unwrap();
    assert_eq!(refused.status.code(), Some(2));
    let expected = format!(
        "error: {} belongs to a run with another configuration:\n  model.n_head: 2 in the checkpoint, 4 now\n  \
         train.seed: 42 in the checkpoint, 7 now\n\
         restore the configuration to resume, or train into another output directory\n",
        last_checkpoint(&output).display()
    );
    assert_eq!(stderr(&refused), expected);
    succeed(&mut fixture.train(&config, &["train.log_every=5", "train.keep_checkpoints=1"]));
}

#[test]
fn a_run_that_is_made_longer_gives_the_weights_of_a_long_one() {
    let fixture = Fixture::new();
    let constant = "train.schedule=\"constant\"";
    let long = fixture.trained("long", &[constant]);
    let short = fixture.trained("short", &[constant, "train.steps=20"]);
    let shorter = fixture.train(&fixture.path("short.toml"), &[constant, "train.steps=15"]).output().unwrap();
    assert_eq!(shorter.status.code(), Some(2), "{}", stderr(&shorter));
    assert!(stderr(&shorter).contains("train.steps: 20 in the checkpoint, 15 now"), "{}", stderr(&shorter));
    let grown = fixture.train(&fixture.path("short.toml"), &[constant]).output().unwrap();
    assert!(grown.status.success() && stderr(&grown).contains("the run has 40 steps now, and had 20"), "{}", stderr(&grown));
    for file in ["model.safetensors", "optimizer.safetensors"] {
        let [long, grown] = [&long, &short].map(|output| fs::read(last_checkpoint(output).join(file)).unwrap());
        assert!(long == grown, "{file} differs from the long run's");
    }
}

#[test]
fn a_run_whose_end_took_the_best_weights_is_not_made_longer() {
    let fixture = Fixture::validated_by_strangers();
    let best = ["train.keep_best=true", "train.eval_every=5"];
    fixture.trained("best", &best);
    let longer = fixture.train(&fixture.path("best.toml"), &[best[0], best[1], "train.steps=60"]).output().unwrap();
    assert_eq!(longer.status.code(), Some(2), "{}", stderr(&longer));
    assert!(stderr(&longer).contains("holds the best weights, of step "), "{}", stderr(&longer));
}

#[test]
fn a_run_with_no_intact_checkpoint_does_not_start_over() {
    let fixture = Fixture::new();
    let output = fixture.trained("done", &["train.keep_checkpoints=1"]).join("checkpoints");
    fs::write(last_checkpoint(&fixture.path("done")).join("model.safetensors"), "").unwrap();
    let refused = fixture.train(&fixture.path("done.toml"), &[]).output().unwrap();
    assert_eq!(refused.status.code(), Some(9));
    let message = stderr(&refused);
    assert!(
        message.contains("warning: checkpoint step-0000000040 is damaged (model.safetensors: 0 bytes, the manifest says"),
        "{message}"
    );
    assert!(message.contains(&format!("error: none of the 1 checkpoints in {} is intact", output.display())), "{message}");
}
