//! fairseq's positions (`sinusoidal_positional_embedding.py`): sines in the first half of a row, cosines in the second.

use tch::{Device, Kind, Tensor};

use crate::model::shape::Shape;

/// Rows before the first position: fairseq counts positions from the number of its padding token, which is 1, plus 1.
const OFFSET: i64 = 2;

/// `[context, D]`, each operation in `f32` as there.
pub(crate) fn table(shape: &Shape) -> Tensor {
    let [context, width] = [shape.context, shape.width].map(|size| size as i64);
    let options = (Kind::Float, Device::Cpu);
    let half = width / 2;
    let step = 10_000.0_f64.ln() / (half - 1) as f64;
    let frequencies = (Tensor::arange(half, options) * -step).exp();
    let angles = Tensor::arange_start(OFFSET, context + OFFSET, options).unsqueeze(1) * frequencies.unsqueeze(0); // [context, D / 2]
    let odd = Tensor::zeros([context, width % 2], options);
    Tensor::cat(&[angles.sin(), angles.cos(), odd], 1)
}
