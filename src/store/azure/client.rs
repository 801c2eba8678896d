//! Requests to one container: signed, checked on their way, and sent again when that may help.

use std::{
    collections::hash_map::RandomState,
    fmt::Write as _,
    hash::{BuildHasher, Hasher},
    io,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use bytes::Bytes;
use jiff::Timestamp;
use reqwest::{
    Method, Url,
    header::{AUTHORIZATION, CONTENT_LENGTH, HeaderMap, HeaderName, HeaderValue},
};
use tokio::{
    sync::Semaphore,
    time::{Instant, sleep, sleep_until},
};

use super::{
    super::{Limits, Result, StoreError},
    batch,
    location::Location,
    retry::{Patience, Trouble, is_passing},
    sign_in::Credential,
    sums::md5,
    wire,
};
use crate::job::report;

/// Of the protocol; the newest that emulators know is later.
const VERSION: &str = "2023-11-03";

/// Longest wait for a connection.
const CONNECT: Duration = Duration::from_secs(10);
/// A try may take so long, and the time of its bytes on a slow line beside.
const ANSWER: Duration = Duration::from_secs(60);
const SLOW_LINE: u64 = 64 << 10;

pub(super) struct Client {
    http: reqwest::Client,
    pub location: Location,
    pub credential: Credential,
    patience: Patience,
    /// As many requests may be under way.
    requests: Semaphore,
    pace: Pace,
}

/// Whom a request is about.
#[derive(Debug, Clone)]
enum Target {
    /// The object of this path in the store.
    Blob(String),
    Container,
    Service,
}

/// What is asked of a blob, of the container, or of the service.
#[derive(Debug, Clone)]
pub(super) struct Request {
    method: Method,
    target: Target,
    query: Vec<(&'static str, String)>,
    headers: Vec<(&'static str, String)>,
    body: Bytes,
    /// Requests that are signed one by one and make up the body.
    parts: Vec<Request>,
    /// Bytes of the answer.
    expected: u64,
}

impl Request {
    fn to(method: Method, target: Target) -> Self {
        Self { method, target, query: Vec::new(), headers: Vec::new(), body: Bytes::new(), parts: Vec::new(), expected: 0 }
    }
    pub fn new(method: Method, path: &str) -> Self {
        Self::to(method, Target::Blob(path.to_owned()))
    }
    pub fn container(method: Method) -> Self {
        Self::to(method, Target::Container).query("restype", "container")
    }
    pub fn service(method: Method) -> Self {
        Self::to(method, Target::Service).query("restype", "service")
    }
    /// Several in one.
    pub fn batch(parts: Vec<Self>) -> Self {
        Self { parts, ..Self::container(Method::POST).query("comp", "batch") }
    }
    /// The same of another object.
    pub fn at(mut self, path: &str) -> Self {
        self.target = Target::Blob(path.to_owned());
        self
    }
    pub fn query(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.query.push((name, value.into()));
        self
    }
    pub fn header(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }
    pub fn expect(mut self, bytes: u64) -> Self {
        self.expected = bytes;
        self
    }
    fn bytes(&self) -> u64 {
        self.body.len() as u64 + self.expected
    }
    /// The service compares the bytes with their MD5 and refuses what was damaged on its way.
    pub fn body(mut self, bytes: Bytes, md5: [u8; 16]) -> Self {
        self.body = bytes;
        self.header("content-md5", BASE64_STANDARD.encode(md5))
    }
}

/// An answer that another try would not change.
#[derive(Debug)]
pub(super) struct Reply {
    pub status: u16,
    headers: HeaderMap,
    pub body: Bytes,
}

impl Reply {
    pub fn header(&self, name: &'static str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }
    pub fn number(&self, name: &'static str) -> Option<u64> {
        self.header(name)?.parse().ok()
    }
    pub fn etag(&self) -> &str {
        self.header("etag").unwrap_or_default()
    }
    pub fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }
    /// The service's name for the error.
    pub fn code(&self) -> &str {
        self.header("x-ms-error-code").unwrap_or_default()
    }
    pub fn text(&self) -> Result<&str, String> {
        std::str::from_utf8(&self.body).map_err(|_| "it sent something that is no text".to_owned())
    }
    pub fn is_conflict(&self) -> bool {
        self.status == 412 || (self.status == 409 && self.code() == "BlobAlreadyExists")
    }
}

impl Client {
    pub fn new(location: Location, credential: Credential, patience: Patience, limits: Limits) -> Result<Self> {
        let http = reqwest::Client::builder()
            .user_agent(concat!("ftctl/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(CONNECT)
            .pool_max_idle_per_host(limits.jobs)
            .redirect(reqwest::redirect::Policy::none())
            .build()
            .map_err(|error| StoreError::Invalid(format!("cannot prepare connections: {error}")))?;
        let requests = Semaphore::new(limits.jobs.max(1));
        Ok(Self { http, location, credential, patience, requests, pace: Pace::new(limits.bytes_per_second) })
    }

    pub fn is_encrypted(&self) -> bool {
        self.location.endpoint.scheme() == "https"
    }

    /// Sends a request until there is an answer that counts or patience ends. `action` is for the message: "read", "write".
    pub async fn send(&self, action: &'static str, request: &Request) -> Result<Reply> {
        let path = match &request.target {
            Target::Blob(path) => path,
            Target::Container => &self.location.container,
            Target::Service => &self.location.account,
        };
        let begun = Instant::now();
        let mut tries = 0;
        loop {
            let left = self.patience.total.saturating_sub(begun.elapsed());
            let trouble = match self.attempt(request, left).await {
                Ok(reply) if is_passing(reply.status, reply.code()) => Trouble::Busy(reply.status, wish(&reply)),
                Ok(reply) => return Ok(reply),
                Err(trouble) => trouble,
            };
            tries += 1;
            match self.patience.pause(&trouble, tries, begun.elapsed(), chance()) {
                Some(pause) => sleep(pause).await,
                None => return Err(gave_up(action, path, &self.location, trouble, tries)),
            }
        }
    }

    /// One try, which may take the time that is `left`.
    async fn attempt(&self, request: &Request, left: Duration) -> Result<Reply, Trouble> {
        // Never closed.
        let _permit = self.requests.acquire().await;
        self.pace.wait(request.bytes()).await;
        let mut signed = self.signed(request).await?;
        *signed.timeout_mut() = Some(left.min(ANSWER + Duration::from_secs(request.bytes() / SLOW_LINE)));
        let begun = Instant::now();
        let reply = self.exchange(signed).await;
        report::request(|| self.told(request, &reply, begun.elapsed()));
        let reply = reply?;
        if let Some(sum) = reply.header("content-md5").filter(|_| request.method == Method::GET && reply.is_success())
            && sum != BASE64_STANDARD.encode(md5(&reply.body).await)
        {
            return Err(Trouble::Lost("the answer was damaged on its way".to_owned()));
        }
        Ok(reply)
    }

    /// For `--debug-http`. What signs a request is not a part of [`Request`].
    fn told(&self, request: &Request, reply: &Result<Reply, Trouble>, time: Duration) -> String {
        let mut text = format!("{} {}", request.method, self.url(request));
        for (name, value) in &request.headers {
            let _ = write!(text, " {name}: {value}");
        }
        let outcome = match reply {
            Ok(reply) => format!("{} {}", reply.status, reply.header("x-ms-request-id").unwrap_or_default()),
            Err(trouble) => format!("{trouble:?}"),
        };
        text + &format!(" ({} bytes): {outcome} ({} ms)", request.body.len(), time.as_millis())
    }

    async fn exchange(&self, request: reqwest::Request) -> Result<Reply, Trouble> {
        let answer = self.http.execute(request).await.map_err(|error| broken(&error))?;
        let (status, headers) = (answer.status().as_u16(), answer.headers().clone());
        let body = answer.bytes().await.map_err(|error| broken(&error))?;
        Ok(Reply { status, headers, body })
    }

    /// Without a signature.
    fn url(&self, request: &Request) -> Url {
        let mut url = match &request.target {
            Target::Blob(path) => self.location.url(Some(&self.location.blob(path))),
            Target::Container => self.location.url(None),
            Target::Service => self.location.service(),
        };
        if !request.query.is_empty() {
            url.query_pairs_mut().extend_pairs(&request.query);
        }
        url
    }

    pub async fn signed(&self, request: &Request) -> Result<reqwest::Request, Trouble> {
        let (kind, body) = if request.parts.is_empty() {
            (None, request.body.clone())
        } else {
            let mut parts = Vec::with_capacity(request.parts.len());
            for part in &request.parts {
                let (url, headers) = self.sign(part, [("content-length", "0".to_owned())]).await?;
                parts.push((part.method.clone(), url, headers));
            }
            let (kind, body) = batch::body(&parts);
            (Some(("content-type", kind)), body)
        };
        let own = [("x-ms-version", VERSION.to_owned()), ("content-length", body.len().to_string())];
        let (url, mut headers) = self.sign(request, own.into_iter().chain(kind)).await?;
        if request.method == Method::GET || request.method == Method::HEAD || request.method == Method::DELETE {
            headers.remove(CONTENT_LENGTH);
        }
        let mut signed = reqwest::Request::new(request.method.clone(), url);
        *signed.headers_mut() = headers;
        if !body.is_empty() || request.method == Method::PUT {
            *signed.body_mut() = Some(body.into());
        }
        Ok(signed)
    }

    /// The address and the headers of a request, signed at this instant.
    async fn sign(
        &self,
        request: &Request,
        more: impl IntoIterator<Item = (&'static str, String)>,
    ) -> Result<(Url, HeaderMap), Trouble> {
        let mut url = self.url(request);
        let mut headers = HeaderMap::new();
        let date = ("x-ms-date", Timestamp::now().strftime("%a, %d %b %Y %H:%M:%S GMT").to_string());
        for (name, value) in request.headers.iter().cloned().chain(more).chain([date]) {
            let value = HeaderValue::from_str(&value).map_err(|_| Trouble::NoSignIn(format!("{name} cannot be sent")))?;
            headers.insert(HeaderName::from_static(name), value);
        }
        match &self.credential {
            Credential::Key(key) => {
                let value = key.authorization(&request.method, &url, &headers);
                headers.insert(AUTHORIZATION, secret(&value)?);
            }
            Credential::Sas(signature) => {
                let query = url.query().map(|query| format!("{query}&")).unwrap_or_default();
                url.set_query(Some(&format!("{query}{signature}")));
            }
            Credential::Token(source) => {
                let token = source.token().await.map_err(Trouble::NoSignIn)?;
                headers.insert(AUTHORIZATION, secret(&format!("Bearer {token}"))?);
            }
        }
        Ok((url, headers))
    }

    /// The error behind an answer that nobody expected.
    pub fn refused(&self, action: &'static str, path: &str, reply: &Reply) -> StoreError {
        let (code, message) = (reply.code(), wire::message(&String::from_utf8_lossy(&reply.body)));
        let Location { account, container, .. } = &self.location;
        let said = [code, &message].into_iter().filter(|text| !text.is_empty()).collect::<Vec<_>>().join(": ");
        let why = format!("the account {account} answered {} {said}", reply.status);
        let path = path.to_owned();
        match reply.status {
            401 | 403 => StoreError::Denied { action, path, why: format!("{why}; `ftctl doctor` shows which sign-in is used") },
            404 if code == "ContainerNotFound" => {
                StoreError::NotFound { store: account.clone(), path: format!("container {container}") }
            }
            _ => StoreError::Io { action, path, source: io::Error::other(why) },
        }
    }
}

/// The error behind an answer that makes no sense.
pub(super) fn nonsense(action: &'static str, path: &str, why: String) -> StoreError {
    StoreError::Io { action, path: path.to_owned(), source: io::Error::new(io::ErrorKind::InvalidData, why) }
}

fn secret(value: &str) -> Result<HeaderValue, Trouble> {
    let mut value = HeaderValue::from_str(value).map_err(|_| Trouble::NoSignIn("the credential cannot be sent".to_owned()))?;
    value.set_sensitive(true);
    Ok(value)
}

/// The text never has the URL, which may carry a signature.
fn broken(error: &reqwest::Error) -> Trouble {
    let mut text = String::new();
    let mut cause: Option<&dyn std::error::Error> = std::error::Error::source(error);
    while let Some(inner) = cause {
        text = inner.to_string();
        cause = inner.source();
    }
    let text = if error.is_timeout() { "no answer in time".to_owned() } else { text };
    if error.is_connect() { Trouble::Unreachable(text) } else { Trouble::Lost(text) }
}

/// `Retry-After` in seconds.
fn wish(reply: &Reply) -> Option<Duration> {
    reply.number("retry-after").map(Duration::from_secs)
}

/// Anything in 0..1; what spreads the tries of many clients need not be unpredictable.
fn chance() -> f64 {
    (RandomState::new().build_hasher().finish() >> 11) as f64 / (1_u64 << 53) as f64
}

fn gave_up(action: &'static str, path: &str, location: &Location, trouble: Trouble, tries: u32) -> StoreError {
    use io::ErrorKind::{ConnectionReset, HostUnreachable, TimedOut};
    let path = path.to_owned();
    let host = location.endpoint.host_str().unwrap_or_default();
    let (kind, why) = match trouble {
        Trouble::Unreachable(why) => (HostUnreachable, format!("{host} cannot be reached: {why}")),
        Trouble::Lost(why) => (ConnectionReset, format!("the connection to {host} broke: {why}")),
        Trouble::Busy(status, _) => (TimedOut, format!("{host} answered {status}")),
        Trouble::NoSignIn(why) => {
            return StoreError::Denied { action, path, why: format!("no sign-in: {why}; `ftctl doctor` shows the ways") };
        }
    };
    let times = if tries > 1 { format!(" ({tries} tries)") } else { String::new() };
    StoreError::Io { action, path, source: io::Error::new(kind, format!("{why}{times}")) }
}

/// Holds the bytes per second down, on average.
struct Pace {
    bytes_per_second: Option<u64>,
    /// When the line is free again.
    free: Mutex<Instant>,
}

impl Pace {
    fn new(bytes_per_second: Option<u64>) -> Self {
        Self { bytes_per_second, free: Mutex::new(Instant::now()) }
    }

    async fn wait(&self, bytes: u64) {
        let Some(rate) = self.bytes_per_second.filter(|_| bytes > 0) else { return };
        let turn = {
            let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
            let turn = (*free).max(Instant::now());
            *free = turn + Duration::from_secs_f64(bytes as f64 / rate.max(1) as f64);
            turn
        };
        sleep_until(turn).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_pace_is_kept_on_average() {
        let pace = Pace::new(Some(1_000_000));
        let begun = Instant::now();
        for _ in 0..11 {
            pace.wait(500_000).await;
        }
        assert_eq!(begun.elapsed().as_millis(), 5_000);
        let free = Pace::new(None);
        free.wait(u64::MAX).await;
        assert_eq!(begun.elapsed().as_millis(), 5_000);
    }

    #[test]
    fn chance_is_a_fraction() {
        let mut drawn: Vec<f64> = (0..100).map(|_| chance()).collect();
        assert!(drawn.iter().all(|value| (0.0..1.0).contains(value)));
        drawn.dedup();
        assert!(drawn.len() > 90);
    }
}
