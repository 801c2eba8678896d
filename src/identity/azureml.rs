//! The identities of a job on Azure ML: the service names an address for each in the job's environment, which gives out tokens.
//! `azure_identity` knows the first of the two protocols, and refuses it.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use azure_core::{
    credentials::{AccessToken, Secret, TokenCredential, TokenRequestOptions},
    error::ErrorKind,
    time::OffsetDateTime,
};
use reqwest::Url;
use serde::Deserialize;

use super::{Variables, entra};
use crate::transit;

/// Those of the cluster's managed identity: an address, and what proves that a process of the job asks.
pub const MANAGED: [&str; 2] = ["MSI_ENDPOINT", "MSI_SECRET"];
/// The address that gives out tokens of the user who submitted the job.
pub const ON_BEHALF: [&str; 1] = ["OBO_ENDPOINT"];
/// Which of the cluster's identities is the job's.
pub const CLIENT: &str = "DEFAULT_IDENTITY_CLIENT_ID";

/// The one version of the managed identity's protocol that jobs are given.
const VERSION: &str = "2017-09-01";
/// Longest wait for a connection, and for the answer.
const CONNECT: Duration = Duration::from_secs(10);
const ANSWER: Duration = Duration::from_secs(30);
/// A token of a user who is in many groups has some kilobytes.
const LARGEST: usize = 256 << 10;

/// Tokens of the managed identity with this client id, or without one of that which the job has by default.
pub fn managed(variables: Variables<'_>, client: Option<String>) -> Result<Arc<dyn TokenCredential>, String> {
    let [endpoint, secret] = MANAGED;
    let client = client.or_else(|| variables(CLIENT)).map(|client| ("clientid", client));
    let queries = [("api-version", VERSION.to_owned())].into_iter().chain(client);
    let secret = Secret::new(variables(secret).unwrap_or_default());
    Ok(Arc::new(Identity::at(endpoint, variables, queries, Some(secret))?))
}

/// Tokens of the user who submitted the job.
pub fn on_behalf(variables: Variables<'_>) -> Result<Arc<dyn TokenCredential>, String> {
    Ok(Arc::new(Identity::at(ON_BEHALF[0], variables, [], None)?))
}

#[derive(Debug)]
struct Identity {
    /// The variable that has the address.
    origin: &'static str,
    address: Url,
    secret: Option<Secret>,
    http: reqwest::Client,
}

#[derive(Deserialize)]
struct Answer {
    access_token: String,
    expires_on: Moment,
}

/// Seconds since 1970: a number, or in older images its text.
#[derive(Deserialize)]
#[serde(untagged)]
enum Moment {
    Number(i64),
    Text(String),
}

impl Moment {
    fn time(&self) -> Option<OffsetDateTime> {
        let seconds = match self {
            Self::Number(seconds) => *seconds,
            Self::Text(text) => text.parse().ok()?,
        };
        OffsetDateTime::from_unix_timestamp(seconds).ok()
    }
}

impl Identity {
    /// The address in the variable `origin`, with `queries`. The error is for a person.
    fn at(
        origin: &'static str,
        variables: Variables<'_>,
        queries: impl IntoIterator<Item = (&'static str, String)>,
        secret: Option<Secret>,
    ) -> Result<Self, String> {
        let parsed = Url::parse(&variables(origin).unwrap_or_default()).ok().filter(transit::is_private);
        let mut address = parsed.ok_or_else(|| format!("{origin} is not an address of this machine, nor one with https"))?;
        for (name, value) in queries {
            address.query_pairs_mut().append_pair(name, &value);
        }
        let http = transit::client(&address).connect_timeout(CONNECT).timeout(ANSWER).build();
        let http = http.map_err(|error| format!("the address in {origin} cannot be asked: {}", error.without_url()))?;
        Ok(Self { origin, address, secret, http })
    }

    /// An error says as well whether another try may help.
    async fn ask(&self, scope: &str) -> Result<AccessToken, (ErrorKind, String)> {
        let (lost, nonsense) = (|why| (ErrorKind::Io, why), |why| (ErrorKind::Credential, why));
        let mut address = self.address.clone();
        address.query_pairs_mut().append_pair("resource", scope.trim_end_matches("/.default"));
        let request = self.http.get(address);
        let request = self.secret.iter().fold(request, |request, secret| request.header("secret", secret.secret()));
        let answer = request.send().await.map_err(|error| lost(transit::why(&error)))?;
        if !answer.status().is_success() {
            let status = answer.status().as_u16();
            let why = format!("it answered {status}; look whether the job's cluster, or its user, has this identity");
            return Err((entra::kind_of(status), why));
        }
        understood(&transit::body(answer, LARGEST).await.map_err(nonsense)?).map_err(nonsense)
    }
}

/// Nothing of the answer is shown: it holds the token.
pub fn understood(bytes: &[u8]) -> Result<AccessToken, String> {
    let answer: Answer = serde_json::from_slice(bytes).map_err(|_| "its answer has no token and the end of one".to_owned())?;
    let expires = answer.expires_on.time().ok_or("its answer does not say when the token ends")?;
    if answer.access_token.is_empty() || !answer.access_token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err("its answer has no token that could be sent".to_owned());
    }
    Ok(AccessToken::new(answer.access_token, expires))
}

