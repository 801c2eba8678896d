//! The script of failures. Every key has a default, so `{}` is a cloud in which nothing fails.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::super::faults::Fault;
use crate::job::units::Span;

pub const SCRIPT_SCHEMA: &str = "ftctl.devcloud-script/1";

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Script {
    pub schema: String,
    /// From the insert to the first line of the startup script.
    pub boot: Span,
    /// Seconds on the wall between the power button and the end of power.
    pub notice: Span,
    /// Tried in this order for every call; the first that fits and is not used up happens.
    pub faults: Vec<Fault>,
    /// Zones that are out of stock.
    pub stock_outs: Vec<String>,
    /// Expectations of zones, by their names. A zone that is not named has a machine for a day, or none where it is out of stock.
    pub outlooks: BTreeMap<String, Outlook>,
    /// Limits other than the generous ones, by metric: `GPUS_ALL_REGIONS`, `PREEMPTIBLE_NVIDIA_V100_GPUS`, `CPUS`,
    /// `DISKS_TOTAL_GB`, …
    pub quotas: BTreeMap<String, u32>,
    /// A quota is refused in the operation, not in the answer to the insert.
    pub quota_in_operation: bool,
    pub preemptions: Vec<Preemption>,
    pub troubles: Vec<Trouble>,
    /// Lists answer with everything, whatever was asked for: a client that relies on the filter alone touches the wrong machines.
    pub ignores_filters: bool,
    /// The factor of machines' prices and of the billing catalogue, beside the table in this program.
    pub price_factor: f64,
}

impl Default for Script {
    fn default() -> Self {
        let seconds = |seconds| Span(std::time::Duration::from_secs(seconds));
        Self {
            schema: SCRIPT_SCHEMA.to_owned(),
            boot: seconds(10),
            notice: seconds(30),
            faults: Vec::new(),
            stock_outs: Vec::new(),
            outlooks: BTreeMap::new(),
            quotas: BTreeMap::new(),
            quota_in_operation: false,
            preemptions: Vec::new(),
            troubles: Vec::new(),
            ignores_filters: false,
            price_factor: 1.0,
        }
    }
}

/// The cloud's expectation of a zone.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Outlook {
    /// How likely a machine is available there, 0 to 1.
    pub obtainability: f64,
    /// How long most run before they are taken away.
    pub uptime: Span,
}

/// A machine that is taken away.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Preemption {
    /// The end of its name: `-a1` is the first attempt of any job.
    pub instance: String,
    /// Since its creation.
    pub after: Span,
}

/// A machine that does not work as it should.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Trouble {
    /// The end of its name.
    pub instance: String,
    pub kind: TroubleKind,
    /// Since its creation, for what begins while it runs.
    #[serde(default = "at_once")]
    pub after: Span,
}

fn at_once() -> Span {
    Span(std::time::Duration::ZERO)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TroubleKind {
    /// It boots, and the startup script does not run.
    NoStartup,
    /// Its boot image has no Docker that works.
    NoEngine,
    /// Nor a driver for its cards.
    NoDriver,
    /// Containers cannot reach any address that they ask for, the store's included.
    NoStore,
    /// It stands still, and has power.
    Hangs,
    /// Its metadata server does not answer.
    MetadataSilent,
}

impl TroubleKind {
    /// Whether it begins at some time instead of with the boot.
    pub fn begins_later(self) -> bool {
        matches!(self, Self::Hangs | Self::MetadataSilent)
    }
}

impl Script {
    /// The troubles of the machine with this name.
    pub fn troubles_of<'s>(&'s self, name: &'s str) -> impl Iterator<Item = &'s Trouble> {
        self.troubles.iter().filter(move |trouble| name.ends_with(&trouble.instance))
    }
}
