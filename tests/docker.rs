//! Whole jobs in containers, on a real engine. Ignored in a plain `cargo test`: `tests/run` starts the engine, and FT_DOCKER_IMAGE names
//! an image with the agent and the trainer in it.

mod common;

use std::{
    process::Command,
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::{Duration, Instant},
};

use common::{Runs, Said, Sandbox, azurite};

struct Place {
    sandbox: Sandbox,
    /// Nobody else's: tests run side by side on one engine, and each destroys all that is its owner's.
    owner: String,
    store: Option<String>,
    network: &'static str,
    /// What was on the engine before: one that somebody uses has things of its own.
    others: [String; 3],
}

impl Place {
    fn new() -> Self {
        static PLACES: AtomicU32 = AtomicU32::new(0);
        let owner = format!("ftctl-test-{}-{}", std::process::id(), PLACES.fetch_add(1, Ordering::Relaxed));
        Self { sandbox: Sandbox::new(), owner, store: None, network: "host", others: anonymous() }
    }

    fn in_azurite(store: String) -> Self {
        Self { store: Some(store), ..Self::new() }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.sandbox.command(arguments);
        command.env("USER", &self.owner);
        command.env("DOCKER_HOST", std::env::var_os("DOCKER_HOST").unwrap_or_default());
        if let Some(store) = &self.store {
            command.env("FTCTL_STORE", store).env("AZURE_STORAGE_KEY", azurite::KEY);
        }
        command
    }

    /// `verb` with the quickstart in a container, made small.
    fn quickstart(&self, verb: &[&str], steps: u32, more: &[&str]) -> Command {
        let template = include_str!("../templates/jobs/quickstart-docker.toml");
        // This home has no cargo, so no dependencies of anything.
        let job = template.replace("source = \"cargo-dependencies\"", "train = [\"text/*.txt\"]");
        self.sandbox.write("job.toml", job);
        std::fs::create_dir_all(self.sandbox.path("text")).expect("a directory");
        for text in 0..20 {
            let words: Vec<String> = (0..2_000).map(|word| format!("word{}", (word * word + text) % 97)).collect();
            self.sandbox.write(&format!("text/{text}.txt"), words.join(" "));
        }
        let image = std::env::var("FT_DOCKER_IMAGE").expect("FT_DOCKER_IMAGE names an image: tests/run makes it");
        let mut sets = vec![
            format!("compute.docker.image={image}"),
            format!("compute.docker.network={}", self.network),
            format!("train.steps={steps}"),
            "data.tokenizer.vocabulary=300".to_owned(),
        ];
        let small =
            ["model.layers=1", "model.heads=1", "model.width=32", "model.context=32", "train.block_size=32", "train.micro_batch=2"];
        let often = [
            "train.checkpoint_every=20",
            "train.log_every=10",
            "train.warmup_steps=5",
            "train.eval_sequences=2",
            "sample.tokens=4",
            "sample.prompt=one",
        ];
        sets.extend(small.iter().chain(&often).map(|set| (*set).to_owned()));
        let sets: Vec<&str> = sets.iter().flat_map(|set| ["--set", set]).collect();
        self.command(&[verb, &["job.toml"], &sets, more].concat())
    }

    fn submitted(&self, steps: u32) -> String {
        let said = Sandbox::said(&mut self.quickstart(&["submit"], steps, &[]));
        assert_eq!(said.code, Some(0), "{}", said.stderr);
        said.stdout.trim().to_owned()
    }

    /// Returns when the job's newest checkpoint is at `step` at least.
    fn trained_to(&self, job: &str, step: u64) {
        until(|| {
            let status = self.json(&["status", job]);
            assert_ne!(status["state"], "failed", "{status}");
            status["step"].as_u64().is_some_and(|seen| seen >= step)
        });
    }

