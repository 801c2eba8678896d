//! The program with its store in a blob container. Ignored in a plain `cargo test`: `tests/run` installs the emulator.

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    net::TcpListener,
    path::Path,
    process::{Command, Stdio},
    sync::Arc,
    thread,
    time::Duration,
};

use crate::{
    common::{
        Runs, Said, Sandbox,
        azurite::{self, Azurite},
        proxy::Proxy,
        secrets::{self, CommandLines},
    },
    terminal::{self, Environment},
};
use ftctl::{
    job::report::Silent,
    store::{Condition, Limits, Store, WordOf, azure, dataset},
};
use serde_json::{Value, json};

/// The secrets that nothing written may hold: the key, and signatures.
const SECRETS: &[&str] = &[azurite::KEY, "sig="];

/// A sandbox whose every command uses the same store.
struct Place {
    sandbox: Sandbox,
    store: String,
    /// A variable.
    sign_in: (&'static str, String),
}

impl Place {
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.sandbox.command(arguments);
        command.env("FTCTL_STORE", &self.store).env(self.sign_in.0, &self.sign_in.1);
        command
    }
}

impl Runs for Place {
    fn run(&self, arguments: &[&str]) -> Said {
        let said = Sandbox::said(&mut self.command(arguments));
        for text in [&said.stdout, &said.stderr] {
            secrets::assert_none(&format!("{arguments:?}"), text, SECRETS);
        }
        said
    }
}

/// Whatever its commands wrote.
impl Drop for Place {
    fn drop(&mut self) {
        if !thread::panicking() {
            for folder in [self.sandbox.home(), self.sandbox.path("")] {
                secrets::assert_none_below(&folder, SECRETS);
            }
        }
    }
}

fn place(store: &str) -> Place {
    Place { sandbox: Sandbox::new(), store: store.to_owned(), sign_in: ("AZURE_STORAGE_KEY", azurite::KEY.to_owned()) }
}

