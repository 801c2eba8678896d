use std::{ffi::OsString, os::unix::fs::PermissionsExt, time::Instant};

use super::*;
use crate::{
    job::compute::Compute,
    provider::{
        clock::SystemClock,
        conformance::{self, World, attempt, order, plan},
    },
    store::{directory::DirectoryStore, memory::MemoryStore},
};

/// Stands for `ftctl agent`: counts its starts, has a child of its own, and works until it is told to finish.
const AGENT: &str = r#"#!/bin/sh
if [ "$6" = --drain ]; then
    [ -e "$STATE/store-is-down" ] && { printf 'error: the store does not answer\n  fix: wait\n' >&2; exit 7; }
    basename "$PWD" >> "$STATE/drained"
    exit 0
fi
echo "$UNTIL" > until
[ -e "$STATE/stubborn" ] && trap '' TERM
mkfifo finish
echo $$ >> starts
sleep 1000 &
read line < finish
kill $!
echo "all done"
"#;

const SECRET: &str = "very-secret";

struct Machines {
    state: tempfile::TempDir,
    party: Party,
}

impl Machines {
    fn new() -> Self {
        let state = tempfile::tempdir().expect("state");
        let agent = state.path().join("agent.sh");
        fs::write(&agent, AGENT).expect("agent");
        fs::set_permissions(&agent, fs::Permissions::from_mode(0o755)).expect("executable");
        let party = party(state.path());
        Self { state, party }
    }

    fn settings(&self) -> Settings {
        settings(self.state.path(), self.party.clone())
    }

    fn local(&self) -> Local {
        Local::new(self.settings())
    }

    fn directory(&self, attempt: &AttemptId) -> PathBuf {
        self.state.path().join("local").join(attempt.machine_name())
    }

    fn left(&self) -> Vec<String> {
        let names = |folder: &str| {
            fs::read_dir(self.state.path().join(folder)).into_iter().flatten().map(|entry| entry.expect("entry").file_name())
        };
        names("local").chain(names("work")).map(|name| name.to_string_lossy().into_owned()).collect()
    }

    /// Tests share a process: a child of one holds the open lock of another until it executes its own program.
    async fn ended(&self, attempt: &AttemptId) {
        until(|| self.local().machine(attempt).agent().expect("agent") == Some(Agent::Ended)).await;
    }

    async fn started(&self, name: &str) -> AttemptId {
        self.ordered(order(&attempt(name))).await
    }

    /// Starts the agents of an order.
    async fn ordered(&self, order: RunOrder) -> AttemptId {
        let attempt = AttemptId::new(&order.job, order.attempt);
        self.local().provision(&attempt, &plan(), &TrainerImage::None).await.expect("provision");
        self.local().launch(&order).await.expect("launch");
        until(|| self.starts(&attempt) == order.nodes).await;
        attempt
    }
}

/// The same for every process: a store has its id from its first write on.
fn party(state: &Path) -> Party {
    let id = state.join("store/.ftctl/id");
    // A launcher that is killed as it writes would leave half an id.
    if !id.exists() {
        fs::create_dir_all(state.join("store/.ftctl")).expect("a directory");
        fs::write(&id, "1d".repeat(32)).expect("written");
    }
    Party::new("me", Arc::new(DirectoryStore::open(&state.join("store")).expect("a store")))
}

fn settings(state: &Path, party: Party) -> Settings {
    let variables: Vec<(OsString, OsString)> = vec![
        ("PATH".into(), std::env::var_os("PATH").unwrap_or_default()),
        ("STATE".into(), state.into()),
        ("KEY".into(), SECRET.into()),
    ];
    let variables = Arc::new(move |_, until: Timestamp| {
        let variables = [&variables[..], &[("UNTIL".into(), until.to_string().into())]].concat();
        Box::pin(async move { Ok(variables) }) as _
    });
    Settings {
        state: state.to_owned(),
        party,
        executable: state.join("agent.sh"),
        variables,
        notice: Duration::from_millis(50),
        clock: Arc::new(SystemClock),
        cache: state.join("cache"),
    }
}

