//! `ftctl version`.

use clap::Args;
use serde_json::{Value, json};

use super::App;
use crate::{
    exit::Failure,
    image::{libtorch, sources},
    output::Show,
};

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
        json!({ "version": env!("CARGO_PKG_VERSION"), "trainer_sources": sources::trainer_digest(), "libtorch": libtorch::VERSION })
    }

    fn text(&self) -> String {
        let digest = sources::trainer_digest();
        format!("ftctl {}\ntrainer sources {}\nlibtorch {}", env!("CARGO_PKG_VERSION"), &digest[..16], libtorch::VERSION)
    }

    fn names(&self) -> Vec<String> {
        vec![env!("CARGO_PKG_VERSION").to_owned()]
    }
}
