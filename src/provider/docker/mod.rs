//! Provider `docker`: a container of any engine that can be reached.
//!
//! A "machine" is a container with the attempt's name, and one more for each other node. It is created by `provision` and started
//! by `launch`; nothing is remembered elsewhere. The engine never starts it again, and everything that the job writes lies in the
//! container itself, so that it goes with it: no volume, no network, no image is ever made here.
//!
//! **One agent.** A container that has ended could be started again, by a launcher that saw it before. The agent's first act is to
//! make the file [`machine::BEGUN`]; where it exists already, an agent only sends what the first one left. The same makes `preempt`
//! final before there was an agent, and lets `destroy` save the last bytes of one that was killed.
//!
//! **Secrets** reach the agent as a file for its user alone, which it removes; `docker inspect` shows none.

mod archive;
mod containers;
mod error;
mod image;
mod machine;
mod session;
mod store;
#[cfg(test)]
mod tests;

use std::{path::PathBuf, sync::Arc, time::Duration};

use async_trait::async_trait;
use bollard::models::{ContainerInspectResponse, ContainerStateStatusEnum as Status};
use futures_util::future::try_join_all;
use jiff::Timestamp;
use tokio::{
    sync::OnceCell,
    time::{Instant, sleep},
};

use self::{
    archive::Entry,
    containers::{gone, labels, runs, status, user_of},
    machine::{ENVIRONMENT, ORDER},
};
use super::{
    Account, AgentEnvironment, Build, Capabilities, Class, Console, Provider, ProviderError, Resource, Result, Session, Sighting,
    rights::Rights,
    whose::{Mark, Party, Whose, namesake, unknown_store},
};
use crate::{
    docker::{self, Engine},
    image::container,
    job::{
        clock::Clock,
        compute::Compute,
        docker::DockerPlan,
        finding::Finding,
        id::{AttemptId, JobId},
        order::{RunOrder, TrainerImage},
        plan::{Plan, Price},
        report::{Report, Silent},
        units::Money,
    },
};

/// The time between the polite and the final signal to a preempted container; as on GCE.
pub const PREEMPTION_NOTICE: Duration = Duration::from_secs(30);

/// A drain gives up by itself when the store cannot be reached; this ends one that hangs. A large checkpoint takes minutes.
const DRAIN_LIMIT: Duration = Duration::from_secs(30 * 60);

/// A container that does not go after SIGKILL hangs in the kernel (a dead disk or network mount).
const KILL_LIMIT: Duration = Duration::from_secs(20);

/// How often a container that is about to end is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// The provider's knowledge of this machine.
#[derive(Clone)]
pub struct Settings {
    /// Whose containers [`Provider::list`] shows.
    pub party: Party,
    /// The store, as the job's order names it.
    pub store: String,
    /// Where requests to the store go.
    pub address: String,
    /// The environment of an agent on this machine; a container gets the part of it that is for the store.
    pub variables: AgentEnvironment,
    /// Time between SIGTERM and SIGKILL in [`Provider::preempt`], in whole seconds.
    pub notice: Duration,
    pub clock: Arc<dyn Clock>,
    /// ftctl's own, with the trainers that it built.
    pub cache: PathBuf,
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

    async fn mark(&self) -> Result<Mark<'_>> {
        self.settings.party.mark().await.map_err(unknown_store)
    }
}

#[async_trait]
impl Account for Docker {
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

    async fn price(&self, plan: &Plan) -> Result<Price> {
        self.admit(plan)?;
        Ok(Money::ZERO.into())
    }

    async fn answers(&self) -> Result<()> {
        self.engine().await.map(drop)
    }

    async fn tidy(&self, only_look: bool) -> Result<Vec<String>> {
        self.stages(only_look).await
    }
}

#[async_trait]
impl Provider for Docker {
    fn capabilities(&self) -> Capabilities {
        Capabilities { bills: false, signs: false, simulated: false, commands: true }
    }

