//! A job that is over goes on as the same job: `ftctl resume`.

use std::{
    fs,
    path::PathBuf,
    process::{Child, Stdio},
    thread,
    time::Duration,
};

use ftctl::job::digest::Digest;
use serde_json::{Value, json};

use crate::common::{Said, Sandbox};

/// A sandbox whose first attempt of any job is taken away after seven minutes, with a checkpoint of step 5.
fn sandbox(name: &str) -> Sandbox {
    let sandbox = Sandbox::in_memory();
    sandbox.write_rehearsal(name);
    sandbox.script(&json!({ "preemptions": [{ "attempt": 1, "after": "7m" }] }));
    sandbox
}

/// The id of a job that its preemption ended.
fn preempted(sandbox: &Sandbox, more: &[&str]) -> String {
    let said = sandbox.run(&[&["submit", "job.toml", "--wait", "--retry-on", "capacity"], more].concat());
    assert_eq!(said.code, Some(6), "{}", said.stderr);
    said.stdout.trim().to_owned()
}

fn resume(sandbox: &Sandbox, job: &str, more: &[&str]) -> Said {
    sandbox.run(&[&["resume", job, "--wait"], more].concat())
}

fn record(sandbox: &Sandbox, id: &str) -> Value {
    let said = sandbox.run(&["show", id, "-o", "json"]);
    serde_json::from_str(&said.stdout).expect("JSON")
}

fn refused(said: &Said, code: i32, message: &str) {
    assert_eq!(said.code, Some(code), "{}", said.stderr);
    assert!(said.stderr.contains(message), "{}", said.stderr);
}

#[test]
fn a_failed_job_goes_on_from_its_checkpoint_and_then_for_longer() {
    let sandbox = sandbox("goes-on");
    let id = preempted(&sandbox, &[]);
    let dry = sandbox.run(&["resume", &id, "--dry-run", "-o", "json"]);
    assert_eq!((dry.code, record(&sandbox, &id)["state"].as_str()), (Some(0), Some("failed")), "{}", dry.stderr);
    let said = resume(&sandbox, &id, &[]);
    assert_eq!((said.code, said.stdout.trim()), (Some(0), id.as_str()), "{}", said.stderr);
    let steps = |attempt: usize| {
        let attempt = &record(&sandbox, &id)["attempts"][attempt];
        [&attempt["first_step"], &attempt["last_step"]].map(|step| step.as_u64().expect("a step"))
    };
    assert_eq!((steps(0), steps(1)), ([0, 5], [5, 10]));
    let again = resume(&sandbox, &id, &[]);
    assert!(again.code == Some(0) && again.stderr.contains("went on with these settings already: succeeded"), "{}", again.stderr);
    refused(&resume(&sandbox, &id, &["--ttl", "9h"]), 2, "succeeded: there is nothing left to do");
    refused(
        &resume(&sandbox, &id, &["--set", "model.layers=3"]),
        2,
        "cannot change in a resumed job\n  fix: submit a new job with ",
    );
    let said = resume(&sandbox, "goes-on", &["--set", "train.steps=20"]);
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    let longer = record(&sandbox, &id);
    assert_eq!((steps(2), &longer["plan"]["train"]["steps"], &longer["state"]), ([10, 20], &json!(20), &json!("succeeded")));
}

#[test]
fn an_attempt_keeps_the_number_of_its_processes() {
    let sandbox = sandbox("fewer");
    let id = preempted(&sandbox, &["--set", "compute.processes_per_node=2"]);
    let one = ["--set", "compute.processes_per_node=1", "--set"];
    let twice = resume(&sandbox, &id, &[&one[..], &["train.gradient_accumulation=4"]].concat());
    refused(&twice, 2, "train.gradient_accumulation (1 for each of 2 processes in the checkpoint, 4 now) cannot change");
    let said = resume(&sandbox, &id, &[&one[..], &["train.gradient_accumulation=2"]].concat());
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    let ended = record(&sandbox, &id);
    let of_attempts = [0, 1].map(|attempt| ended["attempts"][attempt]["processes_per_node"].as_u64());
    assert_eq!((of_attempts, &ended["plan"]["processes"]), ([Some(2), None], &Value::Null));
}

#[test]
fn a_cancelled_job_goes_on() {
    let sandbox = sandbox("cancelled");
    let id = sandbox.run(&["submit", "job.toml"]).stdout.trim().to_owned();
    refused(&resume(&sandbox, &id, &[]), 12, "is not over: it is running");
    assert_eq!(sandbox.run(&["cancel", &id]).code, Some(0));
    let said = resume(&sandbox, &id, &["-o", "json"]);
    let ended: Value = serde_json::from_str(&said.stdout).expect("JSON");
    assert_eq!((said.code, &ended["id"], &ended["state"]), (Some(0), &json!(id), &json!("succeeded")), "{}", said.stderr);
}

