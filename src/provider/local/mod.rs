//! Provider `local`: this machine.
//!
//! A "machine" is a directory, `<state>/local/<machine name>/`, and the processes that carry its mark in their environment. The
//! agent is a session of its own, so it survives the terminal and the `ftctl` that started it. Nothing is remembered elsewhere: a
//! directory that exists is a machine, a lock in it that is held is an agent at work.
//!
//! | file in the directory | is |
//! |---|---|
//! | `machine.json` | which attempt, since when, until when |
//! | `order.json` | what the agent was told |
//! | `agent.lock` | held: the agent is alive, or about to be started (see [`machine`]) |
//! | `node-1.lock` … | held: the agent of that node of a rehearsal is alive; for the agent of node 0, which waits for it |
//! | `agent.started` | exists: the agent was started |
//! | `agent.log` | what the agent itself said |
//!
//! The job's working directory, `work/<job>/` below the state directory, outlives attempts: the next one ships what the last could
//! not.

mod machine;
mod process;
#[cfg(test)]
mod tests;

use std::{
    fs, io, iter,
    path::{Path, PathBuf},
    process::{Output, Stdio},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use jiff::Timestamp;
use rustix::fs::CWD;
use tokio::process::Command;

use self::machine::{Agent, Machine};
use super::{
    Account, AgentEnvironment, Build, Capabilities, Class, Console, Provider, ProviderError, Resource, Result, Session, Sighting,
    error::last_statement,
    whose::{Mark, Party, Said, namesake, unknown_store},
};
use crate::{
    image::{needs, trainer},
    job::{
        clock::Clock,
        finding::Finding,
        id::{AttemptId, JobId},
        order::{RunOrder, TrainerImage, program},
        plan::{Plan, Price},
        report::Report,
        units::Money,
    },
};

/// The time between the polite and the final signal to a preempted machine; as on GCE.
pub const PREEMPTION_NOTICE: Duration = Duration::from_secs(30);

/// A drain gives up by itself when the store cannot be reached; this ends one that hangs. A large checkpoint takes minutes.
const DRAIN_LIMIT: Duration = Duration::from_secs(30 * 60);

/// Where the ranks of a rehearsal's nodes meet.
const LOOPBACK: &str = "127.0.0.1";

/// The provider's knowledge of this machine.
#[derive(Clone)]
pub struct Settings {
    /// `$XDG_STATE_HOME/ftctl`; made when needed.
    pub state: PathBuf,
    pub party: Party,
    /// The program whose `agent` verb runs beside the trainer: ftctl itself.
    pub executable: PathBuf,
    /// The agent's whole environment.
    pub variables: AgentEnvironment,
    /// Time between SIGTERM and SIGKILL in [`Provider::preempt`].
    pub notice: Duration,
    pub clock: Arc<dyn Clock>,
    /// ftctl's own, with the trainers that it built.
    pub cache: PathBuf,
}

pub struct Local {
    settings: Settings,
}

impl Local {
    pub fn new(settings: Settings) -> Self {
        Self { settings }
    }

    fn base(&self) -> PathBuf {
        self.settings.state.join("local")
    }

    fn works(&self) -> PathBuf {
        self.settings.state.join("work")
    }

    fn work(&self, job: &JobId) -> PathBuf {
        self.works().join(job.as_str())
    }

    fn machine(&self, attempt: &AttemptId) -> Machine {
        Machine::new(&self.base(), attempt)
    }

    async fn mark(&self) -> Result<Mark<'_>> {
        self.settings.party.mark().await.map_err(unknown_store)
    }

    /// The attempt's machine, which need not be there; `None` when an equal job of another store has it.
    async fn reached(&self, attempt: &AttemptId) -> Result<Option<Machine>> {
        let (mark, machine) = (self.mark().await?, self.machine(attempt));
        Ok(is_reached(&machine, &mark).then_some(machine))
    }

    /// Every machine there is, in the order of attempts.
    fn machines(&self) -> Result<Vec<Machine>> {
        machine::all(&self.base()).map_err(|error| failed("list the machines in", &self.base(), &error))
    }

    /// Where the agent of a node keeps its files: each of a rehearsal's nodes by itself.
    fn work_of(&self, job: &JobId, node: usize) -> PathBuf {
        if node == 0 { self.work(job) } else { self.work(job).join(format!("node-{node}")) }
    }

    /// `ftctl agent` for a node of this machine's order, with nothing inherited but the environment that the settings give.
    /// It may need its store until the given time.
    async fn agent(&self, machine: &Machine, node: Option<usize>, until: Timestamp) -> Result<Command> {
        let mut command = Command::new(&self.settings.executable);
        command.arg("agent").arg("--order").arg(machine.order());
        command.arg("--work").arg(self.work_of(&machine.attempt.job, node.unwrap_or(0)));
        if let Some(node) = node {
            command.arg("--node").arg(node.to_string()).args(["--address", LOOPBACK]);
            command.arg("--locks").arg(machine.directory());
        }
        let variables = (self.settings.variables)(machine.attempt.job.clone(), until).await?;
        command.current_dir(machine.directory()).env_clear().envs(variables);
        // Its words go to a log, whatever form the user likes on the screen.
        command.env("FTCTL_OUTPUT", "table");
        Ok(command)
    }

    /// Starts an agent detached. Its standard input is its lock: empty to read, and held for as long as the agent lives. The first
    /// node's own process, in a session of its own, makes `agent.started`: no death of ftctl ends it from then on.
    fn spawn(&self, machine: &Machine, node: usize, mut command: Command, input: Stdio) -> io::Result<()> {
        fs::create_dir_all(self.work(&machine.attempt.job))?;
        let log = machine.log()?;
        command.stdin(input).stdout(log.try_clone()?).stderr(log).env(process::MARK, machine.mark()?);
        let begin = move || {
            rustix::process::setsid()?;
            if node == 0 {
                machine::note_start(CWD)?;
            }
            Ok(())
        };
        // SAFETY: between fork and exec only system calls are made, which take no lock and allocate nothing.
        unsafe { command.pre_exec(begin) };
        // Dropping the handle leaves the agent running; the runtime reaps it if it ends while ftctl is still here.
        command.spawn().map(drop)
    }

    /// Lets the newest agent send what it and earlier ones wrote but had not sent, from the disk that survived them.
    async fn drain(&self, machines: &[Machine]) -> Result<()> {
        let Some(machine) = machines.iter().rfind(|machine| machine.order().exists()) else { return Ok(()) };
        if !self.work(&machine.attempt.job).exists() {
            return Ok(());
        }
        let mut command =
            self.agent(machine, None, self.settings.clock.now()).await.map_err(|error| self.undrained(machine, &error.message))?;
        command.arg("--drain").stdin(Stdio::null()).kill_on_drop(true);
        match tokio::time::timeout(DRAIN_LIMIT, command.output()).await {
            Ok(Ok(output)) if output.status.success() => Ok(()),
            Ok(Ok(output)) => Err(self.undrained(machine, &said(&output))),
            Ok(Err(error)) => {
                Err(self.undrained(machine, &format!("cannot start {}: {error}", self.settings.executable.display())))
            }
            Err(_) => Err(self.undrained(machine, &format!("no answer for {} s", DRAIN_LIMIT.as_secs()))),
        }
    }

    fn undrained(&self, machine: &Machine, why: &str) -> ProviderError {
        let (name, directory) = (machine.attempt.machine_name(), self.work(&machine.attempt.job));
        let message = format!("nothing of {name} runs any more, but its last output could not be sent to the store: {why}");
        let fix = format!("run the same command again; to give the unsent bytes up, delete {} first", directory.display());
        ProviderError::new(Class::Network, message).fix(fix)
    }
}

