//! `ftctl build`: the container image, or the trainer for this machine, before there is a job.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use serde_json::{Value, json};

use super::{App, JobFile, intent::Intent};
use crate::{
    docker,
    exit::Failure,
    image::{
        container::{self, Image, Recipe},
        libtorch, trainer,
    },
    job::{
        digest::Digest,
        image::{ImageSpec, LibtorchVariant},
        order::program,
    },
    output::Show,
};

/// Build the container image, or the trainer for this machine, from the sources in this program; reuse an earlier build
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  ftctl build\n  ftctl build --base registry.example.org/debian:12 --ca-bundle company.pem\n  \
                        ftctl build --prebuilt programs\n  eval \"$(ftctl build --print environment)\"")]
pub struct Arguments {
    /// The result to build and to print
    #[arg(long, value_enum, default_value = "image")]
    print: Print,
    #[command(flatten)]
    pub which: Which,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Print {
    /// The image's name, with the digest of what it was made from
    Image,
    /// The path of the trainer for this machine
    Path,
    /// Shell assignments: the trainer for this machine as FT_TRAINER, and the variables that build against the same libtorch
    Environment,
}

/// Which image is meant.
#[derive(Debug, Clone, Default, Args)]
pub struct Which {
    /// The image that this job file asks for
    #[arg(long, value_name = "FILE")]
    job: Option<PathBuf>,
    #[command(flatten)]
    pub image: ImageFlags,
}

impl Which {
    /// Flags above the job file, where one is named, above the settings.
    pub fn spec(&self, app: &App<'_>) -> Result<ImageSpec, Failure> {
        match &self.job {
            Some(path) => Ok(JobFile::new(path.clone()).plan(app)?.image),
            None => Ok(app.settings.image(&ImageSpec::default(), &app.working_directory)),
        }
    }
}

/// How the image is made: stands above the job file and the settings.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "The image")]
pub struct ImageFlags {
    /// Build of libtorch
    #[arg(long, value_enum)]
    variant: Option<VariantArg>,
    /// Base image [default: docker.io/library/debian:bookworm-slim]
    #[arg(long, value_name = "IMAGE")]
    base: Option<String>,
    /// Image for compiling [default: docker.io/library/rust:1.95-bookworm]
    #[arg(long, value_name = "IMAGE")]
    builder: Option<String>,
    /// Directory with `ftctl` and `ft-trainer` to take instead of compiling them in a container
    #[arg(long, value_name = "DIR")]
    prebuilt: Option<String>,
    /// More certificates (PEM) to trust, for building and in the image
    #[arg(long, value_name = "FILE")]
    ca_bundle: Option<String>,
    /// Python package index
    #[arg(long, value_name = "URL")]
    pip_index: Option<String>,
    /// Index with torch for the variant, or `pypi` [default: https://download.pytorch.org/whl/VARIANT]
    #[arg(long, value_name = "URL")]
    torch_index: Option<String>,
    /// Index of crates: `sparse+https://host/index/`
    #[arg(long, value_name = "URL")]
    cargo_index: Option<String>,
    /// Network of the steps that build
    #[arg(long, value_name = "NAME")]
    network: Option<String>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum VariantArg {
    /// For machines without a GPU
    Cpu,
    /// CUDA 12.6: GPUs from Maxwell to Hopper, the V100 among them
    Cu126,
    /// CUDA 13.0: GPUs from Turing on
    Cu130,
}

impl From<VariantArg> for LibtorchVariant {
    fn from(variant: VariantArg) -> Self {
        match variant {
            VariantArg::Cpu => Self::Cpu,
            VariantArg::Cu126 => Self::Cu126,
            VariantArg::Cu130 => Self::Cu130,
        }
    }
}

impl From<&ImageFlags> for ImageSpec {
    fn from(flags: &ImageFlags) -> Self {
        let flags = flags.clone();
        Self {
            variant: flags.variant.map(LibtorchVariant::from),
            base: flags.base,
            builder: flags.builder,
            prebuilt: flags.prebuilt,
            ca_bundle: flags.ca_bundle,
            pip_index: flags.pip_index,
            torch_index: flags.torch_index,
            cargo_index: flags.cargo_index,
            network: flags.network,
        }
    }
}

impl Arguments {
    pub fn run(self, app: &mut App<'_>) -> Result<(), Failure> {
        let cache = app.settings.directories.cache()?.to_owned();
        if self.print == Print::Image {
            let spec = self.which.spec(app)?;
            return image(app, &spec, &cache);
        }
        if app.dry_run {
            return app.output.show(&Intent(acts(&cache)));
        }
        let report = app.output.report();
        let built = app.block_on(async {
            let digest = trainer::ensure(&cache, report.as_ref()).await?;
            let libtorch = libtorch::ensure(&cache, report.as_ref()).await?;
            let path = program(&cache, &digest).to_string_lossy().into_owned();
            Ok(Built { path, digest, variables: libtorch.variables, print: self.print })
        })?;
        app.output.show(&built)
    }
}

fn image(app: &mut App<'_>, spec: &ImageSpec, cache: &Path) -> Result<(), Failure> {
    let report = app.output.report();
    if app.dry_run {
        let acts = app.block_on(async {
            let recipe = Recipe::new(spec).await?;
            let engine = docker::connect(report.as_ref()).await?;
            let present = container::present(&engine, &recipe.reference()).await?;
            Ok(present.is_none().then(|| format!("build {} at {}", recipe.reference(), engine.endpoint)))
        })?;
        return app.output.show(&Intent(acts.into_iter().collect()));
    }
    let image = app.block_on(async {
        let recipe = Recipe::new(spec).await?;
        let engine = docker::connect(report.as_ref()).await?;
        Ok(container::make(&engine, recipe, cache, report.as_ref()).await?)
    })?;
    app.output.show(&image)
}

fn acts(cache: &Path) -> Vec<String> {
    let install = libtorch::present(cache).is_none().then(|| format!("install libtorch {}", libtorch::VERSION));
    let build = trainer::present(cache).is_none().then(|| "build the trainer".to_owned());
    install.into_iter().chain(build).collect()
}

impl Show for Image {
    fn schema(&self) -> &'static str {
        "ftctl.image/1"
    }

    fn json(&self) -> Value {
        json!({ "reference": self.reference, "digest": self.digest, "id": self.id })
    }

    fn text(&self) -> String {
        self.reference.clone()
    }

    fn names(&self) -> Vec<String> {
        vec![self.reference.clone()]
    }
}

struct Built {
    /// Path of the trainer.
    path: String,
    digest: Digest,
    variables: Vec<(String, String)>,
    print: Print,
}

impl Show for Built {
    fn schema(&self) -> &'static str {
        "ftctl.build/1"
    }

    fn json(&self) -> Value {
        let variables: serde_json::Map<String, Value> =
            self.variables.iter().map(|(name, value)| (name.clone(), json!(value))).collect();
        json!({ "image": { "program": { "path": self.path, "digest": self.digest } }, "variables": variables })
    }

    fn text(&self) -> String {
        if self.print == Print::Path {
            return self.path.clone();
        }
        let trainer = ("FT_TRAINER".to_owned(), self.path.clone());
        let quoted = |(name, value): &(String, String)| format!("{name}='{}'", value.replace('\'', r"'\''"));
        self.variables.iter().chain([&trainer]).map(quoted).collect::<Vec<_>>().join("\n")
    }

    fn names(&self) -> Vec<String> {
        vec![self.path.clone()]
    }
}
