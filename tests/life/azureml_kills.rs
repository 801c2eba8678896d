//! `kill -9` of ftctl on Azure ML: `FT_AZUREML_KILLS`.

use std::{env, fs, path::Path};

use crate::{
    cloud_kills::{Cloud, STEPS, Stage},
    devcloud::{Devcloud, on_azureml},
};

/// The first node is taken away before its agent can have finished.
const EVENTFUL: &str = r#"{ "operation": "1s", "allocation": "1s", "boot": "1s", "preparation": "1s", "leaving": "1s", "notice": "0s",
    "preemptions": [{ "job": "-a1", "after": "12s" }] }"#;
const CALM: &str =
    r#"{ "operation": "1s", "allocation": "1s", "boot": "1s", "preparation": "1s", "leaving": "1s", "notice": "0s" }"#;

/// The job waits for a node that is not there.
const FULL: &str =
    r#"{ "operation": "1s", "allocation": "1s", "retry": "5s", "leaving": "1s", "stock_outs": ["Standard_ND40rs_v2"] }"#;

const RUN: &[&str] = &["run", "job.toml", "--idempotency-key", "one", "--ttl", "1h", "--max-cost", "4USD"];
const SUBMIT: &[&str] = &["submit", "job.toml", "--idempotency-key", "one", "--ttl", "1h", "--max-cost", "4USD"];

/// A life with two nodes, of which the second is taken away. It costs twice as much.
const GANG: &str = r#"{ "operation": "1s", "allocation": "1s", "boot": "1s", "preparation": "1s", "leaving": "1s", "notice": "0s",
    "preemptions": [{ "job": "-a1", "node": 1, "after": "12s" }] }"#;
const RUN_GANG: &[&str] = &["run", "job.toml", "--idempotency-key", "one", "--ttl", "1h", "--max-cost", "8USD"];

const AZUREML: Cloud = Cloud {
    wish: "FT_AZUREML_KILLS",
    sample: 199,
    start: Devcloud::azureml,
    job: |sandbox| drop(on_azureml(sandbox, "job", STEPS)),
    max_cost: 4.0,
    // A cluster is made, and its node found.
    rest: 120,
    made: Devcloud::made_jobs,
    there: Devcloud::live_jobs_and_clusters,
};

/// Longer than the test.
fn works_on(job: &Path) {
    let text = fs::read_to_string(job).unwrap();
    fs::write(job, text.replace(&format!("steps = {STEPS}\n"), "steps = 200000\n")).unwrap();
}

/// The first uploads, makes a cluster and jobs, supervises, recovers, collects and takes down; the last ends a job in the queue.
const STAGES: [Stage; 3] = [
    Stage { script: EVENTFUL, change: |_| {}, before: &[], command: RUN, succeeds: true, machines: 2 },
    Stage { script: CALM, change: works_on, before: &[SUBMIT], command: &["down", "job", "-y"], succeeds: false, machines: 1 },
    Stage { script: FULL, change: |_| {}, before: &[SUBMIT], command: &["cancel", "job", "--now"], succeeds: false, machines: 1 },
];

fn has_two_nodes(job: &Path) {
    let text = fs::read_to_string(job).unwrap();
    fs::write(job, text.replace("[compute]\n", "[compute]\nnodes = 2\n")).unwrap();
}

/// By hand alone: the random histories have nodes that belong together in every run.
const OF_TWO: Stage = Stage { script: GANG, change: has_two_nodes, before: &[], command: RUN_GANG, succeeds: true, machines: 2 };

#[test]
#[ignore = "needs the trainer and Azurite: tests/run installs them"]
fn ftctl_on_azureml_can_be_killed_around_every_request() {
    for stage in STAGES {
        stage.kill_everywhere(&AZUREML);
    }
    if env::var_os(AZUREML.wish).is_some() {
        OF_TWO.kill_everywhere(&Cloud { max_cost: 8.0, ..AZUREML });
    }
}
