//! `recovery = "group"`: machines that the cloud replaces without ftctl.

use super::*;
use crate::job::{
    gce::{GceSpec, Recovery},
    units::Span,
};

pub fn grouped() -> Plan {
    let mut plan = plan();
    wanted_mut(&mut plan).zones = vec!["us-central1-a".into(), "us-central1-b".into()];
    (wanted_mut(&mut plan).recovery, wanted_mut(&mut plan).service_account) =
        (Recovery::Group, Some("machine@my-project.iam.gserviceaccount.com".into()));
    plan
}

fn grouped_order() -> RunOrder {
    RunOrder { last_attempt: Some(20), ..order(&attempt("job")) }
}

/// The calls that a group adds to those of a job's life.
pub const CALLS: [&str; 11] = [
    "regionInstanceGroupManagers.resize",
    "instanceTemplates.insert",
    "instanceTemplates.list",
    "instanceTemplates.delete",
    "globalOperations.wait",
    "regionInstanceGroupManagers.insert",
    "regionInstanceGroupManagers.patch",
    "regionInstanceGroupManagers.listErrors",
    "regionInstanceGroupManagers.delete",
    "regionOperations.wait",
    "instanceGroupManagers.aggregatedList",
];

/// A group's life, in which it has no machine yet when that is asked for.
pub async fn every_call(place: &Place) {
    let (provider, attempt) = (place.provider(), attempt("grouped"));
    let with = |accelerator: &str| {
        let (recovery, service_account) = (Some(Recovery::Group), asked(&grouped()).service_account.clone());
        let spec = GceSpec { accelerator: Some(accelerator.into()), recovery, service_account, ..GceSpec::default() };
        on(spec.into())
    };
    for plan in [grouped(), with("a100"), with("h100")] {
        provider.provision(&attempt, &plan, &image()).await.expect("made");
        let group = provider.group(&attempt.job).await.expect("seen").expect("there");
        provider.want_of_machine(&group).await;
        provider.launch(&RunOrder { last_attempt: Some(20), ..order(&attempt) }).await.expect("told");
        until("a machine", async || provider.find(&attempt).await.expect("seen").is_some()).await;
        provider.destroy(&attempt.job).await.expect("destroyed");
    }
}

impl Place {
    /// All starts of agents of the job's machine, in whatever zone it was.
    fn group_starts(&self) -> usize {
        let disks = fs::read_dir(self.state.path()).expect("readable").map(|entry| entry.expect("readable").path());
        disks.map(|disk| fs::read_to_string(disk.join("starts")).map_or(0, |text| text.lines().count())).sum()
    }

    /// Power that goes with no more than a notice.
    async fn take_away(&self) {
        let machines = self.provider().of_job(&attempt("job").job).await.expect("listed");
        for machine in machines {
            let name = last(&machine["name"]);
            self.pull(reqwest::Method::POST, &format!("preempt?instance={name}"), &Value::Null).await;
        }
    }

    pub async fn nothing_is_left(&self) -> bool {
        let provider = self.provider();
        let templates = provider.client.call(Call::get("global/instanceTemplates")).await.expect("listed");
        provider.list().await.expect("listed").is_empty() && templates["items"].as_array().is_none_or(Vec::is_empty)
    }
}

fn recorded(name: &str) -> Value {
    let path = format!("{}/tests/recordings/gce/{name}.json", env!("CARGO_MANIFEST_DIR"));
    let recording: Value = serde_json::from_str(&fs::read_to_string(path).expect("a recording")).expect("JSON");
    let insert = recording["calls"].as_array().and_then(|calls| calls.iter().find(|call| call["body"].is_object()).cloned());
    insert.expect("an insert")["body"].clone()
}

