//! The weights of a GPT-2, as named tensors in one fixed order; gradients and optimizer moments have the same form.

use std::ops::Range;
use std::path::Path;

use tch::{Device, Kind, Tensor};

use super::initial;
pub use super::model_files::{ModelError, WEIGHTS_FILE};
use super::tensor_file::{self, FileError};
use crate::cpu::matmul::Write;
use crate::cpu::parallel;
use crate::cpu::simd::{Bf16, Element, F16, add_all, load, store};
use crate::cpu::slices::{elements, elements_mut, floats, floats_mut, holds, is_plain};
use crate::error::Failure;
use crate::model::gpt2::adapters::LowRank;
use crate::model::role::{Role, TensorSpec};
use crate::model::shape::{BLOCK_TENSORS, Shape};
use crate::model::xglm;
use crate::offload::{Place, release};
use crate::settings::{Offload, Variant};

/// Elements that a thread rounds or adds at a time.
const CHUNK: usize = 1 << 14;
/// Tensors of the final layer norm.
const FINAL_NORM: usize = 2;

/// One trained tensor under its Hugging Face name.
#[derive(Debug)]
pub struct Parameter {
    pub name: String,
    pub role: Role,
    /// The block of the model that it is in, counted from 0.
    pub block: Option<usize>,
    pub tensor: Tensor,
}

impl Parameter {
    pub fn new(spec: TensorSpec, tensor: Tensor) -> Self {
        let TensorSpec { name, role, block, .. } = spec;
        Self { name, role, block, tensor }
    }

    /// The same with another tensor.
    fn with(&self, tensor: Tensor) -> Self {
        Self { name: self.name.clone(), role: self.role, block: self.block, tensor }
    }

    /// Whether the one for products is on a device and shares nothing with this, where so much is `away` from the device.
    fn is_copied(&self, away: Offload) -> bool {
        match away {
            Offload::None => false,
            Offload::Optimizer => true,
            Offload::Model => !self.role.is_in_block(),
        }
    }

    /// In `kind` where it takes part in products, and in `place`; else the same, shared.
    fn rounded(&self, kind: Kind, place: &Place) -> Result<Tensor, Failure> {
        if !self.role.is_multiplied() {
            return Ok(self.tensor.shallow_clone());
        }
        let rounded = place.hold(self.tensor.to_kind(kind));
        // Or all of them stay in memory until the first update.
        release([&self.tensor]);
        rounded
    }

    /// In `kind` where it takes part in products, on `device`.
    fn copied(&self, kind: Kind, device: Device) -> Tensor {
        let kind = if self.role.is_multiplied() { kind } else { self.tensor.kind() };
        self.tensor.to_device_(device, kind, false, true)
    }

    /// Whether weight decay applies: matrices only; biases and layer norms are left alone.
    pub fn decays(&self) -> bool {
        self.tensor.dim() >= 2
    }
}

/// Every trained tensor in the order of [`Shape::tensors`], contiguous, all of one dtype (`f32`; `f64` for reference runs) on
/// one device. Linear weights are `[in, out]`.
#[derive(Debug)]
pub struct Parameters {
    entries: Vec<Parameter>,
}

/// Weight and bias of one layer norm or linear map; the tensors share memory with the [`Parameters`] they came from. As a gradient
/// of weights that stay as they are it has neither: the tensors are libtorch's undefined ones.
pub(crate) struct Affine {
    pub weight: Tensor,
    pub bias: Tensor,
    pub adapter: Option<LowRank>,
}

/// The tensors of one block, sharing memory with the [`Parameters`] they came from.
pub(crate) struct BlockTensors {
    pub ln_1: Affine,
    pub c_attn: Affine,
    pub attn_proj: Affine,
    pub ln_2: Affine,
    pub c_fc: Affine,
    pub mlp_proj: Affine,
}

impl Affine {
    fn new(weight: &Tensor, bias: &Tensor) -> Self {
        Self { weight: weight.shallow_clone(), bias: bias.shallow_clone(), adapter: None }
    }

    /// The gradient of frozen tensors.
    pub fn frozen() -> Self {
        Self { weight: Tensor::new(), bias: Tensor::new(), adapter: None }
    }

    /// Whether a gradient is that of a frozen tensor.
    pub fn is_frozen(&self) -> bool {
        !self.weight.defined()
    }

    /// Weight and bias as `change` makes them.
    pub fn map(&self, change: &impl Fn(&Tensor) -> Tensor) -> Self {
        Self { weight: change(&self.weight), bias: change(&self.bias), adapter: None }
    }

