//! The order of an attempt, as it lies in the store: for an agent that is the command of another job service, which hands nothing
//! over but this command and something to sign in with.

use std::{cmp::Ordering, time::Duration};

use tokio::time::{Instant, sleep};

use super::{BACKOFF, FIRST_CONTACT, is_io};
use crate::{
    job::{
        digest::Digest,
        id::{AttemptId, path},
        order::{self, RunOrder},
        report::Report,
    },
    store::{self, Result, Store, StoreError},
};

/// Reads the order of this attempt from the store at `url`, which the agent then uses. Tries for five minutes: an order is written
/// when its machine exists, and a job service may be faster with the machine. `asked` is what its submitter asked for, by
/// [`order::asked`].
///
/// # Errors
/// [`StoreError::Conflict`] at once when a later attempt has the job, and [`StoreError::Unreadable`] when it is no order, or asks
/// for something else; [`StoreError::NotFound`] when this attempt is not ordered in time.
pub async fn from_store(url: &str, attempt: &AttemptId, asked: Option<&Digest>, report: &dyn Report) -> Result<RunOrder> {
    let store = store::open(url)?;
    let order = wait(&*store, attempt, asked, report).await?;
    Ok(RunOrder { store: url.to_owned(), ..order })
}

async fn wait(store: &dyn Store, attempt: &AttemptId, asked: Option<&Digest>, report: &dyn Report) -> Result<RunOrder> {
    let (begun, mut pause) = (Instant::now(), BACKOFF[0]);
    loop {
        match read(store, attempt, asked).await {
            Err(error) if may_come(&error) && begun.elapsed() < FIRST_CONTACT => {
                if pause == BACKOFF[0] {
                    let minutes = FIRST_CONTACT.as_secs() / 60;
                    report.warn(&format!("could not read the order: {error}; trying again for {minutes} minutes"));
                }
            }
            done => return done,
        }
        sleep(pause).await;
        pause = Duration::min(2 * pause, BACKOFF[1]);
    }
}

fn may_come(error: &StoreError) -> bool {
    is_io(error) || matches!(error, StoreError::NotFound { .. })
}

async fn read(store: &dyn Store, attempt: &AttemptId, asked: Option<&Digest>) -> Result<RunOrder> {
    let path = path::order(&attempt.job);
    let object = store::get_json(store, &path).await?;
    let unreadable = |why: String| StoreError::Unreadable(format!("{path} in the store cannot be read: {why}"));
    let order = RunOrder::decode(&object.bytes).map_err(unreadable)?;
    match order.attempt.cmp(&attempt.attempt) {
        _ if order.job != attempt.job => Err(unreadable(format!("it is that of {}", order.job))),
        Ordering::Equal if asked.is_some_and(|asked| *asked != asked_in(&object.bytes)) => Err(StoreError::Unreadable(format!(
            "{path} in the store is not what the job's submitter ordered: somebody has changed it"
        ))),
        Ordering::Equal => Ok(order),
        Ordering::Greater => Err(StoreError::Conflict { path }),
        Ordering::Less => {
            Err(StoreError::NotFound { store: store.url().to_owned(), path: format!("an order for attempt {}", attempt.attempt) })
        }
    }
}

fn asked_in(order: &[u8]) -> Digest {
    order::asked(&serde_json::from_slice(order).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        agent::tests::{Said, bench_with},
        store::{Condition, memory::MemoryStore, write_json},
    };
    use std::sync::Arc;

    /// Orders in the store after so many seconds each, read for `attempt`: what came of it, when, and what was said.
    async fn read_while(orders: &[(u64, u32)], attempt: u32) -> (Result<u32>, Duration, Vec<String>) {
        let bench = bench_with("", tempfile::tempdir().unwrap(), Arc::new(MemoryStore::new())).await;
        let (begun, said, attempt) = (Instant::now(), Said::default(), AttemptId::new(&bench.order.job, attempt));
        let writes = async {
            for (second, number) in orders {
                tokio::time::sleep_until(begun + Duration::from_secs(*second)).await;
                let order = RunOrder { attempt: *number, ..bench.order.clone() };
                write_json(&*bench.store, &path::order(&attempt.job), &order, Condition::Always).await.unwrap();
            }
            std::future::pending::<()>().await;
        };
        let read = tokio::select! {
            read = wait(&*bench.store, &attempt, None, &said) => read,
            () = writes => unreachable!("it has no end"),
        };
        (read.map(|order| order.attempt), begun.elapsed(), said.lines())
    }

    #[tokio::test(start_paused = true)]
    async fn an_order_that_is_not_there_yet_is_waited_for() {
        for orders in [&[(100, 2)][..], &[(0, 1), (100, 2)], &[(3, 1), (100, 2)]] {
            let (read, took, said) = read_while(orders, 2).await;
            assert_eq!(read.unwrap(), 2);
            assert!((100..=110).contains(&took.as_secs()), "{took:?}");
            assert!(said.len() == 1 && said[0].contains("trying again for 5 minutes"), "{said:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_order_that_never_comes_is_given_up_and_a_later_attempts_at_once() {
        for orders in [&[][..], &[(0, 1)]] {
            let (read, took, _) = read_while(orders, 2).await;
            assert!(matches!(read, Err(StoreError::NotFound { .. })), "{read:?}");
            assert!((FIRST_CONTACT..=FIRST_CONTACT + BACKOFF[1]).contains(&took), "{took:?}");
        }
        let (read, took, _) = read_while(&[(0, 3)], 2).await;
        assert!(matches!(read, Err(StoreError::Conflict { .. })) && took < Duration::from_secs(1), "{read:?} {took:?}");
        let (read, took, _) = read_while(&[(0, 1), (20, 3)], 2).await;
        assert!(matches!(read, Err(StoreError::Conflict { .. })) && took < Duration::from_secs(31), "{read:?} {took:?}");
    }
}
