//! The store on the emulator. Ignored in a plain `cargo test`: `tests/run` installs the emulator and runs what has its name.
//!
//! One file, because all of it needs the emulator.

#[path = "../../../tests/common/proxy.rs"]
mod proxy;

use std::{
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use azure_core::http::{Method, Request};
use jiff::{SignedDuration, Timestamp};

use super::{
    super::{
        azurite, conformance, content, dataset,
        lease::{Acquired, Contender, Holder, Lease},
        log, prune,
    },
    shared_key::SharedKey,
    transport::header,
    *,
};
use crate::job::{
    digest::Digest,
    id::{JobId, path},
    report::Silent,
};

fn signed_in(url: &str, credential: Credential, patience: Patience) -> AzureStore {
    let location = Location::parse(url, None).unwrap();
    let transport = Arc::new(Transport::new(&location.endpoint, credential, patience, Limits::default()).unwrap());
    AzureStore::new(url, location, transport, Limits::default()).unwrap()
}

fn key() -> Credential {
    Credential::Key(SharedKey::new(azurite::ACCOUNT, azurite::KEY).unwrap())
}

fn store_at(url: &str, full: u64) -> AzureStore {
    AzureStore { full, ..signed_in(url, key(), Patience::default()) }
}

/// With a container for each job.
fn containers_at(url: &str) -> Containers {
    Containers::new(store_at(url, FULL))
}

/// The containers that an agent opens with its environment.
async fn given_to_agent(owner: &Containers, job: &JobId) -> Containers {
    let given = owner.agent_environment(job, Timestamp::now() + SignedDuration::from_mins(5)).await.unwrap();
    let variable = |name: &str| given.iter().find(|(set, _)| *set == name)?.1.clone();
    assert!(variable("AZURE_STORAGE_KEY").is_none() && variable("AZURE_STORAGE_CONNECTION_STRING").is_none());
    let location = Location::parse(owner.url(), None).unwrap();
    open(&format!("azure://{}/{}", azurite::ACCOUNT, location.container), &variable, Limits::default(), WordOf::Another).unwrap()
}

/// Says of one object that it is not there, and goes away.
async fn answer_once(listener: tokio::net::TcpListener) {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let (mut line, _) = listener.accept().await.unwrap();
    drop(listener);
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(line.read_u8().await.unwrap());
    }
    let answer = "HTTP/1.1 404 Not Found\r\nx-ms-error-code: BlobNotFound\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
    line.write_all(answer.as_bytes()).await.unwrap();
}

#[tokio::test]
async fn a_service_that_was_there_is_waited_for_longer_than_a_name_that_may_be_wrong() {
    use tokio::net::TcpListener;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let url = format!("http://{address}/{}/container", azurite::ACCOUNT);
    let patience = Patience { unreachable: Duration::from_millis(300), total: Duration::from_secs(60) };
    let (known, unknown) = (signed_in(&url, key(), patience), signed_in(&url, key(), patience));
    let (seen, ()) = tokio::join!(known.head("a"), answer_once(listener));
    assert_eq!(seen.unwrap(), None);
    assert!(unknown.head("a").await.unwrap_err().to_string().contains("cannot be reached"));
    let later = async {
        tokio::time::sleep(5 * patience.unreachable).await;
        answer_once(TcpListener::bind(address).await.unwrap()).await;
    };
    let (seen, ()) = tokio::join!(known.head("a"), later);
    assert_eq!(seen.unwrap(), None);
}

#[tokio::test]
#[ignore = "needs Azurite: tests/run installs it"]
async fn azurite_conforms() {
    let azurite = azurite::start();
    // With a prefix, with logs that go on in another blob after three appends, and with listings of many pages.
    for page in [PAGE, 2] {
        let store = AzureStore { page, ..store_at(&format!("{}/team/a b", azurite.container()), 3) };
        conformance::passes(Arc::new(store), 40).await;
    }
}

