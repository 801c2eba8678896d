//! The parts of a job's container.
//!
//! | path in the container | is |
//! |---|---|
//! | `/ftctl` | made for its user alone; all of it goes with the container |
//! | `/ftctl/order.json` | the agent's order |
//! | `/ftctl/environment.json` | its credentials for the store; it removes the file when it has read it |
//! | `/ftctl/begun` | exists: the agent was started once, and never trains again |
//! | `/ftctl/work`, `/ftctl/cache` | the agent's directories |

use std::{collections::HashMap, fmt::Write as _, path::Path};

use bollard::models::{
    ContainerCreateBody, DeviceRequest, HostConfig, Mount, MountType, ResourcesUlimits, RestartPolicy, RestartPolicyNameEnum,
};
use jiff::Timestamp;

use crate::{
    job::{
        docker::{DockerPlan, Gpus},
        id::{AttemptId, JobId},
        plan::Plan,
        units::Money,
    },
    provider::{
        Resource,
        whose::{Mark, Said, is_label},
    },
};

pub const ORDER: &str = "ftctl/order.json";
pub const ENVIRONMENT: &str = "ftctl/environment.json";
pub const BEGUN: &str = "ftctl/begun";

/// The owner label of everything that is made here: the user's name as it is. It tells those who may ask an engine nothing new, for
/// they have the whole machine.
pub const OWNER: &str = "ftctl.owner";
pub const JOB: &str = "ftctl.job";
const ATTEMPT: &str = "ftctl.attempt";
/// A digest; an older ftctl wrote the URL here.
const STORE: &str = "ftctl.store";
const STORE_URL: &str = "ftctl.store-url";
const SINCE: &str = "ftctl.since";
const EXPIRES: &str = "ftctl.expires";

/// Processes and threads: far more than one for every core of the largest machine and every GPU of it, and no end of the engine's
/// machine.
const PROCESSES: i64 = 16_384;

/// A user without rights and files.
pub const NOBODY: (u32, u32) = (65_532, 65_532);

/// Before the number of another node than the first.
const OTHER: &str = "-node-";

/// The name of a node's container: the first has the attempt's.
pub fn name(attempt: &AttemptId, node: usize) -> String {
    let first = attempt.machine_name();
    if node == 0 { first } else { format!("{first}{OTHER}{node}") }
}

/// Whether this [`name`] is that of another node than the first.
pub fn is_of_another_node(name: &str, attempt: &AttemptId) -> bool {
    name.strip_prefix(&attempt.machine_name()).is_some_and(|rest| rest.starts_with(OTHER))
}

/// The settings of a new container, beside its plan.
pub struct Order<'a> {
    pub attempt: &'a AttemptId,
    pub node: usize,
    pub image: String,
    pub user: (u32, u32),
    /// The job's store.
    pub url: &'a str,
    /// Where it is a directory.
    pub store: Option<&'a Path>,
    pub owner: &'a str,
    pub mark: &'a Mark<'a>,
    pub now: Timestamp,
    /// Variables with the proxies that docker has for containers.
    pub proxies: Vec<(String, String)>,
}

pub fn container(order: &Order<'_>, plan: &Plan, wanted: &DockerPlan) -> ContainerCreateBody {
    let mut agent =
        "agent --order /ftctl/order.json --work /ftctl/work --environment /ftctl/environment.json --once /ftctl/begun".to_owned();
    if plan.nodes > 1 {
        let _ = write!(agent, " --node {}", order.node);
        // All nodes are on the engine's machine, whose own address need not lead anywhere.
        agent += if wanted.network == "host" { " --address 127.0.0.1" } else { "" };
    }
    let environment = ["HOME=/ftctl", "XDG_CACHE_HOME=/ftctl/cache", "XDG_STATE_HOME=/ftctl/state", "FTCTL_OUTPUT=table"];
    let proxies = order.proxies.iter().map(|(name, value)| format!("{name}={value}"));
    let (user, group) = order.user;
    ContainerCreateBody {
        image: Some(order.image.clone()),
        entrypoint: Some(vec!["ftctl".to_owned()]),
        cmd: Some(agent.split(' ').map(str::to_owned).collect()),
        env: Some(environment.map(str::to_owned).into_iter().chain(proxies).collect()),
        user: Some(format!("{user}:{group}")),
        working_dir: Some("/ftctl".to_owned()),
        labels: Some(labels(order, plan)),
        stop_signal: Some("SIGTERM".to_owned()),
        host_config: Some(host(order, wanted)),
        ..ContainerCreateBody::default()
    }
}

