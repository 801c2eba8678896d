//! A run's reports on its steps.

use super::Run;
use super::checkpoint;
use crate::error::Failure;
use crate::journal::Record;
use crate::process;
use crate::progress::Event;

impl Run {
    /// Into the log, and where it is due as a line of progress.
    pub(crate) fn report(
        &mut self,
        loss: f64,
        learning_rate: f64,
        gradient_norm: f64,
        skipped: Option<String>,
    ) -> Result<(), Failure> {
        let (step, steps, tokens) = (self.state.step, self.state.steps, self.state.tokens);
        self.recorder.record(&Record::Step { step, loss, learning_rate, gradient_norm, tokens, skipped: skipped.clone() })?;
        if let Some(reason) = skipped {
            // Not every number is one that a progress line can hold.
            return self.recorder.tell(Event::Skipped { step, reason });
        }
        if !step.is_multiple_of(self.config.train.log_every.steps()) && step != steps && step != 1 {
            return Ok(());
        }
        let tokens_per_second = self.recorder.pace.take_tokens_per_second();
        let mfu = self.recorder.pace.utilisation(tokens_per_second);
        let eta_seconds = ((steps - step) * self.config.train.tokens_per_step()) as f64 / tokens_per_second;
        let peak_memory_bytes = process::peak_memory();
        self.recorder.tell(Event::Step {
            step,
            steps,
            loss,
            learning_rate,
            gradient_norm,
            tokens_per_second,
            mfu,
            eta_seconds,
            peak_memory_bytes,
        })
    }

    /// Why the run ends, and a setting to change.
    pub(crate) fn diverged(&self, loss: f64, gradient_norm: f64) -> Failure {
        let step = self.state.step + 1;
        let saved = self.recorder.saved.map_or("there is no checkpoint yet".to_owned(), |saved| {
            format!("the newest checkpoint is {}", checkpoint::name(saved))
        });
        Failure::other(format!(
            "step {step} diverged: loss {loss}, gradient norm {gradient_norm}; {saved}. \
             Lower `train.learning_rate`, lengthen `train.warmup_steps` or clip with `train.clip_norm`, and train into a new output directory"
        ))
    }
}
