//! A model from its weights: to compute with, or to be trained in one of many ways.

use std::cell::RefCell;

use tch::{Device, Kind, Tensor};

use super::adapters::Adapters;
use super::weight_stream::WeightStream;
use super::{Gpt2, sinusoids};
use crate::error::Failure;
use crate::model::layers::dropout::Dropout;
use crate::model::layers::fused::Fused;
use crate::model::shape::Shape;
use crate::model::weights::parameters::Parameters;
use crate::offload::Place;
use crate::settings::{Engine, Offload, Precision, Recompute};

/// How a model is trained. By default: in the dtype of its weights, with everything kept in memory and nothing dropped.
#[derive(Debug, Clone)]
pub struct Setup<'a> {
    /// Whose kernels compute on the CPU. A GPU has libtorch's.
    pub engine: Engine,
    /// The dtype of the products. Weights, gradients, layer norms and the stream from block to block keep theirs, as under torch's
    /// autocast.
    pub precision: Precision,
    /// Trained beside the weights, which then stay as they are.
    pub adapters: Option<&'a Adapters>,
    /// The dropout of activations in [`Gpt2::accumulate`]. Losses, logits and generation know no dropout.
    pub dropout: Dropout,
    /// Attention sees only the document that a token belongs to, and positions are counted from its beginning: this token begins
    /// one. Generation is not affected: its prompts are one document each.
    pub begins_document: Option<u32>,
    /// The data that is not on the device. `Optimizer`: weights and gradients are in main memory. The device has a copy of the
    /// weights for products, which shares nothing with them, and the gradients of two blocks at a time. `Model`: it has two blocks
    /// of that copy at a time.
    pub away: Offload,
    /// Where gradients lie and, unless they are on the device alone, rounded weights.
    pub place: Place,
    /// Two blocks have their gradients at a time, each in the place of the one two before it: of one batch in a step.
    pub sheds_gradients: bool,
    /// How much less of the forward pass is kept for the backward pass.
    pub recompute: Recompute,
    /// Rows (tokens) of a batch at most, where its tensors leave the device.
    pub rows: usize,
    /// Where those wait.
    pub place_of_activations: Place,
}

impl Default for Setup<'_> {
    fn default() -> Self {
        Self {
            engine: Engine::Own,
            precision: Precision::Fp32,
            adapters: None,
            dropout: Dropout::default(),
            begins_document: None,
            away: Offload::None,
            place: Place::Memory,
            sheds_gradients: false,
            recompute: Recompute::None,
            rows: 0,
            place_of_activations: Place::Memory,
        }
    }
}

impl Gpt2 {
    /// A model on `device`, in whose memory gradients are made when they are first asked for. The dtype of the weights is the dtype
    /// of the computation. Weights that are on `device` already are shared with `parameters`, not copied: two copies of a large
    /// model may not fit.
    pub fn new(shape: Shape, parameters: &Parameters, device: Device) -> Self {
        Self::with_weights_on(device, shape, parameters, device)
    }

    /// A model on `device` with its gradients, as `setup` says.
    ///
    /// # Errors
    /// A place has no room, or the device no fused attention for the dtype.
    ///
    /// # Panics
    /// When there are adapters, and weights are away from the device.
    pub fn for_training(shape: Shape, parameters: &Parameters, device: Device, setup: &Setup<'_>) -> Result<Self, Failure> {
        let Setup { engine, precision, dropout, away, recompute, ref place, .. } = *setup;
        let home = if away == Offload::None { device } else { Device::Cpu };
        let mut model = Self { recompute, engine, away, ..Self::with_weights_on(home, shape, parameters, device) };
        assert!(setup.adapters.is_none() || !model.is_apart(), "adapters lie where the weights are");
        model.adapters = setup.adapters.map(|adapters| adapters.to(device, model.kind));
        model.dropout = (dropout.reaches_stream() || dropout.adapter > 0.0).then_some(dropout);
        model.begins_document = setup.begins_document.map(i64::from);
        if precision != Precision::Fp32 {
            model.kind = precision.kind();
        }
        if model.is_apart() || precision != Precision::Fp32 {
            model.working = model.parameters.for_products(model.kind, place, device, away)?;
        }
        model.stream = (away == Offload::Model).then(|| WeightStream::new(&model.working, shape.layers, device));
        model.fused = Fused::of(device, model.kind, shape.head_width())?;
        model.sheds_gradients = setup.sheds_gradients;
        let gradients =
            if setup.sheds_gradients { model.parameters.zeros_of_two_blocks() } else { model.trained().zeros_in(place)? };
        model.gradients = Some(gradients);
        if model.is_apart() && precision != Precision::Fp32 {
            model.landings = model.landings_in(place)?;
        }
        model.inputs_away = model.inputs_in(&setup.place_of_activations, setup.rows)?;
        Ok(model)
    }

    fn with_weights_on(home: Device, shape: Shape, parameters: &Parameters, device: Device) -> Self {
        let kind = parameters.iter().next().map_or(Kind::Float, |entry| entry.tensor.kind());
        let parameters = parameters.to(home, kind);
        Self {
            shape,
            working: parameters.to(home, kind),
            parameters,
            adapters: None,
            gradients: None,
            sinusoids: (!shape.learns_positions()).then(|| sinusoids::table(&shape).to_device(device).to_kind(kind)),
            recompute: Recompute::None,
            inputs_away: Vec::new(),
            dropout: None,
            begins_document: None,
            device,
            engine: Engine::Own,
            fused: if device.is_cuda() { Fused::Efficient } else { Fused::Cpu },
            away: Offload::None,
            stream: None,
            landings: Vec::new(),
            landing: RefCell::default(),
            sheds_gradients: false,
            fresh: false,
            kind,
        }
    }

    /// A place for the input of each block, where these leave the device.
    fn inputs_in(&self, place: &Place, rows: usize) -> Result<Vec<Tensor>, Failure> {
        let (size, kind) = ([rows as i64, self.shape.width as i64], self.parameters.token_embedding().kind());
        let layers = if self.recompute == Recompute::Host { self.shape.layers } else { 0 };
        (0..layers).map(|_| place.zeros(&size, kind, Device::Cpu)).collect()
    }

    /// A place for the products of one block, in their own dtype.
    fn landings_in(&self, place: &Place) -> Result<Vec<Tensor>, Failure> {
        let block = self.parameters.block(0);
        block.maps().map(|map| place.zeros(&map.weight.size(), self.kind, Device::Cpu)).into_iter().collect()
    }
}
