//! Any other node: it starts its ranks as often as node 0 calls them, says how they ended, and ends with the attempt.

use std::{
    convert::Infallible,
    future::{Future, pending},
    io,
    net::SocketAddr,
    path::Path,
    time::Duration,
};

use jiff::Timestamp;
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};

use super::{
    super::{
        Agent, End, Inputs, LOOK_EVERY, SHIP_EVERY, lost_lease,
        memory::Before,
        ship::ship_lines,
        trainer::{self, Meeting, SOON, supervise},
        why,
    },
    GATHERING, HEARD, SILENCE,
};
use crate::{
    job::{
        id::path,
        meeting::{PRESENCE_SCHEMA, Presence, RankEnd, Rendezvous, Word},
        order::{ExitReason, ExitRecord, Heartbeat},
    },
    store::{Condition, Result, find_json, lease, write_json},
};

impl Agent<'_> {
    /// Takes part in the attempt to its end, which node 0 writes down, and returns that.
    pub(in crate::agent) async fn follow(&self, cache: &Path, notice: impl Future<Output = ()>) -> Result<ExitRecord> {
        if let Some(record) = self.first_look().await? {
            return Ok(record);
        }
        let (word, over) = (watch::Sender::new(Word::default()), watch::Sender::new(false));
        // The attempt's time is for node 0 to keep: an agent that began earlier would end it as a preemption.
        let guards =
            async { tokio::join!(self.be_present(&word), self.preemption(notice), self.heed(), self.keep_shipping_ranges()) };
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
        let (mut changes, mut notices, mut beat) = (word.subscribe(), self.notice.subscribe(), 0);
        loop {
            let presence = Presence {
                schema: PRESENCE_SCHEMA.to_owned(),
                attempt: self.order.attempt,
                agent: self.name.clone(),
                beat,
                time: Timestamp::now(),
                notice: notices.borrow_and_update().clone(),
                word: changes.borrow_and_update().clone(),
            };
            // The next one is due soon.
            let _ = write_json(&*self.store, &path, &presence, Condition::Always).await;
            beat += 1;
            tokio::select! {
                () = sleep(LOOK_EVERY) => {}
                _ = changes.changed() => {}
                _ = notices.changed() => {}
            }
        }
    }

    /// How the attempt ended: by the word of node 0, or because that one has given none for too long.
    async fn outcome(&self) -> ExitRecord {
        // The time between looks, as long as it is meant to be: a store that tries again by itself answers late, and what node 0
        // writes meanwhile may arrive later still; and who was stopped for a while was so together with node 0, as far as it knows.
        let (mut silence, mut known) = (Duration::ZERO, None);
        let mut patience = GATHERING;
        loop {
            match self.verdict().await {
                Ok(Verdict::Over(record)) => return record,
                Ok(Verdict::Beats(heartbeat)) if known.as_ref() != Some(&heartbeat) => {
                    // The first may be one of an earlier life.
                    patience = if known.is_some() { SILENCE } else { patience };
                    (silence, known) = (Duration::ZERO, Some(heartbeat));
                }
                Ok(Verdict::Beats(_)) if silence > patience => {
                    let message = format!("node 0 has been silent for {} s", patience.as_secs());
                    return self.record(End::new(ExitReason::Preempted, message));
                }
                Ok(Verdict::Beats(_)) => {}
                // An agent that cannot read the store takes no silence for a death.
                Err(_) => silence = Duration::ZERO,
            }
            sleep(LOOK_EVERY).await;
            silence += LOOK_EVERY;
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
