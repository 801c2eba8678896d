//! The simulated service against what Microsoft's own client library was seen to send and to get, and its rules of time and money.
//!
//! One file for tests that replay the same recordings; those with real processes have theirs.

mod assets;
mod processes;
mod tracking;

use std::{collections::BTreeSet, time::Duration};

use serde_json::{Value, json};

use super::{
    super::{clock::after, key::Key},
    api::{Request, below, perform, route},
    script::{Preemption, QuotaRefusal, Script, Trouble, TroubleKind},
    service::{Act, Here, Service, Workspace},
    tokens,
};
use crate::job::units::Span;

const ADDRESS: &str = "http://127.0.0.1:1";
const WORKSPACE: &str = "/subscriptions/00000000-0000-0000-0000-000000000001/resourceGroups/rg1/providers/Microsoft.MachineLearningServices/workspaces/ws1";

fn workspace() -> Workspace {
    Workspace {
        subscription: "00000000-0000-0000-0000-000000000001".to_owned(),
        group: "rg1".to_owned(),
        name: "ws1".to_owned(),
        location: "eastus".to_owned(),
    }
}

fn service(script: Script) -> Service {
    let key = Key::new().expect("a key");
    let here = Here { workspace: workspace(), address: ADDRESS.to_owned(), key, state: "/nonexistent".into(), certificate: None };
    // Before sizes were retired that the recordings have.
    Service::new(here, script, "2025-09-01T12:00:00Z".parse().expect("a time"), 1.0)
}

fn seconds(seconds: u64) -> Span {
    Span(Duration::from_secs(seconds))
}

fn pass(service: &mut Service, seconds: u64) {
    service.advance(after(service.now, Duration::from_secs(seconds)));
}

/// Status, header and body, as they go out. The address of an operation is followed as it came.
fn send(service: &mut Service, method: &str, path: &str, query: &Value, body: &Value) -> (u16, Option<String>, Value) {
    let parts = below(service, path).unwrap_or_else(|refusal| panic!("{path}: {refusal:?}"));
    let route = route(method, &parts).unwrap_or_else(|| panic!("{method} {path}"));
    let text = |value: &Value| value.as_str().expect("text").to_owned();
    let query = query.as_object().into_iter().flatten().map(|(key, value)| (key.clone(), text(value))).collect();
    let request = Request { method: method.to_owned(), path: path.to_owned(), query, body: body.clone(), ..Request::default() };
    let reply = perform(service, &route, &request);
    let link = reply.headers.iter().find(|(name, _)| *name == "azure-asyncoperation").map(|(_, link)| link.clone());
    (reply.status, link, serde_json::from_slice(&reply.body).unwrap_or_default())
}

/// Status and body for a path below the workspace.
fn ask(service: &mut Service, method: &str, end: &str, body: &Value) -> (u16, Value) {
    let (path, query) = end.split_once('?').unwrap_or((end, ""));
    let mut all = json!({ "api-version": "2025-12-01" });
    for (name, value) in query.split('&').filter_map(|pair| pair.split_once('=')) {
        all[name] = json!(value);
    }
    let (status, _, body) = send(service, method, &format!("{WORKSPACE}{path}"), &all, body);
    (status, body)
}

fn recorded(name: &str) -> Vec<Value> {
    let path = format!("{}/tests/recordings/azureml/{name}.json", env!("CARGO_MANIFEST_DIR"));
    let recording: Value = serde_json::from_str(&std::fs::read_to_string(path).expect("a recording")).expect("JSON");
    recording["calls"].as_array().expect("calls").clone()
}

fn body_of(recording: &str, method: &str) -> Value {
    recorded(recording).iter().find(|call| call["method"] == method).expect("a call")["body"].clone()
}

