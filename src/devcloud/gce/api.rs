//! The requests that are understood, as Google's discovery document names them.

#![allow(clippy::unnecessary_wraps)] // Some answers are never errors, and all are asked for alike.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::{
    advice,
    cloud::{Cloud, OperationError, Place},
    filter, groups,
    instance::{Instance, Phase, items, last, machine, seconds},
    prices,
};
use crate::catalogue::{self, Accelerator, Machine};

/// A request, taken apart.
#[derive(Debug, Clone, Default)]
pub struct Request {
    pub method: String,
    pub query: BTreeMap<String, String>,
    pub body: Value,
}

impl Request {
    /// The request of a client that does not read the answer to its end.
    pub fn unfiltered(&self) -> Self {
        let mut request = self.clone();
        request.query.remove("filter");
        request
    }
}

/// An answer that is an error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    pub status: u16,
    pub reason: String,
    pub message: String,
}

impl Refusal {
    pub fn new(status: u16, reason: &str, message: impl Into<String>) -> Self {
        Self { status, reason: reason.to_owned(), message: message.into() }
    }

    pub fn body(&self) -> Value {
        let Self { status, reason, message } = self;
        let one = json!({ "message": message, "domain": "global", "reason": reason });
        json!({ "error": { "code": status, "message": message, "errors": [one] } })
    }
}

pub type Answer = Result<Value, Refusal>;
pub type Handler = fn(&mut Cloud, &Request, &Place) -> Answer;

