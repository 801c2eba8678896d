//! How many sequences go through the model at once: a number, or as many as memory holds, main memory or a GPU's.

use std::fs;
use std::path::Path;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{self, Deserialize, Deserializer, Visitor};
use serde::{Serialize, Serializer};

use super::TrainSettings;

const AUTO: &str = "auto";
/// The share of the memory that is there which a run may take that begins: the estimate is a few percent off, and others want some
/// too.
const SHARE: f64 = 0.8;
/// The same where it goes on: with fewer sequences at once its last bits would be others.
const WHOLE: f64 = 1.0;

/// Sequences per forward pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MicroBatch {
    Sequences(usize),
    /// The most sequences that fit at once; a step has as many as `gradient_accumulation` says.
    Auto,
}

impl MicroBatch {
    /// The number; before `auto` is resolved, one.
    pub fn sequences(self) -> usize {
        match self {
            Self::Sequences(sequences) => sequences,
            Self::Auto => 1,
        }
    }
}

/// Whether a run that needs `needed` bytes may take so large a share of those that are `there`.
pub fn fits(needed: u64, there: u64, share: f64) -> bool {
    needed as f64 <= share * there as f64
}

/// `settings` with the sequences that go through the model at once: as many as are asked for, in the place of `auto` as many as
/// `fit`; always a divisor of a leaf of the step and at most `limit`. A run that goes on stays with the number it `began` with,
/// so that its sums keep their order, unless that does not fit where it goes on. The same sequences make a step, each token with
/// the same weight, whatever the number. `fit` is told how much of the memory may be taken.
pub fn resolve(
    settings: &TrainSettings,
    fit: impl Fn(&TrainSettings, f64) -> bool,
    began: Option<usize>,
    limit: Option<usize>,
) -> TrainSettings {
    let step = settings.micro_batch.sequences() * settings.gradient_accumulation;
    let of = |sequences: usize| TrainSettings {
        micro_batch: MicroBatch::Sequences(sequences),
        gradient_accumulation: step / sequences,
        ..settings.clone()
    };
    let asked = if let MicroBatch::Sequences(asked) = settings.micro_batch { asked } else { step };
    let fits = |sequences: &usize| {
        let share = if began == Some(*sequences) { WHOLE } else { SHARE };
        settings.micro_batch != MicroBatch::Auto || fit(&of(*sequences), share)
    };
    let most = asked.min(limit.unwrap_or(asked)).max(1);
    let leaf = step / settings.leaves();
    let divisors = (1..=most).rev().filter(|sequences| leaf.is_multiple_of(*sequences));
    of(began.into_iter().filter(|began| *began <= most).chain(divisors).find(fits).unwrap_or(1))
}

/// Bytes that a new process can have: what the system says is available, or less where a control group allows less.
pub fn available_memory() -> u64 {
    let number = |path: &str| fs::read_to_string(Path::new("/sys/fs/cgroup").join(path)).ok()?.trim().parse::<u64>().ok();
    let groups = [("memory.max", "memory.current"), ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes")];
    let allowed = groups.iter().filter_map(|(limit, used)| Some(number(limit)?.saturating_sub(number(used)?)));
    allowed.chain(system_memory()).min().unwrap_or(u64::MAX)
}

fn system_memory() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix(" kB")?.parse().ok().map(|kibibytes: u64| kibibytes << 10)
}

impl Serialize for MicroBatch {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Sequences(sequences) => sequences.serialize(serializer),
            Self::Auto => AUTO.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for MicroBatch {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl Visitor<'_> for Reader {
            type Value = MicroBatch;

            fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(formatter, "a number of sequences or \"{AUTO}\"")
            }

            fn visit_u64<E: de::Error>(self, sequences: u64) -> Result<MicroBatch, E> {
                usize::try_from(sequences).map(MicroBatch::Sequences).map_err(E::custom)
            }

            fn visit_i64<E: de::Error>(self, sequences: i64) -> Result<MicroBatch, E> {
                let sequences = u64::try_from(sequences).map_err(|_| E::invalid_value(de::Unexpected::Signed(sequences), &self))?;
                self.visit_u64(sequences)
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<MicroBatch, E> {
                if text == AUTO { Ok(MicroBatch::Auto) } else { Err(E::invalid_value(de::Unexpected::Str(text), &self)) }
            }
        }
        deserializer.deserialize_any(Reader)
    }
}

