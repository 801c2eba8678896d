//! The settings in force: flag > environment > job file > project file > user file (the chosen profile first) > default.
//!
//! The job file stands below the environment so that a pipeline can move a checked-in job, and above the other files because it
//! says what this one job needs. Every value knows where it was found.

use std::{
    collections::BTreeMap,
    fmt,
    path::{Path, PathBuf},
};

use serde_json::{Value, json};

use crate::job::{
    compute::Backend,
    image::ImageSpec,
    plan::{Choices, DEFAULT_MAX_WAIT},
    report::{Format, Verbosity},
    spec::JobSpec,
    units::{Money, Span},
    wording::{self, suggest},
};

mod directories;
mod file;
mod layers;
pub mod trust;

pub use directories::{Directories, Surroundings};
pub use file::{OpenError, meant, open};
use layers::OfUser;
pub use layers::{Layer, Notify, Origin};
use trust::{Claims, Places};

/// The project's settings, in the working directory.
pub const PROJECT_FILE: &str = "ftctl.toml";
/// The user's settings, in the configuration directory.
pub const USER_FILE: &str = "config.toml";

const DEFAULT_BACKEND: Backend = Backend::Local;
const DEFAULT_TTL: Span = Span(std::time::Duration::from_secs(24 * 3_600));

#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    #[error(transparent)]
    File(#[from] OpenError),
    #[error("{message}")]
    Variable { message: String, hint: Option<String> },
    #[error("there is no profile `{name}` (from {origin})")]
    NoProfile { name: String, origin: Origin, hint: String },
    #[error("there is no place for {what}: neither {variable} nor a home directory is set")]
    NoHome { what: &'static str, variable: &'static str },
}

/// A value and where it was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting<T> {
    pub value: T,
    pub origin: Origin,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    pub profile: Setting<Option<String>>,
    pub backend: Setting<String>,
    /// The keys of [`ImageSpec`] that are set.
    pub image: BTreeMap<String, Setting<Value>>,
    /// URL or absolute path; `None` when not even the embedded store has a place.
    pub store: Setting<Option<String>>,
    pub ttl: Setting<Span>,
    pub max_cost: Setting<Option<Money>>,
    pub max_wait: Setting<Span>,
    pub output: Setting<Format>,
    pub log: Setting<Verbosity>,
    /// By the environment or the user's file, and nowhere else.
    pub adopt: Setting<Option<Adopt>>,
    /// By the same two. The webhook's address may be a secret.
    pub notify: Setting<Notify>,
    pub directories: Directories,
    /// Settings that hold on the project's word alone.
    pub project: Claims,
    /// Files that were looked for, strongest first.
    pub files: Vec<PathBuf>,
}

/// Whose jobs are driven here besides the user's own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Adopt {
    Everything,
    /// Those of these stores, as they are named.
    Of(Vec<String>),
}

impl fmt::Display for Adopt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Everything => f.write_str("everything"),
            Self::Of(stores) => f.write_str(&stores.join(", ")),
        }
    }
}

/// 1: every job of the store is driven here.
const ADOPT: &str = "FTCTL_ADOPT";
/// The webhook of `[notify]`.
const NOTIFY_WEBHOOK: &str = "FTCTL_NOTIFY_WEBHOOK";

/// The names one setting goes by.
#[derive(Clone, Copy)]
struct Key {
    flag: &'static str,
    variable: &'static str,
}

const PROFILE: Key = Key { flag: "--profile", variable: "FTCTL_PROFILE" };
const BACKEND: Key = Key { flag: "--backend", variable: "FTCTL_BACKEND" };
const STORE: Key = Key { flag: "--store", variable: "FTCTL_STORE" };
const TTL: Key = Key { flag: "--ttl", variable: "FTCTL_TTL" };
const MAX_COST: Key = Key { flag: "--max-cost", variable: "FTCTL_MAX_COST" };
const MAX_WAIT: Key = Key { flag: "--max-wait", variable: "FTCTL_MAX_WAIT" };
const OUTPUT: Key = Key { flag: "--output", variable: "FTCTL_OUTPUT" };
const LOG: Key = Key { flag: "--quiet or --verbose", variable: "FTCTL_LOG" };

