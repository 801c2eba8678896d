//! Everything that can be known of a job is known before money: `ftctl plan` and `ftctl prices`.

use std::fs;

use ft_trainer::shares::BUFFERS;
use ftctl::job::{
    id::JobId,
    plan::Plan,
    record::{Attempt, Record},
    state::{Outcome, State},
    units::Money,
};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::common::{Runs as _, Said, Sandbox};

const JOB: &str = "name = \"a\"\n[data]\ntrain = [\"text.txt\"]\nvalidation = [\"held.txt\"]\n\
    [model]\nlayers = 1\nheads = 1\nwidth = 8\ncontext = 64\n[train]\nsteps = 100\nblock_size = 32\nmicro_batch = 2\n";
/// 8 (50,257 + 64 + 13 + 2) + 12 × 8²
const PARAMETERS: u64 = 403_456;
/// 6 (12 × 8² + 50,257 × 8) + 6 × 32 × 8
const OPERATIONS: f64 = 2_418_480.0;
const IMAGE: &str = "registry.example/ftctl@sha256:0000000000000000000000000000000000000000000000000000000000000000";

fn place() -> Sandbox {
    let sandbox = Sandbox::new();
    for file in ["text.txt", "held.txt"] {
        sandbox.write(file, "Once upon a time there was a small town by the sea. ".repeat(800));
    }
    sandbox.write("job.toml", JOB);
    sandbox
}

fn parsed(said: &Said) -> Value {
    serde_json::from_str(&said.stdout).unwrap_or_else(|error| panic!("{error}: {}{}", said.stdout, said.stderr))
}

/// The value of a row of the plan as a person sees it.
fn row(text: &str, name: &str) -> Option<String> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix("  ").map(|value| value.trim().to_owned()))
}

/// Puts an earlier job with this plan into the store. It was submitted here, and told these rates.
fn leave(sandbox: &Sandbox, nonce: &str, plan: &Value, operations: f64, rates: &[f64]) -> JobId {
    let plan: Plan = serde_json::from_value(plan.clone()).expect("a plan");
    let (id, now) = (JobId::derive("a", nonce), Timestamp::now());
    let digest = plan.digest();
    let mut record = Record::new(id.clone(), plan, now);
    (record.state, record.outcome, record.attempt, record.submitted) = (State::Finished, Some(Outcome::Succeeded), 1, true);
    record.attempts = vec![Attempt { started: Some(now), ended: Some(now), ..Attempt::new(1, 0, Money::ZERO) }];
    let job = sandbox.state().join("store/ftctl/v1/jobs").join(id.as_str());
    fs::create_dir_all(job.join("attempts/1")).expect("a directory");
    fs::write(job.join("record.json"), json!(record).to_string()).expect("written");
    let start = json!({ "v": 1, "time": 0, "event": "start", "step": 0, "steps": 9, "parameters": 1, "tokens_per_step": 64,
        "flops_per_token": operations, "device": "CPU" });
    let step = |(step, rate): (usize, &f64)| {
        json!({ "v": 1, "time": 1, "event": "step", "step": step + 1, "steps": 9, "loss": 1.0, "learning_rate": 1e-3,
            "gradient_norm": 1.0, "tokens_per_second": rate, "mfu": 0.1, "eta_seconds": 0.0 })
    };
    let lines: Vec<String> = [start].into_iter().chain(rates.iter().enumerate().map(step)).map(|line| line.to_string()).collect();
    fs::write(job.join("attempts/1/progress.jsonl"), lines.join("\n") + "\n").expect("written");
    let submitted = sandbox.state().join("submitted");
    fs::create_dir_all(&submitted).expect("a directory");
    fs::write(submitted.join(id.as_str()), json!({ "schema": "ftctl.submitted/1", "plan": digest }).to_string()).expect("written");
    id
}

