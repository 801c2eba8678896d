//! A job on the simulated Azure ML with its store in blobs: nodes that are processes, the real agent, the real trainer.

use std::{
    env, fs,
    path::PathBuf,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use ftctl::job::{digest::Digest, id::JobId};
use serde_json::Value;

use crate::{
    azurite,
    blobs::container,
    devcloud::{Devcloud, IMAGE, on_azureml},
    entra::{Entra, HOUR},
    numbers::assert_told,
    sandbox::Sandbox,
    secrets::{self, CommandLines, MARK},
};

/// Steps enough that a node can be taken away in the middle, twice.
const STEPS: u64 = 2_000;
const GANG_STEPS: u64 = 600;

fn finish(sandbox: &Sandbox, id: &str) -> Vec<(String, Vec<u8>)> {
    sandbox.ok(&["logs", "-f", id]);
    assert_eq!(sandbox.json(&["status", id])["state"], "succeeded", "{}", sandbox.ok(&["explain", id]));
    sandbox.results(id)
}

/// Waits until the attempt has made a step of its own.
fn at_work(sandbox: &Sandbox, id: &str, attempt: u64) {
    Sandbox::until("a step of the attempt", || {
        let status = sandbox.json(&["status", id]);
        status["attempt"] == attempt && status["step"].as_u64().is_some_and(|step| step > 0)
    });
}

/// The studio of a workspace shows a finished job's numbers, each once, its store and its model; and what its processes wrote.
fn known_to_the_workspace(sandbox: &Sandbox, devcloud: &Devcloud, id: &str, attempts: u32) {
    let run = format!("{id}-a{attempts}");
    assert_told(sandbox, id, |key| devcloud.told(&run, key));
    let job = devcloud.azure("", &format!("jobs/{run}?api-version=2025-12-01"));
    assert_eq!(job["properties"]["status"], "Completed", "{job}");
    let stores = devcloud.azure("", "datastores?api-version=2025-12-01");
    assert_eq!(stores["value"][0]["properties"]["credentials"], serde_json::json!({ "credentialsType": "None" }), "{stores}");
    let (name, version) = (id.rsplit_once('-').unwrap().0, JobId::parse(id).unwrap().number());
    let model = devcloud.azure("", &format!("models/{name}/versions/{version}?api-version=2025-12-01"));
    let tags = &model["properties"]["tags"];
    assert_eq!(tags["ftctl-job"], id);
    assert!(tags["ftctl-perplexity"].as_str().is_some_and(|text| text.parse::<f64>().is_ok()), "{tags}");
    assert!(tags["ftctl-receipt"].as_str().is_some_and(|text| text.contains("USD")), "{tags}");
    let path = format!("azureml://jobs/{run}/outputs/artifacts/paths/outputs/model/");
    assert_eq!(model["properties"]["modelUri"].as_str(), Some(path.as_str()));
    let left = sandbox.path(&format!("disks/{run}/life-0/node-0/wd/outputs/model/model.safetensors"));
    let results = sandbox.results(id);
    let (_, weights) = results.iter().find(|(name, _)| name == "model.safetensors").unwrap();
    assert!(fs::read(&left).unwrap() == *weights, "the workspace has another model");
    assert!(sandbox.ok(&["logs", id, "--rank", "all", "--attempt", "1"]).starts_with("[0] "));
    let each = (1..=attempts).map(|attempt| sandbox.ok(&["logs", id, "--rank", "0", "--attempt", &attempt.to_string()]));
    assert_eq!(sandbox.ok(&["logs", id, "--rank", "0"]), each.collect::<String>());
}

/// The first notice is withdrawn, the second carried out; the third node goes because a user rehearses it.
#[test]
#[ignore = "needs the trainer and Azurite: tests/run installs them"]
fn a_job_whose_nodes_are_taken_away_ends_with_the_bytes_of_one_that_kept_them() {
    assert!(env::var_os("FT_AZURITE").is_some(), "FT_AZURITE names the emulator: tests/run installs it");
    let azurite = azurite::start();
    let mut sandbox = Sandbox::new();
    let devcloud = Devcloud::azureml(&mut sandbox, "10");
    sandbox.variables.extend(container(&azurite));
    let job = on_azureml(&sandbox, "undisturbed", STEPS);
    let plan = sandbox.ok(&["plan", job.to_str().unwrap()]);
    assert!(plan.contains("Standard_ND40rs_v2") && plan.contains("idle"), "{plan}");
    let expected = finish(&sandbox, &sandbox.submit(&job));

    // A real notice is half a minute, in which this job would be done. An agent asks for notices every second, so one that is
    // withdrawn after a second may never be seen.
    devcloud.goes_wrong(r#"{ "notice": "3s" }"#);
    let id = sandbox.submit(&on_azureml(&sandbox, "disturbed", STEPS));
    let mut follower = sandbox.spawn(&["logs", "-f", &id]);
    at_work(&sandbox, &id, 1);
    devcloud.ask("POST", &format!("preempt?job={id}-a1&withdrawn=2"), "");
    Sandbox::until("the withdrawal", || sandbox.ok(&["logs", &id]).contains("the cloud has withdrawn the notice"));
    assert_eq!(sandbox.json(&["status", &id])["attempt"], 1);
    devcloud.ask("POST", &format!("preempt?job={id}-a1"), "");
    at_work(&sandbox, &id, 2);
    sandbox.ok(&["drill", "preempt", &id]);
    assert!(follower.wait().unwrap().success(), "{}", sandbox.ok(&["explain", &id]));
    assert!(expected == finish(&sandbox, &id), "other bytes than the undisturbed job's");
    let explained = sandbox.ok(&["explain", &id]);
    assert_eq!(sandbox.json(&["status", &id])["attempt"], 3, "{explained}");
    assert!(explained.contains("preempted"), "{explained}");
    known_to_the_workspace(&sandbox, &devcloud, &id, 3);
    sandbox.ok(&["down", "--all", "-y"]);
    assert_eq!(sandbox.json(&["bill"])["resources"].as_array().map(Vec::len), Some(0));
    assert!(devcloud.nothing_bills(), "{:?}", devcloud.machines());
}

/// Two nodes with two processes each, of which the second is taken away, then the one that is left.
#[test]
#[ignore = "needs the trainer and Azurite: tests/run installs them"]
fn a_job_that_may_shrink_goes_on_with_one_node_of_two_and_ends_with_the_bytes_of_one_process() {
    assert!(env::var_os("FT_AZURITE").is_some(), "FT_AZURITE names the emulator: tests/run installs it");
    let azurite = azurite::start();
    let mut sandbox = Sandbox::new();
    let devcloud = Devcloud::azureml(&mut sandbox, "10");
    sandbox.variables.extend(container(&azurite));
    let submit = |name: &str, sets: &[&str]| {
        let job = on_azureml(&sandbox, name, GANG_STEPS);
        let sets = sets.iter().flat_map(|set| ["--set", set]);
        sandbox.ok(&["submit", job.to_str().unwrap()].into_iter().chain(sets).collect::<Vec<_>>()).trim().to_owned()
    };
    let expected = finish(
        &sandbox,
        &submit("alone", &["train.gradient_accumulation=4", "train.leaves=4", "compute.azureml.compute=\"serverless\""]),
    );

    devcloud.goes_wrong(r#"{ "notice": "3s" }"#);
    let id = submit("gang", &["compute.nodes=2", "compute.processes_per_node=2", "retry.shrink=true"]);
    let mut follower = sandbox.spawn(&["logs", "-f", &id]);
    at_work(&sandbox, &id, 1);
    assert_eq!(sandbox.json(&["status", &id])["nodes"], Value::Null, "both are there");
    devcloud.ask("POST", &format!("preempt?job={id}-a1&node=1"), "");
    at_work(&sandbox, &id, 2);
    assert_eq!(sandbox.json(&["status", &id])["nodes"], 1, "{}", sandbox.ok(&["explain", &id]));
    devcloud.ask("POST", &format!("preempt?job={id}-a2"), "");
    at_work(&sandbox, &id, 3);
    let each = sandbox.ok(&["logs", &id, "--rank", "3", "--attempt", "1"]);
    assert!(follower.wait().unwrap().success(), "{}", sandbox.ok(&["explain", &id]));
    assert!(expected == finish(&sandbox, &id), "other bytes than those of one process");
    assert!(!each.is_empty(), "the last rank has a log of its own");
    let receipt = sandbox.json(&["bill", &id]);
    let attempts = receipt["attempts"].as_array().unwrap();
    assert_eq!(attempts.iter().map(|attempt| attempt["nodes"].as_u64().unwrap()).collect::<Vec<_>>(), [2, 1, 2], "{receipt}");
    let price =
        |attempt: &Value| attempt["price_per_hour"].as_str().and_then(|price| price.strip_suffix("USD")?.parse::<f64>().ok());
    assert!((price(&attempts[0]).unwrap() - 2.0 * price(&attempts[1]).unwrap()).abs() < 1e-5, "{receipt}");
    sandbox.ok(&["down", "--all", "-y"]);
    assert!(devcloud.nothing_bills(), "{:?}", devcloud.machines());
}

/// The cluster's, and the user's.
const MANAGED: &str = "identity = \"managed\"";
const USER: &str = "identity = \"user\"\ncompute = \"serverless\"";

#[test]
#[ignore = "needs the trainer: tests/run builds it"]
fn the_workspace_is_told_that_a_training_failed() {
    let mut sandbox = Sandbox::new();
    let devcloud = Devcloud::azureml(&mut sandbox, "10");
    let job = on_azureml(&sandbox, "diverges", 20);
    let output = sandbox.run(&["run", job.to_str().unwrap(), "--set", "train.learning_rate=1e30", "--set", "train.clip_norm=0"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(20), "{said}");
    assert!(said.contains("step 2 diverged"), "{said}");
    let id = sandbox.json(&["status", "diverges"])["id"].as_str().unwrap().to_owned();
    let job = devcloud.azure("", &format!("jobs/{id}-a1?api-version=2025-12-01"));
    assert_eq!(job["properties"]["status"], "Failed", "{job}");
}

/// The library reads it as its own: the name, the version, and the job's files that it is.
#[test]
#[ignore = "needs the trainer and azure-ai-ml: tests/run installs them"]
fn the_finished_model_is_read_by_microsofts_own_library() {
    let library = env::var_os("FT_AZURE_ML").expect("FT_AZURE_ML is the folder of azure-ai-ml: tests/run installs it");
    let mut sandbox = Sandbox::new();
    let _devcloud = Devcloud::azureml_by_tls(&mut sandbox, "10");
    let id = sandbox.submit(&on_azureml(&sandbox, "model", 20));
    finish(&sandbox, &id);
    let (name, version) = (id.rsplit_once('-').unwrap().0, JobId::parse(&id).unwrap().number().to_string());
    let mut python = Command::new("python3");
    python.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/common/azureml_model.py")).args([name, &version]);
    let output = python.envs(sandbox.variables.iter().cloned()).env("PYTHONPATH", library).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let model: Value = serde_json::from_slice(&output.stdout).unwrap();
    let path = format!("azureml://jobs/{id}-a1/outputs/artifacts/paths/outputs/model/");
    let expected = [("name", name), ("version", &version), ("type", "custom_model"), ("path", &path)];
    for (field, value) in expected {
        assert_eq!(model[field], value, "{model}");
    }
    assert_eq!(model["tags"]["ftctl-job"], id, "{model}");
    assert!(model["tags"]["ftctl-receipt"].as_str().is_some_and(|text| text.contains("USD")), "{model}");
}

/// A place whose store takes tokens alone, and a job that signs in there with this identity.
fn with_identity(entra: &Entra, azurite: &azurite::Azurite, steps: u64, identity: &str) -> (Sandbox, Devcloud, PathBuf) {
    let mut sandbox = Sandbox::new();
    let trusted = entra.kinds().swap_remove(0).variables.into_iter().find(|(name, _)| *name == "SSL_CERT_FILE").unwrap();
    sandbox.variables = vec![("FTCTL_STORE".into(), azurite.container().into()), (trusted.0.into(), trusted.1.into())];
    let devcloud = Devcloud::azureml(&mut sandbox, "10");
    let job = on_azureml(&sandbox, "signed", steps);
    fs::write(&job, fs::read_to_string(&job).unwrap().replace("identity = \"none\"", identity)).unwrap();
    (sandbox, devcloud, job)
}

#[test]
#[ignore = "needs the trainer and Azurite: tests/run installs them"]
fn a_job_whose_cluster_lacks_its_identity_is_told_so_within_a_minute() {
    let entra = Entra::start(HOUR);
    let azurite = entra.azurite();
    let (sandbox, devcloud, job) = with_identity(&entra, &azurite, 300, MANAGED);
    devcloud.goes_wrong(
        r#"{ "operation": "1s", "allocation": "1s", "boot": "1s", "preparation": "1s", "troubles": [{ "job": "-a1", "kind": "no_identity" }] }"#,
    );
    let running = sandbox.command(&["run", job.to_str().unwrap()]).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let running = thread::spawn(|| running.wait_with_output().unwrap());
    Sandbox::until("the agent", || !sandbox.processes("ftctl agent").is_empty());
    let begun = Instant::now();
    let why = "look whether the job's cluster, or its user, has this identity";
    Sandbox::until("the reason", || sandbox.ok(&["explain", "signed"]).contains(why));
    let told = begun.elapsed();
    assert!(told < Duration::from_secs(60), "told after {told:?}");
    println!("told after {told:?}");
    sandbox.ok(&["cancel", "signed", "--now"]);
    let output = running.join().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(21), "{said}");
    assert!(said.contains(why), "{said}");
    assert!(devcloud.nothing_bills(), "{:?}", devcloud.machines());
}

/// The agent signs in as the job's identity, to the store and to the studio. Of all that the node has to do so, nothing is anywhere
/// else.
#[test]
#[ignore = "needs the trainer and Azurite: tests/run installs them"]
fn nothing_secret_is_left_of_a_job_whose_node_signs_in() {
    nothing_secret_is_left(MANAGED, "MSI_SECRET=", |secret| secret);
}

/// Here the secret is a part of the address.
#[test]
#[ignore = "needs the trainer and Azurite: tests/run installs them"]
fn nothing_secret_is_left_of_a_serverless_job_that_signs_in_as_its_user() {
    nothing_secret_is_left(USER, "OBO_ENDPOINT=", |address| address.split('/').nth(3).expect("a secret"));
}

/// `told` begins the line of the environment from which `secret_of` takes the node's secret.
fn nothing_secret_is_left(identity: &str, told: &str, secret_of: fn(&str) -> &str) {
    let entra = Entra::start(HOUR);
    let azurite = entra.azurite();
    let (sandbox, devcloud, job) = with_identity(&entra, &azurite, 300, identity);
    let id = sandbox.submit(&job);
    let mut follower = sandbox.spawn(&["logs", "-f", &id]);
    let mut environment = String::new();
    Sandbox::until("an agent", || {
        let agents = sandbox.processes("ftctl agent");
        let found = agents.iter().find_map(|pid| fs::read(format!("/proc/{pid}/environ")).ok());
        environment = String::from_utf8_lossy(&found.unwrap_or_default()).replace('\0', "\n");
        environment.contains(told)
    });
    let of = |name: &str| environment.lines().find_map(|line| line.strip_prefix(name)).expect("a variable");
    let run_token = of("MLFLOW_TRACKING_TOKEN=").rsplit_once('.').expect("a signature").1;
    let secrets = [devcloud.secret(), secret_of(of(told)), run_token, "sig=", MARK];
    let watched = CommandLines::watch(&secrets);
    assert!(follower.wait().unwrap().success(), "{}", sandbox.ok(&["explain", &id]));
    drop(watched);
    is_told_nowhere(&sandbox, &devcloud, &id, &secrets, |_| {});
    azurite.assert_has_none(&secrets);
}

/// Its agents have a signature, which every viewer of the workspace can read (docs/security.md): in one variable of the job, and
/// nowhere else. The account's key is nowhere at all.
#[test]
#[ignore = "needs the trainer and Azurite: tests/run installs them"]
fn a_job_without_an_identity_has_its_signature_in_its_variables_alone() {
    let azurite = azurite::start();
    let mut sandbox = Sandbox::new();
    let devcloud = Devcloud::azureml(&mut sandbox, "10");
    sandbox.variables.extend(container(&azurite));
    let job = on_azureml(&sandbox, "signed", 300);
    let ready = sandbox.ok(&["up", job.to_str().unwrap()]);
    assert!(sandbox.ok(&["explain", ready.trim()]).contains("everything is ready"), "{ready}");
    assert_eq!(sandbox.json(&["status", ready.trim()])["state"], "ready");
    assert_eq!(devcloud.made_jobs(), [""; 0], "no node waits for an order");
    let id = sandbox.submit(&job);
    assert_eq!(id, ready.trim());
    let secrets = [devcloud.secret(), azurite::KEY, "sig="];
    let watched = CommandLines::watch(&secrets);
    sandbox.ok(&["logs", "-f", &id]);
    drop(watched);
    is_told_nowhere(&sandbox, &devcloud, &id, &secrets, |job| {
        let variables = job["properties"]["environmentVariables"].take();
        assert!(variables.to_string().contains("sig="), "the test found no signature: {variables}");
        secrets::assert_none("the job's variables", &variables.to_string(), &[devcloud.secret(), azurite::KEY]);
    });
    azurite.assert_has_none(&secrets);
}

/// None of these secrets is in what ftctl says of the job, in the workspace, or in a file. `known` takes from the job, as the
/// workspace shows it, what may have one.
fn is_told_nowhere(sandbox: &Sandbox, devcloud: &Devcloud, id: &str, secrets: &[&str], known: impl Fn(&mut Value)) {
    let said =
        [&["status", id][..], &["explain", id], &["bill", id], &["status", "--all"], &["logs", id], &["logs", id, "--rank", "all"]];
    for arguments in said {
        let json = [arguments, &["-o", "json"]].concat();
        let printed = sandbox.run(if arguments[0] == "logs" { arguments } else { &json });
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        secrets::assert_none("what ftctl says", &(text(&printed.stdout) + &text(&printed.stderr)), secrets);
        assert!(printed.status.success(), "{arguments:?}: {}", text(&printed.stderr));
    }
    let environment = format!("environments/ftctl/versions/{}", &Digest::of(IMAGE.as_bytes()).as_str()[..32]);
    for end in [format!("jobs/{id}-a1"), "datastores".to_owned(), environment] {
        let mut shown = devcloud.azure("", &format!("{end}?api-version=2025-12-01"));
        assert_eq!(shown["error"], Value::Null, "{end}");
        if end.starts_with("jobs/") {
            known(&mut shown);
        }
        secrets::assert_none("the workspace", &shown.to_string(), secrets);
    }
    known_to_the_workspace(sandbox, devcloud, id, 1);
    secrets::assert_none_below(&sandbox.path(""), secrets);
}
