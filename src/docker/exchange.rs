//! Credentials of a registry for a user who has signed in to its cloud.

use std::process::Stdio;

use reqwest::{Url, header::CONTENT_TYPE};
use serde_json::Value;
use tokio::{process::Command, time::timeout};

use super::credentials::{Credentials, CredentialsError, PATIENCE};
use crate::transit;

/// A registry's token has some kilobytes.
const LARGEST: usize = 256 << 10;

/// The user of Azure Container Registry who shows a token for a password.
const NOBODY: &str = "00000000-0000-0000-0000-000000000000";
/// The same at Google.
const BEARER: &str = "oauth2accesstoken";

pub fn is_azure(registry: &str) -> bool {
    is_name(registry) && [".azurecr.io", ".azurecr.cn", ".azurecr.us"].iter().any(|end| registry.ends_with(end))
}

pub fn is_google(registry: &str) -> bool {
    is_name(registry) && (registry.ends_with("-docker.pkg.dev") || registry == "gcr.io" || registry.ends_with(".gcr.io"))
}

/// Whether it is a host's name and nothing else: `any.host#.azurecr.io` ends as a registry of Azure's does, and a URL with it leads
/// to any.host.
fn is_name(registry: &str) -> bool {
    registry.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-'))
}

/// Azure Container Registry gives a refresh token of its own for one of Entra ID.
pub async fn azure(registry: &str, entra: Result<String, String>) -> Result<Credentials, CredentialsError> {
    let token = match entra {
        Ok(token) => exchanged(&format!("https://{registry}"), registry, &token).await,
        Err(why) => Err(why),
    };
    let token = token.map_err(|why| wrong(registry, "the sign-in with Entra ID", why))?;
    Ok(Credentials::Password { user: NOBODY.to_owned(), password: token })
}

async fn exchanged(base: &str, service: &str, token: &str) -> Result<String, String> {
    let parameters = [("grant_type", "access_token"), ("service", service), ("access_token", token)];
    let url = Url::parse(&format!("{base}/oauth2/exchange")).map_err(|error| error.to_string())?;
    let mut form = url.clone();
    form.query_pairs_mut().extend_pairs(parameters);
    let http = transit::client(&url).build().map_err(|error| error.to_string())?;
    let request = http.post(url).header(CONTENT_TYPE, "application/x-www-form-urlencoded");
    let answer = request.body(form.query().unwrap_or_default().to_owned()).send().await;
    let answer = answer.map_err(|error| error.without_url().to_string())?;
    let status = answer.status();
    let bytes = transit::body(answer, LARGEST).await?;
    let said: Value = serde_json::from_slice(&bytes).unwrap_or_default();
    match said["refresh_token"].as_str() {
        Some(token) => Ok(token.to_owned()),
        None => Err(format!("the registry answered {status}: {}", said["errors"][0]["message"].as_str().unwrap_or("no token"))),
    }
}

/// An access token, as gcloud would use it: from the environment, or from gcloud itself. `None` without either.
pub async fn google(
    variables: &(dyn Fn(&str) -> Option<String> + Sync),
    registry: &str,
) -> Result<Option<Credentials>, CredentialsError> {
    let password = |token: String| Credentials::Password { user: BEARER.to_owned(), password: token };
    if let Some(token) = variables("CLOUDSDK_AUTH_ACCESS_TOKEN") {
        return Ok(Some(password(token)));
    }
    Ok(printed("gcloud", registry).await?.map(password))
}

/// The token that gcloud prints; `None` where there is no gcloud. One that does not answer in time is killed.
async fn printed(gcloud: &str, registry: &str) -> Result<Option<String>, CredentialsError> {
    let mut command = Command::new(gcloud);
    command.args(["auth", "print-access-token"]).stdin(Stdio::null()).kill_on_drop(true);
    let Ok(answer) = timeout(PATIENCE, command.output()).await else {
        let seconds = PATIENCE.as_secs();
        let why = format!(
            "`gcloud auth print-access-token` gave no answer in {seconds} s and was ended; run it to see what it waits for"
        );
        return Err(wrong(registry, "gcloud", why));
    };
    let Ok(answer) = answer else { return Ok(None) };
    let token = String::from_utf8_lossy(&answer.stdout).trim().to_owned();
    if answer.status.success() && !token.is_empty() {
        return Ok(Some(token));
    }
    Err(wrong(registry, "gcloud", String::from_utf8_lossy(&answer.stderr).trim().to_owned()))
}

