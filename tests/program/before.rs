//! A store that an earlier ftctl left (`tests/before`): a job whose agent was killed in the middle, its checkpoint and its dataset,
//! and a debt. Everything in it is still read.

use std::{fs, path::Path};

use ftctl::{
    job::{
        id::{JobId, path},
        order::RunOrder,
    },
    store::{Store as _, directory::DirectoryStore, lease},
};

use crate::common::{Runs, Said, Sandbox};

const ID: &str = "before-sxmrzy";
const OWING: &str = "owing-bmkjfw";

/// A place whose embedded store is the one of before.
struct Before(Sandbox);

impl Before {
    fn new() -> Self {
        let sandbox = Sandbox::new();
        copy(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/before"), &sandbox.state().join("store"));
        Self(sandbox)
    }
}

impl Runs for Before {
    fn run(&self, arguments: &[&str]) -> Said {
        self.0.run(arguments)
    }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a directory");
    for entry in fs::read_dir(from).expect("a directory").flatten() {
        let target = to.join(entry.file_name());
        if entry.path().is_dir() { copy(&entry.path(), &target) } else { fs::copy(entry.path(), target).map(drop).expect("a copy") }
    }
}

#[test]
fn a_job_of_before_is_shown_and_its_checkpoint_fetched() {
    let before = Before::new();
    let status = before.json(&["status", "before"]);
    assert!(status["id"] == ID && status["state"] == "running" && status["attempt"] == 1 && status["step"] == 20, "{status}");
    assert!(before.ok(&["explain", ID]).contains("there is no sign of attempt 1's machine since"));
    assert_eq!(before.json(&["bill", ID])["attempts"][0]["price_per_hour"], "0USD");
    before.ok(&["download", ID, "--checkpoint", "20", "--to", "model"]);
    assert_eq!(fs::metadata(before.0.path("model/model.safetensors")).expect("weights").len(), 6_784);
}

#[tokio::test]
async fn an_order_and_leases_of_before_are_read() {
    let before = Before::new();
    let (store, id) = (DirectoryStore::open(&before.0.state().join("store")).expect("a store"), JobId::parse(ID).expect("an id"));
    let order = store.get(&path::order(&id)).await.expect("an order");
    let order: RunOrder = serde_json::from_slice(&order.bytes).expect("an order");
    assert_eq!((order.check(), order.attempt, order.job == id), (Ok(()), 1, true));
    let holder = lease::holder(&store, &path::attempt_lease(&id)).await.expect("a lease").expect("a holder");
    assert_eq!(holder.attempt, 1);
    assert_eq!(lease::holder(&store, &path::supervisor_lease(&id)).await.expect("a lease"), None);
}

#[test]
fn a_dataset_of_before_is_found_by_its_name() {
    let before = Before::new();
    before.0.write_rehearsal("now");
    before.ok(&["submit", "job.toml", "--wait", "--set", "dataset=@texts"]);
}

#[test]
fn a_debt_of_before_is_paid_for_those_who_may_drive_its_job() {
    let before = Before::new();
    let said = before.run(&["status"]);
    assert!(
        said.stderr.contains(&format!("machines of {OWING} are left")) && said.stderr.contains("another user"),
        "{}",
        said.stderr
    );
    let said = Sandbox::said(before.0.command(&["status"]).env("FTCTL_ADOPT", "1"));
    assert!(said.stderr.contains(&format!("the machines of {OWING}, which could not be destroyed")), "{}", said.stderr);
    assert_eq!(before.json(&["status", "owing"])["state"], "cancelled");
}
