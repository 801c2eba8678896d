//! `[compute.gce]` with every default filled in, and the refusals of Compute Engine.

use ft_trainer::settings::validate::{Rule, rule};

use crate::{
    catalogue::{self, Accelerator, Machine, region},
    job::{
        gce::{GcePlan, GceSpec, Recovery},
        units::Money,
    },
    provider::{
        offer::Offer,
        rights::Rights,
        size::{Memory, Size},
    },
};

/// vCPUs of a custom machine for each of its GPUs: as many as go with one V100. The rank of each GPU has its own.
const CPUS: u32 = 12;

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
        let limits = card.and_then(|card| card.limits.get(&accelerators.to_string()));
        let (most_cpus, most_memory) = limits.copied().unwrap_or((u32::MAX, u32::MAX));
        let cpus = spec.cpus.unwrap_or_else(|| CPUS.saturating_mul(accelerators).min(most_cpus));
        let cpus = fixed.map_or(cpus, |(_, machine)| machine.cpus);
        let memory_gb = spec.memory_gb.unwrap_or_else(|| (cpus.saturating_mul(13) / 2).min(most_memory));
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
            boot_image: spec.boot_image,
            network: or(spec.network, "default"),
            subnetwork: spec.subnetwork,
            host_project: spec.host_project,
            external_address: spec.external_address.unwrap_or(true),
            image: spec.image,
            recovery: spec.recovery.unwrap_or_default(),
            service_account: spec.service_account,
            accelerator,
        }
    }
}

impl GcePlan {
    /// Where the boot image lies: from `projects/` on.
    pub fn boot_source(&self) -> String {
        let image = self.boot_image.clone().unwrap_or_else(|| format!("family/{}", self.image_family));
        format!("{}/global/images/{image}", self.image_project)
    }

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

    /// The machine type in the API's spelling.
    pub fn machine_type(&self) -> String {
        let custom = || format!("custom-{}-{}", self.cpus, u64::from(self.memory_gb) << 10);
        self.machine_type.clone().unwrap_or_else(custom)
    }

    /// The machine, as far as it is charged for.
    pub fn machine(&self) -> Machine<'static> {
        let cards = self.card().map(|card| (card.kind.as_str(), self.accelerators));
        Machine::described(&self.machine_type(), cards, self.disk_gb, self.spot || self.legacy_preemptible)
    }

    /// The same machine without preemption; `None` where there is none, and where there is no such machine.
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

/// Whether the machine is one that a job file can ask for, of a plan that comes from a store.
pub fn rules_of_plan(plan: &GcePlan) -> Vec<Rule> {
    vec![rule("compute.gce.machine_type", plan.has_its_machine(), "no job file asks for this machine")]
}

/// List price of an hour of the same machine without preemption.
pub fn lasting_price(plan: &GcePlan) -> Option<Money> {
    plan.lasting_machine().map(|machine| catalogue::gce().price_per_hour(&machine))
}

pub fn size(plan: &GcePlan) -> Size {
    let memory = |gigabytes: u32, whose: &str| Memory { bytes: u64::from(gigabytes) << 30, whose: format!("a {whose} has") };
    Size {
        has_gpu: plan.accelerators > 0,
        memory: Some(memory(plan.memory_gb, &plan.machine_type())),
        gpu_memory: plan.card().map(|card| memory(card.memory_gb, &plan.accelerator)),
        memory_key: "compute.gce.memory_gb",
    }
}

/// The machine as `ftctl plan` shows it.
pub fn rows(plan: &GcePlan) -> Vec<(&'static str, String)> {
    let kind = match (plan.spot, plan.legacy_preemptible) {
        (_, true) => "preemptible",
        (true, _) => "spot",
        _ => "on demand",
    };
    let GcePlan { accelerators, accelerator, cpus, memory_gb, disk_gb, .. } = plan;
    let replaced = if plan.recovery == Recovery::Group { ", replaced by its group when it is preempted" } else { "" };
    let machine = format!(
        "{}, {kind}: {accelerators} {accelerator}, {cpus} vCPUs, {memory_gb} GB of memory, {disk_gb} GB of disk{replaced}",
        plan.machine_type()
    );
    vec![("machine", machine), ("zones", plan.zones.join(", "))]
}

/// Every machine with accelerators, at the prices of the table.
pub fn offers() -> Vec<Offer> {
    let of = |(name, card): (&String, &'static Accelerator)| {
        let spec =
            |accelerators| GceSpec { accelerator: Some(name.clone()), accelerators: Some(accelerators), ..GceSpec::default() };
        let added = card.limits.keys().filter_map(|count| count.parse().ok()).map(spec);
        let whole = card.machines.values().map(|machine| GceSpec {
            cpus: Some(machine.cpus),
            memory_gb: Some(machine.memory_gb),
            ..spec(machine.accelerators)
        });
        added.chain(whole).map(|spec| offer(&spec.into(), card)).collect::<Vec<_>>()
    };
    catalogue::gce().accelerators.iter().flat_map(of).collect()
}

