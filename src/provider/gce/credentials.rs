//! The sign-in: the application-default credentials of Google's libraries, in their order. No program is needed; the files that
//! gcloud wrote are used.
//!
//! | from | when |
//! |---|---|
//! | `CLOUDSDK_AUTH_ACCESS_TOKEN`, `CLOUDSDK_AUTH_ACCESS_TOKEN_FILE` | a token that was made elsewhere |
//! | the file in `GOOGLE_APPLICATION_CREDENTIALS` | one of the kinds of [`KeyFile`] |
//! | `application_default_credentials.json` of gcloud | after `gcloud auth application-default login` |
//! | the metadata server in `GCE_METADATA_HOST`, or that of this machine | on Google's machines |
//!
//! Google's `google-cloud-auth` signs for a service account, which takes no request. Every request of its own follows redirects and
//! goes through the proxy of the environment, so the other kinds ask here, by [`transit`]; a test holds them against that library.

mod aws;
mod certificate;
mod external;
#[cfg(test)]
mod tests;

use std::{
    collections::BTreeMap,
    error::Error,
    fs::{self, File},
    io::{self, Read as _},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use ft_trainer::files;
use google_cloud_auth::credentials::service_account::{self, AccessSpecifier};
use jiff::Timestamp;
use reqwest::{Identity, Method, RequestBuilder, Url};
use rustls::AlertDescription;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::sync::Mutex;

use super::super::{Class, ProviderError, Result};
use crate::transit;

const SCOPE: &str = "https://www.googleapis.com/auth/cloud-platform";
const TOKEN_SERVICE: &str = "https://oauth2.googleapis.com/token";
const FEDERATED_TOKEN_SERVICE: &str = "https://sts.googleapis.com/v1/oauthtoken";
/// A token is renewed so long before it ends.
const MARGIN: Duration = Duration::from_secs(120);
const LIMIT: Duration = Duration::from_secs(30);
const HOUR: u64 = 3_600;
/// No token is kept longer, whatever its service says of it, seconds.
const LONGEST_LIFE: u64 = 24 * HOUR;
/// A token has some kilobytes, and an identity of a company's user or a file of credentials is not much larger.
const LARGEST: usize = 256 << 10;
/// Hosts where a machine of a cloud asks for its own identity. Nothing leaves that host, so http will do, as long as no proxy is
/// between them.
const METADATA: [&str; 3] = ["metadata.google.internal", "169.254.169.254", "[fd00:ec2::254]"];

/// Ends of TLS for the certificate of who asks, or for want of one.
const REFUSALS: [AlertDescription; 9] = [
    AlertDescription::AccessDenied,
    AlertDescription::BadCertificate,
    AlertDescription::CertificateExpired,
    AlertDescription::CertificateRequired,
    AlertDescription::CertificateRevoked,
    AlertDescription::CertificateUnknown,
    // A signature is wrong: that of another authority with the same name.
    AlertDescription::DecryptError,
    AlertDescription::UnknownCA,
    AlertDescription::UnsupportedCertificate,
];

/// An environment variable; empty ones count as absent.
pub type Variables<'a> = &'a dyn Fn(&str) -> Option<String>;

pub struct Credentials {
    source: Source,
    /// Those of [`external::VARIABLES`] that are set.
    variables: BTreeMap<&'static str, String>,
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
    ServiceAccount(Map<String, Value>),
    AuthorizedUser {
        client_id: String,
        client_secret: String,
        refresh_token: String,
        token_uri: Option<String>,
    },
    ImpersonatedServiceAccount {
        service_account_impersonation_url: String,
        source_credentials: Box<KeyFile>,
        #[serde(default)]
        delegates: Vec<String>,
    },
    ExternalAccount(Box<external::Account>),
    /// `gcloud auth application-default login` of a company's own users (workforce identity federation).
    ExternalAccountAuthorizedUser {
        client_id: String,
        client_secret: String,
        refresh_token: String,
        token_url: Option<String>,
    },
}

#[derive(Deserialize)]
struct TokenAnswer {
    access_token: String,
    /// Seconds.
    #[serde(default = "an_hour")]
    expires_in: u64,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Impersonated {
    access_token: String,
    expire_time: Timestamp,
}

fn an_hour() -> u64 {
    HOUR
}

impl Credentials {
    /// Finds the source; nothing is asked of anybody.
    pub fn find(variables: Variables<'_>) -> Result<Self> {
        let file = |name: &str| variables(name).map(PathBuf::from);
        let login =
            gcloud(variables).map(|folder| folder.join("application_default_credentials.json")).filter(|path| path.is_file());
        let source = if let Some(token) = variables("CLOUDSDK_AUTH_ACCESS_TOKEN") {
            Source::Token(token)
        } else if let Some(path) = file("CLOUDSDK_AUTH_ACCESS_TOKEN_FILE") {
            Source::TokenFile(path)
        } else if let Some(path) = file("GOOGLE_APPLICATION_CREDENTIALS").or(login) {
            Source::File(path)
        } else if let Some(host) = variables("GCE_METADATA_HOST").or_else(|| on_google().then(|| METADATA[0].to_owned())) {
            Source::Metadata(host)
        } else {
            return Err(ProviderError::new(Class::Denied, "no one is signed in to Google Cloud here")
                .fix("gcloud auth application-default login, or name a key file in GOOGLE_APPLICATION_CREDENTIALS"));
        };
        let variables = external::VARIABLES.into_iter().filter_map(|name| Some((name, variables(name)?))).collect();
        Ok(Self { source, variables, token: Mutex::new(None) })
    }

    /// No credentials: every request that needs a token fails with this error.
    pub fn absent(why: ProviderError) -> Self {
        Self { source: Source::Absent(why), variables: BTreeMap::new(), token: Mutex::new(None) }
    }

    /// The project that a key file belongs to.
    pub fn project(&self) -> Option<String> {
        let Source::File(path) = &self.source else { return None };
        let text: Value = serde_json::from_str(&text(path).ok()?).ok()?;
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
        let life = Duration::from_secs(answer.expires_in.min(LONGEST_LIFE)).saturating_sub(MARGIN);
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
                let text = read(path)?;
                let client = "it is an OAuth client, which a program needs to ask a user, and has no sign-in itself";
                let why = |error: serde_json::Error| if is_client(&text) { client.to_owned() } else { error.to_string() };
                let file = serde_json::from_str(&text).map_err(|error| unusable(path, &why(error)))?;
                Place { path, variables: &self.variables, identity: None }.token(file).await
            }
        }
    }
}

