//! `ftctl devcloud`: a cloud to rehearse with.

use std::{
    collections::BTreeMap,
    fs,
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
};

use clap::{Args, Subcommand};
use serde_json::{Value, json};
use tokio::signal::unix::{SignalKind, signal};

use super::{App, world::executable};
use crate::{
    devcloud::gce::{self, Devcloud, SCRIPT_SCHEMA, Script},
    exit::{Exit, Failure},
    output::Show,
};

/// Run a simulated cloud on this machine, to rehearse what costs money at no cost
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  ftctl devcloud gce --speed 60 --script faults.json")]
pub struct Arguments {
    #[command(subcommand)]
    cloud: Cloud,
}

#[derive(Debug, Subcommand)]
enum Cloud {
    Gce(Gce),
}

/// Simulate Google's Compute Engine until interrupted; each machine is a process that runs its startup script
///
/// Only who has the token that it prints is its client; each start has another one. Without --engine no image is fetched: the agent is this ftctl, and the trainer is looked for in `DEVCLOUD_IMAGE_PATH` and `PATH`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  export DEVCLOUD_IMAGE_PATH=$(dirname $(ftctl build --print path))\n  ftctl devcloud gce >devcloud.env &   # later: set -a; . ./devcloud.env\n  ftctl devcloud gce --speed 60 --script faults.json"
)]
struct Gce {
    /// Port on 127.0.0.1; 0 takes a free one
    #[arg(long, default_value_t = 0)]
    port: u16,
    /// Name of the project
    #[arg(long, default_value = "devcloud")]
    project: String,
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
    let speed: f64 = text.parse().map_err(|_| format!("`{text}` is no number"))?;
    if (1.0..=100_000.0).contains(&speed) { Ok(speed) } else { Err("it is between 1 and 100000".to_owned()) }
}

impl Arguments {
    pub fn run(self, app: &mut App<'_>) -> Result<(), Failure> {
        let Cloud::Gce(gce) = self.cloud;
        gce.run(app)
    }
}

impl Gce {
    fn run(self, app: &mut App<'_>) -> Result<(), Failure> {
        let failed = |what: &str, error: &dyn std::fmt::Display| Failure::new(Exit::Failure, format!("cannot {what}: {error}"));
        let script = self.script.as_ref().map_or_else(|| Ok(Script::default()), read_script)?;
        let temporary = tempfile::tempdir().map_err(|error| failed("make a temporary directory", &error))?;
        // Machines run their scripts in folders of their own, so the name must be good from everywhere.
        let disks = self.disks.as_deref().unwrap_or(temporary.path());
        let state = std::fs::create_dir_all(disks).and_then(|()| disks.canonicalize());
        let state = state.map_err(|error| failed(&format!("make the directory of disks {}", disks.display()), &error))?;
        let options = gce::Options {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, self.port)),
            project: self.project.clone(),
            speed: self.speed,
            state,
            script,
            executable: executable()?,
            variables: std::env::vars_os().filter(|(name, _)| name != "FTCTL_OUTPUT").collect(),
            engine: self.engine,
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| failed("start the asynchronous runtime", &error))?;
        runtime.block_on(async {
            let devcloud = Devcloud::start(options).await.map_err(|error| failed("listen", &error))?;
            let environment = devcloud.client_environment(&self.project);
            let shown = app.output.show(&Ready(environment));
            if shown.is_ok() {
                let mut terminated = signal(SignalKind::terminate()).map_err(|error| failed("wait for signals", &error))?;
                tokio::select! {
                    _ = tokio::signal::ctrl_c() => {}
                    _ = terminated.recv() => {}
                }
            }
            devcloud.shut_down();
            shown
        })
    }
}

fn read_script(path: &PathBuf) -> Result<Script, Failure> {
    let wrong = |why: String| Failure::new(Exit::Usage, format!("cannot read the script {}: {why}", path.display()));
    let bytes = fs::read(path).map_err(|error| wrong(error.to_string()))?;
    let script: Script = serde_json::from_slice(&bytes).map_err(|error| wrong(error.to_string()))?;
    if script.schema == SCRIPT_SCHEMA {
        return Ok(script);
    }
    Err(wrong(format!("it is of the format `{}`, this version reads `{SCRIPT_SCHEMA}`", script.schema)))
}

/// The addresses and settings that clients need.
struct Ready(BTreeMap<&'static str, String>);

impl Show for Ready {
    fn schema(&self) -> &'static str {
        "ftctl.devcloud/1"
    }

    fn json(&self) -> Value {
        json!({ "environment": self.0 })
    }

    fn text(&self) -> String {
        self.0.iter().flat_map(|(name, value)| [name, "=", value, "\n"]).collect()
    }

    fn names(&self) -> Vec<String> {
        self.0.get("FTCTL_ENDPOINT_GCE").cloned().into_iter().collect()
    }
}
