//! Attention in libtorch's fused operations, for every dtype and device that this crate has no kernels for.

use std::ops::Range;

use tch::{Device, Kind, Tensor};

use super::attention::{Attention, Sums, join_heads, split_heads};
use super::layout::Layout;
use super::mask::Mask;
use crate::aten;
use crate::error::Failure;

/// Which of libtorch's fused kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fused {
    /// Flash attention for CPUs.
    Cpu,
    /// Flash attention (Dao 2023) for GPUs: half precision, compute capability 8.0 and above.
    Flash,
    /// Memory-efficient attention (Rabe & Staats 2021): any dtype, compute capability 5.0 and above.
    Efficient,
}

impl Fused {
    /// The kernels for products in `kind` and heads of `channels` on `device`: on a GPU the first that computes a small example.
    /// There is a third way, which keeps all scores in memory; it is never taken in their place.
    pub fn of(device: Device, kind: Kind, channels: usize) -> Result<Self, Failure> {
        if !device.is_cuda() {
            return Ok(Self::Cpu);
        }
        let example = Tensor::zeros([1, 1, 64, channels as i64], (kind, device));
        let works = |fused: &Self| aten::attention([&example; 3], true, None, *fused == Self::Flash).map(|_| ());
        let refused = match [Self::Flash, Self::Efficient].map(|fused| works(&fused).map(|()| fused)) {
            [Ok(fused), _] | [_, Ok(fused)] => return Ok(fused),
            [_, Err(refused)] => refused,
        };
        Err(Failure::input(format!(
            "this GPU has no fused attention for {kind:?} and heads of {channels} channels: {}; choose a model whose width divided by its heads \
             is a multiple of 8, or train.device = \"cpu\"",
            refused.lines().next().unwrap_or_default()
        )))
    }

    /// The kernel's name for people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cpu => "libtorch's flash attention for CPUs",
            Self::Flash => "flash",
            Self::Efficient => "memory-efficient",
        }
    }
}

impl Attention {
    /// `[N, D]`.
    pub fn output(&self) -> &Tensor {
        &self.output
    }
}

/// Sequences of a batch and rows of each that attend to each other alone.
struct Part {
    sequences: Range<usize>,
    rows: Range<usize>,
}

impl Part {
    /// The whole batch, or each document of each sequence.
    fn all(layout: Layout<'_>) -> Vec<Self> {
        let [batch, length] = [layout.batch, layout.length].map(|size| size as usize);
        if let Mask::Causal | Mask::Full = layout.mask {
            return vec![Self { sequences: 0..batch, rows: 0..length }];
        }
        let of = |sequence| layout.mask.parts(sequence, length).into_iter().map(move |rows| (sequence..sequence + 1, rows));
        (0..batch).flat_map(of).map(|(sequences, rows)| Self { sequences, rows }).collect()
    }

    /// The part of `[B, H, T, D / H]`, in the same memory.
    fn of(&self, heads: &Tensor) -> Tensor {
        let narrow =
            |tensor: &Tensor, dimension, range: &Range<usize>| tensor.narrow(dimension, range.start as i64, range.len() as i64);
        narrow(&narrow(heads, 0, &self.sequences), 2, &self.rows)
    }
}

/// Joins the results of all parts, `[rows, …]`; rows of none are 0.
fn joined(mut parts: Vec<Tensor>, layout: Layout<'_>) -> Tensor {
    if layout.mask.leaves_rows_out() {
        let fill = |part: &Tensor| part.constant_pad_nd([0, 0, 0, layout.length - part.size()[0]]);
        parts = parts.iter().map(fill).collect();
    }
    if parts.len() == 1 { parts.remove(0) } else { Tensor::cat(&parts, 0) }
}

