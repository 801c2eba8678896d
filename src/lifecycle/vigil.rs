//! Whether a running attempt's agent is heard of. Its heartbeat in the store is the first sign, what its machine lets be seen the
//! second; only where both fail is an attempt given up, so neither a store nor a metadata service that is down costs a healthy
//! machine.

use std::time::{Duration, Instant};

use jiff::Timestamp;

use super::{
    Result, World, attempt, console,
    decide::{self, Decision},
    journal::Journal,
};
use crate::{
    exit::Exit,
    job::{
        clock::between,
        event::EventKind,
        id::{AttemptId, path},
        order::Heartbeat,
        record::Record,
        state::Outcome,
    },
    provider::{Class, Signs},
    store::find_json,
};

/// How often anything is looked at.
const EVERY: Duration = Duration::from_secs(2);
/// An agent beats every two seconds: one whose heart stood still for so long is worth a question.
const QUIET: Duration = Duration::from_secs(30);
/// The user hears of an agent that has not come up when its machine has been at the same thing for so long.
const WORTH_A_WORD: Duration = Duration::from_secs(30);

/// A service may start an attempt again by itself, on another machine. Where it has none for so long, the attempt is over: the next
/// one's wait has a bound of its own, and costs nothing.
const AGAIN: Duration = Duration::from_secs(10 * 60);

/// One invocation's knowledge of the running attempt.
#[derive(Default)]
pub struct Vigil {
    /// The provider did not answer when it was last asked how the machine is.
    pub out_of_sight: bool,
    attempt: u32,
    heartbeat: Option<Heartbeat>,
    heard: Option<Instant>,
    /// Whether the provider knows that the agent was heard of.
    told: bool,
    looked: Option<Instant>,
    /// The machine's activity, and since when.
    at: Option<(String, Instant)>,
    warned: bool,
    /// Which attempt is in a service's queue, and since when.
    queued: Option<(u32, Timestamp)>,
    /// When the provider was last asked whether an attempt in its queue is paid for.
    asked: Option<Timestamp>,
}

fn within(time: Option<Instant>, span: Duration) -> bool {
    time.is_some_and(|time| time.elapsed() < span)
}

/// Looks for signs of life, tells the user what there is to tell, and answers what shall be done if there are none. Asked only
/// while the machine has power and its agent was started.
pub(super) async fn keep(world: &World, job: &mut Journal, vigil: &mut Vigil) -> Result<Option<Decision>> {
    if vigil.attempt == job.record.attempt && within(vigil.looked, EVERY) {
        return Ok(None);
    }
    let attempt = AttemptId::new(&job.record.id, job.record.attempt);
    vigil.queued = None;
    if vigil.attempt != attempt.attempt {
        *vigil = Vigil { attempt: attempt.attempt, ..Vigil::default() };
    }
    let beat = find_json(world.store.as_ref(), &path::heartbeat(&attempt.job, attempt.attempt)).await?.map(|(beat, _)| beat);
    vigil.looked = Some(Instant::now());
    let has_signs = world.provider.capabilities().signs;
    if beat != vigil.heartbeat {
        if vigil.warned && !has_signs {
            world.report.line(&format!("{} sends heartbeats again", attempt.machine_name()));
        }
        let [before, now] = [&vigil.heartbeat, &beat].map(|beat| beat.as_ref().and_then(|beat| beat.trouble.as_ref()));
        match (before, now) {
            (None, Some(trouble)) => world.report.warn(&format!("{} {trouble}", attempt.machine_name())),
            (Some(_), None) => world.report.line(&format!("{} goes on", attempt.machine_name())),
            _ => {}
        }
        (vigil.heartbeat, vigil.heard, vigil.warned, vigil.at) = (beat, vigil.looked, false, None);
        tell(world, vigil, &attempt).await;
        return Ok(None);
    }
    if within(vigil.heard, QUIET) {
        return Ok(None);
    }
    if !has_signs {
        unheard(world, vigil, &attempt).await;
        return Ok(None);
    }
    match world.provider.signs(&attempt).await? {
        Signs::Absent => Ok(None),
        Signs::Unfit { why } => Ok(Some(failed(why))),
        Signs::Busy { at } => busy(world, job, vigil, &attempt, at).await.map(|()| None),
        Signs::Hangs { what } => Ok(Some(decide::preempted(&job.record, format!("it hangs: {what}"), None))),
        Signs::Silent { what } => warn(world, job, vigil, &attempt, what).await.map(|()| None),
    }
}

