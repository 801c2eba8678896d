//! The orders to an agent, and its reports: the contract between `ftctl` and the process beside the trainer.

use std::{
    collections::BTreeMap,
    ops::Range,
    path::{Path, PathBuf},
    time::Duration,
};

use ft_trainer::settings::{
    ModelConfig, SampleConfig, TrainSettings,
    validate::{self, Broken},
};
use jiff::Timestamp;
use serde::{Deserialize, Deserializer, Serialize, de};
use serde_json::Value;

use super::{
    clock::between,
    digest::Digest,
    id::{JobId, attempt_number},
    plan::Plan,
    processes,
    tracking::TrackingSpec,
};

pub const ORDER_SCHEMA: &str = "ftctl.order/1";

/// The order of one attempt, complete in itself: an agent needs this and the store, nothing else.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunOrder {
    pub schema: String,
    pub job: JobId,
    #[serde(deserialize_with = "attempt_number")]
    pub attempt: u32,
    /// URL of the store as the machine reaches it.
    pub store: String,
    /// Digest of the prepared dataset.
    pub dataset: Digest,
    /// Digest of an uploaded Hugging Face directory, when the run starts from existing weights.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initial_weights: Option<Digest>,
    pub trainer: TrainerImage,
    /// Further environment variables of the trainer.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub environment: BTreeMap<String, String>,
    pub model: ModelConfig,
    /// The settings of all processes together.
    pub train: TrainSettings,
    /// How many share the steps.
    #[serde(default = "processes::one", skip_serializing_if = "processes::is_one")]
    pub processes: usize,
    /// On how many machines, with an agent on each.
    #[serde(default = "processes::one", skip_serializing_if = "processes::is_one")]
    pub nodes: usize,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sample: Option<SampleConfig>,
    /// When the trainer is told to stop, whatever it is doing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Timestamp>,
    /// Longest that the attempt's agent works, in seconds from when it first began: where a service keeps the order in a queue, the
    /// deadline is only the latest that can be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lifetime_seconds: Option<u64>,
    /// Seconds between the polite and the forced stop.
    #[serde(deserialize_with = "grace")]
    pub grace_seconds: u64,
    /// The order is also for the machines that the backend makes by itself after this one was taken away: each is the next attempt,
    /// up to this one. Absent: it is for one machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_attempt: Option<u32>,
    /// Who is told the job's numbers.
    #[serde(default, skip_serializing_if = "TrackingSpec::is_none")]
    pub tracking: TrackingSpec,
}

impl RunOrder {
    /// How many ranks each node has.
    pub fn ranks_per_node(&self) -> usize {
        self.processes / self.nodes.max(1)
    }

    /// The ranks of a node.
    pub fn ranks(&self, node: usize) -> Range<usize> {
        let count = self.ranks_per_node();
        node * count..(node + 1) * count
    }

    /// The name of a rank, for a person.
    pub fn rank_name(&self, rank: usize) -> String {
        if self.nodes > 1 { format!("rank {rank} on node {}", rank / self.ranks_per_node().max(1)) } else { format!("rank {rank}") }
    }

    /// How long an agent that began at `started` may work.
    pub fn time_to_work(&self, started: Timestamp) -> Option<Duration> {
        let until_deadline = self.deadline.map(|deadline| between(started, deadline));
        let lifetime = self.lifetime_seconds.map(|seconds| Duration::from_secs(seconds.min(MAX_GRACE)));
        until_deadline.into_iter().chain(lifetime).min()
    }

    /// Reads an order of this or an older version. The error says why it is none.
    pub fn decode(bytes: &[u8]) -> Result<Self, String> {
        let order: Self = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        if order.schema != ORDER_SCHEMA {
            return Err(format!("it is of the format `{}`, this version reads `{ORDER_SCHEMA}`", order.schema));
        }
        order.check().map(|()| order).map_err(|broken| broken.to_string())
    }

    /// The digest of the requests in an order with this plan, which is on as many nodes as the attempt has, and this trainer. See
    /// [`asked`].
    pub fn asked_by(plan: &Plan, trainer: &TrainerImage) -> Digest {
        let order = serde_json::json!({
            "environment": plan.environment, "model": plan.model, "nodes": plan.nodes, "processes": plan.processes,
            "sample": plan.sample, "tracking": plan.tracking, "train": plan.train, "trainer": trainer,
        });
        // As an agent reads it: a number's digits are parsed once.
        asked(&serde_json::from_str(&order.to_string()).unwrap_or_default())
    }

