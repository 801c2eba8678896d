//! A page in Chromium, which FT_CHROMIUM names.

#![allow(clippy::unwrap_used)]

use std::{
    collections::BTreeMap,
    fs,
    io::Read as _,
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

/// Draws a page that wide and high, and counts its pixels of each colour.
pub fn screenshot(page: &Path, (width, height): (u32, u32)) -> BTreeMap<[u8; 3], usize> {
    let image = page.with_extension("png");
    let size = format!("--window-size={width},{height}");
    let output = chromium(&[&size, "--hide-scrollbars", &format!("--screenshot={}", image.display())], page);
    let drawn = fs::read(&image).unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stderr)));
    let begins = [&b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"[..], &width.to_be_bytes(), &height.to_be_bytes()].concat();
    assert!(drawn.starts_with(&begins), "{:?}", &drawn[..begins.len().min(drawn.len())]);
    let mut colours = BTreeMap::new();
    for pixel in pixels(&drawn, width as usize) {
        *colours.entry(pixel).or_default() += 1;
    }
    colours
}

/// The colours of an image of 8 bits a channel that is not interlaced, as Chromium writes it (PNG, third edition, parts 5 and 9).
fn pixels(png: &[u8], width: usize) -> Vec<[u8; 3]> {
    let channels = match png[24..29] {
        [8, 2, 0, 0, 0] => 3,
        [8, 6, 0, 0, 0] => 4,
        ref other => panic!("another kind of image: {other:?}"),
    };
    let (mut packed, mut rest) = (Vec::new(), &png[8..]);
    while let [a, b, c, d, chunk @ ..] = rest {
        let length = u32::from_be_bytes([*a, *b, *c, *d]) as usize;
        if chunk.starts_with(b"IDAT") {
            packed.extend(&chunk[4..4 + length]);
        }
        rest = &chunk[4 + length + 4..];
    }
    let mut lines = Vec::new();
    flate2::read::ZlibDecoder::new(&packed[..]).read_to_end(&mut lines).unwrap();
    let mut above = vec![0; width * channels];
    let mut found = Vec::new();
    for line in lines.chunks_exact_mut(1 + width * channels) {
        let (filter, line) = line.split_first_mut().unwrap();
        for at in 0..line.len() {
            let before = |line: &[u8]| at.checked_sub(channels).map_or(0, |left| i32::from(line[left]));
            let (left, up, corner) = (before(line), i32::from(above[at]), before(&above));
            let likely = left + up - corner;
            let nearest = [left, up, corner].into_iter().min_by_key(|near| (likely - near).abs()).unwrap();
            let expected = [0, left, up, left.midpoint(up), nearest][usize::from(*filter)];
            line[at] = line[at].wrapping_add(expected as u8);
        }
        found.extend(line.chunks_exact(channels).map(|pixel| [pixel[0], pixel[1], pixel[2]]));
        above.copy_from_slice(line);
    }
    found
}

fn chromium(arguments: &[&str], page: &Path) -> Output {
    let browser = std::env::var_os("FT_CHROMIUM").expect("FT_CHROMIUM names Chromium: tests/run installs it");
    let home = tempfile::tempdir().unwrap();
    let mut command = Command::new(browser);
    command.args(["--headless", "--no-sandbox", "--disable-gpu", "--host-resolver-rules=MAP * ~NOTFOUND"]);
    command.arg("--virtual-time-budget=5000").arg(format!("--user-data-dir={}", home.path().display()));
    command.args(arguments).arg(format!("file://{}", page.display())).output().unwrap()
}
