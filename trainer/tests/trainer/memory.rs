//! The estimate that is printed before a run, against what the run needed.

use std::path::Path;
use std::process::Command;

use ft_trainer::error::tells_of_no_memory;
use serde_json::Value;

use crate::fixture::{Fixture, last_checkpoint, program, stderr, succeed};

const VALUES: [&str; 10] = [
    "model.layers=6",
    "model.width=512",
    "model.heads=8",
    "model.context=256",
    "train.block_size=256",
    "train.micro_batch=8",
    "train.gradient_accumulation=1",
    "train.steps=2",
    "train.warmup_steps=0",
    "train.eval_sequences=1",
];

#[test]
fn the_estimate_is_within_five_percent_of_the_peak() {
    let fixture = Fixture::new();
    let recompute = ["none", "selective", "full", "host"].map(|how| format!("train.recompute={how}"));
    let alone = recompute.iter().map(String::as_str).chain(["train.offload=model", "train.lora.rank=8"]).map(|how| vec![how]);
    let on_files_in_half = ["train.offload=model", "train.precision=bf16", "train.micro_batch=16"];
    let apart = ["train.offload=optimizer", "train.engine=libtorch"];
    let streamed = ["train.offload=model", "train.engine=libtorch", "train.precision=bf16"];
    for how in alone.chain([on_files_in_half.to_vec(), apart.to_vec(), streamed.to_vec()]) {
        let values: Vec<&str> = VALUES.into_iter().chain(how.iter().copied()).collect();
        let how = how.join(",");
        let summary: Value =
            serde_json::from_slice(&std::fs::read(fixture.trained(&how, &values).join("summary.json")).unwrap()).unwrap();
        let set = values.iter().flat_map(|value| ["--set", value]);
        let inspected = succeed(program().args(["inspect", "--json"]).arg(fixture.path(&format!("{how}.toml"))).args(set));
        let inspected: Value = serde_json::from_str(&inspected).unwrap();
        let (estimate, peak) =
            (inspected["training_memory_bytes"]["total"].as_f64().unwrap(), summary["peak_memory_bytes"].as_f64().unwrap());
        assert!((estimate / peak - 1.0).abs() < 0.05, "{how}: {estimate:.3e} bytes estimated, {peak:.3e} measured");
    }
}

/// A machine without one plans for it too.
#[test]
fn the_memory_of_a_gpu_is_told_where_a_run_asks_for_one() {
    let inspected = |sets: &[&str]| -> Value {
        let fixture = Fixture::new();
        let sets = sets.iter().flat_map(|value| ["--set", value]);
        let said = succeed(program().args(["inspect", "--json"]).arg(fixture.config("planned")).args(sets));
        serde_json::from_str(&said).unwrap()
    };
    let (cpu, gpu) = (inspected(&["train.device=cpu"]), inspected(&["train.device=cuda", "train.offload=optimizer"]));
    assert_eq!((&cpu["training_memory_of"], &cpu["main_memory_beside_gpu_bytes"]), (&"main memory".into(), &0.into()));
    let parameters = gpu["parameters"].as_u64().unwrap();
    assert_eq!((&gpu["training_memory_of"], &gpu["main_memory_beside_gpu_bytes"]), (&"gpu".into(), &(16 * parameters).into()));
    assert_eq!(gpu["training_memory_bytes"]["weights"], 4 * parameters, "those for products, in fp32 here");
    assert_eq!(gpu["training_memory_bytes"]["optimizer"], 0);
}

#[test]
fn auto_takes_the_whole_step_at_once_where_it_fits() {
    let fixture = Fixture::new();
    let weights = |name: &str, how: [&str; 2]| {
        std::fs::read(last_checkpoint(&fixture.trained(name, &how)).join("model.safetensors")).unwrap()
    };
    let at_once = weights("at-once", ["train.micro_batch=4", "train.gradient_accumulation=1"]);
    assert!(weights("auto", ["train.micro_batch=auto", "train.gradient_accumulation=4"]) == at_once);
    let state = std::fs::read(last_checkpoint(&fixture.path("auto")).join("trainer_state.json")).unwrap();
    assert_eq!(serde_json::from_slice::<Value>(&state).unwrap()["micro_batch"], 4);
}

/// KiB of address space: libtorch, some threads and two sequences of [`VALUES`] at a time take up to 1,000,000, eight from
/// 1,200,000 on; where the threads of `rayon` make products, 1,100,000 and 1,300,000.
const ENOUGH_FOR_TWO: &str = "1150000";

/// The command with no more than [`ENOUGH_FOR_TWO`] KiB of address space: the system then refuses memory to libtorch and Rust.
fn within_limits(command: &Command) -> Command {
    let mut limited = Command::new("sh");
    limited.args(["-c", &format!("ulimit -v {ENOUGH_FOR_TWO} && exec \"$0\" \"$@\"")]);
    limited.arg(command.get_program()).args(command.get_args()).current_dir(command.get_current_dir().unwrap());
    // It starts as many threads as there are processors otherwise, each with megabytes of address space.
    limited.env("RAYON_NUM_THREADS", "2");
    limited.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    limited
}

#[test]
fn a_run_out_of_memory_says_so_and_goes_on_with_fewer_sequences_at_a_time() {
    let fixture = Fixture::new();
    let values = [&VALUES[..], &["train.steps=8", "train.learning_rate=1e-3", "train.threads=2", "train.dropout=0.1"]].concat();
    let losses = |output: &Path| -> Vec<f64> {
        let log = std::fs::read_to_string(output.join("steps.jsonl")).unwrap();
        log.lines().filter_map(|line| serde_json::from_str::<Value>(line).unwrap()["loss"].as_f64()).collect()
    };
    let expected = losses(&fixture.trained("roomy", &values));
    let config = fixture.config("narrow");
    let refused = within_limits(&fixture.train(&config, &values)).output().unwrap();
    assert_eq!(refused.status.code(), Some(71), "{} {}", refused.status, stderr(&refused));
    assert!(stderr(&refused).starts_with("error: ") && tells_of_no_memory(&stderr(&refused)), "{}", stderr(&refused));
    let said = succeed(&mut within_limits(&fixture.train(&config, &[&values[..], &["micro_batch_limit=3"]].concat())));
    assert!(said.contains("a step is 4 x 2 sequences, because memory ran out with 4"), "{said}");
    let found = losses(&fixture.path("narrow"));
    assert_eq!((found.len(), expected.len()), (8, 8));
    for (found, expected) in found.iter().zip(&expected) {
        assert!((found / expected - 1.0).abs() < 1e-5, "{found} instead of {expected}");
    }
    assert!(expected[7] < expected[0] - 0.5, "a run that learns nothing compares nothing");
    // On its own it keeps the number that it once had to take.
    std::fs::remove_file(fixture.path("narrow/summary.json")).unwrap();
    let said = succeed(&mut fixture.train(&config, &values));
    assert!(said.contains("a step is 4 x 2 sequences"), "{said}");
}
