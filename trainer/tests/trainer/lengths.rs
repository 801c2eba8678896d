//! Lengths that are epochs or shares of the run.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::fixture::{Fixture, stderr, succeed};

fn records(output: &Path) -> Vec<Value> {
    let log = fs::read_to_string(output.join("steps.jsonl")).unwrap();
    log.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn evaluated(output: &Path) -> Vec<u64> {
    records(output)
        .iter()
        .filter(|record| record.get("validation_loss").is_some())
        .map(|record| record["step"].as_u64().unwrap())
        .collect()
}

/// A run of 40 steps.
#[test]
fn a_share_is_the_steps_that_it_stands_for() {
    let fixture = Fixture::new();
    let numbers = ["train.warmup_steps=4", "train.eval_every=10", "train.checkpoint_every=14", "train.log_every=2"];
    let shares = ["train.warmup_steps=10%", "train.eval_every=25%", "train.checkpoint_every=35%", "train.log_every=5%"];
    let (numbers, written) = (fixture.trained("numbers", &numbers), fixture.trained("shares", &shares));
    assert_eq!(records(&numbers), records(&written));
    assert_eq!(evaluated(&written), [0, 10, 20, 30, 40]);
    assert!(written.join("checkpoints/step-0000000028").exists());
    let values = ["train.warmup_steps=50%", shares[1]];
    let longer = fixture.train(&fixture.path("shares.toml"), &values).output().unwrap();
    assert!(stderr(&longer).contains("train.warmup_steps: \"10%\" in the checkpoint, \"50%\" now"), "{}", stderr(&longer));
}

#[test]
fn an_epoch_is_a_pass_over_the_data() {
    let fixture = Fixture::new();
    let config = fixture.config("output");
    let text = fs::read_to_string(&config).unwrap().replace("steps = 40", "epochs = 3.0").replace("warmup_steps = 4", "");
    fs::write(&config, text).unwrap();
    let values =
        ["train.eval_every=1 epoch", "train.checkpoint_every=1 epoch", "train.log_every=0.5 epochs", "train.warmup_steps=1 epoch"];
    succeed(&mut fixture.train(&config, &values));
    let (steps, evaluated) = (records(&fixture.path("output")), evaluated(&fixture.path("output")));
    let last = steps.iter().filter_map(|record| record["step"].as_u64()).max().unwrap();
    let epoch = evaluated[1];
    assert!(last.div_ceil(3) <= epoch && epoch <= last / 3 + 1, "{epoch} of {last}");
    assert_eq!(evaluated.len(), 4, "before the first step and after each epoch: {evaluated:?}");
    let rate =
        |step: u64| steps.iter().find(|record| record["step"] == step).and_then(|record| record["learning_rate"].as_f64()).unwrap();
    assert!(rate(epoch) < rate(epoch + 1) && rate(epoch + 1) > rate(last), "the warm-up is an epoch");
    assert!(fixture.path(&format!("output/checkpoints/step-{epoch:010}")).exists());
}