/// Which call a path means, who answers it, and the zone and the name in it.
pub fn route<'p>(method: &str, path: &[&'p str]) -> Option<(&'static str, Handler, [&'p str; 2])> {
    Some(match (method, path) {
        ("GET", ["v1", "services", service, "skus"]) => ("cloudbilling.services.skus.list", prices::list, ["", service]),
        ("GET", []) => ("compute.projects.get", project, ["", ""]),
        ("GET", ["zones"]) => ("compute.zones.list", zones, ["", ""]),
        ("GET", ["zones", zone]) => ("compute.zones.get", zone_get, [zone, ""]),
        ("GET", ["regions"]) => ("compute.regions.list", regions, ["", ""]),
        ("GET", ["regions", region]) => ("compute.regions.get", region_get, ["", region]),
        ("POST", ["regions", region, "advice", "capacity"]) => ("compute.advice.capacity", advice::capacity, ["", region]),
        ("GET", ["zones", zone, "machineTypes", name]) => ("compute.machineTypes.get", machine_type, [zone, name]),
        ("GET", ["aggregated", "acceleratorTypes"]) => ("compute.acceleratorTypes.aggregatedList", accelerator_types, ["", ""]),
        ("GET", ["global", "images", "family", name]) => ("compute.images.getFromFamily", newest_image, ["", name]),
        ("GET", ["global", "images", name]) => ("compute.images.get", image, ["", name]),
        ("GET", ["aggregated", "instances"]) => ("compute.instances.aggregatedList", instances_everywhere, ["", ""]),
        ("GET", ["aggregated", "operations"]) => ("compute.globalOperations.aggregatedList", operations_everywhere, ["", ""]),
        ("GET", ["zones", zone, "instances"]) => ("compute.instances.list", instances, [zone, ""]),
        ("POST", ["zones", zone, "instances"]) => ("compute.instances.insert", insert, [zone, ""]),
        ("GET", ["zones", zone, "instances", name]) => ("compute.instances.get", instance, [zone, name]),
        ("DELETE", ["zones", zone, "instances", name]) => ("compute.instances.delete", delete, [zone, name]),
        ("POST", ["zones", zone, "instances", name, "stop"]) => ("compute.instances.stop", stop, [zone, name]),
        ("POST", ["zones", zone, "instances", name, "setMetadata"]) => {
            ("compute.instances.setMetadata", set_metadata, [zone, name])
        }
        ("POST", ["zones", zone, "instances", name, "simulateMaintenanceEvent"]) => {
            ("compute.instances.simulateMaintenanceEvent", maintain, [zone, name])
        }
        ("GET", ["zones", zone, "instances", name, "serialPort"]) => {
            ("compute.instances.getSerialPortOutput", serial_port, [zone, name])
        }
        ("GET", ["zones", zone, "instances", name, "getGuestAttributes"]) => {
            ("compute.instances.getGuestAttributes", guest_attributes, [zone, name])
        }
        ("GET", ["aggregated", "instanceGroupManagers"]) => {
            ("compute.instanceGroupManagers.aggregatedList", groups::list_everywhere, ["", ""])
        }
        ("POST", ["regions", region, "instanceGroupManagers"]) => {
            ("compute.regionInstanceGroupManagers.insert", groups::insert, [region, ""])
        }
        ("GET", ["regions", region, "instanceGroupManagers", name]) => {
            ("compute.regionInstanceGroupManagers.get", groups::get, [region, name])
        }
        ("PATCH", ["regions", region, "instanceGroupManagers", name]) => {
            ("compute.regionInstanceGroupManagers.patch", groups::patch, [region, name])
        }
        ("DELETE", ["regions", region, "instanceGroupManagers", name]) => {
            ("compute.regionInstanceGroupManagers.delete", groups::delete, [region, name])
        }
        ("POST", ["regions", region, "instanceGroupManagers", name, "resize"]) => {
            ("compute.regionInstanceGroupManagers.resize", groups::resize, [region, name])
        }
        ("GET", ["regions", region, "instanceGroupManagers", name, "listErrors"]) => {
            ("compute.regionInstanceGroupManagers.listErrors", groups::errors, [region, name])
        }
        ("GET", ["regions", region, "instanceGroups"]) => ("compute.regionInstanceGroups.list", groups::sizes, [region, ""]),
        ("GET", ["regions", region, "autoscalers"]) => ("compute.regionAutoscalers.list", groups::autoscalers, [region, ""]),
        ("GET", ["aggregated", "instanceTemplates"]) => {
            ("compute.instanceTemplates.aggregatedList", groups::templates_everywhere, ["", ""])
        }
        ("GET", ["global", "instanceTemplates"]) => ("compute.instanceTemplates.list", groups::templates, ["", ""]),
        ("POST", ["global", "instanceTemplates"]) => ("compute.instanceTemplates.insert", groups::insert_template, ["", ""]),
        ("GET", ["global", "instanceTemplates", name]) => ("compute.instanceTemplates.get", groups::get_template, ["", name]),
        ("DELETE", ["global", "instanceTemplates", name]) => {
            ("compute.instanceTemplates.delete", groups::delete_template, ["", name])
        }
        ("POST", ["regions", region, "operations", name, "wait"]) => ("compute.regionOperations.wait", operation, [region, name]),
        ("POST", ["global", "operations", name, "wait"]) => ("compute.globalOperations.wait", operation, ["", name]),
        ("GET", ["zones", zone, "operations"]) => ("compute.zoneOperations.list", operations, [zone, ""]),
        ("GET", ["zones", zone, "operations", name]) => ("compute.zoneOperations.get", operation, [zone, name]),
        ("POST", ["zones", zone, "operations", name, "wait"]) => ("compute.zoneOperations.wait", operation, [zone, name]),
        _ => return None,
    })
}

fn known_zone(cloud: &Cloud, zone: &str) -> Result<(), Refusal> {
    if Cloud::zones().contains(zone) {
        return Ok(());
    }
    Err(not_found(cloud, &format!("zones/{zone}")))
}

pub fn not_found(cloud: &Cloud, what: &str) -> Refusal {
    Refusal::new(404, "notFound", format!("The resource 'projects/{}/{what}' was not found", cloud.project))
}

fn project(cloud: &mut Cloud, _: &Request, _: &Place) -> Answer {
    let (used, limit) = cloud.usage("GPUS_ALL_REGIONS", "");
    Ok(json!({
        "kind": "compute#project", "id": "1", "name": cloud.project, "selfLink": cloud.base(),
        "defaultServiceAccount": "1-compute@developer.gserviceaccount.com",
        "commonInstanceMetadata": { "kind": "compute#metadata", "fingerprint": "qV9BnlubS6E=" },
        "quotas": [{ "metric": "GPUS_ALL_REGIONS", "limit": f64::from(limit), "usage": f64::from(used) }],
    }))
}

