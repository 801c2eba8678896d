//! Everything that is true in the simulated cloud, and the rules by which time changes it. No input, no output: acts on real
//! processes are left in [`Cloud::acts`].

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde::Serialize;
use serde_json::{Value, json};

use super::{
    super::faults::Met,
    clock::after,
    groups::{self, Group, Template},
    instance::{Instance, Phase, time},
    script::{Script, Trouble, TroubleKind},
};
use crate::{
    catalogue::{self, Accelerator, Machine},
    job::units::Money,
};

/// An instance is known by its zone and its name.
pub type Place = (String, String);

/// Every limit on GPUs, and on anything else, that the script does not name.
const GENEROUS: (u32, u32) = (64, 1_000_000);
/// Where this quota was not asked for, it is none, and such machines count against the ordinary one.
const SPOT_CPUS: &str = "PREEMPTIBLE_CPUS";
/// The service has this limit, and does not show it with its regions.
const UNTOLD: &str = "NVIDIA_H100_GPUS";

/// A change that a machine's processes need.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Act {
    Boot(Place),
    /// The processes may say farewell.
    PowerButton(Place),
    PowerOff(Place),
    /// Its processes stand still.
    Freeze(Place),
}

pub struct Operation {
    pub name: String,
    pub id: u64,
    pub kind: &'static str,
    /// `zones/ZONE`, `regions/REGION` or `global`.
    pub scope: String,
    /// Below that: `instances/NAME`.
    pub target: String,
    pub target_id: u64,
    pub inserted: Timestamp,
    pub done: Timestamp,
    pub error: Option<OperationError>,
    pub system: bool,
}

#[derive(Clone)]
pub struct OperationError {
    pub code: &'static str,
    pub message: String,
    pub http: (u16, &'static str),
}

/// The cost of a machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Receipt {
    pub instance: String,
    pub zone: String,
    pub running_seconds: u64,
    pub price_per_hour: Money,
    pub cost: Money,
    pub exists: bool,
}

pub struct Cloud {
    pub project: String,
    /// Scheme and authority, as links show them.
    pub service: String,
    pub script: Script,
    pub now: Timestamp,
    /// Simulated seconds in one on the wall: processes live on the wall's clock.
    pub speed: f64,
    pub instances: BTreeMap<Place, Instance>,
    pub templates: BTreeMap<String, Template>,
    pub groups: BTreeMap<Place, Group>,
    pub operations: Vec<Operation>,
    /// Which operation a `requestId` began.
    pub requests: BTreeMap<String, usize>,
    pub faults_met: Met,
    pub acts: Vec<Act>,
    closed: Vec<Receipt>,
    made: u64,
}

impl Cloud {
    pub fn new(project: &str, service: &str, script: Script, now: Timestamp, speed: f64) -> Self {
        Self {
            project: project.to_owned(),
            service: service.to_owned(),
            script,
            now,
            speed,
            instances: BTreeMap::new(),
            templates: BTreeMap::new(),
            groups: BTreeMap::new(),
            operations: Vec::new(),
            requests: BTreeMap::new(),
            faults_met: Met::new(),
            acts: Vec::new(),
            closed: Vec::new(),
            made: 0,
        }
    }

    pub fn next_id(&mut self) -> u64 {
        self.made += 1;
        4_000_000_000_000_000_000 + self.made * 7_919
    }

    /// Where resources of this project are.
    pub fn base(&self) -> String {
        format!("{}/compute/v1/projects/{}", self.service, self.project)
    }

