//! One container: the official crate's clients for it on our transport, and the few requests that the crate lacks.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use azure_core::{
    error::ErrorKind,
    http::{ClientOptions, Context, Pipeline, RawResponse, Request, RetryOptions, Transport as Below, UserAgentOptions},
};
use azure_storage_blob::{
    BlobClient, BlobContainerClient, BlobContainerClientOptions, BlobServiceClient, BlobServiceClientOptions,
};

use jiff::Timestamp;

use super::{
    super::{Result, StoreError},
    denied,
    location::Location,
    retry::Trouble,
    transport::{GaveUp, Transport, code},
    wire,
};

/// Version of the protocol; the newest that emulators know is later.
const VERSION: &str = "2023-11-03";

pub(super) struct Client {
    pub location: Location,
    pub transport: Arc<Transport>,
    pub container: BlobContainerClient,
    pub service: BlobServiceClient,
    /// Pipeline of our own requests.
    pipeline: Pipeline,
    /// An answer has shown that the container exists.
    seen: AtomicBool,
}

/// The service's answer to a request that it did not carry out.
#[derive(Debug)]
pub(super) struct Refusal {
    pub status: u16,
    /// The service's name for the error.
    pub code: String,
    message: String,
}

impl Refusal {
    fn of(error: &azure_core::Error) -> Option<Self> {
        let ErrorKind::HttpResponse { raw_response: Some(reply), .. } = error.kind() else { return None };
        let code = code(reply.headers()).to_owned();
        Some(Self { status: reply.status().into(), code, message: wire::message(reply.body()) })
    }
    pub fn is_conflict(&self) -> bool {
        self.status == 412 || (self.status == 409 && self.code == "BlobAlreadyExists")
    }
    pub fn is_no_container(&self) -> bool {
        self.status == 404 && self.code == "ContainerNotFound"
    }
    pub fn is_denied(&self) -> bool {
        matches!(self.status, 401 | 403)
    }
    /// Only a container that is there has blobs that are not, or are of another version.
    fn shows_container(&self) -> bool {
        self.code == "BlobNotFound" || matches!(self.status, 412 | 416)
    }
}

impl Client {
    pub fn new(location: Location, transport: Arc<Transport>) -> Result<Self> {
        let client_options = ClientOptions {
            // The transport has its own rules.
            retry: RetryOptions::none(),
            transport: Some(Below::with_policy(Arc::clone(&transport) as _)),
            user_agent: UserAgentOptions { application_id: Some(concat!("ftctl-", env!("CARGO_PKG_VERSION")).to_owned()) },
            ..ClientOptions::default()
        };
        let unusable = |error: azure_core::Error| StoreError::Invalid(format!("cannot prepare connections: {error}"));
        let version = VERSION.to_owned();
        let options = BlobServiceClientOptions { client_options: client_options.clone(), version: version.clone() };
        let service = BlobServiceClient::new(location.service(), None, Some(options)).map_err(unusable)?;
        let options = BlobContainerClientOptions { client_options: client_options.clone(), version };
        let container = BlobContainerClient::new(location.url(None), None, Some(options)).map_err(unusable)?;
        let pipeline = Pipeline::new(None, None, client_options, Vec::new(), Vec::new(), None);
        Ok(Self { location, transport, container, service, pipeline, seen: AtomicBool::new(false) })
    }

    /// Whether an answer has shown that the container exists.
    pub fn has_seen_it(&self) -> bool {
        self.seen.load(Ordering::Relaxed)
    }

    pub fn is_encrypted(&self) -> bool {
        self.location.endpoint.scheme() == "https"
    }

    /// The client for the object `path`.
    pub fn blob(&self, path: &str) -> BlobClient {
        self.container.blob_client(&self.location.blob(path))
    }

