//! Providers' files on this machine.

use std::{
    fs::File,
    io::{self, Write as _},
    path::Path,
};

use serde::Serialize;

/// Replaces the file in one step; on the disk when it returns.
pub fn write_json(path: &Path, value: &impl Serialize) -> io::Result<()> {
    let directory = path.parent().unwrap_or(Path::new("."));
    let mut file = tempfile::NamedTempFile::new_in(directory)?;
    file.write_all(&serde_json::to_vec_pretty(value)?)?;
    file.as_file().sync_all()?;
    file.persist(path)?;
    sync(directory)
}

/// Makes names in a directory survive a power cut.
pub fn sync(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}