#[test]
fn a_plan_tells_the_numbers_of_its_job() {
    let sandbox = place();
    let told = sandbox.json(&["plan", "job.toml"]);
    let numbers = &told["numbers"];
    let [tokens, epochs] = ["tokens", "epochs"].map(|name| numbers[name].as_f64().expect("a number"));
    // Some twelve tokens a sentence.
    assert!((9_600.0..11_200.0).contains(&tokens) && numbers["documents"] == 1, "{numbers}");
    assert!(numbers["validation_tokens"] == numbers["tokens"], "{numbers}");
    let blocks = ((tokens - 1.0) / 32.0).floor();
    assert!((epochs - 200.0 / blocks).abs() < 1e-9, "{epochs}");
    assert_eq!(
        (&numbers["parameters"], &numbers["steps"], &numbers["tokens_per_step"]),
        (&json!(PARAMETERS), &json!(100), &json!(64))
    );
    assert!(numbers["memory_bytes"].as_u64().expect("a number") > 4 * 4 * PARAMETERS);
    assert_eq!((&numbers["worst_case_usd"], &numbers["worst_case_hours"]), (&json!(0.0), &json!(24.0)));
    assert_eq!((&told["missing"], &told["warnings"]), (&json!([]), &json!([])));

    let text = sandbox.ok(&["plan", "job.toml"]);
    let data = row(&text, "data").expect("a row");
    assert!(data.contains(" tokens in 1 document, and ") && data.ends_with(" for validation"), "{text}");
    assert_eq!(row(&text, "model").as_deref(), Some("403,456 parameters"));
    assert!(
        row(&text, "training").is_some_and(|row| row.starts_with("100 steps of 64 tokens: ") && row.ends_with(" epochs")),
        "{text}"
    );
    let why = "not known: no earlier job with these settings on such a machine, and no figures say how fast it computes in \
        this number format";
    assert_eq!(row(&text, "expected").as_deref(), Some(why));
    assert_eq!(told["expected"], json!({ "unknown": why.trim_start_matches("not known: ") }));
}

#[test]
fn a_plan_says_which_gpus_have_no_process() {
    let sandbox = place();
    let idle = |processes: &[&str]| {
        let size = "compute.azureml.size=Standard_ND40rs_v2";
        let arguments = [&["plan", "job.toml", "--backend", "azureml", "--set", size], processes].concat();
        row(&sandbox.run(&arguments).stdout, "idle")
    };
    assert_eq!(idle(&[]), None);
    let one = idle(&["--set", "compute.processes_per_node=1"]);
    assert_eq!(one.as_deref(), Some("7 of 8 GPUs: compute.processes_per_node = 1"));
}

#[test]
fn a_job_that_may_not_wait_is_told_of_a_queue() {
    let sandbox = place();
    let warned = |more: &[&str]| {
        let said = sandbox.run(
            &[&["plan", "job.toml", "--backend", "azureml", "--set", "compute.azureml.size=Standard_ND40rs_v2"], more].concat(),
        );
        said.stderr.contains("every job on azureml waits in its queue for a node, and this one may not wait")
    };
    assert!(warned(&["--retry-on", "preempt"]) && !warned(&[]) && !warned(&["--retry-on", "capacity"]));
}

#[test]
fn a_gpu_that_this_machine_lacks_is_missing() {
    let sandbox = place();
    let missing = |device: &str| {
        let said = sandbox.run(&["plan", "job.toml", "--set", &format!("train.device={device}")]);
        (said.code, row(&said.stdout, "missing"))
    };
    assert_eq!(missing("auto"), (Some(0), None));
    let message = "device: train.device = \"cuda\", and this machine has no GPU";
    let lacking = (Some(2), Some(message.to_owned()));
    let has_gpu = ["/dev/nvidia0", "/dev/dxg"].iter().any(|device| std::path::Path::new(device).exists());
    assert_eq!(missing("cuda"), if has_gpu { (Some(0), None) } else { lacking });
}

