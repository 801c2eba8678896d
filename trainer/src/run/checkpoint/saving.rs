//! Checkpoints of a run, written while it goes on.
//!
//! Weights and the optimizer's state change only in an update. Two threads copy them to files while the next step computes its
//! gradient, and only the update waits for them; digests, and bringing it all to the disk, take no time of the training. There is
//! no second copy in memory, but for one tensor of each where they are on a GPU, or adapters are merged.

use std::fs::File;
use std::io::{self, Read};
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::sync::mpsc::Sender;
use std::thread;
use std::time::Instant;

use tch::Kind;

use super::writing::Writing;
use crate::error::Failure;
use crate::journal::trace::span;
use crate::model::Stored;
use crate::model::weights::parameters::ModelError;
use crate::model::weights::tensor_file;
use crate::offload::release;
use crate::optimizer::Remembered;
use crate::progress::Event;
use crate::run::best::Best;
use crate::run::checkpoint;
use crate::run::recorder::Files;
use crate::run::{Run, unwritten};
use crate::state::OPTIMIZER_FILE;
use crate::state::State;
use crate::world::{Aside, World};

impl Run {
    /// Begins a checkpoint, after the one before it is on the disk. It is written while the next step computes its gradient. All
    /// have the same tensors: the leader writes them.
    pub(crate) fn checkpoint(&mut self) -> Result<(), Failure> {
        self.finish_checkpoint()?;
        self.settle()?;
        self.waiting(|run| {
            let step = run.state.step;
            run.state.seconds = run.recorder.pace.seconds();
            run.recorder.saved = Some(step);
            let Some(files) = &run.recorder.files else {
                run.recorder.writing = run.helps_to_write().then(|| run.sending(step));
                return;
            };
            run.state.log_bytes = files.journal.steps_bytes();
            let contents = run.contents(files);
            let writing = files.checkpoints.begin(step, move |directory, copying| contents.write(directory, &copying));
            run.recorder.writing = Some(writing);
        });
        Ok(())
    }

    /// Waits for the checkpoint that is being written, if one is.
    pub(crate) fn finish_checkpoint(&mut self) -> Result<(), Failure> {
        let Some(writing) = self.recorder.writing.take() else { return Ok(()) };
        let step = writing.step;
        self.waiting(|run| {
            writing.finish()?;
            let keep = run.config.train.keep_checkpoints;
            run.recorder.files.as_ref().map_or(Ok(()), |files| files.checkpoints.retain(keep))
        })?;
        self.recorder.tell(Event::Checkpoint { step, name: checkpoint::name(step) })
    }

    /// Lets the checkpoint that is being written copy what an update or better weights change.
    pub(crate) fn let_checkpoint_copy(&mut self) -> Result<(), Failure> {
        if self.recorder.writing.is_none() || self.waiting(|run| run.recorder.writing.as_mut().is_some_and(Writing::is_copied)) {
            return Ok(());
        }
        // It has failed. The others wait for this process to take what they have, and would do so for ever.
        self.finish_checkpoint()
    }

    /// Counts what `work` takes as time that training waits for checkpoints, and shows it in the trace.
    fn waiting<T>(&mut self, work: impl FnOnce(&mut Self) -> T) -> T {
        let (started, _span) = (Instant::now(), span("checkpoint wait"));
        let done = work(self);
        self.recorder.blocked += started.elapsed();
        done
    }

    /// Whether this process has what the leader must write.
    fn helps_to_write(&self) -> bool {
        self.config.train.zero_among(self.world.size()) > 0
    }

    /// Sends the leader this process's share of the optimizer's state, while it writes.
    fn sending(&self, step: u64) -> Writing {
        let (remembered, world) = (self.optimizer.remembered(), self.world.aside(Aside::Checkpoints));
        Writing::begin(step, move |copying| {
            let sent =
                remembered.iter().filter(|tensor| tensor.is_elsewhere()).try_for_each(|tensor| tensor.bring(&world, |_| Ok(())));
            if sent.is_ok() {
                let _ = copying.send(());
            }
            sent
        })
    }

    fn contents(&self, files: &Files) -> Contents {
        let tokenizer = self.dataset.description().tokenizer.files.iter().map(|file| self.config.data.join(&file.file));
        Contents {
            model: self.model.stored(self.dataset.end_of_text()),
            optimizer: self.optimizer.remembered(),
            world: self.world.aside(Aside::Checkpoints),
            tokenizer: tokenizer.collect(),
            steps: (files.journal.steps_path().to_owned(), self.state.log_bytes),
            best: (self.state.best_step.is_some() && !self.is_over()).then(|| files.best.clone()),
            state: self.state.clone(),
        }
    }
}

/// The contents of a checkpoint. The tensors share memory with those of the run.
struct Contents {
    model: Stored,
    optimizer: Vec<Remembered>,
    /// Where the rest of it comes from.
    world: World,
    tokenizer: Vec<PathBuf>,
    /// The step log and how much of it belongs to the checkpoint.
    steps: (PathBuf, u64),
    /// Unless the weights are the best.
    best: Option<Best>,
    state: State,
}

impl Contents {
    /// A Hugging Face directory, and the state to resume from. `copying` is told when neither tensors nor the best weights are
    /// read any more.
    fn write(self, directory: &Path, copying: &Sender<()>) -> Result<(), Failure> {
        if let Some(best) = &self.best {
            best.keep(directory)?;
        }
        // At once: one file alone does not keep the disk busy.
        thread::scope(|threads| {
            let (optimizer, world) = (self.optimizer, self.world);
            let optimizer = threads.spawn(move || write_optimizer(&directory.join(OPTIMIZER_FILE), optimizer, &world));
            self.model.write(directory)?;
            optimizer.join().unwrap_or_else(|panic| resume_unwind(panic))
        })
        .map_err(unwritten)?;
        let _ = copying.send(());
        for file in &self.tokenizer {
            copy(file, directory, u64::MAX)?;
        }
        copy(&self.steps.0, directory, self.steps.1)?;
        self.state.write(directory)
    }
}

/// Writes what is remembered, each tensor from where its parts are.
fn write_optimizer(path: &Path, remembered: Vec<Remembered>, world: &World) -> Result<(), ModelError> {
    let tensors = remembered.into_iter().map(|tensor| (tensor.name.clone(), Kind::Float, tensor.size.clone(), tensor));
    tensor_file::write_pieces(path, tensors.collect(), |_, tensor, write| {
        if tensor.is_elsewhere() {
            return tensor.bring(world, |piece| Ok(write(piece)?));
        }
        write(&tensor.own)?;
        release([&tensor.own]);
        Ok(())
    })
}

/// The first `bytes` of a file, under its name in `directory`.
fn copy(file: &Path, directory: &Path, bytes: u64) -> Result<(), Failure> {
    let copy =
        || io::copy(&mut File::open(file)?.take(bytes), &mut File::create(directory.join(file.file_name().unwrap_or_default()))?);
    copy().map(|_| ()).map_err(|error| Failure::io("copy", file, &error))
}
