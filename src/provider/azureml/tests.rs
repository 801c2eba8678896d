//! Requests against the recordings of Azure's own SDK, and the provider against a service that answers what a test says.
//!
//! Long because both need the same played answers; what runs on the simulated service has a file of its own.

mod simulated;

use std::{
    collections::{BTreeSet, VecDeque},
    sync::Mutex,
};

use azure_core::{
    credentials::{AccessToken, TokenCredential, TokenRequestOptions},
    error::ErrorKind,
    time::OffsetDateTime,
};
use serde_json::json;

use super::*;
use crate::{
    devcloud::{
        azureml::described,
        http::{self, Reply, Request},
    },
    identity::entra::{MANAGEMENT, TokenSource},
    job::{azureml::AzuremlSpec, finding::Health},
    provider::{
        Publication,
        clock::SystemClock,
        conformance::{self, attempt, order},
    },
    store::memory::MemoryStore,
};

const SUBSCRIPTION: &str = "00000000-0000-0000-0000-000000000001";
const DIGEST: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

fn image() -> TrainerImage {
    TrainerImage::Image { reference: reference() }
}

/// Where the environment of that image is.
fn environment() -> String {
    format!("/environments/ftctl/versions/{}", body::version(&reference()).expect("it has a digest"))
}

fn reference() -> String {
    format!("acr1.azurecr.io/ftctl@sha256:{DIGEST}")
}

/// The resource id of a user-assigned identity.
fn assigned() -> String {
    format!("/subscriptions/{SUBSCRIPTION}/resourceGroups/rg1/providers/Microsoft.ManagedIdentity/userAssignedIdentities/me-1")
}

fn plan_of(spec: AzuremlSpec) -> Plan {
    Plan { compute: Compute::Azureml(Box::new(spec.into())).into(), ..conformance::plan() }
}

fn big() -> AzuremlSpec {
    AzuremlSpec { size: Some("Standard_ND40rs_v2".to_owned()), ..AzuremlSpec::default() }
}

/// The address of the region's quotas.
fn usages() -> String {
    format!("/subscriptions/{SUBSCRIPTION}/providers/Microsoft.MachineLearningServices/locations/eastus/usages")
}

/// A request that the service has heard.
#[derive(Debug, Clone)]
struct Asked {
    method: String,
    path: String,
    query: String,
    body: Value,
    token: Option<String>,
    /// The rule of the service's description that it breaks.
    wrong: Option<String>,
}

/// The answers to a kind of request, in their order; the last is given again and again.
type Answers = BTreeMap<(&'static str, String), VecDeque<(u16, Value, Vec<(&'static str, String)>)>>;

/// A service on loopback that knows one workspace, and besides what a test has put there.
struct Service {
    endpoint: String,
    answers: Arc<Mutex<Answers>>,
    asked: Arc<Mutex<Vec<Asked>>>,
    store: Arc<MemoryStore>,
    tokens: Arc<Mutex<u32>>,
    serving: tokio::task::JoinHandle<()>,
}

impl Drop for Service {
    fn drop(&mut self) {
        self.serving.abort();
        if !std::thread::panicking() {
            assert_eq!(self.asked().into_iter().filter_map(|asked| asked.wrong).collect::<Vec<_>>(), [""; 0]);
        }
    }
}

impl Service {
    async fn new() -> Self {
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
        let endpoint = format!("http://{}", listener.local_addr().expect("an address"));
        let (answers, asked, tokens) = (Arc::new(Mutex::new(Answers::new())), Arc::default(), Arc::new(Mutex::new(0)));
        let (known, heard, issued): (_, Arc<Mutex<Vec<Asked>>>, _) = (answers.clone(), Arc::clone(&asked), tokens.clone());
        let serving = tokio::spawn(http::serve(listener, move |request: Request| {
            let reply = answer(&request, &known, &heard, &issued);
            async move { Some(reply) }
        }));
        let service = Self { endpoint, answers, asked, store: Arc::new(MemoryStore::new()), tokens, serving };
        let workspace =
            json!({ "location": "eastus", "properties": { "discoveryUrl": format!("{}/discovery", service.endpoint) } });
        service.on("GET", "", [(200, workspace)]);
        service.on("GET", "/discovery", [(200, json!({ "history": service.endpoint }))]);
        for list in ["/jobs", "/computes"] {
            service.on("GET", list, [(200, json!({ "value": [] }))]);
        }
        service
    }

    /// From now on answers requests for `path`, which is below the workspace, or below the service where that knows it.
    fn on(&self, method: &'static str, path: &str, answers: impl IntoIterator<Item = (u16, Value)>) {
        let answers = answers.into_iter().map(|(status, body)| (status, body, Vec::new())).collect();
        self.answers.lock().expect("no panic").insert((method, path.to_owned()), answers);
    }

    /// Answers a change with the address of its operation, and that with what it ended as.
    fn operation(&self, method: &'static str, path: &str, address: &str, ended: &Value) {
        let header = vec![("Azure-AsyncOperation", address.to_owned())];
        let begun = VecDeque::from([(201, json!({}), header)]);
        self.answers.lock().expect("no panic").insert((method, path.to_owned()), begun);
        self.on("GET", "/operation", [(200, json!({ "status": "InProgress" })), (200, ended.clone())]);
    }

    /// Answers a change with 202, with an address of its outcome beside it, and that with 202 until it has `ended`.
    fn accepted(&self, method: &'static str, path: &str, address: &str, ended: (u16, Value)) {
        let begun = VecDeque::from([(202, Value::Null, vec![("Location", address.to_owned())])]);
        self.answers.lock().expect("no panic").insert((method, path.to_owned()), begun);
        self.on("GET", "/outcome", [(202, Value::Null), (202, json!({ "status": "Succeeded" })), ended]);
    }

    fn provider(&self) -> Azureml {
        self.provider_of(Party::new("me", self.store.clone()))
    }

    fn provider_of(&self, party: Party) -> Azureml {
        let variables = |name: &str| {
            Some(match name {
                "FTCTL_ENDPOINT_AZUREML" | "FTCTL_ENDPOINT_AZURE_PRICES" => self.endpoint.clone(),
                "AZUREML_ARM_SUBSCRIPTION" => SUBSCRIPTION.to_owned(),
                "AZUREML_ARM_RESOURCEGROUP" => "rg1".to_owned(),
                "AZUREML_ARM_WORKSPACE_NAME" => "ws1".to_owned(),
                "FTCTL_AZURE_MANAGED_IDENTITY" => "system".to_owned(),
                "IDENTITY_ENDPOINT" => format!("{}/identity", self.endpoint),
                "IDENTITY_HEADER" => "secret".to_owned(),
                _ => return None,
            })
        };
        let mut azureml = signed_in(&variables, party);
        azureml.client.pace = client::Pace {
            tries: [Duration::from_millis(1), Duration::from_millis(2)],
            look: Duration::from_millis(1),
            operation: Duration::from_millis(300),
            end: Duration::from_millis(300),
        };
        azureml
    }

    fn asked(&self) -> Vec<Asked> {
        self.asked.lock().expect("no panic").clone()
    }

    /// The only request of this method for this path.
    fn only(&self, method: &str, path: &str) -> Asked {
        let found: Vec<Asked> = self.asked().into_iter().filter(|asked| asked.method == method && asked.path == path).collect();
        assert_eq!(found.len(), 1, "{method} {path}: {found:?}");
        found[0].clone()
    }

