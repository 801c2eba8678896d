//! The simulated service against what Google's own command line was seen to send and to get.

use std::time::Duration;

use serde_json::{Value, json};

use super::{
    api::{Request, route},
    clock::after,
    cloud::{Act, Cloud, Place},
    script::{Preemption, Script},
};
use crate::job::units::Span;

const SERVICE: &str = "http://127.0.0.1:1";

fn recorded(name: &str) -> Value {
    let path = format!("{}/tests/recordings/gce/{name}.json", env!("CARGO_MANIFEST_DIR"));
    serde_json::from_str(&std::fs::read_to_string(path).expect("a recording")).expect("JSON")
}

fn cloud(script: Script) -> Cloud {
    Cloud::new("my-project", SERVICE, script, "2026-11-20T12:00:00Z".parse().expect("a time"), 1.0)
}

fn seconds(seconds: u64) -> Span {
    Span(Duration::from_secs(seconds))
}

fn pass(cloud: &mut Cloud, milliseconds: u64) {
    cloud.advance(after(cloud.now, Duration::from_millis(milliseconds)));
}

/// Status and body, as they go out.
fn ask(cloud: &mut Cloud, method: &str, path: &str, query: &Value, body: &Value) -> (u16, Value) {
    let below = path.split("/projects/").nth(1).expect("a project");
    let segments: Vec<&str> = below.split('/').skip(1).collect();
    let (_, handler, [zone, name]) = route(method, &segments).unwrap_or_else(|| panic!("{method} {path}"));
    let text = |value: &Value| value.as_str().expect("text").to_owned();
    let query = query.as_object().into_iter().flatten().map(|(key, value)| (key.clone(), text(value))).collect();
    let request = Request { method: method.to_owned(), query, body: body.clone() };
    match handler(cloud, &request, &(zone.to_owned(), name.to_owned())) {
        Ok(value) => (200, value),
        Err(refusal) => (refusal.status, refusal.body()),
    }
}

/// Sends the recorded requests, and holds the answers against the recorded ones.
fn replay(cloud: &mut Cloud, recording: &str) {
    let mut operation = String::new();
    for call in recorded(recording)["calls"].as_array().expect("calls") {
        let (method, path) = (call["method"].as_str().expect("a method"), call["path"].as_str().expect("a path"));
        // A machine that was just made is looked at while it is staged.
        pass(cloud, if path.ends_with("instances/gpuserver") && method == "GET" { 6_000 } else { 100 });
        let (status, answer) = ask(cloud, method, &path.replace("{op1}", &operation), &call["query"], &call["body"]);
        assert_eq!(status, call["status"], "{method} {path}: {answer}");
        if answer["kind"] == "compute#operation" {
            answer["name"].as_str().expect("a name").clone_into(&mut operation);
        }
        assert_alike(&call["response"], &answer, &format!("{recording}: {method} {path}"));
    }
}

/// Alike but for values that change each time.
fn assert_alike(expected: &Value, found: &Value, at: &str) {
    const ANEW: [&str; 12] = [
        "id",
        "targetId",
        "insertTime",
        "startTime",
        "endTime",
        "creationTimestamp",
        "fingerprint",
        "labelFingerprint",
        "limit",
        "usage",
        "archiveSizeBytes",
        "status",
    ];
    match (expected, found) {
        (Value::Object(expected), Value::Object(found)) => {
            // Fields that only images have are not compared here.
            let missing: Vec<_> = expected
                .keys()
                .filter(|key| {
                    !found.contains_key(*key) && !["guestOsFeatures", "licenses", "archiveSizeBytes"].contains(&key.as_str())
                })
                .collect();
            assert!(missing.is_empty(), "{at}: {missing:?} missing in {found:?}");
            for (key, found) in found {
                let expected = expected.get(key).unwrap_or_else(|| panic!("{at}: {key} is not what the service says"));
                let anew = ANEW.contains(&key.as_str()) && (key != "status" || at.contains("instances/gpuserver"));
                if anew {
                    assert_eq!(std::mem::discriminant(expected), std::mem::discriminant(found), "{at}.{key}: {found}");
                } else if !(key == "name" && found.as_str().is_some_and(|name| name.starts_with("operation-"))) {
                    assert_alike(expected, found, &format!("{at}.{key}"));
                }
            }
        }
        (Value::Array(expected), Value::Array(found)) => {
            assert_eq!(expected.len(), found.len(), "{at}: {found:?}");
            expected.iter().zip(found).for_each(|(expected, found)| assert_alike(expected, found, at));
        }
        (Value::String(expected), Value::String(found)) => {
            let expected = expected.replace("{service}", SERVICE);
            let (expected, operation) = (expected.split("{op1}").next().unwrap_or_default(), expected.contains("{op1}"));
            let same = if operation { found.starts_with(expected) } else { found == expected };
            assert!(same, "{at}: expected {expected}, found {found}");
        }
        _ => assert_eq!(expected, found, "{at}"),
    }
}