#[tokio::test]
#[ignore = "needs Azurite: tests/run installs it"]
async fn azurite_logs_go_on_in_further_blobs() {
    let azurite = azurite::start();
    let url = azurite.container();
    let store: Arc<dyn Store> = Arc::new(store_at(&url, 4));
    let mut reader = log::LogReader::new(Arc::clone(&store), "job/log".to_owned(), 0);
    let (mut written, mut read) = (Vec::new(), Vec::new());
    for line in 0..50 {
        let text = format!("line {line}\n");
        let offset = store.append("job/log", written.len() as u64, text.clone().into()).await.unwrap();
        written.extend_from_slice(text.as_bytes());
        assert_eq!(offset, written.len() as u64);
        read.extend_from_slice(&reader.read().await.unwrap());
        assert_eq!(read, written);
        assert_eq!(reader.read().await.unwrap(), "");
    }
    // One that has just come knows nothing of the parts.
    let other = store_at(&url, 4);
    assert_eq!(other.get("job/log").await.unwrap().bytes, written);
    assert_eq!(other.get_range("job/log", 100..250).await.unwrap(), &written[100..250]);
    assert_eq!(other.get_range("job/log", 1_000..2_000).await.unwrap(), "");
    assert_eq!(other.head("job/log").await.unwrap().unwrap().size, written.len() as u64);
    assert_eq!(other.children("job").await.unwrap(), ["log"]);
    let listed = other.list("").await.unwrap();
    assert_eq!(listed.iter().map(|meta| (meta.path.as_str(), meta.size)).collect::<Vec<_>>(), [("job/log", written.len() as u64)]);
    let late = other.append("job/log", 3, "x".into()).await.unwrap_err();
    assert!(matches!(late, StoreError::WrongOffset { length, .. } if length == written.len() as u64));
    assert_eq!(other.append("job/log", written.len() as u64, "end".into()).await.unwrap(), written.len() as u64 + 3);
    // The first writer does not know of that; it learns.
    let stale = store.append("job/log", written.len() as u64, "x".into()).await.unwrap_err();
    assert!(matches!(stale, StoreError::WrongOffset { length, .. } if length == written.len() as u64 + 3));
    store.delete("job/log").await.unwrap();
    assert_eq!(store.list("").await.unwrap(), []);
    // Begun from nothing, though the reader's store remembers the parts.
    store.append("job/log", 0, "new".into()).await.unwrap();
    assert_eq!(other.get("job/log").await.unwrap().bytes, "new");
    assert_eq!(other.get_range("job/log", 60..70).await.unwrap(), "");
}

/// Bytes that show where they belong.
fn pattern(length: usize) -> Vec<u8> {
    (0..length.div_ceil(8) as u64).flat_map(u64::to_le_bytes).take(length).collect()
}

#[tokio::test]
#[ignore = "needs Azurite: tests/run installs it"]
async fn azurite_takes_large_objects_in_blocks_and_continues_what_was_interrupted() {
    let azurite = azurite::start();
    let proxy = proxy::Proxy::start(azurite.port, u64::MAX);
    let store = store_at(&azurite.container().replace(&azurite.port.to_string(), &proxy.port.to_string()), FULL);
    let bytes = Bytes::from(pattern((20 << 20) + 5));
    // A write that ended after two blocks.
    store.put("first", "creates the container".into(), Condition::Always).await.unwrap();
    for number in [0, 2] {
        let from = number * blocks::BLOCK;
        let nothing = std::collections::HashSet::new();
        blocks::send_block(&store.client, "large", number, bytes.slice(from..from + blocks::BLOCK), &nothing).await.unwrap();
    }
    assert_eq!(store.head("large").await.unwrap(), None, "nothing is there until it is committed");
    assert_eq!(store.staged("large").await.unwrap().len(), 2);
    let before = proxy.sent();
    store.put("large", bytes.clone(), Condition::IfAbsent).await.unwrap();
    let sent = proxy.sent() - before;
    assert!(sent < bytes.len() as u64 - 2 * blocks::BLOCK as u64 + 10_000, "{sent} bytes were sent");
    assert!(store.get("large").await.unwrap().bytes == bytes);
}

/// How many times something is done: `FT_FAULTS=10000` asks for so many faults.
fn rounds() -> usize {
    std::env::var("FT_FAULTS").ok().and_then(|faults| faults.parse().ok()).unwrap_or(150)
}

#[tokio::test]
#[ignore = "needs Azurite: tests/run installs it"]
async fn azurite_behind_a_line_that_misbehaves_loses_nothing_and_doubles_nothing() {
    let azurite = azurite::start();
    let url = azurite.container();
    let proxy = proxy::Proxy::start(azurite.port, 4);
    let direct = store_at(&url, 20);
    let far = |url: &str| Arc::new(store_at(&url.replace(&azurite.port.to_string(), &proxy.port.to_string()), 20));
    let tree = tempfile::tempdir().unwrap();
    std::fs::write(tree.path().join("large"), pattern(9 << 20)).unwrap();
    let mut round = 0;
    while proxy.faults() < rounds() as u64 {
        for file in 0..10 {
            std::fs::write(tree.path().join(file.to_string()), format!("{round} {file}")).unwrap();
        }
        let store: Arc<dyn Store> = far(&url);
        let digest = dataset::upload(&store, tree.path(), &Silent).await.unwrap().digest;
        let needless: Vec<String> = (0..5).map(|number| format!("needless/{number}")).collect();
        for path in &needless {
            store.put(path, "x".into(), Condition::Always).await.unwrap();
        }
        store.delete_all(&needless).await.unwrap();
        assert_eq!(direct.list("needless").await.unwrap(), []);
        let to = tempfile::tempdir().unwrap();
        dataset::download(&store, &digest, to.path(), &Silent).await.unwrap();
        for file in std::fs::read_dir(tree.path()).unwrap().flatten() {
            assert!(std::fs::read(file.path()).unwrap() == std::fs::read(to.path().join(file.file_name())).unwrap());
        }
        let mut writers = tokio::task::JoinSet::new();
        for writer in 0..3 {
            let store = far(&url);
            writers.spawn(async move {
                conformance::count(&*store, 4).await;
                conformance::append_lines_from(&*store, &writer.to_string(), 4 * round, 4).await;
            });
        }
        writers.join_all().await;
        round += 1;
        assert_eq!(direct.get("counter").await.unwrap().bytes, (12 * round).to_string());
        conformance::assert_lines(&direct, 3, 4 * round).await;
    }
    println!("{} faults in {round} rounds", proxy.faults());
}

