//! `[compute.azureml]` with every default filled in, and the refusals of Azure ML.

use ft_trainer::settings::validate::{Rule, rule};

use super::body;
use crate::{
    catalogue::azureml::{Size as Machine, table},
    job::{
        azureml::{AzuremlPlan, AzuremlSpec, Identity, Placement, Tier},
        finding::Finding,
        units::Money,
    },
    provider::{
        offer::Offer,
        rights::Rights,
        size::{Memory, Size},
    },
};

/// The accelerator of a job that asks for none: the cheapest.
const ACCELERATOR: &str = "t4";

impl Default for AzuremlPlan {
    fn default() -> Self {
        AzuremlSpec::default().into()
    }
}

impl From<AzuremlSpec> for AzuremlPlan {
    fn from(spec: AzuremlSpec) -> Self {
        let named = spec.size.as_deref().and_then(|size| table().size(size));
        let accelerator = spec.accelerator.or_else(|| named.map(|(_, size)| size.accelerator.clone()));
        let accelerator = accelerator.unwrap_or_else(|| ACCELERATOR.to_owned());
        let accelerators = spec.accelerators.or(named.map(|(_, size)| size.accelerators)).unwrap_or(1);
        let found = named.or_else(|| table().cheapest(&accelerator, accelerators).filter(|_| spec.size.is_none()));
        let compute = spec.compute.unwrap_or_default();
        let signs_in = if compute == Placement::Cluster { Identity::Managed } else { Identity::User };
        Self {
            subscription: spec.subscription,
            resource_group: spec.resource_group,
            workspace: spec.workspace,
            compute,
            cluster: spec.cluster,
            size: found.map_or_else(|| spec.size.unwrap_or_default(), |(name, _)| name.to_owned()),
            accelerator,
            accelerators,
            spot: spec.spot.unwrap_or(true),
            tier: spec.tier,
            image: spec.image,
            identity: spec.identity.unwrap_or(signs_in),
            public_address: spec.public_address.unwrap_or(false),
        }
    }
}

impl AzuremlPlan {
    /// `None` for one that [`rules`] would have refused.
    pub fn machine(&self) -> Option<&'static Machine> {
        table().size(&self.size).map(|(_, machine)| machine)
    }

    pub fn compute_capability(&self) -> Option<f64> {
        table().accelerators.get(&self.accelerator).copied()
    }

    /// List price of an hour, spot or not.
    pub fn listed_price(&self, spot: bool) -> Option<Money> {
        self.machine().map(|machine| machine.price_per_hour(spot))
    }

    /// Its cluster's word for whether it may be taken away.
    pub fn priority(&self) -> &'static str {
        if self.spot { "LowPriority" } else { "Dedicated" }
    }

    /// The service's word for whom it gives machines first, where it finds them itself.
    pub fn job_tier(&self) -> &'static str {
        match (self.spot, self.tier) {
            (true, _) => "Spot",
            (false, Some(Tier::Basic)) => "Basic",
            (false, Some(Tier::Standard) | None) => "Standard",
            (false, Some(Tier::Premium)) => "Premium",
        }
    }
}

/// List price of an hour of the same machine without preemption.
pub fn lasting_price(plan: &AzuremlPlan) -> Option<Money> {
    plan.listed_price(false).filter(|_| plan.spot)
}

pub fn size(plan: &AzuremlPlan) -> Size {
    let memory = |gigabytes: u32, whose: &str| Memory { bytes: u64::from(gigabytes) << 30, whose: format!("a {whose} has") };
    Size {
        has_gpu: true,
        memory: plan.machine().map(|machine| memory(machine.memory_gb, &plan.size)),
        gpu_memory: plan.machine().map(|machine| memory(machine.gpu_memory_gb, &plan.accelerator)),
        memory_key: "compute.azureml.size",
    }
}

/// For `plan`: ftctl's own cluster without an identity that was given roles.
pub fn without_roles(plan: &AzuremlPlan) -> Option<Finding> {
    let is_own = plan.compute == Placement::Cluster && plan.cluster.is_none();
    (is_own && plan.identity == Identity::Managed).then(|| {
        let message = "the cluster that ftctl creates gets a new identity without roles: it can read neither the store nor a private registry";
        let fix = "make a user-assigned identity with the roles AcrPull and Storage Blob Data Contributor, and write its resource id \
                   as identity into [compute.azureml]; docs/backends/azureml.md has the commands";
        Finding::notice("identity", message, fix)
    })
}

/// For `plan`: a job of several nodes, of which some may be there long before the last.
pub fn of_nodes(plan: &AzuremlPlan, nodes: u32) -> Option<Finding> {
    (nodes > 1 && plan.compute == Placement::Cluster).then(|| {
        let message = "the first nodes are billed while they wait for the last one, and max_cost does not count that time";
        let fix = "set limits.max_wait, and follow the job with `ftctl logs -f`, which ends the wait then; or retry.shrink = true, \
                   which goes on with fewer";
        Finding::notice("nodes", message, fix)
    })
}

