//! libtorch's kernels, which a GPU runs too, beside this program's own: the same run, and the same promises.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::fixture::{Fixture, last_checkpoint, stderr, succeed};

const LIBTORCH: &str = "train.engine=libtorch";

/// The losses of all steps.
fn curve(output: &Path) -> Vec<f64> {
    let log = fs::read_to_string(output.join("steps.jsonl")).unwrap();
    let lines = log.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    lines.filter_map(|line| line["loss"].as_f64()).collect()
}

fn worst(left: &[f64], right: &[f64]) -> f64 {
    assert_eq!(left.len(), right.len());
    left.iter().zip(right).map(|(left, right)| (left / right - 1.0).abs()).fold(0.0, f64::max)
}

/// The bytes of the last checkpoint, and of the whole log.
fn bytes(output: &Path) -> [Vec<u8>; 3] {
    let summary: Value = serde_json::from_slice(&fs::read(output.join("summary.json")).unwrap()).unwrap();
    let checkpoint = output.join("checkpoints").join(summary["checkpoint"].as_str().unwrap());
    [checkpoint.join("model.safetensors"), checkpoint.join("optimizer.safetensors"), output.join("steps.jsonl")]
        .map(|path| fs::read(path).unwrap())
}

#[test]
fn both_engines_train_alike_for_a_hundred_steps() {
    let fixture = Fixture::new();
    for (name, value) in [("plain", "train.steps=100"), ("dropout", "train.dropout=0.1"), ("documents", "train.document_mask=true")]
    {
        let values = ["train.steps=100", value];
        let own = curve(&fixture.trained(&format!("{name}-own"), &values));
        let libtorch = curve(&fixture.trained(&format!("{name}-libtorch"), &[&values[..], &[LIBTORCH]].concat()));
        assert_eq!(own.len(), 100);
        assert!(own[99] < own[0] - 0.5, "a run that learns nothing compares nothing");
        assert!(worst(&own, &libtorch) < 1e-5, "{name}: {:.1e}", worst(&own, &libtorch));
    }
}

/// A machine with other cores, or more processes on one, takes up a run with another number of threads.
#[test]
fn the_own_kernels_give_the_same_bytes_with_any_number_of_threads() {
    const WIDE: [&str; 5] =
        ["train.steps=2", "train.warmup_steps=0", "model.width=144", "train.micro_batch=3", "train.gradient_accumulation=2"];
    let fixture = Fixture::new();
    let ways: [&[&str]; 6] = [
        &["train.dropout=0.1", "train.attention_dropout=0.1"],
        &["train.precision=bf16", "train.document_mask=true"],
        &["train.precision=fp16", "train.recompute=full"],
        &["train.lora.rank=2", "train.lora.dropout=0.1"],
        &["train.optimizer=muon", "train.precision=bf16"],
        &["train.optimizer=adafactor"],
    ];
    for (number, way) in ways.into_iter().enumerate() {
        let with = |threads: &str| {
            let name = format!("{number}-{threads}");
            bytes(&fixture.trained(&name, &[&WIDE[..], way, &[&format!("train.threads={threads}")]].concat()))
        };
        let expected = with("1");
        for threads in ["2", "3"] {
            assert!(with(threads) == expected, "{way:?} differs with {threads} threads");
        }
    }
}

#[test]
fn a_run_goes_on_with_the_cores_that_there_are() {
    let fixture = Fixture::new();
    let begun = ["train.threads=3", "model.width=144"];
    let output = fixture.trained("begun", &begun);
    let (expected, last) = (bytes(&output), last_checkpoint(&output));
    fs::remove_dir_all(&last).unwrap();
    let config = fixture.path("begun.toml");
    fs::write(&config, fs::read_to_string(&config).unwrap().replace("threads = 1\n", "")).unwrap();
    succeed(&mut fixture.train(&config, &begun[1..]));
    let state: Value = serde_json::from_slice(&fs::read(last.join("trainer_state.json")).unwrap()).unwrap();
    let cores = std::thread::available_parallelism().unwrap().get();
    assert_eq!(state["threads"], cores);
    assert!(bytes(&output) == expected, "{cores} threads give other bytes than 3");
    fs::remove_dir_all(&last).unwrap();
    succeed(&mut fixture.train(&config, &["train.threads=2", begun[1]]));
    assert!(bytes(&output) == expected, "2 threads give other bytes than 3");
}

