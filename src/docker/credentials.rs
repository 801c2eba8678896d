//! The sign-in to a registry, as docker's `config.json` and its helpers know it, and podman's `auth.json`.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use base64::{
    Engine as _,
    prelude::{BASE64_STANDARD, BASE64_URL_SAFE},
};
use rustix::process::getuid;
use serde_json::{Map, Value, json};
use tokio::{io::AsyncWriteExt as _, process::Command, time::timeout};

use super::config_directory;

/// Docker Hub, as references and as `config.json` call it, and its hosts.
const HUB: &str = "docker.io";
const HUB_KEY: &str = "https://index.docker.io/v1/";
const HUB_HOSTS: [&str; 3] = ["index.docker.io", "registry-1.docker.io", "registry.hub.docker.com"];
/// The message of a helper that has no credentials.
const UNKNOWN: &str = "credentials not found";
/// The name of a user who shows a token.
const TOKEN_USER: &str = "<token>";
/// For a helper's answer: one that waits for a window or a keychain that nobody can open must not stop a public image.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);

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
    /// No user's, because the helper that the configuration names did not answer: enough for a public image. Says why.
    Unasked(String),
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
            Self::Anonymous | Self::Unasked(_) => json!({}),
            Self::Password { user, password } => json!({ "username": user, "password": password, "serveraddress": registry }),
            Self::Identity(token) => json!({ "identitytoken": token, "serveraddress": registry }),
        };
        BASE64_URL_SAFE.encode(value.to_string())
    }

    /// A registry's refusal, with the reason why it was asked without a sign-in.
    pub fn explain(&self, refusal: &str) -> String {
        match self {
            Self::Unasked(why) => format!("{refusal}; it was asked without a sign-in: {why}"),
            _ => refusal.to_owned(),
        }
    }
}

/// The registry's host, as the reference of an image names it.
pub fn registry(image: &str) -> &str {
    parts(image).0
}

/// The registry of an image, and its name there.
fn parts(image: &str) -> (&str, &str) {
    match image.split_once('/') {
        // The name of a repository has small letters only.
        Some((host, name)) if host.contains(|char: char| ".:".contains(char) || char.is_uppercase()) || host == "localhost" => {
            (canonical(host), name)
        }
        _ => (HUB, image),
    }
}

fn canonical(host: &str) -> &str {
    if HUB_HOSTS.contains(&host) { HUB } else { host }
}

/// Where credentials are kept: by docker, and by podman, skopeo and buildah.
pub fn files(variables: &(dyn Fn(&str) -> Option<String> + Sync), home: Option<&Path>) -> Vec<PathBuf> {
    let folder = |name: &str| variables(name).map(PathBuf::from);
    let docker = config_directory(variables, home).map(|directory| directory.join("config.json"));
    let settings = folder("XDG_CONFIG_HOME").or_else(|| home.map(|home| home.join(".config")));
    // Root, and others without a session, have no such folder: podman goes by the user's number then.
    let running = folder("XDG_RUNTIME_DIR")
        .map_or_else(|| PathBuf::from(format!("/run/containers/{}", getuid().as_raw())), |session| session.join("containers"));
    let of_podman = [Some(running), settings.map(|settings| settings.join("containers"))].into_iter().flatten();
    let of_podman = of_podman.map(|folder| folder.join("auth.json"));
    docker.into_iter().chain(folder("REGISTRY_AUTH_FILE")).chain(of_podman).collect()
}

/// The credentials for an image that the first of the files has. A helper that does not answer is passed over.
pub async fn find(files: &[PathBuf], image: &str) -> Result<Credentials, CredentialsError> {
    let mut found = Credentials::Anonymous;
    for file in files {
        match of_file(file, image).await? {
            Credentials::Anonymous => {}
            unasked @ Credentials::Unasked(_) => found = unasked,
            credentials => return Ok(credentials),
        }
    }
    Ok(found)
}

