//! ftctl's own clusters: made for the first job that needs one, found again by name and tags, wide enough for the jobs that are on
//! it, and gone when no job of ours needs it. Its quota is held for as many nodes as it may have.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;
use tokio::time::{Instant, sleep};

use super::{
    super::{
        Class, ProviderError, Resource, Result,
        line::Tries,
        whose::{Mark, namesake},
    },
    Azureml, body,
    client::Call,
    job,
    refusal::{Refusal, plain, told},
};
use crate::job::{
    azureml::{AzuremlPlan, Cluster, IDLE, Placement},
    clock::after,
    id::{AttemptId, JobId},
    units::Money,
};

/// So many of a cluster's errors are told.
const MOST_ERRORS: usize = 3;

impl Azureml {
    /// The resource id of the cluster for an attempt, which is there when this returns.
    pub(super) async fn prepared(&self, attempt: &AttemptId, wanted: &AzuremlPlan, nodes: u32, mark: &Mark<'_>) -> Result<String> {
        let Some(cluster) = &wanted.cluster else { return self.made(attempt, wanted, nodes, mark).await };
        let Some(found) = self.client.find(&["computes", cluster.as_str()]).await? else {
            let message = format!("the workspace has no cluster {cluster}");
            return Err(ProviderError::new(Class::Invalid, message).fix("correct compute.azureml.cluster, or leave it out"));
        };
        fits(&found, cluster, wanted)?;
        self.client.id(&["computes", cluster.as_str()])
    }

    /// Makes room for a job that is there, once more: of two that are submitted at once, neither sees the other before. Answers
    /// what was refused, since the job then takes its turn.
    pub(super) async fn widened(
        &self,
        attempt: &AttemptId,
        wanted: &AzuremlPlan,
        nodes: u32,
        mark: &Mark<'_>,
    ) -> Result<Vec<String>> {
        let name = body::cluster_name(wanted, mark);
        let id = self.client.id(&["computes", &name])?;
        if !self.find(attempt).await?.is_some_and(|own| job::is_live(&own) && is_on(&own, &id)) {
            return Ok(Vec::new());
        }
        match self.made(attempt, wanted, nodes, mark).await {
            // Also where the service does not change it while somebody else does: that was for a job like this one.
            Err(error) if matches!(error.class, Class::Quota | Class::Capacity | Class::Invalid | Class::Conflict) => {
                Ok(vec![format!("the cluster {name} stays as wide as it is: {}", error.message)])
            }
            made => made.map(|_| Vec::new()),
        }
    }

    /// ftctl's own, with room for this job besides all others. One that another process is making or removing is waited for.
    async fn made(&self, attempt: &AttemptId, wanted: &AzuremlPlan, nodes: u32, mark: &Mark<'_>) -> Result<String> {
        let name = body::cluster_name(wanted, mark);
        let (begun, id) = (Instant::now(), self.client.id(&["computes", &name])?);
        while begun.elapsed() < self.client.pace.operation {
            let there = self.client.find(&["computes", &name]).await?;
            let tags = there.as_ref().map(|cluster| cluster["tags"].clone());
            if let Some(tags) = tags.filter(|tags| tags[body::OURS] != "1" || !mark.reaches(job::said(tags))) {
                return Err(namesake(&format!("a cluster {name}"), &mark.belongs(job::said(&tags))));
            }
            let own = attempt.machine_name();
            let jobs = self.jobs().await?;
            let others = on(&jobs, &id).filter(|job| job::name(job) != Some(&own));
            let needed = others.fold(nodes, |all, job| all.saturating_add(job::nodes(job)));
            let most = there.as_ref().map_or(0, most);
            match there.as_ref().map(|cluster| cluster["properties"]["provisioningState"].as_str().unwrap_or_default()) {
                Some("Creating" | "Updating" | "Deleting") => sleep(self.client.pace.look).await,
                Some("Succeeded") if most >= needed => return Ok(id),
                _ => {
                    let region = self.client.region().await?;
                    // Never narrower than it is: others may have asked for that, and be about to submit.
                    let body = body::cluster(wanted, &region, needed.max(most), attempt, mark);
                    self.client.change(Call::put(self.client.url(&["computes", &name])?, body)).await?;
                }
            }
        }
        let message = format!("the cluster {name} is not ready after {} s", self.client.pace.operation.as_secs());
        Err(ProviderError::new(Class::Network, message).fix("look at it in the studio; `ftctl prune` removes it"))
    }

