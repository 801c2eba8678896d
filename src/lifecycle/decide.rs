//! The decision about a running attempt: a pure function of its record and of the observation. The table of its rows is in the test
//! below.

use std::time::Duration;

use super::{
    observe::{Observation, Overdue},
    shrink,
};
use crate::{
    exit::Exit,
    job::{
        id::MAX_ATTEMPTS,
        order::{ExitReason, ExitRecord},
        record::Record,
        spec::RetryCause,
        state::Outcome,
    },
    provider::Sighting,
};

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Decision {
    Wait,
    /// It waits in a service's queue.
    WaitInQueue,
    /// The machine is there, its agent was never started: a crash fell between the two.
    Launch,
    Collect,
    /// This attempt is over; the job is not.
    TryAgain {
        why: String,
        /// How many machines the next is asked for.
        nodes: usize,
    },
    End {
        outcome: Outcome,
        exit: Exit,
        reason: String,
    },
}

impl Decision {
    /// The same for somebody else's job: a decision that would begin something is its end.
    pub fn or_the_end(self) -> Self {
        match self {
            Decision::Launch | Decision::TryAgain { .. } | Decision::WaitInQueue => cancelled("cancelled"),
            decided => decided,
        }
    }
}

pub(super) fn decide(record: &Record, seen: Observation) -> Decision {
    if let Some(exit) = &seen.exit
        && !is_replacing(record, exit, &seen.sighting)
    {
        return decide_exit(record, exit, seen.cancel.is_some(), &seen.sighting);
    }
    if seen.cancel == Some(Overdue(true)) {
        return cancelled("cancelled; it did not stop by itself in time");
    }
    if seen.past_deadline {
        return too_late(record, matches!(seen.sighting, Sighting::Queued { .. }));
    }
    match seen.sighting {
        // No agent is there that could end by itself.
        Sighting::Alive { agent: false }
        | Sighting::Queued { .. }
        | Sighting::Dead { .. }
        | Sighting::Unfit { .. }
        | Sighting::Cancelled { .. }
        | Sighting::Gone
            if seen.cancel.is_some() =>
        {
            cancelled("cancelled")
        }
        Sighting::Cancelled { why } => cancelled(&why),
        Sighting::Queued { why, .. } if seen.out_of_patience => {
            Decision::End { outcome: Outcome::Failed, exit: Exit::Capacity, reason: gave_up(record, &why) }
        }
        Sighting::Queued { .. } => Decision::WaitInQueue,
        Sighting::Alive { agent: true } => Decision::Wait,
        Sighting::Alive { agent: false } => Decision::Launch,
        Sighting::Dead { why } => preempted(record, why, None),
        Sighting::Unfit { why } => Decision::End { outcome: Outcome::Failed, exit: Exit::JobFailed, reason: why },
        Sighting::Gone => preempted(record, "the machine is gone".to_owned(), None),
    }
}

/// Whether the backend makes the next machine, whose agent begins the next attempt.
fn is_replacing(record: &Record, exit: &ExitRecord, sighting: &Sighting) -> bool {
    record.plan.replaces_machines()
        && exit.reason.is_followed()
        && may_retry(record, RetryCause::Preempt)
        && matches!(sighting, Sighting::Alive { .. })
}

fn decide_exit(record: &Record, exit: &ExitRecord, cancel: bool, sighting: &Sighting) -> Decision {
    match exit.reason {
        ExitReason::Succeeded => Decision::Collect,
        ExitReason::Cancelled => cancelled("cancelled"),
        _ if cancel => cancelled("cancelled"),
        ExitReason::Deadline => too_late(record, false),
        ExitReason::Preempted | ExitReason::LostLease => match sighting {
            // The agent cannot tell this from a preemption.
            Sighting::Cancelled { why } => cancelled(why),
            _ => preempted(record, exit.message.clone(), Some(exit)),
        },
        ExitReason::Failed if may_retry(record, RetryCause::Failure) => {
            Decision::TryAgain { why: exit.message.clone(), nodes: shrink::after(record, Some(exit)) }
        }
        ExitReason::Failed => Decision::End { outcome: Outcome::Failed, exit: Exit::JobFailed, reason: exit.message.clone() },
    }
}

fn cancelled(reason: &str) -> Decision {
    Decision::End { outcome: Outcome::Cancelled, exit: Exit::JobCancelled, reason: reason.to_owned() }
}

