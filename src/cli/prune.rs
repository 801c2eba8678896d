//! `ftctl prune`: leftovers at the backend.

use clap::Args;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::{App, Place, machines};
use crate::{
    exit::Failure,
    lifecycle::{
        down,
        prune::{self, Leftover, PRUNE_SCHEMA},
    },
    output::{Cell, Show, Table, format},
    store::prune::Unneeded,
};

/// Find leftover machines on the backend and destroy them
///
/// It looks at one backend: that of --backend, else that of the settings, whatever the jobs of the store name. A machine is left
/// over when its time to live has passed, or when its job is finished or unknown to this store. Machines of other users and stores
/// are left alone; the backend ends them when their time to live has passed. A machine of Compute Engine that is switched off keeps
/// its disk until its owner prunes it. What belongs to no job goes as well: a cluster that no job is on, what image builds left.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  ftctl prune --dry-run\n  ftctl prune --expired -y\n  ftctl prune --data --dry-run")]
pub struct Arguments {
    /// Only machines past their time to live
    #[arg(long)]
    expired: bool,
    /// Machines of other users and stores as well: shows whose they are, and asks
    #[arg(long)]
    everybody: bool,
    /// Also remove data that no job and no name uses: datasets, incomplete jobs, file contents; only if older than a day
    #[arg(long, conflicts_with = "expired")]
    data: bool,
    #[command(flatten)]
    pub place: Place,
}

impl Arguments {
    pub fn run(self, app: &mut App<'_>) -> Result<(), Failure> {
        let backend = app.settings.backend.value.clone();
        let world = app.world_of(&backend, self.everybody)?;
        let leftovers = app.block_on(prune::find(&world, self.expired))?;
        let mut rest = if self.expired { Vec::new() } else { app.block_on(down::tidy(&world, true))? };
        // A cluster with nodes is both.
        rest.retain(|name| leftovers.iter().all(|leftover| leftover.resource.name != *name));
        let everybody = self.everybody.then(|| (backend, world.clock.now()));
        let mut pruned = Pruned { leftovers, rest, data: None, destroyed: false, everybody };
        pruned.data = if self.data { Some(app.block_on(prune::find_data(&world, Timestamp::now()))?) } else { None };
        let names = pruned.names();
        if !app.dry_run && !names.is_empty() {
            if self.everybody {
                world.report.line(&pruned.table());
            }
            let others = machines::of_others(pruned.leftovers.iter().map(|leftover| &leftover.resource));
            app.output.confirm(&format!("{others}Destroy {}?", names.join(", ")), app.yes)?;
            app.block_on(prune::reap(&world, &pruned.leftovers))?;
        }
        if !app.dry_run && !pruned.rest.is_empty() {
            // The machines may have taken some of it along.
            app.block_on(down::tidy(&world, false))?;
        }
        if let Some(data) = pruned.data.as_ref().filter(|data| !app.dry_run && !data.is_empty()) {
            app.output.confirm(&format!("Remove {} from the store?", in_words(data)), app.yes)?;
            app.block_on(prune::remove_data(&world, data))?;
        }
        pruned.destroyed = !app.dry_run;
        app.output.show(&pruned)
    }
}

const NO_JOB: &str = "no job needs it";

fn in_words(data: &Unneeded) -> String {
    let (datasets, jobs) = (format::of(data.datasets.len() as u64, "dataset"), format::of(data.jobs.len() as u64, "job"));
    format!("{datasets}, {jobs} without a record, {} ({})", format::of(data.objects, "object"), format::bytes(data.bytes))
}

struct Pruned {
    leftovers: Vec<Leftover>,
    /// Resources of no job.
    rest: Vec<String>,
    /// Unneeded data of the store, when it was asked for.
    data: Option<Unneeded>,
    destroyed: bool,
    /// The backend and its time, where machines of others are meant as well.
    everybody: Option<(String, Timestamp)>,
}

impl Pruned {
    fn table(&self) -> String {
        let Some((backend, now)) = &self.everybody else { return self.own_table() };
        let mut table = Table::new(&[&machines::COLUMNS[..], &["WHY"]].concat());
        for Leftover { resource, why } in &self.leftovers {
            table.row(machines::row(backend, resource, *now).into_iter().chain([Cell::text(why)]));
        }
        for name in &self.rest {
            table.row([name.as_str(), "-", "-", "-", backend, NO_JOB].map(Cell::text));
        }
        table.render()
    }

    fn own_table(&self) -> String {
        let mut table = Table::new(&["MACHINE", "JOB", "WHY"]);
        for Leftover { resource, why } in &self.leftovers {
            table.row([Cell::text(&resource.name), Cell::text(resource.attempt.job.to_string()), Cell::text(why)]);
        }
        for name in &self.rest {
            table.row([name.as_str(), "-", NO_JOB].map(Cell::text));
        }
        table.render()
    }
}

impl Show for Pruned {
    fn schema(&self) -> &'static str {
        PRUNE_SCHEMA
    }

    fn json(&self) -> Value {
        json!({ "destroyed": self.destroyed, "leftovers": self.leftovers, "rest": self.rest, "data": self.data })
    }

    fn lines(&self) -> Vec<Value> {
        self.leftovers.iter().map(|leftover| json!(leftover)).collect()
    }

    fn text(&self) -> String {
        let verb = if self.destroyed { "destroyed" } else { "found" };
        let data = self.data.as_ref().map(|data| format!("\nin the store: {}", in_words(data))).unwrap_or_default();
        format!("{}\n{} {verb}{data}", self.table(), self.names().len())
    }

    fn names(&self) -> Vec<String> {
        self.leftovers.iter().map(|leftover| leftover.resource.name.clone()).chain(self.rest.iter().cloned()).collect()
    }
}