/// Sends the recorded requests, and holds the answers against the recorded ones. Before each of them, `between` lets happen what
/// had happened at Microsoft's.
fn replay(service: &mut Service, recording: &str, mut between: impl FnMut(&mut Service, &Value)) {
    let mut operation = String::new();
    for call in recorded(recording) {
        let (method, mut path) = (call["method"].as_str().expect("a method"), call["path"].as_str().expect("a path").to_owned());
        let at = format!("{recording}: {method} {path}");
        if path.ends_with("/listSecrets") || path.ends_with("/workspaceartifactstore") {
            continue;
        }
        between(service, &call);
        if let Some((start, _)) = path.split_once("/computeOperationsStatus/") {
            path = format!("{start}/computeOperationsStatus/{operation}");
        }
        let (status, link, answer) = send(service, method, &path, &call["query"], &call["body"]);
        assert_eq!(status, call["status"], "{at}: {answer}");
        let expected = call["response_headers"]["Azure-AsyncOperation"].as_str();
        assert_eq!(link.is_some(), expected.is_some(), "{at}");
        if let Some((link, expected)) = link.zip(expected) {
            let start = |link: &str| {
                link.replace("{endpoint}", ADDRESS).split("/computeOperationsStatus/").next().expect("a start").to_owned()
            };
            assert_eq!(start(&link), start(expected));
            operation =
                link.split("/computeOperationsStatus/").nth(1).and_then(|end| end.split('?').next()).expect("an id").to_owned();
        }
        assert_alike(&call["response"], &answer, &at);
    }
}

/// Alike but for values that are others each time.
fn assert_alike(expected: &Value, found: &Value, at: &str) {
    const OTHER: [&str; 9] = [
        "createdAt",
        "lastModifiedAt",
        "createdOn",
        "allocationStateTransitionTime",
        "startTimeUtc",
        "endTimeUtc",
        "mlFlowTrackingUri",
        "target",
        "logFiles",
    ];
    match (expected, found) {
        (Value::Object(expected), Value::Object(found)) => {
            let names = |object: &serde_json::Map<String, Value>| object.keys().cloned().collect::<BTreeSet<_>>();
            assert_eq!(names(expected), names(found), "{at}");
            for (name, found) in found {
                let tracking = name == "endpoint" && at.ends_with("Tracking");
                if !OTHER.contains(&name.as_str()) && !tracking {
                    assert_alike(&expected[name], found, &format!("{at}.{name}"));
                }
            }
        }
        (Value::Array(expected), Value::Array(found)) => {
            assert_eq!(expected.len(), found.len(), "{at}: {found:?}");
            expected.iter().zip(found).for_each(|(expected, found)| assert_alike(expected, found, at));
        }
        (Value::String(expected), Value::String(found)) => assert_eq!(expected.replace("{endpoint}", ADDRESS), *found, "{at}"),
        _ => assert_eq!(expected, found, "{at}"),
    }
}

fn cluster_body(size: &str, priority: &str) -> Value {
    let mut body = body_of("compute-create-nc6sv3-lowpri", "PUT");
    let inner = &mut body["properties"]["properties"];
    (inner["vmSize"], inner["vmPriority"]) = (json!(size), json!(priority));
    body
}

fn make_cluster(service: &mut Service, size: &str, priority: &str) {
    assert_eq!(ask(service, "PUT", "/computes/gpu", &cluster_body(size, priority)).0, 201);
    pass(service, 10);
}

fn make_environment(service: &mut Service) {
    let body = body_of("environment-create-image", "PUT");
    assert_eq!(ask(service, "PUT", "/environments/onnxruntime-gpt/versions/1", &body).0, 201);
}

/// The recorded job, on one node and with one process.
fn job_body() -> Value {
    let mut body = body_of("job-create-command-pytorch-2x8", "PUT");
    let properties = &mut body["properties"];
    properties["resources"]["instanceCount"] = json!(1);
    properties["distribution"]["processCountPerInstance"] = json!(1);
    body
}

/// A service with a cluster of low priority, and a job that waits for nodes there.
fn waiting(script: Script) -> Service {
    let mut service = service(script);
    make_cluster(&mut service, "Standard_ND40rs_v2", "LowPriority");
    make_environment(&mut service);
    assert_eq!(ask(&mut service, "PUT", "/jobs/job-a1", &job_body()).0, 201);
    service
}

/// …and that has them, and runs.
fn running(script: Script) -> Service {
    let mut service = waiting(script);
    pass(&mut service, 40);
    assert_eq!(status(&service, "job-a1"), "Running");
    assert_eq!(std::mem::take(&mut service.acts), [Act::Start("job-a1".to_owned())]);
    service
}

fn status(service: &Service, job: &str) -> &'static str {
    service.jobs[job].status()
}

fn counts(service: &mut Service) -> Value {
    ask(service, "GET", "/computes/gpu", &Value::Null).1["properties"]["properties"].clone()
}

fn error_of(service: &mut Service, job: &str) -> String {
    let path = format!("/history/v1.0{WORKSPACE}/runs/{job}/details");
    let details = send(service, "GET", &path, &json!({ "api-version": "v1.0" }), &Value::Null).2;
    details["error"]["error"]["message"].as_str().unwrap_or_default().to_owned()
}

