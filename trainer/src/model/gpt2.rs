//! The whole model: embeddings, blocks, output head; the training step's forward and backward.

use tch::{Device, Kind, Tensor};

use super::block::{self, Layout};
use super::documents::Documents;
use super::dropout::{Dropout, Masks, Site};
use super::gelu::Gelu;
use super::parameters::Parameters;
use super::shape::Shape;
use super::{head, linear, norm, sinusoids};
use crate::config::{Precision, Recompute, Variant};
use crate::error::Failure;
use crate::offload::{Place, release};
use crate::trace::span;

/// A GPT-2 with its gradients. No autograd: [`Gpt2::accumulate`] runs forward and backward and keeps nothing.
pub struct Gpt2 {
    shape: Shape,
    /// What the optimizer changes and checkpoints hold.
    parameters: Parameters,
    /// The same rounded to what products are computed in; shares memory with `parameters` where that is the same.
    working: Parameters,
    /// Made by the first [`Gpt2::accumulate`] or before it by [`Gpt2::with_offload`].
    gradients: Option<Parameters>,
    /// `[context, D]`, where positions are not learnt.
    sinusoids: Option<Tensor>,
    recompute: Recompute,
    dropout: Option<Dropout>,
    /// The token that begins a document, when attention stays inside documents.
    begins_document: Option<i64>,
    /// Number in the run of the next micro-batch's first sequence.
    first_sequence: u64,
    device: Device,
    /// The dtype of the products.
    kind: Kind,
}

impl Gpt2 {
    /// Brings the weights to `device`. The dtype of the weights is the dtype of the computation. Weights
    /// that are on `device` already are shared with `parameters`, not copied: two copies of a large model may not fit.
    pub fn new(shape: Shape, parameters: &Parameters, device: Device) -> Self {
        let kind = parameters.iter().next().map_or(Kind::Float, |entry| entry.tensor.kind());
        let parameters = parameters.to(device, kind);
        let working = parameters.to(device, kind);
        let sinusoids = (!shape.learns_positions()).then(|| sinusoids::table(&shape).to_device(device).to_kind(kind));
        let (recompute, dropout, begins_document, first_sequence) = (Recompute::None, None, None, 0);
        Self {
            shape,
            parameters,
            working,
            gradients: None,
            sinusoids,
            recompute,
            dropout,
            begins_document,
            first_sequence,
            device,
            kind,
        }
    }

    /// Computes products in `precision`. Weights, gradients, layer norms and the stream from block to block keep their dtype, as under
    /// torch's autocast.
    #[must_use]
    pub fn with_precision(self, precision: Precision) -> Self {
        self.with_offload(precision, &Place::Memory).expect("main memory needs no file")
    }

    /// As [`Gpt2::with_precision`], with gradients and rounded weights in `place`.
    pub fn with_offload(mut self, precision: Precision, place: &Place) -> Result<Self, Failure> {
        let rounded = match precision {
            Precision::Fp32 => None,
            Precision::Bf16 => Some(Kind::BFloat16),
            Precision::Fp16 => Some(Kind::Half),
        };
        if let Some(kind) = rounded {
            self.kind = kind;
            self.working = self.parameters.rounded(kind, place)?;
        }
        self.gradients = Some(self.parameters.zeros_in(place)?);
        Ok(self)
    }

    /// Keeps less of the forward pass for the backward pass.
    #[must_use]
    pub fn with_recompute(self, recompute: Recompute) -> Self {
        Self { recompute, ..self }
    }

    /// Drops some of the activations of [`Gpt2::accumulate`]. Losses, logits and generation know no dropout.
    #[must_use]
    pub fn with_dropout(self, dropout: Dropout) -> Self {
        let some = dropout.residual > 0.0 || dropout.attention > 0.0;
        Self { dropout: some.then_some(dropout), ..self }
    }

    /// Lets attention see only the document that a token belongs to, and counts positions from its beginning: `end_of_text` begins one.
    /// Generation is not affected: its prompts are one document each.
    #[must_use]
    pub fn with_document_mask(self, end_of_text: u32) -> Self {
        Self { begins_document: Some(i64::from(end_of_text)), ..self }
    }

