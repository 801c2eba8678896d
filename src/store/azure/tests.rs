//! The store on the emulator. Ignored in a plain `cargo test`: `tests/run` installs the emulator and runs what has its name.

#[path = "../../../tests/common/proxy.rs"]
mod proxy;

use std::time::Duration;

use super::{
    super::{
        azurite, conformance, dataset,
        lease::{Acquired, Holder, Lease},
        log,
    },
    shared_key::SharedKey,
    *,
};
use crate::job::report::Silent;

fn store_at(url: &str, full: u64) -> AzureStore {
    let location = Location::parse(url, None).unwrap();
    let key = SharedKey::new(azurite::ACCOUNT, azurite::KEY).unwrap();
    let store = AzureStore::new(url, location, Credential::Key(key), Patience::default(), Limits::default()).unwrap();
    AzureStore { full, ..store }
}

#[tokio::test]
#[ignore = "needs Azurite: tests/run installs it"]
async fn azurite_conforms() {
    let azurite = azurite::start();
    // With a prefix, and with logs that go on in another blob after three appends.
    conformance::passes(Arc::new(store_at(&format!("{}/team/a b", azurite.container()), 3))).await;
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
        let credential = Credential::Sas(grant.sign(&key, None));
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
    let all = open(&format!("azure://{}/{}", azurite::ACCOUNT, location.container), &variable, Limits::default()).unwrap();
    all.append("log", 0, "x".into()).await.unwrap();
    assert_eq!(all.children("").await.unwrap(), ["a", "log"]);
    all.delete("log").await.unwrap();
}
