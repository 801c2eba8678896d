//! `ftctl bill`: the resources that cost money now, and the receipt of one job.

use std::time::Duration;

use clap::Args;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::{App, Place, completion};
use crate::{
    exit::Failure,
    job::{
        record::Record,
        units::{Money, Span},
        wording,
    },
    lifecycle::{
        Resource, World, observe,
        receipt::{self, Receipt},
        results::{self, Results},
    },
    output::{Cell, Show, Table, format},
};

/// Show what is billing now, or the receipt of a job
///
/// Without --backend also on every backend that costs money and has unfinished jobs of this store.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  ftctl bill\n  ftctl bill --since 7d\n  ftctl bill quickstart -o json")]
pub struct Arguments {
    /// Id or name of a job: its receipt
    #[arg(add = completion::jobs())]
    job: Option<String>,
    /// Costs of this store's jobs in the last 90s, 45m, 2h, 7d
    #[arg(long, value_name = "DURATION", conflicts_with = "job")]
    since: Option<Span>,
    #[command(flatten)]
    pub place: Place,
}

impl Arguments {
    pub fn run(self, app: &mut App<'_>) -> Result<(), Failure> {
        if let Some(job) = &self.job {
            let settled = app.block_on(settle(app, job))?;
            return app.output.show(&settled);
        }
        if let Some(span) = self.since {
            let spent = app.block_on(spent(app, span))?;
            return app.output.show(&spent);
        }
        let resources = app.block_on(async {
            let mut resources = Vec::new();
            for world in app.worlds(&self.place).await? {
                let simulated = world.provider.capabilities().simulated;
                // By the clock that says since when they exist.
                let now = world.provider.now().await.unwrap_or_else(|| world.clock.now());
                resources.extend(world.provider.list().await?.into_iter().map(|resource| Billed { resource, now, simulated }));
            }
            Ok(resources)
        })?;
        app.output.show(&Billing { resources })
    }
}

async fn settle(app: &App<'_>, job: &str) -> Result<Settled, Failure> {
    let (world, record) = app.job(job).await?;
    settled(&world, &record).await
}

pub async fn settled(world: &World, record: &Record) -> Result<Settled, Failure> {
    let results = results::of(world.store.as_ref(), record).await?;
    if let Some(why) = &results.left_out {
        world.report.warn(why);
    }
    let now = world.clock.now();
    let record = observe::as_it_stands(world.store.as_ref(), record.clone(), now).await?;
    Ok(Settled { receipt: receipt::receipt(&record, now), results })
}

async fn spent(app: &App<'_>, span: Span) -> Result<Spent, Failure> {
    let world = app.world(&app.settings.backend.value)?;
    let now = world.clock.now();
    let since = now.checked_sub(span.0).unwrap_or(Timestamp::MIN);
    let (receipts, unreadable) = receipt::since(world.store.as_ref(), since, now).await?;
    for message in unreadable {
        world.report.warn(&message);
    }
    Ok(Spent { since, receipts })
}

/// The cost of jobs since a time.
struct Spent {
    since: Timestamp,
    receipts: Vec<Receipt>,
}

impl Spent {
    /// Money is only added to money of its kind.
    fn cost(&self, simulated: bool) -> Money {
        self.receipts.iter().filter(|receipt| receipt.simulated == simulated).map(|receipt| receipt.cost).sum()
    }
}

impl Show for Spent {
    fn schema(&self) -> &'static str {
        "ftctl.spent/1"
    }

    fn json(&self) -> Value {
        json!({ "since": self.since, "cost": self.cost(false), "simulated_cost": self.cost(true), "receipts": self.lines() })
    }

    fn lines(&self) -> Vec<Value> {
        self.receipts.iter().map(|receipt| json!(receipt)).collect()
    }

    fn text(&self) -> String {
        let mut table = Table::new(&["JOB", "BACKEND", "STATE", "ATTEMPTS", "MACHINE", "COST"]);
        for receipt in &self.receipts {
            table.row([
                Cell::text(receipt.id.to_string()),
                Cell::text(format::backend(&receipt.backend, receipt.simulated)),
                Cell::text(&receipt.state),
                Cell::number(receipt.attempts.len().to_string()),
                Cell::number(format::duration(Duration::from_secs(receipt.machine_seconds))),
                Cell::number(receipt.cost.to_string()),
            ]);
        }
        let jobs = format::of(self.receipts.len() as u64, "job");
        let rehearsed = self.receipts.iter().any(|receipt| receipt.simulated);
        let apart = if rehearsed { format!("; {} on simulated clouds, which is not real", self.cost(true)) } else { String::new() };
        format!("{}\n{jobs}, {} since {:.0}{apart}", table.render(), self.cost(false), self.since)
    }

    fn names(&self) -> Vec<String> {
        self.receipts.iter().map(|receipt| receipt.id.to_string()).collect()
    }
}

/// A resource that exists at a backend.
struct Billed {
    resource: Resource,
    now: Timestamp,
    /// Its money is not real.
    simulated: bool,
}

impl Billed {
    fn so_far(&self) -> Money {
        self.resource.price_per_hour.for_time(Duration::try_from(self.now.duration_since(self.resource.since)).unwrap_or_default())
    }
}

/// The resources that exist at the backends.
struct Billing {
    resources: Vec<Billed>,
}

impl Billing {
    fn per_hour(&self) -> Money {
        self.resources.iter().filter(|billed| !billed.simulated).map(|billed| billed.resource.price_per_hour).sum()
    }
}