    /// The job of an attempt of ours, in this status.
    async fn job(&self, attempt: &AttemptId, status: &str) -> Value {
        let party = Party::new("me", self.store.clone());
        let mark = party.mark().await.expect("known");
        let (name, id) = (attempt.machine_name(), &attempt.job);
        let tags = json!({ body::OURS: "1", body::JOB: id.as_str(), body::ATTEMPT: attempt.attempt.to_string(), body::OWNER: mark.owner, body::STORE: mark.store });
        let compute = format!("{}/computes/gpu", workspace_id());
        json!({
            "name": name, "systemData": { "createdAt": "2026-11-20T12:00:00Z" },
            "properties": { "status": status, "tags": tags, "computeId": compute, "limits": { "timeout": "PT1H" } },
        })
    }

    /// Answers every request with the job of an attempt, or with what the run history says of it.
    async fn shows(&self, attempt: &AttemptId, status: &str, details: &Value) {
        let job = self.job(attempt, status).await;
        self.on("GET", &format!("/jobs/{}", attempt.machine_name()), [(200, job.clone())]);
        self.on("GET", "/jobs", [(200, json!({ "value": [job] }))]);
        self.on("GET", &format!("/runs/{}/details", attempt.machine_name()), [(200, details.clone())]);
    }
}

/// Who signs in by App Service's protocol for managed identities. The library that does so asks the environment of the process,
/// which tests share.
#[derive(Debug)]
struct Identified {
    endpoint: String,
    header: String,
}

#[async_trait]
impl TokenCredential for Identified {
    async fn get_token(&self, _: &[&str], _: Option<TokenRequestOptions<'_>>) -> azure_core::Result<AccessToken> {
        let url = format!("{}?api-version=2019-08-01&resource=https://management.azure.com/", self.endpoint);
        let answer = reqwest::Client::new().get(url).header("X-IDENTITY-HEADER", &self.header).send().await.expect("an answer");
        let bytes = answer.bytes().await.expect("a body");
        let token: Value = serde_json::from_slice(&bytes).expect("JSON");
        let ends = OffsetDateTime::now_utc() + Duration::from_secs(3_600);
        Ok(AccessToken::new(token["access_token"].as_str().expect("a token").to_owned(), ends))
    }
}

/// A provider whose sign-in is that of these variables.
fn signed_in(variables: Variables<'_>, party: Party) -> Azureml {
    let mut azureml = Azureml::open(variables, Path::new("/"), None, party, Arc::new(SystemClock), None).expect("opened");
    let value = |name: &str| variables(name).expect("a variable");
    let credential = Identified { endpoint: value("IDENTITY_ENDPOINT"), header: value("IDENTITY_HEADER") };
    azureml.client.sign_in = Ok(TokenSource::new(Arc::new(credential), MANAGEMENT));
    azureml
}

fn workspace_id() -> String {
    format!("/subscriptions/{SUBSCRIPTION}/resourceGroups/rg1/providers/Microsoft.MachineLearningServices/workspaces/ws1")
}

fn answer(request: &Request, known: &Mutex<Answers>, asked: &Mutex<Vec<Asked>>, tokens: &Mutex<u32>) -> Reply {
    if request.path() == "/identity" {
        let mut issued = tokens.lock().expect("no panic");
        *issued += 1;
        let ends = (Timestamp::now().as_second() + 3_600).to_string();
        return Reply::json(
            200,
            &json!({ "access_token": format!("token-{issued}"), "expires_on": ends, "resource": "r", "token_type": "Bearer" }),
        );
    }
    let whole = request.path().replace("/history/v1.0", "");
    let path = whole.strip_prefix(&workspace_id()).unwrap_or(&whole).to_owned();
    let body = serde_json::from_slice(&request.body).unwrap_or_default();
    let is_described = || described(&request.method, request.path(), &request.queries(), &body);
    let wrong = request.path().starts_with("/subscriptions/").then(is_described).and_then(Result::err);
    asked.lock().expect("no panic").push(Asked {
        method: request.method.clone(),
        path: path.clone(),
        query: request.url.as_ref().and_then(|url| url.query()).unwrap_or_default().to_owned(),
        token: request.header("authorization").map(str::to_owned),
        wrong,
        body,
    });
    let mut known = known.lock().expect("no panic");
    let answers =
        known.iter_mut().find(|((method, about), _)| *method == request.method && *about == path).map(|(_, answers)| answers);
    let Some(answers) = answers else {
        return Reply::json(404, &json!({ "error": { "code": "ResourceNotFound", "message": format!("no {path}") } }));
    };
    let (status, body, headers) =
        if answers.len() > 1 { answers.pop_front() } else { answers.front().cloned() }.expect("an answer");
    let mut reply = if body.is_null() { Reply::new(status, "text/plain", "") } else { Reply::json(status, &body) };
    reply.headers.extend(headers);
    reply
}

/// The calls of a recording.
fn recorded(name: &str) -> Vec<Value> {
    let path = format!("{}/tests/recordings/azureml/{name}.json", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(path).expect("a recording").replace("{endpoint}", "http://recorded");
    let recording: Value = serde_json::from_str(&text).expect("JSON");
    recording["calls"].as_array().expect("calls").clone()
}

fn recorded_body(name: &str) -> Value {
    recorded(name).into_iter().find(|call| call["method"] == "PUT").expect("a PUT")["body"].clone()
}

/// The fields of a body, each with its value, by their paths.
fn fields(value: &Value, at: &str, into: &mut BTreeMap<String, Value>) {
    match value {
        Value::Object(object) if !object.is_empty() => {
            object.iter().for_each(|(name, value)| fields(value, &format!("{at}/{name}"), into));
        }
        other => {
            into.insert(at.to_owned(), other.clone());
        }
    }
}

/// The paths in which two bodies differ.
fn differences(ours: &Value, theirs: &Value) -> BTreeSet<String> {
    let (mut one, mut other) = (BTreeMap::new(), BTreeMap::new());
    fields(ours, "", &mut one);
    fields(theirs, "", &mut other);
    one.keys().chain(other.keys()).filter(|path| one.get(*path) != other.get(*path)).cloned().collect()
}

/// The reasons for every difference are in a list, which `tests/live` reads too; nothing else differs, and nothing less.
fn differs_as_listed(ours: &Value, recording: &str) {
    let listed: Value = serde_json::from_str(include_str!("../../../tests/recordings/azureml/differences.json")).expect("JSON");
    let reasons = listed[recording].as_object().expect("a list");
    assert!(reasons.values().all(|why| why.as_str().is_some_and(|why| !why.is_empty())), "{recording}");
    let expected: BTreeSet<String> = reasons.keys().cloned().collect();
    assert_eq!(differences(ours, &recorded_body(recording)), expected, "{recording}");
}

async fn mark_of(party: &Party) -> Mark<'_> {
    party.mark().await.expect("known")
}

fn party() -> Party {
    Party::new("me", Arc::new(MemoryStore::new()))
}

#[tokio::test]
async fn a_cluster_is_asked_for_as_the_sdk_does() {
    let (party, one) = (party(), attempt("cluster"));
    let ours = body::cluster(&big().into(), "westus2", 1, &one, &mark_of(&party).await);
    differs_as_listed(&ours, "compute-create-nc6sv3-lowpri");
    assert_eq!(ours["properties"]["properties"]["enableNodePublicIp"], false);
    assert_eq!(ours["properties"]["properties"]["scaleSettings"]["minNodeCount"], 0);
    let outside = AzuremlPlan { public_address: true, ..big().into() };
    let outside = body::cluster(&outside, "eastus", 1, &one, &mark_of(&party).await);
    assert_eq!(outside["properties"]["properties"]["enableNodePublicIp"], true);
}