/// The same store behind a line.
fn behind(line: &Proxy, azurite: &Azurite) -> Place {
    place(&azurite.container().replace(&azurite.port.to_string(), &line.port.to_string()))
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

/// A job with a preemption in it, as a user then sees it; without values that differ from run to run, or from store to store as its
/// id does.
fn life(place: &Place) -> Value {
    place.sandbox.write_rehearsal("far");
    place.sandbox.script(&json!({
        "job": { "staging": "1s", "duration": "2s" },
        "preemptions": [{ "attempt": 1, "after": "2s" }],
    }));
    let id = place.ok(&["submit", "job.toml", "--idempotency-key", "one", "--wait"]);
    let mut status = place.json(&["status", "far"]);
    let to = place.sandbox.path("model");
    place.ok(&["download", "far", "--to", "model"]);
    for changing in ["created", "updated", "started", "finished", "cost", "seconds", "age", "elapsed", "rate", "ran_seconds"] {
        status.as_object_mut().expect("an object").remove(changing);
    }
    let seen = json!({
        "status": status,
        "logs": place.ok(&["logs", "far"]),
        "tail": place.ok(&["logs", "far", "--tail", "2"]),
        "model": tree(&to).iter().map(|(name, bytes)| json!([name, String::from_utf8_lossy(bytes)])).collect::<Vec<_>>(),
        "prune": place.json(&["prune", "--dry-run"]),
    });
    serde_json::from_str(&seen.to_string().replace(id.trim(), "far-id")).expect("still JSON")
}

#[test]
#[ignore = "needs Azurite: tests/run installs it"]
fn azurite_holds_a_job_as_a_directory_does() {
    let azurite: Arc<Azurite> = azurite::start();
    let _lines = CommandLines::watch(SECRETS);
    let near = place("here");
    let far = place(&azurite.container());
    let seen = life(&far);
    assert_eq!(seen, life(&near));
    assert!(seen["logs"].as_str().is_some_and(|logs| logs.contains("step 10/10")), "{seen}");
    assert!(in_store(&far.store, async |store| store.list("").await.expect("a list")).len() > 5, "the store holds the job");
    // Another machine needs nothing but the store.
    let other = place(&far.store);
    assert_eq!(other.ok(&["logs", "far", "--tail", "2"]), seen["tail"]);
}

#[test]
#[ignore = "needs Azurite: tests/run installs it"]
fn azurite_requests_are_told_without_what_is_secret() {
    let azurite = azurite::start();
    let far = place(&azurite.container());
    far.sandbox.write_rehearsal("told");
    let talk = far.run(&["upload", "data", "--debug-http"]).stderr;
    let container = azurite.container();
    let account = container.rsplit_once('/').expect("a path").0;
    assert!(
        talk.contains(&format!("PUT {account}/")) && talk.contains(" if-none-match: *") && talk.contains("(6 bytes): 201 "),
        "{talk}"
    );
    // With a signature, which is a part of the address.
    let signature = "sv=2023-11-03&sr=c&sp=rl&se=2099-01-01T00:00:00Z&sig=bm90IG9uZSBvZiB0aGVzZQ%3D%3D";
    let mut status = far.sandbox.command(&["status", "--debug-http", "-v"]);
    let said = Sandbox::said(status.env("FTCTL_STORE", &far.store).env("AZURE_STORAGE_SAS_TOKEN", signature));
    assert_eq!(said.code, Some(4), "{}", said.stderr);
    assert!(said.stderr.contains("GET http://127.0.0.1"), "{}", said.stderr);
    secrets::assert_none("status", &said.stderr, &["sig=", "bm90IG9uZSBvZiB0aGVzZQ"]);
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
    assert_eq!(none.code, Some(4), "{}", none.stderr);
    assert!(none.stderr.contains("no way to sign in"), "{}", none.stderr);
    let unusable = with("AZURE_STORAGE_KEY", "no key!", &["status"]);
    assert_eq!(unusable.code, Some(4), "{}", unusable.stderr);
    let doctor = far.run(&["doctor", "-o", "json"]).stdout;
    assert!(doctor.contains("account key (from AZURE_STORAGE_KEY); the first that is ready of: connection string, "), "{doctor}");
    let absent = far.run(&["logs", "nobody"]);
    assert_eq!(absent.code, Some(3), "{}", absent.stderr);
    let empty = place(&azurite.container());
    assert_eq!(empty.json(&["status"])["jobs"], json!([]), "a container that does not exist is an empty store");
}

#[test]
#[ignore = "needs Azurite: tests/run installs it"]
fn azurite_is_entered_with_a_connection_string() {
    let azurite = azurite::start();
    let url = azurite.container();
    let (account, container) = url.rsplit_once('/').expect("a path");
    let (name, key) = (azurite::ACCOUNT, azurite::KEY);
    let text = format!("DefaultEndpointsProtocol=http;AccountName={name};AccountKey={key};BlobEndpoint={account};");
    let mut far = place(&format!("azure://{name}/{container}"));
    far.sign_in = ("AZURE_STORAGE_CONNECTION_STRING", text);
    far.sandbox.write_rehearsal("entered");
    assert_eq!(far.json(&["upload", "data", "--verify"])["verified"], json!(true));
    let doctor = far.run(&["doctor", "-o", "json"]).stdout;
    assert!(doctor.contains("connection string (from AZURE_STORAGE_CONNECTION_STRING)"), "{doctor}");
}

#[test]
#[ignore = "needs Azurite: tests/run installs it"]
fn azurite_looks_the_same_in_small_pages_and_behind_a_bad_line() {
    let azurite = azurite::start();
    let seen = life(&place("here"));
    let bad = Proxy::start(azurite.port, 8);
    assert_eq!(life(&behind(&bad, &azurite)), seen);
    assert!(bad.faults() > 5, "{} faults", bad.faults());
    let mut paged = behind(&Proxy::with_small_pages(azurite.port), &azurite);
    // Without the key, which signs the size of pages.
    paged.sign_in = ("AZURE_STORAGE_SAS_TOKEN", azurite::signature(&paged.store, "racwdl"));
    in_store(&paged.store, async |store| store.put("first", "makes the container".into(), Condition::Always).await.map(drop))
        .expect("written");
    assert_eq!(life(&paged), seen);
}

#[test]
#[ignore = "needs Azurite: tests/run installs it"]
fn azurite_is_not_trusted_with_what_it_holds() {
    let azurite = azurite::start();
    let far = place(&azurite.container());
    life(&far);
    let before = far.ok(&["logs", "far"]);
    assert_eq!(far.json(&["upload", "data", "--verify"])["verified"], json!(true));
    for (part, arguments) in
        [("v1/contents/", &["upload", "data", "--verify"][..]), ("/contents/", &["download", "far", "--to", "damaged"])]
    {
        let damaged = in_store(&far.store, async |store| damage(&*store, part).await);
        let said = far.run(arguments);
        assert_eq!(said.code, Some(9), "{arguments:?}: {}", said.stderr);
        assert!(damaged.iter().any(|path| said.stderr.contains(path)), "{arguments:?}: {}", said.stderr);
    }
    assert!(!far.sandbox.path("damaged").exists(), "what is not right has no name");
    assert_eq!(before, far.ok(&["logs", "far"]), "the rest is of use");
}

/// Turns a bit in every object whose path has `part` in it, and says which they are.
async fn damage(store: &dyn Store, part: &str) -> Vec<String> {
    let mut damaged = Vec::new();
    for meta in store.list("").await.expect("a list").into_iter().filter(|meta| meta.path.contains(part) && meta.size > 0) {
        let mut bytes = store.get(&meta.path).await.expect("an object").bytes.to_vec();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 4;
        store.put(&meta.path, bytes.into(), Condition::Always).await.expect("written");
        damaged.push(meta.path);
    }
    assert!(!damaged.is_empty(), "nothing has {part} in its path");
    damaged
}

/// A service that is busy for longer than anybody waits. No emulator is needed for that.
#[test]
fn a_service_that_asks_for_a_long_pause_is_exit_code_7() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("an address").port();
    thread::spawn(move || {
        for mut client in listener.incoming().flatten() {
            let mut line = String::new();
            let mut request = BufReader::new(client.try_clone().expect("another"));
            while request.read_line(&mut line).is_ok_and(|read| read > 2) {}
            let _ = client.write_all(b"HTTP/1.1 503 Busy\r\nretry-after: 301\r\ncontent-length: 0\r\n\r\n");
        }
    });
    let far = place(&format!("http://127.0.0.1:{port}/{}/container", azurite::ACCOUNT));
    far.sandbox.write_rehearsal("busy");
    let said = far.run(&["upload", "data"]);
    assert_eq!(said.code, Some(7), "{}", said.stderr);
    assert!(said.stderr.contains("503"), "{}", said.stderr);
}

