//! Versions of data and of models: what is registered in a workspace.

use serde_json::{Value, json};

use super::{
    api::{Answer, Refusal, Request, get, keep},
    rules,
    service::Service,
};

pub fn get_data(service: &mut Service, _: &Request, [name, version]: [&str; 2]) -> Answer {
    get(service, &end("data", name, version))
}

pub fn put_data(service: &mut Service, request: &Request, names: [&str; 2]) -> Answer {
    put(service, request, "data", names, "dataUri")
}

pub fn get_model(service: &mut Service, _: &Request, [name, version]: [&str; 2]) -> Answer {
    get(service, &end("models", name, version))
}

pub fn put_model(service: &mut Service, request: &Request, names: [&str; 2]) -> Answer {
    if !request.body["properties"]["modelUri"].is_string() {
        return Err(Refusal::invalid("A model has a modelUri."));
    }
    if !names[1].parse::<i32>().is_ok_and(|version| version > 0) {
        return Err(Refusal::invalid(format!("The version '{}' of a model is not a positive integer.", names[1])));
    }
    let mut filled = request.clone();
    // Microsoft's own library cannot read a model that lacks its flavors.
    for (field, default) in
        [("flavors", json!({})), ("properties", json!({})), ("isAnonymous", json!(false)), ("isArchived", json!(false))]
    {
        let sent = &mut filled.body["properties"][field];
        if sent.is_null() {
            *sent = default;
        }
    }
    put(service, &filled, "models", names, "modelUri")
}

fn end(kind: &str, name: &str, version: &str) -> String {
    format!("{kind}/{name}/versions/{version}")
}

/// A version stays where it is.
fn put(service: &mut Service, request: &Request, kind: &str, [name, version]: [&str; 2], place: &str) -> Answer {
    rules::name("name", name).and_then(|()| rules::name("version", version)).map_err(Refusal::invalid)?;
    let end = end(kind, name, version);
    let is_other = |known: &Value| known["properties"][place] != request.body["properties"][place];
    if service.kept.get(&end).is_some_and(|known| is_other(&known.body)) {
        return Err(Refusal::new(409, "UserError", format!("The version {name}:{version} exists at another place.")));
    }
    keep(service, end, &request.body)
}
