//! Logs: a writer that continues where the store stands, and readers with byte cursors.

use std::{
    fs::File,
    io::{Read, Seek, SeekFrom},
    path::Path,
    sync::Arc,
};

use bytes::Bytes;

use super::{Result, Store, StoreError};

/// Most bytes of one read or one append.
const CHUNK: u64 = 1 << 20;

/// Follows one log: every byte is read once, in order.
pub struct LogReader {
    store: Arc<dyn Store>,
    path: String,
    offset: u64,
}

impl LogReader {
    /// Begins at byte `offset`.
    pub fn new(store: Arc<dyn Store>, path: String, offset: u64) -> Self {
        Self { store, path, offset }
    }

    /// The cursor: the first byte that was not read yet.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// The next bytes, at most 1 MiB; empty when there are none yet, also when the log has not begun.
    pub async fn read(&mut self) -> Result<Bytes> {
        match self.store.get_range(&self.path, self.offset..self.offset.saturating_add(CHUNK)).await {
            Ok(bytes) => {
                self.offset += bytes.len() as u64;
                Ok(bytes)
            }
            Err(StoreError::NotFound { .. }) => Ok(Bytes::new()),
            Err(error) => Err(error),
        }
    }
}

/// Length of a log; 0 before its first byte.
pub async fn length(store: &dyn Store, path: &str) -> Result<u64> {
    Ok(store.head(path).await?.map_or(0, |meta| meta.size))
}

/// Appends what `spool` holds beyond the first `offset` bytes and returns the new offset. The store is always asked where it
/// stands: an append whose answer was lost, a predecessor that was killed and a second shipper of the same file neither lose nor
/// repeat a byte. A spool that does not exist yet is empty.
pub async fn append_all(store: &dyn Store, path: &str, spool: &Path, offset: u64) -> Result<u64> {
    append_up_to(store, path, spool, offset, u64::MAX).await
}

/// [`append_all`] of what lies before byte `end`.
pub async fn append_up_to(store: &dyn Store, path: &str, spool: &Path, mut offset: u64, end: u64) -> Result<u64> {
    let unreadable = |source| StoreError::Io { action: "read", path: spool.display().to_string(), source };
    let mut file = match File::open(spool) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(offset),
        opened => opened.map_err(unreadable)?,
    };
    loop {
        let (mut bytes, most) = (Vec::new(), CHUNK.min(end.saturating_sub(offset)));
        file.seek(SeekFrom::Start(offset)).and_then(|_| file.by_ref().take(most).read_to_end(&mut bytes)).map_err(unreadable)?;
        if bytes.is_empty() {
            return Ok(offset);
        }
        offset = match store.append(path, offset, bytes.into()).await {
            Err(StoreError::WrongOffset { length, .. }) => within(length, &file, path, spool)?,
            appended => appended?,
        };
    }
}

/// The store's length as the next offset, unless it is longer than what it was made from.
fn within(length: u64, file: &File, path: &str, spool: &Path) -> Result<u64> {
    let spooled = file.metadata().map_or(0, |metadata| metadata.len());
    if length <= spooled {
        return Ok(length);
    }
    let spool = spool.display();
    Err(StoreError::Invalid(format!(
        "{path} has {length} bytes in the store but {spool}, from which it is sent, has only {spooled}; the upload was stopped"
    )))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;
    use crate::store::{faulty::FaultyStore, memory::MemoryStore};

    #[tokio::test]
    async fn every_byte_arrives_once_and_is_read_once() {
        let counting = FaultyStore::new(Arc::new(MemoryStore::new()));
        let store: Arc<dyn Store> = Arc::clone(&counting) as _;
        let spool = tempfile::NamedTempFile::new().unwrap();
        let mut reader = LogReader::new(Arc::clone(&store), "log".to_owned(), 0);
        assert_eq!(reader.read().await.unwrap(), "");
        assert_eq!(append_all(&*store, "log", &spool.path().with_extension("none"), 0).await.unwrap(), 0);
        let text: Vec<u8> = (0..400_000_u32).flat_map(u32::to_le_bytes).collect();
        let (mut read, mut offset) = (Vec::new(), 0);
        for (round, end) in [3, 1_000_000, 1_000_000, 1_600_000].into_iter().enumerate() {
            std::fs::write(spool.path(), &text[..end]).unwrap();
            // The answer to the second round's appends is lost, and the third is a new shipper that knows nothing.
            counting.loses_answers.store(round == 1, Ordering::SeqCst);
            match append_all(&*store, "log", spool.path(), if round == 2 { 0 } else { offset }).await {
                Ok(reached) => offset = reached,
                Err(error) => assert!(round == 1, "{error}"),
            }
            loop {
                let bytes = reader.read().await.unwrap();
                if bytes.is_empty() {
                    break;
                }
                read.extend_from_slice(&bytes);
            }
        }
        assert_eq!(offset, 1_600_000);
        assert!(read == text);
        assert_eq!(reader.offset(), 1_600_000);
    }

    #[tokio::test]
    async fn a_spool_that_shrank_is_not_continued() {
        let store = MemoryStore::new();
        store.append("log", 0, "0123456789".into()).await.unwrap();
        let spool = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(spool.path(), "01").unwrap();
        let error = append_all(&store, "log", spool.path(), 0).await.unwrap_err().to_string();
        assert!(error.contains("has 10 bytes in the store but ") && error.contains("has only 2"), "{error}");
    }
}