#[test]
#[ignore = "needs Azurite: tests/run installs it"]
fn azurite_is_asked_once_for_each_small_file() {
    let azurite = azurite::start();
    let line = Proxy::start(azurite.port, u64::MAX);
    let far = behind(&line, &azurite);
    let requests = |files: u32| {
        let folder = format!("{files} files");
        fs::create_dir(far.sandbox.path(&folder)).expect("a directory");
        for file in 0..files {
            far.sandbox.write(&format!("{folder}/{file}"), vec![file as u8; 20_000 + files as usize]);
        }
        let before = line.requests();
        far.ok(&["upload", &folder]);
        line.requests() - before
    };
    // Makes the container.
    requests(1);
    assert_eq!(requests(90) - requests(30), 60);
}

#[test]
#[ignore = "needs Azurite: tests/run installs it"]
fn azurite_on_a_slow_line_shows_rate_and_time_left() {
    let azurite = azurite::start();
    let far = place(&azurite.container());
    far.sandbox.write("large", (0..6_000_000_u32).flat_map(u32::to_le_bytes).collect::<Vec<u8>>());
    let said = terminal::run_on_one(&far.command(&["upload", "large", "--cap-mbps", "64"]), Environment::Own);
    let text = String::from_utf8_lossy(&said.stdout);
    assert_eq!(said.status.code(), Some(0), "{text}");
    let shown = |part: &str| text.split('\r').any(|line| line.contains("sending files") && line.contains(part));
    assert!(shown("MiB/s") && shown("/22.89 MiB") && (shown(" 1s") || shown(" 2s")), "{text:?}");
}

const MIB: u64 = 1 << 20;

