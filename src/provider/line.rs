//! The line to a cloud's service: who may be asked by it, and when a request is tried again.

use std::{
    sync::{Mutex, PoisonError},
    time::{self, Duration},
};

use jiff::{Timestamp, fmt::rfc2822};
use reqwest::{
    Response, Url,
    header::{DATE, HeaderMap},
};
use tokio::time::{Instant, sleep};

use super::{Class, ProviderError, Result};
use crate::{job::clock::after, transit};

const CONNECT: Duration = Duration::from_secs(10);
/// Everything that is no wait is answered within seconds.
pub const SHORT_ANSWER: Duration = Duration::from_secs(30);
/// Pauses between tries: doubled from the first to the second; a longer one that the service asks for is kept up to a minute.
pub const BACKOFF: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(8)];
pub const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// No list of a service has more pages.
pub const MOST_PAGES: usize = 1_000;
const TRIES: u32 = 5;
/// After so long no further try is begun.
const PATIENCE: Duration = Duration::from_secs(60);

/// The HTTP client for requests with tokens to `endpoint`, each of which is answered within `answer`. `names` are the variables
/// that may have named the endpoint.
pub fn open(endpoint: &str, answer: Duration, names: &str) -> Result<reqwest::Client> {
    let refused = |why: &str| ProviderError::new(Class::Invalid, format!("no token is sent to {endpoint}: {why}"));
    let url = Url::parse(endpoint).map_err(|error| refused(&error.to_string()))?;
    if !transit::is_private(&url) {
        return Err(refused("it is not https; only a service on this machine may be without, at 127.0.0.1 or localhost")
            .fix(format!("correct {names}")));
    }
    let built = transit::client(&url).connect_timeout(CONNECT).timeout(answer).build();
    built.map_err(|error| ProviderError::new(Class::Internal, format!("cannot make requests to {endpoint}: {error}")))
}

/// Whether a machine that is asked for at `endpoint` is this one, or near it.
pub fn is_near(endpoint: &str) -> bool {
    Url::parse(endpoint).is_ok_and(|url| url.host_str().is_some_and(transit::is_loopback))
}

/// Whether a machine that is asked for at `endpoint` can reach a store: no other machine has this one's directories.
fn reaches(endpoint: &str, store: &str) -> bool {
    is_near(endpoint) || (!store.starts_with("file:") && store.contains("://"))
}

/// Refuses a store that `machine` ("a machine of …"), asked for at `endpoint`, cannot reach.
pub fn admit_store(machine: &str, endpoint: &str, store: &str) -> Result<()> {
    if reaches(endpoint, store) {
        return Ok(());
    }
    let message = format!("{machine} cannot reach the store {store}: it is a directory here");
    Err(ProviderError::new(Class::Invalid, message).fix("name a blob container: --store azure://ACCOUNT/CONTAINER"))
}

/// The tries of one request.
pub struct Tries {
    begun: Instant,
    pause: Duration,
    longest: Duration,
    tried: u32,
    renewed: bool,
}

impl Tries {
    /// `pauses` is [`BACKOFF`], but in tests.
    pub fn new(pauses: [Duration; 2]) -> Self {
        Self { begun: Instant::now(), pause: pauses[0], longest: pauses[1], tried: 0, renewed: false }
    }

    /// Waits until the next try, for as long as the service asked at least. False when there is none.
    pub async fn again(&mut self, asked: Option<Duration>) -> bool {
        self.tried += 1;
        if self.tried >= TRIES || self.begun.elapsed() > PATIENCE {
            return false;
        }
        sleep(asked.map_or(self.pause, |asked| asked.clamp(self.pause, LONGEST_PAUSE.max(self.pause)))).await;
        self.pause = (2 * self.pause).min(self.longest);
        true
    }

    /// Whether a token that was refused is worth replacing: once. It may have ended before its time.
    pub fn renew(&mut self) -> bool {
        !std::mem::replace(&mut self.renewed, true)
    }
}

