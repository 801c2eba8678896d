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
    for template in ["gpt2-wikitext", "gpt2-medium-fp32"] {
        let file = format!("{template}.toml");
        sandbox.ok(&["init", template, "--out", &file]);
        let sizes = ["train.block_size=64", "train.epochs=0.2", "train.threads=1", "sample.tokens=5"];
        let inputs = ["initial_weights=weights", "data.train=[\"a.txt\"]", "data.validation=[\"a.txt\"]"];
        let sets = sizes.iter().chain(&inputs).flat_map(|set| ["--set", set]);
        sandbox.ok(&["run", &file].into_iter().chain(sets).chain(["--quiet"]).collect::<Vec<_>>());
        assert_eq!(sandbox.json(&["status", template])["state"], "succeeded");
    }
}
