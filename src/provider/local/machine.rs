//! One machine: a directory, made and removed in one step each, and the lock that tells whether its agent was started and lives.
//!
//! **The lock.** A launcher makes a file under a name of its own, locks it, and only then gives it the name `agent.lock`, which
//! fails when there is one: so exactly one launcher ever wins, and `agent.lock` is locked from its first instant. The winner hands
//! its open lock to the agent's process as standard input and forgets it; that process makes `agent.started` before it becomes the
//! agent. A file lock belongs to the open file, so the kernel releases it when the last of launcher and agent is gone, whatever
//! kills them. Hence, under SIGKILL at any instant of the launcher:
//!
//! | killed | is found later as |
//! |---|---|
//! | before the agent's process exists | no lock, or a free one and no `agent.started`: the next launch takes the lock over |
//! | once it exists | held lock: started |
//!
//! In a rehearsal of several nodes that is the first node's agent. The others are started before it; the next launch ends those.

use std::{
    ffi::OsString,
    fs::{self, File},
    io::{self, Read, Seek, SeekFrom},
    path::{Component, Path, PathBuf},
    time::{Duration, Instant},
};

use jiff::Timestamp;
use rustix::{
    fd::AsFd,
    fs::{Mode, OFlags, openat},
};
use serde::{Deserialize, Serialize};

use super::{
    super::disk::{sync, write_json},
    process,
};
use crate::{
    job::{
        id::{AttemptId, JobId},
        meeting,
        order::RunOrder,
        units::Money,
    },
    provider::{
        Resource,
        error::last_statement,
        whose::{Mark, Said},
    },
};

const MACHINE_SCHEMA: &str = "ftctl.local-machine/1";

const STARTED: &str = "agent.started";

/// A process that does not go after SIGKILL hangs in the kernel (a dead disk or network mount).
const KILL_LIMIT: Duration = Duration::from_secs(20);

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Machine {
    pub attempt: AttemptId,
    directory: PathBuf,
}

/// `machine.json`.
#[derive(Serialize, Deserialize)]
struct Card {
    schema: String,
    attempt: AttemptId,
    created: Timestamp,
    expires: Option<Timestamp>,
    /// The label of the store that has its job.
    #[serde(default)]
    store: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Agent {
    NotStarted,
    Running,
    Ended,
}

/// Every machine below `base`, in the order of attempts. Hidden entries are machines in the making or half removed.
pub fn all(base: &Path) -> io::Result<Vec<Machine>> {
    let mut machines: Vec<_> =
        names(base)?.iter().filter_map(|name| AttemptId::from_machine_name(name)).map(|id| Machine::new(base, &id)).collect();
    machines.sort_by(|a, b| a.attempt.cmp(&b.attempt));
    Ok(machines)
}

fn names(base: &Path) -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(base) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    entries.filter_map(|entry| entry.map(|entry| entry.file_name().into_string().ok()).transpose()).collect()
}

impl Machine {
    pub fn new(base: &Path, attempt: &AttemptId) -> Self {
        Self { attempt: attempt.clone(), directory: base.join(attempt.machine_name()) }
    }

    pub fn directory(&self) -> &Path {
        &self.directory
    }

    pub fn order(&self) -> PathBuf {
        self.directory.join("order.json")
    }

    fn lock(&self) -> PathBuf {
        self.directory.join("agent.lock")
    }

    /// The mark of its processes: the same for every spelling of the path.
    pub fn mark(&self) -> io::Result<OsString> {
        Ok(self.directory.canonicalize()?.into_os_string())
    }

