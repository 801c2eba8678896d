//! Whole jobs in containers, on a real engine. Ignored in a plain `cargo test`: `tests/run` starts the engine, and FT_DOCKER_IMAGE
//! names an image with the agent and the trainer in it.

use std::{
    io::{BufRead as _, BufReader},
    process::{Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::{Duration, Instant},
};

use crate::common::{
    Runs, Said, Sandbox, azurite,
    registry::{Auth, Registry},
    with_cargo,
};

const TEMPLATE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/templates/jobs/quickstart-docker.toml");

struct Place {
    sandbox: Sandbox,
    /// This test's alone: tests run side by side on one engine, and each destroys all that is its owner's.
    owner: String,
    store: Option<String>,
    network: &'static str,
    /// The resources that were on the engine before: an engine in use has some of its own.
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

    /// `verb` with the template of the quickstart in a container, made small.
    fn quickstart(&self, verb: &[&str], steps: u32, more: &[&str]) -> Command {
        let image = std::env::var("FT_DOCKER_IMAGE").expect("FT_DOCKER_IMAGE names an image: tests/run makes it");
        let mut sets = vec![
            format!("compute.docker.image={image}"),
            format!("compute.docker.network={}", self.network),
            format!("train.steps={steps}"),
            "data.limit_bytes=100000".to_owned(),
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
        let mut command = self.command(&[verb, &[TEMPLATE], &sets, more].concat());
        with_cargo(&mut command);
        command
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
        self.ok(&["down", "--all", "-y"]);
        assert_eq!(self.containers(), "");
        for (now, before) in anonymous().iter().zip(&self.others) {
            let new: Vec<&str> = now.lines().filter(|line| !before.contains(line)).collect();
            assert!(new.is_empty(), "{new:?}");
        }
    }

    fn containers(&self) -> String {
        docker(&["ps", "-aq", "--filter", &format!("label=ftctl.owner={}", self.owner)])
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

/// The part of the weights' file that does not depend on when and where a run was made.
fn weights(place: &Place, job: &str) -> Vec<u8> {
    place.ok(&["download", job, "--to", "model", "--overwrite"]);
    std::fs::read(place.sandbox.path("model/model.safetensors")).expect("weights")
}

const STEPS: u32 = 400;

/// Two processes train in its container.
const SHARED: [&str; 2] = ["--set", "compute.processes_per_node=2"];
/// One in each of two containers.
const NODES: [&str; 2] = ["--set", "compute.nodes=2"];

#[test]
#[ignore = "needs a container engine: tests/run starts one"]
fn docker_carries_a_job_to_its_end_with_either_store_and_any_death() {
    let azurite = azurite::start();
    let calm = Place::in_azurite(azurite.container());
    let said = Sandbox::said(&mut calm.quickstart(&["run"], STEPS, &SHARED));
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    assert!(said.stdout.contains("succeeded"), "{}", said.stdout);
    let undisturbed = weights(&calm, "quickstart-docker");
    calm.leaves_nothing();

    for place in [Place::in_azurite(azurite.container()), Place::new()] {
        dies_in_every_way(&place);
        assert!(weights(&place, "quickstart-docker") == undisturbed, "the weights are those of a run that was never disturbed");
        place.leaves_nothing();
    }

    let place = Place::new();
    loses_a_node(&place);
    assert!(weights(&place, "quickstart-docker") == undisturbed, "two containers train as two processes of one do");
    place.leaves_nothing();
}

/// The container of a node is killed by its engine, and of the next attempt both are taken away.
fn loses_a_node(place: &Place) {
    let said = Sandbox::said(&mut place.quickstart(&["submit"], STEPS, &NODES));
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    let job = said.stdout.trim();
    let mut follower = place.command(&["logs", "-f", job]);
    let mut follower = follower.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("ftctl runs");
    place.trained_to(job, 60);
    assert_eq!(place.containers().lines().count(), 2);
    docker(&["kill", &format!("{job}-a1-node-1")]);
    until(|| !docker(&["ps", "-q", "--filter", &format!("name={job}-a2-node-1")]).is_empty());
    place.trained_to(job, 150);
    place.ok(&["drill", "preempt", job]);
    assert!(follower.wait().expect("waited").success(), "{}", place.ok(&["explain", job]));
    assert_eq!(place.json(&["status", job])["attempt"], 3, "{}", place.ok(&["explain", job]));
}

fn dies_in_every_way(place: &Place) {
    let mut run =
        place.quickstart(&["run"], STEPS, &SHARED).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("ftctl runs");
    until(|| place.run(&["status", "quickstart-docker"]).code == Some(0));
    let job = place.json(&["status", "quickstart-docker"])["id"].as_str().expect("an id").to_owned();
    place.trained_to(&job, 60);
    // The container's first process, seen from the engine's machine; then the container, by its engine.
    let pid = docker(&["inspect", "--format", "{{.State.Pid}}", &format!("{job}-a1")]);
    assert!(Command::new("kill").args(["-9", &pid]).status().expect("kill runs").success());
    let second = format!("{job}-a2");
    until(|| !docker(&["ps", "-q", "--filter", &format!("name={second}")]).is_empty());
    place.trained_to(&job, 150);
    docker(&["kill", &second]);
    until(|| !docker(&["ps", "-q", "--filter", &format!("name={job}-a3")]).is_empty());
    // And ftctl itself.
    run.kill().expect("killed");
    run.wait().expect("waited");
    place.succeeds(&job, 3);
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
fn docker_agents_that_cannot_write_to_the_store_say_so_to_the_one_who_waits() {
    let place = Place::new();
    let mut run = place.quickstart(&["run"], STEPS, &["--set", "compute.docker.user=4321:8765"]);
    let mut run = run.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("ftctl runs");
    let said = BufReader::new(run.stderr.take().expect("piped")).lines().map(|line| line.expect("text"));
    let told = said.into_iter().find(|line| line.contains("has sent no heartbeat for 30 s")).expect("a word");
    assert!(told.contains("on its console: warning: could not") && told.contains("Permission denied"), "{told}");
    run.kill().expect("killed");
    run.wait().expect("waited");
    // It has nothing to send, and could not.
    docker(&["rm", "--force", &place.containers()]);
    place.leaves_nothing();
}

#[test]
#[ignore = "needs a container engine: tests/run starts one"]
fn docker_containers_without_a_record_are_found_and_sent_home() {
    let place = Place::new();
    let job = place.submitted(1_000_000);
    place.trained_to(&job, 20);
    std::fs::create_dir(place.sandbox.path("another")).expect("a directory");
    let all = ["down", "--all", "--store", "another", "-y"];
    assert!(!place.ok(&all).contains(&job), "it is of another store");
    // By its id alone: other tests have containers on this engine.
    let elsewhere = ["down", job.as_str(), "--backend", "docker", "--store", "another", "--everybody"];
    let acts = place.ok(&[&elsewhere[..], &["--dry-run"]].concat());
    assert!(acts.contains(&format!("destroy {job}-a1")), "{acts}");
    assert!(place.ok(&[&elsewhere[..], &["-y"]].concat()).contains(&format!("{job}: gone")));
    assert_eq!(place.containers(), "");
    // The job goes on in its own store, where it was not cancelled, and ends when it is told to.
    assert_eq!(place.json(&["status", &job])["state"], "running");
    place.leaves_nothing();
    assert_eq!(place.json(&["status", &job])["state"], "cancelled");
}

#[test]
#[ignore = "needs a container engine: tests/run starts one"]
fn docker_fetches_images_from_a_registry_that_asks_who_comes() {
    let place = Place::new();
    let registry = Registry::start(Auth::Basic);
    let name = format!("{}:1", registry.repository("team/trainer"));
    let home = place.sandbox.home();
    let config = home.join(".docker").display().to_string();
    registry.login(&home, "me", "right");
    docker(&["tag", &std::env::var("FT_DOCKER_IMAGE").expect("tests/run names an image"), &name]);
    docker(&["--config", &config, "push", "--quiet", &name]);
    docker(&["image", "rm", &name]);
    let image = ["--set".to_owned(), format!("compute.docker.image={name}")];
    let image = image.each_ref().map(String::as_str);
    for (user, password) in [("me", "wrong"), ("nobody", "right")] {
        registry.login(&home, user, password);
        let said = Sandbox::said(&mut place.quickstart(&["run"], 10, &image));
        assert_eq!(said.code, Some(4), "{}", said.stderr);
        assert!(
            said.stderr.contains(&format!("cannot fetch the image {name}")) && said.stderr.contains("docker login"),
            "{}",
            said.stderr
        );
        assert!(!said.stderr.contains(password), "{}", said.stderr);
    }
    registry.login(&home, "me", "right");
    let said = Sandbox::said(&mut place.quickstart(&["run"], 10, &image));
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    docker(&["image", "rm", &name]);
    place.leaves_nothing();
}

#[test]
#[ignore = "needs a container engine: tests/run starts one"]
fn docker_ends_a_container_at_its_deadline_with_nobody_there() {
    let place = Place::new();
    let said = Sandbox::said(&mut place.quickstart(&["submit"], 1_000_000, &["--ttl", "20s"]));
    let machine = format!("{}-a1", said.stdout.trim());
    until(|| docker(&["inspect", "--format", "{{.State.Status}} {{.State.ExitCode}}", &machine]) == "exited 0");
    let prune = ["prune", "--expired", "--backend", "docker", "--dry-run"];
    until(|| place.json(&prune).to_string().contains(&machine));
    place.ok(&["prune", "--expired", "--backend", "docker", "-y"]);
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
    let planned = Sandbox::said(place.quickstart(&["plan"], 10, &[]).env("DOCKER_HOST", "unix:///nowhere/docker.sock"));
    assert_eq!(planned.code, Some(0), "{}", planned.stderr);
    assert!(
        planned.stderr.contains("no container engine answers") && planned.stderr.contains("were not checked"),
        "{}",
        planned.stderr
    );
    // A container reaches no emulator on the loopback, whichever variable leads there; no engine is needed to know that.
    let bridge = ["--set", "compute.docker.network=bridge", "--store", "azure://devstoreaccount1/box"];
    let endpoint = [("AZURE_STORAGE_KEY", azurite::KEY), ("FTCTL_ENDPOINT_BLOB", "http://127.0.0.1:1/devstoreaccount1")];
    let refused = Sandbox::said(place.quickstart(&["plan"], 10, &bridge).envs(endpoint));
    assert_eq!(refused.code, Some(2), "{}", refused.stderr);
    assert!(refused.stderr.contains("loopback") && refused.stderr.contains("network = \"host\""), "{}", refused.stderr);
    let nothing = away(&["down", "--all", "-y"]);
    assert_eq!((nothing.code, nothing.stdout.trim()), (Some(0), "there is nothing to destroy"), "{}", nothing.stderr);
    for verb in [&["run"][..], &["down", "--all", "-y"], &["prune"]] {
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
