//! A simulated cloud for everything that a sandbox runs, with machines that have the real trainer.

use std::{
    ffi::OsString,
    fs,
    io::Read as _,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use serde_json::Value;

use crate::sandbox::Sandbox;

pub struct Devcloud {
    child: Child,
    pub endpoint: String,
    token: String,
    /// The certificate that its callers trust, where it is asked by https.
    certificate: Option<OsString>,
}

impl Devcloud {
    /// Compute Engine; `speed` simulated seconds pass in one.
    pub fn start(sandbox: &mut Sandbox, speed: &str) -> Self {
        Self::of(sandbox, &["gce", "--speed", speed], ["FTCTL_ENDPOINT_GCE", "CLOUDSDK_AUTH_ACCESS_TOKEN"])
    }

    /// Azure ML, likewise.
    pub fn azureml(sandbox: &mut Sandbox, speed: &str) -> Self {
        Self::of(sandbox, &["azureml", "--speed", speed], ["FTCTL_ENDPOINT_AZUREML", "IDENTITY_HEADER"])
    }

    /// The same by https, without which Microsoft's own library sends no token.
    pub fn azureml_by_tls(sandbox: &mut Sandbox, speed: &str) -> Self {
        Self::of(sandbox, &["azureml", "--speed", speed, "--tls"], ["FTCTL_ENDPOINT_AZUREML", "IDENTITY_HEADER"])
    }

    /// `cloud` begins with its name, which is that of its backend. `known` are the variables with its address, and with what its
    /// levers ask for.
    fn of(sandbox: &mut Sandbox, cloud: &[&str], known: [&str; 2]) -> Self {
        let trainer = std::env::var_os("FT_TRAINER").expect("FT_TRAINER names the trainer: tests/run builds it");
        let image = sandbox.path("image");
        fs::create_dir(&image).unwrap();
        symlink(trainer, image.join("ft-trainer")).unwrap();
        let mut command = sandbox.command(&[&["devcloud"], cloud, &["--disks", "disks"]].concat());
        let mut child = command.env("DEVCLOUD_IMAGE_PATH", &image).stdout(Stdio::piped()).spawn().unwrap();
        // All of them are printed at once.
        let mut printed = vec![0; 4_096];
        let length = child.stdout.take().unwrap().read(&mut printed).unwrap();
        let lines = std::str::from_utf8(&printed[..length]).unwrap().lines();
        sandbox.variables.extend(lines.map(|line| line.split_once('=').map(|(name, value)| (name.into(), value.into())).unwrap()));
        sandbox.variables.push(("FTCTL_BACKEND".into(), cloud[0].into()));
        let told = |name: &str| {
            let (_, value) = sandbox.variables.iter().find(|(known, _)| known == name).unwrap();
            value.to_str().unwrap().to_owned()
        };
        let [endpoint, token] = known.map(told);
        let certificate = sandbox.variables.iter().rfind(|(name, _)| name == "SSL_CERT_FILE").map(|(_, file)| file.clone());
        Self { child, endpoint, token, certificate }
    }

    pub fn ask(&self, method: &str, lever: &str, body: &str) -> Value {
        self.curl(&["-X", method, "--data", body], &format!("devcloud/{lever}"))
    }

    fn bare_curl(&self) -> Command {
        let mut command = Command::new("curl");
        command.envs(self.certificate.iter().map(|file| ("CURL_CA_BUNDLE", file)));
        command
    }

    fn curl_command(&self) -> Command {
        let mut command = self.bare_curl();
        command.args(["-s", "-H", &format!("Authorization: Bearer {}", self.token)]);
        command
    }

    fn curl(&self, arguments: &[&str], path: &str) -> Value {
        let url = format!("{}/{path}", self.endpoint);
        let output = self.curl_command().arg("-f").args(arguments).arg(&url).output().unwrap();
        assert!(output.status.success(), "{arguments:?} {url}");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// The answer of Azure ML's workspace to a client that has signed in. `service` is the one that is asked: none is Resource
    /// Manager.
    pub fn azure(&self, service: &str, end: &str) -> Value {
        self.signed_in("GET", service, end)
    }

    fn signed_in(&self, method: &str, service: &str, end: &str) -> Value {
        const WORKSPACE: &str = "subscriptions/00000000-0000-0000-0000-000000000001/resourceGroups/devcloud/providers\
            /Microsoft.MachineLearningServices/workspaces/devcloud";
        let ask = |method: &str, header: &str, path: &str| {
            let url = format!("{}/{path}", self.endpoint);
            let output = self.bare_curl().args(["-sf", "-X", method, "-H", header, &url]).output().unwrap();
            assert!(output.status.success(), "{method} {url}: {}", output.status);
            serde_json::from_slice::<Value>(&output.stdout).unwrap_or_default()
        };
        let identity = "identity?api-version=2019-08-01&resource=https%3A%2F%2Fmanagement.azure.com%2F";
        let token = ask("GET", &format!("X-IDENTITY-HEADER: {}", self.token), identity);
        let token = format!("Authorization: Bearer {}", token["access_token"].as_str().expect("a token"));
        ask(method, &token, &format!("{service}{WORKSPACE}/{end}"))
    }

    /// The numbers of this name that the workspace was told of a run.
    pub fn told(&self, run: &str, key: &str) -> Value {
        self.azure("mlflow/v1.0/", &format!("api/2.0/mlflow/metrics/get-history?run_id={run}&metric_key={key}"))
    }

    /// The secret with which ftctl's clients prove themselves.
    pub fn secret(&self) -> &str {
        &self.token
    }

    /// Everything of this kind in every zone, as the cloud's own interface lists it.
    pub fn everywhere(&self, kind: &str) -> Vec<Value> {
        let answer = self.curl(&[], &format!("compute/v1/projects/devcloud/aggregated/{kind}"));
        let zones = answer["items"].as_object().unwrap().values();
        zones.flat_map(|zone| zone[kind].as_array().unwrap().clone()).collect()
    }

    /// Name and status of each machine that there is, with power or without.
    pub fn instances(&self) -> Vec<(String, String)> {
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        self.everywhere("instances").iter().map(|machine| (text(&machine["name"]), text(&machine["status"]))).collect()
    }

    /// Preempts every machine of this zone, and names them.
    pub fn take_away(&self, zone: &str) -> Vec<String> {
        let machines = self.everywhere("instances").into_iter().filter(|machine| machine["zone"].as_str().unwrap().ends_with(zone));
        let taken = machines.map(|machine| {
            let name = machine["name"].as_str().unwrap().to_owned();
            let url = format!("{}/devcloud/preempt?instance={name}", self.endpoint);
            // One that has gone meanwhile is refused.
            self.curl_command().args(["-X", "POST", &url]).output().unwrap();
            name
        });
        taken.collect()
    }

    /// The name of each machine that was ever made, as often as it was.
    pub fn made(&self) -> Vec<String> {
        let operations = self.everywhere("operations");
        let made = operations.iter().filter(|operation| operation["operationType"] == "insert" && operation["error"].is_null());
        let machine = |operation: &Value| Some(operation["targetLink"].as_str().unwrap().split_once("/instances/")?.1.to_owned());
        let mut names: Vec<String> = made.filter_map(machine).collect();
        names.sort();
        names
    }

    /// The answer of Azure ML to this request below its workspace.
    fn in_workspace(&self, method: &str, what: &str) -> Value {
        self.signed_in(method, "", &format!("{what}?api-version=2025-12-01"))
    }

    /// Cancels the job of Azure ML whose name ends so, as somebody in the studio does.
    pub fn cancel_job(&self, end: &str) {
        let made = self.made_jobs();
        let name = made.iter().find(|name| name.ends_with(end)).unwrap();
        self.in_workspace("POST", &format!("jobs/{name}/cancel"));
    }

    /// Deletes the job of Azure ML whose name ends so, as somebody in the studio does.
    pub fn delete_job(&self, end: &str) {
        let made = self.made_jobs();
        let name = made.iter().find(|name| name.ends_with(end)).unwrap();
        self.in_workspace("DELETE", &format!("jobs/{name}"));
    }

    /// The name of each job of Azure ML that was ever made, as often as it was.
    pub fn made_jobs(&self) -> Vec<String> {
        let calls = self.ask("GET", "calls", "");
        let made = calls.as_array().unwrap().iter().filter(|call| call["call"] == "Jobs_CreateOrUpdate" && call["status"] == 201);
        let mut names: Vec<String> = made.map(|call| call["name"].as_str().unwrap().to_owned()).collect();
        names.sort();
        names
    }

    /// Every cluster of Azure ML, and every job that is not over, as the service's own interface lists them.
    pub fn live_jobs_and_clusters(&self) -> Vec<String> {
        let listed = |kind: &str| self.in_workspace("GET", kind)["value"].as_array().unwrap().clone();
        let over = |job: &Value| ["Completed", "Failed", "Canceled"].iter().any(|end| job["properties"]["status"] == *end);
        let jobs = listed("jobs").into_iter().filter(|job| !over(job));
        jobs.chain(listed("computes")).map(|one| one["name"].as_str().unwrap().to_owned()).collect()
    }

    /// Sets the script of failures from now on.
    pub fn goes_wrong(&self, script: &str) {
        self.ask("PUT", "script", script);
    }

    /// Every machine that there ever was, with its zone and whether it exists.
    pub fn machines(&self) -> Vec<Value> {
        self.ask("GET", "bill", "")["machines"].as_array().unwrap().clone()
    }

    pub fn nothing_bills(&self) -> bool {
        self.machines().iter().all(|machine| machine["exists"] == false)
    }
}

impl Drop for Devcloud {
    fn drop(&mut self) {
        // Nobody may have asked what the service's own description does not have.
        if !std::thread::panicking() {
            let calls = self.ask("GET", "calls", "");
            let wrong = calls.as_array().unwrap().iter().find(|call| call["wrong"].is_string());
            assert_eq!(wrong, None);
        }
        let _ = Command::new("kill").arg(self.child.id().to_string()).status();
        let _ = self.child.wait();
    }
}

/// The job of the other tests, on Compute Engine, with an image of this name.
pub fn on_gce(sandbox: &Sandbox, name: &str, steps: u64, image: &str) -> PathBuf {
    let file = sandbox.job(name, steps);
    let compute = format!("[compute.gce]\nimage = \"registry.example/{image}@sha256:00\"\n");
    fs::write(&file, fs::read_to_string(&file).unwrap() + &compute).unwrap();
    file
}

/// No registry has it: a node of the simulated service is a process.
pub const IMAGE: &str = "registry.example/ftctl@sha256:0000000000000000000000000000000000000000000000000000000000000000";

/// The job of the other tests, on Azure ML.
pub fn on_azureml(sandbox: &Sandbox, name: &str, steps: u64) -> PathBuf {
    let file = sandbox.job(name, steps);
    // Microsoft's emulator knows no identities over http: its agents have a signature.
    let compute = format!(
        "[compute]\nprocesses_per_node = 1\n[compute.azureml]\nsize = \"Standard_ND40rs_v2\"\nimage = \"{IMAGE}\"\nidentity = \"none\"\n"
    );
    fs::write(&file, fs::read_to_string(&file).unwrap() + &compute).unwrap();
    file
}

/// Lets the cloud itself replace this job's machine.
pub fn by_a_group(job: &Path) {
    let recovery = "recovery = \"group\"\nservice_account = \"machine@devcloud.iam.gserviceaccount.com\"\n";
    fs::write(job, fs::read_to_string(job).unwrap() + recovery).unwrap();
}
