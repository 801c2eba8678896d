//! Jobs as real processes, asked for over HTTP.

use std::{net::Ipv4Addr, sync::Arc, time::Instant};

use reqwest::Method;
use serde_json::{Value, json};

use super::{
    super::{Devcloud, Options, Script, tokens},
    WORKSPACE, body_of, cluster_body, job_body, seconds, workspace,
};
use crate::identity::entra::{self, MANAGEMENT, STORAGE};

struct World {
    devcloud: Arc<Devcloud>,
    address: String,
    token: String,
    _state: tempfile::TempDir,
}

impl World {
    async fn new(script: Value) -> Self {
        let state = tempfile::tempdir().expect("a directory");
        let script: Script = serde_json::from_value(script).expect("a script");
        let options = Options {
            listen: (Ipv4Addr::LOCALHOST, 0).into(),
            workspace: workspace(),
            speed: 100.0,
            state: state.path().to_owned(),
            script,
            executable: "/bin/true".into(),
            variables: std::env::vars_os().filter(|(name, _)| name == "PATH").collect(),
            engine: false,
            tls: false,
        };
        let devcloud = Devcloud::start(options).await.expect("it starts");
        let environment = devcloud.client_environment();
        let address = environment["FTCTL_ENDPOINT_AZUREML"].clone();
        let mut world = Self { devcloud, address, token: String::new(), _state: state };
        let url = format!("{}?api-version=2019-08-01&resource=https://management.azure.com/", environment["IDENTITY_ENDPOINT"]);
        let refused = reqwest::get(&url).await.expect("an answer").status();
        assert_eq!(refused.as_u16(), 401);
        let signed = reqwest::Client::new().get(url).header("X-IDENTITY-HEADER", &environment["IDENTITY_HEADER"]);
        let answer: Value =
            serde_json::from_str(&signed.send().await.expect("an answer").text().await.expect("text")).expect("JSON");
        assert!(answer["expires_on"].as_str().is_some_and(|ends| ends.parse::<u64>().is_ok()), "{answer}");
        answer["access_token"].as_str().expect("a token").clone_into(&mut world.token);
        world
    }

    /// With a cluster of low priority that has an identity, and an environment.
    async fn furnished(script: Value) -> Self {
        let world = World::new(script).await;
        let mut cluster = cluster_body("Standard_ND40rs_v2", "LowPriority");
        cluster["identity"] = json!({ "type": "SystemAssigned" });
        assert_eq!(world.ask("PUT", "/computes/gpu", &cluster).await.0, 201);
        let environment = body_of("environment-create-image", "PUT");
        assert_eq!(world.ask("PUT", "/environments/onnxruntime-gpt/versions/1", &environment).await.0, 201);
        world.until("the cluster", "/computes/gpu", |shown| shown["properties"]["provisioningState"] == "Succeeded").await;
        world
    }

    async fn send(&self, method: &str, url: &str, body: &Value) -> reqwest::Result<reqwest::Response> {
        let method: Method = method.parse().expect("a method");
        let request = reqwest::Client::new().request(method, url).bearer_auth(&self.token);
        let request = if body.is_null() { request } else { request.body(body.to_string()) };
        request.send().await
    }

    async fn ask(&self, method: &str, end: &str, body: &Value) -> (u16, Value) {
        let url = format!("{}{WORKSPACE}{end}?api-version=2025-12-01", self.address);
        let answer = self.send(method, &url, body).await.expect("an answer");
        let status = answer.status().as_u16();
        (status, serde_json::from_slice(&answer.bytes().await.expect("a body")).unwrap_or_default())
    }

    async fn lever(&self, method: &str, lever: &str, body: &Value) -> Value {
        let answer = self.send(method, &format!("{}/devcloud/{lever}", self.address), body).await.expect("an answer");
        assert_eq!(answer.status().as_u16(), 200, "{lever}");
        serde_json::from_slice(&answer.bytes().await.expect("a body")).unwrap_or_default()
    }

    async fn until(&self, what: &str, end: &str, holds: impl Fn(&Value) -> bool) -> Value {
        let begun = Instant::now();
        loop {
            let shown = self.ask("GET", end, &Value::Null).await.1;
            if holds(&shown) {
                return shown;
            }
            assert!(begun.elapsed() < seconds(60).0, "{what} did not happen within a minute: {shown}");
            tokio::time::sleep(super::super::TICK).await;
        }
    }

    async fn until_status(&self, job: &str, status: &str) {
        self.until(status, &format!("/jobs/{job}"), |shown| shown["properties"]["status"] == status).await;
    }

    async fn submit(&self, job: &str, command: &str, change: impl FnOnce(&mut Value)) {
        let mut body = job_body();
        body["properties"]["command"] = json!(command);
        change(&mut body["properties"]);
        let (status, answer) = self.ask("PUT", &format!("/jobs/{job}"), &body).await;
        assert_eq!(status, 201, "{answer}");
    }

