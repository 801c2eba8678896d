//! A page with drawings that is complete in itself: no script, no style sheet, no image from elsewhere.

use std::fmt::Write as _;

use crate::job::printable;

/// One number over the steps, rising.
#[derive(Debug, Clone, Copy)]
pub struct Chart<'a> {
    pub title: &'a str,
    pub points: &'a [(u64, f64)],
}

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 240.0;
/// Room for the numbers at the axes.
const LEFT: f64 = 70.0;
const RIGHT: f64 = 12.0;
const TOP: f64 = 12.0;
const BOTTOM: f64 = 28.0;
/// Lines across the drawing.
const GRID: u32 = 4;
/// More points than this are drawn as means of neighbours.
const MOST_POINTS: usize = 1000;

const STYLE: &str = "body{font:15px/1.4 system-ui,sans-serif;margin:2em auto;max-width:1340px;padding:0 1em;color:#222;background:#fff}\
    main{display:grid;grid-template-columns:repeat(auto-fill,minmax(480px,1fr));gap:1.5em}h2{font-size:1em;margin:0 0 .3em}\
    figure{margin:0}dl{display:grid;grid-template-columns:max-content 1fr;gap:.1em 1.2em}dt{color:#666}dd{margin:0}\
    svg{width:100%;height:auto}text{font-size:11px;fill:#666}.grid{stroke:#ddd}.curve{fill:none;stroke:#1666b0;stroke-width:1.6}\
    @media(prefers-color-scheme:dark){body{background:#16181b;color:#ddd}text{fill:#999}.grid{stroke:#333}.curve{stroke:#6cb4f5}}";

/// The page of one job: facts, then one drawing for each chart.
pub fn page(title: &str, facts: &[(&str, String)], charts: &[Chart<'_>]) -> String {
    let title = escaped(title);
    let facts: Vec<String> = facts.iter().map(|(name, value)| format!("<dt>{name}</dt><dd>{}</dd>", escaped(value))).collect();
    let facts = facts.concat();
    let figures: String = charts.iter().map(figure).collect();
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{title}</title><style>{STYLE}</style></head>\n\
         <body><h1>{title}</h1>\n<dl>{facts}</dl>\n<main>\n{figures}</main></body></html>\n"
    )
}

fn escaped(text: &str) -> String {
    printable::text(text).replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

fn figure(chart: &Chart<'_>) -> String {
    let title = escaped(chart.title);
    let last = chart.points.last().map_or(String::new(), |(step, value)| format!(": {} at step {step}", short(*value)));
    format!("<figure><h2>{title}{last}</h2>{}</figure>\n", drawing(&thinned(chart.points), &title))
}

/// What the axes span.
struct Frame {
    steps: (f64, f64),
    values: (f64, f64),
}

impl Frame {
    fn around(points: &[(f64, f64)]) -> Self {
        let span = |numbers: &mut dyn Iterator<Item = f64>| {
            let (low, high) = numbers.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), n| (low.min(n), high.max(n)));
            // A single point, or a constant, lies in the middle.
            if low < high { (low, high) } else { (low - low.abs().max(1.0) * 0.5, high + high.abs().max(1.0) * 0.5) }
        };
        Self { steps: span(&mut points.iter().map(|point| point.0)), values: span(&mut points.iter().map(|point| point.1)) }
    }

    fn x(&self, step: f64) -> f64 {
        LEFT + (step - self.steps.0) / (self.steps.1 - self.steps.0) * (WIDTH - LEFT - RIGHT)
    }

    fn y(&self, value: f64) -> f64 {
        HEIGHT - BOTTOM - (value - self.values.0) / (self.values.1 - self.values.0) * (HEIGHT - TOP - BOTTOM)
    }
}

fn drawing(points: &[(f64, f64)], title: &str) -> String {
    let frame = Frame::around(points);
    let mut svg = format!("<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{title}\">");
    for line in 0..=GRID {
        let share = f64::from(line) / f64::from(GRID);
        let at = |(low, high): (f64, f64)| low + (high - low) * share;
        let (value, step) = (at(frame.values), at(frame.steps));
        let (x, y, right, bottom) = (frame.x(step), frame.y(value), WIDTH - RIGHT, HEIGHT - 8.0);
        let _ = write!(svg, "<path class=\"grid\" d=\"M{LEFT} {y:.1}H{right}\"/>");
        let _ = write!(svg, "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>", LEFT - 6.0, y + 4.0, short(value));
        let _ = write!(svg, "<text x=\"{x:.1}\" y=\"{bottom}\" text-anchor=\"middle\">{step:.0}</text>");
    }
    let curve: Vec<String> = points.iter().map(|(step, value)| format!("{:.1},{:.1}", frame.x(*step), frame.y(*value))).collect();
    let _ = write!(svg, "<polyline class=\"curve\" points=\"{}\"/></svg>", curve.join(" "));
    svg
}

/// At most [`MOST_POINTS`] points: means of equally many neighbours.
fn thinned(points: &[(u64, f64)]) -> Vec<(f64, f64)> {
    let mean = |chunk: &[(u64, f64)]| {
        let count = chunk.len() as f64;
        let sums = chunk.iter().fold((0.0, 0.0), |sums, (step, value)| (sums.0 + *step as f64, sums.1 + value));
        (sums.0 / count, sums.1 / count)
    };
    points.chunks(points.len().div_ceil(MOST_POINTS).max(1)).map(mean).collect()
}

/// `4.213`, `3.0e-4`, `9,812`.
fn short(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_owned(),
        size if size < 0.01 => format!("{value:.1e}"),
        size if size < 1000.0 => format!("{value:.3}"),
        _ => super::format::number(value.max(0.0) as u64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_complete_in_itself() {
        let points: Vec<(u64, f64)> = (1..=2500).map(|step| (step, 5.0 / step as f64)).collect();
        let charts = [Chart { title: "loss <nats>", points: &points }, Chart { title: "one", points: &[(7, 3e-4)] }];
        let page = page("a&b", &[("state", "succeeded".to_owned())], &charts);
        for part in
            ["<h1>a&amp;b</h1>", "loss &lt;nats&gt;: 2.0e-3 at step 2500", "<dt>state</dt><dd>succeeded</dd>", "3.0e-4 at step 7"]
        {
            assert!(page.contains(part), "{part} is missing in {page}");
        }
        assert!(!page.contains("http") && !page.contains("<script") && !page.contains("NaN") && !page.contains("inf"));
        assert_eq!(page.matches("<polyline").count(), 2);
        assert!(page.matches(',').count() < 1200, "2,500 points are thinned");
    }

    #[test]
    fn points_lie_inside_their_frame() {
        let points = [(1.0, -3.0), (5.0, 9.0), (9.0, 1.0)];
        let frame = Frame::around(&points);
        assert_eq!((frame.x(1.0), frame.x(9.0)), (LEFT, WIDTH - RIGHT));
        assert_eq!((frame.y(-3.0), frame.y(9.0)), (HEIGHT - BOTTOM, TOP));
    }
}