    fn build<'p>(&self, plan: &'p Plan) -> Option<Build<'p>> {
        let reads = plan.image.prebuilt.as_deref().or(plan.image.ca_bundle.as_deref());
        plan.image().is_none().then_some(Build { what: "the image", reads })
    }

    async fn image(&self, plan: &Plan, before: Option<&TrainerImage>, report: &dyn Report) -> Result<TrainerImage> {
        match (plan.image(), before) {
            (Some(named), _) => Ok(TrainerImage::Image { reference: named.to_owned() }),
            (None, Some(TrainerImage::Image { reference })) => Ok(TrainerImage::Image { reference: reference.clone() }),
            (None, _) => {
                let engine = docker::connect(report).await?;
                let made = Box::pin(container::ensure(&engine, &plan.image, &self.settings.cache, report)).await?;
                Ok(TrainerImage::Image { reference: made.id })
            }
        }
    }

    async fn provision(&self, attempt: &AttemptId, plan: &Plan, image: &TrainerImage) -> Result<Vec<String>> {
        let (mark, wanted) = (self.mark().await?, wanted(plan)?);
        let mut order = machine::Order {
            attempt,
            node: 0,
            image: self.fetched(image).await?,
            user: self.user(wanted)?,
            url: &self.settings.store,
            store: self.directory(),
            owner: &self.settings.party.owner,
            mark: &mark,
            now: self.now().await.unwrap_or_else(|| self.settings.clock.now()),
            proxies: self.engine().await?.proxies(),
        };
        // The first node's is the attempt's, and comes last: the others are there by then.
        for node in (0..plan.nodes).rev() {
            order.node = node;
            self.make(&order, machine::container(&order, plan, wanted)).await?;
        }
        Ok(Vec::new())
    }

    async fn launch(&self, order: &RunOrder) -> Result<()> {
        let attempt = AttemptId::new(&order.job, order.attempt);
        let until = order.deadline.unwrap_or(self.settings.clock.now());
        let text = serde_json::to_vec_pretty(order).map_err(|error| ProviderError::new(Class::Internal, error.to_string()))?;
        // Without the first node's agent the attempt counts as not begun, and the others end with it.
        for node in (0..order.nodes).rev() {
            let name = machine::name(&attempt, node);
            let found = self.container(&attempt, node).await?.ok_or_else(|| gone(&name))?;
            if status(&found) != Status::CREATED || self.has_begun(&name).await? {
                continue;
            }
            let environment = self.environment(&order.job, until).await?;
            let files = [Entry { path: ORDER, bytes: Some(&text) }, Entry { path: ENVIRONMENT, bytes: Some(&environment) }];
            self.put(&name, user_of(&found), &files).await?;
            self.start(&name).await?;
        }
        Ok(())
    }

    async fn observe(&self, attempt: &AttemptId) -> Result<Sighting> {
        let name = machine::name(attempt, 0);
        let Some(found) = self.container(attempt, 0).await? else { return Ok(Sighting::Gone) };
        Ok(match status(&found) {
            Status::CREATED if self.has_begun(&name).await? => {
                Sighting::Dead { why: "the container was taken away before its agent was started".to_owned() }
            }
            Status::CREATED => Sighting::Alive { agent: false },
            _ if runs(&found) => Sighting::Alive { agent: true },
            _ => Sighting::Dead { why: self.last_words(&name, &found).await },
        })
    }

    async fn console(&self, attempt: &AttemptId, start: u64) -> Result<Option<Console>> {
        if self.container(attempt, 0).await?.is_none() {
            return Ok(None);
        }
        Ok(self.last_lines(&machine::name(attempt, 0)).await.map(|lines| Console::of(&lines, start)))
    }

    async fn preempt(&self, attempt: &AttemptId) -> Result<()> {
        let mut nodes = self.containers_of(&attempt.job).await?;
        nodes.retain(|container| container.attempt == *attempt);
        if nodes.is_empty() {
            let name = machine::name(attempt, 0);
            return Err(ProviderError::new(Class::Invalid, format!("there is no container {name} to preempt")));
        }
        // All of them at the same time: the others save what they have only together.
        try_join_all(nodes.iter().map(|node| self.take_away(&node.name))).await.map(drop)
    }

    async fn destroy(&self, job: &JobId) -> Result<()> {
        let containers = self.containers_of(job).await?;
        for container in &containers {
            self.power_off(&container.name).await?;
        }
        for Resource { name, attempt, .. } in &containers {
            // All that is left to send is with the first node.
            if let Some(found) = self.ended(name, KILL_LIMIT).await?
                && !machine::is_of_another_node(name, attempt)
            {
                self.drain(job, name, &found).await?;
            }
            self.remove(name).await?;
        }
        let begun = Instant::now();
        loop {
            let left = self.containers_of(job).await?;
            let Some(first) = left.first() else { return Ok(()) };
            if begun.elapsed() > KILL_LIMIT {
                let why = format!("the engine does not remove the container {}", first.name);
                return Err(ProviderError::new(Class::Internal, why));
            }
            sleep(LOOK_EVERY).await;
        }
    }

    async fn list(&self) -> Result<Vec<Resource>> {
        self.containers(machine::OWNER, &self.mark().await?, |_| true).await
    }

    /// The engine's.
    async fn now(&self) -> Option<Timestamp> {
        self.engine().await.ok()?.docker.info().await.ok()?.system_time?.parse().ok()
    }

    async fn session(&self, attempt: &AttemptId, command: &[String], terminal: bool) -> Result<Session> {
        let name = machine::name(attempt, 0);
        self.container(attempt, 0).await?.ok_or_else(|| {
            ProviderError::new(Class::Invalid, format!("there is no container {name}")).fix("`ftctl status` shows which jobs run")
        })?;
        session::open(&self.engine().await?.docker, &name, command, terminal).await
    }
}

pub fn rights(plan: &DockerPlan) -> Rights {
    let DockerPlan { user, mounts, network, .. } = plan.clone();
    Rights { user, mounts, network: Some(network), ..Rights::default() }
}

fn wanted(plan: &Plan) -> Result<&DockerPlan> {
    if let Compute::Docker(docker) = &*plan.compute { Ok(docker) } else { Err(ProviderError::misplaced(plan)) }
}

fn ours(name: &str, attempt: &AttemptId, found: &ContainerInspectResponse, mark: &Mark<'_>) -> Result<()> {
    match labels(found).and_then(|labels| machine::resource(name, labels, mark)) {
        Some(resource) if resource.attempt != *attempt || resource.belongs.whose == Whose::OtherStore => {
            Err(namesake(&format!("a container {name}"), &resource.belongs))
        }
        Some(_) => Ok(()),
        None => {
            let message = format!("a container that is not ftctl's has the name {name}");
            Err(ProviderError::new(Class::Conflict, message).fix(format!("docker rename {name} another-name")))
        }
    }
}
