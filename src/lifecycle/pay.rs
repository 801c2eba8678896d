//! Debts are paid: a machine that could not be destroyed is tried once more, by the next command.

use std::time::Duration;

use super::{
    Resource, Result, World, debt,
    drive::{Until, drive},
    journal, teardown,
};
use crate::{
    exit::{Exit, Failure},
    job::{id::JobId, state::State},
    provider::Whose,
};

/// How long a command that is about something else tries to pay.
const PATIENCE: Duration = Duration::from_secs(15);

/// The result of an attempt to pay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Paid {
    Gone,
    /// Nothing is owed, or that is not known here: nothing was touched.
    NotOwed {
        why: String,
    },
}

/// Tries to destroy the machines once more, for a short while. Only what has no use any more is destroyed: the debt is the store's
/// word, and the job may be alive.
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
        debt::paid(world, id).await?;
        Ok(Paid::Gone)
    };
    let slow = |_| Err(Failure::new(Exit::MayBill, format!("no answer within {} s", PATIENCE.as_secs())));
    tokio::time::timeout(PATIENCE, Box::pin(work)).await.unwrap_or_else(slow)
}

fn is_of_this_store(resource: &Resource) -> bool {
    matches!(resource.belongs.whose, Whose::Ours | Whose::OtherOwner)
}
