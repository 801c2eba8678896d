//! Everything that is true in the simulated service, and the rules by which time changes it. No input, no output: acts on real
//! processes are left in [`Service::acts`].
//!
//! Long because clusters, nodes and jobs change each other in one step of time.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use jiff::Timestamp;
use serde::Serialize;
use serde_json::{Value, json};

use super::{
    super::{clock::after, faults::Met, key::Key},
    cluster::{Cluster, LOW_PRIORITY, Node, NodePhase, Notice, Provisioning},
    job::{End, Job, Phase},
    script::{QuotaRefusal, Script, TroubleKind},
    storage,
    tracking::Tracked,
};
use crate::job::units::Money;

/// Every limit in vCPUs that the script does not name.
const GENEROUS: u32 = 10_000;
/// From the order to its effect, where the script has no time for that.
const MOMENT: Duration = Duration::from_secs(1);

/// A change that processes need.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Act {
    /// Start the job's command on each of its nodes.
    Start(String),
    /// Its processes may say farewell.
    Terminate(String),
    /// Its processes are no more.
    Kill(String),
}

/// Where everything is.
#[derive(Debug, Clone)]
pub struct Workspace {
    pub subscription: String,
    pub group: String,
    pub name: String,
    pub location: String,
}

impl Workspace {
    pub fn id(&self) -> String {
        let Self { subscription, group, name, .. } = self;
        format!(
            "/subscriptions/{subscription}/resourceGroups/{group}/providers/Microsoft.MachineLearningServices/workspaces/{name}"
        )
    }

    /// Where those resources are that belong to no workspace.
    pub fn place(&self) -> String {
        let Self { subscription, location, .. } = self;
        format!("/subscriptions/{subscription}/providers/Microsoft.MachineLearningServices/locations/{location}")
    }
}

/// The cost of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Receipt {
    pub node: String,
    pub cluster: String,
    pub running_seconds: u64,
    pub price_per_hour: Money,
    pub cost: Money,
    pub exists: bool,
}

pub struct Operation {
    pub done: Timestamp,
    pub error: Option<Value>,
}

/// Something that is only kept: its body, and since when.
pub struct Kept {
    pub body: Value,
    pub created: Timestamp,
}

/// The surroundings of a service, told to it when it starts.
pub struct Here {
    pub workspace: Workspace,
    pub address: String,
    pub key: Key,
    pub state: PathBuf,
    /// The file with what clients must trust, where it is asked by https.
    pub certificate: Option<PathBuf>,
}

pub struct Service {
    pub workspace: Workspace,
    /// Scheme and authority of this service.
    pub address: String,
    /// Signs addresses and tokens.
    pub key: Key,
    /// Where jobs have their files.
    pub state: PathBuf,
    certificate: Option<PathBuf>,
    pub script: Script,
    pub now: Timestamp,
    /// Simulated seconds in one on the wall: processes live on the wall's clock.
    pub speed: f64,
    pub clusters: BTreeMap<String, Cluster>,
    pub jobs: BTreeMap<String, Job>,
    /// By the end of their id: `environments/NAME/versions/VERSION`.
    pub kept: BTreeMap<String, Kept>,
    /// The uploaded files, by their paths.
    pub blobs: BTreeMap<String, Vec<u8>>,
    /// The runs of MLflow.
    pub tracked: Tracked,
    /// By their ids.
    pub operations: BTreeMap<String, Operation>,
    pub faults_met: Met,
    pub acts: Vec<Act>,
    /// Changes of scheduled events so far.
    pub events: u64,
    closed: Vec<Receipt>,
    made: u64,
}

#[derive(Debug)]
enum Change {
    /// The operation on a cluster ends.
    Provision(String),
    Allocate(String),
    /// Nodes are asked for again.
    Retry(String),
    Ready(String, String),
    /// It was idle for so long that it is sent away.
    Dismiss(String, String),
    Gone(String, String),
    /// The script takes a node of this job.
    Preempt(String, usize),
    Withdraw(String, String),
    Vanish(String, String),
    Proceed(String),
    TimeOut(String),
}

