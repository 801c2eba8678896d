//! The provider against the simulated service, over real connections, with jobs of real processes.

use std::{fs, os::unix::fs::PermissionsExt};

use super::*;
use crate::{
    devcloud::azureml::{Devcloud, Options, Script, Workspace},
    provider::{Cursor, Output, conformance::World},
    store::Store,
};

mod gangs;
mod histories;

/// In place of ftctl in a node: counts its starts, and works until it is told that it may end.
const AGENT: &str = r#"#!/bin/sh
echo "$*" >"$HOME/arguments"
echo "$RANK of $WORLD_SIZE on $AZUREML_CR_NODE_RANK" >"$HOME/rank"
echo started >>"$HOME/starts"
echo hello
until [ -e "$HOME/finish" ]; do sleep 0.05; done
"#;

struct Place {
    devcloud: Arc<Devcloud>,
    environment: BTreeMap<&'static str, String>,
    state: tempfile::TempDir,
    store: Arc<dyn Store>,
    placement: Placement,
    /// The time until a node is found.
    allocation: Duration,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.devcloud.shut_down();
        if !std::thread::panicking() {
            assert_eq!(self.devcloud.wrong(), [""; 0]);
        }
    }
}

/// Simulated time, which a sleep moves ahead.
#[async_trait]
impl Clock for Devcloud {
    fn now(&self) -> Timestamp {
        Devcloud::now(self)
    }

    async fn sleep(&self, duration: Duration) {
        self.skip(duration);
    }
}

impl Place {
    async fn new(script: Value) -> Self {
        let state = tempfile::tempdir().expect("a directory");
        let executable = state.path().join("agent");
        fs::write(&executable, AGENT).expect("written");
        fs::set_permissions(&executable, fs::Permissions::from_mode(0o755)).expect("executable");
        let workspace = Workspace {
            subscription: SUBSCRIPTION.to_owned(),
            group: "rg1".to_owned(),
            name: "ws1".to_owned(),
            location: "eastus".to_owned(),
        };
        let script: Script = serde_json::from_value(script).expect("a script");
        let allocation = script.allocation.0;
        let options = Options {
            listen: ([127, 0, 0, 1], 0).into(),
            workspace,
            speed: 60.0,
            state: state.path().to_owned(),
            script,
            executable,
            variables: std::env::vars_os().filter(|(name, _)| name == "PATH").collect(),
            engine: false,
            tls: false,
        };
        let devcloud = Devcloud::start(options).await.expect("it listens");
        let environment = devcloud.client_environment();
        Self { devcloud, environment, state, store: Arc::new(MemoryStore::new()), placement: Placement::Cluster, allocation }
    }

    fn provider_of(&self, party: Party) -> Azureml {
        let variables = |name: &str| self.environment.get(name).cloned();
        let mut azureml = signed_in(&variables, party);
        azureml.client.pace.tries = [Duration::from_millis(1), Duration::from_millis(2)];
        azureml.client.pace.look = Duration::from_millis(20);
        azureml
    }

    fn provider(&self) -> Azureml {
        self.provider_of(Party::new("me", self.store.clone()))
    }

    fn home(&self, attempt: &AttemptId) -> PathBuf {
        self.node(attempt, 0)
    }

    /// The directory of one of the attempt's nodes.
    fn node(&self, attempt: &AttemptId, node: usize) -> PathBuf {
        self.state.path().join(attempt.machine_name()).join(format!("life-0/node-{node}"))
    }

