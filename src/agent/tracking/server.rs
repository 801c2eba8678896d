//! A server that speaks MLflow's REST protocol, as far as the numbers of one run need it.

use std::time::Duration;

use azure_core::credentials::Secret;
use reqwest::{Client, Method, Url};
use serde_json::{Value, json};

use crate::{
    identity::{
        Variables,
        entra::{MANAGEMENT, TokenSource, WAYS},
    },
    transit,
};

const TOKEN: &str = "MLFLOW_TRACKING_TOKEN";
/// Set in every job of Azure ML, whose token for the workspace is then in [`TOKEN`].
const IN_JOB: &str = "AZUREML_RUN_ID";
const ANSWER: Duration = Duration::from_secs(30);
/// A run's parameters and newest numbers.
const LARGEST: usize = 4 << 20;

enum SignIn {
    None,
    Token(Secret),
    Own(TokenSource),
}

pub struct Server {
    http: Client,
    address: String,
    sign_in: SignIn,
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
        let wrong = || format!("tracking.mlflow, {address}, is no address of a server");
        // The same service under the name that the workspace gives it.
        let text = address.strip_prefix("azureml://").map_or_else(|| address.to_owned(), |rest| format!("https://{rest}"));
        let url = Url::parse(&text).ok().filter(|url| ["http", "https"].contains(&url.scheme())).ok_or_else(wrong)?;
        let http = transit::client(&url).timeout(ANSWER).build().map_err(|error| transit::why(&error))?;
        let sign_in = sign_in(&url, variables)?;
        Ok(Self { http, address: text.trim_end_matches('/').to_owned(), sign_in })
    }

    pub async fn get(&self, method: &str, queries: &[(&str, &str)]) -> Result<Value, Refusal> {
        self.call(Method::GET, method, queries, None).await
    }

    pub async fn post(&self, method: &str, body: &Value) -> Result<Value, Refusal> {
        self.call(Method::POST, method, &[], Some(body)).await
    }

    async fn call(&self, verb: Method, method: &str, queries: &[(&str, &str)], body: Option<&Value>) -> Result<Value, Refusal> {
        let mut url = Url::parse(&format!("{}/api/2.0/mlflow/{method}", self.address)).map_err(|error| error.to_string())?;
        if !queries.is_empty() {
            url.query_pairs_mut().extend_pairs(queries);
        }
        let mut request = self.http.request(verb, url);
        match &self.sign_in {
            SignIn::None => {}
            SignIn::Token(token) => request = request.bearer_auth(token.secret()),
            SignIn::Own(source) => request = request.bearer_auth(source.token().await?),
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
        Ok(serde_json::from_slice(&bytes).map_err(|_| format!("its answer to {method} is no JSON"))?)
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

fn sign_in(url: &Url, variables: Variables<'_>) -> Result<SignIn, String> {
    let workspace = is_workspace(url, variables);
    if workspace && let Some(way) = WAYS.iter().find(|way| way.is_ready(variables)) {
        return Ok(SignIn::Own(way.open(variables, MANAGEMENT)?));
    }
    // What the service itself puts there is for its own workspace.
    let token = variables(TOKEN).filter(|_| transit::is_private(url) && (workspace || variables(IN_JOB).is_none()));
    Ok(token.map_or(SignIn::None, |token| SignIn::Token(Secret::new(token))))
}

/// Whether this is the address of a workspace of Azure ML: its own hosts by https. A simulated one is on this machine.
fn is_workspace(url: &Url, variables: Variables<'_>) -> bool {
    let here = |url: &Url| url.host_str().is_some_and(transit::is_loopback);
    let simulated = || variables("FTCTL_ENDPOINT_AZUREML").and_then(|url| Url::parse(&url).ok()).is_some_and(|url| here(&url));
    let of_service = url.host_str().is_some_and(|host| host.ends_with(".azureml.ms"));
    (url.scheme() == "https" && of_service) || (here(url) && simulated())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_goes_to_whom_it_is_for() {
        let kind = |address: &str, names: &[&str]| {
            let variables = |name: &str| {
                let value = if name == "FTCTL_ENDPOINT_AZUREML" { "http://127.0.0.1:9" } else { "http://127.0.0.1:1" };
                names.contains(&name).then(|| value.to_owned())
            };
            match Server::at(address, &variables).unwrap().sign_in {
                SignIn::None => "none",
                SignIn::Token(_) => "token",
                SignIn::Own(_) => "own",
            }
        };
        let (job, workspace) = ([IN_JOB, TOKEN, "OBO_ENDPOINT"], "azureml://westeurope.api.azureml.ms/mlflow/v1.0/subscriptions/x");
        for (address, names, expected) in [
            ("https://mlflow.example.org", &[][..], "none"),
            ("https://mlflow.example.org", &[TOKEN], "token"),
            ("http://mlflow.example.org", &[TOKEN], "none"),
            ("http://127.0.0.1:5000", &[TOKEN], "token"),
            // Neither the service's token nor the agent's own leaves the service.
            ("https://mlflow.example.org", &job, "none"),
            ("https://api.azureml.ms.example.org", &job, "none"),
            ("http://westeurope.api.azureml.ms", &job, "none"),
            ("http://127.0.0.1:5000", &job, "none"),
            (workspace, &job, "own"),
            (workspace, &[IN_JOB, TOKEN], "token"),
            ("http://127.0.0.1:5000", &["FTCTL_ENDPOINT_AZUREML", "OBO_ENDPOINT"], "own"),
            ("https://mlflow.example.org", &["FTCTL_ENDPOINT_AZUREML", "OBO_ENDPOINT"], "none"),
        ] {
            assert_eq!(kind(address, names), expected, "{address} {names:?}");
        }
        assert!(Server::at("ftp://x", &|_| None).is_err());
    }
}
