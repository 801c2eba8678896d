//! The retail prices of virtual machines, among prices that only look like theirs.

use serde_json::{Value, json};

use super::{
    super::http::Reply,
    api::{Answer, Refusal, Request},
    service::Service,
    sizes::{SIZES, Size},
};

/// Entries of a list that come at once.
const PAGE: usize = 100;

pub fn list(service: &mut Service, request: &Request, _: [&str; 2]) -> Answer {
    let filter = request.query.get("$filter").map_or("", String::as_str);
    let wrong = || Refusal::new(400, "BadRequest", format!("The filter '{filter}' is not understood."));
    let here = &service.workspace.location;
    let mut found = Vec::new();
    for item in SIZES.iter().flat_map(|size| items(size, here, service.script.price_factor)) {
        if fits(filter, &item).ok_or_else(wrong)? {
            found.push(item);
        }
    }
    let from: usize = request.query.get("$skip").and_then(|skip| skip.parse().ok()).unwrap_or(0);
    let items: Vec<Value> = found.iter().skip(from).take(PAGE).cloned().collect();
    let next = (from + PAGE < found.len()).then(|| {
        let mut link = reqwest::Url::parse(&format!("{}{}", service.address, request.path)).ok()?;
        link.query_pairs_mut().append_pair("$filter", filter).append_pair("$skip", &(from + PAGE).to_string());
        Some(link.to_string())
    });
    Ok(Reply::json(
        200,
        &json!({
            "BillingCurrency": "USD", "CustomerEntityId": "Default", "CustomerEntityType": "Retail", "Items": items,
            "NextPageLink": next.flatten(), "Count": items.len(),
        }),
    ))
}

/// Linux, Windows, spot and low priority: only the first and the last are a cluster's.
fn items(size: &Size, region: &str, factor: f64) -> Vec<Value> {
    let short = size.name.trim_start_matches("Standard_").replace('_', " ");
    let family = size.family.trim_start_matches("standard").trim_end_matches("Family");
    let dollars = |low_priority: bool| size.price_per_hour(low_priority, factor).map(|price| price.micros as f64 / 1e6);
    let item = |suffix: &str, system: &str, kind: &str, price: f64| {
        let name = format!("{short}{suffix}");
        json!({
            "currencyCode": "USD", "tierMinimumUnits": 0.0, "retailPrice": price, "unitPrice": price, "armRegionName": region,
            "location": "US East", "effectiveStartDate": "2023-01-01T00:00:00Z", "meterId": "00000000-0000-0000-0000-000000000000",
            "meterName": name, "productId": "DZH318Z0BQ4N", "skuId": "DZH318Z0BQ4N/0001",
            "productName": format!("Virtual Machines {family} Series{system}"), "skuName": name, "serviceName": "Virtual Machines",
            "serviceId": "DZH313Z7MMC8", "serviceFamily": "Compute", "unitOfMeasure": "1 Hour", "type": kind,
            "isPrimaryMeterRegion": true, "armSkuName": size.name,
        })
    };
    let dedicated = dollars(false).unwrap_or_default();
    let low_priority = dollars(true);
    let mut items = vec![
        item("", " Windows", "Consumption", dedicated * 1.5),
        item(" Spot", "", "Consumption", dedicated * 0.3),
        item("", "", "Reservation", dedicated * 5_000.0),
        item("", "", "DevTestConsumption", dedicated),
        item("", "", "Consumption", dedicated),
    ];
    items.extend(low_priority.map(|price| item(" Low Priority", " Windows", "Consumption", price * 2.0)));
    items.extend(low_priority.map(|price| item(" Low Priority", "", "Consumption", price)));
    items
}

/// Comparisons with `eq` and `contains`, joined by `and` and `or`; `None` is no such filter.
fn fits(filter: &str, item: &Value) -> Option<bool> {
    let filter = filter.trim();
    if filter.is_empty() {
        return Some(true);
    }
    for (word, any) in [(" or ", true), (" and ", false)] {
        if let Some((left, right)) = split(filter, word) {
            let (left, right) = (fits(left, item)?, fits(right, item)?);
            return Some(if any { left || right } else { left && right });
        }
    }
    if let Some(inner) = filter.strip_prefix('(').and_then(|rest| rest.strip_suffix(')')) {
        return fits(inner, item);
    }
    let text = |value: &str| value.trim().strip_prefix('\'')?.strip_suffix('\'').map(str::to_owned);
    let field = |name: &str| item[if name.trim() == "priceType" { "type" } else { name.trim() }].as_str().map(str::to_owned);
    if let Some(inner) = filter.strip_prefix("contains(").and_then(|rest| rest.strip_suffix(')')) {
        let (name, value) = inner.split_once(',')?;
        return Some(field(name)?.contains(&text(value)?));
    }
    let (name, value) = filter.split_once(" eq ")?;
    Some(field(name)? == text(value)?)
}

/// At the first such word that stands outside of quotes and parentheses.
fn split<'f>(filter: &'f str, word: &str) -> Option<(&'f str, &'f str)> {
    let (mut depth, mut quoted) = (0, false);
    for (at, c) in filter.char_indices() {
        match c {
            '\'' => quoted = !quoted,
            '(' if !quoted => depth += 1,
            ')' if !quoted => depth -= 1,
            ' ' if !quoted && depth == 0 && filter[at..].starts_with(word) => {
                return Some((&filter[..at], &filter[at + word.len()..]));
            }
            _ => {}
        }
    }
    None
}
