//! Low-rank adapters beside the linear maps of the blocks: what [`crate::settings::lora`] describes, as tensors, forward and
//! backward.

use std::path::Path;

use tch::{Device, Kind, Tensor};

use crate::cpu::slices::floats_mut;
use crate::error::Failure;
use crate::files;
use crate::model::layers::dropout::{Masks, Site};
use crate::model::layers::linear::{add_outer_product, add_product, add_product_transposed, product, product_transposed};
use crate::model::role::TensorSpec;
use crate::model::shape::Shape;
use crate::model::weights::initial::{self, Distribution};
use crate::model::weights::parameters::{BlockTensors, ModelError, Parameter, Parameters};
use crate::settings::lora::{ADAPTER_CONFIG, ADAPTER_FILE, LinearMap, Lora, module};

/// The adapters of a model.
#[derive(Debug)]
pub struct Adapters {
    lora: Lora,
    /// A and B of each map in turn, as [`Lora::tensors`] has them.
    parameters: Parameters,
}

/// One map's adapter, or its gradient; the tensors share memory with the [`Parameters`] they came from.
pub(crate) struct LowRank {
    a: Tensor, // [r, in]
    b: Tensor, // [out, r]
    scale: f64,
    /// The dropout masks of the input, their site, and the length of a sequence.
    dropped: Option<(Masks, Site, i64)>,
}

impl Adapters {
    /// Adapters with peft's initial values: A uniform in `±1/√in` (Kaiming's uniform distribution with `a = √5`), B zero, so that
    /// the model is the one without adapters. A function of `seed` alone.
    pub fn random(lora: &Lora, shape: &Shape, seed: u64) -> Self {
        let mut adapters = Self::zeros(lora, shape);
        let first = shape.tensors().len() as u64;
        for (stream, Parameter { tensor, .. }) in (first..).zip(&mut adapters.parameters).step_by(2) {
            let bound = 1.0 / (tensor.size()[1] as f64).sqrt();
            initial::fill(floats_mut(tensor), Distribution::Uniform(bound), seed, stream);
        }
        adapters
    }

    /// Adapters to be filled.
    pub fn zeros(lora: &Lora, shape: &Shape) -> Self {
        let zeros = |size: &[usize]| Tensor::zeros([size[0] as i64, size[1] as i64], (Kind::Float, Device::Cpu));
        let entry = |spec: TensorSpec| {
            let tensor = zeros(&spec.dimensions);
            Parameter::new(spec, tensor)
        };
        let entries = lora.tensors(shape).into_iter().map(entry).collect();
        Self { lora: lora.clone(), parameters: Parameters::from_entries(entries) }
    }

    /// Reads the adapters of `directory/adapter_model.safetensors`.
    pub fn load(lora: &Lora, shape: &Shape, directory: &Path) -> Result<Self, ModelError> {
        let mut adapters = Self::zeros(lora, shape);
        adapters.parameters.restore(&directory.join(ADAPTER_FILE))?;
        Ok(adapters)
    }

    /// A directory that peft loads.
    pub fn write(&self, directory: &Path) -> Result<(), ModelError> {
        std::fs::create_dir_all(directory).map_err(|error| Failure::io("create", directory, &error))?;
        self.parameters.write_entries(&directory.join(ADAPTER_FILE))?;
        Ok(files::write_json(&directory.join(ADAPTER_CONFIG), &self.lora.adapter_config())?)
    }

    /// The same on `device` in `kind`; tensors that are both already are shared.
    #[must_use]
    pub fn to(&self, device: Device, kind: Kind) -> Self {
        Self { lora: self.lora.clone(), parameters: self.parameters.to(device, kind) }
    }

    pub fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    pub fn parameters_mut(&mut self) -> &mut Parameters {
        &mut self.parameters
    }

    /// The tensor `name` of the model with its adapter in it, `W + α/r · (B·A)ᵀ`; one without an adapter is shared.
    pub fn merged(&self, name: &str, weight: &Tensor) -> Tensor {
        let adapter = name.strip_suffix(".weight").map(|name| format!("{}.lora_A.weight", module(name)));
        let Some(first) = self.parameters.iter().position(|entry| Some(&entry.name) == adapter.as_ref()) else {
            return weight.shallow_clone();
        };
        let LowRank { a, b, scale, .. } = self.low_rank(&self.parameters, first, None);
        let mut merged = weight.copy();
        tch::no_grad(|| add_outer_product(&mut merged, &a, &(b.tr().contiguous() * scale)));
        merged
    }

    /// Gives the maps of a block their adapters, or with `parameters` of the adapters' gradients, those. `masks` are for training,
    /// of sequences of `length` tokens.
    pub(crate) fn attach(&self, block: &mut BlockTensors, parameters: &Parameters, layer: usize, masks: Option<(Masks, i64)>) {
        let maps = self.lora.maps().count();
        let masks = masks.filter(|(masks, _)| masks.dropout.adapter > 0.0);
        for (number, map) in self.lora.maps().enumerate() {
            let (site, target) = match map {
                LinearMap::Attention => (Site::AdapterOfAttention, &mut block.c_attn),
                LinearMap::AttentionOutput => (Site::AdapterOfAttentionOutput, &mut block.attn_proj),
                LinearMap::Network => (Site::AdapterOfNetwork, &mut block.c_fc),
                LinearMap::NetworkOutput => (Site::AdapterOfNetworkOutput, &mut block.mlp_proj),
            };
            let dropped = masks.map(|(masks, length)| (Masks { layer: layer as u64, ..masks }, site, length));
            target.adapter = Some(self.low_rank(parameters, 2 * (layer * maps + number), dropped));
        }
    }

    fn low_rank(&self, parameters: &Parameters, first: usize, dropped: Option<(Masks, Site, i64)>) -> LowRank {
        let [a, b] = [first, first + 1].map(|index| parameters.tensor(index));
        LowRank { a, b, scale: self.lora.scale(), dropped }
    }
}

impl LowRank {
    /// Adds what the adapter makes of `x [N, in]` to `y [N, out]`.
    pub fn add_forward(&self, y: &mut Tensor, x: &Tensor) {
        let narrow = self.narrow(&self.drop(x)); // [N, r]
        add_product_transposed(y, &narrow, &self.b.to_kind(x.kind()));
    }

    /// Adds the gradients of A and B to `gradient`, and that of the input to `dx [N, in]`. `x [N, in]`, `dy [N, out]`. Tensors as
    /// narrow as the rank are computed again, and nothing kept from the forward pass.
    pub fn add_backward(&self, x: &Tensor, dy: &Tensor, dx: &mut Tensor, gradient: &mut Self) {
        let dnarrow = product(dy, &self.b.to_kind(dy.kind())) * self.scale; // [N, r]
        let dropped = self.drop(x);
        add_outer_product(&mut gradient.b, dy, &self.narrow(&dropped));
        add_outer_product(&mut gradient.a, &dnarrow, &dropped);
        drop(dropped);
        let a = self.a.to_kind(dy.kind());
        match self.dropped {
            None => add_product(dx, &dnarrow, &a),
            Some(_) => *dx += self.drop(&product(&dnarrow, &a)),
        }
    }

    /// `x [N, in]` → `α/r · x·Aᵀ`, `[N, r]`.
    fn narrow(&self, x: &Tensor) -> Tensor {
        product_transposed(x, &self.a.to_kind(x.kind())) * self.scale
    }

    fn drop(&self, x: &Tensor) -> Tensor {
        self.dropped.map_or_else(|| x.shallow_clone(), |(masks, site, length)| masks.apply(site, x, length))
    }
}
