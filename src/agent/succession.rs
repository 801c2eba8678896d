//! The number of the attempt of a machine that the backend made by itself, to replace a preempted one ([`RunOrder::last_attempt`]).
//! It has the order of the first attempt, and goes on from that one's end in the store.

use std::{path::Path, sync::Arc, time::Duration};

use super::{Agent, End, FIRST_CONTACT, is_io, unreachable};
use crate::{
    job::{
        id::path,
        order::{ExitReason, RunOrder},
        report::Report,
    },
    store::{Result, Store, lease},
};

/// The order of the first attempt that is not over.
pub(super) async fn current(store: &Arc<dyn Store>, order: &RunOrder, work: &Path, report: &dyn Report) -> Result<RunOrder> {
    let mut current = order.clone();
    let look = async {
        while let Some(next) = Agent::new(Arc::clone(store), &current, work, report, Duration::MAX)?.successor().await? {
            current.attempt = next;
        }
        Ok(())
    };
    tokio::time::timeout(FIRST_CONTACT, look).await.unwrap_or_else(|_| Err(unreachable(order)))?;
    Ok(current)
}

impl Agent<'_> {
    /// The next attempt, where another machine began this one and is no more.
    async fn successor(&self) -> Result<Option<u32>> {
        let Some(last) = self.order.last_attempt else { return Ok(None) };
        let end = match self.first_look().await? {
            Some(end) => end,
            None if self.is_begun_elsewhere().await? => {
                self.sign(End::new(ExitReason::Preempted, "its machine is gone, and had no time to say so")).await?
            }
            None => return Ok(None),
        };
        // The last one, too, is closed: its machine is not replaced to do it again.
        Ok((end.reason.is_followed() && self.order.attempt < last).then_some(self.order.attempt + 1))
    }

    /// A backend makes the next machine when the one before is gone, so its holder is dead; if not, the higher number takes the
    /// lease from it.
    async fn is_begun_elsewhere(&self) -> Result<bool> {
        let lease = path::attempt_lease(&self.order.job);
        let holder = self.persist("look at the store", is_io, async || lease::holder(&*self.store, &lease).await).await?;
        let own = self.identity.as_ref().map(|identity| &identity.name);
        Ok(holder.is_some_and(|holder| holder.attempt >= self.order.attempt && Some(&holder.nonce) != own))
    }
}
