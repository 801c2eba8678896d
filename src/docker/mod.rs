//! The container engine: where it is, and a connection to it.
//!
//! `bollard` brings the requests and answers of the Engine API; which engine is meant, and the line to it, are decided here,
//! because bollard knows neither contexts nor a port in `ssh://`.

pub mod credentials;
mod endpoint;
mod exchange;
mod proxies;
pub mod registry;
mod stream;
mod transport;

use std::{env, io};

use bollard::Docker;
use bollard::errors::Error;

pub use endpoint::{Address, Endpoint, config_directory};
pub use stream::Lines;

use crate::job::report::Report;

/// Engine API that everything here relies on: device requests for GPUs, and BuildKit inside the engine (Docker 19.03).
const OLDEST_API: (usize, usize) = (1, 40);

/// Seconds until an answer must begin. Streams may go on for longer.
pub const TIMEOUT: u64 = 120;

/// An engine that has answered.
#[derive(Clone)]
pub struct Engine {
    pub docker: Docker,
    pub endpoint: Endpoint,
    /// The engine's version in its own words: `20.10.24`.
    pub version: String,
    pub api: (usize, usize),
    transport: transport::Transport,
}

/// Why there is no engine to work with.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The setting that names the engine cannot be understood.
    #[error("{origin}: {why}")]
    Setting { origin: String, why: String },
    #[error("no container engine answers at {endpoint}: {why}")]
    Absent { endpoint: Endpoint, why: String },
    #[error("you may not use the container engine at {endpoint}: {why}")]
    Denied { endpoint: Endpoint, why: String },
    #[error("the container engine at {endpoint} speaks API {}.{}; {}.{} is the oldest that can be used", api.0, api.1, OLDEST_API.0, OLDEST_API.1)]
    TooOld { endpoint: Endpoint, api: (usize, usize) },
}

impl EngineError {
    /// The user's next step.
    pub fn fix(&self) -> String {
        match self {
            Self::Setting { origin, .. } => format!("correct or unset {origin}"),
            Self::Absent { endpoint, .. } if endpoint.is_default() => {
                "start Docker, or name an engine with DOCKER_HOST or `docker context use`".to_owned()
            }
            Self::Absent { endpoint, .. } => format!("start the engine, or correct {}", endpoint.origin),
            Self::Denied { endpoint, .. } => match &endpoint.address {
                Address::Unix(path) => {
                    format!("sudo usermod -aG docker $USER, then log in again (the group that owns {})", path.display())
                }
                _ => format!("check the keys or certificates that {} names", endpoint.origin),
            },
            Self::TooOld { .. } => "update the engine to Docker 19.03 or newer".to_owned(),
        }
    }
}

impl Engine {
    /// The variables that docker's own command line would give a container here: see [`proxies`].
    pub fn proxies(&self) -> Vec<(String, String)> {
        let directory = config_directory(&variable, env::home_dir().as_deref());
        directory.map(|directory| proxies::of(&directory, &self.endpoint.to_string())).unwrap_or_default()
    }
}

