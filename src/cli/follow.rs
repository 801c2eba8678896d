//! Waiting for a job with a person at the keyboard: Ctrl-C never loses the job, and never leaves half of one behind.

use std::{
    future::{Future, pending},
    io,
    pin::pin,
    sync::{
        Arc, LazyLock,
        atomic::{AtomicU8, Ordering},
    },
    time::{Duration, Instant},
};

use async_trait::async_trait;
use clap::Args;
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::Mutex,
};

use super::footer;
use crate::{
    exit::{Exit, Failure},
    job::{
        id::JobId,
        record::Record,
        report::Report,
        state::{Outcome, State},
        units::Span,
    },
    lifecycle::{
        World, cancel,
        drive::{Until, drive},
        journal,
        lines::Lines,
        logs,
    },
};

/// In this time a job is opened, unless its data is compared with that of one which there was before.
const MOMENT: Duration = Duration::from_secs(10);

/// The exit code of a signal that came while a job was opened: it ends the next wait.
static OWED: AtomicU8 = AtomicU8::new(0);

/// Runs `work`, which writes the first record of a job. Half of that can't be undone: a signal waits until it is whole.
pub async fn opened<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let mut work = pin!(work);
    let exit = tokio::select! {
        biased;
        exit = interrupt() => exit,
        done = &mut work => return done,
    };
    match tokio::time::timeout(MOMENT, work).await {
        Ok(done) => {
            OWED.store(exit as u8, Ordering::Relaxed);
            done
        }
        Err(_) => Err(Failure::new(exit, "the job was not opened in time").fix("`ftctl status --all` shows whether it is there")),
    }
}

/// Runs `work`, which brings a job up that is submitted here. The first Ctrl-C, SIGTERM or SIGHUP undoes what there is of the job;
/// a second Ctrl-C ends the program at once. What was up before stays as it is.
pub async fn or_roll_back<T>(world: &World, job: &Record, work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    if job.is_ready() || matches!(job.state, State::Running | State::Collecting | State::Finished) {
        return work.await;
    }
    let id = &job.id;
    let exit = tokio::select! {
        done = work => return done,
        exit = interrupt() => exit,
    };
    let record = journal::read(world.store.as_ref(), id).await.ok().map(|(record, _)| record);
    // Another user's job was not brought up here.
    if record.as_ref().is_some_and(|record| !world.adoption.may_drive(record)) {
        return Err(detached(id, exit));
    }
    // One that is resumed keeps what it has.
    let has_trained = record.is_some_and(|record| record.attempts.iter().any(|attempt| attempt.last_step > 0));
    let (undoes, end) = if has_trained {
        (
            format!("ending {id}, whose checkpoints stay"),
            format!("{id} is cancelled; `ftctl resume {id}` goes on from its checkpoint"),
        )
    } else {
        (format!("removing {id} and all that was created for it"), format!("nothing of {id} is left"))
    };
    world.report.warn(&format!("interrupted: {undoes} (Ctrl-C again to leave it)"));
    tokio::select! {
        undone = Box::pin(cancel::cancel(world, id, Duration::ZERO)) => undone?,
        // Not SIGTERM: some pipelines send both, one soon after the other.
        () = ctrl_c() => {
            let message = format!("{id} was left half made");
            return Err(Failure::new(exit, message).fix(format!("ftctl down {id}")));
        }
    };
    Err(Failure::new(exit, end))
}

/// How a wait for the end of a job ends before that.
#[derive(Debug, Default, Args)]
pub struct Waiting {
    /// Stop waiting after this time, counted from the start of the command; the job keeps running
    #[arg(long, value_name = "DURATION")]
    pub timeout: Option<Span>,
    /// Cancel the job on Ctrl-C, SIGTERM, SIGHUP or --timeout, with a checkpoint, instead of leaving it running
    #[arg(long)]
    pub cancel_on_interrupt: bool,
    /// The part of that time that is over already.
    #[arg(skip)]
    spent: Duration,
}

impl Waiting {
    /// Does work that comes before the wait, in the time of the wait.
    pub async fn spend<T>(&mut self, work: impl Future<Output = T>) -> T {
        let started = Instant::now();
        let done = work.await;
        self.spent += started.elapsed();
        done
    }

    /// [`Waiting::spend`] for work without which there is no job, for as long as there is time.
    pub async fn spend_at_most<T>(&mut self, work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
        let whole = over(self.timeout, self.spent);
        let bounded = async {
            tokio::select! {
                biased;
                exit = interrupt() => Err(Failure::new(exit, "nothing was submitted")),
                done = work => done,
                waited = whole => Err(Failure::new(Exit::Deadline, format!("waited {waited}; nothing was submitted"))
                    .fix("give a longer --timeout, or end the job of this name")),
            }
        };
        self.spend(bounded).await
    }

