//! `ftctl completion`: completion scripts.

use clap::Args;
use clap_complete::Shell;

use super::App;
use crate::exit::Failure;

/// Print a completion script for a shell
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  source <(ftctl completion bash)")]
pub struct Completion {
    /// The shell
    shell: Shell,
}

impl Completion {
    pub fn run(self, app: &mut App<'_>) -> Result<(), Failure> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut super::command(), "ftctl", &mut script);
        app.output.data(&script)
    }
}
