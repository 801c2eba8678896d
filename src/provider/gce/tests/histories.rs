//! Random lives of jobs on the simulated Compute Engine.

use super::*;
use crate::provider::conformance::histories::{Cloud, Dice, play_all};

const ZONES: [&str; 2] = ["us-central1-a", "us-central1-b"];

fn script(dice: &mut Dice) -> Value {
    let calls =
        ["instances.insert", "zoneOperations.wait", "instances.aggregatedList", "instances.setMetadata", "instances.delete"];
    let calls = calls.map(|call| format!("compute.{call}"));
    let faults = dice.faults(calls.iter().map(String::as_str));
    let out: Vec<&str> = ZONES.into_iter().filter(|_| dice.below(3) == 0).collect();
    let losses = dice.losses().into_iter();
    let preemptions: Vec<Value> =
        losses.map(|(number, after)| json!({ "instance": format!("-a{number}"), "after": format!("{after}s") })).collect();
    let price_factor = dice.price_factor();
    json!({
        "price_factor": price_factor, "notice": "0s", "boot": format!("{}s", dice.below(120)), "faults": faults, "stock_outs": out,
        "preemptions": preemptions,
    })
}

#[async_trait]
impl Cloud for Place {
    fn clock(&self) -> Arc<dyn Clock> {
        self.devcloud.clone()
    }

    fn player(&self) -> Arc<dyn Provider> {
        Arc::new(Gce { clock: self.devcloud.clone(), ..self.provider() })
    }

    fn plan(&self, _: &mut Dice) -> Plan {
        on(GcePlan { zones: ZONES.map(Into::into).into(), ..GcePlan::default() })
    }

    fn image(&self) -> TrainerImage {
        image()
    }

    async fn bill(&self) -> Value {
        Place::bill(self).await
    }
}

#[tokio::test]
async fn no_history_costs_more_than_its_ceiling_and_nothing_outlives_it() {
    play_all(script, Place::new).await;
}
