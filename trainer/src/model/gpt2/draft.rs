//! A fast, slightly wrong copy of a model that guesses what it will write.
//!
//! To write one token, every weight is read from main memory once, and nothing else takes time. The copy's weights are whole
//! numbers of 8 bits with one scale for each output (as in `LLM.int8()`, Dettmers et al. 2022, but for the weights alone): a
//! quarter of the bytes. The model itself checks its guesses, all in one pass (speculative decoding, Leviathan et al. 2023), so
//! that the copy decides when a text is written, never which.

use tch::{Kind, Tensor};

use super::Gpt2;
use super::kv_cache::{KvCache, attend};
use crate::cpu::matmul::skinny;
use crate::cpu::parallel;
use crate::cpu::simd::{Element, add};
use crate::cpu::slices::{elements, elements_mut, floats, floats_mut, is_plain};
use crate::cpu::vectorise::vectorised;
use crate::model::layers::norm;
use crate::model::weights::parameters::Affine;
use crate::offload::release;
use crate::settings::micro_batch::available_memory;

/// Terms of a sum of products that 32 bits hold: of numbers up to 127 and 32,767.
const TERMS: usize = 512;
/// Outputs that one thread computes before it asks for more.
const ROWS: usize = 64;

/// The copy. It reads the keys and values of the model's own cache, and writes its own behind them, where the model then writes
/// what is right.
pub struct Draft<'a> {
    model: &'a Gpt2,
    blocks: Vec<Block>,
    final_norm: Affine,
    head: Rounded,
}

struct Block {
    ln_1: Affine,
    c_attn: Map,
    attn_proj: Map,
    ln_2: Affine,
    c_fc: Map,
    mlp_proj: Map,
}

struct Map {
    weight: Rounded,
    bias: Tensor,
}

/// A matrix `[out, in]` of which row `n` is `scales[n]` times whole numbers.
struct Rounded {
    /// `i8`, in libtorch's memory: that is in large pages.
    numbers: Tensor,
    scales: Vec<f32>,
}

impl Gpt2 {
    /// A copy that guesses, where it helps: of a model in main memory whose products of a few rows are [`few`]'s, without adapters,
    /// and where there is memory for it twice over.
    pub fn draft(&self) -> Option<Draft<'_>> {
        self.run(|| {
            let embedding = self.working().token_embedding();
            let served = is_plain(&embedding) && self.adapters().is_none() && skinny::is_available();
            (served && self.shape().parameters() <= available_memory() / 2).then(|| Draft::of(self, &embedding))
        })
    }
}

impl<'a> Draft<'a> {
    fn of(model: &'a Gpt2, embedding: &Tensor) -> Self {
        let block = |layer| {
            let weights = model.block(layer, None);
            let map = |map: &Affine| Map { weight: Rounded::of(&map.weight.tr().contiguous()), bias: map.bias.shallow_clone() };
            let [c_attn, attn_proj, c_fc, mlp_proj] =
                [&weights.c_attn, &weights.attn_proj, &weights.c_fc, &weights.mlp_proj].map(map);
            weights.release();
            Block { ln_1: weights.ln_1, c_attn, attn_proj, ln_2: weights.ln_2, c_fc, mlp_proj }
        };
        let blocks = (0..model.shape().layers).map(block).collect();
        let head = Rounded::of(embedding);
        release([embedding]);
        Self { model, blocks, final_norm: model.working().final_norm(), head }
    }

    /// The logits after `token`, the `ahead`-th after what `cache` holds of one sequence, `[vocabulary]`: about those of the model.
    ///
    /// # Panics
    /// When the token is outside the vocabulary, or the cache has no room for it or is of several sequences.
    pub fn logits(&self, token: u32, cache: &mut KvCache, ahead: usize) -> Vec<f32> {
        self.model.run(|| {
            let slot = cache.length() + ahead;
            let position = self.model.positions().narrow(0, slot as i64, 1);
            let x = self.model.embed_tokens(&Tensor::from_slice(&[i64::from(token)])) + position;
            let mut x = floats(&x).to_vec();
            for (layer, block) in self.blocks.iter().enumerate() {
                self.extend(&mut x, block, cache.layer(layer), slot);
            }
            let mut logits = vec![0.0; self.model.shape().vocabulary];
            self.head.multiply_add(&self.normal(&x, &self.final_norm), &mut logits);
            logits
        })
    }

    /// The computation of the model's own block, for one token: `x [D]`.
    fn extend(&self, x: &mut [f32], block: &Block, kept: &mut (Tensor, Tensor), slot: usize) {
        let width = x.len();
        let qkv = block.c_attn.apply(&self.normal(x, &block.ln_1));
        let [query, key, value] = [0, 1, 2].map(|part| &qkv[part * width..][..width]);
        let mut heads = vec![0.0; width];
        attend_all(query, key, value, kept, slot, &mut heads);
        block.attn_proj.add_to(x, &heads);
        let hidden = block.c_fc.apply(&self.normal(x, &block.ln_2));
        let mut activated = vec![0.0; hidden.len()];
        self.model.layout_of(1, 1).gelu.apply(&hidden, &mut activated);
        block.mlp_proj.add_to(x, &activated);
    }

