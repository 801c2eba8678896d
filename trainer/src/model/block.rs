//! One transformer block, forward and backward. `N = B·T` rows (tokens), `D` the width, `H` heads of `D / H` channels.

use tch::{Kind, Tensor};

use super::attention::{self, Attention};
use super::norm::Statistics;
use super::parameters::BlockTensors;
use super::{gelu, linear, norm};

/// What the forward pass keeps for the backward pass.
pub(super) struct Activations {
    x: Tensor,        // [N, D]
    normal_1: Tensor, // [N, D]
    statistics_1: Statistics,
    attention: Attention,
    middle: Tensor,   // [N, D]
    normal_2: Tensor, // [N, D]
    statistics_2: Statistics,
    hidden: Tensor,    // [N, 4D]
    activated: Tensor, // [N, 4D]
}

/// Sizes that the rows of a batch are made of, and how they are computed.
#[derive(Clone, Copy)]
pub(super) struct Layout {
    pub batch: i64,
    pub length: i64,
    pub heads: i64,
    pub epsilon: f64,
    /// The dtype of the matrix products. The stream from block to block has that of the layer norms.
    pub kind: Kind,
}

/// `x [N, D]` → `[N, D]`.
pub(super) fn forward(x: Tensor, weights: &BlockTensors, layout: Layout) -> (Tensor, Activations) {
    let (normal_1, statistics_1) = norm::forward(&x, &weights.ln_1, layout.epsilon, layout.kind); // [N, D]
    let qkv = linear::forward(&normal_1, &weights.c_attn); // [N, 3D]
    let attention = attention::forward(&qkv, layout);
    let middle = linear::forward_onto(&x, attention.output(), &weights.attn_proj); // [N, D]
    let (normal_2, statistics_2) = norm::forward(&middle, &weights.ln_2, layout.epsilon, layout.kind); // [N, D]
    let hidden = linear::forward(&normal_2, &weights.c_fc); // [N, 4D]
    let activated = gelu::forward(&hidden); // [N, 4D]
    let y = linear::forward_onto(&middle, &activated, &weights.mlp_proj); // [N, D]
    (y, Activations { x, normal_1, statistics_1, attention, middle, normal_2, statistics_2, hidden, activated })
}

/// Adds the gradients of the block's weights to `gradients`; turns `dstream [N, D]`, the gradient of the block's output, into that of
/// its input. The stream runs around both halves, so its gradient stays where it is and each half adds to it.
pub(super) fn backward(dstream: &mut Tensor, kept: Activations, weights: &BlockTensors, gradients: &mut BlockTensors) {
    let Activations { x, normal_1, statistics_1, attention, middle, normal_2, statistics_2, hidden, activated } = kept;
    let dy = dstream.to_kind(hidden.kind()); // [N, D]
    let dactivated = linear::backward(&activated, &weights.mlp_proj, &dy, &mut gradients.mlp_proj); // [N, 4D]
    let dhidden = gelu::backward(&hidden, dactivated); // [N, 4D]
    let dnormal_2 = linear::backward(&normal_2, &weights.c_fc, &dhidden, &mut gradients.c_fc); // [N, D]
    norm::backward(&middle, &weights.ln_2, &statistics_2, &dnormal_2, dstream, &mut gradients.ln_2);
    let dmiddle = dstream.to_kind(hidden.kind()); // [N, D]
    let doutput = linear::backward(attention.output(), &weights.attn_proj, &dmiddle, &mut gradients.attn_proj); // [N, D]
    let dqkv = attention::backward(&attention, &doutput); // [N, 3D]
    let dnormal_1 = linear::backward(&normal_1, &weights.c_attn, &dqkv, &mut gradients.c_attn); // [N, D]
    norm::backward(&x, &weights.ln_1, &statistics_1, &dnormal_1, dstream, &mut gradients.ln_1);
}
