//! A real MLflow server is told the numbers of a job whose processes are killed. `tests/run` installs its package.

use std::{
    env,
    os::unix::process::CommandExt as _,
    process::{Child, Command, Stdio},
};

use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::Value;

use crate::{
    numbers::{assert_told, told},
    sandbox::{Sandbox, free_port, kill},
};

/// Enough that the server has numbers before the job is killed.
const STEPS: u64 = 3_000;

struct Mlflow {
    process: Child,
    address: String,
    _directory: tempfile::TempDir,
}

impl Mlflow {
    fn start() -> Self {
        let package = env::var_os("FT_MLFLOW").expect("FT_MLFLOW is the folder of MLflow's package: tests/run installs it");
        let (directory, port) = (tempfile::tempdir().unwrap(), free_port());
        let database = format!("sqlite:///{}", directory.path().join("mlflow.db").display());
        let mut command = Command::new("python3");
        command.args(["-m", "mlflow", "server", "--host", "127.0.0.1", "--workers", "1", "--port", &port.to_string()]);
        command.args(["--backend-store-uri", &database]).current_dir(directory.path()).env("PYTHONPATH", package);
        command.env("MLFLOW_DISABLE_TELEMETRY", "true").stdout(Stdio::null()).stderr(Stdio::null());
        let process = command.process_group(0).spawn().expect("python3 runs");
        let server = Self { process, address: format!("http://127.0.0.1:{port}"), _directory: directory };
        Sandbox::until("the server", || server.asked("health").status.success());
        server
    }

    fn asked(&self, end: &str) -> std::process::Output {
        Command::new("curl").args(["-sf", &format!("{}/{end}", self.address)]).output().expect("curl runs")
    }

    fn get(&self, end: &str) -> Value {
        let output = self.asked(&format!("api/2.0/mlflow/{end}"));
        assert!(output.status.success(), "{end}: {}", output.status);
        serde_json::from_slice(&output.stdout).expect("JSON")
    }

    /// The run of this job, where there is one.
    fn run(&self, id: &str) -> Option<Value> {
        let asked = "api/2.0/mlflow/experiments/get-by-name?experiment_name=ftctl";
        let answer: Value = serde_json::from_slice(&self.asked(asked).stdout).ok()?;
        let wanted = serde_json::json!({
            "experiment_ids": [answer["experiment"]["experiment_id"]], "filter": format!("tags.`ftctl.job` = '{id}'"),
        });
        let mut search = Command::new("curl");
        search.args(["-sf", "-H", "content-type: application/json", "-d", &wanted.to_string()]);
        let output = search.arg(format!("{}/api/2.0/mlflow/runs/search", self.address)).output().expect("curl runs");
        let found: Value = serde_json::from_slice(&output.stdout).ok()?;
        let runs = found["runs"].as_array()?;
        assert_eq!(runs.len(), 1, "the job is one run");
        Some(runs[0].clone())
    }

    fn history(&self, run: &Value, key: &str) -> Value {
        let id = run["info"]["run_id"].as_str().expect("an id");
        self.get(&format!("metrics/get-history?run_id={id}&metric_key={key}&max_results=25000"))
    }
}

impl Drop for Mlflow {
    fn drop(&mut self) {
        let group = i32::try_from(self.process.id()).ok().and_then(Pid::from_raw).expect("a process group");
        let _ = kill_process_group(group, Signal::KILL);
        let _ = self.process.wait();
    }
}

#[test]
#[ignore = "needs the trainer and MLflow: tests/run installs them"]
fn a_real_server_has_each_step_of_a_killed_job_once() {
    let (server, sandbox) = (Mlflow::start(), Sandbox::new());
    let file = sandbox.job("tracked", STEPS);
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, format!("{text}[tracking]\nmlflow = \"{}\"\n", server.address)).unwrap();
    let id = sandbox.submit(&file);
    let mut follower = sandbox.spawn(&["logs", "-f", &id]);
    let numbers = || server.run(&id).map_or(0, |run| told(&server.history(&run, "loss")).len());
    let runs = || sandbox.json(&["status", &id])["state"] == "running";
    let mut kills = 0;
    for victim in ["ftctl agent", "ft-trainer train"] {
        let before = numbers();
        Sandbox::until("numbers of this attempt, or the end", || numbers() > before || !runs());
        if runs() {
            sandbox.processes(victim).into_iter().for_each(kill);
            kills += 1;
        }
    }
    assert!(kills > 0, "the job was over before the server had a number of it");
    assert!(follower.wait().unwrap().success(), "{}", sandbox.ok(&["explain", &id]));
    let run = server.run(&id).expect("a run");
    assert_told(&sandbox, &id, |key| server.history(&run, key));
    assert_eq!((&run["info"]["status"], &run["info"]["run_name"]), (&Value::from("FINISHED"), &Value::from(id.as_str())));
    let has = |list: &str, key: &str, value: &str| {
        let pairs = run["data"][list].as_array().into_iter().flatten();
        pairs.into_iter().any(|pair| pair["key"] == key && pair["value"] == value)
    };
    assert!(has("params", "train.steps", &STEPS.to_string()) && has("params", "model.width", "32"), "{}", run["data"]["params"]);
    let attempts = sandbox.json(&["status", &id])["attempt"].to_string();
    assert!(has("tags", "ftctl.job", &id) && has("tags", "ftctl.attempt", &attempts), "{}", run["data"]["tags"]);
}
