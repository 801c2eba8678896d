//! On a real engine, with a shell script for the agent. `tests/run` starts the engine.

use std::{fs, os::unix::fs::PermissionsExt as _, path::Path, process::Command};

use bollard::query_parameters::KillContainerOptions;
use futures_util::StreamExt as _;
use tokio::sync::OnceCell;

use super::*;
use crate::{
    job::docker::Gpus,
    provider::{
        clock::SystemClock,
        conformance::{self, World, attempt, order},
        session::Piece,
    },
    store::memory::MemoryStore,
};

const IMAGE: &str = "ftctl-test/agent";

/// Stands for `ftctl agent`: counts its starts, and works until it is told to finish.
const AGENT: &str = r#"#!/bin/sh
say() { echo "$*"; }
if [ -e /ftctl/begun ]; then
    [ -e /ftctl/store-is-down ] && { say "error: the store does not answer"; say "  fix: wait"; exit 7; }
    : > /ftctl/drained
    exit 0
fi
: > /ftctl/begun
echo begun >> /ftctl/starts
trap 'say all done; exit 0' USR1
trap 'exit 0' TERM
say ready
while :; do sleep 1 & wait $!; done
"#;

fn plan() -> Plan {
    on(DockerPlan::default())
}

fn on(wanted: DockerPlan) -> Plan {
    Plan { compute: Compute::Docker(wanted).into(), ..conformance::plan() }
}

struct Containers {
    store: tempfile::TempDir,
    party: Party,
}

impl Containers {
    /// This test's alone: tests run side by side on one engine.
    async fn new(owner: &str) -> Self {
        static MADE: OnceCell<()> = OnceCell::const_new();
        MADE.get_or_init(|| async { make_image() }).await;
        let party = Party::new(format!("{owner}-{}", std::process::id()), Arc::new(MemoryStore::new()));
        let containers = Self { store: tempfile::tempdir().unwrap(), party };
        for left in containers.docker().list().await.unwrap() {
            containers.docker().destroy(&left.attempt.job).await.unwrap();
        }
        containers
    }

    fn docker(&self) -> Docker {
        self.docker_of(self.party.clone())
    }

    fn docker_of(&self, party: Party) -> Docker {
        Docker::new(Settings {
            party,
            store: self.store.path().display().to_string(),
            address: String::new(),
            variables: Arc::new(|_, _| {
                Box::pin(async {
                    Ok(vec![("AZURE_STORAGE_SAS_TOKEN".into(), "very-secret".into()), ("HOME".into(), "/me".into())])
                })
            }),
            notice: Duration::from_secs(1),
            clock: Arc::new(SystemClock),
            cache: PathBuf::new(),
        })
    }

    async fn started(&self, name: &str) -> AttemptId {
        let attempt = attempt(name);
        self.docker().provision(&attempt, &plan(), &self.image()).await.unwrap();
        self.docker().launch(&order(&attempt)).await.unwrap();
        until(|| self.starts(&attempt) == 1).await;
        attempt
    }

    async fn signal(&self, attempt: &AttemptId, signal: &str) {
        let options = KillContainerOptions { signal: signal.to_owned() };
        let docker = self.docker();
        docker.engine().await.unwrap().docker.kill_container(&attempt.machine_name(), Some(options)).await.unwrap();
        docker.ended(&attempt.machine_name(), Duration::from_secs(60)).await.unwrap();
    }
}

fn make_image() {
    let directory = tempfile::tempdir().unwrap();
    let agent = directory.path().join("ftctl");
    fs::write(&agent, AGENT).unwrap();
    fs::set_permissions(&agent, fs::Permissions::from_mode(0o755)).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/docker_image.sh");
    let agent = format!("{}=/usr/local/bin/ftctl", agent.display());
    assert!(Command::new(script).args([IMAGE, &agent]).status().unwrap().success());
}

/// The output of docker's own command line.
fn docker_says(arguments: &[&str]) -> String {
    let output = Command::new("docker").args(arguments).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

async fn until(mut done: impl FnMut() -> bool + Send) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(60), "nothing happened for a minute");
        sleep(Duration::from_millis(50)).await;
    }
}

#[async_trait]
impl World for Containers {
    fn compute(&self) -> Compute {
        Compute::Docker(DockerPlan::default())
    }

    fn client(&self) -> Arc<dyn Provider> {
        Arc::new(self.docker())
    }

    fn elsewhere(&self, everybody: bool) -> Arc<dyn Provider> {
        Arc::new(self.docker_of(Party { everybody, ..Party::new(self.party.owner.clone(), Arc::new(MemoryStore::new())) }))
    }

