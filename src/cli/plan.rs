//! `ftctl plan`: what a job would do and cost. Changes nothing.

use std::{
    fs,
    path::{Path, PathBuf},
};

use clap::Args;
use ft_trainer::{
    micro_batch::MicroBatch,
    model::{PUBLISHED_VOCABULARY, Shape, TrainingMemory},
};
use serde_json::{Value, json};

use super::{App, JobFile};
use crate::{
    exit::{Exit, Failure},
    job::{
        plan::{DataPlan, Plan},
        units::Money,
    },
    output::{Show, Table},
};

/// Show what a job would do, where, and what it costs at worst
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  ftctl plan job.toml\n  ftctl plan job.toml --set train.steps=500 -o json")]
pub struct Arguments {
    #[command(flatten)]
    pub file: JobFile,
    /// Also write the plan to a file, as JSON
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

impl Arguments {
    pub fn run(self, app: &mut App<'_>) -> Result<(), Failure> {
        let plan = app.block_on(async {
            let (world, plan) = self.file.priced(app).await?;
            if let Err(error) = world.provider.answers().await {
                world.report.warn(&format!("{}; so whether it has room, GPUs or the image is not known", error.message));
            }
            Ok(plan)
        })?;
        if let Some(path) = self.out.as_ref().filter(|_| !app.dry_run) {
            let cannot = |error| Failure::new(Exit::Failure, format!("cannot write {}: {error}", path.display()));
            fs::write(path, format!("{:#}\n", json!(plan))).map_err(cannot)?;
        }
        app.output.show(&plan)
    }
}

impl Show for Plan {
    fn schema(&self) -> &'static str {
        crate::job::plan::PLAN_SCHEMA
    }

    fn json(&self) -> Value {
        json!(self)
    }

    fn text(&self) -> String {
        let mut table = Table::default();
        table.pair("job", &self.name);
        table.pair("backend", &self.backend);
        if let Some(image) = &self.docker.image {
            table.pair("image", image);
        }
        table.pair("store", &self.store);
        table.pair("data", data(&self.data));
        if let Some(weights) = &self.initial_weights {
            table.pair("starts from", weights);
        }
        table.pair("training", training(self));
        if let Some(memory) = memory(self) {
            table.pair("memory", memory);
        }
        table.pair("attempts", format!("at most {}", self.retry.attempts));
        table.pair("time to live", self.ttl.to_string());
        table.pair("price", format!("{} an hour", self.price_per_hour));
        table.pair("worst case", worst_case(self));
        table.render()
    }

    fn names(&self) -> Vec<String> {
        vec![self.name.clone()]
    }
}

fn data(data: &DataPlan) -> String {
    match data {
        DataPlan::Digest(digest) => format!("dataset {digest}"),
        DataPlan::Named(name) => format!("dataset {name} of the store"),
        DataPlan::Directory(directory) => format!("prepared, in {directory}"),
        DataPlan::Text(config) => match config.source {
            Some(source) => format!("text from {}", json!(source).as_str().unwrap_or_default()),
            None => format!("text from {}", config.train.join(", ")),
        },
    }
}

fn training(plan: &Plan) -> String {
    let train = &plan.train;
    let length = match (train.steps, train.epochs) {
        (Some(steps), _) => format!("{steps} steps"),
        (None, epochs) => format!("{} epochs", epochs.unwrap_or(1.0)),
    };
    format!("{length} of {} tokens", train.tokens_per_step())
}

/// What the trainer will need at its peak, where the model and its vocabulary are known before the data is prepared.
fn memory(plan: &Plan) -> Option<String> {
    let DataPlan::Text(data) = &plan.data else { return None };
    let vocabulary = data.tokenizer.vocabulary.unwrap_or(PUBLISHED_VOCABULARY);
    let shape = match &plan.initial_weights {
        Some(directory) => Shape::read(Path::new(directory)).ok()?,
        None => Shape::resolve(&plan.model, vocabulary, plan.train.block_size).ok()?,
    };
    let needed = TrainingMemory::estimate(&shape, &plan.train).total() >> 20;
    let more = if plan.train.micro_batch == MicroBatch::Auto { ", more where there is more" } else { "" };
    Some(format!("about {needed} MiB{more}"))
}

fn worst_case(plan: &Plan) -> String {
    if plan.worst_case == Money::ZERO { "nothing: this backend does not bill".to_owned() } else { plan.worst_case.to_string() }
}
