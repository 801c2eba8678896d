//! The estimate that is printed before a run, against what the run needed.

use serde_json::Value;

use crate::fixture::{Fixture, last_checkpoint, program, succeed};

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
    for recompute in ["none", "selective", "full"] {
        let how = format!("train.recompute={recompute}");
        let values: Vec<&str> = VALUES.into_iter().chain([how.as_str()]).collect();
        let summary: Value =
            serde_json::from_slice(&std::fs::read(fixture.trained(recompute, &values).join("summary.json")).unwrap()).unwrap();
        let set = values.iter().flat_map(|value| ["--set", value]);
        let inspected = succeed(program().args(["inspect", "--json"]).arg(fixture.path(&format!("{recompute}.toml"))).args(set));
        let inspected: Value = serde_json::from_str(&inspected).unwrap();
        let (estimate, peak) =
            (inspected["training_memory_bytes"]["total"].as_f64().unwrap(), summary["peak_memory_bytes"].as_f64().unwrap());
        assert!((estimate / peak - 1.0).abs() < 0.05, "{recompute}: {estimate:.3e} bytes estimated, {peak:.3e} measured");
    }
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
