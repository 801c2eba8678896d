//! AdamW (Loshchilov & Hutter 2019) with the semantics of `torch.optim.AdamW`: bias correction, decoupled weight decay.

use tch::Tensor;
use thiserror::Error;

use crate::model::Parameters;
use crate::model::parameters::{Parameter, floats, floats_mut, is_plain};
use crate::parallel;

/// Elements one thread updates at a time: four arrays of them stay in a core's own cache.
const CHUNK: usize = 1 << 14;
/// Running sums of a norm.
const LANES: usize = 16;
const FIRST_MOMENT: &str = "exp_avg.";
const SECOND_MOMENT: &str = "exp_avg_sq.";

/// A saved optimizer state that does not belong to the model.
#[derive(Debug, Error)]
pub enum StateError {
    #[error("the optimizer state has no tensor {0}; the checkpoint is incomplete or belongs to another model")]
    Missing(String),
    #[error("tensor {name} of the optimizer state has dimensions {found:?}, the model calls for {expected:?}")]
    Dimensions { name: String, expected: Vec<i64>, found: Vec<i64> },
}

/// The optimizer and its two moments.
#[derive(Debug)]
pub struct AdamW {
    betas: [f64; 2],
    epsilon: f64,
    weight_decay: f64,
    steps: u64,
    first: Parameters,
    second: Parameters,
}

impl AdamW {
    /// Moments of zero, in the dtype and on the device of `parameters`.
    pub fn new(parameters: &Parameters, betas: [f64; 2], epsilon: f64, weight_decay: f64) -> Self {
        Self { betas, epsilon, weight_decay, steps: 0, first: parameters.zeros_like(), second: parameters.zeros_like() }
    }

    /// Steps taken so far.
    pub fn step_count(&self) -> u64 {
        self.steps
    }

    /// One step with `gradients · gradient_scale` (the clipping factor). Weight decay applies to matrices only.
    pub fn step(&mut self, parameters: &mut Parameters, gradients: &Parameters, learning_rate: f64, gradient_scale: f64) {
        self.steps += 1;
        let moments = self.first.iter_mut().zip(self.second.iter_mut());
        for ((parameter, gradient), (first, second)) in parameters.iter_mut().zip(gradients).zip(moments) {
            let weight_decay = if parameter.decays() { self.weight_decay } else { 0.0 };
            let rule = Rule::new(self.betas, self.epsilon, weight_decay, self.steps, learning_rate, gradient_scale);
            let plain = [&parameter.tensor, &gradient.tensor, &first.tensor, &second.tensor].into_iter().all(is_plain);
            if plain {
                rule.update_plain(&mut parameter.tensor, &gradient.tensor, &mut first.tensor, &mut second.tensor);
            } else {
                rule.update_anywhere(&mut parameter.tensor, &gradient.tensor, &mut first.tensor, &mut second.tensor);
            }
        }
    }

    /// The moments under the names `exp_avg.<parameter>` and `exp_avg_sq.<parameter>`.
    pub fn state(&self) -> impl Iterator<Item = (String, &Tensor)> {
        let named = |prefix: &'static str| move |entry: &'_ Parameter| format!("{prefix}{}", entry.name);
        let first = self.first.iter().map(move |entry| (named(FIRST_MOMENT)(entry), &entry.tensor));
        first.chain(self.second.iter().map(move |entry| (named(SECOND_MOMENT)(entry), &entry.tensor)))
    }

    /// Takes over what [`AdamW::state`] gave, and the number of steps it had taken.
    pub fn load_state(&mut self, state: Vec<(String, Tensor)>, steps: u64) -> Result<(), StateError> {
        let mut state: std::collections::HashMap<String, Tensor> = state.into_iter().collect();
        for (prefix, moments) in [(FIRST_MOMENT, &mut self.first), (SECOND_MOMENT, &mut self.second)] {
            for entry in moments.iter_mut() {
                let name = format!("{prefix}{}", entry.name);
                let Some(saved) = state.remove(&name) else { return Err(StateError::Missing(name)) };
                let expected = entry.tensor.size();
                if saved.size() != expected {
                    return Err(StateError::Dimensions { name, expected, found: saved.size() });
                }
                entry.tensor.copy_(&saved);
            }
        }
        self.steps = steps;
        Ok(())
    }
}

