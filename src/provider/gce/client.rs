//! The dozen calls to Compute Engine that a job needs. Each has a bound in time, is tried again when that may help, and says what
//! the service said. URLs are never taken from an answer: those name the public host, whatever was asked.

use std::{
    hash::{BuildHasher, Hasher, RandomState},
    time::Duration,
};

use jiff::Timestamp;
use reqwest::{Method, Url};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    super::{
        Result,
        line::{self, BACKOFF, MOST_PAGES, SHORT_ANSWER, Tries},
    },
    credentials::Credentials,
    refusal::{Refusal, operation_error},
};
use crate::transit;

/// Google answers a `wait` after two minutes at the latest.
const ANSWER: Duration = Duration::from_secs(150);
/// An operation that takes longer is stuck.
const OPERATION: Duration = Duration::from_secs(600);
/// The largest answer: a page of everything in every zone, or of 5,000 prices.
const LARGEST_ANSWER: usize = 16 << 20;
/// Who may have named the services.
const NAMES: &str = "FTCTL_ENDPOINT_GCE and FTCTL_ENDPOINT_BILLING";

pub struct Client {
    compute_line: reqwest::Client,
    billing_line: reqwest::Client,
    /// Scheme and authority of Compute Engine.
    pub endpoint: String,
    /// Likewise of the billing catalogue.
    pub billing: String,
    pub project: String,
    credentials: Credentials,
    /// The last time on the service's clock.
    clock: line::Clock,
    /// [`BACKOFF`], but in tests.
    pub pauses: [Duration; 2],
}

/// One request.
#[derive(Clone)]
pub struct Call<'a> {
    pub method: Method,
    /// Below the project; one that begins with a slash is the billing catalogue's.
    pub path: String,
    pub query: Vec<(&'a str, String)>,
    pub body: Option<Value>,
}

impl<'a> Call<'a> {
    pub fn get(path: impl Into<String>) -> Self {
        Self { method: Method::GET, path: path.into(), query: Vec::new(), body: None }
    }

    /// A request that changes something carries an id: the service does it once, however often it hears it.
    pub fn change(method: Method, path: impl Into<String>, body: Option<Value>) -> Self {
        Self { method, path: path.into(), query: vec![("requestId", request_id())], body }
    }

    /// Only what fits; an empty one is none.
    pub fn filter(self, filter: &str) -> Self {
        if filter.is_empty() { self } else { self.query("filter", filter) }
    }

    pub fn query(mut self, name: &'a str, value: impl Into<String>) -> Self {
        self.query.push((name, value.into()));
        self
    }
}

impl Client {
    pub fn new(endpoint: String, billing: String, project: String, credentials: Credentials) -> Result<Self> {
        let (compute_line, billing_line) = (line::open(&endpoint, ANSWER, NAMES)?, line::open(&billing, ANSWER, NAMES)?);
        Ok(Self {
            compute_line,
            billing_line,
            endpoint,
            billing,
            project,
            credentials,
            clock: line::Clock::default(),
            pauses: BACKOFF,
        })
    }

    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// Where a resource of this project is, as the API wants it named; with an empty path the project itself.
    pub fn url(&self, path: &str) -> String {
        let url = format!("{}/compute/v1/projects/{}/{path}", self.endpoint, self.project);
        url.trim_end_matches('/').to_owned()
    }

    /// Whether there is a token to ask with. Only the sign-in is asked, if anybody.
    pub async fn signed_in(&self) -> Result<()> {
        self.credentials.token().await.map(drop)
    }

    /// The time by the service's own clock, once it has answered.
    pub fn cloud_time(&self) -> Option<Timestamp> {
        self.clock.now()
    }

    /// Asks until there is an answer that another try would not change.
    pub async fn call(&self, call: Call<'_>) -> Result<Value, Refusal> {
        transit::patiently("an answer of Compute Engine", self.answer(call)).await
    }

    async fn answer(&self, call: Call<'_>) -> Result<Value, Refusal> {
        let mut tries = Tries::new(self.pauses);
        loop {
            let refusal = match self.ask(&call).await {
                Ok(answer) => return Ok(answer),
                Err(refusal) => refusal,
            };
            if refusal.status == Some(401) && tries.renew() {
                self.credentials.forget().await;
            } else if !refusal.is_passing() || !tries.again(refusal.retry_after).await {
                return Err(refusal);
            }
        }
    }