    /// Holds an order to the rules of a job file, whatever wrote it.
    pub fn check(&self) -> Result<(), Broken> {
        let model = validate::model(&self.model, self.initial_weights.is_some(), &self.train);
        validate::all_hold(
            model
                .into_iter()
                .chain(validate::train(&self.train))
                .chain(processes::rules(self.processes, self.nodes, &self.train))
                .chain(self.sample.iter().flat_map(validate::sample))
                .chain([self.tracking.rule()]),
        )
    }
}

/// The digest of an order's requests: everything but data, times and the store. An agent that takes its order from a store is told
/// this digest by the submitter, so that others who write to the store start no program there and give it no environment.
pub fn asked(order: &Value) -> Digest {
    let absent = serde_json::json!({
        "environment": {}, "model": {}, "nodes": 1, "processes": 1, "sample": null, "tracking": {}, "train": {}, "trainer": null,
    });
    let keys = absent.as_object().into_iter().flatten();
    let mut asked: Value = keys.map(|(key, absent)| (key.clone(), order.get(key).unwrap_or(absent).clone())).collect();
    asked.sort_all_objects();
    Digest::of(asked.to_string().as_bytes())
}

/// Longest grace, in seconds: that of the longest time that can be written in a job file.
const MAX_GRACE: u64 = 1_000_000 * 86_400;

/// Reads a grace: beyond the longest there is no moment that it ends at.
fn grace<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    let seconds = u64::deserialize(from)?;
    if seconds <= MAX_GRACE { Ok(seconds) } else { Err(de::Error::custom(format!("a grace of {seconds} s never ends"))) }
}

/// How the trainer is found on the machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TrainerImage {
    /// A program built on this machine from the embedded sources: [`program`] says where it lies. A path in older records is not
    /// read: a record or an order names no file that anybody executes.
    Program { digest: Digest },
    /// A container image with the agent and the trainer in it, as the machine's engine finds it.
    Image { reference: String },
    /// The fake provider trains nothing.
    None,
}

/// Where the trainer of this digest lies in a machine's own cache.
pub fn program(cache: &Path, digest: &Digest) -> PathBuf {
    cache.join("trainer").join(&digest.as_str()[..16]).join("ft-trainer")
}

pub const EXIT_SCHEMA: &str = "ftctl.exit/1";

/// `exit.json`: how an attempt ended, written once by its agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExitRecord {
    pub schema: String,
    #[serde(deserialize_with = "attempt_number")]
    pub attempt: u32,
    pub reason: ExitReason,
    /// The trainer's exit code, when it exited by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<i32>,
    /// The signal that ended the trainer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// One sentence for the user: the trainer's last error line, or what the agent saw.
    pub message: String,
    pub started: Timestamp,
    pub finished: Timestamp,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExitReason {
    /// The trainer finished its work.
    Succeeded,
    /// The trainer gave up: bad data, an error of its own. Trying again would fail again.
    Failed,
    /// The machine was taken away, or the trainer was killed from outside: the next attempt resumes.
    Preempted,
    /// Stopped because a user asked.
    Cancelled,
    /// Stopped because the deadline came.
    Deadline,
    /// Another attempt holds the job: this one stopped before writing anything more.
    LostLease,
}

impl ExitReason {
    /// Whether the next attempt goes on from there.
    pub fn is_followed(self) -> bool {
        matches!(self, Self::Preempted | Self::LostLease)
    }
}

pub const HEARTBEAT_SCHEMA: &str = "ftctl.heartbeat/1";

/// `heartbeat.json`: overwritten every few seconds. A supervisor judges it by whether it *changes*, not by its time: clocks
/// differ. `status` tells its time when that is long ago.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Heartbeat {
    pub schema: String,
    pub beat: u64,
    pub time: Timestamp,
    /// When an agent of the attempt first began. A service may start the attempt again on another machine, and its time goes on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started: Option<Timestamp>,
    pub phase: Phase,
    /// The error that has kept the agent waiting for a while, and is tried again; or that the cloud is going to take its machine
    /// away.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
    /// Those of the machine while the trainer runs, where their driver tells.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<GpuUse>,
}

/// The load of a GPU, as its driver tells it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuUse {
    /// Share of the last moments in which it computed.
    pub busy_percent: u8,
    pub memory_used_bytes: u64,
    pub memory_bytes: u64,
}

/// The agent's current activity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    Staging,
    Training,
    Shipping,
    Stopping,
}

pub const CANCEL_SCHEMA: &str = "ftctl.cancel/1";

