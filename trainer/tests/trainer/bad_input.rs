//! Every mistake has its sentence and its exit code.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use crate::fixture::{Fixture, last_checkpoint, program, stderr};

/// The command must fail with this code, and say all of this on stderr: one message, no backtrace.
fn assert_fails(output: &Output, code: i32, parts: &[&str]) {
    let message = stderr(output);
    assert_eq!(output.status.code(), Some(code), "{message}");
    for part in parts {
        assert!(message.contains(part), "`{part}` is not in: {message}");
    }
    assert!(message.starts_with("error: ") && !message.contains("stack backtrace") && !message.contains("panicked"), "{message}");
}

fn with_weights(fixture: &Fixture, weights: &Path) -> Output {
    let config = fixture.config("from-weights");
    fixture.train(&config, &[&format!("initial_weights={}", weights.display())]).output().unwrap()
}

/// A copy of a trained model, to be spoilt.
fn copy_of(fixture: &Fixture, model: &Path, name: &str) -> std::path::PathBuf {
    let copy = fixture.path(name);
    fs::create_dir(&copy).unwrap();
    for file in ["config.json", "model.safetensors"] {
        fs::copy(model.join(file), copy.join(file)).unwrap();
    }
    copy
}

#[test]
fn configuration() {
    let fixture = Fixture::new();
    let config = fixture.config("output");
    let cases: [(&[&str], &str); 5] = [
        (&["train.blok_size=8"], "unknown key `train.blok_size`; did you mean `train.block_size`?"),
        (&["train.micro_batch=0"], "train.micro_batch: micro_batch must be at least 1, but is 0"),
        (&["train.block_size=64"], "train.block_size = 64 is longer than the model's context of 48 positions"),
        (&["data=nowhere"], "nowhere is not a prepared dataset: it does not exist"),
        (&["train.warmup_steps=41"], "train.warmup_steps: the warm-up of 41 steps is longer than the run of 40"),
    ];
    let long = format!("sample.prompt={}", "fn ".repeat(60));
    let too_long: (&[&str], _) = (&[&long], "leaves no room in the model's context of 48; shorten it");
    for (arguments, expected) in cases.into_iter().chain([too_long]) {
        assert_fails(&fixture.train(&config, arguments).output().unwrap(), 2, &[expected]);
    }
    assert_fails(&fixture.train(Path::new("missing.toml"), &[]).output().unwrap(), 2, &["cannot read missing.toml: No such file"]);
    assert!(!fixture.path("output/checkpoints").exists());
    let spinning = fixture.train(&config, &["train.threads=100000"]).output().unwrap();
    assert_fails(&spinning, 2, &["train.threads: 100000 threads on a machine with "]);
}

#[test]
fn too_little_data() {
    let fixture = Fixture::new();
    let config = fixture.config("output");
    let small = fixture.prepare("small", 2).display().to_string();
    let data = format!("data={small}");
    let too_small = fixture.train(&config, &[&data, "train.block_size=200", "model.context=200"]).output().unwrap();
    assert_fails(&too_small, 2, &["the training split has ", "which is less than one block of 200", "lower `train.block_size`"]);
    let step = fixture.train(&config, &[&data, "train.gradient_accumulation=50"]).output().unwrap();
    assert_fails(&step, 2, &["but one step reads 100 (micro_batch × gradient_accumulation)"]);
}

#[test]
fn weights() {
    let fixture = Fixture::new();
    let model = last_checkpoint(&fixture.trained("trained", &[]));

    let truncated = copy_of(&fixture, &model, "truncated");
    let file = truncated.join("model.safetensors");
    let bytes = fs::read(&file).unwrap();
    fs::write(&file, &bytes[..bytes.len() / 2]).unwrap();
    assert_fails(&with_weights(&fixture, &truncated), 2, &["truncated/model.safetensors is not a complete safetensors file"]);

    let not_a_number = copy_of(&fixture, &model, "nan");
    let mut spoilt = bytes.clone();
    let end = spoilt.len();
    spoilt[end - 4..].copy_from_slice(&f32::NAN.to_le_bytes());
    fs::write(not_a_number.join("model.safetensors"), spoilt).unwrap();
    assert_fails(&with_weights(&fixture, &not_a_number), 2, &["holds NaN or infinity"]);

    let other_vocabulary = copy_of(&fixture, &model, "vocabulary");
    let config = fs::read_to_string(model.join("config.json")).unwrap().replace("\"vocab_size\": ", "\"vocab_size\": 9");
    fs::write(other_vocabulary.join("config.json"), config).unwrap();
    assert_fails(&with_weights(&fixture, &other_vocabulary), 2, &["the dataset's tokenizer has ", "but the weights know 9"]);

    let other_tokens = copy_of(&fixture, &model, "tokens");
    fs::copy(model.join("merges.txt"), other_tokens.join("merges.txt")).unwrap();
    let vocabulary = fs::read_to_string(model.join("vocab.json")).unwrap();
    let mut ids: serde_json::Map<String, serde_json::Value> = serde_json::from_str(&vocabulary).unwrap();
    for id in ids.values_mut().filter(|id| [5, 6].map(Some).contains(&id.as_u64())) {
        *id = (11 - id.as_u64().unwrap()).into();
    }
    fs::write(other_tokens.join("vocab.json"), serde_json::json!(ids).to_string()).unwrap();
    let differs = ["token 5 is \"'\" for the weights and \"&\" in the dataset", "kind = \"files\" and directory = their directory"];
    assert_fails(&with_weights(&fixture, &other_tokens), 2, &differs);
    let data = fixture.path("data");
    let evaluated = program().arg("eval").arg("--model").arg(&other_tokens).arg("--data").arg(&data).output().unwrap();
    assert_fails(&evaluated, 2, &differs);

    let pickle = copy_of(&fixture, &model, "pickle");
    fs::remove_file(pickle.join("model.safetensors")).unwrap();
    fs::write(pickle.join("pytorch_model.bin"), b"\x80\x02cos\nsystem\nX\x04\0\0\0true\x85R.").unwrap();
    assert_fails(&with_weights(&fixture, &pickle), 2, &["pytorch_model.bin", "it is some other pickle"]);

    assert_fails(&with_weights(&fixture, &fixture.path("absent")), 2, &["absent/config.json: No such file"]);
}

