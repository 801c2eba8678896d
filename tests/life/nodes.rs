//! A job on several nodes: rehearsed on this machine, each node with an agent and a directory of its own.

use std::thread;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::{
    kills::{instant, kills},
    sandbox::{Sandbox, kill, signal},
};

const STEPS: u64 = 150;
/// Enough for some deaths.
const MANY_STEPS: u64 = 600;

const ONE: [&str; 2] = ["train.gradient_accumulation=4", "train.leaves=4"];
const TWO_BY_TWO: [&str; 2] = ["compute.nodes=2", "compute.processes_per_node=2"];

fn submit(sandbox: &Sandbox, name: &str, steps: u64, sets: &[&str]) -> String {
    let job = sandbox.job(name, steps);
    let sets = sets.iter().flat_map(|set| ["--set", set]);
    let arguments: Vec<&str> = ["submit", job.to_str().unwrap()].into_iter().chain(sets).collect();
    sandbox.ok(&arguments).trim().to_owned()
}

fn finish(sandbox: &Sandbox, id: &str) -> Vec<(String, Vec<u8>)> {
    sandbox.ok(&["logs", "-f", id]);
    assert_eq!(sandbox.json(&["status", id])["state"], "succeeded", "{}", sandbox.ok(&["explain", id]));
    sandbox.results(id)
}

fn at_work(sandbox: &Sandbox, id: &str, attempt: u64, beyond: u64) {
    Sandbox::until("a step of the attempt", || {
        let status = sandbox.json(&["status", id]);
        status["attempt"].as_u64() >= Some(attempt) && status["step"].as_u64().is_some_and(|step| step > beyond)
    });
}

