//! Provider `fake`: a scripted cloud on a virtual clock, for rehearsals at no cost. Shortages, preemptions, lost answers and a
//! client that is killed in the middle of a call come when `script.json` says so, and hours pass as fast as ftctl asks for them.
//!
//! | file in `<state>/fake/` | is |
//! |---|---|
//! | `script.json` | what shall happen, written by the user; absent: nothing special |
//! | `cloud.json` | what is true in the cloud; survives its clients |
//! | `calls.jsonl` | every call of every client, to this cloud and to the store beside it |
//! | `cloud.lock` | held by the client whose call is being answered |
//!
//! Virtual time passes when a client sleeps on [`Fake::clock`] or meets a slow answer, and at no other time.
//!
//! The fake plays the agents, too: it writes to the store what they would. Hence it imports the store, which no real provider does.

mod agent;
mod calls;
mod cloud;
mod script;
#[cfg(test)]
mod tests;

use std::{
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use jiff::Timestamp;

pub use self::{
    calls::{CallLine, Calls, CrashingStore},
    cloud::{CLOUD_SCHEMA, Cloud, Effect, EffectKind},
    script::{Call, CrashAt, Fault, FaultKind, OutOfSight, Preemption, Queue, SCRIPT_SCHEMA, Script, When, Work},
};
use super::{
    Account, Capabilities, Class, Provider, ProviderError, Resource, Result, Sighting,
    whose::{Mark, Party, unknown_store},
};
use crate::{
    job::{
        clock::{Clock, after},
        id::{AttemptId, JobId, path},
        order::{CancelRequest, RunOrder, TrainerImage},
        plan::{Plan, Price},
        report::Report,
    },
    store::{Store, StoreError, checkpoint, find_json},
};

pub struct Fake {
    directory: PathBuf,
    script: Script,
    /// Its store as the machines reach it: their writes are no calls of ours.
    party: Party,
    calls: Arc<Calls>,
    /// The clock when it was last looked at.
    seen: Mutex<Timestamp>,
    /// Sleeps since this client's last call.
    idle: AtomicU32,
}

impl Fake {
    /// Opens the cloud whose files are in `directory` (made when needed) for machines that reach the party's store. Fails as
    /// [`Class::Invalid`] when the script or the cloud's own file cannot be read.
    pub fn open(directory: &Path, party: Party) -> Result<Self> {
        fs::create_dir_all(directory).map_err(|error| failed("make", directory, &error))?;
        let script: Script = read_json(&directory.join("script.json"))?.unwrap_or_default();
        check_schema(&directory.join("script.json"), &script.schema, SCRIPT_SCHEMA)?;
        let log = directory.join("calls.jsonl");
        let calls = Calls::open(&log, script.crash_at).map_err(|error| failed("open", &log, &error))?;
        let (directory, seen) = (directory.to_owned(), Mutex::new(script.start));
        let fake = Self { directory, script, party, calls: Arc::new(calls), seen, idle: AtomicU32::new(0) };
        fake.load()?;
        Ok(fake)
    }

    /// The same store for a client of this cloud, with its calls counted.
    pub fn client_store(&self) -> Arc<dyn Store> {
        Arc::new(CrashingStore::new(self.party.store.clone(), self.calls.clone()))
    }

    /// The virtual clock. Sleeping on it costs no time.
    pub fn clock(self: &Arc<Self>) -> Arc<dyn Clock> {
        Arc::new(VirtualClock(self.clone()))
    }

    /// The cloud's true state now.
    pub fn load(&self) -> Result<Cloud> {
        let path = self.directory.join("cloud.json");
        let cloud: Cloud = read_json(&path)?.unwrap_or_else(|| Cloud::new(&self.script));
        check_schema(&path, &cloud.schema, CLOUD_SCHEMA)?;
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner) = cloud.now;
        Ok(cloud)
    }

    /// Replaced in one step: a client that is killed here has changed all or nothing.
    fn save(&self, cloud: &Cloud, before: &Cloud) -> Result<()> {
        if cloud == before {
            return Ok(());
        }
        let path = self.directory.join("cloud.json");
        let write = || {
            let mut file = tempfile::NamedTempFile::new_in(&self.directory)?;
            file.write_all(&serde_json::to_vec_pretty(cloud)?)?;
            file.persist(&path).map(drop).map_err(|error| error.error)
        };
        write().map_err(|error| failed("write", &path, &error))?;
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner) = cloud.now;
        Ok(())
    }

    /// One client at a time; the others wait off this thread, because the one may be on it.
    async fn lock(&self) -> Result<File> {
        let path = self.directory.join("cloud.lock");
        let wait = {
            let path = path.clone();
            move || File::create(path).and_then(|file| file.lock().map(|()| file))
        };
        let locked = tokio::task::spawn_blocking(wait).await.unwrap_or_else(|panic| Err(io::Error::other(panic)));
        locked.map_err(|error| failed("lock", &path, &error))
    }

    /// Lets time pass and the agents tell what they did meanwhile.
    async fn pass(&self, cloud: &mut Cloud, duration: Duration) -> Result<()> {
        let (before, mut answers) = (cloud.clone(), Answers::default());
        for job in cloud.listeners() {
            let wish: Result<Option<(CancelRequest, _)>, StoreError> =
                find_json(self.party.store.as_ref(), &path::cancel(&job)).await;
            if answers.take(wish).flatten().is_some() {
                cloud.cancel(&job);
            }
        }
        answers.some_came()?;
        cloud.advance(&self.script, duration);
        self.save(cloud, &before)?;
        self.tell(cloud).await
    }

    /// Brings the store up to the present. Killed in the middle, the next client does it again, which changes nothing.
    async fn tell(&self, cloud: &mut Cloud) -> Result<()> {
        let (before, mut answers) = (cloud.clone(), Answers::default());
        for machine in cloud.machines.values_mut() {
            let Some(agent) = machine.agent.as_ref().filter(|agent| agent.started <= before.now) else { continue };
            let told = agent.progress_at(machine.until(before.now), machine.end.is_some(), &self.script.job);
            if agent.told == Some(told) {
                answers.take(Ok(()));
                continue;
            }
            let performance = agent::perform(machine, agent, &self.script.job, before.now);
            let written = agent::tell(self.party.store.as_ref(), agent, &performance).await;
            if let (Some(()), Some(agent)) = (answers.take(written), &mut machine.agent) {
                agent.told = Some(told);
            }
        }
        self.save(cloud, &before)?;
        answers.some_came()
    }

    /// One call to the cloud, with whatever the script holds for it.
    async fn call<T>(
        &self,
        call: Call,
        target: &str,
        attempt: Option<&AttemptId>,
        act: impl FnOnce(&mut Cloud) -> Result<T>,
    ) -> Result<T> {
        self.idle.store(0, Ordering::Relaxed);
        self.calls.make(call.name(), target, self.answer(call, attempt, act)).await
    }

    async fn answer<T>(&self, call: Call, attempt: Option<&AttemptId>, act: impl FnOnce(&mut Cloud) -> Result<T>) -> Result<T> {
        let _lock = self.lock().await?;
        let mut cloud = self.load()?;
        let before = cloud.clone();
        let fault = cloud.meet_fault(&self.script, call, attempt);
        self.save(&cloud, &before)?;
        self.pass(&mut cloud, fault.and_then(|fault| fault.delay).map_or(Duration::ZERO, |delay| delay.0)).await?;
        let error = fault.and_then(Fault::error);
        if let Some(error) = error.clone().filter(|_| fault.is_some_and(|fault| fault.kind != FaultKind::LostAnswer)) {
            return Err(error);
        }
        let before = cloud.clone();
        let answer = act(&mut cloud);
        self.save(&cloud, &before)?;
        self.tell(&mut cloud).await?;
        error.map_or(answer, Err)
    }

    async fn mark(&self) -> Result<Mark<'_>> {
        self.party.mark().await.map_err(unknown_store)
    }

    async fn sleep(&self, duration: Duration) -> Result<()> {
        let _lock = self.lock().await?;
        let mut cloud = self.load()?;
        self.pass(&mut cloud, duration).await
    }
}