/// `plan` is for a spot machine, as one is that says nothing else.
fn offer(plan: &GcePlan, card: &'static Accelerator) -> Offer {
    Offer {
        gpu: plan.accelerator.clone(),
        gpus: plan.accelerators,
        gpu_memory_gb: card.memory_gb,
        machine: plan.machine_type(),
        cpus: plan.cpus,
        memory_gb: plan.memory_gb,
        disk_gb: Some(plan.disk_gb),
        on_demand: lasting_price(plan),
        spot: plan.price_per_hour(),
        region: catalogue::REGION,
        zones: &card.zones,
        date: &card.date,
    }
}

pub fn rights(plan: &GcePlan) -> Rights {
    let name = plan.subnetwork.as_ref().unwrap_or(&plan.network);
    let network = plan.host_project.as_ref().map_or_else(|| name.clone(), |project| format!("{name} of {project}"));
    Rights { network: Some(network), service_account: plan.service_account.clone(), ..Rights::default() }
}

/// The refusals of Compute Engine, before any money is spent.
pub fn rules(spec: &GceSpec) -> Vec<Rule> {
    let plan = GcePlan::from(spec.clone());
    let Some(card) = plan.card() else {
        let known: Vec<&str> = catalogue::gce().accelerators.keys().map(String::as_str).collect();
        return vec![rule(
            "compute.gce.accelerator",
            false,
            format!("`{}` is not an accelerator of this cloud: {}", plan.accelerator, known.join(", ")),
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
            "compute.gce.subnetwork",
            [&plan.subnetwork, &plan.host_project].into_iter().flatten().all(|name| is_name(name)),
            "the name of a subnetwork or a project has letters, digits, hyphens, dots and colons alone",
        ),
        rule(
            "compute.gce.boot_image",
            [Some(&plan.image_family), Some(&plan.image_project), plan.boot_image.as_ref()].into_iter().flatten().all(|name| is_name(name)),
            "the name of an image, of its family and of its project has letters, digits, hyphens, dots and colons alone",
        ),
        rule(
            "compute.gce.boot_image",
            spec.image_family.is_none() || spec.boot_image.is_none(),
            "a boot image is one image: name it or a family",
        ),
        rule(
            "compute.gce.subnetwork",
            spec.network.is_none() || spec.subnetwork.is_none(),
            "a subnetwork is of one network: name the one or the other",
        ),
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

/// It becomes a part of an address.
fn is_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphanumeric()) && text.chars().all(|c| c.is_ascii_alphanumeric() || "-.:".contains(c))
}

/// Rules of a custom machine, to which accelerators are added.
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

/// Rules of a machine that comes with its accelerators.
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
    let lasting = format!("{kind} is available only as a spot machine; set spot = true, or take 8 of them");
    vec![rule("compute.gce.spot", plan.spot || !machine.spot_only, lasting)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::units::Span;

    #[test]
    fn the_default_is_the_seeds_machine() {
        let plan = GcePlan::default();
        assert_eq!((plan.machine_type().as_str(), plan.disk_gb, plan.accelerators), ("custom-12-79872", 200, 1));
        assert_eq!((plan.zones[0].as_str(), plan.spot), ("us-central1-a", true));
        assert_eq!(plan.price_per_hour().micros, 908_039);
        assert!(rules(&GceSpec::default()).iter().all(|rule| rule.holds));
    }

    /// Each process on a machine of several GPUs has as many vCPUs as one alone, as far as the cloud allows.
    #[test]
    fn a_machine_of_several_gpus_has_vcpus_for_each() {
        for (accelerator, count, machine) in [
            ("v100", 2, "custom-24-159744"),
            ("v100", 8, "custom-96-638976"),
            ("t4", 4, "custom-48-319488"),
            ("p100", 1, "custom-12-79872"),
        ] {
            let spec = GceSpec { accelerator: Some(accelerator.into()), accelerators: Some(count), ..GceSpec::default() };
            assert!(rules(&spec).iter().all(|rule| rule.holds), "{count} {accelerator}");
            assert_eq!(GcePlan::from(spec).machine_type(), machine, "{count} {accelerator}");
        }
        for (name, card) in &catalogue::gce().accelerators {
            for count in card.limits.keys().map(|count| count.parse().ok()) {
                let spec = GceSpec { accelerator: Some(name.clone()), accelerators: count, ..GceSpec::default() };
                let broken: Vec<_> = rules(&spec).into_iter().filter(|rule| !rule.holds).map(|rule| rule.message).collect();
                assert!(broken.is_empty(), "{count:?} {name}: {broken:?}");
            }
        }
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
                "not an accelerator of this cloud: a100, a100-80gb, h100, l4, p100, t4, v100",
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
            (GceSpec { spot: Some(false), ..of("h100") }, "a3-highgpu-1g is available only as a spot machine"),
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
