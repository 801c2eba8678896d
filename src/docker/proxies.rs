//! The proxies that docker's `config.json` has for containers (`proxies`): docker's own command line hands them to every build and
//! every container, and so does ftctl.

use std::{collections::BTreeMap, fs, path::Path};

use serde::Deserialize;

/// The variables of an entry, which containers are given in lower case too.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Proxies {
    #[serde(rename = "httpProxy")]
    http: Option<String>,
    #[serde(rename = "httpsProxy")]
    https: Option<String>,
    #[serde(rename = "noProxy")]
    none: Option<String>,
    #[serde(rename = "ftpProxy")]
    ftp: Option<String>,
    #[serde(rename = "allProxy")]
    all: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Config {
    /// By the address of an engine, or `default`.
    proxies: BTreeMap<String, Proxies>,
}

/// The variables for containers of the engine at `address`; none where the file is absent or not docker's.
pub fn of(directory: &Path, address: &str) -> Vec<(String, String)> {
    let bytes = fs::read(directory.join("config.json")).unwrap_or_default();
    let mut config: Config = serde_json::from_slice(&bytes).unwrap_or_default();
    let own = config.proxies.remove(address);
    let Some(found) = own.or_else(|| config.proxies.remove("default")) else { return Vec::new() };
    let named = [
        ("HTTP_PROXY", found.http),
        ("HTTPS_PROXY", found.https),
        ("NO_PROXY", found.none),
        ("FTP_PROXY", found.ftp),
        ("ALL_PROXY", found.all),
    ];
    let set = named.into_iter().filter_map(|(name, value)| Some((name, value.filter(|value| !value.is_empty())?)));
    set.flat_map(|(name, value)| [(name.to_owned(), value.clone()), (name.to_lowercase(), value)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn containers_get_the_proxies_of_their_engine() {
        let directory = tempfile::tempdir().unwrap();
        let of = |config: &str, address: &str| {
            fs::write(directory.path().join("config.json"), config).unwrap();
            of(directory.path(), address).into_iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ")
        };
        let config =
            r#"{"proxies": {"default": {"httpProxy": "http://p:1", "noProxy": ""}, "tcp://e:2375": {"httpsProxy": "http://q:2"}}}"#;
        assert_eq!(of(config, "unix:///var/run/docker.sock"), "HTTP_PROXY=http://p:1 http_proxy=http://p:1");
        assert_eq!(of(config, "tcp://e:2375"), "HTTPS_PROXY=http://q:2 https_proxy=http://q:2");
        assert_eq!(of(r#"{"proxies": 7}"#, "x"), "");
        assert_eq!(of("{}", "x"), "");
    }
}