/// The credentials that docker would use, in its order: the registry's own helper, the helper for all, the file that `docker login`
/// writes.
async fn of_file(path: &Path, image: &str) -> Result<Credentials, CredentialsError> {
    let registry = registry(image);
    let origin = path.display().to_string();
    let wrong = |why: String| CredentialsError { registry: registry.to_owned(), origin: origin.clone(), why };
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Credentials::Anonymous),
        Err(error) => return Err(wrong(error.to_string())),
    };
    // docker takes an empty file for one that is not there.
    if bytes.trim_ascii().is_empty() {
        return Ok(Credentials::Anonymous);
    }
    let config: Value = serde_json::from_slice(&bytes).map_err(|error| wrong(error.to_string()))?;
    let mut found = Credentials::Anonymous;
    let own = config["credHelpers"].as_object().and_then(|helpers| entry(helpers, image)).and_then(Value::as_str);
    if let Some(helper) = own.or(config["credsStore"].as_str()).filter(|helper| !helper.is_empty()) {
        match ask(helper, if registry == HUB { HUB_KEY } else { registry }, PATIENCE).await {
            Ok(Some(credentials)) => return Ok(credentials),
            Ok(None) => {}
            Err(why) => found = Credentials::Unasked(format!("docker-credential-{helper}, which {origin} names: {why}")),
        }
    }
    let entry = config["auths"].as_object().and_then(|auths| entry(auths, image));
    match entry.map_or(Ok(Credentials::Anonymous), written).map_err(wrong)? {
        Credentials::Anonymous => Ok(found),
        credentials => Ok(credentials),
    }
}

/// The entry for an image: that with the longest name which is the image's, without its tag, or whole parts of it from the
/// beginning. A name is a registry, a part of one as podman writes it, or a URL as docker once did. A host with a port is another
/// registry than the host.
fn entry<'v>(map: &'v Map<String, Value>, image: &str) -> Option<&'v Value> {
    let (registry, name) = parts(image);
    let image = format!("{registry}/{}", name.split([':', '@']).next().unwrap_or_default());
    let covers = |name: &str| image.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    let named = map.iter().map(|(name, value)| (plain(name), value)).filter(|(name, _)| covers(name));
    named.max_by_key(|(name, _)| name.len()).map(|(_, value)| value)
}

/// A name without what a URL has around it: its path is that of an interface, and no part of a registry.
fn plain(name: &str) -> String {
    let bare = ["https://", "http://"].iter().find_map(|scheme| name.strip_prefix(scheme));
    let name = bare.unwrap_or(name);
    let (host, path) = name.split_once('/').unwrap_or((name, ""));
    match path.trim_end_matches('/') {
        path if bare.is_some() || ["", "v1", "v2"].contains(&path) => canonical(host).to_owned(),
        path => format!("{}/{path}", canonical(host)),
    }
}

/// An entry of `auths`: `user:password` in base64, or a token.
fn written(entry: &Value) -> Result<Credentials, String> {
    if let Some(token) = entry["identitytoken"].as_str().filter(|token| !token.is_empty()) {
        return Ok(Credentials::Identity(token.to_owned()));
    }
    let text = entry["auth"].as_str().unwrap_or_default();
    // A helper leaves an empty entry.
    if text.is_empty() {
        let pair = entry["username"].as_str().filter(|user| !user.is_empty()).zip(entry["password"].as_str());
        let password =
            |(user, password): (&str, &str)| Credentials::Password { user: user.to_owned(), password: password.to_owned() };
        return Ok(pair.map_or(Credentials::Anonymous, password));
    }
    // docker's decoder passes over the ends of lines, which `base64` writes.
    let pair = BASE64_STANDARD.decode(text.replace(['\r', '\n'], "")).ok().and_then(|bytes| String::from_utf8(bytes).ok());
    let pair = pair.as_deref().and_then(|pair| pair.trim_end_matches('\0').split_once(':'));
    let (user, password) = pair.ok_or("its `auth` is not user:password in base64")?;
    Ok(Credentials::Password { user: user.to_owned(), password: password.to_owned() })
}