#[tokio::test]
#[ignore = "needs Azurite: tests/run installs it"]
async fn azurite_gives_a_lease_to_one_of_two() {
    let azurite = azurite::start();
    let proxy = proxy::Proxy::start(azurite.port, 8);
    let url = azurite.container().replace(&azurite.port.to_string(), &proxy.port.to_string());
    let holder = |name: &str| Holder { host: name.to_owned(), ..Holder::this_process(0) };
    let stores: [Arc<dyn Store>; 2] = [Arc::new(store_at(&url, FULL)), Arc::new(store_at(&url, FULL))];
    // `FT_LEASES=1000` is the full size.
    let rounds = std::env::var("FT_LEASES").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(30);
    for round in 0..rounds {
        let take = |who: usize| {
            let path = format!("lease-{}", round / 5);
            Lease::acquire(&stores[who], path, holder(&format!("machine {who}")), Duration::from_secs(60))
        };
        let (one, other) = tokio::join!(take(0), take(1));
        match (one.unwrap(), other.unwrap()) {
            (Acquired::Held(mut lease), Acquired::HeldBy(_)) | (Acquired::HeldBy(_), Acquired::Held(mut lease)) => {
                lease.renew().await.unwrap();
                lease.release().await.unwrap();
            }
            both => panic!("round {round}: {both:?}"),
        }
    }
}

/// One of two who want a lease, as it knows itself.
#[derive(Clone, Copy)]
struct Racer {
    /// When it began what proved last that it is the holder.
    proof: Instant,
    /// Since when it does nothing more as the holder.
    ended: Option<Instant>,
}

/// Neither racer has the service's clock; only what each sees is compared, with bounds made of how long its own requests took: a
/// contender may see the last renewal so late, and may come so late after the lease has lapsed.
#[tokio::test]
#[ignore = "needs Azurite: tests/run installs it"]
async fn azurite_lease_never_has_two_holders_nor_none_for_longer_than_its_time() {
    const TIME: Duration = Duration::from_secs(1);
    let lapse = TIME * 3 / 4;
    let azurite = azurite::start();
    let proxy = proxy::Proxy::start(azurite.port, 25);
    let url = azurite.container().replace(&azurite.port.to_string(), &proxy.port.to_string());
    let rounds = std::env::var("FT_LEASES").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(30);
    let racers = Arc::new(Mutex::new([Racer { proof: Instant::now(), ended: Some(Instant::now()) }; 2]));
    let taken = Arc::new(AtomicU64::new(0));
    let mut racing = tokio::task::JoinSet::new();
    for who in 0..2 {
        let store: Arc<dyn Store> = Arc::new(store_at(&url, FULL));
        let (racers, taken) = (Arc::clone(&racers), Arc::clone(&taken));
        racing.spawn(async move {
            // How long it had no holder, and how slow that racer was.
            let mut gaps = Vec::new();
            while taken.load(Ordering::SeqCst) < rounds {
                let holder = Holder { host: format!("machine {who}"), ..Holder::this_process(0) };
                let mut contender = Contender::new(Arc::clone(&store), "lease".to_owned(), holder, TIME);
                let (mut before, mut slowest) = (Instant::now(), Duration::ZERO);
                let (mut lease, asked) = loop {
                    let asked = Instant::now();
                    let found = contender.acquire().await.unwrap();
                    slowest = slowest.max(before.elapsed());
                    before = asked;
                    match found {
                        Acquired::Held(lease) => break (lease, asked),
                        Acquired::HeldBy(_) => tokio::time::sleep(contender.lapses_in().min(TIME / 40)).await,
                    }
                };
                let now = Instant::now();
                let others = std::mem::replace(&mut racers.lock().unwrap()[who], Racer { proof: asked, ended: None });
                let other = racers.lock().unwrap()[1 - who];
                assert!(other.ended.is_some() || now - other.proof >= lapse, "two hold it");
                if let (Some(since), Some(own)) = (other.ended, others.ended) {
                    let none = now - since.max(own);
                    assert!(none <= lapse + 2 * slowest, "it was free for {none:?}, asked for every {slowest:?}");
                    gaps.push((none, slowest));
                }
                let round = taken.fetch_add(1, Ordering::SeqCst);
                for _ in 0..round % 4 {
                    tokio::time::sleep(TIME / 20).await;
                    let asked = Instant::now();
                    match lease.renew().await {
                        Ok(()) => racers.lock().unwrap()[who].proof = asked,
                        Err(error) => {
                            let late = asked - racers.lock().unwrap()[who].proof;
                            assert!(asked.elapsed() + late >= lapse, "it was lost after {late:?}: {error}");
                            break;
                        }
                    }
                }
                racers.lock().unwrap()[who].ended = Some(Instant::now());
                // Half of them vanish.
                if round % 2 == 0 {
                    lease.release().await.unwrap();
                }
            }
            gaps
        });
    }
    let gaps = racing.join_all().await.concat();
    // A reader that needs no more than an eighth of the time for a look can do no worse than the time.
    let in_time = gaps.iter().filter(|(_, slowest)| *slowest <= TIME / 8).map(|(none, _)| *none);
    let (many, most) = (in_time.clone().count(), in_time.max().unwrap_or_default());
    println!(
        "{rounds} holders of a lease of {TIME:?}, {} faults: {many} replaced at an even pace, after {most:?} at most",
        proxy.faults()
    );
    println!("{} in all, after {:?} at most", gaps.len(), gaps.iter().map(|(none, _)| *none).max().unwrap_or_default());
}