    pub fn tensors(&self) -> [&Tensor; 2] {
        [&self.weight, &self.bias]
    }
}

impl BlockTensors {
    /// [`Affine::frozen`] for a whole block.
    pub fn frozen() -> Self {
        let [ln_1, c_attn, attn_proj, ln_2, c_fc, mlp_proj] = std::array::from_fn(|_| Affine::frozen());
        Self { ln_1, c_attn, attn_proj, ln_2, c_fc, mlp_proj }
    }

    /// [`Affine::map`] for a whole block.
    pub fn map(&self, change: &impl Fn(&Tensor) -> Tensor) -> Self {
        let [ln_1, c_attn, attn_proj, ln_2, c_fc, mlp_proj] = self.affines().map(|affine| affine.map(change));
        Self { ln_1, c_attn, attn_proj, ln_2, c_fc, mlp_proj }
    }

    /// The tensors that are not frozen.
    pub fn tensors(&self) -> Vec<&Tensor> {
        self.affines().into_iter().filter(|affine| !affine.is_frozen()).flat_map(Affine::tensors).collect()
    }

    /// The linear maps, in the order of [`BlockTensors::tensors`].
    pub fn maps(&self) -> [&Affine; 4] {
        [&self.c_attn, &self.attn_proj, &self.c_fc, &self.mlp_proj]
    }

    fn affines(&self) -> [&Affine; 6] {
        [&self.ln_1, &self.c_attn, &self.attn_proj, &self.ln_2, &self.c_fc, &self.mlp_proj]
    }

    /// Lets tensors that lie in files leave main memory until they are used again.
    pub fn release(&self) {
        release(self.tensors());
    }
}

impl Parameters {
    /// The variant's initial weights ([`super::initial`]). A function of `seed` alone, whatever the number of threads.
    pub fn random(shape: &Shape, seed: u64) -> Self {
        Self::random_in(&Place::Memory, shape, seed).expect("main memory needs no file")
    }

    /// [`Parameters::random`] in `place`.
    pub fn random_in(place: &Place, shape: &Shape, seed: u64) -> Result<Self, Failure> {
        let mut parameters = Self::blank_in(place, shape)?;
        for (stream, Parameter { role, tensor, .. }) in (0..).zip(&mut parameters) {
            initial::fill(floats_mut(tensor), initial::distribution(shape, *role), seed, stream);
            release([&*tensor]);
        }
        Ok(parameters)
    }

    /// Zeros in `place`, for the weights of a model of this shape.
    pub fn blank_in(place: &Place, shape: &Shape) -> Result<Self, Failure> {
        let entry = |spec: TensorSpec| {
            let dimensions: Vec<i64> = spec.dimensions.iter().map(|size| *size as i64).collect();
            Ok(Parameter::new(spec, place.zeros(&dimensions, Kind::Float, Device::Cpu)?))
        };
        Ok(Self { entries: shape.tensors().into_iter().map(entry).collect::<Result<_, Failure>>()? })
    }

    /// Tensors in the order of [`Shape::tensors`].
    pub(crate) fn from_entries(entries: Vec<Parameter>) -> Self {
        Self { entries }
    }

    /// Zeros of the same names, dimensions, dtype and device.
    #[must_use]
    pub fn zeros_like(&self) -> Self {
        self.map(Tensor::zeros_like)
    }

    /// [`Parameters::zeros_like`] in `place`.
    pub fn zeros_in(&self, place: &Place) -> Result<Self, Failure> {
        self.try_map(|entry| place.zeros_like(&entry.tensor))
    }

    /// [`Parameters::zeros_like`], where the tensors of a block are those of the one two before it.
    pub(crate) fn zeros_of_two_blocks(&self) -> Self {
        let (third, mut zeros) = (self.block_tensors(2).start, Vec::<Parameter>::new());
        for (index, entry) in self.entries.iter().enumerate() {
            let earlier = index.checked_sub(2 * BLOCK_TENSORS).filter(|_| entry.role.is_in_block() && index >= third);
            let tensor = earlier.map_or_else(|| entry.tensor.zeros_like(), |earlier| zeros[earlier].tensor.shallow_clone());
            zeros.push(entry.with(tensor));
        }
        Self { entries: zeros }
    }

    /// The same values on `device` in `kind`; a tensor that is both already is shared, not copied.
    #[must_use]
    pub fn to(&self, device: Device, kind: Kind) -> Self {
        self.map(|tensor| tensor.to_device(device).to_kind(kind))
    }

