//! Where ftctl keeps its files: the XDG base directories.

use std::{
    ffi::OsString,
    fs,
    os::unix::fs::{DirBuilderExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

use super::SettingsError;

/// The process's surroundings. They are a parameter, so that tests need not change their own environment.
pub struct Surroundings<'a> {
    /// An environment variable; empty ones count as absent.
    pub variable: &'a dyn Fn(&str) -> Option<OsString>,
    /// The home directory, when there is one.
    pub home: Option<PathBuf>,
    pub working_directory: PathBuf,
}

/// ftctl's own directories; `None` where neither the XDG variable nor a home directory says where.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Directories {
    config: Option<PathBuf>,
    state: Option<PathBuf>,
    cache: Option<PathBuf>,
}

pub(super) const NO_STORE: SettingsError = SettingsError::NoHome { what: "the embedded store", variable: "XDG_STATE_HOME" };

impl Directories {
    pub fn resolve(around: &Surroundings<'_>) -> Self {
        let find = |variable: &str, below_home: &str| {
            // "If an implementation encounters a relative path in any of these variables it should consider the path invalid and
            // ignore it."
            let explicit = (around.variable)(variable).map(PathBuf::from).filter(|path| path.is_absolute());
            let home = || around.home.as_ref().filter(|home| home.is_absolute()).map(|home| home.join(below_home));
            explicit.or_else(home).map(|base| base.join("ftctl"))
        };
        Self {
            config: find("XDG_CONFIG_HOME", ".config"),
            state: find("XDG_STATE_HOME", ".local/state"),
            cache: find("XDG_CACHE_HOME", ".cache"),
        }
    }

    /// Holds `config.toml`.
    pub fn config(&self) -> Option<&Path> {
        self.config.as_deref()
    }

    /// The store of a user who names none.
    pub(super) fn embedded_store(&self) -> Option<PathBuf> {
        self.state.as_ref().map(|state| state.join("store"))
    }

    /// Holds the embedded store and other data that must survive. See [`private`].
    pub fn state(&self) -> Result<&Path, SettingsError> {
        self.state.as_deref().map(private).ok_or(NO_STORE)
    }

    /// Holds what can be made again: libtorch, the built trainer. Safe to delete. See [`private`].
    pub fn cache(&self) -> Result<&Path, SettingsError> {
        self.cache.as_deref().map(private).ok_or(SettingsError::NoHome { what: "the cache", variable: "XDG_CACHE_HOME" })
    }
}

/// Makes a directory of ftctl's own, for its owner alone. One that is there already becomes so: texts, weights and tokens of clouds
/// lie below it. Where this is impossible, the write that follows says why.
fn private(directory: &Path) -> &Path {
    let _ = fs::DirBuilder::new().recursive(true).mode(0o700).create(directory);
    if fs::metadata(directory).is_ok_and(|found| found.permissions().mode() & 0o077 != 0) {
        let _ = fs::set_permissions(directory, fs::Permissions::from_mode(0o700));
    }
    directory
}
