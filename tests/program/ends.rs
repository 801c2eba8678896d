//! How a job ends for a pipeline: keys that are promises, one exit code for one end, and the end as JSON.

use std::{
    io::{BufRead as _, BufReader},
    process::{Command, Stdio},
};

use ftctl::job::{
    id::JobId,
    record::{Attempt, Record},
    state::State,
    units::Money,
};
use jiff::Timestamp;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::common::{Runs as _, Said, Sandbox};

fn sandbox(name: &str) -> Sandbox {
    let sandbox = Sandbox::in_memory();
    sandbox.write_rehearsal(name);
    sandbox
}

fn submit(sandbox: &Sandbox, key: &str, more: &[&str]) -> Said {
    sandbox.run(&[&["submit", "job.toml", "--wait", "--idempotency-key", key], more].concat())
}

#[test]
fn a_key_is_a_promise_whatever_jobs_came_between() {
    let sandbox = sandbox("keyed");
    let [first, second] = ["A", "B"].map(|key| {
        let said = submit(&sandbox, key, &[]);
        assert_eq!(said.code, Some(0), "{}", said.stderr);
        said.stdout
    });
    assert_ne!(first, second);
    let said = submit(&sandbox, "A", &["--set", "train.steps=20"]);
    let message = format!("error: the job {} was planned with other settings: train.steps was 10, now 20\n", first.trim());
    assert!(said.code == Some(12) && said.stderr.starts_with(&message), "{}", said.stderr);
    assert!(said.stderr.ends_with("fix: take another --idempotency-key\n"), "{}", said.stderr);
    let said = submit(&sandbox, "A", &["--set", "train.steps=20", "-o", "json"]);
    let error: Value = serde_json::from_str(&said.stderr).or_else(|_| serde_json::from_str(&said.stdout)).expect("an error");
    assert_eq!((&error["error"]["code"], &error["error"]["retryable"]), (&json!(12), &json!(false)), "no time cures it");
    let said = submit(&sandbox, "A", &[]);
    assert_eq!((said.code, &said.stdout), (Some(0), &first), "{}", said.stderr);
    let told = format!("the job of this key, {}, is over: succeeded; another --idempotency-key starts another job", first.trim());
    assert!(said.stderr.contains(&told), "{}", said.stderr);
    let status: Value = serde_json::from_str(&sandbox.run(&["status", "keyed", "-o", "json"]).stdout).expect("JSON");
    assert_eq!(status["id"], second.trim(), "the name is that of the later job");
}

/// The ids and the exit codes of these submissions, all at once.
fn at_once(sandbox: &Sandbox, submissions: &[Vec<&str>]) -> Vec<(Option<i32>, String)> {
    let begin = |more: &Vec<&str>| {
        let mut command = sandbox.command(&[&["submit", "job.toml"], &more[..]].concat());
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("started")
    };
    let children: Vec<_> = submissions.iter().map(begin).collect();
    let end = |child: std::process::Child| {
        let said = child.wait_with_output().expect("ended");
        (said.status.code(), String::from_utf8_lossy(&said.stdout).trim().to_owned())
    };
    children.into_iter().map(end).collect()
}

#[test]
fn two_keys_at_once_are_no_one_job() {
    for round in 0..4 {
        let sandbox = sandbox(&format!("race-{round}"));
        let [first, second] = ["A", "B"].map(|key| vec!["--idempotency-key", key]);
        let ends = at_once(&sandbox, &[first, second]);
        let ids: Vec<&String> = ends.iter().filter(|(code, _)| *code == Some(0)).map(|(_, id)| id).collect();
        assert!(!ids.is_empty() && ends.iter().all(|(code, _)| [Some(0), Some(12)].contains(code)), "{ends:?}");
        assert!(ids.len() == 1 || ids[0] != ids[1], "{ends:?}");
        let running = sandbox.json(&["status", "--state", "planned"]);
        assert_eq!(running["jobs"], json!([]), "nobody is left to wait: {ends:?}");
    }
}

#[test]
fn who_queues_for_a_name_gets_it_however_many_queue() {
    let sandbox = sandbox("crowd");
    let queued = vec!["--queue", "--wait"];
    let ends = at_once(&sandbox, &[queued.clone(), queued.clone(), queued.clone(), queued]);
    assert!(ends.iter().all(|(code, _)| *code == Some(0)), "{ends:?}");
    let ids: std::collections::BTreeSet<&String> = ends.iter().map(|(_, id)| id).collect();
    assert_eq!(ids.len(), 4, "{ends:?}");
}

