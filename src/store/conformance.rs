//! The duties of every store. One suite; each store's tests call [`passes`] with a fresh one.

use std::sync::Arc;

use bytes::Bytes;

use super::{Condition, ETag, Store, StoreError};

/// `rounds`: how often a writer deletes under the others' writes.
pub async fn passes(store: Arc<dyn Store>, rounds: usize) {
    reads_what_was_written(&*store).await;
    conditions_hold(&*store).await;
    versions_never_repeat(&*store).await;
    appends_land_once(&*store).await;
    lists_what_is_there(&*store).await;
    takes_large_objects(&*store).await;
    reads_no_more_than_it_may(&*store).await;
    refuses_wrong_paths(&*store).await;
    one_of_many_creates(&store).await;
    counts_to(&store, 4, 25).await;
    appends_of_many_are_all_there(&store, 4, 25).await;
    what_is_written_stays_while_its_neighbours_go(&store, 4, rounds / 4).await;
}

async fn put(store: &dyn Store, path: &str, text: &str, condition: Condition) -> Result<ETag, StoreError> {
    store.put(path, Bytes::copy_from_slice(text.as_bytes()), condition).await
}

async fn reads_what_was_written(store: &dyn Store) {
    assert!(matches!(store.get("read/none").await, Err(StoreError::NotFound { path, .. }) if path == "read/none"));
    assert!(matches!(store.get_range("read/none", 0..1).await, Err(StoreError::NotFound { .. })));
    assert_eq!(store.head("read/none").await.unwrap(), None);
    let etag = put(store, "read/it", "0123456789", Condition::Always).await.unwrap();
    let object = store.get("read/it").await.unwrap();
    assert_eq!((object.bytes.as_ref(), &object.etag), (&b"0123456789"[..], &etag));
    for (range, expected) in [(0..4, "0123"), (8..12, "89"), (10..12, ""), (50..60, ""), (3..3, "")] {
        assert_eq!(store.get_range("read/it", range.clone()).await.unwrap(), expected.as_bytes(), "{range:?}");
    }
    assert_eq!(store.head("read/it").await.unwrap().unwrap().size, 10);
    store.delete("read/it").await.unwrap();
    store.delete("read/it").await.unwrap();
    assert!(matches!(store.get("read/it").await, Err(StoreError::NotFound { .. })));
}

async fn conditions_hold(store: &dyn Store) {
    let first = put(store, "if/it", "1", Condition::IfAbsent).await.unwrap();
    assert!(matches!(put(store, "if/it", "2", Condition::IfAbsent).await, Err(StoreError::Conflict { path }) if path == "if/it"));
    let second = put(store, "if/it", "2", Condition::IfMatch(first.clone())).await.unwrap();
    assert!(matches!(put(store, "if/it", "3", Condition::IfMatch(first.clone())).await, Err(StoreError::Conflict { .. })));
    assert_eq!(store.get("if/it").await.unwrap().bytes, "2");
    store.delete("if/it").await.unwrap();
    assert!(matches!(put(store, "if/it", "3", Condition::IfMatch(second)).await, Err(StoreError::Conflict { .. })));
    put(store, "if/it", "3", Condition::IfAbsent).await.unwrap();
    assert!(matches!(put(store, "if/none", "1", Condition::IfMatch(first)).await, Err(StoreError::Conflict { .. })));
}

/// Not even when the same bytes come back: a lease that changed twice has changed.
async fn versions_never_repeat(store: &dyn Store) {
    let mut seen = Vec::new();
    for round in 0..200 {
        let etag = put(store, "version/it", if round % 2 == 0 { "a" } else { "b" }, Condition::Always).await.unwrap();
        assert!(!seen.contains(&etag), "round {round} repeats {etag:?}");
        seen.push(etag);
    }
    store.append("version/log", 0, "a".into()).await.unwrap();
    let before = store.get("version/log").await.unwrap().etag;
    store.append("version/log", 1, "b".into()).await.unwrap();
    assert_ne!(store.get("version/log").await.unwrap().etag, before);
}

async fn appends_land_once(store: &dyn Store) {
    assert!(matches!(store.append("log/it", 5, "x".into()).await, Err(StoreError::WrongOffset { expected: 5, length: 0, .. })));
    assert_eq!(store.append("log/it", 0, "one\n".into()).await.unwrap(), 4);
    assert!(matches!(store.append("log/it", 0, "one\n".into()).await, Err(StoreError::WrongOffset { expected: 0, length: 4, .. })));
    assert_eq!(store.append("log/it", 4, "two\n".into()).await.unwrap(), 8);
    assert_eq!(store.get("log/it").await.unwrap().bytes, "one\ntwo\n");
}

