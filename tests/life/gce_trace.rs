//! Jobs on spot machines that come and go as V100s did. What zones do is drawn with the statistics of two public traces, one of each of two
//! zones, of whether one V100 was to be had: `availability/1-node/aws-10-26-2022` of skypilot-org/spot-traces on GitHub, 27 days in steps of
//! ten minutes, published with "Can't Be Late" (NSDI 2024). Computed from them: spells with machines of 4.05 h in the mean and 0.5 h in the
//! median in the one zone, 2.70 h and 1.17 h in the other; spells without of 1.07 h and 0.5 h, and of 1.07 h and 0.33 h. Lengths are drawn
//! from log-normal distributions with these means and medians. An hour of the trace passes in two seconds.
//!
//! `FT_TRACE=150` carries so many jobs to their ends; the trace is two weeks long after about eleven minutes.

use std::{
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use crate::{
    devcloud::{Devcloud, on_gce},
    sandbox::Sandbox,
};

const USUAL: u64 = 6;
const AT_ONCE: usize = 3;
const STEPS: u64 = 4_000;
const CHECKPOINT_EVERY: u64 = 200;
const HOUR: Duration = Duration::from_secs(2);

/// Hours, in the mean and in the median.
#[derive(Clone, Copy)]
struct Spells {
    mean: f64,
    median: f64,
}

/// With machines and without, in each zone.
const ZONES: [(&str, [Spells; 2]); 2] = [
    ("us-central1-a", [Spells { mean: 4.05, median: 0.5 }, Spells { mean: 1.07, median: 0.5 }]),
    ("us-central1-b", [Spells { mean: 2.70, median: 1.17 }, Spells { mean: 1.07, median: 0.33 }]),
];

/// Numerical Recipes' generator: a trace is its seed.
struct Dice(u64);

impl Dice {
    /// Between 0 and 1, and neither.
    fn chance(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as f64 + 0.5) / 2f64.powi(31)
    }

    /// Box and Muller's.
    fn normal(&mut self) -> f64 {
        (-2.0 * self.chance().ln()).sqrt() * (std::f64::consts::TAU * self.chance()).cos()
    }

    /// A length in hours. A log-normal distribution's mean is its median times exp(σ²/2).
    fn length(&mut self, spells: Spells) -> f64 {
        let sigma = (2.0 * (spells.mean / spells.median).ln()).sqrt();
        spells.median * (sigma * self.normal()).exp()
    }
}

/// Lets zones have machines and lose them until it is told that all is over. Answers for how many hours and how often each.
fn play(devcloud: &Devcloud, over: &AtomicBool) -> Vec<(f64, u32)> {
    let begun = Instant::now();
    let mut dice = Dice(2022);
    let mut zones: Vec<Zone> = ZONES.iter().map(|(name, spells)| Zone::new(name, *spells, &mut dice)).collect();
    while !over.load(Ordering::Relaxed) {
        let now = begun.elapsed().as_secs_f64() / HOUR.as_secs_f64();
        for index in 0..zones.len() {
            if zones[index].until > now {
                continue;
            }
            zones[index].turn(&mut dice);
            let out: Vec<&str> = zones.iter().filter(|zone| zone.out).map(|zone| zone.name).collect();
            devcloud.goes_wrong(&serde_json::json!({ "boot": "1s", "stock_outs": out }).to_string());
            if zones[index].out {
                devcloud.take_away(zones[index].name);
            }
        }
        thread::sleep(Duration::from_millis(50));
    }
    let hours = begun.elapsed().as_secs_f64() / HOUR.as_secs_f64();
    zones.iter().map(|zone| (hours, zone.outages)).collect()
}

struct Zone {
    name: &'static str,
    spells: [Spells; 2],
    out: bool,
    /// In hours since the beginning.
    until: f64,
    outages: u32,
}

impl Zone {
    fn new(name: &'static str, spells: [Spells; 2], dice: &mut Dice) -> Self {
        Self { name, spells, out: false, until: dice.length(spells[0]), outages: 0 }
    }

    fn turn(&mut self, dice: &mut Dice) {
        self.out = !self.out;
        self.until += dice.length(self.spells[usize::from(self.out)]);
        self.outages += u32::from(self.out);
    }
}