/// One that is ours is driven to its end. Of another's it is said who can do that.
#[test]
fn who_queues_behind_a_job_that_is_left_alone_does_not_wait_for_ever() {
    let sandbox = sandbox("alone");
    let left = sandbox.run(&["submit", "job.toml"]).stdout.trim().to_owned();
    let queued = ["submit", "job.toml", "--queue", "--wait", "--timeout"];
    let mut elsewhere = sandbox.command(&[&queued[..], &["9s"]].concat());
    elsewhere.env("FTCTL_STORE", sandbox.state().join("store")).env("XDG_STATE_HOME", sandbox.path("other"));
    let said = Sandbox::said(&mut elsewhere);
    assert_eq!((said.code, &sandbox.json(&["status", &left])["state"]), (Some(10), &json!("running")), "{}", said.stderr);
    assert!(said.stderr.contains(&format!("no ftctl drives it: run `ftctl logs -f {left}`")), "{}", said.stderr);

    let said = sandbox.run(&[&queued[..], &["60s"]].concat());
    assert_eq!((said.code, &sandbox.json(&["status", &left])["state"]), (Some(0), &json!("succeeded")), "{}", said.stderr);
    assert!(
        said.stdout.trim() != left && said.stderr.contains(&format!("waiting for the job {left} of this name")),
        "{}",
        said.stderr
    );
}

#[test]
fn an_empty_key_is_none() {
    let said = submit(&sandbox("keyless"), "", &[]);
    assert!(said.code == Some(2) && said.stderr.contains("--idempotency-key is empty"), "{}", said.stderr);
}

#[test]
fn a_real_job_is_not_looked_for_in_a_simulated_cloud() {
    let sandbox = sandbox("apart");
    let id = submit(&sandbox, "one", &[]).stdout;
    let record = sandbox.state().join(format!("store/ftctl/v1/jobs/{}/record.json", id.trim()));
    let mut changed: Value = serde_json::from_slice(&std::fs::read(&record).expect("a record")).expect("JSON");
    let up = sandbox.run(&["up", "job.toml", "--set", "name=here"]).stdout;
    let here = sandbox.state().join(format!("store/ftctl/v1/jobs/{}/record.json", up.trim()));
    let mut forged: Value = serde_json::from_slice(&std::fs::read(&here).expect("a record")).expect("JSON");
    (forged["simulated"], forged["account"]) = (json!(false), json!("the project p"));
    std::fs::write(&here, forged.to_string()).expect("written");
    let cloud = || std::fs::read_to_string(sandbox.state().join("fake/cloud.json")).expect("a cloud");
    let machine = format!("\"{}-a1\": {{", up.trim());
    assert!(cloud().contains(&machine), "{}", cloud());
    assert_eq!(sandbox.run(&["down", up.trim(), "-y"]).code, Some(2));
    assert!(!cloud().contains(&machine), "whoever wrote the record keeps no machine of ours: {}", cloud());
    for (account, refusal) in [(json!("the project p"), Some("are in a real cloud, and here a simulated one")), (json!(null), None)]
    {
        (changed["simulated"], changed["account"]) = (json!(false), account);
        std::fs::write(&record, changed.to_string()).expect("written");
        let said = sandbox.run(&["down", id.trim(), "-y"]);
        assert_eq!(said.code, Some(if refusal.is_some() { 2 } else { 0 }), "{}", said.stderr);
        assert!(refusal.is_none_or(|words| said.stderr.contains(words)), "{}", said.stderr);
    }
}

#[test]
fn a_key_whose_job_failed_says_so() {
    let sandbox = sandbox("broken");
    sandbox.script(&json!({ "preemptions": [{ "attempt": 1, "after": "2m" }] }));
    let once = ["--retry-on", "capacity"];
    let first = submit(&sandbox, "one", &once);
    assert_eq!(first.code, Some(6), "{}", first.stderr);
    let again = submit(&sandbox, "one", &once);
    assert_eq!((again.code, &again.stdout), (Some(6), &first.stdout), "{}", again.stderr);
    assert!(again.stderr.contains("is over: failed; another --idempotency-key starts another job"), "{}", again.stderr);
}