#[test]
fn clusters_answer_as_recorded() {
    let mut new = service(Script::default());
    let mut calls = 0;
    replay(&mut new, "compute-create-nc6sv3-lowpri", |service, _| {
        calls += 1;
        pass(service, if calls == 4 { 10 } else { 0 });
    });
    replay(&mut new, "compute-get-404", |_, _| {});

    let mut old = service(Script::default());
    assert_eq!(ask(&mut old, "PUT", "/computes/gpu", &cluster_body("Standard_ND40rs_v2", "Dedicated")).0, 201);
    pass(&mut old, 10);
    replay(&mut old, "compute-get", |_, _| {});
    let mut calls = 0;
    replay(&mut old, "compute-delete", |service, _| {
        calls += 1;
        pass(service, if calls == 3 { 10 } else { 0 });
    });
    assert!(old.clusters.is_empty());

    let none = Script { quotas: [("TotalLowPriorityCores".to_owned(), 0)].into(), ..Script::default() };
    replay(&mut service(none), "compute-create-quota-400", |_, _| {});
}

#[test]
fn what_is_only_kept_answers_as_recorded() {
    let mut service = service(Script::default());
    for recording in ["workspace-get", "environment-create-image", "datastore-create-blob-identity"] {
        replay(&mut service, recording, |_, _| {});
    }
    let secret = json!({ "properties": {
        "datastoreType": "AzureBlob", "accountName": "a", "containerName": "c",
        "credentials": { "credentialsType": "AccountKey", "secrets": { "secretsType": "AccountKey", "key": "swordfish" } },
    } });
    assert_eq!(ask(&mut service, "PUT", "/datastores/keyed", &secret).0, 201);
    assert!(!ask(&mut service, "GET", "/datastores/keyed", &Value::Null).1.to_string().contains("swordfish"));
    assert_eq!(ask(&mut service, "GET", "/environments/onnxruntime-gpt/versions/1", &Value::Null).0, 200);
    let other = json!({ "properties": { "image": "acr1.azurecr.io/other:1" } });
    assert_eq!(ask(&mut service, "PUT", "/environments/onnxruntime-gpt/versions/1", &other).0, 409);
}

#[test]
fn jobs_answer_as_recorded() {
    let mut service = service(Script::default());
    make_cluster(&mut service, "Standard_ND40rs_v2", "Dedicated");
    make_environment(&mut service);
    replay(&mut service, "job-create-command-pytorch-2x8", |_, _| {});
    pass(&mut service, 5);
    replay(&mut service, "job-get", |_, _| {});
    replay(&mut service, "job-get-404", |_, _| {});
    assert_eq!(ask(&mut service, "PUT", "/jobs/ftjob4", &job_body()).0, 201);
    replay(&mut service, "job-cancel", |_, _| {});
    assert_eq!(status(&service, "ftjob4"), "Canceled");
}

#[test]
fn runs_answer_as_recorded() {
    let mut service = running(Script::default());
    let whole = body_of("job-create-command-pytorch-2x8", "PUT");
    for (name, code, recording) in [("ftjob6", 0, "job-stream"), ("ftjob3", 1, "job-stream-failed")] {
        service.exited("job-a1", 0, 0, 0);
        assert_eq!(ask(&mut service, "PUT", &format!("/jobs/{name}"), &whole).0, 201);
        let mut asked = 0;
        for call in recorded(recording).iter().filter(|call| call["path"].as_str().is_some_and(|path| path.ends_with("/details"))) {
            asked += 1;
            let last = call["response"]["endTimeUtc"].is_string();
            pass(&mut service, if asked == 1 && !last { 2 } else { 60 });
            if last {
                (0..16).for_each(|rank| service.exited(name, 0, rank, code));
                pass(&mut service, 5);
            }
            let path = call["path"].as_str().expect("a path");
            let (status, _, answer) = send(&mut service, "GET", path, &call["query"], &Value::Null);
            assert_eq!(status, 200);
            let mut expected = call["response"].clone();
            expected["properties"] = whole["properties"]["properties"].clone();
            if expected["status"] == "Queued" {
                // A run that waits has not started.
                assert_eq!(answer["startTimeUtc"], Value::Null);
            }
            assert_alike(&expected, &answer, recording);
        }
        assert!(asked > 0);
    }
}