#[tokio::test]
async fn group_and_template_are_gclouds_but_for_what_is_listed() {
    let place = Place::new(json!({})).await;
    place.provider().provision(&attempt("job"), &grouped(), &image()).await.expect("made");
    let calls = place.calls().await;
    let body = |call: &str| {
        let made = calls.iter().find(|made| made["call"] == call).expect(call);
        let text = made["body"].to_string().replace(&place.environment["FTCTL_ENDPOINT_GCE"], "{endpoint}");
        serde_json::from_str::<Value>(&text).expect("JSON")
    };
    let take = |value: &mut Value, key: &str| value.as_object_mut().and_then(|value| value.remove(key)).expect(key);

    let (mut ours, mut gclouds) = (body("compute.instanceTemplates.insert"), recorded("instance-templates-create"));
    assert_eq!(take(&mut ours, "name"), format!("{}-g", attempt("job").job));
    take(&mut gclouds, "name");
    let (ours, gclouds) = (&mut ours["properties"], &mut gclouds["properties"]);
    // The labels that find its machines, and the image that they run.
    assert_eq!(take(ours, "labels")["ftctl-recovery"], "group");
    let added: Vec<Value> =
        ours["metadata"]["items"].as_array_mut().expect("items").drain(1..).map(|item| item["key"].clone()).collect();
    let keys = ["enable-guest-attributes", "enable-oslogin", "ftctl-cards", "ftctl-image", "startup-script", "ftctl-group"];
    assert_eq!(added, keys);
    // A machine must be able to end its group.
    assert_eq!(take(ours, "serviceAccounts")[0]["email"], "machine@my-project.iam.gserviceaccount.com");
    take(gclouds, "serviceAccounts");
    // One time at which all of its machines end, with their disks.
    let ends: Timestamp =
        take(&mut ours["scheduling"], "terminationTime").as_str().and_then(|time| time.parse().ok()).expect("a time");
    assert!(ends > place.devcloud.now());
    ours["scheduling"]["instanceTerminationAction"] = json!("STOP");
    // The same said twice.
    take(&mut gclouds["scheduling"], "preemptible");
    assert_eq!(ours, gclouds);

    let (mut ours, mut gclouds) =
        (body("compute.regionInstanceGroupManagers.insert"), recorded("instance-groups-managed-create-regional-any"));
    for name in ["name", "instanceTemplate"] {
        take(&mut ours, name);
        take(&mut gclouds, name);
    }
    // Google's description has it for answers only; the path says it.
    take(&mut gclouds, "region");
    assert_eq!(take(&mut ours, "baseInstanceName"), attempt("job").job.as_str());
    // The first machine comes with its order.
    assert_eq!((take(&mut ours, "targetSize"), take(&mut gclouds, "targetSize")), (json!(0), json!(1)));
    // Its owner, for a reader without a record; and that a replaced machine has the order, wherever there is one.
    assert_eq!(take(&mut ours, "allInstancesConfig")["properties"]["labels"]["ftctl-job"], attempt("job").job.as_str());
    let policy =
        json!({ "defaultActionOnFailure": "REPAIR", "forceUpdateOnRepair": "YES", "onRepair": { "allowChangingZone": "YES" } });
    assert_eq!(take(&mut ours, "instanceLifecyclePolicy"), policy);
    assert_eq!(ours, gclouds);
}

#[tokio::test]
async fn a_machine_that_is_taken_away_comes_back_with_its_order_and_ends_its_group() {
    let place = Place::new(json!({ "boot": "1s", "notice": "0s" })).await;
    let (provider, attempt) = (place.provider(), attempt("job"));
    provider.provision(&attempt, &grouped(), &image()).await.expect("made");
    assert_eq!(provider.observe(&attempt).await.expect("seen"), Sighting::Alive { agent: false }, "no machine yet");
    assert!(provider.of_job(&attempt.job).await.expect("listed").is_empty());
    provider.launch(&grouped_order()).await.expect("told");
    // The second driver finds everything done.
    provider.launch(&grouped_order()).await.expect("told");
    provider.provision(&attempt, &grouped(), &image()).await.expect("found");
    for starts in 1..=3 {
        until("a start", async || {
            let seen = provider.observe(&attempt).await.expect("seen");
            assert!(matches!(seen, Sighting::Alive { .. } | Sighting::Queued { .. }), "{seen:?}");
            place.group_starts() == starts
        })
        .await;
        let listed = provider.list().await.expect("listed");
        let expected = place.devcloud.now() + grouped().lifetime();
        assert!(listed.iter().all(|resource| resource.expires.is_some_and(|expires| expires <= expected)), "{listed:?}");
        // The next machine needs what this one was given.
        provider.heard(&attempt).await.expect("told");
        if starts < 3 {
            place.take_away().await;
        }
    }
    assert_eq!(provider.of_job(&attempt.job).await.expect("listed").len(), 1);
    // The agent ends well: only the machine is there.
    for disk in fs::read_dir(place.state.path()).expect("readable").map(|entry| entry.expect("readable").path()) {
        if disk.is_dir() {
            fs::write(disk.join("finish"), "").expect("written");
        }
    }
    until("the end of the group", async || provider.list().await.expect("listed").is_empty()).await;
    assert_eq!(provider.observe(&attempt).await.expect("seen"), Sighting::Gone);
    assert_eq!(provider.tidy(true).await, Ok(Vec::new()), "it is young");
    place.devcloud.skip(Duration::from_secs(3_700));
    provider.list().await.expect("the time");
    let template = vec![format!("instance template {}-g", attempt.job)];
    assert_eq!(provider.tidy(true).await, Ok(template.clone()));
    assert_eq!(provider.tidy(false).await, Ok(template));
    assert!(place.nothing_is_left().await);
    provider.destroy(&attempt.job).await.expect("destroyed");
}

