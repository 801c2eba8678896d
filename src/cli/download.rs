//! `ftctl download`: a checkpoint and the artefacts, verified.

use std::{
    path::{Path, PathBuf},
    str::FromStr,
};

use clap::Args;
use serde_json::{Value, json};

use super::{App, completion, intent::Intent, line::Line, model};
use crate::{
    exit::{Exit, Failure},
    output::{Show, format},
    store::{
        FileEntry, artifacts,
        checkpoint::{self, CheckpointManifest},
        in_the_way,
    },
};

/// Download a job's checkpoint and artefacts; every byte is verified
///
/// The checkpoint is a Hugging Face directory; summary, sample and step log go into `artifacts` inside it. Files that are already
/// there are not fetched again. A different file of the same name is replaced only with --overwrite.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  ftctl download quickstart\n  ftctl download quickstart --checkpoint 300 --to model")]
pub struct Arguments {
    /// Id or name of the job
    #[arg(add = completion::jobs())]
    job: String,
    /// Directory for the files [default: the job's id]
    #[arg(long, value_name = "DIR", alias = "out")]
    to: Option<PathBuf>,
    /// Which checkpoint, by its step
    #[arg(long, value_name = "STEP|latest", default_value = "latest")]
    checkpoint: Which,
    /// Replace files in the directory that differ from the job's files
    #[arg(long)]
    overwrite: bool,
    #[command(flatten)]
    line: Line,
}

#[derive(Debug, Clone, Copy)]
enum Which {
    Latest,
    Step(u64),
}

impl FromStr for Which {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "latest" => Ok(Self::Latest),
            step => step.parse().map(Self::Step).map_err(|_| "write a step or `latest`".to_owned()),
        }
    }
}

impl Arguments {
    pub fn run(self, app: &mut App<'_>) -> Result<(), Failure> {
        app.limits = self.line.limits();
        let fetched = app.block_on(self.fetch(app))?;
        if app.dry_run {
            return app.output.show(&fetched.intent());
        }
        app.output.show(&fetched)
    }

    async fn fetch(self, app: &App<'_>) -> Result<Fetched, Failure> {
        let (store, id) = app.stored_job(&self.job).await?;
        let checkpoint = match self.checkpoint {
            Which::Step(step) => Some(model::manifest(store.as_ref(), &id, Some(step)).await?),
            Which::Latest => checkpoint::latest(store.as_ref(), &id).await?,
        };
        let artifacts = artifacts::files(store.as_ref(), &id).await?;
        if checkpoint.is_none() && artifacts.is_empty() {
            return Err(Failure::new(Exit::NotFound, format!("the job {id} has no checkpoint yet")));
        }
        let typed = self.to;
        let to = typed.clone().unwrap_or_else(|| PathBuf::from(id.as_str()));
        let (target, report) = (app.working_directory.join(&to), app.output.report());
        if typed.is_none() && target.is_symlink() {
            let message = format!("{} is a symbolic link that you did not name", to.display());
            return Err(Failure::new(Exit::Usage, message).fix("name the directory with --to"));
        }
        if target.is_file() {
            return Err(Failure::new(Exit::Usage, format!("{} is a file; --to names a directory", to.display())));
        }
        if !self.overwrite {
            let files = checkpoint.as_ref().map_or(&[][..], |manifest| &manifest.files);
            let mut others = in_the_way(files, &target).await;
            others.extend(in_the_way(&artifacts::in_their_folder(&artifacts), &target).await);
            refuse_to_replace(&others, &app.working_directory)?;
        }
        if !app.dry_run {
            if let Some(manifest) = &checkpoint {
                checkpoint::fetch(&store, &id, manifest.step, &target, report.as_ref()).await?;
            }
            artifacts::fetch(&store, &id, &target, report.as_ref()).await?;
        }
        Ok(Fetched { to, checkpoint, artifacts })
    }
}

/// It may be the only copy of a training.
fn refuse_to_replace(others: &[PathBuf], base: &Path) -> Result<(), Failure> {
    let Some(first) = others.first() else { return Ok(()) };
    let first = first.strip_prefix(base).unwrap_or(first).display();
    let more = if others.len() == 1 { String::new() } else { format!(", and {} more,", others.len() - 1) };
    let what = format!("{first}{more} exists already and differs from what the job left");
    Err(Failure::new(Exit::Usage, what).fix("name another directory with --to, or replace it with --overwrite"))
}

struct Fetched {
    to: PathBuf,
    /// A job may fail before its first checkpoint and still leave a log of its steps.
    checkpoint: Option<CheckpointManifest>,
    artifacts: Vec<FileEntry>,
}

impl Fetched {
    fn files(&self) -> impl Iterator<Item = &FileEntry> {
        self.checkpoint.iter().flat_map(|manifest| &manifest.files).chain(&self.artifacts)
    }

    fn bytes(&self) -> u64 {
        self.files().map(|file| file.size).sum()
    }

    fn step(&self) -> String {
        match &self.checkpoint {
            Some(manifest) => format!("step {}", manifest.step),
            None => "no checkpoint yet".to_owned(),
        }
    }

    fn summary(&self) -> String {
        let files = format::of(self.files().count() as u64, "file");
        format!("{}, {files}, {}", self.step(), format::bytes(self.bytes()))
    }

    fn intent(&self) -> Intent {
        Intent(vec![format!("fetch into {}: {}", self.to.display(), self.summary())])
    }
}

impl Show for Fetched {
    fn schema(&self) -> &'static str {
        "ftctl.download/1"
    }

    fn json(&self) -> Value {
        json!({
            "path": self.to.display().to_string(),
            "step": self.checkpoint.as_ref().map(|manifest| manifest.step),
            "attempt": self.checkpoint.as_ref().map(|manifest| manifest.attempt),
            "artifacts": self.artifacts.iter().map(|file| &file.path).collect::<Vec<_>>(),
            "files": self.files().count(),
            "bytes": self.bytes(),
        })
    }

    fn text(&self) -> String {
        format!("{}: {}, verified", self.to.display(), self.summary())
    }

    fn names(&self) -> Vec<String> {
        vec![self.to.display().to_string()]
    }
}