#[test]
fn the_end_of_a_job_is_one_json_value_and_one_exit_code() {
    let sandbox = sandbox("ends");
    sandbox.script(&json!({ "preemptions": [{ "attempt": 1, "after": "2m" }] }));
    let value = |said: &Said| serde_json::from_str::<Value>(&said.stdout).expect("one JSON value");
    let said = submit(&sandbox, "one", &["--retry-on", "capacity", "-o", "json"]);
    let failed = value(&said);
    assert_eq!((said.code, &failed["state"], &failed["schema"]), (Some(6), &json!("failed"), &json!("ftctl.submitted/1")));
    assert!(failed["error"]["message"].as_str().is_some_and(|message| message.contains("preempted in attempt 1")), "{failed}");
    sandbox.script(&json!({}));
    let said = submit(&sandbox, "two", &["-o", "json"]);
    let succeeded = value(&said);
    assert_eq!((said.code, &succeeded["state"]), (Some(0), &json!("succeeded")));
    assert!(succeeded.get("error").is_none(), "{succeeded}");

    let (failed, succeeded) = (failed["id"].as_str().expect("an id"), succeeded["id"].as_str().expect("an id"));
    let said = sandbox.run(&["wait", succeeded, failed, "-o", "json"]);
    let ended = value(&said);
    let states: Vec<_> = ended["jobs"].as_array().expect("a list").iter().map(|job| job["state"].as_str()).collect();
    assert_eq!((said.code, states), (Some(6), vec![Some("succeeded"), Some("failed")]));
    for (job, code) in [(succeeded, 0), (failed, 6)] {
        assert_eq!(sandbox.run(&["logs", "-f", job]).code, Some(code), "one end has one exit code");
        assert_eq!(sandbox.run(&["logs", job]).code, Some(0), "and what is only shown has none");
    }
    assert_eq!(sandbox.run(&["wait", succeeded]).code, Some(0));
    assert_eq!(sandbox.run(&["wait", "nobody"]).code, Some(3));
    let running = sandbox.run(&["submit", "job.toml", "--idempotency-key", "three"]).stdout;
    let running = running.trim();
    assert_eq!(sandbox.run(&["wait", running, "nobody"]).code, Some(3));
    let said = sandbox.run(&["status", running, "-o", "json"]);
    assert_eq!(value(&said)["state"], "running", "a name that is wrong is told before the first end is waited for");
}

#[test]
fn jobs_are_shown_whole_and_beside_each_other() {
    let sandbox = sandbox("seen");
    let first = submit(&sandbox, "A", &[]).stdout;
    let second = submit(&sandbox, "B", &["--set", "train.steps=20"]).stdout;
    let [first, second] = [first.trim(), second.trim()];
    let value = |arguments: &[&str]| {
        let said = sandbox.run(&[arguments, &["-o", "json"]].concat());
        assert_eq!(said.code, Some(0), "{}", said.stderr);
        serde_json::from_str::<Value>(&said.stdout).expect("JSON")
    };
    let whole = value(&["show", first]);
    assert_eq!((&whole["id"], &whole["state"], &whole["plan"]["train"]["steps"]), (&json!(first), &json!("succeeded"), &json!(10)));
    let text = sandbox.run(&["show", first]).stdout;
    assert!(
        text.contains("Settings\n") && text.lines().any(|line| line.starts_with("train.steps ") && line.ends_with(" 10")),
        "{text}"
    );
    assert!(text.lines().any(|line| line.starts_with("price_per_hour ") && line.ends_with("0.74 USD")), "{text}");
    let compared = value(&["compare", first, second]);
    assert_eq!(compared["settings"], json!({ "train.steps": [10, 20] }));
    assert_eq!((compared["jobs"].as_array().map(Vec::len), &compared["same_data"]), (Some(2), &json!(true)));
    let text = sandbox.run(&["compare", first, second]).stdout;
    let row = |name: &str| text.lines().find(|line| line.starts_with(name)).map(|line| line.split_whitespace().collect::<Vec<_>>());
    assert_eq!(row("job"), Some(vec!["job", first, second]));
    assert_eq!(row("train.steps"), Some(vec!["train.steps", "10", "20"]), "{text}");
    assert_eq!(sandbox.run(&["compare", first]).code, Some(2), "one is nothing to compare");
    // The same path, and other data.
    sandbox.write("data/train.bin", "other tokens");
    let third = submit(&sandbox, "C", &[]).stdout;
    assert_eq!(value(&["compare", first, third.trim()])["same_data"], false);
    let text = sandbox.run(&["compare", first, third.trim()]).stdout;
    assert!(text.contains("\ndataset ") && text.contains("their losses and perplexities do not compare"), "{text}");
}

