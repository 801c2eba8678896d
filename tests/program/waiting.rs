//! Waiting for a machine, on the fake cloud's clock: it costs nothing, uses nothing of the job's time and money, and has a bound of
//! its own.

use std::fs;

use ftctl::provider::fake::{CallLine, Cloud};
use serde_json::{Value, json};

use crate::common::{Said, Sandbox};

/// A job of ten steps, and the events of its life.
struct Rehearsal(Sandbox);

impl Rehearsal {
    /// `duration` is that of the work, after half a minute of staging.
    fn of(duration: &str, more: &Value) -> Self {
        let rehearsal = Self(Sandbox::in_memory());
        rehearsal.0.write_rehearsal("waits");
        rehearsal.script(duration, more);
        rehearsal
    }

    fn script(&self, duration: &str, more: &Value) {
        let mut script = json!({ "job": { "staging": "30s", "duration": duration } });
        script.as_object_mut().zip(more.as_object()).map(|(script, more)| script.extend(more.clone())).expect("objects");
        self.0.script(&script);
    }

    /// Submits the job and waits for its end. Answers what was said, and the receipt.
    fn ended(&self, more: &[&str], code: i32) -> (String, Value) {
        let said = self.0.run(&[&["submit", "job.toml", "--wait"], more].concat());
        assert_eq!(said.code, Some(code), "{more:?}: {}", said.stderr);
        (said.stderr, self.json(&["bill", "waits"]))
    }

    fn json(&self, arguments: &[&str]) -> Value {
        let Said { code, stdout, stderr } = self.0.run(&[arguments, &["-o", "json"]].concat());
        assert_eq!(code, Some(0), "{arguments:?}: {stderr}");
        serde_json::from_str(&stdout).expect("JSON")
    }

    fn machines(&self) -> usize {
        let bytes = fs::read(self.0.state().join("fake/cloud.json")).expect("a cloud");
        serde_json::from_slice::<Cloud>(&bytes).expect("a cloud").machines.len()
    }

    /// How often a machine was asked for.
    fn tries(&self) -> usize {
        let text = fs::read_to_string(self.0.state().join("fake/calls.jsonl")).expect("calls");
        text.lines().filter(|line| serde_json::from_str::<CallLine>(line).expect("a call").name == "provision").count()
    }
}

fn out_of_stock(attempt: u32, times: u32, pause: &str) -> Value {
    json!({ "call": "provision", "attempt": attempt, "kind": "stock_out", "times": times, "retry_after": pause })
}

#[track_caller]
fn assert_times(receipt: &Value, machine: std::ops::RangeInclusive<u64>, waited: std::ops::RangeInclusive<u64>) {
    let seconds = |key: &str| receipt[key].as_u64().expect("seconds");
    assert!(machine.contains(&seconds("machine_seconds")) && waited.contains(&seconds("waited_seconds")), "{receipt}");
    assert_eq!(receipt["may_still_bill"], false);
}

const NEVER: &str = "60d";

#[test]
fn a_wait_of_three_times_the_time_to_live_leaves_all_of_it_and_of_the_ceiling() {
    // 603 seconds at 0.74USD an hour.
    for limit in [["--ttl", "10m"], ["--max-cost", "0.124USD"]] {
        let rehearsal = Rehearsal::of("9m", &json!({ "faults": [out_of_stock(1, 6, "5m")] }));
        let (_, receipt) = rehearsal.ended(&limit, 0);
        assert_times(&receipt, 570..=572, 1_800..=1_800);
        assert_eq!(receipt["attempts"].as_array().map(Vec::len), Some(1));

        let rehearsal = Rehearsal::of(NEVER, &json!({ "faults": [out_of_stock(1, 6, "5m")] }));
        let (_, receipt) = rehearsal.ended(&limit, 10);
        assert_times(&receipt, 600..=604, 1_800..=1_801);
    }
}

#[test]
fn a_wait_after_a_preemption_uses_nothing_of_the_time_to_live() {
    let script = json!({ "faults": [out_of_stock(2, 6, "5m")], "preemptions": [{ "attempt": 1, "after": "4m" }] });
    let (_, receipt) = Rehearsal::of(NEVER, &script).ended(&["--ttl", "10m"], 10);
    // The farewell of the first is charged, too.
    assert_times(&receipt, 568..=573, 1_800..=1_803);
}

