//! `cloud.json`: everything that is true in the fake cloud, and the rules by which virtual time changes it. No input, no output.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use ft_trainer::settings::{TrainSettings, length};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::script::{Call, Fault, Preemption, Script, Work};
use crate::{
    job::{
        clock::after,
        id::{AttemptId, JobId},
        order::{ExitReason, Phase, RunOrder},
        units::Money,
    },
    provider::{
        Class, ProviderError, Resource, Result, Sighting,
        whose::{Mark, Said, namesake},
    },
};

pub const CLOUD_SCHEMA: &str = "ftctl.fake-cloud/1";

/// Steps of a run whose order counts them in epochs: the fake reads no data.
const DEFAULT_STEPS: u64 = 100;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Cloud {
    pub schema: String,
    pub now: Timestamp,
    /// By name.
    pub machines: BTreeMap<String, Machine>,
    /// How often each fault of the script has happened.
    pub faults_used: Vec<u32>,
    /// The changes that calls made, in order: the proof that nothing was created twice.
    pub effects: Vec<Effect>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    pub attempt: AttemptId,
    /// In the future while the attempt waits in a queue.
    pub created: Timestamp,
    /// When the cloud took the attempt into its queue.
    #[serde(default)]
    pub queued: Option<Timestamp>,
    pub expires: Timestamp,
    pub price_per_hour: Money,
    pub agent: Option<Agent>,
    pub end: Option<End>,
    /// The cloud took its machine away and started the attempt again.
    #[serde(default)]
    pub restarted: bool,
    /// The label of the store that has its job.
    #[serde(default)]
    pub store: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Agent {
    pub order: RunOrder,
    pub started: Timestamp,
    /// The checkpoint it resumes from.
    pub first_step: u64,
    /// The part of its work that is in the store.
    pub told: Option<Told>,
}

/// How far an agent's tale goes. It changes with every heartbeat, step and end, and the store is written to only then.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Told {
    pub beat: u64,
    pub phase: Phase,
    pub step: u64,
    /// There is no more to come.
    pub over: bool,
}

/// How a machine, or the agent on it, came to its end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    pub at: Timestamp,
    pub why: String,
    /// The reason that the agent could still write down.
    pub exit: Option<ExitReason>,
    /// The machine went too.
    pub gone: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Effect {
    pub at: Timestamp,
    pub kind: EffectKind,
    pub machine: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EffectKind {
    MachineCreated,
    AgentStarted,
    MachineDestroyed,
}

/// A real agent's interval, in seconds.
const HEARTBEAT: u64 = 5;

impl Agent {
    /// Where it stands at `time`, of which it may be the end.
    pub fn progress_at(&self, time: Timestamp, over: bool, work: &Work) -> Told {
        let elapsed = u64::try_from(time.duration_since(self.started).as_secs()).unwrap_or(0);
        let phase = if time < self.trains_from(work) { Phase::Staging } else { Phase::Training };
        Told { beat: elapsed / HEARTBEAT + 1, phase, step: self.step_at(time, work), over }
    }

    /// The settings that it was told, with every length in steps. The whole run is an epoch.
    pub fn settings(&self) -> TrainSettings {
        length::resolve(&self.order.train, self.steps() as f64, self.steps())
    }

    pub fn steps(&self) -> u64 {
        self.order.train.steps.unwrap_or(DEFAULT_STEPS).max(1)
    }

    pub fn trains_from(&self, work: &Work) -> Timestamp {
        after(self.started, work.staging.0)
    }

    /// When `step` is complete.
    pub fn time_of(&self, step: u64, work: &Work) -> Timestamp {
        let share = step.saturating_sub(self.first_step) as f64 / self.steps() as f64;
        after(self.trains_from(work), work.duration.0.mul_f64(share))
    }

    /// Steps complete at `time`.
    pub fn step_at(&self, time: Timestamp, work: &Work) -> u64 {
        let mut steps = self.first_step..self.steps();
        steps.find(|step| self.time_of(step + 1, work) > time).unwrap_or(self.steps().max(self.first_step))
    }

    /// The ends that come without interference.
    fn own_ends(&self, work: &Work) -> impl Iterator<Item = End> {
        let (exit, why) = if work.fails.is_some() {
            (ExitReason::Failed, "the trainer failed")
        } else {
            (ExitReason::Succeeded, "its work is done")
        };
        let done = End { at: self.time_of(self.steps(), work), why: why.to_owned(), exit: Some(exit), gone: false };
        let deadline = self.order.time_to_work(self.started).map(|time| End {
            at: after(self.started, time),
            why: "its deadline came".to_owned(),
            exit: Some(ExitReason::Deadline),
            gone: false,
        });
        [Some(done), deadline].into_iter().flatten()
    }
}

impl Machine {
    pub fn exists(&self) -> bool {
        !self.end.as_ref().is_some_and(|end| end.gone)
    }

    fn said(&self) -> Said<'_> {
        Said { store: self.store.as_deref(), ..Said::default() }
    }

    /// When it was taken into the queue, as long as it waits there.
    fn queued(&self, now: Timestamp) -> Option<Timestamp> {
        self.queued.filter(|_| now < self.created)
    }

    pub fn lives(&self) -> bool {
        self.end.is_none()
    }

    /// `now`, or its end when that came first.
    pub fn until(&self, now: Timestamp) -> Timestamp {
        self.end.as_ref().map_or(now, |end| end.at.min(now))
    }

    fn preemptions<'s>(&'s self, script: &'s Script) -> impl Iterator<Item = &'s Preemption> {
        script.preemptions.iter().filter(|preemption| preemption.attempt == self.attempt.attempt)
    }

    /// The cloud gives it another machine in place of the one that it takes away. The work begins again.
    fn restart(&mut self, script: &Script, now: Timestamp) {
        let restarts = |taken: &Preemption| Some((after(self.created, taken.after.0), taken.again?.0));
        let due = self.preemptions(script).filter_map(restarts).find(|(at, _)| !self.restarted && *at <= now);
        let Some((at, again)) = due else { return };
        (self.queued, self.created, self.restarted) = (Some(at), after(at, again), true);
        if let Some(agent) = &mut self.agent {
            agent.started = self.created;
        }
    }

    /// The earliest end that the script, the agent and the kill switch hold for it.
    fn fate(&self, script: &Script) -> Option<End> {
        let taken = self.preemptions(script).filter(|preemption| preemption.again.is_none()).map(|preemption| End {
            at: after(self.created, preemption.after.0),
            why: "preempted".to_owned(),
            exit: preemption.notice.then_some(ExitReason::Preempted),
            gone: preemption.vanishes,
        });
        let expired = End { at: self.expires, why: "its time to live is over".to_owned(), exit: None, gone: true };
        let own = self.agent.iter().flat_map(|agent| agent.own_ends(&script.job));
        taken.chain([expired]).chain(own).min_by_key(|end| end.at)
    }
}

