//! Generation: one new position at a time, with the keys and values of the earlier ones kept.

use tch::{Device, Kind, Tensor};

use super::Gpt2;
use crate::cpu::parallel;
use crate::cpu::simd::{LANES, ask_for, dot, exp, largest, sum_of};
use crate::cpu::slices::{floats, floats_mut, is_plain};
use crate::cpu::vectorise::vectorised;
use crate::model::layers::attention::{by_head, join_heads, split_heads};
use crate::model::layers::layout::Layout;
use crate::model::layers::{gelu, linear, norm};
use crate::model::weights::parameters::{BlockTensors, ModelError};
use crate::offload::release;

/// New tokens whose attention is computed one by one.
const FEW: i64 = 16;
/// Rows of keys and values that are asked for before they are read: processors do so themselves, but no further than the next 4
/// KiB.
const AHEAD: usize = 32;

/// Keys and values of every position so far.
pub struct KvCache {
    /// Per layer, `[batch, heads, capacity, D / heads]` each.
    layers: Vec<(Tensor, Tensor)>,
    capacity: i64,
    length: i64,
}

/// Which slots of the cache the new tokens may look at, and where they stand.
struct Window {
    /// Slots that row `b` never looks at.
    padding: Vec<i64>,
    /// `[batch, new]`: the position embedding of each new token, counted after the padding.
    positions: Tensor,
    /// `[batch, 1, new, length]`, true where attention may look.
    mask: Tensor,
    first: i64,
    length: i64,
}

impl KvCache {
    /// Positions so far.
    pub(crate) fn length(&self) -> usize {
        self.length as usize
    }

    /// Keys and values of a layer, `[batch, heads, capacity, D / heads]` each.
    pub(crate) fn layer(&mut self, layer: usize) -> &mut (Tensor, Tensor) {
        &mut self.layers[layer]
    }

    /// Drops the newest `count` positions, of which there are as many.
    pub fn forget(&mut self, count: usize) {
        self.length -= count as i64;
    }
}

impl Gpt2 {
    /// An empty cache for `batch` sequences of at most `capacity` tokens, prompt, padding and continuation together.
    pub fn cache(&self, batch: usize, capacity: usize) -> Result<KvCache, ModelError> {
        let shape = self.shape();
        if capacity > shape.context {
            return Err(ModelError::Context { asked: capacity, context: shape.context });
        }
        let size = [batch, shape.heads, capacity, shape.head_width()].map(|size| size as i64);
        let options = (self.working().token_embedding().kind(), self.device());
        let layers = (0..shape.layers).map(|_| (Tensor::zeros(size, options), Tensor::zeros(size, options))).collect();
        Ok(KvCache { layers, capacity: capacity as i64, length: 0 })
    }

    /// Appends `tokens [batch, new]` `i64` to the cache and returns the logits after the last of them, `[batch, vocabulary]`.
    /// `left_padding[b]` is the number of padding tokens row `b` of the first call began with; they are never attended to, and
    /// positions are counted after them, as transformers does.
    pub fn next_logits(&self, tokens: &Tensor, cache: &mut KvCache, left_padding: &[usize]) -> Result<Tensor, ModelError> {
        Ok(self.last_logits(tokens, 1, cache, left_padding)?.squeeze_dim(1))
    }

    /// [`Gpt2::next_logits`] after each of the `last` tokens: `[batch, last, vocabulary]`.
    pub fn last_logits(
        &self,
        tokens: &Tensor,
        last: usize,
        cache: &mut KvCache,
        left_padding: &[usize],
    ) -> Result<Tensor, ModelError> {
        let asked = cache.length + tokens.size()[1];
        if asked > cache.capacity {
            return Err(ModelError::Context { asked: asked as usize, context: cache.capacity as usize });
        }
        Ok(self.run(|| self.extend(tokens, last as i64, cache, left_padding)))
    }

    fn extend(&self, tokens: &Tensor, last: i64, cache: &mut KvCache, left_padding: &[usize]) -> Tensor {
        let tokens = tokens.to_device(self.device());
        let [batch, new] = [tokens.size()[0], tokens.size()[1]];
        let window = Window::new(cache.length, new, left_padding, &tokens);
        let layout = self.layout_of(batch, new);
        let weights = self.working();
        let positions = self.positions().index_select(0, &window.positions.reshape([-1]));
        let mut x = self.embed_tokens(&tokens.reshape([-1])) + positions; // [batch · new, D]
        for (layer, kept) in cache.layers.iter_mut().enumerate() {
            let block = self.block(layer, None);
            x = block_with_cache(&x, &block, layout, kept, &window);
            block.release();
        }
        cache.length = window.length;
        let x = x.view([batch, new, -1]).narrow(1, new - last, last).reshape([batch * last, -1]);
        let (hidden, _) = norm::forward(&x, &weights.final_norm(), layout.epsilon, layout.kind);
        let embedding = weights.token_embedding();
        let logits = linear::product_transposed(&hidden, &embedding).view([batch, last, -1]);
        release([&embedding]);
        logits
    }
}

impl Window {
    fn new(first: i64, new: i64, left_padding: &[usize], tokens: &Tensor) -> Self {
        let length = first + new;
        let options = (Kind::Int64, tokens.device());
        let slots: Vec<i64> = left_padding.iter().map(|count| *count as i64).collect();
        let padding = Tensor::from_slice(&slots).to_device(tokens.device()).view([-1, 1]); // [batch, 1]
        let queries = Tensor::arange_start(first, length, options); // [new]
        let keys = Tensor::arange(length, options).view([1, 1, 1, -1]);
        let positions = (&queries - &padding).clamp_min(0);
        let queries = queries.view([1, 1, -1, 1]);
        let visible = keys.ge_tensor(&padding.view([-1, 1, 1, 1])).logical_and(&keys.le_tensor(&queries));
        // A padding token sees itself: a row with nothing to attend to would be NaN, and NaN survives a masked sum.
        let mask = visible.logical_or(&keys.eq_tensor(&queries));
        Self { padding: slots, positions, mask, first, length }
    }
}

