//! How a job went, number by number: the progress lines of all its attempts as one history.

use std::collections::BTreeMap;

use ft_trainer::progress::Event;

use super::{Result, results};
use crate::{job::record::Record, store::Store};

/// One number over the steps, rising.
#[derive(Debug, Clone, PartialEq)]
pub struct Curve {
    pub title: &'static str,
    pub points: Vec<(u64, f64)>,
}

type Points = BTreeMap<u64, f64>;

/// The points of one job by step. What an attempt did after the checkpoint that the next one resumed from is replaced by the latter.
#[derive(Default)]
struct History {
    loss: Points,
    validation_perplexity: Points,
    learning_rate: Points,
    gradient_norm: Points,
    tokens_per_second: Points,
    memory: Points,
}

impl History {
    fn add(&mut self, event: &Event) {
        match *event {
            Event::Start { step, .. } => self.forget_after(step),
            Event::Step { step, loss, learning_rate, gradient_norm, tokens_per_second, peak_memory_bytes, .. } => {
                self.loss.insert(step, loss);
                self.learning_rate.insert(step, learning_rate);
                self.gradient_norm.insert(step, gradient_norm);
                self.tokens_per_second.insert(step, tokens_per_second);
                self.memory.extend(peak_memory_bytes.map(|bytes| (step, bytes as f64 / 1e6)));
            }
            Event::Eval { step, perplexity, .. } => drop(self.validation_perplexity.insert(step, perplexity)),
            _ => {}
        }
    }

    fn all(&mut self) -> [(&'static str, &mut Points); 6] {
        [
            ("training loss (nats)", &mut self.loss),
            ("validation perplexity", &mut self.validation_perplexity),
            ("learning rate", &mut self.learning_rate),
            ("gradient norm", &mut self.gradient_norm),
            ("tokens per second", &mut self.tokens_per_second),
            ("peak memory (MB)", &mut self.memory),
        ]
    }

    fn forget_after(&mut self, step: u64) {
        for (_, points) in self.all() {
            points.split_off(&step.saturating_add(1));
        }
    }
}

/// The curves of a job so far. A number that no attempt told has none.
pub async fn of(store: &dyn Store, record: &Record) -> Result<Vec<Curve>> {
    let mut history = History::default();
    results::each_event(store, record, |event| history.add(&event)).await?;
    let curve =
        |(title, points): (&'static str, &mut Points)| Curve { title, points: std::mem::take(points).into_iter().collect() };
    Ok(history.all().into_iter().map(curve).filter(|curve| !curve.points.is_empty()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(step: u64, loss: f64) -> Event {
        let (learning_rate, gradient_norm, tokens_per_second) = (1e-3, 1.0, 100.0);
        let (steps, mfu, eta_seconds, peak_memory_bytes) = (9, 0.5, 1.0, None);
        Event::Step { step, steps, loss, learning_rate, gradient_norm, tokens_per_second, mfu, eta_seconds, peak_memory_bytes }
    }

    #[test]
    fn a_resumed_attempt_replaces_what_was_lost() {
        let mut history = History::default();
        let (device, micro_batch) = (String::new(), None);
        let start =
            Event::Start { step: 2, steps: 9, parameters: 1, tokens_per_step: 1, flops_per_token: 1.0, device, micro_batch };
        for event in [step(1, 5.0), step(2, 4.0), step(3, 3.0), step(4, 2.0), start, step(3, 3.5)] {
            history.add(&event);
        }
        assert_eq!(history.loss.into_iter().collect::<Vec<_>>(), [(1, 5.0), (2, 4.0), (3, 3.5)]);
        assert!(history.memory.is_empty());
    }
}
