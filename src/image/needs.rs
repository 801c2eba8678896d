//! Finds what a build of the trainer on this machine needs. Asks no network and changes nothing.

use std::{
    env,
    ffi::OsStr,
    path::{Path, PathBuf},
};

use super::{ImageError, Result, libtorch, trainer};
use crate::job::finding::{Finding, Health};

/// Free space below which a first run on this machine would not fit: libtorch, the build, a dataset and checkpoints.
const ROOM: u64 = 6 << 30;

/// Looks for the libtorch and the trainer of this version, and without a trainer for what builds one.
pub fn examine(cache: &Path) -> Vec<Finding> {
    let built = trainer::present(cache);
    let mut findings = Vec::new();
    findings.push(match libtorch::present(cache) {
        Some(_) => Finding::good("libtorch", format!("{} is there", libtorch::VERSION)),
        None => Finding::notice("libtorch", "not installed yet; the first job does it", "ftctl build --print path"),
    });
    findings.push(match &built {
        Some(path) => Finding::good("trainer", path.display().to_string()),
        None => Finding::notice("trainer", "not built yet; the first job does it", "ftctl build --print path"),
    });
    // A built trainer needs no tools any more.
    if built.is_none() {
        findings.extend(TOOLS.iter().map(|tool| found(tool, env::var_os("PATH").as_deref())));
        findings.extend(room(cache));
    }
    findings
}

/// Refuses to begin a build of the trainer that would fail after a long download.
pub fn compilers() -> Result<()> {
    let path = env::var_os("PATH");
    let lacking = TOOLS.iter().filter(|tool| tool.compiles).find(|tool| found(tool, path.as_deref()).health == Health::Bad);
    lacking.map_or(Ok(()), |tool| Err(ImageError::NoTool { what: tool.what }))
}

struct Tool {
    what: &'static str,
    /// Whether it is needed after libtorch has come.
    compiles: bool,
    /// Any of these programs will do.
    programs: &'static [&'static str],
    fix: &'static str,
}

const TOOLS: &[Tool] = &[
    Tool { what: "cargo", compiles: true, programs: &["cargo"], fix: "install Rust with rustup, without root" },
    Tool { what: "C++ compiler", compiles: true, programs: &["c++", "g++", "clang++"], fix: "install g++ or clang" },
    Tool { what: "python3", compiles: false, programs: &["python3"], fix: "install Python 3; it fetches libtorch" },
];

fn found(tool: &Tool, path: Option<&OsStr>) -> Finding {
    let directories: Vec<PathBuf> = path.map(|path| env::split_paths(path).collect()).unwrap_or_default();
    let candidates = directories.iter().flat_map(|directory| tool.programs.iter().map(move |program| directory.join(program)));
    match candidates.into_iter().find(|candidate| candidate.is_file()) {
        Some(program) => Finding::good(tool.what, program.display().to_string()),
        None => Finding::bad(tool.what, "not found in PATH; the trainer is built with it", tool.fix),
    }
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

    #[test]
    fn an_empty_machine_lacks_every_tool_and_says_how_to_get_it() {
        for tool in TOOLS {
            let finding = found(tool, Some(OsStr::new("/nonexistent")));
            assert_eq!((finding.health, finding.fix.as_deref()), (Health::Bad, Some(tool.fix)));
        }
    }

    #[test]
    fn a_program_is_found_in_any_directory_of_the_path() {
        let directory = tempfile::tempdir().expect("a directory");
        std::fs::write(directory.path().join("clang++"), "").expect("written");
        let path = env::join_paths([Path::new("/nonexistent"), directory.path()]).expect("a path");
        assert_eq!(found(&TOOLS[1], Some(&path)).health, Health::Good);
    }
}
