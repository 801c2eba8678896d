//! A server that speaks MLflow's REST protocol, as far as the numbers of one run need it.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use azure_core::credentials::Secret;
use reqwest::{Client, Method, Url};
use serde_json::{Value, json};

use super::super::azureml::{IN_JOB, workspace};
use crate::{
    identity::{
        Variables,
        entra::{MANAGEMENT, TokenSource, WAYS},
    },
    transit,
};

const TOKEN: &str = "MLFLOW_TRACKING_TOKEN";
const ANSWER: Duration = Duration::from_secs(30);
/// Less than servers keep a connection that is not used: MLflow's own closes it after five seconds, when the next numbers come.
const IDLE: Duration = Duration::from_secs(2);
/// A run's parameters and newest numbers.
const LARGEST: usize = 4 << 20;

enum SignIn {
    Token(Secret),
    Own(TokenSource),
}

pub struct Server {
    http: Client,
    address: String,
    /// All that may go there. The one that is used is changed when it is refused.
    sign_ins: Vec<SignIn>,
    turn: AtomicUsize,
}

/// Why a request came to nothing, for a person.
#[derive(Debug)]
pub struct Refusal {
    pub status: u16,
    pub why: String,
}

impl From<String> for Refusal {
    fn from(why: String) -> Self {
        Self { status: 0, why }
    }
}

impl Server {
    /// The server at the address of a job file. A token goes there by https alone, or on this machine; the agent's own sign-in only
    /// to a workspace of Azure ML. The error is for a person.
    pub fn at(address: &str, variables: Variables<'_>) -> Result<Self, String> {
        let wrong = || format!("tracking.mlflow, {address}, is not the address of a server");
        let text = workspace::plainly(address, variables);
        let url = Url::parse(&text).ok().filter(|url| ["http", "https"].contains(&url.scheme())).ok_or_else(wrong)?;
        let http = transit::client(&url).timeout(ANSWER).pool_idle_timeout(IDLE).build().map_err(|error| transit::why(&error))?;
        let sign_ins = sign_ins(&url, variables)?;
        Ok(Self { http, address: text.trim_end_matches('/').to_owned(), sign_ins, turn: AtomicUsize::new(0) })
    }

    pub async fn get(&self, method: &str, queries: &[(&str, &str)]) -> Result<Value, Refusal> {
        self.call(Method::GET, method, queries, None).await
    }

    pub async fn post(&self, method: &str, body: &Value) -> Result<Value, Refusal> {
        self.call(Method::POST, method, &[], Some(body)).await
    }

    /// Asks with each sign-in, until there is one that is not refused: the job's identity may have no role in the workspace.
    async fn call(&self, verb: Method, method: &str, queries: &[(&str, &str)], body: Option<&Value>) -> Result<Value, Refusal> {
        let mut left = self.sign_ins.len();
        loop {
            let turn = self.turn.load(Ordering::Relaxed);
            left = left.saturating_sub(1);
            match self.ask(self.sign_ins.get(turn), verb.clone(), method, queries, body).await {
                Err(refusal) if [401, 403].contains(&refusal.status) && left > 0 => {
                    self.turn.store((turn + 1) % self.sign_ins.len(), Ordering::Relaxed);
                }
                done => return done,
            }
        }
    }

    async fn ask(
        &self,
        sign_in: Option<&SignIn>,
        verb: Method,
        method: &str,
        queries: &[(&str, &str)],
        body: Option<&Value>,
    ) -> Result<Value, Refusal> {
        let mut url = Url::parse(&format!("{}/api/2.0/mlflow/{method}", self.address)).map_err(|error| error.to_string())?;
        if !queries.is_empty() {
            url.query_pairs_mut().extend_pairs(queries);
        }
        let mut request = self.http.request(verb, url);
        match sign_in {
            None => {}
            Some(SignIn::Token(token)) => request = request.bearer_auth(token.secret()),
            Some(SignIn::Own(source)) => {
                request = request.bearer_auth(source.token().await.map_err(|none| Refusal { status: 401, why: none.why })?);
            }
        }
        if let Some(body) = body {
            request = request.header("content-type", "application/json").body(body.to_string());
        }
        let answer = request.send().await.map_err(|error| transit::why(&error))?;
        let status = answer.status().as_u16();
        let bytes = transit::body(answer, LARGEST).await?;
        if status != 200 {
            return Err(Refusal { status, why: format!("it answered {status} to {method}") });
        }
        Ok(serde_json::from_slice(&bytes).map_err(|_| format!("its answer to {method} is not JSON"))?)
    }

    /// The run of this job: the oldest that has its tag, or a new one.
    pub async fn run(&self, experiment: &str, job: &str) -> Result<String, Refusal> {
        let experiment = self.experiment(experiment).await?;
        let wanted = json!({
            "experiment_ids": [experiment], "filter": format!("tags.`{JOB_TAG}` = '{job}'"), "max_results": 1,
            "order_by": ["attributes.start_time ASC"],
        });
        let found = self.post("runs/search", &wanted).await?;
        if let Some(run) = found["runs"][0]["info"]["run_id"].as_str() {
            self.post("runs/update", &json!({ "run_id": run, "status": "RUNNING" })).await?;
            return Ok(run.to_owned());
        }
        let start = jiff::Timestamp::now().as_millisecond();
        let tags = [json!({ "key": JOB_TAG, "value": job })];
        let wanted = json!({ "experiment_id": experiment, "run_name": job, "start_time": start, "tags": tags });
        let made = self.post("runs/create", &wanted).await?;
        text(&made["run"]["info"]["run_id"], "run")
    }