async fn lists_what_is_there(store: &dyn Store) {
    assert_eq!(store.list("list").await.unwrap(), []);
    assert_eq!(store.children("list").await.unwrap(), Vec::<String>::new());
    for path in ["list/b/2", "list/b/1", "list/a", "list-not/c", "list/b/c/.hidden"] {
        put(store, path, path, Condition::Always).await.unwrap();
    }
    let found: Vec<(String, u64)> = store.list("list").await.unwrap().into_iter().map(|meta| (meta.path, meta.size)).collect();
    let expected = ["list/a", "list/b/1", "list/b/2", "list/b/c/.hidden"].map(|path| (path.to_owned(), path.len() as u64));
    assert_eq!(found, expected);
    if let Some(some) = store.list_some("list").await.unwrap() {
        assert_eq!(some, store.list("list").await.unwrap());
    }
    assert_eq!(store.children("list").await.unwrap(), ["a", "b"]);
    assert!(store.children("").await.unwrap().contains(&"list-not".to_owned()));
    let all = store.list("").await.unwrap();
    assert!(expected.iter().all(|(path, _)| all.iter().any(|meta| meta.path == *path)), "{all:?}");
    let several = ["list/b/1", "list/b/2", "list/b/c/.hidden", "list/b/none"].map(str::to_owned);
    store.delete_all(&several).await.unwrap();
    store.delete_all(&[]).await.unwrap();
    assert_eq!(store.children("list").await.unwrap(), ["a"], "a folder without objects does not exist");
}

async fn takes_large_objects(store: &dyn Store) {
    let bytes = Bytes::from((0..2_500_000_u32).flat_map(u32::to_le_bytes).collect::<Vec<u8>>());
    let etag = store.put("large/it", bytes.clone(), Condition::IfAbsent).await.unwrap();
    let object = store.get("large/it").await.unwrap();
    assert!(object.bytes == bytes && object.etag == etag);
    assert!(matches!(store.put("large/it", bytes.clone(), Condition::IfAbsent).await, Err(StoreError::Conflict { .. })));
    store.put("large/it", bytes.slice(1..), Condition::IfMatch(etag.clone())).await.unwrap();
    assert!(matches!(store.put("large/it", bytes.clone(), Condition::IfMatch(etag)).await, Err(StoreError::Conflict { .. })));
    assert!(store.get("large/it").await.unwrap().bytes == bytes[1..]);
    assert!(store.get_range("large/it", 4_000_000..9_000_000).await.unwrap() == bytes[4_000_001..9_000_001]);
}

async fn reads_no_more_than_it_may(store: &dyn Store) {
    put(store, "limit/it", "0123456789", Condition::Always).await.unwrap();
    assert_eq!(store.get_limited("limit/it", 10).await.unwrap().bytes, "0123456789");
    for (path, most) in [("limit/it", 9), ("limit/it", 0), ("large/it", 5_000_000), ("large/it", 9_999_998)] {
        let error = store.get_limited(path, most).await.unwrap_err();
        assert!(matches!(&error, StoreError::Unreadable(why) if why.starts_with(path)), "{error}");
    }
    assert_eq!(store.get_limited("large/it", 9_999_999).await.unwrap().bytes.len(), 9_999_999);
}

async fn refuses_wrong_paths(store: &dyn Store) {
    for path in ["", "/etc/passwd", "../up", "a/../b", "a/./b", "a//b", "a/", "a\0b", "a\\b", ".ftctl/locks/00"] {
        assert!(matches!(store.get(path).await, Err(StoreError::Invalid(_))), "get {path:?}");
        assert!(matches!(put(store, path, "x", Condition::Always).await, Err(StoreError::Invalid(_))), "put {path:?}");
        assert!(matches!(store.append(path, 0, "x".into()).await, Err(StoreError::Invalid(_))), "append {path:?}");
        assert!(matches!(store.delete(path).await, Err(StoreError::Invalid(_))), "delete {path:?}");
        let among = ["a".to_owned(), path.to_owned()];
        assert!(matches!(store.delete_all(&among).await, Err(StoreError::Invalid(_))), "delete_all {path:?}");
        if !path.is_empty() {
            assert!(matches!(store.list(path).await, Err(StoreError::Invalid(_))), "list {path:?}");
            assert!(matches!(store.children(path).await, Err(StoreError::Invalid(_))), "children {path:?}");
        }
    }
}

