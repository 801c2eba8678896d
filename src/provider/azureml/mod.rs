//! Provider `azureml`: a command job of Azure ML for each attempt, whose command is the agent.
//!
//! The workspace is the only memory: a job is found by its name, a job's attempts and ftctl's own clusters by their tags. The
//! service gives an attempt its node when it has one, so a job waits in its queue ([`Sighting::Queued`]). The agent reads its order
//! from the store: nothing secret is in a job, whose description everybody in the workspace can read for ever; but a job without
//! an identity has a signature in its variables, for its time. The kill switch is the service's (`limits.timeout`), and nodes
//! without a job leave by themselves.
//!
//! | killed | is found later as |
//! |---|---|
//! | before the cluster was heard of | no cluster of that name: made |
//! | while its operation goes on | one that is being made: waited for |
//! | before the job was heard of | no job of that name: made; until then a cluster without nodes, which costs nothing |
//! | after that | a job of that name: taken as it is, over or not |

mod answer;
mod assets;
mod body;
mod client;
mod cluster;
mod console;
mod job;
mod offer;
mod prices;
mod quota;
mod refusal;
mod roles;
mod service;
#[cfg(test)]
mod tests;
mod workspace;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use jiff::Timestamp;
use serde_json::Value;
use tokio::time::{Instant, sleep};

#[doc(hidden)]
pub use self::answer::read as read_answer;
pub use self::offer::{lasting_price, offers, rights, rows, rules, size};
pub use self::workspace::{claimed, places_of};
use self::{
    client::{Call, Client},
    job::Stage,
    prices::Prices,
    refusal::Refusal,
};
use super::{
    Account, Capabilities, Class, Console, FAREWELL, JobService, Provider, ProviderError, Resource, Result, Sighting, Signs, line,
    named_image,
    whose::{Mark, Party, namesake, unknown_store},
};
use crate::{
    catalogue,
    identity::Variables,
    job::{
        azureml::{AzuremlPlan, Identity, Placement},
        clock::{Clock, after},
        compute::Compute,
        finding::Finding,
        id::{AttemptId, JobId},
        order::{RunOrder, TrainerImage},
        plan::{Plan, Price},
        report::Report,
        units::{Money, Span},
    },
    store::azure::{self, Named},
};

/// How often a job is asked for when its cluster goes away meanwhile.
const TRIES: u32 = 3;
/// No job is begun for less.
const SHORTEST: Duration = Duration::from_secs(60);
/// An agent that ends when its time is over has so long to do so before the service ends it.
const GRACE: Duration = Duration::from_secs(30);

pub struct Azureml {
    client: Client,
    party: Party,
    clock: Arc<dyn Clock>,
    prices: Prices,
    /// Where the store is, if it is in blobs.
    container: Option<Named>,
}

impl Azureml {
    /// `variables` is the caller's environment, `here` the working directory; `plan` is that of the job that is meant, if one is,
    /// and `prices` the file that keeps prices. The cloud is not asked for anything, so list prices are known without a sign-in.
    pub fn open(
        variables: Variables<'_>,
        here: &Path,
        plan: Option<&AzuremlPlan>,
        party: Party,
        clock: Arc<dyn Clock>,
        prices: Option<PathBuf>,
    ) -> Result<Self> {
        let endpoint = |name| variables(name).map(|url| url.trim_end_matches('/').to_owned());
        let place = workspace::find(plan, variables, here);
        let client = Client::new(endpoint("FTCTL_ENDPOINT_AZUREML"), place, variables)?;
        let prices = Prices::new(endpoint("FTCTL_ENDPOINT_AZURE_PRICES"), prices)?;
        let container = azure::named(party.store.url(), variables);
        Ok(Self { client, party, clock, prices, container })
    }