/// `cancel.json`: a user's wish, seen by the agent and by every supervisor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CancelRequest {
    pub schema: String,
    pub time: Timestamp,
    /// Seconds for the trainer to write a checkpoint; 0 kills at once.
    #[serde(deserialize_with = "grace")]
    pub grace_seconds: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::provider::conformance;

    #[test]
    fn a_path_to_a_program_is_not_read() {
        let digest = Digest::of(b"trainer");
        let older = serde_json::json!({ "program": { "path": "/bin/sh", "digest": digest } });
        let image: TrainerImage = serde_json::from_value(older).unwrap();
        assert_eq!(image, TrainerImage::Program { digest: digest.clone() });
        assert!(!serde_json::to_string(&image).unwrap().contains("path"));
        let place = format!("/cache/trainer/{}/ft-trainer", &digest.as_str()[..16]);
        assert_eq!(program(Path::new("/cache"), &digest), Path::new(&place));
        let climbing = serde_json::json!({ "program": { "digest": "../../../../bin/sh" } });
        assert!(serde_json::from_value::<TrainerImage>(climbing).is_err());
    }

    /// An honest order has the digest that the submitter tells the agent, and no other has it.
    #[test]
    fn an_order_asks_for_what_its_plan_does() {
        let image = TrainerImage::Image { reference: "registry.example/ftctl@sha256:00".to_owned() };
        let mut plan = conformance::plan();
        (plan.nodes, plan.processes, plan.train.learning_rate) = (2, 4, 1.0 / 3.0);
        let bare = RunOrder { trainer: image.clone(), ..serde_json::from_str(include_str!("fixtures/order.json")).unwrap() };
        for environment in [BTreeMap::new(), [("NCCL_DEBUG".to_owned(), "INFO".to_owned())].into()] {
            plan.environment = environment;
            let honest = RunOrder {
                environment: plan.environment.clone(),
                model: plan.model.clone(),
                train: plan.train.clone(),
                nodes: 2,
                processes: 4,
                sample: plan.sample.clone(),
                tracking: plan.tracking.clone(),
                ..bare.clone()
            };
            let of = |order: &RunOrder| asked(&serde_json::from_slice(&serde_json::to_vec_pretty(order).unwrap()).unwrap());
            assert_eq!(of(&honest), RunOrder::asked_by(&plan, &image));
            assert_eq!(of(&RunOrder { attempt: 7, deadline: None, ..honest.clone() }), of(&honest));
            let variables = [("CUDA_INJECTION64_PATH".to_owned(), "evil.so".to_owned())].into();
            let evil = TrainerImage::Program { digest: Digest::of(b"evil") };
            for other in [
                RunOrder { environment: variables, ..honest.clone() },
                RunOrder { trainer: evil, ..honest.clone() },
                RunOrder { nodes: 1, ..honest.clone() },
                RunOrder { tracking: TrackingSpec { mlflow: Some("https://evil.example".to_owned()) }, ..honest.clone() },
            ] {
                assert_ne!(of(&other), of(&honest));
            }
        }
    }

    #[test]
    fn an_order_of_before_is_read_and_judged() {
        let mut order: RunOrder = serde_json::from_str(include_str!("fixtures/order.json")).unwrap();
        assert_eq!(order.check(), Ok(()));
        order.train.block_size = 0;
        assert!(order.check().is_err_and(|broken| broken.key == "train.block_size"));
    }

    #[test]
    fn an_agent_works_until_its_deadline_and_no_longer_than_its_lifetime() {
        let mut order: RunOrder = serde_json::from_str(include_str!("fixtures/order.json")).unwrap();
        let at = |second| Timestamp::from_second(second).unwrap();
        let mut time = |deadline: Option<i64>, lifetime_seconds| {
            (order.deadline, order.lifetime_seconds) = (deadline.map(at), lifetime_seconds);
            order.time_to_work(at(100)).map(|time| time.as_secs())
        };
        assert_eq!([time(None, None), time(Some(150), None), time(Some(50), None)], [None, Some(50), Some(0)]);
        assert_eq!([time(None, Some(9)), time(Some(150), Some(9)), time(Some(150), Some(99))], [Some(9), Some(9), Some(50)]);
        assert_eq!(time(None, Some(u64::MAX)), Some(MAX_GRACE));
    }

    #[test]
    fn a_grace_ends() {
        let wish =
            |seconds: u64| serde_json::json!({ "schema": CANCEL_SCHEMA, "time": "2026-01-01T00:00:00Z", "grace_seconds": seconds });
        assert!(serde_json::from_value::<CancelRequest>(wish(MAX_GRACE)).is_ok());
        assert!(serde_json::from_value::<CancelRequest>(wish(u64::MAX)).is_err());
    }
}
