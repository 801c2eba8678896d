//! `ftctl devcloud` as a whole: the program, its machines as processes, and the clouds' own clients where there are such.
//!
//! One file for tests that start the program in the same way.

mod common;

use std::{
    io::{BufRead, BufReader, Write as _},
    process::{Child, Command, Stdio},
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use ftctl::job::digest::Digest;
use serde_json::{Value, json};

use common::{
    Runs, Said, Sandbox, azurite, proxy,
    registry::{Auth, Registry},
    with_cargo,
};

/// A running devcloud, and its word to its clients.
struct Running {
    /// Its name, which is that of the backend.
    cloud: &'static str,
    child: Child,
    environment: Vec<(String, String)>,
    sandbox: Sandbox,
}

impl Running {
    fn start(script: &Value) -> Self {
        Self::start_with(script, |command| command)
    }

    fn start_with(script: &Value, change: impl Fn(&mut Command) -> &mut Command) -> Self {
        Self::start_cloud("gce", 5, script, change)
    }

    /// A cloud that says so many variables to its clients.
    fn start_cloud(cloud: &'static str, variables: usize, script: &Value, change: impl Fn(&mut Command) -> &mut Command) -> Self {
        let sandbox = Sandbox::new();
        sandbox.write("script.json", script.to_string());
        let mut command = sandbox.command(&["devcloud", cloud, "--script", "script.json", "--speed", "10"]);
        let mut child = change(&mut command).stdout(Stdio::piped()).spawn().expect("ftctl runs");
        let lines = BufReader::new(child.stdout.take().expect("piped")).lines().take(variables);
        let environment = lines
            .map(|line| {
                line.expect("a line").split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned())).expect("a pair")
            })
            .collect();
        Self { cloud, child, environment, sandbox }
    }

    fn variable(&self, name: &str) -> &str {
        &self.environment.iter().find(|(known, _)| known == name).expect(name).1
    }

    /// One that trusts whom the cloud's clients trust.
    fn client(&self) -> reqwest::Client {
        let Some((_, file)) = self.environment.iter().find(|(name, _)| name == "SSL_CERT_FILE") else {
            return reqwest::Client::new();
        };
        let certificates = reqwest::Certificate::from_pem_bundle(&std::fs::read(file).expect("a file")).expect("certificates");
        let builder = certificates.into_iter().fold(reqwest::Client::builder(), reqwest::ClientBuilder::add_root_certificate);
        builder.build().expect("a client")
    }

    /// Status and body.
    fn ask(&self, method: &str, path: &str, body: &Value) -> (u16, Value) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let [here, secret] = match self.cloud {
                "gce" => ["FTCTL_ENDPOINT_GCE", "CLOUDSDK_AUTH_ACCESS_TOKEN"],
                _ => ["FTCTL_ENDPOINT_AZUREML", "IDENTITY_HEADER"],
            };
            let url = format!("{}{path}", self.variable(here));
            let method = method.parse().expect("a method");
            let request = self.client().request(method, url).bearer_auth(self.variable(secret)).body(body.to_string());
            let answer = request.send().await.expect("an answer");
            let status = answer.status().as_u16();
            (status, serde_json::from_slice(&answer.bytes().await.expect("a body")).unwrap_or_default())
        })
    }

    fn insert(&self, name: &str, startup: &str) {
        let zone = "/compute/v1/projects/devcloud/zones/us-central1-a";
        let body = json!({
            "name": name,
            "machineType": format!("{zone}/machineTypes/custom-12-79872"),
            "guestAccelerators": [{ "acceleratorType": format!("{zone}/acceleratorTypes/nvidia-tesla-v100"), "acceleratorCount": 1 }],
            "disks": [{ "boot": true, "autoDelete": true, "initializeParams": { "diskSizeGb": "200" } }],
            "scheduling": {
                "provisioningModel": "SPOT", "instanceTerminationAction": "DELETE", "automaticRestart": false, "onHostMaintenance": "TERMINATE",
            },
            "labels": { "ftctl-job": "quick-bcdfgh" },
            "metadata": { "items": [
                { "key": "startup-script", "value": startup }, { "key": "enable-guest-attributes", "value": "TRUE" }, { "key": "word", "value": "hello" },
            ] },
        });
        let (status, answer) = self.ask("POST", &format!("{zone}/instances"), &body);
        assert_eq!(status, 200, "{answer}");
    }

    fn instance(&self, name: &str) -> Option<Value> {
        let (status, instance) =
            self.ask("GET", &format!("/compute/v1/projects/devcloud/zones/us-central1-a/instances/{name}"), &Value::Null);
        (status == 200).then_some(instance)
    }

    fn serial(&self, name: &str) -> String {
        let path = format!("/compute/v1/projects/devcloud/zones/us-central1-a/instances/{name}/serialPort");
        self.ask("GET", &path, &Value::Null).1["contents"].as_str().unwrap_or_default().to_owned()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Nobody may have asked what the service's own description does not have.
        if self.cloud == "azureml" && !std::thread::panicking() {
            let (_, calls) = self.ask("GET", "/devcloud/calls", &Value::Null);
            let wrong = calls.as_array().expect("calls").iter().find(|call| call["wrong"].is_string());
            assert_eq!(wrong, None);
        }
        let _ = Command::new("kill").arg(self.child.id().to_string()).status();
        let _ = self.child.wait();
    }
}

