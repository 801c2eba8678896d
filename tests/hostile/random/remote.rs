//! The same store in a blob container: the changes of the files are made to the blobs. Links, folders and pipes are no blobs, and
//! stay away.

use std::{collections::BTreeSet, fs, future::Future, path::Path, sync::Arc};

use ftctl::store::{Condition, Limits, Store, StoreError, WordOf, azure};
use futures_util::{StreamExt as _, stream};
use tokio::runtime::{Builder, Runtime};

use super::{scene::walk, stub::SECRET};
use crate::common::azurite::{self, Azurite, KEY};

/// Requests under way at once.
const JOBS: usize = 16;
/// Larger files stay away: the emulator would keep every one of their bytes.
const MOST: u64 = 32 << 20;

pub struct Remote {
    _azurite: Arc<Azurite>,
    pub url: String,
    /// The users' signature: for this container alone, so that all of a job lies in it.
    pub signature: String,
    store: Arc<dyn Store>,
    runtime: Runtime,
}

impl Remote {
    pub fn new() -> Self {
        let azurite = azurite::start();
        let url = azurite.container();
        let key = |name: &str| (name == "AZURE_STORAGE_KEY").then(|| KEY.to_owned());
        let store: Arc<dyn Store> = Arc::new(azure::open(&url, &key, Limits::default(), WordOf::User).expect("a store"));
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
        // A signature for a container makes none.
        runtime.block_on(store.put("made", "".into(), Condition::Always)).expect("a container");
        let signature = azurite::signature(&url, "racwdl");
        Self { _azurite: azurite, url, signature, store, runtime }
    }

    /// Writes what the container holds below `folder`.
    pub fn pull(&self, folder: &Path) {
        self.runtime.block_on(async {
            for path in self.paths().await {
                let file = folder.join(&path);
                fs::create_dir_all(file.parent().expect("a folder")).expect("a folder");
                fs::write(file, self.store.get(&path).await.expect("a blob").bytes).expect("written");
            }
        });
    }

    /// Makes the container hold what is below `folder`, as far as it can.
    pub fn push(&self, folder: &Path) {
        let mut files = Vec::new();
        walk(folder, &|_| true, &mut |path, metadata| {
            if metadata.is_file() && metadata.len() < MOST {
                files.push(path.to_owned());
            }
        });
        self.runtime.block_on(async {
            let old: Vec<_> = self.paths().await.into_iter().collect();
            self.each(old, async |path| self.store.delete(&path).await).await;
            self.each(files, async |file| {
                let path = file.strip_prefix(folder).unwrap_or(&file).to_string_lossy().into_owned();
                let bytes = fs::read(&file).unwrap_or_default().into();
                if path.ends_with("/log") || path.ends_with("/progress.jsonl") {
                    return self.store.append(&path, 0, bytes).await.map(drop);
                }
                self.store.put(&path, bytes, Condition::Always).await.map(drop)
            })
            .await;
        });
    }

    /// A stranger's name may be none of a blob: then nothing is done.
    async fn each<T, F: Future<Output = Result<(), StoreError>>>(&self, of: Vec<T>, work: impl Fn(T) -> F) {
        stream::iter(of).map(work).buffer_unordered(JOBS).for_each(async |_| ()).await;
    }

    async fn paths(&self) -> BTreeSet<String> {
        self.store.list("").await.expect("a listing").into_iter().map(|meta| meta.path).collect()
    }

    /// A blob with a secret that is not below `folder`, where what was pushed lies.
    pub fn secret(&self, folder: &Path) -> Option<String> {
        self.runtime.block_on(async {
            let new = self.paths().await.into_iter().filter(|path| !folder.join(path).exists());
            for path in new {
                let bytes = self.store.get(&path).await.map(|object| object.bytes).unwrap_or_default();
                if bytes.windows(SECRET.len()).any(|part| part == SECRET.as_bytes()) {
                    return Some(path);
                }
            }
            None
        })
    }
}
