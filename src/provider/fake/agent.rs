//! The agents' part: the objects that a real agent would have written to the store by a certain time, and the writing of them.
//!
//! [`perform`] is a function of what is true in the cloud. [`tell`] brings the store up to it and can be repeated, so a client that
//! is killed in the middle changes nothing for the next one.

use bytes::Bytes;
use ft_trainer::progress::{self, Event, Line};
use jiff::Timestamp;

use super::{
    cloud::{Agent, Machine, Told},
    script::Work,
};
use crate::{
    job::{
        id::{JobId, path},
        order::{EXIT_SCHEMA, ExitReason, ExitRecord, HEARTBEAT_SCHEMA, Heartbeat},
    },
    store::{
        Condition, FileEntry, Result, Store, StoreError,
        checkpoint::{CHECKPOINT_SCHEMA, CheckpointManifest},
        log, write_json,
    },
};

/// All that an agent has written by some time.
#[derive(Debug, Clone, PartialEq)]
pub struct Performance {
    pub log: String,
    pub progress: String,
    /// Steps, rising.
    pub checkpoints: Vec<u64>,
    pub heartbeat: Heartbeat,
    pub exit: Option<ExitRecord>,
}

/// The work of `agent` on `machine` until `now`, or until its end when that came first.
pub fn perform(machine: &Machine, agent: &Agent, work: &Work, now: Timestamp) -> Performance {
    let until = machine.until(now);
    let exit = machine.end.as_ref().and_then(|end| Some(exit_record(machine, agent, work, end.exit?, end.at)));
    let mut story = Story { agent, work, log: String::new(), progress: String::new(), checkpoints: Vec::new() };
    story.tell(until, exit.as_ref());
    let Told { beat, phase, .. } = agent.progress_at(until, false, work);
    let heartbeat =
        Heartbeat { schema: HEARTBEAT_SCHEMA.to_owned(), beat, time: until, started: None, phase, trouble: None, gpus: Vec::new() };
    Performance { log: story.log, progress: story.progress, checkpoints: story.checkpoints, heartbeat, exit }
}

struct Story<'a> {
    agent: &'a Agent,
    work: &'a Work,
    log: String,
    progress: String,
    checkpoints: Vec<u64>,
}

impl Story<'_> {
    fn tell(&mut self, until: Timestamp, exit: Option<&ExitRecord>) {
        self.say(&format!("attempt {} of {} starts on a fake machine", self.agent.order.attempt, self.agent.order.job));
        if until >= self.agent.trains_from(self.work) {
            self.begin();
            let last = self.agent.step_at(until, self.work);
            (self.agent.first_step + 1..=last).for_each(|step| self.step(step));
            // An agent that may say farewell leaves a checkpoint of where it was.
            let leaves = exit.is_some_and(|exit| !matches!(exit.reason, ExitReason::Failed | ExitReason::LostLease));
            if leaves && last > self.agent.first_step {
                self.checkpoint(last);
            }
        }
        if let Some(exit) = exit {
            self.say(&exit.message);
        }
    }

    fn begin(&mut self) {
        let (agent, train) = (self.agent, &self.agent.order.train);
        self.say(&format!("training from step {}", agent.first_step));
        let tokens_per_step = train.tokens_per_step();
        let (step, steps, device) = (agent.first_step, agent.steps(), "fake".to_owned());
        let micro_batch = Some(train.micro_batch.sequences());
        let (parameters, flops_per_token) = (124_439_808, 6.0 * 124_439_808.0);
        let start = Event::Start { step, steps, parameters, tokens_per_step, flops_per_token, device, micro_batch };
        self.report(agent.trains_from(self.work), start);
        self.evaluate(agent.first_step);
    }

    fn step(&mut self, step: u64) {
        let (steps, train) = (self.agent.steps(), self.agent.settings());
        if step.is_multiple_of(train.log_every.steps()) || step == steps {
            self.say(&format!("step {step}/{steps} loss {:.4}", loss(step, steps)));
            self.report(self.agent.time_of(step, self.work), self.step_event(step));
        }
        if step == steps {
            self.evaluate(step);
            self.report(
                self.agent.time_of(step, self.work),
                Event::Done { step, seconds: self.work.duration.0.as_secs_f64(), perplexity: None },
            );
        } else if step > 0 && step.is_multiple_of(train.checkpoint_every.steps()) {
            self.checkpoint(step);
        }
    }

    fn step_event(&self, step: u64) -> Event {
        let (steps, train) = (self.agent.steps(), &self.agent.order.train);
        let seconds_per_step = self.work.duration.0.as_secs_f64() / steps as f64;
        let tokens = train.tokens_per_step() as f64;
        Event::Step {
            step,
            steps,
            loss: loss(step, steps),
            learning_rate: train.learning_rate,
            gradient_norm: 1.0,
            tokens_per_second: if seconds_per_step > 0.0 { tokens / seconds_per_step } else { 0.0 },
            mfu: 0.0,
            eta_seconds: (steps - step) as f64 * seconds_per_step,
            peak_memory_bytes: None,
        }
    }

    fn evaluate(&mut self, step: u64) {
        let loss = loss(step, self.agent.steps());
        self.report(self.agent.time_of(step, self.work), Event::Eval { step, loss, perplexity: loss.exp() });
    }

    fn checkpoint(&mut self, step: u64) {
        if self.checkpoints.last() != Some(&step) {
            self.checkpoints.push(step);
            self.say(&format!("checkpoint {step}"));
            self.report(self.agent.time_of(step, self.work), Event::Checkpoint { step, name: format!("{step:010}") });
        }
    }

    fn say(&mut self, line: &str) {
        self.log.push_str(line);
        self.log.push('\n');
    }

    fn report(&mut self, at: Timestamp, event: Event) {
        let line = Line { v: progress::VERSION, time: at.as_millisecond() as f64 / 1e3, event };
        self.progress.push_str(&serde_json::to_string(&line).unwrap_or_default());
        self.progress.push('\n');
    }
}

