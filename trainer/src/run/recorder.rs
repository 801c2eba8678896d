//! The records of a run: its log and progress, its checkpoints and best weights, and its pace. The leader alone writes them,
//! except the large files of checkpoints, which all write.

use std::path::Path;
use std::time::{Duration, Instant};

use super::best::Best;
use super::checkpoint::saving::Saving;
use super::checkpoint::writing::Writing;
use crate::error::Failure;
use crate::journal::{Journal, Record, say};
use crate::model::Parameters;
use crate::model::weights::parameters::ModelError;
use crate::progress::Event;
use crate::settings::{Compat, TrainConfig};

/// Everything that a run writes down.
pub(crate) struct Recorder {
    /// The leader's.
    pub files: Option<Files>,
    pub saving: Saving,
    /// Step of the newest checkpoint, which may still be under way.
    pub saved: Option<u64>,
    pub writing: Option<Writing>,
    /// Time that training has waited for checkpoints.
    pub blocked: Duration,
    pub pace: Pace,
}

/// The files that a run keeps in its output directory while it goes on.
pub(crate) struct Files {
    pub journal: Journal,
    pub best: Best,
}

impl Files {
    /// Continues the records of `checkpoint`, or begins them.
    pub fn open(config: &TrainConfig, checkpoint: Option<&Path>) -> Result<Self, Failure> {
        let mut journal = Journal::open(&config.output, checkpoint)?;
        if config.train.compat == Some(Compat::Fairseq) {
            journal = journal.in_bits();
        }
        let best = Best::open(&config.output, checkpoint)?;
        Ok(Self { journal, best })
    }
}

impl Recorder {
    /// `saved`: the step of the checkpoint that the run goes on from.
    pub fn new(files: Option<Files>, saving: Saving, saved: Option<u64>, pace: Pace) -> Self {
        Self { files, saving, saved, writing: None, blocked: Duration::ZERO, pace }
    }

    /// Appends to the step log.
    pub fn record(&mut self, record: &Record) -> Result<(), Failure> {
        self.files.as_mut().map_or(Ok(()), |files| files.journal.record(record))
    }

    /// Appends to the progress lines and says the same to people.
    pub fn tell(&mut self, event: Event) -> Result<(), Failure> {
        self.files.as_mut().map_or(Ok(()), |files| files.journal.tell(event))
    }

    /// Prints a message for people.
    pub fn say(&self, message: &str) {
        if self.files.is_some() {
            say(message);
        }
    }

    /// Keeps these weights as the best of the run.
    pub fn keep_best(&self, weights: &Parameters) -> Result<(), Failure> {
        self.files.as_ref().map_or(Ok(()), |files| files.best.replace(weights))
    }

    /// Writes the best weights over `weights`.
    pub fn restore_best(&self, weights: &mut Parameters) -> Result<(), ModelError> {
        self.files.as_ref().map_or(Ok(()), |files| files.best.restore(weights))
    }
}

/// How fast the run goes.
#[derive(Debug)]
pub struct Pace {
    /// Measured matmul rate of the device, in FLOP per second.
    pub peak: f64,
    pub flops_per_token: f64,
    started: Instant,
    /// Seconds of earlier processes.
    seconds_before: f64,
    /// Since the last report, in training steps only.
    busy: Duration,
    tokens: u64,
}

impl Pace {
    /// `peak` is known to the leader alone, who tells of it.
    pub(crate) fn new(flops_per_token: f64, peak: f64, seconds_before: f64) -> Self {
        let started = Instant::now();
        Self { peak, flops_per_token, started, seconds_before, busy: Duration::ZERO, tokens: 0 }
    }

    pub(crate) fn add(&mut self, tokens: u64, busy: Duration) {
        self.tokens += tokens;
        self.busy += busy;
    }

    /// The rate since the last call.
    pub(crate) fn take_tokens_per_second(&mut self) -> f64 {
        let rate = self.tokens as f64 / self.busy.as_secs_f64().max(1e-9);
        (self.tokens, self.busy) = (0, Duration::ZERO);
        rate
    }

    /// Model FLOP utilisation: the share of the measured matmul rate.
    pub(crate) fn utilisation(&self, tokens_per_second: f64) -> f64 {
        tokens_per_second * self.flops_per_token / self.peak
    }

    /// Time spent in all processes so far.
    pub(crate) fn seconds(&self) -> f64 {
        self.seconds_before + self.started.elapsed().as_secs_f64()
    }
}
