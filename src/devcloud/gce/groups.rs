//! Regional managed instance groups, and the templates of their machines. A machine that has stopped or is gone is replaced under
//! its name, in any of the group's zones that has one, for as long as its template allows.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::{
    api::{Answer, Refusal, Request, aggregated, begin, check, filtered, not_found, out_of_stock, over_quota, valid_name},
    clock::after,
    cloud::{Cloud, Place},
    instance::{Instance, Phase, last, time},
};
use crate::catalogue;

/// Between two tries to make a machine.
const PAUSE: Duration = Duration::from_secs(10);
/// From the request to the end of a group.
const DELETION: Duration = Duration::from_secs(20);

pub struct Template {
    id: u64,
    created: Timestamp,
    body: Value,
}

pub struct Group {
    id: u64,
    created: Timestamp,
    /// The group's body, as it was sent and patched since.
    body: Value,
    /// Rises with each change.
    version: u64,
    machine: String,
    /// The first configuration; machines keep it where repairs bring no changes.
    first: Option<Value>,
    /// When the next machine is made, while there is none.
    due: Option<Timestamp>,
    /// Where the last one was.
    zone: Option<String>,
    /// When it is gone, once it is being deleted.
    ends: Option<Timestamp>,
    errors: Vec<Value>,
}

impl Group {
    fn show(&self, cloud: &Cloud, (region, name): &Place) -> Value {
        let base = cloud.base();
        let link = format!("{base}/regions/{region}");
        let mut shown = self.body.clone();
        let stable = alive(cloud, &self.machine).is_some();
        let added = json!({
            "kind": "compute#instanceGroupManager", "id": self.id.to_string(), "creationTimestamp": time(self.created),
            "region": link, "selfLink": format!("{link}/instanceGroupManagers/{name}"),
            "instanceGroup": format!("{link}/instanceGroups/{name}"), "fingerprint": self.fingerprint(),
            "status": { "isStable": stable },
        });
        merge(&mut shown, &added);
        shown
    }

    fn fingerprint(&self) -> String {
        format!("version{}=", self.version)
    }

    fn mends(&self) -> bool {
        let repairs = self.body["instanceLifecyclePolicy"]["defaultActionOnFailure"] != "DO_NOTHING";
        repairs && self.body["targetSize"] == 1 && self.ends.is_none()
    }

    /// The properties of the next machine.
    fn properties(&self, template: &Value) -> Map<String, Value> {
        let updated = self.body["instanceLifecyclePolicy"]["forceUpdateOnRepair"] == "YES";
        let config = self.first.as_ref().filter(|_| !updated).unwrap_or(&self.body["allInstancesConfig"]["properties"]);
        let mut properties = template["properties"].clone();
        merge(&mut properties, &json!({ "name": self.machine, "labels": config["labels"] }));
        let mut items = properties["metadata"]["items"].as_array().cloned().unwrap_or_default();
        let metadata = config["metadata"].as_object().into_iter().flatten();
        items.retain(|item| config["metadata"][item["key"].as_str().unwrap_or_default()].is_null());
        items.extend(metadata.map(|(key, value)| json!({ "key": key, "value": value })));
        items.push(json!({ "key": "created-by", "value": self.body["name"] }));
        properties["metadata"]["items"] = json!(items);
        properties.as_object().cloned().unwrap_or_default()
    }
}

/// Merges as `PATCH` does: objects field by field, anything else as a whole.
fn merge(into: &mut Value, from: &Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            from.iter()
                .filter(|(_, value)| !value.is_null())
                .for_each(|(key, value)| merge(into.entry(key.clone()).or_insert(Value::Null), value));
        }
        (into, from) => *into = from.clone(),
    }
}

fn of(cloud: &Cloud, name: &str) -> Vec<Place> {
    cloud.instances.keys().filter(|(_, known)| known == name).cloned().collect()
}

fn alive(cloud: &Cloud, name: &str) -> Option<Place> {
    of(cloud, name).into_iter().find(|place| cloud.instances[place].phase != Phase::Terminated)
}