    /// Does the work that brings a job up, until it runs.
    pub async fn until_it_runs(
        &mut self,
        world: &World,
        id: &JobId,
        work: impl Future<Output = Result<Record, Failure>>,
    ) -> Result<Record, Failure> {
        let whole = over(self.timeout, self.spent);
        let bounded = async {
            tokio::select! {
                done = work => done,
                waited = whole => {
                    let message = format!("waited {waited} for the job {id}; it does not run yet");
                    Err(Failure { message, ..detached(id, Exit::Deadline) })
                }
            }
        };
        let done = self.spend(bounded).await;
        match done {
            Err(failure) if failure.exit == Exit::Deadline => Err(self.after(world, id, failure).await),
            done => done,
        }
    }

    /// [`to_the_end`], or to the end that the interruption brings about.
    pub async fn until_the_end(
        &mut self,
        world: &World,
        id: &JobId,
        log: impl Future<Output = Result<(), Failure>>,
    ) -> Result<Record, Failure> {
        let left = (self.timeout, self.spent);
        match self.spend(to_the_end(world, id, left, log)).await {
            Err(failure) => Err(self.after(world, id, failure).await),
            ended => ended,
        }
    }

    /// Whether a job ends with a wait that ended so.
    pub fn cancels(&self, exit: Exit) -> bool {
        self.cancel_on_interrupt && matches!(exit, Exit::HungUp | Exit::Interrupted | Exit::Terminated | Exit::Deadline)
    }

    async fn after(&self, world: &World, id: &JobId, failure: Failure) -> Failure {
        if !self.cancels(failure.exit) {
            return failure;
        }
        match cancel(world, id).await {
            Ok(true) => Failure::new(failure.exit, format!("the job {id} was cancelled")),
            Ok(false) => failure,
            Err(other) => other,
        }
    }
}

/// Cancels a job for which nobody waits any more. `false` where Ctrl-C left it running.
pub async fn cancel(world: &World, id: &JobId) -> Result<bool, Failure> {
    world.report.warn(&format!("cancelling {id} with a checkpoint (Ctrl-C again to leave it running)"));
    tokio::select! {
        cancelled = Box::pin(cancel::cancel(world, id, GRACE)) => cancelled.map(|_| true),
        // Not SIGTERM: some pipelines send both, one soon after the other.
        () = ctrl_c() => Ok(false),
    }
}

/// Time for the checkpoint of a job that is cancelled because no one waits for it any more.
const GRACE: Duration = Duration::from_secs(30);

/// Waits for the end of a job while `log` is shown, driving the job when no other process does. Ctrl-C, SIGTERM, SIGHUP and the end
/// of `timeout`, of which a part is spent, detach: the job goes on.
pub async fn to_the_end(
    world: &World,
    id: &JobId,
    (timeout, spent): (Option<Span>, Duration),
    log: impl Future<Output = Result<(), Failure>>,
) -> Result<Record, Failure> {
    tokio::select! {
        never = footer::keep(world, id) => match never {},
        both = async { tokio::try_join!(Box::pin(drive(world, id, Until::Finished)), log) } => {
            both.map(|(record, ())| record).map_err(|failure| goes_on(id, failure))
        }
        exit = interrupt() => Err(detached(id, exit)),
        waited = over(timeout, spent) => {
            let message = format!("waited {waited} for the job {id}; it is still running");
            Err(Failure { message, ..detached(id, Exit::Deadline) })
        }
    }
}

/// Returns after the timeout, of which a part is spent; without one, never.
async fn over(timeout: Option<Span>, spent: Duration) -> Span {
    let Some(span) = timeout else { return pending().await };
    tokio::time::sleep(span.0.saturating_sub(spent)).await;
    span
}

/// A line that broke, or a store whose disk is full, is the end of the looking, and not of the job.
fn goes_on(id: &JobId, failure: Failure) -> Failure {
    if !matches!(failure.exit, Exit::Network | Exit::Failure) {
        return failure;
    }
    let message = format!("{}; the job {id} is still running", failure.message);
    Failure { message, fix: failure.fix.clone().or(detached(id, failure.exit).fix), ..failure }
}

/// The next commands for a user who stopped looking.
pub fn detached(id: &JobId, exit: Exit) -> Failure {
    let fix = format!("follow it again with `ftctl logs -f {id}`, end it with `ftctl cancel {id}`");
    Failure::new(exit, format!("the job {id} is still running")).fix(fix)
}

/// Follows every attempt's log on stderr, in whole lines, so that it does not tear the bars of other work.
pub async fn log_to_stderr(world: &World, id: &JobId) -> Result<(), Failure> {
    let options = logs::Options { follow: true, ..logs::Options::default() };
    let mut shown = Shown { report: world.report.clone(), lines: Lines::default() };
    logs::show(world, id, &options, &mut shown).await?;
    let Shown { report, mut lines } = shown;
    lines.finish(|line, _| report.line(&String::from_utf8_lossy(line)));
    Ok(())
}

struct Shown {
    report: Arc<dyn Report>,
    lines: Lines,
}

