//! The provider against the simulated Compute Engine, over real connections, with real machines of processes.
//!
//! One file for tests that share the simulated cloud; groups and strangers have theirs.

mod discovery;
mod groups;
mod histories;
mod prices;
mod strangers;
mod waiting;

use std::{collections::BTreeMap, fs, os::unix::fs::PermissionsExt, path::PathBuf};

use serde_json::json;

use super::*;
use crate::{
    devcloud::gce::{Devcloud, Options},
    job::{clock::between, finding::Health, units::Money},
    provider::{
        clock::SystemClock,
        conformance::{self, World, attempt, order},
    },
    store::memory::MemoryStore,
};

/// In place of ftctl in a machine: counts its starts, tells what it was given, and works until it is told that it may end or that
/// the machine is taken away.
const AGENT: &str = r#"#!/bin/sh
trap 'touch "$HOME/noticed"; trap - TERM; kill $$' TERM
env >"$HOME/asks"
echo "$*" >"$HOME/arguments"
echo started >>"$HOME/starts"
until [ -e "$HOME/finish" ]; do sleep 0.05; done
"#;

struct Place {
    devcloud: Arc<Devcloud>,
    environment: BTreeMap<&'static str, String>,
    state: tempfile::TempDir,
    store: Arc<dyn Store>,
}

impl Place {
    async fn new(script: Value) -> Self {
        Self::at_speed(20.0, script).await
    }

    /// A cloud in which this many simulated seconds pass in one.
    async fn at_speed(speed: f64, script: Value) -> Self {
        let state = tempfile::tempdir().expect("a directory");
        let executable = state.path().join("agent");
        fs::write(&executable, AGENT).expect("written");
        fs::set_permissions(&executable, fs::Permissions::from_mode(0o755)).expect("executable");
        let options = Options {
            listen: ([127, 0, 0, 1], 0).into(),
            project: "my-project".to_owned(),
            speed,
            state: state.path().to_owned(),
            script: serde_json::from_value(script).expect("a script"),
            executable,
            variables: std::env::vars_os().filter(|(name, _)| name == "PATH").collect(),
            engine: false,
        };
        let devcloud = Devcloud::start(options).await.expect("it listens");
        let environment = devcloud.client_environment("my-project");
        Self { devcloud, environment, state, store: Arc::new(MemoryStore::new()) }
    }

    fn provider(&self) -> Gce {
        self.provider_of(Party::new("me", self.store.clone()))
    }

    fn provider_of(&self, party: Party) -> Gce {
        let variables = |name: &str| self.environment.get(name).cloned();
        let mut gce = Gce::open(&variables, party, Arc::new(SystemClock), None).expect("signed in");
        gce.client.pauses = [Duration::from_millis(1), Duration::from_millis(2)];
        gce
    }

    fn disks(&self, attempt: &AttemptId) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.state.path()).expect("readable").map(|entry| entry.expect("readable").path());
        entries.filter(|path| path.extension().is_some_and(|name| name == attempt.machine_name().as_str())).collect()
    }

    /// Pulls one of devcloud's levers.
    async fn pull(&self, method: reqwest::Method, lever: &str, body: &Value) -> Value {
        let url = format!("{}/devcloud/{lever}", self.environment["FTCTL_ENDPOINT_GCE"]);
        let request = reqwest::Client::new().request(method, url).bearer_auth(&self.environment["CLOUDSDK_AUTH_ACCESS_TOKEN"]);
        let answer = request.body(body.to_string()).send().await.expect("an answer").bytes().await.expect("a body");
        serde_json::from_slice(&answer).expect("JSON")
    }

    /// The cost of everything.
    async fn bill(&self) -> Value {
        self.pull(reqwest::Method::GET, "bill", &Value::Null).await
    }

    /// Every call, as the service heard it.
    async fn calls(&self) -> Vec<Value> {
        let calls = self.pull(reqwest::Method::GET, "calls", &Value::Null).await;
        calls.as_array().expect("a list").clone()
    }

    /// The calls that changed something, by name and status.
    async fn changes(&self) -> Vec<(String, u64)> {
        let reads = ["get", "list", "aggregatedList", "wait", "getSerialPortOutput", "capacity"];
        let call = |call: &Value| {
            let name = call["call"].as_str()?.rsplit('.').next()?.to_owned();
            (!reads.contains(&name.as_str())).then_some((name, call["status"].as_u64()?))
        };
        self.calls().await.iter().filter_map(call).collect()
    }
}

/// Simulated time, which a sleep moves ahead.
#[async_trait]
impl Clock for Devcloud {
    fn now(&self) -> Timestamp {
        Devcloud::now(self)
    }

    async fn sleep(&self, duration: Duration) {
        self.skip(duration);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.devcloud.shut_down();
    }
}

/// A party with a store of its own.
fn somebody() -> Party {
    Party::new("somebody", Arc::new(MemoryStore::new()))
}

async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let begun = Instant::now();
    while !holds().await {
        assert!(begun.elapsed() < Duration::from_secs(60), "{what} within a minute");
        sleep(Duration::from_millis(20)).await;
    }
}

