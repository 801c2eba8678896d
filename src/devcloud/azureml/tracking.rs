//! MLflow's REST interface, as far as its clients need it for the numbers of a run. Every job is a run by its name; clients make
//! others. What is sent twice is kept twice.

#![allow(clippy::unnecessary_wraps)] // All answers may be errors, for who asks.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{
    super::http::Reply,
    api::{Answer, Handler, Request, done},
    service::Service,
};

/// The most that MLflow takes in one request.
const MOST_METRICS: usize = 1_000;
const MOST_OTHERS: usize = 100;

/// Where the interface begins in the path below a workspace's address.
pub const ROOT: [&str; 4] = ["mlflow", "api", "2.0", "mlflow"];

#[derive(Default)]
pub struct Tracked {
    experiments: Vec<String>,
    runs: BTreeMap<String, Run>,
}

#[derive(Default)]
struct Run {
    experiment: String,
    name: String,
    start: Value,
    end: Value,
    /// `None` where a job says it.
    status: Option<String>,
    tags: BTreeMap<String, String>,
    params: BTreeMap<String, String>,
    /// In the order in which they came.
    metrics: Vec<Metric>,
}

struct Metric {
    key: String,
    value: f64,
    timestamp: i64,
    step: i64,
}

impl Metric {
    fn read(sent: &Value) -> Option<Self> {
        let whole = |name: &str| sent[name].as_i64().or_else(|| sent[name].as_str()?.parse().ok());
        let (key, value) = (sent["key"].as_str()?.to_owned(), sent["value"].as_f64()?);
        Some(Self { key, value, timestamp: whole("timestamp")?, step: whole("step").unwrap_or(0) })
    }

    fn show(&self) -> Value {
        json!({ "key": self.key, "value": self.value, "timestamp": self.timestamp, "step": self.step })
    }
}

impl Run {
    fn show(&self, id: &str, status: &str) -> Value {
        let mut newest: BTreeMap<&str, &Metric> = BTreeMap::new();
        for metric in &self.metrics {
            let known = newest.entry(&metric.key).or_insert(metric);
            if (metric.step, metric.timestamp) >= (known.step, known.timestamp) {
                *known = metric;
            }
        }
        let metrics: Vec<Value> = newest.into_values().map(Metric::show).collect();
        json!({
            "info": {
                "run_id": id, "run_uuid": id, "run_name": self.name, "experiment_id": self.experiment, "status": status,
                "start_time": self.start, "end_time": self.end, "lifecycle_stage": "active",
            },
            "data": { "metrics": metrics, "params": pairs(&self.params), "tags": pairs(&self.tags) },
        })
    }
}

fn pairs(from: &BTreeMap<String, String>) -> Vec<Value> {
    from.iter().map(|(key, value)| json!({ "key": key, "value": value })).collect()
}

fn read_pairs(list: &Value) -> Option<Vec<(String, String)>> {
    let pair = |pair: &Value| Some((pair["key"].as_str()?.to_owned(), pair["value"].as_str()?.to_owned()));
    list.as_array().into_iter().flatten().map(pair).collect()
}

/// The call that a path below [`ROOT`] is.
pub fn route(method: &str, path: &[&str]) -> Option<(&'static str, Handler)> {
    Some(match (method, path) {
        ("GET", ["experiments", "get-by-name"]) => ("Mlflow_GetExperimentByName", experiment),
        ("POST", ["experiments", "create"]) => ("Mlflow_CreateExperiment", create_experiment),
        ("POST", ["runs", "create"]) => ("Mlflow_CreateRun", create_run),
        ("GET", ["runs", "get"]) => ("Mlflow_GetRun", get_run),
        ("POST", ["runs", "search"]) => ("Mlflow_SearchRuns", search),
        ("POST", ["runs", "update"]) => ("Mlflow_UpdateRun", update),
        ("POST", ["runs", "set-tag"]) => ("Mlflow_SetTag", set_tag),
        ("POST", ["runs", "log-batch"]) => ("Mlflow_LogBatch", log_batch),
        ("GET", ["metrics", "get-history"]) => ("Mlflow_GetMetricHistory", history),
        _ => return None,
    })
}

fn refused(status: u16, code: &str, why: &str) -> Answer {
    Ok(Reply::json(status, &json!({ "error_code": code, "message": why })))
}

fn invalid(why: &str) -> Answer {
    refused(400, "INVALID_PARAMETER_VALUE", why)
}

fn absent(what: &str) -> Answer {
    refused(404, "RESOURCE_DOES_NOT_EXIST", &format!("There is no {what} of that name."))
}

fn experiment(service: &mut Service, request: &Request, _: [&str; 2]) -> Answer {
    let wanted = request.query.get("experiment_name");
    match service.tracked.experiments.iter().position(|name| Some(name) == wanted) {
        Some(number) => done(&json!({ "experiment": { "experiment_id": number.to_string(), "name": wanted } })),
        None => absent("experiment"),
    }
}

fn create_experiment(service: &mut Service, request: &Request, _: [&str; 2]) -> Answer {
    let Some(name) = request.body["name"].as_str() else { return invalid("The name is missing.") };
    let experiments = &mut service.tracked.experiments;
    if experiments.iter().any(|known| known == name) {
        return refused(400, "RESOURCE_ALREADY_EXISTS", "The experiment exists.");
    }
    experiments.push(name.to_owned());
    done(&json!({ "experiment_id": (experiments.len() - 1).to_string() }))
}

