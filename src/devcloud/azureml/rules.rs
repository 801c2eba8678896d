//! The rules of the service's own description for what clients send: `openapi-subset.json` of the recordings, and
//! `openapi-assets.json`, which has the models, and the reading of data and code, that the former lacks.

use std::{collections::BTreeMap, sync::LazyLock};

use serde_json::{Map, Value};

static DESCRIPTION: LazyLock<Value> = LazyLock::new(|| {
    let mut whole = Value::Null;
    for text in [
        include_str!("../../../tests/recordings/azureml/openapi-subset.json"),
        include_str!("../../../tests/recordings/azureml/openapi-assets.json"),
    ] {
        merge(&mut whole, serde_json::from_str(text).unwrap_or_default());
    }
    whole
});

fn merge(into: &mut Value, other: Value) {
    match (into, other) {
        (Value::Object(into), Value::Object(other)) => {
            other.into_iter().for_each(|(name, value)| merge(into.entry(name).or_insert(Value::Null), value));
        }
        (into, other) => *into = other,
    }
}

/// The rule of the description that a request to Resource Manager breaks.
pub fn described(method: &str, path: &str, query: &BTreeMap<String, String>, body: &Value) -> Result<(), String> {
    // The address of an operation comes from an answer, and is nowhere described.
    if method == "GET" && path.contains("/computeOperationsStatus/") {
        return Ok(());
    }
    let operation = operation(method, path).ok_or_else(|| format!("{method} {path} is not described"))?;
    let known = || operation["parameters"].as_array().into_iter().flatten().filter(|parameter| parameter["in"] == "query");
    if let Some(other) = query.keys().find(|name| known().all(|parameter| parameter["name"] != **name)) {
        return Err(format!("{method} {path} has no parameter {other}"));
    }
    let is_missing = |parameter: &&Value| {
        let name = parameter["name"].as_str().unwrap_or_default();
        parameter["required"] == true && !query.contains_key(name)
    };
    if let Some(missing) = known().find(is_missing) {
        return Err(format!("the parameter {} is required", missing["name"]));
    }
    let schema = &operation["requestBody"]["content"]["application/json"]["schema"];
    match (schema.is_null(), body.is_null()) {
        (true, true) => Ok(()),
        (true, false) => Err(format!("{method} {path} has no body")),
        (false, _) => check_at(schema, body, ""),
    }
}

fn operation(method: &str, path: &str) -> Option<&'static Value> {
    let parts: Vec<&str> = path.split('/').collect();
    let fits = |template: &str| {
        let is_alike = |(known, part): (&str, &&str)| known.starts_with('{') || known.eq_ignore_ascii_case(part);
        template.split('/').count() == parts.len() && template.split('/').zip(&parts).all(is_alike)
    };
    let methods = DESCRIPTION["paths"].as_object()?.iter().find(|(template, _)| fits(template))?.1;
    methods.get(method.to_ascii_lowercase())
}

fn resolved(schema: &Value) -> &Value {
    let link = schema["$ref"].as_str().or_else(|| schema["allOf"][0]["$ref"].as_str());
    link.and_then(|link| DESCRIPTION.pointer(link.trim_start_matches('#'))).unwrap_or(schema)
}

fn check_at(schema: &Value, value: &Value, at: &str) -> Result<(), String> {
    if value.is_null() && schema["nullable"] == true {
        return Ok(());
    }
    let schema = resolved(schema);
    if let Some(tag) = schema["discriminator"]["propertyName"].as_str() {
        let chosen = value[tag].as_str().and_then(|kind| schema["discriminator"]["mapping"][kind].as_str());
        let chosen = chosen.and_then(|link| DESCRIPTION.pointer(link.trim_start_matches('#')));
        return check_at(chosen.ok_or_else(|| format!("{at}/{tag}: {} is not known", value[tag]))?, value, at);
    }
    if let Some(allowed) = schema["enum"].as_array().filter(|allowed| !allowed.contains(value)) {
        return Err(format!("{at}: {value} is none of {}", Value::Array(allowed.clone())));
    }
    let fits = match schema["type"].as_str() {
        Some("string") => value.as_str().is_some_and(|text| schema["pattern"] != "^-?P" || is_duration(text)),
        Some("integer") => value.is_i64() || value.is_u64(),
        Some("boolean") => value.is_boolean(),
        Some("array") => {
            let items = value.as_array().ok_or_else(|| format!("{at}: {value} is no array"))?;
            return items.iter().try_for_each(|item| check_at(&schema["items"], item, at));
        }
        Some("object") => {
            let fields = value.as_object().ok_or_else(|| format!("{at}: {value} is no object"))?;
            return check_fields(schema, fields, at);
        }
        _ => true,
    };
    if fits { Ok(()) } else { Err(format!("{at}: {value} is not a {} as described", schema["type"].as_str().unwrap_or_default())) }
}

fn check_fields(schema: &Value, fields: &Map<String, Value>, at: &str) -> Result<(), String> {
    let required = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
    if let Some(missing) = required.into_iter().find(|name| fields.get(*name).is_none_or(Value::is_null)) {
        return Err(format!("{at}/{missing} is required"));
    }
    fields.iter().try_for_each(|(name, value)| {
        let at = format!("{at}/{name}");
        match (schema["properties"].get(name), &schema["additionalProperties"]) {
            (Some(field), _) => check_at(field, value, &at),
            (None, Value::Object(_)) => check_at(&schema["additionalProperties"], value, &at),
            (None, _) => Err(format!("{at} is not known")),
        }
    })
}

/// Whether a text is a duration of ISO 8601. The `4h` that people write is none.
fn is_duration(text: &str) -> bool {
    text.trim_start_matches('-').starts_with('P') && text.parse::<jiff::Span>().is_ok()
}

/// The names that the service allows.
pub fn name(kind: &'static str, name: &str) -> Result<(), String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '-';
    let begins = |first: fn(char) -> bool| name.chars().next().is_some_and(first);
    let fits = if kind == "compute" {
        // The last word of a cluster's name is not a number.
        let last = name.rsplit_once('-').map_or("", |(_, last)| last);
        let number = !last.is_empty() && last.chars().all(|c| c.is_ascii_digit());
        (3..=24).contains(&name.len()) && begins(|c| c.is_ascii_alphabetic()) && name.chars().all(plain) && !number
    } else {
        let all = name.chars().all(|c| plain(c) || c == '_' || (kind == "version" && c == '.'));
        (1..=255).contains(&name.len()) && begins(|c| c.is_ascii_alphanumeric()) && all
    };
    if fits { Ok(()) } else { Err(format!("'{name}' is not a valid name of a {kind}")) }
}
