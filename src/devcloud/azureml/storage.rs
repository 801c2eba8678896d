//! The workspace's own storage, as far as jobs need it: containers at signed addresses to which clients upload code, and the
//! container with the logs of all jobs, for who has a token.

use std::path::{Component, Path, PathBuf};

use serde_json::{Value, json};

use super::{
    super::http::Reply,
    api::{Answer, Refusal, Request, done, get, keep, page, show_kept},
    history, rules,
    service::Service,
    tokens,
};

/// Where containers are below the service's address.
pub const ROOT: &str = "/_storage/";

/// A workspace's own account, and the container in it.
pub const ACCOUNT: &str = "devstoreaccount1";
pub const ARTIFACTS: &str = "azureml";
/// Where a job's logs are in the latter.
const RUNS: &str = "ExperimentRun/dcid.";

/// The datastores that every workspace has, by the end of their ids. Who reads them signs in.
pub fn datastores() -> [(String, Value); 2] {
    [("workspaceblobstore", "azureml-blobstore", true), ("workspaceartifactstore", ARTIFACTS, false)].map(
        |(name, container, is_default)| {
            let properties = json!({
                "datastoreType": "AzureBlob", "accountName": ACCOUNT, "containerName": container, "endpoint": "core.windows.net",
                "protocol": "https", "credentials": { "credentialsType": "None" }, "isDefault": is_default,
            });
            (format!("datastores/{name}"), json!({ "properties": properties }))
        },
    )
}

fn admit_reader(service: &Service, request: &Request) -> Result<(), Refusal> {
    let refusal = |_| Refusal::new(401, "InvalidAuthenticationInfo", "Server failed to authenticate the request.");
    tokens::check(&service.key, &request.token, tokens::STORAGE).map_err(refusal)
}

/// The logs of the job that the prefix names.
pub fn list_logs(service: &mut Service, request: &Request, _: [&str; 2]) -> Answer {
    admit_reader(service, request)?;
    let prefix = request.query.get("prefix").map_or("", String::as_str);
    let name = prefix.strip_prefix(RUNS).and_then(|rest| rest.split('/').next()).unwrap_or_default();
    let paths = service.jobs.get(name).into_iter().flat_map(|job| job.logs().into_keys());
    let names = paths.map(|path| format!("{RUNS}{name}/{path}")).filter(|path| path.starts_with(prefix));
    let blob = |name: String| format!("<Blob><Name>{name}</Name><Properties><BlobType>AppendBlob</BlobType></Properties></Blob>");
    let blobs: String = names.map(blob).collect();
    let text = format!(
        "<?xml version=\"1.0\" encoding=\"utf-8\"?><EnumerationResults ContainerName=\"{ARTIFACTS}\"><Blobs>{blobs}</Blobs>\
         <NextMarker /></EnumerationResults>"
    );
    Ok(Reply::new(200, "application/xml", text))
}

pub fn get_log(service: &mut Service, request: &Request, [run, _]: [&str; 2]) -> Answer {
    admit_reader(service, request)?;
    let name = run.strip_prefix("dcid.").unwrap_or_default();
    let path = request.path.split_once(&format!("/{RUNS}{name}/")).map_or("", |(_, path)| path);
    history::contents(service, request, name, path)
}

/// A new container, and an address of it that allows everything.
pub fn begin(service: &mut Service, _: &Request, _: [&str; 2]) -> Answer {
    let container = format!("{ROOT}{}", service.next_id());
    let signature = service.key.signature(&container);
    let uri = format!("{}{container}", service.address);
    let signed = format!("{uri}?sv=2026-10-06&sr=c&sp=rcwl&sig={signature}");
    done(&json!({
        "blobReferenceForConsumption": {
            "blobUri": uri, "storageAccountArmId": "", "credential": { "credentialType": "SAS", "sasUri": signed },
        },
        "pendingUploadId": null, "pendingUploadType": "TemporaryBlobReference",
    }))
}

