//! Machines that could not be destroyed. Each is written down in the store until its job's machines are proved gone, so that every
//! later command, on whatever computer, can say so and try again.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{Result, World};
use crate::{
    exit::{Exit, Failure},
    job::id::{JobId, path},
    store::{Condition, Store, find_json, write_json},
};

const DEBT_SCHEMA: &str = "ftctl.debt/1";

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Debt {
    pub schema: String,
    pub id: JobId,
    /// Time of the first attempt that failed.
    pub since: Timestamp,
    /// Why the last one did.
    pub why: String,
}

/// Writes down that the machines of this job may still cost money.
pub(super) async fn note(world: &World, id: &JobId, why: &str) -> Result<()> {
    // A debt that cannot be read is written again.
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
