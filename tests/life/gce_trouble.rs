//! Troubles on Compute Engine, one row for each.

use crate::{
    cloud_trouble::{self, Cloud, Debt, Row},
    devcloud::{Devcloud, on_gce},
};

static GCE: Cloud = Cloud { start: Devcloud::start, job: on_gce };

const QUIET: Row = Row::quiet(&GCE);

const TWO_ZONES: &[&str] = &["compute.gce.zones=[\"us-central1-a\",\"us-central1-b\"]"];
const NO_RETRY: &[&str] = &["compute.gce.zones=[\"us-central1-a\",\"us-central1-b\"]", "retry.on=[]"];

static ROWS: &[Row] = &[
    Row {
        name: "no machine in the first zone",
        script: r#"{ "stock_outs": ["us-central1-a"] }"#,
        sees: &["us-central1-a: out of stock"],
        ..QUIET
    },
    Row {
        name: "no machine in any zone, and later one",
        script: r#"{ "stock_outs": ["us-central1-a", "us-central1-b"] }"#,
        set: TWO_ZONES,
        meanwhile: |scene| {
            scene.until_explained("refused (capacity)");
            scene.devcloud.goes_wrong("{}");
        },
        sees: &["no zone has such a machine now: us-central1-a: out of stock; us-central1-b: out of stock (capacity); next try at"],
        ..QUIET
    },
    Row {
        name: "no machine in any zone, and no patience",
        script: r#"{ "stock_outs": ["us-central1-a", "us-central1-b"] }"#,
        set: NO_RETRY,
        exit: 5,
        sees: &["no zone has such a machine now: us-central1-a: out of stock; us-central1-b: out of stock"],
        machines: 0..=0,
        ..QUIET
    },
    Row {
        name: "no quota in the region, said at once",
        script: r#"{ "quotas": { "PREEMPTIBLE_NVIDIA_V100_GPUS": 0 } }"#,
        set: NO_RETRY,
        exit: 5,
        sees: &["Quota 'PREEMPTIBLE_NVIDIA_V100_GPUS' exceeded.  Limit: 0.0 in region us-central1"],
        machines: 0..=0,
        ..QUIET
    },
    Row {
        name: "no quota anywhere, said by the operation",
        script: r#"{ "quotas": { "GPUS_ALL_REGIONS": 0 }, "quota_in_operation": true }"#,
        set: NO_RETRY,
        exit: 5,
        sees: &["Quota 'GPUS_ALL_REGIONS' exceeded.  Limit: 0.0 globally"],
        machines: 0..=0,
        ..QUIET
    },
    Row {
        // Each call of the provider alone: src/provider/gce/tests.rs.
        name: "429 and 503 to every call, and it passes",
        script: r#"{ "boot": "1s", "faults": [
            { "call": "*", "each": true, "kind": { "status": 429 }, "retry_after": "1s" },
            { "call": "*", "each": true, "kind": { "status": 503 } }
        ] }"#,
        set: &["train.steps=2000"],
        meanwhile: |scene| {
            scene.steps(10);
            scene.sandbox.ok(&["drill", "preempt", "job"]);
        },
        sees: &["attempt 1 ended: ", "; attempt 2 resumes from step "],
        machines: 2..=2,
        ..QUIET
    },
    Row {
        name: "503 to insert, for longer than one try lasts",
        script: r#"{ "faults": [{ "call": "compute.instances.insert", "kind": { "status": 503 }, "times": 6 }] }"#,
        sees: &["Backend Error (network); next try at "],
        ..QUIET
    },
    Row {
        name: "429 to every call while it trains, for longer than one try lasts",
        script: r#"{ "boot": "1s" }"#,
        set: &["train.steps=2000"],
        meanwhile: |scene| {
            scene.steps(10);
            scene.devcloud.goes_wrong(r#"{ "faults": [{ "call": "*", "kind": { "status": 429 }, "times": 8 }] }"#);
        },
        sees: &["cannot reach the machine of job-", ": Rate Limit Exceeded; ftctl keeps trying", "answers again"],
        ..QUIET
    },
    Row {
        name: "the answers to insert and to delete are lost",
        script: r#"{ "faults": [
            { "call": "compute.instances.insert", "kind": "lost_answer", "times": 2 },
            { "call": "compute.instances.delete", "kind": "lost_answer" }
        ] }"#,
        ..QUIET
    },
    Row {
        name: "409 for a machine that is not there",
        script: r#"{ "faults": [{ "call": "compute.instances.insert", "kind": { "status": 409 } }] }"#,
        sees: &["and it does not exist (network); next try at"],
        ..QUIET
    },
    Row {
        name: "412 to the order",
        script: r#"{ "faults": [{ "call": "compute.instances.setMetadata", "kind": { "status": 412 }, "times": 2 }] }"#,
        ..QUIET
    },
    Row {
        name: "preempted before it has booted",
        script: r#"{ "preemptions": [{ "instance": "-a1", "after": "0s" }] }"#,
        sees: &["attempt 1 ended: preempted; attempt 2 resumes from step 0, no steps lost"],
        machines: 1..=2,
        ..QUIET
    },
    Row {
        name: "preempted while it pulls",
        script: r#"{ "boot": "1s", "preemptions": [{ "instance": "-a1", "after": "30s" }] }"#,
        image: "slow",
        sees: &["-a1: pulling", "attempt 1 ended: preempted; attempt 2 resumes from step 0"],
        machines: 2..=2,
        ..QUIET
    },
    Row {
        name: "preempted while it trains, without a notice",
        script: r#"{ "boot": "1s", "notice": "0s" }"#,
        set: &["train.steps=250", "train.checkpoint_every=1"],
        meanwhile: |scene| {
            // A checkpoint after each step: wherever the power goes, one is on its way.
            for step in [10, 60] {
                scene.steps(step);
                scene.sandbox.ok(&["drill", "preempt", "job"]);
            }
        },
        sees: &["attempt 1 ended: preempted; attempt 2 resumes from step "],
        machines: 3..=3,
        ..QUIET
    },
    Row {
        name: "the machine hangs",
        script: r#"{ "boot": "1s", "troubles": [{ "instance": "-a1", "kind": "hangs", "after": "300s" }] }"#,
        speed: "60",
        set: &["train.steps=20000", "train.checkpoint_every=100"],
        meanwhile: |scene| {
            scene.until_explained("it hangs");
            // Its next machine is not asked to do all that is left.
            scene.sandbox.ok(&["cancel", "job", "--now"]);
        },
        exit: 21,
        sees: &["has power and has given no sign of life for", "attempt 1 ended: it hangs: "],
        machines: 1..=2,
        ..QUIET
    },
    Row {
        name: "the metadata server falls silent",
        script: r#"{ "boot": "1s", "troubles": [{ "instance": "-a1", "kind": "metadata_silent", "after": "40s" }] }"#,
        set: &["train.steps=1000"],
        ..QUIET
    },
    Row {
        name: "the startup script never runs",
        script: r#"{ "boot": "1s", "troubles": [{ "instance": "-a1", "kind": "no_startup" }] }"#,
        speed: "30",
        exit: 20,
        sees: &[
            "and its startup script has given no sign of life; there is nothing on its console",
            "does its boot image run startup scripts?",
        ],
        ..QUIET
    },
    Row {
        name: "there is no docker",
        script: r#"{ "boot": "1s", "troubles": [{ "instance": "-a1", "kind": "no_engine" }] }"#,
        exit: 20,
        sees: &[
            "Cannot connect to the Docker daemon",
            "there is no docker that works on this machine: choose a boot image that has it",
        ],
        ..QUIET
    },
    Row {
        name: "the store cannot be reached from the machine",
        script: r#"{ "boot": "1s", "troubles": [{ "instance": "-a1", "kind": "no_store" }] }"#,
        // Signs of life come on the wall's clock.
        speed: "1",
        in_azurite: true,
        meanwhile: |scene| {
            scene.until_explained("without a word from its agent");
            // The agent gives up after five minutes by itself.
            scene.sandbox.ok(&["cancel", "job", "--now"]);
        },
        exit: 21,
        sees: &[
            "-a1: running",
            "cannot be reached: Connection refused",
            "-a1 has been running for ",
            "without a word from its agent",
        ],
        ..QUIET
    },
    Row {
        name: "there is no driver, and no one installs one",
        script: r#"{ "boot": "1s", "troubles": [{ "instance": "-a1", "kind": "no_driver" }] }"#,
        exit: 20,
        sees: &["-a1: driver", "the driver of the GPU did not come up within 30 s"],
        ..QUIET
    },
    Row {
        name: "the image cannot be pulled",
        script: r#"{ "boot": "1s" }"#,
        image: "unpullable",
        exit: 20,
        sees: &["manifest for registry.example/unpullable@sha256:00 not found", "cannot be pulled by this machine"],
        ..QUIET
    },
];

#[test]
#[ignore = "needs the trainer: tests/run builds it"]
fn what_goes_wrong_is_seen_and_costs_nothing_more() {
    cloud_trouble::play_all(ROWS);
}

#[test]
#[ignore = "needs the trainer: tests/run builds it"]
fn a_machine_that_cannot_be_destroyed_is_told_by_every_command_until_it_is() {
    let kinds = &[r#"{ "status": 500 }"#, r#"{ "status": 403 }"#, r#""hang""#];
    let (call, why) = ("compute.instances.delete", "cannot delete job-");
    Debt { cloud: &GCE, speed: "10", script: "", call, kinds, why }.owe();
}

#[test]
#[ignore = "needs the trainer: tests/run builds it"]
fn credentials_that_end_take_no_machine_from_its_job() {
    cloud_trouble::sign_out(&GCE);
}

#[test]
#[ignore = "needs the trainer: tests/run builds it"]
fn two_at_once_make_one_machine() {
    cloud_trouble::two_at_once(&GCE);
}
