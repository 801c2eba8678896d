//! A job on the simulated Azure ML with its store in blobs: nodes that are processes, the real agent, the real trainer.

use std::env;

use crate::{
    azurite,
    blobs::container,
    devcloud::{Devcloud, on_azureml},
    sandbox::Sandbox,
};

/// Steps enough that a node can be taken away in the middle, twice.
const STEPS: u64 = 2_000;

fn finish(sandbox: &Sandbox, id: &str) -> Vec<(String, Vec<u8>)> {
    sandbox.ok(&["logs", "-f", id]);
    assert_eq!(sandbox.json(&["status", id])["state"], "succeeded", "{}", sandbox.ok(&["explain", id]));
    sandbox.results(id)
}

/// Waits until the attempt has made a step of its own.
fn at_work(sandbox: &Sandbox, id: &str, attempt: u64) {
    Sandbox::until("a step of the attempt", || {
        let status = sandbox.json(&["status", id]);
        status["attempt"] == attempt && status["step"].as_u64().is_some_and(|step| step > 0)
    });
}

/// The first notice is withdrawn, the second carried out; the third node goes because somebody rehearses it.
#[test]
#[ignore = "needs the trainer and Azurite: tests/run installs them"]
fn a_job_whose_nodes_are_taken_away_ends_with_the_bytes_of_one_that_kept_them() {
    assert!(env::var_os("FT_AZURITE").is_some(), "FT_AZURITE names the emulator: tests/run installs it");
    let azurite = azurite::start();
    let mut sandbox = Sandbox::new();
    let devcloud = Devcloud::azureml(&mut sandbox, "10");
    sandbox.variables.extend(container(&azurite));
    let job = on_azureml(&sandbox, "undisturbed", STEPS);
    let plan = sandbox.ok(&["plan", job.to_str().unwrap()]);
    assert!(plan.contains("Standard_ND40rs_v2") && plan.contains("idle"), "{plan}");
    let expected = finish(&sandbox, &sandbox.submit(&job));

    // A real notice is half a minute, in which this job would be done.
    devcloud.goes_wrong(r#"{ "notice": "3s" }"#);
    let id = sandbox.submit(&on_azureml(&sandbox, "disturbed", STEPS));
    let mut follower = sandbox.spawn(&["logs", "-f", &id]);
    at_work(&sandbox, &id, 1);
    devcloud.ask("POST", &format!("preempt?job={id}-a1&withdrawn=1"), "");
    Sandbox::until("the withdrawal", || sandbox.ok(&["logs", &id]).contains("the cloud has changed its mind"));
    assert_eq!(sandbox.json(&["status", &id])["attempt"], 1);
    devcloud.ask("POST", &format!("preempt?job={id}-a1"), "");
    at_work(&sandbox, &id, 2);
    sandbox.ok(&["drill", "preempt", &id]);
    assert!(follower.wait().unwrap().success(), "{}", sandbox.ok(&["explain", &id]));
    assert!(expected == finish(&sandbox, &id), "other bytes than the undisturbed job's");
    let explained = sandbox.ok(&["explain", &id]);
    assert_eq!(sandbox.json(&["status", &id])["attempt"], 3, "{explained}");
    assert!(explained.contains("preempted"), "{explained}");
    sandbox.ok(&["down", "--all", "-y"]);
    assert_eq!(sandbox.json(&["bill"])["resources"].as_array().map(Vec::len), Some(0));
    assert!(devcloud.nothing_bills(), "{:?}", devcloud.machines());
}
