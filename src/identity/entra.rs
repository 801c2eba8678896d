//! Sign-in with Entra ID: the identities that a laptop, a pipeline, a cluster or a machine of the cloud has.

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use azure_core::{
    credentials::{AccessToken, Secret, TokenCredential, TokenRequestOptions},
    error::ErrorKind,
    http::{AsyncRawResponse, ClientMethodOptions, ClientOptions, HttpClient, Request, Transport},
};
use azure_identity::{
    AzureCliCredential, ClientAssertion, ClientAssertionCredential, ClientAssertionCredentialOptions, ClientSecretCredential,
    ClientSecretCredentialOptions, ManagedIdentityCredential, ManagedIdentityCredentialOptions, UserAssignedId,
    WorkloadIdentityCredential, WorkloadIdentityCredentialOptions,
};
use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use jiff::Timestamp;
use reqwest::Url;
use tokio::sync::Mutex;

use super::{Variables, azureml};
use crate::transit;

/// The scope of tokens for blob storage.
pub const STORAGE: &str = "https://storage.azure.com/.default";
/// A container registry exchanges such a token for its own.
pub const MANAGEMENT: &str = "https://management.azure.com/.default";

type Open = fn(Variables<'_>) -> Result<Arc<dyn TokenCredential>, String>;

/// One way to sign in.
pub struct Way {
    pub name: &'static str,
    needed: &'static [&'static str],
    /// The variables, or the program, that make it ready.
    pub needs: &'static str,
    open: Open,
}

/// The first that is ready is used.
pub const WAYS: &[Way] = &[
    Way {
        name: "Entra: client secret",
        needed: &["AZURE_TENANT_ID", "AZURE_CLIENT_ID", "AZURE_CLIENT_SECRET"],
        needs: "AZURE_TENANT_ID, AZURE_CLIENT_ID, AZURE_CLIENT_SECRET",
        open: client_secret,
    },
    Way {
        name: "Entra: workload identity",
        needed: &["AZURE_TENANT_ID", "AZURE_CLIENT_ID", "AZURE_FEDERATED_TOKEN_FILE"],
        needs: "AZURE_TENANT_ID, AZURE_CLIENT_ID, AZURE_FEDERATED_TOKEN_FILE",
        open: workload_identity,
    },
    Way {
        name: "Entra: GitHub's identity of this run",
        needed: &["AZURE_TENANT_ID", "AZURE_CLIENT_ID", "ACTIONS_ID_TOKEN_REQUEST_URL", "ACTIONS_ID_TOKEN_REQUEST_TOKEN"],
        needs: "AZURE_TENANT_ID, AZURE_CLIENT_ID and a workflow with `id-token: write`",
        open: github,
    },
    Way {
        name: "Entra: managed identity",
        needed: &["FTCTL_AZURE_MANAGED_IDENTITY"],
        needs: "FTCTL_AZURE_MANAGED_IDENTITY=system, or the client id of one",
        open: managed_identity,
    },
    // A job that was given its user's identity is to act as that user, whatever its cluster is besides.
    Way {
        name: "Entra: user of this Azure ML job",
        needed: &azureml::ON_BEHALF,
        needs: "OBO_ENDPOINT, which Azure ML sets in a job",
        open: azureml::on_behalf,
    },
    Way {
        name: "Entra: managed identity of this Azure ML job",
        needed: &azureml::MANAGED,
        needs: "MSI_ENDPOINT, MSI_SECRET, which Azure ML sets in a job",
        open: |variables| azureml::managed(variables, None),
    },
    Way { name: "Entra: az login", needed: &[AZ], needs: "the program az, logged in", open: azure_cli },
];

/// Entra of the public cloud.
const AUTHORITY: &str = "https://login.microsoftonline.com";

/// Not a variable: whether `az` is in the path.
const AZ: &str = "az";

/// Variables that sign a user in, or are as good as that.
pub const SECRETS: [&str; 7] = [
    "AZURE_CLIENT_SECRET",
    "AZURE_FEDERATED_TOKEN_FILE",
    "ACTIONS_ID_TOKEN_REQUEST_URL",
    "ACTIONS_ID_TOKEN_REQUEST_TOKEN",
    "OBO_ENDPOINT",
    "MSI_ENDPOINT",
    "MSI_SECRET",
];