    pub fn zones() -> std::collections::BTreeSet<&'static str> {
        catalogue::gce().accelerators.values().flat_map(|accelerator| &accelerator.zones).map(String::as_str).collect()
    }

    /// Lets time pass, and everything happen that was due, in the order of all machines.
    pub fn advance(&mut self, now: Timestamp) {
        let next = |cloud: &Self| {
            let changes = cloud.instances.keys().filter_map(|place| Some((place, cloud.next_change(place)?)));
            let (place, (due, change)) = changes.min_by_key(|(_, (due, _))| *due).filter(|(_, (due, _))| *due <= now)?;
            Some((place.clone(), due, change))
        };
        while let Some((place, due, change)) = next(self) {
            self.now = self.now.max(due);
            self.change(&place, change);
        }
        self.now = self.now.max(now);
        groups::mend(self);
    }

    fn next_change(&self, place: &Place) -> Option<(Timestamp, Change)> {
        let instance = self.instances.get(place)?;
        let boot = self.script.boot.0;
        let own = match instance.phase {
            Phase::Provisioning => Some((after(instance.created, boot / 2), Change::Stage)),
            Phase::Staging => Some((after(instance.created, boot), Change::Run)),
            Phase::Running => instance.deadline().into_iter().chain(instance.taken).min().map(|end| (end, Change::Expire)),
            Phase::Stopping => instance.power_ends.map(|(at, _)| (at, Change::End)),
            Phase::Terminated => None,
        };
        let alive = !matches!(instance.phase, Phase::Stopping | Phase::Terminated) && instance.is_spot() && !instance.preempted;
        let taken = self.script.preemptions.iter().filter(|taken| alive && instance.name.ends_with(&taken.instance));
        let taken = taken.map(|taken| (after(instance.created, taken.after.0), Change::Preempt));
        let coming = |trouble: &&Trouble| trouble.kind.begins_later() && !instance.troubles.contains(&trouble.kind);
        let troubles = self.script.troubles_of(&instance.name).filter(|_| instance.phase == Phase::Running).filter(coming);
        let troubles = troubles.map(|trouble| (after(instance.created, trouble.after.0), Change::Suffer(trouble.kind)));
        taken.chain(troubles).chain(own).min_by_key(|(at, _)| *at)
    }

    fn change(&mut self, place: &Place, change: Change) {
        let now = self.now;
        let Some(instance) = self.instances.get_mut(place) else { return };
        match change {
            Change::Stage => instance.phase = Phase::Staging,
            Change::Run => {
                (instance.phase, instance.started) = (Phase::Running, Some(now));
                self.acts.push(Act::Boot(place.clone()));
            }
            Change::Expire => {
                let deletes = instance.goes_with_its_power();
                self.soft_off(place, deletes);
            }
            Change::Preempt => self.preempt(place),
            Change::Suffer(kind) => {
                instance.troubles.insert(kind);
                self.acts.extend((kind == TroubleKind::Hangs).then(|| Act::Freeze(place.clone())));
            }
            Change::End => self.end(place),
        }
    }

    /// The cloud takes a machine back: the notice, and the record that outlives the machine.
    pub fn preempt(&mut self, place: &Place) {
        let Some(instance) = self.instances.get_mut(place).filter(|instance| !instance.preempted) else { return };
        instance.preempted = true;
        let (deletes, id, notice) = (instance.goes_with_its_power(), instance.id, instance.notice());
        let noticed = instance.phase == Phase::Running && !notice.is_zero();
        instance.taken = noticed.then(|| after(self.now, notice));
        self.record_instance("compute.instances.preempted", place, id, None, true);
        if !noticed {
            self.soft_off(place, deletes);
        }
    }

    /// The power button: processes have the notice's time, when there are any.
    pub fn soft_off(&mut self, place: &Place, deletes: bool) {
        let Some(instance) = self.instances.get_mut(place) else { return };
        let running = instance.phase == Phase::Running;
        if instance.phase == Phase::Stopping {
            // A deletion that meets a machine on its way down only adds that nothing of it stays.
            instance.power_ends = instance.power_ends.map(|(at, before)| (at, before || deletes));
            return;
        }
        let notice = if running { self.script.notice.0.mul_f64(self.speed) } else { std::time::Duration::ZERO };
        instance.phase = Phase::Stopping;
        instance.power_ends = Some((after(self.now, notice), deletes));
        if running {
            self.acts.push(Act::PowerButton(place.clone()));
        }
    }

    /// The machine switched itself off, or its processes are over after the power button.
    pub fn halted(&mut self, place: &Place) {
        let Some(instance) = self.instances.get_mut(place) else { return };
        if matches!(instance.phase, Phase::Running | Phase::Stopping) {
            let taken = instance.preempted && instance.goes_with_its_power();
            let (_, deletes) = instance.power_ends.unwrap_or((self.now, taken));
            instance.power_ends = Some((self.now, deletes));
            self.end(place);
        }
    }

    fn end(&mut self, place: &Place) {
        self.acts.push(Act::PowerOff(place.clone()));
        let Some(instance) = self.instances.get_mut(place) else { return };
        let receipt = receipt(instance, self.script.price_factor, self.now, false);
        self.closed.extend(receipt);
        // The run is paid; only its disk is left.
        (instance.started, instance.stopped) = (None, Some(self.now));
        instance.phase = Phase::Terminated;
        if instance.power_ends.take().is_some_and(|(_, deletes)| deletes) {
            self.instances.remove(place);
        }
    }

    /// Takes a machine out of the world at once.
    pub fn delete(&mut self, place: &Place) {
        if let Some(instance) = self.instances.get_mut(place) {
            instance.power_ends = Some((self.now, true));
            self.end(place);
        }
    }

    pub fn record_instance(
        &mut self,
        kind: &'static str,
        (zone, name): &Place,
        target_id: u64,
        error: Option<OperationError>,
        system: bool,
    ) -> usize {
        self.record(kind, (format!("zones/{zone}"), format!("instances/{name}")), target_id, error, system)
    }

    pub fn record(
        &mut self,
        kind: &'static str,
        (scope, target): (String, String),
        target_id: u64,
        error: Option<OperationError>,
        system: bool,
    ) -> usize {
        let id = self.next_id();
        let operation = Operation {
            name: format!("operation-{id}"),
            id,
            kind,
            scope,
            target,
            target_id,
            inserted: self.now,
            // Fast, and yet after the answer to the client that began it.
            done: if system { self.now } else { after(self.now, std::time::Duration::from_millis(50).mul_f64(self.speed)) },
            error,
            system,
        };
        self.operations.push(operation);
        self.operations.len() - 1
    }

    pub fn show_operation(&self, operation: &Operation) -> Value {
        let scope = format!("{}/{}", self.base(), operation.scope);
        let done = operation.done <= self.now;
        let mut shown = json!({
            "kind": "compute#operation",
            "id": operation.id.to_string(),
            "name": operation.name,
            "operationType": operation.kind,
            "targetLink": format!("{scope}/{}", operation.target),
            "targetId": operation.target_id.to_string(),
            "status": if done { "DONE" } else { "RUNNING" },
            "user": if operation.system { "system" } else { "user@example.com" },
            "progress": if done { 100 } else { 0 },
            "insertTime": time(operation.inserted),
            "startTime": time(operation.inserted),
            "selfLink": format!("{scope}/operations/{}", operation.name),
        });
        match operation.scope.split_once('/') {
            Some(("zones", _)) => shown["zone"] = json!(scope),
            Some(_) => shown["region"] = json!(scope),
            None => {}
        }
        if operation.system {
            shown["statusMessage"] = json!("Instance was preempted.");
        }
        if let Some(error) = operation.error.as_ref().filter(|_| done) {
            shown["error"] = json!({ "errors": [{ "code": error.code, "message": error.message }] });
            (shown["httpErrorStatusCode"], shown["httpErrorMessage"]) = (json!(error.http.0), json!(error.http.1));
        }
        if done {
            shown["endTime"] = json!(time(operation.done));
        }
        shown
    }

    /// The cost of everything until now.
    pub fn bill(&self) -> Vec<Receipt> {
        let open = self.instances.values().filter_map(|instance| receipt(instance, self.script.price_factor, self.now, true));
        self.closed.iter().cloned().chain(open).collect()
    }

    /// How much of a quota is used in a region (an empty name is the whole world), and its limit.
    pub fn usage(&self, metric: &str, region: &str) -> (u32, u32) {
        let here =
            self.instances.values().filter(|instance| instance.zone.starts_with(region) && instance.phase != Phase::Terminated);
        let counts = here.flat_map(|instance| self.counts(&instance.machine()));
        (counts.filter(|(counted, _)| counted == metric).map(|(_, amount)| amount).sum(), self.limit(metric))
    }

    fn limit(&self, metric: &str) -> u32 {
        let generous = match metric {
            SPOT_CPUS => 0,
            _ if metric.contains("GPU") => GENEROUS.0,
            _ => GENEROUS.1,
        };
        self.script.quotas.get(metric).copied().unwrap_or(generous)
    }

    /// The quotas that a machine counts against, the one of all regions first.
    pub fn counts(&self, machine: &Machine<'_>) -> Vec<(String, u32)> {
        let mut counts = vec![("GPUS_ALL_REGIONS".to_owned(), machine.accelerator.map_or(0, |(_, count)| count))];
        counts.extend(machine.quotas());
        if machine.spot && self.limit(SPOT_CPUS) > 0 {
            counts.iter_mut().filter(|(metric, _)| metric == "CPUS").for_each(|(metric, _)| SPOT_CPUS.clone_into(metric));
        }
        counts
    }

    /// The quotas that a region shows.
    pub fn metrics() -> BTreeSet<String> {
        let of = |accelerator: &Accelerator| {
            let gpus = [accelerator.quota.clone(), format!("PREEMPTIBLE_{}", accelerator.quota)];
            gpus.into_iter().chain(accelerator.cpu_quota.clone())
        };
        let others = [SPOT_CPUS, "DISKS_TOTAL_GB", "SSD_TOTAL_GB"].map(str::to_owned);
        let shown = catalogue::gce().accelerators.values().flat_map(of).chain(others);
        shown.filter(|metric| metric != UNTOLD).collect()
    }
}

#[derive(Clone, Copy)]
enum Change {
    Stage,
    Run,
    Expire,
    Preempt,
    Suffer(TroubleKind),
    End,
}

/// From the start to the end of power, at least a minute, as Google counts.
fn receipt(instance: &Instance, factor: f64, until: Timestamp, exists: bool) -> Option<Receipt> {
    let ran = std::time::Duration::try_from(until.duration_since(instance.started?)).unwrap_or_default();
    let running_seconds = ran.as_secs_f64().ceil() as u64;
    let price_per_hour = Money { micros: (instance.price_per_hour().micros as f64 * factor).ceil() as u64 };
    let cost = price_per_hour.for_time(std::time::Duration::from_secs(running_seconds.max(60)));
    Some(Receipt { instance: instance.name.clone(), zone: instance.zone.clone(), running_seconds, price_per_hour, cost, exists })
}
