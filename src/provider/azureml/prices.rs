//! Today's prices of machines: Azure's public retail price service, asked once a day for each size and region. Where it cannot be
//! asked, or does not sell a size, the dated table in `templates/azureml/sizes.toml` counts.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use jiff::Timestamp;
use reqwest::Url;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::super::{
    Result, disk,
    line::{self, SHORT_ANSWER},
};
use crate::{
    catalogue::azureml::table,
    job::{azureml::AzuremlPlan, plan::Price, units::Money},
};

const SCHEMA: &str = "ftctl.prices-azureml/1";
const PUBLIC: &str = "https://prices.azure.com";
const FRESH: Duration = Duration::from_secs(24 * 3_600);
/// One size in one region has a dozen prices.
const LARGEST_ANSWER: usize = 1 << 20;

/// The last answers, as they are kept in a file.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Kept {
    schema: String,
    /// Whom it is from.
    endpoint: String,
    /// By region and size.
    rates: BTreeMap<String, Rates>,
}

/// USD per hour of one size in one region.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Rates {
    read: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    dedicated: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    low_priority: Option<f64>,
}

impl Rates {
    fn of(&self, spot: bool) -> Option<Money> {
        if spot { self.low_priority } else { self.dedicated }.map(Money::from_dollars)
    }
}

pub struct Prices {
    endpoint: Url,
    line: reqwest::Client,
    path: Option<PathBuf>,
}

impl Prices {
    /// `endpoint` is the address of the service where that is not the public one; `path` is the file that keeps its answers. It is
    /// told no secret.
    pub fn new(endpoint: Option<String>, path: Option<PathBuf>) -> Result<Self> {
        let endpoint = endpoint.unwrap_or_else(|| PUBLIC.to_owned());
        let line = line::open(&endpoint, SHORT_ANSWER, "FTCTL_ENDPOINT_AZURE_PRICES")?;
        let url = Url::parse(&endpoint).map_err(|error| {
            super::super::ProviderError::new(super::super::Class::Invalid, format!("FTCTL_ENDPOINT_AZURE_PRICES: {error}"))
        })?;
        Ok(Self { endpoint: url, line, path })
    }

    /// The price of an hour of the plan's machine; by the table where `region` is not known, or the service does not tell.
    pub async fn price(&self, plan: &AzuremlPlan, region: Option<&str>, now: Timestamp) -> Price {
        let listed = |why: &str| Price {
            per_hour: plan.listed_price(plan.spot).unwrap_or_default(),
            lasting: plan.listed_price(false).filter(|_| plan.spot),
            source: Some(format!("price list of {} for {}{why}", table().date, table().region)),
        };
        let Some(region) = region else { return listed("") };
        let rates = match self.current(region, &plan.size, now).await {
            Ok(rates) => rates,
            Err(why) => return listed(&format!(" (the price service could not be read: {why})")),
        };
        let Some(per_hour) = rates.of(plan.spot) else {
            return listed(&format!(" (the price service does not sell it in {region})"));
        };
        let day = rates.read.strftime("%Y-%m-%d");
        let lasting = rates.of(false).filter(|_| plan.spot);
        Price { per_hour, lasting, source: Some(format!("Azure's retail prices of {day} for {region}")) }
    }

    /// The price of an hour of a size that was asked for before; by the table otherwise, zero for a size that is in neither.
    pub fn known(&self, region: &str, size: &str, spot: bool) -> Money {
        let told = self.kept().and_then(|kept| kept.rates.get(&key(region, size))?.of(spot));
        let listed = || table().size(size).map(|(_, machine)| machine.price_per_hour(spot));
        told.or_else(listed).unwrap_or_default()
    }

    fn kept(&self) -> Option<Kept> {
        let kept: Kept = disk::kept_json(self.path.as_ref()?)?;
        (kept.schema == SCHEMA && kept.endpoint == self.endpoint.as_str()).then_some(kept)
    }

    async fn current(&self, region: &str, size: &str, now: Timestamp) -> Result<Rates, String> {
        let key = key(region, size);
        let mut kept = self.kept().unwrap_or_default();
        let is_fresh = |rates: &&Rates| rates.read <= now && now.duration_since(rates.read) < FRESH.try_into().unwrap_or_default();
        if let Some(rates) = kept.rates.get(&key).filter(is_fresh) {
            return Ok(*rates);
        }
        let rates = rates(&self.ask(region, size).await?, region, size, now);
        if let Some(path) = &self.path {
            (kept.schema, kept.endpoint) = (SCHEMA.to_owned(), self.endpoint.to_string());
            kept.rates.insert(key, rates);
            disk::keep_json(path, &kept);
        }
        Ok(rates)
    }

    async fn ask(&self, region: &str, size: &str) -> Result<Value, String> {
        let mut url = self.endpoint.clone();
        url.set_path("/api/retail/prices");
        let filter = format!("armRegionName eq '{region}' and armSkuName eq '{size}' and priceType eq 'Consumption'");
        url.query_pairs_mut().append_pair("$filter", &filter);
        let answer = self.line.get(url).send().await.map_err(|error| error.without_url().to_string())?;
        if !answer.status().is_success() {
            return Err(format!("it answered {}", answer.status().as_u16()));
        }
        let bytes = line::body(answer, LARGEST_ANSWER).await?;
        serde_json::from_slice(&bytes).map_err(|error| error.to_string())
    }
}

/// A cluster may spell its size otherwise than the job that it was made for.
fn key(region: &str, size: &str) -> String {
    format!("{region}/{size}").to_ascii_lowercase()
}

