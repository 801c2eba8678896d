//! What a job wants of Compute Engine.

use ft_trainer::settings::validate::{Rule, rule};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    catalogue::{self, Accelerator, Machine},
    units::{Money, Span},
};

/// The machine on Compute Engine; what is absent is as the machine with one V100 that has the most vCPUs and memory.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct GceSpec {
    /// `v100`, `t4` or `p100`, added to a custom machine; `a100`, `a100-80gb`, `l4` or `h100`, which machine types come with; absent: `v100`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accelerator: Option<String>,
    /// How many of them; absent: 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accelerators: Option<u32>,
    /// vCPUs of a custom machine: 1 or an even number; absent: 12. Of a machine type that comes with its accelerators: so many at least; the
    /// cheapest that has enough is taken.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpus: Option<u32>,
    /// Memory of a custom machine in GB of 1,024 MiB, 0.9 to 6.5 for each vCPU; absent: 6.5 for each vCPU. Of other machine types: so much
    /// at least.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_gb: Option<u32>,
    /// Boot disk; absent: 200.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk_gb: Option<u32>,
    /// Zones in the order in which they are tried; absent: every one that has the accelerator.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub zones: Vec<String>,
    /// Whether the zones are tried in another order: first those where the cloud itself expects a machine to be had and to last. Absent: false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rank_zones: Option<bool>,
    /// Whether the machine may be taken away, at a fourth of the price; absent: true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spot: Option<bool>,
    /// The older kind of machine that may be taken away: ends after 24 hours by itself, and Google's own limit for its time is not to be had.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub legacy_preemptible: Option<bool>,
    /// How long before the 30 s that a preemption leaves its notice comes: `0s` or `2m`, for checkpoints that take their time; absent: as the cloud
    /// likes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preemption_notice: Option<Span>,
    /// Boot image with a driver and Docker: its family; absent: `pytorch-latest-gpu`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image_family: Option<String>,
    /// Project of that family; absent: `deeplearning-platform-release`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image_project: Option<String>,
    /// Network of the project; absent: `default`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<String>,
    /// Container image with ftctl and its trainer, by its digest in a registry that the machine may read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Who makes a machine anew that was taken away; absent: `client`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recovery: Option<Recovery>,
    /// Service account of the machine. `recovery = "group"` needs one that may update and delete instance groups; absent: none, or where the
    /// image is in a registry of Google Cloud the project's default account, for nothing but reading images.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service_account: Option<String>,
}

/// Who makes a machine anew that was taken away.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Recovery {
    /// Whoever supervises the job.
    #[default]
    Client,
    /// The cloud itself, with nobody there: a managed instance group of one machine, in one region.
    Group,
}

/// [`GceSpec`] with every default filled in.
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
    pub network: String,
    pub image: Option<String>,
    #[serde(default)]
    pub recovery: Recovery,
    #[serde(default)]
    pub service_account: Option<String>,
}

impl Default for GcePlan {
    fn default() -> Self {
        GceSpec::default().into()
    }
}

impl From<GceSpec> for GcePlan {
    fn from(spec: GceSpec) -> Self {
        let or = |text: Option<String>, default: &str| text.unwrap_or_else(|| default.to_owned());
        let accelerator = or(spec.accelerator, "v100");
        let accelerators = spec.accelerators.unwrap_or(1);
        let card = catalogue::gce().accelerators.get(&accelerator);
        let fixed = card.and_then(|card| card.machine(accelerators, spec.cpus.unwrap_or(0), spec.memory_gb.unwrap_or(0)));
        let cpus = fixed.map_or_else(|| spec.cpus.unwrap_or(12), |(_, machine)| machine.cpus);
        let memory_gb = spec.memory_gb.unwrap_or_else(|| cpus.saturating_mul(13) / 2);
        let grouped = spec.recovery == Some(Recovery::Group);
        let everywhere = || {
            let zones = card.map(|known| known.zones.clone()).unwrap_or_default();
            let first = zones.first().map(|zone| region(zone).to_owned());
            zones.into_iter().filter(|zone| !grouped || first.as_deref() == Some(region(zone))).collect()
        };
        Self {
            accelerators,
            machine_type: fixed.map(|(name, _)| name.to_owned()),
            cpus,
            memory_gb: fixed.map_or(memory_gb, |(_, machine)| machine.memory_gb),
            disk_gb: spec.disk_gb.unwrap_or(200),
            zones: if spec.zones.is_empty() { everywhere() } else { spec.zones },
            rank_zones: spec.rank_zones.unwrap_or(false),
            spot: spec.spot.unwrap_or(true),
            legacy_preemptible: spec.legacy_preemptible.unwrap_or(false),
            preemption_notice: spec.preemption_notice,
            image_family: or(spec.image_family, "pytorch-latest-gpu"),
            image_project: or(spec.image_project, "deeplearning-platform-release"),
            network: or(spec.network, "default"),
            image: spec.image,
            recovery: spec.recovery.unwrap_or_default(),
            service_account: spec.service_account,
            accelerator,
        }
    }
}

