//! Matrix products of a linear map `y = x·w + b` with `w` in `[in, out]`, forward and backward.

use tch::Tensor;

use super::parameters::Affine;

/// `x [N, in]` → `[N, out]`.
pub(super) fn forward(x: &Tensor, map: &Affine) -> Tensor {
    map.bias.addmm(x, &map.weight)
}

/// Adds the gradients of weight and bias to `gradient`; returns the gradient of the input.
/// `x [N, in]`, `dy [N, out]` → `[N, in]`.
pub(super) fn backward(x: &Tensor, map: &Affine, dy: &Tensor, gradient: &mut Affine) -> Tensor {
    let _ = gradient.weight.addmm_(&x.tr(), dy);
    gradient.bias += dy.sum_dim_intlist(0_i64, false, None);
    dy.matmul(&map.weight.tr())
}
