//! `kill -9` of ftctl on Compute Engine: with `FT_GCE_KILLS` in all stages, otherwise in the first.

use crate::{
    cloud_kills::{Cloud, STEPS, Stage},
    devcloud::{Devcloud, by_a_group, on_gce},
};

/// The first zone has no machine; the first that is made is taken away before its agent can have finished.
const EVENTFUL: &str =
    r#"{ "boot": "1s", "notice": "0s", "stock_outs": ["us-central1-a"], "preemptions": [{ "instance": "-a1", "after": "8s" }] }"#;
const CALM: &str = r#"{ "boot": "1s", "notice": "0s" }"#;

const RUN: &[&str] = &["run", "job.toml", "--idempotency-key", "one", "--ttl", "1h", "--max-cost", "0.85USD"];
const SUBMIT: &[&str] = &["submit", "job.toml", "--idempotency-key", "one", "--ttl", "1h", "--max-cost", "0.85USD"];

static GCE: Cloud = Cloud {
    wish: "FT_GCE_KILLS",
    sample: 41,
    start: Devcloud::start,
    job: |sandbox| drop(on_gce(sandbox, "job", STEPS, "ftctl")),
    max_cost: 0.85,
    rest: 30,
    made: Devcloud::made,
    there: |devcloud| {
        let groups = devcloud.everywhere("instanceGroupManagers");
        let groups = groups.iter().map(|group| group["name"].as_str().unwrap().to_owned());
        devcloud.instances().into_iter().map(|(name, _)| name).chain(groups).collect()
    },
};

/// The first uploads, makes machines, hands over, supervises, recovers, collects and takes down.
const STAGES: [Stage; 3] = [
    Stage { script: EVENTFUL, change: |_| {}, before: &[], command: RUN, succeeds: true, machines: 2 },
    Stage { script: CALM, change: |_| {}, before: &[SUBMIT], command: &["down", "job", "-y"], succeeds: false, machines: 1 },
    Stage { script: CALM, change: by_a_group, before: &[], command: RUN, succeeds: true, machines: 1 },
];

#[test]
#[ignore = "needs the trainer and Azurite: tests/run installs them"]
fn ftctl_on_gce_can_be_killed_around_every_request() {
    let wished = std::env::var_os(GCE.wish).is_some();
    for stage in STAGES.into_iter().take(if wished { STAGES.len() } else { 1 }) {
        stage.kill_everywhere(&GCE);
    }
}
