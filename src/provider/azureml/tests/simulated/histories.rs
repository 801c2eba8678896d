//! Random lives of jobs on the simulated Azure ML.

use super::*;
use crate::provider::conformance::histories::{Cloud, DAY, Dice, play_all};

/// Nodes come after so long at most.
const QUEUE: u64 = DAY / 4;

fn script(dice: &mut Dice) -> Value {
    let faults = dice.faults([
        "Compute_CreateOrUpdate",
        "Compute_Get",
        "Compute_Delete",
        "Operations_Get",
        "Jobs_CreateOrUpdate",
        "Jobs_Get",
        "Jobs_List",
        "Jobs_Cancel",
        "RunHistory_GetDetails",
    ]);
    let one_in = |dice: &mut Dice, sides| dice.below(sides) == 0;
    let out: Vec<&str> = one_in(dice, 6).then_some("Standard_NC4as_T4_v3").into_iter().collect();
    let preemption = |dice: &mut Dice, (number, after): (u64, u64)| json!({ "job": format!("-a{number}"), "after": format!("{after}s"), "restarts": one_in(dice, 3) });
    let preemptions: Vec<Value> = dice.losses().into_iter().map(|loss| preemption(dice, loss)).collect();
    let unfit: Vec<Value> =
        one_in(dice, 6).then(|| json!({ "job": format!("-a{}", dice.below(3) + 1), "kind": "no_image" })).into_iter().collect();
    let refusal = ["request", "operation", "allocation"][dice.below(3) as usize];
    // For so many nodes: a second job, or a second node, may have to wait for the first one's end.
    let cores = 4 * (dice.below(3) + 1);
    let quotas = if one_in(dice, 4) { json!({ "TotalLowPriorityCores": cores, "standardNCASv3Family": cores }) } else { json!({}) };
    let allocation = format!("{}s", dice.between(1, QUEUE));
    let mut span = |sides| format!("{}s", dice.below(sides));
    json!({
        "quotas": quotas, "quota_refusal": refusal, "allocation": allocation, "boot": span(240), "preparation": span(240), "operation": span(10), "leaving": span(30),
        "price_factor": dice.price_factor(), "notice": "0s", "farewell": "0s", "faults": faults, "stock_outs": out, "preemptions": preemptions,
        "troubles": unfit, "timeout_from_submission": one_in(dice, 2),
    })
}

#[async_trait]
impl Cloud for Place {
    fn clock(&self) -> Arc<dyn Clock> {
        self.devcloud.clone()
    }

    fn player(&self) -> Arc<dyn Provider> {
        Arc::new(Azureml { clock: self.devcloud.clone(), ..self.provider() })
    }

    /// One or two nodes, of a cluster or without one; some cannot be taken away. Two only where they are found soon: the first is
    /// billed while it waits for the second, which is beyond the ceiling (docs/decisions/0034).
    fn plan(&self, dice: &mut Dice) -> Plan {
        let compute = if dice.below(3) == 0 { Placement::Serverless } else { Placement::Cluster };
        let spec = AzuremlSpec { compute: Some(compute), spot: Some(dice.below(4) > 0), ..AzuremlSpec::default() };
        let nodes = if self.allocation <= Duration::from_secs(60) && dice.below(3) > 0 { 2 } else { 1 };
        Plan { nodes, processes: nodes, ..plan_of(spec) }
    }

    fn image(&self) -> TrainerImage {
        image()
    }

    async fn bill(&self) -> Value {
        self.pull(reqwest::Method::GET, "bill").await
    }

    /// A cluster is made, and its nodes are found; once more for a run that the service starts again.
    fn turn(&self) -> Duration {
        Duration::from_secs(120 + 2 * QUEUE)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_history_costs_more_than_its_ceiling_and_nothing_outlives_it() {
    play_all(script, Place::new).await;
}
