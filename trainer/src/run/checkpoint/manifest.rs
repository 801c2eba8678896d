//! The manifest, which makes a directory a checkpoint: it lists every other file with its size and SHA-256, so that a reader can
//! prove that it loads the right bytes.

use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::error::Failure;
use crate::files;
use crate::files::direct;

/// Version of `manifest.json`.
pub const SCHEMA: &str = "ft.checkpoint/1";
/// The file that makes a directory a checkpoint.
pub const MANIFEST: &str = "manifest.json";
/// Bytes of the longest; a file takes some hundred.
const LONGEST: u64 = 4 << 20;

/// The contents of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    pub schema: String,
    /// Optimizer steps completed.
    pub step: u64,
    /// Every file but this one, by name.
    pub files: Vec<Entry>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    pub name: String,
    pub bytes: u64,
    /// In hexadecimal.
    pub sha256: String,
}

/// Makes a checkpoint of the files in `directory`.
pub fn write(directory: &Path, step: u64) -> Result<(), Failure> {
    let read = |name: String| {
        let path = directory.join(&name);
        entry(directory, name, direct::hash).map_err(|error| Failure::io("read", &path, &error))
    };
    let files = files::names(directory)?.into_iter().map(read).collect::<Result<_, _>>()?;
    files::write_json(&directory.join(MANIFEST), &Manifest { schema: SCHEMA.to_owned(), step, files })
}

/// Reads every file of a checkpoint and compares it with the manifest. The error says what is wrong with which file.
pub fn verify(directory: &Path) -> Result<Manifest, String> {
    let path = directory.join(MANIFEST);
    let text = files::read_at_most(&path, LONGEST).map_err(|error| format!("{MANIFEST}: {error}"))?;
    let manifest: Manifest = serde_json::from_slice(&text).map_err(|error| format!("{MANIFEST}: {error}"))?;
    if manifest.schema != SCHEMA {
        return Err(format!("{MANIFEST}: its schema is `{}`, this version reads `{SCHEMA}`", manifest.schema));
    }
    for written in &manifest.files {
        let name = &written.name;
        if Path::new(name).file_name().is_none_or(|file| file != name.as_str()) {
            return Err(format!("{MANIFEST}: `{name}` is no name of a file beside it"));
        }
        let found = entry(directory, name.clone(), files::hash).map_err(|error| format!("{name}: {error}"))?;
        if found.bytes != written.bytes {
            return Err(format!("{name}: {} bytes, the manifest says {}", found.bytes, written.bytes));
        }
        if found.sha256 != written.sha256 {
            return Err(format!("{name}: its SHA-256 is not the manifest's"));
        }
    }
    Ok(manifest)
}

/// The entry of a file in its present state, read by `hash`.
fn entry(directory: &Path, name: String, hash: impl Fn(&Path, &mut Sha256) -> io::Result<u64>) -> io::Result<Entry> {
    let mut hasher = Sha256::new();
    let bytes = hash(&directory.join(&name), &mut hasher)?;
    Ok(Entry { name, bytes, sha256: files::hex(&hasher.finalize()) })
}