/// The best of no evaluations.
#[test]
fn best_weights_without_validation_text() {
    let fixture = Fixture::new();
    let data = fixture.path("data").join("dataset.json");
    let description = fs::read_to_string(&data).unwrap();
    let mut description: serde_json::Value = serde_json::from_str(&description).unwrap();
    description["validation"] = serde_json::json!({ "tokens": 0, "documents": 0, "bytes": 0, "shards": [] });
    fs::write(&data, description.to_string()).unwrap();
    for set in ["train.keep_best=true", "train.early_stopping_patience=2"] {
        let failed = fixture.train(&fixture.config("output"), &[set]).output().unwrap();
        assert_fails(&failed, 2, &[set.split('=').next().unwrap(), "the dataset has no validation text"]);
    }
}

/// A limit on the size of files stands in for a full disk: both fail in the middle of a write.
#[test]
fn full_disk() {
    let fixture = Fixture::new();
    let config = fixture.config("output");
    // Without what `program` adds, so that a failure is also told when the trainer starts itself again.
    let limited = "ulimit -f 64; exec \"$0\" train \"$1\"";
    let failed = Command::new("sh").args(["-c", limited, env!("CARGO_BIN_EXE_ft-trainer")]).arg(&config).output().unwrap();
    assert_fails(&failed, 1, &["cannot write ", "model.safetensors: File too large", "Raise the limit"]);
    assert_eq!(fs::read_dir(fixture.path("output/checkpoints")).unwrap().count(), 0, "nothing half-written stays");
    fixture.trained("output", &[]);
}

#[test]
fn unwritable_output() {
    let fixture = Fixture::new();
    let config = fixture.config("output");
    fs::write(fixture.path("file"), "").unwrap();
    let failed = fixture.train(&config, &["output=file"]).output().unwrap();
    assert_fails(&failed, 1, &["cannot create file"]);
}

#[test]
fn a_diverging_run_ends_with_advice() {
    let fixture = Fixture::new();
    let config = fixture.config("output");
    let failed = fixture.train(&config, &["train.learning_rate=1e30", "train.eval_every=0"]).output().unwrap();
    assert_fails(&failed, 1, &[" diverged: loss ", "Lower `train.learning_rate`"]);
}

#[test]
fn two_processes_in_one_directory() {
    let fixture = Fixture::new();
    let config = fixture.config("output");
    fs::create_dir(fixture.path("output")).unwrap();
    let lock = fs::File::create(fixture.path("output/.lock")).unwrap();
    lock.lock().unwrap();
    assert_fails(
        &fixture.train(&config, &[]).output().unwrap(),
        1,
        &["another process is training in ", "choose another output directory"],
    );
}

#[test]
fn generation_and_evaluation() {
    let fixture = Fixture::new();
    let model = last_checkpoint(&fixture.trained("trained", &[]));
    let run = |arguments: &[&str]| {
        program().args(arguments).arg("--model").arg(&model).current_dir(fixture.directory.path()).output().unwrap()
    };
    let long = "fn ".repeat(60);
    assert_fails(&run(&["generate", "--prompt", &long]), 2, &["leaves no room in the model's context of 48; shorten it"]);
    assert_fails(&run(&["generate", "--prompt", "fn", "--top-p", "0"]), 2, &["expected a number above 0 and at most 1"]);
    assert_fails(&run(&["eval", "--data", "absent"]), 2, &["absent is not a prepared dataset"]);
    assert_fails(&run(&["eval", "--data", "data", "--block-size", "49"]), 2, &["longer than the model's context of 48"]);
}
