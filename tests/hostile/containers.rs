//! An intruder on a machine has its agent's signatures and uses them with the program itself.

use std::{process::Command, sync::Arc};

use ftctl::{
    job::id::{JobId, path},
    store::{Limits, Meta, Store, WordOf, azure},
};
use jiff::{SignedDuration, Timestamp};
use serde_json::json;

use crate::common::{Runs, Said, Sandbox, azurite};

/// A sandbox with a store and credentials for it.
struct Place {
    sandbox: Sandbox,
    variables: Vec<(&'static str, String)>,
}

impl Place {
    fn new(store: &str, variables: Vec<(&'static str, String)>) -> Self {
        let variables = [vec![("FTCTL_STORE", store.to_owned())], variables].concat();
        let place = Self { sandbox: Sandbox::new(), variables };
        place.sandbox.write_rehearsal("far");
        place.sandbox.script(&json!({ "job": { "staging": "1s", "duration": "2s" } }));
        place
    }

    fn with_key(store: &str) -> Self {
        Self::new(store, vec![("AZURE_STORAGE_KEY", azurite::KEY.to_owned())])
    }

    fn with_signature(store: &str) -> Self {
        Self::new(store, vec![("AZURE_STORAGE_SAS_TOKEN", azurite::signature(store, "racwdl"))])
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.sandbox.command(arguments);
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        command
    }
}

impl Runs for Place {
    fn run(&self, arguments: &[&str]) -> Said {
        Sandbox::said(&mut self.command(arguments))
    }
}

fn in_store<T>(url: &str, work: impl AsyncFnOnce(Arc<dyn Store>) -> T) -> T {
    let key = |name: &str| (name == "AZURE_STORAGE_KEY").then(|| azurite::KEY.to_owned());
    let store: Arc<dyn Store> = Arc::new(azure::open(url, &key, Limits::default(), WordOf::User).unwrap());
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work(store))
}

fn everything(url: &str) -> Vec<Meta> {
    in_store(url, async |store| store.list("").await.unwrap())
}

/// The environment that an agent of `job` is given.
fn stolen(url: &str, job: &JobId) -> Vec<(&'static str, String)> {
    let until = Timestamp::now() + SignedDuration::from_hours(1);
    let given = in_store(url, async |store| store.agent_environment(job, until).await.unwrap());
    given.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
}

fn id_of(place: &Place, name: &str) -> JobId {
    JobId::parse(place.json(&["status", name])["id"].as_str().unwrap()).unwrap()
}

const EVERYTHING: &str = "to other jobs, names and datasets, too";

#[test]
#[ignore = "needs Azurite: tests/run installs it"]
fn azurite_stolen_signatures_of_a_machine_change_nothing_with_any_verb() {
    let azurite = azurite::start();
    let url = azurite.container();
    let user = Place::with_key(&url);
    user.ok(&["submit", "job.toml", "--wait"]);
    let before = everything(&url);
    let thief = Place::new(&url, stolen(&url, &id_of(&user, "far")));
    thief.sandbox.write("data/train.bin", "poison");
    for arguments in [
        &["submit", "job.toml", "--wait"][..],
        &["upload", "data"],
        &["upload", "data", "--name", "texts"],
        &["cancel", "far"],
        &["down", "far", "-y"],
        &["prune", "--data", "-y"],
        &["status"],
    ] {
        let said = thief.run(arguments);
        assert!(said.code != Some(0) || arguments[0] == "down" || arguments[0] == "cancel", "{arguments:?}: {}", said.stdout);
        assert_eq!(everything(&url), before, "{arguments:?}: {}", said.stderr);
    }
    // A broken machine has the job itself: its own results.
    assert!(thief.ok(&["logs", "far"]).contains("step 10/10"));
}

#[test]
#[ignore = "needs Azurite: tests/run installs it"]
fn azurite_job_with_a_container_is_not_taken_for_silent_by_who_cannot_see_it() {
    let azurite = azurite::start();
    let url = azurite.container();
    let (owner, colleague) = (Place::with_key(&url), Place::with_signature(&url));
    owner.ok(&["submit", "job.toml", "--wait"]);
    let own = id_of(&owner, "far");
    for arguments in [&["logs", "far"][..], &["download", "far", "--to", "model"]] {
        let said = colleague.run(arguments);
        assert_eq!(said.code, Some(4), "{arguments:?}: {}", said.stderr);
        assert!(said.stderr.contains("the container ft-") && said.stderr.contains(own.as_str()), "{}", said.stderr);
    }
    // A job that began in the store's container stays there, for every driver.
    colleague.sandbox.write_rehearsal("near");
    colleague.ok(&["submit", "job.toml", "--wait"]);
    let log = colleague.ok(&["logs", "near"]);
    assert!(log.contains("step 10/10") && owner.ok(&["logs", "near"]) == log);
    owner.ok(&["download", "near", "--to", "model"]);
    let near = id_of(&colleague, "near");
    assert!(everything(&url).iter().all(|meta| meta.path != path::container(&near)));
}

#[test]
#[ignore = "needs Azurite: tests/run installs it"]
fn azurite_plan_and_doctor_say_what_a_broken_machine_could_reach() {
    let azurite = azurite::start();
    let url = azurite.container();
    let (owner, colleague) = (Place::with_key(&url), Place::with_signature(&url));
    assert!(!owner.ok(&["plan", "job.toml"]).contains("exposure"));
    assert!(colleague.ok(&["plan", "job.toml"]).contains(EVERYTHING));
    for (place, told) in [(&owner, false), (&colleague, true)] {
        let findings = place.run(&["doctor", "-o", "json"]).stdout;
        assert_eq!(findings.contains(EVERYTHING), told, "{findings}");
    }
}

#[test]
fn plan_and_doctor_say_that_a_directory_is_in_the_reach_of_every_machine() {
    let place = Place::new("here", Vec::new());
    for said in [place.ok(&["plan", "job.toml"]), place.run(&["doctor", "-o", "json"]).stdout] {
        assert!(said.contains("could read, change and delete all of it"), "{said}");
    }
    // A job of this machine has the rights of its user anyway.
    let said = place.run(&["doctor", "--backend", "local", "-o", "json"]).stdout;
    assert!(said.contains("backend and store") && !said.contains("exposure"), "{said}");
}
