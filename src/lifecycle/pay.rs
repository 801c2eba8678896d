//! Debts are paid: a machine that could not be destroyed is tried once more, by the next command.

use super::{
    Result, World, debt,
    drive::{Until, drive},
    journal, teardown,
};
use crate::{
    exit::Exit,
    job::{id::JobId, state::State},
    provider::Whose,
};

/// The result of an attempt to pay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Paid {
    Gone,
    /// Nothing is owed, or that is not known here: nothing was touched.
    NotOwed {
        why: String,
    },
}

/// Tries to destroy the machines once more. Only what has no use any more is destroyed, and only the user's own:
/// debt and record are the store's word, another user's job may be alive, and a record may have been removed.
pub async fn pay(world: &World, id: &JobId) -> Result<Paid> {
    let record = match journal::read(world.store.as_ref(), id).await {
        Ok((record, _)) if !matches!(record.state, State::TearingDown | State::Finished) => {
            return Ok(Paid::NotOwed { why: format!("it is {}, and `ftctl down {id}` ends it", record.label()) });
        }
        Ok((record, _)) => Some(record),
        Err(failure) if failure.exit == Exit::NotFound => None,
        Err(failure) => return Err(failure),
    };
    record.as_ref().map_or(Ok(()), |record| world.admits(record))?;
    let left = teardown::remaining(world, id).await?;
    if let Some(other) = left.iter().find(|resource| resource.belongs.whose != Whose::Ours) {
        return Ok(Paid::NotOwed { why: format!("{}; `ftctl down {id}` destroys it", other.belongs.apart()) });
    }
    match record {
        // A machine that is made now may not be listed yet.
        Some(record) if left.is_empty() && !world.adoption.may_drive(&record) => {
            return Ok(Paid::NotOwed { why: format!("another user submitted it; `ftctl down {id}` destroys what it left") });
        }
        Some(record) if record.state == State::TearingDown => drive(world, id, Until::Ended).await.map(drop)?,
        Some(_) => teardown::destroy(world, id).await?,
        None if left.is_empty() => {}
        None => return Ok(Paid::NotOwed { why: format!("it has no record; `ftctl down {id}` destroys it") }),
    }
    debt::paid(world, id).await?;
    Ok(Paid::Gone)
}
