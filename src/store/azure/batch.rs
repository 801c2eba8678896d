//! Many deletions in one request: "Blob Batch" in the reference of the blob service. Each is a request of its own inside, signed by
//! itself and answered by itself.

use std::{collections::HashSet, fmt::Write as _, sync::Arc};

use bytes::Bytes;
use reqwest::{Method, Url, header::HeaderMap};

use super::{
    super::{Result, content::concurrently},
    AzureStore, Client, Entry, Reply, Request, check, part,
};

/// The service takes so many in one.
const MOST: usize = 256;

impl AzureStore {
    /// A listing shows which blobs the objects are: a log is several. So a log goes with its first blob last, as when it is deleted alone.
    pub(super) async fn delete_in_batches(&self, paths: &[String]) -> Result<()> {
        for path in paths {
            check(path)?;
            self.known.forget(path);
        }
        let wanted: HashSet<&str> = paths.iter().map(String::as_str).collect();
        let blobs = self.entries(common_folder(paths), false).await?;
        let blobs = blobs.iter().filter_map(|entry| match entry {
            Entry::Blob { name, .. } => self.client.location.path(name),
            Entry::BlobPrefix { .. } => None,
        });
        let (first, further): (Vec<&str>, Vec<&str>) =
            blobs.filter(|name| wanted.contains(part(name).0)).partition(|name| part(name).1 == 0);
        for names in [further, first] {
            let batches = names.chunks(MOST).map(|batch| batch.iter().map(|name| (*name).to_owned()).collect()).collect();
            concurrently(self.limits.jobs, batches, |names: Vec<String>| {
                let client = Arc::clone(&self.client);
                async move { client.delete_batch(&names).await }
            })
            .await?;
        }
        Ok(())
    }
}

impl Client {
    /// Deletes one blob; none is fine.
    pub async fn delete(&self, name: &str) -> Result<()> {
        let reply = self.send("delete", &Request::new(Method::DELETE, name)).await?;
        if reply.is_success() || reply.status == 404 { Ok(()) } else { Err(self.refused("delete", name, &reply)) }
    }

    /// At most [`MOST`]. What the service does not say is gone is deleted by itself: there it is tried again, and a refusal has its reason.
    async fn delete_batch(&self, names: &[String]) -> Result<()> {
        let parts = names.iter().map(|name| Request::new(Method::DELETE, name)).collect();
        let gone = gone(&self.send("delete", &Request::batch(parts)).await?);
        for (_, name) in names.iter().enumerate().filter(|(number, _)| !gone.contains(number)) {
            self.delete(name).await?;
        }
        Ok(())
    }
}

/// The longest folder that has all of `paths`, without its slash; empty for the whole store.
fn common_folder(paths: &[String]) -> &str {
    let first = paths.first().map(String::as_str).unwrap_or_default();
    let holds = |folder: &&str| paths.iter().all(|path| path.strip_prefix(*folder).is_some_and(|rest| rest.starts_with('/')));
    first.rmatch_indices('/').map(|(end, _)| &first[..end]).find(holds).unwrap_or_default()
}

/// The body that these requests make up, after its type.
pub(super) fn body(parts: &[(Method, Url, HeaderMap)]) -> (String, Bytes) {
    let boundary = format!("batch_{}", azure_core::Uuid::new_v4());
    let mut text = String::new();
    for (number, (method, url, headers)) in parts.iter().enumerate() {
        let head = "Content-Type: application/http\r\nContent-Transfer-Encoding: binary";
        let query = url.query().map(|query| format!("?{query}")).unwrap_or_default();
        let _ = write!(text, "--{boundary}\r\n{head}\r\nContent-ID: {number}\r\n\r\n{method} {}{query} HTTP/1.1\r\n", url.path());
        for (name, value) in headers {
            let _ = write!(text, "{name}: {}\r\n", value.to_str().unwrap_or_default());
        }
        text += "\r\n";
    }
    let _ = write!(text, "--{boundary}--\r\n");
    (format!("multipart/mixed; boundary={boundary}"), text.into())
}

/// The numbers of the requests after which there is no such blob.
fn gone(reply: &Reply) -> HashSet<usize> {
    let boundary = reply.header("content-type").and_then(|kind| kind.split_once("boundary="));
    match (boundary, reply.text()) {
        (Some((_, boundary)), Ok(text)) => text.split(&format!("--{}", boundary.trim_matches('"'))).filter_map(gone_one).collect(),
        _ => HashSet::new(),
    }
}

/// The number of one request, if its blob is gone.
fn gone_one(part: &str) -> Option<usize> {
    let mut lines = part.lines();
    let number = lines.find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-id").then(|| value.trim().parse().ok())?
    })?;
    let status: u16 = lines.find_map(|line| line.strip_prefix("HTTP/1.1 "))?.split(' ').next()?.parse().ok()?;
    (matches!(status, 200..300) || status == 404).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folder_of_all_is_the_longest() {
        for (paths, folder) in [
            (&["a/b/c"][..], "a/b"),
            (&["a/b/c", "a/b/d/e"], "a/b"),
            (&["a/b/c", "a/bc"], "a"),
            (&["a/b", "b"], ""),
            (&["ab/c", "a/c"], ""),
        ] {
            let paths: Vec<String> = paths.iter().map(|path| (*path).to_owned()).collect();
            assert_eq!(common_folder(&paths), folder, "{paths:?}");
        }
    }

    /// The example of the reference, with one that has to be asked for again and one that is refused.
    #[test]
    fn an_answer_says_what_is_gone() {
        let one = |number: usize, status: &str| {
            format!(
                "--batchresponse_1\r\nContent-Type: application/http\r\nContent-ID: {number}\r\n\r\nHTTP/1.1 {status}\r\nx-ms-version: \
                 2018-11-09\r\n\r\n<?xml version=\"1.0\"?>\r\n<Error>Content-ID: 7</Error>\r\n"
            )
        };
        let statuses = ["202 Accepted", "404 The specified blob does not exist.", "503 Server Busy", "403 Forbidden"];
        let parts: String = statuses.iter().enumerate().map(|(number, status)| one(number, status)).collect();
        let gone: Vec<usize> = (parts + "--batchresponse_1--").split("--batchresponse_1").filter_map(gone_one).collect();
        assert_eq!(gone, [0, 1]);
        assert_eq!(gone_one("\r\nContent-Type: application/http\r\n\r\nHTTP/1.1 400 Bad Request\r\n"), None);
    }
}
