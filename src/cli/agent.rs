//! `ftctl agent`: the verb that providers start beside the trainer. Not for people, so not in the help.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    fs,
    io::{self, Read as _},
    net::IpAddr,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use super::App;
use crate::{
    agent,
    exit::{Exit, Failure},
    job::{
        digest::Digest,
        environment::MARK,
        id::{AttemptId, JobId, MAX_ATTEMPTS},
        order::{ExitReason, RunOrder},
        report::Report,
    },
};
use clap::Args;

/// A service kills the agents of the other nodes when that of one fails. They get this time to send their last lines.
const FAREWELL: Duration = Duration::from_secs(5);
/// An order, and the variables of an agent, have some kilobytes.
const LARGEST: u64 = 1 << 20;

/// Run one attempt beside its trainer
#[derive(Debug, Args)]
pub struct Agent {
    /// The order, `order.json`, in place of --job, --attempt and --store
    #[arg(long, value_name = "FILE", conflicts_with_all = ["job", "attempt", "store"], required_unless_present = "job")]
    order: Option<PathBuf>,
    /// The job whose order lies in the store
    #[arg(long, value_name = "ID", requires = "attempt", requires = "store")]
    job: Option<String>,
    /// The attempt that the order is for
    #[arg(long, value_name = "N", requires = "job")]
    attempt: Option<u32>,
    /// The store as this machine reaches it
    #[arg(long, value_name = "URL", requires = "job")]
    store: Option<String>,
    /// SHA-256 of what the submitter asked for: an order in the store that asks for something else is refused
    #[arg(long, value_name = "SHA256", requires = "job")]
    asked: Option<String>,
    /// The job's directory on this machine
    #[arg(long, value_name = "DIR", default_value = "ftctl-work")]
    work: PathBuf,
    /// Which of the order's nodes this is, counted from 0; absent: NODE_RANK
    #[arg(long, value_name = "N")]
    node: Option<usize>,
    /// The address of this machine for the other nodes' ranks; absent: MASTER_ADDR, or the one that it has towards others
    #[arg(long, value_name = "IP")]
    address: Option<IpAddr>,
    /// Where all nodes are on this machine, the folder in which the agent of each other one has a lock
    #[arg(long, value_name = "DIR")]
    locks: Option<PathBuf>,
    /// Only send what a dead agent left there
    #[arg(long)]
    drain: bool,
    /// Variables to add to the environment, as one JSON object; the file is removed when it has been read
    #[arg(long, value_name = "FILE")]
    environment: Option<PathBuf>,
    /// Lock file, made at the start. If it exists, only send the output of the agent that created it
    #[arg(long, value_name = "FILE")]
    once: Option<PathBuf>,
}

impl Agent {
    pub fn run(mut self, app: &mut App<'_>) -> Result<(), Failure> {
        if let Some(file) = self.environment.take() {
            return Err(self.with_environment(&file));
        }
        keep_to_itself();
        self.drain |= self.is_second()?;
        let cache = app.settings.directories.cache()?.to_owned();
        let report = app.output.report();
        app.block_on(async {
            let order = self.read_order(&*report).await?;
            if self.drain {
                return Ok(agent::drain(&order, &self.work, &*report).await?);
            }
            let seat = agent::Seat::find(&order, self.node, self.address, self.locks.clone());
            let seat = seat.map_err(|why| Failure::new(Exit::Usage, why))?;
            let is_shown = seat.leads() && agent::is_of_service(&order.job);
            let record = agent::run(&order, seat, &self.work, &cache, &*report).await?;
            let over = format!("attempt {} of {} is over: {}", record.attempt, order.job, record.message);
            // The machine's startup script goes by this code: it must not end what makes the next machine.
            if record.reason.is_followed() && order.last_attempt.is_some_and(|last| record.attempt < last) {
                return Err(Failure::new(Exit::Preempted, over));
            }
            // A service shows its users the end of its job by this code.
            let shown = match record.reason {
                ExitReason::Succeeded => Exit::Done,
                ExitReason::Failed => Exit::JobFailed,
                ExitReason::Deadline => Exit::Deadline,
                ExitReason::Cancelled => Exit::JobCancelled,
                ExitReason::Preempted | ExitReason::LostLease => Exit::Preempted,
            };
            if !is_shown || shown == Exit::Done {
                report.line(&over);
                return Ok(());
            }
            if order.nodes > 1 {
                tokio::time::sleep(FAREWELL).await;
            }
            Err(Failure::new(shown, over))
        })
    }

