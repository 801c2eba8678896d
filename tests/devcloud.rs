//! `ftctl devcloud gce` as a whole: the program, its machines as processes, and Google's own command line where there is one.

mod common;

use std::{
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use common::Sandbox;

/// A devcloud that runs, and what it told its clients.
struct Running {
    child: Child,
    environment: Vec<(String, String)>,
    sandbox: Sandbox,
}

impl Running {
    fn start(script: &Value) -> Self {
        let sandbox = Sandbox::new();
        sandbox.write("script.json", script.to_string());
        let mut command = sandbox.command(&["devcloud", "gce", "--script", "script.json", "--speed", "10"]);
        let mut child = command.stdout(Stdio::piped()).spawn().expect("ftctl runs");
        let lines = BufReader::new(child.stdout.take().expect("piped")).lines().take(5);
        let environment = lines
            .map(|line| {
                line.expect("a line").split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned())).expect("a pair")
            })
            .collect();
        Self { child, environment, sandbox }
    }

    fn endpoint(&self) -> &str {
        &self.environment.iter().find(|(name, _)| name == "FTCTL_ENDPOINT_GCE").expect("an endpoint").1
    }

    /// Status and body.
    fn ask(&self, method: &str, path: &str, body: &Value) -> (u16, Value) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let url = format!("{}{path}", self.endpoint());
            let method = method.parse().expect("a method");
            let request = reqwest::Client::new().request(method, url).bearer_auth("x").body(body.to_string());
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

/// Needs gcloud, which no package registry has.
#[test]
#[ignore = "needs gcloud"]
fn gcloud_lists_describes_and_deletes() {
    let devcloud = Running::start(&json!({ "boot": "1s" }));
    devcloud.insert("vm-a1", "sleep 600");
    wait_until("the start", || devcloud.instance("vm-a1").is_some_and(|vm| vm["status"] == "RUNNING"));
    let token = devcloud.sandbox.path("token");
    std::fs::write(&token, "devcloud").expect("written");
    let gcloud = |arguments: &[&str]| {
        let mut command = Command::new("gcloud");
        command.args(arguments).env("CLOUDSDK_CONFIG", devcloud.sandbox.home()).env("CLOUDSDK_AUTH_ACCESS_TOKEN_FILE", &token);
        command.envs(devcloud.environment.iter().map(|(name, value)| (name, value)));
        let output = command.env("CLOUDSDK_CORE_DISABLE_PROMPTS", "1").output().expect("gcloud runs");
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("text")
    };
    let listed = gcloud(&["compute", "instances", "list", "--format", "value(name,status)"]);
    assert_eq!(listed.split_whitespace().collect::<Vec<_>>(), ["vm-a1", "RUNNING"]);
    let labelled =
        gcloud(&["compute", "instances", "list", "--filter", "labels.ftctl-job=quick-bcdfgh", "--format", "value(name)"]);
    assert_eq!(labelled.trim(), "vm-a1");
    let described: Value = serde_json::from_str(&gcloud(&[
        "compute",
        "instances",
        "describe",
        "vm-a1",
        "--zone",
        "us-central1-a",
        "--format",
        "json",
    ]))
    .expect("JSON");
    assert_eq!(described["scheduling"]["provisioningModel"], "SPOT");
    gcloud(&["compute", "instances", "delete", "vm-a1", "--zone", "us-central1-a", "--quiet"]);
    assert_eq!(devcloud.instance("vm-a1"), None);
    gcloud(&[
        "compute",
        "instances",
        "create",
        "by-hand",
        "--zone",
        "us-central1-a",
        "--custom-cpu",
        "12",
        "--custom-memory",
        "78",
        "--maintenance-policy",
        "TERMINATE",
        "--image-family",
        "pytorch-latest-gpu",
        "--image-project",
        "deeplearning-platform-release",
        "--boot-disk-size",
        "200GB",
        "--metadata",
        "install-nvidia-driver=True",
        "--accelerator",
        "type=nvidia-tesla-v100,count=1",
        "--preemptible",
    ]);
    assert!(devcloud.instance("by-hand").is_some(), "the seed's command works");
}
