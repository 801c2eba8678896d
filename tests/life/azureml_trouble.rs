//! Troubles on Azure ML, one row for each.

use std::{
    fs,
    io::{self, BufReader, Write as _},
    net::{TcpListener, TcpStream},
    sync::{Arc, OnceLock},
    thread,
    time::{Duration, Instant},
};

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use serde_json::Value;

use crate::{
    azurite,
    blobs::container,
    cloud_trouble::{self, Cloud, Debt, Row, Scene},
    devcloud::{Devcloud, on_azureml},
    proxy,
    sandbox::Sandbox,
};

static AZUREML: Cloud = Cloud { start: Devcloud::azureml, job: |sandbox, name, steps, _| on_azureml(sandbox, name, steps) };

const QUIET: Row = Row::quiet(&AZUREML);

const NO_RETRY: &[&str] = &["retry.on=[]"];
const LONG: &[&str] = &["train.steps=1000"];

/// Quotas that are used up, and where that is said.
const NO_LOW_PRIORITY: &str = r#"{ "quotas": { "TotalLowPriorityCores": 39 } }"#;
const NO_DEDICATED: &str = r#"{ "operation": "1s", "quotas": { "standardNDSv2Family": 0 }, "quota_refusal": "operation" }"#;
const NO_QUOTA_FOR_NODES: &str =
    r#"{ "operation": "1s", "retry": "5s", "quotas": { "TotalLowPriorityCores": 0 }, "quota_refusal": "allocation" }"#;
const OUT_OF_STOCK: &str = r#"{ "operation": "1s", "allocation": "1s", "retry": "5s", "stock_outs": ["Standard_ND40rs_v2"] }"#;
const QUICK: &str = r#"{ "operation": "1s", "allocation": "1s", "boot": "1s", "preparation": "1s" }"#;

/// An image in a registry in Azure.
const PULLED: &str = "compute.azureml.image=\"acr1.azurecr.io/ftctl@sha256:\
    0000000000000000000000000000000000000000000000000000000000000000\"";

fn until_trained(scene: &Scene) {
    scene.steps(10);
}

/// From the service's own word that the job failed until ftctl's on why.
fn told_within_a_minute(scene: &Scene, why: &str) {
    Sandbox::until("the failure", || {
        let jobs = scene.devcloud.made_jobs();
        let status = |job| scene.devcloud.azure("", &format!("jobs/{job}?api-version=2025-12-01"))["properties"]["status"].clone();
        jobs.first().is_some_and(|job| status(job) == "Failed")
    });
    let failed = Instant::now();
    scene.until_explained(why);
    assert!(failed.elapsed() < Duration::from_secs(60), "told after {:?}", failed.elapsed());
}

