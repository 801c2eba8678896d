//! The meaning of a job file: every default filled in, nothing left open.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::Duration,
};

use ft_trainer::settings::{DataConfig, DeviceChoice, ModelConfig, SampleConfig, TrainSettings, validate::Broken};
use serde::{Deserialize, Serialize};

use super::{
    check::{self, Rules},
    compute::{Compute, Kept, WITH_NODES},
    digest::Digest,
    hub::{self, Located, OfHub, Pins, Use},
    image::ImageSpec,
    model::JobModel,
    processes,
    spec::{JobSpec, RetryCause, RetrySpec},
    tracking::TrackingSpec,
    units::{Money, Span},
};

pub const PLAN_SCHEMA: &str = "ftctl.plan/1";

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    pub schema: String,
    pub name: String,
    #[serde(flatten)]
    pub compute: Kept,
    /// Further environment variables of the trainer.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub environment: BTreeMap<String, String>,
    /// How the container image is made, where the backend starts one.
    #[serde(default)]
    pub image: ImageSpec,
    /// URL or absolute path.
    pub store: String,
    pub data: DataPlan,
    /// A local directory, or a name of the hub; uploaded before the first attempt. Until then it may be the model of another job
    /// ([`JobModel`]).
    pub initial_weights: Option<String>,
    /// The commits that its names of the hub stood for when it was made. They give each attempt the same bytes.
    #[serde(default, skip_serializing_if = "Pins::is_empty")]
    pub hub: Pins,
    pub model: ModelConfig,
    /// The settings of all processes together.
    pub train: TrainSettings,
    /// How many share the steps.
    #[serde(default = "processes::one", skip_serializing_if = "processes::is_one")]
    pub processes: usize,
    /// On how many machines at a time, with as many on each.
    #[serde(default = "processes::one", skip_serializing_if = "processes::is_one")]
    pub nodes: usize,
    pub sample: Option<SampleConfig>,
    pub retry: RetryPlan,
    /// Longest life of the job's machines in all.
    pub ttl: Span,
    pub max_cost: Option<Money>,
    /// Longest that the job waits for its machines in all.
    #[serde(default = "default_max_wait", skip_serializing_if = "is_default_max_wait")]
    pub max_wait: Span,
    pub price_per_hour: Money,
    /// Price of an hour of the same machine without preemption.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lasting_price_per_hour: Option<Money>,
    /// Whose prices these are, and of which day.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub price_source: Option<String>,
    /// Who is told its numbers.
    #[serde(default, skip_serializing_if = "TrackingSpec::is_none")]
    pub tracking: TrackingSpec,
    /// The job's cost when its machines live as long as they may: `price_per_hour` × [`Plan::lifetime`].
    pub worst_case: Money,
}

/// The price of an hour of a plan's machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Price {
    pub per_hour: Money,
    /// The price without preemption; absent where there is none, and where there is no such machine.
    pub lasting: Option<Money>,
    /// Whose price it is, and of which day: "price list of …".
    pub source: Option<String>,
}

impl From<Money> for Price {
    fn from(per_hour: Money) -> Self {
        Self { per_hour, lasting: None, source: None }
    }
}

/// Where the tokens come from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DataPlan {
    /// Text to prepare on this machine.
    Text(DataConfig),
    /// A prepared directory on this machine.
    Directory(String),
    /// A dataset that is in the store already.
    Digest(Digest),
    /// The dataset of the store that has this name when the job begins.
    Named(String),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RetryPlan {
    pub on: Vec<RetryCause>,
    /// Attempts in all, the first included.
    pub attempts: u32,
    pub backoff: Span,
    pub max_backoff: Span,
    /// An attempt may have fewer machines than the plan.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shrink: bool,
}

/// The life of an earlier attempt's machines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Life {
    pub time: Duration,
    /// How many there were.
    pub nodes: usize,
}

