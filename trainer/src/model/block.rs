//! One transformer block, forward and backward. `N = B·T` rows (tokens), `D` the width, `H` heads of `D / H` channels.

use tch::Tensor;

use super::attention::{self, Attention};
use super::norm::Statistics;
use super::parameters::BlockTensors;
use super::{linear, norm};

const GELU: &str = "tanh";

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

/// Sizes that the rows of a batch are made of.
#[derive(Clone, Copy)]
pub(super) struct Layout {
    pub batch: i64,
    pub length: i64,
    pub heads: i64,
    pub epsilon: f64,
}

/// `x [N, D]` → `[N, D]`.
pub(super) fn forward(x: Tensor, weights: &BlockTensors, layout: Layout) -> (Tensor, Activations) {
    let (normal_1, statistics_1) = norm::forward(&x, &weights.ln_1, layout.epsilon); // [N, D]
    let qkv = linear::forward(&normal_1, &weights.c_attn); // [N, 3D]
    let attention = attention::forward(&qkv, layout);
    let middle = linear::forward(attention.output(), &weights.attn_proj).g_add_(&x); // [N, D]
    let (normal_2, statistics_2) = norm::forward(&middle, &weights.ln_2, layout.epsilon); // [N, D]
    let hidden = linear::forward(&normal_2, &weights.c_fc); // [N, 4D]
    let activated = hidden.gelu(GELU); // [N, 4D]
    let y = linear::forward(&activated, &weights.mlp_proj).g_add_(&middle); // [N, D]
    (y, Activations { x, normal_1, statistics_1, attention, middle, normal_2, statistics_2, hidden, activated })
}

/// Adds the gradients of the block's weights to `gradients`; `dy [N, D]` → the gradient of the block's input `[N, D]`.
pub(super) fn backward(dy: &Tensor, kept: Activations, weights: &BlockTensors, gradients: &mut BlockTensors) -> Tensor {
    let Activations { x, normal_1, statistics_1, attention, middle, normal_2, statistics_2, hidden, activated } = kept;
    let dactivated = linear::backward(&activated, &weights.mlp_proj, dy, &mut gradients.mlp_proj); // [N, 4D]
    let dhidden = hidden.gelu_backward(&dactivated, GELU); // [N, 4D]
    let dnormal_2 = linear::backward(&normal_2, &weights.c_fc, &dhidden, &mut gradients.c_fc); // [N, D]
    let dmiddle = norm::backward(&middle, &weights.ln_2, &statistics_2, dnormal_2, Some(dy), &mut gradients.ln_2); // [N, D]
    let doutput = linear::backward(attention.output(), &weights.attn_proj, &dmiddle, &mut gradients.attn_proj); // [N, D]
    let dqkv = attention::backward(&attention, &doutput); // [N, 3D]
    let dnormal_1 = linear::backward(&normal_1, &weights.c_attn, &dqkv, &mut gradients.c_attn); // [N, D]
    norm::backward(&x, &weights.ln_1, &statistics_1, dnormal_1, Some(&dmiddle), &mut gradients.ln_1)
}
