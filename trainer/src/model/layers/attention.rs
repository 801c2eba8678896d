//! Multi-head attention between the two linear maps of a block, forward and backward, without the `[T, T]` scores
//! (Dao et al. 2022: the log-sum-exp of each row is kept instead). Each part of a sequence that its mask keeps apart is a
//! sequence of its own.

use std::ops::Range;

use tch::{Kind, Tensor};

use super::dropout::{Masks, RowMask, Site};
use super::fused;
use super::layout::Layout;
use crate::cpu::matmul::{Matrix, Workers, Write, are_pairs_multiplied, multiply, multiply_pairs};
use crate::cpu::parallel;
use crate::cpu::simd::{Bf16, Element, by_dtype, dot, exp, largest, load, store, sum_of};
use crate::cpu::slices::{elements, elements_mut, floats, floats_mut, holds};
use crate::cpu::vectorise::vectorised;

/// Queries whose scores exist at once, per thread: `[QUERIES, T]` of them stay in a core's own cache.
const QUERIES: usize = 64;

/// The tensors that the backward pass needs.
pub(crate) struct Attention {
    /// Queries, keys, values of all heads, `[N, 3D]`.
    pub(crate) qkv: Tensor,
    /// Sums of the whole batch, or of one document after the other where libtorch's kernels keep these apart.
    pub(crate) sums: Vec<Sums>,
    /// `[N, D]`.
    pub(crate) output: Tensor,
}

/// The sums of its scores that attention keeps.
pub(crate) struct Sums {
    /// `[B, H, T]`; a GPU's kernels may pad the rows.
    pub(crate) log_sum_exp: Tensor,
    /// Seeds that a GPU's kernels need in the backward pass.
    pub(crate) seeds: Option<[Tensor; 2]>,
}

/// `qkv [N, 3D]` → attention over what the mask shows of the same sequence.
pub(crate) fn forward(qkv: Tensor, layout: Layout<'_>) -> Attention {
    if holds_pairs(&qkv) {
        return forward_plain::<Bf16, Bf16>(qkv, layout);
    }
    by_dtype!(qkv.kind(), E if holds::<E>(&qkv) => forward_plain::<E, f32>(qkv, layout), _ => fused::forward(qkv, layout))
}

/// `doutput [N, D]` → `[N, 3D]`.
pub(crate) fn backward(kept: &Attention, doutput: &Tensor, layout: Layout<'_>) -> Tensor {
    if holds_pairs(&kept.qkv) {
        return backward_plain::<Bf16, Bf16>(kept, doutput, layout);
    }
    by_dtype!(
        kept.qkv.kind(),
        E if holds::<E>(&kept.qkv) => backward_plain::<E, f32>(kept, doutput, layout),
        _ => fused::backward(kept, doutput, layout)
    )
}

/// Whether a head's products are made of bf16 numbers as they are, and not through `f32`.
fn holds_pairs(qkv: &Tensor) -> bool {
    holds::<Bf16>(qkv) && are_pairs_multiplied()
}

/// `[N, 3D]` → three views `[B, H, T, D / H]`.
pub(crate) fn split_heads(qkv: &Tensor, layout: Layout<'_>) -> [Tensor; 3] {
    let parts = qkv.view([layout.batch, layout.length, 3, layout.heads, -1]).permute([2, 0, 3, 1, 4]);
    [0, 1, 2].map(|part| parts.get(part))
}

/// `[B, H, T, D / H]` → `[N, D]`.
pub(crate) fn join_heads(heads: &Tensor) -> Tensor {
    let [batch, count, length, channels] = <[i64; 4]>::try_from(heads.size()).expect("attention has four dimensions");
    heads.transpose(1, 2).reshape([batch * length, count * channels])
}

/// Numbers that the products of a head are made of; their sums are `f32`.
trait Term: Element {
    fn hold<E: Element>(values: &[E], place: &mut [Self]);
    fn multiply(left: Matrix<'_, Self>, right: Matrix<'_, Self>, result: &mut [f32], pitch: usize, write: Write);
    /// `values` as such terms, in `place` unless they are already.
    fn of<'a>(values: &'a [f32], place: &'a mut Vec<Self>) -> &'a [Self];
}

impl Term for f32 {
    fn hold<E: Element>(values: &[E], place: &mut [Self]) {
        load(values, place);
    }