/// The settings that decide for a job where it runs and what it may cost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choices {
    pub backend: String,
    pub image: ImageSpec,
    pub store: String,
    pub ttl: Span,
    pub max_cost: Option<Money>,
    pub max_wait: Span,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    #[error("the path {} is not valid UTF-8, so it cannot be kept in a job's record", .0.display())]
    NotUnicode(PathBuf),
    #[error("the job has neither `data` nor `dataset`")]
    NoData,
    #[error(
        "compute.processes_per_node = {processes}, and the machine has {gpus} GPUs, of which each process needs one; take fewer, or set train.device = \"cpu\""
    )]
    TooFewGpus { processes: usize, gpus: u32 },
    #[error(
        "each process needs a leaf, and a step has {leaves} (train.leaves) for {processes} processes, one for each GPU; raise train.leaves, or set compute.processes_per_node"
    )]
    TooFewLeaves { processes: usize, leaves: usize },
    #[error(
        "compute.nodes = {nodes}, and the backend {backend} has one machine for each attempt; use several GPUs of one machine (compute.processes_per_node), or the backend {others}",
        others = WITH_NODES
    )]
    OneMachine { nodes: usize, backend: String },
    #[error(
        "retry.shrink = true lets a job go on with fewer machines, and this job has one; remove it, or set compute.nodes on the backend {others}",
        others = WITH_NODES
    )]
    OneToShrink,
    #[error("a time to live of 0s leaves no time to train")]
    NoTime,
    #[error(
        "a ceiling of {max_cost:#} pays for {lifetime} at {price_per_hour} an hour: less than the {least} a job needs at least"
    )]
    OverBudget { max_cost: Money, price_per_hour: Money, lifetime: Span, least: Span },
}

/// The least time that a machine has for its programs, and is charged for.
const SHORTEST_LIFE: Duration = Duration::from_secs(60);
/// The time that a cloud gives a preempted machine's programs.
const FAREWELL: Duration = Duration::from_secs(30);

impl Plan {
    /// Fills in every default. Relative paths become absolute: they are relative to `base`, the directory of the job file, which is
    /// itself absolute. The price is not known yet: see [`Plan::priced`].
    pub fn resolve(spec: &JobSpec, compute: Compute, choices: Choices, base: &Path) -> Result<Self, PlanError> {
        if choices.ttl.0.is_zero() {
            return Err(PlanError::NoTime);
        }
        let nodes = spec.compute.nodes.unwrap_or(1);
        let on_node = processes::on_each_node(spec, compute.gpus());
        let processes = on_node.saturating_mul(nodes);
        if nodes > 1 && !compute.takes_nodes() {
            return Err(PlanError::OneMachine { nodes, backend: compute.backend().to_owned() });
        }
        if nodes <= 1 && spec.retry.shrink == Some(true) {
            return Err(PlanError::OneToShrink);
        }
        let gpus = compute.gpus().filter(|gpus| (1..on_node).contains(&(*gpus as usize)));
        if let Some(gpus) = gpus.filter(|_| spec.train.device != DeviceChoice::Cpu) {
            return Err(PlanError::TooFewGpus { processes: on_node, gpus });
        }
        let train = processes::shared(&spec.train, processes);
        if processes > train.leaves() {
            return Err(PlanError::TooFewLeaves { processes, leaves: train.leaves() });
        }
        Ok(Self {
            schema: PLAN_SCHEMA.to_owned(),
            name: spec.name.clone(),
            compute: compute.into(),
            environment: spec.compute.environment.clone(),
            image: choices.image,
            store: choices.store,
            data: data(spec, base)?,
            initial_weights: spec.initial_weights.as_deref().map(|weights| weights_at(weights, base)).transpose()?,
            hub: Pins::new(),
            model: spec.model.clone(),
            train,
            processes,
            nodes,
            sample: spec.sample.clone(),
            retry: retry(&spec.retry),
            ttl: choices.ttl,
            max_cost: choices.max_cost,
            max_wait: choices.max_wait,
            price_per_hour: Money::ZERO,
            lasting_price_per_hour: None,
            price_source: None,
            tracking: spec.tracking.clone(),
            worst_case: Money::ZERO,
        })
    }

    /// The rules of a job file, held against a plan that comes from a store; `of_backends` has those for machines.
    pub fn check(&self, of_backends: Rules) -> Result<(), Broken> {
        check::plan(self, of_backends)
    }

    /// The job file that it is of, with nothing left to a default. What it says of a step is what one process does.
    pub fn job_file(&self) -> JobSpec {
        let mut file = check::typed(self);
        file.compute.processes_per_node = Some(self.processes_per_node());
        if self.processes > 1 {
            file.compute.nodes = (self.nodes > 1).then_some(self.nodes);
            file.train.gradient_accumulation /= self.processes;
        }
        file
    }

    pub fn processes_per_node(&self) -> usize {
        self.processes / self.nodes.max(1)
    }

    /// This plan with so many machines for an attempt, of those that it has. Each has as many processes as before, and they share
    /// the same step.
    #[must_use]
    pub fn on(&self, nodes: usize) -> Self {
        self.at_nodes(nodes.min(self.nodes))
    }