#[tokio::test]
async fn a_drill_takes_the_machine_and_not_the_group() {
    let place = Place::new(json!({ "boot": "1s", "notice": "0s" })).await;
    let (provider, attempt) = (place.provider(), attempt("job"));
    provider.provision(&attempt, &grouped(), &image()).await.expect("made");
    provider.launch(&grouped_order()).await.expect("told");
    until("a machine", async || provider.find(&attempt).await.expect("seen").is_some_and(|machine| is_on(&machine))).await;
    let first = provider.find(&attempt).await.expect("seen").expect("there")["id"].clone();
    provider.preempt(&attempt).await.expect("taken");
    until("another", async || {
        provider.find(&attempt).await.expect("seen").is_some_and(|machine| is_on(&machine) && machine["id"] != first)
    })
    .await;
    provider.destroy(&attempt.job).await.expect("destroyed");
    assert!(place.nothing_is_left().await);
}

#[tokio::test]
async fn a_group_without_a_machine_says_why_and_makes_one_when_there_is_one() {
    let place = Place::new(json!({ "boot": "1s", "stock_outs": ["us-central1-a", "us-central1-b"] })).await;
    let (provider, attempt) = (place.provider(), attempt("job"));
    provider.provision(&attempt, &grouped(), &image()).await.expect("made");
    provider.launch(&grouped_order()).await.expect("told");
    until("a reason", async || match provider.signs(&attempt).await.expect("asked") {
        Signs::Busy { at } => at.contains("does not have enough resources"),
        _ => false,
    })
    .await;
    let seen = provider.observe(&attempt).await.expect("seen");
    assert!(matches!(&seen, Sighting::Queued { why, .. } if why.contains("does not have enough resources")), "{seen:?}");
    place.devcloud.skip(Duration::from_secs(5));
    let script = json!({ "boot": "1s", "stock_outs": ["us-central1-a"] });
    place.pull(reqwest::Method::PUT, "script", &script).await;
    until("a start", async || place.group_starts() == 1).await;
    let machine = provider.find(&attempt).await.expect("seen").expect("there");
    assert_eq!(last(&machine["zone"]), "us-central1-b", "born with its order: no one told it");
    provider.destroy(&attempt.job).await.expect("destroyed");
}

#[tokio::test]
async fn a_machine_that_cannot_work_is_not_made_again() {
    let place = Place::new(json!({ "boot": "1s" })).await;
    let (provider, attempt) = (place.provider(), attempt("job"));
    let unpullable = TrainerImage::Image { reference: "registry.example/unpullable@sha256:00".to_owned() };
    provider.provision(&attempt, &grouped(), &unpullable).await.expect("made");
    provider.launch(&grouped_order()).await.expect("told");
    until("its last words", async || match provider.observe(&attempt).await.expect("seen") {
        Sighting::Unfit { why } => why.contains("unpullable@sha256:00 cannot be pulled"),
        _ => false,
    })
    .await;
    place.devcloud.skip(Duration::from_secs(600));
    sleep(Duration::from_millis(200)).await;
    assert!(!provider.find(&attempt).await.expect("seen").is_some_and(|machine| is_on(&machine)), "it stays switched off");
    provider.destroy(&attempt.job).await.expect("destroyed");
    assert!(place.nothing_is_left().await);
}