#[test]
fn a_finished_job_can_be_removed_and_no_other() {
    let sandbox = sandbox("gone");
    let first = submit(&sandbox, "A", &[]).stdout.trim().to_owned();
    let second = submit(&sandbox, "B", &[]).stdout.trim().to_owned();
    let running = sandbox.run(&["submit", "job.toml"]).stdout.trim().to_owned();
    let jobs = || sandbox.run(&["status", "--all", "-o", "name"]).stdout;
    let said = sandbox.run(&["rm", &first, &running, "-y"]);
    assert_eq!(said.code, Some(12), "{}", said.stderr);
    assert!(said.stderr.contains(&format!("ftctl cancel {running}")) && jobs().contains(&first), "all or none: {}", said.stderr);
    assert_eq!(sandbox.run(&["rm", &first]).code, Some(2), "no one said yes");
    assert_eq!(sandbox.run(&["rm", &first, "--dry-run"]).stdout.trim(), format!("would remove the job {first}"));
    let said = sandbox.run(&["rm", &first, &second, "-y"]);
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    assert_eq!(jobs().trim(), running);
    for id in [&first, &second] {
        assert!(
            !sandbox.state().join("store/ftctl/v1/jobs").join(id).exists() && !sandbox.state().join("submitted").join(id).exists()
        );
    }
    let named = sandbox.run(&["status", "gone", "-o", "name"]).stdout;
    assert_eq!(named.trim(), running, "the name is that of the job which has it");
    assert_eq!(sandbox.run(&["rm", &first, "-y"]).code, Some(3));
}

#[test]
fn the_name_of_a_removed_job_is_that_of_the_one_before_it() {
    let sandbox = sandbox("again");
    let [first, second] = ["A", "B"].map(|key| submit(&sandbox, key, &[]).stdout.trim().to_owned());
    let named = || sandbox.run(&["status", "again", "-o", "name"]);
    assert_eq!(named().stdout.trim(), second);
    assert_eq!(sandbox.run(&["rm", "again", "-y"]).code, Some(0));
    assert_eq!(named().stdout.trim(), first);
    assert_eq!(sandbox.run(&["rm", "again", "-y"]).code, Some(0));
    assert_eq!(named().code, Some(3));
}

#[test]
fn status_and_down_take_several_jobs_and_one_that_fails_holds_up_no_other() {
    let sandbox = sandbox("several");
    sandbox.script(&json!({ "job": { "duration": "60d" } }));
    let submit = |name: &str| {
        let name = format!("name={name}");
        sandbox.ok(&["submit", "job.toml", "--ttl", "30d", "--set", &name]).trim().to_owned()
    };
    let (one, other) = (submit("several"), submit("more"));
    let shown: Value = serde_json::from_str(&sandbox.ok(&["status", &one, &other, "several", "-o", "json"])).expect("JSON");
    let ids: Vec<&str> = shown["jobs"].as_array().expect("jobs").iter().filter_map(|job| job["id"].as_str()).collect();
    assert_eq!(ids, [one.as_str(), &other], "each once, in the order of the words");
    assert_eq!(sandbox.run(&["status", &one, "none"]).code, Some(3));

    sandbox.script(&json!({ "job": { "duration": "60d" }, "faults": [{ "call": "destroy", "kind": "denied", "times": 3 }] }));
    let said = sandbox.run(&["down", &one, &other, "-y"]);
    assert_eq!(said.code, Some(8), "{}", said.stderr);
    // Any ftctl that is asked for something tries again: the cloud itself is looked at.
    let machines = || {
        let cloud = std::fs::read(sandbox.state().join("fake/cloud.json")).expect("a cloud");
        serde_json::from_slice::<Value>(&cloud).expect("JSON")["machines"].as_object().map(serde_json::Map::len)
    };
    assert_eq!(machines(), Some(1), "{}", said.stderr);
    let gone: Value = serde_json::from_str(&sandbox.ok(&["down", &one, &other, "-y", "-o", "json"])).expect("JSON");
    assert_eq!(gone["gone"].as_array().map(Vec::len), Some(2));
    assert_eq!(machines(), Some(0));
}

