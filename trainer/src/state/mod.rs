//! `trainer_state.json`: where a run stands, and the settings that it must be resumed with.

pub mod guard;
pub mod loss_scale;

use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::error::Failure;
use crate::files::{read_at_most, write_json};
use crate::journal::STEP_LOG;
use crate::settings::TrainSettings;
use guard::Guard;
use loss_scale::LossScale;

/// Version of `trainer_state.json`.
pub const SCHEMA: &str = "ft.trainer_state/1";
pub const FILE: &str = "trainer_state.json";
/// The file of the optimizer's state.
pub const OPTIMIZER_FILE: &str = "optimizer.safetensors";
/// Files of a checkpoint that only a run that resumes from it reads.
pub const OF_RESUMING: [&str; 3] = [FILE, OPTIMIZER_FILE, STEP_LOG];
/// Bytes that it has at most.
const LONGEST: u64 = 4 << 20;

/// The position of a run after `step` optimizer steps. Which data comes next follows from `step`, the learning rate from the
/// updates among them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct State {
    pub schema: String,
    /// Optimizer steps completed.
    pub step: u64,
    /// Optimizer steps in all.
    pub steps: u64,
    /// Tokens trained on.
    pub tokens: u64,
    /// Steps of `step` that changed no weight, because their loss or gradient was not to be trusted.
    #[serde(default)]
    pub skipped: u64,
    #[serde(default)]
    pub guard: Guard,
    /// In fp16.
    #[serde(default)]
    pub loss_scale: Option<LossScale>,
    /// Threads of the CPU kernels: with libtorch's, a sum split over another number of threads can differ in its last bits.
    pub threads: usize,
    /// Sequences per forward pass, which decides the order of a sum as well: not always what the configuration asks for
    /// ([`crate::settings::micro_batch`]).
    #[serde(default)]
    pub micro_batch: Option<usize>,
    /// Leaves of a step, which decide the order of the sum of gradients, whatever the number of processes.
    #[serde(default = "one")]
    pub leaves: usize,
    /// Length of `steps.jsonl`.
    pub log_bytes: u64,
    /// Step of the last evaluation.
    pub evaluated: Option<u64>,
    /// Mean loss on the validation split before the first step, in nats.
    pub first_validation_loss: Option<f64>,
    /// Mean loss of the last evaluation, in nats.
    pub last_validation_loss: Option<f64>,
    /// Step of the evaluation with the lowest loss, where its weights are kept.
    #[serde(default)]
    pub best_step: Option<u64>,
    /// Time spent training in all processes, up to this checkpoint.
    pub seconds: f64,
    pub identity: Identity,
}

/// The part of the configuration that decides the result of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Identity {
    /// SHA-256 of the dataset's `dataset.json`.
    pub data: String,
    /// SHA-256 over the files of the weights the run started from.
    pub initial_weights: Option<String>,
    /// The model's shape, as in its `config.json`.
    pub model: Value,
    /// The `[train]` table without [`FREE`].
    pub train: Value,
}

/// Settings that may change between two processes of one run: they decide what is said and stored, not what is computed.
/// (`threads` and `leaves` decide, and are compared on their own. Device, engine and reduction decide the last bits, and a run may
/// change them: it says which it has.)
const FREE: [&str; 13] = [
    "checkpoint_every",
    "deterministic",
    "device",
    "engine",
    "keep_checkpoints",
    "leaves",
    "log_every",
    "offload",
    "profile",
    "recompute",
    "reduction",
    "threads",
    "zero",
];

/// The number that runs had before they could have more.
fn one() -> usize {
    1
}

/// How a step is divided. A run may go on with another division of the same step: it reads the same tokens and weighs them alike.
const DIVISION: [&str; 2] = ["micro_batch", "gradient_accumulation"];

/// How long a run is. One that has not come to its new end may go on for longer than it was meant to; the learning rate then
/// follows the longer schedule.
const LENGTH: [&str; 2] = ["steps", "epochs"];

impl Identity {
    pub fn new(data: String, initial_weights: Option<String>, model: Value, settings: &TrainSettings) -> Result<Self, Failure> {
        let mut train = serde_json::to_value(settings).map_err(Failure::other)?;
        remove(&mut train, &FREE);
        Ok(Self { data, initial_weights, model, train })
    }

    /// One line for each value that is not as in `saved`: `train.seed: 42 in the checkpoint, 43 now`. Of a run that is made longer
    /// its length is none of them.
    pub fn differences(&self, saved: &Self, is_longer: bool) -> Vec<String> {
        let (mut saved, mut now) = (Self { train: with_defaults(&saved.train), ..saved.clone() }, self.clone());
        if is_longer {
            remove(&mut saved.train, &LENGTH);
            remove(&mut now.train, &LENGTH);
        }
        if sequences_per_step(&saved.train) == sequences_per_step(&now.train) {
            remove(&mut saved.train, &DIVISION);
            remove(&mut now.train, &DIVISION);
        }
        let (saved, now) = (serde_json::to_value(saved), serde_json::to_value(now));
        let mut lines = Vec::new();
        compare("", &saved.unwrap_or_default(), &now.unwrap_or_default(), &mut lines);
        lines
    }

    /// Whether the same division of a step was asked for.
    pub fn divides_as(&self, saved: &Self) -> bool {
        DIVISION.iter().all(|key| self.train.get(key) == saved.train.get(key))
    }
}