impl From<GcePlan> for GceSpec {
    /// As somebody would have typed it.
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
            image_family: Some(plan.image_family),
            image_project: Some(plan.image_project),
            network: Some(plan.network),
            image: plan.image,
            recovery: Some(plan.recovery),
            service_account: plan.service_account,
        }
    }
}

/// Where a zone is.
pub fn region(zone: &str) -> &str {
    zone.rsplit_once('-').map_or(zone, |(region, _)| region)
}

impl GcePlan {
    /// Whether the machine type is one that comes with the accelerator, where one does.
    pub fn has_its_machine(&self) -> bool {
        self.card().is_some_and(|card| match &self.machine_type {
            Some(kind) => card.machines.contains_key(kind),
            None => card.machines.is_empty(),
        })
    }

    /// `None` for one that [`rules`] would have refused.
    pub fn card(&self) -> Option<&'static Accelerator> {
        catalogue::gce().accelerators.get(&self.accelerator)
    }

    /// As the API names it.
    pub fn machine_type(&self) -> String {
        let custom = || format!("custom-{}-{}", self.cpus, u64::from(self.memory_gb) << 10);
        self.machine_type.clone().unwrap_or_else(custom)
    }

    /// What is charged for.
    pub fn machine(&self) -> Machine<'static> {
        let cards = self.card().map(|card| (card.kind.as_str(), self.accelerators));
        Machine::described(&self.machine_type(), cards, self.disk_gb, self.spot || self.legacy_preemptible)
    }

    /// The same machine if nobody could take it away; `None` where nobody can, and where there is no such machine.
    pub fn lasting_machine(&self) -> Option<Machine<'static>> {
        let machine = self.machine();
        let is_offered = machine.fixed.is_none_or(|kind| !kind.spot_only);
        (machine.spot && is_offered).then_some(Machine { spot: false, ..machine })
    }

    /// List price of an hour.
    pub fn price_per_hour(&self) -> Money {
        catalogue::gce().price_per_hour(&self.machine())
    }
}

/// What Compute Engine would refuse, before any money is spent.
pub fn rules(spec: &GceSpec) -> Vec<Rule> {
    let plan = GcePlan::from(spec.clone());
    let Some(card) = plan.card() else {
        let known: Vec<&str> = catalogue::gce().accelerators.keys().map(String::as_str).collect();
        return vec![rule(
            "compute.gce.accelerator",
            false,
            format!("`{}` is no accelerator of this cloud: {}", plan.accelerator, known.join(", ")),
        )];
    };
    let name = &plan.accelerator;
    let mut rules = if card.machines.is_empty() { custom(&plan, card) } else { fixed(spec, &plan, card) };
    let pinned = spec.image.as_deref().is_none_or(|image| image.contains("@sha256:"));
    let notice =
        plan.preemption_notice.is_none_or(|notice| plan.spot && !plan.legacy_preemptible && [0, 120].contains(&notice.0.as_secs()));
    let elsewhere = plan.zones.iter().find(|zone| !card.zones.contains(zone));
    let grouped = plan.recovery == Recovery::Group;
    let far = plan.zones.iter().find(|zone| region(zone) != region(&plan.zones[0]));
    rules.extend([
        rule(
            "compute.gce.service_account",
            !grouped || plan.service_account.is_some(),
            "recovery = \"group\" needs a service_account that may update and delete instance groups: a machine whose job is over ends its group",
        ),
        rule(
            "compute.gce.recovery",
            !grouped || (plan.spot && !plan.legacy_preemptible && !plan.rank_zones),
            "recovery = \"group\" is for machines that are `spot`, not `legacy_preemptible`, and chooses among its zones by itself, without `rank_zones`",
        ),
        rule(
            "compute.gce.zones",
            !grouped || far.is_none(),
            format!("a group is in one region, and {} is not in that of {}", far.map_or("", String::as_str), plan.zones.first().map_or("", String::as_str)),
        ),
        rule("compute.gce.image", pinned, "image is given by its digest, name@sha256:..., so that every attempt runs the same"),
        rule(
            "compute.gce.disk_gb",
            (50..=65_536).contains(&plan.disk_gb),
            format!("the boot disk has between 50 and 65536 GB, not {}", plan.disk_gb),
        ),
        rule(
            "compute.gce.preemption_notice",
            notice,
            "preemption_notice is 0s or 2m, and only of machines that are `spot`, not `legacy_preemptible`",
        ),
        rule(
            "compute.gce.zones",
            elsewhere.is_none(),
            format!("there is no {name} in {}: {}", elsewhere.map_or("", String::as_str), card.zones.join(", ")),
        ),
    ]);
    rules
}

