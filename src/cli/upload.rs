//! `ftctl upload`: a directory becomes a dataset of the store.

use std::path::PathBuf;

use clap::Args;
use serde_json::{Value, json};

use super::{App, line::Line};
use crate::{
    exit::{Exit, Failure},
    job::hub::is_name,
    lifecycle::World,
    output::{Show, format},
    store::dataset::{self, Uploaded},
};

/// Put a directory into the store and print its digest, which `dataset = "..."` in a job file takes
///
/// Data that the store already has is not sent again, so repeating an interrupted upload resumes it. Hidden files are included. A
/// link to a file is uploaded as that file. Links to directories and special files are refused. A file that changes during the
/// upload is an error.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  ftctl upload prepared/ -o name\n  ftctl upload prepared/ --name wikitext\n  ftctl upload prepared/ --dry-run"
)]
pub struct Arguments {
    /// The directory, or a single file
    path: PathBuf,
    /// Name the dataset: `dataset = "@NAME"` in a job file takes the newest dataset of that name
    #[arg(long)]
    name: Option<String>,
    /// Read everything back from the store and compare it with its digests
    #[arg(long)]
    verify: bool,
    #[command(flatten)]
    line: Line,
}

impl Arguments {
    pub fn run(self, app: &mut App<'_>) -> Result<(), Failure> {
        app.limits = self.line.limits();
        let sent = app.block_on(self.send(app))?;
        app.output.show(&sent)
    }

    async fn send(&self, app: &App<'_>) -> Result<Sent, Failure> {
        let World { store, report, .. } = app.world(&app.settings.backend.value)?;
        if let Some(name) = &self.name {
            dataset::check_name(name)?;
        }
        let path = app.working_directory.join(&self.path);
        if !path.exists() {
            let failure = Failure::new(Exit::NotFound, format!("there is no file or directory {}", self.path.display()));
            let is_of_hub = self.path.to_str().is_some_and(is_name);
            let fix = "name text of the hub in a job file's data.train; `ftctl submit` fetches it";
            return Err(if is_of_hub { failure.fix(fix) } else { failure });
        }
        let uploaded = if app.dry_run {
            dataset::plan_upload(&store, &path, report.as_ref()).await?
        } else {
            dataset::upload(&store, &path, report.as_ref()).await?
        };
        if self.verify && !app.dry_run {
            dataset::verify(&store, &uploaded.digest, report.as_ref()).await?;
        }
        if let Some(name) = self.name.as_ref().filter(|_| !app.dry_run) {
            dataset::set_name(store.as_ref(), name, &uploaded.digest).await?;
        }
        Ok(Sent { uploaded, name: self.name.clone(), dry_run: app.dry_run, verified: self.verify && !app.dry_run })
    }
}

struct Sent {
    uploaded: Uploaded,
    name: Option<String>,
    dry_run: bool,
    verified: bool,
}

impl Show for Sent {
    fn schema(&self) -> &'static str {
        "ftctl.upload/1"
    }

    fn json(&self) -> Value {
        let mut value = json!(self.uploaded);
        value["dry_run"] = json!(self.dry_run);
        value["verified"] = json!(self.verified);
        value["name"] = json!(self.name);
        value
    }

    fn text(&self) -> String {
        let Uploaded { digest, files, bytes, sent_files, sent_bytes } = &self.uploaded;
        let verb = if self.dry_run { "to send" } else { "sent" };
        let verified = if self.verified { ", all verified" } else { "" };
        let (bytes, sent_bytes) = (format::bytes(*bytes), format::bytes(*sent_bytes));
        let files = format::of(*files, "file");
        format!("{digest}\n{files} ({bytes}), {sent_files} {verb} ({sent_bytes}){verified}")
    }

    fn names(&self) -> Vec<String> {
        vec![self.uploaded.digest.to_string()]
    }
}
