//! A job that is over goes on as the same job: `ftctl resume`.

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
    refused(&resume(&sandbox, &id, &[]), 2, "succeeded: there is nothing left to do");
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
