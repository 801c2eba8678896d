//! The templates of real recipes, at a size that a test can afford.

use std::fs;

use serde_json::{Value, json};

use crate::{devcloud::Devcloud, sandbox::Sandbox};

/// Small enough for a second, with GPT-2's own vocabulary.
const TOY: &str = "[data]\ntrain = [\"a.txt\"]\nvalidation = [\"a.txt\"]\n[model]\nlayers = 1\nheads = 1\nwidth = 8\ncontext = 64\n\
    [train]\nsteps = 1\nblock_size = 64\nthreads = 1\n";

#[test]
#[ignore = "needs the trainer: tests/run builds it"]
fn every_fine_tuning_template_runs_at_toy_scale() {
    let mut sandbox = Sandbox::new();
    let text: Vec<String> =
        (0..400).map(|number| format!("Once {number} people lived in the city of {number} towers.\n")).collect();
    fs::write(sandbox.path("a.txt"), text.concat()).unwrap();
    fs::write(sandbox.path("start.toml"), format!("name = \"start\"\n{TOY}")).unwrap();
    sandbox.ok(&["run", "start.toml", "--quiet"]);
    sandbox.ok(&["download", "start", "--to", sandbox.path("weights").to_str().unwrap()]);
    let run = |sandbox: &Sandbox, template: &str, more: &[&str]| {
        let file = format!("{template}.toml");
        sandbox.ok(&["init", template, "--force", "--out", &file]);
        let sizes =
            ["train.block_size=64", "train.gradient_accumulation=2", "train.epochs=0.2", "train.threads=1", "sample.tokens=5"];
        let inputs = ["initial_weights=weights", "data.train=[\"a.txt\"]", "data.validation=[\"a.txt\"]", "train.device=cpu"];
        let sets = sizes.iter().chain(&inputs).flat_map(|set| ["--set", set]);
        sandbox.ok(&["run", &file, "--quiet"].into_iter().chain(sets).chain(more.iter().copied()).collect::<Vec<_>>());
    };
    for template in ["gpt2-wikitext", "gpt2-wikitext-azureml", "gpt2-medium-fp32", "gpt2-medium-azureml", "gpt2-xl-v100"] {
        // Of sixteen processes with a text that they can share.
        let fewer = ["--set", "compute.processes_per_node=2", "--set", "train.epochs=0.5"];
        let fewer = if template == "gpt2-medium-azureml" { &fewer[..] } else { &[] };
        run(&sandbox, template, &[&["--backend", "local"], fewer].concat());
        assert_eq!(sandbox.json(&["status", template])["state"], "succeeded");
    }
    // And on the machine that it asks for.
    let devcloud = Devcloud::start(&mut sandbox, "10");
    run(&sandbox, "gpt2-xl-v100", &["--set", "name=rented", "--set", "compute.gce.image=registry.example/ftctl@sha256:00"]);
    assert_eq!(sandbox.json(&["status", "rented"])["state"], "succeeded");
    let machines = devcloud.machines();
    assert!(machines.len() == 1 && machines[0]["zone"] == "us-central1-a" && machines[0]["exists"] == false, "{machines:?}");
    assert_eq!(machines[0]["price_per_hour"], "0.908039USD");
}

#[test]
#[ignore = "needs the trainer: tests/run builds it"]
fn the_template_of_fairseqs_recipe_runs_at_toy_scale() {
    let sandbox = Sandbox::new();
    let text: Vec<String> = (0..400).map(|number| format!("{number} ships sailed to the {number} islands.\n")).collect();
    fs::write(sandbox.path("a.txt"), text.concat()).unwrap();
    sandbox.ok(&["init", "gpt2-small-openwebtext", "--out", "a.toml"]);
    let data = ["data.format=text", "data.train=[\"a.txt\"]", "data.validation=[\"a.txt\"]", "sample.tokens=5"];
    let model = ["model.layers=1", "model.heads=1", "model.width=8", "model.context=64", "train.block_size=64", "train.threads=1"];
    let length = ["train.micro_batch=2", "train.gradient_accumulation=2", "train.steps=6", "train.warmup_steps=2"];
    let policy = ["train.checkpoint_every=1", "train.keep_checkpoints=3", "train.eval_every=3", "train.log_every=2"];
    let sets = data.iter().chain(&model).chain(&length).chain(&policy).flat_map(|set| ["--set", set]);
    sandbox.ok(&["run", "a.toml"].into_iter().chain(sets).chain(["--quiet"]).collect::<Vec<_>>());
    sandbox.ok(&["download", "gpt2-small-openwebtext", "--to", sandbox.path("got").to_str().unwrap()]);
    let config = fs::read_to_string(sandbox.path("got/config.json")).unwrap();
    assert!(config.contains("xglm"), "fairseq's variant is transformers' XGLM: {config}");
    assert!(fs::read_dir(sandbox.path("got/artifacts/tensorboard")).unwrap().next().is_some(), "event files for TensorBoard");
    let steps = fs::read_to_string(sandbox.path("got/artifacts/steps.jsonl")).unwrap();
    let rates: Vec<f64> = steps
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()["learning_rate"].as_f64())
        .collect();
    assert!(rates[..3].is_sorted() && rates[2..].iter().rev().is_sorted(), "up, then down the cosine: {rates:?}");
}

