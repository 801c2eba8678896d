//! Layer norm over the last dimension (Ba et al. 2016), forward and backward.

use tch::Tensor;

use super::parameters::Affine;

/// What the backward pass needs besides the input: `[N, 1]` each.
pub(super) struct Statistics {
    mean: Tensor,
    reciprocal_deviation: Tensor,
}

/// `x [N, D]` → the normalised, scaled and shifted `[N, D]`.
pub(super) fn forward(x: &Tensor, norm: &Affine, epsilon: f64) -> (Tensor, Statistics) {
    let width = norm.weight.size()[0];
    let (y, mean, reciprocal_deviation) = x.native_layer_norm([width], Some(&norm.weight), Some(&norm.bias), epsilon);
    (y, Statistics { mean, reciprocal_deviation })
}

/// Adds the gradients of gain and shift to `gradient`; returns the gradient of the input. All `[N, D]`.
pub(super) fn backward(x: &Tensor, norm: &Affine, statistics: &Statistics, dy: &Tensor, gradient: &mut Affine) -> Tensor {
    let normalised = (x - &statistics.mean) * &statistics.reciprocal_deviation;
    gradient.weight += (dy * &normalised).sum_dim_intlist(0_i64, false, None);
    gradient.bias += dy.sum_dim_intlist(0_i64, false, None);
    let dnormalised = dy * &norm.weight;
    let mean = dnormalised.mean_dim(-1_i64, true, None);
    let projection = (&dnormalised * &normalised).mean_dim(-1_i64, true, None);
    (dnormalised - mean - normalised * projection) * &statistics.reciprocal_deviation
}
