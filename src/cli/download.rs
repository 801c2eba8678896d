//! `ftctl download`: a checkpoint, verified.

use std::{path::PathBuf, str::FromStr};

use clap::Args;
use serde_json::{Value, json};

use super::App;
use crate::{
    exit::{Exit, Failure},
    output::{Show, format},
    store::checkpoint::{self, CheckpointManifest},
};

/// Fetch a checkpoint of a job; every byte is verified
///
/// A checkpoint is a Hugging Face directory. What is there already is not fetched again.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  ftctl download quickstart\n  ftctl download quickstart --checkpoint 300 --to model")]
pub struct Arguments {
    /// Id or name of the job
    job: String,
    /// Directory for the files [default: the job's id]
    #[arg(long, value_name = "DIR")]
    to: Option<PathBuf>,
    /// Which checkpoint, by its step
    #[arg(long, value_name = "STEP|latest", default_value = "latest")]
    checkpoint: Which,
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
        let fetched = app.block_on(self.fetch(app))?;
        app.output.show(&fetched)
    }

    async fn fetch(self, app: &App<'_>) -> Result<Fetched, Failure> {
        let (store, id) = app.stored_job(&self.job).await?;
        let step = match self.checkpoint {
            Which::Step(step) => step,
            Which::Latest => {
                let none = || Failure::new(Exit::NotFound, format!("the job {id} has no checkpoint yet"));
                checkpoint::latest(store.as_ref(), &id).await?.ok_or_else(none)?.step
            }
        };
        let to = self.to.unwrap_or_else(|| PathBuf::from(id.as_str()));
        let target = app.working_directory.join(&to);
        let manifest = checkpoint::fetch(&store, &id, step, &target, app.output.report().as_ref()).await?;
        Ok(Fetched { to, manifest })
    }
}

struct Fetched {
    to: PathBuf,
    manifest: CheckpointManifest,
}

impl Show for Fetched {
    fn schema(&self) -> &'static str {
        "ftctl.download/1"
    }

    fn json(&self) -> Value {
        json!({
            "path": self.to.display().to_string(),
            "step": self.manifest.step,
            "attempt": self.manifest.attempt,
            "files": self.manifest.files.len(),
            "bytes": self.manifest.bytes(),
        })
    }

    fn text(&self) -> String {
        let Self { to, manifest } = self;
        format!(
            "{}: step {}, {} files, {}, verified",
            to.display(),
            manifest.step,
            manifest.files.len(),
            format::bytes(manifest.bytes())
        )
    }

    fn names(&self) -> Vec<String> {
        vec![self.to.display().to_string()]
    }
}
