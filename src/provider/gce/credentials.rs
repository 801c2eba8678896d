//! Who asks: the application-default credentials of Google's libraries, in their order. No program is needed; what gcloud left is used.
//!
//! | from | when |
//! |---|---|
//! | `CLOUDSDK_AUTH_ACCESS_TOKEN`, `CLOUDSDK_AUTH_ACCESS_TOKEN_FILE` | a token of somebody else's making |
//! | the file in `GOOGLE_APPLICATION_CREDENTIALS` | a service account's key, a user's login, or workload identity federation |
//! | `application_default_credentials.json` of gcloud | after `gcloud auth application-default login` |
//! | the metadata server in `GCE_METADATA_HOST`, or that of this machine | on Google's machines |

#[cfg(test)]
mod tests;

use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use aws_lc_rs::{rand::SystemRandom, rsa, signature};
use base64::{
    Engine as _,
    prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD},
};
use jiff::Timestamp;
use reqwest::{Method, RequestBuilder, Url};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::Mutex;

use super::super::{Class, ProviderError, Result};
use crate::transit;

const SCOPE: &str = "https://www.googleapis.com/auth/cloud-platform";
const TOKEN_SERVICE: &str = "https://oauth2.googleapis.com/token";
/// A token is renewed so long before it ends.
const MARGIN: Duration = Duration::from_secs(120);
const LIMIT: Duration = Duration::from_secs(30);
/// Where a machine of a cloud asks its own host who it is. Nothing leaves that host, so http will do, as long as no proxy is between them.
const METADATA: [&str; 2] = ["metadata.google.internal", "169.254.169.254"];

/// An environment variable; empty ones count as absent.
pub type Variables<'a> = &'a dyn Fn(&str) -> Option<String>;

pub struct Credentials {
    source: Source,
    token: Mutex<Option<(String, Instant)>>,
}

enum Source {
    Token(String),
    TokenFile(PathBuf),
    File(PathBuf),
    Metadata(String),
    /// There is none, or none that helps; why.
    Absent(ProviderError),
}

/// A credentials file, as gcloud and the console write them.
#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum KeyFile {
    ServiceAccount {
        client_email: String,
        private_key: String,
        private_key_id: String,
        token_uri: Option<String>,
    },
    AuthorizedUser {
        client_id: String,
        client_secret: String,
        refresh_token: String,
        token_uri: Option<String>,
    },
    ExternalAccount {
        audience: String,
        subject_token_type: String,
        token_url: String,
        credential_source: CredentialSource,
        service_account_impersonation_url: Option<String>,
    },
}

/// Where the identity comes from that is changed for one of Google's: GitHub Actions writes a URL here.
#[derive(Deserialize)]
struct CredentialSource {
    file: Option<PathBuf>,
    url: Option<String>,
    #[serde(default)]
    headers: std::collections::BTreeMap<String, String>,
    format: Option<Format>,
}

#[derive(Deserialize)]
struct Format {
    #[serde(rename = "type")]
    kind: String,
    subject_token_field_name: Option<String>,
}

#[derive(Deserialize)]
struct TokenAnswer {
    access_token: String,
    #[serde(default = "an_hour")]
    expires_in: u64,
}

fn an_hour() -> u64 {
    3_600
}

impl Credentials {
    /// Finds the source; nothing is asked of anybody.
    pub fn find(variables: Variables<'_>) -> Result<Self> {
        let file = |name: &str| variables(name).map(PathBuf::from);
        let gcloud = file("CLOUDSDK_CONFIG").or_else(|| Some(file("HOME")?.join(".config/gcloud")));
        let login = gcloud.map(|folder| folder.join("application_default_credentials.json")).filter(|path| path.is_file());
        let source = if let Some(token) = variables("CLOUDSDK_AUTH_ACCESS_TOKEN") {
            Source::Token(token)
        } else if let Some(path) = file("CLOUDSDK_AUTH_ACCESS_TOKEN_FILE") {
            Source::TokenFile(path)
        } else if let Some(path) = file("GOOGLE_APPLICATION_CREDENTIALS").or(login) {
            Source::File(path)
        } else if let Some(host) = variables("GCE_METADATA_HOST").or_else(|| on_google().then(|| METADATA[0].to_owned())) {
            Source::Metadata(host)
        } else {
            return Err(ProviderError::new(Class::Denied, "nobody is signed in to Google Cloud here")
                .fix("gcloud auth application-default login, or name a key file in GOOGLE_APPLICATION_CREDENTIALS"));
        };
        Ok(Self { source, token: Mutex::new(None) })
    }

    /// Nobody's: whatever needs a token fails with this error.
    pub fn absent(why: ProviderError) -> Self {
        Self { source: Source::Absent(why), token: Mutex::new(None) }
    }

