//! `ftctl trust`, and the question that it answers beforehand: may a file of this directory say where jobs run?

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use clap::Args;
use serde_json::{Value, json};

use super::{App, JobFile};
use crate::{
    exit::{Exit, Failure},
    job::{spec::JobSpec, wording::shell_word},
    output::{Cell, Show, Table},
    provider::registry,
    settings::{
        self, PROJECT_FILE,
        trust::{Claims, Places, Trusted, directory_of},
    },
    store,
};

/// Trust the files of a directory to say where jobs run, which store they use and how images are built
///
/// Some values decide where your credentials go and whose code runs. They are listed below. ftctl uses them only after you trust
/// them, with this command or by answering its question on a terminal. Your trust covers the directory and its present values;
/// ftctl asks again about a changed value. The command line, FTCTL_* variables and your own config.toml need no trust.
#[derive(Debug, Args)]
#[command(after_help = "\
Values that need trust:
  ./ftctl.toml, job files  backend, store, [image]
  job files, [compute]     images, mounts, user, network, service account, environment
  job files                tracking.mlflow
  config.json of Azure ML  subscription, resource group, workspace

Examples:\n  ftctl trust\n  ftctl trust ../project\n  ftctl trust jobs/night.toml\n  ftctl trust --remove")]
pub struct Arguments {
    /// The directory, with ftctl.toml and every job file (*.toml) in it; or one job file or config.json
    #[arg(value_name = "DIR|FILE", default_value = ".")]
    path: PathBuf,
    /// Trust the directory no longer
    #[arg(long)]
    remove: bool,
}

impl Arguments {
    pub fn run(self, app: &mut App<'_>) -> Result<(), Failure> {
        // Without the `.` of the default, which would be told with every file.
        let path: PathBuf = app.working_directory.join(&self.path).components().collect();
        // One that is gone was a directory.
        let is_directory = path.is_dir() || !path.exists();
        let directory = directory_of(&if is_directory { path.join(PROJECT_FILE) } else { path.clone() });
        if !self.remove && !path.exists() {
            let message = format!("there is no file or directory {}", self.path.display());
            return Err(Failure::new(Exit::NotFound, message).fix("name a directory with job files, or one job file"));
        }
        let said = if self.remove { Vec::new() } else { said_by(&path)? };
        let mut trusted = Trusted::of(app.settings.directories.state()?, &directory);
        if is_directory || self.remove {
            trusted.clear();
        }
        for (_, places) in &said {
            trusted.add(places);
        }
        if !app.dry_run {
            let cannot =
                |error| Failure::new(Exit::Failure, format!("cannot remember that {} is trusted: {error}", directory.display()));
            trusted.save().map_err(cannot)?;
        }
        app.output.show(&Shown { directory, said, dry_run: app.dry_run })
    }
}

/// The settings of each file, in `path` or below it.
fn said_by(path: &Path) -> Result<Vec<(PathBuf, Places)>, Failure> {
    if !path.is_dir() {
        return Ok(vec![(path.to_owned(), said_by_file(path)?)]);
    }
    let cannot = |error: io::Error| Failure::new(Exit::Failure, format!("cannot look into {}: {error}", path.display()));
    let project = path.join(PROJECT_FILE);
    let mut said = vec![(project.clone(), said_by_file(&project)?)];
    let entries = fs::read_dir(path).map_err(cannot)?.collect::<io::Result<Vec<_>>>().map_err(cannot)?;
    let mut files: Vec<PathBuf> = entries.iter().map(fs::DirEntry::path).collect();
    files.retain(|file| *file != project && file.extension().is_some_and(|end| end == "toml") && file.is_file());
    files.sort();
    // Whatever else ends so is no job file.
    said.extend(files.into_iter().filter_map(|file| Some((file.clone(), said_by_file(&file).ok()?))));
    said.retain(|(_, places)| !places.is_empty());
    Ok(said)
}

fn said_by_file(file: &Path) -> Result<Places, Failure> {
    if file.file_name().is_some_and(|name| name == PROJECT_FILE) {
        return Ok(settings::places_of_project(file)?);
    }
    if file.extension().is_some_and(|end| end == "json") {
        return Ok(registry::places_of_account(file)?);
    }
    Ok(settings::places_of_job(&JobFile::new(file.to_owned()).read()?, file))
}