    /// Waits until the attempt is as it shall be, and answers how.
    async fn until(&self, attempt: &AttemptId, holds: impl Fn(&Sighting) -> bool) -> Sighting {
        let begun = Instant::now();
        loop {
            let seen = self.provider().observe(attempt).await.expect("seen");
            if holds(&seen) {
                return seen;
            }
            assert!(begun.elapsed() < Duration::from_secs(120), "{}: {seen:?}", attempt.machine_name());
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// Pulls one of devcloud's levers.
    async fn pull(&self, method: reqwest::Method, lever: &str) -> Value {
        let (here, secret) = (&self.environment["FTCTL_ENDPOINT_AZUREML"], &self.environment["IDENTITY_HEADER"]);
        let request = reqwest::Client::new().request(method, format!("{here}/devcloud/{lever}")).bearer_auth(secret);
        let answer = request.send().await.expect("an answer").error_for_status().expect("done");
        serde_json::from_slice(&answer.bytes().await.expect("a body")).expect("JSON")
    }

    /// Takes away one of the attempt's nodes.
    async fn take(&self, attempt: &AttemptId, node: usize) {
        self.pull(reqwest::Method::POST, &format!("preempt?job={}&node={node}", attempt.machine_name())).await;
    }

    async fn provisioned(&self, attempt: &AttemptId) {
        self.provider().provision(attempt, &self.plan(), &image()).await.expect("provisioned");
    }
}

#[async_trait]
impl World for Place {
    fn compute(&self) -> Compute {
        Compute::Azureml(Box::new(AzuremlSpec { compute: Some(self.placement), ..AzuremlSpec::default() }.into()))
    }

    fn client(&self) -> Arc<dyn Provider> {
        Arc::new(self.provider())
    }

    fn elsewhere(&self, everybody: bool) -> Arc<dyn Provider> {
        Arc::new(self.provider_of(Party { everybody, ..Party::new("somebody", Arc::new(MemoryStore::new())) }))
    }

    async fn finish(&self, attempt: &AttemptId) {
        let begun = Instant::now();
        while self.starts(attempt) == 0 {
            assert!(begun.elapsed() < Duration::from_secs(120), "no agent of {}", attempt.machine_name());
            sleep(Duration::from_millis(20)).await;
        }
        fs::write(self.home(attempt).join("finish"), "").expect("written");
        let name = attempt.machine_name();
        let client = self.provider().client;
        while client.find(&["jobs", &name]).await.expect("seen").as_ref().is_some_and(job::is_live) {
            assert!(begun.elapsed() < Duration::from_secs(120), "{name} does not end");
            sleep(Duration::from_millis(20)).await;
        }
    }

    fn image(&self) -> TrainerImage {
        image()
    }

    fn starts(&self, attempt: &AttemptId) -> usize {
        fs::read_to_string(self.home(attempt).join("starts")).map_or(0, |text| text.lines().count())
    }

    fn remembers(&self) -> bool {
        true
    }

    fn is_service(&self) -> bool {
        true
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_is_a_job_service() {
    conformance::services(&Place::new(json!({})).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_is_a_job_service_without_clusters() {
    let mut place = Place::new(json!({})).await;
    place.placement = Placement::Serverless;
    conformance::services(&place).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_jobs_share_a_cluster_that_goes_with_the_last() {
    let (place, one, two) = (Place::new(json!({})).await, attempt("one"), attempt("two"));
    place.provisioned(&one).await;
    place.provisioned(&two).await;
    for attempt in [&one, &two] {
        place.until(attempt, |seen| *seen == Sighting::Alive { agent: true }).await;
    }
    let clusters = async || place.provider().clusters().await.expect("listed").len();
    assert_eq!(clusters().await, 1, "with room for both");
    // A job runs from when its process is started, which has done nothing then.
    place.until(&one, |_| place.starts(&one) == 1).await;
    let arguments = fs::read_to_string(place.home(&one).join("arguments")).expect("written");
    let (begin, end) = (format!("agent --job {} --attempt 1 --asked ", one.job), format!(" --store {}", place.store.url()));
    assert!(arguments.starts_with(&begin) && arguments.trim().ends_with(&end), "{arguments}");
    let price = place.provider().price(&place.plan()).await.expect("a price");
    assert!(price.source.is_some_and(|source| source.starts_with("Azure's retail prices of")));
    let listed = place.provider().list().await.expect("listed");
    assert_eq!(listed.iter().map(|resource| resource.price_per_hour).collect::<Vec<_>>(), [price.per_hour; 2]);
    place.provider().destroy(&one.job).await.expect("destroyed");
    assert_eq!(clusters().await, 1, "the other needs it");
    place.provider().destroy(&two.job).await.expect("destroyed");
    assert_eq!((clusters().await, place.provider().list().await), (0, Ok(Vec::new())));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_that_somebody_else_is_widening_is_waited_for() {
    let (place, [one, two]) = (Place::new(json!({ "operation": "60s" })).await, ["one", "two"].map(attempt));
    place.provisioned(&one).await;
    let asked = async || place.pull(reqwest::Method::GET, "calls").await.to_string().matches("Compute_CreateOrUpdate").count();
    let (before, other, plan) = (asked().await, place.provider(), place.plan());
    let (wanted, mark) = (other.wanted(&plan).expect("a plan of here"), other.mark().await.expect("known"));
    let url = other.client.url(&["computes", &body::cluster_name(wanted, &mark)]).expect("an address");
    let shown = other.client.call(Call::put(url, body::cluster(wanted, "eastus", 2, &one, &mark))).await.expect("accepted");
    assert_eq!(shown["properties"]["provisioningState"], "Updating");
    let begun = place.devcloud.now();
    place.provisioned(&two).await;
    assert!(crate::job::clock::between(begun, place.devcloud.now()) >= Duration::from_secs(59), "its operation was not waited for");
    assert_eq!(asked().await, before + 1, "the other's change was enough");
    for attempt in [&one, &two] {
        place.until(attempt, |seen| *seen == Sighting::Alive { agent: true }).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_is_done_is_not_cancelled_while_the_service_keeps_its_outputs() {
    let place = Place::new(json!({ "finalization": "60s" })).await;
    for (name, waits, status) in [("hasty", false, "Canceled"), ("patient", true, "Completed")] {
        let (one, provider) = (attempt(name), place.provider());
        let stands = async || job::status(&provider.find(&one).await.expect("seen").expect("there")).to_owned();
        place.provisioned(&one).await;
        place.until(&one, |_| place.starts(&one) == 1).await;
        fs::write(place.home(&one).join("finish"), "").expect("written");
        let begun = Instant::now();
        while stands().await != "Finalizing" {
            assert!(begun.elapsed() < Duration::from_secs(120), "it does not end");
            sleep(Duration::from_millis(20)).await;
        }
        if waits {
            provider.settle(&one).await.expect("settled");
        }
        provider.destroy(&one.job).await.expect("destroyed");
        assert_eq!(stands().await, status, "{name}");
    }
}

#[tokio::test]
async fn a_job_that_never_ends_is_not_waited_for_longer_than_its_time() {
    let (service, one) = (Service::new().await, attempt("stuck"));
    service.shows(&one, "Finalizing", &json!({})).await;
    let begun = Instant::now();
    service.provider().settle(&one).await.expect("given up");
    assert!(begun.elapsed() >= Duration::from_millis(300));
    assert_eq!(service.provider().settle(&attempt("none")).await, Ok(()), "there is nothing to wait for");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_preemption_and_an_image_that_cannot_be_pulled_are_told_apart() {
    let trouble = json!([{ "job": "-a2", "kind": "no_image" }]);
    let place = Place::new(json!({ "notice": "1s", "troubles": trouble })).await;
    let (one, two) = (attempt("taken"), AttemptId::new(&attempt("taken").job, 2));
    place.provisioned(&one).await;
    place.until(&one, |_| place.starts(&one) == 1).await;
    place.take(&one, 0).await;
    assert_eq!(
        place.until(&one, |seen| matches!(seen, Sighting::Dead { .. })).await,
        Sighting::Dead { why: "preempted".to_owned() }
    );
    let console = place.provider().console(&one, 0).await.expect("read").expect("a console");
    assert_eq!(console.text, "hello\n");
    place.provisioned(&two).await;
    let seen = place.until(&two, |seen| matches!(seen, Sighting::Dead { .. } | Sighting::Unfit { .. })).await;
    assert!(matches!(&seen, Sighting::Unfit { why } if why.contains("Docker image")), "{seen:?}");
    place.provider().destroy(&one.job).await.expect("destroyed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_that_may_not_pull_are_told_with_the_role_and_the_command() {
    let place = Place::new(json!({ "troubles": [{ "job": "-a1", "kind": "no_pull" }] })).await;
    for (registry, advice) in [
        (
            "acr1.azurecr.io",
            "needs the role AcrPull on the registry acr1: `az role assignment create --assignee 00000000-0000-0000-0000-0000000000cc \
             --role AcrPull --scope \"$(az acr show --name acr1 --query id --output tsv)\"`",
        ),
        ("registry.example", "Managed Identity with `AcrPull` access to the ACR is assigned to the compute."),
    ] {
        let (one, reference) =
            (attempt(registry.split('.').next().expect("a word")), reference().replace("acr1.azurecr.io", registry));
        let image = TrainerImage::Image { reference };
        place.provider().provision(&one, &place.plan(), &image).await.expect("provisioned");
        let seen = place.until(&one, |seen| matches!(seen, Sighting::Unfit { .. })).await;
        assert!(matches!(&seen, Sighting::Unfit { why } if why.contains(registry) && why.ends_with(advice)), "{seen:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_without_rights_says_so_once_and_is_not_tried_again() {
    let (place, one) = (Place::new(json!({})).await, attempt("rights"));
    let why = "error: azure://account/box: this identity is not allowed to read it";
    fs::write(place.state.path().join("agent"), format!("#!/bin/sh\necho '{why}'\nexit 4\n")).expect("written");
    place.provisioned(&one).await;
    let seen = place.until(&one, |seen| !matches!(seen, Sighting::Queued { .. } | Sighting::Alive { .. })).await;
    assert_eq!(seen, Sighting::Unfit { why: why.to_owned() });
    place.provider().destroy(&one.job).await.expect("destroyed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_cannot_be_cancelled_goes_with_its_cluster_unless_another_needs_that() {
    let place = Place::new(json!({ "troubles": [{ "job": "-a1", "kind": "no_cancel" }] })).await;
    let (one, two) = (attempt("deaf"), AttemptId::new(&attempt("other").job, 2));
    let impatient = || {
        let mut provider = place.provider();
        provider.client.pace.end = Duration::from_millis(200);
        provider
    };
    for attempt in [&one, &two] {
        place.provisioned(attempt).await;
        place.until(attempt, |seen| *seen == Sighting::Alive { agent: true }).await;
    }
    let error = impatient().destroy(&one.job).await.expect_err("it goes on");
    assert!(error.message.contains("not over after") && error.message.contains(&one.machine_name()), "{error}");
    assert_eq!(place.provider().observe(&two).await, Ok(Sighting::Alive { agent: true }), "the other is left alone");
    place.provider().destroy(&two.job).await.expect("destroyed");
    impatient().destroy(&one.job).await.expect("destroyed");
    assert!(matches!(place.provider().observe(&one).await, Ok(Sighting::Cancelled { .. })));
    assert_eq!(place.provider().list().await, Ok(Vec::new()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_nobody_saw_has_a_beginning_and_a_node_that_is_prepared_has_a_price() {
    let (place, one) = (Place::new(json!({ "boot": "300s" })).await, attempt("unseen"));
    place.provisioned(&one).await;
    let provider = place.provider();
    let listed = async || provider.list().await.expect("listed").pop().expect("there");
    let asked = Instant::now();
    while listed().await.price_per_hour == Money::ZERO {
        assert!(asked.elapsed() < Duration::from_secs(60), "no node");
        sleep(Duration::from_millis(20)).await;
    }
    let prepared = listed().await.since;
    assert!(matches!(provider.observe(&one).await, Ok(Sighting::Queued { .. })));
    assert_eq!(provider.began(&one).await, Ok(None), "its programs did not begin");
    place.devcloud.skip(Duration::from_secs(300));
    place.finish(&one).await;
    let began = provider.began(&one).await.expect("known").expect("it did");
    assert!(began <= prepared, "reckoned: {began}, {prepared}");
    provider.destroy(&one.job).await.expect("destroyed");
    assert_eq!(provider.began(&attempt("nothing")).await, Ok(None));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_cluster_lacks_is_said_while_a_job_waits() {
    let script = json!({ "quotas": { "TotalLowPriorityCores": 0 }, "quota_refusal": "allocation" });
    let (place, one) = (Place::new(script).await, attempt("lacks"));
    place.provisioned(&one).await;
    let said = |seen: &Sighting| matches!(seen, Sighting::Queued { why, .. } if why.to_lowercase().contains("quota"));
    place.until(&one, said).await;
    let room = place.provider().room(&place.plan()).await;
    assert_eq!(room[0].health, Health::Bad, "{room:?}");
    place.provider().destroy(&one.job).await.expect("destroyed");
    let refused = Place::new(json!({ "quotas": { "TotalLowPriorityCores": 0 } })).await;
    let error = refused.provider().provision(&one, &refused.plan(), &image()).await.expect_err("refused");
    assert_eq!(error.class, Class::Quota, "{error}");
    let short = Place::new(json!({ "stock_outs": ["Standard_NC4as_T4_v3"] })).await;
    short.provisioned(&one).await;
    short.until(&one, |seen| matches!(seen, Sighting::Queued { why, .. } if why.contains("0 of 1 nodes"))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_without_a_job_is_tidied_away() {
    let (place, one) = (Place::new(json!({})).await, attempt("left"));
    let provider = place.provider();
    let plan = place.plan();
    let mark = mark_of(&provider.party).await;
    provider.prepared(&one, provider.wanted(&plan).expect("ours"), 1, &mark).await.expect("made");
    let name = body::cluster_name(&AzuremlPlan::default(), &mark);
    assert_eq!(provider.tidy(true).await, Ok(vec![name.clone()]));
    let other = place.provider_of(Party::new("bob", place.store.clone()));
    assert_eq!(other.tidy(false).await, Ok(Vec::new()), "it is another's");
    assert_eq!(provider.tidy(false).await, Ok(vec![name]));
    assert_eq!(provider.tidy(false).await, Ok(Vec::new()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_that_the_user_has_outlives_the_job_on_it_untouched() {
    let (place, one) = (Place::new(json!({})).await, attempt("guest"));
    let provider = place.provider();
    let mut mine = body::cluster(&AzuremlPlan::default(), "eastus", 2, &one, &mark_of(&provider.party).await);
    mine["tags"] = json!({ "team": "research" });
    provider.client.change(Call::put(provider.client.url(&["computes", "mine"]).expect("a place"), mine)).await.expect("made");
    let made = async || provider.client.find(&["computes", "mine"]).await.expect("seen").expect("it is there");
    let before = made().await;
    let plan = plan_of(AzuremlSpec { cluster: "mine".parse().ok(), ..AzuremlSpec::default() });
    provider.provision(&one, &plan, &image()).await.expect("provisioned");
    place.until(&one, |seen| *seen == Sighting::Alive { agent: true }).await;
    let job = provider.find(&one).await.expect("seen").expect("there");
    assert!(job::cluster(&job).is_some_and(|id| id.ends_with("/computes/mine")), "{job}");
    assert_eq!(provider.tidy(false).await, Ok(Vec::new()));
    provider.destroy(&one.job).await.expect("destroyed");
    assert_eq!(provider.tidy(true).await, Ok(Vec::new()));
    assert_eq!(provider.tidy(false).await, Ok(Vec::new()));
    assert_eq!(provider.list().await, Ok(Vec::new()), "its idle node is its owner's");
    let (mut before, mut after) = (before, made().await);
    for cluster in [&mut before, &mut after] {
        // The numbers of its nodes, and when they changed.
        let state = cluster["properties"]["properties"].as_object_mut().expect("a state");
        state.retain(|name, _| !name.ends_with("NodeCount") && !name.ends_with("Counts") && !name.starts_with("allocationState"));
    }
    assert_eq!(before, after);
    let calls = place.pull(reqwest::Method::GET, "calls").await;
    let changes = calls.as_array().expect("calls").iter().filter_map(|call| call["call"].as_str());
    let changes = changes.filter(|call| ["Compute_CreateOrUpdate", "Compute_Update", "Compute_Delete"].contains(call));
    assert_eq!(changes.collect::<Vec<_>>(), ["Compute_CreateOrUpdate"], "its owner's");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_process_is_read_through_every_retry_and_the_service_where_it_is_to_blame() {
    let trouble = json!([{ "job": "-a2", "kind": "no_image" }]);
    let place = Place::new(json!({ "notice": "1s", "troubles": trouble })).await;
    let (one, two) = (attempt("ranks"), AttemptId::new(&attempt("ranks").job, 2));
    place.provisioned(&one).await;
    place.until(&one, |_| place.starts(&one) == 1).await;
    let (provider, mut cursor) = (place.provider(), Cursor::new());
    let output = |node, text: &str| Output { node, text: text.to_owned() };
    assert_eq!(provider.output(&one, None, &mut cursor).await, Ok(vec![output(Some(0), "hello\n")]));
    place.pull(reqwest::Method::POST, &format!("preempt?job={}&restarts=true", one.machine_name())).await;
    let begun = Instant::now();
    let mut again = Vec::new();
    while again.is_empty() {
        assert!(begun.elapsed() < Duration::from_secs(120), "it is not started again");
        sleep(Duration::from_millis(20)).await;
        again = provider.output(&one, Some(0), &mut cursor).await.expect("read");
    }
    assert_eq!(again, [output(Some(0), "hello\n")], "of the second life, and only that");
    assert_eq!(provider.output(&one, Some(1), &mut Cursor::new()).await, Ok(Vec::new()));
    place.provisioned(&two).await;
    place.until(&two, |seen| matches!(seen, Sighting::Unfit { .. })).await;
    let said = provider.output(&two, None, &mut Cursor::new()).await.expect("read");
    assert!(matches!(&*said, [Output { node: None, text }] if text.contains("Failed to pull")), "{said:?}");
    let console = provider.console(&two, 0).await.expect("read").expect("a console");
    assert_eq!(console.text, said[0].text, "kept with the job, which had no log");
    assert_eq!(provider.output(&AttemptId::new(&one.job, 3), None, &mut Cursor::new()).await, Ok(Vec::new()));
    provider.destroy(&one.job).await.expect("destroyed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_workspace_knows_a_store_and_a_model_once_and_by_no_key() {
    let (place, one) = (Place::new(json!({})).await, attempt("known"));
    let mut provider = place.provider();
    assert!(provider.publish(&Publication::Store).await.is_err(), "it is in memory");
    let at = |url: &str| azure::named(url, &|_| None).expect("a container");
    for (url, account, endpoint, protocol) in [
        ("azure://acct1/train", "acct1", "core.windows.net", "https"),
        ("http://127.0.0.1:10000/devstoreaccount1/jobs", "devstoreaccount1", "127.0.0.1:10000", "http"),
    ] {
        provider.container = Some(at(url));
        let name = provider.publish(&Publication::Store).await.expect("registered");
        assert_eq!(provider.publish(&Publication::Store).await, Ok(name.clone()));
        let name = name.strip_prefix("datastore ").expect("its name");
        let kept = provider.client.find(&["datastores", name]).await.expect("seen").expect("there");
        let properties = &kept["properties"];
        assert_eq!(properties["credentials"], json!({ "credentialsType": "None" }));
        let told = ["accountName", "endpoint", "protocol"].map(|key| properties[key].as_str().expect("text"));
        assert_eq!(told, [account, endpoint, protocol]);
    }
    let model = |perplexity: Option<&str>| Publication::Model {
        attempt: one.clone(),
        receipt: "0.42 USD".to_owned(),
        perplexity: perplexity.map(str::to_owned),
    };
    let name = provider.publish(&model(Some("23.100"))).await.expect("registered");
    assert_eq!(provider.publish(&model(None)).await, Ok(name.clone()), "it is there");
    let version = name.strip_prefix(&format!("model {}:", one.job.name())).expect("its name");
    assert!(version.parse::<i32>().is_ok_and(|version| version > 0), "{version}");
    let kept = provider.client.find(&["models", one.job.name(), "versions", version]).await.expect("seen").expect("there");
    let tags = &kept["properties"]["tags"];
    assert_eq!((&tags["ftctl-job"], &tags["ftctl-perplexity"]), (&json!(one.job.as_str()), &json!("23.100")));
    assert_eq!(tags["ftctl-receipt"], "0.42 USD");
    let other = Publication::Model { attempt: AttemptId::new(&one.job, 2), receipt: String::new(), perplexity: None };
    assert_eq!(provider.publish(&other).await.map_err(|error| error.class), Err(Class::Conflict));
}
