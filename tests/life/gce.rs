//! A job on the simulated Compute Engine, with real machines of processes, real agents and the real trainer.

use std::fs;

use crate::{
    devcloud::{Devcloud, by_a_group, on_gce},
    sandbox::Sandbox,
};

/// Steps enough that a machine can be taken away in the middle, twice.
const STEPS: u64 = 1_000;

/// Follows a job to its end, which must be a good one.
fn finish(sandbox: &Sandbox, id: &str) -> Vec<(String, Vec<u8>)> {
    sandbox.ok(&["logs", "-f", id]);
    assert_eq!(sandbox.json(&["status", id])["state"], "succeeded", "{}", sandbox.ok(&["explain", id]));
    sandbox.results(id)
}

/// Two processes share each machine.
#[test]
#[ignore = "needs the trainer: tests/run builds it"]
fn a_job_that_loses_its_machines_ends_with_the_bytes_of_one_that_lost_none() {
    let mut sandbox = Sandbox::new();
    let devcloud = Devcloud::start(&mut sandbox, "10");
    let of_two = |name| {
        let job = on_gce(&sandbox, name, STEPS, "ftctl");
        let text = fs::read_to_string(&job).unwrap().replace("[train]\n", "[train]\ndevice = \"cpu\"\n");
        fs::write(&job, text + "[compute]\nprocesses_per_node = 2\n").unwrap();
        job
    };
    let job = of_two("undisturbed");
    let plan = sandbox.ok(&["plan", job.to_str().unwrap()]);
    assert!(plan.contains("0.91 USD an hour"), "{plan}");
    let expected = finish(&sandbox, &sandbox.submit(&job));

    // No machine in the first zone; the first that is made goes while it boots, and two more while they train.
    devcloud
        .goes_wrong(r#"{ "boot": "1s", "stock_outs": ["us-central1-a"], "preemptions": [{ "instance": "-a1", "after": "0s" }] }"#);
    let id = sandbox.submit(&of_two("disturbed"));
    let mut follower = sandbox.spawn(&["logs", "-f", &id]);
    for attempt in [2, 3] {
        Sandbox::until("a step of the attempt", || {
            let status = sandbox.json(&["status", &id]);
            status["attempt"] == attempt && status["step"].as_u64().is_some_and(|step| step > 0)
        });
        sandbox.ok(&["drill", "preempt", &id]);
    }
    assert!(follower.wait().unwrap().success(), "{}", sandbox.ok(&["explain", &id]));
    assert!(expected == finish(&sandbox, &id), "other bytes than the undisturbed job's");
    assert!(sandbox.json(&["status", &id])["attempt"].as_u64().is_some_and(|attempt| attempt >= 4));
    let explained = sandbox.ok(&["explain", &id]);
    assert!(explained.contains("preempted"), "{explained}");
    assert!(devcloud.nothing_bills(), "{:?}", devcloud.machines());
    let receipt = sandbox.json(&["bill", &id]);
    let dollars = |key: &str| receipt[key].as_str().unwrap().trim_end_matches("USD").parse::<f64>().unwrap();
    // Both are sums over some attempts of seconds each, rounded to millionths.
    let rounding = 1e-6 * 5.0 * receipt["attempts"].as_array().map_or(0, Vec::len) as f64;
    let expected = dollars("cost") * 3.235_835 / 0.908_039;
    assert!((dollars("lasting_cost") - expected).abs() < rounding, "as much time on demand: {receipt}");
    assert_eq!(sandbox.json(&["bill"])["resources"].as_array().map(Vec::len), Some(0));
}

/// Three machines, two of them taken away: once with no `ftctl` from the submission to the end, once with one that follows.
#[test]
#[ignore = "needs the trainer: tests/run builds it"]
fn a_job_of_a_group_ends_whether_or_not_somebody_is_there() {
    let mut sandbox = Sandbox::new();
    let devcloud = Devcloud::start(&mut sandbox, "10");
    let expected = finish(&sandbox, &sandbox.submit(&on_gce(&sandbox, "undisturbed", 3 * STEPS, "ftctl")));

    devcloud.goes_wrong(r#"{ "boot": "1s" }"#);
    let job = on_gce(&sandbox, "grouped", 3 * STEPS, "ftctl");
    by_a_group(&job);
    for followed in [false, true] {
        let id = sandbox.submit(&job);
        let follower = followed.then(|| sandbox.spawn(&["logs", "-f", &id]));
        lose_machines(&sandbox, &devcloud, &id, 2);
        Sandbox::until("the third attempt", || sandbox.json(&["status", &id])["attempt"] == 3);
        sandbox.ok(&["logs", &id, "--attempt", "2"]);
        if let Some(mut follower) = follower {
            assert!(follower.wait().unwrap().success(), "{}", sandbox.ok(&["explain", &id]));
        }
        Sandbox::until("the end of its group and of the machine", || nothing_is_left(&devcloud));
        let made = devcloud.made().len();
        // A later command finds everything, and makes nothing.
        assert!(expected == finish(&sandbox, &id), "other bytes than the undisturbed job's");
        let status = sandbox.json(&["status", &id]);
        assert_eq!(status["attempt"], 3, "{}", sandbox.ok(&["explain", &id]));
        assert_eq!(devcloud.made().len(), made);
        let attempts = sandbox.json(&["bill", &id])["attempts"].as_array().unwrap().clone();
        assert!(attempts.len() == 3 && attempts.iter().all(|attempt| attempt["cost"] != "0USD"), "{attempts:?}");
    }
    // A wish to end it reaches the attempt of which no supervisor knows.
    let id = sandbox.submit(&job);
    lose_machines(&sandbox, &devcloud, &id, 1);
    Sandbox::until("the second attempt", || sandbox.json(&["status", &id])["attempt"] == 2);
    sandbox.ok(&["cancel", &id]);
    assert_eq!(sandbox.json(&["status", &id])["state"], "cancelled", "{}", sandbox.ok(&["explain", &id]));
    Sandbox::until("the end of its group and of the machine", || nothing_is_left(&devcloud));
    assert!(devcloud.nothing_bills(), "{:?}", devcloud.machines());
    assert_eq!(sandbox.json(&["bill"])["resources"].as_array().map(Vec::len), Some(0));
}

fn nothing_is_left(devcloud: &Devcloud) -> bool {
    devcloud.instances().is_empty() && devcloud.everywhere("instanceGroupManagers").is_empty()
}

/// Each in the middle of its attempt.
fn lose_machines(sandbox: &Sandbox, devcloud: &Devcloud, id: &str, machines: u32) {
    for attempt in 1..=machines {
        let progress = sandbox.path(&format!("state/ftctl/store/ftctl/v1/jobs/{id}/attempts/{attempt}/progress.jsonl"));
        Sandbox::until("a step of the attempt", || fs::read_to_string(&progress).is_ok_and(|text| text.contains("\"step\"")));
        devcloud.take_away("");
    }
}
