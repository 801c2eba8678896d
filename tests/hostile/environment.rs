//! A trainer that means harm: whatever is in the environment of who started the job, it finds nothing there that opens anything.

use std::{fs, os::unix::fs::PermissionsExt, path::Path, process::Command};

use serde_json::json;

use crate::common::Sandbox;

/// What the shell of a careless user has.
const SECRETS: [&str; 8] = [
    "AZURE_STORAGE_KEY",
    "AZURE_STORAGE_CONNECTION_STRING",
    "AZURE_STORAGE_SAS_TOKEN",
    "AZURE_CLIENT_SECRET",
    "CLOUDSDK_AUTH_ACCESS_TOKEN",
    "GITHUB_TOKEN",
    "SECRET_IN_SHELL",
    "HTTPS_PROXY",
];

/// Tells its environment, and that of its agent as far as it can look into it.
const TRAINER: &str = "#!/bin/sh\nenv\necho agent:\ntr '\\0' '\\n' <\"/proc/$PPID/environ\" || echo closed\n";

/// An agent as a container starts it, whose image has this trainer.
struct Machine {
    sandbox: Sandbox,
    order: serde_json::Value,
}

impl Machine {
    fn new() -> Self {
        let sandbox = Sandbox::new();
        fs::create_dir(sandbox.path("data")).unwrap();
        sandbox.write("data/train.bin", "tokens");
        let store = sandbox.path("store").display().to_string();
        let uploaded = sandbox.run(&["upload", "data", "--store", &store]);
        assert_eq!(uploaded.code, Some(0), "{}", uploaded.stderr);
        let order = json!({
            "schema": "ftctl.order/1", "job": "hostile-bcdfgh", "attempt": 1, "store": store, "dataset": uploaded.stdout.trim(),
            "trainer": { "image": { "reference": "registry.example/ftctl@sha256:00" } },
            "model": {}, "train": {}, "grace_seconds": 1,
        });
        fs::create_dir(sandbox.path("image")).unwrap();
        sandbox.write("image/ft-trainer", TRAINER);
        fs::set_permissions(sandbox.path("image/ft-trainer"), fs::Permissions::from_mode(0o755)).unwrap();
        Self { sandbox, order }
    }

    /// Runs the agent with a file of variables, and gives what the trainer said.
    fn trains(&self, variables: &serde_json::Value) -> String {
        self.sandbox.write("order.json", self.order.to_string());
        self.sandbox.write("environment.json", variables.to_string());
        let arguments = ["agent", "--order", "order.json", "--work", "work", "--environment", "environment.json"];
        let mut command: Command = self.sandbox.command(&arguments);
        let path = format!("{}:{}", self.sandbox.path("image").display(), std::env::var("PATH").unwrap());
        command.env("PATH", path).envs(SECRETS.map(|name| (name, "very-secret")));
        let said = Sandbox::said(&mut command);
        assert_eq!(said.code, Some(0), "{}", said.stderr);
        assert!(!self.sandbox.path("environment.json").exists(), "the agent keeps no file of secrets");
        let log = Path::new(self.order["store"].as_str().unwrap()).join("ftctl/v1/jobs/hostile-bcdfgh/attempts/1/log");
        fs::read_to_string(log).unwrap()
    }
}

#[test]
fn a_trainer_finds_no_secret_in_its_environment() {
    let mut machine = Machine::new();
    machine.order["environment"] = json!({ "NCCL_DEBUG": "INFO" });
    let said = machine.trains(&json!({ "AZURE_STORAGE_SAS_TOKEN": "very-secret" }));
    let (own, agents) = said.split_once("agent:\n").unwrap();
    assert!(!own.contains("very-secret") && own.contains("NCCL_DEBUG=INFO\n") && own.contains("FTCTL_JOB_ID=hostile-bcdfgh\n"), "{own}");
    // Root looks into every process.
    if !rustix::process::geteuid().is_root() {
        assert!(agents.ends_with("closed\n") && !agents.contains("very-secret"), "{agents}");
    }
}

#[test]
fn a_job_file_gives_the_trainer_variables_and_no_programs_and_no_sign_ins() {
    let sandbox = Sandbox::new();
    sandbox.write_rehearsal("quick");
    let planned = sandbox.run(&["plan", "job.toml", "--set", "compute.environment.NCCL_DEBUG=INFO", "-o", "json"]);
    assert_eq!(planned.code, Some(0), "{}", planned.stderr);
    assert!(planned.stdout.replace([' ', '\n'], "").contains(r#""environment":{"NCCL_DEBUG":"INFO"}"#), "{}", planned.stdout);
    for (name, part) in [
        ("LD_PRELOAD", "LD_PRELOAD cannot be set by a job"),
        ("AZURE_STORAGE_KEY", "AZURE_STORAGE_KEY cannot be set by a job"),
        ("FTCTL_STORE", "FTCTL_STORE cannot be set by a job"),
        (r#""A\u001b[2J""#, "is no name of a variable"),
    ] {
        let said = sandbox.run(&["plan", "job.toml", "--set", &format!("compute.environment.{name}=x")]);
        assert!(said.code == Some(2) && said.stderr.contains(part) && !said.stderr.contains('\u{1b}'), "{name}: {:?} {}", said.code, said.stderr);
    }
}
