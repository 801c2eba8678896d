//! When a request is sent again. Time and chance are parameters.

use std::time::Duration;

/// Wait before the second try; doubled for each further one, up to [`LONGEST`].
const FIRST: Duration = Duration::from_millis(200);
const LONGEST: Duration = Duration::from_secs(20);
/// A longer wish of the service is no pause but a refusal.
const LONGEST_WISH: Duration = Duration::from_secs(300);

/// How long an operation may take in all, by the clock on the wall, pauses included.
#[derive(Debug, Clone, Copy)]
pub(super) struct Patience {
    /// With a service that answers, and with connections that break.
    pub total: Duration,
    /// With a service that cannot even be connected to: more likely a wrong name than a bad moment.
    pub unreachable: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self { total: Duration::from_secs(360), unreachable: Duration::from_secs(30) }
    }
}

/// Why a try came to nothing that can be kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Trouble {
    /// No connection.
    Unreachable(String),
    /// The connection broke, or what came over it was damaged.
    Lost(String),
    /// The service asks for another try: its status and its wish.
    Busy(u16, Option<Duration>),
    /// There is no way to sign in.
    NoSignIn(String),
}

impl Patience {
    /// How long to wait after the try number `tries`, `elapsed` after the first began; `None`: give up. `chance` is in 0..1.
    pub fn pause(&self, trouble: &Trouble, tries: u32, elapsed: Duration, chance: f64) -> Option<Duration> {
        let doubled = FIRST.saturating_mul(1 << tries.saturating_sub(1).min(10)).min(LONGEST);
        // Between half and all of it, so that many clients do not come back together.
        let own = doubled.mul_f64(0.5 + chance / 2.0);
        let (pause, limit) = match trouble {
            Trouble::Unreachable(_) => (own, self.unreachable),
            Trouble::Busy(_, Some(wish)) if *wish > LONGEST_WISH => return None,
            Trouble::Busy(_, wish) => (own.max(wish.unwrap_or_default()), self.total),
            Trouble::Lost(_) => (own, self.total),
            Trouble::NoSignIn(_) => return None,
        };
        (elapsed + pause < limit).then_some(pause)
    }
}

/// Whether the same request may succeed later: 408, 429 and the server's own failures, bytes that were damaged on their way
/// (`Md5Mismatch`; the emulator says `InvalidOperation`, which none of our other requests can be), and a container of that name
/// that is still on its way out, for about half a minute.
pub(super) fn is_passing(status: u16, code: &str) -> bool {
    matches!(status, 408 | 429 | 500..=599)
        || (status == 400 && matches!(code, "Md5Mismatch" | "InvalidOperation"))
        || (status == 409 && code == "ContainerBeingDeleted")
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn pauses_grow_have_jitter_and_end_with_the_deadline() {
        let patience = Patience::default();
        let lost = Trouble::Lost(String::new());
        let pause = |tries, chance| patience.pause(&lost, tries, SECOND, chance).unwrap();
        assert_eq!((pause(1, 0.0), pause(1, 1.0)), (FIRST / 2, FIRST));
        assert_eq!(pause(3, 1.0), 4 * FIRST);
        assert_eq!(pause(50, 1.0), LONGEST);
        assert_eq!(patience.pause(&lost, 50, patience.total, 0.0), None);
        assert_eq!(patience.pause(&Trouble::Unreachable(String::new()), 1, patience.unreachable, 0.0), None);
        assert_eq!(patience.pause(&Trouble::NoSignIn(String::new()), 1, Duration::ZERO, 0.0), None);
    }

    #[test]
    fn the_wish_of_the_service_counts_up_to_five_minutes() {
        let patience = Patience::default();
        let pause = |seconds| patience.pause(&Trouble::Busy(503, Some(seconds * SECOND)), 1, SECOND, 0.0);
        assert_eq!(pause(7), Some(7 * SECOND));
        assert_eq!(pause(0), Some(FIRST / 2));
        assert_eq!(pause(300), Some(300 * SECOND));
        assert_eq!(pause(301), None);
    }

    #[test]
    fn only_passing_failures_are_tried_again() {
        for status in [408, 429, 500, 503, 504] {
            assert!(is_passing(status, ""), "{status}");
        }
        for status in [200, 400, 401, 403, 404, 409, 412, 416] {
            assert!(!is_passing(status, "InvalidInput"), "{status}");
        }
        assert!(is_passing(400, "Md5Mismatch"));
        assert!(is_passing(409, "ContainerBeingDeleted"));
    }
}
