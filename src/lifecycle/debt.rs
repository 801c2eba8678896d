//! Machines that could not be destroyed. Each is written down in the store until its job's machines are proved gone, so that every
//! later command, on whatever computer, can say so and try again.

use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{
    Resource, Result, World,
    drive::{Until, drive},
    journal, teardown,
};
use crate::{
    exit::{Exit, Failure},
    job::{
        id::{JobId, path},
        state::State,
    },
    provider::Whose,
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
    // What cannot be read is written again.
    let known = read(world.store.as_ref(), id).await.ok().flatten();
    let since = known.map_or_else(|| world.clock.now(), |debt| debt.since);
    let debt = Debt { schema: DEBT_SCHEMA.to_owned(), id: id.clone(), since, why: why.to_owned() };
    write_json(world.store.as_ref(), &path::debt(id), &debt, Condition::Always).await?;
    Ok(())
}

/// Strikes it out.
pub(super) async fn paid(world: &World, id: &JobId) -> Result<()> {
    Ok(world.store.delete(&path::debt(id)).await?)
}

/// Everything that is owed, as far as this store knows; and what lies among it and cannot be read, which hides nothing.
pub async fn all(store: &dyn Store) -> Result<(Vec<Debt>, Vec<Failure>)> {
    let (mut debts, mut unreadable) = (Vec::new(), Vec::new());
    for name in store.children(&path::debts()).await? {
        let Some(id) = name.strip_suffix(".json").and_then(JobId::parse) else { continue };
        match read(store, &id).await {
            Ok(debt) => debts.extend(debt),
            Err(failure) if failure.exit == Exit::Integrity => unreadable.push(failure),
            Err(failure) => return Err(failure),
        }
    }
    Ok((debts, unreadable))
}

/// The debt of a job; it is of the job after which it is named.
async fn read(store: &dyn Store, id: &JobId) -> Result<Option<Debt>> {
    let path = path::debt(id);
    let Some((debt, _)) = find_json::<Debt>(store, &path).await? else { return Ok(None) };
    if debt.id == *id && debt.schema == DEBT_SCHEMA {
        return Ok(Some(debt));
    }
    Err(Failure::new(Exit::Integrity, format!("{path} is no debt of the job {id}"))
        .fix(format!("remove it from the store; `ftctl down {id}` destroys what that job may have left")))
}

/// What came of an attempt to pay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Paid {
    Gone,
    /// Nothing is owed, or nobody here can tell that it is: nothing was touched.
    NotOwed {
        why: String,
    },
}

/// Tries to destroy the machines once more, for a short while. Only what has no use any more is destroyed: the debt is somebody's word, and the
/// job may be alive.
pub async fn pay(world: &World, id: &JobId) -> Result<Paid> {
    let work = async {
        match journal::read(world.store.as_ref(), id).await {
            Ok((record, _)) if record.state == State::TearingDown => drive(world, id, Until::Ended).await.map(drop)?,
            Ok((record, _)) if record.state == State::Finished => teardown::destroy(world, id).await?,
            Ok((record, _)) => {
                let state = record.state.label(record.outcome);
                return Ok(Paid::NotOwed { why: format!("it is {state}, and `ftctl down {id}` ends it") });
            }
            Err(failure) if failure.exit != Exit::NotFound => return Err(failure),
            Err(_) if teardown::remaining(world, id).await?.iter().all(is_of_this_store) => {
                teardown::destroy(world, id).await?;
            }
            Err(_) => {
                let why = format!(
                    "it has no record, and its machine does not say that it is of this store; `ftctl down {id}` destroys it"
                );
                return Ok(Paid::NotOwed { why });
            }
        }
        paid(world, id).await?;
        Ok(Paid::Gone)
    };
    let slow = |_| Err(Failure::new(Exit::MayBill, format!("no answer within {} s", PATIENCE.as_secs())));
    tokio::time::timeout(PATIENCE, Box::pin(work)).await.unwrap_or_else(slow)
}

fn is_of_this_store(resource: &Resource) -> bool {
    matches!(resource.belongs.whose, Whose::Ours | Whose::OtherOwner)
}
