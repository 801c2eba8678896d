//! How long something is in a run: steps, epochs, or a share of the run. The last two become steps when the data is known.

use std::fmt;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{self, Deserialize, Deserializer, Visitor};
use serde::{Serialize, Serializer};

use super::TrainSettings;

/// Epochs that a run has at most.
const MOST_EPOCHS: f64 = 1e6;
const FORMS: &str = "a number of steps, or a text as \"1 epoch\", \"0.5 epochs\" or \"3%\" of the run";

/// A number of steps, or what becomes one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Length {
    Steps(u64),
    /// Above 0.
    Epochs(f64),
    /// A percentage of the run's steps, above 0 and at most 100.
    Percent(f64),
}

impl Length {
    pub const NONE: Self = Self::Steps(0);

    /// The number; before epochs and shares are resolved, 0.
    pub fn steps(self) -> u64 {
        self.of_run(0).unwrap_or(0)
    }

    /// The steps in a run of `steps`, as far as they are known without the data.
    pub fn of_run(self, steps: u64) -> Option<u64> {
        match self {
            Self::Steps(steps) => Some(steps),
            Self::Epochs(_) => None,
            Self::Percent(percent) => Some((percent * steps as f64 / 100.0).ceil() as u64),
        }
    }

    /// Rounded up: so many epochs have no more of these lengths in them than they should.
    fn resolved(self, epoch: f64, steps: u64) -> Self {
        match self {
            Self::Epochs(epochs) => Self::Steps(((epochs * epoch).ceil() as u64).max(1)),
            length => Self::Steps(length.of_run(steps).unwrap_or(0)),
        }
    }
}

/// `settings` with a number of steps for every length, in a run of `steps` of which `epoch` are an epoch.
pub fn resolve(settings: &TrainSettings, epoch: f64, steps: u64) -> TrainSettings {
    let of = |length: Length| length.resolved(epoch, steps);
    TrainSettings {
        warmup_steps: of(settings.warmup_steps),
        decay_steps: settings.decay_steps.map(of),
        eval_every: of(settings.eval_every),
        checkpoint_every: of(settings.checkpoint_every),
        log_every: of(settings.log_every),
        ..settings.clone()
    }
}

impl From<u64> for Length {
    fn from(steps: u64) -> Self {
        Self::Steps(steps)
    }
}

impl FromStr for Length {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |number: &str, most: f64| {
            number.trim().parse().ok().filter(|number: &f64| *number > 0.0 && *number <= most).ok_or_else(|| {
                format!("`{}` is no length: epochs are above 0, and a share is above 0% and at most 100%", text.escape_debug())
            })
        };
        if let Some(percent) = text.strip_suffix('%') {
            return number(percent, 100.0).map(Self::Percent);
        }
        let epochs = text.strip_suffix("epochs").or(text.strip_suffix("epoch"));
        let epochs = epochs.ok_or_else(|| format!("`{}` is no length; give {FORMS}", text.escape_debug()))?;
        number(epochs, MOST_EPOCHS).map(Self::Epochs)
    }
}

impl fmt::Display for Length {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Steps(steps) => write!(f, "{steps}"),
            Self::Epochs(epochs) => write!(f, "{epochs} epoch{}", if (epochs - 1.0).abs() < f64::EPSILON { "" } else { "s" }),
            Self::Percent(percent) => write!(f, "{percent}%"),
        }
    }
}

impl Serialize for Length {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Steps(steps) => steps.serialize(serializer),
            length => serializer.collect_str(length),
        }
    }
}

impl<'de> Deserialize<'de> for Length {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl Visitor<'_> for Reader {
            type Value = Length;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str(FORMS)
            }

            fn visit_u64<E: de::Error>(self, steps: u64) -> Result<Length, E> {
                Ok(Length::Steps(steps))
            }

            fn visit_i64<E: de::Error>(self, steps: i64) -> Result<Length, E> {
                let steps = u64::try_from(steps).map_err(|_| E::invalid_value(de::Unexpected::Signed(steps), &self))?;
                self.visit_u64(steps)
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Length, E> {
                text.parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_any(Reader)
    }
}

impl JsonSchema for Length {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Length".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "anyOf": [{"type": "integer", "minimum": 0}, {"type": "string", "pattern": r"^[0-9.]+ *(epochs?|%)$"}]
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_written_as_a_number_or_a_text() {
        let read = |text: &str| serde_json::from_str::<Length>(text).map_err(|error| error.to_string());
        for (text, value) in [
            ("0", Length::NONE),
            ("8", Length::Steps(8)),
            ("\"1 epoch\"", Length::Epochs(1.0)),
            ("\"0.5 epochs\"", Length::Epochs(0.5)),
            ("\"3%\"", Length::Percent(3.0)),
        ] {
            assert_eq!((read(text), serde_json::to_string(&value).unwrap()), (Ok(value), text.to_owned()));
        }
        assert_eq!((read("\"2epochs\""), read("\"12.5 %\"")), (Ok(Length::Epochs(2.0)), Ok(Length::Percent(12.5))));
        for (text, why) in [
            ("-1", "expected a number of steps, or a text as \"1 epoch\""),
            ("1.5", "expected a number of steps"),
            ("\"3\"", "`3` is no length; give a number of steps"),
            ("\"0%\"", "a share is above 0% and at most 100%"),
            ("\"101%\"", "a share is above 0% and at most 100%"),
            ("\"nan epochs\"", "epochs are above 0"),
            ("\"-1 epoch\"", "epochs are above 0"),
            ("\"epoch\"", "epochs are above 0"),
        ] {
            let refused = read(text).unwrap_err();
            assert!(refused.contains(why), "{text} gave {refused}");
        }
    }

    #[test]
    fn the_data_makes_steps_of_it() {
        let written = TrainSettings {
            warmup_steps: Length::Percent(3.0),
            eval_every: Length::Epochs(1.0),
            checkpoint_every: Length::Epochs(0.01),
            ..TrainSettings::default()
        };
        let resolved = resolve(&written, 10.5, 31);
        let steps = [resolved.warmup_steps, resolved.eval_every, resolved.checkpoint_every, resolved.log_every].map(Length::steps);
        assert_eq!(steps, [1, 11, 1, 10]);
        assert_eq!(resolve(&resolved, 99.0, 99), resolved, "what is a number stays one");
        assert_eq!(Length::Percent(7.0).of_run(100), Some(7), "not one more because of a float");
    }
}
