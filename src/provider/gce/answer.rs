//! One answer of the cloud, read in every way in which this provider reads an answer. Fuzzing begins here.

use std::slice;

use jiff::Timestamp;
use serde_json::Value;

use super::{
    advice, group, machine,
    prices::PriceList,
    quota,
    refusal::{self, Refusal},
};
use crate::provider::{ProviderError, whose::Mark};

/// Takes `bytes` for a list of machines, groups and regions, for the billing catalogue, and for a zone's outlook. The error is that
/// of a refusal, or of a failed operation, with this body.
pub fn read(mark: &Mark<'_>, bytes: &[u8]) -> Option<ProviderError> {
    let answer = serde_json::from_slice::<Value>(bytes).ok()?;
    let each = answer["items"].as_array().map_or(slice::from_ref(&answer), Vec::as_slice);
    let mut prices = PriceList::empty(String::new(), Timestamp::UNIX_EPOCH);
    prices.take(&answer);
    for one in each {
        let _ = (machine::resource(one, mark, None), machine::resource(one, mark, Some(&prices)), group::resource(one, mark));
        for metric in ["CPUS", "GPUS_ALL_REGIONS"] {
            let _ = quota::held("us-central1", one, &[(metric.to_owned(), u32::MAX)]);
        }
    }
    let _ = machine::console(&answer, 0);
    let _ = advice::Outlook::read(&answer).map(|outlook| (outlook.score(), outlook.text()));
    Some(refusal::operation_error(&answer).unwrap_or_else(|| Refusal::answered("ask", 403, &answer, None)).into())
}
