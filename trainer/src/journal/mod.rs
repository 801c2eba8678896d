//! A run's reports: `steps.jsonl` for the record, `progress.jsonl` for programs, curves for TensorBoard, lines on stdout for
//! people.
//!
//! The step log holds only what an undisturbed run would repeat byte for byte, and is cut back to the checkpoint when a run
//! resumes. The progress lines hold times and rates, and only ever grow.

pub mod tensorboard;
pub mod trace;

use std::f64::consts::LN_2;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde::Serialize;

use crate::error::Failure;
use crate::files;
use crate::progress::{Event, Line};
use tensorboard::EventFile;

/// Name of the step log, in the output directory and in every checkpoint.
pub const STEP_LOG: &str = "steps.jsonl";

/// Floating-point operations per trained token, forward and backward, as [`crate::model::Shape::flops_per_token`] counts them: L
/// layers, width d, T tokens per sequence, vocabulary V; causal attention counted once.
pub const FLOPS_FORMULA: &str = "6(12Ld² + Vd) + 6LTd";

/// One line of the step log.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub enum Record {
    /// After each optimizer step.
    Step {
        step: u64,
        /// Mean cross-entropy of the step's tokens, in nats.
        loss: f64,
        learning_rate: f64,
        /// Global L2 norm before clipping.
        gradient_norm: f64,
        /// Tokens trained on so far.
        tokens: u64,
        /// Why the step changed no weight.
        #[serde(skip_serializing_if = "Option::is_none")]
        skipped: Option<String>,
    },
    /// After each evaluation.
    Evaluation { step: u64, validation_loss: f64, validation_perplexity: f64 },
    /// After an evaluation, where samples are wished there.
    Sample { step: u64, sample: String },
}

/// The name of a unit of loss, and how many nats it is.
const NATS: (&str, f64) = ("", 1.0);

/// The open logs of one process.
#[derive(Debug)]
pub struct Journal {
    steps: Appended,
    progress: Appended,
    events: EventFile,
    unit: (&'static str, f64),
}

impl Journal {
    /// Opens the logs of `output`. The step log starts as the copy in the checkpoint that the run resumes from, or empty.
    pub fn open(output: &Path, checkpoint: Option<&Path>) -> Result<Self, Failure> {
        let log = output.join(STEP_LOG);
        let saved = checkpoint.map(|checkpoint| checkpoint.join(STEP_LOG));
        let kept = saved.map_or(Ok(Vec::new()), |path| std::fs::read(&path).map_err(|error| Failure::io("read", &path, &error)))?;
        files::replace(&log, &kept)?;
        let mut progress = Appended::open(output.join("progress.jsonl"))?;
        progress.end_broken_line()?;
        let events = EventFile::create(output, &kept)?;
        Ok(Self { steps: Appended::open(log)?, progress, events, unit: NATS })
    }

    /// Tells people losses in base 2, as fairseq does. The numbers for programs stay in nats.
    #[must_use]
    pub fn in_bits(self) -> Self {
        Self { unit: (" bits", LN_2), ..self }
    }

    /// Appends to the step log and to TensorBoard's curves.
    pub fn record(&mut self, record: &Record) -> Result<(), Failure> {
        self.steps.line(record)?;
        self.events.add(&serde_json::to_value(record).map_err(Failure::other)?)
    }

    /// Length of the step log in bytes.
    pub fn steps_bytes(&self) -> u64 {
        self.steps.bytes
    }

    pub fn steps_path(&self) -> &Path {
        &self.steps.path
    }