#[tokio::test]
async fn a_job_is_asked_for_as_the_sdk_does() {
    let service = Service::new().await;
    let one = attempt("body");
    service.on("GET", "/computes/gpu2", [(200, cluster_of("STANDARD_ND40rs_v2", "lowPriority"))]);
    service.on("PUT", &format!("/jobs/{}", one.machine_name()), [(201, json!({}))]);
    service.on("PUT", &environment(), [(201, json!({}))]);
    let spec = AzuremlSpec { cluster: "gpu2".parse().ok(), ..big() };
    service.provider().provision(&one, &plan_of(spec), &image()).await.expect("made");

    let environment = service.only("PUT", &environment());
    differs_as_listed(&environment.body, "environment-create-image");
    assert_eq!(environment.query, "api-version=2025-12-01");

    let ours = service.only("PUT", &format!("/jobs/{}", one.machine_name())).body;
    differs_as_listed(&ours, "job-create-command-pytorch-2x8");
    let spec = AzuremlSpec { cluster: "gpu2".parse().ok(), ..big() };
    let asked = RunOrder::asked_by(&plan_of(spec), &image());
    let command =
        format!("'ftctl' 'agent' '--job' '{}' '--attempt' '1' '--asked' '{}' '--store' 'memory:'", one.job, asked.as_str());
    assert_eq!(ours["properties"]["command"], command);
    // A day, less what a node costs around its job.
    assert_eq!(ours["properties"]["limits"]["timeout"], format!("PT{}S", 24 * 3_600 - 780));
}

#[tokio::test]
async fn a_store_is_made_known_as_the_sdk_does() {
    let service = Service::new().await;
    let mut provider = service.provider();
    let place = crate::store::azure::named("http://127.0.0.1:10000/devstoreaccount1/jobs", &|_| None).expect("a container");
    let made = |asked: &Asked| asked.method == "PUT" && asked.path.starts_with("/datastores/");
    provider.container = Some(place);
    // The played service refuses, and has heard it.
    assert!(provider.publish(&Publication::Store).await.is_err());
    let asked = service.asked().into_iter().find(made).expect("asked for");
    differs_as_listed(&asked.body, "datastore-create-blob-identity");
    assert_eq!(asked.query, "api-version=2025-12-01&skipValidation=true");
}

#[test]
fn what_is_told_of_a_request_has_no_variable_of_a_job() {
    let body = json!({ "properties": { "command": "c", "environmentVariables": { "FTCTL_SIGNATURE": "sig=secret" } } });
    let told = body::shown(&body);
    assert_eq!(told, json!({ "properties": { "command": "c", "environmentVariables": { "FTCTL_SIGNATURE": "…" } } }));
    assert_eq!(body::shown(&json!({ "properties": {} })), json!({ "properties": {} }));
}

#[tokio::test]
async fn a_serverless_job_has_a_size_and_a_tier_instead_of_a_cluster() {
    let (service, one) = (Service::new().await, attempt("serverless"));
    let path = format!("/jobs/{}", one.machine_name());
    service.on("PUT", &path, [(201, json!({}))]);
    service.on("PUT", &environment(), [(201, json!({}))]);
    let spec = AzuremlSpec { compute: Some(Placement::Serverless), ..big() };
    service.provider().provision(&one, &plan_of(spec), &image()).await.expect("made");
    let properties = service.only("PUT", &path).body["properties"].clone();
    assert_eq!((&properties["resources"]["instanceType"], &properties["computeId"]), (&json!("Standard_ND40rs_v2"), &Value::Null));
    assert_eq!(
        (&properties["queueSettings"]["jobTier"], &properties["identity"]["identityType"]),
        (&json!("Spot"), &json!("UserIdentity"))
    );
    assert!(!service.asked().iter().any(|asked| asked.path.starts_with("/computes")), "there is no cluster");
}

#[tokio::test]
async fn a_user_assigned_identity_is_named_to_the_cluster_and_to_the_job() {
    let id = assigned();
    for compute in [Placement::Cluster, Placement::Serverless] {
        let (service, one) = (Service::new().await, attempt("assigned"));
        let spec = AzuremlSpec { compute: Some(compute), identity: id.parse().ok(), ..big() };
        let name = body::cluster_name(&spec.clone().into(), &mark_of(&Party::new("me", service.store.clone())).await);
        let (cluster_path, job_path) = (format!("/computes/{name}"), format!("/jobs/{}", one.machine_name()));
        let state = json!({ "provisioningState": "Succeeded", "properties": { "scaleSettings": { "maxNodeCount": 1 } } });
        let tags = job::tags(&service.job(&one, "Queued").await).clone();
        service.on("GET", &cluster_path, [(404, json!({})), (200, json!({ "tags": tags, "properties": state }))]);
        for path in [&cluster_path, &job_path, &environment()] {
            service.on("PUT", path, [(201, json!({}))]);
        }
        service.provider().provision(&one, &plan_of(spec), &image()).await.expect("made");
        let job = service.only("PUT", &job_path);
        assert_eq!(job.wrong, None);
        assert_eq!(job.body["properties"]["identity"], json!({ "identityType": "Managed", "resourceId": id }));
        if compute == Placement::Cluster {
            let cluster = service.only("PUT", &cluster_path);
            assert_eq!(cluster.wrong, None);
            assert_eq!(cluster.body["identity"], json!({ "type": "UserAssigned", "userAssignedIdentities": { id.as_str(): {} } }));
        } else {
            assert!(!service.asked().iter().any(|asked| asked.path.starts_with("/computes")), "there is no cluster");
        }
    }
}

#[tokio::test]
async fn ends_are_asked_for_as_the_sdk_does() {
    let (service, one) = (Service::new().await, attempt("ends"));
    let name = one.machine_name();
    service.shows(&one, "Running", &json!({})).await;
    let (running, over) = (service.job(&one, "Running").await, service.job(&one, "Canceled").await);
    service.on("GET", &format!("/jobs/{name}"), [(200, running), (200, over.clone())]);
    service.on(
        "GET",
        "/jobs",
        [(200, json!({ "value": [service.job(&one, "Running").await] })), (200, json!({ "value": [over.clone()] }))],
    );
    service.on("POST", &format!("/jobs/{name}/cancel"), [(200, Value::Null)]);
    let tags = over["properties"]["tags"].clone();
    let cluster = json!({ "id": format!("{}/computes/gpu", workspace_id()), "name": "gpu", "tags": tags, "properties": { "computeType": "AmlCompute" } });
    service.on("GET", "/computes/gpu", [(200, cluster.clone())]);
    service.on("GET", "/computes", [(200, json!({ "value": [cluster] }))]);
    service.operation("DELETE", "/computes/gpu", &format!("{}/operation?t=1", service.endpoint), &json!({ "status": "Succeeded" }));
    service.provider().destroy(&one.job).await.expect("destroyed");

    let path =
        |call: &Value| call["path"].as_str().expect("a path").split("/workspaces/ws1").last().map(str::to_owned).expect("below");
    let cancel = recorded("job-cancel").pop().expect("a call");
    assert_eq!(path(&cancel), "/jobs/ftjob4/cancel");
    assert_eq!(service.only("POST", &format!("/jobs/{name}/cancel")).body, cancel["body"]);
    let delete = recorded("compute-delete").remove(0);
    assert_eq!(path(&delete), "/computes/gpu");
    assert_eq!(delete["query"]["underlyingResourceAction"], "Delete");
    assert_eq!(service.only("DELETE", "/computes/gpu").query, "api-version=2025-12-01&underlyingResourceAction=Delete");
    // To the letter.
    assert!(service.asked().iter().any(|asked| asked.path == "/operation" && asked.query == "t=1"));
}

