//! A job's receipt: time, money and steps, attempt by attempt.

use std::cmp::Reverse;

use jiff::Timestamp;
use serde::Serialize;

use super::{Result, attempt, journal};
use crate::{
    job::{
        clock::between,
        id::JobId,
        record::{Attempt, Record},
        state::State,
        units::Money,
    },
    provider::registry,
    store::Store,
};

pub const RECEIPT_SCHEMA: &str = "ftctl.receipt/1";

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Receipt {
    pub schema: &'static str,
    pub id: JobId,
    pub backend: String,
    /// Its money is not real.
    pub simulated: bool,
    pub state: String,
    pub attempts: Vec<Attempt>,
    /// From the job's creation to its end.
    pub seconds: u64,
    /// Seconds of these in which a machine existed.
    pub machine_seconds: u64,
    /// Seconds of these in which the job waited for a machine, at no cost.
    pub waited_seconds: u64,
    pub cost: Money,
    /// The part of the cost for steps that were done again, and for attempts that made none.
    pub wasted: Money,
    /// The cost of the same time on machines that cannot be preempted; `None` where none could be.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lasting_cost: Option<Money>,
    /// A machine of it may still exist: the cost is that until now.
    pub may_still_bill: bool,
    /// Steps done more than once because of preemption.
    pub lost_steps: u64,
}

/// The receipts of jobs whose machines existed after `since`, newest first, with only the part of their lives after it. A record
/// that cannot be read is named in the second list instead of hiding the others.
pub async fn since(store: &dyn Store, since: Timestamp, now: Timestamp) -> Result<(Vec<Receipt>, Vec<String>)> {
    let (mut receipts, mut unreadable) = (Vec::new(), Vec::new());
    for (_, record) in journal::all(store).await? {
        match record {
            Ok(record) => receipts.extend(clipped(record, since, now).map(|record| receipt(&record, now))),
            Err(failure) => unreadable.push(failure.message),
        }
    }
    receipts.sort_by_key(|receipt| Reverse(receipt.attempts.first().and_then(|attempt| attempt.started)));
    Ok((receipts, unreadable))
}

/// The job as if the machines of its attempts had existed since `since` at the earliest; `None` when none existed after it.
fn clipped(mut record: Record, since: Timestamp, now: Timestamp) -> Option<Record> {
    record.attempts.retain(|attempt| attempt.started.is_some() && attempt.ended.unwrap_or(now) > since);
    for attempt in &mut record.attempts {
        attempt.started = attempt.started.max(Some(since));
    }
    (!record.attempts.is_empty()).then_some(record)
}

pub fn receipt(record: &Record, now: Timestamp) -> Receipt {
    let attempts = &record.attempts;
    // A machine that could not be proved gone may still cost money, and so may one that a backend makes without ftctl.
    let may_exist = record.state == State::TearingDown || (record.state == State::Running && record.plan.replaces_machines());
    let exists = |attempt: &Attempt| attempt.started.is_some() || may_exist;
    let end = if record.state.is_finished() { record.updated } else { now };
    Receipt {
        schema: RECEIPT_SCHEMA,
        id: record.id.clone(),
        backend: record.plan.backend().to_owned(),
        simulated: record.simulated,
        state: record.label().to_owned(),
        attempts: attempts.clone(),
        seconds: between(record.created, end).as_secs(),
        machine_seconds: attempts.iter().map(|attempt| attempt.lived(now).as_secs()).sum(),
        waited_seconds: record.waited(now).as_secs(),
        cost: attempt::cost(record, now),
        wasted: wasted(record, now),
        lasting_cost: registry::lasting_price(&record.plan).and_then(|_| {
            let of = |attempt: &Attempt| {
                let price_per_hour = registry::lasting_price(&record.plan_of(attempt))?;
                Some(attempt::cost_of(record, &Attempt { price_per_hour, ..attempt.clone() }, now))
            };
            attempts.iter().map(of).sum()
        }),
        may_still_bill: record.plan.price_per_hour > Money::ZERO
            && attempts.iter().any(|attempt| attempt.ended.is_none() && exists(attempt)),
        lost_steps: attempts.iter().map(|attempt| lost_steps(record, attempt)).fold(0, u64::saturating_add),
    }
}

