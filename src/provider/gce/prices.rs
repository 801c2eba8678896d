//! Today's prices of machines: the billing catalogue of Google Cloud, read once a day. Where it cannot be asked, or does not sell
//! every part of a machine alone, the dated table in `templates/gce/machines.toml` counts.
//!
//! The catalogue has no machines, only parts: a vCPU, a GB of memory, a GPU, a GB of disk, each with a description for people and
//! the regions where it is sold for that price. A part is taken when its description, its unit and its kind of use are exactly
//! those of the table, so that a new name for something leads to the table and not to a wrong price.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use jiff::Timestamp;
use reqwest::Method;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::time::timeout;

use super::{
    super::disk,
    client::{Call, Client},
    quota::regions_of,
    refusal::Refusal,
};
use crate::{
    catalogue::{self, Machine},
    job::{gce::GcePlan, plan::Price, units::Money},
};

const SCHEMA: &str = "ftctl.prices/1";
/// Compute Engine's products.
const PATH: &str = "/v1/services/6F81-5844-456A/skus";
/// Some 30,000 products are listed; of each no more is sent than this.
const FIELDS: &str = "nextPageToken,skus(description,category/usageType,serviceRegions,pricingInfo/pricingExpression)";
const PAGE: &str = "5000";
/// So long is waited for all pages.
const LIMIT: Duration = Duration::from_secs(60);
/// The service itself tells prices that are half a day old.
const FRESH: Duration = Duration::from_secs(24 * 3_600);

/// Prices of machines' parts, by the name of the part and by region.
#[derive(Debug, Serialize, Deserialize)]
pub struct PriceList {
    schema: String,
    /// Whom it is from.
    endpoint: String,
    read: Timestamp,
    parts: BTreeMap<String, BTreeMap<String, Rates>>,
}

/// USD for a unit.
#[derive(Debug, Default, Clone, Copy, Serialize, Deserialize)]
struct Rates {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    standard: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    spot: Option<f64>,
}

/// The list that was read last, where it is kept.
pub struct Kept(pub Option<PathBuf>);

impl Kept {
    /// `None` when there is none of this service.
    pub fn list(&self, client: &Client) -> Option<PriceList> {
        let list: PriceList = disk::kept_json(self.0.as_ref()?)?;
        (list.schema == SCHEMA && list.endpoint == client.billing).then_some(list)
    }

    fn keep(&self, list: &PriceList) {
        if let Some(path) = &self.0 {
            disk::keep_json(path, list);
        }
    }

    async fn current(&self, client: &Client, now: Timestamp) -> Result<PriceList, Refusal> {
        let is_fresh = |list: &PriceList| list.read <= now && now.duration_since(list.read) < FRESH.try_into().unwrap_or_default();
        if let Some(list) = self.list(client).filter(is_fresh) {
            return Ok(list);
        }
        let late = |_| Refusal::lost("read the billing catalogue", &format!("no end after {} s", LIMIT.as_secs()));
        let list = timeout(LIMIT, PriceList::read(client, now)).await.map_err(late)??;
        self.keep(&list);
        Ok(list)
    }

    /// The price of an hour of the plan's machine in the dearest of its regions: the region is not known before the machine is
    /// made.
    pub async fn price(&self, client: &Client, plan: &GcePlan, now: Timestamp) -> Price {
        let (machine, lasting) = (plan.machine(), plan.lasting_machine());
        let date = plan.card().map_or("", |card| card.date.as_str());
        let listed = |why: &str| Price {
            per_hour: plan.price_per_hour(),
            lasting: lasting.map(|machine| catalogue::gce().price_per_hour(&machine)),
            source: Some(format!("price list of {date} for {}{why}", catalogue::REGION)),
        };
        let sold_alone = catalogue::gce().parts(&machine).iter().all(|part| part.sku.is_some());
        if !sold_alone || client.signed_in().await.is_err() {
            return listed("");
        }
        let list = match self.current(client, now).await {
            Ok(list) => list,
            Err(refusal) => return listed(&format!(" (the billing catalogue could not be read: {})", refusal.message)),
        };
        let everywhere = regions_of(plan).into_iter();
        let Some((per_hour, region)) = everywhere.filter_map(|region| Some((list.price_per_hour(&machine, region)?, region))).max()
        else {
            return listed(" (the billing catalogue does not have all of it)");
        };
        let day = list.read.strftime("%Y-%m-%d");
        Price {
            per_hour,
            lasting: lasting.and_then(|machine| list.price_per_hour(&machine, region)),
            source: Some(format!("billing catalogue of {day} for {region}, the dearest of its regions")),
        }
    }
}

