//! Matrix products of a linear map `y = x·w + b` with `w` in `[in, out]`, forward and backward.
//!
//! On a CPU, `f32` products go to oneDNN: libtorch's default, MKL, runs at less than half its rate on AMD processors, and both
//! are true `f32`. oneDNN's operators are written for weights in `[out, in]`; read as such, a weight in `[in, out]` swaps the
//! roles of forward and backward, so that no weight is ever transposed in memory.

use tch::{Device, Kind, Tensor};

use super::parameters::Affine;

/// oneDNN adds up all terms of a sum in one register, and its rounding error grows with their number; MKL stops every few
/// hundred. Longer sums are cut here, at the price of one pass over the result per cut: over 3,072 terms the relative error
/// falls from 5.8e-7 to 2.6e-7, which is MKL's.
const LONGEST_SUM: i64 = 384;

/// `x [N, in]` → `[N, out]`.
pub(super) fn forward(x: &Tensor, map: &Affine) -> Tensor {
    if uses_onednn(x) { product(x, &map.weight).g_add_(&map.bias) } else { map.bias.addmm(x, &map.weight) }
}

/// Adds the gradients of weight and bias to `gradient`; returns the gradient of the input.
/// `x [N, in]`, `dy [N, out]` → `[N, in]`.
pub(super) fn backward(x: &Tensor, map: &Affine, dy: &Tensor, gradient: &mut Affine) -> Tensor {
    gradient.bias += dy.sum_dim_intlist(0_i64, false, None);
    add_outer_product(&mut gradient.weight, x, dy);
    product_transposed(dy, &map.weight)
}

/// `x [N, K]` · `w [K, M]` → `[N, M]`.
pub(super) fn product(x: &Tensor, w: &Tensor) -> Tensor {
    if !uses_onednn(x) {
        return x.matmul(w);
    }
    let size = [x.size()[0], w.size()[1]];
    let parts = x.split(LONGEST_SUM, 1).into_iter().zip(w.split(LONGEST_SUM, 0));
    let products = parts.map(|(x, w)| Tensor::mkldnn_linear_backward_input(size, &x.to_mkldnn(), &w).to_dense(None, false));
    products.reduce(|mut sum, part| sum.g_add_(&part)).expect("a product has at least one term")
}

/// `x [N, M]` · `wᵀ` for `w [K, M]` → `[N, K]`.
pub(super) fn product_transposed(x: &Tensor, w: &Tensor) -> Tensor {
    if !uses_onednn(x) {
        return x.matmul(&w.tr());
    }
    x.to_mkldnn().mkldnn_linear(w, None::<&Tensor>).to_dense(None, false)
}

/// Adds `xᵀ · y` to `sum [K, M]` for `x [N, K]`, `y [N, M]`.
pub(super) fn add_outer_product(sum: &mut Tensor, x: &Tensor, y: &Tensor) {
    if uses_onednn(x) {
        *sum += y.to_mkldnn().mkldnn_linear_backward_weights(&x.to_mkldnn(), sum, false).0;
    } else {
        let _ = sum.addmm_(&x.tr(), y);
    }
}

fn uses_onednn(x: &Tensor) -> bool {
    x.device() == Device::Cpu && x.kind() == Kind::Float && tch::utils::has_mkldnn()
}
