//! The workspace's own sources, embedded at build time.

use std::{
    fs,
    io::{self, Read as _},
    path::Path,
    sync::LazyLock,
};

use flate2::read::DeflateDecoder;
use sha2::{Digest, Sha256};

use super::{Result, io_error};

/// The files that build.rs packed: `(path, bytes)`, sorted by path.
static FILES: LazyLock<Vec<(String, Vec<u8>)>> =
    LazyLock::new(|| unpacked(include_bytes!(concat!(env!("OUT_DIR"), "/sources.deflate"))).expect("build.rs packed them"));

fn unpacked(packed: &[u8]) -> io::Result<Vec<(String, Vec<u8>)>> {
    let mut bytes = Vec::new();
    DeflateDecoder::new(packed).read_to_end(&mut bytes)?;
    let mut rest = bytes.as_slice();
    let mut part = || -> io::Result<Vec<u8>> {
        let mut length = [0; 8];
        rest.read_exact(&mut length)?;
        let mut part = vec![0; u64::from_le_bytes(length) as usize];
        rest.read_exact(&mut part).map(|()| part)
    };
    let mut files = Vec::new();
    while let Ok(name) = part() {
        files.push((String::from_utf8(name).map_err(io::Error::other)?, part()?));
    }
    Ok(files)
}

/// Every source with its path in the workspace. An agent that was built for an image has none.
pub fn all() -> &'static [(String, Vec<u8>)] {
    &FILES
}

/// Hexadecimal SHA-256 of everything.
pub fn digest() -> String {
    digest_of(|_| true)
}

/// Hexadecimal SHA-256 of everything the trainer is built from.
pub fn trainer_digest() -> String {
    digest_of(|name| name.starts_with("trainer/") || !name.contains('/'))
}

fn digest_of(wanted: impl Fn(&str) -> bool) -> String {
    let mut hash = Sha256::new();
    for (name, bytes) in FILES.iter().filter(|(name, _)| wanted(name)) {
        hash.update(format!("{name}\0{}\0", bytes.len()));
        hash.update(bytes);
    }
    hex::encode(hash.finalize())
}

/// Writes the sources below `directory`. A file that is there already with the same bytes keeps its time, so that cargo rebuilds
/// only what changed.
pub fn unpack(directory: &Path) -> Result<()> {
    for (name, bytes) in all() {
        let path = directory.join(name);
        if fs::read(&path).is_ok_and(|present| present == *bytes) {
            continue;
        }
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(io_error("create", parent))?;
        }
        fs::write(&path, bytes).map_err(io_error("write", &path))?;
    }
    remove_strays(directory, directory)
}

/// Files of an older version would be compiled in: cargo finds modules and tests by name.
fn remove_strays(directory: &Path, root: &Path) -> Result<()> {
    for entry in fs::read_dir(directory).map_err(io_error("read", directory))? {
        let path = entry.map_err(io_error("read", directory))?.path();
        let name = path.strip_prefix(root).unwrap_or(&path).to_string_lossy().into_owned();
        if path.is_dir() {
            remove_strays(&path, root)?;
        } else if FILES.binary_search_by(|(known, _)| known.cmp(&name)).is_err() {
            fs::remove_file(&path).map_err(io_error("remove", &path))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_unpacked_tree_is_a_workspace_and_loses_strays() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("stray.rs"), "").unwrap();
        unpack(directory.path()).unwrap();
        assert!(directory.path().join("trainer/src/lib.rs").is_file());
        assert!(directory.path().join("Cargo.lock").is_file());
        assert!(!directory.path().join("stray.rs").exists());
    }

    #[test]
    fn unpacking_again_touches_nothing() {
        let directory = tempfile::tempdir().unwrap();
        unpack(directory.path()).unwrap();
        let time = || fs::metadata(directory.path().join("Cargo.toml")).unwrap().modified().unwrap();
        let first = time();
        unpack(directory.path()).unwrap();
        assert_eq!(first, time());
    }
}
