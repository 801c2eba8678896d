//! Provider `docker`: a container of any engine that can be reached.
//!
//! A "machine" is a container with the attempt's name. It is created by `provision` and started by `launch`; nothing is remembered
//! elsewhere. The engine never starts it again, and everything that the job writes lies in the container itself, so that it goes with
//! it: no volume, no network, no image is ever made here.
//!
//! **One agent.** A container that has ended could be started again, by a launcher that saw it before. The agent's first act is to make
//! the file [`machine::BEGUN`]; where it exists already, an agent only sends what the first one left. The same makes `preempt` final
//! before there was an agent, and lets `destroy` save the last bytes of one that was killed.
//!
//! **Secrets** reach the agent as a file for its user alone, which it removes; `docker inspect` shows none.

mod archive;
mod error;
mod machine;
mod session;
#[cfg(test)]
mod tests;

use std::{collections::HashMap, fs, os::unix::fs::MetadataExt as _, path::Path, sync::Arc, time::Duration};

use async_trait::async_trait;
use bollard::{
    models::{ContainerInspectResponse, ContainerState, ContainerStateStatusEnum as Status},
    query_parameters::{
        ContainerArchiveInfoOptions, CreateContainerOptions, CreateImageOptions, KillContainerOptions, ListContainersOptions,
        LogsOptions, RemoveContainerOptions, StopContainerOptions, UploadToContainerOptions,
    },
};
use futures_util::{StreamExt as _, TryStreamExt as _};
use serde_json::{Map, Value};
use tokio::{
    sync::OnceCell,
    time::{Instant, sleep},
};

use self::{
    archive::{Entry, pack},
    error::{done, failed, found},
    machine::{BEGUN, ENVIRONMENT, ORDER},
};
use super::{
    AgentEnvironment, Capabilities, Class, LeftBehind, Provider, ProviderError, Resource, Result, Session, Sighting, TrainerFrom,
    error::last_statement,
};
use crate::{
    docker::{self, Engine},
    job::{
        clock::Clock,
        docker::numbers,
        finding::Finding,
        id::{AttemptId, JobId},
        order::{RunOrder, TrainerImage},
        plan::Plan,
        report::Silent,
        units::Money,
    },
    store::azure,
};

/// What a preempted container is given between the polite and the final signal; as on GCE.
pub const PREEMPTION_NOTICE: Duration = Duration::from_secs(30);

/// A drain gives up by itself when the store cannot be reached; this ends one that hangs. A large checkpoint takes minutes.
const DRAIN_LIMIT: Duration = Duration::from_secs(30 * 60);

/// A container that does not go after SIGKILL hangs in the kernel (a dead disk or network mount).
const KILL_LIMIT: Duration = Duration::from_secs(20);

/// How often a container that is about to end is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// What the provider is told about this machine.
#[derive(Clone)]
pub struct Settings {
    /// Whose containers [`Provider::list`] shows.
    pub owner: String,
    /// As the job's order names it.
    pub store: String,
    /// What an agent on this machine would have; a container gets the part of it that is for the store.
    pub variables: AgentEnvironment,
    /// Time between SIGTERM and SIGKILL in [`Provider::preempt`], in whole seconds.
    pub notice: Duration,
    pub clock: Arc<dyn Clock>,
}

pub struct Docker {
    settings: Settings,
    engine: OnceCell<Engine>,
}

impl Docker {
    pub fn new(settings: Settings) -> Self {
        Self { settings, engine: OnceCell::new() }
    }

    async fn engine(&self) -> Result<&Engine> {
        Ok(self.engine.get_or_try_init(|| docker::connect(&Silent)).await?)
    }

    /// The store's directory on this machine, when it is one.
    fn directory(&self) -> Option<&Path> {
        Some(Path::new(&self.settings.store)).filter(|path| path.is_absolute())
    }

    async fn inspect(&self, name: &str) -> Result<Option<ContainerInspectResponse>> {
        found(&format!("look at the container {name}"), self.engine().await?.docker.inspect_container(name, None).await)
    }

    /// Whether its agent has begun, or never may.
    async fn has_begun(&self, name: &str) -> Result<bool> {
        let options = ContainerArchiveInfoOptions { path: format!("/{BEGUN}") };
        let answer = self.engine().await?.docker.get_container_archive_info(name, Some(options)).await;
        Ok(found(&format!("look into the container {name}"), answer)?.is_some())
    }