/// Text that takes long to count is estimated by its bytes, and the estimate is no count.
#[test]
fn much_text_is_estimated_by_its_bytes() {
    let sandbox = place();
    for file in ["text.txt", "held.txt"] {
        sandbox.write(file, "Once upon a time there was a small town by the sea. ".repeat(100_000));
    }
    let numbers = sandbox.json(&["plan", "job.toml"])["numbers"].take();
    assert_eq!((&numbers["estimated_tokens"], &numbers["tokens"]), (&json!(2_600_000), &Value::Null));
    let text = sandbox.ok(&["plan", "job.toml"]);
    let data = row(&text, "data").expect("a row");
    assert!(data.ends_with("text.txt: about 2,600,000 tokens (estimated from its 9.9 MiB, at 4 bytes a token)"), "{text}");
    let numbers = sandbox.json(&["plan", "job.toml", "--set", "data.limit_bytes=4000"])["numbers"].take();
    assert_eq!(numbers["estimated_tokens"], 1_000);
    // An epoch of half of it, at 64 tokens a step; and all that follows is an estimate too.
    let by_epochs = ["--set", "train.epochs=2"];
    sandbox.write("job.toml", JOB.replace("steps = 100\n", ""));
    let numbers = sandbox.json(&[&["plan", "job.toml"], &by_epochs[..]].concat())["numbers"].take();
    assert_eq!((&numbers["estimated_steps"], &numbers["steps"]), (&json!(40_624), &Value::Null), "{numbers}");
    assert_eq!((&numbers["epochs"], numbers["estimated_epochs"].as_f64().map(f64::round)), (&Value::Null, Some(2.0)), "{numbers}");
    let sets = ["--set", "train.precision=fp16", "--set", "train.micro_batch=256"];
    let expected = sandbox.json(&on_gce(&[&sets[..], &by_epochs].concat()))["expected"].take();
    // 317 steps of 8,192 tokens.
    let hours = 317.0 * 8_192.0 * OPERATIONS / (0.1 * 112e12) / 3_600.0;
    assert!((expected["hours"].as_f64().expect("hours") / hours - 1.0).abs() < 1e-6, "{expected}");
    assert!(expected["cost_usd"].is_number() && expected["estimated_steps"] == true, "{expected}");
    let text = sandbox.ok(&on_gce(&[&sets[..], &by_epochs].concat()));
    assert_eq!(row(&text, "training").as_deref(), Some("about 317 steps of 8192 tokens: about 2 epochs"), "{text}");
    let about = row(&text, "expected").expect("a row");
    assert!(about.starts_with("about ") && about.contains(" for the steps that the text is estimated to have, at "), "{about}");
    // The held-out text is no part of an epoch.
    let held = ["--set", "data.validation=[]", "--set", "data.validation_fraction=0.5"];
    let numbers = sandbox.json(&[&["plan", "job.toml"], &by_epochs[..], &held[..]].concat())["numbers"].take();
    assert_eq!(numbers["estimated_steps"], 20_312, "{numbers}");
    // Nothing is refused because of an estimate.
    let numbers = sandbox.json(&["plan", "job.toml", "--set", "train.gradient_accumulation=1000000"])["numbers"].take();
    assert_eq!((&numbers["estimated_steps"], &numbers["steps"]), (&Value::Null, &Value::Null), "{numbers}");
    // A packed file does not tell how much text it has.
    sandbox.write("text.txt.gz", "x".repeat(8 << 20));
    let numbers = sandbox.json(&["plan", "job.toml", "--set", "data.train=[\"text.txt.gz\"]"])["numbers"].take();
    assert_eq!(numbers["estimated_tokens"], Value::Null);
}

#[test]
fn text_of_a_source_is_estimated_by_its_limit() {
    let sandbox = place();
    let text = "train = [\"text.txt\"]\nvalidation = [\"held.txt\"]";
    sandbox.write("job.toml", JOB.replace(text, "source = \"cargo-dependencies\"\nlimit_bytes = 200000"));
    let numbers = sandbox.json(&["plan", "job.toml"])["numbers"].take();
    assert_eq!((&numbers["estimated_tokens"], &numbers["tokens"]), (&json!(50_000), &Value::Null));
    let said = Sandbox::said(sandbox.command(&["plan", "job.toml"]).env("PATH", sandbox.path("")).env_remove("CARGO"));
    assert!(said.code == Some(2) && said.stderr.contains("data: cargo is not in PATH; install Rust"), "{}", said.stderr);
}