    /// How many nodes ftctl's own cluster for a plan holds quota for beyond those of its jobs.
    pub(super) async fn free_nodes(&self, wanted: &AzuremlPlan) -> Result<u32, Refusal> {
        if wanted.cluster.is_some() || wanted.compute == Placement::Serverless {
            return Ok(0);
        }
        let mark = self.mark().await?;
        let name = body::cluster_name(wanted, &mark);
        let Some(own) = self.client.find(&["computes", &name]).await? else { return Ok(0) };
        if !is_ours(&own) || !mark.reaches(job::said(&own["tags"])) {
            return Ok(0);
        }
        let (id, jobs) = (self.client.id(&["computes", &name])?, self.jobs().await?);
        Ok(on(&jobs, &id).fold(most(&own), |free, job| free.saturating_sub(job::nodes(job))))
    }

    /// Every cluster of the workspace.
    pub(super) async fn all_clusters(&self) -> Result<Vec<Value>, Refusal> {
        let mut clusters = self.client.list(self.client.url(&["computes"])?).await?;
        clusters.retain(|cluster| cluster["properties"]["computeType"] == "AmlCompute" && name(cluster).is_some());
        Ok(clusters)
    }

    /// Every cluster that says it is of ours, of whomever.
    pub(super) async fn clusters(&self) -> Result<Vec<Value>, Refusal> {
        let mut clusters = self.all_clusters().await?;
        clusters.retain(is_ours);
        Ok(clusters)
    }

    /// Those of `clusters` that no live job is on, of `jobs` or of others'.
    pub(super) async fn unneeded<'c>(&self, clusters: &'c [Value], jobs: &[Value]) -> Result<Vec<(Cluster, &'c Value)>, Refusal> {
        let mut found = Vec::new();
        for cluster in clusters {
            let Some(name) = name(cluster) else { continue };
            if !self.is_needed(&name, cluster, jobs).await? {
                found.push((name, cluster));
            }
        }
        Ok(found)
    }

    /// Whether a live job is on this cluster. In the workspace anybody may put one there, without ftctl's tags. That is looked for
    /// only where a node works for a job that is not of `jobs`: the list of all can be long.
    async fn is_needed(&self, name: &Cluster, cluster: &Value, jobs: &[Value]) -> Result<bool, Refusal> {
        let id = self.client.id(&["computes", name.as_str()])?;
        if on(jobs, &id).next().is_some() {
            return Ok(true);
        }
        if counted(cluster, "runningNodeCount") == 0 {
            return Ok(false);
        }
        let all = self.client.list(self.client.url(&["jobs"])?).await?;
        Ok(on(&all, &id).any(|job| job::attempt(job::tags(job)).is_none()))
    }

    /// Removes a cluster with its nodes, and returns when it is gone. Where a job needs it by now, besides those of `ended`, it
    /// stays, which is `false`. That is looked at before each try: while a service says that it is busy, another ftctl may submit
    /// there, and its job would end with the cluster.
    pub(super) async fn remove_unneeded(&self, name: &Cluster, ended: Option<(&JobId, &Mark<'_>)>) -> Result<bool, Refusal> {
        let mut tries = Tries::new(self.client.pace.tries);
        loop {
            let Some(cluster) = self.client.find(&["computes", name.as_str()]).await? else { return Ok(true) };
            let mut jobs = self.jobs().await?;
            jobs.retain(|job| !ended.is_some_and(|(ended, mark)| job::is_of(job::tags(job), ended, mark)));
            if self.is_needed(name, &cluster, &jobs).await? {
                return Ok(false);
            }
            match self.remove(name).await {
                Err(refusal) if refusal.is_passing() && tries.again(refusal.retry_after).await => {}
                removed => return removed.map(|()| true),
            }
        }
    }

    pub(super) async fn remove(&self, name: &Cluster) -> Result<(), Refusal> {
        let mut url = self.client.url(&["computes", name.as_str()])?;
        url.query_pairs_mut().append_pair("underlyingResourceAction", "Delete");
        match self.client.change(Call::delete(url).once()).await {
            Err(refusal) if refusal.is_absent() => Ok(()),
            done => done,
        }
    }

    /// Why a job has no machine yet, as its cluster tells.
    pub(super) async fn want_of_node(&self, waiting: &Value) -> Result<String, Refusal> {
        let status = job::status(waiting);
        let Some(cluster) = self.cluster_of(waiting).await? else { return Ok(status.to_owned()) };
        let state = &cluster["properties"]["properties"];
        let count = |value: &Value| value.as_u64().unwrap_or(0);
        let (current, target) = (count(&state["currentNodeCount"]), count(&state["targetNodeCount"]));
        let preparing = count(&state["nodeStateCounts"]["preparingNodeCount"]);
        let name = name(&cluster).map(|name| name.to_string()).unwrap_or_default();
        let size = if target < current {
            format!("is scaling down from {current} to {target} nodes")
        } else {
            format!("has {current} of {target} nodes, {preparing} preparing")
        };
        let nodes = format!("{status}: the cluster {name} {size}");
        let errors = state["errors"].as_array().into_iter().flatten().filter_map(told).take(MOST_ERRORS);
        let errors = errors.map(|(code, message)| format!("; {code}: {message}"));
        Ok(std::iter::once(nodes).chain(errors).collect())
    }

    /// Whether nodes of a job's cluster were taken away, as far as that is known.
    pub(super) async fn has_lost_nodes(&self, job: &Value) -> Result<bool, Refusal> {
        let cluster = self.cluster_of(job).await?.unwrap_or_default();
        Ok(cluster["properties"]["properties"]["nodeStateCounts"]["preemptedNodeCount"].as_u64().is_some_and(|count| count > 0))
    }

    /// The cluster that a job is on; `None` where it is on none of this workspace, or that is gone.
    pub(super) async fn cluster_of(&self, job: &Value) -> Result<Option<Value>, Refusal> {
        let Some(name) = job::cluster(job).and_then(|id| id.rsplit('/').next()?.parse::<Cluster>().ok()) else { return Ok(None) };
        if !is_on(job, &self.client.id(&["computes", name.as_str()])?) {
            return Ok(None);
        }
        self.client.find(&["computes", name.as_str()]).await
    }
}

