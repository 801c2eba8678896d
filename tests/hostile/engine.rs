//! Containers of a real engine, which others use as well. Ignored in a plain `cargo test`: `tests/run` starts the engine, and
//! FT_DOCKER_IMAGE names an image with the agent and the trainer in it.

use std::{
    fs,
    path::PathBuf,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::common::{Said, Sandbox, with_cargo};

const TEMPLATE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/templates/jobs/quickstart-docker.toml");

/// A job that trains for longer than its test, in as little memory as it can.
const LONG: [&str; 14] = [
    "train.steps=1000000",
    "train.warmup_steps=5",
    "train.block_size=32",
    "train.micro_batch=2",
    "train.eval_sequences=2",
    "train.checkpoint_every=1000000",
    "data.limit_bytes=100000",
    "data.tokenizer.vocabulary=300",
    "model.layers=1",
    "model.heads=1",
    "model.width=32",
    "model.context=32",
    "sample.prompt=one",
    "compute.docker.network=host",
];

/// A user of the engine, with a computer and a store.
struct User<'s> {
    sandbox: &'s Sandbox,
    name: String,
    store: PathBuf,
}

impl User<'_> {
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.sandbox.command(arguments);
        command.env("USER", &self.name).env("FTCTL_STORE", &self.store).env("FTCTL_BACKEND", "docker");
        command.env("XDG_STATE_HOME", self.sandbox.path(&format!("state-of-{}", self.name)));
        command.env("DOCKER_HOST", std::env::var_os("DOCKER_HOST").unwrap_or_default());
        with_cargo(&mut command);
        command
    }

    fn run(&self, arguments: &[&str]) -> Said {
        Sandbox::said(&mut self.command(arguments))
    }

    fn put(&self, path: &str, value: &Value) {
        let path = self.store.join("ftctl/v1").join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, value.to_string()).unwrap();
    }

    fn record(&self, job: &str) -> Value {
        serde_json::from_slice(&fs::read(self.store.join(format!("ftctl/v1/jobs/{job}/record.json"))).unwrap()).unwrap()
    }
}

fn containers(owner: &str) -> String {
    list(&format!("label=ftctl.owner={owner}"), "-q")
}

fn list(filter: &str, which: &str) -> String {
    let output = Command::new("docker").args(["ps", which, "--filter", filter]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
#[ignore = "needs a container engine: tests/run starts one"]
fn docker_debts_and_records_end_no_container_of_another_user() {
    let sandbox = Sandbox::new();
    let user = |name: &str, store: &str| {
        let name = format!("ftctl-hostile-{name}-{}", std::process::id());
        User { sandbox: &sandbox, name, store: sandbox.path(store) }
    };
    let (alice, bob, mallory) = (user("alice", "store"), user("bob", "store"), user("mallory", "theirs"));
    let image = format!("compute.docker.image={}", std::env::var("FT_DOCKER_IMAGE").expect("tests/run makes it"));
    let sets: Vec<&str> = LONG.iter().copied().chain([image.as_str()]).flat_map(|set| ["--set", set]).collect();
    let said = alice.run(&[&["submit", TEMPLATE][..], &sets].concat());
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    let job = said.stdout.trim();
    let running = containers(&alice.name);
    assert_eq!(running.lines().count(), 1);

    // Another store owes that container, and has a copy of the job's record.
    let debt = json!({ "schema": "ftctl.debt/1", "id": job, "since": "2026-01-01T00:00:00Z", "why": "x" });
    let mut over = alice.record(job);
    (over["state"], over["outcome"]) = (json!("tearing_down"), json!("cancelled"));
    mallory.put(&format!("debts/{job}.json"), &debt);
    mallory.put(&format!("jobs/{job}/record.json"), &over);
    // So does the own store, which mallory may write to; bob looks into it.
    let kept = alice.record(job);
    alice.put(&format!("debts/{job}.json"), &debt);
    alice.put(&format!("jobs/{job}/record.json"), &over);
    let everyday = [&["status"][..], &["bill"], &["doctor"], &["logs", "nothere"], &["prune", "-y"], &["down", "--all", "-y"]];
    let by_id = [&["down", job, "-y"][..], &["cancel", job]];
    for (user, verbs) in [(&mallory, [&everyday[..], &by_id].concat()), (&bob, everyday.to_vec())] {
        for verb in verbs {
            user.run(verb);
            assert_eq!(containers(&alice.name), running, "{} {verb:?}", user.name);
        }
    }
    alice.put(&format!("jobs/{job}/record.json"), &kept);
    assert_eq!(alice.run(&["down", "--all", "-y"]).code, Some(0));
    assert_eq!(containers(&alice.name), "");
}

fn until(what: &str, holds: impl Fn() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < Duration::from_secs(60), "{what}");
        thread::sleep(Duration::from_millis(50));
    }
}