    /// Says which sequences of the run the next [`Gpt2::accumulate`] is for, by the number of the first: what is dropped is a function of it.
    pub fn begin_at_sequence(&mut self, first: u64) {
        self.first_sequence = first;
    }

    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    pub fn device(&self) -> Device {
        self.device
    }

    pub fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    /// # Panics
    /// Before the first [`Gpt2::accumulate`].
    pub fn gradients(&self) -> &Parameters {
        self.gradients.as_ref().expect("gradients of a model that has computed some")
    }

    /// Lets an optimizer change the weights as the gradients say.
    ///
    /// # Panics
    /// As [`Gpt2::gradients`].
    pub fn update(&mut self, change: impl FnOnce(&mut Parameters, &Parameters)) {
        change(&mut self.parameters, self.gradients.as_ref().expect("gradients of a model that has computed some"));
        tch::no_grad(|| self.working.round_again(&self.parameters));
    }

    /// Puts other weights in their place.
    pub fn replace(&mut self, change: impl FnOnce(&mut Parameters)) {
        change(&mut self.parameters);
        tch::no_grad(|| self.working.round_again(&self.parameters));
    }

    pub fn zero_gradients(&mut self) {
        if let Some(gradients) = &mut self.gradients {
            gradients.zero();
        }
    }

    /// Adds `d(scale · sum NLL)/dθ` to the gradients and returns the summed negative log-likelihood in nats.
    /// `inputs` and `targets` are `[batch, seq]` `i64` on any device; a target of −100 is not counted.
    ///
    /// # Panics
    /// When `seq` exceeds the context, a token is outside the vocabulary, or libtorch is out of memory.
    pub fn accumulate(&mut self, inputs: &Tensor, targets: &Tensor, scale: f64) -> f64 {
        if self.gradients.is_none() {
            self.gradients = Some(self.parameters.zeros_like());
        }
        tch::no_grad(|| self.forward_backward(inputs, targets, scale))
    }

    fn forward_backward(&self, inputs: &Tensor, targets: &Tensor, scale: f64) -> f64 {
        let gradients = self.gradients();
        let masks = self.dropout.map(|dropout| Masks { dropout, first_sequence: self.first_sequence, layer: 0 });
        let running = span("forward");
        let documents = self.documents(inputs);
        let layout = Layout { masks, documents: documents.as_ref(), ..self.layout(inputs) };
        let inputs = inputs.to_device(self.device);
        let mut x = self.embed(&inputs, documents.as_ref());
        if let Some(masks) = masks {
            x = masks.apply(Site::Embedding, &x, layout.length);
        }
        let mut kept = Vec::with_capacity(self.shape.layers);
        for layer in 0..self.shape.layers {
            let weights = self.working.block(layer);
            let layout = layout.of_layer(layer);
            let activations = block::forward(x, &weights, layout);
            x = activations.output(&weights, layout);
            kept.push(activations.keep(self.recompute));
            weights.release();
        }
        let final_norm = self.parameters.final_norm();
        let (hidden, statistics) = norm::forward(&x, &final_norm, layout.epsilon, layout.kind);
        drop(running);
        let _running = span("backward"); // With the loss: rows of logits turn into their gradients in place.
        let embedding = self.working.token_embedding();
        let targets = targets.to_device(self.device).reshape([-1]);
        let mut dembedding = gradients.token_embedding();
        let (loss, dhidden) = head::loss_and_gradient(&hidden, &embedding, &targets, scale, &mut dembedding);
        release([&embedding, &dembedding]);
        let mut dx = x.zeros_like();
        norm::backward(&x, &final_norm, &statistics, &dhidden, &mut dx, &mut gradients.final_norm());
        for layer in (0..self.shape.layers).rev() {
            let (weights, kept) = (self.working.block(layer), kept.pop().expect("every block has kept something"));
            let (layout, mut gradients) = (layout.of_layer(layer), gradients.block(layer));
            block::backward(&mut dx, kept.restore(&weights, layout), &weights, layout, &mut gradients);
            weights.release();
            gradients.release();
        }
        if let Some(masks) = masks {
            dx = masks.apply(Site::Embedding, &dx, layout.length);
        }
        self.embed_backward(&inputs, documents.as_ref(), &dx);
        loss
    }

