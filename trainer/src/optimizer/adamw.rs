//! AdamW (Loshchilov & Hutter 2019) with the semantics of `torch.optim.AdamW`: bias correction, decoupled weight decay.
//!
//! DeepSpeed's `DeepSpeedCPUAdam` and apex's `FusedAdam` in their AdamW modes are the same function of real numbers; only the order
//! of the roundings differs. `tests/oracle/updates.py` compares with torch's class and, where DeepSpeed is installed, with its
//! (0.19.8: weights within 1.1e-7 after eight steps). apex's is a kernel for GPUs; DeepSpeed's copy of it,
//! `csrc/adam/multi_tensor_adam.cu`, was read and not run.
//!
//! transformers' own AdamW of 2020 and fairseq's Adam add epsilon to the uncorrected root (Kingma & Ba 2015, the last lines of
//! section 2), which matters where gradients are as small as epsilon: [`Epsilon::Uncorrected`].

use tch::Tensor;

use super::{Rule, Update};
use crate::aten;
use crate::cpu::parallel;
use crate::cpu::simd::{LANES, ask_for};
use crate::cpu::slices::{floats, floats_mut, is_plain};
use crate::cpu::vectorise::vectorised;

/// Elements one thread updates at a time: four arrays of them stay in a core's own cache.
const CHUNK: usize = 1 << 14;

/// Elements of each array that are asked for before they are read: processors do so themselves, but no further than the next 4 KiB.
const AHEAD: usize = 256;

/// The term that epsilon is added to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Epsilon {
    /// `√(v / (1 − β₂ᵗ)) + ε`.
    Corrected,
    /// `√v + ε`.
    Uncorrected,
}

/// The two moments of one parameter, in its dtype and on its device.
#[derive(Debug)]
pub struct AdamW {
    betas: [f64; 2],
    epsilon: (f64, Epsilon),
    first: Tensor,
    second: Tensor,
}

impl AdamW {
    /// `moments` are zeros like the parameter.
    pub fn new(betas: [f64; 2], epsilon: (f64, Epsilon), moments: [Tensor; 2]) -> Self {
        let [first, second] = moments;
        Self { betas, epsilon, first, second }
    }
}

impl Rule for AdamW {
    fn name(&self) -> &'static str {
        "AdamW"
    }

    fn update(&mut self, parameter: &mut Tensor, gradient: &Tensor, update: &Update) {
        let numbers = Numbers::new(self.betas, self.epsilon, update);
        if [&*parameter, gradient, &self.first, &self.second].into_iter().all(is_plain) {
            numbers.update_plain(parameter, gradient, &mut self.first, &mut self.second);
        } else {
            numbers.update_anywhere(parameter, gradient, [&mut self.first, &mut self.second], update);
        }
    }

    fn state(&self) -> Vec<(&'static str, &Tensor)> {
        vec![("exp_avg", &self.first), ("exp_avg_sq", &self.second)]
    }
}

/// The coefficients of one update of one tensor: `p ← keep · p − step_size · m / (√v · correction + ε)`.
#[derive(Clone, Copy)]
struct Numbers {
    gradient_scale: f64,
    /// `1 − learning rate · weight decay`.
    keep: f64,
    betas: [f64; 2],
    epsilon: f64,
    /// `learning rate / (1 − β₁ᵗ)`.
    step_size: f64,
    /// `1 / √(1 − β₂ᵗ)`: this rule spends its time on divisions.
    correction: f64,
}

impl Numbers {
    fn new(betas: [f64; 2], (epsilon, place): (f64, Epsilon), update: &Update) -> Self {
        let rest = |beta: f64| 1.0 - beta.powf(update.number as f64);
        let correction = 1.0 / rest(betas[1]).sqrt();
        Self {
            gradient_scale: update.gradient_scale,
            keep: 1.0 - update.learning_rate * update.weight_decay,
            betas,
            epsilon: if place == Epsilon::Corrected { epsilon } else { epsilon * correction },
            step_size: update.learning_rate / rest(betas[0]),
            correction,
        }
    }

