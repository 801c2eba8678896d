//! How fast GPUs compute, by their data sheets: `templates/gpus.toml`.

use std::{collections::BTreeMap, sync::LazyLock};

use ft_trainer::settings::{Precision, TrainSettings};
use serde::Deserialize;

const TABLE: &str = include_str!("../../templates/gpus.toml");

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gpus {
    /// The part of a peak that training is reckoned with.
    pub share: f64,
    /// By the name that a job file uses.
    cards: BTreeMap<String, Peak>,
}

/// TFLOP/s, by number format.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Peak {
    fp32: f64,
    tf32: Option<f64>,
    fp16: Option<f64>,
    bf16: Option<f64>,
}

impl Gpus {
    /// FLOP per second of a card's matrix products in a job's number format; `None` where no data sheet tells.
    pub fn peak(&self, card: &str, train: &TrainSettings) -> Option<f64> {
        let peak = self.cards.get(card)?;
        let of_format = match train.precision {
            Precision::Fp32 if train.tf32 => peak.tf32.or(Some(peak.fp32)),
            Precision::Fp32 => Some(peak.fp32),
            Precision::Fp16 => peak.fp16,
            Precision::Bf16 => peak.bf16,
        };
        of_format.map(|rate| rate * 1e12)
    }
}

/// The table in this program.
pub fn gpus() -> &'static Gpus {
    static GPUS: LazyLock<Gpus> = LazyLock::new(|| toml::from_str(TABLE).expect("a test reads the table"));
    &GPUS
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue;

    #[test]
    fn every_accelerator_of_a_cloud_has_its_rates() {
        for card in catalogue::gce().accelerators.keys().chain(catalogue::azureml::table().accelerators.keys()) {
            let of = |precision| gpus().peak(card, &TrainSettings { precision, ..TrainSettings::default() });
            assert!(of(Precision::Fp32) < of(Precision::Fp16), "{card}");
        }
        assert_eq!(gpus().cards.len(), 7);
        assert!(gpus().share > 0.0 && gpus().share < 1.0);
    }

    #[test]
    fn a_card_computes_in_the_formats_that_it_has() {
        let of = |card: &str, precision, tf32| gpus().peak(card, &TrainSettings { precision, tf32, ..TrainSettings::default() });
        assert_eq!(of("a100", Precision::Fp32, true), Some(156e12));
        assert_eq!(of("v100", Precision::Fp32, true), of("v100", Precision::Fp32, false));
        assert_eq!((of("v100", Precision::Bf16, false), of("k80", Precision::Fp32, false)), (None, None));
    }
}
