//! The order of an attempt, as it lies in the store: for an agent that is the command of somebody else's job service, which hands
//! nothing over but this command and something to sign in with.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::{BACKOFF, FIRST_CONTACT, is_io};
use crate::{
    job::{
        id::{AttemptId, path},
        order::RunOrder,
        report::Report,
    },
    store::{self, Result, Store, StoreError},
};

/// Reads the order of this attempt from the store at `url`, which the agent then uses. Tries for five minutes.
///
/// # Errors
/// [`StoreError::Conflict`] when a later attempt has the job, [`StoreError::NotFound`] before this one is ordered, and
/// [`StoreError::Unreadable`] when it is no order.
pub async fn from_store(url: &str, attempt: &AttemptId, report: &dyn Report) -> Result<RunOrder> {
    let store = store::open(url)?;
    let (begun, mut pause) = (Instant::now(), BACKOFF[0]);
    loop {
        match read(&*store, attempt).await {
            Err(error) if is_io(&error) && begun.elapsed() < FIRST_CONTACT => {
                if pause == BACKOFF[0] {
                    report.warn(&format!("could not read the order: {error}; trying again"));
                }
            }
            done => return Ok(RunOrder { store: url.to_owned(), ..done? }),
        }
        sleep(pause).await;
        pause = Duration::min(2 * pause, BACKOFF[1]);
    }
}

async fn read(store: &dyn Store, attempt: &AttemptId) -> Result<RunOrder> {
    let path = path::order(&attempt.job);
    let object = store::get_json(store, &path).await?;
    let unreadable = |why: String| StoreError::Unreadable(format!("{path} in the store cannot be read: {why}"));
    let order = RunOrder::decode(&object.bytes).map_err(unreadable)?;
    match order.attempt.cmp(&attempt.attempt) {
        _ if order.job != attempt.job => Err(unreadable(format!("it is that of {}", order.job))),
        std::cmp::Ordering::Equal => Ok(order),
        std::cmp::Ordering::Greater => Err(StoreError::Conflict { path }),
        std::cmp::Ordering::Less => {
            Err(StoreError::NotFound { store: store.url().to_owned(), path: format!("an order for attempt {}", attempt.attempt) })
        }
    }
}
