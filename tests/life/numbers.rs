//! A job's numbers in its step log, against what a server of experiments was told.

use serde_json::Value;

use crate::sandbox::Sandbox;

/// Names of numbers at the server, and in the step log.
pub const NAMES: [(&str, &str); 3] =
    [("loss", "loss"), ("learning_rate", "learning_rate"), ("perplexity", "validation_perplexity")];

/// Step and value of each entry of a finished job's step log that has this key.
pub fn logged(results: &[(String, Vec<u8>)], key: &str) -> Vec<(u64, f64)> {
    let (_, log) = results.iter().find(|(name, _)| name == "steps.jsonl").expect("a step log");
    let lines = std::str::from_utf8(log).expect("text").lines();
    let lines = lines.map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    lines.filter_map(|line| Some((line["step"].as_u64()?, line[key].as_f64()?))).collect()
}

/// Step and value of each number in an answer of `metrics/get-history`, in their order. MLflow leaves out a list of none.
pub fn told(history: &Value) -> Vec<(u64, f64)> {
    let whole = |value: &Value| value.as_u64().or_else(|| value.as_str()?.parse().ok()).expect("a step");
    let metrics = history["metrics"].as_array().into_iter().flatten();
    let mut told: Vec<(u64, f64)> =
        metrics.map(|metric| (whole(&metric["step"]), metric["value"].as_f64().expect("a number"))).collect();
    told.sort_by_key(|(step, _)| *step);
    told
}

/// Every number of the step log was told once, whatever was killed.
pub fn assert_told(sandbox: &Sandbox, id: &str, history: impl Fn(&str) -> Value) {
    let results = sandbox.results(id);
    for (name, key) in NAMES {
        let (expected, found) = (logged(&results, key), told(&history(name)));
        assert!(!expected.is_empty() && found == expected, "{name}: {} numbers of {}", found.len(), expected.len());
    }
    assert_eq!(told(&history("tokens_per_second")).len(), logged(&results, "loss").len());
}
