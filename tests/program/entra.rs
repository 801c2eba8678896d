//! Signing in with Entra ID, with every kind of identity that there is, on the emulator that looks at tokens. Ignored in a plain
//! `cargo test`: `tests/run` installs the emulator.

use std::{
    env, fs,
    process::Command,
    sync::{Arc, Mutex},
    time::Instant,
};

use crate::common::{
    Said, Sandbox,
    entra::{Entra, HOUR, Kind, Life, token_mark},
    secrets::{self, MARK},
};

use ftctl::{
    job::{
        id::{JobId, path},
        report::{Report, Unit},
    },
    store::{Condition, Limits, Store as _, WordOf, azure},
};
use jiff::{SignedDuration, Timestamp};

fn run(sandbox: &Sandbox, store: &str, kind: &Kind, arguments: &[&str]) -> Said {
    let mut command = sandbox.command(arguments);
    command.env("FTCTL_STORE", store).envs(kind.variables.iter().map(|(name, value)| (name, value)));
    let said = Sandbox::said(&mut command);
    has_no_secret(&format!("{}: {arguments:?}", kind.name), &said);
    said
}

fn has_no_secret(what: &str, said: &Said) {
    for text in [&said.stdout, &said.stderr] {
        secrets::assert_none(what, text, &[MARK, &token_mark()]);
    }
}

#[test]
#[ignore = "needs Azurite: tests/run installs it"]
fn azurite_is_entered_with_every_kind_of_identity() {
    let entra = Entra::start(HOUR);
    let azurite = entra.azurite();
    let store = azurite.container();
    for kind in entra.kinds() {
        let sandbox = Sandbox::new();
        sandbox.write_rehearsal("signed-in");
        fs::write(sandbox.path("data/train.bin"), kind.name).expect("written");
        entra.take_asked();
        for arguments in [&["upload", "data", "--verify", "--debug-http"][..], &["upload", "data", "-o", "json"]] {
            let said = run(&sandbox, &store, &kind, arguments);
            assert_eq!(said.code, Some(0), "{}: {}", kind.name, said.stderr);
        }
        let asked = entra.take_asked();
        assert!(kind.asked == "az" || asked.iter().any(|asked| asked == kind.asked), "{}: {asked:?}", kind.name);
        assert!(asked.len() <= 4, "one token serves a whole command: {asked:?}");
        let doctor = run(&sandbox, &store, &kind, &["doctor", "-o", "json"]).stdout;
        assert!(doctor.contains(kind.name), "{}: {doctor}", kind.name);
        secrets::assert_none_below(&sandbox.home(), &[MARK, &token_mark()]);
    }
}

#[test]
#[ignore = "needs Azurite: tests/run installs it"]
fn azurite_refuses_who_cannot_prove_themselves() {
    let entra = Entra::start(HOUR);
    let azurite = entra.azurite();
    let sandbox = Sandbox::new();
    sandbox.write_rehearsal("refused");
    let mut kind = entra.kinds().swap_remove(0);
    kind.variables.push(("AZURE_CLIENT_SECRET", format!("wrong-{MARK}")));
    let said = run(&sandbox, &azurite.container(), &kind, &["upload", "data", "--debug-http"]);
    assert_eq!(said.code, Some(4), "{}", said.stderr);
    assert!(said.stderr.contains("Invalid client secret") && said.stderr.contains("ftctl doctor"), "{}", said.stderr);
    assert_eq!(entra.take_asked(), ["refused"], "asking again would not help");
    // A token that is no good is refused by the service itself.
    let stale = Entra::start(Life { told: 3_600, real: 0 });
    let azurite = stale.azurite();
    let kind = stale.kinds().swap_remove(0);
    let said = run(&sandbox, &azurite.container(), &kind, &["upload", "data"]);
    assert_eq!(said.code, Some(4), "{}", said.stderr);
}

