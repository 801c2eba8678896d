//! Why a job is where it is: its events in words, and when something is tried next.

use jiff::Timestamp;
use serde::Serialize;

use super::{Result, World, observe, status};
use crate::{
    job::{
        event::{Event, EventKind},
        id::{JobId, path},
        record::{Record, Waiting},
        state::State,
        wording,
    },
    store::lease,
};

pub const EXPLANATION_SCHEMA: &str = "ftctl.explanation/1";

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Explanation {
    pub schema: &'static str,
    pub id: JobId,
    pub state: String,
    /// The reason why the job waits, or its end.
    pub now: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_at: Option<Timestamp>,
    pub events: Vec<Told>,
}

/// One event in words.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Told {
    pub time: Timestamp,
    pub attempt: u32,
    pub text: String,
}

pub async fn explain(world: &World, record: &Record) -> Result<Explanation> {
    let (store, now) = (world.store.as_ref(), world.clock.now());
    let record = &observe::as_it_stands(store, record.clone(), now).await?;
    let holder = lease::holder(store, &path::supervisor_lease(&record.id)).await?;
    let last = status::heartbeat(store, record, record.attempt).await;
    let sight = Sight {
        retry_at: record.retry_at.filter(|at| *at > now && !record.state.is_finished()),
        ended: observe::read_exit(store, record).await?.map(|exit| exit.message).filter(|_| record.state == State::Running),
        silent_since: last.and_then(|last| status::silent_since(record, &last, now)),
        is_driven: holder.is_some_and(|holder| !holder.is_gone(&world.supervisor)),
        may_drive: world.adoption.may_drive(record),
    };
    Ok(Explanation {
        schema: EXPLANATION_SCHEMA,
        id: record.id.clone(),
        state: record.label().to_owned(),
        now: situation(record, &sight),
        retry_at: sight.retry_at,
        events: record.events.iter().map(|event| told(event, record.attempt)).collect(),
    })
}

/// Facts that are not in a job's record.
#[derive(Default)]
struct Sight {
    retry_at: Option<Timestamp>,
    /// The last message of the running attempt's agent, by the record.
    ended: Option<String>,
    /// Its agent's last sign, where that is long ago.
    silent_since: Option<Timestamp>,
    /// Whether an invocation carries it on, as far as can be seen from here.
    is_driven: bool,
    /// Whether this user would, without more ado.
    may_drive: bool,
}

fn situation(record: &Record, sight: &Sight) -> String {
    let reason = record.reason.as_deref().unwrap_or("no reason is known");
    let what = match (record.state, sight.retry_at) {
        (_, next_try) if record.waiting.is_some() => waits(record, next_try),
        (State::Finished, _) => return reason.to_owned(),
        _ if record.is_ready() => return "everything is ready; `ftctl submit` starts it".to_owned(),
        (State::TearingDown, _) => format!("its machine is being destroyed: {reason}"),
        (_, Some(at)) => format!("it waits until {at:.0} before it asks for a machine again"),
        (State::Planned | State::Uploading, _) => "its data is being prepared and uploaded".to_owned(),
        (State::Imaging, _) => "its trainer is being built".to_owned(),
        (State::Provisioning, _) => "it asks for a machine".to_owned(),
        (State::Submitting, _) => "its agent is being started".to_owned(),
        (State::Running, _) => match (&sight.ended, sight.silent_since) {
            (Some(message), _) => format!("attempt {} has ended: {message}", record.attempt),
            (None, Some(since)) => format!("there is no sign of attempt {}'s machine since {since:.0}", record.attempt),
            (None, None) => {
                let (attempt, most) = (record.attempt, record.most_attempts());
                return format!("attempt {attempt} of at most {most} is running{}", record.shrunk_to(attempt));
            }
        },
        (State::Collecting, _) => "its results are being collected".to_owned(),
    };
    if sight.is_driven {
        return what;
    }
    if record.state == State::Running && record.plan.replaces_machines() {
        return format!("{what}; its group makes machines without ftctl, and `ftctl logs -f {}` follows", record.id);
    }
    let adopt = if sight.may_drive { "" } else { " --adopt" };
    format!("{what}; nothing happens until you run `ftctl logs -f {}{adopt}`", record.id)
}