    async fn mark(&self) -> Result<Mark<'_>, Refusal> {
        self.party.mark().await.map_err(|error| Refusal::from(unknown_store(error)))
    }

    /// The machine that a plan wants, if its workspace is ours.
    fn wanted<'p>(&self, plan: &'p Plan) -> Result<&'p AzuremlPlan> {
        let Compute::Azureml(wanted) = &*plan.compute else { return Err(ProviderError::misplaced(plan)) };
        self.client.place()?.admits(wanted)?;
        Ok(wanted)
    }

    /// An attempt's job, less one of that name in another store.
    async fn find(&self, attempt: &AttemptId) -> Result<Option<Value>, Refusal> {
        let mark = self.mark().await?;
        let found = self.client.find(&["jobs", &attempt.machine_name()]).await?;
        Ok(found.filter(|found| job::is_of(job::tags(found), &attempt.job, &mark)))
    }

    /// Whether the attempt's job is there. Something else that only has its name is a conflict.
    async fn is_there(&self, attempt: &AttemptId, mark: &Mark<'_>) -> Result<bool> {
        let name = attempt.machine_name();
        let Some(found) = self.client.find(&["jobs", &name]).await? else { return Ok(false) };
        let tags = job::tags(&found);
        if job::is_of(tags, &attempt.job, mark) {
            return Ok(true);
        }
        Err(namesake(&format!("a job {name}"), &mark.belongs(job::said(tags))))
    }

    /// Every job that says it is of ftctl's, of whomever.
    async fn jobs(&self) -> Result<Vec<Value>, Refusal> {
        let mut url = self.client.url(&["jobs"])?;
        url.query_pairs_mut().append_pair("jobType", "Command").append_pair("tag", body::JOB).append_pair("listViewType", "All");
        let mut jobs = self.client.list(url).await?;
        jobs.retain(|job| job::name(job).is_some() && job::attempt(job::tags(job)).is_some());
        Ok(jobs)
    }

    /// Those of a job of this store.
    async fn of(&self, job: &JobId, mark: &Mark<'_>) -> Result<Vec<Value>, Refusal> {
        let mut own = self.jobs().await?;
        own.retain(|found| job::is_of(job::tags(found), job, mark));
        Ok(own)
    }

    /// Asks for the attempt's job, with everything that it names.
    async fn make(
        &self,
        attempt: &AttemptId,
        plan: &Plan,
        wanted: &AzuremlPlan,
        image: &TrainerImage,
        mark: &Mark<'_>,
    ) -> Result<(), Refusal> {
        let TrainerImage::Image { reference } = image else {
            return Err(ProviderError::new(Class::Invalid, "a job of Azure ML runs a container image").into());
        };
        let time = time_to_work(plan)?;
        let expires = after(self.clock.now(), plan.lifetime().saturating_add(plan.patience()));
        // Before a cluster, whose nodes cost money: a sign-in may not be able to give any.
        let variables = self.variables(&attempt.job, &wanted.identity, expires).await?;
        let cluster = match wanted.compute {
            Placement::Cluster => Some(self.prepared(attempt, wanted, nodes(plan), mark).await?),
            Placement::Serverless => None,
        };
        let command = body::Command {
            attempt,
            plan: wanted,
            store: self.party.store.url(),
            asked: RunOrder::asked_by(plan, image),
            environment: self.environment(reference).await?,
            cluster,
            variables,
            time,
            expires,
            nodes: nodes(plan),
        };
        let put = Call::put(self.client.url(&["jobs", &attempt.machine_name()])?, command.body(mark));
        self.client.change(put).await
    }

    /// The resource id of the environment that is this image, which is there when this returns.
    async fn environment(&self, image: &str) -> Result<String, Refusal> {
        let unpinned = || ProviderError::new(Class::Invalid, format!("the image {image} is not given by its digest"));
        let version = body::version(image).ok_or_else(unpinned)?;
        let segments = ["environments", body::ENVIRONMENT, "versions", &version];
        match self.client.find(&segments).await? {
            None => self.client.change(Call::put(self.client.url(&segments)?, body::environment(image))).await?,
            // Anybody who may write to the workspace can have made it.
            Some(found) if found["properties"]["image"] != image => {
                let message =
                    format!("the environment {}:{version} of the workspace is another image than {image}", body::ENVIRONMENT);
                return Err(ProviderError::new(Class::Conflict, message)
                    .fix("archive it in the studio, or find out who made it")
                    .into());
            }
            Some(_) => {}
        }
        Ok(self.client.id(&segments)?)
    }

    /// The variables of a job's agent, for which it may need its store until `expires`.
    async fn variables(&self, job: &JobId, identity: &Identity, expires: Timestamp) -> Result<BTreeMap<String, String>> {
        let given = self.party.store.agent_environment(job, after(expires, FAREWELL)).await.map_err(ProviderError::unsigned)?;
        if *identity == Identity::None && self.container.is_some() {
            let signature = given.iter().find_map(|(name, value)| value.as_deref().filter(|_| *name == azure::SIGNATURE));
            body::admit_signature(signature, expires)?;
        }
        Ok(body::variables(given, identity))
    }

    /// The run history's words on a job; null where it has none.
    async fn history(&self, name: &str) -> Result<Value, Refusal> {
        match self.client.details(name).await {
            Err(refusal) if refusal.is_absent() => Ok(Value::Null),
            details => details,
        }
    }

    /// Why a job is over.
    async fn last_words(&self, found: &Value, details: &Value) -> Result<Sighting, Refusal> {
        let end = job::end(found, details, self.has_lost_nodes(found).await?);
        if let Sighting::Unfit { why } = &end
            && roles::cannot_pull(why)
        {
            return Ok(Sighting::Unfit { why: self.with_role_to_pull(found, why).await });
        }
        if !job::was_denied(details) {
            return Ok(end);
        }
        // Its agent may not use the store, and said so until it gave up.
        let console = match console::read(&self.client, details, 0).await {
            Ok(console) => console,
            // Its exit code is known without its words.
            Err(refusal) => {
                let why = format!("its agent was denied something, and its console cannot be read: {}", refusal.message);
                return Ok(Sighting::Unfit { why });
            }
        };
        let said = console.text.lines().rev().map(str::trim).find(|line| !line.is_empty()).map(refusal::plain);
        Ok(said.map_or(end, |why| Sighting::Unfit { why }))
    }

    /// A live job as something that exists. One in the queue costs nothing until a node is prepared.
    async fn resource(
        &self,
        live: &Value,
        (jobs, clusters): (&[Value], &[Value]),
        region: &str,
        mark: &Mark<'_>,
    ) -> Result<Option<Resource>, Refusal> {
        let (Some(name), Some(attempt)) = (job::name(live), job::attempt(job::tags(live))) else { return Ok(None) };
        let details = if job::is_waiting(live) { Value::Null } else { self.history(name).await? };
        let begun = job::started(&details);
        let on = clusters.iter().find(|cluster| cluster["id"].as_str().is_some_and(|id| cluster::is_on(live, id)));
        let paid = if begun.is_some() { job::nodes(live) } else { on.map_or(0, |cluster| cluster::prepared(cluster, jobs, live)) };
        let allocated = on.and_then(|cluster| cluster::allocated(cluster, live, begun));
        let limit = job::limit(live);
        Ok(Some(Resource {
            name: name.to_owned(),
            attempt,
            since: allocated.or(job::began(live, &details)).unwrap_or_else(|| job::created(live)),
            expires: begun.zip(limit).map(|(begun, limit)| after(begun, limit)),
            price_per_hour: cluster::of_nodes(self.price_of(live, on, region), paid),
            belongs: mark.belongs(job::said(job::tags(live))),
        }))
    }

    /// The time by the cloud's clock, or by ours where that is not known.
    fn now_there(&self) -> Timestamp {
        self.client.cloud_time().unwrap_or_else(|| self.clock.now())
    }

    /// The price of an hour of each of a job's nodes as the service describes it, not as a plan once wanted it.
    fn price_of(&self, live: &Value, on: Option<&Value>, region: &str) -> Money {
        let (size, spot) = on.map_or_else(
            || {
                let wanted = &live["properties"];
                (wanted["resources"]["instanceType"].as_str().unwrap_or_default(), wanted["queueSettings"]["jobTier"] == "Spot")
            },
            cluster::machine,
        );
        self.prices.known(region, size, spot)
    }

    /// Asks the service to end these jobs, and returns when they are over.
    async fn end(&self, mut live: Vec<String>) -> Result<()> {
        let begun = Instant::now();
        for name in &live {
            self.cancel(name).await?;
        }
        while begun.elapsed() <= self.client.pace.end {
            live = self.live(live).await?;
            if live.is_empty() {
                return Ok(());
            }
            sleep(self.client.pace.look).await;
        }
        let message = format!("cancelled, and not over after {} s: {}", self.client.pace.end.as_secs(), live.join(", "));
        Err(ProviderError::new(Class::Network, message)
            .fix("cancel it in the studio (https://ml.azure.com), or delete its cluster there"))
    }

    /// Those of these jobs that are not over.
    async fn live(&self, mut names: Vec<String>) -> Result<Vec<String>, Refusal> {
        let mut live = Vec::new();
        for name in names.drain(..) {
            let found = self.client.find(&["jobs", &name]).await?;
            if found.as_ref().is_some_and(job::is_live) {
                live.push(name);
            }
        }
        Ok(live)
    }

    /// The job itself tells when it is over: the operation is not followed, which a job that does not end would hold up for longer.
    async fn cancel(&self, name: &str) -> Result<(), Refusal> {
        match self.client.call(Call::post(self.client.url(&["jobs", name, "cancel"])?)).await {
            // It is over, or gone: the next look tells.
            Err(refusal) if matches!(refusal.status, Some(400 | 404 | 409)) => Ok(()),
            asked => asked.map(drop),
        }
    }
}