/// Asks `docker-credential-HELPER` as docker does; `None` when it has no credentials. One that does not answer in time is killed.
async fn ask(helper: &str, key: &str, patience: Duration) -> Result<Option<Credentials>, String> {
    // It becomes the name of a program.
    if PathBuf::from(helper).file_name().is_none_or(|name| name != helper) {
        return Err("that is not the name of a helper".to_owned());
    }
    let mut command = Command::new(format!("docker-credential-{helper}"));
    command.arg("get").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let mut child = command.spawn().map_err(|error| format!("cannot start it: {error}"))?;
    let exchange = async move {
        if let Some(mut input) = child.stdin.take() {
            // One that answers without listening has closed its end already.
            let _heard = input.write_all(key.as_bytes()).await;
        }
        child.wait_with_output().await
    };
    let Ok(answer) = timeout(patience, exchange).await else {
        let seconds = patience.as_secs();
        return Err(format!(
            "it gave no answer in {seconds} s and was ended; `docker-credential-{helper} list` shows what it waits for"
        ));
    };
    let answer = answer.map_err(|error| error.to_string())?;
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

    async fn found(config: &str, image: &str) -> Result<String, String> {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("config.json");
        fs::write(&file, config).unwrap();
        let found = find(&[file], image).await.map_err(|error| error.to_string())?;
        Ok(String::from_utf8(BASE64_URL_SAFE.decode(found.header(registry(image))).unwrap()).unwrap())
    }

    #[tokio::test]
    async fn what_docker_login_wrote_is_used() {
        let config = r#"{"auths": {"one.example": {"auth": "bWU6cGE6c3M="}, "https://two.example/v1/": {"identitytoken": "t"},
            "https://index.docker.io/v1/": {"auth": "aHViOng="}, "broken.example": {"auth": "%"}, "empty.example": {}}}"#;
        let one = r#"{"username":"me","password":"pa:ss","serveraddress":"one.example"}"#;
        assert_eq!(found(config, "one.example/image").await.unwrap(), one);
        assert!(found(config, "two.example/image").await.unwrap().contains("identitytoken"));
        assert!(found(config, "library/debian").await.unwrap().contains("hub"));
        assert_eq!(found(config, "empty.example/image").await.unwrap(), "{}");
        assert_eq!(found(config, "other.example/image").await.unwrap(), "{}");
        for entry in [
            r#"{"auth": "dTpw\n"}"#,
            r#"{"auth": "dT\r\npw"}"#,
            r#"{"username": "u", "password": "p"}"#,
            r#"{"username": "", "password": "", "auth": "dTpw"}"#,
            r#"{"username": "u", "password": "of old", "auth": "dTpw"}"#,
        ] {
            let config = format!(r#"{{"auths": {{"one.example": {entry}}}}}"#);
            let header = json!({ "username": "u", "password": "p", "serveraddress": "one.example" });
            assert_eq!(serde_json::from_str::<Value>(&found(&config, "one.example/x").await.unwrap()).unwrap(), header, "{entry}");
        }
        let nothing = r#"{"auths": {"one.example": {"username": "", "password": ""}}}"#;
        assert_eq!(found(nothing, "one.example/image").await.unwrap(), "{}");
        let error = found(config, "broken.example/image").await.unwrap_err();
        assert!(error.contains("broken.example") && error.contains("base64"), "{error}");
        assert_eq!(found(" \n", "one.example/image").await.unwrap(), "{}", "an empty file");
        let error = found("{", "one.example/image").await.unwrap_err();
        assert!(error.contains("config.json"), "{error}");
    }

    #[tokio::test]
    async fn every_spelling_of_docker_hub_is_docker_hub() {
        let images =
            ["debian", "library/debian:13", "docker.io/me/x", "index.docker.io/me/x", "registry-1.docker.io/me/x@sha256:0"];
        let keys = [
            "docker.io",
            "index.docker.io",
            "https://index.docker.io/v1/",
            "https://registry-1.docker.io/v2/",
            "https://docker.io/",
        ];
        for (image, key) in images.iter().flat_map(|image| keys.map(|key| (image, key))) {
            let config = json!({ "auths": { key: { "auth": "aHViOng=" } } }).to_string();
            assert!(found(&config, image).await.unwrap().contains("hub"), "{image} by {key}");
        }
        let other = json!({ "auths": { "docker.io.example": { "auth": "aHViOng=" } } }).to_string();
        assert_eq!(found(&other, "debian").await.unwrap(), "{}");
    }

    #[tokio::test]
    async fn podmans_names_are_for_parts_of_a_registry() {
        // a:x, b:x, c:x
        let config = r#"{"auths": {"quay.example": {"auth": "YTp4"}, "quay.example/team": {"auth": "Yjp4"},
            "quay.example/team/one": {"auth": "Yzp4"}, "docker.io/library": {"auth": "ZDp4"}}}"#;
        for (image, user) in [
            ("quay.example/me/x", "a"),
            ("quay.example/teams/x", "a"),
            ("quay.example/team/x", "b"),
            ("quay.example/team/one:3", "c"),
            ("quay.example/team/one@sha256:0", "c"),
            ("library/debian", "d"),
        ] {
            let header = found(config, image).await.unwrap();
            assert!(header.contains(&format!("\"username\":\"{user}\"")), "{image}: {header}");
        }
        let home = tempfile::tempdir().unwrap();
        let settings = home.path().join(".config/containers");
        fs::create_dir_all(&settings).unwrap();
        fs::write(settings.join("auth.json"), config).unwrap();
        let files = files(&|_| None, Some(home.path()));
        let of_root = PathBuf::from(format!("/run/containers/{}/auth.json", getuid().as_raw()));
        assert_eq!(files[1..], [of_root, settings.join("auth.json")]);
        assert!(find(&files, "quay.example/me/x").await.is_ok_and(|found| matches!(found, Credentials::Password { .. })));
    }

    #[tokio::test]
    async fn a_password_reaches_its_own_registry_alone() {
        for (key, image, covers) in [
            ("reg.example", "reg.example/x:1", true),
            ("reg.example", "reg.example:5000/x:1", false),
            ("reg.example:5000", "reg.example:5000/x:1", true),
            ("reg.example:5000", "reg.example/x:5000", false),
            ("reg.example:50", "reg.example:5000/x", false),
            ("https://reg.example:5000/v2/", "reg.example:5000/team/x@sha256:0", true),
            ("https://reg.example/team", "reg.example/x", true),
            ("https://reg.example", "reg.example:443/x", false),
            ("reg.example/x", "reg.example/x:1", true),
            ("reg.example/x", "reg.example/x/y:1@sha256:0", true),
            ("reg.example/x", "reg.example:5000/x", false),
            ("reg.example/x:1", "reg.example/x:1", false),
            ("reg.example/team/v1", "reg.example/team/x", false),
            ("localhost", "localhost:5000/x", false),
            ("localhost:5000", "localhost:5000/x", true),
            ("docker.io", "docker.io:443/me/x", false),
            ("https://index.docker.io/v1/", "index.docker.io:443/me/x", false),
            ("https://index.docker.io/v1/", "HUB/x", false),
            ("HUB", "HUB/x", true),
            ("", "reg.example/x", false),
        ] {
            let config = json!({ "auths": { key: { "auth": "dTpw" } } }).to_string();
            assert_eq!(found(&config, image).await.unwrap() != "{}", covers, "{image} by {key}");
        }
    }

    #[tokio::test]
    async fn a_helper_that_is_gone_stops_no_public_image() {
        let gone = r#"{"credsStore": "desktop-that-was-removed"}"#;
        assert_eq!(found(gone, "debian").await.unwrap(), "{}");
        let with_login = r#"{"credsStore": "desktop-that-was-removed", "auths": {"one.example": {"auth": "bWU6cGE6c3M="}}}"#;
        assert!(found(with_login, "one.example/x").await.unwrap().contains("pa:ss"));
        let why = Credentials::Unasked("docker-credential-x is not there".to_owned()).explain("denied");
        assert_eq!(why, "denied; it was asked without a sign-in: docker-credential-x is not there");
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
        helper("hangs", &format!("echo $$ > {}/pid; exec sleep 600", directory.path().display()));
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
        let hangs = ask("hangs").await;
        let advice = "it gave no answer in 1 s and was ended; `docker-credential-hangs list` shows what it waits for";
        assert!(hangs.contains(advice), "{hangs}");
        let process = fs::read_to_string(directory.path().join("pid")).unwrap();
        // One that nobody has buried yet has no command line.
        let runs = || fs::read(Path::new("/proc").join(process.trim()).join("cmdline")).is_ok_and(|line| !line.is_empty());
        let dies = async {
            while runs() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(PATIENCE, dies).await.expect("the helper was left running");
    }

    /// Not a test by itself: the one above runs it with a PATH of its own.
    #[tokio::test]
    #[ignore = "run by another test"]
    async fn asks_one_helper() {
        let said = match ask(&std::env::var("HELPER").unwrap_or_default(), "r.example", Duration::from_secs(1)).await {
            Ok(Some(Credentials::Password { password, .. })) => password,
            Ok(_) => "nobody".to_owned(),
            Err(why) => why,
        };
        println!("{said}");
    }
}