fn image() -> TrainerImage {
    TrainerImage::Image { reference: "registry.example/ftctl@sha256:00".to_owned() }
}

#[async_trait]
impl World for Place {
    fn compute(&self) -> Compute {
        Compute::Gce(Box::default())
    }

    fn client(&self) -> Arc<dyn Provider> {
        Arc::new(self.provider())
    }

    fn elsewhere(&self, everybody: bool) -> Arc<dyn Provider> {
        Arc::new(self.provider_of(Party { everybody, ..somebody() }))
    }

    async fn finish(&self, attempt: &AttemptId) {
        let begun = Instant::now();
        // A machine takes its time until its agent runs.
        while self.starts(attempt) == 0 {
            assert!(begun.elapsed() < Duration::from_secs(60), "no agent of {} within a minute", attempt.machine_name());
            sleep(Duration::from_millis(20)).await;
        }
        for disk in self.disks(attempt) {
            fs::write(disk.join("finish"), "").expect("written");
        }
        while self.provider().find(attempt).await.expect("seen").is_some_and(|machine| machine["status"] != "TERMINATED") {
            assert!(begun.elapsed() < Duration::from_secs(60), "{} did not end within a minute", attempt.machine_name());
            sleep(Duration::from_millis(20)).await;
        }
    }

    fn image(&self) -> TrainerImage {
        image()
    }

    fn starts(&self, attempt: &AttemptId) -> usize {
        let starts = |disk: PathBuf| fs::read_to_string(disk.join("starts")).map_or(0, |text| text.lines().count());
        self.disks(attempt).into_iter().map(starts).sum()
    }

    fn remembers(&self) -> bool {
        true
    }
}

#[tokio::test]
async fn it_passes_the_suite() {
    conformance::machines(&Place::new(json!({ "boot": "1s" })).await).await;
}

fn seed() -> Value {
    let path = format!("{}/tests/recordings/gce/instances-create-seed.json", env!("CARGO_MANIFEST_DIR"));
    let recording: Value = serde_json::from_str(&fs::read_to_string(path).expect("a recording")).expect("JSON");
    let insert = recording["calls"].as_array().and_then(|calls| calls.iter().find(|call| call["method"] == "POST").cloned());
    let text = insert.expect("an insert")["body"].to_string().replace("{endpoint}", "https://compute.googleapis.com");
    serde_json::from_str(&text).expect("JSON")
}

/// The body for the seed's machine, made by a client of the public service.
fn plan() -> Plan {
    on(GcePlan::default())
}

fn on(wanted: GcePlan) -> Plan {
    Plan { compute: Compute::Gce(Box::new(wanted)).into(), ..conformance::plan() }
}

fn wanted_mut(plan: &mut Plan) -> &mut GcePlan {
    if let Compute::Gce(gce) = &mut *plan.compute { gce } else { panic!("a plan of gce") }
}

fn asked(plan: &Plan) -> &GcePlan {
    wanted(plan).expect("a plan of gce")
}

fn seed_body(change: impl Fn(&mut GcePlan)) -> Value {
    seed_body_of("registry.example/ftctl@sha256:00", change)
}

/// The same with another image.
fn seed_body_of(image: &str, change: impl Fn(&mut GcePlan)) -> Value {
    let image = TrainerImage::Image { reference: image.to_owned() };
    let variables = |name: &str| {
        let known = BTreeMap::from([("GOOGLE_CLOUD_PROJECT", "my-project"), ("CLOUDSDK_AUTH_ACCESS_TOKEN", "x")]);
        known.get(name).map(|value| (*value).to_owned())
    };
    let gce = Gce::open(&variables, somebody(), Arc::new(SystemClock), None).expect("signed in");
    let mut plan = GcePlan::default();
    change(&mut plan);
    let hour = Duration::from_secs(3_600);
    body::instance(&gce.client, &attempt("gpuserver"), &plan, &image, "us-central1-a", hour, Timestamp::UNIX_EPOCH)
}

#[test]
fn the_insert_is_the_seeds_but_for_what_is_listed() {
    let (mut ours, mut seeds) = (seed_body(|plan| plan.legacy_preemptible = true), seed());
    // Derived from the job; two commands of the seed are never the same machine.
    assert_eq!(ours["name"].take(), format!("{}-a1", attempt("gpuserver").job));
    seeds["name"].take();
    // The labels that find it without a record, and tell its price.
    let labels = ours.as_object_mut().and_then(|body| body.remove("labels")).expect("labels");
    assert_eq!(labels["ftctl-lifetime"], "3600");
    // The seed logs in and types; ours starts by itself, and a login leaves no key in the project's metadata.
    let items = ours["metadata"]["items"].as_array_mut().expect("items");
    let added: Vec<Value> = items.drain(1..).map(|item| item["key"].clone()).collect();
    assert_eq!(added, ["enable-guest-attributes", "enable-oslogin", "ftctl-cards", "ftctl-image", "startup-script"]);
    // gcloud gives a machine the project's own account, with seven scopes; ours has no account.
    assert!(seeds.as_object_mut().and_then(|body| body.remove("serviceAccounts")).is_some());
    assert_eq!(ours, seeds);

    // Without --legacy-preemptible: the kind of machine whose life the cloud itself limits.
    let spot = seed_body(|_| {});
    assert_eq!(
        spot["scheduling"],
        json!({
            "automaticRestart": false, "onHostMaintenance": "TERMINATE", "provisioningModel": "SPOT",
            "instanceTerminationAction": "DELETE", "maxRunDuration": { "seconds": "3570" },
        })
    );
    let early = seed_body(|plan| plan.preemption_notice = Some(crate::job::units::Span(Duration::from_secs(120))));
    assert_eq!(early["scheduling"]["preemptionNoticeDuration"], json!({ "seconds": "120" }));
}

