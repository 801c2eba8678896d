//! The trainer's process: started with its configuration, asked to stop, killed when it does not, and its end understood.

use std::{
    fs::{self, File, OpenOptions},
    future::{Future, pending},
    io::{self, Read, Seek, SeekFrom},
    net::{SocketAddr, TcpListener},
    os::{
        fd::{AsRawFd as _, BorrowedFd},
        unix::process::ExitStatusExt,
    },
    path::{Path, PathBuf},
    pin::pin,
    process::{ExitStatus, Stdio},
    time::Duration,
};

use ft_trainer::{openmp, settings::TrainConfig};
use futures_util::{StreamExt as _, stream::FuturesUnordered};
use rustix::{
    io::{FdFlags, fcntl_setfd},
    process::{Pid, Signal, getpid, getppid, kill_process},
};
use tokio::{
    process::{Child, Command},
    sync::watch,
    time::{Instant, sleep_until},
};

use super::{folder::Folder, stop::Stop};
use crate::job::{
    environment::{Program, passes, refusal},
    meeting::RankEnd,
    order::{self, ExitReason, RunOrder, TrainerImage},
};

/// The trainer's exit code for "stopped as asked, after a checkpoint".
pub(super) const STOPPED: i32 = 75;

/// Asks the trainer for a checkpoint. One that does not know this signal, or is not ready for it, does not hear it.
const SAVE: Signal = Signal::URG;

/// Where the first rank has a number in this variable, it is of an open socket that listens at the port where the ranks meet.
const LISTENER: &str = "FTCTL_LISTENER";

/// In which a process ends by itself after another has failed: it hears of that within a second, where all have met.
pub(super) const SOON: Duration = Duration::from_secs(3);

/// The trainer's name in an image; it is in the image's `PATH`.
const IN_IMAGE: &str = "ft-trainer";

/// Signals that a program gets for its own mistakes: another attempt would make the same.
const FAULTS: [Signal; 7] = [Signal::ILL, Signal::TRAP, Signal::ABORT, Signal::BUS, Signal::FPE, Signal::SEGV, Signal::SYS];

/// How the attempt ended, before it is stamped and signed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct End {
    pub reason: ExitReason,
    pub code: Option<i32>,
    pub signal: Option<i32>,
    pub message: String,
}

impl End {
    pub fn new(reason: ExitReason, message: impl Into<String>) -> Self {
        Self { reason, code: None, signal: None, message: message.into() }
    }

    /// The end where a success is none without this, too.
    pub fn needing(self, done: Result<(), String>) -> Self {
        match done {
            Err(why) if self.reason == ExitReason::Succeeded => Self::new(ExitReason::Failed, why),
            _ => self,
        }
    }
}

/// The log that the trainer writes to, and the directories where the stages put its input.
pub(super) struct Inputs {
    pub log: File,
    pub data: PathBuf,
    pub initial_weights: Option<PathBuf>,
    /// Where a trainer of this machine's own lies.
    pub cache: PathBuf,
}

/// The program to execute: one of this machine's own cache, or the one of the agent's image.
fn program(order: &RunOrder, cache: &Path) -> io::Result<PathBuf> {
    match &order.trainer {
        TrainerImage::Program { digest } => {
            let path = order::program(cache, digest);
            let missing =
                || format!("the trainer {} is not in the cache of this machine ({})", &digest.as_str()[..16], path.display());
            if path.is_file() { Ok(path) } else { Err(io::Error::new(io::ErrorKind::NotFound, missing())) }
        }
        TrainerImage::Image { .. } => Ok(IN_IMAGE.into()),
        TrainerImage::None => Err(io::Error::other("the order names no trainer; submit the job again")),
    }
}

/// Where the ranks of all nodes meet, and how often they have.
#[derive(Debug)]
pub(super) struct Meeting {
    pub at: SocketAddr,
    pub generation: u32,
    /// Most sequences that a rank takes at once.
    pub micro_batch_limit: Option<usize>,
    /// The socket of the first rank, on its node. It is held so that no other process takes the port.
    pub listener: Option<TcpListener>,
}

/// A process of the trainer.
pub(super) struct Process {
    rank: usize,
    child: Child,
    /// It hears of stops and notices, as the first of its node, and tells all others. What the first of the first node says is the
    /// job's log.
    hears: bool,
}