#[test]
fn a_wait_that_a_signal_ends_leaves_the_job_running_unless_it_shall_be_cancelled() {
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143), (Signal::HUP, 129)] {
        for (more, state, last) in
            [(&[][..], "running", "is still running"), (&["--cancel-on-interrupt"], "cancelled", "was cancelled")]
        {
            let sandbox = sandbox("waits");
            sandbox.script(&json!({ "job": { "duration": "60d" } }));
            let waits = sandbox.command(&[&["submit", "job.toml", "--wait", "--ttl", "30d"], more].concat());
            // These tests may run below `nohup`.
            let mut waits = through(&["env", "--default-signal=HUP"], &waits);
            let mut waits = waits.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("ftctl runs");
            let mut id = String::new();
            // It is printed when the job runs, and the wait begins.
            BufReader::new(waits.stdout.take().expect("piped")).read_line(&mut id).expect("an id");
            kill_process(Pid::from_child(&waits), signal).expect("it waits");
            let ended = waits.wait_with_output().expect("it ended");
            let said = String::from_utf8(ended.stderr).expect("UTF-8");
            assert_eq!(ended.status.code(), Some(code), "{signal:?} {more:?}: {said}");
            assert!(said.contains(&format!("the job {} {last}", id.trim())), "{signal:?} {more:?}: {said}");
            assert_eq!(sandbox.json(&["show", id.trim()])["state"], state, "{signal:?} {more:?}: {said}");
        }
    }
}

/// A command that another program begins.
fn through(words: &[&str], command: &Command) -> Command {
    let mut through = Command::new(words[0]);
    through.args(&words[1..]).arg(command.get_program()).args(command.get_args());
    through.current_dir(command.get_current_dir().expect("a directory")).env_clear();
    through.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    through
}

/// `nohup` ignores SIGHUP for what it starts.
#[test]
fn a_wait_that_ignores_hang_ups_goes_on() {
    let sandbox = sandbox("nohup");
    sandbox.script(&json!({ "job": { "duration": "60d" } }));
    let waits = sandbox.command(&["submit", "job.toml", "--wait", "--ttl", "30d"]);
    let mut waits = through(&["sh", "-c", "trap '' HUP; exec \"$0\" \"$@\""], &waits);
    let mut waits = waits.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("ftctl runs");
    BufReader::new(waits.stdout.take().expect("piped")).read_line(&mut String::new()).expect("an id");
    let pid = Pid::from_child(&waits);
    kill_process(pid, Signal::HUP).expect("it waits");
    std::thread::sleep(std::time::Duration::from_millis(500));
    assert!(waits.try_wait().expect("looked").is_none(), "it is not ended by what it ignores");
    kill_process(pid, Signal::TERM).expect("it waits");
    assert_eq!(waits.wait_with_output().expect("it ended").status.code(), Some(143));
}

#[test]
fn several_jobs_are_cancelled_by_one_command() {
    let sandbox = Sandbox::in_memory();
    let [first, second] = ["first", "second"].map(|name| {
        sandbox.write_rehearsal(name);
        sandbox.run(&["submit", "job.toml"]).stdout.trim().to_owned()
    });
    let states = || {
        let jobs = [&first, &second].map(|id| sandbox.run(&["show", id, "-o", "json"]).stdout);
        jobs.map(|job| serde_json::from_str::<Value>(&job).expect("JSON")["state"].clone())
    };
    let said = sandbox.run(&["cancel", &first, "nobody"]);
    assert_eq!((said.code, states()), (Some(3), [json!("running"), json!("running")]), "all or none: {}", said.stderr);
    let said = sandbox.run(&["cancel", &first, &second, "--dry-run"]);
    assert_eq!(said.stdout.lines().count(), 4, "{}", said.stdout);
    // Named twice, it is one job.
    let said = sandbox.run(&["cancel", &first, "second", "first", "--now", "-o", "json"]);
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    let ended = [&first, &second].map(|id| json!({ "id": id, "state": "cancelled" }));
    assert_eq!(serde_json::from_str::<Value>(&said.stdout).expect("JSON"), json!({ "schema": "ftctl.ended/1", "jobs": ended }));
    assert_eq!(states(), [json!("cancelled"), json!("cancelled")]);
    let said = sandbox.run(&["cancel", &second, &first]);
    assert_eq!((said.code, said.stdout), (Some(0), format!("{second}: cancelled\n{first}: cancelled\n")));
    assert_eq!(said.stderr.matches("was over before: cancelled").count(), 2, "{}", said.stderr);
}

