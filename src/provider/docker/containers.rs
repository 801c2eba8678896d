//! Operations on the containers of a job, one engine call after the other.

use std::{collections::HashMap, time::Duration};

use bollard::{
    models::{ContainerCreateBody, ContainerInspectResponse, ContainerState, ContainerStateStatusEnum as Status, ContainerSummary},
    query_parameters::{
        ContainerArchiveInfoOptions, CreateContainerOptions, KillContainerOptions, ListContainersOptions, LogsOptions,
        RemoveContainerOptions, StopContainerOptions, UploadToContainerOptions,
    },
};
use futures_util::StreamExt as _;
use tokio::time::{Instant, sleep};

use super::{
    DRAIN_LIMIT, Docker, KILL_LIMIT, LOOK_EVERY,
    archive::{Entry, pack},
    error::{done, failed, found},
    machine::{self, BEGUN, ENVIRONMENT},
    ours,
};
use crate::{
    docker,
    job::{
        docker::numbers,
        id::{AttemptId, JobId},
    },
    provider::{Class, ProviderError, Resource, Result, error::last_statement, whose::Mark},
};

impl Docker {
    pub(super) async fn inspect(&self, name: &str) -> Result<Option<ContainerInspectResponse>> {
        found(&format!("look at the container {name}"), self.engine().await?.docker.inspect_container(name, None).await)
    }

    /// A node's container of the attempt. One that only has its name is as if it were not there.
    pub(super) async fn container(&self, attempt: &AttemptId, node: usize) -> Result<Option<ContainerInspectResponse>> {
        let mark = self.mark().await?;
        let found = self.inspect(&machine::name(attempt, node)).await?;
        Ok(found.filter(|found| labels(found).is_some_and(|labels| machine::is_of(labels, &attempt.job, &mark))))
    }

    /// Whether its agent has begun, or never may.
    pub(super) async fn has_begun(&self, name: &str) -> Result<bool> {
        let options = ContainerArchiveInfoOptions { path: format!("/{BEGUN}") };
        let answer = self.engine().await?.docker.get_container_archive_info(name, Some(options)).await;
        Ok(found(&format!("look into the container {name}"), answer)?.is_some())
    }