    fn multiply(left: Matrix<'_>, right: Matrix<'_>, result: &mut [f32], pitch: usize, write: Write) {
        multiply(left, right, result, pitch, write, Workers::Caller);
    }

    fn of<'a>(values: &'a [f32], _: &'a mut Vec<Self>) -> &'a [Self] {
        values
    }
}

impl Term for Bf16 {
    fn hold<E: Element>(values: &[E], place: &mut [Self]) {
        let mut wide = [0.0; 64];
        for (values, place) in values.chunks(wide.len()).zip(place.chunks_mut(wide.len())) {
            load(values, &mut wide);
            store(&wide, place);
        }
    }

    fn multiply(left: Matrix<'_, Self>, right: Matrix<'_, Self>, result: &mut [f32], pitch: usize, write: Write) {
        multiply_pairs(left, right, result, pitch, write, Workers::Caller);
    }

    fn of<'a>(values: &'a [f32], place: &'a mut Vec<Self>) -> &'a [Self] {
        place.resize(values.len(), Self::default());
        store(values, place);
        place
    }
}

/// With kernels of its own, a head per thread at a time.
fn forward_plain<E: Element, H: Term>(qkv: Tensor, layout: Layout<'_>) -> Attention {
    let [batch, length, count] = [layout.batch, layout.length, layout.heads];
    let mut output = Tensor::empty([batch * length, qkv.size()[1] / 3], (E::KIND, qkv.device()));
    if layout.mask.leaves_rows_out() {
        let _ = output.zero_();
    }
    let mut log_sum_exp = Tensor::empty([batch, count, length], (Kind::Float, qkv.device()));
    let (values, outputs) = (elements::<E>(&qkv), by_head::<E>(elements_mut(&mut output), layout, 1));
    let work = outputs.into_iter().zip(floats_mut(&mut log_sum_exp).chunks_mut(length as usize)).enumerate();
    parallel::run(work.collect(), |(number, (mut output, log_sum_exp))| {
        for rows in layout.mask.parts(number / count as usize, length as usize) {
            let head = Head::<H>::new(values, layout, number, &rows);
            let result = head.forward(&mut log_sum_exp[rows.clone()]);
            result.chunks(head.channels).zip(&mut output[rows]).for_each(|(row, place)| store(row, place));
        }
    });
    Attention { qkv, sums: vec![Sums { log_sum_exp, seeds: None }], output }
}

/// [`backward`], a head per thread at a time.
fn backward_plain<E: Element, H: Term>(kept: &Attention, doutput: &Tensor, layout: Layout<'_>) -> Tensor {
    let mut dqkv = if layout.mask.leaves_rows_out() { kept.qkv.zeros_like() } else { kept.qkv.empty_like() };
    let doutput = doutput.contiguous();
    let [qkv, output, doutput] = [&kept.qkv, &kept.output, &doutput].map(elements::<E>);
    let gradients = by_head::<E>(elements_mut(&mut dqkv), layout, 3);
    let work = gradients.into_iter().zip(floats(&kept.sums[0].log_sum_exp).chunks(layout.length as usize)).enumerate();
    parallel::run(work.collect(), |(number, (mut places, log_sum_exp))| {
        for rows in layout.mask.parts(number / layout.heads as usize, layout.length as usize) {
            let head = Head::<H>::new(qkv, layout, number, &rows);
            let [output, doutput] = [output, doutput].map(|values| of_head(values, layout, 1, number, &rows));
            let gradients = head.backward(&log_sum_exp[rows.clone()], &output, &doutput);
            for (part, gradient) in gradients.chunks(output.len()).enumerate() {
                let places = places[3 * rows.start..3 * rows.end].iter_mut().skip(part).step_by(3);
                gradient.chunks(head.channels).zip(places).for_each(|(row, place)| store(row, place));
            }
        }
    });
    dqkv
}

/// `values [N, parts · D]` → for each head of the batch its places, `C` elements for each token and part.
pub(crate) fn by_head<'a, E>(values: &'a mut [E], layout: Layout<'_>, parts: usize) -> Vec<Vec<&'a mut [E]>> {
    let [batch, length, heads] = [layout.batch, layout.length, layout.heads].map(|size| size as usize);
    let channels = values.len() / (batch * length * parts * heads);
    let mut places: Vec<_> = (0..batch * heads).map(|_| Vec::with_capacity(length * parts)).collect();
    for (number, place) in values.chunks_mut(channels).enumerate() {
        places[number / (length * parts * heads) * heads + number % heads].push(place);
    }
    places
}