#[test]
fn what_the_description_does_not_allow_is_refused() {
    let mut service = service(Script::default());
    make_cluster(&mut service, "Standard_ND40rs_v2", "Dedicated");
    make_environment(&mut service);
    let mut refused = |end: &str, body: &Value, part: &str| {
        let (status, answer) = ask(&mut service, "PUT", end, body);
        assert!(status == 400 && answer["error"]["message"].as_str().is_some_and(|text| text.contains(part)), "{part}: {answer}");
    };
    let changed = |mut body: Value, pointer: &str, value: Value| {
        let (parent, name) = pointer.rsplit_once('/').expect("a parent");
        body.pointer_mut(parent).expect("a place")[name] = value;
        body
    };
    let cluster = || cluster_body("Standard_ND40rs_v2", "Dedicated");
    let inner = "/properties/properties";
    for (end, body, part) in [
        ("/computes/gp", cluster(), "not a valid name of a compute"),
        ("/computes/ftctl-0123", cluster(), "not a valid name of a compute"),
        ("/computes/a-name-of-25-characters-x", cluster(), "not a valid name of a compute"),
        ("/computes/c1x", changed(cluster(), "/properties/computeType", json!("AmlCluster")), "AmlCluster"),
        ("/computes/c1x", changed(cluster(), &format!("{inner}/vmPriority"), json!("Spot")), "is none of"),
        ("/computes/c1x", changed(cluster(), &format!("{inner}/spot"), json!(true)), "/spot is not known"),
        (
            "/computes/c1x",
            changed(cluster(), &format!("{inner}/scaleSettings/maxNodeCount"), Value::Null),
            "maxNodeCount is required",
        ),
        ("/computes/c1x", changed(cluster(), &format!("{inner}/scaleSettings/minNodeCount"), json!(9)), "minNodeCount"),
        (
            "/computes/c1x",
            changed(cluster(), &format!("{inner}/scaleSettings/nodeIdleTimeBeforeScaleDown"), json!("120")),
            "as described",
        ),
        ("/computes/c1x", changed(cluster(), &format!("{inner}/vmSize"), json!("Standard_NC99")), "not a supported VM size"),
        ("/computes/gpu", cluster_body("Standard_D4s_v3", "Dedicated"), "cannot be changed"),
        ("/jobs/-x", job_body(), "not a valid name of a job"),
        ("/jobs/j", json!({}), "/properties is required"),
        ("/jobs/j", changed(job_body(), "/properties/command", Value::Null), "command is required"),
        ("/jobs/j", changed(job_body(), "/properties/jobType", json!("Sing")), "is not known"),
        ("/jobs/j", changed(job_body(), "/properties/limits/jobLimitsType", Value::Null), "jobLimitsType is required"),
        ("/jobs/j", changed(job_body(), "/properties/limits/timeout", json!("4h")), "as described"),
        ("/jobs/j", changed(job_body(), "/properties/identity", json!({ "identityType": "managed" })), "is not known"),
        ("/jobs/j", changed(job_body(), "/properties/tags", json!({ "a": 1 })), "is not a string"),
        (
            "/jobs/j",
            changed(job_body(), "/properties/environmentId", json!(format!("{WORKSPACE}/environments/x/versions/1"))),
            "was not found",
        ),
        ("/jobs/j", changed(job_body(), "/properties/computeId", json!(format!("{WORKSPACE}/computes/none"))), "was not found"),
        ("/jobs/j", changed(job_body(), "/properties/resources/instanceCount", json!(3)), "at most 2"),
        ("/environments/e/versions/1", json!({ "properties": {} }), "needs an image"),
    ] {
        refused(end, &body, part);
    }
    // Sizes end on their day.
    service.advance("2025-09-30T00:00:01Z".parse().expect("a time"));
    let (status, answer) = ask(&mut service, "PUT", "/computes/c1x", &cluster_body("Standard_NC6s_v3", "LowPriority"));
    assert!(status == 400 && answer.to_string().contains("not a supported VM size"), "{answer}");
    assert_eq!(ask(&mut service, "PUT", "/jobs/j", &job_body()).0, 201);
    assert_eq!(ask(&mut service, "PUT", "/jobs/j", &job_body()).0, 200);
    let other = changed(job_body(), "/properties/command", json!("true"));
    assert!(ask(&mut service, "PUT", "/jobs/j", &other).1.to_string().contains("already exists"));
}

