//! `ftctl agent`: the verb that providers start beside the trainer. Not for people, so not in the help.

use std::{fs, path::PathBuf};

use clap::Args;

use super::App;
use crate::{
    agent,
    exit::{Exit, Failure},
    job::order::{ORDER_SCHEMA, RunOrder},
};

/// Run one attempt beside its trainer
#[derive(Debug, Args)]
pub struct Agent {
    /// What to do: `order.json`
    #[arg(long, value_name = "FILE")]
    order: PathBuf,
    /// The job's directory on this machine
    #[arg(long, value_name = "DIR")]
    work: PathBuf,
    /// Only send what a dead agent left there
    #[arg(long)]
    drain: bool,
}

impl Agent {
    pub fn run(self, app: &mut App<'_>) -> Result<(), Failure> {
        let order = self.read_order()?;
        let cache = app.settings.directories.cache()?.to_owned();
        let report = app.output.report();
        app.block_on(async {
            if self.drain {
                return Ok(agent::drain(&order, &self.work, &*report).await?);
            }
            let metadata = std::env::var("FTCTL_ENDPOINT_METADATA").ok();
            let record = agent::run(&order, &self.work, &cache, metadata.as_deref(), &*report).await?;
            report.line(&format!("attempt {} of {} is over: {}", record.attempt, order.job, record.message));
            Ok(())
        })
    }

    fn read_order(&self) -> Result<RunOrder, Failure> {
        let wrong = |why: String| Failure::new(Exit::Usage, format!("cannot read the order {}: {why}", self.order.display()));
        let bytes = fs::read(&self.order).map_err(|error| wrong(error.to_string()))?;
        let order: RunOrder = serde_json::from_slice(&bytes).map_err(|error| wrong(error.to_string()))?;
        if order.schema == ORDER_SCHEMA {
            return Ok(order);
        }
        Err(wrong(format!("it is of the format `{}`, this version reads `{ORDER_SCHEMA}`", order.schema)))
    }
}