fn wrong(registry: &str, origin: &str, why: String) -> CredentialsError {
    CredentialsError { registry: registry.to_owned(), origin: origin.to_owned(), why }
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::TcpListener,
    };

    use super::*;

    /// Exchanges a token at a service that gives this answer; answers the request that it was sent, and the result.
    async fn exchange_at(status: &'static str, body: &str) -> (String, Result<String, String>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        let service = async {
            let mut stream = listener.accept().await.unwrap().0;
            let mut request = String::new();
            while !request.contains("access_token=a%2Bb") {
                let mut piece = [0; 4096];
                let length = stream.read(&mut piece).await.unwrap();
                request.push_str(std::str::from_utf8(&piece[..length]).unwrap());
            }
            let answer = format!(
                "HTTP/1.1 {status}\r\nlocation: /elsewhere\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
                body.len()
            );
            // A client that has read enough may be gone.
            let _ = stream.write_all(answer.as_bytes()).await;
            request
        };
        tokio::join!(service, exchanged(&base, "acme.azurecr.io", "a+b"))
    }

    /// The shapes are those of Microsoft's description of the exchange (Azure/acr, docs/AAD-OAuth.md).
    #[tokio::test]
    async fn a_token_of_entra_becomes_one_of_the_registry() {
        let (request, token) = exchange_at("200 OK", r#"{"refresh_token":"mine"}"#).await;
        assert!(request.starts_with("POST /oauth2/exchange HTTP/1.1\r\n"), "{request}");
        assert!(request.ends_with("grant_type=access_token&service=acme.azurecr.io&access_token=a%2Bb"), "{request}");
        assert_eq!(token.unwrap(), "mine");
        let error = exchange_at("307 Temporary Redirect", "").await.1.unwrap_err();
        assert!(error.contains("answered 307"), "the token is not sent on: {error}");
        let error = exchange_at("200 OK", &" ".repeat(LARGEST + 1)).await.1.unwrap_err();
        assert!(error.contains("more than 262144 bytes"), "{error}");
        let refusal = r#"{"errors":[{"code":"UNAUTHORIZED","message":"authentication required"}]}"#;
        let error = exchange_at("401 Unauthorized", refusal).await.1.unwrap_err();
        assert!(error.contains("401") && error.contains("authentication required"), "{error}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_gcloud_that_hangs_is_ended_and_told() {
        let directory = tempfile::tempdir().unwrap();
        let gcloud = directory.path().join("gcloud");
        // A process of its own writes it: a file that this one holds open for writing could not be started.
        let script = r#"printf '#!/bin/sh\nexec sleep 600\n' > "$0" && chmod +x "$0""#;
        assert!(std::process::Command::new("sh").args(["-c", script]).arg(&gcloud).status().unwrap().success());
        let error = printed(gcloud.to_str().unwrap(), "gcr.io").await.unwrap_err().to_string();
        assert!(error.contains("gave no answer in 30 s and was ended"), "{error}");
        assert!(printed("/nonexistent/gcloud", "gcr.io").await.unwrap().is_none());
    }

    #[tokio::test]
    async fn registries_of_the_clouds_are_known_by_their_names() {
        assert!(is_azure("acme.azurecr.io") && !is_azure("azurecr.io.example.org"));
        for host in ["any.host#.azurecr.io", "any.host?.azurecr.io", "any.host\\.azurecr.io", "any.host:1@.azurecr.io"] {
            assert!(!is_azure(host), "{host}");
            assert!(!is_google(&host.replace("azurecr.io", "gcr.io")), "{host}");
        }
        assert!(is_google("europe-docker.pkg.dev") && is_google("eu.gcr.io") && !is_google("docker.io"));
        let token = |name: &str| (name == "CLOUDSDK_AUTH_ACCESS_TOKEN").then(|| "t".to_owned());
        let found = google(&token, "gcr.io").await.unwrap();
        assert!(found == Some(Credentials::Password { user: BEARER.to_owned(), password: "t".to_owned() }));
    }
}
