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
    compute::{Compute, Kept},
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
    /// What names of the hub in it stood for when it was made, so that each attempt has the same bytes.
    #[serde(default, skip_serializing_if = "Pins::is_empty")]
    pub hub: Pins,
    pub model: ModelConfig,
    /// Of all processes together.
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
    /// Whose price it is, and of which day: "by the list of …".
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
        "{processes} processes, one for each GPU, cannot share a step of {leaves} leaves (train.leaves); each needs one: give more, or set compute.processes_per_node"
    )]
    TooFewLeaves { processes: usize, leaves: usize },
    #[error(
        "compute.nodes = {nodes}: {backend} makes one machine for an attempt, and the backends local and azureml several; leave it out there, or set compute.processes_per_node"
    )]
    OneMachine { nodes: usize, backend: String },
    #[error(
        "retry.shrink = true: this job has one machine of {backend} for an attempt, which cannot be fewer; set compute.nodes, for the backends local and azureml, or leave it out"
    )]
    OneToShrink { backend: String },
    #[error("a time to live of 0s leaves no time to train")]
    NoTime,
    #[error("a ceiling of {max_cost} pays for {lifetime} at {price_per_hour} an hour: less than the {least} a job needs at least")]
    OverBudget { max_cost: Money, price_per_hour: Money, lifetime: Span, least: Span },
}

/// What a machine has for its programs at least, and is charged for at least.
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
            return Err(PlanError::OneToShrink { backend: compute.backend().to_owned() });
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
        let all = self.nodes.max(1);
        let nodes = nodes.clamp(1, all);
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
        let spent = sum(&mut earlier.iter().map(|life| part(charge(life), life.nodes.min(self.nodes), self.nodes)));
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
mod tests {
    use super::*;
    use crate::job::gce::GcePlan;

    fn resolve(text: &str) -> Plan {
        let choices = Choices {
            backend: "local".into(),
            image: ImageSpec::default(),
            store: "/store".into(),
            ttl: Span(Duration::from_secs(7_200)),
            max_cost: None,
            max_wait: DEFAULT_MAX_WAIT,
        };
        let spec = JobSpec::parse(text, "job.toml").expect("valid");
        Plan::resolve(&spec, Compute::Local, choices, Path::new("/home/me/jobs")).expect("a plan")
    }

    #[test]
    fn each_process_does_what_the_job_file_says_of_a_step() {
        let text = "name = \"a\"\ndataset = \"d\"\n[compute]\nprocesses_per_node = 3\n[train]\ngradient_accumulation = 4";
        let plan = resolve(text);
        assert_eq!((plan.processes, plan.train.gradient_accumulation, plan.train.leaves), (3, 12, Some(3)));
        assert_eq!(plan.check(|_| Vec::new()), Ok(()));
        let file = plan.job_file();
        assert_eq!((file.compute.processes_per_node, file.train.gradient_accumulation, file.train.leaves), (Some(3), 4, Some(3)));
        let more = Plan { processes: 4, ..plan };
        let refused = more.check(|_| Vec::new()).expect_err("more processes than leaves").to_string();
        assert!(refused.contains("4 processes cannot share a step of 3 leaves"), "{refused}");
        let two = resolve(&text.replace("[train]", "nodes = 2\n[train]"));
        assert_eq!((two.nodes, two.processes, two.train.gradient_accumulation, two.train.leaves), (2, 6, 24, Some(6)));
        let file = two.job_file();
        assert_eq!((file.compute.nodes, file.compute.processes_per_node, file.train.gradient_accumulation), (Some(2), Some(3), 4));
        for (nodes, processes) in [(0, 6), (4, 6), (7, 6)] {
            let wrong = Plan { processes, nodes, ..two.clone() };
            assert!(wrong.check(|_| Vec::new()).is_err_and(|broken| broken.key == "compute.nodes"), "{nodes} {processes}");
        }
        let alone = resolve("name = \"a\"\ndataset = \"d\"");
        assert_eq!((alone.processes, alone.train.leaves), (1, None));
        assert_eq!(alone.job_file().compute.processes_per_node, Some(1), "also where it goes on with more GPUs");
    }

