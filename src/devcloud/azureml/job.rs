//! A command job: what was asked for, how far it is, and how the API and the run history show it.

use std::{collections::BTreeMap, time::Duration};

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::{
    api::{Refusal, duration, system_data, time},
    rules,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    Completed,
    Failed,
    Canceled,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    NotStarted,
    /// It has no nodes.
    Queued,
    /// The image comes.
    Preparing {
        done: Timestamp,
    },
    Running,
    /// Its processes are told to end, and have until then; `None` where they were not told.
    Ending {
        killed: Option<Timestamp>,
    },
    Finalizing {
        done: Timestamp,
        end: End,
    },
    Ended(End),
}

pub struct Job {
    pub name: String,
    /// The properties, as they were sent.
    pub body: Map<String, Value>,
    pub created: Timestamp,
    /// The cluster's name.
    pub cluster: String,
    pub instances: usize,
    pub processes: usize,
    pub timeout: Option<Duration>,
    pub phase: Phase,
    /// Names of its nodes, in the order of their ranks.
    pub nodes: Vec<String>,
    pub started: Option<Timestamp>,
    pub ended: Option<Timestamp>,
    /// How often the service started it again by itself.
    pub retries: u32,
    /// Whether the command was started, in each of its lives.
    pub begun: Vec<bool>,
    pub exits: BTreeMap<usize, i32>,
    pub error: Option<String>,
    /// The service's own log of it.
    pub words: String,
    /// Preemptions of the script that it has had.
    pub preempted: Vec<usize>,
}

impl Job {
    /// The job that a body asks for, on this cluster.
    pub fn new(name: &str, body: Map<String, Value>, cluster: String, now: Timestamp) -> Result<Self, Refusal> {
        let number = |value: &Value| value.as_u64().map_or(1, |number| usize::try_from(number).unwrap_or(usize::MAX));
        let field = |name: &str| body.get(name).unwrap_or(&Value::Null);
        let instances = number(&field("resources")["instanceCount"]);
        let processes = number(&field("distribution")["processCountPerInstance"]);
        if !(1..=100).contains(&instances) || !(1..=100).contains(&processes) {
            return Err(Refusal::invalid("instanceCount and processCountPerInstance are between 1 and 100."));
        }
        let timeout = field("limits")["timeout"].as_str().and_then(duration);
        Ok(Self {
            name: name.to_owned(),
            created: now,
            cluster,
            instances,
            processes,
            timeout,
            phase: Phase::NotStarted,
            nodes: Vec::new(),
            started: None,
            ended: None,
            retries: 0,
            begun: vec![false],
            exits: BTreeMap::new(),
            error: None,
            words: String::new(),
            preempted: Vec::new(),
            body,
        })
    }

