//! libtorch without root and without a host name: the official wheel, installed by pip into the cache.
//!
//! `LIBTORCH` or `LIBTORCH_USE_PYTORCH` in the environment is respected: then nothing is installed.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use tokio::process::Command;

use super::{ImageError, Result, io_error, output, tail};
use crate::job::report::{Report, Unit};

/// The newest libtorch that still has Volta kernels in one of its builds; `tch` is pinned to it.
pub const VERSION: &str = "2.11.0";

/// On disk after installation, for the progress bar only (download and unpacked wheel, Linux x86-64).
const EXPECTED_BYTES: u64 = 1_750_000_000;

/// A libtorch to link against and to run with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Libtorch {
    /// What `torch-sys` reads at build time.
    pub variables: Vec<(String, String)>,
    /// Names this libtorch in the key of a built trainer.
    pub key: String,
}

/// Finds libtorch, or installs it. Interrupted installations leave a directory that the next one removes.
pub async fn ensure(cache: &Path, report: &dyn Report) -> Result<Libtorch> {
    if let Some(own) = from_environment() {
        return Ok(own);
    }
    let home = cache.join("libtorch").join(VERSION);
    if !home.join("complete").is_file() {
        install(&home, report).await?;
    }
    Ok(installed(&home))
}

/// The libtorch that is there already, if any: for `doctor`, which installs nothing.
pub fn present(cache: &Path) -> Option<Libtorch> {
    let home = cache.join("libtorch").join(VERSION);
    from_environment().or_else(|| home.join("complete").is_file().then(|| installed(&home)))
}

fn from_environment() -> Option<Libtorch> {
    let variables: Vec<(String, String)> = ["LIBTORCH", "LIBTORCH_LIB", "LIBTORCH_INCLUDE", "LIBTORCH_USE_PYTORCH"]
        .into_iter()
        .filter_map(|name| Some((name.to_owned(), env::var(name).ok()?)))
        .collect();
    let key = variables.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ");
    (!variables.is_empty()).then_some(Libtorch { variables, key })
}

fn installed(home: &Path) -> Libtorch {
    let text = |path: PathBuf| path.to_string_lossy().into_owned();
    Libtorch {
        variables: vec![
            ("LIBTORCH".to_owned(), text(home.join("site/torch"))),
            ("LIBTORCH_LIB".to_owned(), text(home.join("link"))),
        ],
        key: format!("{VERSION} {}", home.display()),
    }
}

async fn install(home: &Path, report: &dyn Report) -> Result<()> {
    let parent = home.parent().unwrap_or(home);
    fs::create_dir_all(parent).map_err(io_error("create", parent))?;
    let lock_path = parent.join("lock");
    let lock = fs::File::create(&lock_path).map_err(io_error("create", &lock_path))?;
    // Another ftctl may be installing: it takes minutes, so say why nothing moves.
    if lock.try_lock().is_err() {
        report.line("waiting for another ftctl that is installing libtorch");
        lock.lock().map_err(io_error("lock", &lock_path))?;
    }
    if home.join("complete").is_file() {
        return Ok(());
    }
    remove_partial(parent)?;
    remove(home)?;
    // A name of its own: the pip of an ftctl that was killed may still write into the last one.
    let partial = parent.join(format!("{VERSION}.partial-{}", std::process::id()));
    let pip = pip(&partial).await?;
    run_pip(&pip, &partial, report).await?;
    link_view(&partial)?;
    remove(&partial.join("temporary"))?;
    remove(&partial.join("venv"))?;
    fs::write(partial.join("complete"), VERSION).map_err(io_error("write", &partial))?;
    fs::rename(&partial, home).map_err(io_error("rename", &partial))
}

/// Removes what interrupted installations left.
fn remove_partial(parent: &Path) -> Result<()> {
    for entry in fs::read_dir(parent).map_err(io_error("read", parent))?.flatten() {
        if entry.file_name().to_string_lossy().contains(".partial") {
            remove(&entry.path())?;
        }
    }
    Ok(())
}