    /// Puts files below `/ftctl` of a container, for its user alone.
    pub(super) async fn put(&self, name: &str, user: (u32, u32), files: &[Entry<'_>]) -> Result<()> {
        let options = UploadToContainerOptions { path: "/".to_owned(), ..UploadToContainerOptions::default() };
        let mut entries = vec![Entry { path: "ftctl/", bytes: None }];
        entries.extend(files.iter().map(|file| Entry { path: file.path, bytes: file.bytes }));
        let body = bollard::body_full(pack(user, &entries));
        let answer = self.engine().await?.docker.upload_to_container(name, Some(options), body).await;
        answer.map_err(|error| failed(&format!("write into the container {name}"), &error))
    }

    /// Makes a node's container, unless it is there.
    pub(super) async fn make(&self, order: &machine::Order<'_>, body: ContainerCreateBody) -> Result<()> {
        let (name, begun) = (machine::name(order.attempt, order.node), Instant::now());
        loop {
            // Another client may be faster; its container has the name for a moment before it is there.
            if let Some(found) = self.inspect(&name).await? {
                return ours(&name, order.attempt, &found, order.mark);
            }
            let options = CreateContainerOptions { name: Some(name.clone()), ..CreateContainerOptions::default() };
            let made = self.engine().await?.docker.create_container(Some(options), body.clone()).await;
            let Err(error) = made else { return Ok(()) };
            let failed = failed(&format!("make the container {name}"), &error);
            if failed.class != Class::Conflict || begun.elapsed() > KILL_LIMIT {
                return Err(failed);
            }
            sleep(LOOK_EVERY).await;
        }
    }

    /// Ends a node's container in the way of a cloud that takes a machine back.
    pub(super) async fn take_away(&self, name: &str) -> Result<()> {
        let Some(found) = self.inspect(name).await? else { return Ok(()) };
        if status(&found) == Status::CREATED {
            self.put(name, user_of(&found), &[Entry { path: BEGUN, bytes: Some(b"") }]).await?;
        }
        let seconds = i32::try_from(self.settings.notice.as_secs()).ok();
        let options = StopContainerOptions { t: seconds, ..StopContainerOptions::default() };
        done(&format!("stop the container {name}"), self.engine().await?.docker.stop_container(name, Some(options)).await)?;
        self.ended(name, KILL_LIMIT).await.map(drop)
    }

    pub(super) async fn start(&self, name: &str) -> Result<()> {
        match self.engine().await?.docker.start_container(name, None).await {
            Err(error) if docker::words(&error).contains("No such container") => Err(gone(name)),
            answer => answer.map_err(|error| failed(&format!("start the container {name}"), &error)),
        }
    }

    /// The containers of the job, of all users.
    pub(super) async fn containers_of(&self, job: &JobId) -> Result<Vec<Resource>> {
        let mark = self.mark().await?;
        self.containers(&format!("{}={job}", machine::JOB), &mark, |labels| machine::is_of(labels, job, &mark)).await
    }

    /// Every container with this label, or with this value of it, of which `keep` holds, in the order of attempts.
    pub(super) async fn containers(
        &self,
        label: &str,
        mark: &Mark<'_>,
        keep: impl Fn(&HashMap<String, String>) -> bool,
    ) -> Result<Vec<Resource>> {
        let filters = HashMap::from([("label".to_owned(), vec![label.to_owned()])]);
        let options = ListContainersOptions { all: true, filters: Some(filters), ..ListContainersOptions::default() };
        let answer = self.engine().await?.docker.list_containers(Some(options)).await;
        let summaries = answer.map_err(|error| failed("list containers", &error))?;
        let kept = |container: ContainerSummary| {
            let labels = container.labels.filter(&keep)?;
            machine::resource(container.names?.first()?, &labels, mark)
        };
        let mut found: Vec<Resource> = summaries.into_iter().filter_map(kept).collect();
        found.sort_by(|a, b| a.attempt.cmp(&b.attempt));
        Ok(found)
    }

    /// Kills what runs; `None` when there is no such container.
    pub(super) async fn power_off(&self, name: &str) -> Result<Option<ContainerInspectResponse>> {
        let options = KillContainerOptions { signal: "SIGKILL".to_owned() };
        done(&format!("kill the container {name}"), self.engine().await?.docker.kill_container(name, Some(options)).await)?;
        self.ended(name, KILL_LIMIT).await
    }

    /// The container once nothing runs in it any more.
    pub(super) async fn ended(&self, name: &str, limit: Duration) -> Result<Option<ContainerInspectResponse>> {
        let begun = Instant::now();
        loop {
            let found = self.inspect(name).await?;
            if !found.as_ref().is_some_and(runs) {
                return Ok(found);
            }
            if begun.elapsed() > limit {
                let why = format!("the container {name} still runs after {} s", limit.as_secs());
                return Err(ProviderError::new(Class::Internal, why));
            }
            sleep(LOOK_EVERY).await;
        }
    }

    /// Lets an agent that did not end by itself send what it left in its container. `found` is not running.
    pub(super) async fn drain(&self, job: &JobId, name: &str, found: &ContainerInspectResponse) -> Result<()> {
        if status(found) == Status::CREATED || exit_code(found) == Some(0) {
            return Ok(());
        }
        let environment = self.environment(job, self.settings.clock.now()).await?;
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
    pub(super) async fn last_words(&self, name: &str, found: &ContainerInspectResponse) -> String {
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

    pub(super) async fn last_line(&self, name: &str) -> Option<String> {
        last_statement(&self.last_lines(name).await?).map(str::to_owned)
    }

    /// The agent's own words: the trainer's go elsewhere. An engine may keep no logs; then there are none.
    pub(super) async fn last_lines(&self, name: &str) -> Option<String> {
        let options = LogsOptions { stdout: true, stderr: true, tail: "20".to_owned(), ..LogsOptions::default() };
        let pieces: Vec<_> = self.engine().await.ok()?.docker.logs(name, Some(options)).collect().await;
        Some(pieces.iter().flatten().map(ToString::to_string).collect())
    }

    /// Removes the container and its nameless volumes, whether it runs or not. One that is gone already is no error.
    pub(super) async fn remove(&self, name: &str) -> Result<()> {
        let options = RemoveContainerOptions { v: true, force: true, ..RemoveContainerOptions::default() };
        let answer = self.engine().await?.docker.remove_container(name, Some(options)).await;
        done(&format!("remove the container {name}"), answer)
    }
}

pub(super) fn labels(found: &ContainerInspectResponse) -> Option<&HashMap<String, String>> {
    found.config.as_ref()?.labels.as_ref()
}

pub(super) fn status(found: &ContainerInspectResponse) -> Status {
    found.state.as_ref().and_then(|state| state.status).unwrap_or(Status::EMPTY)
}

pub(super) fn runs(found: &ContainerInspectResponse) -> bool {
    matches!(status(found), Status::RUNNING | Status::PAUSED | Status::RESTARTING | Status::STOPPING)
}

pub(super) fn exit_code(found: &ContainerInspectResponse) -> Option<i64> {
    found.state.as_ref().and_then(|ContainerState { exit_code, .. }| *exit_code)
}

/// The user that the container was made with.
pub(super) fn user_of(found: &ContainerInspectResponse) -> (u32, u32) {
    let user = found.config.as_ref().and_then(|config| config.user.as_deref());
    user.and_then(numbers).unwrap_or(machine::NOBODY)
}

/// The container was destroyed meanwhile: looking again tells.
pub(super) fn gone(name: &str) -> ProviderError {
    ProviderError::new(Class::Network, format!("there is no container {name} any more"))
}

fn undrained(name: &str, why: &str) -> ProviderError {
    let message = format!("nothing of {name} runs any more, but its last output could not be sent to the store: {why}");
    let fix = format!("run the same command again; to give the unsent bytes up, `docker rm {name}` first");
    ProviderError::new(Class::Network, message).fix(fix)
}