#[async_trait]
impl TokenCredential for Identity {
    async fn get_token(&self, scopes: &[&str], _: Option<TokenRequestOptions<'_>>) -> azure_core::Result<AccessToken> {
        let asked = self.ask(scopes.first().copied().unwrap_or_default()).await;
        let told = |why| format!("the identity of this Azure ML job ({}): {why}", self.origin);
        asked.map_err(|(kind, why)| azure_core::Error::with_message(kind, told(why)))
    }
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::TcpListener,
    };

    use super::*;
    use crate::identity::entra::{MANAGEMENT, NoToken, STORAGE, TokenSource, WAYS};

    const SECRET: &str = "very-secret";

    /// One answer of an address of a job, to whatever it is asked.
    struct Node {
        listener: TcpListener,
        answer: String,
    }

    impl Node {
        async fn answering(status: &str, body: &str) -> Self {
            let head = format!("HTTP/1.1 {status}\r\nlocation: /elsewhere\r\ncontent-length: {}\r\n", body.len());
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            Self { listener, answer: format!("{head}connection: close\r\n\r\n{body}") }
        }

        fn address(&self, path: &str) -> String {
            format!("http://{}{path}", self.listener.local_addr().unwrap())
        }

        /// The head of the request.
        async fn serve(&self) -> String {
            let mut stream = self.listener.accept().await.unwrap().0;
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(stream.read_u8().await.unwrap());
            }
            // A client that has read enough may be gone.
            let _ = stream.write_all(self.answer.as_bytes()).await;
            String::from_utf8(head).unwrap()
        }
    }

    /// The way of this name with these variables.
    fn opened(name: &str, pairs: &[(&str, &str)], scope: &'static str) -> Result<TokenSource, String> {
        let variables = |name: &str| pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        let way = WAYS.iter().find(|way| way.is_ready(&variables)).expect("one is ready");
        assert_eq!(way.name, name);
        way.open(&variables, scope)
    }

    const BY_CLUSTER: &str = "Entra: managed identity of this Azure ML job";
    const BY_USER: &str = "Entra: user of this Azure ML job";

    async fn managed_answers(status: &str, body: &str) -> Result<String, String> {
        let node = Node::answering(status, body).await;
        let source = opened(BY_CLUSTER, &[("MSI_ENDPOINT", &node.address("/MSI/auth")), ("MSI_SECRET", SECRET)], STORAGE)?;
        tokio::join!(source.token(), node.serve()).0.map_err(|none| none.why)
    }

    #[tokio::test]
    async fn a_job_has_the_token_of_its_clusters_identity() {
        let node = Node::answering("200 OK", r#"{"access_token":"mine","expires_on":4102444800,"token_type":"Bearer"}"#).await;
        let address = node.address("/MSI/auth");
        let given = [("MSI_ENDPOINT", address.as_str()), ("MSI_SECRET", SECRET), (CLIENT, "11059fcc"), ("PATH", "")];
        let own = [&given[..], &[("FTCTL_AZURE_MANAGED_IDENTITY", "another")]].concat();
        let system = [&given[..], &[("FTCTL_AZURE_MANAGED_IDENTITY", "system")]].concat();
        let cases = [
            (BY_CLUSTER, &given[..], STORAGE, "clientid=11059fcc&resource=https%3A%2F%2Fstorage.azure.com"),
            ("Entra: managed identity", &own, MANAGEMENT, "clientid=another&resource=https%3A%2F%2Fmanagement.azure.com"),
            ("Entra: managed identity", &system, STORAGE, "clientid=11059fcc&resource=https%3A%2F%2Fstorage.azure.com"),
        ];
        for (name, variables, scope, asked) in cases {
            let source = opened(name, variables, scope).unwrap();
            let (token, head) = tokio::join!(source.token(), node.serve());
            assert_eq!(token.unwrap(), "mine");
            assert!(head.starts_with(&format!("GET /MSI/auth?api-version=2017-09-01&{asked} HTTP/1.1\r\n")), "{head}");
            assert!(head.contains("\r\nsecret: very-secret\r\n"), "{head}");
            assert_eq!(source.token().await.unwrap(), "mine", "the node is asked once");
        }
    }

    #[tokio::test]
    async fn a_job_of_a_user_has_the_users_token_first() {
        let node = Node::answering("200 OK", r#"{"access_token":"theirs","expires_on":"4102444800"}"#).await;
        let address = node.address("/OBO/token");
        let variables = [("OBO_ENDPOINT", address.as_str()), ("MSI_ENDPOINT", "http://127.0.0.1:1"), ("MSI_SECRET", SECRET)];
        let source = opened(BY_USER, &variables, STORAGE).unwrap();
        let (token, head) = tokio::join!(source.token(), node.serve());
        assert_eq!(token.unwrap(), "theirs");
        assert!(head.starts_with("GET /OBO/token?resource=https%3A%2F%2Fstorage.azure.com HTTP/1.1\r\n"), "{head}");
        assert!(!head.contains("secret"), "{head}");
    }

    #[tokio::test]
    async fn an_answer_that_is_no_token_is_refused_and_not_repeated() {
        let large = format!(r#"{{"access_token":"{}","expires_on":4102444800}}"#, "very-secret".repeat(LARGEST / 11));
        for (status, body, why) in [
            ("400 Bad Request", r#"{"error":{"message":"very-secret"}}"#, "it answered 400; look whether"),
            ("307 Temporary Redirect", "", "it answered 307"),
            ("200 OK", "very-secret", "no token and the end of one"),
            ("200 OK", r#"{"access_token":"very-secret"}"#, "no token and the end of one"),
            ("200 OK", r#"{"access_token":"very-secret","expires_on":"tomorrow"}"#, "does not say when"),
            ("200 OK", r#"{"access_token":"very-secret","expires_on":9223372036854775807}"#, "does not say when"),
            ("200 OK", r#"{"access_token":"","expires_on":4102444800}"#, "no token that could be sent"),
            ("200 OK", r#"{"access_token":"very-secret\n","expires_on":4102444800}"#, "no token that could be sent"),
            ("200 OK", &large, "more than 262144 bytes"),
        ] {
            let error = managed_answers(status, body).await.unwrap_err();
            assert!(error.contains("(MSI_ENDPOINT)") && error.contains(why) && !error.contains(SECRET), "{error}");
        }
        let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        let address = format!("http://{closed}/?very-secret");
        let source = opened(BY_CLUSTER, &[("MSI_ENDPOINT", address.as_str()), ("MSI_SECRET", SECRET)], STORAGE).unwrap();
        let NoToken { why: error, is_passing } = source.token().await.unwrap_err();
        assert!(is_passing, "it may come back");
        assert!(error.contains("(MSI_ENDPOINT)") && !error.contains(SECRET), "{error}");
    }

    #[test]
    fn an_address_elsewhere_is_asked_by_https_alone() {
        for (address, usable) in [
            ("http://127.0.0.1:46808/MSI/auth", true),
            ("http://localhost:46809/OBO/token", true),
            ("https://identity.example.org/token", true),
            ("http://10.0.0.4/token", false),
            ("http://169.254.169.254/metadata/identity", false),
            ("nonsense", false),
        ] {
            for (name, variables) in
                [(BY_CLUSTER, &[("MSI_ENDPOINT", address), ("MSI_SECRET", SECRET)][..]), (BY_USER, &[("OBO_ENDPOINT", address)])]
            {
                let opened = opened(name, variables, STORAGE).map(drop);
                assert_eq!(opened.is_ok(), usable, "{address}: {opened:?}");
            }
        }
    }
}