/// The numbers of one step for one tensor.
#[derive(Clone, Copy)]
struct Rule {
    gradient_scale: f64,
    /// `1 − learning rate · weight decay`.
    keep: f64,
    betas: [f64; 2],
    epsilon: f64,
    /// `learning rate / (1 − β₁ᵗ)`.
    step_size: f64,
    /// `√(1 − β₂ᵗ)`.
    correction: f64,
}

impl Rule {
    fn new(betas: [f64; 2], epsilon: f64, weight_decay: f64, step: u64, learning_rate: f64, gradient_scale: f64) -> Self {
        let power = |beta: f64| 1.0 - beta.powf(step as f64);
        Self {
            gradient_scale,
            keep: 1.0 - learning_rate * weight_decay,
            betas,
            epsilon,
            step_size: learning_rate / power(betas[0]),
            correction: power(betas[1]).sqrt(),
        }
    }

    /// One pass over four arrays in main memory.
    fn update_plain(self, parameter: &mut Tensor, gradient: &Tensor, first: &mut Tensor, second: &mut Tensor) {
        let parameters = floats_mut(parameter).chunks_mut(CHUNK);
        let moments = floats_mut(first).chunks_mut(CHUNK).zip(floats_mut(second).chunks_mut(CHUNK));
        let chunks = parameters.zip(floats(gradient).chunks(CHUNK)).zip(moments);
        parallel::run(chunks.collect(), |((parameter, gradient), (first, second))| {
            self.update_slices(parameter, gradient, first, second);
        });
    }

    /// Element by element and without branches, so that the compiler vectorises it and the number of threads cannot matter.
    fn update_slices(self, parameter: &mut [f32], gradient: &[f32], first: &mut [f32], second: &mut [f32]) {
        let [scale, keep, step_size, correction, epsilon] =
            [self.gradient_scale, self.keep, self.step_size, self.correction, self.epsilon].map(|number| number as f32);
        let [beta_1, beta_2] = self.betas.map(|beta| beta as f32);
        let [rest_1, rest_2] = self.betas.map(|beta| (1.0 - beta) as f32);
        for (((parameter, gradient), first), second) in parameter.iter_mut().zip(gradient).zip(first).zip(second) {
            let gradient = gradient * scale;
            *first = *first * beta_1 + gradient * rest_1;
            *second = *second * beta_2 + gradient * gradient * rest_2;
            *parameter = *parameter * keep - step_size * *first / (second.sqrt() / correction + epsilon);
        }
    }

    /// The same in libtorch's operations, for any device and dtype.
    fn update_anywhere(self, parameter: &mut Tensor, gradient: &Tensor, first: &mut Tensor, second: &mut Tensor) {
        let gradient = gradient * self.gradient_scale;
        let _ = first.g_mul_scalar_(self.betas[0]).g_add_(&(&gradient * (1.0 - self.betas[0])));
        let _ = second.g_mul_scalar_(self.betas[1]).g_add_(&(gradient.square() * (1.0 - self.betas[1])));
        let denominator = second.sqrt() / self.correction + self.epsilon;
        let _ = parameter.g_mul_scalar_(self.keep).g_sub_(&(&*first / denominator * self.step_size));
    }
}

/// Euclidean norm over all tensors, summed in `f64` in one fixed order.
pub fn global_norm(gradients: &Parameters) -> f64 {
    let squares: f64 = gradients.iter().map(|entry| sum_of_squares(&entry.tensor)).sum();
    squares.sqrt()
}

/// Partial sums of fixed chunks, added in order: the same bits for any number of threads.
fn sum_of_squares(tensor: &Tensor) -> f64 {
    if !is_plain(tensor) {
        return tensor.to_kind(tch::Kind::Double).square().sum(tch::Kind::Double).double_value(&[]);
    }
    let chunks: Vec<&[f32]> = floats(tensor).chunks(CHUNK).collect();
    let mut sums = vec![0.0; chunks.len()];
    parallel::run(sums.iter_mut().zip(chunks).collect(), |(sum, chunk): (&mut f64, &[f32])| {
        *sum = sum_of_lanes(chunk);
    });
    sums.iter().sum()
}

/// Running sums side by side, so that the compiler can use vector registers without reordering anything.
fn sum_of_lanes(chunk: &[f32]) -> f64 {
    let (full, rest) = chunk.as_chunks::<LANES>();
    let mut lanes = [0.0_f64; LANES];
    for part in full {
        for (lane, value) in lanes.iter_mut().zip(part) {
            *lane += f64::from(*value) * f64::from(*value);
        }
    }
    lanes.iter().sum::<f64>() + rest.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>()
}
