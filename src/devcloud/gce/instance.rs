//! A virtual machine: what was asked for, how far it is, and how the API shows it.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use jiff::{Timestamp, tz};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::{clock::after, script::TroubleKind, serial::Serial};
use crate::{
    catalogue::{self, Machine},
    job::units::Money,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    Provisioning,
    Staging,
    Running,
    Stopping,
    Terminated,
}

impl Phase {
    pub fn status(self) -> &'static str {
        match self {
            Phase::Provisioning => "PROVISIONING",
            Phase::Staging => "STAGING",
            Phase::Running => "RUNNING",
            Phase::Stopping => "STOPPING",
            Phase::Terminated => "TERMINATED",
        }
    }
}

pub struct Instance {
    pub id: u64,
    pub name: String,
    pub zone: String,
    /// The body as it was sent, without the fields that have a place of their own below.
    body: Map<String, Value>,
    pub created: Timestamp,
    pub phase: Phase,
    pub started: Option<Timestamp>,
    /// When its last run ended.
    pub stopped: Option<Timestamp>,
    pub preempted: bool,
    /// When the power button is pressed, where the notice of that came before.
    pub taken: Option<Timestamp>,
    /// When the power goes, and whether the machine goes with it.
    pub power_ends: Option<(Timestamp, bool)>,
    pub metadata: BTreeMap<String, String>,
    pub labels: BTreeMap<String, String>,
    pub guest_attributes: BTreeMap<(String, String), String>,
    pub serial: Serial,
    /// The troubles that have come over it.
    pub troubles: BTreeSet<TroubleKind>,
}

impl Instance {
    pub fn new(id: u64, zone: &str, body: Map<String, Value>, now: Timestamp) -> Self {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let labels = body.get("labels").and_then(Value::as_object);
        Self {
            id,
            name: body.get("name").map(text).unwrap_or_default(),
            zone: zone.to_owned(),
            metadata: items(body.get("metadata").unwrap_or(&Value::Null)),
            labels: labels.into_iter().flatten().map(|(key, value)| (key.clone(), text(value))).collect(),
            body,
            created: now,
            phase: Phase::Provisioning,
            started: None,
            stopped: None,
            preempted: false,
            taken: None,
            power_ends: None,
            guest_attributes: BTreeMap::new(),
            serial: Serial::default(),
            troubles: BTreeSet::new(),
        }
    }

    fn scheduling(&self, key: &str) -> &Value {
        &self.body.get("scheduling").unwrap_or(&Value::Null)[key]
    }

    pub fn is_spot(&self) -> bool {
        is_spot(self.body.get("scheduling").unwrap_or(&Value::Null))
    }

    /// Whether a preemption, or the end of its time, takes the machine away altogether.
    pub fn goes_with_its_power(&self) -> bool {
        self.scheduling("instanceTerminationAction") == "DELETE"
    }

    /// When its time ends by itself: at `terminationTime`, `maxRunDuration` after its start, or a day for the old kind of
    /// preemptible machine.
    pub fn deadline(&self) -> Option<Timestamp> {
        const DAY: Duration = Duration::from_secs(86_400);
        let termination = self.scheduling("terminationTime").as_str().and_then(|time| time.parse().ok());
        if termination.is_some() {
            return termination;
        }
        let limit = seconds(&self.scheduling("maxRunDuration")["seconds"]).map(Duration::from_secs);
        let day = (self.scheduling("preemptible") == true && self.scheduling("provisioningModel") != "SPOT").then_some(DAY);
        Some(after(self.started?, limit.or(day)?))
    }

    /// How long before the power button it hears that it is taken away.
    pub fn notice(&self) -> Duration {
        Duration::from_secs(seconds(&self.scheduling("preemptionNoticeDuration")["seconds"]).unwrap_or_default())
    }

    /// The first of its service accounts.
    pub fn service_account(&self) -> &Value {
        &self.body.get("serviceAccounts").unwrap_or(&Value::Null)[0]
    }

