//! The sign-in to a registry, as docker's `config.json` and its helpers know it.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Stdio,
};

use base64::{
    Engine as _,
    prelude::{BASE64_STANDARD, BASE64_URL_SAFE},
};
use serde_json::{Map, Value, json};
use tokio::{io::AsyncWriteExt as _, process::Command};

/// Docker Hub, as references and as `config.json` call it.
const HUB: &str = "docker.io";
const HUB_KEY: &str = "https://index.docker.io/v1/";
/// The message of a helper that has no credentials.
const UNKNOWN: &str = "credentials not found";
/// The name of a user who shows a token.
const TOKEN_USER: &str = "<token>";

/// For one registry. Has no `Debug`, so that nothing secret can be printed by accident.
#[derive(Clone, PartialEq, Eq)]
pub enum Credentials {
    Anonymous,
    Password {
        user: String,
        password: String,
    },
    /// A refresh token, for which the registry's token service gives others.
    Identity(String),
}

/// Why credentials that are there cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("the credentials for {registry} cannot be read from {origin}: {why}")]
pub struct CredentialsError {
    pub registry: String,
    pub origin: String,
    pub why: String,
}

impl Credentials {
    /// The value of `X-Registry-Auth`: JSON in the URL-safe alphabet.
    pub fn header(&self, registry: &str) -> String {
        let value = match self {
            Self::Anonymous => json!({}),
            Self::Password { user, password } => json!({ "username": user, "password": password, "serveraddress": registry }),
            Self::Identity(token) => json!({ "identitytoken": token, "serveraddress": registry }),
        };
        BASE64_URL_SAFE.encode(value.to_string())
    }
}

/// The registry's host, as the reference of an image names it.
pub fn registry(repository: &str) -> &str {
    match repository.split_once('/') {
        Some((host, _)) if host.contains(['.', ':']) || host == "localhost" => host,
        _ => HUB,
    }
}

/// The credentials that docker would use, in its order: the registry's own helper, the helper for all, the file that `docker login`
/// writes.
pub async fn find(directory: Option<&Path>, registry: &str) -> Result<Credentials, CredentialsError> {
    let Some(path) = directory.map(|directory| directory.join("config.json")) else { return Ok(Credentials::Anonymous) };
    let wrong = |origin: &str, why: String| CredentialsError { registry: registry.to_owned(), origin: origin.to_owned(), why };
    let file = path.display().to_string();
    let bytes = match fs::read(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Credentials::Anonymous),
        Err(error) => return Err(wrong(&file, error.to_string())),
    };
    let config: Value = serde_json::from_slice(&bytes).map_err(|error| wrong(&file, error.to_string()))?;
    let key = if registry == HUB { HUB_KEY } else { registry };
    let own = config["credHelpers"].as_object().and_then(|helpers| of_host(helpers, key)).and_then(Value::as_str);
    if let Some(helper) = own.or(config["credsStore"].as_str()).filter(|helper| !helper.is_empty()) {
        let asked = ask(helper, key).await.map_err(|why| wrong(&format!("docker-credential-{helper}"), why))?;
        if let Some(found) = asked {
            return Ok(found);
        }
    }
    let entry = config["auths"].as_object().and_then(|auths| of_host(auths, key));
    entry.map_or(Ok(Credentials::Anonymous), |entry| written(entry).map_err(|why| wrong(&file, why)))
}

/// Keys are hosts, or URLs that older versions of docker wrote.
fn of_host<'v>(map: &'v Map<String, Value>, key: &str) -> Option<&'v Value> {
    let host = |name: &str| {
        let name = name.trim_start_matches("https://").trim_start_matches("http://");
        name.split('/').next().unwrap_or_default().to_owned()
    };
    map.get(key).or_else(|| map.iter().find(|(name, _)| host(name) == host(key)).map(|(_, value)| value))
}

/// An entry of `auths`: `user:password` in base64, or a token.
fn written(entry: &Value) -> Result<Credentials, String> {
    if let Some(token) = entry["identitytoken"].as_str().filter(|token| !token.is_empty()) {
        return Ok(Credentials::Identity(token.to_owned()));
    }
    if let (Some(user), Some(password)) = (entry["username"].as_str(), entry["password"].as_str()) {
        return Ok(Credentials::Password { user: user.to_owned(), password: password.to_owned() });
    }
    // A helper leaves an empty entry.
    let Some(text) = entry["auth"].as_str().filter(|text| !text.is_empty()) else { return Ok(Credentials::Anonymous) };
    let pair = BASE64_STANDARD.decode(text).ok().and_then(|bytes| String::from_utf8(bytes).ok());
    let pair = pair.as_deref().and_then(|pair| pair.trim_end_matches('\0').split_once(':'));
    let (user, password) = pair.ok_or("its `auth` is not user:password in base64")?;
    Ok(Credentials::Password { user: user.to_owned(), password: password.to_owned() })
}

