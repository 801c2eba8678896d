//! What is registered in the simulated workspace.

use serde_json::{Value, json};

use super::{ask, service};
use crate::devcloud::azureml::Script;

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
    ] {
        assert_eq!(ask(&mut service, "PUT", path, &body).0, status, "{path} {body}");
    }
    let (status, kept) = ask(&mut service, "GET", "/models/m/versions/1", &Value::Null);
    assert_eq!((status, &kept["properties"]["tags"]["a"], &kept["name"]), (200, &json!("y"), &json!("1")));
    assert_eq!(ask(&mut service, "GET", "/data/d/versions/2", &Value::Null).0, 404);
}