static ROWS: &[Row] = &[
    Row {
        name: "no low-priority quota, said at once",
        script: NO_LOW_PRIORITY,
        set: NO_RETRY,
        exit: 5,
        sees: &["has a LowPriority quota of 39 and cannot", "which maps to 40 vCPUs"],
        machines: 0..=0,
        ..QUIET
    },
    Row {
        name: "no quota for dedicated nodes, said by the operation",
        script: NO_DEDICATED,
        set: &["retry.on=[]", "compute.azureml.spot=false"],
        exit: 5,
        sees: &["has a standardNDSv2Family quota of 0 and cannot"],
        machines: 0..=0,
        ..QUIET
    },
    Row {
        name: "no quota for a serverless job, said in the answer to it",
        script: NO_LOW_PRIORITY,
        set: &["retry.on=[]", "compute.azureml.compute=\"serverless\""],
        exit: 5,
        sees: &["has a LowPriority quota of 39 and cannot"],
        machines: 0..=0,
        ..QUIET
    },
    Row {
        name: "no quota for nodes, said by the cluster while the job waits, and later some",
        script: NO_QUOTA_FOR_NODES,
        meanwhile: |scene| {
            scene.until_explained("ClusterCoreQuotaReached");
            scene.devcloud.goes_wrong(QUICK);
        },
        sees: &["waits in a queue: Queued: the cluster ftctl-c", "has 0 of 1 nodes, 0 preparing; ClusterCoreQuotaReached: "],
        ..QUIET
    },
    Row {
        name: "no node is found for longer than the job may wait",
        script: OUT_OF_STOCK,
        set: &["limits.max_wait=15s"],
        exit: 5,
        sees: &[
            "AllocationFailed: The requested number of nodes could not be allocated",
            "there was no machine within the 15s that the job may wait (limits.max_wait): Queued: the cluster ftctl-c",
        ],
        machines: 0..=0,
        ..QUIET
    },
    Row {
        name: "a size that was retired",
        set: &["compute.azureml.size=\"Standard_NC24rs_v3\""],
        exit: 2,
        sees: &["Azure retired Standard_NC24rs_v3 on 2025-09-30; the nearest size is Standard_ND40rs_v2 (8 × v100)"],
        machines: 0..=0,
        ..QUIET
    },
    Row {
        name: "the image cannot be pulled",
        script: r#"{ "troubles": [{ "job": "-a1", "kind": "no_image" }] }"#,
        meanwhile: |scene| told_within_a_minute(scene, "Failed to pull Docker image"),
        exit: 20,
        sees: &["Failed to pull Docker image. Check that the image exists and that the compute may pull it: unauthorized."],
        ..QUIET
    },
    Row {
        name: "the identity of the nodes may not pull the image",
        script: r#"{ "troubles": [{ "job": "-a1", "kind": "no_pull" }] }"#,
        set: &[PULLED],
        meanwhile: |scene| told_within_a_minute(scene, "needs the role AcrPull on the registry acr1"),
        exit: 20,
        sees: &[
            "If using ACR please ensure the ACR has Admin user enabled or a Managed Identity with `AcrPull` access",
            "needs the role AcrPull on the registry acr1: `az role assignment create --assignee 00000000-0000-0000-0000-0000000000cc \
             --role AcrPull --scope \"$(az acr show --name acr1 --query id --output tsv)\"`",
        ],
        ..QUIET
    },
    Row {
        name: "a datastore cannot be mounted",
        script: r#"{ "troubles": [{ "job": "-a1", "kind": "no_mount" }] }"#,
        meanwhile: |scene| told_within_a_minute(scene, "AZFMountError"),
        exit: 20,
        sees: &["AZFMountError: unable to mount Azure File Info: Could not mount Azure File Share."],
        ..QUIET
    },
    Row {
        name: "429 and 503 to every call, and it passes",
        script: r#"{ "operation": "1s", "allocation": "1s", "boot": "1s", "faults": [
            { "call": "*", "each": true, "kind": { "status": 429 }, "retry_after": "1s" },
            { "call": "*", "each": true, "kind": { "status": 503 } }
        ] }"#,
        set: LONG,
        meanwhile: |scene| {
            until_trained(scene);
            scene.sandbox.ok(&["drill", "preempt", "job"]);
        },
        sees: &["attempt 1 ended: ", "; attempt 2 resumes from step "],
        machines: 1..=2,
        ..QUIET
    },
    Row {
        name: "503 to the job, for longer than one try lasts",
        script: r#"{ "operation": "1s", "faults": [{ "call": "Jobs_CreateOrUpdate", "kind": { "status": 503 }, "times": 6 }] }"#,
        sees: &["The service is unavailable now, please retry the request. (network); next try at "],
        ..QUIET
    },
    Row {
        name: "429 to every call while it trains, for longer than one try lasts",
        script: QUICK,
        set: LONG,
        meanwhile: |scene| {
            until_trained(scene);
            scene.devcloud.goes_wrong(r#"{ "faults": [{ "call": "*", "kind": { "status": 429 }, "times": 12 }] }"#);
        },
        sees: &["cannot reach the machine of job-", "; ftctl keeps trying", "answers again"],
        ..QUIET
    },
    Row {
        name: "the answers to what makes and ends something are lost",
        script: r#"{ "operation": "1s", "faults": [
            { "call": "Compute_CreateOrUpdate", "kind": "lost_answer" },
            { "call": "Jobs_CreateOrUpdate", "kind": "lost_answer", "times": 2 },
            { "call": "Compute_Delete", "kind": "lost_answer" }
        ] }"#,
        ..QUIET
    },
    Row {
        name: "an operation goes on and on",
        script: r#"{ "endless_operations": true }"#,
        meanwhile: |scene| {
            Sandbox::until("the cluster is asked for", || {
                scene.devcloud.ask("GET", "calls", "").to_string().contains("Compute_CreateOrUpdate")
            });
            // A person is told after five seconds.
            thread::sleep(Duration::from_secs(15));
            scene.devcloud.goes_wrong(QUICK);
        },
        sees: &["waiting for Azure ML to make computes/ftctl-c"],
        ..QUIET
    },
    Row {
        name: "somebody deletes the workspace",
        script: QUICK,
        set: LONG,
        meanwhile: |scene| {
            until_trained(scene);
            scene.devcloud.goes_wrong(r#"{ "workspace_deleted": true }"#);
            scene.until_explained("was not found");
            // The service takes everything with it; the simulation does not.
            scene.devcloud.ask("POST", "skip?seconds=100000", "");
        },
        exit: 8,
        sees: &[
            "The Resource 'Microsoft.MachineLearningServices/workspaces/devcloud' under resource group 'devcloud' was not found.",
        ],
        ..QUIET
    },
    Row {
        name: "somebody deletes the job in the studio",
        script: QUICK,
        set: LONG,
        meanwhile: |scene| {
            until_trained(scene);
            scene.devcloud.delete_job("-a1");
        },
        sees: &["attempt 1 ended: the machine is gone; attempt 2 resumes from step "],
        machines: 1..=2,
        ..QUIET
    },
    Row {
        name: "somebody cancels the job in the studio",
        script: QUICK,
        set: LONG,
        meanwhile: |scene| {
            until_trained(scene);
            scene.devcloud.cancel_job("-a1");
        },
        exit: 21,
        sees: &["cancelled in Azure ML"],
        ..QUIET
    },
    Row { name: "tokens end every five seconds", script: r#"{ "token_life": "5s" }"#, ..QUIET },
    Row {
        name: "a node takes long to prepare, which is paid for",
        script: r#"{ "operation": "1s", "allocation": "1s", "boot": "300s" }"#,
        meanwhile: |scene| {
            scene.until_explained("has a machine, which is being prepared");
            assert_eq!(scene.sandbox.json(&["status", "job"])["state"], "running");
            assert_ne!(scene.sandbox.json(&["bill", "job"])["cost"], "0USD");
        },
        sees: &["-a1 has a machine, which is being prepared: Queued: the cluster ftctl-c", "has 1 of 1 nodes, 1 preparing"],
        ..QUIET
    },
    Row {
        name: "a node is taken away while it is prepared",
        script: r#"{ "preemptions": [{ "job": "-a1", "after": "25s" }] }"#,
        machines: 1..=2,
        ..QUIET
    },
    Row {
        name: "a node is taken away, and the service starts the run again by itself",
        script: r#"{ "operation": "1s", "allocation": "1s", "boot": "1s", "notice": "1s" }"#,
        set: LONG,
        meanwhile: |scene| {
            until_trained(scene);
            scene.devcloud.ask("POST", &format!("preempt?job={}&restarts=true", scene.devcloud.made_jobs()[0]), "");
        },
        machines: 2..=3,
        ..QUIET
    },
];

#[test]
#[ignore = "needs the trainer: tests/run builds it"]
fn what_goes_wrong_is_seen_and_costs_nothing_more() {
    cloud_trouble::play_all(ROWS);
}

/// Its node leaves by itself after two minutes without a job, at the pace of the wall.
#[test]
#[ignore = "needs the trainer: tests/run builds it"]
fn a_cluster_that_still_has_nodes_is_told_by_every_command_until_it_has_none() {
    let kinds = &[r#"{ "status": 403 }"#];
    let script = r#""operation": "0s", "allocation": "0s", "boot": "0s", "preparation": "0s", "#;
    let why = "cannot delete the cluster ftctl-c";
    Debt { cloud: &AZUREML, speed: "1", script, call: "Compute_Delete", kinds, why }.owe();
}

#[test]
#[ignore = "needs the trainer: tests/run builds it"]
fn credentials_that_end_take_no_node_from_its_job() {
    cloud_trouble::sign_out(&AZUREML);
}

#[test]
#[ignore = "needs the trainer: tests/run builds it"]
fn two_at_once_make_one_job() {
    cloud_trouble::two_at_once(&AZUREML);
}

/// The one that every cluster of devcloud has.
const IDENTITY: &str = "00000000-0000-0000-0000-0000000000cc";
const FORBIDDEN: &str = "\u{feff}<?xml version=\"1.0\" encoding=\"utf-8\"?><Error><Code>AuthorizationPermissionMismatch</Code><Message>\
    This request is not authorized to perform this operation using this permission.\nRequestId:00000000-001e-0000-0000-000000000000\n\
    Time:2026-11-20T18:00:00.0000000Z</Message></Error>";

/// Forbids what is asked with a token of the nodes' identity, which has no role there, as the service does. Microsoft's emulator
/// knows no roles. Answers its port, and since when it has forbidden something.
fn forbid(store: u16) -> (u16, Arc<OnceLock<Instant>>) {
    fn serve(mut client: TcpStream, store: u16, first: &OnceLock<Instant>) -> io::Result<()> {
        let mut from_client = BufReader::new(client.try_clone()?);
        while let Some(request) = proxy::read(&mut from_client, false)? {
            let head = String::from_utf8_lossy(&request.head).to_lowercase();
            if identity_of(&request.head).is_some_and(|identity| identity == IDENTITY) {
                first.get_or_init(Instant::now);
                let (length, body) = (FORBIDDEN.len(), if head.starts_with("head") { "" } else { FORBIDDEN });
                let code = "x-ms-error-code: AuthorizationPermissionMismatch\r\ncontent-type: application/xml";
                write!(client, "HTTP/1.1 403 Forbidden\r\n{code}\r\ncontent-length: {length}\r\n\r\n{body}")?;
                continue;
            }
            let mut service = TcpStream::connect(("127.0.0.1", store))?;
            service.write_all(&request.head)?;
            service.write_all(&request.body)?;
            let Some(answer) = proxy::read(&mut BufReader::new(service), head.starts_with("head"))? else { return Ok(()) };
            client.write_all(&answer.head)?;
            client.write_all(&answer.body)?;
        }
        Ok(())
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (port, first) = (listener.local_addr().unwrap().port(), Arc::<OnceLock<Instant>>::default());
    let since = first.clone();
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let first = first.clone();
            // A connection that ends in an error has ended.
            thread::spawn(move || drop(serve(client, store, &first)));
        }
    });
    (port, since)
}

