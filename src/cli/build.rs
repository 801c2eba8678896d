//! `ftctl build`: what a job on this machine needs, before there is a job.

use std::path::Path;

use clap::{Args, ValueEnum};
use serde_json::{Value, json};

use super::{App, intent::Intent};
use crate::{
    exit::Failure,
    image::{libtorch, trainer},
    job::order::TrainerImage,
    output::Show,
};

/// Install libtorch and build the trainer for this machine, or find both
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  ftctl build\n  eval \"$(ftctl build --print environment)\"")]
pub struct Arguments {
    /// What is printed
    #[arg(long, value_enum, default_value = "path")]
    print: Print,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Print {
    /// The trainer's path
    Path,
    /// Shell assignments: the trainer as FT_TRAINER, and the variables that build against the same libtorch
    Environment,
}

impl Arguments {
    pub fn run(self, app: &mut App<'_>) -> Result<(), Failure> {
        let cache = app.settings.directories.cache()?;
        if app.dry_run {
            return app.output.show(&Intent(acts(cache)));
        }
        let report = app.output.report();
        let built = app.block_on(async {
            let image = trainer::ensure(cache, report.as_ref()).await?;
            let libtorch = libtorch::ensure(cache, report.as_ref()).await?;
            Ok(Built { image, variables: libtorch.variables, print: self.print })
        })?;
        app.output.show(&built)
    }
}

fn acts(cache: &Path) -> Vec<String> {
    let install = libtorch::present(cache).is_none().then(|| format!("install libtorch {}", libtorch::VERSION));
    let build = trainer::present(cache).is_none().then(|| "build the trainer".to_owned());
    install.into_iter().chain(build).collect()
}

struct Built {
    image: TrainerImage,
    variables: Vec<(String, String)>,
    print: Print,
}

impl Built {
    fn path(&self) -> &str {
        match &self.image {
            TrainerImage::Program { path, .. } => path,
            TrainerImage::Image { .. } | TrainerImage::None => "",
        }
    }
}

impl Show for Built {
    fn schema(&self) -> &'static str {
        "ftctl.build/1"
    }

    fn json(&self) -> Value {
        let variables: serde_json::Map<String, Value> =
            self.variables.iter().map(|(name, value)| (name.clone(), json!(value))).collect();
        json!({ "image": self.image, "variables": variables })
    }

    fn text(&self) -> String {
        if self.print == Print::Path {
            return self.path().to_owned();
        }
        let trainer = ("FT_TRAINER".to_owned(), self.path().to_owned());
        let quoted = |(name, value): &(String, String)| format!("{name}='{}'", value.replace('\'', r"'\''"));
        self.variables.iter().chain([&trainer]).map(quoted).collect::<Vec<_>>().join("\n")
    }

    fn names(&self) -> Vec<String> {
        vec![self.path().to_owned()]
    }
}
