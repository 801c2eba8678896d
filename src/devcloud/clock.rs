//! Simulated time: runs faster than the wall's by a factor, and can be moved ahead.

use std::time::{Duration, Instant};

use jiff::{Timestamp, fmt::rfc2822};

pub struct Clock {
    begun: Timestamp,
    started: Instant,
    speed: f64,
    skipped: Duration,
}

impl Clock {
    /// `speed` simulated seconds pass in each second.
    pub fn new(speed: f64) -> Self {
        Self { begun: Timestamp::now(), started: Instant::now(), speed, skipped: Duration::ZERO }
    }

    pub fn now(&self) -> Timestamp {
        after(self.begun, self.started.elapsed().mul_f64(self.speed) + self.skipped)
    }

    pub fn skip(&mut self, duration: Duration) {
        self.skipped += duration;
    }
}

/// The time in the format of servers.
pub fn http_date(time: Timestamp) -> String {
    rfc2822::DateTimePrinter::new().timestamp_to_rfc9110_string(&time).unwrap_or_default()
}

/// `time` and then `duration`, or the end of all time.
pub fn after(time: Timestamp, duration: Duration) -> Timestamp {
    time.checked_add(duration).unwrap_or(Timestamp::MAX)
}
