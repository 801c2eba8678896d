//! Which engine is meant: the order is that of docker's own command line.

use std::{
    fmt, fs,
    path::{Path, PathBuf},
};

use serde_json::Value;
use sha2::{Digest, Sha256};

use super::EngineError;

const OURS: &str = "FTCTL_ENDPOINT_DOCKER";
const HOST: &str = "DOCKER_HOST";
const DEFAULT_SOCKET: &str = "/var/run/docker.sock";
const DEFAULT_ORIGIN: &str = "the default socket";

/// An environment variable; empty ones count as absent.
type Variables<'a> = &'a dyn Fn(&str) -> Option<String>;

/// An engine, and who named it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    pub address: Address,
    /// The variable, context or default that the address is from.
    pub origin: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    Unix(PathBuf),
    Tcp {
        host: String,
        port: u16,
        tls: Option<Tls>,
    },
    /// `docker system dial-stdio` on another machine.
    Ssh {
        /// `[user@]host`
        destination: String,
        port: Option<u16>,
        /// The engine's socket over there, when it is not the default one.
        socket: Option<String>,
    },
}

/// A folder with `ca.pem`, and `cert.pem` and `key.pem` where the engine wants to know its client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tls(pub PathBuf);

impl Endpoint {
    pub fn is_default(&self) -> bool {
        self.origin == DEFAULT_ORIGIN
    }

    /// Whether its containers see this machine's files and loopback.
    pub fn is_local(&self) -> bool {
        matches!(self.address, Address::Unix(_))
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.address {
            Address::Unix(path) => write!(f, "unix://{}", path.display()),
            Address::Tcp { host, port, .. } => write!(f, "tcp://{host}:{port}"),
            Address::Ssh { destination, port: Some(port), .. } => write!(f, "ssh://{destination}:{port}"),
            Address::Ssh { destination, .. } => write!(f, "ssh://{destination}"),
        }
    }
}

/// The first of: ours, `DOCKER_HOST`, `DOCKER_CONTEXT`, the current context of docker's configuration, the default socket.
pub fn find(variables: Variables<'_>, home: Option<&Path>) -> Result<Endpoint, EngineError> {
    let directory = config_directory(variables, home);
    for name in [OURS, HOST] {
        if let Some(text) = variables(name) {
            let tls = variables("DOCKER_TLS_VERIFY").and_then(|_| {
                let folder = variables("DOCKER_CERT_PATH").map(PathBuf::from);
                folder.or_else(|| directory.clone()).map(Tls)
            });
            return parse(&text, tls, name);
        }
    }
    let context = match variables("DOCKER_CONTEXT") {
        Some(name) => Some(name),
        None => directory.as_deref().and_then(current_context),
    };
    match (context.filter(|name| name != "default"), directory) {
        (Some(name), Some(directory)) => of_context(&directory, &name),
        _ => Ok(Endpoint { address: Address::Unix(DEFAULT_SOCKET.into()), origin: DEFAULT_ORIGIN.to_owned() }),
    }
}

/// Where docker keeps `config.json`, contexts and certificates.
pub fn config_directory(variables: Variables<'_>, home: Option<&Path>) -> Option<PathBuf> {
    variables("DOCKER_CONFIG").map(PathBuf::from).or_else(|| home.map(|home| home.join(".docker")))
}

fn current_context(directory: &Path) -> Option<String> {
    let text = fs::read(directory.join("config.json")).ok()?;
    let config: Value = serde_json::from_slice(&text).ok()?;
    config["currentContext"].as_str().filter(|name| !name.is_empty()).map(str::to_owned)
}

/// docker files a context under the SHA-256 of its name: `contexts/meta/<digest>/meta.json`, certificates in
/// `contexts/tls/<digest>`.
fn of_context(directory: &Path, name: &str) -> Result<Endpoint, EngineError> {
    let origin = format!("the docker context {name:?}");
    let wrong = |why: String| EngineError::Setting { origin: origin.clone(), why };
    let digest = hex::encode(Sha256::digest(name));
    let path = directory.join("contexts/meta").join(&digest).join("meta.json");
    let bytes = fs::read(&path).map_err(|error| wrong(format!("cannot read {}: {error}", path.display())))?;
    let meta: Value = serde_json::from_slice(&bytes).map_err(|error| wrong(format!("{}: {error}", path.display())))?;
    let endpoint = &meta["Endpoints"]["docker"];
    if endpoint["SkipTLSVerify"] == true {
        return Err(wrong("it skips the check of the engine's certificate, and ftctl never does".to_owned()));
    }
    let host = endpoint["Host"].as_str().ok_or_else(|| wrong("it names no docker endpoint".to_owned()))?;
    let folder = directory.join("contexts/tls").join(&digest).join("docker");
    parse(host, folder.is_dir().then_some(Tls(folder)), &origin)
}

