//! Machines of others in one project, with users who have stores of their own, and records and debts that name others' machines.

use std::path::PathBuf;

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::{
    common::{Runs, Said, Sandbox},
    project::{IMAGE, Project},
};

impl Project {
    fn user<'p>(&'p self, name: &'p str) -> User<'p> {
        let sandbox = Sandbox::new();
        sandbox.write_rehearsal("quick");
        sandbox.write_dataset();
        User { project: self, name, sandbox, store: None }
    }
}

/// A user with a laptop of their own.
struct User<'p> {
    project: &'p Project,
    name: &'p str,
    sandbox: Sandbox,
    /// Another one than their own.
    store: Option<PathBuf>,
}

impl User<'_> {
    /// A machine that waits for its order, and the job's id.
    fn up(&self, further: &[&str]) -> String {
        self.ok(&[&["up", "job.toml"][..], &IMAGE, further].concat()).trim().to_owned()
    }

    fn store(&self) -> PathBuf {
        self.store.clone().unwrap_or_else(|| self.sandbox.state().join("store"))
    }
}

impl Runs for User<'_> {
    fn run(&self, arguments: &[&str]) -> Said {
        let mut command = self.sandbox.command(arguments);
        command.envs(self.project.variables.iter().cloned()).env("FTCTL_BACKEND", "gce").env("USER", self.name);
        Sandbox::said(command.envs(self.store.iter().map(|store| ("FTCTL_STORE", store))))
    }
}

#[test]
fn prune_and_a_general_down_leave_colleagues_alone() {
    let project = Project::new(&json!({ "boot": "1h" }));
    let (alice, bob) = (project.user("alice"), project.user("bob"));
    let carol = User { store: Some(alice.store()), ..project.user("carol") };
    let job = alice.up(&[]);
    let machine = format!("{job}-a1");
    for (stranger, why) in [(&bob, "its job is in the store "), (&carol, "its owner is ")] {
        for verb in [&["prune", "-y"][..], &["prune", "--expired", "-y"], &["down", "--all", "-y"]] {
            let said = stranger.run(verb);
            assert_eq!(said.code, Some(0), "{verb:?}: {}", said.stderr);
            assert!(said.stderr.contains(&format!("{machine} is left alone")) && said.stderr.contains(why), "{}", said.stderr);
            assert_eq!(project.machines(), [machine.as_str()], "{}: {verb:?}", stranger.name);
        }
        assert_eq!(
            stranger.json(&["status", "--all"])["jobs"].as_array().map(Vec::len),
            Some(usize::from(stranger.name == "carol"))
        );
    }
    // Its id alone is no key to it either.
    let said = bob.run(&["down", &job, "-y"]);
    assert!(said.code == Some(12) && said.stderr.contains("its job is in the store"), "{}", said.stderr);

    // A user who means everybody is shown the owners, and asked.
    let said = bob.run(&["down", "--all", "--everybody"]);
    assert_eq!(said.code, Some(2), "{}", said.stderr);
    for part in
        ["MACHINE", "OWNER", "STORE", "AGE", "BACKEND", &format!("{machine} is not of this user and this store"), &job, "gce"]
    {
        assert!(said.stderr.contains(part), "{part}: {}", said.stderr);
    }
    let found = bob.json(&["prune", "--everybody", "--dry-run"])["leftovers"][0]["resource"].clone();
    assert_eq!((&found["name"], &found["whose"]), (&json!(machine), &json!("other_store")));
    assert!([&found["owner"], &found["store"]].iter().all(|label| label.as_str().is_some_and(|label| label.len() == 8)), "{found}");
    assert_eq!(project.machines(), [machine.as_str()]);

    let gone = bob.json(&["down", "--all", "--everybody", "-y"]);
    assert_eq!(
        (&gone["gone"][0], &gone["machines"][0]["name"], &gone["machines"][0]["backend"]),
        (&json!(job), &json!(machine), &json!("gce"))
    );
    assert_eq!(project.machines(), [""; 0]);
    alice.ok(&["down", &job, "-y"]);

    // One's own machines need no such flag.
    let job = alice.up(&[]);
    assert!(alice.ok(&["down", "--all", "-y"]).contains(&job));
    assert_eq!(project.machines(), [""; 0]);
}

#[test]
fn no_verb_touches_a_machine_that_a_list_should_not_have_shown() {
    let project = Project::new(&json!({ "boot": "1h", "ignores_filters": true }));
    let (alice, bob) = (project.user("alice"), project.user("bob"));
    project.make("prod-database");
    let theirs = format!("{}-a1", bob.up(&[]));
    let job = alice.up(&[]);
    alice.ok(&["status", &job, "--refresh"]);
    alice.ok(&["down", &job, "-y"]);
    alice.up(&[]);
    alice.ok(&["prune", "-y"]);
    alice.ok(&["down", "--all", "-y"]);
    assert_eq!(project.machines(), ["prod-database", theirs.as_str()]);
    for call in project.ask("GET", "devcloud/calls", &Value::Null).as_array().unwrap() {
        let changes =
            !["get", "list", "aggregatedList", "insert"].iter().any(|verb| call["call"].as_str().unwrap().ends_with(verb));
        assert!(!changes || call["name"] != "prod-database", "{call}");
    }
}

