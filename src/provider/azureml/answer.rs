//! One answer of the service, read in every way in which this provider reads an answer. Fuzzing begins here.

use std::{slice, time::Duration};

use jiff::Timestamp;
use serde_json::Value;

use super::{body, cluster, console, job, prices, quota, refusal::Refusal};
use crate::{
    catalogue::azureml,
    job::units::Money,
    provider::{ProviderError, whose::Mark},
};

/// Takes `bytes` for a list of jobs, clusters and usages, for a run's history, for retail prices, and for a refusal.
pub fn read(mark: &Mark<'_>, bytes: &[u8]) {
    let Ok(answer) = serde_json::from_slice::<Value>(bytes) else { return };
    let each = answer["value"].as_array().map_or(slice::from_ref(&answer), Vec::as_slice);
    let (now, price) = (Timestamp::UNIX_EPOCH, Money::from_dollars(22.0));
    for one in each {
        let _ = (job::end(one, &answer, true), job::was_denied(&answer), job::began(one, &answer), job::stage(one).is_ok());
        let _ = (cluster::idle(one), cluster::allocated(one, &answer, Some(now)), cluster::prepared(one, each, &answer));
        let _ = (job::limit(one), job::may_be_too_late(one, now));
        let told = [cluster::resource(one, price, mark), cluster::surplus(one, each, price, now, mark)];
        for resource in told.into_iter().flatten() {
            let _ = resource.price_per_hour.for_time(Duration::from_secs(3_600));
        }
    }
    for (name, size) in azureml::table().all() {
        let _ = prices::rates(&answer, "eastus", name, now);
        let _ = [false, true].map(|spot| quota::judged(each, "eastus", spot, size, [2, 1], 1));
    }
    let _ = (console::files(&answer), body::shown(&answer));
    let _ = (Refusal::ended("ask", &answer), ProviderError::from(Refusal::answered("ask", 403, &answer, None)));
}
