//! Taking over a job that somebody else submitted.

use std::future::Future;

use clap::Args;

use super::{App, follow};
use crate::{
    exit::Failure,
    job::{plan::Plan, record::Record},
    lifecycle::World,
    output::Table,
    provider::registry,
};

#[derive(Debug, Clone, Copy, Default, Args)]
pub struct Adopt {
    /// Also follow and restart jobs submitted elsewhere. Lists what would start and asks first
    #[arg(long)]
    pub adopt: bool,
}

impl Adopt {
    /// Opens a job. A signal does not end the program meanwhile, but at the question of [`Adopt::ask`], which follows, it has to.
    pub async fn opened<T>(self, app: &App<'_>, work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
        if self.adopt && !app.yes { work.await } else { follow::opened(work).await }
    }

    /// Without the flag, and for a job that is driven anyhow, nothing is asked: then the submitter drives it, and this invocation
    /// watches.
    pub fn ask(self, app: &App<'_>, world: &mut World, record: &Record) -> Result<(), Failure> {
        if !self.adopt || world.adoption.may_drive(record) {
            return Ok(());
        }
        let asked_for = format!("{} asks for\n{}", record.id, asked_for(&record.plan));
        if app.yes {
            app.output.report().line(&asked_for);
        }
        app.output.confirm(&format!("{asked_for}\nDrive it from here?"), app.yes)?;
        world.adoption.adopt(record);
        Ok(())
    }
}

/// The acts that a plan asks of this machine, or of the account that is signed in on it.
fn asked_for(plan: &Plan) -> String {
    let default = |text: &Option<String>, absent: &str| text.clone().unwrap_or_else(|| absent.to_owned());
    let (base, builder) = (default(&plan.image.base, "ftctl's own base"), default(&plan.image.builder, "ftctl's own builder"));
    let mut table = Table::default();
    table.pair("backend", plan.backend());
    table.pair("image", plan.image().map_or_else(|| format!("built here: {base}, with {builder}"), str::to_owned));
    for (name, value) in registry::rights(&plan.compute).rows() {
        table.pair(name, value);
    }
    let variables = plan.environment.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>();
    table.pair("variables", if variables.is_empty() { "none".to_owned() } else { variables.join(", ") });
    let fetched: Vec<String> = plan.of_hub().into_iter().map(|of_hub| of_hub.text).collect();
    if !fetched.is_empty() {
        table.pair("of the hub", format!("{}, fetched with your token, and put into the store", fetched.join(", ")));
    }
    if let Some(address) = plan.tracking.server() {
        table.pair("tracking", address);
    }
    table.pair("price", format!("{} an hour, {} at most", plan.price_per_hour, plan.worst_case));
    table.render()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        job::{compute::Compute, docker::DockerPlan},
        provider::conformance,
    };

    #[test]
    fn a_user_sees_what_they_take_over() {
        let mut plan = conformance::plan();
        *plan.compute = Compute::Docker(DockerPlan {
            image: Some("evil/image".to_owned()),
            user: Some("0:0".to_owned()),
            mounts: vec!["/:/host".to_owned()],
            network: "host".to_owned(),
            ..DockerPlan::default()
        });
        plan.environment = [("OMP_TOOL_LIBRARIES".to_owned(), "evil.so".to_owned())].into();
        plan.tracking.mlflow = Some("https://evil.example".to_owned());
        let shown = asked_for(&plan);
        for part in ["docker", "OMP_TOOL_LIBRARIES=evil.so", "evil/image", "0:0", "/:/host", "host", "https://evil.example"] {
            assert!(shown.contains(part), "{shown}");
        }
    }
}
