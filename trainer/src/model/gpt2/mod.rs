//! The whole model: embeddings, blocks, output head; the training step's forward and backward.

pub mod adapters;
pub mod batch;
mod block;
pub mod draft;
mod embed;
pub mod kv_cache;
mod setup;
mod sinusoids;
mod weight_stream;

use std::cell::RefCell;
use std::iter;
use std::ops::Range;

use tch::{Device, Kind, Tensor};

use super::family::Beside;
use super::layers::documents::Documents;
use super::layers::dropout::{Dropout, Masks, Site};
use super::layers::fused::Fused;
use super::layers::gelu::Gelu;
use super::layers::layout::Layout;
use super::layers::mask::Mask;
use super::layers::{head, linear, norm};
use super::loss::Loss;
use super::shape::Shape;
use super::weights::parameters::{Affine, BlockTensors, Parameter, Parameters, take_in};
use crate::aten;
use crate::cpu::engine;
use crate::cpu::matmul::Write;
use crate::journal::trace::span;
use crate::offload::release;
use crate::settings::{Engine, Offload, Recompute, Variant};
use adapters::Adapters;
use batch::Batch;
pub use setup::Setup;
use weight_stream::WeightStream;

/// A GPT-2 with its gradients. No autograd: [`Gpt2::accumulate`] runs forward and backward and keeps nothing.
pub struct Gpt2 {
    shape: Shape,
    /// The tensors that the optimizer changes and checkpoints hold.
    parameters: Parameters,
    /// The same, rounded to the type that products are computed in; shares memory with `parameters` where that is the same.
    working: Parameters,
    /// When they are trained instead of `parameters`.
    adapters: Option<Adapters>,
    /// Gradients of the trained tensors; before the first [`Gpt2::accumulate`] those of [`Gpt2::for_training`] alone.
    gradients: Option<Parameters>,
    /// `[context, D]`, where positions are not learnt.
    sinusoids: Option<Tensor>,
    recompute: Recompute,
    /// Where the input of each block waits for its backward pass, `[rows, D]`, if not on the device.
    inputs_away: Vec<Tensor>,
    dropout: Option<Dropout>,
    /// The token that begins a document, when attention stays inside documents.
    begins_document: Option<i64>,
    device: Device,
    /// Whose kernels compute on the CPU.
    engine: Engine,
    fused: Fused,
    /// See [`Setup::away`].
    away: Offload,
    /// Where the blocks' weights are away.
    stream: Option<WeightStream>,
    /// Where one block's products of 16 bits arrive in main memory, where gradients are away.
    landings: Vec<Tensor>,
    /// Those that are on their way, each with the gradient that it will be added to.
    landing: RefCell<Vec<(Tensor, Tensor)>>,
    /// See [`Setup::sheds_gradients`].
    sheds_gradients: bool,
    /// Nothing has been added to the gradients yet, whatever is in the memory of matrices, or where they are away, of all.
    fresh: bool,
    /// The dtype of the products.
    kind: Kind,
}

impl Gpt2 {
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    pub fn device(&self) -> Device {
        self.device
    }

    /// Whether weights and gradients are away from the device.
    fn is_apart(&self) -> bool {
        self.away != Offload::None
    }

    /// Where libtorch's attention is taken.
    pub fn fused(&self) -> Fused {
        self.fused
    }

    /// Calls `work` as all of the model is computed: without a tape, with the kernels of the engine.
    pub(super) fn run<T>(&self, work: impl FnOnce() -> T) -> T {
        tch::no_grad(|| engine::with(self.engine, work))
    }

    /// The weights, without adapters.
    pub fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    pub fn adapters(&self) -> Option<&Adapters> {
        self.adapters.as_ref()
    }

    /// The tensors that an optimizer changes: the adapters where there are any, else the weights. Gradients are of these.
    pub fn trained(&self) -> &Parameters {
        self.adapters.as_ref().map_or(&self.parameters, Adapters::parameters)
    }

    /// # Panics
    /// Before the first [`Gpt2::accumulate`].
    pub fn gradients(&self) -> &Parameters {
        self.gradients.as_ref().expect("gradients of a model that has computed some")
    }

    /// # Panics
    /// Those of [`Gpt2::gradients`].
    pub fn gradients_mut(&mut self) -> &mut Parameters {
        self.gradients.as_mut().expect("gradients of a model that has computed some")
    }

