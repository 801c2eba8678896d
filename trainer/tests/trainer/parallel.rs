//! Processes that share the steps of a run, here as threads: the bytes that they leave are those of one.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use ft_trainer::error::Failure;
use ft_trainer::run::train::{Outcome, Wishes, train};
use ft_trainer::settings::file;
use ft_trainer::world::World;
use serde_json::Value;

use crate::fixture::Fixture;

/// Eight micro-batches, and an evaluation of three batches; with libtorch's kernels, which are fast in any build.
pub const SHARED: [&str; 10] = [
    "train.engine=libtorch",
    "train.steps=4",
    "train.eval_every=2",
    "train.eval_sequences=3",
    "train.checkpoint_every=2",
    "train.micro_batch=1",
    "train.gradient_accumulation=8",
    "train.block_size=8",
    "train.warmup_steps=0",
    "model.width=16",
];
pub const FOUR: &str = "train.leaves=4";

/// Values of a run; numbers of processes that share it, and the stage of ZeRO among them.
pub type Way<'a> = (&'a [&'a [&'a str]], &'a [(usize, u8)]);

/// Settings that a step may have beside its products. Loss scaling belongs to fp16.
const KINDS: [&[&str]; 6] = [
    &["train.gradient_accumulation=16"],
    &["train.dropout=0.1", "train.attention_dropout=0.1"],
    &["train.document_mask=true"],
    &["train.lora.rank=2", "train.lora.dropout=0.1"],
    &["train.recompute=full"],
    &["train.precision=fp16", "train.loss_scaling.growth_interval=1"],
];

