//! Initial weights: random numbers that are a function of their place, so that element `i` is the same on every thread and machine.

use std::f64::consts::TAU;

use crate::model::role::{Part, Role};
use crate::model::shape::Shape;
use crate::random::{bits, mix, unit};
use crate::settings::Variant;
use crate::settings::lora::LinearMap;

/// Elements one thread fills at a time.
const CHUNK: usize = 1 << 16;
/// Standard deviation of GPT-2's initial weights (Radford et al. 2019; `initializer_range` in transformers).
const GPT2_DEVIATION: f64 = 0.02;

/// How one tensor's initial numbers are distributed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Distribution {
    Constant(f32),
    /// N(0, deviation²).
    Normal(f64),
    /// Uniform in ±bound.
    Uniform(f64),
}

/// The variant's initial numbers of a tensor.
pub(crate) fn distribution(shape: &Shape, role: Role) -> Distribution {
    match (role, shape.variant) {
        (Role::Norm(Part::Weight) | Role::FinalNorm(Part::Weight), _) => Distribution::Constant(1.0),
        (Role::Norm(Part::Bias) | Role::FinalNorm(Part::Bias), _) => Distribution::Constant(0.0),
        (_, Variant::Gpt2) => gpt2(shape.layers as f64, role),
        (_, Variant::Fairseq) => fairseq(shape.width as f64, role),
    }
}

/// The two projections back into the residual stream are scaled by `1/√(2L)`.
fn gpt2(layers: f64, role: Role) -> Distribution {
    match role {
        Role::Map(_, Part::Bias) => Distribution::Constant(0.0),
        Role::Map(LinearMap::AttentionOutput | LinearMap::NetworkOutput, _) => {
            Distribution::Normal(GPT2_DEVIATION / (2.0 * layers).sqrt())
        }
        _ => Distribution::Normal(GPT2_DEVIATION),
    }
}

/// fairseq 0.12: `multihead_attention.py` (Glorot's bound, for queries, keys and values times `1/√2`), `transformer_decoder.py`
/// (the embedding), and torch's default for what they leave alone, which is `1/√in` for weights and biases.
fn fairseq(width: f64, role: Role) -> Distribution {
    let default = |inputs: f64| Distribution::Uniform(1.0 / inputs.sqrt());
    match role {
        Role::Map(LinearMap::Attention, Part::Weight) => Distribution::Uniform((1.5 / width).sqrt()),
        Role::Map(LinearMap::AttentionOutput, Part::Weight) => Distribution::Uniform((3.0 / width).sqrt()),
        Role::Map(LinearMap::AttentionOutput, Part::Bias) => Distribution::Constant(0.0),
        Role::Map(LinearMap::Attention | LinearMap::Network, _) => default(width),
        Role::Map(LinearMap::NetworkOutput, _) => default(4.0 * width),
        _ => Distribution::Normal(1.0 / width.sqrt()),
    }
}

/// Fills `values` with numbers that are a function of (`seed`, `stream`, index) alone.
pub(crate) fn fill(values: &mut [f32], distribution: Distribution, seed: u64, stream: u64) {
    match distribution {
        Distribution::Constant(value) => values.fill(value),
        Distribution::Normal(deviation) => fill_normal(values, deviation, seed, stream),
        Distribution::Uniform(bound) => fill_uniform(values, bound, seed, stream),
    }
}

fn fill_uniform(values: &mut [f32], bound: f64, seed: u64, stream: u64) {
    let key = bits(&[seed, stream]);
    crate::cpu::parallel::for_each_chunk(values, CHUNK, |first, chunk| {
        for (index, value) in chunk.iter_mut().enumerate() {
            *value = ((2.0 * unit(mix(key ^ mix((first + index) as u64))) - 1.0) * bound) as f32;
        }
    });
}

