//! The agent: runs beside the trainer, on every machine, for every provider. It knows the store and one child process.
//!
//! It takes the job's lease for its attempt, ships what earlier attempts left on this machine, stages data and the newest
//! checkpoint in, starts the trainer, ships log, progress and checkpoints out while it runs, passes requests to stop on, and writes
//! the exit record. Everything that is not in the store yet lies in the attempt's [`folder`](folder::Folder), so a killed agent
//! loses nothing that the disk survives: the next attempt or [`drain`] sends it.
//!
//! A store that cannot be reached stops nothing that has begun: the trainer goes on and the agent tries again. Only a lost lease
//! ends the attempt, and the job's deadline, some time after which the agent itself ends whatever it is doing.

mod azureml;
mod folder;
mod gpus;
mod memory;
mod nodes;
mod notice;
mod order;
mod ship;
mod stop;
mod succession;
#[cfg(test)]
mod tests;
mod tracking;
mod trainer;

#[doc(hidden)]
pub use self::azureml::notices::preemptions;

use std::{
    convert::Infallible,
    future::Future,
    io,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
    time::Duration,
};

use ft_trainer::settings::DeviceChoice;
use jiff::Timestamp;
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::watch,
    time::{Instant, sleep},
};

pub use self::{azureml::is_of_service, nodes::Seat, order::from_store};
use self::{
    azureml::notices::Source,
    folder::{Folder, Identity},
    gpus::Gpus,
    nodes::Roll,
    ship::{CheckpointShipper, GrowingFile, Lines, Over, local_failure, ship_artifacts, ship_lines, ship_ranges},
    stop::StopRequest,
    tracking::Tracker,
    trainer::{End, Inputs, meaning, why},
};
use crate::{
    job::{
        clock::between,
        digest::Digest,
        id::path,
        meeting::Rendezvous,
        order::{CancelRequest, EXIT_SCHEMA, ExitReason, ExitRecord, HEARTBEAT_SCHEMA, Heartbeat, Phase, RunOrder},
        report::Report,
    },
    store::{
        self, Condition, Result, Store, StoreError, checkpoint, dataset, find_json,
        lease::{Acquired, Contender, Holder, Lease, Witness},
        write_json,
    },
};

/// How often new bytes and new checkpoints are looked for: a line is in the store well within a second.
const SHIP_EVERY: Duration = Duration::from_millis(250);
/// How often requests to cancel, and the lease, are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Trouble of this length is reported with the heartbeat; shorter trouble is not.
const LASTS: Duration = Duration::from_secs(5);
/// Looks per heartbeat.
const LOOKS_PER_BEAT: u64 = 2;
/// A lease of the *same* attempt can be taken at the latest when its holder has not renewed it for this long; other attempts are
/// fenced by number.
const LEASE_TTL: Duration = Duration::from_secs(60);
/// Wait before something is tried again: doubled from the first to the second.
const BACKOFF: [Duration; 2] = [Duration::from_millis(250), Duration::from_secs(10)];
/// How long after its deadline, and the grace, an agent may still be sending. Whatever hangs then, the machine is free.
const FAREWELL: Duration = Duration::from_secs(30 * 60);
/// A machine on which the store was never reached can do nothing, and may cost money. An attempt that was begun waits for ever.
const FIRST_CONTACT: Duration = Duration::from_secs(5 * 60);
/// How long a drain keeps trying before it says that it cannot.
const DRAIN_PATIENCE: Duration = Duration::from_secs(30);