    /// Makes it where there is none.
    async fn experiment(&self, name: &str) -> Result<String, Refusal> {
        match self.get("experiments/get-by-name", &[("experiment_name", name)]).await {
            Err(refusal) if refusal.status == 404 => {
                text(&self.post("experiments/create", &json!({ "name": name })).await?["experiment_id"], "experiment")
            }
            found => text(&found?["experiment"]["experiment_id"], "experiment"),
        }
    }
}

pub const JOB_TAG: &str = "ftctl.job";

fn text(value: &Value, what: &str) -> Result<String, Refusal> {
    value.as_str().map(str::to_owned).ok_or_else(|| format!("its answer names no {what}").into())
}

fn sign_ins(url: &Url, variables: Variables<'_>) -> Result<Vec<SignIn>, String> {
    let workspace = workspace::is_of(url, variables);
    let way = WAYS.iter().find(|way| workspace && way.is_ready(variables));
    let own = way.map(|way| way.open(variables, MANAGEMENT)).transpose()?.map(SignIn::Own);
    // What the service itself puts there is for its own workspace.
    let token = variables(TOKEN).filter(|_| transit::is_private(url) && (workspace || variables(IN_JOB).is_none()));
    Ok(own.into_iter().chain(token.map(|token| SignIn::Token(Secret::new(token)))).collect())
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use tokio::net::TcpListener;

    use super::*;
    use crate::devcloud::http::{Reply, serve};

    #[test]
    fn a_token_goes_to_whom_it_is_for() {
        let kind = |address: &str, names: &[&str]| {
            let variables = |name: &str| {
                let value = if name == "FTCTL_ENDPOINT_AZUREML" { "http://127.0.0.1:9" } else { "http://127.0.0.1:1" };
                names.contains(&name).then(|| value.to_owned())
            };
            let kinds = Server::at(address, &variables).unwrap().sign_ins.into_iter().map(|sign_in| match sign_in {
                SignIn::Token(_) => "token",
                SignIn::Own(_) => "own",
            });
            kinds.collect::<Vec<_>>().join(", ")
        };
        let (job, workspace) = ([IN_JOB, TOKEN, "OBO_ENDPOINT"], "azureml://westeurope.api.azureml.ms/mlflow/v1.0/subscriptions/x");
        for (address, names, expected) in [
            ("https://mlflow.example.org", &[][..], ""),
            ("https://mlflow.example.org", &[TOKEN], "token"),
            ("http://mlflow.example.org", &[TOKEN], ""),
            ("http://127.0.0.1:5000", &[TOKEN], "token"),
            // Neither the service's token nor the agent's own leaves the service.
            ("https://mlflow.example.org", &job, ""),
            ("https://api.azureml.ms.example.org", &job, ""),
            ("https://mine-8080.westeurope.instances.azureml.ms", &job, ""),
            ("http://westeurope.api.azureml.ms", &job, ""),
            ("http://127.0.0.1:5000", &job, ""),
            (workspace, &job, "own, token"),
            (workspace, &[IN_JOB, TOKEN], "token"),
            ("http://127.0.0.1:5000", &["FTCTL_ENDPOINT_AZUREML", "OBO_ENDPOINT"], "own"),
            ("https://mlflow.example.org", &["FTCTL_ENDPOINT_AZUREML", "OBO_ENDPOINT"], ""),
        ] {
            assert_eq!(kind(address, names), expected, "{address} {names:?}");
        }
        assert!(Server::at("ftp://x", &|_| None).is_err());
    }

    #[tokio::test]
    async fn a_sign_in_that_is_refused_is_followed_by_the_next() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let heard = Arc::new(Mutex::new(Vec::new()));
        let tokens = Arc::clone(&heard);
        tokio::spawn(serve(listener, move |request| {
            let token = request.header("authorization").unwrap_or_default().to_owned();
            let status = if token == "Bearer good" { 200 } else { 403 };
            tokens.lock().unwrap().push(token);
            async move { Some(Reply::json(status, &json!({}))) }
        }));
        let server = |tokens: &[&str]| {
            let sign_ins = tokens.iter().map(|token| SignIn::Token(Secret::new((*token).to_owned()))).collect();
            Server { sign_ins, ..Server::at(&address, &|_| None).unwrap() }
        };
        let kept = server(&["bad", "good"]);
        for _ in 0..2 {
            kept.get("runs/get", &[]).await.unwrap();
        }
        assert_eq!(*heard.lock().unwrap(), ["Bearer bad", "Bearer good", "Bearer good"]);
        assert_eq!(server(&["bad", "worse"]).get("runs/get", &[]).await.unwrap_err().status, 403);
        assert_eq!(server(&[]).get("runs/get", &[]).await.unwrap_err().status, 403);
        assert_eq!(heard.lock().unwrap()[3..], ["Bearer bad", "Bearer worse", ""]);
    }
}
