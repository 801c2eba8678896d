//! The progress of long work, for a person. `output` implements the report; the code that does the work only calls it.

use serde::{Deserialize, Serialize};

/// How data is printed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// For people.
    #[default]
    Table,
    /// Exactly one JSON value, on error too.
    Json,
    /// One JSON value a line.
    Jsonl,
    /// Names only, one a line: for `xargs`.
    Name,
}

/// How much talk goes to stderr.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verbosity {
    /// Warnings and errors.
    Quiet,
    #[default]
    Normal,
    /// Also what was decided and why.
    Verbose,
}

/// The unit of a count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    Bytes,
    Items,
    Steps,
}

/// Talk for stderr. Never data.
pub trait Report: Send + Sync {
    /// A stage of the job's life begins: `[3/9] Uploading dataset (1.2 GiB)`.
    fn stage(&self, number: usize, of: usize, title: &str);

    /// One line of talk.
    fn line(&self, text: &str);

    /// One line for `--verbose`: what was decided and why.
    fn detail(&self, _text: &str) {}

    /// Something that needs the user's attention.
    fn warn(&self, text: &str);

    /// Where a long piece of work stands. Called as often as convenient; shown as a bar on a terminal, otherwise as a line at the
    /// start, at the end and every 60 s. `done == total` ends it.
    fn progress(&self, what: &str, done: u64, total: Option<u64>, unit: Unit);

    /// Whether anybody sees a [`Report::footer`].
    fn has_footer(&self) -> bool {
        false
    }

    /// Where a training stands, below everything else that is said; `None` takes it away.
    fn footer(&self, _reached: Option<Footer>) {}
}

/// A training as a footer shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Footer {
    pub step: u64,
    pub steps: u64,
    /// Its loss, pace and cost in words.
    pub note: String,
}

/// Says nothing: for `--quiet` and for tests.
pub struct Silent;

impl Report for Silent {
    fn stage(&self, _: usize, _: usize, _: &str) {}
    fn line(&self, _: &str) {}
    fn warn(&self, _: &str) {}
    fn progress(&self, _: &str, _: u64, _: Option<u64>, _: Unit) {}
}
