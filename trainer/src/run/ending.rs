//! The end of a complete run: its files beside its checkpoints.

use serde::Serialize;

use super::checkpoint;
use super::train::Outcome;
use super::{Run, unwritten};
use crate::device;
use crate::error::Failure;
use crate::files;
use crate::generation::{self, Finish, Request};
use crate::journal::say;
use crate::model::Model;
use crate::process;
use crate::progress::Event;
use crate::settings::SampleConfig;

/// Version of `summary.json`.
pub const SUMMARY_SCHEMA: &str = "ft.summary/1";

/// `summary.json`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Summary {
    pub schema: &'static str,
    /// Steps made.
    pub steps: u64,
    /// Those among them that changed no weight.
    pub skipped: u64,
    /// The validation loss no longer improved.
    pub stopped_early: bool,
    /// Tokens trained on.
    pub tokens: u64,
    pub parameters: u64,
    /// Time spent training, in all processes.
    pub seconds: f64,
    /// On the validation split before the first step; absent without a validation split.
    pub perplexity_before: Option<f64>,
    /// On the validation split after the last step, or where the best weights are kept, of those.
    pub perplexity_after: Option<f64>,
    /// Seconds of this process in which training waited for checkpoints.
    pub checkpoint_seconds: f64,
    /// Whose weights the run ended with, where the best are kept.
    pub best_step: Option<u64>,
    /// Most main memory that this process has held at once, in bytes; absent where the system does not tell.
    pub peak_memory_bytes: Option<u64>,
    /// Most memory of a GPU that this process's tensors took at once, in bytes; absent on the CPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peak_device_memory_bytes: Option<u64>,
    /// Name of the last checkpoint in `checkpoints/`.
    pub checkpoint: String,
}

impl Run {
    /// Writes what a run leaves beside its checkpoints.
    pub(crate) fn finish(mut self) -> Result<Outcome, Failure> {
        // Before the sample: nothing may come between the last step and its weights on the disk.
        self.finish_checkpoint()?;
        if !self.world.leads() {
            return Ok(Outcome::Complete(self.summary()));
        }
        if let Some(adapters) = self.model.adapters() {
            adapters.write(&self.config.output.join("adapter")).map_err(unwritten)?;
        }
        let step = self.state.step;
        if let Some(sample) = &self.config.sample {
            let text = self.sample(sample)?;
            files::replace(&self.config.output.join("sample.txt"), text.as_bytes())?;
            self.recorder.tell(Event::Sample { step, text })?;
        }
        let summary = self.summary();
        files::write_json(&self.config.output.join("summary.json"), &summary)?;
        self.recorder.tell(Event::Done { step, seconds: summary.seconds, perplexity: summary.perplexity_after })?;
        Ok(Outcome::Complete(summary))
    }

    /// The prompt and the model's continuation of it.
    pub(crate) fn sample(&self, sample: &SampleConfig) -> Result<String, Failure> {
        let tokenizer = self.dataset.tokenizer()?;
        let prompt = tokenizer.encode_prompt(&sample.prompt);
        let request = Request {
            tokens: sample.tokens,
            sampling: sample.into(),
            seed: self.config.train.seed,
            vocabulary: tokenizer.vocabulary(),
            end_of_text: tokenizer.end_of_text(),
            draft: false, // The estimate of a run's memory knows none.
        };
        let Model::Gpt2(model) = &self.model;
        let continuation = generation::generate(model, &[prompt], &request)?.swap_remove(0);
        if continuation.finish == Finish::Context {
            say(&format!("the sample ends where the model's context of {} tokens ends", model.shape().context));
        }
        Ok(format!("{}{}\n", sample.prompt, tokenizer.decode(&continuation.tokens)))
    }

    fn summary(&self) -> Summary {
        let state = &self.state;
        Summary {
            schema: SUMMARY_SCHEMA,
            steps: state.step,
            skipped: state.skipped,
            stopped_early: state.step < state.steps,
            tokens: state.tokens,
            parameters: self.model.size(),
            seconds: state.seconds,
            perplexity_before: state.first_validation_loss.map(f64::exp),
            perplexity_after: state.last_validation_loss.map(f64::exp),
            checkpoint_seconds: self.recorder.blocked.as_secs_f64(),
            best_step: state.best_step,
            peak_memory_bytes: process::peak_memory(),
            peak_device_memory_bytes: device::peak_memory(self.model.device()),
            checkpoint: checkpoint::name(state.step),
        }
    }
}
