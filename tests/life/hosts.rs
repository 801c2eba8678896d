//! A job on two hosts, each a namespace with an address of its own, and a cable between them. No ftctl supervises the job: the test
//! writes its orders, and starts an agent on each host, as a job service does. Namespaces are made and removed by the test; where
//! they may not be made it says so, and shows nothing.

use std::{
    env, fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::{Duration, Instant},
};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::sandbox::{Sandbox, signal};

const STEPS: u64 = 300;
/// The time in which an attempt is over on a slow machine, if its end waits for nothing. It is less than a minute, in which it
/// would be over anyway.
const AT_ONCE: Duration = Duration::from_secs(40);
/// In which an attempt is over that has to wait for a sign of life.
const IN_TIME: Duration = Duration::from_secs(120);

/// Two namespaces, and a cable between `eth0` of the one and of the other.
struct Hosts([String; 2]);

impl Hosts {
    /// None, and a word on why, where this machine lets no one make them.
    fn make() -> Option<Self> {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let number = MADE.fetch_add(1, Ordering::SeqCst);
        let hosts = Self(["a", "b"].map(|host| format!("ft{}-{number}{host}", std::process::id())));
        let made = hosts.0.iter().try_for_each(|host| ip(&format!("netns add {host}"))).and_then(|()| hosts.join());
        made.map_err(|why| eprintln!("SKIPPED: nothing was shown of two hosts: {why}")).ok().map(|()| hosts)
    }

    /// One end of the cable carries less than the other.
    fn join(&self) -> Result<(), String> {
        let Self([a, b]) = self;
        ip(&format!("link add eth0 netns {a} type veth peer name eth0 netns {b}"))?;
        for (host, address, mtu) in [(a, "10.77.0.1", 1400), (b, "10.77.0.2", 1500)] {
            ip(&format!("-n {host} link set lo up"))?;
            ip(&format!("-n {host} address add {address}/24 dev eth0"))?;
            ip(&format!("-n {host} link set eth0 mtu {mtu} up"))?;
            ip(&format!("-n {host} route add default dev eth0"))?;
        }
        Ok(())
    }

    fn name(&self, node: usize) -> &str {
        &self.0[node]
    }

    /// Nothing arrives any more, and neither host is told.
    fn cut(&self) {
        ip(&format!("-n {} link set eth0 down", self.0[1])).unwrap();
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for host in &self.0 {
            let _ = ip(&format!("netns delete {host}"));
        }
    }
}

fn ip(arguments: &str) -> Result<(), String> {
    let output = Command::new("ip").args(arguments.split(' ')).output().map_err(|error| format!("ip: {error}"))?;
    let said = || format!("ip {arguments}: {}", String::from_utf8_lossy(&output.stderr).trim());
    if output.status.success() { Ok(()) } else { Err(said()) }
}

/// A job of four ranks at most, with the orders of one that a single process has trained.
struct Gang<'s> {
    sandbox: &'s Sandbox,
    job: String,
    order: Value,
}

impl<'s> Gang<'s> {
    fn new(sandbox: &'s Sandbox, name: &str, steps: u64, model: &str) -> Self {
        let order = json(&jobs(sandbox).join(model).join("order.json")).expect("an order");
        let mut gang = Self { sandbox, job: format!("{name}-{}", model.rsplit_once('-').unwrap().1), order };
        fs::create_dir_all(gang.path("")).unwrap();
        gang.order["job"] = json!(gang.job);
        gang.order["train"]["steps"] = json!(steps);
        gang
    }

    fn path(&self, name: &str) -> PathBuf {
        jobs(self.sandbox).join(&self.job).join(name)
    }

    /// Writes the order for two ranks on each of so many nodes.
    fn order(&self, attempt: u32, nodes: usize) {
        let mut order = self.order.clone();
        (order["attempt"], order["nodes"], order["processes"]) = (json!(attempt), json!(nodes), json!(2 * nodes));
        fs::write(self.path("order.json"), order.to_string()).unwrap();
    }

    /// Starts the agent of a node, on a host where there is one.
    fn agent(&self, attempt: u32, node: usize, host: Option<&str>, more: &[&str]) -> Child {
        let store = self.sandbox.path("state/ftctl/store");
        let work = self.sandbox.path(&format!("work/{}/{node}", self.job));
        let (attempt, node) = (attempt.to_string(), node.to_string());
        let mut agent = self.sandbox.command(&["agent", "--job", &self.job, "--attempt", &attempt, "--node", &node]);
        agent.arg("--store").arg(store).arg("--work").arg(work).args(more);
        if let Some(host) = host {
            agent = inside(host, &agent);
        }
        agent.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    }

