//! Progress lines: one JSON object a line in `progress.jsonl`, appended while the run goes on.
//!
//! A reader ignores unknown fields and unknown events, so that an older reader follows a newer trainer.
//! Times and rates live here; `steps.jsonl` holds only what an undisturbed run would repeat byte for byte.

use serde::{Deserialize, Serialize};

/// Version of the line format, in every line as `v`.
pub const VERSION: u32 = 1;

/// One line of `progress.jsonl`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Line {
    pub v: u32,
    /// Seconds since the Unix epoch.
    pub time: f64,
    #[serde(flatten)]
    pub event: Event,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// The run begins or resumes.
    Start {
        /// First step of this process, 0 for a fresh run.
        step: u64,
        steps: u64,
        parameters: u64,
        tokens_per_step: u64,
        flops_per_token: f64,
        device: String,
        /// Sequences that go through the model at once.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        micro_batch: Option<usize>,
    },
    /// One optimizer step, every `log_every` steps.
    Step {
        /// Steps completed.
        step: u64,
        steps: u64,
        /// Mean cross-entropy of the step's tokens, in nats.
        loss: f64,
        learning_rate: f64,
        gradient_norm: f64,
        tokens_per_second: f64,
        /// Achieved share of the device's measured matmul rate; the FLOP formula is named in `trainer.md` of the reader's manual.
        mfu: f64,
        /// Seconds until the last step at the current rate.
        eta_seconds: f64,
        /// Most main memory that this process has had at once.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        peak_memory_bytes: Option<u64>,
    },
    /// A step that changed no weight.
    Skipped { step: u64, reason: String },
    /// An evaluation on the validation split.
    Eval {
        step: u64,
        /// Token-weighted mean cross-entropy, in nats.
        loss: f64,
        /// `exp(loss)`.
        perplexity: f64,
    },
    /// A checkpoint is complete under this name in `checkpoints/`.
    Checkpoint { step: u64, name: String },
    /// Text generated at an evaluation or at the end.
    Sample { step: u64, text: String },
    /// The run is complete.
    Done {
        step: u64,
        seconds: f64,
        /// Loss of the weights that the run ended with, on the validation split; absent without one, and in lines of older
        /// versions.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        perplexity: Option<f64>,
    },
    /// Anything a newer trainer says.
    #[serde(other)]
    Unknown,
}

impl Line {
    /// A line stamped with the current time.
    pub fn now(event: Event) -> Self {
        let time = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0.0, |elapsed| elapsed.as_secs_f64());
        Self { v: VERSION, time, event }
    }
}