#[test]
fn a_machine_has_no_account_but_the_one_that_was_asked_for_or_one_that_reads_its_image() {
    const READS: &str = "https://www.googleapis.com/auth/devstorage.read_only";
    let named = Some("machine@my-project.iam.gserviceaccount.com".to_owned());
    for (image, account, email, scope) in [
        ("europe-docker.pkg.dev/p/r/ftctl@sha256:00", None, "default", READS),
        ("gcr.io/p/ftctl@sha256:00", None, "default", READS),
        ("eu.gcr.io/p/ftctl@sha256:00", None, "default", READS),
        (
            "eu.gcr.io/p/ftctl@sha256:00",
            named.clone(),
            "machine@my-project.iam.gserviceaccount.com",
            "https://www.googleapis.com/auth/cloud-platform",
        ),
        (
            "registry.example/ftctl@sha256:00",
            named.clone(),
            "machine@my-project.iam.gserviceaccount.com",
            "https://www.googleapis.com/auth/cloud-platform",
        ),
    ] {
        let body = seed_body_of(image, |plan| plan.service_account.clone_from(&account));
        assert_eq!(body["serviceAccounts"], json!([{ "email": email, "scopes": [scope] }]), "{image}");
    }
    for image in [
        "registry.example/ftctl@sha256:00",
        "gcr.io.example/ftctl@sha256:00",
        "xgcr.io/a@sha256:00",
        "docker.pkg.dev/a@sha256:00",
        "gcr.io@sha256:00",
    ] {
        assert!(seed_body_of(image, |_| {})["serviceAccounts"].is_null(), "{image}");
    }
}

/// Provisions one attempt in a cloud with a script of failures; its result, and the zones of the machines.
async fn provision(script: Value) -> (Result<Vec<String>>, Vec<String>, Place) {
    let place = Place::new(script).await;
    let provider = place.provider();
    let mut plan = plan();
    wanted_mut(&mut plan).zones = vec!["us-central1-a".into(), "us-central1-b".into(), "us-west1-a".into()];
    let done = provider.provision(&attempt("job"), &plan, &image()).await;
    let mut zones: Vec<String> = provider
        .of_job(&attempt("job").job)
        .await
        .expect("listed")
        .iter()
        .map(|machine| last(&machine["zone"]).to_owned())
        .collect();
    zones.sort();
    (done, zones, place)
}

#[tokio::test]
async fn zones_are_tried_in_order_and_each_refusal_is_told() {
    let (done, zones, _) = provision(json!({ "stock_outs": ["us-central1-a"] })).await;
    assert_eq!(done, Ok(vec!["us-central1-a: out of stock".to_owned()]));
    assert_eq!(zones, ["us-central1-b"]);

    let (done, zones, place) = provision(json!({ "stock_outs": ["us-central1-a", "us-central1-b", "us-west1-a"] })).await;
    let error = done.expect_err("nowhere");
    assert_eq!((error.class, zones.len()), (Class::Capacity, 0));
    assert_eq!(
        error.message,
        "no zone has such a machine now: us-central1-a: out of stock; us-central1-b: out of stock; us-west1-a: out of stock"
    );
    assert_eq!(place.changes().await, vec![("insert".to_owned(), 200); 3], "each once");
}

#[tokio::test]
async fn a_zone_without_the_machine_type_is_passed_over_and_a_policy_ends_the_tries() {
    let says = |status: u16, reason: &str, message: &str, times: u32| json!({ "faults": [{ "call": "compute.instances.insert", "kind": { "status": status }, "words": [reason, message], "times": times }] });
    let absent = "The resource 'projects/p/zones/z/machineTypes/custom-12-79872' was not found";
    for (status, reason) in [(404, "notFound"), (400, "invalid")] {
        let (done, zones, _) = provision(says(status, reason, absent, 1)).await;
        assert_eq!((done, zones), (Ok(vec![format!("us-central1-a: {absent}")]), vec!["us-central1-b".to_owned()]));
        let (done, zones, place) = provision(says(status, reason, absent, 3)).await;
        let error = done.expect_err("nowhere");
        assert_eq!((error.class, zones.len()), (Class::Invalid, 0), "{error}");
        assert_eq!(place.changes().await.len(), 3, "each once");
    }
    let forbidden = "Constraint constraints/compute.vmExternalIpAccess violated for project 7.";
    let (done, _, place) = provision(says(412, "conditionNotMet", forbidden, 1)).await;
    let error = done.expect_err("forbidden");
    assert!(error.class == Class::Denied && error.message.contains("vmExternalIpAccess"), "{error}");
    assert_eq!(place.changes().await.len(), 1, "no other zone would help");
}