    /// Follows the job to its end, which is a success in the attempt that is expected.
    fn succeeds(&self, job: &str, attempt: u64) -> String {
        let followed = self.run(&["logs", "-f", job]);
        let status = self.json(&["status", job]);
        assert_eq!(
            (status["state"].as_str(), status["attempt"].as_u64()),
            (Some("succeeded"), Some(attempt)),
            "{}",
            followed.stderr
        );
        followed.stdout
    }

    /// `down --all`, and nothing is left on the engine.
    fn leaves_nothing(&self) {
        self.ok(&["down", "--all", "-y", "--backend", "docker"]);
        let owner = format!("label=ftctl.owner={}", self.owner);
        assert_eq!(docker(&["ps", "-aq", "--filter", &owner]), "");
        assert_eq!(anonymous(), self.others);
    }
}

/// The volumes, networks and nameless images on the engine.
fn anonymous() -> [String; 3] {
    [
        &["volume", "ls", "-q"][..],
        &["network", "ls", "-q", "--filter", "type=custom"],
        &["image", "ls", "-q", "--filter", "dangling=true"],
    ]
    .map(docker)
}

impl Runs for Place {
    fn run(&self, arguments: &[&str]) -> Said {
        let said = Sandbox::said(&mut self.command(arguments));
        for text in [&said.stdout, &said.stderr] {
            assert!(!text.contains(azurite::KEY) && !text.contains("sig="), "{arguments:?} shows a secret: {text}");
        }
        said
    }
}

fn docker(arguments: &[&str]) -> String {
    let output = Command::new("docker").args(arguments).output().expect("docker runs");
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

fn until(mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(300), "nothing happened for five minutes");
        thread::sleep(Duration::from_millis(100));
    }
}

/// What does not depend on when and where a run was made.
fn weights(place: &Place, job: &str) -> Vec<u8> {
    place.ok(&["download", job, "--to", "model"]);
    std::fs::read(place.sandbox.path("model/model.safetensors")).expect("weights")
}

const STEPS: u32 = 400;

#[test]
#[ignore = "needs a container engine: tests/run starts one"]
fn docker_carries_a_job_to_its_end_with_either_store_and_any_death() {
    let calm = Place::new();
    let said = Sandbox::said(&mut calm.quickstart(&["run"], STEPS, &[]));
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    assert!(said.stdout.contains("succeeded"), "{}", said.stdout);
    let undisturbed = weights(&calm, "quickstart-docker");
    calm.leaves_nothing();

    // The container's first process, seen from the engine's machine, dies; then the container is killed by the engine.
    let azurite = azurite::start();
    let place = Place::in_azurite(azurite.container());
    let job = place.submitted(STEPS);
    place.trained_to(&job, 60);
    let pid = docker(&["inspect", "--format", "{{.State.Pid}}", &format!("{job}-a1")]);
    assert!(Command::new("kill").args(["-9", &pid]).status().expect("kill runs").success());
    let mut follower = place.command(&["logs", "-f", &job]).stdout(std::process::Stdio::null()).spawn().expect("ftctl runs");
    let second = format!("{job}-a2");
    until(|| !docker(&["ps", "-q", "--filter", &format!("name={second}")]).is_empty());
    place.trained_to(&job, 150);
    docker(&["kill", &second]);
    until(|| !docker(&["ps", "-q", "--filter", &format!("name={job}-a3")]).is_empty());
    // And ftctl itself.
    follower.kill().expect("killed");
    follower.wait().expect("waited");
    place.succeeds(&job, 3);
    assert!(weights(&place, &job) == undisturbed, "the weights are those of a run that was never disturbed");
    place.leaves_nothing();
}