/// Lets every group make the machine that it lacks, and go that is over.
pub fn mend(cloud: &mut Cloud) {
    let now = cloud.now;
    cloud.groups.retain(|_, group| group.ends.is_none_or(|ends| ends > now));
    let lacking: Vec<Place> = cloud
        .groups
        .iter()
        .filter(|(_, group)| group.mends() && alive(cloud, &group.machine).is_none())
        .map(|(key, _)| key.clone())
        .collect();
    for key in lacking {
        let now = cloud.now;
        let Some(group) = cloud.groups.get_mut(&key) else { continue };
        if *group.due.get_or_insert_with(|| after(now, PAUSE)) > now {
            continue;
        }
        group.due = None;
        let machine = group.machine.clone();
        for stopped in of(cloud, &machine) {
            cloud.delete(&stopped);
        }
        if let Err(refusal) = make(cloud, &key)
            && let Some(group) = cloud.groups.get_mut(&key)
        {
            group.errors.push(json!({
                "timestamp": time(now), "error": { "code": refusal.reason, "message": refusal.message },
                "instanceActionDetails": { "action": "CREATING" },
            }));
        }
    }
}

/// In the first of its zones that has one; in the zone of the one before, unless the group may change it.
fn make(cloud: &mut Cloud, key: &Place) -> Result<(), Refusal> {
    let group = &cloud.groups[key];
    let template = cloud.templates.get(last(&group.body["instanceTemplate"])).map(|template| &template.body);
    let properties = group.properties(template.unwrap_or(&Value::Null));
    let moves = group.body["instanceLifecyclePolicy"]["onRepair"]["allowChangingZone"] == "YES";
    let stays = group.zone.clone().filter(|_| !moves);
    let zones: Vec<String> =
        zones(&group.body).map(str::to_owned).filter(|zone| stays.as_ref().is_none_or(|at| at == zone)).collect();
    let mut refused = None;
    for zone in zones {
        check(&properties, &zone, cloud.now)?;
        let id = cloud.next_id();
        let made = Instance::new(id, &zone, properties.clone(), cloud.now);
        if let Some(message) = over_quota(cloud, &made) {
            return Err(Refusal::new(403, "QUOTA_EXCEEDED", message));
        }
        if let Some(error) = out_of_stock(cloud, &zone) {
            refused.get_or_insert_with(|| Refusal::new(503, error.code, error.message));
            continue;
        }
        let place = (zone.clone(), made.name.clone());
        cloud.record_instance("insert", &place, id, None, true);
        cloud.instances.insert(place, made);
        if let Some(group) = cloud.groups.get_mut(key) {
            let config = group.body["allInstancesConfig"]["properties"].clone();
            group.first.get_or_insert(config);
            group.zone = Some(zone);
        }
        return Ok(());
    }
    refused.map_or(Ok(()), Err)
}

fn zones(body: &Value) -> impl Iterator<Item = &str> {
    body["distributionPolicy"]["zones"].as_array().into_iter().flatten().map(|zone| last(&zone["zone"]))
}

fn taken(what: &str) -> Refusal {
    Refusal::new(409, "alreadyExists", format!("The resource '{what}' already exists"))
}

fn group_target((region, name): &Place) -> (String, String) {
    (format!("regions/{region}"), format!("instanceGroupManagers/{name}"))
}