impl Show for Billing {
    fn schema(&self) -> &'static str {
        "ftctl.bill/1"
    }

    fn json(&self) -> Value {
        json!({ "price_per_hour": self.per_hour(), "resources": self.lines() })
    }

    fn lines(&self) -> Vec<Value> {
        let line = |billed: &Billed| {
            let mut value = json!(billed.resource);
            value["so_far"] = json!(billed.so_far());
            value["simulated"] = json!(billed.simulated);
            value
        };
        self.resources.iter().map(line).collect()
    }

    fn text(&self) -> String {
        let mut table = Table::new(&["MACHINE", "JOB", "SINCE", "PER HOUR", "SO FAR"]);
        for billed in &self.resources {
            let Billed { resource, now, simulated } = billed;
            table.row([
                Cell::text(format::backend(&resource.name, *simulated)),
                Cell::text(resource.attempt.job.to_string()),
                Cell::number(format::age(resource.since, *now)),
                Cell::number(resource.price_per_hour.to_string()),
                Cell::number(billed.so_far().to_string()),
            ]);
        }
        format!("{}\n{}, {} an hour", table.render(), format::of(self.resources.len() as u64, "machine"), self.per_hour())
    }

    fn names(&self) -> Vec<String> {
        self.resources.iter().map(|billed| billed.resource.name.clone()).collect()
    }
}

/// A job's receipt, and what it brought.
pub struct Settled {
    pub receipt: Receipt,
    pub results: Results,
}

impl Show for Settled {
    fn schema(&self) -> &'static str {
        receipt::RECEIPT_SCHEMA
    }

    fn json(&self) -> Value {
        let mut value = json!(self.receipt);
        value["results"] = json!(self.results);
        value
    }

    fn text(&self) -> String {
        let Self { receipt, results } = self;
        let time = |seconds| format::duration(Duration::from_secs(seconds));
        let mut table = Table::default();
        table.pair("job", receipt.id.to_string());
        table.pair("state", &receipt.state);
        table.pair("steps", format::number(results.step));
        if let Some(perplexity) = perplexity(results) {
            table.pair("perplexity", perplexity);
        }
        table.pair("attempts", attempts(receipt));
        let for_one =
            if receipt.waited_seconds > 0 { format!(", {} waiting for one", time(receipt.waited_seconds)) } else { String::new() };
        table.pair("time", format!("{} in all, {} on a machine{for_one}", time(receipt.seconds), time(receipt.machine_seconds)));
        let still = if receipt.may_still_bill { "; a machine may still exist and cost more" } else { "" };
        let wasted = if receipt.wasted > Money::ZERO { format!(", {} of it wasted", receipt.wasted) } else { String::new() };
        let backend = format::backend(&receipt.backend, receipt.simulated);
        table.pair("cost", format!("{} on {backend}{wasted}{still}", receipt.cost));
        if let Some(lasting) = receipt.lasting_cost {
            table.pair("on demand", format!("{lasting} for the same machine time without preemption"));
        }
        let sample = results.sample.as_ref().map(|text| format!("\n\nThe model wrote:\n{}", indent(text))).unwrap_or_default();
        table.render() + &sample
    }

    fn names(&self) -> Vec<String> {
        vec![self.receipt.id.to_string()]
    }
}

/// An attempt that never had a machine is none.
fn attempts(receipt: &Receipt) -> String {
    let begun = receipt.attempts.iter().filter(|attempt| attempt.started.is_some()).count();
    let lost = wording::lost(receipt.lost_steps);
    match begun {
        0 => "none had a machine".to_owned(),
        1 => format!("1 attempt, {lost}"),
        begun => format!("{begun} attempts, {lost}"),
    }
}

pub fn perplexity(results: &Results) -> Option<String> {
    let (first, last) = (results.first_perplexity?, results.last_perplexity?);
    let change = match results.best {
        Some(best) if best.perplexity < first.min(last) => {
            format!("the best was {:.1} at step {}; train.keep_best keeps those weights", best.perplexity, best.step)
        }
        _ if last <= first => format!("{:.1} times lower", first / last),
        _ => format!("{:.1} times higher: the model got worse, and train.keep_best keeps the best weights", last / first),
    };
    Some(format!("{first:.1} before, {last:.1} after ({change}), on text held out"))
}

pub fn indent(text: &str) -> String {
    text.lines().map(|line| format!("    {line}")).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lifecycle::results::Best;

    #[test]
    fn validation_that_gets_worse_is_said() {
        let told = |first, best: Option<(u64, f64)>, last| {
            let best = best.map(|(step, perplexity)| Best { step, perplexity });
            perplexity(&Results { first_perplexity: Some(first), last_perplexity: Some(last), best, ..Results::default() }).unwrap()
        };
        for (told, expected) in [
            (told(500.0, Some((90, 250.0)), 250.0), "500.0 before, 250.0 after (2.0 times lower), on text held out"),
            (told(500.0, Some((50, 420.3)), 949.1), "after (the best was 420.3 at step 50; train.keep_best keeps those weights)"),
            (told(500.0, Some((50, 600.0)), 1000.0), "after (2.0 times higher: the model got worse, and train.keep_best"),
            (told(500.0, None, 250.0), "(2.0 times lower)"),
        ] {
            assert!(told.contains(expected), "{told}");
        }
    }
}
