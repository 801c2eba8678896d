//! The system's clock is moved while a job runs.

use std::{
    fs,
    path::PathBuf,
    process::{Command, Stdio},
};

use crate::sandbox::Sandbox;

/// Adds the hours in a file to the time of day of every process that loads it. The real clock belongs to the machine.
const MOVED_CLOCK: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <time.h>
int clock_gettime(clockid_t clock, struct timespec *time) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int answer = real(clock, time);
    FILE *file = clock == CLOCK_REALTIME ? fopen(HOURS, "r") : NULL;
    if (file) {
        long hours = 0;
        if (fscanf(file, "%ld", &hours) == 1) time->tv_sec += hours * 3600;
        fclose(file);
    }
    return answer;
}
"#;

/// A sandbox whose clock can be moved; gives the file that holds the hours.
pub fn with_moved_clock() -> (Sandbox, PathBuf) {
    let mut sandbox = Sandbox::new();
    let (source, library, hours) = (sandbox.path("clock.c"), sandbox.path("clock.so"), sandbox.path("hours"));
    fs::write(&source, MOVED_CLOCK).unwrap();
    let mut compiler = Command::new("cc");
    compiler
        .args(["-shared", "-fPIC", &format!("-DHOURS=\"{}\"", hours.display()), "-o"])
        .arg(&library)
        .arg(&source)
        .arg("-ldl")
        .stdout(Stdio::null());
    assert!(compiler.status().expect("cc, which cargo links with, runs").success());
    sandbox.variables = vec![("LD_PRELOAD".into(), library.into())];
    (sandbox, hours)
}

#[test]
#[ignore = "needs the trainer: tests/run builds it"]
fn a_clock_that_jumps_by_eight_hours_disturbs_no_running_job() {
    let (sandbox, hours) = with_moved_clock();
    let job = sandbox.job("timeless", 1_000_000);
    // Its time to live would be over, by the moved clock.
    let id = sandbox.ok(&["submit", job.to_str().unwrap(), "--ttl", "2h"]).trim().to_owned();
    let age = |status: &serde_json::Value| {
        let created: jiff::Timestamp = status["created"].as_str().unwrap().parse().unwrap();
        jiff::Timestamp::now().duration_since(created).as_hours()
    };
    let watcher = &mut sandbox.spawn(&["logs", "-f", &id]);
    for jump in ["8", "-8", "0"] {
        let step = || sandbox.json(&["status", &id])["step"].as_u64();
        let before = step();
        fs::write(&hours, jump).unwrap();
        Sandbox::until("ten more steps", || step() > before.map(|step| step + 10));
        for verb in [&["explain", &id][..], &["bill", &id], &["bill", "--since", "1h"], &["status", &id, "--refresh"]] {
            sandbox.ok(verb);
        }
        assert!(watcher.try_wait().unwrap().is_none(), "whoever follows goes on following");
    }
    // The library does what it is for: a job that is made now is eight hours old for everybody else.
    fs::write(&hours, "-8").unwrap();
    sandbox.ok(&["run", sandbox.job("older", 1).to_str().unwrap()]);
    assert_eq!(age(&sandbox.json(&["status", "older"])), 8);
    sandbox.ok(&["cancel", &id]);
    let status = sandbox.json(&["status", &id]);
    assert_eq!((status["state"].as_str(), status["attempt"].as_u64()), (Some("cancelled"), Some(1)));
    assert!(sandbox.processes("ft-trainer train").is_empty() && sandbox.processes("ftctl agent").is_empty());
    watcher.wait().unwrap();
}