pub fn insert(cloud: &mut Cloud, request: &Request, (region, _): &Place) -> Answer {
    let body = request.body.clone();
    let name = body["name"].as_str().unwrap_or_default().to_owned();
    let shape = (&body["distributionPolicy"]["targetShape"], &body["updatePolicy"]["instanceRedistributionType"]);
    let rules = [
        (valid_name(&name), "name", "Must be a match of regex '(?:[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?)'"),
        (
            cloud.templates.contains_key(last(&body["instanceTemplate"])),
            "instanceTemplate",
            "The referenced instance template does not exist",
        ),
        (
            zones(&body).all(|zone| catalogue::region(zone) == region),
            "distributionPolicy.zones",
            "Zones must be in the region of the group",
        ),
        (shape.0 != "ANY" || shape.1 == "NONE", "distributionPolicy.targetShape", "ANY needs instanceRedistributionType NONE"),
        (body["targetSize"].is_u64(), "targetSize", "Required field"),
    ];
    if let Some((_, field, why)) = rules.iter().find(|(holds, ..)| !holds) {
        return Err(Refusal::new(400, "invalid", format!("Invalid value for field 'resource.{field}': {why}.")));
    }
    begin(cloud, request, |cloud| {
        let key = (region.clone(), name);
        if cloud.groups.contains_key(&key) {
            return Err(taken(&format!("projects/{}/regions/{}/instanceGroupManagers/{}", cloud.project, key.0, key.1)));
        }
        let id = cloud.next_id();
        let base = body["baseInstanceName"].as_str().unwrap_or(&key.1);
        let machine = format!("{base}-{:04x}", id % 0xffff);
        let due = Some(cloud.now);
        let group = Group {
            id,
            created: cloud.now,
            body,
            version: 1,
            machine,
            first: None,
            due,
            zone: None,
            ends: None,
            errors: Vec::new(),
        };
        let operation = cloud.record("insert", group_target(&key), id, None, false);
        cloud.groups.insert(key, group);
        Ok(operation)
    })
}

fn find<'c>(cloud: &'c mut Cloud, key: &Place) -> Result<&'c mut Group, Refusal> {
    let absent = not_found(cloud, &format!("regions/{}/instanceGroupManagers/{}", key.0, key.1));
    cloud.groups.get_mut(key).ok_or(absent)
}

pub fn get(cloud: &mut Cloud, _: &Request, key: &Place) -> Answer {
    find(cloud, key)?;
    Ok(cloud.groups[key].show(cloud, key))
}

pub fn patch(cloud: &mut Cloud, request: &Request, key: &Place) -> Answer {
    begin(cloud, request, |cloud| {
        let group = find(cloud, key)?;
        let fingerprint = &request.body["fingerprint"];
        if !fingerprint.is_null() && *fingerprint != group.fingerprint() {
            return Err(Refusal::new(412, "conditionNotMet", "Supplied fingerprint does not match current fingerprint."));
        }
        merge(&mut group.body, &request.body);
        group.version += 1;
        let id = group.id;
        Ok(cloud.record("patch", group_target(key), id, None, false))
    })
}

pub fn delete(cloud: &mut Cloud, request: &Request, key: &Place) -> Answer {
    begin(cloud, request, |cloud| {
        let ends = after(cloud.now, DELETION);
        let group = find(cloud, key)?;
        if group.ends.is_some() {
            let what = format!("projects/{}/regions/{}/instanceGroupManagers/{}", cloud.project, key.0, key.1);
            return Err(Refusal::new(400, "resourceNotReady", format!("The resource '{what}' is not ready")));
        }
        group.ends = Some(ends);
        let (id, machine) = (group.id, group.machine.clone());
        for place in of(cloud, &machine) {
            cloud.delete(&place);
        }
        Ok(cloud.record("delete", group_target(key), id, None, false))
    })
}

pub fn resize(cloud: &mut Cloud, request: &Request, key: &Place) -> Answer {
    let size: u64 = request.query.get("size").and_then(|size| size.parse().ok()).unwrap_or_default();
    begin(cloud, request, |cloud| {
        let now = cloud.now;
        let group = find(cloud, key)?;
        (group.body["targetSize"], group.due) = (json!(size), Some(now));
        let (id, machine) = (group.id, group.machine.clone());
        for place in of(cloud, &machine).iter().filter(|_| size == 0) {
            cloud.delete(place);
        }
        Ok(cloud.record("resize", group_target(key), id, None, false))
    })
}

pub fn errors(cloud: &mut Cloud, _: &Request, key: &Place) -> Answer {
    Ok(json!({ "items": find(cloud, key)?.errors }))
}

pub fn list_everywhere(cloud: &mut Cloud, request: &Request, _: &Place) -> Answer {
    let items = filtered(request, cloud.groups.iter().map(|(key, group)| group.show(cloud, key)))?;
    Ok(aggregated(cloud, "instanceGroupManager", "instanceGroupManagers", items))
}

