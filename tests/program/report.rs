//! The page of `ftctl report`, as a browser shows it.

#![allow(clippy::unwrap_used)]

use std::fs;

use serde_json::json;

use crate::{browser, common::Sandbox};

fn ok(sandbox: &Sandbox, arguments: &[&str]) {
    let said = sandbox.run(arguments);
    assert_eq!(said.code, Some(0), "{arguments:?}: {}", said.stderr);
}

#[test]
#[ignore = "needs Chromium: tests/run installs it"]
fn browser_shows_every_curve_of_two_jobs_and_nothing_over_each_other() {
    let sandbox = Sandbox::new();
    sandbox.write_rehearsal("one");
    sandbox.script(&json!({ "job": { "duration": "10m" }, "preemptions": [{ "attempt": 1, "after": "4m", "notice": true }] }));
    for name in ["one", "other"] {
        sandbox
            .write("job.toml", format!("name = \"{name}\"\ndataset = \"data\"\n[train]\nsteps = 2000\ncheckpoint_every = 500\n"));
        ok(&sandbox, &["submit", "job.toml", "--wait"]);
    }
    let windows = [("steps", &[(1340, false), (390, true)][..]), ("tokens", &[(390, false)]), ("time", &[(1340, true)])];
    for (over, windows) in windows {
        ok(&sandbox, &["report", "one", "other", "--over", over, "--out", "page.html"]);
        let page = fs::read_to_string(sandbox.path("page.html")).unwrap();
        assert!(
            page.contains("var(--mark)") && page.contains("<polygon") && page.contains("var(--j1)"),
            "no mark, or no second curve"
        );
        for &(width, is_dark) in windows {
            let seen = browser::look(&sandbox.path("page.html"), width, is_dark);
            let drawings = seen["drawings"].as_array().unwrap();
            assert!(drawings.len() >= 5, "{seen}");
            assert!(
                drawings.iter().all(|drawing| drawing[0].as_f64() > Some(300.0) && drawing[1].as_f64() > Some(100.0)),
                "{seen}"
            );
            assert!(seen["texts"].as_u64() > Some(25) && seen["overlaps"] == json!([]), "{over} {width}: {seen}");
            assert!(seen["sticksOut"].as_f64() <= Some(0.0) && seen["fetched"] == 0, "{over} {width}: {seen}");
            let blue = if is_dark { "rgb(108, 180, 245)" } else { "rgb(22, 102, 176)" };
            assert_eq!(seen["curve"], blue, "{width}: {seen}");
        }
    }
    // Light: the page, its text, the curves of both jobs. The mark of the preemption is so thin that no pixel has its colour alone.
    let drawn = browser::screenshot(&sandbox.path("page.html"), (1340, 2000));
    let many = |colour: [u8; 3]| drawn.get(&colour).copied().unwrap_or_default();
    assert!(many([0xff, 0xff, 0xff]) > 1_500_000, "{:?}", many([0xff, 0xff, 0xff]));
    for colour in [[0x22, 0x22, 0x22], [0x16, 0x66, 0xb0], [0xc2, 0x41, 0x0c]] {
        assert!(many(colour) > 50, "{colour:x?}: {} pixels", many(colour));
    }
}