    fn address(&self, call: &Call<'_>) -> Result<Url, Refusal> {
        let of_billing = call.path.starts_with('/');
        let url = if of_billing { format!("{}{}", self.billing, call.path) } else { self.url(&call.path) };
        let mut url = Url::parse(&url).map_err(|error| Refusal::lost(&format!("{} {url}", call.method), &error))?;
        if !call.query.is_empty() {
            url.query_pairs_mut().extend_pairs(&call.query);
        }
        Ok(url)
    }

    async fn ask(&self, call: &Call<'_>) -> Result<Value, Refusal> {
        let token = self.credentials.token().await?;
        let of_project = !call.path.starts_with('/');
        let http = if of_project { &self.compute_line } else { &self.billing_line };
        let url = self.address(call)?;
        let place = transit::place(&url);
        let mut request = http.request(call.method.clone(), url).bearer_auth(token);
        if !call.path.ends_with("/wait") {
            request = request.timeout(SHORT_ANSWER);
        }
        if !of_project {
            // A user's login has no project of its own, and this service wants one to count the request against.
            request = request.header("x-goog-user-project", &self.project);
        }
        if let Some(body) = &call.body {
            request = request.header("content-type", "application/json").body(body.to_string());
        } else if call.method == Method::POST {
            request = request.header("content-length", "0");
        }
        let what = format!("{} {}", call.method, call.path);
        let lost = |error: reqwest::Error| Refusal::lost(&what, &error.without_url());
        let answer = request.send().await.map_err(lost)?;
        self.clock.hear(answer.headers());
        let status = answer.status();
        let pause = transit::pause(answer.headers());
        let read = line::body(answer, LARGEST_ANSWER).await;
        let body = serde_json::from_slice(read.as_deref().unwrap_or_default());
        transit::request(|| {
            let told = body.as_ref().map(|body| format!(" -> {}", transit::fields(body))).unwrap_or_default();
            format!("{what}: {}{told}", status.as_u16())
        });
        read.map_err(|why| Refusal::lost(&what, &why))?;
        if status.is_success() {
            let strange = |error| Refusal::strange(&format!("{} {place} ({})", call.method, status.as_u16()), &error);
            return body.map_err(strange);
        }
        Err(Refusal::answered(&what, status.as_u16(), &body.unwrap_or_default(), pause))
    }

    /// Makes a change, and returns when it is done or refused.
    pub async fn change(&self, call: Call<'_>) -> Result<(), Refusal> {
        let what = format!("Compute Engine to {} {}", transit::verb(&call.method), call.path);
        transit::patiently(&what, self.done(call)).await
    }

    async fn done(&self, call: Call<'_>) -> Result<(), Refusal> {
        let begun = Instant::now();
        let mut operation = self.call(call).await?;
        while operation["status"] != "DONE" {
            if begun.elapsed() > OPERATION {
                let why = format!("it is not done after {} minutes", OPERATION.as_secs() / 60);
                return Err(Refusal::lost(operation["operationType"].as_str().unwrap_or("operation"), &why));
            }
            let scope = match (last(&operation["zone"]), last(&operation["region"])) {
                ("", "") => "global".to_owned(),
                ("", region) => format!("regions/{region}"),
                (zone, _) => format!("zones/{zone}"),
            };
            let wait = format!("{scope}/operations/{}/wait", operation["name"].as_str().unwrap_or_default());
            operation = self.call(Call { method: Method::POST, path: wait, query: Vec::new(), body: None }).await?;
        }
        operation_error(&operation).map_or(Ok(()), Err)
    }

    /// Asks for every page, and hands each to `take`.
    pub async fn pages(
        &self,
        call: Call<'_>,
        mut take: impl FnMut(&mut Value) -> Result<(), Refusal> + Send,
    ) -> Result<(), Refusal> {
        let mut page = None::<String>;
        for _ in 0..MOST_PAGES {
            let mut next = call.clone();
            next.query.extend(page.map(|token| ("pageToken", token)));
            let mut answer = self.call(next).await?;
            take(&mut answer)?;
            page = answer["nextPageToken"].as_str().filter(|token| !token.is_empty()).map(str::to_owned);
            if page.is_none() {
                return Ok(());
            }
        }
        Err(Refusal::lost("list all there is", &format!("there are more than {MOST_PAGES} pages")))
    }

