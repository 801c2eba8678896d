//! Random numbers that are a function of where they are used, not of earlier draws: nothing to save, nothing to restore.

/// The output function of SplitMix64 (Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators"): a bijection
/// of 64-bit words whose outputs for consecutive inputs pass BigCrush.
pub fn mix(word: u64) -> u64 {
    let word = word.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    word ^ (word >> 31)
}

/// Sixty-four bits for a place in the run. The order of the coordinates matters: `[1, 2]` and `[2, 1]` are different places.
pub fn bits(place: &[u64]) -> u64 {
    place.iter().fold(0, |state, &coordinate| mix(state ^ mix(coordinate)))
}

/// A number in `[0, 1)` with 53 random bits, for a place in the run.
pub fn uniform(place: &[u64]) -> f64 {
    unit(bits(place))
}

/// The upper 53 of 64 random bits as a number in `[0, 1)`.
pub fn unit(bits: u64) -> f64 {
    (bits >> 11) as f64 * (1.0 / (1_u64 << 53) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The generator's reference sequence from seed 0, as published with `java.util.SplittableRandom` and `splitmix64.c` (Vigna).
    #[test]
    fn mix_is_splitmix64() {
        let increment = 0x9E37_79B9_7F4A_7C15_u64;
        let outputs: Vec<u64> = (0..3).map(|n| mix(increment.wrapping_mul(n))).collect();
        assert_eq!(outputs, [0xE220_A839_7B1D_CDAF, 0x6E78_9E6A_A1B9_65F4, 0x06C4_5D18_8009_454F]);
    }

    #[test]
    fn uniform_is_uniform_and_depends_on_the_order_of_its_coordinates() {
        let draws = 100_000;
        let mean = (0..draws).map(|n| uniform(&[7, n])).sum::<f64>() / draws as f64;
        assert!((mean - 0.5).abs() < 0.005, "{mean}");
        assert!((0..draws).all(|n| (0.0..1.0).contains(&uniform(&[7, n]))));
        assert_ne!(bits(&[1, 2]), bits(&[2, 1]));
    }
}
