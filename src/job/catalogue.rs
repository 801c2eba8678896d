//! What Compute Engine offers to a training job and what it charges, from `templates/gce/machines.toml`.

use std::{collections::BTreeMap, sync::LazyLock};

use serde::Deserialize;

use super::units::Money;

const TABLE: &str = include_str!("../../templates/gce/machines.toml");

/// Mean length of a month, as the price sheet counts it.
const HOURS_PER_MONTH: f64 = 730.0;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Catalogue {
    /// When the prices were read.
    pub date: String,
    n1: N1,
    disk: Disk,
    /// By the name that a job file uses.
    pub accelerators: BTreeMap<String, Accelerator>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct N1 {
    cpu: Price,
    gigabyte: Price,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Disk {
    gigabyte_month: f64,
}

/// USD per hour.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
struct Price {
    standard: f64,
    spot: f64,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Accelerator {
    /// As the API spells it.
    #[serde(rename = "type")]
    pub kind: String,
    /// The regional metric; that of preemptible machines has `PREEMPTIBLE_` before it.
    pub quota: String,
    /// What the libraries on the machine must have kernels for.
    pub compute_capability: String,
    price: Price,
    /// How many cards allow how many vCPUs and GB of memory at most.
    pub limits: BTreeMap<String, (u32, u32)>,
    /// Where it is, in the order of preference.
    pub zones: Vec<String>,
}

/// What is charged for.
#[derive(Debug, Clone, Copy)]
pub struct Machine<'a> {
    pub cpus: u32,
    pub memory_mib: u64,
    pub accelerator: Option<(&'a Accelerator, u32)>,
    pub disk_gb: u32,
    pub spot: bool,
}

impl Catalogue {
    pub fn accelerator_of_type(&self, kind: &str) -> Option<&Accelerator> {
        self.accelerators.values().find(|accelerator| accelerator.kind == kind)
    }

    /// Price of an hour, disk included, rounded up to a millionth of a dollar.
    pub fn price_per_hour(&self, machine: &Machine<'_>) -> Money {
        let of = |price: Price| if machine.spot { price.spot } else { price.standard };
        let cards = machine.accelerator.map_or(0.0, |(accelerator, count)| of(accelerator.price) * f64::from(count));
        let memory = machine.memory_mib as f64 / 1_024.0 * of(self.n1.gigabyte);
        let disk = f64::from(machine.disk_gb) * self.disk.gigabyte_month / HOURS_PER_MONTH;
        let dollars = f64::from(machine.cpus) * of(self.n1.cpu) + memory + cards + disk;
        Money { micros: (dollars * 1e6).ceil() as u64 }
    }
}

/// The table in this program.
pub fn gce() -> &'static Catalogue {
    static CATALOGUE: LazyLock<Catalogue> = LazyLock::new(|| toml::from_str(TABLE).expect("a test reads the table"));
    &CATALOGUE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_whole() {
        for (name, accelerator) in &gce().accelerators {
            assert!(!accelerator.zones.is_empty() && accelerator.limits.contains_key("1"), "{name}");
            assert!(accelerator.price.spot < accelerator.price.standard, "{name}");
        }
        assert!(gce().date.parse::<jiff::civil::Date>().is_ok());
    }

    #[test]
    fn the_seeds_machine_has_its_price() {
        let v100 = &gce().accelerators["v100"];
        let machine = Machine { cpus: 12, memory_mib: 79_872, accelerator: Some((v100, 1)), disk_gb: 200, spot: true };
        // 12 × 0.00698 + 78 × 0.00094 + 0.74 + 200 × 0.04 / 730
        assert_eq!(gce().price_per_hour(&machine).micros, 908_039);
        assert!(gce().price_per_hour(&Machine { spot: false, ..machine }).micros > 3_000_000);
    }
}
