//! One transformer block, forward and backward. `N = B·T` rows (tokens), `D` the width, `H` heads of `D / H` channels.

use tch::Tensor;

use crate::cpu::matmul::Write;
use crate::model::layers::attention::{self, Attention};

use crate::model::layers::dropout::Site;
use crate::model::layers::layout::Layout;
use crate::model::layers::norm::Statistics;
use crate::model::layers::{gelu, linear, norm};
use crate::model::weights::parameters::BlockTensors;
use crate::offload::{fetched, put_away};
use crate::settings::Recompute;

/// The tensors of the forward pass that the backward pass needs.
pub(crate) struct Activations {
    x: Tensor,        // [N, D]
    normal_1: Tensor, // [N, D]
    statistics_1: Statistics,
    attention: Attention, // 4 · [N, D]
    middle: Tensor,       // [N, D]
    normal_2: Tensor,     // [N, D]
    statistics_2: Statistics,
    hidden: Tensor,    // [N, 4D]
    activated: Tensor, // [N, 4D]
}

/// The activations of a block that are kept from its forward to its backward pass. The rest is computed again, by the same kernels
/// from the same numbers: the bits of the gradients do not depend on it.
pub(crate) enum Kept {
    /// All 16 widths.
    All(Activations),
    /// The results of matrix products, 10 widths; the layer norms and GELU are computed again (after Korthikanti et al. 2022, whose
    /// costly scores are never stored here).
    Products { x: Tensor, attention: Attention, middle: Tensor, hidden: Tensor },
    /// The block's input, 1 width; the forward pass up to the last product is computed again (Chen et al. 2016).
    Input(Tensor),
    /// The same, which has left the device for the host (after Rajbhandari et al. 2020: ZeRO-R's checkpoints of activations go to
    /// the CPU's memory).
    InputAway(Tensor),
}

/// `x [N, D]` → everything but the block's output.
pub(crate) fn forward(x: Tensor, weights: &BlockTensors, layout: Layout<'_>) -> Activations {
    let (normal_1, statistics_1) = norm::forward(&x, &weights.ln_1, layout.epsilon, layout.kind); // [N, D]
    let qkv = linear::forward(&normal_1, &weights.c_attn); // [N, 3D]
    let attention = attention::forward(qkv, layout);
    let middle = layout.onto(&x, attention.output(), &weights.attn_proj, Site::AttentionOutput); // [N, D]
    let (normal_2, statistics_2) = norm::forward(&middle, &weights.ln_2, layout.epsilon, layout.kind); // [N, D]
    let hidden = linear::forward(&normal_2, &weights.c_fc); // [N, 4D]
    let activated = gelu::forward(&hidden, layout.gelu); // [N, 4D]
    Activations { x, normal_1, statistics_1, attention, middle, normal_2, statistics_2, hidden, activated }
}

impl Activations {
    /// The block's output, `[N, D]`.
    pub fn output(&self, weights: &BlockTensors, layout: Layout<'_>) -> Tensor {
        layout.onto(&self.middle, &self.activated, &weights.mlp_proj, Site::Network)
    }

    /// `place [rows, D]` on the host is where the input goes, with [`Recompute::Host`].
    pub fn keep(self, recompute: Recompute, place: Option<&Tensor>) -> Kept {
        match recompute {
            Recompute::None => Kept::All(self),
            Recompute::Selective => {
                Kept::Products { x: self.x, attention: self.attention, middle: self.middle, hidden: self.hidden }
            }
            Recompute::Full => Kept::Input(self.x),
            Recompute::Host => Kept::InputAway(put_away(&self.x, place.expect("a place for each block's input"))),
        }
    }
}

impl Kept {
    pub fn restore(self, weights: &BlockTensors, layout: Layout<'_>) -> Activations {
        match self {
            Self::All(activations) => activations,
            Self::Products { x, attention, middle, hidden } => {
                let (normal_1, statistics_1) = norm::forward(&x, &weights.ln_1, layout.epsilon, layout.kind);
                let (normal_2, statistics_2) = norm::forward(&middle, &weights.ln_2, layout.epsilon, layout.kind);
                let activated = gelu::forward(&hidden, layout.gelu);
                Activations { x, normal_1, statistics_1, attention, middle, normal_2, statistics_2, hidden, activated }
            }
            Self::Input(x) => forward(x, weights, layout),
            Self::InputAway(x) => forward(fetched(&x, weights.ln_1.weight.device()), weights, layout),
        }
    }
}

/// Adds the gradients of the block's weights to `gradients`, or of its matrices writes them there; turns `dstream [N, D]`, the
/// gradient of the block's output, into that of its input. The stream runs around both halves, so its gradient stays where it is
/// and each half adds to it.
pub(crate) fn backward(
    dstream: &mut Tensor,
    activations: Activations,
    weights: &BlockTensors,
    layout: Layout<'_>,
    gradients: &mut BlockTensors,
    write: Write,
) {
    let Activations { x, normal_1, statistics_1, attention, middle, normal_2, statistics_2, hidden, activated } = activations;
    // Whatever nothing reads any more is dropped at once: a step's memory is at its peak here.
    let dy = layout.reaching(dstream, Site::Network); // [N, D]
    let dactivated = linear::backward(&activated, &weights.mlp_proj, &dy, &mut gradients.mlp_proj, write); // [N, 4D]
    drop((activated, dy));
    let dhidden = gelu::backward(&hidden, dactivated, layout.gelu); // [N, 4D]
    drop(hidden);
    let dnormal_2 = linear::backward(&normal_2, &weights.c_fc, &dhidden, &mut gradients.c_fc, write); // [N, D]
    drop((normal_2, dhidden));
    norm::backward(&middle, &weights.ln_2, &statistics_2, &dnormal_2, dstream, &mut gradients.ln_2);
    drop((middle, dnormal_2));
    let dmiddle = layout.reaching(dstream, Site::AttentionOutput); // [N, D]
    let doutput = linear::backward(attention.output(), &weights.attn_proj, &dmiddle, &mut gradients.attn_proj, write); // [N, D]
    drop(dmiddle);
    let dqkv = attention::backward(&attention, &doutput, layout); // [N, 3D]
    drop((attention, doutput));
    let dnormal_1 = linear::backward(&normal_1, &weights.c_attn, &dqkv, &mut gradients.c_attn, write); // [N, D]
    norm::backward(&x, &weights.ln_1, &statistics_1, &dnormal_1, dstream, &mut gradients.ln_1);
}