fn remove(directory: &Path) -> Result<()> {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(io_error("remove", directory)(error)),
        _ => Ok(()),
    }
}

/// The command that runs pip: python's own, else one from a throw-away virtual environment (some systems ship the one, some the other).
async fn pip(partial: &Path) -> Result<Vec<String>> {
    let purpose = "install libtorch (or set LIBTORCH to a libtorch 2.11 of your own)";
    if output("python3", &["-m", "pip", "--version"], purpose).await?.status.success() {
        return Ok(["python3", "-m", "pip"].map(str::to_owned).to_vec());
    }
    let venv = partial.join("venv").to_string_lossy().into_owned();
    if output("python3", &["-m", "venv", &venv], purpose).await?.status.success() {
        return Ok(vec![format!("{venv}/bin/python"), "-m".to_owned(), "pip".to_owned()]);
    }
    Err(ImageError::Unusable(
        "python3 has neither pip nor venv, and libtorch is installed with one of them: install python3-pip or python3-venv, or set \
         LIBTORCH to a libtorch 2.11 of your own"
            .to_owned(),
    ))
}

async fn run_pip(pip: &[String], partial: &Path, report: &dyn Report) -> Result<()> {
    let temporary = partial.join("temporary");
    fs::create_dir_all(&temporary).map_err(io_error("create", &temporary))?;
    let log_path = partial.with_extension("log");
    let log = fs::File::create(&log_path).map_err(io_error("create", &log_path))?;
    let mut command = Command::new(&pip[0]);
    command.args(&pip[1..]).args([
        "install",
        "--no-deps",
        "--no-compile",
        "--no-cache-dir",
        "--disable-pip-version-check",
        "--target",
    ]);
    command.arg(partial.join("site")).arg(format!("torch=={VERSION}"));
    if cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        // libtorch_cpu of the CUDA build links these two; without them it does not load, even on a machine without a GPU.
        command.args(["nvidia-cuda-runtime==13.*", "nvidia-cuda-cupti==13.*"]);
    }
    command.env("TMPDIR", &temporary).stdin(Stdio::null()).kill_on_drop(true);
    command.stdout(log.try_clone().map_err(io_error("open", &log_path))?).stderr(log);
    let mut child =
        command.spawn().map_err(|source| ImageError::Missing { program: "python3", purpose: "install libtorch", source })?;
    let what = format!("Installing libtorch {VERSION}");
    let status = loop {
        tokio::select! {
            status = child.wait() => break status.map_err(io_error("wait for", &log_path))?,
            () = tokio::time::sleep(Duration::from_millis(500)) => {
                report.progress(&what, size_of(partial).min(EXPECTED_BYTES - 1), Some(EXPECTED_BYTES), Unit::Bytes);
            }
        }
    };
    if !status.success() {
        return Err(ImageError::Failed { purpose: "installing libtorch with pip", tail: tail(&log_path), log: log_path });
    }
    report.progress(&what, EXPECTED_BYTES, Some(EXPECTED_BYTES), Unit::Bytes);
    Ok(())
}

/// Bytes below a directory; what vanishes meanwhile counts as nothing.
fn size_of(directory: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(directory) else { return 0 };
    entries
        .flatten()
        .map(|entry| match entry.metadata() {
            Ok(meta) if meta.is_dir() => size_of(&entry.path()),
            Ok(meta) => meta.len(),
            Err(_) => 0,
        })
        .sum()
}

/// A folder that shows the linker the CPU libraries only: with libtorch_cuda in sight torch-sys would link it, and the trainer would not
/// start on a machine without the CUDA libraries.
fn link_view(partial: &Path) -> Result<()> {
    let link = partial.join("link/lib");
    fs::create_dir_all(&link).map_err(io_error("create", &link))?;
    let extension = if cfg!(target_os = "macos") { "dylib" } else { "so" };
    for library in ["c10", "torch_cpu", "torch"] {
        let name = format!("lib{library}.{extension}");
        let target = Path::new("../../site/torch/lib").join(&name);
        std::os::unix::fs::symlink(target, link.join(&name)).map_err(io_error("link", &link))?;
    }
    Ok(())
}