/// Starts the ranks of a node in `folder`. Their output goes into the log files themselves, not through the agent, so that nothing
/// is lost with the agent; and they die with the agent, so that nothing writes to a checkpoint beside the next attempt. They have
/// the variables of the agent's environment that are on a list (`docs/environment.md`), and no secret.
#[expect(clippy::needless_pass_by_value, reason = "the first rank alone keeps the socket at which the ranks meet")]
pub(super) fn start(order: &RunOrder, node: usize, folder: &Folder, inputs: &Inputs, meeting: Meeting) -> io::Result<Vec<Process>> {
    let path = program(order, &inputs.cache)?;
    if let Some(why) = refusal(&order.environment) {
        return Err(io::Error::other(format!("{why}; correct compute.environment, and submit the job again")));
    }
    let config = TrainConfig {
        data: inputs.data.clone(),
        output: folder.output(),
        initial_weights: inputs.initial_weights.clone(),
        micro_batch_limit: meeting.micro_batch_limit,
        model: order.model.clone(),
        train: order.train.clone(),
        sample: order.sample.clone(),
    };
    fs::write(folder.config(), serde_json::to_vec_pretty(&config)?)?;
    let ranks = order.ranks(node);
    let start = |rank| {
        let another = || OpenOptions::new().create(true).append(true).open(folder.log_of(rank));
        let log = if rank == 0 { inputs.log.try_clone()? } else { another()? };
        let mut command = command(&path, folder, &log)?;
        command.envs(&order.environment).envs(variables(order, rank, &meeting));
        if let (0, 2.., Some(listener)) = (rank, order.processes, &meeting.listener) {
            hand_over(&mut command, listener);
        }
        let failed = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
        Ok(Process { rank, child: command.spawn().map_err(failed)?, hears: rank == ranks.start })
    };
    ranks.clone().map(start).collect()
}

fn command(path: &Path, folder: &Folder, log: &File) -> io::Result<Command> {
    let mut command = Command::new(path);
    command.arg("train").arg(folder.config()).arg("--timestamps").current_dir(folder.path());
    let passed = std::env::vars_os().filter(|(name, _)| passes(Program::Trainer, name));
    command.env_clear().envs(passed).envs(openmp::policy());
    command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log.try_clone()?).kill_on_drop(true);
    let agent = getpid();
    // SAFETY: between fork and exec only two system calls are made, which take no lock and allocate nothing. The death signal is
    // bound to the thread that forks: the one that runs the agent to its end.
    unsafe { command.pre_exec(move || die_with(agent)) };
    Ok(command)
}

/// Leaves the process that is started a socket that this one has opened.
fn hand_over(command: &mut Command, listener: &TcpListener) {
    let socket = listener.as_raw_fd();
    command.env(LISTENER, socket.to_string());
    // SAFETY: between fork and exec only one system call is made, which takes no lock and allocates nothing. The socket is open:
    // the caller has it until the process is started.
    unsafe { command.pre_exec(move || Ok(fcntl_setfd(BorrowedFd::borrow_raw(socket), FdFlags::empty())?)) };
}

fn die_with(agent: Pid) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    // An agent that was killed before the line above sends no signal any more. Nor does it hear of an error: the standard library
    // would write its failure to tell one into the trainer's log.
    if getppid() == Some(agent) { Ok(()) } else { Ok(kill_process(getpid(), Signal::KILL)?) }
}

/// The environment of every process of the trainer; the names are torchrun's where it has one.
fn variables(order: &RunOrder, rank: usize, meeting: &Meeting) -> Vec<(&'static str, String)> {
    let beside = order.ranks_per_node().max(1);
    let mut variables = vec![
        ("FTCTL_JOB_ID", order.job.to_string()),
        ("FTCTL_ATTEMPT", order.attempt.to_string()),
        ("RANK", rank.to_string()),
        ("WORLD_SIZE", order.processes.to_string()),
        ("LOCAL_RANK", (rank % beside).to_string()),
        ("LOCAL_WORLD_SIZE", beside.to_string()),
        ("GROUP_RANK", (rank / beside).to_string()),
        ("MASTER_ADDR", meeting.at.ip().to_string()),
        ("MASTER_PORT", meeting.at.port().to_string()),
        ("TORCHELASTIC_RESTART_COUNT", format!("{}.{}", order.attempt, meeting.generation)),
    ];
    // Then each agent sends a part of what its ranks write.
    variables.extend((order.nodes > 1).then(|| ("FTCTL_RANGES", "1".to_owned())));
    variables.extend(order.deadline.map(|deadline| ("FTCTL_DEADLINE", deadline.to_string())));
    variables
}