async fn one_of_many_creates(store: &Arc<dyn Store>) {
    let mut tasks = tokio::task::JoinSet::new();
    for writer in 0..8 {
        let store = Arc::clone(store);
        tasks.spawn(async move { put(&*store, "race/it", &writer.to_string(), Condition::IfAbsent).await.is_ok() });
    }
    assert_eq!(tasks.join_all().await.into_iter().filter(|created| *created).count(), 1);
}

/// Adds 1 to the number at `counter` with nothing but conditional writes, `times` times.
pub async fn count(store: &dyn Store, times: usize) {
    for _ in 0..times {
        loop {
            let (number, condition) = match store.get("counter").await {
                Err(StoreError::NotFound { .. }) => (0, Condition::IfAbsent),
                found => {
                    let object = found.unwrap();
                    (std::str::from_utf8(&object.bytes).unwrap().parse::<usize>().unwrap(), Condition::IfMatch(object.etag))
                }
            };
            match put(store, "counter", &(number + 1).to_string(), condition).await {
                Err(StoreError::Conflict { .. }) => tokio::task::yield_now().await,
                written => break drop(written.unwrap()),
            }
        }
    }
}

/// Appends `times` lines that no other writer appends.
pub async fn append_lines(store: &dyn Store, writer: &str, times: usize) {
    append_lines_from(store, writer, 0, times).await;
}

/// The same, with the lines numbered from `first`.
pub async fn append_lines_from(store: &dyn Store, writer: &str, first: usize, times: usize) {
    for line in first..first + times {
        let line = Bytes::from(format!("{writer} {line}\n"));
        let mut offset = super::log::length(store, "lines").await.unwrap();
        while let Err(error) = store.append("lines", offset, line.clone()).await {
            let StoreError::WrongOffset { length, .. } = error else { panic!("{error}") };
            offset = length;
        }
    }
}

/// Every line of every writer is in the log, whole, once and in the writer's order.
pub async fn assert_lines(store: &dyn Store, writers: usize, times: usize) {
    let object = store.get("lines").await.unwrap();
    let text = std::str::from_utf8(&object.bytes).unwrap();
    assert_eq!(text.lines().count(), writers * times);
    for writer in 0..writers {
        let own: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix(&format!("{writer} "))).collect();
        assert_eq!(own, (0..times).map(|line| line.to_string()).collect::<Vec<_>>());
    }
}

/// Every writer deletes what it wrote, and with it now and then the last object of a folder that another is about to write to.
async fn what_is_written_stays_while_its_neighbours_go(store: &Arc<dyn Store>, writers: usize, times: usize) {
    let mut tasks = tokio::task::JoinSet::new();
    for writer in 0..writers {
        let store = Arc::clone(store);
        tasks.spawn(async move {
            for round in 0..times {
                let (path, text) = (format!("neighbours/{}/{writer}", round % 2), format!("{writer} {round}"));
                if writer % 2 == 0 {
                    put(&*store, &path, &text, Condition::IfAbsent).await.unwrap();
                } else {
                    store.append(&path, 0, text.clone().into()).await.unwrap();
                }
                assert_eq!(store.get(&path).await.unwrap().bytes, text);
                store.delete(&path).await.unwrap();
            }
        });
    }
    tasks.join_all().await;
    assert_eq!(store.list("neighbours").await.unwrap(), []);
}

async fn counts_to(store: &Arc<dyn Store>, writers: usize, times: usize) {
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..writers {
        let store = Arc::clone(store);
        tasks.spawn(async move { count(&*store, times).await });
    }
    tasks.join_all().await;
    assert_eq!(store.get("counter").await.unwrap().bytes, (writers * times).to_string());
}

async fn appends_of_many_are_all_there(store: &Arc<dyn Store>, writers: usize, times: usize) {
    let mut tasks = tokio::task::JoinSet::new();
    for writer in 0..writers {
        let store = Arc::clone(store);
        tasks.spawn(async move { append_lines(&*store, &writer.to_string(), times).await });
    }
    tasks.join_all().await;
    assert_lines(&**store, writers, times).await;
}