#[test]
fn networks_of_companies_are_named_as_gcloud_names_them() {
    let interface =
        |change: fn(&mut GcePlan)| seed_body_of("registry.example/ftctl@sha256:00", change)["networkInterfaces"][0].clone();
    let ends = |value: &Value, end: &str| value.as_str().is_some_and(|text| text.ends_with(end));
    let usual = interface(|_| {});
    assert!(usual["accessConfigs"][0].is_object() && ends(&usual["network"], "/global/networks/default"), "{usual}");
    let inside = interface(|plan| plan.external_address = false);
    assert!(inside.get("accessConfigs").is_none() && ends(&inside["network"], "/global/networks/default"), "{inside}");
    let shared = interface(|plan| {
        plan.subnetwork = Some("gpus".to_owned());
        plan.host_project = Some("net-host".to_owned());
    });
    assert!(ends(&shared["subnetwork"], "/compute/v1/projects/net-host/regions/us-central1/subnetworks/gpus"), "{shared}");
    assert!(shared.get("network").is_none(), "{shared}");
    let network = interface(|plan| plan.host_project = Some("net-host".to_owned()));
    assert!(ends(&network["network"], "/compute/v1/projects/net-host/global/networks/default"), "{network}");
}

#[tokio::test]
async fn a_quota_is_read_in_both_forms() {
    for in_operation in [false, true] {
        let script = |metric: &str| json!({ "quotas": { metric: 0 }, "quota_in_operation": in_operation });
        let (done, zones, place) = provision(script("PREEMPTIBLE_NVIDIA_V100_GPUS")).await;
        let error = done.expect_err("no quota");
        assert_eq!((error.class, zones.len()), (Class::Quota, 0), "{error}");
        assert!(error.message.contains("in region us-west1"), "{error}");
        assert_eq!(place.changes().await.len(), 2, "each region once");

        let (done, _, place) = provision(script("GPUS_ALL_REGIONS")).await;
        assert_eq!(done.expect_err("no quota").class, Class::Quota);
        assert_eq!(place.changes().await.len(), 1, "no other zone would help");
    }
}

#[tokio::test]
async fn trouble_on_the_line_makes_no_second_machine() {
    let insert = "compute.instances.insert";
    for kind in [json!({ "status": 429 }), json!({ "status": 503 }), json!("lost_answer")] {
        let (done, zones, _) = provision(json!({ "faults": [{ "call": insert, "kind": kind, "times": 2 }] })).await;
        assert_eq!((done, zones), (Ok(vec![]), vec!["us-central1-a".to_owned()]), "{kind}");
    }
    // Whatever is asked, twice.
    let (done, zones, _) = provision(json!({ "faults": [{ "call": "*", "kind": { "status": 503 }, "times": 3 }] })).await;
    assert_eq!((done, zones.len()), (Ok(vec![]), 1));

    let (done, zones, place) = provision(json!({ "faults": [{ "call": insert, "kind": { "status": 503 }, "times": 9 }] })).await;
    let error = done.expect_err("no answer");
    assert_eq!((error.class, zones.len()), (Class::Network, 0));
    assert_eq!(place.changes().await.len(), 5);

    let (done, zones, _) = provision(json!({ "faults": [{ "call": insert, "kind": { "status": 403 }, "times": 9 }] })).await;
    assert_eq!((done.expect_err("not allowed").class, zones.len()), (Class::Denied, 0));
}

#[tokio::test]
async fn quotas_are_told_before_a_job_meets_them() {
    let quotas = json!({ "quotas": { "GPUS_ALL_REGIONS": 1, "NVIDIA_P100_GPUS": 0, "PREEMPTIBLE_NVIDIA_P100_GPUS": 0 } });
    let (done, _, place) = provision(quotas).await;
    done.expect("made");
    let findings = place.provider().check().await;
    let told = |part: &str| findings.iter().find(|finding| finding.message.contains(part)).expect(part);
    assert_eq!(told("1 of 1 GPUs are used in all regions").health, Health::Bad);
    assert_eq!(told("p100: none in any region").health, Health::Notice);
    let v100 = told("v100: ");
    assert!(
        v100.health == Health::Good && v100.message.contains("us-central1 1 of 64 spot, us-central1 0 of 64 ordinary"),
        "{v100:?}"
    );

    let denied = json!({ "faults": [{ "call": "compute.projects.get", "kind": { "status": 403 } }] });
    let findings = Place::new(denied).await.provider().check().await;
    assert_eq!((findings.len(), findings[0].health), (1, Health::Bad), "{findings:?}");
}

