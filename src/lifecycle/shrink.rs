//! On how many machines an attempt runs: on all of the plan's, unless `retry.shrink` lets it have fewer
//! (docs/decisions/0044-a-job-goes-on-with-the-nodes-that-are-left.md).

use std::time::Duration;

use crate::job::{
    order::{ExitReason, ExitRecord},
    record::Record,
};

/// An attempt of several machines that has been in a queue for so long is asked for with fewer. A service needs some of this time
/// to start those that it has, and to pull the image.
pub(super) const PATIENCE: Duration = Duration::from_secs(20 * 60);

/// After the current attempt, whose agent left this record of its end, or none: one less when it lost one. After an attempt that
/// had fewer, all: others may be there by then.
pub(super) fn after(record: &Record, exit: Option<&ExitRecord>) -> usize {
    let (has, all) = (record.nodes(), record.plan.nodes);
    if record.plan.retry.shrink && has == all && has_lost_one(exit) { (all - 1).max(1) } else { all }
}

/// When as many as the current attempt asks for are refused: half. `None` where that is not allowed, or none is left.
pub(super) fn of_refused(record: &Record) -> Option<usize> {
    Some(record.nodes() / 2).filter(|half| record.plan.retry.shrink && *half > 0)
}

/// A trainer that was killed alone has left its machine behind.
fn has_lost_one(exit: Option<&ExitRecord>) -> bool {
    exit.is_none_or(|exit| exit.reason == ExitReason::Preempted && exit.signal.is_none())
}
