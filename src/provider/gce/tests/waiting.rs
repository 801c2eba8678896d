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
    without_stock_at(1.0).await
}

async fn without_stock_at(speed: f64) -> Place {
    Place::at_speed(speed, json!({ "boot": "1s", "notice": "0s", "stock_outs": ["us-central1-a", "us-central1-b"] })).await
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
async fn the_cloud_says_when_a_machine_ended() {
    let unfit = TrainerImage::Image { reference: "registry.example/unpullable@sha256:00".to_owned() };
    for (image, is_taken) in [(image(), true), (unfit, false)] {
        let place = Place::new(json!({ "boot": "1s", "notice": "0s" })).await;
        let (provider, attempt) = (place.provider(), attempt("job"));
        let before = place.devcloud.now();
        provider.provision(&attempt, &plan(), &image).await.expect("made");
        if is_taken {
            until("a machine", async || provider.find(&attempt).await.expect("seen").is_some_and(|machine| is_on(&machine))).await;
            assert_eq!(provider.ended(&attempt).await, Ok(None));
            provider.preempt(&attempt).await.expect("taken");
        } else {
            provider.launch(&order(&attempt)).await.expect("told");
        }
        let is_over = |seen: Sighting| matches!(seen, Sighting::Dead { .. } | Sighting::Unfit { .. });
        until("its end", async || is_over(provider.observe(&attempt).await.expect("seen"))).await;
        let after = place.devcloud.now();
        place.devcloud.skip(Duration::from_secs(6 * 3_600));
        let ended = provider.ended(&attempt).await.expect("told").expect("known");
        assert!(before <= ended && ended <= after + Duration::from_secs(120), "{before} {ended} {after}");
        provider.destroy(&attempt.job).await.expect("destroyed");
    }
}

/// The answer to the request for it was lost, and its client came back too late.
#[tokio::test]
async fn a_machine_that_lived_unseen_is_not_made_again() {
    let place = Place::new(json!({ "boot": "1s", "notice": "0s" })).await;
    let (provider, attempt, before) = (place.provider(), attempt("job"), place.devcloud.now());
    assert_eq!(provider.began(&attempt).await, Ok(None));
    provider.provision(&attempt, &plan(), &image()).await.expect("made");
    let after = place.devcloud.now();
    place.devcloud.skip(plan().lifetime() + Duration::from_secs(60));
    until("its end", async || provider.find(&attempt).await.expect("seen").is_none()).await;

    assert_eq!(provider.provision(&attempt, &plan(), &image()).await, Ok(Vec::new()));
    assert_eq!(provider.observe(&attempt).await, Ok(Sighting::Gone));
    let began = provider.began(&attempt).await.expect("told").expect("known");
    // Google's times have milliseconds.
    assert!(before - Duration::from_secs(1) <= began && began <= after, "{before} {began} {after}");
    assert_eq!(place.bill().await["machines"].as_array().map(Vec::len), Some(1));
}

/// A group whose machines the cloud makes by itself.
fn by_a_group(plan: &mut Plan) {
    let wanted = wanted_mut(plan);
    (wanted.recovery, wanted.service_account) = (Recovery::Group, Some("machine@my-project.iam.gserviceaccount.com".into()));
}

#[tokio::test]
async fn a_group_without_a_machine_waits_at_no_cost() {
    let place = without_stock_at(8.0).await;
    let (record, receipt) = Box::pin(live(&place, 20 * TTL, |plan| {
        by_a_group(plan);
        (plan.ttl, plan.max_wait) = (Span(10 * TTL), Span(Duration::from_secs(50)));
    }))
    .await;
    assert_eq!(record.exit, Some(Exit::Capacity as u8), "{record:?}");
    let reason = record.reason.expect("a reason");
    assert!(reason.contains("does not have enough resources"), "{reason}");
    assert_eq!((receipt.machine_seconds, receipt.cost), (0, Money::ZERO), "{receipt:?}");
    assert!(place.nothing_is_left().await);

    // The kill switch of its machines does not wait.
    let place = without_stock_at(8.0).await;
    let (record, receipt) = Box::pin(live(&place, 20 * TTL, by_a_group)).await;
    assert_eq!(record.exit, Some(Exit::Deadline as u8), "{record:?}");
    assert_eq!((receipt.machine_seconds, receipt.cost), (0, Money::ZERO), "{receipt:?}");
    assert!(receipt.waited_seconds >= 100 && place.nothing_is_left().await, "{receipt:?}");

    let place = without_stock_at(8.0).await;
    let (record, receipt) = Box::pin(live(&place, TTL / 2, |plan| {
        by_a_group(plan);
        plan.ttl = Span(3 * TTL);
    }))
    .await;
    let started = record.attempts[0].started.unwrap_or_else(|| panic!("no machine: {record:?}"));
    let waited = between(record.created, started).as_secs();
    assert!(waited >= 50 && (1..=320 - waited).contains(&receipt.machine_seconds), "{receipt:?} {record:?}");
}

#[tokio::test]
async fn a_group_that_may_not_wait_has_its_machine_or_ends_at_once() {
    let place = without_stock_at(8.0).await;
    let no_wait = |plan: &mut Plan| {
        by_a_group(plan);
        plan.retry.on = vec![RetryCause::Preempt];
    };
    let (record, receipt) = Box::pin(live(&place, 20 * TTL, no_wait)).await;
    assert_eq!((record.exit, receipt.cost), (Some(Exit::Capacity as u8), Money::ZERO), "{record:?}");
    let place = Place::at_speed(8.0, json!({ "boot": "1s", "notice": "0s" })).await;
    let (record, receipt) = Box::pin(live(&place, Duration::ZERO, no_wait)).await;
    assert!(record.exit != Some(Exit::Capacity as u8) && receipt.machine_seconds > 0, "{record:?}");
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
