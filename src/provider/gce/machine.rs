//! The cloud's description of a machine.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;

use super::{
    super::{
        Console, Resource,
        whose::{Mark, Said},
    },
    body,
    client::last,
    prices::PriceList,
};
use crate::{
    catalogue::{self, Machine, region},
    job::{
        id::{AttemptId, JobId},
        order::RunOrder,
        units::Money,
    },
};

/// In every line that the startup script writes to the console.
const SCRIPT: &str = "startup-script";

/// Whether it has, or will have, power.
pub fn is_on(machine: &Value) -> bool {
    ["PROVISIONING", "STAGING", "RUNNING", "REPAIRING", "STOPPING"].contains(&machine["status"].as_str().unwrap_or_default())
}

pub fn metadata<'m>(machine: &'m Value, key: &str) -> Option<&'m Value> {
    machine["metadata"]["items"].as_array()?.iter().find(|item| item["key"] == key)
}

pub fn created(machine: &Value) -> Timestamp {
    machine["creationTimestamp"].as_str().and_then(|time| time.parse().ok()).unwrap_or(Timestamp::UNIX_EPOCH)
}

/// When it lost its power, if it has none.
pub fn stopped(machine: &Value) -> Option<Timestamp> {
    machine["lastStopTimestamp"].as_str().filter(|_| !is_on(machine))?.parse().ok()
}

/// Whether a group makes it.
pub fn is_grouped(machine: &Value) -> bool {
    machine["labels"][body::RECOVERY].is_string()
}

/// The order that a machine was given.
fn order(machine: &Value) -> Option<RunOrder> {
    serde_json::from_str(metadata(machine, body::ORDER)?["value"].as_str()?).ok()
}

/// The labels' word on an owner; `url` is the store of its order.
pub fn said<'m>(labels: &'m Value, url: Option<&'m str>) -> Said<'m> {
    Said { owner: labels[body::OWNER].as_str(), store: labels[body::STORE].as_str(), url }
}

/// Whether labels say that something is of this job, and of no equal one in another store. A filter is no proof: whatever a list
/// answers is compared before it is touched.
pub fn is_of(labels: &Value, job: &JobId, mark: &Mark<'_>) -> bool {
    labels[body::JOB] == job.as_str() && mark.reaches(said(labels, None))
}

/// The expiry by its labels, which a replaced machine shares with those before it.
pub fn expires(labels: &Value) -> Option<Timestamp> {
    Timestamp::from_second(labels[body::EXPIRES].as_str()?.parse().ok()?).ok()
}

/// A machine of ours, of any user; `None` for one whose label names no job.
pub fn resource(machine: &Value, mark: &Mark<'_>, prices: Option<&PriceList>) -> Option<Resource> {
    let label = |key: &str| machine["labels"][key].as_str();
    let job = JobId::parse(label(body::JOB)?)?;
    let since = created(machine);
    let order = order(machine);
    let life = label(body::LIFETIME).and_then(|seconds| seconds.parse().ok()).map(Duration::from_secs);
    let alone = life.and_then(|life| since.checked_add(life).ok());
    Some(Resource {
        name: machine["name"].as_str()?.to_owned(),
        attempt: AttemptId::new(&job, label(body::ATTEMPT).and_then(|number| number.parse().ok()).unwrap_or(0)),
        since,
        expires: if is_grouped(machine) { expires(&machine["labels"]) } else { alone },
        price_per_hour: price(machine, prices),
        belongs: mark.belongs(said(&machine["labels"], order.as_ref().map(|order| order.store.as_str()))),
    })
}

/// A piece of its serial port's output that was asked for from position `start` on.
pub fn console(serial: &Value, start: u64) -> Console {
    let position = |key: &str| serial[key].as_str().and_then(|text| text.parse().ok()).unwrap_or(start);
    let text = serial["contents"].as_str().unwrap_or_default().to_owned();
    Console { text, start: position("start"), next: position("next"), own: Some(SCRIPT.to_owned()) }
}

/// The price of the machine as the cloud describes it, not as a plan once wanted it; by the table where today's prices were not
/// read.
fn price(machine: &Value, prices: Option<&PriceList>) -> Money {
    let card = &machine["guestAccelerators"][0];
    let count = card["acceleratorCount"].as_u64().and_then(|count| u32::try_from(count).ok()).unwrap_or(1);
    let disk_gb = machine["disks"][0]["diskSizeGb"].as_str().and_then(|size| size.parse().ok()).unwrap_or(0);
    let spot = machine["scheduling"]["provisioningModel"] == "SPOT" || machine["scheduling"]["preemptible"] == true;
    let kind = last(&machine["machineType"]);
    let described = Machine::described(kind, Some((last(&card["acceleratorType"]), count)), disk_gb, spot);
    let today = prices.and_then(|prices| prices.price_per_hour(&described, region(last(&machine["zone"]))));
    today.unwrap_or_else(|| catalogue::gce().price_per_hour(&described))
}