/// Without a look at anything but its record.
#[test]
fn a_finished_job_shows_what_it_measured_last() {
    let sandbox = sandbox("seen");
    let good = submit(&sandbox, "A", &[]).stdout.trim().to_owned();
    sandbox.script(&json!({ "preemptions": [{ "attempt": 1, "after": "2m" }] }));
    let bad = submit(&sandbox, "B", &["--retry-on", "capacity"]).stdout.trim().to_owned();
    let jobs = sandbox.state().join("store/ftctl/v1/jobs");
    let results = sandbox.json(&["bill", &good])["results"].take();
    let progress = jobs.join(&good).join("attempts/1/progress.jsonl");
    std::fs::rename(&progress, jobs.join("elsewhere")).expect("moved");
    let shown = sandbox.json(&["status", "--state", "succeeded"])["jobs"].take();
    assert_eq!((shown[0]["id"].as_str(), shown.as_array().map(Vec::len)), (Some(good.as_str()), Some(1)), "{shown}");
    for (key, result) in [("loss", "last_loss"), ("validation_loss", "last_validation_loss"), ("perplexity", "last_perplexity")] {
        assert!(shown[0][key].is_f64() && shown[0][key] == results[result], "{key}: {shown} {results}");
    }
    let table = sandbox.ok(&["status"]);
    let row = |id: &str| table.lines().find(|line| line.starts_with(id)).map(|line| line.split_whitespace().collect::<Vec<_>>());
    let perplexity = format!("{:.2}", results["last_perplexity"].as_f64().expect("a number"));
    assert!(table.contains("PERPLEXITY") && row(&good).is_some_and(|row| row.contains(&perplexity.as_str())), "{table}");

    let names = |arguments: &[&str]| sandbox.ok(&[&["status", "-o", "name"], arguments].concat());
    let [good, bad] = [good, bad].map(|id| id + "\n");
    assert_eq!((names(&["--failed"]), names(&["--state", "failed,cancelled"])), (bad.clone(), bad.clone()));
    assert_eq!(names(&["--state", "finished"]), names(&["--all"]), "every end");
    assert_eq!((names(&[]), names(&["--sort", "created"])), (format!("{bad}{good}"), format!("{good}{bad}")));
    assert_eq!(names(&["--sort", "state"]), format!("{bad}{good}"));
    assert_eq!(names(&["--sort", "step"]), format!("{bad}{good}"), "it was taken away before its last step");
    assert!(sandbox.ok(&["status", "--state", "running"]).starts_with("no such job is under way"));
    for (arguments, message) in
        [(&["--state", "succeded"][..], "did you mean `succeeded`?"), (&["--sort", "age"], "possible values: name, state")]
    {
        let said = sandbox.run(&[&["status"], arguments].concat());
        assert!(said.code == Some(2) && said.stderr.contains(message), "{arguments:?}: {}", said.stderr);
    }

    // A record of before has no such numbers; one job is looked at closer.
    std::fs::rename(jobs.join("elsewhere"), progress).expect("moved");
    let record = jobs.join(good.trim()).join("record.json");
    let mut kept: Value = serde_json::from_slice(&std::fs::read(&record).expect("a record")).expect("JSON");
    assert!(kept.as_object_mut().and_then(|record| record.remove("measures")).is_some(), "{kept}");
    std::fs::write(&record, kept.to_string()).expect("written");
    assert!(sandbox.json(&["status", "--state", "succeeded"])["jobs"][0]["loss"].is_null());
    assert_eq!(sandbox.json(&["status", good.trim()])["perplexity"], results["last_perplexity"]);
}

/// The time of a wait begins with the command: what waits for a name has no job yet.
#[test]
fn a_timeout_bounds_the_wait_for_a_name_too() {
    let sandbox = sandbox("named");
    let job = on_a_cloud(&sandbox, true);
    reserve(&sandbox, "far", &job);
    let started = std::time::Instant::now();
    for verb in [&["submit", "--wait"][..], &["run"]] {
        let said = sandbox.run(&[verb, &["job.toml", "--queue", "--timeout", "1s", "--backend", "fake"]].concat());
        assert_eq!(said.code, Some(10), "{}", said.stderr);
        assert!(said.stderr.contains(&format!("waiting for the job {job} of this name to end")), "{}", said.stderr);
        assert!(said.stderr.contains("error: waited 1s; nothing was submitted\n  fix: give a longer --timeout"), "{}", said.stderr);
    }
    assert!(started.elapsed().as_secs() < 60);
    assert_eq!(sandbox.json(&["status", "--all"])["jobs"].as_array().map(Vec::len), Some(1));
}