fn create_run(service: &mut Service, request: &Request, _: [&str; 2]) -> Answer {
    let body = &request.body;
    let text = |name: &str| body[name].as_str().unwrap_or_default().to_owned();
    let Some(tags) = read_pairs(&body["tags"]) else { return invalid("The tags are no pairs.") };
    let run = Run {
        experiment: text("experiment_id"),
        name: text("run_name"),
        start: body["start_time"].clone(),
        status: Some("RUNNING".to_owned()),
        tags: tags.into_iter().collect(),
        ..Run::default()
    };
    let id = service.next_id();
    service.tracked.runs.insert(id.clone(), run);
    done(&json!({ "run": shown(service, &id) }))
}

/// The run of this name; that of a job begins to be one when it is asked for.
fn found<'s>(service: &'s mut Service, id: &str) -> Option<&'s mut Run> {
    if let Some(job) = service.jobs.get(id) {
        let experiment = job.field("experimentName").as_str().unwrap_or("Default").to_owned();
        let name = job.field("displayName").as_str().unwrap_or(id).to_owned();
        service.tracked.runs.entry(id.to_owned()).or_insert_with(|| Run { experiment, name, ..Run::default() });
    }
    service.tracked.runs.get_mut(id)
}

fn shown(service: &Service, id: &str) -> Value {
    let Some(run) = service.tracked.runs.get(id) else { return Value::Null };
    let of_job = service.jobs.get(id).map_or("RUNNING", |job| match job.status() {
        "Completed" => "FINISHED",
        "Failed" => "FAILED",
        "Canceled" => "KILLED",
        _ => "RUNNING",
    });
    run.show(id, run.status.as_deref().unwrap_or(of_job))
}

fn get_run(service: &mut Service, request: &Request, _: [&str; 2]) -> Answer {
    let id = request.query.get("run_id").cloned().unwrap_or_default();
    if found(service, &id).is_none() {
        return absent("run");
    }
    done(&json!({ "run": shown(service, &id) }))
}

/// By one tag at most: tags.`NAME` = 'VALUE'.
fn search(service: &mut Service, request: &Request, _: [&str; 2]) -> Answer {
    let filter = request.body["filter"].as_str().unwrap_or_default();
    let pair = filter.strip_prefix("tags.`").and_then(|rest| rest.strip_suffix('\'')?.split_once("` = '"));
    if pair.is_none() && !filter.is_empty() {
        return invalid("Only a filter by one tag is simulated.");
    }
    let experiments: Vec<&str> =
        request.body["experiment_ids"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let has = |run: &Run| pair.is_none_or(|(key, value)| run.tags.get(key).is_some_and(|tag| tag == value));
    let fits = |run: &Run| experiments.contains(&run.experiment.as_str()) && has(run);
    let ids: Vec<&String> = service.tracked.runs.iter().filter(|(_, run)| fits(run)).map(|(id, _)| id).collect();
    let most = request.body["max_results"].as_u64().and_then(|most| usize::try_from(most).ok()).unwrap_or(MOST_METRICS);
    done(&json!({ "runs": ids.into_iter().take(most).map(|id| shown(service, id)).collect::<Vec<_>>() }))
}

fn update(service: &mut Service, request: &Request, _: [&str; 2]) -> Answer {
    let (body, id) = (&request.body, request.body["run_id"].as_str().unwrap_or_default());
    let Some(run) = found(service, id) else { return absent("run") };
    run.status = body["status"].as_str().map(str::to_owned).or(run.status.take());
    run.end = body["end_time"].clone();
    done(&json!({ "run_info": shown(service, id)["info"] }))
}

fn set_tag(service: &mut Service, request: &Request, _: [&str; 2]) -> Answer {
    let body = &request.body;
    let Some(run) = found(service, body["run_id"].as_str().unwrap_or_default()) else { return absent("run") };
    let Some((key, value)) = body["key"].as_str().zip(body["value"].as_str()) else { return invalid("A tag is a pair.") };
    run.tags.insert(key.to_owned(), value.to_owned());
    done(&json!({}))
}

/// All of it, or nothing.
fn log_batch(service: &mut Service, request: &Request, _: [&str; 2]) -> Answer {
    let body = &request.body;
    let Some(run) = found(service, body["run_id"].as_str().unwrap_or_default()) else { return absent("run") };
    let metrics: Option<Vec<Metric>> = body["metrics"].as_array().into_iter().flatten().map(Metric::read).collect();
    let (Some(metrics), Some(params), Some(tags)) = (metrics, read_pairs(&body["params"]), read_pairs(&body["tags"])) else {
        return invalid("Something of the batch is not as it shall be.");
    };
    if metrics.len() > MOST_METRICS || params.len() > MOST_OTHERS || tags.len() > MOST_OTHERS {
        return invalid("The batch is too large.");
    }
    if params.iter().any(|(key, value)| run.params.get(key).is_some_and(|known| known != value)) {
        return invalid("A parameter has another value already.");
    }
    run.metrics.extend(metrics);
    run.params.extend(params);
    run.tags.extend(tags);
    done(&json!({}))
}

fn history(service: &mut Service, request: &Request, _: [&str; 2]) -> Answer {
    let asked = |name: &str| request.query.get(name).cloned().unwrap_or_default();
    let key = asked("metric_key");
    let Some(run) = found(service, &asked("run_id")) else { return absent("run") };
    let metrics: Vec<Value> = run.metrics.iter().filter(|metric| metric.key == key).map(Metric::show).collect();
    done(&json!({ "metrics": metrics }))
}