    /// Lets an optimizer change what is trained as the gradients say. It tells each weight that is done, by number: that one is on
    /// its way to the device while the next is computed.
    ///
    /// # Panics
    /// Those of [`Gpt2::gradients`].
    pub fn update(&mut self, change: impl FnOnce(&mut Parameters, &Parameters, &mut dyn FnMut(usize, &Tensor))) {
        let Self { parameters, working, adapters, gradients, away, stream, .. } = self;
        let away = *away;
        let gradients = gradients.as_ref().expect("gradients of a model that has computed some");
        tch::no_grad(|| match adapters {
            Some(adapters) => change(adapters.parameters_mut(), gradients, &mut |_, _| ()),
            None => change(parameters, gradients, &mut |index, tensor| working.round_again(index, tensor, away)),
        });
        stream.iter().for_each(WeightStream::forget);
    }

    /// Replaces the trained tensors.
    pub fn replace(&mut self, change: impl FnOnce(&mut Parameters)) {
        if let Some(adapters) = &mut self.adapters {
            return change(adapters.parameters_mut());
        }
        change(&mut self.parameters);
        let rounded = |(index, entry): (usize, &Parameter)| self.working.round_again(index, &entry.tensor, self.away);
        tch::no_grad(|| self.parameters.iter().enumerate().for_each(rounded));
        self.stream.iter().for_each(WeightStream::forget);
    }

    pub fn zero_gradients(&mut self) {
        let is_apart = self.is_apart();
        match &mut self.gradients {
            Some(gradients) if self.adapters.is_some() => gradients.zero(),
            Some(gradients) => {
                self.fresh = true;
                if !is_apart {
                    gradients.zero_what_is_added_to();
                }
            }
            None => (),
        }
    }

    /// Adds `d(scale · sum NLL)/dθ` to the gradients and returns the negative log-likelihood.
    ///
    /// # Panics
    /// When the sequences exceed the context, the batch has more rows than [`Setup::rows`], a token is outside the vocabulary, or
    /// libtorch is out of memory.
    pub fn accumulate(&mut self, batch: &Batch, scale: f64) -> Loss {
        self.accumulate_beside(batch, scale, &mut Beside { arrive: &|_| false, done: &mut |_, _| () })
    }

    /// The embeddings, each block and the final norm, where all of them are trained where they are computed with.
    pub fn order(&self) -> Option<Vec<Range<usize>>> {
        let parameters = &self.parameters;
        let blocks = (0..self.shape.layers).map(|layer| parameters.block_tensors(layer));
        let order = || iter::once(parameters.embedding_tensors()).chain(blocks).chain([parameters.final_norm_tensors()]).collect();
        self.is_plain().then(order)
    }

    /// See [`Gpt2::order`].
    fn is_plain(&self) -> bool {
        self.adapters.is_none() && !self.is_apart()
    }

    /// Takes over weights that have changed since an update that has not told of them.
    pub fn take_over(&self, weights: Range<usize>) {
        tch::no_grad(|| self.working.round_where_they_are(weights, &self.parameters));
    }

    /// [`Gpt2::accumulate`]. Asks for the weights in [`Gpt2::order`], and tells of the gradients of each part of that as soon as
    /// all of the batch is in them: where there is no such order, of all after the last. Where gradients are shed, those of the
    /// block before the one that is told of are written over next.
    pub fn accumulate_beside(&mut self, batch: &Batch, scale: f64, beside: &mut Beside<'_>) -> Loss {
        if self.gradients.is_none() {
            self.gradients = Some(self.trained().zeros_like());
        }
        let sum = self.run(|| self.forward_backward(batch, scale, beside));
        self.await_home();
        if !self.is_plain() {
            (beside.done)(self.gradients(), 0..self.gradients().iter().len());
        }
        self.fresh = false;
        Loss { sum, weight: batch.weight() }
    }

    /// A gradient to add to: itself, or where it lies in main memory, a copy on the device that [`Gpt2::give_back`] brings home.
    /// The sum so far is in the copy, so that the sum has the same order and bits.
    pub(super) fn borrowed(&self, gradient: &Tensor) -> Tensor {
        match (self.is_apart(), self.fresh) {
            (false, _) => gradient.shallow_clone(),
            (true, true) => Tensor::zeros(gradient.size(), (gradient.kind(), self.device)),
            (true, false) => gradient.to_device_(self.device, gradient.kind(), true, true),
        }
    }

