//! An attempt on several nodes, with an agent on each. The agent of node 0 holds the attempt's lease, says where the ranks meet
//! when all nodes are ready, and listens whether they live. The others start their ranks, say how those ended, and end with the
//! attempt.
//!
//! All of it goes through the store, where others may write, too: an address must be an address, and a word counts
//! only while it changes. Agents know each other by names that no earlier life of a node has.

mod roll;

use std::{
    convert::Infallible,
    fs::File,
    future::{Future, pending},
    io, mem,
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, UdpSocket},
    num::NonZeroU16,
    path::{Path, PathBuf},
    time::Duration,
};

use jiff::Timestamp;
use serde::de::DeserializeOwned;
use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout},
};

pub(super) use self::roll::Roll;
use super::{
    Agent, End, Inputs, LOOK_EVERY, SHIP_EVERY, Told, is_io, lost_lease,
    memory::Before,
    ship::ship_lines,
    trainer::{self, Meeting, SOON, first_cause, is_stopped, meaning, supervise},
    variable, why,
};
use crate::{
    job::{
        id::path,
        meeting::{self, LARGEST, PRESENCE_SCHEMA, Presence, RENDEZVOUS_SCHEMA, RankEnd, Rendezvous, Word},
        order::{ExitReason, ExitRecord, Heartbeat, RunOrder},
    },
    store::{Condition, Result, StoreError, find_json, lease, write_json},
};

/// How long nodes wait for each other: the image and the data come to each by itself.
const GATHERING: Duration = Duration::from_secs(15 * 60);
/// A wait that is shorter needs no word.
const PROMPT: Duration = Duration::from_secs(30);
/// A node whose word has not changed for so long is lost.
const SILENCE: Duration = Duration::from_secs(60);
/// In which the agents of other nodes say how their ranks ended.
const HEARD: Duration = Duration::from_secs(10);

/// In a job of Azure ML, which node this is, and the address of the first.
const NODE: &str = "NODE_RANK";
const ADDRESS: &str = "MASTER_ADDR";
/// An address that no machine has; the way there is the way out.
const OUTSIDE: (Ipv4Addr, u16) = (Ipv4Addr::new(192, 0, 2, 1), 9);

/// An agent's place among those of its attempt.
#[derive(Debug, Clone, Default)]
pub struct Seat {
    node: usize,
    /// Where ranks of other nodes reach those of this one; absent: the address that this machine has towards others.
    address: Option<IpAddr>,
    /// Where all nodes are on one machine, the folder with the locks of the others: see [`meeting::lock`].
    locks: Option<PathBuf>,
}

impl Seat {
    /// Takes the arguments, or else the machine's environment. The error is for a person.
    pub fn find(order: &RunOrder, node: Option<usize>, address: Option<IpAddr>, locks: Option<PathBuf>) -> Result<Self, String> {
        if order.nodes == 1 {
            return Ok(Self::default());
        }
        let node = node.or_else(|| variable(NODE)?.parse().ok());
        let node =
            node.ok_or_else(|| format!("the order is for {} nodes, and nothing says which this is: give --node", order.nodes))?;
        if node >= order.nodes {
            return Err(format!("node {node} is not one of the order's {} nodes, which count from 0", order.nodes));
        }
        Ok(Self { node, address: address.or_else(|| variable(ADDRESS)?.parse().ok()), locks })
    }

    pub fn leads(&self) -> bool {
        self.node == 0
    }

    pub fn node(&self) -> usize {
        self.node
    }

    /// Whether the process of another node's agent is known to be gone.
    fn is_gone(&self, node: usize) -> bool {
        let lock = self.locks.as_ref().and_then(|folder| File::open(meeting::lock(folder, node)).ok());
        lock.is_some_and(|lock| lock.try_lock_shared().is_ok())
    }
}