impl Service {
    pub fn new(here: Here, script: Script, now: Timestamp, speed: f64) -> Self {
        let Here { workspace, address, key, state, certificate } = here;
        Self {
            workspace,
            address,
            key,
            state,
            certificate,
            script,
            now,
            speed,
            clusters: BTreeMap::new(),
            jobs: BTreeMap::new(),
            kept: storage::datastores().map(|(end, body)| (end, Kept { body, created: now })).into(),
            blobs: BTreeMap::new(),
            tracked: Tracked::default(),
            operations: BTreeMap::new(),
            faults_met: Met::new(),
            acts: Vec::new(),
            events: 0,
            closed: Vec::new(),
            made: 0,
        }
    }

    /// A name that nothing else has, in the form of a UUID.
    pub fn next_id(&mut self) -> String {
        self.made += 1;
        format!("00000000-0000-4000-8000-{:012x}", self.made)
    }

    /// The variables that tell a program whom to trust.
    pub fn trusted(&self) -> Vec<(&'static str, String)> {
        let file = self.certificate.iter().map(|path| path.display().to_string());
        file.flat_map(|path| ["SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"].map(|name| (name, path.clone()))).collect()
    }

    /// Where MLflow's clients find this workspace.
    pub fn tracking(&self) -> String {
        let authority = self.address.split("//").nth(1).unwrap_or_default();
        format!("azureml://{authority}/mlflow/v1.0{}", self.workspace.id())
    }

    /// Simulated time of a span on the wall.
    fn on_the_wall(&self, span: Duration) -> Duration {
        span.mul_f64(self.speed)
    }

    /// Lets time pass, and everything happen that was due, in order.
    pub fn advance(&mut self, now: Timestamp) {
        loop {
            self.settle();
            let Some((due, change)) = self.next_change().filter(|(due, _)| *due <= now) else { break };
            self.now = self.now.max(due);
            self.apply(change);
        }
        self.now = self.now.max(now);
    }

    /// Does all that needs no time: jobs get the free nodes, and clusters ask for the missing ones.
    fn settle(&mut self) {
        let mut queue: Vec<&mut Job> = self.jobs.values_mut().filter(|job| job.phase == Phase::Queued).collect();
        queue.sort_by_key(|job| job.created);
        let mut blocked = Vec::new();
        for job in queue {
            let Some(cluster) = self.clusters.get_mut(&job.cluster) else { continue };
            let free = cluster.idle();
            if blocked.contains(&job.cluster) || free.len() < job.instances {
                blocked.push(job.cluster.clone());
                continue;
            }
            job.nodes = free.into_iter().take(job.instances).collect();
            for name in &job.nodes {
                if let Some(node) = cluster.nodes.get_mut(name) {
                    node.phase = NodePhase::Running { job: job.name.clone() };
                }
            }
            job.phase = Phase::Preparing { done: after(self.now, self.script.preparation.0) };
            job.say(self.now, "The job has its nodes; the image is pulled.");
        }
        // Machines of one job go with it.
        let jobs = &self.jobs;
        self.clusters.retain(|name, cluster| {
            let used = || jobs.values().any(|job| job.cluster == *name && !job.is_over());
            !cluster.serverless || used() || cluster.nodes.values().any(|node| node.phase != NodePhase::Preempted)
        });
        let short: Vec<String> =
            self.clusters.values().filter(|cluster| self.is_short(cluster)).map(|it| it.name.clone()).collect();
        for name in short {
            let done = after(self.now, self.script.allocation.0);
            if let Some(cluster) = self.clusters.get_mut(&name) {
                (cluster.allocation, cluster.transition) = (Some(done), self.now);
            }
        }
    }

    /// How many nodes a cluster shall have.
    pub fn target(&self, cluster: &Cluster) -> usize {
        let waiting = self.jobs.values().filter(|job| job.cluster == cluster.name && job.phase == Phase::Queued);
        let wanted = cluster.busy() + waiting.map(|job| job.instances).sum::<usize>();
        let works = matches!(cluster.provisioning, Provisioning::Succeeded | Provisioning::Updating);
        if works { wanted.clamp(cluster.limits.min, cluster.limits.max) } else { 0 }
    }

