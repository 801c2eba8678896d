//! Who asked the attempt to end, and by when.

use std::time::Duration;

use tokio::{sync::watch, time::Instant};

use crate::job::order::ExitReason;

/// A request to end. The trainer is asked at once, and killed at `kill_at`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stop {
    pub reason: ExitReason,
    pub kill_at: Instant,
}

/// The one request of an attempt. The first caller makes it; later ones can only make it more urgent.
pub(super) struct StopRequest(watch::Sender<Option<Stop>>);

impl StopRequest {
    pub fn new() -> Self {
        Self(watch::Sender::new(None))
    }

    /// A second request can bring the end nearer but not put it off, and the first reason stays; a lost lease overrules all.
    pub fn ask(&self, reason: ExitReason, grace: Duration) {
        let kill_at = Instant::now() + grace;
        self.0.send_if_modified(|present| {
            let merged = present.map_or(Stop { reason, kill_at }, |before| Stop {
                reason: if reason == ExitReason::LostLease { reason } else { before.reason },
                kill_at: before.kill_at.min(kill_at),
            });
            present.replace(merged) != Some(merged)
        });
    }

    pub fn get(&self) -> Option<Stop> {
        *self.0.borrow()
    }

    pub fn subscribe(&self) -> watch::Receiver<Option<Stop>> {
        self.0.subscribe()
    }

    /// Returns when a stop has been asked for.
    pub async fn asked(&self) -> Stop {
        let mut requests = self.subscribe();
        loop {
            if let Some(stop) = *requests.borrow_and_update() {
                return stop;
            }
            // The sender lives as long as `self`.
            let _ = requests.changed().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_end_only_comes_nearer() {
        let request = StopRequest::new();
        let now = Instant::now();
        assert_eq!(request.get(), None);
        for (reason, grace, expected, seconds) in [
            (ExitReason::Preempted, 30, ExitReason::Preempted, 30),
            (ExitReason::Cancelled, 60, ExitReason::Preempted, 30),
            (ExitReason::Cancelled, 10, ExitReason::Preempted, 10),
            (ExitReason::LostLease, 0, ExitReason::LostLease, 0),
            (ExitReason::Deadline, 5, ExitReason::LostLease, 0),
        ] {
            request.ask(reason, Duration::from_secs(grace));
            assert_eq!(request.asked().await, Stop { reason: expected, kill_at: now + Duration::from_secs(seconds) });
        }
    }
}