#[async_trait]
impl logs::Sink for Shown {
    async fn take(&mut self, bytes: Vec<u8>) -> io::Result<()> {
        let mut whole = Vec::new();
        self.lines.take(&bytes, |line, _| whole.push(String::from_utf8_lossy(line).into_owned()));
        if !whole.is_empty() {
            self.report.line(&whole.join("\n"));
        }
        Ok(())
    }
}

/// Whether a job ended well, as an exit code. A job that is not over has no verdict.
pub fn verdict(record: &Record) -> Result<(), Failure> {
    if record.state != State::Finished || record.outcome == Some(Outcome::Succeeded) {
        return Ok(());
    }
    let exit = record.exit.and_then(Exit::from_code).unwrap_or(Exit::JobFailed);
    let why = record.reason.as_deref().unwrap_or("no reason is known");
    let message = match record.outcome {
        Some(Outcome::Cancelled) => format!("the job {} was {}", record.id, record.reason.as_deref().unwrap_or("cancelled")),
        _ => format!("the job {} {}: {why}", record.id, record.state.label(record.outcome)),
    };
    let id = &record.id;
    let wrote = format!("`ftctl logs {id}` shows what it wrote, `ftctl explain {id}` what was tried");
    let had_machine = record.attempts.iter().any(|attempt| attempt.started.is_some());
    let trained = record.attempts.iter().any(|attempt| attempt.last_step > 0);
    let fix = match (had_machine, trained) {
        _ if exit == Exit::Capacity && !record.plan.patience().is_zero() => {
            format!("`ftctl resume {id} --max-wait TIME` waits longer; `ftctl explain {id}` shows what was tried")
        }
        (false, _) if record.outcome == Some(Outcome::Failed) => {
            format!("`ftctl resume {id}` goes on after that; `ftctl explain {id}` shows what was tried")
        }
        (false, _) => format!("`ftctl explain {id}` shows what was tried"),
        (true, false) => wrote,
        (true, true) => format!("{wrote}; `ftctl resume {id}` goes on from its last checkpoint"),
    };
    Err(Failure::new(exit, message).fix(fix))
}

/// Returns when the user presses Ctrl-C, a pipeline that was cancelled ends the program (SIGTERM), or its terminal goes (SIGHUP):
/// the exit code of that.
async fn interrupt() -> Exit {
    static TERMINATIONS: Signals = Signals::const_new(None);
    static HANG_UPS: Signals = Signals::const_new(None);
    if let Some(exit) = Exit::from_code(OWED.swap(0, Ordering::Relaxed)).filter(|exit| *exit != Exit::Done) {
        return exit;
    }
    tokio::select! {
        // Of both at once, Ctrl-C is the one that must not be left for the next wait: a second one ends the program.
        biased;
        () = ctrl_c() => Exit::Interrupted,
        () = come(SignalKind::terminate(), &TERMINATIONS) => Exit::Terminated,
        () = come(SignalKind::hangup(), &HANG_UPS), if !outlives_its_terminal() => Exit::HungUp,
    }
}

/// Whether SIGHUP was ignored when the program began, as `nohup` does it: a handler would undo that.
fn outlives_its_terminal() -> bool {
    static OUTLIVES: LazyLock<bool> = LazyLock::new(|| {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let ignored = status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("SigIgn:")?.trim(), 16).ok());
        ignored.is_some_and(|mask| mask & 1 == 1)
    });
    *OUTLIVES
}

/// Returns when the user presses Ctrl-C.
pub async fn ctrl_c() {
    static INTERRUPTS: Signals = Signals::const_new(None);
    come(SignalKind::interrupt(), &INTERRUPTS).await;
}

/// Those of one kind since the first wait for one: from then on they do not end the program, so that one which comes between two
/// waits has to end the next.
type Signals = Mutex<Option<Signal>>;

async fn come(kind: SignalKind, signals: &Signals) {
    let mut signals = signals.lock().await;
    if signals.is_none() {
        *signals = signal(kind).ok();
    }
    match &mut *signals {
        Some(signals) => drop(signals.recv().await),
        // Without a handler the signal ends the program by itself.
        None => pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_signal_between_two_waits_ends_the_next() {
        static SIGNALS: Signals = Signals::const_new(None);
        let wait = |patience| tokio::time::timeout(patience, come(SignalKind::user_defined1(), &SIGNALS));
        assert!(wait(Duration::from_millis(10)).await.is_err(), "none came");
        rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::USR1).unwrap();
        wait(Duration::from_secs(30)).await.expect("it came before");
        assert!(wait(Duration::from_millis(10)).await.is_err(), "it ended one wait");
    }

    #[test]
    fn who_loses_the_line_is_told_how_to_find_the_job_again() {
        let id = JobId::derive("far", "1");
        let told = |exit| goes_on(&id, Failure::new(exit, "away"));
        let lost = told(Exit::Network);
        assert_eq!((lost.exit, lost.message), (Exit::Network, format!("away; the job {id} is still running")));
        assert!(lost.fix.is_some_and(|fix| fix.contains(&format!("ftctl logs -f {id}"))));
        assert_eq!(told(Exit::MayBill).message, "away");
    }
}
