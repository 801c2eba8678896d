//! A trainer that means harm: whatever is in the environment of the user who started the job, it finds nothing there that opens
//! anything.

use std::{
    fs,
    io::{BufRead, BufReader},
    os::unix::{fs::PermissionsExt, process::CommandExt},
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::common::Sandbox;

/// The environment in the shell of a careless user.
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

/// An image with this trainer in the sandbox.
fn write_image(sandbox: &Sandbox, trainer: &str) {
    fs::create_dir(sandbox.path("image")).unwrap();
    sandbox.write("image/ft-trainer", trainer);
    fs::set_permissions(sandbox.path("image/ft-trainer"), fs::Permissions::from_mode(0o755)).unwrap();
}

/// An agent as a container starts it, whose image has this trainer.
struct Machine {
    sandbox: Sandbox,
    order: Value,
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
            "schema": "ftctl.order/1", "job": "hostile-bcdfgh", "attempt": 1, "store": store, "dataset": uploaded.stdout.lines().next().unwrap(),
            "trainer": { "image": { "reference": "registry.example/ftctl@sha256:00" } },
            "model": {}, "train": {}, "grace_seconds": 1,
        });
        write_image(&sandbox, TRAINER);
        Self { sandbox, order }
    }

    /// Runs as the user that containers have: root looks into every process.
    fn as_in_a_container(&self, command: &Command) -> Command {
        const USER: u32 = 10_001;
        // Another process writes it: this one may be forking, and a program that is open for writing cannot be started.
        let program = self.sandbox.path("ftctl");
        assert!(Command::new("cp").arg(command.get_program()).arg(&program).status().unwrap().success());
        let mut other = Command::new(program);
        other.args(command.get_args()).current_dir(self.sandbox.path("")).stdin(Stdio::null());
        other.env_clear().envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        if rustix::process::geteuid().is_root() {
            let all = self.sandbox.path("..");
            assert!(Command::new("chown").args(["-R", &format!("{USER}:{USER}")]).arg(all).status().unwrap().success());
            other.uid(USER).gid(USER);
        }
        other
    }

    /// Runs the agent with a file of variables, and gives what the trainer said.
    fn trains(&self, variables: &Value) -> String {
        self.sandbox.write("order.json", self.order.to_string());
        self.sandbox.write("environment.json", variables.to_string());
        let arguments = ["agent", "--order", "order.json", "--work", "work", "--environment", "environment.json"];
        let mut command = self.sandbox.command(&arguments);
        let path = format!("{}:{}", self.sandbox.path("image").display(), std::env::var("PATH").unwrap());
        command.env("PATH", path).envs(SECRETS.map(|name| (name, "very-secret")));
        let said = Sandbox::said(&mut self.as_in_a_container(&command));
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
    assert!(
        !own.contains("very-secret") && own.contains("NCCL_DEBUG=INFO\n") && own.contains("FTCTL_JOB_ID=hostile-bcdfgh\n"),
        "{own}"
    );
    assert!(agents.ends_with("closed\n") && !agents.contains("very-secret"), "{agents}");
}

/// Where a job service starts the agent, the order lies in the store, and others may write there.
#[test]
fn an_order_of_another_gives_an_agent_nothing() {
    let mut machine = Machine::new();
    let store = machine.order["store"].as_str().unwrap().to_owned();
    let place = Path::new(&store).join("ftctl/v1/jobs/hostile-bcdfgh");
    fs::create_dir_all(&place).unwrap();
    let asked = ftctl::job::order::asked(&machine.order);
    machine.order["environment"] = json!({ "CUDA_INJECTION64_PATH": "evil.so" });
    fs::write(place.join("order.json"), machine.order.to_string()).unwrap();
    let words = ["agent", "--job", "hostile-bcdfgh", "--attempt", "1", "--store", &store, "--asked", asked.as_str()];
    let mut command = machine.sandbox.command(&words);
    command.env("PATH", format!("{}:{}", machine.sandbox.path("image").display(), std::env::var("PATH").unwrap()));
    let said = Sandbox::said(&mut machine.as_in_a_container(&command));
    assert_eq!(said.code, Some(9), "{}", said.stderr);
    assert!(said.stderr.contains("is not what the job's submitter ordered: somebody has changed it"), "{}", said.stderr);
    assert!(!place.join("attempts").exists(), "nothing is begun");
    // The honest one is carried out.
    machine.order["environment"] = json!({});
    fs::write(place.join("order.json"), machine.order.to_string()).unwrap();
    let said = Sandbox::said(&mut machine.as_in_a_container(&command));
    assert_eq!(said.code, Some(0), "{}", said.stderr);
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
        (r#""A\u001b[2J""#, "is not the name of a variable"),
    ] {
        let said = sandbox.run(&["plan", "job.toml", "--set", &format!("compute.environment.{name}=x")]);
        assert!(
            said.code == Some(2) && said.stderr.contains(part) && !said.stderr.contains('\u{1b}'),
            "{name}: {:?} {}",
            said.code,
            said.stderr
        );
    }
}

