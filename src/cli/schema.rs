//! `ftctl schema`: the JSON Schema of a job file, and the same for people.

pub mod reference;

use clap::Args;

use super::App;
use crate::{exit::Failure, job::spec::JobSpec};

/// Print the JSON Schema of the job file
///
/// Editors use it to check and complete a job file. The file's first line names the schema.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  ftctl schema > job.schema.json\n  ftctl schema --markdown | less")]
pub struct Schema {
    /// Print a page for people instead: every key with its type, default and meaning
    #[arg(long)]
    markdown: bool,
}

impl Schema {
    pub fn run(&self, app: &mut App<'_>) -> Result<(), Failure> {
        let text = if self.markdown { reference::page(&JobSpec::schema()) } else { text() };
        app.output.data(text.as_bytes())
    }
}

/// The schema's text, as it is checked in and printed. The schema is its own document format, so it carries no `schema` field of
/// ftctl's.
pub fn text() -> String {
    format!("{:#}\n", JobSpec::schema())
}