/// Runs one attempt to its end and returns its exit record, which is then in the store. `work` is the job's directory on this
/// machine (attempts have their folders in it), `cache` is ftctl's, `seat` says which of the attempt's machines this is. SIGTERM is
/// a preemption notice that ends the attempt; one that may be withdrawn only saves ([`notice`]). Fails when the attempt is already
/// running elsewhere, and when its own disk or the store's answers make no sense.
pub async fn run(order: &RunOrder, seat: Seat, work: &Path, cache: &Path, report: &dyn Report) -> Result<ExitRecord> {
    let mut terminations = signal(SignalKind::terminate()).map_err(|source| StoreError::Io {
        action: "wait for signals of",
        path: order.job.to_string(),
        source,
    })?;
    let notice = async {
        let _ = terminations.recv().await;
    };
    let store = store::open(&order.store)?;
    let order = &succession::current(&store, order, work, report).await?;
    let mut agent = Agent::new(store, order, work, report, Duration::MAX)?;
    let leads = seat.leads();
    agent.seat = seat;
    agent.notices = Source::of_machine(&variable).unwrap_or_else(|why| {
        report.warn(&why);
        None
    });
    let attend = async { if leads { agent.run(cache, notice).await } else { agent.follow(cache, notice).await } };
    match order.time_to_work(agent.started) {
        Some(time) => {
            let bound = time + agent.grace() + FAREWELL;
            tokio::time::timeout(bound, attend).await.unwrap_or_else(|_| Err(overdue(order)))
        }
        None => attend.await,
    }
}

/// Empty ones count as absent.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

fn unreachable(order: &RunOrder) -> StoreError {
    let why = format!("{} could not be used within {} minutes", order.store, FIRST_CONTACT.as_secs() / 60);
    StoreError::Io { action: "begin", path: order.job.to_string(), source: io::Error::new(io::ErrorKind::TimedOut, why) }
}

fn overdue(order: &RunOrder) -> StoreError {
    let source = io::Error::new(io::ErrorKind::TimedOut, format!("the deadline was {} minutes ago", FAREWELL.as_secs() / 60));
    StoreError::Io { action: "send the last of", path: order.job.to_string(), source }
}

/// Ships what a dead agent left in `work`, for this attempt and those before it. Trains nothing and writes no exit record.
pub async fn drain(order: &RunOrder, work: &Path, report: &dyn Report) -> Result<()> {
    Agent::new(store::open(&order.store)?, order, work, report, DRAIN_PATIENCE)?.drain().await
}

struct Agent<'a> {
    store: Arc<dyn Store>,
    order: &'a RunOrder,
    seat: Seat,
    /// Among the agents of the attempt's nodes.
    name: String,
    /// The first agent's call to the others.
    call: watch::Sender<Option<Rendezvous>>,
    work: PathBuf,
    folder: Folder,
    report: &'a dyn Report,
    /// How long a store that cannot be reached is tried before giving up.
    patience: Duration,
    stop: StopRequest,
    phase: watch::Sender<Phase>,
    trouble: watch::Sender<Option<String>>,
    /// The cloud's notice, in words, while it stands.
    notice: watch::Sender<Option<String>>,
    gpus: Gpus,
    /// Where notices come from, if from anywhere but SIGTERM.
    notices: Option<Source>,
    started: Timestamp,
    /// When an earlier agent of the attempt began, if there was one.
    earlier: OnceLock<Timestamp>,
    /// `None` where another agent of the attempt lives on this machine, or where its disk is out of order.
    identity: Option<Identity>,
}

impl<'a> Agent<'a> {
    fn new(store: Arc<dyn Store>, order: &'a RunOrder, work: &Path, report: &'a dyn Report, patience: Duration) -> Result<Self> {
        let absolute = std::path::absolute(work);
        let work = absolute.map_err(|source| StoreError::Io { action: "use", path: work.display().to_string(), source })?;
        let folder = Folder::new(&work, order.attempt);
        let phase = watch::Sender::new(Phase::Staging);
        let identity = folder.identity().ok().flatten();
        Ok(Self {
            store,
            order,
            seat: Seat::default(),
            name: Holder::this_process(order.attempt).nonce,
            call: watch::Sender::new(None),
            work,
            folder,
            report,
            patience,
            stop: StopRequest::new(),
            phase,
            trouble: watch::Sender::new(None),
            notice: watch::Sender::new(None),
            gpus: Gpus::new(),
            notices: None,
            started: Timestamp::now(),
            earlier: OnceLock::new(),
            identity,
        })
    }