/// Names that a URL writes otherwise, a log of several blobs, and one that is not there.
async fn fill(store: &AzureStore, many: usize) -> Vec<String> {
    let mut paths: Vec<String> = (0..many).map(|number| format!("gone/{}/ü %+&=#'({number})", number % 7)).collect();
    let here: Arc<dyn Store> = Arc::new(AzureStore { client: Arc::clone(&store.client), ..store_at(&store.url, 2) });
    content::concurrently(16, paths.clone(), |path| {
        let store = Arc::clone(&here);
        async move { store.put(&path, "x".into(), Condition::Always).await }
    })
    .await
    .unwrap();
    for offset in 0..9 {
        here.append("gone/log", offset, "x".into()).await.unwrap();
    }
    here.put("gone/stays", "x".into(), Condition::Always).await.unwrap();
    paths.extend(["gone/log".to_owned(), "gone/absent".to_owned()]);
    paths
}

#[tokio::test]
#[ignore = "needs Azurite: tests/run installs it"]
async fn azurite_deletes_many_in_one_request() {
    let azurite = azurite::start();
    let proxy = proxy::Proxy::start(azurite.port, u64::MAX);
    let url = azurite.container().replace(&azurite.port.to_string(), &proxy.port.to_string());
    let owner = store_at(&url, 2);
    let expires = Timestamp::now() + SignedDuration::from_mins(5);
    let may = async |what| Credential::Sas(owner.client.signer(expires).await.unwrap().unwrap().sign(&owner.client, what));
    let signed = AzureStore { full: 2, ..signed_in(&url, may("racwdl").await, Patience::default()) };
    for store in [&owner, &signed] {
        let paths = fill(&owner, 600).await;
        let before = proxy.requests();
        store.delete_all(&paths).await.unwrap();
        // A listing, the further blobs of the log, and three batches for the rest.
        assert_eq!(proxy.requests() - before, 5);
        assert_eq!(owner.list("").await.unwrap().iter().map(|meta| meta.path.as_str()).collect::<Vec<_>>(), ["gone/stays"]);
        assert_eq!(owner.blobs("").await.unwrap().len(), 1, "no blob of the log is left");
        store.delete_all(&paths).await.unwrap();
    }
    // A reader that may not delete is told so.
    let reader = signed_in(&url, may("rl").await, Patience::default());
    owner.put("gone/too", "x".into(), Condition::Always).await.unwrap();
    let error = reader.delete_all(&["gone/stays".to_owned(), "gone/too".to_owned()]).await.unwrap_err();
    assert!(matches!(&error, StoreError::Denied { action: "delete", path, .. } if path.starts_with("gone/")), "{error}");
    assert_eq!(owner.list("").await.unwrap().len(), 2);
}

const OFFICIAL_BATCH: &str = r#"
import json
from azure.core.pipeline.transport import HttpTransport
from azure.storage.blob import ContainerClient
class Shown(Exception): pass
class Show(HttpTransport):
    def open(self): pass
    def close(self): pass
    def __exit__(self, *_): pass
    def send(self, request, **_):
        body = request.body.decode()
        print(json.dumps({"method": request.method, "url": request.url, "type": request.headers["Content-Type"], "body": body}))
        raise Shown