/// Without a terminal each piece of work has one line for its end.
#[test]
fn the_end_of_a_piece_of_work_is_said_once() {
    let sandbox = place();
    let said = sandbox.run(&["prepare", "text.txt", "--out", "tokens", "--tokenizer", "train", "--vocabulary", "300"]);
    for work in ["Reading the text", "Counting words", "Tokenizing"] {
        let ends = said.stderr.lines().filter(|line| line.starts_with(&format!("{work}: "))).count();
        assert_eq!(ends, 1, "{work}: {}", said.stderr);
    }
}

#[test]
fn a_dataset_of_the_store_is_known_too() {
    let sandbox = place();
    sandbox.ok(&["prepare", "text.txt", "--out", "tokens", "--validation-fraction", "0"]);
    sandbox
        .write("job.toml", JOB.replace("[data]\ntrain = [\"text.txt\"]\nvalidation = [\"held.txt\"]\n", "dataset = \"@texts\"\n"));
    let said = sandbox.run(&["plan", "job.toml", "-o", "json"]);
    let told = parsed(&said);
    assert_eq!(said.code, Some(2), "{}", said.stderr);
    assert_eq!(
        (&told["missing"][0]["what"], &told["missing"][0]["fix"]),
        (&json!("data"), &json!("ftctl upload PATH --name texts"))
    );
    sandbox.ok(&["upload", "tokens", "--name", "texts"]);
    let numbers = sandbox.json(&["plan", "job.toml"])["numbers"].take();
    assert!(numbers["tokens"].as_u64().is_some_and(|tokens| tokens > 9_600) && numbers["parameters"] == PARAMETERS, "{numbers}");
    for verb in ["plan", "submit"] {
        let said = sandbox.run(&[verb, "job.toml", "--set", "train.gradient_accumulation=1000"]);
        assert!(said.code == Some(2) && said.stderr.contains("but one step reads 2000"), "{verb}: {}", said.stderr);
    }
}

/// A prompt has forty of GPT-2's tokens, and many more of a small vocabulary.
#[test]
fn a_prompt_is_counted_in_the_tokens_of_the_data() {
    let sandbox = place();
    let prompt = format!("sample.prompt=\"{}\"", ["Washington"; 40].join(" "));
    let small = ["--tokenizer", "train", "--vocabulary", "300"];
    sandbox.ok(&[&["prepare", "text.txt", "--out", "tokens", "--validation-fraction", "0"], &small[..]].concat());
    sandbox.ok(&["upload", "tokens", "--name", "texts"]);
    let text = "[data]\ntrain = [\"text.txt\"]\nvalidation = [\"held.txt\"]\n";
    let of_small = "[data]\ntrain = [\"text.txt\"]\n[data.tokenizer]\nkind = \"train\"\nvocabulary = 300\n";
    for (data, fits) in [(text, true), (of_small, false), ("dataset = \"tokens\"\n", false), ("dataset = \"@texts\"\n", false)] {
        sandbox.write("job.toml", JOB.replace(text, data));
        assert_eq!(sandbox.run(&["plan", "job.toml"]).code, Some(0), "{data}");
        let said = sandbox.run(&["plan", "job.toml", "--set", &prompt]);
        assert_eq!(said.code, Some(if fits { 0 } else { 2 }), "{data}: {}", said.stderr);
        assert!(fits || said.stderr.contains("leaves no room in the model's context of 64"), "{data}: {}", said.stderr);
    }
}