    /// How the attempt ended, if it has.
    async fn first_look(&self) -> Result<Option<ExitRecord>> {
        let exit = path::exit(&self.order.job, self.order.attempt);
        let look = self.persist("look at the store", is_io, async || find_json(&*self.store, &exit).await);
        let looked = tokio::time::timeout(FIRST_CONTACT, look).await.unwrap_or_else(|_| Err(unreachable(self.order)))?;
        Ok(looked.map(|(record, _)| record))
    }

    async fn run(&self, cache: &Path, notice: impl Future<Output = ()>) -> Result<ExitRecord> {
        if let Some(record) = self.first_look().await? {
            return Ok(record);
        }
        let lease = match self.take_lease().await? {
            Acquired::Held(lease) => lease,
            Acquired::HeldBy(holder) if holder.attempt > self.order.attempt => return self.sign(lost_lease()).await,
            Acquired::HeldBy(_) => return Err(StoreError::Conflict { path: path::attempt_lease(&self.order.job) }),
        };
        let witness = lease.witness();
        let guards = async {
            tokio::join!(
                self.pulse(&witness),
                self.deadline(),
                self.preemption(notice),
                self.heed(),
                self.keep_calling(),
                self.watch_gpus()
            )
        };
        tokio::select! {
            record = self.live(lease, cache) => record,
            (never, ..) = guards => match never {},
        }
    }

    async fn live(&self, mut lease: Lease, cache: &Path) -> Result<ExitRecord> {
        let prepared = tokio::select! {
            prepared = self.prepare(Some(&mut lease), cache) => prepared,
            stop = self.stop.asked() => Err(End::new(stop.reason, format!("{} before the training began", why(stop.reason)))),
        };
        let mut tracker = Tracker::of(self, &variable);
        let mut end = match prepared {
            Ok((inputs, step)) => self.train(&mut lease, inputs, step, tracker.as_mut()).await,
            Err(end) => end,
        };
        self.phase.send_replace(Phase::Shipping);
        if end.reason != ExitReason::LostLease {
            let shipped = self.persist("send the results", is_io, async || {
                ship_artifacts(&self.store, &self.order.job, &self.folder, &mut lease).await
            });
            let shipped = shipped.await;
            end = end.needing(shipped.as_ref().map(drop).map_err(|error| format!("the results are not in the store: {error}")));
            self.unless_lost(shipped);
        }
        if let Some(tracker) = tracker {
            tracker.finish(end.reason).await;
        }
        if end.reason == ExitReason::Succeeded {
            self.leave_model(&variable).await;
        }
        self.sign(if self.stop.get().is_some_and(|stop| stop.reason == ExitReason::LostLease) { lost_lease() } else { end }).await
    }

    /// An agent that comes back on its machine is the holder that it was. Any other holder of the same attempt is outlasted when it
    /// has vanished, which is when neither its lease nor its heartbeat changes until the lease lapses; one that lives keeps the
    /// lease.
    async fn take_lease(&self) -> Result<Acquired> {
        let mut holder = Holder::this_process(self.order.attempt);
        if let Some(identity) = &self.identity {
            holder.nonce.clone_from(&identity.name);
        }
        let lease = path::attempt_lease(&self.order.job);
        let mut contender = Contender::new(Arc::clone(&self.store), lease, holder, LEASE_TTL);
        let (begun, heartbeat) = (Instant::now(), self.heartbeat().await?);
        if let Some(earlier) = heartbeat.as_ref().and_then(|heartbeat| heartbeat.started) {
            self.earlier.get_or_init(|| earlier);
        }
        loop {
            match self.persist("take the job's lease", is_io, async || contender.acquire().await).await? {
                Acquired::HeldBy(other)
                    if other.attempt == self.order.attempt
                        && begun.elapsed() < self.patience
                        && self.heartbeat().await? == heartbeat => {}
                acquired => return Ok(acquired),
            }
            sleep(LOOK_EVERY.min(contender.lapses_in())).await;
        }
    }

