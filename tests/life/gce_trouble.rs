//! Troubles on Compute Engine, one row for each, and their effect on the user: through the program, on the simulated cloud, with
//! the real agent and trainer.

use std::{
    process::{Output, Stdio},
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Instant,
};

use crate::{
    azurite,
    devcloud::{Devcloud, on_gce},
    sandbox::Sandbox,
};

const STEPS: u64 = 300;
/// Rows at once: most of their time is waiting.
const WORKERS: usize = 4;

/// A run of the job in a cloud that does not work as it should.
struct Row {
    name: &'static str,
    /// The trouble, for devcloud.
    script: &'static str,
    speed: &'static str,
    image: &'static str,
    /// Changes to the job, as for `--set`.
    set: &'static [&'static str],
    /// Whether the store is a container, which machines reach over the network.
    in_azurite: bool,
    /// The test's acts meanwhile.
    meanwhile: fn(&Scene),
    exit: i32,
    /// Each is on stderr.
    sees: &'static [&'static str],
    /// How many machines there were; at the end none is left.
    machines: std::ops::RangeInclusive<usize>,
}

const QUIET: Row = Row {
    name: "",
    script: "{}",
    speed: "10",
    image: "ftctl",
    set: &[],
    in_azurite: false,
    meanwhile: |_| {},
    exit: 0,
    sees: &[],
    machines: 1..=1,
};

/// The scene that a row is played in.
struct Scene {
    sandbox: Sandbox,
    devcloud: Devcloud,
}

impl Scene {
    fn steps(&self, more_than: u64) {
        Sandbox::until("a step of the training", || {
            let jobs = self.sandbox.json(&["status", "--all"])["jobs"].clone();
            jobs[0]["state"] == "failed" || jobs[0]["step"].as_u64().is_some_and(|step| step > more_than)
        });
    }

    fn until_explained(&self, what: &str) {
        Sandbox::until(what, || {
            let output = self.sandbox.run(&["explain", "job"]);
            String::from_utf8_lossy(&output.stdout).contains(what)
        });
    }
}

const TWO_ZONES: &[&str] = &["compute.gce.zones=[\"us-central1-a\",\"us-central1-b\"]"];
const NO_RETRY: &[&str] = &["compute.gce.zones=[\"us-central1-a\",\"us-central1-b\"]", "retry.on=[]"];

