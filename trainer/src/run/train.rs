//! The training loop.
//!
//! Everything a step needs follows from the numbers of steps and of updates done: which blocks it reads ([`crate::data::sampler`]),
//! its learning rate ([`crate::schedule`]) and when to evaluate and to save. A run that is killed therefore resumes from its newest
//! checkpoint and gives the same bytes as one that was not.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use super::Run;
use super::checkpoint::writing::Writing;
use super::ending::Summary;
use crate::data::sampler::first_sequence;
use crate::data::shard::Split;
use crate::error::Failure;
use crate::journal::trace::{self, span};
use crate::model::{Batch, Beside, Loss};
use crate::optimizer::{clip_factor, global_norm};
use crate::schedule::learning_rate;
use crate::settings::TrainConfig;
use crate::state::guard::Verdict;
use crate::state::loss_scale::Overflow;
use crate::world::{Arrival, Aside, Gradients, Reduction, Shards, World};

/// How a run ended, when it did not fail.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// All steps are done, or more of them are of no use.
    Complete(Summary),
    /// Stopped on request; the checkpoint of this step is on disk.
    Stopped { step: u64 },
}

/// Requests to a run under way. Each becomes true from outside.
#[derive(Debug, Clone, Copy)]
pub struct Wishes<'a> {
    /// End after a checkpoint.
    pub stop: &'a AtomicBool,
    /// Write a checkpoint and go on; false again when it is heard.
    pub save: &'a AtomicBool,
}

/// Trains as `config` says, from the newest checkpoint in its output directory or from the beginning, until all steps are done or
/// it is asked to stop. Called by every process of `world`; a wish that one of them hears is all of theirs.
pub fn train(config: &TrainConfig, world: &World, wishes: Wishes<'_>) -> Result<Outcome, Failure> {
    let outcome = Run::open(config, world.clone()).and_then(|run| go_on(run, wishes));
    trace::finish();
    world.part(outcome)
}

fn go_on(mut run: Run, wishes: Wishes<'_>) -> Result<Outcome, Failure> {
    loop {
        if run.evaluation_is_due() && !run.evaluate(wishes.stop)? {
            return run.pause();
        }
        if run.checkpoint_is_due() || run.hears(wishes.save)? {
            if run.is_over() {
                run.take_best()?;
            }
            run.checkpoint()?;
        }
        if run.is_over() {
            return run.finish();
        }
        run.step()?;
        if run.recorder.writing.as_ref().is_some_and(Writing::is_finished) {
            run.finish_checkpoint()?;
        }
        if run.world.any(wishes.stop.load(Ordering::Relaxed))? && run.may_pause() {
            return run.pause();
        }
    }
}

impl Run {
    /// One optimizer step: gradients of all micro-batches; clip; update.
    fn step(&mut self) -> Result<(), Failure> {
        let (started, _span) = (Instant::now(), span("step"));
        let scale = self.state.loss_scale.as_ref().map_or(1.0, |scaling| scaling.scale);
        let loss = self.accumulate(scale)?.mean();
        let updating = span("optimizer");
        let gradients = || Shards::of(self.model.gradients());
        let gradient_norm = global_norm(self.shard.as_ref().unwrap_or(&gradients()), &self.shares, &self.world)? / scale;
        let rate = learning_rate(&self.config.train, self.state.updates(), self.state.steps);
        let skipped = match self.judge(loss, gradient_norm) {
            Verdict::Update => {
                let factor = clip_factor(gradient_norm, self.config.train.clip_norm) / scale;
                self.let_checkpoint_copy()?;
                self.update([rate, factor])?;
                None
            }
            Verdict::Skip(reason) => Some(reason),
            Verdict::Diverged => {
                self.finish_checkpoint()?;
                return Err(self.diverged(loss, gradient_norm));
            }
        };
        drop(updating);
        let tokens = self.config.train.tokens_per_step();
        self.state.step += 1;
        self.state.tokens += tokens;
        self.state.skipped += u64::from(skipped.is_some());
        self.recorder.pace.add(tokens, started.elapsed());
        self.report(loss, rate, gradient_norm, skipped)
    }

    /// Makes the gradients those of `scale` times the mean loss of the step. Their divisor is known before the first is computed:
    /// each target of any micro-batch has the same share.
    fn accumulate(&mut self, scale: f64) -> Result<Loss, Failure> {
        let (settings, stream) = (&self.config.train, self.dataset.split(Split::Train));
        let weigh = |part| self.model.weight(stream, self.blocks(part), settings.block_size);
        let weight: f64 = (0..settings.gradient_accumulation).map(weigh).sum();
        let (leaves, each) = (settings.leaves(), settings.gradient_accumulation / settings.leaves());
        let losses = self.add_leaves(scale / weight)?;
        let losses = self.world.gather_losses(&losses, |rank| each * self.world.share_of(rank, leaves).len())?;
        Ok(losses.into_iter().sum())
    }