/// Whether a job is on the cluster with this resource id; Azure's ids are of any case.
pub fn is_on(job: &Value, id: &str) -> bool {
    job::cluster(job).is_some_and(|cluster| cluster.eq_ignore_ascii_case(id))
}

/// The live ones of `jobs` that are on the cluster with this resource id.
fn on<'j>(jobs: &'j [Value], id: &'j str) -> impl Iterator<Item = &'j Value> {
    jobs.iter().filter(move |job| job::is_live(job) && is_on(job, id))
}

pub fn name(cluster: &Value) -> Option<Cluster> {
    cluster["name"].as_str()?.parse().ok()
}

/// How many nodes it may have, where it says so.
pub fn limit(cluster: &Value) -> Option<u32> {
    let most = cluster["properties"]["properties"]["scaleSettings"]["maxNodeCount"].as_u64()?;
    Some(u32::try_from(most).unwrap_or(u32::MAX))
}

fn most(cluster: &Value) -> u32 {
    limit(cluster).unwrap_or(0)
}

/// The state of it as a resource, where that is not the usual one.
pub fn unusual_state(cluster: &Value) -> Option<&str> {
    cluster["properties"]["provisioningState"].as_str().filter(|state| *state != "Succeeded")
}

pub fn is_ours(cluster: &Value) -> bool {
    cluster["tags"][body::OURS] == "1"
}

/// The nodes of a cluster of ours that are paid for and that this job is about to have: those that no job works on are for the
/// oldest that waits.
pub fn prepared(cluster: &Value, jobs: &[Value], waiting: &Value) -> u32 {
    let before = |other: &&Value| {
        let turn = |job: &Value| (job::created(job), job::name(job).map(str::to_owned));
        !job::is_waiting(other) || turn(other) < turn(waiting)
    };
    let taken = on(jobs, cluster["id"].as_str().unwrap_or_default()).filter(before).map(|job| u64::from(job::nodes(job)));
    let free = if is_ours(cluster) { nodes(cluster).saturating_sub(taken.sum()) } else { 0 };
    u32::try_from(free).unwrap_or(u32::MAX).min(job::nodes(waiting))
}

/// Since when a cluster may have had the nodes of a job that began to work then, if it did: by its own word, which is of the last
/// change of their number.
pub fn allocated(cluster: &Value, of: &Value, begun: Option<Timestamp>) -> Option<Timestamp> {
    let changed = job::time(&cluster["properties"]["properties"]["allocationStateTransitionTime"])?;
    (job::created(of) <= changed && begun.is_none_or(|begun| changed <= begun)).then_some(changed)
}

