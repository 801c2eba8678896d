//! The most that jobs cost: random lives on a simulated cloud, with shortages, preemptions, lost answers, refused deletions, and
//! clients that are gone for ever. `FT_HISTORIES=1000` plays so many, `FT_HISTORY=816` that one alone.

use std::{
    future::Future,
    sync::{Mutex, MutexGuard},
};

use futures_util::{StreamExt, future::join_all, stream};
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::sync::Notify;

use super::*;
use crate::job::{
    clock::{Clock, after, between},
    plan::{Life, Price},
};

const USUAL: u64 = 24;
const AT_ONCE: usize = 8;
/// Attempts of a history at most, and tries of each change.
const ATTEMPTS: u32 = 12;
const TRIES: u32 = 20;
/// So long after its time nothing of a job is left.
const REST: Duration = Duration::from_secs(30);
const HOUR: u64 = 3_600;
pub const DAY: u64 = 24 * HOUR;

/// Numerical Recipes' generator: a history is its seed.
pub struct Dice(u64);

impl Dice {
    pub fn below(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }

    /// A number of any order of size between these: minutes are as likely as hours and days.
    pub fn between(&mut self, least: u64, most: u64) -> u64 {
        let part = self.below(1 << 20) as f64 / f64::from(1 << 20);
        (least as f64 * (most as f64 / least as f64).powf(part)) as u64
    }

    fn seconds(&mut self, least: u64, most: u64) -> Duration {
        Duration::from_secs(self.between(least, most))
    }

    /// Each call does not go as it should for a while, in some way.
    pub fn faults<'c>(&mut self, calls: impl IntoIterator<Item = &'c str>) -> Vec<Value> {
        let kinds = [json!({ "status": 503 }), json!({ "status": 429 }), json!("lost_answer"), json!({ "status": 500 })];
        let mut fault = |call| {
            let kind = &kinds[self.below(4) as usize];
            json!({ "call": call, "kind": kind, "skip": self.below(6), "times": self.below(9) })
        };
        calls.into_iter().map(&mut fault).collect()
    }

    /// About half of the attempts that lose their machines, each with the seconds until then.
    pub fn losses(&mut self) -> Vec<(u64, u64)> {
        let numbers: Vec<u64> = (1..=6).filter(|_| self.below(2) == 0).collect();
        numbers.into_iter().map(|number| (number, self.between(1, 2 * DAY))).collect()
    }

    /// How dear everything is beside the table of this program.
    pub fn price_factor(&mut self) -> f64 {
        [0.7, 1.0, 1.6][self.below(3) as usize]
    }
}

/// A simulated cloud for one history.
#[async_trait]
pub trait Cloud: Send + Sync {
    /// Its time, which a sleep moves ahead.
    fn clock(&self) -> Arc<dyn Clock>;

    /// A client that lives by that time.
    fn player(&self) -> Arc<dyn Provider>;

    /// A job of it, whose time and ceiling are drawn later.
    fn plan(&self, dice: &mut Dice) -> Plan;

    fn image(&self) -> TrainerImage;

    /// The cost of everything until now, as devcloud tells it.
    async fn bill(&self) -> Value;

    /// How long the queues of a job may last in all, besides the lives of those before it.
    fn turn(&self) -> Duration {
        Duration::ZERO
    }
}

struct End {
    ceiling: Money,
    cost: Money,
    /// Machines that still cost.
    left: usize,
}

/// Today's, in which the ceiling is meant; `None` for a plan that is refused. A busy machine may hear it too late, and is told that
/// of the list.
async fn price(provider: &dyn Provider, plan: &Plan) -> Option<Price> {
    for _ in 0..TRIES {
        let price = match provider.price(plan).await {
            Err(error) if error.class == Class::Invalid => return None,
            price => price.expect("a price"),
        };
        if price.source.as_ref().is_some_and(|source| !source.starts_with("price list")) {
            return Some(price);
        }
    }
    panic!("today's price was not told");
}

/// One client's knowledge of an attempt, as the life of a job has it.
struct Books {
    attempt: AttemptId,
    /// There was no machine before.
    earliest: Timestamp,
    started: Option<Timestamp>,
    was_queued: bool,
}