fn show_zone(cloud: &Cloud, zone: &str) -> Value {
    let base = cloud.base();
    json!({
        "kind": "compute#zone", "id": "2000", "name": zone, "status": "UP",
        "region": format!("{base}/regions/{}", catalogue::region(zone)), "selfLink": format!("{base}/zones/{zone}"),
        "availableCpuPlatforms": ["Intel Skylake"],
    })
}

fn zones(cloud: &mut Cloud, request: &Request, _: &Place) -> Answer {
    let items = filtered(request, Cloud::zones().into_iter().map(|zone| show_zone(cloud, zone)))?;
    Ok(json!({ "kind": "compute#zoneList", "id": "x", "items": items, "selfLink": format!("{}/zones", cloud.base()) }))
}

fn zone_get(cloud: &mut Cloud, _: &Request, (zone, _): &Place) -> Answer {
    known_zone(cloud, zone)?;
    Ok(show_zone(cloud, zone))
}

fn show_region(cloud: &Cloud, region: &str) -> Value {
    let base = cloud.base();
    let here = Cloud::zones().into_iter().filter(|zone| catalogue::region(zone) == region);
    let zones: Vec<String> = here.map(|zone| format!("{base}/zones/{zone}")).collect();
    let quota = |metric: String| {
        let (used, limit) = cloud.usage(&metric, region);
        json!({ "metric": metric, "limit": f64::from(limit), "usage": f64::from(used) })
    };
    let quotas: Vec<Value> = Cloud::metrics().into_iter().map(quota).collect();
    json!({
        "kind": "compute#region", "id": "1000", "name": region, "status": "UP", "selfLink": format!("{base}/regions/{region}"), "zones": zones,
        "quotas": quotas,
    })
}

fn regions(cloud: &mut Cloud, request: &Request, _: &Place) -> Answer {
    let names: BTreeSet<&str> = Cloud::zones().into_iter().map(catalogue::region).collect();
    let items = filtered(request, names.into_iter().map(|name| show_region(cloud, name)))?;
    Ok(json!({ "kind": "compute#regionList", "id": "x", "items": items, "selfLink": format!("{}/regions", cloud.base()) }))
}

fn region_get(cloud: &mut Cloud, _: &Request, (_, region): &Place) -> Answer {
    if !Cloud::zones().into_iter().any(|zone| catalogue::region(zone) == region) {
        return Err(not_found(cloud, &format!("regions/{region}")));
    }
    Ok(show_region(cloud, region))
}

fn machine_type(cloud: &mut Cloud, _: &Request, (zone, name): &Place) -> Answer {
    known_zone(cloud, zone)?;
    let link = format!("{}/zones/{zone}/machineTypes/{name}", cloud.base());
    let machine = Machine::described(name, None, 0, false);
    if machine.cpus == 0 {
        return Err(not_found(cloud, &format!("zones/{zone}/machineTypes/{name}")));
    }
    let mut shown = json!({
        "kind": "compute#machineType", "id": "1", "name": name, "guestCpus": machine.cpus, "memoryMb": machine.memory_mib, "zone": zone,
        "selfLink": link,
    });
    if let Some((accelerator, count)) = machine.accelerator {
        shown["accelerators"] = json!([{ "guestAcceleratorType": accelerator.kind, "guestAcceleratorCount": count }]);
    }
    Ok(shown)
}

fn accelerator_types(cloud: &mut Cloud, request: &Request, _: &Place) -> Answer {
    let shown = Cloud::zones().into_iter().flat_map(|zone| {
        let zone_link = format!("{}/zones/{zone}", cloud.base());
        let here = catalogue::gce().accelerators.values().filter(move |accelerator| accelerator.zones.iter().any(|at| at == zone));
        here.map(move |accelerator| {
            let kind = &accelerator.kind;
            json!({
                "kind": "compute#acceleratorType", "id": "10", "name": kind, "description": kind, "maximumCardsPerInstance": 8,
                "zone": zone_link, "selfLink": format!("{zone_link}/acceleratorTypes/{kind}"),
            })
        })
    });
    let items = filtered(request, shown)?;
    Ok(aggregated(cloud, "acceleratorType", "acceleratorTypes", items))
}