    async fn heartbeat(&self) -> Result<Option<Heartbeat>> {
        let path = path::heartbeat(&self.order.job, self.order.attempt);
        let found = self.persist("look at the store", is_io, async || find_json(&*self.store, &path).await).await?;
        Ok(found.map(|(heartbeat, _)| heartbeat))
    }

    /// Everything before the training: earlier attempts' bytes out, data in, and what the first rank goes on from, where this
    /// machine has that and so the lease. Returns the inputs and the step of the checkpoint.
    async fn prepare(&self, mut lease: Option<&mut Lease>, cache: &Path) -> Result<(Inputs, u64), End> {
        let failed = |error: StoreError| match error {
            StoreError::Conflict { .. } => lost_lease(),
            error => End::new(ExitReason::Failed, error.to_string()),
        };
        let earlier = Folder::left_behind(&self.work, self.order.attempt.saturating_sub(1))
            .map_err(|error| failed(local_failure(&self.folder, error)))?;
        for folder in earlier {
            self.ship_folder(&folder, lease.as_deref_mut()).await.map_err(failed)?;
            // Everything in it is in the store; the disk is needed for what comes.
            folder.remove().map_err(|error| failed(local_failure(&folder, error)))?;
        }
        self.folder.create().map_err(|error| failed(local_failure(&self.folder, error)))?;
        self.restore_lines().await;
        let log = self
            .persist("begin", is_passing, async || self.folder.open_log().map_err(|error| local_failure(&self.folder, error)))
            .await
            .map_err(failed)?;
        let data = self.stage_dataset(&self.order.dataset, cache).await.map_err(failed)?;
        let initial_weights = match &self.order.initial_weights {
            Some(digest) if lease.is_some() => Some(self.stage_dataset(digest, cache).await.map_err(failed)?),
            // The first rank gives them to the others.
            digest => digest.as_ref().map(|digest| dataset_in(cache, digest)),
        };
        let step = if lease.is_some() { self.stage_checkpoint().await.map_err(failed)? } else { 0 };
        let cache = std::path::absolute(cache).unwrap_or_else(|_| cache.to_owned());
        Ok((Inputs { log, data, initial_weights, cache }, step))
    }

    /// Datasets are shared by all jobs of this machine: the directory is named by the content.
    async fn stage_dataset(&self, digest: &Digest, cache: &Path) -> Result<PathBuf> {
        let target = dataset_in(cache, digest);
        self.persist("fetch the data", is_passing, async || dataset::download(&self.store, digest, &target, self.report).await)
            .await?;
        Ok(target)
    }

    /// Puts the newest checkpoint where the trainer resumes from; 0 when there is none.
    async fn stage_checkpoint(&self) -> Result<u64> {
        self.persist("fetch the newest checkpoint", is_passing, async || {
            let Some(newest) = checkpoint::latest(&*self.store, &self.order.job).await? else { return Ok(0) };
            let target = self.folder.checkpoint(newest.step);
            checkpoint::fetch(&self.store, &self.order.job, newest.step, &target, self.report).await?;
            Ok(newest.step)
        })
        .await
    }