    fn normal(&self, x: &[f32], norm: &Affine) -> Vec<f32> {
        let mut y = vec![0.0; x.len()];
        let epsilon = self.model.shape().layer_norm_epsilon as f32;
        norm::forward_rows(x, floats(&norm.weight), floats(&norm.bias), epsilon, &mut y, &mut [0.0], &mut [0.0]);
        y
    }
}

/// Writes a token's key and value, and attends to all up to it, head by head. `[D]` each; the kept tensors are `[1, H, capacity, D
/// / H]`.
fn attend_all(query: &[f32], key: &[f32], value: &[f32], kept: &mut (Tensor, Tensor), slot: usize, output: &mut [f32]) {
    assert_eq!(kept.0.size()[0], 1, "a draft continues one sequence");
    let [capacity, channels] = [2, 3].map(|dimension| kept.0.size()[dimension] as usize);
    let room = capacity * channels;
    let kept = floats_mut(&mut kept.0).chunks_mut(room).zip(floats_mut(&mut kept.1).chunks_mut(room));
    let new = query.chunks(channels).zip(key.chunks(channels).zip(value.chunks(channels)));
    let work = new.zip(kept).zip(output.chunks_mut(channels)).collect();
    parallel::run(work, |(((query, (key, value)), (keys, values)), output)| {
        let (new, seen) = (slot * channels..(slot + 1) * channels, ..(slot + 1) * channels);
        keys[new.clone()].copy_from_slice(key);
        values[new].copy_from_slice(value);
        attend(query, &keys[seen], &values[seen], output);
    });
}

impl Map {
    fn apply(&self, x: &[f32]) -> Vec<f32> {
        let mut y = floats(&self.bias).to_vec();
        self.weight.multiply_add(x, &mut y);
        y
    }

    fn add_to(&self, sum: &mut [f32], x: &[f32]) {
        add(sum, floats(&self.bias));
        self.weight.multiply_add(x, sum);
    }
}

impl Rounded {
    /// `matrix [out, in]`.
    fn of(matrix: &Tensor) -> Self {
        let [rows, depth] = [0, 1].map(|dimension| matrix.size()[dimension] as usize);
        let (mut numbers, mut scales) = (Tensor::empty(matrix.size(), (Kind::Int8, matrix.device())), vec![0.0; rows]);
        let places = elements_mut::<i8>(&mut numbers).chunks_mut(ROWS * depth).zip(scales.chunks_mut(ROWS));
        let work = floats(matrix).chunks(ROWS * depth).zip(places);
        parallel::run(work.collect(), |(matrix, (numbers, scales))| {
            for ((row, numbers), scale) in matrix.chunks(depth).zip(numbers.chunks_mut(depth)).zip(scales) {
                *scale = round_to(row, 127.0, numbers);
            }
        });
        Self { numbers, scales }
    }

    /// Adds this matrix times `x [in]` to `y [out]`.
    fn multiply_add(&self, x: &[f32], y: &mut [f32]) {
        let mut factors = vec![0_i16; x.len()];
        let scale = round_to(x, 32767.0, &mut factors);
        let matrix = elements::<i8>(&self.numbers).chunks(ROWS * x.len()).zip(self.scales.chunks(ROWS));
        parallel::run(matrix.zip(y.chunks_mut(ROWS)).collect(), |((numbers, scales), y)| dots(numbers, scales, &factors, scale, y));
    }
}

vectorised! {
    /// Whole numbers up to `most`, and the factor that makes `values` of them again.
    fn round_to<N: Element>(values: &[f32], most: f32, numbers: &mut [N]) -> f32 {
        // Magnitudes are ordered as their bits are.
        let largest = values.iter().fold(0, |largest, value| (value.to_bits() & !(1 << 31)).max(largest));
        let scale = f32::from_bits(largest) / most;
        // The inverse of a smaller number may be infinite.
        let inverse = if scale >= f32::MIN_POSITIVE { 1.0 / scale } else { 0.0 };
        for (value, number) in values.iter().zip(numbers) {
            *number = N::put(value * inverse);
        }
        scale
    }
}

vectorised! {
    /// Adds the product of rows of `numbers`, each times its scale, with `factors` times `scale` to `y`.
    fn dots(numbers: &[i8], scales: &[f32], factors: &[i16], scale: f32, y: &mut [f32]) {
        for ((numbers, own), y) in numbers.chunks(factors.len()).zip(scales).zip(y) {
            let mut sum = 0.0;
            for (numbers, factors) in numbers.chunks(TERMS).zip(factors.chunks(TERMS)) {
                let part: i32 = numbers.iter().zip(factors).map(|(number, factor)| i32::from(*number) * i32::from(*factor)).sum();
                sum += part as f32;
            }
            *y += sum * own * scale;
        }
    }
}
