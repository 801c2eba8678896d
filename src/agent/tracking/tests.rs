//! Against a server that keeps what it is told, as MLflow does: each number that comes, however often.

use std::sync::Mutex;

use tokio::net::TcpListener;

use super::*;
use crate::{
    agent::tests::{Bench, Said, bench, bench_with},
    devcloud::http::{Reply, Request, serve},
    job::id::AttemptId,
    store::memory::MemoryStore,
};

#[derive(Debug, Default)]
struct Kept {
    experiments: Vec<String>,
    tags: Vec<(String, String)>,
    runs: usize,
    params: Vec<(String, String)>,
    metrics: Vec<(String, u64, f64)>,
    status: String,
    down: bool,
    /// Keeps the next numbers and does not say so.
    loses: bool,
    refuses_params: bool,
}

#[derive(Clone, Default)]
struct Mlflow(Arc<Mutex<Kept>>);

impl Mlflow {
    async fn start() -> (Self, String) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let server = Self::default();
        let at_work = server.clone();
        tokio::spawn(serve(listener, move |request| {
            let answer = at_work.answer(&request);
            async move { answer }
        }));
        (server, address)
    }

    fn kept<T>(&self, look: impl FnOnce(&mut Kept) -> T) -> T {
        look(&mut self.0.lock().unwrap())
    }

    fn answer(&self, request: &Request) -> Option<Reply> {
        self.kept(|kept| {
            if kept.down {
                return None;
            }
            let body: Value = serde_json::from_slice(&request.body).unwrap_or_default();
            let method = request.path().strip_prefix("/api/2.0/mlflow/").expect("MLflow's");
            let (status, answer) = kept.method(method, &body, request);
            let lost = body["metrics"].is_array() && std::mem::take(&mut kept.loses);
            (!lost).then(|| Reply::json(status, &answer))
        })
    }
}

fn pairs(list: &Value) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    list.as_array().into_iter().flatten().map(|pair| (text(&pair["key"]), text(&pair["value"]))).collect()
}

impl Kept {
    fn method(&mut self, method: &str, body: &Value, request: &Request) -> (u16, Value) {
        let run = json!({ "info": { "run_id": "r1" } });
        match method {
            "experiments/get-by-name" => {
                match self.experiments.iter().position(|name| Some(name) == request.query("experiment_name").as_ref()) {
                    Some(number) => (200, json!({ "experiment": { "experiment_id": number.to_string() } })),
                    None => (404, json!({ "error_code": "RESOURCE_DOES_NOT_EXIST" })),
                }
            }
            "experiments/create" => {
                self.experiments.push(body["name"].as_str().unwrap().to_owned());
                (200, json!({ "experiment_id": (self.experiments.len() - 1).to_string() }))
            }
            "runs/search" => {
                let job = self.tags.iter().find(|(key, _)| key == server::JOB_TAG);
                let found = job.is_some_and(|(_, job)| body["filter"] == format!("tags.`ftctl.job` = '{job}'"));
                (200, if found { json!({ "runs": [run] }) } else { json!({}) })
            }
            "runs/create" => {
                self.runs += 1;
                self.tags = pairs(&body["tags"]);
                (200, json!({ "run": run }))
            }
            "runs/update" => {
                self.status = body["status"].as_str().unwrap().to_owned();
                (200, json!({}))
            }
            "runs/get" => {
                let newest = |key: &String| self.metrics.iter().filter(|metric| metric.0 == *key).map(|metric| metric.1).max();
                let keys: Vec<String> = self.metrics.iter().map(|metric| metric.0.clone()).collect();
                let metrics: Vec<Value> =
                    keys.iter().map(|key| json!({ "key": key, "step": newest(key).unwrap().to_string() })).collect();
                (200, json!({ "run": { "data": { "metrics": metrics } } }))
            }
            "runs/log-batch" => {
                assert!(body["metrics"].as_array().is_none_or(|all| all.len() <= MOST_METRICS));
                assert!(body["params"].as_array().is_none_or(|all| all.len() <= MOST_PARAMETERS));
                if self.refuses_params && body["params"].is_array() {
                    return (400, json!({ "error_code": "INVALID_PARAMETER_VALUE" }));
                }
                let number = |metric: &Value| {
                    (
                        metric["key"].as_str().unwrap().to_owned(),
                        metric["step"].as_u64().unwrap(),
                        metric["value"].as_f64().unwrap(),
                    )
                };
                self.metrics.extend(body["metrics"].as_array().into_iter().flatten().map(number));
                self.params.extend(pairs(&body["params"]));
                (200, json!({}))
            }
            other => panic!("{other}"),
        }
    }