/// The nodes of one state.
fn counted(cluster: &Value, state: &str) -> u64 {
    cluster["properties"]["properties"]["nodeStateCounts"][state].as_u64().unwrap_or(0)
}

/// The nodes that are paid for.
fn nodes(cluster: &Value) -> u64 {
    let state = &cluster["properties"]["properties"];
    let counts = ["idleNodeCount", "runningNodeCount", "preparingNodeCount", "unusableNodeCount", "leavingNodeCount"];
    let all = counts.into_iter().map(|state| counted(cluster, state)).fold(0, u64::saturating_add);
    all.max(state["currentNodeCount"].as_u64().unwrap_or(0))
}

/// The size of its machines, and whether they may be taken away.
pub fn machine(cluster: &Value) -> (&str, bool) {
    let wanted = &cluster["properties"]["properties"];
    let is_low = wanted["vmPriority"].as_str().is_some_and(|priority| priority.eq_ignore_ascii_case("LowPriority"));
    (wanted["vmSize"].as_str().unwrap_or_default(), is_low)
}

/// Refuses a user's cluster whose machines are not the plan's: a job there costs what no one has agreed to.
pub fn fits(found: &Value, cluster: &Cluster, plan: &AzuremlPlan) -> Result<()> {
    let (size, spot) = machine(found);
    if size.eq_ignore_ascii_case(&plan.size) && spot == plan.spot {
        return Ok(());
    }
    let (size, has) = (plain(size), AzuremlPlan { spot, ..plan.clone() });
    let message = format!(
        "the cluster {cluster} has {size} ({}), and the job wants {} ({}), whose price is another",
        has.priority(),
        plan.size,
        plan.priority()
    );
    let fix = format!("write size = {size:?} and spot = {spot} into [compute.azureml], or name another cluster");
    Err(ProviderError::new(Class::Invalid, message).fix(fix))
}

/// How many nodes it always has, where it has any.
pub fn least(cluster: &Value) -> Option<u64> {
    cluster["properties"]["properties"]["scaleSettings"]["minNodeCount"].as_u64().filter(|least| *least > 0)
}

/// How long a node without a job stays in it, where it says so.
pub fn idle(cluster: &Value) -> Option<Duration> {
    body::read_seconds(cluster["properties"]["properties"]["scaleSettings"]["nodeIdleTimeBeforeScaleDown"].as_str()?)
}

/// The price of so many nodes.
pub fn of_nodes(price: Money, nodes: u32) -> Money {
    price.for_time(Duration::from_secs(3_600).saturating_mul(nodes))
}

/// A cluster that is paid for though no job is on it; it leaves by itself after a while.
pub fn resource(cluster: &Value, price_of_node: Money, mark: &Mark<'_>) -> Option<Resource> {
    let nodes = u32::try_from(nodes(cluster)).ok().filter(|nodes| *nodes > 0)?;
    Some(Resource {
        name: name(cluster)?.to_string(),
        attempt: job::attempt(&cluster["tags"])?,
        since: job::created(cluster),
        expires: None,
        price_per_hour: of_nodes(price_of_node, nodes),
        belongs: mark.belongs(job::said(&cluster["tags"])),
    })
}

/// Nodes of a cluster of ours beyond those of the jobs on it. They leave by themselves, and are told of as one of these jobs', for
/// whose sake the cluster stays: `down` of another has nothing to do with them.
pub fn surplus(cluster: &Value, jobs: &[Value], price_of_node: Money, now: Timestamp, mark: &Mark<'_>) -> Option<Resource> {
    let on: Vec<&Value> = on(jobs, cluster["id"].as_str()?).collect();
    let needed = on.iter().fold(0_u64, |all, job| all.saturating_add(u64::from(job::nodes(job))));
    let idle = u32::try_from(nodes(cluster).saturating_sub(needed)).ok().filter(|idle| *idle > 0)?;
    let job = on.into_iter().min_by_key(|job| (job::is_waiting(job), job::created(job)))?;
    let changed = job::time(&cluster["properties"]["properties"]["allocationStateTransitionTime"]);
    Some(Resource {
        name: name(cluster)?.to_string(),
        attempt: job::attempt(job::tags(job))?,
        since: changed.unwrap_or_else(|| job::created(cluster)),
        expires: Some(after(now, self::idle(cluster).unwrap_or(IDLE))),
        price_per_hour: of_nodes(price_of_node, idle),
        belongs: mark.belongs(job::said(job::tags(job))),
    })
}