/// The day of the only image of each family.
const DAY: &str = "-v20250601";

fn newest_image(cloud: &mut Cloud, _: &Request, (_, family): &Place) -> Answer {
    Ok(show_image(cloud, family))
}

fn image(cloud: &mut Cloud, _: &Request, (_, name): &Place) -> Answer {
    let family = name.strip_suffix(DAY).ok_or_else(|| not_found(cloud, &format!("global/images/{name}")))?;
    Ok(show_image(cloud, family))
}

fn show_image(cloud: &Cloud, family: &str) -> Value {
    let name = format!("{family}{DAY}");
    json!({
        "kind": "compute#image", "id": "4000000000000007919", "name": name, "family": family, "status": "READY", "diskSizeGb": "50",
        "selfLink": format!("{}/global/images/{name}", cloud.base()), "architecture": "X86_64",
    })
}

/// The list by zones that `aggregated` calls answer with.
pub fn aggregated(cloud: &Cloud, kind: &str, key: &str, items: Vec<Value>) -> Value {
    let mut zones: Map<String, Value> = Map::new();
    for item in items {
        let scope = match (last(&item["zone"]), last(&item["region"])) {
            ("", "") => "global".to_owned(),
            ("", region) => format!("regions/{region}"),
            (zone, _) => format!("zones/{zone}"),
        };
        let list = &mut zones.entry(scope).or_insert_with(|| json!({ key: [] }))[key];
        list.as_array_mut().into_iter().for_each(|list| list.push(item.clone()));
    }
    json!({ "kind": format!("compute#{kind}AggregatedList"), "id": "x", "items": zones, "selfLink": format!("{}/aggregated/{key}", cloud.base()) })
}

pub fn filtered(request: &Request, items: impl Iterator<Item = Value>) -> Result<Vec<Value>, Refusal> {
    let expression = request.query.get("filter").map_or("", String::as_str);
    let filter = filter::parse(expression)
        .ok_or_else(|| Refusal::new(400, "invalid", format!("Invalid value for field 'filter': '{expression}'.")))?;
    Ok(items.filter(|item| filter::fits(&filter, item)).collect())
}

fn instances_everywhere(cloud: &mut Cloud, request: &Request, _: &Place) -> Answer {
    let base = cloud.base();
    let items = filtered(request, cloud.instances.values().map(|instance| instance.show(&base)))?;
    Ok(aggregated(cloud, "instance", "instances", items))
}

fn instances(cloud: &mut Cloud, request: &Request, (zone, _): &Place) -> Answer {
    known_zone(cloud, zone)?;
    let base = cloud.base();
    let here = cloud.instances.values().filter(|instance| instance.zone == *zone);
    let items = filtered(request, here.map(|instance| instance.show(&base)))?;
    Ok(json!({ "kind": "compute#instanceList", "id": "x", "items": items, "selfLink": format!("{base}/zones/{zone}/instances") }))
}

fn operations_everywhere(cloud: &mut Cloud, request: &Request, _: &Place) -> Answer {
    let items = filtered(request, cloud.operations.iter().map(|operation| cloud.show_operation(operation)))?;
    Ok(aggregated(cloud, "operation", "operations", items))
}

fn operations(cloud: &mut Cloud, request: &Request, (zone, _): &Place) -> Answer {
    let here = cloud.operations.iter().filter(|operation| operation.scope == format!("zones/{zone}"));
    let items = filtered(request, here.map(|operation| cloud.show_operation(operation)))?;
    Ok(
        json!({ "kind": "compute#operationList", "id": "x", "items": items, "selfLink": format!("{}/zones/{zone}/operations", cloud.base()) }),
    )
}

