//! `ftctl prices`: what GPUs cost. Needs no store, no job and no sign-in.

use std::collections::BTreeSet;

use clap::Args;
use serde_json::{Value, json};

use super::{App, completion};
use crate::{
    exit::{Exit, Failure},
    job::{units::Money, wording},
    output::{Cell, Show, Table, format},
    provider::{offer::Offer, registry},
};

/// Show what machines with GPUs cost an hour
///
/// By the dated tables in this program, the cheapest first. `ftctl plan` asks for today's price where it can.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  ftctl prices\n  ftctl prices --gpu v100 --spot\n  ftctl prices --backend gce -o json")]
pub struct Arguments {
    /// Only machines of this backend
    #[arg(long, value_name = "NAME", add = completion::backends())]
    backend: Option<String>,
    /// Only machines with this GPU, such as v100 or a100-80gb
    #[arg(long, value_name = "NAME", add = completion::gpus())]
    gpu: Option<String>,
    /// Sort by the price of spot machines, which may be preempted
    #[arg(long)]
    spot: bool,
}

impl Arguments {
    pub fn run(self, app: &mut App<'_>) -> Result<(), Failure> {
        let backends = self.backend.as_deref().map_or_else(|| registry::names().to_vec(), |backend| vec![backend]);
        let mut rows = Vec::new();
        for backend in backends {
            let backend = backend.to_owned();
            rows.extend(registry::offers(&backend)?.into_iter().map(|offer| Row { backend: backend.clone(), offer }));
        }
        if let Some(gpu) = &self.gpu {
            let known: BTreeSet<String> = rows.iter().map(|row| row.offer.gpu.clone()).collect();
            rows.retain(|row| row.offer.gpu.eq_ignore_ascii_case(gpu));
            if rows.is_empty() {
                return Err(no_such_gpu(gpu, self.backend.as_deref(), &known));
            }
        }
        let spot = self.spot;
        rows.sort_by_key(|row| (row.by(spot), row.offer.spot, row.offer.machine.clone()));
        app.output.show(&Prices { rows })
    }
}

fn no_such_gpu(gpu: &str, backend: Option<&str>, known: &BTreeSet<String>) -> Failure {
    let of = backend.map(|backend| format!(" of {backend}")).unwrap_or_default();
    let failure = Failure::new(Exit::Usage, format!("no machine{of} has a GPU called `{gpu}`"));
    let known: Vec<&str> = known.iter().map(String::as_str).collect();
    if known.is_empty() { failure } else { failure.fix(wording::suggest(gpu, &known, "GPUs")) }
}

struct Row {
    backend: String,
    offer: Offer,
}

impl Row {
    /// The price that counts; machines that are sold only as spot machines come last otherwise.
    fn by(&self, spot: bool) -> Money {
        let on_demand = self.offer.on_demand.unwrap_or(Money { micros: u64::MAX });
        if spot { self.offer.spot } else { on_demand }
    }

    fn json(&self) -> Value {
        let Offer { on_demand, spot, .. } = &self.offer;
        let mut value = json!(self.offer);
        value["backend"] = json!(self.backend);
        value["on_demand"] = json!(on_demand.map(Money::dollars));
        value["spot"] = json!(spot.dollars());
        value["currency"] = json!("USD");
        value
    }

    /// Where it is, in few words.
    fn place(&self) -> String {
        let Offer { region, zones, .. } = &self.offer;
        if zones.is_empty() {
            return (*region).to_owned();
        }
        format!("{region} and others: {}", format::of(zones.len() as u64, "zone"))
    }
}

struct Prices {
    rows: Vec<Row>,
}

impl Prices {
    /// Says which prices these are, and what they include.
    fn notes(&self) -> String {
        let disk = self.rows.iter().find_map(|row| Some((&row.backend, row.offer.disk_gb?)));
        let disk = disk.map(|(backend, size)| format!("; on {backend} with a disk of {size} GB")).unwrap_or_default();
        format!(
            "USD an hour by the lists of these dates{disk}. Without compute.processes_per_node a job trains on all GPUs of its machine. `ftctl plan` asks for today's price."
        )
    }
}

/// To a hundredth of a cent.
fn usd(price: Money) -> String {
    format!("{:.4}", price.dollars())
}

impl Show for Prices {
    fn schema(&self) -> &'static str {
        "ftctl.price-list/1"
    }

    fn json(&self) -> Value {
        json!({ "prices": self.lines() })
    }

    fn lines(&self) -> Vec<Value> {
        self.rows.iter().map(Row::json).collect()
    }

    fn text(&self) -> String {
        if self.rows.is_empty() {
            return "this backend sells nothing; `ftctl prices --backend gce` lists machines with GPUs".to_owned();
        }
        let header = ["BACKEND", "GPU", "GPUS", "OF EACH", "MACHINE", "VCPUS", "MEMORY", "SPOT", "ON DEMAND", "DATE", "WHERE"];
        let mut table = Table::new(&header);
        for row in &self.rows {
            let Offer { gpu, gpus, gpu_memory_gb, machine, cpus, memory_gb, on_demand, spot, date, .. } = &row.offer;
            table.row([
                Cell::text(&row.backend),
                Cell::text(gpu),
                Cell::number(gpus.to_string()),
                Cell::number(format!("{gpu_memory_gb} GB")),
                Cell::text(machine),
                Cell::number(cpus.to_string()),
                Cell::number(format!("{memory_gb} GB")),
                Cell::number(usd(*spot)),
                Cell::number(on_demand.map_or_else(|| "-".to_owned(), usd)),
                Cell::text(*date),
                Cell::text(row.place()),
            ]);
        }
        format!("{}\n\n{}", table.render(), self.notes())
    }

    fn names(&self) -> Vec<String> {
        self.rows.iter().map(|row| row.offer.machine.clone()).collect()
    }
}