    /// Makes the directory with everything in it appear at once; one that exists is left alone.
    pub fn create(&self, now: Timestamp, ttl: Duration, store: &str) -> io::Result<()> {
        let base = self.directory.parent().unwrap_or(Path::new("."));
        if self.directory.exists() {
            return Ok(());
        }
        fs::create_dir_all(base)?;
        let card = Card {
            schema: MACHINE_SCHEMA.to_owned(),
            attempt: self.attempt.clone(),
            created: now,
            expires: now.checked_add(ttl).ok(),
            store: Some(store.to_owned()),
        };
        let making = tempfile::Builder::new().prefix(&format!(".{}.", self.attempt.machine_name())).tempdir_in(base)?;
        write_json(&making.path().join("machine.json"), &card)?;
        match fs::rename(making.path(), &self.directory) {
            // Another client was faster; a directory that is not empty is never replaced.
            Err(error) if matches!(error.kind(), io::ErrorKind::DirectoryNotEmpty | io::ErrorKind::AlreadyExists) => Ok(()),
            Err(error) => Err(error),
            Ok(()) => {
                drop(making.keep());
                sync(base)
            }
        }
    }

    /// Takes the right to start the agent: `None` when another process has it, or an agent was started before.
    pub fn claim(&self) -> io::Result<Option<File>> {
        let own = tempfile::Builder::new().prefix(".claim.").tempfile_in(&self.directory)?;
        own.as_file().lock()?;
        match own.persist_noclobber(self.lock()) {
            Ok(file) => sync(&self.directory).map(|()| Some(file)),
            Err(error) if error.error.kind() == io::ErrorKind::AlreadyExists => self.take_over(),
            Err(error) => Err(error.error),
        }
    }

    /// The lock of a launcher that was killed before it started the agent.
    fn take_over(&self) -> io::Result<Option<File>> {
        let lock = File::open(self.lock())?;
        match lock.try_lock() {
            Ok(()) => Ok((!self.was_started()?).then_some(lock)),
            Err(fs::TryLockError::WouldBlock) => Ok(None),
            Err(fs::TryLockError::Error(error)) => Err(error),
        }
    }