/// Variables that any of [`WAYS`] goes by, besides the path to `az`.
pub const INVOLVED: [&str; 15] = [
    "AZURE_TENANT_ID",
    "AZURE_CLIENT_ID",
    "AZURE_CLIENT_SECRET",
    "AZURE_FEDERATED_TOKEN_FILE",
    "AZURE_AUTHORITY_HOST",
    "AZURE_CONFIG_DIR",
    "ACTIONS_ID_TOKEN_REQUEST_URL",
    "ACTIONS_ID_TOKEN_REQUEST_TOKEN",
    "FTCTL_AZURE_MANAGED_IDENTITY",
    "IDENTITY_ENDPOINT",
    "IDENTITY_HEADER",
    "OBO_ENDPOINT",
    "MSI_ENDPOINT",
    "MSI_SECRET",
    azureml::CLIENT,
];

/// Those of [`INVOLVED`] that sign in on another machine as well: they need no files or programs here.
pub const CARRIED: [&str; 4] = ["AZURE_TENANT_ID", "AZURE_CLIENT_ID", "AZURE_CLIENT_SECRET", "AZURE_AUTHORITY_HOST"];

impl Way {
    pub fn is_ready(&self, variables: Variables<'_>) -> bool {
        self.needed.iter().all(|name| if *name == AZ { has_azure_cli(variables) } else { variables(name).is_some() })
    }

    /// Tokens for `scope`. The error is for a person and has nothing secret.
    pub fn open(&self, variables: Variables<'_>, scope: &'static str) -> Result<TokenSource, String> {
        Ok(TokenSource::new((self.open)(variables)?, scope))
    }
}

/// Tokens for `scope`, by the first way that is ready; `None` without any. The error is for a person and has nothing secret.
pub fn source(variables: Variables<'_>, scope: &'static str) -> Option<Result<TokenSource, String>> {
    WAYS.iter().find(|way| way.is_ready(variables)).map(|way| way.open(variables, scope))
}

/// A token for `scope`, by the first way that is ready; `None` without any. The error is for a person and has nothing secret.
pub fn token(variables: Variables<'_>, scope: &'static str) -> impl Future<Output = Option<Result<String, String>>> + Send + use<> {
    let opened = source(variables, scope);
    async move {
        Some(match opened? {
            Ok(source) => source.token().await.map_err(|none| none.why),
            Err(error) => Err(error),
        })
    }
}

/// Longest wait for a connection to the source of an identity, and for its answer.
const CONNECT: Duration = Duration::from_secs(10);
const ANSWER: Duration = Duration::from_secs(60);

/// A token, or GitHub's word on a run, has some kilobytes.
const LARGEST: usize = 256 << 10;
/// No service gives out a token for longer, seconds. The official crate adds the seconds that it is told to the time of now, and
/// ends the program where no clock can count so far.
const LONGEST_LIFE: i64 = 366 * 24 * 3_600;

/// A token this close to its end is replaced, seconds: no request outlives it.
const FRESH: i64 = 300;

/// Why there is no token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NoToken {
    /// For a person, and without anything secret.
    pub why: String,
    /// There may be one in a moment: the service that gives them out was not reached, or is busy.
    pub is_passing: bool,
}