    async fn found(&self, job: &str, log: &str) -> Option<String> {
        let url = format!("{}/history/v1.0{WORKSPACE}/runs/{job}/details?api-version=v1.0", self.address);
        let answer = self.send("GET", &url, &Value::Null).await.expect("an answer").bytes().await.expect("a body");
        let details: Value = serde_json::from_slice(&answer).expect("JSON");
        details["logFiles"][log].as_str().map(str::to_owned)
    }

    async fn link(&self, job: &str, log: &str) -> String {
        self.found(job, log).await.unwrap_or_else(|| panic!("there is no {log}"))
    }

    /// Nothing where it did not begin.
    async fn log(&self, job: &str, log: &str) -> String {
        let Some(link) = self.found(job, log).await else { return String::new() };
        reqwest::get(link).await.expect("an answer").text().await.expect("text")
    }

    async fn until_said(&self, job: &str, log: &str, words: &str) -> String {
        let begun = Instant::now();
        loop {
            let text = self.log(job, log).await;
            if text.contains(words) {
                return text;
            }
            assert!(begun.elapsed() < seconds(60).0, "{words} was not said within a minute: {text}");
            tokio::time::sleep(super::super::TICK).await;
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.devcloud.shut_down();
    }
}

const LOG: &str = "user_logs/std_log_process_00.txt";

#[tokio::test]
async fn a_job_runs_its_command_with_a_nodes_variables_and_identity() {
    let world = World::furnished(json!({})).await;
    let command = r#"
        token() { curl -sf "$MSI_ENDPOINT?api-version=2017-09-01&resource=https://management.azure.com/&clientid=$DEFAULT_IDENTITY_CLIENT_ID" -H "secret: $1"; }
        echo "run $AZUREML_RUN_ID of $AZUREML_ARM_WORKSPACE_NAME, rank $RANK of $WORLD_SIZE, ${{inputs.epochs}} epochs, $NCCL_DEBUG"
        token "$MSI_SECRET" | sed -n 's/.*"access_token":"\([^"]*\)".*/token \1/p'; echo
        token wrong || echo "refused: $?"
        which ftctl; echo "${CARGO_MANIFEST_DIR:-nothing of this computer}"
        echo kept >"${{outputs.model}}/weights"
        echo to standard error >&2
        sleep 600
    "#;
    world.submit("ftjob-a1", command, |job| job["identity"] = json!({ "identityType": "Managed" })).await;
    world.until_status("ftjob-a1", "Running").await;
    let text = world.until_said("ftjob-a1", LOG, "to standard error").await;
    for words in
        ["run ftjob-a1 of ws1, rank 0 of 1, 1 epochs, WARN\n", "refused: 22\n", "/bin/ftctl\n", "nothing of this computer\n"]
    {
        assert!(text.contains(words), "{words}: {text}");
    }
    // The job's token is good for this service.
    let token = text.lines().find_map(|line| line.strip_prefix("token ")).expect("a token").to_owned();
    let url = format!("{}{WORKSPACE}/jobs/ftjob-a1?api-version=2025-12-01", world.address);
    let as_job = reqwest::Client::new().get(&url).bearer_auth(&token).send().await.expect("an answer");
    assert_eq!(as_job.status().as_u16(), 200);
    assert_eq!(reqwest::get(url).await.expect("an answer").status().as_u16(), 401);

    // By range, as often as one likes; and only with the address that was given.
    let link = world.link("ftjob-a1", LOG).await;
    let part = |range: &'static str| reqwest::Client::new().get(&link).header("range", range).send();
    let answer = part("bytes=4-11").await.expect("an answer");
    assert_eq!((answer.status().as_u16(), answer.text().await.expect("text").as_str()), (206, "ftjob-a1"));
    assert_eq!(part("bytes=1000000-").await.expect("an answer").status().as_u16(), 416);
    let forged = link.replace("sig=", "sig=0");
    assert_eq!(reqwest::get(forged).await.expect("an answer").status().as_u16(), 403);

    assert_eq!(world.ask("POST", "/jobs/ftjob-a1/cancel", &Value::Null).await.0, 200);
    world.until_status("ftjob-a1", "Canceled").await;
}

/// Asked as the agent asks, with the variables that a process of the job has.
#[tokio::test]
async fn a_serverless_job_has_tokens_of_its_user() {
    let world = World::furnished(json!({})).await;
    let command = r#"echo "at $OBO_ENDPOINT, not at ${MSI_ENDPOINT:-a cluster}"; sleep 600"#;
    let serverless = |job: &mut Value| {
        job["identity"] = json!({ "identityType": "UserIdentity" });
        job["resources"]["instanceType"] = json!("Standard_ND40rs_v2");
        job["queueSettings"] = json!({ "jobTier": "Spot" });
        job.as_object_mut().expect("properties").remove("computeId");
    };
    world.submit("ftjob-a1", command, serverless).await;
    let text = world.until_said_when_running("ftjob-a1", "not at a cluster").await;
    let address = text.split(['\n', ' ', ',']).find(|word| word.ends_with("/OBO/token")).expect("an address");
    let asked = async |address: &str, scope| {
        let variables = |name: &str| (name == "OBO_ENDPOINT").then(|| address.to_owned());
        entra::token(&variables, scope).await.expect("a way to sign in")
    };
    let token = asked(address, STORAGE).await.expect("a token");
    assert_eq!(tokens::check(&world.devcloud.at_present().key, &token, tokens::STORAGE), Ok(()));
    let token = asked(address, MANAGEMENT).await.expect("a token");
    let url = format!("{}{WORKSPACE}/jobs/ftjob-a1?api-version=2025-12-01", world.address);
    let as_user = reqwest::Client::new().get(url).bearer_auth(token).send().await.expect("an answer");
    assert_eq!(as_user.status().as_u16(), 200);
    let secret = address.trim_end_matches("/OBO/token").rsplit('/').next().expect("a secret");
    let refused = asked(&address.replace(secret, "guessed"), STORAGE).await.expect_err("no token");
    assert!(refused.contains("it answered 404") && !refused.contains("guessed"), "{refused}");
}

#[tokio::test]
async fn a_gang_ends_with_the_first_that_fails() {
    let world = World::furnished(json!({})).await;
    let gang = |job: &mut Value| job["resources"]["instanceCount"] = json!(2);
    world.submit("ftjob-a1", "echo node $NODE_RANK of $AZ_BATCH_HOST_LIST; exit 0", gang).await;
    world.until_status("ftjob-a1", "Completed").await;
    assert_eq!(world.log("ftjob-a1", "user_logs/std_log_process_01.txt").await, "node 1 of 127.0.0.4,127.0.0.5\n");
    world.submit("ftjob-a2", "[ $RANK = 0 ] && exit 3; sleep 600", gang).await;
    world.until_status("ftjob-a2", "Failed").await;
}

#[tokio::test]
async fn a_node_hears_of_its_end_and_the_service_starts_the_run_again() {
    // A second on the wall is a hundred: the notice is on the wall.
    let world = World::furnished(json!({ "notice": "3s" })).await;
    let command = r#"
        events() { curl -sf -H Metadata:true "$FTCTL_ENDPOINT_IMDS/metadata/scheduledevents?api-version=2020-07-01"; }
        trap 'echo terminated; exit 143' TERM
        echo started
        while :; do events | grep -o '"EventType":"Preempt"'; sleep 0.1; done
    "#;
    world.submit("ftjob-a1", command, |_| {}).await;
    world.until_said_when_running("ftjob-a1", "started").await;
    world.lever("POST", "preempt?job=ftjob-a1&restarts=true", &Value::Null).await;
    world.until_said("ftjob-a1", LOG, "Preempt").await;
    // Between its lives it waits too shortly to be seen there.
    world.until_said("ftjob-a1", "user_logs/retry_001/std_log_process_00.txt", "started").await;
    let bill = world.lever("GET", "bill", &Value::Null).await;
    assert_eq!(bill["machines"].as_array().expect("nodes").len(), 2, "{bill}");
    assert_eq!((&bill["machines"][0]["exists"], &bill["machines"][1]["exists"]), (&json!(false), &json!(true)));
}

impl World {
    async fn until_said_when_running(&self, job: &str, words: &str) -> String {
        self.until_status(job, "Running").await;
        self.until_said(job, LOG, words).await
    }
}

#[tokio::test]
async fn calls_go_wrong_as_the_script_says() {
    let faults = json!([
        { "call": "Workspaces_Get", "kind": { "status": 429 }, "retry_after": "7s" },
        { "call": "Workspaces_Get", "kind": "lost_answer" },
    ]);
    let world = World::new(json!({ "faults": faults })).await;
    let url = format!("{}{WORKSPACE}?api-version=2025-12-01", world.address);
    let answer = world.send("GET", &url, &Value::Null).await.expect("an answer");
    assert_eq!((answer.status().as_u16(), answer.headers()["retry-after"].to_str().expect("text")), (429, "7"));
    assert!(world.send("GET", &url, &Value::Null).await.is_err());
    assert_eq!(world.ask("GET", "", &Value::Null).await.0, 200);
    let calls = world.lever("GET", "calls", &Value::Null).await;
    let statuses: Vec<&Value> = calls
        .as_array()
        .expect("calls")
        .iter()
        .filter(|call| call["call"] == "Workspaces_Get")
        .map(|call| &call["status"])
        .collect();
    assert_eq!(statuses, [&json!(429), &json!(0), &json!(200)]);
}
