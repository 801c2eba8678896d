//! The learning rate of each optimizer step.
//!
//! The formulas are those of `transformers.optimization` (`get_*_schedule*`), which multiply the peak learning rate by a factor of
//! the number of updates already made. As there (torch's `LambdaLR`), the first update of a run with warm-up therefore has
//! learning rate 0, and the last update of a linear decay to 0 does not.
//!
//! A step that changes no weight is no update, and the schedule does not move: so in transformers' `Trainer`, which asks whether
//! the scaler of the gradients has skipped the optimizer, in DeepSpeed's engine (`_take_model_step`: not where it overflowed) and
//! in fairseq, whose schedules follow `num_updates`.

use std::f64::consts::PI;

use crate::settings::length::Length;
use crate::settings::{Schedule, TrainSettings};

/// Learning rate of the update that follows `step` completed updates, in a run of `steps` updates.
///
/// The operations have the order that they have in Python there, so that not even the last bit differs.
pub fn learning_rate(settings: &TrainSettings, step: u64, steps: u64) -> f64 {
    let (peak, warmup) = (settings.learning_rate, settings.warmup_steps.steps());
    match settings.schedule {
        _ if peak == 0.0 => 0.0,
        Schedule::WarmupLr | Schedule::WarmupLrLinear => {
            let start = settings.warmup_learning_rate;
            start + (peak - start) * warmup_of_deepspeed(settings.schedule, step, warmup)
        }
        // `get_wsd_schedule` lets the warm-up start at the floor, the others at 0.
        Schedule::Wsd if step < warmup => peak * above(floor(settings), ratio(step, warmup)),
        _ if step < warmup && settings.warmup_learning_rate > 0.0 => {
            let start = settings.warmup_learning_rate;
            start + step as f64 * ((peak - start) / warmup as f64)
        }
        _ if step < warmup => peak * ratio(step, warmup),
        _ => peak * after_warmup(settings, step, steps),
    }
}

/// The share of the peak learning rate that the last update comes near to.
fn floor(settings: &TrainSettings) -> f64 {
    settings.min_learning_rate / settings.learning_rate
}

/// The share of the peak learning rate once the warm-up is over.
fn after_warmup(settings: &TrainSettings, step: u64, steps: u64) -> f64 {
    let floor = floor(settings);
    let warmup = settings.warmup_steps.steps();
    let step = step.min(steps.max(warmup));
    let decay = steps.saturating_sub(warmup);
    match settings.schedule {
        Schedule::Constant | Schedule::WarmupLr | Schedule::WarmupLrLinear => 1.0,
        Schedule::Linear => above(floor, ratio(steps.saturating_sub(step), decay)),
        Schedule::Cosine => above(floor, 0.5 * (1.0 + (PI * ratio(step - warmup, decay)).cos())),
        Schedule::Polynomial => {
            let (peak, end) = (settings.learning_rate, settings.min_learning_rate);
            ((peak - end) * (1.0 - ratio(step - warmup, decay)).powf(settings.power) + end) / peak
        }
        Schedule::Wsd => {
            let decay = settings.decay_steps.map_or(0, Length::steps);
            let since = (step + decay).saturating_sub(steps);
            above(floor, 1.0 - ratio(since, decay))
        }
    }
}

fn above(floor: f64, factor: f64) -> f64 {
    factor * (1.0 - floor) + floor
}

/// How much of its way to the peak DeepSpeed's `WarmupLR` has made: `ln(n + 1) / ln(warm-up)` or `n / warm-up`, where its counter n
/// is one behind because it moves after the optimizer; the very first update is where the warm-up begins. A warm-up is at least 2
/// there.
fn warmup_of_deepspeed(schedule: Schedule, step: u64, warmup: u64) -> f64 {
    let warmup = warmup.max(2);
    match step.checked_sub(1) {
        None => 0.0,
        Some(counter) if counter >= warmup => 1.0,
        Some(counter) if schedule == Schedule::WarmupLrLinear => ratio(counter, warmup),
        Some(counter) => 1.0 / (warmup as f64).ln() * ((counter + 1) as f64).ln(),
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
            warmup_steps: 2.into(),
            decay_steps: Some(4.into()),
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
    fn warmup_lr_of_deepspeed() {
        let logarithmic = [0.0, 0.0, 0.5, 3.0_f64.ln() / 4.0_f64.ln(), 1.0, 1.0, 1.0];
        for (schedule, way) in
            [(Schedule::WarmupLr, logarithmic), (Schedule::WarmupLrLinear, [0.0, 0.0, 0.25, 0.5, 0.75, 1.0, 1.0])]
        {
            for start in [0.0, 0.5] {
                let settings = TrainSettings {
                    learning_rate: 2.0,
                    warmup_learning_rate: start,
                    warmup_steps: 4.into(),
                    schedule,
                    ..TrainSettings::default()
                };
                for (step, share) in (0..).zip(way) {
                    let (rate, expected) = (learning_rate(&settings, step, 10), start + (2.0 - start) * share);
                    assert!((rate - expected).abs() < 1e-12, "{schedule:?} from {start}, step {step}: {rate}, not {expected}");
                }
            }
        }
    }

    #[test]
    fn a_warmup_of_deepspeed_is_at_least_two_steps() {
        for (schedule, third) in [(Schedule::WarmupLr, 1.0), (Schedule::WarmupLrLinear, 0.5)] {
            for warmup_steps in [0, 1, 2] {
                let settings =
                    TrainSettings { learning_rate: 1.0, warmup_steps: warmup_steps.into(), schedule, ..TrainSettings::default() };
                let rates: Vec<f64> = (0..5).map(|step| learning_rate(&settings, step, 10)).collect();
                assert_eq!(rates, [0.0, 0.0, third, 1.0, 1.0], "{schedule:?} over {warmup_steps}");
            }
        }
    }

    #[test]
    fn a_warm_up_may_begin_above_zero() {
        let settings = TrainSettings {
            learning_rate: 2.0,
            warmup_learning_rate: 1.0,
            warmup_steps: 4.into(),
            schedule: Schedule::Constant,
            ..TrainSettings::default()
        };
        let rates: Vec<f64> = (0..6).map(|step| learning_rate(&settings, step, 10)).collect();
        assert_eq!(rates, [1.0, 1.25, 1.5, 1.75, 2.0, 2.0]);
    }

    #[test]
    fn past_the_end_the_rate_stays_where_the_schedule_ended() {
        let settings = TrainSettings { learning_rate: 1.0, min_learning_rate: 0.25, ..TrainSettings::default() };
        assert!((learning_rate(&settings, 25, 10) - 0.25).abs() < 1e-15);
    }
}
