//! `kill -9` of ftctl before and after every call that it makes to the cloud and to the store. The calls are counted in an
//! undisturbed life, with a stock-out and a preemption in it; none of them is written down here.

use std::{fs, os::unix::process::ExitStatusExt as _, path::Path, process::ExitStatus, thread};

use crate::common::Sandbox;
use ftctl::provider::fake::{CallLine, Cloud, CrashAt, EffectKind, When};
use serde_json::json;

/// A command, and the state before it.
struct Stage {
    before: &'static [&'static [&'static str]],
    command: &'static [&'static str],
    /// Nothing may be left in the cloud when it has succeeded.
    cleans_up: bool,
}

const UP: &[&str] = &["up", "job.toml"];
const SUBMIT: &[&str] = &["submit", "job.toml", "--idempotency-key", "one"];
const SUPERVISE: &[&str] = &["submit", "job.toml", "--idempotency-key", "one", "--wait"];

const STAGES: [Stage; 5] = [
    Stage { before: &[], command: &["upload", "data"], cleans_up: false },
    Stage { before: &[], command: UP, cleans_up: false },
    Stage { before: &[UP], command: SUBMIT, cleans_up: false },
    Stage { before: &[UP, SUBMIT], command: SUPERVISE, cleans_up: true },
    Stage { before: &[UP, SUBMIT], command: &["down", "proof", "-y"], cleans_up: true },
];

/// Sandboxes that share the instants.
const WORKERS: usize = 2;

#[test]
fn ftctl_can_be_killed_around_every_call() {
    let workers: Vec<_> =
        (0..WORKERS).map(|worker| thread::spawn(move || STAGES.map(|stage| stage.kill_everywhere(worker)))).collect();
    let counts: Vec<[usize; STAGES.len()]> =
        workers.into_iter().map(|worker| worker.join().expect("every instant passes")).collect();
    for (stage, calls) in STAGES.iter().zip(counts[0]) {
        println!("{calls} calls of ftctl {}", stage.command.join(" "));
    }
}

impl Stage {
    /// Kills at this worker's share of the instants. Answers how many calls the command makes.
    fn kill_everywhere(&self, worker: usize) -> usize {
        let place = quiet_place();
        for command in self.before {
            assert!(run(&place, command).success(), "{command:?}");
        }
        let start = Sandbox::in_memory();
        take_over(&place, &start);
        let expected = self.undisturbed(&place);
        assert!(!expected.calls.is_empty(), "{:?} makes no calls", self.command);
        let instants = expected.calls.iter().flat_map(|call| [(call, When::Before), (call, When::After)]);
        for (call, when) in instants.skip(worker).step_by(WORKERS) {
            take_over(&start, &place);
            self.kill(&place, call, when);
            self.clean_up_elsewhere(&place, call, when);
            self.repeat(&place, &expected, call, when);
        }
        expected.calls.len()
    }

    fn undisturbed(&self, place: &Sandbox) -> Life {
        let _ = fs::remove_file(place.state().join("fake/calls.jsonl"));
        assert!(run(place, self.command).success(), "{:?}", self.command);
        Life { calls: calls(place), created: created(place) }
    }

    fn kill(&self, place: &Sandbox, call: &CallLine, when: When) {
        rehearse(place, Some(CrashAt { call: call.call, when }));
        let status = run(place, self.command);
        assert_eq!(status.signal(), Some(9), "{:?} was to be killed {when:?} {call:?}", self.command);
        let last = calls(place).pop().expect("a call");
        assert_eq!(
            (last.name.as_str(), anonymous(&last.target)),
            (call.name.as_str(), anonymous(&call.target)),
            "{:?}",
            self.command
        );
        rehearse(place, None);
    }

    /// Whatever was half made goes by the job's name, or, when there is no job yet, as something unknown.
    fn clean_up_elsewhere(&self, place: &Sandbox, call: &CallLine, when: When) {
        let copy = Sandbox::in_memory();
        copy.write_rehearsal("proof");
        take_over(place, &copy);
        let said = copy.run(&["down", "proof", "-y"]);
        assert!(matches!(said.code, Some(0 | 3)), "down after {:?}, {when:?} {call:?}: {}", self.command, said.stderr);
        if said.code == Some(3) {
            let said = copy.run(&["prune", "-y"]);
            assert_eq!(said.code, Some(0), "prune after {:?}, {when:?} {call:?}: {}", self.command, said.stderr);
        }
        let left = cloud(&copy).map_or(0, |cloud| cloud.machines.len());
        assert_eq!(left, 0, "machines left behind by {:?}, killed {when:?} {call:?}", self.command);
    }

