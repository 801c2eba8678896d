//! What a job achieved, from the progress lines of its attempts.

use ft_trainer::progress::{Event, Line};
use serde::Serialize;

use super::Result;
use crate::{
    job::{id::path, record::Record},
    store::{Store, StoreError},
};

#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Results {
    /// Steps completed.
    pub step: u64,
    /// On the validation split, before the first step.
    pub first_perplexity: Option<f64>,
    /// On the validation split, of the weights that the job ended with, else as measured last; `None` until it was measured after a step.
    pub last_perplexity: Option<f64>,
    /// Text that the trained model wrote.
    pub sample: Option<String>,
}

impl Results {
    fn add(&mut self, event: Event) {
        match event {
            Event::Eval { step: 0, perplexity, .. } => self.first_perplexity = Some(perplexity),
            Event::Eval { perplexity, .. } => self.last_perplexity = Some(perplexity),
            Event::Sample { text, .. } => self.sample = Some(text),
            Event::Step { step, .. } | Event::Skipped { step, .. } | Event::Checkpoint { step, .. } => {
                self.step = self.step.max(step);
            }
            Event::Done { step, perplexity, .. } => {
                self.step = self.step.max(step);
                // Where the best weights are kept, those of the last evaluation may be others.
                self.last_perplexity = perplexity.or(self.last_perplexity);
            }
            Event::Start { .. } | Event::Unknown => {}
        }
    }
}

/// What the job achieved so far.
pub async fn of(store: &dyn Store, record: &Record) -> Result<Results> {
    let mut results = Results::default();
    events(store, record).await?.into_iter().for_each(|event| results.add(event));
    Ok(results)
}

/// The progress of every attempt, oldest first.
pub async fn events(store: &dyn Store, record: &Record) -> Result<Vec<Event>> {
    let mut events = Vec::new();
    for attempt in 1..=record.attempt {
        let bytes = match store.get(&path::progress(&record.id, attempt)).await {
            Ok(object) => object.bytes,
            // An attempt that never had an agent has no progress.
            Err(StoreError::NotFound { .. }) => continue,
            Err(error) => return Err(error.into()),
        };
        let lines = bytes.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice::<Line>(line).ok());
        events.extend(lines.map(|line| line.event));
    }
    Ok(events)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_measured_after_a_step_is_an_end() {
        let mut results = Results::default();
        let measured = |step, perplexity| Event::Eval { step, loss: 1.0, perplexity };
        results.add(measured(0, 300.0));
        assert_eq!((results.first_perplexity, results.last_perplexity), (Some(300.0), None));
        results.add(measured(5, 30.0));
        assert_eq!((results.first_perplexity, results.last_perplexity), (Some(300.0), Some(30.0)));
        let done = |perplexity| Event::Done { step: 5, seconds: 1.0, perplexity };
        results.add(done(None));
        assert_eq!(results.last_perplexity, Some(30.0));
        results.add(done(Some(20.0)));
        assert_eq!((results.step, results.last_perplexity), (5, Some(20.0)), "the best weights, and not the last");
    }
}