/// A service's own clock, by its last answer.
#[derive(Default)]
pub struct Clock(Mutex<Option<(Timestamp, time::Instant)>>);

impl Clock {
    pub fn hear(&self, headers: &HeaderMap) {
        let told = headers.get(DATE).and_then(|date| http_date(date.to_str().ok()?));
        if let Some(date) = told {
            *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((date, time::Instant::now()));
        }
    }

    /// The time that it told, and what has passed since.
    pub fn now(&self) -> Option<Timestamp> {
        let (told, heard) = (*self.0.lock().unwrap_or_else(PoisonError::into_inner))?;
        Some(after(told, heard.elapsed()))
    }
}

/// Reads the time in the format of servers: `Sun, 06 Nov 1994 08:49:37 GMT`.
pub fn http_date(text: &str) -> Option<Timestamp> {
    Some(rfc2822::parse(text).ok()?.timestamp())
}

/// The body of an answer, up to `most` bytes. The error is for a person.
pub async fn body(mut answer: Response, most: usize) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    while let Some(piece) = answer.chunk().await.map_err(|error| error.without_url().to_string())? {
        if bytes.len() + piece.len() > most {
            return Err(format!("the answer has more than {most} bytes"));
        }
        bytes.extend_from_slice(&piece);
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn a_clock_goes_on_between_answers() {
        assert_eq!(Clock::default().now(), None);
        let (told, pause) = ("1994-11-06T08:49:37Z".parse().unwrap(), Duration::from_millis(20));
        let clock = Clock(Mutex::new(Some((told, time::Instant::now()))));
        thread::sleep(pause);
        assert!(clock.now() >= Some(after(told, pause)), "{:?}", clock.now());
    }

    #[test]
    fn tokens_go_by_https_or_stay_on_this_machine() {
        for endpoint in ["https://compute.googleapis.com", "https://any.host:7", "http://127.0.0.1:7", "http://localhost:7"] {
            open(endpoint, SHORT_ANSWER, "X").expect(endpoint);
        }
        for endpoint in ["http://203.0.113.9", "http://compute.googleapis.com", "nonsense", ""] {
            let error = open(endpoint, SHORT_ANSWER, "X").expect_err(endpoint);
            assert!(error.class == Class::Invalid && error.message.contains(endpoint), "{error}");
        }
    }

    #[test]
    fn the_time_is_read_as_servers_write_it() {
        assert_eq!(http_date("Sun, 06 Nov 1994 08:49:37 GMT"), "1994-11-06T08:49:37Z".parse().ok());
        assert_eq!(http_date("yesterday"), None);
    }

    #[test]
    fn a_directory_is_reached_from_this_machine_alone() {
        for (endpoint, store, reached) in [
            ("https://far.example", "azure://account/box", true),
            ("https://far.example", "/home/me/store", false),
            ("https://far.example", "file:///home/me/store", false),
            ("http://127.0.0.1:7", "/home/me/store", true),
        ] {
            assert_eq!(reaches(endpoint, store), reached, "{endpoint} {store}");
            let refused = admit_store("a node", endpoint, store).err().map(|error| error.message);
            let message = format!("a node cannot reach the store {store}: it is a directory here");
            assert_eq!(refused, (!reached).then_some(message));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_is_tried_five_times_and_a_pause_is_kept_up_to_a_minute() {
        let mut tries = Tries::new(BACKOFF);
        let begun = Instant::now();
        assert!(tries.again(None).await && tries.again(Some(Duration::from_secs(5))).await);
        assert_eq!(begun.elapsed(), Duration::from_millis(5_500));
        assert!(tries.again(Some(Duration::from_secs(3_600))).await);
        assert_eq!(begun.elapsed(), Duration::from_millis(65_500));
        assert!(!tries.again(None).await, "it has taken more than a minute");
        assert!(tries.renew() && !tries.renew());
    }
}
