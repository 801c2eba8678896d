//! Requests to the hub. The token goes to its own host alone: a redirect to another one is followed without it.

use std::{sync::OnceLock, time::Duration};

use reqwest::{
    Client, Response, StatusCode, Url,
    header::{AUTHORIZATION, HeaderValue, LOCATION, RANGE},
};

use super::{
    Class, HubError, Result,
    listing::{Listing, not_understood},
};
use crate::{
    job::hub::{Commit, Kind, Repository, Revision},
    transit,
};

/// Tries of one request, and of one file without a byte more.
pub(super) const TRIES: u32 = 4;
/// Before the second try; doubles with each.
pub(super) const PAUSE: Duration = Duration::from_millis(500);
const REDIRECTS: usize = 5;
/// Bytes of a list of files; the longest have some ten million.
const LONGEST_LIST: usize = 64 << 20;
/// The longest pause that the hub may ask for.
const LONGEST_PAUSE: Duration = Duration::from_secs(300);
const CONNECT: Duration = Duration::from_secs(30);
/// Without a byte for so long, a line is dead.
const SILENCE: Duration = Duration::from_secs(60);

/// A hub, and who asks it.
#[derive(Debug)]
pub(super) struct Line {
    endpoint: Url,
    token: Option<HeaderValue>,
    /// For services of this machine.
    here: OnceLock<Client>,
    abroad: OnceLock<Client>,
}

/// The bytes of a file that are asked for: from the first on, and up to the last where there is one.
#[derive(Debug, Clone, Copy)]
pub(super) struct Span {
    pub first: u64,
    pub last: Option<u64>,
}

impl Line {
    pub fn open(endpoint: Url, token: Option<String>) -> Result<Self> {
        let secret = |token: String| {
            let mut value = HeaderValue::from_str(&format!("Bearer {token}")).ok()?;
            value.set_sensitive(true);
            Some(value)
        };
        let unusable = || {
            HubError::new(Class::Denied, "the token for the hub has characters that no token has").fix("set HF_TOKEN to a token")
        };
        let token = token.map(|token| secret(token).ok_or_else(unusable)).transpose()?;
        Ok(Self { endpoint, token, here: OnceLock::new(), abroad: OnceLock::new() })
    }

    /// The client for requests to an address; that of other machines reads this one's certificates.
    fn client(&self, url: &Url) -> Result<&Client> {
        let is_here = url.host_str().is_some_and(transit::is_loopback);
        let client = if is_here { &self.here } else { &self.abroad };
        if let Some(client) = client.get() {
            return Ok(client);
        }
        let built = transit::client(url)
            .connect_timeout(CONNECT)
            .read_timeout(SILENCE)
            .user_agent(concat!("ftctl/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(|error| HubError::new(Class::Disk, format!("cannot make requests: {error}")))?;
        Ok(client.get_or_init(|| built))
    }

    fn host(&self) -> &str {
        self.endpoint.host_str().unwrap_or_default()
    }

    /// The repository's page, for a person.
    fn page(&self, repository: &Repository) -> String {
        let base = self.endpoint.as_str().trim_end_matches('/');
        format!("{base}/{}{repository}", in_address(repository.kind))
    }

    /// An address of the hub, below its endpoint; each part becomes one of the path, whatever is in it.
    fn address(&self, parts: &[&str]) -> Result<Url> {
        let mut url = self.endpoint.clone();
        let cannot = || HubError::new(Class::Invalid, "HF_ENDPOINT cannot have an address below it");
        url.path_segments_mut().map_err(|()| cannot())?.pop_if_empty().extend(parts);
        Ok(url)
    }

    /// The commit of a revision, and its files.
    pub async fn list(&self, repository: &Repository, revision: &Revision) -> Result<(Commit, Listing)> {
        let Repository { kind, owner, name } = repository;
        let mut url = self.address(&["api", kind.as_str(), owner, name, "revision", revision.as_str()])?;
        url.set_query(Some("blobs=true"));
        let about = About { line: self, repository, of: format!("revision `{revision}`") };
        let answer = self.get(&about, &url, None).await?;
        let bytes = transit::body(answer, LONGEST_LIST).await;
        let read = bytes.and_then(|bytes| Listing::of_answer(&bytes));
        let (commit, listing) = read.map_err(|why| not_understood(&format!("{repository}@{revision}"), &why))?;
        match revision.commit() {
            Some(asked) if asked != commit => Err(not_understood(&repository.to_string(), "it is that of another commit")),
            _ => Ok((commit, listing)),
        }
    }

    /// Bytes of a file of a commit; all of them where the answer is not [`StatusCode::PARTIAL_CONTENT`].
    pub async fn file(&self, repository: &Repository, commit: &Commit, path: &str, span: Option<Span>) -> Result<Response> {
        let mut parts: Vec<&str> = Vec::from_iter(in_address(repository.kind).strip_suffix('/'));
        parts.extend([repository.owner.as_str(), &repository.name, "resolve", commit.as_str()]);
        parts.extend(path.split('/'));
        let about = About { line: self, repository, of: format!("file {path}") };
        self.get(&about, &self.address(&parts)?, span).await
    }

    /// The answer to a request, after a few tries where it is no answer yet.
    async fn get(&self, about: &About<'_>, url: &Url, span: Option<Span>) -> Result<Response> {
        let mut pause = PAUSE;
        let mut tried = 1;
        loop {
            let (failed, asked_for) = match self.ask(about, url, span).await {
                Ok(answer) if answer.status().is_success() => return Ok(answer),
                Ok(answer) if is_passing(answer.status()) => (about.refused(&answer), transit::pause(answer.headers())),
                Ok(answer) => return Err(about.refused(&answer)),
                Err(failed) if failed.class == Class::Network => (failed, None),
                Err(failed) => return Err(failed),
            };
            let wait = asked_for.unwrap_or(pause);
            if tried == TRIES || wait > LONGEST_PAUSE {
                return Err(failed);
            }
            tokio::time::sleep(wait).await;
            (tried, pause) = (tried + 1, pause * 2);
        }
    }

    /// Follows redirects, the token only on the hub's own host.
    async fn ask(&self, about: &About<'_>, url: &Url, span: Option<Span>) -> Result<Response> {
        let mut url = url.clone();
        for _ in 0..=REDIRECTS {
            let mut request = self.client(&url)?.get(url.clone());
            if let Some(token) = self.token.as_ref().filter(|_| url.origin() == self.endpoint.origin()) {
                request = request.header(AUTHORIZATION, token);
            }
            if let Some(Span { first, last }) = span {
                request = request.header(RANGE, format!("bytes={first}-{}", last.map(|last| last.to_string()).unwrap_or_default()));
            }
            let answer = request.send().await.map_err(|error| about.unreachable(&url, &transit::why(&error)))?;
            let place = url.host_str().unwrap_or_default().to_owned();
            transit::request(|| format!("GET {} of {place}: {}", about.of, answer.status().as_u16()));
            if !answer.status().is_redirection() {
                return Ok(answer);
            }
            url = self.target(&url, &answer).ok_or_else(|| about.astray())?;
        }
        Err(about.astray())
    }

    /// Where an answer points. From another machine's hub to this one's services no way leads.
    fn target(&self, from: &Url, answer: &Response) -> Option<Url> {
        let to = from.join(answer.headers().get(LOCATION)?.to_str().ok()?).ok()?;
        let is_here = |url: &Url| url.host_str().is_some_and(transit::is_loopback);
        (transit::is_private(&to) && (is_here(&self.endpoint) || !is_here(&to))).then_some(to)
    }
}

/// The beginning of a repository's address.
fn in_address(kind: Kind) -> &'static str {
    match kind {
        Kind::Models => "",
        Kind::Datasets => "datasets/",
    }
}

fn is_passing(status: StatusCode) -> bool {
    matches!(status.as_u16(), 408 | 429 | 500..=599)
}

/// The subject of a request, for messages.
struct About<'l> {
    line: &'l Line,
    repository: &'l Repository,
    of: String,
}

