//! `ftctl report`: a job's curves as one page for a browser.

use std::{fs, path::PathBuf};

use clap::Args;
use serde_json::{Value, json};

use super::{App, intent::Intent};
use crate::{
    exit::{Exit, Failure},
    lifecycle::{
        curves::{self, Curve},
        receipt::{self, Receipt},
    },
    output::{
        Show, format,
        page::{Chart, page},
    },
};

/// Write a job's curves as one HTML page: loss, perplexity, learning rate, gradient norm, throughput, memory
///
/// The page is complete in itself: it loads nothing from any network.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  ftctl report quickstart\n  ftctl report quickstart --out quickstart.html")]
pub struct Arguments {
    /// Id or name of the job
    job: String,
    /// The file to write, over what is there [default: the job's id, .html]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

impl Arguments {
    pub fn run(self, app: &mut App<'_>) -> Result<(), Failure> {
        let (world, record) = app.block_on(app.job(&self.job))?;
        let curves = app.block_on(curves::of(world.store.as_ref(), &record))?;
        if curves.is_empty() {
            return Err(Failure::new(Exit::NotFound, format!("the job {} has not trained a step yet", record.id))
                .fix(format!("ftctl status {} says where it is", record.id)));
        }
        let out = self.out.unwrap_or_else(|| PathBuf::from(format!("{}.html", record.id)));
        if app.dry_run {
            return app.output.show(&Intent(vec![format!("write {}", out.display())]));
        }
        let receipt = receipt::receipt(&record, world.clock.now());
        let charts: Vec<Chart<'_>> = curves.iter().map(|Curve { title, points }| Chart { title, points }).collect();
        let target = app.working_directory.join(&out);
        fs::write(&target, page(record.id.as_str(), &facts(&receipt), &charts))
            .map_err(|error| Failure::new(Exit::Failure, format!("cannot write {}: {error}", target.display())))?;
        app.output.show(&Written { out, curves: curves.into_iter().map(|curve| curve.title).collect() })
    }
}

fn facts(receipt: &Receipt) -> Vec<(&'static str, String)> {
    vec![
        ("state", receipt.state.clone()),
        ("backend", receipt.backend.clone()),
        ("attempts", receipt.attempts.len().to_string()),
        ("time", format::duration(std::time::Duration::from_secs(receipt.seconds))),
        ("cost", receipt.cost.to_string()),
    ]
}

struct Written {
    out: PathBuf,
    curves: Vec<&'static str>,
}

impl Show for Written {
    fn schema(&self) -> &'static str {
        "ftctl.report/1"
    }

    fn json(&self) -> Value {
        json!({ "path": self.out.display().to_string(), "curves": self.curves })
    }

    fn text(&self) -> String {
        self.out.display().to_string()
    }

    fn names(&self) -> Vec<String> {
        vec![self.text()]
    }
}
