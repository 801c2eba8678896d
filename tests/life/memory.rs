//! A job whose trainer is refused memory by the system.

use std::{fs, process::Command};

use crate::sandbox::Sandbox;

/// KiB of address space: room for the agent, and for libtorch with a few of the job's sequences at a time.
const ENOUGH_FOR_FEW: &str = "1600000";

/// Submits the job and follows it to its end, with that much address space for every process.
fn run_within_limits(sandbox: &Sandbox, job: &str) -> i32 {
    let ftctl = sandbox.command(&["run", job]);
    let mut limited = Command::new("sh");
    limited.args(["-c", &format!("ulimit -v {ENOUGH_FOR_FEW} && exec \"$0\" \"$@\"")]);
    limited.arg(ftctl.get_program()).args(ftctl.get_args()).current_dir(ftctl.get_current_dir().unwrap());
    for (name, value) in ftctl.get_envs() {
        match value {
            Some(value) => limited.env(name, value),
            None => limited.env_remove(name),
        };
    }
    limited.status().unwrap().code().unwrap()
}

/// Of a checkpoint's log.
fn losses(results: &[(String, Vec<u8>)]) -> Vec<f64> {
    let (_, log) = results.iter().find(|(name, _)| name == "steps.jsonl").unwrap();
    let lines = log.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    lines.filter_map(|line| serde_json::from_slice::<serde_json::Value>(line).unwrap()["loss"].as_f64()).collect()
}

#[test]
#[ignore = "needs the trainer: tests/run builds it"]
fn a_job_without_memory_goes_on_with_fewer_sequences_at_a_time() {
    let sandbox = Sandbox::new();
    let job = |name: &str| {
        let file = sandbox.job(name, 12);
        let text = fs::read_to_string(&file).unwrap();
        let wide = text.replace("width = 32", "width = 256").replace("heads = 2", "heads = 8").replace("32\n", "256\n");
        fs::write(&file, wide.replace("micro_batch = 4", "micro_batch = 64")).unwrap();
        file
    };
    let roomy = sandbox.submit(&job("roomy"));
    sandbox.ok(&["logs", "-f", &roomy]);
    assert_eq!(run_within_limits(&sandbox, job("narrow").to_str().unwrap()), 0, "{}", sandbox.ok(&["explain", "narrow"]));
    let status = sandbox.json(&["status", "narrow"]);
    assert_eq!((status["state"].as_str(), status["attempt"].as_u64()), (Some("succeeded"), Some(1)), "{status}");
    let log = sandbox.ok(&["logs", "narrow"]);
    assert!(log.contains("because memory ran out with 64"), "{log}");
    let [roomy, narrow] = [roomy.as_str(), "narrow"].map(|id| losses(&sandbox.results(id)));
    assert_eq!((roomy.len(), narrow.len()), (12, 12));
    for (roomy, narrow) in roomy.iter().zip(&narrow) {
        assert!((narrow / roomy - 1.0).abs() < 1e-5, "{narrow} instead of {roomy}");
    }
}