#[test]
fn a_debt_or_a_record_of_another_store_ends_nothing() {
    let project = Project::new(&json!({ "boot": "1h" }));
    let (alice, mallory) = (project.user("alice"), project.user("mallory"));
    let job = alice.up(&[]);
    let machines = project.machines();
    // Mallory may write to his own store what he likes, and has bob look into it.
    let store = mallory.store().join("ftctl/v1");
    std::fs::create_dir_all(store.join("debts")).unwrap();
    let debt = json!({ "schema": "ftctl.debt/1", "id": job, "since": "2026-01-01T00:00:00Z", "why": "x" });
    std::fs::write(store.join(format!("debts/{job}.json")), debt.to_string()).unwrap();
    for verb in [&["status"][..], &["bill"], &["doctor"], &["logs", "nothere"]] {
        mallory.run(verb);
        assert_eq!(project.machines(), machines, "{verb:?}");
    }
    // A copy of the record is no claim either.
    let record = alice.store().join(format!("ftctl/v1/jobs/{job}/record.json"));
    std::fs::create_dir_all(store.join(format!("jobs/{job}"))).unwrap();
    std::fs::copy(record, store.join(format!("jobs/{job}/record.json"))).unwrap();
    for verb in [&["down", &job, "-y"][..], &["cancel", &job], &["prune", "-y"], &["down", "--all", "-y"]] {
        mallory.run(verb);
        assert_eq!(project.machines(), machines, "{verb:?}");
    }
}

/// The id that an older ftctl derived.
fn older_id(name: &str, key: &str) -> String {
    const ALPHABET: &[u8; 28] = b"bcdfghjkmnpqrstvwxyz23456789";
    let digest = Sha256::digest(format!("{name}\0key {key}"));
    let suffix: String = digest.iter().take(6).map(|byte| char::from(ALPHABET[usize::from(*byte) % 28])).collect();
    format!("{name}-{suffix}")
}

#[test]
fn one_key_in_two_stores_means_two_jobs_and_an_older_one_finds_its_own() {
    let sandbox = Sandbox::new();
    sandbox.write_rehearsal("build");
    sandbox.write_dataset();
    let submit = |store: &str, further: &[&str]| {
        let said = sandbox.run(&[&["submit", "job.toml", "--wait", "--store", store][..], further].concat());
        assert_eq!(said.code, Some(0), "{}", said.stderr);
        said.stdout.trim().to_owned()
    };
    let key = ["--idempotency-key", "42"];
    let (one, other) = (submit("one", &key), submit("other", &key));
    assert_ne!(one, other);
    assert_eq!(submit("one", &key), one, "the same key in the same store is the same job");

    // The job of an older ftctl, whose name has another by now.
    let older = older_id("build", "42");
    assert!(older != one && older != other);
    let jobs = sandbox.path("one/ftctl/v1/jobs");
    std::fs::rename(jobs.join(&one), jobs.join(&older)).unwrap();
    let record = jobs.join(&older).join("record.json");
    let text = std::fs::read_to_string(&record).unwrap().replace(&one, &older);
    std::fs::write(&record, text).unwrap();
    // The proof on this computer that the job was submitted here.
    let _ = std::fs::rename(sandbox.state().join("submitted").join(&one), sandbox.state().join("submitted").join(&older));
    let name = sandbox.path("one/ftctl/v1/names/build.json");
    std::fs::write(&name, std::fs::read_to_string(&name).unwrap().replace(&one, &older)).unwrap();
    let newer = submit("one", &[]);
    assert!(newer != older && newer != one);
    assert_eq!(submit("one", &key), older);
}

#[test]
fn what_expired_by_a_clock_that_is_not_ours_is_told_and_not_ended() {
    let project = Project::new(&json!({ "boot": "10h" }));
    let alice = project.user("alice");
    // Of the kind that the cloud itself does not end.
    let job = alice.up(&["--set", "compute.gce.legacy_preemptible=true", "--ttl", "1h"]);
    let machines = project.machines();
    assert!(alice.ok(&["prune", "--expired", "-y"]).ends_with("0 destroyed\n"), "its time is not over");
    project.ask("POST", "devcloud/skip?seconds=7200", &Value::Null);
    for verb in [&["prune", "--expired", "-y"][..], &["prune", "-y"]] {
        let said = alice.run(verb);
        assert!(said.code == Some(0) && said.stdout.ends_with("0 destroyed\n"), "{}{}", said.stdout, said.stderr);
        assert!(said.stderr.contains("correct this machine's clock") && said.stderr.contains(&job), "{}", said.stderr);
        assert_eq!(project.machines(), machines);
    }
    // A job that is over needs no machine, whatever time it is.
    std::fs::remove_dir_all(alice.store().join("ftctl/v1/jobs")).unwrap();
    assert!(alice.ok(&["prune", "--expired", "-y"]).ends_with("1 destroyed\n"));
    assert_eq!(project.machines(), [""; 0]);
}