impl PriceList {
    async fn read(client: &Client, now: Timestamp) -> Result<Self, Refusal> {
        let mut list = Self::empty(client.billing.clone(), now);
        let query = [("currencyCode", "USD"), ("pageSize", PAGE), ("fields", FIELDS)].map(|(name, value)| (name, value.to_owned()));
        let call = Call { method: Method::GET, path: PATH.to_owned(), query: query.into(), body: None };
        let pages = client.pages(call, |answer| {
            list.take(answer);
            Ok(())
        });
        pages.await?;
        Ok(list)
    }

    pub fn empty(endpoint: String, now: Timestamp) -> Self {
        Self { schema: SCHEMA.to_owned(), endpoint, read: now, parts: BTreeMap::new() }
    }

    /// Takes what is wanted of a page of products.
    pub fn take(&mut self, page: &Value) {
        let wanted = catalogue::gce().rates();
        for sku in page["skus"].as_array().into_iter().flatten() {
            self.add(sku, &wanted);
        }
    }

    /// Takes a product if it is a part of machines that is wanted. The dearer of two prices for the same part counts.
    fn add(&mut self, sku: &Value, wanted: &BTreeMap<&str, catalogue::Rates>) -> Option<()> {
        let name = part_of(sku["description"].as_str()?);
        let unit = wanted.get(name)?.unit;
        let pricing = &sku["pricingInfo"].as_array()?.last()?["pricingExpression"];
        if pricing["usageUnit"] != unit {
            return None;
        }
        // The first units of a disk are free of charge, once in a project.
        let price = pricing["tieredRates"].as_array()?.iter().filter_map(unit_price).fold(0.0, f64::max);
        for region in sku["serviceRegions"].as_array()?.iter().filter_map(Value::as_str) {
            let rates = self.parts.entry(name.to_owned()).or_default().entry(region.to_owned()).or_default();
            let rate = match sku["category"]["usageType"].as_str()? {
                "OnDemand" => &mut rates.standard,
                "Preemptible" => &mut rates.spot,
                _ => return None,
            };
            *rate = Some(rate.unwrap_or(0.0).max(price)).filter(|price| *price > 0.0);
        }
        Some(())
    }

    /// `None` when a part of the machine is not sold in the region.
    pub fn price_per_hour(&self, machine: &Machine<'_>, region: &str) -> Option<Money> {
        let price = |part: &catalogue::Part<'_>| {
            let rates = self.parts.get(part.sku?)?.get(region)?;
            Some(part.amount * if part.spot { rates.spot } else { rates.standard }?)
        };
        Some(Money::from_dollars(catalogue::gce().parts(machine).iter().map(price).sum::<Option<f64>>()?))
    }
}

/// The part that a description sells, such as "Spot Preemptible Custom Instance Core running in Americas", "Nvidia Tesla V100 GPU
/// attached to Spot Preemptible VMs running in Iowa" or "Storage PD Capacity in Tokyo".
fn part_of(description: &str) -> &str {
    let part = description.split(" running in ").next().unwrap_or_default();
    let part = part.split(" in ").next().unwrap_or_default();
    let part = ["Spot Preemptible ", "Preemptible "].iter().find_map(|prefix| part.strip_prefix(prefix)).unwrap_or(part);
    part.strip_suffix(" attached to Spot Preemptible VMs").unwrap_or(part)
}

/// Units are whole dollars, as text; nanos the rest.
fn unit_price(tier: &Value) -> Option<f64> {
    let price = &tier["unitPrice"];
    if price["currencyCode"] != "USD" {
        return None;
    }
    let units: f64 = price["units"].as_str().unwrap_or("0").parse().ok()?;
    Some(units + price["nanos"].as_f64().unwrap_or(0.0) / 1e9)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptions_are_what_is_sold_and_where() {
        for (description, part) in [
            ("Spot Preemptible Custom Instance Core running in Americas", "Custom Instance Core"),
            ("Custom Instance Ram running in Netherlands", "Custom Instance Ram"),
            ("Nvidia Tesla V100 GPU attached to Spot Preemptible VMs running in Taiwan", "Nvidia Tesla V100 GPU"),
            ("Nvidia Tesla V100 GPU running in Americas", "Nvidia Tesla V100 GPU"),
            ("Storage PD Capacity", "Storage PD Capacity"),
            ("Storage PD Capacity in Tokyo", "Storage PD Capacity"),
            ("Commitment v1: Nvidia Tesla V100 GPU running in Americas for 1 Year", "Commitment v1: Nvidia Tesla V100 GPU"),
            ("Custom Extended Instance Ram running in Americas", "Custom Extended Instance Ram"),
            ("N2 Custom Instance Core running in Americas", "N2 Custom Instance Core"),
        ] {
            assert_eq!(part_of(description), part);
        }
    }
}