const ROWS: &[Row] = &[
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
            { "call": "compute.instances.insert", "kind": { "status": 429 }, "retry_after": "1s" },
            { "call": "compute.instances.insert", "kind": { "status": 503 } },
            { "call": "compute.zoneOperations.wait", "kind": { "status": 429 } },
            { "call": "compute.zoneOperations.wait", "kind": { "status": 503 } },
            { "call": "compute.instances.aggregatedList", "kind": { "status": 429 } },
            { "call": "compute.instances.aggregatedList", "kind": { "status": 503 } },
            { "call": "compute.instances.setMetadata", "kind": { "status": 429 } },
            { "call": "compute.instances.setMetadata", "kind": { "status": 503 } },
            { "call": "compute.instances.getGuestAttributes", "kind": { "status": 429 } },
            { "call": "compute.instances.getGuestAttributes", "kind": { "status": 503 } },
            { "call": "compute.instances.simulateMaintenanceEvent", "kind": { "status": 429 } },
            { "call": "compute.instances.simulateMaintenanceEvent", "kind": { "status": 503 } },
            { "call": "compute.globalOperations.aggregatedList", "kind": { "status": 429 } },
            { "call": "compute.globalOperations.aggregatedList", "kind": { "status": 503 } },
            { "call": "compute.instances.delete", "kind": { "status": 429 } },
            { "call": "compute.instances.delete", "kind": { "status": 503 } }
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
        sees: &["cannot see job-", ": Rate Limit Exceeded; looking again until it can be seen", "can be seen again"],
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
        sees: &["and it is not to be seen (network); next try at"],
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
            scene.until_explained("its agent was not heard of");
            // The agent gives up after five minutes by itself.
            scene.sandbox.ok(&["cancel", "job", "--now"]);
        },
        exit: 21,
        sees: &[
            "-a1: running",
            "cannot be reached: Connection refused",
            "-a1 has been running for ",
            "and its agent was not heard of",
        ],
        ..QUIET
    },
    Row {
        name: "there is no driver, and nobody installs one",
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

type Files = Vec<(String, Vec<u8>)>;

/// The weights, optimizer and step log of the job when nothing goes wrong; `set` may change how long it is.
fn undisturbed(set: &[&str]) -> Files {
    static KNOWN: Mutex<Vec<(String, Files)>> = Mutex::new(Vec::new());
    let steps = set.iter().filter(|set| set.starts_with("train.")).copied().collect::<Vec<_>>().join(" ");
    let mut known = KNOWN.lock().unwrap();
    if let Some((_, results)) = known.iter().find(|(of, _)| *of == steps) {
        return results.clone();
    }
    let mut sandbox = Sandbox::new();
    let _devcloud = Devcloud::start(&mut sandbox, "10");
    let job = on_gce(&sandbox, "job", STEPS, "ftctl");
    let sets = set.iter().filter(|set| set.starts_with("train.")).flat_map(|set| ["--set", set]);
    sandbox.ok(&["run", job.to_str().unwrap()].into_iter().chain(sets).collect::<Vec<_>>());
    let results = sandbox.results("job");
    known.push((steps, results.clone()));
    results
}

impl Row {
    fn play(&self) {
        let begun = Instant::now();
        let mut sandbox = Sandbox::new();
        let devcloud = Devcloud::start(&mut sandbox, self.speed);
        devcloud.goes_wrong(self.script);
        let _azurite = self.in_azurite.then(|| {
            let azurite = azurite::start();
            let store = [("FTCTL_STORE".into(), azurite.container().into()), ("AZURE_STORAGE_KEY".into(), azurite::KEY.into())];
            sandbox.variables.extend(store);
            azurite
        });
        let job = on_gce(&sandbox, "job", STEPS, self.image);
        let sets = self.set.iter().flat_map(|set| ["--set", set]);
        let arguments: Vec<&str> = ["run", job.to_str().unwrap()].into_iter().chain(sets).collect();
        let running = sandbox.command(&arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        // Read all the time: a follower without a reader stands still, and supervises nothing.
        let running = thread::spawn(|| running.wait_with_output().unwrap());
        let scene = Scene { sandbox, devcloud };
        (self.meanwhile)(&scene);
        let output = running.join().unwrap();
        let seen = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(self.exit), "{}: {seen}", self.name);
        for part in self.sees {
            assert!(seen.contains(part), "{}: the user does not see `{part}`: {seen}", self.name);
        }
        let machines = scene.devcloud.machines();
        assert!(self.machines.contains(&machines.len()), "{}: {machines:?}", self.name);
        assert!(scene.devcloud.nothing_bills(), "{}: {machines:?}", self.name);
        if self.exit == 0 {
            assert!(scene.sandbox.results("job") == undisturbed(self.set), "{}: other bytes than the undisturbed job's", self.name);
        }
        println!("{:5.1} s  {}", begun.elapsed().as_secs_f64(), self.name);
    }
}

#[test]
#[ignore = "needs the trainer: tests/run builds it"]
fn what_goes_wrong_is_seen_and_costs_nothing_more() {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let only = std::env::var("FT_ROW").ok();
    let failed = thread::scope(|scope| {
        let work = || {
            let next = || ROWS.get(NEXT.fetch_add(1, Ordering::Relaxed));
            let rows = std::iter::from_fn(next).filter(|row| only.as_ref().is_none_or(|only| row.name.contains(only)));
            // A row that fails does not keep the others from being played.
            rows.filter(|row| thread::spawn(|| row.play()).join().is_err()).map(|row| row.name).collect::<Vec<_>>()
        };
        let workers: Vec<_> = (0..WORKERS).map(|_| scope.spawn(work)).collect();
        workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect::<Vec<_>>()
    });
    assert!(failed.is_empty(), "{failed:?}; they say why above");
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
#[ignore = "needs the trainer: tests/run builds it"]
fn a_machine_that_cannot_be_destroyed_is_told_by_every_command_until_it_is() {
    let kinds = [r#"{ "status": 500 }"#, r#"{ "status": 403 }"#, r#""hang""#];
    let workers = kinds.map(|kind| thread::spawn(move || owe(kind)));
    let ended = workers.map(thread::JoinHandle::join);
    assert!(ended.into_iter().all(|worker| worker.is_ok()), "one failed; it says why above");
}

fn owe(kind: &str) {
    let mut sandbox = Sandbox::new();
    let devcloud = Devcloud::start(&mut sandbox, "10");
    devcloud
        .goes_wrong(&format!(r#"{{ "faults": [{{ "call": "compute.instances.delete", "kind": {kind}, "times": 1000000 }}] }}"#));
    let job = on_gce(&sandbox, "job", 20, "ftctl");
    let run = sandbox.run(&["run", job.to_str().unwrap()]);
    assert_eq!(run.status.code(), Some(8), "{kind}: {}", stderr(&run));
    assert!(stderr(&run).contains("may still exist: cannot delete job-"), "{kind}: {}", stderr(&run));
    // A cloud that does not answer takes each command the time that it waits for one.
    let commands = [&["status"][..], &["bill"], &["logs", "job"]];
    for command in &commands[..if kind.contains("hang") { 1 } else { 3 }] {
        let said = sandbox.run(command);
        assert!(said.status.success(), "{kind}, {command:?}: {}", stderr(&said));
        assert!(stderr(&said).contains("MAY STILL BILL since "), "{kind}, {command:?}: {}", stderr(&said));
    }
    let receipt = sandbox.json(&["bill", "job"]);
    assert_eq!(receipt["may_still_bill"], true, "{kind}: {receipt}");
    let down = sandbox.run(&["down", "job", "-y"]);
    assert_eq!(down.status.code(), Some(8), "{kind}: {}", stderr(&down));
    let owed = sandbox.json(&["bill"])["resources"].clone();
    assert_eq!(owed.as_array().map(Vec::len), Some(1), "{kind}: what is owed exists: {owed}");

    devcloud.goes_wrong("{}");
    let said = sandbox.run(&["status"]);
    assert!(stderr(&said).contains("are gone"), "{kind}: {}", stderr(&said));
    assert_eq!(sandbox.json(&["bill"])["resources"].as_array().map(Vec::len), Some(0), "{kind}");
    let said = sandbox.run(&["status", "job"]);
    assert_eq!(stderr(&said), "", "{kind}: paid once");
    let receipt = sandbox.json(&["bill", "job"]);
    assert_eq!((&receipt["state"], &receipt["may_still_bill"]), (&"succeeded".into(), &false.into()), "{kind}: {receipt}");
    println!("{kind}: billed {}", receipt["cost"]);
}

#[test]
#[ignore = "needs the trainer: tests/run builds it"]
fn credentials_that_end_take_no_machine_from_its_job() {
    let mut sandbox = Sandbox::new();
    let devcloud = Devcloud::start(&mut sandbox, "10");
    let job = on_gce(&sandbox, "job", 2_000, "ftctl");
    let id = sandbox.submit(&job);
    let follower = sandbox.command(&["logs", "-f", &id]).stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    devcloud.goes_wrong(r#"{ "faults": [{ "call": "*", "kind": { "status": 401 }, "times": 1000000 }] }"#);
    let output = follower.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(4), "{}", stderr(&output));
    assert!(stderr(&output).contains("goes on by itself"), "{}", stderr(&output));
    devcloud.goes_wrong("{}");
    sandbox.ok(&["logs", "-f", &id]);
    assert_eq!(sandbox.json(&["status", &id])["attempt"], 1);
    assert!(devcloud.nothing_bills());
}

#[test]
#[ignore = "needs the trainer: tests/run builds it"]
fn two_at_once_make_one_machine() {
    let mut sandbox = Sandbox::new();
    let devcloud = Devcloud::start(&mut sandbox, "10");
    let job = on_gce(&sandbox, "job", 20, "ftctl");
    let arguments = ["submit", job.to_str().unwrap(), "--wait", "--idempotency-key", "one"];
    let both = [(); 2].map(|()| sandbox.command(&arguments).stderr(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap());
    let said = both.map(|child| child.wait_with_output().unwrap());
    assert!(said.iter().all(|output| output.status.success()), "{} {}", stderr(&said[0]), stderr(&said[1]));
    assert_eq!(said[0].stdout, said[1].stdout, "one job");
    assert_eq!(devcloud.machines().len(), 1);
    assert!(devcloud.nothing_bills());
}