    /// A held lock for the agent of another node than the first, after the end of one that a killed launcher left.
    pub fn lock_of(&self, node: usize) -> io::Result<File> {
        let lock = File::options().create(true).read(true).write(true).truncate(true).open(meeting::lock(&self.directory, node))?;
        let (mark, deadline) = (self.mark()?, Instant::now() + KILL_LIMIT);
        loop {
            match lock.try_lock() {
                Err(fs::TryLockError::WouldBlock) if Instant::now() < deadline => process::kill(&mark, deadline)?,
                locked => return Ok(locked.map(|()| lock)?),
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// `None`: there is no such machine.
    pub fn agent(&self) -> io::Result<Option<Agent>> {
        match File::open(self.lock()) {
            Ok(lock) => match lock.try_lock_shared() {
                Ok(()) => Ok(Some(if self.was_started()? { Agent::Ended } else { Agent::NotStarted })),
                Err(fs::TryLockError::WouldBlock) => Ok(Some(Agent::Running)),
                Err(fs::TryLockError::Error(error)) => Err(error),
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(self.directory.try_exists()?.then_some(Agent::NotStarted)),
            Err(error) => Err(error),
        }
    }

    /// Ends every process of the machine; one that is gone is fine.
    pub fn power_off(&self) -> io::Result<()> {
        match self.kill_all() {
            Err(error) if error.kind() == io::ErrorKind::NotFound && !self.directory.exists() => Ok(()),
            result => result,
        }
    }

    /// No launcher can start an agent after the lock was claimed and `agent.started` was made. One that claimed it before and is
    /// about to start its agent still holds the lock. So both the processes and the lock are waited for.
    fn kill_all(&self) -> io::Result<()> {
        let (mark, deadline) = (self.mark()?, Instant::now() + KILL_LIMIT);
        loop {
            if self.agent()? == Some(Agent::NotStarted) && self.claim()?.is_some() {
                note_start(File::open(&self.directory)?)?;
            }
            process::kill(&mark, deadline)?;
            if matches!(self.agent()?, None | Some(Agent::Ended)) {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(io::Error::other(format!("still running {} s after SIGKILL", KILL_LIMIT.as_secs())));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    pub fn write_order(&self, order: &RunOrder) -> io::Result<()> {
        write_json(&self.order(), order)
    }

    fn log_file(&self) -> PathBuf {
        self.directory.join("agent.log")
    }

    /// Where the agents' own words go, appended.
    pub fn log(&self) -> io::Result<File> {
        fs::OpenOptions::new().create(true).append(true).open(self.log_file())
    }

    fn was_started(&self) -> io::Result<bool> {
        self.directory.join(STARTED).try_exists()
    }

    /// Why the machine is dead, as far as its agent could say.
    pub fn last_words(&self) -> String {
        match last_statement(&self.words().unwrap_or_default()) {
            Some(line) => format!("the agent's process is gone; its last line: {line}"),
            None => "the agent's process is gone".to_owned(),
        }
    }

    /// The last that its agent said, if one was started.
    pub fn words(&self) -> Option<String> {
        tail(&self.log_file()).ok()
    }

    /// `None` where it is damaged, or gone.
    fn card(&self) -> Option<Card> {
        serde_json::from_slice(&fs::read(self.directory.join("machine.json")).ok()?).ok()
    }

    /// The label of the store that has its job, unless an older ftctl made it.
    pub fn store(&self) -> Option<String> {
        self.card()?.store
    }

    /// The full description of a machine that [`all`] found; `None` when it went away meanwhile. A machine whose card is damaged (a
    /// full disk, an editor) counts as expired; `prune` takes it when its order says whose it is.
    pub fn resource(&self, mark: &Mark<'_>) -> io::Result<Option<Resource>> {
        let found = match fs::metadata(&self.directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            found => found?,
        };
        let card = self.card();
        let modified = Timestamp::try_from(found.modified()?).map_err(io::Error::other)?;
        let (since, expires) = card.as_ref().map_or((modified, Some(modified)), |card| (card.created, card.expires));
        let order = fs::read(self.order()).ok().and_then(|bytes| serde_json::from_slice::<RunOrder>(&bytes).ok());
        let (name, attempt, price_per_hour) = (self.attempt.machine_name(), self.attempt.clone(), Money::ZERO);
        let store = card.as_ref().and_then(|card| card.store.as_deref());
        let belongs = mark.belongs(Said { owner: Some(&mark.owner), store, url: order.as_ref().map(|order| order.store.as_str()) });
        Ok(Some(Resource { name, attempt, since, expires, price_per_hour, belongs }))
    }
}

/// Makes `agent.started` in a machine's directory.
pub fn note_start(directory: impl AsFd) -> rustix::io::Result<()> {
    openat(directory, STARTED, OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC, Mode::from_raw_mode(0o666)).map(drop)
}

/// Removes a directory that lies directly below `base`, so that others see it in full or not at all. A link in its place is
/// removed, and its target stays.
pub fn remove_tree(base: &Path, name: &str) -> io::Result<()> {
    let mut parts = Path::new(name).components();
    if !matches!((parts.next(), parts.next()), (Some(Component::Normal(part)), None) if part == name) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("`{}` names nothing directly below it", name.escape_debug()),
        ));
    }
    let hidden = base.join(format!(".{name}.gone"));
    remove_all(&hidden)?;
    match fs::rename(base.join(name), &hidden) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
        Ok(()) => remove_all(&hidden),
    }
}

/// Removes what clients that were killed while making or removing a machine of this job left.
pub fn remove_litter(base: &Path, job: &JobId) -> io::Result<()> {
    let of_job = |name: &str| {
        let machine = name.strip_prefix('.').and_then(|rest| rest.split('.').next());
        machine.and_then(AttemptId::from_machine_name).is_some_and(|id| id.job == *job)
    };
    names(base)?.iter().filter(|name| of_job(name)).try_for_each(|name| remove_all(&base.join(name)))
}

fn remove_all(path: &Path) -> io::Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

/// The end of a text file.
fn tail(path: &Path) -> io::Result<String> {
    const ENOUGH: u64 = 4096;
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(ENOUGH)))?;
    let mut bytes = Vec::new();
    file.take(ENOUGH).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
