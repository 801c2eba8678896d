//! Records, debts, names and orders that another user wrote into the store.

use std::{
    fs, io,
    os::unix::{fs::PermissionsExt as _, net::UnixListener},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use crate::common::{
    Runs, Said, Sandbox,
    hub::{Hub, TOKEN},
};
use ftctl::job::{
    docker::DockerPlan,
    gce::GcePlan,
    id::{JobId, path},
};
use serde_json::{Value, json};

/// Longest time that anything here may take on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

/// A target that a verb may reach without being asked to.
struct Canary {
    directory: tempfile::TempDir,
}

impl Canary {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join("deep")).unwrap();
        fs::write(directory.path().join("deep/secret"), "sk-canary").unwrap();
        Self { directory }
    }

    fn path(&self) -> &str {
        self.directory.path().to_str().unwrap()
    }

    fn assert_lives(&self, what: &str) {
        assert_eq!(fs::read_to_string(self.directory.path().join("deep/secret")).ok().as_deref(), Some("sk-canary"), "{what}");
    }
}

/// Two people with homes of their own, and a directory in which both may write.
struct Two {
    theirs: Sandbox,
    mine: Sandbox,
    store: PathBuf,
    _shared: tempfile::TempDir,
}

impl Two {
    fn new() -> Self {
        let shared = tempfile::tempdir().unwrap();
        let store = shared.path().join("store");
        Self { theirs: Sandbox::in_memory(), mine: Sandbox::in_memory(), store, _shared: shared }
    }

    fn command(&self, who: &Sandbox, arguments: &[&str]) -> Command {
        let mut command = who.command(arguments);
        command.env("FTCTL_STORE", &self.store);
        command
    }

    fn run(&self, who: &Sandbox, arguments: &[&str]) -> Said {
        Sandbox::said(&mut self.command(who, arguments))
    }

    /// A verb of mine, from which only what it says on stderr is of interest.
    fn follow(&self, arguments: &[&str]) -> Following {
        Following::start(&mut self.command(&self.mine, arguments), self.mine.path("stderr"))
    }

    fn record(&self, id: &str) -> PathBuf {
        self.store.join(path::record(&JobId::parse(id).unwrap()))
    }

    fn read(&self, id: &str) -> Value {
        serde_json::from_slice(&fs::read(self.record(id)).unwrap()).unwrap()
    }

    fn change(&self, id: &str, change: impl FnOnce(&mut Value)) {
        let mut record = self.read(id);
        change(&mut record);
        fs::write(self.record(id), record.to_string()).unwrap();
    }

    /// The supervisor's lease is that of an ftctl on another machine, which says nothing more.
    fn lease_elsewhere(&self, id: &str) {
        let holder = json!({ "host": "elsewhere", "realm": "..", "pid": 1, "started": 1, "attempt": 0, "nonce": "n" });
        let lease = json!({ "schema": "ftctl.lease/1", "holder": holder, "beat": 0 });
        fs::write(self.store.join(path::supervisor_lease(&JobId::parse(id).unwrap())), lease.to_string()).unwrap();
    }

    /// A job that I did not submit: at rehearsal it got as far as its machine.
    fn foreign_job(&self, name: &str) -> String {
        self.theirs.write_rehearsal(name);
        self.mine.write("ftctl.toml", "backend = \"fake\"\n");
        let said = self.run(&self.theirs, &["up", "job.toml"]);
        assert_eq!(said.code, Some(0), "{}", said.stderr);
        said.stdout.trim().to_owned()
    }
}

struct Following {
    child: Child,
    stderr: PathBuf,
}

impl Following {
    fn start(command: &mut Command, stderr: PathBuf) -> Self {
        command.stdout(Stdio::null()).stderr(fs::File::create(&stderr).unwrap());
        Self { child: command.spawn().unwrap(), stderr }
    }

