//! The cloud's advice on capacity, asked once for each region: where it expects a machine to be available, and to last.
//!
//! Zones are ranked by price / (obtainability × expected uptime). The price is the same everywhere in the table, so that the rest
//! decides. Obtainability is the service's likelihood, 0 to 1, that a machine is made; the uptime is how long most spot machines of
//! the kind run before they are taken away. Neither is a promise, and the service gives both for one zone of a region only: the one
//! it recommends.

use reqwest::Method;
use serde_json::{Value, json};

use super::{
    client::{Call, Client, last},
    quota::regions_of,
    refusal::Refusal,
};
use crate::job::{finding::Finding, gce::GcePlan, units::Span};

/// The expectation of a zone.
pub struct Outlook {
    zone: String,
    obtainability: f64,
    /// Seconds; absent for machines that are not preempted.
    uptime: Option<f64>,
}

impl Outlook {
    pub fn read(answer: &Value) -> Option<Self> {
        let best = &answer["recommendations"][0];
        let uptime = best["scores"]["estimatedUptime"].as_str().and_then(|text| text.trim_end_matches('s').parse().ok());
        let zone = last(&best["shards"][0]["zone"]).to_owned();
        Some(Self { zone, obtainability: best["scores"]["obtainability"].as_f64()?, uptime })
    }

    pub fn score(&self) -> f64 {
        self.obtainability * self.uptime.unwrap_or(1.0)
    }

    pub fn text(&self) -> String {
        let lasting = |seconds: f64| Span(std::time::Duration::from_secs(seconds.max(0.0) as u64));
        let uptime = self.uptime.map(|seconds| format!(" for {}", lasting(seconds))).unwrap_or_default();
        format!("{} {:.2}{uptime}", self.zone, self.obtainability)
    }
}

/// The plan's zones, best first: those that are recommended in their regions, then the others in their order. Also what was said.
pub async fn ranked(client: &Client, plan: &GcePlan) -> (Vec<String>, Finding) {
    let (mut outlooks, mut refusal) = (Vec::new(), None);
    for region in regions_of(plan) {
        match ask(client, plan, region).await {
            Ok(outlook) => outlooks.extend(outlook.filter(|outlook| plan.zones.contains(&outlook.zone))),
            Err(refused) => refusal = Some(refused),
        }
    }
    outlooks.sort_by(|one, other| other.score().total_cmp(&one.score()));
    let finding = match (refusal, outlooks.first()) {
        (_, Some(_)) => {
            let texts: Vec<String> = outlooks.iter().map(Outlook::text).collect();
            Finding::good("zones", format!("ranked by what is expected of them: {}", texts.join(", ")))
        }
        (refusal, None) => {
            let why = refusal.map_or_else(|| "the cloud recommends none".to_owned(), |refusal| refusal.message);
            Finding::notice("zones", format!("tried in the order of the plan: {why}"), "leave out compute.gce.rank_zones")
        }
    };
    let recommended: Vec<String> = outlooks.into_iter().map(|outlook| outlook.zone).collect();
    let others = plan.zones.iter().filter(|zone| !recommended.contains(zone)).cloned().collect();
    ([recommended, others].concat(), finding)
}

/// `None` when nothing is recommended.
async fn ask(client: &Client, plan: &GcePlan, region: &str) -> Result<Option<Outlook>, Refusal> {
    let here = plan.zones.iter().filter(|zone| crate::catalogue::region(zone) == region);
    let zones: Vec<Value> = here.map(|zone| json!({ "zone": format!("zones/{zone}") })).collect();
    let mut machine = json!({ "machineTypes": [plan.machine_type()] });
    if let Some(card) = plan.card().filter(|_| plan.machine_type.is_none()) {
        machine["guestAccelerators"] = json!([{ "acceleratorType": card.kind, "acceleratorCount": plan.accelerators }]);
    }
    let model = if plan.machine().spot { "SPOT" } else { "STANDARD" };
    let body = json!({
        "distributionPolicy": { "targetShape": "ANY_SINGLE_ZONE", "zones": zones },
        "instanceFlexibilityPolicy": { "instanceSelections": { "machine": machine } },
        "instanceProperties": { "scheduling": { "provisioningModel": model } },
        "size": 1,
    });
    let path = format!("regions/{region}/advice/capacity");
    let call = Call { method: Method::POST, path, query: Vec::new(), body: Some(body) };
    Ok(Outlook::read(&client.call(call).await?))
}
