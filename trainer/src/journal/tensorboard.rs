//! The step log as TensorBoard reads it: `tensorboard/events.out.tfevents.<seconds>.ft-trainer` in the output directory.
//!
//! An event file is a sequence of TFRecords (length, its checksum, content, its checksum), each holding an `Event` of
//! `tensorflow/core/util/event.proto` in protobuf's encoding. A run that begins or resumes writes a new file from the step log, so
//! that there is always one file with each step once; a TensorBoard that watches meanwhile is told to forget what it saw before.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::Value;

use crate::error::Failure;

/// Directory of the event file inside the output directory.
pub const DIRECTORY: &str = "tensorboard";

/// Numbers of the step log, and the curves that they become.
const TAGS: [(&str, &str); 5] = [
    ("loss", "train/loss"),
    ("learning_rate", "train/learning_rate"),
    ("gradient_norm", "train/gradient_norm"),
    ("validation_loss", "validation/loss"),
    ("validation_perplexity", "validation/perplexity"),
];

/// The text of the step log, and what it becomes.
const TEXT: (&str, &str) = ("sample", "sample");
/// `DT_STRING` of `tensorflow/core/framework/types.proto`.
const STRING: u64 = 7;

/// An event file that is being written.
#[derive(Debug)]
pub struct EventFile {
    path: PathBuf,
    file: File,
}

impl EventFile {
    /// Replaces the event file of a run by one that holds `steps`, the lines of its step log so far.
    pub fn create(output: &Path, steps: &[u8]) -> Result<Self, Failure> {
        let directory = output.join(DIRECTORY);
        let path = directory.join(format!("events.out.tfevents.{:010}.ft-trainer", now() as u64));
        let file = clear(&directory).and_then(|()| File::create(&path)).map_err(|error| Failure::io("create", &path, &error))?;
        let mut events = Self { path, file };
        let mut begin = record(&event(0).bytes(3, b"brain.Event:2"));
        // A SessionLog of status START at step 0: the steps that a reader has seen so far belong to the past.
        begin.extend(record(&event(0).bytes(7, &[0x08, 1])));
        let records = steps.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok());
        begin.extend(records.flat_map(|value| values(&value)));
        events.write(&begin)?;
        Ok(events)
    }

    /// Adds the numbers or the text of one line of the step log.
    pub fn add(&mut self, line: &Value) -> Result<(), Failure> {
        self.write(&values(line))
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.file.write_all(bytes).map_err(|error| Failure::io("write", &self.path, &error))
    }
}

/// Leaves an empty directory.
fn clear(directory: &Path) -> io::Result<()> {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => fs::create_dir_all(directory),
    }
}

/// One record with everything that the line has; numbers that are none cannot be drawn.
fn values(line: &Value) -> Vec<u8> {
    let number = |(key, tag): &(&str, &str)| Some(named(tag).fixed32(2, (line[*key].as_f64()? as f32).to_bits()));
    let text = line[TEXT.0].as_str().map(|text| shown(named(TEXT.1), text));
    let values = TAGS.iter().filter_map(number).chain(text);
    let summary = values.fold(Message::default(), |summary, value| summary.bytes(1, &value.0));
    record(&event(line["step"].as_u64().unwrap_or(0)).bytes(5, &summary.0))
}

/// A value of a summary, without its content.
fn named(tag: &str) -> Message {
    Message::default().bytes(1, tag.as_bytes())
}

/// The value with a text, for the plugin that shows texts. It reads Markdown, in which indented lines stay as they are.
fn shown(value: Message, text: &str) -> Message {
    let lines: Vec<String> = text.lines().map(|line| format!("    {line}")).collect();
    let plugin = Message::default().bytes(1, &Message::default().bytes(1, b"text").0);
    let one = Message::default().bytes(2, &Message::default().varint(1, 1).0);
    let tensor = Message::default().varint(1, STRING).bytes(2, &one.0).bytes(8, lines.join("\n").as_bytes());
    value.bytes(8, &tensor.0).bytes(9, &plugin.0)
}

/// A message in protobuf's encoding.
#[derive(Default)]
struct Message(Vec<u8>);

/// An event of now: field 1 is the time in seconds, field 2 the step.
fn event(step: u64) -> Message {
    Message::default().fixed64(1, now().to_bits()).varint(2, step)
}

impl Message {
    fn varint(mut self, field: u8, value: u64) -> Self {
        self.0.push(field << 3);
        self.raw_varint(value);
        self
    }