    fn is_short(&self, cluster: &Cluster) -> bool {
        cluster.allocation.is_none() && cluster.patience.is_none() && cluster.current() < self.target(cluster)
    }

    fn next_change(&self) -> Option<(Timestamp, Change)> {
        let clusters = self.clusters.values().flat_map(|cluster| self.changes_of_cluster(cluster));
        let jobs = self.jobs.values().filter(|job| !job.is_over()).flat_map(|job| self.changes_of_job(job));
        clusters.chain(jobs).min_by_key(|(due, _)| *due)
    }

    fn changes_of_cluster(&self, cluster: &Cluster) -> Vec<(Timestamp, Change)> {
        let name = || cluster.name.clone();
        let operation = self.operations.get(&cluster.operation).filter(|_| {
            !self.script.endless_operations && !matches!(cluster.provisioning, Provisioning::Succeeded | Provisioning::Failed)
        });
        let spare = cluster.current() > self.target(cluster);
        let of_cluster = [
            operation.map(|operation| (operation.done, Change::Provision(name()))),
            cluster.allocation.map(|done| (done, Change::Allocate(name()))),
            cluster.patience.map(|ends| (ends, Change::Retry(name()))),
        ];
        let nodes = cluster.nodes.iter().flat_map(|(node, state)| {
            let at = || (cluster.name.clone(), node.clone());
            let own = match state.phase {
                NodePhase::Preparing { ready } => Some((ready, Change::Ready(at().0, at().1))),
                NodePhase::Idle { since } if spare => Some((after(since, cluster.limits.idle), Change::Dismiss(at().0, at().1))),
                NodePhase::Leaving { gone } => Some((gone, Change::Gone(at().0, at().1))),
                _ => None,
            };
            let notice = state.notice.as_ref().map(|notice| match notice.withdrawn {
                Some(ends) if ends < notice.not_before => (ends, Change::Withdraw(at().0, at().1)),
                _ => (notice.not_before, Change::Vanish(at().0, at().1)),
            });
            own.into_iter().chain(notice)
        });
        of_cluster.into_iter().flatten().chain(nodes).collect()
    }

    fn changes_of_job(&self, job: &Job) -> Vec<(Timestamp, Change)> {
        let name = || job.name.clone();
        let own = match job.phase {
            Phase::NotStarted => Some(after(job.created, MOMENT)),
            Phase::Preparing { done } | Phase::Finalizing { done, .. } => Some(done),
            Phase::Ending { killed } => killed,
            Phase::Queued | Phase::Running | Phase::Ended(_) => None,
        };
        let ends = matches!(job.phase, Phase::Ending { killed: Some(_) });
        let limited = !ends && !matches!(job.phase, Phase::Finalizing { .. });
        let deadline = job.deadline(self.script.timeout_from_submission).filter(|_| limited);
        let preemptions = self.script.preemptions.iter().enumerate();
        let preemptions = preemptions.filter(|(index, taken)| job.name.ends_with(&taken.job) && !job.preempted.contains(index));
        let preemptions = preemptions.filter(|(_, taken)| self.node_of(job, taken.node).is_some());
        let preemptions = preemptions.map(|(index, taken)| (after(job.created, taken.after.0), Change::Preempt(name(), index)));
        let own = own.map(|due| (due, Change::Proceed(name())));
        own.into_iter().chain(deadline.map(|due| (due, Change::TimeOut(name())))).chain(preemptions).collect()
    }

    /// The node of a job that can be taken away: one of its own, or one that is prepared for it.
    fn node_of(&self, job: &Job, index: usize) -> Option<String> {
        let cluster = self.clusters.get(&job.cluster).filter(|cluster| cluster.low_priority)?;
        let waits = matches!(job.phase, Phase::NotStarted | Phase::Queued);
        let coming = cluster.nodes.iter().filter(|(_, node)| waits && matches!(node.phase, NodePhase::Preparing { .. }));
        let name = job.nodes.get(index).cloned().or_else(|| coming.map(|(name, _)| name.clone()).nth(index))?;
        cluster.nodes.get(&name).is_some_and(|node| node.notice.is_none()).then_some(name)
    }