    /// Appends to the progress lines and says the same to people.
    pub fn tell(&mut self, event: Event) -> Result<(), Failure> {
        say(&sentence(&event, self.unit));
        self.progress.line(&Line::now(event))
    }
}

/// Whether [`say`] begins with the time: for a caller that keeps the lines in a log.
static TIMESTAMPS: AtomicBool = AtomicBool::new(false);

/// From now on each message begins with the time in UTC, `2026-11-20T14:03:22.512Z `.
pub fn stamp_lines() {
    TIMESTAMPS.store(true, Ordering::Relaxed);
}

/// Prints a message for people. A closed stdout is no reason to stop training: the reader may come back to the files.
pub fn say(message: &str) {
    let mut stdout = io::stdout().lock();
    let _ = if TIMESTAMPS.load(Ordering::Relaxed) {
        writeln!(stdout, "{:.3} {message}", jiff::Timestamp::now())
    } else {
        writeln!(stdout, "{message}")
    };
}

/// A file that only grows, one whole line a write.
#[derive(Debug)]
struct Appended {
    path: PathBuf,
    file: File,
    bytes: u64,
}

impl Appended {
    fn open(path: PathBuf) -> Result<Self, Failure> {
        let open = || {
            let mut file = OpenOptions::new().read(true).append(true).create(true).open(&path)?;
            let bytes = file.seek(SeekFrom::End(0))?;
            Ok((file, bytes))
        };
        let (file, bytes) = open().map_err(|error| Failure::io("open", &path, &error))?;
        Ok(Self { path, file, bytes })
    }

    fn line(&mut self, value: &impl Serialize) -> Result<(), Failure> {
        let mut text = serde_json::to_vec(value).map_err(Failure::other)?;
        text.push(b'\n');
        self.write(&text)
    }

    fn write(&mut self, text: &[u8]) -> Result<(), Failure> {
        self.file.write_all(text).map_err(|error| Failure::io("write", &self.path, &error))?;
        self.bytes += text.len() as u64;
        Ok(())
    }

    /// A machine that lost power may have kept half a line; the next line must start on its own.
    fn end_broken_line(&mut self) -> Result<(), Failure> {
        let mut last = [b'\n'];
        let mut read = || {
            self.file.seek(SeekFrom::Start(self.bytes.saturating_sub(1)))?;
            self.file.read(&mut last)
        };
        read().map_err(|error| Failure::io("read", &self.path, &error))?;
        if last == *b"\n" { Ok(()) } else { self.write(b"\n") }
    }
}

/// An event as people read it.
fn sentence(event: &Event, (unit, nats): (&str, f64)) -> String {
    match event {
        Event::Start { step, steps, parameters, tokens_per_step, flops_per_token, device, .. } => {
            let verb = if *step == 0 { "training".to_owned() } else { format!("resuming after step {step}:") };
            let (tokens, millions) = (grouped(*tokens_per_step), *parameters as f64 / 1e6);
            let flops = flops_per_token / 1e6;
            format!(
                "{verb} {steps} steps of {tokens} tokens  {millions:.1} M parameters  {flops:.1} MFLOP per token, F = {FLOPS_FORMULA}  {device}"
            )
        }
        Event::Step { step, steps, loss, learning_rate, tokens_per_second, mfu, eta_seconds, .. } => format!(
            "step {step}/{steps}  loss {:.3}{unit}  lr {learning_rate:.1e}  {} tok/s  MFU {:.0} %  ETA {}",
            loss / nats,
            grouped(*tokens_per_second as u64),
            mfu * 100.0,
            duration(*eta_seconds)
        ),
        Event::Skipped { step, reason } => format!("step {step} changes no weight: {reason}"),
        Event::Eval { step, loss, perplexity } => {
            format!("validation after step {step}  loss {:.3}{unit}  perplexity {perplexity:.2}", loss / nats)
        }
        Event::Checkpoint { name, .. } => format!("checkpoint {name}"),
        Event::Sample { step, text } => format!("sample after step {step}\n{text}"),
        Event::Done { step, seconds, .. } => format!("done: {step} steps in {}", duration(*seconds)),
        Event::Unknown => String::new(),
    }
}

/// `9,812`.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let groups: Vec<&str> = digits.as_bytes().rchunks(3).rev().filter_map(|group| std::str::from_utf8(group).ok()).collect();
    groups.join(",")
}

