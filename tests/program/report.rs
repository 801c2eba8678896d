//! The page of `ftctl report`, as a browser shows it.

#![allow(clippy::unwrap_used)]

use std::{fs, path::Path, process::Command};

use serde_json::{Value, json};

use crate::common::Sandbox;

/// Holds the page in a window of any width: Chromium's own has at least 500 points.
const WINDOW: &str = r#"<title></title><script>addEventListener("message", event => { document.title = event.data; });</script>"#;

/// A script that reports the page's defects from a browser: drawings, texts that lie over each other, parts that stick out at the
/// side, fetches.
const LOOK: &str = r#"<script>
addEventListener("load", () => {
  const box = node => node.getBoundingClientRect();
  const texts = [...document.querySelectorAll("svg text")].map(node => [node.textContent, box(node)]);
  const over = (a, b) => a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;
  const overlaps = texts.flatMap(([one, a], i) => texts.slice(i + 1).filter(([, b]) => over(a, b)).map(([other]) => one + " | " + other));
  const drawings = [...document.querySelectorAll("svg")].map(node => [box(node).width, box(node).height]);
  const sticksOut = document.documentElement.scrollWidth - innerWidth;
  const fetched = performance.getEntriesByType("resource").length;
  const curve = getComputedStyle(document.querySelector("svg polyline[stroke*=j0]")).stroke;
  parent.postMessage(JSON.stringify({ overlaps, drawings, sticksOut, fetched, curve, texts: texts.length }), "*");
});
</script>"#;

fn ok(sandbox: &Sandbox, arguments: &[&str]) {
    let said = sandbox.run(arguments);
    assert_eq!(said.code, Some(0), "{arguments:?}: {}", said.stderr);
}

fn look(page: &Path, width: u32, is_dark: bool) -> Value {
    let browser = std::env::var_os("FT_CHROMIUM").expect("FT_CHROMIUM names Chromium: tests/run installs it");
    let text = fs::read_to_string(page).unwrap();
    let policy = text.find("<meta http-equiv").unwrap();
    let end = policy + text[policy..].find('>').unwrap() + 1;
    let watched = page.with_extension("watched.html");
    fs::write(&watched, [&text[..policy], LOOK, &text[end..]].concat()).unwrap();
    let window = page.with_extension("window.html");
    let frame = format!("{WINDOW}<iframe src=\"{}\" width=\"{width}\" height=\"800\"></iframe>", watched.display());
    fs::write(&window, frame).unwrap();
    let home = tempfile::tempdir().unwrap();
    let mut command = Command::new(browser);
    command.args(["--headless", "--no-sandbox", "--disable-gpu", "--host-resolver-rules=MAP * ~NOTFOUND"]);
    command.args(["--window-size=1500,900", "--virtual-time-budget=5000", "--dump-dom"]);
    command.arg(format!("--blink-settings=preferredColorScheme={}", u8::from(!is_dark)));
    command.arg(format!("--user-data-dir={}", home.path().display()));
    let output = command.arg(format!("file://{}", window.display())).output().unwrap();
    let shown = String::from_utf8_lossy(&output.stdout);
    let (_, title) = shown.split_once("<title>").unwrap_or_else(|| panic!("{shown}{}", String::from_utf8_lossy(&output.stderr)));
    let title = title.split_once("</title>").unwrap().0.replace("&quot;", "\"").replace("&amp;", "&");
    serde_json::from_str(&title).unwrap_or_else(|error| panic!("{error}: {title}"))
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
            let seen = look(&sandbox.path("page.html"), width, is_dark);
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
}
