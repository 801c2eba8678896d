//! Durations (`90s`, `2h`, `1d12h`), money (`12USD`) and sizes (`512MiB`) as a person types them.

use std::{fmt, iter::Sum, marker::PhantomData, str::FromStr, time::Duration};

use schemars::JsonSchema;
use serde::{
    Deserialize, Deserializer, Serialize,
    de::{self, Visitor},
};

/// A length of time, written `90s`, `45m`, `2h`, `1d12h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(into = "String")]
#[schemars(with = "String")]
pub struct Span(pub Duration);

/// In days: from today on as many days are still a date.
const LONGEST: u64 = 1_000_000;

impl FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is not a duration; write it like 90s, 45m, 2h or 1d12h");
        let mut rest = text.trim();
        if rest.is_empty() {
            return Err(wrong());
        }
        let mut seconds = 0_u64;
        while !rest.is_empty() {
            let digits = rest.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
            let number: u64 = rest[..digits].parse().map_err(|_| wrong())?;
            let unit = match rest.as_bytes()[digits] {
                b's' => 1,
                b'm' => 60,
                b'h' => 3_600,
                b'd' => 86_400,
                _ => return Err(wrong()),
            };
            seconds = number.checked_mul(unit).and_then(|part| seconds.checked_add(part)).ok_or_else(wrong)?;
            rest = &rest[digits + 1..];
        }
        if seconds > LONGEST * 86_400 {
            return Err(format!("`{text}` is longer than {LONGEST}d"));
        }
        Ok(Self(Duration::from_secs(seconds)))
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut seconds = self.0.as_secs();
        if seconds == 0 {
            return f.write_str("0s");
        }
        for (unit, size) in [("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)] {
            if seconds >= size {
                write!(f, "{}{unit}", seconds / size)?;
                seconds %= size;
            }
        }
        Ok(())
    }
}

/// An amount in US dollars, written `12USD` or `0.36USD`.
// In millionths, so that sums of prices stay exact.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(into = "String")]
#[schemars(with = "String")]
pub struct Money {
    pub micros: u64,
}

impl Money {
    pub const ZERO: Money = Money { micros: 0 };

    /// Rounded up to a millionth.
    pub fn from_dollars(dollars: f64) -> Money {
        Money { micros: (dollars * 1e6).ceil() as u64 }
    }

    /// The amount in dollars, for programs that reckon with it.
    pub fn dollars(self) -> f64 {
        self.micros as f64 / 1e6
    }

    /// Without zeros at the end, but for those of whole cents.
    fn digits(self) -> String {
        let (whole, fraction) = (self.micros / 1_000_000, format!("{:06}", self.micros % 1_000_000));
        match fraction.trim_end_matches('0') {
            "" => whole.to_string(),
            fraction => format!("{whole}.{fraction:0<2}"),
        }
    }

    /// The cost of `time` at this price per hour, rounded up to a millionth.
    #[must_use]
    pub fn for_time(self, time: Duration) -> Money {
        let micros = (u128::from(self.micros) * time.as_millis()).div_ceil(3_600_000);
        Money { micros: u64::try_from(micros).unwrap_or(u64::MAX) }
    }
}

impl Sum for Money {
    /// The sum, capped at the largest amount that can be written down.
    fn sum<I: Iterator<Item = Self>>(amounts: I) -> Self {
        Self { micros: amounts.fold(0, |sum: u64, amount| sum.saturating_add(amount.micros)) }
    }
}

impl FromStr for Money {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is not an amount of money; write it like 12USD or 0.36USD");
        let number = text.trim().strip_suffix("USD").ok_or_else(wrong)?.trim();
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        let digits = |part: &str| !part.is_empty() && part.chars().all(|c| c.is_ascii_digit());
        if !digits(whole) || fraction.len() > 6 || !(fraction.is_empty() || digits(fraction)) || number.ends_with('.') {
            return Err(wrong());
        }
        let whole: u64 = whole.parse().map_err(|_| wrong())?;
        let fraction: u64 = format!("{fraction:0<6}").parse().map_err(|_| wrong())?;
        let micros = whole.checked_mul(1_000_000).and_then(|whole| whole.checked_add(fraction)).ok_or_else(wrong)?;
        Ok(Self { micros })
    }
}

/// For people: to a cent, or to two digits of less than ten cents. `{:#}` has every digit, as for what a user gave.
impl fmt::Display for Money {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = match self.micros {
            _ if f.alternate() => 1,
            100_000.. => 10_000,
            10_000.. => 1_000,
            1_000.. => 100,
            100.. => 10,
            _ => 1,
        };
        let rounded = Self { micros: self.micros.saturating_add(unit / 2) / unit * unit };
        write!(f, "{} USD", rounded.digits())
    }
}

/// The form in documents, in records and for programs: every digit.
impl From<Money> for String {
    fn from(money: Money) -> Self {
        format!("{}USD", money.digits())
    }
}

