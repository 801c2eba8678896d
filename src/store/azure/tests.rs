//! The store on the emulator. Ignored in a plain `cargo test`: `tests/run` installs the emulator and runs what has its name.

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

use super::{
    super::{
        azurite, conformance, content, dataset,
        lease::{Acquired, Contender, Holder, Lease},
        log,
    },
    shared_key::SharedKey,
    transport::header,
    *,
};
use crate::job::report::Silent;

fn store_at(url: &str, full: u64) -> AzureStore {
    let location = Location::parse(url, None).unwrap();
    let key = SharedKey::new(azurite::ACCOUNT, azurite::KEY).unwrap();
    let store = AzureStore::new(url, location, Credential::Key(key), Patience::default(), Limits::default()).unwrap();
    AzureStore { full, ..store }
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
    let open = || {
        let key = SharedKey::new(azurite::ACCOUNT, azurite::KEY).unwrap();
        AzureStore::new(&url, Location::parse(&url, None).unwrap(), Credential::Key(key), patience, Limits::default()).unwrap()
    };
    let (known, unknown) = (open(), open());
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
    // Begun anew, though the reader's store remembers the parts.
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
    std::env::var("FT_FAULTS").ok().and_then(|faults| faults.parse().ok()).unwrap_or(300)
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

/// The service's clock is nobody's; only what each sees is compared, with bounds made of how long its own requests took: a contender
/// may see the last renewal so late, and may come so late after the lease has lapsed.
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
            // How long nobody held it, and how slow that racer was.
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
                    assert!(none <= lapse + 2 * slowest, "nobody held it for {none:?}, asked for every {slowest:?}");
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
    // Whoever needs no more than an eighth of the time for a look can do no worse than the time.
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
    let given = owner.agent_environment(Timestamp::now() + jiff::SignedDuration::from_mins(5)).await.unwrap();
    let variable = |name: &str| given.iter().find(|(set, _)| *set == name)?.1.clone();
    let signed = AzureStore { full: 2, ..open(&url, &variable, Limits::default(), Whose::Another).unwrap() };
    for store in [&owner, &signed] {
        let paths = fill(&owner, 600).await;
        let before = proxy.requests();
        store.delete_all(&paths).await.unwrap();
        // A listing, the further blobs of the log, and three batches of what is left.
        assert_eq!(proxy.requests() - before, 5);
        assert_eq!(owner.list("").await.unwrap().iter().map(|meta| meta.path.as_str()).collect::<Vec<_>>(), ["gone/stays"]);
        assert_eq!(owner.blobs("").await.unwrap().len(), 1, "no blob of the log is left");
        store.delete_all(&paths).await.unwrap();
    }
    // Who may not delete is told so.
    let expires = Timestamp::now() + jiff::SignedDuration::from_mins(5);
    let reads = Credential::Sas(owner.client.signature("rl", expires).await.unwrap().unwrap());
    let reader =
        AzureStore::new(&url, Location::parse(&url, None).unwrap(), reads, Patience::default(), Limits::default()).unwrap();
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
    let url = "https://acc.blob.core.windows.net/box";
    let key = SharedKey::new("acc", "a2V5").unwrap();
    let location = Location::parse(url, None).unwrap();
    let store = AzureStore::new(url, location, Credential::Key(key.clone()), Patience::default(), Limits::default()).unwrap();
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
        let expires = jiff::Timestamp::now() + jiff::SignedDuration::from_mins(minutes);
        let (account, container) = (&*location.account, &*location.container);
        let grant = sas::Grant { account, container, permissions, expires, https_only: false };
        let credential = Credential::Sas(grant.sign(&key, &[]));
        AzureStore::new(&url, location.clone(), credential, Patience::default(), Limits::default()).unwrap()
    };
    assert_eq!(with("r", 5).get("a").await.unwrap().bytes, "x");
    for (store, why) in [(with("r", -5), "expired"), (with("l", 5), "may only list")] {
        let error = store.get("a").await.unwrap_err();
        assert!(matches!(&error, StoreError::Denied { .. }), "{why}: {error}");
        assert!(!error.to_string().contains("sig="), "{error}");
    }
    with("r", 5).put("b", "x".into(), Condition::Always).await.unwrap_err();
    // What an agent gets instead of the key.
    let given = owner.agent_environment(jiff::Timestamp::now() + jiff::SignedDuration::from_mins(5)).await.unwrap();
    let variable = |name: &str| given.iter().find(|(set, _)| *set == name)?.1.clone();
    assert!(variable("AZURE_STORAGE_KEY").is_none() && variable("AZURE_STORAGE_CONNECTION_STRING").is_none());
    let url = format!("azure://{}/{}", azurite::ACCOUNT, location.container);
    let all = open(&url, &variable, Limits::default(), Whose::Another).unwrap();
    all.append("log", 0, "x".into()).await.unwrap();
    assert_eq!(all.children("").await.unwrap(), ["a", "log"]);
    all.delete("log").await.unwrap();
}