    /// The result of a request: done, or refused. `action` is for the message when there is neither: "read", "write".
    pub async fn ask<T>(
        &self,
        action: &'static str,
        path: &str,
        asked: impl Future<Output = azure_core::Result<T>>,
    ) -> Result<Result<T, Refusal>> {
        let error = match asked.await {
            Ok(done) => {
                self.seen.store(true, Ordering::Relaxed);
                return Ok(Ok(done));
            }
            Err(error) => error,
        };
        if let Some(refusal) = Refusal::of(&error) {
            self.seen.fetch_or(refusal.shows_container(), Ordering::Relaxed);
            return Ok(Err(refusal));
        }
        // The crate's own text may quote the answer.
        Err(error.into_downcast::<GaveUp>().map_or_else(
            |_| nonsense(action, path, "its answer cannot be read".to_owned()),
            |GaveUp { trouble, tries }| self.gave_up(action, path, trouble, tries),
        ))
    }

    /// [`Client::ask`] for a write into a container that may not exist yet.
    pub async fn write<T, F: Future<Output = azure_core::Result<T>>>(
        &self,
        action: &'static str,
        path: &str,
        asked: impl Fn() -> F,
    ) -> Result<Result<T, Refusal>> {
        let done = self.ask(action, path, asked()).await?;
        if !done.as_ref().is_err_and(Refusal::is_no_container) {
            return Ok(done);
        }
        match self.create().await? {
            Err(refusal) => Err(self.refused("create", &self.location.container, &refusal)),
            Ok(()) => self.ask(action, path, asked()).await,
        }
    }

    /// Makes the container; one that is there already is fine.
    pub async fn create(&self) -> Result<Result<(), Refusal>> {
        match self.ask("create", &self.location.container, self.container.create(None)).await? {
            Err(refusal) if refusal.code != "ContainerAlreadyExists" => Ok(Err(refusal)),
            _ => Ok(Ok(())),
        }
    }

    /// Deletes the container with all that is in it; none is fine.
    pub async fn remove(&self) -> Result<()> {
        let container = &self.location.container;
        match self.ask("delete", container, self.container.delete(None)).await? {
            Err(refusal) if !refusal.is_no_container() => Err(self.refused("delete", container, &refusal)),
            _ => Ok(()),
        }
    }

    /// A request that the crate lacks.
    pub async fn own(&self, action: &'static str, path: &str, mut request: Request) -> Result<Result<RawResponse, Refusal>> {
        request.insert_header("x-ms-version", VERSION);
        self.ask(action, path, self.pipeline.send(&Context::new(), &mut request, None)).await
    }

    /// The error behind an unexpected answer.
    pub fn refused(&self, action: &'static str, path: &str, refusal: &Refusal) -> StoreError {
        let Refusal { status, code, message } = refusal;
        let Location { account, container, .. } = &self.location;
        let said = [code, message].into_iter().filter(|text| !text.is_empty()).map(String::as_str).collect::<Vec<_>>().join(": ");
        let why = format!("the account {account} answered {status} {said}");
        let path = path.to_owned();
        match status {
            401 | 403 => {
                let advice = denied::advice(&self.transport.credential, account, action, code, Timestamp::now());
                StoreError::Denied { action, path, why: format!("{why}; {advice}") }
            }
            404 if code == "ContainerNotFound" => {
                StoreError::NotFound { store: account.clone(), path: format!("container {container}") }
            }
            _ => StoreError::Io { action, path, source: io::Error::other(why) },
        }
    }

    pub fn gave_up(&self, action: &'static str, path: &str, trouble: Trouble, tries: u32) -> StoreError {
        use io::ErrorKind::{ConnectionReset, HostUnreachable, TimedOut};
        let path = path.to_owned();
        let host = self.location.endpoint.host_str().unwrap_or_default();
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
}

/// The error behind an answer that makes no sense.
pub(super) fn nonsense(action: &'static str, path: &str, why: String) -> StoreError {
    StoreError::Io { action, path: path.to_owned(), source: io::Error::new(io::ErrorKind::InvalidData, why) }
}
