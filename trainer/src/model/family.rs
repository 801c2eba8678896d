//! The models that a run can train, and what it asks of each. A family owns what its batches are made of.

use std::ops::Range;

use tch::{Device, Tensor};

use super::gpt2::Gpt2;
use super::gpt2::adapters::Adapters;
use super::gpt2::batch::{self, Batch};
use super::layers::fused::Fused;
use super::loss::Loss;
use super::memory_estimate::TrainingMemory;
use super::stored::Stored;
use super::weights::parameters::Parameters;
use crate::data::error::DataError;
use crate::data::shard::TokenStream;
use crate::settings::TrainSettings;

/// Work beside the training while a batch passes through the model.
pub struct Beside<'a> {
    /// Waits for weights that are computed with next; whether they have changed.
    pub arrive: &'a dyn Fn(Range<usize>) -> bool,
    /// Takes gradients to which nothing more is added.
    pub done: &'a mut dyn FnMut(&Parameters, Range<usize>),
}

/// A model of one of the families, with its gradients.
pub enum Model {
    Gpt2(Gpt2),
}

impl Model {
    /// The batch that the model reads at once: the given blocks of `stream`, of `block_size` tokens each.
    ///
    /// # Errors
    /// Those of [`TokenStream::read`].
    pub fn batch(
        &self,
        stream: &TokenStream,
        blocks: impl IntoIterator<Item = u64>,
        block_size: usize,
    ) -> Result<Batch, DataError> {
        let Self::Gpt2(_) = self;
        Batch::read(stream, blocks, block_size)
    }

    /// The weight of the loss of that batch, before it is read.
    pub fn weight(&self, stream: &TokenStream, blocks: impl IntoIterator<Item = u64>, block_size: usize) -> f64 {
        let Self::Gpt2(_) = self;
        batch::weight(stream.len(), blocks, block_size)
    }

    /// Makes the gradients those of nothing.
    pub fn zero_gradients(&mut self) {
        let Self::Gpt2(model) = self;
        model.zero_gradients();
    }

    /// Adds the gradient of `scale` times the batch's summed loss to the gradients; returns that loss. `beside` is told what others
    /// may do meanwhile: see [`Gpt2::accumulate_beside`].
    pub fn accumulate(&mut self, batch: &Batch, scale: f64, beside: &mut Beside<'_>) -> Loss {
        let Self::Gpt2(model) = self;
        model.accumulate_beside(batch, scale, beside)
    }

    /// The order in which a batch passes through the trained tensors, where it is told of them one after the other.
    pub fn order(&self) -> Option<Vec<Range<usize>>> {
        let Self::Gpt2(model) = self;
        model.order()
    }

    /// Takes over weights that have changed where they are, since an update that has not told of them.
    pub fn take_over(&self, weights: Range<usize>) {
        let Self::Gpt2(model) = self;
        model.take_over(weights);
    }

    /// The batch's loss, without gradients.
    pub fn loss(&self, batch: &Batch) -> Loss {
        let Self::Gpt2(model) = self;
        model.loss(batch)
    }

    /// The tensors that an optimizer changes. Gradients are of these.
    pub fn trained(&self) -> &Parameters {
        let Self::Gpt2(model) = self;
        model.trained()
    }

    pub fn gradients(&self) -> &Parameters {
        let Self::Gpt2(model) = self;
        model.gradients()
    }

    pub fn gradients_mut(&mut self) -> &mut Parameters {
        let Self::Gpt2(model) = self;
        model.gradients_mut()
    }

    /// Lets an optimizer change what is trained as the gradients say. It tells each tensor that is done, by number.
    pub fn update(&mut self, change: impl FnOnce(&mut Parameters, &Parameters, &mut dyn FnMut(usize, &Tensor))) {
        let Self::Gpt2(model) = self;
        model.update(change);
    }

    /// Replaces what is trained.
    pub fn replace(&mut self, change: impl FnOnce(&mut Parameters)) {
        let Self::Gpt2(model) = self;
        model.replace(change);
    }

    /// The parts of it that a checkpoint holds, for a text that `end_of_text` ends.
    pub fn stored(&self, end_of_text: u32) -> Stored {
        let Self::Gpt2(model) = self;
        model.stored(end_of_text)
    }

    pub fn adapters(&self) -> Option<&Adapters> {
        let Self::Gpt2(model) = self;
        model.adapters()
    }

    /// Bytes that training takes at its peak in each of so many processes, estimated: of the device's memory, and of main memory
    /// besides.
    pub fn memory(&self, settings: &TrainSettings, processes: usize) -> [u64; 2] {
        let Self::Gpt2(model) = self;
        let on_device = TrainingMemory::of(model.shape(), settings, processes, model.device().is_cuda()).total();
        [on_device, TrainingMemory::beside_device(model.shape(), settings, processes)]
    }

    /// Numbers in all of its weights.
    pub fn size(&self) -> u64 {
        let Self::Gpt2(model) = self;
        model.shape().parameters()
    }

    pub fn device(&self) -> Device {
        let Self::Gpt2(model) = self;
        model.device()
    }

    /// Where libtorch's attention is taken.
    pub fn fused(&self) -> Fused {
        let Self::Gpt2(model) = self;
        model.fused()
    }
}
