//! A container's view of the store: a directory of the engine's machine, or a blob container and credentials.

use std::{fs, os::unix::fs::MetadataExt as _, path::Path};

use jiff::Timestamp;
use serde_json::{Map, Value};

use super::{Docker, machine};
use crate::{
    docker,
    job::{
        docker::{DockerPlan, Gpus, numbers},
        id::JobId,
        plan::Plan,
    },
    provider::{Class, ProviderError, Result},
    store::azure,
};

impl Docker {
    /// The store's directory on this machine, when it is one.
    pub(super) fn directory(&self) -> Option<&Path> {
        Some(Path::new(&self.settings.store)).filter(|path| path.is_absolute())
    }

    /// The credentials of the job's agent for the store, until the given time; empty where that is a directory.
    pub(super) async fn environment(&self, job: &JobId, until: Timestamp) -> Result<Vec<u8>> {
        if !azure::is_container(&self.settings.store) {
            return Ok(b"{}".to_vec());
        }
        let carried = azure::carried(&(self.settings.variables)(job.clone(), until).await?);
        if carried.is_empty() {
            let why = format!("this machine's sign-in to {} cannot be passed to a container", self.settings.store);
            return Err(ProviderError::new(Class::Denied, why)
                .fix("set AZURE_STORAGE_KEY: agents then get a signature that ends with the job"));
        }
        let variables: Map<String, Value> = carried.into_iter().map(|(name, value)| (name, value.into())).collect();
        Ok(Value::from(variables).to_string().into_bytes())
    }

    /// The user of the container's processes: as the plan says, or else the owner of the store's directory, who may write to it.
    pub(super) fn user(&self, wanted: &DockerPlan) -> Result<(u32, u32)> {
        if let Some(user) = wanted.user.as_deref().and_then(numbers) {
            return Ok(user);
        }
        let Some(store) = self.directory() else { return Ok(machine::NOBODY) };
        let found = fs::metadata(store).map_err(|error| {
            ProviderError::new(Class::Internal, format!("cannot look at the store {}: {error}", store.display()))
        })?;
        Ok((found.uid(), found.gid()))
    }

    /// Refuses what can be known to fail before anything is made, and without asking an engine.
    pub(super) fn admit(&self, plan: &Plan) -> Result<()> {
        let wanted = super::wanted(plan)?;
        let engine = docker::endpoint()?;
        let store = &self.settings.store;
        let refused = |why: String, fix: &str| Err(ProviderError::new(Class::Invalid, why).fix(fix));
        if self.directory().is_some() {
            if !engine.is_local() {
                let why = format!("the store {store} is a directory of this machine; containers of {engine} do not see it");
                return refused(why, "name a blob container with --store");
            }
        } else if !azure::is_container(store) {
            return refused(
                format!("a container does not see the store {store}"),
                "name a directory or a blob container with --store",
            );
        } else if is_loopback(&self.settings.address) && wanted.network != "host" {
            let why = format!(
                "the store {store} is at {}, this machine's loopback, which a container on a network of its own does not reach",
                self.settings.address
            );
            return refused(why, "set compute.docker.network = \"host\"");
        }
        if plan.nodes > 1 && wanted.network == "none" {
            let why = format!("the {} nodes of the job exchange gradients, and their containers would have no network", plan.nodes);
            return refused(why, "set compute.docker.network = \"bridge\"");
        }
        if plan.nodes > 1 && wanted.gpus == Gpus::All {
            let why = format!("with all GPUs for each of the {} nodes they would have the same ones", plan.nodes);
            return refused(why, "say how many each has, such as compute.docker.gpus = \"1\"");
        }
        let variant = plan.image.variant.unwrap_or_default();
        if wanted.gpus != Gpus::None && wanted.image.is_none() && variant.cuda().is_none() {
            let why = format!("the job wants GPUs, and its image would have none of CUDA's libraries (variant {})", variant.name());
            return refused(why, "set image.variant = \"cu130\", or \"cu126\" for GPUs older than Turing, such as a V100");
        }
        Ok(())
    }
}

/// Whether only this machine itself reaches the host of a URL.
fn is_loopback(url: &str) -> bool {
    let host = url.split_once("://").map_or("", |(_, rest)| rest.split('/').next().unwrap_or_default());
    let host = host.rsplit_once(':').map_or(host, |(host, _)| host);
    matches!(host, "localhost" | "[::1]") || host.starts_with("127.")
}
