//! The run history: how runs went, and their logs at signed addresses.

use std::{
    fs::File,
    io::{self, Read, Seek, SeekFrom},
    path::PathBuf,
};

use serde_json::json;

use super::{
    super::http::Reply,
    api::{Answer, Refusal, Request, done},
    service::Service,
};

#[allow(clippy::unnecessary_wraps)] // All answers may be errors, for who asks.
pub fn discovery(service: &mut Service, _: &Request, _: [&str; 2]) -> Answer {
    let here = &service.address;
    Ok(Reply::json(
        200,
        &json!({ "api": here, "history": here, "experimentation": here, "catalog": here, "gallery": "x", "studio": here }),
    ))
}

pub fn details(service: &mut Service, _: &Request, [name, _]: [&str; 2]) -> Answer {
    let job = service.jobs.get(name).ok_or_else(|| Refusal::new(404, "UserError", format!("Run {name} not found")))?;
    let link = |path: &str| {
        let place = format!("/_blob/{name}/{path}");
        let signature = service.key.signature(&place);
        format!("{}{place}?sv=2026-10-06&sr=b&sp=r&sig={signature}", service.address)
    };
    Ok(Reply::json(200, &job.details(link)))
}

/// Where the output of a rank in a life of a job is kept.
pub fn output(service: &Service, job: &str, life: u32, rank: usize) -> PathBuf {
    service.state.join(job).join(format!("{life}.{rank}.log"))
}

/// The facts of a run beside its details. It has no outputs of its own.
pub fn run_data(service: &mut Service, request: &Request, _: [&str; 2]) -> Answer {
    let name = request.body["runId"].as_str().unwrap_or_default();
    let job = service.jobs.get(name).ok_or_else(|| Refusal::new(404, "UserError", format!("Run {name} not found")))?;
    done(&json!({ "runMetadata": { "runId": name, "status": job.status(), "outputs": {} } }))
}

/// The address alone allows reading, like a signed address of a storage account.
pub fn log(service: &mut Service, request: &Request, [name, _]: [&str; 2]) -> Answer {
    let signed = request.query.get("sig").is_some_and(|sig| *sig == service.key.signature(&request.path));
    if !signed {
        return Err(Refusal::new(
            403,
            "AuthenticationFailed",
            "Server failed to authenticate the request: the signature is wrong.",
        ));
    }
    contents(service, request, name, request.path.strip_prefix(&format!("/_blob/{name}/")).unwrap_or_default())
}

/// One of a job's logs, or the part of it that is asked for.
pub fn contents(service: &Service, request: &Request, name: &str, path: &str) -> Answer {
    let absent = || Refusal::new(404, "BlobNotFound", "The specified blob does not exist.");
    let job = service.jobs.get(name).ok_or_else(absent)?;
    let (from, length, bytes) = match job.logs().get(path).ok_or_else(absent)? {
        None => part(io::Cursor::new(job.words.as_bytes()), request.range.as_deref()),
        Some((life, rank)) => match File::open(output(service, name, *life, *rank)) {
            Ok(file) => part(file, request.range.as_deref()),
            // The process did not begin to write.
            Err(_) => part(io::empty(), request.range.as_deref()),
        },
    }
    .map_err(|_| Refusal::new(416, "InvalidRange", "The range specified is invalid for the current size of the resource."))?;
    let mut reply = Reply::new(if request.range.is_some() { 206 } else { 200 }, "text/plain", bytes);
    if request.range.is_some() {
        let end = from + (reply.body.len() as u64).saturating_sub(1);
        reply.headers.push(("content-range", format!("bytes {from}-{end}/{length}")));
    }
    reply.headers.extend([("accept-ranges", "bytes".to_owned()), ("x-ms-blob-type", "AppendBlob".to_owned())]);
    Ok(reply)
}

/// Where the part begins, how long the whole is, and the part. An error where nothing is at that place.
fn part(mut file: impl Read + Seek, range: Option<&str>) -> io::Result<(u64, u64, Vec<u8>)> {
    let length = file.seek(SeekFrom::End(0))?;
    let asked = range.and_then(|range| range.trim().strip_prefix("bytes=")?.split_once('-'));
    let (from, to) = asked.map_or((0, None), |(from, to)| (from.parse().unwrap_or(0), to.parse::<u64>().ok()));
    let to = to.map_or(length, |to| to.saturating_add(1)).min(length);
    if asked.is_some() && from >= length {
        return Err(io::Error::other("nothing is there"));
    }
    file.seek(SeekFrom::Start(from))?;
    let mut bytes = Vec::new();
    file.take(to.saturating_sub(from)).read_to_end(&mut bytes)?;
    Ok((from, length, bytes))
}