    /// Puts files below `/ftctl` of a container, for its user alone.
    async fn put(&self, name: &str, user: (u32, u32), files: &[Entry<'_>]) -> Result<()> {
        let options = UploadToContainerOptions { path: "/".to_owned(), ..UploadToContainerOptions::default() };
        let mut entries = vec![Entry { path: "ftctl/", bytes: None }];
        entries.extend(files.iter().map(|file| Entry { path: file.path, bytes: file.bytes }));
        let body = bollard::body_full(pack(user, &entries));
        let answer = self.engine().await?.docker.upload_to_container(name, Some(options), body).await;
        answer.map_err(|error| failed(&format!("write into the container {name}"), &error))
    }

    async fn start(&self, name: &str) -> Result<()> {
        match self.engine().await?.docker.start_container(name, None).await {
            Err(error) if docker::words(&error).contains("No such container") => Err(gone(name)),
            answer => answer.map_err(|error| failed(&format!("start the container {name}"), &error).leaving(LeftBehind::Removable)),
        }
    }

    /// What the agent may show to the store.
    async fn environment(&self) -> Result<Vec<u8>> {
        let carried = azure::carried(&(self.settings.variables)().await?);
        if carried.is_empty() && azure::is_container(&self.settings.store) {
            let why = format!("nothing that this machine signs in to {} with can be given to a container", self.settings.store);
            return Err(ProviderError::new(Class::Denied, why)
                .fix("set AZURE_STORAGE_KEY: agents then get a signature that ends with the job"));
        }
        let variables: Map<String, Value> = carried.into_iter().map(|(name, value)| (name, value.into())).collect();
        Ok(Value::from(variables).to_string().into_bytes())
    }

    /// The image's id, fetched from its registry when the engine has not got it.
    async fn image(&self, image: &TrainerImage) -> Result<String> {
        let TrainerImage::Image { reference } = image else {
            return Err(ProviderError::new(Class::Invalid, "the job names no container image"));
        };
        let docker = &self.engine().await?.docker;
        let look = format!("look for the image {reference}");
        let mut present = found(&look, docker.inspect_image(reference).await)?;
        if present.is_none() {
            let options = CreateImageOptions { from_image: Some(tagged(reference)), ..CreateImageOptions::default() };
            let pulled = docker.create_image(Some(options), None, None).try_for_each(|_| std::future::ready(Ok(()))).await;
            pulled.map_err(|error| {
                let mut failed = failed(&format!("fetch the image {reference}"), &error);
                // A registry that says no says it again.
                failed.class = if docker::is_line(&error) { Class::Network } else { Class::Invalid };
                failed.fix(format!("docker pull {reference} shows more; correct compute.docker.image, or build that image first"))
            })?;
            present = found(&look, docker.inspect_image(reference).await)?;
        }
        let id = present.and_then(|image| image.id);
        id.ok_or_else(|| ProviderError::new(Class::Internal, format!("the engine has fetched {reference} and does not have it")))
    }

    /// Whose processes they are: as the plan says, or else whoever may write to the store's directory.
    fn user(&self, plan: &Plan) -> Result<(u32, u32)> {
        if let Some(user) = plan.docker.user.as_deref().and_then(numbers) {
            return Ok(user);
        }
        let Some(store) = self.directory() else { return Ok(machine::NOBODY) };
        let found = fs::metadata(store).map_err(|error| {
            ProviderError::new(Class::Internal, format!("cannot look at the store {}: {error}", store.display()))
        })?;
        Ok((found.uid(), found.gid()))
    }

    /// Refuses what can be known to fail before anything is made.
    async fn admit(&self, plan: &Plan) -> Result<()> {
        let engine = self.engine().await?;
        let store = &self.settings.store;
        let refused = |why: String, fix: &str| Err(ProviderError::new(Class::Invalid, why).fix(fix));
        if self.directory().is_some() {
            if !engine.endpoint.is_local() {
                let why =
                    format!("the store {store} is a directory of this machine; containers of {} do not see it", engine.endpoint);
                return refused(why, "name a blob container with --store");
            }
        } else if !azure::is_container(store) {
            return refused(
                format!("a container does not see the store {store}"),
                "name a directory or a blob container with --store",
            );
        } else if is_loopback(store) && plan.docker.network != "host" {
            let why = format!(
                "the store {store} is on this machine's loopback, which a container on a network of its own does not reach"
            );
            return refused(why, "set compute.docker.network = \"host\"");
        }
        Ok(())
    }

    /// Every container of the job, whoever made it, in the order of attempts.
    async fn containers(&self, label: &str, value: &str) -> Result<Vec<Resource>> {
        let filters = HashMap::from([("label".to_owned(), vec![format!("{label}={value}")])]);
        let options = ListContainersOptions { all: true, filters: Some(filters), ..ListContainersOptions::default() };
        let answer = self.engine().await?.docker.list_containers(Some(options)).await;
        let summaries = answer.map_err(|error| failed("list containers", &error))?;
        let mut found: Vec<Resource> = summaries
            .into_iter()
            .filter_map(|container| machine::resource(container.names?.first()?, &container.labels?))
            .collect();
        found.sort_by(|a, b| a.attempt.cmp(&b.attempt));
        Ok(found)
    }

    /// Kills what runs; `None` when there is no such container.
    async fn power_off(&self, name: &str) -> Result<Option<ContainerInspectResponse>> {
        let options = KillContainerOptions { signal: "SIGKILL".to_owned() };
        done(&format!("kill the container {name}"), self.engine().await?.docker.kill_container(name, Some(options)).await)?;
        self.ended(name, KILL_LIMIT).await
    }

    /// The container once nothing runs in it any more.
    async fn ended(&self, name: &str, limit: Duration) -> Result<Option<ContainerInspectResponse>> {
        let begun = Instant::now();
        loop {
            let found = self.inspect(name).await?;
            if !found.as_ref().is_some_and(runs) {
                return Ok(found);
            }
            if begun.elapsed() > limit {
                let why = format!("the container {name} still runs after {} s", limit.as_secs());
                return Err(ProviderError::new(Class::Internal, why).leaving(LeftBehind::Removable));
            }
            sleep(LOOK_EVERY).await;
        }
    }

    /// Lets an agent that did not end by itself send what it left in its container. `found` is not running.
    async fn drain(&self, name: &str, found: &ContainerInspectResponse) -> Result<()> {
        if status(found) == Status::CREATED || exit_code(found) == Some(0) {
            return Ok(());
        }
        let environment = self.environment().await?;
        let files = [Entry { path: BEGUN, bytes: Some(b"") }, Entry { path: ENVIRONMENT, bytes: Some(&environment) }];
        self.put(name, user_of(found), &files).await?;
        self.start(name).await?;
        let drained = match self.ended(name, DRAIN_LIMIT).await {
            Err(error) if error.class == Class::Internal => self.power_off(name).await?,
            ended => ended?,
        };
        match drained {
            Some(drained) if exit_code(&drained) != Some(0) => Err(undrained(name, &self.last_words(name, &drained).await)),
            _ => Ok(()),
        }
    }

    /// Why a container is over, as far as anybody can say.
    async fn last_words(&self, name: &str, found: &ContainerInspectResponse) -> String {
        let state = found.state.as_ref();
        let how = match exit_code(found) {
            _ if state.and_then(|state| state.oom_killed) == Some(true) => "was out of memory, and killed".to_owned(),
            Some(code) if code > 128 => format!("was ended by signal {}", code - 128),
            code => format!("ended with exit code {}", code.unwrap_or_default()),
        };
        match self.last_line(name).await {
            Some(line) => format!("the container {how}; its last line: {line}"),
            None => format!("the container {how}"),
        }
    }

    /// An engine may keep no logs; then there is none.
    async fn last_line(&self, name: &str) -> Option<String> {
        let options = LogsOptions { stdout: true, stderr: true, tail: "20".to_owned(), ..LogsOptions::default() };
        let pieces: Vec<_> = self.engine().await.ok()?.docker.logs(name, Some(options)).collect().await;
        let text: String = pieces.iter().flatten().map(ToString::to_string).collect();
        last_statement(&text).map(str::to_owned)
    }

    /// Whether there is something of the engine's that `destroy` has still to wait for.
    async fn remove(&self, name: &str) -> Result<()> {
        let options = RemoveContainerOptions { v: true, force: true, ..RemoveContainerOptions::default() };
        let answer = self.engine().await?.docker.remove_container(name, Some(options)).await;
        done(&format!("remove the container {name}"), answer).map_err(|error| error.leaving(LeftBehind::Removable))
    }
}

#[async_trait]
impl Provider for Docker {
    fn capabilities(&self) -> Capabilities {
        Capabilities { trainer: TrainerFrom::Engine, bills: false }
    }