/// The calls that a job's life makes.
const CALLS: [&str; 9] = [
    "instances.insert",
    "zoneOperations.wait",
    "instances.aggregatedList",
    "instances.setMetadata",
    "instances.getGuestAttributes",
    "instances.getSerialPortOutput",
    "instances.simulateMaintenanceEvent",
    "globalOperations.aggregatedList",
    "instances.delete",
];

#[tokio::test]
async fn every_call_bears_429_and_503() {
    let refused = |call: &&str| [429, 503].map(|status| json!({ "call": format!("compute.{call}"), "kind": { "status": status } }));
    let faults: Vec<Value> = CALLS.iter().flat_map(refused).collect();
    let place = Place::new(json!({ "boot": "1s", "notice": "0s", "faults": faults })).await;
    every_call(&place, &[plan(), plan()]).await;
    let calls = place.calls().await;
    for call in CALLS {
        let answers = calls.iter().filter(|made| made["call"] == format!("compute.{call}")).map(|made| made["status"].as_u64());
        let mut answers: Vec<u64> = answers.map(|status| status.expect("a status")).collect();
        answers.dedup();
        assert!(answers.starts_with(&[429, 503]) && answers.len() > 2, "{call} was answered with {answers:?}");
    }
}

/// The calls of a life: an attempt with each of these plans, of which the last ends by itself and the others are preempted.
async fn every_call(place: &Place, plans: &[Plan]) {
    let provider = place.provider();
    for (number, plan) in (1..).zip(plans) {
        let attempt = AttemptId::new(&attempt("job").job, number);
        provider.provision(&attempt, plan, &image()).await.expect("made");
        provider.launch(&RunOrder { attempt: number, ..order(&attempt) }).await.expect("told");
        provider.observe(&attempt).await.expect("seen");
        provider.signs(&attempt).await.expect("asked");
        provider.console(&attempt, 7).await.expect("read");
        if number as usize == plans.len() {
            place.finish(&attempt).await;
        } else {
            provider.preempt(&attempt).await.expect("taken");
        }
        provider.observe(&attempt).await.expect("seen");
    }
    provider.list().await.expect("listed");
    provider.destroy(&attempt("job").job).await.expect("destroyed");
}

#[tokio::test]
async fn a_token_that_ends_in_the_middle_is_renewed() {
    let faults = json!({ "faults": [{ "call": "compute.instances.insert", "kind": { "status": 401 } }] });
    let (done, zones, _) = provision(faults).await;
    assert_eq!((done, zones.len()), (Ok(vec![]), 1));
    let (done, ..) = provision(json!({ "faults": [{ "call": "*", "kind": { "status": 401 }, "times": 2 }] })).await;
    assert_eq!(done.expect_err("refused for good").class, Class::Denied);
}

#[tokio::test]
async fn a_second_up_changes_nothing() {
    let (done, _, place) = provision(json!({})).await;
    done.expect("made");
    place.provider().provision(&attempt("job"), &plan(), &image()).await.expect("found");
    assert_eq!(place.changes().await, [("insert".to_owned(), 200)]);
}

#[tokio::test]
async fn of_two_machines_of_one_name_the_older_stays() {
    let (done, _, place) = provision(json!({})).await;
    done.expect("made");
    let provider = place.provider();
    let body = body::instance(
        &provider.client,
        &attempt("job"),
        &GcePlan::default(),
        &image(),
        "us-west1-a",
        Duration::from_secs(600),
        provider.clock.now(),
    );
    let insert = Call::change(Method::POST, "zones/us-west1-a/instances", Some(body));
    provider.client.change(insert).await.expect("the cloud does not mind");
    provider.keep_the_oldest(&attempt("job")).await.expect("agreed");
    let left = provider.named(&attempt("job")).await.expect("listed");
    assert_eq!(left.iter().map(|machine| last(&machine["zone"])).collect::<Vec<_>>(), ["us-central1-a"]);
}

#[tokio::test]
async fn a_deletion_that_is_refused_says_what_may_still_cost() {
    for kind in [json!({ "status": 500 }), json!({ "status": 403 })] {
        let faults = json!({ "faults": [{ "call": "compute.instances.delete", "kind": kind, "times": 5 }] });
        let (done, _, place) = provision(faults).await;
        done.expect("made");
        let error = place.provider().destroy(&attempt("job").job).await.expect_err("refused");
        assert!(error.message.contains(&attempt("job").machine_name()), "{error}");
        // The next one tries again, as often as it takes.
        while place.provider().destroy(&attempt("job").job).await.is_err() {}
        assert_eq!(place.provider().list().await.expect("listed"), []);
    }
}

