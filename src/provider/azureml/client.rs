//! The calls to Azure that a job needs. Each has a bound in time, is tried again when that may help, and says what the service
//! said. An address from an answer is asked only where it is the service's own.

use std::time::Duration;

use jiff::Timestamp;
use reqwest::{
    Method, StatusCode, Url,
    header::{CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, HeaderMap, LOCATION, RANGE},
};
use serde_json::Value;
use tokio::{
    sync::OnceCell,
    time::{Instant, sleep},
};

use super::{
    super::{
        Class, ProviderError, Result,
        line::{self, BACKOFF, LONGEST_PAUSE, MOST_PAGES, SHORT_ANSWER, Tries},
    },
    body,
    refusal::Refusal,
    workspace::{NAMESPACE, Place},
};
use crate::{
    identity::{
        Variables,
        entra::{self, MANAGEMENT, TokenSource},
    },
    transit,
};

/// The one version of the interface that is spoken.
const VERSION: &str = "2025-12-01";
const HISTORY_VERSION: &str = "v1.0";
/// Workspaces' own services are below this domain. The hosts of compute instances, which are users', are beside it.
const SERVICES: &str = ".api.azureml.ms";
/// Logs lie below this one.
const BLOBS: &str = ".blob.core.windows.net";
/// No answer of the service is larger.
const LARGEST_ANSWER: usize = 16 << 20;
/// An operation that takes longer is stuck.
const OPERATION: Duration = Duration::from_secs(1_200);

/// The rhythm of everything that waits; other than the default in tests alone.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    pub tries: [Duration; 2],
    /// Between two looks at something that goes on.
    pub look: Duration,
    pub operation: Duration,
    /// How long an end is waited for.
    pub end: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self { tries: BACKOFF, look: Duration::from_secs(2), operation: OPERATION, end: Duration::from_secs(300) }
    }
}

pub struct Client {
    line: reqwest::Client,
    /// To services other than Resource Manager.
    far: reqwest::Client,
    /// Resource Manager's address.
    pub endpoint: Url,
    place: Result<Place>,
    pub sign_in: Result<TokenSource>,
    /// The workspace as the service describes it, and where its run history is.
    workspace: OnceCell<Value>,
    history: OnceCell<Url>,
    /// The last time on the service's clock.
    clock: line::Clock,
    pub pace: Pace,
}

/// One request.
#[derive(Clone)]
pub struct Call {
    method: Method,
    url: Url,
    body: Option<Value>,
    /// Whether it carries a token.
    is_signed: bool,
    /// Whether it is made once, since before another try something is to be looked at.
    is_once: bool,
}

impl Call {
    pub fn get(url: Url) -> Self {
        Self { method: Method::GET, url, body: None, is_signed: true, is_once: false }
    }

    pub fn put(url: Url, body: Value) -> Self {
        Self { method: Method::PUT, body: Some(body), ..Self::get(url) }
    }

    pub fn post(url: Url) -> Self {
        Self { method: Method::POST, ..Self::get(url) }
    }

    pub fn delete(url: Url) -> Self {
        Self { method: Method::DELETE, ..Self::get(url) }
    }

    pub fn once(self) -> Self {
        Self { is_once: true, ..self }
    }

    pub fn unsigned(self) -> Self {
        Self { is_signed: false, ..self }
    }

    /// For messages: an address may end with a signature.
    fn what(&self) -> String {
        format!("{} {}", self.method, self.url.path())
    }
}

struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    body: Value,
}

impl Client {
    /// `endpoint` is Resource Manager's address where that is not the public one.
    pub fn new(endpoint: Option<String>, place: Result<Place>, variables: Variables<'_>) -> Result<Self> {
        let endpoint = endpoint.unwrap_or_else(|| MANAGEMENT.trim_end_matches("/.default").to_owned());
        let line = line::open(&endpoint, SHORT_ANSWER, "FTCTL_ENDPOINT_AZUREML")?;
        let url = Url::parse(&endpoint).map_err(|error| ProviderError::new(Class::Invalid, error.to_string()))?;
        let far = line::open(&format!("https://eastus{SERVICES}"), SHORT_ANSWER, "FTCTL_ENDPOINT_AZUREML")?;
        let absent = || {
            let needs: Vec<&str> = entra::WAYS.iter().map(|way| way.needs).collect();
            ProviderError::new(Class::Denied, "no one is signed in to Azure")
                .fix(format!("az login; or set {}", needs.join("; or ")))
        };
        let sign_in = entra::source(variables, MANAGEMENT).ok_or_else(absent);
        let sign_in = sign_in.and_then(|opened| opened.map_err(|why| ProviderError::new(Class::Denied, why)));
        Ok(Self {
            line,
            far,
            endpoint: url,
            place,
            sign_in,
            workspace: OnceCell::new(),
            history: OnceCell::new(),
            clock: line::Clock::default(),
            pace: Pace::default(),
        })
    }

