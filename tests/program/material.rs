//! Material that the trainer would refuse is refused before a machine is paid for: by `plan`, and in a job's first stage.

use serde_json::{Value, json};

use crate::common::{Sandbox, model::write_model};

/// A job on the fake cloud that starts from the model.
fn place() -> Sandbox {
    let sandbox = Sandbox::new();
    write_model(&sandbox.path("weights"));
    sandbox.write("ftctl.toml", "backend = \"fake\"\n");
    sandbox.write("text.txt", "Once upon a time there was a small town by the sea. ".repeat(400));
    sandbox.write(
        "job.toml",
        "name = \"a\"\ninitial_weights = \"weights\"\n[data]\ntrain = [\"text.txt\"]\n[train]\nblock_size = 32\nsteps = 4\n",
    );
    sandbox
}

#[test]
fn what_fits_is_planned_with_what_is_uploaded() {
    let sandbox = place();
    let said = sandbox.run(&["plan", "job.toml", "-o", "json"]);
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    let told: Value = serde_json::from_str(&said.stdout).expect("JSON");
    let bytes: u64 = ["config.json", "model.safetensors"]
        .iter()
        .map(|name| sandbox.path("weights").join(name).metadata().expect("there").len())
        .sum();
    assert_eq!(told["weights_upload"], json!({"files": 2, "bytes": bytes}));
    assert!(sandbox.run(&["plan", "job.toml"]).stdout.contains("in 2 files to upload"));
}

/// The tokenizer of a directory that has none.
const OF_THE_WEIGHTS: &[&str] = &["data.tokenizer.kind=files", "data.tokenizer.directory=weights"];

/// The damage, the flags beside it, and the words of the refusal.
type Case<'c> = (&'c dyn Fn(&Sandbox), &'c [&'c str], &'c str);

#[test]
fn a_plan_refuses_what_the_trainer_would() {
    let prompt = format!("sample.prompt=\"{}\"", ["word"; 200].join(" "));
    let cases: [Case<'_>; 18] = [
        (&|_| (), &[&prompt], "sample.prompt: a prompt of 200 tokens leaves no room in the model's context of 64; shorten it"),
        (
            &|sandbox| {
                sandbox.write("weights/model.safetensors", "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n");
            },
            &[],
            "weights/model.safetensors is a pointer of git-lfs",
        ),
        (
            &|sandbox| std::fs::remove_file(sandbox.path("weights/model.safetensors")).expect("removed"),
            &[],
            "has none of model.safetensors",
        ),
        (&|sandbox| sandbox.write("weights/model.safetensors", "cut"), &[], "it may be truncated"),
        (&|_| (), &["initial_weights=\"weights/model.safetensors\""], "is a file; name the directory with it and its config.json"),
        (
            &|sandbox| sandbox.write("weights/config.json", "{\"model_type\": \"llama\"}"),
            &[],
            "model_type = \"llama\" is not supported",
        ),
        (
            &|sandbox| {
                let path = sandbox.path("weights/config.json");
                let text = std::fs::read_to_string(&path).expect("text").replace("\"n_layer\":1", "\"n_layer\":2");
                std::fs::write(path, text).expect("written");
            },
            &[],
            "tensor transformer.h.1.ln_1.weight is missing",
        ),
        (&|_| (), &["train.block_size=65"], "train.block_size = 65 is longer than the model's context of 64 positions"),
        (&|_| (), &["model.layers=3"], "model.layers = 3, but the initial weights have 1"),
        (&|sandbox| sandbox.write("text.txt", "Once"), &[], "the training split has 2 tokens"),
        (&|_| (), &["train.gradient_accumulation=100000"], "but one step reads 100000 (micro_batch × "),
        (
            &|_| (),
            &["train.gradient_accumulation=50000", "compute.processes_per_node=2"],
            "but one step reads 100000 (processes × micro_batch × gradient_accumulation); add text, or lower",
        ),
        (
            &|_| (),
            &["train.warmup_steps=4", "train.steps=", "train.epochs=0.0001"],
            "the warm-up of 4 steps is longer than the run of 1",
        ),
        (&|_| (), &["train.warmup_steps=2 epochs", "train.steps=", "train.epochs=1.0"], "steps is longer than the run of"),
        (
            &|_| (),
            &["train.keep_best=true", "train.eval_every=1", "data.validation_fraction=0"],
            "train.keep_best needs a validation loss",
        ),
        (&|_| (), &["data.tokenizer.kind=train", "data.tokenizer.vocabulary=300"], "but the weights know 50304"),
        (&|_| (), OF_THE_WEIGHTS, "weights: neither tokenizer.json, nor vocab.json with merges.txt"),
        (&|sandbox| sandbox.write("weights/encoder.json", "{}"), OF_THE_WEIGHTS, "copy them to vocab.json and merges.txt"),
    ];
    for (change, sets, expected) in cases {
        let sandbox = place();
        change(&sandbox);
        let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
        if sets.iter().any(|set| set.ends_with('=')) {
            let text = std::fs::read_to_string(sandbox.path("job.toml")).expect("text").replace("steps = 4\n", "");
            sandbox.write("job.toml", text);
        }
        let sets: Vec<&str> = sets.iter().filter(|set| !set.ends_with('=')).flat_map(|set| ["--set", set]).collect();
        let said = sandbox.run(&[&["plan", "job.toml"], &sets[..]].concat());
        assert!(said.code == Some(2) && said.stderr.contains(expected), "{expected}: {:?} {}", said.code, said.stderr);
        assert!(said.stdout.contains("starts from"), "the plan is shown all the same: {}", said.stdout);
        let said = sandbox.run(&[&["plan", "job.toml", "-o", "json"], &sets[..]].concat());
        let told: Value = serde_json::from_str(&said.stdout).expect("JSON");
        assert!(!told["missing"].as_array().expect("a list").is_empty(), "{expected}");
        let said = sandbox.run(&[&["submit", "job.toml"], &sets[..]].concat());
        assert!(said.code == Some(2) && said.stderr.contains(expected), "{expected}: {:?} {}", said.code, said.stderr);
    }
    let said = place().run(&["plan", "job.toml", "--set", "initial_weights=\"gpt2\""]);
    assert!(said.code == Some(2) && said.stderr.contains("weights of the hub are named hf:OWNER/NAME"), "{}", said.stderr);
}