/// The flags of [`ImageSpec`], named like its keys.
const IMAGE_FLAGS: [&str; 9] =
    ["--variant", "--base", "--builder", "--prebuilt", "--ca-bundle", "--pip-index", "--torch-index", "--cargo-index", "--network"];

/// The layers, strongest first, each with the origin of its keys.
struct Stack(Vec<(Source, Layer)>);

enum Source {
    Flags,
    Environment,
    File(Origin),
}

impl Source {
    fn origin(&self, key: Key) -> Origin {
        match self {
            Source::Flags => Origin::Flag { name: key.flag },
            Source::Environment => Origin::Environment { name: key.variable },
            Source::File(origin) => origin.clone(),
        }
    }
}

impl Stack {
    fn get<T>(&self, key: Key, default: T, get: impl Fn(&Layer) -> Option<T>) -> Setting<T> {
        let found = self.0.iter().find_map(|(source, layer)| Some(Setting { value: get(layer)?, origin: source.origin(key) }));
        found.unwrap_or(Setting { value: default, origin: Origin::Default })
    }

    fn image(&self) -> BTreeMap<String, Setting<Value>> {
        let mut found = BTreeMap::new();
        for (source, layer) in &self.0 {
            for (key, value) in table(&layer.image) {
                let flag = IMAGE_FLAGS.into_iter().find(|flag| flag[2..].replace('-', "_") == key).unwrap_or_default();
                found.entry(key).or_insert_with(|| Setting { value, origin: source.origin(Key { flag, variable: "" }) });
            }
        }
        found
    }
}

impl Settings {
    /// Reads the files and the environment. `flags` holds what the command line gave.
    pub fn load(mut flags: Layer, around: &Surroundings<'_>) -> Result<Self, SettingsError> {
        flags.anchor(&around.working_directory);
        let directories = Directories::resolve(around);
        let project = around.working_directory.join(PROJECT_FILE);
        let user = directories.config().map(|config| config.join(USER_FILE));
        let OfUser { layer: user_layer, profiles, adopt, notify } =
            user.as_deref().map(layers::user_file).transpose()?.unwrap_or_default();
        let mut stack = Stack(vec![
            (Source::Flags, flags),
            (Source::Environment, Layer::from_environment(around)?),
            (Source::File(Origin::Project { path: project.clone() }), layers::project_file(&project)?),
        ]);
        let files = [Some(project.clone()), user.clone()].into_iter().flatten().collect();
        let path = user.unwrap_or_default();
        stack.0.push((Source::File(Origin::User { path: path.clone() }), user_layer));
        let profile = stack.get(PROFILE, None, |layer| layer.profile.clone().map(Some));
        if let Some(name) = &profile.value {
            let layer = profiles.get(name).cloned().ok_or_else(|| no_profile(name, &profile.origin, profiles.keys(), &path))?;
            let origin = Origin::Profile { name: name.clone(), path: path.clone() };
            stack.0.insert(3, (Source::File(origin), layer));
        }
        let notify = Self::listeners(notify, &path, around)?;
        let by_file = adopt.map(|stores| Setting { value: Some(Adopt::Of(stores)), origin: Origin::User { path } });
        let by_word = (around.variable)(ADOPT).filter(|value| value == "1");
        let by_word = by_word.map(|_| Setting { value: Some(Adopt::Everything), origin: Origin::Environment { name: ADOPT } });
        let adopt = by_word.or(by_file).unwrap_or(Setting { value: None, origin: Origin::Default });
        let settings = Self::from_stack(&stack, profile.clone(), directories.clone(), files);
        stack.0.retain(|(source, _)| !matches!(source, Source::File(Origin::Project { .. })));
        let without = Self::from_stack(&stack, profile, directories, Vec::new());
        let project = Claims::beyond(project, settings.places(), &without.places());
        Ok(Self { adopt, notify, project, ..settings })
    }