    #[test]
    fn a_process_needs_a_gpu_of_its_own_where_there_are_some_and_nodes_a_backend_that_has_them() {
        let choices = |backend: &str| Choices {
            backend: backend.into(),
            image: ImageSpec::default(),
            store: "/store".into(),
            ttl: Span(Duration::from_secs(7_200)),
            max_cost: None,
            max_wait: DEFAULT_MAX_WAIT,
        };
        let resolve = |compute: &Compute, text: &str| {
            let spec = JobSpec::parse(&format!("name = \"a\"\ndataset = \"d\"\n{text}"), "job.toml").expect("valid");
            Plan::resolve(&spec, compute.clone(), choices(compute.backend()), Path::new("/")).map(|plan| plan.processes)
        };
        let gce = Compute::Gce(Box::new(GcePlan { accelerators: 4, ..GcePlan::default() }));
        let four = "[compute]\nprocesses_per_node = 4\n";
        assert_eq!(resolve(&gce, four), Ok(4));
        let five = four.replace('4', "5");
        assert_eq!(resolve(&gce, &five), Err(PlanError::TooFewGpus { processes: 5, gpus: 4 }));
        assert_eq!(resolve(&gce, &format!("{five}[train]\ndevice = \"cpu\"")), Ok(5));
        assert_eq!(resolve(&Compute::Local, &five), Ok(5), "nobody knows");
        let none = GcePlan { accelerators: 0, ..GcePlan::default() };
        for (compute, text, processes) in [
            (&gce, "", 4),
            (&gce, "[compute]\nprocesses_per_node = 1", 1),
            (&gce, "[train]\ndevice = \"cpu\"", 1),
            (&gce, "[train]\nleaves = 8\ngradient_accumulation = 8", 4),
            (&Compute::Gce(Box::new(none)), "", 1),
            (&Compute::Local, "", 1),
        ] {
            assert_eq!(resolve(compute, text), Ok(processes), "{text}");
        }
        let few = "[train]\nleaves = 2\ngradient_accumulation = 2";
        assert_eq!(resolve(&gce, few), Err(PlanError::TooFewLeaves { processes: 4, leaves: 2 }));
        let nodes = "[compute]\nnodes = 2\nprocesses_per_node = 3";
        assert_eq!(resolve(&Compute::Azureml(Box::default()), &nodes.replace('3', "1")), Ok(2));
        assert_eq!(resolve(&Compute::Local, nodes), Ok(6));
        assert_eq!(resolve(&gce, nodes), Err(PlanError::OneMachine { nodes: 2, backend: gce.backend().to_owned() }));
    }

    #[test]
    fn paths_begin_at_the_job_file() {
        let plan = resolve(
            "name = \"a\"\ninitial_weights = \"./gpt2\"\n[data]\ntrain = [\"a/*.txt\", \"/b.txt\"]\nvalidation = [\"../v.txt\"]",
        );
        assert_eq!(plan.initial_weights.as_deref(), Some("/home/me/jobs/gpt2"));
        let DataPlan::Text(data) = plan.data else { panic!("text expected") };
        assert_eq!(data.train, ["/home/me/jobs/a/*.txt", "/b.txt"]);
        assert_eq!(data.validation, ["/home/me/jobs/../v.txt"], "a link may make .. lead elsewhere, so it stays");
    }

    #[test]
    fn a_dataset_is_a_digest_a_name_or_a_directory() {
        assert_eq!(resolve("name = \"a\"\ndataset = \"@texts\"").data, DataPlan::Named("texts".to_owned()));
        let digest = "0123456789abcdef".repeat(4);
        assert_eq!(
            resolve(&format!("name = \"a\"\ndataset = \"{digest}\"")).data,
            DataPlan::Digest(Digest::parse(&digest).expect("a digest"))
        );
        let directory = format!("/home/me/jobs/{}", &digest[1..]);
        assert_eq!(resolve(&format!("name = \"a\"\ndataset = \"{}\"", &digest[1..])).data, DataPlan::Directory(directory));
    }