    /// The machine, as far as it is charged for.
    pub fn machine(&self) -> Machine<'static> {
        machine(&self.body)
    }

    /// List price of an hour of running.
    pub fn price_per_hour(&self) -> Money {
        catalogue::gce().price_per_hour(&self.machine())
    }

    pub fn fingerprint(&self) -> String {
        fingerprint(format!("{:?}", self.metadata).as_bytes())
    }

    /// The machine as `instances.get` shows it.
    pub fn show(&self, base: &str) -> Value {
        let mut shown = self.body.clone();
        let link = format!("{base}/zones/{}", self.zone);
        let mut put = |key: &str, value: Value| drop(shown.insert(key.to_owned(), value));
        put("disks", self.disks(&link));
        put("networkInterfaces", self.network_interfaces());
        put("scheduling", self.shown_scheduling());
        let items: Vec<Value> = self.metadata.iter().map(|(key, value)| json!({ "key": key, "value": value })).collect();
        put("metadata", json!({ "items": items, "kind": "compute#metadata", "fingerprint": self.fingerprint() }));
        if !self.labels.is_empty() {
            put("labels", json!(self.labels));
        }
        put("kind", json!("compute#instance"));
        put("id", json!(self.id.to_string()));
        put("creationTimestamp", json!(time(self.created)));
        put("status", json!(self.phase.status()));
        put("zone", json!(link));
        put("selfLink", json!(format!("{link}/instances/{}", self.name)));
        put("cpuPlatform", json!("Unknown CPU Platform"));
        put("labelFingerprint", json!(fingerprint(format!("{:?}", self.labels).as_bytes())));
        put("fingerprint", json!(fingerprint(self.name.as_bytes())));
        put("startRestricted", json!(false));
        put("tags", json!({ "fingerprint": "42WmSpB8rSM=" }));
        for (key, at) in [("lastStartTimestamp", self.started), ("lastStopTimestamp", self.stopped)] {
            if let Some(at) = at {
                put(key, json!(time(at)));
            }
        }
        Value::Object(shown)
    }

    fn disks(&self, link: &str) -> Value {
        let mut disks = self.body.get("disks").cloned().unwrap_or_default();
        for (index, disk) in disks.as_array_mut().into_iter().flatten().filter_map(Value::as_object_mut).enumerate() {
            let size = disk.remove("initializeParams").map_or(Value::Null, |parameters| parameters["diskSizeGb"].clone());
            let added = json!({
                "kind": "compute#attachedDisk", "index": index, "interface": "SCSI", "diskSizeGb": size,
                "source": format!("{link}/disks/{}", self.name), "deviceName": format!("persistent-disk-{index}"),
            });
            disk.extend(added.as_object().cloned().unwrap_or_default());
        }
        disks
    }

    fn network_interfaces(&self) -> Value {
        let mut interfaces = self.body.get("networkInterfaces").cloned().unwrap_or_default();
        for (index, interface) in interfaces.as_array_mut().into_iter().flatten().enumerate() {
            for access in interface["accessConfigs"].as_array_mut().into_iter().flatten() {
                (access["kind"], access["natIP"]) = (json!("compute#accessConfig"), json!("203.0.113.10"));
            }
            (interface["kind"], interface["name"]) = (json!("compute#networkInterface"), json!(format!("nic{index}")));
            (interface["networkIP"], interface["stackType"]) = (json!("10.128.0.2"), json!("IPV4_ONLY"));
            interface["fingerprint"] = json!("bm5pYw==");
        }
        interfaces
    }

    fn shown_scheduling(&self) -> Value {
        let mut scheduling = self.body.get("scheduling").cloned().unwrap_or_else(|| json!({}));
        if scheduling["provisioningModel"].is_null() {
            scheduling["provisioningModel"] = json!("STANDARD");
        }
        if let (Some(_), Some(deadline)) = (self.scheduling("maxRunDuration").as_object(), self.deadline()) {
            scheduling["terminationTime"] = json!(time(deadline));
        }
        scheduling
    }
}

/// `metadata.items` as a map.
pub fn items(metadata: &Value) -> BTreeMap<String, String> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    metadata["items"].as_array().into_iter().flatten().map(|item| (text(&item["key"]), text(&item["value"]))).collect()
}

/// 64-bit numbers travel as text.
pub fn seconds(value: &Value) -> Option<u64> {
    value.as_u64().or_else(|| value.as_str()?.parse().ok())
}

fn is_spot(scheduling: &Value) -> bool {
    scheduling["provisioningModel"] == "SPOT" || scheduling["preemptible"] == true
}

/// The machine that the body of an insert asks for.
pub fn machine(body: &Map<String, Value>) -> Machine<'static> {
    let field = |name: &str| body.get(name).unwrap_or(&Value::Null);
    let card = &field("guestAccelerators")[0];
    let count = card["acceleratorCount"].as_u64().and_then(|count| u32::try_from(count).ok()).unwrap_or(0);
    let size = &field("disks")[0]["initializeParams"]["diskSizeGb"];
    let disk_gb = seconds(size).and_then(|size| u32::try_from(size).ok()).unwrap_or(0);
    let cards = Some((last(&card["acceleratorType"]), count));
    Machine::described(last(field("machineType")), cards, disk_gb, is_spot(field("scheduling")))
}

/// The name at the end of a link.
pub fn last(link: &Value) -> &str {
    link.as_str().and_then(|link| link.rsplit('/').next()).unwrap_or_default()
}

/// Google's clock shows Mountain View without its summers.
pub fn time(time: Timestamp) -> String {
    time.to_zoned(tz::TimeZone::fixed(tz::offset(-7))).strftime("%Y-%m-%dT%H:%M:%S%.3f%:z").to_string()
}

fn fingerprint(bytes: &[u8]) -> String {
    use base64::{Engine as _, prelude::BASE64_STANDARD};
    BASE64_STANDARD.encode(&Sha256::digest(bytes)[..8])
}