    /// The project that a key file belongs to.
    pub fn project(&self) -> Option<String> {
        let Source::File(path) = &self.source else { return None };
        let text: Value = serde_json::from_slice(&fs::read(path).ok()?).ok()?;
        text["project_id"].as_str().or(text["quota_project_id"].as_str()).map(str::to_owned)
    }

    /// A token that is good for some minutes at least.
    pub async fn token(&self) -> Result<String> {
        let mut kept = self.token.lock().await;
        if let Some((token, until)) = kept.as_ref()
            && *until > Instant::now()
        {
            return Ok(token.clone());
        }
        let answer = self.fetch().await?;
        let life = Duration::from_secs(answer.expires_in).saturating_sub(MARGIN);
        *kept = Some((answer.access_token.clone(), Instant::now() + life));
        Ok(answer.access_token)
    }

    /// The token was refused: the next one is a new one.
    pub async fn forget(&self) {
        *self.token.lock().await = None;
    }

    async fn fetch(&self) -> Result<TokenAnswer> {
        let fixed = |token: &str| TokenAnswer { access_token: token.trim().to_owned(), expires_in: 300 };
        match &self.source {
            Source::Absent(why) => Err(why.clone()),
            Source::Token(token) => Ok(fixed(token)),
            Source::TokenFile(path) => Ok(fixed(&read(path)?)),
            Source::Metadata(host) => {
                let url = format!("http://{host}/computeMetadata/v1/instance/service-accounts/default/token");
                let http = transit::direct().build().map_err(unreachable)?;
                ask(http.get(url).header("Metadata-Flavor", "Google")).await
            }
            Source::File(path) => {
                let file = serde_json::from_str(&read(path)?).map_err(|error| unusable(path, &error.to_string()))?;
                Place(path).token(file).await
            }
        }
    }
}

/// Google's machines say so in their firmware.
fn on_google() -> bool {
    fs::read_to_string("/sys/class/dmi/id/product_name").is_ok_and(|name| name.starts_with("Google"))
}

/// Where a credentials file lies. The URLs in it are its owner's word, but are held to what keeps secrets.
struct Place<'p>(&'p Path);

impl Place<'_> {
    async fn token(&self, file: KeyFile) -> Result<TokenAnswer> {
        match file {
            KeyFile::ServiceAccount { client_email, private_key, private_key_id, token_uri } => {
                let service = token_uri.as_deref().unwrap_or(TOKEN_SERVICE);
                let assertion =
                    sign(&client_email, &private_key, &private_key_id, service).map_err(|why| unusable(self.0, &why))?;
                let grant = "urn:ietf:params:oauth:grant-type:jwt-bearer";
                ask(self.post(service, &[("grant_type", grant), ("assertion", &assertion)])?).await
            }
            KeyFile::AuthorizedUser { client_id, client_secret, refresh_token, token_uri } => {
                let fields = [
                    ("grant_type", "refresh_token"),
                    ("client_id", &client_id),
                    ("client_secret", &client_secret),
                    ("refresh_token", &refresh_token),
                ];
                ask(self.post(token_uri.as_deref().unwrap_or(TOKEN_SERVICE), &fields)?).await
            }
            KeyFile::ExternalAccount {
                audience,
                subject_token_type,
                token_url,
                credential_source,
                service_account_impersonation_url,
            } => {
                let subject = self.subject_token(&credential_source).await?;
                let fields = [
                    ("grant_type", "urn:ietf:params:oauth:grant-type:token-exchange"),
                    ("audience", &audience),
                    ("scope", SCOPE),
                    ("requested_token_type", "urn:ietf:params:oauth:token-type:access_token"),
                    ("subject_token_type", &subject_token_type),
                    ("subject_token", &subject),
                ];
                let federated: TokenAnswer = ask(self.post(&token_url, &fields)?).await?;
                match service_account_impersonation_url {
                    Some(url) => self.impersonate(&url, &federated.access_token).await,
                    None => Ok(federated),
                }
            }
        }
    }

    async fn subject_token(&self, source: &CredentialSource) -> Result<String> {
        let text = match (&source.file, &source.url) {
            (Some(file), _) => read(file)?,
            (None, Some(url)) => {
                let request = self.request(Method::GET, url)?;
                let request = source.headers.iter().fold(request, |request, (name, value)| request.header(name, value));
                String::from_utf8_lossy(&bytes(request).await?).into_owned()
            }
            (None, None) => return Err(unusable(self.0, "its credential_source has neither a file nor a url")),
        };
        let format = source.format.as_ref().filter(|format| format.kind == "json");
        let Some(field) = format.and_then(|format| format.subject_token_field_name.as_ref()) else {
            return Ok(text.trim().to_owned());
        };
        let value: Value = serde_json::from_str(&text).map_err(|error| unusable(self.0, &error.to_string()))?;
        let missing = || unusable(self.0, &format!("the identity provider's answer has no `{field}`"));
        value[field].as_str().map(str::to_owned).ok_or_else(missing)
    }

    async fn impersonate(&self, url: &str, token: &str) -> Result<TokenAnswer> {
        let body = json!({ "scope": [SCOPE], "lifetime": "3600s" }).to_string();
        let request = self.request(Method::POST, url)?.bearer_auth(token).header("content-type", "application/json").body(body);
        let answer: Value = ask(request).await?;
        let access_token = answer["accessToken"].as_str().unwrap_or_default().to_owned();
        let until = answer["expireTime"].as_str().and_then(|time| time.parse::<Timestamp>().ok());
        let expires_in =
            until.map_or(an_hour(), |until| u64::try_from(until.duration_since(Timestamp::now()).as_secs()).unwrap_or(0));
        Ok(TokenAnswer { access_token, expires_in })
    }

    fn post(&self, url: &str, fields: &[(&str, &str)]) -> Result<RequestBuilder> {
        let mut form = Url::parse("http://form").ok();
        let pairs =
            form.as_mut().map(|url| url.query_pairs_mut().extend_pairs(fields).finish().query().unwrap_or_default().to_owned());
        let request = self.request(Method::POST, url)?.header("content-type", "application/x-www-form-urlencoded");
        Ok(request.body(pairs.unwrap_or_default()))
    }

    /// Begins a request that carries a secret, or is answered with one.
    fn request(&self, method: Method, url: &str) -> Result<RequestBuilder> {
        let url = Url::parse(url).map_err(|error| unusable(self.0, &format!("a URL in it: {error}")))?;
        let host = url.host_str().unwrap_or_default();
        let builder = if METADATA.contains(&host) {
            transit::direct()
        } else if transit::is_private(&url) {
            transit::client(&url)
        } else {
            return Err(unusable(self.0, &format!("it names {host} without https, where anybody on the way could read secrets")));
        };
        Ok(builder.build().map_err(unreachable)?.request(method, url))
    }
}

