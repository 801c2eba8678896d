//! Every request against Google's own descriptions of its services.

use super::*;

/// Google's own description of a service, and what it says against requests.
struct Discovery(Value);

impl Discovery {
    /// By its file's name: `compute.v1.json`.
    fn read(service: &str) -> Self {
        let folder =
            std::env::var("FT_DISCOVERY").expect("FT_DISCOVERY names a folder of Google's descriptions: tests/run installs it");
        let path = std::path::Path::new(&folder).join(service);
        Self(serde_json::from_slice(&fs::read(path).expect("readable")).expect("JSON"))
    }

    /// `compute.instances.insert` is `resources.instances.methods.insert`, and a resource may have resources of its own.
    fn check(&self, call: &Value) -> Vec<String> {
        let name = call["call"].as_str().expect("a name");
        let (_, name) = name.split_once('.').expect("a service");
        let (resources, verb) = name.rsplit_once('.').expect("a resource");
        let owner = resources.split('.').fold(&self.0, |owner, resource| &owner["resources"][resource]);
        let method = &owner["methods"][verb];
        assert!(method.is_object(), "there is no {name}");
        let query = call["query"].as_object().into_iter().flatten();
        let unknown = query.filter(|(key, _)| !method["parameters"][key].is_object() && !self.0["parameters"][key].is_object());
        let unknown = unknown.map(|(key, _)| format!("{name}: unknown parameter {key}"));
        let body = match method["request"]["$ref"].as_str() {
            Some(schema) => self.against(&self.0["schemas"][schema], &call["body"], name),
            None if call["body"].is_null() => Vec::new(),
            None => vec![format!("{name}: takes no body")],
        };
        unknown.chain(body).collect()
    }

    fn against(&self, schema: &Value, value: &Value, at: &str) -> Vec<String> {
        if let Some(reference) = schema["$ref"].as_str() {
            return self.against(&self.0["schemas"][reference], value, at);
        }
        let wrong = |why: &str| vec![format!("{at}: {value} is {why}")];
        let output_only =
            schema["readOnly"] == true || schema["description"].as_str().is_some_and(|text| text.contains("[Output Only]"));
        if output_only {
            return wrong("for answers only");
        }
        match (schema["type"].as_str().unwrap_or_default(), value) {
            ("object", Value::Object(fields)) => fields
                .iter()
                .flat_map(|(key, value)| match (&schema["properties"][key], &schema["additionalProperties"]) {
                    (known, _) if known.is_object() => self.against(known, value, &format!("{at}.{key}")),
                    (_, any) if any.is_object() => self.against(any, value, &format!("{at}.{key}")),
                    _ => vec![format!("{at}: unknown field {key}")],
                })
                .collect(),
            ("array", Value::Array(items)) => items.iter().flat_map(|item| self.against(&schema["items"], item, at)).collect(),
            ("string", Value::String(text)) => match schema["enum"].as_array() {
                Some(values) if !values.iter().any(|value| value == text) => wrong("not one of the values"),
                _ if schema["format"] == "int64" && text.parse::<i64>().is_err() => wrong("no number"),
                _ => Vec::new(),
            },
            ("integer", Value::Number(_)) | ("boolean", Value::Bool(_)) => Vec::new(),
            (kind, _) => wrong(&format!("no {kind}")),
        }
    }
}

#[tokio::test]
#[ignore = "needs Google's discovery document: tests/run installs it"]
async fn discovery_has_nothing_against_any_request() {
    let (discovery, billing) = (Discovery::read("compute.v1.json"), Discovery::read("cloudbilling.v1.json"));
    let place = Place::new(json!({ "boot": "1s" })).await;
    let plans = [(true, false), (true, true), (false, false)].map(|(spot, legacy)| {
        let mut plan = plan();
        (wanted_mut(&mut plan).spot, wanted_mut(&mut plan).legacy_preemptible) = (spot, legacy);
        wanted_mut(&mut plan).preemption_notice = (spot && !legacy).then_some(crate::job::units::Span(Duration::ZERO));
        plan
    });
    let others = ["a100", "l4", "h100"].map(|accelerator| on(of(accelerator)));
    every_call(&place, &[others, plans].concat()).await;
    for gce in [of("v100"), of("a100")] {
        let plan = on(GcePlan { rank_zones: true, ..gce.clone() });
        place.provider().price(&plan).await.expect("a price");
        assert!(place.provider().room(&plan).await.iter().all(|finding| finding.health == Health::Good));
    }
    super::groups::every_call(&place).await;
    let calls = place.calls().await;
    assert!(calls.iter().any(|made| made["call"] == "compute.advice.capacity"));
    let metrics = &discovery.0["schemas"]["Quota"]["properties"]["metric"]["enum"];
    let known = |metric: &String| metrics.as_array().is_some_and(|metrics| metrics.iter().any(|known| known == metric));
    let unknown: Vec<String> = crate::devcloud::gce::metrics().into_iter().filter(|metric| !known(metric)).collect();
    assert!(unknown.is_empty(), "{unknown:?}");
    let calls = place.calls().await;
    for call in CALLS.iter().chain(&super::groups::CALLS) {
        assert!(calls.iter().any(|made| made["call"] == format!("compute.{call}")), "{call} was not made");
    }
    let (products, calls): (Vec<&Value>, Vec<&Value>) =
        calls.iter().partition(|call| call["call"].as_str().is_some_and(|name| name.starts_with("cloudbilling.")));
    assert!(!products.is_empty());
    let against = calls.iter().flat_map(|call| discovery.check(call));
    let against: Vec<String> = against.chain(products.iter().flat_map(|call| billing.check(call))).collect();
    assert!(against.is_empty(), "{}", against.join("\n"));
}
