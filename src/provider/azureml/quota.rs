//! The subscription's quotas for Azure ML in the workspace's region, and their used part.

use serde_json::Value;

use super::{
    client::Client,
    cluster,
    refusal::{MORE, Refusal},
};
use crate::{
    catalogue::azureml::Size,
    job::{
        azureml::{AzuremlPlan, Cluster, IDLE, Placement},
        finding::Finding,
        units::Span,
    },
    provider::{Class, ProviderError},
};

const WHAT: &str = "quota";
/// How a quota is seen that the user may not read.
const SHOWN_BY: &str = "ask for the role Reader on the subscription to see it; a job runs without that";

/// Used and limit in vCPUs; a limit below zero is none.
type Stand = (i64, i64);

/// Whether the workspace can be asked, and what its region allows. Changes nothing.
pub async fn check(client: &Client) -> Vec<Finding> {
    let place = match client.place() {
        Ok(place) => place,
        Err(error) => return vec![Finding::bad("workspace", error.message, error.fix.unwrap_or_default())],
    };
    let named = format!("{} of {} (by {})", place.workspace, place.resource_group, place.origin);
    match client.region().await {
        Ok(region) => vec![Finding::good("workspace", format!("{named} in {region}")), limits(client).await],
        Err(refusal) => {
            let error = ProviderError::from(refusal);
            let fix = error.fix.unwrap_or_else(|| "check the network, and the workspace's name".to_owned());
            vec![Finding::bad("workspace", format!("{named}: {}", error.message), fix)]
        }
    }
}

/// A quota that cannot be read is no reason to refuse a job: where it is used up, the service says so.
fn unknown(refusal: Refusal) -> Finding {
    let error = ProviderError::from(refusal);
    let fix = if error.class == Class::Denied { SHOWN_BY.to_owned() } else { error.fix.unwrap_or_default() };
    Finding::notice(WHAT, format!("not known: {}", error.message), fix)
}

/// The quotas of the workspace's region for machines with accelerators.
async fn limits(client: &Client) -> Finding {
    let usages = match usages(client).await {
        Ok(usages) => usages,
        Err(refusal) => return unknown(refusal),
    };
    let low = low_priority(&usages).map(|stand| format!("low priority, all sizes: {}", told(stand)));
    let families = usages.iter().filter_map(|usage| {
        let stand @ (_, limit) = stand(usage)?;
        let name = usage["name"]["localizedValue"].as_str().filter(|_| limit != 0 && is_gpu_family(usage))?;
        Some(format!("{name}: {}", told(stand)))
    });
    let all: Vec<String> = low.into_iter().chain(families).collect();
    if all.is_empty() {
        Finding::notice(WHAT, "none for any machine with an accelerator", MORE)
    } else {
        Finding::good(WHAT, all.join("; "))
    }
}

/// Whether so many of this machine are within the quotas of the region, or at least the second number. `free` of the used ones are
/// held for a cluster that the job will have. Changes nothing.
pub async fn room(client: &Client, plan: &AzuremlPlan, nodes: [u32; 2], free: u32) -> Vec<Finding> {
    let Some(machine) = plan.machine() else { return Vec::new() };
    fits(client, plan, machine, nodes, free).await.unwrap_or_else(|refusal| {
        let error = ProviderError::from(refusal);
        vec![Finding::notice(WHAT, format!("not known: {}", error.message), error.fix.unwrap_or_default())]
    })
}

async fn fits(client: &Client, plan: &AzuremlPlan, machine: &Size, nodes: [u32; 2], free: u32) -> Result<Vec<Finding>, Refusal> {
    let region = client.region().await?;
    if let Some(cluster) = plan.cluster.as_ref().filter(|_| plan.compute == Placement::Cluster) {
        return named(client, cluster, plan, nodes).await;
    }
    let usages = match usages(client).await {
        Ok(usages) => usages,
        Err(refusal) => return Ok(vec![unknown(refusal)]),
    };
    Ok(vec![judged(&usages, &region, plan.spot, machine, nodes, free)])
}

/// Whether so many nodes of a machine, or at least the second number of them, are within the quotas that a region tells.
pub fn judged(usages: &[Value], region: &str, spot: bool, machine: &Size, nodes: [u32; 2], free: u32) -> Finding {
    let (name, stand) = if spot {
        ("low-priority vCPUs of all sizes", low_priority(usages))
    } else {
        ("vCPUs of its family", dedicated(usages, machine))
    };
    let [needed, least, held] = [nodes[0], nodes[1], free].map(|nodes| i64::from(machine.cpus) * i64::from(nodes));
    let stand = stand.map(|(used, limit)| (used.saturating_sub(held).max(0), limit));
    let name = if held > 0 { format!("{name}, without {held} of the job's own cluster") } else { name.to_owned() };
    match stand {
        None => Finding::notice(WHAT, format!("{region}: {name}: limit unknown, {needed} needed"), MORE),
        Some((used, limit)) if limit >= 0 && used.saturating_add(needed) > limit => {
            let stands = format!("{name}: {used} of {limit} used, {needed} needed");
            if used.saturating_add(least) <= limit {
                Finding::notice(WHAT, format!("{region}: room for fewer nodes: {stands} for all"), MORE)
            } else {
                Finding::bad(WHAT, format!("{region}: no room: {stands}"), MORE)
            }
        }
        Some(stand) => Finding::good(WHAT, format!("{region}: {name}: {}, {needed} needed", told(stand))),
    }
}

