//! A store in Azure blob containers, through the official crate's clients (see [`client`]): here is one container, and in
//! [`containers`] which of them holds what.
//!
//! Objects are block blobs: small ones, which chunks of files are, written in one request, large ones in staged blocks (see
//! [`blocks`]). Logs are append blobs (see [`segments`]). Conditional writes carry marks, see [`Marked`]. Nothing is ever created
//! by looking; the first write creates the container if it may.

use std::{collections::HashMap, num::NonZero, ops::Range, sync::Arc};

use async_trait::async_trait;
use azure_core::{
    http::{Etag, pager::PagerOptions},
    xml,
};
use azure_storage_blob::models::{BlobClientUploadOptions, BlobContainerClientListBlobsOptions, BlobItem, ListBlobsResponse};
use bytes::Bytes;
use futures_util::TryStreamExt as _;
use serde::de::DeserializeOwned;

use self::{
    client::Client,
    containers::Containers,
    location::Location,
    retry::Patience,
    segments::{FULL, Known, Segments, part},
    sign_in::{Credential, endpoint},
    sums::md5,
    transport::{Load, Transport},
    wire::{Folder, timestamp},
};
use super::{Condition, Digest, ETag, Limits, Meta, Object, Result, Store, StoreError, WordOf, check_path, check_prefix};
use crate::identity::Variables;

mod batch;
mod blocks;
mod client;
mod containers;
mod denied;
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
mod transport;
mod wire;

#[doc(hidden)]
pub use batch::gone as read_batch;
pub use sign_in::{SAS as SIGNATURE, carried, is_involved, sign_in};

/// The names that a page of a listing has, and what the body of an error says: for those who make such answers up.
#[doc(hidden)]
pub fn read_answer(body: &[u8]) -> (Vec<String>, String) {
    let folder = xml::from_xml::<_, Folder>(body).into_iter().flat_map(Folder::names);
    let blobs = xml::from_xml::<_, ListBlobsResponse>(body).into_iter().flat_map(|page| page.blob_items);
    (folder.chain(blobs.filter_map(|blob| blob.name)).collect(), wire::message(body))
}

/// Metadata with the marks of the last conditional writes, the newest first.
const MARKS: &str = "ftctlwrites";

/// Writes that may follow one whose answer was lost, until that one is told that it was refused.
const REMEMBERED: usize = 16;

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
pub const ENDPOINT: &str = "FTCTL_ENDPOINT_BLOB";

/// The most entries of one page of a listing.
const PAGE: i32 = 5_000;

/// Whether `url` names a container.
pub fn is_container(url: &str) -> bool {
    ["azure://", "https://", "http://"].iter().any(|scheme| url.starts_with(scheme))
}

/// One container.
struct AzureStore {
    client: Arc<Client>,
    url: String,
    known: Known,
    limits: Limits,
    /// Appends to one blob of a log.
    full: u64,
    /// Most entries of one page of a listing.
    page: i32,
}

/// A container, as others are told of it.
pub struct Named {
    pub account: String,
    pub container: String,
    /// The address of the account's blob service.
    pub service: reqwest::Url,
}

/// The container that `url` names; `None` when it names none.
pub fn named(url: &str, variables: Variables<'_>) -> Option<Named> {
    let location = Location::parse(url, endpoint(variables).ok()?.as_deref()).ok().filter(|_| is_container(url))?;
    Some(Named { service: location.service(), account: location.account, container: location.container })
}

/// Where requests to the container that `url` names go; `None` when it names none.
pub fn address(url: &str, variables: Variables<'_>) -> Option<String> {
    Location::parse(url, endpoint(variables).ok()?.as_deref()).ok().map(|location| location.service().into())
}