    fn steps_of(&self, key: &str) -> Vec<u64> {
        self.metrics.iter().filter(|metric| metric.0 == key).map(|metric| metric.1).collect()
    }
}

/// Lines of these steps, and an evaluation at the last.
fn progress(steps: std::ops::RangeInclusive<u64>) -> String {
    let line = |event: Event| serde_json::to_string(&Line { v: 1, time: 1.0, event }).unwrap() + "\n";
    let last = *steps.end();
    let step = |step| Event::Step {
        step,
        steps: 9_999,
        loss: step as f64,
        learning_rate: 1e-3,
        gradient_norm: 1.0,
        tokens_per_second: 5.0,
        mfu: 0.5,
        eta_seconds: 1.0,
        peak_memory_bytes: Some(7),
    };
    let text: String = steps.map(|number| line(step(number))).collect();
    text + &line(Event::Eval { step: last, loss: 1.0, perplexity: 2.0 }) + "no line\n"
}

async fn job(address: &str) -> Bench {
    let mut bench = bench_with("", tempfile::tempdir().unwrap(), Arc::new(MemoryStore::new())).await;
    bench.order.tracking.mlflow = Some(address.to_owned());
    bench
}

async fn says(bench: &Bench, attempt: u32, text: &str) {
    let path = path::progress(&bench.order.job, attempt);
    let length = crate::store::log::length(&*bench.store, &path).await.unwrap();
    bench.store.append(&path, length, text.to_owned().into()).await.unwrap();
}

/// Tracks the attempt until the server has its end.
async fn finish(bench: &mut Bench, attempt: u32, reason: ExitReason) -> Vec<String> {
    bench.order.attempt = attempt;
    let said = Said::default();
    let agent = bench.agent_with(&said);
    Tracker::of(&agent, &|_| None).expect("it is tracked").finish(reason).await;
    said.lines()
}

#[tokio::test]
async fn a_job_is_one_run_with_each_step_once_however_many_attempts_it_has() {
    let (server, address) = Mlflow::start().await;
    let mut bench = job(&address).await;
    says(&bench, 1, &progress(1..=300)).await;
    let said = Said::default();
    Tracker::of(&bench.agent_with(&said), &|_| None).unwrap().catch_up().await.unwrap();
    server.kept(|kept| assert_eq!((kept.status.as_str(), kept.steps_of("loss").len()), ("", 300)));
    // The first attempt had gone further than its agent could tell; the second begins before that.
    says(&bench, 1, &progress(301..=310)).await;
    says(&bench, 2, &progress(291..=1_500)).await;
    assert_eq!(finish(&mut bench, 2, ExitReason::Succeeded).await, Vec::<String>::new());
    server.kept(|kept| {
        for key in ["loss", "learning_rate", "tokens_per_second", "memory"] {
            assert_eq!(kept.steps_of(key), (1..=1_500).collect::<Vec<_>>(), "{key}");
        }
        assert_eq!(kept.steps_of("perplexity"), [300, 310, 1_500]);
        assert_eq!((kept.status.as_str(), kept.runs), ("FINISHED", 1));
        assert_eq!((kept.experiments.as_slice(), kept.tags[0].1.as_str()), (&["ftctl".to_owned()][..], bench.order.job.as_str()));
        let has = |key: &str| kept.params.iter().any(|(known, _)| known == key);
        assert!(has("dataset") && has("train.learning_rate") && has("train.block_size"), "{:?}", kept.params);
    });
}

#[tokio::test]
async fn an_answer_that_is_lost_repeats_no_number() {
    let (server, address) = Mlflow::start().await;
    let bench = job(&address).await;
    says(&bench, 1, &progress(1..=600)).await;
    let said = Said::default();
    let agent = bench.agent_with(&said);
    let mut tracker = Tracker::of(&agent, &|_| None).unwrap();
    for step in 601..=605 {
        server.kept(|kept| kept.loses = true);
        assert!(tracker.catch_up().await.is_err(), "{step}");
        says(&bench, 1, &progress(step..=step)).await;
    }
    tracker.catch_up().await.unwrap();
    server.kept(|kept| {
        assert_eq!((kept.steps_of("loss"), kept.runs), ((1..=605).collect::<Vec<_>>(), 1));
        assert_eq!(kept.steps_of("perplexity"), (600..=605).collect::<Vec<_>>());
    });
}

