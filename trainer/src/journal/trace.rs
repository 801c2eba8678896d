//! The times of a run's parts, as a trace that `chrome://tracing` and Perfetto show: the JSON array of the Trace Event Format,
//! complete events (`"ph": "X"`), times in microseconds since the process began to trace.
//!
//! Nothing is measured and nothing costs until [`start`]; then a span costs two readings of the clock and a line of about a hundred
//! bytes.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::{Mutex, OnceLock};
use std::time::Instant;

use serde_json::json;

use crate::error::Failure;

/// Name in the output directory.
pub const FILE: &str = "trace.json";
/// Later spans are not written: viewers do not take more, and some ten thousand steps show what there is to see.
const MOST: u64 = 500_000;

static TRACE: OnceLock<Trace> = OnceLock::new();

struct Trace {
    began: Instant,
    file: Mutex<(BufWriter<File>, u64)>,
}

/// Traces this process into `output`, over what an earlier one has left.
pub fn start(output: &Path) -> Result<(), Failure> {
    let path = output.join(FILE);
    let file = File::create(&path).map_err(|error| Failure::io("create", &path, &error))?;
    let _ = TRACE.set(Trace { began: Instant::now(), file: Mutex::new((BufWriter::new(file), 0)) });
    Ok(())
}

/// Something that takes time, from its making to its end.
pub struct Span {
    name: &'static str,
    /// Viewers show a row for each; the spans of one lie inside each other or apart.
    thread: u32,
    began: Option<Instant>,
}

/// Begins to measure, where [`start`] was called.
pub fn span(name: &'static str) -> Span {
    span_in(1, name)
}

/// [`span`] for work beside the training.
pub fn span_beside(name: &'static str) -> Span {
    span_in(2, name)
}

/// [`span`] for what processes tell each other beside both, by this one of several threads.
pub fn span_of_exchange(name: &'static str, lane: usize) -> Span {
    span_in(3 + lane as u32, name)
}

fn span_in(thread: u32, name: &'static str) -> Span {
    Span { name, thread, began: TRACE.get().map(|_| Instant::now()) }
}

impl Drop for Span {
    fn drop(&mut self) {
        if let Some((trace, began)) = TRACE.get().zip(self.began) {
            trace.add(self, began);
        }
    }
}

impl Trace {
    /// A trace is for people to look at: one that cannot be written is no reason to end a run.
    fn add(&self, span: &Span, began: Instant) {
        let Some(mut file) = self.file.lock().ok().filter(|file| file.1 < MOST) else { return };
        let microseconds = |from: Instant, to: Instant| (to - from).as_secs_f64() * 1e6;
        let separator = if file.1 == 0 { "[" } else { "," };
        file.1 += 1;
        let (at, took) = (microseconds(self.began, began), microseconds(began, Instant::now()));
        let event = json!({"name": span.name, "ph": "X", "ts": at, "dur": took, "pid": std::process::id(), "tid": span.thread});
        let _ = writeln!(file.0, "{separator}{event}");
    }
}

/// Completes the file. One that a killed process left has no closing bracket, which viewers do not need.
pub fn finish() {
    if let Some(Ok(mut file)) = TRACE.get().map(|trace| trace.file.lock()) {
        let end = if file.1 == 0 { "[]" } else { "]" };
        let _ = writeln!(file.0, "{end}");
        let _ = file.0.flush();
    }
}