#[async_trait]
impl Account for Local {
    async fn check(&self) -> Vec<Finding> {
        needs::examine(&self.settings.cache).await
    }

    async fn price(&self, _: &Plan) -> Result<Price> {
        Ok(Money::ZERO.into())
    }
}

#[async_trait]
impl Provider for Local {
    fn capabilities(&self) -> Capabilities {
        Capabilities { bills: false, signs: false, simulated: false, commands: true }
    }

    fn build<'p>(&self, _: &'p Plan) -> Option<Build<'p>> {
        Some(Build { what: "the trainer", reads: None })
    }

    async fn image(&self, _: &Plan, before: Option<&TrainerImage>, report: &dyn Report) -> Result<TrainerImage> {
        let cache = &self.settings.cache;
        match before {
            Some(TrainerImage::Program { digest }) if program(cache, digest).is_file() => {
                Ok(TrainerImage::Program { digest: digest.clone() })
            }
            _ => Ok(TrainerImage::Program { digest: trainer::ensure(cache, report).await? }),
        }
    }

    async fn provision(&self, attempt: &AttemptId, plan: &Plan, _: &TrainerImage) -> Result<Vec<String>> {
        let (mark, machine) = (self.mark().await?, self.machine(attempt));
        let made = machine.create(self.settings.clock.now(), plan.lifetime(), &mark.store);
        made.map_err(|error| failed("make", machine.directory(), &error))?;
        if is_reached(&machine, &mark) {
            return Ok(Vec::new());
        }
        let belongs = mark.belongs(Said { store: machine.store().as_deref(), ..Said::default() });
        Err(namesake(&format!("a machine {}", attempt.machine_name()), &belongs))
    }

    async fn launch(&self, order: &RunOrder) -> Result<()> {
        let attempt = AttemptId::new(&order.job, order.attempt);
        let gone = || ProviderError::new(Class::Network, format!("there is no machine {} any more", attempt.machine_name()));
        let machine = self.reached(&attempt).await?.ok_or_else(gone)?;
        let failed = |error: &io::Error| failed("start the agent in", machine.directory(), error);
        let (mut agents, until) = (Vec::new(), order.deadline.unwrap_or(self.settings.clock.now()));
        for node in (0..order.nodes).rev() {
            agents.push((node, self.agent(&machine, (order.nodes > 1).then_some(node), until).await?));
        }
        let Some(lock) = machine.claim().map_err(|error| failed(&error))? else { return Ok(()) };
        machine.write_order(order).map_err(|error| failed(&error))?;
        let others = (1..order.nodes).map(|node| machine.lock_of(node)).collect::<io::Result<Vec<_>>>();
        let locks = iter::once(lock).chain(others.map_err(|error| failed(&error))?);
        // The first node's goes last: without it the machine counts as dead, and all others end with it.
        agents.into_iter().zip(locks.rev()).try_for_each(|((node, command), lock)| {
            self.spawn(&machine, node, command, lock.into()).map_err(|error| failed(&error))
        })
    }

    async fn observe(&self, attempt: &AttemptId) -> Result<Sighting> {
        let Some(machine) = self.reached(attempt).await? else { return Ok(Sighting::Gone) };
        let failed = |error: io::Error| failed("look at", machine.directory(), &error);
        match machine.agent().map_err(failed)? {
            None => Ok(Sighting::Gone),
            Some(Agent::NotStarted) => Ok(Sighting::Alive { agent: false }),
            Some(Agent::Running) => Ok(Sighting::Alive { agent: true }),
            Some(Agent::Ended) => {
                // A trainer that outlived its agent would write beside the next attempt's: death is proven when none is left.
                power_off(&machine).await?;
                Ok(Sighting::Dead { why: machine.last_words() })
            }
        }
    }

    async fn console(&self, attempt: &AttemptId, start: u64) -> Result<Option<Console>> {
        Ok(self.reached(attempt).await?.and_then(|machine| machine.words()).map(|words| Console::of(&words, start)))
    }

    async fn preempt(&self, attempt: &AttemptId) -> Result<()> {
        let absent = || ProviderError::new(Class::Invalid, format!("there is no machine {} to preempt", attempt.machine_name()));
        let machine = self.reached(attempt).await?.filter(|machine| machine.directory().exists()).ok_or_else(absent)?;
        let (mark, notice) =
            (machine.mark().map_err(|error| failed("look at", machine.directory(), &error))?, self.settings.notice);
        blocking(&machine, move || process::terminate(&mark, notice)).await?;
        power_off(&machine).await
    }

    async fn destroy(&self, job: &JobId) -> Result<()> {
        let mark = self.mark().await?;
        let all = self.machines()?.into_iter().filter(|machine| machine.attempt.job == *job);
        let (machines, others): (Vec<_>, Vec<_>) = all.partition(|machine| is_reached(machine, &mark));
        if machines.is_empty() && !others.is_empty() {
            return Ok(());
        }
        for machine in &machines {
            power_off(machine).await?;
        }
        self.drain(&machines).await?;
        // The machines go last: while one is listed, a tear-down that was interrupted is known to be unfinished.
        let machines = machines.iter().map(|machine| (self.base(), machine.attempt.machine_name()));
        for (base, name) in [(self.works(), job.as_str().to_owned())].into_iter().chain(machines) {
            machine::remove_tree(&base, &name).map_err(|error| removing(&base.join(name), &error))?;
        }
        machine::remove_litter(&self.base(), job).map_err(|error| removing(&self.base(), &error))
    }

    async fn list(&self) -> Result<Vec<Resource>> {
        let mark = self.mark().await?;
        self.machines()?
            .iter()
            .map(|machine| machine.resource(&mark).map_err(|error| failed("look at", machine.directory(), &error)))
            .filter_map(Result::transpose)
            .collect()
    }

    async fn now(&self) -> Option<Timestamp> {
        Some(self.settings.clock.now())
    }

    /// In the attempt's directory, with the machine's mark, so that it ends with the machine.
    async fn session(&self, attempt: &AttemptId, command: &[String], _terminal: bool) -> Result<Session> {
        let still = || ProviderError::new(Class::Invalid, format!("{} does not run", attempt.machine_name()));
        let machine = self.reached(attempt).await?.ok_or_else(still)?;
        let failed = |error: io::Error| failed("look at", machine.directory(), &error);
        let (Some(Agent::Running), [program, arguments @ ..]) = (machine.agent().map_err(failed)?, command) else {
            return Err(still());
        };
        let attempts = self.work(&attempt.job).join(attempt.attempt.to_string());
        let place = if attempts.is_dir() { attempts } else { machine.directory().to_owned() };
        let mut session = std::process::Command::new(program);
        session.args(arguments).current_dir(place).env(process::MARK, machine.mark().map_err(failed)?);
        Ok(Session::Program(session))
    }
}