    #[test]
    fn retries_have_defaults_and_single_values_override_them() {
        let plan = resolve("name = \"a\"\ndataset = \"d\"\n[retry]\nattempts = 3\non = []");
        assert_eq!(
            plan.retry,
            RetryPlan {
                on: vec![],
                attempts: 3,
                backoff: "1s".parse().expect("span"),
                max_backoff: "5m".parse().expect("span"),
                shrink: false
            }
        );
    }

    /// Those of single machines, in seconds.
    fn lives(seconds: &[u64]) -> Vec<Life> {
        seconds.iter().map(|seconds| Life { time: Duration::from_secs(*seconds), nodes: 1 }).collect()
    }

    #[test]
    fn fewer_machines_share_the_same_step_and_cost_their_part() {
        let text = "name = \"a\"\ndataset = \"d\"\n[compute]\nnodes = 3\nprocesses_per_node = 2\n[retry]\nshrink = true";
        let plan = Plan { lasting_price_per_hour: Some(Money { micros: 9_000_000 }), ..resolve(text) };
        let plan = Plan { price_per_hour: Money { micros: 3_600_001 }, ..plan };
        assert!(plan.retry.shrink);
        let shape = |plan: &Plan| (plan.nodes, plan.processes, plan.price_per_hour.micros);
        assert_eq!([0, 1, 2, 3, 9].map(|nodes| shape(&plan.on(nodes)).0), [1, 1, 2, 3, 3]);
        assert_eq!((shape(&plan.on(3)), shape(&plan.on(2))), ((3, 6, 3_600_001), (2, 4, 2_400_001)), "rounded up");
        let one = plan.on(1);
        assert_eq!((&one.train, one.lasting_price_per_hour.map(|price| price.micros)), (&plan.train, Some(3_000_000)));
        assert_eq!(one.job_file().train.leaves, Some(6));
    }

    #[test]
    fn money_that_fewer_machines_spare_is_time() {
        let text = "name = \"a\"\ndataset = \"d\"\n[compute]\nnodes = 2";
        let usd = |text: &str| text.parse::<Money>().expect("money");
        // An hour of both, in a life of two.
        let plan = Plan { price_per_hour: usd("2USD"), max_cost: Some(usd("2USD")), ..resolve(text) };
        let left = |earlier: &[(u64, usize)], nodes| {
            let life = |&(seconds, nodes)| Life { time: Duration::from_secs(seconds), nodes };
            let left = plan.left(&earlier.iter().map(life).collect::<Vec<_>>(), nodes)?;
            Some((left.lifetime().as_secs(), left.price_per_hour.micros))
        };
        assert_eq!((left(&[], 2), left(&[], 1)), (Some((3_600, 2_000_000)), Some((7_200, 1_000_000))));
        // Each is charged its farewell of half a minute.
        assert_eq!(left(&[(1_770, 2)], 2), Some((1_800, 2_000_000)));
        assert_eq!(left(&[(1_770, 2)], 1), Some((3_600, 1_000_000)));
        assert_eq!(left(&[(1_770, 1)], 2), Some((2_700, 2_000_000)));
        assert_eq!(left(&[(5_370, 1)], 1), Some((1_800, 1_000_000)), "what time allows");
        assert_eq!(left(&[(1_770, 9)], 2), Some((1_800, 2_000_000)), "of a job that had more before it was resumed");
        assert_eq!((left(&[(3_570, 2)], 1), left(&[(7_150, 1)], 1)), (None, None));
    }