fn remove(table: &mut Value, keys: &[&str]) {
    if let Value::Object(table) = table {
        table.retain(|key, _| !keys.contains(&key.as_str()));
    }
}

/// [`TrainSettings::sequences_per_step`]; a micro-batch of `auto` counts as one.
fn sequences_per_step(train: &Value) -> u64 {
    let number = |key: &str| train.get(key).and_then(Value::as_u64).unwrap_or(1);
    DIVISION.iter().fold(1, |product, key| product.saturating_mul(number(key)))
}

/// A `[train]` table as an older version saved it, with the defaults of the settings that it did not have.
fn with_defaults(saved: &Value) -> Value {
    let mut defaults = serde_json::to_value(TrainSettings::default()).unwrap_or_default();
    remove(&mut defaults, &FREE);
    let (Value::Object(mut table), Value::Object(saved)) = (defaults, saved) else { return saved.clone() };
    table.extend(saved.clone());
    Value::Object(table)
}

fn compare(key: &str, saved: &Value, now: &Value, lines: &mut Vec<String>) {
    let empty = Map::new();
    match (saved, now) {
        _ if saved == now => (),
        (Value::Object(_), Value::Object(_)) => {
            let (saved, now) = (saved.as_object().unwrap_or(&empty), now.as_object().unwrap_or(&empty));
            let added = now.keys().filter(|key| !saved.contains_key(*key));
            for child in saved.keys().chain(added) {
                let path = if key.is_empty() { child.clone() } else { format!("{key}.{child}") };
                compare(&path, saved.get(child).unwrap_or(&Value::Null), now.get(child).unwrap_or(&Value::Null), lines);
            }
        }
        _ => lines.push(format!("{key}: {saved} in the checkpoint, {now} now")),
    }
}

impl State {
    /// Updates that the optimizer has made.
    pub fn updates(&self) -> u64 {
        self.step.saturating_sub(self.skipped)
    }

    pub fn read(checkpoint: &Path) -> Result<Self, Failure> {
        let path = checkpoint.join(FILE);
        let text = read_at_most(&path, LONGEST).map_err(|error| Failure::io("read", &path, &error))?;
        let unreadable = |error: serde_json::Error| Failure::Integrity(format!("cannot resume from {}: {error}", path.display()));
        let value: Value = serde_json::from_slice(&text).map_err(unreadable)?;
        if value["schema"] != SCHEMA {
            let schema = &value["schema"];
            return Err(Failure::input(format!(
                "cannot resume from {}: its schema is {schema}, this version reads `{SCHEMA}`",
                path.display()
            )));
        }
        serde_json::from_value(value).map_err(unreadable)
    }

    pub fn write(&self, checkpoint: &Path) -> Result<(), Failure> {
        write_json(&checkpoint.join(FILE), self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::micro_batch::MicroBatch;

    fn identity(change: impl FnOnce(&mut TrainSettings)) -> Identity {
        let mut settings = TrainSettings::default();
        change(&mut settings);
        Identity::new("abc".to_owned(), None, serde_json::json!({"n_layer": 2}), &settings).unwrap()
    }

    #[test]
    fn what_decides_the_result_is_compared() {
        let saved = identity(|_| ());
        let mut now = identity(|train| (train.seed, train.steps) = (43, Some(9)));
        now.model["n_layer"] = 3.into();
        let expected = [
            "model.n_layer: 2 in the checkpoint, 3 now",
            "train.seed: 42 in the checkpoint, 43 now",
            "train.steps: null in the checkpoint, 9 now",
        ];
        assert_eq!(now.differences(&saved, false), expected);
        assert!(!now.differences(&saved, true).contains(&expected[expected.len() - 1].to_owned()), "a longer run");
        assert_eq!(now.differences(&saved, true).len(), expected.len() - 1);
    }

    #[test]
    fn a_setting_that_did_not_exist_yet_had_its_default() {
        let mut saved = identity(|_| ());
        saved.train.as_object_mut().unwrap().retain(|key, _| key != "optimizer" && key != "momentum");
        assert!(identity(|_| ()).differences(&saved, false).is_empty());
        let now = identity(|train| train.momentum = 0.5);
        assert_eq!(now.differences(&saved, false), ["train.momentum: 0.95 in the checkpoint, 0.5 now"]);
    }

    #[test]
    fn a_step_may_be_divided_otherwise_and_not_grow() {
        let divided =
            |micro_batch, parts| identity(|train| (train.micro_batch, train.gradient_accumulation) = (micro_batch, parts));
        let saved = divided(MicroBatch::Sequences(2), 6);
        for (micro_batch, parts) in [(MicroBatch::Sequences(12), 1), (MicroBatch::Sequences(1), 12), (MicroBatch::Auto, 12)] {
            let now = divided(micro_batch, parts);
            assert!(now.differences(&saved, false).is_empty() && !now.divides_as(&saved), "{micro_batch:?} x {parts}");
        }
        assert!(divided(MicroBatch::Sequences(2), 6).divides_as(&saved));
        let expected = ["train.micro_batch: 2 in the checkpoint, 4 now"];
        assert_eq!(divided(MicroBatch::Sequences(4), 6).differences(&saved, false), expected);
    }

    #[test]
    fn what_is_said_and_stored_may_change() {
        let now = identity(|train| {
            (train.log_every, train.keep_checkpoints, train.checkpoint_every, train.threads) = (1.into(), 9, 9.into(), Some(1));
        });
        assert!(now.differences(&identity(|_| ()), false).is_empty());
    }
}
