//! The whole model: embeddings, blocks, output head; the training step's forward and backward.

use tch::{Device, Kind, Tensor};

use super::block::{self, Layout};
use super::parameters::Parameters;
use super::shape::Shape;
use super::{head, linear, norm};

/// A GPT-2 with its gradients. No autograd: [`Gpt2::accumulate`] runs forward and backward and keeps nothing.
pub struct Gpt2 {
    shape: Shape,
    parameters: Parameters,
    gradients: Parameters,
    device: Device,
    kind: Kind,
}

impl Gpt2 {
    /// Brings the weights to `device`; gradients start at zero. The dtype of the weights is the dtype of the computation. Weights
    /// that are on `device` already are shared with `parameters`, not copied: two copies of a large model may not fit.
    pub fn new(shape: Shape, parameters: &Parameters, device: Device) -> Self {
        let kind = parameters.iter().next().map_or(Kind::Float, |entry| entry.tensor.kind());
        let parameters = parameters.to(device, kind);
        let gradients = parameters.zeros_like();
        Self { shape, parameters, gradients, device, kind }
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

    pub fn gradients(&self) -> &Parameters {
        &self.gradients
    }

    /// What an optimizer step needs: the weights to change and the gradients to read.
    pub fn parameters_and_gradients(&mut self) -> (&mut Parameters, &Parameters) {
        (&mut self.parameters, &self.gradients)
    }

    pub fn zero_gradients(&mut self) {
        self.gradients.zero();
    }

    /// Adds `d(scale · sum NLL)/dθ` to the gradients and returns the summed negative log-likelihood in nats.
    /// `inputs` and `targets` are `[batch, seq]` `i64` on any device; a target of −100 is not counted.
    ///
    /// # Panics
    /// When `seq` exceeds the context, a token is outside the vocabulary, or libtorch is out of memory.
    pub fn accumulate(&mut self, inputs: &Tensor, targets: &Tensor, scale: f64) -> f64 {
        tch::no_grad(|| self.forward_backward(inputs, targets, scale))
    }

    fn forward_backward(&mut self, inputs: &Tensor, targets: &Tensor, scale: f64) -> f64 {
        let layout = self.layout(inputs);
        let inputs = inputs.to_device(self.device);
        let mut x = self.embed(&inputs);
        let mut kept = Vec::with_capacity(self.shape.layers);
        for layer in 0..self.shape.layers {
            let (y, activations) = block::forward(x, &self.parameters.block(layer), layout);
            kept.push(activations);
            x = y;
        }
        let final_norm = self.parameters.final_norm();
        let (hidden, statistics) = norm::forward(&x, &final_norm, layout.epsilon, layout.kind);
        let embedding = self.parameters.token_embedding();
        let targets = targets.to_device(self.device).reshape([-1]);
        let (loss, dhidden) = head::loss_and_gradient(&hidden, &embedding, &targets, scale, &mut self.gradients.token_embedding());
        let mut dx = x.zeros_like();
        norm::backward(&x, &final_norm, &statistics, &dhidden, &mut dx, &mut self.gradients.final_norm());
        for layer in (0..self.shape.layers).rev() {
            let activations = kept.pop().expect("one set of activations per block");
            block::backward(&mut dx, activations, &self.parameters.block(layer), &mut self.gradients.block(layer));
        }
        self.embed_backward(&inputs, &dx);
        loss
    }

    /// Summed negative log-likelihood in nats and the number of counted targets, without gradients.
    /// `inputs` and `targets` as for [`Gpt2::accumulate`].
    pub fn loss(&self, inputs: &Tensor, targets: &Tensor) -> (f64, i64) {
        tch::no_grad(|| {
            let targets = targets.to_device(self.device).reshape([-1]);
            head::loss(&self.hidden(inputs), &self.parameters.token_embedding(), &targets)
        })
    }

    /// `inputs [batch, seq]` `i64` → logits `[batch, seq, vocabulary]`.
    pub fn logits(&self, inputs: &Tensor) -> Tensor {
        tch::no_grad(|| {
            let logits = linear::product_transposed(&self.hidden(inputs), &self.parameters.token_embedding());
            logits.view([inputs.size()[0], inputs.size()[1], -1])
        })
    }

    /// The stream after the final layer norm, `[N, D]`.
    fn hidden(&self, inputs: &Tensor) -> Tensor {
        let layout = self.layout(inputs);
        let mut x = self.embed(&inputs.to_device(self.device));
        for layer in 0..self.shape.layers {
            x = block::forward(x, &self.parameters.block(layer), layout).0;
        }
        norm::forward(&x, &self.parameters.final_norm(), layout.epsilon, layout.kind).0
    }

    /// Token and position embedding: `[B, T]` → `[N, D]`.
    fn embed(&self, inputs: &Tensor) -> Tensor {
        let tokens = self.parameters.token_embedding().index_select(0, &inputs.reshape([-1])); // [N, D]
        let positions = self.parameters.position_embedding().narrow(0, 0, inputs.size()[1]); // [T, D]
        (tokens.view([inputs.size()[0], inputs.size()[1], -1]) + positions).view_as(&tokens)
    }

    /// `dx [N, D]`. On the CPU `index_add_` adds row after row, so equal tokens are summed in the order of the batch.
    fn embed_backward(&mut self, inputs: &Tensor, dx: &Tensor) {
        let [batch, length] = [inputs.size()[0], inputs.size()[1]];
        let _ = self.gradients.token_embedding().index_add_(0, &inputs.reshape([-1]), dx);
        let positions = dx.view([batch, length, -1]).sum_dim_intlist(0_i64, false, None); // [T, D]
        let mut gradient = self.gradients.position_embedding().narrow(0, 0, length);
        gradient += positions;
    }

    fn layout(&self, inputs: &Tensor) -> Layout {
        self.layout_of(inputs.size()[0], inputs.size()[1])
    }

    pub(super) fn layout_of(&self, batch: i64, length: i64) -> Layout {
        Layout { batch, length, heads: self.shape.heads as i64, epsilon: self.shape.layer_norm_epsilon, kind: self.kind }
    }
}
