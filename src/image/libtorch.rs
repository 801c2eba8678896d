//! libtorch without root and without a host name: the official wheel, installed by pip into the cache.
//!
//! `LIBTORCH` or `LIBTORCH_USE_PYTORCH` in the environment is respected: then nothing is installed.

use std::{
    env, fs,
    path::{Path, PathBuf},
    time::Duration,
};

use super::{
    ImageError, Result,
    installer::{self, Installer},
    io_error, lock, tail,
};
use crate::job::report::{Report, Unit};

/// The newest libtorch that still has Volta kernels in one of its builds; `tch` is pinned to it.
pub const VERSION: &str = "2.11.0";

/// The installed part of libtorch. The trainer is built against the same part of it in every variant, and loads the CUDA part where
/// it finds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Variant {
    /// The variant's name in `FTCTL_LIBTORCH`.
    name: &'static str,
    /// Directory below `libtorch/` in the cache.
    directory: &'static str,
    /// Wheels by version and digest: pip installs these, and nothing else.
    wheels: &'static [&'static str],
    /// On disk after installation, for the progress bar only (download and unpacked wheel, Linux x86-64); where it is known.
    expected_bytes: Option<u64>,
}

/// The wheel is the CUDA build everywhere but on macOS. Its libtorch_cpu links two of CUDA's packages: without them it does not
/// load, even on a machine without a GPU.
const CPU: Variant = Variant {
    name: "cpu",
    directory: VERSION,
    wheels: if cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        &[include_str!("../../docker/wheels/cpu.txt"), include_str!("../../docker/wheels/cpu-links.txt")]
    } else {
        &[include_str!("../../docker/wheels/cpu.txt")]
    },
    expected_bytes: Some(1_750_000_000),
};

/// With CUDA's libraries, all that the wheel names.
const CUDA: Variant = Variant {
    name: "cuda",
    directory: "2.11.0-cuda",
    wheels: &[include_str!("../../docker/wheels/cu130.txt")],
    expected_bytes: None,
};

/// Chooses the variant; absent, a machine with NVIDIA's driver has CUDA.
const VARIANT: &str = "FTCTL_LIBTORCH";
/// There while NVIDIA's kernel module is loaded.
const DRIVER: &str = "/proc/driver/nvidia/version";

/// A libtorch to link against and to run with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Libtorch {
    /// Variables that `torch-sys` reads at build time.
    pub variables: Vec<(String, String)>,
    /// Names this libtorch in the key of a built trainer.
    pub key: String,
}

/// Finds libtorch, or installs it. Interrupted installations leave a directory that the next one removes.
pub async fn ensure(cache: &Path, report: &dyn Report) -> Result<Libtorch> {
    if let Some(own) = from_environment() {
        return Ok(own);
    }
    let variant = wanted()?;
    let home = cache.join("libtorch").join(variant.directory);
    if !home.join("complete").is_file() {
        install(&home, variant, report).await?;
    }
    Ok(installed(&home))
}

fn wanted() -> Result<Variant> {
    variant(env::var(VARIANT).ok().as_deref(), Path::new(DRIVER).exists())
}

fn variant(named: Option<&str>, has_driver: bool) -> Result<Variant> {
    match named {
        None => Ok(if has_driver { CUDA } else { CPU }),
        Some(name) => [CPU, CUDA].into_iter().find(|variant| variant.name == name).ok_or_else(|| {
            ImageError::Unusable(format!(
                "{VARIANT} is `{name}`; set it to `cpu` or `cuda`, or unset it to let the machine's driver decide"
            ))
        }),
    }
}

/// The libtorch that is there already, if any: for `doctor`, which installs nothing.
pub fn present(cache: &Path) -> Option<Libtorch> {
    let home = cache.join("libtorch").join(wanted().ok()?.directory);
    from_environment().or_else(|| home.join("complete").is_file().then(|| installed(&home)))
}