#[tokio::test]
async fn a_quota_is_understood_in_each_of_its_forms() {
    let (service, one) = (Service::new().await, attempt("quota"));
    let provider = service.provider();
    let name = body::cluster_name(&big().into(), &mark_of(&Party::new("me", service.store.clone())).await);
    assert!(name.len() <= 24 && name.starts_with("ftctl-"), "{name}");
    let path = format!("/computes/{name}");
    let refused = async || provider.provision(&one, &plan_of(big()), &image()).await.expect_err("refused");
    let quota = recorded("compute-create-quota-400").pop().expect("a call");
    service.on("PUT", &path, [(400, quota["response"].clone())]);
    assert_eq!(refused().await.class, Class::Quota);
    for (code, class) in
        [("ClusterCoreQuotaReached", Class::Quota), ("AllocationFailed", Class::Capacity), ("Odd", Class::Internal)]
    {
        let ended = json!({ "status": "Failed", "error": { "code": code, "message": "why" } });
        service.operation("PUT", &path, &format!("{}/operation", service.endpoint), &ended);
        assert_eq!(refused().await.class, class, "{code}");
    }
    assert!(
        !service.asked().iter().any(|asked| asked.method == "PUT" && asked.path.starts_with("/jobs")),
        "no job without a cluster"
    );
}

#[tokio::test]
async fn an_operation_that_never_ends_is_told() {
    let (service, one) = (Service::new().await, attempt("endless"));
    let name = body::cluster_name(&big().into(), &mark_of(&Party::new("me", service.store.clone())).await);
    service.operation(
        "PUT",
        &format!("/computes/{name}"),
        &format!("{}/operation", service.endpoint),
        &json!({ "status": "InProgress" }),
    );
    let error = service.provider().provision(&one, &plan_of(big()), &image()).await.expect_err("never done");
    assert!(error.class == Class::Network && error.message.contains("is not done after"), "{error}");
}

#[tokio::test]
async fn a_change_that_was_only_accepted_is_followed_to_its_outcome() {
    let service = Service::new().await;
    let remove = async || service.provider().remove(&"gpu".parse().expect("a name")).await;
    let address = format!("{}/outcome?t=1", service.endpoint);
    let looks = || service.asked().iter().filter(|asked| asked.path == "/outcome" && asked.query == "t=1").count();
    service.accepted("DELETE", "/computes/gpu", &address, (204, Value::Null));
    remove().await.expect("gone");
    assert_eq!(looks(), 3, "until it is not 202");
    let used = json!({ "error": { "code": "Conflict", "message": "a job is on it" } });
    service.accepted("DELETE", "/computes/gpu", &address, (409, used));
    assert_eq!(remove().await.map_err(|refusal| refusal.message), Err("a job is on it".to_owned()));
    service.accepted("DELETE", "/computes/gpu", &address, (202, Value::Null));
    assert!(remove().await.is_err_and(|refusal| refusal.message.contains("is not done after")));
    // Where both are named, the operation's own word counts; beside another status the address is that of the thing.
    let both = [("Azure-AsyncOperation", format!("{}/operation", service.endpoint)), ("Location", address.clone())];
    service.operation("DELETE", "/computes/gpu", &both[0].1, &json!({ "status": "Succeeded" }));
    for (status, headers) in [(202, &both[..]), (200, &both[1..])] {
        let before = looks();
        let answer = VecDeque::from([(status, Value::Null, headers.to_vec())]);
        service.answers.lock().expect("no panic").insert(("DELETE", "/computes/gpu".to_owned()), answer);
        remove().await.expect("gone");
        assert_eq!(looks(), before, "{status}");
    }
}

#[tokio::test]
async fn an_address_that_is_not_the_services_is_never_asked() {
    let (service, stranger, one) = (Service::new().await, Service::new().await, attempt("foreign"));
    let provider = service.provider();
    let elsewhere = format!("{}/operation", stranger.endpoint);
    service.operation("DELETE", "/computes/gpu", &elsewhere, &json!({ "status": "Succeeded" }));
    let remove = async || provider.remove(&"gpu".parse().expect("a name")).await.expect_err("it is another's").message;
    let refused = remove().await;
    assert!(refused.contains("sends no request there"), "{refused}");
    service.accepted("DELETE", "/computes/gpu", &elsewhere, (204, Value::Null));
    let refused = remove().await;
    assert!(refused.contains("sends no request there"), "{refused}");
    service.on("GET", "/computes", [(200, json!({ "value": [], "nextLink": elsewhere }))]);
    provider.clusters().await.expect_err("it is another's");
    // Run history may be elsewhere, but not anywhere.
    service.shows(&one, "Failed", &json!({})).await;
    for discovery in [
        "https://azureml.ms.example.org/discovery",
        "http://eastus.api.azureml.ms/discovery",
        "https://evilapi.azureml.ms/x",
        "https://mine-8080.eastus.instances.azureml.ms/x",
        "file:///etc/passwd",
        "",
    ] {
        service.on("GET", "", [(200, json!({ "location": "eastus", "properties": { "discoveryUrl": discovery } }))]);
        let error = service.provider().observe(&one).await.expect_err(discovery);
        assert!(error.message.contains("sends no request there"), "{error}");
    }
    assert_eq!(stranger.asked().len(), 0);
    let blob = "https://account.blob.core.windows.net.example.org/log?sig=secret";
    service.on(
        "GET",
        "",
        [(200, json!({ "location": "eastus", "properties": { "discoveryUrl": format!("{}/discovery", service.endpoint) } }))],
    );
    service.shows(&one, "Failed", &json!({ "logFiles": { "user_logs/std_log.txt": blob } })).await;
    let error = service.provider().console(&one, 0).await.expect_err("no blob");
    assert!(error.message.contains("sends no request there") && !error.message.contains("secret"), "{error}");
}

#[tokio::test]
async fn a_job_in_another_store_is_none_of_ours() {
    let (service, one) = (Service::new().await, attempt("theirs"));
    service.shows(&one, "Running", &json!({})).await;
    let theirs = service.provider_of(Party::new("me", Arc::new(MemoryStore::new())));
    assert_eq!(theirs.observe(&one).await, Ok(Sighting::Gone));
    assert_eq!(theirs.launch(&order(&one)).await.map_err(|error| error.class), Err(Class::Network));
    assert_eq!(theirs.provision(&one, &plan_of(big()), &image()).await.map_err(|error| error.class), Err(Class::Conflict));
    theirs.preempt(&one).await.expect_err("it is another's");
    theirs.destroy(&one.job).await.expect("there is nothing of its own");
    assert!(service.asked().iter().all(|asked| asked.method == "GET"), "nothing was changed");
    service.provider().provision(&one, &plan_of(big()), &image()).await.expect("ours is taken as it is");
    service.provider().launch(&order(&one)).await.expect("it is there");
    assert!(service.asked().iter().all(|asked| asked.method == "GET"), "nothing was changed");
}