#[test]
fn a_job_that_waits_says_since_when_for_what_and_until_when() {
    let rehearsal =
        Rehearsal::of("1m", &json!({ "faults": [out_of_stock(1, 9, "5m")], "crash_at": { "call": 40, "when": "after" } }));
    assert_eq!(rehearsal.0.run(&["submit", "job.toml", "--idempotency-key", "one"]).code, None, "it is killed while it waits");
    let status = rehearsal.json(&["status", "waits"]);
    assert_eq!((&status["state"], &status["cost"], &status["attempt"]), (&json!("waiting"), &json!("0USD"), &json!(1)));
    assert_eq!(status["waiting"]["since"], "2026-01-01T00:00:00Z");
    assert!(status["waiting"]["why"].as_str().expect("a reason").contains("ZONE_RESOURCE_POOL_EXHAUSTED"), "{status}");
    let next = status["next_try"].as_str().expect("a time").to_owned();
    let table = rehearsal.0.run(&["status", "waits"]).stdout;
    assert!(table.contains("since 2026-01-01T00:00:00Z: ") && table.contains(&format!("next try at {next}")), "{table}");
    let explained = rehearsal.0.run(&["explain", "waits"]).stdout;
    assert!(
        explained.contains("waiting for a machine since 2026-01-01T00:00:00Z, at no cost, and waits 1d at most"),
        "{explained}"
    );
    let receipt = rehearsal.json(&["bill", "waits"]);
    assert_times(&receipt, 0..=0, 300..=3_000);
    assert_eq!(receipt["cost"], "0USD");

    rehearsal.script("1m", &json!({}));
    let said = rehearsal.0.run(&["submit", "job.toml", "--idempotency-key", "one", "--wait"]);
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    assert_times(&rehearsal.json(&["bill", "waits"]), 90..=92, 300..=3_300);
}

#[test]
fn a_job_waits_no_longer_than_it_may() {
    let rehearsal = Rehearsal::of("1m", &json!({ "faults": [out_of_stock(1, 99, "5m")] }));
    let (said, receipt) = rehearsal.ended(&["--max-wait", "12m"], 5);
    let why = "there was no machine within the 12m that the job may wait (limits.max_wait): the fake cloud's provision";
    assert!(said.contains(why), "{said}");
    assert_times(&receipt, 0..=0, 720..=720);
    assert_eq!((rehearsal.tries(), rehearsal.machines(), &receipt["cost"]), (4, 0, &json!("0USD")));

    let script = json!({
        "faults": [out_of_stock(1, 1, "6m"), out_of_stock(2, 99, "1m")], "preemptions": [{ "attempt": 1, "after": "2m" }],
    });
    let rehearsal = Rehearsal::of("9m", &script);
    let (_, receipt) = rehearsal.ended(&["--set", "limits.max_wait=10m"], 5);
    assert_times(&receipt, 120..=122, 600..=601);
    assert_eq!(rehearsal.machines(), 0);
}

#[test]
fn a_resumed_job_that_has_waited_for_as_long_as_it_may_needs_a_longer_wait() {
    let rehearsal = Rehearsal::of("1m", &json!({ "faults": [out_of_stock(1, 9, "5m")] }));
    let (said, _) = rehearsal.ended(&["--max-wait", "12m"], 5);
    assert!(said.contains("ftctl resume") && said.contains("--max-wait TIME"), "{said}");
    rehearsal.script("1m", &json!({}));
    let said = rehearsal.0.run(&["resume", "waits"]);
    assert_eq!(said.code, Some(11), "{}", said.stderr);
    assert!(said.stderr.contains("has waited 12m for machines, and may wait 12m in all"), "{}", said.stderr);
    let said = rehearsal.0.run(&["resume", "waits", "--max-wait", "1h", "--wait"]);
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    assert_times(&rehearsal.json(&["bill", "waits"]), 90..=92, 720..=721);
}

#[test]
fn a_machine_that_ended_while_nobody_looked_costs_what_it_lived() {
    let script = json!({
        "preemptions": [{ "attempt": 1, "after": "4m" }],
        "out_of_sight": [{ "attempt": 1, "after": "3m", "lasting": "5h" }],
    });
    let (said, receipt) = Rehearsal::of("9m", &script).ended(&["--ttl", "20m"], 0);
    assert_eq!(receipt["attempts"].as_array().map(Vec::len), Some(2), "{said}");
    // Four minutes of the first, and the rest of the work with its staging.
    assert_times(&receipt, 600..=900, 0..=60);
}