fn parse(text: &str, tls: Option<Tls>, origin: &str) -> Result<Endpoint, EngineError> {
    let wrong = |why: &str| EngineError::Setting { origin: origin.to_owned(), why: format!("{text:?} {why}") };
    let (scheme, rest) =
        text.split_once("://").ok_or_else(|| wrong("is not like unix:///path, tcp://host:port or ssh://user@host"))?;
    let address = match scheme {
        "unix" if rest.starts_with('/') => Address::Unix(rest.into()),
        "tcp" | "http" | "https" => {
            let default = if tls.is_some() || scheme == "https" { 2376 } else { 2375 };
            let (host, port) = host_and_port(rest.trim_end_matches('/')).ok_or_else(|| wrong("has no valid host and port"))?;
            if scheme == "https" && tls.is_none() {
                return Err(wrong("needs DOCKER_TLS_VERIFY=1 and the folder DOCKER_CERT_PATH with its ca.pem"));
            }
            Address::Tcp { host: host.to_owned(), port: port.unwrap_or(default), tls }
        }
        "ssh" => {
            let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
            let (destination, port) = host_and_port(authority).ok_or_else(|| wrong("has no valid host and port"))?;
            // The program ssh would take it for an option.
            if destination.starts_with('-') {
                return Err(wrong("has no valid host and port"));
            }
            let socket = (!path.is_empty()).then(|| format!("/{path}"));
            Address::Ssh { destination: destination.to_owned(), port, socket }
        }
        _ => return Err(wrong("must begin with unix:///, tcp:// or ssh://")),
    };
    Ok(Endpoint { address, origin: origin.to_owned() })
}

/// `host`, `host:port`, `user@host:port` or `[address]:port`.
fn host_and_port(text: &str) -> Option<(&str, Option<u16>)> {
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, Some(port.parse().ok()?)),
        _ => (text, None),
    };
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    (!host.is_empty()).then_some((host, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(pairs: &[(&str, &str)], home: Option<&Path>) -> Result<Endpoint, EngineError> {
        find(&|name| pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned()), home)
    }

    #[test]
    fn the_order_is_that_of_dockers_own_command_line() {
        let home = tempfile::tempdir().unwrap();
        let config = home.path().join(".docker");
        let context = |name: &str, host: &str| {
            let digest = hex::encode(Sha256::digest(name));
            let folder = config.join("contexts/meta").join(&digest);
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("meta.json"), format!(r#"{{"Endpoints":{{"docker":{{"Host":"{host}"}}}}}}"#)).unwrap();
            fs::create_dir_all(config.join("contexts/tls").join(&digest).join("docker")).unwrap();
        };
        context("far", "tcp://far");
        context("near", "unix:///run/near.sock");
        fs::write(config.join("config.json"), r#"{"currentContext":"far"}"#).unwrap();
        let seen = |pairs: &[(&str, &str)]| at(pairs, Some(home.path())).unwrap().to_string();
        assert_eq!(seen(&[(OURS, "unix:///a"), (HOST, "unix:///b"), ("DOCKER_CONTEXT", "near")]), "unix:///a");
        assert_eq!(seen(&[(HOST, "unix:///b"), ("DOCKER_CONTEXT", "near")]), "unix:///b");
        assert_eq!(seen(&[("DOCKER_CONTEXT", "near")]), "unix:///run/near.sock");
        assert_eq!(seen(&[("DOCKER_CONTEXT", "default")]), "unix:///var/run/docker.sock");
        assert_eq!(seen(&[]), "tcp://far:2376", "the certificates of the context decide the port");
        assert_eq!(at(&[], None).unwrap().to_string(), "unix:///var/run/docker.sock");
        let lost = at(&[("DOCKER_CONTEXT", "lost")], Some(home.path())).unwrap_err().to_string();
        assert!(lost.contains("the docker context \"lost\"") && lost.contains("meta.json"), "{lost}");
    }

    #[test]
    fn addresses() {
        let of = |text: &str| at(&[(HOST, text)], None).map(|endpoint| endpoint.address);
        let ssh = |destination: &str, port, socket: Option<&str>| Address::Ssh {
            destination: destination.to_owned(),
            port,
            socket: socket.map(str::to_owned),
        };
        assert_eq!(of("ssh://me@host:2222").unwrap(), ssh("me@host", Some(2222), None));
        assert_eq!(of("ssh://host").unwrap(), ssh("host", None, None));
        assert_eq!(of("ssh://host/run/user/1000/docker.sock").unwrap(), ssh("host", None, Some("/run/user/1000/docker.sock")));
        assert_eq!(of("tcp://[::1]:99").unwrap(), Address::Tcp { host: "::1".to_owned(), port: 99, tls: None });
        let tls = at(&[(HOST, "tcp://host"), ("DOCKER_TLS_VERIFY", "1"), ("DOCKER_CERT_PATH", "/certs")], None).unwrap().address;
        assert_eq!(tls, Address::Tcp { host: "host".to_owned(), port: 2376, tls: Some(Tls("/certs".into())) });
        for bad in [
            "host:2375",
            "tcp://",
            "tcp://host:x",
            "unix://relative",
            "npipe:////./pipe/docker",
            "ssh://-oProxyCommand=x",
            "https://h",
        ] {
            let error = of(bad).unwrap_err().to_string();
            assert!(error.starts_with("DOCKER_HOST: ") && error.contains(bad), "{error}");
        }
    }
}