    async fn check(&self) -> Vec<Finding> {
        const ENGINE: &str = "container engine";
        const GPUS: &str = "GPUs in containers";
        let engine = match docker::connect(&Silent).await {
            Ok(engine) => engine,
            Err(error) => return vec![Finding::bad(ENGINE, error.to_string(), error.fix())],
        };
        let mut findings =
            vec![Finding::good(ENGINE, format!("{} at {}, from {}", engine.version, engine.endpoint, engine.endpoint.origin))];
        let runtimes = engine.docker.info().await.ok().and_then(|info| info.runtimes).unwrap_or_default();
        findings.push(if runtimes.contains_key("nvidia") {
            Finding::good(GPUS, "the engine has NVIDIA's runtime")
        } else {
            Finding::notice(
                GPUS,
                "the engine has no NVIDIA runtime; jobs with compute.docker.gpus would fail",
                "install the NVIDIA Container Toolkit where the engine runs",
            )
        });
        findings
    }

    async fn price_per_hour(&self, plan: &Plan) -> Result<Money> {
        self.admit(plan).await?;
        Ok(Money::ZERO)
    }

    async fn provision(&self, attempt: &AttemptId, plan: &Plan, image: &TrainerImage) -> Result<()> {
        let name = attempt.machine_name();
        if let Some(found) = self.inspect(&name).await? {
            return ours(&name, attempt, &found);
        }
        let order = machine::Order {
            attempt,
            image: self.image(image).await?,
            user: self.user(plan)?,
            store: self.directory(),
            owner: &self.settings.owner,
            now: self.settings.clock.now(),
        };
        let body = machine::container(&order, plan);
        let begun = Instant::now();
        loop {
            let options = CreateContainerOptions { name: Some(name.clone()), ..CreateContainerOptions::default() };
            let Err(error) = self.engine().await?.docker.create_container(Some(options), body.clone()).await else { return Ok(()) };
            // Another client was faster; its container has the name for a moment before it is there.
            if let Some(found) = self.inspect(&name).await? {
                return ours(&name, attempt, &found);
            }
            let failed = failed(&format!("make the container {name}"), &error);
            if failed.class != Class::Conflict || begun.elapsed() > KILL_LIMIT {
                return Err(failed);
            }
            sleep(LOOK_EVERY).await;
        }
    }