#[async_trait]
impl Account for Azureml {
    async fn check(&self) -> Vec<Finding> {
        quota::check(&self.client).await
    }

    fn name(&self) -> Option<(String, &'static str)> {
        let place = self.client.place().ok()?;
        let name = format!("the workspace {} of {} in {}", place.workspace, place.resource_group, place.subscription);
        Some((
            name,
            "work where the same config.json is found, or set AZUREML_ARM_SUBSCRIPTION, AZUREML_ARM_RESOURCEGROUP and AZUREML_ARM_WORKSPACE_NAME",
        ))
    }

    async fn answers(&self) -> Result<()> {
        self.client.signed_in().await
    }

    async fn room(&self, plan: &Plan) -> Vec<Finding> {
        match self.wanted(plan) {
            Ok(wanted) => {
                let least = if plan.retry.shrink { 1 } else { nodes(plan) };
                // One that cannot be asked about is told of by the quota, which is asked next.
                let free = self.free_nodes(wanted).await.unwrap_or(0);
                let room = quota::room(&self.client, wanted, [nodes(plan), least], free).await;
                let notices = offer::without_roles(wanted).into_iter().chain(offer::of_nodes(wanted, nodes(plan)));
                room.into_iter().chain(notices).collect()
            }
            Err(error) => vec![Finding::notice("workspace", error.message, error.fix.unwrap_or_default())],
        }
    }

