//! The learning rate of each optimizer step.
//!
//! The formulas are those of `transformers.optimization` (`get_*_schedule*`), which multiply the peak learning rate by a factor of
//! the number of updates already made. As there (torch's `LambdaLR`), the first update of a run with warm-up therefore has
//! learning rate 0, and the last update of a linear decay to 0 does not.

use std::f64::consts::PI;

use crate::config::{Schedule, TrainSettings};

/// Learning rate of the update that follows `step` completed updates, in a run of `steps` updates.
pub fn learning_rate(settings: &TrainSettings, step: u64, steps: u64) -> f64 {
    settings.learning_rate * factor(settings, step, steps)
}

/// Updates of the final decay of [`Schedule::Wsd`]: as set, or a tenth of the run (Hu et al. 2024, "MiniCPM", section 4.3).
pub fn decay_steps(settings: &TrainSettings, steps: u64) -> u64 {
    settings.decay_steps.unwrap_or(steps / 10)
}

/// The share of the peak learning rate.
fn factor(settings: &TrainSettings, step: u64, steps: u64) -> f64 {
    let floor = if settings.learning_rate > 0.0 { settings.min_learning_rate / settings.learning_rate } else { 0.0 };
    let above = |factor: f64| factor * (1.0 - floor) + floor;
    let warmup = settings.warmup_steps;
    if step < warmup {
        let rise = ratio(step, warmup);
        // `get_wsd_schedule` lets the warm-up start at the floor, the others at 0.
        return if settings.schedule == Schedule::Wsd { above(rise) } else { rise };
    }
    let progress = ratio(step - warmup, steps.saturating_sub(warmup)).min(1.0);
    match settings.schedule {
        Schedule::Constant => 1.0,
        Schedule::Linear => above(1.0 - progress),
        Schedule::Cosine => above(0.5 * (1.0 + (PI * progress).cos())),
        Schedule::Polynomial => above((1.0 - progress).powf(settings.power)),
        Schedule::Wsd => {
            let decay = decay_steps(settings, steps);
            let since = (step + decay).saturating_sub(steps);
            above(1.0 - ratio(since, decay).min(1.0))
        }
    }
}

fn ratio(part: u64, whole: u64) -> f64 {
    part as f64 / whole.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ten updates of peak 2, two of them warm-up.
    fn rates(schedule: Schedule, min_learning_rate: f64) -> Vec<f64> {
        let settings = TrainSettings {
            learning_rate: 2.0,
            min_learning_rate,
            schedule,
            power: 2.0,
            warmup_steps: 2,
            decay_steps: Some(4),
            ..TrainSettings::default()
        };
        (0..=10).map(|step| learning_rate(&settings, step, 10)).collect()
    }

    fn assert_close(rates: &[f64], expected: [f64; 11]) {
        for (step, (rate, expected)) in rates.iter().zip(expected).enumerate() {
            assert!((rate - expected).abs() < 1e-12, "step {step}: {rate} instead of {expected}");
        }
    }

    #[test]
    fn constant() {
        assert_close(&rates(Schedule::Constant, 0.0), [0.0, 1.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0]);
    }

    #[test]
    fn linear() {
        assert_close(&rates(Schedule::Linear, 0.0), [0.0, 1.0, 2.0, 1.75, 1.5, 1.25, 1.0, 0.75, 0.5, 0.25, 0.0]);
        assert_close(&rates(Schedule::Linear, 1.0), [0.0, 1.0, 2.0, 1.875, 1.75, 1.625, 1.5, 1.375, 1.25, 1.125, 1.0]);
    }

    #[test]
    fn cosine() {
        let half = std::f64::consts::FRAC_1_SQRT_2;
        let (a, b) = ((PI / 8.0).cos(), (3.0 * PI / 8.0).cos());
        let expected = [0.0, 1.0, 2.0, 1.0 + a, 1.0 + half, 1.0 + b, 1.0, 1.0 - b, 1.0 - half, 1.0 - a, 0.0];
        assert_close(&rates(Schedule::Cosine, 0.0), expected);
        let mut with_floor = expected.map(|rate| rate / 2.0 + 1.0);
        (with_floor[0], with_floor[1]) = (0.0, 1.0);
        assert_close(&rates(Schedule::Cosine, 1.0), with_floor);
    }

    #[test]
    fn polynomial() {
        let expected = [0.0, 1.0, 2.0, 1.53125, 1.125, 0.78125, 0.5, 0.28125, 0.125, 0.03125, 0.0];
        assert_close(&rates(Schedule::Polynomial, 0.0), expected);
    }

    #[test]
    fn warm_up_stable_decay() {
        assert_close(&rates(Schedule::Wsd, 0.0), [0.0, 1.0, 2.0, 2.0, 2.0, 2.0, 2.0, 1.5, 1.0, 0.5, 0.0]);
        assert_close(&rates(Schedule::Wsd, 1.0), [1.0, 1.5, 2.0, 2.0, 2.0, 2.0, 2.0, 1.75, 1.5, 1.25, 1.0]);
    }

    #[test]
    fn past_the_end_the_rate_stays_where_the_schedule_ended() {
        let settings = TrainSettings { learning_rate: 1.0, min_learning_rate: 0.25, ..TrainSettings::default() };
        assert!((learning_rate(&settings, 25, 10) - 0.25).abs() < 1e-15);
    }
}