#[test]
fn a_signal_ends_the_wait_for_a_name() {
    let sandbox = sandbox("named");
    let job = on_a_cloud(&sandbox, true);
    reserve(&sandbox, "far", &job);
    let mut queued = sandbox.command(&["submit", "job.toml", "--queue", "--backend", "fake"]);
    let mut queued = queued.stderr(Stdio::piped()).spawn().expect("ftctl runs");
    let mut said = BufReader::new(queued.stderr.take().expect("piped")).lines().map(|line| line.expect("a line"));
    assert!(said.any(|line| line.contains("waiting for the job")));
    kill_process(Pid::from_child(&queued), Signal::TERM).expect("sent");
    assert_eq!(said.last().as_deref(), Some("interrupted: nothing was submitted"));
    assert_eq!(queued.wait().expect("ended").code(), Some(143));
}

/// Another ftctl has taken the name, and the record of its job is waited for: the signal comes before there is one.
#[test]
fn a_signal_while_a_job_is_opened_undoes_it() {
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143), (Signal::HUP, 129)] {
        let sandbox = sandbox("opened");
        reserve(&sandbox, "opened", &JobId::derive("opened", "another"));
        let mut submitted = sandbox.command(&["submit", "job.toml", "--wait"]);
        let submitted = submitted.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("ftctl runs");
        while !catches(submitted.id(), signal) {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        assert!(!sandbox.state().join("store/ftctl/v1/jobs").exists(), "the signals are heeded first");
        kill_process(Pid::from_child(&submitted), signal).expect("sent");
        let said = submitted.wait_with_output().expect("ended");
        let told = String::from_utf8_lossy(&said.stderr);
        let last = told.lines().last().unwrap_or_default();
        assert!(said.status.code() == Some(code) && last.starts_with("interrupted: nothing of opened-"), "{signal:?}: {told}");
        assert_eq!(sandbox.json(&["status", "--all"])["jobs"][0]["state"], "cancelled");
    }
}

/// Whether a process has a handler for the signal. One that has ended has none.
fn catches(process: u32, signal: Signal) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).expect("a process");
    assert!(!status.contains("State:\tZ"), "it has ended");
    let caught = status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("SigCgt:")?.trim(), 16).ok());
    caught.expect("a mask") >> (signal.as_raw() - 1) & 1 == 1
}

fn reserve(sandbox: &Sandbox, name: &str, job: &JobId) {
    let names = sandbox.state().join("store/ftctl/v1/names");
    std::fs::create_dir_all(&names).expect("a directory");
    std::fs::write(names.join(format!("{name}.json")), json!({ "schema": "ftctl.name/1", "id": job }).to_string())
        .expect("written");
}

/// A job on Compute Engine, real or simulated, whose machine was asked for and is there as far as the record tells.
fn on_a_cloud(sandbox: &Sandbox, simulated: bool) -> JobId {
    sandbox.write("job.toml", "name = \"far\"\n[data]\ntrain = [\"job.toml\"]\n");
    let sets = ["--backend", "gce", "--set", "compute.gce.image=registry.example/ftctl@sha256:00"];
    let plan = [&["plan", "job.toml", "--store", "azure://account/container", "-o", "json"], &sets[..]].concat();
    let plan = serde_json::from_str(&sandbox.run(&plan).stdout).expect("a plan");
    let (id, now) = (JobId::derive("far", if simulated { "simulated" } else { "real" }), Timestamp::now());
    let mut record = Record::new(id.clone(), plan, now);
    (record.state, record.attempt, record.submitted, record.simulated) = (State::Running, 1, true, simulated);
    let price = Money { micros: 3_600_000_000 };
    record.attempts = vec![Attempt { started: Some(now), ..Attempt::new(1, 0, price) }];
    let job = sandbox.state().join("store/ftctl/v1/jobs").join(id.as_str());
    std::fs::create_dir_all(&job).expect("a directory");
    std::fs::write(job.join("record.json"), json!(record).to_string()).expect("written");
    id
}