/// The directory of gcloud's files.
fn gcloud(variable: impl Fn(&str) -> Option<String>) -> Option<PathBuf> {
    let file = |name| variable(name).map(PathBuf::from);
    file("CLOUDSDK_CONFIG").or_else(|| Some(file("HOME")?.join(".config/gcloud")))
}

/// Google's machines say so in their firmware.
fn on_google() -> bool {
    fs::read_to_string("/sys/class/dmi/id/product_name").is_ok_and(|name| name.starts_with("Google"))
}

/// Where a credentials file lies. The URLs in it are its owner's word, but are held to what keeps secrets.
struct Place<'p> {
    path: &'p Path,
    variables: &'p BTreeMap<&'static str, String>,
    /// The certificate that servers are shown.
    identity: Option<Identity>,
}

impl Place<'_> {
    async fn token(&self, file: KeyFile) -> Result<TokenAnswer> {
        match file {
            KeyFile::ServiceAccount(key) => self.signed(key).await,
            KeyFile::AuthorizedUser { client_id, client_secret, refresh_token, token_uri } => {
                let fields = [
                    ("grant_type", "refresh_token"),
                    ("client_id", &client_id),
                    ("client_secret", &client_secret),
                    ("refresh_token", &refresh_token),
                ];
                ask(self.post(token_uri.as_deref().unwrap_or(TOKEN_SERVICE), &fields)?).await
            }
            KeyFile::ImpersonatedServiceAccount { service_account_impersonation_url: url, source_credentials, delegates } => {
                let source = Box::pin(self.token(*source_credentials)).await?;
                self.impersonate(&url, &source.access_token, &delegates).await
            }
            KeyFile::ExternalAccount(account) => self.federated(&account).await,
            KeyFile::ExternalAccountAuthorizedUser { client_id, client_secret, refresh_token, token_url } => {
                let fields = [("grant_type", "refresh_token"), ("refresh_token", &refresh_token)];
                let request = self.post(token_url.as_deref().unwrap_or(FEDERATED_TOKEN_SERVICE), &fields)?;
                ask(request.basic_auth(client_id, Some(client_secret))).await
            }
        }
    }

    /// A service account's own word that it is itself, which Google's services take for a token: AIP-4111.
    async fn signed(&self, key: Map<String, Value>) -> Result<TokenAnswer> {
        let builder = service_account::Builder::new(key.into()).with_access_specifier(AccessSpecifier::from_scopes([SCOPE]));
        // The outermost words of these errors do not say what is wrong.
        let root = |mut error: &dyn Error| {
            while let Some(source) = error.source() {
                error = source;
            }
            unusable(self.path, &format!("its key cannot sign: {error}"))
        };
        let credentials = builder.build_access_token_credentials().map_err(|error| root(&error))?;
        let signed = credentials.access_token().await.map_err(|error| root(&error))?;
        Ok(TokenAnswer { access_token: signed.token, expires_in: HOUR })
    }

    async fn impersonate(&self, url: &str, token: &str, delegates: &[String]) -> Result<TokenAnswer> {
        let mut body = json!({ "scope": [SCOPE], "lifetime": format!("{HOUR}s") });
        if !delegates.is_empty() {
            body["delegates"] = json!(delegates);
        }
        let request = self.request(Method::POST, url)?.bearer_auth(token).header("content-type", "application/json");
        let answer: Impersonated = ask(request.body(body.to_string())).await?;
        let left = answer.expire_time.duration_since(Timestamp::now()).as_secs();
        Ok(TokenAnswer { access_token: answer.access_token, expires_in: u64::try_from(left).unwrap_or(0) })
    }

    fn post(&self, url: &str, fields: &[(&str, &str)]) -> Result<RequestBuilder> {
        let request = self.request(Method::POST, url)?.header("content-type", "application/x-www-form-urlencoded");
        Ok(request.body(form(fields.iter().copied())))
    }

    /// Begins a request that carries a secret, or is answered with one.
    fn request(&self, method: Method, url: &str) -> Result<RequestBuilder> {
        let url = Url::parse(url).map_err(|error| unusable(self.path, &format!("a URL in it: {error}")))?;
        let host = url.host_str().unwrap_or_default();
        let builder = if METADATA.contains(&host) {
            transit::direct()
        } else if transit::is_private(&url) {
            transit::client(&url)
        } else {
            let why = format!("it names {host} without https, where anybody on the way could read secrets");
            return Err(unusable(self.path, &why));
        };
        let builder = self.identity.iter().fold(builder, |builder, identity| builder.identity(identity.clone()));
        Ok(builder.build().map_err(unreachable)?.request(method, url))
    }
}

