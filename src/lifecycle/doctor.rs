//! What would keep a job from running on this machine, each finding with the command that mends it. Offline, and changes nothing.

use std::{
    env,
    ffi::OsStr,
    path::{Path, PathBuf},
};

use super::{Result, World, upload};
use crate::{
    exit::Failure,
    image::{libtorch, trainer},
    job::{
        finding::{Finding, Health},
        plan::{DataPlan, Plan},
    },
    provider::TrainerFrom,
    store::azure::Way,
};

pub const DOCTOR_SCHEMA: &str = "ftctl.doctor/1";

/// Free space below which a first run on this machine would not fit: libtorch, the build, a dataset and checkpoints.
const ROOM: u64 = 6 << 30;

/// Looks at what ftctl needs on this machine wherever jobs run.
pub fn examine(state: &Path, cache: &Path) -> Vec<Finding> {
    vec![writable("state directory", state), writable("cache directory", cache)]
}

/// Looks at what the backend needs, and at what its trainer is built with where that happens here.
pub async fn examine_backend(world: &World) -> Vec<Finding> {
    let mut findings = match world.provider.capabilities().trainer {
        TrainerFrom::Build => examine_build(&world.cache),
        TrainerFrom::Engine | TrainerFrom::Image | TrainerFrom::Nowhere => Vec::new(),
    };
    findings.extend(world.provider.check().await);
    findings
}

fn examine_build(cache: &Path) -> Vec<Finding> {
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
    // What is built needs no tools any more.
    if built.is_none() {
        findings.extend(TOOLS.iter().map(|tool| found(tool, env::var_os("PATH").as_deref())));
        findings.extend(room(cache));
    }
    findings
}

/// Looks at what the job reads on this machine: its text or dataset, and the weights it starts from. What is in a store is not looked at.
pub fn examine_material(plan: &Plan, cache: &Path) -> Vec<Finding> {
    let data = match &plan.data {
        DataPlan::Directory(directory) => Some(upload::there(Path::new(directory))),
        DataPlan::Text(config) if config.source.is_none() => Some(upload::inputs(config, cache).map(drop)),
        DataPlan::Text(_) | DataPlan::Digest(_) | DataPlan::Named(_) => None,
    };
    let weights = plan.initial_weights.as_ref().map(|directory| upload::there(Path::new(directory)));
    let finding = |(what, found): (_, Option<Result<()>>)| {
        Some(found?.map_or_else(|failure| refused(what, failure), |()| Finding::good(what, "there")))
    };
    [("data", data), ("initial weights", weights)].into_iter().filter_map(finding).collect()
}

/// A failure as what it would be for a job.
pub fn refused(what: &'static str, failure: Failure) -> Finding {
    Finding { health: Health::Bad, what, message: failure.message, fix: failure.fix }
}

/// Which way of signing in to a blob container is used, and the order in which they are tried.
pub fn sign_in(ways: &[Way]) -> Finding {
    let order: Vec<&str> = ways.iter().map(|way| way.name).collect();
    let order = order.join(", ");
    match ways.iter().find(|way| way.ready) {
        Some(used) => Finding::good("sign-in", format!("{} (from {}); the first that is ready of: {order}", used.name, used.needs)),
        None => Finding::bad(
            "sign-in",
            format!("none is ready of: {order}"),
            "set AZURE_STORAGE_KEY, AZURE_STORAGE_SAS_TOKEN or AZURE_STORAGE_CONNECTION_STRING, or run `az login`",
        ),
    }
}

struct Tool {
    what: &'static str,
    /// Any of these programs will do.
    programs: &'static [&'static str],
    fix: &'static str,
}

const TOOLS: &[Tool] = &[
    Tool { what: "cargo", programs: &["cargo"], fix: "install Rust with rustup, without root" },
    Tool { what: "C++ compiler", programs: &["c++", "g++", "clang++"], fix: "install g++ or clang" },
    Tool { what: "python3", programs: &["python3"], fix: "install Python 3; it fetches libtorch" },
];

fn found(tool: &Tool, path: Option<&OsStr>) -> Finding {
    let directories: Vec<PathBuf> = path.map(|path| env::split_paths(path).collect()).unwrap_or_default();
    let candidates = directories.iter().flat_map(|directory| tool.programs.iter().map(move |program| directory.join(program)));
    match candidates.into_iter().find(|candidate| candidate.is_file()) {
        Some(program) => Finding::good(tool.what, program.display().to_string()),
        None => Finding::bad(tool.what, "not found in PATH; the trainer is built with it", tool.fix),
    }
}

/// Whether files could be made in a directory, or in the nearest one above that exists.
fn writable(what: &'static str, directory: &Path) -> Finding {
    use rustix::fs::{Access, access};
    let existing = directory.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/"));
    match access(existing, Access::WRITE_OK | Access::EXEC_OK) {
        Ok(()) => Finding::good(what, directory.display().to_string()),
        Err(error) => Finding::bad(
            what,
            format!("cannot write in {}: {error}", existing.display()),
            format!("chmod u+rwx {}", existing.display()),
        ),
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

    #[test]
    fn a_directory_that_does_not_exist_is_judged_by_the_one_above() {
        let directory = tempfile::tempdir().expect("a directory");
        assert_eq!(writable("x", &directory.path().join("a/b")).health, Health::Good);
        std::fs::write(directory.path().join("file"), "").expect("written");
        assert_eq!(writable("x", &directory.path().join("file/b")).health, Health::Bad, "a file is no directory");
    }
}