fn show_template(cloud: &Cloud, name: &str) -> Value {
    let template = &cloud.templates[name];
    let mut shown = template.body.clone();
    let added = json!({
        "kind": "compute#instanceTemplate", "id": template.id.to_string(), "creationTimestamp": time(template.created),
        "selfLink": format!("{}/global/instanceTemplates/{name}", cloud.base()),
    });
    merge(&mut shown, &added);
    shown
}

fn template_target(name: &str) -> (String, String) {
    ("global".to_owned(), format!("instanceTemplates/{name}"))
}

fn known_template(cloud: &Cloud, name: &str) -> Result<u64, Refusal> {
    let absent = || not_found(cloud, &format!("global/instanceTemplates/{name}"));
    cloud.templates.get(name).map(|template| template.id).ok_or_else(absent)
}

pub fn insert_template(cloud: &mut Cloud, request: &Request, _: &Place) -> Answer {
    let body = request.body.clone();
    let name = body["name"].as_str().unwrap_or_default().to_owned();
    if !valid_name(&name) || !body["properties"].is_object() {
        return Err(Refusal::new(400, "invalid", "Invalid value for field 'resource.name': Must be a name, with properties."));
    }
    begin(cloud, request, |cloud| {
        if cloud.templates.contains_key(&name) {
            return Err(taken(&format!("projects/{}/global/instanceTemplates/{name}", cloud.project)));
        }
        let id = cloud.next_id();
        let operation = cloud.record("insert", template_target(&name), id, None, false);
        cloud.templates.insert(name, Template { id, created: cloud.now, body });
        Ok(operation)
    })
}

pub fn get_template(cloud: &mut Cloud, _: &Request, (_, name): &Place) -> Answer {
    known_template(cloud, name)?;
    Ok(show_template(cloud, name))
}

pub fn delete_template(cloud: &mut Cloud, request: &Request, (_, name): &Place) -> Answer {
    begin(cloud, request, |cloud| {
        let id = known_template(cloud, name)?;
        if cloud.groups.values().any(|group| last(&group.body["instanceTemplate"]) == name) {
            let message = format!("The instance_template resource '{name}' is already being used by an instance group manager");
            return Err(Refusal::new(400, "resourceInUseByAnotherResource", message));
        }
        cloud.templates.remove(name);
        Ok(cloud.record("delete", template_target(name), id, None, false))
    })
}

pub fn templates(cloud: &mut Cloud, request: &Request, _: &Place) -> Answer {
    let items = filtered(request, cloud.templates.keys().map(|name| show_template(cloud, name)))?;
    Ok(json!({ "kind": "compute#instanceTemplateList", "id": "x", "items": items }))
}

pub fn templates_everywhere(cloud: &mut Cloud, request: &Request, _: &Place) -> Answer {
    let items = filtered(request, cloud.templates.keys().map(|name| show_template(cloud, name)))?;
    Ok(aggregated(cloud, "instanceTemplate", "instanceTemplates", items))
}

/// How many machines each group has: where gcloud looks for that.
pub fn sizes(cloud: &mut Cloud, request: &Request, (region, _): &Place) -> Answer {
    let here = cloud.groups.iter().filter(|((at, _), _)| at == region);
    let shown = here.map(|((_, name), group)| {
        let link = format!("{}/regions/{region}/instanceGroups/{name}", cloud.base());
        json!({ "kind": "compute#instanceGroup", "name": name, "selfLink": link, "size": of(cloud, &group.machine).len() })
    });
    let items = filtered(request, shown)?;
    Ok(json!({ "kind": "compute#regionInstanceGroupList", "id": "x", "items": items }))
}

/// gcloud asks before it deletes a group. There are none.
pub fn autoscalers(_: &mut Cloud, request: &Request, _: &Place) -> Answer {
    let items = filtered(request, std::iter::empty())?;
    Ok(json!({ "kind": "compute#regionAutoscalerList", "id": "x", "items": items }))
}
