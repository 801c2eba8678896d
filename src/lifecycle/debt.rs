//! Machines that could not be destroyed. Each is written down in the store until its job's machines are proved gone, so that every
//! later command, on whatever computer, can say so and try again.

use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{
    Result, World,
    drive::{Until, drive},
    journal, teardown,
};
use crate::{
    exit::{Exit, Failure},
    job::{
        id::{JobId, path},
        state::State,
    },
    store::{Condition, Store, find_json, write_json},
};

const DEBT_SCHEMA: &str = "ftctl.debt/1";

/// How long a command that is about something else tries to pay.
const PATIENCE: Duration = Duration::from_secs(15);

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Debt {
    pub schema: String,
    pub id: JobId,
    /// Of the first attempt that failed.
    pub since: Timestamp,
    /// Why the last one did.
    pub why: String,
}

/// Writes down that the machines of this job may still cost money.
pub(super) async fn note(world: &World, id: &JobId, why: &str) -> Result<()> {
    let known: Option<(Debt, _)> = find_json(world.store.as_ref(), &path::debt(id)).await?;
    let since = known.map_or_else(|| world.clock.now(), |(debt, _)| debt.since);
    let debt = Debt { schema: DEBT_SCHEMA.to_owned(), id: id.clone(), since, why: why.to_owned() };
    write_json(world.store.as_ref(), &path::debt(id), &debt, Condition::Always).await?;
    Ok(())
}

/// Strikes it out.
pub(super) async fn paid(world: &World, id: &JobId) -> Result<()> {
    Ok(world.store.delete(&path::debt(id)).await?)
}

/// Everything that is owed, as far as this store knows.
pub async fn all(store: &dyn Store) -> Result<Vec<Debt>> {
    let mut debts = Vec::new();
    for name in store.children(&path::debts()).await? {
        let Some(id) = name.strip_suffix(".json").and_then(JobId::parse) else { continue };
        debts.extend(find_json(store, &path::debt(&id)).await?.map(|(debt, _)| debt));
    }
    Ok(debts)
}

/// Tries to destroy the machines once more, for a short while.
pub async fn pay(world: &World, id: &JobId) -> Result<()> {
    let work = async {
        match journal::read(world.store.as_ref(), id).await {
            Ok((record, _)) if record.state == State::TearingDown => drive(world, id, Until::Finished).await.map(drop),
            _ => teardown::destroy(world, id).await,
        }
    };
    let slow = |_| Err(Failure::new(Exit::MayBill, format!("no answer within {} s", PATIENCE.as_secs())));
    tokio::time::timeout(PATIENCE, Box::pin(work)).await.unwrap_or_else(slow)
}