#[tokio::test]
async fn an_environment_that_is_another_image_is_refused() {
    let (service, one) = (Service::new().await, attempt("planted"));
    let plan = plan_of(AzuremlSpec { compute: Some(Placement::Serverless), ..big() });
    for other in [DIGEST.replace('0', "1"), DIGEST.to_owned()].map(|digest| format!("evil.example/ftctl@sha256:{digest}")) {
        assert_ne!(body::version(&other), body::version(&reference()), "each reference has a version of its own");
        service.on("GET", &environment(), [(200, json!({ "properties": { "image": other } }))]);
        let error = service.provider().provision(&one, &plan, &image()).await.expect_err("another image");
        assert!(error.class == Class::Conflict && error.message.contains("is another image"), "{error}");
    }
    for loose in ["acr1.azurecr.io/ftctl:latest", "acr1.azurecr.io/ftctl@sha256:0123"] {
        assert_eq!(body::version(loose), None, "{loose} is not given by its digest");
    }
}

/// A user's cluster of such machines.
fn cluster_of(size: &str, priority: &str) -> Value {
    json!({ "properties": { "properties": { "vmSize": size, "vmPriority": priority } } })
}

#[tokio::test]
async fn a_named_cluster_of_other_machines_is_refused_before_it_costs() {
    let (service, one) = (Service::new().await, attempt("dearer"));
    let plan = plan_of(AzuremlSpec { cluster: "gpu2".parse().ok(), ..big() });
    for (size, priority, fix) in [
        ("Standard_ND96amsr_A100_v4", "LowPriority", "size = \"Standard_ND96amsr_A100_v4\" and spot = true"),
        ("Standard_ND40rs_v2", "Dedicated", "size = \"Standard_ND40rs_v2\" and spot = false"),
    ] {
        service.on("GET", "/computes/gpu2", [(200, cluster_of(size, priority))]);
        let error = service.provider().provision(&one, &plan, &image()).await.expect_err("another price");
        let told = format!("the cluster gpu2 has {size} ({priority}), and the job wants Standard_ND40rs_v2 (LowPriority)");
        assert!(error.class == Class::Invalid && error.message.contains(&told), "{error}");
        assert!(error.fix.as_ref().is_some_and(|said| said.contains(fix)), "{error:?}");
        let room = service.provider().room(&plan).await;
        assert!(room[0].health == Health::Bad && room[0].message.contains(&told), "{room:?}");
    }
    assert!(service.asked().iter().all(|asked| asked.method == "GET"), "nothing was made");
}

#[tokio::test]
async fn a_named_cluster_that_keeps_its_nodes_longer_is_told_of_in_the_plan() {
    let service = Service::new().await;
    let plan = plan_of(AzuremlSpec { cluster: "gpu2".parse().ok(), ..big() });
    let mut cluster = cluster_of("Standard_ND40rs_v2", "LowPriority");
    for (idle, least, health, count) in [
        ("PT2M", 0, Health::Good, 1),
        ("PT2M", 1, Health::Notice, 2),
        ("PT30M", 2, Health::Notice, 3),
        ("PT30M", 0, Health::Notice, 2),
    ] {
        cluster["properties"]["properties"]["scaleSettings"] =
            json!({ "minNodeCount": least, "nodeIdleTimeBeforeScaleDown": idle });
        service.on("GET", "/computes/gpu2", [(200, cluster.clone())]);
        let room = service.provider().room(&plan).await;
        assert_eq!((room.len(), room.last().map(|finding| finding.health)), (count, Some(health)), "{room:?}");
        assert_eq!(room[count - 1].message.contains(&format!("gpu2 keeps {least} of its nodes")), least > 0, "{room:?}");
    }
    let room = service.provider().room(&plan).await;
    assert!(room[1].message.contains("30m") && room[1].message.contains("2m"), "{room:?}");
}

#[tokio::test]
async fn a_named_cluster_that_is_too_small_or_not_well_is_told_of_in_the_plan() {
    let service = Service::new().await;
    let mut cluster = cluster_of("Standard_ND40rs_v2", "LowPriority");
    for (nodes, shrink, most, state, expected) in [
        (2, false, 1, "Succeeded", vec![(Health::Bad, "the cluster gpu2 has a maximum of 1, and the job wants 2 nodes")]),
        (2, true, 1, "Succeeded", vec![(Health::Notice, "the cluster gpu2 has a maximum of 1, and the job wants 2 nodes")]),
        (2, true, 0, "Succeeded", vec![(Health::Bad, "the cluster gpu2 has a maximum of 0")]),
        (2, false, 2, "Succeeded", vec![(Health::Good, "gpu2 of Standard_ND40rs_v2")]),
        (1, false, 2, "Failed", vec![(Health::Good, "gpu2 of Standard_ND40rs_v2"), (Health::Notice, "gpu2 is Failed")]),
    ] {
        let mut plan = plan_of(AzuremlSpec { cluster: "gpu2".parse().ok(), ..big() });
        (plan.nodes, plan.retry.shrink) = (nodes, shrink);
        cluster["properties"]["provisioningState"] = json!(state);
        cluster["properties"]["properties"]["scaleSettings"] = json!({ "maxNodeCount": most });
        service.on("GET", "/computes/gpu2", [(200, cluster.clone())]);
        let mut room = service.provider().room(&plan).await;
        room.retain(|finding| finding.what == "cluster");
        assert_eq!(room.len(), expected.len(), "{room:?}");
        for (finding, (health, message)) in room.iter().zip(expected) {
            assert!(finding.health == health && finding.message.starts_with(message), "{finding:?}");
        }
    }
}

#[test]
fn nodes_that_wait_for_each_other_are_told_of_in_the_plan() {
    let told = |nodes, spec: AzuremlSpec| offer::of_nodes(&spec.into(), nodes).is_some();
    assert!(told(2, big()) && !told(1, big()));
    let serverless = AzuremlSpec { compute: Some(Placement::Serverless), ..big() };
    assert!(!told(2, serverless), "the service's own nodes are billed to the job from its start");
}

#[tokio::test]
async fn a_cluster_is_widened_for_a_job_that_was_submitted_at_the_same_time() {
    let (service, one, other) = (Service::new().await, attempt("first"), attempt("second"));
    let name = body::cluster_name(&big().into(), &mark_of(&Party::new("me", service.store.clone())).await);
    let (path, job_path) = (format!("/computes/{name}"), format!("/jobs/{}", one.machine_name()));
    let tags = job::tags(&service.job(&one, "Queued").await).clone();
    let cluster = |state: &str, most: u32| {
        let inner = json!({ "scaleSettings": { "maxNodeCount": most } });
        (200, json!({ "tags": tags, "properties": { "provisioningState": state, "properties": inner } }))
    };
    let mut jobs = [service.job(&one, "Queued").await, service.job(&other, "Queued").await];
    for job in &mut jobs {
        job["properties"]["computeId"] = json!(format!("{}{path}", workspace_id()));
    }
    service.on("PUT", &path, [(200, json!({}))]);
    service.on("PUT", &job_path, [(201, json!({}))]);
    service.on("PUT", &environment(), [(201, json!({}))]);
    service.on("GET", &job_path, [(404, json!({})), (200, jobs[0].clone())]);
    service.on("GET", "/jobs", [(200, json!({ "value": [] })), (200, json!({ "value": jobs }))]);
    service.on("GET", &path, [cluster("Succeeded", 1), cluster("Succeeded", 1), cluster("Succeeded", 2)]);
    let provision = async || service.provider().provision(&one, &plan_of(big()), &image()).await;
    assert_eq!(provision().await, Ok(Vec::new()));
    let most = |asked: &Asked| asked.body["properties"]["properties"]["scaleSettings"]["maxNodeCount"].clone();
    assert_eq!(most(&service.only("PUT", &path)), 2, "one node for each");

    // Whatever is needed now, others may have asked for more, and have not submitted their jobs yet.
    service.on("GET", &path, [cluster("Failed", 7), cluster("Succeeded", 7)]);
    assert_eq!(provision().await, Ok(Vec::new()));
    let puts: Vec<Value> = service.asked().iter().filter(|asked| asked.method == "PUT" && asked.path == path).map(most).collect();
    assert_eq!(puts, [2, 7]);

    // No more room is no reason to give up the job, which takes its turn.
    service.on("GET", &path, [cluster("Succeeded", 1)]);
    let quota = recorded("compute-create-quota-400").pop().expect("a call");
    service.on("PUT", &path, [(400, quota["response"].clone())]);
    let told = provision().await.expect("the job is there");
    assert!(told.len() == 1 && told[0].contains("stays as wide as it is"), "{told:?}");
}