    async fn launch(&self, order: &RunOrder) -> Result<()> {
        let name = AttemptId::new(&order.job, order.attempt).machine_name();
        let found = self.inspect(&name).await?.ok_or_else(|| gone(&name))?;
        if status(&found) != Status::CREATED || self.has_begun(&name).await? {
            return Ok(());
        }
        let order = serde_json::to_vec_pretty(order).map_err(|error| ProviderError::new(Class::Internal, error.to_string()))?;
        let environment = self.environment().await?;
        let files = [Entry { path: ORDER, bytes: Some(&order) }, Entry { path: ENVIRONMENT, bytes: Some(&environment) }];
        self.put(&name, user_of(&found), &files).await?;
        self.start(&name).await
    }

    async fn observe(&self, attempt: &AttemptId) -> Result<Sighting> {
        let name = attempt.machine_name();
        let Some(found) = self.inspect(&name).await? else { return Ok(Sighting::Gone) };
        Ok(match status(&found) {
            Status::CREATED if self.has_begun(&name).await? => {
                Sighting::Dead { why: "the container was taken away before its agent was started".to_owned() }
            }
            Status::CREATED => Sighting::Alive { agent: false },
            _ if runs(&found) => Sighting::Alive { agent: true },
            _ => Sighting::Dead { why: self.last_words(&name, &found).await },
        })
    }