fn operation(cloud: &mut Cloud, _: &Request, (zone, name): &Place) -> Answer {
    let found = cloud.operations.iter().find(|operation| operation.name == *name);
    found
        .map(|operation| cloud.show_operation(operation))
        .ok_or_else(|| not_found(cloud, &format!("zones/{zone}/operations/{name}")))
}

fn find<'c>(cloud: &'c mut Cloud, (zone, name): &Place) -> Result<&'c mut Instance, Refusal> {
    let absent = not_found(cloud, &format!("zones/{zone}/instances/{name}"));
    cloud.instances.get_mut(&(zone.clone(), name.clone())).ok_or(absent)
}

fn instance(cloud: &mut Cloud, _: &Request, place: &Place) -> Answer {
    let base = cloud.base();
    Ok(find(cloud, place)?.show(&base))
}

/// Begins an operation, or finds the one that this `requestId` began.
pub fn begin(cloud: &mut Cloud, request: &Request, act: impl FnOnce(&mut Cloud) -> Result<usize, Refusal>) -> Answer {
    let id = request.query.get("requestId").filter(|id| !id.is_empty()).cloned();
    let known = id.as_ref().and_then(|id| cloud.requests.get(id).copied());
    let index = known.map_or_else(|| act(cloud), Ok)?;
    cloud.requests.extend(id.map(|id| (id, index)));
    Ok(cloud.show_operation(&cloud.operations[index]))
}

fn insert(cloud: &mut Cloud, request: &Request, (zone, _): &Place) -> Answer {
    known_zone(cloud, zone)?;
    let body = request.body.as_object().cloned().unwrap_or_default();
    check(&body, zone, cloud.now)?;
    begin(cloud, request, |cloud| {
        let place = (zone.clone(), body["name"].as_str().unwrap_or_default().to_owned());
        if cloud.instances.contains_key(&place) {
            let what = format!("projects/{}/zones/{}/instances/{}", cloud.project, place.0, place.1);
            return Err(Refusal::new(409, "alreadyExists", format!("The resource '{what}' already exists")));
        }
        let id = cloud.next_id();
        let made = Instance::new(id, &place.0, body, cloud.now);
        let error = match over_quota(cloud, &made) {
            Some(message) if !cloud.script.quota_in_operation => return Err(Refusal::new(403, "quotaExceeded", message)),
            Some(message) => Some(OperationError { code: "QUOTA_EXCEEDED", message, http: (403, "FORBIDDEN") }),
            None => out_of_stock(cloud, &place.0),
        };
        if error.is_none() {
            cloud.instances.insert(place.clone(), made);
        }
        Ok(cloud.record_instance("insert", &place, id, error, false))
    })
}

pub fn over_quota(cloud: &Cloud, asked: &Instance) -> Option<String> {
    cloud.counts(&asked.machine()).into_iter().find_map(|(metric, amount)| {
        let everywhere = metric == "GPUS_ALL_REGIONS";
        let region = if everywhere { "" } else { catalogue::region(&asked.zone) };
        let (used, limit) = cloud.usage(&metric, region);
        let of = if everywhere { "globally".to_owned() } else { format!("in region {region}") };
        (used + amount > limit).then(|| format!("Quota '{metric}' exceeded.  Limit: {:.1} {of}.", f64::from(limit)))
    })
}

pub fn out_of_stock(cloud: &Cloud, zone: &str) -> Option<OperationError> {
    cloud.script.stock_outs.iter().any(|out| out == zone).then(|| OperationError {
        code: "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS",
        message: format!(
            "The zone 'projects/{}/zones/{zone}' does not have enough resources available to fulfill the request.  '(resource type:compute)'.",
            cloud.project
        ),
        http: (503, "SERVICE UNAVAILABLE"),
    })
}

