//! Machines, groups and templates of others in the same project, which no verb of ours may touch: with labels of theirs, with none,
//! with our names, and in a cloud whose lists answer with more than was asked for.

use super::*;
use crate::provider::{Belongs, Whose};

const ZONE: &str = "us-central1-a";

impl Place {
    /// A machine with these labels, unknown here.
    async fn stranger(&self, zone: &str, name: &str, labels: Value) {
        let gce = self.provider();
        let (life, image) = (possible::LONGEST, image());
        let mut body = body::instance(&gce.client, &attempt("job"), &GcePlan::default(), &image, zone, life, gce.clock.now());
        (body["name"], body["labels"]) = (json!(name), labels);
        gce.client.change(Call::change(Method::POST, format!("zones/{zone}/instances"), Some(body))).await.expect("made");
    }

    /// Everything that there is, as a user of the console sees it.
    async fn everything(&self) -> Vec<String> {
        let client = self.provider().client;
        let named =
            |kind: &'static str, found: Vec<Value>| found.into_iter().map(move |one| format!("{kind} {}", last(&one["name"])));
        let machines = client.everywhere("instances", "").await.expect("listed");
        let groups = client.everywhere(group::GROUPS, "").await.expect("listed");
        let templates = client.call(Call::get("global/instanceTemplates")).await.expect("listed");
        let templates = templates["items"].as_array().cloned().unwrap_or_default();
        let found = named("machine", machines).chain(named("group", groups)).chain(named("template", templates));
        let mut found: Vec<String> = found.collect();
        found.sort();
        found
    }
}

/// A life of a job, alone or in a group, from the first machine to the proof that all are gone.
async fn life(place: &Place, wanted: &Plan, grouped: bool) {
    let (provider, attempt) = (place.provider(), attempt("job"));
    let order = RunOrder { last_attempt: grouped.then_some(20), ..order(&attempt) };
    provider.provision(&attempt, wanted, &image()).await.expect("made");
    provider.provision(&attempt, wanted, &image()).await.expect("found");
    provider.launch(&order).await.expect("told");
    provider.launch(&order).await.expect("told already");
    until("it lives", async || provider.observe(&attempt).await == Ok(Sighting::Alive { agent: true })).await;
    provider.signs(&attempt).await.expect("asked");
    provider.console(&attempt, 0).await.expect("read");
    provider.keep_the_oldest(&attempt).await.expect("agreed");
    place.devcloud.skip(Duration::from_secs(7_200));
    provider.destroy(&attempt.job).await.expect("destroyed");
    provider.tidy(false).await.expect("tidied");
    assert_eq!(provider.observe(&attempt).await, Ok(Sighting::Gone));
}

#[tokio::test]
async fn a_cloud_that_answers_with_more_than_was_asked_for_loses_nothing() {
    let place = Place::new(json!({ "boot": "1s", "ignores_filters": true })).await;
    place.stranger(ZONE, "prod-database", json!({})).await;
    place.stranger("us-east1-c", "web-1", json!({ "ftctl-job": attempt("another").job.as_str() })).await;
    place.stranger("us-west1-a", "web-2", json!({ "ftctl-owner": "x", "job": attempt("job").job.as_str() })).await;
    let theirs = place.provider_of(somebody());
    theirs.provision(&attempt("theirs"), &groups::grouped(), &image()).await.expect("made");
    let before = place.everything().await;
    assert_eq!(before.len(), 5, "{before:?}");
    for (wanted, grouped) in [(plan(), false), (groups::grouped(), true)] {
        life(&place, &wanted, grouped).await;
        let after = place.everything().await;
        let lost: Vec<&String> = before.iter().filter(|one| !after.contains(one)).collect();
        assert!(lost.is_empty(), "{lost:?}");
    }
    let touched = ["delete", "setMetadata", "simulateMaintenanceEvent"];
    let strangers = ["prod-database", "web-1", "web-2"];
    for call in place.calls().await {
        let verb = call["call"].as_str().and_then(|call| call.rsplit('.').next()).expect("a verb");
        assert!(!touched.contains(&verb) || !strangers.contains(&call["name"].as_str().expect("a name")), "{call}");
    }
}

#[tokio::test]
async fn what_only_has_our_name_is_in_the_way_and_stays() {
    let attempt = attempt("job");
    let other = attempt_of_another_store(&attempt).await;
    for (zone, labels, part) in [
        (ZONE, json!({}), "is not of this job"),
        // In another zone than the one that would be tried.
        ("us-west1-a", json!({}), "is not of this job"),
        ("us-west1-a", other, "of a job in another store"),
    ] {
        let place = Place::new(json!({})).await;
        place.stranger(zone, &attempt.machine_name(), labels).await;
        let provider = place.provider();
        let error = provider.provision(&attempt, &plan(), &image()).await.expect_err("in the way");
        assert_eq!(error.class, Class::Conflict, "{error}");
        assert!(error.message.contains(part) && error.message.contains(zone), "{error}");
        assert_eq!(provider.launch(&order(&attempt)).await.map_err(|error| error.class), Err(Class::Network));
        assert_eq!(provider.observe(&attempt).await, Ok(Sighting::Gone));
        provider.preempt(&attempt).await.expect_err("not ours");
        provider.destroy(&attempt.job).await.expect("nothing of ours is there");
        assert_eq!(place.everything().await, [format!("machine {}", attempt.machine_name())]);
        assert_eq!(place.changes().await.len(), 1, "only the stranger's own insert");
    }
}