    async fn price(&self, plan: &Plan) -> Result<Price> {
        let Compute::Azureml(wanted) = &*plan.compute else { return Err(ProviderError::misplaced(plan)) };
        possible(plan, wanted)?;
        let region = match self.client.signed_in().await {
            Ok(()) => self.client.region().await.ok(),
            Err(_) => None,
        };
        let Price { per_hour, lasting, source } = self.prices.price(wanted, region.as_deref(), self.clock.now()).await;
        let of_all = |price| cluster::of_nodes(price, nodes(plan));
        Ok(Price { per_hour: of_all(per_hour), lasting: lasting.map(of_all), source })
    }

    async fn registry(&self) -> Result<Option<String>> {
        Ok(self.client.workspace().await?["properties"]["containerRegistry"].as_str().and_then(workspace::registry))
    }

    /// Clusters of ours that no job needs.
    async fn tidy(&self, only_look: bool) -> Result<Vec<String>> {
        let (mark, clusters, jobs) = (self.mark().await?, self.clusters().await?, self.jobs().await?);
        let mut names = Vec::new();
        for (name, cluster) in self.unneeded(&clusters, &jobs).await? {
            if mark.owns(job::said(&cluster["tags"])) && (only_look || self.remove_unneeded(&name, None).await?) {
                names.push(name.to_string());
            }
        }
        Ok(names)
    }
}

#[async_trait]
impl Provider for Azureml {
    fn service(&self) -> Option<&dyn JobService> {
        Some(self)
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { bills: true, signs: true, simulated: line::is_near(self.client.endpoint.as_str()), commands: false }
    }

    fn admit_image(&self, plan: &Plan) -> Result<()> {
        named_image(plan).map(drop)
    }

    fn admit_store(&self, store: &str) -> Result<()> {
        line::admit_store("a node of Azure ML", self.client.endpoint.as_str(), store)
    }

    async fn image(&self, plan: &Plan, _: Option<&TrainerImage>, _: &dyn Report) -> Result<TrainerImage> {
        Ok(TrainerImage::Image { reference: named_image(plan)?.to_owned() })
    }

