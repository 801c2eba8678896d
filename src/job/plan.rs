//! What a job file means: every default filled in, nothing left open.

use ft_trainer::config::{DataConfig, ModelConfig, SampleConfig, TrainSettings};
use serde::{Deserialize, Serialize};

use super::{
    spec::RetryCause,
    units::{Money, Span},
};

pub const PLAN_SCHEMA: &str = "ftctl.plan/1";

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    pub schema: String,
    pub name: String,
    pub backend: String,
    pub store: String,
    pub data: DataPlan,
    /// A local directory; uploaded before the first attempt.
    pub initial_weights: Option<String>,
    pub model: ModelConfig,
    pub train: TrainSettings,
    pub sample: Option<SampleConfig>,
    pub retry: RetryPlan,
    pub ttl: Span,
    pub max_cost: Option<Money>,
    pub price_per_hour: Money,
    /// `price_per_hour` × `ttl`, or `max_cost` when that is less.
    pub worst_case: Money,
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
    Digest(String),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RetryPlan {
    pub on: Vec<RetryCause>,
    pub attempts: u32,
    pub backoff: Span,
    pub max_backoff: Span,
}