#[test]
fn refusals_are_no_attempts_and_who_does_not_want_to_wait_does_not() {
    let rehearsal = Rehearsal::of("1m", &json!({ "faults": [out_of_stock(1, 4, "5m")] }));
    rehearsal.ended(&["--set", "retry.attempts=1"], 0);
    let rehearsal = Rehearsal::of("1m", &json!({ "faults": [out_of_stock(1, 4, "5m")] }));
    let (_, receipt) = rehearsal.ended(&["--retry-on", "preempt"], 5);
    assert_times(&receipt, 0..=0, 0..=0);
}

#[test]
fn a_machine_that_nobody_heard_of_costs_from_when_the_cloud_made_it() {
    let lost = json!({ "call": "provision", "kind": "lost_answer", "retry_after": "5m" });
    let (_, receipt) = Rehearsal::of("1m", &json!({ "faults": [lost] })).ended(&[], 0);
    assert_times(&receipt, 390..=392, 0..=0);
    // Also when it is destroyed before anybody looks.
    let denied = json!({ "call": "provision", "kind": "denied" });
    let (_, receipt) = Rehearsal::of("1m", &json!({ "faults": [lost, denied] })).ended(&[], 4);
    assert_times(&receipt, 300..=302, 0..=0);
}

#[test]
fn an_attempt_in_a_queue_waits_like_any_other() {
    let script = json!({ "queues": [{ "attempt": 1, "lasting": "30m" }] });
    let (_, receipt) = Rehearsal::of("9m", &script).ended(&["--ttl", "10m"], 0);
    assert_times(&receipt, 570..=580, 1_800..=1_800);
    let (_, receipt) = Rehearsal::of(NEVER, &script).ended(&["--ttl", "10m"], 10);
    assert_times(&receipt, 600..=610, 1_800..=1_801);

    let rehearsal = Rehearsal::of("9m", &script);
    let (said, receipt) = rehearsal.ended(&["--max-wait", "10m"], 5);
    assert!(said.contains("there was no machine within the 10m that the job may wait (limits.max_wait): no node"), "{said}");
    assert_times(&receipt, 0..=0, 600..=610);
    assert_eq!(rehearsal.machines(), 0);

    let rehearsal = Rehearsal::of("9m", &script);
    rehearsal.ended(&["--retry-on", "preempt"], 5);
    assert_eq!(rehearsal.machines(), 0);
}

#[test]
fn a_job_in_a_queue_is_shown_there_and_can_be_cancelled() {
    let rehearsal = Rehearsal::of("9m", &json!({ "queues": [{ "attempt": 1, "lasting": "30m", "why": "the cluster is full" }] }));
    assert_eq!(rehearsal.0.run(&["submit", "job.toml"]).code, Some(0));
    let status = rehearsal.json(&["status", "waits"]);
    assert_eq!((&status["state"], &status["waiting"]["why"]), (&json!("waiting"), &json!("the cluster is full")));
    assert_eq!(rehearsal.json(&["status", "waits", "--refresh"])["machine"], "queued: the cluster is full");
    assert_eq!(rehearsal.0.run(&["cancel", "waits"]).code, Some(0));
    assert_eq!((rehearsal.json(&["status", "waits"])["state"].as_str(), rehearsal.machines()), (Some("cancelled"), 0));
    assert_times(&rehearsal.json(&["bill", "waits"]), 0..=0, 0..=1);
}

#[test]
fn an_attempt_whose_machine_the_service_replaces_goes_on_unless_that_takes_ten_minutes() {
    let attempts = |receipt: &Value| receipt["attempts"].as_array().map(Vec::len);
    let script = |again: &str| json!({ "preemptions": [{ "attempt": 1, "after": "2m", "again": again }] });
    let (said, receipt) = Rehearsal::of("9m", &script("8m")).ended(&[], 0);
    assert_eq!(attempts(&receipt), Some(1), "{said}");
    assert_times(&receipt, 1_170..=1_190, 0..=0);

    let (said, receipt) = Rehearsal::of("9m", &script("30m")).ended(&[], 0);
    let why =
        "attempt 1 ended: the service took its machine away, and had no other within 10 minutes; attempt 2 resumes from step ";
    assert!(said.contains(why), "{said}");
    assert_eq!(attempts(&receipt), Some(2), "{said}");
    assert_times(&receipt, 1_290..=1_340, 0..=2);
}
