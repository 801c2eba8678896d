//! The program with its store in a blob container. Ignored in a plain `cargo test`: `tests/run` installs the emulator.

mod common;

use std::{
    fs,
    io::Write as _,
    path::Path,
    process::{Command, Stdio},
    sync::Arc,
    thread,
    time::Duration,
};

use common::{
    Said, Sandbox,
    azurite::{self, Azurite},
    proxy::Proxy,
};
use ftctl::store::{Limits, Store as _, azure};
use serde_json::{Value, json};

/// A sandbox whose every command uses the same store.
struct Place {
    sandbox: Sandbox,
    store: String,
}

impl Place {
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.sandbox.command(arguments);
        command.env("FTCTL_STORE", &self.store).env("AZURE_STORAGE_KEY", azurite::KEY);
        command
    }

    fn run(&self, arguments: &[&str]) -> Said {
        let said = Sandbox::said(&mut self.command(arguments));
        for text in [&said.stdout, &said.stderr] {
            assert!(!text.contains(azurite::KEY) && !text.contains("sig="), "{arguments:?} shows a secret: {text}");
        }
        said
    }

    fn ok(&self, arguments: &[&str]) -> String {
        let said = self.run(arguments);
        assert_eq!(said.code, Some(0), "{arguments:?}: {}", said.stderr);
        said.stdout
    }

    fn json(&self, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.ok(&[arguments, &["-o", "json"]].concat())).expect("one JSON value")
    }
}

fn place(store: &str) -> Place {
    Place { sandbox: Sandbox::new(), store: store.to_owned() }
}

/// Every file below `directory`.
fn tree(directory: &Path) -> Vec<(String, Vec<u8>)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).expect("a directory").flatten() {
        let name = entry.file_name().into_string().expect("UTF-8");
        if entry.path().is_dir() {
            found.extend(tree(&entry.path()).into_iter().map(|(inner, bytes)| (format!("{name}/{inner}"), bytes)));
        } else {
            found.push((name, fs::read(entry.path()).expect("a file")));
        }
    }
    found.sort();
    found
}

/// Every object of a container.
fn stored(url: &str) -> Vec<(String, Vec<u8>)> {
    let key = |name: &str| (name == "AZURE_STORAGE_KEY").then(|| azurite::KEY.to_owned());
    let store = azure::open(url, &key, Limits::default()).expect("a store");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let mut found = Vec::new();
        for meta in store.list("").await.expect("a list") {
            let object = store.get(&meta.path).await.expect("an object");
            found.push((meta.path, object.bytes.to_vec()));
        }
        assert!(found.len() > 5, "the store holds the job");
        found
    })
}

/// A job with a preemption in it, and what a user then sees of it; without what differs from run to run.
fn life(place: &Place) -> Value {
    place.sandbox.write_rehearsal("far");
    place.sandbox.script(&json!({
        "job": { "staging": "1s", "duration": "2s" },
        "preemptions": [{ "attempt": 1, "after": "2s" }],
    }));
    place.ok(&["submit", "job.toml", "--idempotency-key", "one", "--wait"]);
    let mut status = place.json(&["status", "far"]);
    let to = place.sandbox.path("model");
    place.ok(&["download", "far", "--to", "model"]);
    for changing in ["created", "updated", "started", "finished", "cost", "seconds", "age", "elapsed", "rate", "ran_seconds"] {
        status.as_object_mut().expect("an object").remove(changing);
    }
    json!({
        "status": status,
        "logs": place.ok(&["logs", "far"]),
        "tail": place.ok(&["logs", "far", "--tail", "2"]),
        "model": tree(&to).iter().map(|(name, bytes)| json!([name, bytes])).collect::<Vec<_>>(),
        "sweep": place.json(&["sweep", "--dry-run"]),
    })
}

#[test]
#[ignore = "needs Azurite: tests/run installs it"]
fn azurite_holds_a_job_as_a_directory_does() {
    let azurite: Arc<Azurite> = azurite::start();
    let near = place("here");
    let far = place(&azurite.container());
    let seen = life(&far);
    assert_eq!(seen, life(&near));
    assert!(seen["logs"].as_str().is_some_and(|logs| logs.contains("step 10/10")), "{seen}");
    for (name, bytes) in tree(&far.sandbox.home()).into_iter().chain(stored(&far.store)) {
        let text = String::from_utf8_lossy(&bytes);
        assert!(!text.contains(azurite::KEY) && !text.contains("sig="), "{name} has a secret");
    }
    // Another machine needs nothing but the store.
    let other = place(&far.store);
    assert_eq!(other.ok(&["logs", "far", "--tail", "2"]), seen["tail"]);
}

#[test]
#[ignore = "needs Azurite: tests/run installs it"]
fn azurite_that_refuses_or_is_away_has_its_exit_codes() {
    let azurite = azurite::start();
    let far = place(&azurite.container());
    let with = |name: &str, value: &str, arguments: &[&str]| {
        Sandbox::said(far.sandbox.command(arguments).env("FTCTL_STORE", &far.store).env(name, value))
    };
    far.sandbox.write_rehearsal("refused");
    far.ok(&["upload", "data"]);
    let wrong = with("AZURE_STORAGE_KEY", "d3Jvbmc=", &["upload", "data"]);
    assert_eq!(wrong.code, Some(4), "{}", wrong.stderr);
    assert!(wrong.stderr.contains("ftctl doctor"), "{}", wrong.stderr);
    let none = with("NOTHING", "", &["status"]);
    assert_eq!(none.code, Some(2), "{}", none.stderr);
    assert!(none.stderr.contains("no way to sign in"), "{}", none.stderr);
    let doctor = far.run(&["doctor", "-o", "json"]).stdout;
    assert!(doctor.contains("account key (from AZURE_STORAGE_KEY); the first that is ready of: connection string, "), "{doctor}");
    let absent = far.run(&["logs", "nobody"]);
    assert_eq!(absent.code, Some(3), "{}", absent.stderr);
    let empty = place(&azurite.container());
    assert_eq!(empty.json(&["status"])["jobs"], json!([]), "a container that does not exist is an empty store");
}

const MIB: u64 = 1 << 20;

#[test]
#[ignore = "needs Azurite: tests/run installs it"]
fn azurite_is_sent_little_twice_however_often_an_upload_is_killed() {
    let azurite = azurite::start();
    let line = Proxy::start(azurite.port, u64::MAX);
    let far = place(&azurite.container().replace(&azurite.port.to_string(), &line.port.to_string()));
    let (size, step, kills) = (192 * MIB, 80 * MIB, 3);
    let mut file = fs::File::create(far.sandbox.path("large")).expect("a file");
    for number in 0..size / MIB {
        file.write_all(&vec![number as u8; 1 << 20]).expect("written");
    }
    for _ in 0..kills {
        let before = line.sent();
        let mut upload = far.command(&["upload", "large"]);
        let mut upload = upload.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("ftctl runs");
        while line.sent() < before + step && upload.try_wait().expect("waited").is_none() {
            thread::sleep(Duration::from_millis(2));
        }
        upload.kill().expect("killed");
        upload.wait().expect("waited");
    }
    far.ok(&["upload", "large", "--verify"]);
    // What was on its way when it was killed: the memory that all blocks share.
    let sent = line.sent();
    assert!(sent <= size + kills * 64 * MIB, "{} MiB were sent for {} MiB", sent / MIB, size / MIB);
    far.ok(&["upload", "large"]);
    assert!(line.sent() < sent + MIB, "what is there was sent again");
}