    fn apply(&mut self, change: Change) {
        let now = self.now;
        match change {
            Change::Provision(cluster) => self.provision(&cluster),
            Change::Allocate(cluster) => self.allocate(&cluster),
            Change::Retry(cluster) => self.with(&cluster, |cluster| cluster.patience = None),
            Change::Ready(cluster, node) => self.turn(&cluster, &node, NodePhase::Idle { since: now }),
            Change::Dismiss(cluster, node) => self.dismiss(&cluster, &node),
            Change::Gone(cluster, node) => self.remove(&cluster, &node),
            Change::Preempt(job, index) => {
                let taken = self.script.preemptions[index].clone();
                if let Some(job) = self.jobs.get_mut(&job) {
                    job.preempted.push(index);
                }
                self.preempt(&job, taken.node, taken.withdrawn.map(|span| span.0), taken.restarts);
            }
            Change::Withdraw(cluster, node) => {
                self.events += 1;
                self.with_node(&cluster, &node, |node| node.notice = None);
            }
            Change::Vanish(cluster, node) => self.vanish(&cluster, &node),
            Change::Proceed(job) => self.proceed(&job),
            Change::TimeOut(job) => {
                if let Some(job) = self.jobs.get_mut(&job) {
                    job.error = Some("The run was canceled: it exceeded the timeout of its limits.".to_owned());
                }
                self.cancel(&job);
            }
        }
    }

    fn with(&mut self, cluster: &str, act: impl FnOnce(&mut Cluster)) {
        if let Some(cluster) = self.clusters.get_mut(cluster) {
            act(cluster);
        }
    }

    fn with_node(&mut self, cluster: &str, node: &str, act: impl FnOnce(&mut Node)) {
        if let Some(node) = self.clusters.get_mut(cluster).and_then(|cluster| cluster.nodes.get_mut(node)) {
            act(node);
        }
    }

    fn turn(&mut self, cluster: &str, node: &str, phase: NodePhase) {
        self.with_node(cluster, node, |node| node.phase = phase);
    }

    /// Sends a node away.
    fn dismiss(&mut self, cluster: &str, node: &str) {
        let gone = after(self.now, self.script.leaving.0);
        self.turn(cluster, node, NodePhase::Leaving { gone });
        self.with_node(cluster, node, |node| node.notice = None);
    }

    fn remove(&mut self, cluster: &str, node: &str) {
        // It was taken before, and paid then.
        let exists = self
            .clusters
            .get(cluster)
            .filter(|cluster| cluster.nodes.get(node).is_some_and(|node| node.phase != NodePhase::Preempted));
        let receipt = exists.and_then(|cluster| cluster.receipt(node, self.now, &self.script, false));
        self.closed.extend(receipt);
        self.with(cluster, |cluster| drop(cluster.nodes.remove(node)));
    }

    /// The operation on a cluster is over.
    fn provision(&mut self, name: &str) {
        let Some(cluster) = self.clusters.get_mut(name) else { return };
        let failed = self.operations.get(&cluster.operation).is_some_and(|operation| operation.error.is_some());
        let before = cluster.before.take();
        if let Some((body, limits)) = before.filter(|_| failed) {
            (cluster.body, cluster.limits) = (body, limits);
        }
        cluster.provisioning = match cluster.provisioning {
            Provisioning::Creating if failed => Provisioning::Failed,
            Provisioning::Creating | Provisioning::Updating => Provisioning::Succeeded,
            _ => {
                let nodes: Vec<String> = cluster.nodes.keys().cloned().collect();
                for node in &nodes {
                    self.remove(name, node);
                }
                self.clusters.remove(name);
                return;
            }
        };
    }

