//! Somebody is told: one message at a job's end, when its machine was taken away, and when machines may be left. The invocation
//! that drives the job sends it; none of it is part of the job's success.

use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::{World, receipt};
use crate::job::{record::Record, state::State};

const NOTICE_SCHEMA: &str = "ftctl.notice/1";
/// Longest that a job's driver waits for whoever is told.
const PATIENCE: Duration = Duration::from_secs(10);

/// Who is told.
#[async_trait]
pub trait Listener: Send + Sync {
    /// Takes a message, or says why it could not: for a person, without an address, which may be a secret.
    async fn hear(&self, message: &Value) -> Result<(), String>;
}

/// What a step of a job's life was, for somebody who does not watch.
pub(super) enum News {
    Ended,
    /// The current attempt follows one whose machine was taken away.
    Preempted,
    /// Machines may still exist, and cost money.
    MayBill(String),
}

/// What is new in `after`, the record that a step made of one with so many attempts in this state.
pub(super) fn news(state: State, attempt: u32, after: &Record) -> Option<News> {
    match after.state {
        State::Finished if state != State::Finished => Some(News::Ended),
        State::Provisioning if attempt > 0 && after.attempt > attempt => Some(News::Preempted),
        _ => None,
    }
}

/// Tells it; a listener that is away is a warning.
pub(super) async fn tell(world: &World, record: &Record, news: &News) {
    for listener in &world.listeners {
        let told = timeout(PATIENCE, listener.hear(&message(world, record, news))).await;
        if let Err(why) = told.unwrap_or_else(|_| Err("nobody answered in time".to_owned())) {
            world.report.warn(&format!("no message about {} was sent: {why}; that changes nothing for the job", record.id));
        }
    }
}

/// Slack and Teams show `text`, Discord `content`; programs read the rest.
fn message(world: &World, record: &Record, news: &News) -> Value {
    let receipt = receipt::receipt(record, world.clock.now());
    let (event, what) = match news {
        News::Ended => ("ended", record.state.label(record.outcome).to_owned()),
        News::Preempted => ("preempted", format!("was preempted: attempt {} follows", record.attempt)),
        News::MayBill(why) => ("may_bill", format!("may still have machines that cost money: {why}")),
    };
    let reason = record.reason.as_deref().filter(|_| matches!(news, News::Ended));
    let after = match reason {
        Some(reason) => format!(" ({})", reason.lines().next().unwrap_or_default()),
        None => String::new(),
    };
    let text = format!("ftctl: {} {what}{after}; {} so far", record.id, receipt.cost);
    json!({
        "schema": NOTICE_SCHEMA, "event": event, "job": record.id, "state": record.state.label(record.outcome), "exit": record.exit,
        "reason": reason, "attempt": record.attempt, "cost": receipt.cost, "text": text, "content": text,
    })
}
