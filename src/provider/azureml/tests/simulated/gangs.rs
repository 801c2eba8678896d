//! A job of two nodes, each with an agent.

use super::*;

impl Place {
    fn plan_of_two(&self) -> Plan {
        Plan { nodes: 2, processes: 2, ..self.plan() }
    }

    /// Asks for an attempt of two nodes, and returns when each has an agent.
    async fn begun(&self, attempt: &AttemptId) {
        self.provider().provision(attempt, &self.plan_of_two(), &image()).await.expect("provisioned");
        self.until(attempt, |_| (0..2).all(|node| self.node(attempt, node).join("starts").exists())).await;
    }

    fn finish_node(&self, attempt: &AttemptId, node: usize) {
        fs::write(self.node(attempt, node).join("finish"), "").expect("written");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gang_has_an_agent_on_each_node_and_is_over_when_all_are() {
    let (place, one) = (Place::new(json!({})).await, attempt("gang"));
    place.begun(&one).await;
    // Another client finds it.
    place.provider().provision(&one, &place.plan_of_two(), &image()).await.expect("found");
    let price = place.provider().price(&place.plan()).await.expect("a price").per_hour;
    let listed = place.provider().list().await.expect("listed");
    assert_eq!(listed.iter().map(|found| found.price_per_hour.micros).collect::<Vec<_>>(), [2 * price.micros], "of both nodes");
    assert_eq!(place.provider().price(&place.plan_of_two()).await.expect("a price").per_hour.micros, 2 * price.micros);
    let ranks = [0, 1].map(|node| fs::read_to_string(place.node(&one, node).join("rank")).expect("written"));
    assert_eq!(ranks, ["0 of 2 on 0\n", "1 of 2 on 1\n"]);
    place.finish_node(&one, 1);
    sleep(Duration::from_millis(200)).await;
    assert_eq!(place.provider().observe(&one).await, Ok(Sighting::Alive { agent: true }), "the other works");
    place.finish_node(&one, 0);
    let seen = place.until(&one, |seen| !matches!(seen, Sighting::Alive { .. })).await;
    assert_eq!(seen, Sighting::Dead { why: "the job is completed".to_owned() });
    place.provider().destroy(&one.job).await.expect("destroyed");
    assert_eq!(place.provider().list().await, Ok(Vec::new()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gang_that_loses_a_node_is_taken_away_as_a_whole_and_comes_back() {
    let (place, one) = (Place::new(json!({ "notice": "1s" })).await, attempt("gang"));
    place.begun(&one).await;
    place.take(&one, 1).await;
    let seen = place.until(&one, |seen| matches!(seen, Sighting::Dead { .. })).await;
    assert_eq!(seen, Sighting::Dead { why: "preempted".to_owned() });
    let two = AttemptId::new(&one.job, 2);
    place.begun(&two).await;
    let other = attempt("other");
    place.provisioned(&other).await;
    place.until(&other, |seen| *seen == Sighting::Alive { agent: true }).await;
    assert_eq!(place.provider().clusters().await.expect("listed").len(), 1, "with room for three nodes");
    place.provider().destroy(&one.job).await.expect("destroyed");
    assert_eq!(place.provider().observe(&other).await, Ok(Sighting::Alive { agent: true }), "left alone");
    place.provider().destroy(&other.job).await.expect("destroyed");
    let bill = place.pull(reqwest::Method::GET, "bill").await;
    let machines = bill["machines"].as_array().expect("machines");
    assert!(machines.len() >= 4 && machines.iter().all(|machine| machine["exists"] == false), "{machines:?}");
}

/// The quota is for two nodes, of which another job has one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gang_that_has_room_for_fewer_nodes_is_there_with_them() {
    let (place, one) = (Place::new(json!({ "quotas": { "TotalLowPriorityCores": 8 } })).await, attempt("gang"));
    let other = attempt("other");
    place.provisioned(&other).await;
    place.until(&other, |seen| *seen == Sighting::Alive { agent: true }).await;
    let (whole, mut plan) = (place.plan_of_two(), place.plan_of_two());
    plan.retry.shrink = true;
    let rooms = [place.provider().room(&whole).await, place.provider().room(&plan).await];
    assert_eq!(rooms.each_ref().map(|found| found[0].health), [Health::Bad, Health::Notice], "{rooms:?}");
    assert!(rooms[1][0].message.contains("room for fewer nodes: low-priority vCPUs of all sizes: 4 of 8 used, 8 needed for all"));
    place.provider().provision(&one, &plan.on(1), &image()).await.expect("provisioned");
    place.until(&one, |_| place.node(&one, 0).join("starts").exists()).await;
    assert_eq!(fs::read_to_string(place.node(&one, 0).join("rank")).expect("written"), "0 of 1 on 0\n");
    let price = place.provider().price(&place.plan()).await.expect("a price").per_hour;
    let listed = place.provider().list().await.expect("listed");
    let ours = listed.iter().filter(|found| found.attempt == one).map(|found| found.price_per_hour);
    assert_eq!(ours.collect::<Vec<_>>(), [price], "of the one");
    place.provider().destroy(&one.job).await.expect("destroyed");
    place.provider().destroy(&other.job).await.expect("destroyed");
}

/// The same, said by the cluster while the attempt is in the queue, which it leaves for the next.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gang_that_waits_for_all_leaves_the_queue_for_one_of_fewer_nodes() {
    let script = json!({ "quotas": { "TotalLowPriorityCores": 4 }, "quota_refusal": "allocation" });
    let (place, one) = (Place::new(script).await, attempt("gang"));
    place.provider().provision(&one, &place.plan_of_two(), &image()).await.expect("queued");
    place.until(&one, |seen| matches!(seen, Sighting::Queued { why, .. } if why.contains("0 of 2 nodes"))).await;
    place.provider().destroy(&one.job).await.expect("destroyed");
    let two = AttemptId::new(&one.job, 2);
    place.provider().provision(&two, &place.plan_of_two().on(1), &image()).await.expect("provisioned");
    place.until(&two, |seen| *seen == Sighting::Alive { agent: true }).await;
    place.provider().destroy(&one.job).await.expect("destroyed");
    assert_eq!(place.provider().list().await, Ok(Vec::new()));
}