/// Asks `docker-credential-HELPER` as docker does; `None` when it has no credentials.
async fn ask(helper: &str, key: &str) -> Result<Option<Credentials>, String> {
    // It becomes the name of a program.
    if PathBuf::from(helper).file_name().is_none_or(|name| name != helper) {
        return Err("that is not the name of a helper".to_owned());
    }
    let mut command = Command::new(format!("docker-credential-{helper}"));
    command.arg("get").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let mut child = command.spawn().map_err(|error| format!("cannot start it: {error}"))?;
    if let Some(mut input) = child.stdin.take() {
        // One that answers without listening has closed its end already.
        let _heard = input.write_all(key.as_bytes()).await;
    }
    let answer = child.wait_with_output().await.map_err(|error| error.to_string())?;
    if !answer.status.success() {
        let said = [answer.stdout, answer.stderr].concat();
        let said = String::from_utf8_lossy(&said).trim().to_owned();
        return if said.contains(UNKNOWN) { Ok(None) } else { Err(format!("it ended with {}: {said}", answer.status)) };
    }
    let said: Value = serde_json::from_slice(&answer.stdout).map_err(|_| "its answer is not JSON".to_owned())?;
    match (said["Username"].as_str(), said["Secret"].as_str()) {
        (Some(TOKEN_USER), Some(token)) => Ok(Some(Credentials::Identity(token.to_owned()))),
        (Some(user), Some(password)) => Ok(Some(Credentials::Password { user: user.to_owned(), password: password.to_owned() })),
        _ => Err("its answer has no Username and Secret".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    async fn found(config: &str, registry: &str) -> Result<String, String> {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("config.json"), config).unwrap();
        let found = find(Some(directory.path()), registry).await.map_err(|error| error.to_string())?;
        Ok(String::from_utf8(BASE64_URL_SAFE.decode(found.header(registry)).unwrap()).unwrap())
    }

    #[tokio::test]
    async fn what_docker_login_wrote_is_used() {
        let config = r#"{"auths": {"one.example": {"auth": "bWU6cGE6c3M="}, "https://two.example/v1/": {"identitytoken": "t"},
            "https://index.docker.io/v1/": {"auth": "aHViOng="}, "broken.example": {"auth": "%"}, "empty.example": {}}}"#;
        let one = r#"{"username":"me","password":"pa:ss","serveraddress":"one.example"}"#;
        assert_eq!(found(config, "one.example").await.unwrap(), one);
        assert!(found(config, "two.example").await.unwrap().contains("identitytoken"));
        assert!(found(config, registry("library/debian")).await.unwrap().contains("hub"));
        assert_eq!(found(config, "empty.example").await.unwrap(), "{}");
        assert_eq!(found(config, "other.example").await.unwrap(), "{}");
        let error = found(config, "broken.example").await.unwrap_err();
        assert!(error.contains("broken.example") && error.contains("base64"), "{error}");
        let error = found("{", "one.example").await.unwrap_err();
        assert!(error.contains("config.json"), "{error}");
    }

    #[tokio::test]
    async fn helpers_are_asked_as_docker_asks_them() {
        let directory = tempfile::tempdir().unwrap();
        let helper = |name: &str, script: &str| {
            let path = directory.path().join(format!("docker-credential-{name}"));
            fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        };
        helper("knows", r#"[ "$1" = get ] && printf '{"ServerURL":"x","Username":"me","Secret":"from %s"}' "$(cat)""#);
        helper("none", "echo 'credentials not found in native keychain'; exit 1");
        helper("broken", "echo 'the keychain is locked' >&2; exit 3");
        let path = format!("{}:{}", directory.path().display(), std::env::var("PATH").unwrap());
        let ask = |name: &'static str| {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.args(["--exact", "docker::credentials::tests::asks_one_helper", "--ignored", "--nocapture"]);
            command.env("PATH", &path).env("HELPER", name);
            async move { String::from_utf8(command.output().await.unwrap().stdout).unwrap() }
        };
        assert!(ask("knows").await.contains("from r.example"));
        assert!(ask("none").await.contains("nobody"));
        assert!(ask("broken").await.contains("the keychain is locked"));
        assert!(ask("../broken").await.contains("not the name of a helper"));
        assert!(ask("missing").await.contains("cannot start it"));
    }

    /// Not a test by itself: the one above runs it with a PATH of its own.
    #[tokio::test]
    #[ignore = "run by another test"]
    async fn asks_one_helper() {
        let said = match ask(&std::env::var("HELPER").unwrap_or_default(), "r.example").await {
            Ok(Some(Credentials::Password { password, .. })) => password,
            Ok(_) => "nobody".to_owned(),
            Err(why) => why,
        };
        println!("{said}");
    }
}
