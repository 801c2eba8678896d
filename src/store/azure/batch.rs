//! Many deletions in one request: "Blob Batch" in the reference of the blob service. Each is a request of its own inside, signed by
//! itself and answered by itself.

use std::{collections::HashSet, fmt::Write as _, sync::Arc};

use azure_core::http::{Method, RawResponse, Request};

use super::{
    super::{Result, content::concurrently},
    AzureStore, Client, check, part,
    retry::Trouble,
    transport::header,
};

/// Most blobs that the service deletes in one request.
const MOST: usize = 256;

impl AzureStore {
    /// A listing shows which blobs the objects are: a log is several. So a log goes with its first blob last, as when it is deleted
    /// alone.
    pub(super) async fn delete_in_batches(&self, paths: &[String]) -> Result<()> {
        for path in paths {
            check(path)?;
            self.known.forget(path);
        }
        let wanted: HashSet<&str> = paths.iter().map(String::as_str).collect();
        let blobs = self.blobs(common_folder(paths)).await?;
        let blobs = blobs.iter().filter_map(|blob| self.client.location.path(blob.name.as_deref()?));
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
        let blob = self.blob(name);
        match self.ask("delete", name, blob.delete(None)).await? {
            Err(refusal) if refusal.status != 404 => Err(self.refused("delete", name, &refusal)),
            _ => Ok(()),
        }
    }

    /// At most [`MOST`]. A blob that the service does not report as gone is deleted by itself: there it is tried again, and a
    /// refusal has its reason.
    async fn delete_batch(&self, names: &[String]) -> Result<()> {
        let container = &self.location.container;
        let batch = self.batch(names).await.map_err(|trouble| self.gave_up("delete", container, trouble, 1))?;
        let gone = self.own("delete", container, batch).await?.map(|reply| gone_in(&reply)).unwrap_or_default();
        for (_, name) in names.iter().enumerate().filter(|(number, _)| !gone.contains(number)) {
            self.delete(name).await?;
        }
        Ok(())
    }

    /// The request that deletes these, each signed; good for as long as an operation may take.
    pub async fn batch(&self, names: &[String]) -> Result<Request, Trouble> {
        let boundary = format!("batch_{}", azure_core::Uuid::new_v4());
        let mut text = String::new();
        for (number, name) in names.iter().enumerate() {
            let mut part = Request::new(self.location.url(Some(&self.location.blob(name))), Method::Delete);
            part.insert_header("content-length", "0");
            self.transport.sign(&mut part).await?;
            let head = "Content-Type: application/http\r\nContent-Transfer-Encoding: binary";
            let _ =
                write!(text, "--{boundary}\r\n{head}\r\nContent-ID: {number}\r\n\r\nDELETE {} HTTP/1.1\r\n", part.path_and_query());
            for (name, value) in part.headers().iter() {
                let _ = write!(text, "{}: {}\r\n", name.as_str(), value.as_str());
            }
            text += "\r\n";
        }
        let _ = write!(text, "--{boundary}--\r\n");
        let mut url = self.location.url(None);
        url.set_query(Some("restype=container&comp=batch"));
        let mut request = Request::new(url, Method::Post);
        request.insert_header("content-type", format!("multipart/mixed; boundary={boundary}"));
        request.set_body(text);
        Ok(request)
    }
}

/// The longest folder that has all of `paths`, without its slash; empty for the whole store.
fn common_folder(paths: &[String]) -> &str {
    let first = paths.first().map(String::as_str).unwrap_or_default();
    let holds = |folder: &&str| paths.iter().all(|path| path.strip_prefix(*folder).is_some_and(|rest| rest.starts_with('/')));
    first.rmatch_indices('/').map(|(end, _)| &first[..end]).find(holds).unwrap_or_default()
}

fn gone_in(reply: &RawResponse) -> HashSet<usize> {
    gone(header(reply.headers(), "content-type").unwrap_or_default(), reply.body())
}

/// The numbers of the requests after which there is no such blob, in a reply with this `Content-Type`.
pub fn gone(kind: &str, body: &[u8]) -> HashSet<usize> {
    match (kind.split_once("boundary="), std::str::from_utf8(body)) {
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