/// A group's time passes while it waits for a machine.
fn too_late(record: &Record, waits: bool) -> Decision {
    let over = over(record);
    let reason = if waits { format!("{over}, and it was waiting for a machine") } else { over };
    Decision::End { outcome: Outcome::Failed, exit: Exit::Deadline, reason }
}

/// Why a job has no time left: the ceiling may pay for less than it may live.
pub(super) fn over(record: &Record) -> String {
    let plan = &record.plan;
    match plan.max_cost.filter(|_| plan.lifetime() < plan.ttl.0) {
        Some(most) => format!("its money is spent (limits.max_cost = {})", String::from(most)),
        None => "its time to live is over".to_owned(),
    }
}

/// `exit` is the agent's record of its end, if it left one.
pub(super) fn preempted(record: &Record, why: String, exit: Option<&ExitRecord>) -> Decision {
    if may_retry(record, RetryCause::Preempt) {
        return Decision::TryAgain { why, nodes: shrink::after(record, exit) };
    }
    let reason = format!("preempted in attempt {} of {}: {why}", record.attempt, record.most_attempts());
    Decision::End { outcome: Outcome::Failed, exit: Exit::Preempted, reason }
}

/// An attempt that has been in a queue for so long leaves it, where one of fewer machines may take its place.
pub(super) fn with_fewer(record: &Record, queued: Duration) -> Option<Decision> {
    // It had no machine, and so uses none of the job's attempts.
    let may = queued >= shrink::PATIENCE && record.plan.retry.on.contains(&RetryCause::Capacity) && record.attempt < MAX_ATTEMPTS;
    let nodes = shrink::of_refused(record).filter(|_| may)?;
    let (all, minutes) = (record.nodes(), shrink::PATIENCE.as_secs() / 60);
    Some(Decision::TryAgain { why: format!("not all of its {all} nodes were there within {minutes} minutes"), nodes })
}

fn may_retry(record: &Record, cause: RetryCause) -> bool {
    record.plan.retry.on.contains(&cause) && record.attempt < record.most_attempts()
}

