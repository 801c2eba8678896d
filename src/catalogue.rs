//! Machine types, accelerators and list prices of the clouds: a table in this program, which a provider and the simulation of its
//! cloud read. Compute Engine's is `templates/gce/machines.toml`, Azure ML's is in [`azureml`]. How fast GPUs compute is in
//! [`gpus`].

pub mod azureml;
pub mod gpus;

use std::{collections::BTreeMap, sync::LazyLock};

use serde::Deserialize;

use crate::job::units::Money;

const TABLE: &str = include_str!("../templates/gce/machines.toml");

/// Where the prices of the table hold.
pub const REGION: &str = "us-central1";

/// Mean length of a month, as the price sheet counts it.
const HOURS_PER_MONTH: f64 = 730.0;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Catalogue {
    /// By the name of its variant, the oldest compute capability that a build of libtorch has kernels for.
    pub libtorch: BTreeMap<String, f64>,
    pub drivers: Drivers,
    n1: N1,
    /// By the name that the API has for the type.
    disks: BTreeMap<String, Disk>,
    /// By the name that a job file uses.
    pub accelerators: BTreeMap<String, Accelerator>,
}

/// Branches of NVIDIA's driver after this one do not know GPUs below this compute capability.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Drivers {
    pub branch: u32,
    pub compute_capability: f64,
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
    #[serde(default)]
    sku: Option<String>,
    /// The regional metric that its gigabytes count against.
    quota: String,
}

/// USD per hour.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Price {
    standard: f64,
    spot: f64,
    #[serde(default)]
    sku: Option<String>,
}

/// Units, as the billing catalogue spells them.
const HOUR: &str = "h";
const GIGABYTE_HOUR: &str = "GiBy.h";
const GIGABYTE_MONTH: &str = "GiBy.mo";

/// USD for a unit of a part; a part that costs the same in a spot machine has no price of its own for it.
#[derive(Debug, Clone, Copy)]
pub struct Rates {
    pub unit: &'static str,
    pub standard: f64,
    pub spot: Option<f64>,
}

/// Something that is charged for as long as a machine is there.
#[derive(Debug, Clone, Copy)]
pub struct Part<'a> {
    /// Its name in the billing catalogue, without the region; `None` when it is not sold alone.
    pub sku: Option<&'a str>,
    /// Units of it in an hour.
    pub amount: f64,
    /// Whether it costs less in a spot machine, and is in one.
    pub spot: bool,
    /// USD for an hour of it, by the table.
    pub list_price: f64,
}

/// Either added to a custom N1 machine, with `price` and `limits`, or a part of its `machines`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Accelerator {
    /// The name in the API's spelling.
    #[serde(rename = "type")]
    pub kind: String,
    /// The regional metric; that of preemptible machines has `PREEMPTIBLE_` before it.
    pub quota: String,
    /// The regional metric of its machines' vCPUs, where the service has one.
    #[serde(default)]
    pub cpu_quota: Option<String>,
    /// Memory of one card in GB, by its maker's sheet.
    pub memory_gb: u32,
    /// The compute capability that the machine's libraries must have kernels for.
    pub compute_capability: f64,
    /// When its prices were read.
    pub date: String,
    price: Option<Price>,
    /// How many cards allow how many vCPUs and GB of memory at most.
    #[serde(default)]
    pub limits: BTreeMap<String, (u32, u32)>,
    /// By the name that the API has for the machine type.
    #[serde(default)]
    pub machines: BTreeMap<String, MachineType>,
    /// The kind of network card that its machines need; absent: whatever the service gives.
    #[serde(default)]
    pub network_card: Option<String>,
    /// Where it is, in the order of preference.
    pub zones: Vec<String>,
}

/// A machine that comes with its accelerators.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MachineType {
    pub accelerators: u32,
    pub cpus: u32,
    pub memory_gb: u32,
    /// Price of the whole machine, local disks included.
    price: Price,
    /// Whether it is sold only as a spot machine.
    #[serde(default)]
    pub spot_only: bool,
}

/// A machine, as far as it is charged for.
#[derive(Debug, Clone, Copy)]
pub struct Machine<'a> {
    pub cpus: u32,
    pub memory_mib: u64,
    pub accelerator: Option<(&'a Accelerator, u32)>,
    /// Where the accelerators are a part of it.
    pub fixed: Option<&'a MachineType>,
    pub disk_gb: u32,
    pub spot: bool,
}

