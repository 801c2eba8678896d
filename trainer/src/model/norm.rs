//! Layer norm over the last dimension (Ba et al. 2016), forward and backward.

use tch::Tensor;

use super::parameters::{Affine, floats, floats_mut, is_plain};
use crate::parallel;

/// Rows one thread works on at a time; also the rows whose gain and shift gradients are summed before they meet the rest, so
/// that the order of the sum does not depend on the number of threads.
const ROWS: usize = 32;
/// Running sums kept side by side, as many as fill the widest vector register.
const LANES: usize = 16;

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

/// Adds the gradients of gain and shift to `gradient`; turns `dy` into the gradient of the input and adds it to `residual`, the
/// gradient that reaches the same input around the block. All `[N, D]`.
pub(super) fn backward(
    x: &Tensor,
    norm: &Affine,
    statistics: &Statistics,
    dy: Tensor,
    residual: Option<&Tensor>,
    gradient: &mut Affine,
) -> Tensor {
    let dx = if is_plain(&dy) && is_plain(x) {
        backward_plain(x, norm, statistics, dy, gradient)
    } else {
        backward_anywhere(x, norm, statistics, &dy, gradient)
    };
    match residual {
        Some(residual) => dx + residual,
        None => dx,
    }
}

/// In libtorch's operations, for any device and dtype.
fn backward_anywhere(x: &Tensor, norm: &Affine, statistics: &Statistics, dy: &Tensor, gradient: &mut Affine) -> Tensor {
    let normalised = (x - &statistics.mean) * &statistics.reciprocal_deviation;
    gradient.weight += (dy * &normalised).sum_dim_intlist(0_i64, false, None);
    gradient.bias += dy.sum_dim_intlist(0_i64, false, None);
    let dnormalised = dy * &norm.weight;
    let mean = dnormalised.mean_dim(-1_i64, true, None);
    let projection = (&dnormalised * &normalised).mean_dim(-1_i64, true, None);
    (dnormalised - mean - normalised * projection) * &statistics.reciprocal_deviation
}

/// In two passes over each row while it is in the nearest cache; libtorch's operator is not reachable from here.
fn backward_plain(x: &Tensor, norm: &Affine, statistics: &Statistics, mut dy: Tensor, gradient: &mut Affine) -> Tensor {
    let gain = floats(&norm.weight);
    let width = gain.len();
    let [means, deviations] = [&statistics.mean, &statistics.reciprocal_deviation].map(floats);
    let chunk = ROWS * width;
    let mut sums = vec![0.0; 2 * width * means.len().div_ceil(ROWS)];
    let inputs = floats(x).chunks(chunk).zip(means.chunks(ROWS).zip(deviations.chunks(ROWS)));
    let work: Vec<_> = floats_mut(&mut dy).chunks_mut(chunk).zip(sums.chunks_mut(2 * width)).zip(inputs).collect();
    parallel::run(work, |((dy, sums), (x, (means, deviations)))| {
        let (dgain, dshift) = sums.split_at_mut(width);
        let mut normalised = vec![0.0; width];
        let rows = dy.chunks_mut(width).zip(x.chunks(width)).zip(means.iter().zip(deviations));
        for ((dy, x), (mean, deviation)) in rows {
            let row = Row { x, gain, mean: *mean, deviation: *deviation };
            row.backward(dy, &mut normalised, dgain, dshift);
        }
    });
    for sums in sums.chunks(2 * width) {
        add(floats_mut(&mut gradient.weight), &sums[..width]);
        add(floats_mut(&mut gradient.bias), &sums[width..]);
    }
    dy
}

/// One row of the input with its statistics.
struct Row<'a> {
    x: &'a [f32],
    gain: &'a [f32],
    mean: f32,
    /// Reciprocal of the standard deviation.
    deviation: f32,
}

impl Row<'_> {
    /// Turns `dy` into `dx` in place; `normalised` is scratch space.
    fn backward(&self, dy: &mut [f32], normalised: &mut [f32], dgain: &mut [f32], dshift: &mut [f32]) {
        let sums = dgain.iter_mut().zip(dshift);
        for ((((dy, x), gain), normalised), (dgain, dshift)) in
            dy.iter_mut().zip(self.x).zip(self.gain).zip(normalised.iter_mut()).zip(sums)
        {
            *normalised = (x - self.mean) * self.deviation;
            *dgain += *dy * *normalised;
            *dshift += *dy;
            *dy *= gain;
        }
        let count = dy.len() as f32;
        let (mean, projection) = (sum(dy) / count, dot(dy, normalised) / count);
        for (dy, normalised) in dy.iter_mut().zip(normalised) {
            *dy = (*dy - mean - *normalised * projection) * self.deviation;
        }
    }
}

fn add(sum: &mut [f32], terms: &[f32]) {
    for (sum, term) in sum.iter_mut().zip(terms) {
        *sum += term;
    }
}

fn sum(values: &[f32]) -> f32 {
    let (full, rest) = values.as_chunks::<LANES>();
    let mut lanes = [0.0; LANES];
    for chunk in full {
        add(&mut lanes, chunk);
    }
    lanes.iter().chain(rest).sum()
}

fn dot(left: &[f32], right: &[f32]) -> f32 {
    let ((left, left_rest), (right, right_rest)) = (left.as_chunks::<LANES>(), right.as_chunks::<LANES>());
    let mut lanes = [0.0; LANES];
    for (left, right) in left.iter().zip(right) {
        for ((lane, left), right) in lanes.iter_mut().zip(left).zip(right) {
            *lane += left * right;
        }
    }
    lanes.iter().sum::<f32>() + left_rest.iter().zip(right_rest).map(|(left, right)| left * right).sum::<f32>()
}