/// Why a job ends that has waited for its machines for as long as it may; `why` is what it waited for last.
pub(super) fn gave_up(record: &Record, why: &str) -> String {
    if record.plan.patience().is_zero() {
        return format!("there was no machine at once, and the job may not wait (retry.on is without \"capacity\"): {why}");
    }
    format!("there was no machine within the {} that the job may wait (limits.max_wait): {why}", record.plan.max_wait)
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::{
        job::{
            compute::Compute,
            gce::{GcePlan, Recovery},
            order::EXIT_SCHEMA,
            plan::Plan,
            record::Attempt,
            units::Money,
        },
        provider::conformance,
    };

    fn record(on: &[RetryCause]) -> Record {
        let mut record = Record::new(conformance::attempt("decide").job, conformance::plan(), Timestamp::UNIX_EPOCH);
        (record.attempt, record.plan.retry.attempts, record.plan.retry.on) = (1, 2, on.to_vec());
        record
    }

    fn exit(reason: ExitReason) -> ExitRecord {
        let (schema, message, time) = (EXIT_SCHEMA.to_owned(), "said".to_owned(), Timestamp::UNIX_EPOCH);
        ExitRecord { schema, attempt: 1, reason, code: None, signal: None, message, started: time, finished: time }
    }

    fn end(outcome: Outcome, exit: Exit, reason: &str) -> Decision {
        Decision::End { outcome, exit, reason: reason.to_owned() }
    }

    fn again(why: &str) -> Decision {
        Decision::TryAgain { why: why.to_owned(), nodes: 1 }
    }

    const ALIVE: Sighting = Sighting::Alive { agent: true };
    const NO_AGENT: Sighting = Sighting::Alive { agent: false };

    fn dead() -> Sighting {
        Sighting::Dead { why: "taken".to_owned() }
    }

    fn unfit() -> Sighting {
        Sighting::Unfit { why: "no driver".to_owned() }
    }

    fn queued() -> Sighting {
        Sighting::Queued { since: Timestamp::UNIX_EPOCH, why: "full".to_owned() }
    }

    fn cancelled_there() -> Sighting {
        Sighting::Cancelled { why: "in the studio".to_owned() }
    }

    const FRESH: Option<Overdue> = Some(Overdue(false));
    const LATE: Option<Overdue> = Some(Overdue(true));

    fn seen(sighting: Sighting, exit: Option<ExitRecord>, cancel: Option<Overdue>) -> Observation {
        Observation { exit, sighting, over: None, cancel, past_deadline: false, out_of_patience: false }
    }

    #[test]
    fn the_table_of_decisions() {
        use ExitReason::{Cancelled, Deadline, Failed, LostLease, Preempted, Succeeded};
        let cancelled = || end(Outcome::Cancelled, Exit::JobCancelled, "cancelled");
        let late = || end(Outcome::Cancelled, Exit::JobCancelled, "cancelled; it did not stop by itself in time");
        let over = || end(Outcome::Failed, Exit::Deadline, "its time to live is over");
        let waited = end(Outcome::Failed, Exit::Deadline, "its time to live is over, and it was waiting for a machine");
        let table = [
            // The agent said nothing yet: what the provider sees, then the user's wish, asked or overdue.
            (seen(ALIVE, None, None), Decision::Wait),
            (seen(ALIVE, None, FRESH), Decision::Wait),
            (seen(ALIVE, None, LATE), late()),
            (seen(NO_AGENT, None, None), Decision::Launch),
            (seen(NO_AGENT, None, FRESH), cancelled()),
            (seen(NO_AGENT, None, LATE), late()),
            (seen(queued(), None, None), Decision::WaitInQueue),
            (seen(queued(), None, FRESH), cancelled()),
            (seen(queued(), None, LATE), late()),
            (seen(dead(), None, None), again("taken")),
            (seen(dead(), None, FRESH), cancelled()),
            (seen(unfit(), None, None), end(Outcome::Failed, Exit::JobFailed, "no driver")),
            (seen(unfit(), None, FRESH), cancelled()),
            (seen(cancelled_there(), None, None), end(Outcome::Cancelled, Exit::JobCancelled, "in the studio")),
            (seen(cancelled_there(), None, FRESH), cancelled()),
            (seen(Sighting::Gone, None, None), again("the machine is gone")),
            (seen(Sighting::Gone, None, FRESH), cancelled()),
            // The agent's record holds, whatever its machine is by now.
            (seen(dead(), Some(exit(Succeeded)), None), Decision::Collect),
            (seen(Sighting::Gone, Some(exit(Succeeded)), LATE), Decision::Collect),
            (seen(dead(), Some(exit(Cancelled)), None), cancelled()),
            (seen(ALIVE, Some(exit(Deadline)), None), over()),
            (seen(ALIVE, Some(exit(Deadline)), FRESH), cancelled()),
            (seen(dead(), Some(exit(Preempted)), None), again("said")),
            (seen(dead(), Some(exit(Preempted)), FRESH), cancelled()),
            (seen(ALIVE, Some(exit(LostLease)), None), again("said")),
            (seen(cancelled_there(), Some(exit(Succeeded)), None), Decision::Collect),
            (seen(cancelled_there(), Some(exit(Preempted)), None), end(Outcome::Cancelled, Exit::JobCancelled, "in the studio")),
            (seen(cancelled_there(), Some(exit(Deadline)), None), over()),
            (seen(cancelled_there(), Some(exit(Failed)), None), end(Outcome::Failed, Exit::JobFailed, "said")),
            (seen(dead(), Some(exit(Failed)), None), end(Outcome::Failed, Exit::JobFailed, "said")),
            (seen(dead(), Some(exit(Failed)), FRESH), cancelled()),
            // Time is over: of the machine, and of the wait for one.
            (Observation { past_deadline: true, ..seen(ALIVE, None, None) }, over()),
            (Observation { past_deadline: true, ..seen(NO_AGENT, None, None) }, over()),
            (Observation { past_deadline: true, ..seen(queued(), None, None) }, waited),
            (Observation { past_deadline: true, ..seen(unfit(), None, None) }, over()),
            (Observation { past_deadline: true, ..seen(Sighting::Gone, None, LATE) }, late()),
            (Observation { past_deadline: true, ..seen(dead(), Some(exit(Succeeded)), None) }, Decision::Collect),
            (Observation { out_of_patience: true, ..seen(queued(), None, FRESH) }, cancelled()),
            (Observation { out_of_patience: true, ..seen(ALIVE, None, None) }, Decision::Wait),
            (
                Observation { out_of_patience: true, ..seen(queued(), None, None) },
                end(
                    Outcome::Failed,
                    Exit::Capacity,
                    "there was no machine within the 1d that the job may wait (limits.max_wait): full",
                ),
            ),
        ];
        let patient = record(&[RetryCause::Preempt, RetryCause::Capacity]);
        for (seen, expected) in table {
            let row = format!("{seen:?}");
            assert_eq!(decide(&patient, seen), expected, "{row}");
        }
        let waited = Observation { out_of_patience: true, ..seen(queued(), None, None) };
        let mut spent = record(&[RetryCause::Preempt]);
        (spent.plan.price_per_hour, spent.plan.max_cost) = (Money::from_dollars(1.0), Some(Money::from_dollars(0.01)));
        let late = Observation { past_deadline: true, ..seen(ALIVE, None, None) };
        let why = "its money is spent (limits.max_cost = 0.01USD)";
        assert_eq!(decide(&spent, late), end(Outcome::Failed, Exit::Deadline, why));
        let why = "there was no machine at once, and the job may not wait (retry.on is without \"capacity\"): full";
        assert_eq!(decide(&record(&[RetryCause::Preempt]), waited), end(Outcome::Failed, Exit::Capacity, why));
    }

    #[test]
    fn another_attempt_needs_its_cause_and_one_that_is_left() {
        use ExitReason::{Failed, Preempted};
        let lost =
            |why: &str, attempt: u32| end(Outcome::Failed, Exit::Preempted, &format!("preempted in attempt {attempt} of 2: {why}"));
        let failed = || end(Outcome::Failed, Exit::JobFailed, "said");
        let both = &[RetryCause::Preempt, RetryCause::Failure][..];
        let table = [
            (both, 1, dead(), None, again("taken")),
            (both, 2, dead(), None, lost("taken", 2)),
            (&[], 1, dead(), None, lost("taken", 1)),
            (&[], 1, Sighting::Gone, None, lost("the machine is gone", 1)),
            (&[], 1, dead(), Some(exit(Preempted)), lost("said", 1)),
            (both, 1, dead(), Some(exit(Failed)), again("said")),
            (both, 2, dead(), Some(exit(Failed)), failed()),
            (&[RetryCause::Preempt], 1, dead(), Some(exit(Failed)), failed()),
        ];
        for (on, attempt, sighting, exit, expected) in table {
            let mut record = record(on);
            record.attempt = attempt;
            assert_eq!(decide(&record, seen(sighting, exit, None)), expected, "{on:?}, attempt {attempt}");
        }
    }

    #[test]
    fn a_backend_that_makes_the_next_machine_is_waited_for() {
        let mut record = record(&[RetryCause::Preempt]);
        *record.plan.compute = Compute::Gce(Box::new(GcePlan { recovery: Recovery::Group, ..GcePlan::default() }));
        let mut decided = |attempt, sighting, reason| {
            record.attempt = attempt;
            decide(&record, seen(sighting, Some(exit(reason)), None))
        };
        assert_eq!(decided(1, ALIVE, ExitReason::Preempted), Decision::Wait);
        assert_eq!(decided(1, NO_AGENT, ExitReason::LostLease), Decision::Launch);
        assert_eq!(decided(1, ALIVE, ExitReason::Succeeded), Decision::Collect);
        assert_eq!(decided(1, Sighting::Gone, ExitReason::Preempted), again("said"), "there is no group any more");
        let reason = "preempted in attempt 2 of 2: said";
        assert_eq!(decided(2, ALIVE, ExitReason::Preempted), end(Outcome::Failed, Exit::Preempted, reason), "the last");
    }

    /// A job of four machines. Its current attempt has `nodes` of them.
    fn gang(nodes: usize, shrink: bool) -> Record {
        let mut record = record(&[RetryCause::Preempt, RetryCause::Capacity, RetryCause::Failure]);
        (record.plan.nodes, record.plan.processes, record.plan.retry.shrink) = (4, 8, shrink);
        record.attempts = vec![Attempt { nodes: Some(nodes), ..Attempt::new(1, 0, Money::ZERO) }];
        record
    }

    #[test]
    fn a_job_that_lost_a_machine_goes_on_with_those_that_are_left_and_then_asks_for_all() {
        use ExitReason::{Failed, LostLease, Preempted};
        let killed = || ExitRecord { signal: Some(9), ..exit(Preempted) };
        let table = [
            // What was seen, and how many the next asks for after one of four, of three, of one.
            (dead(), None, [3, 4, 4]),
            (Sighting::Gone, None, [3, 4, 4]),
            (ALIVE, Some(exit(Preempted)), [3, 4, 4]),
            // A process was killed, and no machine lost.
            (ALIVE, Some(killed()), [4, 4, 4]),
            (ALIVE, Some(exit(LostLease)), [4, 4, 4]),
            (ALIVE, Some(exit(Failed)), [4, 4, 4]),
        ];
        for (sighting, exit, expected) in table {
            let asked = |record: Record| match decide(&record, seen(sighting.clone(), exit.clone(), None)) {
                Decision::TryAgain { nodes, .. } => nodes,
                decided => panic!("{decided:?} of {sighting:?} and {exit:?}"),
            };
            assert_eq!([4, 3, 1].map(|nodes| asked(gang(nodes, true))), expected, "{sighting:?} {exit:?}");
            assert_eq!(asked(gang(4, false)), 4, "not without retry.shrink");
        }
        let two = Record { plan: Plan { nodes: 2, processes: 2, ..gang(4, true).plan }, ..gang(4, true) };
        assert_eq!((shrink::after(&two, None), shrink::after(&gang(4, true), None)), (1, 3));
    }

    #[test]
    fn an_attempt_that_waits_for_all_of_its_machines_leaves_the_queue_for_one_of_half() {
        let (long, short) = (shrink::PATIENCE, shrink::PATIENCE.saturating_sub(Duration::from_secs(1)));
        let why = |all| format!("not all of its {all} nodes were there within 20 minutes");
        for (has, half) in [(4, 2), (3, 1), (2, 1)] {
            assert_eq!(with_fewer(&gang(has, true), long), Some(Decision::TryAgain { why: why(has), nodes: half }));
            assert_eq!(with_fewer(&gang(has, true), short), None);
        }
        assert_eq!(with_fewer(&gang(1, true), long), None, "one is the least");
        assert_eq!(with_fewer(&gang(4, false), long), None);
        let last = Record { attempt: 2, ..gang(4, true) };
        assert!(with_fewer(&last, long).is_some(), "without a machine it is none of the two that the job may have");
    }

    #[test]
    fn an_attempt_that_left_a_queue_is_not_counted() {
        let attempt = |number, nodes, started, ended| {
            let attempt = Attempt::new(number, 0, Money::ZERO);
            Attempt { nodes: Some(nodes), started, ended, ..attempt }
        };
        let time = Some(Timestamp::UNIX_EPOCH);
        let ends = |attempts: Vec<Attempt>| {
            let record = Record { attempt: attempts[attempts.len() - 1].attempt, attempts, ..gang(4, true) };
            match decide(&record, seen(Sighting::Gone, None, None)) {
                Decision::End { reason, .. } => Some(reason),
                _ => None,
            }
        };
        let (queued, half) = (attempt(1, 4, None, time), attempt(2, 2, time, time));
        assert_eq!(ends(vec![queued.clone(), half.clone()]), None, "the first of two");
        let reason = "preempted in attempt 3 of 3: the machine is gone";
        assert_eq!(ends(vec![queued, half, attempt(3, 4, time, None)]).as_deref(), Some(reason));
        let unseen = attempt(1, 4, None, time);
        let reason = "preempted in attempt 2 of 2: the machine is gone";
        assert_eq!(ends(vec![unseen, attempt(2, 4, None, None)]).as_deref(), Some(reason), "as many were asked for again");
    }

    #[test]
    fn of_somebody_elses_job_only_the_end_is_carried_out() {
        let cancelled = end(Outcome::Cancelled, Exit::JobCancelled, "cancelled");
        for decided in [Decision::Launch, again("taken"), Decision::WaitInQueue] {
            assert_eq!(decided.or_the_end(), cancelled);
        }
        for kept in [|| Decision::Wait, || Decision::Collect, || end(Outcome::Failed, Exit::JobFailed, "said")] {
            assert_eq!(kept().or_the_end(), kept());
        }
    }
}