/// The client is told that tokens are good for 302 s, so that it takes another after 2; the service refuses each after 6.
#[test]
#[ignore = "needs Azurite: tests/run installs it"]
fn azurite_is_sent_files_for_longer_than_a_token_is_good_for() {
    let entra = Entra::start(Life { told: 302, real: 6 });
    let azurite = entra.azurite();
    let sandbox = Sandbox::new();
    let bytes: Vec<u8> = (0..2_500_000_u32).flat_map(u32::to_le_bytes).collect();
    sandbox.write("large", bytes);
    let kind = entra.kinds().swap_remove(0);
    let begun = Instant::now();
    let said = run(&sandbox, &azurite.container(), &kind, &["upload", "large", "--cap-mbps", "8", "--jobs", "2", "--verify"]);
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    assert!(begun.elapsed().as_secs() >= 8, "the token expired meanwhile");
    assert!(entra.take_asked().len() >= 3);
}

/// In a process of its own, whose environment has the identity.
#[test]
#[ignore = "needs Azurite: tests/run installs it"]
fn azurite_deletes_many_in_one_request_for_an_identity_and_takes_its_signature() {
    const STORE: &str = "FT_STORE_OF_IDENTITY";
    if let Ok(store) = env::var(STORE) {
        sign(&store);
        return delete_many(&store);
    }
    let entra = Entra::start(HOUR);
    let azurite = entra.azurite();
    let mut child = Command::new(env::current_exe().expect("a program"));
    child.args(["--exact", "entra::azurite_deletes_many_in_one_request_for_an_identity_and_takes_its_signature", "--ignored"]);
    let said = child.envs(entra.kinds().swap_remove(0).variables).env(STORE, azurite.container()).output().expect("it runs");
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stdout));
}

struct Told(Mutex<Vec<String>>);

impl Report for Told {
    fn stage(&self, _: usize, _: usize, _: &str) {}
    fn line(&self, text: &str) {
        self.0.lock().expect("not poisoned").push(text.to_owned());
    }
    fn warn(&self, _: &str) {}
    fn progress(&self, _: &str, _: u64, _: Option<u64>, _: Unit) {}
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

/// Prints the credentials that an agent gets in the place of the identity.
fn sign(url: &str) {
    let store = azure::open(url, &|name| env::var(name).ok(), Limits::default(), WordOf::User).expect("a store");
    runtime().block_on(async {
        store.put("signed", "x".into(), Condition::Always).await.expect("written");
        let job = JobId::derive("signed", "1");
        let given = store.agent_environment(&job, Timestamp::now() + SignedDuration::from_mins(5)).await.expect("signatures");
        let variable = |name: &str| given.iter().find(|(set, _)| *set == name)?.1.clone();
        let signed = azure::open(url, &variable, Limits::default(), WordOf::Another).expect("a store");
        assert_eq!(signed.get("signed").await.expect("read").bytes, "x");
        signed.delete("signed").await.expect_err("it only reads there");
        let own = path::attempt_lease(&job);
        signed.put(&own, "x".into(), Condition::Always).await.expect("written");
        assert_eq!(store.get(&own).await.expect("read").bytes, "x");
        signed.delete(&own).await.expect("deleted");
        store.delete_job(&job).await.expect("deleted, with its container");
        store.delete("signed").await.expect("deleted");
    });
}

fn delete_many(url: &str) {
    let told = Arc::new(Told(Mutex::default()));
    ftctl::transit::tell_requests(Arc::clone(&told) as _);
    let store = azure::open(url, &|name| env::var(name).ok(), Limits::default(), WordOf::User).expect("a store");
    runtime().block_on(async {
        let paths: Vec<String> = (0..20).map(|number| format!("gone/{number}")).collect();
        for path in &paths {
            store.put(path, "x".into(), Condition::Always).await.expect("written");
        }
        told.0.lock().expect("not poisoned").clear();
        store.delete_all(&paths).await.expect("deleted");
        assert_eq!(store.list("").await.expect("a list"), []);
    });
    let told = told.0.lock().expect("not poisoned");
    assert_eq!(told.len(), 3, "{told:#?}");
    assert!(told[1].contains("comp=batch") && told[1].contains(": 202 "), "{told:#?}");
}