/// How a process of the trainer on this machine ended: neither code nor signal where it had to be, because another had.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ended {
    pub rank: usize,
    pub code: Option<i32>,
    pub signal: Option<i32>,
}

impl Ended {
    fn of(rank: usize, status: ExitStatus) -> Self {
        Self { rank, code: status.code(), signal: status.signal() }
    }

    /// The same for the agents of all nodes.
    pub fn told(self, log: &Log, out_of_memory: bool) -> RankEnd {
        let Self { rank, code, signal } = self;
        let words = if code == Some(STOPPED) { log.last_error().unwrap_or_default() } else { log.last_words() };
        RankEnd { rank, code, signal, words, out_of_memory }
    }
}

/// Waits for the trainer; how the process ended that was the reason for all of them: the earliest of those that say as much. When
/// one fails, `tell` is called. From then on, or since one has stopped, and when `another` comes, which is a failure of another
/// node, the rest have [`SOON`] to end by themselves.
pub(super) async fn supervise(
    trainer: Vec<Process>,
    requests: watch::Receiver<Option<Stop>>,
    notices: watch::Receiver<Option<String>>,
    another: impl Future<Output = ()>,
    tell: impl Fn(),
) -> io::Result<Ended> {
    let (over, first) = (watch::Sender::new(false), trainer.iter().find(|process| process.hears).map(|process| process.rank));
    let attend = |process| attend(process, requests.clone(), notices.clone(), over.subscribe());
    let mut running: FuturesUnordered<_> = trainer.into_iter().map(attend).collect();
    let (mut ends, mut another, mut until) = (Vec::new(), pin!(another), None);
    loop {
        let time_is_up = async {
            match until.filter(|_| !*over.borrow()) {
                Some(until) => sleep_until(until).await,
                None => pending().await,
            }
        };
        tokio::select! {
            ended = running.next() => {
                let Some(ended) = ended.transpose()? else { break };
                if !matches!(ended.code, Some(0 | STOPPED)) {
                    tell();
                }
                if ended.code != Some(0) || Some(ended.rank) == first {
                    until.get_or_insert_with(|| Instant::now() + SOON);
                }
                ends.push(ended);
            }
            () = &mut another, if until.is_none() => until = Some(Instant::now() + SOON),
            () = time_is_up => { over.send_replace(true); }
        }
    }
    let says = |ended: &Ended| weight(ended.rank, ended.code, ended.signal);
    Ok(ends.into_iter().rev().max_by_key(says).unwrap_or_else(|| unreachable!("a node has a rank")))
}

/// The end of all ranks, by the one that was the reason; none where there are no ends.
pub(super) fn first_cause(ends: impl DoubleEndedIterator<Item = RankEnd>) -> Option<RankEnd> {
    ends.rev().max_by_key(|end| weight(end.rank, end.code, end.signal))
}

/// How much the end of a rank says of why all ended: it failed by itself, or else was killed, or else stopped with the others, or
/// else had to be ended; and where the first is through, all is done.
fn weight(rank: usize, code: Option<i32>, signal: Option<i32>) -> u8 {
    match (rank, code, signal) {
        (0, Some(0), _) => 5,
        (_, Some(0), _) => 0,
        (_, None, None) => 1,
        (_, Some(STOPPED), _) => STOPPED_WITH_OTHERS,
        (_, None, Some(signal)) if signal == Signal::KILL.as_raw() => 3,
        _ => 4,
    }
}

const STOPPED_WITH_OTHERS: u8 = 2;

/// Whether a rank ended because another did, or because all were asked to.
pub(super) fn is_stopped(end: &RankEnd) -> bool {
    weight(end.rank, end.code, end.signal) <= STOPPED_WITH_OTHERS
}