    /// Agents of all nodes.
    fn agents(&self, attempt: u32, hosts: Option<&Hosts>, more: &[&str]) -> [Child; 2] {
        self.order(attempt, 2);
        [0, 1].map(|node| self.agent(attempt, node, hosts.map(|hosts| hosts.name(node)), more))
    }

    /// Waits for a checkpoint of the attempt.
    fn works(&self, attempt: u32) {
        let of_attempt = |manifest: &Value| manifest["attempt"] == attempt;
        Sandbox::until("a checkpoint of the attempt", || self.checkpoints().iter().any(|(_, manifest)| of_attempt(manifest)));
    }

    /// Their manifests, in the order of their steps.
    fn checkpoints(&self) -> Vec<(u64, Value)> {
        let folders = fs::read_dir(self.path("checkpoints")).into_iter().flatten().flatten();
        let step = |folder: fs::DirEntry| folder.file_name().to_str()?.parse().ok().zip(json(&folder.path().join("manifest.json")));
        let mut found: Vec<(u64, Value)> = folders.filter_map(step).collect();
        found.sort_by_key(|(step, _)| *step);
        found
    }

    /// Why the attempt ended, in `reason` and words, within `time`; nothing of it runs on.
    fn ended(&self, attempt: u32, time: Duration) -> (String, String) {
        self.ended_but_for(&[], attempt, time)
    }

    /// The same, where some are stopped.
    fn ended_but_for(&self, stopped: &[u32], attempt: u32, time: Duration) -> (String, String) {
        let (begun, exit) = (Instant::now(), self.path(&format!("attempts/{attempt}/exit.json")));
        loop {
            if let Some(record) = json(&exit).filter(|_| self.processes("") == stopped) {
                return (record["reason"].as_str().unwrap().to_owned(), record["message"].as_str().unwrap().to_owned());
            }
            assert!(begun.elapsed() < time, "attempt {attempt}: {:?}, {}", json(&exit), self.sight());
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Processes of the job whose environment has the variable: any where there is none.
    fn processes(&self, variable: &str) -> Vec<u32> {
        let is_meant = |pid: &u32| {
            let read = |name| fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default();
            let lines = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).replace('\0', "\n");
            let (environment, command) = (lines(read("environ")), lines(read("cmdline")));
            (command.contains(&self.job) || environment.lines().any(|line| line == format!("FTCTL_JOB_ID={}", self.job)))
                && (variable.is_empty() || environment.lines().any(|line| line == variable))
        };
        self.sandbox.processes("").into_iter().filter(is_meant).collect()
    }

    /// Everything that can be seen of what runs, for a person who asks why it does.
    fn sight(&self) -> String {
        let of_process = |pid: u32| {
            let read = |name| fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap_or_default().replace('\0', " ");
            let ranks = (0..4).filter(|rank| self.processes(&format!("RANK={rank}")).contains(&pid));
            format!("{pid} {} rank {:?} in {}: {}", self.job, ranks.collect::<Vec<_>>(), read("wchan"), read("cmdline"))
        };
        let output = |command: &[&str]| {
            let output = Command::new(command[0]).args(&command[1..]).output();
            String::from_utf8_lossy(&output.map(|output| output.stdout).unwrap_or_default()).into_owned()
        };
        let work = self.sandbox.path(&format!("work/{}", self.job));
        let logs = output(&["find", work.to_str().unwrap(), "-name", "*log", "-exec", "tail", "-n", "5", "-v", "{}", ";"]);
        self.processes("").into_iter().map(of_process).chain([logs]).collect::<Vec<_>>().join("\n")
    }

    fn rank(&self, rank: usize) -> u32 {
        self.processes(&format!("RANK={rank}"))[0]
    }

    /// The results that the job is judged by: the entries of its last checkpoint and of its step log.
    fn results(&self) -> Vec<Value> {
        let last = self.checkpoints().pop().expect("a checkpoint").1;
        let all = [last, json(&self.path("artifacts/manifest.json")).expect("artifacts")];
        let files = all.iter().flat_map(|manifest| manifest["files"].as_array().unwrap());
        let wanted = ["model.safetensors", "optimizer.safetensors", "steps.jsonl"];
        let is_wanted = |file: &&Value| wanted.iter().any(|name| file["path"].as_str().unwrap().ends_with(name));
        let found: Vec<Value> = files.filter(is_wanted).cloned().collect();
        assert!(found.len() >= wanted.len(), "{found:?}");
        found
    }
}

fn jobs(sandbox: &Sandbox) -> PathBuf {
    sandbox.path("state/ftctl/store/ftctl/v1/jobs")
}

fn json(file: &Path) -> Option<Value> {
    serde_json::from_slice(&fs::read(file).ok()?).ok()
}

/// The same command on a host.
fn inside(host: &str, command: &Command) -> Command {
    let mut inside = Command::new("ip");
    inside.args(["netns", "exec", host]).arg(command.get_program()).args(command.get_args()).stdin(Stdio::null());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => inside.env(name, value),
            None => inside.env_remove(name),
        };
    }
    inside
}