#[tokio::test]
async fn a_cluster_stays_while_another_job_is_on_it_whosever_that_is() {
    let (service, one, other) = (Service::new().await, attempt("over"), attempt("other"));
    let over = service.job(&one, "Completed").await;
    let cluster = |running: u32| {
        let state = json!({ "nodeStateCounts": { "runningNodeCount": running } });
        json!({
            "id": format!("{}/computes/gpu", workspace_id()), "name": "gpu", "tags": job::tags(&over),
            "properties": { "computeType": "AmlCompute", "properties": state },
        })
    };
    let there = |running: u32, jobs: &[Vec<&Value>]| {
        service.on("GET", "/computes", [(200, json!({ "value": [cluster(running)] }))]);
        service.on("GET", "/computes/gpu", [(200, cluster(running))]);
        service.on("GET", "/jobs", jobs.iter().map(|jobs| (200, json!({ "value": jobs }))));
    };
    let deletes = || service.asked().iter().filter(|asked| asked.method == "DELETE").count();
    let destroyed = async || service.provider().destroy(&one.job).await.map(|()| deletes());
    // Somebody's own job, which has no tag of ftctl's.
    let compute = over["properties"]["computeId"].clone();
    let theirs = json!({ "name": "night", "properties": { "status": "Running", "computeId": compute } });
    there(1, &[vec![&over, &theirs]]);
    assert_eq!((destroyed().await, service.provider().tidy(false).await), (Ok(0), Ok(Vec::new())));
    assert_eq!(service.provider().list().await, Ok(Vec::new()), "its nodes work for them");
    // One that another ftctl submits while the service is busy.
    service.on("DELETE", "/computes/gpu", [(429, json!({})), (200, json!({}))]);
    let late = service.job(&other, "Queued").await;
    there(0, &[vec![&over], vec![&over], vec![&over, &late]]);
    assert_eq!(destroyed().await, Ok(1), "it is not tried again");
    service.on("DELETE", "/computes/gpu", [(429, json!({})), (200, json!({}))]);
    there(1, &[vec![&over]]);
    assert_eq!(destroyed().await, Ok(3), "a node that is still counted as busy keeps none");
}

#[tokio::test]
async fn a_queue_says_what_it_waits_for() {
    let (service, one) = (Service::new().await, attempt("waits"));
    service.shows(&one, "Queued", &json!({})).await;
    let errors = json!([{ "error": { "code": "ClusterCoreQuotaReached", "message": "no\nroom" } }]);
    let state =
        json!({ "currentNodeCount": 0, "targetNodeCount": 1, "nodeStateCounts": { "preparingNodeCount": 1 }, "errors": errors });
    let shrinks = json!({ "currentNodeCount": 1, "targetNodeCount": 0 });
    let shows = |state: &Value| (200, json!({ "name": "gpu", "properties": { "properties": state } }));
    service.on("GET", "/computes/gpu", [shows(&state), shows(&shrinks)]);
    let why = "Queued: the cluster gpu has 0 of 1 nodes, 1 preparing; ClusterCoreQuotaReached: no room".to_owned();
    let since = "2026-11-20T12:00:00Z".parse().expect("a time");
    assert_eq!(service.provider().observe(&one).await, Ok(Sighting::Queued { since, why }));
    let why = "Queued: the cluster gpu is scaling down from 1 to 0 nodes".to_owned();
    assert_eq!(service.provider().observe(&one).await, Ok(Sighting::Queued { since, why }));
    let listed = service.provider().list().await.expect("listed");
    assert_eq!(listed.iter().map(|resource| resource.price_per_hour).collect::<Vec<_>>(), [Money::ZERO], "waiting costs nothing");
    let cluster = json!({
        "id": format!("{}/computes/gpu", workspace_id()), "name": "gpu", "tags": { "ftctl": "1" },
        "properties": { "computeType": "AmlCompute", "properties": {
            "vmSize": "Standard_ND40rs_v2", "vmPriority": "LowPriority", "nodeStateCounts": { "preparingNodeCount": 1 },
        } },
    });
    service.on("GET", "/computes", [(200, json!({ "value": [cluster] }))]);
    let listed = service.provider().list().await.expect("listed");
    assert_eq!(listed.iter().map(|resource| resource.price_per_hour.micros).collect::<Vec<_>>(), [4_406_400], "a node does");
    let of = |nodes: u32| json!({ "name": "w", "properties": { "status": "Queued", "resources": { "instanceCount": nodes } } });
    assert_eq!([1, 2].map(|nodes| super::cluster::prepared(&cluster, &[], &of(nodes))), [1, 1], "the other one does not exist yet");
    for (started, sighting) in [(Value::Null, false), (json!("2026-11-20T12:30:00Z"), true)] {
        service.shows(&one, "NotResponding", &json!({ "startTimeUtc": started })).await;
        let seen = service.provider().observe(&one).await.expect("seen");
        assert_eq!(seen == Sighting::Alive { agent: true }, sighting, "{seen:?}");
    }
    assert!(matches!(service.provider().signs(&one).await, Ok(Signs::Silent { what }) if what.contains("NotResponding")));
    service.shows(&one, "Odd", &json!({})).await;
    let error = service.provider().observe(&one).await.expect_err("no status");
    assert!(error.message.contains("`Odd` is not a status"), "{error}");
}