/// Opens the container that `url` names, with the credential that `variables` hold. Nothing is sent yet. On another's word than the
/// user's it has to be where Azure's containers are, or where `variables` say that they are.
pub fn open(url: &str, variables: Variables<'_>, limits: Limits, word_of: WordOf) -> Result<Containers> {
    let endpoint = endpoint(variables)?;
    let location = Location::parse(url, endpoint.as_deref())?;
    if word_of == WordOf::Another {
        location.admit(url, endpoint.as_deref())?;
    }
    let credential = sign_in::choose(variables, &location.account)?;
    let reads = if matches!(credential, Credential::Sas(_)) { sign_in::to_read(variables, &location.account)? } else { None };
    let service = location.endpoint.clone();
    let carry = |credential| Ok(Arc::new(Transport::new(&service, credential, Patience::default(), limits)?));
    let transport = carry(credential)?;
    Ok(match reads {
        Some(reads) => Containers::of_agent(AzureStore::new(url, location, carry(reads)?, limits)?, transport),
        None => Containers::new(AzureStore::new(url, location, transport, limits)?),
    })
}

impl AzureStore {
    fn new(url: &str, location: Location, transport: Arc<Transport>, limits: Limits) -> Result<Self> {
        let client = Arc::new(Client::new(location, transport)?);
        let url = url.trim_end_matches('/').to_owned();
        Ok(Self { client, url, known: Known::default(), limits, full: FULL, page: PAGE })
    }

    /// Another container of the same store.
    fn beside(&self, location: Location, transport: Arc<Transport>) -> Result<Self> {
        let Self { full, page, limits, .. } = *self;
        Ok(Self { full, page, ..Self::new(&self.url, location, transport, limits)? })
    }

    fn segments(&self) -> Segments<'_> {
        Segments { client: &self.client, known: &self.known, full: self.full }
    }

    fn not_found(&self, path: &str) -> StoreError {
        StoreError::NotFound { store: self.url.clone(), path: path.to_owned() }
    }

    /// Writes a blob with what asks for it under the terms of `condition`.
    async fn commit<F: Future<Output = azure_core::Result<Option<Etag>>>>(
        &self,
        path: &str,
        condition: &Condition,
        write: impl Fn(Terms) -> F,
    ) -> Result<ETag> {
        let before = match condition {
            Condition::IfMatch(etag) => Marked::from_etag(etag),
            Condition::IfAbsent | Condition::Always => Marked::default(),
        };
        let (mark, marks) = before.next_marks();
        let metadata = Some(HashMap::from([(MARKS.to_owned(), marks.clone())]));
        let (terms, marks) = match condition {
            Condition::Always => (Terms::default(), String::new()),
            Condition::IfAbsent => (Terms { if_none_match: Some("*".into()), metadata, ..Terms::default() }, marks),
            Condition::IfMatch(_) => (Terms { if_match: Some(before.etag.into()), metadata, ..Terms::default() }, marks),
        };
        let refusal = match self.client.write("write", path, || write(terms.clone())).await? {
            Ok(etag) => return Ok(Marked { etag: etag.map(String::from).unwrap_or_default(), marks }.into_etag()),
            Err(refusal) => refusal,
        };
        let refused = refusal.is_conflict()
            || (refusal.status == 404 && matches!(condition, Condition::IfMatch(_)))
            // Another writer that committed these blocks took them away.
            || (refusal.code == "InvalidBlockList" && *condition == Condition::IfAbsent);
        if !refused {
            return Err(self.client.refused("write", path, &refusal));
        }
        // It may have been ours: an earlier try whose answer was lost, or the request was delivered twice.
        let present = self.segments().properties(path).await?.map(|present| present.version()).filter(|present| present.has(&mark));
        present.map(Marked::into_etag).ok_or_else(|| StoreError::Conflict { path: path.to_owned() })
    }

    /// The first pages, at most `most`, of what is below `prefix/`, with `folders` of what is directly below. An absent container
    /// is an empty one.
    async fn pages<T: DeserializeOwned>(&self, prefix: &str, folders: bool, most: usize) -> Result<Vec<T>> {
        let folder = if prefix.is_empty() { String::new() } else { format!("{prefix}/") };
        let context = Load { folders, ..Load::default() }.context();
        let options = BlobContainerClientListBlobsOptions {
            prefix: Some(self.client.location.blob(&folder)).filter(|prefix| !prefix.is_empty()),
            maxresults: Some(self.page),
            method_options: PagerOptions { context, ..PagerOptions::default() },
            ..BlobContainerClientListBlobsOptions::default()
        };
        let asked = async {
            let mut listed = self.client.container.list_blobs(Some(options))?.into_pages();
            let mut pages = Vec::new();
            while pages.len() < most
                && let Some(page) = listed.try_next().await?
            {
                pages.push(xml::from_xml(page.body())?);
            }
            Ok(pages)
        };
        match self.client.ask("list", &self.client.location.container, asked).await? {
            Ok(pages) => Ok(pages),
            Err(refusal) if refusal.is_no_container() => Ok(Vec::new()),
            Err(refusal) => Err(self.client.refused("list", prefix, &refusal)),
        }
    }

    /// All that is below `prefix/`.
    async fn blobs(&self, prefix: &str) -> Result<Vec<BlobItem>> {
        let pages: Vec<ListBlobsResponse> = self.pages(prefix, false, usize::MAX).await?;
        Ok(pages.into_iter().flat_map(|page| page.blob_items).collect())
    }

    /// The objects that blobs are, sorted. The parts of a log are one object, as long as its last part says.
    fn objects(&self, blobs: Vec<BlobItem>) -> Vec<Meta> {
        let mut found: Vec<Meta> = blobs.into_iter().filter_map(|blob| self.object(blob)).collect();
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

    fn object(&self, blob: BlobItem) -> Option<Meta> {
        let (name, properties) = (blob.name?, blob.properties?);
        let (path, start) = part(self.client.location.path(&name)?);
        let size = start + properties.content_length?;
        Some(Meta { path: path.to_owned(), size, modified: timestamp(properties.last_modified) })
    }
}

