//! How secrets travel: over https, or over http where they never leave this machine; and only to the address that was meant.

use std::{
    collections::BTreeSet,
    net::IpAddr,
    pin::pin,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use azure_core::error::ErrorKind;
use bytes::{Bytes, BytesMut};
use futures_util::{Stream, StreamExt as _};
use reqwest::{
    ClientBuilder, Response, Url,
    header::{HeaderMap, RETRY_AFTER},
    redirect::Policy,
};
use serde_json::Value;
use tokio::time::timeout;

use crate::job::report::Report;

/// A service that asks for a longer pause is answered as if it had asked for this.
const LONGEST_PAUSE: Duration = Duration::from_secs(24 * 3_600);

/// Begins a client for requests to `url` that carry credentials, or are answered with some. An answer that points elsewhere is not
/// followed: a client that does sends them again to wherever it points. No proxy stands between this machine and itself.
pub fn client(url: &Url) -> ClientBuilder {
    if url.host_str().is_some_and(is_loopback) { direct() } else { reqwest::Client::builder().redirect(Policy::none()) }
}

/// [`client`] for servers of this machine's own host: its metadata server gives out tokens by plain http, which a proxy would see.
pub fn direct() -> ClientBuilder {
    reqwest::Client::builder().redirect(Policy::none()).no_proxy()
}

/// Whether the bytes to `url` are hidden from everybody on their way.
pub fn is_private(url: &Url) -> bool {
    url.scheme() == "https" || (url.scheme() == "http" && url.host_str().is_some_and(is_loopback))
}

/// Whether the host of a URL is this machine.
pub fn is_loopback(host: &str) -> bool {
    host == "localhost" || literal(host).is_some_and(|address| address.is_loopback())
}

/// The address that the host of a URL is, when it is no name.
pub fn literal(host: &str) -> Option<IpAddr> {
    host.trim_matches(['[', ']']).parse().ok()
}

/// The host and the path of a URL, for messages: the rest may hold a secret.
pub fn place(url: &Url) -> String {
    format!("{}{}", url.host_str().unwrap_or_default(), url.path())
}

/// The body of an answer, which may have `most` bytes. The error is for a person, and has neither the address nor any of the bytes.
pub async fn body(mut answer: Response, most: usize) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    while let Some(piece) = answer.chunk().await.map_err(|error| why(&error))? {
        if bytes.len() + piece.len() > most {
            return Err(format!("its answer has more than {most} bytes"));
        }
        bytes.extend_from_slice(&piece);
    }
    Ok(bytes)
}

/// [`body`] for the pieces that the official crates hand out.
pub async fn gathered(mut pieces: impl Stream<Item = azure_core::Result<Bytes>> + Unpin, most: usize) -> azure_core::Result<Bytes> {
    let mut bytes = BytesMut::new();
    while let Some(piece) = pieces.next().await {
        let piece = piece?;
        if bytes.len() + piece.len() > most {
            let why = format!("its answer has more than {most} bytes");
            return Err(azure_core::Error::with_message(ErrorKind::Other, why));
        }
        bytes.extend_from_slice(&piece);
    }
    Ok(bytes.freeze())
}

/// The pause that an answer asks for: a day at most, so that every sum of it with a time is one.
pub fn pause(headers: &HeaderMap) -> Option<Duration> {
    asked_pause(headers.get(RETRY_AFTER)?.to_str().ok()?)
}

/// The same from the text of `Retry-After`.
pub fn asked_pause(text: &str) -> Option<Duration> {
    let seconds = text.trim().parse::<u64>().ok()?;
    Some(Duration::from_secs(seconds).min(LONGEST_PAUSE))
}

/// Why no answer came, for a person: the innermost reason, without the address, which may hold a secret.
pub fn why(error: &reqwest::Error) -> String {
    if error.is_timeout() {
        return "it did not answer in time".to_owned();
    }
    let mut innermost: &dyn std::error::Error = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    format!("it cannot be reached: {innermost}")
}

/// The receiver of reports on requests to services.
static REQUESTS: OnceLock<Arc<dyn Report>> = OnceLock::new();

/// From now on tells every request to a service: `--debug-http`.
pub fn tell_requests(to: Arc<dyn Report>) {
    // The first one stays.
    let _ = REQUESTS.set(to);
}