/// Whether the cluster that a plan names is there, and has so many of such machines; and whether it keeps them longer than is
/// reckoned, or always.
async fn named(client: &Client, cluster: &Cluster, plan: &AzuremlPlan, nodes: [u32; 2]) -> Result<Vec<Finding>, Refusal> {
    let what = "cluster";
    let Some(found) = client.find(&["computes", cluster.as_str()]).await? else {
        return Ok(vec![Finding::bad(what, format!("there is no cluster {cluster}"), "correct compute.azureml.cluster")]);
    };
    if let Err(error) = cluster::fits(&found, cluster, plan) {
        return Ok(vec![Finding::bad(what, error.message, error.fix.unwrap_or_default())]);
    }
    let narrow = cluster::limit(&found).filter(|limit| *limit < nodes[0]).map(|limit| {
        let message = format!("the cluster {cluster} has a maximum of {limit}, and the job wants {} nodes", nodes[0]);
        let fix = "raise the cluster's maximum number of nodes in the studio, or lower compute.nodes";
        if limit < nodes[1] { Finding::bad(what, message, fix) } else { Finding::notice(what, message, fix) }
    });
    let state = cluster::unusual_state(&found).map(|state| {
        Finding::notice(what, format!("{cluster} is {state}: nodes may not come"), "look at the cluster in the studio")
    });
    let good = Finding::good(what, format!("{cluster} of {}, {}", plan.size, plan.priority()));
    let longer = cluster::idle(&found).filter(|idle| *idle > IDLE).map(|idle| {
        let [idle, reckoned] = [idle, IDLE].map(Span);
        let what_it_costs = format!("a node of {cluster} stays for {idle} after its job; the ceiling counts {reckoned} of that");
        Finding::notice(what, what_it_costs, format!("set the cluster's idle time before scale down to {reckoned} in the studio"))
    });
    let always = cluster::least(&found).map(|least| {
        let message = format!("{cluster} keeps {least} of its nodes at all times, and they bill with or without a job");
        Finding::notice(what, message, "set the cluster's minimum number of nodes to 0 in the studio")
    });
    Ok([narrow.unwrap_or(good)].into_iter().chain(state).chain(longer).chain(always).collect())
}

/// The subscription's own, without those of single workspaces and clusters.
async fn usages(client: &Client) -> Result<Vec<Value>, Refusal> {
    let mut usages = client.list(client.in_region("usages").await?).await?;
    usages.retain(|usage| !usage["id"].as_str().unwrap_or_default().contains("/workspaces/"));
    Ok(usages)
}

fn stand(usage: &Value) -> Option<Stand> {
    Some((usage["currentValue"].as_i64()?, usage["limit"].as_i64()?))
}

fn told((used, limit): Stand) -> String {
    if limit < 0 { format!("{used} used, without a limit") } else { format!("{used} of {limit} used") }
}

/// The name of a quota without what the service spells now one way, now another.
fn plainly(text: &str) -> String {
    text.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase()).collect()
}

fn names(usage: &Value) -> [String; 2] {
    ["value", "localizedValue"].map(|key| plainly(usage["name"][key].as_str().unwrap_or_default()))
}

fn find(usages: &[Value], is_meant: impl Fn(&str) -> bool) -> Option<Stand> {
    usages.iter().find(|usage| names(usage).iter().any(|name| is_meant(name))).and_then(stand)
}

fn low_priority(usages: &[Value]) -> Option<Stand> {
    find(usages, |name| name.starts_with("total") && name.contains("lowpriority"))
}

fn dedicated(usages: &[Value], machine: &Size) -> Option<Stand> {
    let families: Vec<String> = machine.families.iter().map(|family| plainly(&format!("Standard{family}Family"))).collect();
    find(usages, |name| !name.contains("lowpriority") && families.iter().any(|family| name.starts_with(family.as_str())))
}

fn is_gpu_family(usage: &Value) -> bool {
    let is_gpus =
        |name: &String| ["standardnc", "standardnd"].iter().any(|begin| name.starts_with(begin)) && !name.contains("lowpriority");
    names(usage).iter().any(is_gpus)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::catalogue::azureml::table;

    #[test]
    fn a_quota_is_known_by_each_of_its_spellings() {
        let usage = |value: &str, label: &str, limit: i64| json!({ "currentValue": 2, "limit": limit, "name": { "value": value, "localizedValue": label } });
        let (_, machine) = table().size("Standard_ND40rs_v2").expect("known");
        let label = "Standard NDv2 Family Cluster Dedicated vCPUs";
        let low = "Total Cluster LowPriority Regional vCPUs";
        let usages = [
            usage("Standard NDv2 Family Cluster LowPriority vCPUs", "Standard NDv2 Family Cluster LowPriority vCPUs", -1),
            usage("Standard ND Family Cluster Dedicated vCPUs", "Standard ND Family Cluster Dedicated vCPUs", 7),
            usage(label, label, 48),
            usage(low, low, 50),
        ];
        assert_eq!((dedicated(&usages, machine), low_priority(&usages)), (Some((2, 48)), Some((2, 50))));
        let other = [usage("standardNDSv2Family", "x", 40), usage("TotalLowPriorityCores", "x", 100)];
        assert_eq!((dedicated(&other, machine), low_priority(&other)), (Some((2, 40)), Some((2, 100))));
        assert_eq!((dedicated(&[], machine), low_priority(&[json!(7)])), (None, None));
        assert!(is_gpu_family(&usages[1]) && !is_gpu_family(&usages[0]));
        assert_eq!(told((2, -1)), "2 used, without a limit");
    }
}
