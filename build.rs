//! Embeds the workspace's own sources in the binary, so that an installed `ftctl` can build the trainer (and the container image) on
//! any machine and the result is named by what went into it.

use std::{
    env,
    fmt::Write as _,
    fs, io,
    path::{Path, PathBuf},
};

/// What a build of either program needs; cargo asks for every program that a manifest names, the benchmark too. Tests are left out:
/// they change often and change nothing that is built.
const ROOTS: [&str; 8] =
    ["Cargo.toml", "Cargo.lock", "build.rs", "src", "templates", "trainer/Cargo.toml", "trainer/build.rs", "trainer/benches"];
const TRAINER_SOURCES: &str = "trainer/src";

fn main() -> io::Result<()> {
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default());
    let mut files = Vec::new();
    for entry in ROOTS.into_iter().chain([TRAINER_SOURCES]) {
        println!("cargo::rerun-if-changed={entry}");
        collect(&root.join(entry), &mut files)?;
    }
    files.sort();
    let mut code = String::from("[\n");
    for file in &files {
        let name = file.strip_prefix(&root).unwrap_or(file).to_string_lossy().replace('\\', "/");
        let _ = writeln!(code, "    ({name:?}, include_bytes!({:?})),", file.display().to_string());
    }
    code.push(']');
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default());
    fs::write(out.join("sources.rs"), code)
}

fn collect(path: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    if !path.is_dir() {
        if path.exists() {
            files.push(path.to_owned());
        }
        return Ok(());
    }
    for entry in fs::read_dir(path)? {
        collect(&entry?.path(), files)?;
    }
    Ok(())
}