/// `block::forward` with attention over the cache. `x [batch · new, D]`.
fn block_with_cache(
    x: &Tensor,
    weights: &BlockTensors,
    layout: Layout<'_>,
    kept: &mut (Tensor, Tensor),
    window: &Window,
) -> Tensor {
    let (normal, _) = norm::forward(x, &weights.ln_1, layout.epsilon, layout.kind);
    let qkv = linear::forward(&normal, &weights.c_attn); // [batch · new, 3D]
    let is_few = layout.length <= FEW && is_plain(&qkv) && is_plain(&kept.0);
    let heads = if is_few { few_new(&qkv, layout, kept, window) } else { all_new(&qkv, layout, kept, window) };
    let middle = linear::forward_onto(x, &heads, &weights.attn_proj);
    let (normal, _) = norm::forward(&middle, &weights.ln_2, layout.epsilon, layout.kind);
    let activated = gelu::forward(&linear::forward(&normal, &weights.c_fc), layout.gelu);
    linear::forward_onto(&middle, &activated, &weights.mlp_proj)
}

/// Keeps keys and values of any number of new tokens, `qkv [batch · new, 3D]`, and returns their attention, `[batch · new, D]`, in
/// libtorch's operations.
fn all_new(qkv: &Tensor, layout: Layout<'_>, kept: &(Tensor, Tensor), window: &Window) -> Tensor {
    let [q, k, v] = split_heads(qkv, layout); // [batch, H, new, D / H]
    kept.0.narrow(2, window.first, layout.length).copy_(&k);
    kept.1.narrow(2, window.first, layout.length).copy_(&v);
    let [keys, values] = [&kept.0, &kept.1].map(|kept| kept.narrow(2, 0, window.length));
    join_heads(&Tensor::scaled_dot_product_attention(&q, &keys, &values, Some(&window.mask), 0.0, false, None, false))
}

/// The same for few new tokens, each of which is read and kept in place by the thread that attends to it; a token's result does not
/// depend on how many others are new with it.
fn few_new(qkv: &Tensor, layout: Layout<'_>, (keys, values): &mut (Tensor, Tensor), window: &Window) -> Tensor {
    let [heads, new, first] = [layout.heads, layout.length, window.first].map(|number| number as usize);
    let [capacity, channels] = [2, 3].map(|dimension| keys.size()[dimension] as usize);
    let (qkv, width, padding) = (floats(qkv), heads * channels, &window.padding);
    let mut output = Tensor::empty([layout.batch * layout.length, width as i64], (Kind::Float, Device::Cpu));
    let kept = floats_mut(keys).chunks_mut(capacity * channels).zip(floats_mut(values).chunks_mut(capacity * channels));
    let work = by_head::<f32>(floats_mut(&mut output), layout, 1).into_iter().zip(kept).enumerate();
    parallel::run(work.collect(), |(number, (outputs, (keys, values)))| {
        let (sequence, head) = (number / heads, number % heads);
        let row = |token, part| &qkv[(3 * (sequence * new + token) + part) * width + head * channels..][..channels];
        for token in 0..new {
            let place = (first + token) * channels..(first + token + 1) * channels;
            keys[place.clone()].copy_from_slice(row(token, 1));
            values[place].copy_from_slice(row(token, 2));
        }
        let padding = padding[sequence] as usize;
        for (token, output) in outputs.into_iter().enumerate() {
            let slot = first + token;
            // A padding token sees itself, as in the mask.
            let seen = padding.min(slot) * channels..(slot + 1) * channels;
            attend(row(token, 0), &keys[seen.clone()], &values[seen], output);
        }
    });
    output
}

/// Asks memory for a row of `first`, or of `second` where there are not so many.
#[expect(clippy::inline_always, reason = "compiled for the registers of the kernel that it is inlined into")]
#[inline(always)]
fn ask_for_row([first, second]: [&[f32]; 2], row: usize, channels: usize) {
    let place = row * channels;
    let (rows, place) = if place < first.len() { (first, place) } else { (second, place - first.len()) };
    for line in (place..rows.len().min(place + channels)).step_by(LANES) {
        ask_for(rows.as_ptr().wrapping_add(line));
    }
}

vectorised! {
    /// `query [C]` over `keys` and `values`, `[seen, C]` each → `output [C]`.
    pub(crate) fn attend(query: &[f32], keys: &[f32], values: &[f32], output: &mut [f32]) {
        let channels = query.len();
        let scale = 1.0 / (channels as f32).sqrt();
        let mut weights = vec![0.0; keys.len() / channels];
        for (row, (weight, key)) in weights.iter_mut().zip(keys.chunks_exact(channels)).enumerate() {
            ask_for_row([keys, values], row + AHEAD, channels);
            *weight = dot(query, key) * scale;
        }
        let peak = largest(&weights);
        for weight in &mut weights {
            *weight = exp(*weight - peak);
        }
        let share = 1.0 / sum_of(&weights, |weight| weight);
        output.fill(0.0);
        for (row, (weight, value)) in weights.iter().zip(values.chunks_exact(channels)).enumerate() {
            ask_for_row([values, &[]], row + AHEAD, channels);
            for (output, value) in output.iter_mut().zip(value) {
                *output += weight * share * value;
            }
        }
    }
}