#[test]
fn a_plan_expects_what_an_earlier_job_has_shown() {
    let sandbox = place();
    let plan = sandbox.json(&["plan", "job.toml"]);
    // The first step is slow, and one line is nothing that a machine does.
    let id = leave(&sandbox, "one", &plan, OPERATIONS, &[3.0, 2_000.0, 1_000.0, 1_500.0]);
    let expected = sandbox.json(&["plan", "job.toml"])["expected"].take();
    assert_eq!((&expected["tokens_per_second"], &expected["measured"]), (&json!(1_500.0), &json!(true)), "{expected}");
    assert_eq!(expected["source"], json!(format!("as {id} trained")));
    // 100 steps of 64 tokens.
    let hours = 6_400.0 / 1_500.0 / 3_600.0;
    assert!((expected["hours"].as_f64().expect("a number") - hours).abs() < 1e-9 && expected["cost_usd"] == 0.0, "{expected}");
    let text = sandbox.ok(&["plan", "job.toml"]);
    assert_eq!(row(&text, "expected"), Some(format!("about 4s of training, at 1,500 tokens/s (as {id} trained)")));

    // Twice the operations, half as fast.
    let wider = sandbox.json(&["plan", "job.toml", "--set", "model.layers=2"]);
    let ratio = OPERATIONS / (OPERATIONS + 6.0 * 12.0 * 64.0 + 6.0 * 32.0 * 8.0);
    let scaled = wider["expected"]["tokens_per_second"].as_f64().expect("a number");
    assert!((scaled / 1_500.0 / ratio - 1.0).abs() < 1e-9, "{wider}");
    assert_eq!(wider["expected"]["source"], json!(format!("as {id} trained, scaled by the operations for a token")));
    let other = sandbox.json(&["plan", "job.toml", "--set", "train.threads=1"]);
    assert!(other["expected"]["unknown"].is_string(), "with other settings its speed is not known: {other}");

    // A job that was not submitted here ran elsewhere, and a store may say anything.
    fs::remove_dir_all(sandbox.state().join("submitted")).expect("removed");
    assert!(sandbox.json(&["plan", "job.toml"])["expected"]["unknown"].is_string());
    for (nonce, operations, rates) in
        [("two", OPERATIONS, [1.0, -5.0]), ("three", 0.0, [1.0, 5.0]), ("four", OPERATIONS, [1.0, 1e300])]
    {
        leave(&sandbox, nonce, &plan, operations, &rates);
    }
    assert!(sandbox.json(&["plan", "job.toml"])["expected"]["unknown"].is_string());
}

#[test]
fn a_plan_warns_of_machines_that_end_before_their_job() {
    let sandbox = place();
    let plan = sandbox.json(&["plan", "job.toml"]);
    leave(&sandbox, "one", &plan, OPERATIONS, &[1.0, 1.0]);
    let told = sandbox.json(&["plan", "job.toml", "--ttl", "1h"]);
    let warning = told["warnings"][0].as_str().expect("a warning");
    assert!(
        warning.contains("training takes about 1h 46m") && warning.contains("longer than the 1h 0m that limits.ttl allows"),
        "{warning}"
    );
    let said = sandbox.run(&["plan", "job.toml", "--ttl", "1h"]);
    assert!(said.code == Some(0) && said.stderr.contains(warning), "{}", said.stderr);
    assert_eq!(sandbox.json(&["plan", "job.toml", "--ttl", "2h"])["warnings"], json!([]));
}

/// With an image, and a store that no one here may read.
fn on_gce<'a>(more: &[&'a str]) -> Vec<&'a str> {
    let base = ["plan", "job.toml", "--backend", "gce", "--store", "azure://account/container"];
    [&base[..], &["--set", "compute.gce.image=registry.example/ftctl@sha256:00"], more].concat()
}

