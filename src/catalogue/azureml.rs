//! The sizes of Azure's machines with accelerators, and their list prices: `templates/azureml/sizes.toml`.

use std::{collections::BTreeMap, sync::LazyLock};

use serde::Deserialize;

use crate::job::units::Money;

const TABLE: &str = include_str!("../../templates/azureml/sizes.toml");

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Catalogue {
    /// When its prices were read.
    pub date: String,
    /// Where they hold.
    pub region: String,
    /// Compute capability, by the name that a job file uses.
    pub accelerators: BTreeMap<String, f64>,
    sizes: BTreeMap<String, Size>,
    retired: BTreeMap<String, Retired>,
}

/// A machine with its accelerators.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Size {
    /// Its name as a job file spells it.
    pub accelerator: String,
    pub accelerators: u32,
    /// Memory of one accelerator.
    pub gpu_memory_gb: u32,
    pub cpus: u32,
    pub memory_gb: u32,
    #[serde(default)]
    pub infiniband: bool,
    /// The spellings of the part of its quota's name that is its own.
    pub families: Vec<String>,
    dedicated: f64,
    low_priority: f64,
}

/// A size that there is no more.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Retired {
    pub date: String,
    /// The living size to take instead.
    pub nearest: String,
}

impl Size {
    /// List price of an hour.
    pub fn price_per_hour(&self, low_priority: bool) -> Money {
        Money::from_dollars(if low_priority { self.low_priority } else { self.dedicated })
    }
}

impl Catalogue {
    /// A size by its name, in whatever case, and the name in Azure's spelling.
    pub fn size(&self, name: &str) -> Option<(&str, &Size)> {
        of_any_case(&self.sizes, name)
    }

    pub fn retired(&self, name: &str) -> Option<(&str, &Retired)> {
        of_any_case(&self.retired, name)
    }

    /// The cheapest size with exactly this many of an accelerator.
    pub fn cheapest(&self, accelerator: &str, accelerators: u32) -> Option<(&str, &Size)> {
        let fitting = self.with(accelerator).filter(|(_, size)| size.accelerators == accelerators);
        fitting.min_by(|(_, one), (_, other)| one.dedicated.total_cmp(&other.dedicated))
    }

    /// Every size, by its name.
    pub fn all(&self) -> impl Iterator<Item = (&str, &Size)> {
        self.sizes.iter().map(|(name, size)| (name.as_str(), size))
    }

    /// Every size with this accelerator.
    pub fn with(&self, accelerator: &str) -> impl Iterator<Item = (&str, &Size)> {
        self.all().filter(move |(_, size)| size.accelerator == accelerator)
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.sizes.keys().map(String::as_str)
    }
}

/// Azure's names are of any case.
fn of_any_case<'t, T>(table: &'t BTreeMap<String, T>, name: &str) -> Option<(&'t str, &'t T)> {
    table.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(known, entry)| (known.as_str(), entry))
}

/// The table in this program.
pub fn table() -> &'static Catalogue {
    static CATALOGUE: LazyLock<Catalogue> = LazyLock::new(|| toml::from_str(TABLE).expect("a test reads the table"));
    &CATALOGUE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_whole() {
        let is_day = |day: &str| day.parse::<jiff::civil::Date>().is_ok();
        assert!(is_day(&table().date) && table().sizes.len() > 10);
        for (name, size) in &table().sizes {
            assert!(table().accelerators.contains_key(&size.accelerator), "{name}");
            assert!(size.low_priority > 0.0 && size.low_priority < size.dedicated, "{name}");
            assert!(table().retired(name).is_none(), "{name}");
        }
        for (name, retired) in &table().retired {
            assert!(is_day(&retired.date) && table().size(&retired.nearest).is_some(), "{name}");
        }
    }

    #[test]
    fn the_cheapest_that_has_exactly_so_many_is_found() {
        let found = |accelerator: &str, count| table().cheapest(accelerator, count).map(|(name, _)| name);
        for (accelerator, count, name) in [
            ("t4", 1, Some("Standard_NC4as_T4_v3")),
            ("t4", 4, Some("Standard_NC64as_T4_v3")),
            ("v100", 8, Some("Standard_ND40rs_v2")),
            ("a100", 8, Some("Standard_ND96asr_v4")),
            ("a100-80gb", 8, Some("Standard_ND96amsr_A100_v4")),
            ("h100", 1, Some("Standard_NC40ads_H100_v5")),
            ("v100", 1, None),
            ("k80", 1, None),
        ] {
            assert_eq!(found(accelerator, count), name, "{count} {accelerator}");
        }
    }

    #[test]
    fn names_are_of_any_case() {
        assert_eq!(table().size("STANDARD_ND40RS_V2").map(|(name, size)| (name, size.cpus)), Some(("Standard_ND40rs_v2", 40)));
        assert_eq!(table().retired("standard_nc24rs_v3").map(|(_, retired)| retired.date.as_str()), Some("2025-09-30"));
        assert!(table().size("Standard_ND40rs_v2").is_some_and(|(_, size)| size.infiniband && size.families[0] == "NDv2"));
        assert_eq!(table().size("Standard_ND40rs_v2").map(|(_, size)| size.price_per_hour(true).micros), Some(4_406_400));
    }
}