    async fn finish(&self, attempt: &AttemptId) {
        until(|| self.starts(attempt) == 1).await;
        self.signal(attempt, "SIGUSR1").await;
    }

    fn image(&self) -> TrainerImage {
        TrainerImage::Image { reference: IMAGE.to_owned() }
    }

    fn starts(&self, attempt: &AttemptId) -> usize {
        let from = format!("{}:/ftctl/starts", attempt.machine_name());
        let output = Command::new("docker").args(["cp", &from, "-"]).output().unwrap();
        String::from_utf8_lossy(&output.stdout).matches("begun").count()
    }
}

#[tokio::test]
#[ignore = "needs a container engine: tests/run starts one"]
async fn docker_passes_the_suite_and_leaves_nothing() {
    let containers = Containers::new("suite").await;
    // An engine in use has its own.
    let nameless = || docker_says(&["image", "ls", "-q", "--filter", "dangling=true"]);
    let before = nameless();
    conformance::machines(&containers).await;
    let label = format!("label=ftctl.owner={}", containers.party.owner);
    assert_eq!(docker_says(&["ps", "-aq", "--filter", &label]), "");
    for kind in ["volume", "network"] {
        assert_eq!(docker_says(&[kind, "ls", "-q", "--filter", "label=ftctl.owner"]), "");
    }
    assert_eq!(nameless(), before);
}