fn labels(order: &Order<'_>, plan: &Plan) -> HashMap<String, String> {
    let expires = order.now.checked_add(plan.lifetime()).unwrap_or(Timestamp::MAX);
    let labels = [
        (OWNER, order.owner.to_owned()),
        (JOB, order.attempt.job.to_string()),
        (ATTEMPT, order.attempt.attempt.to_string()),
        (STORE, order.mark.store.clone()),
        (STORE_URL, order.url.to_owned()),
        (SINCE, order.now.to_string()),
        (EXPIRES, expires.to_string()),
    ];
    labels.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

fn host(order: &Order<'_>, plan: &DockerPlan) -> HostConfig {
    let store = order.store.map(|path| path.display().to_string());
    let mounts = plan.mounts.iter().filter_map(|text| mount(text));
    let store = store.map(|path| bind(&path, &path, false));
    let limit =
        |(name, limit): (&String, &i64)| ResourcesUlimits { name: Some(name.clone()), soft: Some(*limit), hard: Some(*limit) };
    HostConfig {
        device_requests: gpus(plan.gpus, order.node).map(|request| vec![request]),
        shm_size: i64::try_from(plan.shared_memory.0).ok(),
        ulimits: Some(plan.ulimits.iter().map(limit).collect()),
        mounts: Some(mounts.chain(store).collect()),
        network_mode: Some(plan.network.clone()),
        restart_policy: Some(RestartPolicy { name: Some(RestartPolicyNameEnum::NO), maximum_retry_count: None }),
        security_opt: Some(vec!["no-new-privileges".to_owned()]),
        cap_drop: Some(vec!["ALL".to_owned()]),
        pids_limit: Some(PROCESSES),
        ..HostConfig::default()
    }
}

/// Those of a node: each has others.
fn gpus(gpus: Gpus, node: usize) -> Option<DeviceRequest> {
    let (count, device_ids) = match gpus {
        Gpus::None => return None,
        Gpus::All => (Some(-1), None),
        Gpus::Count(count) if node == 0 => (Some(count.into()), None),
        Gpus::Count(count) => {
            let before = node * count as usize;
            (None, Some((before..before + count as usize).map(|gpu| gpu.to_string()).collect()))
        }
    };
    Some(DeviceRequest { count, device_ids, capabilities: Some(vec![vec!["gpu".to_owned()]]), ..DeviceRequest::default() })
}

/// `/there:/here[:ro]`; its form was checked with the job file.
fn mount(text: &str) -> Option<Mount> {
    let mut parts = text.split(':');
    Some(bind(parts.next()?, parts.next()?, parts.next() == Some("ro")))
}

/// Unlike a bind in the older form, it is refused when there is nothing at the source.
fn bind(source: &str, target: &str, read_only: bool) -> Mount {
    Mount {
        typ: Some(MountType::BIND),
        source: Some(source.to_owned()),
        target: Some(target.to_owned()),
        read_only: Some(read_only),
        ..Mount::default()
    }
}

/// A container's description by its labels; `None` when it is none of ours. One whose times are damaged counts as expired.
pub fn resource(name: &str, labels: &HashMap<String, String>, mark: &Mark<'_>) -> Option<Resource> {
    let attempt = AttemptId::new(&JobId::parse(labels.get(JOB)?)?, labels.get(ATTEMPT)?.parse().ok()?);
    let time = |label| labels.get(label).and_then(|text| text.parse().ok());
    let since = time(SINCE).unwrap_or(Timestamp::UNIX_EPOCH);
    let expires = time(EXPIRES).or(Some(since));
    let (name, belongs) = (name.trim_start_matches('/').to_owned(), mark.belongs(said(labels)));
    Some(Resource { name, attempt, since, expires, price_per_hour: Money::ZERO, belongs })
}

/// The labels' word on a container's owner.
pub fn said(labels: &HashMap<String, String>) -> Said<'_> {
    let text = |label| labels.get(label).map(String::as_str);
    let (store, older) = (text(STORE).filter(|text| is_label(text)), text(STORE).filter(|text| !is_label(text)));
    Said { owner: text(OWNER), store, url: text(STORE_URL).or(older) }
}

/// Whether labels say that a container is of this job, and of no equal one in another store.
pub fn is_of(labels: &HashMap<String, String>, job: &JobId, mark: &Mark<'_>) -> bool {
    labels.get(JOB).is_some_and(|text| text == job.as_str()) && mark.reaches(said(labels))
}
