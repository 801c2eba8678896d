//! A store in an Azure blob container, spoken to in the blob protocol.
//!
//! Objects are block blobs: small ones, which chunks of files are, written in one request, large ones in staged blocks (see [`blocks`]).
//! Logs are append blobs (see [`segments`]). Conditional writes carry marks, see [`Marked`]. Nothing is
//! ever created by looking; the first write creates the container if it may.

use std::{ops::Range, sync::Arc};

use async_trait::async_trait;
use bytes::Bytes;
use jiff::Timestamp;
use reqwest::Method;

use self::{
    client::{Client, Reply, Request, nonsense},
    location::Location,
    retry::Patience,
    segments::{FULL, Known, Segments, part},
    sign_in::{Credential, Variables},
    sums::md5,
    wire::{Entry, Page},
};
use super::{Condition, ETag, Limits, Meta, Object, Result, Store, StoreError, check_path, check_prefix};

mod batch;
mod blocks;
mod client;
mod entra;
#[cfg(target_arch = "x86_64")]
mod lanes;
mod location;
mod retry;
mod sas;
mod segments;
mod shared_key;
mod sign_in;
mod sums;
#[cfg(test)]
mod tests;
mod wire;

pub use sign_in::{Way, carried, entra_token, ways};

/// Metadata with the marks of the last conditional writes, the newest first.
const MARKS: &str = "x-ms-meta-ftctlwrites";

/// So many writes may follow one whose answer was lost until that one is told that it was refused.
const REMEMBERED: usize = 8;

/// A version with its marks. A conditional write adds its own mark to those of the version that it replaces; when it is then told
/// that the blob has changed, the marks say whether the write was done all the same.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Marked {
    etag: String,
    /// Parted by commas.
    marks: String,
}

impl Marked {
    fn from_etag(etag: &ETag) -> Self {
        let (etag, marks) = etag.0.split_once(' ').unwrap_or((&etag.0, ""));
        Self { etag: etag.to_owned(), marks: marks.to_owned() }
    }

    fn into_etag(self) -> ETag {
        ETag(if self.marks.is_empty() { self.etag } else { format!("{} {}", self.etag, self.marks) })
    }

    /// A new mark, and the marks of the version that comes after this one.
    fn next_marks(&self) -> (String, String) {
        let mark = azure_core::Uuid::new_v4().simple().to_string();
        let before = self.marks.split(',').filter(|mark| !mark.is_empty()).take(REMEMBERED - 1);
        let marks: Vec<&str> = std::iter::once(mark.as_str()).chain(before).collect();
        let marks = marks.join(",");
        (mark, marks)
    }

    fn has(&self, mark: &str) -> bool {
        self.marks.split(',').any(|other| other == mark)
    }
}

/// Replaces the usual address of an account.
const ENDPOINT: &str = "FTCTL_ENDPOINT_BLOB";

/// Read, add, create, write, delete and list, in the order that the service wants.
const AGENT_MAY: &str = "racwdl";

/// What the service gives at most, entries of one page of a listing.
const PAGE: u32 = 5_000;

/// Whether `url` names a container.
pub fn is_container(url: &str) -> bool {
    ["azure://", "https://", "http://"].iter().any(|scheme| url.starts_with(scheme))
}

pub struct AzureStore {
    client: Arc<Client>,
    url: String,
    known: Known,
    limits: Limits,
    /// Appends to one blob of a log.
    full: u64,
    /// Most entries of one page of a listing.
    page: u32,
}

/// Where requests to the container that `url` names go; `None` when it names none.
pub fn address(url: &str, variables: Variables<'_>) -> Option<String> {
    let endpoint = variables(ENDPOINT).or_else(|| sign_in::endpoint(variables));
    Location::parse(url, endpoint.as_deref()).ok().map(|location| location.service().into())
}

/// Opens the container that `url` names, with the credential that `variables` hold. Nothing is sent yet.
pub fn open(url: &str, variables: Variables<'_>, limits: Limits) -> Result<AzureStore> {
    let endpoint = variables(ENDPOINT).or_else(|| sign_in::endpoint(variables));
    let location = Location::parse(url, endpoint.as_deref())?;
    let credential = sign_in::choose(variables, &location.account)?;
    AzureStore::new(url, location, credential, Patience::default(), limits)
}

