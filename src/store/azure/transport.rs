//! Carries every request to the service, those of the official crate and our own: signed for each try, checked on its way back, and
//! sent again when that may help.

use std::{
    collections::hash_map::RandomState,
    fmt::{self, Write as _},
    hash::{BuildHasher, Hasher},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use azure_core::{
    error::ErrorKind,
    http::{
        AsyncRawResponse, ClientMethodOptions, Context, HttpClient as _, Method, Request,
        headers::{AUTHORIZATION, HeaderName, Headers, MS_DATE},
        policies::{Policy, PolicyResult},
    },
};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use bytes::Bytes;
use jiff::Timestamp;
use reqwest::Url;
use tokio::{
    sync::Semaphore,
    time::{Instant, sleep, sleep_until, timeout},
};

use super::{
    super::{Limits, Result, StoreError},
    retry::{Patience, Trouble, is_passing},
    sign_in::Credential,
    sums::md5,
};
use crate::{identity::entra::NoToken, transit};

/// Longest wait for a connection.
const CONNECT: Duration = Duration::from_secs(10);
/// A try may take so long, and the time of its bytes on a slow line beside.
const ANSWER: Duration = Duration::from_secs(60);
const SLOW_LINE: u64 = 64 << 10;
/// An answer has no more than the blob's bytes that were asked for, and this: a page of a listing has 5,000 names of 1,024
/// characters, each beside what the service says of the blob.
const LARGEST_PAGE: usize = 64 << 20;
/// A transfer of more bytes is a long one by itself.
const SMALL: u64 = 64 << 10;

/// The parts of a request that the crate's options cannot carry, on their way through the crate.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Load {
    /// MD5 of the body: the service compares, and refuses a body that was damaged on its way.
    pub md5: Option<[u8; 16]>,
    /// Bytes of the answer.
    pub expected: u64,
    /// A listing is one of a folder: it stops at slashes.
    pub folders: bool,
}

impl Load {
    pub fn context(self) -> Context<'static> {
        Context::new().with_value(self)
    }
    pub fn options(self) -> ClientMethodOptions<'static> {
        ClientMethodOptions { context: self.context() }
    }
}

/// Takes the place of the crate's own transport, below its pipeline.
pub(super) struct Transport {
    http: reqwest::Client,
    pub credential: Credential,
    patience: Patience,
    /// The service has been there.
    answered: AtomicBool,
    /// Permits of the requests that may be under way.
    requests: Semaphore,
    pace: Pace,
}

/// It holds a credential.
impl fmt::Debug for Transport {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("Transport")
    }
}

/// Why an operation ended without an answer that counts.
#[derive(Debug, thiserror::Error)]
#[error("{trouble:?}")]
pub(super) struct GaveUp {
    pub trouble: Trouble,
    pub tries: u32,
}

struct Reply {
    status: u16,
    headers: Headers,
    body: Bytes,
}

pub(super) fn header<'h>(headers: &'h Headers, name: &'static str) -> Option<&'h str> {
    headers.get_optional_str(&HeaderName::from_static(name))
}

/// The service's name for the error.
pub(super) fn code(headers: &Headers) -> &str {
    header(headers, "x-ms-error-code").unwrap_or_default()
}

#[async_trait]
impl Policy for Transport {
    /// Sends a request until there is an answer that counts or patience ends.
    async fn send(&self, context: &Context, request: &mut Request, _: &[Arc<dyn Policy>]) -> PolicyResult {
        let load = context.value::<Load>().copied().unwrap_or_default();
        if let Some(sum) = load.md5 {
            request.insert_header("content-md5", BASE64_STANDARD.encode(sum));
        }
        if load.folders {
            request.url_mut().query_pairs_mut().append_pair("delimiter", "/");
        }
        let bytes = request.body().len().unwrap_or_default() + load.expected;
        let asked = self.tried(request, load.expected);
        let reply = if bytes > SMALL {
            // Its progress is told.
            asked.await
        } else {
            let host = request.url().host_str().unwrap_or_default();
            transit::patiently(&format!("an answer of the store at {host}"), asked).await
        };
        match reply {
            Ok(reply) => Ok(AsyncRawResponse::from_bytes(reply.status.into(), reply.headers, reply.body)),
            Err(gave_up) => Err(azure_core::Error::new(ErrorKind::Other, gave_up)),
        }
    }
}

impl Transport {
    /// For requests to `endpoint`.
    pub fn new(endpoint: &Url, credential: Credential, patience: Patience, limits: Limits) -> Result<Self> {
        let http = transit::client(endpoint)
            .connect_timeout(CONNECT)
            .pool_max_idle_per_host(limits.jobs)
            .build()
            .map_err(|error| StoreError::Invalid(format!("cannot prepare connections: {error}")))?;
        let requests = Semaphore::new(limits.jobs.max(1));
        Ok(Self {
            http,
            credential,
            patience,
            answered: AtomicBool::new(false),
            requests,
            pace: Pace::new(limits.bytes_per_second),
        })
    }

    /// After an answer the name is known to be right: a service that is away then is waited for like one that stumbles.
    fn patience(&self) -> Patience {
        let Patience { total, unreachable } = self.patience;
        Patience { total, unreachable: if self.answered.load(Ordering::Relaxed) { total } else { unreachable } }
    }