/// The receiver of reports on long waits.
static WAITS: OnceLock<Arc<dyn Report>> = OnceLock::new();
/// The last wait was long, and told.
static TOLD: AtomicBool = AtomicBool::new(false);
/// A wait of which a person is told: shorter ones are what services need.
const LONG: Duration = Duration::from_secs(5);

/// From now on a person is told what is waited for when that takes long.
pub fn tell_waits(to: Arc<dyn Report>) {
    // The first one stays.
    let _ = WAITS.set(to);
}

/// The meaning of a request that changes something, for a person.
pub fn verb(method: &reqwest::Method) -> &'static str {
    match *method {
        reqwest::Method::DELETE => "delete",
        reqwest::Method::PUT => "make",
        _ => "change",
    }
}

/// Waits for `work`, and says so when it takes long: a program that is silent looks as if it hung. Of waits within waits, beside
/// each other and in a row one is told, until something is done soon again.
pub async fn patiently<T>(what: &str, work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    let Some(report) = WAITS.get() else { return work.await };
    if let Ok(done) = timeout(LONG, &mut work).await {
        TOLD.store(false, Ordering::Relaxed);
        return done;
    }
    if !TOLD.swap(true, Ordering::Relaxed) {
        report.line(&format!("waiting for {what}"));
    }
    work.await
}

/// A request and what came of it, in one line that has nothing secret.
pub fn request(text: impl FnOnce() -> String) {
    if let Some(report) = REQUESTS.get() {
        report.line(&text());
    }
}

/// The fields of an answer and their kinds, without their values, which may be secret: `/id string, /tags/job string`. Pointers of
/// RFC 6901 name them, and `*` all elements of a list.
pub fn fields(answer: &Value) -> String {
    let mut found = BTreeSet::new();
    gather(answer, "", &mut found);
    found.into_iter().collect::<Vec<_>>().join(", ")
}

fn gather(value: &Value, at: &str, found: &mut BTreeSet<String>) {
    let kind = match value {
        Value::Object(fields) if !fields.is_empty() => {
            let below = |name: &str| format!("{at}/{}", name.replace('~', "~0").replace('/', "~1"));
            return fields.iter().for_each(|(name, inner)| gather(inner, &below(name), found));
        }
        Value::Array(elements) if !elements.is_empty() => {
            return elements.iter().for_each(|element| gather(element, &format!("{at}/*"), found));
        }
        Value::Object(_) => "object",
        Value::Array(_) => "list",
        Value::String(_) => "string",
        Value::Number(_) => "number",
        Value::Bool(_) => "boolean",
        Value::Null => "null",
    };
    found.insert(format!("{at} {kind}").trim_start().to_owned());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_told_by_its_fields_alone() {
        let answer =
            serde_json::json!({ "a/b": "secret", "value": [{ "id": 1 }, { "id": 2, "tags": {} }], "next": null, "no": [] });
        assert_eq!(fields(&answer), "/a~1b string, /next null, /no list, /value/*/id number, /value/*/tags object");
        assert_eq!(fields(&Value::Null), "null");
    }

    #[test]
    fn a_pause_that_no_clock_can_count_is_a_day() {
        for (asked, pause) in [("5", Some(5)), (" 86401", Some(86_400)), ("18446744073709551615", Some(86_400)), ("-1", None)] {
            assert_eq!(asked_pause(asked), pause.map(Duration::from_secs), "{asked}");
        }
    }

    #[test]
    fn plain_http_is_for_this_machine_alone() {
        let private = |url: &str| is_private(&Url::parse(url).unwrap());
        for url in [
            "https://any.host",
            "http://127.0.0.1:1/a",
            "http://127.8.9.1",
            "http://[::1]:7",
            "http://LOCALHOST:7",
            "http://0x7f.1",
        ] {
            assert!(private(url), "{url}");
        }
        for url in [
            "http://203.0.113.9",
            "http://10.0.0.1",
            "http://0.0.0.0",
            "http://[::]",
            "http://localhost.example.org",
            "http://127.0.0.1.example.org",
            "http://169.254.169.254",
            "http://user@example.org",
            "ftp://127.0.0.1",
        ] {
            assert!(!private(url), "{url}");
        }
    }
}
