//! The assets that are registered in the simulated workspace.

use serde_json::{Value, json};

use super::{Service, WORKSPACE, ask, below, perform, route, service};
use crate::devcloud::azureml::{Script, api::Request, rules, storage};

#[test]
fn a_version_stays_where_it_is_and_other_tags_are_taken() {
    let mut service = service(Script::default());
    let data = |uri: &str| json!({ "properties": { "dataType": "uri_folder", "dataUri": uri, "tags": { "a": "b" } } });
    let model =
        |uri: &str, tag: &str| json!({ "properties": { "modelUri": uri, "modelType": "custom_model", "tags": { "a": tag } } });
    for (path, body, status) in [
        ("/data/d/versions/1", data("azureml://datastores/x/paths/a/"), 201),
        ("/data/d/versions/1", data("azureml://datastores/x/paths/a/"), 200),
        ("/data/d/versions/1", data("azureml://datastores/x/paths/b/"), 409),
        ("/data/d/versions/2", json!({ "properties": { "dataType": "uri_folder" } }), 400),
        ("/models/m/versions/1", model("azureml://jobs/j/outputs/a", "x"), 201),
        ("/models/m/versions/1", model("azureml://jobs/j/outputs/a", "y"), 200),
        ("/models/m/versions/1", model("azureml://jobs/k/outputs/a", "y"), 409),
        ("/models/m/versions/2", json!({ "properties": { "modelUri": "a", "tags": { "a": 1 } } }), 400),
        ("/models/m/versions/2", json!({ "properties": { "modelUri": "a", "path": "b" } }), 400),
        ("/models/m/versions/2", json!({}), 400),
        ("/models/m%2F/versions/2", model("a", "b"), 400),
        ("/models/m/versions/bcdfgh", model("a", "b"), 400),
        ("/models/m/versions/0", model("a", "b"), 400),
        ("/models/m/versions/2147483648", model("a", "b"), 400),
        ("/models/m/versions/2147483647", model("a", "b"), 201),
    ] {
        assert_eq!(ask(&mut service, "PUT", path, &body).0, status, "{path} {body}");
    }
    let (status, kept) = ask(&mut service, "GET", "/models/m/versions/1", &Value::Null);
    assert_eq!((status, &kept["properties"]["tags"]["a"], &kept["name"]), (200, &json!("y"), &json!("1")));
    assert_eq!(kept["properties"]["flavors"], json!({}), "{kept}");
    assert_eq!(ask(&mut service, "GET", "/data/d/versions/2", &Value::Null).0, 404);
}

#[test]
fn code_is_uploaded_at_a_signed_address_and_found_by_its_digest() {
    let mut service = service(Script::default());
    let wish = json!({ "pendingUploadType": "TemporaryBlobReference" });
    let (status, answer) = ask(&mut service, "POST", "/codes/c/versions/1/startPendingUpload", &wish);
    let place = &answer["blobReferenceForConsumption"];
    let text = |value: &Value| value.as_str().expect("text").to_owned();
    let (uri, signed) = (text(&place["blobUri"]), text(&place["credential"]["sasUri"]));
    assert!(status == 200 && signed.starts_with(&uri) && !uri.contains("sig="), "{answer}");
    let url = reqwest::Url::parse(&signed).expect("an address");
    let mut send = |method: &str, end: &str, query: &[(&str, &str)]| {
        let path = format!("{}/src/{end}", url.path());
        let mut request = Request { method: method.to_owned(), path: path.clone(), raw: b"echo".to_vec(), ..Request::default() };
        request.query = url.query_pairs().into_owned().collect();
        request.query.extend(query.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
        let parts = below(&service, &path).expect("a place");
        let route = route(method, &parts).expect("a call");
        perform(&mut service, &route, &request).status
    };
    assert_eq!(send("HEAD", "a.sh", &[]), 404);
    assert_eq!(send("PUT", "a.sh", &[("sig", "wrong")]), 403);
    assert_eq!(send("PUT", "a.sh", &[("comp", "metadata")]), 404);
    assert_eq!(["PUT", "HEAD"].map(|method| send(method, "a.sh", &[])), [201, 200]);
    assert_eq!(send("PUT", "b/c.sh", &[]), 201);
    assert_eq!(send("PUT", "a.sh", &[("comp", "metadata")]), 200);

    let code = json!({ "properties": { "codeUri": format!("{uri}/src"), "properties": { "hash_sha256": "ab" } } });
    assert_eq!(ask(&mut service, "PUT", "/codes/c/versions/1", &code).0, 201);
    let found = |service: &mut Service, hash: &str| {
        let (_, list) = ask(service, "GET", &format!("/codes/c/versions?hash={hash}&hashVersion=1"), &Value::Null);
        list["value"].as_array().expect("a list").len()
    };
    assert_eq!((found(&mut service, "ab"), found(&mut service, "cd")), (1, 0));
    let files = storage::code(&service, &format!("{WORKSPACE}/codes/c/versions/1"));
    assert_eq!(files, [("a.sh".into(), b"echo".to_vec()), ("b/c.sh".into(), b"echo".to_vec())]);
    assert_eq!(storage::code(&service, &format!("{WORKSPACE}/codes/c/versions/2")), []);
}

#[test]
fn what_the_description_does_not_have_is_refused() {
    let mut service = service(Script::default());
    for (method, path, part) in [
        ("GET", "/jobs?orderBy=name", "has no parameter orderBy"),
        ("GET", "/models/m/versions/1?stage=x", "has no parameter stage"),
        ("GET", "/computes/gpu/listNodes", "is not described"),
        ("POST", "/jobs/j/cancel", "has no body"),
    ] {
        let (end, query) = path.split_once('?').unwrap_or((path, ""));
        let query = query.split_once('=').into_iter().map(|(name, value)| (name.to_owned(), value.to_owned()));
        let query = query.chain([("api-version".to_owned(), "2025-12-01".to_owned())]).collect();
        let body = if method == "POST" { json!({}) } else { Value::Null };
        let why = rules::described(method, &format!("{WORKSPACE}{end}"), &query, &body).expect_err(path);
        assert!(why.contains(part), "{why}");
    }
    let (status, answer) = ask(&mut service, "GET", "/jobs?orderBy=name", &Value::Null);
    assert!(status == 400 && answer.to_string().contains("orderBy"), "{answer}");
    let none = rules::described("GET", &format!("{WORKSPACE}/jobs"), &std::collections::BTreeMap::new(), &Value::Null);
    assert!(none.is_err_and(|why| why.contains("api-version")));
}
