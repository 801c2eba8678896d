//! The trainer as a program on this machine: built once per set of sources, kept in the cache.

use std::{
    env,
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::Stdio,
};

use ft_trainer::openmp;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    process::Command,
};

use super::{ImageError, Result, first_error, io_error, libtorch, lock, needs, sources, tail};
use crate::job::{
    digest::Digest,
    order::program,
    report::{Report, Unit},
};

/// The trainer that is built already, if any.
pub fn present(cache: &Path) -> Option<PathBuf> {
    let libtorch = libtorch::present(cache)?;
    let path = program(cache, &digest(&libtorch.key));
    path.is_file().then_some(path)
}

/// The sources and the libtorch they are linked with name the program.
fn digest(libtorch: &str) -> Digest {
    Digest::of(format!("{} {libtorch}", sources::trainer_digest()).as_bytes())
}

/// Finds the trainer, or builds it with cargo from the embedded sources. It lies where [`program`] says.
pub async fn ensure(cache: &Path, report: &dyn Report) -> Result<Digest> {
    if present(cache).is_none() {
        needs::compilers().await?;
    }
    let libtorch = libtorch::ensure(cache, report).await?;
    let digest = digest(&libtorch.key);
    let path = program(cache, &digest);
    let home = cache.join("trainer");
    fs::create_dir_all(&home).map_err(io_error("create", &home))?;
    if !path.is_file() {
        let _lock = lock(&home.join("lock"), "building the trainer", report).await?;
        build(&home, &libtorch, &path, report).await?;
    }
    Ok(digest)
}

async fn build(home: &Path, libtorch: &libtorch::Libtorch, program: &Path, report: &dyn Report) -> Result<()> {
    let source = home.join("source");
    fs::create_dir_all(&source).map_err(io_error("create", &source))?;
    sources::unpack(&source)?;
    let target = cargo_target().unwrap_or_else(|| home.join("target"));
    let log_path = home.join("build.log");
    let mut command = Command::new("cargo");
    command.args(["build", "--release", "--locked", "--color=never", "--package=ft-trainer", "--manifest-path"]);
    command.arg(source.join("Cargo.toml")).arg("--target-dir").arg(&target);
    command.envs(libtorch.variables.iter().cloned()).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    command.kill_on_drop(true);
    let missing = |source| ImageError::Missing { program: "cargo", purpose: "build the trainer", source };
    let child = command.spawn().map_err(missing)?;
    if !follow(child, &log_path, report).await? {
        return Err(ImageError::Failed {
            purpose: "building the trainer with cargo",
            tail: first_error(&log_path).unwrap_or_else(|| tail(&log_path)),
            log: log_path,
            advice: "cargo finds its registry by HTTPS_PROXY and its own settings; `ftctl doctor` looks for the tools that it needs",
        });
    }
    install(&target.join("release/ft-trainer"), program)
}

/// Copies cargo's output into the log and turns its lines into progress. Answers whether cargo succeeded.
async fn follow(mut child: tokio::process::Child, log_path: &Path, report: &dyn Report) -> Result<bool> {
    let what = "Building the trainer";
    let mut log = tokio::fs::File::create(log_path).await.map_err(io_error("create", log_path))?;
    let mut compiled = 0;
    report.progress(what, 0, None, Unit::Items);
    if let Some(stderr) = child.stderr.take() {
        let mut lines = BufReader::new(stderr).lines();
        while let Some(line) = lines.next_line().await.map_err(io_error("read the output for", log_path))? {
            log.write_all(format!("{line}\n").as_bytes()).await.map_err(io_error("write", log_path))?;
            if line.trim_start().starts_with("Compiling") {
                compiled += 1;
                report.progress(what, compiled, None, Unit::Items);
            }
        }
    }
    log.flush().await.map_err(io_error("write", log_path))?;
    report.progress(what, compiled, Some(compiled), Unit::Items);
    Ok(child.wait().await.map_err(io_error("wait for cargo, see", log_path))?.success())
}

/// Under a temporary name first: a killed ftctl must not leave half a program under the name that means "built".
fn install(built: &Path, program: &Path) -> Result<()> {
    let parent = program.parent().unwrap_or(program);
    fs::create_dir_all(parent).map_err(io_error("create", parent))?;
    let temporary = program.with_extension("partial");
    fs::copy(built, &temporary).map_err(io_error("copy", built))?;
    fs::rename(&temporary, program).map_err(io_error("rename", &temporary))
}

/// The target directory that this very program was built in, when it runs from one: the trainer's dependencies are the same
/// packages, and half the build is already there.
fn cargo_target() -> Option<PathBuf> {
    let executable = env::current_exe().ok()?;
    let profile = executable.parent()?;
    profile.join(".fingerprint").is_dir().then(|| profile.parent().map(Path::to_owned))?
}

/// The trainer's answer to one question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    pub stdout: Vec<u8>,
    /// `None` when a signal ended it.
    pub code: Option<i32>,
    /// Its last words, when it failed.
    pub error: String,
}

/// Runs the trainer on this machine for one answer; its other output goes to `report` line by line.
pub async fn ask(cache: &Path, arguments: &[OsString], report: &dyn Report) -> Result<Answer> {
    let path = program(cache, &ensure(cache, report).await?);
    let mut command = Command::new(&path);
    command
        .args(arguments)
        .envs(openmp::policy())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    let mut child = command.spawn().map_err(io_error("start", &path))?;
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let talk = async {
        let mut error = String::new();
        let Some(stderr) = stderr else { return Ok(error) };
        let mut lines = BufReader::new(stderr).lines();
        while let Some(line) = lines.next_line().await? {
            match line.strip_prefix("error: ") {
                Some(words) => words.clone_into(&mut error),
                None if error.is_empty() => report.line(&line),
                None => error.extend(["\n", &line]),
            }
        }
        // The text after an empty line is about the trainer's own command line.
        Ok(error.split("\n\n").next().unwrap_or_default().to_owned())
    };
    let data = async {
        let mut bytes = Vec::new();
        if let Some(mut stdout) = stdout {
            stdout.read_to_end(&mut bytes).await?;
        }
        Ok::<_, std::io::Error>(bytes)
    };
    let (error, stdout) = tokio::try_join!(talk, data).map_err(io_error("read the answer of", &path))?;
    let status = child.wait().await.map_err(io_error("wait for", &path))?;
    let error = if error.is_empty() { format!("the trainer ended with {status}") } else { error };
    Ok(Answer { stdout, code: status.code(), error })
}