fn seed_body() -> Value {
    let recording = recorded("instances-create-seed");
    let insert = recording["calls"].as_array().expect("calls").iter().find(|call| call["method"] == "POST");
    insert.expect("an insert")["body"].clone()
}

fn place() -> Place {
    ("us-central1-a".to_owned(), "gpuserver".to_owned())
}

/// A machine as the seed's, changed as a merge patch says.
fn insert(cloud: &mut Cloud, changes: &Value) -> (u16, Value) {
    let mut body = seed_body();
    merge(&mut body, changes);
    ask(cloud, "POST", "/compute/v1/projects/my-project/zones/us-central1-a/instances", &json!({}), &body)
}

fn merge(into: &mut Value, from: &Value) {
    match from.as_object() {
        Some(from) => from.iter().for_each(|(key, value)| merge(&mut into[key], value)),
        None => *into = from.clone(),
    }
}

fn spot(run: &str) -> Value {
    json!({ "scheduling": {
        "preemptible": null, "provisioningModel": "SPOT", "instanceTerminationAction": "DELETE", "maxRunDuration": { "seconds": run },
    } })
}

#[test]
fn answers_are_those_that_gcloud_was_given() {
    for (recording, script) in [
        ("instances-create-seed", json!({})),
        ("instances-create-stockout", json!({ "stock_outs": ["us-central1-a"] })),
        ("instances-create-quota-403", json!({ "quotas": { "GPUS_ALL_REGIONS": 0 } })),
        ("instances-create-quota-op-error", json!({ "quotas": { "PREEMPTIBLE_NVIDIA_V100_GPUS": 0 }, "quota_in_operation": true })),
        ("instances-delete-404", json!({})),
    ] {
        replay(&mut cloud(serde_json::from_value(script).expect("a script")), recording);
    }
    for recording in
        ["instances-create-exists-409", "instances-delete", "instances-get-guest-attributes", "operations-list-preempted"]
    {
        let mut cloud = cloud(Script::default());
        assert_eq!(insert(&mut cloud, &json!({})).0, 200);
        let machine = cloud.instances.get_mut(&place()).expect("a machine");
        machine.guest_attributes.insert(("ftctl".to_owned(), "phase".to_owned()), "training".to_owned());
        if recording == "operations-list-preempted" {
            cloud.preempt(&place());
        }
        replay(&mut cloud, recording);
    }
}

#[test]
fn a_request_id_is_the_same_request() {
    let mut cloud = cloud(Script::default());
    let insert = |cloud: &mut Cloud, id: &str| {
        let path = "/compute/v1/projects/my-project/zones/us-central1-a/instances";
        ask(cloud, "POST", path, &json!({ "requestId": id }), &seed_body())
    };
    let (first, again) = (insert(&mut cloud, "one"), insert(&mut cloud, "one"));
    assert_eq!(first, again);
    assert_eq!(insert(&mut cloud, "two").0, 409);
    assert_eq!(cloud.instances.len(), 1);
}

#[test]
fn a_machines_life_follows_its_scheduling() {
    let mut cloud = cloud(Script::default());
    assert_eq!(insert(&mut cloud, &spot("600")).0, 200);
    pass(&mut cloud, 10_000);
    assert_eq!(std::mem::take(&mut cloud.acts), [Act::Boot(place())]);
    pass(&mut cloud, 599_000);
    assert!(cloud.acts.is_empty());
    pass(&mut cloud, 1_000);
    assert_eq!(std::mem::take(&mut cloud.acts), [Act::PowerButton(place())], "its time is over");
    pass(&mut cloud, 30_000);
    assert_eq!(std::mem::take(&mut cloud.acts), [Act::PowerOff(place())]);
    assert!(cloud.instances.is_empty(), "DELETE leaves nothing");
    let bill = cloud.bill();
    assert_eq!((bill.len(), bill[0].running_seconds, bill[0].exists), (1, 630, false));
    assert_eq!(bill[0].cost, bill[0].price_per_hour.for_time(Duration::from_secs(630)));
}

