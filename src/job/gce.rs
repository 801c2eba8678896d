//! A job's requirements of Compute Engine.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::units::Span;

/// The machine on Compute Engine; the defaults are those of the largest machine with one V100.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct GceSpec {
    /// `v100`, `t4` or `p100`, attached to a custom machine; or `a100`, `a100-80gb`, `l4` or `h100`, built into a machine type;
    /// absent: `v100`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accelerator: Option<String>,
    /// How many of them; absent: 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accelerators: Option<u32>,
    /// vCPUs of a custom machine: 1 or an even number; absent: 12 for each GPU. For other accelerators this is a minimum: ftctl
    /// takes the cheapest machine type that has enough.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpus: Option<u32>,
    /// Memory of a custom machine in GB of 1,024 MiB, 0.9 to 6.5 for each vCPU; absent: 6.5 for each vCPU. For other machine types
    /// this is a minimum.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_gb: Option<u32>,
    /// Boot disk; absent: 200.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk_gb: Option<u32>,
    /// Zones in the order in which they are tried; absent: every one that has the accelerator.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub zones: Vec<String>,
    /// Try the zones in the order of Google's advice: first those where a machine is most likely to be available and to last.
    /// Absent: false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rank_zones: Option<bool>,
    /// Use a spot machine. It costs less (`ftctl prices` shows both prices), and may be preempted; absent: true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spot: Option<bool>,
    /// Use the older kind of preemptible machine. Google ends it after 24 hours, and it cannot have a time limit
    /// (`maxRunDuration`). Absent: false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub legacy_preemptible: Option<bool>,
    /// Extra notice before the last 30 s of a preempted machine: `0s` or `2m`; absent: the cloud's own choice. Use `2m` when
    /// checkpoints take long.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preemption_notice: Option<Span>,
    /// Image family of the boot image, which must have a GPU driver and Docker; absent: `pytorch-latest-gpu`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image_family: Option<String>,
    /// One boot image by its name, the same for each attempt, instead of the newest of `image_family`; Google deletes old ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub boot_image: Option<String>,
    /// Project of the family or the boot image; absent: `deeplearning-platform-release`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image_project: Option<String>,
    /// Network of the project; absent: `default`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<String>,
    /// Subnetwork of each zone's region, instead of `network`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subnetwork: Option<String>,
    /// Project that shares its network or subnetwork with this one (a shared VPC's host project); absent: the job's own project.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_project: Option<String>,
    /// Give the machine an external address; absent: true. Without one it needs Cloud NAT to reach the store and the registry.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub external_address: Option<bool>,
    /// Container image with ftctl and its trainer, by its digest in a registry that the machine may read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Who replaces a preempted machine; absent: `client`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recovery: Option<Recovery>,
    /// Service account of the machine. `recovery = "group"` needs one that may update and delete instance groups; absent: none; if
    /// the image is in a registry of Google Cloud, the project's default account, for reading images only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service_account: Option<String>,
}

/// Who replaces a preempted machine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Recovery {
    /// The `ftctl` that supervises the job.
    #[default]
    Client,
    /// The cloud itself, without ftctl: a managed instance group of one machine, in one region.
    Group,
}

/// [`GceSpec`] with every default filled in.
#[allow(clippy::struct_excessive_bools)] // Switches of their own, not the states of one thing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GcePlan {
    pub accelerator: String,
    pub accelerators: u32,
    /// Its name where it comes with its accelerators; absent: a custom machine, to which they are added.
    #[serde(default)]
    pub machine_type: Option<String>,
    pub cpus: u32,
    pub memory_gb: u32,
    pub disk_gb: u32,
    pub zones: Vec<String>,
    #[serde(default)]
    pub rank_zones: bool,
    pub spot: bool,
    pub legacy_preemptible: bool,
    #[serde(default)]
    pub preemption_notice: Option<Span>,
    pub image_family: String,
    pub image_project: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot_image: Option<String>,
    pub network: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subnetwork: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_project: Option<String>,
    #[serde(default = "yes", skip_serializing_if = "is_yes")]
    pub external_address: bool,
    pub image: Option<String>,
    #[serde(default)]
    pub recovery: Recovery,
    #[serde(default)]
    pub service_account: Option<String>,
}

fn yes() -> bool {
    true
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_yes(value: &bool) -> bool {
    *value
}

impl From<GcePlan> for GceSpec {
    /// The section in a user's spelling.
    fn from(plan: GcePlan) -> Self {
        Self {
            accelerator: Some(plan.accelerator),
            accelerators: Some(plan.accelerators),
            cpus: Some(plan.cpus),
            memory_gb: Some(plan.memory_gb),
            disk_gb: Some(plan.disk_gb),
            zones: plan.zones,
            rank_zones: Some(plan.rank_zones),
            spot: Some(plan.spot),
            legacy_preemptible: Some(plan.legacy_preemptible),
            preemption_notice: plan.preemption_notice,
            image_family: plan.boot_image.is_none().then_some(plan.image_family),
            image_project: Some(plan.image_project),
            boot_image: plan.boot_image,
            network: Some(plan.network),
            subnetwork: plan.subnetwork,
            host_project: plan.host_project,
            external_address: Some(plan.external_address),
            image: plan.image,
            recovery: Some(plan.recovery),
            service_account: plan.service_account,
        }
    }
}