/// Waits for a process. With each of the cloud's `notices` the one that hears is asked for a checkpoint, and goes on. When a stop
/// is asked for, it gets one SIGTERM (its second would end it without a checkpoint), and SIGKILL when its time is up. Each gets
/// SIGKILL when it is `over` for all.
async fn attend(
    Process { rank, mut child, hears }: Process,
    mut requests: watch::Receiver<Option<Stop>>,
    mut notices: watch::Receiver<Option<String>>,
    mut over: watch::Receiver<bool>,
) -> io::Result<Ended> {
    let mut asked = !hears;
    let is_over = loop {
        let stop = *requests.borrow_and_update();
        if stop.is_some() && !asked {
            asked = true;
            send(&child, Signal::TERM);
        }
        let time_is_up = async {
            match stop.filter(|_| hears) {
                Some(stop) => sleep_until(stop.kill_at).await,
                None => pending().await,
            }
        };
        tokio::select! {
            biased;
            status = child.wait() => return Ok(Ended::of(rank, status?)),
            () = time_is_up => break false,
            _ = over.wait_for(|over| *over) => break true,
            _ = requests.changed() => {}
            Ok(()) = notices.changed() => {
                if hears && notices.borrow_and_update().is_some() {
                    send(&child, SAVE);
                }
            }
        }
    };
    child.start_kill()?;
    let status = child.wait().await?;
    Ok(if is_over { Ended { rank, code: None, signal: None } } else { Ended::of(rank, status) })
}

/// A child that was not waited for keeps its number, so the signal cannot hit anybody else.
fn send(child: &Child, signal: Signal) {
    let pid = child.id().and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw);
    // It may have ended by itself.
    let _ = pid.map(|pid| kill_process(pid, signal));
}

/// The end of the attempt of `order`, by the end of a run's ranks.
pub(super) fn meaning(ended: &RankEnd, stop: Option<Stop>, order: &RunOrder) -> End {
    let end = understand((ended.code, ended.signal), stop, &ended.words);
    match order.nodes {
        // It says which one it has lost.
        _ if ended.code == Some(STOPPED) && stop.is_none() && !ended.words.is_empty() => {
            End { message: ended.words.clone(), ..end }
        }
        1 if ended.rank == 0 => end,
        1 => End { message: format!("rank {}: {}", ended.rank, end.message), ..end },
        _ if end.reason != ExitReason::Failed => end,
        _ => End { message: format!("{} failed: {}", order.rank_name(ended.rank), end.message), ..end },
    }
}

/// The meaning of exit code and signal; `words` are the reason.
fn understand((code, signal): (Option<i32>, Option<i32>), stop: Option<Stop>, words: &str) -> End {
    let fault = signal.is_some_and(|number| FAULTS.iter().any(|fault| fault.as_raw() == number));
    let reason = match (stop.map(|stop| stop.reason), code) {
        (Some(ExitReason::LostLease), _) => ExitReason::LostLease,
        (_, Some(0)) => ExitReason::Succeeded,
        (asked, Some(STOPPED)) => asked.unwrap_or(ExitReason::Preempted),
        (_, Some(_)) => ExitReason::Failed,
        (_, None) if fault => ExitReason::Failed,
        (asked, None) => asked.unwrap_or(ExitReason::Preempted),
    };
    let message = match (reason, signal) {
        (ExitReason::Succeeded, _) => "trained to the end".to_owned(),
        (ExitReason::Failed, Some(number)) => {
            format!("the trainer crashed with signal {number}; its last words: {words}")
        }
        (ExitReason::Failed, None) => words.to_owned(),
        (_, Some(number)) => format!("{}; signal {number} ended the trainer before it could stop by itself", why(reason)),
        (_, None) => format!("{}; the trainer stopped after a checkpoint", why(reason)),
    };
    End { reason, code, signal, message }
}

/// Why an attempt ends that was not over.
pub(super) fn why(reason: ExitReason) -> &'static str {
    match reason {
        ExitReason::Succeeded => "the work is done",
        ExitReason::Failed => "the trainer failed",
        ExitReason::Preempted => "the machine was preempted, or its trainer was killed",
        ExitReason::Cancelled => "a user cancelled the job",
        ExitReason::Deadline => "the deadline came",
        ExitReason::LostLease => "another attempt holds the job",
    }
}

/// A disk with less than this left is full: that the trainer could not even say so is the likeliest reason for its silence.
const FULL: u64 = 1 << 20;

/// The output of a process of the trainer, from a byte on. Before it are the words of an earlier process.
pub(super) struct Log {
    pub path: PathBuf,
    pub from: u64,
}

