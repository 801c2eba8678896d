//! The script of failures. Every key has a default, so `{}` is a service in which nothing fails.

use std::{collections::BTreeMap, time::Duration};

use serde::{Deserialize, Serialize};

use super::super::faults::Fault;
use crate::job::units::Span;

pub const SCRIPT_SCHEMA: &str = "ftctl.devcloud-azureml-script/1";

/// Times are simulated ones, where nothing else is said.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Script {
    pub schema: String,
    /// From the PUT or the DELETE of a cluster to the end of its operation.
    pub operation: Span,
    /// From the wish for nodes to their being there, and charged for.
    pub allocation: Span,
    /// From then to their being ready.
    pub boot: Span,
    /// From a job's nodes to its command: the image is pulled.
    pub preparation: Span,
    /// From the end of a job's command to the job's: its outputs are kept.
    pub finalization: Span,
    /// How long a node is charged for after it was sent away.
    pub leaving: Span,
    /// Until nodes that were not given are asked for again.
    pub retry: Span,
    /// On the wall: how long a node hears before that it is taken away.
    pub notice: Span,
    /// On the wall: how long the processes of a cancelled job may say farewell.
    pub farewell: Span,
    /// On the wall: how long a token is good.
    pub token_life: Span,
    /// Tried in this order for every call; the first that fits and is not used up happens. Calls have the names of the service's
    /// own description: `Compute_CreateOrUpdate`, `Jobs_Get`.
    pub faults: Vec<Fault>,
    /// Sizes without a free node.
    pub stock_outs: Vec<String>,
    /// Limits in vCPUs other than the generous ones, by quota: `TotalLowPriorityCores`, `standardNDSv2Family`, …
    pub quotas: BTreeMap<String, u32>,
    pub quota_refusal: QuotaRefusal,
    /// Operations on clusters never end.
    pub endless_operations: bool,
    /// The workspace was deleted.
    pub workspace_deleted: bool,
    pub preemptions: Vec<Preemption>,
    pub troubles: Vec<Trouble>,
    /// A job's `limits.timeout` counts from its submission, not from its start.
    pub timeout_from_submission: bool,
    /// The factor of prices beside the table in this program.
    pub price_factor: f64,
}

impl Default for Script {
    fn default() -> Self {
        let seconds = |seconds| Span(Duration::from_secs(seconds));
        Self {
            schema: SCRIPT_SCHEMA.to_owned(),
            operation: seconds(5),
            allocation: seconds(10),
            boot: seconds(20),
            preparation: seconds(5),
            finalization: seconds(1),
            leaving: seconds(5),
            retry: seconds(60),
            notice: seconds(30),
            farewell: seconds(30),
            token_life: seconds(3_600),
            faults: Vec::new(),
            stock_outs: Vec::new(),
            quotas: BTreeMap::new(),
            quota_refusal: QuotaRefusal::default(),
            endless_operations: false,
            workspace_deleted: false,
            preemptions: Vec::new(),
            troubles: Vec::new(),
            timeout_from_submission: false,
            price_factor: 1.0,
        }
    }
}

/// Where the service says that a quota is used up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum QuotaRefusal {
    /// In the answer to the request for a cluster.
    #[default]
    Request,
    /// In the operation that the request began.
    Operation,
    /// When a job needs nodes, in the cluster's errors.
    Allocation,
}

/// A low-priority node that is taken away, of those that a job has or waits for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Preemption {
    /// The end of the job's name: `-a1` is the first attempt of any job.
    pub job: String,
    /// Since the job's submission.
    #[serde(default = "at_once")]
    pub after: Span,
    /// Which of the job's nodes.
    #[serde(default)]
    pub node: usize,
    /// On the wall: how long after the notice it is withdrawn.
    #[serde(default)]
    pub withdrawn: Option<Span>,
    /// The service starts the same run again on another node; otherwise it fails.
    #[serde(default)]
    pub restarts: bool,
}

/// A job that does not work as it should.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Trouble {
    /// The end of its name.
    pub job: String,
    pub kind: TroubleKind,
}

impl TroubleKind {
    /// The words of the log and of the error, in which `IMAGE` stands for the job's, when a node cannot be prepared for its job.
    pub fn unprepared(self) -> Option<[&'static str; 2]> {
        match self {
            Self::NoImage => Some([
                "Failed to pull the Docker image: manifest unknown, or access is denied.",
                "Failed to pull Docker image. Check that the image exists and that the compute may pull it: unauthorized.",
            ]),
            Self::NoMount => Some([
                "Could not mount the datastore.",
                "AzureMLCompute job failed. AZFMountError: unable to mount Azure File Info: Could not mount Azure File Share.",
            ]),
            Self::NoPull => Some([
                "Failed to pull the Docker image: unauthorized: authentication required.",
                "Failed to pull Docker image IMAGE. This error may occur because the compute could not authenticate with the Docker registry \
                 to pull the image. If using ACR please ensure the ACR has Admin user enabled or a Managed Identity with `AcrPull` access \
                 to the ACR is assigned to the compute.",
            ]),
            Self::NoIdentity | Self::MetadataSilent | Self::NoCancel => None,
        }
    }
}

fn at_once() -> Span {
    Span(Duration::ZERO)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TroubleKind {
    /// Its image is not in the registry.
    NoImage,
    /// The cluster's identity may not pull it.
    NoPull,
    /// A datastore that it names cannot be mounted.
    NoMount,
    /// Its identity is refused.
    NoIdentity,
    /// There is no answer on its node's metadata address.
    MetadataSilent,
    /// A cancelled job goes on.
    NoCancel,
}

impl Script {
    pub fn has(&self, job: &str, kind: TroubleKind) -> bool {
        self.troubles_of(job).any(|trouble| trouble == kind)
    }

    pub fn troubles_of(&self, job: &str) -> impl Iterator<Item = TroubleKind> {
        self.troubles.iter().filter(move |trouble| job.ends_with(&trouble.job)).map(|trouble| trouble.kind)
    }
}
