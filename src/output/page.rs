//! A page with drawings that is complete in itself: no script, no style sheet, no image from elsewhere.

use std::ops::Range;

use plotters::{
    chart::ChartBuilder,
    coord::ranged1d::{DefaultFormatting, KeyPointHint, Ranged},
    element::{Circle, TriangleMarker},
    prelude::{IntoDrawingArea as _, IntoFont as _, SVGBackend},
    series::{DashedLineSeries, LineSeries},
    style::{Color as _, RGBColor},
};

use super::format;
use crate::job::printable;

/// One number of one or more jobs.
#[derive(Debug, Clone, Default)]
pub struct Chart {
    pub title: &'static str,
    /// The horizontal axis.
    pub over: &'static str,
    /// Whether its numbers are whole.
    pub whole: bool,
    /// Equal ratios are equally far apart.
    pub logarithmic: bool,
    /// A smoothed curve is drawn over the numbers.
    pub smoothed: bool,
    pub series: Vec<Series>,
}

/// The numbers of one job, from left to right.
#[derive(Debug, Clone, Default)]
pub struct Series {
    /// Which job of the page: it has the same colour in every drawing.
    pub job: usize,
    pub points: Vec<(f64, f64)>,
    /// Where attempts but the first resumed.
    pub resumed: Vec<f64>,
    pub checkpoints: Vec<f64>,
}

impl Series {
    fn marks(&self) -> impl Iterator<Item = f64> {
        self.resumed.iter().chain(&self.checkpoints).copied()
    }
}

/// A fact, with its value for each job.
pub type Fact = (&'static str, Vec<String>);

/// Number of colours on a page; further jobs begin with the first again.
pub const COLOURS: usize = 6;

const WIDTH: u32 = 640;
const HEIGHT: u32 = 280;
/// More points than this are drawn as means of neighbours.
const MOST_POINTS: usize = 1000;
/// Fewer points than this are not smoothed. With twice as many, a smoothed value keeps half of the one before.
const FEWEST_TO_SMOOTH: usize = 50;
/// Ticks of an axis, about.
const TICKS: f64 = 5.0;

/// Stand for colours that the page decides, for light and dark.
const INK: RGBColor = RGBColor(1, 1, 1);
const GRID: RGBColor = RGBColor(2, 2, 2);
const MARK: RGBColor = RGBColor(3, 3, 3);
const fn of_job(job: usize) -> RGBColor {
    RGBColor(4, 4, (job % COLOURS) as u8)
}

const STYLE: &str = "body{font:15px/1.4 system-ui,sans-serif;margin:1.5em auto;max-width:1340px;padding:0 1em;color:var(--text);background:var(--page)}\
    :root{color-scheme:light dark;--page:#fff;--text:#222;--ink:#555;--grid:#ddd;--mark:#b3541e;\
    --j0:#1666b0;--j1:#c2410c;--j2:#15803d;--j3:#7e22ce;--j4:#a16207;--j5:#0e7490}\
    @media(prefers-color-scheme:dark){:root{--page:#16181b;--text:#ddd;--ink:#aaa;--grid:#333;--mark:#f0a070;\
    --j0:#6cb4f5;--j1:#fb923c;--j2:#4ade80;--j3:#c084fc;--j4:#facc15;--j5:#22d3ee}}\
    h1{font-size:1.4em;overflow-wrap:anywhere}h2{font-size:1em;margin:0 0 .3em}.wide{overflow-x:auto}\
    table{border-collapse:collapse}th,td{text-align:left;font-weight:normal;padding:.1em 1.2em .1em 0;vertical-align:top}th{color:var(--ink)}\
    main{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(30em,100%),1fr));gap:1.5em;margin-top:1.5em}\
    figure{margin:0}svg{width:100%;height:auto}.key{display:inline-block;width:.8em;height:.8em;margin-right:.4em}small{color:var(--ink)}";

/// The page of these jobs: facts, then one drawing for each chart.
pub fn page(jobs: &[String], facts: &[Fact], charts: &[Chart]) -> String {
    let title = escaped(&jobs.join(", "));
    let cells = |values: &[String]| joined(values.iter().map(|value| format!("<td>{}</td>", escaped(value))));
    let key = |(job, name): (usize, &String)| {
        format!("<td><span class=\"key\" style=\"background:var(--j{})\"></span>{}</td>", job % COLOURS, escaped(name))
    };
    let head = joined(jobs.iter().enumerate().map(key));
    let rows = joined(facts.iter().map(|(name, values)| format!("<tr><th>{name}</th>{}</tr>\n", cells(values))));
    let figures = joined(charts.iter().map(|chart| figure(chart, jobs)));
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\">\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none';style-src 'unsafe-inline'\">\
         <title>{title}</title><style>{STYLE}</style></head>\n<body><h1>{title}</h1>\n\
         <div class=\"wide\"><table><tr><th></th>{head}</tr>\n{rows}</table></div>\n\
         <p><small>A dashed line: an attempt resumed here. A triangle: a checkpoint.</small></p>\n<main>\n{figures}</main></body></html>\n"
    )
}