/// Why the libtorch that the environment names cannot be one.
pub fn misnamed() -> Option<String> {
    let (name, home) = ["LIBTORCH_LIB", "LIBTORCH"].into_iter().find_map(|name| Some((name, PathBuf::from(env::var_os(name)?))))?;
    let file = home.join("lib").join(library("torch_cpu"));
    (!file.is_file()).then(|| format!("{name} names {}, and there is no {}", home.display(), file.display()))
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

async fn install(home: &Path, variant: Variant, report: &dyn Report) -> Result<()> {
    let parent = home.parent().unwrap_or(home);
    fs::create_dir_all(parent).map_err(io_error("create", parent))?;
    let _lock = lock(&parent.join("lock"), "installing libtorch", report).await?;
    if home.join("complete").is_file() {
        return Ok(());
    }
    remove_partial(parent)?;
    remove(home)?;
    // A name of its own: the pip of an ftctl that was killed may still write into the last one.
    let partial = parent.join(format!("{}.partial-{}", variant.directory, std::process::id()));
    let installer = Installer::find(&partial).await?;
    link_view(&partial)?;
    run(&installer, &partial, variant, report).await?;
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

async fn run(installer: &Installer, partial: &Path, variant: Variant, report: &dyn Report) -> Result<()> {
    let temporary = partial.join("temporary");
    fs::create_dir_all(&temporary).map_err(io_error("create", &temporary))?;
    let wheels = partial.join("wheels.txt");
    fs::write(&wheels, variant.wheels.concat()).map_err(io_error("write", &wheels))?;
    let log_path = partial.with_extension("log");
    let log = fs::File::create(&log_path).map_err(io_error("create", &log_path))?;
    let mut command = installer.command(&wheels, &partial.join("site"));
    command.env("TMPDIR", &temporary);
    command.stdout(log.try_clone().map_err(io_error("open", &log_path))?).stderr(log);
    let mut child =
        command.spawn().map_err(|source| ImageError::Missing { program: "python3", purpose: "install libtorch", source })?;
    let what = format!("Installing libtorch {VERSION} for {}", variant.name);
    let status = loop {
        tokio::select! {
            status = child.wait() => break status.map_err(io_error("wait for", &log_path))?,
            () = tokio::time::sleep(Duration::from_millis(500)) => {
                let most = variant.expected_bytes.map_or(u64::MAX, |expected| expected - 1);
                report.progress(&what, size_of(partial).min(most), variant.expected_bytes, Unit::Bytes);
            }
        }
    };
    if !status.success() {
        let tail = tail(&log_path);
        let advice = installer::advice(&tail);
        return Err(ImageError::Failed { purpose: "installing libtorch", tail, log: log_path, advice });
    }
    let needed = library("torch_cpu");
    if !partial.join("link/lib").join(&needed).is_file() {
        let tail = format!("the installer reported success, and there is no {needed}");
        let advice = "its own settings send wheels elsewhere, or nowhere: `pip config list` shows them";
        return Err(ImageError::Failed { purpose: "installing libtorch", tail, log: log_path, advice });
    }
    let bytes = size_of(&partial.join("site"));
    report.progress(&what, bytes, Some(bytes), Unit::Bytes);
    Ok(())
}

/// The file of a library, in the folder `lib` of a libtorch.
fn library(name: &str) -> String {
    format!("lib{name}.{}", if cfg!(target_os = "macos") { "dylib" } else { "so" })
}

/// Bytes below a directory; files that vanish meanwhile count as nothing.
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

/// A folder that shows the linker the CPU libraries only: with libtorch_cuda in sight torch-sys would name it to the linker, which
/// drops it again because no symbol of it is used, or with `--no-as-needed` makes a trainer that does not start without CUDA's
/// libraries. The trainer loads it when a GPU is asked for.
fn link_view(partial: &Path) -> Result<()> {
    let link = partial.join("link/lib");
    fs::create_dir_all(&link).map_err(io_error("create", &link))?;
    for name in ["c10", "torch_cpu", "torch"].map(library) {
        let target = Path::new("../../site/torch/lib").join(&name);
        std::os::unix::fs::symlink(target, link.join(&name)).map_err(io_error("link", &link))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_chooses_the_variant_unless_a_user_does() {
        assert_eq!([variant(None, false).unwrap(), variant(None, true).unwrap()], [CPU, CUDA]);
        assert_eq!([variant(Some("cpu"), true).unwrap(), variant(Some("cuda"), false).unwrap()], [CPU, CUDA]);
        let refused = variant(Some("cu130"), true).unwrap_err().to_string();
        assert!(refused.contains("FTCTL_LIBTORCH is `cu130`; set it to `cpu` or `cuda`"), "{refused}");
        assert!(CUDA.directory.starts_with(VERSION) && CUDA.directory != CPU.directory);
    }

    #[test]
    fn every_wheel_has_a_version_and_a_digest() {
        let of_older_gpus = include_str!("../../docker/wheels/cu126.txt").to_owned();
        for wheels in [CPU.wheels.concat(), CUDA.wheels.concat(), of_older_gpus] {
            let lines = wheels.replace(" \\\n", " ");
            let wheels: Vec<&str> = lines.lines().filter(|line| !line.starts_with('#')).collect();
            let torch = ["", "+cu126"].map(|build| format!("torch=={VERSION}{build} "));
            assert!(torch.iter().any(|torch| wheels[0].starts_with(torch)), "{lines}");
            assert!(wheels.iter().all(|wheel| wheel.contains("==")), "{lines}");
            let digests = |wheel: &str| {
                let digests: Vec<&str> = wheel.split(' ').skip(1).filter(|word| !word.is_empty()).collect();
                !digests.is_empty() && digests.iter().all(|digest| digest.len() == "--hash=sha256:".len() + 64)
            };
            assert!(wheels.iter().all(|wheel| digests(wheel)), "{lines}");
        }
    }
}
