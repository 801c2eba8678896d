//! Checkpoints of a run, written while it goes on.
//!
//! Weights and the optimizer's state change only in an update. Two threads of each process that writes copy its part of them to
//! files while the next step computes its gradient, and only the update waits for them; digests, and bringing it all to the disk,
//! take no time of the training. Nothing is held twice in memory, except one tensor of each file at a time where they are on a GPU,
//! or adapters are merged, and a bucket of numbers that came from another process.

use std::fs::File;
use std::io::{self, Read};
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::sync::mpsc::Sender;
use std::thread;
use std::time::Instant;

use tch::{Kind, Tensor};

use super::Checkpoints;
use super::writers::Writers;
use super::writing::Writing;
use crate::error::Failure;
use crate::journal::trace::span;
use crate::model::Stored;
use crate::model::weights::parameters::ModelError;
use crate::model::weights::tensor_file::Layout;
use crate::offload::release;
use crate::optimizer::Remembered;
use crate::progress::Event;
use crate::run::best::Best;
use crate::run::checkpoint;
use crate::run::recorder::Files;
use crate::run::{Run, unwritten};
use crate::shares::BUCKET;
use crate::state::OPTIMIZER_FILE;
use crate::state::State;
use crate::world::{Aside, World};

/// Where the processes of a run write checkpoints.
#[derive(Debug, Clone)]
pub(crate) struct Saving {
    writers: Writers,
    /// Those of this process's set.
    checkpoints: Checkpoints,
}

impl Saving {
    /// Called by all, after the leader has opened the run's checkpoints.
    pub fn open(world: &World, output: &Path) -> Result<Self, Failure> {
        let checkpoints = Checkpoints::of(output);
        let writers = Writers::find(world, &checkpoints.directory)?;
        let checkpoints = match writers.set() {
            Some(1..) if writers.leads() => Checkpoints::open_ranges(output)?,
            Some(1..) => Checkpoints::of_ranges(output),
            _ => checkpoints,
        };
        Ok(Self { writers, checkpoints })
    }

    /// Writes this process's part of a checkpoint.
    fn write(&self, step: u64, contents: Contents, copying: &Sender<()>) -> Result<(), Failure> {
        let write = |directory: &Path| contents.write(directory, &self.writers, copying);
        match self.writers.set() {
            Some(0) if self.writers.leads() => self.checkpoints.commit(step, write),
            Some(_) if self.writers.leads() => self.checkpoints.leave(step, write),
            _ => write(&self.checkpoints.unfinished(step)),
        }
    }

    /// Removes all but the `keep` newest checkpoints. Of ranges only the newest stays.
    fn retain(&self, keep: usize) -> Result<(), Failure> {
        match self.writers.set() {
            Some(set) if self.writers.leads() => self.checkpoints.retain(if set == 0 { keep } else { 1 }),
            _ => Ok(()),
        }
    }
}

impl Run {
    /// Begins a checkpoint, after the one before it is on the disk. It is written while the next step computes its gradient, by all
    /// processes: each writes its part.
    pub(crate) fn checkpoint(&mut self) -> Result<(), Failure> {
        self.finish_checkpoint()?;
        self.settle()?;
        self.waiting(|run| {
            let step = run.state.step;
            run.state.seconds = run.recorder.pace.seconds();
            run.recorder.saved = Some(step);
            if let Some(files) = &run.recorder.files {
                run.state.log_bytes = files.journal.steps_bytes();
            }
            let (contents, saving) = (run.contents(), run.recorder.saving.clone());
            run.recorder.writing = Some(Writing::begin(step, move |copying| saving.write(step, contents, &copying)));
        });
        Ok(())
    }