    pub fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Ended(_))
    }

    pub fn status(&self) -> &'static str {
        match self.phase {
            Phase::NotStarted => "NotStarted",
            Phase::Queued => "Queued",
            Phase::Preparing { .. } => "Preparing",
            Phase::Running => "Running",
            Phase::Ending { .. } => "CancelRequested",
            Phase::Finalizing { .. } => "Finalizing",
            Phase::Ended(End::Completed) => "Completed",
            Phase::Ended(End::Failed) => "Failed",
            Phase::Ended(End::Canceled) => "Canceled",
        }
    }

    pub fn field(&self, name: &str) -> &Value {
        self.body.get(name).unwrap_or(&Value::Null)
    }

    /// Names that may be changed later.
    pub fn is_open(name: &str) -> bool {
        ["description", "displayName", "tags", "isArchived"].contains(&name)
    }

    /// When its time is over, if it began to count.
    pub fn deadline(&self, from_submission: bool) -> Option<Timestamp> {
        let begun = if from_submission { Some(self.created) } else { self.started };
        Some(super::super::clock::after(begun?, self.timeout?))
    }

    pub fn say(&mut self, now: Timestamp, words: &str) {
        self.words.extend(["[", &time(now), "] ", words, "\n"]);
    }

    /// The job as `Jobs_Get` shows it.
    pub fn show(&self, id: &str, tracking: &str) -> Value {
        let mut properties = self.body.clone();
        let mut outputs = self.field("outputs").as_object().cloned().unwrap_or_default();
        let place = format!("azureml://datastores/workspaceartifactstore/ExperimentRun/dcid.{}", self.name);
        let default = json!({ "jobOutputType": "uri_folder", "mode": "ReadWriteMount", "uri": place });
        outputs.entry("default").or_insert(default);
        properties.insert("outputs".to_owned(), Value::Object(outputs));
        properties.insert("status".to_owned(), json!(self.status()));
        let service = |kind: &str, endpoint: String| json!({ "jobServiceType": kind, "endpoint": endpoint });
        let studio = format!("https://ml.azure.com/runs/{}", self.name);
        let services = json!({ "Tracking": service("Tracking", tracking.to_owned()), "Studio": service("Studio", studio) });
        properties.insert("services".to_owned(), services);
        json!({
            "id": id, "name": self.name, "type": "Microsoft.MachineLearningServices/workspaces/jobs", "properties": properties,
            "systemData": system_data(self.created),
        })
    }

    /// Paths of its logs, each with the life and the rank whose output it is; `None` is the service's own.
    pub fn logs(&self) -> BTreeMap<String, Option<(u32, usize)>> {
        let distributed = self.body.get("distribution").is_some_and(|distribution| !distribution.is_null());
        let name = |rank: usize| if distributed { format!("std_log_process_{rank:02}.txt") } else { "std_log.txt".to_owned() };
        let folder = |life: usize| if life == 0 { "user_logs".to_owned() } else { format!("user_logs/retry_{life:03}") };
        let lives = self.begun.iter().enumerate().filter(|(_, begun)| **begun).map(|(life, _)| life);
        let ranks = 0..self.instances * self.processes;
        let mut logs: BTreeMap<_, _> = lives
            .flat_map(|life| ranks.clone().map(move |rank| (life, rank)))
            .map(|(life, rank)| (format!("{}/{}", folder(life), name(rank)), Some((life as u32, rank))))
            .collect();
        logs.extend((!self.words.is_empty()).then(|| ("system_logs/lifecycler/lifecycler.log".to_owned(), None)));
        logs
    }

    /// The job as the run history shows it; `link` makes addresses of its logs.
    pub fn details(&self, link: impl Fn(&str) -> String) -> Value {
        let error = self.error.as_ref().map(|message| json!({ "error": { "code": "UserError", "message": message } }));
        let files: Map<String, Value> = self.logs().into_keys().map(|path| (path.clone(), json!(link(&path)))).collect();
        json!({
            "runId": self.name, "target": self.cluster, "status": self.status(), "startTimeUtc": self.started.map(time),
            "endTimeUtc": self.ended.map(time), "error": error, "warnings": null, "properties": self.field("properties"),
            "inputDatasets": [], "outputDatasets": [], "runDefinition": null, "logFiles": files, "jobCost": null, "revision": 1,
            "submittedBy": "u",
        })
    }
}

/// Whether two bodies ask for the same job.
pub fn is_same(one: &Map<String, Value>, other: &Map<String, Value>) -> bool {
    let fixed = |body: &Map<String, Value>| {
        let fields = body.iter().filter(|(name, value)| !Job::is_open(name) && !value.is_null());
        fields.map(|(name, value)| (name.clone(), value.clone())).collect::<BTreeMap<_, _>>()
    };
    fixed(one) == fixed(other)
}

/// The name at the end of a resource's id, if it is one of this kind.
pub fn named<'i>(id: &'i str, kind: &str) -> Option<&'i str> {
    let name = id.strip_prefix(&format!("/{kind}/"))?;
    rules::name("name", name).is_ok().then_some(name)
}