/// How often an upload is killed, and the MiB it has: `FT_UPLOAD_KILLS=100` is the full size.
fn kills() -> (u64, u64) {
    let kills = std::env::var("FT_UPLOAD_KILLS").ok().and_then(|kills| kills.parse().ok());
    kills.map_or((3, 192), |kills| (kills, 2_048))
}

#[test]
#[ignore = "needs Azurite: tests/run installs it"]
fn azurite_is_sent_little_twice_however_often_an_upload_is_killed() {
    let azurite = azurite::start();
    let line = Proxy::start(azurite.port, u64::MAX);
    let far = behind(&line, &azurite);
    let (kills, mebibytes) = kills();
    let size = mebibytes * MIB;
    let mut file = fs::File::create(far.sandbox.path("large")).expect("a file");
    let mut state = 1_u64;
    for _ in 0..mebibytes {
        let words = (0..MIB / 8).flat_map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            state.to_le_bytes()
        });
        file.write_all(&words.collect::<Vec<u8>>()).expect("written");
    }
    // The most on its way at once: the memory that all chunks share.
    let on_its_way = 48 * MIB;
    let mut worst = 0;
    for round in 0..kills {
        let (before, stored) = (line.sent(), stored_bytes(&far.store));
        // An instant of its own in each round, spread over all that is left.
        let step = (size - stored) / (kills - round) * (round * 7 % 10 + 1) / 6;
        let mut upload = far.command(&["upload", "large"]);
        let mut upload = upload.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("ftctl runs");
        while line.sent() < before + step && upload.try_wait().expect("waited").is_none() {
            thread::sleep(Duration::from_millis(2));
        }
        upload.kill().expect("killed");
        upload.wait().expect("waited");
        // The store goes on with the bytes that it has got.
        line.wait_for_quiet();
        let lost = (line.sent() - before).saturating_sub(stored_bytes(&far.store) - stored);
        worst = worst.max(lost);
        assert!(lost <= on_its_way, "round {round}: {} MiB were sent for nothing", lost / MIB);
    }
    far.ok(&["upload", "large", "--verify"]);
    let sent = line.sent();
    println!("{kills} kills: {} MiB sent for {} MiB, at most {} MiB lost by one kill", sent / MIB, size / MIB, worst / MIB);
    assert!(sent <= size + kills * on_its_way, "{} MiB were sent for {} MiB", sent / MIB, size / MIB);
    let digest = far.json(&["upload", "large"])["digest"].as_str().expect("a digest").to_owned();
    assert!(line.sent() < sent + MIB, "what is there was sent again");
    let again = far.sandbox.path("again");
    download(&far.store, &digest, &again);
    assert!(same(&far.sandbox.path("large"), &again.join("large")), "a byte differs");
}

fn in_store<T>(url: &str, work: impl AsyncFnOnce(Arc<dyn Store>) -> T) -> T {
    let key = |name: &str| (name == "AZURE_STORAGE_KEY").then(|| azurite::KEY.to_owned());
    let store: Arc<dyn Store> = Arc::new(azure::open(url, &key, Limits::default(), WordOf::User).expect("a store"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(work(store))
}

/// Bytes of everything in the container.
fn stored_bytes(url: &str) -> u64 {
    in_store(url, async |store| store.list("").await.expect("a list").iter().map(|meta| meta.size).sum())
}

fn download(url: &str, digest: &str, to: &Path) {
    let digest = &ftctl::job::digest::Digest::parse(digest).expect("a digest");
    in_store(url, async |store| dataset::download(&store, digest, to, &Silent).await.map(drop)).expect("a download");
}

fn same(one: &Path, other: &Path) -> bool {
    let open = |path: &Path| BufReader::with_capacity(1 << 20, fs::File::open(path).expect("a file"));
    let (mut one, mut other) = (open(one), open(other));
    loop {
        let (left, right) = (one.fill_buf().expect("bytes"), other.fill_buf().expect("bytes"));
        let length = left.len().min(right.len());
        if length == 0 {
            return left.len() == right.len();
        }
        if left[..length] != right[..length] {
            return false;
        }
        one.consume(length);
        other.consume(length);
    }
}