impl Cloud {
    pub fn new(script: &Script) -> Self {
        Self {
            schema: CLOUD_SCHEMA.to_owned(),
            now: script.start,
            machines: BTreeMap::new(),
            faults_used: Vec::new(),
            effects: Vec::new(),
        }
    }

    /// Lets time pass, and everything happen that was due.
    pub fn advance(&mut self, script: &Script, duration: Duration) {
        self.now = after(self.now, duration);
        for machine in self.machines.values_mut().filter(|machine| machine.lives()) {
            machine.restart(script, self.now);
            machine.end = machine.fate(script).filter(|end| end.at <= self.now);
        }
    }

    /// The fault that this call meets, which counts as used from now on.
    pub fn meet_fault<'s>(&mut self, script: &'s Script, call: Call, attempt: Option<&AttemptId>) -> Option<&'s Fault> {
        self.faults_used.resize(script.faults.len().max(self.faults_used.len()), 0);
        let mut faults = script.faults.iter().zip(&mut self.faults_used);
        let (fault, used) = faults.find(|(fault, used)| fault.fits(call, attempt) && **used < fault.times)?;
        *used += 1;
        Some(fault)
    }

    pub fn provision(&mut self, attempt: &AttemptId, ttl: Duration, script: &Script, mark: &Mark<'_>) -> Result<()> {
        let name = attempt.machine_name();
        match self.machines.get(&name).filter(|machine| machine.exists()) {
            Some(machine) if mark.reaches(machine.said()) => return Ok(()),
            Some(machine) => return Err(namesake(&format!("a machine {name}"), &mark.belongs(machine.said()))),
            None => {}
        }
        let queue = script.queues.iter().find(|queue| queue.attempt == attempt.attempt);
        let created = queue.map_or(self.now, |queue| after(self.now, queue.lasting.0));
        let machine = Machine {
            attempt: attempt.clone(),
            created,
            queued: queue.map(|_| self.now),
            expires: after(created, ttl),
            price_per_hour: script.price_per_hour,
            agent: None,
            end: None,
            restarted: false,
            store: Some(mark.store.clone()),
        };
        self.machines.insert(name.clone(), machine);
        self.record(EffectKind::MachineCreated, name);
        Ok(())
    }

    pub fn launch(&mut self, order: &RunOrder, first_step: u64, mark: &Mark<'_>) -> Result<()> {
        let attempt = AttemptId::new(&order.job, order.attempt);
        let (now, name) = (self.now, attempt.machine_name());
        let machine = self.find(&attempt, mark)?;
        if machine.agent.is_some() || !machine.lives() {
            return Ok(());
        }
        machine.agent = Some(Agent { order: order.clone(), started: now.max(machine.created), first_step, told: None });
        self.record(EffectKind::AgentStarted, name);
        self.replace(&attempt);
        Ok(())
    }

    /// A new attempt takes the lease, and older ones stop when they notice.
    fn replace(&mut self, by: &AttemptId) {
        let end = End { at: self.now, why: "a newer attempt took over".to_owned(), exit: Some(ExitReason::LostLease), gone: false };
        for older in self.machines.values_mut().filter(|machine| machine.lives() && machine.agent.is_some()) {
            if older.attempt.job == by.job && older.attempt.attempt < by.attempt {
                older.end = Some(end.clone());
            }
        }
    }

    pub fn observe(&self, attempt: &AttemptId, script: &Script, mark: &Mark<'_>) -> Result<Sighting> {
        let machine = self.machines.get(&attempt.machine_name()).filter(|machine| mark.reaches(machine.said()));
        let Some(machine) = machine else { return Ok(Sighting::Gone) };
        let hidden = script.out_of_sight.iter().filter(|hidden| hidden.attempt == attempt.attempt).any(|hidden| {
            let from = after(machine.created, hidden.after.0);
            (from..after(from, hidden.lasting.0)).contains(&self.now)
        });
        if hidden {
            return Err(ProviderError::new(Class::Network, format!("the fake cloud cannot say how {} is", attempt.machine_name())));
        }
        if let Some(since) = machine.queued(self.now) {
            let queue = script.queues.iter().find(|queue| queue.attempt == attempt.attempt);
            return Ok(Sighting::Queued { since, why: queue.map(|queue| queue.why.clone()).unwrap_or_default() });
        }
        Ok(match &machine.end {
            Some(end) if end.gone => Sighting::Gone,
            Some(end) => Sighting::Dead { why: end.why.clone() },
            None => Sighting::Alive { agent: machine.agent.is_some() },
        })
    }

    pub fn ended(&self, attempt: &AttemptId, mark: &Mark<'_>) -> Option<Timestamp> {
        let machine = self.machines.get(&attempt.machine_name()).filter(|machine| mark.reaches(machine.said()))?;
        machine.end.as_ref().map(|end| end.at)
    }

    /// A drill: the cloud takes the machine now, with its usual notice.
    pub fn preempt(&mut self, attempt: &AttemptId, mark: &Mark<'_>) -> Result<()> {
        let end = End { at: self.now, why: "preempted".to_owned(), exit: Some(ExitReason::Preempted), gone: false };
        let machine = self.find(attempt, mark)?;
        machine.end.get_or_insert(end);
        Ok(())
    }

    pub fn destroy(&mut self, job: &JobId, mark: &Mark<'_>) {
        let meant = |machine: &Machine| machine.attempt.job == *job && mark.reaches(machine.said());
        let names: Vec<_> = self.machines.iter().filter(|(_, machine)| meant(machine)).map(|(name, _)| name.clone()).collect();
        for name in names {
            self.machines.remove(&name);
            self.record(EffectKind::MachineDestroyed, name);
        }
    }

    pub fn list(&self, mark: &Mark<'_>) -> Vec<Resource> {
        let existing = self.machines.iter().filter(|(_, machine)| machine.exists());
        existing
            .map(|(name, machine)| Resource {
                name: name.clone(),
                attempt: machine.attempt.clone(),
                since: machine.queued(self.now).unwrap_or(machine.created),
                expires: Some(machine.expires),
                price_per_hour: if machine.queued(self.now).is_some() { Money::ZERO } else { machine.price_per_hour },
                belongs: mark.belongs(Said {
                    owner: Some(&mark.owner),
                    url: machine.agent.as_ref().map(|agent| agent.order.store.as_str()),
                    ..machine.said()
                }),
            })
            .collect()
    }

    /// Jobs with an agent that would hear a wish to cancel.
    pub fn listeners(&self) -> BTreeSet<JobId> {
        let works = |machine: &&Machine| machine.lives() && machine.agent.is_some() && machine.created <= self.now;
        let agents = self.machines.values().filter(works);
        agents.map(|machine| machine.attempt.job.clone()).collect()
    }

    /// The agents of this job heard that a user wants it to end.
    pub fn cancel(&mut self, job: &JobId) {
        let end = End { at: self.now, why: "cancelled".to_owned(), exit: Some(ExitReason::Cancelled), gone: false };
        for machine in self.machines.values_mut().filter(|machine| machine.attempt.job == *job && machine.agent.is_some()) {
            machine.end.get_or_insert_with(|| end.clone());
        }
    }

    fn find(&mut self, attempt: &AttemptId, mark: &Mark<'_>) -> Result<&mut Machine> {
        let name = attempt.machine_name();
        let machine = self.machines.get_mut(&name).filter(|machine| machine.exists() && mark.reaches(machine.said()));
        machine.ok_or_else(|| ProviderError::new(Class::Network, format!("the fake cloud has no machine {name} any more")))
    }

    fn record(&mut self, kind: EffectKind, machine: String) {
        self.effects.push(Effect { at: self.now, kind, machine });
    }
}