/// The same while the attempt is in a service's queue. It may come back into it, when the service starts it again, so its time
/// there is counted from when this invocation saw it.
pub(super) async fn queue(world: &World, record: &Record, vigil: &mut Vigil) -> Result<Option<Decision>> {
    let now = world.clock.now();
    let (_, since) = vigil.queued.filter(|(attempt, _)| *attempt == record.attempt).unwrap_or((record.attempt, now));
    vigil.queued = Some((record.attempt, since));
    // The nodes that came have as long again to be prepared.
    let started = record.attempts.last().and_then(|attempt| attempt.started);
    let waited = between(started.map_or(since, |started| since.max(started)), now);
    if let Some(fewer) = decide::with_fewer(record, waited) {
        return Ok(Some(fewer));
    }
    if started.is_none() || waited < AGAIN || vigil.asked.is_some_and(|asked| between(asked, now) < QUIET) {
        return Ok(None);
    }
    vigil.asked = Some(now);
    if attempt::is_paid(world, record).await? {
        return Ok(None);
    }
    let why = format!("the service took its machine away, and had no other within {} minutes", AGAIN.as_secs() / 60);
    Ok(Some(decide::preempted(record, why, None)))
}

/// The provider hears of the agent's first sign of life. A failed call is tried again with the next heartbeat; the job goes on in
/// any case.
async fn tell(world: &World, vigil: &mut Vigil, attempt: &AttemptId) {
    if vigil.told || vigil.heartbeat.is_none() {
        return;
    }
    let told = world.provider.heard(attempt).await;
    vigil.told = !told.as_ref().is_err_and(|error| error.class == Class::Network);
    if let Err(error) = told
        && vigil.told
    {
        world.report.warn(&format!("cannot remove the startup secrets of {}: {error}", attempt.machine_name()));
    }
}

/// Where a heartbeat is all there is, one that stands still decides nothing. It is not for the record, whose disk may be what is
/// full.
async fn unheard(world: &World, vigil: &mut Vigil, attempt: &AttemptId) {
    let (_, since) = vigil.at.get_or_insert_with(|| (String::new(), Instant::now()));
    if (vigil.heard.is_none() && since.elapsed() < QUIET) || std::mem::replace(&mut vigil.warned, true) {
        return;
    }
    let (name, quiet) = (attempt.machine_name(), QUIET.as_secs());
    let why = match vigil.heard {
        Some(_) => {
            "the agent may be stopped, or the store may be full or out of reach; the job goes on when that is over".to_owned()
        }
        None => console::last_line(world, attempt).await,
    };
    world.report.warn(&format!("{name} runs, but its agent has sent no heartbeat for {quiet} s: {why}"));
}

fn failed(reason: String) -> Decision {
    Decision::End { outcome: Outcome::Failed, exit: Exit::JobFailed, reason }
}

async fn busy(world: &World, job: &mut Journal, vigil: &mut Vigil, attempt: &AttemptId, at: String) -> Result<()> {
    // One whose agent has lived and whose store is away is left alone, and so is the user.
    if vigil.heard.is_some() {
        return Ok(());
    }
    match &vigil.at {
        Some((before, since)) if *before == at => {
            if since.elapsed() > WORTH_A_WORD {
                let what = format!(
                    "{} has been {at} for {} s, without a word from its agent",
                    attempt.machine_name(),
                    since.elapsed().as_secs()
                );
                warn(world, job, vigil, attempt, what).await?;
            }
        }
        _ => {
            world.report.line(&format!("{}: {at}", attempt.machine_name()));
            (vigil.at, vigil.warned) = (Some((at, Instant::now())), false);
        }
    }
    Ok(())
}

/// Once for each thing that is wrong: on stderr and, for `explain`, in the record.
async fn warn(world: &World, job: &mut Journal, vigil: &mut Vigil, attempt: &AttemptId, what: String) -> Result<()> {
    if std::mem::replace(&mut vigil.warned, true) {
        return Ok(());
    }
    let said = format!("{what}; {}", console::last_line(world, attempt).await);
    world.report.warn(&said);
    job.note(EventKind::Note { message: said });
    job.save().await
}