/// Node 0, which has the attempt.
impl Agent<'_> {
    /// Where the ranks meet, once all nodes are ready for this generation. Without others they meet on this machine.
    pub(super) async fn convene(&self, roll: &mut Roll, generation: u32, micro_batch_limit: Option<usize>) -> Result<Meeting, End> {
        let failed = |error: io::Error| End::new(ExitReason::Failed, format!("no address for the ranks to meet: {error}"));
        let address = if self.order.nodes == 1 { Ipv4Addr::LOCALHOST.into() } else { self.address().map_err(failed)? };
        let agents = self.gather(roll, generation).await?;
        let (listener, at) = listen(address).map_err(failed)?;
        if let (false, Some(port)) = (agents.is_empty(), NonZeroU16::new(at.port())) {
            self.call.send_replace(Some(Rendezvous {
                schema: RENDEZVOUS_SCHEMA.to_owned(),
                attempt: self.order.attempt,
                generation,
                address,
                port,
                micro_batch_limit,
                agents,
                is_over: false,
            }));
        }
        Ok(Meeting { at, generation, micro_batch_limit, listener: Some(listener) })
    }

    /// Says to the others what this agent has to say, as soon as it changes.
    pub(super) async fn keep_calling(&self) -> Infallible {
        let path = path::rendezvous(&self.order.job, self.order.attempt);
        let mut calls = self.call.subscribe();
        loop {
            let call = calls.borrow_and_update().clone();
            if let Some(rendezvous) = call {
                let write = async || write_json(&*self.store, &path, &rendezvous, Condition::Always).await;
                if let Err(error) = self.persist("call the other nodes", is_io, write).await {
                    self.report.warn(&error.to_string());
                }
            }
            if calls.changed().await.is_err() {
                return pending().await;
            }
        }
    }

    fn address(&self) -> io::Result<IpAddr> {
        if let Some(address) = self.seat.address {
            return Ok(address);
        }
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        // Nothing is sent.
        socket.connect(OUTSIDE).map_err(|error| {
            io::Error::new(error.kind(), format!("other nodes cannot reach this machine ({error}); start its agent with --address"))
        })?;
        Ok(socket.local_addr()?.ip())
    }

    /// The names of the other nodes' agents when all are ready, after the generation before. A heartbeat tells of a long wait.
    async fn gather(&self, roll: &mut Roll, generation: u32) -> Result<Vec<String>, End> {
        let (begun, minutes, mut told) = (Instant::now(), GATHERING.as_secs() / 60, None);
        let ended = |why: String| Err(End::new(ExitReason::Preempted, why));
        loop {
            if roll.call(self).await.is_ok() {
                if let Some(end) = roll.refusal() {
                    return Err(meaning(end, self.stop.get(), self.order));
                }
                if let Some(agents) = roll.ready(generation) {
                    return Ok(agents);
                }
                if let Some(node) = roll.lost() {
                    return ended(format!("node {node} has been silent for {} s", SILENCE.as_secs()));
                }
            }
            if let Some(stop) = self.stop.get() {
                return Err(End::new(stop.reason, format!("{} before the nodes had met", why(stop.reason))));
            }
            // One that dies before its first word has left nothing that could fall silent.
            if let Some(node) = (1..self.order.nodes).find(|node| self.seat.is_gone(*node)) {
                return ended(format!("the agent of node {node} ended before the nodes had met"));
            }
            let node = format!("node {} of {}", roll.missing(generation), self.order.nodes);
            if begun.elapsed() > GATHERING {
                return ended(format!("{node} was not ready within {minutes} minutes"));
            }
            if begun.elapsed() > PROMPT {
                self.trouble.send_replace(Some(format!("waits for {node} to be ready, for {minutes} minutes at most")));
                told.get_or_insert_with(|| Told(&self.trouble));
            }
            sleep(SHIP_EVERY).await;
        }
    }

    /// The ranks of a meeting: how the one ended that was the reason for the end of all.
    pub(super) async fn lead(
        &self,
        roll: &mut Roll,
        inputs: &Inputs,
        meeting: Meeting,
        before: &Before<'_>,
    ) -> Result<RankEnd, End> {
        let failed = |what, error| End::new(ExitReason::Failed, format!("{what} the trainer: {error}"));
        let generation = meeting.generation;
        let trainer = trainer::start(self.order, self.seat.node, &self.folder, inputs, meeting);
        let trainer = trainer.map_err(|error| failed("cannot start", error))?;
        let call_off = || {
            self.call.send_if_modified(|call| call.as_mut().is_some_and(|call| !mem::replace(&mut call.is_over, true)));
        };
        let another = self.another_fails(roll, generation);
        let ended = supervise(trainer, self.stop.subscribe(), self.notice.subscribe(), another, call_off).await;
        let ended = ended.map_err(|error| failed("lost sight of", error))?;
        self.cause(roll, generation, before.told(ended)).await
    }

    /// Comes when a rank of another node has failed, or when a node is lost.
    async fn another_fails(&self, roll: &mut Roll, generation: u32) {
        if self.order.nodes == 1 {
            return pending().await;
        }
        while !roll.fails(generation) && roll.silent().is_none() {
            sleep(LOOK_EVERY).await;
            // While the store is away, no node is lost.
            let _ = roll.call(self).await;
        }
    }

    /// The end that was the reason for the others, among those of all nodes' ranks. `own` is that of this node's.
    async fn cause(&self, roll: &mut Roll, generation: u32, own: RankEnd) -> Result<RankEnd, End> {
        // The time that a store takes to answer does not count.
        let mut waited = Duration::ZERO;
        let is_open = |roll: &Roll| !roll.have_ended(generation) && roll.silent().is_none();
        while own.code != Some(0) && is_open(roll) && waited < HEARD {
            // A store that is away is asked again.
            let _ = roll.call(self).await;
            sleep(SHIP_EVERY).await;
            waited += SHIP_EVERY;
        }
        let ends = std::iter::once(own.clone()).chain(roll.ends(generation)).collect::<Vec<_>>();
        let cause = first_cause(ends.into_iter()).unwrap_or(own);
        if is_stopped(&cause) && cause.code != Some(0) && !roll.have_ended(generation) && self.stop.get().is_none() {
            let message = match roll.silent() {
                Some(node) => format!("node {node} has been silent for {} s", SILENCE.as_secs()),
                None => format!("node {} was lost, or its ranks were killed", roll.missing_end(generation)),
            };
            return Err(End::new(ExitReason::Preempted, message));
        }
        Ok(cause)
    }

    /// The word of another node, if it has left one.
    async fn presence(&self, node: usize) -> Result<Option<Presence>> {
        let found: Option<Presence> = self.small(&path::presence(&self.order.job, self.order.attempt, node)).await?;
        Ok(found.filter(|presence| presence.schema == PRESENCE_SCHEMA && presence.attempt == self.order.attempt))
    }

    /// Reads what another agent has written, or another writer. None where it is absent, or nothing of its kind.
    async fn small<T: DeserializeOwned>(&self, path: &str) -> Result<Option<T>> {
        match self.store.get_limited(path, LARGEST).await {
            Ok(object) => Ok(serde_json::from_slice(&object.bytes).ok()),
            Err(StoreError::NotFound { .. } | StoreError::Unreadable(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Any other node.
impl Agent<'_> {
    /// Takes part in the attempt to its end, which node 0 writes down, and returns that.
    pub(super) async fn follow(&self, cache: &Path, notice: impl Future<Output = ()>) -> Result<ExitRecord> {
        if let Some(record) = self.first_look().await? {
            return Ok(record);
        }
        let (word, over) = (watch::Sender::new(Word::default()), watch::Sender::new(false));
        // The attempt's time is for node 0 to keep: an agent that began earlier would end it as a preemption.
        let guards = async { tokio::join!(self.be_present(&word), self.preemption(notice), self.heed()) };
        let lines = self.lines();
        let serving = async { tokio::join!(self.serve(cache, &word), self.keep_shipping_lines(&lines, over.subscribe())) };
        let record = tokio::select! {
            record = self.outcome_and_ends(&word) => record,
            (never, ..) = guards => match never {},
            (never, ()) = serving => match never {},
        };
        let last = async {
            // The rest stays on this machine.
            let _ = ship_lines(&lines, &*self.store).await;
        };
        let _ = timeout(HEARD, last).await;
        Ok(record)
    }

    /// How the attempt ended, after this node's ranks have had time to end by themselves: what they say last is kept, too. Those of
    /// an attempt that lost the job have none.
    async fn outcome_and_ends(&self, word: &watch::Sender<Word>) -> ExitRecord {
        let record = self.outcome().await;
        if record.reason != ExitReason::LostLease {
            let are_over = |word: &Word| word.generation == 0 || word.end.is_some();
            let _ = timeout(SOON, word.subscribe().wait_for(are_over)).await;
        }
        record
    }

    /// Brings what the ranks need, and starts them as often as they are called.
    async fn serve(&self, cache: &Path, word: &watch::Sender<Word>) -> Infallible {
        let first = self.order.ranks(self.seat.node).start;
        let failed = |message: String| RankEnd { rank: first, code: Some(1), signal: None, words: message, out_of_memory: false };
        let staged = tokio::select! {
            staged = self.prepare(None, cache) => staged,
            stop = self.stop.asked() => Err(End::new(stop.reason, why(stop.reason))),
        };
        let inputs = match staged {
            Ok((inputs, _)) => inputs,
            Err(end) => {
                let code = Some(if end.reason == ExitReason::Failed { 1 } else { trainer::STOPPED });
                word.send_modify(|word| word.end = Some(RankEnd { code, ..failed(end.message) }));
                return pending().await;
            }
        };
        word.send_modify(|word| word.is_ready = true);
        loop {
            let generation = word.borrow().generation;
            let rendezvous = self.called(generation).await;
            word.send_replace(Word { is_ready: true, generation: rendezvous.generation, ..Word::default() });
            let end = self
                .take_part(&inputs, &rendezvous, word)
                .await
                .unwrap_or_else(|error| failed(format!("cannot start the trainer: {error}")));
            word.send_modify(|word| word.end = Some(end));
        }
    }

    /// The next meeting that this agent is called to.
    async fn called(&self, generation: u32) -> Rendezvous {
        loop {
            let invites = |found: &Rendezvous| found.invites(self.order.attempt, generation, self.seat.node, &self.name);
            if let Some(found) = self.call_of_first().await.filter(invites) {
                return found;
            }
            sleep(SHIP_EVERY).await;
        }
    }

    /// The last call of node 0's agent; none while the store is away.
    async fn call_of_first(&self) -> Option<Rendezvous> {
        self.small(&path::rendezvous(&self.order.job, self.order.attempt)).await.unwrap_or_default()
    }

    async fn take_part(&self, inputs: &Inputs, rendezvous: &Rendezvous, word: &watch::Sender<Word>) -> io::Result<RankEnd> {
        let before = Before::of(&self.folder, self.order.ranks(self.seat.node));
        let Rendezvous { address, port, generation, micro_batch_limit, .. } = *rendezvous;
        let meeting = Meeting { at: SocketAddr::new(address, port.get()), generation, micro_batch_limit, listener: None };
        let trainer = trainer::start(self.order, self.seat.node, &self.folder, inputs, meeting)?;
        let called_off = async {
            while self.call_of_first().await.is_none_or(|call| call == *rendezvous) {
                sleep(LOOK_EVERY).await;
            }
        };
        let tell = || word.send_modify(|word| word.is_over = true);
        let ended = supervise(trainer, self.stop.subscribe(), self.notice.subscribe(), called_off, tell).await?;
        Ok(before.told(ended))
    }

    /// Gives signs of life, with each change of `word` and between.
    async fn be_present(&self, word: &watch::Sender<Word>) -> Infallible {
        let path = path::presence(&self.order.job, self.order.attempt, self.seat.node);
        let (mut changes, mut beat) = (word.subscribe(), 0);
        loop {
            let presence = Presence {
                schema: PRESENCE_SCHEMA.to_owned(),
                attempt: self.order.attempt,
                agent: self.name.clone(),
                beat,
                time: Timestamp::now(),
                word: changes.borrow_and_update().clone(),
            };
            // The next one is due soon.
            let _ = write_json(&*self.store, &path, &presence, Condition::Always).await;
            beat += 1;
            tokio::select! {
                () = sleep(LOOK_EVERY) => {}
                _ = changes.changed() => {}
            }
        }
    }

    /// How the attempt ended: by the word of node 0, or because that one has given none for too long.
    async fn outcome(&self) -> ExitRecord {
        let (mut heard, mut known) = (Instant::now(), None);
        let mut patience = GATHERING;
        loop {
            let asked = Instant::now();
            let verdict = self.verdict().await;
            // A store that tries again by itself answers late, and what node 0 writes meanwhile may arrive later still.
            heard += asked.elapsed();
            match verdict {
                Ok(Verdict::Over(record)) => return record,
                Ok(Verdict::Beats(heartbeat)) if known.as_ref() != Some(&heartbeat) => {
                    // The first may be one of an earlier life.
                    patience = if known.is_some() { SILENCE } else { patience };
                    (heard, known) = (Instant::now(), Some(heartbeat));
                }
                Ok(Verdict::Beats(_)) if heard.elapsed() > patience => {
                    let message = format!("node 0 has been silent for {} s", patience.as_secs());
                    return self.record(End::new(ExitReason::Preempted, message));
                }
                Ok(Verdict::Beats(_)) => {}
                // An agent that cannot read the store takes no silence for a death.
                Err(_) => heard = Instant::now(),
            }
            sleep(LOOK_EVERY).await;
        }
    }

    async fn verdict(&self) -> Result<Verdict> {
        let (job, attempt) = (&self.order.job, self.order.attempt);
        if let Some((record, _)) = find_json(&*self.store, &path::exit(job, attempt)).await? {
            return Ok(Verdict::Over(record));
        }
        if lease::holder(&*self.store, &path::attempt_lease(job)).await?.is_some_and(|holder| holder.attempt > attempt) {
            return Ok(Verdict::Over(self.record(lost_lease())));
        }
        Ok(Verdict::Beats(find_json(&*self.store, &path::heartbeat(job, attempt)).await?.map(|(heartbeat, _)| heartbeat)))
    }
}

enum Verdict {
    Over(ExitRecord),
    Beats(Option<Heartbeat>),
}

/// Listens at a free port of this address.
fn listen(address: IpAddr) -> io::Result<(TcpListener, SocketAddr)> {
    let bound = TcpListener::bind((address, 0)).and_then(|listener| listener.local_addr().map(|at| (listener, at)));
    bound.map_err(|error| io::Error::new(error.kind(), format!("cannot listen at {address}: {error}")))
}
