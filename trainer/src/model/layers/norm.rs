//! Layer norm over the last dimension (Ba et al. 2016), forward and backward.

use tch::{Kind, Tensor};

use crate::aten;
use crate::cpu::parallel;
use crate::cpu::simd::{Element, add, by_dtype, sum_of};
use crate::cpu::slices::{elements, elements_mut, floats, floats_mut, is_plain};
use crate::cpu::vectorise::vectorised;
use crate::model::weights::parameters::Affine;

/// Rows one thread works on at a time; also the rows whose gain and shift gradients are summed before they meet the rest, so
/// that the order of the sum does not depend on the number of threads.
const ROWS: usize = 32;

/// The statistics that the backward pass needs besides the input: `[N, 1]` each.
pub(crate) struct Statistics {
    mean: Tensor,
    reciprocal_deviation: Tensor,
}

/// `x [N, D]` → the normalised, scaled and shifted `[N, D]` in `kind`.
pub(crate) fn forward(x: &Tensor, norm: &Affine, epsilon: f64, kind: Kind) -> (Tensor, Statistics) {
    by_dtype!(kind, E if is_plain(x) => forward_plain::<E>(x, norm, epsilon), _ => forward_anywhere(x, norm, epsilon, kind))
}

/// Adds the gradients of gain and shift to `gradient`, unless those are frozen, and the gradient of the input to `dx`, which holds
/// the gradient that reaches the same input around the norm. All `[N, D]`; `dx` has the dtype of `x`.
pub(crate) fn backward(x: &Tensor, norm: &Affine, statistics: &Statistics, dy: &Tensor, dx: &mut Tensor, gradient: &mut Affine) {
    by_dtype!(
        dy.kind(),
        E if is_plain(x) => backward_plain::<E>(x, norm, statistics, dy, dx, gradient),
        _ => *dx += backward_anywhere(x, norm, statistics, &dy.to_kind(x.kind()), gradient)
    );
}

/// In libtorch's operations, for any device and dtype.
fn forward_anywhere(x: &Tensor, norm: &Affine, epsilon: f64, kind: Kind) -> (Tensor, Statistics) {
    let width = norm.weight.size()[0];
    let (y, mean, reciprocal_deviation) = x.native_layer_norm([width], Some(&norm.weight), Some(&norm.bias), epsilon);
    (y.to_kind(kind), Statistics { mean, reciprocal_deviation })
}

fn backward_anywhere(x: &Tensor, norm: &Affine, statistics: &Statistics, dy: &Tensor, gradient: &mut Affine) -> Tensor {
    let Statistics { mean, reciprocal_deviation } = statistics;
    let [dx, dgain, dshift] = aten::layer_norm_backward(dy, x, [mean, reciprocal_deviation], norm.tensors());
    if !gradient.is_frozen() {
        gradient.weight += dgain;
        gradient.bias += dshift;
    }
    dx
}

fn forward_plain<E: Element>(x: &Tensor, norm: &Affine, epsilon: f64) -> (Tensor, Statistics) {
    let [rows, width] = [x.size()[0], x.size()[1]];
    let mut y = Tensor::empty([rows, width], (E::KIND, x.device()));
    let mut mean = Tensor::empty([rows, 1], (Kind::Float, x.device()));
    let mut reciprocal_deviation = mean.empty_like();
    let chunk = ROWS * width as usize;
    let [gain, shift] = [&norm.weight, &norm.bias].map(floats);
    let statistics = floats_mut(&mut mean).chunks_mut(ROWS).zip(floats_mut(&mut reciprocal_deviation).chunks_mut(ROWS));
    let work = floats(x).chunks(chunk).zip(elements_mut::<E>(&mut y).chunks_mut(chunk)).zip(statistics);
    parallel::run(work.collect(), |((x, y), (means, deviations))| {
        forward_rows(x, gain, shift, epsilon as f32, y, means, deviations);
    });
    (y, Statistics { mean, reciprocal_deviation })
}

vectorised! {
    pub(crate) fn forward_rows<E: Element>(
        x: &[f32], gain: &[f32], shift: &[f32], epsilon: f32, y: &mut [E], means: &mut [f32], deviations: &mut [f32],
    ) {
        let width = gain.len();
        let statistics = means.iter_mut().zip(deviations);
        for ((x, y), (mean, deviation)) in x.chunks(width).zip(y.chunks_mut(width)).zip(statistics) {
            let center = sum_of(x, |x| x) / width as f32;
            let variance = sum_of(x, |x| (x - center) * (x - center)) / width as f32;
            let scale = 1.0 / (variance + epsilon).sqrt();
            for ((x, y), (gain, shift)) in x.iter().zip(y).zip(gain.iter().zip(shift)) {
                *y = E::put((x - center) * scale * gain + shift);
            }
            (*mean, *deviation) = (center, scale);
        }
    }
}

fn backward_plain<E: Element>(
    x: &Tensor,
    norm: &Affine,
    statistics: &Statistics,
    dy: &Tensor,
    dx: &mut Tensor,
    gradient: &mut Affine,
) {
    let gain = floats(&norm.weight);
    let width = gain.len();
    let [means, deviations] = [&statistics.mean, &statistics.reciprocal_deviation].map(floats);
    let chunk = ROWS * width;
    let mut sums = vec![0.0; 2 * width * means.len().div_ceil(ROWS)];
    let inputs = floats(x).chunks(chunk).zip(means.chunks(ROWS).zip(deviations.chunks(ROWS)));
    let gradients = elements::<E>(dy).chunks(chunk).zip(floats_mut(dx).chunks_mut(chunk));
    parallel::run(
        gradients.zip(sums.chunks_mut(2 * width)).zip(inputs).collect(),
        |(((dy, dx), sums), (x, (means, deviations)))| {
            backward_rows(dy, x, gain, means, deviations, dx, sums);
        },
    );
    if gradient.is_frozen() {
        return;
    }
    for sums in sums.chunks(2 * width) {
        add(floats_mut(&mut gradient.weight), &sums[..width]);
        add(floats_mut(&mut gradient.bias), &sums[width..]);
    }
}

vectorised! {
    /// `sums`: of the gain's gradient, then of the shift's.
    fn backward_rows<E: Element>(
        dy: &[E], x: &[f32], gain: &[f32], means: &[f32], deviations: &[f32], dx: &mut [f32], sums: &mut [f32],
    ) {
        let width = gain.len();
        let (dgain, dshift) = sums.split_at_mut(width);
        let mut scaled = vec![0.0; 2 * width]; // dy · gain, and that times the normalised input
        let (scaled, projected) = scaled.split_at_mut(width);
        let rows = dy.chunks(width).zip(x.chunks(width)).zip(dx.chunks_mut(width)).zip(means.iter().zip(deviations));
        for (((dy, x), dx), (mean, deviation)) in rows {
            let sums = dgain.iter_mut().zip(dshift.iter_mut()).zip(scaled.iter_mut().zip(projected.iter_mut()));
            for (((dy, x), gain), ((dgain, dshift), (scaled, projected))) in dy.iter().zip(x).zip(gain).zip(sums) {
                let (dy, normalised) = (dy.get(), (x - mean) * deviation);
                *dgain += dy * normalised;
                *dshift += dy;
                *scaled = dy * gain;
                *projected = *scaled * normalised;
            }
            let [average, projection] = [&*scaled, &*projected].map(|terms| sum_of(terms, |term| term) / width as f32);
            for ((dx, x), scaled) in dx.iter_mut().zip(x).zip(scaled.iter()) {
                *dx += (scaled - average - (x - mean) * deviation * projection) * deviation;
            }
        }
    }
}