    /// The same values, those that take part in matrix products rounded to `kind`: in `place` or, as far as `away` says it, on
    /// `device` and sharing nothing.
    pub(crate) fn for_products(&self, kind: Kind, place: &Place, device: Device, away: Offload) -> Result<Self, Failure> {
        let change = |entry: &Parameter| {
            if entry.is_copied(away) { Ok(entry.copied(kind, device)) } else { entry.rounded(kind, place) }
        };
        self.try_map(change)
    }

    /// Takes over a change of `original`, the `index`-th of those that this was made of, [`Parameters::for_products`] with as much
    /// `away`.
    pub(crate) fn round_again(&mut self, index: usize, original: &Tensor, away: Offload) {
        let is_copied = self.entries[index].is_copied(away);
        let tensor = &mut self.entries[index].tensor;
        if is_copied {
            // On the device it is rounded: the copy is made while the processor goes on.
            tensor.copy_(&original.to_device_(tensor.device(), original.kind(), true, false));
        } else if tensor.kind() == original.kind() {
            *tensor = original.shallow_clone();
        } else {
            round(tensor, original);
            release([&*tensor, original]);
        }
    }

    /// [`Parameters::round_again`] of some where none is away, as far as they share no memory with these.
    pub(crate) fn round_where_they_are(&self, some: Range<usize>, originals: &Self) {
        let pairs = self.entries[some.clone()].iter().zip(&originals.entries[some]);
        for (entry, original) in pairs.filter(|(entry, original)| entry.tensor.kind() != original.tensor.kind()) {
            round(&mut entry.tensor.shallow_clone(), &original.tensor);
            release([&entry.tensor, &original.tensor]);
        }
    }

    fn try_map(&self, change: impl Fn(&Parameter) -> Result<Tensor, Failure>) -> Result<Self, Failure> {
        let entry = |entry: &Parameter| Ok(entry.with(change(entry)?));
        Ok(Self { entries: self.entries.iter().map(entry).collect::<Result<_, Failure>>()? })
    }

    fn map(&self, change: impl Fn(&Tensor) -> Tensor) -> Self {
        let entry = |entry: &Parameter| entry.with(change(&entry.tensor));
        Self { entries: self.entries.iter().map(entry).collect() }
    }