/// A machine needs a moment; one that needs minutes has failed.
fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{what} did not happen within a minute");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_machine_runs_its_startup_script_and_hears_of_its_end() {
    let devcloud = Running::start(&json!({ "schema": "ftctl.devcloud-script/1", "boot": "1s", "notice": "20s" }));
    let startup = r#"
        metadata="http://$GCE_METADATA_HOST/computeMetadata/v1/instance"
        get() { curl -sf -H 'Metadata-Flavor: Google' "$metadata/$1"; }
        trap 'echo "saw the power button"; exit 0' TERM
        nvidia-smi
        echo "the word is $(get attributes/word)"
        curl -s -o /dev/null -w 'without the header: %{http_code}\n' "$metadata/name"
        curl -sf -X PUT -H 'Metadata-Flavor: Google' --data training "$metadata/guest-attributes/ftctl/phase"
        get 'preempted?wait_for_change=true' >notice
        echo "preempted: $(cat notice)"
        while :; do sleep 0.1; done
    "#;
    devcloud.insert("vm-a1", startup);
    wait_until("the start", || devcloud.serial("vm-a1").contains("the word is hello"));
    let attributes = "/compute/v1/projects/devcloud/zones/us-central1-a/instances/vm-a1/getGuestAttributes";
    wait_until("the guest attribute", || devcloud.ask("GET", &format!("{attributes}?queryPath=ftctl/"), &Value::Null).0 == 200);
    let serial = devcloud.serial("vm-a1");
    assert!(serial.contains("GPU 0: simulated\r\n") && serial.contains("without the header: 403\r\n"), "{serial}");

    assert_eq!(devcloud.ask("POST", "/devcloud/preempt?instance=vm-a1", &Value::Null).0, 200);
    wait_until("the end of the machine", || devcloud.instance("vm-a1").is_none());
    let filter = "filter=operationType%3Dcompute.instances.preempted";
    let operations = devcloud.ask("GET", &format!("/compute/v1/projects/devcloud/aggregated/operations?{filter}"), &Value::Null).1;
    assert_eq!(operations["items"]["zones/us-central1-a"]["operations"][0]["user"], "system");
    let bill = devcloud.ask("GET", "/devcloud/bill", &Value::Null).1;
    assert_eq!(bill["machines"][0]["exists"], false);
    assert!(bill["machines"][0]["running_seconds"].as_u64().expect("seconds") > 0, "{bill}");
}

#[test]
fn a_machine_that_switches_itself_off_stays_until_it_is_deleted() {
    let devcloud = Running::start(&json!({ "boot": "1s" }));
    devcloud.insert("vm-a1", "echo done; poweroff");
    wait_until("the end", || devcloud.instance("vm-a1").is_some_and(|vm| vm["status"] == "TERMINATED"));
    let path = "/compute/v1/projects/devcloud/zones/us-central1-a/instances/vm-a1";
    assert_eq!(devcloud.ask("DELETE", path, &Value::Null).0, 200);
    assert_eq!(devcloud.instance("vm-a1"), None);
    assert_eq!(devcloud.ask("DELETE", path, &Value::Null).0, 404);
}

#[test]
fn calls_fail_as_the_script_says_and_are_written_down() {
    let faults = json!({ "faults": [
        { "call": "compute.zones.list", "kind": { "status": 429 }, "retry_after": "3s" },
        { "call": "compute.projects.get", "kind": "lost_answer" },
    ] });
    let devcloud = Running::start(&faults);
    let zones = "/compute/v1/projects/devcloud/zones";
    let (status, answer) = devcloud.ask("GET", zones, &Value::Null);
    assert_eq!((status, &answer["error"]["errors"][0]["reason"]), (429, &json!("rateLimitExceeded")));
    assert_eq!(devcloud.ask("GET", zones, &Value::Null).0, 200);
    assert_eq!(devcloud.ask("GET", "/compute/v1/projects/devcloud/nonsense", &Value::Null).0, 404);
    let calls = devcloud.ask("GET", "/devcloud/calls", &Value::Null).1;
    let seen: Vec<_> =
        calls.as_array().expect("calls").iter().map(|call| (call["call"].as_str(), call["status"].as_u64())).collect();
    assert_eq!(seen, [(Some("compute.zones.list"), Some(429)), (Some("compute.zones.list"), Some(200))]);
}