#[async_trait]
impl Account for Fake {
    async fn price(&self, _: &Plan) -> Result<Price> {
        self.call(Call::Price, "", None, |_| Ok(self.script.price_per_hour.into())).await
    }
}

#[async_trait]
impl Provider for Fake {
    fn capabilities(&self) -> Capabilities {
        Capabilities { bills: true, signs: false, simulated: true, commands: false }
    }

    async fn image(&self, _: &Plan, _: Option<&TrainerImage>, _: &dyn Report) -> Result<TrainerImage> {
        Ok(TrainerImage::None)
    }

    async fn provision(&self, attempt: &AttemptId, plan: &Plan, _: &TrainerImage) -> Result<Vec<String>> {
        let mark = self.mark().await?;
        let act = |cloud: &mut Cloud| cloud.provision(attempt, plan.lifetime(), &self.script, &mark);
        self.call(Call::Provision, &attempt.machine_name(), Some(attempt), act).await?;
        Ok(Vec::new())
    }

    async fn launch(&self, order: &RunOrder) -> Result<()> {
        let attempt = AttemptId::new(&order.job, order.attempt);
        let latest = checkpoint::latest(self.party.store.as_ref(), &order.job).await.map_err(|error| store_failed(&error))?;
        let first_step = latest.map_or(0, |manifest| manifest.step);
        let mark = self.mark().await?;
        self.call(Call::Launch, &attempt.machine_name(), Some(&attempt), |cloud| cloud.launch(order, first_step, &mark)).await
    }