    async fn provision(&self, attempt: &AttemptId, plan: &Plan, image: &TrainerImage) -> Result<Vec<String>> {
        let (wanted, mark) = (self.wanted(plan)?, self.mark().await?);
        for tried in 1.. {
            if self.is_there(attempt, &mark).await? {
                break;
            }
            let Err(refusal) = self.make(attempt, plan, wanted, image, &mark).await else { break };
            // Its cluster was removed meanwhile, since no job needed it; or another client was faster.
            let may_help = refusal.is_absent() || matches!(refusal.status, Some(400 | 409));
            if !may_help || tried >= TRIES {
                return Err(refusal.into());
            }
        }
        match (wanted.compute, &wanted.cluster) {
            (Placement::Cluster, None) => self.widened(attempt, wanted, nodes(plan), &mark).await,
            _ => Ok(Vec::new()),
        }
    }

    /// The agent begins by itself, when the service gives it a node.
    async fn launch(&self, order: &RunOrder) -> Result<()> {
        let attempt = AttemptId::new(&order.job, order.attempt);
        let gone = || ProviderError::new(Class::Network, format!("there is no job {} any more", attempt.machine_name()));
        self.find(&attempt).await?.map(drop).ok_or_else(gone)
    }

    async fn observe(&self, attempt: &AttemptId) -> Result<Sighting> {
        let Some(found) = self.find(attempt).await? else { return Ok(Sighting::Gone) };
        let (name, stage) = (attempt.machine_name(), job::stage(&found)?);
        let works = match stage {
            Stage::Running => true,
            Stage::Doubtful => job::started(&self.history(&name).await?).is_some(),
            Stage::Waiting | Stage::Ending | Stage::Over => false,
        };
        Ok(match stage {
            // The service ends it, and the agent, which sends its last checkpoint, is waited for.
            Stage::Ending if job::may_be_too_late(&found, self.now_there()) => Sighting::Alive { agent: true },
            Stage::Ending => job::cancelled(""),
            Stage::Over => self.last_words(&found, &self.history(&name).await?).await?,
            _ if works => Sighting::Alive { agent: true },
            _ => Sighting::Queued { since: job::created(&found), why: self.want_of_node(&found).await? },
        })
    }

    async fn began(&self, attempt: &AttemptId) -> Result<Option<Timestamp>> {
        match self.find(attempt).await? {
            Some(found) => Ok(job::began(&found, &self.history(&attempt.machine_name()).await?)),
            None => Ok(None),
        }
    }

    async fn ended(&self, attempt: &AttemptId) -> Result<Option<Timestamp>> {
        match self.find(attempt).await? {
            Some(found) if !job::is_live(&found) => Ok(job::ended(&self.history(&attempt.machine_name()).await?)),
            _ => Ok(None),
        }
    }

    /// The service's own word: it hears of the node, not of the agent.
    async fn signs(&self, attempt: &AttemptId) -> Result<Signs> {
        let Some(found) = self.find(attempt).await? else { return Ok(Signs::Absent) };
        let (name, status) = (attempt.machine_name(), job::status(&found));
        Ok(match job::stage(&found)? {
            Stage::Waiting => Signs::Busy { at: self.want_of_node(&found).await? },
            Stage::Running => Signs::Busy { at: format!("{} by Azure ML's word", status.to_ascii_lowercase()) },
            Stage::Doubtful | Stage::Ending => Signs::Silent { what: format!("{name} is {status} by Azure ML's word") },
            Stage::Over => Signs::Absent,
        })
    }

    async fn console(&self, attempt: &AttemptId, start: u64) -> Result<Option<Console>> {
        if self.find(attempt).await?.is_none() {
            return Ok(None);
        }
        let details = self.history(&attempt.machine_name()).await?;
        Ok(Some(console::read(&self.client, &details, start).await?))
    }

    async fn preempt(&self, attempt: &AttemptId) -> Result<()> {
        let absent = || ProviderError::new(Class::Invalid, format!("there is no job {} to preempt", attempt.machine_name()));
        let found = self.find(attempt).await?.filter(job::is_live).ok_or_else(absent)?;
        self.end(job::name(&found).map(str::to_owned).into_iter().collect()).await
    }