    fn fixed64(mut self, field: u8, value: u64) -> Self {
        self.0.push(field << 3 | 1);
        self.0.extend(value.to_le_bytes());
        self
    }

    fn bytes(mut self, field: u8, content: &[u8]) -> Self {
        self.0.push(field << 3 | 2);
        self.raw_varint(content.len() as u64);
        self.0.extend(content);
        self
    }

    fn fixed32(mut self, field: u8, value: u32) -> Self {
        self.0.push(field << 3 | 5);
        self.0.extend(value.to_le_bytes());
        self
    }

    fn raw_varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }
}

fn record(message: &Message) -> Vec<u8> {
    let length = (message.0.len() as u64).to_le_bytes();
    [&length[..], &checksum(&length).to_le_bytes(), &message.0, &checksum(&message.0).to_le_bytes()].concat()
}

/// The masked CRC-32C of a TFRecord (`tensorflow/core/lib/hash/crc32c.h`).
fn checksum(bytes: &[u8]) -> u32 {
    crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

/// Castagnoli's polynomial, bit by bit: records are some hundred bytes and come once a step.
fn crc32c(bytes: &[u8]) -> u32 {
    let bit = |crc: u32| (crc >> 1) ^ if crc & 1 == 1 { 0x82f6_3b78 } else { 0 };
    !bytes.iter().fold(u32::MAX, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), |crc, _| bit(crc)))
}

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |elapsed| elapsed.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_are_castagnolis() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
    }

    /// The steps of the only event file, every checksum verified.
    fn steps(output: &Path) -> Vec<u64> {
        let mut files = fs::read_dir(output.join(DIRECTORY)).unwrap();
        let bytes = fs::read(files.next().unwrap().unwrap().path()).unwrap();
        assert!(files.next().is_none(), "one file");
        let (mut rest, mut steps) = (&bytes[..], Vec::new());
        while !rest.is_empty() {
            let length = u64::from_le_bytes(rest[..8].try_into().unwrap()) as usize;
            let content = &rest[12..12 + length];
            assert_eq!(rest[8..12], checksum(&rest[..8]).to_le_bytes());
            assert_eq!(rest[12 + length..16 + length], checksum(content).to_le_bytes());
            assert_eq!((content[0], content[9]), (9, 16), "time, then step");
            steps.push(u64::from(content[10]));
            rest = &rest[16 + length..];
        }
        steps
    }

    #[test]
    fn a_resumed_run_holds_each_step_once() {
        let output = tempfile::tempdir().unwrap();
        let line = |step: u64| serde_json::json!({"step": step, "loss": 2.5, "gradient_norm": null});
        let mut events = EventFile::create(output.path(), b"").unwrap();
        (1..=3).for_each(|step| events.add(&line(step)).unwrap());
        assert_eq!(steps(output.path()), [0, 0, 1, 2, 3]);
        let kept = format!("{}\n{}\n", line(1), line(2));
        let mut events = EventFile::create(output.path(), kept.as_bytes()).unwrap();
        events.add(&line(3)).unwrap();
        assert_eq!(steps(output.path()), [0, 0, 1, 2, 3]);
    }

    #[test]
    fn numbers_become_curves() {
        let bytes = values(&serde_json::json!({"step": 300, "validation_loss": 1.5, "loss": null}));
        let tail = [&[0x2a, 24, 0x0a, 22, 0x0a, 15][..], b"validation/loss", &[0x15], &1.5_f32.to_le_bytes()].concat();
        let content = &bytes[12..bytes.len() - 4];
        assert_eq!(&content[9..12], [0x10, 0xac, 2], "step 300");
        assert_eq!(&content[12..], tail);
    }

    #[test]
    fn a_sample_becomes_text() {
        let bytes = values(&serde_json::json!({"step": 3, "sample": "a\nb"}));
        let tensor = [&[0x42, 21, 0x08, 7, 0x12, 4, 0x12, 2, 0x08, 1, 0x42, 11][..], b"    a\n    b"].concat();
        let value = [&[0x0a, 6][..], b"sample", &tensor, &[0x4a, 8, 0x0a, 6, 0x0a, 4], b"text"].concat();
        let summary = [&[0x0a, value.len() as u8][..], &value].concat();
        assert_eq!(&bytes[12 + 11..bytes.len() - 4], [&[0x2a, summary.len() as u8][..], &summary].concat());
    }
}
