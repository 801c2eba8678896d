//! Loss and perplexity of a model on a token stream; of a run on its validation split, and the best weights among them.

use std::ops::Add;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use serde::Serialize;

use super::Run;
use crate::data::shard::{Split, TokenStream};
use crate::error::Failure;
use crate::journal::trace::span;
use crate::journal::{Record, grouped};
use crate::model::{Loss, Model, covering};
use crate::progress::Event;
use crate::settings::SampleConfig;
use crate::world::World;

/// A model's loss on a stream. Every token counts the same, however the stream is cut into batches.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Evaluation {
    /// Mean cross-entropy in nats.
    pub loss: f64,
    /// `exp(loss)`.
    pub perplexity: f64,
    /// Predicted tokens.
    pub tokens: u64,
    /// Blocks read, the last one possibly in part.
    pub sequences: u64,
}

/// How a stream is read.
#[derive(Debug, Clone, Copy)]
pub struct Reading {
    /// Tokens of context a prediction sees at most, and the stride: each token is predicted once.
    pub block_size: usize,
    /// Sequences per forward pass.
    pub batch: usize,
    /// Read only this many blocks from the start.
    pub limit: Option<usize>,
}

/// Blocks that an evaluation reads. 0: the stream has nothing to predict.
pub fn sequences(stream: &TokenStream, reading: Reading) -> u64 {
    let all = covering(stream.len(), reading.block_size);
    reading.limit.map_or(all, |limit| all.min(limit as u64))
}

/// Evaluates, each process of `world` a batch at a time, whose losses are added in the order of the stream; `None` when the stream
/// has nothing to predict or the `go_on` of one of them (called with sequences done and in all) says no.
///
/// # Errors
/// Those of [`TokenStream::read`], and when another process is gone.
pub fn evaluate(
    model: &Model,
    world: &World,
    stream: &TokenStream,
    reading: Reading,
    mut go_on: impl FnMut(u64, u64) -> bool,
) -> Result<Option<Evaluation>, Failure> {
    let sequences = sequences(stream, reading);
    let mut sum = Loss::default();
    for first in (0..sequences).step_by(reading.batch * world.size()) {
        if world.any(!go_on(first, sequences))? {
            return Ok(None);
        }
        let [start, end] = [0, 1].map(|next| sequences.min(first + ((world.rank() + next) * reading.batch) as u64));
        let loss = if start < end { model.loss(&model.batch(stream, start..end, reading.block_size)?) } else { Loss::default() };
        sum = world.gather_losses(&[loss], |_| 1)?.into_iter().fold(sum, Loss::add);
    }
    let (loss, tokens) = (sum.mean(), sum.weight as u64);
    Ok((tokens > 0).then(|| Evaluation { loss, perplexity: loss.exp(), tokens, sequences }))
}

impl Run {
    /// Before the first step, every `eval_every` steps, and after the last.
    pub(crate) fn evaluation_is_due(&self) -> bool {
        let (step, every) = (self.state.step, self.config.train.eval_every.steps());
        let scheduled = step == 0 || step == self.state.steps || (every > 0 && step.is_multiple_of(every));
        let possible = sequences(self.dataset.split(Split::Validation), self.validation()) > 0;
        scheduled && possible && self.state.evaluated != Some(step)
    }

    fn validation(&self) -> Reading {
        let settings = &self.config.train;
        Reading { block_size: settings.block_size, batch: settings.micro_batch.sequences(), limit: settings.eval_sequences }
    }

    /// False when `stop` interrupted it: an evaluation has no state, and is made again when the run resumes.
    pub(crate) fn evaluate(&mut self, stop: &AtomicBool) -> Result<bool, Failure> {
        self.settle()?;
        let (mut heard, _span) = (Instant::now(), span("validation"));
        let stream = self.dataset.split(Split::Validation);
        let evaluation = evaluate(&self.model, &self.world, stream, self.validation(), |done, all| {
            if heard.elapsed().as_secs() >= 10 {
                heard = Instant::now();
                self.recorder.say(&format!("validating: {} of {} sequences", grouped(done), grouped(all)));
            }
            !(stop.load(Ordering::Relaxed) && self.may_pause())
        })?;
        let Some(evaluation) = evaluation else { return Ok(false) };
        self.note(evaluation)?;
        self.write_sample()?;
        Ok(true)
    }

    /// The text of an evaluation; that of the last step is written when its weights are on the disk.
    fn write_sample(&mut self) -> Result<(), Failure> {
        let is_due = |sample: &&SampleConfig| sample.every_evaluation && !self.is_over() && self.world.leads();
        let Some(sample) = self.config.sample.as_ref().filter(is_due) else { return Ok(()) };
        let (step, text) = (self.state.step, self.sample(sample)?);
        self.recorder.record(&Record::Sample { step, sample: text.clone() })?;
        self.recorder.tell(Event::Sample { step, text })
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
            self.let_checkpoint_copy()?;
            self.recorder.keep_best(self.model.trained())?;
            self.state.best_step = Some(step);
        }
        self.recorder.record(&Record::Evaluation { step, validation_loss: loss, validation_perplexity: perplexity })?;
        self.recorder.tell(Event::Eval { step, loss, perplexity })
    }

    /// Ends a run that keeps its best weights with them: it leaves the weights that were measured to be best.
    pub(crate) fn take_best(&mut self) -> Result<(), Failure> {
        if self.state.step < self.state.steps {
            let evaluations = self.config.train.early_stopping_patience.unwrap_or(0);
            self.recorder.say(&format!("stopped early: the validation loss has not improved for {evaluations} evaluations"));
        }
        let Some(best) = self.state.best_step.filter(|best| *best != self.state.step) else { return Ok(()) };
        self.settle()?;
        self.let_checkpoint_copy()?;
        let mut restored = Ok(());
        self.model.replace(|parameters| {
            let unreadable = |error| Failure::other(format!("cannot end with the weights of step {best}, the best: {error}"));
            restored = self
                .recorder
                .restore_best(parameters)
                .map_err(unreadable)
                .and_then(|()| self.world.broadcast(parameters.tensors()));
        });
        restored?;
        self.state.last_validation_loss = self.state.guard.best_validation_loss();
        self.recorder.say(&format!("the weights are those of step {best}, whose validation loss is the lowest"));
        Ok(())
    }
}
