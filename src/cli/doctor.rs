//! `ftctl doctor`: everything that would keep a job from running.

use std::{env, path::PathBuf};

use clap::Args;
use serde_json::{Value, json};

use super::{App, JobFile, Place, listeners};
use crate::{
    exit::{Exit, Failure},
    job::{
        finding::{Finding, Health},
        plan::Plan,
    },
    lifecycle::doctor::{self, DOCTOR_SCHEMA},
    output::{Cell, Show, Table, format},
    store::azure,
};

/// Check what a job needs here; each finding comes with its fix
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  ftctl doctor\n  ftctl doctor --job job.toml")]
pub struct Arguments {
    /// Also check this job file
    #[arg(long, value_name = "FILE")]
    job: Option<PathBuf>,
    #[command(flatten)]
    pub place: Place,
}

impl Arguments {
    pub fn run(self, app: &mut App<'_>) -> Result<(), Failure> {
        let directories = &app.settings.directories;
        let mut findings = doctor::examine(directories.state()?, directories.cache()?);
        let file = self.job.map(JobFile::new);
        let plan = file.as_ref().and_then(|file| file.plan(app).ok());
        findings.extend(backend(app, plan.as_ref())?);
        findings.extend(sign_in(app, plan.as_ref()));
        findings.extend(notify(app));
        let mut of_job = file.map(|file| job(app, &file)).transpose()?.unwrap_or_default();
        // A store that gives no answer gives none to the job either.
        of_job.retain(|finding| finding.health != Health::Bad || findings.iter().all(|told| told.message != finding.message));
        findings.extend(of_job);
        let bad = findings.iter().filter(|finding| finding.health == Health::Bad).count();
        let verdict =
            if bad == 0 { Ok(()) } else { Err(Failure::new(Exit::Failure, format!("{bad} of these would make a job fail"))) };
        app.output.conclude(&Findings(findings), verdict)
    }
}

/// The backend of the job, else that of the settings, and what it needs.
fn backend(app: &App<'_>, plan: Option<&Plan>) -> Result<Vec<Finding>, Failure> {
    let settings = app.settings.backend.value.as_str();
    let (name, world) = plan.map_or_else(|| (settings, app.world(settings)), |plan| (plan.backend(), app.world_of_plan(plan)));
    let world = match world {
        Ok(world) => world,
        Err(failure) => return Ok(vec![doctor::refused("backend and store", failure)]),
    };
    app.block_on(async {
        let mut findings = vec![doctor::backend_and_store(&world, name).await];
        findings.extend(doctor::exposure(&world, name));
        findings.extend(world.provider.check().await);
        Ok(findings)
    })
}

/// The state of the sign-in; only for a store that asks for one.
fn sign_in(app: &App<'_>, plan: Option<&Plan>) -> Option<Finding> {
    let variable = |name: &str| env::var(name).ok().filter(|value| !value.is_empty());
    let store = plan.map_or_else(|| app.settings.store().ok(), |plan| Some(plan.store.as_str()))?;
    azure::is_container(store).then(|| azure::sign_in(&variable))
}

/// Who is told of jobs, if anybody is to be.
fn notify(app: &App<'_>) -> Option<Finding> {
    let notify = &app.settings.notify.value;
    let told = match (&notify.webhook, notify.command.first()) {
        (None, None) => return None,
        (Some(_), None) => "a webhook".to_owned(),
        (None, Some(program)) => program.clone(),
        (Some(_), Some(program)) => format!("a webhook and {program}"),
    };
    if let Err(failure) = listeners::of(notify) {
        return Some(doctor::refused("notify", failure));
    }
    let missing = notify.command.first().filter(|program| which::which(program).is_err());
    // The worse of the two.
    if missing.is_none()
        && let Ok(Some(why)) = app.block_on(async { Ok(listeners::unreached(notify).await) })
    {
        let fix = "correct the address in the user's config.toml or FTCTL_NOTIFY_WEBHOOK, or let this machine reach it";
        return Some(Finding::notice("notify", format!("{why}; jobs run without it, and nobody is told"), fix));
    }
    Some(missing.map_or_else(
        || Finding::good("notify", told),
        |program| {
            Finding::bad(
                "notify",
                format!("there is no program {program}"),
                "correct the command of [notify] in the user's config.toml",
            )
        },
    ))
}

fn job(app: &App<'_>, file: &JobFile) -> Result<Vec<Finding>, Failure> {
    Ok(match app.block_on(file.priced(app)) {
        Ok((_, plan)) => {
            let mut findings = vec![Finding::good("job file", format!("{} on {}", plan.name, plan.backend()))];
            findings.extend(doctor::lacks_gpu(&plan));
            findings.extend(doctor::examine_material(&plan, app.settings.directories.cache()?));
            findings
        }
        Err(failure) => vec![doctor::refused("job file", failure)],
    })
}

/// Longest line of a finding, in characters.
const WIDTH: usize = 100;
/// Lines for findings that are in order; a backend may have a word on every region.
const LINES: usize = 3;

fn first_lines(message: &str) -> String {
    match message.lines().count().saturating_sub(LINES) {
        0 => message.to_owned(),
        more => {
            let shown: Vec<&str> = message.lines().take(LINES).collect();
            format!("{}\n… and {} (-o json shows all)", shown.join("\n"), format::of(more as u64, "more line"))
        }
    }
}

struct Findings(Vec<Finding>);

impl Show for Findings {
    fn schema(&self) -> &'static str {
        DOCTOR_SCHEMA
    }

    fn json(&self) -> Value {
        json!({ "findings": self.0 })
    }

    fn lines(&self) -> Vec<Value> {
        self.0.iter().map(|finding| json!(finding)).collect()
    }

    fn text(&self) -> String {
        let mut table = Table::new(&["", "WHAT", "FINDING"]);
        for finding in &self.0 {
            let mark = match finding.health {
                Health::Good => "ok",
                Health::Notice => "note",
                Health::Bad => "BAD",
            };
            let message = format::wrap(&finding.message, WIDTH);
            let shown = if finding.health == Health::Good { first_lines(&message) } else { message };
            table.row([Cell::text(mark), Cell::text(finding.what), Cell::lines(shown)]);
            if let Some(fix) = &finding.fix {
                // In one line: it may be a command to copy.
                table.row(["", "", &format!("fix: {fix}")].map(Cell::text));
            }
        }
        table.render()
    }

    fn names(&self) -> Vec<String> {
        self.0.iter().filter(|finding| finding.health == Health::Bad).map(|finding| finding.what.to_owned()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_order_is_short_and_what_is_not_is_whole() {
        let long = "a region and its quota ".repeat(50);
        let text = Findings(vec![Finding::good("quota", &long)]).text();
        assert_eq!(text.lines().count(), 1 + LINES + 1, "{text}");
        assert!(text.ends_with("… and 9 more lines (-o json shows all)"), "{text}");
        assert_eq!(Findings(vec![Finding::good("project", "devcloud")]).text().lines().count(), 2);
        let text = Findings(vec![Finding::bad("quota", &long, "ask for more")]).text();
        assert!(text.lines().count() > 10 && text.lines().all(|line| line.chars().count() < 120), "{text}");
    }
}