/// The machine as `ftctl plan` shows it.
pub fn rows(plan: &AzuremlPlan) -> Vec<(&'static str, String)> {
    let kind = if plan.spot { "spot (low priority)" } else { "on demand" };
    let (cpus, memory) = plan.machine().map_or((0, 0), |machine| (machine.cpus, machine.memory_gb));
    let joined = if plan.machine().is_some_and(|machine| machine.infiniband) { ", InfiniBand" } else { "" };
    let AzuremlPlan { size, accelerators, accelerator, .. } = plan;
    let machine = format!("{size}, {kind}: {accelerators} {accelerator}, {cpus} vCPUs, {memory} GB of memory{joined}");
    let place = match (plan.compute, &plan.cluster) {
        (Placement::Serverless, _) => format!("serverless, tier {}", plan.job_tier()),
        (Placement::Cluster, Some(cluster)) => format!("{cluster}, used as it is"),
        (Placement::Cluster, None) if plan.public_address => "one of ftctl's own, with public addresses".to_owned(),
        (Placement::Cluster, None) => "one of ftctl's own, without public addresses".to_owned(),
    };
    let workspace = plan.workspace.as_ref().map(|workspace| ("workspace", workspace.to_string()));
    let rows = [("machine", machine), ("cluster", place), ("identity", plan.identity.to_string())];
    rows.into_iter().chain(workspace).collect()
}

/// Every size with accelerators, at the prices of the table.
pub fn offers() -> Vec<Offer> {
    let offer = |(name, machine): (&'static str, &'static Machine)| Offer {
        gpu: machine.accelerator.clone(),
        gpus: machine.accelerators,
        gpu_memory_gb: machine.gpu_memory_gb,
        machine: name.to_owned(),
        cpus: machine.cpus,
        memory_gb: machine.memory_gb,
        disk_gb: None,
        on_demand: Some(machine.price_per_hour(false)),
        spot: machine.price_per_hour(true),
        region: &table().region,
        zones: &[],
        date: &table().date,
    };
    table().all().map(offer).collect()
}

pub fn rights(plan: &AzuremlPlan) -> Rights {
    let network = if plan.public_address { "public addresses" } else { "no public addresses" };
    Rights { network: Some(network.to_owned()), service_account: Some(plan.identity.to_string()), ..Rights::default() }
}

/// The refusals of Azure ML, before any money is spent.
pub fn rules(spec: &AzuremlSpec) -> Vec<Rule> {
    let plan = AzuremlPlan::from(spec.clone());
    let serverless = plan.compute == Placement::Serverless;
    let pinned = spec.image.as_deref().is_none_or(|image| body::version(image).is_some());
    let mut rules = machine(spec, &plan);
    rules.extend([
        rule("compute.azureml.image", pinned, "image is given by its digest, name@sha256:..., so that every attempt runs the same"),
        rule("compute.azureml.cluster", !serverless || plan.cluster.is_none(), "a job has either a cluster or compute = \"serverless\", not both"),
        rule(
            "compute.azureml.tier",
            plan.tier.is_none() || (serverless && !plan.spot),
            "tier is for compute = \"serverless\" with spot = false; a spot machine has the tier of its own",
        ),
        rule(
            "compute.azureml.identity",
            !serverless || plan.identity != Identity::Managed,
            "without a cluster there is no identity of a cluster: write identity = \"user\", or the resource id of the workspace's user-assigned one",
        ),
        rule(
            "compute.azureml.public_address",
            !plan.public_address || (!serverless && plan.cluster.is_none()),
            "public_address is for ftctl's own cluster",
        ),
    ]);
    rules
}

/// Whether there is such a machine.
fn machine(spec: &AzuremlSpec, plan: &AzuremlPlan) -> Vec<Rule> {
    if let Some(why) = spec.size.as_deref().and_then(no_such_size) {
        return vec![rule("compute.azureml.size", false, why)];
    }
    let name = &plan.accelerator;
    if !table().accelerators.contains_key(name) {
        let known: Vec<&str> = table().accelerators.keys().map(String::as_str).collect();
        let message = format!("`{name}` is not an accelerator of this cloud: {}", known.join(", "));
        return vec![rule("compute.azureml.accelerator", false, message)];
    }
    let Some(machine) = plan.machine() else {
        let has = |(size, machine): (&str, &Machine)| format!("{size} ({} × {name})", machine.accelerators);
        let known: Vec<String> = table().with(name).map(has).collect();
        let message = format!("no size has {} {name}: there is {}", plan.accelerators, known.join(", "));
        return vec![rule("compute.azureml.accelerators", false, message)];
    };
    let has = format!("{} has {} {}", plan.size, machine.accelerators, machine.accelerator);
    vec![
        rule("compute.azureml.accelerator", machine.accelerator == *name, format!("{has}, no {name}")),
        rule(
            "compute.azureml.accelerators",
            machine.accelerators == plan.accelerators,
            format!("{has}, not {}", plan.accelerators),
        ),
    ]
}