    pub fn iter(&self) -> std::slice::Iter<'_, Parameter> {
        self.entries.iter()
    }

    pub fn iter_mut(&mut self) -> std::slice::IterMut<'_, Parameter> {
        self.entries.iter_mut()
    }

    /// Sets every element to zero.
    pub fn zero(&mut self) {
        for entry in &mut self.entries {
            let _ = entry.tensor.zero_();
            release([&entry.tensor]);
        }
    }

    /// Sets to zero what the gradients of a step are added to: not the matrices of products, which the first product of a step
    /// replaces.
    pub(crate) fn zero_what_is_added_to(&mut self) {
        self.zero_those_added_to(0..self.entries.len());
    }

    /// [`Parameters::zero_what_is_added_to`] for some of them.
    pub(crate) fn zero_those_added_to(&self, tensors: Range<usize>) {
        let is_replaced = |entry: &Parameter| entry.role == Role::TokenEmbedding || entry.role.is_matrix();
        for entry in self.entries[tensors].iter().filter(|entry| !is_replaced(entry)) {
            let _ = entry.tensor.shallow_clone().zero_();
            release([&entry.tensor]);
        }
    }

    /// Writes a safetensors file of these names.
    pub fn write_entries(&self, path: &Path) -> Result<(), FileError> {
        tensor_file::write(path, self.entries.iter().map(|entry| (entry.name.clone(), &entry.tensor)))
    }

    /// Writes `model.safetensors` as `transformers` does, one tensor in memory at a time; the bytes depend on the values only.
    pub fn write_safetensors(&self, path: &Path) -> Result<(), ModelError> {
        let tensors = self.stored();
        Ok(tensor_file::write(path, tensors.iter().map(|(name, tensor)| (name.clone(), tensor)))?)
    }

    /// The tensors as the variant's files name and cut them, sharing memory with these.
    pub fn stored(&self) -> Vec<(String, Tensor)> {
        let views = |entry: &Parameter| match self.variant() {
            Variant::Gpt2 => vec![(entry.name.clone(), entry.tensor.shallow_clone())],
            Variant::Fairseq => {
                let names = xglm::stored_names(&entry.name);
                let turned = if entry.role.is_matrix() { entry.tensor.tr() } else { entry.tensor.shallow_clone() };
                let parts = turned.chunk(names.len() as i64, 0);
                names.into_iter().zip(parts).collect()
            }
        };
        self.entries.iter().flat_map(views).collect()
    }

    fn variant(&self) -> Variant {
        // Adapters alone have no embedding, and names of their own.
        let is_whole = self.entries[0].role == Role::TokenEmbedding;
        if is_whole && !self.learns_positions() { Variant::Fairseq } else { Variant::Gpt2 }
    }

    /// Tensors before the first block: the token embedding, and that of the positions where they are learnt.
    fn embeddings(&self) -> usize {
        1 + usize::from(self.learns_positions())
    }

    fn learns_positions(&self) -> bool {
        self.entries[1].role == Role::PositionEmbedding
    }

    pub(crate) fn tensor(&self, index: usize) -> Tensor {
        self.entries[index].tensor.shallow_clone()
    }

    pub fn specs(&self) -> Vec<TensorSpec> {
        let spec = |entry: &Parameter| TensorSpec {
            name: entry.name.clone(),
            role: entry.role,
            block: entry.block,
            dimensions: entry.tensor.size().into_iter().map(|size| size as usize).collect(),
        };
        self.entries.iter().map(spec).collect()
    }

    /// All of them, sharing memory with these.
    pub(crate) fn tensors(&self) -> Vec<Tensor> {
        self.entries.iter().map(|entry| entry.tensor.shallow_clone()).collect()
    }

    /// Token embedding `[V, D]`, also the output head.
    pub(crate) fn token_embedding(&self) -> Tensor {
        self.entries[0].tensor.shallow_clone()
    }

    /// Learnt position embedding `[context, D]`.
    pub(crate) fn position_embedding(&self) -> Tensor {
        self.entries[1].tensor.shallow_clone()
    }

    pub(crate) fn final_norm(&self) -> Affine {
        self.affine(self.final_norm_tensors().start)
    }

    pub(crate) fn embedding_tensors(&self) -> Range<usize> {
        0..self.embeddings()
    }

    pub(crate) fn block_tensors(&self, layer: usize) -> Range<usize> {
        let first = self.embeddings() + layer * BLOCK_TENSORS;
        first..first + BLOCK_TENSORS
    }

    pub(crate) fn final_norm_tensors(&self) -> Range<usize> {
        self.entries.len() - FINAL_NORM..self.entries.len()
    }

    pub(crate) fn block(&self, layer: usize) -> BlockTensors {
        let first = self.block_tensors(layer).start;
        BlockTensors {
            ln_1: self.affine(first),
            c_attn: self.affine(first + 2),
            attn_proj: self.affine(first + 4),
            ln_2: self.affine(first + 6),
            c_fc: self.affine(first + 8),
            mlp_proj: self.affine(first + 10),
        }
    }

    fn affine(&self, index: usize) -> Affine {
        Affine::new(&self.entries[index].tensor, &self.entries[index + 1].tensor)
    }
}

impl<'a> IntoIterator for &'a mut Parameters {
    type Item = &'a mut Parameter;
    type IntoIter = std::slice::IterMut<'a, Parameter>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter_mut()
    }
}

impl<'a> IntoIterator for &'a Parameters {
    type Item = &'a Parameter;
    type IntoIter = std::slice::Iter<'a, Parameter>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

/// `original` in the dtype of `place`.
fn round(place: &mut Tensor, original: &Tensor) {
    if !(is_plain(original) && holds::<Bf16>(place)) {
        return place.copy_(original);
    }
    let work = elements_mut::<Bf16>(place).chunks_mut(CHUNK).zip(floats(original).chunks(CHUNK));
    parallel::run(work.collect(), |(place, values)| store(values, place));
}

/// Adds a product of 16 bits to a gradient of `f32`, or writes it there: to the bit as where it was made.
///
/// # Panics
/// When either is not contiguous and in main memory, or of another dtype.
pub(crate) fn take_in(gradient: &mut Tensor, product: &Tensor, write: Write) {
    if product.kind() == Kind::Half {
        take_in_elements::<F16>(gradient, product, write);
    } else {
        take_in_elements::<Bf16>(gradient, product, write);
    }
}

fn take_in_elements<E: Element>(gradient: &mut Tensor, product: &Tensor, write: Write) {
    let work = floats_mut(gradient).chunks_mut(CHUNK).zip(elements::<E>(product).chunks(CHUNK));
    parallel::run(work.collect(), |(sum, terms)| if write == Write::Over { load(terms, sum) } else { add_all(terms, sum) });
}