    async fn tried(&self, request: &Request, expected: u64) -> Result<Reply, GaveUp> {
        let begun = Instant::now();
        let mut tries = 0;
        loop {
            let patience = self.patience();
            let left = patience.total.saturating_sub(begun.elapsed());
            let trouble = match self.attempt(request, expected, left).await {
                Ok(reply) if is_passing(reply.status, code(&reply.headers)) => Trouble::Busy(reply.status, wish(&reply.headers)),
                Ok(reply) => return Ok(reply),
                Err(trouble) => trouble,
            };
            tries += 1;
            match patience.pause(&trouble, tries, begun.elapsed(), chance()) {
                Some(pause) => sleep(pause).await,
                None => return Err(GaveUp { trouble, tries }),
            }
        }
    }

    /// One try, which may take the time that is `left`.
    async fn attempt(&self, request: &Request, expected: u64, left: Duration) -> Result<Reply, Trouble> {
        // Never closed.
        let _permit = self.requests.acquire().await;
        let bytes = request.body().len().unwrap_or_default() + expected;
        self.pace.wait(bytes).await;
        let mut signed = request.clone();
        self.sign(&mut signed).await?;
        let begun = Instant::now();
        let limit = left.min(ANSWER + Duration::from_secs(bytes / SLOW_LINE));
        let late = || Trouble::Lost("no answer in time".to_owned());
        let reply = timeout(limit, self.exchange(&signed, expected)).await.unwrap_or_else(|_| Err(late()));
        transit::request(|| told(request, &reply, begun.elapsed()));
        let reply = reply?;
        self.answered.store(true, Ordering::Relaxed);
        if let Some(sum) = header(&reply.headers, "content-md5")
            && request.method() == Method::Get
            && (200..300).contains(&reply.status)
            && sum != BASE64_STANDARD.encode(md5(&reply.body).await)
        {
            return Err(Trouble::Lost("the answer was damaged on its way".to_owned()));
        }
        Ok(reply)
    }

    async fn exchange(&self, request: &Request, expected: u64) -> Result<Reply, Trouble> {
        let answer = self.http.execute_request(request).await.map_err(|error| broken(&error))?;
        let (status, headers, body) = answer.deconstruct();
        let most = usize::try_from(expected).unwrap_or(usize::MAX).saturating_add(LARGEST_PAGE);
        let body = transit::gathered(body, most).await.map_err(|error| broken(&error))?;
        Ok(Reply { status: status.into(), headers, body })
    }

    /// Makes a request of this instant the credential's.
    pub async fn sign(&self, request: &mut Request) -> Result<(), Trouble> {
        request.insert_header(MS_DATE, Timestamp::now().strftime("%a, %d %b %Y %H:%M:%S GMT").to_string());
        match &self.credential {
            Credential::Key(key) => {
                let value = key.authorization(request);
                request.insert_header(AUTHORIZATION, value);
            }
            Credential::Sas(signature) => {
                let query = request.url().query().map(|query| format!("{query}&")).unwrap_or_default();
                request.url_mut().set_query(Some(&format!("{query}{signature}")));
            }
            Credential::Token(source) => {
                let token = source.token().await.map_err(unsigned)?;
                request.insert_header(AUTHORIZATION, format!("Bearer {token}"));
            }
        }
        Ok(())
    }
}

/// For `--debug-http`: the request as it is without what signs it.
fn told(request: &Request, reply: &Result<Reply, Trouble>, time: Duration) -> String {
    let mut text = format!("{} {}", request.method(), request.url());
    let mut headers: Vec<_> = request.headers().iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    headers.sort_unstable();
    for (name, value) in headers {
        let _ = write!(text, " {name}: {value}");
    }
    let outcome = match reply {
        Ok(reply) => format!("{} {}", reply.status, header(&reply.headers, "x-ms-request-id").unwrap_or_default()),
        Err(trouble) => format!("{trouble:?}"),
    };
    let bytes = request.body().len().unwrap_or_default();
    text + &format!(" ({bytes} bytes): {outcome} ({} ms)", time.as_millis())
}

/// A sign-in that is away for a moment may be back at the next try.
fn unsigned(none: NoToken) -> Trouble {
    if none.is_passing { Trouble::Unreachable(format!("no token now: {}", none.why)) } else { Trouble::NoSignIn(none.why) }
}

/// The text never has the URL, which may carry a signature.
fn broken(error: &azure_core::Error) -> Trouble {
    let Some(error) = error.downcast_ref::<reqwest::Error>() else { return Trouble::Lost(error.to_string()) };
    if error.is_builder() {
        return Trouble::NoSignIn("the credential cannot be sent".to_owned());
    }
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
fn wish(headers: &Headers) -> Option<Duration> {
    transit::asked_pause(header(headers, "retry-after")?)
}

/// Any number in 0..1; spreading the tries of many clients needs nothing unpredictable.
fn chance() -> f64 {
    (RandomState::new().build_hasher().finish() >> 11) as f64 / (1_u64 << 53) as f64
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
