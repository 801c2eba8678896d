//! Embeds the workspace's own sources in the binary, so that an installed `ftctl` can build the trainer (and the container image)
//! on any machine and the result is named by what went into it.

use std::{
    env, fs,
    io::{self, Write as _},
    path::{Path, PathBuf},
};

use flate2::{Compression, write::DeflateEncoder};

/// Everything that a build of either program needs. Cargo asks for every program that a manifest names, the benchmark too. Tests
/// are left out: they change often and change nothing that is built.
const ROOTS: [&str; 13] = [
    "Cargo.toml",
    "Cargo.lock",
    "build.rs",
    "src",
    "templates",
    "docker/Dockerfile",
    "docker/libtorch.sh",
    "docker/libraries.sh",
    "docker/wheels",
    "trainer/Cargo.toml",
    "trainer/build.rs",
    "trainer/benches",
    "trainer/src",
];

fn main() -> io::Result<()> {
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default());
    let mut files = Vec::new();
    println!("cargo::rerun-if-env-changed=FTCTL_EMBED");
    // The agent of an image builds nothing, and must not change with the trainer's sources.
    let roots = if env::var("FTCTL_EMBED").is_ok_and(|what| what == "nothing") { &[] } else { &ROOTS[..] };
    for entry in roots {
        println!("cargo::rerun-if-changed={entry}");
        collect(&root.join(entry), &mut files)?;
    }
    let name = |file: &PathBuf| file.strip_prefix(&root).unwrap_or(file).to_string_lossy().replace('\\', "/");
    files.sort_by_key(name);
    // Compressed they are a quarter: name and bytes of each file, each after its length.
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default()).join("sources.deflate");
    let mut packed = DeflateEncoder::new(fs::File::create(out)?, Compression::best());
    for file in &files {
        for part in [name(file).as_bytes(), &fs::read(file)?] {
            packed.write_all(&(part.len() as u64).to_le_bytes())?;
            packed.write_all(part)?;
        }
    }
    packed.finish().map(drop)
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