#[tokio::test]
async fn a_running_job_has_the_price_of_its_node_and_a_cluster_without_jobs_that_of_its_nodes() {
    let (service, one) = (Service::new().await, attempt("priced"));
    service.shows(&one, "Running", &json!({ "startTimeUtc": "2026-11-20T12:30:00Z" })).await;
    let tags = job::tags(&service.job(&one, "x").await).clone();
    let counts = json!({ "idleNodeCount": 2, "runningNodeCount": 0 });
    let state = json!({ "vmSize": "Standard_ND40rs_v2", "vmPriority": "LowPriority", "currentNodeCount": 2, "nodeStateCounts": counts, "allocationStateTransitionTime": "2026-11-20T12:24:00Z" });
    let cluster = json!({ "id": format!("{}/computes/GPU", workspace_id()), "name": "gpu", "tags": tags, "properties": { "computeType": "AmlCompute", "properties": state } });
    service.on("GET", "/computes", [(200, json!({ "value": [cluster.clone()] }))]);
    let mut somebodys = cluster.clone();
    somebodys["tags"] = Value::Null;
    let seen = async || service.provider().list().await.expect("listed");
    let listed = seen().await;
    let told = |listed: &[Resource]| listed.iter().map(|one| (one.name.clone(), one.price_per_hour.micros)).collect::<Vec<_>>();
    assert_eq!(told(&listed), [(one.machine_name(), 4_406_400), ("gpu".to_owned(), 4_406_400)], "one node is the job's, one idle");
    assert!(listed[1].attempt == one && listed[1].expires.is_some_and(|leaves| leaves > Timestamp::now()), "{listed:?}");
    let time = |text: &str| text.parse::<Timestamp>().expect("a time");
    assert_eq!((listed[0].since, listed[0].expires), (time("2026-11-20T12:24:00Z"), Some(time("2026-11-20T13:30:00Z"))));
    assert_eq!(service.provider().tidy(true).await, Ok(Vec::new()));
    service.on("GET", "/computes", [(200, json!({ "value": [somebodys] }))]);
    assert_eq!(seen().await, listed[..1], "whosever the cluster is");
    service.on("GET", "/computes", [(200, json!({ "value": [cluster] }))]);
    service.shows(&one, "Completed", &json!({})).await;
    let listed = seen().await;
    assert_eq!(listed.iter().map(|one| (one.name.as_str(), one.price_per_hour.micros)).collect::<Vec<_>>(), [("gpu", 8_812_800)]);
    assert_eq!(service.provider().tidy(true).await, Ok(vec!["gpu".to_owned()]));
}

#[tokio::test]
async fn idle_nodes_of_a_cluster_are_told_of_with_the_job_that_it_stays_for() {
    let (service, gone, stays) = (Service::new().await, attempt("gone"), attempt("stays"));
    let jobs = [service.job(&gone, "Canceled").await, service.job(&stays, "Running").await];
    let state = json!({ "vmSize": "Standard_ND40rs_v2", "vmPriority": "LowPriority", "currentNodeCount": 2 });
    let cluster = json!({ "id": format!("{}/computes/gpu", workspace_id()), "name": "gpu", "tags": job::tags(&jobs[0]), "properties": { "computeType": "AmlCompute", "properties": state } });
    service.on("GET", "/computes", [(200, json!({ "value": [cluster] }))]);
    service.on("GET", "/jobs", [(200, json!({ "value": jobs }))]);
    let details = json!({ "startTimeUtc": "2026-11-20T12:30:00Z" });
    service.on("GET", &format!("/runs/{}/details", stays.machine_name()), [(200, details)]);
    let listed = service.provider().list().await.expect("listed");
    assert!(listed.iter().all(|one| one.attempt == stays), "`down` of the other has no machine left: {listed:?}");
    assert_eq!(listed.iter().map(|one| one.price_per_hour.micros).collect::<Vec<_>>(), [4_406_400; 2], "both are paid for");
}

#[tokio::test]
async fn quota_that_the_jobs_own_cluster_holds_is_room_for_it() {
    let (service, one) = (Service::new().await, attempt("held"));
    let low = "Total Cluster LowPriority Regional vCPUs";
    let usage = json!({ "id": "x", "currentValue": 40, "limit": 40, "name": { "value": low, "localizedValue": low } });
    service.on("GET", &usages(), [(200, json!({ "value": [usage] }))]);
    let name = body::cluster_name(&big().into(), &mark_of(&Party::new("me", service.store.clone())).await);
    let mut job = service.job(&one, "Running").await;
    job["properties"]["computeId"] = json!(format!("{}/computes/{name}", workspace_id()));
    let scale = json!({ "properties": { "scaleSettings": { "maxNodeCount": 1 } } });
    let cluster = |tags: &Value| json!({ "name": name, "tags": tags, "properties": scale });
    let room = async || service.provider().room(&plan_of(big())).await.swap_remove(0);
    assert_eq!(room().await.health, Health::Bad, "there is none");
    let ours = cluster(job::tags(&job));
    for (cluster, jobs, health) in [
        (ours.clone(), json!([]), Health::Good),
        (ours, json!([job.clone()]), Health::Bad),
        (cluster(&Value::Null), json!([]), Health::Bad),
    ] {
        service.on("GET", &format!("/computes/{name}"), [(200, cluster)]);
        service.on("GET", "/jobs", [(200, json!({ "value": jobs }))]);
        let found = room().await;
        assert_eq!(found.health, health, "{found:?}");
    }
}

/// The roles on the workspace say nothing about the subscription.
#[tokio::test]
async fn a_quota_that_the_user_may_not_read_makes_nothing_bad() {
    let service = Service::new().await;
    let why = "The client does not have authorization to perform action 'Microsoft.MachineLearningServices/locations/usages/read'";
    let denied = json!({ "error": { "code": "AuthorizationFailed", "message": why } });
    service.on("GET", &usages(), [(403, denied)]);
    let checked = service.provider().check().await;
    assert_eq!((checked[0].what, checked[0].health), ("workspace", Health::Good), "{checked:?}");
    let room = service.provider().room(&plan_of(big())).await;
    for quota in [&checked[1], &room[0]] {
        assert_eq!((quota.what, quota.health), ("quota", Health::Notice), "{quota:?}");
        assert_eq!(quota.message, format!("not known: {why}"));
        assert!(quota.fix.as_ref().is_some_and(|fix| fix.contains("Reader on the subscription")), "{quota:?}");
    }
    service.on("GET", &usages(), [(404, json!({}))]);
    let checked = service.provider().check().await;
    assert_eq!(checked.iter().map(|found| found.health).collect::<Vec<_>>(), [Health::Good, Health::Notice], "{checked:?}");
    assert!(checked[1].fix.as_ref().is_some_and(|fix| !fix.contains("Reader")), "another reason: {checked:?}");
    service.on("GET", "", [(403, json!({}))]);
    let checked = service.provider().check().await;
    assert_eq!(checked.iter().map(|found| found.health).collect::<Vec<_>>(), [Health::Bad], "the workspace is needed");
}

#[tokio::test]
async fn a_console_that_cannot_be_read_does_not_hide_an_end() {
    let (service, one) = (Service::new().await, attempt("hidden"));
    let error = json!({ "code": "UserError", "message": "User process 'sh' exited with status code 4." });
    let address = format!("{}/log", service.endpoint);
    let details = json!({ "status": "Failed", "error": { "error": error }, "logFiles": { "user_logs/std_log.txt": address } });
    service.shows(&one, "Failed", &details).await;
    for (status, tries) in [(403, 1), (503, 5)] {
        service.on("GET", "/log", [(status, Value::Null)]);
        let before = service.asked().len();
        let seen = service.provider().observe(&one).await.expect("seen");
        assert!(matches!(&seen, Sighting::Unfit { why } if why.contains("its console cannot be read")), "{seen:?}");
        assert_eq!(service.asked()[before..].iter().filter(|asked| asked.path == "/log").count(), tries, "{status}");
    }
}

#[tokio::test]
async fn a_job_that_the_service_ends_at_its_limit_is_waited_for() {
    let (service, one) = (Service::new().await, attempt("late"));
    let mut job = service.job(&one, "CancelRequested").await;
    for (limit, expected) in [("PT60S", Sighting::Alive { agent: true }), ("PT99999H", job::cancelled(""))] {
        job["properties"]["limits"]["timeout"] = limit.into();
        service.on("GET", &format!("/jobs/{}", one.machine_name()), [(200, job.clone())]);
        assert_eq!(service.provider().observe(&one).await, Ok(expected), "{limit}");
    }
}