/// Refuses the bodies that the real service refuses, as far as a training job can get them wrong.
pub fn check(body: &Map<String, Value>, zone: &str, now: Timestamp) -> Result<(), Refusal> {
    let none = Value::Null;
    let scheduling = body.get("scheduling").unwrap_or(&none);
    let (spot, preemptible) = (scheduling["provisioningModel"] == "SPOT", scheduling["preemptible"] == true);
    let limit = seconds(&scheduling["maxRunDuration"]["seconds"]);
    let termination: Option<Timestamp> = scheduling["terminationTime"].as_str().and_then(|time| time.parse().ok());
    let notice = seconds(&scheduling["preemptionNoticeDuration"]["seconds"]);
    let name = body.get("name").and_then(Value::as_str).unwrap_or_default();
    let machine = machine(body);
    let added = body.get("guestAccelerators").is_some_and(|cards| cards[0].is_object());
    let (cpus, memory) = (u64::from(machine.cpus), machine.memory_mib);
    let allowed = machine.accelerator.and_then(|(accelerator, count)| accelerator.limits.get(&count.to_string()));
    let disk = last(&body.get("disks").unwrap_or(&none)[0]["initializeParams"]["diskType"]);
    let network_card = &body.get("networkInterfaces").unwrap_or(&none)[0]["nicType"];
    let here = |accelerator: &Accelerator| accelerator.zones.iter().any(|at| at == zone);
    let rules = [
        (valid_name(name), "name", "Must be a match of regex '(?:[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?)'"),
        (machine.cpus > 0, "machineType", "The machine type is not known here"),
        (
            machine.fixed.is_some() || memory * 10 <= cpus * 66_560 && memory * 10 >= cpus * 9_216,
            "machineType",
            "Memory must be between 0.9 and 6.5 GB per vCPU",
        ),
        (!added || machine.fixed.is_none(), "guestAccelerators", "This machine type comes with its accelerators"),
        (!added || machine.accelerator.is_some_and(|(kind, _)| here(kind)), "guestAccelerators", "Not in this zone"),
        (machine.fixed.is_none() || machine.accelerator.is_some_and(|(kind, _)| here(kind)), "machineType", "Not in this zone"),
        (
            !added || allowed.is_some_and(|most| machine.cpus <= most.0 && memory <= u64::from(most.1) << 10),
            "guestAccelerators",
            "So many GPUs cannot be attached to so many vCPUs and so much memory",
        ),
        (
            machine.fixed.is_none_or(|fixed| spot || preemptible || !fixed.spot_only),
            "scheduling.provisioningModel",
            "This machine type is not available with this provisioning model",
        ),
        // The A2 types take pd-standard too; it is never asked for here.
        (
            machine.fixed.is_none() || ["pd-balanced", "pd-ssd"].contains(&disk),
            "disks[0].initializeParams.diskType",
            "Not supported by this machine type",
        ),
        (
            machine.accelerator.is_none_or(|(kind, _)| kind.network_card.as_ref().is_none_or(|needed| network_card == needed)),
            "networkInterfaces[0].nicType",
            "This machine type needs gVNIC",
        ),
        (
            machine.accelerator.is_none() || scheduling["onHostMaintenance"] == "TERMINATE",
            "scheduling.onHostMaintenance",
            "Instances with guest accelerators do not support live migration",
        ),
        (
            !(spot || preemptible) || scheduling["automaticRestart"] == false,
            "scheduling.automaticRestart",
            "Must be false for preemptible instances",
        ),
        (!(preemptible && !spot && limit.is_some()), "scheduling.maxRunDuration", "Not supported with preemptible instances"),
        (
            limit.is_none_or(|limit| (30..=120 * 86_400).contains(&limit)),
            "scheduling.maxRunDuration",
            "Must be between 30 seconds and 120 days",
        ),
        (
            scheduling["terminationTime"].is_null()
                || (spot || !preemptible) && limit.is_none() && termination.is_some_and(|end| end > now),
            "scheduling.terminationTime",
            "Must be in the future, alone, and not of preemptible instances",
        ),
        (
            scheduling["preemptionNoticeDuration"].is_null() || (spot && [Some(0), Some(120)].contains(&notice)),
            "scheduling.preemptionNoticeDuration",
            "Must be 0 or 120 seconds, and needs provisioningModel SPOT",
        ),
        (
            scheduling["instanceTerminationAction"].is_null() || spot || limit.or(termination.map(|_| 0)).is_some(),
            "scheduling.instanceTerminationAction",
            "Needs provisioningModel SPOT or a limited run",
        ),
    ];
    let broken = rules.iter().find(|(holds, ..)| !holds);
    broken.map_or(Ok(()), |(_, field, why)| {
        Err(Refusal::new(400, "invalid", format!("Invalid value for field 'resource.{field}': {why}.")))
    })
}