/// Encodes fields for a form or a query.
fn form<K: AsRef<str>, V: AsRef<str>>(fields: impl IntoIterator<Item = (K, V)>) -> String {
    let mut url = Url::parse("http://form").unwrap_or_else(|_| unreachable!("it is one"));
    url.query_pairs_mut().extend_pairs(fields);
    url.query().unwrap_or_default().to_owned()
}

async fn ask<T: serde::de::DeserializeOwned>(request: RequestBuilder) -> Result<T> {
    let Answer { of, bytes } = answer(request).await?;
    // The parser's own words quote the answer.
    let strange = |error: serde_json::Error| {
        let why = if error.is_data() { "it has no token of the expected form" } else { "it is not JSON" };
        ProviderError::new(Class::Denied, format!("unexpected answer from Google's sign-in to {of}: {why}"))
    };
    serde_json::from_slice(&bytes).map_err(strange)
}

/// The answer of a success.
struct Answer {
    /// Method, host, path and status, for messages.
    of: String,
    bytes: Vec<u8>,
}

async fn answer(request: RequestBuilder) -> Result<Answer> {
    // Nothing of the answer is shown but Google's own word for the error: it may hold secrets.
    let (client, request) = request.timeout(LIMIT).build_split();
    let request = request.map_err(unreachable)?;
    let asked = format!("{} {}", request.method(), transit::place(request.url()));
    let answer = client.execute(request).await.map_err(unreachable)?;
    let status = answer.status();
    let lost = |why| ProviderError::new(Class::Network, format!("no answer from Google's sign-in: {why}"));
    let bytes = transit::body(answer, LARGEST).await.map_err(lost)?;
    if status.is_success() {
        return Ok(Answer { of: format!("{asked} ({})", status.as_u16()), bytes });
    }
    let text: Value = serde_json::from_slice(&bytes).unwrap_or_default();
    // Tokens are of OAuth, and those of an impersonated account of an interface of Google's.
    let told = [&text["error_description"], &text["error"], &text["error"]["message"]];
    let why = told.into_iter().find_map(Value::as_str).unwrap_or("no reason given");
    let class = if status.is_server_error() { Class::Network } else { Class::Denied };
    let message = format!("Google's sign-in refused the credentials ({}): {why}", status.as_u16());
    Err(ProviderError::new(class, message).fix("gcloud auth application-default login"))
}