    async fn observe(&self, attempt: &AttemptId) -> Result<Sighting> {
        let mark = self.mark().await?;
        let act = |cloud: &mut Cloud| cloud.observe(attempt, &self.script, &mark);
        self.call(Call::Observe, &attempt.machine_name(), Some(attempt), act).await
    }

    async fn ended(&self, attempt: &AttemptId) -> Result<Option<Timestamp>> {
        let mark = self.mark().await?;
        let act = |cloud: &mut Cloud| Ok(cloud.ended(attempt, &mark));
        self.call(Call::Observe, &attempt.machine_name(), Some(attempt), act).await
    }

    async fn preempt(&self, attempt: &AttemptId) -> Result<()> {
        let mark = self.mark().await?;
        self.call(Call::Preempt, &attempt.machine_name(), Some(attempt), |cloud| cloud.preempt(attempt, &mark)).await
    }

    async fn destroy(&self, job: &JobId) -> Result<()> {
        let mark = self.mark().await?;
        let act = |cloud: &mut Cloud| {
            cloud.destroy(job, &mark);
            Ok(())
        };
        self.call(Call::Destroy, job.as_str(), None, act).await
    }

    async fn list(&self) -> Result<Vec<Resource>> {
        let mark = self.mark().await?;
        self.call(Call::List, "", None, |cloud| Ok(cloud.list(&mark))).await
    }

    async fn now(&self) -> Option<Timestamp> {
        Some(*self.seen.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Whether the store answers the machines. One that answers some is there: the trouble of a single machine, as a link in the place
/// of its job's folder, is no trouble for the others.
#[derive(Default)]
struct Answers {
    came: bool,
    error: Option<StoreError>,
}

impl Answers {
    fn take<T>(&mut self, answer: Result<T, StoreError>) -> Option<T> {
        let answer = answer.map_err(|error| self.error = Some(error)).ok();
        self.came |= answer.is_some();
        answer
    }

    fn some_came(self) -> Result<()> {
        self.error.filter(|_| !self.came).map_or(Ok(()), |error| Err(store_failed(&error)))
    }
}

struct VirtualClock(Arc<Fake>);

/// Sleeps without a call after which a client waits for somebody else: for another ftctl, or for a person. Both act in real time,
/// and hours that pass as fast as they can would take a whole processor meanwhile.
const IDLE: u32 = 200;
/// The pause between two tries of a store that is away, and between looks at what others do.
const PAUSE: Duration = Duration::from_millis(100);

#[async_trait]
impl Clock for VirtualClock {
    fn now(&self) -> Timestamp {
        *self.0.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn sleep(&self, duration: Duration) {
        if self.0.idle.fetch_add(1, Ordering::Relaxed) >= IDLE {
            tokio::time::sleep(duration.min(PAUSE)).await;
        }
        if self.0.sleep(duration).await.is_err() {
            // The next call to the cloud meets the same error and reports it; until then time must not stand still. The store is a
            // real one: it comes back in real time, and asking it all the while would take a whole processor.
            tokio::time::sleep(duration.min(PAUSE)).await;
            let mut seen = self.0.seen.lock().unwrap_or_else(PoisonError::into_inner);
            *seen = after(*seen, duration);
        }
    }
}

/// `None` when there is no such file.
fn read_json<T: serde::de::DeserializeOwned>(path: &Path) -> Result<Option<T>> {
    let bytes = match fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        bytes => bytes.map_err(|error| failed("read", path, &error))?,
    };
    let value = serde_json::from_slice(&bytes);
    value.map(Some).map_err(|error| ProviderError::new(Class::Invalid, format!("{}: {error}", path.display())))
}

fn check_schema(path: &Path, found: &str, expected: &str) -> Result<()> {
    if found == expected {
        return Ok(());
    }
    let message = format!("{} is of the format `{found}`, this version reads `{expected}`", path.display());
    Err(ProviderError::new(Class::Invalid, message))
}

fn store_failed(error: &StoreError) -> ProviderError {
    ProviderError::new(Class::Network, format!("the fake machine cannot write to its store: {error}"))
}

fn failed(action: &str, path: &Path, error: &io::Error) -> ProviderError {
    ProviderError::new(Class::Internal, format!("cannot {action} {}: {error}", path.display()))
}
