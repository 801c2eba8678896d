//! `advice.capacity`: which zone of a region is recommended for a machine. The expectation is the script's own, or follows from
//! what it will do.

use std::time::Duration;

use serde_json::{Value, json};

use super::{
    api::{Answer, Refusal, Request, not_found},
    cloud::{Cloud, Place},
    instance::last,
    script::Outlook,
};
use crate::{
    catalogue::{self, Machine},
    job::units::Span,
};

/// Nothing is expected to fail in a simulation without a script.
const DAY: Span = Span(Duration::from_secs(86_400));

pub fn capacity(cloud: &mut Cloud, request: &Request, (_, region): &Place) -> Answer {
    if !Cloud::zones().iter().any(|zone| catalogue::region(zone) == region) {
        return Err(not_found(cloud, &format!("regions/{region}")));
    }
    let selections = request.body["instanceFlexibilityPolicy"]["instanceSelections"].as_object();
    let selection = selections.and_then(|selections| selections.values().next()).unwrap_or(&Value::Null);
    let kind = selection["machineTypes"][0].as_str().unwrap_or_default();
    let card = &selection["guestAccelerators"][0];
    let cards = Some((last(&card["acceleratorType"]), 1));
    let Some((accelerator, _)) = Machine::described(kind, cards, 0, false).accelerator else {
        return Err(Refusal::new(400, "invalid", format!("Advice on the machine type '{kind}' is not available.")));
    };
    let model = &request.body["instanceProperties"]["scheduling"]["provisioningModel"];
    let wanted: Vec<&str> =
        request.body["distributionPolicy"]["zones"].as_array().into_iter().flatten().map(|zone| last(&zone["zone"])).collect();
    let outlook = |zone: &str| {
        let out = cloud.script.stock_outs.iter().any(|out| out == zone);
        let unnamed = Outlook { obtainability: if out { 0.0 } else { 1.0 }, uptime: DAY };
        cloud.script.outlooks.get(zone).copied().unwrap_or(unnamed)
    };
    let score = |zone: &str| outlook(zone).obtainability * outlook(zone).uptime.0.as_secs_f64();
    let here = accelerator
        .zones
        .iter()
        .filter(|zone| catalogue::region(zone) == region && (wanted.is_empty() || wanted.contains(&zone.as_str())));
    // Of equals the first.
    let best = here.reduce(|best, zone| if score(zone) > score(best) { zone } else { best });
    let Some(zone) = best else { return Ok(json!({ "recommendations": [] })) };
    let mut scores = json!({ "obtainability": outlook(zone).obtainability });
    if model == "SPOT" {
        scores["estimatedUptime"] = json!(format!("{}s", outlook(zone).uptime.0.as_secs()));
    }
    let shard = json!({
        "zone": format!("{}/zones/{zone}", cloud.base()), "machineType": kind, "instanceCount": 1, "provisioningModel": model,
    });
    Ok(json!({ "recommendations": [{ "scores": scores, "shards": [shard] }] }))
}