/// Some rows of a head, from `values [N, parts · D]`: `[parts, rows, C]`.
fn of_head<E: Element, H: Term>(values: &[E], layout: Layout<'_>, parts: usize, number: usize, rows: &Range<usize>) -> Vec<H> {
    let [length, heads] = [layout.length, layout.heads].map(|size| size as usize);
    let channels = values.len() / (layout.batch as usize * length * parts * heads);
    let mut held = vec![H::default(); parts * rows.len() * channels];
    let places = (0..parts).flat_map(|part| rows.clone().map(move |row| (part, row)));
    for (held, (part, row)) in held.chunks_mut(channels).zip(places) {
        let place = ((number / heads * length + row) * parts + part) * heads + number % heads;
        H::hold(&values[place * channels..][..channels], held);
    }
    held
}

/// One head of one sequence, or of one of its documents.
struct Head<H> {
    /// Queries, keys and values, `[T, C]` each.
    values: Vec<H>,
    length: usize,
    channels: usize,
    /// `1 / √C`.
    scale: f32,
    /// Whether a query sees no key after its own.
    is_causal: bool,
    /// Its first row in the sequence.
    start: usize,
    /// The dropout masks, and the numbers of this sequence and head.
    masks: Option<(Masks, usize, usize)>,
}

impl<H: Term> Head<H> {
    /// `rows` of the `number`-th head of the batch, from the queries, keys and values of all, `[N, 3D]`.
    fn new<E: Element>(qkv: &[E], layout: Layout<'_>, number: usize, rows: &Range<usize>) -> Self {
        let values = of_head(qkv, layout, 3, number, rows);
        let channels = values.len() / (3 * rows.len());
        let heads = layout.heads as usize;
        Self {
            values,
            length: rows.len(),
            channels,
            scale: 1.0 / (channels as f32).sqrt(),
            is_causal: layout.mask.is_causal(),
            start: rows.start,
            masks: layout.attention_dropout().map(|masks| (masks, number / heads, number % heads)),
        }
    }

    /// Drops some of the weights of each query from `first` on, whose rows see `seen` keys.
    fn drop(&self, weights: &mut [f32], first: usize, seen: usize) {
        let Some((masks, sequence, head)) = self.masks else { return };
        for (row, weights) in weights.chunks_mut(seen).enumerate() {
            let query = first + row;
            let mask = masks.row(Site::AttentionWeights, sequence, head, self.start + query);
            let seen = if self.is_causal { query + 1 } else { seen };
            drop_weights(mask, self.start, &mut weights[..seen]);
        }
    }

