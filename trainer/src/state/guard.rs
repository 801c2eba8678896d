//! The verdict on steps: which are not trusted, and when more of them are of no use.
//!
//! Loss spikes are found as in llm.c (`outlier_detector.h`): the z-score of a step's loss and gradient norm among the last 128. The
//! guard's state is part of the checkpoint, so that a resumed run judges as an undisturbed one.

use serde::{Deserialize, Serialize};

use crate::settings::{NonFinite, TrainSettings};

/// Steps whose losses and gradient norms are remembered; nothing is a spike before there are this many.
const WINDOW: usize = 128;
/// Skipped steps in a row after which the run has diverged.
const MOST_SKIPPED: u64 = 20;

/// The state that later verdicts depend on.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Guard {
    /// Losses of the last steps, oldest first; empty when spikes are not looked for.
    losses: Vec<f64>,
    gradient_norms: Vec<f64>,
    skipped_in_a_row: u64,
    best_validation_loss: Option<f64>,
    /// Evaluations since the best one.
    without_improvement: u64,
}

/// The verdict on a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    Update,
    /// The weights stay as they are, for this reason.
    Skip(String),
    /// There is no use in going on.
    Diverged,
}

impl Guard {
    /// Judges a step by its mean loss and the norm of its gradient.
    pub fn judge(&mut self, settings: &TrainSettings, loss: f64, gradient_norm: f64) -> Verdict {
        let Some(reason) = self.suspicion(settings, loss, gradient_norm) else {
            self.skipped_in_a_row = 0;
            return Verdict::Update;
        };
        self.skipped_in_a_row += 1;
        let finite = loss.is_finite() && gradient_norm.is_finite();
        if self.skipped_in_a_row > MOST_SKIPPED || (!finite && settings.non_finite == NonFinite::Stop) {
            return Verdict::Diverged;
        }
        Verdict::Skip(reason)
    }

    fn suspicion(&mut self, settings: &TrainSettings, loss: f64, gradient_norm: f64) -> Option<String> {
        let numbers = [("loss", loss), ("gradient norm", gradient_norm)];
        if let Some((what, value)) = numbers.iter().find(|(_, value)| !value.is_finite()) {
            return Some(format!("{what} {value}"));
        }
        if settings.skip_spikes == 0.0 {
            return None;
        }
        let scores = [score(&mut self.losses, loss), score(&mut self.gradient_norms, gradient_norm)];
        let spike = numbers.iter().zip(scores).find(|(_, score)| *score > settings.skip_spikes);
        spike.map(|((what, value), score)| {
            format!("{what} {value:.3}, {score:.1} standard deviations above the last {WINDOW} steps")
        })
    }

    /// Takes note of an evaluation; whether it is the best so far.
    pub fn note_evaluation(&mut self, loss: f64) -> bool {
        let best = self.best_validation_loss.is_none_or(|best| loss < best);
        if best {
            (self.best_validation_loss, self.without_improvement) = (Some(loss), 0);
        } else {
            self.without_improvement += 1;
        }
        best
    }

    /// The lowest loss of all evaluations, in nats.
    pub fn best_validation_loss(&self) -> Option<f64> {
        self.best_validation_loss
    }

    /// Whether the validation loss has not improved for as many evaluations as `train.early_stopping_patience` allows.
    pub fn has_lost_patience(&self, settings: &TrainSettings) -> bool {
        settings.early_stopping_patience.is_some_and(|patience| self.without_improvement >= patience)
    }

    /// Whether the next evaluation may be the one that makes it lose patience.
    pub fn is_losing_patience(&self, settings: &TrainSettings) -> bool {
        settings.early_stopping_patience.is_some_and(|patience| self.without_improvement + 1 >= patience)
    }
}

/// How many standard deviations `value` lies above the last values, which it then joins; 0 while they are few. A spike joins them
/// too: losses that stay high become the rule.
fn score(last: &mut Vec<f64>, value: f64) -> f64 {
    let score = if last.len() < WINDOW { 0.0 } else { deviations(last, value) };
    if last.len() == WINDOW {
        last.remove(0);
    }
    last.push(value);
    score
}