key = {"account_name": "acc", "account_key": "a2V5"}
client = ContainerClient("https://acc.blob.core.windows.net", "box", credential=key, transport=Show())
try: client.delete_blobs("a b/ü", "c~1")
except Shown: pass
"#;

/// The requests of a batch: the line of each with the names of its headers, but for those that are for the service's log.
fn shape(kind: &str, body: &str) -> Vec<(String, Vec<String>)> {
    let (_, boundary) = kind.split_once("multipart/mixed; boundary=").unwrap();
    let (parts, end) = body.split_once(&format!("--{boundary}--")).unwrap();
    assert_eq!(end, "\r\n");
    let one = |part: &str| {
        let (outer, inner) = part.split_once("\r\n\r\n").unwrap();
        let mut lines = inner.lines().filter(|line| !line.is_empty());
        // The library leaves a question mark where nothing follows.
        let first = lines.next().unwrap().replace("? HTTP", " HTTP");
        let names = outer.lines().chain(lines).filter_map(|line| line.split_once(':'));
        let mut headers: Vec<String> = names
            .map(|(name, value)| match name.to_lowercase().as_str() {
                name @ ("authorization" | "x-ms-date") => name.to_owned(),
                name => format!("{name}:{value}"),
            })
            .filter(|header| !header.starts_with("x-ms-client-request-id"))
            .collect();
        headers.sort();
        (first, headers)
    };
    parts.split(&format!("--{boundary}\r\n")).skip(1).map(one).collect()
}

#[tokio::test]
#[ignore = "needs azure-storage-blob for Python: tests/run installs it"]
async fn azurite_apart_the_official_library_sends_the_same_batch() {
    let library = std::env::var_os("FT_AZURE_SDK").expect("FT_AZURE_SDK names the folder of azure-storage-blob: tests/run sets it");
    let said = std::process::Command::new("python3").args(["-c", OFFICIAL_BATCH]).env("PYTHONPATH", library).output().unwrap();
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    let official: serde_json::Value = serde_json::from_slice(&said.stdout).unwrap();
    let text = |name: &str| official[name].as_str().unwrap().to_owned();
    let key = SharedKey::new("acc", "a2V5").unwrap();
    let store = signed_in("https://acc.blob.core.windows.net/box", Credential::Key(key.clone()), Patience::default());
    let ours = store.client.batch(&["a b/ü", "c~1"].map(str::to_owned)).await.unwrap();
    let body = String::from_utf8(Bytes::from(ours.body()).to_vec()).unwrap();
    assert_eq!((ours.method().as_ref(), ours.url().as_str()), (&*text("method"), &*text("url")));
    assert_eq!(shape(header(ours.headers(), "content-type").unwrap(), &body), shape(&text("type"), &text("body")));
    // The library's own requests have the signature that we would give them.
    let mut checked = 0;
    for part in text("body").split("DELETE ").skip(1) {
        let mut lines = part.lines();
        let path = lines.next().unwrap().split(' ').next().unwrap();
        let own = lines.take_while(|line| !line.is_empty());
        let mut headers: Vec<(&str, &str)> = own.filter_map(|line| line.split_once(": ")).collect();
        let at = headers.iter().position(|(name, _)| *name == "Authorization").unwrap();
        let (_, authorization) = headers.swap_remove(at);
        let mut request = Request::new(format!("https://acc.blob.core.windows.net{path}").parse().unwrap(), Method::Delete);
        for (name, value) in headers {
            request.insert_header(name.to_owned(), value.to_owned());
        }
        assert_eq!(key.authorization(&request), authorization);
        checked += 1;
    }
    assert_eq!(checked, 2);
}

#[tokio::test]
#[ignore = "needs Azurite: tests/run installs it"]
async fn azurite_signatures_open_what_they_say_and_nothing_more() {
    let azurite = azurite::start();
    let url = azurite.container();
    let owner = store_at(&url, FULL);
    owner.put("a", "x".into(), Condition::Always).await.unwrap();
    let key = SharedKey::new(azurite::ACCOUNT, azurite::KEY).unwrap();
    let location = Location::parse(&url, None).unwrap();
    let with = |permissions: &str, minutes: i64| {
        let expires = Timestamp::now() + SignedDuration::from_mins(minutes);
        let (account, container) = (&*location.account, &*location.container);
        let grant = sas::Grant { account, container, permissions, expires, https_only: false };
        signed_in(&url, Credential::Sas(grant.sign(&key, &[])), Patience::default())
    };
    assert_eq!(with("r", 5).get("a").await.unwrap().bytes, "x");
    for (store, why) in [(with("r", -5), "expired"), (with("l", 5), "may only list")] {
        let error = store.get("a").await.unwrap_err();
        assert!(matches!(&error, StoreError::Denied { .. }), "{why}: {error}");
        assert!(!error.to_string().contains("sig="), "{error}");
    }
    with("r", 5).put("b", "x".into(), Condition::Always).await.unwrap_err();
}

