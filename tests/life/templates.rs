//! The templates of real recipes, at a size that a test can afford.

use std::fs;

use crate::sandbox::Sandbox;

/// Small enough for a second, with GPT-2's own vocabulary.
const TOY: &str = "[data]\ntrain = [\"a.txt\"]\nvalidation = [\"a.txt\"]\n[model]\nlayers = 1\nheads = 1\nwidth = 8\ncontext = 64\n\
    [train]\nsteps = 1\nblock_size = 64\nthreads = 1\n";

#[test]
#[ignore = "needs the trainer: tests/run builds it"]
fn every_fine_tuning_template_runs_at_toy_scale() {
    let sandbox = Sandbox::new();
    let text: Vec<String> =
        (0..400).map(|number| format!("Once {number} people lived in the city of {number} towers.\n")).collect();
    fs::write(sandbox.path("a.txt"), text.concat()).unwrap();
    fs::write(sandbox.path("start.toml"), format!("name = \"start\"\n{TOY}")).unwrap();
    sandbox.ok(&["run", "start.toml", "--quiet"]);
    sandbox.ok(&["download", "start", "--to", sandbox.path("weights").to_str().unwrap()]);
    for template in ["gpt2-wikitext", "gpt2-medium-fp32", "gpt2-xl-v100"] {
        let file = format!("{template}.toml");
        sandbox.ok(&["init", template, "--out", &file]);
        let sizes = ["train.block_size=64", "train.epochs=0.2", "train.threads=1", "sample.tokens=5"];
        let inputs = ["initial_weights=weights", "data.train=[\"a.txt\"]", "data.validation=[\"a.txt\"]"];
        let sets = sizes.iter().chain(&inputs).flat_map(|set| ["--set", set]);
        sandbox.ok(&["run", &file].into_iter().chain(sets).chain(["--quiet"]).collect::<Vec<_>>());
        assert_eq!(sandbox.json(&["status", template])["state"], "succeeded");
    }
}

#[test]
#[ignore = "needs the trainer: tests/run builds it"]
fn the_template_of_fairseqs_recipe_runs_at_toy_scale() {
    let sandbox = Sandbox::new();
    let text: Vec<String> = (0..400).map(|number| format!("{number} ships sailed to the {number} islands.\n")).collect();
    fs::write(sandbox.path("a.txt"), text.concat()).unwrap();
    sandbox.ok(&["init", "gpt2-small-openwebtext", "--out", "a.toml"]);
    let data = ["data.format=text", "data.train=[\"a.txt\"]", "data.validation=[\"a.txt\"]", "sample.tokens=5"];
    let model = ["model.layers=1", "model.heads=1", "model.width=8", "model.context=64", "train.block_size=64", "train.threads=1"];
    let length = ["train.micro_batch=2", "train.gradient_accumulation=2", "train.steps=6", "train.warmup_steps=2"];
    let policy = ["train.checkpoint_every=1", "train.keep_checkpoints=3", "train.eval_every=3", "train.log_every=2"];
    let sets = data.iter().chain(&model).chain(&length).chain(&policy).flat_map(|set| ["--set", set]);
    sandbox.ok(&["run", "a.toml"].into_iter().chain(sets).chain(["--quiet"]).collect::<Vec<_>>());
    sandbox.ok(&["download", "gpt2-small-openwebtext", "--to", sandbox.path("got").to_str().unwrap()]);
    let config = fs::read_to_string(sandbox.path("got/config.json")).unwrap();
    assert!(config.contains("xglm"), "fairseq's variant is transformers' XGLM: {config}");
    assert!(fs::read_dir(sandbox.path("got/artifacts/tensorboard")).unwrap().next().is_some(), "event files for TensorBoard");
    let steps = fs::read_to_string(sandbox.path("got/artifacts/steps.jsonl")).unwrap();
    let rates: Vec<f64> = steps
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()["learning_rate"].as_f64())
        .collect();
    assert!(rates[..3].is_sorted() && rates[2..].iter().rev().is_sorted(), "up, then down the cosine: {rates:?}");
}