    /// Rows of queries (0), keys (1) or values (2).
    fn rows(&self, part: usize, first: usize, count: usize) -> Matrix<'_, H> {
        Matrix::new(&self.values[(part * self.length + first) * self.channels..], [count, self.channels], self.channels)
    }

    /// The first row of each block of queries, how many it has, and how many keys they see.
    fn blocks(&self) -> impl DoubleEndedIterator<Item = (usize, usize, usize)> {
        let (length, is_causal) = (self.length, self.is_causal);
        (0..length).step_by(QUERIES).map(move |first| {
            let count = QUERIES.min(length - first);
            (first, count, if is_causal { first + count } else { length })
        })
    }

    /// The last key that a block's first query sees, where the next query sees one more.
    fn diagonal(&self, first: usize) -> Option<usize> {
        self.is_causal.then_some(first)
    }

    /// `[T, C]`.
    fn forward(&self, log_sum_exp: &mut [f32]) -> Vec<f32> {
        let mut output = vec![0.0; self.length * self.channels];
        let (mut scores, mut terms) = (vec![0.0; QUERIES * self.length], Vec::new());
        for (first, count, seen) in self.blocks() {
            H::multiply(self.rows(0, first, count), self.rows(1, 0, seen).t(), &mut scores, seen, Write::Over);
            let scores = &mut scores[..count * seen];
            softmax(scores, self.diagonal(first), self.scale, &mut log_sum_exp[first..first + count]);
            self.drop(scores, first, seen);
            let weights = Matrix::new(H::of(scores, &mut terms), [count, seen], seen);
            H::multiply(weights, self.rows(2, 0, seen), &mut output[first * self.channels..], self.channels, Write::Over);
        }
        output
    }

    /// Gradients of queries, keys and values, `[3, T, C]`, from the output and its gradient, `[T, C]` each. The last queries see
    /// every key, so that their block, which comes first, writes all that the others add to.
    fn backward(&self, log_sum_exp: &[f32], output: &[H], doutput: &[H]) -> Vec<f32> {
        let (length, channels) = (self.length, self.channels);
        let mut gradients = vec![0.0; 3 * length * channels];
        let (dq, rest) = gradients.split_at_mut(length * channels);
        let (dk, dv) = rest.split_at_mut(length * channels);
        let [mut weights, mut dscores] = [0, 1].map(|_| vec![0.0; QUERIES * length]);
        let mut terms = [Vec::new(), Vec::new()];
        for (first, count, seen) in self.blocks().rev() {
            let end = first + count;
            let write = if end == length { Write::Over } else { Write::Onto };
            let own = first * channels..end * channels;
            let doutput_rows = Matrix::new(&doutput[own.clone()], [count, channels], channels);
            H::multiply(self.rows(0, first, count), self.rows(1, 0, seen).t(), &mut weights, seen, Write::Over);
            H::multiply(doutput_rows, self.rows(2, 0, seen).t(), &mut dscores, seen, Write::Over);
            let [output, doutput] = [output, doutput].map(|rows| &rows[own.clone()]);
            let scores = (&mut weights[..count * seen], &mut dscores[..count * seen]);
            self.drop(scores.1, first, seen);
            softmax_backward(scores.0, scores.1, self.diagonal(first), self.scale, &log_sum_exp[first..end], output, doutput);
            self.drop(scores.0, first, seen);
            let [place, dplace] = &mut terms;
            let [weights, dscores] = [(&weights, place), (&dscores, dplace)]
                .map(|(scores, place)| Matrix::new(H::of(&scores[..count * seen], place), [count, seen], seen));
            H::multiply(weights.t(), doutput_rows, dv, channels, write);
            H::multiply(dscores, self.rows(1, 0, seen), &mut dq[own], channels, Write::Over);
            H::multiply(dscores.t(), self.rows(0, first, count), dk, channels, write);
        }
        gradients
    }
}

vectorised! {
    /// Turns rows of scores into weights in place. Row `i` sees the keys up to `diagonal + i`, without one all of them.
    fn softmax(scores: &mut [f32], diagonal: Option<usize>, scale: f32, log_sum_exp: &mut [f32]) {
        let seen = scores.len() / log_sum_exp.len();
        for (row, (scores, log_sum_exp)) in scores.chunks_mut(seen).zip(log_sum_exp).enumerate() {
            let (past, future) = scores.split_at_mut(diagonal.map_or(seen, |diagonal| diagonal + row + 1));
            let peak = largest(past);
            for score in past.iter_mut() {
                *score = exp((*score - peak) * scale);
            }
            let sum = sum_of(past, |weight| weight);
            for weight in past.iter_mut() {
                *weight *= 1.0 / sum;
            }
            future.fill(0.0);
            *log_sum_exp = peak * scale + sum.ln();
        }
    }
}

vectorised! {
    /// Turns scores into weights, and gradients of weights into gradients of the unscaled scores, both in place.
    fn softmax_backward<H: Element>(
        weights: &mut [f32], dweights: &mut [f32], diagonal: Option<usize>, scale: f32, log_sum_exp: &[f32], output: &[H], doutput: &[H],
    ) {
        let count = log_sum_exp.len();
        let seen = weights.len() / count;
        let channels = output.len() / count;
        let outputs = output.chunks(channels).zip(doutput.chunks(channels)).zip(log_sum_exp);
        let rows = weights.chunks_mut(seen).zip(dweights.chunks_mut(seen)).zip(outputs);
        for (row, ((weights, dweights), ((output, doutput), log_sum_exp))) in rows.enumerate() {
            let average = dot(output, doutput);
            let past = diagonal.map_or(seen, |diagonal| diagonal + row + 1);
            for (weight, dweight) in weights[..past].iter_mut().zip(&mut dweights[..past]) {
                *weight = exp(*weight * scale - log_sum_exp);
                *dweight = *weight * (*dweight - average) * scale;
            }
            weights[past..].fill(0.0);
            dweights[past..].fill(0.0);
        }
    }
}

vectorised! {
    fn drop_weights(mask: RowMask, start: usize, weights: &mut [f32]) {
        for (key, weight) in weights.iter_mut().enumerate() {
            *weight *= mask.factor(start + key);
        }
    }
}