fn unreachable(error: reqwest::Error) -> ProviderError {
    if let Some(alert) = refused_certificate(&error) {
        let message = format!("Google's sign-in takes no connection with the certificate of this machine, or without one: {alert}");
        return ProviderError::new(Class::Denied, message)
            .fix("use a certificate that is valid today, and whose authority the provider of the identity pool trusts");
    }
    ProviderError::new(Class::Network, format!("cannot reach Google's sign-in: {}", error.without_url()))
}

/// The server's word that ended TLS, if it is about the certificate of who asks.
fn refused_certificate<'e>(error: &'e (dyn Error + 'static)) -> Option<&'e rustls::Error> {
    if let Some(found) = error.downcast_ref() {
        return matches!(found, rustls::Error::AlertReceived(alert) if REFUSALS.contains(alert)).then_some(found);
    }
    // An error of input or output does not count what it was made of as its source.
    let inner = match error.downcast_ref::<io::Error>() {
        Some(error) => error.get_ref().map(|inner| inner as &(dyn Error + 'static)),
        None => error.source(),
    };
    refused_certificate(inner?)
}

fn read(path: &Path) -> Result<String> {
    text(path).map_err(|why| unusable(path, &why))
}

/// The text of a file, which may have [`LARGEST`] bytes.
fn text(path: &Path) -> Result<String, String> {
    let mut content = Vec::new();
    let read = File::open(path).and_then(|file| file.take(LARGEST as u64 + 1).read_to_end(&mut content));
    if read.map_err(|error| error.to_string())? > LARGEST {
        return Err(format!("it has more than {LARGEST} bytes"));
    }
    files::text(content).map_err(str::to_owned)
}

/// Whether a file is what Google's console gives for a program, and not for a user or a service.
fn is_client(text: &str) -> bool {
    let value: Value = serde_json::from_str(text).unwrap_or_default();
    ["installed", "web"].iter().any(|kind| value[kind]["client_id"].is_string())
}

fn unusable(path: &Path, why: &str) -> ProviderError {
    ProviderError::new(Class::Denied, format!("the credentials in {} cannot be used: {why}", path.display()))
        .fix("gcloud auth application-default login")
}