impl AzureStore {
    fn new(url: &str, location: Location, credential: Credential, patience: Patience, limits: Limits) -> Result<Self> {
        let client = Arc::new(Client::new(location, credential, patience, limits)?);
        let url = url.trim_end_matches('/').to_owned();
        Ok(Self { client, url, known: Known::default(), limits, full: FULL, page: PAGE })
    }

    fn segments(&self) -> Segments<'_> {
        Segments { client: &self.client, known: &self.known, full: self.full }
    }

    fn not_found(&self, path: &str) -> StoreError {
        StoreError::NotFound { store: self.url.clone(), path: path.to_owned() }
    }

    /// Writes a blob with the request that does it, when `condition` holds.
    async fn commit(&self, path: &str, request: Request, condition: &Condition) -> Result<ETag> {
        let before = match condition {
            Condition::IfMatch(etag) => Marked::from_etag(etag),
            Condition::IfAbsent | Condition::Always => Marked::default(),
        };
        let (mark, marks) = before.next_marks();
        let request = match condition {
            Condition::Always => request,
            Condition::IfAbsent => request.header("if-none-match", "*").header(MARKS, &marks),
            Condition::IfMatch(_) => request.header("if-match", before.etag).header(MARKS, &marks),
        };
        let reply = write(&self.client, "write", request).await?;
        if reply.is_success() {
            let marks = if *condition == Condition::Always { String::new() } else { marks };
            return Ok(Marked { etag: reply.etag().to_owned(), marks }.into_etag());
        }
        let refused = reply.is_conflict()
            || (reply.status == 404 && matches!(condition, Condition::IfMatch(_)))
            // Whoever else committed these blocks took them away.
            || (reply.code() == "InvalidBlockList" && *condition == Condition::IfAbsent);
        if !refused {
            return Err(self.client.refused("write", path, &reply));
        }
        // It may have been ours: an earlier try whose answer was lost, or the request was delivered twice.
        let present = self.segments().properties(path).await?.map(|present| present.version()).filter(|present| present.has(&mark));
        present.map(Marked::into_etag).ok_or_else(|| StoreError::Conflict { path: path.to_owned() })
    }

    /// One page of what is below `prefix/`, with a delimiter only of what is directly below. An absent container is an empty one.
    async fn page(&self, prefix: &str, delimiter: bool, marker: &str) -> Result<Page> {
        let folder = if prefix.is_empty() { String::new() } else { format!("{prefix}/") };
        let mut request = Request::container(Method::GET)
            .query("comp", "list")
            .query("maxresults", self.page.to_string())
            .query("prefix", self.client.location.blob(&folder));
        if delimiter {
            request = request.query("delimiter", "/");
        }
        if !marker.is_empty() {
            request = request.query("marker", marker);
        }
        let reply = self.client.send("list", &request).await?;
        if is_no_container(&reply) {
            return Ok(Page::default());
        }
        if !reply.is_success() {
            return Err(self.client.refused("list", prefix, &reply));
        }
        reply.text().and_then(Page::parse).map_err(|why| nonsense("list", prefix, why))
    }

    /// Every page.
    async fn entries(&self, prefix: &str, delimiter: bool) -> Result<Vec<Entry>> {
        let mut entries = Vec::new();
        let mut marker = String::new();
        loop {
            let page = self.page(prefix, delimiter, &marker).await?;
            marker.clone_from(&page.next);
            entries.extend(page.entries());
            if marker.is_empty() {
                return Ok(entries);
            }
        }
    }

    /// The objects that blobs are, sorted. The parts of a log are one object, as long as its last part says.
    fn objects(&self, entries: Vec<Entry>) -> Vec<Meta> {
        let mut found: Vec<Meta> = entries.into_iter().filter_map(|entry| self.object(entry)).collect();
        found.sort_unstable_by(|a, b| (&a.path, a.size).cmp(&(&b.path, b.size)));
        let mut whole: Vec<Meta> = Vec::with_capacity(found.len());
        for meta in found {
            match whole.last_mut() {
                Some(last) if last.path == meta.path => *last = meta,
                _ => whole.push(meta),
            }
        }
        whole
    }

    fn object(&self, entry: Entry) -> Option<Meta> {
        let Entry::Blob { name, properties } = entry else { return None };
        let (path, start) = part(self.client.location.path(&name)?);
        Some(Meta { path: path.to_owned(), size: start + properties.size, modified: properties.modified() })
    }
}

