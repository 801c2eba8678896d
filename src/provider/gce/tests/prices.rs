//! Today's prices of machines, by the simulated billing catalogue.

use super::*;

#[tokio::test]
async fn todays_prices_are_those_of_the_billing_catalogue_and_read_once_a_day() {
    let place = Place::new(json!({ "price_factor": 2.0 })).await;
    let file = place.state.path().join("prices.json");
    let open = || Gce { prices: Kept(Some(file.clone())), ..place.provider() };
    let reads = async || place.calls().await.iter().filter(|call| call["call"] == "cloudbilling.services.skus.list").count();
    let (plan, today) = (plan(), open().price(&plan()).await.expect("a price"));
    let list = asked(&plan).price_per_hour().micros;
    // Prices are in billionths there.
    assert!(today.per_hour.micros.abs_diff(2 * list) <= 2, "{} is twice {list}", today.per_hour);
    let lasting = asked(&plan).lasting_machine().expect("it is a spot machine");
    let lasting = crate::catalogue::gce().price_per_hour(&lasting).micros;
    assert!(today.lasting.expect("likewise").micros.abs_diff(2 * lasting) <= 2, "{today:?} is twice {lasting}");
    assert!(today.source.as_ref().is_some_and(|source| source.starts_with("billing catalogue of 20")), "{today:?}");
    let pages = reads().await;
    assert!(pages > 1, "the catalogue has several pages");
    assert_eq!(open().price(&plan).await.as_ref(), Ok(&today));
    assert_eq!(reads().await, pages, "what was read is kept");

    open().provision(&attempt("job"), &plan, &image()).await.expect("made");
    assert_eq!(open().list().await.expect("seen")[0].price_per_hour, today.per_hour);
    open().destroy(&attempt("job").job).await.expect("gone");

    let kept = fs::read_to_string(&file).expect("kept");
    let aged = |by: i64| Timestamp::now() - jiff::SignedDuration::from_hours(by);
    let mut old: Value = serde_json::from_str(&kept).expect("JSON");
    for (hours, more) in [(23, 0), (25, pages), (-1, 2 * pages)] {
        old["read"] = json!(aged(hours));
        fs::write(&file, old.to_string()).expect("written");
        assert_eq!(open().price(&plan).await.as_ref().map(|price| price.per_hour), Ok(today.per_hour));
        assert_eq!(reads().await, pages + more, "{hours} hours old");
    }
    for damaged in ["", "{}", &kept.replace("ftctl.prices/1", "ftctl.prices/9"), &kept.replace("http://", "http://other.")] {
        fs::write(&file, damaged).expect("written");
        assert_eq!(open().price(&plan).await.as_ref(), Ok(&today), "{damaged}");
    }
    let a100 = Plan { compute: on(of("a100")).compute, ..plan };
    let price = open().price(&a100).await.expect("a price");
    assert_eq!(
        (price.per_hour, price.source.as_deref()),
        (asked(&a100).price_per_hour(), Some("price list of 2026-07-30 for us-central1"))
    );
}

#[tokio::test]
async fn the_list_counts_where_the_billing_catalogue_is_not_to_be_had() {
    for (status, why) in [(403, "Required permission is missing"), (404, "Internal Error")] {
        let faults = json!([{ "call": "cloudbilling.services.skus.list", "kind": { "status": status } }]);
        let place = Place::new(json!({ "price_factor": 2.0, "faults": faults })).await;
        let price = place.provider().price(&plan()).await.expect("a price");
        assert_eq!(price.per_hour, GcePlan::default().price_per_hour());
        let source = price.source.expect("a list");
        assert!(
            source.starts_with("price list of 2025-11-01 for us-central1 (the billing catalogue") && source.contains(why),
            "{source}"
        );
    }
}
