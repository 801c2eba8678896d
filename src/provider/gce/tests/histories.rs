//! The most that jobs cost: random histories on the simulated cloud, with stock-outs, preemptions, lost answers, refused deletions,
//! and clients that are gone for ever. `FT_HISTORIES=1000` plays so many, `FT_HISTORY=816` that one alone.

use futures_util::{StreamExt, stream};

use super::*;
use crate::job::units::Span;

const USUAL: u64 = 24;
const AT_ONCE: usize = 8;

/// Numerical Recipes' generator: a history is its seed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }

    fn seconds(&mut self, least: u64, most: u64) -> Duration {
        Duration::from_secs(least + self.below(most - least))
    }
}

pub struct Simulated(pub Arc<Devcloud>);

#[async_trait]
impl Clock for Simulated {
    fn now(&self) -> Timestamp {
        self.0.now()
    }

    async fn sleep(&self, duration: Duration) {
        self.0.skip(duration);
    }
}

fn script(dice: &mut Dice) -> Value {
    let mut faults = Vec::new();
    for call in ["instances.insert", "zoneOperations.wait", "instances.aggregatedList", "instances.setMetadata", "instances.delete"]
    {
        let kind = [json!({ "status": 503 }), json!({ "status": 429 }), json!("lost_answer"), json!({ "status": 500 })];
        let kind = kind[dice.below(4) as usize].clone();
        faults.push(json!({ "call": format!("compute.{call}"), "kind": kind, "skip": dice.below(6), "times": dice.below(9) }));
    }
    let zones = ["us-central1-a", "us-central1-b"];
    let out: Vec<&str> = zones.into_iter().filter(|_| dice.below(3) == 0).collect();
    let preemptions: Vec<Value> = (1..=6)
        .filter(|_| dice.below(2) == 0)
        .collect::<Vec<u32>>()
        .iter()
        .map(|number| json!({ "instance": format!("-a{number}"), "after": format!("{}s", dice.below(3_000)) }))
        .collect();
    let price_factor = [0.7, 1.0, 1.6][dice.below(3) as usize];
    json!({ "price_factor": price_factor, "notice": "0s", "boot": format!("{}s", dice.below(120)), "faults": faults, "stock_outs": out, "preemptions": preemptions })
}

/// Plays one as `lifecycle` does, whatever comes; answers the ceiling and the bill.
async fn play(seed: u64) -> (Money, Money, usize) {
    let mut dice = Dice(seed ^ 0x9e37_79b9_7f4a_7c15);
    let place = Place::new(script(&mut dice)).await;
    let mut gce = place.provider();
    let clock = Arc::new(Simulated(place.devcloud.clone()));
    gce.clock = clock.clone();
    let mut wanted = plan();
    wanted_mut(&mut wanted).zones = vec!["us-central1-a".into(), "us-central1-b".into()];
    wanted.ttl = Span(dice.seconds(300, 20_000));
    wanted.max_cost = Some(Money { micros: 50_000 + dice.below(4_000_000) });
    let price = gce.price(&wanted).await.expect("a price");
    let wanted = wanted.priced(price).expect("it pays for a minute");
    let mut earlier: Vec<Duration> = Vec::new();
    'job: for number in 1..=12 {
        let Some(left) = wanted.left(&earlier) else { break };
        // Nothing of the wait is charged: the machine is since it was asked for, after the last answer that there is none.
        let mut begun = clock.now();
        let attempt = AttemptId { attempt: number, ..attempt("job") };
        for tried in 0.. {
            // A client may be gone for ever between any two calls.
            if dice.below(40) == 0 || tried > 20 {
                break 'job;
            }
            match gce.provision(&attempt, &left, &image()).await {
                Ok(_) => break,
                Err(error) => {
                    clock.sleep(dice.seconds(1, 120)).await;
                    if error.class != Class::Network {
                        begun = clock.now();
                    }
                }
            }
        }
        if dice.below(10) > 0 {
            let _ = gce.launch(&RunOrder { attempt: number, ..order(&attempt) }).await;
        }
        let end = clock.now() + dice.seconds(10, 4_000);
        while clock.now() < end && matches!(gce.observe(&attempt).await, Ok(Sighting::Alive { .. }) | Err(_)) {
            clock.sleep(dice.seconds(5, 600)).await;
        }
        if dice.below(12) == 0 {
            break;
        }
        let mut tries = 0;
        while gce.destroy(&attempt.job).await.is_err() {
            clock.sleep(dice.seconds(1, 300)).await;
            tries += 1;
            if tries > 12 {
                break 'job;
            }
        }
        earlier.push(between(begun, clock.now()));
    }
    // No client is there any more: the cloud alone ends the rest.
    clock.sleep(wanted.lifetime() + Duration::from_secs(30)).await;
    sleep(Duration::from_millis(100)).await;
    let bill = place.bill().await;
    let left = bill["machines"].as_array().expect("machines").iter().filter(|machine| machine["exists"] == true).count();
    let total = bill["total"].as_str().and_then(|total| total.parse().ok()).expect("money");
    (wanted.max_cost.expect("a ceiling"), total, left)
}

#[tokio::test]
async fn no_history_costs_more_than_its_ceiling_and_nothing_outlives_it() {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    let histories = number("FT_HISTORY").map_or(0..number("FT_HISTORIES").unwrap_or(USUAL), |one| one..one + 1);
    let played = stream::iter(histories).map(|seed| async move { (seed, play(seed).await) });
    let played: Vec<_> = played.buffer_unordered(AT_ONCE).collect().await;
    for (seed, (ceiling, total, left)) in &played {
        assert!(total <= ceiling, "history {seed} cost {total} of at most {ceiling}");
        assert_eq!(*left, 0, "history {seed} left machines");
    }
    let spent = played.iter().filter(|(_, (_, total, _))| *total > Money::ZERO).count();
    assert!(spent * 2 > played.len(), "most histories have machines: {spent} of {}", played.len());
}
