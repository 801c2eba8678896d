//! How a job went, number by number: the progress lines of all its attempts as one history.

use std::collections::BTreeMap;

use ft_trainer::progress::{Event, Line};

use super::{Result, results};
use crate::{job::record::Record, store::Store};

/// Values beyond this come from no training. A store may say anything.
const LARGEST: f64 = 1e12;

/// The course of a job's training over all its attempts.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Course {
    /// One for each number that an attempt told.
    pub curves: Vec<Curve>,
    /// Where each attempt but the first resumed.
    pub resumed: Vec<Moment>,
    pub checkpoints: Vec<Moment>,
    /// Tokens of one optimizer step; 0 until an attempt has told.
    pub tokens_per_step: u64,
    /// Where the last attempt computed; empty until one has told.
    pub device: String,
    /// Weights of the model.
    pub parameters: u64,
    /// A sentence on what was not read.
    pub left_out: Option<String>,
}

/// One number over the steps, rising.
#[derive(Debug, Clone, PartialEq)]
pub struct Curve {
    pub title: &'static str,
    pub points: Vec<(Moment, f64)>,
}

/// A place in the training.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Moment {
    /// Optimizer steps completed.
    pub step: u64,
    /// Seconds since the first attempt began to train.
    pub seconds: f64,
}

type Points = BTreeMap<u64, (f64, f64)>;

/// Seconds and value by step. Work that was lost with its attempt is replaced by the next attempt's.
#[derive(Default)]
struct History {
    began: Option<f64>,
    told: Course,
    checkpoints: BTreeMap<u64, f64>,
    loss: Points,
    validation_perplexity: Points,
    learning_rate: Points,
    gradient_norm: Points,
    tokens_per_second: Points,
    memory: Points,
}

impl History {
    fn add(&mut self, line: &Line) {
        let began = *self.began.get_or_insert(line.time);
        let seconds = (line.time - began).clamp(0.0, LARGEST);
        match line.event {
            Event::Start { step, tokens_per_step, parameters, ref device, .. } => {
                self.resume(Moment { step, seconds });
                (self.told.tokens_per_step, self.told.parameters) = (tokens_per_step, parameters);
                self.told.device.clone_from(device);
            }
            Event::Step { step, loss, learning_rate, gradient_norm, tokens_per_second, peak_memory_bytes, .. } => {
                self.loss.insert(step, (seconds, loss));
                self.learning_rate.insert(step, (seconds, learning_rate));
                self.gradient_norm.insert(step, (seconds, gradient_norm));
                self.tokens_per_second.insert(step, (seconds, tokens_per_second));
                self.memory.extend(peak_memory_bytes.map(|bytes| (step, (seconds, bytes as f64 / 1e6))));
            }
            Event::Eval { step, perplexity, .. } => drop(self.validation_perplexity.insert(step, (seconds, perplexity))),
            Event::Checkpoint { step, .. } => drop(self.checkpoints.insert(step, seconds)),
            _ => {}
        }
    }

    fn all(&mut self) -> [(&'static str, &mut Points); 6] {
        [
            (LOSS, &mut self.loss),
            (PERPLEXITY, &mut self.validation_perplexity),
            ("learning rate", &mut self.learning_rate),
            ("gradient norm", &mut self.gradient_norm),
            ("tokens per second", &mut self.tokens_per_second),
            ("peak memory (MB)", &mut self.memory),
        ]
    }

    /// The attempt that begins here does again what comes after.
    fn resume(&mut self, at: Moment) {
        if self.all().iter().any(|(_, points)| !points.is_empty()) {
            self.told.resumed.push(at);
        }
        for (_, points) in self.all() {
            points.split_off(&at.step.saturating_add(1));
        }
        self.checkpoints.split_off(&at.step.saturating_add(1));
    }

    fn finish(mut self) -> Course {
        let moment = |(step, seconds): (&u64, &f64)| Moment { step: *step, seconds: *seconds };
        let checkpoints = self.checkpoints.iter().map(moment).collect();
        let curve = |(title, points): (&'static str, &mut Points)| {
            let points = std::mem::take(points).into_iter().filter(|(_, (_, value))| value.abs() <= LARGEST);
            Curve { title, points: points.map(|(step, (seconds, value))| (Moment { step, seconds }, value)).collect() }
        };
        let curves = self.all().into_iter().map(curve).filter(|curve| !curve.points.is_empty()).collect();
        Course { curves, checkpoints, ..self.told }
    }
}

/// Title of the curve of each step's loss.
pub const LOSS: &str = "training loss (nats)";
/// Title of the curve whose first values are a hundred times its last.
pub const PERPLEXITY: &str = "validation perplexity";

/// The course of a job so far. A number that no attempt told has no curve.
pub async fn of(store: &dyn Store, record: &Record) -> Result<Course> {
    let mut history = History::default();
    history.told.left_out = results::each_line(store, record, |line| history.add(&line)).await?;
    Ok(history.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(time: f64, event: Event) -> Line {
        Line { v: 1, time, event }
    }

    fn step(step: u64, loss: f64) -> Event {
        let (learning_rate, gradient_norm, tokens_per_second) = (1e-3, 1.0, 100.0);
        let (steps, mfu, eta_seconds, peak_memory_bytes) = (9, 0.5, 1.0, None);
        Event::Step { step, steps, loss, learning_rate, gradient_norm, tokens_per_second, mfu, eta_seconds, peak_memory_bytes }
    }

    fn start(step: u64) -> Event {
        let (device, micro_batch) = (String::new(), None);
        Event::Start { step, steps: 9, parameters: 1, tokens_per_step: 32, flops_per_token: 1.0, device, micro_batch }
    }

    #[test]
    fn a_resumed_attempt_replaces_what_was_lost() {
        let mut history = History::default();
        let saved = |step| Event::Checkpoint { step, name: step.to_string() };
        let events = [start(0), step(1, 5.0), step(2, 4.0), saved(2), step(3, 3.0), saved(3), step(4, 2.0), start(2), step(3, 3.5)];
        for (time, event) in (100..).zip(events) {
            history.add(&line(f64::from(time), event));
        }
        let course = history.finish();
        let points = |title: &str| course.curves.iter().find(|curve| curve.title == title).map(|curve| curve.points.clone());
        let at = |step, seconds| Moment { step, seconds };
        let loss = points(LOSS).unwrap();
        assert_eq!(loss, [(at(1, 1.0), 5.0), (at(2, 2.0), 4.0), (at(3, 8.0), 3.5)]);
        assert_eq!((course.resumed, course.checkpoints), (vec![at(2, 7.0)], vec![at(2, 3.0)]));
        assert_eq!((course.tokens_per_step, points("peak memory (MB)")), (32, None));
    }

    #[test]
    fn numbers_that_no_training_has_are_left_out() {
        let mut history = History::default();
        for (time, loss) in [(f64::MAX, 1e300), (-f64::MAX, 2.0), (5.0, -1e13)] {
            history.add(&line(time, step(time.to_bits() % 7, loss)));
        }
        let loss = &history.finish().curves[0].points;
        assert!(loss.len() == 1 && (loss[0].1 - 2.0).abs() < 1e-9 && loss[0].0.seconds >= 0.0, "{loss:?}");
    }
}