fn joined(parts: impl Iterator<Item = String>) -> String {
    parts.collect::<Vec<_>>().concat()
}

fn escaped(text: &str) -> String {
    printable::line(text).replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

fn figure(chart: &Chart, jobs: &[String]) -> String {
    let last = |series: &Series| {
        let name = if jobs.len() > 1 { format!("{} ", jobs.get(series.job).map_or("", String::as_str)) } else { String::new() };
        series.points.last().map(|(_, value)| format!("{name}{}", label(*value)))
    };
    let title = format!("{}: {}", chart.title, chart.series.iter().filter_map(last).collect::<Vec<_>>().join(", "));
    // Only what cannot be drawn is refused, and there is no such value among them.
    let drawing = drawing(chart).unwrap_or_default();
    format!("<figure><h2>{}</h2>{}</figure>\n", escaped(&title), coloured(&drawing, chart.title))
}

/// A drawing in the page's colours.
fn coloured(svg: &str, title: &str) -> String {
    let mut svg = svg.replace(" xmlns=\"http://www.w3.org/2000/svg\"", &format!(" role=\"img\" aria-label=\"{}\"", escaped(title)));
    let named = [(INK, "ink".to_owned()), (GRID, "grid".to_owned()), (MARK, "mark".to_owned())];
    let jobs = (0..COLOURS).map(|job| (of_job(job), format!("j{job}")));
    for (RGBColor(red, green, blue), name) in named.into_iter().chain(jobs) {
        svg = svg.replace(&format!("\"#{red:02X}{green:02X}{blue:02X}\""), &format!("\"var(--{name})\""));
    }
    svg
}

fn drawing(chart: &Chart) -> Result<String, Box<dyn std::error::Error>> {
    let series: Vec<Series> =
        chart.series.iter().map(|series| Series { points: thinned(&series.points), ..series.clone() }).collect();
    let values = || series.iter().flat_map(|series| &series.points).map(|point| point.1);
    let logarithmic = chart.logarithmic && values().all(|value| value > 0.0);
    let scaled = |value: f64| if logarithmic { value.log10() } else { value };
    // An attempt may have resumed before the first number was logged.
    let positions = |series: &Series| series.points.iter().map(|point| point.0).chain(series.marks()).collect::<Vec<_>>();
    let (left, right) = around(series.iter().flat_map(positions), 0.0);
    let (low, high) = around(values().map(scaled), 0.05);
    let ticks = if logarithmic { logarithmic_ticks(low, high) } else { round_ticks(low, high, 0.0) };
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, (WIDTH, HEIGHT)).into_drawing_area();
        let mut area =
            ChartBuilder::on(&root).margin(8).margin_right(32).x_label_area_size(40).y_label_area_size(72).build_cartesian_2d(
                Axis { range: left..right, ticks: round_ticks(left, right, f64::from(u8::from(chart.whole))) },
                Axis { range: low..high, ticks },
            )?;
        area.configure_mesh()
            .light_line_style(GRID.mix(0.0))
            .bold_line_style(GRID)
            .axis_style(GRID)
            .label_style(("sans-serif", 14).into_font().color(&INK))
            .axis_desc_style(("sans-serif", 14).into_font().color(&INK))
            .x_desc(chart.over)
            .x_label_formatter(&|at| label(*at))
            .y_label_formatter(&|at| label(if logarithmic { 10_f64.powf(*at) } else { *at }))
            .draw()?;
        for one in &series {
            let colour = of_job(one.job);
            let points: Vec<(f64, f64)> = one.points.iter().map(|(at, value)| (*at, scaled(*value))).collect();
            let smooth = if chart.smoothed { smoothed(&points) } else { Vec::new() };
            let strength = if smooth.is_empty() { 1.0 } else { 0.35 };
            area.draw_series(LineSeries::new(points, colour.mix(strength).stroke_width(2)))?;
            area.draw_series(LineSeries::new(smooth, colour.stroke_width(2)))?;
            for at in &one.resumed {
                let line = DashedLineSeries::new([(*at, low), (*at, high)], 5, 4, MARK.stroke_width(1));
                area.draw_series(line)?;
            }
            area.draw_series(one.checkpoints.iter().map(|at| TriangleMarker::new((*at, low), 5, colour.filled())))?;
            if let [(at, value)] = one.points[..] {
                let point = Circle::new((at, scaled(value)), 3, colour.filled());
                area.draw_series([point])?;
            }
        }
        root.present()?;
    }
    Ok(svg)
}