    /// The nodes that are missing come, or the reason why they do not.
    fn allocate(&mut self, name: &str) {
        let Some(cluster) = self.clusters.get(name) else { return };
        let missing = self.target(cluster).saturating_sub(cluster.current());
        let error = if self.script.stock_outs.iter().any(|size| size.eq_ignore_ascii_case(cluster.size.name)) {
            Some(error(
                "AllocationFailed",
                "The requested number of nodes could not be allocated: there is no capacity for this size.",
            ))
        } else if self.script.quota_refusal == QuotaRefusal::Allocation {
            self.refusal(cluster, cluster.current() + missing)
        } else {
            None
        };
        let nodes: Vec<String> = (0..missing).map(|_| self.next_id().replace('-', "")).collect();
        let (now, retry, ready) = (self.now, after(self.now, self.script.retry.0), after(self.now, self.script.boot.0));
        let Some(cluster) = self.clusters.get_mut(name) else { return };
        (cluster.allocation, cluster.transition) = (None, now);
        cluster.errors = error.iter().map(|error| json!({ "error": error })).collect();
        if error.is_some() {
            cluster.patience = Some(retry);
            return;
        }
        cluster.nodes.retain(|_, node| node.phase != NodePhase::Preempted);
        let new =
            |node: String| (format!("tvm-{node}"), Node { created: now, phase: NodePhase::Preparing { ready }, notice: None });
        cluster.nodes.extend(nodes.into_iter().map(new));
    }

    /// The cloud takes a node of this job back, after the notice; nothing happens where it has none.
    pub fn preempt(&mut self, job: &str, index: usize, withdrawn: Option<Duration>, restarts: bool) -> bool {
        let Some(job) = self.jobs.get(job) else { return false };
        let Some(node) = self.node_of(job, index) else { return false };
        let (cluster, boots) = (job.cluster.clone(), job.nodes.is_empty());
        // A node that has no processes hears of nothing.
        let wait = if boots { Duration::ZERO } else { self.on_the_wall(self.script.notice.0) };
        let withdrawn = withdrawn.map(|span| after(self.now, self.on_the_wall(span)));
        let notice = Notice { id: self.next_id(), not_before: after(self.now, wait), withdrawn, restarts };
        self.events += 1;
        self.with_node(&cluster, &node, |node| node.notice = Some(notice));
        true
    }

    /// The node is no more, and with it the run, or this life of it.
    fn vanish(&mut self, name: &str, node: &str) {
        let Some(cluster) = self.clusters.get_mut(name) else { return };
        let receipt = cluster.receipt(node, self.now, &self.script, false);
        self.closed.extend(receipt);
        let Some(state) = cluster.nodes.get_mut(node) else { return };
        let before = std::mem::replace(&mut state.phase, NodePhase::Preempted);
        let restarts = state.notice.take().is_some_and(|notice| notice.restarts);
        self.events += 1;
        if let NodePhase::Running { job } = before {
            self.lose(&job, restarts);
        }
    }

    fn lose(&mut self, name: &str, restarts: bool) {
        let now = self.now;
        self.acts.push(Act::Kill(name.to_owned()));
        self.release(name);
        let Some(job) = self.jobs.get_mut(name) else { return };
        job.say(now, "Nodes of this job got pre-empted.");
        match job.phase {
            Phase::Preparing { .. } | Phase::Running if restarts => {
                job.phase = Phase::Queued;
                job.retries += 1;
                job.begun.push(false);
                job.exits.clear();
            }
            Phase::Preparing { .. } | Phase::Running => {
                let why = "AzureMLCompute job failed. PreemptionError: Nodes of this job got pre-empted. Check if the run has failed or \
                           restarted. Reason: Received pre-emption warning signal";
                self.fail(name, why);
            }
            Phase::Ending { .. } => self.end(name, End::Canceled),
            _ => {}
        }
    }