#[test]
fn a_plan_reckons_with_the_data_sheet_of_a_gpu_where_nothing_was_measured() {
    let sandbox = place();
    let plan = |more: &[&str]| sandbox.json(&on_gce(more));
    let wide = ["--set", "train.precision=fp16", "--set", "train.micro_batch=256"];
    let told = plan(&[&wide[..], &["--set", "train.steps=10000000"]].concat());
    let expected = &told["expected"];
    let rate = 0.1 * 112e12 / OPERATIONS;
    assert!((expected["tokens_per_second"].as_f64().expect("a number") / rate - 1.0).abs() < 1e-9, "{expected}");
    let hours = 81.92e9 / rate / 3_600.0;
    assert!((expected["hours"].as_f64().expect("a number") / hours - 1.0).abs() < 1e-6, "{expected}");
    assert!((expected["cost_usd"].as_f64().expect("a number") / (hours * 0.908_039) - 1.0).abs() < 1e-4, "{expected}");
    let source = "an estimate, with 10 % of the 112 TFLOP/s in the data sheet of a v100; nothing was measured";
    assert_eq!((&expected["measured"], &expected["source"]), (&json!(false), &json!(source)));
    assert_eq!((&told["numbers"]["price_per_hour_usd"], &told["price_per_hour"]), (&json!(0.908_039), &json!("0.908039USD")));
    let with = |other: &str| plan(&[&wide[..], &["--set", other]].concat())["expected"].take();
    // Each process has a GPU of its own, and reads as much.
    sandbox.write("text.txt", "Once upon a time there was a small town by the sea. ".repeat(8_000));
    let shared = plan(&[&wide[..], &["--set", "compute.gce.accelerators=8"]].concat())["expected"].take();
    let source = shared["source"].as_str().expect("a source");
    assert!(source.contains(" v100, on 8 GPUs that take no time to add up their gradients; nothing was measured"), "{source}");
    assert!((shared["tokens_per_second"].as_f64().expect("a number") / (8.0 * rate) - 1.0).abs() < 1e-9, "{shared}");
    // The GPU waits for the masks: of the embedding and twice in the block, eight numbers each, forward and backward.
    for (dropout, drawn) in [
        ("train.dropout=0.1", 48.0),
        ("train.attention_dropout=0.1", 48.0),
        ("train.lora={dropout = 0.1, target_modules = [\"mlp.c_proj\"]}", 96.0),
    ] {
        let expected = with(dropout);
        let operations = if drawn > 48.0 { OPERATIONS - 2.0 * (12.0 * 64.0 + 50_257.0 * 8.0) } else { OPERATIONS };
        let rate = 1.0 / (operations / (0.1 * 112e12) + drawn * 3e-9);
        assert!((expected["tokens_per_second"].as_f64().expect("a number") / rate - 1.0).abs() < 1e-9, "{dropout}: {expected}");
        let source = expected["source"].as_str().expect("a source");
        assert!(source.contains("v100 and 3 ns of the processor for each number of a dropout mask; nothing"), "{source}");
    }
    // Where other things decide, nothing is reckoned, and the plan names them.
    for (other, why) in [
        ("train.precision=bf16", "no figures say how fast it computes in this number format"),
        ("train.offload=optimizer", "with train.offload or train.recompute = \"host\" the speed depends on main memory"),
        ("train.device=cpu", "no figures say"),
        ("train.micro_batch=2", "a micro-batch of so few tokens leaves its GPU waiting"),
    ] {
        let expected = with(other);
        assert!(expected["unknown"].as_str().is_some_and(|unknown| unknown.contains(why)), "{other}: {expected}");
    }
}

#[test]
fn a_ceiling_says_how_long_it_pays_for() {
    let text = place().ok(&on_gce(&["--max-cost", "1.816078USD"]));
    assert_eq!(row(&text, "time to live").as_deref(), Some("2h: what 1.816078 USD pays for (limits.ttl is 1d)"));
}

