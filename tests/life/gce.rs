//! A job on the simulated Compute Engine, with real machines of processes, real agents and the real trainer.

use std::{
    fs,
    io::{BufRead, BufReader},
    os::unix::fs::symlink,
    path::PathBuf,
    process::{Child, Command, Stdio},
};

use serde_json::Value;

use crate::sandbox::Sandbox;

/// So many that a machine can be taken away in the middle, twice.
const STEPS: u64 = 1_000;

struct Devcloud {
    child: Child,
    endpoint: String,
}

impl Devcloud {
    /// Begins one for everything that this sandbox runs.
    fn start(sandbox: &mut Sandbox) -> Self {
        let trainer = std::env::var_os("FT_TRAINER").expect("FT_TRAINER names the trainer: tests/run builds it");
        let image = sandbox.path("image");
        fs::create_dir(&image).unwrap();
        symlink(trainer, image.join("ft-trainer")).unwrap();
        let mut command = sandbox.command(&["devcloud", "gce", "--disks", "disks", "--speed", "10"]);
        let mut child = command.env("DEVCLOUD_IMAGE_PATH", &image).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines().take(5);
        let pairs = lines.map(|line| line.unwrap().split_once('=').map(|(name, value)| (name.into(), value.into())).unwrap());
        sandbox.variables.extend(pairs);
        sandbox.variables.push(("FTCTL_BACKEND".into(), "gce".into()));
        let (_, endpoint) = sandbox.variables.iter().find(|(name, _)| name == "FTCTL_ENDPOINT_GCE").unwrap();
        Self { child, endpoint: endpoint.to_str().unwrap().to_owned() }
    }

    fn ask(&self, method: &str, lever: &str, body: &str) -> Value {
        let url = format!("{}/devcloud/{lever}", self.endpoint);
        let output = Command::new("curl").args(["-sf", "-X", method, "--data", body, &url]).output().unwrap();
        assert!(output.status.success(), "{method} {url}");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    fn goes_wrong(&self, script: &str) {
        self.ask("PUT", "script", script);
    }
}

impl Drop for Devcloud {
    fn drop(&mut self) {
        let _ = Command::new("kill").arg(self.child.id().to_string()).status();
        let _ = self.child.wait();
    }
}

/// The job of the other tests, on Compute Engine.
fn on_gce(sandbox: &Sandbox, name: &str) -> PathBuf {
    let file = sandbox.job(name, STEPS);
    let compute = "[compute.gce]\nimage = \"registry.example/ftctl@sha256:00\"\n";
    fs::write(&file, fs::read_to_string(&file).unwrap() + compute).unwrap();
    file
}

/// Follows a job to its end, which must be a good one.
fn finish(sandbox: &Sandbox, id: &str) -> Vec<(String, Vec<u8>)> {
    sandbox.ok(&["logs", "-f", id]);
    assert_eq!(sandbox.json(&["status", id])["state"], "succeeded", "{}", sandbox.ok(&["explain", id]));
    sandbox.results(id)
}

#[test]
#[ignore = "needs the trainer: tests/run builds it"]
fn a_job_that_loses_its_machines_ends_with_the_bytes_of_one_that_lost_none() {
    let mut sandbox = Sandbox::new();
    let devcloud = Devcloud::start(&mut sandbox);
    let job = on_gce(&sandbox, "undisturbed");
    let plan = sandbox.ok(&["plan", job.to_str().unwrap()]);
    assert!(plan.contains("0.908039USD an hour"), "{plan}");
    let expected = finish(&sandbox, &sandbox.submit(&job));

    // No machine in the first zone; the first that is made goes while it boots, and two more while they train.
    devcloud
        .goes_wrong(r#"{ "boot": "1s", "stock_outs": ["us-central1-a"], "preemptions": [{ "instance": "-a1", "after": "0s" }] }"#);
    let id = sandbox.submit(&on_gce(&sandbox, "disturbed"));
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
    let bill = devcloud.ask("GET", "bill", "");
    assert!(
        bill["machines"].as_array().unwrap().iter().all(|machine| machine["exists"] == false),
        "nothing bills any more: {bill}"
    );
    assert!(sandbox.json(&["bill"])["machines"].as_array().is_none_or(Vec::is_empty));
}