#[test]
fn a_cluster_grows_for_a_job_shrinks_after_it_and_is_paid_for_its_nodes() {
    let mut service = waiting(Script::default());
    pass(&mut service, 2);
    let of = counts(&mut service);
    assert_eq!(
        (&of["allocationState"], &of["targetNodeCount"], &of["currentNodeCount"]),
        (&json!("Resizing"), &json!(1), &json!(0))
    );
    assert!(service.bill().is_empty(), "what was not given costs nothing");
    pass(&mut service, 10);
    assert_eq!(counts(&mut service)["nodeStateCounts"]["preparingNodeCount"], 1);
    pass(&mut service, 20);
    assert_eq!(
        (counts(&mut service)["nodeStateCounts"]["runningNodeCount"].clone(), status(&service, "job-a1")),
        (json!(1), "Preparing")
    );
    let nodes = ask(&mut service, "POST", "/computes/gpu/listNodes", &Value::Null).1;
    assert_eq!((&nodes["nodes"][0]["nodeState"], &nodes["nodes"][0]["runId"]), (&json!("running"), &json!("job-a1")));
    pass(&mut service, 5);
    assert_eq!(status(&service, "job-a1"), "Running");
    service.exited("job-a1", 0, 0, 0);
    pass(&mut service, 2);
    assert_eq!(status(&service, "job-a1"), "Completed");
    assert_eq!(counts(&mut service)["nodeStateCounts"]["idleNodeCount"], 1);
    // The recorded cluster waits half an hour.
    pass(&mut service, 1_700);
    assert!(service.bill()[0].exists);
    pass(&mut service, 200);
    let bill = service.bill();
    assert_eq!((bill.len(), bill[0].exists), (1, false));
    // Booting, the image, the job, the last words, idle time, and leaving: all is paid.
    assert_eq!(bill[0].running_seconds, 20 + 5 + 3 - 1 + 1 + 1_800 + 5 - 1, "{bill:?}");
    assert_eq!(bill[0].price_per_hour.micros, 4_406_400);
    assert_eq!(counts(&mut service)["currentNodeCount"], 0);
}

#[test]
fn nodes_that_are_not_given_leave_a_reason_and_are_asked_for_again() {
    for (script, code) in [
        (Script { stock_outs: vec!["standard_nd40rs_v2".to_owned()], ..Script::default() }, "AllocationFailed"),
        (
            Script {
                quotas: [("TotalLowPriorityCores".to_owned(), 39)].into(),
                quota_refusal: QuotaRefusal::Allocation,
                ..Script::default()
            },
            "ClusterCoreQuotaReached",
        ),
    ] {
        let mut service = waiting(script);
        pass(&mut service, 15);
        assert_eq!(counts(&mut service)["errors"][0]["error"]["code"], code);
        assert_eq!(status(&service, "job-a1"), "Queued");
        service.script = Script::default();
        pass(&mut service, 120);
        assert_eq!((counts(&mut service)["errors"].clone(), status(&service, "job-a1")), (Value::Null, "Running"));
    }
}

#[test]
fn an_operation_says_that_it_failed_or_never_ends() {
    let body = cluster_body("Standard_ND40rs_v2", "Dedicated");
    let quotas = [("standardNDSv2Family".to_owned(), 39)].into();
    let failing = Script { quotas, quota_refusal: QuotaRefusal::Operation, ..Script::default() };
    let endless = Script { endless_operations: true, ..Script::default() };
    for (script, state, says) in [(failing, "Failed", "Failed"), (endless, "Creating", "InProgress")] {
        let mut service = service(script);
        let version = json!({ "api-version": "2025-12-01" });
        let (status, link, _) = send(&mut service, "PUT", &format!("{WORKSPACE}/computes/gpu"), &version, &body);
        assert_eq!(status, 201);
        pass(&mut service, 100_000);
        let link = link.expect("an address");
        let path = link.trim_start_matches(ADDRESS).split('?').next().expect("a path");
        let answer = send(&mut service, "GET", path, &version, &Value::Null).2;
        assert_eq!(answer["status"], says, "{answer}");
        assert_eq!(answer["error"]["code"] == "ClusterCoreQuotaReached", state == "Failed");
        let shown = ask(&mut service, "GET", "/computes/gpu", &Value::Null).1;
        assert_eq!(shown["properties"]["provisioningState"], state);
    }
}