    /// The same for any number, at the price of so many.
    #[must_use]
    pub fn at_nodes(&self, nodes: usize) -> Self {
        let (all, nodes) = (self.nodes.max(1), nodes.max(1));
        let part = |price: Money| {
            let micros = (u128::from(price.micros) * nodes as u128).div_ceil(all as u128);
            Money { micros: u64::try_from(micros).unwrap_or(u64::MAX) }
        };
        Self {
            nodes,
            processes: self.processes_per_node() * nodes,
            price_per_hour: part(self.price_per_hour),
            lasting_price_per_hour: self.lasting_price_per_hour.map(part),
            ..self.clone()
        }
    }

    /// Everything of the hub that it names, each once.
    pub fn of_hub(&self) -> Vec<OfHub> {
        let weights = self.initial_weights.as_ref().and_then(|text| OfHub::model(Use::Weights, text));
        let text = match &self.data {
            DataPlan::Text(config) => OfHub::of_text(config),
            _ => Vec::new(),
        };
        weights.into_iter().chain(text).collect()
    }

    /// The commits of what `later` names of the hub: those of this plan where it names the same.
    pub fn meant_before(&self, later: &Self) -> Pins {
        later.hub.iter().map(|(key, commit)| (key.clone(), self.hub.get(key).unwrap_or(commit).clone())).collect()
    }

    /// This plan with paths in the place of names of the hub.
    #[must_use]
    pub fn located(&self, places: &[Located]) -> Self {
        let mut plan = self.clone();
        hub::locate_one(Use::Weights, &mut plan.initial_weights, places);
        if let DataPlan::Text(config) = &mut plan.data {
            OfHub::locate(config, places);
        }
        plan
    }

    pub fn backend(&self) -> &str {
        self.compute.backend()
    }

    /// The digest that tells this plan from any other, also for a later version: an added field is left out where it says what held
    /// before it.
    pub fn digest(&self) -> Digest {
        // Made of strings, numbers and maps with string keys, for which serde_json cannot fail.
        Digest::of(&serde_json::to_vec(self).unwrap_or_default())
    }

    /// The dated list that the price is from, where the cloud itself was not asked, or did not tell.
    pub fn price_list(&self) -> Option<&str> {
        self.price_source.as_deref().filter(|source| source.starts_with("price list of"))
    }

    /// Adds the price, and refuses a ceiling that cannot pay for anything.
    pub fn priced(self, price: impl Into<Price>) -> Result<Self, PlanError> {
        let Price { per_hour: price_per_hour, lasting, source } = price.into();
        let plan = Self { price_per_hour, lasting_price_per_hour: lasting, price_source: source, ..self };
        let lifetime = plan.lifetime();
        match plan.max_cost {
            Some(max_cost) if lifetime < plan.least() && lifetime < plan.ttl.0 => {
                let least = Span(plan.least());
                Err(PlanError::OverBudget { max_cost, price_per_hour, lifetime: Span(lifetime), least })
            }
            _ => Ok(Self { worst_case: price_per_hour.for_time(lifetime), ..plan }),
        }
    }

    /// The container image that machines start, where the backend has containers.
    pub fn image(&self) -> Option<&str> {
        self.compute.image()
    }

    /// Whether the backend itself replaces a preempted machine, without ftctl.
    pub fn replaces_machines(&self) -> bool {
        self.compute.replaces_machines()
    }

    /// How long the programs of a machine have when it is taken away.
    pub fn farewell(&self) -> Duration {
        FAREWELL + self.compute.notice()
    }

    /// This plan for one more attempt, on so many machines: the same, with the time that `earlier` ones have left of it. `None`
    /// when that is not worth starting one.
    pub fn left(&self, earlier: &[Life], nodes: usize) -> Option<Self> {
        let plan = self.on(nodes);
        if earlier.is_empty() {
            return Some(plan);
        }
        let [_, after] = self.compute.besides();
        // A machine is charged until its power ends, which is after its agent's end, and for a minute at least.
        let charge = |life: &Life| life.time.saturating_add(self.farewell().max(after)).max(SHORTEST_LIFE);
        let sum = |times: &mut dyn Iterator<Item = Duration>| times.fold(Duration::ZERO, Duration::saturating_add);
        let left = self.ttl.0.saturating_sub(sum(&mut earlier.iter().map(charge)));
        // The same time costs less on fewer machines: it is paid for as a part of what all of them cost.
        let spent = sum(&mut earlier.iter().map(|life| part(charge(life), life.nodes, self.nodes)));
        let paid = self.paid().map(|paid| part(paid.saturating_sub(spent), self.nodes, plan.nodes));
        let left = paid.map_or(left, |paid| paid.min(left));
        (left >= self.least()).then_some(Self { ttl: Span(left), max_cost: None, ..plan })
    }