    async fn preempt(&self, attempt: &AttemptId) -> Result<()> {
        let name = attempt.machine_name();
        let Some(found) = self.inspect(&name).await? else {
            return Err(ProviderError::new(Class::Invalid, format!("there is no container {name} to take away")));
        };
        if status(&found) == Status::CREATED {
            self.put(&name, user_of(&found), &[Entry { path: BEGUN, bytes: Some(b"") }]).await?;
        }
        let seconds = i32::try_from(self.settings.notice.as_secs()).ok();
        let options = StopContainerOptions { t: seconds, ..StopContainerOptions::default() };
        done(&format!("stop the container {name}"), self.engine().await?.docker.stop_container(&name, Some(options)).await)?;
        self.ended(&name, KILL_LIMIT).await.map(drop)
    }

    async fn destroy(&self, job: &JobId) -> Result<()> {
        let containers = self.containers(machine::JOB, job.as_str()).await?;
        for container in &containers {
            self.power_off(&container.name).await?;
        }
        for Resource { name, .. } in &containers {
            if let Some(found) = self.ended(name, KILL_LIMIT).await? {
                self.drain(name, &found).await?;
            }
            self.remove(name).await?;
        }
        let begun = Instant::now();
        loop {
            let left = self.containers(machine::JOB, job.as_str()).await?;
            let Some(first) = left.first() else { return Ok(()) };
            if begun.elapsed() > KILL_LIMIT {
                let why = format!("the engine does not remove the container {}", first.name);
                return Err(ProviderError::new(Class::Internal, why).leaving(LeftBehind::Removable));
            }
            sleep(LOOK_EVERY).await;
        }
    }

    async fn list(&self) -> Result<Vec<Resource>> {
        self.containers(machine::OWNER, &self.settings.owner).await
    }

    async fn session(&self, attempt: &AttemptId, command: &[String], terminal: bool) -> Result<Session> {
        session::open(&self.engine().await?.docker, &attempt.machine_name(), command, terminal).await
    }
}

fn status(found: &ContainerInspectResponse) -> Status {
    found.state.as_ref().and_then(|state| state.status).unwrap_or(Status::EMPTY)
}

fn runs(found: &ContainerInspectResponse) -> bool {
    matches!(status(found), Status::RUNNING | Status::PAUSED | Status::RESTARTING | Status::STOPPING)
}

fn exit_code(found: &ContainerInspectResponse) -> Option<i64> {
    found.state.as_ref().and_then(|ContainerState { exit_code, .. }| *exit_code)
}

/// As the container was made with.
fn user_of(found: &ContainerInspectResponse) -> (u32, u32) {
    let user = found.config.as_ref().and_then(|config| config.user.as_deref());
    user.and_then(numbers).unwrap_or(machine::NOBODY)
}

fn ours(name: &str, attempt: &AttemptId, found: &ContainerInspectResponse) -> Result<()> {
    let labels = found.config.as_ref().and_then(|config| config.labels.as_ref());
    if labels.and_then(|labels| machine::resource(name, labels)).is_some_and(|resource| resource.attempt == *attempt) {
        return Ok(());
    }
    let message = format!("a container that is not ftctl's has the name {name}");
    Err(ProviderError::new(Class::Conflict, message).fix(format!("docker rename {name} another-name")))
}

/// Somebody destroyed the container meanwhile: looking again tells.
fn gone(name: &str) -> ProviderError {
    ProviderError::new(Class::Network, format!("there is no container {name} any more"))
}

fn undrained(name: &str, why: &str) -> ProviderError {
    let message = format!("nothing of {name} runs any more, but its last output could not be sent to the store: {why}");
    let fix = format!("run the same command again; to give the unsent bytes up, `docker rm {name}` first");
    ProviderError::new(Class::Network, message).fix(fix).leaving(LeftBehind::Removable)
}

/// A name alone would mean every tag of it.
fn tagged(reference: &str) -> String {
    let last = reference.rsplit('/').next().unwrap_or(reference);
    if last.contains([':', '@']) { reference.to_owned() } else { format!("{reference}:latest") }
}

/// Whether only this machine itself reaches the host of a URL.
fn is_loopback(url: &str) -> bool {
    let host = url.split_once("://").map_or("", |(_, rest)| rest.split('/').next().unwrap_or_default());
    let host = host.rsplit_once(':').map_or(host, |(host, _)| host);
    matches!(host, "localhost" | "[::1]") || host.starts_with("127.")
}