    async fn train(&self, lease: &mut Lease, inputs: Inputs, staged: u64, tracker: Option<&mut Tracker<'_>>) -> End {
        self.phase.send_replace(Phase::Training);
        let over = watch::Sender::new(false);
        let training = async {
            let end = self.train_with_what_fits(&inputs).await.unwrap_or_else(|end| end);
            self.phase.send_replace(Phase::Shipping);
            over.send_replace(true);
            end
        };
        let lines = self.lines();
        let shipping = async {
            tokio::join!(
                training,
                self.keep_shipping_lines(&lines, over.subscribe()),
                self.keep_shipping_checkpoints(lease, staged, &lines, over.subscribe())
            )
        };
        let tracking = async {
            match tracker {
                Some(tracker) => tracker.keep_sending().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            (end, (), sent) = shipping => end.needing(sent),
            never = tracking => match never {},
        }
    }

    /// One trainer, or as long as they run out of memory, one after another with fewer sequences at a time.
    async fn train_with_what_fits(&self, inputs: &Inputs) -> Result<End, End> {
        let (mut roll, mut limit, mut generation) = (Roll::of(self.order.nodes), None, 0);
        loop {
            generation += 1;
            let before = memory::Before::of(&self.folder, self.order.ranks(self.seat.node()));
            let meeting = self.convene(&mut roll, generation, limit).await?;
            let ended = self.lead(&mut roll, inputs, meeting, &before).await?;
            if self.stop.get().is_some() || !ended.out_of_memory {
                return Ok(meaning(&ended, self.stop.get(), self.order));
            }
            limit = Some(before.fewer(&ended)?);
        }
    }

    fn lines(&self) -> Lines {
        Lines::new(GrowingFile::of(self.order, self.seat.node(), &self.folder))
    }

    /// Brings those of an earlier life of this attempt, on a machine that is gone.
    async fn restore_lines(&self) {
        for file in GrowingFile::of(self.order, self.seat.node(), &self.folder) {
            let restored = self.persist("fetch the log", is_io, async || file.restore(&self.store).await);
            if let Err(error) = restored.await {
                self.report.warn(&error.to_string());
            }
        }
    }

    /// Ends with the last byte.
    async fn keep_shipping_lines(&self, lines: &Lines, mut over: Over) {
        loop {
            let last_round = *over.borrow_and_update();
            let shipped = self.persist("send the log", is_io, async || ship_lines(lines, &*self.store).await);
            if let Err(error) = shipped.await {
                return self.report.warn(&format!("{error}; the rest of it stays on this machine"));
            }
            if last_round {
                return;
            }
            pause(&mut over).await;
        }
    }

    /// Sends what this node has of checkpoints, for as long as its agent is there.
    async fn keep_shipping_ranges(&self) -> Infallible {
        loop {
            let send = async || ship_ranges(&self.store, self.order, self.seat.node(), &self.folder).await;
            if let Err(error) = self.persist("send a part of a checkpoint", is_io, send).await {
                self.report.warn(&format!("{error}; node 0 sends it"));
                let _ = self.folder.forget_ranges();
            }
            sleep(SHIP_EVERY).await;
        }
    }

    /// Ends with the last checkpoint, or with the lease. An error says why the last is not in the store.
    async fn keep_shipping_checkpoints(
        &self,
        lease: &mut Lease,
        staged: u64,
        lines: &Lines,
        mut over: Over,
    ) -> std::result::Result<(), String> {
        let mut shipper = self.checkpoints_of(&self.folder, staged);
        let mut told = None;
        loop {
            let last_round = *over.borrow_and_update();
            let committed = self.persist("send a checkpoint", is_io, async || shipper.ship(lease, lines).await).await;
            let why = committed.as_ref().err().map(ToString::to_string);
            // The next one may fare better, so each is tried.
            if why != told && !self.unless_lost(committed) {
                return Ok(());
            }
            if last_round {
                let unsent = shipper.unsent().unwrap_or_default();
                let because = why.unwrap_or_else(|| "it is not complete".to_owned());
                return unsent.map_or(Ok(()), |step| Err(format!("the checkpoint of step {step} is not in the store: {because}")));
            }
            told = why;
            pause(&mut over).await;
        }
    }

    fn checkpoints_of<'f>(&'f self, folder: &'f Folder, after: u64) -> CheckpointShipper<'f> {
        CheckpointShipper::new(&self.store, self.order, folder, after)
    }

    /// Whether the attempt may go on writing. A conflict means that another attempt has taken the job over: the trainer must end.
    fn unless_lost(&self, result: Result<()>) -> bool {
        match result {
            Ok(()) => {}
            Err(StoreError::Conflict { .. }) => {
                self.stop.ask(ExitReason::LostLease, Duration::ZERO);
                return false;
            }
            Err(error) => self.report.warn(&error.to_string()),
        }
        true
    }

    /// All of a folder, as soon as all writers are gone. Without the lease its checkpoints stay: its holder has newer ones.
    async fn ship_folder(&self, folder: &Folder, lease: Option<&mut Lease>) -> Result<()> {
        self.persist("send what was left", is_passing, async || folder.at_rest().map_err(|error| local_failure(folder, error)))
            .await?;
        for mut file in GrowingFile::of(self.order, self.seat.node(), folder) {
            self.persist("send the log", is_io, async || file.ship(&*self.store).await).await?;
        }
        let Some(lease) = lease else { return Ok(()) };
        let newest =
            self.persist("look at the store", is_io, async || checkpoint::latest(&*self.store, &self.order.job).await).await?;
        let mut shipper = self.checkpoints_of(folder, newest.map_or(0, |newest| newest.step));
        let lines = Lines::default();
        self.persist("send a checkpoint", is_io, async || shipper.ship(lease, &lines).await).await
    }

    async fn drain(&self) -> Result<()> {
        let mut lease = match self.take_lease().await? {
            Acquired::Held(lease) => Some(lease),
            Acquired::HeldBy(_) => None,
        };
        let folders = Folder::left_behind(&self.work, self.order.attempt).map_err(|error| local_failure(&self.folder, error))?;
        for folder in &folders {
            self.ship_folder(folder, lease.as_mut()).await?;
            if let Some(lease) = &mut lease
                && *folder == self.folder
            {
                self.persist("send the results", is_io, async || ship_artifacts(&self.store, &self.order.job, folder, lease).await)
                    .await?;
            }
        }
        Ok(())
    }

    fn record(&self, end: End) -> ExitRecord {
        ExitRecord {
            schema: EXIT_SCHEMA.to_owned(),
            attempt: self.order.attempt,
            reason: end.reason,
            code: end.code,
            signal: end.signal,
            message: end.message,
            started: self.started,
            finished: Timestamp::now(),
        }
    }

    /// Writes the exit record; the first one stays.
    async fn sign(&self, end: End) -> Result<ExitRecord> {
        let record = self.record(end);
        let path = path::exit(&self.order.job, self.order.attempt);
        let written = self.persist("write the exit record", is_io, async || {
            match write_json(&*self.store, &path, &record, Condition::IfAbsent).await {
                Err(StoreError::Conflict { .. }) => store::read_json(&*self.store, &path).await.map(|(first, _)| first),
                written => written.map(|_| record.clone()),
            }
        });
        written.await
    }

    /// Heartbeats; and looks whether the lease is still held and whether a user wants the job to end.
    async fn pulse(&self, lease: &Witness) -> Infallible {
        let mut looks = 0;
        let mut reachable = true;
        loop {
            let looked = self.look(lease, looks).await;
            if let Err(error) = &looked
                && reachable
            {
                self.report.warn(&format!("{error}; the training goes on"));
            }
            reachable = looked.is_ok();
            looks += 1;
            sleep(LOOK_EVERY).await;
        }
    }

    async fn look(&self, lease: &Witness, looks: u64) -> Result<()> {
        let job = &self.order.job;
        if looks.is_multiple_of(LOOKS_PER_BEAT) {
            let phase = if self.stop.get().is_some() { Phase::Stopping } else { *self.phase.borrow() };
            let (beat, notice) = (looks / LOOKS_PER_BEAT, self.notice.borrow().clone());
            let trouble = notice.or_else(|| self.trouble.borrow().clone());
            let gpus = if phase == Phase::Training { self.gpus.newest() } else { Vec::new() };
            let (schema, time, started) = (HEARTBEAT_SCHEMA.to_owned(), Timestamp::now(), Some(self.begun()));
            let beat = Heartbeat { schema, beat, time, started, phase, trouble, gpus };
            write_json(&*self.store, &path::heartbeat(job, self.order.attempt), &beat, Condition::Always).await?;
        }
        if !lease.still_held().await? {
            self.stop.ask(ExitReason::LostLease, Duration::ZERO);
        }
        if let Some((request, _)) = find_json::<CancelRequest>(&*self.store, &path::cancel(job)).await? {
            self.stop.ask(ExitReason::Cancelled, Duration::from_secs(request.grace_seconds));
        }
        Ok(())
    }

    /// The time that is left is read once: a clock that is moved later moves no deadline.
    async fn deadline(&self) -> Infallible {
        let begun = self.begun();
        if let Some(time) = self.order.time_to_work(begun) {
            sleep(time.saturating_sub(between(begun, Timestamp::now()))).await;
            self.stop.ask(ExitReason::Deadline, self.grace());
        }
        std::future::pending().await
    }

    /// When the attempt's time began.
    fn begun(&self) -> Timestamp {
        self.earlier.get().map_or(self.started, |earlier| self.started.min(*earlier))
    }

    async fn watch_gpus(&self) {
        if self.order.train.device != DeviceChoice::Cpu {
            self.gpus.watch(self.phase.subscribe()).await;
        }
    }

    async fn preemption(&self, notice: impl Future<Output = ()>) -> Infallible {
        notice.await;
        self.stop.ask(ExitReason::Preempted, self.grace());
        std::future::pending().await
    }

    fn grace(&self) -> Duration {
        Duration::from_secs(self.order.grace_seconds)
    }

    /// Repeats `act` while its errors are `curable`, with growing pauses, until the agent's patience ends. Says so once when it
    /// begins, and with the heartbeat while it lasts.
    async fn persist<T>(&self, what: &str, curable: fn(&StoreError) -> bool, mut act: impl AsyncFnMut() -> Result<T>) -> Result<T> {
        let begun = Instant::now();
        let (mut pause, mut failing, mut told) = (BACKOFF[0], None, None);
        loop {
            match act().await {
                Err(error) if curable(&error) && begun.elapsed() < self.patience => {
                    let trouble = format!("could not {what}: {error}; trying again");
                    if failing.get_or_insert_with(Instant::now).elapsed() > LASTS {
                        self.trouble.send_replace(Some(trouble));
                        told.get_or_insert_with(|| Told(&self.trouble));
                    } else if pause == BACKOFF[0] {
                        self.report.warn(&trouble);
                    }
                }
                done => return done,
            }
            sleep(pause).await;
            pause = (2 * pause).min(BACKOFF[1]);
        }
    }
}

/// Trouble that was told, and is over when this is dropped: cured, or given up.
struct Told<'a>(&'a watch::Sender<Option<String>>);