#[test]
#[ignore = "needs a container engine: tests/run starts one"]
fn docker_runs_commands_beside_a_job_and_ends_it_when_asked() {
    let place = Place::new();
    let job = place.submitted(1_000_000);
    place.trained_to(&job, 20);
    let said = place.run(&["exec", &job, "--", "sh", "-c", "echo here; echo aside >&2; exit 7"]);
    assert_eq!((said.code, said.stdout.as_str(), said.stderr.as_str()), (Some(7), "here\n", "aside\n"));
    let echoed = place.command(&["exec", &job, "--", "cat"]).stdin(file("a\nb\n")).output().expect("ftctl runs");
    assert_eq!((echoed.status.code(), echoed.stdout.as_slice()), (Some(0), &b"a\nb\n"[..]));
    let shell = place.command(&["ssh", &job]).stdin(file("echo in a shell\nexit 3\n")).output().expect("ftctl runs");
    assert_eq!((shell.status.code(), shell.stdout.as_slice()), (Some(3), &b"in a shell\n"[..]));
    let status = place.json(&["status", &job, "--refresh"]);
    assert_eq!(status["machine"], "alive", "{status}");

    assert_eq!(place.run(&["cancel", &job]).code, Some(0));
    assert_eq!(place.json(&["status", &job])["state"], "cancelled");
    assert_eq!(place.run(&["exec", &job, "--", "true"]).code, Some(3));
    place.leaves_nothing();
}

#[test]
#[ignore = "needs a container engine: tests/run starts one"]
fn docker_ends_a_container_at_its_deadline_with_nobody_there() {
    let place = Place::new();
    let said = Sandbox::said(&mut place.quickstart(&["submit"], 1_000_000, &["--ttl", "20s"]));
    let machine = format!("{}-a1", said.stdout.trim());
    until(|| docker(&["inspect", "--format", "{{.State.Status}} {{.State.ExitCode}}", &machine]) == "exited 0");
    let sweep = ["sweep", "--expired", "--backend", "docker", "--dry-run"];
    until(|| place.json(&sweep).to_string().contains(&machine));
    place.ok(&["sweep", "--expired", "--backend", "docker", "-y"]);
    assert_eq!(docker(&["ps", "-aq", "--filter", &format!("name={machine}")]), "");
    place.leaves_nothing();
}

fn file(text: &str) -> std::fs::File {
    use std::io::{Seek as _, Write as _};
    let mut file = tempfile::tempfile().expect("a file");
    file.write_all(text.as_bytes()).expect("written");
    file.rewind().expect("rewound");
    file
}

#[test]
#[ignore = "needs a container engine: tests/run starts one"]
fn docker_that_is_away_or_has_no_image_is_told_and_leaves_nothing() {
    let place = Place::new();
    let missing = ["--set", "compute.docker.image=127.0.0.1:1/ftctl-test/none"];
    let said = Sandbox::said(&mut place.quickstart(&["run"], 10, &missing));
    assert_eq!(said.code, Some(2), "{}", said.stderr);
    assert!(said.stderr.contains("cannot fetch the image 127.0.0.1:1/ftctl-test/none"), "{}", said.stderr);
    place.leaves_nothing();

    let away = |verb: &[&str]| {
        let mut command = if verb == ["run"] { place.quickstart(verb, 10, &[]) } else { place.command(verb) };
        Sandbox::said(command.env("DOCKER_HOST", "unix:///nowhere/docker.sock"))
    };
    for verb in [&["run"][..], &["down", "--all", "-y"], &["sweep"]] {
        let verb = [verb, if verb == ["run"] { &[] } else { &["--backend", "docker"][..] }].concat();
        let said = away(&verb);
        assert_eq!(said.code, Some(7), "{verb:?}: {}", said.stderr);
        assert!(said.stderr.contains("no container engine answers at unix:///nowhere/docker.sock"), "{}", said.stderr);
        assert!(said.stderr.contains("start the engine, or correct DOCKER_HOST"), "{}", said.stderr);
    }
    let doctor = away(&["doctor", "--backend", "docker"]);
    assert_eq!(doctor.code, Some(1));
    assert!(doctor.stdout.contains("no container engine answers"), "{}", doctor.stdout);
}