/// Processes run when the kernel lets them; a minute means that they never will.
async fn until(mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(60), "nothing happened for a minute");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[async_trait]
impl World for Machines {
    fn compute(&self) -> Compute {
        Compute::Local
    }

    fn client(&self) -> Arc<dyn Provider> {
        Arc::new(self.local())
    }

    fn elsewhere(&self, everybody: bool) -> Arc<dyn Provider> {
        let party = Party { everybody, ..Party::new("me", Arc::new(MemoryStore::new())) };
        Arc::new(Local::new(settings(self.state.path(), party)))
    }

    async fn finish(&self, attempt: &AttemptId) {
        until(|| self.starts(attempt) > 0).await;
        fs::write(self.directory(attempt).join("finish"), "now\n").expect("finish");
        let mark = self.local().machine(attempt).mark().expect("mark");
        until(|| process::members(&mark).expect("members").is_empty()).await;
        self.ended(attempt).await;
    }

    fn starts(&self, attempt: &AttemptId) -> usize {
        fs::read_to_string(self.directory(attempt).join("starts")).map_or(0, |text| text.lines().count())
    }
}

#[tokio::test]
async fn passes_the_suite_and_leaves_no_file() {
    let machines = Machines::new();
    conformance::machines(&machines).await;
    assert_eq!(machines.left(), [""; 0]);
}

#[tokio::test]
async fn no_file_of_a_machine_holds_the_environment_of_its_agent() {
    let machines = Machines::new();
    let attempt = machines.started("secret").await;
    let agent = fs::read_to_string(machines.directory(&attempt).join("starts")).expect("the process");
    let environment = fs::read(format!("/proc/{}/environ", agent.trim())).expect("its environment");
    assert!(String::from_utf8_lossy(&environment).contains(SECRET), "the agent has it");
    let found = std::process::Command::new("grep").args(["-rl", "-D", "skip", SECRET]).arg(machines.state.path()).output();
    let found = found.expect("grep runs");
    assert_eq!((found.status.code(), String::from_utf8_lossy(&found.stdout).as_ref()), (Some(1), ""), "grep finds nothing");
    machines.finish(&attempt).await;
}

#[tokio::test]
async fn destroy_first_lets_the_newest_agent_send_what_is_left() {
    let machines = Machines::new();
    let first = machines.started("drained").await;
    let second = AttemptId::new(&first.job, 2);
    let never_launched = AttemptId::new(&first.job, 3);
    machines.local().provision(&second, &plan(), &TrainerImage::None).await.expect("provision");
    machines.local().launch(&order(&second)).await.expect("launch");
    machines.local().provision(&never_launched, &plan(), &TrainerImage::None).await.expect("provision");
    machines.local().destroy(&first.job).await.expect("destroy");
    let drained = fs::read_to_string(machines.state.path().join("drained")).expect("drained");
    assert_eq!(drained.lines().collect::<Vec<_>>(), [second.machine_name()]);
}

#[tokio::test]
async fn unsent_output_is_kept_until_it_can_be_sent() {
    let machines = Machines::new();
    let attempt = machines.started("unsent").await;
    let down = machines.state.path().join("store-is-down");
    fs::write(&down, "").expect("down");
    let error = machines.local().destroy(&attempt.job).await.expect_err("cannot be sent");
    assert_eq!(error.class, Class::Network);
    assert!(error.message.ends_with("could not be sent to the store: the store does not answer"), "{error}");
    assert!(matches!(machines.local().observe(&attempt).await, Ok(Sighting::Dead { .. })), "it runs no more, but it is there");
    fs::remove_file(&down).expect("up");
    machines.local().destroy(&attempt.job).await.expect("destroy");
    assert_eq!(machines.left(), [""; 0]);
}