/// The object id in the token of a request.
fn identity_of(head: &[u8]) -> Option<String> {
    let head = String::from_utf8_lossy(head);
    let token = head.lines().filter_map(|line| line.split_once(": Bearer ")).map(|(_, token)| token).next()?;
    let claims = BASE64_URL_SAFE_NO_PAD.decode(token.split('.').nth(1)?).ok()?;
    serde_json::from_slice::<Value>(&claims).ok()?["oid"].as_str().map(str::to_owned)
}

#[test]
#[ignore = "needs the trainer and Azurite: tests/run installs them"]
fn an_identity_without_rights_on_the_container_is_told_within_a_minute() {
    let azurite = azurite::start();
    let mut sandbox = Sandbox::new();
    let devcloud = Devcloud::azureml(&mut sandbox, "10");
    devcloud.goes_wrong(QUICK);
    let (port, since) = forbid(azurite.port);
    sandbox.variables.extend(container(&azurite).map(|(name, value)| {
        let value = value.to_str().unwrap().replace(&format!("127.0.0.1:{}", azurite.port), &format!("127.0.0.1:{port}"));
        (name, value.into())
    }));
    let job = on_azureml(&sandbox, "job", 20);
    fs::write(&job, fs::read_to_string(&job).unwrap().replace("identity = \"none\"", "identity = \"managed\"")).unwrap();
    let said = fs::File::create(sandbox.path("said")).unwrap();
    let mut running = sandbox.command(&["run", job.to_str().unwrap()]).stderr(said).spawn().unwrap();
    let said = || fs::read_to_string(sandbox.path("said")).unwrap();
    Sandbox::until("the reason", || said().contains("without a word from its agent; the last on its console: "));
    let after = since.get().unwrap().elapsed();
    assert!(after < Duration::from_secs(60), "told after {after:?}");
    let told = said();
    for part in [
        "AuthorizationPermissionMismatch: This request is not authorized to perform this operation using this permission.",
        "needs the role `Storage Blob Data Contributor`",
        &format!("az role assignment create --assignee {IDENTITY} --role \"Storage Blob Data Contributor\" --scope"),
        "$(az storage account show --name devstoreaccount1 --query id --output tsv)",
    ] {
        assert!(told.contains(part), "{part}: {told}");
    }
    sandbox.ok(&["cancel", "job", "--now"]);
    assert_eq!(running.wait().unwrap().code(), Some(21), "{}", said());
    assert!(devcloud.nothing_bills(), "{:?}", devcloud.machines());
}