    /// Waits for the checkpoint that is being written, if one is.
    pub(crate) fn finish_checkpoint(&mut self) -> Result<(), Failure> {
        let Some(writing) = self.recorder.writing.take() else { return Ok(()) };
        let step = writing.step;
        self.waiting(|run| {
            writing.finish()?;
            run.recorder.saving.retain(run.config.train.keep_checkpoints)
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

    fn contents(&self) -> Contents {
        let only_of_leader = |files: &Files| {
            let tokenizer = self.dataset.description().tokenizer.files.iter().map(|file| self.config.data.join(&file.file));
            Rest {
                tokenizer: tokenizer.collect(),
                steps: (files.journal.steps_path().to_owned(), self.state.log_bytes),
                best: (self.state.best_step.is_some() && !self.is_over()).then(|| files.best.clone()),
                state: self.state.clone(),
            }
        };
        Contents {
            model: self.model.stored(self.dataset.end_of_text()),
            optimizer: self.optimizer.remembered(),
            world: self.world.aside(Aside::Checkpoints),
            rest: self.recorder.files.as_ref().map(only_of_leader),
        }
    }
}

/// The contents of a checkpoint. The tensors share memory with those of the run.
struct Contents {
    model: Stored,
    optimizer: Vec<Remembered>,
    world: World,
    /// The leader's.
    rest: Option<Rest>,
}

/// All but the large files.
struct Rest {
    tokenizer: Vec<PathBuf>,
    /// The step log and how much of it belongs to the checkpoint.
    steps: (PathBuf, u64),
    /// Unless the weights are the best.
    best: Option<Best>,
    state: State,
}

impl Contents {
    /// A Hugging Face directory, and the state to resume from: this process's part, while the others write theirs. `copying` is
    /// told when neither tensors nor the best weights are read any more.
    fn write(self, directory: &Path, writers: &Writers, copying: &Sender<()>) -> Result<(), Failure> {
        let (model, optimizer, world) = (self.model, self.optimizer, self.world);
        if let Some(best) = self.rest.as_ref().and_then(|rest| rest.best.as_ref()) {
            best.keep(directory)?;
        }
        // The directory of each set is there.
        world.any(false)?;
        if self.rest.is_some() {
            model.write_description(directory).map_err(unwritten)?;
        }
        // At once: one file alone does not keep the disk busy.
        let files = thread::scope(|threads| {
            let optimizer = threads.spawn(|| write_optimizer(&directory.join(OPTIMIZER_FILE), optimizer, writers, &world));
            let weights = model.write_weights(directory, |bytes| writers.part(bytes), writers.together())?;
            Ok([weights, optimizer.join().unwrap_or_else(|panic| resume_unwind(panic))?])
        });
        let files = files.map_err(unwritten)?;
        let _ = copying.send(());
        // A network's file system may say only now that it has no room. The leader's own files are brought to the disk later.
        let is_helper = writers.set() == Some(0) && !writers.leads();
        let synced = files.into_iter().flatten().filter(|_| is_helper).try_for_each(|file| file.sync_all());
        synced.map_err(|error| Failure::io("write checkpoint", directory, &error))?;
        // All have written their parts.
        world.any(false)?;
        self.rest.map_or(Ok(()), |rest| rest.write(directory))
    }
}

impl Rest {
    fn write(&self, directory: &Path) -> Result<(), Failure> {
        for file in &self.tokenizer {
            copy(file, directory, u64::MAX)?;
        }
        copy(&self.steps.0, directory, self.steps.1)?;
        self.state.write(directory)
    }
}

/// Writes a part of what is remembered. Where each process has a share of it, they bring each other what they write, in rounds: a
/// bucket of numbers for each of them.
fn write_optimizer(path: &Path, remembered: Vec<Remembered>, writers: &Writers, world: &World) -> Result<Option<File>, ModelError> {
    let is_shared = remembered.iter().any(Remembered::is_shared);
    let tensors = remembered.into_iter().map(|tensor| (tensor.name.clone(), Kind::Float, tensor.size.clone(), tensor));
    let layout = Layout::of(path, tensors.collect())?;
    let parts: Vec<_> = (0..world.size()).map(|rank| writers.part_of(rank, layout.bytes)).collect();
    let mut file = layout.open(path, &parts[world.rank()], writers.together())?;
    let most = if is_shared { BUCKET } else { usize::MAX };
    let mut pieces: Vec<_> = parts.iter().map(|part| layout.pieces(part, most)).collect();
    loop {
        let round: Vec<_> = pieces.iter_mut().map(Iterator::next).collect();
        if round.iter().all(Option::is_none) {
            return Ok(file.finish()?);
        }
        let wishes: Vec<_> = round.iter().map(|piece| piece.as_ref().and_then(|(placed, some)| placed.tensor.wish(some))).collect();
        match &round[world.rank()] {
            // All take part, also those that want nothing.
            _ if is_shared => file.write(&Tensor::from_slice(&world.bring(&wishes)?), Kind::Float)?,
            Some((placed, some)) => file.write(&placed.tensor.some(some), Kind::Float)?,
            None => {}
        }
        release(round.iter().flatten().map(|(placed, _)| &placed.tensor.own));
    }
}

/// The first `bytes` of a file, under its name in `directory`.
fn copy(file: &Path, directory: &Path, bytes: u64) -> Result<(), Failure> {
    let copy =
        || io::copy(&mut File::open(file)?.take(bytes), &mut File::create(directory.join(file.file_name().unwrap_or_default()))?);
    copy().map(|_| ()).map_err(|error| Failure::io("copy", file, &error))
}
