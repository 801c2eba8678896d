//! Time as a parameter: the life of a job reads and spends time only through a [`Clock`], so that a rehearsal on the fake provider
//! passes hours in milliseconds and no test waits.

use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;

#[async_trait]
pub trait Clock: Send + Sync {
    fn now(&self) -> Timestamp;

    /// The time since a moment of this process: it passes alike when somebody sets the clock. A simulated one is never set.
    fn steady(&self) -> Duration {
        between(Timestamp::MIN, self.now())
    }

    /// Returns when `duration` has passed on this clock.
    async fn sleep(&self, duration: Duration);
}

/// Time from a moment until another; none where that came before.
pub fn between(from: Timestamp, until: Timestamp) -> Duration {
    Duration::try_from(until.duration_since(from)).unwrap_or_default()
}

/// A moment `span` after another, or the last that there is: times and spans come from stores, too.
pub fn after(time: Timestamp, span: Duration) -> Timestamp {
    time.checked_add(span).unwrap_or(Timestamp::MAX)
}
