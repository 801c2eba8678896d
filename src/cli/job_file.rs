//! The FILE argument of every verb that reads a job file.

use std::path::{Path, PathBuf};

use clap::Args;

use super::App;
use crate::{
    exit::Failure,
    job::{document::Document, plan::Plan, spec::JobSpec},
};

#[derive(Debug, Args)]
pub struct JobFile {
    /// The job file
    #[arg(value_name = "FILE")]
    pub path: PathBuf,
    /// Set one value of the job file, such as train.steps=500; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE")]
    set: Vec<String>,
}

impl JobFile {
    /// A file without anything laid over it.
    pub fn new(path: PathBuf) -> Self {
        Self { path, set: Vec::new() }
    }

    /// The checked job.
    pub fn read(&self) -> Result<JobSpec, Failure> {
        let mut document = Document::open(&self.path)?;
        for assignment in &self.set {
            document.set(assignment)?;
        }
        Ok(JobSpec::read(&document)?)
    }

    /// What the job means here; its price is still open.
    pub fn plan(&self, app: &App<'_>) -> Result<Plan, Failure> {
        let spec = self.read()?;
        let file = app.working_directory.join(&self.path);
        let directory = file.parent().unwrap_or(Path::new("/"));
        let choices = app.settings.choices(&spec, directory)?;
        Ok(Plan::resolve(&spec, choices, directory)?)
    }
}