impl Books {
    /// Notes since when there is a machine that costs. An error: the cloud cannot be asked, and the next look tells.
    async fn note(&mut self, provider: &dyn Provider, seen: &Sighting) -> crate::provider::Result<()> {
        if self.started.is_some() {
            return Ok(());
        }
        let listed = provider.list().await?;
        let queued = matches!(seen, Sighting::Queued { .. });
        self.was_queued |= queued;
        let own = listed.iter().filter(|resource| resource.attempt == self.attempt);
        let listed = own.filter(|resource| !queued || resource.price_per_hour > Money::ZERO).map(|resource| resource.since).min();
        let known = match listed {
            None if !queued => provider.began(&self.attempt).await?,
            listed => listed,
        };
        let known = known.map(|since| since.max(self.earliest));
        self.started = known.or_else(|| (!queued && !self.was_queued).then_some(self.earliest));
        Ok(())
    }
}

/// The time of several clients: it moves on when all of them sleep, to when the first of them wakes.
struct Turns {
    clock: Arc<dyn Clock>,
    state: Mutex<Sleepers>,
    moved: Notify,
}

struct Sleepers {
    awake: usize,
    until: Vec<Timestamp>,
}

impl Turns {
    fn new(clock: Arc<dyn Clock>, players: usize) -> Self {
        Self { clock, state: Mutex::new(Sleepers { awake: players, until: Vec::new() }), moved: Notify::new() }
    }

    fn state(&self) -> MutexGuard<'_, Sleepers> {
        self.state.lock().expect("no player has panicked")
    }

    async fn sleep(&self, pause: Duration) {
        let until = after(self.clock.now(), pause);
        self.state().until.push(until);
        self.leave().await;
        loop {
            let moved = self.moved.notified();
            if self.clock.now() >= until {
                break;
            }
            moved.await;
        }
        let mut state = self.state();
        state.awake += 1;
        let own = state.until.iter().position(|other| *other == until).expect("it slept");
        state.until.swap_remove(own);
    }

    /// One less is awake.
    async fn leave(&self) {
        let first = {
            let mut state = self.state();
            state.awake -= 1;
            state.until.iter().min().copied().filter(|_| state.awake == 0)
        };
        if let Some(first) = first {
            self.clock.sleep(between(self.clock.now(), first)).await;
            self.moved.notify_waiters();
        }
    }
}

/// A client in a history.
struct Player<'h> {
    cloud: &'h dyn Cloud,
    provider: Arc<dyn Provider>,
    clock: Arc<dyn Clock>,
    turns: &'h Turns,
    dice: &'h mut Dice,
}

impl Player<'_> {
    async fn pause(&mut self, least: u64, most: u64) {
        let pause = self.dice.seconds(least, most);
        self.turns.sleep(pause).await;
    }

    /// Asks for an attempt until there is one. False: the client may be gone for ever between any two calls.
    async fn provision(&mut self, books: &mut Books, plan: &Plan) -> bool {
        for _ in 0..=TRIES {
            if self.dice.below(40) == 0 {
                return false;
            }
            let Err(error) = self.provider.provision(&books.attempt, plan, &self.cloud.image()).await else { return true };
            self.pause(1, HOUR).await;
            if error.class != Class::Network {
                books.earliest = self.clock.now();
            }
        }
        false
    }

    /// Looks at the attempt now and then, until it is over or given up; neither while the cloud cannot be asked what it had.
    async fn watch(&mut self, books: &mut Books) {
        let end = self.clock.now() + self.dice.seconds(10, 2 * DAY);
        loop {
            if let Ok(seen) = self.provider.observe(&books.attempt).await
                && books.note(self.provider.as_ref(), &seen).await.is_ok()
                && (!matches!(seen, Sighting::Alive { .. } | Sighting::Queued { .. }) || self.clock.now() >= end)
            {
                return;
            }
            self.pause(30, 4 * HOUR).await;
        }
    }

    /// False: it has no patience any more.
    async fn destroy(&mut self, job: &JobId) -> bool {
        for _ in 0..13 {
            if self.provider.destroy(job).await.is_ok() {
                return true;
            }
            self.pause(1, 300).await;
        }
        false
    }

    /// The job's attempts, until the client is gone.
    async fn carry(&mut self, wanted: &Plan, job: &JobId) {
        let mut earlier: Vec<Life> = Vec::new();
        for number in 1..=ATTEMPTS {
            let Some(left) = wanted.left(&earlier, wanted.nodes) else { return };
            let attempt = AttemptId::new(job, number);
            let mut books = Books { attempt, earliest: self.clock.now(), started: None, was_queued: false };
            if !self.provision(&mut books, &left).await {
                return;
            }
            if self.dice.below(10) > 0 {
                let _ = self.provider.launch(&order(&books.attempt)).await;
            }
            self.watch(&mut books).await;
            if self.dice.below(12) == 0 || !self.destroy(job).await {
                return;
            }
            let life = |started| Life { time: between(started, self.clock.now()), nodes: wanted.nodes };
            earlier.extend(books.started.map(life));
        }
    }
}