impl Drop for Told<'_> {
    fn drop(&mut self) {
        self.0.send_replace(None);
    }
}

fn lost_lease() -> End {
    End::new(ExitReason::LostLease, "another attempt holds the job; this one stopped before writing anything more")
}

/// Anything that the store or the network may cure, or a user who frees a disk or gives rights back.
fn is_io(error: &StoreError) -> bool {
    matches!(error, StoreError::Io { .. } | StoreError::Denied { .. })
}

/// Whether waiting can cure the error: not a full disk, nor a lack of permission.
fn is_passing(error: &StoreError) -> bool {
    use io::ErrorKind::{NotADirectory, PermissionDenied, QuotaExceeded, ReadOnlyFilesystem, StorageFull};
    let lasting = [NotADirectory, PermissionDenied, QuotaExceeded, ReadOnlyFilesystem, StorageFull];
    matches!(error, StoreError::Io { source, .. } if !lasting.contains(&source.kind()))
}

fn dataset_in(cache: &Path, digest: &Digest) -> PathBuf {
    let target = cache.join("datasets").join(digest.as_str());
    std::path::absolute(&target).unwrap_or(target)
}

/// Until the next round, or until the trainer is over.
async fn pause(over: &mut Over) {
    tokio::select! {
        () = sleep(SHIP_EVERY) => {}
        _ = over.changed() => {}
    }
}
