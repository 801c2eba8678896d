//! Every verb on a real job.

use std::{fs, process::Stdio};

use rustix::process::Signal;

use crate::{
    blobs::TOY,
    browser,
    sandbox::{Sandbox, signal},
    terminal::{Environment, said_on_one},
};

/// A terminal has a bar, the step and the loss under the last line of its scroll; and nothing of them once the job is over.
#[test]
#[ignore = "needs the trainer: tests/run builds it"]
fn a_terminal_has_a_footer_while_a_job_trains() {
    let sandbox = Sandbox::new();
    let job = sandbox.job("footed", 8_000);
    let sets = ["--set", "train.log_every=500", "--set", "train.checkpoint_every=5000"];
    let run = sandbox.command(&[&["run", job.to_str().unwrap()], &sets[..]].concat());
    let said = said_on_one(&run, Environment::Inherited);
    let (trained, after) = said.split_once("Collecting").expect("it trains to its end");
    let footers: Vec<&str> =
        trained.split(['\r', '\n']).filter(|line| line.contains("Training") && line.contains("/8,000")).collect();
    let told = footers.iter().find(|line| line.contains('━') && line.contains("loss ") && line.contains(" tokens/s"));
    assert!(told.is_some(), "{footers:?}");
    assert!(!after.contains("/8,000") && !after.contains(" tokens/s"), "{after}");
}

#[test]
#[ignore = "needs the trainer: tests/run builds it"]
fn run_carries_a_job_through_its_whole_life() {
    let sandbox = Sandbox::new();
    let job = sandbox.job("whole", 20);
    let output = sandbox.run(&["run", job.to_str().unwrap()]);
    let talk = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{talk}");

    let status = sandbox.json(&["status", "whole"]);
    assert_eq!(status["state"], "succeeded");
    assert_eq!(status["step"], 20);
    let id = status["id"].as_str().unwrap();
    assert!(sandbox.ok(&["logs", id]).contains("step 20/20"));
    assert!(sandbox.ok(&["explain", id]).contains("succeeded"));
    assert_eq!(sandbox.json(&["bill"])["resources"].as_array().unwrap().len(), 0, "nothing is left running");

    let to = sandbox.path("weights");
    assert!(sandbox.ok(&["download", id, "--to", to.to_str().unwrap(), "--dry-run"]).contains("step 20, ") && !to.exists());
    sandbox.ok(&["download", id, "--to", to.to_str().unwrap()]);
    assert!(to.join("model.safetensors").is_file());
    let read = |name: &str| fs::read_to_string(to.join("artifacts").join(name)).unwrap();
    assert!(read("summary.json").contains("perplexity_after") && read("sample.txt").starts_with("pub fn "));
    assert_eq!(read("steps.jsonl").lines().filter(|line| line.contains("learning_rate")).count(), 20);
    assert_eq!(fs::read_dir(to.join("artifacts/tensorboard")).unwrap().count(), 1);
    let page = sandbox.path("report.html");
    sandbox.ok(&["report", id, "--out", page.to_str().unwrap()]);
    assert_eq!(fs::read_to_string(page).unwrap().matches("<svg").count(), 6, "all curves are known");
    let text = sandbox.ok(&["generate", to.to_str().unwrap(), "--prompt", "pub fn ", "--tokens", "10"]);
    assert!(text.starts_with("pub fn "), "{text}");
    let refused = sandbox.run(&["generate", to.to_str().unwrap(), "--prompt", "pub fn ", "--top-p", "2"]);
    let said = "error: invalid value '2' for '--top-p <TOP_P>': expected a number above 0 and at most 1\n";
    assert_eq!((refused.status.code(), String::from_utf8_lossy(&refused.stderr).as_ref()), (Some(2), said));

    // What it is called by goes wherever a model does: to read, to go on with, to begin another job with.
    assert_eq!(sandbox.ok(&["generate", "whole@20", "--prompt", "pub fn ", "--tokens", "10"]), text);
    let prompt = format!("sample.prompt=\"{}\"", "word ".repeat(99));
    let refused = sandbox.run(&["resume", id, "--set", "train.steps=30", "--set", &prompt]);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(refused.status.code() == Some(2) && said.contains("leaves no room in the model's context of 32"), "{said}");
    sandbox.ok(&["resume", id, "--set", "train.steps=30", "--wait"]);
    assert_eq!(
        (sandbox.json(&["status", id])["step"].as_u64(), sandbox.json(&["status", id])["attempt"].as_u64()),
        (Some(30), Some(2))
    );
    let next = sandbox.job("next", 2);
    let text = fs::read_to_string(&next).unwrap().replace("[data]", &format!("initial_weights = \"job:{id}@20\"\n[data]"));
    fs::write(&next, text.replace("[model]\nlayers = 2\nheads = 2\nwidth = 32\ncontext = 32\n", "")).unwrap();
    let planned = sandbox.ok(&["plan", next.to_str().unwrap()]);
    assert!(planned.contains(&format!(" job:{id}@20 (")), "{planned}");
    sandbox.ok(&["run", next.to_str().unwrap()]);
    let before = |job: &str| sandbox.json(&["bill", job])["results"]["first_perplexity"].as_f64().unwrap();
    assert!(before("next") < before("whole"), "it began with the other's weights");
    // Their shape is that in the store.
    let refused = sandbox.run(&["resume", "next", "--set", "train.steps=4", "--set", &prompt]);
    assert_eq!(refused.status.code(), Some(2), "{}", String::from_utf8_lossy(&refused.stderr));
    sandbox.ok(&["resume", "next", "--set", "train.steps=4", "--wait"]);
}