fn variable(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

/// Which engine is meant, whether or not it answers.
pub fn endpoint() -> Result<Endpoint, EngineError> {
    endpoint::find(&variable, env::home_dir().as_deref())
}

/// Connects to the engine that docker's own command line would use, `FTCTL_ENDPOINT_DOCKER` before all, and asks for its version.
pub async fn connect(report: &dyn Report) -> Result<Engine, EngineError> {
    let endpoint = endpoint()?;
    report.detail(&format!("the container engine is {endpoint}, from {}", endpoint.origin));
    connect_to(endpoint).await
}

async fn connect_to(endpoint: Endpoint) -> Result<Engine, EngineError> {
    let transport = transport::Transport::new(&endpoint)?;
    let line = transport.clone();
    let docker = Docker::connect_with_custom_transport(
        move |request| {
            let line = line.clone();
            async move { line.request(request).await }
        },
        Some("http://docker"),
        TIMEOUT,
        bollard::API_DEFAULT_VERSION,
    )
    .map_err(|error| failed(&endpoint, &error))?;
    let docker = docker.negotiate_version().await.map_err(|error| failed(&endpoint, &error))?;
    let used = docker.client_version();
    let api = (used.major_version, used.minor_version);
    if api < OLDEST_API {
        return Err(EngineError::TooOld { endpoint, api });
    }
    let version = docker.version().await.map_err(|error| failed(&endpoint, &error))?.version.unwrap_or_default();
    Ok(Engine { docker, endpoint, version, api, transport })
}

/// The meaning of a connection's error.
fn failed(endpoint: &Endpoint, error: &Error) -> EngineError {
    let (endpoint, why) = (endpoint.clone(), error.to_string());
    match error {
        error if shows_the_door(error) => {
            EngineError::Denied { endpoint, why: "it does not take the certificate shown, or wants one".to_owned() }
        }
        Error::IOError { err } if err.kind() == io::ErrorKind::PermissionDenied => EngineError::Denied { endpoint, why },
        Error::DockerResponseServerError { status_code: 401 | 403, message } => {
            EngineError::Denied { endpoint, why: message.clone() }
        }
        _ => EngineError::Absent { endpoint, why },
    }
}

/// Whether TLS was ended by the other side, with an alert about the client.
fn shows_the_door(error: &(dyn std::error::Error + 'static)) -> bool {
    let inner = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref).and_then(|inner| inner.downcast_ref());
    matches!(inner, Some(rustls::Error::AlertReceived(_))) || error.source().is_some_and(shows_the_door)
}

/// Whether the line failed, not the request: the same call may succeed when the engine is back.
pub fn is_line(error: &Error) -> bool {
    matches!(error, Error::IOError { .. } | Error::HyperResponseError { .. } | Error::RequestTimeoutError)
}

/// The engine's own words: without the number of its answer.
pub fn words(error: &Error) -> String {
    match error {
        Error::DockerResponseServerError { message, .. } => message.trim().to_owned(),
        Error::DockerStreamError { error } => error.trim().to_owned(),
        other => other.to_string(),
    }
}

/// Whether an engine, or what runs in it, says that its disk is full.
pub fn is_full_disk(words: &str) -> bool {
    words.to_lowercase().contains("no space left on device")
}

/// The fix for [`is_full_disk`].
pub const FULL_DISK: &str = "free some space where the engine keeps its data (docker system df), then try again";

#[cfg(test)]
mod tests {
    use super::*;

    fn at(address: Address) -> Endpoint {
        Endpoint { address, origin: "DOCKER_HOST".to_owned() }
    }

    #[tokio::test]
    async fn an_absent_engine_is_an_error_that_says_who_named_it() {
        let directory = tempfile::tempdir().unwrap();
        let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        for address in [
            Address::Unix(directory.path().join("docker.sock")),
            Address::Tcp { host: "127.0.0.1".to_owned(), port: closed, tls: None },
            Address::Ssh { destination: "127.0.0.1".to_owned(), port: Some(closed), socket: None },
        ] {
            let endpoint = at(address);
            let error = connect_to(endpoint.clone()).await.err().unwrap();
            assert!(matches!(error, EngineError::Absent { .. }), "{error}");
            assert!(error.to_string().contains(&endpoint.to_string()), "{error}");
            assert_eq!(error.fix(), "start the engine, or correct DOCKER_HOST");
        }
    }

    #[tokio::test]
    #[ignore = "needs a container engine: tests/run starts one"]
    async fn docker_an_engine_says_what_it_is() {
        let engine = connect(&crate::job::report::Silent).await.unwrap();
        assert!(engine.api >= OLDEST_API && !engine.version.is_empty(), "{} {:?}", engine.version, engine.api);
        let error = engine.docker.inspect_image("ftctl-test/there-is-none").await.unwrap_err();
        assert!(words(&error).contains("ftctl-test/there-is-none") && !is_line(&error), "{error}");
    }
}