/// Of a custom machine, to which accelerators are added.
fn custom(plan: &GcePlan, card: &Accelerator) -> Vec<Rule> {
    let (cpus, memory, count, name) = (plan.cpus, plan.memory_gb, plan.accelerators, &plan.accelerator);
    let Some((most_cpus, most_memory)) = card.limits.get(&count.to_string()) else {
        let numbers: Vec<&str> = card.limits.keys().map(String::as_str).collect();
        let message = format!("a machine has {} {name}, not {count}", numbers.join(" or "));
        return vec![rule("compute.gce.accelerators", false, message)];
    };
    vec![
        rule(
            "compute.gce.cpus",
            cpus == 1 || (cpus > 0 && cpus.is_multiple_of(2)),
            format!("a machine has 1 vCPU or an even number, not {cpus}"),
        ),
        rule("compute.gce.cpus", cpus <= *most_cpus, format!("{count} {name} allow at most {most_cpus} vCPUs, not {cpus}")),
        rule(
            "compute.gce.memory_gb",
            10 * u64::from(memory) >= 9 * u64::from(cpus) && 10 * u64::from(memory) <= 65 * u64::from(cpus),
            format!(
                "{cpus} vCPUs have between {:.1} and {:.1} GB of memory, not {memory}",
                0.9 * f64::from(cpus),
                6.5 * f64::from(cpus)
            ),
        ),
        rule(
            "compute.gce.memory_gb",
            memory <= *most_memory,
            format!("{count} {name} allow at most {most_memory} GB of memory, not {memory}"),
        ),
    ]
}