#[test]
#[ignore = "needs the trainer: tests/run builds it"]
fn a_cancelled_job_stops_with_a_checkpoint() {
    let sandbox = Sandbox::new();
    let id = sandbox.submit(&sandbox.job("endless", 1_000_000));
    Sandbox::until("the first step", || sandbox.json(&["status", &id])["step"].as_u64() > Some(0));
    let output = sandbox.run(&["cancel", &id]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(sandbox.json(&["status", &id])["state"], "cancelled");
    let results = sandbox.results(&id);
    assert!(!results.is_empty());
    assert!(sandbox.processes("ft-trainer train").is_empty() && sandbox.processes("ftctl agent").is_empty());
}

/// A trainer whose store is full: it has nothing to say, and the job is not over.
#[test]
#[ignore = "needs the trainer: tests/run builds it"]
fn an_agent_that_stands_still_is_told_and_once_that_it_goes_on() {
    let sandbox = Sandbox::new();
    let id = sandbox.submit(&sandbox.job("still", 1_000_000));
    let said = sandbox.path("said");
    let mut follower = sandbox.command(&["logs", "-f", &id]);
    let mut follower = follower.stdout(Stdio::null()).stderr(fs::File::create(&said).unwrap()).spawn().unwrap();
    let tells = |words: &str| fs::read_to_string(&said).unwrap().matches(words).count() == 1;
    Sandbox::until("the first step", || sandbox.json(&["status", &id])["step"].as_u64() > Some(0));
    for (what, words) in [(Signal::STOP, "its agent has sent no heartbeat"), (Signal::CONT, "sends heartbeats again")] {
        sandbox.processes("ftctl agent").into_iter().for_each(|pid| signal(pid, what));
        Sandbox::until(words, || tells(words));
    }
    sandbox.ok(&["cancel", &id]);
    follower.wait().unwrap();
    assert!(tells("its agent has sent no heartbeat"), "once: {}", fs::read_to_string(&said).unwrap());
}

#[test]
#[ignore = "needs the trainer: tests/run builds it"]
fn a_rehearsed_preemption_is_recovered_and_priced() {
    let sandbox = Sandbox::new();
    let id = sandbox.submit(&sandbox.job("drilled", 1_000_000));
    Sandbox::until("the first step", || sandbox.json(&["status", &id])["step"].as_u64() > Some(0));
    let drill = sandbox.json(&["drill", "preempt", &id]);
    assert_eq!(drill["attempt"], 1);
    assert!(drill["recovery_seconds"].as_f64().unwrap() > 0.0);
    sandbox.ok(&["down", &id, "-y"]);
    assert!(sandbox.processes("ft-trainer train").is_empty());
}

#[test]
#[ignore = "needs the trainer: tests/run builds it"]
fn the_page_of_the_quickstart_shows_two_attempts() {
    let sandbox = Sandbox::new();
    sandbox.ok(&["init", "quickstart", "--out", "quickstart.toml"]);
    let sets: Vec<&str> = TOY.iter().copied().chain(["train.steps=1500"]).flat_map(|set| ["--set", set]).collect();
    let id = sandbox.ok(&[&["submit", "quickstart.toml"][..], &sets].concat()).trim().to_owned();
    Sandbox::until("a checkpoint", || sandbox.json(&["status", &id])["step"].as_u64() > Some(20));
    sandbox.ok(&["drill", "preempt", &id]);
    sandbox.ok(&["logs", "-f", &id]);
    assert_eq!(sandbox.json(&["status", &id])["attempt"], 2);
    let page = sandbox.path("page.html");
    sandbox.ok(&["report", &id, "--out", page.to_str().unwrap()]);
    let text = fs::read_to_string(&page).unwrap();
    assert!(text.contains("var(--mark)") && text.contains("<polygon"), "where it was preempted, and its checkpoints");
    if std::env::var_os("FT_CHROMIUM").is_none() {
        eprintln!("SKIPPED: the page was not looked at: FT_CHROMIUM names no browser");
        return;
    }
    for width in [1340, 390] {
        let seen = browser::look(&page, width, false);
        assert!(seen["overlaps"] == serde_json::json!([]) && seen["sticksOut"].as_f64() <= Some(0.0), "{width}: {seen}");
    }
    browser::screenshot(&page, (1340, 2000));
}

#[test]
#[ignore = "needs the trainer: tests/run builds it"]
fn two_jobs_with_one_name_are_refused_while_the_first_lives() {
    let sandbox = Sandbox::new();
    let job = sandbox.job("twin", 1_000_000);
    let waited = sandbox.run(&["submit", job.to_str().unwrap(), "--wait", "--timeout", "1s"]);
    assert_eq!(waited.status.code(), Some(10), "{}", String::from_utf8_lossy(&waited.stderr));
    let id = String::from_utf8(waited.stdout).unwrap().trim().to_owned();
    assert_eq!(sandbox.json(&["status", &id])["state"], "running", "who stops waiting ends nothing");
    let second = sandbox.run(&["submit", job.to_str().unwrap()]);
    assert_eq!(second.status.code(), Some(12), "{}", String::from_utf8_lossy(&second.stderr));
    assert!(String::from_utf8_lossy(&second.stderr).contains(&id));
    // One who waits for the name waits no longer than for the job that has it, and one who asked for that ends it when time is up.
    let mut queued = sandbox.spawn(&["submit", sandbox.job("twin", 5).to_str().unwrap(), "--queue", "--wait"]);
    let ended = sandbox.run(&["wait", &id, "--timeout", "1s", "--cancel-on-interrupt"]);
    assert_eq!(ended.status.code(), Some(10), "{}", String::from_utf8_lossy(&ended.stderr));
    assert_eq!(sandbox.json(&["status", &id])["state"], "cancelled");
    assert!(queued.wait().unwrap().success(), "the one that waited for the name runs");
}

#[test]
#[ignore = "needs the trainer: tests/run builds it"]
fn two_supervisors_at_once_finish_one_job() {
    let sandbox = Sandbox::new();
    let id = sandbox.submit(&sandbox.job("watched", 40));
    let mut first = sandbox.spawn(&["logs", "-f", &id]);
    let mut second = sandbox.spawn(&["logs", "-f", &id]);
    assert!(first.wait().unwrap().success() && second.wait().unwrap().success());
    let status = sandbox.json(&["status", &id]);
    assert_eq!((status["state"].as_str(), status["attempt"].as_u64()), (Some("succeeded"), Some(1)));
}