    /// The next thing that a job does by itself.
    fn proceed(&mut self, name: &str) {
        let now = self.now;
        let unprepared = self.script.troubles_of(name).find_map(TroubleKind::unprepared);
        let image = self.jobs.get(name).map(|job| self.image_of(job)).unwrap_or_default();
        let Some(job) = self.jobs.get_mut(name) else { return };
        match job.phase {
            Phase::NotStarted => job.phase = Phase::Queued,
            Phase::Preparing { .. } if let Some([log, error]) = unprepared => {
                job.say(now, log);
                self.fail(name, &error.replace("IMAGE", &image));
            }
            Phase::Preparing { .. } => {
                (job.phase, job.started) = (Phase::Running, job.started.or(Some(now)));
                job.begun.pop();
                job.begun.push(true);
                job.say(now, "The command starts.");
                self.acts.push(Act::Start(name.to_owned()));
            }
            Phase::Finalizing { end, .. } => self.end(name, end),
            Phase::Ending { .. } => {
                self.acts.push(Act::Kill(name.to_owned()));
                self.end(name, End::Canceled);
            }
            Phase::Queued | Phase::Running | Phase::Ended(_) => {}
        }
    }

    /// The image of a job's environment.
    pub fn image_of(&self, job: &Job) -> String {
        let environment = job.field("environmentId").as_str().and_then(|id| id.strip_prefix(&format!("{}/", self.workspace.id())));
        let kept = environment.and_then(|end| self.kept.get(end));
        kept.and_then(|kept| kept.body["properties"]["image"].as_str()).unwrap_or_default().to_owned()
    }

    /// One of a job's processes ended in this life of it; a signal counts as in a shell.
    pub fn exited(&mut self, name: &str, life: u32, rank: usize, code: i32) {
        let Some(job) = self.jobs.get_mut(name).filter(|job| job.retries == life) else { return };
        job.exits.insert(rank, code);
        job.say(self.now, &format!("The process of rank {rank} ended with {code}."));
        let all = job.exits.len() == job.instances * job.processes;
        match job.phase {
            Phase::Running if code != 0 => {
                self.acts.push(Act::Kill(name.to_owned()));
                self.fail(name, &format!("Execution failed. User process exited with status code {code}."));
            }
            Phase::Running if all => self.finalize(name, End::Completed),
            Phase::Ending { .. } if all => self.end(name, End::Canceled),
            _ => {}
        }
    }

    pub fn fail(&mut self, name: &str, why: &str) {
        if let Some(job) = self.jobs.get_mut(name) {
            job.error = Some(why.to_owned());
        }
        self.finalize(name, End::Failed);
    }

    fn finalize(&mut self, name: &str, end: End) {
        let done = after(self.now, self.script.finalization.0);
        if let Some(job) = self.jobs.get_mut(name) {
            job.phase = Phase::Finalizing { done, end };
        }
    }

    fn end(&mut self, name: &str, end: End) {
        self.release(name);
        if let Some(job) = self.jobs.get_mut(name) {
            (job.phase, job.ended) = (Phase::Ended(end), Some(self.now));
        }
    }

    /// Gives a job's nodes back to their cluster.
    fn release(&mut self, name: &str) {
        let Some(job) = self.jobs.get_mut(name) else { return };
        let (cluster, nodes, since) = (job.cluster.clone(), std::mem::take(&mut job.nodes), self.now);
        for node in nodes {
            self.with_node(&cluster, &node, |node| {
                if matches!(node.phase, NodePhase::Running { .. }) {
                    node.phase = NodePhase::Idle { since };
                }
            });
        }
    }

    /// Its processes may say farewell; a job without any is over.
    pub fn cancel(&mut self, name: &str) {
        let killed = after(self.now, self.on_the_wall(self.script.farewell.0));
        let Some(job) = self.jobs.get_mut(name) else { return };
        match job.phase {
            Phase::Running | Phase::Ending { killed: None } => {
                job.phase = Phase::Ending { killed: Some(killed) };
                self.acts.push(Act::Terminate(name.to_owned()));
            }
            // Outputs that it still keeps are not waited for.
            Phase::NotStarted | Phase::Queued | Phase::Preparing { .. } | Phase::Finalizing { .. } => self.end(name, End::Canceled),
            Phase::Ending { .. } | Phase::Ended(_) => {}
        }
    }