/// See [`NoToken::is_passing`]; `gave_one`: the service has given out a token before.
fn is_passing(error: &azure_core::Error, gave_one: bool) -> bool {
    std::iter::successors(Some(error as &(dyn std::error::Error + 'static)), |error| error.source())
        .filter_map(|error| error.downcast_ref::<azure_core::Error>())
        .any(|error| match error.kind() {
            ErrorKind::Connection | ErrorKind::Io => true,
            // No JSON: a gateway's page in place of the service's words, or, where it never spoke, another server.
            ErrorKind::DataConversion => gave_one,
            ErrorKind::HttpResponse { status, .. } => is_busy(u16::from(*status)),
            _ => false,
        })
}

/// Whether a service that gives out tokens may answer otherwise in a moment.
fn is_busy(status: u16) -> bool {
    matches!(status, 408 | 429 | 500..=599)
}

/// The kind of an error after this answer.
pub(super) fn kind_of(status: u16) -> ErrorKind {
    if is_busy(status) { ErrorKind::Io } else { ErrorKind::Credential }
}

/// Tokens, each used until shortly before its end. One at a time is asked for, however many requests wait: `az` is a slow program.
pub struct TokenSource {
    credential: Arc<dyn TokenCredential>,
    scope: &'static str,
    last: Mutex<Option<AccessToken>>,
}

impl TokenSource {
    pub fn new(credential: Arc<dyn TokenCredential>, scope: &'static str) -> Self {
        Self { credential, scope, last: Mutex::new(None) }
    }

    /// The last token was refused before its time: the next is another.
    pub async fn forget(&self) {
        *self.last.lock().await = None;
    }

    /// Whose the last token is, as roles are given: by the id that the directory has for a user or an identity.
    pub fn object_id(&self) -> Option<String> {
        let last = self.last.try_lock().ok()?;
        let claims = BASE64_URL_SAFE_NO_PAD.decode(last.as_ref()?.token.secret().split('.').nth(1)?).ok()?;
        let claims: serde_json::Value = serde_json::from_slice(&claims).ok()?;
        claims["oid"].as_str().filter(|id| is_object_id(id)).map(str::to_owned)
    }

    pub async fn token(&self) -> Result<String, NoToken> {
        let mut last = self.last.lock().await;
        let left = |token: &AccessToken| token.expires_on.unix_timestamp() - Timestamp::now().as_second();
        if let Some(token) = last.as_ref().filter(|token| left(token) > FRESH) {
            return Ok(token.token.secret().to_owned());
        }
        match (self.credential.get_token(&[self.scope], None).await, last.as_ref()) {
            (Ok(token), _) => Ok(last.insert(token).token.secret().to_owned()),
            // The old one may do while the token service is away.
            (Err(_), Some(token)) if left(token) > 0 => Ok(token.token.secret().to_owned()),
            (Err(error), last) => Err(NoToken { is_passing: is_passing(&error, last.is_some()), why: error.to_string() }),
        }
    }
}

fn usable<C: TokenCredential + 'static>(
    what: &str,
    opened: azure_core::Result<Arc<C>>,
) -> Result<Arc<dyn TokenCredential>, String> {
    opened.map(|credential| credential as _).map_err(|error| format!("{what} cannot be used: {error}"))
}

fn tenant_and_client(variables: Variables<'_>) -> (String, String) {
    let value = |name| variables(name).unwrap_or_default();
    (value("AZURE_TENANT_ID"), value("AZURE_CLIENT_ID"))
}

/// Requests of the official crate by this client.
fn client_options(http: reqwest::ClientBuilder) -> Result<ClientOptions, String> {
    let http = http.connect_timeout(CONNECT).read_timeout(ANSWER).build();
    let http = http.map_err(|error| format!("a token service cannot be asked: {error}"))?;
    Ok(ClientOptions { transport: Some(Transport::new(Arc::new(TokenClient(http)))), ..Default::default() })
}

/// Those to Entra, in the cloud that the environment names.
fn entra_options(variables: Variables<'_>) -> Result<ClientOptions, String> {
    let authority = variables("AZURE_AUTHORITY_HOST").unwrap_or_else(|| AUTHORITY.to_owned());
    let authority = Url::parse(&authority).map_err(|error| format!("AZURE_AUTHORITY_HOST is no address: {error}"))?;
    client_options(transit::client(&authority))
}

/// Tells the official crate only answers of a token service that it can bear.
#[derive(Debug)]
struct TokenClient(reqwest::Client);

#[async_trait]
impl HttpClient for TokenClient {
    async fn execute_request(&self, request: &Request) -> azure_core::Result<AsyncRawResponse> {
        let (status, headers, body) = self.0.execute_request(request).await?.deconstruct();
        let bytes = transit::gathered(body, LARGEST).await?;
        let life = serde_json::from_slice::<serde_json::Value>(&bytes).ok().and_then(|answer| answer["expires_in"].as_i64());
        if life.is_some_and(|seconds| !(0..=LONGEST_LIFE).contains(&seconds)) {
            let why = "the token service says that its token lasts longer than a year, or ended before now";
            return Err(azure_core::Error::with_message(ErrorKind::Credential, why));
        }
        Ok(AsyncRawResponse::from_bytes(status, headers, bytes))
    }
}

fn client_secret(variables: Variables<'_>) -> Result<Arc<dyn TokenCredential>, String> {
    let (tenant, client) = tenant_and_client(variables);
    let secret = Secret::new(variables("AZURE_CLIENT_SECRET").unwrap_or_default());
    let options = ClientSecretCredentialOptions { client_options: entra_options(variables)? };
    usable("AZURE_CLIENT_SECRET", ClientSecretCredential::new(&tenant, client, secret, Some(options)))
}

fn workload_identity(variables: Variables<'_>) -> Result<Arc<dyn TokenCredential>, String> {
    let (tenant, client) = tenant_and_client(variables);
    let options = WorkloadIdentityCredentialOptions {
        tenant_id: Some(tenant),
        client_id: Some(client),
        token_file_path: variables("AZURE_FEDERATED_TOKEN_FILE").map(PathBuf::from),
        credential_options: ClientAssertionCredentialOptions { client_options: entra_options(variables)? },
    };
    usable("AZURE_FEDERATED_TOKEN_FILE", WorkloadIdentityCredential::new(Some(options)))
}

fn github(variables: Variables<'_>) -> Result<Arc<dyn TokenCredential>, String> {
    let (tenant, client) = tenant_and_client(variables);
    let value = |name| variables(name).unwrap_or_default();
    let assertion =
        GitHub { url: value("ACTIONS_ID_TOKEN_REQUEST_URL"), token: Secret::new(value("ACTIONS_ID_TOKEN_REQUEST_TOKEN")) };
    let options = ClientAssertionCredentialOptions { client_options: entra_options(variables)? };
    usable("GitHub's identity", ClientAssertionCredential::new(tenant, client, assertion, Some(options)))
}

fn managed_identity(variables: Variables<'_>) -> Result<Arc<dyn TokenCredential>, String> {
    let which = variables("FTCTL_AZURE_MANAGED_IDENTITY").filter(|which| which != "system");
    if variables("IDENTITY_ENDPOINT").is_none() && azureml::MANAGED.iter().all(|name| variables(name).is_some()) {
        return azureml::managed(variables, which);
    }
    let client_options = client_options(transit::direct())?;
    let user_assigned_id = which.map(UserAssignedId::ClientId);
    let options = ManagedIdentityCredentialOptions { user_assigned_id, client_options };
    usable("the managed identity", ManagedIdentityCredential::new(Some(options)))
}

fn azure_cli(_: Variables<'_>) -> Result<Arc<dyn TokenCredential>, String> {
    let program = usable("az", AzureCliCredential::new(None))?;
    Ok(Arc::new(Az { program, has_signed_in: AtomicBool::new(false) }))
}

/// `az`, which says in words alone why it has no token. Once it had one, nothing but the wish for a login is more than a moment's
/// trouble.
#[derive(Debug)]
struct Az {
    program: Arc<dyn TokenCredential>,
    has_signed_in: AtomicBool,
}

#[async_trait]
impl TokenCredential for Az {
    async fn get_token(&self, scopes: &[&str], options: Option<TokenRequestOptions<'_>>) -> azure_core::Result<AccessToken> {
        let wants_login = |why: &str| ["az login", "AADSTS"].iter().any(|word| why.contains(word));
        match self.program.get_token(scopes, options).await {
            Ok(token) => {
                self.has_signed_in.store(true, Ordering::Relaxed);
                Ok(token)
            }
            Err(error) if self.has_signed_in.load(Ordering::Relaxed) && !wants_login(&error.to_string()) => {
                Err(azure_core::Error::with_message(ErrorKind::Io, error.to_string()))
            }
            refused => refused,
        }
    }
}

fn has_azure_cli(variables: Variables<'_>) -> bool {
    which::which_in_global("az", variables("PATH")).is_ok_and(|mut found| found.next().is_some())
}

/// The identity of a workflow's run: GitHub vouches for it, and Entra trusts GitHub when it was told to.
#[derive(Debug)]
struct GitHub {
    url: String,
    token: Secret,
}

#[async_trait]
impl ClientAssertion for GitHub {
    async fn secret(&self, _: Option<ClientMethodOptions<'_>>) -> azure_core::Result<String> {
        let because = |kind, why: String| azure_core::Error::with_message(kind, format!("GitHub's token service: {why}"));
        let failed = |why| because(ErrorKind::Credential, why);
        let url = Url::parse(&format!("{}&audience=api://AzureADTokenExchange", self.url));
        let url = url.ok().filter(transit::is_private).ok_or_else(|| failed("it has no address by https".to_owned()))?;
        let told = |error: reqwest::Error| because(ErrorKind::Io, error.without_url().to_string());
        let http = transit::client(&url).build().map_err(told)?;
        let answer = http.get(url).bearer_auth(self.token.secret()).send().await.map_err(told)?;
        if !answer.status().is_success() {
            return Err(because(kind_of(answer.status().as_u16()), format!("it answered {}", answer.status())));
        }
        let bytes = transit::body(answer, LARGEST).await.map_err(|why| because(ErrorKind::Io, why))?;
        let parsed: serde_json::Value = serde_json::from_slice(&bytes).map_err(|error| failed(error.to_string()))?;
        parsed["value"].as_str().map(str::to_owned).ok_or_else(|| failed("its answer has no token".to_owned()))
    }
}

/// Whether this can be the id that the directory has for a user or an identity: what is put into a command for a person.
pub fn is_object_id(text: &str) -> bool {
    text.len() == 36 && text.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-')
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicI64;

    use azure_core::{http::Method, time::OffsetDateTime};
    use serde_json::json;
    use tokio::net::TcpListener;

    use super::*;
    use crate::devcloud::http::{Reply, serve};

    /// Tokens named after their number, each good for the seconds that are set; none while that is 0.
    #[derive(Debug, Default)]
    struct Issuer {
        good_for: AtomicI64,
        issued: AtomicI64,
    }

    #[async_trait]
    impl TokenCredential for Issuer {
        async fn get_token(&self, _: &[&str], _: Option<TokenRequestOptions<'_>>) -> azure_core::Result<AccessToken> {
            let seconds = self.good_for.load(Ordering::SeqCst);
            if seconds == 0 {
                return Err(azure_core::Error::with_message(ErrorKind::Credential, "away"));
            }
            let number = self.issued.fetch_add(1, Ordering::SeqCst) + 1;
            let ends = OffsetDateTime::now_utc() + Duration::from_secs(seconds as u64);
            Ok(AccessToken::new(format!("token {number}"), ends))
        }
    }

    /// The same token to all.
    #[derive(Debug)]
    struct Given(String);

    #[async_trait]
    impl TokenCredential for Given {
        async fn get_token(&self, _: &[&str], _: Option<TokenRequestOptions<'_>>) -> azure_core::Result<AccessToken> {
            Ok(AccessToken::new(self.0.clone(), OffsetDateTime::now_utc() + Duration::from_secs(3_600)))
        }
    }

    #[tokio::test]
    async fn a_token_tells_whose_it_is_unless_that_is_no_id() {
        let id = "11059fcc-5514-4800-b5f8-49808b9cfab6";
        let with = |claims: &str| format!("head.{}.signature", BASE64_URL_SAFE_NO_PAD.encode(claims));
        for (token, told) in [
            (with(&json!({ "oid": id }).to_string()), Some(id)),
            (with(r#"{"oid":"$(rm -rf ~)"}"#), None),
            (with("nonsense"), None),
            ("opaque".to_owned(), None),
        ] {
            let source = TokenSource::new(Arc::new(Given(token)), STORAGE);
            assert_eq!(source.object_id(), None, "there is none yet");
            source.token().await.unwrap();
            assert_eq!(source.object_id().as_deref(), told);
        }
    }

    #[tokio::test]
    async fn a_token_is_used_until_shortly_before_its_end() {
        let issuer = Arc::new(Issuer::default());
        let source = TokenSource::new(issuer.clone(), STORAGE);
        assert!(source.token().await.unwrap_err().why.contains("away"));
        issuer.good_for.store(FRESH - 10, Ordering::SeqCst);
        assert_eq!(source.token().await.unwrap(), "token 1");
        // Too close to its end: replaced, unless there is no other.
        assert_eq!(source.token().await.unwrap(), "token 2");
        issuer.good_for.store(0, Ordering::SeqCst);
        assert_eq!(source.token().await.unwrap(), "token 2");
        issuer.good_for.store(FRESH + 60, Ordering::SeqCst);
        assert_eq!(source.token().await.unwrap(), "token 3");
        assert_eq!(source.token().await.unwrap(), "token 3");
    }

    /// Fails in its own way, or gives out a token.
    #[derive(Debug)]
    struct Words(std::sync::Mutex<Option<azure_core::Error>>);

    #[async_trait]
    impl TokenCredential for Words {
        async fn get_token(&self, _: &[&str], _: Option<TokenRequestOptions<'_>>) -> azure_core::Result<AccessToken> {
            let failure = self.0.lock().unwrap().take();
            failure.map_or_else(|| Ok(AccessToken::new("token".to_owned(), OffsetDateTime::now_utc())), Err)
        }
    }

    #[tokio::test]
    async fn a_token_service_that_is_away_is_told_from_one_that_refuses() {
        use azure_core::{Error, http::StatusCode};
        let answered = |status| Error::new(ErrorKind::HttpResponse { status, error_code: None, raw_response: None }, "said");
        for (error, is_passing) in [
            (Error::with_message(ErrorKind::Connection, "no route"), true),
            (Error::with_message(ErrorKind::Io, "timed out"), true),
            (answered(StatusCode::ServiceUnavailable), true),
            (answered(StatusCode::TooManyRequests), true),
            (answered(StatusCode::Unauthorized), false),
            (answered(StatusCode::BadRequest), false),
            (Error::with_message(ErrorKind::Credential, "no secret"), false),
            (Error::with_message(ErrorKind::DataConversion, "a page"), false),
        ] {
            // As the library wraps what its credentials meet.
            let wrapped = Error::with_error(ErrorKind::Credential, error, "authentication failed");
            let told = format!("{wrapped:?}");
            let source = TokenSource::new(Arc::new(Words(Some(wrapped).into())), STORAGE);
            assert_eq!(source.token().await.unwrap_err().is_passing, is_passing, "{told}");
        }
        assert!(super::is_passing(&Error::with_message(ErrorKind::DataConversion, "a page"), true), "it gave out tokens before");
    }

    #[tokio::test]
    async fn az_is_away_for_a_moment_only_after_it_had_a_token_and_wants_no_login() {
        let words = Arc::new(Words(None.into()));
        let source = TokenSource::new(Arc::new(Az { program: words.clone(), has_signed_in: AtomicBool::new(false) }), STORAGE);
        let fails = async |why: &'static str| {
            *words.0.lock().unwrap() = Some(azure_core::Error::with_message(ErrorKind::Credential, why));
            source.token().await.unwrap_err()
        };
        let away = "Max retries exceeded with url";
        assert_eq!(fails(away).await, NoToken { why: away.to_owned(), is_passing: false }, "no one ever signed in");
        source.token().await.unwrap();
        source.forget().await;
        assert_eq!(fails(away).await, NoToken { why: away.to_owned(), is_passing: true });
        for why in ["Please run 'az login' to setup account.", "AADSTS700082: The refresh token has expired"] {
            assert!(!fails(why).await.is_passing, "{why}");
        }
    }

    #[tokio::test]
    async fn an_answer_that_the_official_crate_cannot_bear_gives_no_token() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}/token", listener.local_addr().unwrap());
        let server = serve(listener, |request| async move {
            let body = match request.path() {
                "/long" => json!({ "access_token": "x".repeat(LARGEST) }),
                "/for_ever" => json!({ "access_token": "t", "expires_in": i64::MAX }),
                _ => json!({ "access_token": "t", "expires_in": 3_600 }),
            };
            Some(Reply::json(200, &body))
        });
        tokio::spawn(server);
        let client = TokenClient(transit::direct().build().unwrap());
        for (path, why) in [("/long", "more than"), ("/for_ever", "longer than a year"), ("/token", "")] {
            let url = Url::parse(&address).unwrap().join(path).unwrap();
            let answer = client.execute_request(&Request::new(url, Method::Get)).await;
            assert_eq!(answer.is_ok(), why.is_empty(), "{path}");
            assert!(answer.err().is_none_or(|error| error.to_string().contains(why)), "{path}");
        }
    }
}