#[tokio::test]
async fn output_that_a_user_deleted_does_not_stop_a_tear_down() {
    let machines = Machines::new();
    let attempt = machines.started("given-up").await;
    fs::write(machines.state.path().join("store-is-down"), "").expect("down");
    fs::remove_dir_all(machines.state.path().join("work").join(attempt.job.as_str())).expect("given up");
    machines.local().destroy(&attempt.job).await.expect("destroy");
    assert_eq!(machines.left(), [""; 0]);
}

#[tokio::test]
async fn a_machine_whose_agent_was_killed_is_dead_with_all_its_processes() {
    let machines = Machines::new();
    let attempt = machines.started("killed").await;
    let mark = machines.local().machine(&attempt).mark().expect("mark");
    until(|| process::members(&mark).expect("members").len() == 2).await;
    for agent in process::members(&mark).expect("members").iter().filter(|process| process.leads()) {
        agent.signal(rustix::process::Signal::KILL);
    }
    machines.ended(&attempt).await;
    assert!(matches!(machines.local().observe(&attempt).await, Ok(Sighting::Dead { .. })));
    assert!(process::members(&mark).expect("members").is_empty(), "its child must not outlive it");
    machines.local().destroy(&attempt.job).await.expect("destroy");
}

#[tokio::test]
async fn an_agent_that_ignores_the_notice_is_killed() {
    let machines = Machines::new();
    fs::write(machines.state.path().join("stubborn"), "").expect("stubborn");
    let attempt = machines.started("stubborn").await;
    machines.local().preempt(&attempt).await.expect("preempt");
    assert!(matches!(machines.local().observe(&attempt).await, Ok(Sighting::Dead { .. })));
    machines.local().destroy(&attempt.job).await.expect("destroy");
}

#[tokio::test]
async fn death_comes_with_the_agents_last_line() {
    let machines = Machines::new();
    let attempt = machines.started("words").await;
    machines.finish(&attempt).await;
    let why = "the agent's process is gone; its last line: all done".to_owned();
    assert_eq!(machines.local().observe(&attempt).await, Ok(Sighting::Dead { why }));
    machines.local().destroy(&attempt.job).await.expect("destroy");
}

#[tokio::test]
async fn an_agent_needs_its_store_until_its_own_deadline() {
    let (machines, deadline) = (Machines::new(), "2026-01-01T00:07:00Z".parse().ok());
    let attempt = machines.ordered(RunOrder { deadline, ..order(&attempt("late")) }).await;
    let told = fs::read_to_string(machines.directory(&attempt).join("until")).expect("written");
    assert_eq!(told.trim().parse().ok(), deadline);
    machines.local().destroy(&attempt.job).await.expect("destroy");
}

#[tokio::test]
async fn the_agent_of_each_other_node_has_a_lock_for_as_long_as_it_lives() {
    let machines = Machines::new();
    let attempt = machines.ordered(RunOrder { nodes: 2, ..order(&attempt("gang")) }).await;
    let local = machines.local();
    let lock = fs::File::open(machines.directory(&attempt).join("node-1.lock")).expect("a lock");
    assert!(matches!(lock.try_lock_shared(), Err(fs::TryLockError::WouldBlock)));
    power_off(&local.machine(&attempt)).await.expect("power off");
    until(|| lock.try_lock_shared().is_ok()).await;
    local.destroy(&attempt.job).await.expect("destroy");
}

#[tokio::test]
async fn a_launcher_killed_before_its_agent_started_costs_no_attempt() {
    let machines = Machines::new();
    let (local, attempt) = (machines.local(), attempt("claimed"));
    local.provision(&attempt, &plan(), &TrainerImage::None).await.expect("provision");
    drop(local.machine(&attempt).claim().expect("claim").expect("the first to claim"));
    until(|| local.machine(&attempt).agent().expect("agent") == Some(Agent::NotStarted)).await;
    assert_eq!(local.observe(&attempt).await, Ok(Sighting::Alive { agent: false }));
    local.launch(&order(&attempt)).await.expect("launch");
    until(|| machines.starts(&attempt) == 1).await;
    local.destroy(&attempt.job).await.expect("destroy");
}