impl JsonSchema for MicroBatch {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "MicroBatch".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"anyOf": [{"type": "integer", "minimum": 1}, {"const": AUTO}]})
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Shape, TrainingMemory};
    use crate::settings::{ModelConfig, Preset};

    fn resolved(memory: u64, began: Option<usize>) -> (usize, usize) {
        resolved_of((MicroBatch::Auto, 24), memory, began, None)
    }

    fn resolved_of(
        (micro_batch, gradient_accumulation): (MicroBatch, usize),
        memory: u64,
        began: Option<usize>,
        limit: Option<usize>,
    ) -> (usize, usize) {
        let settings = TrainSettings { micro_batch, gradient_accumulation, block_size: 256, ..TrainSettings::default() };
        let model = ModelConfig { preset: Some(Preset::Gpt2), ..ModelConfig::default() };
        let shape = Shape::resolve(&model, 50_257, 256).unwrap();
        let fit = |settings: &TrainSettings, share| fits(TrainingMemory::estimate(&shape, settings).total(), memory, share);
        let found = resolve(&settings, fit, began, limit);
        (found.micro_batch.sequences(), found.gradient_accumulation)
    }

    /// Six sequences at a time, four times a step.
    #[test]
    fn a_limit_changes_how_a_step_is_divided_and_not_the_step() {
        let of = |began, limit| resolved_of((MicroBatch::Sequences(6), 4), 0, began, limit);
        assert_eq!(of(None, None), (6, 4));
        assert_eq!([of(None, Some(5)), of(None, Some(3)), of(None, Some(1))], [(4, 6), (3, 8), (1, 24)]);
        assert_eq!((of(None, Some(100)), of(Some(6), Some(5))), ((6, 4), (4, 6)));
        assert_eq!(of(Some(3), None), (3, 8), "what it once had to take it keeps");
        assert_eq!(resolved_of((MicroBatch::Auto, 24), 64 << 30, Some(24), Some(23)), (12, 2));
    }

    #[test]
    fn a_step_is_divided_into_what_fits() {
        assert_eq!(resolved(64 << 30, None), (24, 1));
        assert_eq!(resolved(1 << 30, None), (1, 24));
        let (sequences, accumulation) = resolved(5 << 30, None);
        assert!((2..24).contains(&sequences) && sequences * accumulation == 24, "{sequences} x {accumulation}");
    }

    /// Four leaves of six sequences.
    #[test]
    fn a_leaf_is_never_cut_across() {
        let micro_batch = MicroBatch::Sequences(6);
        let settings = TrainSettings { micro_batch, gradient_accumulation: 4, leaves: Some(4), ..TrainSettings::default() };
        let of = |limit| resolve(&settings, |_, _| true, None, limit).micro_batch.sequences();
        assert_eq!([None, Some(5), Some(2), Some(1)].map(of), [6, 3, 2, 1]);
        let auto = TrainSettings { micro_batch: MicroBatch::Auto, gradient_accumulation: 24, ..settings };
        assert_eq!(resolve(&auto, |_, _| true, None, None).micro_batch.sequences(), 6);
    }

    #[test]
    fn a_run_goes_on_as_it_began_where_it_can() {
        assert_eq!(resolved(64 << 30, Some(3)), (3, 8));
        assert!(resolved(5 << 30, Some(24)).0 < 24);
        let (most, _) = resolved(5 << 30, None);
        assert_eq!(resolved((5 << 30) * 9 / 10, Some(most)).0, most, "a part of the margin may be gone");
        assert!(resolved((5 << 30) * 9 / 10, None).0 < most);
    }

    #[test]
    fn it_is_written_as_a_number_or_a_word() {
        let read = |text: &str| serde_json::from_str::<MicroBatch>(text).map_err(|error| error.to_string());
        for (text, value) in [("8", MicroBatch::Sequences(8)), ("\"auto\"", MicroBatch::Auto)] {
            assert_eq!((read(text), serde_json::to_string(&value).unwrap()), (Ok(value), text.to_owned()));
        }
        assert!(read("\"many\"").unwrap_err().contains("expected a number of sequences or \"auto\""));
        assert!(read("-1").is_err() && read("1.5").is_err());
    }
}