#[test]
fn a_job_that_cannot_run_yet_is_planned_with_what_is_missing() {
    let sandbox = place();
    sandbox.write("job.toml", JOB.replace("text.txt", "nowhere.txt"));
    let said = sandbox.run(&["plan", "job.toml", "--backend", "gce", "-o", "json"]);
    let told = parsed(&said);
    assert_eq!(said.code, Some(2), "{}", said.stderr);
    let missing = told["missing"].as_array().expect("a list");
    let what: Vec<_> = missing.iter().filter_map(|finding| finding["what"].as_str()).collect();
    assert_eq!(what, ["store", "image", "data"], "{told}");
    assert!(missing.iter().all(|finding| finding["message"].is_string()) && missing[1]["fix"].is_string(), "{told}");
    assert_eq!((&told["error"]["code"], &told["schema"]), (&json!(2), &json!("ftctl.plan/1")));
    assert_eq!(
        (&told["numbers"]["price_per_hour_usd"], &told["numbers"]["worst_case_usd"]),
        (&json!(0.908_039), &json!(21.792_936))
    );

    let said = sandbox.run(&["plan", "job.toml", "--backend", "gce"]);
    assert_eq!(said.code, Some(2), "{}", said.stderr);
    let price = "0.91 USD an hour; on demand: 3.24 USD an hour (price list of 2025-11-01 for us-central1)";
    assert_eq!(row(&said.stdout, "price").as_deref(), Some(price), "{}", said.stdout);
    let rows = said.stdout.lines().filter(|line| line.starts_with("missing  ")).count();
    assert!(rows == 3 && said.stderr.contains("error: the job cannot run yet: 3 things are missing"), "{}", said.stderr);
    assert!(said.stdout.contains("fix: name a blob container: --store azure://ACCOUNT/CONTAINER"), "{}", said.stdout);
    // What is only planned is refused where it would be done, and a rehearsal of that says the same as the plan.
    let said = sandbox.run(&["run", "job.toml", "--backend", "gce"]);
    assert!(said.code == Some(2) && said.stderr.contains("cannot reach the store"), "{}", said.stderr);
    let dry = sandbox.run(&["run", "job.toml", "--dry-run"]);
    let planned = sandbox.run(&["plan", "job.toml"]);
    assert_eq!((dry.code, planned.code, &dry.stdout, &dry.stderr), (Some(2), Some(2), &planned.stdout, &planned.stderr));
}

#[test]
fn prices_need_no_store_and_are_those_of_a_plan() {
    let sandbox = place();
    let list = sandbox.json(&["prices"]);
    let all = list["prices"].as_array().expect("a list");
    let keys = ["backend", "gpu", "gpus", "gpu_memory_gb", "machine", "cpus", "memory_gb", "spot", "region", "zones", "date"];
    assert!(all.len() > 20 && all.iter().all(|offer| keys.iter().all(|key| !offer[key].is_null())), "{list}");
    assert!(all.is_sorted_by_key(|offer| offer["on_demand"].as_f64().unwrap_or(f64::MAX)), "the cheapest first");
    let find = |machine: &str, gpu: &str| all.iter().find(|offer| offer["gpu"] == gpu && offer["machine"] == machine);
    for (backend, machine, gpu) in [
        ("gce", "custom-12-79872", "v100"),
        ("gce", "custom-12-79872", "t4"),
        ("gce", "g2-standard-4", "l4"),
        ("gce", "a3-highgpu-1g", "h100"),
        ("azureml", "Standard_NC4as_T4_v3", "t4"),
    ] {
        let offer = find(machine, gpu).unwrap_or_else(|| panic!("{machine}: {list}"));
        let (image, set) = (format!("compute.{backend}.image={IMAGE}"), format!("compute.{backend}.accelerator={gpu}"));
        let more = ["--set", &set, "--set", &image];
        let plan = ["plan", "job.toml", "--store", "azure://account/container", "--backend", backend];
        let plan = sandbox.json(&[&plan[..], &more[..]].concat());
        assert_eq!(plan["numbers"]["price_per_hour_usd"], offer["spot"], "{machine}");
        let lasting = plan["lasting_price_per_hour"].as_str().and_then(|price| price.strip_suffix("USD")?.parse::<f64>().ok());
        assert_eq!(lasting, offer["on_demand"].as_f64(), "{machine}");
    }
    assert!(find("a3-highgpu-1g", "h100").is_some_and(|offer| offer["on_demand"].is_null()), "sold as a spot machine alone");

    let some = |arguments: &[&str]| sandbox.json(&[&["prices"], arguments].concat())["prices"].take();
    let v100 = some(&["--gpu", "V100", "--backend", "gce", "--spot"]);
    let v100 = v100.as_array().expect("a list");
    assert!(v100.len() == 4 && v100.iter().all(|offer| offer["gpu"] == "v100" && offer["backend"] == "gce"), "{v100:?}");
    assert!(some(&["--spot"]).as_array().is_some_and(|all| all.is_sorted_by_key(|offer| offer["spot"].as_f64())));
    let text = sandbox.ok(&["prices", "--gpu", "t4"]);
    assert!(text.lines().next().is_some_and(|header| header.starts_with("BACKEND") && header.contains("ON DEMAND")), "{text}");
    assert!(text.contains("Standard_NC4as_T4_v3") && text.contains("0.1052") && text.contains("2025-10-01"), "{text}");
    assert!(text.contains("13 zones") && text.contains("on gce with a disk of 200 GB"), "{text}");
    assert_eq!(sandbox.ok(&["prices", "--gpu", "p100", "-o", "name"]).lines().count(), 3);
    assert!(sandbox.ok(&["prices", "--backend", "local"]).starts_with("this backend sells nothing"));
    for (arguments, message) in [
        (&["--gpu", "v10"][..], "has a GPU called `v10`\n  fix: did you mean `v100`?"),
        (&["--backend", "azureml", "--gpu", "p100"], "no machine of azureml has a GPU called `p100`"),
        (&["--backend", "gcp"], "there is no backend `gcp`"),
    ] {
        let said = sandbox.run(&[&["prices"], arguments].concat());
        assert!(said.code == Some(2) && said.stderr.contains(message), "{arguments:?}: {}", said.stderr);
    }
}