/// A job for a history, with a time and a ceiling; `None` for one that is refused.
async fn drawn(provider: &dyn Provider, mut wanted: Plan, dice: &mut Dice) -> Option<Plan> {
    wanted.ttl = Span(dice.seconds(300, 7 * DAY));
    wanted.max_cost = Some(Money { micros: dice.between(50_000, 100_000_000) });
    wanted.max_wait = Span(dice.seconds(60, 2 * DAY));
    let price = price(provider, &wanted).await?;
    wanted.priced(price).ok()
}

/// Plays one as `lifecycle` does, whatever comes. In a third there are two jobs, which share what they can, and of which one may
/// begin long after the other.
async fn play(cloud: &dyn Cloud, dice: &mut Dice) -> End {
    let (provider, clock) = (cloud.player(), cloud.clock());
    let plan = cloud.plan(dice);
    let names = if dice.below(3) == 0 { &["history", "other"][..] } else { &["history"] };
    let mut jobs = Vec::new();
    for name in names {
        let wanted = drawn(provider.as_ref(), plan.clone(), dice).await;
        jobs.extend(wanted.map(|wanted| (attempt(name).job, wanted, Dice(dice.below(1 << 31)))));
    }
    let turns = &Turns::new(clock.clone(), jobs.len());
    let played = jobs.iter_mut().map(|(job, wanted, dice)| {
        let mut player = Player { cloud, provider: provider.clone(), clock: clock.clone(), turns, dice };
        async move {
            if player.dice.below(2) == 0 {
                player.pause(60, DAY / 2).await;
            }
            player.carry(wanted, job).await;
            turns.leave().await;
        }
    });
    join_all(played).await;
    // No client is there any more: the cloud alone ends the rest.
    let lifetimes: Duration = jobs.iter().map(|(_, wanted, _)| wanted.lifetime()).sum();
    clock.sleep(cloud.turn() + lifetimes + REST).await;
    sleep(Duration::from_millis(100)).await;
    let bill = cloud.bill().await;
    let left = bill["machines"].as_array().expect("machines").iter().filter(|machine| machine["exists"] == true).count();
    let cost = bill["total"].as_str().and_then(|total| total.parse().ok()).expect("money");
    End { ceiling: jobs.iter().filter_map(|(_, wanted, _)| wanted.max_cost).sum(), cost, left }
}

/// Plays each history on a cloud of its own, with its own script. A panic names those that cost too much or left something.
pub async fn play_all<C: Cloud, F: Future<Output = C>>(script: fn(&mut Dice) -> Value, cloud: fn(Value) -> F) {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    let histories = number("FT_HISTORY").map_or(0..number("FT_HISTORIES").unwrap_or(USUAL), |one| one..one + 1);
    let played = stream::iter(histories).map(|seed| async move {
        let mut dice = Dice(seed ^ 0x9e37_79b9_7f4a_7c15);
        let cloud = cloud(script(&mut dice)).await;
        (seed, play(&cloud, &mut dice).await)
    });
    let played: Vec<(u64, End)> = played.buffer_unordered(AT_ONCE).collect().await;
    let wrong = played.iter().filter(|(_, end)| end.cost > end.ceiling || end.left > 0);
    let wrong = wrong.map(|(seed, End { ceiling, cost, left })| format!("{seed}: {cost} of at most {ceiling}, {left} left"));
    assert_eq!(wrong.collect::<Vec<_>>(), [""; 0]);
    let spent = played.iter().filter(|(_, end)| end.cost > Money::ZERO).count();
    assert!(spent * 2 > played.len(), "most histories have machines: {spent} of {}", played.len());
}