#[test]
fn settings_that_the_checkpoint_does_not_fit_are_refused_here() {
    let sandbox = sandbox("fits");
    let id = preempted(&sandbox, &[]);
    let set = |assignment: &str| resume(&sandbox, &id, &["--set", assignment]);
    refused(&set("train.seed=7"), 2, "train.seed (42 in the checkpoint, 7 now) cannot change in a resumed job");
    refused(&set("model.layers=3"), 2, "model.layers (was ");
    for steps in [3, 9] {
        let longer =
            format!("is a run of 10 steps: it can be made longer, and not end at step {steps}\n  fix: leave its length as it is");
        refused(&set(&format!("train.steps={steps}")), 2, &longer);
    }
    let two = ["--set", "compute.processes_per_node=2"];
    refused(&resume(&sandbox, &id, &two), 2, "train.leaves (1 in the checkpoint, 2 now) cannot change in a resumed job");
    let libtorchs = ["--set", "train.engine=libtorch", "--set", "train.threads=2"];
    let kept = "train.threads (all cores in the checkpoint, 2 now) cannot change in a resumed job";
    refused(&resume(&sandbox, &id, &libtorchs), 2, kept);
    refused(&set("train.step=3"), 2, "did you mean `steps`?");
    refused(&set("store=elsewhere"), 2, "keeps its name, its backend and its store");
    refused(&set("compute.backend=local"), 2, "keeps its name, its backend and its store");
    assert_eq!(record(&sandbox, &id)["state"], "failed");
    let free = ["--set", "train.checkpoint_every=2", "--set", "train.threads=2"];
    let said = resume(&sandbox, &id, &free);
    assert_eq!(said.code, Some(0), "{}", said.stderr);
}

#[test]
fn time_and_money_are_those_of_all_attempts() {
    let sandbox = sandbox("ceilings");
    let id = preempted(&sandbox, &["--ttl", "8m"]);
    refused(&resume(&sandbox, &id, &[]), 11, "no time is left");
    refused(&resume(&sandbox, &id, &["--ttl", "1h", "--max-cost", "0.01USD"]), 11, "ceiling");
    let said = resume(&sandbox, &id, &["--ttl", "1h", "--max-cost", "0.5USD"]);
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    let plan = &record(&sandbox, &id)["plan"];
    assert_eq!((&plan["ttl"], &plan["max_cost"]), (&json!("1h"), &json!("0.50USD")));
}

#[test]
fn a_name_is_of_one_unfinished_job_and_a_job_of_the_machine_that_submitted_it() {
    let sandbox = sandbox("named");
    let first = preempted(&sandbox, &[]);
    let second = sandbox.run(&["submit", "job.toml"]).stdout.trim().to_owned();
    refused(&resume(&sandbox, &first, &[]), 12, &format!("belongs to the job {second} now"));
    assert_eq!(sandbox.run(&["cancel", &second, "--now"]).code, Some(0));

    let store = sandbox.state().join("store");
    let elsewhere = |more: &[&str]| {
        let mut command = sandbox.command(&[&["resume", &first, "--wait"], more].concat());
        command.env("FTCTL_STORE", &store).env("XDG_STATE_HOME", sandbox.path("other"));
        Sandbox::said(&mut command)
    };
    refused(&elsewhere(&[]), 12, "was not submitted on this machine");
    let said = elsewhere(&["--adopt", "-y"]);
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    let status: Value = serde_json::from_str(&sandbox.run(&["status", "named", "-o", "json"]).stdout).expect("JSON");
    assert_eq!(status["id"], first, "the name is that of the job which went on");
}

/// Both have read the record before either writes it.
#[test]
fn of_a_removal_and_a_job_that_goes_on_one_wins() {
    let sandbox = sandbox("both");
    let id = one_whose_record_has_a_lock(&sandbox);
    let (won, lost) = at_once(&sandbox, &id, &[&["resume", &id], &["rm", &id, "-y"]], 2);
    assert_eq!(lost.code, Some(12), "{}", lost.stderr);
    let machines =
        fs::read_to_string(sandbox.state().join("fake/cloud.json")).expect("a cloud").contains(&format!("\"{id}-a2\": {{"));
    let is_there = sandbox.state().join("store/ftctl/v1/jobs").join(&id).exists();
    assert_eq!((won.code, machines), (Some(0), is_there), "a machine has a record: {} {}", won.stderr, lost.stderr);
}