#[test]
fn another_tokenizer_beside_the_weights_is_known_before_the_text_is_read() {
    let sandbox = place();
    sandbox.write(
        "other.toml",
        "name = \"o\"\n[data]\ntrain = [\"text.txt\"]\n[data.tokenizer]\nkind = \"train\"\nvocabulary = 300\n",
    );
    assert_eq!(sandbox.run(&["prepare", "--job", "other.toml", "--out", "other"]).code, Some(0));
    std::fs::copy(sandbox.path("other/tokenizer.json"), sandbox.path("weights/tokenizer.json")).expect("copied");
    let said = sandbox.run(&["plan", "job.toml"]);
    assert!(said.code == Some(2) && said.stderr.contains("for the weights and"), "{}", said.stderr);
    assert!(said.stderr.contains("prepare the data with the weights' own tokenizer"), "{}", said.stderr);
}

#[test]
fn what_a_text_has_is_told() {
    let sandbox = Sandbox::new();
    sandbox.write("a.jsonl", "{\"text\": \"Hello<|endoftext|>World\"}\nno row\n");
    let prepare = |more: &[&str]| sandbox.run(&[&["prepare", "a.jsonl", "--validation-fraction", "0"], more].concat());
    let said = prepare(&["--out", "refused"]);
    assert!(said.code == Some(2) && said.stderr.contains("a.jsonl is malformed in line 2"), "{}", said.stderr);
    let said = prepare(&["--out", "literal", "--on-bad-row", "skip"]);
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    assert!(said.stderr.contains("1 row was left out") && said.stderr.contains("<|endoftext|> once"), "{}", said.stderr);
    let said = prepare(&["--out", "split", "--on-bad-row", "skip", "--end-of-text", "split", "-o", "json"]);
    let told: Value = serde_json::from_str(&said.stdout).expect("JSON");
    assert_eq!((&told["description"]["train"]["tokens"], &told["description"]["train"]["documents"]), (&json!(4), &json!(2)));
    assert!(!said.stderr.contains("<|endoftext|>"), "{}", said.stderr);
}