/// One blob of the job's own, and one of each kind that is not.
async fn fill_store(store: &dyn Store, jobs: &[&JobId]) {
    for path in ["ftctl/v1/names/a.json", "ftctl/v1/debts/x.json", "ftctl/v1/contents/00/c", "ftctl/v1/datasets/d/manifest.json"] {
        store.put(path, "theirs".into(), Condition::Always).await.unwrap();
    }
    for job in jobs {
        for path in [path::record(job), path::order(job), path::cancel(job), path::supervisor_lease(job), path::exit(job, 1)] {
            store.put(&path, "theirs".into(), Condition::Always).await.unwrap();
        }
    }
}

/// The container itself, with the signature of another.
fn raw(location: Location, transport: &Arc<Transport>) -> AzureStore {
    AzureStore::new("stolen", location, Arc::clone(transport), Limits::default()).unwrap()
}

#[tokio::test]
#[ignore = "needs Azurite: tests/run installs it"]
async fn azurite_stolen_signature_of_a_machine_changes_its_own_job_alone() {
    let azurite = azurite::start();
    let owner = containers_at(&azurite.container());
    let (own, other) = (JobId::derive("own", "1"), JobId::derive("other", "1"));
    fill_store(&owner, &[&own, &other]).await;
    let before = owner.list("").await.unwrap();
    let agent = given_to_agent(&owner, &own).await;
    // The objects that its work needs.
    for path in ["ftctl/v1/contents/00/c", "ftctl/v1/datasets/d/manifest.json", &path::cancel(&own)] {
        assert_eq!(agent.get(path).await.unwrap().bytes, "theirs", "{path}");
    }
    // It also reads what the store itself has of other jobs, by a name or an id that it knows or guesses.
    let (record, order, lease) = (path::record(&other), path::order(&other), path::supervisor_lease(&other));
    for path in ["ftctl/v1/names/a.json", "ftctl/v1/debts/x.json", &record, &order, &lease] {
        assert_eq!(agent.get(path).await.unwrap().bytes, "theirs", "{path}");
    }
    assert!(super::super::find_json::<serde_json::Value>(&agent, "ftctl/v1/datasets/none/manifest.json").await.unwrap().is_none());
    agent.append(&path::log(&own, 1), 0, "line".into()).await.unwrap();
    agent.put(&path::attempt_lease(&own), "mine".into(), Condition::IfAbsent).await.unwrap();
    agent.delete_all(&[path::attempt_lease(&own), path::exit(&own, 1)]).await.unwrap();
    assert_eq!(agent.children(&format!("{}/attempts", path::job(&own))).await.unwrap(), ["1"]);
    owner.delete(&path::log(&own, 1)).await.unwrap();
    // A holder of both signatures uses each as they like.
    let main = &owner.main().client.location;
    let mine: Vec<&Meta> = before.iter().filter(|meta| !containers::is_part_of(&meta.path, &own)).collect();
    for transport in agent.transports() {
        for meta in &mine {
            for job in [None, Some(&own), Some(&other)] {
                let location = job.map_or_else(|| main.clone(), |job| containers::container_of(main, job));
                let (is_own, store) = (job == Some(&own), raw(location, transport));
                let read = store.get(&meta.path).await;
                let is_denied = matches!(read, Err(StoreError::Denied { .. }));
                assert!(is_denied || job != Some(&other), "the container of another: {}", meta.path);
                let written = store.put(&meta.path, "changed".into(), Condition::Always).await;
                let deleted = store.delete(&meta.path).await;
                let listed = store.list("").await;
                if !is_own {
                    for refused in [written.map(drop), deleted, listed.map(drop)] {
                        assert!(matches!(refused, Err(StoreError::Denied { .. })), "{} in {job:?}: {refused:?}", meta.path);
                    }
                }
            }
        }
    }
    let kept: Vec<Meta> =
        owner.list("").await.unwrap().into_iter().filter(|meta| !containers::is_part_of(&meta.path, &own)).collect();
    assert_eq!(kept.iter().collect::<Vec<_>>(), mine);
    agent.get(&path::exit(&other, 1)).await.unwrap_err();
}

