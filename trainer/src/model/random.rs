//! Initial weights: a counter-based generator, so that element `i` is the same whoever computes it.

use std::f64::consts::TAU;

/// Elements one thread fills at a time.
const CHUNK: usize = 1 << 16;

/// Fills `values` with N(0, deviation²), a function of (`seed`, `stream`, index) alone.
pub(super) fn fill_normal(values: &mut [f32], deviation: f64, seed: u64, stream: u64) {
    let key = mix(seed ^ mix(stream.wrapping_add(1)));
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
    let first = mix(key.wrapping_add(counter.wrapping_mul(2)));
    let second = mix(key.wrapping_add(counter.wrapping_mul(2)).wrapping_add(1));
    let radius = (-2.0 * (1.0 - unit(first)).ln()).sqrt();
    let (sine, cosine) = (TAU * unit(second)).sin_cos();
    [radius * cosine, radius * sine]
}

/// The upper 53 bits as a number in [0, 1).
fn unit(bits: u64) -> f64 {
    (bits >> 11) as f64 / (1_u64 << 53) as f64
}

/// SplitMix64's step and finaliser (Steele, Lea, Flood 2014): a bijection that passes BigCrush on a counter.
fn mix(counter: u64) -> u64 {
    let mut bits = counter.wrapping_add(0x9E37_79B9_7F4A_7C15).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    bits ^ (bits >> 31)
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
