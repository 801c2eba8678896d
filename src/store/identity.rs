//! The identity of a store. A store without a name of its own in the world has one that was drawn for it once.

use crate::job::digest::Digest;

/// Draws a name that is drawn only once.
pub(super) fn draw() -> String {
    let mut bytes = [0; 32];
    // It reads the system's generator, which fails on no system that ftctl runs on; two stores of the same identity would be one to
    // a cloud.
    aws_lc_rs::rand::fill(&mut bytes).expect("the system has random numbers");
    hex::encode(bytes)
}

/// Whether [`draw`] can have made it. Any other text, such as a container's address, may be what another store is known by.
pub(super) fn is_drawn(text: &[u8]) -> bool {
    text.len() == 64 && text.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// The identity of a store with this text. Labels of machines show the identity, from which the text cannot be found.
pub(super) fn of(text: impl AsRef<[u8]>) -> Digest {
    Digest::of(text.as_ref())
}

#[cfg(test)]
mod tests {
    use super::super::{Condition, Limits, Store as _, WordOf, azure, directory::DirectoryStore, memory::MemoryStore};

    fn container(url: &str, endpoint: Option<&str>) -> impl super::super::Store {
        let variables = |name: &str| match name {
            "AZURE_STORAGE_KEY" => Some("a2V5".to_owned()),
            "FTCTL_ENDPOINT_BLOB" => endpoint.map(str::to_owned),
            _ => None,
        };
        azure::open(url, &variables, Limits::default(), WordOf::User).unwrap()
    }

    #[tokio::test]
    async fn a_container_is_known_by_its_address_however_it_is_spelled_or_reached() {
        let identity = async |url, endpoint| container(url, endpoint).identity().await.unwrap();
        let one = identity("azure://acc/box", None).await;
        for (url, endpoint) in [
            ("azure://acc/box/", None),
            ("https://acc.blob.core.windows.net/box", None),
            ("https://ACC.blob.core.windows.net:443/box/", None),
            ("azure://acc/box", Some("http://127.0.0.1:10000/acc")),
        ] {
            assert_eq!(identity(url, endpoint).await, one, "{url} at {endpoint:?}");
        }
        for other in [
            "azure://acc/box/team",
            "azure://acc/box2",
            "azure://acc2/box",
            "https://acc.blob.core.usgovcloudapi.net/box",
            "http://127.0.0.1:10000/acc/box",
        ] {
            assert_ne!(identity(other, None).await, one, "{other}");
        }
    }

    #[tokio::test]
    async fn a_directory_is_known_by_what_was_drawn_for_it() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("store");
        let (first, second) = (DirectoryStore::open(&path).unwrap(), DirectoryStore::open(&path).unwrap());
        let early = first.identity().await.unwrap();
        assert!(!path.exists(), "looking makes nothing");
        first.put("a", "b".into(), Condition::Always).await.unwrap();
        assert_eq!(first.identity().await.unwrap(), early, "what was told before the first write holds");
        second.put("c", "d".into(), Condition::Always).await.unwrap();
        assert_eq!(second.identity().await.unwrap(), early);
        assert_eq!(second.list("").await.unwrap().len(), 2, "the id is no object");
        // It moves with the directory, and a new one at its place is another.
        std::fs::rename(&path, place.path().join("moved")).unwrap();
        let (moved, new) = (DirectoryStore::open(&place.path().join("moved")).unwrap(), DirectoryStore::open(&path).unwrap());
        assert_eq!(moved.identity().await.unwrap(), early);
        assert_ne!(new.identity().await.unwrap(), early);
        // It cannot pose as a container, whose address is known.
        std::fs::create_dir_all(path.join(".ftctl")).unwrap();
        for posing in ["https://acc.blob.core.windows.net/box", "", "g".repeat(64).as_str()] {
            std::fs::write(path.join(".ftctl/id"), posing).unwrap();
            let error = new.identity().await.unwrap_err().to_string();
            assert!(error.contains("is not the id of a store"), "{error}");
        }
        // The reader of an identity on a machine's label cannot make a store of it.
        std::fs::write(path.join(".ftctl/id"), early.as_str()).unwrap();
        assert_ne!(new.identity().await.unwrap(), early);
    }

    #[tokio::test]
    async fn stores_in_memory_are_never_the_same() {
        let (one, other) = (MemoryStore::new(), MemoryStore::new());
        assert_eq!(one.identity().await.unwrap(), one.identity().await.unwrap());
        assert_ne!(one.identity().await.unwrap(), other.identity().await.unwrap());
    }
}