/// Job by job: one that began before there were containers for each, and one that begins now.
#[tokio::test]
#[ignore = "needs Azurite: tests/run installs it"]
async fn azurite_jobs_of_before_go_on_where_they_are() {
    let azurite = azurite::start();
    let proxy = proxy::Proxy::start(azurite.port, u64::MAX);
    let url = azurite.container().replace(&azurite.port.to_string(), &proxy.port.to_string());
    let before = store_at(&url, FULL);
    let (old, new) = (JobId::derive("old", "1"), JobId::derive("new", "1"));
    before.put(&path::record(&old), "record".into(), Condition::Always).await.unwrap();
    before.append(&path::log(&old, 1), 0, "one ".into()).await.unwrap();
    for (job, in_main) in [(&old, true), (&new, false)] {
        let store = containers_at(&url);
        let agent = given_to_agent(&containers_at(&url), job).await;
        let start = store.head(&path::log(job, 1)).await.unwrap().map_or(0, |meta| meta.size);
        agent.append(&path::log(job, 1), start, "two".into()).await.unwrap();
        agent.put(&path::exit(job, 1), "exit".into(), Condition::IfAbsent).await.unwrap();
        assert!(store.get(&path::log(job, 1)).await.unwrap().bytes.ends_with(b"two"));
        assert_eq!(before.head(&path::exit(job, 1)).await.unwrap().is_some(), in_main, "{job}");
        assert_eq!(store.list(&path::job(job)).await.unwrap().len(), 3, "{job}");
        assert_eq!(store.children(&format!("{}/attempts/1", path::job(job))).await.unwrap(), ["exit.json", "log"]);
        // Once it is known where a job is, each look takes one request; the first one needs no more where it has its container.
        let fresh = containers_at(&url);
        for most in [if in_main { 2 } else { 1 }, 1] {
            let requests = proxy.requests();
            fresh.get(&path::log(job, 1)).await.unwrap();
            assert_eq!(proxy.requests() - requests, most, "{job}");
        }
    }
    let both: Vec<String> = containers_at(&url).list("").await.unwrap().into_iter().map(|meta| meta.path).collect();
    assert!(both.is_sorted() && both.len() == 6, "{both:?}");
}

#[tokio::test]
#[ignore = "needs Azurite: tests/run installs it"]
async fn azurite_sign_in_for_one_container_keeps_all_in_it_and_says_what_it_does_not_see() {
    let azurite = azurite::start();
    let url = azurite.container();
    let owner = containers_at(&url);
    let (theirs, mine) = (JobId::derive("theirs", "1"), JobId::derive("mine", "1"));
    fill_store(&owner, &[&theirs]).await;
    let expires = Timestamp::now() + SignedDuration::from_mins(5);
    let signature = owner.main().client.signer(expires).await.unwrap().unwrap().sign(&owner.main().client, "racwdl");
    let narrow = Containers::new(signed_in(&url, Credential::Sas(signature.clone()), Patience::default()));
    assert!(narrow.exposure().is_some() && owner.exposure().is_none());
    let given = narrow.agent_environment(&mine, expires).await.unwrap();
    let signs_in: Vec<_> = given.iter().filter(|(name, value)| *name != ENDPOINT && value.is_some()).collect();
    assert_eq!(signs_in, [&(sign_in::SAS, Some(signature))], "its own signature is passed on");
    narrow.put(&path::exit(&mine, 1), "exit".into(), Condition::Always).await.unwrap();
    assert_eq!(owner.get(&path::exit(&mine, 1)).await.unwrap().bytes, "exit");
    assert!(store_at(&url, FULL).head(&path::exit(&mine, 1)).await.unwrap().is_some());
    // A job with a container must not look like one whose agent is silent.
    assert_eq!(narrow.get(&path::record(&theirs)).await.unwrap().bytes, "theirs");
    for error in [
        narrow.head(&path::exit(&theirs, 1)).await.unwrap_err(),
        narrow.get(&path::log(&theirs, 1)).await.unwrap_err(),
        narrow.put(&path::exit(&theirs, 2), "x".into(), Condition::Always).await.unwrap_err(),
        narrow.agent_environment(&theirs, expires).await.unwrap_err(),
        narrow.list(&path::job(&theirs)).await.unwrap_err(),
        narrow.delete_job(&theirs).await.unwrap_err(),
    ] {
        assert!(matches!(&error, StoreError::Denied { why, .. } if why.contains("container ft-")), "{error}");
    }
}

#[tokio::test]
#[ignore = "needs Azurite: tests/run installs it"]
async fn azurite_container_of_a_job_goes_with_its_remains() {
    let azurite = azurite::start();
    let store = Arc::new(containers_at(&azurite.container()));
    let (gone, kept) = (JobId::derive("gone", "1"), JobId::derive("kept", "1"));
    for job in [&gone, &kept] {
        store.put(&path::supervisor_lease(job), "x".into(), Condition::Always).await.unwrap();
        store.put(&path::exit(job, 1), "x".into(), Condition::Always).await.unwrap();
        store.put(&path::content(&path::job_contents(job), &Digest::of(b"x")), "x".into(), Condition::Always).await.unwrap();
    }
    store.put(&path::record(&kept), "x".into(), Condition::Always).await.unwrap();
    let needed = prune::Needed { jobs: [kept.clone()].into(), ..prune::Needed::default() };
    let (later, day) = (Timestamp::now() + SignedDuration::from_hours(48), Duration::from_secs(86_400));
    let shared: Arc<dyn Store> = Arc::clone(&store) as _;
    let found = prune::find(&shared, &needed, later, day).await.unwrap();
    // With the note of the container, and the content that no checkpoint of the other names.
    assert_eq!((&found.jobs, found.objects), (&vec![gone.clone()], 5));
    prune::remove(&shared, &found).await.unwrap();
    let container = |job: &JobId| raw(containers::container_of(&store.main().client.location, job), &store.main().client.transport);
    let looked = container(&gone).client.container.get_properties(None).await;
    assert_eq!(looked.unwrap_err().http_status().map(u16::from), Some(404));
    assert!(container(&kept).client.container.get_properties(None).await.is_ok());
    assert_eq!(store.children(&path::jobs()).await.unwrap(), [kept.to_string()]);
    assert!(store.head(&path::exit(&kept, 1)).await.unwrap().is_some());
    // The same id, submitted again.
    store.put(&path::exit(&gone, 1), "again".into(), Condition::IfAbsent).await.unwrap();
    assert_eq!(store.list(&path::job(&gone)).await.unwrap().len(), 2);
}