fn is_reached(machine: &Machine, mark: &Mark<'_>) -> bool {
    mark.reaches(Said { store: machine.store().as_deref(), ..Said::default() })
}

/// Ends everything that runs on the machine and makes sure that nothing is started on it later.
async fn power_off(machine: &Machine) -> Result<()> {
    let copy = machine.clone();
    blocking(machine, move || copy.power_off()).await
}

/// Signals and waiting for processes, off the thread that serves everything else.
async fn blocking(machine: &Machine, act: impl FnOnce() -> io::Result<()> + Send + 'static) -> Result<()> {
    let done = tokio::task::spawn_blocking(act).await.unwrap_or_else(|panic| Err(io::Error::other(panic)));
    done.map_err(|error| failed("stop the processes of", machine.directory(), &error))
}

/// A program's last complaint, or its exit status.
fn said(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr);
    last_statement(&text).map_or_else(|| format!("the agent ended with {}", output.status), str::to_owned)
}

fn removing(path: &Path, error: &io::Error) -> ProviderError {
    failed("remove", path, error)
}

fn failed(action: &str, path: &Path, error: &io::Error) -> ProviderError {
    use io::ErrorKind::{NotFound, PermissionDenied, ReadOnlyFilesystem, StorageFull};
    let message = format!("cannot {action} {}: {error}", path.display());
    match error.kind() {
        PermissionDenied | ReadOnlyFilesystem => ProviderError::new(Class::Denied, message)
            .fix("make the state directory writable, or name another one in XDG_STATE_HOME"),
        StorageFull => {
            ProviderError::new(Class::Internal, message).fix("free some space on that disk and run the same command again")
        }
        // The machine was destroyed meanwhile: looking again tells.
        NotFound => ProviderError::new(Class::Network, message),
        _ => ProviderError::new(Class::Internal, message),
    }
}
