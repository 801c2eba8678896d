//! The billing catalogue: the table's prices, times what the script says, among products that only look like parts of a machine.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{
    api::{Answer, Refusal, Request},
    cloud::{Cloud, Place},
};
use crate::catalogue::{self, Rates};

const COMPUTE_ENGINE: &str = "6F81-5844-456A";
/// Pages are smaller than a client may ask for.
const PAGE: usize = 50;

pub fn list(cloud: &mut Cloud, request: &Request, (_, service): &Place) -> Answer {
    if service != COMPUTE_ENGINE {
        return Err(Refusal::new(404, "notFound", format!("The service {service} is not in the catalogue.")));
    }
    let all = products(cloud.script.price_factor);
    let asked = |name: &str| request.query.get(name).and_then(|value| value.parse::<usize>().ok());
    let from = asked("pageToken").unwrap_or(0);
    let page: Vec<&Value> = all.iter().skip(from).take(asked("pageSize").unwrap_or(PAGE).min(PAGE)).collect();
    let next = from + page.len();
    let token = if next < all.len() { next.to_string() } else { String::new() };
    Ok(json!({ "skus": page, "nextPageToken": token }))
}

fn products(factor: f64) -> Vec<Value> {
    let regions: BTreeSet<&str> = Cloud::zones().into_iter().map(catalogue::region).collect();
    let of_part = |(part, rates): (&str, Rates), region: &str| {
        let (at, Rates { unit, standard, spot }) = (format!("running in {region}"), rates);
        let cheap = if part.ends_with("GPU") {
            format!("{part} attached to Spot Preemptible VMs {at}")
        } else {
            format!("Spot Preemptible {part} {at}")
        };
        let cheap = spot.map(|price| (cheap, "Preemptible", unit, price));
        let others = [
            (format!("{part} {at}"), "OnDemand", unit, standard),
            (format!("{part} {at}"), "OnDemand", "By", 9.0 * standard),
            (format!("{part} {at}"), "Commit1Yr", unit, 9.0 * standard),
            (format!("N2 {part} {at}"), "OnDemand", unit, 9.0 * standard),
        ];
        let all = others.into_iter().chain(cheap);
        all.map(|(description, usage, unit, price)| product(&description, region, usage, unit, price * factor)).collect::<Vec<_>>()
    };
    let rates: Vec<_> = catalogue::gce().rates().into_iter().collect();
    regions.iter().flat_map(|region| rates.iter().flat_map(|part| of_part(*part, region))).collect()
}

/// USD for a unit, of which the first are free.
fn product(description: &str, region: &str, usage: &str, unit: &str, price: f64) -> Value {
    let tier = |from: u32, price: f64| {
        let nanos = ((price - price.floor()) * 1e9).round();
        let price = json!({ "currencyCode": "USD", "units": format!("{}", price.floor()), "nanos": nanos as u64 });
        json!({ "startUsageAmount": from, "unitPrice": price })
    };
    json!({
        "description": description, "category": { "usageType": usage }, "serviceRegions": [region],
        "pricingInfo": [{ "pricingExpression": { "usageUnit": unit, "tieredRates": [tier(0, 0.0), tier(1, price)] } }],
    })
}
