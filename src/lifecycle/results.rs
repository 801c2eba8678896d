//! A job's results, from the progress lines of its attempts.

use ft_trainer::progress::{Event, Line};
use serde::Serialize;

use super::{Result, lines::Lines, observe};
use crate::{
    job::{
        id::path,
        record::{Measures, Record},
    },
    store::{Store, StoreError},
};

#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Results {
    /// Steps completed.
    pub step: u64,
    /// The loss of the last step that was told, in nats.
    pub last_loss: Option<f64>,
    /// The logarithm of `last_perplexity`.
    pub last_validation_loss: Option<f64>,
    /// On the validation split, before the first step.
    pub first_perplexity: Option<f64>,
    /// On the validation split, of the weights that the job ended with, else as measured last; `None` until it was measured after a
    /// step.
    pub last_perplexity: Option<f64>,
    /// The lowest of all that were measured after a step.
    pub best: Option<Best>,
    /// Text that the trained model wrote.
    pub sample: Option<String>,
    /// The newest texts that the model wrote, the oldest of them first.
    pub samples: Vec<Sample>,
    /// A sentence on what was not read.
    #[serde(skip)]
    pub left_out: Option<String>,
}

/// Bytes that are read at once.
const PIECE: u64 = 1 << 20;
/// Most bytes of all attempts together: the progress of a million steps has fewer.
const MOST: u64 = 128 << 20;

/// Samples that are kept.
const SAMPLES: usize = 5;

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Sample {
    pub step: u64,
    pub text: String,
}

/// An evaluation that no other was better than.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Best {
    pub step: u64,
    pub perplexity: f64,
}

impl Results {
    fn add(&mut self, event: Event) {
        match event {
            Event::Eval { step: 0, perplexity, .. } => self.first_perplexity = Some(perplexity),
            Event::Eval { perplexity, loss, step } => {
                let is_best = self.best.is_none_or(|best| perplexity < best.perplexity);
                self.best = if is_best { Some(Best { step, perplexity }) } else { self.best };
                (self.last_perplexity, self.last_validation_loss) = (Some(perplexity), Some(loss));
            }
            Event::Sample { step, text } => self.add_sample(Sample { step, text }),
            Event::Step { step, loss, .. } => (self.step, self.last_loss) = (self.step.max(step), Some(loss)),
            Event::Skipped { step, .. } | Event::Checkpoint { step, .. } => self.step = self.step.max(step),
            Event::Done { step, perplexity, .. } => {
                self.step = self.step.max(step);
                // Where the best weights are kept, those of the last evaluation may be others.
                if let Some(perplexity) = perplexity {
                    (self.last_perplexity, self.last_validation_loss) = (Some(perplexity), Some(perplexity.ln()));
                }
            }
            Event::Start { .. } | Event::Unknown => {}
        }
    }
}

impl Results {
    /// A run that resumes writes some of them again.
    fn add_sample(&mut self, sample: Sample) {
        self.sample = Some(sample.text.clone());
        self.samples.retain(|before| before.step < sample.step);
        self.samples.push(sample);
        self.samples.drain(..self.samples.len().saturating_sub(SAMPLES));
    }
}

impl From<&Results> for Measures {
    fn from(results: &Results) -> Self {
        let Results { last_loss, last_validation_loss, last_perplexity, .. } = *results;
        Self { loss: last_loss, validation_loss: last_validation_loss, perplexity: last_perplexity }
    }
}

/// The results of the job so far.
pub async fn of(store: &dyn Store, record: &Record) -> Result<Results> {
    let mut results = Results::default();
    results.left_out = each_line(store, record, |line| results.add(line.event)).await?;
    Ok(results)
}

