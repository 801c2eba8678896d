//! `ftctl explain`: why a job is where it is.

use clap::Args;
use serde_json::{Value, json};

use super::{App, completion};
use crate::{
    exit::Failure,
    lifecycle::explain::{EXPLANATION_SCHEMA, Explanation, explain},
    output::{Cell, Show, Table},
};

/// Explain the state of a job: what it waits for, what was tried, what was refused
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  ftctl explain quickstart")]
pub struct Arguments {
    /// Id or name of the job
    #[arg(add = completion::jobs())]
    job: String,
}

impl Arguments {
    pub fn run(self, app: &mut App<'_>) -> Result<(), Failure> {
        let (world, record) = app.block_on(app.job(&self.job))?;
        let explanation = app.block_on(explain(&world, &record))?;
        app.output.show(&explanation)
    }
}

impl Show for Explanation {
    fn schema(&self) -> &'static str {
        EXPLANATION_SCHEMA
    }

    fn json(&self) -> Value {
        json!(self)
    }

    fn text(&self) -> String {
        let mut table = Table::new(&["TIME", "ATTEMPT", "WHAT HAPPENED"]);
        for event in &self.events {
            table.row([Cell::text(format!("{:.0}", event.time)), Cell::number(event.attempt.to_string()), Cell::text(&event.text)]);
        }
        format!("{} ({}): {}\n\n{}", self.id, self.state, self.now, table.render())
    }

    fn names(&self) -> Vec<String> {
        vec![self.id.to_string()]
    }
}
