//! `ftctl report`: the curves of one or more jobs as one page for a browser.

use std::{fs, path::PathBuf, time::Duration};

use clap::{Args, ValueEnum};
use serde_json::{Value, json};

use super::{App, completion, intent::Intent, replace::replace};
use crate::{
    exit::{Exit, Failure},
    job::{record::Record, wording},
    lifecycle::{
        curves::{self, Course, Moment},
        receipt,
    },
    output::{
        Show, format,
        page::{Chart, Fact, Series, page},
    },
};

/// Write the curves of jobs as one HTML page: loss, perplexity, learning rate, gradient norm, throughput, memory
///
/// The curves of several jobs share their charts. The page is self-contained: it loads nothing from a network.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  ftctl report quickstart\n  ftctl report night-1 night-2 --over time --out nights.html")]
pub struct Arguments {
    /// Id or name of each job
    #[arg(add = completion::jobs(), required = true, value_name = "JOB")]
    jobs: Vec<String>,
    /// The horizontal axis of the charts
    #[arg(long, value_enum, default_value_t)]
    over: Over,
    /// The file to write, `-` for stdout; an existing file is replaced [default: the ids with .html]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum Over {
    /// Optimizer steps
    #[default]
    Steps,
    /// Tokens trained on
    Tokens,
    /// Minutes since the first attempt began to train
    Time,
}

impl Over {
    fn told(self) -> &'static str {
        match self {
            Over::Steps => "steps",
            Over::Tokens => "tokens",
            Over::Time => "minutes",
        }
    }

    fn of(self, course: &Course, at: Moment) -> f64 {
        match self {
            Over::Steps => at.step as f64,
            Over::Tokens => at.step as f64 * course.tokens_per_step as f64,
            Over::Time => at.seconds / 60.0,
        }
    }
}

impl Arguments {
    pub fn run(self, app: &mut App<'_>) -> Result<(), Failure> {
        let mut jobs = Vec::new();
        for job in &self.jobs {
            let (world, record) = app.block_on(app.job(job))?;
            let course = app.block_on(curves::of(world.store.as_ref(), &record))?;
            if let Some(why) = &course.left_out {
                app.output.report().warn(why);
            }
            if course.curves.is_empty() {
                return Err(Failure::new(Exit::NotFound, format!("the job {} has not trained a step yet", record.id))
                    .fix(format!("ftctl status {} says where it is", record.id)));
            }
            let receipt = receipt::receipt(&record, world.clock.now());
            jobs.push((facts(&record, &receipt, &course), record, course));
        }
        let ids: Vec<String> = jobs.iter().map(|(_, record, _)| record.id.to_string()).collect();
        let (is_named, usual) = (self.out.is_some(), || PathBuf::from(format!("{}.html", ids.join("-"))));
        let out = self.out.unwrap_or_else(usual);
        if app.dry_run {
            return app.output.show(&Intent(vec![format!("write {}", out.display())]));
        }
        let charts = charts(self.over, &jobs.iter().map(|(_, _, course)| course).collect::<Vec<_>>());
        let facts = beside_each_other(jobs.into_iter().map(|(facts, ..)| facts));
        if out.as_os_str() == "-" {
            return app.output.data(page(&ids, &facts, &charts).as_bytes());
        }
        let target = app.working_directory.join(&out);
        let page = page(&ids, &facts, &charts);
        let written = if is_named { fs::write(&target, page) } else { replace(&target, page.as_bytes()) };
        written.map_err(|error| Failure::new(Exit::Failure, format!("cannot write {}: {error}", target.display())))?;
        app.output.show(&Written { out, curves: charts.into_iter().map(|chart| chart.title).collect() })
    }
}

/// One chart for each number that any of the jobs told.
fn charts(over: Over, courses: &[&Course]) -> Vec<Chart> {
    let mut charts: Vec<Chart> = Vec::new();
    for (job, course) in courses.iter().enumerate() {
        let along = |moments: &[Moment]| moments.iter().map(|at| over.of(course, *at)).collect::<Vec<_>>();
        for curve in &course.curves {
            let points = curve.points.iter().map(|(at, value)| (over.of(course, *at), *value)).collect();
            let series = Series { job, points, resumed: along(&course.resumed), checkpoints: along(&course.checkpoints) };
            match charts.iter_mut().find(|chart| chart.title == curve.title) {
                Some(chart) => chart.series.push(series),
                None => charts.push(Chart {
                    title: curve.title,
                    over: over.told(),
                    whole: over != Over::Time,
                    logarithmic: curve.title == curves::PERPLEXITY,
                    smoothed: curve.title == curves::LOSS,
                    series: vec![series],
                }),
            }
        }
    }
    charts
}

fn facts(record: &Record, receipt: &receipt::Receipt, course: &Course) -> Vec<(&'static str, String)> {
    let (plan, train) = (&record.plan, &record.plan.train);
    let batch = format!("{} tokens a step, in blocks of {}", format::number(course.tokens_per_step), train.block_size);
    let rate =
        format!("{}, {} {}", wording::value(&json!(train.optimizer)), train.learning_rate, wording::value(&json!(train.schedule)));
    vec![
        ("state", receipt.state.clone()),
        ("attempts", receipt.attempts.len().to_string()),
        ("time on a machine", format::duration(Duration::from_secs(receipt.machine_seconds))),
        ("cost", format!("{} at {} an hour", receipt.cost, plan.price_per_hour)),
        ("machine", format!("{}: {}", format::backend(&receipt.backend, receipt.simulated), course.device)),
        ("parameters", format::number(course.parameters)),
        ("batch", batch),
        ("optimizer", rate),
        ("precision", wording::value(&json!(train.precision))),
        ("dataset", record.dataset.as_ref().map_or_else(|| "-".to_owned(), |digest| digest.to_string().chars().take(12).collect())),
    ]
}

fn beside_each_other(jobs: impl Iterator<Item = Vec<(&'static str, String)>>) -> Vec<Fact> {
    let mut facts: Vec<Fact> = Vec::new();
    for (row, (name, value)) in jobs.flat_map(|job| job.into_iter().enumerate()) {
        match facts.get_mut(row) {
            Some((_, values)) => values.push(value),
            None => facts.push((name, vec![value])),
        }
    }
    facts
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
