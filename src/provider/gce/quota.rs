//! The project's quotas, and their used part.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{
    client::{Call, Client},
    refusal::Refusal,
    region,
};
use crate::{
    catalogue::{self, Accelerator, Machine},
    job::{finding::Finding, gce::GcePlan},
    provider::ProviderError,
};

const MORE: &str = "ask for more at https://console.cloud.google.com/iam-admin/quotas";

/// Whether the project can be asked, and its quota of each accelerator. Changes nothing.
pub async fn check(client: &Client) -> Vec<Finding> {
    match ask(client).await {
        Ok(findings) => findings,
        Err(refusal) => {
            let error = ProviderError::from(refusal);
            let fix = error.fix.unwrap_or_else(|| "check the network, and GOOGLE_CLOUD_PROJECT".to_owned());
            let name = if client.project.is_empty() { "none named" } else { &client.project };
            vec![Finding::bad("project", format!("{name}: {}", error.message), fix)]
        }
    }
}

async fn ask(client: &Client) -> Result<Vec<Finding>, Refusal> {
    let project = client.call(Call::get("")).await?;
    let mut findings = vec![Finding::good("project", client.project.clone())];
    let (used, limit) = quota(&project, "GPUS_ALL_REGIONS").unwrap_or_default();
    findings.push(if limit > used {
        Finding::good("quota", format!("{used} of {limit} GPUs are used in all regions together"))
    } else {
        Finding::bad("quota", format!("{used} of {limit} GPUs are used in all regions together: there can be no other"), MORE)
    });
    let everywhere = catalogue::gce().accelerators.values().flat_map(|accelerator| &accelerator.zones);
    let everywhere: BTreeSet<&str> = everywhere.map(|zone| region(zone)).collect();
    let seen = client.regions().await?;
    let regions: Vec<(&str, &Value)> = everywhere.into_iter().filter_map(|name| named(name, &seen)).collect();
    let accelerators = catalogue::gce().accelerators.iter();
    findings.extend(accelerators.map(|(name, accelerator)| of(name, accelerator, &regions)));
    Ok(findings)
}

/// A region, if this project sees it.
fn named<'n, 's>(name: &'n str, seen: &'s [Value]) -> Option<(&'n str, &'s Value)> {
    Some((name, seen.iter().find(|region| region["name"] == name)?))
}

/// The regions of a plan's zones, each once, in their order.
pub fn regions_of(plan: &GcePlan) -> Vec<&str> {
    let mut names: Vec<&str> = plan.zones.iter().map(|zone| region(zone)).collect();
    let mut seen = BTreeSet::new();
    names.retain(|name| seen.insert(*name));
    names
}

/// Whether this machine is within the project's quotas, in the regions of its zones. Changes nothing.
pub async fn room(client: &Client, plan: &GcePlan) -> Vec<Finding> {
    fits(client, plan).await.unwrap_or_else(|refusal| {
        let error = ProviderError::from(refusal);
        vec![Finding::notice("quota", format!("not known: {}", error.message), error.fix.unwrap_or_default())]
    })
}

async fn fits(client: &Client, plan: &GcePlan) -> Result<Vec<Finding>, Refusal> {
    let finding = |(fits, message): (bool, String)| {
        if fits { Finding::good("quota", message) } else { Finding::bad("quota", message, MORE) }
    };
    let project = client.call(Call::get("")).await?;
    let mut findings = vec![finding(held("all regions", &project, &[("GPUS_ALL_REGIONS".to_owned(), plan.accelerators)]))];
    let machine = plan.machine();
    let seen = client.regions().await?;
    let told = regions_of(plan).into_iter().filter_map(|name| named(name, &seen));
    let regions: Vec<(bool, String)> = told.map(|(name, quotas)| held(name, quotas, &counted(&machine, quotas))).collect();
    if regions.is_empty() {
        findings.push(Finding::bad("quota", "the project sees none of the regions", "name other zones in compute.gce.zones"));
    }
    let somewhere = regions.iter().any(|(fits, _)| *fits);
    findings.extend(regions.into_iter().map(|(fits, message)| match (fits, somewhere) {
        (false, true) => Finding::notice("quota", message, MORE),
        region => finding((region.0, message)),
    }));
    Ok(findings)
}

/// Spot machines have a quota of their own for vCPUs where the project was given one, and else count against the ordinary one.
fn counted(machine: &Machine<'_>, quotas: &Value) -> Vec<(String, u32)> {
    const SPOT_CPUS: &str = "PREEMPTIBLE_CPUS";
    let own = machine.spot && quota(quotas, SPOT_CPUS).is_some_and(|(_, limit)| limit > 0);
    let metric = |metric: String| if own && metric == "CPUS" { SPOT_CPUS.to_owned() } else { metric };
    machine.quotas().into_iter().map(|(name, amount)| (metric(name), amount)).collect()
}

/// Whether all of these amounts are within the quotas of a place, and how each stands. One that the service does not tell is no
/// hindrance.
pub fn held(place: &str, quotas: &Value, amounts: &[(String, u32)]) -> (bool, String) {
    let stand = |(metric, amount): &(String, u32)| match quota(quotas, metric) {
        Some((used, limit)) => {
            (used.saturating_add(u64::from(*amount)) <= limit, format!("{metric} {used} of {limit} used, {amount} needed"))
        }
        None => (true, format!("{metric}: limit unknown, {amount} needed")),
    };
    let (fits, texts): (Vec<bool>, Vec<String>) = amounts.iter().map(stand).unzip();
    let fits = fits.into_iter().all(|fits| fits);
    (fits, format!("{place}: {}{}", if fits { "" } else { "no room: " }, texts.join("; ")))
}

/// Spot and ordinary machines have quotas of their own.
fn of(name: &str, accelerator: &Accelerator, regions: &[(&str, &Value)]) -> Finding {
    let metrics = [("spot", format!("PREEMPTIBLE_{}", accelerator.quota)), ("ordinary", accelerator.quota.clone())];
    let allowed = regions.iter().flat_map(|(region, quotas)| {
        metrics.iter().filter_map(move |(kind, metric)| {
            let (used, limit) = quota(quotas, metric).filter(|(_, limit)| *limit > 0)?;
            Some(format!("{region} {used} of {limit} {kind}"))
        })
    });
    let allowed: Vec<String> = allowed.collect();
    if allowed.is_empty() {
        Finding::notice("quota", format!("{name}: none in any region"), MORE)
    } else {
        Finding::good("quota", format!("{name}: {} used", allowed.join(", ")))
    }
}

/// The used part of a quota, and its limit.
fn quota(of: &Value, metric: &str) -> Option<(u64, u64)> {
    let quota = of["quotas"].as_array()?.iter().find(|quota| quota["metric"] == metric)?;
    Some((quota["usage"].as_f64()? as u64, quota["limit"].as_f64()? as u64))
}