    async fn destroy(&self, job: &JobId) -> Result<()> {
        let mark = self.mark().await?;
        let own = self.of(job, &mark).await?;
        let live = live(&own);
        let ended = self.end(live.clone()).await;
        // What is billed is nodes. A cluster that was made for this job, or that it was on, may have some; a job that does not end
        // goes with it.
        let mut clusters = self.clusters().await?;
        clusters.retain(|cluster| {
            let was_on = own.iter().any(|own| cluster["id"].as_str().is_some_and(|id| cluster::is_on(own, id)));
            mark.reaches(job::said(&cluster["tags"])) && (was_on || cluster["tags"][body::JOB] == job.as_str())
        });
        for name in clusters.iter().filter_map(cluster::name) {
            let failed = |error: ProviderError| ProviderError {
                message: format!("cannot delete the cluster {name}: {}", error.message),
                ..error
            };
            self.remove_unneeded(&name, Some((job, &mark))).await.map_err(|refusal| failed(refusal.into()))?;
        }
        match ended {
            Err(_) if self.live(live).await?.is_empty() => Ok(()),
            ended => ended,
        }
    }

    async fn list(&self) -> Result<Vec<Resource>> {
        let (mark, jobs, mut clusters) = (self.mark().await?, self.jobs().await?, self.all_clusters().await?);
        if jobs.is_empty() && clusters.is_empty() {
            return Ok(Vec::new());
        }
        let region = self.client.region().await?;
        let mut found = Vec::new();
        for live in jobs.iter().filter(|job| job::is_live(job)) {
            found.extend(self.resource(live, (&jobs, &clusters), &region, &mark).await?);
        }
        clusters.retain(cluster::is_ours);
        let price = |cluster| {
            let (size, spot) = cluster::machine(cluster);
            self.prices.known(&region, size, spot)
        };
        let idle = clusters.iter().filter_map(|cluster| cluster::surplus(cluster, &jobs, price(cluster), self.now_there(), &mark));
        let idle: Vec<Resource> = idle.collect();
        let unneeded = self.unneeded(&clusters, &jobs).await?.into_iter();
        found.extend(unneeded.filter_map(|(_, cluster)| cluster::resource(cluster, price(cluster), &mark)).chain(idle));
        found.sort_by(|a, b| a.attempt.cmp(&b.attempt));
        Ok(found)
    }

    /// That of its last answer.
    async fn now(&self) -> Option<Timestamp> {
        self.client.cloud_time()
    }
}

/// The names of those jobs that are not over.
fn live(jobs: &[Value]) -> Vec<String> {
    jobs.iter().filter(|job| job::is_live(job)).filter_map(job::name).map(str::to_owned).collect()
}

/// How many machines an attempt has.
fn nodes(plan: &Plan) -> u32 {
    u32::try_from(plan.nodes).unwrap_or(u32::MAX)
}

/// Refuses a plan that can never run here, before anybody is asked or paid.
fn possible(plan: &Plan, wanted: &AzuremlPlan) -> Result<()> {
    time_to_work(plan)?;
    let (Some(variant), Some(capability)) = (plan.image.variant, wanted.compute_capability()) else { return Ok(()) };
    if catalogue::gce().has_kernels(variant.name(), capability) {
        return Ok(());
    }
    let builds =
        catalogue::gce().libtorch.keys().map(String::as_str).filter(|build| catalogue::gce().has_kernels(build, capability));
    let message = format!("the build `{}` of libtorch has no kernels for a {}", variant.name(), wanted.accelerator);
    let fix = format!("of its builds these have: {}", builds.collect::<Vec<_>>().join(", "));
    Err(ProviderError::new(Class::Invalid, message).fix(fix))
}

/// How long the service lets an attempt work: its node is paid for before and after that, too. Fails as [`Class::Invalid`] when
/// that leaves nothing.
fn time_to_work(plan: &Plan) -> Result<Duration> {
    if plan.work() >= SHORTEST {
        return Ok(plan.work() + GRACE);
    }
    let [before, after] = plan.compute.besides();
    let message = format!(
        "a limit of {} leaves less than a minute to train: {} is kept for the node's start, which is billed, and {} for its end",
        Span(plan.lifetime()),
        Span(before),
        Span(after)
    );
    Err(ProviderError::new(Class::Invalid, message).fix("give --ttl or --max-cost more"))
}
