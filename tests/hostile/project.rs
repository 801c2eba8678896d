//! A simulated cloud, and machines that are in it.

use std::{
    io::{BufRead as _, BufReader},
    process::{Child, Command, Stdio},
};

use serde_json::{Value, json};

use crate::common::Sandbox;

pub const IMAGE: [&str; 2] = ["--set", "compute.gce.image=registry.example/ftctl@sha256:00"];
const ZONE: &str = "compute/v1/projects/devcloud/zones/us-central1-a";

/// A simulated cloud, which several people use.
pub struct Project {
    child: Child,
    pub variables: Vec<(String, String)>,
    _sandbox: Sandbox,
}

impl Project {
    pub fn new(script: &Value) -> Self {
        let sandbox = Sandbox::new();
        sandbox.write("script.json", script.to_string());
        let mut command = sandbox.command(&["devcloud", "gce", "--script", "script.json", "--speed", "10"]);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines().take(5);
        let variables = lines.map(|line| line.unwrap().split_once('=').map(|(name, value)| (name.into(), value.into())).unwrap());
        Self { child, variables: variables.collect(), _sandbox: sandbox }
    }

    pub fn variable(&self, wanted: &str) -> &str {
        &self.variables.iter().find(|(name, _)| name == wanted).unwrap().1
    }

    pub fn ask(&self, method: &str, path: &str, body: &Value) -> Value {
        let token = format!("Authorization: Bearer {}", self.variable("CLOUDSDK_AUTH_ACCESS_TOKEN"));
        let url = format!("{}/{path}", self.variable("FTCTL_ENDPOINT_GCE"));
        let output =
            Command::new("curl").args(["-s", "-X", method, "-H", &token, "--data", &body.to_string(), &url]).output().unwrap();
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// A machine that has nothing to do with ftctl.
    pub fn make(&self, name: &str) {
        self.insert(&json!({
            "name": name,
            "machineType": format!("{ZONE}/machineTypes/custom-12-79872"),
            "guestAccelerators": [{ "acceleratorType": format!("{ZONE}/acceleratorTypes/nvidia-tesla-v100"), "acceleratorCount": 1 }],
            "scheduling": { "automaticRestart": false, "onHostMaintenance": "TERMINATE" },
        }));
    }

    /// A machine as this one is or was, with a new disk.
    pub fn insert(&self, machine: &Value) {
        let mut machine = machine.clone();
        machine["disks"] = json!([{ "boot": true, "autoDelete": true, "initializeParams": { "diskSizeGb": "200" } }]);
        let answer = self.ask("POST", &format!("{ZONE}/instances"), &machine);
        assert!(answer["error"].is_null(), "{answer}");
    }

    pub fn delete(&self, name: &str) {
        self.ask("DELETE", &format!("{ZONE}/instances/{name}"), &Value::Null);
    }

    /// The machines that there are, as the cloud tells them.
    pub fn instances(&self) -> Vec<Value> {
        let answer = self.ask("GET", "compute/v1/projects/devcloud/aggregated/instances", &Value::Null);
        let zones = answer["items"].as_object().unwrap().values();
        zones.flat_map(|zone| zone["instances"].as_array().unwrap().clone()).collect()
    }

    pub fn machines(&self) -> Vec<String> {
        let mut names: Vec<String> = self.instances().iter().map(|machine| machine["name"].as_str().unwrap().to_owned()).collect();
        names.sort();
        names
    }
}

impl Drop for Project {
    fn drop(&mut self) {
        let _ = Command::new("kill").arg(self.child.id().to_string()).status();
        let _ = self.child.wait();
    }
}