#[test]
fn a_plan_tells_whether_the_project_has_room_and_the_order_of_the_zones() {
    let gpus = "PREEMPTIBLE_NVIDIA_V100_GPUS";
    let outlook =
        json!({ "us-west1-b": { "obtainability": 0.9, "uptime": "8h" }, "us-west1-a": { "obtainability": 0.8, "uptime": "8h" } });
    let gone = json!({ "call": "compute.images.getFromFamily", "kind": { "status": 404 }, "times": 2 });
    for (script, code, part) in [
        (json!({}), 0, "us-central1: PREEMPTIBLE_NVIDIA_V100_GPUS 0 of 64 used, 1 needed"),
        (json!({ "quotas": { gpus: 0 } }), 5, "us-central1: no room: PREEMPTIBLE_NVIDIA_V100_GPUS 0 of 0 used, 1 needed"),
        (json!({ "quotas": { "GPUS_ALL_REGIONS": 0 } }), 5, "all regions: no room: GPUS_ALL_REGIONS 0 of 0 used, 1 needed"),
        (json!({ "outlooks": outlook }), 0, "us-west1-b 0.90 for 8h"),
        (json!({}), 0, "pytorch-latest-gpu-v20250601, the newest pytorch-latest-gpu of deeplearning-platform-release"),
        (json!({ "faults": [gone] }), 2, "there is no pytorch-latest-gpu of deeplearning-platform-release"),
        (
            json!({ "faults": [{ "call": "*", "kind": { "status": 403 }, "times": 20 }] }),
            0,
            "not known: Required permission is missing.",
        ),
    ] {
        let devcloud = Running::start(&script);
        let job = "name = \"a\"\ndataset = \"data\"\n[compute]\nbackend = \"gce\"\n[compute.gce]\nrank_zones = true\n";
        devcloud.sandbox.write_rehearsal("a");
        devcloud.sandbox.write_dataset();
        devcloud.sandbox.write("job.toml", job);
        let with = |format, image: &[&str]| {
            let mut command = devcloud.sandbox.command(&[&["plan", "job.toml", "-o", format], image].concat());
            Sandbox::said(command.envs(devcloud.environment.iter().cloned()))
        };
        let plan = |format| with(format, &["--set", "compute.gce.image=registry.example/ftctl@sha256:00"]);
        let said = plan("table");
        assert!(said.code == Some(code) && said.stdout.contains(part), "{script}: {:?} {} {}", said.code, said.stdout, said.stderr);
        let told: Value = serde_json::from_str(&plan("json").stdout).expect("JSON");
        assert!(told["room"].as_array().expect("findings").iter().any(|finding| finding["what"] == "quota"), "{told}");
        assert_eq!(told["error"].is_object(), code != 0);
        let without = with("table", &[]);
        assert!(without.code == Some(2) && without.stderr.contains("the job names no container image"), "{}", without.stderr);
    }
}

#[test]
fn a_job_without_a_machine_costs_nothing_and_gives_up_when_it_has_waited_enough() {
    let devcloud = Running::start(&json!({ "stock_outs": ["us-central1-a"] }));
    devcloud.sandbox.write_rehearsal("waits");
    devcloud.sandbox.write_dataset();
    let ftctl = |arguments: &[&str]| {
        let mut command = devcloud.sandbox.command(arguments);
        Sandbox::said(command.envs(devcloud.environment.iter().cloned()).env("FTCTL_BACKEND", "gce"))
    };
    let sets = ["compute.gce.image=registry.example/ftctl@sha256:00", "compute.gce.zones=[\"us-central1-a\"]"];
    let sets = ["--set", sets[0], "--set", sets[1]];
    let begun = Instant::now();
    let said = ftctl(&[&["submit", "job.toml", "--wait", "--timeout", "2s"][..], &sets].concat());
    assert!(said.code == Some(10) && said.stderr.contains("waited 2s for the job waits-"), "{}", said.stderr);
    assert!(said.stderr.contains("; it does not run yet") && begun.elapsed() < Duration::from_secs(30), "{}", said.stderr);
    assert_eq!(ftctl(&["down", "waits", "-y"]).code, Some(0));
    let submit = [&["submit", "job.toml", "--max-wait", "4s"][..], &sets].concat();
    let said = ftctl(&submit);
    assert_eq!(said.code, Some(5), "{}", said.stderr);
    let why = "there was no machine within the 4s that the job may wait (limits.max_wait): no zone has such a machine now: us-central1-a: out of stock";
    assert!(said.stderr.contains(why), "{}", said.stderr);
    let receipt: Value = serde_json::from_str(&ftctl(&["bill", "waits", "-o", "json"]).stdout).expect("JSON");
    assert_eq!(
        (&receipt["machine_seconds"], &receipt["cost"], &receipt["may_still_bill"]),
        (&json!(0), &json!("0USD"), &json!(false))
    );
    assert!((4..20).contains(&receipt["waited_seconds"].as_u64().expect("seconds")), "{receipt}");
    assert_eq!(devcloud.ask("GET", "/devcloud/bill", &Value::Null).1["machines"], json!([]));
}

/// A job whose machine has power and does nothing, and commands for it with what this directory has before the system's programs.
struct Submitted {
    devcloud: Running,
    job: String,
}

impl Submitted {
    fn start() -> Self {
        let devcloud = Running::start(&json!({ "boot": "1s", "troubles": [{ "instance": "-a1", "kind": "no_startup" }] }));
        devcloud.sandbox.write_rehearsal("quick");
        devcloud.sandbox.write_dataset();
        let submitted = Self { devcloud, job: String::new() };
        let said = submitted.ftctl("", &["submit", "job.toml", "--set", "compute.gce.image=registry.example/ftctl@sha256:00"]);
        assert_eq!(said.code, Some(0), "{}", said.stderr);
        let job = said.stdout.trim().to_owned();
        wait_until("the start", || submitted.devcloud.instance(&format!("{job}-a1")).is_some_and(|vm| vm["status"] == "RUNNING"));
        Self { job, ..submitted }
    }

    fn ftctl(&self, path: &str, arguments: &[&str]) -> Said {
        let mut command = self.devcloud.sandbox.command(arguments);
        command.envs(self.devcloud.environment.iter().cloned()).env("FTCTL_BACKEND", "gce").env("PATH", path);
        Sandbox::said(&mut command)
    }