/// Every process of a machine needs its part, and the buffers of its exchanges: those of a rehearsal's nodes too.
#[test]
fn processes_of_one_machine_share_its_memory() {
    let sandbox = place();
    let bytes = |how: &str| {
        let told = sandbox.json(&["plan", "job.toml", "--set", "train.threads=1", "--set", how]);
        told["numbers"]["memory_bytes"].as_u64().expect("a number")
    };
    let two = 2 * (bytes("compute.nodes=1") + BUFFERS);
    assert_eq!([bytes("compute.processes_per_node=2"), bytes("compute.nodes=2")], [two; 2]);
}

/// A process that carries the leaves of lost nodes keeps more. The plan tells how much before a node is lost.
#[test]
fn a_plan_that_may_shrink_tells_the_memory_of_fewer_nodes() {
    let sandbox = place();
    let nodes = ["--set=compute.nodes=2", "--set=train.leaves=4", "--set=train.gradient_accumulation=2", "--set=train.threads=1"];
    let whole = sandbox.json(&[&["plan", "job.toml"], &nodes[..]].concat());
    assert_eq!(whole["numbers"]["memory_bytes_on_fewer_nodes"], Value::Null);
    let shrinks = [&nodes[..], &["--set", "retry.shrink=true"]].concat();
    let told = sandbox.json(&[&["plan", "job.toml"], &shrinks[..]].concat());
    let bytes = |key: &str| told["numbers"][key].as_u64().expect("a number");
    // Two sums wait where one process has all four leaves, and one in each of two. The nodes of a rehearsal are one machine.
    let [alone, each] = [bytes("memory_bytes_on_fewer_nodes"), bytes("memory_bytes") / 2];
    assert_eq!(alone + BUFFERS - each, 4 * PARAMETERS);
    assert_eq!(told["retry"]["shrink"], true);
    let text = sandbox.run(&[&["plan", "job.toml"], &shrinks[..]].concat()).stdout;
    let row = row(&text, "on fewer nodes").expect("a row");
    assert!(row.starts_with("at most about "), "{row}");
    assert!(row.ends_with("; on 1 node a process computes 4 groups of a step (train.leaves) and keeps 2 more gradients"), "{row}");
}

#[test]
fn a_job_of_one_machine_cannot_shrink() {
    let sandbox = place();
    let shrinks = ["plan", "job.toml", "--set", "retry.shrink=true"];
    for backend in ["local", "docker", "gce", "fake"] {
        let said = sandbox.run(&[&shrinks[..], &["--backend", backend]].concat());
        assert_eq!(said.code, Some(2), "{}", said.stderr);
        let why = "retry.shrink = true lets a job go on with fewer machines, and this job has one; remove it, or set compute.nodes";
        assert!(said.stderr.contains(why), "{}", said.stderr);
    }
}
