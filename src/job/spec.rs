//! `job.toml` as typed: every key a user may write, nothing resolved.

use ft_trainer::config::{DataConfig, ModelConfig, SampleConfig, TrainSettings};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    check,
    document::{Document, DocumentError},
    units::{Money, Span},
};

/// One job: what to train, on what, where, and what it may cost.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct JobSpec {
    /// Lower-case letters, digits and hyphens; at most 40 characters. Every name in a cloud is derived from it.
    pub name: String,
    #[serde(default)]
    pub compute: ComputeSpec,
    /// URL of the blob container, or a directory, that holds everything the job reads and writes; absent: the embedded store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store: Option<String>,
    /// Text to train on, prepared on the machine where ftctl runs. Exactly one of `data` and `dataset`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<DataConfig>,
    /// A dataset that is prepared already: the digest that `ftctl upload` printed, or a directory that `ftctl prepare` wrote.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dataset: Option<String>,
    /// A Hugging Face directory to start from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initial_weights: Option<String>,
    #[serde(default)]
    pub model: ModelConfig,
    #[serde(default)]
    pub train: TrainSettings,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sample: Option<SampleConfig>,
    #[serde(default)]
    pub retry: RetrySpec,
    #[serde(default)]
    pub limits: LimitsSpec,
}

impl JobSpec {
    /// Reads the text of a job file; `file` is what messages call it.
    pub fn parse(text: &str, file: &str) -> Result<Self, DocumentError> {
        Self::read(&Document::new(file, text.as_bytes().to_vec())?)
    }

    /// Reads a job file with everything that is laid over it, and checks every value.
    pub fn read(document: &Document) -> Result<Self, DocumentError> {
        let (spec, typed) = document.parse::<Self>()?;
        check::check(&spec, &typed)?;
        Ok(spec)
    }

    /// The JSON Schema (draft 2020-12) of a job file, for editors.
    pub fn schema() -> serde_json::Value {
        let mut schema = schemars::schema_for!(JobSpec);
        schema.insert("title".to_owned(), "ftctl job file".into());
        schema.to_value()
    }
}

/// Where the job runs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ComputeSpec {
    /// `local` runs on this machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backend: Option<String>,
}

/// What happens when an attempt ends before its work is done.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RetrySpec {
    /// Causes that lead to another attempt; absent: `preempt` and `capacity`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on: Option<Vec<RetryCause>>,
    /// Attempts in all; absent: 20.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempts: Option<u32>,
    /// Wait before the second attempt, doubled each time; absent: 1s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backoff: Option<Span>,
    /// Ceiling of that wait; absent: 5m.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_backoff: Option<Span>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RetryCause {
    /// The machine or the process was taken away.
    Preempt,
    /// No machine was to be had.
    Capacity,
    /// The trainer failed by itself.
    Failure,
}

/// What the job may cost.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LimitsSpec {
    /// Longest life of the job's machines in all; absent: 24h.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl: Option<Span>,
    /// Most it may cost; absent: no ceiling in money.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_cost: Option<Money>,
}
