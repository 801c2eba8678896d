//! `ftctl sweep`: what is left over at the backend.

use clap::Args;
use serde_json::{Value, json};

use super::{App, Place};
use crate::{
    exit::Failure,
    lifecycle::sweep::{self, Leftover, SWEEP_SCHEMA},
    output::{Cell, Show, Table, format},
};

/// Destroy machines that nobody needs any more, found from the backend's own truth
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  ftctl sweep --dry-run\n  ftctl sweep --expired -y")]
pub struct Arguments {
    /// Only machines past their time to live
    #[arg(long)]
    expired: bool,
    #[command(flatten)]
    pub place: Place,
}

impl Arguments {
    pub fn run(self, app: &mut App<'_>) -> Result<(), Failure> {
        let world = app.world(&app.settings.backend.value)?;
        let leftovers = app.block_on(sweep::find(&world, self.expired))?;
        if !app.dry_run && !leftovers.is_empty() {
            app.output.confirm(&format!("Destroy {}?", format::of(leftovers.len() as u64, "machine")), app.yes)?;
            app.block_on(sweep::reap(&world, &leftovers))?;
        }
        app.output.show(&Swept { leftovers, destroyed: !app.dry_run })
    }
}

struct Swept {
    leftovers: Vec<Leftover>,
    destroyed: bool,
}

impl Show for Swept {
    fn schema(&self) -> &'static str {
        SWEEP_SCHEMA
    }

    fn json(&self) -> Value {
        json!({ "destroyed": self.destroyed, "leftovers": self.leftovers })
    }

    fn lines(&self) -> Vec<Value> {
        self.leftovers.iter().map(|leftover| json!(leftover)).collect()
    }

    fn text(&self) -> String {
        let mut table = Table::new(&["MACHINE", "JOB", "WHY"]);
        for Leftover { resource, why } in &self.leftovers {
            table.row([Cell::text(&resource.name), Cell::text(resource.attempt.job.to_string()), Cell::text(why)]);
        }
        let verb = if self.destroyed { "destroyed" } else { "found" };
        format!("{}\n{} {verb}", table.render(), self.leftovers.len())
    }

    fn names(&self) -> Vec<String> {
        self.leftovers.iter().map(|leftover| leftover.resource.name.clone()).collect()
    }
}
