//! A whole life on the simulated cloud and its clock, in which every zone is out of stock at first.

use super::*;
use crate::{
    exit::Exit,
    hub::Hub,
    job::{order::RunOrder, record::Record, report::Silent, spec::RetryCause, state::State, units::Span},
    lifecycle::{
        self,
        adoption::Adoption,
        drive::{Until, drive},
        journal::Journal,
        receipt::{Receipt, receipt},
    },
    store::{lease::Holder, read_json},
};

const TTL: Duration = Duration::from_secs(100);

/// Carries a job to its end whose zones have machines after `shortage`. Answers its record and its receipt.
async fn live(place: &Place, shortage: Duration, change: impl FnOnce(&mut Plan)) -> (Record, Receipt) {
    let clock: Arc<dyn Clock> = place.devcloud.clone();
    let mut gce = place.provider();
    gce.clock = clock.clone();
    let zones = vec!["us-central1-a".into(), "us-central1-b".into()];
    let mut wanted = on(GcePlan { zones, image: Some("registry.example/ftctl@sha256:00".to_owned()), ..GcePlan::default() });
    (wanted.ttl, wanted.retry.on) = (Span(TTL), vec![RetryCause::Capacity]);
    (wanted.retry.backoff, wanted.retry.max_backoff) = (Span(Duration::from_secs(10)), Span(Duration::from_secs(30)));
    change(&mut wanted);
    let price = gce.price(&wanted).await.expect("a price");
    let wanted = wanted.priced(price).expect("it pays for a minute");
    let world = lifecycle::World {
        store: place.store.clone(),
        provider: Arc::new(gce),
        clock: clock.clone(),
        report: Arc::new(Silent),
        cache: place.state.path().join("cache"),
        hub: Hub::new(&|_| None, None, place.state.path()),
        everybody: false,
        supervisor: Holder::this_process(0),
        adoption: Adoption::new(place.state.path(), true),
        listeners: Vec::new(),
    };
    let mut record = Record::new(attempt("tiny").job, wanted, clock.now());
    let crate::job::plan::DataPlan::Digest(digest) = record.plan.data.clone() else { panic!("a digest") };
    (record.state, record.submitted, record.dataset) = (State::Imaging, true, Some(digest));
    let (id, over) = (record.id.clone(), clock.now() + shortage);
    Journal::create(&world, record).await.expect("a record");
    let restocked = async {
        while clock.now() < over {
            sleep(Duration::from_millis(2)).await;
        }
        place.pull(reqwest::Method::PUT, "script", &json!({ "boot": "1s", "notice": "0s" })).await;
        std::future::pending::<()>().await;
    };
    let record = tokio::select! {
        record = drive(&world, &id, Until::Finished) => record.expect("driven to its end"),
        () = restocked => unreachable!("the job ends first"),
    };
    let receipt = receipt(&record, clock.now());
    (record, receipt)
}

async fn without_stock() -> Place {
    // At the pace of the wall: the lives of its machines are what is measured, and time that matters is skipped.
    Place::at_speed(1.0, json!({ "boot": "1s", "notice": "0s", "stock_outs": ["us-central1-a", "us-central1-b"] })).await
}

#[tokio::test]
async fn a_wait_of_three_times_the_time_to_live_leaves_all_of_it_and_costs_nothing() {
    let place = without_stock().await;
    let (record, receipt) = Box::pin(live(&place, 3 * TTL, |_| {})).await;
    let attempt = &record.attempts[0];
    let started = attempt.started.expect("a machine");
    assert!(receipt.waited_seconds >= 300 && between(record.created, started) >= 3 * TTL, "{receipt:?}");
    let (order, _): (RunOrder, _) =
        read_json(place.store.as_ref(), &crate::job::id::path::order(&record.id)).await.expect("an order");
    assert_eq!((order.deadline, order.lifetime_seconds), (Some(started + TTL), Some(100)), "the whole time to live");
    // The cloud ends it half a minute before, by its own clock.
    assert!((60..=130).contains(&receipt.machine_seconds), "{receipt:?}");
    let bill = place.bill().await;
    assert_eq!(bill["machines"].as_array().map(Vec::len), Some(1), "{bill}");
    assert_eq!(bill["machines"][0]["exists"], false);
    let billed: Money = bill["total"].as_str().and_then(|total| total.parse().ok()).expect("money");
    assert!(billed > Money::ZERO && billed <= record.plan.worst_case && receipt.cost <= record.plan.worst_case, "{bill}");
}

#[tokio::test]
async fn a_wait_has_a_bound_and_leaves_nothing() {
    let place = without_stock().await;
    let (record, receipt) = Box::pin(live(&place, 10 * TTL, |plan| plan.max_wait = Span(Duration::from_secs(70)))).await;
    assert_eq!(record.exit, Some(Exit::Capacity as u8));
    let reason = record.reason.expect("a reason");
    assert!(reason.contains("limits.max_wait") && reason.contains("us-central1-a: out of stock"), "{reason}");
    assert_eq!((receipt.machine_seconds, receipt.cost, receipt.may_still_bill), (0, Money::ZERO, false));
    assert!((70..=75).contains(&receipt.waited_seconds), "{receipt:?}");
    assert_eq!(place.bill().await["machines"], json!([]));
}