#[test]
#[ignore = "needs a container engine: tests/run starts one"]
fn docker_record_of_another_starts_no_container_and_mounts_nothing() {
    let sandbox = Sandbox::new();
    sandbox.write_rehearsal("foreign");
    let name = format!("ftctl-hostile-reader-{}", std::process::id());
    let reader = User { sandbox: &sandbox, name, store: sandbox.path("store") };
    // Another user of the store turns this into a job that tells the reader's engine what to do.
    let up = Sandbox::said(sandbox.command(&["up", "job.toml"]).env("FTCTL_STORE", &reader.store));
    assert_eq!(up.code, Some(0), "{}", up.stderr);
    let job = up.stdout.trim();
    let source = sandbox.path("made-by-a-mount");
    let mounts = ["/:/host".to_owned(), format!("{}:/made", source.display())];
    let image = std::env::var("FT_DOCKER_IMAGE").expect("tests/run makes it");
    let mut record = reader.record(job);
    let now = json!(jiff::Timestamp::now());
    (record["created"], record["updated"], record["simulated"], record["events"]) = (now.clone(), now, json!(false), json!([]));
    (record["state"], record["attempt"], record["attempts"]) = (json!("imaging"), json!(0), json!([]));
    (record["submitted"], record["plan"]["backend"]) = (json!(true), json!("docker"));
    record["plan"]["docker"] = json!({ "image": image, "user": "0:0", "mounts": mounts, "network": "host" });
    reader.put(&format!("jobs/{job}/record.json"), &record);

    let there = || list(&format!("label=ftctl.job={job}"), "-aq");
    let before = there();
    let (told, file) = (sandbox.path("told"), fs::File::create(sandbox.path("told")).unwrap());
    let mut follow = reader.command(&["logs", "-f", job]).stdout(Stdio::null()).stderr(file).spawn().unwrap();
    until("it is watched", || fs::read_to_string(&told).unwrap().contains("no ftctl drives it"));
    thread::sleep(Duration::from_secs(3));
    let over = follow.try_wait().unwrap();
    assert!(over.is_none() && there() == before && !source.exists(), "{over:?}: {}", fs::read_to_string(&told).unwrap());
    let asked = reader.run(&["logs", "-f", job, "--adopt"]);
    assert!(asked.code == Some(2) && asked.stderr.contains("/:/host") && asked.stderr.contains("add -y"), "{}", asked.stderr);
    assert!(there() == before && !source.exists());

    // A user who adopts it has it started: that record, less what it would mount.
    record["plan"]["docker"]["mounts"] = json!([]);
    reader.put(&format!("jobs/{job}/record.json"), &record);
    let mut adopting = reader.command(&["logs", "-f", job, "--adopt", "-y"]);
    let mut driver = adopting.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    until("a container of it starts", || there() != before);
    driver.kill().unwrap();
    driver.wait().unwrap();

    // Its end ends the watching.
    assert_eq!(reader.run(&["down", job, "-y"]).code, Some(0));
    let said = || fs::read_to_string(&told).unwrap();
    assert_eq!(follow.wait().unwrap().code(), Some(21), "{}", said());
    assert!(said().contains("cancelled"), "{}", said());
    assert!(there() == before && !source.exists());
}