    fn listeners(of_file: Notify, path: &Path, around: &Surroundings<'_>) -> Result<Setting<Notify>, SettingsError> {
        Ok(match layers::read(around, NOTIFY_WEBHOOK)? {
            Some(webhook) => {
                let value = Notify { webhook: Some(webhook), ..of_file };
                Setting { value, origin: Origin::Environment { name: NOTIFY_WEBHOOK } }
            }
            None if of_file == Notify::default() => Setting { value: of_file, origin: Origin::Default },
            None => Setting { value: of_file, origin: Origin::User { path: path.to_owned() } },
        })
    }

    fn from_stack(stack: &Stack, profile: Setting<Option<String>>, directories: Directories, files: Vec<PathBuf>) -> Self {
        let embedded = directories.embedded_store().map(|store| store.to_string_lossy().into_owned());
        Self {
            profile,
            backend: stack.get(BACKEND, DEFAULT_BACKEND.name().to_owned(), |layer| layer.backend.clone()),
            image: stack.image(),
            store: stack.get(STORE, embedded, |layer| layer.store.clone().map(Some)),
            ttl: stack.get(TTL, DEFAULT_TTL, |layer| layer.ttl),
            max_cost: stack.get(MAX_COST, None, |layer| layer.max_cost.map(Some)),
            max_wait: stack.get(MAX_WAIT, DEFAULT_MAX_WAIT, |layer| layer.max_wait),
            output: stack.get(OUTPUT, Format::default(), |layer| layer.output),
            log: stack.get(LOG, Verbosity::default(), |layer| layer.log),
            adopt: Setting { value: None, origin: Origin::Default },
            notify: Setting { value: Notify::default(), origin: Origin::Default },
            directories,
            project: Claims::default(),
            files,
        }
    }

    fn places(&self) -> Places {
        let image = self.image.iter().map(|(key, setting)| (key.clone(), setting.value.clone()));
        places(Some(&self.backend.value), self.store.value.as_deref(), image)
    }

    /// Whether this user drives every job of a store, other users' included.
    pub fn adopts(&self, store: &str) -> bool {
        match &self.adopt.value {
            Some(Adopt::Everything) => true,
            Some(Adopt::Of(stores)) => stores.iter().any(|adopted| adopted == store),
            None => false,
        }
    }

    /// The store when no job file has a say.
    pub fn store(&self) -> Result<&str, SettingsError> {
        self.store.value.as_deref().ok_or(directories::NO_STORE)
    }

    /// Whether only the project's file names [`Settings::store`].
    pub fn is_store_of_project(&self) -> bool {
        self.project.places.contains_key(STORE_KEY)
    }

    /// Settings that hold for one job on the word of its file alone.
    pub fn claims(&self, spec: &JobSpec, file: PathBuf) -> Result<Claims, SettingsError> {
        let Choices { backend, store, image, .. } = self.choices(spec, &trust::directory_of(&file))?;
        let mut said = places(Some(&backend), Some(&store), table(&image));
        said.extend(code_of_job(spec));
        Ok(Claims::beyond(file, said, &self.places()))
    }

    /// How an image is made when the job file says `typed`.
    pub fn image(&self, typed: &ImageSpec, job_directory: &Path) -> ImageSpec {
        let mut chosen = table(typed);
        for key in ["ca_bundle", "prebuilt"] {
            if let Some(Value::String(path)) = chosen.get_mut(key) {
                *path = layers::below(job_directory, path);
            }
        }
        for (key, setting) in &self.image {
            let typed = chosen.get(key).cloned();
            chosen.insert(key.clone(), with_job(setting, typed));
        }
        // Every value was read from this very type.
        serde_json::from_value(Value::Object(chosen)).unwrap_or_default()
    }