/// Gives `see` the progress of every attempt, oldest first. Answers a sentence when something was left out.
pub async fn each_line(store: &dyn Store, record: &Record, mut see: impl FnMut(Line)) -> Result<Option<String>> {
    let (mut left, mut cut) = (MOST, 0);
    // One listing instead of a question for each attempt: a record may claim ten thousand that left nothing.
    for attempt in observe::begun(store, &record.id).await?.into_iter().filter(|attempt| *attempt <= record.attempt) {
        let (progress, mut lines, mut offset) = (path::progress(&record.id, attempt), Lines::default(), 0);
        let mut take = |line: &[u8], goes_on| match serde_json::from_slice::<Line>(line) {
            _ if goes_on => cut += 1,
            Ok(line) => see(line),
            Err(_) => {}
        };
        loop {
            let bytes = match store.get_range(&progress, offset..offset + PIECE.min(left)).await {
                Ok(bytes) => bytes,
                // An attempt that never had an agent has no progress.
                Err(StoreError::NotFound { .. }) => break,
                Err(error) => return Err(error.into()),
            };
            if bytes.is_empty() {
                break;
            }
            (offset, left) = (offset + bytes.len() as u64, left.saturating_sub(bytes.len() as u64));
            lines.take(&bytes, &mut take);
        }
        lines.finish(&mut take);
        if left == 0 {
            let why = format!(
                "the progress of {} has {} MiB or more: the rest of attempt {attempt} and all later attempts are not shown",
                record.id,
                MOST >> 20
            );
            return Ok(Some(why));
        }
    }
    Ok((cut > 0)
        .then(|| format!("the progress of {} has lines of more than 1 MiB, which no trainer writes: they are left out", record.id)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        job::id::JobId,
        lifecycle::journal,
        store::{Condition, memory::MemoryStore},
    };

    #[tokio::test]
    async fn only_attempts_that_left_progress_are_asked_for_it() {
        let id = JobId::parse("fuzzed-bcdfgh").unwrap();
        let mut record = journal::decode(&id, include_bytes!("../../fuzz/corpus/record/finished")).unwrap();
        record.attempt = 9_999;
        let store = MemoryStore::new();
        for (attempt, step) in [("2", 7), ("10", 9), ("1", 5), ("+1", 6), ("01", 6), ("20000", 8), ("x", 6)] {
            let line = format!("{{\"v\":1,\"time\":0,\"event\":\"checkpoint\",\"step\":{step},\"name\":\"a\"}}\nno line\n");
            let place = format!("{}/{attempt}/progress.jsonl", path::attempts(&id));
            store.put(&place, line.into(), Condition::Always).await.unwrap();
        }
        store.put(&format!("{}/3/log", path::attempts(&id)), "no progress".into(), Condition::Always).await.unwrap();
        let mut steps = Vec::new();
        each_line(&store, &record, |line| {
            steps.extend(match line.event {
                Event::Checkpoint { step, .. } => Some(step),
                _ => None,
            });
        })
        .await
        .unwrap();
        assert_eq!(steps, [5, 7, 9], "each once, the oldest first");
    }

    #[tokio::test]
    async fn a_line_or_a_file_that_no_trainer_writes_is_left_out_and_told() {
        let id = JobId::parse("fuzzed-bcdfgh").unwrap();
        let mut record = journal::decode(&id, include_bytes!("../../fuzz/corpus/record/finished")).unwrap();
        record.attempt = 9_999;
        let store = MemoryStore::new();
        let sample = |text: &str| format!("{{\"v\":1,\"time\":0,\"event\":\"sample\",\"step\":1,\"text\":\"{text}\"}}\n");
        let put = async |attempt: u32, text: String| {
            store.put(&path::progress(&id, attempt), text.into(), Condition::Always).await.unwrap();
        };
        put(
            1,
            sample("short")
                + &sample(&"x".repeat(3 << 20))
                + "{\"v\":1,\"time\":0,\"event\":\"eval\",\"step\":2,\"loss\":1,\"perplexity\":3}\n",
        )
        .await;
        let results = of(&store, &record).await.unwrap();
        assert_eq!((results.sample.as_deref(), results.last_perplexity), (Some("short"), Some(3.0)));
        assert!(results.left_out.unwrap().contains("lines of more than 1 MiB"));
        put(2, "\0".repeat(MOST as usize)).await;
        put(3, sample("late")).await;
        let results = of(&store, &record).await.unwrap();
        assert_eq!(results.sample.as_deref(), Some("short"));
        assert!(results.left_out.unwrap().contains("the rest of attempt 2 and all later attempts are not shown"));
    }

    #[test]
    fn the_newest_samples_are_kept_once() {
        let mut results = Results::default();
        for step in [0, 10, 20, 30, 20, 30, 40, 50] {
            results.add(Event::Sample { step, text: format!("text {step}") });
        }
        assert_eq!(results.samples.iter().map(|sample| sample.step).collect::<Vec<_>>(), [10, 20, 30, 40, 50]);
        assert_eq!(results.sample.as_deref(), Some("text 50"));
    }

    #[test]
    fn only_what_was_measured_after_a_step_is_an_end() {
        let mut results = Results::default();
        let measured = |step, perplexity| Event::Eval { step, loss: 1.0, perplexity };
        results.add(measured(0, 300.0));
        assert_eq!((results.first_perplexity, results.last_perplexity), (Some(300.0), None));
        results.add(measured(3, 25.0));
        results.add(measured(5, 30.0));
        assert_eq!(results.best, Some(Best { step: 3, perplexity: 25.0 }));
        assert_eq!((results.first_perplexity, results.last_perplexity), (Some(300.0), Some(30.0)));
        let done = |perplexity| Event::Done { step: 5, seconds: 1.0, perplexity };
        results.add(done(None));
        assert_eq!(results.last_perplexity, Some(30.0));
        results.add(done(Some(20.0)));
        assert_eq!((results.step, results.last_perplexity), (5, Some(20.0)), "the best weights, and not the last");
        assert_eq!(Measures::from(&results).validation_loss, Some(20_f64.ln()));
    }
}
