//! Node 0, which has the attempt: it waits until all nodes are ready, says where the ranks meet, and finds out why they ended.

use std::{
    convert::Infallible,
    future::pending,
    io, mem,
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, UdpSocket},
    num::NonZeroU16,
    time::Duration,
};

use tokio::time::{Instant, sleep};

use super::{
    super::{
        Agent, End, Inputs, LOOK_EVERY, SHIP_EVERY, Told, is_io,
        memory::Before,
        trainer::{self, Meeting, first_cause, is_stopped, meaning, supervise},
        why,
    },
    GATHERING, HEARD, Roll, SILENCE,
};
use crate::{
    job::{
        id::path,
        meeting::{PRESENCE_SCHEMA, Presence, RENDEZVOUS_SCHEMA, RankEnd, Rendezvous},
        order::ExitReason,
    },
    store::{Condition, Result, write_json},
};

/// How long a wait for other nodes needs no word.
const PROMPT: Duration = Duration::from_secs(30);

/// An address that no machine has; the way there is the way out.
const OUTSIDE: (Ipv4Addr, u16) = (Ipv4Addr::new(192, 0, 2, 1), 9);

impl Agent<'_> {
    /// Where the ranks meet, once all nodes are ready for this generation. Without others they meet on this machine.
    pub(in crate::agent) async fn convene(
        &self,
        roll: &mut Roll,
        generation: u32,
        micro_batch_limit: Option<usize>,
    ) -> Result<Meeting, End> {
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
    pub(in crate::agent) async fn keep_calling(&self) -> Infallible {
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
            if roll.call(self, SHIP_EVERY).await.is_ok() {
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
    pub(in crate::agent) async fn lead(
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

    /// Comes when a rank of another node has failed, or when a node is lost. Tells of the notices that the others have.
    async fn another_fails(&self, roll: &mut Roll, generation: u32) {
        if self.order.nodes == 1 {
            return pending().await;
        }
        let mut told: Option<(String, Told<'_>)> = None;
        while !roll.fails(generation) && roll.silent().is_none() {
            sleep(LOOK_EVERY).await;
            // While the store is away, no node is lost.
            let _ = roll.call(self, LOOK_EVERY).await;
            let notice = roll.notice();
            if notice.as_ref() == told.as_ref().map(|(notice, _)| notice) {
                continue;
            }
            self.tell(&match &notice {
                Some(notice) => format!("{notice}; a checkpoint is saved now, and the training goes on"),
                None => "the cloud has withdrawn the notice: all nodes stay".to_owned(),
            });
            told = notice.map(|notice| {
                self.trouble.send_replace(Some(notice.clone()));
                (notice, Told(&self.trouble))
            });
        }
    }

    /// The end that was the reason for the others, among those of all nodes' ranks. `own` is that of this node's.
    async fn cause(&self, roll: &mut Roll, generation: u32, own: RankEnd) -> Result<RankEnd, End> {
        // The time that a store takes to answer does not count.
        let mut waited = Duration::ZERO;
        let is_open = |roll: &Roll| !roll.have_ended(generation) && roll.silent().is_none();
        while own.code != Some(0) && is_open(roll) && waited < HEARD {
            // A store that is away is asked again.
            let _ = roll.call(self, SHIP_EVERY).await;
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
    pub(super) async fn presence(&self, node: usize) -> Result<Option<Presence>> {
        let found: Option<Presence> = self.small(&path::presence(&self.order.job, self.order.attempt, node)).await?;
        Ok(found.filter(|presence| presence.schema == PRESENCE_SCHEMA && presence.attempt == self.order.attempt))
    }
}

/// Listens at a free port of this address.
fn listen(address: IpAddr) -> io::Result<(TcpListener, SocketAddr)> {
    let bound = TcpListener::bind((address, 0)).and_then(|listener| listener.local_addr().map(|at| (listener, at)));
    bound.map_err(|error| io::Error::new(error.kind(), format!("cannot listen at {address}: {error}")))
}