/// In libtorch's fused operations, for any dtype and device; they read rows at any distance.
pub(crate) fn forward(qkv: Tensor, layout: Layout<'_>) -> Attention {
    let heads = split_heads(&qkv, layout);
    if Scores::are_needed(layout) {
        let [q, k, v] = &heads;
        let scores = Scores::new(q, k, layout);
        let output = join_heads(&scores.dropped().matmul(v));
        return Attention { qkv, sums: vec![Sums { log_sum_exp: scores.log_sum_exp, seeds: None }], output };
    }
    let part = |(number, part): (usize, Part)| {
        let (output, sums) = forward_part(heads.each_ref().map(|tensor| part.of(tensor)), layout, number);
        (join_heads(&output), sums)
    };
    let (outputs, sums) = Part::all(layout).into_iter().enumerate().map(part).unzip();
    Attention { qkv, sums, output: joined(outputs, layout) }
}

/// The `number`-th part of a batch; queries, keys, values and the output are `[B, H, T, D / H]`.
fn forward_part([q, k, v]: [Tensor; 3], layout: Layout<'_>, number: usize) -> (Tensor, Sums) {
    if layout.fused == Fused::Cpu {
        let flash = Tensor::internal_scaled_dot_product_flash_attention_for_cpu;
        let (output, log_sum_exp) = flash(&q, &k, &v, 0.0, layout.mask.is_causal(), None::<&Tensor>, None);
        return (output, Sums { log_sum_exp, seeds: None });
    }
    let dropped = layout.attention_dropout().map(|masks| (masks.dropout.attention, masks.seed(number)));
    let made = aten::attention([&q, &k, &v], layout.mask.is_causal(), dropped, layout.fused == Fused::Flash);
    let [output, log_sum_exp, seed, offset] = made.unwrap_or_else(|error| panic!("{error}"));
    (output, Sums { log_sum_exp, seeds: Some([seed, offset]) })
}

/// `doutput [N, D]` → `[N, 3D]`.
pub(crate) fn backward(kept: &Attention, doutput: &Tensor, layout: Layout<'_>) -> Tensor {
    let heads = split_heads(&kept.qkv, layout);
    let [output, doutput] =
        [&kept.output, doutput].map(|rows| rows.view([layout.batch, layout.length, layout.heads, -1]).transpose(1, 2));
    if Scores::are_needed(layout) {
        return of_three(Scores::new(&heads[0], &heads[1], layout).backward(&heads, &output, &doutput));
    }
    let part = |(part, sums): (Part, &Sums)| {
        let heads = heads.each_ref().map(|tensor| part.of(tensor));
        of_three(backward_part(&heads, sums, &part.of(&output), &part.of(&doutput), layout))
    };
    joined(Part::all(layout).into_iter().zip(&kept.sums).map(part).collect(), layout)
}

/// Three times `[B, H, T, D / H]` → `[N, 3D]`.
fn of_three(gradients: [Tensor; 3]) -> Tensor {
    Tensor::cat(&gradients.map(|gradient| join_heads(&gradient)), 1)
}

/// The gradients of queries, keys and values, all `[B, H, T, D / H]`.
fn backward_part([q, k, v]: &[Tensor; 3], sums: &Sums, output: &Tensor, doutput: &Tensor, layout: Layout<'_>) -> [Tensor; 3] {
    let Sums { log_sum_exp, seeds } = sums;
    if let Some([seed, offset]) = seeds {
        let rate = layout.attention_dropout().map_or(0.0, |masks| masks.dropout.attention);
        let kept = [output, log_sum_exp, seed, offset];
        return aten::attention_backward(doutput, [q, k, v], kept, layout.mask.is_causal(), rate, layout.fused == Fused::Flash);
    }
    let backward = Tensor::internal_scaled_dot_product_flash_attention_for_cpu_backward;
    let (dq, dk, dv) = backward(doutput, q, k, v, output, log_sum_exp, 0.0, layout.mask.is_causal(), None::<&Tensor>, None);
    [dq, dk, dv]
}

/// The scores of every head at once, `[B, H, T, T]`: on a CPU libtorch's fused operations drop nothing. Only dtypes without kernels
/// of their own come here, to be compared with.
struct Scores {
    weights: Tensor,
    /// The factors of the weights, when anything is dropped.
    mask: Option<Tensor>,
    log_sum_exp: Tensor,
    scale: f64,
}