pub fn valid_name(name: &str) -> bool {
    (1..=63).contains(&name.len())
        && name.starts_with(|c: char| c.is_ascii_lowercase())
        && !name.ends_with('-')
        && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
}

fn delete(cloud: &mut Cloud, request: &Request, place: &Place) -> Answer {
    begin(cloud, request, |cloud| {
        let id = find(cloud, place)?.id;
        cloud.delete(place);
        Ok(cloud.record_instance("delete", place, id, None, false))
    })
}

fn stop(cloud: &mut Cloud, request: &Request, place: &Place) -> Answer {
    begin(cloud, request, |cloud| {
        let id = find(cloud, place)?.id;
        cloud.soft_off(place, false);
        Ok(cloud.record_instance("stop", place, id, None, false))
    })
}

/// For a machine that may be preempted, the rehearsal of just that.
fn maintain(cloud: &mut Cloud, request: &Request, place: &Place) -> Answer {
    begin(cloud, request, |cloud| {
        let instance = find(cloud, place)?;
        let (id, over) = (instance.id, matches!(instance.phase, Phase::Stopping | Phase::Terminated));
        if over {
            return Err(Refusal::new(400, "resourceNotReady", format!("The resource '{}' is not running", place.1)));
        }
        let index = cloud.record_instance("simulateMaintenanceEvent", place, id, None, false);
        cloud.preempt(place);
        Ok(index)
    })
}

fn set_metadata(cloud: &mut Cloud, request: &Request, place: &Place) -> Answer {
    begin(cloud, request, |cloud| {
        let instance = find(cloud, place)?;
        if request.body["fingerprint"] != instance.fingerprint() {
            return Err(Refusal::new(412, "conditionNotMet", "Supplied fingerprint does not match current metadata fingerprint."));
        }
        instance.metadata = items(&request.body);
        let id = instance.id;
        Ok(cloud.record_instance("setMetadata", place, id, None, false))
    })
}

fn serial_port(cloud: &mut Cloud, request: &Request, place: &Place) -> Answer {
    let base = cloud.base();
    let instance = find(cloud, place)?;
    let start = request.query.get("start").and_then(|start| start.parse().ok()).unwrap_or(0);
    let first = request.query.get("port").is_none_or(|port| port == "1");
    let (begin, contents, next) = if first { instance.serial.read(start) } else { (0, String::new(), 0) };
    Ok(json!({
        "kind": "compute#serialPortOutput", "contents": contents, "start": begin.to_string(), "next": next.to_string(),
        "selfLink": format!("{base}/zones/{}/instances/{}/serialPort", place.0, place.1),
    }))
}

fn guest_attributes(cloud: &mut Cloud, request: &Request, place: &Place) -> Answer {
    let base = cloud.base();
    let path = request.query.get("queryPath").cloned().unwrap_or_default();
    let instance = find(cloud, place)?;
    let items: Vec<Value> = instance
        .guest_attributes
        .iter()
        .filter(|((namespace, key), _)| format!("{namespace}/{key}").starts_with(&path))
        .map(|((namespace, key), value)| json!({ "namespace": namespace, "key": key, "value": value }))
        .collect();
    if items.is_empty() {
        // gcloud goes by these words.
        return Err(Refusal::new(404, "notFound", format!("The resource '{path}' of type 'Guest Attribute' was not found.")));
    }
    Ok(json!({
        "kind": "compute#guestAttributes", "queryPath": path, "queryValue": { "items": items },
        "selfLink": format!("{base}/zones/{}/instances/{}/guestAttributes/{path}", place.0, place.1),
    }))
}