#[tokio::test]
async fn a_cancel_that_hangs_is_told() {
    let (service, one) = (Service::new().await, attempt("hangs"));
    service.shows(&one, "CancelRequested", &json!({})).await;
    let (path, told) = (format!("/jobs/{}/cancel", one.machine_name()), format!("not over after 0 s: {}", one.machine_name()));
    service.on("POST", &path, [(200, Value::Null)]);
    let error = service.provider().destroy(&one.job).await.expect_err("it hangs");
    assert!(error.message.contains(&told) && error.fix.is_some(), "{error:?}");
    service.accepted("POST", &path, &format!("{}/outcome", service.endpoint), (202, Value::Null));
    let error = service.provider().destroy(&one.job).await.expect_err("it hangs");
    assert!(error.message.contains(&told) && error.fix.is_some(), "{error:?}");
    assert!(!service.asked().iter().any(|asked| asked.path == "/outcome"), "the job itself tells");
}

#[tokio::test]
async fn a_refused_token_is_replaced_once_and_a_busy_service_is_asked_again() {
    let (service, one) = (Service::new().await, attempt("line"));
    let path = format!("/jobs/{}", one.machine_name());
    service.on("GET", &path, [(401, json!({})), (429, json!({})), (503, json!({})), (404, json!({}))]);
    assert_eq!(service.provider().observe(&one).await, Ok(Sighting::Gone));
    let tokens: Vec<_> = service.asked().into_iter().filter_map(|asked| asked.token).collect();
    assert_eq!(tokens, ["Bearer token-1", "Bearer token-2", "Bearer token-2", "Bearer token-2"]);
    assert_eq!(*service.tokens.lock().expect("no panic"), 2);
    service.on("GET", &path, [(401, json!({}))]);
    assert_eq!(service.provider().observe(&one).await.map_err(|error| error.class), Err(Class::Denied));
}

/// Gives out no token.
#[derive(Debug)]
struct Away(ErrorKind);

#[async_trait]
impl TokenCredential for Away {
    async fn get_token(&self, _: &[&str], _: Option<TokenRequestOptions<'_>>) -> azure_core::Result<AccessToken> {
        Err(azure_core::Error::with_message(self.0.clone(), "no token"))
    }
}

#[tokio::test]
async fn a_sign_in_that_is_away_for_a_moment_is_no_refusal() {
    let (service, one) = (Service::new().await, attempt("away"));
    let mut provider = service.provider();
    for (kind, class) in [(ErrorKind::Connection, Class::Network), (ErrorKind::Credential, Class::Denied)] {
        provider.client.sign_in = Ok(TokenSource::new(Arc::new(Away(kind)), MANAGEMENT));
        let seen = provider.observe(&one).await.map_err(|error| (error.class, error.message));
        assert_eq!(seen, Err((class, "no token".to_owned())));
    }
}

#[tokio::test]
async fn the_console_is_read_piece_by_piece() {
    let (service, one) = (Service::new().await, attempt("console"));
    let address = format!("{}/log", service.endpoint);
    service.shows(&one, "Failed", &json!({ "logFiles": { "user_logs/std_log_process_00.txt": address } })).await;
    let part = (206, json!("x"), vec![("content-range", "bytes 5-7/8".to_owned())]);
    service.answers.lock().expect("no panic").insert(("GET", "/log".to_owned()), VecDeque::from([part]));
    let console = service.provider().console(&one, 5).await.expect("read").expect("a console");
    assert_eq!((console.text.as_str(), console.start, console.next), ("\"x\"", 5, 8));
    assert_eq!(service.only("GET", "/log").token, None, "the address is signed, and gets no token");
    assert_eq!(service.provider().console(&attempt("nothing"), 0).await.map(|console| console.is_none()), Ok(true));
}

#[tokio::test]
async fn images_go_into_the_registry_of_the_workspace() {
    let service = Service::new().await;
    let id = recorded("workspace-get").pop().expect("a call")["response"]["properties"]["containerRegistry"].clone();
    for (id, registry) in [(id, Some("acr1.azurecr.io")), (json!("acr1.example.org/x"), None), (Value::Null, None)] {
        service.on("GET", "", [(200, json!({ "location": "eastus", "properties": { "containerRegistry": id } }))]);
        assert_eq!(service.provider().registry().await, Ok(registry.map(str::to_owned)), "{id}");
    }
}

#[tokio::test]
async fn a_workspace_that_is_not_there_is_said() {
    let service = Service::new().await;
    let low = "Total Cluster LowPriority Regional vCPUs";
    let usage = json!({ "id": "x", "currentValue": 0, "limit": 39, "name": { "value": low, "localizedValue": low } });
    service.on("GET", &usages(), [(200, json!({ "value": [usage] }))]);
    let found = service.provider().check().await;
    assert_eq!(found[0].message, "ws1 of rg1 (by environment AZUREML_ARM_*) in eastus");
    let room = service.provider().room(&plan_of(big())).await;
    assert_eq!(
        (room[0].health, room[0].message.as_str()),
        (Health::Bad, "eastus: no room: low-priority vCPUs of all sizes: 0 of 39 used, 40 needed")
    );
    for (spec, is_told) in [
        (big(), true),
        (AzuremlSpec { identity: assigned().parse().ok(), ..big() }, false),
        (AzuremlSpec { compute: Some(Placement::Serverless), ..big() }, false),
        (AzuremlSpec { cluster: "gpu2".parse().ok(), ..big() }, false),
    ] {
        let room = service.provider().room(&plan_of(spec)).await;
        let told = room.iter().find(|finding| finding.what == "identity");
        assert_eq!(told.map(|finding| finding.health), is_told.then_some(Health::Notice), "{room:?}");
        assert!(told.is_none_or(|finding| finding.fix.as_ref().is_some_and(|fix| fix.contains("identity into"))), "{room:?}");
    }
    service.on("GET", "", [(404, json!({ "error": { "code": "ResourceNotFound", "message": "no such workspace" } }))]);
    assert!(service.provider().check().await[0].message.ends_with("no such workspace"));
}

#[test]
fn a_job_that_signs_in_has_nothing_secret() {
    use crate::store::azure::{ENDPOINT, SIGNATURE};
    let variables = |identity: &str| {
        let given = vec![
            (ENDPOINT, Some("https://account".to_owned())),
            ("AZURE_STORAGE_KEY", None),
            (SIGNATURE, Some("secret".to_owned())),
        ];
        body::variables(given, &identity.parse().expect("an identity")).into_keys().collect::<Vec<_>>()
    };
    for identity in ["managed", "user", &assigned()] {
        assert_eq!(variables(identity), [ENDPOINT], "{identity}");
    }
    assert_eq!(variables("none"), [SIGNATURE, ENDPOINT]);
}

#[test]
fn a_plan_without_a_minute_to_train_is_refused() {
    let plan = |seconds| Plan { ttl: Span(Duration::from_secs(seconds)), ..plan_of(big()) };
    assert_eq!(time_to_work(&plan(870)), Ok(Duration::from_secs(90)), "the agent ends before the service ends it");
    assert!(time_to_work(&plan(869)).is_err_and(|error| error.class == Class::Invalid));
}