/// Every combination of kinds, number formats and optimizers, of a run with eight leaves.
pub fn grid() -> Vec<Vec<&'static str>> {
    let optimizers = ["train.optimizer=adamw", "train.optimizer=muon", "train.optimizer=adafactor"];
    let formats = ["train.precision=fp32", "train.precision=bf16"];
    let is_twice = |kind: &[&str], format: &str| kind[0] == "train.precision=fp16" && format == formats[1];
    let all = optimizers.iter().flat_map(|optimizer| formats.iter().map(move |format| (*optimizer, *format)));
    let all = all.flat_map(|(optimizer, format)| KINDS.iter().map(move |kind| (optimizer, format, *kind)));
    let values = |(optimizer, format, kind): (_, _, &[&'static str])| [&["train.leaves=8", optimizer, format], kind].concat();
    all.filter(|(_, format, kind)| !is_twice(kind, format)).map(values).collect()
}

/// Whether all of [`grid`] is asked for.
pub fn wants_grid() -> bool {
    std::env::var_os("FT_GRID").is_some()
}

fn values_of(values: &[&str]) -> Vec<String> {
    SHARED.iter().chain(values).map(|value| (*value).to_owned()).collect()
}

/// Trains into `output` with so many, until all are through; where that is `wanted`, until the step that follows an evaluation.
/// Only the first knows `output`.
fn run(fixture: &Fixture, output: &str, size: usize, values: &[&str], wanted: bool) -> Vec<Result<Outcome, Failure>> {
    let config = file::read(&fixture.config(output), &values_of(values)).unwrap();
    let (stop, save) = (AtomicBool::new(false), AtomicBool::new(false));
    let is_evaluated = || fs::read_to_string(fixture.path(output).join("steps.jsonl")).is_ok_and(|log| log.contains("perplexity"));
    let wishes = Wishes { stop: &stop, save: &save };
    let worlds = if size == 1 { vec![World::alone()] } else { World::of_threads(size) };
    let outcomes = thread::scope(|threads| {
        let begin = |world: World| {
            let mut config = config.clone();
            if !world.leads() {
                (config.output, config.initial_weights) = (fixture.path(&elsewhere(world.rank())), None);
            }
            threads.spawn(move || train(&config, &world, wishes))
        };
        let started: Vec<_> = worlds.into_iter().map(begin).collect();
        while wanted && !is_evaluated() {
            thread::sleep(Duration::from_millis(1));
        }
        stop.store(wanted, Ordering::Relaxed);
        started.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!((1..size).all(|rank| is_empty(&fixture.path(&elsewhere(rank)))), "the leader alone writes");
    outcomes
}

/// The output directory of another than the leader.
pub fn elsewhere(rank: usize) -> String {
    format!("elsewhere-{rank}")
}

pub fn is_empty(directory: &Path) -> bool {
    fs::read_dir(directory).is_ok_and(|mut entries| entries.next().is_none())
}

fn trained(fixture: &Fixture, output: &str, size: usize, values: &[&str]) -> PathBuf {
    for outcome in run(fixture, output, size, values, false) {
        assert!(matches!(outcome.unwrap(), Outcome::Complete(_)));
    }
    fixture.path(output)
}

/// The last checkpoint of a run that is through.
fn newest(output: &Path) -> PathBuf {
    let summary: Value = serde_json::from_slice(&fs::read(output.join("summary.json")).unwrap()).unwrap();
    output.join("checkpoints").join(summary["checkpoint"].as_str().unwrap())
}

/// The files that must be the same, whichever processes computed them.
fn result(output: &Path) -> Vec<(&str, Vec<u8>)> {
    let checkpoint = newest(output);
    let mut state: Value = serde_json::from_slice(&fs::read(checkpoint.join("trainer_state.json")).unwrap()).unwrap();
    state["seconds"] = Value::Null;
    let read = |name| (name, fs::read(checkpoint.join(name)).unwrap());
    let files = ["model.safetensors", "optimizer.safetensors", "steps.jsonl"].map(read);
    let beside = ("steps.jsonl beside it", fs::read(output.join("steps.jsonl")).unwrap());
    files.into_iter().chain([("trainer_state.json", state.to_string().into_bytes()), beside]).collect()
}

pub fn assert_same(expected: &Path, found: &Path) {
    for ((name, expected), (_, found)) in result(expected).into_iter().zip(result(found)) {
        assert!(expected == found, "{name} differs");
    }
}

#[test]
fn any_number_of_processes_trains_to_the_bytes_of_one() {
    let fixture = Fixture::new();
    // Tensors of several blocks, parts of which each has.
    let large = ["model.width=256", "model.layers=1"];
    let one_each = ["train.leaves=4", "train.gradient_accumulation=4"];
    let own = [FOUR, "train.engine=own"];
    let ways: [Way<'_>; 15] = [
        (&[&[FOUR]], &[(2, 0), (3, 0), (4, 0), (4, 1), (3, 2)]),
        (&[&own], &[(3, 0), (2, 1)]),
        (&[&own, &["train.precision=bf16", "train.dropout=0.1", "train.document_mask=true"]], &[(3, 1)]),
        (&[&own, &["train.precision=fp16", "train.lora.rank=2"]], &[(2, 2)]),
        (&[&own, &["train.optimizer=muon", "train.offload=optimizer"]], &[(3, 1)]),
        (&[&[FOUR, "train.offload=model", "train.recompute=host"]], &[(2, 2), (4, 1)]),
        (&[&[FOUR, "train.precision=bf16", "train.dropout=0.1"]], &[(4, 1)]),
        (&[&[FOUR, "train.precision=fp16", "train.loss_scaling.growth_interval=1"]], &[(2, 2)]),
        (&[&[FOUR, "train.document_mask=true", "train.attention_dropout=0.1"]], &[(3, 1)]),
        (&[&[FOUR, "train.lora.rank=2", "train.lora.dropout=0.1"]], &[(4, 0), (2, 2)]),
        (&[&[FOUR, "train.optimizer=muon"]], &[(2, 0), (3, 1)]),
        (&[&[FOUR, "train.optimizer=adafactor"]], &[(3, 0), (4, 2)]),
        (&[&large, &one_each], &[(4, 0), (4, 1), (4, 2), (2, 2)]),
        (&[&large, &one_each, &["train.precision=bf16", "train.optimizer=muon", "train.recompute=full"]], &[(4, 2)]),
        (&[&["train.leaves=8", "train.precision=bf16", "train.dropout=0.1"]], &[(8, 0), (8, 1), (8, 2)]),
    ];
    let mut ways: Vec<_> = ways.map(|(values, processes)| (values.concat(), processes.to_vec())).into();
    if wants_grid() {
        let all: Vec<(usize, u8)> = [2, 3, 4, 8].into_iter().flat_map(|size| [0, 1, 2].map(|zero| (size, zero))).collect();
        ways.extend(grid().into_iter().map(|values| (values, all.clone())));
    }
    for (number, (values, processes)) in ways.into_iter().enumerate() {
        let expected = trained(&fixture, &format!("{number}-alone"), 1, &values);
        for (size, zero) in processes {
            let zero = format!("train.zero={zero}");
            let found = trained(&fixture, &format!("{number}-{size}-{zero}"), size, &[&values[..], &[&zero]].concat());
            println!("{size} processes, {zero}: {values:?}");
            assert_same(&expected, &found);
            fs::remove_dir_all(found).unwrap();
        }
    }
    let one_sum = trained(&fixture, "one-sum", 1, &["train.leaves=1"]);
    assert!(result(&one_sum)[0] != result(&fixture.path("0-alone"))[0], "sums whose order does not matter show nothing");
}

/// The losses of a run's steps.
fn losses(output: &Path) -> Vec<f64> {
    let log = fs::read_to_string(output.join("steps.jsonl")).unwrap();
    log.lines().filter_map(|line| serde_json::from_str::<Value>(line).unwrap()["loss"].as_f64()).collect()
}

#[test]
fn the_librarys_order_of_sums_changes_the_last_digits_alone() {
    const EIGHT: &str = "train.leaves=8";
    let fixture = Fixture::new();
    let fast = [EIGHT, "train.reduction=fast"];
    let exact = trained(&fixture, "exact", 1, &[EIGHT]);
    assert_same(&exact, &trained(&fixture, "one", 1, &fast));
    for zero in ["train.zero=0", "train.zero=1", "train.zero=2"] {
        let found = losses(&trained(&fixture, zero, 4, &[&fast[..], &[zero]].concat()));
        let expected = losses(&exact);
        assert_eq!(found.len(), 4);
        let error = |(found, expected): (&f64, &f64)| (found - expected).abs() / expected;
        assert!(found.iter().zip(&expected).map(error).all(|error| error < 1e-5), "{found:?} instead of {expected:?}");
    }
}

#[test]
fn a_step_has_a_leaf_for_each_process_that_begins() {
    let fixture = Fixture::new();
    let expected = trained(&fixture, "alone", 1, &["train.leaves=2"]);
    assert_same(&expected, &trained(&fixture, "begun", 2, &[]));
}

#[test]
fn a_run_goes_on_with_other_numbers_of_processes() {
    let fixture = Fixture::new();
    let expected = trained(&fixture, "undisturbed", 1, &[FOUR]);
    for (size, zero) in [(4, "train.zero=2"), (2, "train.zero=0")] {
        for outcome in run(&fixture, "resumed", size, &[FOUR, zero], true) {
            assert!(matches!(outcome.unwrap(), Outcome::Stopped { step: 1.. }), "{size} processes");
        }
    }
    assert_same(&expected, &trained(&fixture, "resumed", 3, &["train.zero=1"]));
}

/// The first evaluation is the best: all go back to the weights that the leader has kept.
#[test]
fn all_end_with_the_best_weights() {
    let fixture = Fixture::validated_by_strangers();
    let values = [FOUR, "train.keep_best=true", "train.learning_rate=0.1"];
    let expected = trained(&fixture, "alone", 1, &values);
    let summary: Value = serde_json::from_slice(&fs::read(expected.join("summary.json")).unwrap()).unwrap();
    assert!(summary["best_step"].as_u64().unwrap() < 4, "{summary}");
    assert_same(&expected, &trained(&fixture, "shared", 2, &values));
}

/// Steps that are not trusted, and the end, are decided from numbers that all have.
#[test]
fn all_skip_the_same_steps_and_stop_together() {
    let fixture = Fixture::validated_by_strangers();
    let values = [FOUR, "train.steps=400", "train.gradient_accumulation=4", "train.eval_every=150", "train.checkpoint_every=150"];
    let values = [&values[..], &["train.skip_spikes=0.5", "train.early_stopping_patience=1", "train.learning_rate=0.1"]].concat();
    let expected = trained(&fixture, "alone", 1, &values);
    let state: Value = serde_json::from_slice(&fs::read(newest(&expected).join("trainer_state.json")).unwrap()).unwrap();
    assert!(state["skipped"].as_u64().unwrap() > 0 && state["step"].as_u64().unwrap() < 400, "{state}");
    assert_same(&expected, &trained(&fixture, "shared", 3, &[&values[..], &["train.zero=1"]].concat()));
}

/// Free memory differs between machines: the least of them decides for all.
#[test]
fn the_smallest_micro_batch_that_one_can_take_is_that_of_all() {
    let fixture = Fixture::new();
    let config = file::read(&fixture.config("all"), &values_of(&[FOUR, "train.micro_batch=auto"])).unwrap();
    let outcomes: Vec<_> = thread::scope(|threads| {
        let begin = |world: World| {
            let mut config = config.clone();
            config.micro_batch_limit = Some(if world.rank() == 1 { 1 } else { 2 });
            if !world.leads() {
                config.output = fixture.path(&elsewhere(world.rank()));
            }
            let never = AtomicBool::new(false);
            threads.spawn(move || train(&config, &world, Wishes { stop: &never, save: &never }).map(|_| ()))
        };
        World::of_threads(2).into_iter().map(begin).collect::<Vec<_>>().into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
    let state: Value = serde_json::from_slice(&fs::read(newest(&fixture.path("all")).join("trainer_state.json")).unwrap()).unwrap();
    assert_eq!(state["micro_batch"], 1);
    assert_same(&trained(&fixture, "alone", 1, &[FOUR, "train.micro_batch=auto", "micro_batch_limit=1"]), &fixture.path("all"));
}

#[test]
fn the_leader_alone_reads_the_first_weights() {
    let fixture = Fixture::new();
    let first = newest(&trained(&fixture, "first", 1, &["train.leaves=1"]));
    let values = [FOUR, "train.seed=7", &format!("initial_weights={}", first.display())];
    for (number, more) in [&[][..], &["train.lora.rank=2"]].into_iter().enumerate() {
        let values = [&values, more].concat();
        let expected = trained(&fixture, &format!("{number}-alone"), 1, &values);
        run(&fixture, &format!("{number}-shared"), 2, &values, true);
        assert_same(&expected, &trained(&fixture, &format!("{number}-shared"), 3, &values));
    }
}

#[test]
fn more_processes_than_leaves_are_refused() {
    let fixture = Fixture::new();
    for outcome in run(&fixture, "refused", 5, &[FOUR], false) {
        let failure = outcome.unwrap_err();
        assert_eq!(failure.code(), 2);
        assert_eq!(
            failure.to_string(),
            "5 processes cannot share the steps of a run with train.leaves = 4; start at most 4, or set train.leaves in a new run"
        );
    }
}
