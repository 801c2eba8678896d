//! `ftctl drill`: rehearsals.

use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::{App, adopt::Adopt, completion, intent::Intent};
use crate::{
    exit::Failure,
    lifecycle::{
        drill::{self, DRILL_SCHEMA, Drill},
        session,
    },
    output::{Show, Table, format},
};

/// Rehearse a failure on a running job
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  ftctl drill preempt quickstart")]
pub struct Arguments {
    #[command(subcommand)]
    drill: Kind,
}

#[derive(Debug, Subcommand)]
enum Kind {
    /// Preempt a running job's machine, recover the job, and report what that cost
    Preempt {
        /// Id or name of the job
        #[arg(add = completion::jobs())]
        job: String,
        #[command(flatten)]
        adopt: Adopt,
    },
}

impl Arguments {
    pub fn run(self, app: &mut App<'_>) -> Result<(), Failure> {
        let Kind::Preempt { job, adopt } = self.drill;
        let (mut world, record) = app.block_on(app.job(&job))?;
        if app.dry_run {
            let target = session::machine(&record)?;
            let recover = format!("recover {} in attempt {}", target.job, target.attempt + 1);
            let acts = vec![format!("take {} away", target.machine_name()), recover];
            return app.output.show(&Intent(acts));
        }
        adopt.ask(app, &mut world, &record)?;
        let drill = app.block_on(drill::preempt(&world, &record.id))?;
        app.output.show(&drill)
    }
}

impl Show for Drill {
    fn schema(&self) -> &'static str {
        DRILL_SCHEMA
    }

    fn json(&self) -> Value {
        json!(self)
    }

    fn text(&self) -> String {
        let mut table = Table::default();
        table.pair("job", self.id.to_string());
        table.pair("preempted attempt", self.attempt.to_string());
        table.pair("recovery", format::duration(Duration::try_from_secs_f64(self.recovery_seconds).unwrap_or_default()));
        table.pair("steps repeated", format::number(self.lost_steps));
        table.pair("money wasted", self.wasted.to_string());
        table.render()
    }

    fn names(&self) -> Vec<String> {
        vec![self.id.to_string()]
    }
}