/// The names of what a job still needs, by its plan.
fn missing(plan: &Value) -> Vec<String> {
    let list = plan["missing"].as_array().unwrap();
    list.iter().map(|finding| finding["what"].as_str().unwrap().to_owned()).collect()
}

/// Runs `plan a.toml` where no one is signed in to anything. Answers its exit code, and what it writes.
fn planned_by_nobody(sandbox: &Sandbox, more: &[&str]) -> (Option<i32>, String, String) {
    let planned = ["plan", "a.toml", "--store", "azure://account/container", "-o", "json"];
    let mut command = sandbox.command(&[&planned[..], more].concat());
    // The credentials of any sign-in here.
    for (name, _) in std::env::vars() {
        if ["GOOGLE_", "CLOUDSDK_", "GCE_", "AZURE_", "AZUREML_", "IDENTITY_", "MSI_"].iter().any(|prefix| name.starts_with(prefix))
        {
            command.env_remove(name);
        }
    }
    let output = command.env("HOME", sandbox.path("home")).env("PATH", "").output().unwrap();
    (output.status.code(), String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn the_template_for_azure_ml_has_the_last_v100_and_who_is_not_signed_in_may_plan_it() {
    let sandbox = Sandbox::new();
    sandbox.ok(&["init", "gpt2-wikitext-azureml", "--out", "a.toml"]);
    let (code, told, warned) = planned_by_nobody(&sandbox, &[]);
    let told: Value = serde_json::from_str(&told).unwrap();
    assert_eq!((code, missing(&told)), (Some(2), ["image", "data", "initial weights"].map(str::to_owned).into()), "{warned}");
    assert_eq!((&told["azureml"]["size"], &told["azureml"]["spot"]), (&json!("Standard_ND40rs_v2"), &json!(true)));
    assert_eq!(told["price_per_hour"], "4.4064USD");
    for (more, part) in [
        ("compute.azureml.size=Standard_NC24rs_v3", "Azure retired Standard_NC24rs_v3 on 2025-09-30"),
        ("image.variant=cpu", "the build `cpu` of libtorch has no kernels for a v100"),
    ] {
        let (code, said, _) = planned_by_nobody(&sandbox, &["--set", more]);
        assert!(code == Some(2) && said.contains(part), "{more}: {code:?} {said}");
    }
}

#[test]
fn the_machine_of_the_template_for_a_v100_is_the_seeds_and_who_is_not_signed_in_may_plan_it() {
    let sandbox = Sandbox::new();
    sandbox.ok(&["init", "gpt2-xl-v100", "--out", "a.toml"]);
    let plan = |more: &[&str]| planned_by_nobody(&sandbox, more);
    let (code, told, warned) = plan(&[]);
    assert_eq!(code, Some(2), "{warned}");
    for part in ["no one is signed in to Google Cloud", "no way to sign in to the account account"] {
        assert!(warned.contains(part), "{part}: {warned}");
    }
    let told: Value = serde_json::from_str(&told).unwrap();
    assert_eq!(missing(&told), ["image", "data", "initial weights"]);
    let recording = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/recordings/gce/instances-create-seed.json"));
    let recording: Value = serde_json::from_str(&recording.unwrap()).unwrap();
    let calls = recording["calls"].as_array().unwrap();
    let seed = &calls.iter().find(|call| call["method"] == "POST").unwrap()["body"];
    let (gce, disk) = (&told["gce"], &seed["disks"][0]["initializeParams"]);
    let machine = format!("custom-{}-{}", gce["cpus"], gce["memory_gb"].as_u64().unwrap() * 1_024);
    assert!(seed["machineType"].as_str().unwrap().ends_with(&format!("us-central1-a/machineTypes/{machine}")), "{machine}");
    assert_eq!((&gce["accelerator"], &gce["accelerators"]), (&json!("v100"), &seed["guestAccelerators"][0]["acceleratorCount"]));
    assert_eq!(gce["disk_gb"].to_string(), disk["diskSizeGb"].as_str().unwrap());
    let family =
        format!("{}/global/images/family/{}", gce["image_project"].as_str().unwrap(), gce["image_family"].as_str().unwrap());
    assert!(disk["sourceImage"].as_str().unwrap().ends_with(&family), "{family}");
    assert_eq!(gce["zones"][0], "us-central1-a");
    assert_eq!(
        (&told["data"]["text"]["train"], &told["price_per_hour"]),
        (&json!([sandbox.path("train.txt")]), &json!("0.908039USD"))
    );

    // A job that cannot work there, or a machine that is not available, is refused before anything is asked.
    for (more, part) in [
        ("compute.gce.cpus=14", "1 v100 allow at most 12 vCPUs, not 14"),
        ("compute.gce.memory_gb=79", "12 vCPUs have between 10.8 and 78.0 GB of memory, not 79"),
        ("compute.gce.memory_gb=10", "12 vCPUs have between 10.8 and 78.0 GB of memory, not 10"),
        ("limits.ttl=121d", "120 days at most, not 121d"),
        ("image.variant=cpu", "the build `cpu` of libtorch has no kernels for a v100"),
        ("compute.gce.image_family=common-nvidia-590", "does not know a v100"),
    ] {
        let (code, said, _) = plan(&["--set", more]);
        assert!(code == Some(2) && said.contains(part), "{more}: {code:?} {said}");
    }
}
