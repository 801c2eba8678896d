//! `ftctl man`: manual pages.

use std::{fs, path::PathBuf};

use clap::Args;
use clap_mangen::Man;

use super::{App, command, intent::Intent};
use crate::{
    exit::{Exit, Failure},
    job::wording::suggest,
};

/// Print a manual page, or write all of them
#[derive(Debug, Args)]
#[command(
    name = "man",
    after_help = "Examples:\n  ftctl man submit | man -l -\n  ftctl man --out ~/.local/share/man/man1   # then: man ftctl-submit"
)]
pub struct Manual {
    /// Verb of the page; without one it is that of the program
    #[arg(value_name = "VERB", conflicts_with = "out")]
    page: Option<String>,
    /// Write every page into this directory, which is made
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

impl Manual {
    pub fn run(self, app: &mut App<'_>) -> Result<(), Failure> {
        if let Some(out) = &self.out {
            let out = app.working_directory.join(out);
            if app.dry_run {
                return app.output.show(&Intent(vec![format!("write manual pages into {}", out.display())]));
            }
            let written = fs::create_dir_all(&out).and_then(|()| clap_mangen::generate_to(command(), &out));
            return written.map_err(|error| failed(&format!("write manual pages into {}", out.display()), &error));
        }
        let mut page = Vec::new();
        let rendered = Man::new(self.command()?).render(&mut page);
        rendered.map_err(|error| failed("write a manual page", &error))?;
        app.output.data(&page)
    }

    fn command(&self) -> Result<clap::Command, Failure> {
        let mut whole = command().disable_help_subcommand(true);
        whole.build();
        let Some(verb) = &self.page else { return Ok(whole) };
        let known: Vec<&str> = whole.get_subcommands().filter(|verb| !verb.is_hide_set()).map(clap::Command::get_name).collect();
        let unknown = || Failure::new(Exit::Usage, format!("there is no verb {verb}")).fix(suggest(verb, &known, "verbs"));
        whole.find_subcommand(verb).filter(|found| !found.is_hide_set()).cloned().ok_or_else(unknown)
    }
}

fn failed(what: &str, error: &std::io::Error) -> Failure {
    Failure::new(Exit::Failure, format!("cannot {what}: {error}")).fix("check free space and permission")
}
