//! Evaluations on the validation split in the course of a run, and the best weights among them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use super::Run;
use super::eval::{self, Evaluation, Reading};
use crate::data::shard::Split;
use crate::error::Failure;
use crate::journal::trace::span;
use crate::journal::{Record, grouped, say};
use crate::progress::Event;

impl Run {
    /// Before the first step, every `eval_every` steps, and after the last.
    pub(crate) fn evaluation_is_due(&self) -> bool {
        let (step, every) = (self.state.step, self.config.train.eval_every);
        let scheduled = step == 0 || step == self.state.steps || (every > 0 && step.is_multiple_of(every));
        let possible = eval::sequences(self.dataset.split(Split::Validation), self.validation()) > 0;
        scheduled && possible && self.state.evaluated != Some(step)
    }

    fn validation(&self) -> Reading {
        let settings = &self.config.train;
        Reading { block_size: settings.block_size, batch: settings.micro_batch.sequences(), limit: settings.eval_sequences }
    }

    /// False when `stop` interrupted it: an evaluation has no state, and is made anew when the run resumes.
    pub(crate) fn evaluate(&mut self, stop: &AtomicBool) -> Result<bool, Failure> {
        let (mut heard, _span) = (Instant::now(), span("validation"));
        let stream = self.dataset.split(Split::Validation);
        let evaluation = eval::evaluate(&self.model, stream, self.validation(), |done, all| {
            if heard.elapsed().as_secs() >= 10 {
                heard = Instant::now();
                say(&format!("validating: {} of {} sequences", grouped(done), grouped(all)));
            }
            !(stop.load(Ordering::Relaxed) && self.may_pause())
        })?;
        let Some(evaluation) = evaluation else { return Ok(false) };
        self.note(evaluation)?;
        Ok(true)
    }

    fn note(&mut self, Evaluation { loss, perplexity, .. }: Evaluation) -> Result<(), Failure> {
        let step = self.state.step;
        if !loss.is_finite() {
            return Err(Failure::other(format!(
                "the validation loss after step {step} is {loss}: the weights have diverged or are not a model's"
            )));
        }
        self.state.evaluated = Some(step);
        self.state.first_validation_loss.get_or_insert(loss);
        self.state.last_validation_loss = Some(loss);
        if self.state.guard.note_evaluation(loss) && self.config.train.keeps_best() {
            self.let_checkpoint_copy();
            self.best.replace(self.model.trained())?;
            self.state.best_step = Some(step);
        }
        self.journal.record(&Record::Evaluation { step, validation_loss: loss, validation_perplexity: perplexity })?;
        self.journal.tell(Event::Eval { step, loss, perplexity })
    }

    /// Ends a run that keeps its best weights with them: what it leaves is what was measured to be best.
    pub(crate) fn take_best(&mut self) -> Result<(), Failure> {
        if self.state.step < self.state.steps {
            let evaluations = self.config.train.early_stopping_patience.unwrap_or(0);
            say(&format!("stopped early: the validation loss has not improved for {evaluations} evaluations"));
        }
        let Some(best) = self.state.best_step.filter(|best| *best != self.state.step) else { return Ok(()) };
        self.let_checkpoint_copy();
        let mut restored = Ok(());
        self.model.replace(|parameters| restored = self.best.restore(parameters));
        restored.map_err(|error| Failure::other(format!("cannot end with the weights of step {best}, the best: {error}")))?;
        self.state.last_validation_loss = self.state.guard.best_validation_loss();
        say(&format!("the weights are those of step {best}, whose validation loss is the lowest"));
        Ok(())
    }
}
