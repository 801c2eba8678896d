//! A job that an earlier ftctl began, in the store that `tests/before` keeps: this one goes on with it, from its checkpoint.

use std::{fs, path::Path};

use crate::sandbox::Sandbox;

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().flatten() {
        let target = to.join(entry.file_name());
        if entry.path().is_dir() { copy(&entry.path(), &target) } else { fs::copy(entry.path(), target).map(drop).unwrap() }
    }
}

#[test]
#[ignore = "needs the trainer: tests/run builds it"]
fn a_job_of_before_goes_on_from_its_checkpoint() {
    let mut sandbox = Sandbox::new();
    sandbox.variables = vec![("FTCTL_ADOPT".into(), "1".into())];
    copy(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/before"), &sandbox.path("state/ftctl/store"));
    let said = sandbox.ok(&["logs", "-f", "before"]);
    let status = sandbox.json(&["status", "before"]);
    assert!(status["state"] == "succeeded" && status["attempt"] == 2 && status["step"] == 60, "{status}");
    assert!(said.contains("step 20"), "{said}");
    let receipt = sandbox.json(&["bill", "before"]);
    assert_eq!(receipt["attempts"][1]["first_step"], 20);
    let steps = sandbox.results(status["id"].as_str().unwrap());
    let (_, steps) = steps.iter().find(|(name, _)| name == "steps.jsonl").unwrap();
    // Two further lines are evaluations.
    let steps = String::from_utf8_lossy(steps).lines().filter(|line| line.contains("learning_rate")).count();
    assert_eq!(steps, 60, "every step once");
}