    fn says(&mut self, part: &str) -> String {
        let began = Instant::now();
        loop {
            let said = fs::read_to_string(&self.stderr).unwrap();
            if said.contains(part) {
                return said;
            }
            let over = self.child.try_wait().unwrap();
            assert!(began.elapsed() < LIMIT && over.is_none(), "{over:?} without `{part}`: {said}");
            thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Following {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn put(store: &Path, path: &str, value: &Value) {
    let place = store.join(path);
    fs::create_dir_all(place.parent().unwrap()).unwrap();
    fs::write(place, value.to_string()).unwrap();
}

fn debt(id: &str) -> Value {
    json!({ "schema": "ftctl.debt/1", "id": id, "since": "2026-01-01T00:00:00Z", "why": "no answer" })
}

#[test]
fn a_debt_removes_no_directory() {
    let (sandbox, canary) = (Sandbox::in_memory(), Canary::new());
    sandbox.write_rehearsal("mine");
    for backend in ["fake", "local"] {
        sandbox.write("ftctl.toml", format!("backend = \"{backend}\"\n"));
        for id in [canary.path(), "../../../home", "other-bcdfgh"] {
            put(&sandbox.state().join("store"), "ftctl/v1/debts/a-bcdfgh.json", &debt(id));
            for arguments in [&["status"][..], &["doctor"], &["plan", "job.toml"], &["bill"], &["logs", "nothere"]] {
                let said = sandbox.run(arguments);
                canary.assert_lives(&format!("{backend} {id} {arguments:?}"));
                assert!(said.stderr.contains("a-bcdfgh"), "{arguments:?} tells of what it cannot read: {}", said.stderr);
                assert!(!said.stderr.contains("are gone"), "{arguments:?}: {}", said.stderr);
            }
        }
    }
    assert!(sandbox.home().exists());
}

#[test]
fn a_debt_ends_no_healthy_job_and_an_honest_one_is_paid() {
    let sandbox = Sandbox::in_memory();
    sandbox.write_rehearsal("alive");
    let id = sandbox.ok(&["up", "job.toml"]).trim().to_owned();
    let store = sandbox.state().join("store");
    let owed = format!("ftctl/v1/debts/{id}.json");
    put(&store, &owed, &debt(&id));
    let said = sandbox.run(&["status"]);
    assert!(said.stderr.contains("nothing was destroyed: it is ready"), "{}", said.stderr);
    let cloud = || fs::read_to_string(sandbox.state().join("fake/cloud.json")).unwrap();
    assert!(cloud().contains(&format!("\"{id}-a1\": {{")), "its machine is there");
    let record = store.join(format!("ftctl/v1/jobs/{id}/record.json"));
    let kept = fs::read(&record).unwrap();
    let mut over: Value = serde_json::from_slice(&kept).unwrap();
    (over["state"], over["outcome"]) = (json!("tearing_down"), json!("cancelled"));
    fs::write(&record, over.to_string()).unwrap();
    let said = sandbox.run(&["status"]);
    assert!(said.stderr.contains("are gone"), "{}", said.stderr);
    assert!(!store.join(&owed).exists() && !cloud().contains(&format!("\"{id}-a1\": {{")));
    // A record may have been removed to end a healthy job.
    let lost = sandbox.ok(&["up", "job.toml", "--set", "name=lost"]).trim().to_owned();
    fs::remove_file(store.join(format!("ftctl/v1/jobs/{lost}/record.json"))).unwrap();
    let owed = format!("ftctl/v1/debts/{lost}.json");
    put(&store, &owed, &debt(&lost));
    let said = sandbox.run(&["status"]);
    assert!(said.stderr.contains("nothing was destroyed: it has no record; `ftctl down "), "{}", said.stderr);
    assert!(cloud().contains(&format!("\"{lost}-a1\": {{")));
    sandbox.ok(&["down", &lost, "-y"]);
    assert!(!cloud().contains(&format!("\"{lost}-a1\": {{")));
    // Nothing of it is left, so nothing is owed.
    put(&store, &owed, &debt(&lost));
    sandbox.run(&["status"]);
    assert!(!store.join(&owed).exists());
}

#[test]
fn a_name_leads_to_a_job_of_that_name_and_nowhere_else() {
    let (sandbox, canary) = (Sandbox::in_memory(), Canary::new());
    sandbox.write_rehearsal("victim");
    let other = sandbox.ok(&["submit", "job.toml", "--wait", "--set", "name=other"]).trim().to_owned();
    for id in [canary.path(), "../../work", &other] {
        put(&sandbox.state().join("store"), "ftctl/v1/names/victim.json", &json!({ "schema": "ftctl.name/1", "id": id }));
        for arguments in [&["down", "victim", "-y"][..], &["cancel", "victim"], &["logs", "victim"], &["submit", "job.toml"]] {
            let said = sandbox.run(arguments);
            canary.assert_lives(&format!("{id} {arguments:?}"));
            assert_eq!(said.code, Some(9), "{arguments:?}: {}", said.stderr);
            assert!(said.stderr.contains("ftctl/v1/names/victim.json"), "{}", said.stderr);
        }
    }
    sandbox.ok(&["logs", &other]);
}

#[test]
fn a_record_that_no_ftctl_wrote_is_refused_and_hides_no_other() {
    let sandbox = Sandbox::in_memory();
    sandbox.write_rehearsal("good");
    let good = sandbox.ok(&["submit", "job.toml", "--wait"]).trim().to_owned();
    let bad = sandbox.ok(&["up", "job.toml", "--set", "name=bad"]).trim().to_owned();
    let record = sandbox.state().join(format!("store/ftctl/v1/jobs/{bad}/record.json"));
    let mut kept: Value = serde_json::from_slice(&fs::read(&record).unwrap()).unwrap();
    // Records of before have what their job file says of every backend.
    (kept["plan"]["docker"], kept["plan"]["gce"]) = (json!(DockerPlan::default()), json!(GcePlan::default()));
    for (pointer, value) in [
        ("/id", json!("/etc")),
        ("/id", json!(good)),
        ("/attempt", json!(u32::MAX)),
        ("/attempt", json!(9_999)),
        ("/attempts/0/attempt", json!(7)),
        ("/attempts/0/lost_steps", json!(u64::MAX)),
        ("/plan/name", json!("good")),
        ("/plan/backend", json!("../moon")),
        ("/plan/docker/mounts", json!(["etc:/host"])),
        ("/plan/gce/machine_type", json!("m1-megamem-96")),
        ("/plan/train/block_size", json!(0)),
        ("/plan/retry/attempts", json!(u32::MAX)),
        ("/state", json!("flying")),
    ] {
        let mut changed = kept.clone();
        *changed.pointer_mut(pointer).unwrap() = value;
        fs::write(&record, changed.to_string()).unwrap();
        // Each record by one verb, and one record by each of them.
        let verbs = [
            &["logs", "-f", &bad][..],
            &["logs", &bad],
            &["report", &bad],
            &["cancel", &bad],
            &["explain", &bad],
            &["status", &bad],
        ];
        for arguments in &verbs[..if pointer == "/attempt" { verbs.len() } else { 1 }] {
            let said = sandbox.run(arguments);
            assert_eq!(said.code, Some(9), "{pointer} {arguments:?}: {}", said.stderr);
            assert!(said.stderr.contains(&bad), "{pointer} {arguments:?}: {}", said.stderr);
        }
        for arguments in [&["status", "--all"][..], &["bill", "--since", "1000d"]] {
            let said = sandbox.run(arguments);
            assert!(said.code == Some(0) && said.stdout.contains(&good), "{pointer} {arguments:?}: {}", said.stderr);
            assert!(said.stderr.contains(&bad), "{pointer} {arguments:?}: {}", said.stderr);
        }
        assert_eq!(sandbox.run(&["prune", "--dry-run", "--expired"]).code, Some(0), "{pointer}");
    }
    // A record that cannot be read any more can still be destroyed.
    sandbox.ok(&["down", &bad, "-y"]);
}

/// A job on this machine in another user's store, as they would have it go on here.
fn with_their_program(two: &Two, program: &Path) -> String {
    let id = two.foreign_job("train");
    two.change(&id, |record| {
        (record["state"], record["attempt"], record["attempts"]) = (json!("imaging"), json!(0), json!([]));
        (record["submitted"], record["plan"]["backend"]) = (json!(true), json!("local"));
        record["trainer"] = json!({ "program": { "path": program, "digest": "0".repeat(64) } });
    });
    id
}

/// A program that leaves `marker` where it ran.
fn program(path: &Path, marker: &Path) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, format!("#!/bin/sh\ntouch {}\n", marker.display())).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn a_record_runs_no_program() {
    let two = Two::new();
    let (theirs, mine) = (two.mine.path("their-program-ran"), two.mine.path("my-program-ran"));
    program(&two.mine.path("program"), &theirs);
    let id = with_their_program(&two, &two.mine.path("program"));
    let mut following = two.follow(&["logs", "-f", &id]);
    thread::sleep(Duration::from_secs(2));
    assert!(following.child.try_wait().unwrap().is_none() && !two.mine.state().join("local").exists(), "it is watched");
    drop(following);
    // The user who adopts it runs the program that their own cache has under that digest.
    program(&two.mine.home().join(format!(".cache/ftctl/trainer/{}/ft-trainer", "0".repeat(16))), &mine);
    let said = two.run(&two.mine, &["logs", "-f", &id, "--adopt", "-y"]);
    assert!(mine.exists() && !theirs.exists(), "{}", said.stderr);
    assert_eq!(two.read(&id)["trainer"], json!({ "program": { "digest": "0".repeat(64) } }));
}

#[test]
fn a_trainer_that_is_not_here_is_built_and_not_looked_for_elsewhere() {
    let two = Two::new();
    let theirs = two.mine.path("their-program-ran");
    program(&two.mine.path("program"), &theirs);
    let id = with_their_program(&two, &two.mine.path("program"));
    // Here it cannot be, for want of tools.
    let tools = two.mine.path("no-tools");
    fs::create_dir(&tools).unwrap();
    let said = Sandbox::said(two.command(&two.mine, &["logs", "-f", &id, "--adopt", "-y"]).env("PATH", tools));
    let record = two.read(&id);
    assert_eq!(record["outcome"], json!("failed"), "{}", said.stderr);
    assert!(record["reason"].as_str().unwrap().contains("cargo is not in PATH"), "{record}");
    assert!(!theirs.exists());
}

#[test]
fn a_record_asks_nothing_of_an_engine() {
    let two = Two::new();
    let id = two.foreign_job("contained");
    two.change(&id, |record| {
        (record["submitted"], record["plan"]["backend"]) = (json!(true), json!("docker"));
        record["plan"]["docker"] = json!({ "image": "evil/image", "user": "0:0", "mounts": ["/:/host"], "network": "host" });
    });
    let socket = two.mine.path("engine.sock");
    let engine = UnixListener::bind(&socket).unwrap();
    engine.set_nonblocking(true).unwrap();
    let host = format!("unix://{}", socket.display());
    let mut command = two.command(&two.mine, &["logs", "-f", &id]);
    let mut following = Following::start(command.env("DOCKER_HOST", &host), two.mine.path("stderr"));
    thread::sleep(Duration::from_secs(2));
    assert!(following.child.try_wait().unwrap().is_none(), "it is watched");
    drop(following);
    let asked = Sandbox::said(two.command(&two.mine, &["logs", "-f", &id, "--adopt"]).env("DOCKER_HOST", &host));
    assert_eq!(asked.code, Some(2), "{}", asked.stderr);
    for part in ["docker", "evil/image", "0:0", "/:/host", "host"] {
        assert!(asked.stderr.contains(part), "{part}: {}", asked.stderr);
    }
    assert_eq!(engine.accept().expect_err("no one came").kind(), io::ErrorKind::WouldBlock);
}

#[test]
fn a_record_reads_no_file() {
    let (two, canary) = (Two::new(), Canary::new());
    let id = two.foreign_job("reads");
    let secret = format!("{}/deep/secret", canary.path());
    for data in [json!({ "directory": canary.path() }), json!({ "text": { "train": [secret] } })] {
        two.change(&id, |record| {
            (record["state"], record["attempt"], record["attempts"]) = (json!("planned"), json!(0), json!([]));
            (record["submitted"], record["plan"]["data"]) = (json!(true), data.clone());
            record.as_object_mut().unwrap().remove("dataset");
        });
        let before = objects(&two.store);
        two.follow(&["logs", "-f", &id]).says("no ftctl drives it");
        // Not even for the user who took it over: the image that lies here under that name is not the one that was meant.
        let said = two.run(&two.mine, &["logs", "-f", &id, "--adopt", "-y"]);
        assert_eq!(said.code, Some(12), "{}", said.stderr);
        assert!(said.stderr.contains("which is read only on the machine that submitted the job"), "{}", said.stderr);
        assert_eq!(two.read(&id)["outcome"], Value::Null, "the job is not ended by that");
        assert_eq!(objects(&two.store), before, "nothing was sent");
    }
}

/// The objects of a store besides records and leases.
fn objects(store: &Path) -> Vec<PathBuf> {
    let mut found: Vec<_> =
        ["contents", "datasets"].iter().flat_map(|folder| files(&store.join("ftctl/v1").join(folder))).collect();
    found.sort();
    found
}

fn files(below: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(below).into_iter().flatten().flatten().map(|entry| entry.path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

#[test]
fn somebody_elses_job_is_driven_by_whoever_adopts_it() {
    let two = Two::new();
    let id = two.foreign_job("away");
    two.change(&id, |record| record["submitted"] = json!(true));
    let said = two.follow(&["logs", "-f", &id]).says("no ftctl drives it");
    assert!(said.contains(&format!("`ftctl logs -f {id} --adopt`")), "{said}");
    assert_eq!(two.read(&id)["state"], json!("submitting"));
    let explained = two.run(&two.mine, &["explain", &id]).stdout;
    assert!(explained.contains(&format!("`ftctl logs -f {id} --adopt`")), "{explained}");
    let drilled = two.run(&two.mine, &["drill", "preempt", &id]);
    assert_eq!(drilled.code, Some(12), "{}", drilled.stderr);

    // Without a terminal there is no answer.
    let unasked = two.run(&two.mine, &["logs", "-f", &id, "--adopt"]);
    assert_eq!(unasked.code, Some(2), "{}", unasked.stderr);
    for part in ["backend", "image", "user", "mounts", "network", "fake", "add -y"] {
        assert!(unasked.stderr.contains(part), "{part}: {}", unasked.stderr);
    }
    let adopted = two.run(&two.mine, &["logs", "-f", &id, "--adopt", "-y"]);
    assert_eq!(adopted.code, Some(0), "{}", adopted.stderr);
    assert_eq!(two.read(&id)["outcome"], json!("succeeded"));
}

/// New attempts would start what the record says.
#[test]
fn somebody_elses_job_that_is_over_is_not_resumed() {
    let two = Two::new();
    two.theirs.write_rehearsal("over");
    two.mine.write("ftctl.toml", "backend = \"fake\"\n");
    let said = two.run(&two.theirs, &["submit", "job.toml", "--wait"]);
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    let id = said.stdout.trim().to_owned();
    let before = two.read(&id);
    assert_eq!(before["state"], json!("finished"));
    for more in [&[][..], &["--set", "train.steps=20"], &["--set", "train.steps=20", "-y"]] {
        let said = two.run(&two.mine, &[&["resume", &id], more].concat());
        assert_eq!(said.code, Some(12), "{more:?}: {}", said.stderr);
        assert!(said.stderr.contains(&format!("the job {id} was not submitted on this machine")), "{}", said.stderr);
    }
    assert_eq!(two.read(&id), before);
}

/// A hub's files that a record names would be fetched with my token, and put where its writer reads them.
#[test]
fn a_record_fetches_nothing_of_a_hub() {
    let (two, hub) = (Two::new(), Hub::start());
    let commit = hub.commit("datasets/owner/secret", "main", &[("train.jsonl", b"{\"text\": \"Once upon a time.\"}\n".to_vec())]);
    hub.hide("datasets/owner/secret");
    let id = two.foreign_job("curious");
    two.change(&id, |record| {
        (record["submitted"], record["state"]) = (json!(true), json!("planned"));
        record["plan"]["data"] = json!({ "text": { "train": ["hf:owner/secret/train"] } });
        record["plan"]["hub"] = json!({ "datasets/owner/secret@main": commit });
    });
    let mine = |arguments: &[&str]| {
        let mut command = two.command(&two.mine, arguments);
        command.env("HF_ENDPOINT", hub.address()).env("HF_TOKEN", TOKEN);
        command
    };
    Following::start(&mut mine(&["logs", "-f", &id]), two.mine.path("stderr")).says("no ftctl drives it");
    let unasked = Sandbox::said(&mut mine(&["logs", "-f", &id, "--adopt"]));
    assert!(
        unasked.stderr.contains("hf:owner/secret/train, fetched with your token, and put into the store"),
        "{}",
        unasked.stderr
    );
    assert_eq!(hub.calls(), []);
    // After a yes it is fetched.
    let adopted = Sandbox::said(&mut mine(&["logs", "-f", &id, "--adopt", "-y"]));
    assert!(hub.calls().iter().any(|call| call.of_store), "{}", adopted.stderr);
    let moved = json!({ "datasets/owner/secret@main": "../../../etc" });
    two.change(&id, |record| record["plan"]["hub"] = moved);
    let damaged = Sandbox::said(&mut mine(&["show", &id]));
    assert_eq!(damaged.code, Some(9), "{}", damaged.stderr);
}

#[test]
fn a_lease_that_nobody_can_read_is_no_sign_of_life() {
    let two = Two::new();
    let id = two.foreign_job("piped");
    two.change(&id, |record| record["submitted"] = json!(true));
    let lease = two.store.join(path::supervisor_lease(&JobId::parse(&id).unwrap()));
    let _ = fs::remove_file(&lease);
    rustix::fs::mknodat(rustix::fs::CWD, &lease, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    two.follow(&["logs", "-f", &id]).says("no ftctl drives it");
}

#[test]
fn who_follows_a_job_of_a_silent_ftctl_is_told() {
    let two = Two::new();
    let id = two.foreign_job("silent");
    two.lease_elsewhere(&id);
    let mut following = Following::start(&mut two.command(&two.theirs, &["logs", "-f", &id]), two.theirs.path("stderr"));
    following.says(&format!("another ftctl drives {id}: it has been silent for 5 seconds"));
}

/// Another ftctl may hold it, on a machine whose processes cannot be looked at from here.
#[test]
fn a_lease_of_an_unknown_machine_is_waited_for_and_that_is_said() {
    let two = Two::new();
    let id = two.foreign_job("leased");
    two.change(&id, |record| (record["submitted"], record["state"]) = (json!(true), json!("running")));
    two.lease_elsewhere(&id);
    let said = two.run(&two.mine, &["down", &id, "-y"]);
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    assert!(said.stderr.contains(&format!("another ftctl drives {id}: waiting until it has ended the job")), "{}", said.stderr);
    assert_eq!(two.read(&id)["state"], json!("finished"));
}

#[test]
fn adoption_for_pipelines_is_the_users_own_word() {
    let two = Two::new();
    let config = two.mine.home().join(".config/ftctl");
    fs::create_dir_all(&config).unwrap();
    let follow = |id: &str, everything: bool| {
        two.change(id, |record| record["submitted"] = json!(true));
        let mut command = two.command(&two.mine, &["logs", "-f", id]);
        if everything {
            command.env("FTCTL_ADOPT", "1");
        }
        let said = Sandbox::said(&mut command);
        assert_eq!((said.code, &two.read(id)["outcome"]), (Some(0), &json!("succeeded")), "{}", said.stderr);
    };
    follow(&two.foreign_job("one"), true);
    fs::write(config.join("config.toml"), format!("adopt = [\"{}\"]\n", two.store.display())).unwrap();
    follow(&two.foreign_job("two"), false);
    fs::remove_file(config.join("config.toml")).unwrap();
    two.mine.write("ftctl.toml", format!("backend = \"fake\"\nadopt = [\"{}\"]\n", two.store.display()));
    let said = two.run(&two.mine, &["status"]);
    assert!(said.code == Some(2) && said.stderr.contains("adopt"), "no project says so: {}", said.stderr);
}

#[test]
fn a_plan_that_was_changed_is_somebody_elses() {
    let two = Two::new();
    let id = two.foreign_job("changed");
    two.change(&id, |record| {
        record["submitted"] = json!(true);
        record["plan"]["docker"]["mounts"] = json!(["/:/host"]);
    });
    let mut follow = two.command(&two.theirs, &["logs", "-f", &id]);
    Following::start(&mut follow, two.theirs.path("stderr")).says("no ftctl drives it");
    assert_eq!(two.read(&id)["state"], json!("submitting"));
}

/// Who writes to the store would otherwise make a job spend again and again what it may spend once.
#[test]
fn a_job_that_is_over_spends_nothing_again() {
    let sandbox = Sandbox::new();
    sandbox.write_rehearsal("spent");
    let id = sandbox.run(&["submit", "job.toml", "--wait"]).stdout.trim().to_owned();
    let provisions = || {
        let calls = fs::read_to_string(sandbox.state().join("fake/calls.jsonl")).unwrap();
        calls.lines().filter(|call| call.contains("provision")).count()
    };
    assert_eq!(provisions(), 1);
    let file = sandbox.state().join("store").join(path::record(&JobId::parse(&id).unwrap()));
    let mut record: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    (record["state"], record["attempt"], record["attempts"]) = (json!("imaging"), json!(0), json!([]));
    for key in ["outcome", "reason", "exit"] {
        record.as_object_mut().unwrap().remove(key);
    }
    fs::write(&file, record.to_string()).unwrap();
    let mut follow = sandbox.command(&["logs", "-f", "spent"]);
    Following::start(&mut follow, sandbox.path("stderr")).says("its record says less was done than this machine saw");
    for verb in [&["wait", "spent", "--timeout", "1s"][..], &["status", "spent"], &["explain", "spent"]] {
        sandbox.run(verb);
    }
    assert_eq!(provisions(), 1);
    assert_eq!(sandbox.run(&["down", "spent", "-y"]).code, Some(0));
}

#[test]
fn who_writes_to_a_store_reads_all_of_it_and_changes_the_results_of_its_jobs() {
    let two = Two::new();
    two.theirs.write_rehearsal("shared");
    let said = two.run(&two.theirs, &["submit", "job.toml", "--wait"]);
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    let id = said.stdout.trim();
    assert!(objects(&two.store).iter().any(|object| fs::read(object).is_ok_and(|bytes| bytes == b"tokens")), "the dataset");
    let log = two.run(&two.mine, &["logs", id]).stdout;
    assert!(log.contains("step 10/10"), "{log}");
    assert_eq!(two.run(&two.mine, &["download", id, "--to", "model"]).code, Some(0));
    fs::write(two.store.join(path::log(&JobId::parse(id).unwrap(), 1)), "2026-11-20T14:03:22.512Z changed\n").unwrap();
    assert_eq!(two.run(&two.theirs, &["logs", id]).stdout, "changed\n");
}

#[test]
fn somebody_elses_job_is_ended_without_beginning_anything() {
    for state in ["planned", "submitting", "running"] {
        let two = Two::new();
        let id = two.foreign_job("ends");
        two.change(&id, |record| {
            (record["state"], record["submitted"]) = (json!(state), json!(true));
            if state == "planned" {
                (record["attempt"], record["attempts"]) = (json!(0), json!([]));
            }
        });
        let verb = if state == "running" { &["cancel", &id, "--now"][..] } else { &["down", &id, "-y"] };
        let said = two.run(&two.mine, verb);
        assert_eq!(said.code, Some(0), "{state}: {}", said.stderr);
        let record = two.read(&id);
        assert_eq!((&record["state"], &record["outcome"]), (&json!("finished"), &json!("cancelled")), "{state}");
        let calls = fs::read_to_string(two.mine.state().join("fake/calls.jsonl")).unwrap();
        assert!(calls.contains("destroy") && !calls.contains("provision") && !calls.contains("launch"), "{state}: {calls}");
    }
}