#[test]
fn a_job_of_a_simulated_cloud_that_has_ended_is_ended_without_it() {
    let sandbox = Sandbox::new();
    let [simulated, real] = [true, false].map(|simulated| on_a_cloud(&sandbox, simulated).to_string());
    let said = sandbox.run(&["down", &real, "--cloud-is-gone"]);
    assert_eq!(said.code, Some(2), "{}", said.stderr);
    assert!(said.stderr.contains(&format!("{real} is a job of gce, which is no simulated cloud")), "{}", said.stderr);
    assert!(said.stderr.contains(&format!("fix: ftctl down {real}")), "{}", said.stderr);
    assert_eq!(sandbox.json(&["status", &real])["state"], "running");

    // Nothing answers there any more: what would try for ever says how it ends.
    for verb in [&["down", &simulated, "-y"][..], &["cancel", &simulated, "--now"]] {
        let mut command = sandbox.command(verb);
        command.envs([
            ("FTCTL_ENDPOINT_GCE", "http://127.0.0.1:9"),
            ("CLOUDSDK_AUTH_ACCESS_TOKEN", "token"),
            ("CLOUDSDK_CORE_PROJECT", "p"),
        ]);
        let mut asked = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("ftctl runs");
        let mut lines = BufReader::new(asked.stderr.take().expect("piped")).lines().map_while(Result::ok);
        let hint = format!("Where its simulated cloud has ended: `ftctl down {simulated} --cloud-is-gone`");
        let mut told = Vec::new();
        assert!(lines.by_ref().inspect(|line| told.push(line.clone())).any(|line| line == hint), "{verb:?} says {told:?}");
        asked.kill().expect("killed");
        asked.wait().expect("waited");
    }
    let would = sandbox.ok(&["down", &simulated, "--cloud-is-gone", "--dry-run"]);
    assert!(would.contains(&format!("end {simulated} without asking gce")), "{would}");
    assert_eq!(sandbox.json(&["status", &simulated])["state"], "running", "it was only looked at");
    for _ in 0..2 {
        sandbox.ok(&["down", &simulated, "--cloud-is-gone"]);
    }
    let ended = sandbox.json(&["status", &simulated]);
    assert_eq!((&ended["state"], &ended["reason"]), (&json!("cancelled"), &json!("its simulated cloud has ended")));
    assert_eq!(ended["simulated"], true);

    // Money of its kind is added up by itself.
    let spent = sandbox.json(&["bill", "--since", "1h"]);
    assert_ne!((spent["simulated_cost"].as_str(), spent["cost"].as_str()), (Some("0USD"), Some("0USD")), "{spent}");
    let receipts = spent["receipts"].as_array().expect("a list");
    let cost = |id: &str| receipts.iter().find(|receipt| receipt["id"] == id).map(|receipt| receipt["cost"].clone());
    assert_eq!((cost(&simulated), cost(&real)), (Some(spent["simulated_cost"].clone()), Some(spent["cost"].clone())));
    let told = sandbox.ok(&["bill", "--since", "1h"]);
    assert!(told.contains("gce (simulated)") && told.contains("on simulated clouds, which is not real"), "{told}");
    assert!(sandbox.ok(&["status", "--all"]).contains("gce (simulated)"));
}

#[test]
fn a_rehearsal_has_no_model_and_runs_no_commands() {
    let sandbox = sandbox("rehearsed");
    let id = submit(&sandbox, "A", &[]).stdout.trim().to_owned();
    for verb in [&["generate", &id, "--prompt", "x"][..], &["eval", &id, "--data", "data"]] {
        let said = sandbox.run(verb);
        let message = format!("error: the checkpoint of step 10 of the job {id} holds no model\n  fix: a rehearsal on the backend");
        assert!(said.code == Some(2) && said.stderr.contains(&message), "{}", said.stderr);
    }
    let id = sandbox.run(&["submit", "job.toml", "--set", "train.steps=20"]).stdout.trim().to_owned();
    for arguments in [&["exec", &id, "--dry-run", "--", "ls"][..], &["exec", &id, "--", "ls"]] {
        let said = sandbox.run(arguments);
        let message = format!("error: this backend runs no commands on {id}-a1\n  fix: local, docker and gce do\n");
        assert_eq!((said.code, said.stdout.as_str(), said.stderr), (Some(2), "", message));
    }
}
