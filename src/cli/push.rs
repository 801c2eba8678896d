//! `ftctl push`: the container image into a registry.

use std::env;

use clap::Args;
use serde_json::{Value, json};

use super::{App, Place, build::Which, intent::Intent};
use crate::{
    docker::{self, registry},
    exit::{Exit, Failure},
    identity::entra,
    image::{
        container::{self, Recipe},
        push::{self, Target},
    },
    output::Show,
};

/// Push the container image to a registry, building it first if needed
///
/// The tag is the digest of the image's inputs. Layers that the registry already has are not sent again. Credentials come from
/// `docker login` and docker's credential helpers, or for registries of Azure and Google from your sign-in to that cloud.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  ftctl push registry.example.org/team/ftctl\n  ftctl push localhost:5000/ftctl --prebuilt programs\n  ftctl push --backend azureml"
)]
pub struct Arguments {
    /// Where to: HOST/PATH, without a tag. Azure ML has a default: `ftctl` in the registry of the workspace
    #[arg(value_name = "REPOSITORY")]
    repository: Option<String>,
    #[command(flatten)]
    pub place: Place,
    #[command(flatten)]
    pub which: Which,
}

impl Arguments {
    pub fn run(self, app: &mut App<'_>) -> Result<(), Failure> {
        self.repository.as_deref().map_or(Ok(()), push::check_repository)?;
        let cache = app.settings.directories.cache()?.to_owned();
        let spec = self.which.spec(app)?;
        let (report, dry) = (app.output.report(), app.dry_run);
        let (repository, pushed) = app.block_on(async {
            let report = report.as_ref();
            let repository = match self.repository {
                Some(repository) => repository,
                None => own_repository(app).await?,
            };
            let recipe = Recipe::new(&spec).await?;
            let variable = |name: &str| env::var(name).ok().filter(|value| !value.is_empty());
            let credentials = registry::to_push(&repository, &variable, entra::token(&variable, entra::MANAGEMENT)).await?;
            let engine = docker::connect(report).await?;
            let tag = recipe.digest.clone();
            let target = Target { repository: &repository, tag: &tag, credentials };
            let pushed = match push::present(&engine, &target).await? {
                Some(digest) => {
                    report.detail(&format!("{repository} has it already"));
                    Err(digest)
                }
                None if dry => Ok(format!("push {} to {repository}", recipe.reference())),
                None => {
                    let image = container::make(&engine, recipe, &cache, report).await?;
                    Err(push::push(&engine, &image.reference, &target, report).await?)
                }
            };
            Ok::<_, Failure>((repository, pushed))
        })?;
        match pushed {
            Ok(act) => app.output.show(&Intent(vec![act])),
            Err(_) if dry => app.output.show(&Intent(Vec::new())),
            Err(digest) => app.output.show(&Pushed { repository, digest }),
        }
    }
}

/// In the registry that belongs to the backend's account.
async fn own_repository(app: &App<'_>) -> Result<String, Failure> {
    let backend = &app.settings.backend.value;
    let host = app.world(backend)?.provider.registry().await?;
    let none = || {
        Failure::new(Exit::Usage, format!("the backend {backend} has no registry of its own"))
            .fix("name the repository: `ftctl push HOST/PATH`")
    };
    host.map(|host| format!("{host}/ftctl")).ok_or_else(none)
}

struct Pushed {
    repository: String,
    digest: String,
}

impl Pushed {
    /// The reference by which any machine pulls exactly this image.
    fn reference(&self) -> String {
        format!("{}@{}", self.repository, self.digest)
    }
}

impl Show for Pushed {
    fn schema(&self) -> &'static str {
        "ftctl.push/1"
    }

    fn json(&self) -> Value {
        json!({ "reference": self.reference(), "repository": self.repository, "digest": self.digest })
    }

    fn text(&self) -> String {
        self.reference()
    }

    fn names(&self) -> Vec<String> {
        vec![self.reference()]
    }
}
