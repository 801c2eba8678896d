//! Muon (Jordan et al. 2024): the momentum of a matrix, made nearly orthogonal, is the update. For the matrices inside the blocks;
//! embeddings, biases and layer norms are left to AdamW.
//!
//! The arithmetic is that of `torch.optim.Muon` with `adjust_lr_fn="match_rms_adamw"` (Liu et al. 2025, "Muon is scalable for LLM
//! training", section 2.2): updates are scaled to the size of AdamW's, so that one learning rate and weight decay serve both.

use tch::{Kind, Tensor};

use super::{Rule, Update};
use crate::cpu::engine;

/// Coefficients of the quintic iteration, chosen for a steep slope at zero.
const COEFFICIENTS: [f64; 3] = [3.4445, -4.7750, 2.0315];
const ITERATIONS: usize = 5;
/// Smallest norm that is divided by.
const EPSILON: f64 = 1e-7;
/// Root mean square of AdamW's updates, about.
const ADAMW_SIZE: f64 = 0.2;

/// The momentum of one matrix.
#[derive(Debug)]
pub struct Muon {
    momentum: f64,
    buffer: Tensor,
}

impl Muon {
    /// `buffer` is zeros like the parameter.
    pub fn new(momentum: f64, buffer: Tensor) -> Self {
        Self { momentum, buffer }
    }
}

impl Rule for Muon {
    fn name(&self) -> &'static str {
        "Muon"
    }

    fn update(&mut self, parameter: &mut Tensor, gradient: &Tensor, update: &Update) {
        let gradient = gradient * update.gradient_scale;
        let _ = self.buffer.lerp_(&gradient, 1.0 - self.momentum);
        let nesterov = gradient.lerp(&self.buffer, self.momentum);
        let longest = parameter.size().into_iter().max().unwrap_or(1);
        let learning_rate = update.learning_rate * ADAMW_SIZE * (longest as f64).sqrt();
        let change = orthogonal(&nesterov).to_kind(parameter.kind()) * learning_rate;
        let _ = parameter.g_mul_scalar_(1.0 - update.learning_rate * update.weight_decay).g_sub_(&change);
    }

    fn state(&self) -> Vec<(&'static str, &Tensor)> {
        vec![("momentum", &self.buffer)]
    }
}

/// A matrix `[m, n]` with all its singular values moved near 1, in numbers that bf16 has: Newton and Schulz's iteration on the
/// smaller side.
fn orthogonal(matrix: &Tensor) -> Tensor {
    let tall = matrix.size()[0] > matrix.size()[1];
    let turned = |x: Tensor| if tall { x.tr() } else { x };
    let [a, b, c] = COEFFICIENTS;
    let x = turned(matrix.to_kind(Kind::BFloat16));
    // Where products in bf16 would be plain loops they are made in `f32`, from the same numbers.
    let is_fast = x.device().is_cuda() || engine::has_onednn_products(Kind::BFloat16);
    let mut x = (&x / x.norm().clamp_min(EPSILON)).to_kind(if is_fast { Kind::BFloat16 } else { Kind::Float });
    for _ in 0..ITERATIONS {
        let gram = rounded(&x.matmul(&x.tr()));
        let polynomial = sum_with_product(&gram, b, &gram, &gram, c);
        x = sum_with_product(&x, a, &polynomial, &x, 1.0);
    }
    turned(x)
}

/// `scale · x + factor · left @ right`, rounded once. (libtorch's `addmm` has no scales in tch; a batch of one has.)
fn sum_with_product(x: &Tensor, scale: f64, left: &Tensor, right: &Tensor, factor: f64) -> Tensor {
    let [x, left, right] = [x, left, right].map(|x| x.unsqueeze(0));
    rounded(&x.baddbmm(&left, &right, scale, factor).squeeze_dim(0))
}

/// To bf16's numbers, of the same kind.
fn rounded(x: &Tensor) -> Tensor {
    x.to_kind(Kind::BFloat16).to_kind(x.kind())
}
