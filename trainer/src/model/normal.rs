//! Initial weights: normal numbers that are a function of their place, so that element `i` is the same whoever computes it.

use std::f64::consts::TAU;

use crate::random::{bits, mix, unit};

/// Elements one thread fills at a time.
const CHUNK: usize = 1 << 16;

/// Fills `values` with N(0, deviation²), a function of (`seed`, `stream`, index) alone.
pub(super) fn fill_normal(values: &mut [f32], deviation: f64, seed: u64, stream: u64) {
    let key = bits(&[seed, stream]);
    crate::parallel::for_each_chunk(values, CHUNK, |first, chunk| {
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