/// The rates in an answer: those for an hour of Linux in exactly this size and region, in dollars. The dearer of two counts.
pub fn rates(answer: &Value, region: &str, size: &str, now: Timestamp) -> Rates {
    let mut rates = Rates { read: now, dedicated: None, low_priority: None };
    for item in answer["Items"].as_array().into_iter().flatten() {
        let text = |key: &str| item[key].as_str().unwrap_or_default();
        let fits = text("armRegionName") == region
            && text("armSkuName").eq_ignore_ascii_case(size)
            && text("serviceName") == "Virtual Machines"
            && text("type") == "Consumption"
            && text("currencyCode") == "USD"
            && text("unitOfMeasure") == "1 Hour"
            && !text("productName").contains("Windows")
            // Spot machines are of plain virtual machines alone.
            && !text("skuName").contains("Spot");
        let price = item["retailPrice"].as_f64().filter(|price| fits && *price > 0.0 && *price < 1e6);
        let rate = if text("skuName").contains("Low Priority") { &mut rates.low_priority } else { &mut rates.dedicated };
        *rate = price.into_iter().chain(*rate).reduce(f64::max);
    }
    rates
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };

    use serde_json::json;

    use super::*;
    use crate::devcloud::http::{self, Reply};

    fn item(sku: &str, price: f64) -> Value {
        json!({
            "currencyCode": "USD", "retailPrice": price, "armRegionName": "eastus", "armSkuName": "Standard_ND40rs_v2", "skuName": sku,
            "productName": "Virtual Machines NDSv2 Series", "serviceName": "Virtual Machines", "unitOfMeasure": "1 Hour", "type": "Consumption",
        })
    }

    fn changed(key: &str, value: &str) -> Value {
        let mut item = item("ND40rs v2", 99.0);
        item[key] = json!(value);
        item
    }

    #[test]
    fn only_an_hour_of_exactly_this_machine_counts() {
        let read = |items: &[Value]| {
            let rates = rates(&json!({ "Items": items }), "eastus", "Standard_ND40rs_v2", Timestamp::UNIX_EPOCH);
            (rates.of(false).map(|price| price.micros), rates.of(true).map(|price| price.micros))
        };
        let right = [item("ND40rs v2", 22.032), item("ND40rs v2 Low Priority", 4.4064), item("ND40rs v2 Spot", 1.0)];
        assert_eq!(read(&right), (Some(22_032_000), Some(4_406_400)));
        assert_eq!(read(&[item("ND40rs v2", 21.0), item("ND40rs v2", 23.0)]), (Some(23_000_000), None), "the dearer");
        for (key, value) in [
            ("armRegionName", "westus"),
            ("armSkuName", "Standard_ND40s_v2"),
            ("serviceName", "Cloud Services"),
            ("type", "Reservation"),
            ("currencyCode", "EUR"),
            ("unitOfMeasure", "1 Day"),
            ("productName", "Virtual Machines NDSv2 Series Windows"),
        ] {
            assert_eq!(read(&[changed(key, value)]), (None, None), "{key} {value}");
        }
        assert_eq!(read(&[item("ND40rs v2", -1.0), item("ND40rs v2", 0.0), item("ND40rs v2", 1e9)]), (None, None));
        assert_eq!(read(&[Value::Null]), (None, None));
    }

    #[tokio::test]
    async fn a_size_is_asked_about_once_a_day() {
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
        let endpoint = format!("http://{}", listener.local_addr().expect("an address"));
        let asked = Arc::new(AtomicUsize::new(0));
        let counted = asked.clone();
        let serving = tokio::spawn(http::serve(listener, move |_| {
            counted.fetch_add(1, Ordering::Relaxed);
            async { Some(Reply::json(200, &json!({ "Items": [item("ND40rs v2 Low Priority", 4.0)] }))) }
        }));
        let directory = tempfile::tempdir().expect("a directory");
        let plan = AzuremlPlan { size: "Standard_ND40rs_v2".to_owned(), ..AzuremlPlan::default() };
        for (hours, times) in [(0, 1), (23, 1), (25, 2), (26, 2)] {
            // Each program that is started looks at the file.
            let prices = Prices::new(Some(endpoint.clone()), Some(directory.path().join("prices.json"))).expect("an address");
            let now = Timestamp::from_second(hours * 3_600).expect("a time");
            assert_eq!(prices.price(&plan, Some("eastus"), now).await.per_hour.micros, 4_000_000);
            assert_eq!(asked.load(Ordering::Relaxed), times, "after {hours} h");
        }
        serving.abort();
    }

    #[tokio::test]
    async fn without_an_answer_the_dated_table_counts() {
        let prices = Prices::new(Some("http://127.0.0.1:1".to_owned()), None).expect("an address");
        let plan = AzuremlPlan { size: "Standard_ND40rs_v2".to_owned(), ..AzuremlPlan::default() };
        let price = prices.price(&plan, None, Timestamp::UNIX_EPOCH).await;
        assert_eq!((price.per_hour.micros, price.lasting.map(|price| price.micros)), (4_406_400, Some(22_032_000)));
        assert_eq!(price.source.as_deref(), Some("price list of 2025-10-01 for eastus"));
        let price = prices.price(&plan, Some("eastus"), Timestamp::UNIX_EPOCH).await;
        assert!(price.source.is_some_and(|source| source.contains("could not be read")));
        assert_eq!(prices.known("eastus", "Standard_ND40rs_v2", false).micros, 22_032_000);
    }
}