    /// The settings for one job: its file is asked after the flags and the environment and before the other files. `job_directory`
    /// is where a relative store in the job file begins.
    pub fn choices(&self, spec: &JobSpec, job_directory: &Path) -> Result<Choices, SettingsError> {
        let store = spec.store.as_ref().map(|store| layers::anchor(store, job_directory));
        Ok(Choices {
            backend: with_job(&self.backend, spec.compute.backend.clone()),
            image: self.image(&spec.image, job_directory),
            store: match with_job(&self.store, store.map(Some)) {
                Some(store) => store,
                None => self.store()?.to_owned(),
            },
            ttl: with_job(&self.ttl, spec.limits.ttl),
            max_cost: with_job(&self.max_cost, spec.limits.max_cost.map(Some)),
            max_wait: with_job(&self.max_wait, spec.limits.max_wait),
        })
    }
}

/// The places that a project's file names for jobs.
pub fn places_of_project(file: &Path) -> Result<Places, SettingsError> {
    let Layer { backend, store, image, .. } = layers::project_file(file)?;
    Ok(places(backend.as_deref(), store.as_deref(), table(&image)))
}

/// The places that a job file names for its job.
pub fn places_of_job(spec: &JobSpec, file: &Path) -> Places {
    let (backend, store, image) = (spec.compute.backend.clone(), spec.store.clone(), spec.image.clone());
    let mut layer = Layer { backend, image, store, ..Layer::default() };
    layer.anchor(&trust::directory_of(file));
    let mut said = places(layer.backend.as_deref(), layer.store.as_deref(), table(&layer.image));
    said.extend(code_of_job(spec));
    said
}

/// The code that a job file names for its machine. A library of a GPU or of a compiler loads what some variables name, so all of
/// them count. A server of experiments is sent numbers, and perhaps a token.
fn code_of_job(spec: &JobSpec) -> Places {
    let compute = json!(spec.compute);
    let of_table = |backend: Backend| {
        let (table, said) = (backend.name(), compute[backend.name()].clone());
        let keys = backend.keys_of_trust().iter();
        keys.filter_map(move |key| Some((format!("compute.{table}.{key}"), wording::value(said.get(key)?))))
    };
    let variables = spec.compute.environment.iter().map(|(name, value)| (format!("compute.environment.{name}"), value.clone()));
    let told = spec.tracking.server().map(|address| ("tracking.mlflow".to_owned(), address.to_owned()));
    Backend::ALL.into_iter().flat_map(of_table).chain(variables).chain(told).collect()
}

const BACKEND_KEY: &str = "backend";
const STORE_KEY: &str = "store";

fn places(backend: Option<&str>, store: Option<&str>, image: impl IntoIterator<Item = (String, Value)>) -> Places {
    let named = [(BACKEND_KEY, backend), (STORE_KEY, store)];
    let named = named.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?.to_owned())));
    named.chain(image.into_iter().map(|(key, value)| (format!("image.{key}"), wording::value(&value)))).collect()
}

/// The keys that were given.
fn table(image: &ImageSpec) -> serde_json::Map<String, Value> {
    match json!(image) {
        Value::Object(table) => table,
        _ => serde_json::Map::new(),
    }
}

fn with_job<T: Clone>(setting: &Setting<T>, typed: Option<T>) -> T {
    match (&setting.origin, typed) {
        (Origin::Flag { .. } | Origin::Environment { .. }, _) | (_, None) => setting.value.clone(),
        (_, Some(typed)) => typed,
    }
}

fn no_profile<'p>(name: &str, origin: &Origin, known: impl Iterator<Item = &'p String>, path: &Path) -> SettingsError {
    let known: Vec<&str> = known.map(String::as_str).collect();
    let hint =
        if known.is_empty() { format!("add [profiles.{name}] to {}", path.display()) } else { suggest(name, &known, "profiles") };
    SettingsError::NoProfile { name: name.to_owned(), origin: origin.clone(), hint }
}

#[cfg(test)]
mod tests;