#[tokio::test]
async fn a_group_that_nobody_looks_after_costs_no_more_than_one_machine() {
    // Taken away every ten minutes, for longer than the job has.
    let script = json!({ "boot": "20s", "notice": "0s", "preemptions": [{ "instance": "", "after": "600s" }] });
    let place = Place::new(script).await;
    let mut plan = grouped();
    plan.ttl = Span(Duration::from_secs(6 * 3_600));
    plan.max_cost = Some(Money { micros: 3_000_000 });
    let price = place.provider().price(&plan).await.expect("a price");
    let plan = plan.priced(price).expect("it pays for a minute");
    place.provider().provision(&attempt("job"), &plan, &image()).await.expect("made");
    place.provider().launch(&grouped_order()).await.expect("told");
    for _ in 0..500 {
        place.devcloud.skip(Duration::from_secs(60));
    }
    let bill = place.bill().await;
    let machines = bill["machines"].as_array().expect("machines");
    assert!(machines.len() > 15 && machines.iter().all(|machine| machine["exists"] == false), "{bill}");
    let total: Money = bill["total"].as_str().and_then(|total| total.parse().ok()).expect("money");
    assert!(total <= Money { micros: 3_000_000 } && total.micros > 2_000_000, "{total}");
    // The rest costs nothing, and is pruned by its time.
    let left = place.provider().list().await.expect("listed");
    assert_eq!((left.len(), left[0].price_per_hour), (1, Money::ZERO));
    assert!(left[0].expires.is_some_and(|expires| expires < place.devcloud.now()));
    place.provider().destroy(&attempt("job").job).await.expect("destroyed");
    assert!(place.nothing_is_left().await);
}

#[tokio::test]
async fn who_may_not_see_groups_has_none() {
    let faults = json!({ "faults": [
        { "call": "compute.instanceGroupManagers.aggregatedList", "kind": { "status": 403 }, "times": 99 },
        { "call": "compute.instanceTemplates.list", "kind": { "status": 403 }, "times": 99 },
    ] });
    let (done, _, place) = provision(faults).await;
    done.expect("made");
    place.provider().destroy(&attempt("job").job).await.expect("destroyed");
    assert!(place.provider().list().await.expect("listed").is_empty());
}

#[tokio::test]
async fn a_group_that_its_machine_deletes_is_waited_for() {
    let place = Place::new(json!({ "boot": "1s" })).await;
    let (provider, attempt) = (place.provider(), attempt("job"));
    provider.provision(&attempt, &grouped(), &image()).await.expect("made");
    let group = provider.group(&attempt.job).await.expect("seen").expect("there");
    let path = format!("regions/us-central1/instanceGroupManagers/{}", last(&group["name"]));
    provider.client.change(Call::change(Method::DELETE, path.clone(), None)).await.expect("begun");
    let again = provider.client.change(Call::change(Method::DELETE, path, None)).await.expect_err("under way");
    assert!(again.is_under_way(), "{}", again.message);
    provider.destroy(&attempt.job).await.expect("destroyed");
    assert!(place.nothing_is_left().await);
}

#[tokio::test]
async fn machines_of_a_group_that_may_not_be_seen_stay_and_are_told() {
    let place = Place::new(json!({ "boot": "1s" })).await;
    let (provider, attempt) = (place.provider(), attempt("job"));
    provider.provision(&attempt, &grouped(), &image()).await.expect("made");
    provider.launch(&grouped_order()).await.expect("told");
    until("a machine", async || provider.find(&attempt).await.expect("seen").is_some()).await;
    let denied = json!({ "call": "compute.instanceGroupManagers.aggregatedList", "kind": { "status": 403 }, "times": 2 });
    place.pull(reqwest::Method::PUT, "script", &json!({ "faults": [denied] })).await;
    let error = provider.destroy(&attempt.job).await.expect_err("it would come again");
    assert!(error.message.contains(&group::name(&attempt.job)), "{error}");
    provider.destroy(&attempt.job).await.expect("destroyed");
    assert!(place.nothing_is_left().await);
}
