//! The workspace's own sources, embedded at build time.

use std::{fs, path::Path};

use sha2::{Digest, Sha256};

use super::{Result, io_error};

/// `(path, bytes)`, sorted by path.
static FILES: &[(&str, &[u8])] = &include!(concat!(env!("OUT_DIR"), "/sources.rs"));

/// Hexadecimal SHA-256 of everything the trainer is built from.
pub fn trainer_digest() -> String {
    let mut hash = Sha256::new();
    for (name, bytes) in FILES.iter().filter(|(name, _)| name.starts_with("trainer/") || !name.contains('/')) {
        hash.update(format!("{name}\0{}\0", bytes.len()));
        hash.update(bytes);
    }
    hex::encode(hash.finalize())
}

/// Writes the sources below `directory`. A file that is there already with the same bytes keeps its time, so that cargo rebuilds only
/// what changed.
pub fn unpack(directory: &Path) -> Result<()> {
    for (name, bytes) in FILES {
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
        } else if FILES.binary_search_by(|(known, _)| (*known).cmp(name.as_str())).is_err() {
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