/// RFC 7523: the service account's own word that it is itself, good for an hour.
fn sign(email: &str, key: &str, key_id: &str, audience: &str) -> Result<String, String> {
    let now = Timestamp::now().as_second();
    let header = json!({ "alg": "RS256", "typ": "JWT", "kid": key_id });
    let claims = json!({ "iss": email, "scope": SCOPE, "aud": audience, "iat": now, "exp": now + 3_600 });
    let encode = |value: &Value| BASE64_URL_SAFE_NO_PAD.encode(value.to_string());
    let text = format!("{}.{}", encode(&header), encode(&claims));
    let lines: String = key.lines().filter(|line| !line.starts_with("-----")).collect();
    let bytes = BASE64_STANDARD.decode(lines.trim()).map_err(|_| "its private_key is no PEM".to_owned())?;
    let pair = rsa::KeyPair::from_pkcs8(&bytes).map_err(|why| format!("its private_key is no RSA key: {why}"))?;
    let mut signed = vec![0; pair.public_modulus_len()];
    pair.sign(&signature::RSA_PKCS1_SHA256, &SystemRandom::new(), text.as_bytes(), &mut signed)
        .map_err(|error| error.to_string())?;
    Ok(format!("{text}.{}", BASE64_URL_SAFE_NO_PAD.encode(signed)))
}

async fn ask<T: serde::de::DeserializeOwned>(request: RequestBuilder) -> Result<T> {
    let bytes = bytes(request).await?;
    let strange = |error| ProviderError::new(Class::Denied, format!("Google's sign-in answers what cannot be understood: {error}"));
    serde_json::from_slice(&bytes).map_err(strange)
}

async fn bytes(request: RequestBuilder) -> Result<bytes::Bytes> {
    // Nothing of the answer is shown but Google's own word for the error: it may hold secrets.
    let answer = request.timeout(LIMIT).send().await.map_err(unreachable)?;
    let status = answer.status();
    let bytes = answer.bytes().await.map_err(unreachable)?;
    if status.is_success() {
        return Ok(bytes);
    }
    let text: Value = serde_json::from_slice(&bytes).unwrap_or_default();
    let why = text["error_description"].as_str().or(text["error"].as_str()).unwrap_or("no reason given");
    let class = if status.is_server_error() { Class::Network } else { Class::Denied };
    let message = format!("Google's sign-in refused the credentials ({}): {why}", status.as_u16());
    Err(ProviderError::new(class, message).fix("gcloud auth application-default login"))
}

fn unreachable(error: reqwest::Error) -> ProviderError {
    ProviderError::new(Class::Network, format!("cannot reach Google's sign-in: {}", error.without_url()))
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).map_err(|error| unusable(path, &error.to_string()))
}

fn unusable(path: &Path, why: &str) -> ProviderError {
    ProviderError::new(Class::Denied, format!("the credentials in {} cannot be used: {why}", path.display()))
        .fix("gcloud auth application-default login")
}
