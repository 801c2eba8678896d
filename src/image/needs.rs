//! Finds what a build of the trainer on this machine needs. Asks no network and changes nothing.

use std::{
    env,
    ffi::OsStr,
    fs::Permissions,
    io::{ErrorKind, Write as _},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use tokio::{process::Command, time::timeout};

use super::{ImageError, Result, installer::Means, libtorch, trainer};
use crate::job::finding::Finding;

/// Free space below which a first run on this machine would not fit: libtorch, the build, a dataset and checkpoints.
const ROOM: u64 = 6 << 30;
/// The time that a program has to tell its version.
const PATIENCE: Duration = Duration::from_secs(10);

/// Looks for the libtorch and the trainer of this version, and without a trainer for what builds one.
pub async fn examine(cache: &Path) -> Vec<Finding> {
    let built = trainer::present(cache);
    let mut findings = Vec::new();
    findings.push(match (libtorch::misnamed(), libtorch::present(cache)) {
        (Some(why), _) => {
            Finding::bad("libtorch", why, format!("correct the variable, or unset it: ftctl installs {}", libtorch::VERSION))
        }
        (None, Some(_)) => Finding::good("libtorch", format!("{} is there", libtorch::VERSION)),
        (None, None) => Finding::notice("libtorch", "not installed yet; the first job does it", "ftctl build --print path"),
    });
    findings.push(match &built {
        Some(path) => Finding::good("trainer", path.display().to_string()),
        None => Finding::notice("trainer", "not built yet; the first job does it", "ftctl build --print path"),
    });
    findings.extend(starts_no_programs(cache).await);
    // A built trainer needs no tools any more.
    if built.is_none() {
        for tool in TOOLS {
            findings.push(tool.found(env::var_os("PATH").as_deref()).await.map_or_else(
                |why| Finding::bad(tool.what, format!("{why}; the trainer is built with it"), tool.fix),
                |program| Finding::good(tool.what, program.display().to_string()),
            ));
        }
        if libtorch::present(cache).is_none() {
            findings.push(match Means::find().await {
                Ok(means) => Finding::good("python3", means.to_string()),
                Err(ImageError::NoInstaller { why, fix }) => {
                    Finding::bad("python3", format!("{why}; pip or uv installs libtorch"), fix)
                }
                Err(error) => Finding::bad("python3", error.to_string(), "install Python 3 with pip, or uv"),
            });
        }
        findings.extend(room(cache));
    }
    findings
}

/// Refuses to begin a build of the trainer that would fail after a long download.
pub async fn compilers() -> Result<()> {
    let path = env::var_os("PATH");
    for tool in TOOLS {
        tool.found(path.as_deref()).await.map_err(|why| ImageError::NoTool { what: tool.what, why })?;
    }
    Ok(())
}

struct Tool {
    what: &'static str,
    /// Any of these programs will do.
    programs: &'static [&'static str],
    /// The oldest version that will do, as the program tells its own: `cargo 1.95.0 (…)`.
    least: Option<&'static str>,
    fix: &'static str,
}

const TOOLS: &[Tool] = &[
    Tool {
        what: "cargo",
        programs: &["cargo"],
        least: Some(env!("CARGO_PKG_RUST_VERSION")),
        fix: "install Rust with rustup, without root; `rustup default stable` where it has no toolchain",
    },
    Tool { what: "C++ compiler", programs: &["c++", "g++", "clang++"], least: None, fix: "install g++ or clang" },
];

impl Tool {
    /// The program, or why none can be used.
    async fn found(&self, path: Option<&OsStr>) -> Result<PathBuf, String> {
        let first = |program| which::which_in_global(program, path).ok()?.next();
        let program = self.programs.iter().find_map(first).ok_or("is not in PATH")?;
        let said = tells_version(&program).await.map_err(|why| format!("does not work: {} --version: {why}", program.display()))?;
        let version = said.split(' ').nth(1).and_then(numbers);
        match (self.least, version) {
            (Some(least), Some(version)) if numbers(least).is_some_and(|least| version < least) => {
                Err(format!("is {}, and {least} is needed: {}", said.trim(), program.display()))
            }
            _ => Ok(program),
        }
    }
}

