//! The offers of the backends, by the tables of this program.

use serde::Serialize;

use crate::job::units::Money;

/// A kind of machine with GPUs, and its price.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Offer {
    /// Its name as a job file spells it.
    pub gpu: String,
    pub gpus: u32,
    /// Memory of one GPU.
    pub gpu_memory_gb: u32,
    pub machine: String,
    pub cpus: u32,
    pub memory_gb: u32,
    /// The boot disk that is in its price, where it is paid for apart.
    pub disk_gb: Option<u32>,
    /// An hour of it; `None` where it is sold only as a spot machine.
    pub on_demand: Option<Money>,
    pub spot: Money,
    /// Where these prices hold.
    pub region: &'static str,
    /// Where it is, as far as the table knows.
    pub zones: &'static [String],
    /// When its prices were read.
    pub date: &'static str,
}