    /// One pass over four arrays in main memory.
    fn update_plain(self, parameter: &mut Tensor, gradient: &Tensor, first: &mut Tensor, second: &mut Tensor) {
        let parameters = floats_mut(parameter).chunks_mut(CHUNK);
        let moments = floats_mut(first).chunks_mut(CHUNK).zip(floats_mut(second).chunks_mut(CHUNK));
        let chunks = parameters.zip(floats(gradient).chunks(CHUNK)).zip(moments);
        parallel::run(chunks.collect(), |((parameter, gradient), (first, second))| {
            update_slices(self, parameter, gradient, first, second);
        });
    }

    /// The same in libtorch's fused kernel, for any device and dtype.
    fn update_anywhere(self, parameter: &mut Tensor, gradient: &Tensor, moments: [&mut Tensor; 2], update: &Update) {
        let gradient = gradient * self.gradient_scale;
        let numbers = [update.learning_rate, self.betas[0], self.betas[1], update.weight_decay, self.epsilon];
        aten::fused_adamw(parameter, &gradient, moments, update.number, numbers);
    }
}

vectorised! {
    /// Element by element and without branches: the compiler vectorises it, and neither the number of threads nor the width of the
    /// registers can change a bit.
    fn update_slices(numbers: Numbers, parameter: &mut [f32], gradient: &[f32], first: &mut [f32], second: &mut [f32]) {
        let [scale, keep, step_size, correction, epsilon] =
            [numbers.gradient_scale, numbers.keep, numbers.step_size, numbers.correction, numbers.epsilon].map(|number| number as f32);
        let [beta_1, beta_2] = numbers.betas.map(|beta| beta as f32);
        let [rest_1, rest_2] = numbers.betas.map(|beta| (1.0 - beta) as f32);
        let update = |parameter: &mut f32, gradient: &f32, first: &mut f32, second: &mut f32| {
            let gradient = gradient * scale;
            *first = *first * beta_1 + gradient * rest_1;
            *second = *second * beta_2 + gradient * gradient * rest_2;
            *parameter = *parameter * keep - step_size * *first / (second.sqrt() * correction + epsilon);
        };
        let (parameters, parameter) = parameter.as_chunks_mut::<LANES>();
        let (gradients, gradient) = gradient.as_chunks::<LANES>();
        let (firsts, first) = first.as_chunks_mut::<LANES>();
        let (seconds, second) = second.as_chunks_mut::<LANES>();
        for (((parameter, gradient), first), second) in parameters.iter_mut().zip(gradients).zip(firsts).zip(seconds) {
            for place in [parameter.as_ptr(), gradient.as_ptr(), first.as_ptr(), second.as_ptr()] {
                ask_for(place.wrapping_add(AHEAD));
            }
            for (((parameter, gradient), first), second) in parameter.iter_mut().zip(gradient).zip(first).zip(second) {
                update(parameter, gradient, first, second);
            }
        }
        for (((parameter, gradient), first), second) in parameter.iter_mut().zip(gradient).zip(first).zip(second) {
            update(parameter, gradient, first, second);
        }
    }
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind};

    use super::*;

    /// libtorch's fused kernel, which a GPU runs, against this crate's: zero gradients and tiny ones too.
    #[test]
    fn both_kernels_make_the_same_update() {
        for place in [Epsilon::Corrected, Epsilon::Uncorrected] {
            let options = (Kind::Float, Device::Cpu);
            tch::manual_seed(3);
            let gradients: Vec<Tensor> =
                [1.0, 1e-9, 0.0, 30.0].map(|size| Tensor::randn([70, 33], options) * size).into_iter().collect();
            let [mut own, mut fused] = [0, 1]
                .map(|_| [Tensor::ones([70, 33], options), Tensor::zeros([70, 33], options), Tensor::zeros([70, 33], options)]);
            for (number, gradient) in (1..).zip(&gradients) {
                let update = Update { number, learning_rate: 1e-2, gradient_scale: 0.7, weight_decay: 0.1 };
                let numbers = Numbers::new([0.9, 0.95], (1e-8, place), &update);
                let [parameter, first, second] = &mut own;
                numbers.update_plain(parameter, gradient, first, second);
                let [parameter, first, second] = &mut fused;
                numbers.update_anywhere(parameter, gradient, [first, second], &update);
                for (own, fused) in own.iter().zip(&fused) {
                    let error = ((own - fused).norm() / own.norm().clamp_min(1e-30)).double_value(&[]);
                    assert!(error < 1e-6, "{place:?}, update {number}: {error:.1e}");
                }
            }
        }
    }
}