#[test]
fn a_cluster_is_updated_while_its_job_goes_on_and_keeps_what_it_had_where_that_is_refused() {
    let mut service = running(Script::default());
    let most = |shown: &Value| shown["properties"]["properties"]["scaleSettings"]["maxNodeCount"].clone();
    let state = |shown: &Value| shown["properties"]["provisioningState"].clone();
    let mut wider = service.clusters["gpu"].body.clone();
    let before = most(&wider);
    wider["properties"]["properties"]["scaleSettings"]["maxNodeCount"] = json!(3);
    for (script, after) in [
        (
            Script {
                quotas: [("TotalLowPriorityCores".to_owned(), 0)].into(),
                quota_refusal: QuotaRefusal::Operation,
                ..Script::default()
            },
            before,
        ),
        (Script::default(), json!(3)),
    ] {
        service.script = script;
        let (status_code, shown) = ask(&mut service, "PUT", "/computes/gpu", &wider);
        assert_eq!((status_code, state(&shown), most(&shown)), (200, json!("Updating"), json!(3)));
        pass(&mut service, 1);
        assert_eq!((status(&service, "job-a1"), counts(&mut service)["currentNodeCount"].clone()), ("Running", json!(1)));
        pass(&mut service, 10);
        let shown = ask(&mut service, "GET", "/computes/gpu", &Value::Null).1;
        assert_eq!((state(&shown), most(&shown), status(&service, "job-a1")), (json!("Succeeded"), after, "Running"));
    }
}

fn taken(after: u64, withdrawn: Option<u64>, restarts: bool) -> Script {
    let preemption =
        Preemption { job: "-a1".to_owned(), after: seconds(after), node: 0, withdrawn: withdrawn.map(seconds), restarts };
    Script { preemptions: vec![preemption], ..Script::default() }
}

#[test]
fn a_node_that_is_taken_before_it_boots_is_replaced_and_the_job_runs() {
    let mut service = waiting(taken(15, None, false));
    pass(&mut service, 16);
    assert_eq!(counts(&mut service)["nodeStateCounts"]["preemptedNodeCount"], 1);
    assert_eq!((status(&service, "job-a1"), service.bill().len()), ("Queued", 1));
    assert!(!service.bill()[0].exists);
    pass(&mut service, 60);
    assert_eq!((status(&service, "job-a1"), service.bill().len()), ("Running", 2));
}

#[test]
fn a_node_that_is_taken_while_its_job_runs_fails_the_run_or_starts_it_again() {
    for restarts in [false, true] {
        let mut service = running(taken(100, None, restarts));
        pass(&mut service, 61 + 28);
        assert_eq!(status(&service, "job-a1"), "Running", "the notice is half a minute");
        pass(&mut service, 3);
        assert_eq!(std::mem::take(&mut service.acts), [Act::Kill("job-a1".to_owned())]);
        assert_eq!(counts(&mut service)["nodeStateCounts"]["preemptedNodeCount"], 1);
        if restarts {
            pass(&mut service, 60);
            assert_eq!(service.acts, [Act::Start("job-a1".to_owned())]);
            let logs: Vec<String> = service.jobs["job-a1"].logs().into_keys().collect();
            assert!(logs.contains(&"user_logs/retry_001/std_log_process_00.txt".to_owned()), "{logs:?}");
            service.exited("job-a1", 0, 0, 137);
            assert_eq!(status(&service, "job-a1"), "Running", "the end of its first life is no news");
        } else {
            pass(&mut service, 10);
            assert_eq!(status(&service, "job-a1"), "Failed");
            assert!(error_of(&mut service, "job-a1").contains("PreemptionError: Nodes of this job got pre-empted."));
        }
    }
}

#[test]
fn a_notice_that_is_withdrawn_takes_nothing() {
    let mut service = running(taken(100, Some(20), false));
    let noticed = |service: &Service| service.clusters["gpu"].nodes.values().any(|node| node.notice.is_some());
    pass(&mut service, 65);
    assert!(noticed(&service));
    pass(&mut service, 20);
    assert!(!noticed(&service));
    pass(&mut service, 1_000);
    assert_eq!((status(&service, "job-a1"), service.acts.len()), ("Running", 0));
}

