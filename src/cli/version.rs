//! `ftctl version`.

use clap::Args;
use serde_json::{Value, json};

use super::App;
use crate::{exit::Failure, output::Show};

/// Print the version
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  ftctl version -o json")]
pub struct Version {}

pub fn run(app: &mut App<'_>) -> Result<(), Failure> {
    app.output.show(&Answer)
}

struct Answer;

impl Show for Answer {
    fn schema(&self) -> &'static str {
        "ftctl.version/1"
    }

    fn json(&self) -> Value {
        json!({ "version": env!("CARGO_PKG_VERSION") })
    }

    fn text(&self) -> String {
        format!("ftctl {}", env!("CARGO_PKG_VERSION"))
    }

    fn names(&self) -> Vec<String> {
        vec![env!("CARGO_PKG_VERSION").to_owned()]
    }
}
