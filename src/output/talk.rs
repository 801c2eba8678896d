//! Talk on stderr: bars on a terminal, plain lines everywhere else.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use super::{Style, bars::Reached, format, stderr::Stderr};
use crate::{
    exit::{Exit, Failure},
    job::{
        printable,
        report::{Footer, Report, Unit, Verbosity},
    },
};

/// How often a long piece of work says that it goes on when there is no terminal.
const EVERY: Duration = Duration::from_secs(60);

pub(super) struct Talk {
    verbosity: Verbosity,
    style: Style,
    stderr: Stderr,
    works: Mutex<HashMap<String, Pace>>,
}

impl Talk {
    pub fn new(verbosity: Verbosity, style: Style) -> Self {
        Self { verbosity, style, stderr: Stderr::new(style.live), works: Mutex::default() }
    }

    /// Runs `print` after everything that was said.
    pub fn after_all<T>(&self, print: impl FnOnce() -> T) -> T {
        self.stderr.settle();
        print()
    }

    /// [`Talk::after_all`] while no bar is on the screen.
    pub fn suspend<T>(&self, print: impl FnOnce() -> T) -> T {
        self.stderr.suspend(print)
    }

    /// Returns when everything that was said is written and no bar is left.
    pub fn end(&self) {
        self.stderr.clear_bars();
        self.stderr.settle();
    }

    /// The last words of a program that did not do its work, whatever the verbosity. A user who interrupts it makes no error.
    pub fn last_words(&self, failure: &Failure) {
        let (label, next) = match failure.exit {
            Exit::HungUp | Exit::Interrupted | Exit::Terminated => (self.paint("interrupted:", "1;33"), "next:"),
            _ => (self.paint("error:", "1;31"), "fix:"),
        };
        self.say(&label, &failure.message);
        if let Some(fix) = &failure.fix {
            self.say(&format!("  {}", self.paint(next, "1;32")), fix);
        }
    }

    /// The label is ours, the text may have words from outside.
    fn say(&self, label: &str, text: &str) {
        self.stderr.line(format!("{label} {}", printable::text(text)));
    }

    fn paint(&self, text: &str, code: &str) -> String {
        if self.style.colour { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

impl Report for Talk {
    fn stage(&self, number: usize, of: usize, title: &str) {
        // What it says is of the stage before.
        self.footer(None);
        if self.verbosity > Verbosity::Quiet {
            self.say(&self.paint(&format!("[{number}/{of}]"), "1;36"), title);
        }
    }

    fn line(&self, text: &str) {
        if self.verbosity > Verbosity::Quiet {
            self.stderr.line(printable::text(text).into_owned());
        }
    }

    fn detail(&self, text: &str) {
        if self.verbosity == Verbosity::Verbose {
            self.stderr.line(self.paint(&printable::text(text), "2"));
        }
    }

    fn warn(&self, text: &str) {
        self.say(&self.paint("warning:", "1;33"), text);
    }

    fn progress(&self, what: &str, done: u64, total: Option<u64>, unit: Unit) {
        if self.verbosity == Verbosity::Quiet {
            return;
        }
        let what = printable::line(what);
        let reached = Reached { done, total, unit, note: String::new() };
        // A thread that panicked while it talked has broken nothing.
        let mut works = self.works.lock().unwrap_or_else(PoisonError::into_inner);
        let pace = works.entry(what.to_string()).or_insert_with(|| Pace::new(&what, Instant::now()));
        let line = pace.line(Instant::now(), done, total, unit).filter(|_| reached.is_end() || !self.style.live);
        if reached.is_end() {
            works.remove(&*what);
        }
        drop(works);
        self.stderr.progress(&what, reached);
        if let Some(line) = line {
            self.stderr.line(line);
        }
    }

    fn has_footer(&self) -> bool {
        self.style.live && self.verbosity > Verbosity::Quiet
    }

    fn footer(&self, reached: Option<Footer>) {
        if !self.has_footer() {
            return;
        }
        // A count that is complete takes the bar away.
        let (done, total, note) = reached.map_or((0, 0, String::new()), |footer| (footer.step, footer.steps, footer.note));
        self.stderr.progress("Training", Reached { done, total: Some(total), unit: Unit::Steps, note });
    }
}

/// Decides when a piece of work says something in plain lines: when it starts, every [`EVERY`], and when it ends.
struct Pace {
    what: String,
    began: Instant,
    /// When it last said something; `None`: never.
    said: Option<Instant>,
}

impl Pace {
    fn new(what: &str, began: Instant) -> Self {
        Self { what: what.to_owned(), began, said: None }
    }

    fn line(&mut self, now: Instant, done: u64, total: Option<u64>, unit: Unit) -> Option<String> {
        let what = &self.what;
        let counted = format::count(done, unit);
        let first = self.said.is_none();
        let due = self.said.is_none_or(|said| now.duration_since(said) >= EVERY);
        if total == Some(done) {
            return Some(format!("{what}: {counted} in {}", format::duration(now.duration_since(self.began))));
        }
        if !due {
            return None;
        }
        self.said = Some(now);
        let of = total.map(|total| format!(" of {}", format::count(total, unit).trim_start_matches("step "))).unwrap_or_default();
        Some(if first && done == 0 { format!("{what} …") } else { format!("{what}: {counted}{of}") })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_work_speaks_at_its_start_every_minute_and_at_its_end() {
        let start = Instant::now();
        let mut pace = Pace::new("Uploading", start);
        let mut at = |seconds, done| pace.line(start + Duration::from_secs(seconds), done, Some(4096), Unit::Bytes);
        assert_eq!(at(0, 0).as_deref(), Some("Uploading …"));
        assert_eq!(at(1, 10), None);
        assert_eq!(at(59, 1000), None);
        assert_eq!(at(60, 1024).as_deref(), Some("Uploading: 1.0 KiB of 4.0 KiB"));
        assert_eq!(at(61, 1025), None);
        assert_eq!(at(125, 4096).as_deref(), Some("Uploading: 4.0 KiB in 2m 5s"));
    }
}