/// A simulated cloud whose machines have this trainer.
struct Cloud {
    sandbox: Sandbox,
    process: Child,
    environment: Vec<(String, String)>,
}

impl Cloud {
    fn with(trainer: &str) -> Self {
        let sandbox = Sandbox::new();
        write_image(&sandbox, trainer);
        let mut command = sandbox.command(&["devcloud", "gce", "--disks", "disks", "--speed", "10"]);
        command.env("DEVCLOUD_IMAGE_PATH", sandbox.path("image")).envs(SECRETS.map(|name| (name, "very-secret")));
        let mut process = command.stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines().take(5).map(Result::unwrap);
        let pairs = lines.map(|line| line.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned())).unwrap());
        let environment = pairs.chain([("FTCTL_BACKEND".to_owned(), "gce".to_owned())]).collect();
        Self { sandbox, process, environment }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.sandbox.command(arguments);
        command.envs(self.environment.iter().cloned());
        command
    }

    /// The job's machine, as everybody with access to the project sees it.
    fn machine(&self, job: &str) -> Option<Value> {
        let variable = |name| &self.environment.iter().find(|(known, _)| known == name).unwrap().1;
        let url = format!("{}/compute/v1/projects/devcloud/aggregated/instances", variable("FTCTL_ENDPOINT_GCE"));
        let sign_in = format!("Authorization: Bearer {}", variable("CLOUDSDK_AUTH_ACCESS_TOKEN"));
        let seen = Command::new("curl").args(["-sf", "-H", &sign_in, &url]).output().unwrap();
        let answer: Value = serde_json::from_slice(&seen.stdout).unwrap();
        let machines =
            answer["items"].as_object()?.values().flat_map(|zone| zone["instances"].as_array().cloned().unwrap_or_default());
        machines.into_iter().find(|machine| machine["labels"]["ftctl-job"] == job)
    }
}

impl Drop for Cloud {
    fn drop(&mut self) {
        let _ = Command::new("kill").arg(self.process.id().to_string()).status();
        let _ = self.process.wait();
    }
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < Duration::from_secs(90), "{what} did not happen within 90 s");
        thread::sleep(Duration::from_millis(50));
    }
}

fn keys(machine: &Value) -> Vec<&str> {
    machine["metadata"]["items"].as_array().unwrap().iter().filter_map(|item| item["key"].as_str()).collect()
}

#[test]
fn a_machine_shows_no_secret_once_its_agent_was_heard_of_and_has_no_rights() {
    let cloud = Cloud::with("#!/bin/sh\nenv >\"$HOME/seen\"\nuntil [ -e \"$HOME/finish\" ]; do sleep 0.1; done\n");
    cloud.sandbox.write_rehearsal("quick");
    cloud.sandbox.write_dataset();
    let arguments = ["submit", "job.toml", "--set", "compute.gce.image=registry.example/ftctl@sha256:00"];
    let submitted = Sandbox::said(&mut cloud.command(&arguments));
    assert_eq!(submitted.code, Some(0), "{}", submitted.stderr);
    let job = submitted.stdout.trim();
    // The agent was not heard of yet, and a reader of the project sees its environment.
    assert!(keys(&cloud.machine(job).unwrap()).contains(&"ftctl-environment"));
    let driver = cloud.command(&["logs", "-f", "quick"]).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    until("the end of the secret", || !keys(&cloud.machine(job).unwrap()).contains(&"ftctl-environment"));
    let machine = cloud.machine(job).unwrap();
    assert!(keys(&machine).contains(&"ftctl-order") && machine["serviceAccounts"].is_null(), "{machine}");
    let disks = fs::read_dir(cloud.sandbox.path("disks")).unwrap().map(|disk| disk.unwrap().path());
    let disk = disks.into_iter().find(|disk| disk.to_str().unwrap().ends_with("-a1")).unwrap();
    until("the training", || disk.join("seen").exists());
    let seen = fs::read_to_string(disk.join("seen")).unwrap();
    assert!(!seen.contains("very-secret") && !seen.contains("GCE_METADATA_HOST"), "{seen}");
    let rules = fs::read_to_string(disk.join("iptables")).unwrap();
    assert!(rules.contains("-d 169.254.169.254") && rules.contains("--uid-owner 10001 -j REJECT"), "{rules}");
    assert!(!disk.join("run/agent/environment.json").exists(), "the agent removes what it has read");
    fs::write(disk.join("finish"), "").unwrap();
    // It goes on without the environment, to the end of a trainer that trains nothing.
    let followed = driver.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&followed.stderr);
    assert!(said.contains("the trainer reported success, but no checkpoint reached the store"), "{said}");
    assert_eq!(Sandbox::said(&mut cloud.command(&["down", "quick", "-y"])).code, Some(0));
}