fn fill_normal(values: &mut [f32], deviation: f64, seed: u64, stream: u64) {
    let key = bits(&[seed, stream]);
    crate::cpu::parallel::for_each_chunk(values, CHUNK, |first, chunk| {
        for (pair, out) in chunk.chunks_mut(2).enumerate() {
            let normals = normal_pair(key, (first / 2 + pair) as u64);
            for (value, normal) in out.iter_mut().zip(normals) {
                *value = (normal * deviation) as f32;
            }
        }
    });
}

/// Two independent standard normals by the Box–Muller transform.
fn normal_pair(key: u64, counter: u64) -> [f64; 2] {
    let [first, second] = [0, 1].map(|which| unit(mix(key ^ mix(2 * counter + which))));
    let radius = (-2.0 * (1.0 - first).ln()).sqrt();
    let (sine, cosine) = (TAU * second).sin_cos();
    [radius * cosine, radius * sine]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_those_of_the_normal_distribution() {
        let mut values = vec![0.0; 1 << 18];
        fill_normal(&mut values, 2.0, 7, 3);
        let moment = |power: i32| values.iter().map(|value| f64::from(*value / 2.0).powi(power)).sum::<f64>() / values.len() as f64;
        assert!(moment(1).abs() < 0.01, "mean {}", moment(1));
        assert!((moment(2) - 1.0).abs() < 0.02, "variance {}", moment(2));
        assert!((moment(4) - 3.0).abs() < 0.1, "fourth moment {}", moment(4));
    }

    #[test]
    fn uniform_numbers_fill_their_range() {
        let mut values = vec![0.0; 1 << 18];
        fill(&mut values, Distribution::Uniform(0.5), 7, 3);
        let variance = values.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>() / values.len() as f64;
        assert!((variance - 1.0 / 12.0).abs() < 1e-3, "variance {variance}");
        assert!(values.iter().all(|value| value.abs() <= 0.5) && values.iter().any(|value| *value < -0.49));
    }

    /// Computed from fairseq's sources for a width of 768.
    #[test]
    fn fairseqs_bounds() {
        let shape = Shape {
            layers: 1,
            heads: 12,
            width: 768,
            context: 8,
            vocabulary: 9,
            layer_norm_epsilon: 1e-5,
            variant: Variant::Fairseq,
        };
        let expected = [
            ("wte.weight", Distribution::Normal(0.036_084)),
            ("h.0.attn.c_attn.weight", Distribution::Uniform(0.044_194)),
            ("h.0.attn.c_attn.bias", Distribution::Uniform(0.036_084)),
            ("h.0.attn.c_proj.weight", Distribution::Uniform(0.0625)),
            ("h.0.attn.c_proj.bias", Distribution::Constant(0.0)),
            ("h.0.mlp.c_proj.bias", Distribution::Uniform(0.018_042)),
            ("h.0.ln_1.weight", Distribution::Constant(1.0)),
            ("ln_f.bias", Distribution::Constant(0.0)),
        ];
        let rounded = |distribution| match distribution {
            Distribution::Normal(number) => ("normal", (number * 1e6_f64).round()),
            Distribution::Uniform(number) => ("uniform", (number * 1e6_f64).round()),
            Distribution::Constant(number) => ("constant", f64::from(number)),
        };
        for (name, expected) in expected {
            let tensor = shape.tensors().into_iter().find(|tensor| tensor.name == format!("transformer.{name}")).unwrap();
            assert_eq!(rounded(distribution(&shape, tensor.role)), rounded(expected), "{name}");
        }
    }

    #[test]
    fn streams_and_seeds_differ() {
        let draw = |seed, stream| {
            let mut values = vec![0.0; 64];
            fill_normal(&mut values, 1.0, seed, stream);
            values
        };
        assert_eq!(draw(1, 1), draw(1, 1));
        assert_ne!(draw(1, 1), draw(1, 2));
        assert_ne!(draw(1, 1), draw(2, 1));
    }
}