/// A job that its preemption ended, and whose record shares its lock with nothing else that is written when it goes on.
fn one_whose_record_has_a_lock(sandbox: &Sandbox) -> String {
    let lock = |id: &str, file| lock_of(&format!("ftctl/v1/jobs/{id}/{file}"));
    let mut ids = (0..9).map(|_| preempted(sandbox, &[]));
    ids.find(|id| lock(id, "record.json") != lock(id, "cancel.json")).expect("one of 256 has none")
}

/// The file with which a directory keeps other writers of a path out.
fn lock_of(path: &str) -> String {
    Digest::of(path.as_bytes()).as_str()[..2].to_owned()
}

/// The proof on the disk is that of the record.
#[test]
fn of_two_plans_with_which_a_job_goes_on_at_once_one_wins() {
    let sandbox = sandbox("plans");
    let id = one_whose_record_has_a_lock(&sandbox);
    let (won, lost) = at_once(&sandbox, &id, &[&["resume", &id, "--ttl", "5h"], &["resume", &id, "--ttl", "6h"]], 1);
    assert_eq!((won.code, lost.code), (Some(0), Some(12)), "{} {}", won.stderr, lost.stderr);
    let said = sandbox.run(&["wait", &id, "--timeout", "60s"]);
    assert_eq!(said.code, Some(0), "{}", said.stderr);
}

/// The record went, and with it the only word on the machine.
#[test]
fn a_driver_whose_record_is_gone_says_that_a_machine_may_be_left() {
    let sandbox = sandbox("lost");
    sandbox.script(&json!({ "job": { "duration": "60d" } }));
    let id = sandbox.run(&["submit", "job.toml", "--ttl", "30d"]).stdout.trim().to_owned();
    let calls = sandbox.state().join("fake/calls.jsonl");
    fs::remove_file(&calls).expect("calls");
    let waits = start(&sandbox, &["wait", &id]);
    let drives = || fs::read_to_string(&calls).is_ok_and(|calls| calls.matches("\"observe\"").count() > 2);
    (0..200).take_while(|_| !drives()).for_each(|_| thread::sleep(Duration::from_millis(100)));
    assert!(drives());
    let job = sandbox.state().join("store/ftctl/v1/jobs").join(&id);
    fs::remove_file(job.join("record.json")).expect("removed");
    let wish = json!({ "schema": "ftctl.cancel/1", "time": "2020-01-01T00:00:00Z", "grace_seconds": 0 });
    fs::write(job.join("cancel.json"), wish.to_string()).expect("written");
    let said = Said::of(waits.wait_with_output().expect("it ended"));
    refused(&said, 8, &format!("the record of the job {id} is gone, and its machines may still exist\n  fix: ftctl down {id}"));
    let debt = sandbox.state().join("store/ftctl/v1/debts").join(format!("{id}.json"));
    assert!(debt.exists());
    let said = sandbox.run(&["down", &id, "-y"]);
    assert_eq!((said.code, debt.exists()), (Some(0), false), "{}", said.stderr);
}

/// Runs two commands at once: none writes the record of a job before so many of them would. The one that did it, and the other.
fn at_once(sandbox: &Sandbox, id: &str, commands: &[&[&str]; 2], writers: usize) -> (Said, Said) {
    let writing = Writing::begin(sandbox, id);
    let children = commands.map(|command| start(sandbox, command));
    writing.wait_for(writers);
    // Time for one that must not come so far.
    thread::sleep(Duration::from_secs(1));
    writing.wait_for(writers);
    drop(writing);
    let [one, other] = children.map(|child| Said::of(child.wait_with_output().expect("it ended")));
    if one.code == Some(0) { (one, other) } else { (other, one) }
}

fn start(sandbox: &Sandbox, command: &[&str]) -> Child {
    sandbox.command(command).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("ftctl runs")
}

/// Keeps everybody from writing the record of a job, until dropped.
struct Writing {
    record: String,
    calls: PathBuf,
    _lock: fs::File,
}

impl Writing {
    fn begin(sandbox: &Sandbox, id: &str) -> Self {
        let record = format!("ftctl/v1/jobs/{id}/record.json");
        let calls = sandbox.state().join("fake/calls.jsonl");
        fs::remove_file(&calls).expect("calls");
        let lock =
            fs::File::create(sandbox.state().join("store/.ftctl/locks").join(lock_of(&record))).expect("a lock of the store");
        lock.lock().expect("locked");
        Self { record, calls, _lock: lock }
    }

    /// Returns when so many writes have begun.
    fn wait_for(&self, writers: usize) {
        let begun = || {
            let calls = fs::read_to_string(&self.calls).unwrap_or_default();
            calls.lines().filter(|line| line.contains("\"put\"") && line.contains(&self.record)).count()
        };
        for _ in 0..200 {
            if begun() >= writers {
                break;
            }
            thread::sleep(Duration::from_millis(100));
        }
        assert_eq!(begun(), writers, "the commands that write the record");
    }
}