/// Trains by one process; the job's id.
fn alone(sandbox: &Sandbox, steps: u64) -> String {
    let job = sandbox.job("alone", steps);
    let sets = ["--set", "train.gradient_accumulation=4", "--set", "train.leaves=4"];
    let id = sandbox.ok(&[&["submit", job.to_str().unwrap()], &sets[..]].concat()).trim().to_owned();
    sandbox.ok(&["logs", "-f", &id]);
    id
}

/// A node dies, the job goes on with the other, is told that its machine goes, and ends with both: the second comes late.
#[test]
#[ignore = "needs the trainer: tests/run builds it"]
fn four_ranks_then_two_then_four_on_two_hosts_end_with_the_bytes_of_one_process() {
    let Some(hosts) = Hosts::make() else { return };
    let sandbox = Sandbox::new();
    let model = alone(&sandbox, STEPS);
    let expected = Gang { sandbox: &sandbox, job: model.clone(), order: Value::Null }.results();
    let gang = Gang::new(&sandbox, "gang", STEPS, &model);

    let mut agents = gang.agents(1, Some(&hosts), &[]);
    gang.works(1);
    agents[1].kill().unwrap();
    let (reason, message) = gang.ended(1, AT_ONCE);
    assert_eq!((reason.as_str(), message.as_str()), ("preempted", "node 1 was lost, or its ranks were killed"));

    gang.order(2, 1);
    let mut alone = gang.agent(2, 0, Some(hosts.name(0)), &[]);
    gang.works(2);
    signal(alone.id(), Signal::TERM);
    let (reason, message) = gang.ended(2, AT_ONCE);
    assert!(reason == "preempted" && message.ends_with("the trainer stopped after a checkpoint"), "{reason}: {message}");

    gang.order(3, 2);
    let mut first = gang.agent(3, 0, Some(hosts.name(0)), &[]);
    Sandbox::until("the first to wait", || gang.path("attempts/3/heartbeat.json").exists());
    thread::sleep(Duration::from_secs(1));
    assert!(gang.processes("RANK=0").is_empty(), "it waits for the other");
    let mut late = gang.agent(3, 1, Some(hosts.name(1)), &[]);
    let (reason, message) = gang.ended(3, IN_TIME);
    assert_eq!((reason.as_str(), message.as_str()), ("succeeded", "trained to the end"));
    assert!(expected == gang.results(), "other bytes than those of one process");
    let attempts: Vec<_> = gang.checkpoints().iter().map(|(_, manifest)| manifest["attempt"].clone()).collect();
    assert_eq!(attempts.last(), Some(&json!(3)), "{attempts:?}");
    for agent in agents.iter_mut().chain([&mut alone, &mut first, &mut late]) {
        agent.wait().unwrap();
    }
}