    /// The cost of one machine whose programs work for so long, with the time that is paid for around them.
    pub fn cost_of(&self, work: Duration) -> Money {
        let life = self.compute.besides().into_iter().fold(work, Duration::saturating_add);
        self.price_per_hour.for_time(life.max(SHORTEST_LIFE))
    }

    /// Below this no machine is worth starting.
    fn least(&self) -> Duration {
        self.compute.besides().into_iter().sum::<Duration>() + SHORTEST_LIFE
    }

    /// How long a machine's programs may work when it is the job's only one.
    pub fn work(&self) -> Duration {
        self.compute.besides().into_iter().fold(self.lifetime(), Duration::saturating_sub)
    }

    /// How long the job waits in all for machines that are out of stock.
    pub fn patience(&self) -> Duration {
        if self.retry.on.contains(&RetryCause::Capacity) { self.max_wait.0 } else { Duration::ZERO }
    }

    /// How long the job's machines may live in all: the time to live, or less when the money ends first. Whole seconds, rounded
    /// down, so that the cloud's own deadline never lets the job cost more than the ceiling.
    pub fn lifetime(&self) -> Duration {
        self.paid().map_or(self.ttl.0, |paid| paid.min(self.ttl.0))
    }

    /// How long the money lasts, where something costs any and it has an end.
    fn paid(&self) -> Option<Duration> {
        self.max_cost.filter(|_| self.price_per_hour > Money::ZERO).map(|max_cost| {
            let seconds = u128::from(max_cost.micros) * 3_600 / u128::from(self.price_per_hour.micros);
            Duration::from_secs(u64::try_from(seconds).unwrap_or(u64::MAX))
        })
    }
}

/// So many parts of a time that has `of`.
fn part(time: Duration, parts: usize, of: usize) -> Duration {
    let count = |parts: usize| u32::try_from(parts.max(1)).unwrap_or(u32::MAX);
    time.saturating_mul(count(parts)) / count(of)
}

/// The bound of plans that name none, older ones included.
pub const DEFAULT_MAX_WAIT: Span = Span(Duration::from_secs(24 * 3_600));

fn default_max_wait() -> Span {
    DEFAULT_MAX_WAIT
}

fn is_default_max_wait(max_wait: &Span) -> bool {
    *max_wait == DEFAULT_MAX_WAIT
}

impl RetryPlan {
    /// How long to wait before try number `failures + 1`: doubles each time, up to the ceiling.
    pub fn pause(&self, failures: u32) -> Duration {
        let doublings = failures.saturating_sub(1).min(31);
        self.backoff.0.saturating_mul(1 << doublings).min(self.max_backoff.0)
    }
}

fn retry(typed: &RetrySpec) -> RetryPlan {
    RetryPlan {
        on: typed.on.clone().unwrap_or_else(|| vec![RetryCause::Preempt, RetryCause::Capacity]),
        attempts: typed.attempts.unwrap_or(20),
        backoff: typed.backoff.unwrap_or(Span(Duration::from_secs(1))),
        max_backoff: typed.max_backoff.unwrap_or(Span(Duration::from_secs(300))),
        shrink: typed.shrink.unwrap_or(false),
    }
}

fn data(spec: &JobSpec, base: &Path) -> Result<DataPlan, PlanError> {
    match (&spec.dataset, &spec.data) {
        (Some(dataset), _) => Ok(match (Digest::parse(dataset), dataset.strip_prefix('@')) {
            (Some(digest), _) => DataPlan::Digest(digest),
            (None, Some(name)) => DataPlan::Named(name.to_owned()),
            (None, None) => DataPlan::Directory(absolute(dataset, base)?),
        }),
        (None, None) => Err(PlanError::NoData),
        (None, Some(data)) => {
            let mut data = data.clone();
            for path in data.paths_mut() {
                *path = absolute(path, base)?;
            }
            Ok(DataPlan::Text(data))
        }
    }
}

fn weights_at(weights: &str, base: &Path) -> Result<String, PlanError> {
    if JobModel::of_weights(weights).is_some() { Ok(weights.to_owned()) } else { absolute(weights, base) }
}

fn absolute(path: &str, base: &Path) -> Result<String, PlanError> {
    if hub::is_name(path) {
        return Ok(path.to_owned());
    }
    let joined = base.join(path);
    // `./data` stays readable in messages as `/home/me/data`.
    let tidy: PathBuf = joined.components().collect();
    tidy.into_os_string().into_string().map_err(|path| PlanError::NotUnicode(path.into()))
}

#[cfg(test)]
mod tests;