    /// Adds up the gradients of this process's leaves, then those of all: all of them, or its share alone. Each of the model's
    /// blocks is on its way as soon as nothing more is added to it.
    fn add_leaves(&mut self, scale: f64) -> Result<Vec<Loss>, Failure> {
        let (leaves, each) = (self.config.train.leaves(), self.config.train.gradient_accumulation / self.config.train.leaves());
        let (own, mut before, mut losses) = (self.world.share(leaves), Gradients::default(), Vec::new());
        let (last, arriving) = (own.end * each - 1, self.arriving.take());
        let arrive = |weights| {
            let arrived = arriving.as_ref().and_then(Arrival::next);
            assert!(
                arrived.as_ref().is_none_or(|arrived| *arrived == weights),
                "weights arrive in the order in which they are needed"
            );
            arrived.is_some()
        };
        for leaf in own.clone() {
            if leaf > own.start {
                before.add(leaf - 1, self.model.gradients());
            }
            self.model.zero_gradients();
            for part in (leaf * each..(leaf + 1) * each).filter(|part| *part < last) {
                let batch = self.micro_batch(part)?;
                losses.push(self.model.accumulate(&batch, scale, &mut Beside { arrive: &arrive, done: &mut |_, _| () }));
            }
        }
        let batch = self.micro_batch(last)?;
        let Self { world, shares, shard, model, config, .. } = self;
        let all = config.train.zero_among(world.size()) == 0;
        let reduction = Reduction {
            world: world.clone(),
            shares,
            leaves,
            all,
            order: config.train.reduction,
            device: model.gradients().tensor(0).device(),
            to: shard.as_ref().map(Shards::shared),
        };
        losses.push(reduction.beside(before, |done| model.accumulate(&batch, scale, &mut Beside { arrive: &arrive, done }))?);
        arriving.map_or(Ok(()), Arrival::end).map(|()| losses)
    }

    /// Updates what is this process's to update. It has the rest from the others: while the next step begins, where the model takes
    /// weights as they come.
    fn update(&mut self, numbers: [f64; 2]) -> Result<(), Failure> {
        let Self { world, shares, shard, model, optimizer, config, arriving, .. } = self;
        let (zero, order, mut given) = (config.train.zero_among(world.size()), model.order(), Ok(()));
        model.update(|parameters, gradients, changed| {
            let whole = Shards::of(gradients);
            if zero == 0 {
                return optimizer.step(parameters, &whole, numbers, changed);
            }
            optimizer.step(parameters, shard.as_ref().unwrap_or(&whole), numbers, &mut |_, _| ());
            if let Some(order) = order {
                *arriving = Some(world.give_beside(shares, order, Shards::of(parameters)));
                return;
            }
            given = world.aside(Aside::Tensors).give_shares(shares, &shares.tensors(), &Shards::of(parameters));
            parameters.iter().enumerate().for_each(|(index, entry)| changed(index, &entry.tensor));
        });
        given
    }

    /// Waits for weights that are on their way, for other readers than the next step.
    pub(crate) fn settle(&mut self) -> Result<(), Failure> {
        let Some(arrival) = self.arriving.take() else { return Ok(()) };
        while let Some(weights) = arrival.next() {
            self.model.take_over(weights);
        }
        arrival.end()
    }

    /// In fp16 an overflow is no reason for suspicion while the loss's scale can fall.
    fn judge(&mut self, loss: f64, gradient_norm: f64) -> Verdict {
        let settings = &self.config.train;
        if let Some(scaling) = self.state.loss_scale.as_mut() {
            if loss.is_finite() && gradient_norm.is_finite() {
                scaling.passed(&settings.loss_scaling);
            } else if let Overflow::Scale(next) = scaling.overflowed(&settings.loss_scaling) {
                let what = if loss.is_finite() { "a gradient" } else { "the loss" };
                return Verdict::Skip(format!("{what} overflows fp16; the loss is scaled by {next} from now on"));
            }
        }
        self.state.guard.judge(settings, loss, gradient_norm)
    }

    /// All steps are done, or the validation loss no longer improves.
    pub(crate) fn is_over(&self) -> bool {
        self.state.step == self.state.steps || self.state.guard.has_lost_patience(&self.config.train)
    }

    /// Not between the last step and the choice of the best weights: the last checkpoint is written once, and holds them. An
    /// evaluation can show that the step before it was the last.
    pub(crate) fn may_pause(&self) -> bool {
        let settings = &self.config.train;
        let may_end = self.evaluation_is_due() && self.state.guard.is_losing_patience(settings);
        !(settings.keeps_best() && (self.is_over() || may_end))
    }

    /// The `part`-th micro-batch of the current step.
    fn micro_batch(&self, part: usize) -> Result<Batch, Failure> {
        let (_span, block_size) = (span("data"), self.config.train.block_size);
        let batch = self.model.batch(self.dataset.split(Split::Train), self.blocks(part), block_size)?;
        Ok(batch.at(self.first_sequence(part)))
    }

    /// The blocks that it reads.
    fn blocks(&self, part: usize) -> impl Iterator<Item = u64> {
        let first = self.first_sequence(part);
        (first..first + self.config.train.micro_batch.sequences() as u64).map(|sequence| self.sampler.block(sequence))
    }

    /// Number in the run of its first sequence.
    fn first_sequence(&self, part: usize) -> u64 {
        first_sequence(&self.config.train, self.state.step, part as u64)
    }

    /// Every `checkpoint_every` steps and at the end.
    fn checkpoint_is_due(&self) -> bool {
        let (step, every) = (self.state.step, self.config.train.checkpoint_every.steps());
        let scheduled = self.is_over() || (step > 0 && every > 0 && step.is_multiple_of(every));
        scheduled && self.recorder.saved != Some(step)
    }

    /// Whether a checkpoint outside the schedule is wished. There is none of the start, and never two of a step: such a wish waits
    /// for the next step.
    fn hears(&self, save: &AtomicBool) -> Result<bool, Failure> {
        let step = self.state.step;
        Ok(step > 0 && self.recorder.saved != Some(step) && self.world.any(save.swap(false, Ordering::Relaxed))?)
    }

    /// Leaves the run so that it can be taken up again.
    fn pause(mut self) -> Result<Outcome, Failure> {
        if self.recorder.saved != Some(self.state.step) {
            self.checkpoint()?;
        }
        self.finish_checkpoint()?;
        Ok(Outcome::Stopped { step: self.state.step })
    }
}
