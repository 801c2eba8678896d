//! `ftctl devcloud`: a cloud to rehearse with.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    fs, io,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    sync::Arc,
};

use clap::{Args, Subcommand};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::signal::unix::{SignalKind, signal};

use super::{App, world::executable};
use crate::{
    devcloud::{azureml, gce},
    exit::{Exit, Failure},
    output::Show,
};

/// Run a simulated cloud on this machine, to rehearse without cost
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  ftctl devcloud gce --speed 60 --script faults.json")]
pub struct Arguments {
    #[command(subcommand)]
    cloud: Cloud,
}

#[derive(Debug, Subcommand)]
enum Cloud {
    Azureml(Azureml),
    Gce(Gce),
}

/// Simulate Google's Compute Engine until interrupted; each machine is a process that runs its startup script
///
/// Clients need the token that it prints; each start makes a new one. Without --engine no image is pulled: the agent is this ftctl,
/// and the trainer is looked for in `DEVCLOUD_IMAGE_PATH` and `PATH`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  export DEVCLOUD_IMAGE_PATH=$(dirname $(ftctl build --print path))\n  ftctl devcloud gce >devcloud.env &   # later: set -a; . ./devcloud.env\n  ftctl devcloud gce --speed 60 --script faults.json"
)]
struct Gce {
    #[command(flatten)]
    common: Common,
    /// Name of the project
    #[arg(long, default_value = "devcloud")]
    project: String,
}

// What all clouds have. A doc comment here would take the place of theirs.
#[derive(Debug, Args)]
struct Common {
    /// Port on 127.0.0.1; 0 takes a free one
    #[arg(long, default_value_t = 0)]
    port: u16,
    /// Simulated seconds that pass in a second
    #[arg(long, default_value_t = 1.0, value_parser = speed)]
    speed: f64,
    /// Faults to inject, as JSON
    #[arg(long, value_name = "FILE")]
    script: Option<PathBuf>,
    /// Where machines have their disks [default: a temporary directory]
    #[arg(long, value_name = "DIR")]
    disks: Option<PathBuf>,
    /// Machines start real containers, from images that they pull, on this computer's Docker Engine
    #[arg(long)]
    engine: bool,
}

fn speed(text: &str) -> Result<f64, String> {
    let speed: f64 = text.parse().map_err(|_| format!("`{text}` is not a number"))?;
    if (1.0..=100_000.0).contains(&speed) { Ok(speed) } else { Err("it is between 1 and 100000".to_owned()) }
}

/// Simulate an Azure Machine Learning workspace until interrupted; each node of a job is a process that runs its command
///
/// Clients sign in by the managed identity that it prints; each start has another one. Without --engine no image is fetched: nodes
/// run this ftctl, and find the trainer through `DEVCLOUD_IMAGE_PATH` and `PATH`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  export DEVCLOUD_IMAGE_PATH=$(dirname $(ftctl build --print path))\n  ftctl devcloud azureml >devcloud.env &   # later: set -a; . ./devcloud.env\n  ftctl devcloud azureml --speed 60 --script faults.json"
)]
struct Azureml {
    #[command(flatten)]
    common: Common,
    /// Id of the subscription
    #[arg(long, default_value = "00000000-0000-0000-0000-000000000001")]
    subscription: String,
    /// Name of the resource group
    #[arg(long, default_value = "devcloud")]
    resource_group: String,
    /// Name of the workspace
    #[arg(long, default_value = "devcloud")]
    workspace: String,
    /// Region of the workspace
    #[arg(long, default_value = "eastus")]
    location: String,
    /// Serve https with a temporary certificate, which clients must trust
    #[arg(long)]
    tls: bool,
}

impl Arguments {
    pub fn run(self, app: &mut App<'_>) -> Result<(), Failure> {
        match self.cloud {
            Cloud::Gce(gce) => gce.run(app),
            Cloud::Azureml(azureml) => azureml.run(app),
        }
    }
}

fn failed(what: &str, error: &dyn std::fmt::Display) -> Failure {
    Failure::new(Exit::Failure, format!("cannot {what}: {error}"))
}

/// The variables that the processes of every simulated machine get.
fn variables() -> Vec<(OsString, OsString)> {
    std::env::vars_os().filter(|(name, _)| name != "FTCTL_OUTPUT").collect()
}