/// Major and minor number.
pub(super) fn numbers(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.split('.');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

/// Starts a program: what an installer leaves, such as rustup without a toolchain, need not have one behind it.
pub(super) async fn tells_version(program: &Path) -> Result<String, String> {
    let mut command = Command::new(program);
    command.arg("--version").stdin(Stdio::null()).kill_on_drop(true);
    let late = |_| format!("no answer for {} s", PATIENCE.as_secs());
    let output = timeout(PATIENCE, command.output()).await.map_err(late)?.map_err(|error| error.to_string())?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let first = said.lines().find(|line| !line.trim().is_empty());
    Err(first.map_or_else(|| output.status.to_string(), |line| line.trim_start_matches("error: ").trim_end_matches('.').to_owned()))
}

/// Tries to start a program in a directory, or in the nearest one above that exists: permissions tell nothing of the mount.
async fn starts_no_programs(directory: &Path) -> Option<Finding> {
    let existing = directory.ancestors().find(|path| path.is_dir()).unwrap_or(Path::new("/"));
    // Another finding is about what cannot be written.
    let (mut file, path) = tempfile::Builder::new().prefix(".ftctl-doctor.").tempfile_in(existing).ok()?.into_parts();
    file.write_all(b"#!/bin/sh\n").and_then(|()| file.set_permissions(Permissions::from_mode(0o700))).ok()?;
    // One that is open for writing is not started.
    drop(file);
    let started = Command::new(&path).stdin(Stdio::null()).output().await;
    started.err().filter(|error| error.kind() == ErrorKind::PermissionDenied).map(|error| {
        let message = format!(
            "no program may be started in {} ({error}): the file system is mounted noexec, and the trainer is built and run there",
            existing.display()
        );
        Finding::bad("programs", message, "name a directory elsewhere in XDG_CACHE_HOME, or mount it with exec")
    })
}

fn room(cache: &Path) -> Option<Finding> {
    let existing = cache.ancestors().find(|path| path.exists())?;
    let space = rustix::fs::statvfs(existing).ok()?;
    let free = space.f_bavail.saturating_mul(space.f_frsize);
    let gib = free >> 30;
    Some(if free >= ROOM {
        Finding::good("disk", format!("{gib} GiB free"))
    } else {
        Finding::notice(
            "disk",
            format!("{gib} GiB free; libtorch and the build need about 6"),
            format!("make room in {}", existing.display()),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_empty_machine_lacks_every_tool() {
        for tool in TOOLS {
            assert_eq!(tool.found(Some(OsStr::new("/nonexistent"))).await, Err("is not in PATH".to_owned()));
        }
    }

    #[tokio::test]
    async fn a_program_that_is_too_old_is_none() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().expect("a directory");
        let cargo = folder.path().join("cargo");
        for (version, fits) in [("1.63.0", false), ("0.99.0", false), ("1.95.0", true), ("1.100.0-nightly", true), ("2.0.0", true)]
        {
            std::fs::write(&cargo, format!("#!/bin/sh\necho 'cargo {version} (0 2026-01-01)'\n")).expect("written");
            std::fs::set_permissions(&cargo, std::fs::Permissions::from_mode(0o755)).expect("executable");
            let found = TOOLS[0].found(Some(folder.path().as_os_str())).await;
            assert_eq!(found.is_ok(), fits, "{version}: {found:?}");
            assert!(fits || found.is_err_and(|why| why.contains("1.95 is needed")), "{version}");
        }
    }

    #[tokio::test]
    async fn a_program_is_found_in_any_directory_of_the_path() {
        let [first, second] = [(); 2].map(|()| tempfile::tempdir().expect("a directory"));
        let path = env::join_paths([Path::new("/nonexistent"), first.path(), second.path()]).expect("a path");
        // Not the file that cannot be started, as a shell.
        std::fs::write(first.path().join("clang++"), "").expect("written");
        let program = second.path().join("clang++");
        std::os::unix::fs::symlink("/bin/true", &program).expect("made");
        assert_eq!(TOOLS[1].found(Some(&path)).await, Ok(program));
    }
}