impl Log {
    /// The answer of [`Log::last_line`], with a note when there was no room for it.
    fn last_words(&self) -> String {
        let (words, log) = (self.last_line(), &self.path);
        let free =
            log.parent().and_then(|folder| rustix::fs::statvfs(folder).ok()).map_or(u64::MAX, |disk| disk.f_bavail * disk.f_frsize);
        if free < FULL { format!("{words}; the disk of {} is full ({free} bytes are free)", log.display()) } else { words }
    }

    /// The last line that speaks of an error, or the last line at all; without `error: ` in front, which the caller adds.
    pub fn last_line(&self) -> String {
        self.last_error().or_else(|| self.last_of(|_| true)).unwrap_or_else(|| "the trainer failed and said nothing".to_owned())
    }

    fn last_error(&self) -> Option<String> {
        self.last_of(|line| line.to_lowercase().contains("error") || line.contains("panicked at"))
    }

    fn last_of(&self, is_meant: impl Fn(&str) -> bool) -> Option<String> {
        const MOST: usize = 500;
        let text = self.tail().unwrap_or_default();
        let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
        let at = lines.iter().rposition(|line| is_meant(line))?;
        let line = lines[at].trim();
        // A list that it announces stands below it.
        let listed = lines[at + 1..].iter().take_while(|below| line.ends_with(':') && below.starts_with("  "));
        let words = format!("{line} {}", listed.map(|below| below.trim()).collect::<Vec<_>>().join("; "));
        Some(words.trim().trim_start_matches("error: ").chars().take(MOST).collect())
    }

    fn tail(&self) -> io::Result<String> {
        const ENOUGH: u64 = 64 << 10;
        let mut file = File::open(&self.path)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(ENOUGH).max(self.from)))?;
        let mut bytes = Vec::new();
        file.take(ENOUGH).read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn every_end_has_a_meaning() {
        let log = tempfile::NamedTempFile::new().unwrap();
        fs::write(log.path(), "step 1\nError: the loss is not a number\n\nbye\n").unwrap();
        let said = |path: &Path, from| Log { path: path.to_owned(), from };
        let stop = |reason| Some(Stop { reason, kill_at: Instant::now() });
        let (exited, killed) = (|code: i32| ExitStatus::from_raw(code << 8), ExitStatus::from_raw);
        for (status, stop, reason, message) in [
            (exited(0), None, ExitReason::Succeeded, "to the end"),
            (exited(0), stop(ExitReason::Preempted), ExitReason::Succeeded, "to the end"),
            (exited(0), stop(ExitReason::LostLease), ExitReason::LostLease, "another attempt"),
            (exited(75), None, ExitReason::Preempted, "after a checkpoint"),
            (exited(75), stop(ExitReason::Cancelled), ExitReason::Cancelled, "a user cancelled the job; the trainer stopped"),
            (exited(75), stop(ExitReason::Deadline), ExitReason::Deadline, "the deadline came"),
            (exited(1), None, ExitReason::Failed, "Error: the loss is not a number"),
            (exited(1), stop(ExitReason::Cancelled), ExitReason::Failed, "Error: the loss is not a number"),
            (killed(9), None, ExitReason::Preempted, "signal 9"),
            (killed(9), stop(ExitReason::Cancelled), ExitReason::Cancelled, "signal 9"),
            (killed(11), None, ExitReason::Failed, "crashed with signal 11"),
        ] {
            let end = understand((status.code(), status.signal()), stop, &said(log.path(), 0).last_words());
            assert_eq!(end.reason, reason, "{status:?} {stop:?}");
            assert!(end.message.contains(message), "{status:?} {stop:?}: {}", end.message);
            assert_eq!((end.code, end.signal), (status.code(), status.signal()));
        }
        fs::write(log.path(), "one\ntwo\n").unwrap();
        assert_eq!(said(log.path(), 0).last_words(), "two");
        fs::write(log.path(), "error: of another run:\n  train.steps: 2, now 1\n  train.seed: 3, now 4\nrestore it\n").unwrap();
        assert_eq!(said(log.path(), 0).last_words(), "of another run: train.steps: 2, now 1; train.seed: 3, now 4");
        fs::write(log.path(), "error: of the one before\nterminated\n").unwrap();
        let [all, later] = [0, 25].map(|from| said(log.path(), from));
        assert_eq!([all.last_error(), later.last_error()], [Some("of the one before".to_owned()), None]);
        assert_eq!(later.last_words(), "terminated");
        assert_eq!(said(&log.path().with_extension("none"), 0).last_words(), "the trainer failed and said nothing");
    }
}