/// Every path of the conformance suite, in what the agent of a job writes.
struct Below(Arc<dyn Store>, String);

impl Below {
    fn path(&self, path: &str) -> String {
        // A path that is wrong stays so.
        if path.is_empty() { path.to_owned() } else { format!("{}/{path}", self.1) }
    }
    fn prefix(&self, prefix: &str) -> String {
        if prefix.is_empty() { self.1.clone() } else { self.path(prefix) }
    }
    fn meta(&self, mut meta: Meta) -> Meta {
        meta.path.drain(..=self.1.len());
        meta
    }
    fn own<T>(&self, answer: Result<T>) -> Result<T> {
        let inner = |path: String| path.strip_prefix(&format!("{}/", self.1)).map_or(path.clone(), str::to_owned);
        answer.map_err(|error| match error {
            StoreError::NotFound { store, path } => StoreError::NotFound { store, path: inner(path) },
            StoreError::Conflict { path } => StoreError::Conflict { path: inner(path) },
            StoreError::Unreadable(why) => StoreError::Unreadable(inner(why)),
            other => other,
        })
    }
}

#[async_trait]
impl Store for Below {
    fn url(&self) -> &str {
        self.0.url()
    }
    async fn identity(&self) -> Result<Digest> {
        self.0.identity().await
    }
    async fn get_limited(&self, path: &str, most: u64) -> Result<Object> {
        self.own(self.0.get_limited(&self.path(path), most).await)
    }
    async fn get_range(&self, path: &str, range: Range<u64>) -> Result<Bytes> {
        self.own(self.0.get_range(&self.path(path), range).await)
    }
    async fn head(&self, path: &str) -> Result<Option<Meta>> {
        Ok(self.0.head(&self.path(path)).await?.map(|meta| self.meta(meta)))
    }
    async fn put(&self, path: &str, bytes: Bytes, condition: Condition) -> Result<ETag> {
        self.own(self.0.put(&self.path(path), bytes, condition).await)
    }
    async fn append(&self, path: &str, offset: u64, bytes: Bytes) -> Result<u64> {
        self.own(self.0.append(&self.path(path), offset, bytes).await)
    }
    async fn list(&self, prefix: &str) -> Result<Vec<Meta>> {
        Ok(self.0.list(&self.prefix(prefix)).await?.into_iter().map(|meta| self.meta(meta)).collect())
    }
    async fn list_some(&self, prefix: &str) -> Result<Option<Vec<Meta>>> {
        let some = self.0.list_some(&self.prefix(prefix)).await?;
        Ok(some.map(|all| all.into_iter().map(|meta| self.meta(meta)).collect()))
    }
    async fn children(&self, prefix: &str) -> Result<Vec<String>> {
        self.0.children(&self.prefix(prefix)).await
    }
    async fn delete(&self, path: &str) -> Result<()> {
        self.0.delete(&self.path(path)).await
    }
    async fn delete_all(&self, paths: &[String]) -> Result<()> {
        self.0.delete_all(&paths.iter().map(|path| self.path(path)).collect::<Vec<_>>()).await
    }
}

#[tokio::test]
#[ignore = "needs Azurite: tests/run installs it"]
async fn azurite_conforms_on_both_sides_of_the_border() {
    let azurite = azurite::start();
    let url = azurite.container();
    let (old, signed) = (JobId::derive("old", "1"), JobId::derive("signed", "1"));
    store_at(&url, FULL).put(&path::attempt_lease(&old), "x".into(), Condition::Always).await.unwrap();
    let owner = Arc::new(containers_at(&url));
    let agent = Arc::new(given_to_agent(&owner, &signed).await);
    for (store, job) in [(owner, old), (agent, signed)] {
        conformance::passes(Arc::new(Below(store, format!("{}/artifacts", path::job(&job)))), 40).await;
    }
}
