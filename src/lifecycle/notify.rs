//! The messages to the listeners: one at a job's end, when another attempt follows one that ended, and when machines may be left.
//! The invocation that drives the job sends it; none of it is part of the job's success.

use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::{World, receipt};
use crate::{
    exit::Exit,
    job::{record::Record, state::State},
};

const NOTICE_SCHEMA: &str = "ftctl.notice/1";
/// A listener that takes longer is given up: the job is not looked after meanwhile.
const PATIENCE: Duration = Duration::from_secs(10);

/// Who is told.
#[async_trait]
pub trait Listener: Send + Sync {
    /// Takes a message, or says why it could not: for a person, without an address, which may be a secret.
    async fn hear(&self, message: &Value) -> Result<(), String>;
}

/// A step of a job's life that a user who does not watch is told of.
pub(super) enum News {
    Ended,
    /// An attempt ended by a preemption, or by a failure that is retried, and the current one follows.
    NextAttempt,
    /// Machines may still exist, and cost money.
    MayBill(String),
}

/// The news in `after`, the record that a step made of one in `state` with so many attempts. An attempt of a job that was resumed
/// by its user is no news.
pub(super) fn news(state: State, attempt: u32, after: &Record) -> Option<News> {
    match state {
        State::Finished => None,
        _ if after.state == State::Finished => Some(News::Ended),
        State::Running if after.attempt > attempt => Some(News::NextAttempt),
        _ => None,
    }
}

/// Tells it; a listener that is away is a warning.
pub(super) async fn tell(world: &World, record: &Record, news: &News) {
    for listener in &world.listeners {
        let told = timeout(PATIENCE, listener.hear(&message(world, record, news))).await;
        if let Err(why) = told.unwrap_or_else(|_| Err("no answer came in time".to_owned())) {
            world.report.warn(&format!("no message about {} was sent: {why}; that changes nothing for the job", record.id));
        }
    }
}

/// Slack shows `text`, Discord `content`; programs read the rest.
fn message(world: &World, record: &Record, news: &News) -> Value {
    let receipt = receipt::receipt(record, world.clock.now());
    let of_attempt = || record.attempts.iter().rev().find_map(|attempt| attempt.reason.as_deref());
    let (event, what, reason) = match news {
        News::Ended => ("ended", record.state.label(record.outcome).to_owned(), record.reason.as_deref()),
        News::NextAttempt => ("next_attempt", format!("goes on with attempt {}", record.attempt), of_attempt()),
        News::MayBill(why) => ("may_bill", "may still have machines that cost money".to_owned(), Some(why.as_str())),
    };
    let after = match reason {
        Some(reason) => format!(" ({})", reason.lines().next().unwrap_or_default()),
        None => String::new(),
    };
    let exit = if event == "may_bill" { Some(Exit::MayBill as u8) } else { record.exit };
    let text = format!("ftctl: {} {what}{after}; {} so far", record.id, receipt.cost);
    json!({
        "schema": NOTICE_SCHEMA, "event": event, "job": record.id, "state": record.state.label(record.outcome), "exit": exit,
        "reason": reason, "attempt": record.attempt, "cost": receipt.cost, "text": text, "content": text,
    })
}
