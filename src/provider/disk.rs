//! Providers' files on this machine.

use std::{
    fs::File,
    io::{self, Write as _},
    path::Path,
};

use serde::{Serialize, de::DeserializeOwned};

/// Replaces the file in one step; on the disk when it returns.
pub fn write_json(path: &Path, value: &impl Serialize) -> io::Result<()> {
    let directory = path.parent().unwrap_or(Path::new("."));
    let mut file = tempfile::NamedTempFile::new_in(directory)?;
    file.write_all(&serde_json::to_vec_pretty(value)?)?;
    file.as_file().sync_all()?;
    file.persist(path)?;
    sync(directory)
}

/// Keeps what a service answered. What cannot be kept is asked for again the next time.
pub fn keep_json(path: &Path, value: &impl Serialize) {
    let _ = path.parent().map_or(Ok(()), std::fs::create_dir_all).and_then(|()| write_json(path, value));
}

/// The value that [`keep_json`] kept; `None` where there is nothing, or something else.
pub fn kept_json<T: DeserializeOwned>(path: &Path) -> Option<T> {
    serde_json::from_slice(&std::fs::read(path).ok()?).ok()
}

/// Makes names in a directory survive a power cut.
pub fn sync(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}