#[tokio::test]
async fn what_was_powered_off_before_its_agent_started_stays_off() {
    let machines = Machines::new();
    let (local, attempt) = (machines.local(), attempt("off"));
    local.provision(&attempt, &plan(), &TrainerImage::None).await.expect("provision");
    drop(local.machine(&attempt).claim().expect("claim").expect("the first to claim"));
    power_off(&local.machine(&attempt)).await.expect("power off");
    local.launch(&order(&attempt)).await.expect("launch");
    assert!(matches!(local.observe(&attempt).await, Ok(Sighting::Dead { .. })));
    assert_eq!(machines.starts(&attempt), 0);
    local.destroy(&attempt.job).await.expect("destroy");
}

#[tokio::test]
async fn an_agent_that_cannot_start_is_an_error_and_the_attempt_is_over() {
    let machines = Machines::new();
    let local = Local::new(Settings { executable: "no/such/program".into(), ..machines.settings() });
    let attempt = attempt("no-program");
    local.provision(&attempt, &plan(), &TrainerImage::None).await.expect("provision");
    local.launch(&order(&attempt)).await.expect_err("no program");
    machines.ended(&attempt).await;
    assert!(matches!(local.observe(&attempt).await, Ok(Sighting::Dead { .. })));
    fs::remove_dir_all(machines.state.path().join("work")).expect("nothing was written");
    local.destroy(&attempt.job).await.expect("destroy");
    assert_eq!(machines.left(), [""; 0]);
}

#[tokio::test]
async fn a_command_beside_the_agent_ends_with_the_machine() {
    let machines = Machines::new();
    let attempt = machines.started("session").await;
    let command = ["sleep".to_owned(), "1000".to_owned()];
    let Ok(Session::Program(program)) = machines.local().session(&attempt, &command, false).await else { panic!("a program") };
    let mut running = Command::from(program).spawn().expect("sleep");
    machines.local().destroy(&attempt.job).await.expect("destroy");
    assert!(!running.wait().await.expect("ended").success());
    let error = machines.local().session(&attempt, &command, false).await.err().expect("no machine");
    assert_eq!(error.class, Class::Invalid, "{error}");
}

#[tokio::test]
async fn half_made_and_half_removed_machines_are_neither_listed_nor_left() {
    let machines = Machines::new();
    let attempt = attempt("half");
    let base = machines.state.path().join("local");
    for litter in [".NAME.x1y2", ".NAME.gone"] {
        fs::create_dir_all(base.join(litter.replace("NAME", &attempt.machine_name())).join("inside")).expect("litter");
    }
    assert_eq!(machines.local().list().await.expect("list"), []);
    machines.local().destroy(&attempt.job).await.expect("destroy");
    assert_eq!(machines.left(), [""; 0]);
}

#[tokio::test]
async fn a_damaged_machine_is_listed_as_expired() {
    let machines = Machines::new();
    let attempt = attempt("damaged");
    machines.local().provision(&attempt, &plan(), &TrainerImage::None).await.expect("provision");
    fs::write(machines.directory(&attempt).join("machine.json"), "").expect("damage");
    let listed = machines.local().list().await.expect("list");
    assert_eq!(listed[0].expires, Some(listed[0].since));
    machines.local().destroy(&attempt.job).await.expect("destroy");
}

/// Not a test of its own: the launcher that [`a_launcher_killed_at_any_instant_costs_no_attempt_and_starts_one_agent`] kills.
#[tokio::test]
#[ignore = "started by the test that kills it"]
async fn launcher() {
    let state = std::env::var_os("FTCTL_TEST_LAUNCHER").expect("a state directory");
    let local = Local::new(settings(Path::new(&state), party(Path::new(&state))));
    let nodes = std::env::var("FTCTL_TEST_NODES").expect("a number").parse().expect("a number");
    let attempt = attempt("launcher");
    local.provision(&attempt, &plan(), &TrainerImage::None).await.expect("provision");
    local.launch(&RunOrder { nodes, ..order(&attempt) }).await.expect("launch");
}

