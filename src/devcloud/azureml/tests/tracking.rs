//! MLflow's interface of the simulated workspace.

use serde_json::{Value, json};

use super::{Service, WORKSPACE, running, send, service};
use crate::devcloud::azureml::Script;

fn mlflow(service: &mut Service, method: &str, end: &str, query: &Value, body: &Value) -> (u16, Value) {
    let path = format!("/mlflow/v1.0{WORKSPACE}/api/2.0/mlflow/{end}");
    let (status, _, answer) = send(service, method, &path, query, body);
    (status, answer)
}

fn post(service: &mut Service, end: &str, body: &Value) -> (u16, Value) {
    mlflow(service, "POST", end, &Value::Null, body)
}

#[test]
fn a_job_is_a_run_that_keeps_what_it_is_told_as_often_as_it_is() {
    let mut service = running(Script::default());
    let batch = json!({
        "run_id": "job-a1", "metrics": [{ "key": "loss", "value": 3.5, "timestamp": 7, "step": 2 }],
        "params": [{ "key": "rate", "value": "0.1" }], "tags": [{ "key": "by", "value": "me" }],
    });
    for _ in 0..2 {
        assert_eq!(post(&mut service, "runs/log-batch", &batch), (200, json!({})));
    }
    let (status, run) = mlflow(&mut service, "GET", "runs/get", &json!({ "run_id": "job-a1" }), &Value::Null);
    let run = &run["run"];
    assert_eq!((status, &run["info"]["status"], &run["info"]["experiment_id"]), (200, &json!("RUNNING"), &json!("gpt2-finetune")));
    assert_eq!(run["data"]["metrics"], json!([{ "key": "loss", "value": 3.5, "timestamp": 7, "step": 2 }]));
    assert_eq!(run["data"]["tags"], json!([{ "key": "by", "value": "me" }]));
    let asked = json!({ "run_id": "job-a1", "metric_key": "loss" });
    let (_, history) = mlflow(&mut service, "GET", "metrics/get-history", &asked, &Value::Null);
    assert_eq!(history["metrics"].as_array().map(Vec::len), Some(2));
    service.fail("job-a1", "it failed");
    super::pass(&mut service, 10);
    let (_, run) = mlflow(&mut service, "GET", "runs/get", &json!({ "run_id": "job-a1" }), &Value::Null);
    assert_eq!(run["run"]["info"]["status"], "FAILED");
}

#[test]
fn a_batch_that_is_wrong_is_refused_as_a_whole() {
    let mut service = running(Script::default());
    let metrics = |count: u32| {
        (0..count).map(|step| json!({ "key": "loss", "value": 1.0, "timestamp": 1, "step": step })).collect::<Vec<_>>()
    };
    for (body, status) in [
        (json!({ "run_id": "job-a2", "metrics": metrics(1) }), 404),
        (json!({ "run_id": "job-a1", "metrics": metrics(1_001) }), 400),
        (json!({ "run_id": "job-a1", "metrics": [{ "key": "loss" }] }), 400),
        (json!({ "run_id": "job-a1", "params": [{ "key": "rate", "value": 1 }], "metrics": metrics(1) }), 400),
        (json!({ "run_id": "job-a1", "params": [{ "key": "rate", "value": "1" }] }), 200),
        (json!({ "run_id": "job-a1", "params": [{ "key": "rate", "value": "2" }], "metrics": metrics(1) }), 400),
    ] {
        assert_eq!(post(&mut service, "runs/log-batch", &body).0, status, "{body}");
    }
    let (_, run) = mlflow(&mut service, "GET", "runs/get", &json!({ "run_id": "job-a1" }), &Value::Null);
    assert_eq!(run["run"]["data"]["metrics"], json!([]));
}

#[test]
fn runs_beside_jobs_are_made_found_and_ended() {
    let mut service = service(Script::default());
    let asked = json!({ "experiment_name": "mine" });
    assert_eq!(mlflow(&mut service, "GET", "experiments/get-by-name", &asked, &Value::Null).0, 404);
    let experiment = post(&mut service, "experiments/create", &json!({ "name": "mine" })).1["experiment_id"].clone();
    assert_eq!(post(&mut service, "experiments/create", &json!({ "name": "mine" })).0, 400);
    let found = mlflow(&mut service, "GET", "experiments/get-by-name", &asked, &Value::Null).1;
    assert_eq!(found["experiment"]["experiment_id"], experiment);
    let wanted = json!({ "experiment_id": experiment, "start_time": 1, "tags": [{ "key": "job", "value": "a" }] });
    let id = post(&mut service, "runs/create", &wanted).1["run"]["info"]["run_id"].clone();
    assert_eq!(post(&mut service, "runs/set-tag", &json!({ "run_id": id, "key": "more", "value": "b" })).0, 200);
    let search = |service: &mut Service, filter: &str| {
        post(service, "runs/search", &json!({ "experiment_ids": [experiment], "filter": filter, "max_results": 1 }))
    };
    assert_eq!(search(&mut service, "tags.`job` = 'a'").1["runs"][0]["info"]["run_id"], id);
    assert_eq!(search(&mut service, "tags.`job` = 'b'").1["runs"], json!([]));
    assert_eq!(search(&mut service, "metrics.loss > 1").0, 400);
    let ended = post(&mut service, "runs/update", &json!({ "run_id": id, "status": "FINISHED", "end_time": 9 })).1;
    assert_eq!((&ended["run_info"]["status"], &ended["run_info"]["end_time"]), (&json!("FINISHED"), &json!(9)));
}
