//! Dynamic loss scaling for fp16 (Micikevicius et al. 2018, section 3.2): the loss is multiplied by a power of two, so that small
//! gradients do not vanish; where a gradient overflows, the step changes no weight and the scale falls, and after many that did not
//! it rises.
//!
//! The rules are those of DeepSpeed's `DynamicLossScaler`; with a hysteresis of 1 they are those of apex's `LossScaler`.

use serde::{Deserialize, Serialize};

use crate::settings::LossScaling;

/// The scale of the next step, and the counts that decide when it changes. Part of a checkpoint.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LossScale {
    pub scale: f64,
    /// Overflows until the scale falls.
    patience: u64,
    /// Steps since the last overflow.
    clean_steps: u64,
}

/// The consequence of an overflow.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Overflow {
    /// The next step has this scale.
    Scale(f64),
    /// The scale was at its minimum: it cannot fall any more.
    AtMinimum,
}

impl LossScale {
    pub fn new(settings: &LossScaling) -> Self {
        Self { scale: settings.initial, patience: settings.hysteresis, clean_steps: 0 }
    }

    /// How it moves from here, and why, for the start of a run.
    pub fn rule(&self, settings: &LossScaling) -> String {
        let LossScaling { growth_interval, factor, hysteresis, minimum, maximum, .. } = settings;
        let falls = if *hysteresis > 1 { format!("{hysteresis} overflows") } else { "an overflow".to_owned() };
        format!(
            "loss scale: {}; divided by {factor} after {falls}, times {factor} after {growth_interval} steps without, from {minimum} to \
             {maximum}, because of train.loss_scaling",
            self.scale
        )
    }

    /// Takes note of a step without overflow.
    pub fn passed(&mut self, settings: &LossScaling) {
        self.clean_steps += 1;
        if self.clean_steps.is_multiple_of(settings.growth_interval) {
            self.patience = settings.hysteresis;
            self.scale = (self.scale * settings.factor).min(settings.maximum);
        }
    }

    /// Takes note of a step whose gradient is not finite.
    pub fn overflowed(&mut self, settings: &LossScaling) -> Overflow {
        self.clean_steps = 0;
        if self.patience > 1 {
            self.patience -= 1;
        } else if self.scale <= settings.minimum {
            return Overflow::AtMinimum;
        } else {
            self.scale = (self.scale / settings.factor).max(settings.minimum);
        }
        Overflow::Scale(self.scale)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// DeepSpeed 0.19.8, `runtime/fp16/loss_scaler.py`, line by line.
    struct DeepSpeed {
        settings: LossScaling,
        scale: f64,
        iteration: i64,
        last_overflow: i64,
        hysteresis: u64,
    }

    impl DeepSpeed {
        fn update(&mut self, overflow: bool) {
            let LossScaling { growth_interval, factor, hysteresis, minimum, maximum, .. } = self.settings;
            if overflow {
                if hysteresis == 1 || self.hysteresis == 1 {
                    self.scale = (self.scale / factor).max(minimum);
                } else {
                    self.hysteresis -= 1;
                }
                self.last_overflow = self.iteration;
            } else if (self.iteration - self.last_overflow) % growth_interval as i64 == 0 {
                self.hysteresis = hysteresis;
                self.scale = (self.scale * factor).min(maximum);
            }
            self.iteration += 1;
        }
    }

    /// apex 22.12, `apex/amp/scaler.py`.
    struct Apex {
        settings: LossScaling,
        scale: f64,
        unskipped: u64,
    }

    impl Apex {
        fn update(&mut self, overflow: bool) {
            let LossScaling { growth_interval, factor, minimum, maximum, .. } = self.settings;
            if overflow {
                self.scale = (self.scale / factor).max(minimum);
                self.unskipped = 0;
            } else {
                self.unskipped += 1;
            }
            if self.unskipped == growth_interval {
                self.scale = (self.scale * factor).min(maximum);
                self.unskipped = 0;
            }
        }
    }

    /// Overflows in runs and alone, at a share of `1 / rarity`.
    fn overflows(seed: u64, rarity: u64) -> impl Iterator<Item = bool> {
        (0..4000).map(move |step| crate::random::bits(&[seed, step / 2]).is_multiple_of(rarity))
    }

    #[test]
    fn the_scale_moves_as_deepspeeds() {
        for (seed, hysteresis) in [(1, 1), (2, 2), (3, 3), (4, 2)] {
            let settings = LossScaling { growth_interval: 7, hysteresis, minimum: 4.0, ..LossScaling::default() };
            let (scale, hysteresis) = (settings.initial, settings.hysteresis);
            let mut theirs = DeepSpeed { settings, scale, iteration: 0, last_overflow: -1, hysteresis };
            let mut ours = LossScale::new(&settings);
            let (mut least, mut most) = (f64::INFINITY, 0.0_f64);
            for (step, overflow) in overflows(seed, 8 + seed).enumerate() {
                let _ = if overflow { Some(ours.overflowed(&settings)) } else { None };
                if !overflow {
                    ours.passed(&settings);
                }
                theirs.update(overflow);
                assert_eq!(ours.scale.to_bits(), theirs.scale.to_bits(), "step {step}, hysteresis {hysteresis}");
                (least, most) = (least.min(ours.scale), most.max(ours.scale));
            }
            assert!(least < settings.initial || most > settings.initial, "the scale has moved");
        }
    }

    #[test]
    fn without_hysteresis_it_moves_as_apexs() {
        let settings = LossScaling { growth_interval: 20, hysteresis: 1, ..LossScaling::default() };
        let mut theirs = Apex { settings, scale: settings.initial, unskipped: 0 };
        let mut ours = LossScale::new(&settings);
        for (step, overflow) in overflows(9, 40).enumerate() {
            if overflow {
                ours.overflowed(&settings);
            } else {
                ours.passed(&settings);
            }
            theirs.update(overflow);
            assert_eq!(ours.scale.to_bits(), theirs.scale.to_bits(), "step {step}");
        }
    }

    #[test]
    fn the_documented_defaults_hold() {
        let settings = LossScaling::default();
        let mut scale = LossScale::new(&settings);
        assert_eq!(scale.scale.to_bits(), 65536.0_f64.to_bits());
        let rule =
            "loss scale: 65536; divided by 2 after 2 overflows, times 2 after 1000 steps without, from 1 to 16777216, because of ";
        assert_eq!(scale.rule(&settings), format!("{rule}train.loss_scaling"));
        assert_eq!(scale.overflowed(&settings), Overflow::Scale(65536.0), "the first overflow is forgiven");
        assert_eq!(scale.overflowed(&settings), Overflow::Scale(32768.0));
        (0..999).for_each(|_| scale.passed(&settings));
        assert_eq!(scale.scale.to_bits(), 32768.0_f64.to_bits());
        scale.passed(&settings);
        assert_eq!(scale.scale.to_bits(), 65536.0_f64.to_bits());
    }

    #[test]
    fn at_the_minimum_it_cannot_fall() {
        let fixed = LossScaling {
            initial: 128.0,
            minimum: 128.0,
            maximum: 128.0,
            hysteresis: 1,
            growth_interval: 1,
            ..LossScaling::default()
        };
        let mut scale = LossScale::new(&fixed);
        scale.passed(&fixed);
        assert_eq!(scale.scale.to_bits(), 128.0_f64.to_bits(), "a scale whose bounds are alike stays");
        assert_eq!(scale.overflowed(&fixed), Overflow::AtMinimum);
    }
}