    /// The same command again finds what was done and does the rest, and nothing is made twice.
    fn repeat(&self, place: &Sandbox, expected: &Life, call: &CallLine, when: When) {
        let said = place.run(self.command);
        assert_eq!(said.code, Some(0), "{:?} again, after {when:?} {call:?}: {}", self.command, said.stderr);
        assert_eq!(created(place), expected.created, "{:?} again, after {when:?} {call:?}", self.command);
        let left = cloud(place).map_or(0, |cloud| cloud.machines.len());
        assert!(!self.cleans_up || left == 0, "machines left behind by {:?}, killed {when:?} {call:?}", self.command);
    }
}

/// A stage without a crash.
struct Life {
    calls: Vec<CallLine>,
    created: Vec<(EffectKind, String)>,
}

/// Sets the cloud's script: the first machine is not available at once, and is preempted with half of the work done.
fn rehearse(place: &Sandbox, crash_at: Option<CrashAt>) {
    place.script(&json!({
        "job": { "staging": "1s", "duration": "2s" },
        "faults": [{ "call": "provision", "attempt": 1, "kind": "stock_out" }],
        "preemptions": [{ "attempt": 1, "after": "2s" }],
        "crash_at": crash_at,
    }));
}

fn run(place: &Sandbox, arguments: &[&str]) -> ExitStatus {
    place.command(arguments).output().expect("ftctl runs").status
}

fn calls(place: &Sandbox) -> Vec<CallLine> {
    let text = fs::read_to_string(place.state().join("fake/calls.jsonl")).unwrap_or_default();
    text.lines().map(|line| serde_json::from_str(line).expect("a call")).collect()
}

/// `None` when the cloud was not looked at yet.
fn cloud(place: &Sandbox) -> Option<Cloud> {
    let bytes = fs::read(place.state().join("fake/cloud.json")).ok()?;
    Some(serde_json::from_slice(&bytes).expect("a cloud"))
}

/// Everything that was ever made in the cloud.
fn created(place: &Sandbox) -> Vec<(EffectKind, String)> {
    let effects = cloud(place).map(|cloud| cloud.effects).unwrap_or_default();
    let made = effects.into_iter().filter(|effect| effect.kind != EffectKind::MachineDestroyed);
    made.map(|effect| (effect.kind, anonymous(&effect.machine))).collect()
}

/// A job that has no key yet gets another id each time it is begun.
fn anonymous(name: &str) -> String {
    match name.find("proof-") {
        Some(start) if name.len() >= start + 12 => format!("{}proof-*{}", &name[..start], &name[start + 12..]),
        _ => name.to_owned(),
    }
}

/// Makes `to` what `from` is: the same job, the same store, the same cloud.
fn take_over(from: &Sandbox, to: &Sandbox) {
    fs::remove_dir_all(to.home()).expect("the old home");
    copy(&from.home(), &to.home());
}

/// A place with the job file, where nothing dies.
fn quiet_place() -> Sandbox {
    let place = Sandbox::in_memory();
    place.write_rehearsal("proof");
    rehearse(&place, None);
    place
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir(to).expect("a directory");
    for entry in fs::read_dir(from).expect("a directory").flatten() {
        let target = to.join(entry.file_name());
        if entry.path().is_dir() { copy(&entry.path(), &target) } else { fs::copy(entry.path(), target).map(drop).expect("a copy") }
    }
}