fn waits(record: &Record, next_try: Option<Timestamp>) -> String {
    let Some(Waiting { since, why }) = &record.waiting else { return String::new() };
    let next = next_try.map(|at| format!("; next try at {at:.0}")).unwrap_or_default();
    format!(
        "it has been waiting for a machine since {since:.0}, at no cost, and waits {} at most: {why}{next}",
        record.plan.max_wait
    )
}

fn told(event: &Event, last_attempt: u32) -> Told {
    let text = match &event.kind {
        EventKind::Entered { state } => state.label(None).to_owned(),
        EventKind::Refused { class, message, retry_at } => {
            let next = retry_at.map(|at| format!("; next try at {at:.0}")).unwrap_or_default();
            format!("refused ({class}): {message}{next}")
        }
        EventKind::AttemptEnded { reason, last_step, resumes_from, lost_steps } => {
            let next = format!("; the next resumes from step {resumes_from} ({})", wording::lost(*lost_steps));
            format!("the attempt ended at step {last_step}: {reason}{}", if event.attempt < last_attempt { &next } else { "" })
        }
        EventKind::Note { message } => message.clone(),
        EventKind::Unknown => "unknown event (of a newer ftctl)".to_owned(),
    };
    Told { time: event.time, attempt: event.attempt, text }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::{record::Attempt, units::Money};

    fn event(attempt: u32, kind: EventKind) -> Event {
        Event { time: Timestamp::UNIX_EPOCH, attempt, kind }
    }

    #[test]
    fn an_attempt_that_was_followed_by_another_says_what_that_cost() {
        let ended = EventKind::AttemptEnded { reason: "preempted".to_owned(), last_step: 30, resumes_from: 20, lost_steps: 10 };
        let cost = "the attempt ended at step 30: preempted; the next resumes from step 20 (10 steps are repeated)";
        assert_eq!(told(&event(1, ended.clone()), 2).text, cost);
        assert_eq!(told(&event(2, ended), 2).text, "the attempt ended at step 30: preempted");
    }

    #[test]
    fn a_job_that_nobody_drives_says_how_it_goes_on() {
        let mut record = Record::new(JobId::derive("left", "1"), crate::provider::conformance::plan(), Timestamp::UNIX_EPOCH);
        (record.attempt, record.submitted) = (1, true);
        let mut said = |state, ended: Option<&str>, is_driven| {
            record.state = state;
            situation(&record, &Sight { ended: ended.map(str::to_owned), is_driven, may_drive: true, ..Sight::default() })
        };
        assert_eq!(said(State::Imaging, None, true), "its trainer is being built");
        let left = said(State::Imaging, None, false);
        assert!(
            left.starts_with("its trainer is being built; nothing happens until") && left.contains("`ftctl logs -f left-"),
            "{left}"
        );
        assert_eq!(said(State::Running, None, false), "attempt 1 of at most 1 is running");
        let ended = said(State::Running, Some("trained to the end"), false);
        assert!(ended.starts_with("attempt 1 has ended: trained to the end; nothing happens until"), "{ended}");
        let silent = Sight { silent_since: Some(Timestamp::UNIX_EPOCH), may_drive: true, ..Sight::default() };
        let silent = situation(&record, &silent);
        let since = "there is no sign of attempt 1's machine since 1970-01-01T00:00:00Z; nothing happens until";
        assert!(silent.starts_with(since), "{silent}");
        record.plan.nodes = 2;
        record.attempts = vec![Attempt { nodes: Some(1), ..Attempt::new(1, 0, Money::ZERO) }];
        let on_one = situation(&record, &Sight::default());
        assert_eq!(on_one, "attempt 1 of at most 1 is running on 1 of 2 nodes");
    }

    #[test]
    fn a_refusal_says_who_refused_what_and_when_it_is_tried_again() {
        let message = "no machine in zone a".to_owned();
        let refused = EventKind::Refused { class: "capacity".to_owned(), message, retry_at: Some(Timestamp::UNIX_EPOCH) };
        let text = "refused (capacity): no machine in zone a; next try at 1970-01-01T00:00:00Z";
        assert_eq!(told(&event(1, refused), 1).text, text);
    }
}