/// `1m12s`.
fn duration(seconds: f64) -> String {
    let seconds = Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or_default().as_secs();
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, seconds) => format!("{seconds}s"),
        (0, minutes, seconds) => format!("{minutes}m{seconds:02}s"),
        (hours, minutes, _) => format!("{hours}h{minutes:02}m"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn step(step: u64) -> Record {
        Record::Step { step, loss: 4.5, learning_rate: 1e-4, gradient_norm: 1.25, tokens: step * 64, skipped: None }
    }

    #[test]
    fn the_step_log_is_cut_back_to_the_checkpoint() {
        let output = tempfile::tempdir().unwrap();
        let checkpoint = output.path().join("step-0000000001");
        fs::create_dir(&checkpoint).unwrap();
        let mut journal = Journal::open(output.path(), None).unwrap();
        journal.record(&step(1)).unwrap();
        fs::copy(journal.steps_path(), checkpoint.join(STEP_LOG)).unwrap();
        journal.record(&step(2)).unwrap();
        let mut journal = Journal::open(output.path(), Some(&checkpoint)).unwrap();
        let record = Record::Evaluation { step: 1, validation_loss: 2.0, validation_perplexity: 7.5 };
        journal.record(&record).unwrap();
        let expected = "{\"step\":1,\"loss\":4.5,\"learning_rate\":0.0001,\"gradient_norm\":1.25,\"tokens\":64}\n\
                        {\"step\":1,\"validation_loss\":2.0,\"validation_perplexity\":7.5}\n";
        assert_eq!(fs::read_to_string(journal.steps_path()).unwrap(), expected);
        assert_eq!(journal.steps_bytes(), expected.len() as u64);
    }

    #[test]
    fn progress_goes_on_after_half_a_line() {
        let output = tempfile::tempdir().unwrap();
        let path = output.path().join("progress.jsonl");
        fs::write(&path, "{\"v\":1}\n{\"v\":").unwrap();
        let mut journal = Journal::open(output.path(), None).unwrap();
        journal.tell(Event::Done { step: 3, seconds: 1.0, perplexity: None }).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!((lines.len(), lines[1]), (3, "{\"v\":"));
        assert!(lines[2].contains("\"event\":\"done\""));
    }

    #[test]
    fn people_read_short_lines() {
        let event = Event::Step {
            step: 120,
            steps: 800,
            loss: 4.2134,
            learning_rate: 3e-4,
            gradient_norm: 1.0,
            tokens_per_second: 9812.4,
            mfu: 0.312,
            eta_seconds: 72.9,
            peak_memory_bytes: None,
        };
        assert_eq!(sentence(&event, NATS), "step 120/800  loss 4.213  lr 3.0e-4  9,812 tok/s  MFU 31 %  ETA 1m12s");
        let fairseqs = sentence(&Event::Eval { step: 1, loss: 3.0 * LN_2, perplexity: 8.0 }, (" bits", LN_2));
        assert_eq!(fairseqs, "validation after step 1  loss 3.000 bits  perplexity 8.00");
        let event = Event::Start {
            step: 0,
            steps: 800,
            parameters: 4_200_000,
            tokens_per_step: 2048,
            flops_per_token: 26.5e6,
            device: "CPU".to_owned(),
            micro_batch: None,
        };
        let expected = "training 800 steps of 2,048 tokens  4.2 M parameters  26.5 MFLOP per token, F = 6(12Ld² + Vd) + 6LTd  CPU";
        assert_eq!(sentence(&event, NATS), expected);
        assert_eq!((grouped(7), grouped(1_234_567)), ("7".to_owned(), "1,234,567".to_owned()));
        assert_eq!((duration(59.0), duration(7_300.0)), ("59s".to_owned(), "2h01m".to_owned()));
    }
}