#[tokio::test]
async fn what_somebody_else_made_with_our_label_is_ours_to_prune() {
    let place = Place::new(json!({})).await;
    let provider = place.provider();
    let mut body = body::instance(
        &provider.client,
        &attempt("job"),
        &GcePlan::default(),
        &image(),
        "us-east1-c",
        Duration::from_secs(600),
        provider.clock.now(),
    );
    body["name"] = json!("by-hand");
    let insert = Call::change(Method::POST, "zones/us-east1-c/instances", Some(body));
    provider.client.change(insert).await.expect("made");
    let listed = provider.list().await.expect("listed");
    assert_eq!((listed[0].name.as_str(), &listed[0].attempt.job), ("by-hand", &attempt("job").job));
    provider.destroy(&attempt("job").job).await.expect("destroyed");
    assert_eq!(provider.list().await.expect("listed"), []);
}

#[tokio::test]
async fn a_machine_that_cannot_work_says_why_and_switches_itself_off() {
    let place = Place::new(json!({ "boot": "1s" })).await;
    let (provider, attempt) = (place.provider(), attempt("job"));
    let unpullable = TrainerImage::Image { reference: "registry.example/unpullable@sha256:00".to_owned() };
    provider.provision(&attempt, &plan(), &unpullable).await.expect("made");
    provider.launch(&order(&attempt)).await.expect("told");
    let begun = Instant::now();
    let why = loop {
        match provider.observe(&attempt).await.expect("seen") {
            Sighting::Unfit { why } => break why,
            _ => assert!(begun.elapsed() < Duration::from_secs(60), "reported within a minute"),
        }
        sleep(Duration::from_millis(50)).await;
    };
    assert!(why.contains("unpullable@sha256:00 cannot be pulled"), "{why}");
    provider.destroy(&attempt.job).await.expect("destroyed");
}

/// The keys of a machine's metadata.
async fn keys(provider: &Gce, attempt: &AttemptId) -> Vec<String> {
    let machine = provider.find(attempt).await.expect("seen").expect("there");
    let items = machine["metadata"]["items"].as_array().expect("items").clone();
    items.iter().filter_map(|item| Some(item["key"].as_str()?.to_owned())).collect()
}

#[tokio::test]
async fn the_secret_goes_from_the_metadata_when_the_agent_was_heard_of() {
    let set = "compute.instances.setMetadata";
    for faults in [
        json!([]),
        json!([{ "call": set, "kind": "lost_answer", "skip": 1 }, { "call": set, "kind": { "status": 503 }, "skip": 2 }]),
    ] {
        let place = Place::new(json!({ "boot": "1s", "faults": faults })).await;
        let (provider, attempt) = (place.provider(), attempt("job"));
        provider.heard(&attempt).await.expect("there is nothing yet");
        provider.provision(&attempt, &plan(), &image()).await.expect("made");
        provider.launch(&order(&attempt)).await.expect("told");
        assert!(keys(&provider, &attempt).await.contains(&"ftctl-environment".to_owned()));
        until("a start", async || place.starts(&attempt) == 1).await;
        provider.heard(&attempt).await.expect("told");
        let (before, kept) = (place.changes().await.len(), keys(&provider, &attempt).await);
        assert!(!kept.contains(&"ftctl-environment".to_owned()) && kept.contains(&"ftctl-order".to_owned()), "{kept:?}");
        // A later driver of the job asks once, and changes nothing; nor is the agent started again.
        provider.heard(&attempt).await.expect("told");
        provider.launch(&order(&attempt)).await.expect("told");
        assert_eq!((place.changes().await.len(), keys(&provider, &attempt).await), (before, kept));
        assert_eq!(provider.observe(&attempt).await, Ok(Sighting::Alive { agent: true }));
        provider.destroy(&attempt.job).await.expect("destroyed");
        provider.heard(&attempt).await.expect("it is gone");
    }
}

#[tokio::test]
async fn a_machine_refuses_its_metadata_to_the_container_and_hands_the_notice_in() {
    let place = Place::at_speed(1.0, json!({ "boot": "1s" })).await;
    let (provider, attempt) = (place.provider(), attempt("job"));
    let mut plan = plan();
    wanted_mut(&mut plan).preemption_notice = Some(crate::job::units::Span(Duration::from_secs(120)));
    let image = TrainerImage::Image { reference: "us-docker.pkg.dev/p/r/ftctl@sha256:00".to_owned() };
    provider.provision(&attempt, &plan, &image).await.expect("made");
    provider.launch(&order(&attempt)).await.expect("told");
    until("a start", async || place.starts(&attempt) == 1).await;
    let disk = place.disks(&attempt).remove(0);
    let read = |name: &str| fs::read_to_string(disk.join(name)).unwrap_or_default();
    assert_eq!(read("iptables"), "-w -I OUTPUT -d 169.254.169.254 -p tcp ! --dport 53 -m owner --uid-owner 10001 -j REJECT\n");
    assert!(!read("asks").contains("GCE_METADATA_HOST") && read("asks").contains("XDG_CACHE_HOME="), "{}", read("asks"));
    let said = read("arguments");
    assert!(said.contains("--environment ") && said.ends_with("environment.json\n"), "{said}");
    assert!(!disk.join("run/docker").exists(), "the sign-in to the registry is over");
    let url = format!("{}/devcloud/preempt?instance={}", place.environment["FTCTL_ENDPOINT_GCE"], attempt.machine_name());
    let token = &place.environment["CLOUDSDK_AUTH_ACCESS_TOKEN"];
    reqwest::Client::new().post(url).bearer_auth(token).send().await.expect("an answer");
    // The power button is two minutes away.
    until("the notice", async || disk.join("noticed").exists()).await;
    provider.destroy(&attempt.job).await.expect("destroyed");
}