#[tokio::test]
async fn a_launcher_killed_at_any_instant_costs_no_attempt_and_starts_one_agent() {
    for (nodes, rounds) in [(1, 40), (3, 20)] {
        let mut outcomes = [0; 2];
        for round in 0..rounds {
            outcomes[killed_launcher(nodes, Duration::from_micros(20_000 * round / rounds)).await] += 1;
        }
        println!("{nodes} nodes, no agent, agent: {outcomes:?}");
    }
}

/// Kills a launcher `time` after its claim, and launches again. Answers what was seen in between: no agent, or an agent.
async fn killed_launcher(nodes: usize, time: Duration) -> usize {
    let machines = Machines::new();
    let mut launcher = Command::new(std::env::current_exe().expect("this program"));
    launcher
        .args(["--ignored", "--exact", "provider::local::tests::launcher"])
        .env("FTCTL_TEST_LAUNCHER", machines.state.path())
        .env("FTCTL_TEST_NODES", nodes.to_string());
    let mut launcher = launcher.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("launcher");
    let (local, attempt) = (machines.local(), attempt("launcher"));
    let claim = machines.directory(&attempt).join("agent.lock");
    while !claim.exists() {
        std::thread::yield_now();
    }
    std::thread::sleep(time);
    launcher.kill().await.expect("kill");

    let outcome = match local.observe(&attempt).await.expect("observe") {
        Sighting::Alive { agent: false } => 0,
        Sighting::Alive { agent: true } => 1,
        lost => panic!("{nodes} nodes, after {time:?}: {lost:?}"),
    };
    local.provision(&attempt, &plan(), &TrainerImage::None).await.expect("provision");
    // Until it becomes another node's agent, a new process of the launcher has the first one's lock, too.
    let agents = || {
        let all = process::members(machines.directory(&attempt).as_os_str()).expect("processes");
        all.iter().filter(|process| process.leads()).count()
    };
    let begun = Instant::now();
    while agents() != nodes {
        assert!(begun.elapsed() < Duration::from_secs(60), "{nodes} nodes, after {time:?}: {} agents", agents());
        local.launch(&RunOrder { nodes, ..order(&attempt) }).await.expect("launch");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(local.observe(&attempt).await, Ok(Sighting::Alive { agent: true }), "{nodes} nodes, after {time:?}");
    if nodes == 1 {
        machines.finish(&attempt).await;
        assert_eq!(machines.starts(&attempt), 1, "after {time:?}");
    }
    local.destroy(&attempt.job).await.expect("destroy");
    assert_eq!(machines.left(), [""; 0], "after {time:?}");
    outcome
}

#[test]
fn only_what_lies_directly_below_is_removed() {
    let (place, canary) = (tempfile::tempdir().expect("a directory"), tempfile::tempdir().expect("a directory"));
    fs::write(canary.path().join("letter"), "dear").expect("written");
    let base = place.path().join("work");
    fs::create_dir_all(base.join("job/1")).expect("a directory");
    fs::create_dir(place.path().join("beside")).expect("a directory");
    std::os::unix::fs::symlink(canary.path(), base.join("link")).expect("a link");
    let absolute = canary.path().to_str().expect("text");
    for name in [absolute, "../beside", "..", ".", "", "job/1", "job/", "/"] {
        let refused = machine::remove_tree(&base, name).expect_err(name);
        assert_eq!(refused.kind(), io::ErrorKind::InvalidInput, "{name}");
    }
    machine::remove_tree(&base, "link").expect("removed");
    assert!(base.join("job/1").is_dir() && place.path().join("beside").is_dir());
    assert!(canary.path().join("letter").is_file() && !base.join("link").exists());
    machine::remove_tree(&base, "job").expect("removed");
    assert_eq!(fs::read_dir(&base).expect("a directory").count(), 0);
}
