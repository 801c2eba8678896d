//! Chooses the next token from logits. The filters and their order are those of `transformers`' logits warpers: temperature, then
//! top-k, then top-p.

use serde::Serialize;

use crate::cpu::simd::largest;
use crate::cpu::vectorise::vectorised;
use crate::settings::SampleConfig;

/// How the next token is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Sampling {
    /// 0 is greedy.
    pub temperature: f64,
    /// Keep the k likeliest tokens and those that tie with the last of them; 0 keeps all.
    pub top_k: usize,
    /// Keep the smallest set of likeliest tokens whose probability reaches this; 1 keeps all.
    pub top_p: f64,
}

impl From<&SampleConfig> for Sampling {
    fn from(config: &SampleConfig) -> Self {
        Self { temperature: config.temperature, top_k: config.top_k, top_p: config.top_p }
    }
}

impl Sampling {
    /// The next token for `logits` (`[vocabulary]`, f32), given a number drawn uniformly from `[0, 1)`.
    pub fn choose(&self, logits: &[f32], uniform: f64) -> u32 {
        if self.temperature == 0.0 {
            return argmax(logits);
        }
        let kept = self.keep(logits);
        let total: f64 = kept.iter().map(|(_, weight)| weight).sum();
        let mut left = uniform * total;
        let chosen = kept.iter().find(|(_, weight)| {
            left -= weight;
            left < 0.0
        });
        // Rounding can leave the last candidate's share open by an ulp.
        chosen.or(kept.last()).map_or(0, |(token, _)| *token)
    }

    /// The tokens that may follow, in order of their ids, with weights proportional to their probability.
    fn keep(&self, logits: &[f32]) -> Vec<(u32, f64)> {
        let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let weight = |logit: f32| (f64::from(logit - largest) / self.temperature).exp();
        let mut kept: Vec<(u32, f64)> = (0..).zip(logits.iter().map(|&logit| weight(logit))).collect();
        if self.top_k > 0 && self.top_k < kept.len() {
            let mut weights: Vec<f64> = kept.iter().map(|(_, weight)| *weight).collect();
            let (_, threshold, _) = weights.select_nth_unstable_by(self.top_k - 1, |a, b| b.total_cmp(a));
            let threshold = *threshold;
            kept.retain(|(_, weight)| *weight >= threshold);
        }
        if self.top_p < 1.0 {
            nucleus(&mut kept, self.top_p);
        }
        kept
    }
}

/// Drops the unlikeliest tokens while what is dropped adds up to at most `1 - top_p` (Holtzman et al. 2020). One token always
/// stays. Where that ends is looked for half by half: to sort a whole vocabulary takes longer than a small model needs for the
/// logits.
fn nucleus(kept: &mut Vec<(u32, f64)>, top_p: f64) {
    let sum = |tokens: &[(u32, f64)]| tokens.iter().map(|(_, weight)| weight).sum::<f64>();
    let mut left = (1.0 - top_p) * sum(kept);
    // All before `dropped` go, all from `bound` on stay, and so does the last one between them.
    let (mut dropped, mut bound) = (0, kept.len());
    while bound - dropped > 1 {
        let half = (bound - dropped) / 2;
        kept[dropped..bound].select_nth_unstable_by(half, |a, b| a.1.total_cmp(&b.1).then(a.0.cmp(&b.0)));
        let unlikelier = sum(&kept[dropped..dropped + half]);
        if unlikelier <= left {
            left -= unlikelier;
            dropped += half;
        } else {
            bound = dropped + half;
        }
    }
    kept.drain(..dropped);
    kept.sort_unstable_by_key(|(token, _)| *token);
}

/// The first of the largest logits.
fn argmax(logits: &[f32]) -> u32 {
    let peak = peak(logits);
    (0..).zip(logits).find(|(_, logit)| **logit >= peak).map_or(0, |(token, _)| token)
}

vectorised! {
    fn peak(logits: &[f32]) -> f32 {
        largest(logits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Logits of probabilities 0.1, 0.4, 0.2, 0.3.
    fn logits() -> Vec<f32> {
        [0.1_f32, 0.4, 0.2, 0.3].map(f32::ln).to_vec()
    }

    fn kept(temperature: f64, top_k: usize, top_p: f64) -> Vec<u32> {
        Sampling { temperature, top_k, top_p }.keep(&logits()).into_iter().map(|(token, _)| token).collect()
    }

    #[test]
    fn greedy_takes_the_first_of_the_largest() {
        let greedy = Sampling { temperature: 0.0, top_k: 0, top_p: 1.0 };
        assert_eq!(greedy.choose(&[0.5, 2.0, 2.0, -1.0], 0.9), 1);
    }

    #[test]
    fn filters_keep_what_transformers_keeps() {
        assert_eq!(kept(1.0, 0, 1.0), [0, 1, 2, 3]);
        assert_eq!(kept(1.0, 2, 1.0), [1, 3]);
        assert_eq!(kept(1.0, 9, 1.0), [0, 1, 2, 3]);
        assert_eq!(kept(1.0, 0, 0.65), [1, 3]);
        assert_eq!(kept(1.0, 0, 0.75), [1, 2, 3]);
        assert_eq!(kept(1.0, 0, 0.01), [1]);
        // A temperature above 1 flattens, so that the nucleus grows; top-k goes before top-p.
        assert_eq!(kept(1.0, 0, 0.85), [1, 2, 3]);
        assert_eq!(kept(4.0, 0, 0.85), [0, 1, 2, 3]);
        assert_eq!(kept(1.0, 2, 0.5), [1]);
    }

    #[test]
    fn what_is_dropped_of_a_large_vocabulary_is_as_much_as_fits() {
        let mut all: Vec<(u32, f64)> = (0..10_000).map(|token| (token, f64::from(token * 7919 % 1000))).collect();
        let left = 0.1 * all.iter().map(|(_, weight)| weight).sum::<f64>();
        let mut kept = all.clone();
        nucleus(&mut kept, 0.9);
        all.sort_by(|a, b| a.1.total_cmp(&b.1));
        let mut sum = 0.0;
        let mut expected: Vec<_> = all
            .into_iter()
            .skip_while(|(_, weight)| {
                sum += weight;
                sum <= left
            })
            .collect();
        expected.sort_unstable_by_key(|(token, _)| *token);
        assert!(expected.len() < 9000 && kept == expected, "{} kept, not {}", kept.len(), expected.len());
    }

    #[test]
    fn ties_at_the_threshold_of_top_k_stay() {
        let sampling = Sampling { temperature: 1.0, top_k: 1, top_p: 1.0 };
        assert_eq!(sampling.keep(&[1.0, 3.0, 3.0]).len(), 2);
    }

    #[test]
    fn tokens_come_as_often_as_their_probability_says() {
        let sampling = Sampling { temperature: 1.0, top_k: 0, top_p: 1.0 };
        let mut counts = [0; 4];
        for draw in 0..10_000 {
            counts[sampling.choose(&logits(), f64::from(draw) / 10_000.0) as usize] += 1;
        }
        assert!(
            counts.iter().zip([1000, 4000, 2000, 3000]).all(|(count, expected): (&i32, i32)| (count - expected).abs() <= 1),
            "{counts:?}"
        );
        assert_eq!(sampling.choose(&logits(), 1.0 - f64::EPSILON / 2.0), 3);
    }
}