#[tokio::test]
async fn a_machine_that_boots_after_everything_was_shut_down_gets_no_power() {
    let (done, _, place) = provision(json!({ "boot": "20s" })).await;
    done.expect("made");
    place.devcloud.shut_down();
    let begun = Instant::now();
    while place.devcloud.now() < Timestamp::now() + Duration::from_secs(40) {
        assert!(begun.elapsed() < Duration::from_secs(60), "its time passes");
        sleep(Duration::from_millis(50)).await;
    }
    let disks = place.disks(&attempt("job"));
    assert_eq!(disks.len(), 1, "it booted");
    let here = |process: &fs::DirEntry| fs::read_link(process.path().join("cwd")).is_ok_and(|folder| disks.contains(&folder));
    let left: Vec<_> = fs::read_dir("/proc").expect("processes").flatten().filter(here).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[tokio::test]
async fn who_is_not_signed_in_is_told_prices_and_nothing_else() {
    for (set, class, part) in [
        (&["GOOGLE_CLOUD_PROJECT"][..], Class::Denied, "no one is signed in"),
        (&["CLOUDSDK_AUTH_ACCESS_TOKEN"], Class::Invalid, "no project"),
    ] {
        let variables = |name: &str| set.contains(&name).then(|| "x".to_owned());
        let gce = Gce::open(&variables, somebody(), Arc::new(SystemClock), None).expect("nothing is asked");
        let plan = Plan { store: "azure://account/container".to_owned(), ..plan() };
        assert_eq!(gce.price(&plan).await.expect("a price").per_hour, asked(&plan).price_per_hour());
        for error in [gce.answers().await.expect_err("no token"), gce.list().await.expect_err("no token")] {
            assert!(error.class == class && error.message.contains(part), "{error}");
        }
        let never = Plan { ttl: crate::job::units::Span(Duration::from_secs(1)), ..plan };
        assert_eq!(gce.price(&never).await.expect_err("too short").class, Class::Invalid);
    }
}

#[tokio::test]
async fn zones_are_ranked_by_what_is_expected_of_them() {
    let good = |obtainability: f64, uptime: &str| json!({ "obtainability": obtainability, "uptime": uptime });
    let outlooks = json!({
        "us-central1-a": good(0.3, "10h"), "us-central1-b": good(0.9, "2h"), "us-central1-c": good(0.5, "10h"),
        "us-west1-a": good(0.2, "20h"), "us-west1-b": good(0.9, "10h"), "europe-west4-b": good(0.0, "1h"),
    });
    let mut wanted = plan();
    wanted_mut(&mut wanted).rank_zones = true;
    wanted_mut(&mut wanted).zones =
        ["us-central1-a", "us-central1-b", "us-central1-c", "us-west1-a", "us-west1-b", "europe-west4-b"]
            .map(str::to_owned)
            .to_vec();
    let refused = [403, 404].map(|status| json!({ "call": "compute.advice.capacity", "kind": { "status": status }, "times": 3 }));
    for (script, order, said) in [
        // 0.9 × 10 h before 0.5 × 10 h; the last is recommended by its region, and no machine is expected there.
        (
            json!({ "outlooks": outlooks }),
            vec!["us-west1-b", "us-central1-c", "europe-west4-b", "us-central1-a", "us-central1-b", "us-west1-a"],
            "expected of them: us-west1-b 0.90 for 10h, us-central1-c 0.50 for 10h, europe-west4-b 0.00 for 1h",
        ),
        (
            json!({ "faults": [refused[0]] }),
            asked(&wanted).zones.iter().map(String::as_str).collect(),
            "in the order of the plan: Required",
        ),
        (
            json!({ "faults": [refused[1]] }),
            asked(&wanted).zones.iter().map(String::as_str).collect(),
            "in the order of the plan: ",
        ),
    ] {
        let place = Place::new(script).await;
        let (zones, finding) = advice::ranked(&place.provider().client, asked(&wanted)).await;
        assert_eq!(zones, order);
        assert!(finding.message.contains(said), "{}", finding.message);
    }
    // The machine is made where it is expected to be available, and the plan says so.
    let place = Place::new(json!({ "outlooks": outlooks, "stock_outs": ["us-west1-b"] })).await;
    place.provider().provision(&attempt("job"), &wanted, &image()).await.expect("made");
    let machines = place.provider().of_job(&attempt("job").job).await.expect("listed");
    assert_eq!(last(&machines[0]["zone"]), "us-central1-c");
    let findings = place.provider().room(&wanted).await;
    assert!(findings.iter().any(|finding| finding.what == "zones" && finding.health == Health::Good), "{findings:?}");
}

fn of(accelerator: &str) -> GcePlan {
    crate::job::gce::GceSpec { accelerator: Some(accelerator.into()), ..Default::default() }.into()
}

#[tokio::test]
async fn a_machine_that_comes_with_its_accelerators_is_asked_for_by_its_type() {
    for (accelerator, kind, network_card) in
        [("a100", "a2-highgpu-1g", None), ("l4", "g2-standard-4", None), ("h100", "a3-highgpu-1g", Some("GVNIC"))]
    {
        let place = Place::new(json!({})).await;
        let (provider, plan) = (place.provider(), on(of(accelerator)));
        provider.provision(&attempt("job"), &plan, &image()).await.expect("made");
        let listed = provider.list().await.expect("listed");
        assert_eq!(listed[0].price_per_hour, asked(&plan).price_per_hour(), "{kind}");
        let calls = place.calls().await;
        let body = &calls.iter().find(|call| call["call"] == "compute.instances.insert").expect("an insert")["body"];
        assert_eq!(last(&body["machineType"]), kind);
        assert!(body["guestAccelerators"].is_null(), "{kind} comes with them");
        assert_eq!(last(&body["disks"][0]["initializeParams"]["diskType"]), "pd-balanced");
        assert_eq!(body["networkInterfaces"][0]["nicType"].as_str(), network_card);
    }
}

#[tokio::test]
async fn a_plan_is_told_whether_the_quotas_hold_it() {
    let gpus = "PREEMPTIBLE_NVIDIA_V100_GPUS";
    for (quotas, all, us_central1, text) in [
        (
            json!({}),
            Health::Good,
            Health::Good,
            "us-central1: PREEMPTIBLE_NVIDIA_V100_GPUS 1 of 64 used, 1 needed; CPUS 12 of 1000000 used, 12 needed",
        ),
        (
            json!({ "GPUS_ALL_REGIONS": 1 }),
            Health::Bad,
            Health::Good,
            "all regions: no room: GPUS_ALL_REGIONS 1 of 1 used, 1 needed",
        ),
        // The machine that is there takes the only one of this region; the others have theirs.
        (json!({ gpus: 1 }), Health::Good, Health::Notice, "us-central1: no room: PREEMPTIBLE_NVIDIA_V100_GPUS 1 of 1 used"),
        (json!({ "CPUS": 11, "PREEMPTIBLE_CPUS": 24 }), Health::Good, Health::Good, "PREEMPTIBLE_CPUS 12 of 24 used, 12 needed"),
        (json!({ "DISKS_TOTAL_GB": 399 }), Health::Good, Health::Notice, "DISKS_TOTAL_GB 200 of 399 used, 200 needed"),
    ] {
        let (done, _, place) = provision(json!({ "quotas": quotas })).await;
        done.expect("made");
        let findings = place.provider().room(&plan()).await;
        let of = |place: &str| findings.iter().find(|finding| finding.message.starts_with(place)).expect(place).health;
        assert_eq!((of("all regions"), of("us-central1")), (all, us_central1), "{findings:?}");
        assert!(findings.iter().any(|finding| finding.message.contains(text)), "{text}: {findings:?}");
    }
    let nowhere = Place::new(json!({ "quotas": { "CPUS": 0 } })).await.provider().room(&plan()).await;
    let regions = nowhere.iter().skip(1).filter(|finding| finding.what == "quota");
    assert!(regions.clone().count() > 3 && regions.clone().all(|finding| finding.health == Health::Bad), "{nowhere:?}");
    let denied = json!({ "faults": [{ "call": "compute.projects.get", "kind": { "status": 403 } }] });
    let findings = Place::new(denied).await.provider().room(&plan()).await;
    assert!(findings.len() == 2 && findings[0].message.starts_with("not known: "), "{findings:?}");
}

#[tokio::test]
async fn a_plan_is_told_what_its_family_means_today() {
    let place = Place::new(json!({})).await;
    let told = async |change: &dyn Fn(&mut GcePlan)| {
        let mut plan = plan();
        change(wanted_mut(&mut plan));
        let finding = boot::check(&place.provider().client, asked(&plan)).await;
        (finding.health, finding.message)
    };
    assert_eq!(told(&|_| {}).await.0, Health::Good);
    let small = told(&|plan| plan.disk_gb = 49).await;
    assert_eq!(small, (Health::Bad, "pytorch-latest-gpu-v20250601 needs a disk of 50 GB, and the machine has 49".to_owned()));
    let one = async |name: &str| told(&|plan| plan.boot_image = Some(name.to_owned())).await;
    let exact = "x-nvidia-570-v20250601 of deeplearning-platform-release";
    assert_eq!(one("x-nvidia-570-v20250601").await, (Health::Good, exact.to_owned()));
    assert_eq!(one("x-nvidia-570").await.1, "there is no x-nvidia-570 of deeplearning-platform-release");
    let new = told(&|plan| plan.image_family = "x-nvidia-590".to_owned()).await;
    assert!(new.0 == Health::Bad && new.1.contains("x-nvidia-590-v20250601 has a driver of branch 590"), "{}", new.1);
}