impl TryFrom<String> for Money {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

/// A number of bytes, written `512MiB`, `2GiB`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(into = "String")]
#[schemars(with = "String")]
pub struct Bytes(pub u64);

/// From the largest, so that a size is shown in the first that divides it.
const SIZES: [(&str, u64); 5] = [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];

impl FromStr for Bytes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is not a size; write it like 512MiB or 2GiB");
        let unit = SIZES.iter().find_map(|(unit, size)| Some((text.trim().strip_suffix(unit)?, size)));
        let (number, size) = unit.ok_or_else(wrong)?;
        let number: u64 = number.trim().parse().map_err(|_| wrong())?;
        number.checked_mul(*size).filter(|bytes| i64::try_from(*bytes).is_ok()).map(Self).ok_or_else(wrong)
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, size) = SIZES.into_iter().find(|(_, size)| self.0 >= *size && self.0.is_multiple_of(*size)).unwrap_or(("B", 1));
        write!(f, "{}{unit}", self.0 / size)
    }
}

/// In a document these are the texts that they are parsed from and shown as.
macro_rules! written_as_text {
    ($($kind:ty),+) => {$(
        impl TryFrom<String> for $kind {
            type Error = String;
            fn try_from(text: String) -> Result<Self, String> {
                text.parse()
            }
        }

        impl From<$kind> for String {
            fn from(value: $kind) -> Self {
                value.to_string()
            }
        }
    )+};
}

written_as_text!(
    Span,
    Bytes,
    super::docker::Gpus,
    super::azureml::Subscription,
    super::azureml::ResourceGroup,
    super::azureml::Workspace,
    super::azureml::Cluster,
    super::azureml::IdentityId,
    super::azureml::Identity
);

/// Reads a text as a `Kind`; anything else is told how that is written.
struct Written<Kind>(&'static str, PhantomData<Kind>);

impl<Kind: TryFrom<String, Error = String>> Visitor<'_> for Written<Kind> {
    type Value = Kind;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.0)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Kind, E> {
        text.to_owned().try_into().map_err(E::custom)
    }
}

macro_rules! read_from_text {
    ($($kind:ty: $how:literal),+) => {$(
        impl<'de> Deserialize<'de> for $kind {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_str(Written($how, PhantomData))
            }
        }
    )+};
}

read_from_text!(
    Span: "a duration; write it like \"2h\"",
    Money: "an amount of money; write it like \"12USD\"",
    Bytes: "a size; write it like \"512MiB\""
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_survive_a_round_trip_and_refuse_nonsense() {
        for (text, seconds) in [("90s", 90), ("2h", 7_200), ("1d12h", 129_600), ("0s", 0)] {
            assert_eq!(text.parse::<Span>().expect(text).0.as_secs(), seconds);
        }
        assert_eq!(Span(Duration::from_secs(90)).to_string(), "1m30s");
        for text in ["", "5", "h", "5w", "-1s", "99999999999999999999d", "1.5h", "1000001d"] {
            assert!(text.parse::<Span>().is_err(), "{text} must be refused");
        }
    }

    #[test]
    fn money_is_exact() {
        assert_eq!("0.36USD".parse::<Money>().expect("amount").micros, 360_000);
        assert_eq!(" 0.36 USD ".parse::<Money>(), "0.36USD".parse());
        assert_eq!(String::from(Money { micros: 360_000 }), "0.36USD");
        assert_eq!(serde_json::json!(Money { micros: 908_039 }), "0.908039USD", "records keep every digit");
        assert_eq!(String::from(Money { micros: 12_000_000 }), "12USD");
        assert_eq!("1.5USD".parse::<Money>().expect("amount").for_time(Duration::from_secs(7_200)).to_string(), "3 USD");
        for (micros, people) in [
            (0, "0"),
            (12_000_000, "12"),
            (12_500_000, "12.50"),
            (3_235_835, "3.24"),
            (908_039, "0.91"),
            (999_999, "1"),
            (360_000, "0.36"),
            (27_049, "0.027"),
            (20_000, "0.02"),
            (2_695, "0.0027"),
            (124, "0.00012"),
            (7, "0.000007"),
        ] {
            assert_eq!(Money { micros }.to_string(), format!("{people} USD"));
        }
        assert_eq!(format!("{:#}", Money { micros: 1_816_078 }), "1.816078 USD");
        assert!(Money { micros: u64::MAX }.to_string().ends_with(" USD"));
        for text in ["12", "USD", "1.USD", "-1USD", "1.0000001USD", "12EUR"] {
            assert!(text.parse::<Money>().is_err(), "{text} must be refused");
        }
    }

    #[test]
    fn sizes_survive_a_round_trip_and_refuse_nonsense() {
        for (text, bytes) in [("512MiB", 512 << 20), ("2GiB", 2 << 30), ("7B", 7), ("0B", 0)] {
            let size: Bytes = text.parse().expect(text);
            assert_eq!((size.0, size.to_string().as_str()), (bytes, text));
        }
        assert_eq!("2048MiB".parse::<Bytes>().expect("a size").to_string(), "2GiB");
        for text in ["", "5", "GiB", "-1B", "1.5GiB", "99999999TiB", "2GB"] {
            assert!(text.parse::<Bytes>().is_err(), "{text} must be refused");
        }
    }
}
