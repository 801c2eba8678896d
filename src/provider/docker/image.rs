//! The image of a job's container, fetched where the engine has not got it; and the leftovers of image builds at an engine.

use std::{
    collections::{HashMap, HashSet},
    env,
    time::Duration,
};

use bollard::{
    models::ContainerSummaryStateEnum as State,
    query_parameters::{ListContainersOptions, ListImagesOptions, RemoveContainerOptions, RemoveImageOptions},
};

use tokio::time::{Instant, sleep};

use super::{
    Docker, LOOK_EVERY,
    error::{done, failed, found},
};
use crate::{
    docker::{
        self,
        credentials::{Credentials, registry},
        registry::{self as registries, class},
    },
    identity::entra,
    job::order::TrainerImage,
    provider::{Class, ProviderError, Result, no_image},
};

/// On every image that a build leaves without a name, and on its containers; empty on a finished image. docker/Dockerfile writes
/// it.
const STAGE: &str = "ftctl.stage";

/// A step that was cut off leaves gigabytes, which a busy disk takes its time to forget.
const REMOVAL_LIMIT: Duration = Duration::from_secs(120);

impl Docker {
    /// The image's id, fetched from its registry when the engine has not got it.
    pub(super) async fn fetched(&self, image: &TrainerImage) -> Result<String> {
        let TrainerImage::Image { reference } = image else {
            return Err(no_image());
        };
        if let Some(id) = self.present(reference).await? {
            return Ok(id);
        }
        self.fetch(reference).await?;
        let id = self.present(reference).await?;
        id.ok_or_else(|| ProviderError::new(Class::Internal, format!("the engine has fetched {reference} and does not have it")))
    }

    async fn present(&self, reference: &str) -> Result<Option<String>> {
        let answer = self.engine().await?.docker.inspect_image(reference).await;
        Ok(found(&format!("look for the image {reference}"), answer)?.and_then(|image| image.id))
    }

    /// With the credentials that docker's own command line would have.
    async fn fetch(&self, reference: &str) -> Result<()> {
        let engine = self.engine().await?;
        let variable = |name: &str| env::var(name).ok().filter(|value| !value.is_empty());
        let credentials = registries::credentials(reference, &variable, entra::token(&variable, entra::MANAGEMENT)).await;
        let fetched = engine.fetch(reference, &credentials).await;
        fetched.map_err(|error| refused(reference, &credentials, failed(&format!("fetch the image {reference}"), &error)))
    }

    /// See [`crate::provider::Provider::tidy`]: stages of the classic builder, and containers of steps that were cut off, less
    /// those of a build that runs.
    pub(super) async fn stages(&self, only_look: bool) -> Result<Vec<String>> {
        let docker = &self.engine().await?.docker;
        let labelled = |more: Option<(&str, &str)>| {
            let label = [("label", STAGE)].into_iter().chain(more);
            Some(label.map(|(name, value)| (name.to_owned(), vec![value.to_owned()])).collect::<HashMap<_, _>>())
        };
        let options = ListContainersOptions { all: true, filters: labelled(None), ..ListContainersOptions::default() };
        let containers = docker.list_containers(Some(options)).await.map_err(|error| failed("list containers", &error))?;
        let (mut names, mut at_work) = (Vec::new(), HashSet::new());
        for container in containers {
            let is_stage = container.labels.and_then(|mut labels| labels.remove(STAGE)).is_some_and(|stage| !stage.is_empty());
            if container.state == Some(State::RUNNING) {
                at_work.extend(container.image_id);
                continue;
            }
            let Some(id) = container.id.filter(|_| is_stage) else { continue };
            if !only_look {
                let options = RemoveContainerOptions { v: true, ..RemoveContainerOptions::default() };
                done(&format!("remove the container {id}"), docker.remove_container(&id, Some(options)).await)?;
                // The engine may have begun to remove it; until it has, its image is in use.
                let begun = Instant::now();
                while self.inspect(&id).await?.is_some() && begun.elapsed() < REMOVAL_LIMIT {
                    sleep(LOOK_EVERY).await;
                }
            }
            names.push(format!("container {id}"));
        }
        let options = ListImagesOptions { filters: labelled(Some(("dangling", "true"))), ..ListImagesOptions::default() };
        let images = docker.list_images(Some(options)).await.map_err(|error| failed("list images", &error))?;
        for image in images.into_iter().filter(|image| !at_work.contains(&image.id)) {
            if !only_look {
                let removed = docker.remove_image(&image.id, None::<RemoveImageOptions>, None).await;
                found(&format!("remove the image {}", image.id), removed)?;
            }
            names.push(format!("image {}", image.id));
        }
        Ok(names)
    }
}

/// A registry that refuses once refuses again; the user has to correct a wrong password.
fn refused(reference: &str, credentials: &Credentials, mut error: ProviderError) -> ProviderError {
    if docker::is_full_disk(&error.message) {
        return error;
    }
    if class(&error.message) == registries::Class::Denied {
        // A job's record keeps the message alone.
        let why = credentials.explain(&error.message);
        let message = format!("{why}; docker login {} as a user who may fetch it", registry(reference));
        return ProviderError::new(Class::Denied, message);
    }
    error.class = Class::Invalid;
    error.fix(format!("docker pull {reference} shows more; correct compute.docker.image, or build that image first"))
}