impl About<'_> {
    /// The error for an answer that is not the file.
    fn refused(&self, answer: &Response) -> HubError {
        let Self { line, repository, of } = self;
        let (host, page) = (line.host(), line.page(repository));
        let code = answer.headers().get("x-error-code").and_then(|code| code.to_str().ok()).unwrap_or_default();
        let set_token = "set HF_TOKEN to a token that may read it";
        let signed_in = line.token.is_some();
        let new = HubError::new;
        match (answer.status().as_u16(), code) {
            (401 | 403, "GatedRepo") => {
                new(Class::Denied, format!("{repository} of {host} is for those who agreed to its owner's terms")).fix(format!(
                    "agree at {page}{}",
                    if signed_in { ", as the user whose token this is" } else { ", and set HF_TOKEN to your token" }
                ))
            }
            (401 | 404, "RepoNotFound") => {
                new(Class::NotFound, format!("{host} has no {} {repository}, or shows it to others only", noun(repository.kind)))
                    .fix(format!("correct the name{}", if signed_in { String::new() } else { format!(", or {set_token}") }))
            }
            (401, _) if signed_in => new(Class::Denied, format!("{host} does not take the token"))
                .fix("set HF_TOKEN to one that is still good, or unset it; `hf auth login` keeps another one"),
            (401, _) => new(Class::Denied, format!("{host} shows {repository} only to those who sign in")).fix(set_token),
            (403, _) => new(
                Class::Denied,
                format!("{host} does not show {repository} to {}", if signed_in { "the owner of this token" } else { "everybody" }),
            )
            .fix(format!("look at {page} for what it takes")),
            (404, _) => {
                new(Class::NotFound, format!("{repository} of {host} has no {of}")).fix(format!("look at {page}/tree/main"))
            }
            (429, _) => new(Class::Network, format!("{host} has been asked too often (429)")).fix(if signed_in {
                "try again later".to_owned()
            } else {
                "try again later, or set HF_TOKEN: the hub gives those who sign in more".to_owned()
            }),
            (status @ 500.., _) => {
                new(Class::Network, format!("{host} is in trouble: it answers {status} for {of} of {repository}"))
            }
            (status, _) => new(Class::Integrity, format!("{host} answers {status} for {of} of {repository}, which no hub does"))
                .fix("look whether HF_ENDPOINT is the address of a hub"),
        }
    }

    fn unreachable(&self, url: &Url, why: &str) -> HubError {
        let host = url.host_str().unwrap_or_default();
        HubError::new(Class::Network, format!("cannot ask {host} for {} of {}: {why}", self.of, self.repository))
            .fix("check the network; HF_HUB_OFFLINE=1 takes what the cache has; HF_ENDPOINT names another hub")
    }

    fn astray(&self) -> HubError {
        HubError::new(
            Class::Integrity,
            format!("{} redirects {} of {} to where ftctl does not follow", self.line.host(), self.of, self.repository),
        )
    }
}

fn noun(kind: Kind) -> &'static str {
    match kind {
        Kind::Models => "model",
        Kind::Datasets => "dataset",
    }
}