    pub fn place(&self) -> Result<&Place> {
        self.place.as_ref().map_err(Clone::clone)
    }

    /// Whether there is a token to ask with, and a workspace to ask about. Only the sign-in is asked, if anybody.
    pub async fn signed_in(&self) -> Result<()> {
        self.place()?;
        self.token().await.map(drop)
    }

    async fn token(&self) -> Result<String> {
        let source = self.sign_in.as_ref().map_err(Clone::clone)?;
        source.token().await.map_err(|none| {
            let (class, fix) = if none.is_passing {
                (Class::Network, "check the network")
            } else {
                (Class::Denied, "az login, or correct the sign-in's variables")
            };
            ProviderError::new(class, none.why).fix(fix)
        })
    }

    /// The time by the service's own clock, once it has answered.
    pub fn cloud_time(&self) -> Option<Timestamp> {
        self.clock.now()
    }

    fn address<'s>(&self, segments: impl IntoIterator<Item = &'s str>) -> Url {
        at(&self.endpoint, segments, VERSION)
    }

    /// The address of something in the workspace; without segments its own.
    pub fn url(&self, segments: &[&str]) -> Result<Url> {
        Ok(self.address(self.place()?.segments().into_iter().chain(segments.iter().copied())))
    }

    /// The address of what the subscription has in the workspace's region.
    pub async fn in_region(&self, what: &str) -> Result<Url> {
        let region = self.region().await?;
        let subscription = self.place()?.subscription.as_str();
        Ok(self.address(["subscriptions", subscription, "providers", NAMESPACE, "locations", &region, what]))
    }

    /// The resource id of something in the workspace.
    pub fn id(&self, segments: &[&str]) -> Result<String> {
        Ok(format!("{}/{}", self.place()?.id(), segments.join("/")))
    }

    /// The workspace, as the service describes it; asked once.
    pub async fn workspace(&self) -> Result<&Value, Refusal> {
        self.workspace.get_or_try_init(|| self.describe()).await
    }

    async fn describe(&self) -> Result<Value, Refusal> {
        self.call(Call::get(self.url(&[])?)).await
    }

    /// Where the workspace is, as `eastus`.
    pub async fn region(&self) -> Result<String, Refusal> {
        let region = self.workspace().await?["location"].as_str().unwrap_or_default().to_ascii_lowercase().replace(' ', "");
        let is_name = !region.is_empty() && region.bytes().all(|byte| byte.is_ascii_alphanumeric());
        if is_name { Ok(region) } else { Err(Refusal::lost("tell the workspace's region", &"it says none")) }
    }

    /// The run history's words on a job.
    pub async fn details(&self, job: &str) -> Result<Value, Refusal> {
        let history = self.history.get_or_try_init(|| self.discover()).await?;
        let place = self.place()?;
        let segments = ["history", "v1.0"].into_iter().chain(place.segments()).chain(["runs", job, "details"]);
        self.call(Call::get(at(history, segments, HISTORY_VERSION))).await
    }

    /// Asks the workspace where its run history is.
    async fn discover(&self) -> Result<Url, Refusal> {
        let link = |value: &Value| {
            let url = value.as_str().and_then(|text| Url::parse(text).ok()).filter(|url| self.is_service(url));
            url.ok_or_else(|| Refusal::from(foreign("a service of the workspace", value)))
        };
        let discovery = link(&self.workspace().await?["properties"]["discoveryUrl"])?;
        let services = self.call(Call::get(discovery).unsigned()).await?;
        // Microsoft's library asks there, `_job_operations.py` of azure-ai-ml.
        link(if services["api"].is_string() { &services["api"] } else { &services["history"] })
    }

    /// Whether a token may go to a service that the workspace names.
    fn is_service(&self, url: &Url) -> bool {
        let is_azures = url.scheme() == "https" && url.host_str().is_some_and(|host| host.ends_with(SERVICES));
        is_azures || self.is_beside(url)
    }

    /// Whether it is on this machine, as Resource Manager is.
    fn is_beside(&self, url: &Url) -> bool {
        let is_here = |url: &Url| transit::is_private(url) && url.host_str().is_some_and(transit::is_loopback);
        is_here(url) && is_here(&self.endpoint)
    }

    /// An address of Resource Manager from one of its answers.
    fn own(&self, text: &str) -> Result<Url, Refusal> {
        let url = Url::parse(text).ok().filter(|url| url.origin() == self.endpoint.origin());
        url.ok_or_else(|| foreign("Resource Manager", &Value::from(text)).into())
    }

    /// Asks until there is an answer that another try would not change.
    pub async fn call(&self, call: Call) -> Result<Value, Refusal> {
        self.answer(&call).await.map(|answer| answer.body)
    }

    /// Something in the workspace; `None` where there is no such thing.
    pub async fn find(&self, segments: &[&str]) -> Result<Option<Value>, Refusal> {
        match self.call(Call::get(self.url(segments)?)).await {
            Err(refusal) if refusal.is_absent() => Ok(None),
            found => found.map(Some),
        }
    }

    async fn answer(&self, call: &Call) -> Result<Answer, Refusal> {
        transit::patiently("an answer of Azure ML", self.tried(call)).await
    }

    async fn tried(&self, call: &Call) -> Result<Answer, Refusal> {
        let mut tries = Tries::new(self.pace.tries);
        loop {
            let refusal = match self.ask(call).await {
                Ok(answer) => return Ok(answer),
                Err(refusal) => refusal,
            };
            if refusal.status == Some(401) && tries.renew() {
                if let Ok(source) = &self.sign_in {
                    source.forget().await;
                }
            } else if call.is_once || !refusal.is_passing() || !tries.again(refusal.retry_after).await {
                return Err(refusal);
            }
        }
    }

    async fn ask(&self, call: &Call) -> Result<Answer, Refusal> {
        let what = call.what();
        let mut request = self.line_to(&call.url).request(call.method.clone(), call.url.clone());
        if call.is_signed {
            request = request.bearer_auth(self.token().await?);
        }
        if let Some(body) = &call.body {
            request = request.header(CONTENT_TYPE, "application/json").body(body.to_string());
        } else if call.method == Method::POST {
            request = request.header(CONTENT_LENGTH, "0");
        }
        let answer = request.send().await.map_err(|error| Refusal::lost(&what, &error.without_url()))?;
        let (status, headers) = (answer.status(), answer.headers().clone());
        if call.url.origin() == self.endpoint.origin() {
            self.clock.hear(&headers);
        }
        let read = line::body(answer, LARGEST_ANSWER).await;
        let body = serde_json::from_slice(read.as_deref().unwrap_or_default());
        transit::request(|| {
            let sent = call.body.as_ref().map(|sent| format!(" {}", body::shown(sent))).unwrap_or_default();
            let told = body.as_ref().map(|body| format!(" -> {}", transit::fields(body))).unwrap_or_default();
            format!("{what}: {}{sent}{told}", status.as_u16())
        });
        let bytes = read.map_err(|why| Refusal::lost(&what, &why))?;
        match body {
            _ if !status.is_success() => {
                Err(Refusal::answered(&what, status.as_u16(), &body.unwrap_or_default(), transit::pause(&headers)))
            }
            // A cancelled job and a deleted cluster are answered with nothing.
            Err(_) if bytes.is_empty() => Ok(Answer { status, headers, body: Value::Null }),
            body => Ok(Answer { status, headers, body: body.map_err(|error| Refusal::lost(&what, &error))? }),
        }
    }

    fn line_to(&self, url: &Url) -> &reqwest::Client {
        if url.origin() == self.endpoint.origin() || self.is_beside(url) { &self.line } else { &self.far }
    }

    /// Makes a change that may go on after its answer, and returns when it is done or refused. An address in `Azure-AsyncOperation`
    /// tells how it stands in its body; one in `Location` answers with 202 until it is done.
    pub async fn change(&self, call: Call) -> Result<(), Refusal> {
        let mut names = call.url.path().rsplit('/');
        let [name, kind] = [names.next(), names.next()].map(Option::unwrap_or_default);
        transit::patiently(&format!("Azure ML to {} {kind}/{name}", transit::verb(&call.method)), self.done(&call)).await
    }

    async fn done(&self, call: &Call) -> Result<(), Refusal> {
        let (begun, what) = (Instant::now(), call.what());
        let mut answer = self.answer(call).await?;
        let told = answer.headers.get("azure-asyncoperation");
        let located = answer.headers.get(LOCATION).filter(|_| answer.status == StatusCode::ACCEPTED);
        let Some(operation) = told.or(located) else { return Ok(()) };
        let (is_told, operation) = (told.is_some(), self.own(operation.to_str().unwrap_or_default())?);
        loop {
            if begun.elapsed() > self.pace.operation {
                let why = format!("its operation is not done after {} s", self.pace.operation.as_secs());
                return Err(Refusal::lost(&what, &why));
            }
            sleep(transit::pause(&answer.headers).unwrap_or(self.pace.look).min(LONGEST_PAUSE)).await;
            answer = self.answer(&Call::get(operation.clone())).await?;
            match answer.body["status"].as_str().filter(|_| is_told) {
                Some("Succeeded") => return Ok(()),
                Some("Failed" | "Canceled") => return Err(Refusal::ended(&what, &answer.body)),
                _ if !is_told && answer.status != StatusCode::ACCEPTED => return Ok(()),
                _ => {}
            }
        }
    }

    /// Everything in a list, page after page.
    pub async fn list(&self, url: Url) -> Result<Vec<Value>, Refusal> {
        let (mut found, mut next) = (Vec::new(), Some(url));
        for _ in 0..MOST_PAGES {
            let Some(url) = next else { return Ok(found) };
            let mut page = self.call(Call::get(url)).await?;
            found.extend(page["value"].as_array_mut().map(std::mem::take).unwrap_or_default());
            next = page["nextLink"].as_str().filter(|link| !link.is_empty()).map(|link| self.own(link)).transpose()?;
        }
        Err(Refusal::lost("list all there is", &format!("there are more than {MOST_PAGES} pages")))
    }

    /// Part of a log from its signed address, which is sent no token: the bytes from `start` on, `most` at most, and how many there
    /// are in all.
    pub async fn part(&self, address: &str, start: u64, most: u64) -> Result<(Vec<u8>, u64), Refusal> {
        let is_blob = |url: &Url| url.scheme() == "https" && url.host_str().is_some_and(|host| host.ends_with(BLOBS));
        let url = Url::parse(address).ok().filter(|url| is_blob(url) || self.is_beside(url));
        let url = url.ok_or_else(|| Refusal::from(foreign("a log", &Value::Null)))?;
        let mut tries = Tries::new(self.pace.tries);
        loop {
            match self.ask_part(&url, start, most).await {
                Err(refusal) if refusal.is_passing() && tries.again(refusal.retry_after).await => {}
                answer => return answer,
            }
        }
    }

    async fn ask_part(&self, url: &Url, start: u64, most: u64) -> Result<(Vec<u8>, u64), Refusal> {
        let what = "read a log";
        let range = format!("bytes={start}-{}", start.saturating_add(most.saturating_sub(1)));
        let answer = self.line_to(url).get(url.clone()).header(RANGE, range).send().await;
        let answer = answer.map_err(|error| Refusal::lost(what, &error.without_url()))?;
        let status = answer.status().as_u16();
        let total = answer.headers().get(CONTENT_RANGE).and_then(|range| range.to_str().ok()?.rsplit_once('/')?.1.parse().ok());
        match (status, total) {
            (206, Some(total)) => {
                let limit = usize::try_from(most).unwrap_or(LARGEST_ANSWER);
                Ok((line::body(answer, limit).await.map_err(|why| Refusal::lost(what, &why))?, total))
            }
            // There is nothing from there on.
            (416, total) => Ok((Vec::new(), total.unwrap_or(start))),
            _ => Err(Refusal::answered(what, status, &Value::Null, transit::pause(answer.headers()))),
        }
    }
}

/// An address below another.
fn at<'s>(base: &Url, segments: impl IntoIterator<Item = &'s str>, version: &str) -> Url {
    let mut url = base.clone();
    // Only an address that no request can be sent to has no path.
    if let Ok(mut path) = url.path_segments_mut() {
        path.pop_if_empty().extend(segments);
    }
    url.set_query(None);
    url.query_pairs_mut().append_pair("api-version", version);
    url
}

fn foreign(what: &str, address: &Value) -> ProviderError {
    let host = address.as_str().and_then(|text| Some(Url::parse(text).ok()?.host_str()?.to_owned()));
    let host = host.map(|host| format!(" ({host})")).unwrap_or_default();
    ProviderError::new(
        Class::Internal,
        format!("Azure ML gave an unexpected address for {what}{host}; ftctl sends no request there"),
    )
}