#[tokio::test]
async fn a_server_that_is_away_is_told_of_once_and_gets_everything_later() {
    let (server, address) = Mlflow::start().await;
    let bench = job(&address).await;
    let said = Said::default();
    let agent = bench.agent_with(&said);
    let mut tracker = Tracker::of(&agent, &|_| None).unwrap();
    server.kept(|kept| kept.down = true);
    for step in 1..=3 {
        says(&bench, 1, &progress(step..=step)).await;
        assert!(tracker.catch_up().await.is_err());
        assert!(tracker.waiting.is_empty(), "what waits is in the store, not in memory");
    }
    server.kept(|kept| (kept.down, kept.refuses_params) = (false, true));
    tracker.catch_up().await.unwrap();
    assert_eq!(server.kept(|kept| kept.steps_of("loss")), [1, 2, 3]);
    let said = said.lines();
    assert!(
        said.len() == 2 && said[0].contains("does not accept numbers: ") && said[1].ends_with("accepts numbers again"),
        "{said:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn the_end_of_an_attempt_waits_for_no_server() {
    let mut bench = job("http://127.0.0.1:1").await;
    says(&bench, 1, &progress(1..=3)).await;
    let begun = tokio::time::Instant::now();
    let said = finish(&mut bench, 1, ExitReason::Succeeded).await;
    assert!(begun.elapsed() <= FAREWELL, "{:?}", begun.elapsed());
    assert!(said.len() == 2 && said[1].contains("did not receive all numbers of the run"), "{said:?}");
    bench.order.tracking.mlflow = None;
    let said = Said::default();
    assert!(Tracker::of(&bench.agent_with(&said), &|_| None).is_none());
}

/// The environment of a job of Azure ML whose agent this is.
fn in_job<'v>(bench: &Bench, attempt: u32, address: &'v str) -> impl Fn(&str) -> Option<String> + 'v {
    let run = AttemptId::new(&bench.order.job, attempt).machine_name();
    move |name| match name {
        "AZUREML_RUN_ID" => Some(run.clone()),
        "MLFLOW_TRACKING_URI" => Some(address.to_owned()),
        _ => None,
    }
}

#[tokio::test]
async fn the_run_that_a_service_has_of_the_attempt_is_told_and_left_to_the_service() {
    let (server, address) = Mlflow::start().await;
    let mut bench = job(&address).await;
    bench.order.tracking.mlflow = None;
    says(&bench, 1, &progress(1..=30)).await;
    says(&bench, 2, &progress(21..=50)).await;
    bench.order.attempt = 2;
    let said = Said::default();
    // The service has begun its run again by itself: it has the name of the first attempt.
    for attempt in [1, 2] {
        let agent = bench.agent_with(&said);
        let tracker = Tracker::of(&agent, &in_job(&bench, attempt, &address)).expect("it is tracked");
        assert_eq!(tracker.own.as_deref(), Some(AttemptId::new(&bench.order.job, attempt).machine_name().as_str()));
        tracker.finish(ExitReason::Succeeded).await;
    }
    assert_eq!(said.lines(), Vec::<String>::new());
    server.kept(|kept| {
        assert_eq!(kept.steps_of("loss"), (1..=50).collect::<Vec<_>>());
        assert_eq!((kept.runs, kept.status.as_str(), kept.experiments.len()), (0, "", 0));
        assert!(kept.params.iter().any(|(key, _)| key == "train.learning_rate"), "{:?}", kept.params);
    });
    let agent = bench.agent_with(&said);
    let strange = |name: &str| (name != "AZUREML_RUN_ID").then(|| address.clone()).or(Some("calm_river_1".to_owned()));
    assert!(Tracker::of(&agent, &strange).is_none(), "it is another user's run");
    bench.order.tracking.mlflow = Some("none".to_owned());
    assert!(Tracker::of(&bench.agent_with(&said), &in_job(&bench, 2, &address)).is_none());
}

/// A trainer that tells of two steps.
const TWO_STEPS: &str = r#"line() {
    printf '{"v":1,"time":1.0,"event":"step","step":%s,"steps":2,"loss":3.5,"learning_rate":0.1,"gradient_norm":1.0,' "$1" >> output/progress.jsonl
    echo '"tokens_per_second":5.0,"mfu":0.5,"eta_seconds":1.0}' >> output/progress.jsonl
}
line 1; line 2"#;

#[tokio::test]
async fn an_agent_tracks_what_its_trainer_says_and_succeeds_without_the_server() {
    let (server, address) = Mlflow::start().await;
    for down in [false, true] {
        let mut bench = bench(TWO_STEPS).await;
        bench.order.tracking.mlflow = Some(address.clone());
        server.kept(|kept| kept.down = down);
        let record = bench.run().await;
        assert_eq!(record.reason, ExitReason::Succeeded, "{}", record.message);
    }
    server.kept(|kept| assert_eq!((kept.status.as_str(), kept.steps_of("loss")), ("FINISHED", vec![1, 2])));
}