    /// Everything in every zone that fits.
    pub async fn everywhere(&self, kind: &str, filter: &str) -> Result<Vec<Value>, Refusal> {
        let mut found = Vec::new();
        let call = Call::get(format!("aggregated/{kind}")).filter(filter).query("includeAllScopes", "true");
        let pages = self.pages(call, |answer| {
            if answer["unreachables"].as_array().is_some_and(|zones| !zones.is_empty()) {
                return Err(Refusal::lost("look into every zone", &answer["unreachables"]));
            }
            for zone in answer["items"].as_object_mut().into_iter().flat_map(|zones| zones.iter_mut().map(|(_, zone)| zone)) {
                found.extend(zone[kind].as_array_mut().map(std::mem::take).unwrap_or_default());
            }
            Ok(())
        });
        pages.await?;
        Ok(found)
    }

    /// Every region that the project sees, with its quotas.
    pub async fn regions(&self) -> Result<Vec<Value>, Refusal> {
        let mut found = Vec::new();
        let pages = self.pages(Call::get("regions"), |answer| {
            found.extend(answer["items"].as_array_mut().map(std::mem::take).unwrap_or_default());
            Ok(())
        });
        pages.await?;
        Ok(found)
    }

    /// Refused with 412 when the machine's metadata is no longer what `machine` shows.
    pub async fn set_metadata(&self, machine: &Value, items: &[Value]) -> Result<(), Refusal> {
        let body = json!({ "fingerprint": machine["metadata"]["fingerprint"], "items": items });
        let path = format!("zones/{}/instances/{}/setMetadata", last(&machine["zone"]), last(&machine["name"]));
        self.change(Call::change(Method::POST, path, Some(body))).await
    }
}

/// The name at the end of a link.
pub fn last(link: &Value) -> &str {
    link.as_str().and_then(|link| link.rsplit('/').next()).unwrap_or_default()
}

/// A random UUID: the standard library gives each of these hashers a new seed.
fn request_id() -> String {
    let random = || {
        let mut hasher = RandomState::new().build_hasher();
        hasher.write_u128(std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |time| time.as_nanos()));
        hasher.finish()
    };
    let (a, b) = (random(), random());
    let (high, middle, low) = (a >> 32, (a >> 16) & 0xffff, a & 0x0fff);
    format!("{high:08x}-{middle:04x}-4{low:03x}-{:04x}-{:012x}", 0x8000 | (b >> 50), b & 0xffff_ffff_ffff)
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;
    use crate::devcloud::http::{Reply, serve};

    #[tokio::test]
    async fn an_unexpected_answer_is_told_by_its_request_and_status_without_its_bytes() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = format!("http://{}", listener.local_addr().expect("an address"));
        let page = |_| async { Some(Reply { status: 200, headers: Vec::new(), body: "<p>very-secret</p>".into() }) };
        tokio::spawn(serve(listener, page));
        let token = |name: &str| (name == "CLOUDSDK_AUTH_ACCESS_TOKEN").then(|| "token".to_owned());
        let credentials = Credentials::find(&token).expect("a token");
        let mut client = Client::new(address.clone(), address, "mine".to_owned(), credentials).expect("a client");
        client.pauses = [Duration::ZERO; 2];
        let refusal = client.call(Call::get("zones").query("filter", "secret")).await.expect_err("a page");
        let told = "unexpected answer from Google to GET 127.0.0.1/compute/v1/projects/mine/zones (200): ";
        assert!(refusal.message.starts_with(told) && !refusal.message.contains("secret"), "{refusal:?}");
    }

    #[test]
    fn request_ids_are_uuids_and_differ() {
        let (one, other) = (request_id(), request_id());
        assert_ne!(one, other);
        let lengths: Vec<usize> = one.split('-').map(str::len).collect();
        assert_eq!(lengths, [8, 4, 4, 4, 12], "{one}");
        assert!(one.split('-').nth(2).is_some_and(|part| part.starts_with('4')), "{one}");
    }
}