/// From guessing among 50,257 tokens to half of that, in nats: a rehearsal shows numbers that move.
fn loss(step: u64, steps: u64) -> f64 {
    50_257_f64.ln() * (1.0 - 0.5 * step as f64 / steps as f64)
}

fn exit_record(machine: &Machine, agent: &Agent, work: &Work, reason: ExitReason, finished: Timestamp) -> ExitRecord {
    let why = machine.end.as_ref().map_or("", |end| end.why.as_str());
    let message = work.fails.as_deref().filter(|_| reason == ExitReason::Failed).unwrap_or(why).to_owned();
    let code = match reason {
        ExitReason::Succeeded => Some(0),
        ExitReason::Failed => Some(1),
        _ => None,
    };
    let schema = EXIT_SCHEMA.to_owned();
    ExitRecord { schema, attempt: agent.order.attempt, reason, code, signal: None, message, started: agent.started, finished }
}

/// Brings the store up to what `agent` has written.
pub async fn tell(store: &dyn Store, agent: &Agent, performance: &Performance) -> Result<()> {
    let (job, attempt) = (&agent.order.job, agent.order.attempt);
    for step in &performance.checkpoints {
        commit(store, job, attempt, *step).await?;
    }
    complete(store, &path::progress(job, attempt), &performance.progress).await?;
    complete(store, &path::log(job, attempt), &performance.log).await?;
    write_json(store, &path::heartbeat(job, attempt), &performance.heartbeat, Condition::Always).await?;
    if let Some(exit) = &performance.exit {
        once(write_json(store, &path::exit(job, attempt), exit, Condition::IfAbsent).await)?;
    }
    Ok(())
}

/// Appends what is missing. A client that was killed may have told more of a future that then did not come: it stays.
async fn complete(store: &dyn Store, path: &str, text: &str) -> Result<()> {
    let offset = log::length(store, path).await?;
    match text.as_bytes().get(offset as usize..) {
        Some(missing) if !missing.is_empty() => store.append(path, offset, Bytes::copy_from_slice(missing)).await.map(drop),
        _ => Ok(()),
    }
}

/// A checkpoint of one file that says where it comes from; there is nothing to train here.
async fn commit(store: &dyn Store, job: &JobId, attempt: u32, step: u64) -> Result<()> {
    let manifest_path = format!("{}/manifest.json", path::checkpoint(job, step));
    if store.head(&manifest_path).await?.is_some() {
        return Ok(());
    }
    let text = format!("step {step} of {job}, rehearsed on the fake provider\n");
    let file = FileEntry::of_bytes("rehearsal.txt".to_owned(), text.as_bytes());
    once(store.put(&path::content(&path::job_contents(job), &file.sha256), Bytes::from(text), Condition::IfAbsent).await)?;
    let manifest = CheckpointManifest { schema: CHECKPOINT_SCHEMA.to_owned(), step, attempt, files: vec![file] };
    once(write_json(store, &manifest_path, &manifest, Condition::IfAbsent).await)
}

/// An object that is there already is the one that was to be written.
fn once<T>(written: Result<T>) -> Result<()> {
    match written {
        Ok(_) | Err(StoreError::Conflict { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}