/// An axis with ticks of our choice.
struct Axis {
    range: Range<f64>,
    ticks: Vec<f64>,
}

impl Ranged for Axis {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, (from, to): (i32, i32)) -> i32 {
        let share = (value - self.range.start) / (self.range.end - self.range.start);
        from + (f64::from(to - from) * share).round() as i32
    }

    fn key_points<H: KeyPointHint>(&self, hint: H) -> Vec<f64> {
        if hint.weight().allow_light_points() { Vec::new() } else { self.ticks.clone() }
    }

    fn range(&self) -> Range<f64> {
        self.range.clone()
    }
}

/// The least and the largest of these, and a share of their distance on both sides. A single number, or a constant, lies in the
/// middle.
fn around(numbers: impl Iterator<Item = f64>, beyond: f64) -> (f64, f64) {
    let (low, high) = numbers.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), n| (low.min(n), high.max(n)));
    if low < high {
        let room = (high - low) * beyond;
        return (low - room, high + room);
    }
    let middle = if low.is_finite() { low } else { 0.0 };
    let room = if middle == 0.0 { 1.0 } else { middle.abs() * 0.5 };
    (middle - room, middle + room)
}

/// Multiples of 1, 2 or 5 times a power of ten, between two numbers, `least` apart at least.
fn round_ticks(low: f64, high: f64, least: f64) -> Vec<f64> {
    let rough = ((high - low) / TICKS).max(least);
    let power = 10_f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * power).into_iter().find(|step| *step >= rough).unwrap_or(rough);
    // A bound that is a multiple itself may be a rounding error beside it.
    let near = step * 1e-9;
    let first = ((low - near) / step).ceil();
    (0..=2 * TICKS as u32).map(|tick| (first + f64::from(tick)) * step).take_while(|tick| *tick <= high + near).collect()
}

/// Logarithms of round numbers between two logarithms: 1, 2 and 5 times each power of ten, or as many powers as an axis has room
/// for.
fn logarithmic_ticks(low: f64, high: f64) -> Vec<f64> {
    if high - low < 0.5 {
        return round_ticks(10_f64.powf(low), 10_f64.powf(high), 0.0)
            .into_iter()
            .filter(|tick| *tick > 0.0)
            .map(f64::log10)
            .collect();
    }
    let every = ((high - low) / TICKS).ceil().max(1.0) as usize;
    let factors: &[f64] = if high - low > 2.5 { &[1.0] } else { &[1.0, 2.0, 5.0] };
    let powers = (low.floor() as i32..=high.ceil() as i32).step_by(every);
    powers
        .flat_map(|power| factors.iter().map(move |factor| f64::from(power) + factor.log10()))
        .filter(|tick| (low..=high).contains(tick))
        .collect()
}

/// An average in which what came before counts less and less, from as soon as there is something to average.
fn smoothed(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    if points.len() < FEWEST_TO_SMOOTH {
        return Vec::new();
    }
    let kept = 1.0 - FEWEST_TO_SMOOTH as f64 / points.len() as f64;
    let mut state = (0.0, 0.0);
    let step = |(at, value): &(f64, f64)| {
        state = (state.0 * kept + value * (1.0 - kept), state.1 * kept + (1.0 - kept));
        (*at, state.0 / state.1)
    };
    points.iter().map(step).collect()
}

/// At most [`MOST_POINTS`] points: means of equally many neighbours.
fn thinned(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let mean = |chunk: &[(f64, f64)]| {
        let count = chunk.len() as f64;
        let sums = chunk.iter().fold((0.0, 0.0), |sums, (at, value)| (sums.0 + at, sums.1 + value));
        (sums.0 / count, sums.1 / count)
    };
    points.chunks(points.len().div_ceil(MOST_POINTS).max(1)).map(mean).collect()
}

