//! The life of real jobs on this machine, with the real trainer: `tests/run` builds that first and runs these. They are ignored in
//! a plain `cargo test`, which must pass without libtorch.

#![allow(clippy::unwrap_used)]

mod azureml;
mod azureml_kills;
mod azureml_trouble;
#[path = "../common/azurite.rs"]
mod azurite;
mod before;
mod blobs;
#[path = "../common/browser.rs"]
mod browser;
mod clock;
mod cloud_kills;
mod cloud_trouble;
mod commands;
mod devcloud;
#[path = "../common/entra.rs"]
mod entra;
mod gce;
mod gce_kills;
mod gce_trace;
mod gce_trouble;
mod hosts;
mod kills;
mod memory;
mod mlflow;
mod nodes;
mod numbers;
#[path = "../common/proxy.rs"]
mod proxy;
mod sandbox;
#[path = "../common/secrets.rs"]
mod secrets;
mod templates;
#[path = "../common/terminal.rs"]
mod terminal;
