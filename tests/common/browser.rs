//! A page in Chromium, which FT_CHROMIUM names.

#![allow(clippy::unwrap_used)]

use std::{
    fs,
    path::Path,
    process::{Command, Output},
};

use serde_json::Value;

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

/// The defects of a page in a window of that width, as [`LOOK`] finds them.
pub fn look(page: &Path, width: u32, is_dark: bool) -> Value {
    let text = fs::read_to_string(page).unwrap();
    let policy = text.find("<meta http-equiv").unwrap();
    let end = policy + text[policy..].find('>').unwrap() + 1;
    let watched = page.with_extension("watched.html");
    fs::write(&watched, [&text[..policy], LOOK, &text[end..]].concat()).unwrap();
    let window = page.with_extension("window.html");
    let frame = format!("{WINDOW}<iframe src=\"{}\" width=\"{width}\" height=\"800\"></iframe>", watched.display());
    fs::write(&window, frame).unwrap();
    let light = format!("--blink-settings=preferredColorScheme={}", u8::from(!is_dark));
    let output = chromium(&["--window-size=1500,900", "--dump-dom", &light], &window);
    let shown = String::from_utf8_lossy(&output.stdout);
    let (_, title) = shown.split_once("<title>").unwrap_or_else(|| panic!("{shown}{}", String::from_utf8_lossy(&output.stderr)));
    let title = title.split_once("</title>").unwrap().0.replace("&quot;", "\"").replace("&amp;", "&");
    serde_json::from_str(&title).unwrap_or_else(|error| panic!("{error}: {title}"))
}

/// Draws a page that wide and high, which cannot be blank then.
pub fn screenshot(page: &Path, (width, height): (u32, u32)) {
    let image = page.with_extension("png");
    let size = format!("--window-size={width},{height}");
    let output = chromium(&[&size, "--hide-scrollbars", &format!("--screenshot={}", image.display())], page);
    let drawn = fs::read(&image).unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stderr)));
    let begins = [&b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"[..], &width.to_be_bytes(), &height.to_be_bytes()].concat();
    assert!(drawn.starts_with(&begins), "{:?}", &drawn[..begins.len().min(drawn.len())]);
    // One colour alone takes a few kilobytes.
    assert!(drawn.len() > 30_000, "{} bytes", drawn.len());
}

fn chromium(arguments: &[&str], page: &Path) -> Output {
    let browser = std::env::var_os("FT_CHROMIUM").expect("FT_CHROMIUM names Chromium: tests/run installs it");
    let home = tempfile::tempdir().unwrap();
    let mut command = Command::new(browser);
    command.args(["--headless", "--no-sandbox", "--disable-gpu", "--host-resolver-rules=MAP * ~NOTFOUND"]);
    command.arg("--virtual-time-budget=5000").arg(format!("--user-data-dir={}", home.path().display()));
    command.args(arguments).arg(format!("file://{}", page.display())).output().unwrap()
}