/// The later of two jobs of a name is meant, until nothing of it is left.
#[test]
fn a_removal_can_be_killed_around_every_write() {
    let (start, place) = (quiet_place(), quiet_place());
    let [older, meant] = ["one", "two"].map(|key| {
        let said = start.run(&["submit", "job.toml", "--idempotency-key", key, "--wait"]);
        assert_eq!(said.code, Some(0), "{}", said.stderr);
        said.stdout.trim().to_owned()
    });
    fs::remove_file(start.state().join("fake/calls.jsonl")).expect("calls");
    let jobs = || place.state().join("store/ftctl/v1/jobs");
    for named in ["proof", &meant] {
        let remove = ["rm", named, "-y"];
        take_over(&start, &place);
        assert!(run(&place, &remove).success());
        let writes: Vec<_> =
            calls(&place).into_iter().filter(|call| !matches!(&*call.name, "get" | "head" | "list" | "children")).collect();
        let names: Vec<&str> = writes.iter().map(|call| &*call.name).collect();
        assert_eq!(names, ["put", "put", "delete_job", "delete"], "the mark, the name, the rest, the record");
        let instants = writes.iter().flat_map(|call| [(call, When::Before), (call, When::After)]);
        // After the last write nothing is left to repeat.
        for (call, when) in instants.take(2 * writes.len() - 1) {
            take_over(&start, &place);
            rehearse(&place, Some(CrashAt { call: call.call, when }));
            assert_eq!(run(&place, &remove).signal(), Some(9), "{when:?} {call:?}");
            rehearse(&place, None);
            let said = place.run(&remove);
            assert_eq!(
                (said.code, said.stdout.trim()),
                (Some(0), &*format!("{meant}: removed")),
                "{when:?} {call:?}: {}",
                said.stderr
            );
            assert!(!jobs().join(&meant).exists() && !place.state().join("submitted").join(&meant).exists(), "{when:?} {call:?}");
            assert!(jobs().join(&older).join("checkpoints").exists(), "{when:?} {call:?}");
            assert_eq!(place.run(&["status", "proof", "-o", "name"]).stdout.trim(), older, "{when:?} {call:?}");
        }
    }
}

/// With the same settings and with others: the job is its submitter's all the time.
#[test]
fn a_job_that_goes_on_can_be_killed_around_the_writes_with_which_it_does() {
    let (start, place) = (quiet_place(), quiet_place());
    assert!(run(&start, SUBMIT).success() && run(&start, &["cancel", "proof", "--now"]).success());
    fs::remove_file(start.state().join("fake/calls.jsonl")).expect("calls");
    let resume = ["resume", "proof", "--ttl", "5h", "--wait"];
    take_over(&start, &place);
    assert!(run(&place, &resume).success());
    let writes: Vec<_> = calls(&place).into_iter().filter(|call| matches!(&*call.name, "put" | "delete")).collect();
    let record = writes.iter().position(|call| call.target.ends_with("record.json")).expect("its record is written");
    let last = writes.len() - 1;
    for call in writes[..record + 2].iter().chain(&writes[last..]) {
        for when in [When::Before, When::After] {
            take_over(&start, &place);
            rehearse(&place, Some(CrashAt { call: call.call, when }));
            assert_eq!(run(&place, &resume).signal(), Some(9), "{when:?} {call:?}");
            rehearse(&place, None);
            let killed = Sandbox::in_memory();
            killed.write_rehearsal("proof");
            take_over(&place, &killed);
            let said = place.run(&resume);
            assert_eq!(said.code, Some(0), "again, after {when:?} {call:?}: {}", said.stderr);
            if call.call < writes[record].call || (call.call == writes[record].call && when == When::Before) {
                let said = killed.run(&["resume", "proof", "--ttl", "6h", "--wait"]);
                assert_eq!(said.code, Some(0), "in another way, after {when:?} {call:?}: {}", said.stderr);
            }
        }
    }
}

#[test]
fn the_life_around_which_it_is_killed_has_a_stock_out_and_a_preemption() {
    let place = Sandbox::in_memory();
    place.write_rehearsal("proof");
    rehearse(&place, None);
    assert!(run(&place, UP).success() && run(&place, SUPERVISE).success());
    assert_eq!(cloud(&place).expect("a cloud").faults_used, [1]);
    let attempts = ["proof-*-a1", "proof-*-a2"].map(str::to_owned);
    let both = attempts.into_iter().flat_map(|name| [(EffectKind::MachineCreated, name.clone()), (EffectKind::AgentStarted, name)]);
    assert_eq!(created(&place), both.collect::<Vec<_>>());
}