/// `4.213`, `0.0003`, `3e-7`, `9,812`, `1.2e9`.
fn label(value: f64) -> String {
    let size = value.abs();
    let trimmed =
        |text: String| if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text };
    let sign = if value < 0.0 { "-" } else { "" };
    match size {
        _ if size < 1e-12 => "0".to_owned(),
        _ if !(1e-3..1e9).contains(&size) => {
            let text = format!("{value:.2e}");
            let (digits, power) = text.split_once('e').unwrap_or((&text, "0"));
            format!("{}e{power}", trimmed(digits.to_owned()))
        }
        _ if size < 1.0 => trimmed(format!("{value:.4}")),
        _ if size < 1000.0 => trimmed(format!("{value:.3}")),
        _ => format!("{sign}{}", format::number(size.round() as u64)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(points: Vec<(f64, f64)>) -> Chart {
        let series = vec![Series { points, resumed: vec![40.0], checkpoints: vec![30.0, 60.0], ..Series::default() }];
        Chart { title: "training loss (nats)", over: "steps", series, ..Chart::default() }
    }

    #[test]
    fn a_page_is_complete_in_itself() {
        let points: Vec<(f64, f64)> = (1..=2500).map(|step| (f64::from(step), 5.0 / f64::from(step))).collect();
        let charts = [Chart { smoothed: true, ..chart(points) }, chart(vec![(7.0, 3e-4)]), chart(vec![(1.0, 0.0), (2.0, 0.0)])];
        let page = page(&["a&b".to_owned()], &[("state", vec!["<done>".to_owned()])], &charts);
        for part in [
            "<h1>a&amp;b</h1>",
            "training loss (nats): 0.002<",
            "<th>state</th><td>&lt;done&gt;</td>",
            "(nats): 3e-4<",
            "var(--j0)",
        ] {
            assert!(page.contains(part), "{part} is missing in {page}");
        }
        assert!(!page.contains("http:") && !page.contains("https:") && !page.contains("<script"), "{page}");
        assert!(!page.contains("NaN") && !page.contains("inf"), "{page}");
        assert_eq!(page.matches("<svg").count(), 3);
        assert!(!page.contains("\"#0"), "a colour that no series has");
        assert!(page.len() < 120_000, "2,500 points are thinned: {} bytes", page.len());
    }

    #[test]
    fn an_attempt_that_resumed_before_the_first_number_is_drawn() {
        let drawn = |resumed: Vec<f64>| {
            let series = vec![Series { points: vec![(50.0, 4.0), (100.0, 3.0)], resumed, ..Series::default() }];
            figure(&Chart { series, ..chart(Vec::new()) }, &["a".to_owned()]).matches("var(--mark)").count()
        };
        assert_eq!(drawn(Vec::new()), 0);
        assert!(drawn(vec![0.0]) > 1, "a dashed line at the left edge");
    }

    #[test]
    fn ticks_are_round_numbers() {
        assert_eq!(round_ticks(0.0, 1000.0, 0.0), [0.0, 200.0, 400.0, 600.0, 800.0, 1000.0]);
        assert_eq!(round_ticks(151.0, 449.0, 0.0), [200.0, 300.0, 400.0]);
        assert_eq!(round_ticks(1.0, 3.0, 1.0), [1.0, 2.0, 3.0]);
        let labels = |low: f64, high: f64| {
            logarithmic_ticks(low.log10(), high.log10()).iter().map(|at| label(10_f64.powf(*at))).collect::<Vec<_>>()
        };
        assert_eq!(labels(39.6, 4_319.0), ["50", "100", "200", "500", "1,000", "2,000"]);
        assert_eq!(labels(20.0, 30.0), ["20", "22", "24", "26", "28", "30"]);
        assert_eq!(labels(1.0, 1e9), ["1", "100", "10,000", "1,000,000", "100,000,000"]);
    }

    #[test]
    fn numbers_are_told_in_few_characters() {
        for (value, told) in [
            (0.0, "0"),
            (4.2131, "4.213"),
            (50.0, "50"),
            (0.0003, "3e-4"),
            (0.02, "0.02"),
            (9_812.4, "9,812"),
            (-1_500.0, "-1,500"),
            (1.25e12, "1.25e12"),
        ] {
            assert_eq!(label(value), told);
        }
    }
}