#[tokio::test]
#[ignore = "needs a container engine: tests/run starts one"]
async fn docker_containers_show_no_secret_and_have_what_the_plan_says() {
    let containers = Containers::new("secrets").await;
    let attempt = attempt("secrets");
    let plan = on(DockerPlan {
        shared_memory: "64MiB".parse().unwrap(),
        ulimits: [("nofile".to_owned(), 777)].into(),
        mounts: vec![format!("{}:/there:ro", containers.store.path().display())],
        user: Some("4321:8765".to_owned()),
        network: "none".to_owned(),
        ..DockerPlan::default()
    });
    let store = "azure://account/container".to_owned();
    let docker = Docker::new(Settings { store, ..containers.docker().settings });
    docker.provision(&attempt, &plan, &containers.image()).await.unwrap();
    docker.launch(&order(&attempt)).await.unwrap();
    until(|| containers.starts(&attempt) == 1).await;
    let name = attempt.machine_name();
    let shown = docker_says(&["inspect", &name]);
    assert!(!shown.contains("very-secret"), "{shown}");
    assert!(shown.contains("\"ftctl.expires\"") && shown.contains("\"Name\": \"no\""), "{shown}");
    let inside = |command: &str| docker_says(&["exec", &name, "sh", "-c", command]);
    assert_eq!(inside("id -u; id -g; ulimit -n; ls /sys/class/net"), "4321\n8765\n777\nlo\n");
    assert_eq!(
        inside("ls -ln /ftctl/environment.json").split_whitespace().take(4).collect::<Vec<_>>(),
        ["-rw-------", "1", "4321", "8765"]
    );
    assert_eq!(inside("cat /ftctl/environment.json"), r#"{"AZURE_STORAGE_SAS_TOKEN":"very-secret"}"#);
    let status = inside("cat /proc/1/status");
    let rights = status.lines().filter(|line| line.starts_with("Cap") || line.starts_with("NoNewPrivs"));
    let held: Vec<&str> = rights.filter(|line| !line.ends_with("\t0000000000000000")).collect();
    assert_eq!(held, ["NoNewPrivs:\t1"], "{status}");
    assert!(shown.contains("\"PidsLimit\": 16384"), "{shown}");
    assert!(inside("cat /proc/mounts").lines().any(|line| line.contains(" /dev/shm ") && line.contains("size=65536k")));
    assert!(inside("cat /proc/mounts").lines().any(|line| line.contains(" /there ") && line.contains("ro")));
    docker.destroy(&attempt.job).await.unwrap();
}

#[tokio::test]
async fn each_node_has_gpus_that_no_other_one_has() {
    let party = Party::new("me".to_owned(), Arc::new(MemoryStore::new()));
    let (mark, attempt) = (party.mark().await.unwrap(), attempt("gpus"));
    let asked = |node, gpus, network: &str| {
        let wanted = DockerPlan { gpus, network: network.to_owned(), ..DockerPlan::default() };
        let order = machine::Order {
            attempt: &attempt,
            node,
            image: String::new(),
            user: machine::NOBODY,
            url: "",
            store: None,
            owner: "me",
            mark: &mark,
            now: Timestamp::UNIX_EPOCH,
            proxies: Vec::new(),
        };
        let body = machine::container(&order, &Plan { nodes: 2, ..on(wanted.clone()) }, &wanted);
        let gpus = body.host_config.unwrap().device_requests.map(|requests| (requests[0].count, requests[0].device_ids.clone()));
        (gpus, body.cmd.unwrap().join(" "))
    };
    let (gpus, command) = asked(0, Gpus::Count(2), "host");
    assert_eq!(gpus, Some((Some(2), None)));
    assert!(command.ends_with("/ftctl/begun --node 0 --address 127.0.0.1"), "{command}");
    let (gpus, command) = asked(1, Gpus::Count(2), "bridge");
    assert_eq!(gpus, Some((None, Some(vec!["2".to_owned(), "3".to_owned()]))));
    assert!(command.ends_with("/ftctl/begun --node 1"), "{command}");
    assert_eq!(asked(1, Gpus::None, "bridge").0, None);
}

#[tokio::test]
#[ignore = "needs a container engine: tests/run starts one"]
async fn docker_has_a_container_for_each_node_and_takes_all_away_together() {
    let containers = Containers::new("nodes").await;
    let (docker, attempt) = (containers.docker(), attempt("nodes"));
    let plan = Plan { nodes: 3, ..plan() };
    let order = RunOrder { nodes: 3, ..order(&attempt) };
    for _ in 0..2 {
        docker.provision(&attempt, &plan, &containers.image()).await.unwrap();
    }
    // Other tests have containers there, too.
    let names = async || {
        let listed = docker.list().await.unwrap().into_iter().filter(|resource| resource.attempt == attempt);
        let mut names: Vec<String> = listed.map(|resource| resource.name).collect();
        names.sort();
        names
    };
    let all: Vec<String> = (0..3).map(|node| machine::name(&attempt, node)).collect();
    assert_eq!(names().await, all);
    for _ in 0..2 {
        docker.launch(&order).await.unwrap();
    }
    let starts = |name: &String| {
        let output = Command::new("docker").args(["cp", &format!("{name}:/ftctl/starts"), "-"]).output().unwrap();
        String::from_utf8_lossy(&output.stdout).matches("begun").count()
    };
    until(|| all.iter().all(|name| starts(name) == 1)).await;
    docker.preempt(&attempt).await.unwrap();
    assert!(matches!(docker.observe(&attempt).await, Ok(Sighting::Dead { .. })));
    for name in &all {
        assert!(!runs(&docker.inspect(name).await.unwrap().unwrap()), "{name}");
    }
    docker.destroy(&attempt.job).await.unwrap();
    assert_eq!(names().await, [""; 0]);
}

#[tokio::test]
#[ignore = "needs a container engine: tests/run starts one"]
async fn docker_agents_of_a_directory_have_no_sign_in_and_write_to_it_whoever_owns_it() {
    let containers = Containers::new("directory").await;
    std::os::unix::fs::chown(containers.store.path(), Some(4_321), Some(8_765)).unwrap();
    fs::set_permissions(containers.store.path(), fs::Permissions::from_mode(0o700)).unwrap();
    let attempt = containers.started("directory").await;
    let inside = |command: &str| docker_says(&["exec", &attempt.machine_name(), "sh", "-c", command]);
    assert_eq!(inside("cat /ftctl/environment.json"), "{}");
    let written = containers.store.path().join("written");
    inside(&format!("echo x >{}; id -u", written.display()));
    assert_eq!(fs::read_to_string(written).unwrap(), "x\n");
    containers.docker().destroy(&attempt.job).await.unwrap();
}

#[tokio::test]
#[ignore = "needs a container engine: tests/run starts one"]
async fn docker_sends_what_a_killed_agent_left_before_it_destroys() {
    let containers = Containers::new("drain").await;
    let attempt = containers.started("drained").await;
    let (docker, name) = (containers.docker(), attempt.machine_name());
    docker_says(&["exec", &name, "sh", "-c", ": > /ftctl/store-is-down"]);
    containers.signal(&attempt, "SIGKILL").await;
    let Ok(Sighting::Dead { why }) = docker.observe(&attempt).await else { panic!("dead") };
    assert_eq!(why, "the container was ended by signal 9; its last line: ready");
    let error = docker.destroy(&attempt.job).await.unwrap_err();
    assert_eq!(error.class, Class::Network);
    assert!(error.message.ends_with("its last line: the store does not answer"), "{error}");
    assert_eq!(containers.starts(&attempt), 1, "what is over trains no more");
    docker.launch(&order(&attempt)).await.unwrap();
    assert_eq!(containers.starts(&attempt), 1);
    // The user gives it up, as the error says.
    docker_says(&["rm", &name]);
    docker.destroy(&attempt.job).await.unwrap();
    assert_eq!(docker.observe(&attempt).await, Ok(Sighting::Gone));
}

#[tokio::test]
#[ignore = "needs a container engine: tests/run starts one"]
async fn docker_refuses_what_cannot_run_and_says_why() {
    let containers = Containers::new("refused").await;
    let docker = containers.docker();
    let attempt = attempt("refused");
    let missing = TrainerImage::Image { reference: "127.0.0.1:1/ftctl-test/none:1".to_owned() };
    let error = docker.provision(&attempt, &plan(), &missing).await.unwrap_err();
    assert_eq!(error.class, Class::Invalid, "{error}");
    assert!(error.message.contains("fetch the image 127.0.0.1:1/ftctl-test/none:1"), "{error}");
    assert!(error.fix.unwrap().contains("docker pull"));

    let refused = |store: &str, network: &str| {
        let plan = on(DockerPlan { network: network.to_owned(), ..DockerPlan::default() });
        let docker = Docker::new(Settings { store: store.to_owned(), address: store.to_owned(), ..containers.docker().settings });
        async move { docker.price(&plan).await.map_err(|error| error.message) }
    };
    assert!(refused("http://127.0.0.1:10000/account/container", "bridge").await.unwrap_err().contains("loopback"));
    assert_eq!(refused("http://127.0.0.1:10000/account/container", "host").await, Ok(Money::ZERO.into()));
    assert!(refused("memory:", "host").await.unwrap_err().contains("does not see the store memory:"));

    let of_two = |wanted| Plan { nodes: 2, ..on(wanted) };
    let error = docker.price(&of_two(DockerPlan { network: "none".to_owned(), ..DockerPlan::default() })).await.unwrap_err();
    assert!(error.message.contains("would have no network"), "{error}");
    let error = docker.price(&of_two(DockerPlan { gpus: Gpus::All, ..DockerPlan::default() })).await.unwrap_err();
    assert!(error.fix.unwrap().contains("compute.docker.gpus = \"1\""), "{}", error.message);

    let mut plan = on(DockerPlan { gpus: Gpus::All, ..DockerPlan::default() });
    let error = docker.price(&plan).await.unwrap_err();
    assert!(
        error.message.contains("none of CUDA's libraries (variant cpu)") && error.fix.unwrap().contains("cu130"),
        "{}",
        error.message
    );
    plan.image.variant = Some(crate::job::image::LibtorchVariant::Cu130);
    assert_eq!(docker.price(&plan).await, Ok(Money::ZERO.into()));
    docker.provision(&attempt, &plan, &containers.image()).await.unwrap();
    let error = docker.launch(&order(&attempt)).await.unwrap_err();
    assert!(error.fix.unwrap().contains("NVIDIA Container Toolkit"), "{}", error.message);
    docker.destroy(&attempt.job).await.unwrap();

    docker_says(&["create", "--name", &attempt.machine_name(), IMAGE, "sh"]);
    let error = docker.provision(&attempt, &plan, &containers.image()).await.unwrap_err();
    docker_says(&["rm", &attempt.machine_name()]);
    assert_eq!(error.class, Class::Conflict, "{error}");
}

#[tokio::test]
#[ignore = "needs a container engine: tests/run starts one"]
async fn docker_runs_commands_beside_the_agent() {
    let containers = Containers::new("session").await;
    let attempt = containers.started("session").await;
    let docker = containers.docker();
    let command = ["sh", "-c", "read line; echo \"got $line\"; echo aside >&2; exit 9"].map(str::to_owned);
    let Session::Remote(mut remote) = docker.session(&attempt, &command, false).await.unwrap() else { panic!("elsewhere") };
    tokio::io::AsyncWriteExt::write_all(&mut remote.input, b"a line\n").await.unwrap();
    let (mut said, mut aside) = (Vec::new(), Vec::new());
    while let Some(piece) = remote.output.next().await {
        match piece.unwrap() {
            Piece::Output(bytes) => said.extend(bytes),
            Piece::Errors(bytes) => aside.extend(bytes),
        }
    }
    assert_eq!((said.as_slice(), aside.as_slice()), (&b"got a line\n"[..], &b"aside\n"[..]));
    assert_eq!(remote.control.exit_code().await, Ok(9));
    docker.destroy(&attempt.job).await.unwrap();
    assert!(docker.session(&attempt, &command, false).await.is_err_and(|error| error.class == Class::Invalid));
}
