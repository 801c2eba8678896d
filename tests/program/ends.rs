//! How a job ends for a pipeline: keys that are promises, one exit code for one end, and the end as JSON.

use serde_json::{Value, json};

use crate::common::{Said, Sandbox};

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
    let said = submit(&sandbox, "A", &[]);
    assert_eq!((said.code, &said.stdout), (Some(0), &first), "{}", said.stderr);
    let told = format!("the job of this key, {}, is over: succeeded; another --idempotency-key starts another job", first.trim());
    assert!(said.stderr.contains(&told), "{}", said.stderr);
    let status: Value = serde_json::from_str(&sandbox.run(&["status", "keyed", "-o", "json"]).stdout).expect("JSON");
    assert_eq!(status["id"], second.trim(), "the name is that of the later job");
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
    assert_eq!(sandbox.run(&["wait", succeeded]).code, Some(0));
    assert_eq!(sandbox.run(&["wait", "nobody"]).code, Some(3));
}