    #[test]
    fn each_machine_is_given_what_earlier_ones_left() {
        let plan = resolve("name = \"a\"\ndataset = \"d\"");
        let left = |earlier: &[u64]| plan.left(&lives(earlier), 1).map(|plan| plan.ttl.0.as_secs());
        assert_eq!(left(&[]), Some(7_200));
        assert_eq!(left(&[600]), Some(6_570));
        assert_eq!(left(&[1, 1, 1]), Some(7_020), "a minute is charged for each");
        assert_eq!(left(&[7_110]), Some(60));
        assert_eq!(left(&[7_111]), None);
        assert_eq!(left(&[u64::MAX, u64::MAX]), None);
    }

    #[test]
    fn time_that_a_service_charges_around_a_job_is_kept_back() {
        let mut plan = resolve("name = \"a\"\ndataset = \"d\"");
        assert_eq!(plan.work(), plan.lifetime());
        *plan.compute = Compute::Azureml(Box::default());
        let left = |earlier: &[u64]| plan.left(&lives(earlier), 1).map(|plan| (plan.ttl.0.as_secs(), plan.work().as_secs()));
        assert_eq!(left(&[]), Some((7_200, 7_200 - 810)));
        assert_eq!(left(&[1_000]), Some((7_200 - 1_210, 7_200 - 1_210 - 810)), "its node was idle, and left");
        assert_eq!(left(&[7_200 - 210 - 870]), Some((870, 60)));
        assert_eq!(left(&[7_200 - 210 - 869]), None, "no minute is left to work");
        let ceiling = |text: &str| Some(text.parse::<Money>().expect("money"));
        let hour = "3.6USD".parse::<Money>().expect("money");
        assert!(Plan { max_cost: ceiling("0.87USD"), ..plan.clone() }.priced(hour).is_ok());
        let error = Plan { max_cost: ceiling("0.869USD"), ..plan.clone() }.priced(hour).expect_err("nothing is left");
        assert!(error.to_string().ends_with("less than the 14m30s a job needs at least"), "{error}");
    }

    #[test]
    fn a_machine_with_an_early_notice_has_that_long_to_say_farewell() {
        let mut plan = resolve("name = \"a\"\ndataset = \"d\"\n[compute.gce]\npreemption_notice = \"2m\"");
        assert_eq!(plan.farewell(), FAREWELL, "elsewhere nobody knows of it");
        let notice = Some(Span(Duration::from_secs(120)));
        *plan.compute = Compute::Gce(Box::new(GcePlan { preemption_notice: notice, ..GcePlan::default() }));
        assert_eq!(plan.farewell(), Duration::from_secs(150));
    }

    #[test]
    fn the_ceiling_in_money_becomes_a_deadline() {
        let plan = resolve("name = \"a\"\ndataset = \"d\"");
        let usd = |text: &str| text.parse::<Money>().expect("money");
        let priced = |max_cost: Option<&str>, price| Plan { max_cost: max_cost.map(usd), ..plan.clone() }.priced(usd(price));
        let seconds = |plan: &Plan| plan.lifetime().as_secs();

        let free = priced(None, "0USD").expect("no price, no limit");
        assert_eq!((seconds(&free), free.worst_case), (7_200, Money::ZERO));
        let uncapped = priced(None, "1.5USD").expect("no ceiling");
        assert_eq!((seconds(&uncapped), uncapped.worst_case), (7_200, usd("3USD")));
        let capped = priced(Some("1USD"), "3USD").expect("20 minutes");
        assert_eq!((seconds(&capped), capped.worst_case), (1_200, usd("1USD")));
        let uneven = priced(Some("1USD"), "0.7USD").expect("rounded down");
        assert!(uneven.worst_case <= usd("1USD"), "{}", uneven.worst_case);
        assert!(matches!(priced(Some("0.01USD"), "3USD"), Err(PlanError::OverBudget { .. })));
        assert!(priced(Some("0USD"), "0USD").is_ok(), "what costs nothing needs no money");
    }
}