impl Accelerator {
    /// The cheapest machine with this many of it and at least these many vCPUs and GB of memory, and its name.
    pub fn machine(&self, accelerators: u32, cpus: u32, memory_gb: u32) -> Option<(&str, &MachineType)> {
        let enough = self
            .machines
            .iter()
            .filter(|(_, machine)| machine.accelerators == accelerators && machine.cpus >= cpus && machine.memory_gb >= memory_gb);
        enough
            .min_by(|(_, one), (_, other)| one.price.standard.total_cmp(&other.price.standard))
            .map(|(name, machine)| (name.as_str(), machine))
    }
}

impl Machine<'static> {
    /// A machine as the API describes it: the name of its machine type, the type and number of added cards, and its boot disk. A
    /// type that is not in the table has no vCPUs.
    pub fn described(kind: &str, cards: Option<(&str, u32)>, disk_gb: u32, spot: bool) -> Self {
        let everything = || gce().accelerators.values();
        let nothing = Self { cpus: 0, memory_mib: 0, accelerator: None, fixed: None, disk_gb, spot };
        if let Some((accelerator, machine)) = everything().find_map(|one| Some((one, one.machines.get(kind)?))) {
            let (cpus, memory_mib) = (machine.cpus, u64::from(machine.memory_gb) << 10);
            return Self {
                cpus,
                memory_mib,
                accelerator: Some((accelerator, machine.accelerators)),
                fixed: Some(machine),
                ..nothing
            };
        }
        let size = kind.strip_prefix("custom-").and_then(|size| size.split_once('-'));
        let (cpus, memory_mib) =
            size.and_then(|(cpus, memory)| Some((cpus.parse().ok()?, memory.parse().ok()?))).unwrap_or_default();
        let added = |accelerator: &&Accelerator, name: &str| accelerator.kind == name && accelerator.machines.is_empty();
        let accelerator = cards.and_then(|(name, count)| Some((everything().find(|one| added(one, name))?, count)));
        Self { cpus, memory_mib, accelerator, ..nothing }
    }
}

impl Machine<'_> {
    /// The API's name for the type of its boot disk. The machines that come with their accelerators cannot have the other.
    pub fn disk_type(&self) -> &'static str {
        if self.fixed.is_some() { "pd-balanced" } else { "pd-standard" }
    }

    /// The regional quotas that it counts against, by metric, and what it takes of each.
    pub fn quotas(&self) -> Vec<(String, u32)> {
        let prefix = if self.spot { "PREEMPTIBLE_" } else { "" };
        let cards = self.accelerator.map(|(accelerator, count)| (format!("{prefix}{}", accelerator.quota), count));
        let cpu_quota = self.accelerator.map_or(Some("CPUS"), |(accelerator, _)| accelerator.cpu_quota.as_deref());
        let cpus = cpu_quota.map(|quota| (quota.to_owned(), self.cpus));
        let disk = gce().disks.get(self.disk_type()).map(|disk| (disk.quota.clone(), self.disk_gb));
        cards.into_iter().chain(cpus).chain(disk).collect()
    }
}

impl Catalogue {
    /// Whether a build of libtorch has kernels for this compute capability. The one for CPUs has none.
    pub fn has_kernels(&self, variant: &str, compute_capability: f64) -> bool {
        self.libtorch.get(variant).is_some_and(|oldest| *oldest <= compute_capability)
    }

    /// The parts that a machine is charged for, disk included.
    pub fn parts<'a>(&'a self, machine: &Machine<'a>) -> Vec<Part<'a>> {
        let part = |price: &'a Price, amount: f64| {
            let list_price = amount * if machine.spot { price.spot } else { price.standard };
            Part { sku: price.sku.as_deref(), amount, spot: machine.spot, list_price }
        };
        let body = match (machine.fixed, machine.accelerator) {
            (Some(fixed), _) => vec![part(&fixed.price, 1.0)],
            (None, accelerator) => {
                let cards = accelerator.and_then(|(card, count)| Some(part(card.price.as_ref()?, f64::from(count))));
                let cpus = part(&self.n1.cpu, f64::from(machine.cpus));
                let memory = part(&self.n1.gigabyte, machine.memory_mib as f64 / 1_024.0);
                [cpus, memory].into_iter().chain(cards).collect()
            }
        };
        let disk = self.disks.get(machine.disk_type()).map(|disk| {
            let amount = f64::from(machine.disk_gb) / HOURS_PER_MONTH;
            let (sku, list_price) = (disk.sku.as_deref(), amount * disk.gigabyte_month);
            Part { sku, amount, spot: false, list_price }
        });
        body.into_iter().chain(disk).collect()
    }

    /// List price of an hour, disk included.
    pub fn price_per_hour(&self, machine: &Machine<'_>) -> Money {
        Money::from_dollars(self.parts(machine).iter().map(|part| part.list_price).sum())
    }

    /// Everything that the billing catalogue sells alone, by its name there.
    pub fn rates(&self) -> BTreeMap<&str, Rates> {
        let rates = |price: &Price, unit| Rates { unit, standard: price.standard, spot: Some(price.spot) };
        let prices = self.accelerators.values().filter_map(|card| card.price.as_ref()).map(|price| (price, HOUR));
        let prices = prices.chain([(&self.n1.cpu, HOUR), (&self.n1.gigabyte, GIGABYTE_HOUR)]);
        let prices = prices.filter_map(|(price, unit)| Some((price.sku.as_deref()?, rates(price, unit))));
        let of_disk = |disk: &Disk| Rates { unit: GIGABYTE_MONTH, standard: disk.gigabyte_month, spot: None };
        prices.chain(self.disks.values().filter_map(|disk| Some((disk.sku.as_deref()?, of_disk(disk))))).collect()
    }
}