    /// With a program of this text that is called gcloud.
    fn exec(&self, gcloud: &str, command: &[&str]) -> Said {
        let programs = self.devcloud.sandbox.path("programs");
        std::fs::create_dir_all(&programs).expect("a directory");
        self.devcloud.sandbox.write("programs/gcloud", format!("#!/bin/sh\n{gcloud}\n"));
        let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(programs.join("gcloud"), executable).expect("executable");
        let path = format!("{}:{}", programs.display(), std::env::var("PATH").expect("a path"));
        self.ftctl(&path, &[&["exec", "quick", "--"], command].concat())
    }
}

#[test]
fn a_command_on_a_machine_goes_through_gcloud_with_its_words_and_its_code() {
    let job = Submitted::start();
    let none = job.ftctl("/nonexistent", &["exec", "quick", "--", "true"]);
    assert_eq!((none.code, none.stderr.contains("https://cloud.google.com/sdk/docs/install")), (Some(2), true), "{}", none.stderr);
    // The work of ssh over there: one text for the shell of the user who logs in.
    let stand_in = r#"for argument; do case "$argument" in --command=*) sh -c "${argument#--command=}"; exit;; *) echo "$argument" >&2;; esac; done"#;
    let said = job.exec(stand_in, &["sh", "-c", "echo \"it's $1\"; exit 7", "sh", "a  b"]);
    assert_eq!((said.code, said.stdout.as_str()), (Some(7), "it's a  b\n"), "{}", said.stderr);
    let machine = format!("{}-a1", job.job);
    let expected = ["compute", "ssh", &machine, "--project", "devcloud", "--zone", "us-central1-a"];
    assert_eq!(said.stderr.lines().collect::<Vec<_>>(), expected);
    assert_eq!(job.ftctl("", &["down", "quick", "-y"]).code, Some(0));
    assert_eq!(job.exec(stand_in, &["true"]).code, Some(3), "it runs nowhere");
}

/// Microsoft's own library needs no more than the simulated workspace of Azure Machine Learning says: it makes a cluster, streams a
/// job to its end, and cancels another one.
#[test]
#[ignore = "needs azure-ai-ml: tests/run installs it"]
fn azureml_works_with_microsofts_own_library() {
    let devcloud = Running::start_cloud("azureml", 10, &json!({}), |command| command.arg("--tls"));
    let library = std::env::var_os("FT_AZURE_ML").expect("FT_AZURE_ML is the folder of azure-ai-ml");
    let mut command = Command::new("python3");
    command.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/common/azureml_sdk.py")).env("PYTHONPATH", library);
    let output = command.envs(devcloud.environment.iter().cloned()).current_dir(devcloud.sandbox.path("")).output();
    let output = output.expect("python3 runs");
    let (said, complaint) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{said}{complaint}");
    for words in ["cluster: Succeeded\n", "\nthe job of rank 0 speaks, of /", "first: Completed\n", "second: Canceled\n"] {
        assert!(said.contains(words), "{words}: {said}{complaint}");
    }
    assert!(said.contains("downloaded: std_log_process_00.txt the job of rank 0 speaks, of /"), "{said}{complaint}");
    assert!(said.contains("/workspaceblobstore/numbers") && said.contains("/workspaceblobstore/words"), "{said}");

    // What the library made with our tags is ours to see and to end.
    let ftctl = |arguments: &[&str]| {
        let mut command = devcloud.sandbox.command(arguments);
        let said = Sandbox::said(command.envs(devcloud.environment.iter().cloned()).env("FTCTL_BACKEND", "azureml"));
        assert_eq!(said.code, Some(0), "{arguments:?}: {}", said.stderr);
        said.stdout
    };
    assert!(ftctl(&["bill"]).contains("other-bcdfgh"), "ftctl sees it");
    assert!(!ftctl(&["prune", "-y"]).contains("other-bcdfgh"), "it does not say whose it is");
    assert!(ftctl(&["prune", "--everybody", "-y"]).contains("other-bcdfgh"), "ftctl knows no job of it");
    assert!(!ftctl(&["bill"]).contains("other-bcdfgh"), "it is over");
    let calls = devcloud.ask("GET", "/devcloud/calls", &Value::Null).1;
    let of = |call: &str| calls.as_array().expect("calls").iter().filter(|made| made["call"] == call).count();
    assert_eq!((of("CodeVersions_CreateOrUpdate"), of("DataVersions_CreateOrUpdate"), of("Jobs_Cancel")), (1, 1, 2), "{calls}");
    let wrong: Vec<&Value> = calls.as_array().expect("calls").iter().filter(|call| call["wrong"].is_string()).collect();
    assert!(wrong.is_empty(), "{wrong:?}");
}

#[test]
fn azureml_lets_only_those_in_who_were_told_its_secret() {
    let devcloud = Running::start_cloud("azureml", 8, &json!({}), |command| command);
    let id = ["SUBSCRIPTION", "RESOURCEGROUP", "WORKSPACE_NAME"].map(|part| devcloud.variable(&format!("AZUREML_ARM_{part}")));
    let workspace = format!(
        "{}/subscriptions/{}/resourceGroups/{}/providers/Microsoft.MachineLearningServices/workspaces/{}?api-version=2025-12-01",
        devcloud.variable("FTCTL_ENDPOINT_AZUREML"),
        id[0],
        id[1],
        id[2],
    );
    let identity = devcloud.variable("IDENTITY_ENDPOINT");
    let identity = format!("{identity}?api-version=2019-08-01&resource=https%3A%2F%2Fmanagement.azure.com%2F");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let client = reqwest::Client::new();
        let get = async |request: reqwest::RequestBuilder| {
            let answer = request.send().await.expect("an answer");
            let status = answer.status().as_u16();
            (status, serde_json::from_slice::<Value>(&answer.bytes().await.expect("a body")).expect("JSON"))
        };
        assert_eq!(get(client.get(&workspace).bearer_auth(devcloud.variable("IDENTITY_HEADER"))).await.0, 401);
        assert_eq!(get(client.get(&identity)).await.0, 401);
        let token = get(client.get(&identity).header("X-IDENTITY-HEADER", devcloud.variable("IDENTITY_HEADER"))).await.1;
        let (status, shown) = get(client.get(&workspace).bearer_auth(token["access_token"].as_str().expect("a token"))).await;
        assert_eq!((status, &shown["name"]), (200, &json!("devcloud")));
    });
}

