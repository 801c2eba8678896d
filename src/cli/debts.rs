//! The warning of every command, and its next try, when machines could not be destroyed.

use std::time::Duration;

use tokio::time::{Instant, timeout, timeout_at};

use super::App;
use crate::{
    exit::{Exit, Failure},
    lifecycle::{
        debt::{self, Debt},
        journal,
        pay::{self, Paid},
    },
};

/// A command that is done spends no longer on debts. Each asks a cloud, and another user of the store may write thousands.
const PATIENCE: Duration = Duration::from_secs(10);
/// Debts that a command looks at; the oldest first.
const MOST: usize = 20;
/// Nor does one that has just waited for the network in vain, or that its user corrects and repeats.
const LITTLE_PATIENCE: Duration = Duration::from_secs(1);

impl App<'_> {
    /// Says what may still cost money, on stderr, and tries once more to end it; `done` is how the command itself ended. Best
    /// effort: the command itself reports a store that cannot be reached, and a refused sign-in is not reported twice.
    pub(super) fn settle_debts(&self, done: &Result<(), Failure>) {
        let ended_with = |exit| matches!(done, Err(failure) if failure.exit == exit);
        if ended_with(Exit::Denied) {
            return;
        }
        let failed_now = ended_with(Exit::MayBill);
        let patience = if ended_with(Exit::Network) || ended_with(Exit::Usage) { LITTLE_PATIENCE } else { PATIENCE };
        let settled = self.block_on(async {
            let until = Instant::now() + PATIENCE;
            let store = self.store()?;
            let silent = |_| Failure::new(Exit::Network, format!("the store did not answer within {} s", patience.as_secs()));
            let (debts, unreadable) = timeout(patience, debt::all(store.as_ref())).await.map_err(silent)??;
            for failure in unreadable {
                self.output.report().warn(&failure.to_string());
            }
            self.settle(debts, until, failed_now || self.dry_run).await;
            Ok(())
        });
        if let Err(failure) = settled {
            self.output.report().detail(&format!("cannot look for machines that may still bill: {}", failure.message));
        }
    }

    /// Tells of the debts, and pays them until then, unless it is `only_tell`.
    async fn settle(&self, mut debts: Vec<Debt>, until: Instant, only_tell: bool) {
        debts.sort_by_key(|debt| debt.since);
        let all = debts.len();
        for (done, debt) in debts.into_iter().enumerate() {
            if done == MOST || Instant::now() >= until {
                let left = all - done;
                self.output.report().warn(&format!(
                    "{left} more jobs may have machines that still bill; the next ftctl command checks them, `ftctl down JOB` checks \
                     one now"
                ));
                return;
            }
            let slow = |_| Err(Failure::new(Exit::MayBill, "no answer in the time that a command has for this".to_owned()));
            let paying = async { timeout_at(until, self.pay(&debt)).await.unwrap_or_else(slow).map_err(Some) };
            let paid = if only_tell { Err(None) } else { paying.await };
            self.tell(&debt, paid);
        }
    }

    async fn pay(&self, debt: &Debt) -> Result<Paid, Failure> {
        let backend = match journal::read(self.store()?.as_ref(), &debt.id).await {
            Ok((record, _)) => record.plan.backend().to_owned(),
            Err(_) => self.settings.backend.value.clone(),
        };
        Box::pin(pay::pay(&self.world(&backend)?, &debt.id)).await
    }

    fn tell(&self, Debt { id, since, why, .. }: &Debt, paid: Result<Paid, Option<Failure>>) {
        let report = self.output.report();
        match paid {
            Ok(Paid::NotOwed { why }) => {
                report.warn(&format!("the store says that machines of {id} are left, and nothing was destroyed: {why}"));
            }
            Ok(Paid::Gone) => {
                report.line(&format!("the machines of {id}, which could not be destroyed since {since:.0}, are gone"));
            }
            Err(again) => {
                let why = again.map_or_else(|| why.clone(), |failure| failure.message);
                report.warn(&format!(
                    "MAY STILL BILL since {since:.0}: {why}; every ftctl tries again, and so does `ftctl down {id} -y`"
                ));
            }
        }
    }
}