/// Where a zone is.
pub fn region(zone: &str) -> &str {
    zone.rsplit_once('-').map_or(zone, |(region, _)| region)
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
        assert!(gce().disks.contains_key("pd-standard") && gce().disks.contains_key("pd-balanced"));
        for (name, accelerator) in &gce().accelerators {
            let added = accelerator.limits.contains_key("1") && accelerator.price.is_some();
            assert!(!accelerator.zones.is_empty() && added == accelerator.machines.is_empty(), "{name}");
            assert!(accelerator.date.parse::<jiff::civil::Date>().is_ok(), "{name}");
            let machines = accelerator.machines.values().map(|machine| &machine.price);
            for price in accelerator.price.iter().chain(machines) {
                assert!(price.spot > 0.0 && price.spot < price.standard, "{name}");
            }
        }
    }

    #[test]
    fn the_seeds_machine_has_its_price() {
        let machine = Machine::described("custom-12-79872", Some(("nvidia-tesla-v100", 1)), 200, true);
        // 12 × 0.00698 + 78 × 0.00094 + 0.74 + 200 × 0.04 / 730
        assert_eq!(gce().price_per_hour(&machine).micros, 908_039);
        assert!(gce().price_per_hour(&Machine { spot: false, ..machine }).micros > 3_000_000);
        let quotas = [("PREEMPTIBLE_NVIDIA_V100_GPUS", 1), ("CPUS", 12), ("DISKS_TOTAL_GB", 200)];
        assert_eq!(machine.quotas(), quotas.map(|(metric, amount)| (metric.to_owned(), amount)));
    }

    #[test]
    fn a_machine_that_comes_with_its_accelerators_has_one_price() {
        let machine = Machine::described("a2-highgpu-2g", None, 200, false);
        assert_eq!((machine.cpus, machine.memory_mib), (24, 170 << 10));
        // 7.34677 + 200 × 0.1 / 730
        assert_eq!(gce().price_per_hour(&machine).micros, 7_374_168);
        let quotas = [("NVIDIA_A100_GPUS", 2), ("A2_CPUS", 24), ("SSD_TOTAL_GB", 200)];
        assert_eq!(machine.quotas(), quotas.map(|(metric, amount)| (metric.to_owned(), amount)));
        assert_eq!(Machine::described("e2-micro", None, 10, false).cpus, 0);
    }

    #[test]
    fn the_cheapest_machine_that_has_enough_is_found() {
        let machine = |name: &str, count, cpus, memory| gce().accelerators[name].machine(count, cpus, memory).map(|(name, _)| name);
        for (wanted, found) in [
            (("l4", 1, 0, 0), Some("g2-standard-4")),
            (("l4", 1, 13, 0), Some("g2-standard-16")),
            (("l4", 1, 0, 100), Some("g2-standard-32")),
            (("l4", 2, 0, 0), Some("g2-standard-24")),
            (("a100", 8, 96, 680), Some("a2-highgpu-8g")),
            (("a100-80gb", 1, 0, 0), Some("a2-ultragpu-1g")),
            (("h100", 4, 0, 0), Some("a3-highgpu-4g")),
            (("h100", 3, 0, 0), None),
            (("a100", 1, 13, 0), None),
            (("v100", 1, 0, 0), None),
        ] {
            let (name, count, cpus, memory) = wanted;
            assert_eq!(machine(name, count, cpus, memory), found, "{wanted:?}");
        }
    }
}