/// ftctl dies between its cluster and its job.
#[test]
fn a_cluster_of_azureml_that_no_job_came_to_goes_with_prune() {
    let faults = json!([{ "call": "Jobs_CreateOrUpdate", "kind": { "status": 503 }, "times": 1_000 }]);
    let devcloud = Running::start_cloud("azureml", 8, &json!({ "operation": "1s", "faults": faults }), |command| command);
    devcloud.sandbox.write_rehearsal("quick");
    devcloud.sandbox.write_dataset();
    let ftctl = |arguments: &[&str]| {
        let mut command = devcloud.sandbox.command(arguments);
        command.envs(devcloud.environment.iter().cloned()).env("FTCTL_BACKEND", "azureml");
        command
    };
    let said = |arguments: &[&str]| {
        let said = Sandbox::said(&mut ftctl(arguments));
        assert_eq!(said.code, Some(0), "{arguments:?}: {}", said.stderr);
        said.stdout
    };
    let image = format!("compute.azureml.image=registry.example/ftctl@sha256:{}", "0".repeat(64));
    let mut child = ftctl(&["submit", "job.toml", "--set", &image]).spawn().expect("ftctl runs");
    let asked_for = |call: &str| devcloud.ask("GET", "/devcloud/calls", &Value::Null).1.to_string().contains(call);
    wait_until("the wish for a job on it", || asked_for("Jobs_CreateOrUpdate"));
    child.kill().expect("killed");
    child.wait().expect("over");
    assert!(said(&["prune", "--expired", "-y"]).ends_with("0 destroyed\n"), "it has no time");
    let found = said(&["prune", "--dry-run"]);
    assert!(found.contains("ftctl-c") && found.ends_with("1 found\n") && !asked_for("Compute_Delete"), "{found}");
    let pruned = said(&["prune", "-y"]);
    assert!(pruned.contains("no job needs it") && pruned.ends_with("1 destroyed\n"), "{pruned}");
    assert!(asked_for("Compute_Delete") && said(&["prune", "--dry-run"]).ends_with("0 found\n"));
}

#[test]
fn azureml_is_asked_by_https_by_those_who_trust_its_certificate() {
    let devcloud = Running::start_cloud("azureml", 10, &json!({}), |command| command.arg("--tls"));
    let endpoint = devcloud.variable("FTCTL_ENDPOINT_AZUREML");
    assert!(endpoint.starts_with("https://127.0.0.1:"), "{endpoint}");
    let mut command = devcloud.sandbox.command(&["bill", "-o", "json"]);
    let said = Sandbox::said(command.envs(devcloud.environment.iter().cloned()).env("FTCTL_BACKEND", "azureml"));
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    let (status, calls) = devcloud.ask("GET", "/devcloud/calls", &Value::Null);
    let listed = calls.as_array().expect("calls").iter().any(|call| call["call"] == "Compute_List" && call["status"] == 200);
    assert!(status == 200 && listed, "{calls}");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    assert!(runtime.block_on(reqwest::get(format!("{endpoint}/discovery"))).is_err(), "no stranger trusts it");
}

/// Google's OS Login, to which everybody is `somebody_example_com`; its address.
fn os_login() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = format!("http://{}/", listener.local_addr().expect("an address"));
    std::thread::spawn(move || {
        let profile = json!({ "name": "1", "posixAccounts": [{ "primary": true, "username": "somebody_example_com" }] });
        let mut both = profile.clone();
        both["loginProfile"] = profile;
        let body = both.to_string();
        for client in listener.incoming().flatten() {
            let mut reader = BufReader::new(client.try_clone().expect("a connection"));
            while let Ok(Some(_)) = proxy::read(&mut reader, false) {
                let head = format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n", body.len());
                // A client that has gone asks no more.
                let _ = (&client).write_all((head + &body).as_bytes());
            }
        }
    });
    address
}

/// gcloud makes ssh's command of it, for a user of OS Login, at the machine's external address.
#[test]
#[ignore = "needs gcloud"]
fn gcloud_takes_what_ftctl_asks_of_it() {
    let job = Submitted::start();
    let token = job.devcloud.sandbox.path("token");
    std::fs::write(&token, job.devcloud.variable("CLOUDSDK_AUTH_ACCESS_TOKEN")).expect("written");
    let path = std::env::var_os("PATH").expect("a path");
    let gcloud = std::env::split_paths(&path).map(|directory| directory.join("gcloud")).find(|program| program.is_file());
    let gcloud = gcloud.expect("gcloud");
    let variables = [
        ("CLOUDSDK_CONFIG", job.devcloud.sandbox.home().display().to_string()),
        ("CLOUDSDK_AUTH_ACCESS_TOKEN_FILE", token.display().to_string()),
        ("CLOUDSDK_CORE_ACCOUNT", "somebody@example.com".to_owned()),
        ("CLOUDSDK_API_ENDPOINT_OVERRIDES_OSLOGIN", os_login()),
    ];
    let variables = variables.map(|(name, value)| format!("{name}='{value}'")).join(" ");
    let said = job.exec(&format!("exec env {variables} {} \"$@\" --dry-run", gcloud.display()), &["echo", "it's  a word"]);
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    let asked = said.stdout.trim();
    assert!(asked.contains(" somebody_example_com@203.0.113.10 -- 'echo' 'it'\\''s  a word'"), "{asked}");
}