#[test]
fn a_job_ends_with_its_time() {
    let mut script = Script::default();
    for from_submission in [false, true] {
        script.timeout_from_submission = from_submission;
        let mut service = running(script.clone());
        pass(&mut service, 4 * 3_600 - 35);
        assert_eq!(status(&service, "job-a1") == "CancelRequested", from_submission);
        pass(&mut service, 100);
        assert_eq!(service.acts, [Act::Terminate("job-a1".to_owned()), Act::Kill("job-a1".to_owned())]);
        assert_eq!(status(&service, "job-a1"), "Canceled");
        assert!(error_of(&mut service, "job-a1").contains("timeout"));
    }
    script.stock_outs = vec!["Standard_ND40rs_v2".to_owned()];
    let mut service = waiting(script);
    pass(&mut service, 4 * 3_600);
    assert_eq!(status(&service, "job-a1"), "Canceled", "it never ran");
}

#[test]
fn a_cancelled_job_may_say_farewell_unless_nobody_tells_it() {
    let mut service = running(Script::default());
    assert_eq!(ask(&mut service, "POST", "/jobs/job-a1/cancel", &Value::Null), (200, Value::Null));
    assert_eq!(
        (status(&service, "job-a1"), service.acts.as_slice()),
        ("CancelRequested", &[Act::Terminate("job-a1".to_owned())][..])
    );
    service.exited("job-a1", 0, 0, 143);
    assert_eq!(status(&service, "job-a1"), "Canceled");

    let troubles = vec![Trouble { job: "-a1".to_owned(), kind: TroubleKind::NoCancel }];
    let mut service = running(Script { troubles, ..Script::default() });
    assert_eq!(ask(&mut service, "POST", "/jobs/job-a1/cancel", &Value::Null).0, 200);
    pass(&mut service, 3_600);
    assert_eq!((status(&service, "job-a1"), service.acts.len()), ("CancelRequested", 0));
    pass(&mut service, 3 * 3_600 + 60);
    assert_eq!(status(&service, "job-a1"), "Canceled", "its time is over");
}

#[test]
fn a_node_that_cannot_be_prepared_fails_the_run_in_words() {
    for (kind, words) in [
        (TroubleKind::NoImage, "Failed to pull Docker image"),
        (TroubleKind::NoPull, "a Managed Identity with `AcrPull` access to the ACR"),
        (TroubleKind::NoMount, "Could not mount"),
    ] {
        let troubles = vec![Trouble { job: "-a1".to_owned(), kind }];
        let mut service = waiting(Script { troubles, ..Script::default() });
        pass(&mut service, 60);
        assert_eq!(status(&service, "job-a1"), "Failed");
        assert!(error_of(&mut service, "job-a1").contains(words));
        assert_eq!(service.jobs["job-a1"].logs().keys().collect::<Vec<_>>(), ["system_logs/lifecycler/lifecycler.log"]);
    }
}

#[test]
fn a_deleted_cluster_takes_its_nodes_and_fails_its_jobs() {
    let mut service = running(Script::default());
    assert_eq!(ask(&mut service, "DELETE", "/computes/gpu", &Value::Null).0, 400);
    assert_eq!(ask(&mut service, "DELETE", "/computes/gpu?underlyingResourceAction=Delete", &Value::Null).0, 202);
    assert_eq!(counts(&mut service)["nodeStateCounts"]["leavingNodeCount"], 1);
    pass(&mut service, 10);
    assert_eq!((service.clusters.len(), status(&service, "job-a1"), service.bill()[0].exists), (0, "Failed", false));
}

#[test]
fn machines_of_one_job_go_with_it() {
    let mut service = service(Script::default());
    make_environment(&mut service);
    let mut body = job_body();
    body["properties"]["computeId"] = Value::Null;
    body["properties"]["resources"]["instanceType"] = json!("Standard_NC4as_T4_v3");
    body["properties"]["queueSettings"] = json!({ "jobTier": "Spot" });
    assert_eq!(ask(&mut service, "PUT", "/jobs/job-a1", &body).0, 201);
    pass(&mut service, 60);
    assert_eq!(status(&service, "job-a1"), "Running");
    assert_eq!(ask(&mut service, "GET", "/computes", &Value::Null).1["value"], json!([]));
    assert_eq!(service.bill()[0].price_per_hour.micros, 105_200, "low priority");
    service.exited("job-a1", 0, 0, 0);
    pass(&mut service, 10);
    assert!(service.clusters.is_empty() && !service.bill()[0].exists);
}