fn deviations(last: &[f64], value: f64) -> f64 {
    let count = last.len() as f64;
    let mean = last.iter().sum::<f64>() / count;
    let variance = last.iter().map(|other| (other - mean).powi(2)).sum::<f64>() / count;
    if variance > 0.0 { (value - mean) / variance.sqrt() } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(non_finite: NonFinite, skip_spikes: f64) -> TrainSettings {
        TrainSettings { non_finite, skip_spikes, early_stopping_patience: Some(2), ..TrainSettings::default() }
    }

    /// A guard that has seen losses that alternate between 3 and 5: mean 4, deviation 1.
    fn experienced(settings: &TrainSettings) -> Guard {
        let mut guard = Guard::default();
        for step in 0..WINDOW {
            assert_eq!(guard.judge(settings, 3.0 + 2.0 * (step % 2) as f64, 1.0), Verdict::Update);
        }
        guard
    }

    #[test]
    fn a_gradient_that_is_no_number_stops_or_is_skipped() {
        assert_eq!(Guard::default().judge(&settings(NonFinite::Stop, 0.0), 2.0, f64::INFINITY), Verdict::Diverged);
        let (skip, mut guard) = (settings(NonFinite::Skip, 0.0), Guard::default());
        assert_eq!(guard.judge(&skip, 2.0, f64::INFINITY), Verdict::Skip("gradient norm inf".to_owned()));
        assert_eq!(guard.judge(&skip, f64::NAN, 1.0), Verdict::Skip("loss NaN".to_owned()));
        assert_eq!(guard.judge(&skip, 2.0, 1.0), Verdict::Update);
        for _ in 0..MOST_SKIPPED {
            assert!(matches!(guard.judge(&skip, f64::NAN, 1.0), Verdict::Skip(_)));
        }
        assert_eq!(guard.judge(&skip, f64::NAN, 1.0), Verdict::Diverged);
    }

    #[test]
    fn a_spike_is_skipped_once_enough_is_known() {
        let five = settings(NonFinite::Stop, 5.0);
        let mut guard = experienced(&five);
        assert_eq!(guard.judge(&five, 8.5, 1.0), Verdict::Update);
        let Verdict::Skip(reason) = guard.judge(&five, 40.0, 1.0) else { panic!("40 is a spike") };
        assert!(
            reason.starts_with("loss 40.000, 3") && reason.ends_with(" standard deviations above the last 128 steps"),
            "{reason}"
        );
        assert_eq!(guard.judge(&five, 4.0, 1.0), Verdict::Update);
        assert_eq!(Guard::default().judge(&five, 40.0, 1.0), Verdict::Update, "nothing is known yet");
        assert_eq!(experienced(&settings(NonFinite::Stop, 0.0)).judge(&settings(NonFinite::Stop, 0.0), 40.0, 1.0), Verdict::Update);
    }

    #[test]
    fn a_restored_guard_judges_alike() {
        let five = settings(NonFinite::Stop, 5.0);
        let mut guard = experienced(&five);
        guard.judge(&five, 0.1 + 0.2, 1.0 / 3.0);
        let restored: Guard = serde_json::from_str(&serde_json::to_string(&guard).unwrap()).unwrap();
        assert_eq!(restored, guard);
    }

    #[test]
    fn patience_ends_after_evaluations_without_improvement() {
        let settings = settings(NonFinite::Stop, 0.0);
        let mut guard = Guard::default();
        for (loss, over) in [(3.0, false), (2.0, false), (2.0, false), (1.9, false), (2.5, false), (1.9, true)] {
            guard.note_evaluation(loss);
            assert_eq!(guard.has_lost_patience(&settings), over, "{loss}");
        }
        assert!(!guard.has_lost_patience(&TrainSettings::default()));
    }
}