    /// Sends home the borrowed gradients, while the device goes on. Those sent before are there by then, so that the device has the
    /// gradients of two blocks at most, however far behind it copies are.
    pub(super) fn give_back<'a>(&self, borrowed: impl IntoIterator<Item = &'a Tensor>, home: impl IntoIterator<Item = &'a Tensor>) {
        if !self.is_apart() {
            return;
        }
        self.await_home();
        let mut landing = self.landing.borrow_mut();
        for (home, borrowed) in home.into_iter().zip(borrowed) {
            if home.kind() == borrowed.kind() {
                aten::send_home(home, borrowed);
            } else {
                let place = &self.landings[landing.len()];
                aten::send_home(place, borrowed);
                landing.push((place.shallow_clone(), home.shallow_clone()));
            }
        }
    }

    /// Waits for the gradients that were sent home, and adds products to those that they belong to.
    fn await_home(&self) {
        if self.is_apart() {
            aten::await_home(self.device);
            let write = if self.fresh { Write::Over } else { Write::Onto };
            self.landing.take().iter_mut().for_each(|(product, home)| take_in(home, product, write));
        }
    }

    /// [`Gpt2::borrowed`] of a block. A product of 16 bits is a tensor of its own before it is added to a matrix's gradient: it
    /// leaves the device as it is and is added in main memory, to the same bits. Half as much leaves then, and none of it comes
    /// first.
    fn borrowed_block(&self, home: &BlockTensors) -> BlockTensors {
        home.map(&|gradient| {
            if self.landings.is_empty() || gradient.dim() != 2 {
                return self.borrowed(gradient);
            }
            Tensor::empty(gradient.size(), (self.kind, self.device))
        })
    }

    fn forward_backward(&self, batch: &Batch, scale: f64, beside: &mut Beside<'_>) -> f64 {
        let arrive = |weights: Range<usize>| {
            if (beside.arrive)(weights.clone()) {
                self.take_over(weights);
            }
        };
        let mut done = |tensors| {
            if self.is_plain() {
                (beside.done)(self.gradients(), tensors);
            }
        };
        let Batch { inputs, targets, first_sequence, .. } = batch;
        let all_masks = self.dropout.map(|dropout| Masks { dropout, first_sequence: *first_sequence, layer: 0 });
        let masks = all_masks.filter(|masks| masks.dropout.reaches_stream());
        let running = span("forward");
        let documents = self.documents(inputs);
        let layout = Layout { mask: mask(documents.as_ref()), dropout: masks, ..self.layout(inputs) };
        let inputs = inputs.to_device(self.device);
        arrive(self.parameters.embedding_tensors());
        let mut x = self.embed(&inputs, documents.as_ref());
        if let Some(masks) = masks {
            x = masks.apply(Site::Embedding, &x, layout.length);
        }
        let drawn = all_masks.map(|masks| (masks, layout.length));
        let mut kept = Vec::with_capacity(self.shape.layers);
        for layer in 0..self.shape.layers {
            arrive(self.parameters.block_tensors(layer));
            let (weights, layout) = (self.block(layer, drawn), layout.of_layer(layer));
            let activations = block::forward(x, &weights, layout);
            x = activations.output(&weights, layout);
            kept.push(activations.keep(self.recompute, self.inputs_away.get(layer)));
            if self.recompute != Recompute::None {
                x = moved_down(&x);
            }
            weights.release();
        }
        if self.recompute == Recompute::Host {
            aten::await_home(self.device);
        }
        arrive(self.parameters.final_norm_tensors());
        let final_norm = self.working.final_norm();
        let (hidden, statistics) = norm::forward(&x, &final_norm, layout.epsilon, layout.kind);
        drop(running);
        let _running = span("backward"); // With the loss: rows of logits turn into their gradients in place.
        let embedding = self.working.token_embedding();
        let targets = targets.to_device(self.device).reshape([-1]);
        let write = if self.fresh { Write::Over } else { Write::Onto };
        let mut dembedding = self.adapters.is_none().then(|| self.borrowed(&self.gradients().token_embedding()));
        let (loss, dhidden) = head::loss_and_gradient(&hidden, &embedding, &targets, scale, dembedding.as_mut(), write);
        release([&embedding].into_iter().chain(&dembedding));
        let mut dx = x.zeros_like();
        let home = if self.adapters.is_some() { Affine::frozen() } else { self.gradients().final_norm() };
        let mut dnorm = home.map(&|gradient| self.borrowed(gradient));
        norm::backward(&x, &final_norm, &statistics, &dhidden, &mut dx, &mut dnorm);
        self.give_back(dnorm.tensors(), home.tensors());
        done(self.parameters.final_norm_tensors());
        drop((x, hidden, dhidden));
        dx = moved_down(&dx);
        let write = if self.landings.is_empty() { write } else { Write::Over };
        for layer in (0..self.shape.layers).rev() {
            let (weights, kept) = (self.block(layer, drawn), kept.pop().expect("every block has kept something"));
            let layout = layout.of_layer(layer);
            if self.sheds_gradients {
                self.gradients().zero_those_added_to(self.parameters.block_tensors(layer));
            }
            let (home, mut gradients) = self.gradients_of(layer);
            block::backward(&mut dx, kept.restore(&weights, layout), &weights, layout, &mut gradients, write);
            self.give_back(gradients.tensors(), home.tensors());
            weights.release();
            home.release();
            done(self.parameters.block_tensors(layer));
        }
        if let Some(dembedding) = dembedding {
            if let Some(masks) = masks {
                dx = masks.apply(Site::Embedding, &dx, layout.length);
            }
            self.embed_backward(&inputs, documents.as_ref(), &dx, dembedding);
        }
        done(self.parameters.embedding_tensors());
        loss
    }

    /// The weights of a block with their adapters; `masks` in training, of sequences of this length.
    pub(super) fn block(&self, layer: usize, masks: Option<(Masks, i64)>) -> BlockTensors {
        let at_home = || self.working.block(layer);
        let mut block = self.stream.as_ref().map_or_else(at_home, |stream| stream.block(&self.working, layer));
        if let Some(adapters) = &self.adapters {
            adapters.attach(&mut block, adapters.parameters(), layer, masks);
        }
        block
    }

    /// The gradients of a block where they lie, and to add to: see [`Gpt2::borrowed`].
    fn gradients_of(&self, layer: usize) -> (BlockTensors, BlockTensors) {
        let Some(adapters) = &self.adapters else {
            let home = self.gradients().block(layer);
            let borrowed = self.borrowed_block(&home);
            return (home, borrowed);
        };
        let mut gradients = BlockTensors::frozen();
        adapters.attach(&mut gradients, self.gradients(), layer, None);
        (BlockTensors::frozen(), gradients)
    }

    /// The negative log-likelihood, without gradients.
    pub fn loss(&self, batch: &Batch) -> Loss {
        let sum = self.run(|| {
            let (targets, embedding) = (batch.targets.to_device(self.device).reshape([-1]), self.working.token_embedding());
            let sum = head::loss(&self.hidden(&batch.inputs), &embedding, &targets);
            release([&embedding]);
            sum
        });
        Loss { sum, weight: batch.weight() }
    }

    /// `inputs [batch, seq]` `i64` → logits `[batch, seq, vocabulary]`.
    pub fn logits(&self, inputs: &Tensor) -> Tensor {
        self.run(|| {
            let logits = linear::product_transposed(&self.hidden(inputs), &self.working.token_embedding());
            logits.view([inputs.size()[0], inputs.size()[1], -1])
        })
    }

    /// The stream after the final layer norm, `[N, D]`.
    fn hidden(&self, inputs: &Tensor) -> Tensor {
        let documents = self.documents(inputs);
        let layout = Layout { mask: mask(documents.as_ref()), ..self.layout(inputs) };
        let mut x = self.embed(&inputs.to_device(self.device), documents.as_ref());
        for layer in 0..self.shape.layers {
            let weights = self.block(layer, None);
            x = block::forward(x, &weights, layout).output(&weights, layout);
            weights.release();
        }
        norm::forward(&x, &self.working.final_norm(), layout.epsilon, layout.kind).0
    }

    /// The embedding that is added at each position, `[context, D]`.
    pub(super) fn positions(&self) -> Tensor {
        self.sinusoids.as_ref().map_or_else(|| self.working.position_embedding(), Tensor::shallow_clone)
    }

    pub(super) fn working(&self) -> &Parameters {
        &self.working
    }

    fn documents(&self, inputs: &Tensor) -> Option<Documents> {
        self.begins_document.map(|token| Documents::new(inputs, token))
    }

    fn layout(&self, inputs: &Tensor) -> Layout<'static> {
        self.layout_of(inputs.size()[0], inputs.size()[1])
    }

    pub(super) fn layout_of(&self, batch: i64, length: i64) -> Layout<'static> {
        let gelu = match self.shape.variant {
            Variant::Gpt2 => Gelu::Tanh,
            Variant::Fairseq => Gelu::Exact,
        };
        let (heads, epsilon) = (self.shape.heads as i64, self.shape.layer_norm_epsilon);
        Layout { batch, length, heads, epsilon, gelu, mask: Mask::Causal, dropout: None, kind: self.kind, fused: self.fused }
    }
}

fn mask(documents: Option<&Documents>) -> Mask<'_> {
    documents.map_or(Mask::Causal, Mask::Documents)
}

/// A copy, where something before the tensor was just dropped: when the tensor is dropped too, that and what is free behind it
/// become one gap, in which larger tensors have room. Tensors that stay for the rest of a pass would otherwise part them, and the
/// next large one take more memory. GPUs have an allocator that knows no such gaps.
fn moved_down(tensor: &Tensor) -> Tensor {
    if tensor.device() != Device::Cpu {
        return tensor.shallow_clone();
    }
    let mut moved = tensor.empty_like();
    moved.copy_(tensor);
    moved
}