/// Starts a cloud, says how it is reached, and ends it when this program is to end.
fn stay<C>(
    app: &mut App<'_>,
    start: impl Future<Output = io::Result<C>>,
    environment: impl FnOnce(&C) -> Ready,
    shut_down: impl FnOnce(&C),
) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| failed("start the asynchronous runtime", &error))?;
    runtime.block_on(async {
        let cloud = start.await.map_err(|error| failed("listen", &error))?;
        let shown = app.output.show(&environment(&cloud));
        if shown.is_ok() {
            let mut terminated = signal(SignalKind::terminate()).map_err(|error| failed("wait for signals", &error))?;
            tokio::select! {
                _ = tokio::signal::ctrl_c() => {}
                _ = terminated.recv() => {}
            }
        }
        shut_down(&cloud);
        shown
    })
}

impl Common {
    fn listen(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.port))
    }

    fn script<S: Default + DeserializeOwned>(&self, known: &str, schema: fn(&S) -> &str) -> Result<S, Failure> {
        self.script.as_ref().map_or_else(|| Ok(S::default()), |path| read_script(path, known, schema))
    }

    /// Where machines have their disks. They run in folders of their own, so the name must be good from everywhere.
    fn state(&self, temporary: &tempfile::TempDir) -> Result<PathBuf, Failure> {
        let disks = self.disks.as_deref().unwrap_or(temporary.path());
        let state = fs::create_dir_all(disks).and_then(|()| disks.canonicalize());
        state.map_err(|error| failed(&format!("make the directory of disks {}", disks.display()), &error))
    }
}

impl Gce {
    fn run(self, app: &mut App<'_>) -> Result<(), Failure> {
        let temporary = tempfile::tempdir().map_err(|error| failed("make a temporary directory", &error))?;
        let options = gce::Options {
            listen: self.common.listen(),
            project: self.project.clone(),
            speed: self.common.speed,
            state: self.common.state(&temporary)?,
            script: self.common.script(gce::SCRIPT_SCHEMA, |script: &gce::Script| &script.schema)?,
            executable: executable()?,
            variables: variables(),
            engine: self.common.engine,
        };
        let ready = |cloud: &Arc<gce::Devcloud>| Ready {
            service: "FTCTL_ENDPOINT_GCE",
            environment: cloud.client_environment(&self.project),
        };
        stay(app, gce::Devcloud::start(options), ready, |cloud| cloud.shut_down())
    }
}

impl Azureml {
    fn run(self, app: &mut App<'_>) -> Result<(), Failure> {
        let temporary = tempfile::tempdir().map_err(|error| failed("make a temporary directory", &error))?;
        let options = azureml::Options {
            listen: self.common.listen(),
            speed: self.common.speed,
            state: self.common.state(&temporary)?,
            script: self.common.script(azureml::SCRIPT_SCHEMA, |script: &azureml::Script| &script.schema)?,
            workspace: azureml::Workspace {
                subscription: self.subscription,
                group: self.resource_group,
                name: self.workspace,
                location: self.location,
            },
            executable: executable()?,
            variables: variables(),
            engine: self.common.engine,
            tls: self.tls,
        };
        let ready =
            |cloud: &Arc<azureml::Devcloud>| Ready { service: "FTCTL_ENDPOINT_AZUREML", environment: cloud.client_environment() };
        stay(app, azureml::Devcloud::start(options), ready, |cloud| cloud.shut_down())
    }
}

fn read_script<S: DeserializeOwned>(path: &Path, known: &str, schema: fn(&S) -> &str) -> Result<S, Failure> {
    let wrong = |why: String| Failure::new(Exit::Usage, format!("cannot read the script {}: {why}", path.display()));
    let bytes = fs::read(path).map_err(|error| wrong(error.to_string()))?;
    let script: S = serde_json::from_slice(&bytes).map_err(|error| wrong(error.to_string()))?;
    if schema(&script) == known {
        return Ok(script);
    }
    Err(wrong(format!("it is of the format `{}`, this version reads `{known}`", schema(&script))))
}

/// The addresses and settings that clients need.
struct Ready {
    /// The name of the variable that is the service's address.
    service: &'static str,
    environment: BTreeMap<&'static str, String>,
}

impl Show for Ready {
    fn schema(&self) -> &'static str {
        "ftctl.devcloud/1"
    }

    fn json(&self) -> Value {
        json!({ "environment": self.environment })
    }

    fn text(&self) -> String {
        self.environment.iter().flat_map(|(name, value)| [name, "=", value, "\n"]).collect()
    }

    fn names(&self) -> Vec<String> {
        self.environment.get(self.service).cloned().into_iter().collect()
    }
}