/// The agent of a node is killed, then another is told that its machine goes; the job ends with the bytes of one process. Its
/// checkpoints are so large that each agent sends a part of them.
#[test]
#[ignore = "needs the trainer: tests/run builds it"]
fn a_job_on_two_nodes_survives_the_death_of_each_and_ends_with_the_bytes_of_one_process() {
    let sandbox = Sandbox::new();
    let large = |sets: [&'static str; 2]| [&sets[..], &["model.width=256"]].concat();
    let expected = finish(&sandbox, &submit(&sandbox, "alone", STEPS, &large(ONE)));
    let id = submit(&sandbox, "gang", STEPS, &large(TWO_BY_TWO));
    let mut follower = sandbox.spawn(&["logs", "-f", &id]);
    at_work(&sandbox, &id, 1, 12);
    assert_eq!((sandbox.processes("ftctl agent").len(), sandbox.processes("ft-trainer train").len()), (2, 4));
    sandbox.processes("--node 1").into_iter().for_each(kill);
    at_work(&sandbox, &id, 2, 12);
    sandbox.processes("--node 1").into_iter().for_each(|pid| signal(pid, Signal::TERM));
    assert!(follower.wait().unwrap().success(), "{}", sandbox.ok(&["explain", &id]));
    assert!(expected == finish(&sandbox, &id), "other bytes than those of one process");
    let explained = sandbox.ok(&["explain", &id]);
    assert_eq!(sandbox.json(&["status", &id])["attempt"], 3, "{explained}");
    assert!(explained.contains("node 1 was lost"), "{explained}");
    let each = sandbox.ok(&["logs", &id, "--rank", "all"]);
    assert!(each.contains("[0] step 12/") && each.contains("[1] error: "), "{each}");
    assert!(sandbox.processes("").is_empty(), "nothing runs on");
}

/// A node is lost: the other goes on with the leaves of both. When that is lost, too, both are asked for again.
#[test]
#[ignore = "needs the trainer: tests/run builds it"]
fn a_job_that_may_shrink_goes_on_with_the_node_that_is_left_to_the_same_bytes() {
    let sandbox = Sandbox::new();
    let expected = finish(&sandbox, &submit(&sandbox, "alone", MANY_STEPS, &ONE));
    let id = submit(&sandbox, "gang", MANY_STEPS, &[&TWO_BY_TWO[..], &["retry.shrink=true"]].concat());
    let mut follower = sandbox.spawn(&["logs", "-f", &id]);
    at_work(&sandbox, &id, 1, 12);
    assert_eq!(sandbox.json(&["status", &id])["nodes"], Value::Null, "all are there");
    sandbox.processes("--node 1").into_iter().for_each(kill);
    at_work(&sandbox, &id, 2, 12);
    assert_eq!((sandbox.processes("ftctl agent").len(), sandbox.processes("ft-trainer train").len()), (1, 2));
    let status = sandbox.json(&["status", &id]);
    assert_eq!((&status["nodes"], &status["planned_nodes"]), (&json!(1), &json!(2)), "{status}");
    assert!(sandbox.ok(&["status", &id]).contains("2, on 1 of 2 nodes"));
    let explained = sandbox.ok(&["explain", &id]);
    assert!(explained.contains("attempt 2 of at most 200 is running on 1 of 2 nodes"), "{explained}");
    sandbox.processes("ftctl agent").into_iter().for_each(kill);
    at_work(&sandbox, &id, 3, 12);
    assert_eq!((sandbox.processes("ftctl agent").len(), sandbox.processes("ft-trainer train").len()), (2, 4));
    assert!(follower.wait().unwrap().success(), "{}", sandbox.ok(&["explain", &id]));
    assert!(expected == finish(&sandbox, &id), "other bytes than those of one process");
    let explained = sandbox.ok(&["explain", &id]);
    assert!(explained.contains("-a2 is asked for with 1 of its 2 nodes (retry.shrink)"), "{explained}");
    let told = sandbox.run(&["logs", &id]).stderr;
    let told = String::from_utf8_lossy(&told);
    assert!(told.contains(&format!("-- attempt 2 of {id} on 1 of 2 nodes --")), "{told}");
    assert!(told.contains(&format!("-- attempt 3 of {id} --")), "{told}");
    let receipt = sandbox.json(&["bill", &id]);
    let nodes: Vec<&Value> = receipt["attempts"].as_array().unwrap().iter().map(|attempt| &attempt["nodes"]).collect();
    assert_eq!(nodes, [2, 1, 2]);
    assert!(sandbox.processes("").is_empty(), "nothing runs on");
}

/// A rank or an agent is killed at random instants, as often as `FT_KILLS` says; then one process goes on alone.
#[test]
#[ignore = "needs the trainer: tests/run builds it"]
fn random_deaths_and_another_number_of_processes_change_no_byte() {
    let sandbox = Sandbox::new();
    let expected = finish(&sandbox, &submit(&sandbox, "alone", MANY_STEPS, &ONE));
    let id = submit(&sandbox, "gang", MANY_STEPS, &TWO_BY_TWO);
    let mut follower = sandbox.spawn(&["logs", "-f", &id]);
    for round in 0..kills() {
        thread::sleep(instant(round, 4));
        let (agents, ranks) = (sandbox.processes("ftctl agent"), sandbox.processes("ft-trainer train"));
        let one = |of: &[u32]| of.get(instant(round, 5).as_millis() as usize % of.len().max(1)).copied();
        // Every third time an agent and a rank at once, of the same node or not.
        let victims = if round % 3 == 2 { [one(&agents), one(&ranks)] } else { [one(&[agents, ranks].concat()), None] };
        victims.into_iter().flatten().for_each(kill);
    }
    at_work(&sandbox, &id, 2, 12);
    sandbox.ok(&["cancel", &id]);
    assert_eq!(follower.wait().unwrap().code(), Some(21), "{}", sandbox.ok(&["explain", &id]));
    let alone = ["compute.nodes=1", "compute.processes_per_node=1", ONE[0]].into_iter().flat_map(|set| ["--set", set]);
    sandbox.ok(&["resume", &id].into_iter().chain(alone).collect::<Vec<_>>());
    assert!(expected == finish(&sandbox, &id), "other bytes than those of one process");
}