#[test]
fn the_notice_of_a_preemption_may_come_two_minutes_before_the_power_button() {
    let mut cloud = cloud(Script::default());
    let mut changes = spot("3600");
    changes["scheduling"]["preemptionNoticeDuration"] = json!({ "seconds": "120" });
    assert_eq!(insert(&mut cloud, &changes).0, 200);
    pass(&mut cloud, 60_000);
    cloud.acts.clear();
    cloud.preempt(&place());
    pass(&mut cloud, 119_000);
    let machine = &cloud.instances[&place()];
    assert!(machine.preempted && machine.phase.status() == "RUNNING" && cloud.acts.is_empty());
    pass(&mut cloud, 1_000);
    assert_eq!(std::mem::take(&mut cloud.acts), [Act::PowerButton(place())]);
    pass(&mut cloud, 30_000);
    assert!(cloud.instances.is_empty(), "DELETE leaves nothing");
    assert_eq!(cloud.operations.iter().filter(|operation| operation.system).count(), 1);
}

#[test]
fn a_preemption_leaves_a_record_even_before_the_machine_has_booted() {
    let preemptions = vec![Preemption { instance: "gpuserver".to_owned(), after: seconds(3) }];
    let mut cloud = cloud(Script { preemptions, ..Script::default() });
    assert_eq!(insert(&mut cloud, &spot("600")).0, 200);
    pass(&mut cloud, 20_000);
    assert!(cloud.instances.is_empty());
    assert_eq!(std::mem::take(&mut cloud.acts), [Act::PowerOff(place())], "it never ran");
    assert!(cloud.operations.iter().any(|operation| operation.kind == "compute.instances.preempted" && operation.system));
    assert!(cloud.bill().is_empty(), "what never ran costs nothing");
}

#[test]
fn what_the_service_refuses_is_refused() {
    for (changes, part) in [
        (json!({ "name": "Upper" }), "resource.name"),
        (json!({ "machineType": "zones/z/machineTypes/custom-12-79873" }), "6.5 GB"),
        (json!({ "machineType": "zones/z/machineTypes/custom-14-79872" }), "so many vCPUs"),
        (json!({ "machineType": "zones/z/machineTypes/e2-micro" }), "not known here"),
        (json!({ "machineType": "zones/z/machineTypes/a2-highgpu-1g" }), "comes with its accelerators"),
        (json!({ "machineType": "zones/z/machineTypes/g2-standard-4", "guestAccelerators": null }), "diskType"),
        (json!({ "guestAccelerators": [{ "acceleratorType": "x/nvidia-nothing", "acceleratorCount": 1 }] }), "Not in this zone"),
        (json!({ "scheduling": { "onHostMaintenance": "MIGRATE" } }), "live migration"),
        (json!({ "scheduling": { "automaticRestart": true } }), "automaticRestart"),
        (json!({ "scheduling": { "maxRunDuration": { "seconds": "600" } } }), "Not supported with preemptible"),
        (json!({ "scheduling": { "preemptionNoticeDuration": { "seconds": "120" } } }), "needs provisioningModel SPOT"),
        (spot("29"), "between 30 seconds"),
        (spot("10368001"), "120 days"),
        (json!({ "scheduling": { "instanceTerminationAction": "DELETE" } }), "Needs provisioningModel SPOT"),
    ] {
        let (status, answer) = insert(&mut cloud(Script::default()), &changes);
        assert!(status == 400 && answer.to_string().contains(part), "{changes}: {answer}");
    }
}

#[test]
fn a_stale_fingerprint_changes_nothing() {
    let mut cloud = cloud(Script::default());
    assert_eq!(insert(&mut cloud, &json!({})).0, 200);
    let path = "/compute/v1/projects/my-project/zones/us-central1-a/instances/gpuserver/setMetadata";
    let fingerprint = cloud.instances[&place()].fingerprint();
    let body = json!({ "fingerprint": fingerprint, "items": [{ "key": "a", "value": "1" }] });
    assert_eq!(ask(&mut cloud, "POST", path, &json!({}), &body).0, 200);
    assert_eq!(ask(&mut cloud, "POST", path, &json!({}), &body).0, 412);
    assert_eq!(cloud.instances[&place()].metadata.len(), 1);
}