/// Of a machine that comes with its accelerators.
fn fixed(spec: &GceSpec, plan: &GcePlan, card: &Accelerator) -> Vec<Rule> {
    let name = &plan.accelerator;
    let Some((kind, machine)) = plan.machine_type.as_ref().and_then(|kind| Some((kind, card.machines.get(kind)?))) else {
        let has = |(name, machine): (&String, &catalogue::MachineType)| {
            format!("{name} ({} × {}, {} vCPUs, {} GB)", machine.accelerators, plan.accelerator, machine.cpus, machine.memory_gb)
        };
        let known: Vec<String> = card.machines.iter().map(has).collect();
        let least = |wanted: Option<u32>, what: &str| wanted.map(|number| format!(", {number} {what}")).unwrap_or_default();
        let (cpus, memory) = (least(spec.cpus, "vCPUs"), least(spec.memory_gb, "GB of memory"));
        let message = format!("no machine has {} {name}{cpus}{memory}: there are {}", plan.accelerators, known.join(", "));
        return vec![rule("compute.gce.accelerators", false, message)];
    };
    let lasting = format!("{kind} is to be had as a spot machine only; set spot = true, or take 8 of them");
    vec![rule("compute.gce.spot", plan.spot || !machine.spot_only, lasting)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_the_seeds_machine() {
        let plan = GcePlan::default();
        assert_eq!((plan.machine_type().as_str(), plan.disk_gb, plan.accelerators), ("custom-12-79872", 200, 1));
        assert_eq!((plan.zones[0].as_str(), plan.spot), ("us-central1-a", true));
        assert_eq!(plan.price_per_hour().micros, 908_039);
        assert!(rules(&GceSpec::default()).iter().all(|rule| rule.holds));
    }

    #[test]
    fn machines_that_come_with_their_accelerators_are_chosen_by_what_they_have() {
        let of = |accelerator: &str, accelerators, cpus| {
            let spec = GceSpec { accelerator: Some(accelerator.into()), accelerators, cpus, ..GceSpec::default() };
            assert!(rules(&spec).iter().all(|rule| rule.holds), "{spec:?}");
            GcePlan::from(spec)
        };
        let plan = of("a100", Some(4), None);
        assert_eq!((plan.machine_type().as_str(), plan.cpus, plan.memory_gb), ("a2-highgpu-4g", 48, 340));
        // 7.71208 + 200 × 0.1 / 730
        assert_eq!(plan.price_per_hour().micros, 7_739_478);
        assert_eq!(of("l4", None, Some(9)).machine_type(), "g2-standard-12");
        assert_eq!(of("h100", None, None).machine_type(), "a3-highgpu-1g");
        let older = serde_json::json!(GcePlan::default()).as_object().cloned().map(|mut plan| {
            plan.retain(|field, _| !["machine_type", "recovery", "service_account"].contains(&field.as_str()));
            plan
        });
        let older: GcePlan = serde_json::from_value(older.into()).expect("a plan of before");
        assert_eq!(older, GcePlan::default());
    }

    #[test]
    fn what_the_cloud_would_refuse_is_refused_before() {
        let refused = |spec: GceSpec| -> Vec<String> {
            rules(&spec).into_iter().filter(|rule| !rule.holds).map(|rule| rule.message).collect()
        };
        let (base, minute) = (GceSpec::default, Span(std::time::Duration::from_secs(60)));
        let of = |accelerator: &str| GceSpec { accelerator: Some(accelerator.into()), ..base() };
        let grouped = || GceSpec { recovery: Some(Recovery::Group), service_account: Some("machine@project".into()), ..base() };
        assert!(refused(grouped()).is_empty(), "its zones are those of one region: {:?}", GcePlan::from(grouped()).zones);
        for (spec, part) in [
            (
                GceSpec { accelerator: Some("v99".into()), ..base() },
                "no accelerator of this cloud: a100, a100-80gb, h100, l4, p100, t4, v100",
            ),
            (GceSpec { accelerators: Some(3), ..base() }, "1 or 2 or 4 or 8 v100, not 3"),
            (GceSpec { cpus: Some(14), ..base() }, "at most 12 vCPUs, not 14"),
            (GceSpec { cpus: Some(7), memory_gb: Some(40), ..base() }, "an even number, not 7"),
            (GceSpec { memory_gb: Some(79), ..base() }, "between 10.8 and 78.0 GB of memory, not 79"),
            (GceSpec { memory_gb: Some(10), ..base() }, "between 10.8"),
            (GceSpec { disk_gb: Some(10), ..base() }, "between 50 and 65536"),
            (GceSpec { preemption_notice: Some(minute), ..base() }, "is 0s or 2m"),
            (
                GceSpec { preemption_notice: Some(Span(2 * minute.0)), spot: Some(false), ..base() },
                "only of machines that are `spot`",
            ),
            (GceSpec { zones: vec!["us-east1-b".into()], ..base() }, "there is no v100 in us-east1-b"),
            (
                GceSpec { accelerators: Some(3), ..of("a100") },
                "no machine has 3 a100: there are a2-highgpu-1g (1 × a100, 12 vCPUs, 85 GB), ",
            ),
            (GceSpec { cpus: Some(13), ..of("a100") }, "no machine has 1 a100, 13 vCPUs: "),
            (GceSpec { spot: Some(false), ..of("h100") }, "a3-highgpu-1g is to be had as a spot machine only"),
            (GceSpec { zones: vec!["us-west1-a".into()], ..of("a100") }, "there is no a100 in us-west1-a"),
            (GceSpec { recovery: Some(Recovery::Group), ..base() }, "needs a service_account"),
            (GceSpec { rank_zones: Some(true), ..grouped() }, "without `rank_zones`"),
            (GceSpec { legacy_preemptible: Some(true), ..grouped() }, "not `legacy_preemptible`"),
            (
                GceSpec { zones: ["us-central1-a", "us-west1-b"].map(str::to_owned).into(), ..grouped() },
                "us-west1-b is not in that of us-central1-a",
            ),
        ] {
            assert!(refused(spec.clone()).iter().any(|message| message.contains(part)), "{part}: {:?}", refused(spec));
        }
    }
}
