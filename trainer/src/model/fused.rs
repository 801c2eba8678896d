//! Attention in libtorch's fused operations, for every dtype and device that this crate has no kernels for.

use tch::{Device, Kind, Tensor};

use super::attention::{Attention, join_heads, split_heads};
use super::block::Layout;
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
    /// The kernels for products in `kind` and heads of `channels` on `device`: on a GPU the first that computes a small example. There is a third
    /// way, which keeps all scores in memory; it is never taken in their place.
    pub fn of(device: Device, kind: Kind, channels: usize) -> Result<Self, Failure> {
        if !device.is_cuda() {
            return Ok(Self::Cpu);
        }
        let example = Tensor::zeros([1, 1, 64, channels as i64], (kind, device));
        let works = |fused: &Self| aten::attention([&example; 3], None, *fused == Self::Flash).map(|_| ());
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

    /// As people read it.
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

/// In libtorch's fused operations, for any dtype and device; they read rows at any distance.
pub(super) fn forward(qkv: Tensor, layout: Layout<'_>) -> Attention {
    let [q, k, v] = split_heads(&qkv, layout);
    let (output, log_sum_exp, seeds) = if Scores::are_needed(layout) {
        let scores = Scores::new(&q, &k, layout);
        (scores.dropped().matmul(&v), scores.log_sum_exp, None)
    } else if layout.fused == Fused::Cpu {
        let flash = Tensor::internal_scaled_dot_product_flash_attention_for_cpu;
        let (output, log_sum_exp) = flash(&q, &k, &v, 0.0, true, None::<&Tensor>, None);
        (output, log_sum_exp, None)
    } else {
        let dropped = layout.attention_masks().map(|masks| (masks.dropout.attention, masks.seed()));
        let made = aten::attention([&q, &k, &v], dropped, layout.fused == Fused::Flash);
        let [output, log_sum_exp, seed, offset] = made.unwrap_or_else(|error| panic!("{error}"));
        (output, log_sum_exp, Some([seed, offset]))
    };
    Attention { qkv, log_sum_exp, output: join_heads(&output), seeds }
}

/// `doutput [N, D]` → `[N, 3D]`.
pub(super) fn backward(kept: &Attention, doutput: &Tensor, layout: Layout<'_>) -> Tensor {
    let [output, doutput] =
        [&kept.output, doutput].map(|rows| rows.view([layout.batch, layout.length, layout.heads, -1]).transpose(1, 2));
    Tensor::cat(&gradients(kept, &output, &doutput, layout).map(|gradient| join_heads(&gradient)), 1)
}

/// Of queries, keys and values, `[B, H, T, D / H]` each.
fn gradients(kept: &Attention, output: &Tensor, doutput: &Tensor, layout: Layout<'_>) -> [Tensor; 3] {
    let [q, k, v] = split_heads(&kept.qkv, layout);
    if let Some([seed, offset]) = &kept.seeds {
        let kept = [output, &kept.log_sum_exp, seed, offset];
        let rate = layout.attention_masks().map_or(0.0, |masks| masks.dropout.attention);
        return aten::attention_backward(doutput, [&q, &k, &v], kept, rate, layout.fused == Fused::Flash);
    }
    if Scores::are_needed(layout) {
        let scores = Scores::new(&q, &k, layout);
        let average = (output * doutput).sum_dim_intlist(-1_i64, true, None);
        let dscores = &scores.weights * (scores.drop(doutput.matmul(&v.transpose(2, 3))) - average) * scores.scale;
        let dv = scores.dropped().transpose(2, 3).matmul(doutput);
        return [dscores.matmul(&k), dscores.transpose(2, 3).matmul(&q), dv];
    }
    let (dq, dk, dv) = Tensor::internal_scaled_dot_product_flash_attention_for_cpu_backward(
        doutput,
        &q,
        &k,
        &v,
        output,
        &kept.log_sum_exp,
        0.0,
        true,
        None::<&Tensor>,
        None,
    );
    [dq, dk, dv]
}

/// The scores of every head at once, `[B, H, T, T]`: libtorch's fused operations have no mask of ours, and on a CPU they drop nothing. Only dtypes and
/// devices without kernels of their own come here, to be compared with.
struct Scores {
    weights: Tensor,
    /// What the weights are multiplied with, when anything is dropped.
    mask: Option<Tensor>,
    log_sum_exp: Tensor,
    scale: f64,
}

impl Scores {
    fn are_needed(layout: Layout<'_>) -> bool {
        layout.documents.is_some() || (layout.fused == Fused::Cpu && layout.attention_masks().is_some())
    }

    fn new(q: &Tensor, k: &Tensor, layout: Layout<'_>) -> Self {
        let scale = 1.0 / (q.size()[3] as f64).sqrt();
        let mut hidden = Tensor::ones([q.size()[2], q.size()[2]], (Kind::Bool, q.device())).triu(1);
        if let Some(documents) = layout.documents {
            hidden = hidden.logical_or(&documents.apart().to_device(q.device()));
        }
        let scores = (q.matmul(&k.transpose(2, 3)) * scale).masked_fill(&hidden, f64::NEG_INFINITY);
        let mask = layout.attention_masks().map(|masks| masks.attention([layout.batch, layout.heads, layout.length]));
        let mask = mask.map(|mask| mask.to_device(q.device()).to_kind(q.kind()));
        Self { weights: scores.softmax(-1, None), mask, log_sum_exp: scores.logsumexp(-1_i64, false), scale }
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
    use super::super::documents::Documents;
    use super::super::dropout::{Dropout, Masks};
    use super::super::gelu::Gelu;
    use super::*;

    #[test]
    fn on_a_gpu_only_documents_need_all_scores() {
        let dropout = Dropout { seed: 1, residual: 0.0, attention: 0.1, adapter: 0.0 };
        let masks = Some(Masks { dropout, first_sequence: 0, layer: 0 });
        let documents = Documents::new(&Tensor::zeros([1, 8], (Kind::Int64, Device::Cpu)), 0);
        let needed = |masks, documents| {
            let [batch, length, heads] = [1, 8, 1];
            let (epsilon, gelu, kind) = (1e-5, Gelu::Tanh, Kind::Float);
            [Fused::Cpu, Fused::Flash, Fused::Efficient]
                .map(|fused| Scores::are_needed(Layout { batch, length, heads, epsilon, gelu, masks, documents, kind, fused }))
        };
        assert_eq!(needed(None, None), [false; 3]);
        assert_eq!(needed(masks, None), [true, false, false]);
        assert_eq!(needed(None, Some(&documents)), [true; 3]);
    }

    /// A CPU has neither of the kernels, and still its generator is what the call has seeded. Tests beside this one draw from it, too.
    #[test]
    fn dropped_weights_have_a_seed_and_no_others_do() {
        let example = Tensor::zeros([1, 1, 8, 8], (Kind::Float, Device::Cpu));
        let draw_after = |dropped| {
            let refused = aten::attention([&example; 3], dropped, true).unwrap_err();
            assert!(refused.contains("_scaled_dot_product_flash_attention"), "{refused}");
            Tensor::rand([4], (Kind::Double, Device::Cpu))
        };
        tch::manual_seed(7);
        let expected = Tensor::rand([4], (Kind::Double, Device::Cpu));
        assert!((0..100).any(|_| draw_after(Some((0.1, 7))).equal(&expected)));
        assert!(!draw_after(None).equal(&expected));
    }
}