/// A write's conditions and its metadata.
#[derive(Clone, Default)]
struct Terms {
    if_match: Option<Etag>,
    if_none_match: Option<Etag>,
    metadata: Option<HashMap<String, String>>,
}

/// [`check_path`] that also refuses the names that the store gives to parts of logs.
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

    /// That of its address as the URL alone gives it, through whatever endpoint it is reached here.
    async fn identity(&self) -> Result<Digest> {
        let address = Location::parse(&self.url, None)?;
        Ok(Digest::of(address.url(Some(&address.blob(""))).as_str().trim_end_matches('/').as_bytes()))
    }

    fn jobs(&self) -> usize {
        self.limits.jobs
    }

    async fn get_limited(&self, path: &str, most: u64) -> Result<Object> {
        check(path)?;
        self.segments().whole(path, most).await?.ok_or_else(|| self.not_found(path))
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
        let blob = self.client.blob(path);
        self.commit(path, &condition, |terms| {
            let options = BlobClientUploadOptions {
                if_match: terms.if_match,
                if_none_match: terms.if_none_match,
                metadata: terms.metadata,
                // In one request.
                partition_size: Some(NonZero::<u64>::MAX),
                method_options: Load { md5: Some(sum), ..Load::default() }.options(),
                ..BlobClientUploadOptions::default()
            };
            let (blob, bytes) = (&blob, bytes.clone());
            async move { Ok(blob.upload(bytes.into(), Some(options)).await?.etag) }
        })
        .await
    }

    async fn append(&self, path: &str, offset: u64, bytes: Bytes) -> Result<u64> {
        check(path)?;
        self.segments().append(path, offset, &bytes).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<Meta>> {
        check_prefix(prefix)?;
        Ok(self.objects(self.blobs(prefix).await?))
    }

    async fn list_some(&self, prefix: &str) -> Result<Option<Vec<Meta>>> {
        check_prefix(prefix)?;
        let page: ListBlobsResponse = self.pages(prefix, false, 1).await?.pop().unwrap_or_default();
        Ok(page.next_marker.is_none_or(|marker| marker.is_empty()).then(|| self.objects(page.blob_items)))
    }

    async fn children(&self, prefix: &str) -> Result<Vec<String>> {
        check_prefix(prefix)?;
        let name = |name: String| {
            let name = self.client.location.path(&name).unwrap_or_default().trim_end_matches('/');
            part(name).0.rsplit('/').next().unwrap_or_default().to_owned()
        };
        let pages: Vec<Folder> = self.pages(prefix, true, usize::MAX).await?;
        let mut names: Vec<String> = pages.into_iter().flat_map(Folder::names).map(name).collect();
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