fn no_such_size(size: &str) -> Option<String> {
    if let Some((name, retired)) = table().retired(size) {
        return Some(format!("Azure retired {name} on {}; the nearest size is {}", retired.date, described(&retired.nearest)));
    }
    let known: Vec<&str> = table().names().collect();
    table().size(size).is_none().then(|| format!("`{size}` is not a size with accelerators: {}", known.join(", ")))
}

fn described(size: &str) -> String {
    let machine = table().size(size).map(|(_, machine)| machine);
    machine.map_or_else(String::new, |machine| format!("{size} ({} × {})", machine.accelerators, machine.accelerator))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec() -> AzuremlSpec {
        AzuremlSpec::default()
    }

    fn sized(size: &str) -> AzuremlSpec {
        AzuremlSpec { size: Some(size.to_owned()), ..spec() }
    }

    fn with(accelerators: u32, accelerator: &str) -> AzuremlSpec {
        AzuremlSpec { accelerator: Some(accelerator.to_owned()), accelerators: Some(accelerators), ..spec() }
    }

    #[test]
    fn a_machine_is_found_by_what_it_has() {
        let size = |spec: AzuremlSpec| {
            assert!(rules(&spec).iter().all(|rule| rule.holds), "{spec:?}");
            AzuremlPlan::from(spec)
        };
        assert_eq!(size(spec()).size, "Standard_NC4as_T4_v3");
        assert_eq!(size(with(8, "v100")).size, "Standard_ND40rs_v2");
        let plan = size(sized("standard_nd40rs_V2"));
        assert_eq!((plan.size.as_str(), plan.accelerator.as_str(), plan.accelerators), ("Standard_ND40rs_v2", "v100", 8));
        assert_eq!(plan.listed_price(true).map(|price| price.micros), Some(4_406_400));
        assert_eq!(lasting_price(&plan).map(|price| price.micros), Some(22_032_000));
        assert_eq!(lasting_price(&AzuremlPlan { spot: false, ..plan }), None);
    }

    #[test]
    fn a_plan_is_the_same_in_a_users_spelling() {
        let serverless = AzuremlSpec { compute: Some(Placement::Serverless), ..sized("Standard_NC24ads_A100_v4") };
        for spec in [spec(), with(8, "a100"), serverless] {
            let plan = AzuremlPlan::from(spec);
            let again = AzuremlSpec::from(plan.clone());
            assert!(rules(&again).iter().all(|rule| rule.holds));
            assert_eq!(AzuremlPlan::from(again), plan);
        }
    }

    #[test]
    fn what_the_cloud_would_refuse_is_refused_before() {
        let refused = |spec: &AzuremlSpec| -> Vec<String> {
            rules(spec).into_iter().filter(|rule| !rule.holds).map(|rule| rule.message).collect()
        };
        let serverless = || AzuremlSpec { compute: Some(Placement::Serverless), ..spec() };
        let cluster = "gpu".parse().ok();
        for (spec, part) in [
            (
                sized("Standard_NC24rs_v3"),
                "retired Standard_NC24rs_v3 on 2025-09-30; the nearest size is Standard_ND40rs_v2 (8 × v100)",
            ),
            (sized("standard_nc6s_v3"), "on 2025-09-30"),
            (sized("Standard_D2_v2"), "`Standard_D2_v2` is not a size with accelerators: Standard_NC16as_T4_v3, "),
            (with(1, "v100"), "no size has 1 v100: there is Standard_ND40rs_v2 (8 × v100)"),
            (with(3, "t4"), "Standard_NC64as_T4_v3 (4 × t4)"),
            (with(1, "p100"), "`p100` is not an accelerator of this cloud: a100, a100-80gb, h100, t4, v100"),
            (AzuremlSpec { accelerators: Some(4), ..sized("Standard_ND40rs_v2") }, "has 8 v100, not 4"),
            (AzuremlSpec { accelerator: Some("t4".to_owned()), ..sized("Standard_ND40rs_v2") }, "has 8 v100, no t4"),
            (AzuremlSpec { image: Some("registry/ftctl:latest".to_owned()), ..spec() }, "image is given by its digest"),
            (AzuremlSpec { cluster: cluster.clone(), ..serverless() }, "either a cluster or compute"),
            (AzuremlSpec { tier: Some(Tier::Premium), ..spec() }, "tier is for compute"),
            (AzuremlSpec { tier: Some(Tier::Premium), ..serverless() }, "tier is for compute"),
            (AzuremlSpec { identity: Some(Identity::Managed), ..serverless() }, "no identity of a cluster"),
            (AzuremlSpec { public_address: Some(true), cluster, ..spec() }, "public_address is for"),
        ] {
            assert!(refused(&spec).iter().any(|message| message.contains(part)), "{part}: {:?}", refused(&spec));
        }
    }
}
