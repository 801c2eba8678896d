//! Rust text that is on every machine which built ftctl: the sources of its own locked dependencies.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;

use super::files::walk;
use crate::data::DataError;

/// Larger files are generated, nearly all of them.
const LARGEST: u64 = 200_000;
/// Tables have more digits than this share of their characters, program text far fewer.
const DIGITS: f64 = 0.08;

/// The part of `cargo metadata`'s answer that is needed.
#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    version: String,
    /// Absent for the workspace's own packages.
    source: Option<String>,
    manifest_path: PathBuf,
}

/// The `.rs` files under `src/` of all packages that the workspace's lock file names for this platform, by package name and
/// version. Left out, because a small model would learn nothing readable from them: foreign-function bindings (`libc`,
/// `*-sys`, `windows*`), files over 200 kB, and tables of numbers.
///
/// Runs `cargo metadata --locked`, offline if everything is on the machine.
pub fn cargo_dependencies(manifest: &Path) -> Result<Vec<PathBuf>, DataError> {
    sources(metadata(manifest, &["--offline"]).or_else(|_| metadata(manifest, &[]))?.packages)
}

/// [`cargo_dependencies`] where all of them are on the machine.
pub fn cargo_dependencies_here(manifest: &Path) -> Result<Vec<PathBuf>, DataError> {
    sources(metadata(manifest, &["--offline"])?.packages)
}

fn sources(mut packages: Vec<Package>) -> Result<Vec<PathBuf>, DataError> {
    packages.retain(|package| package.source.is_some() && !is_bindings(&package.name));
    packages.sort_by(|a, b| (&a.name, &a.version).cmp(&(&b.name, &b.version)));
    let mut files = Vec::new();
    for source in packages.iter().filter_map(|package| Some(package.manifest_path.parent()?.join("src"))) {
        if source.is_dir() {
            files.extend(walk(&source)?);
        }
    }
    files.retain(|file| is_program_text(file));
    if files.is_empty() { Err(DataError::Cargo { reason: "they have no Rust sources".into() }) } else { Ok(files) }
}

fn is_bindings(package: &str) -> bool {
    package == "libc" || package.ends_with("-sys") || package.starts_with("windows")
}

fn is_program_text(path: &Path) -> bool {
    let small = || path.metadata().is_ok_and(|metadata| metadata.len() <= LARGEST);
    let readable = |text: String| {
        let digits = text.bytes().filter(u8::is_ascii_digit).count();
        !text.contains('\0') && digits as f64 <= DIGITS * text.len() as f64
    };
    path.extension().is_some_and(|extension| extension == "rs") && small() && std::fs::read_to_string(path).is_ok_and(readable)
}

fn metadata(manifest: &Path, offline: &[&str]) -> Result<Metadata, DataError> {
    let host = host()?;
    let arguments = ["metadata", "--format-version", "1", "--locked", "--filter-platform", &host, "--manifest-path"];
    let answer = cargo(Command::new(cargo_program()).args(arguments).arg(manifest).args(offline))?;
    serde_json::from_slice(&answer).map_err(|error| DataError::Cargo { reason: error.to_string() })
}

/// The platform that cargo builds for; packages of other platforms are not on the machine.
fn host() -> Result<String, DataError> {
    let answer = cargo(Command::new(cargo_program()).arg("-vV"))?;
    let text = String::from_utf8_lossy(&answer);
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).ok_or_else(|| DataError::Cargo { reason: "`cargo -vV` names no host".into() })
}

/// The cargo that started us, else the one on the path.
pub fn cargo_program() -> std::ffi::OsString {
    std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

/// Standard output of a cargo command.
fn cargo(command: &mut Command) -> Result<Vec<u8>, DataError> {
    let output = command.output().map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => DataError::NoCargo,
        _ => DataError::Cargo { reason: format!("cargo does not start: {error}") },
    })?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    let talk = String::from_utf8_lossy(&output.stderr);
    // The text after an empty line is for cargo's developers: causes, backtraces.
    let reason = talk.trim().split("\n\n").next().unwrap_or_default().replace('\n', "; ");
    Err(DataError::Cargo { reason })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_readable_sources_of_the_locked_packages() {
        let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
        let files = cargo_dependencies(&manifest).unwrap();
        assert!(files.len() > 300, "{} files", files.len());
        assert!(files.iter().any(|file| file.ends_with("src/lib.rs") && file.to_string_lossy().contains("/serde-")));
        let unwanted = |file: &&PathBuf| file.to_string_lossy().contains("-sys-") || !file.ends_with(file.file_name().unwrap());
        assert_eq!(files.iter().find(unwanted), None);
        assert_eq!(files, cargo_dependencies(&manifest).unwrap());
    }

    #[test]
    fn a_manifest_that_is_not_there_is_an_error_that_quotes_cargo() {
        let error = cargo_dependencies(Path::new("nowhere/Cargo.toml")).unwrap_err().to_string();
        assert!(error.contains("nowhere/Cargo.toml"), "{error}");
    }
}