/// Needs gcloud, which no package registry has.
#[test]
#[ignore = "needs gcloud"]
fn gcloud_and_ftctl_see_and_delete_each_others_machines() {
    let devcloud = Running::start(&json!({ "boot": "1s" }));
    let token = devcloud.sandbox.path("token");
    std::fs::write(&token, devcloud.variable("CLOUDSDK_AUTH_ACCESS_TOKEN")).expect("written");
    let gcloud = |arguments: &str| {
        let mut command = Command::new("gcloud");
        command.args(arguments.split_whitespace()).env("CLOUDSDK_CONFIG", devcloud.sandbox.home());
        command.envs(devcloud.environment.iter().cloned()).env("CLOUDSDK_AUTH_ACCESS_TOKEN_FILE", &token);
        let output = command.env("CLOUDSDK_CORE_DISABLE_PROMPTS", "1").output().expect("gcloud runs");
        assert!(output.status.success(), "{arguments}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("text")
    };
    let ftctl = |arguments: &[&str]| {
        let mut command = devcloud.sandbox.command(arguments);
        let said = Sandbox::said(command.envs(devcloud.environment.iter().cloned()).env("FTCTL_BACKEND", "gce"));
        assert_eq!(said.code, Some(0), "{arguments:?}: {}", said.stderr);
        said.stdout
    };

    devcloud.sandbox.write_rehearsal("quick");
    devcloud.sandbox.write_dataset();
    let image = ["--set", "compute.gce.image=registry.example/ftctl@sha256:00"];
    let job = ftctl(&[&["up", "job.toml"][..], &image].concat()).trim().to_owned();
    let machine = format!("{job}-a1");
    wait_until("the start", || devcloud.instance(&machine).is_some_and(|vm| vm["status"] == "RUNNING"));
    let listed = gcloud("compute instances list --format value(name,status)");
    assert_eq!(listed.split_whitespace().collect::<Vec<_>>(), [&machine, "RUNNING"]);
    let labelled = gcloud(&format!("compute instances list --filter labels.ftctl-job={job} --format value(name)"));
    assert_eq!(labelled.trim(), machine);
    let described = gcloud(&format!("compute instances describe {machine} --zone us-central1-a --format json"));
    let described: Value = serde_json::from_str(&described).expect("JSON");
    assert_eq!(described["scheduling"]["provisioningModel"], "SPOT");
    gcloud(&format!("compute instances delete {machine} --zone us-central1-a --quiet"));
    assert_eq!(devcloud.instance(&machine), None);
    ftctl(&["down", &job, "-y"]);

    // A group of ours, which gcloud takes away with its machine.
    // Its machine boots for as long as gcloud needs to see it.
    assert_eq!(devcloud.ask("PUT", "/devcloud/script", &json!({ "boot": "1h" })).0, 200);
    let account = "compute.gce.service_account=machine@devcloud.iam.gserviceaccount.com";
    let grouped = [&["submit", "job.toml"][..], &image, &["--set", "compute.gce.recovery=group", "--set", account]].concat();
    let job = ftctl(&grouped).trim().to_owned();
    let group = format!("{job}-g");
    let machine = || gcloud("compute instances list --filter labels.ftctl-recovery=group --format value(name)").trim().to_owned();
    wait_until("the group's machine", || machine().starts_with(&job));
    let listed = gcloud("compute instance-groups managed list --format value(name,size,targetSize)");
    assert_eq!(listed.split_whitespace().collect::<Vec<_>>(), [&group, "1", "1"]);
    let described = gcloud(&format!("compute instance-groups managed describe {group} --region us-central1 --format json"));
    let described: Value = serde_json::from_str(&described).expect("JSON");
    assert_eq!(described["instanceLifecyclePolicy"]["onRepair"]["allowChangingZone"], "YES");
    gcloud(&format!("compute instance-groups managed delete {group} --region us-central1 --quiet"));
    assert_eq!(machine(), "");
    ftctl(&["down", &job, "-y"]);
    assert_eq!(gcloud("compute instance-templates list --format value(name)").trim(), "");

    // The seed's command, with our label.
    gcloud(
        "compute instances create by-hand --zone us-central1-a --custom-cpu 12 --custom-memory 78 --maintenance-policy TERMINATE \
         --image-family pytorch-latest-gpu --image-project deeplearning-platform-release --boot-disk-size 200GB \
         --metadata install-nvidia-driver=True --accelerator type=nvidia-tesla-v100,count=1 --preemptible --labels ftctl-job=other-bcdfgh",
    );
    assert!(ftctl(&["bill"]).contains("by-hand"), "ftctl sees it");
    assert!(!ftctl(&["prune", "-y"]).contains("by-hand"), "it does not say whose it is");
    assert!(ftctl(&["prune", "--everybody", "-y"]).contains("by-hand"), "ftctl knows no job of it");
    assert_eq!(devcloud.instance("by-hand"), None);
}

/// A devcloud whose machines start containers on the tests' engine; commands have their store in a container of Azurite.
struct WithEngine {
    /// They share the engine, and look what is left on it.
    _alone: MutexGuard<'static, ()>,
    devcloud: Running,
    store: String,
    reference: String,
}

fn docker(arguments: &[&str]) -> String {
    let output = Command::new("docker").args(arguments).output().expect("docker runs");
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

fn images() -> Vec<String> {
    docker(&["images", "--format", "{{.Repository}}:{{.Tag}}"]).lines().map(str::to_owned).collect()
}

impl WithEngine {
    /// The emulator of the blob store, a registry with the image in it, and a cloud with this script.
    fn start(cloud: &'static str, variables: usize, azurite: &azurite::Azurite, registry: &Registry, script: &Value) -> Self {
        static ENGINE: Mutex<()> = Mutex::new(());
        let alone = ENGINE.lock().unwrap_or_else(PoisonError::into_inner);
        let engine = std::env::var_os("DOCKER_HOST").unwrap_or_default();
        let devcloud =
            Running::start_cloud(cloud, variables, script, |command| command.arg("--engine").env("DOCKER_HOST", &engine));
        let mut world = Self { _alone: alone, devcloud, store: azurite.container(), reference: String::new() };
        world.reference = world.push(registry);
        world
    }

    /// Lets the engine build the image, and sends it to the registry, from where alone machines have it. Its name there.
    fn push(&self, registry: &Registry) -> String {
        let programs = self.devcloud.sandbox.path("programs");
        std::fs::create_dir(&programs).expect("a directory");
        std::fs::copy(env!("CARGO_BIN_EXE_ftctl"), programs.join("ftctl")).expect("copied");
        std::fs::copy(std::env::var("FT_TRAINER").expect("tests/run builds it"), programs.join("ft-trainer")).expect("copied");
        let base = std::env::var("FT_BASE").expect("tests/run names an image of a minimal system");
        let settings = format!("[image]\nbase = {base:?}\nprebuilt = {:?}\n", programs.display().to_string());
        self.devcloud.sandbox.write("ftctl.toml", settings);
        let (repository, before) = (registry.repository("team/ftctl"), images());
        let reference = self.ok(&["push", &repository]).trim().to_owned();
        assert!(reference.starts_with(&format!("{repository}@sha256:")), "{reference}");
        for name in images().iter().filter(|name| !before.contains(name)) {
            docker(&["image", "rm", "--force", name]);
        }
        reference
    }

    /// Removes what machines pulled, which must be there.
    fn forget_image(&self) {
        let pulled = docker(&["images", "--quiet", "--no-trunc", self.reference.split('@').next().expect("a name")]);
        docker(&["image", "rm", "--force", pulled.lines().next().expect("machines pulled it")]);
    }

    fn status(&self) -> Value {
        serde_json::from_str(&self.run(&["status", "quickstart", "-o", "json"]).stdout).unwrap_or_default()
    }

    /// Waits until this attempt has made so many steps.
    fn until_step(&self, attempt: u64, more_than: u64) {
        wait_until("a step of the attempt", || {
            let status = self.status();
            status["attempt"] == attempt && status["step"].as_u64().is_some_and(|step| step > more_than)
        });
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.devcloud.sandbox.command(arguments);
        command.envs(self.devcloud.environment.iter().cloned()).env("FTCTL_BACKEND", self.devcloud.cloud);
        command.env("FTCTL_STORE", &self.store).env("AZURE_STORAGE_KEY", azurite::KEY);
        command.env("DOCKER_HOST", std::env::var_os("DOCKER_HOST").unwrap_or_default());
        with_cargo(&mut command);
        command
    }

    /// `ftctl run` of the quickstart's template, made small.
    fn run_quickstart(&self, others: &[&str]) -> Command {
        self.quickstart("run", others)
    }

    /// The same with another verb.
    fn quickstart(&self, verb: &str, others: &[&str]) -> Command {
        let template = concat!(env!("CARGO_MANIFEST_DIR"), "/templates/jobs/quickstart.toml");
        let image = format!("compute.{}.image={}", self.devcloud.cloud, self.reference);
        let sets = [
            image.as_str(),
            "data.limit_bytes=100000",
            "data.tokenizer.vocabulary=300",
            "model.layers=1",
            "model.heads=1",
            "model.width=32",
            "model.context=32",
            "train.block_size=32",
            "train.micro_batch=2",
            "train.warmup_steps=5",
            "train.checkpoint_every=20",
            "train.log_every=10",
            "train.eval_sequences=2",
            "sample.tokens=4",
            "sample.prompt=one",
            "retry.backoff=0s",
        ];
        let sets: Vec<&str> = sets.iter().chain(others).flat_map(|set| ["--set", set]).collect();
        self.command(&[&[verb, template], &sets[..]].concat())
    }

    fn weights(&self) -> Vec<u8> {
        self.ok(&["download", "quickstart", "--to", "model", "--overwrite"]);
        std::fs::read(self.devcloud.sandbox.path("model/model.safetensors")).expect("weights")
    }

    fn nothing_is_left(&self) {
        assert_eq!(self.json(&["bill"])["resources"], json!([]));
        let bill = self.devcloud.ask("GET", "/devcloud/bill", &Value::Null).1;
        assert!(bill["machines"].as_array().expect("machines").iter().all(|machine| machine["exists"] == false), "{bill}");
        assert_eq!(docker(&["ps", "--all", "--quiet", "--filter", "name=devcloud-quickstart"]), "");
    }
}

impl Runs for WithEngine {
    fn run(&self, arguments: &[&str]) -> Said {
        Sandbox::said(&mut self.command(arguments))
    }
}

/// The whole way with real counterparts: the image is built by the engine and sent to a registry, machines pull it from there and
/// start it, data, log and checkpoints go through the emulator of the blob store.
#[test]
#[ignore = "needs a container engine, Azurite and the trainer: tests/run starts and builds them"]
fn docker_on_devcloud_a_job_that_is_preempted_twice_ends_with_the_same_weights() {
    let begun = Instant::now();
    let (azurite, registry) = (azurite::start(), Registry::start(Auth::Open));
    let script = json!({ "boot": "1s", "stock_outs": ["us-central1-a"] });
    let mut world = WithEngine::start("gce", 5, &azurite, &registry, &script);

    let said = Sandbox::said(&mut world.run_quickstart(&["train.steps=600"]));
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    assert!(said.stderr.contains("us-central1-a: out of stock"), "{}", said.stderr);
    let undisturbed = world.weights();
    world.nothing_is_left();

    world.store = azurite.container();
    let run = in_background(&mut world.run_quickstart(&["train.steps=600"]));
    for attempt in [1, 2] {
        world.until_step(attempt, 100 * attempt);
        world.ok(&["drill", "preempt", "quickstart"]);
    }
    let said = run.join().expect("it ends");
    assert!(said.contains("attempt 1 ended: ") && said.contains("attempt 2 ended: "), "{said}");
    assert!(said.contains("step 600/600"), "the log is followed: {said}");
    assert!(world.weights() == undisturbed, "other weights than the undisturbed job's");
    world.nothing_is_left();
    world.forget_image();
    println!("in all {:.0} s", begun.elapsed().as_secs_f64());
}

/// The same way on Azure ML, where the image gives the environment its version: one notice is withdrawn, and one is not.
#[test]
#[ignore = "needs a container engine, Azurite and the trainer: tests/run starts and builds them"]
fn docker_on_azure_a_job_from_a_registry_that_is_preempted_ends_with_the_same_weights() {
    const SETS: &[&str] = &["train.steps=2000", "compute.azureml.identity=none"];
    let begun = Instant::now();
    let (azurite, registry) = (azurite::start(), Registry::start(Auth::Open));
    let script = json!({ "operation": "1s", "allocation": "1s", "boot": "1s", "preparation": "1s", "notice": "3s" });
    let mut world = WithEngine::start("azureml", 8, &azurite, &registry, &script);

    let said = Sandbox::said(&mut world.run_quickstart(SETS));
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    let undisturbed = world.weights();
    world.nothing_is_left();

    // Now verb by verb; `push` was the first.
    world.store = azurite.container();
    let verb = |verb: &str| {
        let said = Sandbox::said(&mut world.quickstart(verb, SETS));
        assert_eq!(said.code, Some(0), "{verb}: {}", said.stderr);
        said.stdout.trim().to_owned()
    };
    let id = verb("up");
    world.devcloud.sandbox.write("beside.txt", "Another dataset of the same store.");
    world.ok(&["upload", "beside.txt", "--name", "beside"]);
    assert_eq!(verb("submit"), id);
    let run = in_background(&mut world.command(&["logs", "-f", &id]));
    world.until_step(1, 100);
    let preempt = |how: &str| {
        let lever = format!("/devcloud/preempt?job={id}-a1{how}");
        assert_eq!(world.devcloud.ask("POST", &lever, &Value::Null).0, 200);
    };
    preempt("&withdrawn=2");
    wait_until("the withdrawal", || world.ok(&["logs", "quickstart"]).contains("the cloud has withdrawn the notice"));
    assert_eq!(world.status()["attempt"], 1);
    preempt("");
    let said = run.join().expect("it ends");
    assert!(said.contains("attempt 1 ended: preempted") && !said.contains("attempt 2 ended: "), "{said}");
    assert!(world.ok(&["logs", &id]).contains("step 2000/2000"));
    assert!(world.weights() == undisturbed, "other weights than the undisturbed job's");

    let calls = world.devcloud.ask("GET", "/devcloud/calls", &Value::Null).1;
    let calls = calls.as_array().expect("calls");
    assert!(calls.iter().all(|call| call["wrong"].is_null()), "{calls:?}");
    let environment = calls.iter().find(|call| call["call"] == "EnvironmentVersions_CreateOrUpdate").expect("the image");
    let version = Digest::of(world.reference.as_bytes());
    assert_eq!(environment["name"], format!("ftctl/{}", &version.as_str()[..32]));
    assert_eq!(environment["body"]["properties"]["image"], world.reference.as_str());
    world.forget_image();
    world.ok(&["down", "--all", "-y"]);
    world.nothing_is_left();
    println!("in all {:.0} s", begun.elapsed().as_secs_f64());
}

/// Starts a command. The thread answers its words when it has ended well.
fn in_background(command: &mut Command) -> std::thread::JoinHandle<String> {
    let run = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("ftctl runs");
    std::thread::spawn(|| {
        let output = run.wait_with_output().expect("it ends");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{said}");
        said
    })
}
