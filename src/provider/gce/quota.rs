//! How many accelerators the project may have, and where.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{
    client::{Call, Client},
    refusal::Refusal,
    region,
};
use crate::job::{
    catalogue::{self, Accelerator},
    finding::Finding,
};

const MORE: &str = "ask for more at https://console.cloud.google.com/iam-admin/quotas";

/// Whether the project can be asked, and what of each accelerator it allows. Changes nothing.
pub async fn check(client: &Client) -> Vec<Finding> {
    match ask(client).await {
        Ok(findings) => findings,
        Err(refusal) => {
            let error = super::super::ProviderError::from(refusal);
            let fix = error.fix.unwrap_or_else(|| "check the network, and GOOGLE_CLOUD_PROJECT".to_owned());
            vec![Finding::bad("project", format!("{}: {}", client.project, error.message), fix)]
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
    let mut regions = Vec::new();
    let everywhere = catalogue::gce().accelerators.values().flat_map(|accelerator| &accelerator.zones);
    for name in everywhere.map(|zone| region(zone)).collect::<BTreeSet<_>>() {
        match client.call(Call::get(format!("regions/{name}"))).await {
            // One that this project does not see.
            Err(refusal) if refusal.is_absent() => {}
            region => regions.push((name, region?)),
        }
    }
    let accelerators = catalogue::gce().accelerators.iter();
    findings.extend(accelerators.map(|(name, accelerator)| of(name, accelerator, &regions)));
    Ok(findings)
}

/// Spot and ordinary machines have quotas of their own.
fn of(name: &str, accelerator: &Accelerator, regions: &[(&str, Value)]) -> Finding {
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

/// What is used of a quota, and its limit.
fn quota(of: &Value, metric: &str) -> Option<(u64, u64)> {
    let quota = of["quotas"].as_array()?.iter().find(|quota| quota["metric"] == metric)?;
    Some((quota["usage"].as_f64()? as u64, quota["limit"].as_f64()? as u64))
}
