//! The places a setting can come from, each read into the same shape.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::{
    SettingsError, Surroundings,
    file::{self, OpenError},
};
use crate::job::{
    address,
    document::{Document, DocumentError},
    image::ImageSpec,
    report::{Format, Verbosity},
    units::{Money, Span},
};

/// Where a value was found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Origin {
    Flag { name: &'static str },
    Environment { name: &'static str },
    JobFile,
    Project { path: PathBuf },
    Profile { name: String, path: PathBuf },
    User { path: PathBuf },
    Default,
}

impl std::fmt::Display for Origin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Origin::Flag { name } => write!(f, "flag {name}"),
            Origin::Environment { name } => write!(f, "environment {name}"),
            Origin::JobFile => f.write_str("job file"),
            Origin::Project { path } | Origin::User { path } => write!(f, "{}", path.display()),
            Origin::Profile { name, path } => write!(f, "profile {name} in {}", path.display()),
            Origin::Default => f.write_str("default"),
        }
    }
}

/// The settings of one place. Absent keys are left to the places below.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Layer {
    pub profile: Option<String>,
    pub backend: Option<String>,
    pub image: ImageSpec,
    pub store: Option<String>,
    pub ttl: Option<Span>,
    pub max_cost: Option<Money>,
    pub max_wait: Option<Span>,
    pub output: Option<Format>,
    pub log: Option<Verbosity>,
}

impl Layer {
    /// The values of the environment's `FTCTL_*` variables.
    pub(super) fn from_environment(around: &Surroundings<'_>) -> Result<Self, SettingsError> {
        let mut layer = Self {
            profile: read(around, "FTCTL_PROFILE")?,
            backend: read(around, "FTCTL_BACKEND")?,
            image: ImageSpec::default(),
            store: read(around, "FTCTL_STORE")?,
            ttl: read(around, "FTCTL_TTL")?,
            max_cost: read(around, "FTCTL_MAX_COST")?,
            max_wait: read(around, "FTCTL_MAX_WAIT")?,
            output: read(around, "FTCTL_OUTPUT")?,
            log: read(around, "FTCTL_LOG")?,
        };
        layer.anchor(&around.working_directory);
        Ok(layer)
    }

    /// A relative path means: relative to where it was written down.
    pub(super) fn anchor(&mut self, base: &Path) {
        self.store = self.store.take().map(|store| anchor(&store, base));
        for path in [&mut self.image.ca_bundle, &mut self.image.prebuilt] {
            *path = path.take().map(|path| below(base, &path));
        }
    }
}

/// `store` below `base`, if it is a relative path. Another text stays what it is: a mistaken address below a directory would pass
/// for a path.
pub(super) fn anchor(store: &str, base: &Path) -> String {
    if address::is_directory(store) { below(base, store) } else { store.to_owned() }
}

/// An absolute path stays what it is, and an empty one too: a variable that is not set means no directory.
pub(super) fn below(base: &Path, path: &str) -> String {
    if path.is_empty() { String::new() } else { base.join(path).to_string_lossy().into_owned() }
}

/// The user's `config.toml`: a layer, and named layers to choose from.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct UserFile {
    profile: Option<String>,
    backend: Option<String>,
    image: ImageSpec,
    store: Option<String>,
    ttl: Option<Span>,
    max_cost: Option<Money>,
    max_wait: Option<Span>,
    output: Option<Format>,
    log: Option<Verbosity>,
    /// The user's own word: no project says whose jobs this machine works for.
    adopt: Option<Vec<String>>,
    /// Neither does a project say who is told of jobs, or what is run for that.
    notify: Notify,
    profiles: BTreeMap<String, Layer>,
}

/// The settings of the user's file.
#[derive(Default)]
pub(super) struct OfUser {
    pub layer: Layer,
    pub profiles: BTreeMap<String, Layer>,
    /// Stores whose jobs are driven here, other users' included.
    pub adopt: Option<Vec<String>>,
    pub notify: Notify,
}

/// `[notify]`: who is told of a job's end, a preemption, and machines that may be left.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Notify {
    /// An address that takes JSON by POST, as those of Slack, Teams and Discord do.
    pub webhook: Option<String>,
    /// A program and its arguments, which reads the same JSON on stdin.
    pub command: Vec<String>,
}

/// Reads the user's file; none is fine.
pub(super) fn user_file(path: &Path) -> Result<OfUser, SettingsError> {
    let UserFile { profile, backend, image, store, ttl, max_cost, max_wait, output, log, adopt, notify, mut profiles } =
        parsed(file::open(path))?;
    let mut layer = Layer { profile, backend, image, store, ttl, max_cost, max_wait, output, log };
    let base = path.parent().unwrap_or(path);
    layer.anchor(base);
    for profile in profiles.values_mut() {
        profile.anchor(base);
    }
    let adopt = adopt.map(|stores| stores.iter().map(|store| anchor(store, base)).collect());
    Ok(OfUser { layer, profiles, adopt, notify })
}

/// Reads a project's file; none is fine.
pub(super) fn project_file(path: &Path) -> Result<Layer, SettingsError> {
    let mut layer: Layer = parsed(file::open_plain(path))?;
    layer.anchor(path.parent().unwrap_or(path));
    Ok(layer)
}

fn parsed<T: DeserializeOwned + Default>(file: Result<Document, OpenError>) -> Result<T, SettingsError> {
    match file {
        Ok(document) => Ok(document.parse::<T>().map_err(OpenError::from)?.0),
        Err(OpenError::Missing(_)) => Ok(T::default()),
        Err(error) => Err(error.into()),
    }
}

/// One variable, judged exactly as the same value in a file would be.
pub(super) fn read<T: DeserializeOwned>(around: &Surroundings<'_>, name: &str) -> Result<Option<T>, SettingsError> {
    let Some(value) = (around.variable)(name).filter(|value| !value.is_empty()) else { return Ok(None) };
    let not_text = |_| SettingsError::Variable { message: format!("{name} is not valid UTF-8"), hint: None };
    let value = toml::Value::from(value.into_string().map_err(not_text)?);
    let wrong = |error: DocumentError| SettingsError::Variable { message: error.message, hint: error.hint };
    let document = Document::new(name, format!("{name} = {value}").into_bytes()).map_err(wrong)?;
    let (mut parsed, _) = document.parse::<BTreeMap<String, T>>().map_err(wrong)?;
    Ok(parsed.remove(name))
}