/// The address alone allows it, like a signed address of a storage account.
fn admit(service: &Service, request: &Request, container: &str) -> Result<(), Refusal> {
    let signature = service.key.signature(&format!("{ROOT}{container}"));
    if request.query.get("sig") == Some(&signature) {
        return Ok(());
    }
    Err(Refusal::new(403, "AuthenticationFailed", "Server failed to authenticate the request: the signature is wrong."))
}

/// Writes a file. What is noted about one is not kept: no client comes back to a container.
pub fn put(service: &mut Service, request: &Request, [container, _]: [&str; 2]) -> Answer {
    admit(service, request, container)?;
    let is_known = service.blobs.contains_key(&request.path);
    let status = match request.query.get("comp").map(String::as_str) {
        None => {
            service.blobs.insert(request.path.clone(), request.raw.clone());
            201
        }
        Some("metadata") if is_known => 200,
        _ => return Err(absent()),
    };
    Ok(Reply { status, headers: headers(), body: Vec::new() })
}

/// Whether there is a file.
pub fn head(service: &mut Service, request: &Request, [container, _]: [&str; 2]) -> Answer {
    admit(service, request, container)?;
    let mut reply = Reply { status: 200, headers: headers(), body: Vec::new() };
    if !service.blobs.contains_key(&request.path) {
        (reply.status, reply.headers) = (404, vec![("x-ms-error-code", "BlobNotFound".to_owned())]);
    }
    Ok(reply)
}

fn absent() -> Refusal {
    Refusal::new(404, "BlobNotFound", "The specified blob does not exist, or this is not simulated.")
}

fn headers() -> Vec<(&'static str, String)> {
    vec![
        ("etag", "\"0x8D0\"".to_owned()),
        ("last-modified", "Thu, 01 Jan 2026 00:00:00 GMT".to_owned()),
        ("x-ms-blob-type", "BlockBlob".to_owned()),
    ]
}

pub fn put_code(service: &mut Service, request: &Request, [name, version]: [&str; 2]) -> Answer {
    rules::name("name", name).and_then(|()| rules::name("version", version)).map_err(Refusal::invalid)?;
    keep(service, format!("codes/{name}/versions/{version}"), &request.body)
}

pub fn get_code(service: &mut Service, _: &Request, [name, version]: [&str; 2]) -> Answer {
    get(service, &format!("codes/{name}/versions/{version}"))
}

/// The versions whose files have this digest.
pub fn list_code(service: &mut Service, request: &Request, [name, _]: [&str; 2]) -> Answer {
    let (here, wanted) = (format!("codes/{name}/versions/"), request.query.get("hash"));
    let found = service.kept.iter().filter(|(end, kept)| {
        let hash = kept.body["properties"]["properties"]["hash_sha256"].as_str();
        end.starts_with(&here) && wanted.is_none_or(|wanted| hash == Some(wanted))
    });
    let shown = found.map(|(end, kept)| show_kept(service, end, kept)).collect();
    done(&page(service, request, shown))
}

/// The files of a version of code, by their places in the job's directory.
pub fn code(service: &Service, id: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let end = id.strip_prefix(&service.workspace.id()).unwrap_or_default().trim_start_matches('/');
    let uri = service.kept.get(end).and_then(|kept| kept.body["properties"]["codeUri"].as_str());
    let Some(folder) = uri.and_then(|uri| uri.strip_prefix(&service.address)) else { return Vec::new() };
    let folder = format!("{}/", folder.trim_end_matches('/'));
    let files = service.blobs.iter().filter_map(|(path, blob)| Some((path.strip_prefix(&folder)?, blob)));
    let inside = |path: &str| Path::new(path).components().all(|part| matches!(part, Component::Normal(_)));
    files.filter(|(path, _)| inside(path)).map(|(path, blob)| (PathBuf::from(path), blob.clone())).collect()
}