/// Labels of an equal job of another store.
async fn attempt_of_another_store(attempt: &AttemptId) -> Value {
    let party = somebody();
    let mark = party.mark().await.expect("a store");
    json!({ "ftctl-job": attempt.job.as_str(), "ftctl-attempt": "1", "ftctl-owner": mark.owner, "ftctl-store": mark.store })
}

#[tokio::test]
async fn groups_and_templates_of_another_store_are_in_the_way_and_stay() {
    let place = Place::new(json!({ "boot": "1s" })).await;
    let (mine, theirs, attempt) = (place.provider(), place.provider_of(somebody()), attempt("job"));
    let grouped_order = RunOrder { last_attempt: Some(20), ..order(&attempt) };
    theirs.provision(&attempt, &groups::grouped(), &image()).await.expect("made");
    theirs.launch(&grouped_order).await.expect("told");
    until("a machine", async || theirs.find(&attempt).await.expect("seen").is_some()).await;
    let before = place.everything().await;
    let error = mine.provision(&attempt, &groups::grouped(), &image()).await.expect_err("in the way");
    assert!(error.class == Class::Conflict && error.message.contains("of a job in another store"), "{error}");
    assert_eq!(mine.launch(&grouped_order).await.map_err(|error| error.class), Err(Class::Network));
    assert_eq!(mine.observe(&attempt).await, Ok(Sighting::Gone));
    mine.destroy(&attempt.job).await.expect("nothing of ours is there");
    place.devcloud.skip(Duration::from_secs(4_000));
    mine.list().await.expect("the time");
    assert_eq!(mine.tidy(true).await, Ok(Vec::new()));
    assert_eq!(place.everything().await, before);
    let everybody = place.provider_of(Party { everybody: true, ..somebody() });
    everybody.destroy(&attempt.job).await.expect("destroyed");
    assert_eq!(place.everything().await, [""; 0]);
}

#[tokio::test]
async fn what_older_versions_made_goes_with_its_job_alone() {
    let place = Place::new(json!({})).await;
    let (provider, attempt) = (place.provider(), attempt("job"));
    let labels = json!({ "ftctl-job": attempt.job.as_str(), "ftctl-attempt": "1" });
    place.stranger(ZONE, &attempt.machine_name(), labels).await;
    assert_eq!(provider.list().await.expect("listed")[0].belongs, Belongs { whose: Whose::Unknown, owner: None, store: None });
    provider.provision(&attempt, &plan(), &image()).await.expect("found");
    let order = RunOrder { store: provider.store.url().to_owned(), ..order(&attempt) };
    provider.launch(&order).await.expect("told");
    let listed = provider.list().await.expect("listed");
    let store = Some(order.store);
    assert_eq!(listed[0].belongs, Belongs { whose: Whose::Ours, owner: None, store }, "its order says that it is of this store");
    provider.destroy(&attempt.job).await.expect("destroyed");
    assert_eq!(place.everything().await, [""; 0]);
}

#[tokio::test]
async fn labels_say_whose_a_machine_is_and_are_what_the_cloud_takes() {
    let place = Place::new(json!({})).await;
    let attempt = attempt("job");
    let party = Party::new("Älice B. \"C\"", place.store.clone());
    place.provider_of(party.clone()).provision(&attempt, &plan(), &image()).await.expect("made");
    let calls = place.calls().await;
    let insert = calls.iter().find(|call| call["call"] == "compute.instances.insert").expect("an insert");
    let labels = insert["body"]["labels"].as_object().expect("labels");
    let valid =
        |text: &str| text.len() <= 63 && text.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "-_".contains(c));
    assert!(labels.iter().all(|(key, value)| valid(key) && value.as_str().is_some_and(valid)), "{labels:?}");
    let belongs = |place: Gce| async move { place.list().await.expect("listed")[0].belongs.clone() };
    let mine = belongs(place.provider_of(party)).await;
    assert_eq!((mine.whose, mine.owner.as_deref(), mine.store.as_deref()), (Whose::Ours, Some("Älice B. \"C\""), Some("memory:")));
    let bob = belongs(place.provider_of(Party::new("bob", place.store.clone()))).await;
    assert_eq!((bob.whose, bob.owner.map(|owner| owner.len())), (Whose::OtherOwner, Some(8)));
    let elsewhere = belongs(place.provider_of(somebody())).await;
    assert_eq!((elsewhere.whose, elsewhere.store.map(|store| store.len())), (Whose::OtherStore, Some(8)));
    let filters = calls.iter().filter_map(|call| call["query"]["filter"].as_str());
    let filters: Vec<&str> = filters.filter(|filter| *filter != "labels.ftctl-job:*").collect();
    assert!(!filters.is_empty() && filters.iter().all(|filter| filter.ends_with('"')), "{filters:?}");
}