    /// Begins again in the same process with the variables of `file`; comes back only when that fails.
    fn with_environment(&self, file: &Path) -> Failure {
        let variables = match take_variables(file) {
            Ok(variables) => variables,
            Err(error) => return Failure::new(Exit::Failure, format!("cannot take {}: {error}", file.display())),
        };
        let mut again = Command::new("/proc/self/exe");
        again.arg0("ftctl").envs(variables).arg("agent").arg("--work").arg(&self.work);
        if self.drain {
            again.arg("--drain");
        }
        let attempt = self.attempt.map(|attempt| attempt.to_string().into());
        let text = |text: &Option<String>| text.as_ref().map(Into::into);
        let path = |path: &Option<PathBuf>| path.as_ref().map(Into::into);
        let given: [(&str, Option<OsString>); 9] = [
            ("--node", self.node.map(|node| node.to_string().into())),
            ("--address", self.address.map(|address| address.to_string().into())),
            ("--locks", path(&self.locks)),
            ("--order", path(&self.order)),
            ("--job", text(&self.job)),
            ("--attempt", attempt),
            ("--store", text(&self.store)),
            ("--asked", text(&self.asked)),
            ("--once", path(&self.once)),
        ];
        for (name, value) in given.into_iter().filter_map(|(name, value)| Some((name, value?))) {
            again.arg(name).arg(value);
        }
        Failure::new(Exit::Failure, format!("cannot start the agent with its environment: {}", again.exec()))
    }

    fn is_second(&self) -> Result<bool, Failure> {
        let Some(file) = &self.once else { return Ok(false) };
        match fs::OpenOptions::new().write(true).create_new(true).open(file) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(true),
            Err(error) => Err(Failure::new(Exit::Failure, format!("cannot make {}: {error}", file.display()))),
            Ok(_) => Ok(false),
        }
    }

    async fn read_order(&self, report: &dyn Report) -> Result<RunOrder, Failure> {
        let usage = |why: String| Failure::new(Exit::Usage, why);
        if let Some(file) = &self.order {
            let wrong = |why: String| usage(format!("cannot read the order {}: {why}", file.display()));
            return RunOrder::decode(&whole(file).map_err(|error| wrong(error.to_string()))?).map_err(wrong);
        }
        // clap asks for all three.
        let (job, attempt, store) = (self.job.as_deref().unwrap_or_default(), self.attempt.unwrap_or(0), self.store.as_deref());
        let job = JobId::parse(job).ok_or_else(|| usage(format!("`{job}` is not the id of a job")))?;
        if !(1..=MAX_ATTEMPTS).contains(&attempt) {
            return Err(usage(format!("a job has attempts 1 to {MAX_ATTEMPTS}, not {attempt}")));
        }
        let asked = self.asked.as_deref();
        let asked = asked.map(|text| Digest::parse(text).ok_or_else(|| usage(format!("`{text}` is no SHA-256"))));
        let asked = asked.transpose()?;
        Ok(agent::from_store(store.unwrap_or_default(), &AttemptId::new(&job, attempt), asked.as_ref(), report).await?)
    }
}

/// The trainer has the agent's user: it shall not read the sign-in to the store out of the agent's memory or environment. On the
/// backend `local` both are the user's own, who finds the agent by its environment.
fn keep_to_itself() {
    if std::env::var_os(MARK).is_none() {
        // A kernel that does not know this takes nothing else away; macOS has nothing like it, and no machine of a job runs it.
        #[cfg(target_os = "linux")]
        let _ = rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable);
    }
}

/// A file of this machine that somebody elsewhere wrote.
fn whole(file: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    fs::File::open(file)?.take(LARGEST + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > LARGEST {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, "it is larger than 1 MiB"));
    }
    Ok(bytes)
}

/// None where the file is gone: an agent before this one took it.
fn take_variables(file: &Path) -> io::Result<BTreeMap<String, String>> {
    let bytes = match whole(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
        bytes => bytes?,
    };
    fs::remove_file(file)?;
    Ok(serde_json::from_slice(&bytes)?)
}