    /// Summed negative log-likelihood in nats and the number of counted targets, without gradients.
    /// `inputs` and `targets` as for [`Gpt2::accumulate`].
    pub fn loss(&self, inputs: &Tensor, targets: &Tensor) -> (f64, i64) {
        tch::no_grad(|| {
            let targets = targets.to_device(self.device).reshape([-1]);
            head::loss(&self.hidden(inputs), &self.working.token_embedding(), &targets)
        })
    }

    /// `inputs [batch, seq]` `i64` → logits `[batch, seq, vocabulary]`.
    pub fn logits(&self, inputs: &Tensor) -> Tensor {
        tch::no_grad(|| {
            let logits = linear::product_transposed(&self.hidden(inputs), &self.working.token_embedding());
            logits.view([inputs.size()[0], inputs.size()[1], -1])
        })
    }

    /// The stream after the final layer norm, `[N, D]`.
    fn hidden(&self, inputs: &Tensor) -> Tensor {
        let documents = self.documents(inputs);
        let layout = Layout { documents: documents.as_ref(), ..self.layout(inputs) };
        let mut x = self.embed(&inputs.to_device(self.device), documents.as_ref());
        for layer in 0..self.shape.layers {
            let weights = self.working.block(layer);
            x = block::forward(x, &weights, layout).output(&weights, layout);
            weights.release();
        }
        norm::forward(&x, &self.parameters.final_norm(), layout.epsilon, layout.kind).0
    }

    /// Token and position embedding: `[B, T]` → `[N, D]`.
    fn embed(&self, inputs: &Tensor, documents: Option<&Documents>) -> Tensor {
        let tokens = self.embed_tokens(&inputs.reshape([-1])); // [N, D]
        if let Some(documents) = documents {
            return tokens + self.positions().index_select(0, &documents.positions().to_device(self.device));
        }
        let positions = self.positions().narrow(0, 0, inputs.size()[1]); // [T, D]
        (tokens.view([inputs.size()[0], inputs.size()[1], -1]) + positions).view_as(&tokens)
    }

    /// `tokens [N]` → `[N, D]`, in fairseq's variant times √D.
    pub(super) fn embed_tokens(&self, tokens: &Tensor) -> Tensor {
        let rows = self.parameters.token_embedding().index_select(0, tokens);
        match self.shape.variant {
            Variant::Gpt2 => rows,
            Variant::Fairseq => rows * (self.shape.width as f64).sqrt(),
        }
    }

    /// What is added at each position, `[context, D]`.
    pub(super) fn positions(&self) -> Tensor {
        self.sinusoids.as_ref().map_or_else(|| self.parameters.position_embedding(), Tensor::shallow_clone)
    }

    /// `dx [N, D]`. On the CPU `index_add_` adds row after row, so equal tokens are summed in the order of the batch.
    fn embed_backward(&self, inputs: &Tensor, documents: Option<&Documents>, dx: &Tensor) {
        let gradients = self.gradients();
        let [batch, length] = [inputs.size()[0], inputs.size()[1]];
        let (tokens, mut dtokens) = (inputs.reshape([-1]), gradients.token_embedding());
        if self.shape.learns_positions() {
            let _ = dtokens.index_add_(0, &tokens, dx);
            let mut dpositions = gradients.position_embedding();
            if let Some(documents) = documents {
                let _ = dpositions.index_add_(0, &documents.positions().to_device(self.device), dx);
            } else {
                let sum = dx.view([batch, length, -1]).sum_dim_intlist(0_i64, false, None); // [T, D]
                let mut dpositions = dpositions.narrow(0, 0, length);
                dpositions += sum;
            }
        } else {
            let _ = dtokens.index_add_(0, &tokens, &(dx * (self.shape.width as f64).sqrt()));
        }
        release([&dtokens]);
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
        Layout { batch, length, heads, epsilon, gelu, masks: None, documents: None, kind: self.kind }
    }
}