/// Steps of an attempt that the next one did again: the last one's lost steps are not done twice.
fn lost_steps(record: &Record, attempt: &Attempt) -> u64 {
    if attempt.attempt < record.attempt { attempt.lost_steps } else { 0 }
}

/// The cost of lost steps: of each attempt's cost the share that they are of all its steps; all of it where there were none and
/// another attempt followed.
fn wasted(record: &Record, now: Timestamp) -> Money {
    let of = |attempt: &Attempt| {
        let cost = attempt::cost_of(record, attempt, now).micros;
        let micros = match attempt.last_step.saturating_sub(attempt.first_step) {
            0 => cost * u64::from(attempt.attempt < record.attempt),
            steps => cost.saturating_mul(lost_steps(record, attempt).min(steps)) / steps,
        };
        Money { micros }
    };
    record.attempts.iter().map(of).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        job::{compute::Compute, gce::GcePlan, plan::Plan},
        provider::conformance::{attempt, plan},
    };

    #[test]
    fn an_attempt_costs_what_its_own_nodes_do() {
        let usd = |dollars: u64| Money { micros: dollars * 1_000_000 };
        let plan = Plan { nodes: 2, processes: 2, price_per_hour: usd(2), max_cost: Some(usd(4)), ..plan() };
        let plan = Plan { lasting_price_per_hour: Some(usd(6)), ..plan };
        let mut record = Record::new(attempt("job").job, plan, Timestamp::UNIX_EPOCH);
        let hour = |number: i64| Timestamp::from_second(3_600 * number).expect("a time");
        for (number, nodes, begin, end) in [(1, None, 0, 1), (2, Some(1), 1, 4)] {
            let price = record.plan.on(nodes.unwrap_or(2)).price_per_hour;
            let (started, ended) = (Some(hour(begin)), Some(hour(end)));
            record.attempts.push(Attempt { started, ended, nodes, ..Attempt::new(number, 0, price) });
        }
        record.attempt = 2;
        assert_eq!(record.attempts.iter().map(|one| record.shrunk(one.attempt)).collect::<Vec<_>>(), [None, Some((1, 2))]);
        let receipt = receipt(&record, hour(9));
        assert_eq!((receipt.cost, receipt.lasting_cost), (usd(2 + 3), Some(usd(6 + 9))));
        // Of two hours of both, one is spent; the other is two of one node.
        record.attempts[1].ended = None;
        assert_eq!(record.left(hour(1)).map(|left| left.lifetime().as_secs()), Some(2 * 3_600 - 60));
    }

    #[test]
    fn waste_is_what_was_done_again_and_what_came_to_nothing() {
        let mut record = Record::new(attempt("job").job, plan(), Timestamp::UNIX_EPOCH);
        let hour = |number: i64| Timestamp::from_second(3_600 * number).expect("a time");
        let steps = [(0, 0, 0), (0, 100, 25), (75, 175, 0), (175, 175, 1)];
        for (number, (first_step, last_step, lost_steps)) in (1..).zip(steps) {
            let (started, ended) = (Some(hour(number)), Some(hour(number + 1)));
            let attempt = Attempt::new(number as u32, first_step, Money { micros: 1_000_000 });
            record.attempts.push(Attempt { started, ended, last_step, lost_steps, ..attempt });
        }
        record.attempt = 4;
        let receipt = receipt(&record, hour(9));
        assert_eq!((receipt.cost.micros, receipt.wasted.micros), (4_000_000, 1_250_000));
        assert_eq!(receipt.lost_steps, 25, "what the last attempt lost was not done again");
        assert_eq!(receipt.lasting_cost, None, "no one takes such machines away");
        *record.plan.compute = Compute::Gce(Box::default());
        let lasting = registry::lasting_price(&record.plan).expect("a spot machine");
        // 12 × 0.033174 + 78 × 0.004446 + 2.48 + 200 × 0.04 / 730
        assert_eq!(lasting.micros, 3_235_835);
        assert_eq!(super::receipt(&record, hour(9)).lasting_cost, Some(Money { micros: 4 * lasting.micros }));
        *record.plan.compute = Compute::Gce(Box::new(GcePlan { spot: false, ..GcePlan::default() }));
        assert_eq!(super::receipt(&record, hour(9)).lasting_cost, None);
    }
}