/// Its sums may have other last digits with another number.
#[test]
fn a_run_with_libtorchs_kernels_keeps_its_number_of_threads() {
    let fixture = Fixture::new();
    let output = fixture.trained("begun", &[LIBTORCH, "train.threads=3"]);
    fs::remove_dir_all(last_checkpoint(&output)).unwrap();
    let config = fixture.path("begun.toml");
    let refused = fixture.train(&config, &[LIBTORCH, "train.threads=2"]).output().unwrap();
    assert_eq!(refused.status.code(), Some(2));
    assert!(
        stderr(&refused).contains(" another configuration:\n  train.threads: 3 in the checkpoint, 2 now\n"),
        "{}",
        stderr(&refused)
    );
    fs::write(&config, fs::read_to_string(&config).unwrap().replace("threads = 1\n", "")).unwrap();
    succeed(&mut fixture.train(&config, &[LIBTORCH]));
    let state = fs::read(last_checkpoint(&output).join("trainer_state.json")).unwrap();
    assert_eq!(serde_json::from_slice::<Value>(&state).unwrap()["threads"], 3);
}

/// The optimizer in main memory, recomputation, and a resumption in the middle that changes both: as on a GPU, in its own code.
#[test]
fn saving_memory_and_resuming_change_no_byte() {
    let fixture = Fixture::new();
    for way in ["precision=fp32", "precision=bf16", "precision=fp16", "optimizer=muon", "optimizer=adafactor"] {
        let way = format!("train.{way}");
        let values = [LIBTORCH, &way, "train.steps=12", "train.checkpoint_every=6"];
        let name = |how: &str| format!("{way}-{how}");
        let expected = bytes(&fixture.trained(&name("plain"), &values));
        for (recompute, offload) in
            [("selective", "none"), ("host", "none"), ("none", "optimizer"), ("full", "model"), ("full", "optimizer")]
        {
            let how = [format!("train.recompute={recompute}"), format!("train.offload={offload}")];
            let output = fixture.trained(&name(&format!("{recompute}-{offload}")), &[&values[..], &[&how[0], &how[1]]].concat());
            assert!(bytes(&output) == expected, "{way} {recompute} {offload} differs");
        }
        let output = fixture.path(&name("full-optimizer"));
        fs::remove_dir_all(output.join("checkpoints/step-0000000012")).unwrap();
        fixture.trained(&name("full-optimizer"), &values);
        assert!(bytes(&output) == expected, "{way} differs when it resumes otherwise");
    }
}

/// A checkpoint knows no device: one engine takes up what the other left.
#[test]
fn a_run_goes_on_with_the_other_engine() {
    let fixture = Fixture::new();
    let whole = curve(&fixture.trained("whole", &[]));
    for (first, second) in [("own", "libtorch"), ("libtorch", "own")] {
        let engines = [first, second].map(|engine| format!("train.engine={engine}"));
        let name = format!("{first}-{second}");
        let output = fixture.trained(&name, &[&engines[0], "train.checkpoint_every=20"]);
        fs::remove_dir_all(output.join("checkpoints/step-0000000040")).unwrap();
        fixture.trained(&name, &[&engines[1], "train.checkpoint_every=20"]);
        assert!(worst(&whole, &curve(&output)) < 1e-5, "{name}: {:.1e}", worst(&whole, &curve(&output)));
    }
}

#[test]
fn a_gpu_that_is_not_there_is_refused_before_anything_is_loaded() {
    let fixture = Fixture::new();
    let config = fixture.config("refused");
    let train = |values: &[&str]| fixture.train(&config, values).env("CUDA_VISIBLE_DEVICES", "").output().unwrap();
    let refused = train(&["train.device=cuda", "data=nowhere"]);
    assert_eq!(refused.status.code(), Some(2), "{}", stderr(&refused));
    assert!(stderr(&refused).starts_with("error: device = \"cuda\" is not available: "), "{}", stderr(&refused));
    let refused = train(&[LIBTORCH, "train.offload=model", "train.lora.rank=8"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(stderr(&refused).contains("train.offload does not go together with train.lora"), "{}", stderr(&refused));
    assert!(!fixture.path("refused").exists());
    let chosen = train(&["train.device=auto"]);
    let said = String::from_utf8_lossy(&chosen.stdout);
    assert!(chosen.status.success() && said.contains("device: the CPU, because "), "{said}{}", stderr(&chosen));
}