/// Nothing tells of these but time: a cable that is cut, a rank or an agent that is stopped, an address that only its own host has.
#[test]
#[ignore = "needs the trainer: tests/run builds it"]
fn silence_ends_an_attempt_within_two_minutes_and_is_named() {
    if env::var_os("FT_SILENCE").is_none() {
        println!("SKIPPED: it takes over a minute; FT_SILENCE=1 plays it");
        return;
    }
    let made = [Hosts::make(), Hosts::make(), Hosts::make()];
    let [Some(cut), Some(stopped), Some(astray)] = &made else { return };
    let sandbox = Sandbox::new();
    let model = alone(&sandbox, 20);
    let gang = |name| Gang::new(&sandbox, name, 100_000, &model);
    let (of_cut, of_stopped, of_astray, of_idle) = (gang("cut"), gang("stopped"), gang("astray"), gang("idle"));
    let astray = of_astray.agents(1, Some(astray), &["--address", "127.0.0.1"]);
    let idle = of_idle.agents(1, None, &["--address", "127.0.0.1"]);
    let others = [of_cut.agents(1, Some(cut), &[]), of_stopped.agents(1, Some(stopped), &[])];
    of_cut.works(1);
    cut.cut();
    of_stopped.works(1);
    signal(of_stopped.rank(3), Signal::STOP);
    of_idle.works(1);
    let agent = idle[1].id();
    signal(agent, Signal::STOP);

    let begun = Instant::now();
    let (reason, message) = of_cut.ended(1, IN_TIME);
    // Each side is the first to say so as often as the other.
    let silent = ["rank 2 on node 1 has been", "rank 3 on node 1 has been", "the process that the others meet at has been"];
    assert!(reason == "preempted" && silent.map(|who| format!("{who} silent for a minute")).contains(&message), "{message}");
    let (reason, message) = of_stopped.ended(1, IN_TIME);
    assert_eq!((reason.as_str(), message.as_str()), ("preempted", "rank 3 on node 1 has been silent for a minute"));
    let (reason, message) = of_idle.ended_but_for(&[agent], 1, IN_TIME);
    assert_eq!((reason.as_str(), message.as_str()), ("preempted", "node 1 has been silent for 60 s"));
    assert!(begun.elapsed() > Duration::from_secs(50), "they were given a minute");
    signal(agent, Signal::CONT);
    of_idle.ended(1, AT_ONCE);
    let (reason, message) = of_astray.ended(1, IN_TIME);
    assert_eq!(reason, "failed", "{message}");
    assert!(message.contains(" on node 1 failed: cannot meet the other processes at 127.0.0.1:"), "{message}");
    assert!(message.contains("set MASTER_ADDR to an address that all reach"), "{message}");
    others.into_iter().flatten().chain(astray).chain(idle).for_each(|mut agent| assert!(agent.wait().is_ok()));
}

/// A host without a way to others has no address for them, and says so before it waits for anybody.
#[test]
#[ignore = "needs the trainer: tests/run builds it"]
fn a_host_with_loopback_alone_says_so() {
    let Some(hosts) = Hosts::make() else { return };
    hosts.0.iter().for_each(|host| ip(&format!("-n {host} link delete eth0")).unwrap_or_default());
    let sandbox = Sandbox::new();
    let gang = Gang::new(&sandbox, "lonely", 20, &alone(&sandbox, 20));
    gang.order(1, 2);
    let mut agent = gang.agent(1, 0, Some(hosts.name(0)), &[]);
    let (reason, message) = gang.ended(1, AT_ONCE);
    assert_eq!(reason, "failed");
    assert!(message.starts_with("no address for the ranks to meet: other nodes cannot reach this machine"), "{message}");
    assert!(message.contains("unreachable") && message.ends_with("start its agent with --address"), "{message}");
    agent.wait().unwrap();
}

/// The trainers have not met, so only agents can tell the others: those of its own node, and of the other one.
#[test]
#[ignore = "needs the trainer: tests/run builds it"]
fn a_rank_that_dies_before_all_have_met_is_named_and_the_others_end_soon() {
    let mut sandbox = Sandbox::new();
    let model = alone(&sandbox, 20);
    // Its own cache has a trainer that fails at once, as one rank.
    let cache = sandbox.path("cache");
    sandbox.variables.push(("XDG_CACHE_HOME".into(), cache.clone().into()));
    for rank in [0, 3] {
        let mut gang = Gang::new(&sandbox, &format!("rank-{rank}"), 20, &model);
        let digest = format!("{rank}").repeat(64);
        gang.order["trainer"] = json!({ "program": { "digest": digest } });
        let program = cache.join("ftctl/trainer").join(&digest[..16]).join("ft-trainer");
        fs::create_dir_all(program.parent().unwrap()).unwrap();
        let trainer = env::var("FT_TRAINER").expect("tests/run names the trainer");
        let fails = format!("[ \"$RANK\" = {rank} ] && {{ sleep 2; echo 'error: no library' >&2; exit 127; }}");
        fs::write(&program, format!("#!/bin/sh\n{fails}\nexec {trainer} \"$@\"\n")).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        let mut agents = gang.agents(1, None, &["--address", "127.0.0.1"]);
        let (reason, message) = gang.ended(1, AT_ONCE);
        let node = rank / 2;
        assert_eq!((reason, message), ("failed".to_owned(), format!("rank {rank} on node {node} failed: no library")));
        for agent in &mut agents {
            assert!(agent.wait().is_ok());
        }
    }
}