struct Shown {
    directory: PathBuf,
    said: Vec<(PathBuf, Places)>,
    dry_run: bool,
}

impl Show for Shown {
    fn schema(&self) -> &'static str {
        "ftctl.trust/1"
    }

    fn json(&self) -> Value {
        let files = self.said.iter().map(|(file, places)| json!({ "file": file.display().to_string(), "values": places }));
        json!({ "directory": self.directory.display().to_string(), "files": files.collect::<Vec<_>>() })
    }

    fn text(&self) -> String {
        if self.said.is_empty() {
            let would = if self.dry_run { "would be" } else { "is" };
            return format!("nothing {would} trusted in {}", self.directory.display());
        }
        let mut table = Table::new(&["FILE", "SETTING", "VALUE"]);
        for (file, places) in &self.said {
            let file = file.display().to_string();
            for (key, value) in places {
                table.row([&file, key, value].map(Cell::text));
            }
        }
        let rows = table.render();
        if self.dry_run { format!("would be trusted:\n{rows}") } else { rows }
    }

    fn names(&self) -> Vec<String> {
        vec![self.directory.display().to_string()]
    }
}

impl App<'_> {
    /// Returns when what a file says of where jobs run may count: it says nothing new, or the user has given their word for it. A
    /// terminal is asked, and its answer remembered.
    pub fn admit(&self, claims: &Claims) -> Result<(), Failure> {
        if self.trusts(claims) {
            return Ok(());
        }
        exist(claims)?;
        let directory = claims.directory();
        let question = format!("{}.\nTrust {} with that?", told(claims), directory.display());
        if self.declined.get() || self.output.confirm(&question, false).is_err() {
            self.declined.set(true);
            return Err(not_trusted(claims, &directory));
        }
        let mut trusted = Trusted::of(self.settings.directories.state()?, &directory);
        trusted.add(&claims.places);
        if let Err(error) = trusted.save() {
            self.output.report().warn(&format!("cannot remember that {} is trusted: {error}", directory.display()));
        }
        Ok(())
    }

    /// Whether what a file says counts without a question.
    pub fn trusts(&self, claims: &Claims) -> bool {
        let remembered = |state| Trusted::of(state, &claims.directory()).covers(&claims.places);
        claims.places.is_empty() || self.trusts_project || self.settings.directories.state().is_ok_and(remembered)
    }

    /// Trusts the job file that ftctl itself has just written.
    pub fn trust_own(&self, file: &Path, text: &str) {
        let Ok(state) = self.settings.directories.state() else { return };
        let Ok(spec) = JobSpec::parse(text, &file.display().to_string()) else { return };
        let mut trusted = Trusted::of(state, &directory_of(file));
        trusted.add(&settings::places_of_job(&spec, file));
        if let Err(error) = trusted.save() {
            self.output.report().warn(&format!("cannot remember that {} is trusted: {error}", file.display()));
        }
    }
}

/// Refuses a backend or a kind of store that is not known: a word for it would be given in vain.
fn exist(claims: &Claims) -> Result<(), Failure> {
    if let Some(backend) = claims.places.get("backend") {
        registry::known(backend)?;
    }
    Ok(claims.places.get("store").map_or(Ok(()), |store| store::known(store))?)
}

/// Values as a terminal can bear them: they are a stranger's.
fn told(claims: &Claims) -> String {
    let values: Vec<String> = claims.places.iter().map(|(key, value)| format!("{key} = {value:?}")).collect();
    format!(
        "{} sets {}. Such values decide where your credentials go and whose code runs",
        claims.file.display(),
        values.join(", ")
    )
}

fn not_trusted(claims: &Claims, directory: &Path) -> Failure {
    let of_project = claims.file.file_name().is_some_and(|name| name == PROJECT_FILE);
    let what = if of_project { directory } else { &claims.file };
    let word = shell_word(&what.display().to_string());
    Failure::new(Exit::Usage, format!("{}. You have not trusted them yet", told(claims))).fix(format!(
        "check the values, then run `ftctl trust {word}`; or add --trust-project for this one command; in a pipeline set \
         FTCTL_TRUST_PROJECT=1"
    ))
}
