//! `ftctl schema`: the JSON Schema of a job file.

use clap::Args;

use super::App;
use crate::{exit::Failure, job::spec::JobSpec};

/// Print the JSON Schema of the job file
///
/// Editors check and complete a job file with it: its first line names the schema.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  ftctl schema > job.schema.json")]
pub struct Schema {}

pub fn run(app: &mut App<'_>) -> Result<(), Failure> {
    app.output.data(text().as_bytes())
}

/// As it is checked in and printed. The schema is its own document format, so it carries no `schema` field of ftctl's.
pub fn text() -> String {
    format!("{:#}\n", JobSpec::schema())
}