#[test]
#[ignore = "needs the trainer: tests/run builds it"]
fn jobs_on_spot_machines_that_come_and_go_all_end_and_lose_little() {
    let jobs = std::env::var("FT_TRACE").ok().and_then(|count| count.parse().ok()).unwrap_or(USUAL);
    let mut sandbox = Sandbox::new();
    let devcloud = Devcloud::start(&mut sandbox, "10");
    devcloud.goes_wrong(r#"{ "boot": "1s" }"#);
    let over = AtomicBool::new(false);
    let (next, expected) = (AtomicU64::new(0), Mutex::new(None));
    let (preemptions, lost, worst) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let work = || {
        let numbers = std::iter::from_fn(|| Some(next.fetch_add(1, Ordering::Relaxed)).filter(|number| *number < jobs));
        for number in numbers {
            let name = format!("job-{number}");
            carry(&sandbox, &name);
            let receipt = sandbox.json(&["bill", &name]);
            let attempts = receipt["attempts"].as_array().unwrap();
            for attempt in attempts.iter().filter(|attempt| attempt["reason"] != "succeeded") {
                let again = attempt["lost_steps"].as_u64().unwrap();
                assert!(again <= CHECKPOINT_EVERY, "{name} lost more than lies between two checkpoints: {attempt}");
                preemptions.fetch_add(1, Ordering::Relaxed);
                lost.fetch_add(again, Ordering::Relaxed);
                worst.fetch_max(again, Ordering::Relaxed);
            }
            let results = sandbox.results(&name);
            let mut expected = expected.lock().unwrap();
            assert!(*expected.get_or_insert_with(|| results.clone()) == results, "{name}: other bytes than the first's");
        }
    };
    let zones = thread::scope(|scope| {
        let player = scope.spawn(|| play(&devcloud, &over));
        let workers: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(work)).collect();
        let ended: Vec<_> = workers.into_iter().map(thread::ScopedJoinHandle::join).collect();
        over.store(true, Ordering::Relaxed);
        let zones = player.join().unwrap();
        assert!(ended.iter().all(Result::is_ok), "one failed; it says why above");
        zones
    });
    assert!(devcloud.nothing_bills() && devcloud.instances().is_empty(), "{:?}", devcloud.instances());
    let (preemptions, lost, worst) = (preemptions.into_inner(), lost.into_inner(), worst.into_inner());
    assert!(preemptions > 0, "no machine was taken away");
    println!(
        "{jobs} jobs of {STEPS} steps; {:.0} h of the trace, outages {:?}; {preemptions} attempts ended before their time; \
         {lost} steps done again, at most {worst} at once of {CHECKPOINT_EVERY} between two checkpoints",
        zones[0].0,
        zones.iter().map(|zone| zone.1).collect::<Vec<_>>(),
    );
}

/// A job from its file to its receipt.
fn carry(sandbox: &Sandbox, name: &str) {
    let job = on_gce(sandbox, name, STEPS, "ftctl");
    let (zones, every) = (zones(), format!("train.checkpoint_every={CHECKPOINT_EVERY}"));
    let sets = [zones.as_str(), &every, "retry.backoff=1s", "retry.max_backoff=1s", "train.log_every=50"];
    let sets = sets.iter().flat_map(|set| ["--set", set]);
    let arguments: Vec<&str> = ["run", job.to_str().unwrap(), "--ttl", "30d", "--quiet"].into_iter().chain(sets).collect();
    sandbox.ok(&arguments);
}

fn zones() -> String {
    let names: Vec<&str> = ZONES.iter().map(|(name, _)| *name).collect();
    format!("compute.gce.zones={names:?}")
}

#[test]
fn what_is_drawn_has_the_statistics_of_the_traces() {
    for spells in ZONES.iter().flat_map(|(_, both)| both) {
        let mut dice = Dice(1);
        let mut lengths: Vec<f64> = (0..100_000).map(|_| dice.length(*spells)).collect();
        lengths.sort_by(f64::total_cmp);
        let mean = lengths.iter().sum::<f64>() / lengths.len() as f64;
        let median = lengths[lengths.len() / 2];
        assert!((median / spells.median - 1.0).abs() < 0.05, "median {median} instead of {}", spells.median);
        assert!((mean / spells.mean - 1.0).abs() < 0.1, "mean {mean} instead of {}", spells.mean);
    }
}
