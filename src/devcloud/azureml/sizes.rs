//! Sizes of virtual machines: their quotas, and prices in the eastern United States.

use crate::job::units::Money;

/// A size that clusters may have.
#[derive(Debug, PartialEq)]
pub struct Size {
    pub name: &'static str,
    /// Its quota, as the service spells it.
    pub family: &'static str,
    pub cpus: u32,
    pub memory_gb: f64,
    pub gpus: u32,
    /// USD for an hour of a dedicated node.
    dedicated: f64,
    /// USD for an hour of a low-priority one; `None` where the service has none.
    low_priority: Option<f64>,
    /// The first day without it.
    pub retired: Option<&'static str>,
}

const fn size(name: &'static str, family: &'static str, (cpus, memory_gb, gpus): (u32, f64, u32), dedicated: f64) -> Size {
    Size { name, family, cpus, memory_gb, gpus, dedicated, low_priority: Some(dedicated / 5.0), retired: None }
}

const fn retired(size: Size) -> Size {
    Size { retired: Some("2025-09-30"), ..size }
}

const fn dedicated_only(size: Size) -> Size {
    Size { low_priority: None, ..size }
}

pub const SIZES: [Size; 15] = [
    size("Standard_DS3_v2", "standardDSv2Family", (4, 14.0, 0), 0.229),
    size("Standard_D4s_v3", "standardDSv3Family", (4, 16.0, 0), 0.192),
    retired(size("Standard_NC6s_v3", "standardNCSv3Family", (6, 112.0, 1), 3.06)),
    retired(size("Standard_NC12s_v3", "standardNCSv3Family", (12, 224.0, 2), 6.12)),
    retired(size("Standard_NC24s_v3", "standardNCSv3Family", (24, 448.0, 4), 12.24)),
    retired(size("Standard_NC24rs_v3", "standardNCSv3Family", (24, 448.0, 4), 13.464)),
    size("Standard_NC4as_T4_v3", "standardNCASv3Family", (4, 28.0, 1), 0.526),
    size("Standard_NC16as_T4_v3", "standardNCASv3Family", (16, 110.0, 1), 1.204),
    size("Standard_NC64as_T4_v3", "standardNCASv3Family", (64, 440.0, 4), 4.352),
    size("Standard_ND40rs_v2", "standardNDSv2Family", (40, 672.0, 8), 22.032),
    size("Standard_NC24ads_A100_v4", "standardNCADSA100v4Family", (24, 220.0, 1), 3.673),
    size("Standard_NC48ads_A100_v4", "standardNCADSA100v4Family", (48, 440.0, 2), 7.346),
    size("Standard_ND96asr_v4", "standardNDASv4Family", (96, 900.0, 8), 27.197),
    size("Standard_ND96amsr_A100_v4", "standardNDAMSv4_A100Family", (96, 1900.0, 8), 32.7702),
    dedicated_only(size("Standard_NC40ads_H100_v5", "standardNCADSH100v5Family", (40, 320.0, 1), 6.98)),
];

impl Size {
    /// The spelling of capitals does not count.
    pub fn named(name: &str) -> Option<&'static Self> {
        SIZES.iter().find(|size| size.name.eq_ignore_ascii_case(name))
    }

    /// An hour of a node, times `factor`; `None` where there is no such node.
    pub fn price_per_hour(&self, low_priority: bool, factor: f64) -> Option<Money> {
        let price = if low_priority { self.low_priority } else { Some(self.dedicated) };
        price.map(|dollars| Money { micros: (dollars * factor * 1e6).round() as u64 })
    }

    /// The name of its quota as people read it.
    pub fn label(&self) -> String {
        let middle = self.family.trim_start_matches("standard").trim_end_matches("Family");
        format!("Standard {middle} Family Cluster Dedicated vCPUs")
    }
}