    /// A client wants it to end.
    pub fn cancel_by_client(&mut self, name: &str) {
        let deaf = self.script.has(name, TroubleKind::NoCancel);
        match self.jobs.get_mut(name) {
            Some(job) if deaf && job.phase == Phase::Running => job.phase = Phase::Ending { killed: None },
            _ => self.cancel(name),
        }
    }

    /// A new operation on a cluster: its id, and when it ends.
    pub fn begin(&mut self, error: Option<Value>) -> (String, Timestamp) {
        let (id, done) = (self.next_id(), after(self.now, self.script.operation.0));
        self.operations.insert(id.clone(), Operation { done, error });
        (id, done)
    }

    /// Takes a job out of the world; its processes go.
    pub fn delete_job(&mut self, name: &str) {
        self.acts.push(Act::Kill(name.to_owned()));
        self.release(name);
        self.jobs.remove(name);
    }

    /// Its nodes leave, and the jobs on it fail.
    pub fn delete_cluster(&mut self, name: &str) {
        let jobs = self.jobs.values().filter(|job| job.cluster == name && !job.is_over());
        let jobs: Vec<String> = jobs.map(|job| job.name.clone()).collect();
        for job in jobs {
            self.acts.push(Act::Kill(job.clone()));
            self.fail(&job, "The compute of this run was deleted.");
        }
        let (operation, done) = self.begin(None);
        self.with(name, |cluster| {
            cluster.operation = operation;
            (cluster.provisioning, cluster.allocation, cluster.patience) = (Provisioning::Deleting, None, None);
            cluster.nodes.values_mut().for_each(|node| {
                if node.phase != NodePhase::Preempted {
                    (node.phase, node.notice) = (NodePhase::Leaving { gone: done }, None);
                }
            });
        });
    }

    /// How many vCPUs of a quota are used, and its limit.
    pub fn usage(&self, quota: &str) -> (u32, u32) {
        let clusters = self.clusters.values().filter(|cluster| cluster.quota() == quota);
        let used = clusters.fold(0_u32, |used, cluster| used.saturating_add(cluster.cpus()));
        (used, self.script.quotas.get(quota).copied().unwrap_or(GENEROUS))
    }

    /// Why a cluster, whether it exists or is asked for, cannot have so many nodes.
    pub fn refusal(&self, cluster: &Cluster, nodes: usize) -> Option<Value> {
        let quota = cluster.quota();
        let others = self.clusters.values().filter(|other| other.quota() == quota && other.name != cluster.name);
        let used = others.fold(0_u32, |used, other| used.saturating_add(other.cpus()));
        let (_, limit) = self.usage(quota);
        let needed = cluster.size.cpus.saturating_mul(u32::try_from(nodes).unwrap_or(u32::MAX));
        let kind = if quota == LOW_PRIORITY { "LowPriority" } else { quota };
        let requested = if quota == LOW_PRIORITY { "LowPriority" } else { "dedicated" };
        let why = format!(
            "The specified subscription has a {kind} quota of {limit} and cannot accomodate for at least {nodes} requested {requested} node \
             which maps to {needed} vCPUs"
        );
        (used.saturating_add(needed) > limit).then(|| error("ClusterCoreQuotaReached", &why))
    }

    /// The cost of everything until now.
    pub fn bill(&self) -> Vec<Receipt> {
        let open = self.clusters.values().flat_map(|cluster| {
            let nodes = cluster.nodes.iter().filter(|(_, node)| node.phase != NodePhase::Preempted);
            nodes.filter_map(|(node, _)| cluster.receipt(node, self.now, &self.script, true))
        });
        self.closed.iter().cloned().chain(open).collect()
    }
}

/// An error as it stands in answers.
pub fn error(code: &str, message: &str) -> Value {
    json!({ "code": code, "message": message, "target": null, "details": [], "additionalInfo": [] })
}