impl Scores {
    fn are_needed(layout: Layout<'_>) -> bool {
        layout.fused == Fused::Cpu && layout.attention_dropout().is_some()
    }

    fn new(q: &Tensor, k: &Tensor, layout: Layout<'_>) -> Self {
        let scale = 1.0 / (q.size()[3] as f64).sqrt();
        let hidden = layout.mask.hidden(layout.length, q.device());
        let scores = (q.matmul(&k.transpose(2, 3)) * scale).masked_fill(&hidden, f64::NEG_INFINITY);
        // A query that sees nothing would have weights that are not numbers.
        let weights = scores.softmax(-1, None).masked_fill_(&hidden, 0.0);
        let mask = layout.attention_dropout().map(|masks| masks.attention([layout.batch, layout.heads, layout.length]));
        let mask = mask.map(|mask| mask.to_device(q.device()).to_kind(q.kind()));
        Self { weights, mask, log_sum_exp: scores.logsumexp(-1_i64, false), scale }
    }

    /// The gradients of queries, keys and values, all `[B, H, T, D / H]`.
    fn backward(&self, [q, k, v]: &[Tensor; 3], output: &Tensor, doutput: &Tensor) -> [Tensor; 3] {
        let average = (output * doutput).sum_dim_intlist(-1_i64, true, None);
        let dscores = &self.weights * (self.drop(doutput.matmul(&v.transpose(2, 3))) - average) * self.scale;
        [dscores.matmul(k), dscores.transpose(2, 3).matmul(q), self.dropped().transpose(2, 3).matmul(doutput)]
    }

    fn drop(&self, weights: Tensor) -> Tensor {
        match &self.mask {
            Some(mask) => weights * mask,
            None => weights,
        }
    }

    fn dropped(&self) -> Tensor {
        self.drop(self.weights.shallow_clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::layers::documents::Documents;
    use crate::model::layers::dropout::{Dropout, Masks};
    use crate::model::layers::gelu::Gelu;

    #[test]
    fn only_what_a_cpu_drops_needs_all_scores() {
        let dropout = Dropout { seed: 1, residual: 0.0, attention: 0.1, adapter: 0.0 };
        let masks = Some(Masks { dropout, first_sequence: 0, layer: 0 });
        let documents = Documents::new(&Tensor::zeros([1, 8], (Kind::Int64, Device::Cpu)), 0);
        let needed = |dropout, mask| {
            let [batch, length, heads] = [1, 8, 1];
            let (epsilon, gelu, kind) = (1e-5, Gelu::Tanh, Kind::Float);
            [Fused::Cpu, Fused::Flash, Fused::Efficient]
                .map(|fused| Scores::are_needed(Layout { batch, length, heads, epsilon, gelu, mask, dropout, kind, fused }))
        };
        assert_eq!(needed(None, Mask::Causal), [false; 3]);
        assert_eq!(needed(masks, Mask::Causal), [true, false, false]);
        assert_eq!(needed(None, Mask::Documents(&documents)), [false; 3]);
        assert_eq!(needed(masks, Mask::Documents(&documents)), [true, false, false]);
    }

    /// A CPU has neither of the kernels, and still its generator is what the call has seeded. Tests beside this one draw from it,
    /// too.
    #[test]
    fn dropped_weights_have_a_seed_and_no_others_do() {
        let example = Tensor::zeros([1, 1, 8, 8], (Kind::Float, Device::Cpu));
        let draw_after = |dropped| {
            let refused = aten::attention([&example; 3], true, dropped, true).unwrap_err();
            assert!(refused.contains("_scaled_dot_product_flash_attention"), "{refused}");
            Tensor::rand([4], (Kind::Double, Device::Cpu))
        };
        let expected = || {
            tch::manual_seed(7);
            Tensor::rand([4], (Kind::Double, Device::Cpu))
        };
        assert!((0..100).any(|_| draw_after(Some((0.1, 7))).equal(&expected())));
        let expected = expected();
        assert!(!draw_after(None).equal(&expected));
    }
}