/// A write into a container that may not exist yet.
async fn write(client: &Client, action: &'static str, request: Request) -> Result<Reply> {
    let reply = client.send(action, &request).await?;
    if !is_no_container(&reply) {
        return Ok(reply);
    }
    let created = client.send("create", &Request::container(Method::PUT)).await?;
    match (created.status, created.code()) {
        (201, _) | (409, "ContainerAlreadyExists") => client.send(action, &request).await,
        _ => Err(client.refused("create", &client.location.container, &created)),
    }
}

fn is_no_container(reply: &Reply) -> bool {
    reply.status == 404 && reply.code() == "ContainerNotFound"
}

/// As [`check_path`]; a name that the store gives to parts of logs is refused, too.
fn check(path: &str) -> Result<()> {
    check_path(path)?;
    if part(path).1 == 0 {
        Ok(())
    } else {
        Err(StoreError::Invalid(format!("`{path}` cannot be a path in this store: it ends as parts of logs do")))
    }
}

#[async_trait]
impl Store for AzureStore {
    fn url(&self) -> &str {
        &self.url
    }

    fn jobs(&self) -> usize {
        self.limits.jobs
    }

    async fn agent_environment(&self, expires: Timestamp) -> Result<Vec<(&'static str, Option<String>)>> {
        let Some(signature) = self.client.signature(AGENT_MAY, expires).await? else { return Ok(Vec::new()) };
        let mut variables: Vec<_> = sign_in::SECRETS.iter().map(|secret| (*secret, None)).collect();
        variables.push((sign_in::SAS, Some(signature)));
        variables.push((ENDPOINT, Some(self.client.location.endpoint.to_string())));
        Ok(variables)
    }

    async fn get(&self, path: &str) -> Result<Object> {
        check(path)?;
        self.segments().whole(path).await?.ok_or_else(|| self.not_found(path))
    }

    async fn get_range(&self, path: &str, range: Range<u64>) -> Result<Bytes> {
        check(path)?;
        self.segments().range(path, range.start, range.end).await?.ok_or_else(|| self.not_found(path))
    }

    async fn head(&self, path: &str) -> Result<Option<Meta>> {
        check(path)?;
        let tail = self.segments().find_tail(path, 0).await?;
        Ok(tail.map(|tail| Meta { path: path.to_owned(), size: tail.end(), modified: tail.last.modified }))
    }

    async fn put(&self, path: &str, bytes: Bytes, condition: Condition) -> Result<ETag> {
        check(path)?;
        if bytes.len() > blocks::BLOCK {
            return self.put_blocks(path, bytes, &condition).await;
        }
        let sum = md5(&bytes).await;
        let request = Request::new(Method::PUT, path).header("x-ms-blob-type", "BlockBlob").body(bytes, sum);
        self.commit(path, request, &condition).await
    }

    async fn append(&self, path: &str, offset: u64, bytes: Bytes) -> Result<u64> {
        check(path)?;
        self.segments().append(path, offset, &bytes).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<Meta>> {
        check_prefix(prefix)?;
        Ok(self.objects(self.entries(prefix, false).await?))
    }

    async fn list_some(&self, prefix: &str) -> Result<Option<Vec<Meta>>> {
        check_prefix(prefix)?;
        let page = self.page(prefix, false, "").await?;
        Ok(page.next.is_empty().then(|| self.objects(page.entries())))
    }

    async fn children(&self, prefix: &str) -> Result<Vec<String>> {
        check_prefix(prefix)?;
        let name = |entry| {
            let (Entry::Blob { name, .. } | Entry::BlobPrefix { name }) = entry;
            let name = self.client.location.path(&name).unwrap_or_default().trim_end_matches('/');
            part(name).0.rsplit('/').next().unwrap_or_default().to_owned()
        };
        let mut names: Vec<String> = self.entries(prefix, true).await?.into_iter().map(name).collect();
        names.sort_unstable();
        names.dedup();
        Ok(names)
    }

    async fn delete(&self, path: &str) -> Result<()> {
        check(path)?;
        self.known.forget(path);
        for name in self.segments().names(path).await?.iter().rev() {
            self.client.delete(name).await?;
        }
        Ok(())
    }

    async fn delete_all(&self, paths: &[String]) -> Result<()> {
        match paths {
            [] => Ok(()),
            [only] => self.delete(only).await,
            _ => self.delete_in_batches(paths).await,
        }
    }
}