#[test]
fn lists_come_in_pages_and_by_tag() {
    let mut service = service(Script::default());
    make_cluster(&mut service, "Standard_ND40rs_v2", "Dedicated");
    make_environment(&mut service);
    for number in 0..23 {
        let mut body = job_body();
        if number % 2 == 0 {
            body["properties"]["tags"] = json!({ "ftctl-owner": "me" });
        }
        assert_eq!(ask(&mut service, "PUT", &format!("/jobs/job{number}"), &body).0, 201);
    }
    let mut names = Vec::new();
    let mut next = Some("/jobs?tag=ftctl-owner".to_owned());
    while let Some(end) = next {
        let (status, answer) = ask(&mut service, "GET", &end, &Value::Null);
        assert_eq!(status, 200);
        let page: Vec<String> = answer["value"]
            .as_array()
            .expect("a page")
            .iter()
            .map(|job| job["name"].as_str().expect("a name").to_owned())
            .collect();
        assert!(page.len() <= 10);
        names.extend(page);
        next = answer["nextLink"]
            .as_str()
            .map(|link| link.trim_start_matches(ADDRESS).trim_start_matches(WORKSPACE).replace("%24", "$"));
    }
    assert_eq!(names.len(), 12);
    names.sort();
    names.dedup();
    assert_eq!(names.len(), 12);
}

#[test]
fn quotas_sizes_and_prices_are_told() {
    let mut service = service(Script { quotas: [("TotalLowPriorityCores".to_owned(), 100)].into(), ..Script::default() });
    make_cluster(&mut service, "Standard_ND40rs_v2", "LowPriority");
    let version = json!({ "api-version": "2025-12-01" });
    let place = service.workspace.place();
    let mut get = |end: &str| send(&mut service, "GET", &format!("{place}/{end}"), &version, &Value::Null).2["value"].clone();
    let usages = get("usages");
    assert_eq!(
        (&usages[0]["name"]["value"], &usages[0]["currentValue"], &usages[0]["limit"]),
        (&json!("TotalLowPriorityCores"), &json!(80), &json!(100))
    );
    let sizes = get("vmSizes");
    let found = sizes.as_array().expect("sizes").iter().find(|size| size["name"] == "Standard_ND40rs_v2").expect("the V100s");
    assert_eq!((&found["vCPUs"], &found["gpus"], &found["family"]), (&json!(40), &json!(8), &json!("standardNDSv2Family")));
    assert!(get("quotas").as_array().expect("quotas").iter().any(|quota| quota["name"]["value"] == "standardNDSv2Family"));

    let mut prices = |filter: &str| {
        let answer = send(&mut service, "GET", "/api/retail/prices", &json!({ "$filter": filter }), &Value::Null);
        (answer.0, answer.2)
    };
    let ours = "armRegionName eq 'eastus' and armSkuName eq 'Standard_ND40rs_v2' and priceType eq 'Consumption'";
    let (_, all) = prices(ours);
    assert!(all["Count"].as_u64().expect("a count") > 3, "also what only looks like it");
    let (_, found) = prices(&format!(
        "{ours} and (contains(skuName, 'Low Priority') or skuName eq 'x') and productName eq 'Virtual Machines NDSv2 Series'"
    ));
    assert_eq!((&found["Count"], &found["Items"][0]["retailPrice"]), (&json!(1), &json!(4.4064)));
    assert_eq!(prices("nonsense").0, 400);
}

#[test]
fn a_token_is_good_for_its_time_and_its_service() {
    let key = Key::new().expect("a key");
    let issue = |resource: &str, life: u64| tokens::issue(&key, resource, "client", Duration::from_secs(life)).0;
    let good = issue("https://management.azure.com/", 60);
    assert_eq!((good.split('.').count(), tokens::check(&key, &good, tokens::SERVICES)), (3, Ok(())));
    assert_eq!(tokens::check(&key, &issue("https://management.azure.com/", 0), tokens::SERVICES), Err(tokens::Wrong::Expired));
    let of_storage = issue("https://storage.azure.com/", 60);
    assert_eq!(tokens::check(&key, &of_storage, tokens::SERVICES), Err(tokens::Wrong::Invalid));
    assert_eq!(tokens::check(&key, &of_storage, tokens::STORAGE), Ok(()));
    let other = Key::new().expect("a key");
    for stranger in [
        tokens::issue(&other, "https://management.azure.com/", "client", Duration::from_secs(60)).0,
        String::new(),
        format!("{good}x"),
    ] {
        assert_eq!(tokens::check(&key, &stranger, tokens::SERVICES), Err(tokens::Wrong::Invalid));
    }
}
